//! The shell: follows the log, commits, answers questions. It decides nothing; the rules are in [`super::Core`].

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bindery_io::{Clock, Random};
use bindery_types::{EntryId, LedgerId};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;

use super::base::Base;
use super::bucket::{Bucket, Created, Requests, damaged, number_of};
use super::genuine::{Anchor, check_or_make_marker};
use super::manifest::Manifest;
use super::row::Key;
use super::{
    CatalogueDamage, CatalogueError, Change, Core, ExtentRow, Facts, LedgerRow, Needs, ObjectRow, Outcome,
    Position, REQUESTS_AT_ONCE, Record, Totals, WantedExtents, WriterId,
};
use crate::store::{Store, StoreError};
use crate::{ClusterId, ObjectId};

/// Records that are fetched one by one before a listing is worth it.
const PROBES: usize = 4;
/// Records of a longer tail that are fetched together, as are the rows that they need.
const RECORDS_AT_ONCE: usize = 64;

/// How a catalogue is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading. It has to exist.
    Read,
    /// For writing. It has to exist.
    Write,
    /// For writing. It is made if there is none.
    Create,
}

/// Limits, timeouts and pauses.
#[derive(Debug, Clone)]
pub struct CatalogueOptions {
    /// For each request, whatever the store's client retries. Start: 75 s, more than [`crate::store::StoreOptions`] has.
    pub request_timeout: Duration,
    /// Pause after a create whose outcome is unknown; doubled each time, up to 16 times this. Start: 100 ms.
    pub retry_pause: Duration,
    /// How often a commit is tried, lost races and unknown outcomes together. Start: 64.
    pub attempts_max: u32,
    /// Memory for blocks of runs. Start: 32 MiB.
    pub cache_bytes_max: usize,
    /// Rows from below the tail that are remembered. Beyond it all are forgotten, and looked up again when they are needed. Start: 200,000.
    pub facts_max: usize,
    /// A snapshot is due when the tail has this many rows. Start: 50,000, about 10 MB.
    pub snapshot_rows: usize,
    /// Or this many records, since opening the catalogue reads each of them. Start: 1,024.
    pub snapshot_records: u64,
    /// The last records that the newest snapshot covers are kept, this many, for readers that have not come as far. Start: 256.
    pub log_kept: u64,
    /// This many runs of about the same size are merged into one. Start: 4.
    pub merged_runs: usize,
}

impl Default for CatalogueOptions {
    fn default() -> CatalogueOptions {
        CatalogueOptions {
            request_timeout: Duration::from_secs(75),
            retry_pause: Duration::from_millis(100),
            attempts_max: 64,
            cache_bytes_max: 32 << 20,
            facts_max: 200_000,
            snapshot_rows: 50_000,
            snapshot_records: 1024,
            log_kept: 256,
            merged_runs: 4,
        }
    }
}

/// The catalogue of one cluster, as one process sees it. It has one owner; several processes may each have their own.
pub struct Catalogue {
    pub(super) bucket: Bucket,
    pub(super) core: Core,
    pub(super) facts: Facts,
    pub(super) base: Base,
    pub(super) options: CatalogueOptions,
    pub(super) random: Arc<dyn Random>,
    clock: Arc<dyn Clock>,
    /// Records up to this number were in the log when no newer manifest than ours was there.
    pub(super) verified: u64,
    /// By which this process knows again what it has read ([`super::genuine`]).
    pub(super) anchor: Anchor,
    writer: Option<Writer>,
}

/// Identity and clock of a process that commits.
pub(super) struct Writer {
    id: WriterId,
    /// The store's time, and the monotonic time of the same moment.
    pub store_ms: u64,
    at_ns: u64,
    /// By how much the process's own clock was ahead of the store's.
    ahead_ms: i64,
}

impl Catalogue {
    /// Finds the newest snapshot and follows the log to its end. For writing, compares the store's clock with `clock`, by writing
    /// and deleting a key; from then on the process's own wall clock does not matter.
    pub async fn open(
        store: &Store,
        cluster: ClusterId,
        mode: OpenMode,
        options: CatalogueOptions,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Catalogue, CatalogueError> {
        let bucket = Bucket::new(store.clone(), cluster, options.request_timeout);
        let marker = check_or_make_marker(&bucket, mode, &*clock).await?;
        let writer = match mode {
            OpenMode::Read => None,
            OpenMode::Write | OpenMode::Create => Some(compare_clocks(&bucket, &*clock, &*random).await?),
        };
        let mut catalogue = Catalogue {
            core: Core::new(cluster),
            facts: Facts::nothing_below(),
            base: Base::new(bucket.clone(), options.cache_bytes_max),
            bucket,
            options,
            random,
            clock,
            verified: 0,
            anchor: Anchor::new(marker),
            writer,
        };
        catalogue.read_all().await?;
        Ok(catalogue)
    }

    /// Reads the newest snapshot, and the log behind it to its end.
    pub(super) async fn read_all(&mut self) -> Result<(), CatalogueError> {
        if let Some(manifest) = newest_manifest(&self.bucket).await? {
            self.adopt(manifest).await?;
        }
        self.refresh().await?;
        self.check_end().await?;
        self.check_age().await
    }

    /// The cluster.
    pub fn cluster(&self) -> ClusterId {
        self.core.cluster()
    }

    /// The store.
    pub fn store(&self) -> &Store {
        self.bucket.store()
    }

    /// How far the log was followed.
    pub fn position(&self) -> Position {
        self.core.position()
    }

    /// Sums over everything.
    pub fn totals(&self) -> Totals {
        self.core.totals()
    }

    /// Requests that were sent since it was opened.
    pub fn requests(&self) -> Requests {
        self.bucket.requests()
    }

    /// Bytes of indexes and cached blocks, and rows in the tail and in what is remembered from below it.
    pub fn held(&self) -> (usize, usize) {
        (self.base.held_bytes(), self.core.tail_rows() + self.facts.len())
    }

    /// Runs of the newest snapshot, and bytes in them.
    pub fn runs(&self) -> (usize, u64) {
        let runs = self.base.runs();
        (runs.len(), runs.iter().map(|run| run.reference.shape.size_bytes).sum())
    }

    /// The id under which this process writes to the log; `None` if it only reads.
    pub fn writer(&self) -> Option<WriterId> {
        self.writer.as_ref().map(|writer| writer.id)
    }

    /// By how much this process' clock was ahead of the store's when the catalogue was opened for writing, in milliseconds. It
    /// does no harm here.
    pub fn clock_ahead_ms(&self) -> Option<i64> {
        self.writer.as_ref().map(|writer| writer.ahead_ms)
    }

    /// The store's time, in milliseconds since the epoch: for ids that are to be reserved.
    pub fn now_ms(&self) -> u64 {
        match &self.writer {
            Some(writer) => {
                let elapsed_ns = self.clock.monotonic_ns().saturating_sub(writer.at_ns);
                writer.store_ms + elapsed_ns / 1_000_000
            }
            None => u64::try_from(self.clock.wall_ms()).unwrap_or(0),
        }
    }

    /// Follows the log to its end. Fails when what was read before is not there any more as it was.
    pub async fn refresh(&mut self) -> Result<(), CatalogueError> {
        // Before anything is read behind it: another history may have more records than the one that was followed.
        self.check_anchor().await?;
        loop {
            self.follow().await?;
            if !self.adopt_newer().await? {
                return Ok(());
            }
        }
    }

    /// Applies the records after the position.
    async fn follow(&mut self) -> Result<(), CatalogueError> {
        let mut probes = 0;
        loop {
            let from = self.core.position().number;
            if probes < PROBES {
                let key = self.bucket.record(from + 1);
                let Some(bytes) = self.bucket.get(&key).await? else { return Ok(()) };
                let record = self.decode(&key, from + 1, &bytes)?;
                self.apply(&record, &bytes).await?;
                probes += 1;
                continue;
            }
            let numbers = self.numbers_behind(from).await?;
            let consecutive =
                numbers.iter().zip(from + 1..).take_while(|(found, next)| **found == *next).count();
            if consecutive == 0 {
                return Ok(());
            }
            for part in numbers[..consecutive].chunks(RECORDS_AT_ONCE) {
                if !self.follow_part(part).await? {
                    break;
                }
            }
        }
    }

    /// The numbers of the records after this one, ascending.
    pub(super) async fn numbers_behind(&self, number: u64) -> Result<Vec<u64>, CatalogueError> {
        let listed = self.bucket.list(&self.bucket.log(), Some(&self.bucket.record(number))).await?;
        let numbers = listed.iter().filter_map(|found| number_of(&found.location));
        let mut numbers: Vec<u64> = numbers.filter(|found| *found > number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Fetches records together, and applies them. False if the log was cut meanwhile, or the state was replaced.
    async fn follow_part(&mut self, numbers: &[u64]) -> Result<bool, CatalogueError> {
        let bucket = self.bucket.clone();
        let fetched: Vec<(u64, Path, Option<Bytes>)> = futures_util::stream::iter(numbers.iter().copied())
            .map(|number| {
                let bucket = &bucket;
                async move {
                    let key = bucket.record(number);
                    let bytes = bucket.get(&key).await?;
                    Ok::<_, StoreError>((number, key, bytes))
                }
            })
            .buffered(REQUESTS_AT_ONCE)
            .try_collect()
            .await?;
        let mut records = Vec::with_capacity(fetched.len());
        for (number, key, bytes) in &fetched {
            let Some(bytes) = bytes else { break };
            records.push((self.decode(key, *number, bytes)?, bytes));
        }
        let mut needs = Needs::default();
        for (record, _) in &records {
            let of_record = self.core.needs(record, &self.facts);
            needs.ledgers.extend(of_record.ledgers);
            needs.objects.extend(of_record.objects);
        }
        self.load(needs).await?;
        for (record, bytes) in &records {
            if self.apply(record, bytes).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(records.len() == numbers.len())
    }

    fn decode(&self, key: &Path, number: u64, bytes: &[u8]) -> Result<Record, CatalogueError> {
        Record::decode(bytes, self.core.cluster(), number).map_err(|damage| damaged(key, damage))
    }

    /// `None`: the state was replaced by that of a newer manifest while rows were loaded, and the record is not the next one any
    /// more. `bytes` are those of the record.
    async fn apply(&mut self, record: &Record, bytes: &[u8]) -> Result<Option<Outcome>, CatalogueError> {
        while record.number == self.core.position().number + 1 {
            match self.core.apply(record, &self.facts) {
                Ok(outcome) => {
                    self.anchor.note_record(record.number, bytes);
                    if self.facts.len() > self.options.facts_max {
                        self.facts = self.nothing_known();
                    }
                    return Ok(Some(outcome));
                }
                Err(needs) => self.load(needs).await?,
            }
        }
        Ok(None)
    }

    fn nothing_known(&self) -> Facts {
        if self.base.runs().is_empty() { Facts::nothing_below() } else { Facts::new() }
    }

    /// Loads rows from the runs. When a run is gone, a newer manifest names others.
    async fn load(&mut self, needs: Needs) -> Result<(), CatalogueError> {
        if needs.is_empty() {
            return Ok(());
        }
        match self.load_from_base(&needs).await {
            Err(CatalogueError::Store(StoreError::NotFound { key })) => {
                // The caller asks again for what it needs on top of the newer base.
                match self.adopt_newer().await? {
                    true => Ok(()),
                    false => Err(StoreError::NotFound { key }.into()),
                }
            }
            outcome => outcome,
        }
    }

    async fn load_from_base(&mut self, needs: &Needs) -> Result<(), CatalogueError> {
        let keys = (needs.ledgers.iter().map(|ledger| Key::ledger(*ledger)))
            .chain(needs.objects.iter().map(|object| Key::object(*object)))
            .collect();
        let values = self.base.lookup(keys).await?;
        for ledger in &needs.ledgers {
            let key = Key::ledger(*ledger);
            let row = values.get(&key).map(|value| LedgerRow::decode(value).ok_or_else(|| malformed(key)));
            self.facts.put_ledger(*ledger, row.transpose()?);
        }
        for object in &needs.objects {
            let key = Key::object(*object);
            let row = values.get(&key).map(|value| ObjectRow::decode(value).ok_or_else(|| malformed(key)));
            self.facts.put_object(*object, row.transpose()?);
        }
        for wanted in &needs.extents {
            let WantedExtents { ledger, from, through, limit } = *wanted;
            let scanned =
                self.base.scan(Key::extent(ledger, from), Key::extent(ledger, through), limit).await?;
            let mut rows = Vec::with_capacity(scanned.rows.len());
            for (key, value) in &scanned.rows {
                let first = key.first().ok_or_else(|| malformed(*key))?;
                rows.push((first, ExtentRow::decode(value).ok_or_else(|| malformed(*key))?));
            }
            let known_through = match rows.last() {
                Some((last, _)) if scanned.is_cut => *last,
                _ => through,
            };
            self.facts.put_extents(ledger, from, known_through, rows);
        }
        Ok(())
    }

    /// Looks for manifests newer than ours, and adopts the newest; false if there is none. The state is replaced by the manifest's if
    /// that is ahead, or if records that were applied without knowing of it may have been deleted before (invariant 8).
    pub(super) async fn adopt_newer(&mut self) -> Result<bool, CatalogueError> {
        let mut newest = None;
        loop {
            let number =
                newest.as_ref().map_or(self.base.manifest.number, |found: &Manifest| found.number) + 1;
            match manifest(&self.bucket, number).await? {
                Some(found) => newest = Some(found),
                None => break,
            }
        }
        let Some(newest) = newest else {
            self.verified = self.core.position().number;
            return Ok(false);
        };
        self.adopt(newest).await?;
        Ok(true)
    }

    pub(super) async fn adopt(&mut self, manifest: Manifest) -> Result<(), CatalogueError> {
        let covered_before = self.base.manifest.covered;
        self.base.adopt(manifest).await?;
        let manifest = &self.base.manifest;
        let covered = manifest.covered;
        let position = self.core.position();
        let is_ahead = match covered.number.cmp(&position.number) {
            Ordering::Less => false,
            // Other sums at the same number: the catalogue was rebuilt.
            Ordering::Equal => covered != position || manifest.totals != self.core.totals(),
            Ordering::Greater => true,
        };
        if is_ahead || manifest.log_floor > self.verified {
            self.core = Core::at(self.core.cluster(), covered, manifest.totals);
            self.facts = self.nothing_known();
            self.verified = covered.number;
            self.anchor.forget_record();
        } else if covered != covered_before {
            // Rows that leave the tail stay known: they were in use.
            let mut facts = self.nothing_known();
            let tail = self.core.tail();
            for (ledger, (changed, row)) in &tail.ledgers {
                if *changed <= covered.number {
                    facts.put_ledger(*ledger, *row);
                }
            }
            for (object, (changed, row)) in &tail.objects {
                if *changed <= covered.number {
                    facts.put_object(*object, *row);
                }
            }
            self.facts = facts;
            self.core.settle(covered.number);
        }
        Ok(())
    }

    /// Writes `changes` as one record at the end of the log, and says what became of them. Others that are faster are applied
    /// first, and the changes are judged by the state in which they arrive.
    ///
    /// If it is cancelled, it may or may not have committed; the catalogue stays usable, and learns of it from the log.
    pub async fn commit(&mut self, changes: Vec<Change>) -> Result<Outcome, CatalogueError> {
        self.writer().ok_or(CatalogueError::ReadOnly)?;
        // The next number must not be one that somebody deleted.
        self.check_anchor().await?;
        self.check_end().await?;
        self.write(changes).await
    }

    /// As [`Self::commit`], behind what was read, whatever has become of it since.
    pub(super) async fn write(&mut self, changes: Vec<Change>) -> Result<Outcome, CatalogueError> {
        let writer = self.writer().ok_or(CatalogueError::ReadOnly)?;
        let mut record =
            Record { cluster: self.cluster(), number: 0, writer, time_ms: self.now_ms(), changes };
        let mut pause = self.options.retry_pause;
        let mut unknown = None;
        for _ in 0..self.options.attempts_max {
            let number = self.core.position().number + 1;
            // After an unknown outcome the very same bytes are tried again: whichever try arrives, it is the same record.
            if record.number != number {
                (record.number, record.time_ms) = (number, self.now_ms());
                unknown = None;
            }
            let key = self.bucket.record(number);
            let bytes = Bytes::from(record.encode()?);
            let created = match (self.bucket.create(&key, bytes.clone()).await, unknown.take()) {
                (Ok(created), _) => created,
                // An earlier try may have arrived.
                (Err(error), Some(_)) => return Err(CatalogueError::Unknown { error }),
                (Err(error), None) => return Err(error.into()),
            };
            match created {
                Created::Own => {
                    while self.adopt_newer().await? {}
                    let log_floor = self.base.manifest.log_floor;
                    if log_floor >= number {
                        return Err(self.superseded(&key, number, log_floor).await);
                    }
                    return match self.apply(&record, &bytes).await? {
                        Some(outcome) => {
                            self.verified = number;
                            Ok(outcome)
                        }
                        // A snapshot that covers it was faster: the outcome has to be read from the state.
                        None => Err(CatalogueError::Superseded { log_floor, position: number }),
                    };
                }
                Created::Other(bytes) => {
                    let other = self.decode(&key, number, &bytes)?;
                    self.apply(&other, &bytes).await?;
                    while self.adopt_newer().await? {}
                }
                Created::Unknown(error) => {
                    unknown = Some(error);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(self.options.retry_pause * 16);
                    while self.adopt_newer().await? {}
                }
            }
        }
        match unknown {
            Some(error) => Err(CatalogueError::Unknown { error }),
            None => Err(CatalogueError::Contended { attempts: self.options.attempts_max }),
        }
    }

    /// The record was created where one had been deleted: it does not count (invariant 8).
    async fn superseded(&mut self, key: &Path, number: u64, log_floor: u64) -> CatalogueError {
        if log_floor >= number {
            // Best effort: the cleaning deletes it otherwise.
            let _ = self.bucket.delete(key).await;
        }
        let position = number - 1;
        match self.refresh().await {
            Ok(()) => CatalogueError::Superseded { log_floor, position },
            Err(error) => error,
        }
    }

    /// The rows of those of `ledgers` of which something is in the tier, as of the [position](Self::position). Rows that are not in
    /// memory are read from the runs.
    pub async fn ledgers(
        &mut self,
        ledgers: &[LedgerId],
    ) -> Result<BTreeMap<LedgerId, LedgerRow>, CatalogueError> {
        loop {
            let mut needs = Needs::default();
            let mut rows = BTreeMap::new();
            for ledger in ledgers {
                match self.core.ledger(&self.facts, *ledger) {
                    Ok(row) => rows.extend(row.map(|row| (*ledger, row))),
                    Err(missing) => needs.ledgers.extend(missing.ledgers),
                }
            }
            if needs.is_empty() {
                return Ok(rows);
            }
            if self.facts.len() > self.options.facts_max {
                self.facts = self.nothing_known();
                needs.ledgers.extend(ledgers);
            }
            self.load(needs).await?;
        }
    }

    /// The row of one ledger.
    pub async fn ledger(&mut self, ledger: LedgerId) -> Result<Option<LedgerRow>, CatalogueError> {
        Ok(self.ledgers(&[ledger]).await?.remove(&ledger))
    }

    /// The first entry of the ledger that the tier does not have, where its next extent has to begin: 0 if it has nothing of the ledger.
    pub async fn next(&mut self, ledger: LedgerId) -> Result<EntryId, CatalogueError> {
        Ok(self.ledger(ledger).await?.map_or(EntryId::FIRST, |row| row.next))
    }

    /// The row of an object.
    pub async fn object(&mut self, object: ObjectId) -> Result<Option<ObjectRow>, CatalogueError> {
        loop {
            match self.core.object(&self.facts, object) {
                Ok(row) => return Ok(row),
                Err(needs) => self.load(needs).await?,
            }
        }
    }

    /// Up to `limit` extents of a ledger, ascending, from the one that holds `from`, or else the first after it.
    pub async fn extents(
        &mut self,
        ledger: LedgerId,
        from: EntryId,
        limit: usize,
    ) -> Result<Vec<(EntryId, ExtentRow)>, CatalogueError> {
        let begin = self.begin_of(ledger, from).await?.unwrap_or(from);
        let wanted = WantedExtents { ledger, from: begin, through: EntryId::MAX, limit: limit + 1 };
        let mut rows = loop {
            match self.core.extents(&self.facts, wanted) {
                Ok(rows) => break rows,
                Err(needs) => self.load(needs).await?,
            }
        };
        rows.retain(|(_, row)| row.last >= from);
        rows.truncate(limit);
        if self.facts.len() > self.options.facts_max {
            self.facts = self.nothing_known();
        }
        Ok(rows)
    }

    /// Loads what [`extents`](Self::extents) and [`ledger`](Self::ledger) need for each of these entries, in about the time of one request.
    /// Failures are left to the question itself, which loads again.
    pub async fn preload(&mut self, entries: &[(LedgerId, EntryId)]) {
        let of_entry = |(ledger, entry): &(LedgerId, EntryId)| {
            let extents = (Key::extent(*ledger, EntryId::FIRST), Key::extent(*ledger, *entry));
            [(Key::ledger(*ledger), Key::ledger(*ledger)), extents]
        };
        drop(self.base.preload(entries.iter().flat_map(of_entry)).await);
    }

    /// The first entry of the last extent that begins at or before `at`.
    async fn begin_of(&mut self, ledger: LedgerId, at: EntryId) -> Result<Option<EntryId>, CatalogueError> {
        let from = Key::extent(ledger, EntryId::FIRST);
        let mut at = at;
        loop {
            let in_base = match self.base.floor(from, Key::extent(ledger, at)).await {
                Ok(key) => key.and_then(Key::first),
                Err(CatalogueError::Store(StoreError::NotFound { key })) => match self.adopt_newer().await? {
                    true => continue,
                    false => return Err(StoreError::NotFound { key }.into()),
                },
                Err(error) => return Err(error),
            };
            let in_tail = self.core.floor_in_tail(ledger, at);
            match (in_tail, in_base) {
                (Some((first, row)), below) if below.is_none_or(|below| below <= first) => {
                    if row.is_some() {
                        return Ok(Some(first));
                    }
                    // It is gone: look before it.
                    match first.get().checked_sub(1).and_then(EntryId::new) {
                        Some(before) => at = before,
                        None => return Ok(None),
                    }
                }
                (_, below) => return Ok(below),
            }
        }
    }

    /// About `limit` ledgers with ids above `after`, ascending, to compare the catalogue with the metadata store (T17). Empty only
    /// when there are none.
    pub async fn ledgers_after(
        &mut self,
        after: Option<LedgerId>,
        limit: usize,
    ) -> Result<Vec<(LedgerId, LedgerRow)>, CatalogueError> {
        let mut next = match after {
            None => Some(LedgerId::MIN),
            Some(after) => after.get().checked_add(1).and_then(LedgerId::new),
        };
        let mut found: BTreeMap<LedgerId, LedgerRow> = BTreeMap::new();
        // The tail may have removed all rows of a page, and more follow.
        while let Some(from) = next.filter(|_| found.is_empty()) {
            let (rows, through) = self.page(Key::ledger(from), Key::ledger(LedgerId::MAX), limit).await?;
            found = BTreeMap::new();
            for (key, value) in &rows {
                let ledger = key.ledger_id().filter(|ledger| Key::ledger(*ledger) == *key);
                let row = ledger.zip(LedgerRow::decode(value));
                found.extend([row.ok_or_else(|| malformed(*key))?]);
            }
            let end = through.and_then(Key::ledger_id);
            // All rows of the tail up to the page's end belong to it, so there may be more than asked for.
            for (ledger, row) in self.core.ledgers_in_tail() {
                if (from..=end.unwrap_or(LedgerId::MAX)).contains(&ledger) {
                    match row {
                        Some(row) => drop(found.insert(ledger, row)),
                        None => drop(found.remove(&ledger)),
                    }
                }
            }
            next = end.and_then(|end| end.get().checked_add(1)).and_then(LedgerId::new);
        }
        Ok(found.into_iter().collect())
    }

    /// About `limit` objects with ids above `after`, in the order of their ids, which is that of their reservations. Empty only
    /// when there are none.
    pub async fn objects_after(
        &mut self,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Vec<(ObjectId, ObjectRow)>, CatalogueError> {
        let first = Key::object(ObjectId::from_bytes([0; 16]));
        let last = Key::object(ObjectId::from_bytes([255; 16]));
        let mut next = after.map_or(Some(first), |id| Key::object(id).successor());
        let mut found: BTreeMap<ObjectId, ObjectRow> = BTreeMap::new();
        while let Some(from) = next.filter(|from| found.is_empty() && *from <= last) {
            let (rows, through) = self.page(from, last, limit).await?;
            found = BTreeMap::new();
            for (key, value) in &rows {
                let row = ObjectRow::decode(value).ok_or_else(|| malformed(*key))?;
                found.insert(key.object_id(), row);
            }
            for (object, row) in self.core.objects_in_tail() {
                if (from..=through.unwrap_or(last)).contains(&Key::object(object)) {
                    match row {
                        Some(row) => drop(found.insert(object, row)),
                        None => drop(found.remove(&object)),
                    }
                }
            }
            next = through.and_then(Key::successor);
        }
        Ok(found.into_iter().collect())
    }

    /// Up to `limit` rows from the runs, and the key up to which they are complete; `None` if that is `through`.
    async fn page(
        &mut self,
        from: Key,
        through: Key,
        limit: usize,
    ) -> Result<(Vec<(Key, Vec<u8>)>, Option<Key>), CatalogueError> {
        loop {
            match self.base.scan(from, through, limit.max(1)).await {
                Ok(scanned) => {
                    let end = scanned.rows.last().map(|(key, _)| *key).filter(|_| scanned.is_cut);
                    return Ok((scanned.rows, end));
                }
                Err(CatalogueError::Store(StoreError::NotFound { key })) => {
                    if !self.adopt_newer().await? {
                        return Err(StoreError::NotFound { key }.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Up to about `limit` objects that have been of no use since `before_ms` of the log's time or earlier, with the time since
    /// when: unreferenced ones, and those whose reservation has expired. Once the object is deleted,
    /// [`Change::ForgetObject`] removes its row.
    ///
    /// An expired reservation shows only when the log's time is that late: in a catalogue in which nothing is committed, commit
    /// nothing now and then.
    pub async fn garbage(
        &mut self,
        before_ms: u64,
        limit: usize,
    ) -> Result<Vec<(ObjectId, u64)>, CatalogueError> {
        let log_ms = self.core.position().log_ms;
        let rows = self.garbage_rows(before_ms, None, limit).await?;
        let since = |(object, row): (ObjectId, ObjectRow)| Some((object, row.garbage_since_ms(log_ms)?));
        Ok(rows.into_iter().filter_map(since).collect())
    }

    /// As [`garbage`](Self::garbage), for ids above `after`, with the objects' rows.
    pub async fn garbage_rows(
        &mut self,
        before_ms: u64,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Vec<(ObjectId, ObjectRow)>, CatalogueError> {
        let log_ms = self.core.position().log_ms;
        let is_garbage =
            move |row: &ObjectRow| row.garbage_since_ms(log_ms).is_some_and(|since| since <= before_ms);
        self.of_garbage_table(after, limit, move |row| Some(*row).filter(|row| is_garbage(row))).await
    }

    /// The first `limit` objects with ids above `after` that have a row in the table of garbage and for which `pick` returns something.
    async fn of_garbage_table<T>(
        &mut self,
        after: Option<ObjectId>,
        limit: usize,
        pick: impl Fn(&ObjectRow) -> Option<T>,
    ) -> Result<Vec<(ObjectId, T)>, CatalogueError> {
        let first = Key::garbage(ObjectId::from_bytes([0; 16]));
        let last = Key::garbage(ObjectId::from_bytes([255; 16]));
        let mut found = BTreeMap::new();
        let mut from = after.map_or(Some(first), |id| Key::garbage(id).successor());
        while let Some(begin) = from.filter(|begin| *begin <= last)
            && found.len() < limit
        {
            let (rows, through) = self.page(begin, last, GARBAGE_PAGE).await?;
            let keys: BTreeSet<Key> = rows.iter().map(|(key, _)| Key::object(key.object_id())).collect();
            let values = loop {
                match self.base.lookup(keys.clone()).await {
                    Err(CatalogueError::Store(StoreError::NotFound { .. })) if self.adopt_newer().await? => {}
                    outcome => break outcome?,
                }
            };
            for (key, value) in values {
                let row = ObjectRow::decode(&value).ok_or_else(|| malformed(key))?;
                let picked = pick(&row);
                found.extend(picked.map(|picked| (key.object_id(), picked)));
            }
            from = through.and_then(Key::successor);
        }
        for (object, row) in self.core.objects_in_tail().filter(|(object, _)| Some(*object) > after) {
            match row.and_then(|row| pick(&row)) {
                Some(picked) => drop(found.insert(object, picked)),
                None => drop(found.remove(&object)),
            }
        }
        Ok(found.into_iter().take(limit).collect())
    }
}

const GARBAGE_PAGE: usize = 1000;

fn malformed(key: Key) -> CatalogueError {
    CatalogueError::Damaged { key: key.name(), damage: CatalogueDamage::Malformed }
}

pub(super) async fn manifest(bucket: &Bucket, number: u64) -> Result<Option<Manifest>, CatalogueError> {
    let key = bucket.manifest(number);
    let Some(bytes) = bucket.get(&key).await? else { return Ok(None) };
    let manifest =
        Manifest::decode(&bytes, bucket.cluster(), number).map_err(|damage| damaged(&key, damage))?;
    Ok(Some(manifest))
}

pub(super) async fn newest_manifest(bucket: &Bucket) -> Result<Option<Manifest>, CatalogueError> {
    let found = bucket.list(&bucket.manifests(), None).await?;
    let newest = found.iter().filter_map(|found| number_of(&found.location)).max();
    match newest {
        Some(number) => manifest(bucket, number).await,
        None => Ok(None),
    }
}

/// Compares the clocks: writes a key, asks when the store says that it was written, and deletes it.
pub(super) async fn compare_clocks(
    bucket: &Bucket,
    clock: &dyn Clock,
    random: &dyn Random,
) -> Result<Writer, CatalogueError> {
    let id = WriterId(random.next_u64());
    let key = bucket.key(&format!("clock/{:016x}", id.0));
    let (wall_ms, at_ns) = (clock.wall_ms(), clock.monotonic_ns());
    bucket.put(&key, Bytes::from_static(b"what time is it")).await?;
    let found = bucket.head(&key).await?;
    match bucket.delete(&key).await {
        // Without the right to delete, everything else goes on: a few bytes stay for each start.
        Ok(()) | Err(StoreError::Denied { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let Some(found) = found else {
        let reason = "a key that was written is not there".to_owned();
        return Err(StoreError::Unavailable { key: key.to_string(), reason }.into());
    };
    let store_ms = found.last_modified.timestamp_millis();
    let ahead_ms = wall_ms.saturating_sub(store_ms);
    Ok(Writer { id, store_ms: u64::try_from(store_ms).unwrap_or(0), at_ns, ahead_ms })
}
