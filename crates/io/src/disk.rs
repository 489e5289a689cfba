//! The disk as the cores see it: positioned reads and writes, explicit durability, synchronous calls.

mod zero;

pub use zero::{ZERO_FILL_STEP_BYTES, ZeroFill, zero_fill};

use std::io;
use std::path::Path;
use std::sync::Arc;

/// How a file is opened. A missing file is created by `Create*` only; an existing one is kept as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpenMode {
    /// Existing file, buffered reads.
    Read,
    /// Existing file, buffered reads in any order: the kernel reads ahead only what it is told to, by
    /// [`DiskFile::begin_reading`].
    ReadScattered,
    /// Existing or new file, buffered reads and writes.
    CreateBuffered,
    /// Existing or new file, direct (uncached) writes and reads: offsets, lengths and memory must be multiples of
    /// [`crate::BLOCK_SIZE_BYTES`]. Falls back to buffered where the file system refuses direct I/O; see
    /// [`DiskFile::is_direct`].
    CreateDirect,
    /// Existing file, direct reads, under the rules of `CreateDirect`.
    ReadDirect,
}

impl OpenMode {
    /// The file must exist, and cannot be written through this handle.
    pub fn is_read_only(self) -> bool {
        matches!(self, OpenMode::Read | OpenMode::ReadScattered | OpenMode::ReadDirect)
    }

    /// Direct I/O is requested. Whether a file got it, [`DiskFile::is_direct`] says.
    pub fn is_direct(self) -> bool {
        matches!(self, OpenMode::CreateDirect | OpenMode::ReadDirect)
    }
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The last component.
    pub name: String,
    /// True for a directory.
    pub is_dir: bool,
    /// Length in bytes (0 for a directory).
    pub len: u64,
}

/// Bytes of the file system that holds a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Used bytes and `free` together, as `df` counts them. Blocks that the file system reserves for root are in neither: no other user
    /// can use them.
    pub total: u64,
    /// Bytes an unprivileged process may still use.
    pub free: u64,
}

/// An exclusive lock on a file, held until this is dropped ([`Disk::lock`]).
pub trait DiskLock: Send + Sync {}

/// A file system, or the simulation of one. Calls block: make them on a thread that may.
pub trait Disk: Send + Sync {
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;
    /// The names in a directory, sorted. `NotFound` when the directory is missing.
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>>;
    /// Makes a directory and its parents; fine when it is there. Durable after `sync_dir` of each parent.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Renames a file over whatever has the new name. Durable after `sync_dir`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file. Durable after `sync_dir`.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes creations, renames and removals in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// True when the path names a file or a directory.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Takes an exclusive lock on the file `path`, which is created if it is missing. The lock ends with the process at the latest.
    /// `WouldBlock` when somebody else holds it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>>;
    /// Size and free bytes of the file system below `dir`.
    fn space(&self, dir: &Path) -> io::Result<Space>;
    /// What becomes of bytes of files in `dir` that are written over. By default they are written in place.
    fn overwrites(&self, dir: &Path) -> io::Result<Overwrites> {
        let _ = dir;
        Ok(Overwrites::InPlace)
    }
    /// Asks for files that are made in `dir` from now on, and in directories made in it, to be written over in place. Nothing changes
    /// where they are anyhow, or where the file system knows no such thing: [`Disk::overwrites`] tells afterwards.
    fn prefer_in_place(&self, dir: &Path) -> io::Result<()> {
        let _ = dir;
        Ok(())
    }
}

/// How a full file system treats bytes that are written over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrites {
    /// They take no room: blocks that a file has are enough.
    InPlace,
    /// New blocks are taken before the old ones are free, unless the directory is marked so that files made in it are written in place
    /// (btrfs).
    CopiedUnlessMarked,
    /// New blocks are taken before the old ones are free, always.
    Copied,
}

impl<D: Disk + ?Sized> Disk for Arc<D> {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        (**self).open(path, mode)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        (**self).list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        (**self).create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        (**self).rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        (**self).remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        (**self).sync_dir(dir)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        (**self).exists(path)
    }
    fn overwrites(&self, dir: &Path) -> io::Result<Overwrites> {
        (**self).overwrites(dir)
    }
    fn prefer_in_place(&self, dir: &Path) -> io::Result<()> {
        (**self).prefer_in_place(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        (**self).lock(path)
    }
    fn space(&self, dir: &Path) -> io::Result<Space> {
        (**self).space(dir)
    }
}

/// An open file. All positions are absolute; there is no cursor.
pub trait DiskFile: Send + Sync {
    /// Reads into `buf` from `offset`; may be short, 0 at or past the end. `Interrupted` is retried inside. What
    /// `buf` holds beyond the returned length is arbitrary: direct reads fill whole blocks.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// As `read_at`, but takes only what the kernel holds in memory: `None` if it would have to wait for the device, and then no read
    /// is begun either. May be short where the cached part ends. A disk that cannot tell always answers `None`.
    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        let _ = (buf, offset);
        Ok(None)
    }
    /// Asks the kernel to begin reading this range of a buffered file into memory, and does not wait for the bytes; it may wait
    /// for memory or for room in the device's queue, so it is for threads that may block. A hint: errors show in the
    /// read that follows, and a disk that keeps nothing in memory ignores it.
    fn begin_reading(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
    /// Writes the slices one after another from `offset`; may be short. `Interrupted` is retried inside.
    fn write_at(&self, slices: &[io::IoSlice<'_>], offset: u64) -> io::Result<usize>;
    /// As `write_at`, and what was written is durable when it returns.
    fn write_durable_at(&self, slices: &[io::IoSlice<'_>], offset: u64) -> io::Result<usize>;
    /// Asks the kernel to begin writing out the dirty bytes of this range of a buffered file, without waiting for it, so
    /// that little is left for the next sync. A hint: it makes nothing durable, errors of the writes show in that sync,
    /// and a disk that has nothing to write out ignores it.
    fn begin_writeback(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
    /// Asks the kernel to drop the clean pages that it holds of a buffered file, so that the next reads show what is on the medium:
    /// after a failed sync the cached pages may show bytes that are nowhere else. A hint: pages that others have mapped or are reading
    /// may stay. A direct file, and a disk that keeps nothing in memory, have nothing to drop.
    fn drop_cached(&self) {}
    /// Makes all finished writes, and the length, durable. Never call it again after it failed: the kernel may have
    /// dropped the dirty pages and report success the second time.
    fn sync(&self) -> io::Result<()>;
    /// Cuts or extends (with zeros) the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes the file at least `len` bytes long (whole blocks) and has the file system allocate all blocks below that, so
    /// that writing them finds room. Existing bytes stay, new ones read as zero. An error, most likely for want of
    /// space, is no failed write: nothing that was in the file is in doubt. Where the file system cannot allocate ahead,
    /// zeros are written after the end, and holes before it are not filled.
    fn allocate(&self, len: u64) -> io::Result<()> {
        let end = self.len()?;
        zero_fill(self, end, len.saturating_sub(end))
    }
    /// Current length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// True when the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// True when alignment of offsets, lengths and memory is required.
    fn is_direct(&self) -> bool;
}

impl dyn DiskFile + '_ {
    /// Reads exactly `buf.len()` bytes; `UnexpectedEof` when the file ends before.
    pub fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            let n = self.read_at(buf, offset)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            buf = &mut buf[n..];
            offset += n as u64;
        }
        Ok(())
    }

    /// Reads exactly `buf.len()` bytes without waiting for the device. False when it would have to wait: what `buf`
    /// holds is arbitrary then. Also false at what seems to be the end of the file: Linux 5.9 and 5.10 report the end for bytes that they
    /// do not have in memory (preadv2(2), BUGS), so only a read that may wait can tell.
    pub fn read_cached_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<bool> {
        while !buf.is_empty() {
            let n = match self.read_cached_at(buf, offset)? {
                None | Some(0) => return Ok(false),
                Some(n) => n,
            };
            buf = &mut buf[n..];
            offset += n as u64;
        }
        Ok(true)
    }

    /// Writes all slices, going on after short writes.
    pub fn write_all_at(&self, slices: &mut [io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        write_all(slices, offset, |s, o| self.write_at(s, o))
    }

    /// Writes all slices durably, going on after short writes.
    pub fn write_all_durable_at(&self, slices: &mut [io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        write_all(slices, offset, |s, o| self.write_durable_at(s, o))
    }
}

/// The kernel takes at most this many slices in one call (IOV_MAX on Linux).
pub(crate) const SLICES_MAX: usize = 1024;

fn write_all(
    mut slices: &mut [io::IoSlice<'_>],
    mut offset: u64,
    mut write: impl FnMut(&[io::IoSlice<'_>], u64) -> io::Result<usize>,
) -> io::Result<()> {
    io::IoSlice::advance_slices(&mut slices, 0); // drops leading empty slices
    while !slices.is_empty() {
        let take = slices.len().min(SLICES_MAX);
        let n = write(&slices[..take], offset)?;
        if n == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        io::IoSlice::advance_slices(&mut slices, n);
        offset += n as u64;
    }
    Ok(())
}

/// True when the medium cannot return the bytes at one place: the rest of it may be sound, and another attempt seldom
/// helps.
pub fn is_unreadable(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    // On some paths the kernel reports a bad sector as ENODATA. EUCLEAN and EILSEQ are failed checksums of file systems and drives.
    matches!(errno, Some(Errno::IO | Errno::NODATA | Errno::REMOTEIO | Errno::ILSEQ | Errno::UCLEAN))
}

/// A shortage that keeps a file from being made or grown for now. Callers that meet it wait, and report which one it
/// is: a volume does not get room by closing files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// The file system, or a quota on it, has no room.
    Space,
    /// This process or the machine has too many files open.
    Descriptors,
}

impl Shortage {
    /// The shortage that caused the error, if one did.
    pub fn of(error: &io::Error) -> Option<Shortage> {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(Shortage::Space),
            _ => has_no_descriptor(error).then_some(Shortage::Descriptors),
        }
    }
}

/// True if a call failed because the process or the machine lacks descriptors or memory: that says nothing about
/// the file, and may pass. Unlike with [`Shortage`], a full volume does not count.
pub fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    has_no_descriptor(error) || matches!(Errno::from_io_error(error), Some(Errno::NOMEM | Errno::NOBUFS))
}

/// True when a file could not be opened because this process or the machine has too many open: it says nothing about
/// the file.
pub fn has_no_descriptor(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}
