//! Wrappers of a disk, and of a file: every call that a layer does not override is passed on to the wrapped one, also where
//! [`Disk`] or [`DiskFile`] has a default.
//!
//! For wrappers that look at a few calls, slow them down or make them fail. One that must judge every call (as
//! [`crate::CheckedDisk`] does) implements [`Disk`] itself, so that a call added later does not slip through.

use crate::{Disk, DiskFile, DiskLock, Entry, OpenMode, Overwrites, Space};
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

/// Passes the calls of a [`Disk`] on to the one beneath. A type that implements this is a [`Disk`].
#[expect(missing_docs, reason = "`Disk` documents each call")]
pub trait DiskLayer: Send + Sync {
    /// The wrapped disk, which gets all calls that are not overridden.
    fn beneath(&self) -> &dyn Disk;
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.beneath().open(path, mode)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.beneath().list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.beneath().create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.beneath().rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.beneath().remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.beneath().sync_dir(dir)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.beneath().exists(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        self.beneath().lock(path)
    }
    fn space(&self, dir: &Path) -> io::Result<Space> {
        self.beneath().space(dir)
    }
    fn overwrites(&self, dir: &Path) -> io::Result<Overwrites> {
        self.beneath().overwrites(dir)
    }
    fn prefer_in_place(&self, dir: &Path) -> io::Result<()> {
        self.beneath().prefer_in_place(dir)
    }
}

impl<L: DiskLayer> Disk for L {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        DiskLayer::open(self, path, mode)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        DiskLayer::list(self, dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        DiskLayer::create_dir_all(self, dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        DiskLayer::rename(self, from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        DiskLayer::remove(self, path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        DiskLayer::sync_dir(self, dir)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        DiskLayer::exists(self, path)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        DiskLayer::lock(self, path)
    }
    fn space(&self, dir: &Path) -> io::Result<Space> {
        DiskLayer::space(self, dir)
    }
    fn overwrites(&self, dir: &Path) -> io::Result<Overwrites> {
        DiskLayer::overwrites(self, dir)
    }
    fn prefer_in_place(&self, dir: &Path) -> io::Result<()> {
        DiskLayer::prefer_in_place(self, dir)
    }
}

/// Passes the calls of a [`DiskFile`] on to the one beneath. A type that implements this is a [`DiskFile`].
#[expect(missing_docs, reason = "`DiskFile` documents each call")]
pub trait FileLayer: Send + Sync {
    /// The wrapped file, which gets all calls that are not overridden.
    fn beneath(&self) -> &dyn DiskFile;
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.beneath().read_at(buf, offset)
    }
    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.beneath().read_cached_at(buf, offset)
    }
    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.beneath().write_at(slices, offset)
    }
    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.beneath().write_durable_at(slices, offset)
    }
    fn begin_reading(&self, offset: u64, len: u64) {
        self.beneath().begin_reading(offset, len);
    }
    fn begin_writeback(&self, offset: u64, len: u64) {
        self.beneath().begin_writeback(offset, len);
    }
    fn drop_cached(&self) {
        self.beneath().drop_cached();
    }
    fn sync(&self) -> io::Result<()> {
        self.beneath().sync()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.beneath().set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.beneath().allocate(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.beneath().len()
    }
    fn is_empty(&self) -> io::Result<bool> {
        self.beneath().is_empty()
    }
    fn is_direct(&self) -> bool {
        self.beneath().is_direct()
    }
}

impl<L: FileLayer> DiskFile for L {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        FileLayer::read_at(self, buf, offset)
    }
    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        FileLayer::read_cached_at(self, buf, offset)
    }
    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        FileLayer::write_at(self, slices, offset)
    }
    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        FileLayer::write_durable_at(self, slices, offset)
    }
    fn begin_reading(&self, offset: u64, len: u64) {
        FileLayer::begin_reading(self, offset, len);
    }
    fn begin_writeback(&self, offset: u64, len: u64) {
        FileLayer::begin_writeback(self, offset, len);
    }
    fn drop_cached(&self) {
        FileLayer::drop_cached(self);
    }
    fn sync(&self) -> io::Result<()> {
        FileLayer::sync(self)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        FileLayer::set_len(self, len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        FileLayer::allocate(self, len)
    }
    fn len(&self) -> io::Result<u64> {
        FileLayer::len(self)
    }
    fn is_empty(&self) -> io::Result<bool> {
        FileLayer::is_empty(self)
    }
    fn is_direct(&self) -> bool {
        FileLayer::is_direct(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RealDisk, conformance};

    struct Plain(RealDisk);
    struct PlainFile(Arc<dyn DiskFile>);

    impl DiskLayer for Plain {
        fn beneath(&self) -> &dyn Disk {
            &self.0
        }
        fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
            Ok(Arc::new(PlainFile(self.0.open(path, mode)?)))
        }
    }

    impl FileLayer for PlainFile {
        fn beneath(&self) -> &dyn DiskFile {
            &*self.0
        }
    }

    #[test]
    fn a_layer_that_changes_nothing_conforms() {
        let dir = tempfile::tempdir().unwrap();
        conformance::disk(&Plain(RealDisk::new()), dir.path());
    }
}
