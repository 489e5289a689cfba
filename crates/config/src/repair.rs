//! Settings of repair in a bookie.

use bindery_repair::{RepairConfig, Targets};
use bindery_types::BookieId;
use std::time::Duration;

/// Bytes that a worker copies in a second where nobody says otherwise: what Elasticsearch lets a node recover
/// (`indices.recovery.max_bytes_per_sec`, 40 MB), between Cassandra's streams (24 MiB) and HDFS's balancer (100 MiB). Adds of clients that
/// take longer slow it down further.
pub const BYTES_PER_SECOND_DEFAULT: u64 = 40 << 20;
/// The longest interval.
pub(crate) const INTERVAL_MAX: Duration = Duration::from_secs(u32::MAX as u64);
/// Ledgers that are checked at once, however many the file allows: Java's default.
pub(crate) const CHECKED_AT_ONCE_MAX: u32 = 500;

/// Settings of repair in a bookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairRoleSettings {
    /// Whether the bookie repairs; it does by default.
    pub is_on: bool,
    /// Whether it was switched on explicitly.
    pub is_asked: bool,
    /// Why it does not, although nobody switched it off: it could reach no bookie by the settings of this process.
    pub left_out: Option<String>,
    /// The work of auditor and worker, without the bookie's name: [`RepairRoleSettings::config`] fills that in.
    pub work: RepairConfig,
}

impl Default for RepairRoleSettings {
    fn default() -> RepairRoleSettings {
        let nobody = BookieId::new("bookie").expect("a valid id");
        let mut work = RepairConfig::new(nobody.clone(), Targets::Own(nobody));
        work.bytes_per_second = Some(BYTES_PER_SECOND_DEFAULT);
        RepairRoleSettings { is_on: true, is_asked: false, left_out: None, work }
    }
}

impl RepairRoleSettings {
    /// For the worker of this bookie.
    pub fn config(&self, own: BookieId) -> RepairConfig {
        RepairConfig { name: own.clone(), targets: Targets::Own(own), ..self.work.clone() }
    }
}
