//! The entries of one extent of a committed object, one block after the other, for moving them to another object.
//!
//! # Invariants
//! 1. An entry is returned only if its block has the checksum that the footer says, and the entry has its own ids and the length and
//!    checksum that the extent's table says. The table has the checksum that the footer says.
//!
//! # Limits     the extent's table, and one block

use std::sync::Arc;

use bindery_types::EntryId;
use bindery_types::codec::crc32c;
use bindery_types::tier::ObjectRef;
use bytes::Bytes;
use tokio::task::spawn_blocking;

use crate::ClusterId;
use crate::catalogue::object_key;
use crate::footers::FooterError;
use crate::object::{Extent, ObjectError, TableEntry, decode_block, decode_table};
use crate::store::Store;

/// Reads one extent.
pub struct ExtentEntries {
    store: Store,
    name: String,
    object: ObjectRef,
    extent: Arc<Extent>,
    table: Option<Arc<[TableEntry]>>,
    /// The number of the next block, and how many entries come before it.
    block: usize,
    before: usize,
}

/// A block: its first entry, and its entries as they are stored.
pub type Entries = (EntryId, Vec<Bytes>);

impl ExtentEntries {
    /// Nothing is read yet. The extent is one of the object's footer, as [`Footers`](crate::footers::Footers) gives it.
    pub fn new(store: Store, cluster: ClusterId, object: ObjectRef, extent: Arc<Extent>) -> ExtentEntries {
        let name = object_key(cluster, object.id);
        ExtentEntries { store, name, object, extent, table: None, block: 0, before: 0 }
    }

    /// Goes on with the block that has this entry of the extent.
    ///
    /// # Panics
    /// When the extent does not have it.
    pub fn seek(&mut self, entry: EntryId) {
        let block = self.extent.block_of(entry).expect("an entry of the extent");
        self.block = block;
        self.before = (self.extent.blocks[block].first.get() - self.extent.first.get()) as usize;
    }

    /// Length and checksum of each entry of the extent, once a block was read: what was returned has them.
    pub fn table(&self) -> Option<&Arc<[TableEntry]>> {
        self.table.as_ref()
    }

    /// The next block; `None` after the last one. A call that is cancelled loses nothing: the next one returns the same block.
    ///
    /// # Errors
    /// When the store does not answer, or the object is damaged. The same block comes again with the next call.
    pub async fn next(&mut self) -> Option<Result<Entries, FooterError>> {
        if self.block == self.extent.blocks.len() {
            return None;
        }
        let read = self.read().await;
        if let Ok((_, entries)) = &read {
            self.block += 1;
            self.before += entries.len();
        }
        Some(read)
    }

    async fn read(&mut self) -> Result<Entries, FooterError> {
        let id = self.object.id;
        let damaged = |error| FooterError::Object { object: id, error };
        let table = match &self.table {
            Some(table) => table.clone(),
            None => {
                let extent = self.extent.clone();
                let bytes = self.range(extent.table_offset, extent.table_size_bytes()).await?;
                let decoded = run(move || decode_table(&extent, &bytes)).await.map_err(damaged)?;
                self.table.insert(decoded.into()).clone()
            }
        };
        let (extent, at, before) = (self.extent.clone(), self.block, self.before);
        let place = extent.blocks[at];
        let stored = self.range(place.offset, u64::from(place.stored_size_bytes)).await?;
        let entries = run(move || decode(&extent, at, stored, &table[before..])).await.map_err(damaged)?;
        Ok((place.first, entries))
    }

    async fn range(&self, offset: u64, size: u64) -> Result<Bytes, FooterError> {
        // What lies behind the extents is the footer.
        let end = self.object.footer_offset;
        Ok(self.store.read_part(&self.name, offset..offset.saturating_add(size), end).await?)
    }
}

/// Does work that takes a while, checksums and decompression, on a thread that may block, so that it holds up no task of the runtime. A
/// panic of the work is passed on.
async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Decodes block `at` and checks its entries (invariant 1). `table` begins with the item of the block's first entry.
fn decode(
    extent: &Extent,
    at: usize,
    stored: Bytes,
    table: &[TableEntry],
) -> Result<Vec<Bytes>, ObjectError> {
    let entries = decode_block(extent, at, stored)?;
    let is_as_listed = |(entry, listed): (&Bytes, &TableEntry)| {
        listed.size_bytes as usize == entry.len() && listed.crc32c == crc32c(&[entry])
    };
    match entries.len() <= table.len() && entries.iter().zip(table).all(is_as_listed) {
        true => Ok(entries),
        false => Err(ObjectError::Damaged {
            part: "block",
            offset: extent.blocks[at].offset,
            problem: "an entry in it is not as its table says",
        }),
    }
}

#[cfg(test)]
mod tests {
    use bindery_types::LedgerId;
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use object_store::{ObjectStore, ObjectStoreExt};

    use super::*;
    use crate::footers::Footers;
    use crate::object::{Compression, ObjectBuilder};
    use crate::{ClusterId, ObjectId};

    const CLUSTER: ClusterId = ClusterId::from_bytes([3; 16]);

    fn body(id: i64) -> Bytes {
        let fields = [5, id, id - 1, 4].map(i64::to_be_bytes).concat();
        Bytes::from([&fields[..], &vec![id as u8; 1000][..]].concat())
    }

    /// An object with three blocks of ledger 5, from entry 7 on.
    async fn world(compression: Compression) -> (Arc<dyn ObjectStore>, Store, ObjectRef, Path) {
        let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let store = Store::new("s3://bucket".parse().unwrap(), inner.clone());
        let id = ObjectId::new(1, [1; 10]);
        let mut builder = ObjectBuilder::new(id, CLUSTER, 5, compression);
        builder
            .begin(LedgerId::new(5).unwrap(), EntryId::new(7).unwrap(), Bytes::from_static(b"metadata"))
            .unwrap();
        for at in 7..2507 {
            let body = body(at);
            let crc = crc32c(&[&body]);
            builder.append(body, crc).unwrap();
        }
        let (chunks, summary) = builder.finish();
        let key = store.key(&object_key(CLUSTER, id));
        inner.put(&key, Bytes::from(chunks.concat()).into()).await.unwrap();
        let object = ObjectRef {
            id,
            length_bytes: summary.size_bytes,
            footer_offset: summary.trailer.footer_offset,
            footer_crc: summary.trailer.footer_crc32c,
            etag_crc: 0,
        };
        (inner, store, object, key)
    }

    async fn reader(store: &Store, object: ObjectRef) -> ExtentEntries {
        let footer = Footers::new(store.clone(), CLUSTER).of(&object).await.unwrap();
        ExtentEntries::new(store.clone(), CLUSTER, object, Arc::new(footer.extents[0].clone()))
    }

    #[tokio::test]
    async fn all_entries_come_back_in_their_order() {
        for compression in [Compression::None, Compression::Zstd] {
            let (_, store, object, _) = world(compression).await;
            let mut reader = reader(&store, object).await;
            let (mut next, mut blocks) = (7, 0);
            while let Some(block) = reader.next().await {
                let (first, entries) = block.unwrap();
                assert_eq!(first.get(), next);
                for entry in entries {
                    assert_eq!(entry, body(next));
                    next += 1;
                }
                blocks += 1;
            }
            assert_eq!((next, blocks, reader.next().await), (2507, 3, None));
        }
    }

    /// Invariant 1: a bit of a block or of the table is an error, and no entry of that block comes.
    #[tokio::test]
    async fn a_bit_that_flipped_is_an_error() {
        let (inner, store, object, key) = world(Compression::None).await;
        let good = inner.get(&key).await.unwrap().bytes().await.unwrap().to_vec();
        let place = reader(&store, object).await.extent.clone();
        for (at, blocks) in [(place.blocks[1].offset + 2000, 1), (place.table_offset + 3, 0)] {
            let mut bytes = good.clone();
            bytes[at as usize] ^= 1;
            inner.put(&key, bytes.into()).await.unwrap();
            let mut reader = reader(&store, object).await;
            for _ in 0..blocks {
                assert!(reader.next().await.unwrap().is_ok());
            }
            for _ in 0..2 {
                let error = reader.next().await.unwrap().unwrap_err();
                assert!(error.to_string().contains("damaged"), "{error}");
            }
        }
    }
}
