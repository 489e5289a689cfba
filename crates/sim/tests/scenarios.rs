//! Scenarios from BookKeeper's history (R ids of `docs/reference/reliability.md`) and from our own simulator, as
//! scripts: seeds rot when code changes, scripts do not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_engine::{
    Add, AddDone, AddSink, EngineConfig, EntryRef, Lookup, Machine, Origin, Refusal, Waiter,
};
use bindery_io::{Disk, ManualClock, SeededRandom};
use bindery_sim::disk::{FaultKind, SimDisk, SimDiskConfig};
use bindery_types::{EntryId, LedgerId, MasterKey};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const KEY: MasterKey = MasterKey::new([1; 20]);
const OTHER_KEY: MasterKey = MasterKey::new([2; 20]);

type Outcome = Arc<Mutex<Option<Result<(), Refusal>>>>;

#[derive(Clone, Default)]
struct Answers(Arc<Mutex<Vec<AddDone>>>);
impl AddSink for Answers {
    fn on_adds_done(&self, done: &[AddDone]) {
        self.0.lock().extend_from_slice(done);
    }
}

/// A bookie stepped by hand.
struct Bookie {
    disk: Arc<SimDisk>,
    machine: Machine,
    answers: Answers,
}

fn config() -> EngineConfig {
    EngineConfig {
        journal_dir: PathBuf::from("/data/journal"),
        ledger_dirs: vec![PathBuf::from("/data/ledgers")],
        shard_count: 1,
        write_pool_bytes: 1 << 20,
        chunk_bytes: 64 << 10,
        journal_file_bytes: 32 << 10,
        group_bytes_max: 64 << 10,
        entry_bytes_max: 16 << 10,
        ..EngineConfig::default()
    }
}

fn start(disk: Arc<SimDisk>) -> Bookie {
    let clock = Arc::new(ManualClock::new(0));
    let machine = Machine::open(config(), disk.clone(), clock, Arc::new(SeededRandom::new(1))).unwrap();
    Bookie { disk, machine, answers: Answers::default() }
}

fn fresh() -> Bookie {
    let disk = Arc::new(SimDisk::new(SimDiskConfig::default(), &SeededRandom::new(7)));
    disk.create_dir_all(Path::new("/data")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    start(disk)
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
        assert_eq!(self.machine.engine.add_batch(0, &[add]), 1, "there is room");
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
        let Some(in_flight) = self.machine.journaling.cut() else { return };
        let written = self.machine.journaling.write(&in_flight);
        let mut done = self.machine.journaling.finish(in_flight, written);
        if let Some(ticket) = done.freeze.take()
            && let Ok(mark) = self.machine.flushing.flush(ticket)
        {
            self.machine.journaling.on_flushed(mark);
        }
        done.deliver(&self.answers);
    }

    fn flush(&mut self) {
        self.machine.want_freeze();
        self.group();
    }

    fn read(&self, id: i64, which: EntryRef) -> Result<Vec<u8>, Refusal> {
        match self.machine.engine.read(ledger(id), which)? {
            Lookup::Memory(body) => Ok(body.to_vec()),
            Lookup::Disk(read) => read.load(),
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
    let in_flight = bookie.machine.journaling.cut().unwrap();
    assert_eq!(*fenced.lock(), None, "cut, not written");
    let image = Bookie {
        disk: Arc::new(bookie.disk.durable_image()),
        ..start(Arc::new(bookie.disk.durable_image()))
    };
    assert!(
        !image.machine.engine.is_fenced(ledger(1)),
        "the record was not durable, and nobody was told it was"
    );
    let written = bookie.machine.journaling.write(&in_flight);
    assert_eq!(*fenced.lock(), None, "written, not finished");
    bookie.machine.journaling.finish(in_flight, written).deliver(&bookie.answers.clone());
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
    assert_eq!(*bookie.fence(2, KEY).lock(), Some(Err(Refusal::Io)));
    assert_eq!(bookie.read(1, EntryRef::Last), Ok(body(1, 0, 10)), "reads go on");
    assert!(!bookie.power_cut().machine.engine.is_fenced(ledger(2)));
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
