//! Builds an object from a stream of entries, in bounded memory.

use std::collections::BTreeMap;

use bindery_types::codec::{Crc32c, Put};
use bindery_types::{EntryId, LedgerId};
use bytes::Bytes;

use super::block::{OpenBlock, is_entry};
use super::{
    BlockEntry, Compression, ENTRY_BYTES_MAX, Extent, FOOTER_BYTES_MAX, FOOTER_BYTES_TARGET, Footer, Header,
    METADATA_BYTES_MAX, TABLE_ENTRY_SIZE_BYTES, TRAILER_SIZE_BYTES, Trailer,
};
use crate::{ClusterId, ObjectId};

/// Why an entry was not taken. The object is as it was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Its bytes are not those of this entry of this ledger.
    #[error("the bytes of entry {entry} of ledger {ledger} carry other ids")]
    OtherEntry {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
    },
    /// It is longer than [`ENTRY_BYTES_MAX`].
    #[error("entry {entry} of ledger {ledger} has {size_bytes} bytes, and an object takes up to {max}", max = ENTRY_BYTES_MAX)]
    TooLarge {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
        /// Its length.
        size_bytes: usize,
    },
    /// The metadata is longer than [`METADATA_BYTES_MAX`].
    #[error("the metadata of ledger {ledger} has {size_bytes} bytes, and an object takes up to {max}", max = METADATA_BYTES_MAX)]
    MetadataTooLarge {
        /// The ledger.
        ledger: LedgerId,
        /// Its length.
        size_bytes: usize,
    },
    /// The footer would be longer than [`FOOTER_BYTES_MAX`]: finish this object, and put the entry into the next one.
    #[error("the object is full: its footer is as long as it may be")]
    Full,
}

/// A finished object, for its commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectSummary {
    /// Its id.
    pub object: ObjectId,
    /// Its length.
    pub size_bytes: u64,
    /// CRC32C of all its bytes.
    pub crc32c: u32,
    /// Where its footer is.
    pub trailer: Trailer,
    /// The ledgers and extents in it.
    pub footer: Footer,
}

struct OpenExtent {
    ledger: LedgerId,
    first: EntryId,
    last: EntryId,
    body_bytes: u64,
    blocks: Vec<BlockEntry>,
    block: OpenBlock,
    block_first: EntryId,
    table: Vec<u8>,
}

/// Takes entries ledger by ledger and gives the object's bytes in chunks.
pub struct ObjectBuilder {
    object: ObjectId,
    compression: Compression,
    position: u64,
    crc: Crc32c,
    chunks: Vec<Bytes>,
    chunk_bytes: usize,
    open: Option<OpenExtent>,
    extents: Vec<Extent>,
    block_count: usize,
    ledgers: BTreeMap<LedgerId, Bytes>,
    metadata_bytes: usize,
}

impl ObjectBuilder {
    /// An object without entries.
    pub fn new(
        object: ObjectId,
        cluster: ClusterId,
        built_ms: u64,
        compression: Compression,
    ) -> ObjectBuilder {
        let mut builder = ObjectBuilder {
            object,
            compression,
            position: 0,
            crc: Crc32c::new(),
            chunks: Vec::new(),
            chunk_bytes: 0,
            open: None,
            extents: Vec::new(),
            block_count: 0,
            ledgers: BTreeMap::new(),
            metadata_bytes: 0,
        };
        builder.put(Bytes::copy_from_slice(&Header { object, cluster, built_ms }.encode()));
        builder
    }

    /// Begins the entries of a ledger at `first`. `metadata` is what the metadata store holds of it; of several extents of one
    /// ledger, the last one's counts.
    ///
    /// # Panics
    /// When an extent of the ledger in this object ends at or behind `first`.
    pub fn begin(&mut self, ledger: LedgerId, first: EntryId, metadata: Bytes) -> Result<(), AppendError> {
        let size_bytes = metadata.len();
        if size_bytes > METADATA_BYTES_MAX {
            return Err(AppendError::MetadataTooLarge { ledger, size_bytes });
        }
        self.end();
        if self.footer_size_bytes(1, size_bytes, 1, 1) > FOOTER_BYTES_MAX {
            return Err(AppendError::Full);
        }
        // Most ledgers come once: only those that were here before are searched for.
        let last = self.ledgers.get(&ledger).and_then(|_| {
            let before = self.extents.iter().filter(|extent| extent.ledger == ledger);
            before.map(|extent| extent.last).max()
        });
        assert!(
            last < Some(first),
            "ledger {ledger}: an extent from {first} after one that ends with {last:?}"
        );
        self.metadata_bytes += size_bytes;
        if let Some(older) = self.ledgers.insert(ledger, metadata) {
            self.metadata_bytes -= older.len();
        }
        self.open = Some(OpenExtent {
            ledger,
            first,
            last: first,
            body_bytes: 0,
            blocks: Vec::new(),
            block: OpenBlock::default(),
            block_first: first,
            table: Vec::new(),
        });
        Ok(())
    }

    /// Adds the next entry of the ledger that was begun: the stored bytes, and their CRC32C.
    ///
    /// # Panics
    /// When no ledger was begun.
    pub fn append(&mut self, body: Bytes, crc32c: u32) -> Result<(), AppendError> {
        let is_footer_full = self.footer_size_bytes(0, 0, 0, 2) > FOOTER_BYTES_MAX;
        let open = self.open.as_mut().expect("entries come after the beginning of their ledger");
        let entry = match open.table.is_empty() {
            true => open.first,
            false => EntryId::new(open.last.get() + 1).expect("no ledger ends with the largest id"),
        };
        let ledger = open.ledger;
        let size_bytes = body.len();
        if size_bytes > ENTRY_BYTES_MAX {
            return Err(AppendError::TooLarge { ledger, entry, size_bytes });
        }
        if !is_entry(&body, ledger, entry) {
            return Err(AppendError::OtherEntry { ledger, entry });
        }
        if is_footer_full {
            return Err(AppendError::Full);
        }
        if open.block.entries() == 0 {
            open.block_first = entry;
        }
        let length = u32::try_from(size_bytes).expect("below the limit");
        Put(&mut open.table).u32(length).u32(crc32c);
        open.last = entry;
        open.body_bytes += u64::from(length);
        open.block.push(body);
        if open.block.is_full() {
            self.close_block();
        }
        Ok(())
    }

    /// Length of the object if it were finished now without compressing what is open.
    pub fn size_bytes(&self) -> u64 {
        let footer = self.footer_size_bytes(0, 0, 1, 1);
        self.position + self.open_bytes() as u64 + footer + TRAILER_SIZE_BYTES as u64
    }

    /// Whether it is to be finished: it has as many bytes as it should, or its footer has, which readers keep in memory.
    pub fn has_reached(&self, target_bytes: u64) -> bool {
        self.size_bytes() >= target_bytes || self.footer_size_bytes(0, 0, 0, 0) >= FOOTER_BYTES_TARGET
    }

    /// Bytes that are held: to be taken, and not yet in a block or table.
    pub fn held_bytes(&self) -> usize {
        self.chunk_bytes + self.open_bytes()
    }

    /// Of the extent that is open.
    fn open_bytes(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.block.raw_size_bytes() + open.table.len())
    }

    /// The bytes that follow those taken before.
    pub fn take(&mut self) -> Vec<Bytes> {
        self.chunk_bytes = 0;
        std::mem::take(&mut self.chunks)
    }

    /// Whether there is an entry in it.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty() && self.open.as_ref().is_none_or(|open| open.table.is_empty())
    }

    /// The last bytes of the object, and what it is.
    ///
    /// # Panics
    /// Without an entry: nobody wants an object of nothing.
    pub fn finish(mut self) -> (Vec<Bytes>, ObjectSummary) {
        self.end();
        assert!(!self.extents.is_empty(), "an object without entries");
        let mut extents = std::mem::take(&mut self.extents);
        extents.sort_unstable_by_key(|extent| (extent.ledger, extent.first));
        // A ledger that was begun and got no entry.
        self.ledgers.retain(|ledger, _| extents.binary_search_by(|extent| extent.ledger.cmp(ledger)).is_ok());
        let footer = Footer { ledgers: std::mem::take(&mut self.ledgers), extents };
        let bytes = Bytes::from(footer.encode());
        let footer_size_bytes = bytes.len() as u64;
        assert!(footer_size_bytes <= FOOTER_BYTES_MAX, "entries are refused before the footer is too long");
        let footer_offset = self.position;
        let trailer = Trailer {
            object: self.object,
            footer_offset,
            footer_size_bytes,
            footer_crc32c: bindery_types::codec::crc32c(&[&bytes]),
            object_size_bytes: footer_offset + footer_size_bytes + TRAILER_SIZE_BYTES as u64,
        };
        self.put(bytes);
        self.put(Bytes::copy_from_slice(&trailer.encode()));
        let chunks = self.take();
        let (size_bytes, crc32c) = (self.position, self.crc.value());
        (chunks, ObjectSummary { object: self.object, size_bytes, crc32c, trailer, footer })
    }

    /// Length of the footer with so many parts more than are finished.
    fn footer_size_bytes(&self, ledgers: usize, metadata_bytes: usize, extents: usize, blocks: usize) -> u64 {
        let of_open = self.open.as_ref().map_or((0, 0), |open| (1, open.blocks.len() + 1));
        Footer::size_bytes(
            self.ledgers.len() + ledgers,
            self.metadata_bytes + metadata_bytes,
            self.extents.len() + of_open.0 + extents,
            self.block_count + of_open.1 + blocks,
        ) as u64
    }

    fn put(&mut self, bytes: Bytes) {
        self.position += bytes.len() as u64;
        self.chunk_bytes += bytes.len();
        self.crc.update(&bytes);
        self.chunks.push(bytes);
    }

    fn close_block(&mut self) {
        let Some(open) = &mut self.open else { return };
        if open.block.entries() == 0 {
            return;
        }
        let stored = open.block.close(self.compression);
        open.blocks.push(BlockEntry {
            first: open.block_first,
            offset: self.position,
            stored_size_bytes: stored.stored_size_bytes,
            raw_size_bytes: stored.raw_size_bytes,
            crc32c: stored.crc32c,
            compression: stored.compression,
        });
        stored.parts.into_iter().for_each(|part| self.put(part));
    }

    /// Ends the extent that is open, which is nothing when it has no entries.
    fn end(&mut self) {
        self.close_block();
        let Some(open) = self.open.take() else { return };
        if open.blocks.is_empty() {
            return;
        }
        self.block_count += open.blocks.len();
        let table = Bytes::from(open.table);
        debug_assert_eq!(table.len() % TABLE_ENTRY_SIZE_BYTES, 0);
        self.extents.push(Extent {
            ledger: open.ledger,
            first: open.first,
            last: open.last,
            body_bytes: open.body_bytes,
            table_offset: self.position,
            table_crc32c: bindery_types::codec::crc32c(&[&table]),
            blocks: open.blocks,
        });
        self.put(table);
    }
}
