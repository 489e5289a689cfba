//! Reads of any place of a file that go past the page cache, so that what they find is on the medium and what others
//! have cached stays there.
//!
//! # Limits     one aligned buffer of [`BUFFER_BYTES`] for each file

use crate::chunk::AlignedBuf;
use crate::{BLOCK_SIZE_BYTES, Disk, DiskFile, FileLayer, OpenMode};
use parking_lot::Mutex;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Bytes read at once; longer reads are short.
const BUFFER_BYTES: usize = 256 * 1024;
const BLOCK: u64 = BLOCK_SIZE_BYTES as u64;

/// Opens an existing file for reads past the page cache. Where the file system has no direct I/O they go through it: see
/// [`DiskFile::drop_cached`].
///
/// # Errors
/// As [`Disk::open`].
pub fn open_uncached(disk: &dyn Disk, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
    let file = disk.open(path, OpenMode::ReadDirect)?;
    if !file.is_direct() {
        return Ok(file);
    }
    Ok(Arc::new(Uncached { file, buffer: Mutex::new(AlignedBuf::zeroed(BUFFER_BYTES)) }))
}

struct Uncached {
    file: Arc<dyn DiskFile>,
    /// Held while it is read into: one thread reads such a file, others would wait for the disk anyway.
    buffer: Mutex<AlignedBuf>,
}

impl FileLayer for Uncached {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.file
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut buffer = self.buffer.lock();
        let before = (offset % BLOCK) as usize;
        let blocks =
            (before + buf.len().min(BUFFER_BYTES)).next_multiple_of(BLOCK_SIZE_BYTES).min(BUFFER_BYTES);
        let found = self.file.read_at(&mut buffer[..blocks], offset - before as u64)?;
        let n = found.saturating_sub(before).min(buf.len());
        buf[..n].copy_from_slice(&buffer[before..before + n]);
        Ok(n)
    }
    fn read_cached_at(&self, _: &mut [u8], _: u64) -> io::Result<Option<usize>> {
        Ok(None)
    }
    fn drop_cached(&self) {}
    fn is_direct(&self) -> bool {
        false
    }
}
