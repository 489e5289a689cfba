//! Begins ledgers, and charges for the memory that a shard's ledgers take. The invariants are those of [`crate::ledger_budget`].

use super::Shard;
use crate::ledger::{LedgerState, TierState};
use crate::ledger_budget::Beginning;
use bindery_types::LedgerId;
use std::collections::hash_map::Entry;

/// Bytes of the map of ledgers for each that it has room for.
const SLOT_BYTES: usize = size_of::<(LedgerId, Box<LedgerState>)>() + 1;
/// Fewest slots of a map.
const SLOTS_MIN: usize = 3;
/// Bytes of a set for each ledger in it: its nodes are half empty.
const SET_BYTES: usize = size_of::<LedgerId>() * 2;

impl Shard {
    /// True when the ledger is known, or there is room for one more.
    pub(crate) fn may_begin(&self, ledger: LedgerId, beginning: Beginning) -> bool {
        if self.ledgers.contains_key(&ledger) {
            return true;
        }
        let is_full = self.ledgers.len() == self.ledgers.capacity();
        let more_slots = if is_full { self.ledgers.capacity().max(SLOTS_MIN) * SLOT_BYTES } else { 0 };
        self.config.ledger_budget.has_room((LedgerState::BYTES + more_slots) as u64, beginning)
    }

    /// True when the ledger takes no more memory with an explicit LAC of so many bytes, or there is room for that.
    pub(super) fn may_keep_lac(&self, ledger: LedgerId, length: usize) -> bool {
        let before = self.ledgers.get(&ledger).map_or(0, |state| state.explicit_lac_charge());
        let more = LedgerState::charge_of_lac(length).saturating_sub(before);
        more == 0 || self.config.ledger_budget.has_room(more as u64, Beginning::Ordinary)
    }

    /// True when something is known of the ledger's entries in object storage, or there is room for that.
    pub(super) fn may_be_tiered(&self, ledger: LedgerId) -> bool {
        let is_tiered = self.ledgers.get(&ledger).is_some_and(|state| state.tier.is_some());
        let more = (TierState::BYTES + SET_BYTES) as u64;
        is_tiered || self.config.ledger_budget.has_room(more, Beginning::Ordinary)
    }

    /// The state of a ledger, which begins if it was not known. A request that begins one asks [`Shard::may_begin`] before.
    pub(super) fn known_or_begun(&mut self, ledger: LedgerId) -> &mut LedgerState {
        if let Entry::Vacant(place) = self.ledgers.entry(ledger) {
            let state = place.insert(LedgerState::boxed(None));
            // It may have had a fence that is forgotten: its writer needs a verdict of metadata from now on, as that of a ledger
            // that came back.
            if self.fences_forgotten.contains(ledger) && !self.vouched.contains(&ledger) {
                state.life = 2;
            }
            self.charge_ledgers();
        }
        self.ledgers.get_mut(&ledger).expect("it began if it was not known")
    }

    /// Computes the bytes of memory that all ledgers of this shard take now, and charges the budget for them instead of those before.
    pub(super) fn charge_ledgers(&mut self) {
        let states = self.ledgers.len() * LedgerState::BYTES + self.ledgers.capacity() * SLOT_BYTES;
        let in_sets = self.removed.len() + self.untrimmed.len() + self.vouched.len();
        let tiered = self.tiered_count * TierState::BYTES;
        let now = (states + in_sets * SET_BYTES + tiered + self.explicit_lac_bytes) as u64;
        self.config.ledger_budget.recharge(std::mem::replace(&mut self.charged, now), now);
    }

    /// Adjusts the sum after the explicit LAC of a ledger changed; `before` is what that was charged.
    pub(super) fn recount_explicit_lac(&mut self, ledger: LedgerId, before: usize) {
        self.explicit_lac_bytes += self.ledgers[&ledger].explicit_lac_charge();
        self.explicit_lac_bytes -= before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Add, Answer, MetadataVerdict, Origin, Refusal};
    use crate::ledger_budget::EXPLICIT_LAC_BYTES_MAX;
    use crate::shard::tier::tests::shard_with;
    use crate::shard::{DirectStep, Gate, Reserve, Taken, Word};
    use bindery_storage::{Generation, LedgerRecord};
    use bindery_types::tier::{ObjectId, ObjectRef, Reconciliation, TierExtent};
    use bindery_types::{EntryId, MasterKey};
    use std::sync::atomic::AtomicU64;

    const KEY: MasterKey = MasterKey::new([1; 20]);
    const LIMIT: u64 = 32 << 10;

    fn id(ledger: i64) -> LedgerId {
        LedgerId::new(ledger).unwrap()
    }

    fn add_as(
        shard: &mut Shard,
        ledger: i64,
        is_recovery: bool,
        is_high_priority: bool,
    ) -> Result<(), Refusal> {
        let (reserve, refused) = (Reserve::unbounded(), AtomicU64::new(0));
        let gate =
            Gate { is_read_only: false, takes_high_priority: true, reserve: &reserve, refused: &refused };
        let add = Add {
            origin: Origin { connection: 0, txn: 0, tag: 0 },
            ledger: id(ledger),
            entry: EntryId::FIRST,
            last_add_confirmed: None,
            key: KEY,
            body: &[0; 32],
            is_recovery,
            is_high_priority,
        };
        let taken = shard.add(&add, &gate, Word::Never);
        let outcome = shard.adds.pop().unwrap().result;
        assert_eq!(taken, Ok(if outcome.is_ok() { Taken::Answered } else { Taken::Refused }));
        outcome
    }

    fn add(shard: &mut Shard, ledger: i64) -> Result<(), Refusal> {
        add_as(shard, ledger, false, true)
    }

    /// `None`: it is on its way.
    fn now(answer: Answer) -> Option<Result<(), Refusal>> {
        match answer {
            Answer::Now(_, outcome) => Some(outcome),
            Answer::Later => None,
        }
    }

    fn fence(shard: &mut Shard, ledger: i64) -> Option<Result<(), Refusal>> {
        now(shard.fence(Beginning::Urgent, id(ledger), KEY, Box::new(|_| {})))
    }

    fn write_lac(shard: &mut Shard, ledger: i64, lac: i64, size: usize) -> Option<Result<(), Refusal>> {
        let mut body = vec![0; size];
        body[8..16].copy_from_slice(&lac.to_be_bytes());
        now(shard.write_lac(id(ledger), KEY, EntryId::new(lac), &body, false, Box::new(|_| {})))
    }

    fn restore_from_tier(shard: &mut Shard, ledger: i64) -> Result<(), Refusal> {
        shard.restore_from_tier(&one_object(ledger)).0.result
    }

    fn reconcile(shard: &mut Shard, ledger: i64) -> Result<(), Refusal> {
        shard.reconcile(&one_object(ledger)).0.result
    }

    /// The first entry of a ledger, in an object.
    fn one_object(ledger: i64) -> Reconciliation {
        let object = ObjectRef {
            id: ObjectId::new(1, [0; 10]),
            length_bytes: 9,
            footer_offset: 1,
            footer_crc: 0,
            etag_crc: 0,
        };
        let extents = vec![TierExtent { first: EntryId::FIRST, last: EntryId::FIRST, object }];
        Reconciliation { ledger: id(ledger), last: Some(EntryId::FIRST), extents, created_ms: None }
    }

    fn used(shard: &Shard) -> u64 {
        shard.config.ledger_budget.memory().used_bytes
    }

    /// Begins ledgers from `first` on until one is refused; returns that.
    fn fill(shard: &mut Shard, first: i64, mut begin: impl FnMut(&mut Shard, i64) -> bool) -> i64 {
        let refused = (first..first + 10_000).find(|ledger| !begin(shard, *ledger));
        refused.expect("there is a limit")
    }

    /// Invariants 1 to 3 of the budget, by every way in which a peer begins a ledger.
    #[test]
    fn from_the_limit_on_no_ledger_begins_and_those_that_are_known_go_on() {
        let mut shard = shard_with(LIMIT);
        let with_lac = 1 << 40;
        assert_eq!(write_lac(&mut shard, with_lac, 1, 16), None);
        let refused = fill(&mut shard, 0, |shard, ledger| add(shard, ledger) == Ok(()));
        assert!((150..200).contains(&refused), "{refused} ledgers in {LIMIT} bytes");
        assert!(used(&shard) <= LIMIT && used(&shard) > LIMIT - 1024, "{}", used(&shard));
        let read_only = Err(Refusal::ReadOnly);
        assert_eq!(add(&mut shard, refused), read_only);
        assert_eq!(
            add_as(&mut shard, refused, true, false),
            read_only,
            "a re-replication looks for another bookie"
        );
        assert_eq!(write_lac(&mut shard, refused, 1, 16), Some(read_only));
        assert_eq!(restore_from_tier(&mut shard, refused), Err(Refusal::TooManyRequests));
        assert_eq!(shard.on_verdict(id(refused), KEY, false, MetadataVerdict::OpenHere), read_only);
        assert!(shard.vouched.is_empty(), "a set without end");
        assert_eq!(shard.ledgers.len() as i64, refused + 1);
        // Those that are here.
        assert_eq!(
            (add(&mut shard, 0), write_lac(&mut shard, with_lac, 2, 16), fence(&mut shard, 2)),
            (Ok(()), None, None)
        );
        // They take no more memory: the room beyond the limit is for recoveries.
        let later = Err(Refusal::TooManyRequests);
        assert_eq!(write_lac(&mut shard, with_lac, 3, 200), Some(later));
        assert_eq!(write_lac(&mut shard, 1, 1, 16), Some(later));
        assert_eq!(reconcile(&mut shard, 0), later);
        assert_eq!(shard.on_verdict(id(3), KEY, false, MetadataVerdict::OpenHere), Ok(()));

        // Recoveries have more, and an end as well.
        assert_eq!(add_as(&mut shard, refused, true, true), Ok(()));
        let last = fill(&mut shard, refused + 1, |shard, ledger| fence(shard, ledger).is_none());
        assert!(used(&shard) <= LIMIT + LIMIT / 8 && used(&shard) > LIMIT, "{}", used(&shard));
        assert_eq!(fence(&mut shard, last), Some(Err(Refusal::TooManyRequests)), "as without a chunk");
        assert_eq!(add_as(&mut shard, last, true, true), read_only);
        assert_eq!(now(shard.fence(Beginning::Known, id(last), KEY, Box::new(|_| {}))), None);
        assert_eq!(add_as(&mut shard, last, true, true), Ok(()), "so that it can be closed");
        let last = last + 1;
        assert_eq!((add(&mut shard, 0), fence(&mut shard, 4)), (Ok(()), None));
        assert!(shard.config.ledger_budget.memory().refused >= 8);

        shard.fail();
        let direct = shard.direct_fence(id(last), KEY);
        assert!(matches!(direct, DirectStep::Answer(Err(Refusal::TooManyRequests))));
        assert!(matches!(shard.direct_fence(id(5), KEY), DirectStep::Commit(_)));
    }

    fn removed(ledger: i64) -> LedgerRecord {
        let mut state = LedgerState::new(None);
        state.remove(0, 0);
        LedgerRecord { hidden_below: Generation(0), ..state.snapshot(id(ledger)) }
    }

    /// Invariants 3 and 4: a start refuses nothing, and the memory of removed ledgers counts until they are forgotten.
    #[test]
    fn removed_ledgers_count_until_they_are_forgotten() {
        let mut shard = shard_with(LIMIT);
        let known: Vec<LedgerId> = (0..500).map(id).collect();
        known.iter().for_each(|ledger| shard.restore(&removed(ledger.get())));
        shard.begin_generation(1);
        assert!(used(&shard) > 2 * LIMIT, "{}", used(&shard));
        assert_eq!(add(&mut shard, 1000), Err(Refusal::ReadOnly));
        assert_eq!(fence(&mut shard, 1000), Some(Err(Refusal::TooManyRequests)));
        assert_eq!(fence(&mut shard, 0), None, "it is known");
        let begun = used(&shard);
        assert_eq!(shard.forget(0, &known, &mut Vec::new()).len(), 499);
        assert!(used(&shard) < begun / 4, "{} of {begun}", used(&shard));
        shard.end_forgetting(true);
        assert_eq!(add(&mut shard, 1000), Ok(()));
    }

    /// The memory of one ledger has a bound: of its explicit LACs one stays, which is short.
    #[test]
    fn explicit_lacs_are_short_and_charged_for() {
        let mut shard = shard_with(LIMIT);
        assert_eq!(add(&mut shard, 1), Ok(()));
        let before = used(&shard);
        assert_eq!(write_lac(&mut shard, 1, 1, EXPLICIT_LAC_BYTES_MAX + 1), Some(Err(Refusal::BadRequest)));
        for lac in 1..100 {
            assert_eq!(write_lac(&mut shard, 1, lac, EXPLICIT_LAC_BYTES_MAX), None);
        }
        shard.cut();
        let with_lac = used(&shard) - before;
        assert!((256..512).contains(&with_lac), "{with_lac} bytes");
        let state = shard.ledgers.get_mut(&id(1)).unwrap();
        assert_eq!(state.explicit_lacs.len(), 99, "none is durable");
        state.rest(shard.sequence);
        assert_eq!(state.explicit_lacs.len(), 1);
        assert!(shard.remove(id(1), Box::new(|_| {})).is_later());
        shard.charge_ledgers();
        assert!(used(&shard) < before + 64, "{} after {before}", used(&shard));
    }
}
