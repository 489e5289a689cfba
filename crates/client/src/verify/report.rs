//! What a look at every copy found.

use std::collections::BTreeMap;
use std::fmt;

use bindery_types::{BookieId, EntryId, LedgerId};

use crate::transport::BookieError;

/// How many runs of faults a report names; all are counted.
pub const FINDINGS_MAX: usize = 1000;

/// What is wrong with a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The bookie says that it does not have it.
    Missing,
    /// The bookie returns something other than a writer's entry (wrong ids, wrong digest), or it cannot read it.
    Damaged,
    /// A sound entry with another payload, or another length of the ledger up to it, than most copies have; without a
    /// majority all copies are different.
    Different,
    /// The bookie could not be asked, or could not say.
    Unreachable,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 4] = [Fault::Missing, Fault::Damaged, Fault::Different, Fault::Unreachable];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Missing => "missing",
            Fault::Damaged => "damaged",
            Fault::Different => "different",
            Fault::Unreachable => "unreachable",
        })
    }
}

/// Copies that one bookie should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CopyCounts {
    /// All of them: of each entry that has the bookie in its write set.
    pub checked: u64,
    /// [`Fault::Missing`].
    pub missing: u64,
    /// [`Fault::Damaged`].
    pub damaged: u64,
    /// [`Fault::Different`].
    pub different: u64,
    /// [`Fault::Unreachable`].
    pub unreachable: u64,
}

impl CopyCounts {
    /// Those with this fault.
    pub fn of(&self, fault: Fault) -> u64 {
        match fault {
            Fault::Missing => self.missing,
            Fault::Damaged => self.damaged,
            Fault::Different => self.different,
            Fault::Unreachable => self.unreachable,
        }
    }

    /// Copies as they should be.
    pub fn sound(&self) -> u64 {
        self.checked - Fault::ALL.iter().map(|fault| self.of(*fault)).sum::<u64>()
    }

    pub(super) fn count(&mut self, fault: Fault) {
        *match fault {
            Fault::Missing => &mut self.missing,
            Fault::Damaged => &mut self.damaged,
            Fault::Different => &mut self.different,
            Fault::Unreachable => &mut self.unreachable,
        } += 1;
    }
}

/// Copies of one bookie with one fault, without a sound one between them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Where.
    pub bookie: BookieId,
    /// What.
    pub fault: Fault,
    /// The first entry.
    pub first: EntryId,
    /// The last entry. In a striped ledger the bookie has not all between them.
    pub last: EntryId,
    /// How many.
    pub entries: u64,
    /// What the bookie said about the first, if it failed.
    pub error: Option<BookieError>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { bookie, fault, first, last, entries, error } = self;
        match entries {
            1 => write!(f, "{bookie}: entry {first} {fault}")?,
            _ => write!(f, "{bookie}: {entries} entries from {first} to {last} {fault}")?,
        }
        error.as_ref().map_or(Ok(()), |error| write!(f, " ({error})"))
    }
}

/// What a look at every copy of a ledger's entries found, so far.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The ledger.
    pub ledger: LedgerId,
    /// Whether it is closed. If not, only entries up to the LAC (last add confirmed) are checked.
    pub is_closed: bool,
    /// Its ack quorum.
    pub ack_quorum_size: usize,
    /// The first entry to look at.
    pub first: EntryId,
    /// The last one; `None` when there is none.
    pub last: Option<EntryId>,
    /// Entries looked at.
    pub entries: u64,
    /// Payload bytes of those of which a sound copy was found, each counted once.
    pub payload_bytes: u64,
    /// By bookie.
    pub bookies: BTreeMap<BookieId, CopyCounts>,
    /// Entries with fewer equal sound copies than the ack quorum, even if all copies whose bookies could not be asked
    /// were sound.
    pub below_ack_quorum: u64,
    /// Of these, entries without any sound copy.
    pub lost: u64,
    /// Entries with fewer such copies than the ack quorum, that may be on bookies that could not be asked.
    pub undecided: u64,
    /// The first entry of any of these three.
    pub first_below: Option<EntryId>,
    /// What is wrong, by the first entry; at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// How many findings are not among them.
    pub findings_left_out: u64,
}

impl VerifyReport {
    /// Copies with this fault, on all bookies.
    pub fn copies(&self, fault: Fault) -> u64 {
        self.bookies.values().map(|counts| counts.of(fault)).sum()
    }

    /// Whether every copy is where it should be, as it should be.
    pub fn is_sound(&self) -> bool {
        Fault::ALL.iter().all(|fault| self.copies(*fault) == 0)
    }

    /// Whether a copy is certainly not as it should be; else all that is wrong is that bookies could not be asked.
    pub fn is_damaged(&self) -> bool {
        [Fault::Missing, Fault::Damaged, Fault::Different].iter().any(|fault| self.copies(*fault) > 0)
    }
}
