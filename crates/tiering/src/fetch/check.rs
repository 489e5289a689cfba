//! Before a local copy is dropped: does the store still hold the object that was committed, and does that hold the same
//! entries (T19)?
//!
//! # Data flow
//! ```text
//! footer (its checksum is in the reference) ─► table ─► compared with the local records
//!                                              some blocks, read back ─► compared with the table
//!                                              blocks of entries that differ, read back ─► compared with the local copies
//! ```
//! Each answer has the length of the object. One request reads the footer for all extents of the object that are checked.
//!
//! Two good copies of an entry may differ: repair of a ledger writes its entries with another LAC (last add confirmed), and so
//! under another digest (docs/reference/protocol.md). The local side says whether two copies are the same entry.
//!
//! # Invariants
//! 1. [`Fetcher::check`] succeeds only when all of it agrees: length of the object, its id and the checksum of its footer,
//!    length and checksum of every entry that the caller compared, or the entry itself, and those of every entry in the blocks
//!    that were read. The content decides, not the entity tag: a copy of the bucket has other tags.
//! 2. It takes one slot at a time, and only when no reader wants it, and keeps a piece of the table or one block in memory.
//! 3. A store that does not answer is not a difference: the check is repeated another time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bindery_types::codec::{Crc32c, crc32c};
use bindery_types::tier::{ObjectRef, TierExtent};
use bindery_types::{EntryId, LedgerId};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::core::{Got, SlotId, WaiterId};
use super::fetcher::{Callback, Inner, no_answer};
use super::index::{Index, block_cost_bytes, cut, damaged, decoding_cost_bytes, footer_cost_bytes};
use super::{FetchError, Fetcher};
use crate::object::{Extent, ObjectError, TABLE_ENTRY_SIZE_BYTES, TableEntry};

/// Entries of a table that are compared at once.
const PIECE_ENTRIES: usize = 8_192;

/// Why a copy in the tier was not found to be good.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The object is missing, damaged or foreign, or the store could not be asked: see [`FetchError::is_alarm`].
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The entry in the object is not the one that this bookie holds.
    #[error("object {object}: entry {entry} of ledger {ledger} is not the one that this bookie holds")]
    OtherEntry {
        /// The object.
        object: bindery_types::tier::ObjectId,
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
    },
    /// The local copies could not be read.
    #[error("the local copies of ledger {ledger} cannot be compared: {reason}")]
    Local {
        /// The ledger.
        ledger: LedgerId,
        /// Why.
        reason: String,
    },
}

impl CheckError {
    /// True when copy and original differ, or the copy is bad: a person must look. Otherwise the check is to be repeated.
    pub fn is_alarm(&self) -> bool {
        match self {
            CheckError::Fetch(error) => error.is_alarm(),
            CheckError::OtherEntry { .. } => true,
            CheckError::Local { .. } => false,
        }
    }
}

/// How much a check compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checked {
    /// Entries in the range that was checked.
    pub entries: u64,
    /// Of these, read back from the store.
    pub entries_read: u64,
    /// Blocks that were read back.
    pub blocks_read: u64,
}

/// The local records of a ledger, with which the caller compares.
pub trait LocalRecords: Send {
    /// Compares the entries from `first` on with what the object says of them, as far as they are held here. Returns those of
    /// another length or checksum.
    fn compare(&mut self, first: EntryId, table: &[TableEntry]) -> Result<Vec<EntryId>, LocalDifference>;

    /// Compares a whole entry, as the object has it, with the one that is held here, if one is.
    fn compare_entry(&mut self, entry: EntryId, stored: &[u8]) -> Result<(), LocalDifference>;
}

/// How a comparison failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalDifference {
    /// The local copy of this entry is not the same entry.
    Entry(EntryId),
    /// The local records could not be read.
    Unreadable(String),
}

impl Fetcher {
    /// Compares the copy of `extent` in the tier with the local records. `samples` is given the number of blocks, and says
    /// which to read back.
    pub async fn check(
        &self,
        ledger: LedgerId,
        extent: &TierExtent,
        samples: impl FnOnce(usize) -> Vec<usize>,
        local: &mut dyn LocalRecords,
    ) -> Result<Checked, CheckError> {
        let result = self.check_parts(ledger, extent, samples, local).await;
        if result.as_ref().is_err_and(CheckError::is_alarm) {
            self.inner().with_core(|core, _, _| core.count_alarm());
        }
        result
    }

    async fn check_parts(
        &self,
        ledger: LedgerId,
        wanted: &TierExtent,
        samples: impl FnOnce(usize) -> Vec<usize>,
        local: &mut dyn LocalRecords,
    ) -> Result<Checked, CheckError> {
        let object = &wanted.object;
        let index = self.index_of(object).await?;
        let (extent, _) = index.place_of(object, ledger, wanted.first)?;
        if wanted.last > extent.last {
            let difference = format!("its footer has no entry {} of ledger {ledger} there", wanted.last);
            return Err(FetchError::Different { object: object.id, difference: difference.into() }.into());
        }
        let mut samples: Vec<usize> = samples(extent.blocks.len());
        samples.retain(|at| *at < extent.blocks.len());
        samples.sort_unstable();
        samples.dedup();
        // Of all blocks, not of the samples alone, so that no local copy is dropped whose block is too large to be read back.
        let largest = (0..extent.blocks.len())
            .map(|at| block_cost_bytes(extent, at) + decoding_cost_bytes(&extent.blocks[at..=at]));
        // A piece of the table: its bytes, and its items.
        let table_bytes = PIECE_ENTRIES * TABLE_ENTRY_SIZE_BYTES * 2;
        let memory = largest.max().unwrap_or(0) + table_bytes as u64;
        let slot = Slot::wait(self.inner(), object, memory).await?;
        let Compared { mut expected, doubtful } =
            slot.run(async |bytes| self.compare_table(ledger, wanted, extent, local, bytes).await).await?;
        expected.retain(|at, _| doubtful.contains(at) || samples.binary_search(at).is_ok());
        let mut checked =
            Checked { entries: (wanted.last.get() - wanted.first.get()) as u64 + 1, ..Checked::default() };
        for (at, expected) in expected {
            let slot = Slot::wait(self.inner(), object, memory).await?;
            let mut compare = BlockComparison { wanted, extent, at, expected, local: None };
            if doubtful.contains(&at) {
                compare.local = Some(&mut *local);
            }
            checked.entries_read +=
                slot.run(async move |bytes| self.compare_block(compare, bytes).await).await?;
            checked.blocks_read += 1;
        }
        Ok(checked)
    }

    /// The object's index, from the cache, or else read for this check.
    async fn index_of(&self, object: &ObjectRef) -> Result<Arc<Index>, FetchError> {
        if let Some(index) = self.inner().with_core(|core, _, _| core.index(object)) {
            return Ok(index);
        }
        let slot = Slot::wait(self.inner(), object, footer_cost_bytes(object)).await?;
        let index = slot.run(async |bytes| self.inner().bucket.index(object, bytes).await).await?;
        self.inner().with_core(|core, now_ns, out| core.keep_index(now_ns, object, index.clone(), out));
        Ok(index)
    }

    /// Compares the table with the local records.
    async fn compare_table(
        &self,
        ledger: LedgerId,
        wanted: &TierExtent,
        extent: &Extent,
        local: &mut dyn LocalRecords,
        bytes: &mut u64,
    ) -> Result<Compared, CheckError> {
        let object = &wanted.object;
        let size = extent.table_size_bytes();
        let mut body = self.inner().bucket.get(object, extent.table_offset, size).await?;
        let (mut crc, mut sum, mut at) = (Crc32c::new(), 0_u64, extent.first.get());
        let mut expected: BTreeMap<usize, Crc32c> = BTreeMap::new();
        let mut doubtful = BTreeSet::new();
        let mut left = extent.entries();
        while left > 0 {
            let count = left.min(PIECE_ENTRIES as u64) as usize;
            let piece = body.next(count * TABLE_ENTRY_SIZE_BYTES).await?;
            *bytes += piece.len() as u64;
            crc.update(&piece);
            let entries = table_entries(&piece);
            sum += entries.iter().map(|entry| u64::from(entry.size_bytes)).sum::<u64>();
            for (id, entry) in (at..).zip(&entries) {
                if let Some(block) = EntryId::new(id).and_then(|id| extent.block_of(id)) {
                    add(expected.entry(block).or_default(), entry);
                }
            }
            let from = wanted.first.get().max(at);
            let until = (wanted.last.get() + 1).min(at + count as i64);
            if let Some(first) = EntryId::new(from).filter(|_| from < until) {
                let part = &entries[(from - at) as usize..(until - at) as usize];
                let differ =
                    local.compare(first, part).map_err(|difference| difference.of(object, ledger))?;
                doubtful.extend(differ.into_iter().filter_map(|entry| extent.block_of(entry)));
            }
            at += count as i64;
            left -= count as u64;
        }
        let wrong = |problem| {
            let error = ObjectError::Damaged { part: "table", offset: extent.table_offset, problem };
            Err(CheckError::Fetch(damaged(object, error)))
        };
        if crc.value() != extent.table_crc32c {
            return wrong("its checksum does not match");
        }
        if sum != extent.body_bytes {
            return wrong("the lengths in it do not fit its extent");
        }
        let expected = expected.into_iter().map(|(block, crc)| (block, crc.value())).collect();
        Ok(Compared { expected, doubtful })
    }

    /// Reads a block back; returns how many entries it has.
    async fn compare_block(
        &self,
        BlockComparison { wanted, extent, at, expected, local }: BlockComparison<'_>,
        bytes: &mut u64,
    ) -> Result<u64, CheckError> {
        let object = &wanted.object;
        let block = &extent.blocks[at];
        let size = u64::from(block.stored_size_bytes);
        let mut body = self.inner().bucket.get(object, block.offset, size).await?;
        let entries = body.block(&cut(extent, at, 1), 0).await??.entries;
        *bytes += size;
        let mut found = Crc32c::new();
        for entry in &entries {
            let size_bytes = u32::try_from(entry.len()).expect("an entry within its limit");
            add(&mut found, &TableEntry { size_bytes, crc32c: crc32c(&[entry]) });
        }
        if found.value() != expected {
            let problem = "an entry in it is not as its table says";
            let error = ObjectError::Damaged { part: "block", offset: block.offset, problem };
            return Err(damaged(object, error).into());
        }
        if let Some(local) = local {
            for (id, entry) in (block.first.get()..).zip(&entries) {
                if let Some(id) = EntryId::new(id).filter(|id| wanted.contains(*id)) {
                    let compared = local.compare_entry(id, entry);
                    compared.map_err(|difference| difference.of(object, extent.ledger))?;
                }
            }
        }
        Ok(entries.len() as u64)
    }
}

/// A block of an extent that is to be read back.
struct BlockComparison<'a> {
    wanted: &'a TierExtent,
    extent: &'a Extent,
    at: usize,
    /// Checksum of its part of the table.
    expected: u32,
    /// The copies with which its entries are compared, if they are.
    local: Option<&'a mut dyn LocalRecords>,
}

/// The table of an extent, compared.
struct Compared {
    /// A checksum of its part for each block.
    expected: BTreeMap<usize, u32>,
    /// Blocks with entries that have another length or checksum here.
    doubtful: BTreeSet<usize>,
}

impl LocalDifference {
    fn of(self, object: &ObjectRef, ledger: LedgerId) -> CheckError {
        match self {
            LocalDifference::Entry(entry) => CheckError::OtherEntry { object: object.id, ledger, entry },
            LocalDifference::Unreadable(reason) => CheckError::Local { ledger, reason },
        }
    }
}

/// Adds an item of a table to a checksum.
fn add(crc: &mut Crc32c, entry: &TableEntry) {
    crc.update(&entry.size_bytes.to_le_bytes());
    crc.update(&entry.crc32c.to_le_bytes());
}

fn table_entries(bytes: &[u8]) -> Vec<TableEntry> {
    let (entries, _) = bytes.as_chunks::<TABLE_ENTRY_SIZE_BYTES>();
    let field = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let entry = |bytes: &[u8; TABLE_ENTRY_SIZE_BYTES]| TableEntry {
        size_bytes: field(&bytes[..4]),
        crc32c: field(&bytes[4..]),
    };
    entries.iter().map(entry).collect()
}

/// A slot for one request, and memory for it. Dropped, it goes back.
struct Slot {
    inner: Arc<Inner>,
    id: Option<SlotId>,
}

/// A place in the line for a slot, which is given up when the waiting future is dropped.
struct Line<'a> {
    inner: &'a Arc<Inner>,
    id: Option<WaiterId>,
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            drop(self.inner.with_core(|core, now_ns, out| core.cancel(now_ns, id, out)));
        }
    }
}

impl Slot {
    /// Waits for a slot and `bytes` of memory, after all readers (invariant 2); dropping the future gives up its place. Fails when the
    /// fetcher stops, when `bytes` is more than all of its memory (for which the error blames `object`), and while the store cannot be
    /// reached.
    async fn wait(inner: &Arc<Inner>, object: &ObjectRef, bytes: u64) -> Result<Slot, FetchError> {
        let (tell, told) = oneshot::channel();
        let on: Callback = Box::new(move |inner, outcome| {
            let slot = outcome.map(|got| match got {
                Got::Slot(id) => Slot { inner: inner.clone(), id: Some(id) },
                Got::Entry(_) => unreachable!("who asks for a slot gets no entry"),
            });
            // Without a waiter left, the slot goes back as it is dropped.
            drop(tell.send(slot));
        });
        let id = inner.with_core(|core, now_ns, out| core.slot(now_ns, (object, bytes), on, out));
        let line = Line { inner, id };
        let slot = told.await.unwrap_or(Err(FetchError::Stopped));
        drop(line);
        slot
    }

    /// Sends a request, within the time that one may take, and gives the slot back.
    async fn run<T, E: From<FetchError> + AsFetchError>(
        mut self,
        request: impl AsyncFnOnce(&mut u64) -> Result<T, E>,
    ) -> Result<T, E> {
        let within = self.inner.options.request_timeout;
        let (began, mut bytes) = (Instant::now(), 0);
        let result = match timeout(within, request(&mut bytes)).await {
            Ok(result) => result,
            Err(_) => Err(E::from(no_answer(within))),
        };
        let outcome = match result.as_ref().err().and_then(AsFetchError::as_fetch_error) {
            Some(FetchError::Unreachable { reason }) => Err(reason.clone()),
            _ => Ok(()),
        };
        let took_ns = began.elapsed().as_nanos() as u64;
        if let Some(id) = self.id.take() {
            self.inner.with_core(|core, now_ns, out| {
                core.count_request(bytes, took_ns);
                core.slot_done(now_ns, id, Some(outcome), out);
            });
        }
        result
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.inner.with_core(|core, now_ns, out| core.slot_done(now_ns, id, None, out));
        }
    }
}

/// The part of an error that tells whether the store can be reached.
trait AsFetchError {
    fn as_fetch_error(&self) -> Option<&FetchError>;
}

impl AsFetchError for FetchError {
    fn as_fetch_error(&self) -> Option<&FetchError> {
        Some(self)
    }
}

impl AsFetchError for CheckError {
    fn as_fetch_error(&self) -> Option<&FetchError> {
        match self {
            CheckError::Fetch(error) => Some(error),
            CheckError::OtherEntry { .. } | CheckError::Local { .. } => None,
        }
    }
}
