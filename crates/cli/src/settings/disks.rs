//! Full and slow disks.

use crate::sources::values::Values;
use bindery_server::config::BookieConfig;
use std::time::Duration;

/// Full and slow disks.
pub(super) fn apply(file: &mut Values, config: &mut BookieConfig) {
    let disks = &mut config.disks;
    let mut share = |key: &str, into: &mut f64| match file.parsed::<f64>(key) {
        Some(share) if share > 0.0 && share <= 1.0 => {
            *into = share;
            true
        }
        Some(share) => {
            file.fault(key, format!("{key}={share}: give a share above 0, at most 1"));
            false
        }
        None => false,
    };
    share("diskUsageThreshold", &mut disks.usage);
    share("diskUsageWarnThreshold", &mut disks.warn);
    if !share("diskUsageLwmThreshold", &mut disks.low_water) {
        disks.low_water = disks.usage;
    }
    // The default of one may be above what was chosen for the other.
    disks.warn = disks.warn.min(disks.usage);
    if disks.low_water > disks.usage {
        file.fault(
            "diskUsageLwmThreshold",
            format!(
                "diskUsageLwmThreshold={} is above diskUsageThreshold={}: a full disk would never be writable again",
                disks.low_water, disks.usage
            ),
        );
    }
    if let Some(ms) = file.parsed::<u64>("diskCheckInterval") {
        disks.interval = Duration::from_millis(ms.max(100));
    }
    if let Some(wanted) = file.flag("readOnlyModeOnAnyDiskFullEnabled") {
        disks.is_any_enough = wanted;
    }
    if let Some(wanted) = file.flag("readOnlyModeEnabled") {
        disks.may_be_read_only = wanted;
    }
    if let Some(wanted) = file.flag("isForceGCAllowWhenNoSpace") {
        disks.forces_collection = wanted;
    }
    let log_creation = file.parsed::<u64>("minUsableSizeForEntryLogCreation");
    let high_priority = file.parsed::<u64>("minUsableSizeForHighPriorityWrites");
    disks.high_priority_bytes_min = high_priority.or(log_creation).unwrap_or(config.space.log_bytes_max);
    disks.reserve_bytes = file.parsed::<u64>("diskReserveSizeMB").map(|mib| mib.min(1 << 20) << 20);
    if let Some(ms) = file.parsed::<u64>("journalSyncP99LimitMSec") {
        config.slow_journal.p99_max = Duration::from_millis(ms);
    }
    if let Some(seconds) = file.parsed::<u64>("journalSyncP99WindowSec") {
        config.slow_journal.window = Duration::from_secs(seconds.clamp(3, 3600));
    }
}
