//! One measurement for each process, so that memory is that of what is measured. Prints `name=value` pairs; `./run` makes
//! a table of them. See there for what is measured.

mod process;
mod rocks;

use bindery_engine::{EngineConfig, EntryRef, Lookup, Machine, PoolMemory};
use bindery_io::{Disk, RealDisk, SystemClock, SystemRandom};
use bindery_storage::{
    DirectoryCommit, Generation, LedgerDirectory, LedgerRecord, LogView, SealedLog, StorageMemory,
};
use bindery_types::{EntryId, LedgerId, MasterKey};
use process::{bytes_below, cpu_us, drop_pages, percentiles, rss_mib};
use redb::{Database, ReadableDatabase, TableDefinition};
use rocks::Rocks;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Entries of one flush.
const BATCH: u64 = 262_144;
/// Memory for each: ours in two pools.
const CACHE_BYTES: usize = 128 << 20;

const TABLE: TableDefinition<'static, [u8; 16], [u8; 16]> = TableDefinition::new("index");

fn key(ledger: u64, entry: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&ledger.to_be_bytes());
    key[8..].copy_from_slice(&entry.to_be_bytes());
    key
}

fn ledger(raw: u64) -> LedgerId {
    LedgerId::new(raw as i64).expect("small")
}

fn entry(raw: u64) -> EntryId {
    EntryId::new(raw as i64).expect("small")
}

fn crc32c(body: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, body) as u32
}

/// A generator whose numbers are the same in every run.
fn numbers(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % below
    }
}

/// Entries and ledgers; each flush has the next few entries of every ledger.
#[derive(Clone, Copy)]
struct Shape {
    entries: u64,
    ledgers: u64,
}

impl Shape {
    fn entries_each(self) -> u64 {
        self.entries / self.ledgers
    }

    /// The range of entries, of every ledger, of each flush.
    fn flushes(self) -> impl Iterator<Item = std::ops::Range<u64>> {
        let (each, step) = (self.entries_each(), (BATCH / self.ledgers).max(1));
        (0..each.div_ceil(step)).map(move |at| at * step..each.min((at + 1) * step))
    }
}

#[allow(clippy::large_enum_variant, reason = "a process has one of them")]
enum Index {
    Bindery(LedgerDirectory, Arc<LogView>),
    Redb(Database),
    Rocks(Rocks),
}

fn memory() -> StorageMemory {
    StorageMemory::new(CACHE_BYTES as u64 / 2, CACHE_BYTES as u64 / 2)
}

impl Index {
    fn open(engine: &str, dir: &Path) -> Index {
        std::fs::create_dir_all(dir).expect("a directory");
        match engine {
            "bindery" => {
                let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
                let opened = LedgerDirectory::open_with(&disk, dir, &memory()).expect("it opens");
                let view = opened.directory.view();
                Index::Bindery(opened.directory, view)
            }
            "redb" => {
                let mut builder = Database::builder();
                builder.set_cache_size(CACHE_BYTES);
                Index::Redb(builder.create(dir.join("index.redb")).expect("it opens"))
            }
            "rocksdb" => Index::Rocks(Rocks::open(dir, CACHE_BYTES)),
            other => panic!("{other} is none of bindery, redb, rocksdb"),
        }
    }

    fn flush(&mut self, generation: u64, ledgers: u64, range: std::ops::Range<u64>) {
        match self {
            Index::Bindery(directory, _) => {
                // The checksum comes with the entry from the journal; it is not part of a flush.
                let sealed = write_log(directory, generation, 0..ledgers, range, |_| 0);
                let commit = DirectoryCommit { logs_added: &[sealed], ..Default::default() };
                directory.commit(&commit).expect("it commits");
            }
            Index::Redb(database) => {
                let transaction = database.begin_write().expect("it begins");
                {
                    let mut table = transaction.open_table(TABLE).expect("it opens");
                    for l in 0..ledgers {
                        for e in range.clone() {
                            table.insert(key(l, e), key(generation, e)).expect("it inserts");
                        }
                    }
                }
                transaction.commit().expect("it commits");
            }
            Index::Rocks(rocks) => {
                for l in 0..ledgers {
                    for e in range.clone() {
                        rocks.put(&key(l, e), &key(generation, e));
                    }
                }
                rocks.commit();
            }
        }
    }

    fn has(&self, l: u64, e: u64) -> bool {
        match self {
            Index::Bindery(_, view) => view.find(ledger(l), entry(e)).expect("it reads").is_some(),
            Index::Redb(database) => {
                let table = database.begin_read().expect("it begins").open_table(TABLE).expect("it opens");
                table.get(key(l, e)).expect("it reads").is_some()
            }
            Index::Rocks(rocks) => rocks.get(&key(l, e)),
        }
    }
}

/// A log with the smallest possible bodies, to measure the index rather than the bodies.
fn write_log(
    directory: &mut LedgerDirectory,
    generation: u64,
    ledgers: std::ops::Range<u64>,
    range: std::ops::Range<u64>,
    checksum: impl Fn(&[u8]) -> u32,
) -> SealedLog {
    let mut log = directory.begin_log(Generation(generation)).expect("it begins");
    let mut body = [0xFF; 24];
    for l in ledgers {
        body[..8].copy_from_slice(&l.to_be_bytes());
        for e in range.clone() {
            body[8..16].copy_from_slice(&e.to_be_bytes());
            log.append(ledger(l), entry(e), &body, checksum(&body)).expect("it appends");
        }
    }
    log.finish().expect("it finishes")
}

fn load(engine: &str, shape: Shape, dir: &Path) {
    let mut index = Index::open(engine, dir);
    let (begun, cpu) = (Instant::now(), cpu_us());
    for (generation, range) in (1..).zip(shape.flushes()) {
        index.flush(generation, shape.ledgers, range);
    }
    let (took, spent, entries) = (begun.elapsed(), cpu_us() - cpu, shape.entries as f64);
    let rss = rss_mib();
    drop(index);
    let bytes = bytes_below(dir) as f64 / entries;
    println!(
        "cpu_us={:.3} rate_k={:.0} load_rss={rss:.0} bytes={bytes:.1}",
        spent / entries,
        entries / took.as_secs_f64() / 1e3
    );
}

fn read(engine: &str, shape: Shape, dir: &Path, reads: u64) {
    drop_pages(dir);
    let begun = Instant::now();
    let index = Index::open(engine, dir);
    let open_ms = begun.elapsed().as_secs_f64() * 1e3;
    let open_rss = rss_mib();
    // A cold look-up must not find the pages that opening read.
    drop_pages(dir);
    let mut next = numbers(7);
    let mut timed = |reads: u64| {
        let mut ns = Vec::with_capacity(reads as usize);
        for _ in 0..reads {
            let (l, e) = (next(shape.ledgers), next(shape.entries_each()));
            let begun = Instant::now();
            assert!(index.has(l, e), "{l}:{e}");
            ns.push(begun.elapsed().as_nanos() as u64);
        }
        ns
    };
    let (cold50, cold99, _) = percentiles(timed((reads / 100).max(100)));
    timed(reads);
    let cpu = cpu_us();
    let (warm50, warm99, _) = percentiles(timed(reads));
    let cpu = (cpu_us() - cpu) / reads as f64;
    println!(
        "open_ms={open_ms:.1} open_rss={open_rss:.0} rss={:.0} cold50={cold50:.1} cold99={cold99:.1} warm50={warm50:.2} \
         warm99={warm99:.2} read_cpu={cpu:.2}",
        rss_mib()
    );
}

fn config(dir: &Path) -> EngineConfig {
    EngineConfig {
        journal_dirs: vec![dir.join("journal")],
        ledger_dirs: vec![dir.join("ledgers")],
        shard_count: 2,
        write_pool_bytes: 64 << 20,
        pool_memory: PoolMemory::Lazy,
        // The sizes that a bookie with a limit of 1 GiB gives them.
        index_pool_bytes: 96 << 20,
        cache_pool_bytes: 64 << 20,
        journal_files_preallocated: 0,
        ..EngineConfig::default()
    }
}

fn open_machine(dir: &Path) -> Machine {
    let (disk, clock) = (Arc::new(RealDisk::new()), Arc::new(SystemClock::new()));
    Machine::open(config(dir), disk, clock, Arc::new(SystemRandom)).expect("it opens")
}

/// A bookie with `ledgers` ledgers of one entry each, and 1,000 removed ones whose `deleted` entries are still on disk.
fn make_ledgers(dir: &Path, ledgers: u64, deleted: u64) {
    drop(open_machine(dir));
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    let mut directory = LedgerDirectory::open(&disk, &dir.join("ledgers")).expect("it opens").directory;
    let removed = 1000.min(deleted);
    let logs = [
        write_log(&mut directory, 1, 0..removed, 0..deleted.checked_div(removed).unwrap_or(0), crc32c),
        write_log(&mut directory, 2, removed..removed + ledgers, 0..1, crc32c),
    ];
    let record = |raw: u64| LedgerRecord {
        ledger: ledger(raw),
        master_key: Some(MasterKey::new([7; 20])),
        is_fenced: false,
        is_limbo: false,
        explicit_lac: None,
        last_add_confirmed: None,
        last_entry: (raw >= removed).then_some(entry(0)),
        life: u32::from(raw < removed),
        hidden_below: Generation(if raw < removed { 2 } else { 0 }),
        tier: None,
    };
    let records: Vec<LedgerRecord> = (0..removed + ledgers).map(record).collect();
    let commit = DirectoryCommit { logs_added: &logs, ledgers: &[&records], ..Default::default() };
    directory.commit(&commit).expect("it commits");
    println!("made={}", records.len());
}

fn open_ledgers(dir: &Path, ledgers: u64, deleted: u64) {
    drop_pages(dir);
    let before = rss_mib();
    let begun = Instant::now();
    let machine = open_machine(dir);
    let open_ms = begun.elapsed().as_secs_f64() * 1e3;
    let rss = rss_mib() - before;
    let engine = &machine.engine;
    let removed = 1000.min(deleted);
    let mut next = numbers(11);
    let mut body = Vec::new();
    let mut last = |reads: u64| {
        let mut ns = Vec::new();
        for at in 0..reads {
            // Every tenth is a ledger whose entries are all deleted.
            let is_removed = at.is_multiple_of(10) && removed > 0;
            let raw = if is_removed { next(removed) } else { removed + next(ledgers) };
            let begun = Instant::now();
            let is_found = match engine.read(ledger(raw), EntryRef::Last) {
                Ok(Lookup::Disk(mut read)) => match read.try_load(&mut body) {
                    Some(loaded) => loaded.is_ok(),
                    None => read.load().is_ok(),
                },
                Ok(Lookup::Memory(_)) => true,
                Ok(Lookup::Undurable(_) | Lookup::Tiered(_)) | Err(_) => false,
            };
            ns.push(begun.elapsed().as_nanos() as u64);
            assert_eq!(is_found, !is_removed, "ledger {raw}");
        }
        percentiles(ns)
    };
    let (cold50, cold99, _) = last(1000);
    let (warm50, warm99, warm_max) = last(50_000);
    let index = &engine.storage_memory().index;
    let charged = |what| index.used(what) as f64 / (1 << 20) as f64;
    let (in_memory, on_disk) = engine.index_runs();
    println!(
        "open_ms={open_ms:.0} rss={rss:.0} per_ledger={:.0} states={:.0} extents={:.0} runs_in_memory={in_memory} \
         runs_on_disk={on_disk} cold50={cold50:.1} cold99={cold99:.1} warm50={warm50:.2} warm99={warm99:.2} \
         warm_max={warm_max:.1}",
        rss * (1 << 20) as f64 / (ledgers + removed) as f64,
        charged(bindery_storage::IndexUse::Ledgers),
        charged(bindery_storage::IndexUse::Extents),
    );
}

/// The cost of finding the last entry where that is a search: one key, and behind it `deleted` keys that are deleted.
fn rocks_last(dir: &Path, deleted: u64) {
    let mut rocks = Rocks::open(dir, CACHE_BYTES);
    rocks.put(&key(0, 0), &key(0, 0));
    for is_put in [true, false] {
        for at in 0..deleted {
            let key = key(1 + at / 10_000, at % 10_000);
            if is_put {
                rocks.put(&key, &key)
            } else {
                rocks.delete(&key)
            }
            if (at + 1).is_multiple_of(BATCH) || at + 1 == deleted {
                rocks.commit();
            }
        }
    }
    let mut ns = Vec::new();
    for _ in 0..3 {
        let begun = Instant::now();
        assert!(rocks.has_at_or_below(&key(u64::MAX >> 1, 0)));
        ns.push(begun.elapsed().as_nanos() as u64);
    }
    let (p50, p99, max) = percentiles(ns);
    println!("last50={p50:.0} last99={p99:.0} last_max={max:.0}");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let text: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let shape = |entries: &str, ledgers: &str| Shape { entries: number(entries), ledgers: number(ledgers) };
    match text[..] {
        ["load", engine, entries, ledgers, dir] => load(engine, shape(entries, ledgers), Path::new(dir)),
        ["read", engine, entries, ledgers, dir, reads] => {
            read(engine, shape(entries, ledgers), Path::new(dir), number(reads));
        }
        ["make-ledgers", dir, ledgers, deleted] => {
            make_ledgers(&PathBuf::from(dir), number(ledgers), number(deleted));
        }
        ["open-ledgers", dir, ledgers, deleted] => {
            open_ledgers(&PathBuf::from(dir), number(ledgers), number(deleted));
        }
        ["rocks-last", dir, deleted] => rocks_last(Path::new(dir), number(deleted)),
        _ => panic!("see ./run"),
    }
}
