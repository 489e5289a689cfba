//! Checks the disk at the moments at which data is discarded on purpose: a journal file is taken into use again, an
//! entry log is unlinked.
//!
//! The wrapper only keeps what the medium held right before; judging is for [`judge`], over plain data, so that a test
//! can feed it a violation.
//!
//! # Invariants
//! 1. IB12: the groups of a journal file that is overwritten are below the durable mark of every ledger directory.
//! 2. IB15: the durable state table of its directory does not list an entry log that is unlinked.
//! 3. IB12: no durable mark goes back.

use super::ghost::Check;
use crate::disk::SimDisk;
use bindery_io::{Disk, DiskFile, DiskLayer, FileLayer, OpenMode};
use bindery_journal::inspect;
use bindery_storage::state_table::STATE_FILE_NAME;
use bindery_storage::verify_dir::{DirectoryEvent, Severity, verify_directory};
use bindery_storage::{ReadOnlyDisk, Recovered, StateTable};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Something that must not happen too early.
pub(super) enum Moment {
    /// The first block of a journal file is written.
    JournalFileTaken(PathBuf),
    /// An entry log goes.
    LogUnlinked(PathBuf),
}

/// Group of each directory's mark, by directory and journal.
pub(super) type Marks = BTreeMap<(PathBuf, u32), u64>;

type Moments = Arc<Mutex<Vec<(Moment, SimDisk)>>>;

/// A disk that keeps the moments, each with what was durable before it.
pub(super) struct WatchedDisk {
    inner: Arc<SimDisk>,
    moments: Moments,
}

impl WatchedDisk {
    pub(super) fn new(inner: Arc<SimDisk>) -> WatchedDisk {
        WatchedDisk { inner, moments: Moments::default() }
    }

    /// The moments since the last call.
    pub(super) fn take(&self) -> Vec<(Moment, SimDisk)> {
        std::mem::take(&mut *self.moments.lock())
    }
}

struct WatchedFile {
    inner: Arc<dyn DiskFile>,
    disk: Arc<SimDisk>,
    moments: Moments,
    path: PathBuf,
}

impl WatchedFile {
    fn before_write(&self, offset: u64) {
        if offset == 0 && !self.disk.is_off() {
            let moment = Moment::JournalFileTaken(self.path.clone());
            self.moments.lock().push((moment, self.disk.durable_image()));
        }
    }
}

impl FileLayer for WatchedFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.inner
    }
    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.before_write(offset);
        self.inner.write_at(slices, offset)
    }
    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.before_write(offset);
        self.inner.write_durable_at(slices, offset)
    }
}

impl DiskLayer for WatchedDisk {
    fn beneath(&self) -> &dyn Disk {
        &*self.inner
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let inner = self.inner.open(path, mode)?;
        if path.extension().is_none_or(|extension| extension != "bjl") || mode.is_read_only() {
            return Ok(inner);
        }
        let (disk, moments) = (self.inner.clone(), self.moments.clone());
        Ok(Arc::new(WatchedFile { inner, disk, moments, path: path.to_owned() }))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        if path.extension().is_some_and(|extension| extension == "elog") && !self.inner.is_off() {
            let moment = Moment::LogUnlinked(path.to_owned());
            self.moments.lock().push((moment, self.inner.durable_image()));
        }
        self.inner.remove(path)
    }
}

/// The state table of a directory, without changing anything; `None` before there is one.
fn table(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Option<Recovered>, String> {
    if !disk.exists(&dir.join(STATE_FILE_NAME)).unwrap_or(false) {
        return Ok(None);
    }
    let disk: Arc<dyn Disk> = Arc::new(ReadOnlyDisk::new(disk.clone()));
    match StateTable::open(&disk, dir) {
        Ok((_, recovered)) => Ok(Some(recovered)),
        Err(error) => {
            Err(format!("IB13: the durable state table of {} does not open: {error}", dir.display()))
        }
    }
}

/// The marks of all directories.
pub(super) fn marks(disk: &Arc<dyn Disk>, dirs: &[PathBuf]) -> Result<Marks, String> {
    let mut marks = Marks::new();
    for dir in dirs {
        // A journal that is new at a restart is at its beginning, as one that no directory knows.
        let recovered = table(disk, dir)?.into_iter().flat_map(|recovered| recovered.marks);
        for mark in recovered.filter(|mark| mark.mark.group > 0) {
            marks.insert((dir.clone(), mark.journal), mark.mark.group);
        }
    }
    Ok(marks)
}

/// IB12: no component goes back. One that is missing was never there, or its directory is not used any more.
pub(super) fn check_marks(before: &Marks, now: &Marks) -> Check {
    for ((dir, journal), group) in now {
        let earlier = before.get(&(dir.clone(), *journal)).copied().unwrap_or(0);
        if *group < earlier {
            return Err(format!(
                "IB12: the mark of journal {journal} in {} went from {earlier} back to {group}",
                dir.display()
            ));
        }
    }
    Ok(())
}

/// The last group of the present use of a journal file; `None` when it has none.
fn last_group(disk: &Arc<dyn Disk>, path: &Path) -> Option<u64> {
    let mut last = None;
    let walked = inspect::walk(disk, path, |item| {
        if let inspect::Item::Group(group, _) = item {
            last = Some(group.sequence);
        }
    });
    walked.ok().and(last)
}

/// Judges a moment by what was durable before it. `journals` in their order, as directories know them by number.
pub(super) fn judge(moment: &Moment, before: SimDisk, journals: &[PathBuf], dirs: &[PathBuf]) -> Check {
    let disk: Arc<dyn Disk> = Arc::new(before);
    match moment {
        Moment::JournalFileTaken(path) => {
            let Some(last) = last_group(&disk, path) else { return Ok(()) };
            let number = journals.iter().position(|dir| path.starts_with(dir)).unwrap_or(0) as u32;
            let mut tables = Vec::new();
            for dir in dirs {
                tables.push((dir, table(&disk, dir)?));
            }
            // The others have everything that a failed directory lacks before one of them says that it is out.
            let metas = tables.iter().filter_map(|(_, table)| table.as_ref()?.meta.as_ref());
            let out: BTreeSet<u32> = metas.flat_map(|meta| meta.out.iter().copied()).collect();
            let within = (0u32..).zip(tables).filter(|(number, _)| !out.contains(number));
            for (_, (dir, recovered)) in within {
                let Some(recovered) = recovered else { continue };
                // A directory that joins gets its first mark at the end of the start.
                let Some(mark) = recovered.marks.iter().find(|mark| mark.journal == number) else { continue };
                if mark.mark.group < last {
                    return Err(format!(
                        "IB12: {} with groups up to {last} is overwritten, the mark in {} is {}",
                        path.display(),
                        dir.display(),
                        mark.mark.group
                    ));
                }
            }
            Ok(())
        }
        Moment::LogUnlinked(path) => {
            let Some(dir) = path.parent() else { return Ok(()) };
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let listed = table(&disk, dir)?.into_iter().flat_map(|recovered| recovered.logs);
            match listed.into_iter().find(|log| name.starts_with(&log.log_id.to_string())) {
                Some(_) => Err(format!("IB15: {} is unlinked while the table lists it", path.display())),
                None => Ok(()),
            }
        }
    }
}

/// IB13, K12: each listed log, each of its runs and each body of a disk at rest verifies, and table and logs agree.
pub(super) fn scan(disk: &Arc<dyn Disk>, dirs: &[PathBuf]) -> Check {
    for dir in dirs {
        let mut found = None;
        let report = verify_directory(disk, dir, &mut |event| {
            if let DirectoryEvent::Finding(finding) = event
                && finding.severity == Severity::Damage
            {
                found.get_or_insert(finding);
            }
        });
        if let Some(finding) = found {
            return Err(format!("IB13: {}: {}", finding.path.display(), finding.what));
        }
        if report.recovered.is_none() {
            return Err(format!("IB13: {} has no state table at rest", dir.display()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
