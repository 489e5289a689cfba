//! One rewrite: the winners of some logs of a directory, merged into one output.
//!
//! # Data flow
//! ```text
//! footers of all sources, side by side -> runs of the next ledger -> those that begin before the next entry are open: 1,024
//!     records each -> the lowest entry of the open runs, its newest copy -> judged -> body, verified -> output
//! no run left -> the output's footer -> sync -> read back, its index built -> the sources' runs paged out -> ready for its commit
//! ```
//! A source whose footer turns out not to be the one that was written fails the job: nothing of the output was committed.
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
//! When the job gathers the runs of a ledger, it asks once whether the ledger was removed, and whether any other log has newer runs
//! among its entries. When an entry is settled the answers may be outdated, but do no harm: a removal in between, and a copy that a
//! flush brings, are of a later generation than any on disk before, and the copies in the output of another rewrite were in its
//! sources when this job asked, or came by such a flush.
//!
//! Why this is right: `docs/decisions/0013`.
//!
//! # Limits
//! [`JOB_SOURCES_MAX`] sources with any number of runs. In memory: 408 runs of each source and those of one ledger, 128 bytes
//! each; 2 KiB for each newer log on disk; about 20 bytes for each run of the output, charged to the index pool, of which at
//! most [`RUN_BYTES`] are expected; 1,024 records of each open run, of which a source has one; [`WINDOWS_BYTES`] over all sources,
//! which are read past the page cache.
//! One call does one piece of work: it opens a source or a run, gathers the runs of a ledger, reads records, settles one entry,
//! writes [`FOOTER_RUNS`] runs of the footer or reads back as many, makes the output durable, or pages out 1,024 runs. What is
//! left for the commit is bounded by [`HIDDEN_RUNS_MAX`] runs of the sources, and by those of an output that comes into
//! memory: 65,536.

use super::{Liveness, LogRef, Newer, Upkeep, Verdict};
use crate::damage::Copies;
use crate::space_desk::Cause;
use bindery_io::BLOCK_SIZE_BYTES;
use bindery_io::canary::Canary;
use bindery_storage::entry_log::{EXTENT_BYTES, IndexRecord, RECORD_BYTES};
use bindery_storage::{
    Damaged, EntryLog, EntryLogWriter, Extent, Generation, LedgerDirectory, LogId, OverlapScan, PagingOut,
    ReadBack, ReadError, RunCursor, SealedLog,
};
use bindery_types::{EntryId, LedgerId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most sources of one job: enough to clear a backlog of small logs.
pub(super) const JOB_SOURCES_MAX: usize = 64;
/// Bytes of the read-ahead windows of all sources of one job together.
const WINDOWS_BYTES: usize = 4 << 20;
/// Most that one read of a source takes: the journal's next write may wait behind it in the device.
const WINDOW_BYTES_MAX: usize = 128 << 10;
/// Records of an open run in memory.
const RECORDS_READ: u32 = 1024;

/// Runs of the footer that are written in one piece of work; about as many are read back in one.
const FOOTER_RUNS: usize = 1024;
/// Most runs of the sources that may be in memory when the commit removes these logs. If there are more, they are paged out before.
const HIDDEN_RUNS_MAX: u64 = 4096;
/// Bytes of memory for each run of the output while it is written.
const RUN_BYTES: u64 = 24;

/// Why a rewrite was given up.
pub(super) enum JobError {
    /// A source cannot be read.
    Source(LogRef, ReadError),
    /// The output cannot be written, or file descriptors ran out. That may pass, and says nothing about a source.
    PutOff(String),
}

/// What one call did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// Bytes copied.
    pub copied: u64,
    /// Bytes of the footer, written or read back.
    pub footer: u64,
    /// It may have taken long: time to look at the clock.
    pub is_long: bool,
    /// Number of reads of the disk, and one for the piece itself.
    pub work: u64,
    pub is_done: bool,
}

/// A log to be rewritten.
struct SourceLog {
    /// As all readers have it open.
    shared: Arc<EntryLog>,
    /// Opened for this job, to read past the page cache. One call of [`Job::advance`] opens one source.
    own: Option<Arc<EntryLog>>,
    /// Its runs that are still to come.
    runs: Option<RunCursor>,
}

impl SourceLog {
    /// As the job reads it.
    fn log(&self) -> &EntryLog {
        self.own.as_ref().expect("all sources are opened before a run is")
    }

    /// The ledger of its next run.
    fn next_ledger(&self) -> Option<LedgerId> {
        self.runs.as_ref()?.peek().map(|run| run.ledger)
    }

    /// Takes its next run if that is of the ledger.
    fn take_of(&mut self, ledger: LedgerId) -> Result<Option<Extent>, ReadError> {
        let Some(runs) = &mut self.runs else { return Ok(None) };
        match runs.peek() {
            Some(run) if run.ledger == ledger => runs.take(),
            _ => Ok(None),
        }
    }
}

/// A run that is not open yet.
struct Waiting {
    source: usize,
    run: Extent,
    /// Entries before this one were trimmed: they are not copied.
    from: Option<EntryId>,
    /// No removal came after the run, so its copies may take a higher generation.
    may_rise: bool,
}

/// A run whose entries are next.
struct Open {
    source: usize,
    run: Extent,
    newer: Newer,
    /// Entries before this one were trimmed: they are not copied.
    from: Option<EntryId>,
    /// The generation that winners take: their own, or the ledger's highest.
    generation: Generation,
    /// Records that were read and not settled.
    records: VecDeque<IndexRecord>,
    /// The next record to read.
    place: u32,
    last: Option<EntryId>,
}

/// Where the output stands.
enum Output {
    /// Nothing is there.
    None,
    Writing(EntryLogWriter),
    /// Durable; being read back once that has begun.
    Sealed(SealedLog, Option<ReadBack>),
}

pub(super) struct Job {
    directory: usize,
    cause: Cause,
    sources: Vec<SourceLog>,
    /// Ascending.
    source_ids: Vec<LogId>,
    /// The sources before this one are open.
    next_source: usize,
    /// How far each is read ahead.
    window_bytes: usize,
    /// Runs of one ledger that are not open yet, of which anything is live; ascending by their first entry.
    runs: VecDeque<Waiting>,
    /// Open runs, all of that ledger.
    open: Vec<Open>,
    /// The highest generation of the ledger in the sources.
    highest: Generation,
    /// No other log has a run of the ledger among those entries: no newer copy is sought.
    is_alone: bool,
    /// How far the ledgers, which ascend, have come in the other logs.
    scans: Vec<OverlapScan>,
    output_id: LogId,
    output: Output,
    /// Bytes of the sources that the job has not gone through yet, with their footers. It copies no more than that.
    to_come: u64,
    /// Runs of the sources that the job has not gone through yet.
    runs_to_come: u64,
    /// Bytes that there were to copy when it was planned, and that were copied.
    live: u64,
    copied_bytes: u64,
    /// All entries are copied.
    is_copied: bool,
    is_footer_written: bool,
    is_read_back: bool,
    /// Sources that are paged out before they go; `None` before they are known.
    leaving: Option<VecDeque<PagingOut>>,
    copied: u64,
    body: Vec<u8>,
}

impl Job {
    pub(super) fn new(
        directory: usize,
        cause: Cause,
        live: u64,
        sources: Vec<Arc<EntryLog>>,
        writer: EntryLogWriter,
    ) -> Job {
        let to_come = sources.iter().map(|log| log.size()).sum();
        let runs_to_come = sources.iter().map(|log| log.run_count()).sum();
        let mut source_ids: Vec<LogId> = sources.iter().map(|log| log.log_id()).collect();
        source_ids.sort_unstable();
        Job {
            directory,
            cause,
            window_bytes: Job::window_bytes(sources.len()),
            sources: sources.into_iter().map(|shared| SourceLog { shared, own: None, runs: None }).collect(),
            source_ids,
            next_source: 0,
            runs: VecDeque::new(),
            open: Vec::new(),
            highest: Generation(0),
            is_alone: false,
            scans: Vec::new(),
            output_id: writer.log_id(),
            output: Output::Writing(writer),
            to_come,
            runs_to_come,
            live,
            copied_bytes: 0,
            is_copied: false,
            is_footer_written: false,
            is_read_back: false,
            leaving: None,
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

    /// Bytes of the files of its sources.
    pub(super) fn bytes(&self) -> u64 {
        self.sources.iter().map(|source| source.shared.size()).sum()
    }

    /// Bytes that there were to copy when it was planned.
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// Bytes of the volume that the output will still take, at most: what is planned and not copied, with a place in the footer for
    /// each run, or what is left of the sources if that is less, and what is not written of what was copied. Runs that an
    /// entry of another generation divides are not foreseen.
    pub(super) fn still_needed(&self) -> u64 {
        let unwritten = match &self.output {
            Output::Writing(writer) => writer.unwritten_bytes(),
            Output::None | Output::Sealed(..) => return 0,
        };
        if self.is_copied {
            return unwritten;
        }
        let planned = self.live.saturating_sub(self.copied_bytes);
        let footer = self.runs_to_come.saturating_mul(EXTENT_BYTES);
        self.to_come.min(planned.saturating_add(footer)).saturating_add(unwritten)
    }

    /// Bytes of memory that the runs of the output may take until it is done: no output has more runs than its sources, but for
    /// runs that an entry of another generation divides.
    pub(super) fn memory_bytes(&self) -> u64 {
        Job::memory_of(self.sources.iter().map(|source| &*source.shared))
    }

    /// As [`Job::memory_bytes`], of a rewrite of these logs.
    pub(super) fn memory_of<'a>(sources: impl Iterator<Item = &'a EntryLog>) -> u64 {
        sources.map(|log| log.run_count() * RUN_BYTES).sum()
    }

    pub(super) fn output(&self) -> LogId {
        self.output_id
    }

    pub(super) fn sources(&self) -> Vec<LogRef> {
        self.sources.iter().map(|source| (self.directory, source.shared.log_id())).collect()
    }

    /// Does one piece of work.
    pub(super) fn advance(&mut self, upkeep: &Upkeep) -> Result<Piece, JobError> {
        if self.is_copied {
            return self.end_on(&upkeep.directories[self.directory]);
        }
        let passed = Piece { work: 1, ..Piece::default() };
        if self.next_source < self.sources.len() {
            self.open_source(upkeep)?;
            return Ok(passed);
        }
        if let Some(at) = self.open.iter().position(|open| open.records.is_empty()) {
            if self.open[at].place == self.open[at].run.count {
                self.open.swap_remove(at);
                self.runs_to_come = self.runs_to_come.saturating_sub(1);
            } else {
                self.read_records(upkeep, at)?;
            }
            return Ok(passed);
        }
        let next = self.open.iter().map(|open| open.records[0].entry).min();
        if let Some(waiting) = self.runs.front()
            && next.is_none_or(|next| waiting.run.first <= next)
        {
            let reads = self.open_run(upkeep);
            return Ok(Piece { work: 1 + reads, ..passed });
        }
        match next {
            Some(entry) => self.settle(upkeep, self.open[0].run.ledger, entry),
            None => {
                self.is_copied = !self.gather(upkeep)?;
                // It may have asked many logs.
                Ok(Piece { is_long: true, ..passed })
            }
        }
    }

    /// Does one piece of what is left when all entries are copied.
    fn end_on(&mut self, directory: &LedgerDirectory) -> Result<Piece, JobError> {
        let passed = Piece { work: 1, is_long: true, ..Piece::default() };
        let done = Piece { is_done: true, ..passed };
        let footer = |runs: u64| Piece { footer: runs.min(FOOTER_RUNS as u64) * EXTENT_BYTES, ..passed };
        let put_off = |error: &dyn std::fmt::Display| JobError::PutOff(error.to_string());
        match std::mem::replace(&mut self.output, Output::None) {
            Output::None => Ok(done),
            Output::Writing(writer) if self.copied == 0 => {
                writer.abandon().map_err(|e| put_off(&e))?;
                Ok(done)
            }
            Output::Writing(mut writer) if !self.is_footer_written => {
                let runs = writer.runs_to_list();
                let written = writer.write_footer(FOOTER_RUNS);
                self.output = Output::Writing(writer);
                self.is_footer_written = written.map_err(|e| put_off(&e))?;
                Ok(footer(runs))
            }
            Output::Writing(writer) => {
                let sealed = writer.finish_or_abandon().map_err(|e| put_off(&e))?;
                self.output = Output::Sealed(sealed, None);
                Ok(passed)
            }
            Output::Sealed(sealed, reading) => {
                let mut reading = match reading {
                    Some(reading) => Ok(reading),
                    None => directory.read_back(&sealed),
                };
                let read = match &mut reading {
                    Ok(reading) if !self.is_read_back => reading.read_on().map_err(|e| put_off(&e)),
                    Ok(_) => Ok(true),
                    Err(error) => Err(put_off(error)),
                };
                let runs = sealed.runs;
                // Also after an error: its file is there.
                self.output = Output::Sealed(sealed, reading.ok());
                if !std::mem::replace(&mut self.is_read_back, read?) {
                    return Ok(footer(runs));
                }
                Ok(Piece { is_done: self.page_out_on(directory), ..passed })
            }
        }
    }

    /// Pages the runs of the sources out of memory, by one step, if they are many. True when few are left.
    fn page_out_on(&mut self, directory: &LedgerDirectory) -> bool {
        let sources = &self.sources;
        let leaving = self.leaving.get_or_insert_with(|| {
            let view = directory.view();
            let is_in_memory = |log: &&EntryLog| view.bytes_on_disk(log.log_id()).is_none();
            let in_memory = || sources.iter().map(|source| &*source.shared).filter(is_in_memory);
            match in_memory().map(EntryLog::run_count).sum::<u64>() > HIDDEN_RUNS_MAX {
                true => in_memory().map(|log| PagingOut::new(log.log_id())).collect(),
                false => VecDeque::new(),
            }
        });
        if let Some(first) = leaving.front_mut()
            && directory.page_out_on(first)
        {
            leaving.pop_front();
        }
        leaving.is_empty()
    }

    fn open_source(&mut self, upkeep: &Upkeep) -> Result<(), JobError> {
        let source = &mut self.sources[self.next_source];
        let at = (self.directory, source.shared.log_id());
        let disk = upkeep.directories[self.directory].disk();
        // Of a log that does not open any more, all that was known when it did is in memory.
        let known = match upkeep.shared.damage().has_bad_frame(at) {
            true => {
                let view = &upkeep.shared.views()[at.0];
                let resident = || view.resident_runs(at.1).map(|runs| Ok(source.shared.known_runs(runs)));
                // Of one whose extents stay on disk, the index is in memory: what it finds is copied.
                view.indexed_cursor(&source.shared).or_else(resident)
            }
            false => None,
        };
        if let Some(runs) = known {
            source.runs = Some(runs.map_err(|error| JobError::Source(at, error))?);
            source.own = Some(source.shared.clone());
            let opened = self.next_source;
            self.leave_unlisted(upkeep, opened)?;
        } else {
            let own =
                source.shared.streamed(disk, self.window_bytes).map_err(|error| not_opened(at, error))?;
            let own = Arc::new(own);
            source.runs = Some(own.runs().map_err(|error| JobError::Source(at, error))?);
            source.own = Some(own);
        }
        self.next_source += 1;
        Ok(())
    }

    /// Leaves behind what a source does not find any more: every copy in that must be dead.
    fn leave_unlisted(&mut self, upkeep: &Upkeep, index: usize) -> Result<(), JobError> {
        let source = &mut self.sources[index];
        let unlisted = source.runs.as_mut().map(RunCursor::take_unreadable).unwrap_or_default();
        let (at, damage) = ((self.directory, source.shared.log_id()), upkeep.shared.damage());
        let mut is_needed = false;
        for run in &unlisted {
            let fate = upkeep.fate(run.ledger).of_lost(source.shared.generation(), run.first, run.last);
            if fate != Liveness::Dead && !damage.is_made_good(at, run.ledger, run.first, run.last) {
                damage.note_unlisted(at, &source.shared, run);
                is_needed = true;
            }
            self.to_come = self.to_come.saturating_sub(run.bytes);
            self.runs_to_come = self.runs_to_come.saturating_sub(1);
        }
        if is_needed {
            let (path, what) =
                (source.shared.path().to_owned(), "entries cannot be found any more".to_owned());
            return Err(JobError::Source(at, Damaged { path, offset: 0, what }.into()));
        }
        Ok(())
    }

    /// Takes the runs of the next ledger from the sources, without those of which nothing is live. `false`: there is no next ledger.
    fn gather(&mut self, upkeep: &Upkeep) -> Result<bool, JobError> {
        let Some(ledger) = self.sources.iter().filter_map(SourceLog::next_ledger).min() else {
            return Ok(false);
        };
        let fate = upkeep.fate(ledger);
        let mut runs = Vec::new();
        for index in 0..self.sources.len() {
            let at = (self.directory, self.sources[index].shared.log_id());
            while let Some(run) =
                self.sources[index].take_of(ledger).map_err(|error| JobError::Source(at, error))?
            {
                self.leave_unlisted(upkeep, index)?;
                let is_made_good = upkeep.shared.damage().is_made_good(at, ledger, run.first, run.last);
                let from = match fate.of_run(&run) {
                    _ if is_made_good => {
                        self.to_come = self.to_come.saturating_sub(run.bytes());
                        self.runs_to_come = self.runs_to_come.saturating_sub(1);
                        continue;
                    }
                    Liveness::Dead => {
                        self.to_come = self.to_come.saturating_sub(run.bytes());
                        self.runs_to_come = self.runs_to_come.saturating_sub(1);
                        continue;
                    }
                    Liveness::From(entry) => Some(entry),
                    Liveness::Live => None,
                };
                runs.push(Waiting { source: index, run, from, may_rise: fate.may_rise(&run) });
            }
        }
        runs.sort_by_key(|waiting| waiting.run.first);
        if let Some(Waiting { run: earliest, .. }) = runs.first() {
            let first = earliest.first;
            let (mut last, mut lowest, mut highest) =
                (earliest.last, earliest.generation, earliest.generation);
            for Waiting { run, .. } in &runs {
                last = last.max(run.last);
                lowest = lowest.min(run.generation);
                highest = highest.max(run.generation);
            }
            self.highest = highest;
            // Once for all runs of the ledger: where it is written in order, each log has other entries of it.
            let mut scans = std::mem::take(&mut self.scans);
            let is_newer = |log, newest: Generation| newest >= lowest && !self.has_source(log);
            self.is_alone = !upkeep.is_overlapped(&mut scans, ledger, (first, last), is_newer)
                || upkeep.shared.config().canaries.has(Canary::M49OtherLogsIgnored);
            self.scans = scans;
        }
        self.runs = runs.into();
        Ok(true)
    }

    fn has_source(&self, (directory, log_id): LogRef) -> bool {
        directory == self.directory && self.source_ids.binary_search(&log_id).is_ok()
    }

    /// Opens the next run. Returns the number of footers in which newer ones were sought.
    fn open_run(&mut self, upkeep: &Upkeep) -> u64 {
        let Waiting { source, run, from, may_rise } = self.runs.pop_front().expect("the caller saw it");
        let generation = if may_rise { self.highest } else { run.generation };
        // A newer copy in a source is met when the entry is settled.
        let newer = match self.is_alone {
            true => Newer::default(),
            false => upkeep.newer(&run, |log| self.has_source(log)),
        };
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
        reads
    }

    fn read_records(&mut self, upkeep: &Upkeep, at: usize) -> Result<(), JobError> {
        let open = &mut self.open[at];
        let log = self.sources[open.source].log();
        let log_ref = (self.directory, log.log_id());
        let records = match log.records_from(&open.run, open.place, RECORDS_READ, open.last) {
            Ok(records) => {
                open.place += u32::try_from(records.len()).expect("at most as many as requested");
                records
            }
            Err(ReadError::Damaged(_)) => {
                let end = open.run.count.min(open.place.saturating_add(RECORDS_READ));
                let records = sound_records(upkeep, log_ref, log, open, end)
                    .map_err(|error| JobError::Source(log_ref, error))?;
                open.place = end;
                records
            }
            Err(error) => return Err(JobError::Source(log_ref, error)),
        };
        open.last = records.last().map(|record| record.entry).or(open.last);
        open.records = records.into();
        Ok(())
    }

    /// Takes the records of an entry off all open runs, and copies the newest of its copies if that is a winner.
    fn settle(&mut self, upkeep: &Upkeep, ledger: LedgerId, entry: EntryId) -> Result<Piece, JobError> {
        let mut newest: Option<(Generation, LogId, usize, IndexRecord)> = None;
        for (at, open) in self.open.iter_mut().enumerate() {
            if open.records[0].entry == entry
                && let Some(record) = open.records.pop_front()
            {
                let age = (open.run.generation, open.run.log_id);
                let passed = u64::from(record.location.length) + RECORD_BYTES;
                self.to_come = self.to_come.saturating_sub(passed);
                if newest.is_none_or(|(generation, log_id, ..)| age > (generation, log_id)) {
                    newest = Some((age.0, age.1, at, record));
                }
            }
        }
        let (own, _, at, record) = newest.expect("an open run has the entry");
        let open = &self.open[at];
        let log = self.sources[open.source].log();
        let log_ref = (self.directory, log.log_id());
        let damage = upkeep.shared.damage();
        if open.from > Some(entry) || damage.is_made_good(log_ref, ledger, entry, entry) {
            return Ok(Piece { work: 1, ..Piece::default() });
        }
        let Output::Writing(writer) = &mut self.output else {
            unreachable!("entries are copied before the end")
        };
        let (verdict, reads) = upkeep.judge(&open.newer, entry);
        let generation = match verdict {
            Verdict::Loser => return Ok(Piece { work: 1 + reads, ..Piece::default() }),
            _ if upkeep.shared.config().canaries.has(Canary::M26CompactionKeepsLosers) => writer.generation(),
            Verdict::Winner => open.generation,
            Verdict::InDoubt => own,
        };
        self.body.resize(record.location.length as usize, 0);
        if let Err(error) = log.read_into(&record.location, ledger, entry, &mut self.body) {
            if let ReadError::Damaged(_) = error {
                let copies = Copies { ledger, first: entry, last: entry, generation: own };
                damage.note(log_ref, log.path(), copies);
            }
            return Err(JobError::Source(log_ref, error));
        }
        let crc = record.location.crc32c;
        writer
            .append_as(ledger, entry, &self.body, crc, generation)
            .map_err(|e| JobError::PutOff(e.to_string()))?;
        let copied = u64::from(record.location.length) + RECORD_BYTES;
        self.copied += 1;
        self.copied_bytes += copied;
        Ok(Piece { copied, work: 2 + reads, ..Piece::default() })
    }

    /// The output, read back, when the job is done; `None` when nothing was left to copy.
    pub(super) fn into_output(self) -> Option<(SealedLog, ReadBack)> {
        match self.output {
            Output::Sealed(sealed, Some(read_back)) => Some((sealed, read_back)),
            _ => None,
        }
    }

    /// Ends the job without a commit: deletes what it wrote and returns the ids of its sources, which stay as they are. If the file cannot
    /// be deleted, that is only logged: the next start removes it.
    pub(super) fn give_up(self, directory: &LedgerDirectory) -> Vec<LogId> {
        let sources = self.sources.iter().map(|source| source.shared.log_id()).collect();
        let removed = match self.output {
            Output::None => Ok(()),
            Output::Writing(writer) => writer.abandon(),
            Output::Sealed(sealed, _) => directory.discard(sealed.log_id),
        };
        if let Err(error) = removed {
            tracing::warn!(%error, "cannot delete an unfinished entry log: it stays until the next start");
        }
        sources
    }
}

/// Reads the records of a run up to the place `end` one by one, because one of them is damaged, without those of copies that are dead for
/// that. Notes the others, and fails with the first of them.
fn sound_records(
    upkeep: &Upkeep,
    at: LogRef,
    log: &EntryLog,
    open: &Open,
    end: u32,
) -> Result<Vec<IndexRecord>, ReadError> {
    let (run, damage) = (&open.run, upkeep.shared.damage());
    let (mut records, mut last, mut failed) = (Vec::new(), open.last, None);
    for place in open.place..end {
        match log.records_from(run, place, 1, last) {
            Ok(record) => {
                last = record.last().map(|record| record.entry).or(last);
                records.extend(record);
            }
            Err(error) => {
                let own = run.regular_ids().and_then(|mut ids| ids.nth(place as usize));
                // Which entry it is of, only the record said.
                let (first, last) = own.map_or((run.first, run.last), |entry| (entry, entry));
                if !damage.is_made_good(at, run.ledger, first, last) {
                    let Extent { ledger, generation, .. } = *run;
                    damage.note(at, log.path(), Copies { ledger, first, last, generation });
                    failed = failed.or(Some(error));
                }
            }
        }
    }
    failed.map_or(Ok(records), Err)
}

/// The error for a source that could not be opened: it is held against that log (invariant 4 of `space`), unless descriptors ran out.
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
