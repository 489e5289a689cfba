//! Which bookies get a ledger's entries (protocol reference, section 7.1).
//!
//! # Data flow
//! ```text
//! registration --> Candidates <-- health: avoided          resolver --> survey --> locations, weights --> Candidates
//!                      |                                   bookies: free bytes --^
//! create, writer, recovery --(Wanted)--> Placement --> Choice
//! ```
//! A policy is synchronous and sees only candidates and random numbers. `survey` has collected before what it knows of
//! places and disks.
//!
//! # Invariants
//! 1. An ensemble has distinct, writable bookies; a replacement is none of those that stay and none of those that go.
//! 2. Avoided bookies are chosen only when there are not enough others, or when an enforced spread needs them.
//! 3. With a policy that knows racks every write set is on as many of them as asked for, if there is any choice of
//!    bookies for which that holds. Where there is none, the choice is the best there is; enforced, there is none.
//!
//! # Limits     those of `spread`, the search behind invariant 3

mod counted;
mod here;
mod random;
mod spread;
mod survey;
#[cfg(test)]
mod tests;
mod topology;
mod weight;

use std::collections::{BTreeMap, BTreeSet};

use bindery_types::{BookieId, Quorum};

pub(crate) use self::counted::Counted;
pub(crate) use self::here::Here;
pub use self::random::RandomPlacement;
pub use self::survey::{BOOKIE_INFO_INTERVAL_DEFAULT, DiskWeights, WEIGHT_MULTIPLE_MAX_DEFAULT};
pub(crate) use self::survey::{Places, Survey};
pub use self::topology::{RackAware, RegionAware};
pub use crate::error::Unmet;
use crate::error::{BookieAnswers, CreateError, NotEnoughBookies};
pub use crate::location::{InvalidLocation, Location};
use crate::resolver::ResolveError;

/// The writable bookies at one moment, and those that were seen failing lately.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Candidates {
    /// All that take writes.
    pub writable: Vec<BookieId>,
    /// Those to be used only when the others do not suffice.
    pub avoided: BTreeSet<BookieId>,
    /// Those that are registered and take no writes, for whoever wonders where they are.
    pub read_only: BTreeSet<BookieId>,
    /// Where bookies stand, as far as that is known, also those that take no writes.
    pub locations: BTreeMap<BookieId, Location>,
    /// How often each is to be chosen, in proportion. A bookie without a weight counts as the median.
    pub weights: BTreeMap<BookieId, u64>,
    /// Why places are not known, or may be old, if the resolver failed.
    pub places_error: Option<ResolveError>,
}

/// A request to a policy.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Wanted<'a> {
    /// Of the ledger.
    pub quorum: Quorum,
    /// The ensemble as it is; empty for a new one.
    pub ensemble: &'a [BookieId],
    /// Positions of the ensemble that want a bookie, the most urgent first. All of a new one.
    pub positions: &'a [usize],
}

impl<'a> Wanted<'a> {
    /// Asks for bookies for these positions of this ensemble.
    pub fn new(quorum: Quorum, ensemble: &'a [BookieId], positions: &'a [usize]) -> Wanted<'a> {
        Wanted { quorum, ensemble, positions }
    }
}

/// What a policy chose.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Choice {
    /// One bookie for each of the first positions asked for: fewer when there are fewer, or when others would break a
    /// spread that is enforced. Of a new ensemble without enough bookies it names those there are.
    pub bookies: Vec<BookieId>,
    /// The spread that could not be had: the ensemble does without, or, if it is enforced, without some bookies.
    pub unmet: Option<Unmet>,
}

impl Choice {
    /// These bookies, with nothing left to be desired.
    pub fn new(bookies: Vec<BookieId>) -> Choice {
        Choice { bookies, unmet: None }
    }
}

/// Chooses bookies.
pub trait Placement: Send + Sync + 'static {
    /// Distinct writable bookies outside `wanted.ensemble`, for as many of `wanted.positions` as there are.
    fn choose(&self, candidates: &Candidates, wanted: Wanted<'_>) -> Choice;

    /// The first spread that a write set of this whole ensemble lacks. `None` when it lacks none, or the policy has no wishes.
    fn lacking(&self, candidates: &Candidates, quorum: Quorum, ensemble: &[BookieId]) -> Option<Unmet> {
        let _ = (candidates, quorum, ensemble);
        None
    }

    /// Whether it looks at [`Candidates::locations`]; if not, they are not looked up.
    fn wants_locations(&self) -> bool {
        true
    }
}

/// The bookies that may be chosen, once each, apart by whether they are avoided: healthy ones first.
fn spares<'a>(candidates: &'a Candidates, wanted: Wanted<'_>) -> (Vec<&'a BookieId>, Vec<&'a BookieId>) {
    // Through a set: a bookie that changes its registration is listed twice for a moment.
    let usable: BTreeSet<&BookieId> =
        candidates.writable.iter().filter(|bookie| !wanted.ensemble.contains(bookie)).collect();
    usable.into_iter().partition(|bookie| !candidates.avoided.contains(*bookie))
}

/// A whole ensemble, or an error that says what there is.
pub(crate) fn choose_ensemble(
    placement: &dyn Placement,
    candidates: &Candidates,
    quorum: Quorum,
) -> Result<Vec<BookieId>, CreateError> {
    let ensemble_size = quorum.ensemble_size();
    let positions: Vec<usize> = (0..ensemble_size).collect();
    let choice = placement.choose(candidates, Wanted { quorum, ensemble: &[], positions: &positions });
    match choice.unmet {
        _ if choice.bookies.len() == ensemble_size => Ok(choice.bookies),
        Some(unmet) => Err(CreateError::CannotSpread { unmet, places: candidates.places_error.clone() }),
        None => Err(CreateError::NotEnoughBookies(NotEnoughBookies {
            needed: ensemble_size,
            available: choice.bookies.len(),
            read_only: candidates.read_only.len(),
            failed: BookieAnswers::default(),
        })),
    }
}
