//! What operators see of the collection of space and of the scrub, and what they ask of these.

use parking_lot::Mutex;

/// Logs that could not be read are listed one by one up to this number.
const SKIPPED_MAX: usize = 100;

/// The reason for a rewrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Compaction,
    Merge,
}

/// How few of its bytes must be live for a log to be rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompactionKind {
    Minor,
    Major,
}

/// A collection that somebody asked for: logs without live entries are dropped, and those with few rewritten as far as asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WantedCollection {
    /// With a minor compaction.
    pub minor: bool,
    /// With a major compaction.
    pub major: bool,
}

/// Kinds of compactions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompactionKinds {
    /// Minor ones.
    pub minor: bool,
    /// Major ones.
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
    /// Logs rewritten by compaction.
    pub logs_rewritten: u64,
    /// Merges done.
    pub merges: u64,
    /// Logs that they merged.
    pub logs_merged: u64,
    /// Bytes that compaction and merging copied: entries with their index records.
    pub bytes_copied: u64,
    /// Bytes of files dropped.
    pub bytes_dropped: u64,
    /// Bytes of files dropped, rewritten and merged.
    pub bytes_removed: u64,
    /// Bytes of files that compaction made.
    pub bytes_rewritten: u64,
    /// Bytes of files that merging made.
    pub bytes_merged: u64,
    /// Files of replaced logs that are kept until their grace is over.
    pub replaced_files: u64,
    /// Their bytes.
    pub replaced_bytes: u64,
    /// Times a log was left out because it cannot be read.
    pub logs_skipped: u64,
    /// Which, in the last collection, and why; at most 100.
    pub skipped: Vec<(String, String)>,
    /// Times something else went wrong.
    pub errors: u64,
    /// The last such error.
    pub last_error: Option<String>,
}

/// One damage that the scrub found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrubFinding {
    /// The file.
    pub file: String,
    /// Where in it, in bytes; `None`: the file as a whole.
    pub offset: Option<u64>,
    /// What is wrong.
    pub what: String,
    /// Ledger, first and last entry that cannot be read.
    pub affected: Option<(i64, i64, i64)>,
    /// What to do.
    pub advice: String,
}

/// One walk over all live logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubPass {
    /// Somebody asked for it; otherwise it is periodic.
    pub is_asked_for: bool,
    /// When it began, ms since 1970.
    pub begin_ms: i64,
    /// When it ended.
    pub end_ms: i64,
    /// Logs checked to their end.
    pub logs: u64,
    /// Entries that verified in them.
    pub entries: u64,
    /// Bytes looked at.
    pub bytes: u64,
    /// Damages found.
    pub findings: u64,
}

/// Progress of the scrub since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubStatus {
    /// Passes that ended.
    pub passes: u64,
    /// Bytes looked at.
    pub bytes: u64,
    /// Damages found, each as often as it was met.
    pub findings: u64,
    /// Live logs that are known to be damaged.
    pub damaged_logs: u64,
    /// A pass is under way.
    pub is_running: bool,
    /// Bytes it has looked at, and bytes there were when it began.
    pub progress: (u64, u64),
    /// The last pass that ended.
    pub last: Option<ScrubPass>,
    /// Findings of the pass under way and of the one before, the latest last; at most 100.
    pub listed: Vec<ScrubFinding>,
    /// The last request (see [`crate::Engine::want_scrub`]) whose pass has ended.
    pub answered: u64,
}

/// Status and requests, shared by the upkeep of the directories and those that ask.
#[derive(Default)]
pub(crate) struct SpaceDesk {
    suspended: Mutex<CompactionKinds>,
    status: Mutex<SpaceStatus>,
    wanted: Mutex<Wanted>,
    scrub: Mutex<ScrubDesk>,
}

#[derive(Default)]
struct Wanted {
    now: Option<WantedCollection>,
    /// To begin once the removals so far are in the state tables: until then the entries that they hide count as live.
    after_removals: Option<WantedCollection>,
    /// The collection under way, until the last rewrite that it planned.
    under_way: Option<WantedCollection>,
}

impl WantedCollection {
    fn joined(self, before: Option<WantedCollection>) -> WantedCollection {
        let before = before.unwrap_or_default();
        WantedCollection { minor: self.minor | before.minor, major: self.major | before.major }
    }

    /// It does all that the other would: a major compaction does what a minor one does.
    fn covers(self, other: WantedCollection) -> bool {
        self.major || (!other.major && (self.minor || !other.minor))
    }
}

#[derive(Default)]
struct ScrubDesk {
    status: ScrubStatus,
    /// Requests so far.
    requests: u64,
    /// Findings of the pass under way.
    of_pass: usize,
}

impl SpaceDesk {
    pub(crate) fn status(&self) -> SpaceStatus {
        self.status.lock().clone()
    }

    /// Asks for a collection, unless one is under way that does as much. If each request started it again, it would never end where
    /// there are many logs, and one collection right after another would leave no time for rewrites and the scrub.
    pub(crate) fn want(&self, wanted: WantedCollection) {
        let desk = &mut *self.wanted.lock();
        if !desk.under_way.is_some_and(|under_way| under_way.covers(wanted)) {
            desk.now = Some(wanted.joined(desk.now));
        }
    }

    /// Asks for a collection that begins once the removals so far are in the state tables, or, while a flush waits for space, in the journal.
    pub(crate) fn want_after_removals(&self, wanted: WantedCollection) {
        let slot = &mut self.wanted.lock().after_removals;
        *slot = Some(wanted.joined(*slot));
    }

    pub(crate) fn is_wanted(&self) -> bool {
        let wanted = self.wanted.lock();
        wanted.now.is_some() || wanted.after_removals.is_some()
    }

    /// Takes the collection that is to begin now, if there is one. `are_removals_flushed` is called only if a collection waits for that.
    pub(crate) fn take_wanted(
        &self,
        are_removals_flushed: impl FnOnce() -> bool,
    ) -> Option<WantedCollection> {
        let wanted = &mut *self.wanted.lock();
        if wanted.after_removals.is_some() && are_removals_flushed() {
            let of_removals = wanted.after_removals.take().unwrap_or_default();
            wanted.now = Some(of_removals.joined(wanted.now));
        }
        wanted.now.take()
    }

    /// A collection begins. `is_compacting`: rewrites of an earlier one are still to come, which stays under way if this one plans none.
    pub(crate) fn on_begun(&self, kind: Option<CompactionKind>, is_compacting: bool) {
        let (minor, major) = (kind == Some(CompactionKind::Minor), kind == Some(CompactionKind::Major));
        let under_way = &mut self.wanted.lock().under_way;
        if kind.is_some() || !is_compacting {
            *under_way = Some(WantedCollection { minor, major });
        }
    }

    /// The kinds that are not begun.
    pub(crate) fn suspended(&self) -> CompactionKinds {
        *self.suspended.lock()
    }

    /// Begins no more of these.
    pub(crate) fn suspend(&self, kinds: CompactionKinds) {
        let mut suspended = self.suspended.lock();
        *suspended =
            CompactionKinds { minor: suspended.minor | kinds.minor, major: suspended.major | kinds.major };
    }

    /// Lets these begin again.
    pub(crate) fn resume(&self, kinds: CompactionKinds) {
        let mut suspended = self.suspended.lock();
        *suspended =
            CompactionKinds { minor: suspended.minor & !kinds.minor, major: suspended.major & !kinds.major };
    }

    /// The last rewrite that was planned is done.
    pub(crate) fn end_compacting(&self) {
        self.wanted.lock().under_way = None;
        let mut status = self.status.lock();
        (status.is_minor_compacting, status.is_major_compacting) = (false, false);
    }

    /// A collection has planned its rewrites. `is_compacting`: a rewrite is under way or to come, of this collection or of an earlier one.
    pub(crate) fn on_collected(&self, kind: Option<CompactionKind>, planned: usize, is_compacting: bool) {
        {
            let mut status = self.status.lock();
            status.collections += 1;
            status.minor_compactions += u64::from(kind == Some(CompactionKind::Minor));
            status.major_compactions += u64::from(kind == Some(CompactionKind::Major));
            status.logs_planned = planned as u64;
            if planned > 0 {
                status.is_minor_compacting |= kind == Some(CompactionKind::Minor);
                status.is_major_compacting |= kind == Some(CompactionKind::Major);
            }
        }
        if !is_compacting {
            self.end_compacting();
        }
    }

    pub(crate) fn on_dropped(&self, logs: u64, bytes: u64) {
        let mut status = self.status.lock();
        status.logs_dropped += logs;
        status.bytes_dropped += bytes;
        status.bytes_removed += bytes;
    }

    pub(crate) fn on_rewritten(&self, cause: Cause, logs: u64, bytes_before: u64, bytes_after: u64) {
        let mut status = self.status.lock();
        status.bytes_removed += bytes_before;
        match cause {
            Cause::Compaction => {
                status.logs_rewritten += logs;
                status.bytes_rewritten += bytes_after;
            }
            Cause::Merge => {
                status.merges += 1;
                status.logs_merged += logs;
                status.bytes_merged += bytes_after;
            }
        }
    }

    pub(crate) fn set_replaced(&self, files: u64, bytes: u64) {
        let mut status = self.status.lock();
        (status.replaced_files, status.replaced_bytes) = (files, bytes);
    }

    /// Counts bytes that a step of a rewrite copied: entries with their index records, whether or not the rewrite is ever committed.
    pub(crate) fn on_copied(&self, bytes: u64) {
        self.status.lock().bytes_copied += bytes;
    }

    pub(crate) fn begin_skipping(&self) {
        self.status.lock().skipped.clear();
    }

    pub(crate) fn on_skipped(&self, log: String, reason: &str) {
        let mut status = self.status.lock();
        status.logs_skipped += 1;
        if status.skipped.len() < SKIPPED_MAX {
            status.skipped.push((log, reason.to_owned()));
        }
    }

    pub(crate) fn on_error(&self, error: String) {
        let mut status = self.status.lock();
        status.errors += 1;
        status.last_error = Some(error);
    }
}

impl SpaceDesk {
    /// Findings kept.
    pub(crate) const FINDINGS_MAX: usize = 100;

    pub(crate) fn scrub_status(&self) -> ScrubStatus {
        self.scrub.lock().status.clone()
    }

    /// Asks for a pass; returns the number of the request.
    pub(crate) fn want_scrub(&self) -> u64 {
        let mut desk = self.scrub.lock();
        desk.requests += 1;
        desk.requests
    }

    /// The last request, while it is not answered.
    pub(crate) fn wanted_scrub(&self) -> Option<u64> {
        let desk = self.scrub.lock();
        (desk.requests > desk.status.answered).then_some(desk.requests)
    }

    pub(crate) fn on_pass_begun(&self, bytes: u64) {
        let mut desk = self.scrub.lock();
        // Findings of the pass before last go; damage that is still there was found again by the last one.
        let keep = desk.of_pass;
        let listed = desk.status.listed.len();
        desk.status.listed.drain(..listed - keep);
        desk.of_pass = 0;
        desk.status.is_running = true;
        desk.status.progress = (0, bytes);
    }

    pub(crate) fn on_scrubbed(&self, looked: u64, of_pass: u64) {
        let status = &mut self.scrub.lock().status;
        status.bytes += looked;
        status.progress.0 = of_pass;
    }

    pub(crate) fn on_finding(&self, finding: ScrubFinding) {
        let mut desk = self.scrub.lock();
        desk.status.findings += 1;
        if desk.of_pass >= Self::FINDINGS_MAX {
            return;
        }
        if desk.status.listed.len() >= Self::FINDINGS_MAX {
            // One of the pass before: this pass has fewer than the limit.
            desk.status.listed.remove(0);
        }
        desk.status.listed.push(finding);
        desk.of_pass += 1;
    }

    pub(crate) fn on_more_findings(&self, more: u64) {
        self.scrub.lock().status.findings += more;
    }

    pub(crate) fn on_pass_ended(&self, pass: ScrubPass, answers: Option<u64>) {
        let mut desk = self.scrub.lock();
        desk.status.passes += 1;
        desk.status.is_running = false;
        desk.status.last = Some(pass);
        desk.status.answered = desk.status.answered.max(answers.unwrap_or(0));
    }
}
