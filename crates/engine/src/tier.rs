//! Ledgers of which entries are in object storage: what is asked and answered, and where an entry is.
//!
//! The **last reconciled entry** (LRE) of a ledger is the entry up to which everything is in object storage, at the extents
//! that came with it. A tierer moves it ([`Engine::reconcile`]); a server that has compared its own copies with the objects
//! lets those go ([`Engine::trim`]).
//!
//! # Data flow
//! ```text
//! reconcile -> Shard (journal record, extents in memory) -> durable -> answer
//!                         |
//!                         '-> freeze -> one commit: LRE, extents, mark
//! trim -> Shard (in memory) -> freeze -> commit -> copies count as dead (`space`)
//! read -> no copy in memory or on disk -> at or below the trim: TieredRead -> tier_extent -> the caller fetches it
//! ```
//!
//! # Invariants
//! 1. Since a ledger was removed last its LRE never goes back (T1). It is shown, and answered, once it is durable.
//! 2. The state table never has an LRE without the extents below it: they come with the same commit. Until then the journal
//!    has both. Extents stay in the directory of that commit, and the LRE moves on with the ledger's state: a start that finds
//!    other directories than before looks for all of them, and forgets LRE and trim of a ledger that lacks some. A replay
//!    takes no update whose predecessors are missing.
//! 3. A trim is at or below the durable LRE, extents cover it, and it counts only once it is committed in every directory
//!    (T9): before, a power cut takes it back.
//! 4. An entry at or below the trim is never denied: a copy, its extent, or an error.
//! 5. A ledger is restored ([`Engine::restore`]) only where nothing of it is, or nothing but what was restored before: then there
//!    is no copy that would have to be compared (T19). The record that restores it has its extents and its trim.
//! 6. Extents at or below the trim are replaced only by those whose objects were compared
//!    ([`Engine::reconcile_compared`]): they are all that leads to entries without a copy. Only the extents that were
//!    compared are replaced: an update in between ends the replacement.
//!
//! # Limits
//! Extents that are not in the state table yet: [`EngineConfig::tier_extents_bytes`](crate::EngineConfig::tier_extents_bytes).
//! Beyond it, beyond 256 updates of one ledger, or without room in the group that forms, an update is refused; adds and fences
//! do not notice. Records take a quarter of a group at most, and no chunk of the reserve. While a directory cannot be read, no
//! extent is found that is not in memory.

use crate::api::{Refusal, Waiter};
use crate::engine::Engine;
use crate::shard::Shard;
use bindery_io::canary::Canary;
use bindery_storage::{ExtentRow, ReadError, Source, StateError};
use bindery_types::tier::{Reconciliation, TierExtent};
use bindery_types::{EntryId, LedgerId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ledgers that are placed while a shard's lock is held.
const RECONCILED_AT_ONCE: usize = 64;
/// Rows of a state table in one look-up.
const ROWS_READ: usize = 64;
/// Index records that are read together.
const RECORDS_READ: u32 = 1024;

/// What became of one ledger of [`Engine::reconcile`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reconciled {
    /// The ledger.
    pub ledger: LedgerId,
    /// `Ok`: everything up to the entry of the request is in the register. [`Refusal::BadRequest`]: its extents begin above
    /// the register, so that entries between would be missing. [`Refusal::NoLedger`]: nothing of the ledger is here.
    /// [`Refusal::TooManyRequests`]: no room at the moment.
    pub result: Result<(), Refusal>,
    /// The register, durable; nothing when no entry is reconciled, or that is not known.
    pub lre: Option<EntryId>,
}

/// What a tierer says of a ledger, after a look at the extents that are replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    /// What it says.
    pub reconciliation: Reconciliation,
    /// [`Tiered::update`] before that look; 0 when nothing of the ledger was in object storage, as far as was known here.
    pub seen: u64,
}

/// What concerns one ledger.
trait OfLedger {
    fn ledger(&self) -> LedgerId;
}

impl OfLedger for Reconciliation {
    fn ledger(&self) -> LedgerId {
        self.ledger
    }
}

impl OfLedger for Compared {
    fn ledger(&self) -> LedgerId {
        self.reconciliation.ledger
    }
}

/// Called once, with a result for each ledger in the order of the request; must not block. Dropped uncalled only at shutdown.
pub type ReconcileWaiter = Box<dyn FnOnce(Vec<Reconciled>) + Send>;

/// How far a ledger is in object storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiered {
    /// Names this life of the ledger: another one when it was removed and came back.
    pub life: u32,
    /// Grows with each update of its extents.
    pub update: u64,
    /// The last of these updates is durable: [`Engine::tier_extents`] shows it.
    pub is_update_durable: bool,
    /// The last reconciled entry, durable.
    pub lre: EntryId,
    /// Entries up to this one, it included, are read from there when no copy is here.
    pub trimmed_below: Option<EntryId>,
    /// The trim is in the state table, so that the space of those copies can be collected.
    pub is_trim_committed: bool,
}

/// Length and checksum of a copy that is on disk here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalChecksum {
    /// The entry.
    pub entry: EntryId,
    /// Length of the stored entry: header, digest and payload.
    pub length: u32,
    /// CRC32C of these bytes.
    pub crc32c: u32,
}

/// Why copies may not go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrimError {
    /// Nothing of the ledger is in object storage, as far as is known here.
    #[error("the ledger is not here, or nothing of it is in object storage")]
    NotTiered,
    /// It was removed, left limbo, or was told of other extents since [`Engine::tiered`] was asked.
    #[error("the ledger changed meanwhile")]
    Changed,
    /// Beyond the last reconciled entry.
    #[error("entry {0} is the last one in object storage")]
    AboveLre(EntryId),
    /// No extent has this entry, although the register is above it.
    #[error("no extent has entry {0}")]
    Uncovered(EntryId),
    /// The extents cannot be read.
    #[error("the extents cannot be read")]
    Io,
}

/// A read of an entry that is in object storage and nowhere here: [`Engine::tier_extent`] says where.
#[derive(Debug, Clone)]
pub struct TieredRead {
    ledger: LedgerId,
    entry: EntryId,
    /// Of what is in memory: the extents that have the entry, and those behind that may cut them.
    in_memory: Vec<ExtentRow>,
    /// Rows of other epochs are what a removal left.
    epoch: u32,
}

impl TieredRead {
    pub(crate) fn new(ledger: LedgerId, entry: EntryId, in_memory: Vec<ExtentRow>, epoch: u32) -> TieredRead {
        TieredRead { ledger, entry, in_memory, epoch }
    }

    /// The ledger.
    pub fn ledger(&self) -> LedgerId {
        self.ledger
    }

    /// The entry.
    pub fn entry(&self) -> EntryId {
        self.entry
    }

    /// It changes when the ledger is removed and comes back: findings for one epoch do not hold for another.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }
}

/// Bounds the extents that are not in the state table yet.
pub(crate) struct TierBudget {
    bytes_max: u64,
    used: AtomicU64,
}

/// Room for some extents, given back when it is dropped.
pub(crate) struct TierPermit {
    budget: Arc<TierBudget>,
    bytes: u64,
}

impl TierBudget {
    pub(crate) fn new(bytes_max: u64) -> Arc<TierBudget> {
        Arc::new(TierBudget { bytes_max, used: AtomicU64::new(0) })
    }

    /// Bytes that so many extents of one update are charged.
    fn cost(extents: usize) -> u64 {
        (extents * size_of::<TierExtent>() + 2 * size_of::<PlacedUpdate>() + 64) as u64
    }

    /// Extents of one update that half of the room is for.
    pub(crate) fn extents_in_half(&self) -> usize {
        let left = (self.bytes_max / 2).saturating_sub(TierBudget::cost(0));
        usize::try_from(left).unwrap_or(usize::MAX) / size_of::<TierExtent>()
    }

    pub(crate) fn take(self: &Arc<TierBudget>, extents: usize) -> Option<TierPermit> {
        self.take_within(extents, self.bytes_max)
    }

    /// A start must take over all updates of a journal: at least one at a time, whatever the budget.
    pub(crate) fn take_at_start(self: &Arc<TierBudget>, extents: usize) -> Option<TierPermit> {
        let bytes = TierBudget::cost(extents);
        if self.used.load(Ordering::Acquire) == 0 {
            self.used.fetch_add(bytes, Ordering::AcqRel);
            return Some(TierPermit { budget: self.clone(), bytes });
        }
        self.take_within(extents, self.bytes_max.max(1 << 20))
    }

    fn take_within(self: &Arc<TierBudget>, extents: usize, max: u64) -> Option<TierPermit> {
        let bytes = TierBudget::cost(extents);
        let taken = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            used.checked_add(bytes).filter(|used| *used <= max)
        });
        taken.is_ok().then(|| TierPermit { budget: self.clone(), bytes })
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// A flush would make room that is needed soon.
    fn is_half_used(&self) -> bool {
        self.bytes_max > 0 && self.used() >= self.bytes_max / 2
    }
}

impl Drop for TierPermit {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// An update that is placed and not in the state table.
pub(crate) struct PlacedUpdate {
    pub(crate) sequence: u64,
    pub(crate) update: bindery_storage::ExtentUpdate,
    pub(crate) _permit: TierPermit,
}

impl PlacedUpdate {
    /// Its row that matters for what begins at an entry: the one that has it, or the first one behind it.
    pub(crate) fn row_at(&self, entry: EntryId) -> Option<ExtentRow> {
        let extents = &self.update.extents;
        let at = extents.partition_point(|extent| extent.last < entry);
        Some(ExtentRow { stamp: self.update.stamp, extent: *extents.get(at)? })
    }
}

/// The extent that has an entry, among rows of several sources that may overlap: of two that have it the one with the later
/// stamp counts, up to where one with a later stamp begins. It ends at `horizon` at the latest, behind which not all is known.
pub(crate) fn resolve(
    rows: impl Iterator<Item = ExtentRow> + Clone,
    entry: EntryId,
    horizon: EntryId,
) -> Option<TierExtent> {
    let best = rows.clone().filter(|row| row.extent.contains(entry)).max_by_key(|row| row.stamp)?;
    let cuts = rows.filter(|row| row.stamp > best.stamp && row.extent.first > entry);
    let cut = cuts.map(|row| row.extent.first.get() - 1).min().and_then(EntryId::new);
    let last = best.extent.last.min(horizon).min(cut.unwrap_or(EntryId::MAX));
    Some(TierExtent { last, ..best.extent })
}

/// The rows of an epoch that several tables have, and the entry up to which these are all. One table that cannot be read is
/// enough to know nothing: it may have later rows, and an object that was replaced may be gone.
fn in_tables<E>(
    tables: impl Iterator<Item = Result<Vec<ExtentRow>, E>>,
    epoch: u32,
) -> Result<(Vec<ExtentRow>, EntryId), E> {
    let (mut rows, mut horizon) = (Vec::new(), EntryId::MAX);
    for found in tables {
        let found = found?;
        if let Some(last) = found.last().filter(|_| found.len() == ROWS_READ) {
            horizon = horizon.min(last.extent.last);
        }
        rows.extend(found.into_iter().filter(|row| row.stamp.epoch == epoch));
    }
    Ok((rows, horizon))
}

/// Results of a request that come from several shards.
struct Gathering {
    results: Mutex<Vec<Option<Reconciled>>>,
    done: Mutex<(usize, Option<ReconcileWaiter>)>,
}

impl Gathering {
    fn arrive(&self, of_shard: Vec<(usize, Reconciled)>, outcome: Result<(), Refusal>) {
        {
            let mut results = self.results.lock();
            for (place, result) in of_shard {
                let is_proven = outcome.is_ok() || result.result == Err(Refusal::NoLedger);
                let unknown = Reconciled { result: Err(Refusal::Io), lre: None, ..result };
                results[place] = Some(if is_proven { result } else { unknown });
            }
        }
        let done = {
            let mut done = self.done.lock();
            done.0 -= 1;
            if done.0 == 0 { done.1.take() } else { None }
        };
        if let Some(done) = done {
            let results = std::mem::take(&mut *self.results.lock());
            done(results.into_iter().map(|result| result.expect("each shard gave its results")).collect());
        }
    }
}

impl Engine {
    /// Takes what a tierer says of ledgers, each of them once, and answers when all of it is durable. Never waits for room: an
    /// update that finds none is refused, alone. Does not block.
    pub fn reconcile(&self, ledgers: Vec<Reconciliation>, done: ReconcileWaiter) {
        self.tell(ledgers, Shard::reconcile, done);
    }

    /// As [`Engine::reconcile`], of extents whose objects were compared with those of before, or read: they may replace extents of
    /// entries that were let go, for which [`Engine::reconcile`] answers [`Refusal::TooManyRequests`]. It answers the same for a ledger
    /// of which extents would be replaced that came since they were compared.
    pub fn reconcile_compared(&self, ledgers: Vec<Compared>, done: ReconcileWaiter) {
        self.tell(ledgers, Shard::reconcile_compared, done);
    }

    /// Takes over ledgers that are in object storage, and of which nothing is here: they exist from then on, and their entries are
    /// read from there. One of which anything is here that was not restored is refused, alone, with [`Refusal::BadRequest`], and
    /// stays as it is. Otherwise as [`Engine::reconcile`].
    pub fn restore(&self, ledgers: Vec<Reconciliation>, done: ReconcileWaiter) {
        self.tell(ledgers, Shard::restore_from_tier, done);
    }

    fn tell<T: OfLedger>(
        &self,
        ledgers: Vec<T>,
        tell: fn(&mut Shard, &T) -> (Reconciled, u64),
        done: ReconcileWaiter,
    ) {
        let mut by_shard: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (place, ledger) in ledgers.iter().enumerate() {
            by_shard.entry(self.shard_of(ledger.ledger())).or_default().push(place);
        }
        if by_shard.is_empty() {
            return done(Vec::new());
        }
        let gathering = Arc::new(Gathering {
            results: Mutex::new(vec![None; ledgers.len()]),
            done: Mutex::new((by_shard.len(), Some(done))),
        });
        let is_early = self.config.canaries.has(Canary::M44ReconciledBeforeDurable);
        let mut is_short = false;
        for (index, places) in by_shard {
            let mut results = Vec::with_capacity(places.len());
            let mut upto = 0;
            for some in places.chunks(RECONCILED_AT_ONCE) {
                let mut shard = self.shards[index].lock();
                for place in some {
                    let (result, sequence) = tell(&mut shard, &ledgers[*place]);
                    upto = upto.max(sequence);
                    is_short |= result.result == Err(Refusal::TooManyRequests);
                    results.push((*place, result));
                }
            }
            let gathering = gathering.clone();
            let waiter: Waiter = Box::new(move |outcome| gathering.arrive(results, outcome));
            let upto = if is_early { 0 } else { upto };
            let answered = self.shards[index].lock().when_durable(upto, waiter);
            self.answer_or_wake(index, answered);
        }
        // A flush makes room.
        if self.tier_budget.is_half_used() || (is_short && self.tier_budget.used() > 0) {
            self.want_freeze();
            self.wake_journals();
        }
    }

    /// True when entries of any ledger are in object storage, as far as is known here.
    pub fn has_tiered(&self) -> bool {
        self.shards.iter().any(|shard| shard.lock().has_tiered())
    }

    /// How far a ledger is in object storage, durably; `None` when it is not here or nothing of it is there.
    pub fn tiered(&self, ledger: LedgerId) -> Option<Tiered> {
        self.shard(ledger).lock().tiered(ledger)
    }

    /// Ledgers above `after` that are in object storage further than their copies were let go, ascending, `max` at most.
    pub fn untrimmed(&self, after: Option<LedgerId>, max: usize) -> Vec<(LedgerId, Tiered)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            shard.lock().untrimmed(after, max, &mut all);
        }
        all.sort_unstable_by_key(|(ledger, _)| *ledger);
        all.truncate(max);
        all
    }

    /// True while memory has copies of entries of a ledger: before the next flush those have no checksums to compare.
    pub fn has_unflushed(&self, ledger: LedgerId) -> bool {
        self.shard(ledger).lock().has_unflushed(ledger)
    }

    /// Bytes of extents that wait for the state table.
    pub fn tier_extents_waiting(&self) -> u64 {
        self.tier_budget.used()
    }

    /// Where an entry is that [`Engine::read`] found to be in object storage alone: the extent, and how far it holds from
    /// the entry on; entries before it may be in other objects by now. Blocks on the local disk.
    ///
    /// # Errors
    /// [`Refusal::NoLedger`] when the ledger is gone meanwhile: read again. Otherwise [`Refusal::Io`].
    pub fn tier_extent(&self, read: &TieredRead) -> Result<TierExtent, Refusal> {
        let TieredRead { ledger, entry, ref in_memory, epoch } = *read;
        match self.resolve_at(ledger, entry, in_memory.clone(), epoch)? {
            Some(extent) => Ok(extent),
            None if self.tier_epoch(ledger) != Some(epoch) => Err(Refusal::NoLedger),
            None => {
                tracing::error!(%ledger, %entry, "no extent has an entry that is in object storage alone");
                Err(Refusal::Io)
            }
        }
    }

    /// The extents of a ledger from the one on that has `from`, ascending and without gaps, `max` at most; they end with the
    /// last reconciled entry. Blocks on the local disk.
    pub fn tier_extents(
        &self,
        ledger: LedgerId,
        from: EntryId,
        max: usize,
    ) -> Result<Vec<TierExtent>, Refusal> {
        let mut found: Vec<TierExtent> = Vec::new();
        let (mut next, mut seen) = (Some(from), None);
        while let Some(entry) = next {
            let Some(extent) = self.extent_at(ledger, entry)? else { break };
            // The parts of an extent that is seen in parts are joined; its beginning may be in a later one.
            let is_same = seen.replace((extent.first, extent.object)) == seen;
            let is_full = found.len() == max;
            match found.last_mut() {
                Some(before) if is_same && before.last.get() + 1 == entry.get() => before.last = extent.last,
                _ if is_full => break,
                _ => found.push(TierExtent { first: entry, ..extent }),
            }
            next = extent.last.get().checked_add(1).and_then(EntryId::new);
        }
        Ok(found)
    }

    /// The extent that has an entry at or below the durable LRE.
    fn extent_at(&self, ledger: LedgerId, entry: EntryId) -> Result<Option<TierExtent>, Refusal> {
        let Some((rows, epoch)) = self.shard(ledger).lock().tier_rows(ledger, entry) else { return Ok(None) };
        self.resolve_at(ledger, entry, rows, epoch)
    }

    /// As [`resolve`], over what was in memory and what the state tables have. Call it after the shard was asked, never
    /// before: a commit moves extents from memory to the tables.
    fn resolve_at(
        &self,
        ledger: LedgerId,
        entry: EntryId,
        mut rows: Vec<ExtentRow>,
        epoch: u32,
    ) -> Result<Option<TierExtent>, Refusal> {
        let (of_tables, horizon) = in_tables(
            self.tiers.iter().map(|view| view.rows(ledger, entry, ROWS_READ)),
            epoch,
        )
        .map_err(|error| {
            tracing::error!(%ledger, %entry, %error, "cannot read where an entry is in object storage");
            Refusal::Io
        })?;
        rows.extend(of_tables);
        Ok(resolve(rows.iter().copied(), entry, horizon))
    }

    /// A start whose directories are not those of before: ledgers that lack extents lose register and trim ([`crate::tier`],
    /// invariant 2).
    ///
    /// # Errors
    /// A table that cannot be read, with the number of its directory.
    pub(crate) fn drop_uncovered(&self) -> Result<(), (usize, StateError)> {
        for shard in &self.shards {
            let ledgers = shard.lock().reconciled();
            for (ledger, lre, epoch) in ledgers {
                if !self.is_covered(ledger, lre, epoch)? {
                    tracing::error!(
                        %ledger, %lre,
                        "extents are missing, perhaps with a ledger directory: it counts as not in object storage"
                    );
                    shard.lock().lose_extents(ledger);
                }
            }
        }
        Ok(())
    }

    /// The tables have extents of the epoch for every entry up to the LRE.
    fn is_covered(&self, ledger: LedgerId, lre: EntryId, epoch: u32) -> Result<bool, (usize, StateError)> {
        let mut next = EntryId::FIRST;
        loop {
            let views = self.tiers.iter().enumerate();
            let read =
                views.map(|(index, view)| view.rows(ledger, next, ROWS_READ).map_err(|error| (index, error)));
            let (rows, horizon) = in_tables(read, epoch)?;
            while next <= horizon {
                let Some(extent) = resolve(rows.iter().copied(), next, horizon) else { return Ok(false) };
                if extent.last >= lre {
                    return Ok(true);
                }
                next = EntryId::new(extent.last.get() + 1).expect("it is at most another entry");
            }
        }
    }

    fn tier_epoch(&self, ledger: LedgerId) -> Option<u32> {
        self.shard(ledger).lock().tier_epoch(ledger)
    }

    /// Lengths and checksums of the copies on disk of entries from `first` to `last`, ascending, `max` at most: of each the
    /// newest copy. From index records; no entry is read. Blocks on the local disk.
    ///
    /// # Errors
    /// [`Refusal::NoLedger`], and [`Refusal::Io`] for what cannot be read.
    pub fn local_checksums(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max: usize,
    ) -> Result<Vec<LocalChecksum>, Refusal> {
        let hidden_below = {
            let shard = self.shard(ledger).lock();
            if shard.presence(ledger) != crate::LedgerPresence::Known {
                return Err(Refusal::NoLedger);
            }
            shard.hidden_below(ledger)
        };
        let failed = |error: ReadError| {
            tracing::error!(%ledger, %error, "cannot read the checksums of entries");
            Refusal::Io
        };
        let mut newest = BTreeMap::new();
        for view in &self.views {
            for source in view.runs_within(ledger, first, last).map_err(failed)? {
                if source.extent.generation.0 >= hidden_below {
                    collect_checksums(&source, (first, last), max, &mut newest).map_err(failed)?;
                }
            }
        }
        // Each run gave its own lowest ones, so the lowest of all are among them.
        Ok(newest.into_values().take(max).map(|(_, checksum)| checksum).collect())
    }

    /// Lets the copies of entries up to `below`, it included, go: they are read from object storage when no copy is here, and
    /// their space comes back once that is committed. The caller has compared them with the objects (T19). Blocks on the local
    /// disk.
    ///
    /// # Errors
    /// Nothing changes then. `compared` is what [`Engine::tiered`] said before the comparison: extents that came later were not
    /// compared.
    pub fn trim(&self, ledger: LedgerId, compared: &Tiered, below: EntryId) -> Result<(), TrimError> {
        let check = |shard: &Shard| {
            let tiered = shard.tiered(ledger).ok_or(TrimError::NotTiered)?;
            if (tiered.life, tiered.update) != (compared.life, compared.update) {
                return Err(TrimError::Changed);
            }
            if below > tiered.lre { Err(TrimError::AboveLre(tiered.lre)) } else { Ok(tiered) }
        };
        let tiered = check(&self.shard(ledger).lock())?;
        let mut next = match tiered.trimmed_below {
            None => EntryId::FIRST,
            Some(trimmed) if trimmed >= below => return Ok(()),
            Some(trimmed) => EntryId::new(trimmed.get() + 1).expect("it is below another entry"),
        };
        // Invariant 3: every entry must have its extent, whatever went wrong.
        loop {
            let extent = self.extent_at(ledger, next).map_err(|_| TrimError::Io)?;
            let last = extent.ok_or(TrimError::Uncovered(next))?.last;
            if last >= below {
                break;
            }
            next = EntryId::new(last.get() + 1).expect("it is below another entry");
        }
        let mut shard = self.shard(ledger).lock();
        check(&shard)?;
        shard.trim(ledger, below);
        Ok(())
    }
}

/// Adds what a run has of a range, `max` at most, unless there is a newer copy.
fn collect_checksums(
    source: &Source,
    (first, last): (EntryId, EntryId),
    max: usize,
    newest: &mut BTreeMap<EntryId, ((u64, u64), LocalChecksum)>,
) -> Result<(), ReadError> {
    let Source { log, extent } = source;
    let age = (extent.generation.0, extent.log_id.0);
    // The first record at or behind `first`.
    let (mut low, mut high) = (0, extent.count);
    while low < high {
        let middle = low + (high - low) / 2;
        match log.records_from(extent, middle, 1, None)?.first() {
            Some(record) if record.entry < first => low = middle + 1,
            _ => high = middle,
        }
    }
    let (mut place, mut before, mut taken) = (low, None, 0);
    while place < extent.count && taken < max {
        let wanted = RECORDS_READ.min(u32::try_from(max - taken).unwrap_or(RECORDS_READ));
        let records = log.records_from(extent, place, wanted, before)?;
        for record in &records {
            if record.entry > last {
                return Ok(());
            }
            let location = &record.location;
            let checksum =
                LocalChecksum { entry: record.entry, length: location.length, crc32c: location.crc32c };
            let slot = newest.entry(record.entry).or_insert((age, checksum));
            if slot.0 < age {
                *slot = (age, checksum);
            }
        }
        place += u32::try_from(records.len()).expect("records are read in thousands");
        taken += records.len();
        before = records.last().map(|record| record.entry);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::tier::{ObjectId, ObjectRef, TierStamp};
    use proptest::prelude::*;

    fn row(first: i64, last: i64, update: u64) -> ExtentRow {
        let id = ObjectId::new(update, [0; 10]);
        let object = ObjectRef { id, length_bytes: 9, footer_offset: 1, footer_crc: 0, etag_crc: 0 };
        let (first, last) = (EntryId::new(first).unwrap(), EntryId::new(last).unwrap());
        ExtentRow { stamp: TierStamp { epoch: 0, update }, extent: TierExtent { first, last, object } }
    }

    #[test]
    fn room_for_extents_is_bounded_and_comes_back() {
        let budget = TierBudget::new(TierBudget::cost(3));
        let held = budget.take(3).unwrap();
        assert!(budget.take(1).is_none() && budget.is_half_used());
        drop(held);
        assert_eq!((budget.used(), budget.is_half_used()), (0, false));
        assert!(budget.take(4).is_none());
        let alone = budget.take_at_start(100_000).expect("one update always");
        assert!(budget.take_at_start(1).is_none(), "but no second one beyond the bound");
        drop(alone);
        let off = TierBudget::new(0);
        assert!(off.take(1).is_none() && !off.is_half_used());
    }

    #[test]
    fn one_table_that_cannot_be_read_is_enough_to_know_nothing() {
        let one = || Ok::<_, &str>(vec![row(0, 9, 1)]);
        assert_eq!(in_tables([one(), Ok(vec![])].into_iter(), 0), Ok((vec![row(0, 9, 1)], EntryId::MAX)));
        assert_eq!(in_tables([one()].into_iter(), 1), Ok((vec![], EntryId::MAX)), "of another epoch");
        assert_eq!(in_tables([one(), Err("it is out")].into_iter(), 0), Err("it is out"));
        let full: Vec<_> = (0..64).map(|n| row(n, n, 1)).collect();
        assert_eq!(in_tables([Ok::<_, ()>(full)].into_iter(), 0).unwrap().1, EntryId::new(63).unwrap());
    }

    proptest! {
        /// Against one number for each entry: the object is that of the latest row, and it is the same up to the end.
        #[test]
        fn the_latest_row_counts_as_far_as_none_later_begins(
            ranges in prop::collection::vec((0i64..30, 0i64..10), 1..12), horizon in 0i64..40,
        ) {
            let rows: Vec<_> =
                (1u64..).zip(&ranges).map(|(n, (first, more))| row(*first, first + more, n)).collect();
            let latest = |entry: i64| {
                let id = EntryId::new(entry).unwrap();
                rows.iter().filter(|row| row.extent.contains(id)).map(|row| row.stamp.update).max()
            };
            for entry in 0..=horizon {
                let (at, end) = (EntryId::new(entry).unwrap(), EntryId::new(horizon).unwrap());
                let Some(extent) = resolve(rows.iter().copied(), at, end) else {
                    prop_assert_eq!(latest(entry), None);
                    continue;
                };
                prop_assert!(extent.contains(at) && extent.last <= end);
                for covered in entry..=extent.last.get() {
                    prop_assert_eq!(latest(covered), Some(extent.object.id.reserved_ms()));
                }
                let next = extent.last.get() + 1;
                let is_cut = next > horizon || latest(next) != Some(extent.object.id.reserved_ms());
                prop_assert!(is_cut, "it goes on at {}", next);
            }
        }
    }
}
