//! The small files of a bookie's directories: mark, cookie, session, what is known of metadata; and what stands beside
//! `current`.

use super::finding::{Finding, Kind};
use crate::offline::{self, BookieDirs, COOKIE, CURRENT, LOCK, MARK, SESSION};
use bindery_io::Disk;
use bindery_metadata::Cookie;
use bindery_server::cluster_record::{CLUSTER_RECORD_NAME, ClusterRecord, KnownError};
use bindery_storage::verify_dir::{FindingKind, Severity};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The layout of directories that this version reads.
const FORMAT_VERSION: u32 = 1;

/// Checks them; gives the cookie that all directories hold.
pub fn verify(disk: &dyn Disk, dirs: &BookieDirs, report: &mut dyn FnMut(Finding)) -> Option<Cookie> {
    for missing in &dirs.missing {
        let what = "the other half of the bookie is here, and this directory is missing or empty";
        let finding = Finding::new(Severity::Damage, Kind::Directory, missing, what);
        report(finding.affects("everything in it"));
    }
    let mut cookies: Vec<(PathBuf, Cookie)> = Vec::new();
    for dir in dirs.all() {
        mark(disk, dir, report);
        beside(disk, dir, report);
        session(&dir.join(CURRENT).join(SESSION), report);
        let path = dir.join(CURRENT).join(COOKIE);
        match offline::cookie(disk, dir) {
            Ok(Some(cookie)) => {
                as_written(disk, &path, &cookie, report);
                cookies.push((path, cookie));
            }
            Ok(None) if dirs.unused.contains(dir) => {
                let what = "no start got further than the mark here";
                report(Finding::new(Severity::Note, Kind::Cookie, &path, what));
            }
            Ok(None) => {
                let finding = Finding::new(Severity::Damage, Kind::Cookie, &path, "the cookie is missing");
                report(finding.expected("the cookie of the bookie", "no file"));
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                let finding =
                    Finding::new(Severity::Damage, Kind::Cookie, &path, "the cookie cannot be read");
                report(
                    finding
                        .at(0)
                        .expected("a cookie as it stands in the other directories", error.to_string()),
                );
            }
            Err(error) => report(refused(&path, &error)),
        }
    }
    known(disk, dirs, report);
    let (first_path, first) = cookies.first()?;
    for (path, other) in &cookies[1..] {
        if other != first {
            let what = format!("the cookie is not the one in {}", first_path.display());
            let text = |cookie: &Cookie| cookie.to_text().trim().replace('\n', ", ");
            report(
                Finding::new(Severity::Damage, Kind::Cookie, path, what).expected(text(first), text(other)),
            );
        }
    }
    let count = first.ledger_dirs.split('\t').skip(1).count();
    if !dirs.ledgers.is_empty() && count != dirs.ledgers.len() {
        let what = format!("{} of the bookie's {count} ledger directories are looked at", dirs.ledgers.len());
        report(Finding::new(Severity::Note, Kind::Directory, &dirs.name, what));
    }
    Some(first.clone())
}

/// A change that the reading of a cookie forgives is a change still.
fn as_written(disk: &dyn Disk, path: &Path, cookie: &Cookie, report: &mut dyn FnMut(Finding)) {
    let Ok(Some(bytes)) = offline::read_small(disk, path) else { return };
    let expected = cookie.to_text();
    if bytes == expected.as_bytes() {
        return;
    }
    let at = expected.bytes().zip(&bytes).take_while(|(expected, found)| expected == *found).count();
    let shown = |bytes: &[u8]| {
        let rest = &bytes[at.min(bytes.len())..];
        format!("{:?}", String::from_utf8_lossy(&rest[..rest.len().min(20)]))
    };
    let what = "the cookie is not as it was written";
    let finding = Finding::new(Severity::Damage, Kind::Cookie, path, what).at(at as u64);
    report(finding.expected(shown(expected.as_bytes()), shown(&bytes)));
}

/// The finding for a refusal of the system.
pub fn refused(path: &Path, error: &io::Error) -> Finding {
    let severity = match error.kind() {
        ErrorKind::PermissionDenied => Severity::Unchecked,
        _ => Severity::Damage,
    };
    Finding::new(severity, Kind::Storage(FindingKind::Refused), path, format!("cannot read: {error}"))
}

fn mark(disk: &dyn Disk, dir: &Path, report: &mut dyn FnMut(Finding)) {
    let path = dir.join(CURRENT).join(MARK);
    let expected = format!("bindery-format {FORMAT_VERSION}");
    let bytes = match offline::read_small(disk, &path) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            let what = "the mark is missing: the bookie refuses to start here";
            return report(
                Finding::new(Severity::Damage, Kind::Mark, &path, what).expected(expected, "no file"),
            );
        }
        Err(error) => return report(refused(&path, &error)),
    };
    let text = String::from_utf8_lossy(&bytes);
    let version = text.strip_prefix("bindery-format ").and_then(|rest| rest.trim().parse::<u32>().ok());
    match version {
        Some(FORMAT_VERSION) => {}
        Some(newer) if newer > FORMAT_VERSION => {
            let what =
                format!("the directory is of format {newer}, this version reads up to {FORMAT_VERSION}");
            report(Finding::new(Severity::Unchecked, Kind::Storage(FindingKind::NewerFormat), &path, what));
        }
        _ => {
            let what = "the mark cannot be read: the bookie refuses to start here";
            let found: String = text.trim().chars().take(40).collect();
            report(
                Finding::new(Severity::Damage, Kind::Mark, &path, what)
                    .at(0)
                    .expected(expected, format!("{found:?}")),
            );
        }
    }
}

/// The bookie's record of its cluster's metadata, in each ledger directory. One that joined later has none.
fn known(disk: &dyn Disk, dirs: &BookieDirs, report: &mut dyn FnMut(Finding)) {
    let mut first: Option<(PathBuf, ClusterRecord)> = None;
    for dir in &dirs.ledgers {
        let path = dir.join(CURRENT).join(CLUSTER_RECORD_NAME);
        let bytes = match offline::read_small(disk, &path) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => continue,
            Err(error) => {
                report(refused(&path, &error));
                continue;
            }
        };
        match (ClusterRecord::parse(&bytes), &first) {
            (Ok(known), None) => first = Some((path, known)),
            (Ok(known), Some((first_path, before))) if known != *before => {
                let what = format!("it is not as in {}: what forbids more counts", first_path.display());
                let text = |known: &ClusterRecord| known.to_text().trim().replace('\n', ", ");
                report(
                    Finding::new(Severity::Note, Kind::Known, &path, what)
                        .expected(text(before), text(&known)),
                );
            }
            (Ok(_), Some(_)) => {}
            (Err(error @ KnownError::Version(_)), _) => {
                let kind = Kind::Storage(FindingKind::NewerFormat);
                report(Finding::new(Severity::Unchecked, kind, &path, error.to_string()));
            }
            (Err(KnownError::Damaged), _) => {
                let what = "what the bookie remembers of metadata cannot be read";
                let shown: String = String::from_utf8_lossy(&bytes).trim().chars().take(80).collect();
                report(
                    Finding::new(Severity::Damage, Kind::Known, &path, what)
                        .at(0)
                        .expected("lines with their checksum", format!("{shown:?}")),
                );
            }
        }
    }
}

/// Anyone who can read the session can take over the bookie's registration.
fn session(path: &Path, report: &mut dyn FnMut(Finding)) {
    let Ok(about) = std::fs::symlink_metadata(path) else { return };
    let mode = about.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let what = "the metadata session can be read by others than its owner";
        report(
            Finding::new(Severity::Note, Kind::Session, path, what)
                .expected("mode 600", format!("mode {mode:o}")),
        );
    }
}

fn beside(disk: &dyn Disk, dir: &Path, report: &mut dyn FnMut(Finding)) {
    for entry in disk.list(dir).unwrap_or_default() {
        if ![LOCK, CURRENT, "lost+found"].contains(&&*entry.name) {
            let what = "this is not the bookie's";
            report(Finding::new(Severity::Note, Kind::Foreign, &dir.join(&entry.name), what));
        }
    }
}
