//! One bookie of one ledger: what it knows, and what it lacks.

use std::time::Duration;

use bindery_types::EntryId;
use bindery_types::tier::TierExtent;

use super::{Ability, RequestId, Target};

/// A bookie's register of a ledger, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Register {
    /// It was not asked, or did not answer.
    Unknown,
    /// Everything up to this.
    At(Option<EntryId>),
    /// The bookie holds nothing of the ledger.
    NoLedger,
}

/// What is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing, or it is in the ready set.
    Idle,
    /// A request.
    InFlight(RequestId),
    /// It failed, and is tried again at this time.
    Waiting(Duration),
}

#[derive(Debug, Clone)]
pub(super) struct Member {
    pub register: Register,
    pub state: State,
    /// Failures since the last answer.
    pub attempts: u32,
    /// It was in a batch that was overdue.
    pub is_suspect: bool,
}

/// The need of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    Nothing,
    /// A request: with the extents that are here, or for its register.
    Request,
    /// Extents from this entry on, which are not here.
    Extents(EntryId),
}

impl Member {
    pub fn new() -> Member {
        Member { register: Register::Unknown, state: State::Idle, attempts: 0, is_suspect: false }
    }

    pub fn need(&self, target: &Target, ability: Ability) -> Need {
        if ability != Ability::Reconciles {
            return Need::Nothing;
        }
        match (self.register, target.goal) {
            (Register::NoLedger, _) => Need::Nothing,
            (Register::Unknown, None) if target.is_asking => Need::Request,
            (Register::Unknown, None) => Need::Nothing,
            (Register::Unknown, Some(_)) => Need::Request,
            (Register::At(register), goal) if register >= goal => Need::Nothing,
            (Register::At(register), _) => {
                let from = after(register);
                match covers(target, from) {
                    true => Need::Request,
                    false => Need::Extents(from),
                }
            }
        }
    }

    /// The extents behind the register that are here, for a request. An empty list asks for the register.
    pub fn extents(&self, target: &Target, most: usize) -> Vec<TierExtent> {
        let from = match self.register {
            Register::At(register) => after(register),
            // Its register comes first: extents from the first entry on would replace those it has, of another catalogue (T2).
            Register::Unknown => return Vec::new(),
            Register::NoLedger => EntryId::FIRST,
        };
        if !covers(target, from) {
            return Vec::new();
        }
        let kept = target.extents.iter().map(|kept| kept.extent);
        kept.filter(|extent| extent.last >= from).take(most).collect()
    }
}

/// Whether the extents that are here continue a register before `from`.
fn covers(target: &Target, from: EntryId) -> bool {
    let (first, last) = (target.extents.front(), target.extents.back());
    first.is_some_and(|kept| kept.extent.first <= from) && last.is_some_and(|kept| kept.extent.last >= from)
}

/// The entry behind a register.
pub(super) fn after(register: Option<EntryId>) -> EntryId {
    register.map_or(EntryId::FIRST, |last| EntryId::new(last.get().saturating_add(1)).expect("above an id"))
}
