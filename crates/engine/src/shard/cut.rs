//! The journal's side: the formed group, the room that adds still have in it, a cut, and the effects of its durability
//! or failure. Shard invariants 1, 3, 4 and 5.

use super::{Shard, Waits};
use crate::api::{AddDone, Refusal, Waiter};
use crate::config::Admission;
use bindery_io::BLOCK_SIZE_BYTES;
use bindery_io::canary::Canary;
use bindery_io::chunk::{Lane, OpenChunk};
use bindery_journal::Part;
use bindery_journal::record::HEADER_SIZE_BYTES;
use bindery_types::{EntryId, LedgerId};
use std::collections::HashSet;

/// What a shard contributes to one group.
pub(crate) struct ShardCut {
    pub(crate) parts: Vec<Part>,
    /// Everything up to this sequence is in the cut.
    pub(crate) upto: u64,
    pub(crate) adds: Vec<AddDone>,
    /// Waiters of FORCE_LEDGER: they need a sync even when the journal does not.
    pub(crate) forces: Vec<Waiter>,
}

impl Shard {
    /// True when a cut would hold something.
    pub(crate) fn has_work(&self) -> bool {
        self.formed_bytes > 0 || !self.adds.is_empty() || !self.forces.is_empty() || !self.apart.is_empty()
    }

    /// Most bytes that a cut would take in a group: of records, and for each part a block of alignment.
    pub(crate) fn cut_bytes_max(&self) -> u64 {
        if self.formed_bytes == 0 {
            return 0;
        }
        (self.formed_bytes + (self.parts.len() + 1) * 2 * BLOCK_SIZE_BYTES) as u64
    }

    /// True when an entry of any size would find its place after a cut.
    pub(crate) fn has_room(&self) -> bool {
        self.refuses_all() || (self.offered_bytes > 0 && self.has_chunk(Lane::Normal))
    }

    /// True when an entry of any size would find a chunk.
    pub(crate) fn has_chunk(&self, lane: Lane) -> bool {
        let largest = self.config.entry_bytes_max + HEADER_SIZE_BYTES;
        self.pool.has_free(lane) || self.open.as_ref().is_some_and(|open| open.remaining() >= largest)
    }

    /// Records that wait for the next cut.
    pub(crate) fn formed_records(&self) -> usize {
        self.formed_records
    }

    /// How much has formed, in the unit that admission counts: bytes or records.
    pub(crate) fn formed(&self) -> usize {
        match self.config.admission {
            Admission::Bytes => self.formed_bytes,
            Admission::Writes(_) => self.formed_records,
        }
    }

    /// How much ordinary adds may place until the next cut, in the unit that admission counts.
    pub(crate) fn offered(&self) -> usize {
        match self.config.admission {
            Admission::Bytes => self.offered_bytes,
            Admission::Writes(most) => most,
        }
    }

    /// Called before a batch: with a grant it may place as much as that is worth, without one what is neither formed nor reserved by
    /// grants. All are in the unit that admission counts.
    pub(crate) fn admit(&mut self, grant: Option<usize>, reserved: usize) {
        self.admitted = match grant {
            Some(cost) => self.formed() + cost,
            None => self.offered().saturating_sub(reserved),
        };
    }

    /// True when adds are refused, so that nobody has to wait for room.
    pub(crate) fn refuses_all(&self) -> bool {
        self.takes_no_adds()
    }

    /// Sets how many bytes ordinary adds may place until the next cut. Recovery adds and fences are not bound by it.
    pub(crate) fn offer(&mut self, bytes: usize) {
        self.offered_bytes = bytes.min(self.config.formed_bytes_max);
    }

    /// Takes everything placed since the last cut (invariant 5).
    pub(crate) fn cut(&mut self) -> ShardCut {
        debug_assert!(self.cut == self.durable || self.is_failed, "one cut in flight");
        for (done, lac, key, body) in std::mem::take(&mut self.apart) {
            if self.insert(&done, lac, key, &body, Lane::Reserved).is_err() {
                self.answer_unplaced(AddDone { result: Err(Refusal::TooManyRequests), ..done });
            }
        }
        self.close_part();
        self.cut = self.sequence;
        (self.formed_bytes, self.formed_records, self.formed_update_bytes) = (0, 0, 0);
        self.charge_ledgers();
        self.unplaced_in_flight = std::mem::take(&mut self.unplaced);
        ShardCut {
            parts: std::mem::take(&mut self.parts),
            upto: self.sequence,
            adds: std::mem::take(&mut self.adds),
            forces: std::mem::take(&mut self.forces),
        }
    }

    /// For a journal that cannot write a group now, because it cannot make another file: takes the refusals that came before all
    /// placed adds (invariant 4), and nothing that a group would have to make durable.
    pub(crate) fn cut_refusals(&mut self) -> ShardCut {
        let refused = self.adds.iter().take_while(|add| add.result.is_err()).count();
        let adds = self.adds.drain(..refused).collect();
        // `unplaced` begins with the same entries, in the same order.
        self.unplaced.drain(..refused.min(self.unplaced.len()));
        ShardCut { parts: Vec::new(), upto: self.cut, adds, forces: Vec::new() }
    }

    /// Takes the refusals that need not wait for the cut in flight, whose write hangs: those to adds of entries for which no older add
    /// waits for its answer (invariant 4).
    pub(crate) fn take_refusals_ahead(&mut self) -> Vec<AddDone> {
        if self.unplaced.is_empty() {
            return Vec::new();
        }
        let mut held: HashSet<_> = self.unplaced_in_flight.iter().copied().collect();
        let (mut ahead, mut kept) = (Vec::new(), Vec::new());
        for done in std::mem::take(&mut self.adds) {
            let entry = (done.ledger, done.entry);
            let waits = held.contains(&entry) || self.has_undurable(done.ledger, done.entry);
            if done.result.is_err() && (!waits || self.config.canaries.has(Canary::M48RefusalOvertakes)) {
                ahead.push(done);
            } else {
                held.insert(entry);
                kept.push(done);
            }
        }
        self.adds = kept;
        self.unplaced.retain(|entry| held.contains(entry));
        ahead
    }

    /// True when a copy of the entry may wait to become durable.
    fn has_undurable(&self, ledger: LedgerId, entry: EntryId) -> bool {
        let Some(state) = self.ledgers.get(&ledger) else { return false };
        // Entries from before a removal cannot be looked up any more, so one of them may be on its way.
        state.removed_at > self.durable
            || state.records.find(entry.get(), self.durable).undurable.is_some()
            || self.caches().any(|frozen| frozen.find(ledger, entry, self.durable).undurable.is_some())
    }

    /// The group that held the cut up to `upto` is durable. Returns the waiters and polls to fire.
    pub(crate) fn on_durable(&mut self, upto: u64) -> Vec<Waiter> {
        assert!(upto == self.cut && upto >= self.durable, "durable {upto}, cut {}", self.cut);
        self.durable = upto;
        self.unplaced_in_flight.clear();
        let (ready, parked): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiters).into_iter().partition(|(sequence, _)| *sequence <= upto);
        self.waiters = parked;
        let mut fired: Vec<Waiter> = ready.into_iter().map(|(_, waiter)| waiter).collect();
        let ledgers = &mut self.ledgers;
        self.raised.retain(|ledger| {
            let state = ledgers.get_mut(ledger).expect("a polled ledger is known");
            let shown = state.last_add_confirmed.shown(upto);
            let is_fenced_now = state.wake_polls_at.take_if(|fence| *fence <= upto).is_some();
            fired.extend(if is_fenced_now { state.polls.take() } else { state.polls.take_below(shown) });
            let may_follow = state.last_add_confirmed.placed() > shown || state.wake_polls_at.is_some();
            !state.polls.is_empty() && may_follow
        });
        fired
    }

    /// The journal failed: nothing that is not durable will ever be. Returns what waits, to be refused.
    pub(crate) fn fail(&mut self) -> (Vec<AddDone>, Vec<Waiter>) {
        // Once: nothing is placed after it, so later refusals find nothing to forget.
        if !std::mem::replace(&mut self.is_failed, true) {
            let durable = self.durable;
            self.ledgers.values_mut().for_each(|state| state.forget_above(durable));
            self.explicit_lac_bytes = self.ledgers.values().map(|state| state.explicit_lac_charge()).sum();
        }
        self.parts.clear();
        self.unplaced.clear();
        self.unplaced_in_flight.clear();
        self.formed_bytes = 0;
        self.part_start = self.open.as_ref().map_or(0, OpenChunk::len);
        (self.part_records, self.part_headers_crc) = (0, 0);
        self.apart.clear();
        let waiters = std::mem::take(&mut self.waiters).into_iter().map(|(_, w)| w);
        let waiters = waiters.chain(std::mem::take(&mut self.forces)).collect();
        (std::mem::take(&mut self.adds), waiters)
    }

    /// True when the journal failed: nothing can be placed any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.is_failed
    }

    pub(super) fn takes_no_adds(&self) -> bool {
        self.is_failed || self.refuses_adds || self.waits != Waits::No
    }

    /// While something waits for space or a descriptor, the shard takes no adds and explicit LACs, except for recoveries (see `recovery`).
    pub(crate) fn set_waits(&mut self, waits: Waits) {
        self.waits = waits;
    }

    /// Ledger storage or a journal failed: the shard takes no adds and explicit LACs any more.
    pub(crate) fn refuse_adds(&mut self) {
        self.refuses_adds = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Add, Origin};
    use crate::shard::recovery::Reserve;
    use crate::shard::tier::tests::shard;
    use crate::shard::{Gate, Word};
    use bindery_types::MasterKey;
    use std::sync::atomic::AtomicU64;

    const KEY: MasterKey = MasterKey::new([1; 20]);

    fn ledger(id: i64) -> LedgerId {
        LedgerId::new(id).unwrap()
    }

    fn add(ledger: LedgerId, entry: i64) -> Add<'static> {
        Add {
            origin: Origin { connection: 0, txn: 0, tag: 0 },
            ledger,
            entry: EntryId::new(entry).unwrap(),
            last_add_confirmed: None,
            key: KEY,
            body: &[0; 64],
            is_recovery: false,
            is_high_priority: false,
        }
    }

    fn place(shard: &mut Shard, ledger: LedgerId, entry: i64) {
        let (reserve, refused) = (Reserve::unbounded(), AtomicU64::new(0));
        let gate =
            Gate { is_read_only: false, takes_high_priority: true, reserve: &reserve, refused: &refused };
        shard.admit(None, 0);
        shard.add(&add(ledger, entry), &gate, Word::Never).unwrap();
    }

    fn refuse(shard: &mut Shard, ledger: LedgerId, entry: i64) {
        shard.refuse(&[add(ledger, entry)], Refusal::ReadOnly);
    }

    fn taken(shard: &mut Shard) -> Vec<(i64, i64)> {
        shard.take_refusals_ahead().iter().map(|done| (done.ledger.get(), done.entry.get())).collect()
    }

    /// While the journal waits for space, refusals leave without a cut, for as long as that lasts.
    #[test]
    fn nothing_is_remembered_of_refusals_that_left_without_a_cut() {
        let mut shard = shard();
        for entry in 0..100 {
            refuse(&mut shard, ledger(1), entry);
            assert_eq!(shard.cut_refusals().adds.len(), 1);
        }
        assert!(shard.unplaced.is_empty());
    }

    /// Shard invariant 4, of what is in the cut in flight, in the one that forms, and refused.
    #[test]
    fn a_refusal_goes_ahead_of_all_but_older_adds_of_its_entry() {
        let mut shard = shard();
        place(&mut shard, ledger(1), 0);
        refuse(&mut shard, ledger(1), 5);
        let upto = shard.cut().upto;
        place(&mut shard, ledger(1), 1);
        for entry in [0, 1, 2, 5, 2] {
            refuse(&mut shard, ledger(1), entry);
        }
        assert_eq!(taken(&mut shard), [(1, 2), (1, 2)]);
        assert_eq!(taken(&mut shard), [], "the others stay");
        let _ = shard.on_durable(upto);
        assert_eq!(taken(&mut shard), [(1, 0), (1, 5)]);
        let left: Vec<_> =
            shard.cut().adds.iter().map(|done| (done.entry.get(), done.result.is_ok())).collect();
        assert_eq!(left, [(1, true), (1, false)]);
    }

    /// Entries from before a removal are out of sight while their answers may be on their way.
    #[test]
    fn a_refusal_waits_for_adds_from_before_a_removal() {
        let mut shard = shard();
        place(&mut shard, ledger(1), 0);
        let first = shard.cut().upto;
        assert!(shard.remove(ledger(1), Box::new(|_| {})).is_later());
        assert!(shard.revive(ledger(1), KEY, Box::new(|_| {})).is_later());
        refuse(&mut shard, ledger(1), 0);
        assert_eq!(taken(&mut shard), []);
        let _ = shard.on_durable(first);
        let second = shard.cut().upto;
        refuse(&mut shard, ledger(1), 7);
        assert_eq!(taken(&mut shard), []);
        let _ = shard.on_durable(second);
        assert_eq!(taken(&mut shard), [(1, 7)]);
    }
}
