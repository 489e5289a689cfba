//! Entries that are read together: neighbours of a run whose bodies stand one behind the other, or near, so that one search
//! of the index and one read of the file bring them all.
//!
//! Of a striped ledger a reader wants every third entry, say, and a run has those beside others, which another reader asks
//! for, or none. What lies between two that are wanted is read and not looked at, if it is short.
//!
//! # Data flow
//! ```text
//! LogView::coverage -> the only run that may have first..=until -> locate_together (index) -> FoundRun -> read (bodies)
//! ```
//!
//! # Invariants
//! 1. Each body is verified as if it were read alone: CRC, then the ids inside.
//! 2. Nothing is reported from here: after a failure the caller reads again, entry by entry, and that tells which entry
//!    is damaged.
//!
//! # Limits
//! [`TOGETHER_ENTRIES_MAX`] entries, and as many index records; as many bytes as the caller says, what lies between included.
//! Only of runs that are in memory, where no other run reaches, and for consecutive entries of runs without a gap: entries of
//! ledgers that a log on disk may have more of, and those that were written twice are read one by one.

use super::format::{EntryLocation, Extent, RECORD_SIZE};
use super::read::{Ahead, EntryLog, Patience};
use crate::TryReadError;
use bindery_types::{EntryId, LedgerId};
use std::sync::Arc;

/// Most entries that are read together.
pub const TOGETHER_ENTRIES_MAX: u32 = 64;

/// Longest stretch between two bodies that is read with them: copying it takes about as long as a read of its own would.
const BETWEEN_BYTES_MAX: u64 = 8 << 10;

/// Entries of a ledger that follow one another by a step, found and not yet read.
pub struct FoundRun {
    log: Arc<EntryLog>,
    ledger: LedgerId,
    first: EntryId,
    /// From one entry to the next.
    step: u32,
    /// Ascending in the file, no more than [`BETWEEN_BYTES_MAX`] apart; never empty.
    locations: Vec<EntryLocation>,
}

/// The bytes of the file from the first of these bodies to the end of the last one.
fn span_of(locations: &[EntryLocation]) -> (u64, usize) {
    let (first, last) = (&locations[0], &locations[locations.len() - 1]);
    (first.offset, (last.offset - first.offset) as usize + last.length as usize)
}

impl FoundRun {
    /// Bytes of each entry, in order: known before a byte of them is loaded.
    pub fn lengths(&self) -> impl ExactSizeIterator<Item = usize> {
        self.locations.iter().map(|location| location.length as usize)
    }

    /// Bytes of the file from the first of `count` bodies to the end of the last one: what a read of them brings.
    ///
    /// # Panics
    /// When the run has not so many, or `count` is 0.
    pub fn span_bytes(&self, count: usize) -> usize {
        span_of(&self.locations[..count]).1
    }

    /// The bodies from number `from` of the run on, as what is about to be read.
    ///
    /// # Panics
    /// When the run has not so many.
    pub fn ahead(&self, from: usize) -> Ahead {
        let (offset, length) = span_of(&self.locations[from..]);
        Ahead { log: self.log.clone(), offset, length: length as u64 }
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
        let (begin, span_bytes) = span_of(locations);
        buffer.resize(span_bytes, 0);
        match self.log.read_bodies(begin, buffer, patience) {
            Err(TryReadError::WouldBlock) => return None,
            Err(TryReadError::Failed(_)) => locations = &[],
            Ok(()) => {}
        }
        let read = &buffer[..];
        Some(locations.iter().enumerate().map_while(move |(number, location)| {
            let at = (location.offset - begin) as usize;
            let body = &read[at..at + location.length as usize];
            let entry = self.first.get() + (from + number) as i64 * i64::from(self.step);
            let entry = EntryId::new(entry).expect("an entry that was found has an id");
            self.log.verify_body(location, self.ledger, entry, body).ok().map(|()| body)
        }))
    }
}

impl EntryLog {
    /// Where every `step`th entry from `first` to `last` of a run stands: as many as lie together within `bytes_max`, the first
    /// whatever its length, up to the first that the run lacks. `None` when that is the first.
    ///
    /// # Panics
    /// When `extent` is of another log, or `step` is 0.
    pub(crate) fn locate_together(
        self: &Arc<Self>,
        extent: &Extent,
        (first, last): (EntryId, EntryId),
        step: u32,
        bytes_max: usize,
        patience: Patience,
    ) -> Result<Option<FoundRun>, TryReadError> {
        assert_eq!(extent.log_id, self.log_id(), "an extent is read from its own log");
        assert!(step > 0, "a step leads on");
        let Some(from) = self.find_place(extent, first, patience)? else { return Ok(None) };
        // No two records are of the same entry.
        let ids = last.get().abs_diff(first.get()).saturating_add(1);
        let most = u64::from(TOGETHER_ENTRIES_MAX.min(extent.count - from));
        let count = ids.min(most) as u32;
        let mut records = [0; TOGETHER_ENTRIES_MAX as usize * RECORD_SIZE];
        let records = &mut records[..count as usize * RECORD_SIZE];
        self.read_records(extent, from, records, patience)?;
        let mut locations: Vec<EntryLocation> = Vec::with_capacity(count as usize);
        let mut wanted = first.get();
        for (place, record) in (from..).zip(records.chunks_exact(RECORD_SIZE)) {
            let record = self.decode_record(record, extent, place).map_err(|e| self.distrust(e))?;
            if record.entry.get() < wanted {
                continue;
            }
            if record.entry.get() > wanted {
                break;
            }
            let location = record.location;
            if let (Some(begin), Some(before)) = (locations.first(), locations.last()) {
                let between = location.offset.checked_sub(before.offset + u64::from(before.length));
                let is_near = between.is_some_and(|between| between <= BETWEEN_BYTES_MAX);
                let fits = |begin| location.offset + u64::from(location.length) - begin <= bytes_max as u64;
                if !is_near || !fits(begin.offset) {
                    break;
                }
            }
            locations.push(location);
            let next = wanted.checked_add(i64::from(step)).filter(|next| *next <= last.get());
            let Some(next) = next else { break };
            wanted = next;
        }
        let is_there = !locations.is_empty();
        Ok(is_there.then(|| FoundRun { log: self.clone(), ledger: extent.ledger, first, step, locations }))
    }
}
