use super::*;
use crate::api::{Add, AddDone, AddSink, EntryRef, GroupTimes, Origin};
use crate::lookup::Lookup;
use crate::open::Machine;
use crate::tickets::FreezeTicket;
use crate::{Engine, EngineConfig};
use bindery_io::{RealDisk, SystemClock, SystemRandom};
use bindery_types::MasterKey;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;

struct Nobody;
impl AddSink for Nobody {
    fn on_adds_done(&self, _: &GroupTimes, _: &[Vec<AddDone>]) {}
}

fn open(dir: &Path) -> Machine {
    let config = EngineConfig {
        journal_dirs: vec![dir.join("journal")],
        ledger_dirs: vec![dir.join("ledgers")],
        shard_count: 1,
        write_pool_bytes: 8 << 20,
        chunk_bytes: 256 << 10,
        entry_bytes_max: 128 << 10,
        journal_file_bytes: 4 << 20,
        group_bytes_max: 1 << 20,
        ..EngineConfig::default()
    };
    Machine::open(config, Arc::new(RealDisk::new()), Arc::new(SystemClock::new()), Arc::new(SystemRandom))
        .unwrap()
}

fn body(entry: i64) -> Vec<u8> {
    [1, entry, entry - 1, 0].map(i64::to_be_bytes).concat()
}

fn add(engine: &Engine, entry: i64) {
    let add = Add {
        origin: Origin { connection: 0, txn: 0, tag: 0 },
        ledger: LedgerId::new(1).unwrap(),
        entry: EntryId::new(entry).unwrap(),
        last_add_confirmed: EntryId::new(entry - 1),
        key: MasterKey::new([1; 20]),
        body: &body(entry),
        is_recovery: true,
        is_high_priority: true,
    };
    assert_eq!(engine.add_batch(0, &[add]), 1);
}

fn freeze(machine: &mut Machine) -> Option<FreezeTicket> {
    machine.want_freeze();
    let in_flight = machine.journals[0].cut()?;
    let written = machine.journals[0].write(&in_flight);
    let mut done = machine.journals[0].finish(in_flight, written);
    let ticket = done.freeze.take();
    done.deliver(&Nobody);
    ticket
}

fn flush(machine: &mut Machine, ticket: FreezeTicket) {
    let flushed = machine.flushing.flush(ticket).unwrap();
    machine.journals[0].on_flushed(flushed);
}

/// Invariant 2: whether the ledger is frozen before its state in memory has what the record has, or changes and is frozen later.
#[test]
fn a_record_that_was_frozen_during_the_commit_does_not_take_back_the_last_entry() {
    for (is_frozen, is_taken_over) in [(false, false), (true, false), (true, true)] {
        let dir = tempfile::tempdir().unwrap();
        let mut machine = open(dir.path());
        let engine = machine.engine.clone();
        add(&engine, 0);
        let ticket = freeze(&mut machine).unwrap();
        flush(&mut machine, ticket);
        let (ledger, entry) = (LedgerId::new(1).unwrap(), EntryId::new(9).unwrap());
        let mut ingest = engine.begin_ingest(ledger).unwrap();
        ingest.append(ledger, entry, &body(9)).unwrap();
        let outcome = Arc::new(Mutex::new(None));
        let told = outcome.clone();
        engine.commit_ingest(ingest.seal().unwrap(), Box::new(move |done| *told.lock() = Some(done)));
        let (logs, waiter) = engine.shared().ingests().take().pop_front().unwrap();
        let Looked::Ready(ready) = machine.flushing.look_at(logs) else { panic!("the ledger is at rest") };
        // The ledger changes while the record is on its way to the disk.
        add(&engine, 1);
        let mut ticket = is_frozen.then(|| freeze(&mut machine).unwrap());
        if let (true, Some(ticket)) = (is_taken_over, &mut ticket) {
            while machine.flushing.freeze_some(ticket, 1) {}
        }
        machine.flushing.commit_ingest(ready, waiter);
        assert_eq!(outcome.lock().take(), Some(Ok(())));
        let ticket = ticket.unwrap_or_else(|| freeze(&mut machine).unwrap());
        flush(&mut machine, ticket);
        assert!(machine.flushing.ingests.stale.is_empty(), "it is over");
        drop((machine, engine));
        let machine = open(dir.path());
        let last = machine.engine.read(ledger, EntryRef::Last).unwrap();
        let Lookup::Disk(read) = last else { panic!("nothing is in memory") };
        assert_eq!(read.load(), Ok(body(9)), "frozen {is_frozen}, taken over {is_taken_over}");
        assert_eq!(machine.engine.last_add_confirmed(ledger), Ok(EntryId::new(8)));
    }
}

/// A rewrite may raise an older copy to the generation of the ingest: it must stay below what is still to be flushed.
#[test]
fn copies_are_older_than_what_is_frozen_and_not_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let mut machine = open(dir.path());
    let engine = machine.engine.clone();
    add(&engine, 0);
    let ticket = freeze(&mut machine).unwrap();
    flush(&mut machine, ticket);
    add(&engine, 1);
    let mut ticket = freeze(&mut machine).unwrap();
    while machine.flushing.freeze_some(&mut ticket, 1) {}
    let mut ingest = engine.begin_ingest(LedgerId::new(1).unwrap()).unwrap();
    ingest.append(LedgerId::new(1).unwrap(), EntryId::new(9).unwrap(), &body(9)).unwrap();
    engine.commit_ingest(ingest.seal().unwrap(), Box::new(|_| {}));
    let (logs, _) = engine.shared().ingests().take().pop_front().unwrap();
    let frozen = ticket.frozen[0].1.generation;
    assert!(logs.ledgers[0].generation < Generation(frozen), "{:?} and {frozen}", logs.ledgers[0]);
}
