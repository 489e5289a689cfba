//! One rewrite: the winners of some logs of a directory, merged into one output.
//!
//! # Data flow
//! ```text
//! runs of all sources, by (ledger, first) -> those that begin before the next entry are open: 1,024 records each
//!     -> the lowest entry of the open runs, its newest copy -> judged -> body, verified -> output
//! ```
//!
//! # Generations
//! Order between copies of an entry is by generation. A copy for which every newer run of every log was read, and does
//! not hold the entry, is newer than all others on disk, and what is flushed later is newer still: its generation may be
//! raised, up to the highest generation that a run of its ledger has in the sources, and stays below that of every
//! later flush of the ledger. So all such winners of a ledger take that one generation and become one run (of at most
//! 65,536 entries), whatever logs they came from. Two kinds of copy keep their own generation, in a run of their own:
//! 1. A newer run that may hold the entry, or what a newer log has, cannot be read: raised above it, an older copy would
//!    answer for a newer one.
//! 2. The ledger was ever removed after it (also when the removal is not committed, or was overtaken by another):
//!    raised above the removal, it would come back (IB17).
//!
//! Why this is right: `docs/decisions/0013`.
//!
//! # Limits
//! [`JOB_SOURCES_MAX`] sources, [`JOB_RUNS_MAX`] runs, 120 bytes each, unless one source alone has more; 1,024 records of
//! each open run, of which a source has one; [`WINDOWS_BYTES`] over all sources, which are read past the page cache.
//! One call does one piece of work: it opens a run, reads records, or settles one entry.

use super::{Liveness, LogRef, Newer, Verdict};
use crate::machine::Flushing;
use bindery_io::BLOCK_SIZE_BYTES;
use bindery_io::canary::Canary;
use bindery_storage::entry_log::{IndexRecord, RECORD_BYTES};
use bindery_storage::{EntryLog, EntryLogWriter, Extent, Generation, LogId, ReadError, SealedLog};
use bindery_types::{EntryId, LedgerId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Sources of one job: what a backlog of small logs is taken away with.
pub(super) const JOB_SOURCES_MAX: usize = 64;
/// What the sources of one job read ahead into, together.
const WINDOWS_BYTES: usize = 4 << 20;
/// Most that one read of a source takes: the journal's next write may wait behind it in the device.
const WINDOW_BYTES_MAX: usize = 128 << 10;
/// Runs of the sources of one job.
pub(super) const JOB_RUNS_MAX: u64 = 1 << 18;
/// Records of an open run in memory.
const RECORDS_READ: u32 = 1024;

/// What a rewrite is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Compaction,
    Merge,
}

/// Why a rewrite was given up.
pub(super) enum JobError {
    /// A source cannot be read.
    Source(LogRef, ReadError),
    /// The output cannot be written, or file descriptors ran out: what may pass, and says nothing about a source.
    PutOff(String),
}

/// What one call did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// Bytes copied.
    pub copied: u64,
    /// Reads of the disk, and one.
    pub work: u64,
    pub is_done: bool,
}

/// A log to be rewritten.
struct SourceLog {
    /// As everybody reads it.
    shared: Arc<EntryLog>,
    /// Past the page cache, from its first run on: one call opens one.
    own: Option<EntryLog>,
}

impl SourceLog {
    /// As the job reads it.
    fn log(&self) -> &EntryLog {
        self.own.as_ref().expect("a source is opened with its first run")
    }
}

/// A run whose entries are next.
struct Open {
    source: usize,
    run: Extent,
    newer: Newer,
    /// Entries before it were let go.
    from: Option<EntryId>,
    /// What winners take: their own, or the ledger's highest.
    generation: Generation,
    /// Records that were read and not settled.
    records: VecDeque<IndexRecord>,
    /// The next record to read.
    place: u32,
    last: Option<EntryId>,
}

pub(super) struct Job {
    directory: usize,
    cause: Cause,
    sources: Vec<SourceLog>,
    /// How far each is read ahead.
    window_bytes: usize,
    /// Runs not open yet, with the index of their source; ascending by (ledger, first).
    runs: VecDeque<(usize, Extent)>,
    /// All of one ledger.
    open: Vec<Open>,
    /// The ledger that was begun last, and its highest generation in the sources.
    highest: Option<(LedgerId, Generation)>,
    writer: EntryLogWriter,
    copied: u64,
    body: Vec<u8>,
}

impl Job {
    pub(super) fn new(
        directory: usize,
        cause: Cause,
        sources: Vec<(Arc<EntryLog>, Vec<Extent>)>,
        writer: EntryLogWriter,
    ) -> Job {
        let mut runs: Vec<(usize, Extent)> = Vec::new();
        for (source, (_, extents)) in sources.iter().enumerate() {
            runs.extend(extents.iter().map(|extent| (source, *extent)));
        }
        runs.sort_by_key(|(_, run)| (run.ledger, run.first));
        Job {
            directory,
            cause,
            window_bytes: Job::window_bytes(sources.len()),
            sources: sources.into_iter().map(|(shared, _)| SourceLog { shared, own: None }).collect(),
            runs: runs.into(),
            open: Vec::new(),
            highest: None,
            writer,
            copied: 0,
            body: Vec::new(),
        }
    }

    /// How far each of so many sources is read ahead, in each of the two places where it is read.
    fn window_bytes(sources: usize) -> usize {
        let each = WINDOWS_BYTES / 2 / sources.max(1) / BLOCK_SIZE_BYTES * BLOCK_SIZE_BYTES;
        each.clamp(BLOCK_SIZE_BYTES, WINDOW_BYTES_MAX)
    }

    pub(super) fn directory(&self) -> usize {
        self.directory
    }

    pub(super) fn cause(&self) -> Cause {
        self.cause
    }

    pub(super) fn output(&self) -> LogId {
        self.writer.log_id()
    }

    pub(super) fn sources(&self) -> Vec<LogRef> {
        self.sources.iter().map(|source| (self.directory, source.shared.log_id())).collect()
    }

    /// Does one piece of work.
    pub(super) fn advance(&mut self, flushing: &Flushing) -> Result<Piece, JobError> {
        let passed = Piece { work: 1, ..Piece::default() };
        if let Some(at) = self.open.iter().position(|open| open.records.is_empty()) {
            if self.open[at].place == self.open[at].run.count {
                self.open.swap_remove(at);
            } else {
                self.read_records(at)?;
            }
            return Ok(passed);
        }
        let next = self.open.iter().map(|open| (open.run.ledger, open.records[0].entry)).min();
        if let Some((_, run)) = self.runs.front()
            && next.is_none_or(|next| (run.ledger, run.first) <= next)
        {
            let reads = self.open_run(flushing)?;
            return Ok(Piece { work: 1 + reads, ..passed });
        }
        match next {
            Some((ledger, entry)) => self.settle(flushing, ledger, entry),
            None => Ok(Piece { is_done: true, ..passed }),
        }
    }

    /// Opens the next run, unless nothing of it is live. Returns the number of footers in which newer ones were sought.
    fn open_run(&mut self, flushing: &Flushing) -> Result<u64, JobError> {
        let (_, run) = self.runs[0];
        if self.highest.is_none_or(|(ledger, _)| ledger != run.ledger) {
            let of_ledger =
                self.runs.iter().map(|(_, run)| run).take_while(|other| other.ledger == run.ledger);
            let highest = of_ledger
                .filter(|run| flushing.liveness(run) != Liveness::Dead)
                .map(|run| run.generation)
                .max();
            self.highest = Some((run.ledger, highest.unwrap_or(run.generation)));
        }
        let (source, run) = self.runs.pop_front().expect("it was looked at");
        let from = match flushing.liveness(&run) {
            Liveness::Dead => return Ok(0),
            Liveness::From(entry) => Some(entry),
            Liveness::Live => None,
        };
        let generation = match self.highest {
            Some((_, highest)) if flushing.may_rise(&run) => highest,
            _ => run.generation,
        };
        let origin = &mut self.sources[source];
        let at = (self.directory, origin.shared.log_id());
        if origin.own.is_none() {
            let opened =
                origin.shared.streamed(flushing.directories[self.directory].disk(), self.window_bytes);
            origin.own = Some(opened.map_err(|error| not_opened(at, error))?);
        }
        let newer = flushing.newer(&run);
        let reads = newer.reads;
        self.open.push(Open {
            source,
            run,
            newer,
            from,
            generation,
            records: VecDeque::new(),
            place: 0,
            last: None,
        });
        Ok(reads)
    }

    fn read_records(&mut self, at: usize) -> Result<(), JobError> {
        let open = &mut self.open[at];
        let log = self.sources[open.source].log();
        let failed = |error| JobError::Source((self.directory, log.log_id()), error);
        let records = log.records_from(&open.run, open.place, RECORDS_READ, open.last).map_err(failed)?;
        open.last = records.last().map(|record| record.entry);
        open.place += u32::try_from(records.len()).expect("it is at most what was asked for");
        open.records = records.into();
        Ok(())
    }

    /// Copies the newest copy of an entry if it is a winner, and is done with the entry.
    fn settle(&mut self, flushing: &Flushing, ledger: LedgerId, entry: EntryId) -> Result<Piece, JobError> {
        let mut newest: Option<(Generation, LogId, usize, IndexRecord)> = None;
        for (at, open) in self.open.iter_mut().enumerate() {
            if open.records[0].entry == entry
                && let Some(record) = open.records.pop_front()
            {
                let age = (open.run.generation, open.run.log_id);
                if newest.is_none_or(|(generation, log_id, ..)| age > (generation, log_id)) {
                    newest = Some((age.0, age.1, at, record));
                }
            }
        }
        let (own, _, at, record) = newest.expect("an open run has the entry");
        let open = &self.open[at];
        if open.from > Some(entry) {
            return Ok(Piece { work: 1, ..Piece::default() });
        }
        let (verdict, reads) = flushing.judge(&open.newer, entry);
        let generation = match verdict {
            Verdict::Loser => return Ok(Piece { work: 1 + reads, ..Piece::default() }),
            _ if flushing.engine.config.canaries.has(Canary::M26CompactionKeepsLosers) => {
                self.writer.generation()
            }
            Verdict::Winner => open.generation,
            Verdict::InDoubt => own,
        };
        let log = self.sources[open.source].log();
        self.body.resize(record.location.length as usize, 0);
        let read = log.read_into(&record.location, ledger, entry, &mut self.body);
        read.map_err(|error| JobError::Source((self.directory, log.log_id()), error))?;
        let crc = record.location.crc32c;
        self.writer
            .append_as(ledger, entry, &self.body, crc, generation)
            .map_err(|e| JobError::PutOff(e.to_string()))?;
        self.copied += 1;
        let copied = u64::from(record.location.length) + RECORD_BYTES;
        Ok(Piece { copied, work: 2 + reads, is_done: false })
    }

    /// Makes the output durable; `None` when nothing was left to copy. After an error nothing is left of it.
    pub(super) fn finish(self) -> Result<Option<SealedLog>, String> {
        if self.copied == 0 {
            return self.writer.abandon().map(|()| None).map_err(|error| error.to_string());
        }
        self.writer.finish_or_abandon().map(Some).map_err(|error| error.to_string())
    }

    /// Leaves everything as it was; returns what it worked on.
    pub(super) fn give_up(self) -> (usize, Vec<LogId>) {
        let sources = self.sources.iter().map(|source| source.shared.log_id()).collect();
        if let Err(error) = self.writer.abandon() {
            tracing::warn!(%error, "an unfinished log stays until the next start");
        }
        (self.directory, sources)
    }
}

/// Whatever keeps one log from being opened is a matter of that log (invariant 4 of `space`), but for descriptors.
fn not_opened(log: LogRef, error: ReadError) -> JobError {
    match &error {
        ReadError::Disk(disk) if bindery_io::has_no_descriptor(&disk.source) => {
            JobError::PutOff(error.to_string())
        }
        _ => JobError::Source(log, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_whole_blocks_and_bounded_in_sum() {
        for sources in 1..=JOB_SOURCES_MAX {
            let each = Job::window_bytes(sources);
            assert!(each.is_multiple_of(BLOCK_SIZE_BYTES) && each >= 8 * BLOCK_SIZE_BYTES, "{each}");
            assert!(2 * each * sources <= WINDOWS_BYTES, "{each} for each of {sources}");
        }
    }
}
