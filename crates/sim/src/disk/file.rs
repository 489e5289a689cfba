//! An open file of the simulated disk: transfers and syncs, with their faults.

use super::content::{PAGE, PAGE_U64, pages_of};
use super::faults::FaultKind;
use super::inode::{Inode, Reach};
use super::names::Node;
use super::state::{Call, Run, State, io_error, no_space};
use bindery_io::direct::{read_is_aligned, write_is_aligned};
use bindery_io::{DiskFile, SeededRandom};
use parking_lot::Mutex;
use std::io::{self, ErrorKind, IoSlice};
use std::path::Path;
use std::sync::Arc;

pub(super) struct SimFile {
    pub(super) shared: Arc<Mutex<State>>,
    pub(super) inode: u64,
    /// The name under which it was opened.
    pub(super) path: Arc<Path>,
    pub(super) is_direct: bool,
    pub(super) is_writable: bool,
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.shared.lock().drop_handle(self.inode);
    }
}

/// How a sync ends.
enum SyncEnd {
    Works,
    FailsWithNewData(io::Error),
    FailsWithOldData(io::Error),
}

fn total_len(slices: &[IoSlice<'_>]) -> usize {
    slices.iter().map(|slice| slice.len()).sum()
}

/// A device that was replaced has none of the files that were open.
fn device_is_gone() -> io::Error {
    io_error()
}

impl SimFile {
    fn call(&self, name: &'static str, offset: u64, len: usize, is_change: bool) -> Call {
        Call { name, path: self.path.clone(), offset, len: len as u64, is_change }
    }

    fn must_be_writable(&self) -> io::Result<()> {
        // EBADF, as the kernel says it.
        if self.is_writable { Ok(()) } else { Err(io::Error::from_raw_os_error(9)) }
    }

    fn misaligned(&self, what: &str, offset: u64) -> io::Error {
        debug_assert!(false, "{what} at {offset} of direct file {} is not aligned", self.path.display());
        io::Error::new(ErrorKind::InvalidInput, format!("unaligned {what} at {offset} of a direct file"))
    }

    fn inode<'a>(&self, state: &'a mut State) -> io::Result<&'a mut Inode> {
        state.inodes.get_mut(&self.inode).ok_or_else(device_is_gone)
    }

    /// A length from `least` to `n`, in whole blocks on a direct file, for a transfer that stops early.
    fn shorten(&self, n: usize, least: usize, random: &SeededRandom) -> usize {
        let unit = if self.is_direct { PAGE } else { 1 };
        let units = n / unit;
        if units <= least { n } else { (least + random.below((units - least) as u64) as usize) * unit }
    }

    fn read(&self, state: &mut State, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = self.inode(state)?.cache.len();
        let mut n = usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        if self.is_direct && !read_is_aligned(buf, offset) {
            return if n == 0 { Ok(0) } else { Err(self.misaligned("read", offset)) };
        }
        if n == 0 {
            return Ok(0);
        }
        if state.hit(FaultKind::ReadError, &self.path) {
            return Err(io_error());
        }
        for kind in [FaultKind::LatentReadError, FaultKind::BitRot] {
            if state.hit(kind, &self.path) {
                let random = state.faults.random(kind);
                let at = offset + random.below(n as u64);
                let bits = random.below(64) as u32 + 1;
                let inode = self.inode(state)?;
                let bytes = if kind == FaultKind::BitRot {
                    inode.flip_bits(at, bits);
                    at..at + u64::from(bits.div_ceil(8))
                } else {
                    inode.fail_reads(at, 1);
                    at - at % PAGE_U64..(at / PAGE_U64 + 1) * PAGE_U64
                };
                state.faults.note(kind, &self.path, bytes);
            }
        }
        if state.hit(FaultKind::ShortRead, &self.path) {
            n = self.shorten(n, 1, state.faults.random(FaultKind::ShortRead));
        }
        let inode = self.inode(state)?;
        if !inode.is_readable(offset, n) {
            return Err(io_error());
        }
        let n = match self.is_direct {
            true => inode.read_uncached(&mut buf[..n], offset),
            false => inode.cache.read(&mut buf[..n], offset),
        };
        if state.hit(FaultKind::StaleRead, &self.path) {
            let at = offset + state.faults.random(FaultKind::StaleRead).below(n as u64);
            self.inode(state)?.read_stale(at / PAGE_U64, &mut buf[..n], offset);
        }
        Ok(n)
    }

    /// How much of a write finds space.
    fn fitting(&self, state: &mut State, offset: u64, len: usize) -> io::Result<usize> {
        let Some(free) = state.free_bytes() else { return Ok(len) };
        let inode = self.inode(state)?;
        let (mut fitting, mut free_pages) = (0, free / PAGE_U64);
        for (index, range) in pages_of(offset, len) {
            if !inode.cache.has_page(index) {
                if free_pages == 0 {
                    return if fitting == 0 { Err(no_space()) } else { Ok(fitting) };
                }
                free_pages -= 1;
            }
            fitting += range.len();
        }
        Ok(fitting)
    }

    fn write(
        &self,
        state: &mut State,
        slices: &[IoSlice<'_>],
        offset: u64,
        is_durable: bool,
        run: Run,
    ) -> io::Result<usize> {
        self.must_be_writable()?;
        if self.is_direct && !write_is_aligned(slices, offset) {
            return Err(self.misaligned("write", offset));
        }
        let mut n = self.fitting(state, offset, total_len(slices))?;
        if n == 0 {
            return Ok(0);
        }
        if run == Run::Cut {
            if state.cut_left_something() {
                self.inode(state)?.write(slices, n, offset, Reach::Medium);
            }
            return Ok(n);
        }
        if state.hit(FaultKind::ShortWrite, &self.path) {
            n = self.shorten(n, 1, state.faults.random(FaultKind::ShortWrite));
        }
        if state.hit(FaultKind::WriteError, &self.path) {
            let part = self.shorten(n, 0, state.faults.random(FaultKind::WriteError));
            self.inode(state)?.write(slices, part, offset, Reach::Medium);
            return Err(io_error());
        }
        let bytes = offset..offset + n as u64;
        let mut reach = Reach::Medium;
        for kind in [FaultKind::LostWrite, FaultKind::MisdirectedWrite] {
            if reach == Reach::Medium && state.hit(kind, &self.path) {
                // A direct write has no cache that could still show it.
                reach = if self.is_direct { Reach::Nowhere } else { Reach::CacheOnly };
                state.faults.note(kind, &self.path, bytes.clone());
                if kind == FaultKind::MisdirectedWrite {
                    self.misdirect(state, slices, n, offset);
                }
            }
        }
        self.inode(state)?.write(slices, n, offset, reach);
        if is_durable {
            let end = self.sync_end(state);
            let random = state.faults.random(FaultKind::SyncErrorNewData).clone();
            let inode = self.inode(state)?;
            match end {
                SyncEnd::Works => inode.commit_range(offset, n),
                SyncEnd::FailsWithNewData(e) => {
                    inode.drop_pending_range(offset, n, &random);
                    return Err(e);
                }
                SyncEnd::FailsWithOldData(e) => {
                    inode.drop_pending_range(offset, n, &random);
                    inode.revert_range(offset, n);
                    return Err(e);
                }
            }
        }
        Ok(n)
    }

    /// Takes the pages below `len` that the file does not have, all or none.
    fn allocate_pages(&self, state: &mut State, len: u64, run: Run) -> io::Result<()> {
        self.must_be_writable()?;
        let free_pages = state.free_bytes().map(|free| free / PAGE_U64);
        let inode = self.inode(state)?;
        let holes: Vec<u64> =
            (0..len.div_ceil(PAGE_U64)).filter(|page| !inode.cache.has_page(*page)).collect();
        if free_pages.is_some_and(|free| free < holes.len() as u64) {
            return Err(no_space());
        }
        if run == Run::Cut && !state.cut_left_something() {
            return Ok(());
        }
        let zeros = [0u8; PAGE];
        let inode = self.inode(state)?;
        for page in holes {
            let n = usize::try_from(len - page * PAGE_U64).unwrap_or(PAGE).min(PAGE);
            inode.write(&[IoSlice::new(&zeros)], n, page * PAGE_U64, Reach::Medium);
        }
        Ok(())
    }

    /// Puts the bytes of a write at another aligned place of this file or of one beside it, when there is one.
    fn misdirect(&self, state: &mut State, slices: &[IoSlice<'_>], n: usize, offset: u64) {
        let dir = self.path.parent().unwrap_or(&self.path);
        let mut targets: Vec<(u64, Arc<Path>, u64)> = Vec::new();
        for (path, node) in state.names.list(dir) {
            if let Node::File(id) = node
                && let Some(inode) = state.inodes.get(&id)
                && inode.cache.len() >= n as u64
            {
                targets.push((id, Arc::from(path), (inode.cache.len() - n as u64) / PAGE_U64));
            }
        }
        if targets.is_empty() {
            return;
        }
        let random = state.faults.random(FaultKind::MisdirectedWrite);
        let (id, path, blocks) = targets.swap_remove(random.below(targets.len() as u64) as usize);
        let at = random.below(blocks + 1) * PAGE_U64;
        if id == self.inode && at == offset {
            return;
        }
        let mut bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        bytes.truncate(n);
        if let Some(target) = state.inodes.get_mut(&id) {
            target.overwrite(&bytes, at);
            state.faults.note(FaultKind::MisdirectedWrite, &path, at..at + n as u64);
        }
    }

    fn sync_end(&self, state: &mut State) -> SyncEnd {
        let dir = self.path.parent().unwrap_or(&self.path);
        if state.late_errors.remove(dir) || state.hit(FaultKind::SyncErrorNewData, &self.path) {
            SyncEnd::FailsWithNewData(io_error())
        } else if state.hit(FaultKind::SyncErrorOldData, &self.path) {
            SyncEnd::FailsWithOldData(io_error())
        } else if state.hit(FaultKind::SyncNoSpace, &self.path) {
            SyncEnd::FailsWithNewData(no_space())
        } else {
            if state.hit(FaultKind::SyncErrorNext, &self.path) {
                state.late_errors.insert(dir.to_path_buf());
            }
            SyncEnd::Works
        }
    }

    fn sync_now(&self, state: &mut State, run: Run) -> io::Result<()> {
        if run == Run::Cut {
            return Ok(()); // pending sectors stay pending, and the crash draws for each of them
        }
        let end = self.sync_end(state);
        let random = state.faults.random(FaultKind::SyncErrorNewData).clone();
        let inode = self.inode(state)?;
        match end {
            SyncEnd::Works => {
                inode.commit();
                Ok(())
            }
            SyncEnd::FailsWithNewData(e) => {
                inode.drop_pending(&random);
                Err(e)
            }
            SyncEnd::FailsWithOldData(e) => {
                inode.drop_pending(&random);
                inode.revert();
                Err(e)
            }
        }
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let call = self.call("read", offset, buf.len(), false);
        self.shared.lock().run(call, |&n| n as u64, |state, _| self.read(state, buf, offset))
    }

    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        let call = self.call("read_cached", offset, buf.len(), false);
        self.shared.lock().run(
            call,
            |n: &Option<usize>| n.unwrap_or(0) as u64,
            |state, _| {
                // Whether the kernel has a page cannot be foreseen.
                let would_wait = self.is_direct || state.faults.random(FaultKind::ShortRead).chance(0.4);
                // Some kernels say instead that the file ends there.
                let seems_over = !self.is_direct && offset.is_multiple_of(3);
                if would_wait { Ok(seems_over.then_some(0)) } else { self.read(state, buf, offset).map(Some) }
            },
        )
    }

    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let call = self.call("write", offset, total_len(slices), true);
        self.shared.lock().run(
            call,
            |&n| n as u64,
            |state, run| self.write(state, slices, offset, false, run),
        )
    }

    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let call = self.call("write_durable", offset, total_len(slices), true);
        self.shared.lock().run(call, |&n| n as u64, |state, run| self.write(state, slices, offset, true, run))
    }

    fn drop_cached(&self) {
        if !self.is_direct
            && let Some(inode) = self.shared.lock().inodes.get_mut(&self.inode)
        {
            inode.drop_cached();
        }
    }

    fn sync(&self) -> io::Result<()> {
        let call = self.call("sync", 0, 0, true);
        self.shared.lock().run(call, |_| 0, |state, run| self.sync_now(state, run))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut call = self.call("set_len", 0, 0, true);
        call.len = len;
        self.shared.lock().run(
            call,
            |_| 0,
            |state, run| {
                self.must_be_writable()?;
                if run == Run::Whole || state.cut_left_something() {
                    self.inode(state)?.set_len(len);
                }
                Ok(())
            },
        )
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let call = self.call("allocate", 0, usize::try_from(len).unwrap_or(usize::MAX), true);
        self.shared.lock().run(call, |_| 0, |state, run| self.allocate_pages(state, len, run))
    }

    fn len(&self) -> io::Result<u64> {
        let call = self.call("len", 0, 0, false);
        self.shared.lock().run(call, |&n| n, |state, _| Ok(self.inode(state)?.cache.len()))
    }

    fn is_direct(&self) -> bool {
        self.is_direct
    }
}
