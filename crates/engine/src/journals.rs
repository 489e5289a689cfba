//! What the rest of the engine sees of its journals, and the vector of their marks.
//!
//! Shard s belongs to journal s % J. Each journal is driven by a thread of its own, which alone cuts and freezes its
//! shards; state that several threads read is here.
//!
//! # Invariants
//! 1. Marks of several journals are compared component by component, never as one number or in lexicographic order
//!    (IB12, BookKeeper #4844).
//! 2. No component decreases.

use crate::signal::Signal;
use bindery_journal::Journal;
use bindery_storage::{JournalMark, Mark};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The beginning of a journal: nothing is covered.
pub(crate) const NO_MARK: Mark = Mark { file_id: 0, group: 0 };

/// One journal, as the threads beside its own see it.
pub(crate) struct JournalDesk {
    /// Wakes its thread.
    pub(crate) signal: Arc<Signal>,
    /// Somebody asked for a freeze of its shards.
    pub(crate) is_freeze_wanted: AtomicBool,
    /// Its next group waits for a file, which the end of a flush gives, or space.
    pub(crate) waits_for_file: AtomicBool,
    /// A probe waits for a write. The journal writes an empty group if there is no other.
    pub(crate) is_probe_wanted: AtomicBool,
    /// Bytes and chunks in the active caches of its shards, as of its last cut.
    pub(crate) active_bytes: AtomicU64,
    pub(crate) active_chunks: AtomicU64,
    /// The last group that is durable.
    pub(crate) written: Mutex<Mark>,
    /// Everything in its shards of this generation or a lower one is on disk, and the marks of all directories cover it.
    pub(crate) flushed_generation: AtomicU64,
    pub(crate) counts: JournalCounts,
}

impl JournalDesk {
    pub(crate) fn new() -> JournalDesk {
        JournalDesk {
            signal: Arc::default(),
            is_freeze_wanted: AtomicBool::new(false),
            waits_for_file: AtomicBool::new(false),
            is_probe_wanted: AtomicBool::new(false),
            active_bytes: AtomicU64::new(0),
            active_chunks: AtomicU64::new(0),
            written: Mutex::new(NO_MARK),
            flushed_generation: AtomicU64::new(0),
            counts: JournalCounts::default(),
        }
    }

    pub(crate) fn set_active(&self, bytes: u64, chunks: u64) {
        self.active_bytes.store(bytes, Relaxed);
        self.active_chunks.store(chunks, Relaxed);
    }
}

/// What one journal wrote since the start, and what it occupies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Bytes of records written.
    pub record_bytes: u64,
    /// Bytes written: headers and padding included.
    pub written_bytes: u64,
    /// Bytes of its files that a restart would replay, whole files but the last.
    pub used_bytes: u64,
    /// Bytes of all its files.
    pub file_bytes: u64,
    /// Its files, and those of them that are free to be used again.
    pub files: u64,
    /// See `files`.
    pub files_free: u64,
    /// Bytes that all its files may take; 0 for no limit.
    pub bytes_max: u64,
    /// Times a group waited, or waits, for a file to be freed: the journal was at its cap.
    pub file_waits: u64,
    /// Nanoseconds of the waits that ended.
    pub file_wait_ns: u64,
    /// Records that wait for the next group.
    pub queued_records: u64,
    /// Whether a group is being written and synced; there is never more than one.
    pub is_writing: bool,
}

/// As [`JournalStats`]; written by the journal's thread.
#[derive(Default)]
pub(crate) struct JournalCounts {
    record_bytes: AtomicU64,
    written_bytes: AtomicU64,
    used_bytes: AtomicU64,
    file_bytes: AtomicU64,
    files: AtomicU64,
    files_free: AtomicU64,
    bytes_max: AtomicU64,
    file_waits: AtomicU64,
    file_wait_ns: AtomicU64,
}

impl JournalCounts {
    pub(crate) fn add_group(&self, record_bytes: u64, written_bytes: u64) {
        self.record_bytes.fetch_add(record_bytes, Relaxed);
        self.written_bytes.fetch_add(written_bytes, Relaxed);
    }

    pub(crate) fn on_file_wait_begun(&self) {
        self.file_waits.fetch_add(1, Relaxed);
    }

    pub(crate) fn on_file_wait_ended(&self, waited_ns: u64) {
        self.file_wait_ns.fetch_add(waited_ns, Relaxed);
    }

    pub(crate) fn set_files(&self, journal: &Journal) {
        self.used_bytes.store(journal.bytes_in_use(), Relaxed);
        self.file_bytes.store(journal.footprint_bytes(), Relaxed);
        self.files.store(journal.file_count() as u64, Relaxed);
        self.files_free.store(journal.files_free() as u64, Relaxed);
        self.bytes_max.store(journal.config().bytes_max, Relaxed);
    }

    pub(crate) fn read(&self) -> JournalStats {
        JournalStats {
            record_bytes: self.record_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            used_bytes: self.used_bytes.load(Relaxed),
            file_bytes: self.file_bytes.load(Relaxed),
            files: self.files.load(Relaxed),
            files_free: self.files_free.load(Relaxed),
            bytes_max: self.bytes_max.load(Relaxed),
            file_waits: self.file_waits.load(Relaxed),
            file_wait_ns: self.file_wait_ns.load(Relaxed),
            ..JournalStats::default()
        }
    }
}

/// A position in each journal. A journal that it does not name is at its beginning. There is no order of vectors, and so
/// no `Ord` (invariant 1).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MarkVector(Vec<Mark>);

impl MarkVector {
    /// From what a state table holds.
    pub(crate) fn of(marks: &[JournalMark]) -> MarkVector {
        let mut vector = MarkVector::default();
        for JournalMark { journal, mark } in marks {
            vector.raise(*journal as usize, *mark);
        }
        vector
    }

    /// The component of one journal.
    pub(crate) fn of_journal(&self, journal: usize) -> Mark {
        self.0.get(journal).copied().unwrap_or(NO_MARK)
    }

    /// Raises one component; the others stay.
    pub(crate) fn raise(&mut self, journal: usize, to: Mark) {
        if self.0.len() <= journal {
            self.0.resize(journal + 1, NO_MARK);
        }
        let mark = &mut self.0[journal];
        *mark = Mark { file_id: mark.file_id.max(to.file_id), group: mark.group.max(to.group) };
    }

    /// Each component the higher of both.
    pub(crate) fn join(&mut self, other: &MarkVector) {
        for (journal, mark) in other.0.iter().enumerate() {
            self.raise(journal, *mark);
        }
    }

    /// Each component the lower of both.
    pub(crate) fn meet(&mut self, other: &MarkVector) {
        for (journal, mark) in self.0.iter_mut().enumerate() {
            *mark = (*mark).min(other.of_journal(journal));
        }
    }

    /// Canary M7: the order that vectors do not have. No other code may use it.
    pub(crate) fn is_lexicographically_at_most(&self, other: &MarkVector) -> bool {
        self.0 <= other.0
    }

    /// For a state table.
    pub(crate) fn marks(&self) -> Vec<JournalMark> {
        let number = |journal: usize| u32::try_from(journal).expect("journals are few");
        self.0.iter().enumerate().map(|(j, mark)| JournalMark { journal: number(j), mark: *mark }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(groups: &[u64]) -> MarkVector {
        let mut vector = MarkVector::default();
        for (journal, group) in groups.iter().enumerate() {
            vector.raise(journal, Mark { file_id: 1, group: *group });
        }
        vector
    }

    /// IB12, BookKeeper #4844: of [2, 1] and [1, 2] neither is the later one.
    #[test]
    fn vectors_are_joined_and_met_by_component() {
        let (a, b) = (vector(&[2, 1]), vector(&[1, 2]));
        let (mut high, mut low) = (a.clone(), a.clone());
        high.join(&b);
        low.meet(&b);
        assert_eq!((high, low), (vector(&[2, 2]), vector(&[1, 1])));
        let mut longer = vector(&[1]);
        longer.join(&vector(&[0, 3]));
        assert_eq!(longer.of_journal(1).group, 3);
        longer.meet(&vector(&[5]));
        assert_eq!((longer.of_journal(0).group, longer.of_journal(1).group), (1, 0));
        assert_eq!(MarkVector::of(&a.marks()), a);
        assert_eq!(a.of_journal(7), NO_MARK);
    }
}
