//! The table of extents: which ranges of each ledger are in object storage, and where.
//!
//! # Data flow
//! ```text
//! Checkpoint -> put (in the transaction of the other tables) -> TierView, for any number of readers
//! ```
//!
//! # Invariants
//! 1. Rows of a ledger do not overlap. One that comes later cuts those before it, or takes their place.
//! 2. Rows come into force with the ledger's record that counts them, and with the marks ([`super`], invariant 1).
//! 3. Each row is verified when it is read; one that is damaged is an error.
//!
//! # Limits
//! A read that fails ends all reads of the table until the next commit, which opens it again; a page that cannot be read at
//! all then fails the directory, as it would at a start. After a commit that failed for good the table is opened once more for
//! readers, unless that commit may be in force. A full disk delays each attempt to commit by such an opening.
//! Rows are read on demand, through redb's cache, and never all at once; a removal walks those of its ledger.

use super::record::{BadValue, ExtentRow, TableId, number_of};
use super::{EXTENTS, Sum};
use crate::StateError;
use crate::redb_file::{Latch, state_error};
use bindery_types::tier::{TierExtent, TierStamp};
use bindery_types::{EntryId, LedgerId};
use parking_lot::RwLock;
use redb::{Database, ReadableDatabase, ReadableTable, Table};
use std::path::PathBuf;
use std::sync::Arc;

/// A change to a ledger's extents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtentChange {
    /// The ledger.
    pub ledger: LedgerId,
    /// Everything before is gone: the ledger was removed.
    pub is_cleared: bool,
    /// In the order in which they came.
    pub updates: Vec<ExtentUpdate>,
}

/// Extents that came together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtentUpdate {
    /// Which update this was.
    pub stamp: TierStamp,
    /// Ascending, without gaps.
    pub extents: Vec<TierExtent>,
}

type Rows<'a> = Table<'a, (u64, u64), &'static [u8]>;

/// Why a table cannot be changed.
pub(super) enum PutError {
    Database(redb::Error),
    /// A row that is in the way is none.
    Row(u64, BadValue),
}

impl<E: Into<redb::Error>> From<E> for PutError {
    fn from(error: E) -> PutError {
        PutError::Database(error.into())
    }
}

/// Puts a change into the table and keeps the sum.
pub(super) fn put(rows: &mut Rows<'_>, sum: &mut Sum, change: &ExtentChange) -> Result<(), PutError> {
    if change.is_cleared {
        clear(rows, sum, change.ledger)?;
    }
    for ExtentUpdate { stamp, extents } in &change.updates {
        for extent in extents {
            put_row(rows, sum, change.ledger, ExtentRow { stamp: *stamp, extent: *extent })?;
        }
    }
    Ok(())
}

/// Removes all rows of a ledger.
pub(super) fn clear(rows: &mut Rows<'_>, sum: &mut Sum, ledger: LedgerId) -> Result<(), PutError> {
    let number = number_of(ledger.get());
    // Some at a time, so that the keys of a large ledger are not all in memory.
    const STEP: usize = 1024;
    loop {
        let keys = rows.range((number, 0)..=(number, u64::MAX))?.take(STEP);
        let keys = keys.map(|item| Ok(item?.0.value())).collect::<Result<Vec<_>, redb::StorageError>>()?;
        for key in &keys {
            take(rows, sum, *key)?;
        }
        if keys.len() < STEP {
            return Ok(());
        }
    }
}

fn put_row(rows: &mut Rows<'_>, sum: &mut Sum, ledger: LedgerId, row: ExtentRow) -> Result<(), PutError> {
    let number = number_of(ledger.get());
    let (first, last) = (number_of(row.extent.first.get()), number_of(row.extent.last.get()));
    // The row before may reach into it; those that begin in it certainly do.
    let before = rows.range((number, 0)..(number, first))?.next_back().transpose()?;
    let before = before.map(|(key, _)| key.value());
    let inside = rows.range((number, first)..=(number, last))?;
    let inside = inside.map(|item| Ok(item?.0.value())).collect::<Result<Vec<_>, redb::StorageError>>()?;
    for key in before.into_iter().chain(inside) {
        let old = {
            let value = rows.get(key)?.expect("it was found in this transaction");
            ExtentRow::unseal(key, value.value()).map_err(|bad| PutError::Row(key.0, bad))?
        };
        if old.extent.last < row.extent.first {
            continue;
        }
        take(rows, sum, key)?;
        if let Some(end) = EntryId::new(row.extent.first.get() - 1).filter(|end| old.extent.first <= *end) {
            let extent = TierExtent { last: end, ..old.extent };
            insert(rows, sum, ledger, ExtentRow { extent, ..old })?;
        }
        if let Some(begin) = row.extent.last.get().checked_add(1).and_then(EntryId::new)
            && begin <= old.extent.last
        {
            let extent = TierExtent { first: begin, ..old.extent };
            insert(rows, sum, ledger, ExtentRow { extent, ..old })?;
        }
    }
    insert(rows, sum, ledger, row)
}

fn insert(rows: &mut Rows<'_>, sum: &mut Sum, ledger: LedgerId, row: ExtentRow) -> Result<(), PutError> {
    let (key, value) = (row.key(ledger), row.seal(ledger));
    let before = rows.insert(key, value.as_slice())?;
    assert!(before.is_none(), "rows of a ledger do not overlap");
    sum.add(TableId::Extents, key, &value);
    Ok(())
}

fn take(rows: &mut Rows<'_>, sum: &mut Sum, key: (u64, u64)) -> Result<(), PutError> {
    if let Some(value) = rows.remove(key)? {
        sum.subtract(TableId::Extents, key, value.value());
    }
    Ok(())
}

/// The database that readers ask: another one after the table was opened again.
struct Current {
    database: Arc<Database>,
    path: PathBuf,
    latch: Arc<Latch>,
}

/// The extents that are committed, for readers. Every call blocks on the disk.
pub struct TierView(RwLock<Current>);

impl TierView {
    pub(super) fn new(database: Arc<Database>, path: PathBuf, latch: Arc<Latch>) -> TierView {
        TierView(RwLock::new(Current { database, path, latch }))
    }

    /// Has readers ask what `other` asks, from now on.
    pub(super) fn follow(&self, other: &TierView) {
        let other = other.0.read();
        let (database, path, latch) = (other.database.clone(), other.path.clone(), other.latch.clone());
        drop(other);
        *self.0.write() = Current { database, path, latch };
    }

    /// The row that has an entry.
    pub fn find(&self, ledger: LedgerId, entry: EntryId) -> Result<Option<ExtentRow>, StateError> {
        let number = number_of(ledger.get());
        let mut found = None;
        self.look(|rows| {
            let mut up_to = rows.range((number, 0)..=(number, number_of(entry.get())))?;
            if let Some(item) = up_to.next_back() {
                let (key, value) = item?;
                found = Some(ExtentRow::unseal(key.value(), value.value()));
            }
            Ok(())
        })?;
        let row = found.transpose().map_err(|bad| self.damaged(ledger, bad))?;
        Ok(row.filter(|row| row.extent.contains(entry)))
    }

    /// The rows that reach into `from` and what is behind it, ascending, `max` at most.
    pub fn rows(&self, ledger: LedgerId, from: EntryId, max: usize) -> Result<Vec<ExtentRow>, StateError> {
        let number = number_of(ledger.get());
        let mut found: Vec<Result<ExtentRow, BadValue>> = Vec::new();
        self.look(|rows| {
            let begin = (number, number_of(from.get()));
            let before = rows.range((number, 0)..begin)?.next_back();
            for item in before.into_iter().chain(rows.range(begin..=(number, u64::MAX))?.take(max)) {
                let (key, value) = item?;
                found.push(ExtentRow::unseal(key.value(), value.value()));
            }
            Ok(())
        })?;
        let mut rows =
            found.into_iter().collect::<Result<Vec<_>, _>>().map_err(|bad| self.damaged(ledger, bad))?;
        rows.retain(|row| row.extent.last >= from);
        rows.truncate(max);
        Ok(rows)
    }

    /// Shows `look` the table, unless there is none.
    fn look(
        &self,
        look: impl FnOnce(&redb::ReadOnlyTable<(u64, u64), &'static [u8]>) -> Result<(), redb::StorageError>,
    ) -> Result<(), StateError> {
        // The lock is not held while the disk is read.
        let (database, path, latch) = {
            let current = self.0.read();
            (current.database.clone(), current.path.clone(), current.latch.clone())
        };
        let run = || -> Result<(), redb::Error> {
            match database.begin_read()?.open_table(EXTENTS) {
                Ok(rows) => Ok(look(&rows)?),
                Err(redb::TableError::TableDoesNotExist(_)) => Ok(()),
                Err(error) => Err(error.into()),
            }
        };
        run().map_err(|error| state_error(&path, &latch, error))
    }

    fn damaged(&self, ledger: LedgerId, bad: BadValue) -> StateError {
        super::bad_value(&self.0.read().path, "extents", number_of(ledger.get()), bad)
    }
}
