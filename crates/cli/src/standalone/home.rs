//! The directory of a standalone cluster: whether it may be used, and the lock on it.
//!
//! ```text
//! DIR/LOCK         held while the process lives; holds its number
//! DIR/coordinator  the tree
//! DIR/bookie-1     journal and ledgers, and so on for each bookie
//! ```
//!
//! # Invariants
//! 1. A directory is examined before anything is written into it: one that is not ours stays as it was found.
//! 2. Only the process that has the lock starts coordinator or bookies of this directory.

use super::plan::bookie_name;
use bindery_io::{Disk, DiskLock, OpenMode, create_durable_dir};
use bindery_server::data_dirs::{self, DataDirError};
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const LOCK_NAME: &str = "LOCK";
const COORDINATOR_NAME: &str = "coordinator";
const COORDINATOR_FILE_NAME: &str = "coordinator.redb";
/// How often, and at what distance, the lock is tried: for one second, which a killed process needs to be torn down.
const LOCK_ATTEMPTS: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Why the directory cannot be used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// The system refuses.
    #[error(
        "cannot {action} {}: {source}. Check that the directory exists or can be created, is writable by this user, and \
         its disk is mounted and has room, or name another one with --data", path.display()
    )]
    Io {
        /// The attempted action.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file has the name.
    #[error("{} is not a directory: name one that exists or can be created with --data", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// Another process has it.
    #[error(
        "{} is in use by another bindery standalone{}: connect to that one, stop it, or name another directory with \
         --data", path.display(), .pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// Whose lock it is, when the file says so.
        pid: Option<u32>,
    },
    /// A single bookie's.
    #[error(
        "{} holds the data of a single bookie ({found}), not of a standalone cluster: start it with bindery bookie --data, \
         or name another directory with --data", path.display()
    )]
    OfABookie {
        /// The directory.
        path: PathBuf,
        /// The evidence.
        found: String,
    },
    /// Something else lives there.
    #[error(
        "{} is not empty and not the data of a standalone cluster ({found}): name an empty or a new directory with --data",
        path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Something found in it.
        found: String,
    },
    /// Bookies without the metadata of their ledgers.
    #[error(
        "{} has bookies ({found}) but no {COORDINATOR_NAME}/{COORDINATOR_FILE_NAME}, without which their ledgers cannot be \
         found: bring it back, or name another directory with --data", path.display()
    )]
    CoordinatorMissing {
        /// The directory.
        path: PathBuf,
        /// One of the bookies.
        found: String,
    },
    /// A bookie's directory cannot be read.
    #[error(transparent)]
    Bookie(#[from] DataDirError),
}

/// The directory, locked.
pub struct Home {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    _lock: Box<dyn DiskLock>,
}

impl Home {
    /// Examines, creates and locks the directory. Blocks.
    pub fn open(disk: Arc<dyn Disk>, path: &Path) -> Result<Home, HomeError> {
        let failed = |action| move |source| HomeError::Io { action, path: path.to_owned(), source };
        examine(&*disk, path)?;
        create_durable_dir(&*disk, path).map_err(failed("create"))?;
        let lock_path = path.join(LOCK_NAME);
        let lock = lock_patiently(&*disk, &lock_path).map_err(|source| match source.kind() {
            ErrorKind::WouldBlock => {
                HomeError::InUse { path: path.to_owned(), pid: pid_in(&*disk, &lock_path) }
            }
            _ => HomeError::Io { action: "lock", path: lock_path.clone(), source },
        })?;
        // Somebody else may have moved in between the first look and the lock.
        examine(&*disk, path)?;
        write_pid(&*disk, &lock_path).map_err(failed("write into"))?;
        disk.sync_dir(path).map_err(failed("sync"))?;
        Ok(Home { disk, path: path.to_owned(), _lock: lock })
    }

    /// The id under which a bookie, counted from 1, first started: it stays when the port changes. Blocks.
    pub fn bookie_id(&self, number: usize) -> Result<Option<String>, HomeError> {
        let ledgers = self.path.join(bookie_name(number)).join("ledgers");
        Ok(data_dirs::owner(&*self.disk, &ledgers)?)
    }

    /// How many bookies have data here: the highest number. Blocks.
    pub fn bookies_with_data(&self) -> usize {
        let entries = self.disk.list(&self.path).unwrap_or_default();
        entries.iter().filter_map(|entry| bookie_number(&entry.name)).max().unwrap_or(0)
    }
}

fn bookie_number(name: &str) -> Option<usize> {
    let number = name.strip_prefix("bookie-")?.parse().ok()?;
    (bookie_name(number) == name && number > 0).then_some(number)
}

/// Refuses what is not ours (invariant 1). A directory that is missing or empty is fine.
fn examine(disk: &dyn Disk, path: &Path) -> Result<(), HomeError> {
    let entries = match disk.list(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(HomeError::NotADirectory { path: path.to_owned() });
        }
        Err(source) => return Err(HomeError::Io { action: "list", path: path.to_owned(), source }),
    };
    // With a coordinator it is ours, and what others put beside it does no harm. The coordinator's file was there before
    // any bookie: a new one would be another cluster's.
    if entries.iter().any(|entry| entry.name == COORDINATOR_NAME && entry.is_dir) {
        let bookie = entries.iter().find(|entry| bookie_number(&entry.name).is_some());
        let file = path.join(COORDINATOR_NAME).join(COORDINATOR_FILE_NAME);
        return match bookie.filter(|_| matches!(disk.exists(&file), Ok(false))) {
            Some(bookie) => {
                Err(HomeError::CoordinatorMissing { path: path.to_owned(), found: bookie.name.clone() })
            }
            None => Ok(()),
        };
    }
    let mut others: Vec<String> = entries.into_iter().map(|entry| entry.name).collect();
    others.retain(|name| ![LOCK_NAME, "lost+found"].contains(&name.as_str()));
    let named = |is_named: &dyn Fn(&str) -> bool| others.iter().find(|name| is_named(name)).cloned();
    let path = path.to_owned();
    if let Some(found) = named(&|name| bookie_number(name).is_some()) {
        return Err(HomeError::CoordinatorMissing { path, found });
    }
    if let Some(found) = named(&|name| ["journal", "ledgers", "current"].contains(&name)) {
        return Err(HomeError::OfABookie { path, found });
    }
    match others.into_iter().next() {
        Some(found) => Err(HomeError::Foreign { path, found }),
        None => Ok(()),
    }
}

/// A killed process keeps its lock until the kernel has taken it apart, and the next one may be started before.
fn lock_patiently(disk: &dyn Disk, path: &Path) -> io::Result<Box<dyn DiskLock>> {
    for _ in 0..LOCK_ATTEMPTS {
        match disk.lock(path) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(LOCK_PAUSE),
            other => return other,
        }
    }
    disk.lock(path)
}

/// For the message to a process that finds the directory locked. The lock works without it.
fn write_pid(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let file = disk.open(path, OpenMode::CreateBuffered)?;
    file.set_len(0)?;
    file.write_all_at(&mut [IoSlice::new(format!("{}\n", std::process::id()).as_bytes())], 0)
}

fn pid_in(disk: &dyn Disk, path: &Path) -> Option<u32> {
    let file = disk.open(path, OpenMode::Read).ok()?;
    let mut bytes = [0; 16];
    let count = file.read_at(&mut bytes, 0).ok()?;
    std::str::from_utf8(&bytes[..count]).ok()?.trim().parse().ok()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "files of a stranger")]
mod tests {
    use super::*;
    use bindery_io::RealDisk;

    fn open(path: &Path) -> Result<Home, HomeError> {
        Home::open(Arc::new(RealDisk::new()), path)
    }

    #[test]
    fn a_locked_directory_is_refused_with_the_process_that_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/data");
        let home = open(&path).unwrap();
        let error = open(&path).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(&format!("(process {})", std::process::id())), "{error}");
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        drop(home);
        open(&path).unwrap();
    }

    #[test]
    fn what_is_not_ours_is_refused_and_left_alone() {
        let cases = [
            ("photos/1.jpg", "not empty"),
            ("journal/current/BINDERY", "bindery bookie --data"),
            ("current/lastMark", "bindery bookie --data"),
            ("bookie-1/journal/LOCK", "no coordinator/coordinator.redb"),
            ("coordinator", "not empty"),
        ];
        for (file, says) in cases {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "x").unwrap();
            let error = open(dir.path()).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(says), "{file}: {error}");
            assert!(!dir.path().join(LOCK_NAME).exists(), "{file}: nothing was written");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(matches!(open(&file).map(|_| ()).unwrap_err(), HomeError::NotADirectory { .. }));
    }

    #[test]
    fn a_lost_store_of_the_coordinator_is_not_made_anew_beside_bookies() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("coordinator")).unwrap();
        drop(open(dir.path()).unwrap());
        std::fs::create_dir_all(dir.path().join("bookie-1")).unwrap();
        let error = open(dir.path()).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("bookie-1") && error.contains("bring it back"), "{error}");
        std::fs::write(dir.path().join("coordinator/coordinator.redb"), "x").unwrap();
        open(dir.path()).unwrap();
    }

    #[test]
    fn bookies_are_counted_by_the_highest_number() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["coordinator", "bookie-1", "bookie-3", "bookie-0", "bookie-07", "other"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("coordinator/coordinator.redb"), "x").unwrap();
        let home = open(dir.path()).unwrap();
        assert_eq!(home.bookies_with_data(), 3);
        assert_eq!(home.bookie_id(1).unwrap(), None);
    }
}
