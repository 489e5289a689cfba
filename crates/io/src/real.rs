//! The real disk: Linux system calls behind [`Disk`].
//!
//! # Data flow
//! ```text
//! read_cached_at    preadv2(RWF_NOWAIT) of what is in memory, see [`crate::resident`]; "would wait" on direct files and
//!                   where the flag is refused
//! write_at          pwritev
//! write_durable_at  pwritev2(RWF_DSYNC), or pwritev + fdatasync where the flag is refused
//! begin_writeback   sync_file_range(WRITE), and nothing on direct files
//! drop_cached       posix_fadvise(DONTNEED), and nothing on direct files
//! sync              fdatasync          sync_dir   open(O_DIRECTORY) + fsync
//! allocate          fallocate, or zeros after the end where it is refused
//! ```
//!
//! # Invariants
//! 1. A call never retries anything but `EINTR`: the caller owns every other failure (reliability IB14).
//! 2. A direct transfer keeps its caller aligned, see [`crate::direct`].
//! 3. The last component of a path is never followed when it is a symbolic link, and only regular files open.
//!    Parents may be links: operators mount data directories that way.
//!
//! # Limits
//! 1024 slices in one call (the rest is a short write). Files are made with mode 0640, directories with 0750, less
//! the umask.

use crate::BLOCK_SIZE_BYTES;
use crate::chunk::AlignedBuf;
use crate::direct::{read_is_aligned, whole_blocks, write_is_aligned};
use crate::disk::{Disk, DiskFile, DiskLock, Entry, OpenMode, Overwrites, SLICES_MAX, Space};
use crate::resident::Residency;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{
    Advice, AtFlags, FallocateFlags, FileType, FlockOperation, IFlags, Mode, OFlags, StatxFlags,
};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The file systems of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

/// Bytes requested with one `fadvise`. Of a longer range the kernel reads only as much as the device takes at once
/// (`max_sectors_kb`) or as its read-ahead is, whichever is more: by default 128 KiB.
const ASKED_AT_ONCE_BYTES: usize = 128 << 10;

impl RealDisk {
    /// The disk. It has no state of its own.
    pub fn new() -> RealDisk {
        RealDisk
    }
}

fn file_mode() -> Mode {
    Mode::RUSR | Mode::WUSR | Mode::RGRP
}

/// Opens a regular file. Refuses anything else of that name (directory, pipe, device), symbolic links included.
fn open_regular(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    // NONBLOCK: opening a pipe that somebody put there must not hang; it means nothing to a regular file.
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK;
    let fd = retry_on_intr(|| rustix::fs::open(path, flags, file_mode()))?;
    match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
        FileType::RegularFile => Ok(fd),
        FileType::Directory => Err(ErrorKind::IsADirectory.into()),
        _ => Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Takes a file away from everybody but its owner (mode 0600): before a secret is written to it. A [`Disk`] has no notion of rights, and
/// a simulated one has no such file, which is fine.
///
/// # Errors
/// The file is not ours, or not a regular one.
pub fn restrict(path: &Path) -> io::Result<()> {
    match open_regular(path, OFlags::RDONLY) {
        Ok(fd) => Ok(retry_on_intr(|| rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR))?),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Opens for direct I/O, or `None` where the file system or device refuses it or wants larger blocks than ours.
fn open_direct(path: &Path, flags: OFlags) -> io::Result<Option<OwnedFd>> {
    let fd = match open_regular(path, flags | OFlags::DIRECT) {
        Ok(fd) => fd,
        Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => return Ok(None),
        Err(e) => return Err(e),
    };
    // Kernels from 6.1 on say what alignment they want. An empty file cannot be probed in another way without writing to it.
    if let Ok(stat) = rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        && stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0
    {
        let wanted = stat.stx_dio_offset_align.max(stat.stx_dio_mem_align) as usize;
        if stat.stx_dio_offset_align == 0 || wanted > BLOCK_SIZE_BYTES {
            return Ok(None);
        }
    }
    let mut probe = AlignedBuf::zeroed(BLOCK_SIZE_BYTES);
    match retry_on_intr(|| rustix::io::pread(&fd, &mut probe[..], 0)) {
        Err(Errno::INVAL) => Ok(None),
        // Any other failure concerns the medium. The caller's own reads will meet it.
        _ => Ok(Some(fd)),
    }
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let create = OFlags::RDWR | OFlags::CREATE;
        let (fd, is_direct) = match mode {
            OpenMode::Read => (open_regular(path, OFlags::RDONLY)?, false),
            OpenMode::ReadScattered => {
                let fd = open_regular(path, OFlags::RDONLY)?;
                // A hint: without it reads are the same.
                let _ = rustix::fs::fadvise(&fd, 0, None, Advice::Random);
                (fd, false)
            }
            OpenMode::CreateBuffered => (open_regular(path, create)?, false),
            OpenMode::CreateDirect | OpenMode::ReadDirect => {
                let flags = if mode.is_read_only() { OFlags::RDONLY } else { create };
                match open_direct(path, flags)? {
                    Some(fd) => (fd, true),
                    None => (open_regular(path, flags)?, false),
                }
            }
        };
        Ok(Arc::new(RealFile::new(fd, is_direct)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for found in std::fs::read_dir(dir)? {
            let found = found?;
            let meta = match found.metadata() {
                Ok(meta) => meta,
                Err(e) if e.kind() == ErrorKind::NotFound => continue, // removed meanwhile
                Err(e) => return Err(e),
            };
            entries.push(Entry {
                // All our names are UTF-8. A foreign one that is not is listed with replacement characters, and cannot be opened by that.
                name: found.file_name().to_string_lossy().into_owned(),
                is_dir: meta.is_dir(),
                len: if meta.is_dir() { 0 } else { meta.len() },
            });
        }
        entries.sort();
        Ok(entries)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o750).create(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::rename(from, to))?)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::unlink(path))?)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let fd = open_dir(dir)?;
        Ok(retry_on_intr(|| rustix::fs::fsync(&fd))?)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match retry_on_intr(|| rustix::fs::lstat(path)) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        let fd = open_regular(path, OFlags::RDWR | OFlags::CREATE)?;
        retry_on_intr(|| rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive))?;
        Ok(Box::new(RealLock { _fd: fd }))
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        let stat = retry_on_intr(|| rustix::fs::statvfs(dir))?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        let kept_for_root = stat.f_bfree.saturating_sub(stat.f_bavail);
        Ok(Space { total: bytes(stat.f_blocks.saturating_sub(kept_for_root)), free: bytes(stat.f_bavail) })
    }

    fn overwrites(&self, dir: &Path) -> io::Result<Overwrites> {
        let fd = open_dir(dir)?;
        Ok(match rustix::fs::fstatfs(&fd)?.f_type as u32 {
            BTRFS if rustix::fs::ioctl_getflags(&fd)?.contains(IFlags::NOCOW) => Overwrites::InPlace,
            BTRFS => Overwrites::CopiedUnlessMarked,
            ZFS | BCACHEFS => Overwrites::Copied,
            _ => Overwrites::InPlace,
        })
    }

    fn prefer_in_place(&self, dir: &Path) -> io::Result<()> {
        if self.overwrites(dir)? == Overwrites::CopiedUnlessMarked {
            let fd = open_dir(dir)?;
            let flags = rustix::fs::ioctl_getflags(&fd)?;
            rustix::fs::ioctl_setflags(&fd, flags | IFlags::NOCOW)?;
        }
        Ok(())
    }
}

/// Numbers of file systems that copy on write (`f_type` of statfs(2)).
const BTRFS: u32 = 0x9123_683E;
const ZFS: u32 = 0x2FC1_2FC1;
const BCACHEFS: u32 = 0xCA45_1A4E;

fn open_dir(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(retry_on_intr(|| rustix::fs::open(dir, flags, Mode::empty()))?)
}

/// The lock belongs to the open file: it ends when this is dropped, or with the process.
struct RealLock {
    _fd: OwnedFd,
}

impl DiskLock for RealLock {}

struct RealFile {
    fd: OwnedFd,
    is_direct: bool,
    /// Set once the file system refused `RWF_DSYNC` for a write that it then took without the flag.
    dsync_refused: AtomicBool,
    residency: Residency,
}

fn misaligned(what: &str, offset: u64) -> io::Error {
    debug_assert!(false, "{what} at {offset} of a direct file is not aligned to {BLOCK_SIZE_BYTES} bytes");
    io::Error::new(ErrorKind::InvalidInput, format!("unaligned {what} at {offset} of a direct file"))
}

impl RealFile {
    fn new(fd: OwnedFd, is_direct: bool) -> RealFile {
        RealFile { fd, is_direct, dsync_refused: AtomicBool::new(false), residency: Residency::default() }
    }

    fn write(&self, slices: &[IoSlice<'_>], offset: u64, flags: ReadWriteFlags) -> io::Result<usize> {
        let mut slices = &slices[..slices.len().min(SLICES_MAX)];
        if self.is_direct {
            if !write_is_aligned(slices, offset) {
                return Err(misaligned("write", offset));
            }
            // The kernel checks the address of empty slices too, which is arbitrary: stop before one.
            let start = slices.iter().position(|s| !s.is_empty()).unwrap_or(slices.len());
            slices = &slices[start..];
            slices = &slices[..slices.iter().position(|s| s.is_empty()).unwrap_or(slices.len())];
        }
        if slices.is_empty() {
            return Ok(0);
        }
        let n = if flags.is_empty() {
            retry_on_intr(|| rustix::io::pwritev(&self.fd, slices, offset))?
        } else {
            retry_on_intr(|| rustix::io::pwritev2(&self.fd, slices, offset, flags))?
        };
        Ok(if self.is_direct { whole_blocks(n) } else { n })
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if !self.is_direct {
            return Ok(retry_on_intr(|| rustix::io::pread(&self.fd, &mut *buf, offset))?);
        }
        if !read_is_aligned(buf, offset) {
            // A caller that continues after a short read at an unaligned end of file gets here, and is told that it is the end.
            return if offset >= self.len()? { Ok(0) } else { Err(misaligned("read", offset)) };
        }
        let n = retry_on_intr(|| rustix::io::pread(&self.fd, &mut *buf, offset))?;
        if n.is_multiple_of(BLOCK_SIZE_BYTES) || offset + n as u64 >= self.len()? {
            return Ok(n);
        }
        match whole_blocks(n) {
            // 0 would say "end of file".
            0 => Err(io::Error::other("direct read stopped inside its first block")),
            whole => Ok(whole),
        }
    }

    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        // On a direct file the flag does not keep the call from waiting (measured).
        if self.is_direct || !self.residency.holds(&self.fd, offset, buf.len()) {
            return Ok(None);
        }
        let read = retry_on_intr(|| {
            let slices = &mut [IoSliceMut::new(buf)];
            rustix::io::preadv2(&self.fd, slices, offset, ReadWriteFlags::NOWAIT)
        });
        match read {
            Ok(n) => Ok(Some(n)),
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn begin_reading(&self, offset: u64, len: u64) {
        let Ok(file_len) = self.len() else { return };
        let end = offset.saturating_add(len).min(file_len);
        if self.is_direct {
            return;
        }
        for offset in (offset..end).step_by(ASKED_AT_ONCE_BYTES) {
            let piece = NonZeroU64::new((end - offset).min(ASKED_AT_ONCE_BYTES as u64));
            let _ = rustix::fs::fadvise(&self.fd, offset, piece, Advice::WillNeed);
        }
    }

    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.write(slices, offset, ReadWriteFlags::empty())
    }

    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        if !self.dsync_refused.load(Ordering::Relaxed) {
            let refusals = [Errno::OPNOTSUPP, Errno::INVAL, Errno::NOSYS].map(Errno::raw_os_error);
            match self.write(slices, offset, ReadWriteFlags::DSYNC) {
                Err(e) if e.raw_os_error().is_some_and(|code| refusals.contains(&code)) => {}
                done => return done,
            }
        }
        let n = self.write(slices, offset, ReadWriteFlags::empty())?;
        self.dsync_refused.store(true, Ordering::Relaxed);
        self.sync()?;
        Ok(n)
    }

    fn begin_writeback(&self, offset: u64, len: u64) {
        let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
        if !self.is_direct && len > 0 {
            // SAFETY: it is given no memory, and the descriptor is open for as long as `self` is.
            unsafe { libc::sync_file_range(self.fd.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
        }
    }

    fn drop_cached(&self) {
        if !self.is_direct {
            let _ = rustix::fs::fadvise(&self.fd, 0, None, Advice::DontNeed);
        }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::fdatasync(&self.fd))?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::ftruncate(&self.fd, len))?)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        match retry_on_intr(|| rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), 0, len)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let end = self.len()?;
                crate::zero_fill(self, end, len.saturating_sub(end))
            }
            done => Ok(done?),
        }
    }

    fn len(&self) -> io::Result<u64> {
        let size = rustix::fs::fstat(&self.fd)?.st_size;
        u64::try_from(size).map_err(|_| io::Error::new(ErrorKind::InvalidData, "negative file size"))
    }

    fn is_direct(&self) -> bool {
        self.is_direct
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A directory on the temporary file system and, where there is one, in memory: they treat direct I/O differently.
    fn roots() -> Vec<tempfile::TempDir> {
        let mut roots = vec![tempfile::tempdir().unwrap()];
        roots.extend(tempfile::tempdir_in("/dev/shm").ok());
        roots
    }

    #[test]
    fn the_real_disk_conforms() {
        for root in roots() {
            crate::conformance::disk(&RealDisk::new(), root.path());
        }
    }

    #[test]
    fn refused_direct_io_falls_back_to_buffered() {
        // procfs is on every Linux, has no direct I/O, and this file of it can be written.
        let file = RealDisk::new().open(Path::new("/proc/self/comm"), OpenMode::CreateDirect).unwrap();
        assert!(!file.is_direct());
        let mut name = [0; 3];
        assert!(file.read_at(&mut name, 0).unwrap() > 0, "unaligned reads are fine");
    }

    #[test]
    fn a_refused_durability_flag_falls_back_to_write_and_sync() {
        for root in roots() {
            for is_direct in [false, true] {
                let path = root.path().join("f");
                let flags = OFlags::RDWR | OFlags::CREATE;
                let fd = if is_direct { open_direct(&path, flags).unwrap() } else { None };
                let is_direct = fd.is_some();
                let fd = fd.unwrap_or_else(|| open_regular(&path, flags).unwrap());
                let file = RealFile { dsync_refused: AtomicBool::new(true), ..RealFile::new(fd, is_direct) };
                let mut block = AlignedBuf::zeroed(BLOCK_SIZE_BYTES);
                block.fill(3);
                let file: &dyn DiskFile = &file;
                file.write_all_durable_at(&mut [IoSlice::new(&block)], 0).unwrap();
                let mut back = AlignedBuf::zeroed(BLOCK_SIZE_BYTES);
                file.read_exact_at(&mut back, 0).unwrap();
                assert_eq!(back[..], block[..]);
            }
        }
    }

    /// A file of procfs takes no writes with flags, and cannot be synced: so the fallback gets as far as its sync.
    #[test]
    fn the_kernels_refusal_of_the_durability_flag_is_seen_and_remembered() {
        let fd = open_regular(Path::new("/proc/self/coredump_filter"), OFlags::RDWR).unwrap();
        let file = RealFile::new(fd, false);
        let read = || {
            let mut found = [0; 16];
            let count = file.read_at(&mut found, 0).unwrap();
            std::str::from_utf8(&found[..count]).unwrap().trim().to_owned()
        };
        let before = read();
        for value in ["00000001", &before] {
            let refused = file.write_durable_at(&[IoSlice::new(format!("0x{value}").as_bytes())], 0);
            assert_eq!(
                refused.unwrap_err().raw_os_error(),
                Some(Errno::INVAL.raw_os_error()),
                "of fdatasync"
            );
            assert!(file.dsync_refused.load(Ordering::Relaxed));
            assert_eq!(read(), value, "it was written, without the flag");
        }
    }

    #[test]
    fn links_and_pipes_are_refused_and_modes_are_narrow() {
        let root = tempfile::tempdir().unwrap();
        let disk = RealDisk::new();
        let (file, link, pipe) = (root.path().join("f"), root.path().join("link"), root.path().join("pipe"));
        disk.open(&file, OpenMode::CreateBuffered).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for mode in
            [OpenMode::Read, OpenMode::ReadScattered, OpenMode::CreateBuffered, OpenMode::CreateDirect]
        {
            assert!(disk.open(&link, mode).is_err(), "{mode:?} of a link");
            assert!(disk.open(&pipe, mode).is_err(), "{mode:?} of a pipe");
        }
        assert!(restrict(&link).is_err() && restrict(&pipe).is_err());
        restrict(&root.path().join("none")).unwrap();
        let secret = root.path().join("secret");
        disk.open(&secret, OpenMode::CreateBuffered).unwrap();
        restrict(&secret).unwrap();
        disk.create_dir_all(&root.path().join("d/e")).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        // The umask of whoever runs the tests can only narrow them.
        assert_eq!(mode(&file) & !0o640, 0);
        assert_eq!(mode(&secret), 0o600);
        assert_eq!(mode(&root.path().join("d")) & !0o750, 0);
        assert_eq!(mode(&root.path().join("d/e")) & !0o750, 0);
    }

    #[test]
    fn what_was_asked_for_comes_into_memory_and_what_follows_it_does_not() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        let disk = RealDisk::new();
        let file = disk.open(&path, OpenMode::CreateBuffered).unwrap();
        const MIB: usize = 1 << 20;
        file.write_at(&[IoSlice::new(&vec![7; 32 * MIB])], 0).unwrap();
        file.sync().unwrap();
        let reader = disk.open(&path, OpenMode::ReadScattered).unwrap();
        rustix::fs::fadvise(
            rustix::fs::open(&path, OFlags::RDONLY, Mode::empty()).unwrap(),
            0,
            None,
            Advice::DontNeed,
        )
        .unwrap();
        let is_cached = |offset: usize| {
            let mut byte = [0];
            let read = reader.read_cached_at(&mut byte, offset as u64).unwrap();
            assert!(read.is_none() || byte == [7]);
            read == Some(1)
        };
        if is_cached(31 * MIB) {
            assert!((0..32).all(|mib| is_cached(mib * MIB)), "a file system in memory has all of it, always");
            return;
        }
        let mut some = vec![0; MIB];
        for offset in (0..4 * MIB).step_by(MIB) {
            reader.read_exact_at(&mut some, offset as u64).unwrap();
        }
        assert!(!is_cached(5 * MIB), "sequences are not read ahead of");
        reader.begin_reading(8 * MIB as u64, MIB as u64);
        // Each look is at another block, so that no look can be what brought the block into memory.
        let mut blocks = (8 * MIB..9 * MIB).step_by(BLOCK_SIZE_BYTES).rev();
        let is_read = |block| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            is_cached(block)
        };
        assert!(blocks.any(is_read), "nothing that was asked for was read within five seconds");
        assert!(!is_cached(10 * MIB));
    }

    #[test]
    fn a_file_opened_for_reading_takes_no_writes_and_a_removed_one_still_does() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        let disk = RealDisk::new();
        let file = disk.open(&path, OpenMode::CreateBuffered).unwrap();
        let reader = disk.open(&path, OpenMode::Read).unwrap();
        assert!(reader.write_at(&[IoSlice::new(b"x")], 0).is_err());
        disk.remove(&path).unwrap();
        assert_eq!(file.write_at(&[IoSlice::new(b"x")], 0).unwrap(), 1);
        file.sync().unwrap();
        assert_eq!(reader.len().unwrap(), 1);
    }
}
