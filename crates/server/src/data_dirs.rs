//! The data directories of a bookie: who they belong to, whether they may be used, and the lock on them.
//!
//! ```text
//! <journal dir>/LOCK            held while the process lives; several journals have a directory each
//! <journal dir>/current/BINDERY "bindery-format 1"
//! <journal dir>/current/VERSION the cookie (protocol reference, section 5.3)
//! <journal dir>/current/...     journal files
//! <first dir of a volume>/current/RESERVE   blocks kept free for a full disk (see disks::reserve)
//! <ledger dir>/...              the same, with entry logs and the state table
//! <each ledger dir>/current/PROBE      for a moment at the start: see health
//! <each ledger dir>/current/KNOWN      what to remember of metadata: see `known`
//! <first ledger dir>/current/SESSION   the metadata session to be resumed, mode 0600
//! ```
//!
//! # Invariants
//! 1. A directory is examined before anything is written into it: foreign contents stay as they were found.
//! 2. Everything that is later trusted (cookie, session) is read and written under the lock.
//! 3. `BINDERY` is there before `VERSION`: a directory with a cookie and without the mark is a Java bookie's.

use crate::cluster_record::{CLUSTER_RECORD_NAME, ClusterRecord, KnownError};
use bindery_io::{Disk, DiskFile, DiskLock, Entry, OpenMode, create_durable_dir, restrict};
use bindery_metadata::{Cookie, Directory, SessionCredentials, SessionStore};
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const LOCK_NAME: &str = "LOCK";
const CURRENT_NAME: &str = "current";
const MARK_NAME: &str = "BINDERY";
const COOKIE_NAME: &str = "VERSION";
const SESSION_NAME: &str = "SESSION";
/// Name of the file that keeps blocks free ([`crate::disks::reserve`]), in `current` of the first directory of its volume.
pub const RESERVE_NAME: &str = "RESERVE";
/// Name of the file that disks are probed with ([`crate::health`]) until it is open; then it has none.
pub const PROBE_NAME: &str = "PROBE";
/// The layout of directories that this version reads and writes.
const FORMAT_VERSION: u32 = 1;
/// Attempts to take a lock, and the pause between them: two seconds in all.
const LOCK_ATTEMPTS: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Longer small files are not ours.
const SMALL_FILE_BYTES_MAX: u64 = 64 * 1024;

/// The directories of one file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Where its reserve is: one of the directories.
    pub reserve_dir: PathBuf,
    /// The ledger directories on it, by their place in the configuration.
    pub ledger_dirs: Vec<usize>,
    /// A journal is on it.
    pub has_journal: bool,
}

/// Why a data directory cannot be used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// The system refuses to list, create, read or write.
    #[error("cannot {action} {}: {source}. Check that the directory exists or can be created, is writable by this user, and its disk is mounted", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file has the name.
    #[error("{} is not a directory: name a directory that exists or can be created", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// `current` is a link or a file: what it leads to would be neither examined nor locked.
    #[error("{} is a link or a file, not a directory: the lock of a data directory would not cover what it leads to. Put the real directory here, or name or link the directory above it", path.display())]
    NotOwnDirectory {
        /// `current`.
        path: PathBuf,
    },
    /// Another process has it.
    #[error("{} is in use by another bookie that is running: stop it, or give this one another directory", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The same directory is named twice.
    #[error("{} is configured twice: each journal and each ledger directory needs a directory of its own", path.display())]
    Twice {
        /// The directory.
        path: PathBuf,
    },
    /// Data of a Java bookie.
    #[error(
        "{} holds the data of a Java bookie ({found}), which this bookie cannot open in place: start with an empty directory \
         under another bookie id, and let the cluster re-replicate or decommission the Java bookie",
        path.display()
    )]
    JavaBookie {
        /// The directory.
        path: PathBuf,
        /// What gave it away.
        found: String,
    },
    /// Written by a later version.
    #[error(
        "{} was written by a newer bindery (directory format {found}, this version reads up to {FORMAT_VERSION}): \
         start it with that version",
        path.display()
    )]
    NewerFormat {
        /// The directory.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The mark cannot be read.
    #[error("{} is damaged: it should read \"bindery-format {FORMAT_VERSION}\". If the rest of the directory is sound, write that line into it", path.display())]
    BadMark {
        /// The file.
        path: PathBuf,
    },
    /// Something else lives there.
    #[error("{} is not empty and not a bookie's ({found}): name an empty directory or one of this bookie", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Something found in it.
        found: String,
    },
    /// The record of the cluster's metadata was written by a later version.
    #[error(
        "{} was written by a newer bindery: {source}. Start this bookie with that version. To stay with this one, empty the file in \
         each ledger directory (truncate -s 0): the bookie's data stay, and until metadata and entries were compared what might be missing is \
         answered as unknown",
        path.display()
    )]
    NewerKnown {
        /// The file.
        path: PathBuf,
        /// Its version.
        source: KnownError,
    },
    /// The cookie cannot be read.
    #[error("{}: {source}", path.display())]
    BadCookie {
        /// The file.
        path: PathBuf,
        /// Why.
        source: bindery_metadata::cookie::CookieError,
    },
}

/// All directories of a bookie, locked.
pub struct DataDirs {
    disk: Arc<dyn Disk>,
    journals: Vec<PathBuf>,
    ledgers: Vec<PathBuf>,
    /// Cookies name directories by what follows this.
    names_below: Option<PathBuf>,
    _locks: Vec<Box<dyn DiskLock>>,
}

/// The [`ClusterRecord`] that the ledger directories have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundRecord {
    /// The sound copies, joined to what forbids most.
    Sound(ClusterRecord),
    /// No directory has one: the bookie is new, or an early build left the directories, which wrote it with its first round of garbage
    /// collection.
    Missing,
    /// There is one, and none is sound.
    Damaged,
}

impl DataDirs {
    /// Whether the cookie in a journal directory names directories below a home that may be moved: those of
    /// `bindery standalone` do. Without a readable cookie it does not; the start-up checks say what is wrong with one.
    /// Blocks.
    pub fn has_relative_names(disk: &dyn Disk, journal: &Path) -> bool {
        let text = read_small(disk, &journal.join(CURRENT_NAME).join(COOKIE_NAME)).ok().flatten();
        let cookie = text.and_then(|bytes| Cookie::parse(&bytes).ok());
        cookie.is_some_and(|cookie| Path::new(&cookie.journal_dirs).is_relative())
    }

    /// Examines, creates and locks the directories. With `names_below`, cookies name those in it by the rest of their
    /// path, which stays true when it is moved. Blocks.
    pub fn open(
        disk: Arc<dyn Disk>,
        journals: &[PathBuf],
        ledgers: &[PathBuf],
        names_below: Option<&Path>,
    ) -> Result<DataDirs, DataDirError> {
        let all: Vec<&Path> = journals.iter().chain(ledgers).map(PathBuf::as_path).collect();
        for (index, dir) in all.iter().enumerate() {
            if all[..index].contains(dir) {
                return Err(DataDirError::Twice { path: dir.to_path_buf() });
            }
            examine(&*disk, dir)?;
        }
        let mut locks = Vec::new();
        for dir in &all {
            let current = dir.join(CURRENT_NAME);
            create_durable_dir(&*disk, &current).map_err(|source| io_error("create", &current, source))?;
            let lock = dir.join(LOCK_NAME);
            locks.push(lock_patiently(&*disk, &lock).map_err(|source| match source.kind() {
                ErrorKind::WouldBlock => DataDirError::InUse { path: dir.to_path_buf() },
                _ => io_error("lock", &lock, source),
            })?);
            // Somebody else may have moved in between the first look and the lock.
            examine(&*disk, dir)?;
        }
        let (journals, ledgers) = (journals.to_vec(), ledgers.to_vec());
        let names_below = names_below.map(Path::to_owned);
        Ok(DataDirs { disk, journals, ledgers, names_below, _locks: locks })
    }

    /// Where the files of each journal go.
    pub fn journal_files(&self) -> Vec<PathBuf> {
        self.journals.iter().map(|dir| dir.join(CURRENT_NAME)).collect()
    }

    /// Where the files of journals are that are configured no more, by what cookies call their directories.
    pub fn former_journal_files(&self, names: &[String]) -> Vec<PathBuf> {
        let base = self.names_below.as_deref().unwrap_or(Path::new(""));
        names.iter().map(|name| base.join(name).join(CURRENT_NAME)).collect()
    }

    /// Where entry logs and the state tables go.
    pub fn ledger_files(&self) -> Vec<PathBuf> {
        self.ledgers.iter().map(|dir| dir.join(CURRENT_NAME)).collect()
    }

    /// The configured ledger directories.
    pub fn ledgers(&self) -> &[PathBuf] {
        &self.ledgers
    }

    fn all(&self) -> impl Iterator<Item = &PathBuf> {
        self.journals.iter().chain(&self.ledgers)
    }

    /// The cookie that these directories call for.
    pub fn expected_cookie(&self, bookie_id: &bindery_types::BookieId, instance_id: Option<&str>) -> Cookie {
        let names = |dirs: &[PathBuf]| -> Vec<String> { dirs.iter().map(|dir| self.name(dir)).collect() };
        Cookie::new(bookie_id, &names(&self.journals), &names(&self.ledgers), None, instance_id)
    }

    /// What cookies call a directory.
    fn name(&self, dir: &Path) -> String {
        let below = self.names_below.as_deref().and_then(|base| dir.strip_prefix(base).ok());
        below.unwrap_or(dir).to_string_lossy().into_owned()
    }

    /// What the directories say about themselves, for the start-up checks. Blocks.
    pub fn directories(&self) -> Result<Vec<Directory>, DataDirError> {
        self.all().map(|dir| self.directory(dir)).collect()
    }

    fn directory(&self, dir: &Path) -> Result<Directory, DataDirError> {
        let current = dir.join(CURRENT_NAME);
        let path = current.join(COOKIE_NAME);
        let text = read_small(&*self.disk, &path).map_err(|source| io_error("read", &path, source))?;
        let cookie = match text {
            Some(bytes) => {
                Some(Cookie::parse(&bytes).map_err(|source| DataDirError::BadCookie { path, source })?)
            }
            None => None,
        };
        let names = self.disk.list(&current).map_err(|source| io_error("list", &current, source))?;
        let is_empty = names.iter().all(|entry| is_not_data(&entry.name));
        Ok(Directory { path: self.name(dir), cookie, is_empty })
    }

    /// Marks the directories as ours and writes the cookie, in the order given (all when `order` is `None`). Durable
    /// when it returns. Blocks.
    pub fn stamp(&self, cookie: &Cookie, order: Option<&[String]>) -> Result<(), DataDirError> {
        let dirs: Vec<PathBuf> = match order {
            Some(order) => order
                .iter()
                .filter_map(|name| self.all().find(|dir| self.name(dir) == *name))
                .cloned()
                .collect(),
            None => self.all().cloned().collect(),
        };
        for dir in dirs {
            let current = dir.join(CURRENT_NAME);
            let files =
                [(MARK_NAME, format!("bindery-format {FORMAT_VERSION}\n")), (COOKIE_NAME, cookie.to_text())];
            for (name, text) in files {
                publish(&*self.disk, &current, name, text.as_bytes(), false)
                    .map_err(|source| io_error("write", &current.join(name), source))?;
            }
        }
        Ok(())
    }

    /// The first ledger directory. Without any, which the engine refuses, a journal's.
    fn home_of_session(&self) -> &Path {
        self.ledgers.first().or(self.journals.first()).map_or(Path::new(""), PathBuf::as_path)
    }

    /// Keeps the metadata session beside the first ledger directory's cookie.
    pub fn session_store(&self) -> Arc<dyn SessionStore> {
        let dir = self.home_of_session().join(CURRENT_NAME);
        Arc::new(SessionFile { disk: self.disk.clone(), dir })
    }

    /// What is remembered of metadata, from all ledger directories that have it, whole. Blocks.
    ///
    /// # Errors
    /// A copy is of a later version, or its directory cannot be read.
    pub fn known(&self) -> Result<FoundRecord, DataDirError> {
        let mut found = FoundRecord::Missing;
        for dir in &self.ledgers {
            let path = dir.join(CURRENT_NAME).join(CLUSTER_RECORD_NAME);
            let damaged = |found: FoundRecord, why: &dyn std::fmt::Display| {
                tracing::error!(path = %path.display(), %why, "a record of the cluster's metadata is damaged: it is written anew");
                match found {
                    FoundRecord::Sound(_) => found,
                    FoundRecord::Missing | FoundRecord::Damaged => FoundRecord::Damaged,
                }
            };
            let bytes = match read_small(&*self.disk, &path) {
                // A directory that joined later has none, and nothing to forbid.
                Ok(None) => continue,
                Ok(Some(bytes)) => bytes,
                Err(error) if is_damage(&error) => {
                    found = damaged(found, &error);
                    continue;
                }
                Err(source) => return Err(io_error("read", &path, source)),
            };
            match ClusterRecord::parse(&bytes) {
                Ok(known) => {
                    found = FoundRecord::Sound(match found {
                        FoundRecord::Sound(before) => before.joined(known),
                        FoundRecord::Missing | FoundRecord::Damaged => known,
                    });
                }
                Err(source @ KnownError::Version(_)) => {
                    return Err(DataDirError::NewerKnown { path, source });
                }
                Err(why @ KnownError::Damaged) => found = damaged(found, &why),
            }
        }
        Ok(found)
    }

    /// Replaces what is remembered of metadata, durably. After an error some directories have the former text. Blocks.
    pub fn save_known(&self, known: &ClusterRecord) -> Result<(), DataDirError> {
        for dir in &self.ledgers {
            let current = dir.join(CURRENT_NAME);
            publish(&*self.disk, &current, CLUSTER_RECORD_NAME, known.to_text().as_bytes(), false)
                .map_err(|source| io_error("write", &current.join(CLUSTER_RECORD_NAME), source))?;
        }
        Ok(())
    }

    /// Removes the kept session: it was ended. Blocks.
    pub fn forget_session(&self) {
        let dir = self.home_of_session().join(CURRENT_NAME);
        let removed = self.disk.remove(&dir.join(SESSION_NAME));
        if let Err(error) = removed.and_then(|()| self.disk.sync_dir(&dir)) {
            // The next start asks for it in vain, and opens a new one.
            tracing::debug!(%error, "remove the metadata session");
        }
    }

    /// The file systems of the directories. Blocks.
    pub fn volumes_of_all(&self) -> Vec<Volume> {
        let mut volumes: Vec<(Option<u64>, Volume)> = Vec::new();
        for (place, dir) in self.all().enumerate() {
            let device = device(dir);
            let known = volumes.iter_mut().find(|(of, _)| device.is_some() && *of == device);
            let volume = match known {
                Some((_, volume)) => volume,
                None => {
                    let reserve_dir = dir.join(CURRENT_NAME);
                    let volume = Volume { reserve_dir, ledger_dirs: Vec::new(), has_journal: false };
                    volumes.push((device, volume));
                    &mut volumes.last_mut().expect("just pushed").1
                }
            };
            match place.checked_sub(self.journal_count()) {
                Some(ledgers) => volume.ledger_dirs.push(ledgers),
                None => volume.has_journal = true,
            }
        }
        volumes.into_iter().map(|(_, volume)| volume).collect()
    }

    /// How many of `all` are journals; they come first.
    fn journal_count(&self) -> usize {
        self.journals.len()
    }

    /// One directory of each file system that holds ledgers, so that space is counted once.
    pub fn volumes(&self) -> Vec<PathBuf> {
        let mut seen = Vec::new();
        let mut volumes = Vec::new();
        for dir in &self.ledgers {
            let device = device(dir);
            if device.is_none() || !seen.contains(&device) {
                seen.push(device);
                volumes.push(dir.clone());
            }
        }
        volumes
    }
}

/// Which file system a directory is on: asked at the start only; space is asked through the disk.
fn device(dir: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(dir).map(|metadata| metadata.dev()).ok()
}

/// A killed bookie keeps its locks until the kernel has taken it apart, and a supervisor starts the next one before.
fn lock_patiently(disk: &dyn Disk, path: &Path) -> io::Result<Box<dyn DiskLock>> {
    for attempt in 0..LOCK_ATTEMPTS {
        match disk.lock(path) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if attempt == 0 {
                    tracing::info!(path = %path.display(), "waiting for the lock: a previous process may still be \
                     exiting");
                }
                std::thread::sleep(LOCK_PAUSE);
            }
            other => return other,
        }
    }
    disk.lock(path)
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> DataDirError {
    DataDirError::Io { action, path: path.to_owned(), source }
}

/// The id of the bookie that a ledger directory belongs to; `None` when it has no cookie. Blocks.
pub fn owner(disk: &dyn Disk, ledger_dir: &Path) -> Result<Option<String>, DataDirError> {
    let path = ledger_dir.join(CURRENT_NAME).join(COOKIE_NAME);
    let bytes = match read_small(disk, &path) {
        Ok(bytes) => bytes,
        Err(source) => return Err(io_error("read", &path, source)),
    };
    match bytes.map(|bytes| Cookie::parse(&bytes)).transpose() {
        Ok(cookie) => Ok(cookie.map(|cookie| cookie.bookie_id)),
        Err(source) => Err(DataDirError::BadCookie { path, source }),
    }
}

/// Refuses a directory that is to hold the others (`--data`) but is itself a Java bookie's. Blocks.
pub fn examine_home(disk: &dyn Disk, home: &Path) -> Result<(), DataDirError> {
    if list(disk, home)?.is_none() {
        return Ok(());
    }
    let inside = list(disk, &home.join(CURRENT_NAME))?.unwrap_or_default();
    match inside.iter().find(|entry| is_java(entry)) {
        Some(found) => {
            let found = format!("{CURRENT_NAME}/{}", found.name);
            Err(DataDirError::JavaBookie { path: home.to_owned(), found })
        }
        None => Ok(()),
    }
}

/// Files in `current` that say nothing about data.
fn is_not_data(name: &str) -> bool {
    [MARK_NAME, COOKIE_NAME, SESSION_NAME, RESERVE_NAME, CLUSTER_RECORD_NAME, PROBE_NAME]
        .iter()
        .any(|known| name.strip_suffix(".new").unwrap_or(name) == *known)
}

/// Refuses what is not ours (invariant 1). A directory that is missing or empty is fine.
fn examine(disk: &dyn Disk, dir: &Path) -> Result<(), DataDirError> {
    let Some(names) = list(disk, dir)? else { return Ok(()) };
    let current = dir.join(CURRENT_NAME);
    let inside = match names.iter().find(|entry| entry.name == CURRENT_NAME) {
        Some(entry) if entry.is_dir => list(disk, &current)?.unwrap_or_default(),
        Some(_) => return Err(DataDirError::NotOwnDirectory { path: current }),
        None => Vec::new(),
    };
    let mark = current.join(MARK_NAME);
    match read_small(disk, &mark).map_err(|source| io_error("read", &mark, source))? {
        Some(text) => check_mark(dir, &mark, &text)?,
        None => {
            if let Some(found) = inside.iter().find(|entry| is_java(entry)) {
                let found = format!("{CURRENT_NAME}/{}", found.name);
                return Err(DataDirError::JavaBookie { path: dir.to_owned(), found });
            }
            if let Some(found) = inside.iter().find(|entry| !is_not_data(&entry.name)) {
                let found = format!("{CURRENT_NAME}/{}", found.name);
                return Err(DataDirError::Foreign { path: dir.to_owned(), found });
            }
        }
    }
    let is_known = |entry: &&Entry| ![LOCK_NAME, CURRENT_NAME, "lost+found"].contains(&entry.name.as_str());
    match names.iter().find(is_known) {
        Some(found) => Err(DataDirError::Foreign { path: dir.to_owned(), found: found.name.clone() }),
        None => Ok(()),
    }
}

fn list(disk: &dyn Disk, dir: &Path) -> Result<Option<Vec<Entry>>, DataDirError> {
    match disk.list(dir) {
        Ok(names) => Ok(Some(names)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            Err(DataDirError::NotADirectory { path: dir.to_owned() })
        }
        Err(source) => Err(io_error("list", dir, source)),
    }
}

/// What only a Java bookie puts into `current` (protocol reference, sections 4.8 and 9).
fn is_java(entry: &Entry) -> bool {
    let name = entry.name.as_str();
    let by_name = ["lastMark", "lastId", COOKIE_NAME, "DIRTY", "BOOKIE_STATUS"].contains(&name)
        || name.ends_with(".txn")
        || name.ends_with(".log");
    by_name || (entry.is_dir && ["ledgers", "locations"].contains(&name))
}

fn check_mark(dir: &Path, mark: &Path, text: &[u8]) -> Result<(), DataDirError> {
    let version = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.lines().next())
        .and_then(|line| line.strip_prefix("bindery-format "))
        .and_then(|number| number.trim().parse::<u32>().ok());
    match version {
        Some(FORMAT_VERSION) => Ok(()),
        Some(found) if found > FORMAT_VERSION => {
            Err(DataDirError::NewerFormat { path: dir.to_owned(), found })
        }
        _ => Err(DataDirError::BadMark { path: mark.to_owned() }),
    }
}

/// A file of a few lines; `None` when it is not there.
fn read_small(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    if !disk.exists(path)? {
        return Ok(None);
    }
    let file = disk.open(path, OpenMode::Read)?;
    let len = file.len()?;
    if len > SMALL_FILE_BYTES_MAX {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("{len} bytes are too many for this file"),
        ));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}

/// The medium lost the file, or it is not what was written.
fn is_damage(error: &io::Error) -> bool {
    const EIO: i32 = 5;
    error.kind() == ErrorKind::InvalidData || error.raw_os_error() == Some(EIO)
}

/// Replaces a small file: a new one is complete and durable before it takes the name.
fn publish(disk: &dyn Disk, dir: &Path, name: &str, bytes: &[u8], is_secret: bool) -> io::Result<()> {
    let temporary = dir.join(format!("{name}.new"));
    let file: Arc<dyn DiskFile> = disk.open(&temporary, OpenMode::CreateBuffered)?;
    if is_secret {
        restrict(&temporary)?;
    }
    file.set_len(0)?;
    file.write_all_at(&mut [IoSlice::new(bytes)], 0)?;
    file.sync()?;
    disk.rename(&temporary, &dir.join(name))?;
    disk.sync_dir(dir)
}

struct SessionFile {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl SessionStore for SessionFile {
    fn load(&self) -> io::Result<Option<SessionCredentials>> {
        let Some(bytes) = read_small(&*self.disk, &self.dir.join(SESSION_NAME))? else { return Ok(None) };
        Ok(std::str::from_utf8(&bytes).ok().and_then(SessionCredentials::from_text))
    }

    fn save(&self, credentials: &SessionCredentials) -> io::Result<()> {
        publish(&*self.disk, &self.dir, SESSION_NAME, credentials.to_text().as_bytes(), true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_io::RealDisk;
    use bindery_metadata::SessionId;
    use bindery_types::BookieId;
    use std::os::unix::fs::PermissionsExt;

    struct Place {
        dir: tempfile::TempDir,
        disk: Arc<dyn Disk>,
    }

    impl Place {
        fn new() -> Place {
            Place { dir: tempfile::tempdir().unwrap(), disk: Arc::new(RealDisk::new()) }
        }
        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }
        fn put(&self, name: &str, text: &str) {
            let path = self.path(name);
            self.disk.create_dir_all(path.parent().unwrap()).unwrap();
            let file = self.disk.open(&path, OpenMode::CreateBuffered).unwrap();
            file.set_len(0).unwrap();
            file.write_all_at(&mut [IoSlice::new(text.as_bytes())], 0).unwrap();
        }
        fn open(&self) -> Result<DataDirs, DataDirError> {
            DataDirs::open(self.disk.clone(), &[self.path("journal")], &[self.path("ledgers")], None)
        }
    }

    #[test]
    fn stamped_directories_are_recognised_and_locked() {
        let place = Place::new();
        let id = BookieId::new("b:1").unwrap();
        {
            let dirs = place.open().unwrap();
            let cookie = dirs.expected_cookie(&id, Some("cluster"));
            assert!(dirs.directories().unwrap().iter().all(|d| d.is_empty && d.cookie.is_none()));
            dirs.stamp(&cookie, None).unwrap();
            let error = place.open().map(|_| ()).unwrap_err();
            assert!(matches!(error, DataDirError::InUse { .. }), "{error}");
        }
        let dirs = place.open().unwrap();
        let cookie = dirs.expected_cookie(&id, Some("cluster"));
        for directory in dirs.directories().unwrap() {
            assert_eq!(directory.cookie.as_ref(), Some(&cookie));
            assert!(directory.is_empty);
        }
    }

    #[test]
    fn directories_below_a_home_are_named_without_it() {
        let place = Place::new();
        let open = |home: &str| {
            let (journal, ledgers) = (place.path(home).join("journal"), place.path(home).join("ledgers"));
            DataDirs::open(place.disk.clone(), &[journal], &[ledgers], Some(&place.path(home))).unwrap()
        };
        let id = BookieId::new("b:1").unwrap();
        let dirs = open("here");
        assert_eq!(owner(&*place.disk, &place.path("here/ledgers")).unwrap(), None);
        let cookie = dirs.expected_cookie(&id, Some("cluster"));
        assert_eq!((&*cookie.journal_dirs, &*cookie.ledger_dirs), ("journal", "1\tledgers"));
        dirs.stamp(&cookie, Some(&["ledgers".to_owned(), "journal".to_owned()])).unwrap();
        drop(dirs);
        place.disk.rename(&place.path("here"), &place.path("there")).unwrap();
        let dirs = open("there");
        for directory in dirs.directories().unwrap() {
            assert_eq!(
                directory.cookie,
                Some(dirs.expected_cookie(&id, Some("cluster"))),
                "{}",
                directory.path
            );
        }
        assert_eq!(owner(&*place.disk, &place.path("there/ledgers")).unwrap().as_deref(), Some("b:1"));
    }

    #[test]
    fn what_is_not_ours_is_refused_and_left_alone() {
        let cases = [
            ("ledgers/current/lastMark", "Java bookie"),
            ("ledgers/current/0.log", "Java bookie"),
            ("journal/current/17f.txn", "Java bookie"),
            ("ledgers/current/VERSION", "Java bookie"),
            ("ledgers/current/locations/CURRENT", "Java bookie"),
            ("ledgers/photos.tar", "not empty"),
            ("ledgers/current/thing", "not empty"),
        ];
        for (file, says) in cases {
            let place = Place::new();
            place.put(file, "x");
            let error = place.open().map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(says), "{file}: {error}");
            let dir = place.path(file.split('/').next().unwrap());
            assert!(!place.disk.exists(&dir.join(LOCK_NAME)).unwrap(), "{file}: nothing was written");
        }
    }

    #[test]
    fn a_java_bookie_is_recognised_above_the_directories_too() {
        let place = Place::new();
        assert!(examine_home(&*place.disk, &place.path("missing")).is_ok());
        place.put("java/current/lastMark", "x");
        let error = examine_home(&*place.disk, &place.path("java")).unwrap_err();
        assert!(matches!(error, DataDirError::JavaBookie { .. }), "{error}");
    }

    #[test]
    fn newer_and_damaged_marks_are_refused() {
        let place = Place::new();
        place.put("ledgers/current/BINDERY", "bindery-format 2\n");
        let error = place.open().map(|_| ()).unwrap_err();
        assert!(matches!(error, DataDirError::NewerFormat { found: 2, .. }), "{error}");
        place.put("ledgers/current/BINDERY", "hello");
        assert!(matches!(place.open().map(|_| ()).unwrap_err(), DataDirError::BadMark { .. }));
    }

    #[test]
    fn a_damaged_record_of_metadata_is_none_and_a_newer_one_is_refused_as_that() {
        let place = Place::new();
        let (one, two) = (place.path("one"), place.path("two"));
        let dirs = DataDirs::open(place.disk.clone(), &[place.path("journal")], &[one, two], None).unwrap();
        assert_eq!(dirs.known().unwrap(), FoundRecord::Missing);
        let known =
            ClusterRecord { checked_up_to: bindery_types::LedgerId::new(7), ..ClusterRecord::default() };
        dirs.save_known(&known).unwrap();
        place.put("one/current/KNOWN", &known.to_text().replace('7', "8"));
        assert_eq!(dirs.known().unwrap(), FoundRecord::Sound(known), "the other copy is sound");
        place.put("two/current/KNOWN", &"x".repeat(1 << 20));
        assert_eq!(dirs.known().unwrap(), FoundRecord::Damaged);
        let text = "bindery-known 9\nwhatever\n";
        let crc = bindery_journal::record::crc32c(text.as_bytes());
        place.put("two/current/KNOWN", &format!("{text}crc32c {crc:08x}\n"));
        let error = dirs.known().unwrap_err();
        assert!(matches!(error, DataDirError::NewerKnown { .. }), "{error}");
        assert!(!error.to_string().contains("lost"), "{error}");
    }

    #[test]
    fn a_file_or_the_same_directory_twice_is_refused() {
        let place = Place::new();
        place.put("ledgers", "x");
        assert!(matches!(place.open().map(|_| ()).unwrap_err(), DataDirError::NotADirectory { .. }));
        let (disk, one) = (place.disk.clone(), place.path("one"));
        let error = DataDirs::open(disk, std::slice::from_ref(&one), std::slice::from_ref(&one), None)
            .map(|_| ())
            .unwrap_err();
        assert!(matches!(error, DataDirError::Twice { .. }));
    }

    /// S14: the lock is in the directory, whatever name it was reached by.
    #[test]
    fn a_directory_is_one_by_all_its_names() {
        let place = Place::new();
        let (journal, link) = (place.path("journal"), place.path("link"));
        place.disk.create_dir_all(&place.path("ledgers")).unwrap();
        std::os::unix::fs::symlink(place.path("ledgers"), &link).unwrap();
        let open = |ledger_dirs: &[PathBuf], journal: &Path| {
            DataDirs::open(place.disk.clone(), &[journal.to_owned()], ledger_dirs, None).map(|_| ())
        };
        // A link of `current` would escape the lock and the examination.
        let elsewhere = place.path("elsewhere");
        place.disk.create_dir_all(&elsewhere).unwrap();
        std::os::unix::fs::symlink(place.path("ledgers"), elsewhere.join("current")).unwrap();
        let linked = open(std::slice::from_ref(&elsewhere), &journal).unwrap_err();
        assert!(matches!(linked, DataDirError::NotOwnDirectory { .. }), "{linked}");
        let by_both = open(&[place.path("ledgers"), link.clone()], &journal).unwrap_err();
        assert!(matches!(by_both, DataDirError::InUse { .. } | DataDirError::Twice { .. }), "{by_both}");
        let _dirs = place.open().unwrap();
        let by_another = open(std::slice::from_ref(&link), &place.path("journal-2")).unwrap_err();
        assert!(matches!(by_another, DataDirError::InUse { .. }), "{by_another}");
    }

    #[test]
    fn the_session_is_kept_where_only_its_owner_reads_it() {
        let place = Place::new();
        let dirs = place.open().unwrap();
        let store = dirs.session_store();
        assert_eq!(store.load().unwrap(), None);
        let credentials = SessionCredentials { id: SessionId(77), password: vec![1, 2, 3] };
        store.save(&credentials).unwrap();
        store.save(&credentials).unwrap();
        assert_eq!(store.load().unwrap(), Some(credentials));
        let mode = std::fs::metadata(place.path("ledgers/current/SESSION")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        dirs.forget_session();
        dirs.forget_session();
        assert_eq!(store.load().unwrap(), None);
    }
}
