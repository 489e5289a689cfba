//! What all connections of a bookie share.

use crate::connection::{Connection, Registry};
use crate::io_pool::IoPool;
use crate::limits::Limits;
use crate::memory::Pools;
use crate::metrics::Metrics;
use crate::words::WordDesk;
use bindery_engine::Engine;
use bindery_io::{Clock, Disk, Space};
use parking_lot::Mutex;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The parts that requests are served with. Made once at start.
pub struct Shared {
    /// Stores and finds entries.
    pub engine: Arc<Engine>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Bounds.
    pub limits: Limits,
    /// Bytes.
    pub pools: Pools,
    /// Measurements.
    pub metrics: Metrics,
    /// Threads that may block on disks.
    pub io: IoPool,
    /// Open connections.
    pub connections: Registry,
    /// Read buffers waiting for reuse.
    pub buffers: BufferSlab,
    /// Where GET_BOOKIE_INFO looks.
    pub volumes: Volumes,
    /// Adds that wait for metadata.
    pub words: WordDesk,
}

impl Shared {
    /// The connection of this number, unless it is closed.
    pub fn connection(&self, id: u64) -> Option<Arc<Connection>> {
        self.connections.get(id)
    }
}

/// Read buffers of one size, recycled because fresh pages are dear. Holds as many as were ever in use at once, which
/// the inbound pool bounds.
pub struct BufferSlab {
    size: usize,
    free: Mutex<Vec<Vec<u8>>>,
}

impl BufferSlab {
    /// An empty slab of buffers of `size` bytes.
    pub fn new(size: usize) -> BufferSlab {
        BufferSlab { size, free: Mutex::default() }
    }

    /// A buffer with arbitrary content. The caller holds a permit for its bytes.
    pub fn take(&self) -> Vec<u8> {
        let recycled = self.free.lock().pop();
        recycled.unwrap_or_else(|| vec![0; self.size])
    }

    /// Takes a buffer back.
    pub fn put(&self, buffer: Vec<u8>) {
        debug_assert_eq!(buffer.len(), self.size);
        self.free.lock().push(buffer);
    }
}

/// One directory of each file system that holds ledgers.
pub struct Volumes {
    disk: Arc<dyn Disk>,
    dirs: Vec<PathBuf>,
}

impl Volumes {
    /// `dirs` must be on different file systems, so that nothing is counted twice.
    pub fn new(disk: Arc<dyn Disk>, dirs: Vec<PathBuf>) -> Volumes {
        Volumes { disk, dirs }
    }

    /// Size and free bytes over all of them. Blocks.
    pub fn space(&self) -> io::Result<Space> {
        let mut sum = Space { total: 0, free: 0 };
        for dir in &self.dirs {
            let space = self.disk.space(dir)?;
            sum.total = sum.total.saturating_add(space.total);
            sum.free = sum.free.saturating_add(space.free);
        }
        Ok(sum)
    }
}
