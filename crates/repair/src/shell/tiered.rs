//! Moves the places of entries in object storage to the bookie that the worker is part of, instead of the entries, and compares them with
//! the catalogue before metadata names the bookie. [`core::tiered`](crate::core::tiered) has the rules.
//!
//! ```text
//! members: what did you let go? --> catalogue --> objects: length, footer, table, one block --> Engine::restore_lacking
//!                                  '-- once more, when all is there --> the same | Engine::reconcile_compared
//! ```
//! If places cannot be moved, the entries are copied. If moved places cannot be confirmed, the repair fails. It also fails where another
//! bookie takes the copies and let go of some: its places cannot be compared from here.
//!
//! # Invariants
//! 1. The worker checks an object before it tells the engine of it: the object exists and has the entries, and the last entry that is moved
//!    has the ledger's digest.
//! 2. The engine is told nothing of a ledger whose time of creation differs from the catalogue's.
//! 3. What is here of a trimmed ledger that had the id before is removed first, once metadata that was read after it proves that. Its
//!    entries would count as held.
//!
//! # Limits
//! A catalogue in this process while ledgers are repaired whose copies were let go, and [`CATALOGUE_REST`] longer: [`CACHE_BYTES`], the
//! indexes of its runs, and its tail. [`EXTENTS_PAGE`] extents at a time, of which [`CHECKS_MAX`] are checked at the same time.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bindery_client::{Client, LedgerView, Reconcile, ReconcileError};
use bindery_engine::{Compared, Engine, Reconciled, Refusal};
use bindery_io::SystemRandom;
use bindery_tiering::ClusterId;
use bindery_tiering::catalogue::{Catalogue, CatalogueError, CatalogueOptions, OpenMode};
use bindery_tiering::fetch::Fetcher;
use bindery_tiering::fetch::check::{LocalDifference, LocalRecords};
use bindery_tiering::object::TableEntry;
use bindery_types::tier::{Reconciliation, TierExtent};
use bindery_types::{BookieId, Creation, EntryId, LedgerId, LedgerMetadata};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::copying::Copying;
use super::ledger::Job;
use super::{Common, intake};
use crate::core::audit::{Lack, entries_of};
use crate::core::ledger::{CopyTask, Named};
use crate::core::tiered::{Comparison, compare, continued, how_far, is_fresh, is_sure};

/// Extents that are checked, and told to the bookie, at a time.
const EXTENTS_PAGE: usize = 256;
/// Objects that are checked at the same time.
const CHECKS_MAX: usize = 8;
/// For blocks of the catalogue.
const CACHE_BYTES: usize = 4 << 20;
/// For one request to the bucket. Looks have to be fresh.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// For the answer of a member.
const ASK_DEADLINE: Duration = Duration::from_secs(5);
/// A catalogue that was not used for so long is closed.
const CATALOGUE_REST: Duration = Duration::from_secs(60);
/// An engine without room is told again so often, with such a pause.
const TELLS_MAX: u32 = 50;
const TELL_PAUSE: Duration = Duration::from_millis(200);
/// Looks at places that change meanwhile.
const LOOKS_MAX: u32 = 8;

/// Whether a bookie would let the copies of a ledger go.
pub type LetsGo = Arc<dyn Fn(&LedgerMetadata) -> bool + Send + Sync>;

/// Object storage, as the bookie reads it that a worker is part of.
#[derive(Clone)]
pub struct OwnTier {
    /// The cluster whose objects it reads.
    pub cluster: ClusterId,
    /// Reads them; not there while the bucket is not.
    pub reader: Arc<OnceLock<Fetcher>>,
    /// Where its settings do not let copies go, entries are copied.
    pub lets_go: LetsGo,
}

/// The catalogue, while it is used.
#[derive(Default)]
pub(super) struct Places {
    open: tokio::sync::Mutex<Option<(Catalogue, Instant)>>,
    made_ms: OnceLock<i64>,
    cluster: OnceLock<ClusterId>,
}

impl Places {
    /// Reads with the catalogue that is open, if one is, after those who read before. Returns when the reading began. One that failed is not
    /// kept.
    async fn read<T, E, F>(&self, read: impl FnOnce(Option<Catalogue>) -> F) -> (Instant, Result<T, E>)
    where
        F: Future<Output = Result<(Catalogue, T), E>>,
    {
        let mut open = self.open.lock().await;
        let began = Instant::now();
        let used = open.take().map(|(catalogue, _)| catalogue);
        let read = read(used).await.map(|(catalogue, read)| {
            *open = Some((catalogue, Instant::now()));
            read
        });
        (began, read)
    }

    /// Closes a catalogue that is not used.
    pub fn rest(&self) {
        // Who has it uses it.
        if let Ok(mut open) = self.open.try_lock() {
            open.take_if(|(_, used_at)| used_at.elapsed() >= CATALOGUE_REST);
        }
    }
}

/// What is moved, or was.
struct Move<'a> {
    tier: &'a OwnTier,
    engine: &'a Arc<Engine>,
    view: &'a LedgerView,
    creation: Creation,
}

impl Job<'_> {
    /// Brings the places of entries to this bookie that it lacks and others let go. It may end early, when the copies are not wanted any more.
    pub async fn move_places(&self, copying: &Copying<'_>, engine: &Arc<Engine>) {
        let Some(tier) = self.own_tier() else { return };
        match self.try_to_move(tier, copying, engine).await {
            Ok(None) => {}
            Ok(Some((first, last))) => {
                tracing::debug!(ledger = %self.ledger, %first, %last, "moved places of entries in object storage");
            }
            Err(why) => {
                tracing::info!(ledger = %self.ledger, why, "entries in object storage are copied, because their \
                 places there cannot be moved");
            }
        }
    }

    async fn try_to_move(
        &self,
        tier: &OwnTier,
        copying: &Copying<'_>,
        engine: &Arc<Engine>,
    ) -> Result<Option<(EntryId, EntryId)>, String> {
        let Copying { core, view, lack, .. } = *copying;
        let trimmed = engine.tiered(self.ledger).and_then(|tiered| tiered.trimmed_below);
        let has_copies = engine.last_known(self.ledger).is_ok_and(|last| last > trimmed);
        if has_copies || trimmed >= Some(lack.last) || !(tier.lets_go)(core.metadata()) {
            return Ok(None);
        }
        let creation = self.creation(view).await?;
        let let_go = self.let_go_by_others(tier, copying, creation).await;
        let Some(upto) = how_far(core.metadata(), lack, let_go).filter(|upto| Some(*upto) > trimmed) else {
            return Ok(None);
        };
        let moving = Move { tier, engine, view, creation };
        let first = behind(trimmed);
        let mut next = first;
        while next <= upto {
            let extents = continued(self.extents(&moving, next).await?.1, next, upto);
            let Some(last) = extents.last().map(|extent| extent.last) else {
                return Err(format!("the catalogue has no object with entry {next}"));
            };
            let (good, bad) = self.looked_at(&moving, extents, Some(last)).await;
            if let Some(upto) = good.last().map(|extent| extent.last) {
                let tell = |update| tell(|done| engine.restore_lacking(vec![update], done));
                self.tell_patiently(&moving, good, tell).await?;
                if upto >= lack.first {
                    let moved = entries_of(core.metadata(), &[(next.max(lack.first), upto)]);
                    self.common.state.lock().tiered_entries += moved;
                }
            }
            if let Some(why) = bad {
                return Err(why);
            }
            if last >= upto {
                break;
            }
            next = behind(Some(last));
            if self.check_wanted(copying).await.is_err() {
                return Ok(None);
            }
        }
        Ok(Some((first, upto)))
    }

    /// Object storage, if this bookie can read from it now.
    fn own_tier(&self) -> Option<&OwnTier> {
        let tier = self.common.own.as_ref()?.tier.as_ref()?;
        tier.reader.get().is_some().then_some(tier)
    }

    /// The next naming relies on no look.
    pub fn forget_look(&self) {
        *self.looked_at_places.lock() = None;
    }

    /// When the ledger was created, as tierers tell it.
    async fn creation(&self, view: &LedgerView) -> Result<Creation, String> {
        Ok(Creation::of(&view.metadata().0, view.created_ms(), self.made_ms().await?))
    }

    /// When the cluster was made.
    async fn made_ms(&self) -> Result<Option<i64>, String> {
        let known = &self.common.places.made_ms;
        if let Some(made_ms) = known.get() {
            return Ok(Some(*made_ms));
        }
        let found = self.common.layout().made_ms().await.map_err(|error| error.to_string())?;
        Ok(found.map(|found| *known.get_or_init(|| found)))
    }

    /// The cluster that objects have in their names; `None` where it has no id of that form.
    async fn cluster(&self) -> Result<Option<ClusterId>, String> {
        let known = &self.common.places.cluster;
        if let Some(cluster) = known.get() {
            return Ok(Some(*cluster));
        }
        let instance = self.common.client.instance_id().await.map_err(|error| error.to_string())?;
        let found = instance.and_then(|id| id.trim().parse().ok());
        Ok(found.map(|found| *known.get_or_init(|| found)))
    }

    /// Up to where each of the other members let its copies go.
    async fn let_go_by_others(
        &self,
        tier: &OwnTier,
        copying: &Copying<'_>,
        creation: Creation,
    ) -> Vec<Option<EntryId>> {
        let mut answers = JoinSet::new();
        for bookie in others(copying) {
            let (client, bookie) = (self.common.client.clone(), bookie.clone());
            answers.spawn(ask(client, bookie, tier.cluster, self.ledger, Some(creation.ms)));
        }
        let mut let_go = Vec::new();
        while let Some(answer) = answers.join_next().await {
            match answer {
                Ok(Ok(upto)) => let_go.push(upto),
                // A Java bookie among others, which keeps everything.
                Ok(Err(error)) => {
                    tracing::debug!(ledger = %self.ledger, %error, "a member does not say what it let go");
                }
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        let_go
    }

    /// Some extents of the catalogue as it is now, from the one that has `from` on. Nothing that the bookie was told before is newer. Also
    /// returns the time at which the look-up began.
    async fn extents(&self, moving: &Move<'_>, from: EntryId) -> Result<(Instant, Vec<TierExtent>), String> {
        let (began, read) = self.common.places.read(|used| self.read_extents(moving, used, from)).await;
        let extents = read.map_err(|error| format!("the catalogue in the bucket: {error}"))?;
        Ok((began, extents?))
    }

    async fn read_extents(
        &self,
        moving: &Move<'_>,
        used: Option<Catalogue>,
        from: EntryId,
    ) -> Result<(Catalogue, Result<Vec<TierExtent>, String>), CatalogueError> {
        let mut catalogue = match (used, moving.tier.reader.get()) {
            (Some(mut catalogue), _) => {
                catalogue.refresh().await?;
                catalogue
            }
            (None, Some(reader)) => open(reader, moving.tier.cluster, self.common).await?,
            (None, None) => unreachable!("whoever moves places has a reader"),
        };
        let other = |why: &str| Ok(Err(why.to_owned()));
        let extents = match catalogue.ledger(self.ledger).await? {
            None => other("the catalogue does not have the ledger"),
            Some(row) if row.is_removed => other("the ledger is about to leave the catalogue"),
            // Invariant 2.
            Some(row) if moving.creation.is_anothers(row.created_ms) => {
                other("the catalogue has another ledger with this id")
            }
            Some(_) => {
                let rows = catalogue.extents(self.ledger, from, EXTENTS_PAGE).await?;
                Ok(Ok(rows.into_iter().map(|(first, row)| row.tier_extent(first)).collect()))
            }
        };
        extents.map(|extents| (catalogue, extents))
    }

    /// Looks at the objects of extents (invariant 1). Returns the extents before the first one that is not good, and what is wrong with
    /// that.
    async fn looked_at(
        &self,
        moving: &Move<'_>,
        extents: Vec<TierExtent>,
        sample: Option<EntryId>,
    ) -> (Vec<TierExtent>, Option<String>) {
        let (mut looks, mut left) = (JoinSet::new(), extents.iter().copied().enumerate());
        let mut bad: BTreeMap<usize, String> = BTreeMap::new();
        loop {
            let room = if bad.is_empty() { CHECKS_MAX - looks.len() } else { 0 };
            for (at, extent) in left.by_ref().take(room) {
                let (reader, view) = (moving.tier.reader.clone(), moving.view.clone());
                let sample = sample.filter(|sample| extent.contains(*sample));
                looks.spawn(async move { (at, look(&reader, &view, &extent, sample).await) });
            }
            match looks.join_next().await {
                None => break,
                Some(Ok((_, Ok(())))) => {}
                Some(Ok((at, Err(why)))) => drop(bad.insert(at, why)),
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        match bad.pop_first() {
            None => (extents, None),
            Some((at, why)) => (extents[..at].to_vec(), Some(why)),
        }
    }

    /// Has the engine told of extents, again while it has no room.
    async fn tell_patiently<F>(
        &self,
        moving: &Move<'_>,
        extents: Vec<TierExtent>,
        tell: impl Fn(Reconciliation) -> F,
    ) -> Result<(), String>
    where
        F: Future<Output = Result<Reconciled, String>>,
    {
        let update = Reconciliation {
            ledger: self.ledger,
            last: extents.last().map(|extent| extent.last),
            extents,
            created_ms: Some(moving.creation.ms),
        };
        for _ in 0..TELLS_MAX {
            match tell(update.clone()).await?.result {
                Ok(()) => return Ok(()),
                Err(Refusal::TooManyRequests) => tokio::time::sleep(TELL_PAUSE).await,
                Err(refusal) => return Err(format!("this bookie does not take them: {refusal}")),
            }
        }
        Err("this bookie has no room for them".into())
    }

    /// Compares the places that this bookie knows of a lack's entries with the catalogue, and brings those that moved meanwhile. Notes when
    /// the look began by which they are the same.
    ///
    /// # Errors
    /// Why metadata must not say that the bookie has the entries.
    pub async fn confirm_places(
        &self,
        view: &LedgerView,
        lack: &Lack,
        engine: &Arc<Engine>,
    ) -> Result<(), String> {
        let tiered = engine.tiered(self.ledger);
        let trimmed = tiered.and_then(|tiered| tiered.trimmed_below);
        let Some(upto) = trimmed.filter(|trimmed| *trimmed >= lack.first) else { return Ok(()) };
        let Some(tier) = self.own_tier() else {
            return Err(format!(
                "its entries up to {upto} are in object storage, which this bookie cannot read"
            ));
        };
        let moving = Move { tier, engine, view, creation: self.creation(view).await? };
        for _ in 0..LOOKS_MAX {
            let looked = self.are_places_current(&moving, (lack.first, upto.min(lack.last))).await?;
            if let Some(began) = looked {
                *self.looked_at_places.lock() = Some(began);
                let why = "a look at the catalogue takes too long for metadata to rely on it";
                return if is_fresh(began.elapsed()) { Ok(()) } else { Err(why.into()) };
            }
        }
        Err("its entries in object storage keep moving".into())
    }

    /// When the look began by which the engine knows the places that the catalogue has. If it does not, it is told of some that moved; there
    /// may be more.
    async fn are_places_current(
        &self,
        moving: &Move<'_>,
        (first, last): (EntryId, EntryId),
    ) -> Result<Option<Instant>, String> {
        let (engine, mut from, mut began) = (moving.engine, first, None);
        while from <= last {
            // Before the extents are read: those that come meanwhile are not replaced.
            let seen = engine.tiered(self.ledger).ok_or("the ledger was removed meanwhile")?;
            let (read_at, now) = self.extents(moving, from).await?;
            began.get_or_insert(read_at);
            let known = {
                let (engine, ledger) = (engine.clone(), self.ledger);
                let read = move || engine.tier_extents(ledger, from, EXTENTS_PAGE);
                intake::blocking(read).await.map_err(|error| error.to_string())?.map_err(|refusal| {
                    format!("this bookie cannot look up where its entries are in object storage: {refusal}")
                })?
            };
            let ends = |extents: &[TierExtent]| extents.last().map(|extent| extent.last);
            let upto = [ends(&known), ends(&now)].into_iter().flatten().fold(last, EntryId::min).max(from);
            match compare((from, upto), &known, &now) {
                Comparison::Same => from = behind(Some(upto)),
                Comparison::Missing(entry) => {
                    return Err(format!("the catalogue has no object with entry {entry}"));
                }
                // A tierer may still be telling it.
                Comparison::Ahead => {
                    tokio::time::sleep(TELL_PAUSE).await;
                    return Ok(None);
                }
                Comparison::Behind if !seen.is_update_durable => {
                    tokio::time::sleep(TELL_PAUSE).await;
                    return Ok(None);
                }
                Comparison::Behind => {
                    let (good, bad) = self.looked_at(moving, continued(now, from, upto), None).await;
                    if let Some(why) = bad {
                        return Err(why);
                    }
                    let last = good.last().map(|extent| extent.last);
                    let reconciliation = Reconciliation {
                        ledger: self.ledger,
                        last,
                        extents: good,
                        created_ms: Some(moving.creation.ms),
                    };
                    let compared = Compared { reconciliation, seen: seen.update, is_new_life: false };
                    let told = tell(|done| engine.reconcile_compared(vec![compared], done)).await?;
                    return match told.result {
                        Ok(()) => Ok(None),
                        Err(Refusal::TooManyRequests) => {
                            tokio::time::sleep(TELL_PAUSE).await;
                            Ok(None)
                        }
                        Err(refusal) => {
                            Err(format!("this bookie does not take places in object storage: {refusal}"))
                        }
                    };
                }
            }
        }
        Ok(began)
    }

    /// Notes when another bookie was asked how far it let its copies go, if it did not let go of any of a lack.
    ///
    /// # Errors
    /// Why metadata must not say that the bookie has the entries.
    pub async fn confirm_copies_of(&self, bookie: &BookieId, lack: &Lack) -> Result<(), String> {
        let Some(cluster) = self.cluster().await? else { return Ok(()) };
        let began = Instant::now();
        // Without a creation time, so that the register of a former ledger with this id counts as well.
        match ask(self.common.client.clone(), bookie.clone(), cluster, self.ledger, None).await {
            Ok(Some(let_go)) if let_go >= lack.first => Err(format!(
                "{bookie} let its copies up to entry {let_go} go, and only its own worker can compare where they are: enable repair in it"
            )),
            Ok(_) => {
                *self.looked_at_places.lock() = Some(began);
                Ok(())
            }
            Err(ReconcileError::NotSupported(_)) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Removes what the bookie has of a ledger that had this id before (invariant 3).
    ///
    /// # Errors
    /// Metadata cannot be read, or the bookie cannot remove it.
    pub async fn end_other_life(&self, engine: &Engine) -> Result<(), String> {
        let Some(seen) = engine.tiered(self.ledger).filter(|seen| seen.trimmed_below.is_some()) else {
            return Ok(());
        };
        let layout = self.common.layout();
        let made_ms = self.made_ms().await?;
        let ledgers = layout.ledgers();
        // A server that lags may have the former ledger.
        layout.store().sync(&ledgers.path(self.ledger)).await.map_err(|error| error.to_string())?;
        let stored = ledgers.get(self.ledger).await.map_err(|error| error.to_string())?;
        if !stored.creation(made_ms).is_anothers(seen.created_ms) {
            return Ok(());
        }
        // If it has changed meanwhile it stays, and what is then here is confirmed or not.
        let is_removed = engine.end_other_life(self.ledger, &seen).map_err(|refusal| {
            format!("this bookie has a former ledger with this id, and cannot remove it: {refusal}")
        })?;
        if is_removed {
            tracing::info!(ledger = %self.ledger, "removed what was here of a former ledger with this id, whose entries are in object \
             storage");
        }
        Ok(())
    }

    /// Whether metadata must not be written by the look at the places of the last copy any more.
    pub fn is_look_stale(&self) -> bool {
        let looked = *self.looked_at_places.lock();
        looked.is_some_and(|looked| !is_fresh(looked.elapsed()))
    }

    /// Looks at the places once more if metadata may have been written too late for the look before.
    pub async fn look_after_naming(&self, copy: &CopyTask, view: &LedgerView, named: &Named) {
        let looked = *self.looked_at_places.lock();
        let is_late = looked.is_some_and(|looked| !is_sure(looked.elapsed()));
        let may_be_written = matches!(named, Named::Done | Named::Unknown);
        let Some(engine) = self.own_engine(&copy.target).filter(|_| is_late && may_be_written) else {
            return;
        };
        if let Err(why) = self.confirm_places(view, &copy.lack, engine).await {
            // A read that misses an object reports that to the tierers, and they tell all places again.
            tracing::warn!(ledger = %self.ledger, why, "metadata named this bookie late, and where its entries are in object storage \
             cannot be confirmed");
        }
    }
}

/// Up to where a bookie let its copies of a ledger go.
async fn ask(
    client: Client,
    bookie: BookieId,
    cluster: ClusterId,
    ledger: LedgerId,
    created_ms: Option<i64>,
) -> Result<Option<EntryId>, ReconcileError> {
    let question = Reconciliation { ledger, last: None, extents: Vec::new(), created_ms };
    let request = Reconcile { cluster, ledgers: vec![question], is_restore: false };
    let results = client.reconcile(&bookie, request, ASK_DEADLINE).await?;
    Ok(results.first().and_then(|result| result.let_go))
}

/// Bookies of the segment that are there, but for the target: they may have let copies go.
fn others<'a>(Copying { core, lack, target, .. }: &Copying<'a>) -> Vec<&'a BookieId> {
    let mut segments = core.metadata().segments().iter();
    let segment = segments.find(|segment| segment.first_entry == lack.first);
    let members = segment.into_iter().flat_map(|segment| &segment.ensemble);
    members.filter(|bookie| core.live().contains(*bookie) && bookie != target).collect()
}

fn behind(last: Option<EntryId>) -> EntryId {
    last.map_or(EntryId::FIRST, |last| EntryId::new(last.get().saturating_add(1)).unwrap_or(EntryId::MAX))
}

/// Opens the catalogue of a cluster, for reading.
async fn open(reader: &Fetcher, cluster: ClusterId, common: &Common) -> Result<Catalogue, CatalogueError> {
    let options = CatalogueOptions {
        request_timeout: REQUEST_TIMEOUT,
        cache_bytes_max: CACHE_BYTES,
        ..CatalogueOptions::default()
    };
    let (clock, random) = (common.clock.clone(), Arc::new(SystemRandom));
    Catalogue::open(reader.store(), cluster, OpenMode::Read, options, clock, random).await
}

/// Tells the engine of one ledger.
async fn tell(tell: impl FnOnce(bindery_engine::ReconcileWaiter)) -> Result<Reconciled, String> {
    let (answer, told) = oneshot::channel();
    tell(Box::new(move |results| drop(answer.send(results))));
    let results = told.await.map_err(|_| "this bookie stops")?;
    results.first().copied().ok_or_else(|| "this bookie gave no answer".into())
}

/// Looks at the object of an extent (invariant 1).
async fn look(
    reader: &OnceLock<Fetcher>,
    view: &LedgerView,
    extent: &TierExtent,
    sample: Option<EntryId>,
) -> Result<(), String> {
    let reader = reader.get().ok_or("the bucket is not there")?;
    let mut digests = Digests { view, sample };
    match reader.check(view.id(), extent, |_| Vec::new(), &mut digests).await {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("object {}: {error}", extent.object.id)),
    }
}

/// Checks the digests of the entries of one block, as there are no copies to compare with.
struct Digests<'a> {
    view: &'a LedgerView,
    sample: Option<EntryId>,
}

impl LocalRecords for Digests<'_> {
    fn compare(&mut self, first: EntryId, table: &[TableEntry]) -> Result<Vec<EntryId>, LocalDifference> {
        let behind = first.get().saturating_add(i64::try_from(table.len()).unwrap_or(i64::MAX));
        let is_here = |sample: &EntryId| *sample >= first && sample.get() < behind;
        Ok(self.sample.filter(is_here).into_iter().collect())
    }

    fn compare_entry(&mut self, entry: EntryId, stored: &[u8]) -> Result<(), LocalDifference> {
        match self.view.is_authentic(entry, stored) {
            true => Ok(()),
            false => Err(LocalDifference::Unreadable(format!(
                "entry {entry} in it does not have the ledger's digest"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_look_at_the_catalogue_begins_when_those_before_it_have_ended() {
        let places = Places::default();
        let slow = async |_| {
            tokio::time::sleep(CATALOGUE_REST).await;
            Err::<(Catalogue, ()), ()>(())
        };
        let began = Instant::now();
        let (first, second) = tokio::join!(places.read(slow), places.read(slow));
        assert_eq!((first.0 - began, second.0 - began), (Duration::ZERO, CATALOGUE_REST));
    }
}
