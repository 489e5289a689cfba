//! Ledgers of which entries are in object storage: the last reconciled entry (LRE), its extents, trims, over restarts and
//! power cuts. Invariants are those of `bindery_engine::tier`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_engine::{
    Add, AddDone, AddSink, Compared, EngineConfig, EntryRef, GroupTimes, LedgerPresence, Lookup, Machine,
    Origin, Reconciled, Refusal, SpaceConfig, Tiered, TrimError, WantedCollection,
};
use bindery_io::{Disk, ManualClock, SeededRandom};
use bindery_sim::disk::{FaultPlan, SimDisk, SimDiskConfig};
use bindery_types::tier::{ObjectId, ObjectRef, Reconciliation, TierExtent};
use bindery_types::{EntryId, LedgerId, MasterKey};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

mod losses;

const KEY: MasterKey = MasterKey::new([1; 20]);

struct Nobody;

impl AddSink for Nobody {
    fn on_adds_done(&self, _: &GroupTimes, shards: &[Vec<AddDone>]) {
        assert!(shards.iter().flatten().all(|add| add.result.is_ok()), "{shards:?}");
    }
}

struct Bookie {
    disk: Arc<SimDisk>,
    machine: Machine,
    clock: Arc<ManualClock>,
    config: EngineConfig,
}

fn config(dirs: usize, shards: usize) -> EngineConfig {
    EngineConfig {
        journal_dirs: vec![PathBuf::from("/data/journal")],
        ledger_dirs: (0..dirs).map(|dir| PathBuf::from(format!("/data/ledgers{dir}"))).collect(),
        shard_count: shards,
        write_pool_bytes: 4 << 20,
        chunk_bytes: 64 << 10,
        journal_file_bytes: 256 << 10,
        group_bytes_max: 1 << 20,
        entry_bytes_max: 16 << 10,
        tier_extents_bytes: 64 << 10,
        space: SpaceConfig {
            merge_fan_in: 0,
            replaced_grace: Duration::ZERO,
            scrub_period: Duration::ZERO,
            collection_interval: Duration::from_secs(3600),
            ..SpaceConfig::default()
        },
        ..EngineConfig::default()
    }
}

fn start(disk: Arc<SimDisk>, config: EngineConfig) -> Bookie {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let random = Arc::new(SeededRandom::new(1));
    let machine = Machine::open(config.clone(), disk.clone(), clock.clone(), random).unwrap();
    Bookie { disk, machine, clock, config }
}

fn fresh_with(config: EngineConfig) -> Bookie {
    let disk = Arc::new(SimDisk::new(SimDiskConfig::default(), &SeededRandom::new(7)));
    disk.create_dir_all(Path::new("/data")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    start(disk, config)
}

fn fresh() -> Bookie {
    fresh_with(config(1, 1))
}

fn ledger(id: i64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}

fn body(ledger: i64, entry: i64, size: usize) -> Vec<u8> {
    let mut body = [ledger, entry, entry - 1, 0].map(i64::to_be_bytes).concat();
    body.resize(32 + size, entry as u8);
    body
}

fn object(n: u64) -> ObjectRef {
    let id = ObjectId::new(n, [n as u8; 10]);
    ObjectRef { id, length_bytes: 1000 + n, footer_offset: n, footer_crc: 1, etag_crc: 2 }
}

fn extent(first: i64, last: i64, of: u64) -> TierExtent {
    TierExtent { first: entry(first), last: entry(last), object: object(of) }
}

/// Extents that follow each other, as (first, last, object).
fn update(id: i64, extents: &[(i64, i64, u64)]) -> Reconciliation {
    let extents: Vec<_> = extents.iter().map(|(first, last, of)| extent(*first, *last, *of)).collect();
    Reconciliation {
        ledger: ledger(id),
        last: extents.last().map(|extent| extent.last),
        extents,
        created_ms: None,
    }
}

type Answers = Arc<Mutex<Option<Vec<Reconciled>>>>;

fn done(id: i64, lre: i64) -> Reconciled {
    Reconciled { ledger: ledger(id), result: Ok(()), lre: EntryId::new(lre) }
}

impl Bookie {
    fn add(&self, id: i64, e: i64, size: usize) {
        let body = body(id, e, size);
        let add = Add {
            origin: Origin { connection: 0, txn: e as u64, tag: 0 },
            ledger: ledger(id),
            entry: entry(e),
            last_add_confirmed: EntryId::new(e - 1),
            key: KEY,
            body: &body,
            is_recovery: false,
            is_high_priority: false,
        };
        let engine = &self.machine.engine;
        let (shard, seen, mut asks) = (engine.shard_of(ledger(id)), engine.tiered(ledger(id)), Vec::new());
        assert_eq!(engine.add_judged(shard, &[add], None, seen.as_ref(), &mut asks), 1, "there is room");
        assert_eq!(asks, [], "metadata spoke of what is here");
    }

    fn try_group(&mut self) -> bool {
        let Some(in_flight) = self.machine.journals[0].cut() else { return true };
        let written = self.machine.journals[0].write(&in_flight);
        let is_written = written.is_ok();
        let mut done = self.machine.journals[0].finish(in_flight, written);
        if let Some(ticket) = done.freeze.take() {
            let mark = self.machine.flushing.flush(ticket).unwrap();
            self.machine.journals[0].on_flushed(mark);
        }
        done.deliver(&Nobody);
        is_written
    }

    fn group(&mut self) {
        assert!(self.try_group());
    }

    fn flush(&mut self) {
        self.group();
        self.machine.want_freeze();
        self.group();
    }

    /// Asks without a group: only durable registers are answered.
    fn ask(&self, updates: &[Reconciliation]) -> Answers {
        let answers = Answers::default();
        let told = answers.clone();
        let engine = &self.machine.engine;
        let compared = |update: &Reconciliation| Compared {
            reconciliation: update.clone(),
            seen: engine.tiered(update.ledger).map_or(0, |tiered| tiered.update),
            is_new_life: false,
        };
        let all = updates.iter().map(compared).collect();
        engine.reconcile_compared(all, Box::new(move |all| *told.lock() = Some(all)));
        answers
    }

    fn reconcile(&mut self, updates: &[Reconciliation]) -> Vec<Reconciled> {
        let answers = self.ask(updates);
        self.group();
        let all = answers.lock().take();
        all.expect("a group makes them durable")
    }

    fn register(&mut self, id: i64) -> Reconciled {
        self.reconcile(&[update(id, &[])])[0]
    }

    fn read(&self, id: i64, which: EntryRef) -> Result<Vec<u8>, Refusal> {
        match self.machine.engine.read(ledger(id), which)? {
            Lookup::Memory(body) => Ok(body.to_vec()),
            Lookup::Disk(read) => read.load(),
            Lookup::Tiered(_) => Err(Refusal::Tiered),
            Lookup::Undurable(_) => panic!("{id} is not durable"),
        }
    }

    /// First and last entry and object of the extent that a read of the entry ends at.
    fn tiered_at(&self, id: i64, e: i64) -> (i64, i64, u64) {
        let read = match self.machine.engine.read(ledger(id), EntryRef::At(entry(e))).unwrap() {
            Lookup::Tiered(read) => read,
            Lookup::Disk(read) => {
                assert_eq!(read.load(), Err(Refusal::Tiered), "{id}:{e}");
                read.into_tiered().expect("it said so")
            }
            _ => panic!("{id}:{e} is in memory"),
        };
        assert_eq!((read.ledger(), read.entry()), (ledger(id), entry(e)));
        named(self.machine.engine.tier_extent(&read).unwrap())
    }

    fn extents(&self, id: i64, from: i64) -> Vec<(i64, i64, u64)> {
        let extents = self.machine.engine.tier_extents(ledger(id), entry(from), 1000).unwrap();
        extents.into_iter().map(named).collect()
    }

    fn trim(&self, id: i64, below: i64) -> Result<(), TrimError> {
        let Some(seen) = self.machine.engine.tiered(ledger(id)) else { return Err(TrimError::NotTiered) };
        self.machine.engine.trim(ledger(id), &seen, entry(below))
    }

    /// Steps, a second each, until nothing is left to do.
    fn collect(&mut self) {
        self.machine.engine.want_collection(WantedCollection { minor: false, major: true });
        for _ in 0..2000 {
            self.clock.advance(Duration::from_secs(1));
            match self.machine.flushing.tend() {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
        panic!("it does not end");
    }

    fn log_bytes(&self) -> u64 {
        self.machine.engine.stats().entry_log_bytes
    }

    fn list(&self, id: i64) -> Vec<(i64, i64)> {
        let runs = self.machine.engine.list_entries(ledger(id)).unwrap();
        assert_eq!(self.machine.engine.held_entries(ledger(id), EntryId::FIRST, EntryId::MAX).unwrap(), runs);
        runs.iter().map(|run| (run.first.get(), run.last.get())).collect()
    }

    fn power_cut(self) -> Bookie {
        let left = self.disk.crash(&SeededRandom::new(3));
        start(Arc::new(left), self.config)
    }

    fn power_cut_to(self, config: EngineConfig) -> Bookie {
        let left = self.disk.crash(&SeededRandom::new(3));
        start(Arc::new(left), config)
    }
}

fn named(extent: TierExtent) -> (i64, i64, u64) {
    (extent.first.get(), extent.last.get(), extent.object.length_bytes - 1000)
}

/// A ledger of `count` entries, flushed.
fn with_entries(mut bookie: Bookie, id: i64, count: i64) -> Bookie {
    (0..count).for_each(|e| bookie.add(id, e, 100));
    bookie.flush();
    bookie
}

/// Invariant 1, T1 and T2: the register is a maximum without gaps, per ledger, and outlives power cuts from the journal and
/// from the table.
#[test]
fn a_register_rises_without_gaps_and_is_never_lost() {
    let mut bookie = with_entries(fresh(), 1, 10);
    assert_eq!(bookie.register(1), done(1, -1));
    let nowhere = Reconciled { ledger: ledger(2), result: Err(Refusal::NoLedger), lre: None };
    assert_eq!(bookie.register(2), nowhere);
    let gap =
        |lre| Reconciled { ledger: ledger(1), result: Err(Refusal::BadRequest), lre: EntryId::new(lre) };
    assert_eq!(bookie.reconcile(&[update(1, &[(1, 3, 1)])]), [gap(-1)]);
    assert_eq!(bookie.machine.engine.tiered(ledger(1)), None);
    let both = [update(2, &[(0, 3, 1)]), update(1, &[(0, 1, 1), (2, 3, 2)])];
    assert_eq!(bookie.reconcile(&both), [nowhere, done(1, 3)], "each for itself, in order");
    assert_eq!(bookie.reconcile(&[update(1, &[(0, 1, 1)])]), [done(1, 3)], "it never goes back");
    assert_eq!(bookie.reconcile(&[update(1, &[(5, 6, 3)])]), [gap(3)]);
    assert_eq!(bookie.reconcile(&[update(1, &[(4, 6, 3)])]), [done(1, 6)]);
    let all = [(0, 1, 1), (2, 3, 2), (4, 6, 3)];
    assert_eq!(bookie.extents(1, 0), all);
    assert_eq!(bookie.extents(1, 3), [(3, 3, 2), (4, 6, 3)]);
    assert_eq!(bookie.extents(1, 7), []);
    let mut bookie = bookie.power_cut();
    assert_eq!(bookie.machine.replayed.records, 3, "they came from the journal");
    assert_eq!(bookie.register(1), done(1, 6));
    assert_eq!(bookie.extents(1, 0), all);
    assert_eq!(bookie.machine.engine.tier_extents_waiting(), 0, "the start flushed them");
    let mut bookie = bookie.power_cut();
    assert_eq!(bookie.machine.replayed.records, 0);
    assert_eq!((bookie.register(1), bookie.extents(1, 0)), (done(1, 6), all.to_vec()));
    assert_eq!(bookie.reconcile(&[update(1, &[(7, 9, 4)])]), [done(1, 9)]);
    assert_eq!(bookie.extents(1, 6), [(6, 6, 3), (7, 9, 4)], "in the table and in memory");
    for e in 0..10 {
        assert_eq!(bookie.read(1, EntryRef::At(entry(e))), Ok(body(1, e, 100)), "copies are read first");
    }
}

/// Invariant 1: no answer before the group; a query waits for what it would say.
#[test]
fn a_register_is_answered_and_shown_once_it_is_durable() {
    let mut bookie = with_entries(fresh(), 1, 10);
    let (first, query) = (bookie.ask(&[update(1, &[(0, 3, 1)])]), bookie.ask(&[update(1, &[])]));
    assert_eq!((&*first.lock(), &*query.lock()), (&None, &None));
    assert_eq!(bookie.machine.engine.tiered(ledger(1)), None);
    assert_eq!(bookie.extents(1, 0), []);
    bookie.group();
    let told = Some(vec![done(1, 3)]);
    assert_eq!((&*first.lock(), &*query.lock()), (&told, &told));
    assert_eq!(bookie.machine.engine.tiered(ledger(1)).unwrap().lre, entry(3));
    // Said again, it is answered and nothing is written for it.
    let groups = bookie.machine.engine.stats().journal_bytes;
    let again = bookie.ask(&[update(1, &[(0, 3, 1)])]);
    assert_eq!(*again.lock(), told);
    bookie.group();
    assert_eq!(bookie.machine.engine.stats().journal_bytes, groups);
    // A power cut takes an update on its way.
    let lost = bookie.ask(&[update(1, &[(4, 5, 1)])]);
    let mut bookie = bookie.power_cut();
    assert_eq!((&*lost.lock(), bookie.register(1)), (&None, done(1, 3)));
}

/// Invariants 3 and 4, T9: copies go once the trim is committed, reads of them end in object storage, and copies above
/// the trim stay.
#[test]
fn what_was_let_go_is_in_object_storage_and_gives_its_space_back() {
    let mut bookie = with_entries(fresh(), 1, 40);
    let of_others = with_entries_of(&mut bookie, 2, 40);
    assert_eq!(bookie.reconcile(&[update(1, &[(0, 19, 1), (20, 29, 2)])]), [done(1, 29)]);
    assert_eq!(bookie.trim(1, 30), Err(TrimError::AboveLre(entry(29))));
    assert_eq!(bookie.trim(2, 0), Err(TrimError::NotTiered));
    let seen = bookie.machine.engine.tiered(ledger(1)).unwrap();
    let of_other_life = Tiered { life: seen.life + 2, ..seen };
    assert_eq!(bookie.machine.engine.trim(ledger(1), &of_other_life, entry(3)), Err(TrimError::Changed));
    // T19: an object that took the place of the one that was compared was not compared.
    assert_eq!(bookie.reconcile(&[update(1, &[(20, 29, 2)])]), [done(1, 29)]);
    assert_eq!(bookie.machine.engine.trim(ledger(1), &seen, entry(3)), Err(TrimError::Changed));
    let untrimmed = |bookie: &Bookie| bookie.machine.engine.untrimmed(None, 10).len();
    assert_eq!((untrimmed(&bookie), bookie.trim(1, 24)), (1, Ok(())));
    let tiered = bookie.machine.engine.tiered(ledger(1)).unwrap();
    assert_eq!((tiered.trimmed_below, tiered.is_trim_committed), (Some(entry(24)), false));
    let before = bookie.log_bytes();
    bookie.collect();
    assert_eq!(bookie.log_bytes(), before, "an uncommitted trim lets nothing go");
    for e in 0..40 {
        assert_eq!(bookie.read(1, EntryRef::At(entry(e))), Ok(body(1, e, 100)));
    }
    bookie.flush();
    assert!(bookie.machine.engine.tiered(ledger(1)).unwrap().is_trim_committed);
    bookie.collect();
    assert!(bookie.log_bytes() < before - 24 * 100, "{} of {before}", bookie.log_bytes());
    let check = |bookie: &Bookie| {
        for e in 0..25 {
            let expected = if e < 20 { (0, 19, 1) } else { (20, 29, 2) };
            assert_eq!(bookie.tiered_at(1, e), expected, "entry {e}");
        }
        for e in 25..40 {
            assert_eq!(bookie.read(1, EntryRef::At(entry(e))), Ok(body(1, e, 100)));
        }
        assert_eq!(bookie.read(1, EntryRef::At(entry(40))), Err(Refusal::NoEntry));
        assert_eq!(bookie.read(1, EntryRef::Last), Ok(body(1, 39, 100)));
        assert_eq!(bookie.list(1), [(0, 39)], "what was let go counts as held");
        assert_eq!(untrimmed(bookie), 1);
    };
    check(&bookie);
    let mut bookie = bookie.power_cut();
    check(&bookie);
    // All of it: nothing of the ledger is left on disk.
    assert_eq!(bookie.reconcile(&[update(1, &[(30, 39, 3)])]), [done(1, 39)]);
    assert_eq!(bookie.trim(1, 39), Ok(()));
    bookie.flush();
    bookie.collect();
    let bookie = bookie.power_cut();
    assert_eq!(bookie.tiered_at(1, 39), (30, 39, 3));
    assert_eq!(bookie.list(1), [(0, 39)]);
    assert_eq!(bookie.read(1, EntryRef::Last), Err(Refusal::Tiered));
    assert_eq!(untrimmed(&bookie), 0);
    of_others(&bookie);
}

fn with_entries_of(bookie: &mut Bookie, id: i64, count: i64) -> impl Fn(&Bookie) + use<> {
    (0..count).for_each(|e| bookie.add(id, e, 100));
    bookie.flush();
    move |bookie| {
        for e in 0..count {
            assert_eq!(
                bookie.read(id, EntryRef::At(entry(e))),
                Ok(body(id, e, 100)),
                "{id} has no part in it"
            );
        }
    }
}

/// Invariant 7: what was added since the comparison was not compared, and may be of another ledger that got the id. It is no matter
/// whether it was flushed meanwhile.
#[test]
fn a_ledger_that_was_written_to_since_it_was_compared_is_not_trimmed() {
    for is_flushed in [false, true] {
        let mut bookie = with_entries(fresh(), 1, 10);
        bookie.reconcile(&[update(1, &[(0, 9, 1)])]);
        let seen = bookie.machine.engine.tiered(ledger(1)).unwrap();
        bookie.add(1, 50, 200);
        if is_flushed {
            bookie.flush();
        }
        assert_eq!(bookie.machine.engine.trim(ledger(1), &seen, entry(9)), Err(TrimError::Changed));
        bookie.flush();
        assert_eq!(bookie.read(1, EntryRef::At(entry(50))), Ok(body(1, 50, 200)));
        // Flushes and updates of its own do not count.
        let seen = bookie.machine.engine.tiered(ledger(1)).unwrap();
        bookie.flush();
        assert_eq!(bookie.machine.engine.trim(ledger(1), &seen, entry(9)), Ok(()));
    }
}

/// Invariant 3: a power cut before the commit takes the trim back, and the copies are there.
#[test]
fn a_trim_that_is_not_committed_is_taken_back_by_a_power_cut() {
    let mut bookie = with_entries(fresh(), 1, 40);
    bookie.reconcile(&[update(1, &[(0, 39, 1)])]);
    assert_eq!(bookie.trim(1, 39), Ok(()));
    bookie.collect();
    let bookie = bookie.power_cut();
    assert_eq!(bookie.machine.engine.tiered(ledger(1)).unwrap().trimmed_below, None);
    for e in 0..40 {
        assert_eq!(bookie.read(1, EntryRef::At(entry(e))), Ok(body(1, e, 100)));
    }
}

/// An entry that comes again behind a trim, from a recovery or a repair, is read here until its space is collected.
#[test]
fn a_copy_that_comes_behind_a_trim_is_read_first_and_dies_with_the_next_collection() {
    let mut bookie = with_entries(fresh(), 1, 10);
    bookie.reconcile(&[update(1, &[(0, 9, 1)])]);
    bookie.trim(1, 9).unwrap();
    bookie.flush();
    bookie.collect();
    assert_eq!(bookie.tiered_at(1, 4), (0, 9, 1));
    bookie.add(1, 4, 200);
    assert_eq!(
        bookie.tiered_at(1, 4),
        (0, 9, 1),
        "what is not durable is not waited for: it is in object storage"
    );
    bookie.group();
    assert_eq!(bookie.read(1, EntryRef::At(entry(4))), Ok(body(1, 4, 200)));
    bookie.flush();
    assert_eq!(bookie.read(1, EntryRef::At(entry(4))), Ok(body(1, 4, 200)));
    bookie.collect();
    assert_eq!(bookie.tiered_at(1, 4), (0, 9, 1));
    assert_eq!(bookie.machine.engine.stats().entry_logs, 0);
}

/// Invariant 6: extents of entries that were let go are replaced only after a comparison, and more of them are taken as ever.
#[test]
fn what_leads_to_entries_without_a_copy_is_not_replaced_unseen() {
    let mut bookie = with_entries(fresh(), 1, 10);
    bookie.reconcile(&[update(1, &[(0, 4, 1)])]);
    bookie.trim(1, 4).unwrap();
    bookie.flush();
    let answers = Answers::default();
    let told = answers.clone();
    let unseen = vec![update(1, &[(0, 9, 2)])];
    bookie.machine.engine.reconcile(unseen, Box::new(move |all| *told.lock() = Some(all)));
    bookie.group();
    let refused = Reconciled { result: Err(Refusal::TooManyRequests), ..done(1, 4) };
    assert_eq!(answers.lock().clone(), Some(vec![refused]));
    assert_eq!(bookie.extents(1, 0), [(0, 4, 1)]);
    let answers = Answers::default();
    let told = answers.clone();
    let more = vec![update(1, &[(5, 9, 2)])];
    bookie.machine.engine.reconcile(more, Box::new(move |all| *told.lock() = Some(all)));
    bookie.group();
    assert_eq!(answers.lock().clone(), Some(vec![done(1, 9)]));
    assert_eq!(bookie.extents(1, 0), [(0, 4, 1), (5, 9, 2)]);
}

/// Extents that name other objects replace those of before, whatever their borders: in memory, in the table, over a restart.
#[test]
fn rewritten_objects_replace_those_of_before() {
    let mut bookie = with_entries(fresh(), 1, 40);
    bookie.reconcile(&[update(1, &[(0, 9, 1), (10, 29, 2)])]);
    bookie.flush();
    assert_eq!(bookie.reconcile(&[update(1, &[(5, 14, 3)])]), [done(1, 29)]);
    let mixed = [(0, 4, 1), (5, 14, 3), (15, 29, 2)];
    assert_eq!(bookie.extents(1, 0), mixed, "over what is in the table");
    bookie.trim(1, 29).unwrap();
    bookie.flush();
    assert_eq!(bookie.extents(1, 0), mixed, "in it");
    let mut bookie = bookie.power_cut();
    assert_eq!(bookie.extents(1, 0), mixed);
    bookie.reconcile(&[update(1, &[(0, 29, 4)])]);
    bookie.reconcile(&[update(1, &[(0, 19, 5)])]);
    bookie.collect();
    assert_eq!(bookie.extents(1, 0), [(0, 19, 5), (20, 29, 4)]);
    // Behind the entry it holds to its end; entries before it may be elsewhere by now.
    assert_eq!((bookie.tiered_at(1, 19), bookie.tiered_at(1, 20)), ((0, 19, 5), (0, 29, 4)));
    let bookie = bookie.power_cut();
    assert_eq!(bookie.extents(1, 0), [(0, 19, 5), (20, 29, 4)]);
}

/// A removal clears register, trim and extents; a ledger that comes back begins without them.
#[test]
fn a_removal_clears_register_trim_and_extents() {
    let mut bookie = with_entries(fresh(), 1, 20);
    bookie.reconcile(&[update(1, &[(0, 19, 1)])]);
    bookie.trim(1, 9).unwrap();
    bookie.flush();
    let seen = bookie.machine.engine.tiered(ledger(1)).unwrap();
    bookie.machine.engine.remove_ledger(ledger(1), Box::new(|outcome| assert_eq!(outcome, Ok(()))));
    assert_eq!(bookie.reconcile(&[update(1, &[(0, 3, 2)])])[0].result, Err(Refusal::NoLedger));
    assert_eq!(bookie.machine.engine.trim(ledger(1), &seen, entry(3)), Err(TrimError::NotTiered));
    let mut bookie = bookie.power_cut();
    assert_eq!(bookie.machine.engine.presence(ledger(1)), LedgerPresence::Removed);
    bookie.machine.engine.revive_ledger(ledger(1), KEY, Box::new(|outcome| assert_eq!(outcome, Ok(()))));
    bookie.group();
    assert_eq!(bookie.register(1), done(1, -1));
    assert_eq!((bookie.read(1, EntryRef::At(entry(3))), bookie.list(1)), (Err(Refusal::NoEntry), vec![]));
    assert_eq!(bookie.machine.engine.trim(ledger(1), &seen, entry(3)), Err(TrimError::NotTiered));
    assert_eq!(bookie.reconcile(&[update(1, &[(0, 4, 7)])]), [done(1, 4)]);
    assert_eq!(bookie.extents(1, 0), [(0, 4, 7)]);
    assert_eq!(bookie.machine.engine.trim(ledger(1), &seen, entry(3)), Err(TrimError::Changed));
    let bookie = bookie.power_cut();
    assert_eq!(bookie.extents(1, 0), [(0, 4, 7)], "removal, return and update came from the journal");
    let mut bookie = bookie.power_cut();
    assert_eq!((bookie.register(1), bookie.extents(1, 0)), (done(1, 4), vec![(0, 4, 7)]));
}

/// The bound on extents in memory refuses updates, and only those; a flush gives room.
#[test]
fn extents_that_wait_are_bounded_and_adds_and_fences_do_not_notice() {
    let mut bookie = fresh_with(EngineConfig { tier_extents_bytes: 4 << 10, ..config(1, 1) });
    (0..50).for_each(|id| bookie.add(id, 0, 10));
    bookie.flush();
    let updates: Vec<_> = (0..50).map(|id| update(id, &[(0, 0, 1)])).collect();
    let results = bookie.reconcile(&updates);
    let taken = results.iter().filter(|result| result.result.is_ok()).count();
    assert!((1..50).contains(&taken), "{taken}");
    for result in &results[taken..] {
        assert_eq!((result.result, result.lre), (Err(Refusal::TooManyRequests), None));
    }
    assert!(bookie.machine.engine.tier_extents_waiting() <= 4 << 10);
    assert_eq!(bookie.register(49), done(49, -1));
    bookie.add(49, 1, 10);
    bookie.machine.engine.fence(ledger(49), KEY, Box::new(|outcome| assert_eq!(outcome, Ok(()))));
    bookie.flush();
    assert_eq!(bookie.machine.engine.tier_extents_waiting(), 0);
    let mut left: Vec<Reconciliation> = updates[taken..].to_vec();
    while !left.is_empty() {
        let results = bookie.reconcile(&left);
        left = left.into_iter().zip(results).filter(|(_, r)| r.result.is_err()).map(|(u, _)| u).collect();
        bookie.flush();
    }
    let mut bookie = bookie.power_cut();
    for id in 0..50 {
        assert_eq!(bookie.register(id), done(id, 0));
        assert_eq!(bookie.extents(id, 0), [(0, 0, 1)]);
    }
}

/// A replay of more than the bound allows flushes in between; so does one of a bookie that has no tier any more.
#[test]
fn a_start_takes_what_the_journal_has_whatever_the_bound() {
    let mut bookie = fresh_with(EngineConfig { tier_extents_bytes: 1 << 20, ..config(1, 1) });
    (0..2).for_each(|id| bookie.add(id, 0, 10));
    bookie.flush();
    for n in 0..200 {
        bookie.reconcile(&[update(n % 2, &[(n / 2, n / 2, n as u64)])]);
    }
    let mut bookie = bookie.power_cut_to(EngineConfig { tier_extents_bytes: 0, ..config(1, 1) });
    for id in 0..2 {
        assert_eq!(bookie.register(id), done(id, 99));
        let extents: Vec<_> = (0..100).map(|n| (n, n, (2 * n + id) as u64)).collect();
        assert_eq!(bookie.extents(id, 0), extents);
    }
    let refused = bookie.reconcile(&[update(0, &[(100, 100, 1)])]);
    assert_eq!((refused[0].result, refused[0].lre), (Err(Refusal::TooManyRequests), Some(entry(99))));
}

/// One update of more extents than a record holds.
#[test]
fn an_update_of_many_extents_takes_several_records() {
    let mut bookie =
        fresh_with(EngineConfig { tier_extents_bytes: 1 << 20, entry_bytes_max: 4 << 10, ..config(1, 1) });
    bookie.add(1, 0, 10);
    bookie.flush();
    let many: Vec<_> = (0..300).map(|n| (n, n, n as u64)).collect();
    assert_eq!(bookie.reconcile(&[update(1, &many)]), [done(1, 299)]);
    assert_eq!(bookie.extents(1, 0), many);
    let mut bookie = bookie.power_cut();
    assert_eq!(bookie.machine.replayed.records, 5);
    assert_eq!((bookie.register(1), bookie.extents(1, 0)), (done(1, 299), many));
}

/// The state of a ledger moves to another directory with the number of shards: extents are found in both, and the later
/// ones count.
#[test]
fn extents_are_found_in_every_directory() {
    let mut bookie = fresh_with(config(2, 2));
    for id in 0..20 {
        bookie.add(id, 0, 50);
        bookie.reconcile(&[update(id, &[(0, 9, 1)])]);
    }
    bookie.flush();
    for (shards, of) in [(3, 2), (4, 3), (2, 4)] {
        bookie = bookie.power_cut_to(config(2, shards));
        for id in 0..20 {
            let first = of as i64;
            assert_eq!(
                bookie.reconcile(&[update(id, &[(first, 9 + of as i64, of)])]),
                [done(id, 9 + of as i64)]
            );
        }
        bookie.flush();
    }
    for id in 0..20 {
        assert_eq!(bookie.extents(id, 0), [(0, 1, 1), (2, 2, 2), (3, 3, 3), (4, 13, 4)], "ledger {id}");
    }
    // Removed, they go everywhere.
    for id in 0..20 {
        bookie.machine.engine.remove_ledger(ledger(id), Box::new(|outcome| assert_eq!(outcome, Ok(()))));
    }
    bookie.flush();
    for dir in &bookie.config.ledger_dirs.clone() {
        let image: Arc<dyn Disk> = Arc::new(bookie.disk.durable_image());
        let (_, recovered) = bindery_storage::StateTable::open(&image, dir).unwrap();
        assert_eq!(recovered.extents, 0);
    }
}

/// Invariant 2, also when the journal is gone: a fence that goes straight to the table takes no register along that the
/// extents are not there for.
#[test]
fn a_direct_fence_leaves_register_and_extents_to_the_journal() {
    let mut bookie = with_entries(fresh(), 1, 10);
    bookie.reconcile(&[update(1, &[(0, 4, 1)])]);
    bookie.flush();
    bookie.reconcile(&[update(1, &[(5, 9, 2)])]);
    bookie.disk.set_faults(FaultPlan { write_error: 1.0, ..FaultPlan::default() });
    let lost = bookie.ask(&[update(1, &[(0, 9, 3)])]);
    assert!(!bookie.try_group(), "the journal fails");
    bookie.disk.set_faults(FaultPlan::default());
    assert_eq!(lost.lock().as_ref().unwrap()[0].result, Err(Refusal::Io));
    let refused = bookie.ask(&[update(1, &[(0, 9, 4)])]);
    assert_eq!(refused.lock().as_ref().unwrap()[0].result, Err(Refusal::Io));
    assert_eq!(bookie.extents(1, 0), [(0, 4, 1), (5, 9, 2)], "what is durable is still known");
    let fenced = Arc::new(Mutex::new(None));
    let told = fenced.clone();
    bookie.machine.engine.fence(ledger(1), KEY, Box::new(move |outcome| *told.lock() = Some(outcome)));
    bookie.machine.flushing.tend().unwrap();
    assert_eq!(*fenced.lock(), Some(Ok(())));
    let mut bookie = bookie.power_cut();
    assert!(bookie.machine.engine.is_fenced(ledger(1)));
    assert_eq!((bookie.register(1), bookie.extents(1, 0)), (done(1, 9), vec![(0, 4, 1), (5, 9, 2)]));
}

/// T19: lengths and checksums come from the index, of the newest copy of each entry, in pages.
#[test]
fn checksums_of_copies_are_those_of_the_newest() {
    let mut bookie = with_entries(fresh(), 1, 30);
    (0..30).step_by(3).for_each(|e| bookie.add(1, e, 150));
    bookie.flush();
    (40..45).for_each(|e| bookie.add(1, e, 10));
    bookie.flush();
    bookie.add(1, 44, 300);
    bookie.group();
    let (mut found, mut from) = (Vec::new(), 2);
    loop {
        let page = bookie.machine.engine.local_checksums(ledger(1), entry(from), entry(44), 7).unwrap();
        let Some(last) = page.last() else { break };
        from = last.entry.get() + 1;
        found.extend(page);
    }
    let expected = (2..30).map(|e| body(1, e, if e % 3 == 0 { 150 } else { 100 }));
    // The copy in memory is on no disk yet.
    let expected: Vec<Vec<u8>> = expected.chain((40..45).map(|e| body(1, e, 10))).collect();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        let id = i64::from_be_bytes(expected[8..16].try_into().unwrap());
        let crc = bindery_types::codec::crc32c(&[expected]);
        assert_eq!((found.entry.get(), found.length as usize, found.crc32c), (id, expected.len(), crc));
    }
    assert_eq!(
        bookie.machine.engine.local_checksums(ledger(9), entry(0), entry(9), 7),
        Err(Refusal::NoLedger)
    );
}
