//! A journal file: fixed name, one block of header, then groups.
//!
//! ```text
//! offset size                            the header fills one block
//!      0    8  magic "BNDJNL01"
//!      8    4  format version
//!     12    4  block size
//!     16    8  file id                   grows with each use of any file of this journal
//!     24    8  nonce                     random, repeated in each group
//!     32    8  first group sequence
//!     40    8  file length in bytes
//!     48    4  length of the identity
//!     52    4  flags                     bit 0: groups are written without sync; bit 1: the file had its length, durably,
//!                                       before this header; bit 2: the file before was synced as
//!                                       a whole before this header; bits 16 to 31: number of the journal
//!     56    n  identity                  which bookie's data this is, UTF-8
//!   4092    4  CRC32C of the 4092 bytes before
//! ```

use crate::group::FileIdentity;
use crate::record::crc32c;
use bindery_io::BLOCK_SIZE_BYTES;

/// The newest version of the journal format that is read. 1: first version. 2: removal records. 3: groups of files
/// written without sync say what is durable before them. 4: the number of the journal, written where it is not 0: the
/// files of the first journal stay of version 3. 5: records of what is in object storage; written where there may be some.
pub const FILE_FORMAT_VERSION: u32 = 5;
/// Without records of what is in object storage.
const VERSION_UNTIERED: u32 = 4;
/// Without the number of the journal as well.
const VERSION_UNNUMBERED: u32 = 3;

const MAGIC: [u8; 8] = *b"BNDJNL01";
const IDENTITY_AT: usize = 56;
const FLAG_UNSYNCED: u32 = 1;
const FLAG_WHOLE: u32 = 2;
const FLAG_FOLLOWS_SYNC: u32 = 4;
const JOURNAL_SHIFT: u32 = 16;
const CRC_AT: usize = BLOCK_SIZE_BYTES - 4;
/// Longest identity.
pub(crate) const IDENTITY_MAX: usize = CRC_AT - IDENTITY_AT;

/// The decoded header block of a journal file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHeader {
    /// This use of the file.
    pub identity: FileIdentity,
    /// Sequence of the first group in it.
    pub first_group: u64,
    /// Length the file was laid out with.
    pub length: u64,
    /// Which bookie's data this is.
    pub owner: String,
    /// Number of the journal among those of the bookie.
    pub journal: u16,
    /// There may be records of what is in object storage ([`crate::record::Kind::Reconciled`],
    /// [`crate::record::Kind::Restored`]).
    pub is_tiered: bool,
    /// Groups were written without sync (`journal.sync = false`): after a power cut they may have holes.
    pub is_unsynced: bool,
    /// The file had its length before it had this header: one that is shorter was cut. Files of earlier builds grew with
    /// their groups.
    pub is_whole: bool,
    /// The file of the id before this one was written without sync and synced as a whole before this header: a hole in it is
    /// damage. Earlier builds do not say so.
    pub follows_sync: bool,
}

/// Why a header block is not a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderProblem {
    /// Never used since it was zero-filled.
    #[error("unused")]
    Unused,
    /// Not a journal file, or a torn or damaged header.
    #[error("damaged or not a journal file header")]
    Damaged,
    /// A later format.
    #[error("format version {0}, and this build reads up to {FILE_FORMAT_VERSION}: use a newer bindery")]
    NewerFormat(u32),
}

impl FileHeader {
    /// Fills one block.
    ///
    /// # Panics
    /// When `block` is not one block, or the owner is longer than fits.
    pub fn encode(&self, block: &mut [u8]) {
        assert_eq!(block.len(), BLOCK_SIZE_BYTES, "a header is one block");
        assert!(self.owner.len() <= IDENTITY_MAX, "the identity fits the header");
        block.fill(0);
        block[..8].copy_from_slice(&MAGIC);
        let version = match (self.is_tiered, self.journal) {
            (true, _) => FILE_FORMAT_VERSION,
            (false, 0) => VERSION_UNNUMBERED,
            (false, _) => VERSION_UNTIERED,
        };
        block[8..12].copy_from_slice(&version.to_be_bytes());
        block[12..16].copy_from_slice(&(BLOCK_SIZE_BYTES as u32).to_be_bytes());
        let numbers = [self.identity.file_id, self.identity.nonce, self.first_group, self.length];
        for (i, v) in numbers.into_iter().enumerate() {
            block[16 + i * 8..24 + i * 8].copy_from_slice(&v.to_be_bytes());
        }
        block[48..52].copy_from_slice(&(self.owner.len() as u32).to_be_bytes());
        let number = u32::from(self.journal) << JOURNAL_SHIFT;
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = number
            | flag(self.is_unsynced, FLAG_UNSYNCED)
            | flag(self.is_whole, FLAG_WHOLE)
            | flag(self.follows_sync, FLAG_FOLLOWS_SYNC);
        block[52..56].copy_from_slice(&flags.to_be_bytes());
        block[IDENTITY_AT..IDENTITY_AT + self.owner.len()].copy_from_slice(self.owner.as_bytes());
        let crc = crc32c(&block[..CRC_AT]);
        block[CRC_AT..].copy_from_slice(&crc.to_be_bytes());
    }

    /// Reads a header block.
    pub fn decode(block: &[u8]) -> Result<FileHeader, HeaderProblem> {
        if block.iter().all(|b| *b == 0) {
            return Err(HeaderProblem::Unused);
        }
        if block.len() < BLOCK_SIZE_BYTES {
            return Err(HeaderProblem::Damaged);
        }
        let u32_at = |at: usize| u32::from_be_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
        let u64_at = |at: usize| (u64::from(u32_at(at)) << 32) | u64::from(u32_at(at + 4));
        if block[..8] != MAGIC || crc32c(&block[..CRC_AT]) != u32_at(CRC_AT) {
            return Err(HeaderProblem::Damaged);
        }
        match u32_at(8) {
            1..=FILE_FORMAT_VERSION => {}
            0 => return Err(HeaderProblem::Damaged),
            newer => return Err(HeaderProblem::NewerFormat(newer)),
        }
        let owner_length = u32_at(48) as usize;
        let owner = block.get(IDENTITY_AT..IDENTITY_AT + owner_length.min(IDENTITY_MAX));
        let owner = owner.and_then(|b| std::str::from_utf8(b).ok()).ok_or(HeaderProblem::Damaged)?;
        Ok(FileHeader {
            identity: FileIdentity { file_id: u64_at(16), nonce: u64_at(24) },
            first_group: u64_at(32),
            length: u64_at(40),
            owner: owner.to_owned(),
            journal: (u32_at(52) >> JOURNAL_SHIFT) as u16,
            is_tiered: u32_at(8) > VERSION_UNTIERED,
            is_unsynced: u32_at(52) & FLAG_UNSYNCED != 0,
            is_whole: u32_at(52) & FLAG_WHOLE != 0,
            follows_sync: u32_at(52) & FLAG_FOLLOWS_SYNC != 0,
        })
    }
}

/// The name of a slot: fixed, so that recycling needs no rename.
pub(crate) fn slot_name(slot: u32) -> String {
    format!("journal-{slot:04}.bjl")
}

/// More files no journal has: the numbers that are missing below the highest are kept in memory.
const SLOTS_MAX: u32 = 1 << 20;

/// The slot a name stands for; none for a number that no journal gets to.
pub(crate) fn slot_of_name(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("journal-")?.strip_suffix(".bjl")?;
    let is_number = digits.len() >= 4 && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|slot| is_number && *slot < SLOTS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_and_any_flipped_bit_is_noticed() {
        let header = FileHeader {
            identity: FileIdentity { file_id: 5, nonce: 0xabc },
            first_group: 17,
            length: 1 << 20,
            owner: "cluster/bookie".into(),
            journal: 3,
            is_tiered: true,
            is_unsynced: true,
            is_whole: true,
            follows_sync: true,
        };
        let mut block = vec![0; BLOCK_SIZE_BYTES];
        header.encode(&mut block);
        assert_eq!(FileHeader::decode(&block), Ok(header));
        for bit in 0..block.len() * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHeader::decode(&block).is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(FileHeader::decode(&[0; BLOCK_SIZE_BYTES]), Err(HeaderProblem::Unused));
    }

    /// Version 1 had no removal records and is otherwise the same.
    #[test]
    fn the_version_before_is_read_and_a_newer_one_is_refused_by_its_number() {
        let identity = FileIdentity { file_id: 5, nonce: 1 };
        let header = FileHeader {
            identity,
            first_group: 1,
            length: 8192,
            owner: "b".into(),
            journal: 0,
            is_tiered: false,
            is_unsynced: false,
            is_whole: false,
            follows_sync: false,
        };
        let mut block = vec![0; BLOCK_SIZE_BYTES];
        header.encode(&mut block);
        let mut with_version = |version: u32| {
            block[8..12].copy_from_slice(&version.to_be_bytes());
            let crc = crc32c(&block[..CRC_AT]);
            block[CRC_AT..].copy_from_slice(&crc.to_be_bytes());
            FileHeader::decode(&block)
        };
        assert_eq!(with_version(0), Err(HeaderProblem::Damaged));
        assert_eq!(with_version(1), Ok(header.clone()));
        assert_eq!(with_version(4), Ok(header.clone()));
        assert_eq!(with_version(FILE_FORMAT_VERSION), Ok(FileHeader { is_tiered: true, ..header }));
        let newer = FILE_FORMAT_VERSION + 1;
        assert_eq!(with_version(newer), Err(HeaderProblem::NewerFormat(newer)));
    }

    /// An older build goes on with the files of a bookie that has no tier.
    #[test]
    fn files_are_of_the_oldest_version_that_can_say_what_they_hold() {
        let written = |journal: u16, is_tiered: bool| {
            let identity = FileIdentity { file_id: 5, nonce: 1 };
            let header = FileHeader {
                identity,
                first_group: 1,
                length: 8192,
                owner: "b".into(),
                journal,
                is_tiered,
                is_unsynced: false,
                is_whole: true,
                follows_sync: true,
            };
            let mut block = vec![0; BLOCK_SIZE_BYTES];
            header.encode(&mut block);
            assert_eq!(FileHeader::decode(&block), Ok(header));
            block[11]
        };
        let versions = [written(0, false), written(1, false), written(0, true), written(1, true)];
        assert_eq!(versions, [3, 4, 5, 5]);
    }

    #[test]
    fn slot_names_are_fixed() {
        assert_eq!(slot_of_name(&slot_name(12)), Some(12));
        assert_eq!(slot_of_name("journal-12345.bjl"), Some(12345));
        for other in ["journal-.bjl", "journal-00x1.bjl", "x.bjl", "journal-0001.txn", "journal-20240101.bjl"]
        {
            assert_eq!(slot_of_name(other), None, "{other}");
        }
    }
}
