//! The choices for one run.

use crate::disk::{FaultPlan, SimDiskConfig};
use bindery_engine::{EngineConfig, SpaceConfig};
use bindery_io::SeededRandom;
use bindery_io::canary::Canaries;
use std::path::PathBuf;
use std::time::Duration;

/// The choices for one run, drawn from its seed.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Root of every random choice.
    pub seed: u64,
    /// Steps before the final restart.
    pub steps: u64,
    /// Planted bugs.
    pub canaries: Canaries,
    pub(super) ledgers: i64,
    pub(super) engine: EngineConfig,
    pub(super) disk: SimDiskConfig,
    pub(super) faults: FaultPlan,
    /// Chance, for each step, of a crash, and of damage to a durable place.
    pub(super) crash: f64,
    pub(super) damage: f64,
    pub(super) duplicates: f64,
    /// Chance that a crash takes the disks along.
    pub(super) wipe: f64,
    /// Chance that an answer's durable image is opened and checked.
    pub(super) image_check: f64,
    /// Chance, for each step, that somebody else fills the disk.
    pub(super) fill: f64,
    /// Chance, for each step, of a tierer's.
    pub(super) tier: f64,
    /// The chance, in each step, that a repair brings copies past the journal.
    pub(super) ingest: f64,
    /// The chance, in each step, that a repair brings damaged entries back.
    pub(super) heal: f64,
    /// Time that each reading of the clock takes.
    pub(super) tick: Duration,
}

impl Profile {
    /// Draws a run. Limits are small, so that rare states are reached.
    pub fn draw(seed: u64, canaries: Canaries) -> Profile {
        let random = SeededRandom::new(seed).child("profile");
        let pick = |from: &[u64]| from[random.below(from.len() as u64) as usize];
        let memory = random.child("memory");
        let of_memory = |from: &[u64]| from[memory.below(from.len() as u64) as usize];
        let shard_count = pick(&[1, 1, 2, 3]) as usize;
        let dirs = if shard_count > 1 && random.chance(0.3) { 2 } else { 1 };
        let ledger_memory = [u64::MAX, u64::MAX, 1 << 10, 2 << 10];
        let tier = random.child("tier");
        let is_tiered = tier.chance(0.6);
        let journals = 1 + random.child("journals").below(shard_count.min(JOURNALS_MAX) as u64) as usize;
        let chunk_bytes = pick(&[8 << 10, 16 << 10, 64 << 10]) as usize;
        let chunks = shard_count as u64 * pick(&[4, 6, 12]);
        let journal_file_bytes = pick(&[16 << 10, 64 << 10, 256 << 10]);
        let engine = EngineConfig {
            journal_dirs: journal_dirs(0..journals),
            former_journal_dirs: Vec::new(),
            ledger_dirs: (0..dirs).map(|i| PathBuf::from(format!("/data/ledgers{i}"))).collect(),
            // One disk has all of them.
            ledger_volumes: vec![0; dirs],
            shard_count,
            write_pool_bytes: chunks * chunk_bytes as u64,
            // Often too small for anything to stay in memory.
            index_pool_bytes: of_memory(&[0, 3 << 10, 16 << 10, 1 << 20]),
            cache_pool_bytes: of_memory(&[0, 9 << 10, 200 << 10, 4 << 20]),
            // Sometimes of a few ledgers.
            ledger_bytes_max: ledger_memory[random.child("ledger memory").below(4) as usize],
            // Small ones, so that something happens between the writes of a flush.
            log_write_bytes: [8 << 10, 16 << 10, 1 << 20][random.child("log writes").below(3) as usize],
            pool_memory: bindery_engine::PoolMemory::Touched,
            chunk_bytes,
            journal_file_bytes,
            journal_bytes_max: journal_file_bytes * random.child("cap").below(4).max(1).pow(2).max(4),
            journal_files_preallocated: 0,
            journal_sync: !random.chance(0.05),
            space_retry_interval: Duration::from_micros(100),
            journal_slow: Duration::from_secs(1),
            group_bytes_max: pick(&[8 << 10, 32 << 10, 128 << 10]) as usize,
            admission: bindery_engine::Admission::Bytes,
            entry_bytes_max: 4 << 10,
            flush_interval: Duration::from_secs(10),
            flush_spread: Duration::from_secs(1),
            instance_id: "sim".into(),
            bookie_id: "b1".into(),
            canaries,
            space: draw_space(&random.child("space")),
            tier_extents_bytes: if is_tiered {
                [1 << 10, 4 << 10, 64 << 10][tier.below(3) as usize]
            } else {
                0
            },
            limbo_up_to: None,
            checked_up_to: None,
            accepts_journal_damage: false,
        };
        let with_faults = random.chance(0.6);
        let mut disk = SimDiskConfig::draw(&random);
        let mut faults = if with_faults { FaultPlan::draw(&random, false) } else { FaultPlan::default() };
        // A journal that lies about its last group cannot be found out by one bookie alone, so what it holds is damaged
        // by hand, between starts.
        let media = random.child("media");
        if media.chance(0.1) {
            disk.damaged_files = vec![".elog".into()];
            faults = faults.with_drawn_damage(&media);
            if media.chance(0.3) {
                // redb verifies its pages when a table is opened, and panics at one that rots between that and its use:
                // pages that this bookie wrote wrongly are found at the next start.
                disk.damaged_files.push("state.redb".into());
                (faults.bit_rot, faults.stale_read) = (0.0, 0.0);
            }
        }
        Profile {
            seed,
            steps: 200 + random.below(800),
            canaries,
            ledgers: 1 + random.below(6) as i64,
            engine,
            disk,
            faults,
            crash: pick(&[0, 5, 20]) as f64 / 1000.0,
            damage: if random.chance(0.15) { 0.01 } else { 0.0 },
            duplicates: pick(&[0, 5, 30]) as f64 / 100.0,
            wipe: if random.chance(0.3) { 0.2 } else { 0.0 },
            image_check: 0.03,
            fill: if random.child("fill").chance(0.1) { 0.01 } else { 0.0 },
            tier: if is_tiered { [0.03, 0.1, 0.3][tier.below(3) as usize] } else { 0.0 },
            ingest: [0.0, 0.02, 0.1, 0.3][random.child("ingests").below(4) as usize],
            heal: [0.0, 0.05, 0.2][random.child("heals").below(3) as usize],
            tick: Duration::from_micros(20 * random.child("tick").below(2)),
        }
    }
}

/// Most journals of a run.
pub(super) const JOURNALS_MAX: usize = 3;

/// The directories of journals by their numbers.
pub(super) fn journal_dirs(numbers: std::ops::Range<usize>) -> Vec<PathBuf> {
    numbers.map(|number| PathBuf::from(format!("/data/journal{number}"))).collect()
}

/// Collections and compactions as often as everything else.
fn draw_space(random: &SeededRandom) -> SpaceConfig {
    let pick = |from: &[u64]| from[random.below(from.len() as u64) as usize];
    SpaceConfig {
        collection_interval: Duration::from_micros(pick(&[500, 2000, 10_000])),
        minor_threshold: pick(&[20, 50]) as f64 / 100.0,
        minor_interval: Duration::from_micros(pick(&[0, 1000])),
        major_threshold: pick(&[80, 95, 99]) as f64 / 100.0,
        major_interval: Duration::from_micros(pick(&[0, 1000, 5000])),
        bytes_per_second: pick(&[1 << 20, 100 << 20]),
        step_bytes: pick(&[1, 1 << 10, 64 << 10]),
        log_bytes_max: pick(&[2 << 10, 64 << 10]),
        merge_fan_in: pick(&[0, 2, 2, 3]) as usize,
        // Few logs come together here: these shall take time from flushes, too.
        logs_in_memory_as_one: 8,
        merge_ledger_bytes: pick(&[0, 1 << 10, 64 << 10]),
        merge_log_bytes_max: pick(&[64 << 10, 1 << 20]),
        replaced_grace: Duration::from_micros(pick(&[0, 500, 10_000])),
        scrub_period: Duration::from_micros(pick(&[0, 2000, 50_000])),
        scrub_bytes_per_second: 0,
    }
}
