//! Adds without an engine: entries go into chunks as journal records, groups of them into the real journal, and the content
//! of each full journal file to a keeper on a thread of its own, which makes it a log.

use crate::disk::{CountingDisk, Fresh, Spares};
use crate::support::Histogram;
use bindery_io::canary::Canaries;
use bindery_io::chunk::{ChunkPool, ChunkSlice, Lane, OpenChunk};
use bindery_io::{BLOCK_SIZE_BYTES, Disk, SystemRandom};
use bindery_journal::group::layout;
use bindery_journal::record::{HEADER_SIZE_BYTES, Kind, encode, fold_header};
use bindery_journal::{Group, Journal, JournalConfig, Part, PreparedFile};
use bindery_storage::{Generation, JournalMark, LedgerRecord, Mark};
use bindery_types::{EntryId, LedgerId, MasterKey};
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

pub const CHUNK_BYTES: usize = 8 << 20;
pub const SHARDS: usize = 2;
const BLOCK: u64 = BLOCK_SIZE_BYTES as u64;
/// One is written, one waits for the keeper, one is with it, one it has just given back; and two to spare.
pub const JOURNAL_FILES: usize = 6;

/// What is added.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub entry_bytes: usize,
    /// A multiple of the shards.
    pub ledgers: u64,
    /// Adds of one group.
    pub group: u64,
    pub file_bytes: u64,
    /// Journal files that a round fills.
    pub files: usize,
}

/// The bytes that entries are made of.
pub struct Pattern(Vec<u8>);

impl Pattern {
    const PERIOD: usize = 4093;

    pub fn new(longest: usize) -> Pattern {
        let mut state = 1u32;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        Pattern((0..longest + Pattern::PERIOD).map(next).collect())
    }

    /// All of an entry but ledger, entry and LAC.
    pub fn payload(&self, ledger: LedgerId, entry: i64, entry_bytes: usize) -> &[u8] {
        let at = (ledger.get() * 31 + entry * 7) as usize % Pattern::PERIOD;
        &self.0[at..at + entry_bytes - 24]
    }

    /// Checks every byte of a body.
    pub fn check(&self, ledger: LedgerId, entry: i64, body: &[u8]) {
        assert_eq!(body[..24], head(ledger, entry), "{ledger}:{entry}");
        assert_eq!(body[24..], *self.payload(ledger, entry, body.len()), "{ledger}:{entry}");
    }
}

fn head(ledger: LedgerId, entry: i64) -> [u8; 24] {
    let mut head = [0; 24];
    for (at, v) in [ledger.get(), entry, entry - 1].into_iter().enumerate() {
        head[at * 8..at * 8 + 8].copy_from_slice(&v.to_be_bytes());
    }
    head
}

impl Case {
    /// The ledger and entry of the `n`th add: ledgers take turns.
    pub fn id(&self, n: u64) -> (LedgerId, i64) {
        (LedgerId::new((n % self.ledgers) as i64 + 1).unwrap(), (n / self.ledgers) as i64)
    }

    /// Entries of a ledger after so many adds.
    pub fn entries_of(&self, ledger: LedgerId, adds: u64) -> i64 {
        let place = ledger.get() as u64 - 1;
        ((adds + self.ledgers - 1 - place) / self.ledgers) as i64
    }
}

/// An entry in memory.
#[derive(Debug, Clone, Copy)]
pub struct Rec {
    pub entry: i64,
    pub chunk: u32,
    /// Of the body.
    pub offset: u32,
    pub length: u32,
    pub crc32c: u32,
}

/// Everything that went to one journal file.
#[derive(Default)]
pub struct Set {
    pub chunks: Vec<Option<ChunkSlice>>,
    pub records: HashMap<LedgerId, Vec<Rec>>,
    /// By chunk: where its parts begin there, and in the journal file. In the order of their writes.
    pub places: Vec<Vec<(u32, u64)>>,
    pub slot: u32,
    pub file_id: u64,
    pub group: u64,
    pub entries: u64,
}

impl Set {
    pub fn body(&self, rec: &Rec) -> &[u8] {
        let start = rec.offset as usize;
        &self.chunks[rec.chunk as usize].as_ref().unwrap()[start..start + rec.length as usize]
    }

    /// Where the body stands in the journal file.
    pub fn offset_of(&self, rec: &Rec) -> u64 {
        let places = &self.places[rec.chunk as usize];
        let (start, at) = places[places.partition_point(|(start, _)| *start <= rec.offset) - 1];
        at + u64::from(rec.offset - start)
    }

    pub fn generation(&self) -> Generation {
        Generation(self.file_id)
    }

    pub fn mark(&self) -> JournalMark {
        JournalMark { journal: 0, mark: Mark { file_id: self.file_id, group: self.group } }
    }

    /// By ledger.
    pub fn sorted(&self) -> Vec<(LedgerId, &Vec<Rec>)> {
        let mut ledgers: Vec<_> = self.records.iter().map(|(ledger, recs)| (*ledger, recs)).collect();
        ledgers.sort_unstable_by_key(|(ledger, _)| *ledger);
        ledgers
    }

    /// What a flush commits of each ledger that changed.
    pub fn states(&self) -> Vec<LedgerRecord> {
        let state = |(ledger, recs): (&LedgerId, &Vec<Rec>)| {
            let last = recs.last().unwrap().entry;
            LedgerRecord {
                master_key: Some(MasterKey::new([1; 20])),
                last_add_confirmed: EntryId::new(last - 1),
                last_entry: EntryId::new(last),
                ..LedgerRecord::new(*ledger)
            }
        };
        self.records.iter().map(state).collect()
    }
}

/// Makes logs of sets, one after the other. When it returns, the journal file may be used again.
pub trait Keeper: Send {
    fn keep(&mut self, set: Set);
}

/// A journal with its files, and what is in memory of the one in use.
pub struct Writer<'a> {
    case: Case,
    pattern: &'a Pattern,
    pool: &'a ChunkPool,
    journal: Journal,
    /// Slots of the files, in the order in which the journal takes them.
    slots: VecDeque<u32>,
    shards: [Shard; SHARDS],
    active: Set,
    position: u64,
    pub adds: u64,
    pub write_ns: Histogram,
}

#[derive(Default)]
struct Shard {
    open: Option<OpenChunk>,
    chunk: u32,
}

pub fn journal_config(dir: &Path, case: &Case) -> JournalConfig {
    JournalConfig {
        dir: dir.to_owned(),
        file_bytes: case.file_bytes,
        owner: "write once".into(),
        journal: 0,
        is_tiered: false,
        bytes_max: JOURNAL_FILES as u64 * case.file_bytes,
        sync: true,
        canaries: Canaries::none(),
    }
}

pub fn slot_path(dir: &Path, slot: u32) -> PathBuf {
    dir.join(format!("journal-{slot:04}.bjl"))
}

impl<'a> Writer<'a> {
    /// A journal whose groups and files have higher numbers than `after`.
    pub fn new(
        case: Case,
        pattern: &'a Pattern,
        pool: &'a ChunkPool,
        disk: &Arc<CountingDisk>,
        dir: &Path,
        (spares, fresh): (&mut Spares, Fresh),
        after: Mark,
    ) -> Writer<'a> {
        let config = journal_config(dir, &case);
        let disk: Arc<dyn Disk> = disk.clone();
        let mut journal = Journal::open(disk.clone(), config.clone(), Arc::new(SystemRandom)).unwrap();
        journal.replay(0, |_, _| Ok::<(), Infallible>(())).unwrap();
        journal.raise_file_id(after.file_id);
        journal.raise_group(after.group);
        let mut slots = VecDeque::new();
        for _ in 0..JOURNAL_FILES {
            let slot = journal.reserve_slot();
            disk.rename(&spares.take(fresh), &slot_path(dir, slot)).unwrap();
            journal.add_prepared(PreparedFile::create(&*disk, &config, slot, || true).unwrap().unwrap());
            slots.push_back(slot);
        }
        let (shards, active) = (Default::default(), Set::default());
        let (position, adds, write_ns) = (BLOCK, 0, Histogram::new());
        let mut writer =
            Writer { case, pattern, pool, journal, slots, shards, active, position, adds, write_ns };
        writer.begin_set();
        writer
    }

    pub fn last(&self) -> Mark {
        Mark { file_id: self.journal.last_file_id(), group: self.journal.last_group() }
    }

    /// The open chunks go on in the new set.
    fn begin_set(&mut self) {
        self.active = Set::default();
        for (number, shard) in self.shards.iter_mut().enumerate() {
            shard.chunk = number as u32;
            self.active.chunks.push(None);
            self.active.places.push(Vec::new());
        }
    }

    /// Takes what the full journal file holds.
    fn freeze(&mut self) -> Set {
        for shard in &self.shards {
            if let Some(open) = &shard.open {
                self.active.chunks[shard.chunk as usize] = Some(open.slice(0..open.len()));
            }
        }
        let set = std::mem::take(&mut self.active);
        self.begin_set();
        set
    }

    fn record_bytes(&self) -> usize {
        HEADER_SIZE_BYTES + self.case.entry_bytes
    }

    fn entries_of_shard(&self, shard: usize) -> u64 {
        let first = (self.adds + SHARDS as u64 - 1 - shard as u64) / SHARDS as u64;
        (self.adds + self.case.group + SHARDS as u64 - 1 - shard as u64) / SHARDS as u64 - first
    }

    /// Length of the next group, by the journal's own layout.
    fn next_group_bytes(&self) -> u64 {
        let mut parts = Vec::new();
        for (number, shard) in self.shards.iter().enumerate() {
            let count = self.entries_of_shard(number) as usize;
            let room =
                shard.open.as_ref().map_or(0, |open| open.remaining() / self.record_bytes()).min(count);
            if room > 0 {
                parts.push((shard.open.as_ref().unwrap().len(), room * self.record_bytes()));
            }
            if count > room {
                parts.push((0, (count - room) * self.record_bytes()));
            }
        }
        layout(parts.into_iter()).total_bytes
    }

    /// Places the entries of one shard and gives the parts that hold them.
    fn fill(&mut self, number: usize, parts: &mut Vec<(Part, u32)>) {
        let (record_bytes, size) = (self.record_bytes(), self.case.entry_bytes);
        let mut n = self.adds.next_multiple_of(SHARDS as u64) + number as u64;
        if n >= self.adds + SHARDS as u64 {
            n -= SHARDS as u64;
        }
        let end = self.adds + self.case.group;
        let shard = &mut self.shards[number];
        while n < end {
            if shard.open.as_ref().is_none_or(|open| open.remaining() < record_bytes) {
                if let Some(full) = shard.open.take() {
                    self.active.chunks[shard.chunk as usize] = Some(full.slice(0..full.len()));
                    shard.chunk = self.active.chunks.len() as u32;
                    self.active.chunks.push(None);
                    self.active.places.push(Vec::new());
                }
                shard.open = Some(self.pool.take(Lane::Normal).unwrap());
            }
            let open = shard.open.as_mut().unwrap();
            let (begin, mut record_count, mut headers_crc) = (open.len(), 0, 0);
            while n < end && open.remaining() >= record_bytes {
                let (ledger, entry) = self.case.id(n);
                let (head, payload) = (head(ledger, entry), self.pattern.payload(ledger, entry, size));
                let (mut header, mut crc32c) = ([0; HEADER_SIZE_BYTES], 0);
                let at = open.append(record_bytes, |target| {
                    (header, crc32c) = encode(target, Kind::Entry, &[&head, payload]);
                });
                headers_crc = fold_header(headers_crc, &header);
                record_count += 1;
                let offset = (at + HEADER_SIZE_BYTES) as u32;
                let rec = Rec { entry, chunk: shard.chunk, offset, length: size as u32, crc32c };
                self.active.records.entry(ledger).or_default().push(rec);
                self.active.entries += 1;
                n += SHARDS as u64;
            }
            let data = open.slice(begin..open.len());
            parts.push((Part { data, shard: number as u32, record_count, headers_crc }, shard.chunk));
        }
    }

    /// Adds one group. Gives the set of the file that has no room for it, if that is so.
    fn add_group(&mut self) -> Option<Set> {
        let bytes = self.next_group_bytes();
        let is_first = self.active.group == 0;
        let full = (!self.journal.fits(bytes) && !is_first).then(|| self.freeze());
        let mut filled = Vec::new();
        for shard in 0..SHARDS {
            self.fill(shard, &mut filled);
        }
        let (parts, chunks): (Vec<Part>, Vec<u32>) = filled.into_iter().unzip();
        let place = layout(parts.iter().map(|part| (part.data.offset_in_chunk(), part.data.len())));
        assert_eq!(place.total_bytes, bytes);
        let file_id = self.journal.last_file_id();
        let begun = Instant::now();
        let starts: Vec<u32> = parts.iter().map(|part| part.data.offset_in_chunk() as u32).collect();
        self.active.group = self.journal.write(&Group { parts, force_sync: false }).unwrap();
        self.write_ns.record(begun.elapsed().as_nanos() as u64, 1);
        if self.journal.last_file_id() != file_id {
            self.position = BLOCK;
            self.active.slot = self.slots.pop_front().unwrap();
            self.active.file_id = self.journal.last_file_id();
        }
        for ((chunk, start), offset) in chunks.into_iter().zip(starts).zip(place.part_offsets) {
            self.active.places[chunk as usize].push((start, self.position + offset));
        }
        self.position += bytes;
        self.adds += self.case.group;
        full
    }

    /// Adds until one more file is full, which stays with the journal, and gives what it holds.
    pub fn fill_one_more(&mut self) -> (Set, u64) {
        loop {
            let adds = self.adds;
            if let Some(set) = self.add_group() {
                return (set, adds);
            }
        }
    }

    /// Fills the files of a round, while `keeper` makes logs of them. Returns the number of adds that are in logs, and the
    /// processor time of both threads.
    pub fn run(&mut self, keeper: &mut dyn Keeper) -> Ran {
        let begun = Instant::now();
        let cpu = crate::thread_cpu_ns();
        let (to_keep, sets) = sync_channel::<Set>(1);
        let (to_release, kept) = sync_channel::<(u32, u64)>(JOURNAL_FILES);
        let (adds, writer_ns, keeper_ns) = std::thread::scope(|scope| {
            let keeping = scope.spawn(move || {
                let cpu = crate::thread_cpu_ns();
                for set in sets {
                    let done = (set.slot, set.group);
                    keeper.keep(set);
                    to_release.send(done).unwrap();
                }
                crate::thread_cpu_ns() - cpu
            });
            let (mut files, mut adds) = (0, 0);
            while files < self.case.files {
                for (slot, group) in kept.try_iter() {
                    self.journal.release_up_to(group);
                    self.slots.push_back(slot);
                }
                let before = self.adds;
                if let Some(set) = self.add_group() {
                    (files, adds) = (files + 1, before);
                    to_keep.send(set).unwrap();
                }
            }
            let writer_ns = crate::thread_cpu_ns() - cpu;
            drop(to_keep);
            (adds, writer_ns, keeping.join().unwrap())
        });
        for (slot, group) in kept.try_iter() {
            self.journal.release_up_to(group);
            self.slots.push_back(slot);
        }
        Ran { adds, seconds: begun.elapsed().as_secs_f64(), writer_ns, keeper_ns }
    }
}

/// What a round took.
#[derive(Debug, Clone, Copy)]
pub struct Ran {
    pub adds: u64,
    pub seconds: f64,
    pub writer_ns: u64,
    pub keeper_ns: u64,
}
