//! Reads back all that the catalogue has, and compares: objects with themselves, objects with their rows, ledgers with their
//! extents. Changes nothing.
//!
//! # Data flow
//! ```text
//! keys below objects/ ─┐
//! rows of objects ─────┴─► each object read from end to end, several at once ─► its extents against the rows of their ledgers
//! rows of ledgers ───────► extents without gap and overlap (T3), sums, and which of them are in an object that is not good
//! ```
//!
//! # Invariants
//! 1. Damage concerns something that the catalogue refers to. An object that is unreferenced, reserved or
//!    without a row is never more than a leftover: tierers may be at work.
//! 2. Keys are listed before rows are read, and an id is reserved before its object is written: an object without a row was
//!    never committed, or its row went with it.
//! 3. Before something counts as missing, or a row as wrong, the catalogue is read again.
//! 4. A request that fails is no damage: the finding says that the object is unchecked.
//!
//! # Limits
//! Memory: for each object that is read at the moment a footer, a table, a block and
//! [`AHEAD_BYTES`](crate::object::AHEAD_BYTES); some 32 bytes for each key, and for each ledger with damage.

mod finding;
mod object;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

use bindery_types::{EntryId, LedgerId};
use futures_util::TryStreamExt;
use tokio::task::JoinSet;

use crate::catalogue::{Catalogue, CatalogueError, LedgerRow, ObjectRow, StoredObject, object_key};
use crate::store::{Store, StoreError};
use crate::{ClusterId, ObjectId};

pub use finding::{Event, Fault, Finding, Severity};
use object::{Examined, Found, examine};

/// Rows taken from the catalogue at a time.
const PAGE: usize = 1_000;
/// Extents of one ledger taken at a time.
const EXTENTS_PAGE: usize = 256;

/// How a scrub goes about it.
#[derive(Debug, Clone, Copy)]
pub struct ScrubOptions {
    /// Objects that are read at once. Start: 4.
    pub at_once: usize,
    /// Objects in a row that cannot be read before it gives up: the store is away. Start: 5.
    pub failures_max: usize,
}

impl Default for ScrubOptions {
    fn default() -> ScrubOptions {
        ScrubOptions { at_once: 4, failures_max: 5 }
    }
}

/// The extent of a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scrubbed {
    /// Objects that were read.
    pub objects: u64,
    /// Bytes of these.
    pub object_bytes: u64,
    /// Extents in them that are sound.
    pub extents: u64,
    /// Entries in them that are sound.
    pub entries: u64,
    /// Ledgers of the catalogue.
    pub ledgers: u64,
    /// Ledgers of which something is damaged or missing.
    pub ledgers_damaged: u64,
    /// Ids that are reserved: objects that are being written, or were given up.
    pub reserved: u64,
    /// Findings of each severity: damage, unchecked, leftover.
    pub found: [u64; 3],
}

/// Why a scrub ended early.
#[derive(Debug, thiserror::Error)]
pub enum ScrubError {
    /// The catalogue cannot be read.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// The store cannot be listed, or gives none of its objects.
    #[error(transparent)]
    Store(#[from] StoreError),
}

struct Scrub<'a, F> {
    store: &'a Store,
    cluster: ClusterId,
    catalogue: Option<&'a mut Catalogue>,
    options: ScrubOptions,
    on: F,
    sums: Scrubbed,
    /// Objects that are not good, and in which way.
    bad: BTreeMap<ObjectId, (Fault, String)>,
    /// Ledgers with an extent that is damaged, in an object that is not.
    bad_ledgers: HashSet<LedgerId>,
    /// Objects that the catalogue has.
    known: HashSet<ObjectId>,
    failures: usize,
}

/// Reads everything. Without a catalogue objects are compared with themselves alone.
///
/// # Errors
/// When it has to end early; findings up to then were given.
pub async fn scrub(
    store: &Store,
    cluster: ClusterId,
    catalogue: Option<&mut Catalogue>,
    options: ScrubOptions,
    on: impl FnMut(Event<'_>),
) -> Result<Scrubbed, ScrubError> {
    let mut scrub = Scrub {
        store,
        cluster,
        catalogue,
        options,
        on,
        sums: Scrubbed::default(),
        bad: BTreeMap::new(),
        bad_ledgers: HashSet::new(),
        known: HashSet::new(),
        failures: 0,
    };
    scrub.run().await?;
    Ok(scrub.sums)
}

impl<F: FnMut(Event<'_>)> Scrub<'_, F> {
    async fn run(&mut self) -> Result<(), ScrubError> {
        let mut listed = self.list().await?;
        (self.on)(Event::Total(listed.values().sum()));
        if self.catalogue.is_some() {
            self.objects_of_catalogue(&mut listed).await?;
            self.without_row(listed).await?;
            self.ledgers().await?;
        } else {
            let ids: Vec<ObjectId> = listed.into_keys().collect();
            self.read_all(ids.into_iter().map(|id| (id, None)).collect()).await?;
        }
        Ok(())
    }

    fn find(&mut self, finding: &Finding) {
        self.sums.found[finding.severity as usize] += 1;
        (self.on)(Event::Found(finding));
    }

    fn find_object(&mut self, severity: Severity, fault: Fault, id: ObjectId, what: String) {
        let key = Some(object_key(self.cluster, id));
        self.find(&Finding { severity, fault, key, entries: None, what });
    }

    /// Keys of objects, with lengths. Others are said at once.
    async fn list(&mut self) -> Result<BTreeMap<ObjectId, u64>, ScrubError> {
        let below = self.store.key(&format!("{}/objects", self.cluster));
        let mut keys = self.store.inner().list(Some(&below));
        let mut listed = BTreeMap::new();
        let mut foreign = Vec::new();
        while let Some(meta) = keys.try_next().await.map_err(|error| StoreError::of(&below, &error))? {
            match meta.location.filename().and_then(|name| name.parse().ok()) {
                Some(id) => drop(listed.insert(id, meta.size)),
                None => foreign.push(meta.location.to_string()),
            }
        }
        drop(keys);
        for key in foreign {
            let what = "its name is not that of an object: somebody else put it there".to_owned();
            let (severity, fault) = (Severity::Leftover, Fault::Foreign);
            self.find(&Finding { severity, fault, key: Some(key), entries: None, what });
        }
        Ok(listed)
    }

    async fn objects_of_catalogue(&mut self, listed: &mut BTreeMap<ObjectId, u64>) -> Result<(), ScrubError> {
        let mut after = None;
        loop {
            let Some(catalogue) = self.catalogue.as_deref_mut() else { return Ok(()) };
            let page = catalogue.objects_after(after, PAGE).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = Some(*last);
            let mut wanted = Vec::with_capacity(page.len());
            for (id, row) in page {
                listed.remove(&id);
                match row {
                    ObjectRow::Reserved { .. } => self.sums.reserved += 1,
                    ObjectRow::Stored(stored) => {
                        self.known.insert(id);
                        wanted.push((id, Some(stored)));
                    }
                }
            }
            self.read_all(wanted).await?;
        }
    }

    /// Objects that were listed and have no row (invariant 2).
    async fn without_row(&mut self, listed: BTreeMap<ObjectId, u64>) -> Result<(), ScrubError> {
        if listed.is_empty() {
            return Ok(());
        }
        self.refresh().await?;
        for (id, size) in listed {
            if self.row(id).await?.is_none() && object::is_there(self.store, self.cluster, id).await? {
                let what = format!("no row of the catalogue has it ({size} bytes): it was never committed");
                self.find_object(Severity::Leftover, Fault::Unreferenced, id, what);
            }
        }
        Ok(())
    }

    async fn refresh(&mut self) -> Result<(), ScrubError> {
        match self.catalogue.as_deref_mut() {
            Some(catalogue) => Ok(catalogue.refresh().await?),
            None => Ok(()),
        }
    }

    async fn row(&mut self, id: ObjectId) -> Result<Option<ObjectRow>, ScrubError> {
        match self.catalogue.as_deref_mut() {
            Some(catalogue) => Ok(catalogue.object(id).await?),
            None => Ok(None),
        }
    }

    /// Reads objects, several at once.
    async fn read_all(&mut self, wanted: Vec<(ObjectId, Option<StoredObject>)>) -> Result<(), ScrubError> {
        let mut wanted = wanted.into_iter();
        let mut reads: JoinSet<(ObjectId, Option<StoredObject>, Examined)> = JoinSet::new();
        loop {
            while reads.len() < self.options.at_once.max(1)
                && let Some((id, stored)) = wanted.next()
            {
                let (store, cluster) = (self.store.clone(), self.cluster);
                let handle = tokio::runtime::Handle::current();
                // Checksums of 80 MiB take a while: not on a thread of the runtime.
                reads.spawn_blocking(move || (id, stored, examine(&handle, &store, cluster, id)));
            }
            let Some(read) = reads.join_next().await else { return Ok(()) };
            // It panicked, or the runtime ends.
            let Ok((id, stored, examined)) = read else { continue };
            (self.on)(Event::Bytes(examined.size_bytes));
            self.judge(id, stored, examined).await?;
        }
    }

    async fn judge(
        &mut self,
        id: ObjectId,
        stored: Option<StoredObject>,
        examined: Examined,
    ) -> Result<(), ScrubError> {
        let is_live = stored.is_none_or(|stored| stored.unreferenced_ms.is_none());
        let severity = if is_live { Severity::Damage } else { Severity::Leftover };
        match examined.found {
            Found::Unreachable(error) => {
                self.failures += 1;
                if self.failures >= self.options.failures_max {
                    return Err(error.into());
                }
                self.find_object(Severity::Unchecked, Fault::Unreachable, id, error.to_string());
                return Ok(());
            }
            Found::Missing => {
                // Deleted meanwhile, with its row to follow (invariant 3).
                self.refresh().await?;
                match self.row(id).await? {
                    Some(ObjectRow::Stored(now)) if now.unreferenced_ms.is_none() => {
                        let what = "it is not there, and the catalogue refers to it".to_owned();
                        self.spoil(Severity::Damage, Fault::Missing, id, what);
                    }
                    Some(ObjectRow::Stored(_)) => {
                        let what = "it is gone, as it should be: its row goes next".to_owned();
                        self.find_object(Severity::Leftover, Fault::Missing, id, what);
                    }
                    _ => {}
                }
            }
            Found::Bad(fault, what) => self.spoil(severity, fault, id, what),
            Found::Read(object) => {
                self.sums.objects += 1;
                self.sums.object_bytes += examined.size_bytes;
                self.sums.extents +=
                    object.extents.iter().filter(|extent| extent.damage.is_none()).count() as u64;
                self.sums.entries += object.entries;
                match stored {
                    Some(stored) => self.compare(id, &stored, &object).await?,
                    None => self.damaged_extents(id, &object, |_| true),
                }
            }
        }
        self.failures = 0;
        Ok(())
    }

    /// A finding about a whole object.
    fn spoil(&mut self, severity: Severity, fault: Fault, id: ObjectId, what: String) {
        if severity == Severity::Damage {
            self.bad.insert(id, (fault, what.clone()));
        }
        self.find_object(severity, fault, id, what);
    }

    fn damaged_extents(
        &mut self,
        id: ObjectId,
        object: &object::ReadObject,
        is_live: impl Fn(&object::FoundExtent) -> bool,
    ) {
        for extent in &object.extents {
            let Some(what) = &extent.damage else { continue };
            let severity = if is_live(extent) { Severity::Damage } else { Severity::Leftover };
            self.find(&Finding {
                severity,
                fault: Fault::Damaged,
                key: Some(object_key(self.cluster, id)),
                entries: Some((extent.ledger, extent.first, extent.last)),
                what: what.clone(),
            });
        }
    }

    /// An object that is whole as such, with its rows.
    async fn compare(
        &mut self,
        id: ObjectId,
        stored: &StoredObject,
        object: &object::ReadObject,
    ) -> Result<(), ScrubError> {
        if let Some(what) = object.differs_from(&stored.object) {
            self.spoil(Severity::Damage, Fault::Contradiction, id, what);
            return Ok(());
        }
        let mut live = self.live(id, object).await?;
        let mut expected = stored.live_extents;
        if live.len() as u32 != expected || live.iter().any(|(_, is_same)| !is_same) {
            self.refresh().await?;
            match self.row(id).await? {
                Some(ObjectRow::Stored(now)) => expected = now.live_extents,
                _ => return Ok(()),
            }
            live = self.live(id, object).await?;
        }
        let referred: HashSet<usize> = live.iter().map(|(at, _)| *at).collect();
        for (at, is_same) in &live {
            if !is_same {
                let extent = &object.extents[*at];
                self.find(&Finding {
                    severity: Severity::Damage,
                    fault: Fault::Contradiction,
                    key: Some(object_key(self.cluster, id)),
                    entries: Some((extent.ledger, extent.first, extent.last)),
                    what: "the catalogue gives this extent another end or another number of bytes".to_owned(),
                });
            }
        }
        if live.len() as u32 != expected {
            let what = format!(
                "the catalogue refers to {expected} of its extents, and its footer has {} of these",
                live.len()
            );
            self.find_object(Severity::Damage, Fault::Contradiction, id, what);
        }
        let places: HashSet<(LedgerId, EntryId)> =
            referred.iter().map(|at| (object.extents[*at].ledger, object.extents[*at].first)).collect();
        self.damaged_extents(id, object, |extent| places.contains(&(extent.ledger, extent.first)));
        for at in referred {
            let extent = &object.extents[at];
            if extent.damage.is_some() {
                self.bad_ledgers.insert(extent.ledger);
            }
        }
        Ok(())
    }

    /// Extents of an object that the catalogue refers to, and whether it says the same of them.
    async fn live(
        &mut self,
        id: ObjectId,
        object: &object::ReadObject,
    ) -> Result<Vec<(usize, bool)>, ScrubError> {
        let Some(catalogue) = self.catalogue.as_deref_mut() else { return Ok(Vec::new()) };
        let mut live = Vec::new();
        for (at, extent) in object.extents.iter().enumerate() {
            let rows = catalogue.extents(extent.ledger, extent.first, 1).await?;
            if let Some((first, row)) = rows.first()
                && row.object.id == id
                && *first == extent.first
            {
                live.push((at, row.last == extent.last && row.bytes == extent.bytes));
            }
        }
        Ok(live)
    }

    /// The rows of ledgers among themselves (T3), and with what was found of objects.
    async fn ledgers(&mut self) -> Result<(), ScrubError> {
        let mut after = None;
        loop {
            let Some(catalogue) = self.catalogue.as_deref_mut() else { return Ok(()) };
            let page = catalogue.ledgers_after(after, PAGE).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = Some(*last);
            for (ledger, row) in page.into_iter().filter(|(_, row)| !row.is_removed) {
                self.sums.ledgers += 1;
                let before = self.sums.found[Severity::Damage as usize];
                self.ledger(ledger, &row).await?;
                let is_damaged = self.sums.found[Severity::Damage as usize] > before;
                if is_damaged || self.bad_ledgers.contains(&ledger) {
                    self.sums.ledgers_damaged += 1;
                }
            }
        }
    }

    async fn ledger(&mut self, ledger: LedgerId, row: &LedgerRow) -> Result<(), ScrubError> {
        let mut next = EntryId::FIRST;
        let (mut extents, mut bytes, mut broken) = (0_u64, 0_u64, None);
        // Ranges in objects that are not good, one for each stretch in the same one.
        let mut lost: Vec<(ObjectId, EntryId, EntryId)> = Vec::new();
        'pages: loop {
            let Some(catalogue) = self.catalogue.as_deref_mut() else { return Ok(()) };
            let page = catalogue.extents(ledger, next, EXTENTS_PAGE).await?;
            let is_last = page.len() < EXTENTS_PAGE;
            for (first, extent) in page {
                if first != next || extent.last < first {
                    broken = Some(format!("its extents go on with entry {first}, and entry {next} is next"));
                    break 'pages;
                }
                extents += 1;
                bytes = bytes.saturating_add(extent.bytes);
                let id = extent.object.id;
                if !self.known.contains(&id) && !matches!(self.row(id).await?, Some(ObjectRow::Stored(_))) {
                    broken = Some(format!("entry {first} is said to be in object {id}, which has no row"));
                    break 'pages;
                }
                if self.bad.contains_key(&id) {
                    match lost.last_mut() {
                        Some((object, _, last)) if *object == id && last.get() + 1 == first.get() => {
                            *last = extent.last;
                        }
                        _ => lost.push((id, first, extent.last)),
                    }
                }
                next = EntryId::new(extent.last.get().saturating_add(1)).unwrap_or(EntryId::MAX);
            }
            if is_last {
                break;
            }
        }
        let (found, said) = ((next, extents, bytes), (row.next, row.extents, row.bytes));
        if broken.is_none() && found != said {
            broken = Some(format!(
                "its row says {} extents with {} bytes up to entry {}, and its extents are {} with {} up to {}",
                said.1,
                said.2,
                said.0.get() - 1,
                found.1,
                found.2,
                found.0.get() - 1
            ));
        }
        if let Some(what) = broken {
            // A commit between the two reads is no contradiction (invariant 3).
            let now = match self.catalogue.as_deref_mut() {
                Some(catalogue) => catalogue.ledger(ledger).await?,
                None => None,
            };
            if now.as_ref() == Some(row) {
                let entries = Some((ledger, EntryId::FIRST, row.next));
                let (severity, fault) = (Severity::Damage, Fault::Contradiction);
                self.find(&Finding { severity, fault, key: None, entries, what });
            }
        }
        for (id, first, last) in lost {
            let (fault, why) = self.bad.get(&id).cloned().unwrap_or((Fault::Damaged, String::new()));
            let what = format!("in object {id}: {why}");
            let entries = Some((ledger, first, last));
            self.find(&Finding { severity: Severity::Damage, fault, key: None, entries, what });
        }
        Ok(())
    }
}
