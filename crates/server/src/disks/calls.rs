//! Which calls to the disks of the ledger directories are under way, and for how long no call has ended.
//!
//! A disk that hangs returns no error: the thread that called it is inside the kernel. So the calls are noted where they
//! are made, and the watch of the disks looks how old they are. A disk that is only slow, or busy, ends one call while others last.
//!
//! # Data flow
//! ```text
//! engine, checks of the volumes -> WatchedDisk -> the disk beneath
//!                                      |  a slot while the call lasts, the time at which it ends
//!                                  LedgerCalls <- DiskWatch: the silence of each directory -> hang
//! ```
//!
//! # Invariants
//! 1. A call has a slot from before it goes down until it is back, also when it panics.
//! 2. Noting a call takes no lock and never waits.
//! 3. Calls that name no ledger directory are passed on and not noted: journals have pulses of their own.
//! 4. A call that the kernel can answer from its memory is noted while it lasts, but its end is no answer of the disk. An error is one.
//! 5. Reads are no answer to calls that change something: a frozen file system still serves reads.
//!
//! # Limits
//! [`SLOTS`] calls of each directory and kind are noted at once. Further calls are passed on and not noted: if so many hang, the noted ones
//! are enough to show it.

use bindery_io::{Clock, Disk, DiskFile, DiskLayer, DiskLock, Entry, FileLayer, OpenMode, Space};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Calls of one directory and kind that are noted at the same time.
const SLOTS: usize = 64;

/// What a call asks of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    /// Bytes of a file.
    Read,
    /// A change, or that changes become durable.
    Change,
    /// What the kernel often knows without the disk: names, sizes, free space, a hint. It is noted beside the changes.
    Look,
}

/// Calls of one kind to one directory.
struct Noted {
    /// When each call under way began, and one more; 0 where there is none.
    begun_ns: [AtomicU64; SLOTS],
    /// Where the search for a free slot begins.
    next: AtomicUsize,
    /// When the disk answered last, and one more; 0 when it never did.
    answered_ns: AtomicU64,
}

/// The calls of one ledger directory.
struct DirectoryCalls {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    reads: Noted,
    changes: Noted,
}

/// For how long a ledger directory has owed an answer: calls are under way, and none has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence<'a> {
    /// The ledger directory.
    pub dir: &'a Path,
    /// For how long no call at all has ended.
    pub of_all: Duration,
    /// For how long no call that changes something has ended. Zero while none is under way.
    pub of_changes: Duration,
}

/// The calls under way to the ledger directories.
pub struct LedgerCalls {
    dirs: Vec<Arc<DirectoryCalls>>,
}

/// Ends a call.
struct UnderWay<'a> {
    slot: Option<&'a AtomicU64>,
    /// Where to note that the disk answered, if the call is one that shows it.
    answer: Option<(&'a AtomicU64, &'a dyn Clock)>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some((answered_ns, clock)) = self.answer {
            answered_ns.fetch_max(clock.monotonic_ns().saturating_add(1), Ordering::Relaxed);
        }
        if let Some(slot) = self.slot {
            slot.store(0, Ordering::Relaxed);
        }
    }
}

impl Noted {
    const fn new() -> Noted {
        let begun_ns = [const { AtomicU64::new(0) }; SLOTS];
        Noted { begun_ns, next: AtomicUsize::new(0), answered_ns: AtomicU64::new(0) }
    }

    /// A slot, unless all are taken.
    fn begin(&self, now_ns: u64) -> Option<&AtomicU64> {
        let from = self.next.fetch_add(1, Ordering::Relaxed);
        let mut slots = (0..SLOTS).map(|step| &self.begun_ns[from.wrapping_add(step) % SLOTS]);
        let begun_ns = now_ns.saturating_add(1);
        slots.find(|slot| slot.compare_exchange(0, begun_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok())
    }

    /// When the oldest call under way began, and one more.
    fn oldest_ns(&self) -> Option<u64> {
        self.begun_ns.iter().map(|slot| slot.load(Ordering::Relaxed)).filter(|begun| *begun > 0).min()
    }
}

impl DirectoryCalls {
    fn begin(&self, asks: Asks) -> UnderWay<'_> {
        let noted = match asks {
            Asks::Read => &self.reads,
            Asks::Change | Asks::Look => &self.changes,
        };
        let slot = noted.begin(self.clock.monotonic_ns());
        let answer = (asks != Asks::Look).then_some((&noted.answered_ns, &*self.clock));
        UnderWay { slot, answer }
    }

    /// `None` while no call is under way.
    fn silence(&self) -> Option<Silence<'_>> {
        let now_ns = self.clock.monotonic_ns();
        let (read, change) = (self.reads.oldest_ns(), self.changes.oldest_ns());
        let [read_answered, change_answered] =
            [&self.reads, &self.changes].map(|noted| noted.answered_ns.load(Ordering::Relaxed));
        let since = |begun: u64, answered: u64| {
            Duration::from_nanos((now_ns + 1).saturating_sub(begun.max(answered)))
        };
        let oldest = read.into_iter().chain(change).min()?;
        Some(Silence {
            dir: &self.path,
            of_all: since(oldest, read_answered.max(change_answered)),
            of_changes: change.map_or(Duration::ZERO, |change| since(change, change_answered)),
        })
    }
}

impl LedgerCalls {
    /// Of these ledger directories.
    pub fn new(dirs: &[PathBuf], clock: Arc<dyn Clock>) -> Arc<LedgerCalls> {
        let of = |path: &PathBuf| {
            let (path, clock) = (path.clone(), clock.clone());
            Arc::new(DirectoryCalls { path, clock, reads: Noted::new(), changes: Noted::new() })
        };
        Arc::new(LedgerCalls { dirs: dirs.iter().map(of).collect() })
    }

    /// `disk`, with its calls to the ledger directories noted here.
    pub fn watch(self: &Arc<Self>, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        Arc::new(WatchedDisk { beneath: disk, calls: self.clone() })
    }

    /// The directories with a call under way, and for how long none has ended.
    pub fn silences(&self) -> Vec<Silence<'_>> {
        self.dirs.iter().filter_map(|dir| dir.silence()).collect()
    }

    fn of(&self, path: &Path) -> Option<&Arc<DirectoryCalls>> {
        self.dirs.iter().find(|dir| path.starts_with(&dir.path))
    }

    fn begin(&self, path: &Path, asks: Asks) -> Option<UnderWay<'_>> {
        Some(self.of(path)?.begin(asks))
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
        let under_way = dir.begin(Asks::Look);
        let beneath = self.beneath.open(path, mode)?;
        drop(under_way);
        Ok(Arc::new(WatchedFile { beneath, dir: dir.clone() }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let _under_way = self.calls.begin(dir, Asks::Look);
        self.beneath.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let _under_way = self.calls.begin(dir, Asks::Look);
        self.beneath.create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _under_way = self.calls.begin(to, Asks::Change);
        self.beneath.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        let _under_way = self.calls.begin(path, Asks::Change);
        self.beneath.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let _under_way = self.calls.begin(dir, Asks::Change);
        self.beneath.sync_dir(dir)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        let _under_way = self.calls.begin(path, Asks::Look);
        self.beneath.exists(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        let _under_way = self.calls.begin(path, Asks::Look);
        self.beneath.lock(path)
    }
    fn space(&self, dir: &Path) -> io::Result<Space> {
        let _under_way = self.calls.begin(dir, Asks::Look);
        self.beneath.space(dir)
    }
}

struct WatchedFile {
    beneath: Arc<dyn DiskFile>,
    dir: Arc<DirectoryCalls>,
}

/// `read_cached_at` does not wait for the device, and is on the path of reads from the page cache: it is not noted.
impl FileLayer for WatchedFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.beneath
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let _under_way = self.dir.begin(Asks::Read);
        self.beneath.read_at(buf, offset)
    }
    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let _under_way = self.dir.begin(Asks::Change);
        self.beneath.write_at(slices, offset)
    }
    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let _under_way = self.dir.begin(Asks::Change);
        self.beneath.write_durable_at(slices, offset)
    }
    fn begin_reading(&self, offset: u64, len: u64) {
        let _under_way = self.dir.begin(Asks::Look);
        self.beneath.begin_reading(offset, len);
    }
    fn begin_writeback(&self, offset: u64, len: u64) {
        let _under_way = self.dir.begin(Asks::Look);
        self.beneath.begin_writeback(offset, len);
    }
    fn sync(&self) -> io::Result<()> {
        let _under_way = self.dir.begin(Asks::Change);
        self.beneath.sync()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let _under_way = self.dir.begin(Asks::Change);
        self.beneath.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        let _under_way = self.dir.begin(Asks::Change);
        self.beneath.allocate(len)
    }
    fn len(&self) -> io::Result<u64> {
        let _under_way = self.dir.begin(Asks::Look);
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
        assert_eq!(calls.silences(), [], "every call ended");
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
        let silent = |ns| {
            let for_ns = Duration::from_nanos(ns);
            Silence { dir: &paths[1], of_all: for_ns, of_changes: for_ns }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| disk.space(&paths[1]).unwrap());
            begun.recv().unwrap();
            clock.0.store(7, Ordering::SeqCst);
            assert_eq!(calls.silences(), [silent(7)]);
            // Looks come and go beside it, and the disk need not have answered them.
            assert!(disk.exists(&paths[1]).unwrap());
            clock.0.store(9, Ordering::SeqCst);
            assert_eq!(calls.silences(), [silent(9)]);
            go_on.send(()).unwrap();
        });
        assert_eq!(calls.silences(), []);
    }

    /// A busy disk: one call takes very long, and others end all the while.
    #[test]
    fn a_disk_that_ends_other_calls_is_not_silent() {
        let clock = Arc::new(Hands::default());
        let calls = LedgerCalls::new(&[PathBuf::from("/l")], clock.clone());
        let at = |ns| clock.0.store(ns, Ordering::SeqCst);
        let begin = |asks| calls.begin(Path::new("/l/log"), asks).unwrap();
        let silence = || {
            let silence = calls.silences()[0];
            (silence.of_all.as_nanos(), silence.of_changes.as_nanos())
        };
        let _sync = begin(Asks::Change);
        at(100);
        assert_eq!(silence(), (100, 100));
        drop(begin(Asks::Look));
        assert_eq!(silence(), (100, 100), "the kernel may know without the disk");
        drop(begin(Asks::Read));
        at(130);
        assert_eq!(silence(), (30, 130), "a file system may serve reads and no change");
        let write = begin(Asks::Change);
        at(150);
        drop(write);
        at(160);
        assert_eq!(silence(), (10, 10));
    }

    #[test]
    fn changes_answer_reads_and_what_was_answered_before_a_call_is_no_answer_to_it() {
        let clock = Arc::new(Hands::default());
        let calls = LedgerCalls::new(&[PathBuf::from("/l")], clock.clone());
        let at = |ns| clock.0.store(ns, Ordering::SeqCst);
        let begin = |asks| calls.begin(Path::new("/l/log"), asks).unwrap();
        drop(begin(Asks::Change));
        at(500);
        let _read = begin(Asks::Read);
        at(540);
        let silence = |ns| Silence {
            dir: Path::new("/l"),
            of_all: Duration::from_nanos(ns),
            of_changes: Duration::ZERO,
        };
        assert_eq!(calls.silences(), [silence(40)]);
        drop(begin(Asks::Change));
        at(545);
        assert_eq!(calls.silences(), [silence(5)]);
    }

    #[test]
    fn more_calls_than_slots_are_passed_on() {
        let calls = LedgerCalls::new(&[PathBuf::from("/l")], Arc::new(Hands::default()));
        let begin = |path| calls.begin(Path::new(path), Asks::Read);
        let under_way: Vec<_> = (0..SLOTS + 3).map(|_| begin("/l/log").unwrap()).collect();
        assert_eq!(under_way.iter().filter(|call| call.slot.is_some()).count(), SLOTS);
        assert_eq!(calls.silences().len(), 1);
        assert!(begin("/elsewhere").is_none());
        drop(under_way);
        assert_eq!(calls.silences(), []);
        assert!(begin("/l/log").unwrap().slot.is_some(), "each slot is free again");
    }
}
