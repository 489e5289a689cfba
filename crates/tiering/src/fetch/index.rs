//! Footers and blocks as they are kept in memory.

use bindery_types::tier::ObjectRef;
use bindery_types::{EntryId, LedgerId};
use bytes::Bytes;

use super::FetchError;
use crate::object::{BlockEntry, Compression, Extent, Footer, ObjectError};

/// In addition to the bytes of an entry: the handle that refers to them.
const ENTRY_OVERHEAD_BYTES: u64 = size_of::<Bytes>() as u64;
/// For the place of an index or a block in its map.
const ITEM_OVERHEAD_BYTES: u64 = 256;

/// Where everything is in an object. The metadata of its ledgers is not kept.
#[derive(Debug)]
pub struct Index {
    footer: Footer,
    cost_bytes: u64,
}

impl Index {
    pub fn new(mut footer: Footer) -> Index {
        footer.ledgers = Default::default();
        footer.extents.iter_mut().for_each(|extent| extent.blocks.shrink_to_fit());
        footer.extents.shrink_to_fit();
        let of_extents: u64 = footer
            .extents
            .iter()
            .map(|extent| (size_of::<Extent>() + extent.blocks.capacity() * size_of::<BlockEntry>()) as u64)
            .sum();
        Index { footer, cost_bytes: of_extents + ITEM_OVERHEAD_BYTES }
    }

    /// Memory that it takes.
    pub fn cost_bytes(&self) -> u64 {
        self.cost_bytes
    }

    /// The extent that holds this entry of the ledger, if the object has one.
    pub fn extent_of(&self, ledger: LedgerId, entry: EntryId) -> Option<&Extent> {
        let extents = &self.footer.extents;
        let behind = extents.partition_point(|extent| (extent.ledger, extent.first) <= (ledger, entry));
        let extent = extents.get(behind.checked_sub(1)?)?;
        (extent.ledger == ledger && entry <= extent.last).then_some(extent)
    }

    /// As [`Index::extent_of`], with the number of the block in it. If there is none, the object is not what its reference says.
    pub fn place_of(
        &self,
        object: &ObjectRef,
        ledger: LedgerId,
        entry: EntryId,
    ) -> Result<(&Extent, usize), FetchError> {
        let place = self
            .extent_of(ledger, entry)
            .and_then(|extent| extent.block_of(entry).map(|block| (extent, block)));
        place.ok_or_else(|| FetchError::Different {
            object: object.id,
            difference: format!("its footer has no entry {entry} of ledger {ledger}").into(),
        })
    }
}

/// Memory for the footer of an object while it is read and decoded: its bytes, and up to three times as much for extents and
/// blocks in vectors that grow. The index that is kept takes less.
pub fn footer_cost_bytes(object: &ObjectRef) -> u64 {
    let bytes = object.length_bytes.saturating_sub(object.footer_offset);
    bytes.saturating_mul(4).saturating_add(ITEM_OVERHEAD_BYTES)
}

/// Memory that a block takes in the cache.
pub fn block_cost_bytes(extent: &Extent, block: usize) -> u64 {
    let place = &extent.blocks[block];
    let entries = (extent.last_of(block).get() - place.first.get()) as u64 + 1;
    u64::from(place.raw_size_bytes) + entries * ENTRY_OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES
}

/// Memory that is needed in addition to [`block_cost_bytes`] while blocks are read and decoded: one compressed block at a time.
pub fn decoding_cost_bytes(blocks: &[BlockEntry]) -> u64 {
    let compressed = blocks.iter().filter(|block| block.compression != Compression::None);
    compressed.map(|block| u64::from(block.stored_size_bytes)).max().unwrap_or(0)
}

/// Some neighbouring blocks of an extent, as an extent of their own.
pub fn cut(extent: &Extent, first: usize, count: usize) -> Extent {
    let blocks = &extent.blocks[first..first + count];
    Extent {
        ledger: extent.ledger,
        first: blocks[0].first,
        last: extent.last_of(first + count - 1),
        blocks: blocks.to_vec(),
        ..*extent
    }
}

/// The entries of a block.
#[derive(Debug)]
pub struct Block {
    pub first: EntryId,
    pub entries: Vec<Bytes>,
}

impl Block {
    /// One of its entries.
    pub fn entry(&self, entry: EntryId) -> Option<&Bytes> {
        let index = entry.get().checked_sub(self.first.get())?;
        usize::try_from(index).ok().and_then(|index| self.entries.get(index))
    }
}

pub fn damaged(object: &ObjectRef, error: ObjectError) -> FetchError {
    FetchError::Damaged { object: object.id, error }
}
