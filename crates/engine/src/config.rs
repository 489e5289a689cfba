//! How an engine is laid out and bounded.

use crate::pacing::Room;
use bindery_io::BLOCK_SIZE_BYTES;
use bindery_io::canary::Canaries;
use bindery_journal::record::HEADER_SIZE_BYTES;
use bindery_storage::entry_log::LOG_WRITE_BYTES;
use bindery_types::LedgerId;
use std::path::PathBuf;
use std::time::Duration;

/// When the write pool takes its memory from the system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PoolMemory {
    /// All of it at the start, every page touched, and for good: no add meets a fresh page.
    #[default]
    Touched,
    /// Page by page at first use; given back when nothing was added for one to two flush intervals. A first fill of
    /// the pool pays for the fresh pages: some 0.1 ms for each MiB.
    Lazy,
}

/// What bounds the adds that form a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Admission {
    /// Their bytes: [`EngineConfig::group_bytes_max`].
    #[default]
    Bytes,
    /// This many records in each shard, whatever their size, as in a bookie that counts requests. For the benchmark
    /// `admission` only, which shows the cost.
    Writes(usize),
}

/// How space is given back. Keys of `bk_server.conf` in brackets.
#[derive(Debug, Clone, PartialEq)]
pub struct SpaceConfig {
    /// Time between two looks at what the logs are worth (`gcWaitTime`). Logs without live entries go then.
    pub collection_interval: Duration,
    /// Logs with a smaller live share are rewritten by a minor compaction (`minorCompactionThreshold`).
    pub minor_threshold: f64,
    /// Time between two minor compactions; zero for none (`minorCompactionInterval`).
    pub minor_interval: Duration,
    /// Logs with a smaller live share are rewritten by a major compaction (`majorCompactionThreshold`).
    pub major_threshold: f64,
    /// Time between two major compactions; zero for none (`majorCompactionInterval`).
    pub major_interval: Duration,
    /// Bytes that compaction, merging and scrub together copy or read in a second, at most (`compactionRateByBytes`).
    pub bytes_per_second: u64,
    /// Bytes that it copies in one step, between which flushes have their turn.
    pub step_bytes: u64,
    /// Live bytes that go into one output; several logs are merged up to it (`logSizeLimit`).
    pub log_bytes_max: u64,
    /// Logs of about one size that are merged into one (`mergeFanIn`); below 2: none.
    pub merge_fan_in: usize,
    /// Where merges are behind, so many logs whose extents are in memory count as one of which the index is read. Fewer make merges
    /// take time from flushes sooner, more let more descriptors be open: about sixteen times as many in each directory, under a load that
    /// never ends.
    pub logs_in_memory_as_one: usize,
    /// Where ledgers have less than this in a log, it grows beyond `log_bytes_max` (`mergeLedgerBytes`) ...
    pub merge_ledger_bytes: u64,
    /// ... up to this (`mergeLogSizeLimit`).
    pub merge_log_bytes_max: u64,
    /// How long the files of replaced logs stay (`replacedLogGraceTime`).
    pub replaced_grace: Duration,
    /// Time in which the scrub reads all logs once; zero for no scrub (`scrubPeriod`).
    pub scrub_period: Duration,
    /// Bytes that it reads in a second; 0: as the period asks (`scrubRateByBytes`).
    pub scrub_bytes_per_second: u64,
}

impl Default for SpaceConfig {
    fn default() -> SpaceConfig {
        SpaceConfig {
            collection_interval: Duration::from_secs(900),
            minor_threshold: 0.2,
            minor_interval: Duration::from_secs(3600),
            major_threshold: 0.8,
            major_interval: Duration::from_secs(86_400),
            bytes_per_second: 32 << 20,
            step_bytes: 256 << 10,
            log_bytes_max: 1 << 30,
            merge_fan_in: 16,
            logs_in_memory_as_one: 256,
            merge_ledger_bytes: 64 << 10,
            merge_log_bytes_max: 4 << 30,
            replaced_grace: Duration::from_secs(5),
            scrub_period: Duration::from_secs(7 * 86_400),
            scrub_bytes_per_second: 0,
        }
    }
}

/// Fewest files of a journal: one to write, one that a flush frees meanwhile, and as many while that flush waits.
pub const JOURNAL_FILES_MIN: u64 = 4;

/// Most journals of an engine: each has a thread.
const JOURNALS_MAX: usize = 64;

/// Settings of an engine. See [`EngineConfig::default`] for the values.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Directories of the journals (`journalDirectories`), at least one, best on disks of their own. The place in the
    /// list is the number of the journal, for good.
    pub journal_dirs: Vec<PathBuf>,
    /// Where the journals were that this bookie had behind these, in their order: they may be gone when everything in
    /// them is flushed.
    pub former_journal_dirs: Vec<PathBuf>,
    /// Ledger directories (`ledgerDirectories`), at least one.
    pub ledger_dirs: Vec<PathBuf>,
    /// Of each ledger directory the number of its file system, in their order. A directory behind the end has one to itself.
    pub ledger_volumes: Vec<usize>,
    /// Number of shards, at least one for each ledger directory and each journal. Default: the cores, at most 8.
    pub shard_count: usize,
    /// Bytes of journal chunks, which are the write cache as well (with `dbStorage_writeCacheMaxSizeMb` in mind).
    pub write_pool_bytes: u64,
    /// Bytes of extents and ledger states in memory. Extents beyond it stay on disk.
    pub index_pool_bytes: u64,
    /// Bytes of ledger states in memory. From there on only ledgers that are known are written to; fences and recoveries have an
    /// eighth more (`ledgerMemoryMB`).
    pub ledger_bytes_max: u64,
    /// Bytes of index blocks and of what is read ahead.
    pub cache_pool_bytes: u64,
    /// Bytes of one write to an entry log: at least two blocks. Between two of them a flush is paced, and merges that are behind go on.
    pub log_write_bytes: usize,
    /// When the bytes of the write pool are taken from the system.
    pub pool_memory: PoolMemory,
    /// Bytes of one chunk; 0 chooses one between 1/64 of the pool and 8 MiB that holds the largest entry.
    pub chunk_bytes: usize,
    /// Length of a journal file.
    pub journal_file_bytes: u64,
    /// Bytes that the files of each journal may take together (`journalDiskSizeMaxMB`); 0 chooses twice the write pool,
    /// and at least [`JOURNAL_FILES_MIN`] files. At half of it everything is flushed, at all of it adds wait for that.
    pub journal_bytes_max: u64,
    /// Files of each journal that are zero-filled in the background at the start.
    pub journal_files_preallocated: usize,
    /// False: adds are acknowledged after the write, before any sync (`journalSyncData=false`).
    pub journal_sync: bool,
    /// Time between two tries of a flush that found no space.
    pub space_retry_interval: Duration,
    /// A group whose write and sync take longer counts as slow (`journalSyncP99LimitMSec`).
    pub journal_slow: Duration,
    /// Most bytes that form one group, over all shards of a journal; beyond it adds wait for the group being written.
    pub group_bytes_max: usize,
    /// What bounds a group: its bytes, but for a benchmark.
    pub admission: Admission,
    /// Largest entry that is accepted, in bytes.
    pub entry_bytes_max: usize,
    /// Longest time between two flushes while there is something to flush (`flushInterval`).
    pub flush_interval: Duration,
    /// Longest time over which a flush is spread, so that adds find the disk free; zero for flushes that never pause.
    pub flush_spread: Duration,
    /// How space is given back.
    pub space: SpaceConfig,
    /// Bytes of extents in object storage that may wait in memory for the state table; 0 for a bookie without a tier, which
    /// takes none. Ledgers that are in object storage already stay so.
    pub tier_extents_bytes: u64,
    /// The cluster this data belongs to (INSTANCEID; empty when the cluster has none).
    pub instance_id: String,
    /// The bookie this data belongs to.
    pub bookie_id: String,
    /// Every ledger up to it may have lost entries here and starts in limbo, until [`crate::Engine::end_cover`] (IB27).
    pub limbo_up_to: Option<LedgerId>,
    /// Normal adds of ledgers up to it wait for a check of metadata: the highest ledger when the directories were new
    /// (IB28).
    pub checked_up_to: Option<LedgerId>,
    /// Start although the journal is damaged where acknowledged records may be: readable records are taken over. Set
    /// `limbo_up_to` with it.
    pub accepts_journal_damage: bool,
    /// Planted bugs (simulator only).
    pub canaries: Canaries,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            journal_dirs: Vec::new(),
            former_journal_dirs: Vec::new(),
            ledger_dirs: Vec::new(),
            ledger_volumes: Vec::new(),
            shard_count: std::thread::available_parallelism().map_or(1, |n| n.get().min(8)),
            write_pool_bytes: 256 << 20,
            index_pool_bytes: 64 << 20,
            ledger_bytes_max: 1 << 30,
            cache_pool_bytes: 32 << 20,
            log_write_bytes: LOG_WRITE_BYTES,
            pool_memory: PoolMemory::Touched,
            chunk_bytes: 0,
            journal_file_bytes: 256 << 20,
            journal_bytes_max: 0,
            journal_files_preallocated: 2,
            journal_sync: true,
            space_retry_interval: Duration::from_secs(1),
            journal_slow: Duration::from_secs(1),
            group_bytes_max: 16 << 20,
            admission: Admission::Bytes,
            // BookKeeper's frame limit, less what an answer adds around an entry (protocol reference, section 1.1).
            entry_bytes_max: 5_242_880 - 500,
            flush_interval: Duration::from_secs(10),
            flush_spread: Duration::from_secs(1),
            space: SpaceConfig::default(),
            tier_extents_bytes: 0,
            instance_id: String::new(),
            bookie_id: "bookie".to_owned(),
            limbo_up_to: None,
            checked_up_to: None,
            accepts_journal_damage: false,
            canaries: Canaries::none(),
        }
    }
}

/// What is wrong with a configuration, all of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the engine's configuration is not usable: {}", .0.join("; "))]
pub struct ConfigFaults(pub Vec<String>);

impl EngineConfig {
    /// Bytes of one chunk.
    pub(crate) fn chunk_size(&self) -> usize {
        if self.chunk_bytes > 0 {
            return self.chunk_bytes;
        }
        let record_max = self.entry_bytes_max + HEADER_SIZE_BYTES;
        ((self.write_pool_bytes / 64) as usize)
            .clamp(record_max, record_max.max(8 << 20))
            .next_multiple_of(4096)
    }

    /// Ledger directories on the same volume share its free space.
    pub(crate) fn are_on_one_volume(&self, one: usize, other: usize) -> bool {
        let volume = |index: usize| self.ledger_volumes.get(index);
        one == other || (volume(one).is_some() && volume(one) == volume(other))
    }

    /// Number of chunks.
    pub(crate) fn chunk_count(&self) -> usize {
        (self.write_pool_bytes / self.chunk_size() as u64) as usize
    }

    /// Chunks kept for recovery adds and, half of them, for fences: for each shard one and one.
    pub(crate) fn chunk_reserve(&self) -> usize {
        2 * self.shard_count
    }

    /// Most parts of one shard in a group.
    pub(crate) fn parts_max(&self) -> usize {
        bindery_journal::group::PARTS_MAX / self.shards_of_a_journal()
    }

    /// Bytes that the files of each journal may take together, in whole files. Twice the write pool, because a flush
    /// under way and the set that fills meanwhile are at most the pool, and groups are padded.
    pub fn journal_cap_bytes(&self) -> u64 {
        let files = match self.journal_bytes_max {
            0 => (2 * self.write_pool_bytes).div_ceil(self.journal_file_bytes.max(1)).max(JOURNAL_FILES_MIN),
            bytes => bytes / self.journal_file_bytes.max(1),
        };
        files * self.journal_file_bytes
    }

    /// Most bytes of one shard in a group. A group is half a file at most (requirement J5), but for the largest record.
    pub(crate) fn formed_bytes_max(&self) -> usize {
        let half = usize::try_from(self.journal_file_bytes / 2).unwrap_or(usize::MAX);
        self.group_bytes_max.min(half) / self.shards_of_a_journal()
    }

    /// Shards of the journal that has most.
    pub(crate) fn shards_of_a_journal(&self) -> usize {
        self.shard_count.div_ceil(self.journal_dirs.len().max(1)).max(1)
    }

    /// The room of the pool as pacing sees it. A frozen set and the active one each hold at most half of the chunks
    /// that ordinary adds may take, less one in each shard that was not full when it was frozen.
    pub(crate) fn room(&self) -> Room {
        let chunks = self.chunk_count().saturating_sub(self.chunk_reserve() + 2 * self.shard_count);
        let pool = self.write_pool_bytes;
        Room {
            unwritten_max: ((chunks / 2 * self.chunk_size()) as u64).max(pool / 4),
            freeze_at: pool / 8,
            group_bytes_max: self.group_bytes_max as u64,
        }
    }

    /// Smallest write pool for these shards and this largest entry: for each shard a chunk being filled, one frozen,
    /// and two reserved.
    pub fn write_pool_bytes_min(&self) -> u64 {
        (self.chunk_size() * self.shard_count * 4) as u64
    }

    /// Reports all faults at once.
    pub fn validate(&self) -> Result<(), ConfigFaults> {
        let mut faults = Vec::new();
        if self.ledger_dirs.is_empty() {
            faults.push("no ledger directory".to_owned());
        }
        if self.journal_dirs.is_empty() {
            faults.push("no journal directory".to_owned());
        }
        if self.journal_dirs.len() > JOURNALS_MAX {
            faults.push(format!("{} journals are more than {JOURNALS_MAX}", self.journal_dirs.len()));
        }
        if self.shard_count < self.ledger_dirs.len().max(self.journal_dirs.len()).max(1) {
            faults.push(format!(
                "{} shards cannot serve {} ledger directories and {} journals",
                self.shard_count,
                self.ledger_dirs.len(),
                self.journal_dirs.len()
            ));
        }
        if self.write_pool_bytes < self.write_pool_bytes_min() {
            faults.push(format!(
                "a write pool of {} bytes is too small for entries of {} bytes: give it at least {}",
                self.write_pool_bytes,
                self.entry_bytes_max,
                self.write_pool_bytes_min()
            ));
        }
        if self.chunk_size() < self.entry_bytes_max + HEADER_SIZE_BYTES {
            faults.push(format!("a chunk of {} bytes does not hold the largest entry", self.chunk_size()));
        }
        if !self.journal_file_bytes.is_multiple_of(4096) || self.journal_file_bytes < 8192 {
            faults.push("the length of a journal file is not a multiple of 4096, at least 8192".to_owned());
        }
        if self.journal_cap_bytes() < JOURNAL_FILES_MIN * self.journal_file_bytes {
            faults.push(format!(
                "{} bytes for the files of a journal are fewer than {JOURNAL_FILES_MIN} files of {} bytes",
                self.journal_bytes_max, self.journal_file_bytes
            ));
        }
        let space = &self.space;
        if space.bytes_per_second == 0 || space.step_bytes == 0 {
            faults.push("compaction may copy no bytes: give it a rate above 0".to_owned());
        }
        let write = self.log_write_bytes;
        if write <= BLOCK_SIZE_BYTES || !write.is_multiple_of(BLOCK_SIZE_BYTES) {
            faults.push(format!(
                "entry logs are written in whole blocks, at least two at a time, not {write} bytes"
            ));
        }
        for (name, threshold) in [("minor", space.minor_threshold), ("major", space.major_threshold)] {
            if !(0.0..1.0).contains(&threshold) {
                faults.push(format!("the threshold {threshold} of {name} compaction is not between 0 and 1"));
            }
        }
        if faults.is_empty() { Ok(()) } else { Err(ConfigFaults(faults)) }
    }
}
