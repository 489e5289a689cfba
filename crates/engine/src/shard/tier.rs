//! The shard's part in ledgers of which entries are in object storage: it places and indexes updates, and finds extents in memory.
//! The invariants are those of [`crate::tier`].

use super::{NoRoom, Shard};
use crate::api::{Answer, Refusal};
use crate::lagging::Lagging;
use crate::ledger::{LedgerState, TierState};
use crate::ledger_budget::Beginning;
use crate::tier::{Compared, PlacedUpdate, Reconciled, TierPermit, Tiered, TieredRead};
use bindery_io::chunk::Lane;
use bindery_journal::record::{HEADER_SIZE_BYTES, Kind, Record};
use bindery_storage::{ExtentRow, ExtentUpdate, LedgerRecord};
use bindery_types::tier::{Reconciliation, TierExtent, TierStamp};
use bindery_types::{EntryId, LedgerId};
use std::ops::Bound;

/// Records of updates take one part in so many of a group's bytes at most.
const SHARE_OF_GROUP: usize = 4;
/// Updates of one ledger between two freezes: a look-up goes through them.
const UPDATES_MAX: usize = 256;
/// Body of a record besides its extents: ledger, stamp, creation time.
const BODY_BASE_BYTES: usize = 8 + TierStamp::SIZE_BYTES + 8;

impl Shard {
    /// Takes over what a tierer says about a ledger. The result is true once everything up to the returned sequence is durable.
    pub(crate) fn reconcile(&mut self, update: &Reconciliation) -> (Reconciled, u64) {
        self.take_update(update, None, false)
    }

    /// As [`Shard::reconcile`], for extents whose objects the caller has compared with those that they replace.
    pub(crate) fn reconcile_compared(&mut self, compared: &Compared) -> (Reconciled, u64) {
        self.take_update(&compared.reconciliation, Some(compared.seen), compared.is_new_life)
    }

    fn take_update(
        &mut self,
        update: &Reconciliation,
        seen: Option<u64>,
        is_new_life: bool,
    ) -> (Reconciled, u64) {
        let ledger = update.ledger;
        let of = |result| (Reconciled { ledger, result, lre: None }, 0);
        match self.live(ledger) {
            Err(refusal) => return of(Err(refusal)),
            // The register and the copies here belong to an earlier ledger with this id.
            // What an older build knew may be of another ledger with this id. Every copy is here, so it is told again.
            Ok(state) if is_nobodys(state, update) => self.drop_register(ledger),
            Ok(state) if is_of_another(state, update) => {
                if update.extents.is_empty() {
                    return of(Ok(()));
                }
                if !is_new_life || self.is_failed {
                    return of(Err(Refusal::TooManyRequests));
                }
                if Shard::trimmed(state).is_some() {
                    // Nothing was placed while the trim was compared, and each add since then met a check of metadata: nothing of the
                    // new ledger is here.
                    let removed = self.place_removal(ledger, state.fence.is_some(), Box::new(|_| {}));
                    let is_removed = matches!(removed, Answer::Later);
                    return of(Err(if is_removed { Refusal::NoLedger } else { Refusal::TooManyRequests }));
                }
                self.drop_register(ledger);
            }
            Ok(_) => {}
        }
        let state = &self.ledgers[&ledger];
        let register = |state: &LedgerState| {
            let placed = state.tier.as_ref().map(|tier| (EntryId::new(tier.lre.placed()), tier.updated_at));
            placed.unwrap_or((None, 0))
        };
        let (lre, _) = register(state);
        let result = match update.extents.first() {
            None => Ok(()),
            Some(first) if first.first.get() > EntryId::to_wire(lre).saturating_add(1) => {
                Err(Refusal::BadRequest)
            }
            // A tierer that missed the answer says the same again.
            Some(_) if state.tier.as_ref().is_some_and(|tier| tier.was_said_last(&update.extents)) => Ok(()),
            // Invariant 6: they would take the place of the only ones by which entries are found.
            Some(first) if seen.is_none() && Some(first.first) <= Shard::trimmed(state) => {
                Err(Refusal::TooManyRequests)
            }
            // Others came since: the extents compared are not those that would be replaced.
            Some(first)
                if seen
                    .is_some_and(|seen| seen != state.tier.as_ref().map_or(0, |tier| tier.stamp.update))
                    && Some(first.first) <= lre =>
            {
                Err(Refusal::TooManyRequests)
            }
            // The tables are being told to forget the previous life of the ledger. Until they have, its rows may still count.
            Some(_) if self.forgetting.contains_key(&ledger) => Err(Refusal::TooManyRequests),
            // While a flush or a journal waits for space, memory must not hold more than it does.
            Some(_) if self.takes_no_adds() => {
                Err(if self.is_failed { Refusal::Io } else { Refusal::TooManyRequests })
            }
            Some(_) if !self.may_be_tiered(ledger) => Err(Refusal::TooManyRequests),
            Some(_) => self.place_update(update).map_err(|NoRoom| Refusal::TooManyRequests),
        };
        let (lre, sequence) = register(&self.ledgers[&ledger]);
        (Reconciled { ledger, result, lre }, sequence)
    }

    /// Takes a ledger over from object storage (invariant 5). The result is true once everything up to the returned sequence is durable.
    pub(crate) fn restore_from_tier(&mut self, update: &Reconciliation) -> (Reconciled, u64) {
        self.take_over(update, false)
    }

    /// As [`Shard::restore_from_tier`], also of a ledger that is in limbo, and of one that is known and has no entry here.
    pub(crate) fn repair_from_tier(&mut self, update: &Reconciliation) -> (Reconciled, u64) {
        self.take_over(update, true)
    }

    fn take_over(&mut self, update: &Reconciliation, is_repair: bool) -> (Reconciled, u64) {
        let ledger = update.ledger;
        let of = |lre, result| Reconciled { ledger, result, lre };
        let lre = match self.live(ledger) {
            Err(Refusal::NoLedger) => None,
            // The repair itself brings back its lost entries.
            Err(Refusal::Unknown) if is_repair => None,
            Err(refusal) => return (of(None, Err(refusal)), 0),
            Ok(state) if !is_repair && self.is_limbo(ledger, state) => {
                return (of(None, Err(Refusal::Unknown)), 0);
            }
            Ok(state) if is_of_another(state, update) => return (of(None, Err(Refusal::BadRequest)), 0),
            Ok(state) => {
                let lre = state.tier.as_ref().and_then(|tier| EntryId::new(tier.lre.placed()));
                let has_copies = Shard::trimmed(state) != lre
                    || state.last_entry.placed() > EntryId::to_wire(lre)
                    || (lre.is_none() && !is_repair);
                // These copies were compared with no object (T19).
                if has_copies {
                    return (of(lre, Err(Refusal::BadRequest)), 0);
                }
                lre
            }
        };
        let result = match update.extents.first() {
            None => Err(Refusal::BadRequest),
            Some(first) if first.first.get() > EntryId::to_wire(lre).saturating_add(1) => {
                Err(Refusal::BadRequest)
            }
            // A caller that missed the answer says the same again.
            Some(_) if update.last <= lre => Ok(()),
            Some(_) if self.forgetting.contains_key(&ledger) => Err(Refusal::TooManyRequests),
            Some(_) if self.takes_no_adds() => {
                Err(if self.is_failed { Refusal::Io } else { Refusal::TooManyRequests })
            }
            Some(_) if !self.may_begin(ledger, Beginning::Ordinary) || !self.may_be_tiered(ledger) => {
                Err(Refusal::TooManyRequests)
            }
            Some(_) => self.place_extents(update, Kind::Restored).map_err(|NoRoom| Refusal::TooManyRequests),
        };
        let tier = self.ledgers.get(&ledger).and_then(|state| state.tier.as_ref());
        let (lre, sequence) =
            tier.map_or((None, 0), |tier| (EntryId::new(tier.lre.placed()), tier.updated_at));
        (of(lre, result), sequence)
    }

    fn place_update(&mut self, update: &Reconciliation) -> Result<(), NoRoom> {
        self.place_extents(update, Kind::Reconciled)
    }

    /// Places extents in as many records as they need. Each record raises the LRE by itself: without room for all of them, those before
    /// stay.
    fn place_extents(&mut self, update: &Reconciliation, kind: Kind) -> Result<(), NoRoom> {
        let Reconciliation { ledger, ref extents, .. } = *update;
        let most = self.config.entry_bytes_max.saturating_sub(BODY_BASE_BYTES) / TierExtent::SIZE_BYTES;
        // An update that needs more room than there can be is taken over as far as there is room.
        let most = most.min(self.tier_budget.extents_in_half());
        // A freeze that takes the updates over makes room for more.
        self.settle(ledger);
        for some in extents.chunks(most.max(1)) {
            let state = self.ledgers.get(&ledger);
            let tier = state.and_then(|state| state.tier.as_ref());
            if tier.is_some_and(|tier| tier.updates.len() >= UPDATES_MAX) {
                return Err(NoRoom);
            }
            let permit = self.tier_budget.take(some.len()).ok_or(NoRoom)?;
            let stamp = match tier {
                Some(tier) => TierStamp { update: tier.stamp.update + 1, ..tier.stamp },
                // A ledger that is restored gets its life with this record.
                None => {
                    let life = state.map_or(0, |state| state.life + u32::from(state.is_removed()));
                    TierStamp { epoch: life, update: 1 }
                }
            };
            let mut body = Vec::with_capacity(BODY_BASE_BYTES + some.len() * TierExtent::SIZE_BYTES);
            body.extend_from_slice(&ledger.get().to_be_bytes());
            stamp.encode(&mut body);
            let created_ms = match tier {
                Some(tier) => tier.creation_with(update.created_ms),
                None => update.created_ms,
            };
            if let Some(created_ms) = created_ms {
                body.extend_from_slice(&created_ms.to_le_bytes());
            }
            some.iter().for_each(|extent| extent.encode(&mut body));
            let placed = self.place(kind, &[&body], Lane::Normal)?;
            if kind == Kind::Restored {
                self.exists(ledger);
            }
            let update = ExtentUpdate { stamp, extents: some.to_vec() };
            self.index_update(ledger, update, created_ms, permit, placed.sequence);
            if kind == Kind::Restored {
                self.index_restored(ledger);
            }
        }
        Ok(())
    }

    /// True if these records have their share of the group that forms, or it is full.
    pub(super) fn is_full_of_updates(&self) -> bool {
        self.formed_bytes >= self.config.formed_bytes_max
            || self.formed_update_bytes >= self.config.formed_bytes_max / SHARE_OF_GROUP
    }

    pub(super) fn on_update_formed(&mut self, body_bytes: usize) {
        self.formed_update_bytes += HEADER_SIZE_BYTES + body_bytes;
    }

    fn index_update(
        &mut self,
        ledger: LedgerId,
        update: ExtentUpdate,
        created_ms: Option<i64>,
        permit: TierPermit,
        sequence: u64,
    ) {
        let stamp = update.stamp;
        let (cut, durable) = (self.cut.min(sequence - 1), self.durable.min(sequence - 1));
        let last = update.extents.last().expect("an update has extents").last;
        self.settle(ledger);
        let state = self.ledgers.get_mut(&ledger).expect("an update is of a ledger that is here");
        if state.tier.is_none() {
            self.tiered_count += 1;
        }
        let tier = state.tier.get_or_insert_with(|| Box::new(TierState::new(stamp)));
        // The register is a maximum (T1).
        tier.lre.raise(last.get().max(tier.lre.placed()), sequence, cut, durable);
        tier.stamp = stamp;
        tier.created_ms = tier.creation_with(created_ms);
        tier.updated_at = sequence;
        tier.updates.push(PlacedUpdate { sequence, update, _permit: permit });
        self.note_untrimmed(ledger);
        self.touch(ledger);
    }

    /// Applies an update from the journal, unless the state tables have it already, or have the ledger as removed.
    pub(super) fn replay_update(&mut self, record: &Record<'_>) -> Result<(), NoRoom> {
        let ledger = record.ledger;
        let (stamp, created_ms, extents) =
            record.reconciled().expect("replay gives such records with what they say");
        let Some(state) = self.ledgers.get(&ledger).filter(|state| !state.is_removed()) else {
            return Ok(());
        };
        // What is in a table came with its extents, in one commit. An update of a life that ended is followed by the removal
        // that ended it, in this replay: it may be applied. The epoch cannot tell, because a removal that is replayed
        // again makes the number of the life grow.
        let tier = state.tier.as_ref();
        if tier.is_some_and(|tier| stamp <= tier.stamp) {
            return Ok(());
        }
        // The register before was dropped, which only this update says if no freeze came between.
        if tier.is_some_and(|tier| stamp.epoch > tier.stamp.epoch) {
            self.drop_register(ledger);
            let state = self.ledgers.get_mut(&ledger).expect("it was just there");
            state.life = state.life.max(stamp.epoch);
        }
        let tier = self.ledgers[&ledger].tier.as_ref();
        // Earlier updates are missing: the journal has a hole, or a directory is lost. The LRE stays below what is missing,
        // so that a tierer sends it again (invariant 2).
        let lre = tier.map_or(-1, |tier| tier.lre.placed());
        if extents.first().is_none_or(|extent| extent.first.get() > lre.saturating_add(1)) {
            tracing::warn!(%ledger, lre, "the journal lacks earlier updates about what is in object storage: \
             skipping a later one until a tierer sends it again");
            return Ok(());
        }
        let permit = self.tier_budget.take_at_start(extents.len()).ok_or(NoRoom)?;
        self.sequence += 1;
        self.index_update(ledger, ExtentUpdate { stamp, extents }, created_ms, permit, self.sequence);
        (self.cut, self.durable) = (self.sequence, self.sequence);
        Ok(())
    }

    /// Marks all entries of a restored ledger up to its LRE as trimmed: they are in object storage alone, and read from there.
    fn index_restored(&mut self, ledger: LedgerId) {
        self.settle(ledger);
        let state = self.ledgers.get_mut(&ledger).expect("its record made it exist");
        if let Some(tier) = &mut state.tier {
            tier.trimmed_below = tier.trimmed_below.max(EntryId::new(tier.lre.placed()));
        }
        self.note_untrimmed(ledger);
        self.mark_dirty(ledger);
    }

    /// Applies a record of a restored ledger from the journal.
    pub(super) fn replay_restored(&mut self, record: &Record<'_>) -> Result<(), NoRoom> {
        self.exists(record.ledger);
        let before = self.ledgers[&record.ledger].tier.as_ref().map(|tier| tier.stamp);
        self.replay_update(record)?;
        let after = self.ledgers[&record.ledger].tier.as_ref().map(|tier| tier.stamp);
        // Without a change a table has the update, with its trim. The LRE may have risen since, above that trim.
        if after != before {
            self.index_restored(record.ledger);
        }
        Ok(())
    }

    /// A ledger from the state table was taken over, alone or joined with another record of it.
    pub(super) fn on_tier_restored(&mut self, ledger: LedgerId, was_tiered: bool) {
        let is_tiered = self.ledgers[&ledger].tier.is_some();
        self.tiered_count += usize::from(is_tiered);
        self.tiered_count -= usize::from(was_tiered);
        self.note_untrimmed(ledger);
    }

    /// A ledger is removed: nothing of it is in object storage any more, as far as this bookie is concerned.
    pub(super) fn on_tier_gone(&mut self, ledger: LedgerId, was_tiered: bool) {
        self.tiered_count -= usize::from(was_tiered);
        self.untrimmed.remove(&ledger);
    }

    /// The highest entry that is known of a ledger here: stored, or let go. Claims of a tierer do not count: a single
    /// false claim would raise registers.
    pub(crate) fn last_known(&self, ledger: LedgerId) -> Result<Option<EntryId>, Refusal> {
        let state = self.live(ledger)?;
        Ok(EntryId::new(state.last_entry.placed()).max(Shard::trimmed(state)))
    }

    pub(crate) fn has_tiered(&self) -> bool {
        self.tiered_count > 0
    }

    /// Ledgers of which entries are in object storage, with the LRE and the epoch of the extents.
    pub(crate) fn reconciled(&self) -> Vec<(LedgerId, EntryId, u32)> {
        let states = self.ledgers.iter();
        let tiers = states.filter_map(|(ledger, state)| Some((*ledger, state.tier.as_ref()?)));
        tiers
            .filter_map(|(id, tier)| Some((id, EntryId::new(tier.lre.placed())?, tier.stamp.epoch)))
            .collect()
    }

    /// For a start that finds extents below the LRE of a ledger missing: forgets all that is known of it in object storage. If copies
    /// of it were trimmed, entries may be missing, so it is in limbo from then on.
    pub(crate) fn lose_extents(&mut self, ledger: LedgerId) {
        self.settle(ledger);
        let state = self.ledgers.get_mut(&ledger).expect("a ledger with a register is here");
        state.is_limbo |= Shard::trimmed(state).is_some();
        self.drop_register(ledger);
    }

    /// Forgets what is known of a ledger in object storage. Its copies here stay.
    fn drop_register(&mut self, ledger: LedgerId) {
        self.settle(ledger);
        let state = self.ledgers.get_mut(&ledger).expect("a ledger with a register is here");
        if state.tier.take().is_none() {
            return;
        }
        // Records in other directories must not bring it back.
        state.life += 2;
        state.are_extents_gone = true;
        self.on_tier_gone(ledger, true);
        self.touch(ledger);
    }

    /// Whether what is here of a ledger may be another's that had the id before: a ledger is trimmed once it is closed, and then gets
    /// no adds but those of repairs.
    pub(super) fn may_be_anothers(state: &LedgerState) -> bool {
        state.tier.as_ref().is_some_and(|tier| tier.trimmed_below.is_some())
    }

    /// Whether the ledger that was trimmed is the one that was seen, and trimmed as far.
    pub(super) fn is_trimmed_as(state: &LedgerState, seen: &Tiered) -> bool {
        let is_same =
            |tier: &TierState| (tier.trimmed_below, tier.created_ms) == (seen.trimmed_below, seen.created_ms);
        state.life == seen.life && state.tier.as_deref().is_some_and(is_same)
    }

    /// Removes a ledger that metadata shows to be another one than the one of its id that lives. False if it has changed since it was
    /// seen: then it stays, and metadata spoke of something else.
    pub(crate) fn end_other_life(&mut self, ledger: LedgerId, seen: &Tiered) -> Result<bool, Refusal> {
        let state = match self.live(ledger) {
            Ok(state) if Shard::is_trimmed_as(state, seen) => state,
            _ => return Ok(false),
        };
        if self.is_failed {
            return Err(Refusal::Io);
        }
        let is_fenced = state.fence.is_some();
        match self.place_removal(ledger, is_fenced, Box::new(|_| {})) {
            Answer::Later => Ok(true),
            Answer::Now(_, outcome) => outcome.map(|()| true),
        }
    }

    fn note_untrimmed(&mut self, ledger: LedgerId) {
        let tier = self.ledgers[&ledger].tier.as_ref();
        if tier.is_some_and(|tier| tier.lre.placed() > EntryId::to_wire(tier.trimmed_below)) {
            self.untrimmed.insert(ledger);
        } else {
            self.untrimmed.remove(&ledger);
        }
    }

    /// As `mark_dirty`, but for a change that does not count in [`Shard::changes`]: a removal that was decided before it goes ahead.
    fn touch(&mut self, ledger: LedgerId) {
        let state = self.ledgers.get_mut(&ledger).expect("a ledger that changes is known");
        if state.touch(self.epoch) {
            self.dirty.push(ledger);
        }
    }

    /// How far a ledger is in object storage; `None` if it is not here, or no LRE of it is durable. The LRE is the durable one, whereas
    /// the trim counts from the moment it is made.
    pub(crate) fn tiered(&self, ledger: LedgerId) -> Option<Tiered> {
        let state = self.live(ledger).ok()?;
        let tier = state.tier.as_ref()?;
        let lre = EntryId::new(tier.lre.shown(self.durable))?;
        let committed = tier.committed.and_then(|record| record.trimmed_below);
        Some(Tiered {
            life: state.life,
            update: tier.stamp.update,
            is_update_durable: tier.updated_at <= self.durable,
            lre,
            trimmed_below: tier.trimmed_below,
            is_trim_committed: committed == tier.trimmed_below,
            created_ms: tier.created_ms,
            changes: self.changes(ledger),
        })
    }

    /// True while memory has copies of entries of the ledger, durable or not.
    pub(crate) fn has_unflushed(&self, ledger: LedgerId) -> bool {
        let frozen = self.caches().filter_map(|frozen| frozen.records.get(&ledger));
        let active = self.ledgers.get(&ledger).map(|state| &state.records);
        frozen.chain(active).any(|records| !records.is_empty())
    }

    pub(crate) fn tier_epoch(&self, ledger: LedgerId) -> Option<u32> {
        Some(self.live(ledger).ok()?.tier.as_ref()?.stamp.epoch)
    }

    pub(crate) fn untrimmed(&self, after: Option<LedgerId>, max: usize, into: &mut Vec<(LedgerId, Tiered)>) {
        let behind = after.map_or(Bound::Unbounded, Bound::Excluded);
        let candidates = self.untrimmed.range((behind, Bound::Unbounded));
        // Those without a durable LRE take no place: a page that is not full is the last one.
        into.extend(candidates.filter_map(|ledger| Some((*ledger, self.tiered(*ledger)?))).take(max));
    }

    /// Lets the copies of entries up to `below`, inclusive, go. The caller checked that they may.
    pub(crate) fn trim(&mut self, ledger: LedgerId, below: EntryId) {
        self.settle(ledger);
        let state = self.ledgers.get_mut(&ledger).expect("the caller looked");
        let tier = state.tier.as_mut().expect("the caller looked");
        assert!(below.get() <= tier.lre.shown(self.durable), "no trim beyond the durable LRE (T9)");
        tier.trimmed_below = tier.trimmed_below.max(Some(below));
        self.note_untrimmed(ledger);
        self.touch(ledger);
    }

    /// The entry up to which copies count as dead: the committed trim, unless a canary believes any trim.
    pub(crate) fn trimmed_for_good(&self, ledger: LedgerId, believes_all: bool) -> Option<EntryId> {
        let tier = self.live(ledger).ok()?.tier.as_ref()?;
        if believes_all { tier.trimmed_below } else { tier.committed?.trimmed_below }
    }

    /// The entry up to which a ledger, whose state is given, is read from object storage when no copy is here.
    pub(super) fn trimmed(state: &LedgerState) -> Option<EntryId> {
        state.tier.as_ref()?.trimmed_below
    }

    /// For an entry without a copy here: how to read it from object storage. `None` if it is above the trim.
    pub(super) fn tiered_read(
        &self,
        ledger: LedgerId,
        state: &LedgerState,
        entry: EntryId,
    ) -> Option<TieredRead> {
        if Some(entry) > Shard::trimmed(state) {
            return None;
        }
        let tier = state.tier.as_ref()?;
        let in_memory = self.rows_in_memory(ledger, state, entry);
        Some(TieredRead::new(ledger, entry, in_memory, tier.stamp.epoch, tier.created_ms))
    }

    /// What is in memory about the extent of an entry at or below the durable LRE, and the epoch of its rows.
    pub(crate) fn tier_rows(&self, ledger: LedgerId, entry: EntryId) -> Option<(Vec<ExtentRow>, u32)> {
        let state = self.live(ledger).ok()?;
        let tier = state.tier.as_ref()?;
        let is_reconciled = entry.get() <= tier.lre.shown(self.durable);
        is_reconciled.then(|| (self.rows_in_memory(ledger, state, entry), tier.stamp.epoch))
    }

    /// What durable updates in memory say about the extent of an entry, in this life of the ledger: two rows at most ([`latest_rows`]).
    /// The state tables may have others.
    fn rows_in_memory(&self, ledger: LedgerId, state: &LedgerState, entry: EntryId) -> Vec<ExtentRow> {
        let Some(tier) = &state.tier else { return Vec::new() };
        let frozen = self.caches().filter_map(|frozen| frozen.extents.get(&ledger));
        let updates = frozen.flat_map(|change| &change.updates).chain(&tier.updates);
        let is_shown = |update: &&PlacedUpdate| {
            update.sequence <= self.durable && update.update.stamp.epoch == tier.stamp.epoch
        };
        latest_rows(updates.filter(is_shown), entry)
    }

    /// Notes what the state tables have of a ledger, now that the flush with this record is committed in every directory.
    pub(super) fn on_tier_committed(&mut self, record: &LedgerRecord) {
        let state = self.ledgers.get_mut(&record.ledger);
        let tier = state.and_then(|state| state.tier.as_mut());
        if let (Some(tier), Some(committed)) = (tier, record.tier)
            && tier.stamp.epoch == committed.stamp.epoch
        {
            tier.committed = Some(tier.committed.map_or(committed, |before| before.join(committed)));
        }
    }
}

/// Whether an update is of another ledger than the register, by their creation times. Where one is not known they count as the same.
fn is_of_another(state: &LedgerState, update: &Reconciliation) -> bool {
    let known = state.tier.as_ref().and_then(|tier| tier.created_ms).zip(update.created_ms);
    known.is_some_and(|(known, said)| known != said)
}

/// Whether the register, of which nothing is trimmed, is without the creation time that an update has.
fn is_nobodys(state: &LedgerState, update: &Reconciliation) -> bool {
    let is_unnamed = |tier: &TierState| tier.created_ms.is_none() && tier.trimmed_below.is_none();
    update.created_ms.is_some() && state.tier.as_deref().is_some_and(is_unnamed)
}

/// Of updates, oldest first, what [`resolve`](crate::tier::resolve) needs: the latest row that has the entry, and of the rows that
/// came later, the one that begins first after the entry: it may cut the other short.
fn latest_rows<'a>(updates: impl Iterator<Item = &'a PlacedUpdate>, entry: EntryId) -> Vec<ExtentRow> {
    let (mut latest, mut cut): (Option<ExtentRow>, Option<ExtentRow>) = (None, None);
    for row in updates.filter_map(|update| update.row_at(entry)) {
        if row.extent.contains(entry) {
            (latest, cut) = (Some(row), None);
        } else if cut.is_none_or(|cut| row.extent.first <= cut.extent.first) {
            cut = Some(row);
        }
    }
    latest.into_iter().chain(cut).collect()
}

impl TierState {
    pub(crate) fn new(stamp: TierStamp) -> TierState {
        TierState {
            lre: Lagging::durable(-1),
            stamp,
            trimmed_below: None,
            created_ms: None,
            updated_at: 0,
            committed: None,
            updates: Vec::new(),
        }
    }

    /// The creation time of the ledger once an update with this one is taken over. A trimmed register without one keeps none: no copy is
    /// left that tells whether the update is of the same ledger, and adds would be taken for its own.
    fn creation_with(&self, said: Option<i64>) -> Option<i64> {
        self.created_ms.or(said.filter(|_| self.trimmed_below.is_none()))
    }

    /// True if the last update had these extents, and is in memory.
    fn was_said_last(&self, extents: &[TierExtent]) -> bool {
        self.updates.last().is_some_and(|last| last.update.extents == extents)
    }
}

#[cfg(test)]
pub(super) mod tests;
