//! A prototype of writing each byte once, beside what is done today, in alternating rounds on the same disk.
//!
//!     cargo bench -p bindery-engine --bench write_once -- --seconds 1 --rounds 3 --dir /some/disk
//!
//! One thread places entries as journal records in chunks and writes them, in groups, to a real journal with syncs. The
//! content of a full journal file goes to a second thread, while the next file fills:
//! - "today": it is sorted and copied into a real entry log, as a flush does, which is synced and committed with the states of
//!   its ledgers and the mark of the journal; the journal file is used again.
//! - "once": an index of the journal file is written, synced and committed with the same states and mark. The file keeps its
//!   bytes under another name, and another file takes its place in the journal: one that was written before ("recycled", as
//!   there are when ledgers were deleted, or sorted, as fast as others are added), one that is only allocated, or one that
//!   is filled with zeros first.
//!
//! A round adds 512 MiB for each second of `--seconds`, and ends when all of it is in logs; `--case " 10,000 ledgers"` runs
//! only the cases whose name has that. Processor time is that of both threads: there are no sockets, shards, locks or
//! answers here, which cost the same in both. "Written" is all that went through `Disk`, for each byte of entries: journal
//! (headers, padding), logs or indexes, state tables, zeros. A group is synced by one write, and its time is that of this
//! write.
//!
//! After the last round one more file is filled, and a crash is simulated: everything in memory of that file is dropped, made
//! again from the file, and made a log. Then ledgers are read from beginning to end, and verified as a bookie does: cold (the
//! kernel is told to forget the files, asked whether it did, and reads ahead for both) and once more, warm; then entries in
//! random order, warm. The same follows after the kept files were sorted, `--sort` (4) at a time, into real entry logs. Between
//! the cold and the warm reads every byte is compared with the one that was added.
//!
//! # Limits
//! Entries of a ledger come in order and once; deletions are between rounds. Reads have one thread, and the machine is idle
//! otherwise. Below a virtual disk, the host may have cached what is cold here.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark measures real time and may panic"
)]

#[path = "write_once/adds.rs"]
mod adds;
#[path = "write_once/disk.rs"]
mod disk;
#[path = "write_once/index.rs"]
mod index;
#[path = "write_once/keepers.rs"]
mod keepers;
#[path = "write_once/reads.rs"]
mod reads;
#[path = "write_once/replay.rs"]
mod replay;
#[path = "write_once/report.rs"]
mod report;
mod support;

use adds::{CHUNK_BYTES, Case, JOURNAL_FILES, Pattern, SHARDS, Set, Writer};
use bindery_io::chunk::{AlignedBuf, ChunkPool};
use bindery_io::{Disk, RealDisk};
use bindery_storage::{LedgerDirectory, LogView, Mark};
use bindery_types::LedgerId;
use disk::{CountingDisk, Fresh, Spares, What};
use keepers::{Once, Today, buffers, open_directory, sort};
use reads::{Sorted, Source, Took, Unsorted, catch_up, forget};
use report::{After, Done, Reads, Round, Sort, tell_adds, tell_reads, tell_rest};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Args, median, short};

const ROUND_BYTES: u64 = 512 << 20;
const FILE_BYTES: u64 = 64 << 20;
const SMOKE_FILE_BYTES: u64 = 512 << 10;
/// Entries that are read by who catches up, at least; more where a ledger has more.
const READ_ENTRIES: u64 = 12_000;
const READ_LEDGERS_MAX: u64 = 1_000;
const RANDOM_READS: u64 = 20_000;
/// How long warm passes are repeated.
const WARM_READS: Duration = Duration::from_millis(300);

const MODES: [Mode; 4] =
    [Mode::Today, Mode::Once(Fresh::Recycled), Mode::Once(Fresh::Allocated), Mode::Once(Fresh::Zeroed)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Today,
    Once(Fresh),
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Today => "today",
            Mode::Once(Fresh::Recycled) => "once, recycled files",
            Mode::Once(Fresh::Allocated) => "once, allocated files",
            Mode::Once(Fresh::Zeroed) => "once, zeroed files",
        }
    }
}

/// Of this thread, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    // The kernel adds up what a thread had when it is scheduled, or at a tick.
    std::thread::yield_now();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn cases(args: &Args) -> Vec<Case> {
    let bytes = (ROUND_BYTES as f64 * args.seconds) as u64;
    let file_bytes = args.size(FILE_BYTES, SMOKE_FILE_BYTES);
    let files = args.size((bytes / file_bytes).max(1) as usize, 2);
    let case = |name, entry_bytes, ledgers: u64, group: u64| {
        let few = (SMOKE_FILE_BYTES / 8 / entry_bytes as u64).max(1);
        let (ledgers, group) = args.size((ledgers, group), (ledgers.min(500), group.min(few)));
        Case { name, entry_bytes, ledgers, group, file_bytes, files }
    };
    let all = [
        case("100 B, 50 ledgers", 100, 50, 5_000),
        case("100 B, 10,000 ledgers", 100, 10_000, 5_000),
        case("1 KiB, 50 ledgers", 1 << 10, 50, 1_000),
        case("1 KiB, 10,000 ledgers", 1 << 10, 10_000, 1_000),
        case("16 KiB, 50 ledgers", 16 << 10, 50, 64),
        case("16 KiB, 10,000 ledgers", 16 << 10, 10_000, 64),
        // A device that takes 8,000 syncs a second does not fill large files so.
        Case {
            file_bytes: args.size(2 << 20, SMOKE_FILE_BYTES / 4),
            files: 4.min(files),
            ..case("1 KiB, 50 ledgers, one add a group", 1 << 10, 50, 1)
        },
    ];
    let only = args.value("--case").unwrap_or("");
    all.into_iter().filter(|case| case.name.contains(only)).collect()
}

struct Bench {
    args: Args,
    disk: Arc<CountingDisk>,
    pattern: Pattern,
    pool: ChunkPool,
    /// The last file and group of any journal so far: an earlier use of a file must have lower numbers.
    last: Mark,
    turns: usize,
    /// For sorting.
    buffers: Vec<[AlignedBuf; 2]>,
}

/// Times something: milliseconds, and of processor time.
fn timed<T>(what: impl FnOnce() -> T) -> (T, f64, f64) {
    let (begun, cpu) = (Instant::now(), thread_cpu_ns());
    let result = what();
    (result, begun.elapsed().as_secs_f64() * 1e3, (thread_cpu_ns() - cpu) as f64 / 1e6)
}

impl Bench {
    /// One round; with `reads` also what comes after the adds.
    fn turn(&mut self, case: &Case, mode: Mode, spares: &mut Spares, reads: bool) -> (Round, Option<After>) {
        self.turns += 1;
        let dir = self.args.dir.join(format!("turn-{}", self.turns));
        let (journal_dir, logs_dir) = (dir.join("journal"), dir.join("logs"));
        self.disk.create_dir_all(&journal_dir).unwrap();
        spares.stock(JOURNAL_FILES + case.files + 1);
        let fresh = if let Mode::Once(fresh) = mode { fresh } else { Fresh::Recycled };
        let mut buffers = std::mem::take(&mut self.buffers);
        let (pattern, pool, last) = (&self.pattern, &self.pool, self.last);
        let mut writer = Writer::new(*case, pattern, pool, &self.disk, &journal_dir, (spares, fresh), last);
        let (round, after) = match mode {
            Mode::Today => {
                let mut keeper = Today(open_directory(&self.disk, &logs_dir));
                let round = self.adds(case, &mut writer, &mut keeper);
                let after = reads.then(|| self.after_today(case, &mut writer, keeper, &journal_dir));
                (round, after)
            }
            Mode::Once(_) => {
                let table = dir.join("table");
                let mut keeper = Once::new(&self.disk, &table, &journal_dir, spares, fresh);
                let round = self.adds(case, &mut writer, &mut keeper);
                let after =
                    reads.then(|| self.after_once(case, &mut writer, keeper, &logs_dir, &mut buffers));
                (round, after)
            }
        };
        self.last = writer.last();
        drop(writer);
        self.buffers = buffers;
        if fresh == Fresh::Recycled {
            // All is deleted.
            let names = Disk::list(&*self.disk, &journal_dir).unwrap();
            let is_file = |name: &&str| name.ends_with(".bjl") || name.ends_with(".jlog");
            for name in names.iter().map(|entry| &*entry.name).filter(is_file) {
                spares.put(&journal_dir.join(name));
            }
        }
        std::fs::remove_dir_all(&dir).unwrap();
        (round, after)
    }

    fn adds(&self, case: &Case, writer: &mut Writer<'_>, keeper: &mut dyn adds::Keeper) -> Round {
        let before = self.disk.now();
        let ran = writer.run(keeper);
        let counted = self.disk.now() - before;
        let entry_bytes = case.entry_bytes as u64;
        // The journal has the first group of the next file already.
        let per_byte = |what, adds: u64| counted[what] as f64 / (adds * entry_bytes) as f64;
        Round {
            adds_per_s: ran.adds as f64 / ran.seconds,
            writer_us: ran.writer_ns as f64 / 1e3 / writer.adds as f64,
            keeper_us: ran.keeper_ns as f64 / 1e3 / ran.adds as f64,
            p50_ms: writer.write_ns.at(0.5) / 1e3,
            p99_ms: writer.write_ns.at(0.99) / 1e3,
            journal: per_byte(What::Journal, writer.adds),
            logs: per_byte(What::Index, ran.adds) + per_byte(What::Log, ran.adds),
            tables: per_byte(What::Table, ran.adds),
            zeros: per_byte(What::Zeroing, ran.adds),
            allocated: per_byte(What::Allocated, ran.adds),
        }
    }

    /// Fills one more file and forgets what is in memory of it. Returns that and the number of adds in files.
    fn crash(&self, case: &Case, writer: &mut Writer<'_>, journal_dir: &Path) -> (Set, u64) {
        let covered = writer.last().group;
        let before = writer.adds;
        let (lost, adds) = writer.fill_one_more();
        let found = replay::count_by_replay(&self.disk, journal_dir, case, covered);
        assert_eq!(found, writer.adds - before, "the journal has what was added since");
        (Set { records: Default::default(), chunks: Vec::new(), ..lost }, adds)
    }

    fn after_today(
        &self,
        case: &Case,
        writer: &mut Writer<'_>,
        mut keeper: Today,
        journal_dir: &Path,
    ) -> After {
        let (lost, adds) = self.crash(case, writer, journal_dir);
        let (set, scan_ms, scan_cpu) =
            timed(|| replay::scan(&self.disk, journal_dir, &lost, Some(&self.pool)));
        let ((), keep_ms, keep_cpu) = timed(|| adds::Keeper::keep(&mut keeper, set));
        let logs_dir = keeper.0.path().to_owned();
        let space =
            bytes_of(&self.disk, &logs_dir, &["elog"]) as f64 / (adds * case.entry_bytes as u64) as f64;
        drop(keeper);
        let reads = vec![self.read_logs("today", case, adds, &logs_dir).1];
        After { reads, scan_ms, keep_ms, restart_cpu_ms: scan_cpu + keep_cpu, space, sort: None }
    }

    fn after_once(
        &self,
        case: &Case,
        writer: &mut Writer<'_>,
        mut keeper: Once<'_>,
        logs_dir: &Path,
        buffers: &mut [[AlignedBuf; 2]],
    ) -> After {
        let journal_dir = keeper.journal_dir.clone();
        let (lost, adds) = self.crash(case, writer, &journal_dir);
        let (set, scan_ms, scan_cpu) = timed(|| replay::scan(&self.disk, &journal_dir, &lost, None));
        let ((), keep_ms, keep_cpu) = timed(|| adds::Keeper::keep(&mut keeper, set));
        let bytes = (adds * case.entry_bytes as u64) as f64;
        let space = bytes_of(&self.disk, &journal_dir, &["jlog", "jidx"]) as f64 / bytes;
        let kept = keeper.kept.clone();
        let still_cached = forget(&self.disk, &journal_dir, ".jidx");
        keeper.table = None;
        let (mut unsorted, start_ms, start_cpu_ms) = timed(|| {
            keeper.open_table();
            Unsorted::open(&self.disk, &journal_dir, &kept)
        });
        let (asked, found) = forget(&self.disk, &journal_dir, ".jlog");
        let still_cached = (still_cached.0 + asked, still_cached.1 + found);
        let before = self.measure("once, before sorting", case, adds, &mut unsorted);
        let before = Reads { start_ms, start_cpu_ms, still_cached, ..before };
        drop(unsorted);

        let mut directory = open_directory(&self.disk, logs_dir);
        let counted = self.disk.now();
        let (sorted, ms, cpu) = timed(|| sort(&mut keeper, &mut directory, buffers));
        let counted = self.disk.now() - counted;
        assert_eq!(sorted, adds);
        drop(directory);
        let sort = Sort {
            cpu_us: cpu * 1e3 / adds as f64,
            mb_s: bytes / 1e3 / ms,
            read: counted[What::ReadBytes] as f64 / bytes,
            written: counted.written() as f64 / bytes,
        };
        let after = self.read_logs("once, sorted", case, adds, logs_dir).1;
        After {
            reads: vec![before, after],
            scan_ms,
            keep_ms,
            restart_cpu_ms: scan_cpu + keep_cpu,
            space,
            sort: Some(sort),
        }
    }

    fn read_logs(&self, what: &'static str, case: &Case, adds: u64, dir: &Path) -> (LedgerDirectory, Reads) {
        let still_cached = forget(&self.disk, dir, ".elog");
        let (directory, start_ms, start_cpu_ms) = timed(|| open_directory(&self.disk, dir));
        let view: Arc<LogView> = directory.view();
        let reads = self.measure(what, case, adds, &mut Sorted(view));
        (directory, Reads { start_ms, start_cpu_ms, still_cached, ..reads })
    }

    fn measure(&self, what: &'static str, case: &Case, adds: u64, source: &mut dyn Source) -> Reads {
        let each = adds / case.ledgers;
        let count = (READ_ENTRIES / each.max(1)).clamp(1, READ_LEDGERS_MAX.min(case.ledgers));
        let pick = |n: u64| LedgerId::new((n * (case.ledgers / count)) as i64 + 1).unwrap();
        let ledgers: Vec<(LedgerId, i64)> = (0..count)
            .map(pick)
            .map(|ledger| (ledger, case.entries_of(ledger, adds)))
            .filter(|(_, end)| *end > 0)
            .collect();
        let cold = catch_up(&self.disk, source, &ledgers, true, None);
        catch_up(&self.disk, source, &ledgers, false, Some(&self.pattern));
        let (mut passes, begun) = (Vec::new(), Instant::now());
        while passes.is_empty() || begun.elapsed() < self.args.size(WARM_READS, Duration::ZERO) {
            passes.push(catch_up(&self.disk, source, &ledgers, false, None));
        }
        let of = |value: &dyn Fn(&Took) -> f64| median(passes.iter().map(value));
        let (cpu_us, mb_s) = (of(&|took| took.cpu_us), of(&|took| took.mb_s));
        let warm = Took { cpu_us, mb_s, ..passes[0] };
        let reads = self.args.size(RANDOM_READS, 200);
        let (mut random, cpu) = (1u64, thread_cpu_ns());
        for _ in 0..reads {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (ledger, end) = ledgers[(random >> 33) as usize % ledgers.len()];
            let entry = (random >> 20) as i64 & i64::from(u32::MAX);
            let body = source.read(ledger, entry % end);
            assert_eq!(body.len(), case.entry_bytes);
        }
        let random_us = (thread_cpu_ns() - cpu) as f64 / 1e3 / reads as f64;
        Reads { what, cold, warm, random_us, start_ms: 0.0, start_cpu_ms: 0.0, still_cached: (0, 0) }
    }
}

fn bytes_of(disk: &CountingDisk, dir: &Path, endings: &[&str]) -> u64 {
    let names = Disk::list(disk, dir).unwrap();
    let is_one = |name: &str| endings.iter().any(|ending| name.ends_with(ending));
    names.iter().filter(|entry| is_one(&entry.name)).map(|entry| entry.len).sum()
}

fn main() {
    let args = Args::parse("write-once");
    let cases = cases(&args);
    let sort_at_once = args.value("--sort").map_or(4, |value| value.parse().unwrap());
    // Three sets, and what their last chunks have left.
    let chunks =
        3 * (args.size(FILE_BYTES, SMOKE_FILE_BYTES) as usize / CHUNK_BYTES + 2 * SHARDS) + 2 * SHARDS;
    let pool = ChunkPool::new(CHUNK_BYTES, chunks, 0);
    while !args.is_smoke && pool.warm_one() {}
    let disk = Arc::new(CountingDisk::default());
    let longest = cases.iter().map(|case| case.entry_bytes).max().unwrap();
    let spares_dir = |bytes: u64| -> PathBuf { args.dir.join(format!("spares-{bytes}")) };
    let lengths: std::collections::BTreeSet<u64> = cases.iter().map(|case| case.file_bytes).collect();
    let mut spares: Vec<Spares> =
        lengths.iter().map(|bytes| Spares::new(&disk, spares_dir(*bytes), *bytes)).collect();
    let (last, rounds) = (Mark { file_id: 0, group: 0 }, args.rounds);
    let pattern = Pattern::new(longest);
    let longest_file = lengths.iter().max().copied().unwrap();
    let buffers = buffers(sort_at_once, longest_file);
    let mut bench = Bench { args, disk, pattern, pool, last, turns: 0, buffers };
    let mut done: Vec<Done> = Vec::new();
    for case in cases {
        let place = lengths.iter().position(|bytes| *bytes == case.file_bytes).unwrap();
        let (mut all, mut after): ([Vec<Round>; 4], Vec<After>) = Default::default();
        for round in 0..rounds {
            for turn in 0..MODES.len() {
                let number = (round + turn) % MODES.len();
                let reads = round + 1 == rounds && number < 2;
                let (took, then) = bench.turn(&case, MODES[number], &mut spares[place], reads);
                all[number].push(took);
                after.extend(then);
            }
        }
        if after.len() == 2 && after[0].sort.is_some() {
            after.swap(0, 1);
        }
        eprintln!("{}", case.name);
        done.push((case, all, after));
    }
    tell_adds(&done);
    tell_reads(&done);
    tell_rest(&done);
    let seen = RealDisk::new().space(&bench.args.dir).unwrap();
    println!(
        "\nResident memory at the end: {} MiB; the volume has {} GiB.",
        short(support::resident_mib()),
        seen.total >> 30
    );
}
