use super::*;
use crate::api::{Add, MetadataVerdict, Origin};
use crate::config::EngineConfig;
use crate::ledger_budget::Beginning;
use crate::ledger_budget::LedgerBudget;
use crate::shard::{Gate, Reserve, ShardConfig, Taken, Word};
use crate::tier::{TierBudget, resolve};
use bindery_io::chunk::ChunkPool;
use bindery_storage::{Generation, StorageMemory};
use bindery_types::MasterKey;
use bindery_types::tier::{ObjectId, ObjectRef};
use proptest::prelude::*;
use std::sync::atomic::AtomicU64;

fn extent(first: i64, last: i64, of: u64) -> TierExtent {
    let id = ObjectId::new(of, [0; 10]);
    let object = ObjectRef { id, length_bytes: 9, footer_offset: 1, footer_crc: 0, etag_crc: 0 };
    TierExtent { first: EntryId::new(first).unwrap(), last: EntryId::new(last).unwrap(), object }
}

pub(in crate::shard) fn shard() -> Shard {
    shard_with(u64::MAX)
}

/// With a limit for the states of ledgers.
pub(in crate::shard) fn shard_with(ledger_bytes_max: u64) -> Shard {
    let config = EngineConfig::default();
    let config = ShardConfig {
        index: 0,
        formed_bytes_max: 1 << 20,
        admission: config.admission,
        parts_max: 8,
        entry_bytes_max: 4 << 10,
        limbo_up_to: None,
        checked_up_to: None,
        canaries: config.canaries,
        ledger_budget: LedgerBudget::new(StorageMemory::new(1 << 20, 1 << 20).index, ledger_bytes_max),
        tier_budget: TierBudget::new(1 << 20),
    };
    Shard::new(config, ChunkPool::new(16 << 10, 8, 2))
}

/// While the tables forget a removed ledger, one of them may fail to, and keep rows of the same epoch. So nothing is reconciled
/// of a ledger that came back meanwhile.
#[test]
fn a_ledger_that_is_being_forgotten_waits_with_its_register() {
    let (mut shard, ledger) = (shard(), LedgerId::new(1).unwrap());
    let mut removed = LedgerState::new(None);
    removed.remove(0, 0);
    let record = LedgerRecord { hidden_below: Generation(0), ..removed.snapshot(ledger) };
    shard.restore(&record);
    assert_eq!(shard.forgettable(0, None, 10), (vec![ledger], None));
    assert_eq!(shard.forget(0, &[ledger], &mut Vec::new()), vec![ledger]);
    assert!(shard.fence(Beginning::Urgent, ledger, MasterKey::new([1; 20]), Box::new(|_| {})).is_later());
    let extents = vec![extent(0, 9, 1)];
    let update = Reconciliation { ledger, last: Some(extents[0].last), extents, created_ms: None };
    assert_eq!(shard.reconcile(&update).0.result, Err(Refusal::TooManyRequests));
    shard.end_forgetting(true);
    assert_eq!(shard.reconcile(&update).0.result, Ok(()));
}

/// The search for its copies, between the two calls, is made without the lock, so changes made meanwhile count.
#[test]
fn a_ledger_that_is_mentioned_since_it_was_listed_is_not_forgotten() {
    let (mut shard, back, gone) = (shard(), LedgerId::new(1).unwrap(), LedgerId::new(2).unwrap());
    for ledger in [back, gone] {
        let mut removed = LedgerState::new(None);
        removed.remove(0, 0);
        shard.restore(&LedgerRecord { hidden_below: Generation(0), ..removed.snapshot(ledger) });
    }
    let both = vec![back, gone];
    assert_eq!(shard.forgettable(0, None, 1), (vec![back], Some(back)));
    assert_eq!(shard.forgettable(0, Some(back), 1), (vec![gone], Some(gone)));
    assert_eq!(shard.forgettable(0, None, 3), (both.clone(), None));
    let key = MasterKey::new([1; 20]);
    assert!(shard.revive(back, key, Box::new(|_| {})).is_later());
    assert_eq!(shard.forget(0, &both, &mut Vec::new()), vec![gone], "it exists");
    assert!(shard.remove(back, Box::new(|_| {})).is_later());
    assert_eq!(shard.forget(0, &both, &mut Vec::new()), [], "its removal is in no table");
    assert_eq!(shard.forgettable(0, None, 3), (vec![], None));
}

fn update(ledger: i64, extents: Vec<TierExtent>) -> Reconciliation {
    let last = extents.last().map(|extent| extent.last);
    Reconciliation { ledger: LedgerId::new(ledger).unwrap(), last, extents, created_ms: None }
}

/// Invariant 6 of [`crate::tier`]: only the extents that were compared are replaced.
#[test]
fn extents_that_came_since_they_were_compared_stay() {
    let (mut shard, ledger) = (shard(), LedgerId::new(1).unwrap());
    assert!(shard.fence(Beginning::Urgent, ledger, MasterKey::new([1; 20]), Box::new(|_| {})).is_later());
    let of = |first, last, object| update(1, vec![extent(first, last, object)]);
    assert_eq!(shard.reconcile(&of(0, 9, 1)).0.result, Ok(()));
    settle(&mut shard);
    let seen = shard.tiered(ledger).unwrap().update;
    let compared = |reconciliation| Compared { reconciliation, seen, is_new_life: false };
    assert_eq!(shard.reconcile_compared(&compared(of(0, 9, 2))).0.result, Ok(()));
    settle(&mut shard);
    let late = shard.reconcile_compared(&compared(of(0, 9, 3))).0;
    assert_eq!((late.result, late.lre), (Err(Refusal::TooManyRequests), EntryId::new(9)));
    // It replaces nothing.
    assert_eq!(shard.reconcile_compared(&compared(of(10, 19, 4))).0.result, Ok(()));
    let (rows, _) = shard.tier_rows(ledger, EntryId::new(3).unwrap()).unwrap();
    let found = resolve(rows.into_iter(), EntryId::new(3).unwrap(), EntryId::MAX).unwrap();
    assert_eq!(found.object, extent(0, 9, 2).object);
}

fn of_life(created_ms: i64, extents: Vec<TierExtent>) -> Reconciliation {
    Reconciliation { created_ms: Some(created_ms), ..update(1, extents) }
}

/// Invariant 7 of [`crate::tier`]: an id that is used again. Without a trim every entry is here, so the register can be dropped.
#[test]
fn a_register_is_of_one_ledger_and_makes_way_for_the_one_that_lives() {
    let (mut shard, ledger) = (shard(), LedgerId::new(1).unwrap());
    assert!(shard.fence(Beginning::Urgent, ledger, MasterKey::new([1; 20]), Box::new(|_| {})).is_later());
    let entry = |id| EntryId::new(id).unwrap();
    assert_eq!(shard.reconcile(&of_life(10, vec![extent(0, 9, 1)])).0.result, Ok(()));
    settle(&mut shard);
    assert_eq!(shard.reconcile(&of_life(10, Vec::new())).0.lre, EntryId::new(9));
    assert_eq!(shard.reconcile(&update(1, Vec::new())).0.lre, EntryId::new(9), "nobody knows of whom");
    let asked = shard.reconcile(&of_life(20, Vec::new())).0;
    assert_eq!((asked.result, asked.lre), (Ok(()), None), "nothing is reconciled of that one");
    let refused = shard.reconcile(&of_life(20, vec![extent(0, 4, 2)])).0.result;
    assert_eq!(refused, Err(Refusal::TooManyRequests), "metadata decides");
    assert_eq!(
        shard.restore_from_tier(&of_life(20, vec![extent(0, 4, 2)])).0.result,
        Err(Refusal::BadRequest)
    );
    let seen = shard.tiered(ledger).unwrap();
    assert_eq!((seen.lre, seen.created_ms), (entry(9), Some(10)));
    let compared =
        Compared { reconciliation: of_life(20, vec![extent(0, 4, 2)]), seen: seen.update, is_new_life: true };
    let done = shard.reconcile_compared(&compared).0;
    assert_eq!((done.result, done.lre), (Ok(()), Some(entry(4))));
    settle(&mut shard);
    let tiered = shard.tiered(ledger).unwrap();
    assert_eq!((tiered.lre, tiered.created_ms, tiered.life), (entry(4), Some(20), 2));
    assert!(shard.tier_rows(ledger, entry(7)).is_none(), "extents of the other one are not found");
}

/// A power cut may come before a freeze says that the register was dropped.
#[test]
fn a_replay_drops_a_register_with_the_update_of_the_next_ledger() {
    let (mut shard, ledger) = (shard(), LedgerId::new(1).unwrap());
    let body = |epoch, created_ms: i64, last, object| {
        let mut body = ledger.get().to_be_bytes().to_vec();
        TierStamp { epoch, update: 1 }.encode(&mut body);
        body.extend_from_slice(&created_ms.to_le_bytes());
        extent(0, last, object).encode(&mut body);
        body
    };
    let key = [&ledger.get().to_be_bytes()[..], &[9; 20]].concat();
    shard.begin_replay();
    let records = [
        (Kind::LedgerKey, key),
        (Kind::Reconciled, body(0, 10, 9, 1)),
        (Kind::Reconciled, body(2, 20, 4, 2)),
    ];
    // Again, as from a table and the journal.
    for (kind, body) in records.iter().chain(&records[1..]) {
        assert!(shard.replay(&Record { kind: *kind, ledger, crc32c: 0, body }).is_ok());
    }
    shard.end_replay();
    let tiered = shard.tiered(ledger).unwrap();
    assert_eq!((tiered.lre, tiered.created_ms, tiered.life), (EntryId::new(4).unwrap(), Some(20), 2));
}

/// Invariant 7 of [`crate::tier`]: while a ledger is trimmed metadata decides whose an add is.
#[test]
fn adds_to_a_trimmed_ledger_ask_and_begin_a_new_life_when_it_is_anothers() {
    let (mut shard, ledger) = (shard(), LedgerId::new(1).unwrap());
    let key = MasterKey::new([1; 20]);
    let put = |shard: &mut Shard, entry: i64, is_recovery, word: Word<'_>| {
        let body = [&1i64.to_be_bytes()[..], &entry.to_be_bytes(), &(-1i64).to_be_bytes(), &[7; 20]].concat();
        let add = Add {
            origin: Origin { connection: 1, txn: 1, tag: 0 },
            ledger,
            entry: EntryId::new(entry).unwrap(),
            last_add_confirmed: None,
            key,
            body: &body,
            is_recovery,
            is_high_priority: false,
        };
        let (reserve, refused) = (Reserve::unbounded(), AtomicU64::new(0));
        let gate =
            Gate { is_read_only: false, takes_high_priority: true, reserve: &reserve, refused: &refused };
        shard.add(&add, &gate, word).unwrap()
    };
    assert_eq!(put(&mut shard, 0, false, Word::Wanted), Taken::Answered);
    settle(&mut shard);
    assert_eq!(shard.reconcile(&of_life(10, vec![extent(0, 0, 1)])).0.result, Ok(()));
    settle(&mut shard);
    assert_eq!(put(&mut shard, 0, false, Word::Wanted), Taken::Answered, "every entry is here");
    settle(&mut shard);
    shard.trim(ledger, EntryId::FIRST);
    for (entry, is_recovery) in [(0, false), (0, true), (5, false), (5, true)] {
        assert_eq!(put(&mut shard, entry, is_recovery, Word::Wanted), Taken::Asks, "entry {entry}");
    }
    let seen = shard.tiered(ledger).unwrap();
    let others = [
        Tiered { life: seen.life + 2, ..seen },
        Tiered { trimmed_below: EntryId::new(1), ..seen },
        Tiered { trimmed_below: None, ..seen },
        Tiered { created_ms: Some(11), ..seen },
    ];
    for other in others {
        assert_eq!(shard.end_other_life(ledger, &other), Ok(false));
        assert!(shard.tiered(ledger).is_some(), "it changed since it was seen");
        let word = Word::Given(Some(&other));
        assert_eq!(put(&mut shard, 0, true, word), Taken::Asks, "metadata spoke of something else");
    }
    let before = shard.sequence;
    assert_eq!(put(&mut shard, 0, true, Word::Given(None)), Taken::Asks, "it was trimmed meanwhile");
    assert_eq!(put(&mut shard, 0, true, Word::Never), Taken::Refused);
    assert_eq!(shard.sequence, before, "refused");
    let word = Word::Given(Some(&seen));
    assert_eq!(put(&mut shard, 0, true, word), Taken::Answered, "a repair of the same ledger goes on");
    assert!(shard.sequence > before);
    settle(&mut shard);
    assert_eq!(shard.end_other_life(ledger, &seen), Ok(true));
    assert!(shard.tiered(ledger).is_none());
    assert_eq!(shard.end_other_life(ledger, &seen), Ok(false));
    assert_eq!(shard.on_verdict(ledger, key, false, MetadataVerdict::OpenHere), Ok(()));
    assert_eq!(put(&mut shard, 0, false, Word::Given(None)), Taken::Answered);
    settle(&mut shard);
    assert_eq!(shard.trimmed_for_good(ledger, true), None);
    assert_eq!(put(&mut shard, 1, false, Word::Wanted), Taken::Answered, "the new life asks no more");
}

/// Invariant 7 of [`crate::tier`]: what an older build knew of a trimmed ledger has no creation time, and nothing here proves one.
#[test]
fn a_trimmed_register_takes_no_creation_time() {
    let ledger = LedgerId::new(1).unwrap();
    for is_trimmed in [false, true] {
        let mut shard = shard();
        let fenced = shard.fence(Beginning::Urgent, ledger, MasterKey::new([1; 20]), Box::new(|_| {}));
        assert!(fenced.is_later());
        assert_eq!(shard.reconcile(&update(1, vec![extent(0, 9, 1)])).0.result, Ok(()));
        settle(&mut shard);
        if is_trimmed {
            shard.trim(ledger, EntryId::new(9).unwrap());
        }
        let seen = shard.tiered(ledger).unwrap().update;
        let reconciliation = of_life(20, vec![extent(0, 9, 2)]);
        let compared = Compared { reconciliation, seen, is_new_life: false };
        assert_eq!(shard.reconcile_compared(&compared).0.result, Ok(()), "another object has its entries");
        settle(&mut shard);
        let noted = shard.tiered(ledger).unwrap().created_ms;
        assert_eq!(noted, (!is_trimmed).then_some(20), "trimmed: {is_trimmed}");
    }
}

/// A tierer takes a register above the catalogue for a bookie that is ahead, and stops the ledger. That of an older build may be another
/// ledger's, and costs nothing while every copy is here.
#[test]
fn an_untrimmed_register_of_an_older_build_makes_way() {
    let (mut shard, ledger) = (shard(), LedgerId::new(1).unwrap());
    let fenced = shard.fence(Beginning::Urgent, ledger, MasterKey::new([1; 20]), Box::new(|_| {}));
    assert!(fenced.is_later());
    assert_eq!(shard.reconcile(&update(1, vec![extent(0, 9, 1)])).0.result, Ok(()));
    settle(&mut shard);
    assert_eq!(shard.reconcile(&update(1, Vec::new())).0.lre, EntryId::new(9), "an older tierer");
    let asked = shard.reconcile(&of_life(20, Vec::new())).0;
    assert_eq!((asked.result, asked.lre), (Ok(()), None));
    let behind = shard.reconcile(&of_life(20, vec![extent(5, 9, 2)])).0;
    assert_eq!((behind.result, behind.lre), (Err(Refusal::BadRequest), None));
    assert_eq!(shard.reconcile(&of_life(20, vec![extent(0, 4, 2)])).0.lre, EntryId::new(4));
    settle(&mut shard);
    let tiered = shard.tiered(ledger).unwrap();
    assert_eq!((tiered.lre, tiered.created_ms), (EntryId::new(4).unwrap(), Some(20)));
    assert!(shard.tier_rows(ledger, EntryId::new(7).unwrap()).is_none(), "extents of before are not found");
    // From then on it is known whose it is.
    assert_eq!(shard.reconcile(&update(1, Vec::new())).0.lre, EntryId::new(4));
}

/// Everything placed so far is durable.
fn settle(shard: &mut Shard) {
    (shard.cut, shard.durable) = (shard.sequence, shard.sequence);
}

/// Invariant 5 of [`crate::tier`]: a ledger of which nothing is here begins to exist, in object storage alone. More of it, and the same
/// again, are accepted.
#[test]
fn a_ledger_that_is_not_here_is_restored() {
    let (mut shard, ledger) = (shard(), LedgerId::new(1).unwrap());
    let entry = |id| EntryId::new(id).unwrap();
    let (done, sequence) = shard.restore_from_tier(&update(1, vec![extent(0, 4, 1), extent(5, 9, 2)]));
    assert_eq!((done.result, done.lre, sequence), (Ok(()), Some(entry(9)), shard.sequence));
    settle(&mut shard);
    let tiered = shard.tiered(ledger).unwrap();
    assert_eq!((tiered.lre, tiered.trimmed_below), (entry(9), Some(entry(9))));
    let mut untrimmed = Vec::new();
    shard.untrimmed(None, 10, &mut untrimmed);
    assert_eq!(untrimmed, [], "there is nothing to let go");
    let before = shard.sequence;
    let (done, _) = shard.restore_from_tier(&update(1, vec![extent(5, 9, 2)]));
    assert_eq!((done.result, shard.sequence), (Ok(()), before), "the same again changes nothing");
    assert_eq!(
        shard.restore_from_tier(&update(1, vec![extent(11, 12, 3)])).0.result,
        Err(Refusal::BadRequest)
    );
    let (done, _) = shard.restore_from_tier(&update(1, vec![extent(10, 12, 3)]));
    assert_eq!((done.result, done.lre), (Ok(()), Some(entry(12))));
    settle(&mut shard);
    assert_eq!(shard.tiered(ledger).unwrap().trimmed_below, Some(entry(12)));
    assert_eq!(shard.restore_from_tier(&update(2, Vec::new())).0.result, Err(Refusal::BadRequest));
}

/// T19: a restore does not let copies go that were compared with no object.
#[test]
fn a_ledger_with_copies_is_not_restored() {
    let (mut shard, ledger) = (shard(), LedgerId::new(1).unwrap());
    assert!(shard.fence(Beginning::Urgent, ledger, MasterKey::new([1; 20]), Box::new(|_| {})).is_later());
    let refused = shard.restore_from_tier(&update(1, vec![extent(0, 9, 1)])).0;
    assert_eq!((refused.result, refused.lre), (Err(Refusal::BadRequest), None));
    // Nor if the ledger is reconciled, and not trimmed.
    assert_eq!(shard.reconcile(&update(1, vec![extent(0, 9, 1)])).0.result, Ok(()));
    settle(&mut shard);
    let refused = shard.restore_from_tier(&update(1, vec![extent(0, 12, 2)])).0;
    assert_eq!((refused.result, refused.lre), (Err(Refusal::BadRequest), EntryId::new(9)));
    assert_eq!(shard.tiered(ledger).unwrap().trimmed_below, None);
}

/// Invariant 5 of [`crate::tier`]: a repair brings back what limbo says is missing, and looks at copies as a restore does.
#[test]
fn a_repair_restores_where_no_entry_is_also_in_limbo() {
    let (mut shard, entry) = (shard(), |id| EntryId::new(id).unwrap());
    let (fenced, limbo, covered) =
        (LedgerId::new(1).unwrap(), LedgerId::new(2).unwrap(), LedgerId::new(3).unwrap());
    let key = MasterKey::new([1; 20]);
    assert!(shard.fence(Beginning::Urgent, fenced, key, Box::new(|_| {})).is_later());
    assert!(shard.set_limbo(limbo, true, Box::new(|_| {})).is_later());
    shard.cover_with_limbo(Some(covered));
    for ledger in [fenced, limbo, covered] {
        let update = update(ledger.get(), vec![extent(0, 9, 1)]);
        assert!(
            shard.restore_from_tier(&update).0.result.is_err(),
            "for a whole cluster it is not: {ledger}"
        );
        let (done, _) = shard.repair_from_tier(&update);
        assert_eq!((done.result, done.lre), (Ok(()), Some(entry(9))), "{ledger}");
    }
    settle(&mut shard);
    shard.cover_with_limbo(None);
    for ledger in [fenced, limbo, covered] {
        assert_eq!(shard.tiered(ledger).unwrap().trimmed_below, Some(entry(9)), "{ledger}");
    }
    assert!(shard.is_fenced(fenced));
    assert!(matches!(shard.sound(limbo), Err(Refusal::Unknown)), "until it was compared");
    assert!(shard.set_limbo(limbo, false, Box::new(|_| {})).is_later());
    settle(&mut shard);
    assert_eq!(shard.tiered(limbo).unwrap().lre, entry(9), "the end of limbo keeps it");
    assert!(shard.tier_rows(limbo, entry(4)).is_some_and(|(rows, _)| rows.len() == 1));
    // With copies that were compared with no object it is as in a restore.
    let reconciled = LedgerId::new(4).unwrap();
    assert!(shard.fence(Beginning::Urgent, reconciled, key, Box::new(|_| {})).is_later());
    assert_eq!(shard.reconcile(&update(4, vec![extent(0, 9, 1)])).0.result, Ok(()));
    let refused = shard.repair_from_tier(&update(4, vec![extent(0, 12, 2)])).0;
    assert_eq!(refused.result, Err(Refusal::BadRequest));
}

/// A removed ledger comes back with a life of its own, as with an add.
#[test]
fn a_removed_ledger_is_restored_in_a_new_life() {
    let (mut shard, ledger) = (shard(), LedgerId::new(1).unwrap());
    let mut removed = LedgerState::new(None);
    removed.remove(0, 0);
    shard.restore(&LedgerRecord { hidden_below: Generation(0), ..removed.snapshot(ledger) });
    assert_eq!(shard.restore_from_tier(&update(1, vec![extent(0, 9, 1)])).0.result, Ok(()));
    settle(&mut shard);
    assert_eq!((shard.tiered(ledger).unwrap().life, shard.tier_epoch(ledger)), (2, Some(2)));
}

/// Replay gives the state that was placed.
#[test]
fn a_restored_ledger_is_replayed() {
    let (mut shard, ledger) = (shard(), LedgerId::new(1).unwrap());
    let mut body = ledger.get().to_be_bytes().to_vec();
    TierStamp { epoch: 0, update: 1 }.encode(&mut body);
    extent(0, 9, 1).encode(&mut body);
    shard.begin_replay();
    let record = Record { kind: Kind::Restored, ledger, crc32c: 0, body: &body };
    // Again, as from a table and the journal.
    for _ in 0..2 {
        assert!(shard.replay(&record).is_ok());
    }
    shard.end_replay();
    let tiered = shard.tiered(ledger).unwrap();
    assert_eq!((tiered.lre, tiered.trimmed_below), (EntryId::new(9).unwrap(), EntryId::new(9)));
}

proptest! {
    /// Two rows at most say what all of them do, also with those that a table adds: older ones, and copies of these.
    #[test]
    fn two_rows_say_what_all_do(
        ranges in prop::collection::vec((0i64..30, 0i64..10), 1..12), older in 0usize..12, copied in 0usize..12,
    ) {
        let budget = TierBudget::new(1 << 20);
        let updates: Vec<PlacedUpdate> = (1u64..).zip(&ranges).map(|(n, (first, more))| {
            let middle = first + more / 2;
            let extents = vec![extent(*first, middle, n), extent(middle + 1, first + more + 1, n)];
            let update = ExtentUpdate { stamp: TierStamp { epoch: 0, update: n }, extents };
            PlacedUpdate { sequence: n, update, _permit: budget.take(2).unwrap() }
        }).collect();
        let rows_of = |updates: &[PlacedUpdate]| -> Vec<ExtentRow> {
            let all = updates.iter().flat_map(|update| {
                update.update.extents.iter().map(|extent| ExtentRow { stamp: update.update.stamp, extent: *extent })
            });
            all.collect()
        };
        let older = older.min(updates.len());
        let table = rows_of(&updates[..copied.min(updates.len()).max(older)]);
        for entry in (0..45).filter_map(EntryId::new) {
            let kept = latest_rows(updates[older..].iter(), entry);
            prop_assert!(kept.len() <= 2);
            let all = rows_of(&updates);
            let expected = resolve(all.iter().copied(), entry, EntryId::MAX);
            let found = resolve(kept.iter().chain(&table).copied(), entry, EntryId::MAX);
            prop_assert_eq!(found, expected, "entry {}", entry);
        }
    }
}
