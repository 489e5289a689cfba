//! Copies for the bookie that the worker is part of. They go into its entry logs with one commit, past its journals.
//!
//! ```text
//! fence --> held entries --> Intake::take ... --> Intake::commit: durable and shown, all or none
//! ```
//!
//! # Invariants
//! 1. Only ledgers that are closed come this way: the bookie fences each before it takes copies of it, and an open ledger's writer may
//!    want this bookie as a member of its next ensemble.
//! 2. Dropping an intake discards the copies that are not committed.
//! 3. While adds of clients wait for memory, copies wait, too, for [`GIVE_WAY_MAX`] at most for each batch: the disk is better left to
//!    the flush then.
//!
//! # Limits     [`COMMIT_BYTES`] of copies are lost with a worker that is killed; one batch in memory, in its reader's budget

use std::sync::Arc;
use std::time::Duration;

use bindery_client::StoredBatch;
use bindery_engine::{Engine, EntryRun, Ingest, IngestError, Refusal};
use bindery_types::{EntryId, LedgerId, MasterKey};
use tokio::sync::oneshot;

/// Bytes, and entries, after which copies are committed.
const COMMIT_BYTES: u64 = 64 << 20;
const COMMIT_ENTRIES: u64 = 1 << 17;
/// How long a batch waits for adds that wait for memory, and how often it looks.
const GIVE_WAY_MAX: Duration = Duration::from_secs(1);
const GIVE_WAY_LOOK: Duration = Duration::from_millis(20);

/// Why the bookie does not take copies.
#[derive(Debug, thiserror::Error)]
pub(super) enum IntakeError {
    /// The way past the journal is not for these copies now.
    #[error(transparent)]
    Ingest(#[from] IngestError),
    /// The bookie itself.
    #[error("this bookie does not take copies: {0}")]
    Refused(Refusal),
    /// It ends.
    #[error("this bookie stops")]
    Stops,
}

impl IntakeError {
    /// Whether the copies may go through the journal instead.
    pub fn is_for_journal(&self) -> bool {
        let IntakeError::Ingest(error) = self else { return false };
        match error {
            // The journal path would meet the same disk.
            IngestError::Io(_) | IngestError::ReadOnly(_) | IngestError::Over => false,
            IngestError::NoLedger(_)
            | IngestError::Busy(_)
            | IngestError::RemovalNotFlushed(_)
            | IngestError::BehindRemoval(_)
            | IngestError::NeverAtRest(_)
            | IngestError::Held { .. }
            | IngestError::Tiered { .. }
            | IngestError::NotAscending { .. }
            | IngestError::LedgersOutOfOrder(_)
            | IngestError::BadBody { .. }
            | IngestError::Full(_)
            | IngestError::TooMany
            | IngestError::Empty => true,
        }
    }
}

/// Runs on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, IntakeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(IntakeError::Stops),
    }
}

/// The entries of a ledger that the bookie has, from `first` to `last`, as ascending runs; also of a ledger in limbo. None of a ledger
/// that it does not know.
pub(super) async fn held(
    engine: &Arc<Engine>,
    ledger: LedgerId,
    first: EntryId,
    last: EntryId,
) -> Result<Vec<EntryRun>, IntakeError> {
    let engine = engine.clone();
    match blocking(move || engine.held_entries(ledger, first, last)).await? {
        Ok(runs) => Ok(runs),
        Err(Refusal::NoLedger) => Ok(Vec::new()),
        Err(refusal) => Err(IntakeError::Refused(refusal)),
    }
}

/// Copies of one ledger on their way into the bookie.
pub(super) struct Intake {
    engine: Arc<Engine>,
    ledger: LedgerId,
    ingest: Option<Ingest>,
}

impl Intake {
    /// Fences the ledger, which is closed, and with that makes the bookie know it.
    pub async fn begin(
        engine: &Arc<Engine>,
        ledger: LedgerId,
        key: MasterKey,
    ) -> Result<Intake, IntakeError> {
        let (answer, fenced) = oneshot::channel();
        engine.fence_known(
            ledger,
            key,
            Box::new(move |outcome| {
                let _ = answer.send(outcome);
            }),
        );
        fenced.await.map_err(|_| IntakeError::Stops)?.map_err(IntakeError::Refused)?;
        Ok(Intake { engine: engine.clone(), ledger, ingest: None })
    }

    /// Takes entries, which ascend from call to call. Some may be committed by this call.
    pub async fn take(&mut self, batch: StoredBatch) -> Result<(), IntakeError> {
        let mut waited = Duration::ZERO;
        while self.engine.adds_wait() && waited < GIVE_WAY_MAX {
            tokio::time::sleep(GIVE_WAY_LOOK).await;
            waited += GIVE_WAY_LOOK;
        }
        let (engine, ledger, begun) = (self.engine.clone(), self.ledger, self.ingest.take());
        let ingest = blocking(move || {
            let mut ingest = match begun {
                Some(ingest) => ingest,
                None => engine.begin_ingest(ledger)?,
            };
            let (entries, permit) = batch.into_parts();
            for entry in &entries {
                ingest.append(ledger, entry.id, &entry.bytes)?;
            }
            // Its bytes are written, or in the buffer of the entry log.
            drop((entries, permit));
            Ok::<_, IngestError>(ingest)
        });
        let ingest = self.ingest.insert(ingest.await??);
        match ingest.bytes() >= COMMIT_BYTES || ingest.entries() >= COMMIT_ENTRIES {
            true => self.commit().await,
            false => Ok(()),
        }
    }

    /// Makes what was taken durable, and shows it.
    pub async fn commit(&mut self) -> Result<(), IntakeError> {
        let Some(ingest) = self.ingest.take() else { return Ok(()) };
        let sealed = blocking(move || ingest.seal()).await??;
        let (answer, committed) = oneshot::channel();
        self.engine.commit_ingest(
            sealed,
            Box::new(move |outcome| {
                let _ = answer.send(outcome);
            }),
        );
        Ok(committed.await.map_err(|_| IntakeError::Stops)??)
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        // Its files are removed, which blocks.
        if let Some(ingest) = self.ingest.take() {
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn_blocking(move || drop(ingest))),
                Err(_) => drop(ingest),
            }
        }
    }
}
