//! Reads of kept journal files by their indexes, as a bookie would do them, and of entry logs by the code that it has.

use crate::adds::Pattern;
use crate::disk::{CountingDisk, What};
use crate::index::{self, Found, RECORD_BYTES, Run};
use crate::keepers::kept_paths;
use bindery_io::{Disk, DiskFile, OpenMode};
use bindery_storage::{Coverage, LogView, Patience};
use bindery_types::codec::crc32c;
use bindery_types::{EntryId, LedgerId};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Entries that are read together, as [`bindery_storage::TOGETHER_ENTRIES_MAX`].
const TOGETHER: u32 = 64;
const TOGETHER_BYTES: usize = 256 << 10;
const INDEX_BLOCK: usize = 4096;
/// One call asks for all bodies within so many bytes.
const SPAN_MAX: u64 = 512 << 10;

/// Logs of one kind.
pub trait Source {
    /// Reads a ledger from its beginning up to entry `end`, verified. `asks`: has the kernel read ahead.
    fn catch_up(&mut self, ledger: LedgerId, end: i64, asks: bool, visit: &mut dyn FnMut(i64, &[u8]));
    fn read(&mut self, ledger: LedgerId, entry: i64) -> Vec<u8>;
}

/// Entry logs.
pub struct Sorted(pub Arc<LogView>);

impl Source for Sorted {
    fn catch_up(&mut self, ledger: LedgerId, end: i64, _: bool, visit: &mut dyn FnMut(i64, &[u8])) {
        let (mut next, mut buffer) = (0, Vec::new());
        let last = EntryId::new(end - 1).unwrap();
        while next < end {
            let first = EntryId::new(next).unwrap();
            let Coverage::Sole(mut sole, until) = self.0.coverage(ledger, first, last, 1) else {
                panic!("one run has {ledger}:{next}");
            };
            sole.cut_to(until.min(last));
            let found = sole.locate(TOGETHER_BYTES, Patience::Wait).unwrap().expect("the run has it");
            let count = found.lengths().len();
            let bodies = found.read(0, count, &mut buffer, Patience::Wait).unwrap();
            let before = next;
            for body in bodies {
                visit(next, body);
                next += 1;
            }
            assert_eq!(next - before, count as i64, "{ledger}:{next} is as it was written");
        }
    }

    fn read(&mut self, ledger: LedgerId, entry: i64) -> Vec<u8> {
        self.0.read(ledger, EntryId::new(entry).unwrap()).unwrap().unwrap()
    }
}

struct KeptFile {
    file_id: u64,
    bodies: Arc<dyn DiskFile>,
    index: Arc<dyn DiskFile>,
}

/// Kept journal files.
pub struct Unsorted {
    files: Vec<KeptFile>,
    /// By first entry.
    runs: HashMap<LedgerId, Vec<(usize, Run)>>,
    /// Blocks of indexes, as the block cache has those of entry logs.
    blocks: HashMap<(usize, u64), Box<[u8]>>,
}

impl Unsorted {
    /// Opens the indexes, as a start would, and verifies them.
    pub fn open(disk: &CountingDisk, dir: &Path, kept: &[u64]) -> Unsorted {
        let mut unsorted = Unsorted { files: Vec::new(), runs: HashMap::new(), blocks: HashMap::new() };
        for (number, file_id) in kept.iter().enumerate() {
            let (path, index_path) = kept_paths(dir, *file_id);
            let bodies = Disk::open(disk, &path, OpenMode::ReadScattered).unwrap();
            let index = Disk::open(disk, &index_path, OpenMode::ReadScattered).unwrap();
            for run in index::open(&*index, *file_id).0 {
                unsorted.runs.entry(run.ledger).or_default().push((number, run));
            }
            unsorted.files.push(KeptFile { file_id: *file_id, bodies, index });
        }
        unsorted
    }

    /// Some lines of a run.
    fn records(&mut self, number: usize, run: &Run, place: u32, count: u32) -> Vec<Found> {
        let file = &self.files[number];
        let mut bytes = vec![0; count as usize * RECORD_BYTES];
        let mut offset = run.records_offset + u64::from(place) * RECORD_BYTES as u64;
        let mut rest = &mut bytes[..];
        while !rest.is_empty() {
            let (block, at) = (offset / INDEX_BLOCK as u64, offset as usize % INDEX_BLOCK);
            let (head, tail) = rest.split_at_mut(rest.len().min(INDEX_BLOCK - at));
            let block = self.blocks.entry((number, block)).or_insert_with(|| {
                let mut bytes = vec![0; INDEX_BLOCK].into_boxed_slice();
                file.index.read_exact_at(&mut bytes, block * INDEX_BLOCK as u64).unwrap();
                bytes
            });
            head.copy_from_slice(&block[at..at + head.len()]);
            offset += head.len() as u64;
            rest = tail;
        }
        let lines = (place..).zip(bytes.chunks_exact(RECORD_BYTES));
        lines.map(|(place, bytes)| index::decode_record(bytes, file.file_id, run, place)).collect()
    }

    fn body(&self, number: usize, ledger: LedgerId, found: &Found, body: &mut Vec<u8>) {
        body.resize(found.length as usize, 0);
        self.files[number].bodies.read_exact_at(body, found.offset).unwrap();
        assert_eq!(crc32c(&[body]), found.crc32c);
        assert_eq!(body[..8], ledger.get().to_be_bytes());
        assert_eq!(body[8..16], found.entry.to_be_bytes());
    }

    /// Has the kernel begin to read all of these.
    fn ask(&self, number: usize, found: &[Found]) {
        let bodies = &self.files[number].bodies;
        let (first, last) = (&found[0], &found[found.len() - 1]);
        let span = last.offset + u64::from(last.length) - first.offset;
        if span <= SPAN_MAX {
            return bodies.begin_reading(first.offset, span);
        }
        for found in found {
            bodies.begin_reading(found.offset, u64::from(found.length));
        }
    }
}

impl Source for Unsorted {
    fn catch_up(&mut self, ledger: LedgerId, end: i64, asks: bool, visit: &mut dyn FnMut(i64, &[u8])) {
        let mut body = Vec::new();
        for (number, run) in self.runs[&ledger].clone() {
            let count = run.count.min((end - run.first).max(0) as u32);
            for place in (0..count).step_by(TOGETHER as usize) {
                let found = self.records(number, &run, place, TOGETHER.min(count - place));
                if asks {
                    self.ask(number, &found);
                }
                for found in found {
                    self.body(number, ledger, &found, &mut body);
                    visit(found.entry, &body);
                }
            }
        }
    }

    fn read(&mut self, ledger: LedgerId, entry: i64) -> Vec<u8> {
        let runs = &self.runs[&ledger];
        let (number, run) = runs[runs.partition_point(|(_, run)| run.last < entry)];
        assert_eq!((entry - run.first) as u64 % run.stride, 0);
        let place = (entry - run.first) as u64 / run.stride;
        let found = self.records(number, &run, place as u32, 1)[0];
        let mut body = Vec::new();
        self.body(number, ledger, &found, &mut body);
        body
    }
}

/// Forgets what the kernel has of all files of a directory with this ending. Returns how many of some bytes it has still.
pub fn forget(disk: &CountingDisk, dir: &Path, ending: &str) -> (usize, usize) {
    let (mut kept, mut asked) = (0, 0);
    for entry in Disk::list(disk, dir).unwrap().iter().filter(|entry| entry.name.ends_with(ending)) {
        let file = Disk::open(disk, &dir.join(&entry.name), OpenMode::ReadScattered).unwrap();
        file.drop_cached();
        // A look makes the kernel read: few.
        for place in 1..4 {
            let offset = entry.len / 4 * place;
            kept += usize::from(file.read_cached_at(&mut [0; 8], offset).unwrap().is_some());
            asked += 1;
        }
        file.drop_cached();
    }
    (kept, asked)
}

/// What reads took, for each entry.
#[derive(Debug, Clone, Copy, Default)]
pub struct Took {
    pub entries: u64,
    pub cpu_us: f64,
    pub mb_s: f64,
    pub calls: f64,
}

/// Reads ledgers to their end. Every byte is compared when `is_compared`, which takes time.
pub fn catch_up(
    disk: &CountingDisk,
    source: &mut dyn Source,
    ledgers: &[(LedgerId, i64)],
    asks: bool,
    pattern: Option<&Pattern>,
) -> Took {
    let (before, begun, cpu) = (disk.now(), Instant::now(), crate::thread_cpu_ns());
    let (mut entries, mut bytes) = (0u64, 0u64);
    for (ledger, end) in ledgers {
        let mut next = 0;
        source.catch_up(*ledger, *end, asks, &mut |entry, body| {
            assert_eq!(entry, next, "{ledger} has all of them, in order");
            next += 1;
            bytes += body.len() as u64;
            if let Some(pattern) = pattern {
                pattern.check(*ledger, entry, body);
            }
        });
        assert_eq!(next, *end, "{ledger} is read to its end");
        entries += next as u64;
    }
    let (cpu, seconds) = (crate::thread_cpu_ns() - cpu, begun.elapsed().as_secs_f64());
    let counted = disk.now() - before;
    Took {
        entries,
        cpu_us: cpu as f64 / 1e3 / entries as f64,
        mb_s: bytes as f64 / 1e6 / seconds,
        calls: (counted[What::Reads] + counted[What::Asked]) as f64 / entries as f64,
    }
}
