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
            /// Removed ledgers that are remembered.
            pub ledgers_removed: u64,
            /// Times a journal's thread was woken.
            pub journal_wakes: u64,
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
    /// Bytes of records in these groups.
    journal_bytes,
    /// Nanoseconds spent in writing and syncing them.
    journal_write_ns,
    /// Longest single write and sync, in nanoseconds.
    journal_write_ns_max,
    /// Times a group waited for a journal file to be freed: the journal was at its cap.
    journal_file_waits,
    /// Nanoseconds of these waits.
    journal_file_wait_ns,
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
    /// Bytes of journal files written: headers and padding included.
    journal_disk_bytes,
    /// Nanoseconds spent in flushes.
    flush_ns,
    /// Times a batch of adds found no room.
    no_room,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }
}
