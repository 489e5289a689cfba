//! Where the bytes of a ledger directory are: `bindery disk`. Reads extents, and the index records of runs that
//! overlap; no bodies.
//!
//! A copy of an entry is dead when another log of the directory has one of a higher generation, when its ledger was removed
//! after it, or when the state table says that it was let go because it is in object storage. That a ledger is deleted is the metadata store's knowledge: its entries count as live here until
//! garbage collection removed it.
//!
//! # Limits
//! About 100 bytes per run, as in a bookie; the index of one run; [`OPEN_LOGS_MAX`] open files.

use crate::entry_log::{RECORD_BYTES, file_name, log_id_of};
use crate::read_only::ReadOnlyDisk;
use crate::state_table::{NEW_FILE_NAME, Recovered, STATE_FILE_NAME};
use crate::{DirectoryError, DiskError, EntryLog, Extent, ExtentDirectory, LogId, OpenLogError, StateTable};
use bindery_io::Disk;
use bindery_types::EntryId;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Logs kept open.
pub const OPEN_LOGS_MAX: usize = 64;

/// A ledger directory's bytes, by their use.
#[derive(Debug, Clone, Default)]
pub struct DirectoryUsage {
    /// Listed logs that could be read.
    pub logs: u64,
    /// Bytes of their files: live, dead and overhead together.
    pub log_bytes: u64,
    /// Copies that count.
    pub live_entries: u64,
    /// Their bodies and index records.
    pub live_bytes: u64,
    /// Copies that a newer one replaces, whose ledger was removed, or that were let go.
    pub dead_entries: u64,
    /// Their bodies and index records: what a compaction would return.
    pub dead_bytes: u64,
    /// The state table's file.
    pub state_bytes: u64,
    /// Whole logs that the table does not list any more, or not yet: replaced by a rewrite, most likely, and still there
    /// because their grace was not over. Dead.
    pub replaced_files: u64,
    /// Their bytes.
    pub replaced_bytes: u64,
    /// Parts of files that a crash left.
    pub leftover_files: u64,
    /// Their bytes.
    pub leftover_bytes: u64,
    /// Logs that cannot be read, and why; their bytes are in no other number.
    pub unreadable: Vec<(PathBuf, String)>,
    /// The content of the state table.
    pub recovered: Recovered,
}

/// True for a name that an entry log has.
pub fn is_entry_log(name: &str) -> bool {
    log_id_of(name).is_some()
}

/// True for the name of the state table, which says what is in each log.
pub fn is_state_table(name: &str) -> bool {
    name == STATE_FILE_NAME
}

impl DirectoryUsage {
    /// Headers, footers and padding of the logs.
    pub fn overhead_bytes(&self) -> u64 {
        self.log_bytes - self.live_bytes - self.dead_bytes
    }
}

/// Counts the directory `dir`, which holds state table and entry logs. Nothing is changed.
///
/// # Errors
/// Without a readable state table nothing says what counts.
pub fn directory_usage(disk: &Arc<dyn Disk>, dir: &Path) -> Result<DirectoryUsage, DirectoryError> {
    let disk: Arc<dyn Disk> = Arc::new(ReadOnlyDisk::new(disk.clone()));
    let files = disk.list(dir).map_err(|e| DiskError::new(dir, "list directory", e))?;
    let logs_on_disk = files.iter().filter(|file| log_id_of(&file.name).is_some()).count();
    let mut usage = DirectoryUsage::default();
    if StateTable::exists(&disk, dir)? {
        usage.recovered = StateTable::open(&disk, dir)?.1;
    } else if logs_on_disk > 0 {
        return Err(DirectoryError::StateMissing { dir: dir.to_owned(), logs: logs_on_disk });
    }
    for file in &files {
        let is_orphan = |id: LogId| !usage.recovered.logs.iter().any(|log| log.log_id == id);
        if file.name == STATE_FILE_NAME {
            usage.state_bytes = file.len;
        } else if log_id_of(&file.name)
            .is_some_and(|id| is_orphan(id) && EntryLog::open(&disk, dir, id).is_ok())
        {
            usage.replaced_files += 1;
            usage.replaced_bytes += file.len;
        } else if file.name == NEW_FILE_NAME || log_id_of(&file.name).is_some_and(is_orphan) {
            usage.leftover_files += 1;
            usage.leftover_bytes += file.len;
        }
    }
    let mut logs = Logs { disk, dir, open: BTreeMap::new() };
    let mut extents = ExtentDirectory::new();
    for record in usage.recovered.logs.clone() {
        match EntryLog::open(&logs.disk, dir, record.log_id) {
            Ok((log, of_log)) => {
                usage.logs += 1;
                usage.log_bytes += log.size();
                extents.add_log(record.log_id, &of_log);
            }
            Err(error) => usage.unreadable.push((dir.join(file_name(record.log_id)), error.to_string())),
        }
    }
    for ledger in extents.ledgers().collect::<Vec<_>>() {
        let records = &usage.recovered.ledgers;
        let record = records.binary_search_by_key(&ledger, |record| record.ledger).map(|at| &records[at]);
        let hidden_below = record.map_or(0, |record| record.hidden_below.0);
        let trimmed = record.ok().and_then(|record| record.tier?.trimmed_below);
        // Runs that overlap, directly or through others, are judged together; most stand alone.
        let mut rest = extents.runs(ledger);
        while let Some(first) = rest.first() {
            let mut reach = first.last;
            let joined = rest.iter().take_while(|run| {
                let is_joined = run.first <= reach;
                reach = reach.max(run.last);
                is_joined
            });
            let (cluster, behind) = rest.split_at(joined.count());
            rest = behind;
            for run in cluster {
                if run.generation.0 < hidden_below || trimmed >= Some(run.last) {
                    usage.dead_entries += u64::from(run.count);
                    usage.dead_bytes += run.bytes();
                } else {
                    count(run, cluster, trimmed, &mut logs, &mut usage);
                }
            }
        }
    }
    Ok(usage)
}

/// Adds the copies of `run` to the live or the dead ones; `cluster` holds all runs that may replace them, and entries up to
/// `trimmed` are dead.
fn count(
    run: &Extent,
    cluster: &[Extent],
    trimmed: Option<EntryId>,
    logs: &mut Logs<'_>,
    usage: &mut DirectoryUsage,
) {
    let age = |run: &Extent| (run.generation, run.log_id);
    let newer: Vec<Extent> = cluster
        .iter()
        .filter(|other| age(other) > age(run) && other.first <= run.last && other.last >= run.first)
        .copied()
        .collect();
    let (mut dead, mut dead_bytes) = (0, 0);
    if !newer.is_empty() || trimmed >= Some(run.first) {
        match logs.dead(run, &newer, trimmed) {
            Ok(counted) => (dead, dead_bytes) = counted,
            Err((log_id, error)) => usage.unreadable.push((logs.dir.join(file_name(log_id)), error)),
        }
    }
    let (entries, bytes) = (u64::from(run.count), run.bytes());
    usage.dead_entries += dead;
    usage.dead_bytes += dead_bytes;
    usage.live_entries += entries - dead;
    usage.live_bytes += bytes - dead_bytes;
}

struct Logs<'a> {
    disk: Arc<dyn Disk>,
    dir: &'a Path,
    open: BTreeMap<LogId, EntryLog>,
}

impl Logs<'_> {
    fn get(&mut self, log_id: LogId) -> Result<&EntryLog, OpenLogError> {
        if self.open.len() >= OPEN_LOGS_MAX && !self.open.contains_key(&log_id) {
            self.open.pop_first();
        }
        match self.open.entry(log_id) {
            std::collections::btree_map::Entry::Occupied(found) => Ok(found.into_mut()),
            std::collections::btree_map::Entry::Vacant(place) => {
                Ok(place.insert(EntryLog::open(&self.disk, self.dir, log_id)?.0))
            }
        }
    }

    /// Copies of `run` up to `trimmed`, and those that one of `newer` replaces, and their bytes.
    fn dead(
        &mut self,
        run: &Extent,
        newer: &[Extent],
        trimmed: Option<EntryId>,
    ) -> Result<(u64, u64), (LogId, String)> {
        let failed = |log_id: LogId| move |error: &dyn std::fmt::Display| (log_id, error.to_string());
        let own = failed(run.log_id);
        let records = self.get(run.log_id).map_err(|e| own(&e))?.entries(run).map_err(|e| own(&e))?;
        let (mut dead, mut bytes) = (0, 0);
        for record in records {
            if trimmed >= Some(record.entry) {
                dead += 1;
                bytes += u64::from(record.location.length) + RECORD_BYTES;
                continue;
            }
            for other in newer.iter().filter(|other| other.may_hold(record.entry)) {
                let failed = failed(other.log_id);
                let found = self.get(other.log_id).map_err(|e| failed(&e))?.lookup(other, record.entry);
                if found.map_err(|e| failed(&e))?.is_some() {
                    dead += 1;
                    bytes += u64::from(record.location.length) + RECORD_BYTES;
                    break;
                }
            }
        }
        Ok((dead, bytes))
    }
}
