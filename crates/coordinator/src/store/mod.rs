//! The tree, the sessions and the last notifications on disk: one redb database in the file `coordinator.redb`.
//!
//! # Data flow
//! ```text
//! open (verifies and gives everything) -> commit (Batch) ...
//! ```
//!
//! # Invariants
//! 1. A batch is in force entirely or not at all, and durable when [`Store::commit`] returns `Ok`.
//! 2. A commit that was acknowledged is in force, or the store does not open: each commit is numbered, and the number
//!    is sealed in the file outside of redb before `commit` returns.
//! 3. After the first failure of a write, sync or commit the file is not touched again; every later commit fails with
//!    the first reason.
//! 4. The file is made under another name and renamed when complete: one that exists is never initialised again.
//! 5. A file of a newer format is refused before anything in it is changed.
//! 6. Nobody but the owner of the process may read the file: nodes of ledgers and sessions have passwords.
//! 7. An open believes the medium, not the page cache, where the file system has direct I/O.
//!
//! The file is a [`redb_file`], which says how redb's header survives a torn write, and why the
//! database is never closed cleanly: each open is the one after a crash and verifies every page.
//!
//! # Limits     redb's cache: [`CACHE_BYTES`]; the file grows to a few times what the tree holds
//!
//! [`redb_file`]: bindery_storage::redb_file

mod record;
#[cfg(test)]
mod tests;

use crate::core::Batch;
use crate::sessions::SessionRecord;
use crate::tree::NodeRecord;
use bindery_io::{BLOCK_SIZE_BYTES, Disk, OpenMode, restrict};
use bindery_storage::redb_file::{
    Backend, Format, HEADER_SIZE, Latch, Medium, Seals, check_header, encode_header, state_error,
};
use bindery_storage::{Damaged, DiskError, StateError};
use bytes::Bytes;
use redb::{Builder, Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the file in the data directory.
pub(crate) const FILE_NAME: &str = "coordinator.redb";
/// Name under which it is made.
const NEW_FILE_NAME: &str = "coordinator.redb.new";

/// Version 1: first.
const FORMAT: Format = Format { magic: b"BNDRCOOR", version: 1, name: "a coordinator's store" };

/// redb's cache. The tree is in memory; the cache serves the pages that commits touch.
const CACHE_BYTES: usize = 2 << 20;

/// Path of a node -> its record.
const NODES: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("nodes");
/// Session -> its record.
const SESSIONS: TableDefinition<'static, i64, &[u8]> = TableDefinition::new("sessions");
/// Offset -> a batch of notifications, as Oxia's clients get it.
const NOTIFICATIONS: TableDefinition<'static, i64, &[u8]> = TableDefinition::new("notifications");
/// The keys below -> number.
const META: TableDefinition<'static, u8, i64> = TableDefinition::new("meta");
const KEY_COMMITS: u8 = 0;
const KEY_ZXID_CEILING: u8 = 1;

/// A record as it comes back from the disk.
#[cfg(test)]
pub(crate) fn read_back(record: &NodeRecord) -> NodeRecord {
    record::decode_node(&record::encode_node(record)).unwrap()
}

/// Everything the store holds. Nodes come ordered by path, hence parents before their children.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Loaded {
    pub(crate) nodes: Vec<(String, NodeRecord)>,
    pub(crate) sessions: Vec<(i64, SessionRecord)>,
    /// Ascending.
    pub(crate) notifications: Vec<(i64, Bytes)>,
    pub(crate) zxid_ceiling: i64,
}

/// The open store. One owner commits.
pub(crate) struct Store {
    path: PathBuf,
    database: Database,
    seals: Seals,
    latch: Arc<Latch>,
    /// Number of the last commit in force, from 1.
    commits: u64,
}

impl Store {
    /// Opens the store of `dir`, or makes an empty one, and loads it.
    ///
    /// # Errors
    /// [`StateError::NewerFormat`] for a newer release's; [`StateError::Damaged`] when the file is not what was
    /// committed.
    pub(crate) fn open(disk: &Arc<dyn Disk>, dir: &Path) -> Result<(Store, Loaded), StateError> {
        let path = dir.join(FILE_NAME);
        if !disk.exists(&path).map_err(disk_error(&path, "look for"))? {
            Store::create(disk, dir)?;
        }
        let file = disk.open(&path, OpenMode::CreateBuffered).map_err(disk_error(&path, "open"))?;
        let failed = |error| disk_error(&path, "read")(error);
        // An earlier release made it readable for the group. Another owner's file stays as it is.
        let _ = restrict(&path);
        // redb makes a new database of an empty file: that must not happen to one that was cut.
        if file.len().map_err(failed)? <= HEADER_SIZE {
            return Err(damaged(&path, "the file is cut"));
        }
        let mut block = vec![0; BLOCK_SIZE_BYTES];
        file.read_exact_at(&mut block, 0).map_err(failed)?;
        check_header(&block, &FORMAT, &path)?;
        let medium = Medium::of(&**disk, &*file, &path).map_err(disk_error(&path, "sync"))?;
        let latch = Arc::new(Latch::default());
        let backend =
            Backend::new(file.clone(), medium.clone(), path.clone(), latch.clone()).map_err(failed)?;
        let database = Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend);
        let database = database.map_err(|error| state_error(&path, &latch, error.into()))?;
        let seals = Seals::new(file, medium, latch.clone());
        let mut store = Store { path, database, seals, latch, commits: 0 };
        let loaded = store.load()?;
        store.check_seal()?;
        Ok((store, loaded))
    }

    /// Makes an empty store, durably.
    fn create(disk: &Arc<dyn Disk>, dir: &Path) -> Result<(), StateError> {
        let (path, new) = (dir.join(FILE_NAME), dir.join(NEW_FILE_NAME));
        let failed = |action| disk_error(&new, action);
        if disk.exists(&new).map_err(failed("look for"))? {
            disk.remove(&new).map_err(failed("remove what an interrupted creation left:"))?;
        }
        let file = disk.open(&new, OpenMode::CreateBuffered).map_err(failed("create"))?;
        restrict(&new).map_err(failed("restrict"))?;
        file.write_all_at(&mut [IoSlice::new(&encode_header(&FORMAT))], 0).map_err(failed("write"))?;
        let medium = Medium::of(&**disk, &*file, &new).map_err(failed("sync"))?;
        let latch = Arc::new(Latch::default());
        let backend = Backend::new(file.clone(), medium.clone(), new.clone(), latch.clone());
        let backend = backend.map_err(failed("read"))?;
        let database = Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend);
        let database = database.map_err(|error| state_error(&new, &latch, error.into()))?;
        let seals = Seals::new(file.clone(), medium, latch.clone());
        let mut store = Store { path: new.clone(), database, seals, latch, commits: 0 };
        store.commit(&Batch::default())?;
        drop(store);
        file.sync().map_err(failed("sync"))?;
        drop(file);
        disk.rename(&new, &path).map_err(disk_error(&path, "publish"))?;
        disk.sync_dir(dir).map_err(disk_error(dir, "sync directory"))?;
        Ok(())
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts a batch into force, durably.
    pub(crate) fn commit(&mut self, batch: &Batch) -> Result<(), StateError> {
        if let Some(reason) = self.latch.reason() {
            return Err(StateError::Latched { path: self.path.clone(), reason });
        }
        let number = self.commits + 1;
        let written = self.write(batch, number);
        let sealed = written.and_then(|()| Ok(self.seals.write(number)?));
        sealed.map_err(|error| {
            let error = state_error(&self.path, &self.latch, error);
            // Also when redb failed before it touched the file: it may have been in the middle.
            self.latch.set("commit", &error);
            error
        })?;
        self.commits = number;
        Ok(())
    }

    fn write(&self, batch: &Batch, number: u64) -> Result<(), redb::Error> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        // The seal does what a second phase would; see the state table of the ledger directories.
        transaction.set_two_phase_commit(false);
        {
            let mut nodes = transaction.open_table(NODES)?;
            for (path, record) in &batch.nodes {
                match record {
                    Some(record) => drop(nodes.insert(&**path, record::encode_node(record).as_slice())?),
                    None => drop(nodes.remove(&**path)?),
                }
            }
            let mut sessions = transaction.open_table(SESSIONS)?;
            for (id, record) in &batch.sessions {
                match record {
                    Some(record) => drop(sessions.insert(id, record::encode_session(record).as_slice())?),
                    None => drop(sessions.remove(id)?),
                }
            }
            // Without Oxia's clients the table is never made.
            if !batch.notifications.is_empty() || batch.notifications_from.is_some() {
                let mut notifications = transaction.open_table(NOTIFICATIONS)?;
                for (offset, encoded) in &batch.notifications {
                    notifications.insert(offset, &**encoded)?;
                }
                let from = batch.notifications_from.unwrap_or(i64::MIN);
                while notifications.first()?.is_some_and(|(offset, _)| offset.value() < from) {
                    notifications.pop_first()?;
                }
            }
            let mut meta = transaction.open_table(META)?;
            meta.insert(KEY_COMMITS, i64::try_from(number).expect("commits are counted from 1"))?;
            meta.insert(KEY_ZXID_CEILING, batch.zxid_ceiling)?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Reads everything, and the number of the commit in force.
    fn load(&mut self) -> Result<Loaded, StateError> {
        let mut loaded = Loaded::default();
        let mut bad = None;
        let commits = {
            let mut read = || -> Result<Option<i64>, redb::Error> {
                let transaction = self.database.begin_read()?;
                for item in transaction.open_table(NODES)?.iter()? {
                    let (path, value) = item?;
                    match record::decode_node(value.value()) {
                        Some(record) => loaded.nodes.push((path.value().to_owned(), record)),
                        None => bad = Some(format!("the record of node {} cannot be", path.value())),
                    }
                }
                for item in transaction.open_table(SESSIONS)?.iter()? {
                    let (id, value) = item?;
                    match record::decode_session(value.value()) {
                        Some(record) => loaded.sessions.push((id.value(), record)),
                        None => bad = Some(format!("the record of session {:#x} cannot be", id.value())),
                    }
                }
                match transaction.open_table(NOTIFICATIONS) {
                    Ok(notifications) => {
                        for item in notifications.iter()? {
                            let (offset, encoded) = item?;
                            let encoded = Bytes::copy_from_slice(encoded.value());
                            loaded.notifications.push((offset.value(), encoded));
                        }
                    }
                    Err(TableError::TableDoesNotExist(_)) => {}
                    Err(other) => return Err(other.into()),
                }
                let meta = transaction.open_table(META)?;
                if let Some(ceiling) = meta.get(KEY_ZXID_CEILING)? {
                    loaded.zxid_ceiling = ceiling.value();
                }
                Ok(meta.get(KEY_COMMITS)?.map(|number| number.value()))
            };
            read().map_err(|error| state_error(&self.path, &self.latch, error))?
        };
        if let Some(what) = bad {
            return Err(damaged(&self.path, what));
        }
        let commits = commits.and_then(|number| u64::try_from(number).ok()).filter(|number| *number > 0);
        self.commits = commits.ok_or_else(|| damaged(&self.path, "the number of the commit is missing"))?;
        Ok(loaded)
    }

    /// Store invariant 2. A commit that a crash left without its seal is sealed now: it is in force.
    fn check_seal(&self) -> Result<(), StateError> {
        let sealed = self.seals.read().map_err(disk_error(&self.path, "read the seals of"))?;
        let commits = self.commits;
        match sealed {
            Some(sealed) if sealed == commits => Ok(()),
            Some(sealed) if sealed + 1 == commits => self
                .seals
                .write(commits)
                .map_err(|error| disk_error(&self.path, "seal a commit in")(error).into()),
            Some(sealed) => Err(damaged(
                &self.path,
                format!("commit {sealed} was acknowledged, but the tables are at commit {commits}"),
            )),
            None => Err(damaged(&self.path, "both seals are unreadable")),
        }
    }
}

impl Drop for Store {
    /// Shuts the file, so that redb's own closing is refused before it writes.
    fn drop(&mut self) {
        self.latch.set("use the store", &"it is closed");
    }
}

fn disk_error(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> DiskError {
    let path = path.to_owned();
    move |source| DiskError { path, action, source }
}

/// Bytes that are not what was committed.
pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> StateError {
    Damaged { path: path.to_owned(), offset: 0, what: what.into() }.into()
}
