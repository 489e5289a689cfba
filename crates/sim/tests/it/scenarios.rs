//! Scenarios from BookKeeper's history (R ids of `docs/reference/reliability.md`) and from our own simulator, as
//! scripts: seeds rot when code changes, scripts do not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod checkpoint;
mod damage;
mod journals;
mod unsynced;

use bindery_engine::{
    Add, AddDone, AddSink, EngineConfig, EntryRef, FlushError, FreezeTicket, GroupTimes, LedgerPresence,
    Lookup, Machine, MetadataVerdict, OpenError, Origin, Refusal, SpaceConfig, Waiter, WantedCollection,
};
use bindery_io::{Disk, ManualClock, SeededRandom};
use bindery_sim::disk::{FaultKind, SimDisk, SimDiskConfig};
use bindery_types::{EntryId, LedgerId, MasterKey};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const KEY: MasterKey = MasterKey::new([1; 20]);
const OTHER_KEY: MasterKey = MasterKey::new([2; 20]);

type Outcome = Arc<Mutex<Option<Result<(), Refusal>>>>;

#[derive(Clone, Default)]
struct Answers(Arc<Mutex<Vec<AddDone>>>);
impl AddSink for Answers {
    fn on_adds_done(&self, _: &GroupTimes, shards: &[Vec<AddDone>]) {
        self.0.lock().extend(shards.iter().flatten());
    }
}

/// A bookie stepped by hand.
struct Bookie {
    disk: Arc<SimDisk>,
    machine: Machine,
    clock: Arc<ManualClock>,
    answers: Answers,
}

fn config() -> EngineConfig {
    EngineConfig {
        journal_dirs: vec![PathBuf::from("/data/journal")],
        ledger_dirs: vec![PathBuf::from("/data/ledgers")],
        shard_count: 1,
        write_pool_bytes: 1 << 20,
        chunk_bytes: 64 << 10,
        journal_file_bytes: 32 << 10,
        group_bytes_max: 64 << 10,
        entry_bytes_max: 16 << 10,
        // Files are counted right behind the step that replaces them.
        space: SpaceConfig {
            replaced_grace: Duration::ZERO,
            scrub_period: Duration::ZERO,
            ..SpaceConfig::default()
        },
        ..EngineConfig::default()
    }
}

fn open(config: EngineConfig, disk: &Arc<SimDisk>) -> Result<Bookie, OpenError> {
    let clock = Arc::new(ManualClock::new(0));
    let random = Arc::new(SeededRandom::new(1));
    let machine = Machine::open(config, disk.clone(), clock.clone(), random)?;
    Ok(Bookie { disk: disk.clone(), machine, clock, answers: Answers::default() })
}

fn start_with(config: EngineConfig, disk: Arc<SimDisk>) -> Bookie {
    open(config, &disk).unwrap()
}

fn start(disk: Arc<SimDisk>) -> Bookie {
    start_with(config(), disk)
}

fn new_disk() -> Arc<SimDisk> {
    let disk = Arc::new(SimDisk::new(SimDiskConfig::default(), &SeededRandom::new(7)));
    disk.create_dir_all(Path::new("/data")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    disk
}

fn fresh() -> Bookie {
    start(new_disk())
}

fn ledger(id: i64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}

fn body(ledger: i64, entry: i64, size: usize) -> Vec<u8> {
    let mut body = [ledger, entry, entry - 1, 0].map(i64::to_be_bytes).concat();
    body.resize(32 + size, entry as u8);
    body
}

impl Bookie {
    fn add(&self, id: i64, e: i64, size: usize, is_recovery: bool) {
        let body = body(id, e, size);
        let add = Add {
            origin: Origin { connection: 0, txn: e as u64, tag: 0 },
            ledger: ledger(id),
            entry: entry(e),
            last_add_confirmed: EntryId::new(e - 1),
            key: KEY,
            body: &body,
            is_recovery,
            is_high_priority: false,
        };
        let shard = self.machine.engine.shard_of(ledger(id));
        assert_eq!(self.machine.engine.add_batch(shard, &[add]), 1, "there is room");
    }

    fn fence(&self, id: i64, key: MasterKey) -> Outcome {
        let outcome = Outcome::default();
        let slot = outcome.clone();
        let waiter: Waiter = Box::new(move |result| *slot.lock() = Some(result));
        self.machine.engine.fence(ledger(id), key, waiter);
        outcome
    }

    /// One group: cut, write, finish, deliver; and the flush it asks for.
    fn group(&mut self) {
        let Some(in_flight) = self.machine.journals[0].cut() else { return };
        let written = self.machine.journals[0].write(&in_flight);
        let mut done = self.machine.journals[0].finish(in_flight, written);
        if let Some(ticket) = done.freeze.take()
            && let Ok(mark) = self.machine.flushing.flush(ticket)
        {
            self.machine.journals[0].on_flushed(mark);
        }
        done.deliver(&self.answers);
    }

    /// Freezes the write caches with a group, and leaves the flush to [`Bookie::end_flush`]. `None`: no freeze.
    fn begin_flush(&mut self) -> Option<FreezeTicket> {
        self.machine.want_freeze();
        let in_flight = self.machine.journals[0].cut()?;
        let written = self.machine.journals[0].write(&in_flight);
        let mut done = self.machine.journals[0].finish(in_flight, written);
        let ticket = done.freeze.take();
        done.deliver(&self.answers);
        ticket
    }

    fn end_flush(&mut self, ticket: FreezeTicket) -> Result<(), FlushError> {
        let mark = self.machine.flushing.flush(ticket)?;
        self.machine.journals[0].on_flushed(mark);
        Ok(())
    }

    fn flush(&mut self) {
        self.machine.want_freeze();
        self.group();
    }

    fn read(&self, id: i64, which: EntryRef) -> Result<Vec<u8>, Refusal> {
        match self.machine.engine.read(ledger(id), which)? {
            Lookup::Memory(body) => Ok(body.to_vec()),
            Lookup::Disk(read) => read.load(),
            Lookup::Tiered(_) => panic!("nothing is in object storage"),
            Lookup::Undurable(_) => panic!("{id} is not durable"),
        }
    }

    fn results(&self) -> Vec<(i64, Result<(), Refusal>)> {
        self.answers.0.lock().drain(..).map(|d| (d.entry.get(), d.result)).collect()
    }

    /// The power goes; nothing unsynced survives.
    fn power_cut(self) -> Bookie {
        start(Arc::new(self.disk.durable_image()))
    }
}

/// BookKeeper #4701: the first add and the first fence of a ledger, in either order, meet the same ledger state.
#[test]
fn r1_bk_4701_first_add_and_first_fence_share_one_ledger() {
    let mut bookie = fresh();
    bookie.add(1, 0, 10, false);
    let fenced = bookie.fence(1, KEY);
    bookie.add(1, 1, 10, false);
    bookie.group();
    assert_eq!(*fenced.lock(), Some(Ok(())));
    assert_eq!(bookie.read(1, EntryRef::Last), Ok(body(1, 0, 10)), "the fencing read sees the add before it");
    assert_eq!(bookie.results(), [(0, Ok(())), (1, Err(Refusal::Fenced))]);

    let fenced = bookie.fence(2, KEY);
    bookie.add(2, 0, 10, false);
    bookie.group();
    assert_eq!(*fenced.lock(), Some(Ok(())));
    assert_eq!(bookie.read(2, EntryRef::Last), Err(Refusal::NoEntry));
    assert_eq!(bookie.results(), [(0, Err(Refusal::Fenced))]);
}

/// By reading section 10.1: when the journal rolls to a new file and its sync fails, nothing of the group is
/// acknowledged, and everything acknowledged from the file before survives.
#[test]
fn r47_nothing_is_acknowledged_from_a_rolled_file_whose_sync_failed() {
    let mut bookie = fresh();
    for e in 0..4 {
        bookie.add(1, e, 6000, false);
        bookie.group();
    }
    assert_eq!(bookie.results().len(), 4);
    // The next group does not fit the file of 32 KiB any more.
    bookie.add(1, 4, 9000, false);
    bookie.disk.order_fault(FaultKind::SyncErrorNewData, None);
    bookie.group();
    assert_eq!(bookie.results(), [(4, Err(Refusal::ReadOnly))]);
    assert!(bookie.machine.engine.status().failed.is_some(), "the journal is latched");
    let bookie = bookie.power_cut();
    for e in 0..4 {
        assert_eq!(bookie.read(1, EntryRef::At(entry(e))), Ok(body(1, e, 6000)));
    }
}

/// By reading section 4.3: "no such entry" is an answer to a fence only after the fence record is durable.
#[test]
fn r48_a_negative_fence_answer_waits_for_the_record() {
    let mut bookie = fresh();
    bookie.add(1, 0, 10, false);
    bookie.group();
    let fenced = bookie.fence(1, KEY);
    let in_flight = bookie.machine.journals[0].cut().unwrap();
    assert_eq!(*fenced.lock(), None, "cut, not written");
    let image = Bookie {
        disk: Arc::new(bookie.disk.durable_image()),
        ..start(Arc::new(bookie.disk.durable_image()))
    };
    assert!(
        !image.machine.engine.is_fenced(ledger(1)),
        "the record was not durable, and nobody was told it was"
    );
    let written = bookie.machine.journals[0].write(&in_flight);
    assert_eq!(*fenced.lock(), None, "written, not finished");
    bookie.machine.journals[0].finish(in_flight, written).deliver(&bookie.answers.clone());
    assert_eq!(*fenced.lock(), Some(Ok(())));
    assert!(bookie.power_cut().machine.engine.is_fenced(ledger(1)));
}

/// By reading section 4.3: the fence of a ledger that this bookie never heard of survives a power cut, key included.
#[test]
fn r49_a_fence_on_an_unknown_ledger_survives_a_power_cut() {
    let mut bookie = fresh();
    let fenced = bookie.fence(9, KEY);
    bookie.group();
    assert_eq!(*fenced.lock(), Some(Ok(())));
    let mut bookie = bookie.power_cut();
    bookie.add(9, 0, 10, false);
    bookie.group();
    assert_eq!(bookie.results(), [(0, Err(Refusal::Fenced))]);
    assert_eq!(*bookie.fence(9, OTHER_KEY).lock(), Some(Err(Refusal::WrongKey)));
    assert_eq!(bookie.read(9, EntryRef::Last), Err(Refusal::NoEntry), "the ledger is known");
}

/// By reading section 4.4: after recovery adds of low entries the last entry is still the highest one on disk.
#[test]
fn r51_the_last_entry_is_the_highest_over_cache_and_disk() {
    let mut bookie = fresh();
    for e in 0..=10 {
        bookie.add(1, e, 10, false);
    }
    bookie.group();
    bookie.flush();
    bookie.add(1, 5, 10, true);
    bookie.group();
    assert_eq!(bookie.read(1, EntryRef::Last), Ok(body(1, 10, 10)));
    assert_eq!(bookie.read(1, EntryRef::At(entry(5))), Ok(body(1, 5, 10)));
}

/// Found by seed 1619 of the swarm: a cut without bytes after a failed write made the lost records count as durable,
/// so that a fence was answered which no restart remembered.
#[test]
fn nothing_becomes_durable_after_the_journal_failed() {
    let mut bookie = fresh();
    bookie.add(1, 0, 10, false);
    bookie.group();
    let first = bookie.fence(2, KEY);
    bookie.disk.order_fault(FaultKind::SyncErrorNewData, None);
    bookie.group();
    assert_eq!(*first.lock(), Some(Err(Refusal::Io)));
    // An add that is refused makes a cut without bytes.
    bookie.add(1, 1, 10, false);
    bookie.group();
    assert_eq!(bookie.read(1, EntryRef::Last), Ok(body(1, 0, 10)), "reads go on");
    // Past the journal a fence is answered when the state table has it, and no earlier (IB4).
    let second = bookie.fence(2, KEY);
    assert_eq!(*second.lock(), None);
    let left = Arc::new(bookie.disk.durable_image());
    assert!(!start(left).machine.engine.is_fenced(ledger(2)), "what was answered with an error is nowhere");
    bookie.machine.flushing.tend().unwrap();
    assert_eq!(*second.lock(), Some(Ok(())));
    assert!(bookie.power_cut().machine.engine.is_fenced(ledger(2)));
}

/// BookKeeper #4843: a fence that arrives while the write cache is empty is not forgotten by the next flush.
#[test]
fn r4_bk_4843_a_flush_without_entries_keeps_fences() {
    let mut bookie = fresh();
    for round in 0..6 {
        // Fills journal files, so that the one with the fence is reused.
        let fenced = bookie.fence(100 + round, KEY);
        bookie.group();
        bookie.flush();
        assert_eq!(*fenced.lock(), Some(Ok(())));
        bookie.add(1, round, 15_000, false);
        bookie.group();
        bookie.flush();
    }
    let bookie = bookie.power_cut();
    for round in 0..6 {
        assert!(bookie.machine.engine.is_fenced(ledger(100 + round)));
    }
}

/// Found by reading: an entry that is being added again was left out of the list, although its first copy is durable.
#[test]
fn an_entry_that_is_added_again_stays_in_the_list() {
    let mut bookie = fresh();
    bookie.add(1, 0, 10, false);
    bookie.add(1, 1, 10, false);
    bookie.group();
    bookie.add(1, 1, 10, true);
    let runs = bookie.machine.engine.list_entries(ledger(1)).unwrap();
    let ends: Vec<_> = runs.iter().map(|run| (run.first.get(), run.last.get())).collect();
    assert_eq!(ends, [(0, 1)]);
}

fn waiter(outcome: &Outcome) -> Waiter {
    let slot = outcome.clone();
    Box::new(move |result| *slot.lock() = Some(result))
}

impl Bookie {
    fn remove(&self, id: i64) -> Outcome {
        let outcome = Outcome::default();
        self.machine.engine.remove_ledger(ledger(id), waiter(&outcome));
        outcome
    }

    fn revive(&self, id: i64) -> Outcome {
        let outcome = Outcome::default();
        self.machine.engine.revive_ledger(ledger(id), KEY, waiter(&outcome));
        outcome
    }

    /// One collection with a major compaction, to its end.
    fn collect(&mut self) {
        self.machine.engine.want_collection(WantedCollection { minor: false, major: true });
        for _ in 0..1000 {
            self.clock.advance(Duration::from_secs(1));
            match self.machine.flushing.tend() {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
        panic!("the collection does not end");
    }

    fn log_files(&self) -> Vec<String> {
        let files = self.disk.list(Path::new("/data/ledgers")).unwrap();
        files.into_iter().map(|file| file.name).filter(|name| name.ends_with(".elog")).collect()
    }

    fn presence(&self, id: i64) -> LedgerPresence {
        self.machine.engine.presence(ledger(id))
    }
}

/// BookKeeper #4462: a stale writer does not bring a ledger back that was fenced, deleted and collected; also after restarts, and when
/// only the rule is left that adds of its id ask metadata first.
#[test]
fn r20_bk_4462_a_ledger_fenced_and_removed_stays_refused() {
    let mut bookie = fresh();
    bookie.add(1, 0, 10, false);
    bookie.fence(1, KEY);
    bookie.group();
    bookie.flush();
    let removed = bookie.remove(1);
    assert_eq!(*removed.lock(), None, "not durable yet");
    bookie.group();
    assert_eq!(*removed.lock(), Some(Ok(())));
    bookie.results();
    for round in 0..2 {
        assert_eq!(bookie.read(1, EntryRef::At(entry(0))), Err(Refusal::NoLedger), "round {round}");
        assert_eq!(bookie.presence(1), LedgerPresence::Removed, "round {round}");
        bookie.add(1, 1, 10, false);
        bookie.add(1, 2, 10, true);
        let fenced = bookie.fence(1, KEY);
        bookie.group();
        assert_eq!(bookie.results(), [(1, Err(Refusal::Fenced)), (2, Err(Refusal::Fenced))]);
        assert_eq!(*fenced.lock(), Some(Ok(())), "answered by the read behind it: no such ledger");
        bookie = bookie.power_cut();
    }
    bookie.flush();
    bookie.collect();
    bookie.collect();
    assert!(bookie.log_files().is_empty(), "{:?}", bookie.log_files());
    for round in 0..2 {
        assert_eq!(bookie.read(1, EntryRef::At(entry(0))), Err(Refusal::NoLedger), "round {round}");
        assert_eq!(bookie.presence(1), LedgerPresence::Unknown, "round {round}");
        bookie.add(1, 1, 10, false);
        bookie.group();
        assert_eq!(bookie.results(), [(1, Err(Refusal::Unknown))], "round {round}");
        bookie = bookie.power_cut();
    }
}

/// A ledger that was never fenced is refused too until nothing mentions it any more. A fence that comes meanwhile holds for good: when
/// the ledger is forgotten, metadata speaks for the fence, and without its word a late add is refused.
#[test]
fn r20_a_fence_on_a_removed_ledger_holds_when_the_ledger_is_forgotten() {
    let mut bookie = fresh();
    for id in [1, 2] {
        bookie.add(id, 0, 10, false);
    }
    bookie.group();
    bookie.flush();
    bookie.remove(1);
    bookie.remove(2);
    let fenced = bookie.fence(2, KEY);
    assert_eq!(*fenced.lock(), None);
    bookie.group();
    assert_eq!(*fenced.lock(), Some(Ok(())));
    bookie.flush();
    bookie.collect();
    bookie.collect();
    assert_eq!((bookie.presence(1), bookie.presence(2)), (LedgerPresence::Unknown, LedgerPresence::Unknown));
    let mut bookie = bookie.power_cut();
    assert_eq!((bookie.presence(1), bookie.presence(2)), (LedgerPresence::Unknown, LedgerPresence::Unknown));
    bookie.add(2, 1, 10, false);
    bookie.group();
    assert_eq!(bookie.results(), [(1, Err(Refusal::Unknown))]);
}

/// BookKeeper #4840: an explicit LAC does not bring a removed ledger back.
#[test]
fn r6_bk_4840_an_explicit_lac_does_not_bring_a_ledger_back() {
    let mut bookie = fresh();
    bookie.add(1, 0, 10, false);
    bookie.group();
    bookie.remove(1);
    let stored = Outcome::default();
    let body = [1i64, 0, 0].map(i64::to_be_bytes).concat();
    bookie.machine.engine.write_lac(ledger(1), KEY, Some(entry(0)), &body, waiter(&stored));
    assert_eq!(*stored.lock(), Some(Err(Refusal::NoLedger)));
    bookie.group();
    let bookie = bookie.power_cut();
    assert_eq!(bookie.presence(1), LedgerPresence::Removed);
    assert_eq!(bookie.machine.engine.explicit_lac(ledger(1)), Err(Refusal::NoLedger));
}

/// BookKeeper #1757: the flush of what was added before does not bring a removed ledger back, and readers that wait
/// for it are told.
#[test]
fn r22_bk_1757_a_flush_under_way_does_not_bring_a_ledger_back() {
    let mut bookie = fresh();
    bookie.add(1, 0, 10, false);
    bookie.add(2, 0, 10, false);
    bookie.group();
    bookie.machine.want_freeze();
    let in_flight = bookie.machine.journals[0].cut().unwrap();
    let written = bookie.machine.journals[0].write(&in_flight);
    let ticket = bookie.machine.journals[0].finish(in_flight, written).freeze.unwrap();
    let polled = Outcome::default();
    bookie.machine.engine.poll_lac(ledger(1), Some(entry(5)), waiter(&polled)).unwrap();
    bookie.remove(1);
    bookie.group();
    assert_eq!(*polled.lock(), Some(Ok(())), "look again: there is no such ledger");
    let mark = bookie.machine.flushing.flush(ticket).unwrap();
    bookie.machine.journals[0].on_flushed(mark);
    assert_eq!(bookie.read(1, EntryRef::At(entry(0))), Err(Refusal::NoLedger));
    let mut bookie = bookie.power_cut();
    assert_eq!(bookie.presence(1), LedgerPresence::Removed);
    bookie.flush();
    bookie.collect();
    assert_eq!(bookie.read(2, EntryRef::At(entry(0))), Ok(body(2, 0, 10)));
}

/// A removal hides older copies only: entries that repair adds after the ledger came back are shown, also after
/// restarts.
#[test]
fn a_ledger_that_comes_back_shows_what_is_newer_and_nothing_older() {
    let mut bookie = fresh();
    bookie.add(1, 0, 10, false);
    bookie.add(1, 1, 10, false);
    bookie.group();
    bookie.flush();
    bookie.remove(1);
    let revived = bookie.revive(1);
    bookie.add(1, 1, 20, true);
    bookie.group();
    assert_eq!(*revived.lock(), Some(Ok(())));
    for round in 0..5 {
        assert_eq!(bookie.read(1, EntryRef::At(entry(0))), Err(Refusal::NoEntry), "round {round}");
        assert_eq!(bookie.read(1, EntryRef::Last), Ok(body(1, 1, 20)), "round {round}");
        let runs = bookie.machine.engine.list_entries(ledger(1)).unwrap();
        assert_eq!(runs.iter().map(|run| (run.first.get(), run.last.get())).collect::<Vec<_>>(), [(1, 1)]);
        match round {
            0 | 3 => bookie = bookie.power_cut(),
            1 => bookie.flush(),
            _ => bookie.collect(),
        }
    }
}

/// BookKeeper #1534: at whichever disk operation of a compaction the power goes, every entry is there afterwards, in
/// one place (IB15, IB18), and no file is left over.
#[test]
fn r21_bk_1534_a_crash_anywhere_in_a_compaction_loses_nothing() {
    let prepare = || {
        let mut bookie = fresh();
        for flush in 0..3 {
            for id in 0..3 {
                bookie.add(id, flush, 200, false);
            }
            bookie.add(9, flush, 3000, false);
            // Overtaken by the next flush.
            bookie.add(5, 0, 100 + flush as usize, false);
            bookie.group();
            bookie.flush();
        }
        bookie.remove(9);
        bookie.group();
        bookie.flush();
        bookie
    };
    let check = |bookie: &Bookie, when: &str| {
        for id in 0..3 {
            for e in 0..3 {
                assert_eq!(bookie.read(id, EntryRef::At(entry(e))), Ok(body(id, e, 200)), "{when}");
            }
        }
        assert_eq!(bookie.read(5, EntryRef::Last), Ok(body(5, 0, 102)), "{when}");
        assert_eq!(bookie.read(9, EntryRef::Last), Err(Refusal::NoLedger), "{when}");
    };
    let (mut before, mut after) = (0, 0);
    for operations in 0..1000 {
        let mut bookie = prepare();
        assert_eq!(bookie.log_files().len(), 3);
        bookie.disk.crash_after(operations);
        bookie.collect();
        let is_over = !bookie.disk.is_off();
        if is_over {
            check(&bookie, "without a crash");
            assert_eq!(bookie.log_files().len(), 1, "three logs became one");
        }
        for seed in 0..4 {
            let left = bookie.disk.crash(&SeededRandom::new(operations * 10 + seed));
            let restarted = start(Arc::new(left));
            check(&restarted, &format!("crash at operation {operations}, seed {seed}"));
            match restarted.log_files().len() {
                1 => after += 1,
                3 => before += 1,
                files => panic!("{files} files after a crash at operation {operations}"),
            }
        }
        if is_over {
            assert!(before > 20 && after > 20, "{before} before, {after} after");
            return;
        }
    }
    panic!("the compaction does not end");
}

/// Three logs with one small living entry each (ledgers 1 to 3) beside a large one whose ledger was removed.
fn three_poor_logs() -> Bookie {
    let mut bookie = fresh();
    for id in 1..=3 {
        bookie.add(id, 0, 200, false);
        bookie.add(90 + id, 0, 5000, false);
        bookie.group();
        bookie.flush();
    }
    (91..=93).for_each(|id| drop(bookie.remove(id)));
    bookie.group();
    bookie.flush();
    bookie
}

/// A full disk that refuses the end of an output gets back what the attempt took, or each collection would leave
/// another file until the next start.
#[test]
fn an_output_that_cannot_be_finished_leaves_no_file() {
    let mut bookie = three_poor_logs();
    for errors in 1..=2 {
        let output = Path::new("/data/ledgers").join(format!("{:016x}.elog", 2 + errors));
        bookie.disk.order_fault(FaultKind::SyncNoSpace, Some(&output));
        bookie.collect();
        let status = bookie.machine.engine.space_status();
        assert_eq!((status.errors, status.logs_rewritten), (errors, 0), "{status:?}");
        assert_eq!(bookie.log_files().len(), 3);
    }
    bookie.collect();
    assert_eq!(bookie.log_files().len(), 1, "the disk has room again");
    for id in 1..=3 {
        assert_eq!(bookie.read(id, EntryRef::At(entry(0))), Ok(body(id, 0, 200)));
    }
}

/// Adds that always wait for room slow compaction down, and do not stop it: it is what gives room back.
#[test]
fn compaction_goes_on_slowly_under_adds_that_always_wait() {
    let mut bookie = three_poor_logs();
    bookie.machine.engine.when_room(0, &[], Box::new(|_| {}));
    bookie.machine.engine.want_collection(WantedCollection { minor: false, major: true });
    let mut seconds = 0;
    while bookie.log_files().len() > 1 {
        seconds += 1;
        assert!(seconds < 20, "{:?}", bookie.machine.engine.space_status());
        bookie.clock.advance(Duration::from_secs(1));
        bookie.machine.flushing.tend().unwrap();
    }
}

/// BookKeeper #4596: one damaged log is skipped and reported, the others are collected; it stays, and so does what can
/// be read of it.
#[test]
fn r27_bk_4596_a_damaged_log_does_not_stop_the_collection() {
    let mut bookie = fresh();
    for id in 1..=3 {
        bookie.add(id, 0, 200, false);
        bookie.add(id, 1, 200, false);
        bookie.add(90 + id, 0, 5000, false);
        bookie.group();
        bookie.flush();
    }
    (91..=93).for_each(|id| drop(bookie.remove(id)));
    bookie.group();
    bookie.flush();
    let path = Path::new("/data/ledgers").join(&bookie.log_files()[1]);
    // Inside the first body.
    bookie.disk.flip_bits(&path, 4096 + 100, 1).unwrap();
    bookie.collect();
    let status = bookie.machine.engine.space_status();
    assert_eq!((status.logs_rewritten, status.skipped.len()), (2, 1), "{status:?}");
    assert!(status.skipped[0].1.contains("checksum"), "{status:?}");
    assert_eq!(bookie.log_files().len(), 2, "the damaged one and the new one");
    for id in [1, 3] {
        assert_eq!(bookie.read(id, EntryRef::At(entry(0))), Ok(body(id, 0, 200)));
    }
    assert_eq!(bookie.read(2, EntryRef::At(entry(0))), Err(Refusal::Io));
    assert_eq!(bookie.read(2, EntryRef::At(entry(1))), Ok(body(2, 1, 200)));
    // It is dropped without being read once nothing in it is live.
    bookie.remove(2);
    bookie.group();
    bookie.flush();
    bookie.collect();
    assert_eq!(bookie.log_files().len(), 1);
}

/// BookKeeper #4544, #4607: ledger 0 is a ledger like any other, and a log is dropped only when nothing in it is live.
#[test]
fn r28_bk_4544_ledger_0_keeps_its_log() {
    let mut bookie = fresh();
    bookie.add(0, 0, 10, false);
    bookie.add(1, 0, 5000, false);
    bookie.group();
    bookie.flush();
    bookie.remove(1);
    bookie.group();
    bookie.flush();
    bookie.collect();
    assert_eq!(bookie.machine.engine.space_status().logs_rewritten, 1);
    assert_eq!(bookie.read(0, EntryRef::Last), Ok(body(0, 0, 10)));
    bookie.remove(0);
    bookie.collect();
    assert_eq!(bookie.log_files().len(), 1, "a removal that is not committed drops nothing");
    bookie.group();
    bookie.flush();
    bookie.collect();
    assert!(bookie.log_files().is_empty());
}

/// A ledger that was deleted and created again under its id, after metadata was read for a removal and before the
/// removal was placed, keeps what was acknowledged in between.
#[test]
fn a_removal_decided_before_the_ledger_was_created_again_is_dropped() {
    let mut bookie = fresh();
    bookie.add(1, 0, 10, false);
    bookie.group();
    let seen = bookie.machine.engine.changes(ledger(1));
    // Metadata is read: absent. Then it is created again.
    bookie.add(1, 1, 10, false);
    bookie.group();
    let removed = Outcome::default();
    assert!(!bookie.machine.engine.remove_unchanged(ledger(1), seen, waiter(&removed)));
    assert_eq!(bookie.read(1, EntryRef::Last), Ok(body(1, 1, 10)));
    let seen = bookie.machine.engine.changes(ledger(1));
    assert!(bookie.machine.engine.remove_unchanged(ledger(1), seen, waiter(&removed)));
    bookie.group();
    assert_eq!((*removed.lock(), bookie.presence(1)), (Some(Ok(())), LedgerPresence::Removed));
}

impl Bookie {
    fn set_limbo(&self, id: i64, is_limbo: bool) -> Outcome {
        let outcome = Outcome::default();
        self.machine.engine.set_limbo(ledger(id), is_limbo, waiter(&outcome));
        outcome
    }
}

/// IB27: an older record of the ledger, in the directory that was its own when there were fewer shards, does not bring
/// the mark back that was taken.
#[test]
fn the_end_of_limbo_outlives_an_older_mark_in_another_directory() {
    let with_shards = |shard_count| EngineConfig {
        ledger_dirs: vec![PathBuf::from("/data/ledgers0"), PathBuf::from("/data/ledgers1")],
        shard_count,
        ..config()
    };
    let mut bookie = start_with(with_shards(2), new_disk());
    let before = |id: i64| bookie.machine.engine.shard_of(ledger(id)) % 2;
    let three = start_with(with_shards(3), new_disk());
    let moves = (0..50).find(|id| before(*id) != three.machine.engine.shard_of(ledger(*id)) % 2).unwrap();
    let marked = bookie.set_limbo(moves, true);
    bookie.group();
    assert_eq!(*marked.lock(), Some(Ok(())));
    bookie.flush();
    let mut bookie = start_with(with_shards(3), Arc::new(bookie.disk.durable_image()));
    assert_eq!(bookie.machine.engine.limbo_ledgers(), [ledger(moves)]);
    let taken = bookie.set_limbo(moves, false);
    bookie.group();
    assert_eq!(*taken.lock(), Some(Ok(())));
    bookie.flush();
    let bookie = start_with(with_shards(3), Arc::new(bookie.disk.durable_image()));
    assert_eq!(bookie.machine.engine.limbo_ledgers(), []);
    assert_eq!(bookie.read(moves, EntryRef::At(entry(0))), Err(Refusal::NoEntry));
}

/// IB27: an entry that is being copied back, with runs of the ledger on disk around it, is unknown until it is durable.
#[test]
fn a_copy_on_its_way_into_limbo_reads_as_unknown() {
    let mut bookie = fresh();
    bookie.add(1, 0, 10, false);
    bookie.add(1, 4, 10, false);
    bookie.group();
    bookie.flush();
    let _ = bookie.set_limbo(1, true);
    bookie.group();
    bookie.add(1, 2, 10, true);
    // Its record is in the group that is forming.
    let found = match bookie.machine.engine.read(ledger(1), EntryRef::At(entry(2))) {
        Ok(Lookup::Disk(read)) => read.load(),
        Ok(Lookup::Tiered(_)) => panic!("nothing is in object storage"),
        Ok(Lookup::Undurable(_)) | Err(Refusal::Unknown) => Err(Refusal::Unknown),
        Ok(Lookup::Memory(_)) => panic!("it is not durable"),
        Err(other) => Err(other),
    };
    assert_eq!(found, Err(Refusal::Unknown));
    bookie.group();
    assert_eq!(bookie.read(1, EntryRef::At(entry(2))), Ok(body(1, 2, 10)));
    assert_eq!(bookie.read(1, EntryRef::Last), Err(Refusal::Unknown));
    assert_eq!(bookie.machine.engine.last_add_confirmed(ledger(1)), Err(Refusal::Unknown));
}

/// R12, R10, IB28 in the engine: with empty disks every ledger that metadata had is in limbo, and a writer waits for a
/// word; a removed ledger comes back for a recovery, into limbo (IB17, BookKeeper #4668).
#[test]
fn r12_bk_2612_empty_disks_deny_nothing_and_believe_no_writer() {
    let fresh_under_known_id =
        EngineConfig { limbo_up_to: Some(ledger(5)), checked_up_to: Some(ledger(5)), ..config() };
    let mut bookie = start_with(fresh_under_known_id, new_disk());
    assert_eq!(bookie.read(3, EntryRef::At(entry(0))), Err(Refusal::Unknown));
    assert_eq!(bookie.read(6, EntryRef::At(entry(0))), Err(Refusal::NoLedger), "it did not exist then");
    bookie.add(3, 1, 10, false);
    bookie.add(6, 0, 10, false);
    bookie.group();
    assert_eq!(bookie.results(), [(1, Err(Refusal::Unknown)), (0, Ok(()))]);
    let engine = bookie.machine.engine.clone();
    let word = |word| engine.on_verdict(ledger(3), KEY, false, word);
    assert_eq!(word(MetadataVerdict::Silent), Err(Refusal::Unknown));
    assert_eq!(word(MetadataVerdict::OpenElsewhere), Err(Refusal::Unknown));
    assert_eq!(
        (word(MetadataVerdict::Ended), word(MetadataVerdict::Absent)),
        (Err(Refusal::Fenced), Err(Refusal::Fenced))
    );
    assert_eq!(word(MetadataVerdict::OpenHere), Ok(()));
    bookie.add(3, 1, 10, false);
    bookie.group();
    assert_eq!(bookie.results(), [(1, Ok(()))]);
    let _ = bookie.set_limbo(3, true);
    bookie.group();
    engine.end_cover();
    assert_eq!(bookie.read(3, EntryRef::At(entry(0))), Err(Refusal::Unknown), "its mark");
    assert_eq!(bookie.read(4, EntryRef::At(entry(0))), Err(Refusal::NoLedger), "metadata did not name us");
    bookie.add(3, 2, 10, false);
    bookie.group();
    assert_eq!(bookie.results(), [(2, Err(Refusal::Unknown))], "the word was before the mark");

    let removed = bookie.remove(6);
    bookie.group();
    assert_eq!(*removed.lock(), Some(Ok(())));
    assert_eq!(engine.on_verdict(ledger(6), KEY, true, MetadataVerdict::Absent), Err(Refusal::Fenced));
    assert_eq!(engine.on_verdict(ledger(6), KEY, true, MetadataVerdict::Ended), Ok(()));
    bookie.add(6, 1, 10, true);
    bookie.group();
    let bookie = bookie.power_cut();
    assert_eq!(bookie.read(6, EntryRef::At(entry(1))), Ok(body(6, 1, 10)));
    assert_eq!(bookie.read(6, EntryRef::At(entry(0))), Err(Refusal::Unknown), "a copy before the removal");
}
