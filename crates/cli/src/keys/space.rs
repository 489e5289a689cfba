//! Full disks, garbage collection, compaction, merging and scrub.

use super::{Key, applied, millis, nothing, ours, seconds, translated};

const STEPS: &str = "compaction runs in small steps between flushes, bounded by compactionRateByBytes";
const BY_BYTES: &str = "compaction counts bytes: see compactionRateByBytes";

pub(super) const KEYS: &[Key] = &[
    applied("diskUsageThreshold", "0.95", "Share of a volume in use from which it counts as full")
        .shown(|view| view.config.disks.usage.to_string()),
    applied("diskUsageWarnThreshold", "0.90", "Share of a volume in use from which it counts as almost full")
        .shown(|view| view.config.disks.warn.to_string()),
    applied(
        "diskUsageLwmThreshold",
        "diskUsageThreshold",
        "Share of a volume in use below which a full one takes writes again",
    )
    .shown(|view| view.config.disks.low_water.to_string()),
    applied("diskCheckInterval", "10000", "Time between two looks at volumes; at least 100")
        .unit("ms")
        .shown(|view| millis(view.config.disks.interval)),
    applied("readOnlyModeEnabled", "true", "A bookie with full disks goes on as read-only; false: it stops")
        .shown(|view| view.config.disks.may_be_read_only.to_string()),
    applied("readOnlyModeOnAnyDiskFullEnabled", "true", "One full disk makes the bookie read-only (false before 4.18)")
        .shown(|view| view.config.disks.is_any_enough.to_string()),
    applied("forceReadOnlyBookie", "false", "Take no writes")
        .shown(|view| view.config.read_only.to_string())
        .flag("--read-only", |args| args.read_only),
    applied(
        "minUsableSizeForHighPriorityWrites",
        "minUsableSizeForEntryLogCreation",
        "Recovery adds are taken by a read-only bookie with so much space; logSizeLimit when it is not set",
    )
    .unit("bytes")
    .shown(|view| view.config.disks.high_priority_bytes_min.to_string()),
    applied(
        "minUsableSizeForEntryLogCreation",
        "logSizeLimit",
        "The same, when minUsableSizeForHighPriorityWrites is not set",
    )
    .unit("bytes")
    .shown(|view| view.config.disks.high_priority_bytes_min.to_string()),
    applied("isForceGCAllowWhenNoSpace", "false", "A minor compaction when a disk is almost full")
        .shown(|view| view.config.disks.forces_collection.to_string()),
    ours("diskReserveSizeMB", "Size of the reserve file of each volume; by the volume when it is not set, 0 for none")
        .unit("MB")
        .shown(|view| view.config.disks.reserve_bytes.map_or_else(String::new, super::mebibytes)),
    applied("gcWaitTime", "600000", "Time between two rounds of garbage collection; at least 1000")
        .unit("ms")
        .shown(|view| millis(view.config.garbage.interval)),
    applied("gcMetadataOpRateLimit", "1000", "Metadata operations of a second in a round (in the file since 4.18)")
        .shown(|view| view.config.garbage.ops_per_second.to_string()),
    applied(
        "gcOverreplicatedLedgerWaitTime",
        "86400000",
        "Time between two searches for ledgers that should not be here; 0 or less for none",
    )
    .unit("ms")
    .shown(|view| millis(view.config.surplus.interval)),
    applied(
        "gcOverreplicatedLedgerMaxConcurrentRequests",
        "1000",
        "Metadata reads under way in such a search; 1 to 10000",
    )
    .shown(|view| view.config.surplus.reads_max.to_string()),
    applied("minorCompactionThreshold", "0.2", "Logs with a smaller share of live bytes are compacted often; 0 or less for none")
        .shown(|view| view.config.space.minor_threshold.to_string()),
    applied("minorCompactionInterval", "3600", "Time between two minor compactions; 0 or less for none")
        .unit("s")
        .shown(|view| seconds(view.config.space.minor_interval)),
    applied("majorCompactionThreshold", "0.8", "Logs with a smaller share of live bytes are compacted seldom; 0 or less for none")
        .shown(|view| view.config.space.major_threshold.to_string()),
    applied("majorCompactionInterval", "86400", "Time between two major compactions; 0 or less for none")
        .unit("s")
        .shown(|view| seconds(view.config.space.major_interval)),
    applied(
        "compactionRateByBytes",
        "1000000",
        "Bytes that compaction, merging and scrub take in a second, together; with isThrottleByBytes=false it does not count",
    )
    .unit("bytes")
    .shown(|view| view.config.space.bytes_per_second.to_string()),
    translated(
        "isThrottleByBytes",
        "false",
        "compactionRateByBytes counts, not compactionRateByEntries",
        "compaction is always paced by bytes; false only keeps compactionRateByBytes from counting",
    )
    .shown(|view| view.text("isThrottleByBytes").unwrap_or_else(|| "true".to_owned())),
    translated(
        "logSizeLimit",
        "1073741824",
        "Size of an entry log",
        "a flush writes a log of what it has; the limit is for live bytes that compaction and merging put into one",
    )
    .unit("bytes")
    .shown(|view| view.config.space.log_bytes_max.to_string()),
    ours("mergeFanIn", "Small logs of about one size that are merged into one; below 2 for none, at most 64")
        .shown(|view| view.config.space.merge_fan_in.to_string()),
    ours("mergeLedgerBytes", "Where ledgers have less than this in a log, merged logs may grow to mergeLogSizeLimit")
        .unit("bytes")
        .shown(|view| view.config.space.merge_ledger_bytes.to_string()),
    ours("mergeLogSizeLimit", "Size of a merged log in that case")
        .unit("bytes")
        .shown(|view| view.config.space.merge_log_bytes_max.to_string()),
    ours("replacedLogGraceTime", "Files of replaced logs stay for so long")
        .unit("ms")
        .shown(|view| millis(view.config.space.replaced_grace)),
    ours("scrubPeriod", "Time in which all logs are checked once; 0 for no scrub")
        .unit("s")
        .shown(|view| seconds(view.config.space.scrub_period)),
    ours("scrubRateByBytes", "Bytes that the scrub reads in a second; 0: as the period asks")
        .unit("bytes")
        .shown(|view| view.config.space.scrub_bytes_per_second.to_string()),
    nothing("compactionRate", "1000", "Entries that compaction takes in a second", BY_BYTES),
    nothing("compactionRateByEntries", "1000", "Entries that compaction takes in a second", BY_BYTES),
    nothing("compactionMaxOutstandingRequests", "100000", "Entries compacted without a flush", STEPS),
    nothing("minorCompactionMaxTimeMillis", "-1", "Longest time of a minor compaction", STEPS).unit("ms"),
    nothing("majorCompactionMaxTimeMillis", "-1", "Longest time of a major compaction", STEPS).unit("ms"),
    nothing("forceAllowCompaction", "false", "Compaction may be forced although it is switched off", STEPS),
    nothing(
        "useTransactionalCompaction",
        "false",
        "Compact into a log that counts only when it is whole",
        "it is always so: one commit brings the new log and takes the old ones out",
    ),
    nothing("useTargetEntryLogSizeForGc", "false", "Weigh logs by their size when they are full", STEPS),
    nothing(
        "verifyMetadataOnGC",
        "false",
        "Read a ledger's metadata before it is removed",
        "each ledger is looked up again before it is removed, and any doubt ends the round",
    ),
    nothing(
        "gcEntryLogMetadataCacheEnabled",
        "false",
        "Keep what is known of entry logs in RocksDB",
        "the state table of each directory has it",
    ),
    nothing(
        "gcEntryLogMetadataCachePath",
        "",
        "Directory of that database",
        "the state table of each directory has it",
    ),
    nothing(
        "localConsistencyCheckOnStartup",
        "false",
        "Check ledgers at the start",
        "the scrub checks a running bookie (scrubPeriod), bindery verify a stopped one",
    ),
    nothing("localScrubInterval", "0", "Time between two checks of all ledgers", "scrubPeriod says how often all logs are checked")
        .unit("s"),
    nothing("localScrubRateLimit", "60", "Entries checked in a second", "scrubRateByBytes says how fast logs are checked"),
    nothing(
        "minUsableSizeForIndexFileCreation",
        "104857600",
        "Space an index file needs",
        "there are no index files: the index stands beside the entries it leads to",
    )
    .unit("bytes"),
    nothing(
        "persistBookieStatusEnabled",
        "false",
        "Be read-only again after a restart",
        "each start decides by the state of the disks whether to take writes; forceReadOnlyBookie holds",
    )
    .asks(super::is_true),
];
