//! Atomics whose every access is a point where the scheduler may switch.

pub use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
