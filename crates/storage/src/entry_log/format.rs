//! The bytes of an entry log. All numbers are little-endian, except inside entry bodies, which are as they came
//! from the wire.
//!
//! ```text
//! header   0 magic "BNDRELOG" | 8 version u32 | 12 zero u32 | 16 log id u64 | 24 generation u64 | zeros
//!          4092 CRC32C of bytes 0..4092
//! record   0 entry i64 | 8 offset u64 | 16 length u32 | 20 body CRC32C u32
//!          24 CRC32C of (log id u64, ledger i64, place in the run u32, bytes 0..24)          28 bytes
//! footer   0 magic "BNDRFOOT" | 8 extents u64 | 16 entries u64 | 24 zero u64                  32 bytes
//!          then one extent per run, ascending by (ledger, first)
//! extent   0 ledger i64 | 8 first i64 | 16 last i64 | 24 largest LAC i64, -1 none | 32 generation u64
//!          40 stride u64, 0 irregular | 48 bodies offset u64 | 56 bodies length u64
//!          64 records offset u64 | 72 entries u32 | 76 CRC32C of the records u32              80 bytes
//! trailer  0 magic "BNDRTAIL" | 8 version u32 | 12 footer CRC32C u32 | 16 log id u64 | 24 generation u64
//!          32 footer offset u64 | 40 footer length u64 | 48 file length u64 | 56 zero u32
//!          60 CRC32C of bytes 0..60                                                           64 bytes
//! ```
//! Magic, version and the place of the checksum in header and trailer stay the same in every version, so that a
//! newer version is told from damage. The trailer is the last 64 bytes of the file, whose length is a whole number
//! of blocks: no other bookkeeping is needed to find it, and a file cut or extended anywhere has none.

use crate::codec::{Crc32c, Put, Take, crc32c};
use crate::{Damaged, Generation, LogId, NewerFormat, OpenLogError};
use bindery_io::BLOCK_SIZE_BYTES;
use bindery_types::{EntryId, LedgerId};
use std::path::Path;

/// The version this build writes, and the newest it reads. 1: first.
pub const FORMAT_VERSION: u32 = 1;

/// Shortest entry body: ledger, entry and LAC (last add confirmed) (protocol reference, section 3.1).
pub const ENTRY_BODY_MIN_BYTES: usize = 24;

/// Entries in one run. Bounds the writer's index memory and a reader's record block to 1.75 MiB.
pub const RUN_ENTRIES_MAX: u32 = 65_536;

pub(crate) const BLOCK: u64 = BLOCK_SIZE_BYTES as u64;
pub(super) const RECORD_SIZE: usize = 28;
pub(super) const FOOTER_HEAD_SIZE: usize = 32;
pub(super) const EXTENT_SIZE: usize = 80;
pub(super) const TRAILER_SIZE: usize = 64;

const HEADER_MAGIC: &[u8; 8] = b"BNDRELOG";
const FOOTER_MAGIC: &[u8; 8] = b"BNDRFOOT";
const TRAILER_MAGIC: &[u8; 8] = b"BNDRTAIL";
const HEADER_CRC_AT: usize = BLOCK_SIZE_BYTES - 4;
const TRAILER_CRC_AT: usize = TRAILER_SIZE - 4;

const SUFFIX: &str = ".elog";

/// `<log id, 16 hex digits>.elog`
pub(crate) fn file_name(id: LogId) -> String {
    format!("{id}{SUFFIX}")
}

/// The log a file name of ours stands for; `None` for any other name.
pub(crate) fn log_id_of(name: &str) -> Option<LogId> {
    let id = LogId(u64::from_str_radix(name.strip_suffix(SUFFIX)?, 16).ok()?);
    (file_name(id) == name).then_some(id)
}

/// A run of entries of one ledger in one log, as the footer stores it and the extent directory holds it in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The log that holds it.
    pub log_id: LogId,
    /// The ledger.
    pub ledger: LedgerId,
    /// First entry.
    pub first: EntryId,
    /// Last entry, present like the first.
    pub last: EntryId,
    /// Number of entries, at least 1.
    pub count: u32,
    /// Distance between neighbours when it is the same everywhere (1 when `count` is 1), 0 when it varies.
    /// Striping leaves constant strides, and then a place in the run is computed instead of searched.
    pub stride: u64,
    /// Largest LAC (last add confirmed) that the run's entries carry.
    pub max_lac: Option<EntryId>,
    /// Age of these copies.
    pub generation: Generation,
    pub(super) bodies_offset: u64,
    pub(super) bodies_len: u64,
    pub(crate) records_offset: u64,
    pub(super) records_crc: u32,
}

/// Where an entry would stand in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Absent,
    At(u32),
    Search,
}

impl Extent {
    /// False when the run cannot hold the entry. True is certain for regular runs (`stride` above 0) only.
    pub fn may_hold(&self, entry: EntryId) -> bool {
        self.place(entry) != Place::Absent
    }

    /// The entries of a regular run, ascending; `None` when only the records know them.
    pub fn regular_ids(&self) -> Option<impl Iterator<Item = EntryId> + use<>> {
        let stride = i64::try_from(self.stride).ok().filter(|stride| *stride > 0)?;
        let first = self.first.get();
        Some((0..i64::from(self.count)).filter_map(move |place| EntryId::new(first + place * stride)))
    }

    /// True when the run has every entry from its first to its last.
    pub fn is_dense(&self) -> bool {
        self.stride == 1
    }

    /// As [`Extent::regular_ids`], from `first` to `last` only. Those outside take no time.
    pub fn regular_ids_within(
        &self,
        first: EntryId,
        last: EntryId,
    ) -> Option<impl Iterator<Item = EntryId> + use<>> {
        let stride = i64::try_from(self.stride).ok().filter(|stride| *stride > 0)?;
        let begin = self.first.get();
        let below = first.get().saturating_sub(begin).max(0);
        let from = below / stride + i64::from(below % stride > 0);
        let until = match last.get().checked_sub(begin) {
            Some(distance) if distance >= 0 => (distance / stride).saturating_add(1),
            _ => 0,
        };
        let places = from..until.min(i64::from(self.count));
        Some(places.filter_map(move |place| EntryId::new(begin + place * stride)))
    }

    /// True for an offset in the log's file at which there is an index record of the run.
    pub fn has_record_at(&self, offset: u64) -> bool {
        (self.records_offset..self.records_end()).contains(&offset)
    }

    /// Bytes of bodies and records: the space that the run takes in any log.
    pub fn bytes(&self) -> u64 {
        self.bodies_len + self.records_len()
    }

    /// Bytes of the entry bodies.
    pub fn body_bytes(&self) -> u64 {
        self.bodies_len
    }

    pub(super) fn place(&self, entry: EntryId) -> Place {
        if entry < self.first || entry > self.last {
            return Place::Absent;
        }
        if self.stride == 0 {
            return Place::Search;
        }
        let distance = entry.get().abs_diff(self.first.get());
        match (distance % self.stride, u32::try_from(distance / self.stride)) {
            (0, Ok(place)) => Place::At(place),
            _ => Place::Absent,
        }
    }

    pub(super) fn records_len(&self) -> u64 {
        u64::from(self.count) * RECORD_SIZE as u64
    }

    pub(crate) fn records_end(&self) -> u64 {
        self.records_offset + self.records_len()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut put = Put(out);
        put.i64(self.ledger.get()).i64(self.first.get()).i64(self.last.get());
        put.i64(EntryId::to_wire(self.max_lac)).u64(self.generation.0).u64(self.stride);
        put.u64(self.bodies_offset).u64(self.bodies_len).u64(self.records_offset);
        put.u32(self.count).u32(self.records_crc);
    }

    /// `start` is where the run must begin, when the one before is known: runs follow each other without gap.
    pub(super) fn decode(
        bytes: &[u8],
        log_id: LogId,
        start: Option<u64>,
        limit: u64,
    ) -> Result<Extent, &'static str> {
        let mut take = Take(bytes);
        let mut decode = || {
            let ledger = LedgerId::new(take.i64()?)?;
            let first = EntryId::new(take.i64()?)?;
            let last = EntryId::new(take.i64()?)?;
            let max_lac = EntryId::new(take.i64()?);
            let generation = Generation(take.u64()?);
            let stride = take.u64()?;
            let (bodies_offset, bodies_len, records_offset) = (take.u64()?, take.u64()?, take.u64()?);
            let (count, records_crc) = (take.u32()?, take.u32()?);
            Some(Extent {
                log_id,
                ledger,
                first,
                last,
                count,
                stride,
                max_lac,
                generation,
                bodies_offset,
                bodies_len,
                records_offset,
                records_crc,
            })
        };
        let extent = decode().ok_or("an extent has a negative id")?;
        if extent.count == 0 || extent.count > RUN_ENTRIES_MAX {
            return Err("an extent counts no entries, or too many");
        }
        let span = extent.last.get().checked_sub(extent.first.get()).and_then(|n| u64::try_from(n).ok());
        let steps = u64::from(extent.count) - 1;
        let fits = match span {
            None => false,
            Some(span) if extent.stride == 0 => span > steps,
            Some(span) => extent.stride.checked_mul(steps) == Some(span),
        };
        if !fits {
            return Err("first, last, count and stride of an extent contradict each other");
        }
        let records_offset = extent.bodies_offset.checked_add(extent.bodies_len);
        if start.is_some_and(|start| start != extent.bodies_offset)
            || records_offset != Some(extent.records_offset)
        {
            return Err("an extent does not follow the one before");
        }
        if extent.records_offset.checked_add(extent.records_len()).is_none_or(|end| end > limit) {
            return Err("an extent reaches into the footer");
        }
        Ok(extent)
    }
}

/// Where an entry's body stands in its log, from a verified record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryLocation {
    /// The log.
    pub log_id: LogId,
    /// Offset of the body in the file, in bytes.
    pub offset: u64,
    /// Length of the body in bytes.
    pub length: u32,
    /// CRC32C of the body.
    pub crc32c: u32,
}

/// One line of a run's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexRecord {
    /// The entry.
    pub entry: EntryId,
    /// Its body.
    pub location: EntryLocation,
}

pub(super) fn record_crc(log_id: LogId, ledger: LedgerId, place: u32, head: &[u8]) -> u32 {
    let mut identity = [0; 20];
    identity[..8].copy_from_slice(&log_id.0.to_le_bytes());
    identity[8..16].copy_from_slice(&ledger.get().to_le_bytes());
    identity[16..].copy_from_slice(&place.to_le_bytes());
    crc32c(&[&identity, head])
}

impl IndexRecord {
    pub(super) fn encode(&self, ledger: LedgerId, place: u32, out: &mut Vec<u8>) {
        let start = out.len();
        let EntryLocation { log_id, offset, length, crc32c } = self.location;
        Put(out).i64(self.entry.get()).u64(offset).u32(length).u32(crc32c);
        let crc = record_crc(log_id, ledger, place, &out[start..]);
        Put(out).u32(crc);
    }

    /// Decodes the record at `place` of `extent`; the error says what is wrong with it.
    pub(super) fn decode(bytes: &[u8], extent: &Extent, place: u32) -> Result<IndexRecord, &'static str> {
        let (head, crc) = bytes.split_at_checked(RECORD_SIZE - 4).ok_or("an index record is cut")?;
        if crc != record_crc(extent.log_id, extent.ledger, place, head).to_le_bytes() {
            return Err("the checksum of an index record does not match");
        }
        let mut take = Take(head);
        let mut decode = || {
            let entry = EntryId::new(take.i64()?)?;
            let (offset, length, crc32c) = (take.u64()?, take.u32()?, take.u32()?);
            let end = offset.checked_add(u64::from(length))?;
            let inside = offset >= extent.bodies_offset && end <= extent.records_offset;
            let long_enough = length as usize >= ENTRY_BODY_MIN_BYTES;
            let location = EntryLocation { log_id: extent.log_id, offset, length, crc32c };
            (inside && long_enough).then_some(IndexRecord { entry, location })
        };
        let record = decode().ok_or("an index record points outside its run")?;
        let right = match extent.place(record.entry) {
            Place::Absent => false,
            Place::At(expected) => expected == place,
            Place::Search => true,
        };
        let first_is_first = place != 0 || record.entry == extent.first;
        let last_is_last = place + 1 != extent.count || record.entry == extent.last;
        if right && first_is_first && last_is_last {
            Ok(record)
        } else {
            Err("an index record is not of its run")
        }
    }
}

/// The fields on which header and trailer agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub log_id: LogId,
    pub generation: Generation,
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK_SIZE_BYTES);
        Put(&mut out)
            .bytes(HEADER_MAGIC)
            .u32(FORMAT_VERSION)
            .u32(0)
            .u64(self.log_id.0)
            .u64(self.generation.0);
        out.resize(HEADER_CRC_AT, 0);
        let crc = crc32c(&[&out]);
        Put(&mut out).u32(crc);
        out
    }

    pub(super) fn decode(block: &[u8], path: &Path) -> Result<Header, OpenLogError> {
        let damaged = |what: &str| Damaged::new(path, 0, what);
        let mut take = Take(sealed(block, HEADER_MAGIC, HEADER_CRC_AT).map_err(damaged)?);
        let mut decode = || Some((take.u32()?, take.u32()?, take.u64()?, take.u64()?));
        let (version, _, log_id, generation) = decode().ok_or_else(|| damaged("the header is cut"))?;
        check_version(version, path)?;
        Ok(Header { log_id: LogId(log_id), generation: Generation(generation) })
    }
}

fn check_version(found: u32, path: &Path) -> Result<(), OpenLogError> {
    match found {
        FORMAT_VERSION => Ok(()),
        0 => Err(Damaged::new(path, 0, "format version 0 never existed").into()),
        found => Err(NewerFormat { path: path.to_owned(), found, supported: FORMAT_VERSION }.into()),
    }
}

/// The fields between magic and checksum, when both are right.
fn sealed<'a>(bytes: &'a [u8], magic: &[u8; 8], crc_at: usize) -> Result<&'a [u8], &'static str> {
    let (head, crc) = bytes.split_at_checked(crc_at).ok_or("a structure is cut")?;
    let Some(fields) = head.strip_prefix(magic) else { return Err("the magic bytes are missing") };
    if crc != crc32c(&[head]).to_le_bytes() {
        return Err("the checksum does not match");
    }
    Ok(fields)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trailer {
    pub header: Header,
    pub footer_crc: u32,
    pub footer_offset: u64,
    pub footer_len: u64,
    pub file_len: u64,
}

impl Trailer {
    /// Length of a file whose footer ends at `footer_end`.
    pub(super) fn file_len(footer_end: u64) -> u64 {
        (footer_end + TRAILER_SIZE as u64).next_multiple_of(BLOCK)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(TRAILER_SIZE);
        let mut put = Put(&mut out);
        put.bytes(TRAILER_MAGIC).u32(FORMAT_VERSION).u32(self.footer_crc);
        put.u64(self.header.log_id.0).u64(self.header.generation.0);
        put.u64(self.footer_offset).u64(self.footer_len).u64(self.file_len).u32(0);
        let crc = crc32c(&[&out]);
        Put(&mut out).u32(crc);
        out
    }

    /// Checks everything that can be checked against the length of the file, `len`.
    pub(super) fn decode(bytes: &[u8], len: u64, path: &Path) -> Result<Trailer, OpenLogError> {
        let damaged = |what: &str| Damaged::new(path, len.saturating_sub(TRAILER_SIZE as u64), what);
        let mut take = Take(sealed(bytes, TRAILER_MAGIC, TRAILER_CRC_AT).map_err(damaged)?);
        let mut decode = || {
            let (version, footer_crc) = (take.u32()?, take.u32()?);
            let header = Header { log_id: LogId(take.u64()?), generation: Generation(take.u64()?) };
            let (footer_offset, footer_len, file_len) = (take.u64()?, take.u64()?, take.u64()?);
            Some((version, Trailer { header, footer_crc, footer_offset, footer_len, file_len }))
        };
        let (version, trailer) = decode().ok_or_else(|| damaged("the trailer is cut"))?;
        check_version(version, path)?;
        if trailer.file_len != len {
            let what = format!("the file has {len} bytes, it was sealed with {}", trailer.file_len);
            return Err(damaged(&what).into());
        }
        let end = trailer.footer_offset.checked_add(trailer.footer_len);
        let in_place = trailer.footer_offset >= BLOCK
            && end.is_some_and(|end| end < len && Trailer::file_len(end) == len)
            && trailer.footer_len >= FOOTER_HEAD_SIZE as u64;
        if !in_place {
            return Err(damaged("the footer is said to be where it cannot be").into());
        }
        Ok(trailer)
    }
}

pub(super) fn encode_footer_head(extents: u64, entries: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(FOOTER_HEAD_SIZE);
    Put(&mut out).bytes(FOOTER_MAGIC).u64(extents).u64(entries).u64(0);
    out
}

/// Decodes a footer that `trailer` describes, some extents at a time, ascending by (ledger, first). Extents taken
/// before the end are proven only by [`FooterDecoder::finish`].
pub(super) struct FooterDecoder {
    trailer: Trailer,
    crc: Crc32c,
    /// Extents that are still to come.
    left: u64,
    entries: u64,
    /// Entries of the extents so far.
    counted: u64,
    /// Where the next run must begin.
    start: u64,
    before: Option<(LedgerId, EntryId)>,
}

impl FooterDecoder {
    /// Begins with the head, which stands at the footer's offset.
    pub(super) fn new(
        trailer: &Trailer,
        head: &[u8; FOOTER_HEAD_SIZE],
        path: &Path,
    ) -> Result<FooterDecoder, Damaged> {
        let damaged = |what: &str| Damaged::new(path, trailer.footer_offset, what);
        let Some(mut take) = head.strip_prefix(FOOTER_MAGIC).map(Take) else {
            return Err(damaged("the magic bytes of the footer are missing"));
        };
        let mut fields = || Some((take.u64()?, take.u64()?, take.u64()?));
        let (left, entries, _) = fields().ok_or_else(|| damaged("the footer is cut"))?;
        let extents_len = left.checked_mul(EXTENT_SIZE as u64);
        if extents_len.and_then(|len| len.checked_add(FOOTER_HEAD_SIZE as u64)) != Some(trailer.footer_len) {
            return Err(damaged("the footer is longer or shorter than its extents"));
        }
        let mut crc = Crc32c::new();
        crc.update(head);
        let trailer = *trailer;
        Ok(FooterDecoder { trailer, crc, left, entries, counted: 0, start: BLOCK, before: None })
    }

    /// Extents that are still to come.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Decodes the next extents, given their bytes.
    pub(super) fn decode(
        &mut self,
        bytes: &[u8],
        path: &Path,
        mut take: impl FnMut(Extent),
    ) -> Result<(), Damaged> {
        let Trailer { header, footer_offset, .. } = self.trailer;
        let damaged = |what: &str| Damaged::new(path, footer_offset, what);
        self.crc.update(bytes);
        let (extents, _) = bytes.as_chunks::<EXTENT_SIZE>();
        for bytes in extents {
            let extent =
                Extent::decode(bytes, header.log_id, Some(self.start), footer_offset).map_err(damaged)?;
            if extent.generation > header.generation {
                return Err(damaged("an extent is newer than its log"));
            }
            if self.before >= Some((extent.ledger, extent.first)) {
                return Err(damaged("the extents do not ascend"));
            }
            self.before = Some((extent.ledger, extent.last));
            self.start = extent.records_end();
            self.counted += u64::from(extent.count);
            take(extent);
        }
        self.left -= extents.len() as u64;
        Ok(())
    }

    /// Checks what only all of it can say. Returns the number of entries.
    pub(super) fn finish(self, path: &Path) -> Result<u64, Damaged> {
        let damaged = |what: &str| Damaged::new(path, self.trailer.footer_offset, what);
        if self.crc.value() != self.trailer.footer_crc {
            return Err(damaged("the checksum of the footer does not match"));
        }
        if self.start != self.trailer.footer_offset {
            return Err(damaged("there is a gap before the footer"));
        }
        if self.counted != self.entries {
            return Err(damaged("the extents count other entries than the footer"));
        }
        Ok(self.entries)
    }
}

/// An extent that is of no file, for tests of what only looks at ids.
#[cfg(test)]
#[allow(clippy::too_many_arguments, reason = "a constructor of plain fields")]
pub(crate) fn test_extent(
    log_id: LogId,
    ledger: LedgerId,
    first: EntryId,
    last: EntryId,
    count: u32,
    stride: u64,
    max_lac: Option<EntryId>,
    generation: Generation,
) -> Extent {
    let (bodies_offset, bodies_len, records_offset, records_crc) = (BLOCK, 0, BLOCK, 0);
    Extent {
        log_id,
        ledger,
        first,
        last,
        count,
        stride,
        max_lac,
        generation,
        bodies_offset,
        bodies_len,
        records_offset,
        records_crc,
    }
}
