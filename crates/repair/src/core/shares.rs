//! Which marked ledgers a worker looks at, so that all workers of a cluster together look at each about once.
//!
//! ```text
//! marks --> this worker's share -------------------------------> looked at at once --.
//!      '--> those of others, listed often enough, by place --> looked at ahead ------+--> RepairQueue
//! ```
//!
//! Each process that repairs has a vote. Votes and a ledger's id give an order of the workers for each ledger (rendezvous hashing): it is in
//! the share of the first one, and others have it ahead at their place. When a worker comes or goes, only its share is divided anew.
//!
//! # Invariants
//! 1. No mark is left because the worker whose share it is in does not repair it: it is away, slow, of another kind, or its bookie cannot
//!    take the copies. Whoever has nothing to do looks ahead, those in the second place first.
//! 2. Danger comes first in the whole cluster: a worker that has repaired the endangered ledgers of its share looks at all those ahead that
//!    it is the second for, before it goes on with the others of its share, and further as long as it finds endangered ones.
//! 3. Looking ahead costs a part of the repairs that were made, and [`AHEAD`] marks with each listing while there is nothing to do. So it
//!    does not grow with the number of workers.
//!
//! 4. A mark is looked at ahead when it was listed once for each worker that comes before: most are repaired before that by those whose turn it
//!    is, and the others do not meet at their locks. A few ([`FEW`]) are looked at by all workers at once.
//!
//! # Limits     about 50 bytes for each mark of the last listing

use std::collections::{BTreeMap, BTreeSet};

use bindery_types::LedgerId;

use super::danger::hash;

/// Marks that are looked at ahead in one go.
pub const AHEAD: usize = 16;
/// Marks that may be looked at ahead, beyond those that this worker is the second for, when no endangered ledger is known any more.
const BEYOND_DANGER: usize = 4 * AHEAD;
/// Repairs of its share for which a worker that has enough to do looks at one mark ahead.
const REPAIRS_FOR_ONE: usize = 4;
/// Marks that a worker with nothing to do may look at for each ledger of others that it repaired: one in four is to be for it.
const FOR_A_REPAIR: usize = 4;
/// Of these, what is kept.
const KEPT_MAX: usize = 4 * AHEAD;
/// After so many listings a worker with nothing to do has looked at all marks.
const LISTINGS_FOR_ALL: usize = 256;
/// So few marks, divided by the number of workers, are looked at by all of them at once: to wait for each other would take longer than the
/// repairs.
const FEW: usize = 36;
/// A ledger with so many live copies or fewer is endangered.
const ENDANGERED: usize = 1;

/// A mark in the share of another worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ahead {
    /// How many workers come before this one.
    place: usize,
    order: u64,
    ledger: LedgerId,
}

/// See the module.
#[derive(Debug)]
pub struct Shares {
    /// Hash of this worker's vote; `None` while it has none.
    own: Option<u64>,
    /// Of the others' votes.
    others: Vec<u64>,
    /// Marks of the last listing that may be looked at ahead: the next one last.
    ahead: Vec<Ahead>,
    /// Marks of others that were listed last and that this worker does not know: how often each was listed before.
    listed: BTreeMap<LedgerId, u32>,
    /// Some of these were gone at the last listing.
    others_repaired: bool,
    /// Repairs of the share that no mark was looked at for yet.
    repairs: usize,
    /// Marks that may be looked at because there may be endangered ledgers among them.
    for_danger: usize,
    /// Marks that may be looked at while there is nothing to do.
    for_work: usize,
    /// Whether an endangered ledger was the next one.
    is_in_danger: bool,
    /// The last ledger of the share that was given out.
    given_upto: Option<LedgerId>,
}

impl Shares {
    /// Of a worker that has all ledgers in its share, until [`on_votes`](Self::on_votes) says otherwise.
    pub fn alone() -> Shares {
        Shares {
            own: Some(0),
            others: Vec::new(),
            ahead: Vec::new(),
            listed: BTreeMap::new(),
            others_repaired: false,
            repairs: 0,
            for_danger: AHEAD,
            for_work: 0,
            is_in_danger: false,
            given_upto: None,
        }
    }

    /// All votes, and this worker's, if it has one.
    pub fn on_votes(&mut self, all: &[String], own: Option<&str>) {
        let hash_of = |name: &str| hash(name.bytes());
        let is_own = |name: &&String| own == Some(name.as_str());
        self.own = all.iter().find(is_own).map(|name| hash_of(name));
        self.others = all.iter().filter(|name| !is_own(name)).map(|name| hash_of(name)).collect();
    }

    /// How many workers come before this one in the order of a ledger.
    fn place(&self, ledger: LedgerId) -> usize {
        let Some(own) = self.own else { return self.others.len().max(1) };
        let own = weight(own, ledger);
        self.others.iter().filter(|other| weight(**other, ledger) > own).count()
    }

    /// Takes a listing in. `is_part`: it is one part of the marks, and the listing before was of another. Returns ledgers of this worker's
    /// share to look at now, `max` at most and in turns if there are more, of those that it does not know.
    pub fn on_marks(
        &mut self,
        marked: &BTreeSet<LedgerId>,
        is_part: bool,
        knows: impl Fn(LedgerId) -> bool,
        max: usize,
    ) -> Vec<LedgerId> {
        self.ahead.clear();
        let before = std::mem::take(&mut self.listed);
        self.others_repaired = !is_part && before.keys().any(|ledger| !marked.contains(ledger));
        let unknown: Vec<LedgerId> = marked.iter().copied().filter(|ledger| !knows(*ledger)).collect();
        let are_few = !is_part && unknown.len() * (self.others.len() + 1) <= FEW;
        let mut share = Vec::new();
        for ledger in unknown {
            let place = self.place(ledger);
            if place == 0 || are_few {
                share.push(ledger);
                continue;
            }
            let times = before.get(&ledger).map_or(0, |times| times.saturating_add(1));
            self.listed.insert(ledger, times);
            if is_part || place <= times as usize {
                let order = weight(self.own.unwrap_or_default(), ledger);
                self.ahead.push(Ahead { place, order, ledger });
            }
        }
        self.ahead.sort_unstable_by(|one, other| other.cmp(one));
        // Of a time in danger that is over nothing more is spent.
        self.for_danger = self.for_danger.min(self.ahead.len().max(KEPT_MAX));
        let behind = self.given_upto.map_or(0, |upto| share.partition_point(|ledger| *ledger <= upto));
        share.rotate_left(behind);
        share.truncate(max);
        self.given_upto = share.last().copied().or(self.given_upto);
        share
    }

    /// Marks to look at ahead now, [`AHEAD`] at most. `next`: live copies of the ledger that this worker repairs next, `None` when none
    /// waits. `room`: how many it could begin now.
    pub fn look_ahead(&mut self, next: Option<usize>, room: usize) -> Vec<LedgerId> {
        if next.is_some_and(|copies| copies <= ENDANGERED) {
            self.is_in_danger = true;
            return Vec::new();
        }
        if self.is_in_danger && !self.ahead.is_empty() {
            // Invariant 2.
            self.is_in_danger = false;
            let lowest = self.ahead.last().map_or(0, |ahead| ahead.place);
            let nearest = self.ahead.len() - self.ahead.partition_point(|ahead| ahead.place > lowest);
            self.for_danger = self.for_danger.max(nearest + BEYOND_DANGER);
        }
        let may_look = match next {
            // In batches: each look is a round trip.
            Some(_) if self.for_danger < AHEAD => 0,
            Some(_) => self.for_danger,
            // Others may have repaired what is looked at too early.
            None => (self.for_danger + self.for_work).min(room),
        };
        let count = may_look.min(AHEAD).min(self.ahead.len());
        let of_work = if next.is_none() { count.min(self.for_work) } else { 0 };
        self.for_work -= of_work;
        self.for_danger -= count - of_work;
        self.ahead.split_off(self.ahead.len() - count).into_iter().rev().map(|ahead| ahead.ledger).collect()
    }

    /// Whether the last listing shows that other workers repaired ledgers that this worker does not know.
    pub fn others_repaired(&self) -> bool {
        self.others_repaired
    }

    /// A ledger was repaired.
    pub fn on_repaired(&mut self, ledger: LedgerId) {
        // That it is gone tells nothing of others.
        self.listed.remove(&ledger);
        if self.place(ledger) > 0 {
            self.for_work = (self.for_work + FOR_A_REPAIR).min(KEPT_MAX);
            return;
        }
        self.repairs += 1;
        if self.repairs >= REPAIRS_FOR_ONE {
            self.repairs = 0;
            self.for_danger = self.for_danger.max((self.for_danger + 1).min(KEPT_MAX));
        }
    }

    /// The marks were listed, and no ledger waits for this worker.
    pub fn on_idle_listing(&mut self) {
        // A listing of many marks comes rarely.
        self.for_work = self.for_work.max(AHEAD).max(self.ahead.len() / LISTINGS_FOR_ALL);
    }
}

/// A worker with a higher one comes earlier in the order of a ledger.
fn weight(vote: u64, ledger: LedgerId) -> u64 {
    // The finalizer of SplitMix64.
    let mixed = vote ^ ledger.get().unsigned_abs().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests;
