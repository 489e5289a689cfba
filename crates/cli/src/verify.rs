//! `bindery verify`: everything a stopped bookie has on disk, checked; nothing changed.
//!
//! # Data flow
//! ```text
//! paths -> directories, locked -> per bookie: marks and cookies -> ledger directories -> journal (held against their
//!     marks) -> findings, as they come -> summary -> exit code
//! ```
//!
//! # Limits
//! One bookie at a time: the records of a state table (one per ledger), one group of a journal, the extents of one log.

mod finding;
mod journal;
mod marks;

use crate::args::OfflineArgs;
use crate::exit::{self, Failure};
use crate::offline::{BookieDirs, CURRENT, Offline, grouped, size};
use crate::output;
use crate::progress::{Progress, Unit};
use crate::status_line;
use bindery_io::{Disk, RealDisk};
use bindery_storage::verify_dir::{DirectoryEvent, Severity, verify_directory};
use bindery_storage::{JournalMark, Mark, Meta};
use finding::{Finding, Kind};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Runs the command.
pub fn run(args: &OfflineArgs) -> Result<(), Failure> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    let found = Offline::open(&*disk, &args.dirs)?;
    let out = BufWriter::new(output::raw_stdout().map_err(|error| output::failure(&error))?);
    let mut report = Report::new(out, args.json, total_bytes(&*disk, &found.bookies));
    for (path, why) in &found.notes {
        report.find(&Finding::new(Severity::Note, Kind::LeftOut, path, why));
    }
    for bookie in &found.bookies {
        verify(&disk, bookie, &mut report);
    }
    report.finish()
}

/// The bytes to read, for the progress bar.
fn total_bytes(disk: &dyn Disk, bookies: &[BookieDirs]) -> u64 {
    let files = bookies.iter().flat_map(BookieDirs::all).flat_map(|dir| disk.list(&dir.join(CURRENT)));
    files.flatten().map(|file| file.len).sum()
}

fn verify(disk: &Arc<dyn Disk>, dirs: &BookieDirs, report: &mut Report) {
    report.begin(&dirs.name);
    // Findings name the bookie in what they advise, so its cookie is read first.
    let mut found = Vec::new();
    let cookie = marks::verify(&**disk, dirs, &mut |finding| found.push(finding));
    report.bookie = cookie.as_ref().map(|cookie| cookie.bookie_id.clone());
    found.iter().for_each(|finding| report.find(finding));

    let mut ledgers = Vec::new();
    for dir in &dirs.ledgers {
        ledgers.push(ledger_directory(disk, dir, report));
    }
    contradictions(&dirs.ledgers, &ledgers, cookie.as_ref(), report);

    let meta = ledgers.iter().find_map(|ledger| ledger.meta.as_ref());
    let owner = meta.map(|meta| (meta.instance_id.clone(), meta.bookie_id.clone())).or_else(|| {
        let cookie = cookie.as_ref()?;
        Some((cookie.instance_id.clone().unwrap_or_default(), cookie.bookie_id.clone()))
    });
    let owner = owner.map(|(instance, bookie)| format!("{instance} {bookie}"));
    if dirs.journals.is_empty() {
        if !dirs.ledgers.is_empty() && dirs.missing.is_empty() {
            let what = "the journal of this bookie was not named, so its records are not checked";
            report.find(&Finding::new(Severity::Note, Kind::Directory, &dirs.name, what));
        }
        return;
    }
    if let Some(meta) = meta
        && meta.journals as usize > dirs.journals.len()
    {
        let what =
            format!("{} of the bookie's {} journals are looked at", dirs.journals.len(), meta.journals);
        report.find(&Finding::new(Severity::Note, Kind::Directory, &dirs.name, what));
    }
    for (number, dir) in &dirs.journals {
        journal(disk, dirs, (*number, dir), &ledgers, owner.as_deref(), report);
    }
}

/// One journal, held against its component of the marks.
fn journal(
    disk: &Arc<dyn Disk>,
    dirs: &BookieDirs,
    (number, journal_dir): (u16, &Path),
    ledgers: &[LedgerDirectory],
    owner: Option<&str>,
    report: &mut Report,
) {
    let are_known = !ledgers.is_empty() && ledgers.iter().all(|ledger| ledger.is_readable);
    let of_directories = || ledgers.iter().filter_map(|ledger| ledger.mark_of(number));
    let none = Mark { file_id: 0, group: 0 };
    let marks = are_known.then(|| journal::Marks {
        lowest: of_directories().min().unwrap_or(none),
        newest: of_directories().max().unwrap_or(none),
    });
    if marks.is_none() {
        let (kind, why) = match dirs.ledgers.is_empty() {
            true => (Kind::Directory, "its ledger directories were not named"),
            false => (Kind::LeftOut, "a state table cannot be read"),
        };
        let what = format!(
            "how far ledger storage holds the journal is not known ({why}): all groups count as needed"
        );
        report.find(&Finding::new(Severity::Note, kind, journal_dir, what));
    }
    let current = journal_dir.join(CURRENT);
    let (mut findings, mut bytes) = (Vec::new(), 0);
    let totals = journal::Check {
        disk,
        dir: &current,
        number,
        owner,
        marks,
        report: &mut |finding| findings.push(finding),
        progress: &mut |n| bytes += n,
    }
    .run();
    report.read(bytes);
    findings.iter().for_each(|finding| report.find(finding));
    for (dir, ledger) in dirs.ledgers.iter().zip(ledgers) {
        if totals.was_used && ledger.never_started {
            let what = "the journal was written, and this ledger directory holds nothing";
            let finding = Finding::new(Severity::Damage, Kind::Directory, dir, what);
            report
                .find(&finding.expected("a state table", "no file").affects("all ledgers of this directory"));
        }
    }
    report.journal(journal_dir, number, &totals, marks.is_some());
}

/// The state that a ledger directory records.
#[derive(Default)]
struct LedgerDirectory {
    meta: Option<Meta>,
    marks: Vec<JournalMark>,
    is_readable: bool,
    never_started: bool,
}

impl LedgerDirectory {
    /// How far it holds a journal; `None` when it says nothing of any.
    fn mark_of(&self, journal: u16) -> Option<Mark> {
        let found = self.marks.iter().find(|mark| mark.journal == u32::from(journal)).map(|mark| mark.mark);
        (!self.marks.is_empty()).then(|| found.unwrap_or(Mark { file_id: 0, group: 0 }))
    }
}

fn ledger_directory(disk: &Arc<dyn Disk>, dir: &Path, report: &mut Report) -> LedgerDirectory {
    let current = dir.join(CURRENT);
    let checked = verify_directory(disk, &current, &mut |event| match event {
        DirectoryEvent::Finding(found) => report.find(&Finding::from(*found)),
        DirectoryEvent::Bytes(bytes) => report.read(bytes),
    });
    let ledgers = checked.recovered.as_ref().map_or(0, |recovered| recovered.ledgers.len());
    report.ledgers(dir, &checked, ledgers);
    match checked.recovered {
        Some(recovered) => LedgerDirectory {
            marks: recovered.marks,
            meta: recovered.meta,
            is_readable: true,
            never_started: false,
        },
        None => {
            let has_state = matches!(disk.exists(&current.join("state.redb")), Ok(true) | Err(_));
            LedgerDirectory { never_started: !has_state && checked.logs == 0, ..LedgerDirectory::default() }
        }
    }
}

/// State tables against each other and the cookie.
fn contradictions(
    dirs: &[PathBuf],
    ledgers: &[LedgerDirectory],
    cookie: Option<&bindery_metadata::Cookie>,
    report: &mut Report,
) {
    let mut numbers: BTreeMap<u32, &PathBuf> = BTreeMap::new();
    for (dir, meta) in dirs.iter().zip(ledgers).filter_map(|(dir, ledger)| Some((dir, ledger.meta.as_ref()?)))
    {
        let path = dir.join(CURRENT).join("state.redb");
        if let Some(cookie) = cookie {
            let of_cookie = (&*cookie.bookie_id, cookie.instance_id.as_deref().unwrap_or_default());
            let of_table = (&*meta.bookie_id, &*meta.instance_id);
            if of_cookie != of_table {
                let what = "the state table belongs to another bookie than the cookie";
                let line =
                    |(bookie, instance): (&str, &str)| format!("bookie {bookie} of cluster {instance:?}");
                let finding = Finding::new(Severity::Damage, Kind::Cookie, &path, what);
                report.find(&finding.expected(line(of_cookie), line(of_table)));
            }
        }
        if let Some(other) = numbers.insert(meta.directory, dir) {
            let what = format!(
                "it is ledger directory {} of the bookie, and so is {}",
                meta.directory,
                other.display()
            );
            report.find(&Finding::new(Severity::Damage, Kind::Cookie, &path, what));
        }
    }
}

/// Prints findings as they come, and the summary.
struct Report {
    out: BufWriter<File>,
    is_json: bool,
    progress: Progress,
    read: u64,
    /// Id of the bookie that is being checked.
    bookie: Option<String>,
    counts: BTreeMap<&'static str, u64>,
    /// The last advice given, to avoid repeating it.
    advice: String,
    lines: Vec<String>,
    directories: Vec<serde_json::Value>,
    /// The first error of standard output; the check goes on, its exit code counts.
    failed: Option<io::Error>,
}

impl Report {
    fn new(out: BufWriter<File>, is_json: bool, total: u64) -> Report {
        Report {
            out,
            is_json,
            progress: Progress::start("", Unit::Bytes, Some(total), false),
            read: 0,
            bookie: None,
            counts: BTreeMap::new(),
            advice: String::new(),
            lines: Vec::new(),
            directories: Vec::new(),
            failed: None,
        }
    }

    fn begin(&mut self, name: &Path) {
        self.bookie = None;
        self.lines.push(format!("{}", name.display()));
    }

    fn read(&mut self, bytes: u64) {
        self.read += bytes;
        self.progress.set(self.read);
    }

    fn find(&mut self, finding: &Finding) {
        *self.counts.entry(finding::severity(finding.severity)).or_default() += 1;
        let bookie = self.bookie.as_deref();
        let advice = finding.advice(bookie);
        let mut text = if self.is_json { format!("{}\n", finding.json(bookie)) } else { finding.text() };
        if !self.is_json && advice != self.advice && advice != "nothing" {
            text.push_str(&format!("          do: {advice}\n"));
        }
        self.advice = advice;
        self.print(&text);
    }

    fn print(&mut self, text: &str) {
        if self.failed.is_some() {
            return;
        }
        let out = &mut self.out;
        let written = status_line::beside(|| out.write_all(text.as_bytes()).and_then(|()| out.flush()));
        self.failed = written.err();
    }

    fn ledgers(&mut self, dir: &Path, report: &bindery_storage::verify_dir::DirectoryReport, ledgers: usize) {
        self.lines.push(format!(
            "  ledgers  {}: {}, {} entries verified ({}), {} ledgers known",
            dir.display(),
            counted(report.logs, "entry log"),
            grouped(report.entries),
            size(report.body_bytes),
            grouped(ledgers as u64)
        ));
        self.directories.push(json!({
            "kind": "ledgers", "path": dir.to_string_lossy(), "bookie": self.bookie, "logs": report.logs,
            "entries": report.entries, "entry_bytes": report.body_bytes, "ledgers": ledgers,
        }));
    }

    fn journal(&mut self, dir: &Path, number: u16, totals: &journal::Totals, are_marks_known: bool) {
        let needed = match are_marks_known {
            true => format!("{} groups behind the marks", grouped(totals.groups_needed)),
            false => "marks not known".to_owned(),
        };
        self.lines.push(format!(
            "  journal  {}: {} files ({}), {} groups, {} records; {needed}",
            dir.display(),
            grouped(totals.files),
            size(totals.bytes),
            grouped(totals.groups),
            grouped(totals.records)
        ));
        self.directories.push(json!({
            "kind": "journal", "path": dir.to_string_lossy(), "bookie": self.bookie, "number": number, "files": totals.files,
            "bytes": totals.bytes, "groups": totals.groups, "records": totals.records,
            "groups_needed": are_marks_known.then_some(totals.groups_needed),
        }));
    }

    fn finish(mut self) -> Result<(), Failure> {
        self.progress.clear();
        let count = |severity: Severity| self.counts.get(finding::severity(severity)).copied().unwrap_or(0);
        let (damage, unchecked) = (count(Severity::Damage), count(Severity::Unchecked));
        let (leftover, note) = (count(Severity::Leftover), count(Severity::Note));
        let verdict = match (damage, unchecked) {
            (0, 0) => "sound",
            (0, _) => "not all could be checked",
            (_, _) => "damaged",
        };
        let text = if self.is_json {
            let summary = json!({
                "type": "summary", "verdict": verdict, "damage": damage, "unchecked": unchecked,
                "leftover": leftover, "note": note, "directories": self.directories,
            });
            format!("{summary}\n")
        } else {
            let lines = self.lines.join("\n");
            format!(
                "{lines}\n{verdict}: {damage} damage, {unchecked} unchecked, {leftover} leftover, {note} note\n"
            )
        };
        self.print(&text);
        if damage > 0 {
            return Err(Failure::with_code(
                exit::DAMAGED,
                format!(
                    "{} found: each says where, and what to do. Nothing was changed",
                    counted(damage, "damage")
                ),
            ));
        }
        if unchecked > 0 {
            return Err(Failure::new(format!(
                "{} could not be checked: each says why",
                counted(unchecked, "file")
            )));
        }
        self.failed.map_or(Ok(()), |error| Err(output::failure(&error)))
    }
}

/// `1 file`, `2,000 files`.
fn counted(number: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(number), if number == 1 { "" } else { "s" })
}
