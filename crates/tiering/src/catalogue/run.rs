//! Runs: sorted rows in one immutable object, in blocks that are read one by one. The layout is described in [`super`].

use std::sync::Arc;

use bindery_types::codec::{Put, Take, crc32c};
use bytes::Bytes;

use super::row::{KEY_SIZE_BYTES, Key, VALUE_SIZE_BYTES_MAX};
use super::{CatalogueDamage, FORMAT_VERSION};
use crate::ClusterId;

/// A block is closed once its rows have this many bytes: about 800 extents, which compress to a third.
pub(super) const BLOCK_BYTES_TARGET: usize = 64 << 10;
/// Largest block: the target and one row.
const BLOCK_BYTES_MAX: usize = BLOCK_BYTES_TARGET + KEY_SIZE_BYTES + 1 + VALUE_SIZE_BYTES_MAX;
/// Largest index: 2.5 million blocks, for two billion extents.
const INDEX_BYTES_MAX: usize = 128 << 20;
const INDEX_ENTRY_SIZE_BYTES: usize = 2 * KEY_SIZE_BYTES + 20;
const TRAILER_SIZE_BYTES: usize = 64;
const TRAILER_MAGIC: &[u8; 8] = b"BNDRTRUN";
/// The length that stands for a row that is gone.
const GONE: u8 = 255;
const ZSTD_LEVEL: i32 = 1;

/// A row: key, and value or the mark that there is none any more.
pub(super) type Row = (Key, Option<Vec<u8>>);

/// The place of a block in its run, and its first and last key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockPlace {
    pub first: Key,
    pub last: Key,
    pub offset: u64,
    pub stored_size_bytes: u32,
    pub raw_size_bytes: u32,
    pub crc32c: u32,
}

/// Where the index of a run is, and how many rows it has. Manifests keep this, and so does the run's trailer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunShape {
    pub rows: u64,
    pub size_bytes: u64,
    pub index_offset: u64,
    pub index_size_bytes: u32,
    pub index_crc32c: u32,
}

impl RunShape {
    pub(super) const SIZE_BYTES: usize = 32;

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        Put(bytes)
            .u64(self.rows)
            .u64(self.size_bytes)
            .u64(self.index_offset)
            .u32(self.index_size_bytes)
            .u32(self.index_crc32c);
    }

    pub(super) fn decode(fields: &mut Take<'_>) -> Option<RunShape> {
        let shape = RunShape {
            rows: fields.u64()?,
            size_bytes: fields.u64()?,
            index_offset: fields.u64()?,
            index_size_bytes: fields.u32()?,
            index_crc32c: fields.u32()?,
        };
        let end = shape.index_offset.checked_add(u64::from(shape.index_size_bytes))?;
        let is_sound = end.checked_add(TRAILER_SIZE_BYTES as u64) == Some(shape.size_bytes)
            && shape.index_size_bytes as usize <= INDEX_BYTES_MAX;
        is_sound.then_some(shape)
    }
}

/// Builds a run from ascending rows. Its bytes are taken while it is built, so that few are held.
pub(super) struct RunBuilder {
    cluster: ClusterId,
    block: Vec<u8>,
    block_first: Option<Key>,
    last: Option<Key>,
    index: Vec<u8>,
    rows: u64,
    position: u64,
    out: Vec<Bytes>,
    out_bytes: usize,
}

impl RunBuilder {
    pub(super) fn new(cluster: ClusterId) -> RunBuilder {
        RunBuilder {
            cluster,
            block: Vec::with_capacity(BLOCK_BYTES_MAX),
            block_first: None,
            last: None,
            index: Vec::new(),
            rows: 0,
            position: 0,
            out: Vec::new(),
            out_bytes: 0,
        }
    }

    /// Adds a row; without a value it marks the key as gone.
    ///
    /// # Panics
    /// When the key is not above the one before, or the value is longer than [`VALUE_SIZE_BYTES_MAX`].
    pub(super) fn push(&mut self, key: Key, value: Option<&[u8]>) {
        assert!(self.last.is_none_or(|last| last < key), "rows of a run ascend");
        self.last = Some(key);
        self.block_first.get_or_insert(key);
        let mut block = Put(&mut self.block);
        block.bytes(&key.0);
        match value {
            None => block.u8(GONE),
            Some(value) => {
                assert!(value.len() <= VALUE_SIZE_BYTES_MAX, "a value of {} bytes", value.len());
                block.u8(value.len() as u8).bytes(value)
            }
        };
        self.rows += 1;
        if self.block.len() >= BLOCK_BYTES_TARGET {
            self.close_block();
        }
    }

    /// How many bytes [`take`](Self::take) would return: those of blocks that were closed since the last call.
    pub(super) fn ready_bytes(&self) -> usize {
        self.out_bytes
    }

    /// Takes the bytes of the run that follow those taken before, as far as they are complete, to be uploaded.
    pub(super) fn take(&mut self) -> Vec<Bytes> {
        self.out_bytes = 0;
        std::mem::take(&mut self.out)
    }

    fn put(&mut self, bytes: Bytes) {
        self.position += bytes.len() as u64;
        self.out_bytes += bytes.len();
        self.out.push(bytes);
    }

    fn close_block(&mut self) {
        let (Some(first), Some(last)) = (self.block_first.take(), self.last) else { return };
        let stored = zstd::bulk::compress(&self.block, ZSTD_LEVEL).expect("memory can be compressed");
        Put(&mut self.index)
            .bytes(&first.0)
            .bytes(&last.0)
            .u64(self.position)
            .u32(u32::try_from(stored.len()).expect("a block within its limit"))
            .u32(u32::try_from(self.block.len()).expect("a block within its limit"))
            .u32(crc32c(&[&stored]));
        self.block.clear();
        // Copied, to drop the spare room that the compressor asked for: many blocks are held until a part is full.
        self.put(Bytes::copy_from_slice(&stored));
    }

    /// Ends the run: returns the rest of its bytes, with index and trailer, and its shape.
    pub(super) fn finish(mut self) -> (Vec<Bytes>, RunShape) {
        self.close_block();
        let index = Bytes::from(std::mem::take(&mut self.index));
        let index_offset = self.position;
        let shape = RunShape {
            rows: self.rows,
            size_bytes: index_offset + index.len() as u64 + TRAILER_SIZE_BYTES as u64,
            index_offset,
            index_size_bytes: u32::try_from(index.len()).expect("an index within its limit"),
            index_crc32c: crc32c(&[&index]),
        };
        self.put(index);
        let mut trailer = Vec::with_capacity(TRAILER_SIZE_BYTES);
        Put(&mut trailer).bytes(TRAILER_MAGIC).u32(FORMAT_VERSION).bytes(self.cluster.as_bytes());
        shape.encode(&mut trailer);
        let crc = crc32c(&[&trailer]);
        Put(&mut trailer).u32(crc);
        debug_assert_eq!(trailer.len(), TRAILER_SIZE_BYTES);
        self.put(Bytes::from(trailer));
        (self.take(), shape)
    }
}

/// The index of a run, in memory.
#[derive(Debug, Clone)]
pub(super) struct RunIndex {
    pub blocks: Arc<[BlockPlace]>,
}

impl RunIndex {
    /// Decodes the end of a run, which is its index and its trailer.
    pub(super) fn decode(
        end: &[u8],
        shape: &RunShape,
        cluster: ClusterId,
    ) -> Result<RunIndex, CatalogueDamage> {
        let index_size = shape.index_size_bytes as usize;
        if end.len() != index_size + TRAILER_SIZE_BYTES {
            return Err(CatalogueDamage::Length { found: end.len() });
        }
        let (index, trailer) = end.split_at(index_size);
        decode_trailer(trailer, shape, cluster)?;
        if crc32c(&[index]) != shape.index_crc32c {
            return Err(CatalogueDamage::Checksum);
        }
        let mut fields = Take(index);
        let mut blocks = Vec::with_capacity(index_size / INDEX_ENTRY_SIZE_BYTES);
        let (mut position, mut before) = (0, None);
        while !fields.is_empty() {
            let block = (|| {
                Some(BlockPlace {
                    first: Key(fields.array()?),
                    last: Key(fields.array()?),
                    offset: fields.u64()?,
                    stored_size_bytes: fields.u32()?,
                    raw_size_bytes: fields.u32()?,
                    crc32c: fields.u32()?,
                })
            })()
            .ok_or(CatalogueDamage::Malformed)?;
            let is_sound = block.offset == position
                && block.first <= block.last
                && before < Some(block.first)
                && block.raw_size_bytes as usize <= BLOCK_BYTES_MAX;
            if !is_sound {
                return Err(CatalogueDamage::Malformed);
            }
            position += u64::from(block.stored_size_bytes);
            before = Some(block.last);
            blocks.push(block);
        }
        if position != shape.index_offset {
            return Err(CatalogueDamage::Malformed);
        }
        Ok(RunIndex { blocks: blocks.into() })
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.blocks.len() * size_of::<BlockPlace>()
    }
}

fn decode_trailer(trailer: &[u8], expected: &RunShape, cluster: ClusterId) -> Result<(), CatalogueDamage> {
    let (sealed, crc) = trailer.split_at(TRAILER_SIZE_BYTES - 4);
    let mut fields = Take(sealed);
    if fields.array::<8>().as_ref() != Some(TRAILER_MAGIC) {
        return Err(CatalogueDamage::Magic);
    }
    if crc != crc32c(&[sealed]).to_le_bytes() {
        return Err(CatalogueDamage::Checksum);
    }
    match fields.u32() {
        Some(1..=FORMAT_VERSION) => {}
        Some(found) if found > FORMAT_VERSION => return Err(CatalogueDamage::NewerFormat { found }),
        _ => return Err(CatalogueDamage::Malformed),
    }
    let found = ClusterId::from_bytes(fields.array().ok_or(CatalogueDamage::Malformed)?);
    if found != cluster {
        return Err(CatalogueDamage::OtherCluster { found, expected: cluster });
    }
    match RunShape::decode(&mut fields) {
        Some(shape) if shape == *expected && fields.is_empty() => Ok(()),
        _ => Err(CatalogueDamage::Malformed),
    }
}

/// A block, decompressed.
#[derive(Debug)]
pub(super) struct Block {
    raw: Vec<u8>,
    /// Where each row begins.
    rows: Vec<u32>,
}

impl Block {
    /// Decodes the bytes of a block in its run.
    pub(super) fn decode(stored: &[u8], place: &BlockPlace) -> Result<Block, CatalogueDamage> {
        if stored.len() != place.stored_size_bytes as usize {
            return Err(CatalogueDamage::Length { found: stored.len() });
        }
        if crc32c(&[stored]) != place.crc32c {
            return Err(CatalogueDamage::Checksum);
        }
        let raw_size = place.raw_size_bytes as usize;
        let raw = match zstd::bulk::decompress(stored, raw_size) {
            Ok(raw) if raw.len() == raw_size => raw,
            _ => return Err(CatalogueDamage::Malformed),
        };
        let mut rows = Vec::new();
        let mut fields = Take(&raw);
        let mut before = None;
        while !fields.is_empty() {
            let at = (raw.len() - fields.0.len()) as u32;
            let key = (|| {
                let key = Key(fields.array()?);
                match fields.u8()? {
                    GONE => {}
                    length => drop(fields.bytes(usize::from(length))?),
                }
                Some(key)
            })()
            .filter(|key| before < Some(*key))
            .ok_or(CatalogueDamage::Malformed)?;
            before = Some(key);
            rows.push(at);
        }
        let block = Block { raw, rows };
        let ends = block.len().checked_sub(1).map(|last| (block.key(0), block.key(last)));
        match ends {
            Some(ends) if ends == (place.first, place.last) => Ok(block),
            _ => Err(CatalogueDamage::Malformed),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Bytes that it holds in memory.
    pub(super) fn size_bytes(&self) -> usize {
        self.raw.len() + self.rows.len() * 4
    }

    pub(super) fn key(&self, row: usize) -> Key {
        let at = self.rows[row] as usize;
        Key(self.raw[at..at + KEY_SIZE_BYTES].try_into().expect("decoded before"))
    }

    pub(super) fn value(&self, row: usize) -> Option<&[u8]> {
        let at = self.rows[row] as usize + KEY_SIZE_BYTES;
        match self.raw[at] {
            GONE => None,
            length => Some(&self.raw[at + 1..at + 1 + usize::from(length)]),
        }
    }

    /// The index of the first row whose key is not below `key`; [`len`](Self::len) if there is none.
    pub(super) fn seek(&self, key: Key) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle) < key { low = middle + 1 } else { high = middle }
        }
        low
    }
}
