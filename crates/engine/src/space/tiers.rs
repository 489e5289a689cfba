//! Which logs are merged next: small ones, of about the same size.
//!
//! # Rule
//! A log's **tier** is how often [`SMALLEST_BYTES`] must be multiplied by the fan-in to reach its size. As soon as a
//! tier has as many logs as the fan-in, or enough bytes for a whole log, its oldest are merged into one. What comes out
//! is in a higher tier, unless dead entries went, so an entry is copied at most once for each tier below the whole log:
//! four times with the defaults (fan-in 16, 64 KiB to 1 GiB), and once when flushes are large. That bounds the write
//! amplification of merging.
//!
//! A log is whole, and left alone, from half of `log_bytes_max` on; where a ledger has less than `merge_ledger_bytes` in
//! it on average, from half of `merge_log_bytes_max` on.

use super::job::JOB_SOURCES_MAX;
use crate::config::SpaceConfig;
use bindery_storage::{EntryLog, Generation, LogId};
use std::collections::BTreeMap;

/// Logs below this many bytes times the fan-in are in the lowest tier.
const SMALLEST_BYTES: u64 = 64 << 10;

/// What the choice depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub log_id: LogId,
    pub generation: Generation,
    pub bytes: u64,
    /// Runs: at least one for each ledger.
    pub runs: u64,
    /// Its extents are not in memory.
    pub is_on_disk: bool,
}

/// How far rewrites are behind: the logs beyond the fan-in of their tier, including those that are being rewritten. Logs whose extents
/// are in memory count as [`SpaceConfig::logs_in_memory_as_one`] says: a read looks only into those that have its entry, so all that
/// such a log costs is a descriptor.
pub(super) fn backlog(candidates: &[Candidate], config: &SpaceConfig) -> usize {
    if config.merge_fan_in < 2 {
        return 0;
    }
    let fan_in = config.merge_fan_in;
    let mut tiers: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    for candidate in candidates.iter().filter(|candidate| !candidate.is_whole(config)) {
        let (on_disk, in_memory) = tiers.entry(candidate.tier(fan_in as u64)).or_default();
        *(if candidate.is_on_disk { on_disk } else { in_memory }) += 1;
    }
    let behind = |(on_disk, in_memory): (usize, usize)| {
        let behind = (on_disk + in_memory).saturating_sub(fan_in);
        behind.min(on_disk) + behind.saturating_sub(on_disk) / config.logs_in_memory_as_one.max(1)
    };
    tiers.into_values().map(behind).sum()
}

impl Candidate {
    pub(super) fn of(log: &EntryLog, is_on_disk: bool) -> Candidate {
        Candidate {
            log_id: log.log_id(),
            generation: log.generation(),
            bytes: log.size(),
            runs: log.run_count(),
            is_on_disk,
        }
    }

    /// Most bytes of a log whose ledgers are as small as these.
    fn bytes_max(config: &SpaceConfig, bytes: u64, runs: u64) -> u64 {
        if bytes / runs.max(1) < config.merge_ledger_bytes {
            config.merge_log_bytes_max.max(config.log_bytes_max)
        } else {
            config.log_bytes_max
        }
    }

    fn is_whole(&self, config: &SpaceConfig) -> bool {
        self.bytes >= Candidate::bytes_max(config, self.bytes, self.runs) / 2
    }

    fn tier(&self, fan_in: u64) -> u32 {
        (self.bytes / SMALLEST_BYTES).max(1).ilog(fan_in)
    }
}

/// The logs to be merged into one now, if any: at least two.
pub(super) fn choose(candidates: &[Candidate], config: &SpaceConfig) -> Option<Vec<LogId>> {
    let fan_in = u64::try_from(config.merge_fan_in).unwrap_or(u64::MAX);
    if fan_in < 2 {
        return None;
    }
    let mut tiers: BTreeMap<u32, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates.iter().filter(|candidate| !candidate.is_whole(config)) {
        tiers.entry(candidate.tier(fan_in)).or_default().push(*candidate);
    }
    tiers.into_values().find_map(|mut tier| {
        tier.sort_unstable_by_key(|candidate| (candidate.generation, candidate.log_id));
        let (all_bytes, all_runs) =
            tier.iter().fold((0, 0), |(bytes, runs), one| (bytes + one.bytes, runs + one.runs));
        let bytes_max = Candidate::bytes_max(config, all_bytes, all_runs);
        // One of smaller ledgers than the others may be whole among them.
        tier.retain(|one| one.bytes < bytes_max / 2);
        let all_bytes: u64 = tier.iter().map(|one| one.bytes).sum();
        if (tier.len() as u64) < fan_in && all_bytes < bytes_max {
            return None;
        }
        let mut bytes = 0;
        let fits = tier.iter().take(JOB_SOURCES_MAX).take_while(|one| {
            bytes += one.bytes;
            bytes <= bytes_max
        });
        let chosen: Vec<LogId> = fits.map(|one| one.log_id).collect();
        (chosen.len() > 1).then_some(chosen)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config() -> SpaceConfig {
        SpaceConfig::default()
    }

    fn log(id: u64, bytes: u64, runs: u64) -> Candidate {
        Candidate { log_id: LogId(id), generation: Generation(id), bytes, runs, is_on_disk: true }
    }

    #[test]
    fn a_full_tier_is_merged_oldest_first_and_a_part_of_one_is_not() {
        let logs: Vec<Candidate> = (0..15).rev().map(|id| log(id, 2 << 20, 4)).collect();
        assert_eq!(choose(&logs, &config()), None);
        let other_tier = log(90, 200 << 20, 4);
        let logs: Vec<Candidate> = logs.into_iter().chain([other_tier, log(15, 3 << 20, 4)]).collect();
        assert_eq!(choose(&logs, &config()), Some((0..16).map(LogId).collect()));
        assert_eq!(choose(&logs, &SpaceConfig { merge_fan_in: 0, ..config() }), None);
    }

    /// One that is large because its ledgers are small keeps the others from nothing.
    #[test]
    fn a_log_of_other_ledgers_does_not_stop_its_tier() {
        let small_ledgers = log(0, 1536 << 20, 31_000);
        let others = (1..5).map(|id| log(id, 320 << 20, 100));
        let logs: Vec<Candidate> = std::iter::once(small_ledgers).chain(others).collect();
        assert_eq!(choose(&logs, &config()), Some((1..4).map(LogId).collect()));
    }

    #[test]
    fn a_backlog_is_what_a_tier_has_beyond_its_fan_in() {
        let tier = |count: u64, bytes: u64| (0..count).map(move |id| log(id, bytes, 4));
        let logs: Vec<Candidate> =
            tier(15, 100 << 10).chain(tier(20, 2 << 20)).chain(tier(15, 20 << 20)).collect();
        assert_eq!(backlog(&logs, &config()), 4);
        assert_eq!(backlog(&logs, &SpaceConfig { merge_fan_in: 0, ..config() }), 0);
        let in_memory = tier(16 + 800, 70 << 20).map(|log| Candidate { is_on_disk: false, ..log });
        let in_memory: Vec<Candidate> = in_memory.collect();
        assert_eq!(backlog(&in_memory, &config()), 3, "800 beyond the fan-in, which reads need not look at");
        let both: Vec<Candidate> = tier(4, 70 << 20).chain(in_memory).collect();
        assert_eq!(backlog(&both, &config()), 4 + 3);
    }

    #[test]
    fn a_log_grows_until_its_ledgers_have_enough_in_it() {
        // 400 MiB each: three make more than 1 GiB, so two are merged.
        let large: Vec<Candidate> = (0..3).map(|id| log(id, 400 << 20, 100)).collect();
        assert_eq!(choose(&large, &config()), Some(vec![LogId(0), LogId(1)]));
        // 40 KiB for each ledger: four make less than 4 GiB, and a merge waits for 16 of them or for that size.
        let many_ledgers: Vec<Candidate> = (0..4).map(|id| log(id, 400 << 20, 10_000)).collect();
        assert_eq!(choose(&many_ledgers, &config()), None);
        let whole: Vec<Candidate> = (0..100).map(|id| log(id, 600 << 20, 100)).collect();
        assert_eq!(choose(&whole, &config()), None);
    }

    proptest! {
        /// Flushes of any size, merged whenever the rule says so: few logs stay, and each byte is copied at most once
        /// for each tier and a bit (a tier's oldest may not fit together and be taken in two merges).
        #[test]
        fn logs_stay_few_and_amplification_is_bounded(
            sizes in prop::collection::vec(16u64 << 10..80 << 20, 50..400),
            fan_in in 2usize..20,
        ) {
            let config = SpaceConfig { merge_fan_in: fan_in, ..config() };
            let (mut logs, mut flushed, mut copied, mut next) = (Vec::new(), 0, 0, 0);
            for size in sizes {
                flushed += size;
                logs.push(log(next, size, 8));
                next += 1;
                while let Some(chosen) = choose(&logs, &config) {
                    prop_assert!(chosen.len() > 1);
                    let (gone, kept): (Vec<_>, Vec<_>) =
                        logs.into_iter().partition(|log| chosen.contains(&log.log_id));
                    let bytes: u64 = gone.iter().map(|log| log.bytes).sum();
                    prop_assert!(bytes <= config.log_bytes_max);
                    copied += bytes;
                    logs = kept;
                    logs.push(log(next, bytes, 8));
                    next += 1;
                }
            }
            let tiers = (config.log_bytes_max / SMALLEST_BYTES).ilog(fan_in as u64) as u64 + 1;
            prop_assert!(copied <= flushed * (tiers + 1), "{copied} copied of {flushed}, {tiers} tiers");
            let whole = flushed / (config.log_bytes_max / 2) + 1;
            prop_assert!((logs.len() as u64) <= whole + tiers * fan_in as u64, "{} logs", logs.len());
        }
    }
}
