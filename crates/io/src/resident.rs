//! Finds out which parts of a file the kernel has in memory, without setting off a read.
//!
//! `preadv2` with `RWF_NOWAIT` does not wait for bytes that are not in memory, but it starts to read them, and sleeps
//! when the device's queue is full: on a disk that hangs, for good. So it is called only for bytes that are in memory.
//!
//! # Data flow
//! ```text
//! range ─► cachestat (Linux 6.5) ─► pages of it in memory, all or not
//!              └─ refused ─► mincore over a mapping of the file that is never touched ─► the same
//! ```
//!
//! # Invariants
//! 1. Nothing here reads from the device, or waits for it.
//! 2. "No" where it cannot be told. "Yes" may be outdated when it is used: the kernel may have taken the memory back.
//!
//! # Limits
//! Where `cachestat` is refused a file has one mapping, as long as the file was at the first question; what was written
//! behind it counts as absent.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;

/// `struct cachestat_range` of `linux/mman.h`.
#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

/// `struct cachestat` of `linux/mman.h`, in pages.
#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    under_writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Of all architectures that this builds for; `libc` names it for one.
const SYS_CACHESTAT: libc::c_long = 451;

/// Pages that one call of `mincore` covers.
const PAGES_AT_ONCE: usize = 64;

/// State kept for a file between questions.
#[derive(Default)]
pub(crate) struct Residency {
    /// `None` within: the file cannot be mapped.
    mapping: OnceLock<Option<Mapping>>,
}

impl Residency {
    /// True when the kernel has all of this range of the file `fd` in memory (invariant 2).
    pub(crate) fn holds(&self, fd: impl AsFd, offset: u64, len: usize) -> bool {
        let pages = Pages::of(offset, len);
        match cached_pages(fd.as_fd(), &pages) {
            Some(cached) => cached == pages.count,
            None => self.maps(fd.as_fd(), &pages),
        }
    }

    fn maps(&self, fd: BorrowedFd<'_>, pages: &Pages) -> bool {
        let mapping = self.mapping.get_or_init(|| Mapping::new(fd));
        mapping.as_ref().is_some_and(|mapping| mapping.holds(pages))
    }
}

/// The pages that a range lies in.
struct Pages {
    first: u64,
    count: u64,
}

impl Pages {
    fn of(offset: u64, len: usize) -> Pages {
        let size = page_bytes() as u64;
        let (first, end) = (offset / size, offset.saturating_add(len as u64).div_ceil(size));
        Pages { first, count: end - first }
    }
}

fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// How many of the pages are in memory; `None` where that may not be asked: kernels before 6.5, sandboxes that do not
/// know the call, files of somebody else.
fn cached_pages(fd: BorrowedFd<'_>, pages: &Pages) -> Option<u64> {
    if pages.count == 0 {
        return Some(0); // a length of 0 would mean all of the file
    }
    let size = page_bytes() as u64;
    let range = Range { offset: pages.first * size, len: pages.count.saturating_mul(size) };
    let mut counts = Counts::default();
    // SAFETY: both structures are laid out as the kernel's, and live until the call returns.
    let done = unsafe { libc::syscall(SYS_CACHESTAT, fd.as_raw_fd(), &raw const range, &raw mut counts, 0) };
    (done == 0).then_some(counts.cached)
}

/// A mapping of a file without access to it: a name for its pages that `mincore` takes.
struct Mapping {
    address: usize,
    bytes: usize,
}

impl Mapping {
    fn new(fd: BorrowedFd<'_>) -> Option<Mapping> {
        let bytes = usize::try_from(rustix::fs::fstat(fd).ok()?.st_size).ok().filter(|bytes| *bytes > 0)?;
        // SAFETY: a new mapping, at an address of the kernel's choice; its memory is never accessed.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        (address != libc::MAP_FAILED).then_some(Mapping { address: address.addr(), bytes })
    }

    fn holds(&self, pages: &Pages) -> bool {
        let mapped = self.bytes.div_ceil(page_bytes()) as u64;
        if pages.first.saturating_add(pages.count) > mapped {
            return false;
        }
        let (first, count) = (pages.first as usize, pages.count as usize);
        (first..first + count).step_by(PAGES_AT_ONCE).all(|from| {
            let some = PAGES_AT_ONCE.min(first + count - from);
            let mut states = [0; PAGES_AT_ONCE];
            let start = std::ptr::without_provenance_mut(self.address + from * page_bytes());
            // SAFETY: the range is within the mapping, which is `self`'s, and there is a byte for each page.
            let done = unsafe { libc::mincore(start, some * page_bytes(), states.as_mut_ptr()) };
            done == 0 && states[..some].iter().all(|state| state & 1 == 1)
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new` with this length, and no other code has the address.
        unsafe { libc::munmap(std::ptr::without_provenance_mut(self.address), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, OpenMode};
    use crate::real::RealDisk;
    use rustix::fs::{Advice, Mode, OFlags};
    use std::io::IoSlice;
    use std::path::Path;

    const FILE_BYTES: usize = 1 << 20;

    /// Opens it for random reads, with nothing of it in memory; `None` where the file system keeps all of it there.
    fn opened_cold(path: &Path) -> Option<rustix::fd::OwnedFd> {
        let file = RealDisk::new().open(path, OpenMode::CreateBuffered).unwrap();
        file.write_at(&[IoSlice::new(&vec![7; FILE_BYTES])], 0).unwrap();
        file.sync().unwrap();
        let fd = rustix::fs::open(path, OFlags::RDONLY, Mode::empty()).unwrap();
        rustix::fs::fadvise(&fd, 0, None, Advice::Random).unwrap();
        rustix::fs::fadvise(&fd, 0, None, Advice::DontNeed).unwrap();
        (!Residency::default().maps(fd.as_fd(), &Pages::of(0, FILE_BYTES))).then_some(fd)
    }

    /// Both ways of asking, of a range: they say the same where both are there.
    fn holds(fd: &rustix::fd::OwnedFd, offset: u64, len: usize) -> bool {
        let pages = Pages::of(offset, len);
        let mapped = Residency::default().maps(fd.as_fd(), &pages);
        if let Some(cached) = cached_pages(fd.as_fd(), &pages) {
            assert_eq!(cached == pages.count, mapped, "{len} bytes at {offset}");
        }
        mapped
    }

    #[test]
    fn what_was_read_is_held_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let Some(fd) = opened_cold(&root.path().join("f")) else { return };
        let page = page_bytes();
        let mut some = vec![0; 2 * page];
        rustix::io::pread(&fd, &mut some[..], 8 * page as u64).unwrap();
        let at = |page_no: usize| (page_no * page) as u64;
        assert!(holds(&fd, at(8), 2 * page));
        assert!(holds(&fd, at(9) - 1, 2), "across a border");
        assert!(!holds(&fd, at(8) - 1, 2));
        assert!(!holds(&fd, at(10) - 1, 2));
        assert!(!holds(&fd, 0, FILE_BYTES), "more pages than are asked for at once");
        let mut all = vec![0; FILE_BYTES];
        rustix::io::pread(&fd, &mut all[..], 0).unwrap();
        assert!(holds(&fd, 0, FILE_BYTES));
        assert!(!holds(&fd, 0, FILE_BYTES + 1), "behind the end");
        assert!(!holds(&fd, u64::MAX - 1, 100));
    }

    /// Invariant 1, and what it is for: the read that follows is not begun either.
    #[test]
    fn a_read_of_what_is_not_in_memory_is_not_begun() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        let Some(fd) = opened_cold(&path) else { return };
        let file = RealDisk::new().open(&path, OpenMode::ReadScattered).unwrap();
        let mut body = [0; 1000];
        for offset in (0..FILE_BYTES).step_by(64 << 10) {
            assert_eq!(file.read_cached_at(&mut body, offset as u64).unwrap(), None);
        }
        let all = Pages::of(0, FILE_BYTES);
        let mapping = Mapping::new(fd.as_fd()).unwrap();
        for first in 0..all.count {
            assert!(!mapping.holds(&Pages { first, count: 1 }), "page {first} was read");
        }
        // Only this call also counts pages whose read has begun and not ended.
        assert_eq!(cached_pages(fd.as_fd(), &all).unwrap_or(0), 0);
    }
}
