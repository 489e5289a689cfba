//! The journal alone against the bare device: groups of the same size, one write and sync after another, in
//! alternating rounds on the same disk.
//!
//!     cargo bench -p bindery-engine --bench journal_vs_raw -- --seconds 1.5 --rounds 5 --dir /some/disk
//!
//! Bare device: one direct, durable write (O_DIRECT, RWF_DSYNC) of an aligned buffer into a file that was written
//! before. Journal: records of 1 KiB are placed in a chunk with their checksums, then [`Journal::write`] makes them
//! durable; the group with its header and padding has the size of the bare write. "Rate" counts the time in
//! `Journal::write`, "sync" is the one system call in it, "submit to durable" begins before the first record is placed.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark measures real time and may panic"
)]

mod support;

use bindery_io::canary::Canaries;
use bindery_io::chunk::{AlignedBuf, ChunkPool, Lane};
use bindery_io::{Disk, DiskFile, DiskLayer, FileLayer, OpenMode, RealDisk, SystemRandom};
use bindery_journal::group::layout;
use bindery_journal::record::{self, HEADER_SIZE_BYTES, Kind};
use bindery_journal::{Group, Journal, JournalConfig, Part, PreparedFile};
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{Args, Histogram, head, median, row, short};

const ENTRY: usize = 1024;

/// The real disk; times the durable writes.
struct TimedDisk {
    inner: RealDisk,
    syncs: Arc<Mutex<Histogram>>,
}

struct TimedFile {
    inner: Arc<dyn DiskFile>,
    syncs: Arc<Mutex<Histogram>>,
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap()
}

impl DiskLayer for TimedDisk {
    fn beneath(&self) -> &dyn Disk {
        &self.inner
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(TimedFile { inner: self.inner.open(path, mode)?, syncs: self.syncs.clone() }))
    }
}

impl FileLayer for TimedFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.inner
    }
    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let begun = Instant::now();
        let written = self.inner.write_durable_at(slices, offset);
        self.syncs.lock().unwrap().record(ns(begun.elapsed()), 1);
        written
    }
}

/// One round of one case.
struct Round {
    mib_per_s: f64,
    sync: Histogram,
    submit: Histogram,
    cpu_us_per_group: f64,
}

struct Raw {
    file: Arc<dyn DiskFile>,
    bytes: u64,
    buffer: AlignedBuf,
    at: u64,
}

impl Raw {
    fn new(dir: &Path, bytes: u64) -> Raw {
        let file = RealDisk::new().open(&dir.join("raw"), OpenMode::CreateDirect).unwrap();
        let buffer = AlignedBuf::zeroed(1 << 20);
        for at in (0..bytes).step_by(buffer.len()) {
            file.write_all_at(&mut [IoSlice::new(&buffer)], at).unwrap();
        }
        file.sync().unwrap();
        Raw { file, bytes, buffer, at: 0 }
    }

    fn round(&mut self, group: usize, seconds: f64) -> Round {
        let (begun, cpu, mut sync) = (Instant::now(), support::cpu(), Histogram::new());
        while begun.elapsed().as_secs_f64() < seconds {
            if self.at + group as u64 > self.bytes {
                self.at = 0;
            }
            let write = Instant::now();
            self.file.write_all_durable_at(&mut [IoSlice::new(&self.buffer[..group])], self.at).unwrap();
            sync.record(ns(write.elapsed()), 1);
            self.at += group as u64;
        }
        let groups = sync.total() as f64;
        Round {
            mib_per_s: groups * group as f64 / begun.elapsed().as_secs_f64() / f64::from(1 << 20),
            cpu_us_per_group: (support::cpu() - cpu).as_secs_f64() * 1e6 / groups,
            submit: sync.clone(),
            sync,
        }
    }
}

struct Ours {
    journal: Journal,
    pool: ChunkPool,
    syncs: Arc<Mutex<Histogram>>,
}

impl Ours {
    fn new(dir: &Path, file_bytes: u64) -> Ours {
        let syncs = Arc::new(Mutex::new(Histogram::new()));
        let disk: Arc<dyn Disk> = Arc::new(TimedDisk { inner: RealDisk::new(), syncs: syncs.clone() });
        let config = JournalConfig {
            bytes_max: 0,
            dir: dir.join("journal"),
            file_bytes,
            owner: "bench".to_owned(),
            journal: 0,
            is_tiered: false,
            sync: true,
            canaries: Canaries::none(),
        };
        disk.create_dir_all(&config.dir).unwrap();
        let mut journal = Journal::open(disk.clone(), config.clone(), Arc::new(SystemRandom)).unwrap();
        for _ in 0..2 {
            let slot = journal.reserve_slot();
            let file = PreparedFile::create(&*disk, &config, slot, || true).unwrap().unwrap();
            journal.add_prepared(file);
        }
        let pool = ChunkPool::new(8 << 20, 4, 0);
        while pool.warm_one() {}
        Ours { journal, pool, syncs }
    }

    fn round(&mut self, group: usize, seconds: f64) -> Round {
        self.syncs.lock().unwrap().clear();
        let (begun, cpu) = (Instant::now(), support::cpu());
        let (mut submit, mut writing, mut bytes) = (Histogram::new(), Duration::ZERO, 0u64);
        let mut chunk = self.pool.take(Lane::Normal).unwrap();
        let mut body = vec![7u8; group + ENTRY];
        let mut entry = 0i64;
        while begun.elapsed().as_secs_f64() < seconds {
            let submitted = Instant::now();
            if chunk.remaining() < group {
                chunk = self.pool.take(Lane::Normal).unwrap();
            }
            // As many bytes of records as make the group, with header and padding, as large as the bare write.
            let start = chunk.len();
            let fits =
                |length: usize| layout([(start % 4096, length)].into_iter()).total_bytes <= group as u64;
            let (mut length, mut step) = (0, group.next_power_of_two());
            while step > 0 {
                length += if length + step <= group && fits(length + step) { step } else { 0 };
                step /= 2;
            }
            bytes += layout([(start % 4096, length)].into_iter()).total_bytes;
            let (mut left, mut records, mut headers_crc) = (length, 0, 0);
            while left > 0 {
                let record_bytes =
                    if left >= 2 * (ENTRY + HEADER_SIZE_BYTES) { ENTRY + HEADER_SIZE_BYTES } else { left };
                body[8..16].copy_from_slice(&entry.to_be_bytes());
                let piece = &body[..record_bytes - HEADER_SIZE_BYTES];
                chunk.append(record_bytes, |target| {
                    let (header, _) = record::encode(target, Kind::Entry, &[piece]);
                    headers_crc = record::fold_header(headers_crc, &header);
                });
                (left, records, entry) = (left - record_bytes, records + 1, entry + 1);
            }
            let data = chunk.slice(start..chunk.len());
            let part = Part { data, shard: 0, record_count: records, headers_crc };
            let group = Group { parts: vec![part], force_sync: false };
            let write = Instant::now();
            let number = self.journal.write(&group).unwrap();
            writing += write.elapsed();
            submit.record(ns(submitted.elapsed()), 1);
            self.journal.release_up_to(number - 1);
        }
        let groups = submit.total() as f64;
        Round {
            mib_per_s: bytes as f64 / writing.as_secs_f64() / f64::from(1 << 20),
            cpu_us_per_group: (support::cpu() - cpu).as_secs_f64() * 1e6 / groups,
            sync: self.syncs.lock().unwrap().clone(),
            submit,
        }
    }
}

fn main() {
    let args = Args::parse("journal");
    let file_bytes = args.size(256 << 20, 4 << 20);
    let mut raw = Raw::new(&args.dir, file_bytes);
    let mut ours = Ours::new(&args.dir, file_bytes);
    let groups = [4, 64, 256, 1024].map(|kib: usize| kib << 10);
    let mut rounds: Vec<[Vec<Round>; 2]> = groups.iter().map(|_| Default::default()).collect();
    for round in 0..args.rounds {
        for (case, group) in groups.iter().enumerate() {
            for turn in [round % 2, (round + 1) % 2] {
                let done = match turn {
                    0 => raw.round(*group, args.seconds),
                    _ => ours.round(*group, args.seconds),
                };
                rounds[case][turn].push(done);
            }
        }
    }
    head(&[
        "group",
        "writer",
        "MiB/s",
        "of raw",
        "sync p50 µs",
        "of raw",
        "sync p99",
        "p99.9",
        "max",
        "submit to durable p50",
        "p99",
        "CPU µs/group",
    ]);
    for (group, [raw, ours]) in groups.iter().zip(&rounds) {
        for (name, mine) in [("bare device", raw), ("journal", ours)] {
            let of = |rounds: &[Round], value: &dyn Fn(&Round) -> f64| median(rounds.iter().map(value));
            let at = |share: f64| move |round: &Round| round.sync.at(share);
            let rate = |round: &Round| round.mib_per_s;
            // Neighbouring rounds are compared with each other: the machine drifts.
            let ratio = |value: &dyn Fn(&Round) -> f64| {
                median(mine.iter().zip(raw).map(|(mine, raw)| value(mine) / value(raw)))
            };
            row([
                format!("{} KiB", group >> 10),
                name.to_owned(),
                short(of(mine, &rate)),
                format!("{:.2}", ratio(&rate)),
                short(of(mine, &at(0.5))),
                format!("{:.2}", ratio(&at(0.5))),
                short(of(mine, &at(0.99))),
                short(of(mine, &at(0.999))),
                short(of(mine, &|r| r.sync.max())),
                short(of(mine, &|r| r.submit.at(0.5))),
                short(of(mine, &|r| r.submit.at(0.99))),
                short(of(mine, &|r| r.cpu_us_per_group)),
            ]);
        }
    }
    println!("\nResident memory at the end: {} MiB.", short(support::resident_mib()));
}
