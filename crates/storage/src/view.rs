//! The live logs of a ledger directory, as readers see them: which runs may hold an entry, in memory or on disk.
//!
//! # Data flow
//! ```text
//! leads (under the lock, no I/O) -> Lead::Run | Lead::Paged, newest first -> locate -> EntryLocation
//! add -> few runs: extents in memory -> pool full: make_room -> paged index; extents dropped (they are in the footer)
//!     -> many runs: paged index
//! ```
//!
//! # Invariants
//! 1. At every moment a run of a live log is found in memory or by its log's index. Paging a log out publishes the index
//!    first, and drops the runs afterwards, some at a time; paging in is the reverse. A run that is found twice is the same
//!    copy.
//! 2. One owner adds, removes and pages: the owner of the directory. Readers only look.
//! 3. Everything in memory is charged to the index pool, to the byte, and released when the view is dropped.
//! 4. The newest copy that may hold an entry decides: when it cannot be read, an older one is not given instead.
//!
//! # Limits
//! The lock is held for [`STEP_RUNS`] runs at most, or those of one ledger. While a log is added or paged in, its extents are in
//! memory twice, unless it has more than [`LogView::resident_max`] runs: those never are in memory. Indexes cannot be paged out.
//! A log is paged out in steps of [`STEP_RUNS`] runs. One call adds or removes a log with all its runs in memory, so a log with many
//! is paged out before it is removed.

use crate::entry_log::{IndexWalk, IndexedRun, LogIndex, PagedIndex, PagedIndexBuilder, waited};
use crate::paged::PagedLog;
use crate::{
    Coverage, EntryLocation, EntryLog, Extent, ExtentDirectory, FoundRun, Generation, IndexPool, IndexUse,
    LogId, Patience, ReadError, RunCursor, TryReadError,
};
use bindery_types::{EntryId, LedgerId};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Runs that are added or dropped while the lock is held.
const STEP_RUNS: usize = 1024;
/// A log with more runs has many small ledgers, each of which is rarely read: its extents stay on disk.
const RESIDENT_RUNS_MAX: u64 = 1 << 16;
/// The part of the index pool that the extents of one log may take.
const RESIDENT_SHARE: u64 = 16;

/// The live logs, as readers see them.
pub struct LogView {
    live: RwLock<Live>,
    pool: Arc<IndexPool>,
}

#[derive(Default)]
struct Live {
    /// The extents of the logs that have theirs in memory.
    extents: ExtentDirectory,
    logs: BTreeMap<LogId, LiveLog>,
    /// Logs with an index, by id.
    paged: Vec<PagedLog>,
    /// Their indexes by number, in the order in which they were published, and the next number.
    order: BTreeMap<u64, Arc<PagedIndex>>,
    next_number: u64,
    index_bytes: u64,
    /// Charged to the pool.
    charged: u64,
    /// The last victim: the hand of the clock.
    hand: Option<LogId>,
}

struct LiveLog {
    log: Arc<EntryLog>,
    /// Used since the hand of the clock last passed it.
    was_used: AtomicBool,
}

/// A log that is being paged out, step by step: see [`crate::LedgerDirectory::page_out_on`].
pub struct PagingOut {
    log_id: LogId,
    /// The index of the runs so far, and how many they are.
    index: PagedIndexBuilder,
    runs: usize,
}

impl PagingOut {
    /// For a log of which nothing is paged out yet.
    pub fn new(log_id: LogId) -> PagingOut {
        PagingOut { log_id, index: PagedIndexBuilder::default(), runs: 0 }
    }
}

/// A run and the log that holds it. Keeps the log readable while it lives, also after its removal.
#[derive(Clone)]
pub struct Source {
    /// The log.
    pub log: Arc<EntryLog>,
    /// The run in it.
    pub extent: Extent,
}

/// A run of which only the index knows: its block of the footer cannot be read.
pub struct UnreadableRun {
    /// The log that has it. The run is as old as that, or older.
    pub log: Arc<EntryLog>,
    /// Its ledger, and its first and last entry.
    pub run: IndexedRun,
    /// Why it cannot be found.
    pub error: ReadError,
}

/// The result of [`LogView::newer`].
#[derive(Default)]
pub struct NewerRuns {
    /// By first entry.
    pub runs: Vec<Source>,
    /// Logs that may hold others, but cannot be read.
    pub unread: Vec<(LogId, ReadError)>,
    /// Number of logs whose footers were read, from the block cache or from the disk.
    pub reads: u64,
    /// True if logs that may hold others were left out.
    pub is_partial: bool,
}

/// How [`LogView::newer`] treats a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Its runs count.
    Yes,
    /// Its runs count if they are in memory. If they are on disk it is left out: it could not be read, so what it has is not known.
    LeftOut,
    /// Its runs do not count: the caller goes through it anyway.
    Known,
}

/// How far [`LogView::retain_absent`] has come among the logs on disk.
#[derive(Debug, Default)]
pub struct RunSearch {
    /// Those with a lower number were searched.
    next: u64,
    is_begun: bool,
    /// The log that had most of the ledgers, and how many: ledgers that are near each other are mostly in the same logs.
    richest: Option<u64>,
    most: usize,
}

impl RunSearch {
    /// Starts over, for other ledgers. The log that had most of the previous ones is searched first.
    pub fn begin_again(&mut self) {
        (self.next, self.is_begun, self.most) = (0, false, 0);
    }

    fn look(&mut self, number: u64, index: &PagedIndex, ledgers: &mut Vec<LedgerId>) {
        let before = ledgers.len();
        index.retain_absent(ledgers);
        let found = before - ledgers.len();
        if found > self.most {
            (self.richest, self.most) = (Some(number), found);
        }
    }
}

/// How far one caller of [`LogView::overlaps`] has come in each log on disk: its questions ascend, so the next answer is near and takes
/// a fraction of a look-up. Takes 2 KiB for each log.
#[derive(Debug, Default)]
pub struct OverlapScan {
    /// With the number of the log, in the order of the view.
    walks: Vec<(u64, IndexWalk)>,
}

impl OverlapScan {
    /// Adds the logs that are new, and drops those that are gone.
    fn align(&mut self, paged: &[PagedLog]) {
        let numbers = self.walks.iter().map(|(number, _)| number);
        if numbers.eq(paged.iter().map(|paged| &paged.number)) {
            return;
        }
        let mut before: BTreeMap<u64, IndexWalk> = self.walks.drain(..).collect();
        let mut walk = |number| before.remove(&number).unwrap_or_default();
        self.walks = paged.iter().map(|paged| (paged.number, walk(paged.number))).collect();
    }
}

/// Where a copy of an entry may be.
#[derive(Clone)]
pub enum Lead {
    /// In this run.
    Run(Source),
    /// In a log whose extents are on disk.
    Paged(PagedLog),
}

impl Lead {
    /// The highest generation that a copy may have to which it leads.
    pub fn newest(&self) -> Generation {
        match self {
            Lead::Run(source) => source.extent.generation,
            Lead::Paged(paged) => paged.newest(),
        }
    }

    /// The log.
    pub fn log(&self) -> &Arc<EntryLog> {
        match self {
            Lead::Run(source) => &source.log,
            Lead::Paged(paged) => &paged.log,
        }
    }
}

/// A copy of an entry, found and not yet read.
#[derive(Clone)]
pub struct FoundEntry {
    /// The log that holds it.
    pub log: Arc<EntryLog>,
    /// Where, and how long it is: known before a byte of it is loaded.
    pub location: EntryLocation,
    /// Age of the copy.
    pub generation: Generation,
}

/// Entries that one run may have, and no other.
pub struct SoleRun {
    source: Source,
    first: EntryId,
    until: EntryId,
    /// From one to the next.
    step: u32,
}

impl SoleRun {
    /// Age of these copies.
    pub fn generation(&self) -> Generation {
        self.source.extent.generation
    }

    /// Leaves out those after `last`.
    ///
    /// # Panics
    /// When none would be left.
    pub fn cut_to(&mut self, last: EntryId) {
        assert!(last >= self.first, "a run keeps an entry");
        self.until = self.until.min(last);
    }

    /// Where they are in the file: from the first on as many as fit into `bytes_max` bytes together, and the first whatever its length;
    /// `None` when the first is not there.
    pub fn locate(&self, bytes_max: usize, patience: Patience) -> Result<Option<FoundRun>, TryReadError> {
        let Source { log, extent } = &self.source;
        log.locate_together(extent, (self.first, self.until), self.step, bytes_max, patience)
    }
}

/// Finds the newest copy of an entry that is not older than `hidden_below`, among `leads`, which are in order, the newest first.
/// `None`: it is proven that there is none (IB7). Blocks on the disk.
pub fn locate(
    leads: &[Lead],
    ledger: LedgerId,
    entry: EntryId,
    hidden_below: Generation,
) -> Result<Option<FoundEntry>, ReadError> {
    locate_with(leads, ledger, entry, hidden_below, Patience::Wait).map_err(waited)
}

/// As [`locate`], without waiting for the disk.
pub fn try_locate(
    leads: &[Lead],
    ledger: LedgerId,
    entry: EntryId,
    hidden_below: Generation,
) -> Result<Option<FoundEntry>, TryReadError> {
    locate_with(leads, ledger, entry, hidden_below, Patience::Never)
}

fn locate_with(
    leads: &[Lead],
    ledger: LedgerId,
    entry: EntryId,
    hidden_below: Generation,
    patience: Patience,
) -> Result<Option<FoundEntry>, TryReadError> {
    debug_assert!(leads.is_sorted_by_key(|lead| std::cmp::Reverse(lead.newest())));
    let look = |Source { log, extent }: Source| {
        let location = log.lookup_with(&extent, entry, patience)?;
        let generation = extent.generation;
        Ok::<_, TryReadError>(location.map(|location| FoundEntry { log, location, generation }))
    };
    // Runs found in logs on disk that are older than their log, which compaction made; the oldest first. Each waits for its turn.
    let mut waiting: Vec<Source> = Vec::new();
    for lead in leads {
        while waiting.last().is_some_and(|source| source.extent.generation >= lead.newest()) {
            if let Some(found) = waiting.pop().map(look).transpose()?.flatten() {
                return Ok(Some(found));
            }
        }
        let source = match lead {
            Lead::Run(source) => Some(source.clone()),
            Lead::Paged(PagedLog { log, .. }) if log.generation() < hidden_below => None,
            Lead::Paged(paged) => {
                let found = paged.find(ledger, entry, patience)?;
                found.map(|extent| Source { log: paged.log.clone(), extent })
            }
        };
        let Some(source) = source.filter(|source| source.extent.generation >= hidden_below) else { continue };
        if source.extent.generation == lead.newest() {
            if let Some(found) = look(source)? {
                return Ok(Some(found));
            }
            continue;
        }
        let at = waiting.partition_point(|other| other.extent.generation < source.extent.generation);
        waiting.insert(at, source);
    }
    while let Some(source) = waiting.pop() {
        if let Some(found) = look(source)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

impl Live {
    fn source(&self, extent: Extent) -> Source {
        let live = self.logs.get(&extent.log_id).expect("an extent's log is live");
        if !live.was_used.load(Relaxed) {
            live.was_used.store(true, Relaxed);
        }
        Source { log: live.log.clone(), extent }
    }

    /// The logs on disk with runs of a ledger that reach into `first..=last`.
    fn paged(&self, ledger: LedgerId, first: EntryId, last: EntryId) -> impl Iterator<Item = &PagedLog> {
        self.paged_of(ledger, first, last, |_| true)
    }

    /// As [`Live::paged`], of the wanted logs only.
    fn paged_of(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        is_wanted: impl Fn(&&PagedLog) -> bool,
    ) -> impl Iterator<Item = &PagedLog> {
        let reaches = move |paged: &&PagedLog| paged.index.runs_within(ledger, first, last).next().is_some();
        self.paged.iter().filter(is_wanted).filter(reaches)
    }

    fn index_at(&self, log_id: LogId) -> Result<usize, usize> {
        self.paged.binary_search_by_key(&log_id, |paged| paged.log.log_id())
    }

    /// Shows a log whose extents stay on disk.
    fn add_paged(&mut self, log: &Arc<EntryLog>, index: PagedIndex) {
        self.add_log(log);
        self.show_index(log.clone(), index);
    }

    fn add_log(&mut self, log: &Arc<EntryLog>) {
        let shown = LiveLog { log: log.clone(), was_used: AtomicBool::new(true) };
        let replaced = self.logs.insert(log.log_id(), shown);
        assert!(replaced.is_none(), "log {} is added once", log.log_id());
    }

    fn show_index(&mut self, log: Arc<EntryLog>, index: PagedIndex) {
        let at = self.index_at(log.log_id()).expect_err("a log gets its index once");
        self.index_bytes += index.bytes();
        let (index, number) = (Arc::new(index), self.next_number);
        self.next_number += 1;
        self.order.insert(number, index.clone());
        self.paged.insert(at, PagedLog { log, index, number });
    }

    /// Drops the index of a log, if it has one: its runs are in memory, or it is removed.
    fn drop_index(&mut self, log_id: LogId) {
        if let Ok(at) = self.index_at(log_id) {
            let gone = self.paged.remove(at);
            self.index_bytes -= gone.index.bytes();
            self.order.remove(&gone.number);
        }
    }

    /// The least recently used log in memory, by the clock algorithm. Includes a log that is in memory in part, because
    /// paging it out was given up.
    fn victim(&mut self) -> Option<LogId> {
        let behind = |hand: Option<LogId>, id: &LogId| hand.is_none_or(|hand| *id > hand);
        let in_memory: Vec<LogId> =
            self.logs.keys().copied().filter(|id| self.extents.has_log(*id)).collect();
        let start = in_memory.iter().position(|id| behind(self.hand, id)).unwrap_or(0);
        let order = in_memory[start..].iter().chain(&in_memory[..start]);
        let unused = order.clone().find(|id| !self.logs[*id].was_used.swap(false, Relaxed));
        let victim = unused.or(in_memory.get(start)).copied()?;
        self.hand = Some(victim);
        Some(victim)
    }
}

impl LogView {
    pub(crate) fn new(pool: Arc<IndexPool>) -> LogView {
        LogView { live: RwLock::default(), pool }
    }

    /// Changes what is there and charges the pool for it.
    fn change<T>(&self, change: impl FnOnce(&mut Live) -> T) -> T {
        let mut live = self.live.write();
        let result = change(&mut live);
        let (before, now) = (live.charged, live.extents.bytes() + live.index_bytes);
        live.charged = now;
        self.pool.charge(IndexUse::Extents, now.saturating_sub(before));
        self.pool.release(IndexUse::Extents, before.saturating_sub(now));
        result
    }

    /// Most runs of a log whose extents are kept in memory.
    pub(crate) fn resident_max(&self) -> u64 {
        (self.pool.capacity() / RESIDENT_SHARE / size_of::<Extent>() as u64).min(RESIDENT_RUNS_MAX)
    }

    /// Makes a log visible to readers. When this returns all of its runs are found.
    pub(crate) fn add(&self, log: &Arc<EntryLog>, index: LogIndex) {
        let extents = match index {
            LogIndex::Paged(index) => return self.change(|live| live.add_paged(log, index)),
            LogIndex::Resident(extents) => extents,
            LogIndex::Building(_) => unreachable!("an index is finished before its log is shown"),
        };
        // A log that would not fit even without all others is not brought into memory, only to be dropped again at once.
        let stays = self.pool.used(IndexUse::Ledgers) + self.pool.used(IndexUse::Writing);
        let room = self.pool.capacity().saturating_sub(stays);
        if size_of_val(&*extents) as u64 > room
            && let Some(index) = PagedIndex::of(&extents)
        {
            return self.change(|live| live.add_paged(log, index));
        }
        self.change(|live| live.add_log(log));
        for some in extents.chunks(STEP_RUNS) {
            self.change(|live| live.extents.add_runs(log.log_id(), some));
        }
    }

    /// Hides a log from readers: all that it has is elsewhere, or dead.
    pub(crate) fn remove(&self, log_id: LogId) -> Arc<EntryLog> {
        while !self.change(|live| live.extents.remove_runs(log_id, STEP_RUNS)) {}
        self.change(|live| {
            live.drop_index(log_id);
            live.logs.remove(&log_id).expect("a removed log was live: the state table listed it").log
        })
    }

    /// Pages logs out until the pool is within its capacity, or no log is left in memory.
    pub(crate) fn make_room(&self) {
        while self.pool.is_over() {
            let Some(log_id) = self.live.write().victim() else { return };
            let mut paging = PagingOut::new(log_id);
            while !self.page_out_on(&mut paging) {}
        }
    }

    /// Pages a log out by one step; true when none of its runs is in memory any more.
    pub(crate) fn page_out_on(&self, paging: &mut PagingOut) -> bool {
        let live = self.live.read();
        let log_id = paging.log_id;
        let Some(log) = live.logs.get(&log_id).map(|live| live.log.clone()) else { return true };
        if live.index_at(log_id).is_ok() {
            drop(live);
            return self.change(|live| live.extents.remove_runs(log_id, STEP_RUNS));
        }
        let some = live.extents.some_of_log(log_id, paging.runs, STEP_RUNS);
        drop(live);
        if some.is_empty() {
            let Some(index) = std::mem::take(&mut paging.index).finish() else { return true };
            self.change(|live| live.show_index(log, index));
        }
        paging.runs += some.len();
        some.iter().for_each(|run| paging.index.push(run));
        false
    }

    /// Brings the extents of one paged-out log back into memory, if there is one that is being read, and room for twice as many extents.
    /// True if it did so. Blocks on the disk.
    pub(crate) fn page_in(&self) -> Result<bool, ReadError> {
        let room = self.pool.capacity().saturating_sub(self.pool.used_in_all());
        let log = {
            let live = self.live.read();
            let resident_max = self.resident_max();
            let fits = |paged: &&PagedLog| {
                // A log that is being paged out is not turned back.
                let is_leaving = live.extents.has_log(paged.log.log_id());
                let runs = paged.index.len() as u64;
                let bytes = runs * 2 * size_of::<Extent>() as u64;
                let fits = !is_leaving && runs <= resident_max && bytes.saturating_mul(2) <= room;
                fits && paged.index.was_used.swap(false, Relaxed)
            };
            live.paged.iter().rev().find(fits).map(|paged| paged.log.clone())
        };
        let Some(log) = log else { return Ok(false) };
        let extents = log.read_extents()?;
        for some in extents.chunks(STEP_RUNS) {
            self.change(|live| live.extents.add_runs(log.log_id(), some));
        }
        self.change(|live| live.drop_index(log.log_id()));
        Ok(true)
    }

    /// Where copies of an entry may be, newest first, in one snapshot. Reads nothing.
    pub fn leads(&self, ledger: LedgerId, entry: EntryId, into: &mut Vec<Lead>) {
        let live = self.live.read();
        live.extents.visit_candidates(ledger, entry, |extent| into.push(Lead::Run(live.source(*extent))));
        for paged in live.paged(ledger, entry, entry) {
            if !paged.index.was_used.load(Relaxed) {
                paged.index.was_used.store(true, Relaxed);
            }
            into.push(Lead::Paged(paged.clone()));
        }
        drop(live);
        if into.len() > 1 {
            into.sort_by_key(|lead| std::cmp::Reverse(lead.newest()));
        }
    }

    /// As [`ExtentDirectory::coverage`], in one snapshot; unclear when a log on disk may have one of the entries. Those that are wanted
    /// are `step` apart; above 1 a run may have gaps. Reads nothing.
    pub fn coverage(&self, ledger: LedgerId, first: EntryId, last: EntryId, step: u32) -> Coverage<SoleRun> {
        let live = self.live.read();
        if live.paged(ledger, first, last).next().is_some() {
            return Coverage::Unclear;
        }
        match live.extents.coverage(ledger, first, last, step > 1) {
            Coverage::Sole(extent, until) => {
                Coverage::Sole(SoleRun { source: live.source(*extent), first, until, step }, until)
            }
            Coverage::Nothing(until) => Coverage::Nothing(until),
            Coverage::Unclear => Coverage::Unclear,
        }
    }

    /// The runs of a ledger that reach into `first..=last`, in one snapshot. Blocks on the disk.
    fn runs_between(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        is_wanted: impl Fn(Generation) -> bool,
        asked: impl Fn(LogId) -> Asked,
    ) -> NewerRuns {
        let (mut unread, mut reads, mut is_partial) = (Vec::new(), 0, false);
        let (mut found, paged) = {
            let live = self.live.read();
            let mut runs = Vec::new();
            live.extents.visit_overlapping(ledger, first, last, |run| {
                if is_wanted(run.generation) && asked(run.log_id) != Asked::Known {
                    runs.push(live.source(*run));
                }
            });
            // No run is newer than its log.
            let may_be_wanted =
                |paged: &&PagedLog| is_wanted(paged.newest()) && asked(paged.log.log_id()) != Asked::Known;
            (runs, live.paged_of(ledger, first, last, may_be_wanted).cloned().collect::<Vec<_>>())
        };
        for paged in &paged {
            if asked(paged.log.log_id()) == Asked::LeftOut {
                is_partial = true;
                continue;
            }
            reads += 1;
            let extents = paged.runs_between(ledger, first, last).unwrap_or_else(|error| {
                unread.push((paged.log.log_id(), error));
                Vec::new()
            });
            for extent in extents {
                if is_wanted(extent.generation) {
                    found.push(Source { log: paged.log.clone(), extent });
                }
            }
        }
        // A run of a log that is being paged in or out is found twice.
        found.sort_by_key(|source| (source.extent.first, source.extent.log_id));
        found.dedup_by_key(|source| (source.extent.first, source.extent.log_id));
        NewerRuns { runs: found, unread, reads, is_partial }
    }

    /// All runs of a ledger, by first entry, in one snapshot. Blocks on the disk.
    pub fn runs(&self, ledger: LedgerId) -> Result<Vec<Source>, ReadError> {
        self.runs_within(ledger, EntryId::FIRST, EntryId::MAX)
    }

    /// The runs of a ledger that reach into `first..=last`, in one snapshot. Blocks on the disk.
    pub fn runs_within(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
    ) -> Result<Vec<Source>, ReadError> {
        let NewerRuns { runs, unread, .. } = self.runs_between(ledger, first, last, |_| true, |_| Asked::Yes);
        unread.into_iter().next().map_or(Ok(runs), |(_, error)| Err(error))
    }

    /// As [`LogView::runs_within`], each run by itself: also what cannot be found any more. Runs on disk for which `is_left_out` is true
    /// are not looked for; it gets the highest generation that the run may have.
    pub fn runs_to_list(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        is_left_out: impl Fn(&IndexedRun, Generation) -> bool,
    ) -> (Vec<Source>, Vec<UnreadableRun>) {
        let (mut found, paged) = {
            let live = self.live.read();
            let mut runs = Vec::new();
            live.extents.visit_overlapping(ledger, first, last, |run| runs.push(live.source(*run)));
            (runs, live.paged(ledger, first, last).cloned().collect::<Vec<_>>())
        };
        let mut unreadable = Vec::new();
        for paged in &paged {
            for run in paged.index.runs_within(ledger, first, last) {
                if is_left_out(&run, paged.newest()) {
                    continue;
                }
                match paged.extent(run.number, Patience::Wait).map_err(waited) {
                    Ok(extent) => found.push(Source { log: paged.log.clone(), extent }),
                    Err(error) => unreadable.push(UnreadableRun { log: paged.log.clone(), run, error }),
                }
            }
        }
        // A run of a log that is being paged in or out is found twice.
        found.sort_by_key(|source| (source.extent.first, source.extent.log_id));
        found.dedup_by_key(|source| (source.extent.first, source.extent.log_id));
        (found, unreadable)
    }

    /// Goes through the runs of a live log whose extents stay on disk, by its index. `log` is that log, as the caller reads it. `None` when
    /// it is in memory, or not there. Blocks on the disk.
    pub fn indexed_cursor(&self, log: &Arc<EntryLog>) -> Option<Result<RunCursor, ReadError>> {
        let live = self.live.read();
        let index = live.paged[live.index_at(log.log_id()).ok()?].index.clone();
        drop(live);
        Some(RunCursor::indexed(log.clone(), index))
    }

    /// The newer runs that may hold an entry of `extent` too, in one snapshot, and the logs of which that could not be learned.
    /// Blocks on the disk.
    pub fn newer(&self, extent: &Extent, asked: impl Fn(LogId) -> Asked) -> NewerRuns {
        let is_wanted = |generation: Generation| generation >= extent.generation;
        let mut found = self.runs_between(extent.ledger, extent.first, extent.last, is_wanted, asked);
        found.runs.retain(|source| {
            let run = &source.extent;
            (run.generation, run.log_id) > (extent.generation, extent.log_id)
        });
        found
    }

    /// A live log.
    pub fn log(&self, log_id: LogId) -> Option<Arc<EntryLog>> {
        Some(self.live.read().logs.get(&log_id)?.log.clone())
    }

    /// The runs of a live log, ascending; `None` when they are not in memory.
    pub fn resident_runs(&self, log_id: LogId) -> Option<Vec<Extent>> {
        let live = self.live.read();
        let is_resident = live.logs.contains_key(&log_id) && live.index_at(log_id).is_err();
        is_resident.then(|| live.extents.of_log(log_id))
    }

    /// The runs of a live log, ascending. Blocks on the disk.
    pub fn runs_of_log(&self, log: &EntryLog) -> Result<Vec<Extent>, ReadError> {
        let live = self.live.read();
        if live.index_at(log.log_id()).is_err() {
            return Ok(live.extents.of_log(log.log_id()));
        }
        drop(live);
        log.read_extents()
    }

    /// Finds the newest copy of an entry. `None`: it is proven that there is none (IB7). Reads index records without a lock.
    pub fn find(&self, ledger: LedgerId, entry: EntryId) -> Result<Option<FoundEntry>, ReadError> {
        let mut leads = Vec::new();
        self.leads(ledger, entry, &mut leads);
        locate(&leads, ledger, entry, Generation(0))
    }

    /// Finds and reads an entry, verified.
    pub fn read(&self, ledger: LedgerId, entry: EntryId) -> Result<Option<Vec<u8>>, ReadError> {
        match self.find(ledger, entry)? {
            Some(found) => found.log.read(&found.location, ledger, entry).map(Some),
            None => Ok(None),
        }
    }

    /// Removes from `ledgers`, which ascend strictly, those of which any log has a run. False if time ran out before all logs were
    /// searched: the next call goes on where `search` stands, and searches logs that were added meanwhile, too. So the ledgers that are
    /// left in the end have no run in any log by then. Reads nothing, and holds no lock while it searches an index.
    pub fn retain_absent(
        &self,
        search: &mut RunSearch,
        ledgers: &mut Vec<LedgerId>,
        mut has_time: impl FnMut() -> bool,
    ) -> bool {
        if let Some(number) = search.richest.take_if(|_| !search.is_begun)
            && let Some(index) = self.live.read().order.get(&number).cloned()
        {
            search.look(number, &index, ledgers);
        }
        search.is_begun = true;
        while !ledgers.is_empty() {
            let live = self.live.read();
            let next = live.order.range(search.next..).next();
            let Some((number, index)) = next.map(|(number, index)| (*number, index.clone())) else {
                ledgers.retain(|ledger| live.extents.runs(*ledger).is_empty());
                return true;
            };
            drop(live);
            if !has_time() {
                return false;
            }
            search.next = number + 1;
            search.look(number, &index, ledgers);
        }
        true
    }

    /// Calls `visit` with each run that a log on disk has of `ledgers`, which ascend strictly, and the place of its ledger among them.
    /// False if the log is in memory, or not there. Reads nothing.
    pub fn visit_indexed(
        &self,
        log_id: LogId,
        ledgers: &[LedgerId],
        mut visit: impl FnMut(usize, IndexedRun),
    ) -> bool {
        let live = self.live.read();
        let Ok(at) = live.index_at(log_id) else { return false };
        let index = live.paged[at].index.clone();
        drop(live);
        index.visit_each(ledgers, |place, run| {
            visit(place, run);
            true
        });
        true
    }

    /// Bytes of the indexes of logs on disk, which cannot be paged out.
    pub fn index_bytes(&self) -> u64 {
        self.live.read().index_bytes
    }

    /// Bytes of all runs of a log on disk. `None` when it is in memory, or not there.
    pub fn bytes_on_disk(&self, log_id: LogId) -> Option<u64> {
        let live = self.live.read();
        let at = live.index_at(log_id).ok()?;
        Some(live.paged[at].index.run_bytes())
    }

    /// A run of a log on disk by its number. `None` when the log is in memory, or not there. Blocks on the disk.
    pub fn run_on_disk(&self, log_id: LogId, run: &IndexedRun) -> Option<Result<Extent, ReadError>> {
        let paged = {
            let live = self.live.read();
            live.paged[live.index_at(log_id).ok()?].clone()
        };
        Some(paged.extent(run.number, Patience::Wait).map_err(waited))
    }

    /// True if a log for which `asked` is true has a run of the ledger that reaches into `first..=last`. `asked` gets the log, and the
    /// highest generation that the run may have. Questions with one `scan` must ascend by ledger and first entry. Reads nothing.
    pub fn overlaps(
        &self,
        scan: &mut OverlapScan,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        asked: impl Fn(LogId, Generation) -> bool,
    ) -> bool {
        let live = self.live.read();
        let mut overlaps = false;
        live.extents.visit_overlapping(ledger, first, last, |run| {
            overlaps = overlaps || asked(run.log_id, run.generation);
        });
        scan.align(&live.paged);
        let mut walks = live.paged.iter().zip(&mut scan.walks);
        overlaps
            || walks.any(|(paged, (_, walk))| {
                asked(paged.log.log_id(), paged.newest()) && paged.index.reaches(walk, ledger, first, last)
            })
    }

    /// Some runs of a log on disk, from number `from` on: at most `count`. `None` when it is in memory, or not there.
    pub fn indexed_runs(&self, log_id: LogId, from: usize, count: usize) -> Option<Vec<IndexedRun>> {
        let live = self.live.read();
        let at = live.index_at(log_id).ok()?;
        let index = live.paged[at].index.clone();
        drop(live);
        Some(index.runs_from(from, count).collect())
    }

    /// Calls `visit` with each live log, ascending by id, and whether its extents stay on disk. The view is locked meanwhile, so `visit`
    /// must not use it.
    pub fn visit_logs(&self, mut visit: impl FnMut(&EntryLog, bool)) {
        let live = self.live.read();
        for (log_id, shown) in &live.logs {
            visit(&shown.log, live.index_at(*log_id).is_ok());
        }
    }

    /// The live logs, ascending.
    pub fn logs(&self) -> Vec<Arc<EntryLog>> {
        self.live.read().logs.values().map(|live| live.log.clone()).collect()
    }

    /// Number of runs in memory, and of runs on disk.
    pub fn run_counts(&self) -> (usize, usize) {
        let live = self.live.read();
        (live.extents.len(), live.paged.iter().map(|paged| paged.index.len()).sum())
    }

    /// Logs whose extents are on disk.
    pub fn paged_logs(&self) -> usize {
        self.live.read().paged.len()
    }
}

impl Drop for LogView {
    fn drop(&mut self) {
        self.pool.release(IndexUse::Extents, self.live.get_mut().charged);
    }
}
