use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_types::LedgerId;
use bindery_types::tier::{ObjectId, TierExtent};
use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::object::{BlockEntry, Compression, Footer};

impl<W> Core<W> {
    /// The invariants of the module, and those of its parts.
    pub fn check_invariants(&self) {
        let reserved = self.jobs.values().map(|job| job.reserved).sum::<u64>();
        self.memory.check_invariants(reserved + self.slots.values().sum::<u64>());
        let queued: BTreeMap<Key, Place> =
            self.lanes.queued().into_iter().map(|(place, key)| (key, place)).collect();
        let mut waiting = 0;
        for (key, goal) in &self.goals {
            waiting += goal.waiters.len();
            match goal.state {
                GoalState::Queued(place) => {
                    assert_eq!(queued.get(key), Some(&place), "core invariant 1");
                    assert!(!goal.waiters.is_empty(), "core invariant 1");
                }
                GoalState::Running(job) => {
                    assert!(!queued.contains_key(key), "core invariant 1");
                    assert!(self.jobs.contains_key(&job), "core invariant 1: {key:?}");
                }
            }
            assert!(goal.waiters.iter().all(|id| self.waiters[id].goal == *key), "core invariant 2");
        }
        let in_queues = self.goals.values().filter(|goal| matches!(goal.state, GoalState::Queued(_)));
        assert_eq!(in_queues.count(), queued.len(), "core invariant 1");
        assert_eq!((waiting, self.deadlines.len()), (self.waiters.len(), self.waiters.len()));
        assert!(
            self.running() <= self.options.requests_max
                && self.slots.len() <= self.options.requests_of_checks_max
        );
        let readers: BTreeSet<ReaderId> = self.waiters.values().map(|waiter| waiter.ask.reader).collect();
        for reader in readers {
            let of_reader = self.waiters.values().filter(|waiter| waiter.ask.reader == reader).count();
            assert_eq!(self.lanes.waiters(reader), of_reader);
            assert!(of_reader <= self.options.waiters_per_reader_max);
            assert!(self.lanes.running(reader) <= self.options.requests_per_reader_max);
        }
        assert!(self.waiters.len() <= self.options.waiters_max);
    }

    fn is_idle(&self) -> bool {
        self.waiters.is_empty() && self.goals.is_empty() && self.jobs.is_empty() && self.lanes.is_idle()
    }
}

const BLOCKS: i64 = 12;
const ENTRIES: i64 = 3;
const BLOCK_BYTES: u32 = 1_000;
/// With what each entry and the block take in memory.
const BLOCK_COST: u64 = BLOCK_BYTES as u64 + ENTRIES as u64 * 32 + 256;

fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}

fn ledger(id: i64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn object(number: u8) -> ObjectRef {
    ObjectRef {
        id: ObjectId::new(1, [number; 10]),
        length_bytes: 101_000,
        footer_offset: 100_000,
        footer_crc: 7,
        etag_crc: 0,
    }
}

/// Ledgers 0 and 1, each with twelve blocks of three entries.
fn index() -> Arc<Index> {
    let extents = (0..2_i64).map(|of| {
        let begin = 64 + of as u64 * u64::from(BLOCK_BYTES) * BLOCKS as u64;
        let blocks = (0..BLOCKS).map(|at| BlockEntry {
            first: entry(at * ENTRIES),
            offset: begin + at as u64 * u64::from(BLOCK_BYTES),
            stored_size_bytes: BLOCK_BYTES,
            raw_size_bytes: BLOCK_BYTES,
            crc32c: 0,
            compression: Compression::None,
        });
        Extent {
            ledger: ledger(of),
            first: entry(0),
            last: entry(BLOCKS * ENTRIES - 1),
            body_bytes: 0,
            table_offset: 0,
            table_crc32c: 0,
            blocks: blocks.collect(),
        }
    });
    Arc::new(Index::new(Footer { ledgers: Default::default(), extents: extents.collect() }))
}

fn block(first: EntryId) -> Block {
    Block { first, entries: vec![Bytes::new(); ENTRIES as usize] }
}

fn options() -> FetchOptions {
    FetchOptions {
        memory_bytes_max: 40_000,
        index_bytes_max: 8_000,
        requests_max: 4,
        requests_per_reader_max: 3,
        requests_of_checks_max: 1,
        waiters_max: 40,
        waiters_per_reader_max: 16,
        ahead_bytes_max: 4 * BLOCK_COST,
        ..FetchOptions::default()
    }
}

fn ask(reader: u64, of: u8, from: i64, id: i64) -> Ask {
    let extent = TierExtent { first: entry(0), last: entry(BLOCKS * ENTRIES - 1), object: object(of) };
    Ask { reader: ReaderId(reader), ledger: ledger(from), entry: entry(id), extent }
}

/// A core with what came out of it.
struct World {
    core: Core<u64>,
    now_ns: u64,
    next: u64,
    /// Those that were neither answered nor cancelled, and what they can be cancelled with.
    open: BTreeMap<u64, Option<WaiterId>>,
    answers: BTreeMap<u64, Result<Got, FetchError>>,
    jobs: Vec<Start>,
    pins: Vec<PinId>,
    slots: Vec<SlotId>,
}

impl World {
    fn new(options: FetchOptions) -> World {
        World {
            core: Core::new(options),
            now_ns: 0,
            next: 0,
            open: BTreeMap::new(),
            answers: BTreeMap::new(),
            jobs: Vec::new(),
            pins: Vec::new(),
            slots: Vec::new(),
        }
    }

    fn apply(&mut self, out: Vec<Action<u64>>) {
        for action in out {
            match action {
                Action::Start(start) => self.jobs.push(start),
                Action::Answer(token, outcome) => {
                    assert!(
                        self.open.remove(&token).is_some(),
                        "fetch invariant 6: {token} once, and not cancelled"
                    );
                    match outcome {
                        Ok(Got::Entry(pin)) => self.pins.push(pin),
                        Ok(Got::Slot(slot)) => self.slots.push(slot),
                        Err(_) => {}
                    }
                    self.answers.insert(token, outcome);
                }
                Action::Drop(_) => {}
            }
        }
        self.core.check_invariants();
    }

    fn step<R>(&mut self, change: impl FnOnce(&mut Core<u64>, u64, &mut Vec<Action<u64>>) -> R) -> R {
        let mut out = Vec::new();
        let result = change(&mut self.core, self.now_ns, &mut out);
        self.apply(out);
        result
    }

    fn token(&mut self) -> u64 {
        self.next += 1;
        self.open.insert(self.next, None);
        self.next
    }

    fn ask(&mut self, ask: Ask) -> u64 {
        let token = self.token();
        match self.step(|core, now_ns, out| core.ask(now_ns, ask, token, out)) {
            Ok(Asked::Here(pin, block)) => {
                assert!(block.entry(ask.entry).is_some(), "fetch invariant 1");
                self.open.remove(&token);
                self.answers.insert(token, Ok(Got::Entry(pin)));
                self.pins.push(pin);
            }
            Ok(Asked::Waits(id)) => {
                if let Some(waits) = self.open.get_mut(&token) {
                    *waits = Some(id);
                }
            }
            Err((error, token)) => {
                self.open.remove(&token);
                self.answers.insert(token, Err(error));
            }
        }
        token
    }

    fn ask_slot(&mut self, bytes: u64) {
        let token = self.token();
        let id = self.step(|core, now_ns, out| core.slot(now_ns, (&object(0), bytes), token, out));
        if let Some(waits) = self.open.get_mut(&token) {
            *waits = id;
        }
    }

    fn cancel(&mut self, token: u64) {
        let Some(Some(id)) = self.open.get(&token).copied() else { return };
        self.open.remove(&token);
        assert_eq!(self.step(|core, now_ns, out| core.cancel(now_ns, id, out)), Some(token));
    }

    /// Delivers what is left of a job, and ends it with this result.
    fn finish(&mut self, at: usize, delivers: usize, result: Result<(), FetchError>) {
        let start = self.jobs.remove(at);
        let id = start.job;
        match &start.what {
            What::Index if delivers > 0 => {
                self.step(|core, now_ns, out| core.index_arrived(now_ns, id, index(), out));
            }
            What::Index => {}
            What::Blocks(extent, delivered) => {
                for block_at in extent.blocks.iter().skip(*delivered).take(delivers) {
                    self.step(|core, now_ns, out| core.block_arrived(now_ns, id, block(block_at.first), out));
                }
            }
        }
        self.step(|core, now_ns, out| core.finished(now_ns, id, result, out));
    }

    fn finish_all(&mut self) {
        while !self.jobs.is_empty() {
            self.finish(0, usize::MAX, Ok(()));
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now_ns += time.as_nanos() as u64;
        self.step(|core, now_ns, out| core.tick(now_ns, out));
    }

    fn unpin(&mut self, at: usize) {
        let pin = self.pins.swap_remove(at);
        self.step(|core, now_ns, out| core.unpin(now_ns, pin, out));
    }
}

fn unreachable(reason: &str) -> FetchError {
    FetchError::Unreachable { reason: reason.into() }
}

#[test]
fn one_request_serves_all_that_want_the_same() {
    let mut world = World::new(options());
    let tokens: Vec<u64> = (0..10).map(|at| world.ask(ask(at % 5, 0, 0, at as i64 % 3))).collect();
    assert_eq!(world.jobs.len(), 1, "fetch invariant 3: the footer");
    world.finish(0, 1, Ok(()));
    assert_eq!(world.jobs.len(), 1, "fetch invariant 3: the block");
    world.finish(0, 1, Ok(()));
    assert!(tokens.iter().all(|token| world.answers[token].is_ok()));
    assert_eq!(world.core.stats().requests_failed, 0);
    world.ask(ask(9, 0, 0, 2));
    assert!(world.jobs.is_empty(), "it is in the cache");
}

#[test]
fn who_reads_in_sequence_gets_several_blocks_with_one_request_and_is_read_ahead_of() {
    let mut world = World::new(options());
    let mut requests = 0;
    for id in 0..BLOCKS * ENTRIES {
        let token = world.ask(ask(1, 0, 0, id));
        while !world.jobs.is_empty() {
            requests += 1;
            world.finish(0, usize::MAX, Ok(()));
        }
        assert!(world.answers[&token].is_ok());
        world.pins.clear();
        let pins: Vec<PinId> = world
            .answers
            .values()
            .filter_map(|got| match got {
                Ok(Got::Entry(pin)) => Some(*pin),
                _ => None,
            })
            .collect();
        pins.into_iter().for_each(|pin| world.step(|core, now_ns, out| core.unpin(now_ns, pin, out)));
    }
    // The footer, and blocks 0, 1 with 2, then four at a time.
    assert!(requests <= 6, "{requests} requests");
    assert!(world.core.stats().blocks_ahead >= 8);
    // Single reads are not taken for a sequence.
    let mut world = World::new(options());
    for id in [30, 3, 18] {
        world.ask(ask(1, 0, 0, id));
        world.finish_all();
    }
    assert_eq!(world.core.stats().blocks_ahead, 0);
}

#[test]
fn readers_take_turns_and_none_has_all_slots() {
    let mut world = World::new(options());
    world.ask(ask(1, 0, 0, 0));
    world.finish_all();
    for at in [1, 5, 7, 9, 11] {
        world.ask(ask(1, 0, 0, at * ENTRIES));
    }
    assert_eq!(world.jobs.len(), 3, "fetch invariant 5");
    let other = world.ask(ask(2, 0, 1, 0));
    assert_eq!(world.jobs.len(), 4, "fetch invariant 5: a slot was left");
    world.finish(3, 1, Ok(()));
    assert!(world.answers[&other].is_ok());
}

#[test]
fn a_pin_that_is_not_used_is_revoked_when_others_need_the_memory() {
    let mut world = World::new(FetchOptions { memory_bytes_max: 10_000, ..options() });
    for at in [0, 2, 4, 6] {
        world.ask(ask(1, 0, 0, at * ENTRIES));
        world.finish_all();
    }
    assert_eq!(world.pins.len(), 4);
    // One is being used.
    let used = world.pins[0];
    assert!(world.step(|core, _, _| core.open(used)).is_some());
    for at in [8, 10] {
        world.ask(ask(2, 0, 0, at * ENTRIES));
        world.finish_all();
    }
    for at in [1, 3] {
        world.ask(ask(2, 0, 1, at * ENTRIES));
    }
    assert!(world.core.is_starving, "all of it is pinned");
    assert!(world.core.next_tick_ns() <= Some(world.now_ns + 1_000_000_000));
    world.pass(Duration::from_secs(1));
    world.finish_all();
    assert!(world.core.stats().pins_revoked >= 1, "fetch invariant 4");
    assert!(world.step(|core, _, _| core.open(used)).is_some(), "fetch invariant 4: it is in use");
    world.step(|core, now_ns, _| core.close(now_ns, used));
    assert!(world.open.is_empty());
}

#[test]
fn a_store_out_of_reach_is_tried_once_in_a_while() {
    let mut world = World::new(options());
    let tokens: Vec<u64> = (0..8).map(|at| world.ask(ask(at, at as u8, 0, 0))).collect();
    let mut tries = 0;
    while !world.jobs.is_empty() {
        tries += 1;
        world.now_ns = world.now_ns.max(world.jobs[0].at_ns);
        world.finish(0, 0, Err(unreachable("503")));
    }
    assert!((5..=8).contains(&tries), "{tries}");
    assert!(tokens.iter().all(|token| world.answers[token] == Err(unreachable("503"))));
    let refused = world.ask(ask(1, 0, 0, 0));
    assert_eq!(world.answers[&refused], Err(unreachable("503")), "fetch invariant 7: at once");
    world.pass(Duration::from_secs(1));
    world.ask(ask(1, 0, 0, 0));
    let refused = world.ask(ask(1, 0, 0, 3));
    assert_eq!(world.answers[&refused], Err(unreachable("503")), "fetch invariant 7: one tries");
    world.finish(0, 0, Err(unreachable("still")));
    assert!(world.jobs.is_empty(), "it is not tried again at once");
    world.pass(Duration::from_secs(1));
    world.ask(ask(1, 0, 0, 0));
    assert!(world.jobs.is_empty(), "the pause has doubled");
    world.pass(Duration::from_secs(1));
    let token = world.ask(ask(1, 0, 0, 0));
    world.finish_all();
    assert!(world.answers[&token].is_ok());
    assert!(world.core.stats().is_reachable);
}

#[test]
fn a_store_that_hangs_counts_as_out_of_reach_before_its_requests_end() {
    let mut world = World::new(FetchOptions { failures_max: 3, ..options() });
    for at in 0..8 {
        world.ask(ask(at, at as u8, 0, 0));
    }
    assert_eq!(world.jobs.len(), 4);
    world.pass(Duration::from_secs(5));
    assert!(world.open.is_empty(), "fetch invariant 6: all are told by their deadline");
    assert!(world.answers.values().all(Result::is_err));
    assert!(!world.core.stats().is_reachable);
    let refused = world.ask(ask(1, 0, 0, 0));
    assert!(matches!(world.answers[&refused], Err(FetchError::Unreachable { .. })));
    // An answer that comes late is of use after all.
    world.finish(0, 1, Ok(()));
    assert!(world.core.stats().is_reachable);
}

/// One object that the store does not let be read is no reason to keep from reading others.
#[test]
fn an_object_that_is_refused_leaves_the_others_alone() {
    let mut world = World::new(FetchOptions { failures_max: 3, ..options() });
    let refused = FetchError::Refused { object: object(0).id, reason: "403".into() };
    for _ in 0..10 {
        let token = world.ask(ask(1, 0, 0, 0));
        world.finish(0, 0, Err(refused.clone()));
        assert_eq!(world.answers[&token], Err(refused.clone()));
        let other = world.ask(ask(2, 1, 0, 0));
        world.finish_all();
        assert!(world.answers[&other].is_ok(), "fetch invariant 7");
        let again = world.ask(ask(1, 0, 0, 3));
        assert_eq!(world.answers[&again], Err(refused.clone()), "it is not asked for again at once");
        world.pass(Duration::from_secs(10));
    }
    assert!(world.core.stats().is_reachable);
    assert_eq!(world.core.stats().alarms, 0, "the object is as it was");
}

#[test]
fn a_missing_object_is_an_alarm_and_not_asked_for_again_at_once() {
    let mut world = World::new(options());
    let missing = FetchError::Missing { object: object(0).id, reason: "404".into() };
    for _ in 0..2 {
        let token = world.ask(ask(1, 0, 0, 0));
        if !world.jobs.is_empty() {
            world.finish(0, 0, Err(missing.clone()));
        }
        assert_eq!(world.answers[&token], Err(missing.clone()), "fetch invariant 2");
    }
    assert_eq!(world.core.stats().alarms, 1);
    assert!(world.core.stats().is_reachable);
    world.pass(Duration::from_secs(10));
    world.ask(ask(1, 0, 0, 0));
    assert_eq!(world.jobs.len(), 1);
}

#[test]
fn a_damaged_block_harms_no_other() {
    let mut world = World::new(options());
    for at in 0..2 {
        world.ask(ask(1, 0, 0, at * ENTRIES));
        world.finish_all();
    }
    let damaged = FetchError::Different { object: object(0).id, difference: "a bit".into() };
    // Block 2 came with block 1, and has those from 3 on read ahead.
    let [_, bad, good] = [2, 3, 4].map(|at| world.ask(ask(1, 0, 0, at * ENTRIES)));
    let start = world.jobs.remove(0);
    let What::Blocks(extent, 0) = &start.what else { panic!("blocks") };
    assert!(extent.blocks.len() >= 2);
    world.step(|core, now_ns, out| core.block_failed(now_ns, start.job, &damaged, out));
    for place in &extent.blocks[1..] {
        world.step(|core, now_ns, out| core.block_arrived(now_ns, start.job, block(place.first), out));
    }
    world.step(|core, now_ns, out| core.finished(now_ns, start.job, Ok(()), out));
    assert_eq!(world.answers[&bad], Err(damaged));
    assert!(world.answers[&good].is_ok());
}

#[test]
fn checks_have_one_request_beside_readers_and_more_when_none_has_anything_queued() {
    let mut world = World::new(FetchOptions { requests_of_checks_max: 2, ..options() });
    for at in 0..8 {
        world.ask(ask(at, at as u8, 0, 0));
    }
    world.ask_slot(1_000);
    world.ask_slot(1_000);
    assert!(world.slots.is_empty(), "readers have all requests: {:?}", world.slots);
    // The first that ends makes room for one, while readers have more queued.
    world.finish(0, usize::MAX, Ok(()));
    assert_eq!(world.slots.len(), 1, "fetch invariant 5");
    world.finish(0, usize::MAX, Ok(()));
    assert_eq!(world.slots.len(), 1, "fetch invariant 5");
    world.finish_all();
    assert_eq!(world.slots.len(), 2, "fetch invariant 5");
    for slot in std::mem::take(&mut world.slots) {
        world.step(|core, now_ns, out| core.slot_done(now_ns, slot, Some(Ok(())), out));
    }
}

/// The store's word that an object is missing is doubted soon; a damaged part is left alone for longer.
#[test]
fn a_missing_object_is_asked_for_again_soon() {
    let mut world = World::new(options());
    let missing = FetchError::Missing { object: object(0).id, reason: "404".into() };
    let first = world.ask(ask(1, 0, 0, 0));
    world.finish(0, 0, Err(missing.clone()));
    assert_eq!(world.answers[&first], Err(missing.clone()));
    let at_once = world.ask(ask(1, 0, 0, 0));
    assert_eq!(world.answers[&at_once], Err(missing));
    world.pass(Duration::from_millis(250));
    let later = world.ask(ask(1, 0, 0, 0));
    world.finish_all();
    assert!(world.answers[&later].is_ok(), "{:?}", world.answers[&later]);
}

#[test]
fn a_part_larger_than_the_memory_is_an_error() {
    let mut world = World::new(FetchOptions { memory_bytes_max: 4_000, ..options() });
    let token = world.ask(ask(1, 0, 0, 0));
    assert!(matches!(world.answers[&token], Err(FetchError::TooLarge { .. })));
    assert!(world.core.is_idle());
}

#[derive(Debug, Clone)]
enum Op {
    Ask(u64, u8, i64, i64),
    AskSlot(u64),
    Cancel(usize),
    Finish(usize, usize, u8),
    Pass(u64),
    Open(usize),
    Close(usize),
    Unpin(usize),
    SlotDone(bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..4_u64, 0..3_u8, 0..2_i64, 0..BLOCKS * ENTRIES).prop_map(|(r, o, l, e)| Op::Ask(r, o, l, e)),
        // In sequence, mostly.
        4 => (0..2_u64, 0..BLOCKS * ENTRIES).prop_map(|(r, e)| Op::Ask(r, 0, 0, e / 4)),
        1 => (0..20_000_u64).prop_map(Op::AskSlot),
        4 => (0..64_usize).prop_map(Op::Cancel),
        10 => (0..4_usize, 0..4_usize, 0..8_u8).prop_map(|(j, d, r)| Op::Finish(j, d, r)),
        2 => (0..4_000_u64).prop_map(Op::Pass),
        2 => (0..64_usize).prop_map(Op::Open),
        1 => (0..64_usize).prop_map(Op::Close),
        6 => (0..64_usize).prop_map(Op::Unpin),
        2 => any::<bool>().prop_map(Op::SlotDone),
    ]
}

fn run(ops: Vec<Op>) {
    let mut world = World::new(options());
    for op in ops {
        match op {
            Op::Ask(reader, of, from, id) => drop(world.ask(ask(reader, of, from, id))),
            Op::AskSlot(bytes) => world.ask_slot(bytes),
            Op::Cancel(at) => {
                let token = world.open.keys().nth(at).copied();
                token.into_iter().for_each(|token| world.cancel(token));
            }
            Op::Finish(at, delivers, outcome) if at < world.jobs.len() => match outcome {
                0 => world.finish(at, delivers, Err(unreachable("lost"))),
                1 => {
                    let missing = FetchError::Missing { object: object(0).id, reason: "404".into() };
                    world.finish(at, delivers, Err(missing));
                }
                _ => world.finish(at, usize::MAX, Ok(())),
            },
            Op::Pass(ms) => world.pass(Duration::from_millis(ms)),
            Op::Open(at) if at < world.pins.len() => {
                let pin = world.pins[at];
                drop(world.step(|core, _, _| core.open(pin)));
            }
            Op::Close(at) if at < world.pins.len() => {
                let pin = world.pins[at];
                world.step(|core, now_ns, _| core.close(now_ns, pin));
            }
            Op::Unpin(at) if at < world.pins.len() => world.unpin(at),
            Op::SlotDone(is_good) if !world.slots.is_empty() => {
                let slot = world.slots.remove(0);
                let outcome = if is_good { Ok(()) } else { Err("lost".into()) };
                world.step(|core, now_ns, out| core.slot_done(now_ns, slot, Some(outcome), out));
            }
            _ => {}
        }
    }
    // Idle means zero.
    let open: Vec<u64> = world.open.keys().copied().collect();
    open.into_iter().for_each(|token| world.cancel(token));
    while !world.slots.is_empty() {
        let slot = world.slots.remove(0);
        world.step(|core, now_ns, out| core.slot_done(now_ns, slot, None, out));
    }
    world.finish_all();
    while !world.pins.is_empty() {
        world.unpin(0);
    }
    assert!(world.open.is_empty() && world.core.is_idle(), "fetch invariant 8");
    world.step(|core, now_ns, out| core.stop(now_ns, out));
    let stats = world.core.stats();
    let left = (stats.under_way_bytes, stats.block_bytes, stats.index_bytes, stats.pins, stats.waiting);
    assert_eq!(left, (0, 0, 0, 0, 0), "fetch invariant 4");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]

    /// 10^5 operations in all.
    #[test]
    fn nothing_is_lost_and_nothing_is_kept(ops in prop::collection::vec(op(), 400)) {
        run(ops);
    }
}
