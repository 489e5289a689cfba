//! The answers to tierers: the last reconciled entry (LRE) of each ledger, its extents, and the copies let go.
//!
//! An object stands for the update that named it, and updates are numbered over all ledgers: so an extent tells which
//! update it belongs to.

use super::{Check, Ghost, Removal, Violation};
use bindery_engine::{Reconciled, Refusal, Tiered};
use bindery_types::LedgerId;
use bindery_types::tier::TierExtent;
use std::collections::BTreeMap;

/// An update that was sent.
#[derive(Debug, Clone)]
struct Update {
    first: i64,
    last: i64,
    /// Answered OK: from then on the bookie has this update or a later one.
    is_acked: bool,
}

/// One ledger, as tierers know it.
#[derive(Debug, Clone)]
pub(super) struct TierGhost {
    /// The highest register that was answered or seen since the ledger began.
    lre: i64,
    /// By their numbers.
    updates: BTreeMap<u64, Update>,
    /// The entry up to which the bookie was told to let copies go: they may be gone.
    may_be_gone: i64,
    /// How far that is known to outlive a power cut.
    are_gone: i64,
    /// How far it goes now, in this life of the process.
    trimmed: i64,
}

impl Default for TierGhost {
    fn default() -> TierGhost {
        TierGhost { lre: -1, updates: BTreeMap::new(), may_be_gone: -1, are_gone: -1, trimmed: -1 }
    }
}

/// The state known when an update is sent.
#[derive(Debug, Clone, Copy)]
pub struct SentUpdate {
    pub(crate) ledger: LedgerId,
    /// Of the update; 0 for a query.
    number: u64,
    first: i64,
    last: i64,
    life: u32,
    /// The register, by then.
    lre: i64,
    /// Something of the ledger was acknowledged by then.
    is_known: bool,
    /// "Unknown" was a good answer by then.
    may_be_limbo: bool,
}

impl TierGhost {
    /// Whether the bookie may name the object of this update for an entry.
    fn may_be_at(&self, entry: i64, number: u64) -> bool {
        let holds = |update: &&Update| (update.first..=update.last).contains(&entry);
        let acked = self.updates.iter().rev().find(|(_, update)| update.is_acked && holds(update));
        let is_overtaken = acked.is_some_and(|(acked, _)| number < *acked);
        !is_overtaken && self.updates.get(&number).as_ref().is_some_and(holds)
    }
}

/// The number of the update that named an object.
pub fn number_of(extent: &TierExtent) -> u64 {
    extent.object.id.reserved_ms()
}

impl Ghost {
    /// The highest register that is known.
    pub fn lre(&self, ledger: LedgerId) -> i64 {
        self.ledgers.get(&ledger).map_or(-1, |state| state.tier.lre)
    }

    /// Copies up to this entry may be gone.
    pub(super) fn may_be_gone(&self, ledger: LedgerId, entry: i64) -> bool {
        self.ledgers.get(&ledger).is_some_and(|state| entry <= state.tier.may_be_gone)
    }

    /// Copies up to this entry were let go, and reads end in object storage.
    pub fn trimmed(&self, ledger: LedgerId) -> i64 {
        self.ledgers.get(&ledger).map_or(-1, |state| state.tier.trimmed)
    }

    /// An update with this number, or a query (0), is about to be sent.
    pub fn on_reconcile(&mut self, ledger: LedgerId, number: u64, first: i64, last: i64) -> SentUpdate {
        let may_be_limbo = self.may_be_limbo(ledger);
        let state = self.ledger(ledger);
        if number > 0 {
            state.tier.updates.insert(number, Update { first, last, is_acked: false });
        }
        let (life, lre, is_known) = (state.life, state.tier.lre, state.acked_last.is_some());
        SentUpdate { ledger, number, first, last, life, lre, is_known, may_be_limbo }
    }

    /// The answer: T1 and T2.
    pub fn on_reconciled(&mut self, sent: &SentUpdate, answer: &Reconciled) -> Check {
        self.compared += 1;
        let SentUpdate { ledger, number, first, last, life, lre: before, is_known, may_be_limbo } = *sent;
        if answer.ledger != ledger {
            return Err(format!("the result for {ledger} names {}", answer.ledger));
        }
        let state = self.ledger(ledger);
        // It may have been placed before the removal was.
        if state.life != life || state.removal != Removal::No {
            return Ok(());
        }
        let register = answer.lre.map_or(-1, |lre| lre.get());
        let highest = state.tier.updates.values().map(|update| update.last).max().unwrap_or(-1);
        let is_possible = (before..=highest.max(before)).contains(&register);
        match answer.result {
            Ok(()) if !is_possible || register < last => Err(format!(
                "T1: {ledger} reconciled up to {last} is answered with {register}; it was {before}, sent {highest}"
            )),
            Ok(()) => {
                state.tier.lre = state.tier.lre.max(register);
                if let Some(update) = state.tier.updates.get_mut(&number) {
                    update.is_acked = true;
                }
                Ok(())
            }
            Err(Refusal::BadRequest) if first > before + 1 && is_possible && register + 1 < first => {
                state.tier.updates.remove(&number);
                Ok(())
            }
            Err(Refusal::NoLedger) if !is_known => Ok(()),
            Err(Refusal::TooManyRequests) if is_possible => Ok(()),
            Err(Refusal::Io) => Ok(()),
            Err(Refusal::Unknown) if may_be_limbo => Ok(()),
            refused => Err(format!(
                "T2: {ledger}, entries {first} to {last} behind {before}, is answered {refused:?} and {register}"
            )),
        }
    }

    /// The bookie took a trim. T9: it is not beyond what was answered, or may have been.
    pub fn on_trimmed(&mut self, ledger: LedgerId, below: i64) {
        let state = self.ledger(ledger);
        state.tier.may_be_gone = state.tier.may_be_gone.max(below);
        state.tier.trimmed = state.tier.trimmed.max(below);
    }

    /// Checks the bookie's account of a ledger: T1, T9. `extents` are all of it, when they could be read.
    pub fn check_tier(
        &mut self,
        ledger: LedgerId,
        tiered: Option<Tiered>,
        extents: Option<&[TierExtent]>,
    ) -> Check {
        self.compared += 1;
        if self.removal(ledger) != Removal::No {
            return Ok(());
        }
        let state = self.ledger(ledger);
        let tier = &mut state.tier;
        let lre = tiered.map_or(-1, |tiered| tiered.lre.get());
        let trimmed = tiered.and_then(|tiered| tiered.trimmed_below).map_or(-1, |below| below.get());
        let highest = tier.updates.values().map(|update| update.last).max().unwrap_or(-1);
        if lre < tier.lre || lre > highest.max(tier.lre) {
            return Err(format!(
                "T1: the last reconciled entry of {ledger} is {lre}; it was {}, sent {highest}",
                tier.lre
            ));
        }
        if trimmed > lre || trimmed < tier.trimmed || trimmed < tier.are_gone || trimmed > tier.may_be_gone {
            return Err(format!(
                "T9: {ledger} is trimmed to {trimmed} of {lre}; it was {}, for good {}, asked for {}",
                tier.trimmed, tier.are_gone, tier.may_be_gone
            ));
        }
        tier.lre = lre;
        if tiered.is_some_and(|tiered| tiered.is_trim_committed) {
            tier.are_gone = trimmed;
        }
        let Some(extents) = extents else { return Ok(()) };
        let mut next = 0;
        for extent in extents {
            let (first, last, number) = (extent.first.get(), extent.last.get(), number_of(extent));
            if first != next {
                return Err(format!("T9: {ledger} is reconciled to {lre}, and no extent has entry {next}"));
            }
            if let Some(entry) = (first..=last).find(|entry| !tier.may_be_at(*entry, number)) {
                return Err(format!("T9: {ledger}:{entry} is said to be at the object of update {number}"));
            }
            next = last + 1;
        }
        if next != lre + 1 {
            return Err(format!("T9: {ledger} is reconciled to {lre}, and its extents end before {next}"));
        }
        Ok(())
    }

    /// A read ended in object storage, at this extent.
    pub fn check_tiered_read(&mut self, ledger: LedgerId, entry: i64, extent: &TierExtent) -> Check {
        self.compared += 1;
        if self.removal(ledger) != Removal::No {
            return Ok(());
        }
        let tier = &self.ledger(ledger).tier;
        let number = number_of(extent);
        if !(extent.first.get()..=extent.last.get()).contains(&entry) || !tier.may_be_at(entry, number) {
            return Err(format!("T9: {ledger}:{entry} reads from the object of update {number}"));
        }
        Ok(())
    }

    /// A start: copies that were let go may be back, as far as no power cut could take them away.
    pub fn settle_trims(&mut self) {
        for state in self.ledgers.values_mut() {
            state.tier.trimmed = state.tier.are_gone;
        }
    }

    /// The trim that the bookie shows after a start holds from now on.
    pub fn adopt_trim(&mut self, ledger: LedgerId, tiered: Option<Tiered>) {
        if self.removal(ledger) == Removal::No {
            let trimmed = tiered.and_then(|tiered| tiered.trimmed_below).map_or(-1, |below| below.get());
            self.ledger(ledger).tier.trimmed = trimmed;
        }
    }

    /// Checks a read that ended in object storage: the bookie must have been told to let the entry go.
    pub(super) fn check_gone(&self, ledger: LedgerId, entry: i64) -> Result<(), Violation> {
        if self.may_be_gone(ledger, entry) {
            return Ok(());
        }
        Err(format!("T9: {ledger}:{entry} reads from object storage, and was not let go"))
    }
}

impl TierGhost {
    /// The power went with the journal running without sync: the register may go back to what it was.
    pub(super) fn forget_unsynced(self) -> TierGhost {
        let updates =
            self.updates.into_iter().map(|(number, update)| (number, Update { is_acked: false, ..update }));
        TierGhost { lre: -1, updates: updates.collect(), are_gone: -1, trimmed: -1, ..self }
    }
}
