//! What a marked ledger is ordered by: its mark says it, or its metadata.

use bindery_metadata::StoreError;
use bindery_metadata::layout::LedgerError;
use bindery_types::{BookieId, LedgerId};

use super::facts::Bookies;
use super::{Common, Targets};
use crate::core::audit::{Fit, audit, fit};
use crate::core::danger::{Looker, by_mark};

/// What a ledger is ordered by.
pub(super) struct Ranked {
    pub ledger: LedgerId,
    /// Live copies of the entry that has the fewest.
    pub copies: usize,
    /// When it was marked, in milliseconds since the epoch; 0 where the mark does not say it.
    pub since_ms: i64,
    /// Whose it is to repair.
    pub fit: Fit,
}

/// Reads what a marked ledger is ordered by; `None` when it is not marked any more.
pub(super) async fn ranked(
    common: &Common,
    ledger: LedgerId,
    live: &Bookies,
) -> Result<Option<Ranked>, StoreError> {
    let (own, takes_writes) = match &common.config.targets {
        Targets::Any => (None, true),
        Targets::Own(own) => (Some(own), common.takes_writes(own, live).await?),
    };
    let (since_ms, replicas) = match common.layout().under_replication().marked(ledger).await {
        Ok(Some(mark)) => {
            let since_ms = mark.since_ms.unwrap_or(0);
            let looker = Looker { own, takes_writes, live: &live.ids, bookies: live.hash };
            if let Some((copies, fit)) = by_mark(&mark, looker) {
                return Ok(Some(Ranked { ledger, copies, since_ms, fit }));
            }
            (since_ms, mark.replicas)
        }
        Ok(None) => {
            common.layout().under_replication().clear(ledger).await?;
            return Ok(None);
        }
        // The attempt to repair it says what is wrong with it.
        Err(StoreError::Protocol(_) | StoreError::NoAuth { .. }) => (0, Vec::new()),
        Err(error) => return Err(error),
    };
    match common.layout().ledgers().get(ledger).await {
        Ok(stored) => {
            let found = audit(&stored.metadata, |bookie| live.ids.contains(bookie));
            let fit = match own {
                None => Fit::Ours,
                Some(own) => {
                    let leaving = common.leaving(&replicas).await?;
                    let is_there = |bookie: &BookieId| live.ids.contains(bookie) && !leaving.contains(bookie);
                    let lacking = audit(&stored.metadata, is_there);
                    fit(own, takes_writes, &stored.metadata, &replicas, &lacking)
                }
            };
            Ok(Some(Ranked { ledger, copies: found.copies_min, since_ms, fit }))
        }
        Err(LedgerError::Store(error)) if !matches!(error, StoreError::NoAuth { .. }) => Err(error),
        // Deleted: its mark is to go. Or nothing is known of it, which the attempt to repair it says.
        Err(_) => Ok(Some(Ranked { ledger, copies: usize::MAX, since_ms, fit: Fit::Ours })),
    }
}
