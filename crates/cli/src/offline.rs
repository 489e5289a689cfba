//! Data directories of a bookie that is not running: which directories a path stands for, and the locks on them.
//!
//! ```text
//! DIR/current/...            a journal or a ledger directory
//! DIR/journal, DIR/ledgers   what bindery bookie --data names
//! DIR/bookie-1, ...          what bindery standalone --data names; its coordinator is no bookie's
//! ```
//!
//! # Invariants
//! 1. Nothing is made in a directory that is not a bookie's; in one that is, the lock file at most.
//! 2. Everything read afterwards is read under the locks: no bookie runs.

use crate::exit::Failure;
pub use crate::figure::{grouped, size};
use bindery_io::{Disk, DiskLock, Entry, OpenMode};
use bindery_metadata::Cookie;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

pub const CURRENT: &str = "current";
pub const LOCK: &str = "LOCK";
pub const MARK: &str = "BINDERY";
pub const COOKIE: &str = "VERSION";
pub const SESSION: &str = "SESSION";
pub const RESERVE: &str = bindery_server::disks::reserve::RESERVE_NAME;
/// Longer small files are not ours.
const SMALL_FILE_BYTES_MAX: u64 = 64 * 1024;

/// The directories of one bookie, each with `current` in it.
#[derive(Debug, Clone, Default)]
pub struct BookieDirs {
    /// The directory that stands for this bookie in messages.
    pub name: PathBuf,
    /// With their numbers, ascending.
    pub journals: Vec<(u16, PathBuf)>,
    pub ledgers: Vec<PathBuf>,
    /// Ours, and nothing says of which kind: no start got further than the mark.
    pub unused: Vec<PathBuf>,
    /// Part of `--data` and not there.
    pub missing: Vec<PathBuf>,
}

impl BookieDirs {
    /// The directories that exist.
    pub fn all(&self) -> impl Iterator<Item = &PathBuf> {
        self.journals.iter().map(|(_, dir)| dir).chain(&self.ledgers).chain(&self.unused)
    }
}

/// All bookies found, locked.
pub struct Offline {
    pub bookies: Vec<BookieDirs>,
    /// Directories left out, and why.
    pub notes: Vec<(PathBuf, String)>,
    _locks: Vec<Box<dyn DiskLock>>,
}

impl Offline {
    /// Finds and locks the bookies of `dirs`.
    pub fn open(disk: &dyn Disk, dirs: &[PathBuf]) -> Result<Offline, Failure> {
        let mut found = Found::default();
        for dir in dirs {
            found.look(disk, dir)?;
        }
        let (mut bookies, mut notes) = (found.homes, found.notes);
        bookies.append(&mut group(disk, found.single));
        let mut locks = Vec::new();
        let mut locked: Vec<PathBuf> = Vec::new();
        let dirs = bookies.iter().flat_map(BookieDirs::all).chain(&found.standalones);
        for dir in dirs {
            let real = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.clone());
            if locked.contains(&real) {
                return Err(Failure::usage(format!("{} is named twice: name it once", dir.display())));
            }
            locked.push(real);
            match disk.lock(&dir.join(LOCK)) {
                Ok(lock) => locks.push(lock),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Err(Failure::new(format!(
                        "{} is in use by a running bindery: stop it (SIGTERM) and ask again; nothing was changed",
                        dir.display()
                    )));
                }
                // No process can write there, so no bookie serves from there.
                Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => {
                    notes.push((dir.clone(), "not locked: its file system is read-only".into()));
                }
                Err(error) => {
                    return Err(Failure::new(format!(
                        "cannot lock {}: {error}. Ask as the user that runs the bookie; nothing was checked",
                        dir.join(LOCK).display()
                    )));
                }
            }
        }
        Ok(Offline { bookies, notes, _locks: locks })
    }
}

#[derive(Default)]
struct Found {
    homes: Vec<BookieDirs>,
    /// Directories that were named by themselves.
    single: Vec<PathBuf>,
    standalones: Vec<PathBuf>,
    notes: Vec<(PathBuf, String)>,
}

impl Found {
    fn look(&mut self, disk: &dyn Disk, dir: &Path) -> Result<(), Failure> {
        let names = list(disk, dir)?;
        let is_inner = dir.file_name().is_some_and(|name| name == CURRENT) && has(&names, MARK, false);
        if let (true, Some(parent)) = (is_inner, dir.parent()) {
            return self.look(disk, parent);
        }
        if has(&names, CURRENT, true) {
            refuse_java(disk, dir)?;
            self.single.push(dir.to_owned());
            return Ok(());
        }
        if let Some(home) = home(disk, dir, &names)? {
            self.homes.push(home);
            return Ok(());
        }
        let mut bookies: Vec<(u32, &str)> =
            names.iter().filter_map(|n| Some((number(n)?, &*n.name))).collect();
        bookies.sort_unstable();
        let mut found = 0;
        for (_, name) in &bookies {
            let dir = dir.join(name);
            if let Some(home) = home(disk, &dir, &list(disk, &dir)?)? {
                self.homes.push(home);
                found += 1;
            } else {
                self.notes.push((dir, "left out: no bookie ever started here".into()));
            }
        }
        if found == 0 {
            let is_empty = names.is_empty();
            return Err(Failure::new(format!(
                "{} {}: name the --data of bindery bookie or bindery standalone, or journal and ledger directories; \
                 nothing was checked",
                dir.display(),
                if is_empty { "is empty" } else { "has no data of a bookie in it" }
            )));
        }
        if has(&names, LOCK, false) {
            self.standalones.push(dir.to_owned());
        }
        if has(&names, "coordinator", true) {
            let why = "left out: the coordinator's data is no bookie's".to_owned();
            self.notes.push((dir.join("coordinator"), why));
        }
        Ok(())
    }
}

/// `bookie-7` is 7.
fn number(entry: &Entry) -> Option<u32> {
    entry.is_dir.then(|| entry.name.strip_prefix("bookie-")?.parse().ok())?
}

fn has(names: &[Entry], name: &str, is_dir: bool) -> bool {
    names.iter().any(|entry| entry.name == name && entry.is_dir == is_dir)
}

/// The layout of `--data`, when one of its halves is there.
fn home(disk: &dyn Disk, dir: &Path, names: &[Entry]) -> Result<Option<BookieDirs>, Failure> {
    let mut home = BookieDirs { name: dir.to_owned(), ..BookieDirs::default() };
    for (name, is_journal) in [("journal", true), ("ledgers", false)] {
        let half = dir.join(name);
        if !has(names, name, true) || !has(&list(disk, &half)?, CURRENT, true) {
            home.missing.push(half);
            continue;
        }
        refuse_java(disk, &half)?;
        if is_journal {
            home.journals.push((journal_number(disk, &half), half));
        } else {
            home.ledgers.push(half);
        }
    }
    Ok((home.missing.len() < 2).then_some(home))
}

fn list(disk: &dyn Disk, dir: &Path) -> Result<Vec<Entry>, Failure> {
    disk.list(dir).map_err(|error| {
        let path = dir.display();
        Failure::new(match error.kind() {
            ErrorKind::NotFound => format!("there is no {path}: name a data directory; nothing was checked"),
            ErrorKind::NotADirectory => format!(
                "{path} is a file: name the data directory that it belongs to. One file is shown by bindery inspect \
                 journal or bindery inspect entry-log"
            ),
            ErrorKind::PermissionDenied => {
                format!("cannot list {path}: {error}. Ask as the user that runs the bookie; nothing was checked")
            }
            _ => format!("cannot list {path}: {error}; nothing was checked"),
        })
    })
}

/// A Java bookie's directory has `current` too, and none of our marks or files.
fn refuse_java(disk: &dyn Disk, dir: &Path) -> Result<(), Failure> {
    let inside = list(disk, &dir.join(CURRENT))?;
    let is_ours = |entry: &Entry| {
        entry.name == MARK || entry.name.starts_with("state.redb") || kind_of_file(&entry.name).is_some()
    };
    let is_java = |entry: &Entry| {
        let name = &*entry.name;
        name == "lastMark" || name.ends_with(".txn") || name.ends_with(".log") || name == COOKIE
    };
    if inside.iter().any(is_java) && !inside.iter().any(is_ours) {
        return Err(Failure::new(format!(
            "{} holds the data of a Java bookie, which is not in a format of ours: nothing was checked",
            dir.display()
        )));
    }
    Ok(())
}

/// The kind of directory that a file is in: true for the journal's.
fn kind_of_file(name: &str) -> Option<bool> {
    if bindery_journal::survey::is_journal_file(name) {
        return Some(true);
    }
    (name.ends_with(".elog") || name == "state.redb").then_some(false)
}

/// A bookie's id and its cluster's.
type Owner = (String, Option<String>);

/// Sorts directories that were named by themselves to their bookies, by their cookies.
fn group(disk: &dyn Disk, dirs: Vec<PathBuf>) -> Vec<BookieDirs> {
    let mut groups: Vec<(Option<Owner>, BookieDirs)> = Vec::new();
    let cookie_of = |dir: &Path| cookie(disk, dir).ok().flatten();
    let keys: Vec<_> = dirs.iter().map(|dir| cookie_of(dir).map(|c| (c.bookie_id, c.instance_id))).collect();
    let mut known: Vec<_> = keys.iter().flatten().collect();
    known.sort();
    known.dedup();
    // One that lost its cookie belongs to the only bookie that is named.
    let only = if known.len() == 1 { Some(known[0].clone()) } else { None };
    for (dir, key) in dirs.into_iter().zip(&keys) {
        let key = key.clone().or_else(|| only.clone());
        let at = groups.iter().position(|(of_group, _)| *of_group == key).unwrap_or_else(|| {
            groups.push((key, BookieDirs { name: dir.clone(), ..BookieDirs::default() }));
            groups.len() - 1
        });
        let bookie = &mut groups[at].1;
        match is_journal(disk, &dir) {
            Some(true) => {
                let number = journal_number(disk, &dir);
                if bookie.journals.iter().all(|(other, _)| *other != number) {
                    bookie.journals.push((number, dir));
                    bookie.journals.sort_unstable();
                    continue;
                }
                let journals = vec![(number, dir.clone())];
                groups.push((None, BookieDirs { name: dir, journals, ..Default::default() }));
            }
            Some(false) => bookie.ledgers.push(dir),
            None => bookie.unused.push(dir),
        }
    }
    groups.into_iter().map(|(_, bookie)| bookie).collect()
}

/// By its files, then by its place in its cookie; otherwise the first.
fn journal_number(disk: &dyn Disk, dir: &Path) -> u16 {
    if let Some(number) = bindery_journal::survey::number(disk, &dir.join(CURRENT)) {
        return number;
    }
    let listed = cookie(disk, dir).ok().flatten().map(|cookie| cookie.journal_dirs);
    let at = listed.and_then(|dirs| dirs.split(',').position(|listed| is_listed_as(listed, dir)));
    at.and_then(|at| u16::try_from(at).ok()).unwrap_or(0)
}

/// Whether a cookie means this directory, which may have been moved together with those above it.
fn is_listed_as(listed: &str, dir: &Path) -> bool {
    let name = dir.file_name().unwrap_or_default();
    listed == dir.to_string_lossy() || (!name.is_empty() && Path::new(listed).ends_with(name))
}

/// By its files, then by what its cookie calls it, then by its name.
fn is_journal(disk: &dyn Disk, dir: &Path) -> Option<bool> {
    let files = disk.list(&dir.join(CURRENT)).unwrap_or_default();
    if let Some(kind) = files.iter().find_map(|file| kind_of_file(&file.name)) {
        return Some(kind);
    }
    let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_it = |listed: &str| is_listed_as(listed, dir);
    if let Ok(Some(cookie)) = cookie(disk, dir) {
        if cookie.journal_dirs.split(',').any(is_it) {
            return Some(true);
        }
        if cookie.ledger_dirs.split('\t').skip(1).any(is_it) {
            return Some(false);
        }
    }
    match &*name {
        "journal" => Some(true),
        "ledgers" => Some(false),
        _ => None,
    }
}

/// The cookie in a directory; `None` when it has none.
pub fn cookie(disk: &dyn Disk, dir: &Path) -> io::Result<Option<Cookie>> {
    let Some(bytes) = read_small(disk, &dir.join(CURRENT).join(COOKIE))? else { return Ok(None) };
    Cookie::parse(&bytes).map(Some).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// A file of a few lines; `None` when it is not there.
pub fn read_small(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match disk.open(path, OpenMode::Read) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let len = file.len()?;
    if len > SMALL_FILE_BYTES_MAX {
        let what = format!("{len} bytes are too many for this file");
        return Err(io::Error::new(ErrorKind::InvalidData, what));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}
