//! Ledgers of which entries may be missing, and ledgers that metadata must speak for before a writer is believed.
//!
//! # Invariants
//! 1. A ledger in limbo gives no negative, no last entry and no LAC; entries that are here are shown (IB27). Limbo is a
//!    mark of the ledger, durable before anybody is told, or covers every ledger up to an id until metadata was gone
//!    through.
//! 2. A normal add of a ledger that is in limbo, that this bookie may have held before its disks were new, that came
//!    back from a removal, or whose fence may be forgotten, is placed only when metadata said that the ledger is open and names this bookie last (IB28).
//!    That answer is kept until the restart, the removal or the next limbo.
//! 3. A removed ledger comes back only after a check of metadata: for its writer as in 2, for a recovery add when the
//!    ledger exists. The latter puts it into limbo, because the copies that came before the removal are gone
//!    (BookKeeper #4668).

use super::Shard;
use crate::api::{Answer, MetadataVerdict, Refusal, Waiter};
use crate::ledger::LedgerState;
use crate::ledger_budget::Beginning;
use bindery_io::canary::Canary;
use bindery_io::chunk::Lane;
use bindery_journal::record::Kind;
use bindery_types::{LedgerId, MasterKey};

impl Shard {
    /// Puts every ledger up to this one into limbo, whatever its mark; `None` ends that.
    pub(crate) fn cover_with_limbo(&mut self, up_to: Option<LedgerId>) {
        self.limbo_up_to = up_to;
    }

    fn is_covered(&self, ledger: LedgerId) -> bool {
        self.limbo_up_to.is_some_and(|up_to| ledger <= up_to)
    }

    /// True when entries of the ledger, whose state is given, may be missing here.
    pub(super) fn is_limbo(&self, ledger: LedgerId, state: &LedgerState) -> bool {
        (self.is_covered(ledger) || state.is_limbo) && !self.config.canaries.has(Canary::M30LimboDenies)
    }

    /// The state of a ledger that may be asked about entries and their absence. `Unknown` if it is in limbo.
    pub(super) fn sound(&self, ledger: LedgerId) -> Result<&LedgerState, Refusal> {
        let state = self.live(ledger)?;
        if self.is_limbo(ledger, state) { Err(Refusal::Unknown) } else { Ok(state) }
    }

    /// The refusal for a ledger that is not here: `Unknown` instead of `NoLedger` if it may have been lost (invariant 1).
    pub(super) fn absence(&self, ledger: LedgerId) -> Refusal {
        let denies = self.config.canaries.has(Canary::M30LimboDenies);
        if self.is_covered(ledger) && !denies { Refusal::Unknown } else { Refusal::NoLedger }
    }

    /// True if a normal add of a ledger that is not removed must wait for a check of metadata (invariant 2).
    pub(super) fn needs_word(&self, ledger: LedgerId, state: Option<&LedgerState>) -> bool {
        let is_checked = self.config.checked_up_to.is_some_and(|up_to| ledger <= up_to);
        let is_marked = match state {
            Some(state) => state.is_limbo || state.life > 0,
            None => self.fences_forgotten.contains(ledger),
        };
        (is_checked || is_marked || self.is_covered(ledger)) && !self.vouched.contains(&ledger)
    }

    /// Takes the verdict of metadata that an add of the ledger waited for. `Ok`: the add is to be offered again.
    pub(crate) fn on_verdict(
        &mut self,
        ledger: LedgerId,
        key: MasterKey,
        is_recovery: bool,
        word: MetadataVerdict,
    ) -> Result<(), Refusal> {
        let state = self.ledgers.get(&ledger);
        let is_removed = state.is_some_and(|state| state.is_removed());
        let is_fenced = state.is_some_and(|state| state.fence.is_some());
        match word {
            MetadataVerdict::Silent => Err(Refusal::Unknown),
            // The ledger is back, so its add needs no verdict any more; it meets the checks again.
            _ if is_recovery && !is_removed => Ok(()),
            MetadataVerdict::Absent => Err(Refusal::Fenced),
            _ if is_recovery => self.revive_into_limbo(ledger, key),
            _ if is_fenced => Err(Refusal::Fenced),
            MetadataVerdict::Ended => Err(Refusal::Fenced),
            // Its writer goes on without this bookie, and would stop if it were told that the ledger is fenced.
            MetadataVerdict::OpenElsewhere => Err(Refusal::Unknown),
            MetadataVerdict::OpenHere if is_removed => match self.revive(ledger, key, Box::new(|_| {})) {
                Answer::Now(_, outcome) => outcome,
                Answer::Later => Ok(()),
            },
            // Otherwise verdicts on ledgers that are refused would be kept without bound.
            MetadataVerdict::OpenHere if !self.may_begin(ledger, Beginning::Ordinary) => {
                Err(Refusal::ReadOnly)
            }
            MetadataVerdict::OpenHere => {
                self.vouched.insert(ledger);
                Ok(())
            }
        }
    }

    fn revive_into_limbo(&mut self, ledger: LedgerId, key: MasterKey) -> Result<(), Refusal> {
        if self.ledgers.get(&ledger).is_some_and(|state| state.fence.is_some() && !state.accepts(&key)) {
            return Err(Refusal::WrongKey);
        }
        if self.is_failed {
            return Err(Refusal::ReadOnly);
        }
        self.place_limbo(ledger, true)
    }

    /// Marks a ledger, known or not, as in limbo, or as sound. The waiter fires when that is durable, at once when it
    /// is so already. A ledger that leaves limbo must have everything it should have, durably.
    pub(crate) fn set_limbo(&mut self, ledger: LedgerId, is_limbo: bool, waiter: Waiter) -> Answer {
        if self.is_failed {
            return Answer::Now(waiter, Err(Refusal::Io));
        }
        // A mark that is being written is written once more: then this waiter waits for the right one.
        match self.ledgers.get(&ledger) {
            None if !is_limbo => return Answer::Now(waiter, Ok(())),
            Some(state) if !is_limbo && state.is_removed() => return Answer::Now(waiter, Ok(())),
            _ => {}
        }
        match self.place_limbo(ledger, is_limbo) {
            Ok(()) => {
                self.waiters.push((self.sequence, waiter));
                Answer::Later
            }
            Err(refusal) => Answer::Now(waiter, Err(refusal)),
        }
    }

    fn place_limbo(&mut self, ledger: LedgerId, is_limbo: bool) -> Result<(), Refusal> {
        let pieces: [&[u8]; 2] = [&ledger.get().to_be_bytes(), &[u8::from(is_limbo)]];
        if self.place(Kind::Limbo, &pieces, Lane::Reserved).is_err() {
            return Err(Refusal::TooManyRequests);
        }
        self.index_limbo(ledger, is_limbo);
        Ok(())
    }

    /// A limbo record was placed.
    pub(super) fn index_limbo(&mut self, ledger: LedgerId, is_limbo: bool) {
        self.vouched.remove(&ledger);
        let state = self.exists(ledger);
        let ends = state.is_limbo && !is_limbo;
        if ends {
            // An older record with the mark, in a directory that was this ledger's before, must not bring it back.
            state.life += 2;
        }
        state.is_limbo = is_limbo;
        self.mark_dirty(ledger);
    }

    /// Appends the ledgers with the mark.
    pub(crate) fn limbo_ledgers(&self, into: &mut Vec<LedgerId>) {
        into.extend(self.ledgers.iter().filter(|(_, state)| state.is_limbo).map(|(ledger, _)| *ledger));
    }
}
