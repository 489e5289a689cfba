//! `bindery disk`: where the bytes of a stopped bookie are, and what a compaction would return.

use crate::args::OfflineArgs;
use crate::exit::{self, Failure};
use crate::offline::{BookieDirs, CURRENT, Offline, RESERVE, grouped, size};
use crate::output;
use crate::progress::Progress;
use bindery_io::{Disk, RealDisk};
use bindery_journal::survey::{self, Place};
use bindery_storage::JournalMark;
use bindery_storage::usage::{DirectoryUsage, directory_usage};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

/// Runs the command.
pub fn run(args: &OfflineArgs) -> Result<(), Failure> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    let found = Offline::open(&*disk, &args.dirs)?;
    let mut report = Report { is_json: args.json, text: String::new(), problems: Vec::new() };
    let mut progress = Progress::wait("counting");
    for bookie in &found.bookies {
        count(&disk, bookie, &mut report);
    }
    progress.clear();
    for (path, why) in &found.notes {
        output::say(format!("bindery: {}: {why}", path.display()));
    }
    output::write_all(report.text.as_bytes())?;
    if report.problems.is_empty() {
        Ok(())
    } else {
        Err(Failure::new(report.problems.join(exit::BETWEEN_FAULTS)))
    }
}

struct Report {
    is_json: bool,
    text: String,
    problems: Vec<String>,
}

/// One line of a directory's table.
struct Line {
    what: &'static str,
    bytes: u64,
    about: String,
}

impl Report {
    fn directory(
        &mut self,
        disk: &dyn Disk,
        dir: &Path,
        bookie: Option<&str>,
        lines: &[Line],
        mut json: Value,
    ) {
        let volume = disk.space(dir);
        let reserve = reserve_bytes(disk, dir);
        if self.is_json {
            json["reserve_bytes"] = reserve.into();
            json["path"] = dir.to_string_lossy().into();
            json["bookie"] = bookie.into();
            json["volume_bytes"] = volume.as_ref().map_or(Value::Null, |space| space.total.into());
            json["volume_free_bytes"] = volume.as_ref().map_or(Value::Null, |space| space.free.into());
            let _ = writeln!(self.text, "{json}");
        } else {
            let id = bookie.map(|id| format!("  (bookie {id})")).unwrap_or_default();
            let _ = writeln!(self.text, "{}{id}", dir.display());
            for Line { what, bytes, about } in lines {
                let _ = writeln!(self.text, "  {what:<12}{:>12}  {about}", size(*bytes));
            }
            if reserve > 0 {
                let about = "kept free for a full disk: the bookie gives it up when it needs it";
                let _ = writeln!(self.text, "  {:<12}{:>12}  {about}", "reserve", size(reserve));
            }
            if let Ok(space) = &volume {
                let _ = writeln!(
                    self.text,
                    "  {:<12}{:>12}  free of {} on its volume",
                    "volume",
                    size(space.free),
                    size(space.total)
                );
            }
        }
        if let Err(error) = volume {
            self.problems.push(format!("cannot ask for the free space of {}: {error}", dir.display()));
        }
    }
}

/// Bytes of the volume's reserve, in the directory that has it.
fn reserve_bytes(disk: &dyn Disk, dir: &Path) -> u64 {
    let files = disk.list(&dir.join(CURRENT)).unwrap_or_default();
    files.iter().find(|file| file.name == RESERVE).map_or(0, |file| file.len)
}

fn count(disk: &Arc<dyn Disk>, dirs: &BookieDirs, report: &mut Report) {
    let cookie = dirs.all().find_map(|dir| crate::offline::cookie(&**disk, dir).ok().flatten());
    let id = cookie.as_ref().map(|cookie| &*cookie.bookie_id);
    for missing in &dirs.missing {
        report.problems.push(format!("{} is missing or empty", missing.display()));
    }
    // How far all ledger directories hold each journal; `None` when one of them cannot say.
    let mut covered: Option<Vec<Vec<JournalMark>>> = (!dirs.ledgers.is_empty()).then(Vec::new);
    for dir in &dirs.ledgers {
        match directory_usage(disk, &dir.join(CURRENT)) {
            Ok(usage) => {
                if let (Some(covered), false) = (&mut covered, usage.recovered.marks.is_empty()) {
                    covered.push(usage.recovered.marks.clone());
                }
                for (path, why) in &usage.unreadable {
                    report.problems.push(format!("{} is not counted: {why}", path.display()));
                }
                ledgers(&**disk, dir, id, &usage, report);
            }
            Err(error) => {
                covered = None;
                report.problems.push(format!("{} is not counted: {error}", dir.display()));
            }
        }
    }
    for (number, dir) in &dirs.journals {
        let of = |marks: &Vec<JournalMark>| {
            marks.iter().find(|m| m.journal == u32::from(*number)).map_or(0, |m| m.mark.group)
        };
        let covered = covered.as_ref().map(|all| all.iter().map(of).min().unwrap_or(0));
        if let Err(error) = journal(disk, dir, id, covered, report) {
            report.problems.push(format!("{} is not counted: {error}", dir.display()));
        }
    }
}

fn ledgers(disk: &dyn Disk, dir: &Path, id: Option<&str>, usage: &DirectoryUsage, report: &mut Report) {
    let line = |what, bytes, about: String| Line { what, bytes, about };
    let lines = [
        line(
            "live",
            usage.live_bytes,
            format!(
                "{} entries of {} ledgers",
                grouped(usage.live_entries),
                grouped(usage.recovered.ledgers.len() as u64)
            ),
        ),
        line(
            "dead",
            usage.dead_bytes,
            format!("{} replaced copies: what a compaction would return", grouped(usage.dead_entries)),
        ),
        line(
            "replaced",
            usage.replaced_bytes,
            format!("{} logs that are dead as a whole: the next start removes them", usage.replaced_files),
        ),
        line(
            "overhead",
            usage.overhead_bytes(),
            format!("headers and indexes of {} entry logs", grouped(usage.logs)),
        ),
        line("state table", usage.state_bytes, "ledgers, marks, list of logs".to_owned()),
        line(
            "leftover",
            usage.leftover_bytes,
            format!("{} files that the next start removes", usage.leftover_files),
        ),
    ];
    let json = json!({
        "type": "ledgers",
        "live_bytes": usage.live_bytes, "live_entries": usage.live_entries,
        "dead_bytes": usage.dead_bytes, "dead_entries": usage.dead_entries,
        "compaction_returns_bytes": usage.dead_bytes,
        "replaced_files": usage.replaced_files, "replaced_bytes": usage.replaced_bytes,
        "overhead_bytes": usage.overhead_bytes(), "logs": usage.logs, "log_bytes": usage.log_bytes,
        "state_bytes": usage.state_bytes, "ledgers": usage.recovered.ledgers.len(),
        "leftover_bytes": usage.leftover_bytes, "leftover_files": usage.leftover_files,
        "unreadable_logs": usage.unreadable.len(),
    });
    report.directory(disk, dir, id, &lines, json);
}

/// Without marks (`covered` is `None`) every group counts as needed.
fn journal(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    id: Option<&str>,
    covered: Option<u64>,
    report: &mut Report,
) -> Result<(), bindery_journal::OpenError> {
    let files = survey::files(disk, &dir.join(CURRENT))?;
    let floor = covered.unwrap_or(0);
    let (mut needed, mut groups, mut files_needed, mut total) = (0u64, 0u64, 0u64, 0u64);
    for (at, file) in files.iter().enumerate() {
        total += file.length;
        // Files are in the order of their use: where the next begins, this one ends.
        let next = files.get(at + 1).and_then(|next| next.header.as_ref().ok());
        if file.header.is_err() || next.is_some_and(|next| next.first_group <= floor.saturating_add(1)) {
            continue;
        }
        let before = groups;
        survey::walk(disk, file, |place| {
            if let Place::Group(group, _) = place
                && group.sequence > floor
            {
                groups += 1;
                needed += group.total_bytes;
            }
        })?;
        files_needed += u64::from(groups > before);
    }
    let behind =
        if covered.is_some() { "behind the marks: the next start replays them" } else { "marks not known" };
    let lines = [
        Line {
            what: "needed",
            bytes: needed,
            about: format!("{} groups in {files_needed} files, {behind}", grouped(groups)),
        },
        Line {
            what: "free",
            bytes: total - needed,
            about: format!("of {} in {} files, which are used again", size(total), files.len()),
        },
    ];
    let json = json!({
        "type": "journal", "files": files.len(), "bytes": total, "needed_bytes": needed, "needed_groups": groups,
        "needed_files": files_needed, "free_bytes": total - needed, "marks_known": covered.is_some(),
    });
    report.directory(&**disk, dir, id, &lines, json);
    Ok(())
}
