//! One rewrite: the winners of some logs of a directory, merged into one output.

use super::LogRef;
use crate::machine::Flushing;
use bindery_io::canary::Canary;
use bindery_storage::entry_log::{IndexRecord, RECORD_BYTES};
use bindery_storage::{EntryLog, EntryLogWriter, Extent, Generation, LogId, ReadError, SealedLog};
use bindery_types::LedgerId;
use std::collections::VecDeque;
use std::sync::Arc;

/// Why a rewrite was given up.
pub(super) enum JobError {
    /// A source cannot be read.
    Source(LogRef, ReadError),
    /// The output cannot be written.
    Output(String),
}

/// A winner to be copied.
struct Copy {
    ledger: LedgerId,
    record: IndexRecord,
    source: usize,
    generation: Generation,
}

pub(super) struct Job {
    directory: usize,
    sources: Vec<Arc<EntryLog>>,
    /// Runs still to be looked at, with the index of their source; ascending by (ledger, first).
    runs: VecDeque<(usize, Extent)>,
    /// Winners of the runs that were looked at last, ascending.
    copies: VecDeque<Copy>,
    writer: EntryLogWriter,
    copied: u64,
    body: Vec<u8>,
}

impl Job {
    pub(super) fn new(
        directory: usize,
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
            sources: sources.into_iter().map(|(log, _)| log).collect(),
            runs: runs.into(),
            copies: VecDeque::new(),
            writer,
            copied: 0,
            body: Vec::new(),
        }
    }

    pub(super) fn directory(&self) -> usize {
        self.directory
    }

    pub(super) fn sources(&self) -> Vec<LogRef> {
        self.sources.iter().map(|log| (self.directory, log.log_id())).collect()
    }

    /// Copies one entry, verified, and returns its bytes; `None` at the end.
    pub(super) fn copy_next(&mut self, flushing: &Flushing) -> Result<Option<u64>, JobError> {
        while self.copies.is_empty() {
            if self.runs.is_empty() {
                return Ok(None);
            }
            self.look_at_runs(flushing)?;
        }
        let Copy { ledger, record, source, generation } = self.copies.pop_front().expect("it is not empty");
        let log = &self.sources[source];
        self.body.resize(record.location.length as usize, 0);
        let read = log.read_into(&record.location, ledger, record.entry, &mut self.body);
        read.map_err(|error| JobError::Source((self.directory, log.log_id()), error))?;
        let crc = record.location.crc32c;
        let appended = self.writer.append_as(ledger, record.entry, &self.body, crc, generation);
        appended.map_err(|error| JobError::Output(error.to_string()))?;
        self.copied += 1;
        Ok(Some(u64::from(record.location.length) + RECORD_BYTES))
    }

    /// Takes the next run, and those that overlap it or each other, so that what follows is all behind them.
    fn look_at_runs(&mut self, flushing: &Flushing) -> Result<(), JobError> {
        let mut reach = None;
        let mut found: Vec<Copy> = Vec::new();
        while let Some((source, run)) = self.runs.front().copied() {
            if reach.is_some_and(|reach| (run.ledger, run.first) > reach) {
                break;
            }
            self.runs.pop_front();
            reach = reach.max(Some((run.ledger, run.last)));
            if flushing.is_hidden(&run) {
                continue;
            }
            let log = &self.sources[source];
            let newer = flushing.newer(&run);
            let records =
                log.entries(&run).map_err(|error| JobError::Source((self.directory, log.log_id()), error))?;
            let mut generation = run.generation;
            if flushing.engine.config.canaries.has(Canary::M26CompactionKeepsLosers) {
                generation = self.writer.generation();
            }
            let is_wanted = |record: &IndexRecord| flushing.is_winner(&newer, record.entry);
            found.extend(records.into_iter().filter(is_wanted).map(|record| Copy {
                ledger: run.ledger,
                record,
                source,
                generation,
            }));
        }
        found.sort_by_key(|copy| (copy.record.entry, std::cmp::Reverse(copy.generation)));
        // Two sources never win with the same entry; of losers (a canary) one is enough.
        found.dedup_by_key(|copy| copy.record.entry);
        self.copies = found.into();
        Ok(())
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
        let sources = self.sources.iter().map(|log| log.log_id()).collect();
        if let Err(error) = self.writer.abandon() {
            tracing::warn!(%error, "an unfinished log stays until the next start");
        }
        (self.directory, sources)
    }
}
