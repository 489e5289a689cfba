//! Checking a ledger directory that nobody serves from: `bindery verify`.
//!
//! # Data flow
//! ```text
//! state table (opened as a start does, over a disk that keeps its bytes) -> each log -> what the table says of it
//!     -> files that nobody lists
//! ```
//!
//! # Invariants
//! 1. Nothing on the disk changes.
//! 2. One damage does not hide the next: all logs are checked, also when the table is not readable.
//! 3. The checks are those of a start and of a read, by the same code; a directory without damage opens, and each
//!    of its entries can be read (IB7, IB13, IB15).
//!
//! # Limits
//! In memory: the table's records (one per ledger), the extents of one log, its window of 1 MiB. Findings of one kind
//! in one file: [`FINDINGS_MAX`], the others are counted.

use crate::entry_log::{LogDamage, LogEvent, LogPart, file_name, log_id_of};
use crate::read_only::ReadOnlyDisk;
use crate::state_table::{LedgerRecord, LogRecord, NEW_FILE_NAME, Recovered, STATE_FILE_NAME};
use crate::{DiskError, EntryLog, Extent, LogId, OpenLogError, StateError, StateTable, TierView};
use bindery_io::{Disk, is_shortage};
use bindery_types::{EntryId, LedgerId};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Findings listed per file.
pub const FINDINGS_MAX: u64 = 100;
/// Ranges of entries listed per finding.
pub const RANGES_MAX: usize = 100;

/// Rows of extents checked together.
const TIER_ROWS: usize = 1024;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is wrong; worth knowing.
    Note,
    /// Harmless remains, of a crash for example.
    Leftover,
    /// Could not be checked: nothing is known about it.
    Unchecked,
    /// Data is lost here, or cannot be trusted.
    Damage,
}

/// The kind of finding; it decides what to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingKind {
    /// The state table does not verify: the directory does not open.
    StateTable,
    /// Entry logs without a state table.
    StateTableMissing,
    /// A listed log is not there.
    LogMissing,
    /// Header, footer or trailer of a listed log, or it is another file than the table lists.
    LogFrame,
    /// Index records.
    LogIndex,
    /// An entry's body.
    LogEntry,
    /// Zeros that nothing reads.
    LogPadding,
    /// Table and logs contradict each other.
    Contradiction,
    /// A log that the table does not list.
    Orphan,
    /// A file under a name that is used while another is made.
    Interrupted,
    /// A name that is not ours.
    UnknownFile,
    /// Ledgers of which this bookie may miss entries.
    Limbo,
    /// Entries that are said to be in object storage, and no row says where.
    TierExtents,
    /// Written by a newer release.
    NewerFormat,
    /// The system refuses to open or read.
    Refused,
}

/// Entries of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryRange {
    /// The ledger.
    pub ledger: LedgerId,
    /// First and last; `None`: not known which.
    pub entries: Option<(EntryId, EntryId)>,
}

/// The entries that a finding affects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Affected {
    /// Ranges that hold the unreadable entries, at most [`RANGES_MAX`].
    pub ranges: Vec<EntryRange>,
    /// Further ranges.
    pub more: u64,
    /// In words, when the ranges do not say it all.
    pub words: Option<String>,
}

/// One finding.
#[derive(Debug, Clone)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The kind of finding.
    pub kind: FindingKind,
    /// The file or directory.
    pub path: PathBuf,
    /// Where in the file, in bytes.
    pub offset: Option<u64>,
    /// The finding, in words.
    pub what: String,
    /// The expected value, and the one found.
    pub expected_found: Option<(String, String)>,
    /// Which entries.
    pub affected: Affected,
}

/// A report from a check under way.
#[derive(Debug)]
pub enum DirectoryEvent {
    /// Something to report.
    Finding(Box<Finding>),
    /// So many more bytes were checked.
    Bytes(u64),
}

/// The counts of a check.
#[derive(Debug, Clone, Default)]
pub struct DirectoryReport {
    /// The content of the state table; `None` when there is none or it does not verify.
    pub recovered: Option<Recovered>,
    /// Logs that were checked.
    pub logs: u64,
    /// Entries that verified.
    pub entries: u64,
    /// Bytes of their bodies.
    pub body_bytes: u64,
}

/// Checks the directory `dir`, which holds state table and entry logs.
pub fn verify_directory(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    visit: &mut dyn FnMut(DirectoryEvent),
) -> DirectoryReport {
    let disk: Arc<dyn Disk> = Arc::new(ReadOnlyDisk::new(disk.clone()));
    let mut check =
        Check { disk, dir, visit, report: DirectoryReport::default(), lost: Vec::new(), seen: Vec::new() };
    check.run();
    check.report
}

impl Finding {
    fn new(severity: Severity, kind: FindingKind, path: &Path, what: impl Into<String>) -> Finding {
        let (path, what) = (path.to_owned(), what.into());
        let affected = Affected::default();
        Finding { severity, kind, path, offset: None, what, expected_found: None, affected }
    }

    /// The finding for a refusal of the system: without the right to read nothing is known, and any other error is the
    /// disk's.
    pub fn refused(error: &DiskError) -> Finding {
        // Neither says anything about the bytes.
        let is_unchecked = error.source.kind() == ErrorKind::PermissionDenied || is_shortage(&error.source);
        let severity = if is_unchecked { Severity::Unchecked } else { Severity::Damage };
        let what = format!("cannot {}: {}", error.action, error.source);
        Finding::new(severity, FindingKind::Refused, &error.path, what)
    }

    fn expected(mut self, expected: impl Into<String>, found: impl Into<String>) -> Finding {
        self.expected_found = Some((expected.into(), found.into()));
        self
    }
}

impl Affected {
    fn words(words: impl Into<String>) -> Affected {
        Affected { words: Some(words.into()), ..Affected::default() }
    }

    /// Adds a range; joins it with the one before when it goes on there.
    fn push(&mut self, ledger: LedgerId, first: EntryId, last: EntryId) {
        if let Some(EntryRange { ledger: before, entries: Some((_, end)) }) = self.ranges.last_mut()
            && *before == ledger
            && end.get().checked_add(1) == Some(first.get())
        {
            *end = last;
        } else if self.ranges.len() < RANGES_MAX {
            self.ranges.push(EntryRange { ledger, entries: Some((first, last)) });
        } else {
            self.more += 1;
        }
    }

    fn of_extents(extents: &[Extent]) -> Affected {
        let mut affected = Affected::default();
        for extent in extents {
            affected.push(extent.ledger, extent.first, extent.last);
        }
        affected
    }
}

struct Check<'a> {
    disk: Arc<dyn Disk>,
    dir: &'a Path,
    visit: &'a mut dyn FnMut(DirectoryEvent),
    report: DirectoryReport,
    /// Findings about logs whose extents cannot be read, kept until it is known which ledgers lack entries.
    lost: Vec<Finding>,
    /// Beside the table's ledgers: the highest entry in any log, -1 for none.
    seen: Vec<i64>,
}

impl Check<'_> {
    fn find(&mut self, finding: Finding) {
        (self.visit)(DirectoryEvent::Finding(Box::new(finding)));
    }

    fn run(&mut self) {
        let files = match self.disk.list(self.dir) {
            Ok(files) => files,
            Err(error) => {
                return self.find(Finding::refused(&DiskError::new(self.dir, "list directory", error)));
            }
        };
        let on_disk: Vec<LogId> = files.iter().filter_map(|file| log_id_of(&file.name)).collect();
        let has_table = files.iter().any(|file| file.name == STATE_FILE_NAME);
        let recovered = if has_table {
            self.state_table()
        } else {
            self.table_is_missing(&on_disk);
            None
        };
        let listed = recovered.as_ref().map(|recovered| recovered.logs.clone());
        if let Some(recovered) = recovered {
            self.seen = vec![-1; recovered.ledgers.len()];
            self.report.recovered = Some(recovered);
        }
        match listed {
            Some(listed) => {
                for record in &listed {
                    self.log(record.log_id, Some(record));
                }
                for log_id in on_disk.iter().filter(|id| !listed.iter().any(|log| log.log_id == **id)) {
                    let path = self.dir.join(file_name(*log_id));
                    let what = "the state table does not list this entry log: a rewrite replaced it, or a crash left it";
                    self.find(Finding::new(Severity::Leftover, FindingKind::Orphan, &path, what));
                }
            }
            // Which of them count is not known; each can be checked by itself.
            None => on_disk.iter().for_each(|log_id| self.log(*log_id, None)),
        }
        self.ledgers();
        self.lost_logs();
        self.other_files(&files);
    }

    fn table_is_missing(&mut self, logs: &[LogId]) {
        let path = self.dir.join(STATE_FILE_NAME);
        if logs.is_empty() {
            let what = "there is no state table and no entry log: the bookie never started here";
            return self.find(Finding::new(Severity::Note, FindingKind::StateTableMissing, self.dir, what));
        }
        let what = "the state table is missing: which entry logs count is not known";
        let mut finding = Finding::new(Severity::Damage, FindingKind::StateTableMissing, &path, what)
            .expected(format!("a state table for {} entry logs", logs.len()), "no file");
        finding.affected = Affected::words("all ledgers of this directory");
        self.find(finding);
    }

    fn state_table(&mut self) -> Option<Recovered> {
        let path = self.dir.join(STATE_FILE_NAME);
        let bytes = self.disk.open(&path, bindery_io::OpenMode::Read).and_then(|file| file.len());
        let opened = StateTable::open(&self.disk, self.dir);
        (self.visit)(DirectoryEvent::Bytes(bytes.unwrap_or(0)));
        let mut finding = match opened {
            Ok((table, recovered)) => {
                self.tier(&path, &table.tier(), &recovered);
                return Some(recovered);
            }
            Err(StateError::NewerFormat(error)) => {
                Finding::new(Severity::Unchecked, FindingKind::NewerFormat, &path, error.to_string())
            }
            Err(StateError::Disk(error)) => Finding::refused(&error),
            Err(StateError::Damaged(damaged)) => {
                let kind = FindingKind::StateTable;
                let finding = Finding::new(Severity::Damage, kind, &path, damaged.what.clone());
                let mut finding = finding.expected("what the last commit left", damaged.what);
                finding.what = "the state table is damaged".into();
                finding.offset = Some(damaged.offset);
                finding
            }
            Err(error @ (StateError::Latched { .. } | StateError::Database { .. })) => {
                let kind = FindingKind::StateTable;
                Finding::new(Severity::Damage, kind, &path, "the state table is damaged")
                    .expected("what the last commit left", error.to_string())
            }
        };
        finding.affected = Affected::words("all ledgers of this directory");
        self.find(finding);
        None
    }

    /// Registers against the rows of extents. Rows of a ledger may be in several directories: only where there is one a gap means
    /// that something is lost.
    fn tier(&mut self, path: &Path, view: &TierView, recovered: &Recovered) {
        let is_alone = recovered.meta.as_ref().is_some_and(|meta| meta.directories == 1);
        let mut lost = Affected::default();
        let behind = |entry: EntryId| entry.get().checked_add(1).and_then(EntryId::new);
        for record in recovered.ledgers.iter().filter(|_| is_alone) {
            let Some(tier) = record.tier else { continue };
            let is_wanted = |entry: &EntryId| *entry <= tier.lre;
            // Rows ascend: of those that count, the first entry that none has had so far.
            let (mut next, mut from) = (Some(EntryId::FIRST), Some(EntryId::FIRST));
            while let Some(page) = from.filter(is_wanted) {
                let rows = view.rows(record.ledger, page, TIER_ROWS).unwrap_or_default();
                for row in rows.iter().filter(|row| row.stamp.epoch == tier.stamp.epoch) {
                    let before = EntryId::new(row.extent.first.get() - 1);
                    if let (Some(first), Some(last)) = (next.filter(is_wanted), before)
                        && first <= last
                    {
                        lost.push(record.ledger, first, last.min(tier.lre));
                    }
                    next = next.max(behind(row.extent.last));
                }
                let last = rows.last().filter(|_| rows.len() == TIER_ROWS);
                from = last.and_then(|row| behind(row.extent.last));
            }
            if let Some(first) = next.filter(is_wanted) {
                lost.push(record.ledger, first, tier.lre);
            }
        }
        if !lost.ranges.is_empty() {
            let what = "entries are said to be in object storage, and nothing says where";
            let mut finding = Finding::new(Severity::Damage, FindingKind::TierExtents, path, what)
                .expected("an extent for each entry up to the last reconciled one", "none");
            finding.affected = lost;
            self.find(finding);
        }
    }

    fn log(&mut self, log_id: LogId, record: Option<&LogRecord>) {
        self.report.logs += 1;
        let (log, extents) = match EntryLog::open_uncached(&self.disk, self.dir, log_id) {
            Ok(opened) => opened,
            Err(error) => return self.log_does_not_open(log_id, error, record),
        };
        if let Some(record) = record {
            self.compare(&log, record);
        }
        let (disk_findings, path) = (&mut 0, log.path().to_owned());
        let visit = &mut *self.visit;
        let totals = log.verify_extents(&extents, &mut |event| match event {
            LogEvent::Bytes(bytes) => visit(DirectoryEvent::Bytes(bytes)),
            LogEvent::Damage(damage) => {
                *disk_findings += 1;
                if *disk_findings <= FINDINGS_MAX {
                    visit(DirectoryEvent::Finding(Box::new(of_log(&path, damage))));
                }
            }
        });
        if *disk_findings > FINDINGS_MAX {
            let what =
                format!("{} further damages in this file are not listed", *disk_findings - FINDINGS_MAX);
            self.find(Finding::new(Severity::Damage, FindingKind::LogEntry, &path, what));
        }
        self.report.entries += totals.entries;
        self.report.body_bytes += totals.body_bytes;
        self.extents(&path, &extents);
    }

    fn log_does_not_open(&mut self, log_id: LogId, error: OpenLogError, record: Option<&LogRecord>) {
        let path = &self.dir.join(file_name(log_id));
        let is_missing =
            matches!(&error, OpenLogError::Disk(error) if error.source.kind() == ErrorKind::NotFound);
        let promised = record.map_or("an entry log".to_owned(), |record| {
            format!(
                "an entry log of generation {} with {} bytes and {} entries",
                record.generation, record.size, record.entries
            )
        });
        let mut finding = match error {
            OpenLogError::Disk(_) if is_missing => {
                let what = "the state table lists this entry log, and the file is missing";
                Finding::new(Severity::Damage, FindingKind::LogMissing, path, what)
                    .expected(promised, "no file")
            }
            OpenLogError::Disk(error) => Finding::refused(&error),
            OpenLogError::NewerFormat(error) => {
                Finding::new(Severity::Unchecked, FindingKind::NewerFormat, path, error.to_string())
            }
            OpenLogError::Damaged(damaged) => {
                let what = "the entry log does not open";
                let mut finding = Finding::new(Severity::Damage, FindingKind::LogFrame, path, what)
                    .expected(promised, damaged.what);
                finding.offset = Some(damaged.offset);
                finding
            }
        };
        let salvaged = EntryLog::salvage_extents(&self.disk, path);
        match salvaged.map(|extents| (extents.iter().all(|extent| extent.log_id == log_id), extents)) {
            Ok((true, extents)) => {
                finding.affected = Affected::of_extents(&extents);
                self.extents(path, &extents);
                self.find(finding);
            }
            // Nothing to go by, or another log's.
            Ok((false, _)) | Err(_) => {
                let entries = record.map_or(String::new(), |record| format!(" ({} entries)", record.entries));
                finding.affected = Affected::words(format!("all entries of this log{entries}"));
                self.lost.push(finding);
            }
        }
    }

    /// Compares a log that opened with the table's record of it.
    fn compare(&mut self, log: &EntryLog, record: &LogRecord) {
        let about = log.describe();
        let line = |generation: crate::Generation, size: u64, entries: u64| {
            format!("generation {generation}, {size} bytes, {entries} entries")
        };
        let expected = line(record.generation, record.size, record.entries);
        let found = line(about.generation, about.size, about.entries);
        if expected != found {
            let what = "this is not the entry log that the state table lists";
            let finding = Finding::new(Severity::Damage, FindingKind::LogFrame, log.path(), what);
            self.find(finding.expected(expected, found));
        }
        let recovered = self.report.recovered.as_ref().expect("a record is the table's");
        let is_ahead = |mark: &&crate::JournalMark| {
            !recovered.marks.iter().any(|of_table| of_table.journal == mark.journal && of_table >= mark)
        };
        let ahead = record.marks.iter().find(is_ahead).copied();
        if ahead.is_some() || record.log_id.0 >= recovered.next_log_id {
            let what =
                format!("the state table lists log {} with numbers that are ahead of its own", record.log_id);
            let expected = format!("marks at or above the log's, ids below {}", recovered.next_log_id);
            let found = format!(
                "log {}, mark {}",
                record.log_id,
                ahead.map_or("fine".into(), |m| m.mark.to_string())
            );
            let finding = Finding::new(
                Severity::Damage,
                FindingKind::Contradiction,
                &self.dir.join(STATE_FILE_NAME),
                what,
            );
            self.find(finding.expected(expected, found));
        }
    }

    /// Compares the ledgers in a log with the table.
    fn extents(&mut self, path: &Path, extents: &[Extent]) {
        let Some(recovered) = &self.report.recovered else { return };
        let mut unknown = Affected::default();
        for extent in extents {
            match recovered.ledgers.binary_search_by_key(&extent.ledger, |record| record.ledger) {
                // Copies from before a removal are absent, until a compaction takes them.
                Ok(at) if extent.generation < recovered.ledgers[at].hidden_below => {}
                Ok(at) => self.seen[at] = self.seen[at].max(extent.last.get()),
                Err(_) => unknown.push(extent.ledger, extent.first, extent.last),
            }
        }
        if !unknown.ranges.is_empty() {
            let what = "the log holds entries of ledgers that the state table does not know";
            let mut finding = Finding::new(Severity::Damage, FindingKind::Contradiction, path, what)
                .expected("a record for each ledger", "none");
            finding.affected = unknown;
            self.find(finding);
        }
    }

    /// Ledger records against what the logs hold.
    fn ledgers(&mut self) {
        let Some(recovered) = self.report.recovered.take() else { return };
        let path = self.dir.join(STATE_FILE_NAME);
        let mut limbo = Affected::default();
        for (record, seen) in recovered.ledgers.iter().zip(&self.seen) {
            if record.is_limbo {
                limbo.push_ledger(record.ledger);
            }
            let last = EntryId::to_wire(record.last_entry);
            if *seen > last {
                let what = format!("the record of ledger {} is behind its entries", record.ledger);
                let mut finding = Finding::new(Severity::Damage, FindingKind::Contradiction, &path, what)
                    .expected(format!("last entry {seen} or above"), format!("last entry {last}"));
                finding.affected.push_ledger(record.ledger);
                (self.visit)(DirectoryEvent::Finding(Box::new(finding)));
            }
        }
        if !limbo.ranges.is_empty() {
            let count = limbo.ranges.len() as u64 + limbo.more;
            let what = format!("{count} ledgers are in limbo: entries of them may be missing here");
            let mut finding = Finding::new(Severity::Note, FindingKind::Limbo, &path, what);
            finding.affected = limbo;
            (self.visit)(DirectoryEvent::Finding(Box::new(finding)));
        }
        self.report.recovered = Some(recovered);
    }

    /// Logs whose contents are unknown: the ledgers that end in them can be named still.
    fn lost_logs(&mut self) {
        let mut ending = Affected::default();
        if let Some(recovered) = &self.report.recovered
            && !self.lost.is_empty()
        {
            for (record, seen) in recovered.ledgers.iter().zip(&self.seen) {
                let is_short = |record: &LedgerRecord| record.last_entry.filter(|last| last.get() > *seen);
                if let (Some(last), Some(first)) = (is_short(record), EntryId::new(seen + 1)) {
                    ending.push(record.ledger, first, last);
                }
            }
        }
        for mut finding in std::mem::take(&mut self.lost) {
            finding.affected.ranges.clone_from(&ending.ranges);
            finding.affected.more = ending.more;
            if !ending.ranges.is_empty() {
                let words = finding.affected.words.take().unwrap_or_default();
                finding.affected.words = Some(format!("{words}; ledgers whose end is in no other log:"));
            }
            self.find(finding);
        }
    }

    fn other_files(&mut self, files: &[bindery_io::Entry]) {
        const OF_THE_SERVER: [&str; 6] = ["BINDERY", "VERSION", "SESSION", "RESERVE", "KNOWN", "PROBE"];
        for file in files {
            let path = self.dir.join(&file.name);
            let is_ours = |name: &str| name == STATE_FILE_NAME || OF_THE_SERVER.contains(&name);
            if log_id_of(&file.name).is_some() || is_ours(&file.name) {
                continue;
            }
            if file.name == NEW_FILE_NAME || file.name.strip_suffix(".new").is_some_and(is_ours) {
                let what = "a crash left this file while it was made";
                self.find(Finding::new(Severity::Leftover, FindingKind::Interrupted, &path, what));
            } else {
                let what = "this is not a file of the bookie";
                self.find(Finding::new(Severity::Note, FindingKind::UnknownFile, &path, what));
            }
        }
    }
}

impl Affected {
    fn push_ledger(&mut self, ledger: LedgerId) {
        if self.ranges.len() < RANGES_MAX {
            self.ranges.push(EntryRange { ledger, entries: None });
        } else {
            self.more += 1;
        }
    }
}

fn of_log(path: &Path, damage: LogDamage) -> Finding {
    let kind = match damage.part {
        LogPart::Frame => FindingKind::LogFrame,
        LogPart::Padding => FindingKind::LogPadding,
        LogPart::Index => FindingKind::LogIndex,
        LogPart::Entry => FindingKind::LogEntry,
    };
    let severity = if damage.is_shortage() { Severity::Unchecked } else { Severity::Damage };
    let mut finding = Finding::new(severity, kind, path, damage.what);
    finding.offset = Some(damage.offset);
    finding.expected_found = damage.expected_found;
    if let Some((ledger, first, last)) = damage.affected {
        finding.affected.push(ledger, first, last);
    }
    if damage.part == LogPart::Padding {
        finding.affected.words = Some("no entry: nothing reads these bytes".into());
    }
    finding
}

#[cfg(test)]
mod tests;
