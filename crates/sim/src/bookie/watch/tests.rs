//! Each checker is fed what it must find.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::disk::SimDiskConfig;
use bindery_engine::{Add, AddDone, AddSink, EngineConfig, GroupTimes, Machine, Origin};
use bindery_io::{ManualClock, SeededRandom};
use bindery_types::{EntryId, LedgerId, MasterKey};

struct Deaf;
impl AddSink for Deaf {
    fn on_adds_done(&self, _: &GroupTimes, _: &[Vec<AddDone>]) {}
}

const LEDGERS: &str = "/d/ledgers";
const JOURNAL: &str = "/d/journal";

/// A bookie with one flushed entry, and one that only the journal holds.
fn disk() -> SimDisk {
    let disk = Arc::new(SimDisk::new(SimDiskConfig::default(), &SeededRandom::new(1)));
    disk.create_dir_all(Path::new("/d")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let config = EngineConfig {
        journal_dirs: vec![JOURNAL.into()],
        ledger_dirs: vec![LEDGERS.into()],
        shard_count: 1,
        write_pool_bytes: 1 << 20,
        chunk_bytes: 64 << 10,
        journal_file_bytes: 32 << 10,
        group_bytes_max: 64 << 10,
        entry_bytes_max: 4096,
        ..EngineConfig::default()
    };
    let (clock, random) = (Arc::new(ManualClock::new(0)), Arc::new(SeededRandom::new(2)));
    let mut machine = Machine::open(config, disk.clone(), clock, random).unwrap();
    for entry in 0..2 {
        let body = [7i64, entry, entry - 1, 0].map(i64::to_be_bytes).concat();
        let add = Add {
            origin: Origin { connection: 0, txn: 0, tag: 0 },
            ledger: LedgerId::new(7).unwrap(),
            entry: EntryId::new(entry).unwrap(),
            last_add_confirmed: EntryId::new(entry - 1),
            key: MasterKey::new([1; 20]),
            body: &body,
            is_recovery: false,
            is_high_priority: false,
        };
        assert_eq!(machine.engine.add_batch(0, &[add]), 1);
        if entry == 0 {
            machine.want_freeze();
        }
        let in_flight = machine.journals[0].cut().unwrap();
        let written = machine.journals[0].write(&in_flight);
        let mut done = machine.journals[0].finish(in_flight, written);
        if let Some(ticket) = done.freeze.take() {
            let mark = machine.flushing.flush(ticket).unwrap();
            machine.journals[0].on_flushed(mark);
        }
        done.deliver(&Deaf);
    }
    disk.durable_image()
}

fn only(disk: &SimDisk, dir: &str, extension: &str) -> PathBuf {
    let files = disk.list(Path::new(dir)).unwrap();
    let mut files = files.into_iter().filter(|file| file.name.ends_with(extension));
    let found = Path::new(dir).join(files.next().unwrap().name);
    assert!(files.next().is_none());
    found
}

fn judged(disk: &SimDisk, moment: Moment) -> Check {
    judge(&moment, disk.durable_image(), &[JOURNAL.into()], &[LEDGERS.into()])
}

#[test]
fn a_journal_file_that_is_needed_must_not_be_overwritten() {
    let disk = disk();
    let file = only(&disk, JOURNAL, "0000.bjl");
    let verdict = judged(&disk, Moment::JournalFileTaken(file)).unwrap_err();
    assert!(verdict.contains("groups up to 2 is overwritten") && verdict.contains("is 1"), "{verdict}");
    let unused = Moment::JournalFileTaken(PathBuf::from("/d/journal/journal-0009.bjl"));
    assert_eq!(judged(&disk, unused), Ok(()));
}

#[test]
fn a_log_that_the_table_lists_must_not_be_unlinked() {
    let disk = disk();
    let verdict = judged(&disk, Moment::LogUnlinked(only(&disk, LEDGERS, ".elog"))).unwrap_err();
    assert!(verdict.contains("IB15"), "{verdict}");
    let orphan = Moment::LogUnlinked(PathBuf::from("/d/ledgers/00000000000000ff.elog"));
    assert_eq!(judged(&disk, orphan), Ok(()));
}

#[test]
fn a_scan_finds_one_flipped_bit_in_a_body_and_a_missing_log() {
    let dirs = [PathBuf::from(LEDGERS)];
    let (disk, other) = (disk(), disk());
    assert_eq!(scan(&(Arc::new(disk.durable_image()) as Arc<dyn Disk>), &dirs), Ok(()));
    let log = only(&disk, LEDGERS, ".elog");
    disk.flip_bits(&log, 4096 + 30, 1).unwrap();
    let verdict = scan(&(Arc::new(disk) as Arc<dyn Disk>), &dirs).unwrap_err();
    assert!(verdict.contains("IB13"), "{verdict}");
    other.remove(&log).unwrap();
    assert!(scan(&(Arc::new(other) as Arc<dyn Disk>), &dirs).is_err());
}

#[test]
fn a_mark_that_goes_back_is_found() {
    let key = (PathBuf::from(LEDGERS), 0);
    let (low, high) = (Marks::from([(key.clone(), 4)]), Marks::from([(key, 5)]));
    assert_eq!(check_marks(&low, &high), Ok(()));
    assert_eq!(check_marks(&high, &high), Ok(()));
    assert!(check_marks(&high, &low).unwrap_err().contains("from 5 back to 4"));
}
