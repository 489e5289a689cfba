//! Disks that are full or fail, write site by write site: a write without space waits and is tried again in a new file,
//! a failure costs one directory, and nothing acknowledged or fenced is lost either way (IB4 IB7 IB12 IB14 IB19).
//! Here is what the tests share: a disk that fails as told, and a bookie's engine on it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod collections;
mod directories;
mod flushes;
mod journals;
mod recoveries;
mod removals;
mod starts;

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
