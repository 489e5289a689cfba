//! Limits of which one bounds another, and their defaults.

use crate::sources::values::Values;
use crate::table::Draft;
use bindery_engine::JOURNAL_FILES_MIN;

/// The least that a group of adds may have: below that, syncs are what adds wait for.
const GROUP_BYTES_MIN: u64 = 1 << 20;

pub(super) fn apply(file: &mut Values, draft: &mut Draft) {
    let limits = &draft.limits;
    draft.config.accept_lost_directories =
        limits.checks_integrity == Some(true) && limits.stamps_cookies == Some(true);
    journal(file, draft);
    compaction(file, draft);
    disks(file, draft);
    adds(file, draft);
    keepalive(draft);
}

fn journal(file: &mut Values, draft: &Draft) {
    let (given, least) =
        (draft.config.journal_bytes_max, JOURNAL_FILES_MIN * draft.config.journal_file_bytes);
    if (1..least).contains(&given) {
        let (mib, least) = (given >> 20, least >> 20);
        file.fault(
            "journalDiskSizeMaxMB",
            format!(
                "journalDiskSizeMaxMB={mib}: give at least {least} MB, for {JOURNAL_FILES_MIN} files of journalMaxSizeMB"
            ),
        );
    }
}

fn compaction(file: &mut Values, draft: &mut Draft) {
    let space = &mut draft.config.space;
    match (draft.limits.compaction_rate, draft.limits.is_throttled_by_bytes) {
        (Some(_), Some(false)) => {
            // Pulsar's file has both. BookKeeper then counts entries, which says nothing about bytes.
            let mebibytes = space.bytes_per_second >> 20;
            file.warn(
                "isThrottleByBytes",
                format!(
                    "isThrottleByBytes=false: compactionRateByBytes does not count, as in BookKeeper; compaction takes {mebibytes} MiB \
                     in a second"
                ),
            );
        }
        (Some(bytes), _) => {
            space.bytes_per_second = bytes;
            space.step_bytes = space.step_bytes.min(bytes);
        }
        (None, _) => {}
    }
}

fn disks(file: &mut Values, draft: &mut Draft) {
    let disks = &mut draft.config.disks;
    disks.low_water = draft.limits.disk_low_water.unwrap_or(disks.usage);
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
    let given = draft.limits.high_priority_bytes.or(draft.limits.log_creation_bytes);
    disks.high_priority_bytes_min = given.unwrap_or(draft.config.space.log_bytes_max);
}

/// A number of adds bounds the groups of all journals, in bytes.
fn adds(file: &mut Values, draft: &mut Draft) {
    let key = "maxAddsInProgressLimit";
    let Some(adds) = draft.limits.adds_in_progress else { return };
    let Some(count) = u64::try_from(adds).ok().filter(|count| *count > 0) else {
        file.note(key, format!("{key}={adds}: no limit of its own; groups and the write pool bound adds"));
        return;
    };
    let average = draft.limits.average_entry_bytes();
    let bytes = count.saturating_mul(average);
    // One group is being written while the next one forms.
    let journals = draft.config.journal_dirs.len().max(1) as u64;
    let most = draft.config.limits.group_bytes_max as u64;
    let group = (bytes / 2 / journals).clamp(GROUP_BYTES_MIN, most.max(GROUP_BYTES_MIN));
    draft.config.limits.group_bytes_max = group as usize;
    file.note(key, format!(
        "{key}={adds}: {adds} adds x {average} bytes (averageEntryBytes) = {bytes} bytes not acknowledged yet: \
         groups of {group} bytes, two in each of {journals} journals (between {GROUP_BYTES_MIN} and {most}); \
         further adds wait for room, then get too-many-requests"
    ));
}

/// Sent bytes may stay without answer for as long as keepalive gives a silent peer, unless it is set.
fn keepalive(draft: &mut Draft) {
    let socket = &mut draft.config.limits.socket;
    let patience = socket.keepalive.map(|keepalive| keepalive.idle + keepalive.interval * keepalive.probes);
    socket.unanswered_max = draft.limits.unanswered.or(patience).filter(|time| !time.is_zero());
    socket.keepalive = socket.keepalive.filter(|_| draft.limits.has_keepalive != Some(false));
}
