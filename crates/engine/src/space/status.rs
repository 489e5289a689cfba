//! What an operator sees of the collection of space, and what he may ask for.

use parking_lot::Mutex;

/// Logs that could not be read are listed one by one up to this number.
const SKIPPED_MAX: usize = 100;

/// How poor a log must be to be rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompactionKind {
    Minor,
    Major,
}

/// A collection that somebody asked for: logs without live entries are dropped, and poor ones rewritten as far as asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WantedCollection {
    /// With a minor compaction.
    pub minor: bool,
    /// With a major compaction.
    pub major: bool,
}

/// Progress of the collection of space since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpaceStatus {
    /// Collections done.
    pub collections: u64,
    /// Those with a minor compaction.
    pub minor_compactions: u64,
    /// Those with a major compaction.
    pub major_compactions: u64,
    /// A minor compaction is under way.
    pub is_minor_compacting: bool,
    /// A major compaction is under way.
    pub is_major_compacting: bool,
    /// Logs that were to be rewritten in the last collection.
    pub logs_planned: u64,
    /// Logs dropped because nothing in them was live.
    pub logs_dropped: u64,
    /// Logs rewritten.
    pub logs_rewritten: u64,
    /// Bytes of entries copied.
    pub bytes_copied: u64,
    /// Bytes of files dropped and rewritten.
    pub bytes_removed: u64,
    /// Bytes of files that rewriting made.
    pub bytes_rewritten: u64,
    /// Times a log was left out because it cannot be read.
    pub logs_skipped: u64,
    /// Which, in the last collection, and why; at most 100.
    pub skipped: Vec<(String, String)>,
    /// Times something else went wrong.
    pub errors: u64,
    /// The last such error.
    pub last_error: Option<String>,
}

/// Shared with whoever asks.
#[derive(Default)]
pub(crate) struct SpaceDesk {
    status: Mutex<SpaceStatus>,
    wanted: Mutex<Option<WantedCollection>>,
}

impl SpaceDesk {
    pub(crate) fn status(&self) -> SpaceStatus {
        self.status.lock().clone()
    }

    pub(crate) fn want(&self, wanted: WantedCollection) {
        let mut slot = self.wanted.lock();
        let before = slot.unwrap_or_default();
        *slot =
            Some(WantedCollection { minor: before.minor | wanted.minor, major: before.major | wanted.major });
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.lock().is_some()
    }

    pub(super) fn take_wanted(&self) -> Option<WantedCollection> {
        self.wanted.lock().take()
    }

    pub(super) fn set_compacting(&self, kind: Option<CompactionKind>) {
        let mut status = self.status.lock();
        status.is_minor_compacting = kind == Some(CompactionKind::Minor);
        status.is_major_compacting = kind == Some(CompactionKind::Major);
    }

    pub(super) fn on_collected(&self, kind: Option<CompactionKind>, planned: usize) {
        {
            let mut status = self.status.lock();
            status.collections += 1;
            status.minor_compactions += u64::from(kind == Some(CompactionKind::Minor));
            status.major_compactions += u64::from(kind == Some(CompactionKind::Major));
            status.logs_planned = planned as u64;
        }
        self.set_compacting(kind.filter(|_| planned > 0));
    }

    pub(super) fn on_dropped(&self, logs: u64, bytes: u64) {
        let mut status = self.status.lock();
        status.logs_dropped += logs;
        status.bytes_removed += bytes;
    }

    pub(super) fn on_rewritten(&self, logs: u64, bytes_before: u64, bytes_after: u64) {
        let mut status = self.status.lock();
        status.logs_rewritten += logs;
        status.bytes_removed += bytes_before;
        status.bytes_rewritten += bytes_after;
    }

    pub(super) fn on_copied(&self, bytes: u64) {
        self.status.lock().bytes_copied += bytes;
    }

    pub(super) fn begin_skipping(&self) {
        self.status.lock().skipped.clear();
    }

    pub(super) fn on_skipped(&self, log: String, reason: &str) {
        let mut status = self.status.lock();
        status.logs_skipped += 1;
        if status.skipped.len() < SKIPPED_MAX {
            status.skipped.push((log, reason.to_owned()));
        }
    }

    pub(super) fn on_error(&self, error: String) {
        let mut status = self.status.lock();
        status.errors += 1;
        status.last_error = Some(error);
    }
}
