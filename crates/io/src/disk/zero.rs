//! Filling a range with zeros, so that later writes meet blocks that are already allocated and written.
//!
//! Measured: direct writes of 4 KiB with data sync take 87 µs p50 into written blocks and 234 µs into blocks that
//! were only reserved, because each first write commits a change of the file's block map.

use super::DiskFile;
use crate::chunk::AlignedBuf;
use std::io::{self, IoSlice};
use std::sync::OnceLock;

/// Bytes written by one [`ZeroFill::step`] at most: about half a millisecond of a fast disk.
pub const ZERO_FILL_STEP_BYTES: usize = 1 << 20;

/// One buffer for everybody: it is only read, and untouched pages of it cost no memory.
static ZEROS: OnceLock<AlignedBuf> = OnceLock::new();

/// A fill that can stop, pause or be paced between its steps. It does not sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZeroFill {
    offset: u64,
    end: u64,
}

impl ZeroFill {
    /// A fill of `len` bytes from `offset`. On a direct file both must be multiples of [`crate::BLOCK_SIZE_BYTES`].
    pub fn new(offset: u64, len: u64) -> ZeroFill {
        ZeroFill { offset, end: offset.saturating_add(len) }
    }

    /// Bytes still to be written.
    pub fn remaining(&self) -> u64 {
        self.end - self.offset
    }

    /// Writes the next bytes, at most [`ZERO_FILL_STEP_BYTES`]; true while there is more to do.
    pub fn step(&mut self, file: &(impl DiskFile + ?Sized)) -> io::Result<bool> {
        let zeros = ZEROS.get_or_init(|| AlignedBuf::zeroed(ZERO_FILL_STEP_BYTES));
        let size = usize::try_from(self.remaining()).unwrap_or(usize::MAX).min(ZERO_FILL_STEP_BYTES);
        if size > 0 {
            let written = file.write_at(&[IoSlice::new(&zeros[..size])], self.offset)?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.offset += written as u64;
        }
        Ok(self.remaining() > 0)
    }
}

/// Writes zeros over `len` bytes from `offset`, all steps at once. Not durable before a sync.
pub fn zero_fill(file: &(impl DiskFile + ?Sized), offset: u64, len: u64) -> io::Result<()> {
    let mut fill = ZeroFill::new(offset, len);
    while fill.step(file)? {}
    Ok(())
}
