//! An open file of the checked disk, and what is known of the file that it opened.

use super::ranges::RangeSet;
use super::{SharedFile, Verdict};
use crate::direct::{read_is_aligned, write_is_aligned};
use crate::disk::DiskFile;
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The state of one file, whatever its name and handles.
pub(super) struct FileState {
    pub(super) path: PathBuf,
    pub(super) failed: Option<String>,
    pub(super) is_removed: bool,
    len: u64,
    unsynced: RangeSet,
    /// Ranges that running syncs will make durable, by call.
    syncing: BTreeMap<u64, RangeSet>,
    /// Ranges of running changes, by call.
    writing: BTreeMap<u64, Range<u64>>,
    next_call: u64,
}

impl FileState {
    pub(super) fn new(path: &Path, len: u64) -> FileState {
        FileState {
            path: path.to_path_buf(),
            failed: None,
            is_removed: false,
            len,
            unsynced: RangeSet::default(),
            syncing: BTreeMap::new(),
            writing: BTreeMap::new(),
            next_call: 0,
        }
    }

    pub(super) fn is_durable(&self, range: &Range<u64>) -> bool {
        let pending = std::iter::once(&self.unsynced).chain(self.syncing.values());
        // A running write may have begun to replace durable bytes, which makes them neither old nor new.
        let replaced = self.writing.values().any(|w| w.start < range.end && range.start < w.end);
        range.end <= self.len && !replaced && !pending.into_iter().any(|set| set.overlaps(range))
    }

    pub(super) fn undurable_bytes(&self) -> u64 {
        let mut all = self.unsynced.clone();
        self.syncing.values().flat_map(RangeSet::iter).for_each(|range| all.insert(range));
        all.total()
    }

    /// A number for a sync or change that begins now: its key in `syncing` or `writing` until it ends.
    fn call(&mut self) -> u64 {
        self.next_call += 1;
        self.next_call
    }

    fn fail(&mut self, what: &str, error: &io::Error) {
        if self.failed.is_none() {
            self.failed = Some(format!("{what}: {error}"));
        }
    }
}

pub(super) struct CheckedFile {
    pub(super) inner: Arc<dyn DiskFile>,
    pub(super) state: SharedFile,
    pub(super) verdict: Arc<Verdict>,
    pub(super) is_writable: bool,
}

impl CheckedFile {
    /// Reports a violation of the rules, by the present name of the file: panics, or records it and returns.
    fn broken(&self, what: String) {
        let path = self.state.lock().path.clone(); // not held while panicking
        self.verdict.broken(&path, what);
    }

    /// Checks that the file may be changed at all (invariants 1 and 2).
    fn may_change(&self, what: &str) {
        let (failed, is_removed) = {
            let state = self.state.lock();
            (state.failed.clone(), state.is_removed)
        };
        if let Some(first) = failed {
            self.broken(format!("{what} after the file failed; first error: {first}"));
        }
        if is_removed {
            self.broken(format!("{what} after the file was removed or replaced"));
        }
        if !self.is_writable {
            self.broken(format!("{what} through a handle opened for reading"));
        }
    }

    /// Notes that a change of `range` begins, and checks that no other change of these bytes is running (invariant 4). Returns its key in
    /// `writing`, to be removed when it ends.
    fn begin(&self, what: &str, range: Range<u64>) -> u64 {
        let (call, other) = {
            let mut state = self.state.lock();
            let other = state.writing.values().find(|w| w.start < range.end && range.start < w.end).cloned();
            let call = state.call();
            state.writing.insert(call, range.clone());
            (call, other)
        };
        if let Some(other) = other {
            self.broken(format!("{what} of bytes {range:?} while {other:?} are written"));
        }
        call
    }

    /// Checks that the file may be written there, runs `write`, and notes the bytes that are not durable any more. Returns the range that
    /// was written, which may be short. `what` names the operation in violations.
    fn write(
        &self,
        what: &str,
        slices: &[IoSlice<'_>],
        offset: u64,
        write: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<Range<u64>> {
        self.may_change(what);
        if self.inner.is_direct() && !write_is_aligned(slices, offset) {
            self.broken(format!("{what} at {offset} of a direct file is not aligned"));
        }
        let asked = offset..offset + slices.iter().map(|slice| slice.len() as u64).sum::<u64>();
        let call = self.begin(what, asked.clone());
        let result = write();
        let mut state = self.state.lock();
        state.writing.remove(&call);
        match result {
            Ok(n) => {
                let written = offset..offset + n as u64;
                if n > 0 {
                    // The gap between the old end and the write is a change of length, filled with zeros.
                    let from = written.start.min(state.len);
                    let changed = if written.end > state.len { from..written.end } else { written.clone() };
                    state.unsynced.insert(changed);
                    state.len = state.len.max(written.end);
                }
                Ok(written)
            }
            Err(e) => {
                state.unsynced.insert(asked); // any part of it may have gone in
                state.fail(what, &e);
                Err(e)
            }
        }
    }
}

impl DiskFile for CheckedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.inner.is_direct() && !read_is_aligned(buf, offset) && offset < self.inner.len()? {
            self.broken(format!("read at {offset} of a direct file is not aligned"));
        }
        self.inner.read_at(buf, offset)
    }

    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.inner.read_cached_at(buf, offset)
    }

    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let written = self.write("write", slices, offset, || self.inner.write_at(slices, offset))?;
        Ok((written.end - written.start) as usize)
    }

    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let write = || self.inner.write_durable_at(slices, offset);
        let written = self.write("durable write", slices, offset, write)?;
        self.state.lock().unsynced.remove(written.clone());
        Ok((written.end - written.start) as usize)
    }

    fn begin_reading(&self, offset: u64, len: u64) {
        self.inner.begin_reading(offset, len);
    }

    fn begin_writeback(&self, offset: u64, len: u64) {
        self.inner.begin_writeback(offset, len);
    }
    fn drop_cached(&self) {
        self.inner.drop_cached();
    }

    fn sync(&self) -> io::Result<()> {
        self.may_change("sync");
        let call = {
            let mut state = self.state.lock();
            let call = state.call();
            let pending = std::mem::take(&mut state.unsynced);
            state.syncing.insert(call, pending);
            call
        };
        let result = self.inner.sync();
        let mut state = self.state.lock();
        let covered = state.syncing.remove(&call).unwrap_or_default();
        if let Err(e) = &result {
            covered.iter().for_each(|range| state.unsynced.insert(range));
            state.fail("sync", e);
        }
        result
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.may_change("change of length");
        let old = self.state.lock().len;
        let changed = old.min(len)..old.max(len);
        let call = self.begin("change of length", changed.clone());
        let result = self.inner.set_len(len);
        let mut state = self.state.lock();
        state.writing.remove(&call);
        state.unsynced.insert(changed);
        match &result {
            Ok(()) => state.len = len,
            Err(e) => state.fail("change of length", e),
        }
        result
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.may_change("allocation");
        let old = self.state.lock().len;
        let grown = old..old.max(len);
        let call = self.begin("allocation", grown.clone());
        let result = self.inner.allocate(len);
        let mut state = self.state.lock();
        state.writing.remove(&call);
        // A failed call removed nothing. Anything that it left after the old end counts as written and not synced.
        state.unsynced.insert(grown);
        if result.is_ok() {
            state.len = state.len.max(len);
        }
        result
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn is_direct(&self) -> bool {
        self.inner.is_direct()
    }
}
