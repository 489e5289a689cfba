//! A disk that cannot be changed: writes to a file stay in memory and are dropped with the file's handle.
//!
//! Checks run over it. A state table writes while it opens (redb marks its file, a missing seal is added), so it is
//! opened by the very code that a start uses, and the file stays as it is.
//!
//! # Invariants
//! 1. No call changes the disk below, except [`Disk::lock`], which may create the lock file.
//! 2. A handle reads its own writes; another handle on the same file does not see them.
//!
//! # Limits
//! [`WRITTEN_BLOCKS_MAX`] blocks written through one handle: opening a table takes a few.

use bindery_io::{
    BLOCK_SIZE_BYTES, Disk, DiskFile, DiskLock, Entry, OpenMode, Overwrites, Space, open_uncached,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice};
use std::path::Path;
use std::sync::Arc;

/// 64 MiB.
pub const WRITTEN_BLOCKS_MAX: usize = 16_384;

const BLOCK: u64 = BLOCK_SIZE_BYTES as u64;

/// See the module docs.
pub struct ReadOnlyDisk(Arc<dyn Disk>);

impl ReadOnlyDisk {
    /// Over `disk`.
    pub fn new(disk: Arc<dyn Disk>) -> ReadOnlyDisk {
        ReadOnlyDisk(disk)
    }
}

fn refused() -> io::Error {
    io::Error::new(ErrorKind::ReadOnlyFilesystem, "a check changes nothing")
}

impl Disk for ReadOnlyDisk {
    /// In every mode the file must be there. A file opened for direct I/O is read past the page cache, without the
    /// rules of direct I/O.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let file = match mode.is_direct() {
            true => open_uncached(&*self.0, path)?,
            false => self.0.open(path, OpenMode::Read)?,
        };
        let written = Written { blocks: BTreeMap::new(), len: file.len()? };
        Ok(Arc::new(ReadOnlyFile { file, written: Mutex::new(written) }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.0.list(dir)
    }
    fn create_dir_all(&self, _: &Path) -> io::Result<()> {
        Err(refused())
    }
    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(refused())
    }
    fn remove(&self, _: &Path) -> io::Result<()> {
        Err(refused())
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.0.exists(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        self.0.lock(path)
    }
    fn space(&self, dir: &Path) -> io::Result<Space> {
        self.0.space(dir)
    }
    fn overwrites(&self, dir: &Path) -> io::Result<Overwrites> {
        self.0.overwrites(dir)
    }
    fn prefer_in_place(&self, _: &Path) -> io::Result<()> {
        Err(refused())
    }
}

struct ReadOnlyFile {
    file: Arc<dyn DiskFile>,
    written: Mutex<Written>,
}

struct Written {
    blocks: BTreeMap<u64, Box<[u8; BLOCK_SIZE_BYTES]>>,
    len: u64,
}

impl ReadOnlyFile {
    /// Fills `buf` from the file below; zeros behind its end.
    fn read_below(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            let n = self.file.read_at(buf, offset)?;
            if n == 0 {
                buf.fill(0);
                break;
            }
            buf = &mut buf[n..];
            offset += n as u64;
        }
        Ok(())
    }
}

impl DiskFile for ReadOnlyFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let written = self.written.lock();
        let n = usize::try_from(written.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        let buf = &mut buf[..n];
        if written.blocks.is_empty() {
            drop(written);
            return self.read_below(buf, offset).map(|()| n);
        }
        self.read_below(buf, offset)?;
        let end = offset + n as u64;
        for (number, block) in written.blocks.range(offset / BLOCK..end.div_ceil(BLOCK)) {
            let (from, to) = (offset.max(number * BLOCK), end.min((number + 1) * BLOCK));
            let source = &block[(from % BLOCK) as usize..][..(to - from) as usize];
            buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
        }
        Ok(n)
    }

    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let mut at = offset;
        let written = &mut *self.written.lock();
        for mut slice in slices.iter().map(|slice| &slice[..]) {
            while !slice.is_empty() {
                let (number, inside) = (at / BLOCK, (at % BLOCK) as usize);
                let n = slice.len().min(BLOCK_SIZE_BYTES - inside);
                if !written.blocks.contains_key(&number) {
                    if written.blocks.len() >= WRITTEN_BLOCKS_MAX {
                        return Err(io::Error::new(
                            ErrorKind::OutOfMemory,
                            "a check keeps 64 MiB of changes at most",
                        ));
                    }
                    let mut block = Box::new([0; BLOCK_SIZE_BYTES]);
                    self.read_below(&mut block[..], number * BLOCK)?;
                    written.blocks.insert(number, block);
                }
                let block = written.blocks.get_mut(&number).expect("it was put there");
                block[inside..inside + n].copy_from_slice(&slice[..n]);
                slice = &slice[n..];
                at += n as u64;
            }
        }
        written.len = written.len.max(at);
        Ok((at - offset) as usize)
    }

    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.write_at(slices, offset)
    }
    fn drop_cached(&self) {
        self.file.drop_cached();
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let written = &mut *self.written.lock();
        if len < written.len {
            return Err(refused());
        }
        written.len = len;
        Ok(())
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.written.lock().len)
    }
    fn is_direct(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MemDisk, numbers};

    /// Invariants 1 and 2, against a plain vector of bytes.
    #[test]
    fn writes_are_seen_by_their_handle_and_reach_nothing() {
        let (disk, path) = (MemDisk::default(), Path::new("/d/f"));
        let good: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
        disk.put(path, good.clone());
        let below = disk.changes();
        let over = ReadOnlyDisk::new(disk.disk());
        let file = over.open(path, OpenMode::CreateDirect).unwrap();
        let (mut model, mut next) = (good.clone(), numbers(5));
        for _ in 0..500 {
            let (at, n) = (next() as usize % 24_000, next() as usize % 9000);
            let bytes = vec![next() as u8; n];
            file.write_all_at(&mut [IoSlice::new(&bytes)], at as u64).unwrap();
            model.resize(model.len().max(at + n), 0);
            model[at..at + n].copy_from_slice(&bytes);
            let (at, n) = (next() as usize % 30_000, next() as usize % 9000);
            let mut read = vec![0; n];
            let n = file.read_at(&mut read, at as u64).unwrap();
            let expected = model.get(at..).unwrap_or(&[]);
            assert_eq!(read[..n], expected[..expected.len().min(read.len())]);
        }
        file.sync().unwrap();
        file.set_len(50_000).unwrap();
        assert_eq!(file.len().unwrap(), 50_000);
        assert_eq!((disk.bytes(path), disk.changes()), (good.clone(), below));
        let mut other = vec![0; good.len()];
        over.open(path, OpenMode::Read).unwrap().read_exact_at(&mut other, 0).unwrap();
        assert_eq!(other, good);
        for refused in [over.remove(path), over.rename(path, Path::new("/d/g")), over.create_dir_all(path)] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
        }
        let missing = over.open(Path::new("/d/none"), OpenMode::CreateBuffered).err().unwrap();
        assert_eq!(missing.kind(), ErrorKind::NotFound, "a check makes no files");
    }
}
