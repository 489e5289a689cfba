//! Directories, the journal, and memory.

use super::flags::BookieArgs;
use super::{Draft, Key, applied, at, is_false, nothing, ours, refused, translated};
use std::path::PathBuf;

fn has_journal(args: &BookieArgs) -> bool {
    args.data.is_some() || !args.journal_dir.is_empty()
}

fn list(dirs: &[PathBuf]) -> Option<String> {
    Some(dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(","))
}

fn journals(draft: &Draft) -> Option<String> {
    list(&draft.config.journal_dirs)
}

const GROUPS: &str =
    "a group of adds is written as soon as the one before is durable, without a timer or a threshold";
const LAYOUT: &str = "journal files have a layout of their own: aligned direct writes to files that are zero-filled and used again";
const POOL: &str = "entries wait in the write pool, a part of --memory-limit";

#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    applied("journalDirectories", "/tmp/bk-txn",
        "Directories of the journal, separated by commas; one that is the only ledger directory, too, gets the subdirectories journal and \
         ledgers").text(at!(places.journals => journals)).flag("--journal-dir", has_journal),
    applied("journalDirectory", "/tmp/bk-txn", "The same for one, when journalDirectories is not set")
        .text(at!(places.journal => journals)).alias_of("journalDirectories").flag("--journal-dir", has_journal),
    applied("ledgerDirectories", "/tmp/bk-data", "Directories of ledgers, separated by commas, one for each disk")
        .text(at!(places.ledgers => |draft| list(&draft.config.ledger_dirs))).flag("--ledger-dir", |args| args.data.is_some() || !args.ledger_dir.is_empty()),
    nothing("indexDirectories", "", "Directories of the index", "the index stands beside the entries it leads to"),
    applied("allowStorageExpansion", "false", "New, empty directories may be added").switch(at!(config.allow_storage_expansion)),
    applied("dataIntegrityChecking", "false", "With dataIntegrityStampMissingCookies, lost directories may come back empty")
        .switch(at!(limits.checks_integrity => |draft| Some(draft.config.accept_lost_directories))),
    applied("dataIntegrityStampMissingCookies", "false", "With dataIntegrityChecking, lost directories may come back empty")
        .switch(at!(limits.stamps_cookies => |draft| Some(draft.config.accept_lost_directories))),
    nothing("allowMultipleDirsUnderSameDiskPartition", "true", "Directories may share a volume",
        "directories of one volume are watched as one disk"),
    applied("journalSyncData", "true",
        "Sync the journal before an entry is acknowledged; without it a power cut may lose acknowledged entries")
        .switch(at!(config.journal_sync).flag("--journal-sync", |args| args.journal_sync.map(bool::from))),
    refused("journalWriteData", "true", "Write entries to the journal", is_false,
        "not supported: entries always go through the journal, which their durability rests on; remove the line"),
    translated("journalMaxSizeMB", "2048", "Length of a journal file",
        "journal files are written full of zeros once and used again, so they have 16 to 1024 MB")
        .mebibytes(at!(config.journal_file_bytes)).taken_as(16, 1024)
        // Java's default of 2 GiB would only cost space.
        .note(|draft, text| {
            let taken = draft.config.journal_file_bytes >> 20;
            let is_other = text.parse() != Ok(taken);
            is_other.then(|| {
                format!(
                    "journal files are written full of zeros once and used again, so they have 16 to 1024 MB; {taken} is taken"
                )
            })
        }),
    ours("journalDiskSizeMaxMB", "Bytes of all files of one journal, at least four files; 0 for twice the write pool")
        .mebibytes(at!(config.journal_bytes_max)),
    ours("ledgerMemoryMB",
        "Memory for the states of ledgers, about 200 bytes for each; beyond it no new ones are taken; a quarter of the memory limit when \
         it is not set").mebibytes(at!(config.ledger_memory, if given)).within(1, 1 << 20),
    applied("flushInterval", "10000", "Longest time between two flushes of the write cache; at least 100")
        .millis(at!(config.flush_interval)).at_least(100),
    ours("journalSyncP99LimitMSec", "A bookie whose journal writes are slower than this at p99 is read-only for a while; 0 for no limit")
        .millis(at!(config.slow_journal.p99_max)),
    ours("journalSyncP99WindowSec", "Time over which journal writes are judged; 3 to 3600")
        .seconds(at!(config.slow_journal.window)).taken_as(3, 3600),
    nothing("journalAdaptiveGroupWrites", "true", "Group journal writes", GROUPS),
    nothing("journalMaxGroupWaitMSec", "2", "Wait for a group of adds", GROUPS).unit("ms"),
    nothing("journalBufferedWritesThreshold", "524288", "Bytes that end a group of adds", GROUPS).unit("bytes"),
    nothing("journalBufferedEntriesThreshold", "0", "Entries that end a group of adds", GROUPS),
    nothing("journalFlushWhenQueueEmpty", "false", "Write when nothing else waits", GROUPS),
    nothing("journalQueueSize", "10000", "Entries that may wait for the journal", POOL),
    nothing("journalMaxMemorySizeMb", "", "Memory of entries that wait for the journal", POOL).unit("MB"),
    nothing("journalAlignmentSize", "512", "Alignment of journal writes", LAYOUT).unit("bytes"),
    nothing("journalFormatVersionToWrite", "6", "Format of journal files", LAYOUT),
    nothing("journalPreAllocSizeMB", "16", "Space taken ahead in a journal file", LAYOUT).unit("MB"),
    nothing("journalReuseFiles", "false", "Use journal files again", "they always are"),
    nothing("journalWriteBufferSizeKB", "64", "Buffer of journal writes", LAYOUT).unit("KB"),
    nothing("journalRemoveFromPageCache", "true", "Keep the journal out of the page cache", LAYOUT),
    nothing("journalPageCacheFlushIntervalMSec", "1000", "Time between two syncs when journalSyncData is false",
        "without sync the kernel writes the journal out in its own time").unit("ms"),
    nothing("journalMaxBackups", "5", "Old journal files to keep",
        "a journal file is used again when everything in it is in the ledger directories; nothing reads it after that"),
    nothing("journalChannelProvider", "", "Java class that opens journal files", LAYOUT),
    nothing("numJournalCallbackThreads", "1", "Threads that answer adds", "one thread writes the answers of a group, each socket once"),
    nothing("skipReplayJournalInvalidRecord", "false", "Go on behind a damaged journal record",
        "acknowledged entries may be behind it, so the start stops and says what to do: see --accept-journal-damage").asks(super::is_true),
];
