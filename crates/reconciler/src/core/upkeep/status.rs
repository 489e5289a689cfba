//! What the upkeep tells of itself.

use super::ScanCounts;

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpkeepCounts {
    /// Passes that began.
    pub passes: u64,
    /// Ledgers that were removed from the catalogue.
    pub ledgers_removed: u64,
    /// Objects that were deleted from the bucket, or were not there any more; orphans not included.
    pub objects_deleted: u64,
    /// Rows of such objects that were taken out of the catalogue.
    pub objects_forgotten: u64,
    /// Objects that the last pass could not delete.
    pub delete_failures: u64,
    /// Passes that removed no ledger because of a doubt.
    pub doubts: u64,
    /// Objects that took over extents of others.
    pub rewrites: u64,
    /// Objects all of whose live extents were taken over.
    pub objects_rewritten: u64,
    /// Bytes of entries in those extents.
    pub rewritten_bytes: u64,
    /// Extents that became a part of a longer one because they were small.
    pub extents_joined: u64,
    /// Objects that could not be rewritten; it is tried again later.
    pub rewrite_failures: u64,
}

/// How the upkeep stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpkeepStatus {
    /// Counts.
    pub counts: UpkeepCounts,
    /// Of the scan.
    pub scan: ScanCounts,
    /// Objects that the catalogue does not refer to, and that are kept until it is proved that no reader needs them.
    pub garbage_kept: u64,
    /// The reason why one of them is kept.
    pub kept_for: Option<String>,
    /// Objects that can be neither rewritten nor let go because they are damaged, as far as that is remembered.
    pub objects_damaged: u64,
    /// One of them, and in which way.
    pub damaged: Option<String>,
    /// Why one of the objects without a row is kept,
    pub orphan_kept: Option<String>,
    /// and which of them cannot be read.
    pub orphan_unreadable: Option<String>,
    /// Why nothing is deleted at the moment, and what ends that.
    pub deletions_stopped: Option<String>,
    /// Why no ledger is removed from the catalogue at the moment.
    pub doubt: Option<String>,
    /// The last thing that did not work.
    pub last_error: Option<String>,
}
