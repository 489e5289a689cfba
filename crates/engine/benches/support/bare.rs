//! The bare loop: copy, checksum, write and sync, sorted flush into a second file beside the next arena. It has no
//! index in memory, no look-ups, no fences, no requests.

use super::{Histogram, cpu};
use bindery_io::chunk::AlignedBuf;
use bindery_io::{Disk, DiskFile, OpenMode, RealDisk};
use bindery_journal::record::crc32c;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const STAGING: usize = 1 << 20;

struct Arena {
    memory: AlignedBuf,
    filled: usize,
    /// Ledger, entry, offset, length, checksum.
    index: Vec<(i64, i64, u32, u32, u32)>,
}

/// Two arenas and a journal file that was written before.
pub struct Bare {
    dir: PathBuf,
    arenas: Vec<Arena>,
    journal: Arc<dyn DiskFile>,
    journal_bytes: u64,
    position: u64,
    logs: u64,
}

/// One round.
pub struct BareRound {
    pub adds: u64,
    pub seconds: f64,
    pub cpu: Duration,
    pub latencies: Histogram,
}

impl Bare {
    pub fn new(dir: &Path, arena_bytes: usize, journal_bytes: u64) -> Bare {
        let dir = dir.join("bare");
        let disk = RealDisk::new();
        disk.create_dir_all(&dir).unwrap();
        let journal = disk.open(&dir.join("journal"), OpenMode::CreateDirect).unwrap();
        let zeros = AlignedBuf::zeroed(STAGING);
        for at in (0..journal_bytes).step_by(STAGING) {
            journal.write_all_at(&mut [IoSlice::new(&zeros)], at).unwrap();
        }
        journal.sync().unwrap();
        let arena = || {
            let mut memory = AlignedBuf::zeroed(arena_bytes);
            memory.fill(1);
            Arena { memory, filled: 0, index: Vec::with_capacity(arena_bytes / 1024) }
        };
        Bare { dir, arenas: vec![arena(), arena()], journal, journal_bytes, position: 0, logs: 0 }
    }

    /// Groups of `group` entries of `entry_bytes` each over `ledgers` ledgers.
    pub fn round(&mut self, entry_bytes: usize, group: usize, ledgers: i64, seconds: f64) -> BareRound {
        let (to_flush, flushing) = sync_channel::<Arena>(1);
        let (to_fill, free) = sync_channel::<Arena>(2);
        for mut arena in self.arenas.drain(..) {
            (arena.filled, _) = (0, arena.index.clear());
            to_fill.send(arena).unwrap();
        }
        let (dir, first_log) = (self.dir.clone(), self.logs);
        let flusher = std::thread::spawn(move || flush(&dir, first_log, &flushing, &to_fill));
        let mut body = vec![7u8; entry_bytes];
        let group_bytes = (group * entry_bytes).next_multiple_of(BLOCK);
        let (mut latencies, mut adds) = (Histogram::new(), 0u64);
        let (begun, cpu_before) = (Instant::now(), cpu());
        let mut arena = free.recv().unwrap();
        while begun.elapsed().as_secs_f64() < seconds {
            let submitted = Instant::now();
            if arena.memory.len() - arena.filled < group_bytes {
                to_flush.send(arena).unwrap();
                arena = free.recv().unwrap();
            }
            let start = arena.filled;
            for i in 0..group {
                let n = adds as i64 + i as i64;
                let (ledger, entry) = (n % ledgers, n / ledgers);
                body[..8].copy_from_slice(&ledger.to_be_bytes());
                body[8..16].copy_from_slice(&entry.to_be_bytes());
                let at = start + i * entry_bytes;
                let place = &mut arena.memory[at..at + entry_bytes];
                place.copy_from_slice(&body);
                let crc = crc32c(place);
                arena.index.push((ledger, entry, at as u32, entry_bytes as u32, crc));
            }
            arena.filled = start + group_bytes;
            if self.position + group_bytes as u64 > self.journal_bytes {
                self.position = 0;
            }
            let bytes = &arena.memory[start..arena.filled];
            self.journal.write_all_durable_at(&mut [IoSlice::new(bytes)], self.position).unwrap();
            self.position += group_bytes as u64;
            latencies.record(u64::try_from(submitted.elapsed().as_nanos()).unwrap(), group as u64);
            adds += group as u64;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let cpu = cpu() - cpu_before;
        to_flush.send(arena).unwrap();
        drop(to_flush);
        self.logs = flusher.join().unwrap();
        self.arenas.extend(free.try_iter());
        for log in first_log..self.logs {
            std::fs::remove_file(self.dir.join(format!("log{log}"))).unwrap();
        }
        BareRound { adds, seconds, cpu, latencies }
    }
}

/// Writes each arena sorted into a log of its own, with an index behind; returns the number of the next log.
fn flush(dir: &Path, first_log: u64, arenas: &Receiver<Arena>, done: &SyncSender<Arena>) -> u64 {
    let disk = RealDisk::new();
    let mut staging = AlignedBuf::zeroed(STAGING);
    let mut next_log = first_log;
    for mut arena in arenas {
        arena.index.sort_unstable_by_key(|(ledger, entry, ..)| (*ledger, *entry));
        let file = disk.open(&dir.join(format!("log{next_log}")), OpenMode::CreateDirect).unwrap();
        next_log += 1;
        let (mut filled, mut position) = (0, 0);
        let mut push = |mut bytes: &[u8], is_last: bool| {
            while !bytes.is_empty() || is_last {
                let n = bytes.len().min(STAGING - filled);
                staging[filled..filled + n].copy_from_slice(&bytes[..n]);
                (filled, bytes) = (filled + n, &bytes[n..]);
                if filled == STAGING || is_last {
                    let whole = filled.next_multiple_of(BLOCK);
                    file.write_all_at(&mut [IoSlice::new(&staging[..whole])], position).unwrap();
                    (filled, position) = (0, position + whole as u64);
                }
                if is_last {
                    break;
                }
            }
        };
        for (_, _, offset, length, _) in &arena.index {
            push(&arena.memory[*offset as usize..(offset + length) as usize], false);
        }
        for (ledger, entry, offset, length, crc) in &arena.index {
            let mut record = [0; 32];
            record[..8].copy_from_slice(&ledger.to_be_bytes());
            record[8..16].copy_from_slice(&entry.to_be_bytes());
            record[16..20].copy_from_slice(&offset.to_be_bytes());
            record[20..24].copy_from_slice(&length.to_be_bytes());
            record[24..28].copy_from_slice(&crc.to_be_bytes());
            push(&record, false);
        }
        push(&[], true);
        file.sync().unwrap();
        disk.sync_dir(dir).unwrap();
        (arena.filled, _) = (0, arena.index.clear());
        done.send(arena).unwrap();
    }
    next_log
}
