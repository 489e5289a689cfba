//! Updates of tierers. Most are for the engine alone; those that would replace extents are compared with what is known here first: a tierer
//! that was away may still send what others replaced meanwhile, and the objects of entries without a copy are all that leads to them.
//!
//! # Invariants
//! 1. Extents at or below a ledger's trim are replaced only when their objects are there, belong to this cluster, and have the
//!    entries: length, footer, table and some blocks agree.
//! 2. One ledger whose objects are not good, or cannot be read, is refused alone, with its register.
//! 3. An extent is never replaced by one of an object with an earlier id: that object was rewritten, and may be gone soon (T16). Such an
//!    update is refused as one that begins above the register is, so that its tierer looks again.
//! 4. Exactly the extents that were compared are replaced: an update in between ends it.
//! 5. An update of another ledger than the register, by their creation times, is taken only when metadata, read after it came, says that
//!    its ledger is the one of that id that lives, and that the register's is not. Else it is refused, to be repeated.
//! 6. A register rises no further than [`super::bounds`] allows.
//! 7. All reads of metadata for one request end by one deadline: what is not known by then is refused, to be repeated, and the request
//!    gives its place back.
//!
//! # Limits     requests under way: [`super::Tier::begin_reconcile`]; requests to the bucket: those of checks

use super::Tier;
use super::bounds::is_of_another;
use super::proof::METADATA_DEADLINE;
use bindery_engine::{Compared, Engine, ReconcileWaiter, Reconciled, Refusal};
use bindery_tiering::fetch::check::{LocalDifference, LocalRecords};
use bindery_tiering::object::TableEntry;
use bindery_types::tier::{Reconciliation, TierExtent};
use bindery_types::{EntryId, LedgerId};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Blocks of each extent that are read.
const SAMPLES: usize = 2;
/// Updates of one request that wait for metadata or an object.
const JUDGED_AT_ONCE: usize = 16;
/// Extents of a ledger taken from the engine at a time.
const EXTENTS_PAGE: usize = 64;

impl Tier {
    /// Tells the engine what a tierer says. `done` gets one result for each ledger, in their order.
    pub fn reconcile(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        ledgers: Vec<Reconciliation>,
        done: ReconcileWaiter,
    ) {
        let mut updates = Vec::with_capacity(ledgers.len());
        let (mut replacing, mut others, mut beyond) = (Vec::new(), Vec::new(), Vec::new());
        for (at, update) in ledgers.into_iter().enumerate() {
            let tiered = engine.tiered(update.ledger);
            let first = update.extents.first().map(|extent| extent.first);
            if first.is_some() && tiered.is_some_and(|tiered| is_of_another(&tiered, &update)) {
                others.push(at);
            } else if first.is_some() && tiered.is_some_and(|tiered| first <= Some(tiered.lre)) {
                replacing.push(at);
            }
            if self.is_beyond(engine, &update) {
                beyond.push(at);
            }
            // One that is placed and not durable is not in what was compared.
            let seen = tiered.filter(|tiered| tiered.is_update_durable).map_or(0, |tiered| tiered.update);
            updates.push(Compared { reconciliation: update, seen, is_new_life: false });
        }
        if replacing.is_empty() && others.is_empty() && beyond.is_empty() {
            return engine.reconcile_compared(updates, done);
        }
        let (tier, engine) = (self.clone(), engine.clone());
        self.handle().spawn(async move {
            let by = Instant::now() + METADATA_DEADLINE;
            let judge = |at: usize| {
                let (tier, engine, update) =
                    (tier.clone(), engine.clone(), updates[at].reconciliation.clone());
                async move { tier.may_raise(&engine, &update, by).await }
            };
            let mut refused = refusals(beyond, judge).await;
            for at in others {
                updates[at].is_new_life = tier.is_new_life(&engine, &updates[at].reconciliation, by).await;
                if !updates[at].is_new_life {
                    refused.entry(at).or_insert(Refusal::TooManyRequests);
                }
            }
            replacing.retain(|at| !refused.contains_key(at));
            for at in replacing {
                if let Err(refusal) = tier.may_replace(&engine, &updates[at]).await {
                    refused.insert(at, refusal);
                }
            }
            let of = |compared: &Compared| compared.reconciliation.ledger;
            answer_without(&engine, updates, refused, of, Engine::reconcile_compared, done).await;
        });
    }

    /// Has the engine take ledgers over that metadata allows it to ([`super::bounds`]). `done` is called as for [`Tier::reconcile`].
    pub fn restore(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        ledgers: Vec<Reconciliation>,
        done: ReconcileWaiter,
    ) {
        let (tier, engine) = (self.clone(), engine.clone());
        self.handle().spawn(async move {
            let by = Instant::now() + METADATA_DEADLINE;
            let judge = |at: usize| {
                let (tier, ledger, last) = (tier.clone(), ledgers[at].ledger, ledgers[at].last);
                async move { tier.may_take_over(ledger, last, by).await }
            };
            let refused = refusals((0..ledgers.len()).collect(), judge).await;
            answer_without(&engine, ledgers, refused, |update| update.ledger, Engine::restore, done).await;
        });
    }

    /// Whether the ledger of an update lives, and that of the register does not (invariant 5).
    async fn is_new_life(&self, engine: &Engine, update: &Reconciliation, by: Instant) -> bool {
        let ledger = update.ledger;
        let (Some(home), Some(seen)) = (self.home.get(), engine.tiered(ledger)) else { return false };
        let Ok(stored) = self.metadata_of(ledger, by).await else { return false };
        let made = tokio::time::timeout_at(by, home.layout.made_ms()).await;
        let Ok(Ok(cluster_ms)) = made else { return false };
        let creation = stored.creation(cluster_ms);
        update.created_ms == Some(creation.ms) && creation.is_anothers(seen.created_ms)
    }

    async fn may_replace(&self, engine: &Arc<Engine>, compared: &Compared) -> Result<(), Refusal> {
        let update = &compared.reconciliation;
        let (ledger, seen) = (update.ledger, engine.tiered(update.ledger));
        // One that is on its way to the journal does not show yet.
        let seen = seen.filter(|seen| seen.update == compared.seen && seen.is_update_durable);
        let seen = seen.ok_or(Refusal::TooManyRequests)?;
        let known = {
            let (engine, extents) = (engine.clone(), update.extents.clone());
            // The local disk may take a while.
            let read = move || known(&engine, ledger, &extents);
            self.handle().spawn_blocking(read).await.unwrap_or(Err(Refusal::Io))?
        };
        if let Some(extent) = first_older(&update.extents, &known) {
            let (first, object) = (extent.first, extent.object.id);
            tracing::debug!(%ledger, %first, %object, "a tierer speaks of an object that was rewritten since");
            return Err(Refusal::BadRequest);
        }
        if known == update.extents {
            // Said again.
            return Ok(());
        }
        match self.has_good_objects(update, seen.trimmed_below).await {
            true => Ok(()),
            false => Err(Refusal::Io),
        }
    }

    async fn has_good_objects(&self, update: &Reconciliation, trimmed: Option<EntryId>) -> bool {
        let ledger = update.ledger;
        let is_trimmed = |extent: &TierExtent| Some(extent.first) <= trimmed;
        let trimmed: Vec<TierExtent> = update.extents.iter().copied().filter(is_trimmed).collect();
        if trimmed.is_empty() {
            return true;
        }
        let Some(fetcher) = self.fetcher() else { return false };
        for extent in trimmed {
            let some = |blocks: usize| (0..blocks.min(SAMPLES)).map(|at| at * (blocks - 1)).collect();
            if let Err(error) = fetcher.check(ledger, &extent, some, &mut Nothing).await {
                let first = extent.first;
                self.warn(|left_out| {
                    tracing::warn!(%ledger, %first, %error, left_out, "refused a tierer's object for entries without a local copy, \
                     because it failed its check or could not be read: the former object stays in use");
                });
                return false;
            }
        }
        true
    }
}

/// The refusals among the updates at these places, some of which are judged at a time.
async fn refusals<F>(which: Vec<usize>, judge: impl Fn(usize) -> F) -> BTreeMap<usize, Refusal>
where
    F: Future<Output = Result<(), Refusal>> + Send + 'static,
{
    // One that is not judged to its end is refused.
    let mut refused: BTreeMap<usize, Refusal> = which.iter().map(|at| (*at, Refusal::Io)).collect();
    let (mut which, mut judged) = (which.into_iter(), JoinSet::new());
    loop {
        for at in which.by_ref().take(JUDGED_AT_ONCE - judged.len()) {
            let judgement = judge(at);
            judged.spawn(async move { (at, judgement.await) });
        }
        match judged.join_next().await {
            None => return refused,
            Some(Ok((at, Ok(())))) => drop(refused.remove(&at)),
            Some(Ok((at, Err(refusal)))) => drop(refused.insert(at, refusal)),
            Some(Err(_)) => {}
        }
    }
}

/// Tells the engine all but those that are refused, and answers for all, in their order.
async fn answer_without<T>(
    engine: &Engine,
    updates: Vec<T>,
    refused: BTreeMap<usize, Refusal>,
    ledger_of: impl Fn(&T) -> LedgerId,
    tell: impl FnOnce(&Engine, Vec<T>, ReconcileWaiter),
    done: ReconcileWaiter,
) {
    let (mut places, mut taken, mut results) = (Vec::new(), Vec::new(), Vec::new());
    for (at, update) in updates.into_iter().enumerate() {
        match refused.get(&at) {
            None => {
                places.push(at);
                taken.push(update);
            }
            Some(refusal) => {
                let ledger = ledger_of(&update);
                results.push((at, ledger, *refusal));
            }
        }
    }
    let (answer, told) = oneshot::channel();
    tell(engine, taken, Box::new(move |results| drop(answer.send(results))));
    // Without an answer the process ends, and so does the connection.
    let Ok(answers) = told.await else { return };
    let mut all: Vec<(usize, Reconciled)> = places.into_iter().zip(answers).collect();
    all.extend(results.into_iter().map(|(at, ledger, refusal)| {
        let lre = engine.tiered(ledger).map(|tiered| tiered.lre);
        (at, Reconciled { ledger, result: Err(refusal), lre })
    }));
    all.sort_by_key(|(at, _)| *at);
    done(all.into_iter().map(|(_, result)| result).collect());
}

/// The first extent that would take the place of one in an object with a later id.
fn first_older<'a>(extents: &'a [TierExtent], known: &[TierExtent]) -> Option<&'a TierExtent> {
    extents.iter().find(|new| {
        let mut overlapping = known.iter().filter(|old| old.first <= new.last && old.last >= new.first);
        overlapping.any(|old| old.object.id > new.object.id)
    })
}

/// What is known here of the range of these extents. Blocks on the local disk.
fn known(engine: &Engine, ledger: LedgerId, extents: &[TierExtent]) -> Result<Vec<TierExtent>, Refusal> {
    let mut known = Vec::new();
    let (Some(first), Some(last)) = (extents.first(), extents.last()) else { return Ok(known) };
    let mut from = first.first;
    loop {
        let page = engine.tier_extents(ledger, from, EXTENTS_PAGE)?;
        known.extend(page.iter().take_while(|extent| extent.first <= last.last));
        let Some(end) = page.last().map(|extent| extent.last) else { return Ok(known) };
        match EntryId::new(end.get().saturating_add(1)).filter(|_| end < last.last) {
            Some(next) if page.len() == EXTENTS_PAGE => from = next,
            _ => return Ok(known),
        }
    }
}

/// No copies are here to compare with.
pub(super) struct Nothing;

impl LocalRecords for Nothing {
    fn compare(&mut self, _: EntryId, _: &[TableEntry]) -> Result<Vec<EntryId>, LocalDifference> {
        Ok(Vec::new())
    }

    fn compare_entry(&mut self, _: EntryId, _: &[u8]) -> Result<(), LocalDifference> {
        Ok(())
    }
}
