//! The rules: what a record changes, and what its writer is told.

use std::collections::{BTreeMap, BTreeSet};

use bindery_types::{EntryId, LedgerId};

use super::{
    Change, ExtentRow, Facts, LedgerRow, Needs, NewExtent, NewObject, ObjectRow, REMOVED_EXTENTS_MAX,
    REPLACED_EXTENTS_MAX, RESERVATION_TTL_MS_MAX, Record, Replaced, StoredObject, WantedExtents, WriterId,
};
use crate::{ClusterId, ObjectId};

/// How far the log was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// The number of the last record; 0 before the first.
    pub number: u64,
    /// The log's time: the highest of all records up to there, in milliseconds since the epoch.
    pub log_ms: u64,
}

/// Sums over the whole catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Ledgers of which something is in the tier.
    pub ledgers: u64,
    /// Their extents.
    pub extents: u64,
    /// Bytes of the entries in those.
    pub bytes: u64,
    /// Objects that were committed and not forgotten.
    pub objects: u64,
    /// Their lengths.
    pub object_bytes: u64,
    /// Those of them that are unreferenced, and wait to be deleted.
    pub unreferenced: u64,
    /// Lengths of those.
    pub unreferenced_bytes: u64,
    /// Ids that are reserved, or whose reservation has expired.
    pub reserved: u64,
}

/// What became of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The catalogue refers to it.
    Accepted,
    /// It does not begin at the ledger's next entry (T3).
    Misaligned,
    /// Dropped: the catalogue has extents of another ledger that had the id before. They have to be removed first.
    OtherLedger,
    /// The ledger is being removed.
    Removed,
    /// It would replace other extents than whole ones of its sources.
    NotReplaceable,
}

/// An extent of a commit, after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentOutcome {
    /// The ledger.
    pub ledger: LedgerId,
    /// What became of it.
    pub verdict: Verdict,
    /// The ledger's next entry after this commit, whatever became of the extent: the LRE may move to the one before (T7).
    pub next: EntryId,
}

/// Why a change was refused as a whole. It changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The id was never reserved, or was forgotten.
    #[error("its id is not reserved: reserve a new one and upload again")]
    NotReserved,
    /// The reservation has expired: the object may be gone.
    #[error("the reservation of its id has expired: reserve a new one and upload again")]
    Expired,
    /// Another object was committed under the id.
    #[error("another object was committed under its id")]
    OtherContent,
    /// It is referred to, or reserved and not expired; or extents of it were taken over once more meanwhile.
    #[error("the object is still in use")]
    InUse,
}

/// What became of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeOutcome {
    /// Of [`Change::Reserve`].
    Reserved {
        /// The ids that were not, because others have them.
        refused: Vec<ObjectId>,
    },
    /// Of [`Change::Commit`] and [`Change::Replace`]: the extents in the order of the commit.
    Committed(Result<Vec<ExtentOutcome>, Refusal>),
    /// Of [`Change::RemoveLedger`].
    LedgerRemoved {
        /// Extents that were taken out.
        extents: u64,
        /// Those that are left, for further removals.
        left: u64,
    },
    /// Of [`Change::ForgetObject`].
    Forgotten(Result<(), Refusal>),
    /// Of [`Change::Release`], which changes nothing.
    Nothing,
}

/// What became of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Where the log stands with it.
    pub position: Position,
    /// Of its changes, in their order.
    pub changes: Vec<ChangeOutcome>,
}

/// Rows that the tail of the log changed. `None`: there is no such row any more. Each has the number of the record that
/// changed it last.
#[derive(Debug, Clone, Default)]
pub(super) struct Tail {
    pub ledgers: BTreeMap<LedgerId, (u64, Option<LedgerRow>)>,
    pub objects: BTreeMap<ObjectId, (u64, Option<ObjectRow>)>,
    pub extents: BTreeMap<(LedgerId, EntryId), (u64, Option<ExtentRow>)>,
}

impl Tail {
    pub(super) fn len(&self) -> usize {
        self.ledgers.len() + self.objects.len() + self.extents.len()
    }
}

/// The catalogue at a number of its log: the tail, above what lies in runs.
#[derive(Debug, Clone)]
pub struct Core {
    cluster: ClusterId,
    position: Position,
    totals: Totals,
    tail: Tail,
}

impl Core {
    /// The empty catalogue, before the first record. With [`Facts::nothing_below`] it is complete by itself.
    pub fn new(cluster: ClusterId) -> Core {
        Core::at(cluster, Position::default(), Totals::default())
    }

    /// A catalogue whose rows up to `position` lie in runs.
    pub fn at(cluster: ClusterId, position: Position, totals: Totals) -> Core {
        Core { cluster, position, totals, tail: Tail::default() }
    }

    /// The cluster.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The last record that was applied.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Sums over everything.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Rows in the tail.
    pub fn tail_rows(&self) -> usize {
        self.tail.len()
    }

    pub(super) fn tail(&self) -> &Tail {
        &self.tail
    }

    /// Rows that did not change behind `number` are in runs now.
    pub(super) fn settle(&mut self, number: u64) {
        self.tail.ledgers.retain(|_, (changed, _)| *changed > number);
        self.tail.objects.retain(|_, (changed, _)| *changed > number);
        self.tail.extents.retain(|_, (changed, _)| *changed > number);
    }

    /// The row of a ledger, or what has to be loaded.
    pub fn ledger(&self, facts: &Facts, ledger: LedgerId) -> Result<Option<LedgerRow>, Needs> {
        Stage::new(self, facts).answer(|stage| stage.ledger(ledger))
    }

    /// The first entry of `ledger` that is not in the tier (T3), or what has to be loaded.
    pub fn next(&self, facts: &Facts, ledger: LedgerId) -> Result<EntryId, Needs> {
        Ok(self.ledger(facts, ledger)?.map_or(EntryId::FIRST, |row| row.next))
    }

    /// The row of an object, or what has to be loaded.
    pub fn object(&self, facts: &Facts, object: ObjectId) -> Result<Option<ObjectRow>, Needs> {
        Stage::new(self, facts).answer(|stage| stage.object(object))
    }

    /// The first `limit` extents of a ledger that **begin** in `from..=through`, ascending, or what has to be loaded.
    pub fn extents(&self, facts: &Facts, wanted: WantedExtents) -> Result<Vec<(EntryId, ExtentRow)>, Needs> {
        Stage::new(self, facts).answer(|stage| stage.extents(wanted))
    }

    /// Object ids in the tail's rows, with the log's time and no regard to what lies in runs: those with
    /// [`Facts::nothing_below`] are all there are.
    pub fn objects_in_tail(&self) -> impl Iterator<Item = (ObjectId, Option<ObjectRow>)> {
        self.tail.objects.iter().map(|(id, (_, row))| (*id, *row))
    }

    /// Ledgers in the tail's rows; with [`Facts::nothing_below`] those are all there are.
    pub fn ledgers_in_tail(&self) -> impl Iterator<Item = (LedgerId, Option<LedgerRow>)> {
        self.tail.ledgers.iter().map(|(id, (_, row))| (*id, *row))
    }

    /// The extent in the tail, or the trace of one, that begins at or before `at`.
    pub(super) fn floor_in_tail(
        &self,
        ledger: LedgerId,
        at: EntryId,
    ) -> Option<(EntryId, Option<ExtentRow>)> {
        let mut range = self.tail.extents.range((ledger, EntryId::FIRST)..=(ledger, at));
        range.next_back().map(|((_, first), (_, row))| (*first, *row))
    }

    /// The rows that a record names and that are not known, so that those of many records can be loaded together. Applying it
    /// may need more.
    pub fn needs(&self, record: &Record, facts: &Facts) -> Needs {
        let mut stage = Stage::new(self, facts);
        stage.look_ahead(record);
        stage.needs
    }

    /// Applies the record of the next number: the same for every reader (invariant 1). When something has to be loaded first,
    /// nothing is changed, and `Err` says what; there may be more after that.
    ///
    /// # Panics
    /// When it is another number's or another cluster's: [`Record::decode`] compares both.
    pub fn apply(&mut self, record: &Record, facts: &Facts) -> Result<Outcome, Needs> {
        assert_eq!(record.number, self.position.number + 1, "records are applied in their order");
        assert_eq!(record.cluster, self.cluster, "a record of this cluster");
        let log_ms = self.position.log_ms.max(record.time_ms);
        let mut stage = Stage::new(self, facts);
        stage.look_ahead(record);
        let mut changes = Vec::with_capacity(record.changes.len());
        for change in &record.changes {
            // Missing rows of several changes are collected, and loaded together.
            if let Ok(outcome) = stage.change(change, record.writer, log_ms) {
                changes.push(outcome);
            }
        }
        if !stage.needs.is_empty() {
            return Err(stage.needs);
        }
        let Stage { ledgers, objects, extents, totals, .. } = stage;
        let number = record.number;
        self.tail.ledgers.extend(ledgers.into_iter().map(|(key, row)| (key, (number, row))));
        self.tail.objects.extend(objects.into_iter().map(|(key, row)| (key, (number, row))));
        self.tail.extents.extend(extents.into_iter().map(|(key, row)| (key, (number, row))));
        self.totals = totals;
        self.position = Position { number, log_ms };
        Ok(Outcome { position: self.position, changes })
    }
}

/// Something has to be loaded: it is in [`Stage::needs`].
struct Missing;

/// A record while it is applied: its rows above the tail's, the tail's above those that are known from below.
struct Stage<'a> {
    core: &'a Core,
    facts: &'a Facts,
    /// The record's number.
    number: u64,
    needs: Needs,
    totals: Totals,
    ledgers: BTreeMap<LedgerId, Option<LedgerRow>>,
    objects: BTreeMap<ObjectId, Option<ObjectRow>>,
    extents: BTreeMap<(LedgerId, EntryId), Option<ExtentRow>>,
}

impl<'a> Stage<'a> {
    fn new(core: &'a Core, facts: &'a Facts) -> Stage<'a> {
        Stage {
            core,
            facts,
            number: core.position.number + 1,
            needs: Needs::default(),
            totals: core.totals,
            ledgers: BTreeMap::new(),
            objects: BTreeMap::new(),
            extents: BTreeMap::new(),
        }
    }

    fn answer<T>(mut self, ask: impl FnOnce(&mut Self) -> Result<T, Missing>) -> Result<T, Needs> {
        ask(&mut self).map_err(|Missing| self.needs)
    }

    /// Notes everything that a record names, so that it is loaded at once.
    fn look_ahead(&mut self, record: &Record) {
        for change in &record.changes {
            match change {
                Change::Reserve { objects, .. } => objects.iter().for_each(|id| drop(self.object(*id))),
                Change::Commit(object) => self.look_ahead_of(object, &[]),
                Change::Replace { object, sources } => self.look_ahead_of(object, sources),
                Change::RemoveLedger { ledger, .. } => drop(self.ledger(*ledger)),
                Change::ForgetObject(id) => drop(self.object(*id)),
                Change::Release { .. } => {}
            }
        }
    }

    fn look_ahead_of(&mut self, object: &NewObject, sources: &[ObjectId]) {
        drop(self.object(object.object.id));
        sources.iter().for_each(|id| drop(self.object(*id)));
        object.extents.iter().for_each(|extent| drop(self.ledger(extent.ledger)));
    }

    fn ledger(&mut self, ledger: LedgerId) -> Result<Option<LedgerRow>, Missing> {
        let staged = self.ledgers.get(&ledger).copied();
        let known = staged.or_else(|| self.core.tail.ledgers.get(&ledger).map(|(_, row)| *row));
        known.or_else(|| self.facts.ledger(ledger)).ok_or_else(|| {
            self.needs.ledgers.insert(ledger);
            Missing
        })
    }

    fn object(&mut self, object: ObjectId) -> Result<Option<ObjectRow>, Missing> {
        let staged = self.objects.get(&object).copied();
        let known = staged.or_else(|| self.core.tail.objects.get(&object).map(|(_, row)| *row));
        known.or_else(|| self.facts.object(object)).ok_or_else(|| {
            self.needs.objects.insert(object);
            Missing
        })
    }

    fn extents(&mut self, wanted: WantedExtents) -> Result<Vec<(EntryId, ExtentRow)>, Missing> {
        let WantedExtents { ledger, from, through, limit } = wanted;
        if from > through || limit == 0 {
            return Ok(Vec::new());
        }
        let known = self.facts.covered(ledger, from).map(|end| end.min(through));
        let mut rows = BTreeMap::new();
        if let Some(end) = known {
            rows.extend(self.facts.extents(ledger, from, end).map(|(first, row)| (first, Some(row))));
            let keys = (ledger, from)..=(ledger, end);
            rows.extend(
                self.core.tail.extents.range(keys.clone()).map(|((_, first), (_, row))| (*first, *row)),
            );
            rows.extend(self.extents.range(keys).map(|((_, first), row)| (*first, *row)));
        }
        let found: Vec<_> =
            rows.into_iter().filter_map(|(first, row)| Some((first, row?))).take(limit).collect();
        let is_enough = found.len() == limit || known == Some(through);
        if is_enough {
            return Ok(found);
        }
        // Rows that are known to be gone do not count, so that each attempt gets further.
        let from = known.and_then(|end| EntryId::new(end.get() + 1)).unwrap_or(from);
        self.needs.extents.insert(WantedExtents { ledger, from, through, limit });
        Err(Missing)
    }

    fn set_ledger(&mut self, ledger: LedgerId, before: Option<LedgerRow>, row: Option<LedgerRow>) {
        let sums = |row: Option<LedgerRow>| row.map_or((0, 0, 0), |row| (1, row.extents, row.bytes));
        let ((ledgers, extents, bytes), now) = (sums(before), sums(row));
        let totals = &mut self.totals;
        totals.ledgers = moved(totals.ledgers, ledgers, now.0);
        totals.extents = moved(totals.extents, extents, now.1);
        totals.bytes = moved(totals.bytes, bytes, now.2);
        self.ledgers.insert(ledger, row);
    }

    fn set_object(&mut self, object: ObjectId, before: Option<ObjectRow>, row: Option<ObjectRow>) {
        let sums = |row: Option<ObjectRow>| match row {
            None => [0; 5],
            Some(ObjectRow::Reserved { .. }) => [0, 0, 0, 0, 1],
            Some(ObjectRow::Stored(stored)) => {
                let length = stored.object.length_bytes;
                let unreferenced = u64::from(stored.unreferenced_ms.is_some());
                [1, length, unreferenced, unreferenced * length, 0]
            }
        };
        let (was, now) = (sums(before), sums(row));
        let totals = &mut self.totals;
        totals.objects = moved(totals.objects, was[0], now[0]);
        totals.object_bytes = moved(totals.object_bytes, was[1], now[1]);
        totals.unreferenced = moved(totals.unreferenced, was[2], now[2]);
        totals.unreferenced_bytes = moved(totals.unreferenced_bytes, was[3], now[3]);
        totals.reserved = moved(totals.reserved, was[4], now[4]);
        self.objects.insert(object, row);
    }

    fn change(&mut self, change: &Change, writer: WriterId, log_ms: u64) -> Result<ChangeOutcome, Missing> {
        match change {
            Change::Reserve { objects, ttl_ms } => self.reserve(objects, *ttl_ms, writer, log_ms),
            Change::Commit(object) => {
                self.commit(object, log_ms, Verdict::Misaligned, Stage::append).map(ChangeOutcome::Committed)
            }
            Change::Replace { object, sources } => self
                .commit(object, log_ms, Verdict::NotReplaceable, |stage, object, extent, log_ms| {
                    stage.replace(object, extent, sources, log_ms)
                })
                .map(ChangeOutcome::Committed),
            Change::RemoveLedger { ledger, created_ms } => self.remove(*ledger, *created_ms, log_ms),
            Change::ForgetObject(object) => self.forget(*object, log_ms).map(ChangeOutcome::Forgotten),
            Change::Release { .. } => Ok(ChangeOutcome::Nothing),
        }
    }

    fn reserve(
        &mut self,
        objects: &[ObjectId],
        ttl_ms: u64,
        writer: WriterId,
        log_ms: u64,
    ) -> Result<ChangeOutcome, Missing> {
        let mut refused = Vec::new();
        let expires_ms = log_ms.saturating_add(ttl_ms.min(RESERVATION_TTL_MS_MAX));
        for id in objects {
            match self.object(*id)? {
                None => {
                    self.set_object(*id, None, Some(ObjectRow::Reserved { expires_ms, writer }));
                }
                // The same reservation again.
                Some(ObjectRow::Reserved { writer: before, .. }) if before == writer => {}
                Some(_) => refused.push(*id),
            }
        }
        Ok(ChangeOutcome::Reserved { refused })
    }

    /// Takes an object over, each of its extents by `take`. `dropped` is the verdict on one that does not fit.
    fn commit(
        &mut self,
        object: &NewObject,
        log_ms: u64,
        dropped: Verdict,
        mut take: impl FnMut(&mut Self, &NewObject, &NewExtent, u64) -> Result<Verdict, Missing>,
    ) -> Result<Result<Vec<ExtentOutcome>, Refusal>, Missing> {
        let id = object.object.id;
        let before = self.object(id)?;
        match before {
            None => return Ok(Err(Refusal::NotReserved)),
            Some(ObjectRow::Reserved { expires_ms, .. }) if expires_ms <= log_ms => {
                return Ok(Err(Refusal::Expired));
            }
            Some(ObjectRow::Reserved { .. }) => {}
            Some(ObjectRow::Stored(stored)) if stored.crc == object.crc() => {
                return self.repeat(object, dropped).map(Ok);
            }
            Some(ObjectRow::Stored(_)) => return Ok(Err(Refusal::OtherContent)),
        }
        let mut outcomes = Vec::with_capacity(object.extents.len());
        let (mut live_extents, mut live_bytes) = (0_u32, 0_u64);
        // The loop goes on when rows are missing, to collect all of them.
        let mut is_missing = false;
        for extent in &object.extents {
            let Ok(verdict) = take(self, object, extent, log_ms) else {
                is_missing = true;
                continue;
            };
            if verdict == Verdict::Accepted {
                live_extents += 1;
                live_bytes = live_bytes.saturating_add(extent.bytes);
            }
            outcomes.push((extent.ledger, verdict));
        }
        if is_missing {
            return Err(Missing);
        }
        let stored = StoredObject {
            object: object.object,
            crc: object.crc(),
            extents: u32::try_from(object.extents.len()).expect("a record within its limit"),
            bytes: object.bytes(),
            live_extents,
            live_bytes,
            committed_ms: log_ms,
            unreferenced_ms: (live_extents == 0).then_some(log_ms),
            replaced: None,
        };
        self.set_object(id, before, Some(ObjectRow::Stored(stored)));
        self.with_next(outcomes).map(Ok)
    }

    fn with_next(&mut self, outcomes: Vec<(LedgerId, Verdict)>) -> Result<Vec<ExtentOutcome>, Missing> {
        outcomes
            .into_iter()
            .map(|(ledger, verdict)| {
                let next = self.ledger(ledger)?.map_or(EntryId::FIRST, |row| row.next);
                Ok(ExtentOutcome { ledger, verdict, next })
            })
            .collect()
    }

    /// The same commit again (T6): extents that the catalogue still has were accepted.
    fn repeat(&mut self, object: &NewObject, dropped: Verdict) -> Result<Vec<ExtentOutcome>, Missing> {
        let mut outcomes = Vec::with_capacity(object.extents.len());
        // An object that has an extent twice had one of them accepted.
        let mut seen = BTreeSet::new();
        let mut is_missing = false;
        for extent in &object.extents {
            let (ledger, from, through) = (extent.ledger, extent.first, extent.first);
            let found = self.extents(WantedExtents { ledger, from, through, limit: 1 });
            let (Ok(found), Ok(row)) = (found, self.ledger(ledger)) else {
                is_missing = true;
                continue;
            };
            let expected = ExtentRow { last: extent.last, bytes: extent.bytes, object: object.object };
            let is_there = found.first().is_some_and(|(_, row)| *row == expected);
            let verdict = match row {
                _ if is_there && seen.insert((ledger, from)) => Verdict::Accepted,
                Some(row) if row.is_removed => Verdict::Removed,
                _ => dropped,
            };
            outcomes.push((ledger, verdict));
        }
        if is_missing { Err(Missing) } else { self.with_next(outcomes) }
    }

    /// An extent that continues its ledger (T3).
    fn append(&mut self, object: &NewObject, extent: &NewExtent, _: u64) -> Result<Verdict, Missing> {
        let before = self.ledger(extent.ledger)?;
        let next = before.map_or(EntryId::FIRST, |row| row.next);
        if before.is_some_and(|row| row.is_removed) {
            return Ok(Verdict::Removed);
        }
        // An id that was used again: the extents of the ledger before go first.
        let noted = before.and_then(|row| row.created_ms);
        let is_of_another = noted.zip(extent.created_ms).is_some_and(|(noted, created)| noted != created);
        if is_of_another {
            return Ok(Verdict::OtherLedger);
        }
        if extent.first != next {
            return Ok(Verdict::Misaligned);
        }
        let row = ExtentRow { last: extent.last, bytes: extent.bytes, object: object.object };
        self.extents.insert((extent.ledger, extent.first), Some(row));
        let mut ledger = before.unwrap_or(LedgerRow { next, ..LedgerRow::new(extent.first) });
        ledger.created_ms = ledger.created_ms.or(extent.created_ms);
        ledger.next = behind(extent.last);
        ledger.extents += 1;
        ledger.bytes = ledger.bytes.saturating_add(extent.bytes);
        self.set_ledger(extent.ledger, before, Some(ledger));
        Ok(Verdict::Accepted)
    }

    /// An extent that takes the place of whole extents in `sources` (T16).
    fn replace(
        &mut self,
        object: &NewObject,
        extent: &NewExtent,
        sources: &[ObjectId],
        log_ms: u64,
    ) -> Result<Verdict, Missing> {
        let NewExtent { ledger, first, last, bytes, .. } = *extent;
        let before = match self.ledger(ledger)? {
            Some(row) if row.is_removed => return Ok(Verdict::Removed),
            Some(row) => row,
            None => return Ok(Verdict::NotReplaceable),
        };
        let limit = REPLACED_EXTENTS_MAX + 1;
        let old = self.extents(WantedExtents { ledger, from: first, through: last, limit })?;
        let is_contiguous = old.windows(2).all(|pair| pair[1].0 == behind(pair[0].1.last));
        let is_whole = old.first().is_some_and(|(begin, _)| *begin == first)
            && old.last().is_some_and(|(_, row)| row.last == last);
        let is_of_sources =
            old.iter().all(|(_, row)| sources.contains(&row.object.id) && row.object.id != object.object.id);
        if !(is_contiguous && is_whole && is_of_sources) || old.len() > REPLACED_EXTENTS_MAX {
            return Ok(Verdict::NotReplaceable);
        }
        let replaced = Some(Replaced { number: self.number, at_ms: log_ms });
        self.release(ledger, &old, log_ms, replaced)?;
        let row = ExtentRow { last, bytes, object: object.object };
        self.extents.insert((ledger, first), Some(row));
        let old_bytes = old.iter().fold(0_u64, |sum, (_, row)| sum.saturating_add(row.bytes));
        let after = LedgerRow {
            extents: moved(before.extents, old.len() as u64, 1),
            bytes: moved(before.bytes, old_bytes, bytes),
            ..before
        };
        self.set_ledger(ledger, Some(before), Some(after));
        Ok(Verdict::Accepted)
    }

    fn remove(
        &mut self,
        ledger: LedgerId,
        created_ms: Option<i64>,
        log_ms: u64,
    ) -> Result<ChangeOutcome, Missing> {
        let Some(before) = self.ledger(ledger)?.filter(|row| row.created_ms == created_ms) else {
            return Ok(ChangeOutcome::LedgerRemoved { extents: 0, left: 0 });
        };
        let (from, through, limit) = (before.first, EntryId::MAX, REMOVED_EXTENTS_MAX);
        let old = self.extents(WantedExtents { ledger, from, through, limit })?;
        self.release(ledger, &old, log_ms, None)?;
        let removed = old.len() as u64;
        let left = before.extents.saturating_sub(removed);
        let old_bytes = old.iter().fold(0_u64, |sum, (_, row)| sum.saturating_add(row.bytes));
        let after = (left > 0 && removed > 0).then(|| LedgerRow {
            first: old.last().map_or(before.first, |(_, row)| behind(row.last)),
            extents: left,
            bytes: before.bytes.saturating_sub(old_bytes),
            is_removed: true,
            ..before
        });
        self.set_ledger(ledger, Some(before), after);
        Ok(ChangeOutcome::LedgerRemoved { extents: removed, left: after.map_or(0, |row| row.extents) })
    }

    /// Takes extents out. Objects without any are unreferenced from now on. All rows are known before one is changed.
    fn release(
        &mut self,
        ledger: LedgerId,
        old: &[(EntryId, ExtentRow)],
        log_ms: u64,
        replaced: Option<Replaced>,
    ) -> Result<(), Missing> {
        let mut is_missing = false;
        for (_, row) in old {
            is_missing |= self.object(row.object.id).is_err();
        }
        if is_missing {
            return Err(Missing);
        }
        for (first, row) in old {
            self.extents.insert((ledger, *first), None);
            let before = self.object(row.object.id)?;
            if let Some(ObjectRow::Stored(mut stored)) = before {
                stored.live_extents = stored.live_extents.saturating_sub(1);
                stored.live_bytes = stored.live_bytes.saturating_sub(row.bytes);
                stored.replaced = replaced.or(stored.replaced);
                if stored.live_extents == 0 {
                    stored.unreferenced_ms = Some(log_ms);
                }
                self.set_object(row.object.id, before, Some(ObjectRow::Stored(stored)));
            }
        }
        Ok(())
    }

    fn forget(&mut self, object: ObjectId, log_ms: u64) -> Result<Result<(), Refusal>, Missing> {
        let Some(row) = self.object(object)? else { return Ok(Ok(())) };
        if row.garbage_since_ms(log_ms).is_none() {
            return Ok(Err(Refusal::InUse));
        }
        self.set_object(object, Some(row), None);
        Ok(Ok(()))
    }
}

fn behind(last: EntryId) -> EntryId {
    EntryId::new(last.get().saturating_add(1)).unwrap_or(EntryId::MAX)
}

/// A sum in which one part became another.
fn moved(sum: u64, before: u64, now: u64) -> u64 {
    sum.saturating_sub(before).saturating_add(now)
}
