//! One finding of `bindery verify` as it is printed, and what to do about each kind.

use bindery_storage::verify_dir::{self, Affected, EntryRange, FindingKind, Severity};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The kind of finding; it decides what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Storage(FindingKind),
    /// Acknowledged records may be missing.
    Journal,
    /// A group whose write never finished.
    TornTail,
    /// Damage to groups that every ledger directory holds.
    JournalCovered,
    /// Numbers of journal files with a gap.
    JournalSlot,
    /// `BINDERY`.
    Mark,
    /// `VERSION`.
    Cookie,
    /// `KNOWN`.
    Known,
    /// `SESSION`.
    Session,
    /// A directory that is not there, or was not named.
    Directory,
    /// Something beside `current`.
    Foreign,
    /// Something that was not checked.
    LeftOut,
}

/// One finding.
#[derive(Debug, Clone)]
pub struct Finding {
    pub severity: Severity,
    pub kind: Kind,
    pub path: PathBuf,
    pub offset: Option<u64>,
    pub what: String,
    pub expected_found: Option<(String, String)>,
    pub affected: Affected,
}

impl Finding {
    pub fn new(severity: Severity, kind: Kind, path: &Path, what: impl Into<String>) -> Finding {
        let (path, what) = (path.to_owned(), what.into());
        Finding {
            severity,
            kind,
            path,
            offset: None,
            what,
            expected_found: None,
            affected: Affected::default(),
        }
    }

    pub fn at(mut self, offset: u64) -> Finding {
        self.offset = Some(offset);
        self
    }

    pub fn expected(mut self, expected: impl Into<String>, found: impl Into<String>) -> Finding {
        self.expected_found = Some((expected.into(), found.into()));
        self
    }

    pub fn affects(mut self, words: impl Into<String>) -> Finding {
        self.affected.words = Some(words.into());
        self
    }

    /// The remedy, with commands that exist. `bookie` is the id, when it is known.
    pub fn advice(&self, bookie: Option<&str>) -> String {
        let id = bookie.unwrap_or("BOOKIE_ID");
        let ledger = match &self.affected.ranges[..] {
            [one] => one.ledger.to_string(),
            _ => "LEDGER_ID".to_owned(),
        };
        let give_up = format!(
            "the bookie does not start like this. Restore the file from a copy; or keep it stopped, and \"bindery bookie \
             decommission {id} --wait\" copies its ledgers from their other replicas and removes its cookie; then start it with \
             empty directories"
        );
        match self.kind {
            Kind::Storage(FindingKind::LogEntry | FindingKind::LogIndex) => format!(
                "start the bookie: it answers these entries with an error, never as absent, and readers take another \
                 replica. Then ask it for a scrub (PUT /api/v1/bookie/scrub at its admin port): it marks ledger {ledger} for \
                 repair, and replication workers bring these entries from other replicas"
            ),
            Kind::Storage(FindingKind::LogPadding) | Kind::JournalCovered => {
                "no data is lost; but a disk that changed these bytes will change others: look at the kernel's log and \
                 replace it in time"
                    .to_owned()
            }
            Kind::Storage(
                FindingKind::StateTable
                | FindingKind::StateTableMissing
                | FindingKind::LogMissing
                | FindingKind::LogFrame
                | FindingKind::Contradiction,
            ) if self.severity == Severity::Damage => give_up,
            Kind::Journal => format!("\"bindery inspect journal FILE\" shows what can be read; {give_up}"),
            Kind::Storage(FindingKind::Refused) if self.severity == Severity::Unchecked => {
                "ask as the user that runs the bookie, or correct the rights of the file".to_owned()
            }
            Kind::Storage(FindingKind::Refused) => {
                format!("the disk refuses: look at the kernel's log and replace it; {give_up}")
            }
            Kind::Storage(FindingKind::NewerFormat) => "use the version of bindery that wrote it".to_owned(),
            Kind::Storage(FindingKind::Orphan | FindingKind::Interrupted) => {
                "nothing: the next start removes or replaces it".to_owned()
            }
            Kind::Storage(FindingKind::Limbo) => {
                "nothing: until they are repaired the bookie answers \"unknown\" for what it may miss".to_owned()
            }
            Kind::Storage(FindingKind::TierExtents) => {
                "start the bookie: it lets no copy of these entries go; those it let go are answered with an error, never as \
                 absent, and readers take another replica"
                    .to_owned()
            }
            Kind::TornTail => {
                "nothing: the next start cuts it off. A write that never finished was never acknowledged".to_owned()
            }
            Kind::Mark => format!(
                "if everything else is sound, write the line back: printf 'bindery-format 1\\n' > {}",
                self.path.display()
            ),
            Kind::Cookie => format!(
                "all directories of a bookie hold the same file: copy VERSION from a sound one of this bookie; \"bindery \
                 cluster cookie show {id}\" prints what the cluster knows. If they are of different bookies, name those \
                 of one"
            ),
            Kind::Known if self.severity == Severity::Damage => {
                "start the bookie: it takes the copy of another ledger directory, or makes the file anew and compares all of its \
                 ledgers with metadata"
                    .to_owned()
            }
            Kind::Known => "nothing: a crash came between the two, and the next change makes them equal".to_owned(),
            Kind::Session => format!("chmod 600 {}", self.path.display()),
            Kind::Directory if self.severity == Severity::Damage => {
                format!("mount the disk it is on and ask again; if it is lost, {give_up}")
            }
            Kind::Directory => "name all directories of the bookie together, so that they are held against each other".to_owned(),
            Kind::Foreign => "move it away: the bookie refuses to start beside files that are not its own".to_owned(),
            Kind::JournalSlot | Kind::LeftOut | Kind::Storage(_) => "nothing".to_owned(),
        }
    }

    /// The id of the kind in JSON.
    pub fn code(&self) -> &'static str {
        match self.kind {
            Kind::Storage(kind) => match kind {
                FindingKind::StateTable => "state-table",
                FindingKind::StateTableMissing => "state-table-missing",
                FindingKind::LogMissing => "log-missing",
                FindingKind::LogFrame => "log-frame",
                FindingKind::LogIndex => "log-index",
                FindingKind::LogEntry => "log-entry",
                FindingKind::LogPadding => "log-padding",
                FindingKind::Contradiction => "contradiction",
                FindingKind::Orphan => "orphan",
                FindingKind::Interrupted => "interrupted",
                FindingKind::UnknownFile => "unknown-file",
                FindingKind::Limbo => "limbo",
                FindingKind::TierExtents => "tier-extents",
                FindingKind::NewerFormat => "newer-format",
                FindingKind::Refused => "refused",
            },
            Kind::Journal => "journal",
            Kind::TornTail => "torn-tail",
            Kind::JournalCovered => "journal-covered",
            Kind::JournalSlot => "journal-slot",
            Kind::Mark => "mark",
            Kind::Cookie => "cookie",
            Kind::Known => "known",
            Kind::Session => "session",
            Kind::Directory => "directory",
            Kind::Foreign => "foreign-file",
            Kind::LeftOut => "left-out",
        }
    }

    /// One line for programs.
    pub fn json(&self, bookie: Option<&str>) -> Value {
        let ranges: Vec<Value> = self.affected.ranges.iter().map(range_json).collect();
        json!({
            "type": "finding",
            "severity": severity(self.severity),
            "kind": self.code(),
            "bookie": bookie,
            "file": self.path.to_string_lossy(),
            "offset": self.offset,
            "what": self.what,
            "expected": self.expected_found.as_ref().map(|(expected, _)| expected),
            "found": self.expected_found.as_ref().map(|(_, found)| found),
            "affected": ranges,
            "affected_more": self.affected.more,
            "affected_words": self.affected.words,
            "advice": self.advice(bookie),
        })
    }

    /// Lines for people, without the advice.
    pub fn text(&self) -> String {
        let mut text = format!("{:<9} {}", severity(self.severity), self.path.display());
        if let Some(offset) = self.offset {
            let _ = write!(text, " at byte {offset}");
        }
        let _ = writeln!(text, ": {}", self.what);
        if let Some((expected, found)) = &self.expected_found {
            let _ = writeln!(text, "          expected {expected}; found {found}");
        }
        if let Some(affected) = affected(&self.affected) {
            let _ = writeln!(text, "          affects {affected}");
        }
        text
    }
}

impl From<verify_dir::Finding> for Finding {
    fn from(finding: verify_dir::Finding) -> Finding {
        let verify_dir::Finding { severity, kind, path, offset, what, expected_found, affected } = finding;
        Finding { severity, kind: Kind::Storage(kind), path, offset, what, expected_found, affected }
    }
}

/// How bad, in a word.
pub fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Damage => "damage",
        Severity::Unchecked => "unchecked",
        Severity::Leftover => "leftover",
        Severity::Note => "note",
    }
}

fn range_json(range: &EntryRange) -> Value {
    match range.entries {
        Some((first, last)) => {
            json!({ "ledger": range.ledger.get(), "first": first.get(), "last": last.get() })
        }
        None => json!({ "ledger": range.ledger.get() }),
    }
}

/// Ranges shown in one line; JSON has all of them.
const RANGES_SHOWN: usize = 6;

fn affected(affected: &Affected) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    for range in affected.ranges.iter().take(RANGES_SHOWN) {
        parts.push(match range.entries {
            Some((first, last)) if first == last => format!("ledger {} entry {first}", range.ledger),
            Some((first, last)) => format!("ledger {} entries {first} to {last}", range.ledger),
            None => format!("ledger {}", range.ledger),
        });
    }
    let more = affected.ranges.len().saturating_sub(RANGES_SHOWN) as u64 + affected.more;
    if more > 0 {
        parts.push(format!("and {more} further ranges"));
    }
    let ranges = parts.join(", ");
    match (&affected.words, ranges.is_empty()) {
        (None, true) => None,
        (Some(words), true) => Some(words.clone()),
        (None, false) => Some(ranges),
        (Some(words), false) => Some(format!("{words} {ranges}")),
    }
}
