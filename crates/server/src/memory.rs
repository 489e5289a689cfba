//! Byte pools: one limit, split into named parts, with a check that the parts fit (architecture, section 8).
//!
//! `--memory-limit` bounds the bytes that peers can make the bookie hold: bytes read from sockets (inbound), journal
//! chunks that are also the write cache (write), answers (outbox) and loaded entries (outbound), and what it keeps of
//! the index of flushed entries (index, cache). The libraries are not in it yet; the start-up table says so.

use crate::limits::Limits;
use bindery_flow::{BudgetGauge, ByteBudget};
use std::fmt;

const MIB: u64 = 1024 * 1024;
/// With less than this the pools cannot hold two of the largest frames each.
pub const MEMORY_LIMIT_MIN: u64 = 128 * MIB;
/// Default upper bound, whatever the machine has.
pub const MEMORY_LIMIT_DEFAULT_MAX: u64 = 1024 * MIB;

/// How a memory limit is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The whole limit.
    pub limit: u64,
    /// Journal chunks, which are the write cache.
    pub write: u64,
    /// Socket read buffers.
    pub inbound: u64,
    /// Frames larger than a read buffer.
    pub inbound_large: u64,
    /// Answers without entry bytes that peers have not taken.
    pub outbox: u64,
    /// Loaded entries that peers have not taken.
    pub outbound: u64,
    /// Loaded entries of fencing and recovery reads.
    pub outbound_priority: u64,
    /// Extents and ledger states.
    pub index: u64,
    /// Index blocks and what is read ahead.
    pub cache: u64,
}

/// A memory limit that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryPlanError {
    /// Too small.
    #[error(
        "memory limit of {} MiB is too small: give --memory-limit at least {} MiB (two of the largest frames per pool)",
        .limit / MIB, .least / MIB
    )]
    TooSmall {
        /// What was asked for.
        limit: u64,
        /// The least that works with these limits.
        least: u64,
    },
}

impl MemoryPlan {
    /// Splits `limit` bytes: nearly half for writes, the rest for the sockets and the index.
    ///
    /// # Errors
    /// When a pool would not hold two of the largest frames.
    pub fn new(limit: u64, limits: &Limits) -> Result<MemoryPlan, MemoryPlanError> {
        let frame = limits.frame.size_bytes() as u64;
        // The smallest share is a sixteenth.
        let least = MEMORY_LIMIT_MIN.max(2 * frame * 16);
        if limit < least {
            return Err(MemoryPlanError::TooSmall { limit, least });
        }
        let share = limit / 32;
        let plan = MemoryPlan {
            limit,
            write: 14 * share,
            inbound: 3 * share,
            inbound_large: 3 * share,
            outbox: 2 * share,
            outbound: 3 * share,
            outbound_priority: 2 * share,
            index: 3 * share,
            cache: 2 * share,
        };
        assert!(plan.sum() <= limit, "the pools fit the limit");
        Ok(plan)
    }

    /// What all pools may hold together.
    pub fn sum(&self) -> u64 {
        self.parts().iter().map(|(_, bytes, _)| bytes).sum()
    }

    fn parts(&self) -> [(&'static str, u64, &'static str); 8] {
        [
            ("write", self.write, "journal chunks = write cache; full: adds wait, then too-many-requests"),
            ("inbound", self.inbound, "socket read buffers; full: connections wait to be read"),
            ("inbound-large", self.inbound_large, "frames above a read buffer; full: such a frame waits"),
            ("outbox", self.outbox, "answers not taken by peers; full: those peers are not read"),
            ("outbound", self.outbound, "loaded entries not taken by peers; full: reads wait"),
            ("outbound-priority", self.outbound_priority, "the same for fencing and recovery reads"),
            ("index", self.index, "extents and ledger states; full: extents stay on disk"),
            ("cache", self.cache, "index blocks and read-ahead; full: the coldest go"),
        ]
    }
}

/// The start-up table.
impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, bytes, what) in self.parts() {
            writeln!(f, "  {name:<18} {:>6} MiB  {what}", bytes / MIB)?;
        }
        write!(
            f,
            "  {:<18} {:>6} MiB  of {} MiB; not in it: 4 MiB of redb's for each ledger directory",
            "sum",
            self.sum() / MIB,
            self.limit / MIB
        )
    }
}

/// The pools that the server hands out; the write pool belongs to the engine.
pub struct Pools {
    /// Read buffers.
    pub inbound: ByteBudget,
    /// Large frames.
    pub inbound_large: ByteBudget,
    /// Answers.
    pub outbox: ByteBudget,
    /// Loaded entries.
    pub outbound: ByteBudget,
    /// Loaded entries of the fencing lane.
    pub outbound_priority: ByteBudget,
}

impl Pools {
    /// Empty pools of the planned sizes.
    pub fn new(plan: &MemoryPlan) -> Pools {
        Pools {
            inbound: ByteBudget::new("inbound", plan.inbound),
            inbound_large: ByteBudget::new("inbound-large", plan.inbound_large),
            outbox: ByteBudget::new("outbox", plan.outbox),
            outbound: ByteBudget::new("outbound", plan.outbound),
            outbound_priority: ByteBudget::new("outbound-priority", plan.outbound_priority),
        }
    }

    /// All of them with their names.
    pub fn gauges(&self) -> [(&'static str, BudgetGauge); 5] {
        [&self.inbound, &self.inbound_large, &self.outbox, &self.outbound, &self.outbound_priority]
            .map(|pool| (pool.name(), pool.gauge()))
    }
}

/// The default limit: a quarter of what the machine or its control group allows, at most 1 GiB, at least the minimum.
pub fn default_limit(machine_or_cgroup_bytes: u64) -> u64 {
    (machine_or_cgroup_bytes / 4).clamp(2 * MEMORY_LIMIT_MIN, MEMORY_LIMIT_DEFAULT_MAX)
}

/// What this machine or its control group allows this process, in bytes.
pub fn machine_bytes() -> u64 {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let total = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
    });
    [total, number("/sys/fs/cgroup/memory.max"), number("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(4 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_never_exceed_the_limit_and_hold_two_frames() {
        let limits = Limits::default();
        for limit in [168 * MIB, 512 * MIB, 1024 * MIB, 64 << 30, 168 * MIB + 12_345] {
            let plan = MemoryPlan::new(limit, &limits).unwrap();
            assert!(plan.sum() <= limit);
            for (name, bytes, _) in plan.parts() {
                assert!(bytes >= 2 * limits.frame.size_bytes() as u64, "{name} of {limit}");
            }
        }
        let error = MemoryPlan::new(64 * MIB, &limits).unwrap_err();
        assert!(error.to_string().contains("--memory-limit at least 160 MiB"), "{error}");
    }

    #[test]
    fn the_default_follows_the_machine() {
        assert_eq!(default_limit(2 << 30), 512 * MIB);
        assert_eq!(default_limit(64 << 30), 1024 * MIB);
        assert_eq!(default_limit(100 * MIB), 256 * MIB);
    }
}
