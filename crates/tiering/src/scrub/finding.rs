//! Findings of a scrub, and the events by which it tells of them.

use bindery_types::{EntryId, LedgerId};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Entries that the catalogue refers to are not there, or it contradicts itself.
    Damage,
    /// The store did not let it be read.
    Unchecked,
    /// Of no use, and no harm: tierers remove it, or a person may.
    Leftover,
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Bytes are not those that were written.
    Damaged,
    /// The object is not there.
    Missing,
    /// An object of somebody else, or no object.
    Foreign,
    /// Object and rows, or rows among themselves, say different things.
    Contradiction,
    /// Nothing refers to it.
    Unreferenced,
    /// The store did not give it.
    Unreachable,
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Its kind.
    pub fault: Fault,
    /// The key it is about, below the store's prefix; none of a ledger's rows.
    pub key: Option<String>,
    /// The ledger, and the entries of it, if it is about one.
    pub entries: Option<(LedgerId, EntryId, EntryId)>,
    /// In words.
    pub what: String,
}

/// What a scrub says while it works.
#[derive(Debug)]
pub enum Event<'a> {
    /// So many bytes are to be read.
    Total(u64),
    /// So many more bytes were read.
    Bytes(u64),
    /// Something was found.
    Found(&'a Finding),
}
