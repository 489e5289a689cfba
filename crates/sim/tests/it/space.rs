//! Merging, steps of planning, failed outputs, the grace of replaced files, and the scrub, on the simulated disk.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_engine::{
    Add, AddDone, AddSink, EngineConfig, EntryRef, GroupTimes, Lookup, Machine, Origin, Refusal, SpaceConfig,
    WantedCollection,
};
use bindery_io::{Disk, ManualClock, SeededRandom};
use bindery_sim::disk::{FaultKind, SimDisk, SimDiskConfig};
use bindery_storage::{EntryLog, Extent, Generation};
use bindery_types::{EntryId, LedgerId, MasterKey};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

mod healing;

const KEY: MasterKey = MasterKey::new([1; 20]);
const DIR: &str = "/data/ledgers";

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

fn config(space: SpaceConfig) -> EngineConfig {
    EngineConfig {
        journal_dirs: vec![PathBuf::from("/data/journal")],
        ledger_dirs: vec![PathBuf::from(DIR)],
        shard_count: 1,
        write_pool_bytes: 4 << 20,
        chunk_bytes: 64 << 10,
        journal_file_bytes: 256 << 10,
        group_bytes_max: 1 << 20,
        entry_bytes_max: 16 << 10,
        space,
        ..EngineConfig::default()
    }
}

/// Merges four logs; no other upkeep runs by itself.
fn merging() -> SpaceConfig {
    SpaceConfig {
        merge_fan_in: 4,
        logs_in_memory_as_one: 8,
        replaced_grace: Duration::ZERO,
        scrub_period: Duration::ZERO,
        collection_interval: Duration::from_secs(3600),
        ..SpaceConfig::default()
    }
}

/// Merges nothing.
fn quiet() -> SpaceConfig {
    SpaceConfig { merge_fan_in: 0, ..merging() }
}

fn start(disk: Arc<SimDisk>, config: EngineConfig) -> Bookie {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let random = Arc::new(SeededRandom::new(1));
    let machine = Machine::open(config.clone(), disk.clone(), clock.clone(), random).unwrap();
    Bookie { disk, machine, clock, config }
}

fn fresh(space: SpaceConfig) -> Bookie {
    fresh_with(config(space))
}

fn fresh_with(config: EngineConfig) -> Bookie {
    let disk = Arc::new(SimDisk::new(SimDiskConfig::default(), &SeededRandom::new(7)));
    disk.create_dir_all(Path::new("/data")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    start(disk, config)
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
        assert_eq!(self.machine.engine.add_batch(0, &[add]), 1, "there is room");
    }

    fn group(&mut self) {
        let Some(in_flight) = self.machine.journals[0].cut() else { return };
        let written = self.machine.journals[0].write(&in_flight);
        let mut done = self.machine.journals[0].finish(in_flight, written);
        if let Some(ticket) = done.freeze.take() {
            let mark = self.machine.flushing.flush(ticket).unwrap();
            self.machine.journals[0].on_flushed(mark);
        }
        done.deliver(&Nobody);
    }

    fn flush(&mut self) {
        self.group();
        self.machine.want_freeze();
        self.group();
    }

    fn read(&self, id: i64, e: i64) -> Result<Vec<u8>, Refusal> {
        match self.machine.engine.read(ledger(id), EntryRef::At(entry(e)))? {
            Lookup::Memory(body) => Ok(body.to_vec()),
            Lookup::Disk(read) => read.load(),
            Lookup::Tiered(_) => panic!("nothing is in object storage"),
            Lookup::Undurable(_) => panic!("{id} is not durable"),
        }
    }

    /// Steps, a second each, until nothing is left to do.
    fn rest(&mut self) {
        for _ in 0..2000 {
            self.clock.advance(Duration::from_secs(1));
            match self.machine.flushing.tend() {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
        panic!("it does not end");
    }

    fn collect(&mut self) {
        self.machine.engine.want_collection(WantedCollection { minor: false, major: true });
        self.rest();
    }

    /// Requests a pass of the scrub; returns the number of its findings.
    fn scrub(&mut self) -> u64 {
        let request = self.machine.engine.want_scrub();
        for _ in 0..2000 {
            self.clock.advance(Duration::from_secs(1));
            self.machine.flushing.tend().unwrap();
            let status = self.machine.engine.scrub_status();
            if status.answered >= request {
                return status.last.unwrap().findings;
            }
        }
        panic!("the scrub does not end");
    }

    fn files(&self) -> Vec<PathBuf> {
        let files = self.disk.list(Path::new(DIR)).unwrap();
        let logs = files.into_iter().filter(|file| file.name.ends_with(".elog"));
        logs.map(|file| Path::new(DIR).join(file.name)).collect()
    }

    fn extents(&self, path: &Path) -> Vec<Extent> {
        let disk: Arc<dyn Disk> = self.disk.clone();
        EntryLog::open_file(&disk, path).unwrap().1
    }

    fn power_cut(self) -> Bookie {
        let left = self.disk.crash(&SeededRandom::new(3));
        start(Arc::new(left), self.config)
    }
}

/// Under a load that never lets the flush thread rest, logs are merged between the writes of a flush, where merges are far behind;
/// neither what is merged nor what the flush brings is lost, nor in a power cut afterwards.
#[test]
fn merges_that_are_behind_go_on_between_the_writes_of_a_flush() {
    let disk = Arc::new(SimDisk::new(SimDiskConfig::default(), &SeededRandom::new(7)));
    disk.create_dir_all(Path::new("/data")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let config = EngineConfig {
        write_pool_bytes: 16 << 20,
        journal_file_bytes: 4 << 20,
        group_bytes_max: 4 << 20,
        // A merge of all the small logs takes several steps.
        ..config(SpaceConfig { step_bytes: 8000, bytes_per_second: 1 << 30, ..merging() })
    };
    let random = Arc::new(SeededRandom::new(1));
    let clock = Arc::new(ManualClock::new(1_700_000_000_000).ticking(Duration::from_micros(20)));
    let machine = Machine::open(config.clone(), disk.clone(), clock, random).unwrap();
    let mut bookie = Bookie { disk, machine, clock: Arc::new(ManualClock::new(0)), config };
    let merges = |bookie: &Bookie| bookie.machine.engine.space_status().merges;
    // A merge begins with those that are there; with those that come meanwhile it is behind.
    for (begin, end) in [(0, 40), (40, 55)] {
        for e in begin..end {
            (0..10).for_each(|id| bookie.add(id, e, 100));
            bookie.flush();
        }
        // As the flush thread does behind a flush: one step.
        bookie.machine.flushing.tend().unwrap();
    }
    assert_eq!(merges(&bookie), 0, "two steps are not enough");
    // Three writes each.
    let (size, large) = (15 << 10, 200);
    let mut flushes = 0;
    while merges(&bookie) == 0 {
        for e in 0..large {
            bookie.add(20 + flushes, e, size);
            if e % 50 == 0 {
                bookie.group();
            }
        }
        bookie.flush();
        flushes += 1;
        assert!(flushes < 20, "{} logs, {} merges", bookie.files().len(), merges(&bookie));
    }
    assert!(bookie.files().len() < 55, "{} logs", bookie.files().len());
    let check = |bookie: &Bookie, when: &str| {
        for (id, e) in (0..10).flat_map(|id| (0..55).map(move |e| (id, e))) {
            assert_eq!(bookie.read(id, e), Ok(body(id, e, 100)), "{when}");
        }
        for (id, e) in (20..20 + flushes).flat_map(|id| (0..large).map(move |e| (id, e))) {
            assert_eq!(bookie.read(id, e), Ok(body(id, e, size)), "{when}");
        }
    };
    check(&bookie, "before");
    check(&bookie.power_cut(), "after a power cut");
}

/// Four logs that each have a piece of ledgers 0 to 2, and a copy of 5:0 that the next one overtakes.
fn four_flushes(space: SpaceConfig) -> Bookie {
    let mut bookie = fresh(space);
    for flush in 0..4 {
        for id in 0..3 {
            (0..10).for_each(|e| bookie.add(id, flush * 10 + e, 100));
        }
        bookie.add(5, 0, flush as usize);
        bookie.flush();
    }
    bookie
}

fn check_four(bookie: &Bookie, when: &str) {
    for id in 0..3 {
        for e in 0..40 {
            assert_eq!(bookie.read(id, e), Ok(body(id, e, 100)), "{when}");
        }
    }
    assert_eq!(bookie.read(5, 0), Ok(body(5, 0, 3)), "{when}");
}

/// Space invariant 2, and what merging is for: one log, with one run for each ledger, whatever flush an entry came from.
#[test]
fn small_logs_become_one_with_a_run_for_each_ledger() {
    let mut bookie = four_flushes(merging());
    assert_eq!(bookie.files().len(), 4);
    bookie.rest();
    let files = bookie.files();
    assert_eq!(files.len(), 1);
    let extents = bookie.extents(&files[0]);
    let runs: Vec<_> =
        extents.iter().map(|run| (run.ledger.get(), run.first.get(), run.last.get(), run.stride)).collect();
    assert_eq!(runs, [(0, 0, 39, 1), (1, 0, 39, 1), (2, 0, 39, 1), (5, 0, 0, 1)]);
    assert!(extents.iter().all(|run| run.generation == extents[0].generation));
    check_four(&bookie, "merged");
    let status = bookie.machine.engine.space_status();
    assert_eq!((status.merges, status.logs_merged, status.logs_rewritten), (1, 4, 0));
    let stats = bookie.machine.engine.stats();
    assert!(stats.merged_bytes > 12_000 && stats.merged_bytes < stats.flushed_bytes, "{stats:?}");
    // Entries added later are newer.
    bookie.add(5, 0, 50);
    bookie.flush();
    assert_eq!(bookie.read(5, 0), Ok(body(5, 0, 50)));
    let bookie = bookie.power_cut();
    assert_eq!(bookie.read(5, 0), Ok(body(5, 0, 50)));
}

/// IB15, IB18: a crash at any step of a merge leaves the four or the one, and every entry.
#[test]
fn a_crash_anywhere_in_a_merge_loses_nothing() {
    let (mut before, mut after) = (0, 0);
    for operations in 0..1000 {
        let mut bookie = four_flushes(merging());
        bookie.disk.crash_after(operations);
        bookie.rest();
        let is_over = !bookie.disk.is_off();
        if is_over {
            check_four(&bookie, "without a crash");
        }
        for seed in 0..3 {
            let left = bookie.disk.crash(&SeededRandom::new(operations * 10 + seed));
            let restarted = start(Arc::new(left), config(quiet()));
            check_four(&restarted, &format!("crash at operation {operations}, seed {seed}"));
            match restarted.files().len() {
                1 => after += 1,
                4 => before += 1,
                files => panic!("{files} files after a crash at operation {operations}"),
            }
        }
        if is_over {
            assert!(before > 9 && after > 9, "{before} before, {after} after");
            return;
        }
    }
    panic!("the merge does not end");
}

/// Rule 1 of `job`: an older copy does not rise above a newer one that cannot be read, or it would answer for it.
#[test]
fn a_copy_that_may_be_overtaken_keeps_its_age() {
    let mut bookie = fresh(merging());
    (0..4).for_each(|e| bookie.add(1, e, 100));
    bookie.flush();
    // The newer copy of entry 1, in a run of varying distances.
    [1, 5, 8].iter().for_each(|e| bookie.add(1, *e, 200));
    bookie.flush();
    let newer = bookie.files()[1].clone();
    let run = bookie.extents(&newer)[0];
    // Its first record: nobody can tell any more which entries the run holds.
    let record = 4096 + run.body_bytes();
    bookie.disk.flip_bits(&newer, record, 3).unwrap();
    for e in 100..103 {
        bookie.add(1, e, 100);
        bookie.flush();
    }
    assert_eq!(bookie.read(1, 1), Err(Refusal::Io));
    bookie.rest();
    let status = bookie.machine.engine.space_status();
    assert_eq!((status.logs_merged, status.skipped.len()), (4, 0), "{status:?}");
    assert_eq!(bookie.machine.engine.damage_summary().logs, 1, "a read found it");
    assert_eq!(bookie.files().len(), 2, "the damaged one and the new one");
    assert_eq!(bookie.read(1, 1), Err(Refusal::Io), "the older copy does not answer for the newer one");
    for e in [0, 100, 101, 102] {
        assert_eq!(bookie.read(1, e), Ok(body(1, e, 100)));
    }
}

/// Rule 2 of `job`, IB17: copies from an earlier life of a ledger do not rise above the removal that ended it, also
/// while a later removal is under way that a power cut then forgets.
#[test]
fn what_was_removed_does_not_come_back_by_a_merge() {
    let mut bookie = fresh(merging());
    bookie.add(7, 0, 100);
    bookie.add(1, 0, 100);
    bookie.flush();
    bookie.machine.engine.remove_ledger(ledger(7), Box::new(|_| {}));
    bookie.flush();
    bookie.machine.engine.revive_ledger(ledger(7), KEY, Box::new(|_| {}));
    bookie.group();
    for e in 1..4 {
        bookie.add(7, e, 100);
        bookie.flush();
    }
    bookie.machine.engine.remove_ledger(ledger(7), Box::new(|_| {}));
    bookie.rest();
    assert_eq!(bookie.machine.engine.space_status().merges, 1);
    let bookie = bookie.power_cut();
    assert_eq!(bookie.read(7, 0), Err(Refusal::NoEntry));
    assert_eq!(bookie.read(7, 3), Ok(body(7, 3, 100)));
}

/// Space invariant 6: an output that does not read back is removed, the bookie takes adds as before, and the next
/// attempt succeeds.
#[test]
fn an_output_that_does_not_read_back_is_dropped() {
    let mut bookie = four_flushes(merging());
    let output = Path::new(DIR).join(format!("{:016x}.elog", 4));
    bookie.disk.order_fault(FaultKind::ReadError, Some(&output));
    bookie.machine.flushing.tend().unwrap();
    for _ in 0..5 {
        bookie.clock.advance(Duration::from_secs(1));
        bookie.machine.flushing.tend().unwrap();
    }
    let status = bookie.machine.engine.space_status();
    assert_eq!((status.errors, status.merges), (1, 0), "{status:?}");
    assert_eq!(bookie.files().len(), 4, "nothing is left of it");
    assert_eq!(bookie.machine.engine.status().failed, None);
    bookie.add(9, 0, 10);
    bookie.group();
    // Later, not at once.
    bookie.clock.advance(Duration::from_secs(60));
    bookie.rest();
    assert_eq!(bookie.files().len(), 1);
    check_four(&bookie, "at the second attempt");
}

/// Files of replaced logs stay for their grace; a start removes them.
#[test]
fn replaced_files_stay_for_their_grace() {
    let grace = Duration::from_secs(30);
    let mut bookie = four_flushes(SpaceConfig { replaced_grace: grace, ..merging() });
    bookie.rest();
    assert_eq!(bookie.machine.engine.space_status().merges, 1);
    assert_eq!(bookie.files().len(), 5, "the old ones stay");
    let status = bookie.machine.engine.space_status();
    assert!(status.replaced_files == 4 && status.replaced_bytes >= 4 * 8192, "{status:?}");
    let restarted = start(Arc::new(bookie.disk.durable_image()), config(quiet()));
    assert_eq!(restarted.files().len(), 1);
    check_four(&restarted, "after a restart");
    bookie.clock.advance(grace);
    bookie.rest();
    assert_eq!(bookie.files().len(), 1);
    assert_eq!(bookie.machine.engine.space_status().replaced_files, 0);
}

/// Room matters more than grace.
#[test]
fn replaced_files_go_at_once_where_space_is_short() {
    let mut bookie = four_flushes(SpaceConfig { replaced_grace: Duration::from_secs(3600), ..merging() });
    bookie.rest();
    assert_eq!(bookie.files().len(), 5);
    let space = bookie.disk.space(Path::new(DIR)).unwrap();
    bookie.disk.set_capacity(Some(space.total - space.free + 10_000));
    bookie.clock.advance(Duration::from_secs(2));
    bookie.machine.flushing.tend().unwrap();
    assert_eq!(bookie.files().len(), 1);
}

/// A log with 160 KB of ledger 1 and 240 KB of ledger 2, 300 KB of ledger 3 in memory and in the journal, and `free` bytes.
fn nearly_full(free: u64) -> Bookie {
    let mut bookie = fresh_with(EngineConfig { journal_file_bytes: 8 << 20, ..config(quiet()) });
    (0..20).for_each(|e| bookie.add(1, e, 8000));
    (0..30).for_each(|e| bookie.add(2, e, 8000));
    bookie.flush();
    assert_eq!(bookie.files().len(), 1);
    for e in 0..30 {
        bookie.add(3, e, 10_000);
        bookie.group();
    }
    bookie.set_free(free);
    bookie
}

impl Bookie {
    fn set_free(&self, free: u64) {
        let space = self.disk.space(Path::new(DIR)).unwrap();
        self.disk.set_capacity(Some(space.total - space.free + free));
    }

    /// Freezes, and flushes: an error is a flush that waits.
    fn try_flush(&mut self) -> bool {
        self.machine.want_freeze();
        let Machine { journals, flushing, .. } = &mut self.machine;
        let in_flight = journals[0].cut().unwrap();
        let written = journals[0].write(&in_flight);
        let mut done = journals[0].finish(in_flight, written);
        let flushed = flushing.flush(done.freeze.take().unwrap());
        done.deliver(&Nobody);
        let is_flushed = flushed.map(|flushed| journals[0].on_flushed(flushed)).is_ok();
        // Blocks of a file that was removed are free once that is durable, which a file system sees to by itself.
        self.disk.sync_dir(Path::new(DIR)).unwrap();
        is_flushed
    }

    /// A collection, and tries of the flush that waits in between. True when it went through.
    fn collect_while_it_waits(&mut self) -> bool {
        self.machine.engine.want_collection(WantedCollection { minor: false, major: true });
        for _ in 0..100 {
            self.clock.advance(Duration::from_secs(2));
            if let Some(Ok(flushed)) = self.machine.flushing.retry() {
                self.machine.journals[0].on_flushed(flushed);
            }
            self.machine.flushing.tend().unwrap();
        }
        !self.machine.flushing.is_waiting()
    }

    /// Removes ledger 2; the removal is in the journal alone.
    fn remove_2(&mut self) {
        self.machine.engine.remove_ledger(ledger(2), Box::new(|_| {}));
        self.group();
    }

    fn check_1_and_3(&self, when: &str) {
        (0..20).for_each(|e| assert_eq!(self.read(1, e), Ok(body(1, e, 8000)), "{when}"));
        (0..30).for_each(|e| assert_eq!(self.read(3, e), Ok(body(3, e, 10_000)), "{when}"));
    }
}

/// Room invariant 2: the rewrite that gives a full volume its space back may take more than half of what is left.
#[test]
fn a_rewrite_takes_what_is_free_while_a_flush_waits_for_it() {
    let mut bookie = nearly_full(260 << 10);
    assert!(!bookie.try_flush(), "300 KB do not fit");
    assert!(!bookie.collect_while_it_waits(), "nothing was deleted");
    bookie.remove_2();
    assert!(bookie.collect_while_it_waits(), "{:?}", bookie.machine.engine.space_status());
    assert_eq!(bookie.machine.engine.space_status().logs_rewritten, 1);
    bookie.check_1_and_3("with room again");
    bookie.power_cut().check_1_and_3("after a power cut");
}

/// Room invariant 4: space that a merge under way still needs is not free for a compaction. Without it both would run out of
/// space at their ends.
#[test]
fn a_rewrite_leaves_what_those_under_way_still_need() {
    // A merge of 4 times 50 KB takes many steps.
    let slowly = SpaceConfig { bytes_per_second: 16 << 10, step_bytes: 16 << 10, ..merging() };
    let mut bookie = fresh_with(EngineConfig { journal_file_bytes: 8 << 20, ..config(slowly) });
    (0..12).for_each(|e| bookie.add(1, e, 8000));
    (0..30).for_each(|e| bookie.add(2, e, 8000));
    bookie.flush();
    bookie.machine.engine.remove_ledger(ledger(2), Box::new(|_| {}));
    for flush in 0..4 {
        (0..5).for_each(|e| bookie.add(3, flush * 5 + e, 10_000));
        bookie.flush();
    }
    let step = |bookie: &mut Bookie| {
        bookie.clock.advance(Duration::from_secs(1));
        bookie.machine.flushing.tend().unwrap();
    };
    (0..4).for_each(|_| step(&mut bookie));
    let copied = bookie.machine.engine.space_status().bytes_copied;
    assert!(copied > 0 && copied < 100_000, "{copied} bytes: it is under way");
    // 200 KB of the merge and 100 KB of the compaction do not fit together.
    bookie.set_free(300 << 10);
    bookie.machine.engine.want_collection(WantedCollection { minor: false, major: true });
    bookie.rest();
    let status = bookie.machine.engine.space_status();
    assert_eq!((status.merges, status.logs_rewritten, status.errors), (1, 0, 0), "{status:?}");
    bookie.disk.sync_dir(Path::new(DIR)).unwrap();
    bookie.collect();
    let status = bookie.machine.engine.space_status();
    assert_eq!((status.merges, status.logs_rewritten, status.errors), (1, 1, 0), "{status:?}");
    let check = |bookie: &Bookie| {
        (0..12).for_each(|e| assert_eq!(bookie.read(1, e), Ok(body(1, e, 8000))));
        (0..20).for_each(|e| assert_eq!(bookie.read(3, e), Ok(body(3, e, 10_000))));
    };
    check(&bookie);
    check(&bookie.power_cut());
}

/// Logs of 200 KB, of which 80 KB are live: a compaction of each.
fn poor_logs_beside_a_stream(index_pool_bytes: u64, logs: i64) -> Bookie {
    let space = SpaceConfig {
        bytes_per_second: 16 << 10,
        step_bytes: 16 << 10,
        log_bytes_max: 100 << 10,
        merge_ledger_bytes: 0,
        ..merging()
    };
    let mut bookie =
        fresh_with(EngineConfig { journal_file_bytes: 8 << 20, index_pool_bytes, ..config(space) });
    for log in 0..logs {
        (0..10).for_each(|e| bookie.add(10 + log, e, 8000));
        (0..15).for_each(|e| bookie.add(50 + log, e, 8000));
        bookie.flush();
    }
    (0..logs).for_each(|log| bookie.machine.engine.remove_ledger(ledger(50 + log), Box::new(|_| {})));
    bookie.flush();
    bookie
}

impl Bookie {
    /// Two more small logs, and a step: a merge of four takes two steps, so one is due nearly always.
    fn step_of_stream(&mut self, step: i64) {
        for flush in 0..2 {
            self.add(1, step * 2 + flush, 6000);
            self.flush();
        }
        self.clock.advance(Duration::from_secs(1));
        self.machine.flushing.tend().unwrap();
    }

    fn check_stream(&self, logs: i64, steps: i64, when: &str) {
        for log in 0..logs {
            (0..10).for_each(|e| assert_eq!(self.read(10 + log, e), Ok(body(10 + log, e, 8000)), "{when}"));
        }
        (0..steps * 2).for_each(|e| assert_eq!(self.read(1, e), Ok(body(1, e, 6000)), "{when}"));
    }
}

/// Space invariant 11: where indexes fill the pool, merges go on between the compactions of one collection, and these beside a
/// stream of small logs.
#[test]
fn merges_and_compactions_take_turns_where_there_is_no_memory_for_both() {
    let mut bookie = poor_logs_beside_a_stream(0, 5);
    bookie.machine.engine.want_collection(WantedCollection { minor: false, major: true });
    // Of the last step in which a compaction ended: its number, and the merges until then.
    let (mut last, mut rewritten, mut steps) = ((0, 0), 0, 0);
    while rewritten < 5 {
        bookie.step_of_stream(steps);
        steps += 1;
        let status = bookie.machine.engine.space_status();
        assert!(steps - last.0 < 60, "a compaction waits since step {}: {status:?}", last.0);
        if status.logs_rewritten > rewritten {
            assert_eq!(status.logs_rewritten, rewritten + 1);
            // When the first begins no merge is due yet.
            let is_first = rewritten == 0;
            assert!(is_first || status.merges > last.1, "no merge before compaction {rewritten}: {status:?}");
            (last, rewritten) = ((steps, status.merges), status.logs_rewritten);
        }
    }
    bookie.rest();
    assert!(!bookie.machine.engine.space_status().is_major_compacting);
    bookie.check_stream(5, steps, "at rest");
    bookie.power_cut().check_stream(5, steps, "after a power cut");
}

/// The same where memory is enough, and room on the volume is for a small merge or for a compaction. Collections that somebody
/// wants meanwhile take no turn away.
#[test]
fn a_compaction_begins_beside_merges_that_take_its_room() {
    let mut bookie = poor_logs_beside_a_stream(64 << 20, 1);
    (0..4).for_each(|step| bookie.step_of_stream(step));
    bookie.machine.engine.want_collection(WantedCollection { minor: false, major: true });
    let mut steps = 4;
    while bookie.machine.engine.space_status().logs_rewritten == 0 {
        bookie.disk.sync_dir(Path::new(DIR)).unwrap();
        // Twice the 80 KB and the ends of an output.
        bookie.set_free(170 << 10);
        bookie.machine.engine.want_collection_after_removals(WantedCollection { minor: false, major: true });
        bookie.clock.advance(Duration::from_secs(1));
        bookie.machine.flushing.tend().unwrap();
        bookie.disk.set_capacity(None);
        bookie.step_of_stream(steps);
        steps += 1;
        assert!(steps < 200, "it waits: {:?}", bookie.machine.engine.space_status());
    }
    bookie.rest();
    bookie.check_stream(1, steps, "at rest");
}

/// A compaction that waits for memory keeps no collection up: logs that are dead by then go, and its own leave the queue.
#[test]
fn collections_go_on_while_a_compaction_waits() {
    let slowly = SpaceConfig {
        bytes_per_second: 2 << 10,
        step_bytes: 2 << 10,
        collection_interval: Duration::from_secs(20),
        ..merging()
    };
    let mut bookie =
        fresh_with(EngineConfig { journal_file_bytes: 8 << 20, index_pool_bytes: 0, ..config(slowly) });
    // One to be compacted, and one that will be dead; both are too large for the merge.
    (0..15).for_each(|e| bookie.add(1, e, 8000));
    (0..35).for_each(|e| bookie.add(2, e, 8000));
    bookie.flush();
    (0..40).for_each(|e| bookie.add(3, e, 8000));
    bookie.flush();
    bookie.machine.engine.remove_ledger(ledger(2), Box::new(|_| {}));
    for flush in 0..4 {
        (0..5).for_each(|e| bookie.add(4, flush * 5 + e, 10_000));
        bookie.flush();
    }
    let step = |bookie: &mut Bookie| {
        bookie.clock.advance(Duration::from_secs(1));
        bookie.machine.flushing.tend().unwrap();
    };
    (0..4).for_each(|_| step(&mut bookie));
    bookie.machine.engine.want_collection(WantedCollection { minor: false, major: true });
    (0..10).for_each(|_| step(&mut bookie));
    let status = bookie.machine.engine.space_status();
    assert_eq!((status.logs_planned, status.merges), (1, 0), "{status:?}");
    assert!(status.is_major_compacting && status.bytes_copied > 0, "{status:?}");
    for id in [1, 3] {
        bookie.machine.engine.remove_ledger(ledger(id), Box::new(|_| {}));
    }
    bookie.flush();
    (0..45).for_each(|_| step(&mut bookie));
    let status = bookie.machine.engine.space_status();
    assert_eq!((status.logs_dropped, status.merges, status.logs_rewritten), (2, 0, 0), "{status:?}");
    bookie.rest();
    let status = bookie.machine.engine.space_status();
    assert_eq!((status.merges, status.logs_rewritten, status.errors), (1, 0, 0), "{status:?}");
    assert!(!status.is_major_compacting);
    (0..20).for_each(|e| assert_eq!(bookie.read(4, e), Ok(body(4, e, 10_000))));
}

/// Room invariant 3: a flush that waits leaves room for what is deleted later.
#[test]
fn a_flush_leaves_room_to_rewrite_what_is_deleted_later() {
    let mut bookie = nearly_full(420 << 10);
    bookie.machine.engine.set_rewrite_room(&[260 << 10]);
    assert!(!bookie.try_flush(), "the rewrite of 160 KB would find no room behind it");
    assert!(bookie.machine.engine.status().waits_for_space.unwrap().contains("are kept"));
    assert!(!bookie.collect_while_it_waits(), "nothing was deleted");
    bookie.check_1_and_3("while it waits");
    let left = Arc::new(bookie.disk.durable_image());
    start(left, bookie.config.clone()).check_1_and_3("after a crash, with nothing kept");
    bookie.remove_2();
    assert!(bookie.collect_while_it_waits(), "{:?}", bookie.machine.engine.space_status());
    assert_eq!(bookie.machine.engine.space_status().logs_rewritten, 1);
    bookie.check_1_and_3("with room again");
    bookie.power_cut().check_1_and_3("after a power cut");
}

/// Room kept for rewrites starves no flush: one that leaves it goes on although nothing can be rewritten, and a flush
/// without entries ignores it.
#[test]
fn room_for_rewrites_is_left_and_not_waited_for() {
    let mut bookie = nearly_full(600 << 10);
    bookie.machine.engine.set_rewrite_room(&[200 << 10]);
    assert!(bookie.try_flush(), "300 of 600 KB, and 200 are left");
    // A state alone.
    bookie.set_free(150 << 10);
    bookie.machine.engine.fence(ledger(3), KEY, Box::new(|_| {}));
    assert!(bookie.try_flush());
    assert_eq!(bookie.machine.engine.space_status().logs_rewritten, 0);
    bookie.check_1_and_3("flushed");
    // One that waited goes on by itself when there is more room.
    let mut bookie = nearly_full(420 << 10);
    bookie.machine.engine.set_rewrite_room(&[260 << 10]);
    assert!(!bookie.try_flush());
    bookie.set_free(600 << 10);
    assert!(bookie.collect_while_it_waits());
    bookie.check_1_and_3("with more room");
}

/// A step of planning or of a rewrite does a bounded number of disk operations, however many runs overlap.
#[test]
fn steps_are_bounded_where_many_runs_overlap() {
    let mut bookie = fresh(quiet());
    // Runs of varying distances that all overlap: their indexes must be read.
    for flush in 0..5 {
        for n in 0..2500 {
            // A group is half a journal file at most.
            if n % 1000 == 999 {
                bookie.group();
            }
            bookie.add(1, n * 3 + (n * (flush + 1)) % 2, 16);
        }
        bookie.flush();
    }
    bookie.machine.engine.want_collection(WantedCollection { minor: false, major: true });
    let (mut steps, mut most) = (0, 0);
    loop {
        bookie.clock.advance(Duration::from_secs(1));
        let before = bookie.disk.operations();
        let is_done = bookie.machine.flushing.tend().unwrap().is_none();
        most = most.max(bookie.disk.operations() - before);
        steps += 1;
        if is_done {
            break;
        }
    }
    let status = bookie.machine.engine.space_status();
    assert_eq!((status.logs_dropped, status.logs_rewritten), (3, 1), "{status:?}");
    // Several reads for each lookup of a search; both bounds are of one step.
    assert!(most < 20_000, "{most} operations in a step");
    assert!(steps > 5, "{steps} steps");
    let expected = |n: i64| body(1, n, 16);
    for n in 0..2500 {
        assert_eq!(bookie.read(1, n * 3), Ok(expected(n * 3)));
    }
}

/// Space invariant 7: a scrub that would take the whole budget leaves half of the steps to rewrites.
#[test]
fn a_scrub_in_a_hurry_lets_rewrites_through() {
    let rate = 2000;
    let mut bookie = four_flushes(SpaceConfig {
        bytes_per_second: rate,
        step_bytes: 500,
        scrub_bytes_per_second: rate,
        scrub_period: Duration::from_secs(1),
        ..merging()
    });
    // It takes 430 steps; 831 when the scrub always goes first.
    for _ in 0..600 {
        bookie.clock.advance(Duration::from_millis(500));
        bookie.machine.flushing.tend().unwrap();
    }
    let scrubbed = bookie.machine.engine.scrub_status().last.map_or(0, |pass| pass.bytes);
    assert!(scrubbed > 0, "the scrub goes on");
    assert_eq!(bookie.machine.engine.space_status().merges, 1);
    check_four(&bookie, "merged");
}

/// A periodic pass takes its period, spread over it, and goes on at the place that the wall clock says.
#[test]
fn a_pass_takes_its_period() {
    let period = Duration::from_secs(1000);
    let mut bookie = four_flushes(SpaceConfig { scrub_period: period, ..quiet() });
    let mut seconds = 0;
    while bookie.machine.engine.scrub_status().passes == 0 {
        bookie.clock.advance(Duration::from_secs(1));
        assert!(bookie.machine.flushing.tend().unwrap().is_some());
        seconds += 1;
        assert!(seconds < 3000);
    }
    assert!(seconds > 700, "{seconds} s");
    let pass = bookie.machine.engine.scrub_status().last.unwrap();
    assert_eq!((pass.logs, pass.findings, pass.is_asked_for), (4, 0, false));
}

/// Generations stay below those of later flushes, also over restarts.
#[test]
fn merges_of_merges_keep_the_newest_copy() {
    let mut bookie = fresh(merging());
    for round in 0..40 {
        bookie.add(3, 0, round);
        bookie.add(3, 1 + round as i64, 10);
        bookie.flush();
        bookie.rest();
        assert_eq!(bookie.read(3, 0), Ok(body(3, 0, round)), "round {round}");
        if round % 7 == 6 {
            bookie = bookie.power_cut();
            assert_eq!(bookie.read(3, 0), Ok(body(3, 0, round)), "restart after round {round}");
        }
    }
    let highest: Vec<Generation> =
        bookie.files().iter().flat_map(|path| bookie.extents(path)).map(|run| run.generation).collect();
    assert!(highest.iter().all(|generation| generation.0 <= 60), "{highest:?}");
    assert!(bookie.files().len() < 8);
}
