//! Damaged entries: the ledgers of which this bookie has copies that do not verify are marked for repair, until other copies have taken
//! their place.
//!
//! # Data flow
//! ```text
//! damage register of the engine -> each ledger: metadata -> entries that belong here, entries listed (damaged ones are not)
//!     -> some are missing -> marked as under-replicated, with this bookie as the replica -> a worker adds them again
//!     -> none is missing  -> the damaged copies are made good: the engine leaves them behind
//! ```
//!
//! # Invariants
//! 1. Damage is made good here only for what the register had before the list of entries was made, and only when metadata says that the
//!    ledger is closed and lacks nothing: then no entry that belongs here is in a damaged copy alone.
//! 2. Of an open ledger with this bookie in its last ensemble, what belongs here is not known: its damage waits until it is closed, or
//!    until newer copies of the same entries are on disk.
//!
//! # Limits
//! One ledger at a time; entries that are compared at a time: as in `integrity`.

use super::durable;
use super::integrity::{Missing, missing};
use bindery_engine::Engine;
use bindery_metadata::Layout;
use bindery_metadata::layout::LedgerError;
use bindery_types::{BookieId, LedgerId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// What is to be done about the damage of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Nothing is lacking any more.
    MadeGood,
    /// Entries that belong here are missing or damaged: the ledger is to be marked for repair.
    Repair,
    /// Nothing now: the ledger is open, or gone, or is not this bookie's, or cannot be listed.
    Wait,
}

/// Compares a ledger of which copies here are damaged with metadata. Waits for the journal no longer than `journal_patience`.
///
/// # Errors
/// The metadata store does not answer.
pub async fn check(
    layout: &Layout,
    engine: &Arc<Engine>,
    bookie: &BookieId,
    ledger: LedgerId,
    journal_patience: Duration,
) -> Result<Remedy, String> {
    // Before the list (invariant 1).
    let ranges = engine.damaged_of(ledger);
    if ranges.is_empty() {
        return Ok(Remedy::MadeGood);
    }
    let stored = match layout.ledgers().get(ledger).await {
        Ok(stored) => stored,
        // The collection of garbage removes it, or an operator has to look at it.
        Err(LedgerError::NotFound(_) | LedgerError::Malformed { .. }) => return Ok(Remedy::Wait),
        Err(other) => return Err(other.to_string()),
    };
    let (of_blocking, bookie) = (engine.clone(), bookie.clone());
    let compared = tokio::task::spawn_blocking(move || {
        missing(&stored.metadata, &bookie, |first, last| of_blocking.held_entries(ledger, first, last))
    });
    match compared.await.map_err(|error| error.to_string())? {
        Ok(Missing::Nothing) => {
            // What was listed must outlive a power cut, also where the journal does not sync.
            let (done, answer) = oneshot::channel();
            engine.force(
                ledger,
                Box::new(move |outcome| {
                    let _ = done.send(outcome);
                }),
            );
            let Ok(Ok(())) = durable(answer, Instant::now() + journal_patience).await else {
                return Ok(Remedy::Wait);
            };
            engine.damage_is_made_good(&ranges);
            tracing::info!(%ledger, "nothing of the ledger is missing: its damaged copies are not needed any more");
            Ok(Remedy::MadeGood)
        }
        Ok(Missing::Entries { .. }) => Ok(Remedy::Repair),
        Ok(Missing::NotOurs | Missing::Undecided) | Err(_) => Ok(Remedy::Wait),
    }
}
