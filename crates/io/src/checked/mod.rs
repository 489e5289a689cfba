//! A disk that checks how it is used, and knows what is durable. It wraps any other disk.
//!
//! # Data flow
//! ```text
//! write -> unsynced ranges -> sync begins: they move to the sync -> Ok: durable
//!                                                                -> Err: unsynced for ever, the file has failed
//! ```
//!
//! # Invariants
//! Callers must keep these; breaking one is a [`Violation`].
//! 1. After a failed write, sync or change of length, none of these is issued on the file again (reliability IB14). A
//!    file stays failed under every handle and name, until it is removed or replaced.
//! 2. A file is not changed after it was removed or replaced, and not through a handle opened for reading.
//! 3. On a direct file all transfers are aligned (see [`crate::direct`]).
//! 4. Two writes that run at the same time touch different bytes; so do a write and a change of length.
//!
//! For other checkers: [`CheckedDisk::is_durable`] and [`CheckedDisk::undurable_bytes`] tell its state. Anything on
//! the disk before it was wrapped counts as durable.
//!
//! # Limits
//! One entry for each file ever opened and not removed, one range for each gap between unsynced writes.

mod file;
mod ranges;

use crate::disk::{Disk, DiskFile, DiskLock, Entry, OpenMode, Overwrites, Space};
use file::{CheckedFile, FileState};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A broken rule of the call order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The file, by its present name.
    pub path: PathBuf,
    /// Which rule, with the values; for invariant 1 also the first error.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "disk call order broken on {}: {}", self.path.display(), self.what)
    }
}

/// Violations kept when they are recorded; a broken caller repeats itself.
const VIOLATIONS_MAX: usize = 100;

/// How a violation is handled.
enum Verdict {
    Panic,
    Record(Mutex<Vec<Violation>>),
}

impl Verdict {
    fn broken(&self, path: &Path, what: String) {
        let violation = Violation { path: path.to_path_buf(), what };
        match self {
            Verdict::Panic => panic!("{violation}"),
            Verdict::Record(found) => {
                let mut found = found.lock();
                if found.len() < VIOLATIONS_MAX {
                    found.push(violation);
                }
            }
        }
    }
}

type SharedFile = Arc<Mutex<FileState>>;

#[derive(Default)]
struct Names {
    files: BTreeMap<PathBuf, SharedFile>,
    /// Names made or renamed to since the last sync of their directory.
    undurable: BTreeSet<PathBuf>,
}

impl Names {
    /// Forgets the file that has this name, if it is known, and marks it as removed for the handles that are still open.
    fn forget(&mut self, path: &Path) {
        if let Some(file) = self.files.remove(path) {
            file.lock().is_removed = true;
        }
        self.undurable.remove(path);
    }
}

/// A checking wrapper, see the module.
pub struct CheckedDisk<D> {
    inner: D,
    names: Mutex<Names>,
    verdict: Arc<Verdict>,
}

impl<D: Disk> CheckedDisk<D> {
    /// Checks `inner` and panics at a violation, naming file and first error.
    pub fn new(inner: D) -> CheckedDisk<D> {
        CheckedDisk { inner, names: Mutex::default(), verdict: Arc::new(Verdict::Panic) }
    }

    /// As `new`, but violations are kept for [`CheckedDisk::violations`] and the call goes through.
    pub fn recording(inner: D) -> CheckedDisk<D> {
        CheckedDisk { verdict: Arc::new(Verdict::Record(Mutex::default())), ..CheckedDisk::new(inner) }
    }

    /// The wrapped disk. Changes made through it are not seen by the checks.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The first violations, at most 100, when they are recorded.
    pub fn violations(&self) -> Vec<Violation> {
        match &*self.verdict {
            Verdict::Panic => Vec::new(),
            Verdict::Record(found) => found.lock().clone(),
        }
    }

    /// True when these bytes of the file exist and are durable, and so are its name and those of its directories.
    /// False for a file that this disk never opened.
    pub fn is_durable(&self, path: &Path, range: Range<u64>) -> bool {
        let names = self.names.lock();
        let named = !path.ancestors().any(|above| names.undurable.contains(above));
        named && names.files.get(path).is_some_and(|file| file.lock().is_durable(&range))
    }

    /// Bytes written or cut in files that still have a name, and not yet durable.
    pub fn undurable_bytes(&self) -> u64 {
        self.names.lock().files.values().map(|file| file.lock().undurable_bytes()).sum()
    }

    /// The first error that a write, sync or change of length of this file met.
    pub fn first_error(&self, path: &Path) -> Option<String> {
        self.names.lock().files.get(path).and_then(|file| file.lock().failed.clone())
    }
}

impl<D: Disk> Disk for CheckedDisk<D> {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut names = self.names.lock();
        let existed = self.inner.exists(path)?;
        let inner = self.inner.open(path, mode)?;
        if !existed {
            names.undurable.insert(path.to_path_buf());
        }
        let state = match names.files.get(path) {
            Some(known) => known.clone(),
            None => {
                let state = Arc::new(Mutex::new(FileState::new(path, inner.len()?)));
                names.files.insert(path.to_path_buf(), state.clone());
                state
            }
        };
        let verdict = self.verdict.clone();
        Ok(Arc::new(CheckedFile { inner, state, verdict, is_writable: !mode.is_read_only() }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.inner.list(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        let mut missing = Vec::new();
        for above in dir.ancestors().filter(|above| above.parent().is_some()) {
            if self.inner.exists(above)? {
                break;
            }
            missing.push(above.to_path_buf());
        }
        self.inner.create_dir_all(dir)?;
        names.undurable.extend(missing);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        self.inner.rename(from, to)?;
        if from == to {
            return Ok(());
        }
        names.forget(to);
        names.undurable.remove(from);
        names.undurable.insert(to.to_path_buf());
        if let Some(file) = names.files.remove(from) {
            file.lock().path = to.to_path_buf();
            names.files.insert(to.to_path_buf(), file);
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        self.inner.remove(path)?;
        names.forget(path);
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let before: Vec<PathBuf> =
            self.names.lock().undurable.iter().filter(|path| path.parent() == Some(dir)).cloned().collect();
        self.inner.sync_dir(dir)?;
        let mut names = self.names.lock();
        for path in before {
            names.undurable.remove(&path);
        }
        Ok(())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        self.inner.lock(path)
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        self.inner.space(dir)
    }
    fn overwrites(&self, dir: &Path) -> io::Result<Overwrites> {
        self.inner.overwrites(dir)
    }
    fn prefer_in_place(&self, dir: &Path) -> io::Result<()> {
        self.inner.prefer_in_place(dir)
    }
}

#[cfg(test)]
mod tests;
