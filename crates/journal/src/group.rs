//! A group: what one write makes durable. A header, then the filled pieces ("parts") of the shards' open chunks.
//!
//! ```text
//! file offset, a multiple of the block size
//! |  header (64 + 24 n bytes) | gap | part 0 | gap | part 1 | ... | zeros to the block |
//!
//! header  0  8 magic "BNDGRP01"      32  8 group sequence
//!         8  4 header length         40  8 offset of this group in its file
//!        12  4 number of parts       48  8 length of the group in bytes, whole blocks
//!        16  8 file id               56  4 unsynced groups before, see below
//!        24  8 nonce of the file     60  4 CRC32C of the header with this field zero
//! part    0  4 offset from the start of the group      12  4 number of records
//!         4  4 length                                  16  4 chained CRC32C of the record headers
//!         8  4 shard                                   20  4 zero
//! ```
//!
//! A file that is written without sync can lose groups in a power cut, which is no damage, and hold groups behind them
//! that a forced sync covered, whose loss is. To tell the two apart each group there says how many groups before it no
//! sync has covered, plus one; 0 says nothing, and is what a file with syncs holds.
//!
//! A part lies at the same place inside its block as in the memory it is written from. So the whole blocks inside a
//! part go to a direct file straight from the chunk, and only the blocks at its two ends pass through a scratch
//! buffer: no padding ever sits in chunk memory.

use crate::record::crc32c;
use bindery_io::BLOCK_SIZE_BYTES;

/// First bytes of every group.
pub const MAGIC: [u8; 8] = *b"BNDGRP01";
/// Header bytes before the table of parts.
pub const HEADER_BASE_BYTES: usize = 64;
/// Bytes for each part in the header.
pub const PART_ENTRY_BYTES: usize = 24;
/// Most parts in a group: the header stays inside one block.
pub const PARTS_MAX: usize = (BLOCK_SIZE_BYTES - HEADER_BASE_BYTES) / PART_ENTRY_BYTES;

const BLOCK: u64 = BLOCK_SIZE_BYTES as u64;

/// Where the bytes of a group lie, relative to its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Length of the header.
    pub header_bytes: usize,
    /// Start of each part.
    pub part_offsets: Vec<u64>,
    /// Length of the group, whole blocks.
    pub total_bytes: u64,
}

/// The one place that computes positions (requirement J14). `parts` gives for each part the position of its first
/// byte inside a block of memory, and its length.
///
/// # Panics
/// When there are more than [`PARTS_MAX`] parts.
pub fn layout(parts: impl ExactSizeIterator<Item = (usize, usize)>) -> Layout {
    assert!(parts.len() <= PARTS_MAX, "{} parts in one group", parts.len());
    let header_bytes = HEADER_BASE_BYTES + parts.len() * PART_ENTRY_BYTES;
    let mut end = header_bytes as u64;
    let part_offsets = parts
        .map(|(in_block, length)| {
            let in_block = (in_block % BLOCK_SIZE_BYTES) as u64;
            let here = end - end % BLOCK + in_block;
            let start = if here >= end { here } else { here + BLOCK };
            end = start + length as u64;
            start
        })
        .collect();
    Layout { header_bytes, part_offsets, total_bytes: end.next_multiple_of(BLOCK) }
}

/// Identifies the use of a journal file that a group belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    /// Grows with each use of any journal file.
    pub file_id: u64,
    /// Random: entry data cannot be made to look like a group.
    pub nonce: u64,
}

/// One row of the header's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartHeader {
    /// Offset from the start of the group.
    pub offset: u32,
    /// Length in bytes.
    pub length: u32,
    /// Index of the shard that filled it, for the reader of a dump.
    pub shard: u32,
    /// Number of records.
    pub record_count: u32,
    /// Chained CRC32C of the record headers.
    pub headers_crc: u32,
}

/// A decoded group header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupHeader {
    /// The file use it was written for.
    pub identity: FileIdentity,
    /// Number of the group in its journal.
    pub sequence: u64,
    /// Its offset in the file.
    pub offset: u64,
    /// Its length, whole blocks.
    pub total_bytes: u64,
    /// One more than the groups before it in its file that no sync covered when it was written; 0 says nothing.
    pub unsynced_before: u32,
    /// Its parts.
    pub parts: Vec<PartHeader>,
}

impl GroupHeader {
    /// Appends the header's bytes to `target`.
    pub fn encode(&self, target: &mut Vec<u8>) {
        let start = target.len();
        let header_bytes = HEADER_BASE_BYTES + self.parts.len() * PART_ENTRY_BYTES;
        target.extend_from_slice(&MAGIC);
        target.extend_from_slice(&(header_bytes as u32).to_be_bytes());
        target.extend_from_slice(&(self.parts.len() as u32).to_be_bytes());
        for v in [self.identity.file_id, self.identity.nonce, self.sequence, self.offset, self.total_bytes] {
            target.extend_from_slice(&v.to_be_bytes());
        }
        target.extend_from_slice(&self.unsynced_before.to_be_bytes());
        target.extend_from_slice(&[0; 4]);
        for p in &self.parts {
            for v in [p.offset, p.length, p.shard, p.record_count, p.headers_crc, 0] {
                target.extend_from_slice(&v.to_be_bytes());
            }
        }
        let crc = crc32c(&target[start..]);
        target[start + 60..start + 64].copy_from_slice(&crc.to_be_bytes());
    }

    /// Reads a header from the first block of a group. `None` for anything that is not a whole, self-consistent
    /// header: zeros, entry data, a torn write.
    pub fn decode(block: &[u8]) -> Option<GroupHeader> {
        let u32_at = |at: usize| block.get(at..at + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        let u64_at = |at: usize| Some((u64::from(u32_at(at)?) << 32) | u64::from(u32_at(at + 4)?));
        if block.get(..8)? != MAGIC {
            return None;
        }
        let (header_bytes, part_count) = (u32_at(8)? as usize, u32_at(12)? as usize);
        if part_count > PARTS_MAX || header_bytes != HEADER_BASE_BYTES + part_count * PART_ENTRY_BYTES {
            return None;
        }
        let mut copy = block.get(..header_bytes)?.to_vec();
        copy[60..64].fill(0);
        if crc32c(&copy) != u32_at(60)? {
            return None;
        }
        let mut parts = Vec::with_capacity(part_count);
        for i in 0..part_count {
            let at = HEADER_BASE_BYTES + i * PART_ENTRY_BYTES;
            parts.push(PartHeader {
                offset: u32_at(at)?,
                length: u32_at(at + 4)?,
                shard: u32_at(at + 8)?,
                record_count: u32_at(at + 12)?,
                headers_crc: u32_at(at + 16)?,
            });
        }
        let header = GroupHeader {
            identity: FileIdentity { file_id: u64_at(16)?, nonce: u64_at(24)? },
            sequence: u64_at(32)?,
            offset: u64_at(40)?,
            total_bytes: u64_at(48)?,
            unsynced_before: u32_at(56)?,
            parts,
        };
        header.has_sound_positions().then_some(header)
    }

    /// The last group of its file that this one says was durable before it was written; 0 for none.
    pub fn proves_durable(&self) -> u64 {
        if self.unsynced_before == 0 {
            0
        } else {
            self.sequence.saturating_sub(u64::from(self.unsynced_before))
        }
    }

    /// The positions are those that [`layout`] gives for these parts (invariant 6).
    fn has_sound_positions(&self) -> bool {
        let expected = layout(self.parts.iter().map(|p| (p.offset as usize, p.length as usize)));
        expected.total_bytes == self.total_bytes
            && expected.part_offsets.iter().zip(&self.parts).all(|(at, p)| *at == u64::from(p.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The slow model: place bytes one by one.
    fn model(parts: &[(usize, usize)]) -> (Vec<u64>, u64) {
        let mut at = (HEADER_BASE_BYTES + parts.len() * PART_ENTRY_BYTES) as u64;
        let mut starts = Vec::new();
        for &(in_block, length) in parts {
            while at % BLOCK != (in_block % BLOCK_SIZE_BYTES) as u64 {
                at += 1;
            }
            starts.push(at);
            for _ in 0..length {
                at += 1;
            }
        }
        while !at.is_multiple_of(BLOCK) {
            at += 1;
        }
        (starts, at)
    }

    proptest! {
        /// Requirement J14.
        #[test]
        fn positions_agree_with_the_byte_by_byte_model(
            parts in prop::collection::vec((0usize..9000, 1usize..20_000), 0..12)
        ) {
            let l = layout(parts.iter().copied());
            prop_assert_eq!((l.part_offsets, l.total_bytes), model(&parts));
        }
    }

    #[test]
    fn a_header_with_any_flipped_bit_is_no_header() {
        let header = GroupHeader {
            identity: FileIdentity { file_id: 3, nonce: 0xfeed },
            sequence: 9,
            offset: 8192,
            total_bytes: 4096,
            unsynced_before: 3,
            parts: vec![PartHeader { offset: 100, length: 500, shard: 1, record_count: 2, headers_crc: 77 }],
        };
        let mut block = Vec::new();
        header.encode(&mut block);
        let length = block.len();
        block.resize(4096, 0);
        assert_eq!(GroupHeader::decode(&block).as_ref(), Some(&header));
        for bit in 0..length * 8 {
            let mut bad = block.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(GroupHeader::decode(&bad), None, "bit {bit}");
        }
        for cut in 0..length {
            assert_eq!(GroupHeader::decode(&block[..cut]), None, "cut at {cut}");
        }
    }
}
