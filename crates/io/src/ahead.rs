//! Reads that go through a file once, in two ascending places at a time: past the page cache, and ahead.
//!
//! A rewrite that read through the page cache would push out what readers have there, and set off the kernel's own
//! read-ahead, which may be set to megabytes: a journal's write of 4 KiB then waits for it in the device.
//!
//! # Data flow
//! ```text
//! read -> in a window: copied
//!      '- not: a window goes on where it ends, or the least recently used one starts over -> one read of the file
//! ```
//!
//! # Invariants
//! 1. A read fails only for the bytes that it asks for: an error further ahead is met when a read gets there.
//! 2. A window that starts over reads little, and twice as much each time that it goes on nearly where it ended: a
//!    reader that jumps pays only for what it asks for.
//! 3. A short read is continued: only 0 bytes mean the end of the file.
//!
//! # Limits     two windows of the requested size, allocated on first use

use crate::chunk::AlignedBuf;
use crate::{BLOCK_SIZE_BYTES, Disk, DiskFile, FileLayer, OpenMode};
use parking_lot::Mutex;
use std::io;
use std::path::Path;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE_BYTES as u64;
/// Bytes that a window reads when it starts over, unless the read needs more.
const FIRST_BYTES: usize = 4 * BLOCK_SIZE_BYTES;

/// Opens an existing file for reads that go past the page cache and ahead, by at most `window_bytes`, a multiple of
/// [`BLOCK_SIZE_BYTES`]. Where the file system has no direct I/O they go through the page cache.
///
/// # Errors
/// As [`Disk::open`].
pub fn open_ahead(disk: &dyn Disk, path: &Path, window_bytes: usize) -> io::Result<Arc<dyn DiskFile>> {
    assert!(window_bytes > 0 && window_bytes.is_multiple_of(BLOCK_SIZE_BYTES), "windows are whole blocks");
    let file = disk.open(path, OpenMode::ReadDirect)?;
    Ok(Arc::new(Ahead { file, window_bytes, windows: Mutex::default() }))
}

struct Ahead {
    file: Arc<dyn DiskFile>,
    window_bytes: usize,
    /// The one used last is the first. Locked while one is filled: such a file has one reader.
    windows: Mutex<[Window; 2]>,
}

#[derive(Default)]
struct Window {
    buffer: Option<AlignedBuf>,
    /// The offset of the bytes that it holds, and their number.
    begin: u64,
    length: usize,
    /// Bytes requested by the last fill, in whole blocks; at the end of the file it got fewer.
    wanted: usize,
}

impl Window {
    fn end(&self) -> u64 {
        self.begin + self.length as u64
    }

    fn holds(&self, offset: u64) -> bool {
        (self.begin..self.end()).contains(&offset)
    }

    /// Whether `offset` lies behind the bytes that it holds, by less than `gap`.
    fn is_followed(&self, offset: u64, gap: usize) -> bool {
        self.length > 0 && (self.end()..self.end() + gap as u64).contains(&offset)
    }

    /// Reads from `offset` or the start of its block: the `bytes` that the caller needs, and ahead (invariant 2).
    fn fill(
        &mut self,
        file: &dyn DiskFile,
        window_bytes: usize,
        offset: u64,
        bytes: usize,
    ) -> io::Result<()> {
        let ahead = if self.is_followed(offset, FIRST_BYTES) { 2 * self.wanted } else { FIRST_BYTES };
        // Only direct reads begin where blocks do, and those are short by whole blocks (invariant 3).
        let before = if file.is_direct() { (offset % BLOCK) as usize } else { 0 };
        let least = before.saturating_add(bytes).min(window_bytes).next_multiple_of(BLOCK_SIZE_BYTES);
        let most = ahead.clamp(least, window_bytes);
        let buffer = self.buffer.get_or_insert_with(|| AlignedBuf::zeroed(window_bytes));
        (self.begin, self.length, self.wanted) = (offset - before as u64, 0, most);
        self.length = match file.read_at(&mut buffer[..most], self.begin) {
            Err(_) if most > least => {
                // Invariant 1.
                self.wanted = least;
                file.read_at(&mut buffer[..least], self.begin)?
            }
            read => read?,
        };
        Ok(())
    }
}

impl FileLayer for Ahead {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.file
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut windows = self.windows.lock();
        let is_first = windows[0].holds(offset)
            || (windows[0].is_followed(offset, self.window_bytes) && !windows[1].holds(offset));
        if !is_first {
            windows.swap(0, 1);
        }
        if !windows[0].holds(offset) {
            windows[0].fill(&*self.file, self.window_bytes, offset, buf.len())?;
        }
        let window = &windows[0];
        let Some(buffer) = window.buffer.as_ref().filter(|_| window.holds(offset)) else { return Ok(0) };
        let at = (offset - window.begin) as usize;
        let n = buf.len().min(window.length - at);
        buf[..n].copy_from_slice(&buffer[at..at + n]);
        Ok(n)
    }
    fn read_cached_at(&self, _: &mut [u8], _: u64) -> io::Result<Option<usize>> {
        Ok(None)
    }
    fn is_direct(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RealDisk;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    const WINDOW_BYTES: usize = 64 * 1024;

    /// Counts what is read, and has a bad sector.
    struct Device {
        file: Arc<dyn DiskFile>,
        bad: u64,
        reads: AtomicU64,
        bytes: AtomicU64,
        /// Without direct I/O: each read stops after so many bytes.
        short: Option<usize>,
    }

    impl FileLayer for Device {
        fn beneath(&self) -> &dyn DiskFile {
            &*self.file
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            if (offset..offset + buf.len() as u64).contains(&self.bad) {
                return Err(io::Error::other("bad sector"));
            }
            let most = self.short.unwrap_or(buf.len()).min(buf.len());
            let buf = &mut buf[..most];
            self.reads.fetch_add(1, Relaxed);
            self.bytes.fetch_add(buf.len() as u64, Relaxed);
            self.file.read_at(buf, offset)
        }
        fn is_direct(&self) -> bool {
            self.short.is_none() && self.beneath().is_direct()
        }
    }

    /// A file of 4 MiB whose byte at `bad` cannot be read.
    fn with_device(bad: u64, short: Option<usize>, test: impl FnOnce(&(dyn DiskFile + 'static), &Device)) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("f");
        std::fs::write(&path, (0..4u32 << 20).map(|at| (at / 4096) as u8).collect::<Vec<u8>>())
            .expect("written");
        let mode = if short.is_some() { OpenMode::Read } else { OpenMode::ReadDirect };
        let file = RealDisk::new().open(&path, mode).expect("opened");
        let device =
            Arc::new(Device { file, bad, reads: AtomicU64::new(0), bytes: AtomicU64::new(0), short });
        let ahead = Ahead { file: device.clone(), window_bytes: WINDOW_BYTES, windows: Mutex::default() };
        test(&ahead, &device);
    }

    fn read(file: &(dyn DiskFile + 'static), offset: u64, bytes: usize) -> io::Result<()> {
        let mut found = vec![0; bytes];
        file.read_exact_at(&mut found, offset)?;
        assert!(
            found.iter().zip(offset..).all(|(byte, at)| *byte == (at / 4096) as u8),
            "{bytes} at {offset}"
        );
        Ok(())
    }

    /// Bodies in a row, and a piece of index before each 64 of them: each byte is read once, in large reads.
    #[test]
    fn two_places_are_gone_on_with_in_turns() {
        with_device(u64::MAX, None, |file, device| {
            for body in 0..1024 {
                if body % 64 == 0 {
                    read(file, (2 << 20) + body * 28, 64 * 28).unwrap();
                }
                read(file, body * 1060, 1060).unwrap();
            }
            let (reads, bytes) = (device.reads.load(Relaxed), device.bytes.load(Relaxed));
            let needed = 1024 * (1060 + 28);
            assert!(bytes < needed + 3 * WINDOW_BYTES as u64, "{bytes} bytes for {needed}");
            assert!(reads < 2 * needed / WINDOW_BYTES as u64, "{reads} reads");
        });
    }

    /// Invariant 2.
    #[test]
    fn who_jumps_reads_little() {
        with_device(u64::MAX, None, |file, device| {
            for jump in (0..20).rev() {
                read(file, jump * 200_000, 500).unwrap();
            }
            assert_eq!(device.bytes.load(Relaxed), 20 * FIRST_BYTES as u64);
            for (jumps, distance) in [(100, 40_000), (60, 60_000), (50, 80_000)] {
                let before = device.bytes.load(Relaxed);
                for jump in 0..jumps {
                    read(file, jump * distance, 500).unwrap();
                }
                let found = device.bytes.load(Relaxed) - before;
                assert!(
                    found <= (jumps + 1) * FIRST_BYTES as u64,
                    "{found} bytes for {jumps} jumps of {distance}"
                );
            }
        });
    }

    /// Invariant 3: found by a reviewer, where a file system has no direct I/O and reads stop early.
    #[test]
    fn a_short_read_is_not_the_end() {
        with_device(u64::MAX, Some(2_048), |file, _| {
            for body in 0..300 {
                read(file, body * 1_060, 1_060).unwrap();
            }
            read(file, 3 * 4_096 + 3_000, 9_000).unwrap();
        });
    }

    /// Invariant 1.
    #[test]
    fn a_bad_sector_ahead_concerns_nobody_before_it() {
        with_device(300_000, None, |file, _| {
            for body in 0..280 {
                read(file, body * 1060, 1060).unwrap();
            }
            read(file, 300_500, 500).expect_err("its block has the sector");
            read(file, 304_000, 5_000).unwrap();
        });
    }
}
