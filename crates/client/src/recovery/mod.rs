//! Recovering a ledger whose writer is gone: the shell around [`core::RecoveryCore`].
//!
//! # Data flow
//! ```text
//! core -> reads (a task each, owned here) and adds -> bookies -> answers -> core
//! core -> step -> metadata store -> core
//! late answers, for a while -> core
//! ```
//! A recovery that is cancelled leaves the ledger in recovery; the next one starts over.
//!
//! # Limits     those of the core; entries being recovered are not counted by the client's budget, so that a recovery
//! is not held up by adds that wait for room

pub(crate) mod core;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bindery_metadata::StoreError;
use bindery_metadata::layout::{LedgerError, StoredLedger};
use bindery_types::{BookieId, Digester, LedgerId, LedgerSecret};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use self::core::{Out, ReadTag, Recovered, RecoveryCore};
use crate::entry::EntryCodec;
use crate::error::RecoveryError;
use crate::options::WRITE_QUORUM_SIZE_MAX;
use crate::placement::{Placement, Wanted};
use crate::retry::Retry;
use crate::shared::Shared;
use crate::transport::{AddAnswer, AddRequest, AddSink, BookieError, ReadRequest};
use crate::writer::core::Step;

/// How long a recovery whose end is decided waits for copies that are late: whoever opened the ledger waits as well.
const LATE_COPIES_WAIT: Duration = Duration::from_millis(500);

/// How long a recovery tries to mark its ledger as under-replicated: whoever opened the ledger waits as well.
const MARK_PATIENCE: Duration = Duration::from_secs(5);

/// Collects answers to recovery adds, of which the core allows a bounded number.
#[derive(Default)]
struct Answers {
    queue: Mutex<Vec<AddAnswer>>,
    arrived: Notify,
}

impl AddSink for Answers {
    fn added(self: Arc<Self>, _bookie: &BookieId, answers: &[AddAnswer]) {
        self.queue.lock().extend_from_slice(answers);
        self.arrived.notify_one();
    }
}

/// Fences the ledger, finds its end and closes it; returns at once when it is closed.
pub(crate) async fn recover(
    shared: &Arc<Shared>,
    ledger: LedgerId,
    secret: &LedgerSecret,
    stored: StoredLedger,
) -> Result<Recovered, RecoveryError> {
    let write_quorum_size = stored.metadata.quorum.write_quorum_size();
    if write_quorum_size > WRITE_QUORUM_SIZE_MAX {
        return Err(RecoveryError::WriteQuorumTooLarge {
            ledger,
            write_quorum_size,
            max: WRITE_QUORUM_SIZE_MAX,
        });
    }
    let codec = EntryCodec::new(ledger, Digester::new(secret.digest_type, &secret.password));
    let key = secret.master_key();
    let answers = Arc::new(Answers::default());
    let sink: Arc<dyn AddSink> = answers.clone();
    // Dropped with this future: no read outlives it.
    let mut reads: JoinSet<(ReadTag, Result<Bytes, BookieError>)> = JoinSet::new();
    let patience = shared.limits.metadata_patience;
    let mut retry = Retry::new(patience);
    let mut out = Out::default();
    let mut linger: Option<Instant> = None;
    let mut core = RecoveryCore::new(ledger, codec, stored, &mut out);
    loop {
        for send in out.sends.drain(..) {
            let request = AddRequest {
                ledger,
                entry: send.entry,
                body: send.body,
                master_key: key,
                is_recovery: true,
                is_background: false,
                is_deferred: false,
                tag: send.tag,
            };
            shared.transport.add(&core.ensemble()[send.position], request, &sink);
        }
        for read in out.reads.drain(..) {
            let transport = shared.transport.clone();
            let request = ReadRequest { ledger, entry: read.entry, fence: read.fences.then_some(key) };
            let health = shared.health.clone();
            reads.spawn(async move {
                let result = transport.read(&read.bookie, request).await;
                if let Err(error) = &result {
                    health.note_failure(&read.bookie, error);
                }
                (read.tag, result)
            });
        }
        shared.transport.flush();
        if let Some(result) = core.result() {
            return result.clone();
        }
        if let Some(step) = core.next_step() {
            if let Step::Mark { replicas } = &step {
                match mark(shared, ledger, replicas, patience.min(MARK_PATIENCE)).await {
                    Ok(()) => core.marked(),
                    Err(error) => core.metadata_failed(error),
                }
                // The close needs all of it, with or without the mark.
                retry = Retry::new(patience);
                continue;
            }
            match take(shared, ledger, step, &mut core, &mut out).await {
                None => retry = Retry::new(patience),
                Some(error) if error.is_transient() && !shared.is_closed() && retry.pause().await => {}
                Some(error) => core.metadata_failed(error),
            }
            continue;
        }
        // Begins when only late answers are missing.
        linger = core.is_lingering().then(|| linger.unwrap_or_else(|| Instant::now() + LATE_COPIES_WAIT));
        let late = linger.unwrap_or_else(Instant::now);
        tokio::select! {
            Some(read) = reads.join_next(), if !reads.is_empty() => match read {
                Ok((tag, result)) => core.on_read(tag, result, &mut out),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
            () = answers.arrived.notified() => {
                for answer in std::mem::take(&mut *answers.queue.lock()) {
                    core.on_answer(answer.entry, answer.tag, &answer.result);
                }
                core.settle(&mut out);
            }
            () = sleep_until(late), if linger.is_some() => core.lose_patience(&mut out),
        }
    }
}

/// Marks the ledger as under-replicated, or gives up after `patience`.
async fn mark(
    shared: &Shared,
    ledger: LedgerId,
    replicas: &[BookieId],
    patience: Duration,
) -> Result<(), LedgerError> {
    let marks = shared.layout.under_replication();
    let mut retry = Retry::new(patience);
    let marking = async {
        loop {
            match marks.mark(ledger, replicas).await {
                Err(error) if error.is_transient() && !shared.is_closed() && retry.pause().await => {}
                outcome => return outcome,
            }
        }
    };
    // A request to servers that are away may wait for longer.
    timeout(patience, marking).await.unwrap_or(Err(StoreError::ConnectionLoss)).map_err(LedgerError::Store)
}

/// Takes another step than a mark; the error when it did not succeed and the core does not know of it, or should not hurry.
async fn take(
    shared: &Shared,
    ledger: LedgerId,
    step: Step,
    core: &mut RecoveryCore,
    out: &mut Out,
) -> Option<LedgerError> {
    let ledgers = shared.layout.ledgers();
    match step {
        Step::Place { positions, ensemble, avoided, .. } => match shared.candidates(&ensemble).await {
            Ok(mut candidates) => {
                candidates.avoided.extend(avoided);
                let wanted = Wanted { quorum: core.quorum(), ensemble: &ensemble, positions: &positions };
                let choice = shared.placement.choose(&candidates, wanted);
                core.placed(&choice.bookies, candidates.read_only.len(), out);
                None
            }
            Err(error) => Some(LedgerError::Store(error)),
        },
        Step::Write { metadata, expected } => {
            let outcome = ledgers.update(ledger, &metadata, expected).await;
            let transient = outcome.as_ref().err().filter(|error| error.is_transient()).cloned();
            core.written(outcome, out);
            transient
        }
        Step::Mark { .. } => unreachable!("made by `mark`"),
        Step::Wait => unreachable!("a recovery does not wait for bookies"),
        Step::Read => match ledgers.get(ledger).await {
            Ok(stored) => {
                core.read(stored, out);
                None
            }
            Err(error) => Some(error),
        },
    }
}
