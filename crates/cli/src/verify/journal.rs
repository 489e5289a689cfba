//! The journal of a bookie: every group of every file, then what a restart would say.
//!
//! The verdict is the journal's own replay, over a disk that keeps its bytes. The survey goes on behind the first
//! damage, where a replay stops, by the same reader and the same rule.

use super::finding::{Finding, Kind};
use super::marks::refused;
use crate::offline::{COOKIE, MARK, RESERVE, SESSION};
use bindery_io::canary::Canaries;
use bindery_io::{BLOCK_SIZE_BYTES, Disk, SystemRandom};
use bindery_journal::survey::{self, BadPlace, CLAIMS_MAX, File, Place};
use bindery_journal::{HeaderProblem, Journal, JournalConfig, OpenError, ReplayError};
use bindery_storage::verify_dir::{EntryRange, FindingKind, Severity};
use bindery_storage::{Mark, ReadOnlyDisk};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The ledger directories' marks in the journal.
#[derive(Debug, Clone, Copy)]
pub struct Marks {
    /// Groups up to it are in every directory.
    pub lowest: Mark,
    /// Groups up to it are in some directory, so they were written.
    pub newest: Mark,
}

/// The counts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    pub files: u64,
    pub bytes: u64,
    pub groups: u64,
    pub records: u64,
    /// Groups that a start would replay.
    pub groups_needed: u64,
    /// Some file has a header: groups were written.
    pub was_used: bool,
}

pub struct Check<'a> {
    pub disk: &'a Arc<dyn Disk>,
    /// Where the files are.
    pub dir: &'a Path,
    /// Number of the journal.
    pub number: u16,
    /// Whose they must be, when that is known.
    pub owner: Option<&'a str>,
    /// `None`: not all marks are known, so every group counts as needed.
    pub marks: Option<Marks>,
    pub report: &'a mut dyn FnMut(Finding),
    /// Called with bytes that were read.
    pub progress: &'a mut dyn FnMut(u64),
}

impl Check<'_> {
    /// Checks everything.
    pub fn run(mut self) -> Totals {
        let mut totals = Totals::default();
        self.other_files();
        let files = match survey::files(self.disk, self.dir) {
            Ok(files) => files,
            Err(error) => {
                self.refused(&error);
                return totals;
            }
        };
        let headers: Vec<_> = files.iter().filter_map(|file| file.header.as_ref().ok()).collect();
        let oldest = headers.first().map_or(1, |header| header.first_group);
        totals.was_used = !headers.is_empty();
        let is_unsynced = headers.iter().any(|header| header.is_unsynced);
        let covered = self.marks.map_or(oldest.saturating_sub(1), |marks| marks.lowest.group);
        let owner =
            self.owner.map_or_else(|| headers.first().map(|h| h.owner.clone()), |o| Some(o.to_owned()));
        let mut damaged: Vec<(PathBuf, u64)> = Vec::new();
        let mut can_replay = true;
        for (file, next) in files.iter().zip(files[1.min(files.len())..].iter().map(Some).chain([None])) {
            totals.files += 1;
            totals.bytes += file.length;
            can_replay &= self.header(file, owner.as_deref());
            self.file(file, may_have_holes(file, next), covered, &mut totals, &mut damaged);
            (self.progress)(file.length);
        }
        self.slots(&files);
        if let Some(Marks { newest, .. }) = self.marks
            && files.is_empty()
            && newest.group > 0
        {
            let what = "the journal files are gone";
            let finding = Finding::new(Severity::Damage, Kind::Journal, self.dir, what)
                .expected(format!("groups up to {} at least", newest.group), "no journal file");
            self.find(finding.affects("everything acknowledged and not flushed"));
        } else if can_replay {
            self.replay(covered, owner.unwrap_or_default(), is_unsynced, &damaged);
        }
        totals
    }

    fn find(&mut self, finding: Finding) {
        (self.report)(finding);
    }

    fn refused(&mut self, error: &OpenError) {
        match error {
            OpenError::Io { path, source, .. } => self.find(refused(path, source)),
            OpenError::NewerFormat { path, problem } => {
                let kind = Kind::Storage(FindingKind::NewerFormat);
                self.find(Finding::new(Severity::Unchecked, kind, path, problem.to_string()));
            }
            OpenError::OtherJournal { path, found, expected } => {
                let what = "the journal file belongs to another journal of the bookie";
                let finding = Finding::new(Severity::Damage, Kind::Journal, path, what);
                self.find(finding.at(0).expected(format!("journal {expected}"), format!("journal {found}")));
            }
            OpenError::OtherOwner { path, found, expected } => {
                let what = "the journal file belongs to another bookie";
                let finding = Finding::new(Severity::Damage, Kind::Journal, path, what);
                self.find(finding.at(0).expected(format!("{expected:?}"), format!("{found:?}")));
            }
        }
    }

    fn other_files(&mut self) {
        for entry in self.disk.list(self.dir).unwrap_or_default() {
            let name = &*entry.name;
            let is_ours = |name: &str| [MARK, COOKIE, SESSION, RESERVE].contains(&name);
            if survey::is_journal_file(name) || is_ours(name) {
                continue;
            }
            let path = self.dir.join(name);
            if name.strip_suffix(".new").is_some_and(is_ours) {
                let what = "a crash left this file while it was made";
                self.find(Finding::new(
                    Severity::Leftover,
                    Kind::Storage(FindingKind::Interrupted),
                    &path,
                    what,
                ));
            } else {
                let what = "this is not a file of the journal";
                self.find(Finding::new(Severity::Note, Kind::Storage(FindingKind::UnknownFile), &path, what));
            }
        }
    }

    /// False when a start stops at the header whatever the rest holds.
    fn header(&mut self, file: &File, owner: Option<&str>) -> bool {
        match &file.header {
            Ok(header) if owner.is_some_and(|owner| owner != header.owner) => {
                let (path, found) = (file.path.clone(), header.owner.clone());
                self.refused(&OpenError::OtherOwner {
                    path,
                    found,
                    expected: owner.unwrap_or_default().into(),
                });
                false
            }
            Ok(header) if header.journal != self.number => {
                let (path, found) = (file.path.clone(), header.journal);
                self.refused(&OpenError::OtherJournal { path, found, expected: self.number });
                false
            }
            Err(problem @ HeaderProblem::NewerFormat(_)) => {
                self.refused(&OpenError::NewerFormat { path: file.path.clone(), problem: problem.clone() });
                false
            }
            _ => true,
        }
    }

    fn file(
        &mut self,
        file: &File,
        may_have_holes: bool,
        covered: u64,
        totals: &mut Totals,
        damaged: &mut Vec<(PathBuf, u64)>,
    ) {
        let mut last = file.header.as_ref().map_or(0, |header| header.first_group.saturating_sub(1));
        // Groups of a file without a header, of whatever use.
        let (mut headless, mut headless_newest) = (0u64, 0);
        let report = &mut *self.report;
        let walked = survey::walk(self.disk, file, |place| match place {
            Place::Group(group, records) if file.header.is_ok() => {
                totals.groups += 1;
                totals.records += records.len() as u64;
                totals.groups_needed += u64::from(group.sequence > covered);
                last = group.sequence;
            }
            Place::Group(group, _) => {
                headless += 1;
                headless_newest = group.sequence.max(headless_newest);
            }
            Place::Bad(bad) => {
                let finding = bad_place(&file.path, &bad, last, covered, may_have_holes);
                if finding.severity == Severity::Damage {
                    damaged.push((file.path.clone(), bad.offset));
                }
                report(finding);
                last = bad.next.map_or(last, |(_, sequence)| sequence.saturating_sub(1).max(last));
            }
        });
        if let Err(error) = walked {
            return self.refused(&error);
        }
        if file.header.is_err() && file.header != Err(HeaderProblem::Unused) || headless > 0 {
            let is_needed = headless > 0 && headless_newest > covered;
            let severity = if is_needed { Severity::Damage } else { Severity::Note };
            let kind = if is_needed { Kind::Journal } else { Kind::JournalCovered };
            let what = "the header of this journal file cannot be read";
            let mut finding = Finding::new(severity, kind, &file.path, what)
                .at(0)
                .expected("a header, or zeros in a file that was never used", "neither");
            if is_needed {
                finding = finding.affects(format!("groups {} to {headless_newest}", covered + 1));
                damaged.push((file.path.clone(), 0));
            }
            self.find(finding);
        }
    }

    /// Slots are numbered from 0. A number without a file was never made, or went.
    fn slots(&mut self, files: &[File]) {
        let mut names: Vec<_> = files.iter().filter_map(|file| file.path.file_stem()?.to_str()).collect();
        names.sort_unstable();
        let numbers: Vec<u32> =
            names.iter().filter_map(|name| name.strip_prefix("journal-")?.parse().ok()).collect();
        for missing in (0..numbers.last().copied().unwrap_or(0)).filter(|slot| !numbers.contains(slot)) {
            let path = self.dir.join(format!("journal-{missing:04}.bjl"));
            let what = "there is no journal file of this number: it was never made, or it is gone; groups that the marks \
                        need were not in it, unless they were the last ones of all";
            self.find(Finding::new(Severity::Note, Kind::JournalSlot, &path, what));
        }
    }

    fn replay(&mut self, covered: u64, owner: String, is_unsynced: bool, damaged: &[(PathBuf, u64)]) {
        let disk: Arc<dyn Disk> = Arc::new(ReadOnlyDisk::new(self.disk.clone()));
        let config = JournalConfig {
            bytes_max: 0,
            dir: self.dir.to_owned(),
            file_bytes: 2 * BLOCK_SIZE_BYTES as u64,
            owner,
            journal: self.number,
            is_tiered: false,
            sync: true,
            canaries: Canaries::none(),
        };
        let replayed = Journal::open(disk, config, Arc::new(SystemRandom))
            .map_err(ReplayError::from)
            .and_then(|mut journal| journal.replay(covered, |_, _| Ok::<(), Infallible>(())));
        match replayed {
            Ok(replayed) => {
                let newest = self.marks.map_or(0, |marks| marks.newest.group);
                if replayed.last_group < newest && !is_unsynced && replayed.unsynced_holes == 0 {
                    let what = "the journal ends before groups that a ledger directory holds";
                    let finding = Finding::new(Severity::Damage, Kind::Journal, self.dir, what).expected(
                        format!("groups up to {newest}"),
                        format!("groups up to {}", replayed.last_group),
                    );
                    self.find(finding.affects("everything acknowledged and not flushed"));
                }
            }
            Err(ReplayError::Damage(damage)) => {
                // A hole between files is in no place of a file.
                let is_known =
                    damaged.iter().any(|(path, offset)| (path, *offset) == (&damage.path, damage.offset));
                if !is_known {
                    let finding = Finding::new(Severity::Damage, Kind::Journal, &damage.path, damage.what);
                    let finding = finding.at(damage.offset);
                    self.find(finding.affects("what was acknowledged in the groups that are missing"));
                }
            }
            Err(ReplayError::Open(error)) => self.refused(&error),
            Err(ReplayError::Visitor(never)) => match never {},
        }
    }
}

/// A file that was written without sync, unless the next one of the same process found it synced, as a replay has it.
fn may_have_holes(file: &File, next: Option<&File>) -> bool {
    let Ok(header) = &file.header else { return false };
    let follows = |next: &&File| {
        let next = next.header.as_ref();
        next.is_ok_and(|next| next.follows_sync && next.identity.file_id == header.identity.file_id + 1)
    };
    header.is_unsynced && next.filter(follows).is_none()
}

fn bad_place(path: &Path, bad: &BadPlace, last: u64, covered: u64, may_have_holes: bool) -> Finding {
    let (severity, kind, what) = match bad.next {
        None => (Severity::Note, Kind::TornTail, "a torn tail: the last write never finished".to_owned()),
        Some(_) if may_have_holes => {
            let what = "a hole in a file that was written without sync".to_owned();
            (Severity::Note, Kind::JournalCovered, what)
        }
        Some(_) if !bad.is_damage(covered) => {
            let what = "damage to groups that every ledger directory holds".to_owned();
            (Severity::Note, Kind::JournalCovered, what)
        }
        Some((at, sequence)) => {
            let what = format!("groups cannot be read, and group {sequence} follows at {at}");
            (Severity::Damage, Kind::Journal, what)
        }
    };
    let missing = match bad.next {
        Some((_, sequence)) if sequence > last + 2 => format!("groups {} to {}", last + 1, sequence - 1),
        _ => format!("group {}", last + 1),
    };
    let mut finding =
        Finding::new(severity, kind, path, what).at(bad.offset).expected(missing.clone(), bad.why.clone());
    if severity == Severity::Damage {
        finding.affected.ranges = bad
            .claims
            .iter()
            .map(|(ledger, entries)| EntryRange { ledger: *ledger, entries: *entries })
            .collect();
        let more = if bad.claims.len() == CLAIMS_MAX { ", and others" } else { "" };
        finding.affected.words = Some(match bad.claims.is_empty() {
            true => format!("{missing}: whatever was acknowledged in it"),
            false => format!("{missing}{more}, by what its bytes say:"),
        });
    }
    finding
}
