//! Which calls to the disks of the ledger directories are under way, and since when.
//!
//! A disk that hangs returns no error: the thread that called it is inside the kernel. So the calls are noted where they
//! are made, and somebody else looks how old they are.
//!
//! # Data flow
//! ```text
//! engine, checks of the volumes -> WatchedDisk -> the disk beneath
//!                                      |  a slot while the call lasts
//!                                  LedgerCalls <- DiskWatch: the oldest call of each directory -> hang
//! ```
//!
//! # Invariants
//! 1. A call has a slot from before it goes down until it is back, also when it panics.
//! 2. Noting a call takes no lock and never waits.
//! 3. Calls that name no ledger directory are passed on and not noted: journals have pulses of their own.
//!
//! # Limits
//! [`SLOTS`] calls of each directory at once. More are passed on without a slot: where so many hang, those that have one show it.

use bindery_io::{Clock, Disk, DiskFile, DiskLayer, DiskLock, Entry, FileLayer, OpenMode, Space};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Calls of one directory that are noted at the same time.
const SLOTS: usize = 64;

/// The calls of one ledger directory.
struct DirectoryCalls {
    path: PathBuf,
    /// When each call began, and one more; 0 where there is none.
    begun_ns: [AtomicU64; SLOTS],
    /// Where the search for a free slot begins.
    next: AtomicUsize,
}

/// The calls under way to the ledger directories.
pub struct LedgerCalls {
    clock: Arc<dyn Clock>,
    dirs: Vec<Arc<DirectoryCalls>>,
}

/// Ends a call.
struct UnderWay<'a>(Option<&'a AtomicU64>);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.store(0, Ordering::Relaxed);
        }
    }
}

impl DirectoryCalls {
    fn begin(&self, now_ns: u64) -> UnderWay<'_> {
        let from = self.next.fetch_add(1, Ordering::Relaxed);
        let slots = (0..SLOTS).map(|step| &self.begun_ns[from.wrapping_add(step) % SLOTS]);
        let begun_ns = now_ns.saturating_add(1);
        UnderWay(
            slots.into_iter().find(|slot| {
                slot.compare_exchange(0, begun_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            }),
        )
    }

    /// How long the oldest call has taken.
    fn oldest(&self, now_ns: u64) -> Option<Duration> {
        let begun = self.begun_ns.iter().map(|slot| slot.load(Ordering::Relaxed)).filter(|begun| *begun > 0);
        begun.min().map(|begun| Duration::from_nanos((now_ns + 1).saturating_sub(begun)))
    }
}

impl LedgerCalls {
    /// Of these ledger directories.
    pub fn new(dirs: &[PathBuf], clock: Arc<dyn Clock>) -> Arc<LedgerCalls> {
        let of = |path: &PathBuf| DirectoryCalls {
            path: path.clone(),
            begun_ns: [const { AtomicU64::new(0) }; SLOTS],
            next: AtomicUsize::new(0),
        };
        Arc::new(LedgerCalls { clock, dirs: dirs.iter().map(|path| Arc::new(of(path))).collect() })
    }

    /// `disk`, with its calls to the ledger directories noted here.
    pub fn watch(self: &Arc<Self>, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        Arc::new(WatchedDisk { beneath: disk, calls: self.clone() })
    }

    /// The directories with a call under way, and how long the oldest one of each has taken.
    pub fn oldest(&self) -> Vec<(&Path, Duration)> {
        let now_ns = self.clock.monotonic_ns();
        self.dirs.iter().filter_map(|dir| Some((&*dir.path, dir.oldest(now_ns)?))).collect()
    }

    fn of(&self, path: &Path) -> Option<&Arc<DirectoryCalls>> {
        self.dirs.iter().find(|dir| path.starts_with(&dir.path))
    }

    fn begin(&self, path: &Path) -> UnderWay<'_> {
        match self.of(path) {
            Some(dir) => dir.begin(self.clock.monotonic_ns()),
            None => UnderWay(None),
        }
    }
}

struct WatchedDisk {
    beneath: Arc<dyn Disk>,
    calls: Arc<LedgerCalls>,
}

impl DiskLayer for WatchedDisk {
    fn beneath(&self) -> &dyn Disk {
        &*self.beneath
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let Some(dir) = self.calls.of(path) else { return self.beneath.open(path, mode) };
        let clock = self.calls.clock.clone();
        let under_way = dir.begin(clock.monotonic_ns());
        let beneath = self.beneath.open(path, mode)?;
        drop(under_way);
        Ok(Arc::new(WatchedFile { beneath, dir: dir.clone(), clock }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let _under_way = self.calls.begin(dir);
        self.beneath.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let _under_way = self.calls.begin(dir);
        self.beneath.create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _under_way = self.calls.begin(to);
        self.beneath.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        let _under_way = self.calls.begin(path);
        self.beneath.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let _under_way = self.calls.begin(dir);
        self.beneath.sync_dir(dir)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        let _under_way = self.calls.begin(path);
        self.beneath.exists(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        let _under_way = self.calls.begin(path);
        self.beneath.lock(path)
    }
    fn space(&self, dir: &Path) -> io::Result<Space> {
        let _under_way = self.calls.begin(dir);
        self.beneath.space(dir)
    }
}

struct WatchedFile {
    beneath: Arc<dyn DiskFile>,
    dir: Arc<DirectoryCalls>,
    clock: Arc<dyn Clock>,
}

impl WatchedFile {
    fn begin(&self) -> UnderWay<'_> {
        self.dir.begin(self.clock.monotonic_ns())
    }
}

/// `read_cached_at` does not wait for the device, and is on the path of reads from the page cache: it is not noted.
impl FileLayer for WatchedFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.beneath
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let _under_way = self.begin();
        self.beneath.read_at(buf, offset)
    }
    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let _under_way = self.begin();
        self.beneath.write_at(slices, offset)
    }
    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let _under_way = self.begin();
        self.beneath.write_durable_at(slices, offset)
    }
    fn begin_reading(&self, offset: u64, len: u64) {
        let _under_way = self.begin();
        self.beneath.begin_reading(offset, len);
    }
    fn begin_writeback(&self, offset: u64, len: u64) {
        let _under_way = self.begin();
        self.beneath.begin_writeback(offset, len);
    }
    fn sync(&self) -> io::Result<()> {
        let _under_way = self.begin();
        self.beneath.sync()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let _under_way = self.begin();
        self.beneath.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        let _under_way = self.begin();
        self.beneath.allocate(len)
    }
    fn len(&self) -> io::Result<u64> {
        let _under_way = self.begin();
        self.beneath.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_io::{RealDisk, conformance};
    use parking_lot::Mutex;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    /// A clock that a test sets.
    #[derive(Default)]
    struct Hands(AtomicU64);

    impl Clock for Hands {
        fn monotonic_ns(&self) -> u64 {
            self.0.load(Ordering::SeqCst)
        }
        fn wall_ms(&self) -> i64 {
            0
        }
    }

    #[test]
    fn a_watched_disk_conforms() {
        let dir = tempfile::tempdir().unwrap();
        let calls = LedgerCalls::new(&[dir.path().to_owned()], Arc::new(Hands::default()));
        conformance::disk(&*calls.watch(Arc::new(RealDisk::new())), dir.path());
        assert_eq!(calls.oldest(), [], "every call ended");
    }

    /// Tells when a measurement begins, and ends it when the test says so.
    struct Hanging(RealDisk, SyncSender<()>, Mutex<Receiver<()>>);

    impl DiskLayer for Hanging {
        fn beneath(&self) -> &dyn Disk {
            &self.0
        }
        fn space(&self, dir: &Path) -> io::Result<Space> {
            self.1.send(()).unwrap();
            self.2.lock().recv().unwrap();
            self.0.space(dir)
        }
    }

    #[test]
    fn a_call_is_seen_while_it_lasts_and_the_oldest_counts() {
        let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
        let paths: Vec<_> = dirs.iter().map(|dir| dir.path().to_owned()).collect();
        let clock = Arc::new(Hands::default());
        let calls = LedgerCalls::new(&paths, clock.clone());
        let ((begins, begun), (go_on, waits)) = (sync_channel(0), sync_channel(0));
        let disk = calls.watch(Arc::new(Hanging(RealDisk::new(), begins, Mutex::new(waits))));
        std::thread::scope(|scope| {
            scope.spawn(|| disk.space(&paths[1]).unwrap());
            begun.recv().unwrap();
            clock.0.store(7, Ordering::SeqCst);
            assert_eq!(calls.oldest(), [(&*paths[1], Duration::from_nanos(7))]);
            // Others come and go beside it.
            assert!(disk.exists(&paths[1]).unwrap());
            clock.0.store(9, Ordering::SeqCst);
            assert_eq!(calls.oldest(), [(&*paths[1], Duration::from_nanos(9))]);
            go_on.send(()).unwrap();
        });
        assert_eq!(calls.oldest(), []);
    }

    #[test]
    fn more_calls_than_slots_are_passed_on() {
        let calls = LedgerCalls::new(&[PathBuf::from("/l")], Arc::new(Hands::default()));
        let under_way: Vec<_> = (0..SLOTS + 3).map(|_| calls.begin(Path::new("/l/log"))).collect();
        assert_eq!(calls.oldest().len(), 1);
        assert!(calls.begin(Path::new("/elsewhere")).0.is_none());
        drop(under_way);
        assert_eq!(calls.oldest(), []);
        assert!(calls.begin(Path::new("/l/log")).0.is_some(), "each slot is free again");
    }
}
