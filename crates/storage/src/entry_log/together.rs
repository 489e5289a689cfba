//! Entries that are read together: neighbours of a run whose bodies stand one behind the other, so that one search of
//! the index and one read of the file bring them all.
//!
//! # Data flow
//! ```text
//! LogView::coverage -> the only run that has first..=until -> locate_together (index) -> FoundRun -> read (bodies)
//! ```
//!
//! # Invariants
//! 1. Each body is verified as if it were read alone: CRC, then the ids inside.
//! 2. Nothing is reported from here: after a failure the caller reads again, entry by entry, and that tells which entry
//!    is damaged.
//!
//! # Limits
//! [`TOGETHER_ENTRIES_MAX`] entries; as many bytes as the caller says. Only of runs without a gap that are in memory, and
//! where no other run reaches: entries of striped ledgers, of ledgers that a log on disk may have more of, and those that
//! were written twice are read one by one.

use super::format::{EntryLocation, Extent, Place, RECORD_SIZE};
use super::read::{Ahead, EntryLog, Patience};
use crate::TryReadError;
use bindery_types::{EntryId, LedgerId};
use std::sync::Arc;

/// Most entries that are read together.
pub const TOGETHER_ENTRIES_MAX: u32 = 64;

/// Consecutive entries of a ledger, found and not yet read.
pub struct FoundRun {
    log: Arc<EntryLog>,
    ledger: LedgerId,
    first: EntryId,
    /// One behind the other, without a gap; never empty.
    locations: Vec<EntryLocation>,
}

impl FoundRun {
    /// Bytes of each entry, in order: known before a byte of them is loaded.
    pub fn lengths(&self) -> impl ExactSizeIterator<Item = usize> {
        self.locations.iter().map(|location| location.length as usize)
    }

    /// The bodies from number `from` of the run on, as what is about to be read.
    ///
    /// # Panics
    /// When the run has not so many.
    pub fn ahead(&self, from: usize) -> Ahead {
        let rest = &self.locations[from..];
        let length = rest.iter().map(|location| u64::from(location.length)).sum();
        Ahead { log: self.log.clone(), offset: rest[0].offset, length }
    }

    /// Reads `count` entries, from number `from` of the run on, into `buffer`, and gives their bodies in order, each
    /// verified when its turn comes, up to the first that is not as it was written: none after a failure. `None` when
    /// that takes a wait that `patience` rules out.
    ///
    /// # Panics
    /// When the run has not so many, or `count` is 0.
    pub fn read<'a>(
        &'a self,
        from: usize,
        count: usize,
        buffer: &'a mut Vec<u8>,
        patience: Patience,
    ) -> Option<impl Iterator<Item = &'a [u8]>> {
        let mut locations = &self.locations[from..from + count];
        buffer.resize(locations.iter().map(|location| location.length as usize).sum(), 0);
        match self.log.read_bodies(locations[0].offset, buffer, patience) {
            Err(TryReadError::WouldBlock) => return None,
            Err(TryReadError::Failed(_)) => locations = &[],
            Ok(()) => {}
        }
        let mut rest = &buffer[..];
        Some(locations.iter().enumerate().map_while(move |(number, location)| {
            let (body, behind) = rest.split_at(location.length as usize);
            rest = behind;
            let entry = self.first.get() + (from + number) as i64;
            let entry = EntryId::new(entry).expect("an entry that was found has an id");
            self.log.verify_body(location, self.ledger, entry, body).ok().map(|()| body)
        }))
    }
}

impl EntryLog {
    /// Where the entries from `first` to `last` of a run without gaps stand: as many as lie together within
    /// `bytes_max`, the first whatever its length.
    ///
    /// # Panics
    /// When `extent` is of another log, or not a run of stride 1 that has them.
    pub(crate) fn locate_together(
        self: &Arc<Self>,
        extent: &Extent,
        (first, last): (EntryId, EntryId),
        bytes_max: usize,
        patience: Patience,
    ) -> Result<FoundRun, TryReadError> {
        assert_eq!(extent.log_id, self.log_id(), "an extent is read from its own log");
        let (Place::At(from), Place::At(to)) = (extent.place(first), extent.place(last)) else {
            panic!("the run has both ends");
        };
        assert!(extent.stride == 1 && from <= to, "the run has no gaps");
        let count = (to - from + 1).min(TOGETHER_ENTRIES_MAX);
        let mut records = [0; TOGETHER_ENTRIES_MAX as usize * RECORD_SIZE];
        let records = &mut records[..count as usize * RECORD_SIZE];
        self.read_records(extent, from, records, patience)?;
        let mut locations: Vec<EntryLocation> = Vec::with_capacity(count as usize);
        let mut bytes = 0;
        for (place, record) in (from..).zip(records.chunks_exact(RECORD_SIZE)) {
            let location = self.decode_record(record, extent, place).map_err(|e| self.distrust(e))?.location;
            bytes += location.length as usize;
            let end = locations.last().map(|before| before.offset + u64::from(before.length));
            if end.is_some_and(|end| end != location.offset || bytes > bytes_max) {
                break;
            }
            locations.push(location);
        }
        Ok(FoundRun { log: self.clone(), ledger: extent.ledger, first, locations })
    }
}
