//! Tests of the checked disk over the real one and over one that fails to order.

use super::*;
use crate::chunk::AlignedBuf;
use crate::{DiskLayer, RealDisk, conformance};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Where a call says that it began, and waits until it may go on.
type Gate = (SyncSender<()>, Receiver<()>);

/// The real disk, whose syncs and writes fail while the switch is on, and whose writes wait when told to.
#[derive(Clone, Default)]
struct Faulty {
    fails: Arc<AtomicBool>,
    gate: Arc<Mutex<Option<Gate>>>,
}

/// The last field says that it is direct: alignment is then for the checks alone to see, the file is buffered.
struct FaultyFile(Arc<dyn DiskFile>, Faulty, bool);

impl DiskLayer for Faulty {
    fn beneath(&self) -> &dyn Disk {
        &RealDisk
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let is_direct = mode == OpenMode::CreateDirect;
        let buffered = if is_direct { OpenMode::CreateBuffered } else { mode };
        Ok(Arc::new(FaultyFile(RealDisk.open(path, buffered)?, self.clone(), is_direct)))
    }
}

impl FaultyFile {
    fn pass(&self) -> io::Result<()> {
        let gate = self.1.gate.lock().take();
        if let Some((entered, leave)) = gate {
            entered.send(()).unwrap();
            leave.recv().unwrap();
        }
        if self.1.fails.load(Ordering::SeqCst) { Err(io::Error::other("ordered")) } else { Ok(()) }
    }
}

impl DiskFile for FaultyFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.pass()?;
        self.0.write_at(slices, offset)
    }
    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.pass()?;
        self.0.write_durable_at(slices, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.pass()?;
        self.0.sync()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.pass()?;
        self.0.set_len(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn is_direct(&self) -> bool {
        self.2
    }
}

struct Bench {
    _root: tempfile::TempDir,
    path: PathBuf,
    faulty: Faulty,
    disk: CheckedDisk<Faulty>,
}

fn recording() -> Bench {
    let root = tempfile::tempdir().unwrap();
    let faulty = Faulty::default();
    let disk = CheckedDisk::recording(faulty.clone());
    Bench { path: root.path().join("f"), _root: root, faulty, disk }
}

fn put(file: &dyn DiskFile, offset: u64, len: usize) -> io::Result<()> {
    file.write_all_at(&mut [IoSlice::new(&vec![1; len])], offset)
}

#[test]
fn the_checked_disk_conforms_and_the_suite_breaks_no_rule() {
    let root = tempfile::tempdir().unwrap();
    let disk = CheckedDisk::new(RealDisk);
    conformance::disk(&disk, root.path());
    let root = tempfile::tempdir().unwrap();
    let shared: Arc<dyn Disk> = Arc::new(RealDisk);
    conformance::disk(&CheckedDisk::new(shared), root.path());
}

#[test]
#[should_panic(expected = "sync after the file failed; first error: sync: ordered")]
fn a_sync_after_a_failed_sync_panics_with_the_first_error() {
    let root = tempfile::tempdir().unwrap();
    let faulty = Faulty::default();
    let disk = CheckedDisk::new(faulty.clone());
    let file = disk.open(&root.path().join("f"), OpenMode::CreateBuffered).unwrap();
    faulty.fails.store(true, Ordering::SeqCst);
    assert!(file.sync().is_err());
    faulty.fails.store(false, Ordering::SeqCst);
    let _ = file.sync();
}

#[test]
fn a_failed_file_stays_failed_under_every_handle_and_name() {
    let Bench { _root, path, faulty, disk } = recording();
    let file = disk.open(&path, OpenMode::CreateBuffered).unwrap();
    put(&*file, 0, 10).unwrap();
    faulty.fails.store(true, Ordering::SeqCst);
    assert!(put(&*file, 10, 10).is_err());
    faulty.fails.store(false, Ordering::SeqCst);
    assert_eq!(disk.violations(), []);
    assert_eq!(disk.first_error(&path).as_deref(), Some("write: ordered"));
    let to = path.with_file_name("g");
    disk.rename(&path, &to).unwrap();
    let again = disk.open(&to, OpenMode::CreateBuffered).unwrap();
    again.sync().unwrap();
    again.set_len(0).unwrap();
    put(&*again, 0, 1).unwrap();
    assert_eq!(disk.violations().len(), 3);
    assert!(disk.violations().iter().all(|v| v.path == to && v.what.contains("first error: write: ordered")));
    let mut buf = [0; 4];
    again.read_at(&mut buf, 0).unwrap();
    assert_eq!(disk.violations().len(), 3, "reads go on");

    disk.remove(&to).unwrap();
    let fresh = disk.open(&to, OpenMode::CreateBuffered).unwrap();
    put(&*fresh, 0, 1).unwrap();
    fresh.sync().unwrap();
    assert_eq!(disk.violations().len(), 3, "a new file under the name is a new file");
}

#[test]
fn wrong_handles_and_wrong_alignment_are_found() {
    let Bench { _root, path, disk, .. } = recording();
    let file = disk.open(&path, OpenMode::CreateBuffered).unwrap();
    let reader = disk.open(&path, OpenMode::Read).unwrap();
    assert!(put(&*reader, 0, 1).is_err());
    assert!(disk.violations()[0].what.contains("opened for reading"));
    // The refused write counts as a failure of the file, so a second file serves the rest.
    let other = path.with_file_name("g");
    let removed = disk.open(&other, OpenMode::CreateBuffered).unwrap();
    disk.rename(&path, &other).unwrap();
    put(&*removed, 0, 1).unwrap();
    assert!(disk.violations()[1].what.contains("removed or replaced"));
    drop(file);

    let direct = disk.open(&path, OpenMode::CreateDirect).unwrap();
    put(&*disk.open(&path, OpenMode::CreateBuffered).unwrap(), 0, 8192).unwrap();
    let block = AlignedBuf::zeroed(8192);
    direct.write_at(&[IoSlice::new(&block)], 0).unwrap();
    assert_eq!(disk.violations().len(), 2);
    let mut back = AlignedBuf::zeroed(8192);
    direct.read_at(&mut back, 4096).unwrap();
    direct.read_at(&mut back[..904], 9000).expect("behind the end nothing is transferred");
    assert_eq!(disk.violations().len(), 2);
    for (from, to, at) in [(1, 4097, 0), (0, 100, 0), (0, 4096, 512)] {
        direct.write_at(&[IoSlice::new(&block[from..to])], at).unwrap();
        direct.read_at(&mut back[from..to], at).unwrap();
    }
    assert_eq!(disk.violations().len(), 2 + 6);
    assert!(disk.violations()[2..].iter().all(|v| v.what.contains("not aligned")));
}

#[test]
fn overlapping_writes_at_the_same_time_are_found() {
    let Bench { _root, path, faulty, disk } = recording();
    let file = disk.open(&path, OpenMode::CreateBuffered).unwrap();
    let (entered, was_entered) = sync_channel(1);
    let (release, leave) = sync_channel(1);
    *faulty.gate.lock() = Some((entered, leave));
    let slow = file.clone();
    let thread = std::thread::spawn(move || put(&*slow, 100, 100));
    was_entered.recv().unwrap();
    put(&*file, 0, 100).unwrap();
    put(&*file, 200, 10).unwrap();
    assert_eq!(disk.violations(), []);
    put(&*file, 199, 1).unwrap();
    assert!(disk.violations()[0].what.contains("write of bytes 199..200 while 100..200 are written"));
    release.send(()).unwrap();
    thread.join().unwrap().unwrap();
    put(&*file, 150, 1).unwrap();
    assert_eq!(disk.violations().len(), 1);
}

#[test]
fn durable_is_what_a_sync_covered_in_a_file_with_a_durable_name() {
    let Bench { _root, path, faulty, disk } = recording();
    let dir = path.with_file_name("d");
    let path = dir.join("f");
    disk.create_dir_all(&dir).unwrap();
    let file = disk.open(&path, OpenMode::CreateBuffered).unwrap();
    put(&*file, 0, 100).unwrap();
    assert_eq!(disk.undurable_bytes(), 100);
    file.sync().unwrap();
    assert_eq!(disk.undurable_bytes(), 0);
    assert!(!disk.is_durable(&path, 0..100), "its name is not durable");
    disk.sync_dir(&dir).unwrap();
    assert!(!disk.is_durable(&path, 0..100), "its directory's name is not durable");
    disk.sync_dir(dir.parent().unwrap()).unwrap();
    assert!(disk.is_durable(&path, 0..100));
    assert!(!disk.is_durable(&path, 99..101), "there is no byte 100");

    put(&*file, 40, 10).unwrap();
    assert!(
        disk.is_durable(&path, 0..40) && disk.is_durable(&path, 50..100) && !disk.is_durable(&path, 49..50)
    );
    file.write_durable_at(&[IoSlice::new(&[2; 5])], 45).unwrap();
    assert!(disk.is_durable(&path, 45..50) && !disk.is_durable(&path, 40..45));
    file.set_len(200).unwrap();
    assert_eq!(disk.undurable_bytes(), 105);

    // A write that ends while a sync runs is not covered by it.
    let (entered, was_entered) = sync_channel(1);
    let (release, leave) = sync_channel(1);
    *faulty.gate.lock() = Some((entered, leave));
    let slow = file.clone();
    let thread = std::thread::spawn(move || slow.sync());
    was_entered.recv().unwrap();
    assert!(!disk.is_durable(&path, 100..200));
    put(&*file, 0, 1).unwrap();
    release.send(()).unwrap();
    thread.join().unwrap().unwrap();
    assert!(disk.is_durable(&path, 1..200) && !disk.is_durable(&path, 0..1));

    faulty.fails.store(true, Ordering::SeqCst);
    assert!(file.sync().is_err());
    assert!(!disk.is_durable(&path, 0..1));
    assert_eq!(disk.violations(), []);
}
