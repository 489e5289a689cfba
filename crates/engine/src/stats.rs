//! Counters of an engine; read without locks, written once for each group or flush.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        #[derive(Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),+ }

        /// Totals since the start.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct EngineStats {
            $($(#[$doc])* pub $name: u64,)+
            /// Chunks of the write pool in use.
            pub write_pool_chunks_in_use: u64,
            /// Chunks of the write pool.
            pub write_pool_chunks: u64,
            /// Bytes of one chunk.
            pub write_pool_chunk_bytes: u64,
            /// Ledgers known.
            pub ledgers: u64,
            /// Live entry logs.
            pub entry_logs: u64,
            /// Bytes of their files.
            pub entry_log_bytes: u64,
            /// Groups whose answers are not handed out yet.
            pub groups_undelivered: u64,
            /// Removed ledgers that are remembered.
            pub ledgers_removed: u64,
            /// Times a journal's thread was woken.
            pub journal_wakes: u64,
            /// The sum of [`JournalStats::record_bytes`] over all journals.
            ///
            /// [`JournalStats::record_bytes`]: crate::JournalStats::record_bytes
            pub journal_bytes: u64,
            /// The sum of [`JournalStats::written_bytes`].
            ///
            /// [`JournalStats::written_bytes`]: crate::JournalStats::written_bytes
            pub journal_disk_bytes: u64,
            /// The sum of [`JournalStats::file_waits`].
            ///
            /// [`JournalStats::file_waits`]: crate::JournalStats::file_waits
            pub journal_file_waits: u64,
            /// The sum of [`JournalStats::file_wait_ns`].
            ///
            /// [`JournalStats::file_wait_ns`]: crate::JournalStats::file_wait_ns
            pub journal_file_wait_ns: u64,
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> EngineStats {
                EngineStats { $($name: self.$name.load(Relaxed),)+ ..EngineStats::default() }
            }
        }
    };
}

counters! {
    /// Groups written to the journal.
    journal_groups,
    /// Adds in these groups.
    journal_entries,
    /// Nanoseconds spent in writing and syncing them.
    journal_write_ns,
    /// Longest single write and sync, in nanoseconds.
    journal_write_ns_max,
    /// Flushes committed.
    flushes,
    /// Entries written to entry logs.
    flushed_entries,
    /// Bytes written to entry logs.
    flushed_bytes,
    /// Bytes of entry logs written by compaction.
    compacted_bytes,
    /// Bytes of entry logs written by merging.
    merged_bytes,
    /// Entries of copies that were ingested past the journals.
    ingested_entries,
    /// Bytes of entry logs written for them.
    ingested_bytes,
    /// Nanoseconds spent in flushes.
    flush_ns,
    /// Nanoseconds between two writes of a flush that rewrites took, because they were behind; also of flushes that failed.
    merge_in_flush_ns,
    /// Times a batch of adds found no room.
    no_room,
}

/// What is in the live entry logs of a ledger directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectoryStats {
    /// Live entry logs.
    pub logs: u64,
    /// Bytes of their files.
    pub log_bytes: u64,
    /// Entries in them; those of removed ledgers, too, until their space is given back.
    pub entries: u64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }
}
