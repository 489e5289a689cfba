//! The exhaustive explorer, scope D: three adds and a fence, a power cut in every disk operation, and of what was
//! pending then every subset of sectors, lengths and names. No random choice, nothing left out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_engine::{
    Add, AddDone, AddSink, EngineConfig, EntryRef, GroupTimes, Lookup, Machine, Origin, Refusal, Waiter,
};
use bindery_io::canary::Canaries;
use bindery_io::{Disk, ManualClock, SeededRandom};
use bindery_sim::disk::{SectorSize, SimDisk, SimDiskConfig};
use bindery_types::{EntryId, LedgerId, MasterKey};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const KEY: MasterKey = MasterKey::new([1; 20]);
const OTHER_KEY: MasterKey = MasterKey::new([2; 20]);

/// One request of the schedule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Add(i64),
    Fence,
}

/// Requests that share a group, and how they were answered.
type Schedule = &'static [&'static [Request]];

/// The clients' knowledge: entries acknowledged and sent, whether the fence was answered.
#[derive(Clone, Default)]
struct Told {
    acked: Vec<i64>,
    is_fenced: bool,
}

#[derive(Clone, Default)]
struct Inbox(Arc<Mutex<Told>>);
impl AddSink for Inbox {
    fn on_adds_done(&self, _: &GroupTimes, shards: &[Vec<AddDone>]) {
        let acked = shards.iter().flatten().filter(|d| d.result.is_ok()).map(|d| d.entry.get());
        self.0.lock().acked.extend(acked);
    }
}

fn ledger() -> LedgerId {
    LedgerId::new(7).unwrap()
}

fn body(entry: i64) -> Vec<u8> {
    let mut body = [7, entry, entry - 1, 0].map(i64::to_be_bytes).concat();
    body.resize(1500, entry as u8 + 1);
    body
}

fn config(canaries: Canaries) -> EngineConfig {
    EngineConfig {
        journal_dirs: vec![PathBuf::from("/d/journal")],
        ledger_dirs: vec![PathBuf::from("/d/ledgers")],
        shard_count: 1,
        write_pool_bytes: 64 << 10,
        chunk_bytes: 8 << 10,
        // Two small groups fill a file, so that the schedule takes a second one.
        journal_file_bytes: 12 << 10,
        journal_files_preallocated: 0,
        group_bytes_max: 8 << 10,
        entry_bytes_max: 4 << 10,
        canaries,
        ..EngineConfig::default()
    }
}

fn open(disk: Arc<SimDisk>, canaries: Canaries) -> Machine {
    let (clock, random) = (Arc::new(ManualClock::new(0)), Arc::new(SeededRandom::new(1)));
    Machine::open(config(canaries), disk, clock, random).unwrap()
}

/// The disk of a bookie that has started once.
fn started(sector: SectorSize) -> SimDisk {
    let config = SimDiskConfig { sector, trace_lines: 0, ..SimDiskConfig::default() };
    let disk = Arc::new(SimDisk::new(config, &SeededRandom::new(7)));
    disk.create_dir_all(Path::new("/d")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    drop(open(disk.clone(), Canaries::none()));
    disk.durable_image()
}

/// Starts, and runs the schedule until it ends or the power goes: perhaps during the start, which makes the first journal file.
fn drive(disk: &Arc<SimDisk>, cut_after: u64, schedule: Schedule, canaries: Canaries) -> Told {
    let (clock, random) = (Arc::new(ManualClock::new(0)), Arc::new(SeededRandom::new(1)));
    disk.crash_after_leaving_all(cut_after);
    let opened = Machine::open(config(canaries), disk.clone(), clock, random);
    let mut machine = match opened {
        Ok(machine) => machine,
        Err(error) => {
            assert!(disk.is_off(), "{error}");
            return Told::default();
        }
    };
    let inbox = Inbox::default();
    for requests in schedule {
        for request in *requests {
            match request {
                Request::Add(entry) => {
                    let add = Add {
                        origin: Origin { connection: 0, txn: 0, tag: 0 },
                        ledger: ledger(),
                        entry: EntryId::new(*entry).unwrap(),
                        last_add_confirmed: EntryId::new(entry - 1),
                        key: KEY,
                        body: &body(*entry),
                        is_recovery: false,
                        is_high_priority: false,
                    };
                    assert_eq!(machine.engine.add_batch(0, &[add]), 1);
                }
                Request::Fence => {
                    let told = inbox.clone();
                    let waiter: Waiter = Box::new(move |result| told.0.lock().is_fenced |= result.is_ok());
                    machine.engine.fence(ledger(), KEY, waiter);
                }
            }
        }
        // Nothing: the journal failed, and everything was refused at once.
        let Some(in_flight) = machine.journals[0].cut() else { continue };
        let written = machine.journals[0].write(&in_flight);
        machine.journals[0].finish(in_flight, written).deliver(&inbox);
    }
    let told = inbox.0.lock();
    told.clone()
}

fn read(machine: &Machine, entry: i64) -> Result<Vec<u8>, Refusal> {
    match machine.engine.read(ledger(), EntryRef::At(EntryId::new(entry).unwrap()))? {
        Lookup::Memory(body) => Ok(body.to_vec()),
        Lookup::Disk(read) => read.load(),
        Lookup::Tiered(_) => panic!("nothing is in object storage"),
        Lookup::Undurable(_) => panic!("nothing is undurable after a start"),
    }
}

/// IB1 IB4 IB5 IB8 IB11 on what the restart found. Returns what survived, for counting.
fn check(machine: &Machine, told: &Told, schedule: Schedule) -> (usize, bool) {
    let is_fenced = machine.engine.is_fenced(ledger());
    let mut survived = 0;
    let mut is_lost = false;
    for request in schedule.iter().copied().flatten() {
        let is_here = match request {
            Request::Add(entry) => match read(machine, *entry) {
                Ok(found) => {
                    assert_eq!(found, body(*entry), "IB8");
                    true
                }
                Err(Refusal::NoEntry | Refusal::NoLedger) => {
                    assert!(!told.acked.contains(entry), "IB1: acknowledged entry {entry} is gone");
                    false
                }
                Err(other) => panic!("entry {entry}: {other:?}"),
            },
            Request::Fence => is_fenced,
        };
        // Adds behind the fence are refused and leave no trace, so they say nothing about the prefix.
        let is_refused = matches!(request, Request::Add(entry) if is_behind_fence(*entry, schedule));
        assert!(!(is_refused && is_here), "IB3: an add behind the fence is there");
        if !is_refused {
            assert!(!(is_lost && is_here), "IB11: something survived that came after what is lost");
            is_lost |= !is_here;
            survived += usize::from(is_here);
        }
    }
    if told.is_fenced {
        assert!(is_fenced, "IB4: the answered fence is gone");
        let refused = Arc::new(Mutex::new(None));
        let slot = refused.clone();
        machine.engine.fence(ledger(), OTHER_KEY, Box::new(move |result| *slot.lock() = Some(result)));
        assert_eq!(*refused.lock(), Some(Err(Refusal::WrongKey)), "IB4: the fence lost its key");
    }
    (survived, is_fenced)
}

fn is_behind_fence(entry: i64, schedule: Schedule) -> bool {
    let before = schedule.iter().copied().flatten().take_while(|request| **request != Request::Add(entry));
    before.into_iter().any(|request| *request == Request::Fence)
}

/// Cuts the power in each operation of the schedule; returns power cuts and restarts.
fn explore(sector: SectorSize, schedule: Schedule, canaries: Canaries) -> (u64, u64) {
    let base = started(sector);
    let (mut cuts, mut restarts) = (0, 0);
    let mut outcomes = std::collections::BTreeSet::new();
    loop {
        let disk = Arc::new(base.durable_image());
        let told = drive(&disk, cuts, schedule, canaries);
        let is_over = !disk.is_off();
        // Depth first over every yes or no that the crash asks.
        let mut choices: Vec<bool> = Vec::new();
        loop {
            let mut asked = 0;
            let left = disk.crash_choosing(|| {
                if asked == choices.len() {
                    choices.push(false);
                }
                asked += 1;
                choices[asked - 1]
            });
            assert!(asked <= 24, "{asked} things pending at once: this would never end");
            let machine = open(Arc::new(left), canaries);
            outcomes.insert(check(&machine, &told, schedule));
            restarts += 1;
            while choices.last() == Some(&true) {
                choices.pop();
            }
            match choices.last_mut() {
                Some(last) => *last = true,
                None => break,
            }
        }
        if is_over {
            assert!(told.is_fenced, "without a cut all is answered");
            // A group survives as a whole or not at all: one outcome for each that has something, and one for none.
            let has_something = |group: &&&[Request]| {
                let refused = |r: &Request| matches!(r, Request::Add(e) if is_behind_fence(*e, schedule));
                !group.iter().all(refused)
            };
            assert_eq!(outcomes.len(), schedule.iter().filter(has_something).count() + 1, "{outcomes:?}");
            return (cuts, restarts);
        }
        cuts += 1;
    }
}

use Request::{Add as A, Fence as F};

const ALONE: Schedule = &[&[A(0)], &[A(1)], &[F], &[A(2)]];
const TOGETHER: Schedule = &[&[A(0), A(1)], &[F, A(2)]];
const FIRST: Schedule = &[&[F], &[A(0), A(1), A(2)]];

#[test]
fn three_adds_and_a_fence_survive_every_power_cut() {
    let mut found = Vec::new();
    for sector in [SectorSize::Bytes4096, SectorSize::Bytes512] {
        found.extend([ALONE, TOGETHER, FIRST].map(|schedule| explore(sector, schedule, Canaries::none())));
    }
    // Pinned, power cuts and restarts: fewer would mean that some are no longer explored.
    assert_eq!(found, [(29, 90), (28, 86), (21, 54), (29, 214), (28, 374), (21, 78)]);
}

/// The explorer can fail.
#[cfg(debug_assertions)]
#[test]
fn the_explorer_finds_planted_bugs() {
    use bindery_io::canary::Canary;
    for (canary, schedule) in [
        (Canary::M1AckBeforeSync, ALONE),
        (Canary::M3NegativeFenceBeforeDurable, FIRST),
        (Canary::M4FenceWithoutKey, FIRST),
    ] {
        let explored = std::panic::catch_unwind(|| {
            explore(SectorSize::Bytes4096, schedule, Canaries::only(canary));
        });
        assert!(explored.is_err(), "{canary:?} was not found");
    }
}
