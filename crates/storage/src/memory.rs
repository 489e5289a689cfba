//! The memory that the ledger directories of a bookie share.

use crate::entry_log::LOG_WRITE_BYTES;
use crate::{BlockCache, IndexPool};
use std::sync::Arc;

/// Pools of all ledger directories, and the buffer of each log that is written.
#[derive(Clone)]
pub struct StorageMemory {
    /// Extents, ledger states, and runs of logs that are being written.
    pub index: Arc<IndexPool>,
    /// Index blocks and what is read ahead.
    pub cache: Arc<BlockCache>,
    /// Buffer of each entry log that is written, which is also the size of its writes: at least two blocks.
    pub log_write_bytes: usize,
}

impl StorageMemory {
    /// Pools of these sizes, and writes of [`LOG_WRITE_BYTES`].
    pub fn new(index_bytes: u64, cache_bytes: u64) -> StorageMemory {
        StorageMemory {
            index: Arc::new(IndexPool::new(index_bytes)),
            cache: Arc::new(BlockCache::new(cache_bytes)),
            log_write_bytes: LOG_WRITE_BYTES,
        }
    }
}
