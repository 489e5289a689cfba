//! Full disks, garbage collection, compaction, merging and scrub.

use super::{Key, Place, Share, applied, at, nothing, ours, translated};
use std::time::Duration;

const STEPS: &str = "compaction runs in small steps between flushes, bounded by compactionRateByBytes";
const BY_BYTES: &str = "compaction counts bytes: see compactionRateByBytes";
/// The least and the largest size of a log, in bytes.
const LOG_BYTES: (i128, i128) = (1 << 20, 4 << 30);

#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    applied("diskUsageThreshold", "0.95", "Share of a volume in use from which it counts as full")
        .share(Share::AboveZero, at!(config.disks.usage)),
    applied("diskUsageWarnThreshold", "0.90", "Share of a volume in use from which it counts as almost full")
        .share(Share::AboveZero, at!(config.disks.warn)),
    applied("diskUsageLwmThreshold", "diskUsageThreshold", "Share of a volume in use below which a full one takes writes again")
        .share(Share::AboveZero, at!(limits.disk_low_water => |draft| Some(draft.config.disks.low_water))),
    applied("diskCheckInterval", "10000", "Time between two looks at volumes; at least 100").millis(at!(config.disks.interval)).at_least(100),
    applied("readOnlyModeEnabled", "true", "A bookie with full disks goes on as read-only; false: it stops")
        .switch(at!(config.disks.may_be_read_only)),
    applied("readOnlyModeOnAnyDiskFullEnabled", "true", "One full disk makes the bookie read-only (false before 4.18)")
        .switch(at!(config.disks.is_any_enough)),
    applied("forceReadOnlyBookie", "false", "Take no writes")
        .switch(at!(config.read_only).flag("--read-only", |args| args.read_only.then_some(true))),
    applied("minUsableSizeForHighPriorityWrites", "minUsableSizeForEntryLogCreation",
        "Recovery adds are taken by a read-only bookie with so much space; logSizeLimit when it is not set")
        .bytes(at!(limits.high_priority_bytes as u64 => |draft| Some(draft.config.disks.high_priority_bytes_min.into()))),
    applied("minUsableSizeForEntryLogCreation", "logSizeLimit", "The same, when minUsableSizeForHighPriorityWrites is not set")
        .bytes(at!(limits.log_creation_bytes as u64 => |draft| Some(draft.config.disks.high_priority_bytes_min.into())))
        .alias_of("minUsableSizeForHighPriorityWrites"),
    applied("isForceGCAllowWhenNoSpace", "false", "A minor compaction when a disk is almost full")
        .switch(at!(config.disks.forces_collection)),
    ours("diskReserveSizeMB", "Size of the reserve file of each volume; by the volume when it is not set, 0 for none")
        .mebibytes(at!(config.disks.reserve_bytes, if given)).taken_as(0, 1 << 20),
    applied("gcWaitTime", "600000", "Time between two rounds of garbage collection; at least 1000")
        .millis(Place::new(
            |draft, time| (draft.config.garbage.interval, draft.config.space.collection_interval) = (time, time),
            |draft| Some(draft.config.garbage.interval),
        ))
        .at_least(1000),
    applied("gcMetadataOpRateLimit", "1000", "Metadata operations of a second in a round (in the file since 4.18)")
        .number(at!(config.garbage.ops_per_second as u32)).within(0, u32::MAX as i128).at_least(1),
    applied("gcOverreplicatedLedgerWaitTime", "86400000",
        "Time between two searches for ledgers that should not be here; 0 or less for none")
        .millis(at!(config.surplus.interval)).signed().at_least(0),
    applied("gcOverreplicatedLedgerMaxConcurrentRequests", "1000", "Metadata reads under way in such a search; 1 to 10000")
        .number(at!(config.surplus.reads_max as usize)).taken_as(1, 10_000),
    applied("minorCompactionInterval", "3600", "Time between two minor compactions; 0 or less for none")
        .seconds(at!(config.space.minor_interval)).signed().at_least(0),
    applied("minorCompactionThreshold", "0.2", "Logs with a smaller share of live bytes are compacted often; 0 or less for none")
        .share(Share::OrNone, Place::new(
            |draft, share| match share > 0.0 {
                true => draft.config.space.minor_threshold = share,
                false => draft.config.space.minor_interval = Duration::ZERO,
            },
            |draft| Some(draft.config.space.minor_threshold),
        )),
    applied("majorCompactionInterval", "86400", "Time between two major compactions; 0 or less for none")
        .seconds(at!(config.space.major_interval)).signed().at_least(0),
    applied("majorCompactionThreshold", "0.8", "Logs with a smaller share of live bytes are compacted seldom; 0 or less for none")
        .share(Share::OrNone, Place::new(
            |draft, share| match share > 0.0 {
                true => draft.config.space.major_threshold = share,
                false => draft.config.space.major_interval = Duration::ZERO,
            },
            |draft| Some(draft.config.space.major_threshold),
        )),
    applied("compactionRateByBytes", "1000000",
        "Bytes that compaction, merging and scrub take in a second, together; with isThrottleByBytes=false it does not count")
        .bytes(at!(limits.compaction_rate as u64 => |draft| Some(draft.config.space.bytes_per_second.into()))).at_least(1),
    translated("isThrottleByBytes", "false", "compactionRateByBytes counts, not compactionRateByEntries",
        "compaction is always paced by bytes; false only keeps compactionRateByBytes from counting")
        .switch(at!(limits.is_throttled_by_bytes => |draft| Some(draft.limits.is_throttled_by_bytes.unwrap_or(true)))),
    translated("logSizeLimit", "1073741824", "Size of an entry log",
        "a flush writes a log of what it has; the limit is for live bytes that compaction and merging put into one")
        .bytes(at!(config.space.log_bytes_max as u64)).taken_as(LOG_BYTES.0, LOG_BYTES.1),
    ours("mergeFanIn", "Small logs of about one size that are merged into one; below 2 for none, at most 64")
        .number(at!(config.space.merge_fan_in as usize)).taken_as(0, 64),
    ours("mergeLedgerBytes", "Where ledgers have less than this in a log, merged logs may grow to mergeLogSizeLimit")
        .bytes(at!(config.space.merge_ledger_bytes as u64)),
    ours("mergeLogSizeLimit", "Size of a merged log in that case")
        .bytes(at!(config.space.merge_log_bytes_max as u64)).taken_as(LOG_BYTES.0, LOG_BYTES.1),
    ours("replacedLogGraceTime", "Files of replaced logs stay for so long").millis(at!(config.space.replaced_grace)),
    ours("scrubPeriod", "Time in which all logs are checked once; 0 for no scrub").seconds(at!(config.space.scrub_period)),
    ours("scrubRateByBytes", "Bytes that the scrub reads in a second; 0: as the period asks")
        .bytes(at!(config.space.scrub_bytes_per_second as u64)),
    nothing("compactionRate", "1000", "Entries that compaction takes in a second", BY_BYTES),
    nothing("compactionRateByEntries", "1000", "Entries that compaction takes in a second", BY_BYTES),
    nothing("compactionMaxOutstandingRequests", "100000", "Entries compacted without a flush", STEPS),
    nothing("minorCompactionMaxTimeMillis", "-1", "Longest time of a minor compaction", STEPS).unit("ms"),
    nothing("majorCompactionMaxTimeMillis", "-1", "Longest time of a major compaction", STEPS).unit("ms"),
    nothing("forceAllowCompaction", "false", "Compaction may be forced although it is switched off", STEPS),
    nothing("useTransactionalCompaction", "false", "Compact into a log that counts only when it is whole",
        "it is always so: one commit brings the new log and takes the old ones out"),
    nothing("useTargetEntryLogSizeForGc", "false", "Weigh logs by their size when they are full", STEPS),
    nothing("verifyMetadataOnGC", "false", "Read a ledger's metadata before it is removed",
        "each ledger is looked up again before it is removed, and any doubt ends the round"),
    nothing("gcEntryLogMetadataCacheEnabled", "false", "Keep what is known of entry logs in RocksDB",
        "the state table of each directory has it"),
    nothing("gcEntryLogMetadataCachePath", "", "Directory of that database", "the state table of each directory has it"),
    nothing("localConsistencyCheckOnStartup", "false", "Check ledgers at the start",
        "the scrub checks a running bookie (scrubPeriod), bindery verify a stopped one"),
    nothing("localScrubInterval", "0", "Time between two checks of all ledgers", "scrubPeriod says how often all logs are checked").unit("s"),
    nothing("localScrubRateLimit", "60", "Entries checked in a second", "scrubRateByBytes says how fast logs are checked"),
    nothing("minUsableSizeForIndexFileCreation", "104857600", "Space an index file needs",
        "there are no index files: the index stands beside the entries it leads to").unit("bytes"),
    nothing("persistBookieStatusEnabled", "false", "Be read-only again after a restart",
        "each start decides by the state of the disks whether to take writes; forceReadOnlyBookie holds").asks(super::is_true),
];
