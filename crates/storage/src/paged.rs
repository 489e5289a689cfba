//! A log whose extents stay on disk, and the index that finds them in its footer.
//!
//! # Data flow
//! ```text
//! extents in memory -> PagedIndex -> dropped;   look-up: index -> one block of the footer (block cache) -> extent
//! ```

use crate::entry_log::{FOOTER_BLOCK_EXTENTS, IndexedRun, PagedIndex, waited};
use crate::{EntryLog, Extent, Generation, Patience, ReadError, TryReadError};
use bindery_types::{EntryId, LedgerId};
use std::sync::Arc;

/// A log and its index. Keeps the log readable while it lives.
#[derive(Clone)]
pub struct PagedLog {
    pub(crate) log: Arc<EntryLog>,
    pub(crate) index: Arc<PagedIndex>,
    /// Logs that came to be on disk later have higher ones.
    pub(crate) number: u64,
}

impl PagedLog {
    /// The log.
    pub fn log(&self) -> &Arc<EntryLog> {
        &self.log
    }

    /// No run of it is newer.
    pub fn newest(&self) -> Generation {
        self.log.generation()
    }

    /// The run that reaches the entry, as the index has it: nothing is read.
    pub fn reached(&self, ledger: LedgerId, entry: EntryId) -> Option<IndexedRun> {
        self.index.runs_within(ledger, entry, entry).next()
    }

    /// True for the offset in the log's file at which the block of the footer begins that has the run.
    pub fn is_listed_at(&self, run: &IndexedRun, offset: u64) -> bool {
        let block = run.number / FOOTER_BLOCK_EXTENTS;
        self.log.footer_extents_offset(block * FOOTER_BLOCK_EXTENTS) == offset
    }

    /// The run that may hold the entry.
    ///
    /// # Errors
    /// Its block of the footer cannot be read, or not without a wait for the disk.
    pub fn find(
        &self,
        ledger: LedgerId,
        entry: EntryId,
        patience: Patience,
    ) -> Result<Option<Extent>, TryReadError> {
        let Some(number) = self.index.find(ledger, entry) else { return Ok(None) };
        let extent = self.extent(number, patience)?;
        Ok(extent.may_hold(entry).then_some(extent))
    }

    /// The runs of a ledger with entries in `first..=last`, ascending. Blocks on the disk.
    pub(crate) fn runs_between(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
    ) -> Result<Vec<Extent>, ReadError> {
        let runs = self.index.runs_within(ledger, first, last);
        runs.map(|run| self.extent(run.number, Patience::Wait).map_err(waited)).collect()
    }

    /// A run by its number.
    pub(crate) fn extent(&self, number: usize, patience: Patience) -> Result<Extent, TryReadError> {
        let (block, place) = (number / FOOTER_BLOCK_EXTENTS, number % FOOTER_BLOCK_EXTENTS);
        let begin = block * FOOTER_BLOCK_EXTENTS;
        let count = FOOTER_BLOCK_EXTENTS.min(self.index.len() - begin);
        let checksum = self.index.checksum(block);
        self.log.with_footer_extents(begin, count, checksum, patience, |extent_at| extent_at(place))
    }
}
