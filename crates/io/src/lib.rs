//! Disk, clock and random sources: the traits that every core is written against, and the real ones.
//!
//! Everything a core learns about the outside arrives through [`Disk`], [`Clock`] and [`Random`], so that the
//! simulator can own all three. This is the only crate with `unsafe` (aligned shared buffers,
//! [`chunk`]; control messages of sockets, [`net`]; what is in memory of a file, `resident`).
//!
//! # Invariants
//! 1. A write is durable only after [`DiskFile::sync`] (or [`DiskFile::write_durable_at`]) returned `Ok` for it.
//! 2. A name (create, rename, remove) is durable only after [`Disk::sync_dir`] returned `Ok` for its directory.
//! 3. After the first failed write or sync on a file it is not written or synced again ([`CheckedDisk`] asserts it).

mod ahead;
pub mod canary;
mod checked;
pub mod chunk;
pub mod conformance;
pub mod direct;
mod disk;
mod durable_dir;
mod layer;
mod log_limit;
pub mod net;
mod real;
mod resident;
mod source;
mod uncached;

pub use ahead::open_ahead;
pub use checked::{CheckedDisk, Violation};
pub use disk::{
    Disk, DiskFile, DiskLock, Entry, OpenMode, Overwrites, Shortage, Space, ZERO_FILL_STEP_BYTES, ZeroFill,
    has_no_descriptor, is_shortage, is_unreadable, zero_fill,
};
pub use durable_dir::{create_durable_dir, why_full_stays_full};
pub use layer::{DiskLayer, FileLayer};
pub use log_limit::LogLimit;
pub use real::{RealDisk, restrict};
pub use source::{ManualClock, SeededRandom, SystemClock, SystemRandom};
pub use uncached::open_uncached;

/// The unit of direct I/O and of every aligned structure on disk, in bytes.
///
/// 4096 covers the logical block size of every device in use; a 512-byte device accepts it too.
pub const BLOCK_SIZE_BYTES: usize = 4096;

/// Time. Monotonic for intervals, wall for what is shown or published.
pub trait Clock: Send + Sync {
    /// Nanoseconds since an arbitrary origin; never goes back.
    fn monotonic_ns(&self) -> u64;
    /// Milliseconds since the Unix epoch; may jump.
    fn wall_ms(&self) -> i64;
}

/// Random bits. Only [`SystemRandom`] has those of the kernel, which keys need.
pub trait Random: Send + Sync {
    /// 64 fresh bits.
    fn next_u64(&self) -> u64;
}
