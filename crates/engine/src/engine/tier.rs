//! Requests about entries in object storage ([`crate::tier`]).

use super::Engine;
use crate::api::{LedgerPresence, Refusal, Waiter};
use crate::shard::Shard;
use crate::tier::{
    Compared, LocalChecksum, ReconcileWaiter, Reconciled, Tiered, TieredRead, TrimError, resolve,
};
use bindery_io::canary::Canary;
use bindery_storage::{ExtentRow, ReadError, Source, StateError};
use bindery_types::tier::{Reconciliation, TierExtent};
use bindery_types::{EntryId, LedgerId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Ledgers that are placed while a shard's lock is held.
const RECONCILED_AT_ONCE: usize = 64;
/// Rows of a state table in one look-up.
const ROWS_READ: usize = 64;
/// Index records that are read together.
const RECORDS_READ: u32 = 1024;

/// A request about one ledger.
trait OfLedger {
    fn ledger(&self) -> LedgerId;
}

impl OfLedger for Reconciliation {
    fn ledger(&self) -> LedgerId {
        self.ledger
    }
}

impl OfLedger for Compared {
    fn ledger(&self) -> LedgerId {
        self.reconciliation.ledger
    }
}

/// Collects the rows of an epoch from several tables, and says up to which entry they are complete. If one table cannot be read, no
/// rows are of use: that table may have later ones, and an object that was replaced may be gone.
fn in_tables<E>(
    tables: impl Iterator<Item = Result<Vec<ExtentRow>, E>>,
    epoch: u32,
) -> Result<(Vec<ExtentRow>, EntryId), E> {
    let (mut rows, mut horizon) = (Vec::new(), EntryId::MAX);
    for found in tables {
        let found = found?;
        if let Some(last) = found.last().filter(|_| found.len() == ROWS_READ) {
            horizon = horizon.min(last.extent.last);
        }
        rows.extend(found.into_iter().filter(|row| row.stamp.epoch == epoch));
    }
    Ok((rows, horizon))
}

/// Results of a request that come from several shards.
struct Gathering {
    results: Mutex<Vec<Option<Reconciled>>>,
    done: Mutex<(usize, Option<ReconcileWaiter>)>,
}

impl Gathering {
    fn arrive(&self, of_shard: Vec<(usize, Reconciled)>, outcome: Result<(), Refusal>) {
        {
            let mut results = self.results.lock();
            for (place, result) in of_shard {
                let is_proven = outcome.is_ok() || result.result == Err(Refusal::NoLedger);
                let unknown = Reconciled { result: Err(Refusal::Io), lre: None, ..result };
                results[place] = Some(if is_proven { result } else { unknown });
            }
        }
        let done = {
            let mut done = self.done.lock();
            done.0 -= 1;
            if done.0 == 0 { done.1.take() } else { None }
        };
        if let Some(done) = done {
            let results = std::mem::take(&mut *self.results.lock());
            done(results.into_iter().map(|result| result.expect("each shard gave its results")).collect());
        }
    }
}

impl Engine {
    /// Takes over what a tierer says about ledgers, each of which is there once, and calls `done` when all of it is durable. An update
    /// without room is refused, alone, with [`Refusal::TooManyRequests`]. Does not block.
    pub fn reconcile(&self, ledgers: Vec<Reconciliation>, done: ReconcileWaiter) {
        self.tell(ledgers, Shard::reconcile, done);
    }

    /// As [`Engine::reconcile`], for extents whose objects were compared with those that they replace, or read. They may replace extents
    /// of entries that were trimmed, for which [`Engine::reconcile`] answers [`Refusal::TooManyRequests`]. This answers the same if
    /// extents would be replaced that came after the comparison.
    pub fn reconcile_compared(&self, ledgers: Vec<Compared>, done: ReconcileWaiter) {
        self.tell(ledgers, Shard::reconcile_compared, done);
    }

    /// Takes over ledgers that are in object storage and of which nothing is here. From then on they exist here, and their entries are
    /// read from object storage. A ledger of which something is here that did not come by a restore is refused, alone, with
    /// [`Refusal::BadRequest`], and stays as it is. Otherwise as [`Engine::reconcile`].
    pub fn restore(&self, ledgers: Vec<Reconciliation>, done: ReconcileWaiter) {
        self.tell(ledgers, Shard::restore_from_tier, done);
    }

    /// As [`Engine::restore`], for a repair that brings this bookie what it should have of ledgers, and has looked at the objects. Also of a
    /// ledger that is in limbo, which stays so until all that it should have was compared, and of one that is known, perhaps fenced, and
    /// has no entry here.
    pub fn restore_lacking(&self, ledgers: Vec<Reconciliation>, done: ReconcileWaiter) {
        self.tell(ledgers, Shard::repair_from_tier, done);
    }

    /// The highest entry that is known of a ledger here: stored, let go, or told by a tierer, durable or not; `None` when
    /// it has no entry.
    ///
    /// # Errors
    /// The ledger is not here.
    pub fn last_known(&self, ledger: LedgerId) -> Result<Option<EntryId>, Refusal> {
        self.shared.lock_of(ledger).last_known(ledger)
    }

    /// Calls `tell` for each ledger, with the lock of its shard, and answers with the results once what was placed is durable.
    fn tell<T: OfLedger>(
        &self,
        ledgers: Vec<T>,
        tell: fn(&mut Shard, &T) -> (Reconciled, u64),
        done: ReconcileWaiter,
    ) {
        let mut by_shard: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (place, ledger) in ledgers.iter().enumerate() {
            by_shard.entry(self.shared.shard_of(ledger.ledger())).or_default().push(place);
        }
        if by_shard.is_empty() {
            return done(Vec::new());
        }
        let gathering = Arc::new(Gathering {
            results: Mutex::new(vec![None; ledgers.len()]),
            done: Mutex::new((by_shard.len(), Some(done))),
        });
        let is_early = self.shared.config().canaries.has(Canary::M44ReconciledBeforeDurable);
        let mut is_short = false;
        for (index, places) in by_shard {
            let mut results = Vec::with_capacity(places.len());
            let mut upto = 0;
            for some in places.chunks(RECONCILED_AT_ONCE) {
                let mut shard = self.shared.lock(index);
                for place in some {
                    let (result, sequence) = tell(&mut shard, &ledgers[*place]);
                    upto = upto.max(sequence);
                    is_short |= result.result == Err(Refusal::TooManyRequests);
                    results.push((*place, result));
                }
            }
            let gathering = gathering.clone();
            let waiter: Waiter = Box::new(move |outcome| gathering.arrive(results, outcome));
            let upto = if is_early { 0 } else { upto };
            let answered = self.shared.lock(index).when_durable(upto, waiter);
            self.shared.answer_or_wake(index, answered);
        }
        // A flush makes room.
        if self.shared.tier_budget().is_half_used() || (is_short && self.shared.tier_budget().used() > 0) {
            self.shared.want_freeze();
            self.shared.wake_journals();
        }
    }

    /// True when entries of any ledger are in object storage, as far as is known here.
    pub fn has_tiered(&self) -> bool {
        self.shared.shards().iter().any(|shard| shard.lock().has_tiered())
    }

    /// How far a ledger is in object storage, durably; `None` when it is not here or nothing of it is there.
    pub fn tiered(&self, ledger: LedgerId) -> Option<Tiered> {
        self.shared.lock_of(ledger).tiered(ledger)
    }

    /// Ledgers above `after` that are in object storage further than their copies are trimmed, ascending, `max` at most.
    pub fn untrimmed(&self, after: Option<LedgerId>, max: usize) -> Vec<(LedgerId, Tiered)> {
        let mut all = Vec::new();
        for shard in self.shared.shards() {
            shard.lock().untrimmed(after, max, &mut all);
        }
        all.sort_unstable_by_key(|(ledger, _)| *ledger);
        all.truncate(max);
        all
    }

    /// True while memory has copies of entries of a ledger: before the next flush those have no checksums to compare.
    pub fn has_unflushed(&self, ledger: LedgerId) -> bool {
        self.shared.lock_of(ledger).has_unflushed(ledger)
    }

    /// Bytes of extents that wait for the state table.
    pub fn tier_extents_waiting(&self) -> u64 {
        self.shared.tier_budget().used()
    }

    /// The extent of an entry that [`Engine::read`] found to be in object storage alone. It is true from that entry to its last one:
    /// entries before may be in other objects by now. Blocks on the local disk.
    ///
    /// # Errors
    /// [`Refusal::NoLedger`] when the ledger is gone meanwhile: read again. Otherwise [`Refusal::Io`].
    pub fn tier_extent(&self, read: &TieredRead) -> Result<TierExtent, Refusal> {
        let (ledger, entry, epoch) = (read.ledger(), read.entry(), read.epoch());
        match self.resolve_at(ledger, entry, read.in_memory().to_vec(), epoch)? {
            Some(extent) => Ok(extent),
            None if self.tier_epoch(ledger) != Some(epoch) => Err(Refusal::NoLedger),
            None => {
                tracing::error!(%ledger, %entry, "no extent covers an entry that exists only in object storage");
                Err(Refusal::Io)
            }
        }
    }

    /// The extents of a ledger from the entry `from` to the last reconciled one, ascending and without gaps, `max` at most. Blocks on
    /// the local disk.
    pub fn tier_extents(
        &self,
        ledger: LedgerId,
        from: EntryId,
        max: usize,
    ) -> Result<Vec<TierExtent>, Refusal> {
        let mut found: Vec<TierExtent> = Vec::new();
        let (mut next, mut seen) = (Some(from), None);
        while let Some(entry) = next {
            let Some(extent) = self.extent_at(ledger, entry)? else { break };
            // An extent may be found in several parts, which are joined. A later extent may have its first entries.
            let is_same = seen.replace((extent.first, extent.object)) == seen;
            let is_full = found.len() == max;
            match found.last_mut() {
                Some(before) if is_same && before.last.get() + 1 == entry.get() => before.last = extent.last,
                _ if is_full => break,
                _ => found.push(TierExtent { first: entry, ..extent }),
            }
            next = extent.last.get().checked_add(1).and_then(EntryId::new);
        }
        Ok(found)
    }

    /// The extent that has an entry at or below the durable LRE.
    fn extent_at(&self, ledger: LedgerId, entry: EntryId) -> Result<Option<TierExtent>, Refusal> {
        let Some((rows, epoch)) = self.shared.lock_of(ledger).tier_rows(ledger, entry) else {
            return Ok(None);
        };
        self.resolve_at(ledger, entry, rows, epoch)
    }

    /// As [`resolve`], over what was in memory and what the state tables have. Call it after the shard was asked, never
    /// before: a commit moves extents from memory to the tables.
    fn resolve_at(
        &self,
        ledger: LedgerId,
        entry: EntryId,
        mut rows: Vec<ExtentRow>,
        epoch: u32,
    ) -> Result<Option<TierExtent>, Refusal> {
        let (of_tables, horizon) = in_tables(
            self.shared.tiers().iter().map(|view| view.rows(ledger, entry, ROWS_READ)),
            epoch,
        )
        .map_err(|error| {
            tracing::error!(%ledger, %entry, %error, "cannot look up where an entry is in object storage");
            Refusal::Io
        })?;
        rows.extend(of_tables);
        Ok(resolve(rows.iter().copied(), entry, horizon))
    }

    /// For a start with other directories than before: ledgers that lack extents lose their LRE and trim ([`crate::tier`],
    /// invariant 2).
    ///
    /// # Errors
    /// A table that cannot be read, with the number of its directory.
    pub(crate) fn drop_uncovered(&self) -> Result<(), (usize, StateError)> {
        for shard in self.shared.shards() {
            let ledgers = shard.lock().reconciled();
            for (ledger, lre, epoch) in ledgers {
                if !self.is_covered(ledger, lre, epoch)? {
                    tracing::error!(
                        %ledger, %lre,
                        "extents of this ledger are missing, perhaps lost with a ledger directory: treating it as \
                         not in object storage"
                    );
                    shard.lock().lose_extents(ledger);
                }
            }
        }
        Ok(())
    }

    /// True if the tables have extents of the epoch for every entry up to the LRE.
    fn is_covered(&self, ledger: LedgerId, lre: EntryId, epoch: u32) -> Result<bool, (usize, StateError)> {
        let mut next = EntryId::FIRST;
        loop {
            let views = self.shared.tiers().iter().enumerate();
            let read =
                views.map(|(index, view)| view.rows(ledger, next, ROWS_READ).map_err(|error| (index, error)));
            let (rows, horizon) = in_tables(read, epoch)?;
            while next <= horizon {
                let Some(extent) = resolve(rows.iter().copied(), next, horizon) else { return Ok(false) };
                if extent.last >= lre {
                    return Ok(true);
                }
                next = EntryId::new(extent.last.get() + 1).expect("it is at most another entry");
            }
        }
    }

    fn tier_epoch(&self, ledger: LedgerId) -> Option<u32> {
        self.shared.lock_of(ledger).tier_epoch(ledger)
    }

    /// Lengths and checksums of the copies on disk of entries from `first` to `last`, ascending, `max` at most: of each the
    /// newest copy. From index records; no entry is read. Blocks on the local disk.
    ///
    /// # Errors
    /// [`Refusal::NoLedger`], and [`Refusal::Io`] for what cannot be read.
    pub fn local_checksums(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max: usize,
    ) -> Result<Vec<LocalChecksum>, Refusal> {
        let hidden_below = {
            let shard = self.shared.lock_of(ledger);
            if shard.presence(ledger) != LedgerPresence::Known {
                return Err(Refusal::NoLedger);
            }
            shard.hidden_below(ledger)
        };
        let failed = |error: ReadError| {
            tracing::error!(%ledger, %error, "cannot read entry checksums");
            Refusal::Io
        };
        let mut newest = BTreeMap::new();
        for view in self.shared.views() {
            for source in view.runs_within(ledger, first, last).map_err(failed)? {
                if source.extent.generation.0 >= hidden_below {
                    collect_checksums(&source, (first, last), max, &mut newest).map_err(failed)?;
                }
            }
        }
        // Each run gave its own lowest ones, so the lowest of all are among them.
        Ok(newest.into_values().take(max).map(|(_, checksum)| checksum).collect())
    }

    /// Lets the copies of entries up to `below`, inclusive, go: the entries are read from object storage when no copy is here, and
    /// the space of the copies comes back once the trim is committed. The caller has compared them with the objects (T19). Blocks on the
    /// local disk.
    ///
    /// # Errors
    /// Nothing changes then. `compared` is what [`Engine::tiered`] said before the comparison: extents and entries that came later were
    /// not compared.
    pub fn trim(&self, ledger: LedgerId, compared: &Tiered, below: EntryId) -> Result<(), TrimError> {
        let check = |shard: &Shard| {
            let tiered = shard.tiered(ledger).ok_or(TrimError::NotTiered)?;
            // Entries that were added since may belong to another ledger with the same id. Adds after the trim wait for metadata.
            let is_as_compared = (tiered.life, tiered.update, tiered.changes)
                == (compared.life, compared.update, compared.changes);
            if !is_as_compared {
                return Err(TrimError::Changed);
            }
            if below > tiered.lre { Err(TrimError::AboveLre(tiered.lre)) } else { Ok(tiered) }
        };
        let tiered = check(&self.shared.lock_of(ledger))?;
        let mut next = match tiered.trimmed_below {
            None => EntryId::FIRST,
            Some(trimmed) if trimmed >= below => return Ok(()),
            Some(trimmed) => EntryId::new(trimmed.get() + 1).expect("it is below another entry"),
        };
        // Invariant 3: every entry must have its extent, whatever went wrong.
        loop {
            let extent = self.extent_at(ledger, next).map_err(|_| TrimError::Io)?;
            let last = extent.ok_or(TrimError::Uncovered(next))?.last;
            if last >= below {
                break;
            }
            next = EntryId::new(last.get() + 1).expect("it is below another entry");
        }
        let mut shard = self.shared.lock_of(ledger);
        check(&shard)?;
        shard.trim(ledger, below);
        Ok(())
    }
}

/// Merges the checksums of one run (consecutive entries of a ledger in one entry log) into `newest`, for the entries of the range. Reads
/// at most `max` index records, the lowest first. Of two copies of an entry the one with the later generation counts, then the one in
/// the later log.
fn collect_checksums(
    source: &Source,
    (first, last): (EntryId, EntryId),
    max: usize,
    newest: &mut BTreeMap<EntryId, ((u64, u64), LocalChecksum)>,
) -> Result<(), ReadError> {
    let Source { log, extent } = source;
    let age = (extent.generation.0, extent.log_id.0);
    // Bisects for the first record at or after `first`.
    let (mut low, mut high) = (0, extent.count);
    while low < high {
        let middle = low + (high - low) / 2;
        match log.records_from(extent, middle, 1, None)?.first() {
            Some(record) if record.entry < first => low = middle + 1,
            _ => high = middle,
        }
    }
    let (mut place, mut before, mut taken) = (low, None, 0);
    while place < extent.count && taken < max {
        let wanted = RECORDS_READ.min(u32::try_from(max - taken).unwrap_or(RECORDS_READ));
        let records = log.records_from(extent, place, wanted, before)?;
        for record in &records {
            if record.entry > last {
                return Ok(());
            }
            let location = &record.location;
            let checksum =
                LocalChecksum { entry: record.entry, length: location.length, crc32c: location.crc32c };
            let slot = newest.entry(record.entry).or_insert((age, checksum));
            if slot.0 < age {
                *slot = (age, checksum);
            }
        }
        place += u32::try_from(records.len()).expect("at most RECORDS_READ records");
        taken += records.len();
        before = records.last().map(|record| record.entry);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::test_row as row;

    #[test]
    fn one_table_that_cannot_be_read_is_enough_to_know_nothing() {
        let one = || Ok::<_, &str>(vec![row(0, 9, 1)]);
        assert_eq!(in_tables([one(), Ok(vec![])].into_iter(), 0), Ok((vec![row(0, 9, 1)], EntryId::MAX)));
        assert_eq!(in_tables([one()].into_iter(), 1), Ok((vec![], EntryId::MAX)), "of another epoch");
        assert_eq!(in_tables([one(), Err("it is out")].into_iter(), 0), Err("it is out"));
        let full: Vec<_> = (0..64).map(|n| row(n, n, 1)).collect();
        assert_eq!(in_tables([Ok::<_, ()>(full)].into_iter(), 0).unwrap().1, EntryId::new(63).unwrap());
    }
}
