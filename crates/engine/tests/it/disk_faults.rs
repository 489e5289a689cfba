//! Disks that are full or fail, write site by write site: a write without space waits and is tried again in a new file,
//! a failure costs one directory, and nothing acknowledged or fenced is lost either way (IB4 IB7 IB12 IB14 IB19).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_engine::*;
use bindery_io::{
    CheckedDisk, Disk, DiskFile, DiskLayer, FileLayer, ManualClock, OpenMode, RealDisk, SystemRandom,
};
use bindery_journal::inspect;
use bindery_types::{EntryId, LedgerId, MasterKey};
use parking_lot::Mutex;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

const KEY: MasterKey = MasterKey::new([1; 20]);

/// What fails: calls of these names on paths that contain the text, from the first one on.
#[derive(Clone)]
struct Rule {
    calls: &'static [&'static str],
    path: String,
    error: ErrorKind,
    /// Instead of `error`, what the kernel calls it.
    os_error: Option<i32>,
}

/// The real disk with rules, each counting what it hit.
#[derive(Default)]
struct Faults {
    rules: Mutex<Vec<Rule>>,
    hits: AtomicU64,
    /// Called at the first hit, in place of another thread that acts in the meantime.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Faults {
    fn check(&self, call: &str, path: &Path) -> io::Result<()> {
        let rules = self.rules.lock();
        let hit = rules.iter().find(|r| r.calls.contains(&call) && path.to_string_lossy().contains(&r.path));
        match hit {
            None => Ok(()),
            Some(rule) => {
                self.hits.fetch_add(1, Ordering::SeqCst);
                let error = match rule.os_error {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => io::Error::new(rule.error, "injected"),
                };
                drop(rules);
                let meanwhile = self.meanwhile.lock().take();
                if let Some(meanwhile) = meanwhile {
                    meanwhile();
                }
                Err(error)
            }
        }
    }

    fn set(&self, rules: &[Rule]) {
        *self.rules.lock() = rules.to_vec();
    }

    fn hits(&self) -> u64 {
        self.hits.swap(0, Ordering::SeqCst)
    }
}

struct FailingDisk(RealDisk, Arc<Faults>);
struct FailingFile {
    inner: Arc<dyn DiskFile>,
    path: PathBuf,
    faults: Arc<Faults>,
}

impl FileLayer for FailingFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.inner
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.faults.check("read", &self.path)?;
        self.inner.read_at(buf, offset)
    }
    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.faults.check("read", &self.path)?;
        self.inner.read_cached_at(buf, offset)
    }
    fn write_at(&self, slices: &[io::IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.faults.check("write", &self.path)?;
        self.inner.write_at(slices, offset)
    }
    fn write_durable_at(&self, slices: &[io::IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.faults.check("write", &self.path)?;
        self.inner.write_durable_at(slices, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.faults.check("sync", &self.path)?;
        self.inner.sync()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.faults.check("set_len", &self.path)?;
        self.inner.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.faults.check("allocate", &self.path)?;
        self.inner.allocate(len)
    }
}

impl DiskLayer for FailingDisk {
    fn beneath(&self) -> &dyn Disk {
        &self.0
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let call = match mode.is_read_only() {
            true => "open",
            false if self.0.exists(path)? => "reopen",
            false => "create",
        };
        self.1.check(call, path)?;
        let inner = self.0.open(path, mode)?;
        Ok(Arc::new(FailingFile { inner, path: path.to_owned(), faults: self.1.clone() }))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.1.check("rename", to)?;
        self.0.rename(from, to)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.1.check("sync_dir", dir)?;
        self.0.sync_dir(dir)
    }
}

struct Bookie {
    dir: tempfile::TempDir,
    dirs: usize,
    journals: usize,
    shards: usize,
    journal_bytes_max: u64,
    journal_sync: bool,
    write_pool_bytes: u64,
    /// Places of entries are found on disk.
    is_paged: bool,
    faults: Arc<Faults>,
    clock: Arc<ManualClock>,
    machine: Option<Machine>,
    acked: Vec<(i64, i64)>,
}

#[derive(Clone, Default)]
struct Inbox(Arc<Mutex<Vec<AddDone>>>);
impl AddSink for Inbox {
    fn on_adds_done(&self, _: &GroupTimes, shards: &[Vec<AddDone>]) {
        self.0.lock().extend(shards.iter().flatten());
    }
}

fn place(engine: &Engine, ledger: i64, entry: i64, is_high_priority: bool) {
    place_as(engine, ledger, entry, false, is_high_priority);
}

fn place_as(engine: &Engine, ledger: i64, entry: i64, is_recovery: bool, is_high_priority: bool) {
    let mut body = Vec::new();
    for field in [ledger, entry, entry - 1, 0] {
        body.extend_from_slice(&field.to_be_bytes());
    }
    body.resize(2000, entry as u8);
    let id = LedgerId::new(ledger).unwrap();
    let taken = engine.add_batch(
        engine.shard_of(id),
        &[Add {
            origin: Origin { connection: 0, txn: 0, tag: 0 },
            ledger: id,
            entry: EntryId::new(entry).unwrap(),
            last_add_confirmed: EntryId::new(entry - 1),
            key: KEY,
            body: &body,
            is_recovery,
            is_high_priority,
        }],
    );
    assert_eq!(taken, 1);
}

impl Bookie {
    fn new(dirs: usize) -> Bookie {
        Bookie::of(dirs, 1, 3, 0)
    }

    fn of(dirs: usize, journals: usize, shards: usize, journal_bytes_max: u64) -> Bookie {
        let mut bookie = Bookie {
            dir: tempfile::tempdir().unwrap(),
            dirs,
            journals,
            shards,
            journal_bytes_max,
            journal_sync: true,
            write_pool_bytes: 8 << 20,
            is_paged: false,
            faults: Arc::default(),
            clock: Arc::new(ManualClock::new(0)),
            machine: None,
            acked: Vec::new(),
        };
        bookie.open().unwrap();
        bookie
    }

    fn config(&self) -> EngineConfig {
        let dir = self.dir.path();
        let default = EngineConfig::default();
        let of_memory = |bytes: u64| if self.is_paged { 0 } else { bytes };
        EngineConfig {
            index_pool_bytes: of_memory(default.index_pool_bytes),
            cache_pool_bytes: of_memory(default.cache_pool_bytes),
            journal_dirs: ["journal", "second"][..self.journals].iter().map(|name| dir.join(name)).collect(),
            journal_bytes_max: self.journal_bytes_max,
            journal_sync: self.journal_sync,
            ledger_dirs: (0..self.dirs).map(|i| dir.join(format!("ledgers{i}"))).collect(),
            shard_count: self.shards,
            write_pool_bytes: self.write_pool_bytes,
            chunk_bytes: 256 << 10,
            entry_bytes_max: 128 << 10,
            journal_file_bytes: 1 << 20,
            journal_files_preallocated: 0,
            ..default
        }
    }

    fn open(&mut self) -> Result<(), OpenError> {
        self.machine = None;
        // Panics when a file is written or synced again after it failed (IB14).
        let disk = CheckedDisk::new(FailingDisk(RealDisk::new(), self.faults.clone()));
        let opened = Machine::open(self.config(), Arc::new(disk), self.clock.clone(), Arc::new(SystemRandom));
        self.machine = Some(opened?);
        Ok(())
    }

    fn engine(&self) -> Arc<Engine> {
        self.machine.as_ref().unwrap().engine.clone()
    }

    /// A ledger of each shard, so of each directory.
    fn ledgers(&self) -> Vec<i64> {
        let engine = self.engine();
        (0..self.shards)
            .map(|s| (0..).find(|l| engine.shard_of(LedgerId::new(*l).unwrap()) == s).unwrap())
            .collect()
    }

    fn add(&mut self, ledger: i64, entry: i64, is_high_priority: bool) -> Result<(), Refusal> {
        self.add_as(ledger, entry, false, is_high_priority)
    }

    /// As a recovery does, of our clients and of Java's.
    fn recover(&mut self, ledger: i64, entry: i64) -> Result<(), Refusal> {
        self.add_as(ledger, entry, true, true)
    }

    fn add_as(
        &mut self,
        ledger: i64,
        entry: i64,
        is_recovery: bool,
        is_high_priority: bool,
    ) -> Result<(), Refusal> {
        place_as(&self.engine(), ledger, entry, is_recovery, is_high_priority);
        let result = self.drive().pop().unwrap().result;
        if result.is_ok() {
            self.acked.push((ledger, entry));
        }
        result
    }

    /// Runs the journal and the flushes that become due.
    fn drive(&mut self) -> Vec<AddDone> {
        (0..self.journals).flat_map(|journal| self.drive_journal(journal)).collect()
    }

    fn drive_journal(&mut self, journal: usize) -> Vec<AddDone> {
        let inbox = Inbox::default();
        while let Some(ticket) = self.groups(journal, &inbox) {
            let machine = self.machine.as_mut().unwrap();
            if let Ok(flushed) = machine.flushing.flush(ticket) {
                machine.journals[flushed.journal].on_flushed(flushed);
            }
        }
        std::mem::take(&mut *inbox.0.lock())
    }

    /// Writes what formed, up to a group that froze the caches.
    fn groups(&mut self, journal: usize, inbox: &Inbox) -> Option<FreezeTicket> {
        let journaling = &mut self.machine.as_mut().unwrap().journals[journal];
        while let Some(in_flight) = journaling.cut() {
            let written = journaling.write(&in_flight);
            let mut done = journaling.finish(in_flight, written);
            let ticket = done.freeze.take();
            done.deliver(inbox);
            if ticket.is_some() {
                return ticket;
            }
        }
        None
    }

    fn flush(&mut self) {
        self.machine.as_ref().unwrap().want_freeze();
        self.drive();
    }

    /// The work of the flush thread between two tickets.
    fn tend(&mut self) {
        self.clock.advance(Duration::from_secs(2));
        let machine = self.machine.as_mut().unwrap();
        if let Some(Ok(flushed)) = machine.flushing.retry() {
            machine.journals[flushed.journal].on_flushed(flushed);
        }
        let _ = machine.flushing.tend();
    }

    fn fence(&mut self, ledger: i64) -> Result<(), Refusal> {
        let (sender, receiver) = sync_channel(1);
        let waiter = Box::new(move |outcome| sender.send(outcome).unwrap());
        self.engine().fence(LedgerId::new(ledger).unwrap(), KEY, waiter);
        self.drive();
        self.tend();
        receiver.try_recv().expect("a fence is answered")
    }

    fn read(&self, ledger: i64, entry: i64) -> Result<Vec<u8>, Refusal> {
        match self
            .engine()
            .read(LedgerId::new(ledger).unwrap(), EntryRef::At(EntryId::new(entry).unwrap()))?
        {
            Lookup::Memory(body) => Ok(body.to_vec()),
            Lookup::Disk(read) => read.load(),
            Lookup::Tiered(_) => panic!("nothing is in object storage"),
            Lookup::Undurable(_) => Err(Refusal::TooManyRequests),
        }
    }

    fn check_acked(&self) {
        for (ledger, entry) in &self.acked {
            let found = self.read(*ledger, *entry).map(|body| body[32]);
            assert_eq!(found, Ok(*entry as u8), "{ledger}:{entry} was acknowledged");
        }
    }

    /// As after a kill -9: everything acknowledged is there, and no directory is behind.
    fn restart(&mut self) {
        self.faults.set(&[]);
        self.open().unwrap();
        self.check_acked();
    }

    /// Number of entry logs in the directories.
    fn logs(&self) -> usize {
        let names = (0..self.dirs)
            .flat_map(|i| std::fs::read_dir(self.dir.path().join(format!("ledgers{i}"))).unwrap());
        names.filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().ends_with(".elog")).count()
    }
}

fn full(calls: &'static [&'static str], path: &str) -> Rule {
    Rule { calls, path: path.to_owned(), error: ErrorKind::StorageFull, os_error: None }
}

fn broken(calls: &'static [&'static str], path: &str) -> Rule {
    Rule { error: ErrorKind::Other, ..full(calls, path) }
}

fn without_descriptor(calls: &'static [&'static str], path: &str) -> Rule {
    const EMFILE: i32 = 24;
    Rule { os_error: Some(EMFILE), ..full(calls, path) }
}

/// Every write site of a flush that may find no space: adds are refused meanwhile, reads and fences go on, the retry
/// goes into a new file, and then everything goes on. Nothing piles up.
#[test]
fn a_flush_without_space_waits_and_goes_on() {
    for (dirs, calls, path) in [
        (1, &["create"][..], ".elog"),
        (1, &["write"], ".elog"),
        (1, &["sync"], ".elog"),
        (2, &["write"], ".elog"),
        (2, &["write"], "ledgers1"),
    ] {
        let mut bookie = Bookie::new(dirs);
        let ledgers = bookie.ledgers();
        for entry in 0..5 {
            for ledger in &ledgers {
                bookie.add(*ledger, entry, false).unwrap();
            }
        }
        let path = if path == "ledgers1" { "ledgers1/0" } else { path };
        bookie.faults.set(&[full(calls, path)]);
        bookie.flush();
        if bookie.faults.hits() == 0 {
            panic!("{calls:?} {path}: nothing was injected");
        }
        let status = bookie.engine().status();
        assert!(status.waits().is_some() && status.failed.is_none(), "{status:?}");
        let before = bookie.logs();
        for _ in 0..5 {
            bookie.tend();
        }
        assert!(bookie.faults.hits() >= 5, "{calls:?} {path}: tried again");
        assert!(bookie.logs() <= before, "{calls:?} {path}: attempts pile up");
        for is_high_priority in [false, true] {
            assert_eq!(bookie.add(ledgers[0], 99, is_high_priority), Err(Refusal::ReadOnly));
        }
        bookie.check_acked();
        assert_eq!(bookie.fence(ledgers[1]), Ok(()), "a full bookie fences");

        bookie.faults.set(&[]);
        bookie.tend();
        assert_eq!(bookie.engine().status().waits(), None, "{calls:?} {path}");
        for entry in 5..8 {
            bookie.add(ledgers[0], entry, false).unwrap();
        }
        assert_eq!(bookie.add(ledgers[1], 8, false), Err(Refusal::Fenced));
        bookie.flush();
        bookie.check_acked();
        bookie.restart();
        assert!(bookie.engine().is_fenced(LedgerId::new(ledgers[1]).unwrap()));
        assert_eq!(bookie.machine.as_ref().unwrap().replayed.records, 0, "everything was flushed");
    }
}

/// Recovery invariants 2 and 3: while a flush waits for space a ledger can be closed, and its entries outlive a crash and are
/// flushed when there is room. That is for recoveries alone, and ends with their reserve.
#[test]
fn a_full_bookie_takes_what_recoveries_add_within_their_reserve() {
    for is_killed in [false, true] {
        let mut bookie = Bookie::new(1);
        let ledgers = bookie.ledgers();
        for entry in 0..5 {
            bookie.add(ledgers[0], entry, false).unwrap();
        }
        bookie.faults.set(&[full(&["write"], ".elog")]);
        bookie.flush();
        // Of 2,000 bytes each, with their headers.
        bookie.engine().set_recovery_reserve(9_000);
        assert!(bookie.engine().status().waits_for_space.is_some());
        assert_eq!(bookie.fence(ledgers[0]), Ok(()));
        for entry in [5, 6, 7] {
            assert_eq!(bookie.recover(ledgers[0], entry), Ok(()));
        }
        assert_eq!(bookie.recover(2_000_000, 0), Ok(()), "of a ledger that is new here");
        assert_eq!(bookie.engine().status().recoveries_refused, 0);
        assert_eq!(bookie.recover(ledgers[0], 8), Err(Refusal::ReadOnly), "nothing is left");
        let status = bookie.engine().status();
        assert_eq!((status.recoveries_refused, status.recovery_reserve_bytes), (1, 9_000 - 4 * 2_012));

        bookie.engine().set_recovery_reserve(1 << 20);
        for (is_recovery, is_high_priority) in [(false, false), (false, true), (true, false)] {
            let refused = bookie.add_as(ledgers[1], 5, is_recovery, is_high_priority);
            assert_eq!(refused, Err(Refusal::ReadOnly), "{is_recovery} {is_high_priority}");
        }
        if is_killed {
            bookie.open().unwrap();
            assert!(bookie.engine().status().waits_for_space.is_some(), "still full");
        }
        assert_eq!(bookie.recover(ledgers[0], 8), Ok(()));
        bookie.check_acked();
        bookie.faults.set(&[]);
        bookie.tend();
        assert_eq!(bookie.engine().status().waits(), None);
        assert_eq!(bookie.add(ledgers[0], 9, false), Err(Refusal::Fenced));
        bookie.add(ledgers[1], 0, false).unwrap();
        bookie.flush();
        bookie.check_acked();
        bookie.restart();
        bookie.check_acked();
        assert_eq!(bookie.machine.as_ref().unwrap().replayed.records, 0, "everything was flushed");
    }
}

/// Recovery invariant 4: a recovery adds the entries it read again. An entry that is here takes no room: it is acknowledged for the copy in
/// memory, or for the one on disk, which the caller compares; anything else, and any other add, is not.
#[test]
fn what_a_recovery_adds_again_to_a_full_bookie_takes_no_room() {
    let mut bookie = Bookie::new(1);
    let ledger = bookie.ledgers()[0];
    for entry in 0..3 {
        bookie.add(ledger, entry, false).unwrap();
    }
    bookie.flush();
    for entry in 3..6 {
        bookie.add(ledger, entry, false).unwrap();
    }
    bookie.faults.set(&[full(&["write"], ".elog")]);
    bookie.flush();
    let engine = bookie.engine();
    engine.set_recovery_reserve(0);
    let records = || engine.stats().journal_bytes;
    let before = records();
    for entry in 3..6 {
        assert_eq!(bookie.recover(ledger, entry), Ok(()), "in memory");
    }
    assert_eq!(bookie.add(ledger, 3, true), Err(Refusal::ReadOnly), "not of a recovery");
    assert_eq!(bookie.recover(ledger, 6), Err(Refusal::ReadOnly), "not here");
    assert_eq!(records(), before, "nothing was placed");

    let (id, other) = (LedgerId::new(ledger).unwrap(), MasterKey::new([2; 20]));
    let body = |entry: i64, last: u8| {
        let mut body = bookie.read(ledger, entry).unwrap();
        *body.last_mut().unwrap() = last;
        body
    };
    let bodies: Vec<Vec<u8>> = vec![body(1, 1), body(1, 7), body(4, 7)];
    let add = |at: usize, key| Add {
        origin: Origin { connection: 0, txn: at as u64, tag: 0 },
        ledger: id,
        entry: EntryId::new([1, 1, 4][at]).unwrap(),
        last_add_confirmed: None,
        key,
        body: &bodies[at],
        is_recovery: true,
        is_high_priority: true,
    };
    let ask = |add: Add<'_>| {
        let mut asks = Vec::new();
        assert_eq!(engine.add_or_ask(engine.shard_of(id), &[add], None, &mut asks), 1);
        asks.len()
    };
    // On disk: left with the caller, with the copy. The same or not is for the caller to say.
    for at in [0, 1] {
        assert_eq!(ask(add(at, KEY)), 1, "{at}");
        assert_eq!(engine.copy_on_disk(&add(at, KEY)).unwrap().load().unwrap(), bodies[0]);
    }
    assert!(engine.confirm(&add(0, KEY)));
    assert_eq!(bookie.drive().pop().unwrap().result, Ok(()));
    // Another key, or other bytes in memory: that is no copy.
    assert!(engine.copy_on_disk(&add(0, other)).is_none() && !engine.confirm(&add(0, other)));
    assert_eq!((ask(add(0, other)), ask(add(2, KEY))), (0, 0));
    assert!(bookie.drive().iter().all(|done| done.result == Err(Refusal::ReadOnly)));
    // Without asking, as after a copy that is another one.
    assert_eq!(bookie.recover(ledger, 1), Err(Refusal::ReadOnly));
    // A ledger that was removed has no copies, and what waits for its comparison is not acknowledged.
    engine.remove_ledger(id, Box::new(|_| {}));
    bookie.drive();
    assert!(engine.copy_on_disk(&add(0, KEY)).is_none() && !engine.confirm(&add(0, KEY)));
    assert_eq!(bookie.recover(ledger, 4), Err(Refusal::ReadOnly));
}

/// A volume above its threshold: recoveries pass within the reserve, and all of high priority where there is room for it.
#[test]
fn a_read_only_bookie_takes_what_recoveries_add_within_their_reserve() {
    let mut bookie = Bookie::new(1);
    let engine = bookie.engine();
    engine.set_read_only(true);
    engine.set_recovery_reserve(2_100);
    assert_eq!(bookie.add(1, 0, true), Ok(()));
    assert_eq!(bookie.recover(1, 1), Ok(()));
    assert_eq!(engine.status().recovery_reserve_bytes, 2_100, "there is room for high priority");
    engine.set_takes_high_priority(false);
    assert_eq!(bookie.add(1, 2, true), Err(Refusal::ReadOnly));
    assert_eq!(bookie.recover(1, 2), Ok(()));
    assert_eq!(bookie.recover(1, 3), Err(Refusal::ReadOnly));
    engine.set_read_only(false);
    assert_eq!(bookie.recover(1, 3), Ok(()));
    assert_eq!(engine.status().recovery_reserve_bytes, 2_100 - 2_012);
    bookie.check_acked();
}

/// Recovery invariant 1, and who waits for a descriptor says nothing about space: neither takes what recoveries add.
#[test]
fn recoveries_pass_for_want_of_space_alone() {
    let mut bookie = Bookie::new(1);
    bookie.add(1, 0, false).unwrap();
    bookie.faults.set(&[without_descriptor(&["create"], ".elog")]);
    bookie.flush();
    assert!(bookie.engine().status().waits_for_descriptor.is_some());
    assert_eq!(bookie.recover(1, 1), Err(Refusal::ReadOnly));
    bookie.faults.set(&[full(&["create"], ".elog")]);
    bookie.tend();
    assert!(bookie.engine().status().waits_for_space.is_some());
    assert_eq!(bookie.recover(1, 1), Ok(()));
    bookie.faults.set(&[broken(&["create"], ".elog")]);
    bookie.tend();
    assert!(bookie.engine().status().failed.is_some());
    assert_eq!(bookie.recover(1, 2), Err(Refusal::ReadOnly));
    bookie.check_acked();
}

/// Recovery invariant 2: where the journal can have no other file either, recoveries are refused in time, so that fences
/// find room behind them; none of them waits.
#[test]
fn recoveries_leave_room_for_fences_in_the_last_file_of_a_journal() {
    for (size, shards) in [(1, 1), (1, 3), (3, 3)] {
        let mut bookie = Bookie::of(1, 1, shards, 0);
        let ledgers = bookie.ledgers();
        // With its first file no other is made; or it has a second one by then.
        let path = if size == 1 { "journal-0001" } else { "journal-0002" };
        bookie.faults.set(&[full(&["create", "allocate"], path), full(&["write"], ".elog")]);
        let added =
            (0..2000).take_while(|entry| bookie.add(ledgers[0], *entry, false).is_ok()).count() as i64;
        assert!(bookie.engine().status().waits_for_space.is_some());
        let mut taken = 0;
        let refused = (added..added + 2000).find_map(|entry| {
            // From several shards in one group, as far as there is room.
            for ledger in &ledgers {
                place_as(&bookie.engine(), *ledger, entry, true, true);
            }
            let answers = bookie.drive();
            assert_eq!(answers.len(), ledgers.len(), "none waits");
            for done in &answers {
                if done.result.is_ok() {
                    taken += 1;
                    bookie.acked.push((done.ledger.get(), entry));
                }
            }
            answers.iter().find_map(|done| done.result.err())
        });
        assert_eq!(refused, Some(Refusal::ReadOnly));
        assert!(taken > 10, "{taken} of {shards} shards");
        for fenced in 0..20 {
            assert_eq!(bookie.fence(1_000_000 + fenced), Ok(()));
        }
        bookie.check_acked();
        bookie.open().unwrap();
        bookie.check_acked();
        bookie.faults.set(&[]);
        bookie.machine.as_mut().unwrap().journals[0].seal();
        bookie.tend();
        assert_eq!(bookie.engine().status().waits(), None);
        bookie.add(ledgers[0], 5000, false).unwrap();
        bookie.restart();
        bookie.check_acked();
    }
}

/// A full disk has a way out: while a flush waits for space, a ledger that is deleted gives the space of its logs back, which
/// needs a commit and no other room; and the removal holds over a crash.
#[test]
fn a_removal_gives_space_back_while_a_flush_waits_for_it() {
    for is_killed in [false, true] {
        let mut bookie = Bookie::new(1);
        let [first, second, ..] = bookie.ledgers()[..] else { panic!("three shards") };
        for entry in 0..5 {
            bookie.add(first, entry, false).unwrap();
        }
        bookie.flush();
        bookie.add(first, 5, false).unwrap();
        bookie.add(second, 0, false).unwrap();
        bookie.faults.set(&[full(&["create"], ".elog")]);
        bookie.flush();
        assert!(bookie.engine().status().waits_for_space.is_some());
        assert_eq!(bookie.logs(), 1);

        let removed = Arc::new(Mutex::new(None));
        let answer = removed.clone();
        let id = LedgerId::new(first).unwrap();
        bookie.engine().remove_ledger(id, Box::new(move |outcome| *answer.lock() = Some(outcome)));
        bookie.drive();
        assert_eq!(removed.lock().take(), Some(Ok(())));
        bookie.engine().want_collection_after_removals(WantedCollection::default());
        for _ in 0..5 {
            bookie.tend();
        }
        assert_eq!(bookie.logs(), 0, "nothing of the log is live");
        assert!(bookie.engine().status().waits_for_space.is_some());

        bookie.acked.retain(|(ledger, _)| *ledger != first);
        if is_killed {
            bookie.restart();
        }
        bookie.faults.set(&[]);
        for _ in 0..5 {
            bookie.tend();
        }
        assert_eq!(bookie.engine().status().waits(), None);
        assert_eq!(bookie.read(first, 0), Err(Refusal::NoLedger), "is killed: {is_killed}");
        assert_eq!(bookie.read(first, 5), Err(Refusal::NoLedger));
        bookie.add(second, 1, false).unwrap();
        bookie.flush();
        bookie.check_acked();
        bookie.restart();
        assert_eq!(bookie.read(first, 0), Err(Refusal::NoLedger));
    }
}

/// Entries that wait for space need none once their ledger is deleted: the flush leaves them out, and completes with
/// the rest. A volume that holds little but the journal has no other way out. The removal holds over a crash, and the
/// ledger may come back.
#[test]
fn a_removal_takes_what_waits_for_space_out_of_the_flush() {
    for is_killed in [false, true] {
        let mut bookie = Bookie::new(1);
        let [first, second, ..] = bookie.ledgers()[..] else { panic!("three shards") };
        for entry in 0..5 {
            bookie.add(first, entry, false).unwrap();
        }
        bookie.faults.set(&[full(&["create"], ".elog")]);
        bookie.flush();
        bookie.tend();
        assert!(bookie.engine().status().waits_for_space.is_some());

        let id = LedgerId::new(first).unwrap();
        let (sender, receiver) = sync_channel(1);
        bookie.engine().remove_ledger(id, Box::new(move |outcome| sender.send(outcome).unwrap()));
        bookie.tend();
        assert!(bookie.engine().status().waits_for_space.is_some(), "the journal does not have the removal");
        bookie.drive();
        assert_eq!(receiver.try_recv(), Ok(Ok(())));
        bookie.acked.clear();
        bookie.tend();
        assert_eq!(bookie.engine().status().waits(), None, "there is nothing to write");
        assert_eq!(bookie.logs(), 0);
        if is_killed {
            bookie.restart();
        }
        bookie.faults.set(&[]);
        assert_eq!(bookie.read(first, 0), Err(Refusal::NoLedger), "is killed: {is_killed}");
        bookie.add(second, 0, false).unwrap();
        let (sender, receiver) = sync_channel(1);
        bookie.engine().revive_ledger(id, KEY, Box::new(move |outcome| sender.send(outcome).unwrap()));
        bookie.drive();
        assert_eq!(receiver.try_recv(), Ok(Ok(())));
        bookie.add(first, 7, false).unwrap();
        bookie.flush();
        bookie.check_acked();
        bookie.restart();
        assert_eq!(bookie.read(first, 0), Err(Refusal::NoEntry));
    }
}

/// The same beside a ledger that stays: the rest of the waiting flush is written.
#[test]
fn what_stays_of_a_flush_that_waited_is_written() {
    let mut bookie = Bookie::new(1);
    let [first, second, ..] = bookie.ledgers()[..] else { panic!("three shards") };
    for entry in 0..5 {
        bookie.add(first, entry, false).unwrap();
        bookie.add(second, entry, false).unwrap();
    }
    bookie.faults.set(&[full(&["write"], ".elog")]);
    bookie.flush();
    bookie.engine().remove_ledger(LedgerId::new(first).unwrap(), Box::new(|_| ()));
    bookie.drive();
    bookie.acked.retain(|(ledger, _)| *ledger != first);
    bookie.tend();
    assert!(bookie.engine().status().waits_for_space.is_some(), "there are entries to write");
    bookie.faults.set(&[]);
    let before = bookie.engine().stats();
    bookie.tend();
    assert_eq!(bookie.engine().status().waits(), None);
    let after = bookie.engine().stats();
    assert_eq!(after.flushed_entries - before.flushed_entries, 5, "only those of the ledger that stays");
    bookie.check_acked();
    bookie.restart();
    assert_eq!(bookie.read(first, 0), Err(Refusal::NoLedger));
}

/// A log that is dropped while a scrub is in the middle of it gives its blocks back: no reader has its file open.
#[test]
fn a_scrub_keeps_no_file_of_a_dropped_log_open() {
    let mut bookie = Bookie::new(1);
    let ledger = bookie.ledgers()[0];
    // More than the scrub looks at in one step.
    for entry in 0..300 {
        bookie.add(ledger, entry, false).unwrap();
    }
    bookie.flush();
    bookie.tend();
    let dir = bookie.dir.path().to_owned();
    let open_logs = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let paths = open.filter_map(|file| std::fs::read_link(file.path()).ok());
        paths.filter(|path| path.starts_with(&dir) && path.to_string_lossy().contains(".elog")).count()
    };
    assert_eq!(open_logs(), 2, "one for readers, one of the scrub");
    bookie.engine().remove_ledger(LedgerId::new(ledger).unwrap(), Box::new(|_| ()));
    bookie.flush();
    bookie.engine().want_collection(WantedCollection::default());
    for _ in 0..5 {
        bookie.tend();
    }
    assert_eq!((bookie.logs(), open_logs()), (0, 0));
}

/// A scrub that gets no descriptor, or no memory for its reads, has found nothing: it waits, and checks the log later.
#[test]
fn a_scrub_without_file_descriptors_finds_no_damage() {
    const ENOMEM: i32 = 12;
    for (rule, why) in [
        (without_descriptor(&["open"], ".elog"), "open"),
        (Rule { os_error: Some(ENOMEM), ..full(&["read"], ".elog") }, "read"),
    ] {
        let mut bookie = Bookie::new(1);
        let ledger = bookie.ledgers()[0];
        for entry in 0..5 {
            bookie.add(ledger, entry, false).unwrap();
        }
        bookie.flush();
        bookie.engine().want_scrub();
        bookie.faults.hits();
        bookie.faults.set(&[rule]);
        for _ in 0..20 {
            bookie.tend();
        }
        assert!(bookie.faults.hits() > 1, "{why}: tried again");
        let status = bookie.engine().scrub_status();
        assert_eq!((status.findings, status.damaged_logs), (0, 0), "{why}: {status:?}");
        assert!(status.is_running, "{why}: the pass is not over");

        bookie.faults.set(&[]);
        for _ in 0..20 {
            bookie.tend();
        }
        let status = bookie.engine().scrub_status();
        let last = status.last.unwrap();
        assert_eq!((last.findings, last.entries), (0, 5), "{why}");
        bookie.check_acked();
    }
}

/// Where a flush takes a file descriptor and there is none: that passes, so it waits as for space and costs no directory.
#[test]
fn a_flush_without_file_descriptors_waits_and_goes_on() {
    for (dirs, calls, path) in [
        (1, &["create"][..], ".elog"),
        // Read back before the commit.
        (1, &["open"], ".elog"),
        (1, &["sync_dir"], "ledgers0"),
        (2, &["create", "open"], "ledgers1/0"),
    ] {
        let mut bookie = Bookie::new(dirs);
        let ledgers = bookie.ledgers();
        for ledger in &ledgers {
            bookie.add(*ledger, 0, false).unwrap();
        }
        let before = bookie.logs();
        bookie.faults.set(&[without_descriptor(calls, path)]);
        bookie.flush();
        assert!(bookie.faults.hits() > 0, "{calls:?} {path}: nothing was injected");
        for _ in 0..5 {
            bookie.tend();
            let status = bookie.engine().status();
            assert!(status.waits_for_descriptor.is_some(), "{calls:?} {path}: {status:?}");
            assert_eq!(status.waits_for_space, None, "no volume is full");
            assert!(status.failed.is_none() && status.directories_failed.is_empty(), "{status:?}");
        }
        assert!(bookie.faults.hits() >= 5, "{calls:?} {path}: tried again");
        assert!(bookie.logs() < before + dirs, "{calls:?} {path}: attempts pile up");
        bookie.check_acked();

        bookie.faults.set(&[]);
        bookie.tend();
        assert_eq!(bookie.engine().status().waits(), None, "{calls:?} {path}");
        bookie.add(ledgers[0], 1, false).unwrap();
        bookie.flush();
        bookie.restart();
        assert_eq!(bookie.machine.as_ref().unwrap().replayed.records, 0, "everything was flushed");
    }
}

/// Space invariant 5: a ledger comes back while the directory that was its own before fails to forget its removal, and
/// is frozen right then. The other directory's memory must not count as later.
#[test]
fn a_ledger_frozen_while_it_is_forgotten_outlives_its_removal() {
    let mut bookie = Bookie::new(1);
    let ledger = bookie.ledgers()[1];
    bookie.add(ledger, 0, false).unwrap();
    bookie.acked.clear();
    bookie.engine().remove_ledger(LedgerId::new(ledger).unwrap(), Box::new(|_| ()));
    bookie.flush();
    // With two directories the second one is home to its shard, and the first still remembers the removal.
    bookie.dirs = 2;
    bookie.restart();
    bookie.machine.as_ref().unwrap().want_freeze();
    let Machine { engine, mut journals, mut flushing, .. } = bookie.machine.take().unwrap();
    let (inbox, engine_of_others) = (Inbox::default(), engine.clone());
    let (sender, frozen) = sync_channel(1);
    *bookie.faults.meanwhile.lock() = Some(Box::new(move || {
        place(&engine_of_others, ledger, 1, false);
        let in_flight = journals[0].cut().unwrap();
        let written = journals[0].write(&in_flight);
        let mut done = journals[0].finish(in_flight, written);
        sender.send((done.freeze.take().unwrap(), journals)).unwrap();
        done.deliver(&inbox);
        assert_eq!(inbox.0.lock().pop().unwrap().result, Ok(()));
    }));
    bookie.faults.set(&[broken(&["write"], "ledgers0/")]);
    assert!(flushing.forget_removed().is_err(), "one directory cannot forget");
    bookie.acked.push((ledger, 1));
    let (ticket, mut journals) = frozen.try_recv().expect("it was forgotten in the shard, and came back");
    journals[0].on_flushed(flushing.flush(ticket).unwrap());
    drop((engine, journals, flushing));
    bookie.restart();
}

/// The state table asks for its blocks before it writes: without them only its commit fails, and it is opened again.
/// There are enough ledgers for it to grow.
#[test]
fn a_state_table_without_space_waits_and_goes_on() {
    let mut bookie = Bookie::new(2);
    bookie.faults.set(&[full(&["allocate"], "state.redb")]);
    let mut next = 0;
    while bookie.faults.hits() == 0 {
        assert!(next < 60_000, "the table never grew");
        for _ in 0..3000 {
            let (ledger, waiter) = (LedgerId::new(next).unwrap(), Box::new(|_| ()));
            bookie.engine().fence(ledger, KEY, waiter);
            next += 1;
        }
        bookie.drive();
        bookie.flush();
    }
    assert!(bookie.engine().status().waits().is_some());
    assert_eq!(bookie.add(next, 0, false), Err(Refusal::ReadOnly));
    bookie.tend();
    assert!(bookie.faults.hits() > 0, "the same again");
    bookie.faults.set(&[]);
    bookie.tend();
    assert_eq!(bookie.engine().status().waits(), None);
    bookie.add(next, 0, false).unwrap();
    bookie.flush();
    bookie.restart();
    for ledger in (0..next).step_by(97) {
        assert!(bookie.engine().is_fenced(LedgerId::new(ledger).unwrap()), "{ledger}");
    }
}

/// Space invariant 8: a directory whose state table finds no space keeps its dead log, and the memory of removed ledgers
/// stays; the other directory is collected in the same collection.
#[test]
fn a_directory_without_space_keeps_no_other_from_being_collected() {
    let mut bookie = Bookie::new(2);
    let ledgers = bookie.ledgers();
    for ledger in &ledgers[..2] {
        bookie.add(*ledger, 0, false).unwrap();
    }
    bookie.flush();
    // Of the second directory, and forgotten from the first one before.
    let second = ledgers[1] + 1;
    let forgotten = (second..).find(|l| bookie.engine().shard_of(LedgerId::new(*l).unwrap()) == 1).unwrap();
    bookie.add(forgotten, 0, false).unwrap();
    bookie.acked.clear();
    for ledger in [ledgers[0], ledgers[1], forgotten] {
        bookie.engine().remove_ledger(LedgerId::new(ledger).unwrap(), Box::new(|_| ()));
    }
    bookie.flush();
    assert_eq!(bookie.logs(), 2);

    // Its table wants to grow and cannot, nor can it be opened again.
    bookie.faults.set(&[full(&["allocate"], "ledgers0/state.redb")]);
    let mut next = 10_000;
    while bookie.faults.hits() == 0 {
        assert!(next < 100_000, "the table never grew");
        for ledger in next..next + 3000 {
            bookie.engine().fence(LedgerId::new(ledger).unwrap(), KEY, Box::new(|_| ()));
        }
        next += 3000;
        bookie.drive();
        bookie.flush();
    }
    bookie.faults.set(&[full(&["read"], "ledgers0/state.redb")]);
    bookie.engine().want_collection(WantedCollection::default());
    for _ in 0..5 {
        bookie.tend();
    }
    assert!(bookie.faults.hits() > 0);
    let space = bookie.engine().space_status();
    assert_eq!((space.collections, space.logs_dropped), (1, 1), "{space:?}");
    assert!(space.errors >= 2, "to forget and to drop: {space:?}");
    let status = bookie.engine().status();
    assert!(status.failed.is_none() && status.directories_failed.is_empty(), "{status:?}");

    bookie.faults.set(&[]);
    bookie.engine().want_collection(WantedCollection::default());
    for _ in 0..5 {
        bookie.tend();
    }
    let space = bookie.engine().space_status();
    assert_eq!((space.collections, space.logs_dropped), (2, 2), "{space:?}");
    bookie.restart();
    for ledger in [ledgers[0], ledgers[1], forgotten] {
        assert_eq!(bookie.read(ledger, 0), Err(Refusal::NoLedger));
    }
}

/// Space invariant 9: whoever asks for a collection again and again, as a full bookie does, keeps none from ending.
#[test]
fn a_collection_ends_although_others_are_asked_for_meanwhile() {
    let mut bookie = Bookie::new(2);
    for ledger in bookie.ledgers() {
        bookie.add(ledger, 0, false).unwrap();
    }
    bookie.flush();
    for _ in 0..20 {
        let wanted = WantedCollection { minor: true, major: true };
        bookie.engine().want_collection(wanted);
        bookie.engine().want_collection_after_removals(wanted);
        bookie.tend();
    }
    let space = bookie.engine().space_status();
    assert!(space.collections >= 5, "{space:?}");
    // A request for one that does as much has no effect, and no other collection follows.
    for _ in 0..10 {
        bookie.tend();
    }
    assert!(!bookie.engine().is_collection_wanted());
    let before = bookie.engine().space_status().collections;
    bookie.engine().want_collection(WantedCollection { minor: false, major: true });
    bookie.tend();
    bookie.engine().want_collection(WantedCollection { minor: true, major: false });
    for _ in 0..10 {
        bookie.tend();
    }
    assert_eq!(bookie.engine().space_status().collections, before + 1);
}

/// Space invariant 9: a full volume gets space back before all logs are weighed.
#[test]
fn logs_found_dead_go_before_all_are_weighed() {
    let mut bookie = Bookie::new(1);
    let ledger = bookie.ledgers()[0];
    let count = 80;
    for entry in 0..count {
        bookie.add(ledger, entry, false).unwrap();
        bookie.flush();
    }
    bookie.acked.clear();
    assert_eq!(bookie.logs(), count as usize);
    bookie.engine().remove_ledger(LedgerId::new(ledger).unwrap(), Box::new(|_| ()));
    bookie.flush();
    bookie.engine().want_collection(WantedCollection::default());
    // A step ends after some time, too, so how many there are depends on the machine.
    for _ in 0..1000 {
        bookie.tend();
        if bookie.engine().space_status().logs_dropped > 0 {
            break;
        }
    }
    let space = bookie.engine().space_status();
    assert_eq!((space.collections, space.logs_dropped), (0, 32), "{space:?}");
    for _ in 0..1000 {
        bookie.tend();
        if bookie.engine().space_status().collections > 0 {
            break;
        }
    }
    let space = bookie.engine().space_status();
    assert_eq!((space.collections, space.logs_dropped), (1, count as u64), "{space:?}");
    bookie.restart();
}

/// Space invariant 4: with places that are looked up on disk, a disk that cannot be read says nothing about the logs of
/// the others. They are compacted, with what it may have a newer copy of, and it alone is reported.
#[test]
fn logs_beside_a_directory_that_cannot_be_read_are_compacted() {
    let mut bookie = Bookie::new(2);
    bookie.is_paged = true;
    bookie.open().unwrap();
    let ledgers = bookie.ledgers();
    let (kept, removed) = (ledgers[0], ledgers[2]);
    for entry in 0..40 {
        bookie.add(removed, entry, false).unwrap();
    }
    bookie.acked.clear();
    for entry in 0..10 {
        bookie.add(kept, entry, false).unwrap();
        // Some runs, of which each would ask.
        if entry % 3 == 0 {
            bookie.flush();
        }
    }
    bookie.flush();
    // The same ledger, later, on the other disk.
    bookie.engine().set_full_directories(&[true, false]);
    for entry in 0..15 {
        bookie.add(kept, entry, false).unwrap();
    }
    bookie.flush();
    bookie.engine().remove_ledger(LedgerId::new(removed).unwrap(), Box::new(|_| ()));
    bookie.flush();
    assert_eq!(bookie.logs(), 5);

    bookie.faults.set(&[broken(&["read"], "ledgers1/0")]);
    bookie.engine().want_collection(WantedCollection { minor: false, major: true });
    for _ in 0..20 {
        bookie.tend();
    }
    let hits = bookie.faults.hits();
    assert!(hits > 0, "nothing was injected");
    assert!(hits < 6, "{hits} reads of what is known to fail");
    let space = bookie.engine().space_status();
    assert_eq!((space.collections, space.logs_rewritten), (1, 1), "{space:?}");
    let blamed: Vec<&String> = space.skipped.iter().map(|(log, _)| log).collect();
    assert!(matches!(blamed[..], [log] if log.contains("ledgers1/")), "{space:?}");
    bookie.faults.set(&[]);
    bookie.check_acked();
    bookie.restart();
}

/// One bad directory of several, at each of its write sites: the others take what it would have, acknowledged entries
/// stay readable, marks move on, and the restart finds everything.
#[test]
fn the_others_go_on_without_a_failed_directory() {
    for calls in [&["create"][..], &["write"], &["sync"], &["sync_dir"]] {
        let mut bookie = Bookie::new(3);
        let ledgers = bookie.ledgers();
        for entry in 0..4 {
            for ledger in &ledgers {
                bookie.add(*ledger, entry, false).unwrap();
            }
        }
        bookie.flush();
        for entry in 4..8 {
            for ledger in &ledgers {
                bookie.add(*ledger, entry, false).unwrap();
            }
        }
        bookie.faults.set(&[broken(calls, "ledgers1")]);
        bookie.flush();
        assert!(bookie.faults.hits() > 0, "{calls:?}: nothing was injected");
        let status = bookie.engine().status();
        assert_eq!(status.failed, None, "{calls:?}");
        assert_eq!(status.directories_failed.keys().copied().collect::<Vec<_>>(), [1], "{calls:?}");
        bookie.check_acked();
        // Enough to use journal files again, which only the marks of the others allow.
        for entry in 8..400 {
            for ledger in &ledgers {
                bookie.add(*ledger, entry, false).unwrap();
            }
            if entry % 20 == 0 {
                bookie.flush();
                bookie.tend();
            }
        }
        bookie.check_acked();
        assert_eq!(bookie.fence(ledgers[1]), Ok(()));
        // Killed: the directory is back, and knows less than the others.
        bookie.restart();
        assert!(bookie.engine().is_fenced(LedgerId::new(ledgers[1]).unwrap()));
        for entry in 400..410 {
            bookie.add(ledgers[0], entry, false).unwrap();
            bookie.add(ledgers[2], entry, false).unwrap();
        }
        bookie.flush();
        bookie.restart();
        // And once more, so that nothing rests on what only that start knew.
        bookie.restart();
    }
}

/// Reads of entries that only the failed directory holds return an I/O error while it cannot be read, and reads of the
/// others go on.
#[test]
fn reads_of_a_failed_directory_are_errors_never_no_such_entry() {
    let mut bookie = Bookie::new(3);
    let ledgers = bookie.ledgers();
    for ledger in &ledgers {
        bookie.add(*ledger, 0, false).unwrap();
    }
    bookie.flush();
    bookie.faults.set(&[broken(&["create", "write", "sync", "read"], "ledgers1")]);
    bookie.add(ledgers[1], 1, false).unwrap();
    bookie.flush();
    assert_eq!(bookie.read(ledgers[1], 0), Err(Refusal::Io));
    assert!(bookie.read(ledgers[1], 1).is_ok(), "what came later is on another one");
    assert!(bookie.read(ledgers[0], 0).is_ok() && bookie.read(ledgers[2], 0).is_ok());
    assert_eq!(bookie.read(ledgers[0], 1), Err(Refusal::NoEntry));
    bookie.restart();
}

/// With the last directory the bookie stops taking adds, as with its only one.
#[test]
fn without_any_directory_left_the_engine_is_latched() {
    let mut bookie = Bookie::new(2);
    let ledgers = bookie.ledgers();
    bookie.add(ledgers[0], 0, false).unwrap();
    bookie.faults.set(&[broken(&["write"], ".elog")]);
    bookie.flush();
    assert!(bookie.faults.hits() >= 2);
    let status = bookie.engine().status();
    assert!(status.failed.is_some() && status.directories_failed.len() == 2, "{status:?}");
    assert_eq!(bookie.add(ledgers[0], 1, true), Err(Refusal::ReadOnly));
    assert_eq!(bookie.fence(ledgers[0]), Ok(()), "the journal still takes fences");
    bookie.check_acked();
    bookie.restart();
    assert!(bookie.engine().is_fenced(LedgerId::new(ledgers[0]).unwrap()));
}

/// A directory that is nearly full gets its states and marks, and no entries.
#[test]
fn entries_go_past_a_full_directory() {
    let mut bookie = Bookie::new(3);
    let ledgers = bookie.ledgers();
    bookie.engine().set_full_directories(&[false, true, false]);
    for ledger in &ledgers {
        bookie.add(*ledger, 0, false).unwrap();
    }
    bookie.flush();
    let logs =
        |i: usize| std::fs::read_dir(bookie.dir.path().join(format!("ledgers{i}"))).unwrap().count() - 1;
    assert_eq!([logs(0), logs(1), logs(2)], [1, 0, 1]);
    bookie.check_acked();
    bookie.restart();
    assert_eq!(bookie.machine.as_ref().unwrap().replayed.records, 0);
}

/// R4, IB4: a journal that failed takes no fences, so they go to the state table, and hold after a restart, for a
/// ledger with entries and for an unknown one. No other request is acknowledged.
#[test]
fn fences_go_to_the_state_table_when_the_journal_failed() {
    for dirs in [1, 2] {
        let mut bookie = Bookie::new(dirs);
        let ledgers = bookie.ledgers();
        bookie.add(ledgers[0], 0, false).unwrap();
        bookie.faults.set(&[broken(&["write"], "journal")]);
        assert_eq!(bookie.add(ledgers[0], 1, false), Err(Refusal::ReadOnly));
        assert!(bookie.engine().status().failed.is_some());
        let unknown = 1_000_000;
        for ledger in [ledgers[0], unknown, ledgers[0]] {
            assert_eq!(bookie.fence(ledger), Ok(()));
            assert!(bookie.engine().is_fenced(LedgerId::new(ledger).unwrap()));
        }
        let (sender, receiver) = sync_channel(1);
        let wrong = MasterKey::new([9; 20]);
        bookie.engine().fence(
            LedgerId::new(unknown).unwrap(),
            wrong,
            Box::new(move |o| sender.send(o).unwrap()),
        );
        bookie.tend();
        assert_eq!(receiver.try_recv(), Ok(Err(Refusal::WrongKey)));
        assert_eq!(bookie.read(ledgers[0], 1), Err(Refusal::NoEntry));
        bookie.restart();
        for ledger in [ledgers[0], unknown] {
            assert!(bookie.engine().is_fenced(LedgerId::new(ledger).unwrap()), "{ledger}");
            assert_eq!(bookie.add(ledger, 5, false), Err(Refusal::Fenced));
        }
    }
}

/// When the state table fails as well, the fence is refused: never a lie.
#[test]
fn a_fence_that_nothing_can_keep_is_an_error() {
    let mut bookie = Bookie::new(1);
    bookie.faults.set(&[broken(&["write", "sync"], "")]);
    assert_eq!(bookie.add(1, 0, false), Err(Refusal::ReadOnly));
    assert_eq!(bookie.fence(2), Err(Refusal::Io));
    assert_eq!(bookie.fence(2), Err(Refusal::Io));
    bookie.restart();
}

/// A ticket that was out when the journal failed is flushed before a fence is committed, or it would take it back.
#[test]
fn a_direct_fence_waits_for_the_flush_under_way() {
    let mut bookie = Bookie::new(1);
    bookie.add(1, 0, false).unwrap();
    let machine = bookie.machine.as_mut().unwrap();
    machine.want_freeze();
    let in_flight = machine.journals[0].cut().unwrap();
    let written = machine.journals[0].write(&in_flight);
    let ticket = machine.journals[0].finish(in_flight, written).freeze.unwrap();
    bookie.faults.set(&[broken(&["write"], "journal")]);
    assert_eq!(bookie.add(1, 1, false), Err(Refusal::ReadOnly));
    let (sender, receiver) = sync_channel(1);
    bookie.engine().fence(LedgerId::new(1).unwrap(), KEY, Box::new(move |o| sender.send(o).unwrap()));
    bookie.tend();
    assert!(receiver.try_recv().is_err(), "not before the flush");
    let _ = bookie.machine.as_mut().unwrap().flushing.flush(ticket).unwrap();
    bookie.tend();
    assert_eq!(receiver.try_recv(), Ok(Ok(())));
    bookie.restart();
    assert!(bookie.engine().is_fenced(LedgerId::new(1).unwrap()));
}

/// R39: no further journal file can be made. Flushes give files back, so adds go on in turn; when they cannot, adds are
/// refused and fences are not; the bookie starts on the full volume; a file is made as soon as there is space.
#[test]
fn a_full_journal_volume_goes_on_with_what_it_has() {
    let mut bookie = Bookie::new(1);
    let ledgers = bookie.ledgers();
    let mut entry = 0;
    let mut add = |bookie: &mut Bookie| {
        entry += 1;
        bookie.add(ledgers[0], entry, false)
    };
    // Three files of 1 MiB, of which one is free at the end.
    for _ in 0..600 {
        add(&mut bookie).unwrap();
    }
    bookie.flush();
    let files = |bookie: &Bookie| std::fs::read_dir(bookie.dir.path().join("journal")).unwrap().count();
    let before = files(&bookie);
    bookie.faults.set(&[full(&["create", "allocate"], "journal/")]);
    for _ in 0..2000 {
        add(&mut bookie).unwrap();
    }
    assert!(bookie.faults.hits() > 0, "it never wanted a further file");
    assert_eq!(files(&bookie), before, "nothing is left of files that were not made");

    // Without flushes nothing comes back: adds are refused, and what is kept back is for fences.
    bookie.faults.set(&[full(&["create", "allocate"], "journal/"), full(&["write"], ".elog")]);
    bookie.flush();
    for ledger in 0..200 {
        assert_eq!(bookie.fence(1_000_000 + ledger), Ok(()));
        assert_eq!(add(&mut bookie), Err(Refusal::ReadOnly));
    }
    bookie.faults.set(&[full(&["create", "allocate"], "journal/")]);
    bookie.open().unwrap();
    bookie.check_acked();
    assert_eq!(bookie.fence(2_000_000), Ok(()));
    bookie.faults.set(&[]);
    // As the idle journal does.
    bookie.machine.as_mut().unwrap().journals[0].seal();
    bookie.tend();
    assert_eq!(bookie.engine().status().waits(), None);
    add(&mut bookie).unwrap();
    bookie.restart();
}

/// Requests fences until 1,000 are answered or wait, with the group behind each with which a journal goes idle. Gives how many were
/// answered.
fn fence_until_full(bookie: &mut Bookie) -> Arc<AtomicU64> {
    let answered = Arc::new(AtomicU64::new(0));
    for fenced in 0..1000 {
        let answered = answered.clone();
        let count = move |outcome| {
            assert_eq!(outcome, Ok(()));
            answered.fetch_add(1, Ordering::SeqCst);
        };
        bookie.engine().fence(LedgerId::new(2_000_000 + fenced).unwrap(), KEY, Box::new(count));
        bookie.drive();
        bookie.machine.as_mut().unwrap().journals[0].seal();
    }
    assert!((1..1000).contains(&answered.load(Ordering::SeqCst)), "{answered:?}");
    assert_eq!(bookie.engine().status().failed, None);
    answered
}

/// R39: a volume that is full, or a process without descriptors, before a journal's first file is. It has a second one
/// by then, which takes adds, then fences; when that is full too, fences wait.
#[test]
fn a_young_journal_has_a_file_for_a_full_volume() {
    // A descriptor is needed to sync a directory, too.
    let exhausted = without_descriptor(&["create", "reopen", "open", "sync_dir"], "/journal");
    for rule in [full(&["create", "allocate"], "journal/"), exhausted] {
        let mut bookie = Bookie::new(1);
        let ledger = bookie.ledgers()[0];
        bookie.add(ledger, 0, false).unwrap();
        // Without flushes, which would give files back.
        bookie.faults.set(&[rule.clone(), full(&["write"], ".elog")]);
        let refusal = (1..2000).find_map(|entry| bookie.add(ledger, entry, false).err());
        assert_eq!(refusal, Some(Refusal::ReadOnly), "it wants a third file");
        let answered = fence_until_full(&mut bookie);
        bookie.faults.set(&[]);
        bookie.tend();
        bookie.machine.as_mut().unwrap().journals[0].seal();
        bookie.drive();
        assert_eq!(answered.load(Ordering::SeqCst), 1000);

        // A file that a flush frees, when there is no descriptor for it, is free after the next one.
        let stats = |bookie: &Bookie| bookie.engine().journal_stats()[0];
        let mut entries = 3000..6000;
        bookie.flush();
        let written = stats(&bookie).written_bytes;
        while stats(&bookie).written_bytes < written + (3 << 19) {
            bookie.add(ledger, entries.next().unwrap(), false).unwrap();
        }
        bookie.faults.set(&[without_descriptor(&["reopen"], "journal/")]);
        bookie.faults.hits();
        bookie.flush();
        assert!(bookie.faults.hits() > 0);
        bookie.faults.set(&[]);
        for _ in 0..2 {
            bookie.add(ledger, entries.next().unwrap(), false).unwrap();
            bookie.flush();
        }
        bookie.add(ledger, entries.next().unwrap(), false).unwrap();
        let stats = stats(&bookie);
        assert_eq!(stats.files_free, stats.files - 1, "all but the one that is written: {stats:?}");
        bookie.check_acked();
        bookie.restart();
    }
}

/// The first group of a start needs neither space nor a descriptor: its file and the names of all files were made durable before.
/// A start whose journal can have no file waits for one.
#[test]
fn the_first_group_of_a_start_finds_a_file() {
    let exhausted = without_descriptor(&["create", "reopen", "open", "sync_dir"], "/journal");
    for rule in [full(&["create", "allocate"], "journal/"), exhausted] {
        let mut bookie = Bookie::new(1);
        let ledger = bookie.ledgers()[0];
        for entry in 0..3 {
            bookie.faults.set(std::slice::from_ref(&rule));
            bookie.add(ledger, entry, false).unwrap();
            assert_eq!(bookie.engine().status().failed, None);
            bookie.restart();
        }
    }
    let mut bookie = Bookie::new(1);
    let ledger = bookie.ledgers()[0];
    for file in std::fs::read_dir(bookie.dir.path().join("journal")).unwrap() {
        RealDisk::new().remove(&file.unwrap().path()).unwrap();
    }
    for rule in [without_descriptor(&["create"], "/journal"), full(&["create", "allocate"], "journal/")] {
        bookie.faults.set(&[rule]);
        bookie.open().unwrap();
        assert_eq!(bookie.add(ledger, 0, false), Err(Refusal::ReadOnly));
        assert_eq!(bookie.engine().status().failed, None);
    }
    bookie.faults.set(&[]);
    bookie.machine.as_mut().unwrap().journals[0].seal();
    bookie.add(ledger, 0, false).unwrap();
    bookie.restart();
}

/// R39: a volume that is full as soon as the journal has its first file. Fences go there and wait when it is full.
#[test]
fn a_journal_with_one_file_does_not_fail_for_want_of_another() {
    let mut bookie = Bookie::new(1);
    bookie.faults.set(&[full(&["create", "allocate"], "journal-0001")]);
    // A flush frees nothing of the only file.
    let added = (0..1000).take_while(|entry| bookie.add(1, *entry, false).is_ok()).count() as i64;
    assert!((50..150).contains(&added), "{added}: half of it is for adds");
    assert_eq!(bookie.add(1, added, false), Err(Refusal::ReadOnly));
    let answered = fence_until_full(&mut bookie);
    bookie.faults.set(&[]);
    bookie.machine.as_mut().unwrap().journals[0].seal();
    bookie.drive();
    assert_eq!(answered.load(Ordering::SeqCst), 1000);
    bookie.add(1, added, false).unwrap();
    bookie.check_acked();
    bookie.restart();
    assert!(bookie.engine().is_fenced(LedgerId::new(2_000_999).unwrap()));
}

/// J11, P11: a journal that keeps a file back stops at its cap, too, while a flush is under way. When that flush finds no
/// space, the file that is kept back takes what has formed, and fences.
#[test]
fn at_the_cap_of_the_journal_a_flush_without_space_holds_no_fence_back() {
    let mut bookie = Bookie::of(1, 1, 3, 4 << 20);
    let ledger = bookie.ledgers()[0];
    let files = |bookie: &Bookie| std::fs::read_dir(bookie.dir.path().join("journal")).unwrap().count();
    for entry in 0..600 {
        bookie.add(ledger, entry, false).unwrap();
    }
    bookie.flush();
    assert!(bookie.machine.as_ref().unwrap().engine.stats().flushes > 1, "files were used again");

    bookie.machine.as_ref().unwrap().want_freeze();
    let inbox = Inbox::default();
    let (mut ticket, mut entry) = (None, 600);
    loop {
        place(&bookie.engine(), ledger, entry, false);
        ticket = bookie.groups(0, &inbox).or(ticket);
        if inbox.0.lock().pop().is_none() {
            break;
        }
        bookie.acked.push((ledger, entry));
        entry += 1;
        assert!(files(&bookie) <= 4, "it takes what it may have");
    }
    assert!(bookie.engine().stats().journal_file_waits > 0, "the last one waits");

    bookie.faults.set(&[full(&["write"], ".elog")]);
    assert!(bookie.machine.as_mut().unwrap().flushing.flush(ticket.unwrap()).is_err());
    assert_eq!(bookie.drive().pop().expect("the group that formed is answered").result, Ok(()));
    bookie.acked.push((ledger, entry));
    for ledger in 0..20 {
        assert_eq!(bookie.fence(1_000_000 + ledger), Ok(()));
    }
    assert_eq!(bookie.add(ledger, entry + 1, false), Err(Refusal::ReadOnly));
    bookie.faults.set(&[]);
    bookie.tend();
    assert_eq!(bookie.engine().status().waits(), None);
    for entry in entry + 1..entry + 600 {
        bookie.add(ledger, entry, false).unwrap();
        assert!(files(&bookie) <= 4);
    }
    bookie.restart();
}

/// A directory that fails while a ticket waits for space in it gets nothing of that ticket, whatever it would say now.
#[test]
fn a_ticket_that_waits_goes_past_a_directory_that_failed_meanwhile() {
    let mut bookie = Bookie::of(3, 2, 6, 0);
    let ledgers = bookie.ledgers();
    for ledger in &ledgers {
        bookie.add(*ledger, 0, false).unwrap();
    }
    bookie.flush();
    for ledger in &ledgers {
        bookie.add(*ledger, 1, false).unwrap();
    }
    bookie.machine.as_ref().unwrap().want_freeze();
    bookie.faults.set(&[full(&["create"], "ledgers2")]);
    bookie.drive_journal(0);
    assert!(bookie.engine().status().waits().is_some());
    bookie.faults.set(&[broken(&["write"], "ledgers2")]);
    bookie.drive_journal(1);
    assert!(bookie.engine().status().directories_failed.contains_key(&2));
    bookie.faults.set(&[]);
    let logs = |bookie: &Bookie| {
        let names = std::fs::read_dir(bookie.dir.path().join("ledgers2")).unwrap();
        names.filter(|n| n.as_ref().unwrap().file_name().to_string_lossy().ends_with(".elog")).count()
    };
    let before = logs(&bookie);
    bookie.tend();
    assert_eq!(bookie.engine().status().waits(), None, "the others took it");
    assert_eq!(logs(&bookie), before, "nothing goes to a directory that failed");
    bookie.check_acked();
    bookie.restart();
}

/// Held invariants 1 and 3: the records of the journal cannot be flushed at a start, and the bookie still comes up,
/// again and again. It takes no adds, serves what it has, fences, and flushes when there is room.
#[test]
fn a_start_without_space_serves_and_waits() {
    for (dirs, journals, calls, path) in [
        (1, 1, &["create"][..], ".elog"),
        (1, 1, &["write"], ".elog"),
        (2, 1, &["sync"], ".elog"),
        (2, 1, &["write"], "ledgers1/0"),
        (2, 2, &["write"], ".elog"),
    ] {
        let mut bookie = Bookie::of(dirs, journals, 4, 0);
        let ledgers = bookie.ledgers();
        for entry in 0..5 {
            for ledger in &ledgers {
                bookie.add(*ledger, entry, false).unwrap();
            }
        }
        assert_eq!(bookie.fence(ledgers[1]), Ok(()));
        bookie.faults.set(&[full(calls, path)]);
        for start in 1..=3 {
            bookie.open().unwrap();
            assert!(bookie.faults.hits() > 0, "{calls:?} {path}: nothing was injected");
            let status = bookie.engine().status();
            assert!(status.waits().is_some() && status.failed.is_none(), "{status:?}");
            bookie.check_acked();
            bookie.tend();
            for is_high_priority in [false, true] {
                assert_eq!(bookie.add(ledgers[0], 99, is_high_priority), Err(Refusal::ReadOnly));
            }
            for fenced in 1..start {
                assert!(bookie.engine().is_fenced(LedgerId::new(1_000_000 + fenced).unwrap()));
            }
            assert!(bookie.engine().is_fenced(LedgerId::new(ledgers[1]).unwrap()));
            assert_eq!(bookie.fence(1_000_000 + start), Ok(()), "a full bookie fences");
        }
        bookie.faults.set(&[]);
        for _ in 0..journals {
            bookie.tend();
        }
        assert_eq!(bookie.engine().status().waits(), None, "{calls:?} {path}");
        bookie.add(ledgers[0], 5, false).unwrap();
        assert_eq!(bookie.add(ledgers[1], 5, false), Err(Refusal::Fenced));
        bookie.flush();
        bookie.check_acked();
        bookie.restart();
        assert_eq!(bookie.machine.as_ref().unwrap().replayed.records, 0, "everything was flushed");
        for fenced in (1..=3).map(|start| 1_000_000 + start).chain([ledgers[1]]) {
            assert!(bookie.engine().is_fenced(LedgerId::new(fenced).unwrap()));
        }
    }
}

/// Without a journal file either, a start serves, and a fence waits until one can be made: it does not fail the journal, and
/// adds behind it are refused aloud.
#[test]
fn a_start_without_space_for_a_journal_file_lets_fences_wait() {
    let mut bookie = Bookie::new(1);
    // With its first file no other is made.
    bookie.faults.set(&[full(&["create", "allocate"], "journal-0001")]);
    bookie.add(1, 0, false).unwrap();
    bookie.faults.set(&[full(&["create", "allocate"], "journal/"), full(&["write"], ".elog")]);
    bookie.open().unwrap();
    bookie.check_acked();
    let (sender, receiver) = sync_channel(1);
    bookie.engine().fence(LedgerId::new(1).unwrap(), KEY, Box::new(move |o| sender.send(o).unwrap()));
    for entry in 1..4 {
        assert_eq!(bookie.add(1, entry, false), Err(Refusal::ReadOnly), "answered while the fence waits");
        assert!(bookie.drive().is_empty());
        bookie.machine.as_mut().unwrap().journals[0].seal();
        bookie.tend();
    }
    assert!(receiver.try_recv().is_err(), "nothing can hold it");
    assert_eq!(bookie.engine().status().failed, None);
    bookie.faults.set(&[full(&["write"], ".elog")]);
    bookie.machine.as_mut().unwrap().journals[0].seal();
    bookie.drive();
    assert_eq!(receiver.try_recv(), Ok(Ok(())));
    bookie.open().unwrap();
    assert!(bookie.engine().is_fenced(LedgerId::new(1).unwrap()));
    bookie.restart();
}

/// Held invariant 2: records that the layout of now would put elsewhere are not kept in memory, where later records of their
/// ledgers would get into another journal. The start says so, and with the layout of before it goes on.
#[test]
fn a_start_without_space_keeps_its_layout() {
    let mut bookie = Bookie::of(1, 2, 4, 0);
    for ledger in bookie.ledgers() {
        bookie.add(ledger, 0, false).unwrap();
    }
    bookie.faults.set(&[full(&["write"], ".elog")]);
    bookie.shards = 5;
    let refused = bookie.open().unwrap_err();
    assert!(matches!(refused, OpenError::NoSpace(_)), "{refused}");
    assert!(refused.to_string().contains("cores that it had"), "{refused}");
    bookie.shards = 4;
    bookie.open().unwrap();
    bookie.check_acked();
    bookie.restart();
}

/// Held invariant 4: of a journal without sync a power cut took the end, which one directory has and the other, full, lacks.
/// Nothing may be written behind that gap before the mark of every directory is: the next start would take it for damage.
#[test]
fn a_start_without_space_does_not_wait_behind_a_lost_end() {
    let mut bookie = Bookie::new(2);
    bookie.journal_sync = false;
    bookie.open().unwrap();
    let ledgers = bookie.ledgers();
    for entry in 0..5 {
        for ledger in &ledgers {
            bookie.add(*ledger, entry, false).unwrap();
        }
    }
    let is_full = [full(&["write"], "ledgers1/0")];
    bookie.faults.set(&is_full);
    bookie.flush();
    assert!(bookie.engine().status().waits().is_some());
    bookie.machine = None;
    let path = bookie.dir.path().join("journal/journal-0000.bjl");
    let (disk, mut groups): (Arc<dyn Disk>, _) = (Arc::new(RealDisk::new()), Vec::new());
    inspect::walk(&disk, &path, |item| {
        if let inspect::Item::Group(group, _) = item {
            groups.push(group.offset);
        }
    })
    .unwrap();
    let file = disk.open(&path, OpenMode::CreateBuffered).unwrap();
    for offset in &groups[groups.len() - 2..] {
        file.write_all_at(&mut [io::IoSlice::new(&[0; 4096])], *offset).unwrap();
    }
    for _ in 0..2 {
        let refused = bookie.open().unwrap_err();
        assert!(matches!(refused, OpenError::NoSpace(_)), "{refused}");
        assert!(refused.to_string().contains("power cut"), "{refused}");
    }
    bookie.faults.set(&[]);
    bookie.open().unwrap();
    for entry in 0..4 {
        for ledger in &ledgers {
            assert!(bookie.read(*ledger, entry).is_ok());
        }
    }
    bookie.fence(ledgers[0]).unwrap();
    bookie.open().unwrap();
}

/// Memory is bounded: a journal that holds more than the pool takes is not replayed on a full disk.
#[test]
fn a_start_without_space_holds_what_the_pool_takes() {
    let mut bookie = Bookie::new(1);
    bookie.write_pool_bytes = 16 << 20;
    bookie.open().unwrap();
    let ledger = bookie.ledgers()[0];
    let inbox = Inbox::default();
    for entry in 0..2000 {
        place(&bookie.engine(), ledger, entry, false);
        // The flush never comes.
        drop(bookie.groups(0, &inbox));
        bookie.acked.push((ledger, entry));
    }
    assert!(inbox.0.lock().iter().all(|done| done.result.is_ok()));
    bookie.faults.set(&[full(&["write"], ".elog")]);
    bookie.write_pool_bytes = 3 << 20;
    let refused = bookie.open().unwrap_err();
    assert!(refused.to_string().contains("as much memory as before"), "{refused}");
    bookie.write_pool_bytes = 16 << 20;
    bookie.open().unwrap();
    bookie.check_acked();
    bookie.restart();
}

/// A volume with little free space.
struct Little(RealDisk);
impl DiskLayer for Little {
    fn beneath(&self) -> &dyn Disk {
        &self.0
    }
    fn space(&self, dir: &Path) -> io::Result<bindery_io::Space> {
        Ok(bindery_io::Space { free: 1 << 20, ..self.0.space(dir)? })
    }
}

/// J11: files that are not made ahead, for want of space, do not count: their slots are given back.
#[test]
fn a_journal_file_that_is_not_made_ahead_does_not_count() {
    let mut bookie = Bookie::of(1, 1, 3, 4 << 20);
    bookie.add(1, 0, false).unwrap();
    bookie.machine = None;
    let config = EngineConfig { journal_files_preallocated: 2, ..bookie.config() };
    let disk: Arc<dyn Disk> = Arc::new(Little(RealDisk::new()));
    let machine =
        Machine::open(config, disk.clone(), Arc::new(bindery_io::SystemClock::new()), Arc::new(SystemRandom));
    let machine = machine.unwrap();
    let engine = machine.engine.clone();
    let threads = machine.start(disk, Arc::new(Inbox::default()));
    for entry in 1..50 {
        place(&engine, 1, entry, false);
        std::thread::sleep(Duration::from_millis(5));
    }
    let found = std::fs::read_dir(bookie.dir.path().join("journal")).unwrap().count();
    assert_eq!(engine.journal_stats()[0].files, found as u64);
    threads.stop().unwrap();
}
