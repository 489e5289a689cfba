//! Keys of parts that only Java's bookie has: its ledger storages, its runtime, its plug-ins.

use super::{Key, is_true, nothing, refused};

const ONE_STORAGE: &str =
    "there is one ledger storage, with entry logs and an index of its own, and memory from --memory-limit";
const ENTRY_LOGS: &str =
    "entry logs are written by flushes, sorted by ledger, and read through blocks of the index";
const ROCKSDB: &str = "there is no RocksDB: the index stands beside the entries it leads to";
const NETTY: &str = "memory comes from pools that --memory-limit bounds, not from Netty's allocator";
const METRICS: &str =
    "metrics are always on, in Prometheus' form: httpServerEnabled or prometheusStatsHttpPort says where";
const JVM: &str = "there is no Java virtual machine";
const STREAMS: &str = "the stream storage service is not part of a bookie here";
const COMPONENTS: &str = "Java classes cannot be loaded; run such services in processes of their own";

#[rustfmt::skip]
pub(super) const STORAGE: &[Key] = &[
    nothing("ledgerStorageClass", "SortedLedgerStorage", "Java class of the ledger storage", ONE_STORAGE),
    nothing("sortedLedgerStorageEnabled", "true", "Use SortedLedgerStorage", ONE_STORAGE),
    nothing("skipListSizeLimit", "67108864", "Memory of unsorted entries", ONE_STORAGE).unit("bytes"),
    nothing("skipListArenaChunkSize", "4194304", "Size of a piece of that memory", ONE_STORAGE).unit("bytes"),
    nothing("skipListArenaMaxAllocSize", "131072", "Largest entry in it", ONE_STORAGE).unit("bytes"),
    nothing("numOfMemtableFlushThreads", "8", "Threads that flush it", ONE_STORAGE),
    nothing("openFileLimit", "20000", "Open index files", ONE_STORAGE),
    nothing("pageLimit", "-1", "Index pages in memory", ONE_STORAGE),
    nothing("pageSize", "8192", "Size of an index page", ONE_STORAGE).unit("bytes"),
    nothing("fileInfoCacheInitialCapacity", "", "First size of the cache of index files", ONE_STORAGE),
    nothing("fileInfoMaxIdleTime", "0", "Time an index file stays open", ONE_STORAGE).unit("s"),
    nothing("fileInfoFormatVersionToWrite", "1", "Format of index files", ONE_STORAGE),
    nothing("entryLogFilePreallocationEnabled", "true", "Create the next entry log ahead", ENTRY_LOGS),
    nothing("entryLogPerLedgerEnabled", "false", "An entry log for each ledger", ENTRY_LOGS),
    nothing("entryLogPerLedgerCounterLimitsMultFactor", "10", "Metrics of such entry logs", ENTRY_LOGS),
    nothing("entrylogMapAccessExpiryTimeInSeconds", "300", "Time such an entry log stays open", ENTRY_LOGS).unit("s"),
    nothing("maximumNumberOfActiveEntryLogs", "500", "Such entry logs at once", ENTRY_LOGS),
    nothing("flushEntrylogBytes", "0", "Bytes after which an entry log is synced", ENTRY_LOGS).unit("bytes"),
    nothing("readBufferSizeBytes", "512", "Buffer of reads from an entry log", ENTRY_LOGS).unit("bytes"),
    nothing("writeBufferSizeBytes", "65536", "Buffer of writes to an entry log", ENTRY_LOGS).unit("bytes"),
    nothing("dbStorage_writeCacheMaxSizeMb", "", "Memory of the write cache", ONE_STORAGE).unit("MB"),
    nothing("dbStorage_readAheadCacheMaxSizeMb", "", "Memory of read-ahead", ONE_STORAGE).unit("MB"),
    nothing("dbStorage_readAheadCacheBatchSize", "100", "Entries read ahead", ENTRY_LOGS),
    nothing("dbStorage_readAheadCacheBatchBytesSize", "-1", "Bytes read ahead", ENTRY_LOGS).unit("bytes"),
    nothing("dbStorage_maxThrottleTimeMs", "10000", "Wait of an add for the write cache",
        "an add waits 2 s for room in the write pool, then gets too-many-requests").unit("ms"),
    nothing("dbStorage_directIOEntryLogger", "false", "Read and write entry logs past the page cache", ENTRY_LOGS),
    nothing("dbStorage_directIOEntryLogger*", "", "Buffers of that", ENTRY_LOGS),
    nothing("dbStorage_rocksDB_*", "", "RocksDB; BookKeeper itself ignores most since 4.15", ROCKSDB),
    nothing("defaultRocksdbConf", "conf/default_rocksdb.conf", "File with settings of RocksDB", ROCKSDB),
    nothing("entryLocationRocksdbConf", "conf/entry_location_rocksdb.conf", "File with settings of RocksDB", ROCKSDB),
    nothing("ledgerMetadataRocksdbConf", "conf/ledger_metadata_rocksdb.conf", "File with settings of RocksDB", ROCKSDB),
    nothing("entryLocationCompactionInterval", "-1", "Time between two compactions of RocksDB", ROCKSDB).unit("s"),
    nothing("maxOperationNumbersInSingleRocksdbWriteBatch", "100000", "Operations written to RocksDB at once", ROCKSDB),
];

#[rustfmt::skip]
pub(super) const RUNTIME: &[Key] = &[
    nothing("allocatorPoolingPolicy", "PooledDirect", "Kind of memory", NETTY),
    nothing("allocatorPoolingConcurrency", "", "Arenas of memory", NETTY),
    nothing("allocatorOutOfMemoryPolicy", "FallbackToHeap", "Want of direct memory", NETTY),
    nothing("allocatorExitOnOutOfMemory", "false", "Want of memory ends the process", NETTY),
    nothing("allocatorLeakDetectionPolicy", "Disabled", "Search for leaks", NETTY),
    nothing("enableBusyWait", "false", "Threads wait in a loop", "threads that have nothing to do sleep"),
    nothing("bookieDeathWatchInterval", "1000", "Time between two looks whether the bookie is dead", JVM).unit("ms"),
    nothing("enableTaskExecutionStats", "false", "Metrics of tasks", METRICS),
    nothing("preserveMdcForTaskExecution", "false", "Keep the context of log lines", JVM),
    nothing("enableStatistics", "true", "Metrics", METRICS),
    nothing("limitStatsLogging", "true", "Fewer metrics", METRICS),
    nothing("sanityCheckMetricsEnabled", "false", "Metrics of the sanity check", METRICS),
    nothing("statsProviderClass", "", "Java class of metrics", METRICS),
    nothing("prometheusStatsLatencyRolloverSeconds", "60", "Time that latencies are gathered over", "latencies are those of the last minute")
        .unit("s"),
    nothing("exposeDefaultJVMMetrics", "true", "Metrics of the virtual machine", JVM),
    nothing("codahaleStats*", "", "Codahale's metrics", METRICS),
    nothing("ledgerIdFormatterClass", "", "Java class that prints ledger ids", COMPONENTS),
    nothing("entryFormatterClass", "", "Java class that prints entries", COMPONENTS),
    nothing("extraServerComponents", "", "Java classes of further services", COMPONENTS).asks(super::always),
    nothing("ignoreExtraServerComponentsStartupFailures", "false", "Go on without a service that fails", COMPONENTS),
    nothing("storageserver.*", "", "Stream storage", STREAMS),
    nothing("storage.*", "", "Stream storage", STREAMS),
    nothing("dlog.*", "", "DistributedLog, below stream storage", STREAMS),
    nothing("org.apache.bookkeeper.conf.readsystemproperties", "false", "Take settings from properties of the virtual machine", JVM)
        .asks(is_true),
    refused("include", "", "Read another file, too", super::always,
        "files are not included here, and what stands in that one would be missing; put all settings into one file"),
];
