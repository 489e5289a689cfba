//! Looks at every copy of every entry of a ledger: is it where it should be, and are all equal.
//!
//! # Data flow
//! ```text
//! part of the ledger: [bookie | bookie | bookie]  each asked for all of its copies (`copies`)
//!        '--> as far as all came: copies of each entry, side by side --> tally (`core`) --> report
//! ```
//! The metadata alone says which bookies to ask: no choice by health, no hedge, no other replica instead.
//!
//! # Invariants
//! 1. Each entry of the range is counted once, with a copy of each bookie of its write set, in order (`core`).
//! 2. Faults are compared with current metadata, at most [`METADATA_AGE_MAX`] old: an entry whose write set changed
//!    meanwhile is checked again, so that repair and ensemble changes under way are no faults.
//! 3. A bookie that cannot be asked is asked again [`ASKED_AGAIN_AFTER`] later at the earliest; until then its copies
//!    count as unreachable. So a bookie that is gone does not hold up the check of the others.
//!
//! # Limits     one part at a time: `copies::PART_BYTES` (and what is under way) for each bookie of the write set, counted by the
//! client's read budget; when that is used up, parts are of one entry

mod copies;
mod core;
mod report;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use std::time::Duration;

use bindery_types::{BookieId, EntryId};
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::copies::{Copies, PART_BYTES, Part};
use self::core::{Copy, Tally};
pub use self::report::{CopyCounts, FINDINGS_MAX, Fault, Finding, VerifyReport};
use crate::error::ReadError;
use crate::reader::{LedgerReader, ReaderState, Replicas};
use crate::transport::BookieError;

/// Entries of a part.
const PART_ENTRIES_MAX: u64 = 1024;
/// A part has at most so many times the entries of the one before it.
const GROWTH: u64 = 8;
/// See invariant 3.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// How long metadata counts as read just now.
const METADATA_AGE_MAX: Duration = Duration::from_secs(1);
/// How often to check one part again because of changes.
const CHANGES_MAX: u32 = 16;

/// A look at every copy, one step after the other; see [`LedgerReader::verify`](crate::LedgerReader::verify).
pub struct Verification {
    state: Arc<ReaderState>,
    /// The next entry to look at, or one behind the last.
    next: i64,
    last: i64,
    part_entries: u64,
    tally: Tally,
    /// Those that could not be asked: since when, and why.
    silent: HashMap<BookieId, (Instant, BookieError)>,
    /// When the metadata was compared last.
    compared_at: Option<Instant>,
    changes: u32,
}

impl LedgerReader {
    /// Checks every copy of the entries `first..=last` (`None`: up to the end, or to the LAC, last add confirmed, of an
    /// open ledger): it asks each bookie of an entry's write set for its own copy.
    ///
    /// ```no_run
    /// # async fn example(reader: bindery_client::LedgerReader) -> Result<(), bindery_client::ReadError> {
    /// let mut look = reader.verify(bindery_client::EntryId::FIRST, None).await?;
    /// while look.step().await? {
    ///     println!("{} entries", look.report().entries);
    /// }
    /// for finding in &look.report().findings {
    ///     println!("{finding}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ReadError::BeyondEnd`] when `last` is behind the end; when that cannot be found.
    pub async fn verify(&self, first: EntryId, last: Option<EntryId>) -> Result<Verification, ReadError> {
        Verification::new(self.state().clone(), first, last).await
    }
}

impl Verification {
    async fn new(
        state: Arc<ReaderState>,
        first: EntryId,
        last: Option<EntryId>,
    ) -> Result<Verification, ReadError> {
        if let Some(entry) = last
            && !state.reaches(entry).await?
        {
            return Err(ReadError::BeyondEnd { ledger: state.id, entry, last: state.lac() });
        }
        let end = state.lac();
        let last = last.or(end).filter(|last| first <= *last);
        let ack_quorum_size = state.replicas().metadata.quorum.ack_quorum_size();
        let tally = Tally::new(state.id, state.end().is_some(), ack_quorum_size, first, last);
        Ok(Verification {
            next: first.get(),
            last: last.map_or(first.get() - 1, EntryId::get),
            part_entries: 1,
            tally,
            state,
            silent: HashMap::new(),
            compared_at: None,
            changes: 0,
        })
    }

    /// What was found so far.
    pub fn report(&self) -> &VerifyReport {
        self.tally.report()
    }

    /// What was found, at the end.
    pub fn into_report(self) -> VerifyReport {
        self.tally.into_report()
    }

    /// Looks at some more entries; false when there are none left. Dropped, it can be called again.
    ///
    /// # Errors
    /// When the ledger was deleted, its metadata cannot be read, or the client was closed; never because of a bookie.
    pub async fn step(&mut self) -> Result<bool, ReadError> {
        if self.state.shared.is_closed() {
            return Err(ReadError::ClientClosed);
        }
        if self.next > self.last {
            return Ok(false);
        }
        let replicas = self.state.replicas();
        let found = self.look(&replicas).await;
        let is_faulty = found.iter().any(|(_, copies)| !copies.iter().all(is_sound));
        if is_faulty && self.has_changed(&replicas, &found).await? {
            // Invariant 2.
            return Ok(true);
        }
        self.changes = 0;
        for (entry, copies) in found {
            let bookies = replicas.metadata.write_set(entry);
            self.tally.count(entry, &bookies.zip(copies).collect::<Vec<_>>());
            match entry.get().checked_add(1) {
                Some(next) => self.next = next,
                // The last entry there can be.
                None => self.last = self.next - 1,
            }
        }
        Ok(true)
    }

    /// Asks for the copies of a part; those of its first entries, by the positions of their write sets.
    async fn look(&mut self, replicas: &Arc<Replicas>) -> Vec<(EntryId, Vec<Copy>)> {
        let metadata = &replicas.metadata;
        let quorum = metadata.quorum;
        let first = EntryId::new(self.next).expect("an entry of the range");
        let Some(segment) = metadata.segments().iter().rfind(|segment| segment.first_entry <= first) else {
            // Metadata that names nobody for it.
            return vec![(first, Vec::new())];
        };
        let later = metadata.segments().iter().find(|segment| segment.first_entry > first);
        let end = later.map_or(self.last, |later| self.last.min(later.first_entry.get() - 1));
        let budget = &self.state.shared.read_budget;
        let part_bytes = PART_BYTES * quorum.write_quorum_size() as u64;
        let permit = budget.try_acquire(part_bytes.min(budget.capacity() / 2));
        let part_entries = if permit.is_some() { self.part_entries } else { 1 };
        let count = part_entries.min((end - self.next) as u64 + 1);
        let entries: Vec<EntryId> = (self.next..=end).take(count as usize).filter_map(EntryId::new).collect();

        let is_whole = quorum.ensemble_size() == quorum.write_quorum_size();
        let now = Instant::now();
        self.silent.retain(|_, (since, _)| now - *since < ASKED_AGAIN_AFTER);
        // For each position: the entries to ask for, and the copies that came.
        let mut parts: Vec<(Vec<EntryId>, Vec<Copy>)> = Vec::with_capacity(segment.ensemble.len());
        // Dropped with this future.
        let mut reads = JoinSet::new();
        for (position, bookie) in segment.ensemble.iter().enumerate() {
            let own = entries.iter().copied().filter(|entry| quorum.is_in_write_set(*entry, position));
            let own: Vec<EntryId> = own.collect();
            let copies = match self.silent.get(bookie) {
                Some((_, error)) => vec![Copy::Unreachable(error.clone()); own.len()],
                None => Vec::new(),
            };
            if copies.len() < own.len() {
                let part = Part {
                    transport: self.state.shared.transport.clone(),
                    codec: self.state.codec.clone(),
                    ledger: self.state.id,
                    bookie: bookie.clone(),
                    entries: own.clone(),
                    is_batch: is_whole && own.len() > 1 && self.state.batches.are_wanted(),
                };
                reads.spawn(async move { (position, part.read().await) });
            }
            parts.push((own, copies));
        }
        while let Some(read) = reads.join_next().await {
            let (position, Copies { copies, knows_batches }) = match read {
                Ok(read) => read,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            };
            if !knows_batches {
                self.state.batches.pause();
            }
            if copies.iter().all(|copy| matches!(copy, Copy::Unreachable(_)))
                && let Some(Copy::Unreachable(error)) = copies.first()
            {
                self.silent.insert(segment.ensemble[position].clone(), (Instant::now(), error.clone()));
            }
            parts[position].1 = copies;
        }
        self.plan_next(&parts, count);
        // As far as all came.
        let missing = parts.iter().filter_map(|(own, copies)| own.get(copies.len()));
        let until = missing.min().copied();
        let mut parts: Vec<_> = parts.into_iter().map(|(_, copies)| copies.into_iter()).collect();
        let complete = entries.into_iter().take_while(|entry| until.is_none_or(|until| *entry < until));
        complete
            .map(|entry| {
                let copies = quorum.write_set(entry).map(|position| parts[position].next());
                (entry, copies.map(|copy| copy.expect("it came")).collect())
            })
            .collect()
    }

    /// How many entries the next part has: as many as fit the bytes of a part, by the largest mean of this one.
    fn plan_next(&mut self, parts: &[(Vec<EntryId>, Vec<Copy>)], count: u64) {
        let mean = |(_, copies): &(Vec<EntryId>, Vec<Copy>)| {
            let sizes = copies.iter().filter_map(|copy| match copy {
                Copy::Sound(entry) => Some(entry.payload.len() as u64),
                _ => None,
            });
            let (count, sum) = sizes.fold((0, 0), |(count, sum), size| (count + 1, sum + size));
            (sum / u64::max(count, 1)).max(1)
        };
        let fitting = PART_BYTES / parts.iter().map(mean).max().unwrap_or(1).max(1);
        self.part_entries = fitting.clamp(1, PART_ENTRIES_MAX).min(count.saturating_mul(GROWTH).max(1));
    }

    /// Whether the write set of an entry is another one meanwhile (invariant 2).
    async fn has_changed(
        &mut self,
        replicas: &Replicas,
        found: &[(EntryId, Vec<Copy>)],
    ) -> Result<bool, ReadError> {
        if self.compared_at.is_none_or(|at| at.elapsed() >= METADATA_AGE_MAX) {
            self.state.reread_latest().await?;
            self.compared_at = Some(Instant::now());
        }
        let now = self.state.replicas();
        let is_other = found
            .iter()
            .any(|(entry, _)| !now.metadata.write_set(*entry).eq(replicas.metadata.write_set(*entry)));
        self.changes += u32::from(is_other);
        Ok(is_other && self.changes <= CHANGES_MAX)
    }
}

fn is_sound(copy: &Copy) -> bool {
    matches!(copy, Copy::Sound(_))
}

impl std::fmt::Debug for Verification {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verification")
            .field("ledger_id", &self.state.id)
            .field("next", &self.next)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}
