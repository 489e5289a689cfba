//! State that all connections of a bookie share.

use super::reads::long_poll::LongPollPlaces;
use super::{Connection, Registry, SliceTurns};
use crate::auth::Auth;
use crate::io_pool::IoPools;
use crate::limits::Limits;
use crate::log_limit::{LogLimit, PeerLog};
use crate::memory::Pools;
use crate::metadata_check::ParkedAdds;
use crate::metrics::Metrics;
use crate::pressure::Pressure;
use crate::tenants::Tenants;
use crate::tier::Tier;
use crate::tls::Tls;
use crate::volumes::Volumes;
use bindery_engine::Engine;
use bindery_io::Clock;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

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
    /// Since when memory for requests is short.
    pub pressure: Arc<Pressure>,
    /// Threads that may block on disks.
    pub io: Arc<IoPools>,
    /// Open connections.
    pub connections: Registry,
    /// Connections with many reads in hand work in turns.
    pub bulk: SliceTurns,
    /// Read buffers waiting for reuse.
    pub buffers: BufferSlab,
    /// Where GET_BOOKIE_INFO looks.
    pub volumes: Volumes,
    /// Adds that wait for metadata.
    pub parked_adds: Arc<ParkedAdds>,
    /// Certificates and authorities for TLS, if that is spoken.
    pub tls: Option<Arc<Tls>>,
    /// Authenticates clients, if they have to log in.
    pub auth: Option<Arc<Auth>>,
    /// Whose requests are, if they are counted and limited by tenant.
    pub tenants: Option<Arc<Tenants>>,
    /// Object storage, if there is any.
    pub tier: Option<Arc<Tier>>,
    /// Places of parked long polls.
    pub long_polls: LongPollPlaces,
    /// Lists of entries that do not fit an answer.
    pub list_log: PeerLog,
    /// For reads that would need it, when there is none.
    pub tier_log: Mutex<LogLimit>,
    /// Malformed frames of strangers, and of clients: strangers must not fill the disk, nor hide clients.
    pub frame_logs: [Mutex<LogLimit>; 2],
}

/// One log line in this time about malformed frames.
const FRAME_LOG_INTERVAL: Duration = Duration::from_secs(1);

impl Shared {
    /// New limits for log lines about malformed frames.
    pub fn frame_logs() -> [Mutex<LogLimit>; 2] {
        [FRAME_LOG_INTERVAL; 2].map(|interval| Mutex::new(LogLimit::new(interval)))
    }

    /// The connection of this number, unless it is closed.
    pub fn connection(&self, id: u64) -> Option<Arc<Connection>> {
        self.connections.get(id)
    }
}

/// Read buffers of one size, recycled because fresh pages are dear. Holds as many as were in use at once of late, which
/// the inbound pool bounds.
pub struct BufferSlab {
    size: usize,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    buffers: Vec<Vec<u8>>,
    /// Fewest of them since the last trim: so many were not needed.
    fewest: usize,
}

impl BufferSlab {
    /// An empty slab of buffers of `size` bytes.
    pub fn new(size: usize) -> BufferSlab {
        BufferSlab { size, free: Mutex::default() }
    }

    /// A buffer with arbitrary content. The caller holds a permit for its bytes.
    pub fn take(&self) -> Vec<u8> {
        let recycled = {
            let mut free = self.free.lock();
            let recycled = free.buffers.pop();
            free.fewest = free.fewest.min(free.buffers.len());
            recycled
        };
        recycled.unwrap_or_else(|| vec![0; self.size])
    }

    /// Takes a buffer back.
    pub fn put(&self, buffer: Vec<u8>) {
        debug_assert_eq!(buffer.len(), self.size);
        self.free.lock().buffers.push(buffer);
    }

    /// Drops the buffers that were not needed since the last call. To be called at intervals.
    pub fn trim(&self) {
        let idle = {
            let mut free = self.free.lock();
            let kept = free.buffers.len() - free.fewest;
            let idle = free.buffers.split_off(kept);
            free.fewest = kept;
            idle
        };
        // Without the lock.
        drop(idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_gives_back_what_was_not_needed_since_the_last_trim() {
        let slab = BufferSlab::new(8);
        let held = || slab.free.lock().buffers.len();
        let burst: Vec<_> = (0..10).map(|_| slab.take()).collect();
        burst.into_iter().for_each(|buffer| slab.put(buffer));
        slab.trim();
        assert_eq!(held(), 10, "all were in use since the last trim");
        let few: Vec<_> = (0..3).map(|_| slab.take()).collect();
        few.into_iter().for_each(|buffer| slab.put(buffer));
        slab.trim();
        assert_eq!(held(), 3);
        slab.trim();
        assert_eq!(held(), 0);
        assert_eq!(slab.take().len(), 8);
    }
}
