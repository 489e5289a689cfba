//! Objects: what a tierer writes to the bucket. One object holds extents of many ledgers; an extent is a contiguous range of
//! one ledger's entries, stored byte for byte as the bookies store them.
//!
//! # Data flow
//! ```text
//! entries of ledgers ─► ObjectBuilder ─► chunks, uploaded as they come ─► ObjectSummary, for the commit
//! last 64 bytes ─► Trailer ─► footer range ─► Footer ─► range of a block ─► decode_block ─► entries
//! ```
//!
//! # The bytes
//! All numbers are little-endian, except inside entry bodies, which are as they came from the wire.
//! ```text
//! +--------+----------------------+----------------------+-----+--------+---------+
//! | header | extent               | extent               | ... | footer | trailer |
//! | 64     | blocks      | table  | blocks      | table  |     |        | 64      |
//! +--------+-------------+--------+-------------+--------+-----+--------+---------+
//!
//! header    0 magic "BNDROBJT" | 8 version u32 | 12 zero u32 | 16 object id, 16 bytes | 32 cluster, 16 bytes
//!          48 built at, ms since the epoch u64 | 56 zero u32 | 60 CRC32C of bytes 0..60                    64 bytes
//! block    compressed or not: entries u32, then the length of each body u32, then the bodies
//! table    per entry of the extent: length of the body u32 | CRC32C of the body u32
//! footer    0 magic "BNDROFTR" | 8 ledgers u32 | 12 extents u32
//!          then per ledger, ascending: ledger i64 | length u32 | metadata as the metadata store holds it
//!          then per extent, ascending by (ledger, first):
//!            ledger i64 | first i64 | last i64 | bytes of all bodies u64
//!            offset of the table u64 | CRC32C of the table u32 | blocks u32
//!            then per block: first entry i64 | offset u64 | stored length u32 | raw length u32
//!                            CRC32C of the stored bytes u32 | compression u32: 0 none, 1 zstd
//! trailer   0 magic "BNDROTRL" | 8 version u32 | 12 CRC32C of the footer u32 | 16 object id, 16 bytes
//!          32 footer offset u64 | 40 footer length u64 | 48 object length u64 | 56 zero u32
//!          60 CRC32C of bytes 0..60                                                                      64 bytes
//! ```
//! Magic, version and the place of the checksum in header and trailer stay the same in every version, so that a newer
//! version is told from damage. The trailer is found from the object's length alone.
//!
//! # Invariants
//! 1. An extent has every entry from its first to its last, once, in order; extents of one ledger do not overlap.
//! 2. Every byte between header and footer belongs to one block or one table, and each of those has a checksum in the
//!    footer, which has one in the trailer. An object that verifies is the object that was built.
//! 3. A table's checksums are those that the bookies' entry logs keep for the same entries: a bookie compares them with its
//!    own without reading an entry (T19).
//! 4. An object that is cut short, extended or altered gives an error that names the part, never wrong entries, and never
//!    an allocation larger than the limits below.
//! 5. The builder holds one block, the tables and what was not taken yet. Bodies are not copied unless they are compressed.
//!
//! # Limits
//! Block: [`BLOCK_BYTES_TARGET`] or one entry, [`BLOCK_ENTRIES_MAX`]. Footer: [`FOOTER_BYTES_TARGET`] and one ledger when it is built,
//! [`FOOTER_BYTES_MAX`] when it is read. Metadata of a ledger: [`METADATA_BYTES_MAX`]. Entry: [`ENTRY_BYTES_MAX`].

mod ahead;
mod block;
mod builder;
mod format;
#[cfg(test)]
mod tests;
mod verify;

pub use ahead::{AHEAD_BYTES, ahead};
pub use block::{Compression, decode_block};
pub use builder::{AppendError, ObjectBuilder, ObjectSummary};
pub use format::{
    BlockEntry, Extent, Footer, HEADER_SIZE_BYTES, Header, TABLE_ENTRY_SIZE_BYTES, TRAILER_SIZE_BYTES,
    TableEntry, Trailer, decode_table,
};
pub use verify::{Verified, VerifyError, examine, verify};

/// The version this build writes, and the newest it reads. 1: first.
pub const FORMAT_VERSION: u32 = 1;

/// A block is closed when its raw bytes reach this: one ranged GET serves a catch-up reader for a while.
pub const BLOCK_BYTES_TARGET: usize = 1 << 20;

/// Entries in one block, so that its list of lengths stays below 256 KiB.
pub const BLOCK_ENTRIES_MAX: usize = 65_536;

/// Largest footer that is read.
pub const FOOTER_BYTES_MAX: u64 = 64 << 20;

/// An object is finished when its footer has so many bytes: a bookie keeps footers in a quarter of its memory for reads, which may be
/// 16 MiB, and has to decode one.
pub const FOOTER_BYTES_TARGET: u64 = 2 << 20;

/// Largest metadata of one ledger, ZooKeeper's default for a node (`jute.maxbuffer`).
pub const METADATA_BYTES_MAX: usize = 1 << 20;

/// Largest stored entry: frames have a signed 32-bit length; Pulsar's bookies allow 5 MiB.
pub const ENTRY_BYTES_MAX: usize = 64 << 20;

/// Why bytes are no object, or no whole one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// The bytes at its end, or its beginning, are those of something else, or of an object that was cut short.
    #[error(
        "not a whole object of Bindery: its {part} has another magic (cut short, or a different kind of file)"
    )]
    NotAnObject {
        /// Header, footer or trailer.
        part: &'static str,
    },
    /// Written by a newer release.
    #[error("object format {found} is newer than this release reads (up to {newest}); upgrade to read it", newest = FORMAT_VERSION)]
    NewerFormat {
        /// The version it has.
        found: u32,
    },
    /// A part does not verify.
    #[error("damaged {part} at offset {offset}: {problem}")]
    Damaged {
        /// The part.
        part: &'static str,
        /// Where it begins in the object.
        offset: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
}

fn damaged(part: &'static str, offset: u64, problem: &'static str) -> ObjectError {
    ObjectError::Damaged { part, offset, problem }
}
