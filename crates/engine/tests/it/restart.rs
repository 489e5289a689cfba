//! The engine on a real disk: acknowledged entries are read back, from memory, from the journal, from entry logs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_engine::{
    Add, AddDone, AddSink, Engine, EngineConfig, EngineThreads, EntryRef, GroupTimes, Lookup, Machine,
    Origin, Refusal, SpaceConfig,
};
use bindery_io::{RealDisk, SystemClock, SystemRandom};
use bindery_types::{EntryId, LedgerId, MasterKey};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

const KEY: MasterKey = MasterKey::new([1; 20]);

struct Answers(SyncSender<AddDone>);
impl AddSink for Answers {
    fn on_adds_done(&self, _: &GroupTimes, shards: &[Vec<AddDone>]) {
        for d in shards.iter().flatten() {
            self.0.send(*d).unwrap();
        }
    }
}

struct Bookie {
    engine: Arc<Engine>,
    threads: EngineThreads,
    answers: Receiver<AddDone>,
    replayed_records: u64,
}

fn config(dir: &Path) -> EngineConfig {
    EngineConfig {
        journal_dirs: vec![dir.join("journal")],
        ledger_dirs: vec![dir.join("ledgers0"), dir.join("ledgers1")],
        shard_count: 2,
        write_pool_bytes: 8 << 20,
        chunk_bytes: 256 << 10,
        entry_bytes_max: 128 << 10,
        journal_file_bytes: 4 << 20,
        group_bytes_max: 1 << 20,
        ..EngineConfig::default()
    }
}

fn start(dir: &Path) -> Bookie {
    start_with(config(dir))
}

fn start_with(config: EngineConfig) -> Bookie {
    let disk = Arc::new(RealDisk::new());
    let machine =
        Machine::open(config, disk.clone(), Arc::new(SystemClock::new()), Arc::new(SystemRandom)).unwrap();
    let (sender, answers) = sync_channel(1 << 20);
    let (engine, replayed_records) = (machine.engine.clone(), machine.replayed.records);
    Bookie { engine, threads: machine.start(disk, Arc::new(Answers(sender))), answers, replayed_records }
}

fn body(ledger: i64, entry: i64) -> Vec<u8> {
    let mut body = Vec::new();
    for v in [ledger, entry, entry - 1, 0] {
        body.extend_from_slice(&v.to_be_bytes());
    }
    let size = (ledger * 31 + entry * 17) as usize % 3000;
    body.extend((0..size).map(|i| (i as i64 + ledger + entry) as u8));
    body
}

fn add(bookie: &Bookie, ledger: i64, entry: i64, body: &[u8]) {
    let id = LedgerId::new(ledger).unwrap();
    let add = Add {
        origin: Origin { connection: 0, txn: 0, tag: 0 },
        ledger: id,
        entry: EntryId::new(entry).unwrap(),
        last_add_confirmed: EntryId::new(entry - 1),
        key: KEY,
        body,
        is_recovery: false,
        is_high_priority: false,
    };
    while bookie.engine.add_batch(bookie.engine.shard_of(id), &[add]) == 0 {
        let (sender, room) = sync_channel(1);
        let shard = bookie.engine.shard_of(id);
        bookie.engine.when_room(shard, &[add], Box::new(move |turn| sender.send(turn).unwrap()));
        let turn = room.recv_timeout(Duration::from_secs(20)).expect("room is made");
        if bookie.engine.add_batch_with(shard, &[add], turn) == 1 {
            break;
        }
    }
}

fn wait_acks(bookie: &Bookie, count: usize) {
    for _ in 0..count {
        let done = bookie.answers.recv_timeout(Duration::from_secs(20)).expect("every add is answered");
        assert_eq!(done.result, Ok(()));
    }
}

fn read(bookie: &Bookie, ledger: i64, which: EntryRef) -> Result<Vec<u8>, Refusal> {
    match bookie.engine.read(LedgerId::new(ledger).unwrap(), which)? {
        Lookup::Memory(body) => Ok(body.to_vec()),
        Lookup::Disk(read) => read.load(),
        Lookup::Tiered(_) => panic!("nothing is in object storage"),
        Lookup::Undurable(_) => panic!("acknowledged entries are durable"),
    }
}

fn check_all(bookie: &Bookie, ledgers: i64, entries: i64) {
    for ledger in 0..ledgers {
        for entry in 0..entries {
            let which = EntryRef::At(EntryId::new(entry).unwrap());
            assert_eq!(
                read(bookie, ledger, which).as_deref(),
                Ok(&body(ledger, entry)[..]),
                "{ledger}:{entry}"
            );
        }
        let beyond = EntryRef::At(EntryId::new(entries).unwrap());
        assert_eq!(read(bookie, ledger, beyond), Err(Refusal::NoEntry));
        assert_eq!(read(bookie, ledger, EntryRef::Last).unwrap(), body(ledger, entries - 1));
        let id = LedgerId::new(ledger).unwrap();
        assert_eq!(bookie.engine.last_add_confirmed(id), Ok(EntryId::new(entries - 2)));
        let runs = bookie.engine.list_entries(id).unwrap();
        assert_eq!(runs.len(), 1);
        assert_eq!((runs[0].first.get(), runs[0].last.get()), (0, entries - 1));
    }
    assert_eq!(read(bookie, ledgers, EntryRef::Last), Err(Refusal::NoLedger));
}

#[test]
fn acknowledged_entries_survive_stops_and_kills_and_flushes() {
    let dir = tempfile::tempdir().unwrap();
    let (ledgers, entries) = (5, 4000);
    let bookie = start(dir.path());
    // 5 x 4000 x 1.5 KiB is several times the pool: flushes happen while adds go on.
    for entry in 0..entries {
        for ledger in 0..ledgers {
            add(&bookie, ledger, entry, &body(ledger, entry));
        }
    }
    wait_acks(&bookie, (ledgers * entries) as usize);
    check_all(&bookie, ledgers, entries);
    assert!(bookie.engine.stats().flushes >= 1, "{:?}", bookie.engine.stats());

    bookie.threads.stop().unwrap();

    // With such an interval a round this small is not flushed: it stays in the journal.
    let calm = |dir| EngineConfig { flush_interval: Duration::from_secs(3600), ..config(dir) };
    let bookie = start_with(calm(dir.path()));
    assert_eq!(bookie.replayed_records, 0, "a clean stop leaves no replay work (IB26)");
    check_all(&bookie, ledgers, entries);
    for ledger in 0..ledgers {
        add(&bookie, ledger, entries, &body(ledger, entries));
    }
    wait_acks(&bookie, ledgers as usize);
    let entries = entries + 1;

    // A kill: the threads are left running on a copy that is not used; a copy of the files is opened instead.
    let copy = tempfile::tempdir().unwrap();
    copy_dir(dir.path(), copy.path());
    let killed = start(copy.path());
    assert!(killed.replayed_records > 0, "a kill leaves something to replay");
    check_all(&killed, ledgers, entries);
    killed.threads.stop().unwrap();

    bookie.threads.stop().unwrap();
    let again = start(dir.path());
    assert_eq!(again.replayed_records, 0, "a clean stop leaves no replay work (IB26)");
    check_all(&again, ledgers, entries);
    again.threads.stop().unwrap();
}

fn copy_dir(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Removed ledgers give their space back without a request, and the remaining entries are read from the rewritten logs.
#[test]
fn the_flush_thread_drops_and_rewrites_logs_of_removed_ledgers() {
    let dir = tempfile::tempdir().unwrap();
    let soon = Duration::from_millis(50);
    let space = SpaceConfig {
        collection_interval: soon,
        minor_interval: soon,
        major_interval: soon,
        bytes_per_second: 100 << 20,
        step_bytes: 4096,
        ..SpaceConfig::default()
    };
    let config = EngineConfig { space, flush_interval: soon, ..config(dir.path()) };
    let bookie = start_with(config.clone());
    for ledger in 0..8 {
        for entry in 0..40 {
            add(&bookie, ledger, entry, &body(ledger, entry));
        }
    }
    for _ in 0..8 * 40 {
        assert_eq!(bookie.answers.recv_timeout(Duration::from_secs(20)).unwrap().result, Ok(()));
    }
    for ledger in (0..8).filter(|ledger| ledger % 4 != 3) {
        let (sender, removed) = sync_channel(1);
        let waiter = Box::new(move |outcome| sender.send(outcome).unwrap());
        bookie.engine.remove_ledger(LedgerId::new(ledger).unwrap(), waiter);
        assert_eq!(removed.recv_timeout(Duration::from_secs(20)).unwrap(), Ok(()));
    }
    let mut looks = 0;
    let live: u64 = [3, 7].iter().flat_map(|l| (0..40).map(move |e| body(*l, e).len() as u64 + 28)).sum();
    // A log has a header, a footer and padding besides.
    while bookie.engine.stats().entry_log_bytes > live + 6 * 8192 {
        let status = bookie.engine.space_status();
        looks += 1;
        assert!(looks < 3000, "{:?} {status:?}", bookie.engine.stats());
        std::thread::sleep(Duration::from_millis(10));
    }
    let check = |engine: &Engine| {
        for ledger in 0..8 {
            for entry in 0..40 {
                let id = LedgerId::new(ledger).unwrap();
                let found = match engine.read(id, EntryRef::At(EntryId::new(entry).unwrap())) {
                    Ok(Lookup::Memory(bytes)) => Ok(bytes.to_vec()),
                    Ok(Lookup::Disk(read)) => read.load(),
                    Ok(Lookup::Tiered(_)) => panic!("nothing is in object storage"),
                    Ok(Lookup::Undurable(_)) => panic!("it was acknowledged"),
                    Err(refusal) => Err(refusal),
                };
                let expected = if ledger % 4 == 3 { Ok(body(ledger, entry)) } else { Err(Refusal::NoLedger) };
                assert_eq!(found, expected, "{ledger}:{entry}");
            }
        }
    };
    check(&bookie.engine);
    bookie.threads.stop().unwrap();
    let bookie = start_with(config);
    check(&bookie.engine);
    bookie.threads.stop().unwrap();
}
