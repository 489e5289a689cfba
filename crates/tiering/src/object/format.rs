//! Header, footer, tables and trailer as values and bytes. The layout is described in [`super`].

use std::collections::BTreeMap;

use bindery_types::codec::{Put, Take, crc32c};
use bindery_types::{EntryId, LedgerId};
use bytes::Bytes;

use super::{
    BLOCK_ENTRIES_MAX, Compression, ENTRY_BYTES_MAX, FOOTER_BYTES_MAX, FORMAT_VERSION, METADATA_BYTES_MAX,
    ObjectError, damaged,
};
use crate::{ClusterId, ObjectId};

/// Length of the header.
pub const HEADER_SIZE_BYTES: usize = 64;
/// Length of the trailer.
pub const TRAILER_SIZE_BYTES: usize = 64;
/// Length of a table's item for one entry.
pub const TABLE_ENTRY_SIZE_BYTES: usize = 8;

const HEADER_MAGIC: &[u8; 8] = b"BNDROBJT";
const FOOTER_MAGIC: &[u8; 8] = b"BNDROFTR";
const TRAILER_MAGIC: &[u8; 8] = b"BNDROTRL";
const CRC_AT: usize = 60;
const FOOTER_HEAD_SIZE: usize = 16;

/// Checks magic, version and checksum of a header or trailer, which are at the same place in every version. Returns what lies between
/// the version and the checksum.
fn checked<'a>(
    bytes: &'a [u8; 64],
    magic: &[u8; 8],
    part: &'static str,
    offset: u64,
) -> Result<Take<'a>, ObjectError> {
    let (body, crc) = bytes.split_at(CRC_AT);
    let mut fields = Take(body);
    if fields.array::<8>().as_ref() != Some(magic) {
        return Err(ObjectError::NotAnObject { part });
    }
    if crc != crc32c(&[body]).to_le_bytes() {
        return Err(damaged(part, offset, "its checksum does not match"));
    }
    match fields.u32() {
        Some(FORMAT_VERSION) => Ok(fields),
        Some(found) if found > FORMAT_VERSION => Err(ObjectError::NewerFormat { found }),
        _ => Err(damaged(part, offset, "there is no such version")),
    }
}

/// Completes a header or trailer with the checksum of its first 60 bytes, which must be all that is given.
fn sealed(mut bytes: Vec<u8>) -> [u8; 64] {
    let crc = crc32c(&[&bytes]);
    Put(&mut bytes).u32(crc);
    bytes.try_into().expect("60 bytes and a checksum")
}

/// The first bytes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Its id.
    pub object: ObjectId,
    /// The cluster whose ledgers it holds.
    pub cluster: ClusterId,
    /// When it was begun, in milliseconds since the epoch by its tierer's clock.
    pub built_ms: u64,
}

impl Header {
    /// The bytes.
    pub fn encode(&self) -> [u8; HEADER_SIZE_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_SIZE_BYTES);
        Put(&mut bytes)
            .bytes(HEADER_MAGIC)
            .u32(FORMAT_VERSION)
            .u32(0)
            .bytes(self.object.as_bytes())
            .bytes(self.cluster.as_bytes())
            .u64(self.built_ms)
            .u32(0);
        sealed(bytes)
    }

    /// Decodes the first bytes of an object.
    pub fn decode(bytes: &[u8; HEADER_SIZE_BYTES]) -> Result<Header, ObjectError> {
        let mut fields = checked(bytes, HEADER_MAGIC, "header", 0)?;
        (|| {
            let zero = fields.u32()?;
            let object = ObjectId::from_bytes(fields.array()?);
            let cluster = ClusterId::from_bytes(fields.array()?);
            let built_ms = fields.u64()?;
            (zero == 0 && fields.u32()? == 0).then_some(Header { object, cluster, built_ms })
        })()
        .ok_or_else(|| damaged("header", 0, "a field that must be zero is not"))
    }
}

/// The last bytes of an object: where the footer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// The object's id, as in its header.
    pub object: ObjectId,
    /// Where the footer begins.
    pub footer_offset: u64,
    /// Its length; it ends where the trailer begins.
    pub footer_size_bytes: u64,
    /// CRC32C of the footer.
    pub footer_crc32c: u32,
    /// Length of the whole object.
    pub object_size_bytes: u64,
}

impl Trailer {
    /// The bytes.
    pub fn encode(&self) -> [u8; TRAILER_SIZE_BYTES] {
        let mut bytes = Vec::with_capacity(TRAILER_SIZE_BYTES);
        Put(&mut bytes)
            .bytes(TRAILER_MAGIC)
            .u32(FORMAT_VERSION)
            .u32(self.footer_crc32c)
            .bytes(self.object.as_bytes())
            .u64(self.footer_offset)
            .u64(self.footer_size_bytes)
            .u64(self.object_size_bytes)
            .u32(0);
        sealed(bytes)
    }

    /// Decodes the last bytes of an object of this length. In what is returned, the footer lies inside the object, and its length is
    /// within [`FOOTER_BYTES_MAX`].
    pub fn decode(bytes: &[u8; TRAILER_SIZE_BYTES], object_size_bytes: u64) -> Result<Trailer, ObjectError> {
        let offset = object_size_bytes.saturating_sub(TRAILER_SIZE_BYTES as u64);
        let mut fields = checked(bytes, TRAILER_MAGIC, "trailer", offset)?;
        let trailer = (|| {
            let footer_crc32c = fields.u32()?;
            let object = ObjectId::from_bytes(fields.array()?);
            let (footer_offset, footer_size_bytes) = (fields.u64()?, fields.u64()?);
            let trailer = Trailer {
                object,
                footer_offset,
                footer_size_bytes,
                footer_crc32c,
                object_size_bytes: fields.u64()?,
            };
            (fields.u32()? == 0).then_some(trailer)
        })()
        .ok_or_else(|| damaged("trailer", offset, "a field that must be zero is not"))?;
        if trailer.object_size_bytes != object_size_bytes {
            return Err(damaged("trailer", offset, "it belongs to an object of another length"));
        }
        let end = trailer.footer_offset.checked_add(trailer.footer_size_bytes);
        if trailer.footer_offset < HEADER_SIZE_BYTES as u64 || end != Some(offset) {
            return Err(damaged("trailer", offset, "it places the footer elsewhere than before itself"));
        }
        if trailer.footer_size_bytes > FOOTER_BYTES_MAX {
            return Err(damaged("trailer", offset, "it announces a footer above the limit"));
        }
        Ok(trailer)
    }
}

/// A block's place and checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockEntry {
    /// Its first entry; it ends before the next block's, or with the extent.
    pub first: EntryId,
    /// Where it begins in the object.
    pub offset: u64,
    /// Its length in the object.
    pub stored_size_bytes: u32,
    /// Its length when decompressed; the same when it is not compressed.
    pub raw_size_bytes: u32,
    /// CRC32C of the bytes in the object.
    pub crc32c: u32,
    /// How it is compressed.
    pub compression: Compression,
}

/// A contiguous range of one ledger's entries in an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// The ledger.
    pub ledger: LedgerId,
    /// The first entry.
    pub first: EntryId,
    /// The last entry.
    pub last: EntryId,
    /// Sum of the lengths of the stored entries.
    pub body_bytes: u64,
    /// Where its table begins in the object.
    pub table_offset: u64,
    /// CRC32C of the table.
    pub table_crc32c: u32,
    /// Its blocks, which lie one after the other and end where the table begins.
    pub blocks: Vec<BlockEntry>,
}

impl Extent {
    /// Number of entries.
    pub fn entries(&self) -> u64 {
        (self.last.get() - self.first.get()) as u64 + 1
    }

    /// Length of the table.
    pub fn table_size_bytes(&self) -> u64 {
        self.entries() * TABLE_ENTRY_SIZE_BYTES as u64
    }

    /// Which block has `entry`, if it is in the extent.
    pub fn block_of(&self, entry: EntryId) -> Option<usize> {
        if entry < self.first || entry > self.last {
            return None;
        }
        self.blocks.partition_point(|block| block.first <= entry).checked_sub(1)
    }

    /// The last entry of a block.
    ///
    /// # Panics
    /// When there is no such block.
    pub fn last_of(&self, block: usize) -> EntryId {
        assert!(block < self.blocks.len(), "the extent has {} blocks, not {block}", self.blocks.len());
        match self.blocks.get(block + 1) {
            Some(next) => EntryId::new(next.first.get() - 1).expect("a later block begins after entry 0"),
            None => self.last,
        }
    }
}

/// The ledgers and extents of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footer {
    /// The metadata of every ledger with an extent, as the metadata store held it when the object was built.
    pub ledgers: BTreeMap<LedgerId, Bytes>,
    /// The extents, ascending by ledger and first entry.
    pub extents: Vec<Extent>,
}

impl Footer {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let count = |length: usize| u32::try_from(length).expect("a footer within its limit");
        let mut bytes = Vec::new();
        let mut out = Put(&mut bytes);
        out.bytes(FOOTER_MAGIC).u32(count(self.ledgers.len())).u32(count(self.extents.len()));
        for (ledger, metadata) in &self.ledgers {
            out.i64(ledger.get()).u32(count(metadata.len())).bytes(metadata);
        }
        for extent in &self.extents {
            out.i64(extent.ledger.get())
                .i64(extent.first.get())
                .i64(extent.last.get())
                .u64(extent.body_bytes)
                .u64(extent.table_offset)
                .u32(extent.table_crc32c)
                .u32(count(extent.blocks.len()));
            for block in &extent.blocks {
                out.i64(block.first.get())
                    .u64(block.offset)
                    .u32(block.stored_size_bytes)
                    .u32(block.raw_size_bytes)
                    .u32(block.crc32c)
                    .u32(block.compression.number());
            }
        }
        bytes
    }

    /// Decodes the bytes that the trailer names. What is returned fulfils invariants 1 and 2: extents and blocks fill the room
    /// between header and footer without a gap.
    pub fn decode(bytes: &Bytes, trailer: &Trailer) -> Result<Footer, ObjectError> {
        let at = trailer.footer_offset;
        if bytes.len() as u64 != trailer.footer_size_bytes {
            return Err(damaged("footer", at, "there are fewer or more bytes than the trailer says"));
        }
        if crc32c(&[bytes]) != trailer.footer_crc32c {
            return Err(damaged("footer", at, "its checksum does not match"));
        }
        let mut fields = Take(bytes);
        if fields.array::<8>().as_ref() != Some(FOOTER_MAGIC) {
            return Err(ObjectError::NotAnObject { part: "footer" });
        }
        let footer = Self::fields(&mut fields, bytes)
            .filter(|_| fields.is_empty())
            .ok_or_else(|| damaged("footer", at, "its fields do not fit its length"))?;
        footer.check(at).map_err(|problem| damaged("footer", at, problem))?;
        Ok(footer)
    }

    fn fields(fields: &mut Take<'_>, whole: &Bytes) -> Option<Footer> {
        let (ledger_count, extent_count) = (fields.u32()?, fields.u32()?);
        let mut ledgers = BTreeMap::new();
        let mut newest = None;
        for _ in 0..ledger_count {
            let ledger = LedgerId::new(fields.i64()?)?;
            if newest.replace(ledger).is_some_and(|before| before >= ledger) {
                return None;
            }
            let size = usize::try_from(fields.u32()?).ok().filter(|size| *size <= METADATA_BYTES_MAX)?;
            ledgers.insert(ledger, whole.slice_ref(fields.bytes(size)?));
        }
        // Grown as the bytes are read: a count alone never allocates.
        let mut extents = Vec::new();
        for _ in 0..extent_count {
            let ledger = LedgerId::new(fields.i64()?)?;
            let (first, last) = (EntryId::new(fields.i64()?)?, EntryId::new(fields.i64()?)?);
            let (body_bytes, table_offset) = (fields.u64()?, fields.u64()?);
            let (table_crc32c, block_count) = (fields.u32()?, fields.u32()?);
            let mut blocks = Vec::new();
            for _ in 0..block_count {
                blocks.push(BlockEntry {
                    first: EntryId::new(fields.i64()?)?,
                    offset: fields.u64()?,
                    stored_size_bytes: fields.u32()?,
                    raw_size_bytes: fields.u32()?,
                    crc32c: fields.u32()?,
                    compression: Compression::of_number(fields.u32()?)?,
                });
            }
            extents.push(Extent { ledger, first, last, body_bytes, table_offset, table_crc32c, blocks });
        }
        Some(Footer { ledgers, extents })
    }

    /// Checks that the parts lie as the invariants say; `end` is where the footer begins.
    fn check(&self, end: u64) -> Result<(), &'static str> {
        let mut places = Vec::with_capacity(self.extents.len());
        let mut before: Option<&Extent> = None;
        for extent in &self.extents {
            if !self.ledgers.contains_key(&extent.ledger) {
                return Err("an extent's ledger has no metadata");
            }
            if extent.first > extent.last {
                return Err("an extent ends before it begins");
            }
            if let Some(before) = before
                && (before.ledger, before.last) >= (extent.ledger, extent.first)
            {
                return Err("extents overlap, or do not ascend");
            }
            before = Some(extent);
            let (mut offset, mut next) =
                (extent.blocks.first().map_or(0, |block| block.offset), extent.first);
            let begin = offset;
            for (index, block) in extent.blocks.iter().enumerate() {
                if block.offset != offset {
                    return Err("the blocks of an extent do not lie one behind the other");
                }
                if block.first != next {
                    return Err("a block begins with another entry than its place says");
                }
                let last =
                    extent.blocks.get(index + 1).map_or(extent.last.get(), |after| after.first.get() - 1);
                // Both are ids, so the difference fits.
                let entries = usize::try_from(last - block.first.get()).map_or(usize::MAX, |more| more + 1);
                if last < block.first.get() || entries > BLOCK_ENTRIES_MAX {
                    return Err("a block has no entries, or more than the limit");
                }
                let raw_size = block.raw_size_bytes as usize;
                if raw_size > super::block::raw_size_bytes_max(entries)
                    || raw_size < super::block::raw_size_bytes_min(entries)
                {
                    return Err("a block's length does not fit its entries");
                }
                if block.stored_size_bytes > block.raw_size_bytes
                    || (block.compression == Compression::None
                        && block.stored_size_bytes != block.raw_size_bytes)
                {
                    return Err("a block's stored length does not fit its compression");
                }
                offset =
                    offset.checked_add(u64::from(block.stored_size_bytes)).ok_or("an offset overflows")?;
                next = EntryId::new(last.saturating_add(1)).ok_or("an entry id overflows")?;
            }
            if extent.blocks.is_empty() {
                return Err("an extent has no blocks");
            }
            if extent.table_offset != offset {
                return Err("a table does not lie behind its extent's blocks");
            }
            let size =
                extent.entries().checked_mul(TABLE_ENTRY_SIZE_BYTES as u64).ok_or("a table overflows")?;
            places.push((begin, offset.checked_add(size).ok_or("an offset overflows")?));
        }
        places.sort_unstable();
        let filled = places
            .iter()
            .try_fold(HEADER_SIZE_BYTES as u64, |at, (begin, end)| (*begin == at).then_some(*end));
        if filled != Some(end) {
            return Err("its extents do not fill the object");
        }
        match self.ledgers.keys().all(|ledger| self.extents_of(*ledger).next().is_some()) {
            true => Ok(()),
            false => Err("it has metadata of a ledger without an extent"),
        }
    }

    /// The extents of one ledger, ascending.
    pub fn extents_of(&self, ledger: LedgerId) -> impl Iterator<Item = &Extent> {
        let begin = self.extents.partition_point(|extent| extent.ledger < ledger);
        self.extents[begin..].iter().take_while(move |extent| extent.ledger == ledger)
    }

    /// Length of the footer in bytes, of these ledgers and extents.
    pub(super) const fn size_bytes(
        ledgers: usize,
        metadata_bytes: usize,
        extents: usize,
        blocks: usize,
    ) -> usize {
        FOOTER_HEAD_SIZE + ledgers * 12 + metadata_bytes + extents * 48 + blocks * 32
    }
}

/// A table's item for one entry: the same that a bookie's entry log keeps of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableEntry {
    /// Length of the stored entry.
    pub size_bytes: u32,
    /// CRC32C of the stored entry.
    pub crc32c: u32,
}

/// Decodes an extent's table: one item for each of its entries, in order.
pub fn decode_table(extent: &Extent, bytes: &[u8]) -> Result<Vec<TableEntry>, ObjectError> {
    let wrong = |problem| damaged("table", extent.table_offset, problem);
    if bytes.len() as u64 != extent.table_size_bytes() {
        return Err(wrong("its length is not that of its extent"));
    }
    if crc32c(&[bytes]) != extent.table_crc32c {
        return Err(wrong("its checksum does not match"));
    }
    let (entries, _) = bytes.as_chunks::<TABLE_ENTRY_SIZE_BYTES>();
    let entries: Vec<TableEntry> = entries
        .iter()
        .map(|[a, b, c, d, e, f, g, h]| TableEntry {
            size_bytes: u32::from_le_bytes([*a, *b, *c, *d]),
            crc32c: u32::from_le_bytes([*e, *f, *g, *h]),
        })
        .collect();
    let bodies: u64 = entries.iter().map(|entry| u64::from(entry.size_bytes)).sum();
    if bodies != extent.body_bytes || entries.iter().any(|entry| entry.size_bytes as usize > ENTRY_BYTES_MAX)
    {
        return Err(wrong("the lengths in it do not fit its extent"));
    }
    Ok(entries)
}
