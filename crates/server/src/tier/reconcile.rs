//! Updates of tierers. Most are for the engine alone; those that would replace extents of entries without a copy are compared with
//! their objects first, because these entries are found by them alone.
//!
//! # Invariants
//! 1. Extents at or below a ledger's trim are replaced only when their objects are there, belong to this cluster, and have the
//!    entries: length, footer, table and some blocks agree.
//! 2. One ledger whose objects are not good, or cannot be read, is refused alone, with its register.
//!
//! # Limits     requests under way: [`super::Tier::begin_reconcile`]; requests to the bucket: those of checks

use super::Tier;
use bindery_engine::{Engine, ReconcileWaiter, Reconciled, Refusal};
use bindery_tiering::fetch::check::{LocalDifference, LocalRecords};
use bindery_tiering::object::TableEntry;
use bindery_types::EntryId;
use bindery_types::tier::Reconciliation;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Blocks of each extent that are read.
const SAMPLES: usize = 2;

impl Tier {
    /// Tells the engine what a tierer says. `done` gets one result for each ledger, in their order.
    pub fn reconcile(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        ledgers: Vec<Reconciliation>,
        done: ReconcileWaiter,
    ) {
        let replaces = |update: &Reconciliation| {
            let first = update.extents.first().map(|extent| extent.first);
            first.is_some()
                && engine.tiered(update.ledger).is_some_and(|tiered| first <= tiered.trimmed_below)
        };
        if !ledgers.iter().any(replaces) {
            return engine.reconcile(ledgers, done);
        }
        let (tier, engine) = (self.clone(), engine.clone());
        let (replacing, others): (Vec<_>, Vec<_>) =
            ledgers.into_iter().enumerate().partition(|(_, update)| replaces(update));
        self.handle().spawn(async move {
            let mut results = Vec::with_capacity(replacing.len() + others.len());
            let mut compared = Vec::with_capacity(replacing.len());
            for (at, update) in replacing {
                match tier.has_good_objects(&engine, &update).await {
                    true => compared.push((at, update)),
                    false => {
                        let ledger = update.ledger;
                        let lre = engine.tiered(ledger).map(|tiered| tiered.lre);
                        results.push((at, Reconciled { ledger, result: Err(Refusal::Io), lre }));
                    }
                }
            }
            for (some, is_compared) in [(others, false), (compared, true)] {
                let (places, updates): (Vec<_>, Vec<_>) = some.into_iter().unzip();
                let (tell, told) = oneshot::channel();
                let done = Box::new(move |results| drop(tell.send(results)));
                match is_compared {
                    true => engine.reconcile_compared(updates, done),
                    false => engine.reconcile(updates, done),
                }
                // Without an answer the process ends, and so does the connection.
                let Ok(answers) = told.await else { return };
                results.extend(places.into_iter().zip(answers));
            }
            results.sort_by_key(|(at, _)| *at);
            done(results.into_iter().map(|(_, result)| result).collect());
        });
    }

    async fn has_good_objects(&self, engine: &Engine, update: &Reconciliation) -> bool {
        let ledger = update.ledger;
        let trimmed = engine.tiered(ledger).and_then(|tiered| tiered.trimmed_below);
        let Some(fetcher) = self.fetcher() else { return false };
        for extent in update.extents.iter().filter(|extent| Some(extent.first) <= trimmed) {
            let some = |blocks: usize| (0..blocks.min(SAMPLES)).map(|at| at * (blocks - 1)).collect();
            if let Err(error) = fetcher.check(ledger, extent, some, &mut Nothing).await {
                let first = extent.first;
                tracing::warn!(%ledger, %first, %error, "a tierer's object is not taken for entries that were let go");
                return false;
            }
        }
        true
    }
}

/// No copies are here to compare with.
struct Nothing;

impl LocalRecords for Nothing {
    fn compare(&mut self, _: EntryId, _: &[TableEntry]) -> Result<Vec<EntryId>, LocalDifference> {
        Ok(Vec::new())
    }

    fn compare_entry(&mut self, _: EntryId, _: &[u8]) -> Result<(), LocalDifference> {
        Ok(())
    }
}
