//! Copies that are taken past the journal: what is shown when, each refusal, and what a restart finds.

use bindery_engine::{
    Add, AddDone, AddSink, Engine, EngineConfig, EntryRef, EntryRun, GroupTimes, INGEST_ENTRIES_MAX,
    INGEST_LEDGERS_MAX, INGEST_LOGS_MAX, INGESTS_MAX, Ingest, IngestError, Lookup, Machine, Origin, Poll,
    Refusal, SpaceConfig,
};
use bindery_io::{RealDisk, SystemClock, SystemRandom};
use bindery_types::{EntryId, LedgerId, MasterKey};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use tempfile::TempDir;

const KEY: MasterKey = MasterKey::new([1; 20]);

struct Nobody;
impl AddSink for Nobody {
    fn on_adds_done(&self, _: &GroupTimes, shards: &[Vec<AddDone>]) {
        assert!(shards.iter().flatten().all(|done| done.result.is_ok()), "{shards:?}");
    }
}

fn ledger(id: i64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}

/// An entry whose LAC (last add confirmed) is the one before.
fn body(ledger: i64, entry: i64) -> Vec<u8> {
    let mut body = [ledger, entry, entry - 1, 0].map(i64::to_be_bytes).concat();
    body.extend(format!("entry {entry} of ledger {ledger}").into_bytes());
    body
}

fn config(dir: &Path) -> EngineConfig {
    EngineConfig {
        journal_dirs: vec![dir.join("journal")],
        ledger_dirs: vec![dir.join("ledgers0"), dir.join("ledgers1")],
        ledger_volumes: vec![0, 0],
        shard_count: 2,
        write_pool_bytes: 8 << 20,
        chunk_bytes: 256 << 10,
        entry_bytes_max: 128 << 10,
        journal_file_bytes: 4 << 20,
        group_bytes_max: 1 << 20,
        space: SpaceConfig { merge_fan_in: 0, ..SpaceConfig::default() },
        ..EngineConfig::default()
    }
}

/// An engine that is stepped by hand.
struct Bookie {
    machine: Machine,
    dir: TempDir,
}

type Outcome = Arc<Mutex<Option<Result<(), IngestError>>>>;

impl Bookie {
    fn new() -> Bookie {
        let dir = tempfile::tempdir().unwrap();
        Bookie { machine: Bookie::open(dir.path()), dir }
    }

    /// With ledger 1 here, in limbo and flushed, as a repair finds it.
    fn with_ledger() -> Bookie {
        let mut bookie = Bookie::new();
        bookie.begin(1);
        bookie.flush();
        bookie
    }

    fn open(dir: &Path) -> Machine {
        let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
        Machine::open(config(dir), Arc::new(RealDisk::new()), clock, random).unwrap()
    }

    /// As after a kill of the process.
    fn restart(self) -> Bookie {
        let Bookie { machine, dir } = self;
        drop(machine);
        Bookie { machine: Bookie::open(dir.path()), dir }
    }

    fn engine(&self) -> &Engine {
        &self.machine.engine
    }

    fn begin(&mut self, id: i64) {
        self.engine().set_limbo(ledger(id), true, Box::new(|done| assert_eq!(done, Ok(()))));
        self.group();
    }

    fn sound(&mut self, id: i64) {
        self.engine().set_limbo(ledger(id), false, Box::new(|done| assert_eq!(done, Ok(()))));
        self.group();
    }

    fn add(&self, id: i64, e: i64) {
        let body = body(id, e);
        let add = Add {
            origin: Origin { connection: 0, txn: e as u64, tag: 0 },
            ledger: ledger(id),
            entry: entry(e),
            last_add_confirmed: EntryId::new(e - 1),
            key: KEY,
            body: &body,
            is_recovery: true,
            is_high_priority: true,
        };
        let shard = self.engine().shard_of(ledger(id));
        assert_eq!(self.engine().add_batch(shard, &[add]), 1, "there is room");
    }

    /// A group, and the flush that it calls for.
    fn group(&mut self) {
        let Machine { journals, flushing, .. } = &mut self.machine;
        let Some(in_flight) = journals[0].cut() else { return };
        let written = journals[0].write(&in_flight);
        let mut done = journals[0].finish(in_flight, written);
        if let Some(ticket) = done.freeze.take() {
            let flushed = flushing.flush(ticket).unwrap();
            journals[0].on_flushed(flushed);
        }
        done.deliver(&Nobody);
    }

    fn flush(&mut self) {
        self.group();
        self.machine.want_freeze();
        self.group();
    }

    fn ingest(&self, id: i64, entries: impl IntoIterator<Item = i64>) -> Ingest {
        let mut ingest = self.engine().begin_ingest(ledger(id)).unwrap();
        for e in entries {
            ingest.append(ledger(id), entry(e), &body(id, e)).unwrap();
        }
        ingest
    }

    fn ask(&self, ingest: Ingest) -> Outcome {
        let outcome = Outcome::default();
        let told = outcome.clone();
        let sealed = ingest.seal().unwrap();
        self.engine().commit_ingest(sealed, Box::new(move |done| *told.lock() = Some(done)));
        outcome
    }

    fn tend(&mut self) {
        let _ = self.machine.flushing.tend().unwrap();
    }

    fn commit(&mut self, ingest: Ingest) -> Result<(), IngestError> {
        let outcome = self.ask(ingest);
        self.tend();
        let done = outcome.lock().take();
        done.expect("nothing keeps it waiting")
    }

    fn read(&self, id: i64, which: EntryRef) -> Result<Vec<u8>, Refusal> {
        match self.engine().read(ledger(id), which)? {
            Lookup::Memory(body) => Ok(body.to_vec()),
            Lookup::Disk(read) => read.load(),
            Lookup::Tiered(_) | Lookup::Undurable(_) => panic!("{id} {which:?} is elsewhere"),
        }
    }

    fn at(&self, id: i64, e: i64) -> Result<Vec<u8>, Refusal> {
        self.read(id, EntryRef::At(entry(e)))
    }

    fn held(&self, id: i64) -> Vec<(i64, i64)> {
        let runs = self.engine().held_entries(ledger(id), EntryId::FIRST, EntryId::MAX).unwrap();
        runs.iter().map(|EntryRun { first, last }| (first.get(), last.get())).collect()
    }

    fn log_files(&self) -> usize {
        let dirs = ["ledgers0", "ledgers1"].map(|name| self.dir.path().join(name));
        let names = dirs.iter().flat_map(|dir| std::fs::read_dir(dir).unwrap());
        names.filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|e| e == "elog")).count()
    }

    /// Ledger 1 has these entries, and every kind of request says so.
    fn check(&mut self, last: i64, runs: &[(i64, i64)], when: &str) {
        assert_eq!(self.held(1), runs, "{when}");
        for e in runs.iter().flat_map(|(first, last)| *first..=*last) {
            assert_eq!(self.at(1, e), Ok(body(1, e)), "{when}");
        }
        assert_eq!(self.read(1, EntryRef::Last), Ok(body(1, last)), "{when}");
        assert_eq!(self.engine().last_add_confirmed(ledger(1)), Ok(EntryId::new(last - 1)), "{when}");
    }
}

#[test]
fn nothing_is_shown_before_the_commit_and_everything_after_it_and_after_a_restart() {
    let mut bookie = Bookie::with_ledger();
    let ingest = bookie.ingest(1, (0..10).chain(20..25));
    assert_eq!(ingest.entries(), 15);
    let sealed = ingest.seal().unwrap();
    assert_eq!((bookie.at(1, 3), bookie.held(1)), (Err(Refusal::Unknown), vec![]));
    let outcome = Outcome::default();
    let told = outcome.clone();
    bookie.engine().commit_ingest(sealed, Box::new(move |done| *told.lock() = Some(done)));
    assert_eq!((bookie.at(1, 3), outcome.lock().clone()), (Err(Refusal::Unknown), None));
    bookie.tend();
    assert_eq!(outcome.lock().take(), Some(Ok(())));
    let runs = [(0, 9), (20, 24)];
    bookie.sound(1);
    bookie.check(24, &runs, "at once");
    assert_eq!(bookie.at(1, 12), Err(Refusal::NoEntry));
    assert_eq!(bookie.engine().stats().ingested_entries, 15);
    let mut bookie = bookie.restart();
    bookie.check(24, &runs, "after a restart");
    bookie.flush();
    let mut bookie = bookie.restart();
    bookie.check(24, &runs, "after a flush and another restart");
}

#[test]
fn nothing_is_left_of_an_ingest_that_is_dropped_or_cut_short() {
    let bookie = Bookie::with_ledger();
    let before = bookie.log_files();
    drop(bookie.ingest(1, 0..5));
    drop(bookie.ingest(1, 0..5).seal().unwrap());
    assert_eq!(bookie.log_files(), before, "at once");
    bookie.ingest(1, 0..5).leave();
    bookie.ingest(1, 0..5).seal().unwrap().leave();
    let asked = bookie.ask(bookie.ingest(1, 0..5));
    assert_eq!(bookie.log_files(), before + 3);
    let mut bookie = bookie.restart();
    assert_eq!((bookie.log_files(), bookie.held(1), asked.lock().clone()), (before, vec![], None));
    let ingest = bookie.ingest(1, 0..5);
    assert_eq!(bookie.commit(ingest), Ok(()));
}

#[test]
fn ledgers_come_in_any_order_and_a_few_of_them_cost_a_log_more() {
    let mut bookie = Bookie::with_ledger();
    for id in 2..9 {
        bookie.begin(id);
    }
    bookie.flush();
    let before = bookie.log_files();
    let mut ingest = bookie.engine().begin_ingest(ledger(5)).unwrap();
    let mut append = |id: i64, e: i64| ingest.append(ledger(id), entry(e), &body(id, e));
    for (id, e) in [(5, 0), (7, 0), (3, 0), (5, 1), (4, 0), (7, 1), (1, 5), (3, 1)] {
        assert_eq!(append(id, e), Ok(()), "{id}:{e}");
    }
    assert_eq!(bookie.commit(ingest), Ok(()));
    assert_eq!(bookie.log_files(), before + 4);
    let check = |bookie: &Bookie| {
        for (id, runs) in [(1, [(5, 5)]), (3, [(0, 1)]), (4, [(0, 0)]), (5, [(0, 1)]), (7, [(0, 1)])] {
            assert_eq!(bookie.held(id), runs, "{id}");
            assert_eq!(bookie.at(id, runs[0].1), Ok(body(id, runs[0].1)));
        }
    };
    check(&bookie);
    check(&bookie.restart());
}

#[test]
fn what_an_ingest_must_not_have_is_refused_and_the_rest_goes_on() {
    let mut bookie = Bookie::with_ledger();
    bookie.begin(2);
    bookie.flush();
    let mut ingest = bookie.engine().begin_ingest(ledger(1)).unwrap();
    let one = ledger(1);
    assert_eq!(ingest.append(ledger(9), entry(0), &body(9, 0)), Err(IngestError::NoLedger(ledger(9))));
    let bad = |error| matches!(error, Err(IngestError::BadBody { .. }));
    assert!(bad(ingest.append(one, entry(0), &body(2, 0))), "another ledger's");
    assert!(bad(ingest.append(one, entry(0), &body(1, 1))), "another entry's");
    assert!(bad(ingest.append(one, entry(0), &body(1, 0)[..23])), "too short");
    assert!(bad(ingest.append(one, entry(0), &vec![0; (128 << 10) + 1])), "too long");
    assert_eq!(ingest.append(one, entry(4), &body(1, 4)), Ok(()));
    for e in [4, 3] {
        let (entry, after) = (entry(e), entry(4));
        let expected = Err(IngestError::NotAscending { ledger: one, entry, after });
        assert_eq!(ingest.append(one, entry, &body(1, e)), expected);
    }
    let mut other = bookie.engine().begin_ingest(one).unwrap();
    assert_eq!(other.append(one, entry(9), &body(1, 9)), Err(IngestError::Busy(one)));
    assert_eq!(other.append(ledger(2), entry(9), &body(2, 9)), Ok(()));
    assert_eq!(bookie.commit(ingest), Ok(()));
    assert_eq!(other.append(one, entry(9), &body(1, 9)), Ok(()), "the first has ended");
    assert_eq!(bookie.commit(other), Ok(()));
    assert_eq!((bookie.held(1), bookie.held(2)), (vec![(4, 4), (9, 9)], vec![(9, 9)]));
    assert_eq!(bookie.engine().begin_ingest(one).unwrap().seal().err(), Some(IngestError::Empty));
}

#[test]
fn an_ingest_has_limits() {
    let mut bookie = Bookie::with_ledger();
    let many: Vec<Ingest> =
        (0..INGESTS_MAX).map(|_| bookie.engine().begin_ingest(ledger(1)).unwrap()).collect();
    assert_eq!(bookie.engine().begin_ingest(ledger(1)).err(), Some(IngestError::TooMany));
    drop(many);
    let mut ingest = bookie.ingest(1, 0..INGEST_ENTRIES_MAX as i64);
    let next = INGEST_ENTRIES_MAX as i64;
    let full = ingest.append(ledger(1), entry(next), &body(1, next));
    assert_eq!(full, Err(IngestError::Full("entries")));
    assert_eq!(bookie.commit(ingest), Ok(()));
    assert_eq!(bookie.held(1), [(0, next - 1)]);
    let ids = 2..2 + INGEST_LOGS_MAX as i64 + 1;
    ids.clone().for_each(|id| bookie.begin(id));
    let mut ingest = bookie.engine().begin_ingest(ledger(2)).unwrap();
    let results: Vec<_> = ids.rev().map(|id| ingest.append(ledger(id), entry(0), &body(id, 0))).collect();
    assert_eq!(results.last(), Some(&Err(IngestError::LedgersOutOfOrder(ledger(2)))));
    assert!(results[..INGEST_LOGS_MAX].iter().all(Result::is_ok), "{results:?}");
    assert!(INGEST_LEDGERS_MAX < INGEST_ENTRIES_MAX as usize);
}

/// Wherever the other copy is: on disk, in memory, not durable yet.
#[test]
fn an_entry_that_is_here_is_not_ingested_again() {
    let mut bookie = Bookie::with_ledger();
    bookie.add(1, 3);
    bookie.flush();
    let held = |entry| Some(IngestError::Held { ledger: ledger(1), entry });
    assert_eq!(bookie.ingest(1, 0..10).seal().err(), held(entry(3)));
    bookie.add(1, 5);
    assert_eq!(bookie.ingest(1, 4..10).seal().err(), held(entry(5)), "not durable");
    bookie.group();
    assert_eq!(bookie.ingest(1, 4..10).seal().err(), held(entry(5)), "in memory");
    let ingest = bookie.ingest(1, [0, 4, 6]);
    // Comes while it is under way: newer, whatever becomes of the ingest.
    bookie.add(1, 4);
    assert_eq!(ingest.seal().err(), held(entry(4)));
    let sealed = bookie.ingest(1, [0, 6]);
    bookie.flush();
    assert_eq!(bookie.commit(sealed), Ok(()));
    bookie.sound(1);
    let runs = [(0, 0), (3, 6)];
    bookie.check(6, &runs, "at once");
    bookie.restart().check(6, &runs, "after a restart");
}

#[test]
fn a_bookie_that_takes_no_writes_takes_no_copies() {
    let mut bookie = Bookie::with_ledger();
    bookie.engine().set_read_only(true);
    assert!(matches!(bookie.engine().begin_ingest(ledger(1)), Err(IngestError::ReadOnly(_))));
    bookie.engine().set_read_only(false);
    bookie.engine().set_full_directories(&[true, true]);
    assert!(matches!(bookie.engine().begin_ingest(ledger(1)), Err(IngestError::ReadOnly(_))));
    let home = bookie.engine().shard_of(ledger(1)) % 2;
    let full = [home == 0, home == 1];
    bookie.engine().set_full_directories(&full);
    let ingest = bookie.ingest(1, 0..5);
    assert_eq!(bookie.commit(ingest), Ok(()), "the other directory takes it");
    bookie.sound(1);
    bookie.check(4, &[(0, 4)], "in the other directory");
    let mut bookie = bookie.restart();
    bookie.check(4, &[(0, 4)], "after a restart");
    bookie.add(1, 5);
    bookie.flush();
    bookie.restart().check(5, &[(0, 5)], "when the ledger went on");
    // What a flush must leave for rewrites.
    let bookie = Bookie::with_ledger();
    bookie.engine().set_rewrite_room(&[u64::MAX, u64::MAX]);
    let mut ingest = bookie.engine().begin_ingest(ledger(1)).unwrap();
    let large = |e: i64| [body(1, e), vec![7; 100 << 10]].concat();
    let full = (0..).find_map(|e| ingest.append(ledger(1), entry(e), &large(e)).err());
    assert!(matches!(full, Some(IngestError::ReadOnly(_))), "{full:?}");
    assert_eq!(ingest.append(ledger(1), entry(99), &body(1, 99)), Err(IngestError::Over));
    assert_eq!(ingest.seal().err(), Some(IngestError::Over));
}

fn remove(bookie: &mut Bookie, id: i64) {
    bookie.engine().remove_ledger(ledger(id), Box::new(|done| assert_eq!(done, Ok(()))));
    bookie.group();
}

/// Whether it comes before the seal, before the commit, or the ledger is back by then.
#[test]
fn a_removal_ends_an_ingest_of_the_ledger() {
    let gone = Some(IngestError::NoLedger(ledger(1)));
    let mut bookie = Bookie::with_ledger();
    let ingest = bookie.ingest(1, 0..5);
    remove(&mut bookie, 1);
    assert_eq!(ingest.seal().err(), gone);

    for is_back in [false, true] {
        let mut bookie = Bookie::with_ledger();
        let asked = bookie.ask(bookie.ingest(1, 0..5));
        remove(&mut bookie, 1);
        if is_back {
            bookie.begin(1);
        }
        bookie.tend();
        assert_eq!(asked.lock().take().unwrap().err(), gone);
        let expected = if is_back { Refusal::Unknown } else { Refusal::NoLedger };
        assert_eq!(bookie.at(1, 3), Err(expected));
        assert_eq!(bookie.restart().at(1, 3), Err(expected));
    }
}

/// Also one of a ledger that is forgotten, and begins again under the same id.
#[test]
fn an_ingest_ends_with_the_life_of_its_ledger() {
    let mut bookie = Bookie::with_ledger();
    let ingest = bookie.ingest(1, 0..5);
    remove(&mut bookie, 1);
    bookie.flush();
    assert_eq!(bookie.machine.flushing.forget_removed().unwrap(), 1);
    bookie.begin(1);
    bookie.flush();
    let asked = bookie.ask(ingest);
    bookie.tend();
    assert_eq!(asked.lock().take(), Some(Err(IngestError::NoLedger(ledger(1)))));
    assert_eq!(bookie.restart().held(1), []);
}

/// A start replays a removal that is not flushed, under a new generation: whatever came after it would be hidden.
#[test]
fn an_ingest_waits_until_the_removal_before_it_is_flushed() {
    let mut bookie = Bookie::with_ledger();
    bookie.add(1, 0);
    remove(&mut bookie, 1);
    bookie.begin(1);
    let mut ingest = bookie.engine().begin_ingest(ledger(1)).unwrap();
    let put_off = Err(IngestError::RemovalNotFlushed(ledger(1)));
    assert_eq!(ingest.append(ledger(1), entry(0), &body(1, 0)), put_off);
    // It asked for a freeze.
    bookie.group();
    let behind = Err(IngestError::BehindRemoval(ledger(1)));
    assert_eq!(ingest.append(ledger(1), entry(0), &body(1, 0)), behind);
    drop(ingest);
    let ingest = bookie.ingest(1, 0..3);
    assert_eq!(bookie.commit(ingest), Ok(()));
    bookie.sound(1);
    bookie.check(2, &[(0, 2)], "at once");
    bookie.restart().check(2, &[(0, 2)], "after a restart");
}

/// What is placed after the copies were taken, a removal as well as an entry, wins over them.
#[test]
fn a_removal_after_the_commit_hides_the_copies_for_good() {
    let mut bookie = Bookie::with_ledger();
    let ingest = bookie.ingest(1, 0..5);
    assert_eq!(bookie.commit(ingest), Ok(()));
    remove(&mut bookie, 1);
    assert_eq!(bookie.at(1, 3), Err(Refusal::NoLedger));
    let mut bookie = bookie.restart();
    assert_eq!(bookie.at(1, 3), Err(Refusal::NoLedger));
    bookie.begin(1);
    bookie.flush();
    assert_eq!(bookie.held(1), []);
    let mut bookie = bookie.restart();
    assert_eq!(bookie.held(1), []);
    let ingest = bookie.ingest(1, 3..6);
    assert_eq!(bookie.commit(ingest), Ok(()));
    assert_eq!((bookie.held(1), bookie.restart().held(1)), (vec![(3, 5)], vec![(3, 5)]));
}

/// A commit waits for a flush of what is known of its ledger, asks for it, and ends also when the ledger never rests.
#[test]
fn a_commit_waits_for_ledgers_that_are_written_to_and_ends() {
    let mut bookie = Bookie::with_ledger();
    bookie.add(1, 0);
    bookie.group();
    let asked = bookie.ask(bookie.ingest(1, 5..9));
    bookie.tend();
    assert_eq!((asked.lock().clone(), bookie.at(1, 6)), (None, Err(Refusal::Unknown)));
    // The freeze that it asked for.
    bookie.group();
    bookie.tend();
    assert_eq!(asked.lock().take(), Some(Ok(())));

    let asked = bookie.ask(bookie.ingest(1, 1000..1003));
    for e in 100..200 {
        bookie.add(1, e);
        bookie.group();
        bookie.add(1, e + 100);
        bookie.tend();
    }
    assert_eq!(asked.lock().take(), Some(Err(IngestError::NeverAtRest(ledger(1)))));
    // Entries behind which there are others in the state table need no rest.
    let asked = bookie.ask(bookie.ingest(1, 20..23));
    bookie.add(1, 300);
    bookie.tend();
    assert_eq!(asked.lock().take(), Some(Ok(())));
    bookie.restart().at(1, 21).unwrap();
}

#[test]
fn a_commit_wakes_polls_and_speaks_against_a_removal() {
    let mut bookie = Bookie::with_ledger();
    bookie.sound(1);
    bookie.flush();
    let engine = bookie.machine.engine.clone();
    let woken = Arc::new(Mutex::new(0));
    let count = woken.clone();
    let poll = engine.poll_lac(ledger(1), EntryId::new(1), Box::new(move |_| *count.lock() += 1)).unwrap();
    assert!(matches!(poll, Poll::Parked(_)));
    let before = engine.changes(ledger(1));
    let ingest = bookie.ingest(1, 0..5);
    let meanwhile = engine.changes(ledger(1));
    assert!(!engine.remove_unchanged(ledger(1), before, Box::new(|_| {})), "it has begun");
    assert_eq!(bookie.commit(ingest), Ok(()));
    assert_eq!(*woken.lock(), 1);
    assert!(!engine.remove_unchanged(ledger(1), meanwhile, Box::new(|_| {})), "it is committed");
    assert!(engine.remove_unchanged(ledger(1), engine.changes(ledger(1)), Box::new(|_| {})));
}

#[test]
fn a_fenced_ledger_takes_copies_and_stays_fenced() {
    let mut bookie = Bookie::with_ledger();
    bookie.engine().fence_known(ledger(1), KEY, Box::new(|done| assert_eq!(done, Ok(()))));
    bookie.flush();
    let ingest = bookie.ingest(1, 0..5);
    assert_eq!(bookie.commit(ingest), Ok(()));
    let bookie = bookie.restart();
    assert!(bookie.engine().is_fenced(ledger(1)));
    assert_eq!(bookie.at(1, 4), Ok(body(1, 4)));
}

/// With the threads of a bookie: the request wakes the owner of the directories, also while adds go on.
#[test]
fn a_running_bookie_commits_soon() {
    let dir = tempfile::tempdir().unwrap();
    let config = EngineConfig { flush_interval: Duration::from_secs(3600), ..config(dir.path()) };
    let open = |config: &EngineConfig| {
        let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
        Machine::open(config.clone(), Arc::new(RealDisk::new()), clock, random).unwrap()
    };
    let machine = open(&config);
    let engine = machine.engine.clone();
    let threads = machine.start(Arc::new(RealDisk::new()), Arc::new(Nobody));
    let (sender, done) = sync_channel(1);
    let told = sender.clone();
    engine.set_limbo(ledger(1), true, Box::new(move |outcome| told.send(outcome.is_ok()).unwrap()));
    assert!(done.recv().unwrap());
    for round in 0..5 {
        let engine_there = engine.clone();
        // Off the thread that asks for the commit.
        let write = move || {
            let mut ingest = engine_there.begin_ingest(ledger(1)).unwrap();
            for e in round * 100..round * 100 + 50 {
                ingest.append(ledger(1), entry(e), &body(1, e)).unwrap();
            }
            ingest.seal().unwrap()
        };
        let sealed = std::thread::spawn(write).join().unwrap();
        let told = sender.clone();
        let waiter = Box::new(move |outcome: Result<(), IngestError>| {
            assert_eq!(outcome, Ok(()));
            told.send(true).unwrap();
        });
        engine.commit_ingest(sealed, waiter);
        assert!(done.recv().unwrap());
    }
    drop(engine);
    threads.stop().unwrap();
    let machine = open(&config);
    assert_eq!(machine.replayed.records, 0, "nothing of it is in the journal");
    let held = machine.engine.held_entries(ledger(1), EntryId::FIRST, EntryId::MAX).unwrap();
    assert_eq!(held.len(), 5);
}
