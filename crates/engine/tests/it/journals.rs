//! Several journals, and the journal's limits, on real files and threads. The names of the second half are those of
//! docs/reference/journal-requirements.md.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and waits in real time"
)]

use bindery_engine::{
    Add, AddDone, AddSink, Engine, EngineConfig, EngineThreads, EntryRef, GroupTimes, Lookup, Machine,
    OpenError, Origin, Refusal,
};
use bindery_io::{Disk, DiskFile, DiskLayer, FileLayer, OpenMode, RealDisk, SystemClock, SystemRandom};
use bindery_types::{EntryId, LedgerId, MasterKey};
use parking_lot::{Condvar, Mutex};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

const KEY: MasterKey = MasterKey::new([1; 20]);
/// Nothing here takes so long unless it hangs.
const HANG: Duration = Duration::from_secs(60);

struct Answers(SyncSender<AddDone>);
impl AddSink for Answers {
    fn on_adds_done(&self, _: &GroupTimes, shards: &[Vec<AddDone>]) {
        for d in shards.iter().flatten() {
            let _ = self.0.send(*d);
        }
    }
}

/// Writes to files of one kind wait at a gate: a flush, or a group, that takes as long as the test wants.
struct GatedDisk {
    inner: RealDisk,
    extension: &'static str,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        *self.is_shut.lock() = is_shut;
        self.opened.notify_all();
    }
    fn pass(&self) {
        let mut is_shut = self.is_shut.lock();
        while *is_shut {
            self.opened.wait(&mut is_shut);
        }
    }
}

struct GatedFile {
    inner: Arc<dyn DiskFile>,
    gate: Arc<Gate>,
}

impl FileLayer for GatedFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.inner
    }
    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.gate.pass();
        self.inner.write_at(slices, offset)
    }
    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.gate.pass();
        self.inner.write_durable_at(slices, offset)
    }
}

impl DiskLayer for GatedDisk {
    fn beneath(&self) -> &dyn Disk {
        &self.inner
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let inner = self.inner.open(path, mode)?;
        if path.extension().is_some_and(|extension| extension == self.extension) && !mode.is_read_only() {
            return Ok(Arc::new(GatedFile { inner, gate: self.gate.clone() }));
        }
        Ok(inner)
    }
}

struct Bookie {
    engine: Arc<Engine>,
    threads: EngineThreads,
    answers: Receiver<AddDone>,
}

fn dirs(dir: &Path, name: &str, count: usize) -> Vec<PathBuf> {
    (0..count).map(|number| dir.join(format!("{name}{number}"))).collect()
}

fn config(dir: &Path, journals: usize, shards: usize) -> EngineConfig {
    EngineConfig {
        journal_dirs: dirs(dir, "journal", journals),
        ledger_dirs: dirs(dir, "ledgers", 2),
        shard_count: shards,
        write_pool_bytes: 16 << 20,
        chunk_bytes: 256 << 10,
        entry_bytes_max: 128 << 10,
        journal_file_bytes: 256 << 10,
        journal_files_preallocated: 1,
        group_bytes_max: 1 << 20,
        flush_interval: Duration::from_secs(3600),
        ..EngineConfig::default()
    }
}

fn open(config: EngineConfig, disk: Arc<dyn Disk>) -> Result<Machine, OpenError> {
    Machine::open(config, disk, Arc::new(SystemClock::new()), Arc::new(SystemRandom))
}

fn start_on(config: EngineConfig, disk: Arc<dyn Disk>) -> Bookie {
    let machine = open(config, disk.clone()).unwrap();
    let (sender, answers) = sync_channel(1 << 16);
    let engine = machine.engine.clone();
    Bookie { engine, threads: machine.start(disk, Arc::new(Answers(sender))), answers }
}

fn start(config: EngineConfig) -> Bookie {
    start_on(config, Arc::new(RealDisk::new()))
}

/// With a gate, open at first, before writes to files with this extension.
fn start_with_gate(extension: &'static str, config: EngineConfig) -> (Bookie, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let disk = GatedDisk { inner: RealDisk::new(), extension, gate: gate.clone() };
    (start_on(config, Arc::new(disk)), gate)
}

fn body(ledger: i64, entry: i64, size: usize) -> Vec<u8> {
    let mut body = [ledger, entry, entry - 1, 0].map(i64::to_be_bytes).concat();
    body.resize(32 + size, (ledger + entry) as u8);
    body
}

fn add_of(ledger: i64, entry: i64, body: &[u8]) -> Add<'_> {
    Add {
        origin: Origin { connection: 0, txn: 0, tag: 0 },
        ledger: LedgerId::new(ledger).unwrap(),
        entry: EntryId::new(entry).unwrap(),
        last_add_confirmed: EntryId::new(entry - 1),
        key: KEY,
        body,
        is_recovery: false,
        is_high_priority: false,
    }
}

/// False when there is no room.
fn offer(engine: &Engine, ledger: i64, entry: i64, size: usize) -> bool {
    let body = body(ledger, entry, size);
    let add = add_of(ledger, entry, &body);
    engine.add_batch(engine.shard_of(add.ledger), &[add]) == 1
}

fn add(bookie: &Bookie, ledger: i64, entry: i64, size: usize) {
    let begun = Instant::now();
    while !offer(&bookie.engine, ledger, entry, size) {
        assert!(begun.elapsed() < HANG, "room is made");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn acknowledged(bookie: &Bookie) {
    assert_eq!(bookie.answers.recv_timeout(HANG).expect("every add is answered").result, Ok(()));
}

fn read(engine: &Engine, ledger: i64, entry: i64) -> Result<Vec<u8>, Refusal> {
    match engine.read(LedgerId::new(ledger).unwrap(), EntryRef::At(EntryId::new(entry).unwrap()))? {
        Lookup::Memory(body) => Ok(body.to_vec()),
        Lookup::Disk(read) => read.load(),
        Lookup::Tiered(_) => panic!("nothing is in object storage"),
        Lookup::Undurable(_) => panic!("acknowledged entries are durable"),
    }
}

fn check(engine: &Engine, ledgers: i64, entries: i64) {
    for ledger in 0..ledgers {
        for entry in 0..entries {
            let expected = body(ledger, entry, 500);
            assert_eq!(read(engine, ledger, entry).as_deref(), Ok(&expected[..]), "{ledger}:{entry}");
        }
        let beyond = if entries == 0 { Refusal::NoLedger } else { Refusal::NoEntry };
        assert_eq!(read(engine, ledger, entries), Err(beyond));
    }
}

fn copy_dir(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn used_files(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

/// IB12. Entries that three journals acknowledged are there after a kill, whatever the numbers of journals and shards
/// are then, and each journal got its share.
#[test]
fn several_journals_survive_kills_and_changes_of_their_number() {
    let dir = tempfile::tempdir().unwrap();
    let (ledgers, mut entries) = (24, 0);
    let mut kept = dir;
    for (round, (journals, shards)) in [(3, 3), (3, 4), (4, 4), (4, 6)].into_iter().enumerate() {
        let bookie = start(config(kept.path(), journals, shards));
        check(&bookie.engine, ledgers, entries);
        for entry in entries..entries + 20 {
            (0..ledgers).for_each(|ledger| add(&bookie, ledger, entry, 500));
            (0..ledgers).for_each(|_| acknowledged(&bookie));
        }
        entries += 20;
        for journal in dirs(kept.path(), "journal", journals) {
            assert!(used_files(&journal) > 0, "round {round}: {}", journal.display());
        }
        // A kill: a copy of the files is opened, while the threads still run.
        let copy = tempfile::tempdir().unwrap();
        copy_dir(kept.path(), copy.path());
        bookie.threads.stop().unwrap();
        kept = copy;
    }
    let bookie = start(config(kept.path(), 4, 4));
    check(&bookie.engine, ledgers, entries);
    bookie.threads.stop().unwrap();

    // Drained, so the last two may go; the state tables know three of the places, and the order counts.
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    let fewer = config(kept.path(), 2, 2);
    let error = open(fewer.clone(), disk.clone()).map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::JournalRemoved { number: 2, found: 4, configured: 2 }), "{error}");
    let former_journal_dirs = dirs(kept.path(), "journal", 4).split_off(2);
    let bookie = start(EngineConfig { former_journal_dirs, ..fewer.clone() });
    check(&bookie.engine, ledgers, entries);
    bookie.threads.stop().unwrap();
    let swapped = EngineConfig {
        journal_dirs: vec![kept.path().join("journal1"), kept.path().join("journal0")],
        ..fewer.clone()
    };
    let error = open(swapped, disk.clone()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("is of journal 1"), "{error}");
    // A new one under the number of one that went.
    let mut again = config(kept.path(), 3, 3);
    again.journal_dirs[2] = kept.path().join("journal-new");
    let bookie = start(again.clone());
    (0..ledgers).for_each(|ledger| add(&bookie, ledger, entries, 500));
    (0..ledgers).for_each(|_| acknowledged(&bookie));
    let copy = tempfile::tempdir().unwrap();
    copy_dir(kept.path(), copy.path());
    bookie.threads.stop().unwrap();

    // A kill leaves records in each: none may go.
    let mut copied = config(copy.path(), 3, 3);
    copied.journal_dirs[2] = copy.path().join("journal-new");
    let without = EngineConfig {
        former_journal_dirs: vec![copied.journal_dirs[2].clone()],
        journal_dirs: copied.journal_dirs[..2].to_vec(),
        ..copied.clone()
    };
    let error = open(without, disk.clone()).map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::JournalNotDrained { .. }), "{error}");
    assert!(error.to_string().contains("SIGTERM"), "{error}");
    let bookie = start(copied);
    check(&bookie.engine, ledgers, entries + 1);
    bookie.threads.stop().unwrap();
}

/// A journal that is configured no more and is gone is accepted as one in use would be: the message says so for both.
#[test]
fn the_loss_of_a_former_journal_can_be_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let bookie = start(config(dir.path(), 2, 2));
    (0..8).for_each(|ledger| add(&bookie, ledger, 0, 500));
    (0..8).for_each(|_| acknowledged(&bookie));
    bookie.threads.stop().unwrap();
    for is_empty in [true, false] {
        let copy = tempfile::tempdir().unwrap();
        copy_dir(dir.path(), copy.path());
        let former = copy.path().join("journal1");
        std::fs::remove_dir_all(&former).unwrap();
        if is_empty {
            std::fs::create_dir(&former).unwrap();
        }
        let fewer = EngineConfig { former_journal_dirs: vec![former], ..config(copy.path(), 1, 2) };
        let error = open(fewer.clone(), Arc::new(RealDisk::new())).map(|_| ()).unwrap_err();
        assert!(matches!(error, OpenError::JournalMissing { .. }), "{error}");
        let accepting = EngineConfig { accepts_journal_damage: true, ..fewer };
        open(accepting, Arc::new(RealDisk::new())).map(|_| ()).unwrap();
    }
}

/// IB27. Damage in one of several journals refuses the start; one that accepts it says how much there is, and where.
#[test]
fn accepted_damage_of_any_journal_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let bookie = start(config(dir.path(), 2, 2));
    for entry in 0..20 {
        (0..8).for_each(|ledger| add(&bookie, ledger, entry, 500));
        (0..8).for_each(|_| acknowledged(&bookie));
    }
    let killed = tempfile::tempdir().unwrap();
    copy_dir(dir.path(), killed.path());
    bookie.threads.stop().unwrap();
    let mut spoiled = 0;
    for file in std::fs::read_dir(killed.path().join("journal1")).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        // A file that is being made may still be short.
        if bytes.get(4096..8192).is_some_and(|block| block.iter().any(|byte| *byte != 0)) {
            bytes[4096..8192].fill(0x5a);
            std::fs::write(&path, bytes).unwrap();
            spoiled += 1;
        }
    }
    assert_eq!(spoiled, 1, "one file is in use, and its first group is damaged");

    let damaged = config(killed.path(), 2, 2);
    let error = open(damaged.clone(), Arc::new(RealDisk::new())).map(|_| ()).unwrap_err();
    assert!(error.is_journal_damage(), "{error}");
    let accepting = EngineConfig {
        accepts_journal_damage: true,
        limbo_up_to: LedgerId::new(7),
        checked_up_to: LedgerId::new(7),
        ..damaged
    };
    let machine = open(accepting, Arc::new(RealDisk::new())).unwrap();
    assert_eq!(machine.replayed.damaged_places, 1);
    let first = machine.replayed.first_damage.as_ref().expect("it is named");
    assert!(first.path.starts_with(killed.path().join("journal1")), "{first}");
    for ledger in 0..8 {
        for entry in 0..21 {
            let found = read(&machine.engine, ledger, entry);
            assert!(
                found == Ok(body(ledger, entry, 500)) || found == Err(Refusal::Unknown),
                "{ledger}:{entry}"
            );
        }
    }
}

// ---- acceptance -------------------------------------------------------------------------------------------------

/// Limits, J5: an entry of exactly the limit is taken.
#[test]
fn equal_record_limit() {
    let dir = tempfile::tempdir().unwrap();
    let bookie = start(config(dir.path(), 1, 2));
    let largest = (128 << 10) - 32;
    assert!(offer(&bookie.engine, 1, 0, largest));
    acknowledged(&bookie);
    assert_eq!(read(&bookie.engine, 1, 0).unwrap(), body(1, 0, largest));
    bookie.threads.stop().unwrap();
}

/// Limits, J5: a larger one is refused at once, and holds nothing.
#[test]
fn exceed_record_limit() {
    let dir = tempfile::tempdir().unwrap();
    let bookie = start(config(dir.path(), 1, 2));
    assert!(offer(&bookie.engine, 1, 0, (128 << 10) - 31), "taken, to be answered in order");
    assert_eq!(bookie.answers.recv_timeout(HANG).unwrap().result, Err(Refusal::BadRequest));
    assert_eq!(bookie.engine.stats().write_pool_chunks_in_use, 0);
    bookie.threads.stop().unwrap();
}

/// A bookie with the smallest cap, whose flushes wait at the gate.
fn capped(dir: &Path) -> (Bookie, Arc<Gate>) {
    start_with_gate("elog", EngineConfig { journal_bytes_max: 4 * (256 << 10), ..config(dir, 1, 2) })
}

/// Adds until the journal is at its cap and groups wait. Returns how many were taken.
fn fill(bookie: &Bookie) -> i64 {
    let begun = Instant::now();
    let mut entry = 0;
    while bookie.engine.stats().journal_file_waits == 0 {
        assert!(begun.elapsed() < HANG, "{:?}", bookie.engine.stats());
        if offer(&bookie.engine, entry % 7, entry / 7, 20_000) {
            entry += 1;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    entry
}

/// J11: at the cap a group waits for the flush under way, which frees files; nothing is lost, the wait is counted, and
/// the files never take more than the cap and one.
#[test]
fn wait_for_delete() {
    let dir = tempfile::tempdir().unwrap();
    let (bookie, gate) = capped(dir.path());
    gate.set(true);
    let taken = fill(&bookie);
    assert!(used_files(&dir.path().join("journal0")) <= 5);
    gate.set(false);
    (0..taken).for_each(|_| acknowledged(&bookie));
    let stats = bookie.engine.stats();
    assert!(stats.journal_file_wait_ns > 0 && stats.flushes > 0, "{stats:?}");
    for entry in 0..taken {
        assert_eq!(read(&bookie.engine, entry % 7, entry / 7).unwrap(), body(entry % 7, entry / 7, 20_000));
    }
    bookie.threads.stop().unwrap();
}

/// J11, J12: many times round all files, with flushes, recycling and both limits at once, and no deadlock.
#[test]
fn deadlock_in_recycle() {
    let dir = tempfile::tempdir().unwrap();
    let (bookie, _) = capped(dir.path());
    let adds = 1500;
    for entry in 0..adds {
        add(&bookie, entry % 7, entry / 7, 10_000);
    }
    (0..adds).for_each(|_| acknowledged(&bookie));
    assert!(used_files(&dir.path().join("journal0")) <= 5);
    assert!(bookie.engine.stats().flushes > 5, "{:?}", bookie.engine.stats());
    bookie.threads.stop().unwrap();
}

/// J11: at half of the cap a flush begins by itself, without a full pool and without an interval, and groups go on beside
/// it.
#[test]
fn deadlock_with_flush_threshold() {
    let dir = tempfile::tempdir().unwrap();
    let (bookie, gate) = capped(dir.path());
    gate.set(true);
    // Small entries one by one: a block of the journal each, and next to nothing in the pool. The flush begins in the
    // third of four files, and its end is not needed for these.
    for entry in 0..150 {
        add(&bookie, 1, entry, 10);
        acknowledged(&bookie);
    }
    assert_eq!(bookie.engine.stats().journal_file_waits, 0, "early enough that nobody waits");
    assert_eq!(bookie.engine.stats().flushes, 0, "it is at the gate");
    gate.set(false);
    let begun = Instant::now();
    while bookie.engine.stats().flushes == 0 {
        assert!(begun.elapsed() < HANG, "a flush began: {:?}", bookie.engine.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut entry = 150;
    while bookie.engine.stats().flushes < 3 {
        assert!(begun.elapsed() < HANG, "{:?}", bookie.engine.stats());
        add(&bookie, 1, entry, 10);
        acknowledged(&bookie);
        entry += 1;
    }
    bookie.threads.stop().unwrap();
}

/// J12: a stop while a group waits for a file ends when the flush does, and everything taken is answered and kept.
#[test]
fn shutdown_during_wait() {
    let dir = tempfile::tempdir().unwrap();
    let (bookie, gate) = capped(dir.path());
    gate.set(true);
    let taken = fill(&bookie);
    let Bookie { threads, answers, .. } = bookie;
    let (sender, stopped) = sync_channel(1);
    std::thread::spawn(move || sender.send(threads.stop().map_err(|e| e.to_string())).unwrap());
    std::thread::sleep(Duration::from_millis(50));
    gate.set(false);
    assert_eq!(stopped.recv_timeout(HANG).expect("the stop ends"), Ok(()));
    let acknowledged = answers.try_iter().filter(|done| done.result.is_ok()).count() as i64;
    assert!(acknowledged <= taken);
    let machine = open(config(dir.path(), 1, 2), Arc::new(RealDisk::new())).unwrap();
    assert_eq!(machine.replayed.records, 0, "IB26");
    for entry in 0..taken {
        let expected = body(entry % 7, entry / 7, 20_000);
        assert_eq!(read(&machine.engine, entry % 7, entry / 7).as_deref(), Ok(&expected[..]));
    }
}

/// J4: when everything is flushed, every chunk is back.
#[test]
fn buffer_size_counter() {
    let dir = tempfile::tempdir().unwrap();
    let bookie =
        start(EngineConfig { flush_interval: Duration::from_millis(20), ..config(dir.path(), 2, 2) });
    for entry in 0..200 {
        add(&bookie, entry % 5, entry / 5, 3000);
    }
    (0..200).for_each(|_| acknowledged(&bookie));
    let begun = Instant::now();
    while bookie.engine.stats().write_pool_chunks_in_use > 0 {
        assert!(begun.elapsed() < HANG, "{:?}", bookie.engine.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
    bookie.threads.stop().unwrap();
}

/// A bookie becomes read-only because a write of its journal hangs: it refuses adds while the write still hangs, and those that
/// waited for room. What was placed, and a refusal behind an add of the same entry, waits for the group (shard invariant 4).
#[test]
fn a_read_only_bookie_refuses_adds_while_a_write_of_its_journal_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let (bookie, gate) = start_with_gate("bjl", config(dir.path(), 1, 2));
    let shard = bookie.engine.shard_of(LedgerId::new(1).unwrap());
    gate.set(true);
    add(&bookie, 1, 0, 100);
    let begun = Instant::now();
    while bookie.engine.pulses(u64::MAX / 2)[0].busy.is_zero() {
        assert!(begun.elapsed() < HANG, "the first add is being written");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Fills the group that forms, until an add has to wait for room.
    let mut placed = 1;
    while offer(&bookie.engine, 1, placed, 100_000) {
        placed += 1;
    }
    let (sender, room) = sync_channel(1);
    let late = body(1, placed, 100_000);
    let late = add_of(1, placed, &late);
    bookie.engine.when_room(shard, &[late], Box::new(move |turn| sender.send(turn).unwrap()));

    bookie.engine.set_read_only(true);
    let turn = room.recv_timeout(HANG).expect("there will be no room");
    assert_eq!(bookie.engine.add_batch_with(shard, &[late], turn), 1);
    // Behind it one of an entry that is being written, one of an entry that waits to be, and one of neither.
    for (ledger, entry) in [(1, 0), (1, 1), (2, 0)] {
        assert!(offer(&bookie.engine, ledger, entry, 100));
    }
    let mut expected = vec![(1, placed), (2, 0)];
    while !expected.is_empty() {
        let done = bookie.answers.recv_timeout(HANG).expect("a refusal needs no journal");
        assert_eq!(done.result, Err(Refusal::ReadOnly));
        let at = expected.iter().position(|entry| *entry == (done.ledger.get(), done.entry.get()));
        expected.remove(at.expect("one of those that pass nothing"));
    }
    // From here on refusals wait for their groups again.
    bookie.engine.set_read_only(false);
    gate.set(false);
    let rest: Vec<AddDone> =
        (0..placed + 2).map(|_| bookie.answers.recv_timeout(HANG).expect("the write ended")).collect();
    let (taken, refused) = rest.split_at(placed as usize);
    assert!(taken.iter().zip(0..).all(|(done, entry)| done.entry.get() == entry && done.result == Ok(())));
    assert!(refused.iter().all(|done| done.result == Err(Refusal::ReadOnly)), "{refused:?}");
    bookie.threads.stop().unwrap();
}

/// Explicit LACs come from any writer and are held back by no admission. However many wait for the journal, a fence finds room.
#[test]
fn explicit_lacs_leave_room_for_fences() {
    // Of chunks, and of parts of a group, of which many shards have a few each.
    for (shards, pool_mib) in [(2, 16), (16, 64)] {
        explicit_lacs_leave_room(shards, pool_mib << 20);
    }
}

fn explicit_lacs_leave_room(shards: usize, write_pool_bytes: u64) {
    let dir = tempfile::tempdir().unwrap();
    let config = EngineConfig { write_pool_bytes, ..config(dir.path(), 1, shards) };
    let (bookie, gate) = start_with_gate("bjl", config);
    gate.set(true);
    let (sender, outcomes) = sync_channel(1 << 19);
    let ledger = |id| LedgerId::new(id).unwrap();
    let write_lac = |body: &[u8]| {
        let sender = sender.clone();
        let waiter = Box::new(move |outcome| sender.send(outcome).unwrap());
        bookie.engine.write_lac(ledger(1), KEY, EntryId::new(0), body, waiter);
    };
    let mut written = 0;
    for size in [256, 1] {
        while outcomes.try_recv() != Ok(Err(Refusal::TooManyRequests)) {
            write_lac(&vec![7; size]);
            written += 1;
            assert!(written < 1 << 19, "memory for explicit LACs is bounded");
        }
        written -= 1;
    }
    // Of the same shard, whose open chunk is full.
    let other =
        (2..).find(|id| bookie.engine.shard_of(ledger(*id)) == bookie.engine.shard_of(ledger(1))).unwrap();
    let (fenced, fence) = sync_channel(1);
    bookie.engine.fence(ledger(other), KEY, Box::new(move |outcome| fenced.send(outcome).unwrap()));
    gate.set(false);
    assert_eq!(fence.recv_timeout(HANG).expect("the fence is durable"), Ok(()));
    for _ in 0..written {
        assert_eq!(outcomes.recv_timeout(HANG).expect("every LAC is answered"), Ok(()));
    }
    bookie.threads.stop().unwrap();
}

/// Pacing invariant 2: a flush that may take an hour does not pause for adds to come while they wait for what its end gives: a
/// chunk of a small pool, of which another shard holds those that are left, or a file of a journal at its cap.
#[test]
fn a_flush_does_not_pause_for_adds_that_wait_for_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let paced = |name| EngineConfig {
        flush_spread: Duration::from_secs(3600),
        log_write_bytes: 16 << 10,
        ..config(&dir.path().join(name), 1, 2)
    };
    let few_chunks = EngineConfig { write_pool_bytes: 8 * (256 << 10), ..paced("a") };
    let few_files = EngineConfig { journal_bytes_max: 4 * (256 << 10), ..paced("b") };
    for config in [few_chunks, few_files] {
        let bookie = start(config);
        let of_shard = |shard| {
            let is_of_it = |ledger: &i64| bookie.engine.shard_of(LedgerId::new(*ledger).unwrap()) == shard;
            (0..).find(is_of_it).unwrap()
        };
        for entry in 0..100 {
            add(&bookie, of_shard(0), entry, 500);
            add(&bookie, of_shard(1), entry, 60 << 10);
            (0..2).for_each(|_| acknowledged(&bookie));
        }
        bookie.threads.stop().unwrap();
    }
}

/// A probe of an idle journal is a write of it, and answered when that has ended: not before, and once.
#[test]
fn a_probe_is_answered_by_a_write_of_its_journal() {
    let dir = tempfile::tempdir().unwrap();
    let (bookie, gate) = start_with_gate("bjl", config(dir.path(), 2, 2));
    let written = |journal: usize| bookie.engine.journal_stats()[journal].written_bytes;
    let groups = |journal: usize| bookie.engine.pulses(0)[journal].groups;
    let probed = |journal: usize| {
        let (sender, answered) = sync_channel(2);
        bookie.engine.probe_journal(journal, Box::new(move |done| sender.send(done).unwrap()));
        answered
    };
    for _ in 0..3 {
        let before = groups(1);
        assert_eq!(probed(1).recv_timeout(HANG).expect("an idle journal answers"), Ok(()));
        assert!(groups(1) > before, "something was written");
    }
    gate.set(true);
    let hangs = probed(0);
    let begun = Instant::now();
    while bookie.engine.pulses(u64::MAX / 2)[0].busy.is_zero() {
        assert!(begun.elapsed() < HANG, "it is being written");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(hangs.try_recv().is_err(), "what is not written is not answered");
    gate.set(false);
    assert_eq!(hangs.recv_timeout(HANG).expect("the write ended"), Ok(()));
    // Behind entries, too, and nothing of it is an entry.
    add(&bookie, 1, 0, 500);
    acknowledged(&bookie);
    let journal = usize::from(written(1) > written(0));
    assert_eq!(probed(journal).recv_timeout(HANG).expect("a journal in use answers"), Ok(()));
    let Bookie { threads, .. } = bookie;
    threads.stop().unwrap();
    let machine = open(config(dir.path(), 2, 2), Arc::new(RealDisk::new())).unwrap();
    assert!(machine.replayed.records <= 1, "{:?}", machine.replayed.records);
    assert_eq!(read(&machine.engine, 1, 0).as_deref(), Ok(&body(1, 0, 500)[..]));
}

/// An unused bookie is probed for months: the groups that probes write give their room back, as those of entries do.
#[test]
fn probes_of_an_idle_journal_give_its_files_back() {
    let dir = tempfile::tempdir().unwrap();
    let bookie =
        start(EngineConfig { flush_interval: Duration::from_millis(20), ..config(dir.path(), 1, 2) });
    let (sender, answered) = sync_channel(1);
    let needed = || bookie.engine.pulses(0)[0].groups * 4096 / (256 << 10);
    let mut files_max = 0;
    let begun = Instant::now();
    // A probe during a flush may be answered without a write, so the number of probes does not tell how much was written.
    while needed() < 16 {
        assert!(begun.elapsed() < HANG, "probes write too little: {} files", needed());
        let sender = sender.clone();
        bookie.engine.probe_journal(0, Box::new(move |done| sender.send(done).unwrap()));
        assert_eq!(answered.recv_timeout(HANG).expect("an idle journal answers"), Ok(()));
        files_max = files_max.max(bookie.engine.journal_stats()[0].files);
    }
    // As fast as this a few are full before the flush that frees them.
    assert!(files_max < needed(), "{files_max} files of {}", needed());
    bookie.threads.stop().unwrap();
}
