//! Byte pools: one limit, split into named parts, with a check that the parts fit (architecture, section 8).
//!
//! `--memory-limit` bounds what this process holds because of what peers do: bytes read from sockets (first requests,
//! inbound), journal chunks that are also the write cache (write), answers (outbox), loaded entries (outbound),
//! requests that wait (control), connections themselves, the part of the index of flushed entries that it keeps (index,
//! cache), and the caches of libraries. The kernel's buffers of sockets are not this process's memory; the start-up
//! table shows them beside the sum.
//!
//! # Invariants
//! 1. The parts never exceed the limit: every part has a least size, the rest of the limit is shared out by weight, and
//!    a limit below the sum of the least sizes is refused.
//! 2. Every pool that a frame or an entry is charged to holds two of the largest, or one where strangers are concerned.
//!
//! # Limits
//! The states of ledgers cannot be paged out, so they may take more than the index part: as much as [`MemoryPlan::ledger_memory`]
//! says, or the operator. With more ledgers than that, the bookie takes no new ones.

use crate::limits::Limits;
use crate::read_class::PerClass;
use crate::sockets::KernelBuffers;
use crate::tls::limits::{CLIENT_AUTH_BYTES, HELD_BYTES_MAX};
use bindery_flow::{BudgetGauge, BudgetWaits, ByteBudget};
use std::fmt;
use std::path::Path;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * 1024;
/// No lower limit is accepted.
pub const MEMORY_LIMIT_MIN: u64 = 128 * MIB;
/// Default upper bound, whatever the machine has.
pub const MEMORY_LIMIT_DEFAULT_MAX: u64 = 1024 * MIB;
/// Fixed cost of a connection: its two tasks, queues and buffers while it is idle, and its room for answers that is
/// in no pool. Measured as the growth of this process by idle connections that had sent a request.
pub const CONNECTION_BYTES: u64 = 6 * KIB;
/// What TLS may hold for a connection, whatever its peer does. Charged for every connection of a bookie that speaks TLS: a pool
/// for it would be held by peers that take nothing.
pub const TLS_CONNECTION_BYTES: u64 = HELD_BYTES_MAX as u64;
/// What TLS may hold besides for a connection whose client has a certificate.
pub const TLS_CLIENT_AUTH_BYTES: u64 = CLIENT_AUTH_BYTES as u64;
/// Connections of the admin port that are served at once.
pub const ADMIN_PLACES: usize = 16;
/// Memory of all of them, a part of the admin part of the limit: buffers for a head and a body, and a task for each. The rest
/// is for larger answers.
const ADMIN_PLACES_BYTES: u64 = ADMIN_PLACES as u64 * 32 * KIB;
/// What the console remembers of the last day, a part of the admin part of the limit, too.
pub const CONSOLE_HISTORY_BYTES: u64 = 512 * KIB;
/// Memory of a parked long poll, here and in the engine.
const LONG_POLL_BYTES: u64 = 512;
/// redb's cache of one ledger directory's state table.
pub const REDB_BYTES: u64 = 4 * MIB;
/// Connections take at most this part of the limit, unless it is set how many there may be.
const CONNECTIONS_SHARE: u64 = 8;
/// The sum of the weights by which what is beyond the least sizes is shared out.
const WEIGHTS: u64 = 34;

/// The part of a limit that repair in the bookie gets where there is room: a 32nd, from 8 to 32 MiB.
pub fn repair_memory(limit: u64) -> u64 {
    (limit / 32).clamp(8 * MIB, 32 * MIB)
}

/// Smaller parts for repair, tried in this order in a limit that the other pools nearly fill.
const REPAIR_BYTES_LESS: [u64; 2] = [4 * MIB, 2 * MIB];

/// The parts of a bookie that the limit must cover besides the pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Surroundings {
    /// Ledger directories; each has a state table with a cache of its own.
    pub ledger_dirs: usize,
    /// Shards of the engine at least.
    pub shards_min: usize,
    /// True when the operator set how many connections there may be: then they are not reduced to fit.
    pub are_connections_set: bool,
    /// For reads from object storage; 0 without.
    pub tier_bytes: u64,
    /// For copies that repair brings ([`repair_memory`]); 0 without.
    pub repair_bytes: u64,
    /// Bytes that a connection may hold for TLS ([`TLS_CONNECTION_BYTES`], [`TLS_CLIENT_AUTH_BYTES`]); 0 without.
    pub tls_connection_bytes: u64,
    /// The same of a connection of the admin port.
    pub admin_tls_connection_bytes: u64,
}

impl Default for Surroundings {
    fn default() -> Surroundings {
        Surroundings {
            ledger_dirs: 1,
            shards_min: 1,
            are_connections_set: false,
            tier_bytes: 0,
            repair_bytes: 0,
            tls_connection_bytes: 0,
            admin_tls_connection_bytes: 0,
        }
    }
}

/// How a memory limit is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The whole limit.
    pub limit: u64,
    /// Journal chunks, which are the write cache.
    pub write: u64,
    /// First requests of connections.
    pub first: u64,
    /// First requests larger than their buffer.
    pub first_large: u64,
    /// Socket read buffers.
    pub inbound: u64,
    /// Socket read buffers of connections that add.
    pub inbound_adds: u64,
    /// Requests that follow adds that wait.
    pub ahead: u64,
    /// Frames larger than a read buffer.
    pub inbound_large: u64,
    /// Answers without entry bytes that peers have not taken.
    pub outbox: u64,
    /// Loaded entries that peers have not taken.
    pub outbound: u64,
    /// Loaded entries of fencing and recovery reads.
    pub outbound_priority: u64,
    /// Requests that wait: descriptors of reads, long polls.
    pub control: u64,
    /// Extents and ledger states.
    pub index: u64,
    /// Index blocks and what is read ahead.
    pub cache: u64,
    /// Fixed cost of `connections_max` connections.
    pub connections: u64,
    /// Connections of the admin port and their answers.
    pub admin: u64,
    /// The part of that which is the connections' own, and the console's.
    pub admin_places: u64,
    /// Caches of libraries.
    pub libraries: u64,
    /// What is read from object storage.
    pub tier: u64,
    /// Copies that repair brings, and the entry logs that it writes.
    pub repair: u64,
    /// Connections that fit.
    pub connections_max: usize,
}

/// A memory limit that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryPlanError {
    /// Too small.
    #[error(
        "memory limit of {} MiB is too small: give --memory-limit at least {}MiB, which holds the least of every pool (two of \
         the largest frames in most; nettyMaxFrameSizeBytes makes them larger)",
        .limit / MIB, .least.div_ceil(MIB)
    )]
    TooSmall {
        /// The requested limit.
        limit: u64,
        /// The least that works with these limits.
        least: u64,
    },
    /// More connections than fit.
    #[error(
        "maxConnections={connections} takes {} MiB of the memory limit of {} MiB ({each} bytes for each connection), \
         which leaves too little for the rest: give --memory-limit at least {}MiB, or maxConnections={fit} or less",
        .connections * .each / MIB, .limit / MIB, .least.div_ceil(MIB)
    )]
    Connections {
        /// Connections requested.
        connections: u64,
        /// Bytes of each.
        each: u64,
        /// The limit.
        limit: u64,
        /// The limit that would do.
        least: u64,
        /// The connections that would fit.
        fit: u64,
    },
}

impl MemoryPlan {
    /// Splits `limit` bytes of a bookie with one ledger directory.
    ///
    /// # Errors
    /// As [`MemoryPlan::of`].
    pub fn new(limit: u64, limits: &Limits) -> Result<MemoryPlan, MemoryPlanError> {
        MemoryPlan::of(limit, limits, Surroundings::default())
    }

    /// Splits `limit` bytes: what is fixed and the least of every pool first, then the rest by weight, nearly half of it
    /// for writes.
    ///
    /// # Errors
    /// When a pool would be too small to work, or the requested connections do not fit.
    pub fn of(limit: u64, limits: &Limits, around: Surroundings) -> Result<MemoryPlan, MemoryPlanError> {
        let frame = limits.frame.size_bytes() as u64;
        let each = CONNECTION_BYTES + around.tls_connection_bytes;
        // Two chunks for each of four uses (filling, frozen, two kept back); a chunk holds the largest entry.
        let write_min = 4 * around.shards_min.max(2) as u64 * (frame + 8 * KIB);
        let admin_tls = ADMIN_PLACES as u64 * around.admin_tls_connection_bytes;
        let split = |rest: u64, connections: u64| {
            let unit = rest / WEIGHTS;
            let outbound = 2 * frame + 3 * unit;
            MemoryPlan {
                limit,
                write: write_min + 16 * unit,
                first: 2 * MIB,
                first_large: frame,
                inbound: 3 * MIB + unit,
                inbound_adds: 2 * MIB + unit + unit / 2,
                ahead: MIB + unit / 2,
                inbound_large: 2 * frame + 2 * unit,
                outbox: 4 * MIB + 2 * unit,
                outbound: limits
                    .outbound_bytes_max
                    .map_or(outbound, |bytes| bytes.clamp(2 * frame, outbound)),
                outbound_priority: 2 * frame + unit,
                control: 6 * MIB + 2 * unit,
                index: 4 * MIB + 3 * unit,
                cache: 2 * MIB + 2 * unit,
                connections,
                admin: 2 * MIB + CONSOLE_HISTORY_BYTES + admin_tls,
                admin_places: ADMIN_PLACES_BYTES + CONSOLE_HISTORY_BYTES + admin_tls,
                libraries: around.ledger_dirs.max(1) as u64 * REDB_BYTES,
                tier: around.tier_bytes,
                repair: around.repair_bytes,
                connections_max: (connections / each) as usize,
            }
        };
        let fixed = split(0, 0).sum();
        let least = MEMORY_LIMIT_MIN.max(fixed * CONNECTIONS_SHARE / (CONNECTIONS_SHARE - 1) + MIB);
        if limit < least {
            return Err(MemoryPlanError::TooSmall { limit, least });
        }
        let wanted = limits.connections_max as u64 * each;
        let connections = match around.are_connections_set {
            true if fixed + wanted > limit => {
                return Err(MemoryPlanError::Connections {
                    connections: limits.connections_max as u64,
                    each,
                    limit,
                    least: fixed + wanted,
                    fit: (limit - fixed) / each,
                });
            }
            true => wanted,
            false => wanted.min(limit / CONNECTIONS_SHARE),
        };
        let plan = split(limit - fixed - connections, connections);
        assert!(plan.sum() <= limit, "the pools fit the limit");
        Ok(plan)
    }

    /// As [`MemoryPlan::of`], with repair: it gets less where the limit has little room, so that it keeps hardly any bookie from starting that
    /// starts without it.
    ///
    /// # Errors
    /// As [`MemoryPlan::of`].
    pub fn with_repair(
        limit: u64,
        limits: &Limits,
        around: Surroundings,
    ) -> Result<MemoryPlan, MemoryPlanError> {
        let with = |repair_bytes| MemoryPlan::of(limit, limits, Surroundings { repair_bytes, ..around });
        REPAIR_BYTES_LESS
            .into_iter()
            .fold(with(repair_memory(limit)), |plan, less| plan.or_else(|_| with(less)))
    }

    /// Bytes that all parts may hold together.
    pub fn sum(&self) -> u64 {
        self.parts().iter().map(|(_, bytes, _)| bytes).sum()
    }

    pub(crate) fn parts(&self) -> [(&'static str, u64, &'static str); 18] {
        [
            ("write", self.write, "journal chunks = write cache; full: adds wait, then too-many-requests"),
            ("first", self.first, "first requests of connections; full: newcomers wait to be read"),
            ("first-large", self.first_large, "first requests above 16 KiB; full: such a one waits"),
            ("inbound", self.inbound, "socket read buffers; full: connections wait to be read"),
            (
                "inbound-adds",
                self.inbound_adds,
                "those of connections that add, also while adds wait for room",
            ),
            ("ahead", self.ahead, "what comes behind adds that wait; full: it is not looked at meanwhile"),
            ("inbound-large", self.inbound_large, "frames above a read buffer; full: such a frame waits"),
            ("outbox", self.outbox, "answers not taken by peers; full: those peers are not read"),
            ("outbound", self.outbound, "loaded entries not taken by peers; full: reads wait"),
            ("outbound-priority", self.outbound_priority, "the same for fencing and recovery reads"),
            (
                "control",
                self.control,
                "reads and long polls that wait; full: those that want more are not read",
            ),
            (
                "index",
                self.index,
                "extents, ledger states, runs of logs being written; full: extents stay on disk",
            ),
            ("cache", self.cache, "index blocks and read-ahead; full: the coldest go"),
            (
                "connections",
                self.connections,
                "their fixed cost; full: the oldest silent one goes, or none is accepted",
            ),
            ("admin", self.admin, "the admin port; full: its peers are refused"),
            ("libraries", self.libraries, "redb's caches, 4 MiB for each ledger directory"),
            ("tier", self.tier, "entries from object storage; full: those that want more wait"),
            ("repair", self.repair, "copies that come in, and logs written for them; full: copies wait"),
        ]
    }

    /// Bytes that the states of ledgers may take unless the operator says otherwise: a quarter of the limit, and at least the `index` part.
    /// Bytes above that part are not in the limit; before that extents make room.
    pub fn ledger_memory(&self) -> u64 {
        (self.limit / 4).max(self.index)
    }

    /// Long polls that a quarter of the control part holds; the rest is the control pool, of reads that wait.
    pub fn long_polls_max(&self) -> usize {
        (self.control / 4 / LONG_POLL_BYTES) as usize
    }

    /// The line of the start-up table about what is not in the limit.
    pub fn kernel_line(&self, buffers: KernelBuffers) -> String {
        let side = |bytes: usize, auto: &str| match bytes {
            0 => format!("as set by {auto}"),
            bytes => format!("{} KiB", bytes as u64 / KIB),
        };
        format!(
            "the kernel's, not in the sum: each connection at most {} for answers and {} for requests; {} connections",
            side(buffers.send, "net.ipv4.tcp_wmem"),
            side(buffers.receive, "net.ipv4.tcp_rmem"),
            self.connections_max
        )
    }
}

/// The start-up table.
impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without object storage or repair there is nothing to be said of it.
        let is_there = |name: &str, bytes: u64| bytes > 0 || !matches!(name, "tier" | "repair");
        for (name, bytes, what) in self.parts().into_iter().filter(|(name, bytes, _)| is_there(name, *bytes))
        {
            writeln!(f, "  {name:<18} {:>6} MiB  {what}", bytes / MIB)?;
        }
        write!(f, "  {:<18} {:>6} MiB  of {} MiB", "sum", self.sum() / MIB, self.limit / MIB)
    }
}

/// The pools that the server hands out; the write pool belongs to the engine.
pub struct Pools {
    /// First requests of connections.
    pub first: ByteBudget,
    /// Large first requests.
    pub first_large: ByteBudget,
    /// Read buffers.
    pub inbound: ByteBudget,
    /// Read buffers of connections that add.
    pub inbound_adds: ByteBudget,
    /// Requests that follow adds that wait.
    pub ahead: ByteBudget,
    /// Large frames.
    pub inbound_large: ByteBudget,
    /// Answers.
    pub outbox: ByteBudget,
    /// Loaded entries.
    pub outbound: ByteBudget,
    /// Loaded entries of the priority class.
    pub outbound_priority: ByteBudget,
    /// Requests that wait.
    pub control: ByteBudget,
    /// Answers of the admin port.
    pub admin: ByteBudget,
    /// The whole limit, of which these are parts.
    pub limit_bytes: u64,
}

impl Pools {
    /// Empty pools of the planned sizes.
    pub fn new(plan: &MemoryPlan) -> Pools {
        Pools {
            limit_bytes: plan.limit,
            first: ByteBudget::new("first", plan.first),
            first_large: ByteBudget::new("first-large", plan.first_large),
            inbound: ByteBudget::new("inbound", plan.inbound),
            inbound_adds: ByteBudget::new("inbound-adds", plan.inbound_adds),
            ahead: ByteBudget::new("ahead", plan.ahead),
            inbound_large: ByteBudget::new("inbound-large", plan.inbound_large),
            outbox: ByteBudget::new("outbox", plan.outbox),
            outbound: ByteBudget::new("outbound", plan.outbound),
            outbound_priority: ByteBudget::new("outbound-priority", plan.outbound_priority),
            control: ByteBudget::new("control", plan.control / 4 * 3),
            admin: ByteBudget::new("admin", plan.admin - plan.admin_places),
        }
    }

    /// The bytes that all loads from disk together may hold.
    pub fn loads(&self) -> PerClass<u64> {
        PerClass { plain: self.outbound.capacity(), priority: self.outbound_priority.capacity() }
    }

    fn all(&self) -> [&ByteBudget; 11] {
        [
            &self.first,
            &self.first_large,
            &self.inbound,
            &self.inbound_adds,
            &self.ahead,
            &self.inbound_large,
            &self.outbox,
            &self.outbound,
            &self.outbound_priority,
            &self.control,
            &self.admin,
        ]
    }

    /// All of them with their names.
    pub fn gauges(&self) -> [(&'static str, BudgetGauge); 11] {
        self.all().map(|pool| (pool.name(), pool.gauge()))
    }

    /// The waits for each of them.
    pub fn waits(&self) -> [(&'static str, BudgetWaits); 11] {
        self.all().map(|pool| (pool.name(), pool.waits()))
    }
}

/// The default limit: a quarter of what the machine or its control group allows, but at least twice [`MEMORY_LIMIT_MIN`] and at most
/// [`MEMORY_LIMIT_DEFAULT_MAX`].
pub fn default_limit(machine_or_cgroup_bytes: u64) -> u64 {
    (machine_or_cgroup_bytes / 4).clamp(2 * MEMORY_LIMIT_MIN, MEMORY_LIMIT_DEFAULT_MAX)
}

/// The memory in bytes that this process may have: that of the machine, or the lowest limit of its control groups, such as a container's
/// or `MemoryMax=` of a systemd service.
pub fn machine_bytes() -> u64 {
    let total = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
    });
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    // The groups at the root as well, where the process does not know its own.
    let limit = group_limit(Path::new("/sys/fs/cgroup"), &format!("{groups}\n0::/\n0:memory:/\n"));
    total.into_iter().chain(limit).min().unwrap_or(4 << 30)
}

/// The lowest memory limit of the groups that `groups` (`/proc/self/cgroup`) names below `root`, and of those above them. Both versions
/// are read; in a container its own group may be the root, whatever the name says.
fn group_limit(root: &Path, groups: &str) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        // hierarchy:controllers:path, without controllers in version 2
        let mut fields = line.splitn(3, ':').skip(1);
        let (base, file) = match fields.next().unwrap_or_default() {
            "" => (root.to_owned(), "memory.max"),
            controllers if controllers.split(',').any(|one| one == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        let group = base.join(fields.next().unwrap_or_default().trim_start_matches('/'));
        let above = group.ancestors().take_while(|dir| dir.starts_with(&base));
        // "max" is no limit, and is no number.
        let limit = |dir: &Path| std::fs::read_to_string(dir.join(file)).ok()?.trim().parse::<u64>().ok();
        above.filter_map(limit).collect()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "it makes files as the kernel shows them")]
    fn the_lowest_limit_of_the_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let limit = |path: &str, text: &str| {
            let file = root.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        assert_eq!(group_limit(root.path(), "0::/system.slice/bookie.service\n"), None);
        limit("system.slice/memory.max", "8589934592\n");
        limit("system.slice/bookie.service/memory.max", "max\n");
        assert_eq!(group_limit(root.path(), "0::/system.slice/bookie.service\n"), Some(8 << 30));
        limit("system.slice/bookie.service/memory.max", "1073741824\n");
        assert_eq!(group_limit(root.path(), "0::/system.slice/bookie.service\n"), Some(1 << 30));
        assert_eq!(
            group_limit(root.path(), "0::/system.slice\n"),
            Some(8 << 30),
            "not those of its neighbours"
        );
        // The container's own group is the root, and is named as the host sees it.
        limit("memory.max", "536870912\n");
        assert_eq!(group_limit(root.path(), "0::/docker/0123\n"), Some(512 << 20));
        limit("memory/user/memory.limit_in_bytes", "268435456\n");
        assert_eq!(group_limit(root.path(), "4:cpu,memory:/user\n3:pids:/user\n"), Some(256 << 20));
        assert_eq!(group_limit(root.path(), "0::/../..\n"), Some(512 << 20));
    }

    #[test]
    fn the_parts_never_exceed_the_limit_and_hold_what_they_must() {
        let limits = Limits::default();
        let frame = limits.frame.size_bytes() as u64;
        for limit in [128 * MIB, 168 * MIB, 192 * MIB, 512 * MIB, 1024 * MIB, 64 << 30, 168 * MIB + 12_345] {
            let plan = MemoryPlan::new(limit, &limits).unwrap();
            assert!(plan.sum() <= limit, "invariant 1");
            assert!(limit - plan.sum() < MIB, "nothing is left over: {limit}");
            for pool in [plan.inbound_large, plan.outbound, plan.outbound_priority] {
                assert!(pool >= 2 * frame, "invariant 2");
            }
            assert!(plan.first_large >= frame && plan.inbound >= 4 * limits.read_buffer_bytes as u64);
            assert!(plan.connections_max >= 1000, "{}", plan.connections_max);
            assert!(plan.to_string().contains("connections"));
        }
        for (limit, repair) in [(128 * MIB, 4 * MIB), (512 * MIB, 16 * MIB), (64 << 30, 32 * MIB)] {
            let plan = MemoryPlan::with_repair(limit, &limits, Surroundings::default()).unwrap();
            assert!(plan.sum() <= limit && plan.repair == repair, "{limit}: {}", plan.repair);
        }
        let around = Surroundings { tier_bytes: 64 * MIB, ..Surroundings::default() };
        let (with, without) = (
            MemoryPlan::of(512 * MIB, &limits, around).unwrap(),
            MemoryPlan::new(512 * MIB, &limits).unwrap(),
        );
        assert!(with.sum() <= 512 * MIB && with.tier == 64 * MIB, "invariant 1");
        assert!(with.to_string().contains("tier ") && !without.to_string().contains("tier "));
        let error = MemoryPlan::new(64 * MIB, &limits).unwrap_err();
        assert!(error.to_string().contains("--memory-limit at least 128MiB"), "{error}");
        assert_eq!(MemoryPlan::new(1 << 30, &limits).unwrap().connections_max, 10_000);
    }

    #[test]
    fn larger_frames_and_more_directories_need_a_higher_limit_and_the_error_says_which() {
        let limits = Limits { frame: bindery_wire::FrameLimit::new(32 << 20).unwrap(), ..Limits::default() };
        let Err(MemoryPlanError::TooSmall { least, .. }) = MemoryPlan::new(512 * MIB, &limits) else {
            panic!("15 of the largest frames do not fit")
        };
        assert!(MemoryPlan::new(least, &limits).is_ok());
        assert!(MemoryPlan::new(least - 1, &limits).is_err());
        let around = Surroundings { ledger_dirs: 8, shards_min: 8, ..Surroundings::default() };
        let Err(MemoryPlanError::TooSmall { least, .. }) =
            MemoryPlan::of(128 * MIB, &Limits::default(), around)
        else {
            panic!("eight state tables and eight shards do not fit")
        };
        assert!(MemoryPlan::of(least, &Limits::default(), around).is_ok());
    }

    /// TLS of the admin port is covered like the rest of its connections, and leaves as much for answers.
    #[test]
    fn connections_of_the_admin_port_have_room_for_tls() {
        let limits = Limits::default();
        let plain = MemoryPlan::new(512 * MIB, &limits).unwrap();
        let around =
            Surroundings { admin_tls_connection_bytes: TLS_CONNECTION_BYTES, ..Surroundings::default() };
        let tls = MemoryPlan::of(512 * MIB, &limits, around).unwrap();
        assert_eq!(tls.admin - plain.admin, ADMIN_PLACES as u64 * TLS_CONNECTION_BYTES);
        assert_eq!(tls.admin - tls.admin_places, plain.admin - plain.admin_places);
        assert!(tls.sum() <= 512 * MIB);
    }

    #[test]
    fn connections_are_reduced_to_fit_unless_they_were_asked_for() {
        let limits = Limits { connections_max: 100_000, ..Limits::default() };
        let plan = MemoryPlan::new(512 * MIB, &limits).unwrap();
        assert_eq!(plan.connections_max as u64, 64 * MIB / CONNECTION_BYTES);
        let around = Surroundings { are_connections_set: true, ..Surroundings::default() };
        let error = MemoryPlan::of(512 * MIB, &limits, around).unwrap_err();
        let MemoryPlanError::Connections { least, fit, .. } = error else { panic!("{error}") };
        assert!(error.to_string().contains(&format!("maxConnections={fit} or less")), "{error}");
        assert!(MemoryPlan::of(least, &limits, around).is_ok());
        let fewer = Limits { connections_max: fit as usize, ..limits.clone() };
        let plan = MemoryPlan::of(512 * MIB, &fewer, around).unwrap();
        assert_eq!(plan.connections_max, fewer.connections_max);

        // Over TLS each takes more.
        let tls = Surroundings { tls_connection_bytes: TLS_CONNECTION_BYTES, ..Surroundings::default() };
        let plan = MemoryPlan::of(512 * MIB, &limits, tls).unwrap();
        let each = CONNECTION_BYTES + TLS_CONNECTION_BYTES;
        assert_eq!(plan.connections_max as u64, 64 * MIB / each);
        let error = MemoryPlan::of(512 * MIB, &limits, Surroundings { are_connections_set: true, ..tls })
            .unwrap_err();
        assert!(error.to_string().contains(&format!("({each} bytes for each connection)")), "{error}");
    }

    #[test]
    fn the_kernels_buffers_are_shown_beside_the_sum() {
        let plan = MemoryPlan::new(512 * MIB, &Limits::default()).unwrap();
        let line = plan.kernel_line(KernelBuffers { send: 256 << 10, receive: 0 });
        assert!(line.contains("256 KiB for answers") && line.contains("tcp_rmem"), "{line}");
    }

    #[test]
    fn loaded_entries_can_be_limited_to_less_than_their_share() {
        let outbound = |bytes| {
            let limits = Limits { outbound_bytes_max: bytes, ..Limits::default() };
            MemoryPlan::new(512 * MIB, &limits).unwrap().outbound
        };
        let share = outbound(None);
        assert_eq!([outbound(Some(20 * MIB)), outbound(Some(u64::MAX))], [20 * MIB, share]);
        assert_eq!(outbound(Some(1)), 2 * Limits::default().frame.size_bytes() as u64);
    }

    #[test]
    fn the_default_follows_the_machine() {
        assert_eq!(default_limit(2 << 30), 512 * MIB);
        assert_eq!(default_limit(64 << 30), 1024 * MIB);
        assert_eq!(default_limit(100 * MIB), 256 * MIB);
    }
}
