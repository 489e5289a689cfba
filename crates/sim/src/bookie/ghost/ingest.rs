//! Copies that are taken past the journal: nothing of them may be seen before the commit is asked for, all of it must stay once
//! it is answered, and one that is refused leaves nothing.

use super::{Check, Fate, Ghost, Limbo, Removal};
use bindery_types::LedgerId;

/// A copy that a repair brings.
#[derive(Debug, Clone)]
pub struct Brought {
    /// Its ledger.
    pub ledger: LedgerId,
    /// Its number.
    pub entry: i64,
    /// The number in its body.
    pub submission: u64,
    /// The LAC (last add confirmed) in it.
    pub lac: i64,
    /// The bytes.
    pub body: Vec<u8>,
    /// It was here before, and its disk is gone.
    pub was_lost: bool,
}

impl Ghost {
    /// Nothing that may be here was ever sent for the entry.
    pub fn lacks(&self, ledger: LedgerId, entry: i64) -> bool {
        let Some(state) = self.ledgers.get(&ledger) else { return true };
        let is_nothing = |fate: Fate| matches!(fate, Fate::Gone | Fate::Refused);
        state.removal == Removal::No
            && state.sent.get(&entry).is_none_or(|all| all.iter().all(|s| is_nothing(s.fate)))
    }

    /// The commit of an ingest is about to be asked for. From now on its entries may be seen.
    pub fn on_ingest_asked(&mut self, brought: &[Brought]) {
        for copy in brought.iter().filter(|copy| !copy.was_lost) {
            self.on_submitted(None, copy.ledger, copy.entry, copy.submission, copy.lac, &copy.body);
        }
    }

    /// It is committed: all of it is durable, also where the journal runs without sync, and stays unless its ledger is removed.
    pub fn on_ingested(&mut self, brought: &[Brought]) -> Check {
        for Brought { ledger, entry, submission, .. } in brought {
            let state = self.ledger(*ledger);
            let all = state.sent.get_mut(entry).into_iter().flatten();
            let Some(sent) = all.into_iter().find(|s| s.submission == *submission) else { continue };
            if sent.fate == Fate::Gone {
                return Err(format!("IB17: {ledger}:{entry} was ingested after its ledger was removed"));
            }
            (sent.fate, sent.is_lost, sent.is_forced) = (Fate::Acked, false, true);
            state.acked_last = state.acked_last.max(Some(*entry));
            state.acked_lac = state.acked_lac.max(sent.lac);
            // The ledger is in the state table, whatever was still on its way.
            state.is_revival_open = false;
        }
        Ok(())
    }

    /// It is refused, and nothing of it may ever be seen.
    pub fn on_ingest_refused(&mut self, brought: &[Brought]) -> Check {
        for Brought { ledger, entry, submission, was_lost, .. } in brought {
            let all = self.ledger(*ledger).sent.get_mut(entry).into_iter().flatten();
            for sent in all.filter(|s| s.submission == *submission && !was_lost) {
                match sent.fate {
                    Fate::Open => sent.fate = Fate::Refused,
                    Fate::Gone | Fate::Refused => {}
                    Fate::Shown | Fate::Acked => {
                        return Err(format!("IB8: {ledger}:{entry} was shown, and its ingest refused"));
                    }
                }
            }
        }
        Ok(())
    }

    /// A read can only find this copy of the entry, or none, and says so.
    pub fn is_alone(&self, copy: &Brought) -> bool {
        let Some(state) = self.ledgers.get(&copy.ledger) else { return false };
        let of_entry = state.sent.get(&copy.entry).into_iter().flatten();
        let mut others = of_entry.filter(|s| s.submission != copy.submission);
        !copy.was_lost
            && state.removal == Removal::No
            && state.limbo == Limbo::No
            && copy.entry > self.trimmed(copy.ledger)
            && others.all(|s| matches!(s.fate, Fate::Gone | Fate::Refused))
    }
}
