//! Alignment rules of direct files, in one place: the real, the checked and the simulated disk ask the same questions.
//!
//! # Invariants
//! 1. Every transfer on a direct file begins, ends and lies in memory at a multiple of [`BLOCK_SIZE_BYTES`]; the one
//!    exception is a read at or behind the end of the file, which transfers nothing.
//! 2. Progress reported to a caller keeps it aligned: a short transfer is rounded down to a block, unless it ends at
//!    the end of the file.

use crate::BLOCK_SIZE_BYTES;
use std::io::IoSlice;

const BLOCK: u64 = BLOCK_SIZE_BYTES as u64;

/// True when a direct file can take these slices at this offset. An empty slice has no alignment.
pub fn write_is_aligned(slices: &[IoSlice<'_>], offset: u64) -> bool {
    offset.is_multiple_of(BLOCK) && slices.iter().all(|s| s.is_empty() || memory_is_aligned(s))
}

/// True when a direct file can fill this buffer from this offset.
pub fn read_is_aligned(buf: &[u8], offset: u64) -> bool {
    offset.is_multiple_of(BLOCK) && (buf.is_empty() || memory_is_aligned(buf))
}

fn memory_is_aligned(memory: &[u8]) -> bool {
    memory.as_ptr().addr().is_multiple_of(BLOCK_SIZE_BYTES) && memory.len().is_multiple_of(BLOCK_SIZE_BYTES)
}

/// Length of a transfer of `n` bytes, rounded down to whole blocks.
pub(crate) fn whole_blocks(n: usize) -> usize {
    n - n % BLOCK_SIZE_BYTES
}
