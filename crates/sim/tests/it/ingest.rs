//! An ingest, and a power cut in every disk operation of it: it is there as a whole, with the last entry that it brings, or not
//! at all, and once it is answered it is there.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_engine::{
    AddDone, AddSink, EngineConfig, EntryRef, GroupTimes, IngestError, Lookup, Machine, Refusal,
};
use bindery_io::{Disk, ManualClock, SeededRandom};
use bindery_sim::disk::{SimDisk, SimDiskConfig};
use bindery_types::{EntryId, LedgerId};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const ENTRIES: std::ops::Range<i64> = 3..8;

struct Nobody;
impl AddSink for Nobody {
    fn on_adds_done(&self, _: &GroupTimes, _: &[Vec<AddDone>]) {}
}

fn ledger() -> LedgerId {
    LedgerId::new(7).unwrap()
}

fn id(entry: i64) -> EntryId {
    EntryId::new(entry).unwrap()
}

fn body(entry: i64) -> Vec<u8> {
    let mut body = [7, entry, entry - 1, 0].map(i64::to_be_bytes).concat();
    body.resize(3000, entry as u8 + 1);
    body
}

fn open(disk: &Arc<SimDisk>) -> Option<Machine> {
    let config = EngineConfig {
        journal_dirs: vec![PathBuf::from("/d/journal")],
        ledger_dirs: vec![PathBuf::from("/d/ledgers")],
        shard_count: 1,
        write_pool_bytes: 64 << 10,
        chunk_bytes: 8 << 10,
        journal_file_bytes: 16 << 10,
        journal_files_preallocated: 0,
        group_bytes_max: 8 << 10,
        entry_bytes_max: 4 << 10,
        log_write_bytes: 8 << 10,
        ..EngineConfig::default()
    };
    let (clock, random) = (Arc::new(ManualClock::new(0)), Arc::new(SeededRandom::new(1)));
    let opened = Machine::open(config, disk.clone(), clock, random);
    assert!(opened.is_ok() || disk.is_off(), "{:?}", opened.err());
    opened.ok()
}

/// A group, and its flush.
fn group(machine: &mut Machine) -> Option<()> {
    let in_flight = machine.journals[0].cut()?;
    let written = machine.journals[0].write(&in_flight);
    let mut done = machine.journals[0].finish(in_flight, written);
    let ticket = done.freeze.take();
    done.deliver(&Nobody);
    let flushed = machine.flushing.flush(ticket?).ok()?;
    machine.journals[0].on_flushed(flushed);
    Some(())
}

/// With or without a flush between the claim and the commit, which has the ledger in it.
fn drive(disk: &Arc<SimDisk>, is_busy: bool) -> Option<Result<(), IngestError>> {
    let mut machine = open(disk)?;
    let engine = machine.engine.clone();
    let mut ingest = engine.begin_ingest(ledger()).ok()?;
    for entry in ENTRIES {
        ingest.append(ledger(), id(entry), &body(entry)).ok()?;
    }
    if is_busy {
        engine.set_limbo(ledger(), false, Box::new(|_| {}));
        group(&mut machine);
    }
    let told = Arc::new(Mutex::new(None));
    let answer = told.clone();
    engine.commit_ingest(ingest.seal().ok()?, Box::new(move |outcome| *answer.lock() = Some(outcome)));
    for _ in 0..4 {
        let _ = machine.flushing.tend();
        group(&mut machine);
    }
    told.lock().take()
}

fn read(machine: &Machine, which: EntryRef) -> Result<Vec<u8>, Refusal> {
    match machine.engine.read(ledger(), which)? {
        Lookup::Memory(body) => Ok(body.to_vec()),
        Lookup::Disk(read) => read.load(),
        Lookup::Tiered(_) | Lookup::Undurable(_) => panic!("it is nowhere else"),
    }
}

#[test]
fn a_power_cut_leaves_all_of_an_ingest_or_nothing() {
    for is_busy in [false, true] {
        let base = Arc::new(SimDisk::new(SimDiskConfig::default(), &SeededRandom::new(7)));
        base.create_dir_all(Path::new("/d")).unwrap();
        base.sync_dir(Path::new("/")).unwrap();
        let mut machine = open(&base).unwrap();
        machine.engine.set_limbo(ledger(), true, Box::new(|_| {}));
        machine.want_freeze();
        group(&mut machine).unwrap();
        drop(machine);
        let (mut with, mut without, mut answered) = (0, 0, 0);
        for cut in 0.. {
            let disk = Arc::new(base.durable_image());
            disk.crash_after(cut);
            let outcome = drive(&disk, is_busy);
            let is_over = !disk.is_off();
            for seed in 0..4 {
                let left = Arc::new(disk.crash(&SeededRandom::new(seed)));
                let machine = open(&left).expect("the power stays on");
                let found: Vec<bool> = ENTRIES
                    .map(|entry| match read(&machine, EntryRef::At(id(entry))) {
                        Ok(found) => found == body(entry),
                        Err(Refusal::NoEntry | Refusal::Unknown) => false,
                        Err(other) => panic!("cut {cut}: {entry} is {other:?}"),
                    })
                    .collect();
                let is_there = found[0];
                assert!(found.iter().all(|found| *found == is_there), "cut {cut}: {found:?}");
                assert!(is_there || outcome != Some(Ok(())), "cut {cut}: it was answered");
                if is_busy && is_there {
                    let last = ENTRIES.end - 1;
                    assert_eq!(read(&machine, EntryRef::Last), Ok(body(last)), "cut {cut}");
                    assert_eq!(machine.engine.last_add_confirmed(ledger()), Ok(EntryId::new(last - 1)));
                }
                if is_there { with += 1 } else { without += 1 }
            }
            answered += usize::from(outcome == Some(Ok(())));
            if is_over {
                assert_eq!(outcome, Some(Ok(())), "without a cut it is committed");
                break;
            }
        }
        assert!(
            with >= 8 && without > 60 && answered > 0,
            "{with} with, {without} without, {answered} answered"
        );
    }
}
