//! Metadata as garbage collection meets it: ledgers that were deleted, and a store that fails, lies by omission, lags
//! or is another cluster's.
//!
//! IB16: whatever the store does, only ledgers that it really lost are dropped.

use super::{Op, Sim};
use crate::bookie::ghost::Check;
use bindery_engine::{Doubt, Evidence, GarbageLimits, GarbageRound, LedgerPresence, Listed, SecondLook};
use bindery_types::LedgerId;
use std::collections::BTreeSet;

/// The trouble with the store during a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    No,
    /// The listing ends early with an error.
    ListingFails,
    /// It ends early and does not say so: the bug of a driver.
    ListingPartial,
    /// It is empty and does not say so.
    ListingEmpty,
    /// An empty store answers, with copies of our INSTANCEID and our cookie: each time the same one.
    StoreEmpty,
    /// Reading a ledger again fails.
    ReadFails,
    /// Another cluster answers.
    OtherCluster,
}

/// Counters and marks of the stores: ours, and the empty one that answers in its place now and then.
#[derive(Debug, Default)]
pub(super) struct Stores {
    /// The mark that the bookie left in ours, and the one it knows. It has one from its start on.
    mark: u64,
    known: u64,
    /// The empty one has an older mark.
    mark_of_empty: Option<u64>,
    /// How far the empty one has counted: clients and other bookies may have ids of it, or somebody imported an export.
    next_of_empty: i64,
    /// The highest ledger of the bookie that ours knew when it got its mark.
    known_up_to: Option<LedgerId>,
    /// Found unproven, and kept until the next round at least.
    unproven: Vec<LedgerId>,
}

impl Stores {
    /// Replaces the mark in the store that answered.
    fn put_mark(&mut self, trouble: Trouble, listed_here: Option<LedgerId>) {
        self.known += 1;
        match trouble {
            Trouble::StoreEmpty => self.mark_of_empty = Some(self.known),
            _ => self.mark = self.known,
        }
        self.known_up_to = listed_here.max(self.known_up_to);
    }
}

impl Sim {
    /// The ledgers that exist: all that clients know, less those that they deleted.
    pub(super) fn in_metadata(&self) -> BTreeSet<LedgerId> {
        let known = self.ghost.ledgers().into_iter().chain(self.slots.iter().copied());
        known.filter(|ledger| !self.deleted.contains(ledger)).collect()
    }

    /// A client deletes a ledger, and goes on with another: a new one, or one that was deleted, under the same id.
    pub(super) fn delete_or_recreate(&mut self) {
        let at = self.random.below(self.slots.len() as u64) as usize;
        let ledger = self.slots[at];
        self.deleted.insert(ledger);
        self.retired.push(ledger);
        // One whose recovery began was fenced here, for good.
        let is_free = |ledger: &LedgerId| !self.slots.contains(ledger) && !self.ended.contains(ledger);
        let former: Vec<LedgerId> = self.deleted.iter().copied().filter(is_free).collect();
        if !former.is_empty() && self.random.chance(0.3) {
            let again = former[self.random.below(former.len() as u64) as usize];
            self.deleted.remove(&again);
            self.slots[at] = again;
            return;
        }
        self.slots[at] = LedgerId::new(10_000 + self.retired.len() as i64).expect("not negative");
    }

    /// A round of garbage collection up to the removals, in one step: nothing of it depends on what happens meanwhile
    /// but the snapshot, which comes first.
    pub(super) fn collect_garbage(&mut self) -> Check {
        let engine = self.machine().engine.clone();
        let trouble = match self.random.below(12) {
            _ if self.checks.chance(0.05) => Trouble::StoreEmpty,
            0 => Trouble::ListingFails,
            1 => Trouble::ListingPartial,
            2 => Trouble::ListingEmpty,
            3 => Trouble::ReadFails,
            4 => Trouble::OtherCluster,
            _ => Trouble::No,
        };
        let limits = GarbageLimits { share_max: 0.5, always: self.random.below(3) as usize };
        let is_waived = self.random.chance(0.2);
        let canaries = self.profile.canaries;
        let mut round =
            GarbageRound::begin(engine.ledgers(), self.stores.known_up_to, limits, is_waived, canaries)
                .known_at_mark(self.stores.known_up_to)
                .release(std::mem::take(&mut self.stores.unproven))
                .confirms(std::mem::take(&mut self.found_gone));
        let found = if trouble == Trouble::OtherCluster { "other" } else { "sim" };
        let listing: Vec<LedgerId> = self.in_metadata().into_iter().collect();
        let outcome = GarbageRound::check_cluster(found, &self.profile.engine.instance_id)
            .and_then(|()| self.list(&mut round, &listing, trouble));
        self.stores.unproven = round.unproven().to_vec();
        self.stores.known_up_to = round.accepted().or(self.stores.known_up_to);
        match outcome {
            Err(_) => return Ok(()),
            Ok(Listed::Unconfirmed(found)) => {
                self.found_gone = found;
                return Ok(());
            }
            Ok(Listed::Believed) => {}
        }
        if round.may_mark() {
            self.stores.put_mark(trouble, round.listed_here());
        }
        let listing = if trouble == Trouble::StoreEmpty { Vec::new() } else { listing };
        while let Some(ledger) = round.next_candidate() {
            if trouble == Trouble::ReadFails && self.random.chance(0.5) {
                return Ok(());
            }
            let changes = engine.changes(ledger);
            let is_there = listing.binary_search(&ledger).is_ok();
            if trouble == Trouble::StoreEmpty && self.in_metadata().contains(&ledger) {
                return Err(format!("IB16: ledger {ledger} is dropped on the word of an empty store"));
            }
            let look = if is_there { SecondLook::Present } else { SecondLook::Absent };
            if !round.is_garbage(&look) {
                continue;
            }
            if is_there {
                return Err(format!("IB16: ledger {ledger} exists and is dropped ({trouble:?})"));
            }
            self.condemned.push((ledger, changes, self.ghost.last_submission()));
        }
        if self.random.chance(0.5) { self.remove_condemned() } else { Ok(()) }
    }

    /// The removals of a round: by now a ledger may have been created again under the same id, and written to (IB2).
    pub(super) fn remove_condemned(&mut self) -> Check {
        let engine = self.machine().engine.clone();
        for (ledger, changes, submission) in std::mem::take(&mut self.condemned) {
            if engine.presence(ledger) != LedgerPresence::Known {
                continue;
            }
            let was_acked_since = self.ghost.acked(ledger).iter().any(|(_, sent)| *sent > submission);
            let life = self.ghost.on_remove_submitted(ledger);
            let op = self.op(Op::Remove { ledger, life });
            if !engine.remove_unchanged(ledger, changes, self.inbox.waiter(op)) {
                self.ops.remove(&op);
                self.ghost.on_remove_refused(ledger);
            } else if was_acked_since {
                return Err(format!(
                    "IB2: ledger {ledger} is removed with what was acknowledged after metadata was read"
                ));
            }
        }
        Ok(())
    }

    fn list(
        &mut self,
        round: &mut GarbageRound,
        listing: &[LedgerId],
        trouble: Trouble,
    ) -> Result<Listed, Doubt> {
        let cut = match trouble {
            Trouble::ListingFails | Trouble::ListingPartial => {
                self.random.below(listing.len() as u64 + 1) as usize
            }
            Trouble::ListingEmpty | Trouble::StoreEmpty => 0,
            Trouble::No | Trouble::ReadFails | Trouble::OtherCluster => listing.len(),
        };
        for range in listing[..cut].chunks(1 + self.random.below(4) as usize) {
            round.on_range(range)?;
        }
        if trouble == Trouble::ListingFails
            && !self.profile.canaries.has(bindery_io::canary::Canary::M21ListingBelieved)
        {
            return Err(Doubt::Metadata("the listing failed".to_owned()));
        }
        let next_id = if self.random.chance(0.5) { LedgerId::new(1 << 40) } else { None };
        let Stores { mark, known, mark_of_empty, next_of_empty, .. } = &mut self.stores;
        let (has_mark, next_id) = match trouble {
            Trouble::StoreEmpty => {
                let jump = if self.checks.chance(0.2) { 1 << 40 } else { self.checks.below(5000) as i64 };
                *next_of_empty += jump;
                (*mark_of_empty == Some(*known), LedgerId::new(*next_of_empty))
            }
            _ => (mark == known, next_id),
        };
        round.on_listed(Evidence { is_member: true, has_mark, next_id })
    }
}
