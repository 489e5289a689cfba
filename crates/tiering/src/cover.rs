//! Whether other objects have the entries of an extent whose object is to go (T16).
//!
//! # Data flow
//! ```text
//! extent of an object that goes ─► its table
//!                                   └─► compared with the blocks of the extents that the catalogue has, which are read and verified
//!                                        └─► blocks with entries that differ are read of the object that goes, too
//! ```
//!
//! # Invariants
//! 1. Yes means that each entry of the range was read from the others, and is the same entry: of the same length and checksum, or equal but for
//!    the LAC (last add confirmed) and the digest ([`is_same_entry`]).
//! 2. The others are the objects that the catalogue names: the checksum of a footer is that of the reference. Each block and each table has the
//!    checksum that its footer says ([`ExtentEntries`](crate::entries::ExtentEntries)).
//! 3. A block of the others is read once, however many extents are compared with it, until [`READ_ENTRIES_MAX`] is reached: what was read of it then is
//!    what its table says. Only where entries differ it is read again.
//!
//! # Limits
//! Footers that are kept: those of [`Footers`]. Tables of extents of which blocks were read: [`READ_ENTRIES_MAX`]. Of one comparison the tables
//! of two extents, and two blocks.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bindery_types::EntryId;
use bindery_types::tier::{ObjectId, ObjectRef, TierExtent};
use bytes::Bytes;
use parking_lot::Mutex;

use crate::ClusterId;
use crate::entries::ExtentEntries;
use crate::footers::{FooterError, Footers};
use crate::object::{Extent, TableEntry};
use crate::store::Store;

/// Entries of tables that are remembered, 8 bytes each. Beyond that all are forgotten.
const READ_ENTRIES_MAX: usize = 1 << 20;
/// What an extent takes besides its table, counted in entries.
const EXTENT_ENTRIES: usize = 32;

/// Why other objects cannot be said to have the entries.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoverError {
    /// A part of an object cannot be read, or is damaged.
    #[error(transparent)]
    Read(#[from] FooterError),
    /// Both were read, and differ.
    #[error("entry {entry} of ledger {ledger} is another one in object {other} than in this one")]
    Differs {
        /// The ledger.
        ledger: bindery_types::LedgerId,
        /// The first entry that differs, or that the other object lacks.
        entry: EntryId,
        /// The other object.
        other: ObjectId,
    },
}

/// Compares extents of objects that are to go with what took them over, one after the other: a block of those that has entries of many
/// extents is read once.
pub struct Covers {
    footers: Footers,
    read: Mutex<ReadBlocks>,
}

/// Blocks that were read and verified.
#[derive(Default)]
struct ReadBlocks {
    /// By object and offset of the extent's table.
    extents: HashMap<(ObjectId, u64), ReadExtent>,
    entries: usize,
}

/// An extent of which blocks were read.
struct ReadExtent {
    table: Arc<[TableEntry]>,
    blocks: BTreeSet<usize>,
}

impl ReadBlocks {
    /// The table of an extent, if this block of it was read.
    fn table(&self, object: ObjectId, extent: &Extent, block: usize) -> Option<Arc<[TableEntry]>> {
        let read = self.extents.get(&(object, extent.table_offset))?;
        read.blocks.contains(&block).then(|| read.table.clone())
    }

    fn note(&mut self, object: ObjectId, extent: &Extent, block: usize, table: &Arc<[TableEntry]>) {
        if self.entries >= READ_ENTRIES_MAX {
            *self = ReadBlocks::default();
        }
        let read = self.extents.entry((object, extent.table_offset)).or_insert_with(|| {
            self.entries += table.len() + EXTENT_ENTRIES;
            ReadExtent { table: table.clone(), blocks: BTreeSet::new() }
        });
        read.blocks.insert(block);
    }
}

impl Covers {
    /// Nothing is read yet. What it reads it remembers: it is to be dropped before long.
    pub fn new(store: Store, cluster: ClusterId) -> Covers {
        Covers { footers: Footers::new(store, cluster), read: Mutex::default() }
    }

    fn entries_of(&self, object: &ObjectRef, extent: &Extent) -> ExtentEntries {
        let (store, cluster) = (self.footers.store().clone(), self.footers.cluster());
        ExtentEntries::new(store, cluster, *object, Arc::new(extent.clone()))
    }

    /// Compares an extent of `object` with what the catalogue has for its range: extents of other objects that cover it. `digest_bytes` is the
    /// length of the digest of the ledger's entries; without it copies have to be equal to the byte.
    pub async fn check(
        &self,
        object: &ObjectRef,
        extent: &Extent,
        others: &[TierExtent],
        digest_bytes: Option<usize>,
    ) -> Result<(), CoverError> {
        let table = self.footers.table(object, extent).await?;
        let mut own = Own { entries: self.entries_of(object, extent), block: None };
        for other in others.iter().filter(|other| other.last >= extent.first && other.first <= extent.last) {
            let differs =
                |entry| CoverError::Differs { ledger: extent.ledger, entry, other: other.object.id };
            let footer = self.footers.of(&other.object).await?;
            let mut of_ledger = footer.extents_of(extent.ledger);
            // The catalogue may have a part of an extent.
            let there = of_ledger.find(|there| there.first <= other.first && there.last >= other.last);
            let there = there.ok_or_else(|| differs(other.first))?;
            let mut entries = self.entries_of(&other.object, there);
            let mut next = Some(extent.first.max(other.first));
            let last = extent.last.min(other.last);
            while let Some(first) = next.filter(|next| *next <= last) {
                let block = there.block_of(first).ok_or_else(|| differs(first))?;
                let upto = there.last_of(block).min(last);
                let wanted = &table[places(extent, first, upto)];
                let read = self.read.lock().table(other.object.id, there, block);
                let is_read_so = read.is_some_and(|listed| listed[places(there, first, upto)] == *wanted);
                if !is_read_so {
                    entries.seek(first);
                    let (from, bodies) = entries.next().await.ok_or_else(|| differs(first))??;
                    let listed = entries.table().ok_or_else(|| differs(first))?;
                    self.read.lock().note(other.object.id, there, block, listed);
                    let bodies = bodies.iter().skip((first.get() - from.get()) as usize);
                    let listed = &listed[places(there, first, upto)];
                    for ((id, theirs), (ours, listed)) in
                        (first.get()..).zip(bodies).zip(wanted.iter().zip(listed))
                    {
                        if ours == listed {
                            continue;
                        }
                        let entry = EntryId::new(id).ok_or_else(|| differs(first))?;
                        let ours = own.entry(extent, entry).await?;
                        if !ours.is_some_and(|ours| is_same_entry(&ours, theirs, digest_bytes)) {
                            return Err(differs(entry));
                        }
                    }
                }
                next = EntryId::new(upto.get().saturating_add(1));
            }
        }
        Ok(())
    }
}

/// The places of entries of an extent in its table.
fn places(extent: &Extent, first: EntryId, last: EntryId) -> Range<usize> {
    let place = |entry: EntryId| (entry.get() - extent.first.get()) as usize;
    place(first)..place(last) + 1
}

/// The entries of the object that goes, with the block that was read last.
struct Own {
    entries: ExtentEntries,
    block: Option<(EntryId, Vec<Bytes>)>,
}

impl Own {
    async fn entry(&mut self, extent: &Extent, entry: EntryId) -> Result<Option<Bytes>, FooterError> {
        let place = |(from, block): &(EntryId, Vec<Bytes>)| {
            let at = usize::try_from(entry.get() - from.get()).ok()?;
            block.get(at).cloned()
        };
        if let Some(found) = self.block.as_ref().and_then(place) {
            return Ok(Some(found));
        }
        if extent.block_of(entry).is_none() {
            return Ok(None);
        }
        self.entries.seek(entry);
        if let Some(read) = self.entries.next().await {
            self.block = Some(read?);
        }
        Ok(self.block.as_ref().and_then(place))
    }
}

/// Whether two stored copies are of one entry: equal but for the LAC (last add confirmed), which a repair replaces, and the digest, which
/// covers it (docs/reference/protocol.md, section 3.1). Without the digest's length they have to be equal.
pub fn is_same_entry(one: &[u8], other: &[u8], digest_bytes: Option<usize>) -> bool {
    // Ledger, entry, LAC, length: 8 bytes each.
    const LAC: Range<usize> = 16..24;
    const HEADER_BYTES: usize = 32;
    let Some(payload) = digest_bytes.map(|digest| HEADER_BYTES + digest) else { return one == other };
    let parts = |stored: &'_ [u8]| -> Option<[Range<usize>; 3]> {
        (stored.len() >= payload).then_some([0..LAC.start, LAC.end..HEADER_BYTES, payload..stored.len()])
    };
    one.len() == other.len()
        && parts(one).is_some_and(|parts| parts.into_iter().all(|part| one[part.clone()] == other[part]))
}

#[cfg(test)]
mod tests {
    use bindery_types::LedgerId;
    use bindery_types::codec::crc32c;
    use bytes::Bytes;
    use futures_util::FutureExt;
    use object_store::memory::InMemory;
    use object_store::{ObjectStore, ObjectStoreExt, PutPayload};

    use super::*;
    use crate::object::{Compression, Footer, ObjectBuilder};

    /// How many requests there were, and of how many bytes.
    type Reads = Arc<Mutex<(usize, u64)>>;

    const CLUSTER: ClusterId = ClusterId::from_bytes([9; 16]);

    fn ledger() -> LedgerId {
        LedgerId::new(7).unwrap()
    }

    fn entry(id: i64) -> EntryId {
        EntryId::new(id).unwrap()
    }

    /// As a bookie stores it: ledger, entry, LAC, length, a digest of four bytes, payload.
    fn stored(id: i64, lac: u8, payload: u8) -> Bytes {
        let mut bytes = [7_i64.to_be_bytes(), id.to_be_bytes(), [lac; 8], [1; 8]].concat();
        bytes.extend_from_slice(&[lac; 4]);
        bytes.extend_from_slice(&[payload; 50]);
        bytes.into()
    }

    /// An object with one extent, whose entries have this LAC and payload.
    async fn put(
        store: &Arc<dyn ObjectStore>,
        number: u8,
        ids: std::ops::RangeInclusive<i64>,
        lac: u8,
        payload: impl Fn(i64) -> u8,
    ) -> (ObjectRef, Footer) {
        let object = ObjectId::new(5, [number; 10]);
        let mut builder = ObjectBuilder::new(object, CLUSTER, 5, Compression::None);
        builder.begin(ledger(), entry(*ids.start()), Bytes::from_static(b"metadata")).unwrap();
        for id in ids {
            let body = stored(id, lac, payload(id));
            let crc = crc32c(&[&body]);
            builder.append(body, crc).unwrap();
        }
        let (chunks, summary) = builder.finish();
        let key =
            object_store::path::Path::from(format!("p/{}", crate::catalogue::object_key(CLUSTER, object)));
        store.put(&key, PutPayload::from(chunks.concat())).await.unwrap();
        let footers = footers(store);
        let (reference, footer) = footers.of_found(object, summary.size_bytes).await.unwrap();
        footers.of(&reference).await.unwrap();
        (reference, footer)
    }

    fn footers(store: &Arc<dyn ObjectStore>) -> Footers {
        Footers::new(Store::new("s3://bucket/p".parse().unwrap(), store.clone()), CLUSTER)
    }

    fn covers(store: &Arc<dyn ObjectStore>) -> Covers {
        Covers::new(Store::new("s3://bucket/p".parse().unwrap(), store.clone()), CLUSTER)
    }

    /// The same, with its requests.
    fn counted(store: &Arc<dyn ObjectStore>) -> (Covers, Reads) {
        let reads = Reads::default();
        let of_requests = reads.clone();
        let account = move |bytes| {
            let mut reads = of_requests.lock();
            *reads = (reads.0 + 1, reads.1 + bytes);
            async {}.boxed()
        };
        let store = Store::new("s3://bucket/p".parse().unwrap(), store.clone()).with_account(account);
        (Covers::new(store, CLUSTER), reads)
    }

    fn range(object: &ObjectRef, first: i64, last: i64) -> TierExtent {
        TierExtent { first: entry(first), last: entry(last), object: *object }
    }

    fn plain(id: i64) -> u8 {
        id as u8
    }

    /// Invariant 1.
    #[tokio::test]
    async fn equal_tables_and_copies_of_the_same_entries_are_enough() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let (old, footer) = put(&store, 1, 10..=19, 3, plain).await;
        let extent = &footer.extents[0];
        let check =
            async |others: &[TierExtent], digest| covers(&store).check(&old, extent, others, digest).await;
        let (whole, _) = put(&store, 2, 10..=19, 3, plain).await;
        assert_eq!(check(&[range(&whole, 10, 19)], None).await, Ok(()));
        let (joined, _) = put(&store, 3, 0..=14, 3, plain).await;
        let (rest, _) = put(&store, 4, 15..=30, 3, plain).await;
        assert_eq!(check(&[range(&joined, 0, 14), range(&rest, 15, 30)], None).await, Ok(()));
        // A repair writes entries with another LAC, and so another digest.
        let (repaired, _) = put(&store, 5, 10..=19, 9, plain).await;
        assert_eq!(check(&[range(&repaired, 10, 19)], Some(4)).await, Ok(()));
        let differs =
            |entry, other: &ObjectRef| Err(CoverError::Differs { ledger: ledger(), entry, other: other.id });
        assert_eq!(check(&[range(&repaired, 10, 19)], None).await, differs(entry(10), &repaired));
        let (other, _) = put(&store, 6, 10..=19, 3, |id| if id == 17 { 0 } else { plain(id) }).await;
        assert_eq!(check(&[range(&other, 10, 19)], Some(4)).await, differs(entry(17), &other));
        // Only the range that the catalogue has there counts.
        assert_eq!(check(&[range(&other, 10, 16), range(&rest, 17, 30)], Some(4)).await, Ok(()));
    }

    /// Invariant 2.
    #[tokio::test]
    async fn another_object_than_the_catalogues_proves_nothing() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let (old, footer) = put(&store, 1, 10..=19, 3, plain).await;
        let (good, _) = put(&store, 2, 10..=19, 3, plain).await;
        let named = ObjectRef { footer_crc: good.footer_crc ^ 1, ..good };
        let (shorter, _) = put(&store, 3, 10..=18, 3, plain).await;
        let gone = ObjectRef { id: ObjectId::new(5, [9; 10]), ..good };
        let check = async |other: &ObjectRef| {
            let others = [range(other, 10, 19)];
            covers(&store).check(&old, &footer.extents[0], &others, Some(4)).await
        };
        assert!(matches!(check(&named).await, Err(CoverError::Read(FooterError::Other { .. }))));
        assert!(matches!(check(&shorter).await, Err(CoverError::Differs { .. })));
        assert!(matches!(check(&gone).await, Err(CoverError::Read(FooterError::Store(_)))));
        // A bit of a block is wrong: the footer and the table do not show it.
        let key =
            object_store::path::Path::from(format!("p/{}", crate::catalogue::object_key(CLUSTER, good.id)));
        let mut bytes = store.get(&key).await.unwrap().bytes().await.unwrap().to_vec();
        bytes[100] ^= 1;
        store.put(&key, PutPayload::from(bytes)).await.unwrap();
        assert!(matches!(check(&good).await, Err(CoverError::Read(FooterError::Object { .. }))));
    }

    /// Invariant 3.
    #[tokio::test]
    async fn entries_that_all_differ_cost_each_block_once() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let (old, footer) = put(&store, 1, 0..=9_999, 3, plain).await;
        let (repaired, there) = put(&store, 2, 0..=9_999, 9, plain).await;
        let (extent, there) = (&footer.extents[0], &there.extents[0]);
        let (covers, reads) = counted(&store);
        let others = [range(&repaired, 0, 9_999)];
        covers.check(&old, extent, &others, Some(4)).await.unwrap();
        let (requests, bytes) = *reads.lock();
        // Besides, the footer of the other and three tables: the own one was read for itself.
        assert_eq!(requests, 4 + extent.blocks.len() + there.blocks.len());
        assert!(bytes < old.length_bytes + repaired.length_bytes + extent.table_size_bytes(), "{bytes}");
    }

    /// Invariant 3: eight extents became one, and each block of that is read once. One that has other entries is found nevertheless.
    #[tokio::test]
    async fn extents_that_were_joined_cost_each_block_of_the_others_once() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let mut old = Vec::new();
        for n in 0..8_u8 {
            let first = i64::from(n) * 10;
            let payload = move |id: i64| if n == 6 && id == 65 { 0 } else { plain(id) };
            old.push(put(&store, n, first..=first + 9, 3, payload).await);
        }
        let (joined, there) = put(&store, 99, 0..=79, 3, plain).await;
        let (covers, reads) = counted(&store);
        for (n, (object, footer)) in old.iter().enumerate() {
            let others = [range(&joined, 0, 79)];
            let outcome = covers.check(object, &footer.extents[0], &others, Some(4)).await;
            let differs = CoverError::Differs { ledger: ledger(), entry: entry(65), other: joined.id };
            assert_eq!(outcome, if n == 6 { Err(differs) } else { Ok(()) }, "{n}");
        }
        let tables: u64 = old.iter().map(|(_, footer)| footer.extents[0].table_size_bytes()).sum();
        let own = &old[6].1.extents[0];
        let there = &there.extents[0];
        let block =
            |extent: &Extent| extent.table_size_bytes() + u64::from(extent.blocks[0].stored_size_bytes);
        // Where an entry differs, both blocks are looked at.
        let footer = joined.length_bytes - joined.footer_offset;
        assert_eq!(*reads.lock(), (8 + 1 + 3 * 2, tables + footer + 2 * block(there) + block(own)));
    }

    #[test]
    fn copies_of_one_entry_differ_in_lac_and_digest_only() {
        let entry = |lac: u8, length: u8, digest: u8, payload: &[u8]| {
            let fields = [vec![1; 16], vec![lac; 8], vec![length; 8], vec![digest; 4], payload.to_vec()];
            fields.concat()
        };
        let one = entry(1, 2, 3, b"payload");
        assert!(is_same_entry(&one, &entry(9, 2, 9, b"payload"), Some(4)), "as a repair writes it");
        assert!(!is_same_entry(&one, &entry(9, 2, 9, b"another"), Some(4)));
        assert!(!is_same_entry(&one, &entry(9, 2, 9, b"longer than it"), Some(4)));
        assert!(!is_same_entry(&one, &entry(1, 9, 3, b"payload"), Some(4)));
        assert!(
            !is_same_entry(&one, &entry(9, 2, 9, b"payload"), None),
            "where the payload begins is not known"
        );
        assert!(!is_same_entry(&one[..33], &one[..33], Some(4)), "too short for an entry");
    }
}
