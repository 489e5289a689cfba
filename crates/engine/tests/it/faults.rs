//! Schedules that a hostile review found: stalls, half-finished flushes, changed layouts, full pools.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and waits in real time"
)]
use bindery_engine::*;
use bindery_io::{Disk, DiskFile, DiskLayer, FileLayer, OpenMode, RealDisk, SystemClock, SystemRandom};
use bindery_types::{EntryId, LedgerId, MasterKey};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

const KEY: MasterKey = MasterKey::new([1; 20]);
struct Answers(SyncSender<AddDone>);
impl AddSink for Answers {
    fn on_adds_done(&self, _: &GroupTimes, shards: &[Vec<AddDone>]) {
        for d in shards.iter().flatten() {
            let _ = self.0.send(*d);
        }
    }
}
/// Tokens: how many durable writes may pass; None = all.
#[derive(Default)]
struct Gate {
    tokens: Mutex<Option<u64>>,
    cond: Condvar,
    waiting: AtomicU64,
}
impl Gate {
    fn pass(&self) {
        let mut t = self.tokens.lock();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        loop {
            match &mut *t {
                None => break,
                Some(0) => self.cond.wait(&mut t),
                Some(n) => {
                    *n -= 1;
                    break;
                }
            }
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
    fn set(&self, v: Option<u64>) {
        *self.tokens.lock() = v;
        self.cond.notify_all();
    }
}
struct GateDisk {
    inner: RealDisk,
    journal: Arc<Gate>,
    logs: Arc<Gate>,
}
/// Lets so many entry logs be created, then fails.
struct LogBudget(RealDisk, std::sync::atomic::AtomicI64);
struct GateFile {
    inner: Arc<dyn DiskFile>,
    gate: Option<Arc<Gate>>,
}
impl FileLayer for GateFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.inner
    }
    fn write_at(&self, s: &[io::IoSlice<'_>], o: u64) -> io::Result<usize> {
        if let Some(g) = &self.gate {
            g.pass()
        }
        self.inner.write_at(s, o)
    }
    fn write_durable_at(&self, s: &[io::IoSlice<'_>], o: u64) -> io::Result<usize> {
        if let Some(g) = &self.gate {
            g.pass()
        }
        self.inner.write_durable_at(s, o)
    }
}
impl DiskLayer for GateDisk {
    fn beneath(&self) -> &dyn Disk {
        &self.inner
    }
    fn open(&self, p: &Path, m: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let n = p.to_string_lossy();
        let gate = if n.ends_with(".bjl") {
            Some(self.journal.clone())
        } else if n.ends_with(".elog") {
            Some(self.logs.clone())
        } else {
            None
        };
        Ok(Arc::new(GateFile { inner: self.inner.open(p, m)?, gate }))
    }
}
impl DiskLayer for LogBudget {
    fn beneath(&self) -> &dyn Disk {
        &self.0
    }
    fn open(&self, p: &Path, m: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        if p.to_string_lossy().ends_with(".elog")
            && m == OpenMode::CreateDirect
            && self.1.fetch_sub(1, Ordering::SeqCst) <= 0
        {
            return Err(io::Error::other("power cut"));
        }
        self.0.open(p, m)
    }
}
fn budget(n: i64) -> Arc<dyn Disk> {
    Arc::new(LogBudget(RealDisk::new(), n.into()))
}
/// Journals get one file and no more.
struct OneFile(RealDisk);
impl DiskLayer for OneFile {
    fn beneath(&self) -> &dyn Disk {
        &self.0
    }
    fn open(&self, p: &Path, m: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        if p.extension().is_some_and(|kind| kind == "bjl")
            && !m.is_read_only()
            && !p.ends_with("journal-0000.bjl")
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.open(p, m)
    }
}
fn config(dir: &Path, dirs: usize, shards: usize) -> EngineConfig {
    EngineConfig {
        journal_dirs: vec![dir.join("journal")],
        ledger_dirs: (0..dirs).map(|i| dir.join(format!("ledgers{i}"))).collect(),
        shard_count: shards,
        write_pool_bytes: 8 << 20,
        chunk_bytes: 256 << 10,
        entry_bytes_max: 128 << 10,
        journal_file_bytes: 4 << 20,
        journal_files_preallocated: 0,
        group_bytes_max: 8 << 20,
        flush_interval: Duration::from_millis(200),
        ..EngineConfig::default()
    }
}
fn open(c: EngineConfig, disk: Arc<dyn Disk>) -> Result<Machine, OpenError> {
    Machine::open(c, disk, Arc::new(SystemClock::new()), Arc::new(SystemRandom))
}
fn body(l: i64, e: i64, size: usize) -> Vec<u8> {
    let mut b = Vec::new();
    for v in [l, e, e - 1, 0] {
        b.extend_from_slice(&v.to_be_bytes());
    }
    b.resize(32 + size, e as u8);
    b
}
fn add(e: &Engine, l: i64, entry: i64, size: usize, recovery: bool) -> usize {
    let b = body(l, entry, size);
    let id = LedgerId::new(l).unwrap();
    e.add_batch(
        e.shard_of(id),
        &[Add {
            origin: Origin { connection: 0, txn: entry as u64, tag: 0 },
            ledger: id,
            entry: EntryId::new(entry).unwrap(),
            last_add_confirmed: EntryId::new(entry - 1),
            key: KEY,
            body: &b,
            is_recovery: recovery,
            is_high_priority: false,
        }],
    )
}
fn read(e: &Engine, l: i64, entry: i64) -> Result<Vec<u8>, Refusal> {
    match e.read(LedgerId::new(l).unwrap(), EntryRef::At(EntryId::new(entry).unwrap()))? {
        Lookup::Memory(b) => Ok(b.to_vec()),
        Lookup::Disk(r) => r.load(),
        Lookup::Tiered(_) => panic!("nothing is in object storage"),
        Lookup::Undurable(_) => Err(Refusal::TooManyRequests),
    }
}

/// Finding: stop() while a freezing group is stalled on the disk for longer than the flush interval.
#[test]
fn stop_during_a_stalled_freeze_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (jg, lg) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
    let disk: Arc<dyn Disk> =
        Arc::new(GateDisk { inner: RealDisk::new(), journal: jg.clone(), logs: lg.clone() });
    // Files that hold the largest group twice (requirement J5).
    let config = EngineConfig { journal_file_bytes: 16 << 20, ..config(dir.path(), 1, 1) };
    let machine = open(config.clone(), disk.clone()).unwrap();
    let engine = machine.engine.clone();
    let (tx, rx) = sync_channel(1 << 16);
    let threads = machine.start(disk.clone(), Arc::new(Answers(tx)));
    jg.set(Some(0));
    assert_eq!(add(&engine, 1, 0, 100, false), 1);
    while jg.waiting.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Group 1 is being written (its header first). Meanwhile a quarter of the pool forms: the next cut freezes.
    for e in 1..40 {
        assert_eq!(add(&engine, 1, e, 100 << 10, false), 1);
    }
    jg.set(Some(2)); // the file header, group 1; then group 2 (the freeze) stalls
    assert_eq!(rx.recv_timeout(Duration::from_secs(5)).unwrap().result, Ok(()));
    while jg.waiting.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let stopper = std::thread::spawn(move || threads.stop());
    std::thread::sleep(Duration::from_millis(100));
    // One add more arrives before the connections are closed.
    assert_eq!(add(&engine, 1, 40, 100, false), 1);
    std::thread::sleep(Duration::from_millis(600)); // longer than the flush interval
    jg.set(None);
    let mut acked = vec![0];
    while let Ok(d) = rx.recv_timeout(Duration::from_secs(2)) {
        if d.result.is_ok() {
            acked.push(d.entry.get())
        }
    }
    let stopped = stopper.join();
    println!(
        "stop: {:?}",
        stopped.as_ref().map(|r| r.as_ref().map_err(|e| e.to_string())).map_err(|_| "PANIC")
    );
    drop(engine);
    let machine = open(config, disk).unwrap();
    let lost: Vec<_> = acked.iter().filter(|e| read(&machine.engine, 1, **e).is_err()).collect();
    println!("acked {} lost {:?} replayed groups {}", acked.len(), lost, machine.replayed.groups);
    for e in lost.iter().take(2) {
        println!("  {e}: {:?}", read(&machine.engine, 1, **e));
    }
    assert!(lost.is_empty(), "{} acknowledged entries lost", lost.len());
}

fn drive(m: &mut Machine, sink: &dyn AddSink) {
    while let Some(f) = m.journals[0].cut() {
        let w = m.journals[0].write(&f);
        let mut done = m.journals[0].finish(f, w);
        if let Some(t) = done.freeze.take() {
            let mark = m.flushing.flush(t).unwrap();
            m.journals[0].on_flushed(mark);
        }
        done.deliver(sink);
    }
}

/// Finding: a ledger directory is added after the journal was recycled.
#[test]
fn a_directory_can_be_added() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    let (tx, _rx) = sync_channel(1 << 16);
    let sink = Answers(tx);
    let mut m = open(config(dir.path(), 1, 2), disk.clone()).unwrap();
    for e in 0..400 {
        while add(&m.engine, e % 5, e, 60 << 10, false) == 0 {
            drive(&mut m, &sink);
        }
        if e % 10 == 0 {
            drive(&mut m, &sink);
        }
    }
    m.want_freeze();
    drive(&mut m, &sink);
    drop(m);
    let m = open(config(dir.path(), 1, 2), disk.clone()).unwrap();
    println!("one directory again: replayed {:?}", m.replayed);
    drop(m);
    let m = open(config(dir.path(), 2, 2), disk.clone());
    println!("{:?}", m.as_ref().err().map(|e| e.to_string()));
    assert!(m.is_ok());
}

/// Finding: a ledger directory is taken away.
#[test]
fn a_missing_directory_is_not_no_such_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    let (tx, _rx) = sync_channel(1 << 16);
    let sink = Answers(tx);
    let mut m = open(config(dir.path(), 2, 2), disk.clone()).unwrap();
    for e in 0..40 {
        assert_eq!(add(&m.engine, e % 20, e, 100, false), 1);
    }
    drive(&mut m, &sink);
    m.want_freeze();
    drive(&mut m, &sink);
    drop(m);
    match open(config(dir.path(), 1, 2), disk.clone()) {
        Err(e) => println!("refused: {e}"),
        Ok(m) => {
            let neg: Vec<_> = (0..40)
                .map(|e| read(&m.engine, e % 20, e))
                .filter(|r| matches!(r, Err(Refusal::NoEntry | Refusal::NoLedger)))
                .collect();
            assert!(neg.is_empty(), "{} of 40 acknowledged entries answered {:?}", neg.len(), neg[0]);
        }
    }
}

/// Recovery adds once passed the bound of the forming group, until its parts did not fit a header.
#[test]
fn recovery_adds_stay_within_a_group() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    let mut c = config(dir.path(), 1, 1);
    // As the defaults choose for a 1 GiB pool: many chunks, here smaller ones.
    c.write_pool_bytes = 256 << 20;
    c.chunk_bytes = 1 << 20;
    c.entry_bytes_max = 900 << 10;
    c.journal_file_bytes = 16 << 20; // a group is half a file at most
    let (tx, _rx) = sync_channel(1 << 16);
    let mut m = open(c, disk).unwrap();
    let taken = (0..200).take_while(|e| add(&m.engine, 1, *e, 890 << 10, true) == 1).count();
    assert!((8..20).contains(&taken), "{taken} recovery adds of 890 KiB in a group of 8 MiB");
    drive(&mut m, &Answers(tx));
    assert_eq!(add(&m.engine, 1, 500, 890 << 10, true), 1, "the next group has room");
}

/// A kill -9 with unflushed 100 KiB entries, then a start with chunks that cannot hold them: refused with the setting
/// to change, nothing lost.
#[test]
fn a_smaller_entry_limit_is_refused_while_the_journal_needs_the_larger() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    let (tx, _rx) = sync_channel(1 << 16);
    let mut m = open(config(dir.path(), 1, 1), disk.clone()).unwrap();
    add(&m.engine, 1, 0, 100 << 10, false);
    let f = m.journals[0].cut().unwrap();
    let w = m.journals[0].write(&f);
    m.journals[0].finish(f, w).deliver(&Answers(tx));
    drop(m);
    let mut c = config(dir.path(), 1, 1);
    c.entry_bytes_max = 60 << 10;
    c.chunk_bytes = 64 << 10;
    let refused = open(c, disk.clone()).err().unwrap().to_string();
    assert!(refused.contains("nettyMaxFrameSizeBytes"), "{refused}");
    let again = open(config(dir.path(), 1, 1), disk).unwrap();
    assert_eq!(read(&again.engine, 1, 0).map(|b| b.len()), Ok(32 + (100 << 10)));
}

/// Two directories, 40 groups with one entry for each; the flush dies between the two commits.
fn half_flushed(dir: &Path) -> (i64, i64) {
    let mut c = config(dir, 2, 2);
    c.write_pool_bytes = 64 << 20;
    c.journal_file_bytes = 64 << 20;
    let mut m = open(c, budget(1)).unwrap();
    let of = |s| (0..).find(|l| m.engine.shard_of(LedgerId::new(*l).unwrap()) == s).unwrap();
    let (a, b) = (of(0), of(1));
    let (tx, rx) = sync_channel(1 << 16);
    let sink = Answers(tx);
    for e in 0..40 {
        assert_eq!(add(&m.engine, a, e, 100 << 10, false) + add(&m.engine, b, e, 100 << 10, false), 2);
        if e == 39 {
            m.want_freeze();
        }
        let f = m.journals[0].cut().unwrap();
        let w = m.journals[0].write(&f);
        let mut d = m.journals[0].finish(f, w);
        if let Some(t) = d.freeze.take() {
            println!("first flush: {:?}", m.flushing.flush(t).err().map(|e| e.to_string()));
        }
        d.deliver(&sink);
    }
    assert_eq!(rx.try_iter().filter(|d| d.result.is_ok()).count(), 80);
    (a, b)
}
fn lost(m: &Machine, a: i64, b: i64) -> Vec<(i64, i64, Refusal)> {
    [a, b]
        .iter()
        .flat_map(|l| (0..40).map(move |e| (*l, e)))
        .filter_map(|(l, e)| read(&m.engine, l, e).err().map(|r| (l, e, r)))
        .collect()
}

/// Finding: a mark runs ahead of its directory in a replay that runs out of room.
#[test]
fn a_mark_never_runs_ahead_of_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = half_flushed(dir.path());
    let mut c = config(dir.path(), 2, 2);
    c.write_pool_bytes = 2 << 20;
    c.journal_file_bytes = 64 << 20;
    println!("second start: {:?}", open(c.clone(), budget(2)).err().map(|e| e.to_string()));
    let m = open(c, budget(1000)).unwrap();
    let lost = lost(&m, a, b);
    println!("replayed {} groups, lost {} of 80, first {:?}", m.replayed.groups, lost.len(), lost.first());
    assert!(lost.is_empty());
}

/// Finding: the journal ends before a mark, and it goes unnoticed.
#[test]
fn a_journal_that_ends_before_a_mark_is_damage() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = half_flushed(dir.path());
    let path = dir.path().join("journal/journal-0000.bjl");
    let f = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let len = f.metadata().unwrap().len();
    f.write_all_at(&[0xff; 16], len - 8192).unwrap(); // inside the last group
    let mut c = config(dir.path(), 2, 2);
    c.journal_file_bytes = 64 << 20;
    match open(c, budget(1000)) {
        Err(e) => println!("refused: {e}"),
        Ok(m) => {
            let l = lost(&m, a, b);
            println!("opened: {:?}; lost {l:?}", m.replayed);
            assert!(l.is_empty());
        }
    }
}

/// Finding: small adds starve an entry larger than half a shard's share.
#[test]
fn a_large_entry_is_not_starved() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = config(dir.path(), 1, 1);
    c.group_bytes_max = 128 << 10; // a shard's share is the largest entry, as 8 shards of 16 MiB have 2 MiB for 5 MiB
    let mut m = open(c, budget(1000)).unwrap();
    let (tx, _rx) = sync_channel(1 << 16);
    let sink = Answers(tx);
    let mut rounds = 0;
    for e in 0..2000 {
        assert_eq!(add(&m.engine, 1, e, 100, false), 1); // another connection is a moment earlier
        if add(&m.engine, 2, 0, (128 << 10) - 64, false) == 1 {
            break;
        }
        drive(&mut m, &sink);
        rounds += 1;
    }
    println!("refused with no room in {rounds} of 2000 groups");
    assert!(rounds < 2000);
}
#[test]
fn recovery_adds_leave_room_for_a_fence() {
    let dir = tempfile::tempdir().unwrap();
    let m = open(config(dir.path(), 1, 2), budget(1000)).unwrap();
    let of = |s| (0..).find(|l| m.engine.shard_of(LedgerId::new(*l).unwrap()) == s).unwrap();
    let (a, b) = (of(0), of(1));
    let mut e = 0;
    while add(&m.engine, a, e, 100 << 10, true) == 1 {
        e += 1;
    }
    let (tx, rx) = sync_channel(1);
    m.engine.fence(
        LedgerId::new(b).unwrap(),
        KEY,
        Box::new(move |r| {
            let _ = tx.send(r);
        }),
    );
    println!("{e} recovery adds on shard 0 in one forming group; fence on shard 1: {:?}", rx.try_recv());
}

/// Pacing invariants 3 and 4: adds that overrun a flush are held back before the pool is full, recovery adds and fences
/// are not, and the end of the flush lets the adds in again.
#[test]
fn a_flush_that_is_overrun_holds_back_ordinary_adds_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = config(dir.path(), 1, 1);
    c.write_pool_bytes = 16 << 20;
    let mut m = open(c, budget(1000)).unwrap();
    let (tx, _rx) = sync_channel(1 << 16);
    let sink = Answers(tx);
    let mut tickets = Vec::new();
    let mut group = |m: &mut Machine| {
        let Some(f) = m.journals[0].cut() else { return };
        let w = m.journals[0].write(&f);
        let mut d = m.journals[0].finish(f, w);
        tickets.extend(d.freeze.take());
        d.deliver(&sink);
    };
    let mut entry = 0;
    while add(&m.engine, 1, entry, 100 << 10, false) == 1 {
        entry += 1;
        group(&mut m);
    }
    let stats = m.engine.stats();
    let free = stats.write_pool_chunks - stats.write_pool_chunks_in_use;
    assert!(free * 2 > stats.write_pool_chunks / 2, "{free} chunks are free of {}", stats.write_pool_chunks);
    assert_eq!(add(&m.engine, 1, entry, 100 << 10, true), 1, "a recovery add has its place");
    let fenced = Arc::new(AtomicBool::new(false));
    let seen = fenced.clone();
    let waiter = Box::new(move |outcome: Result<(), Refusal>| seen.store(outcome.is_ok(), Ordering::SeqCst));
    m.engine.fence(LedgerId::new(2).unwrap(), KEY, waiter);
    group(&mut m);
    assert!(fenced.load(Ordering::SeqCst), "a fence is written at once");
    assert_eq!(add(&m.engine, 1, entry + 1, 100, false), 0, "the flush has not moved");

    let waits = Arc::new(AtomicBool::new(true));
    let told = waits.clone();
    m.engine.when_room(0, &[], Box::new(move |_| told.store(false, Ordering::SeqCst)));
    group(&mut m);
    assert!(waits.load(Ordering::SeqCst), "nobody is woken without room");
    let ticket = tickets.pop().unwrap();
    let mark = m.flushing.flush(ticket).unwrap();
    m.journals[0].on_flushed(mark);
    assert_eq!(
        add(&m.engine, 1, entry + 1, 100, false),
        0,
        "nobody passes who waits (admission_queue invariant 1)"
    );
    let f = m.journals[0].cut().unwrap();
    let w = m.journals[0].write(&f);
    m.journals[0].finish(f, w).deliver(&sink);
    assert!(!waits.load(Ordering::SeqCst), "room wakes who waits for it");
    assert_eq!(add(&m.engine, 1, entry + 1, 100, false), 1);
}

/// A stop that leaves fences without an answer, because the only file of the journal is full and there is no space for another,
/// is not a clean one, and says why.
#[test]
fn a_stop_without_space_for_what_formed_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(OneFile(RealDisk::new()));
    let config =
        EngineConfig { journal_file_bytes: 64 << 10, group_bytes_max: 32 << 10, ..config(dir.path(), 1, 1) };
    let machine = open(config, disk.clone()).unwrap();
    let engine = machine.engine.clone();
    let (adds, _) = sync_channel(1 << 16);
    let threads = machine.start(disk, Arc::new(Answers(adds)));
    let (fences, outcomes) = sync_channel(1 << 16);
    let mut ledgers = 0;
    loop {
        let fences = fences.clone();
        let answer = move |outcome| fences.send(outcome).unwrap();
        engine.fence(LedgerId::new(ledgers).unwrap(), KEY, Box::new(answer));
        ledgers += 1;
        match outcomes.recv_timeout(Duration::from_millis(500)) {
            Ok(outcome) => assert_eq!(outcome, Ok(())),
            Err(_) => break,
        }
    }
    assert!(ledgers > 5 && engine.status().failed.is_none(), "{ledgers}");
    let stopped = threads.stop().unwrap_err();
    assert!(stopped.to_string().contains("journal-0001.bjl"), "{stopped}");
}
