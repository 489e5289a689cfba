//! A disk in memory for tests that damage bytes, fail calls or lose unsynced sectors: thousands of files would be
//! slow on a real one. Names are durable at once here; the simulator's disk loses those too.

use bindery_io::{Disk, DiskFile, DiskLock, Entry, OpenMode, Space};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SECTOR: usize = 512;

/// A small generator: tests print its seed.
pub(crate) fn numbers(seed: u64) -> impl FnMut() -> u32 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as u32
    }
}

#[derive(Clone, Default)]
pub(crate) struct MemDisk(Arc<Shared>);

#[derive(Default, Clone)]
struct Content {
    now: Vec<u8>,
    /// As of the last sync.
    durable: Vec<u8>,
}

#[derive(Default)]
struct Shared {
    files: Mutex<BTreeMap<PathBuf, Arc<Mutex<Content>>>>,
    faults: Mutex<Faults>,
    cached_reads: std::sync::atomic::AtomicU64,
    /// Reads give at most so many bytes at once; 0 for all there are. And so many reads from now on fail, as of a
    /// bad sector.
    read_bytes_max: std::sync::atomic::AtomicUsize,
    reads_fail: std::sync::atomic::AtomicUsize,
}

#[derive(Default)]
struct Faults {
    /// Changes (writes, syncs, length changes) that still succeed; all fail afterwards.
    changes_left: Option<u64>,
    changes: u64,
    /// Changes attempted after the first one that failed.
    after_failure: u64,
}

impl MemDisk {
    pub(crate) fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }
    /// Reads become short, `most` bytes at a time; 0 for as many as there are.
    pub(crate) fn shorten_reads(&self, most: usize) {
        self.0.read_bytes_max.store(most, std::sync::atomic::Ordering::Relaxed);
    }
    /// The next `reads` fail.
    pub(crate) fn fail_reads(&self, reads: usize) {
        self.0.reads_fail.store(reads, std::sync::atomic::Ordering::Relaxed);
    }
    pub(crate) fn bytes(&self, path: &Path) -> Vec<u8> {
        self.0.files.lock()[path].lock().now.clone()
    }
    pub(crate) fn put(&self, path: &Path, bytes: Vec<u8>) {
        let content = Content { now: bytes.clone(), durable: bytes };
        self.0.files.lock().insert(path.to_owned(), Arc::new(Mutex::new(content)));
    }
    /// Other bytes in a file that stays open.
    pub(crate) fn overwrite(&self, path: &Path, bytes: Vec<u8>) {
        self.0.files.lock()[path].lock().now = bytes;
    }
    pub(crate) fn names(&self) -> Vec<String> {
        let files = self.0.files.lock();
        files.keys().map(|p| p.file_name().unwrap().to_string_lossy().into_owned()).collect()
    }
    /// The disk after a power failure: every sector written since the last sync is new, old or torn (a new beginning
    /// and an old end), as `choose` says with a number below 4; the length is old or new.
    pub(crate) fn after_crash(&self, mut choose: impl FnMut() -> u32) -> MemDisk {
        let left = MemDisk::default();
        for (path, content) in &*self.0.files.lock() {
            let Content { now, durable } = content.lock().clone();
            let len = if now.len() == durable.len() || choose() < 2 { now.len() } else { durable.len() };
            let mut image = durable;
            image.resize(len, 0);
            for (old, new) in image.chunks_mut(SECTOR).zip(now.chunks(SECTOR)) {
                let n = old.len().min(new.len());
                if old[..n] != new[..n] {
                    let arrived = [0, n / 3, n, n][choose() as usize];
                    old[..arrived].copy_from_slice(&new[..arrived]);
                }
            }
            left.put(path, image);
        }
        left
    }
    pub(crate) fn fail_after(&self, changes: u64) {
        *self.0.faults.lock() = Faults { changes_left: Some(changes), ..Faults::default() };
    }
    pub(crate) fn changes(&self) -> u64 {
        self.0.faults.lock().changes
    }
    pub(crate) fn changes_after_failure(&self) -> u64 {
        self.0.faults.lock().after_failure
    }
}

impl Shared {
    fn change(&self) -> io::Result<()> {
        let mut faults = self.faults.lock();
        match &mut faults.changes_left {
            None => {}
            Some(0) => {
                faults.after_failure += 1;
                let nth = faults.after_failure;
                return Err(io::Error::other(format!("injected failure {nth}")));
            }
            Some(left) => *left -= 1,
        }
        faults.changes += 1;
        Ok(())
    }
}

struct MemFile {
    bytes: Arc<Mutex<Content>>,
    direct: bool,
    shared: Arc<Shared>,
}

impl MemFile {
    fn check_alignment(&self, slices: &[IoSlice<'_>], offset: u64) {
        let block = bindery_io::BLOCK_SIZE_BYTES;
        if self.direct {
            assert_eq!(offset % block as u64, 0);
            for slice in slices {
                assert_eq!((slice.len() % block, slice.as_ptr() as usize % block), (0, 0));
            }
        }
    }
}

impl Disk for MemDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut files = self.0.files.lock();
        if mode.is_read_only() && !files.contains_key(path) {
            return Err(ErrorKind::NotFound.into());
        }
        let bytes = files.entry(path.to_owned()).or_default().clone();
        let direct = mode.is_direct();
        Ok(Arc::new(MemFile { bytes, direct, shared: self.0.clone() }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let files = self.0.files.lock();
        let of_dir = files.iter().filter(|(path, _)| path.parent() == Some(dir));
        Ok(of_dir
            .map(|(path, bytes)| Entry {
                name: path.file_name().unwrap().to_string_lossy().into_owned(),
                is_dir: false,
                len: bytes.lock().now.len() as u64,
            })
            .collect())
    }
    fn create_dir_all(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.change()?;
        let mut files = self.0.files.lock();
        let bytes = files.remove(from).ok_or(ErrorKind::NotFound)?;
        files.insert(to.to_owned(), bytes);
        Ok(())
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.change()?;
        self.0.files.lock().remove(path).map(|_| ()).ok_or(ErrorKind::NotFound.into())
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        self.0.change()
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.0.files.lock().contains_key(path))
    }
    fn lock(&self, _: &Path) -> io::Result<Box<dyn DiskLock>> {
        Err(ErrorKind::Unsupported.into())
    }
    fn space(&self, _: &Path) -> io::Result<Space> {
        Err(ErrorKind::Unsupported.into())
    }
}

impl DiskFile for MemFile {
    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        // Every third time the page is not there, which some kernels call the end of the file; some filters of system calls
        // refuse what they do not know.
        let calls = self.shared.cached_reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        match calls % 9 {
            0 => Ok(None),
            3 => Ok(Some(0)),
            6 => Err(io::ErrorKind::PermissionDenied.into()),
            _ => self.read_at(buf, offset).map(Some),
        }
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.bytes.lock();
        let from = bytes.now.get(offset as usize..).unwrap_or(&[]);
        let most = self.shared.read_bytes_max.load(std::sync::atomic::Ordering::Relaxed);
        let failing = |left: usize| left.checked_sub(1);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        if self.shared.reads_fail.fetch_update(relaxed, relaxed, failing).is_ok() {
            // As a failed transfer may: something is in the buffer.
            buf.fill(0xEE);
            return Err(io::Error::from_raw_os_error(5));
        }
        let n = from.len().min(buf.len()).min(if most == 0 { usize::MAX } else { most });
        buf[..n].copy_from_slice(&from[..n]);
        Ok(n)
    }
    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.shared.change()?;
        self.check_alignment(slices, offset);
        let bytes = &mut self.bytes.lock().now;
        let mut at = offset as usize;
        for slice in slices {
            let end = at + slice.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[at..end].copy_from_slice(slice);
            at = end;
        }
        Ok(at - offset as usize)
    }
    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let n = self.write_at(slices, offset)?;
        self.sync().map(|()| n)
    }
    fn sync(&self) -> io::Result<()> {
        self.shared.change()?;
        let content = &mut *self.bytes.lock();
        content.durable.clone_from(&content.now);
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.shared.change()?;
        self.bytes.lock().now.resize(len as usize, 0);
        Ok(())
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().now.len() as u64)
    }
    fn is_direct(&self) -> bool {
        self.direct
    }
}
