//! The runs of a log, as its footer lists them: all in memory, or found by a [`PagedIndex`], or gone through in order.

use super::FOOTER_BLOCK_EXTENTS;
use super::format::Extent;
use super::paged_index::{IndexedRun, PagedIndex, PagedIndexBuilder};
use super::read::{EntryLog, FooterReader, Patience, waited};
use crate::ReadError;
use bindery_io::is_shortage;
use std::collections::VecDeque;
use std::sync::Arc;

/// The index of the runs of a log.
pub(crate) enum LogIndex {
    /// All of them.
    Resident(Vec<Extent>),
    /// While it is being built.
    Building(Box<PagedIndexBuilder>),
    /// The index of the footer's blocks.
    Paged(PagedIndex),
}

impl Default for LogIndex {
    fn default() -> LogIndex {
        LogIndex::Resident(Vec::new())
    }
}

impl LogIndex {
    /// Adds a run; all of a log are resident or none is.
    pub(super) fn push(&mut self, run: Extent, is_resident: bool) {
        match self {
            LogIndex::Resident(extents) if is_resident => extents.push(run),
            LogIndex::Building(builder) => builder.push(&run),
            LogIndex::Resident(_) | LogIndex::Paged(_) => {
                let mut builder = Box::<PagedIndexBuilder>::default();
                builder.push(&run);
                *self = LogIndex::Building(builder);
            }
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            LogIndex::Resident(extents) => (extents.capacity() * size_of::<Extent>()) as u64,
            LogIndex::Building(builder) => builder.bytes(),
            LogIndex::Paged(index) => index.bytes(),
        }
    }

    pub(super) fn finish(self) -> LogIndex {
        match self {
            LogIndex::Building(builder) => builder.finish().map_or_else(LogIndex::default, LogIndex::Paged),
            done => done,
        }
    }
}

/// Goes through the runs of a log, ascending by (ledger, first), with some of them in memory.
///
/// A run is what the footer says; that the footer is the one that was written is known at the end, which is an error when
/// it is not. One that goes by the index of a log verifies each block of the footer by itself, and passes over those that it cannot
/// read: [`RunCursor::take_unreadable`].
pub struct RunCursor {
    log: Arc<EntryLog>,
    /// `None` once the footer was read to its end.
    footer: Option<FooterReader>,
    /// The index that it goes by, and the next block.
    indexed: Option<(Arc<PagedIndex>, usize)>,
    read: VecDeque<Extent>,
    unreadable: Vec<IndexedRun>,
}

/// Most runs that a cursor passes over at a time.
const UNREADABLE_MAX: usize = 4096;

impl RunCursor {
    pub(super) fn new(log: Arc<EntryLog>) -> Result<RunCursor, ReadError> {
        let footer = Some(FooterReader::begin(&*log.file, &log.path, &log.trailer)?);
        let mut cursor =
            RunCursor { log, footer, indexed: None, read: VecDeque::new(), unreadable: Vec::new() };
        cursor.fill()?;
        Ok(cursor)
    }

    /// By the index of the log, block by block.
    pub(crate) fn indexed(log: Arc<EntryLog>, index: Arc<PagedIndex>) -> Result<RunCursor, ReadError> {
        let indexed = Some((index, 0));
        let mut cursor =
            RunCursor { log, footer: None, indexed, read: VecDeque::new(), unreadable: Vec::new() };
        cursor.fill()?;
        Ok(cursor)
    }

    /// Of runs that are known, without a look at the footer.
    pub(super) fn of(log: Arc<EntryLog>, runs: Vec<Extent>) -> RunCursor {
        RunCursor { log, footer: None, indexed: None, read: runs.into(), unreadable: Vec::new() }
    }

    /// The next run, which stays.
    pub fn peek(&self) -> Option<&Extent> {
        self.read.front()
    }

    /// Takes the next run.
    ///
    /// # Errors
    /// The next runs cannot be read, or, at the end, the footer is not the one written: none of the runs counts then.
    pub fn take(&mut self) -> Result<Option<Extent>, ReadError> {
        let run = self.read.pop_front();
        self.fill()?;
        Ok(run)
    }

    /// Takes the runs that are in memory: some, unless none is left. Errors as [`RunCursor::take`].
    pub fn take_some(&mut self) -> Result<Vec<Extent>, ReadError> {
        let some = std::mem::take(&mut self.read).into();
        self.fill()?;
        Ok(some)
    }

    /// The runs that were passed over since the last call, because their block of the footer cannot be read, or is not the one written.
    /// A caller for whom each run counts asks after the cursor was made, and after each run that it takes.
    pub fn take_unreadable(&mut self) -> Vec<IndexedRun> {
        std::mem::take(&mut self.unreadable)
    }

    /// Reads the next block of the footer that can be read.
    fn fill_by_index(&mut self) -> Result<(), ReadError> {
        while self.read.is_empty()
            && let Some((index, block)) = &mut self.indexed
        {
            let begin = *block * FOOTER_BLOCK_EXTENTS;
            let count = index.len().saturating_sub(begin).min(FOOTER_BLOCK_EXTENTS);
            if count == 0 {
                self.indexed = None;
                break;
            }
            let checksum = index.checksum(*block);
            let runs = self.log.with_footer_extents(begin, count, checksum, Patience::Wait, |extent_at| {
                (0..count).map(extent_at).collect::<Result<Vec<Extent>, ReadError>>()
            });
            match runs.map_err(waited) {
                Ok(runs) => self.read.extend(runs),
                Err(ReadError::Disk(error)) if is_shortage(&error.source) => return Err(error.into()),
                Err(error) if self.unreadable.len() + count > UNREADABLE_MAX => return Err(error),
                Err(_) => self.unreadable.extend(index.runs_from(begin, count)),
            }
            *block += 1;
        }
        Ok(())
    }

    fn fill(&mut self) -> Result<(), ReadError> {
        if !self.read.is_empty() {
            return Ok(());
        }
        self.fill_by_index()?;
        let Some(mut footer) = self.footer.take() else { return Ok(()) };
        let log = &self.log;
        if footer.decoder.left() > 0 {
            footer.read_on(&*log.file, &log.path, |run| self.read.push_back(run))?;
        }
        if footer.decoder.left() > 0 {
            self.footer = Some(footer);
        } else {
            footer.decoder.finish(&log.path)?;
        }
        Ok(())
    }
}
