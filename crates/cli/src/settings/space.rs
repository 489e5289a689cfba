//! Garbage collection, compaction, merging and scrub.

use crate::sources::values::Values;
use bindery_server::config::BookieConfig;
use std::time::Duration;

/// Garbage collection and compaction.
pub(super) fn apply(file: &mut Values, config: &mut BookieConfig) {
    if let Some(ms) = file.parsed::<u64>("gcWaitTime") {
        config.garbage.interval = Duration::from_millis(ms.max(1000));
        config.space.collection_interval = config.garbage.interval;
    }
    if let Some(ops) = file.parsed::<u32>("gcMetadataOpRateLimit") {
        config.garbage.ops_per_second = ops.max(1);
    }
    if let Some(ms) = file.parsed::<i64>("gcOverreplicatedLedgerWaitTime") {
        config.surplus.interval = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
    }
    if let Some(reads) = file.parsed::<usize>("gcOverreplicatedLedgerMaxConcurrentRequests") {
        config.surplus.reads_max = reads.clamp(1, 10_000);
    }
    // As in BookKeeper, zero or less of either switches a compaction off.
    for (which, is_minor) in [("minor", true), ("major", false)] {
        let space = &mut config.space;
        let (threshold, interval) = if is_minor {
            (&mut space.minor_threshold, &mut space.minor_interval)
        } else {
            (&mut space.major_threshold, &mut space.major_interval)
        };
        if let Some(seconds) = file.parsed::<i64>(&format!("{which}CompactionInterval")) {
            *interval = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        }
        let key = format!("{which}CompactionThreshold");
        match file.parsed::<f64>(&key) {
            Some(share) if share <= 0.0 => *interval = Duration::ZERO,
            Some(share) if share < 1.0 => *threshold = share,
            Some(share) => file.fault(&key, format!("{key}={share}: give a share below 1")),
            None => {}
        }
    }
    let rate = file.parsed::<u64>("compactionRateByBytes");
    let is_by_bytes = file.flag("isThrottleByBytes");
    if rate.is_some() && is_by_bytes == Some(false) {
        // Pulsar's file has both. BookKeeper then counts entries, which says nothing about bytes.
        let bytes = config.space.bytes_per_second >> 20;
        file.warn("isThrottleByBytes", format!(
            "isThrottleByBytes=false: compactionRateByBytes does not count, as in BookKeeper; compaction takes {bytes} MiB in a second"
        ));
    } else if let Some(bytes) = rate {
        config.space.bytes_per_second = bytes.max(1);
        config.space.step_bytes = config.space.step_bytes.min(bytes.max(1));
    }
    if let Some(bytes) = file.parsed::<u64>("logSizeLimit") {
        config.space.log_bytes_max = bytes.clamp(1 << 20, 4 << 30);
    }
    let space = &mut config.space;
    if let Some(logs) = file.parsed::<usize>("mergeFanIn") {
        space.merge_fan_in = logs.min(64);
    }
    if let Some(bytes) = file.parsed::<u64>("mergeLedgerBytes") {
        space.merge_ledger_bytes = bytes;
    }
    if let Some(bytes) = file.parsed::<u64>("mergeLogSizeLimit") {
        space.merge_log_bytes_max = bytes.clamp(1 << 20, 4 << 30);
    }
    if let Some(ms) = file.parsed::<u64>("replacedLogGraceTime") {
        space.replaced_grace = Duration::from_millis(ms);
    }
    if let Some(seconds) = file.parsed::<u64>("scrubPeriod") {
        space.scrub_period = Duration::from_secs(seconds);
    }
    if let Some(bytes) = file.parsed::<u64>("scrubRateByBytes") {
        space.scrub_bytes_per_second = bytes;
    }
}
