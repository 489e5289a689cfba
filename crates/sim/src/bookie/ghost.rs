//! Ghost state: what the clients were told, kept by the harness and never by the code under test.
//!
//! Each method is the checker of the invariants it names; a violation is a text, and the run ends with it.

use bindery_engine::Refusal;
use bindery_types::{EntryId, LedgerId};
use std::collections::{BTreeMap, BTreeSet};
use tier::TierGhost;

mod heal;
mod ingest;
mod tier;

pub use ingest::Brought;
pub use tier::{SentUpdate, number_of};

/// A checker's finding.
pub type Violation = String;
/// `Err` is a broken promise.
pub type Check = Result<(), Violation>;

/// The fate of one body that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Not answered, or answered with an error that leaves it open whether it was stored.
    Open,
    /// Not acknowledged, but a read gave it: a body seen once must stay.
    Shown,
    Acked,
    /// Refused before it was stored (fenced, wrong key): must never be seen.
    Refused,
    /// Its ledger was removed after it: must never be seen again (IB17).
    Gone,
}

/// Whether a ledger was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Removal {
    #[default]
    No,
    /// Asked for, not answered: it may or may not be there.
    Asked,
    Done,
}

#[derive(Debug, Clone)]
struct Sent {
    body: Vec<u8>,
    /// Order of submission over all ledgers.
    submission: u64,
    lac: i64,
    fate: Fate,
    /// Acknowledged before a FORCE that was answered OK: durable also when the journal runs without sync (IB24).
    is_forced: bool,
    /// The disk it was on is gone.
    is_lost: bool,
}

impl Sent {
    /// Acknowledged or seen: may not be lost any more.
    fn must_stay(&self) -> bool {
        matches!(self.fate, Fate::Acked | Fate::Shown)
    }
}

/// Whether entries may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Limbo {
    #[default]
    No,
    Yes,
    /// The bookie was told that it is sound, and has not answered yet.
    Leaving,
}

/// Entry, submission, LAC and bytes of what a disk took along.
pub type Lost = (i64, u64, i64, Vec<u8>);

/// One ledger, as its clients know it.
#[derive(Debug, Clone, Default)]
struct LedgerGhost {
    sent: BTreeMap<i64, Vec<Sent>>,
    acked_last: Option<i64>,
    /// Largest LAC in acknowledged entries and explicit LACs, and in everything sent.
    acked_lac: i64,
    sent_lac: i64,
    shown_lac: i64,
    shown_last: i64,
    /// Bodies of explicit LACs that were sent and not refused, with their LAC; the largest LAC among those
    /// acknowledged and those shown.
    explicit_sent: Vec<(i64, Vec<u8>)>,
    explicit_acked: Option<i64>,
    explicit_shown: Option<i64>,
    /// Some request with the right key was answered OK: the key is durable.
    is_key_durable: bool,
    is_fence_answered: bool,
    /// Lowest answer of a fencing read of the last entry; -1 for "no entry".
    fence_last: Option<i64>,
    /// Entries that a fencing read answered "no such entry" for.
    fence_absent: BTreeSet<i64>,
    removal: Removal,
    limbo: Limbo,
    /// Grows with each life that begins.
    life: u32,
    /// A request to revive it, or to start it over, is not yet confirmed as durable.
    is_revival_open: bool,
    tier: TierGhost,
}

/// All ledgers.
#[derive(Debug, Clone, Default)]
pub struct Ghost {
    ledgers: BTreeMap<LedgerId, LedgerGhost>,
    /// Submissions since the last restart, per shard, in the order of submission.
    order: BTreeMap<usize, Vec<(LedgerId, i64, u64)>>,
    next_submission: u64,
    /// Ledgers up to it are in limbo, whatever they are.
    covered: Option<LedgerId>,
    /// Acknowledgements mean durable (false: the journal runs without sync).
    pub is_sync: bool,
    /// The medium was damaged on purpose: entries may turn into errors, never into negatives or other bytes.
    pub is_damaged: bool,
    /// Checks that compared something.
    pub compared: u64,
}

impl Ghost {
    /// Knows nothing yet.
    pub fn new(is_sync: bool) -> Ghost {
        Ghost { is_sync, ..Ghost::default() }
    }

    fn ledger(&mut self, ledger: LedgerId) -> &mut LedgerGhost {
        self.ledgers.entry(ledger).or_insert_with(|| LedgerGhost {
            acked_lac: -1,
            sent_lac: -1,
            shown_lac: -1,
            shown_last: -1,
            ..LedgerGhost::default()
        })
    }

    /// Ledgers somebody talked about.
    pub fn ledgers(&self) -> Vec<LedgerId> {
        self.ledgers.keys().copied().collect()
    }

    /// Entries that were sent to a ledger.
    pub fn entries(&self, ledger: LedgerId) -> Vec<i64> {
        self.ledgers.get(&ledger).map(|l| l.sent.keys().copied().collect()).unwrap_or_default()
    }

    /// Highest entry ever sent, -1 for none.
    pub fn highest_sent(&self, ledger: LedgerId) -> i64 {
        self.ledgers.get(&ledger).and_then(|l| l.sent.keys().next_back().copied()).unwrap_or(-1)
    }

    /// A request with the ledger's key was answered OK, so another key must be refused from now on.
    pub fn is_key_durable(&self, ledger: LedgerId) -> bool {
        self.ledgers.get(&ledger).is_some_and(|l| l.is_key_durable)
    }

    /// An add is about to be submitted; the number goes into its body, which makes every body unique.
    pub fn next_submission(&mut self) -> u64 {
        self.next_submission += 1;
        self.next_submission
    }

    /// The number given out last.
    pub fn last_submission(&self) -> u64 {
        self.next_submission
    }

    /// The engine took the add; `shard` is `None` when it must have refused it.
    pub fn on_submitted(
        &mut self,
        shard: Option<usize>,
        ledger: LedgerId,
        entry: i64,
        submission: u64,
        lac: i64,
        body: &[u8],
    ) {
        let state = self.ledger(ledger);
        state.sent_lac = state.sent_lac.max(lac);
        state.sent.entry(entry).or_default().push(Sent {
            body: body.to_vec(),
            submission,
            lac,
            fate: Fate::Open,
            is_forced: false,
            is_lost: false,
        });
        if let Some(shard) = shard {
            self.order.entry(shard).or_default().push((ledger, entry, submission));
        }
    }

    /// The answer to an add: IB3 (no normal add is acknowledged behind a fence), IB6.
    pub fn on_add_answered(
        &mut self,
        ledger: LedgerId,
        entry: i64,
        submission: u64,
        lac: i64,
        is_recovery: bool,
        result: Result<(), Refusal>,
    ) -> Check {
        let state = self.ledger(ledger);
        if result.is_ok() && !is_recovery {
            if let Some(last) = state.fence_last
                && entry > last
            {
                return Err(format!(
                    "IB3: normal add {ledger}:{entry} acknowledged after a fencing read answered last {last}"
                ));
            }
            if state.fence_absent.contains(&entry) {
                return Err(format!(
                    "IB3: normal add {ledger}:{entry} acknowledged after a fencing read found no such entry"
                ));
            }
        }
        let sent =
            state.sent.get_mut(&entry).and_then(|all| all.iter_mut().find(|s| s.submission == submission));
        let Some(sent) = sent else { return Ok(()) };
        if sent.fate == Fate::Gone {
            return match result {
                Ok(()) => Err(format!("IB17: add {ledger}:{entry} was acknowledged after the removal")),
                Err(_) => Ok(()),
            };
        }
        match result {
            Ok(()) => {
                sent.fate = Fate::Acked;
                state.is_key_durable = true;
                state.acked_last = state.acked_last.max(Some(entry));
                state.acked_lac = state.acked_lac.max(lac);
            }
            Err(Refusal::Fenced | Refusal::WrongKey | Refusal::BadRequest) if sent.fate == Fate::Shown => {
                return Err(format!("IB8: add {ledger}:{entry} was shown, then refused with {result:?}"));
            }
            Err(Refusal::Fenced | Refusal::WrongKey | Refusal::BadRequest) => sent.fate = Fate::Refused,
            Err(Refusal::NoLedger | Refusal::NoEntry | Refusal::Tiered) => {
                return Err(format!("an add of {ledger}:{entry} was answered with {result:?}"));
            }
            Err(Refusal::ReadOnly | Refusal::Io | Refusal::TooManyRequests | Refusal::Unknown) => {}
        }
        Ok(())
    }

    /// A request with a wrong key, once the right one is durable: it is refused and changes nothing (IB6).
    pub fn on_wrong_key_answered(&self, ledger: LedgerId, result: Result<(), Refusal>) -> Check {
        match result {
            Err(Refusal::WrongKey | Refusal::ReadOnly | Refusal::Io | Refusal::TooManyRequests) => Ok(()),
            // Refused as a removed ledger's; it may have come back since.
            Err(Refusal::Fenced | Refusal::NoLedger)
                if self.ledgers.get(&ledger).is_some_and(|l| l.removal != Removal::No || l.life > 0) =>
            {
                Ok(())
            }
            other => Err(format!("IB6: a wrong key on ledger {ledger} was answered {other:?}")),
        }
    }

    /// Checks the result of a read of a numbered entry: IB2, IB7, IB8. A body that it showed must stay, acknowledged or
    /// not.
    pub fn check_read(&mut self, ledger: LedgerId, entry: i64, result: &Result<Vec<u8>, Refusal>) -> Check {
        self.compared += 1;
        if self.is_settled_by_limbo(ledger, result, true)? || self.is_settled_by_removal(ledger, result)? {
            return Ok(());
        }
        let may_be_limbo = self.may_be_limbo(ledger);
        let may_be_gone = self.may_be_gone(ledger, entry);
        if let Err(Refusal::Tiered) = result {
            return self.check_gone(ledger, entry);
        }
        // Never an absence.
        if entry <= self.trimmed(ledger) && matches!(result, Err(Refusal::NoEntry | Refusal::Unknown)) {
            return Err(format!("T9: {ledger}:{entry} was let go, and reads as {result:?}"));
        }
        let mut none = Vec::new();
        let sent = self.ledgers.get_mut(&ledger).and_then(|l| l.sent.get_mut(&entry)).unwrap_or(&mut none);
        let last_acked = sent.iter().filter(|s| s.must_stay()).map(|s| s.submission).max();
        let has_sound = sent.iter().any(|s| s.must_stay() && !s.is_lost);
        match result {
            Err(Refusal::Unknown) if may_be_limbo && has_sound => {
                Err(format!("IB2: {ledger}:{entry} was acknowledged in limbo and reads as unknown"))
            }
            Err(Refusal::Unknown) if may_be_limbo => Ok(()),
            Ok(body) => {
                let Some(found) = sent.iter_mut().find(|s| s.body == *body) else {
                    return Err(format!(
                        "IB8: {ledger}:{entry} reads as {} bytes nobody sent for it",
                        body.len()
                    ));
                };
                if found.fate == Fate::Refused {
                    return Err(format!("IB8: {ledger}:{entry} reads as an add that was refused"));
                }
                if found.fate == Fate::Gone {
                    return Err(format!("IB17: {ledger}:{entry} reads as what was removed"));
                }
                // Copies of what is in object storage go one by one, whatever their age.
                if last_acked.is_some_and(|acked| found.submission < acked) && !may_be_gone {
                    return Err(format!(
                        "IB8: {ledger}:{entry} reads as an older content than one acknowledged or shown"
                    ));
                }
                if found.fate == Fate::Open {
                    found.fate = Fate::Shown;
                }
                Ok(())
            }
            Err(Refusal::NoEntry | Refusal::NoLedger) if last_acked.is_some() => Err(format!(
                "IB2 IB7: entry {ledger}:{entry}, acknowledged or shown before, reads as {result:?}"
            )),
            Err(Refusal::Io | Refusal::Unknown) if self.is_damaged => Ok(()),
            Err(Refusal::NoEntry | Refusal::NoLedger) => Ok(()),
            Err(other) => Err(format!("read of {ledger}:{entry} failed with {other:?} on a sound disk")),
        }
    }

    /// Checks a read of the last entry: IB9. Returns the entry it showed.
    pub fn check_last(
        &mut self,
        ledger: LedgerId,
        result: &Result<Vec<u8>, Refusal>,
    ) -> Result<Option<i64>, Violation> {
        if self.is_settled_by_limbo(ledger, result, false)? || self.is_settled_by_removal(ledger, result)? {
            return Ok(None);
        }
        let shown = match result {
            Ok(body) => {
                let entry = body.get(8..16).and_then(|b| b.try_into().ok()).map(i64::from_be_bytes);
                Some(entry.ok_or("IB8: the last entry has no id")?)
            }
            Err(Refusal::NoEntry | Refusal::NoLedger) => None,
            Err(Refusal::Io | Refusal::Unknown) if self.is_damaged => return Ok(None),
            // It is at or below the trim, so that nothing here is above that.
            Err(Refusal::Tiered) => {
                let (trimmed, last) = (self.trimmed(ledger), self.ledger(ledger).acked_last);
                return match last.is_none_or(|last| last <= trimmed) {
                    true => Ok(None),
                    false => {
                        Err(format!("IB9: last entry of {ledger}, {last:?}, hides behind the trim {trimmed}"))
                    }
                };
            }
            Err(other) => return Err(format!("read of the last entry of {ledger} failed with {other:?}")),
        };
        let state = self.ledger(ledger);
        if shown < state.acked_last || shown.unwrap_or(-1) < state.shown_last {
            return Err(format!(
                "IB9: last entry of {ledger} shown as {shown:?}, acknowledged {:?}, shown before {}",
                state.acked_last, state.shown_last
            ));
        }
        state.shown_last = shown.unwrap_or(-1);
        if let Some(entry) = shown {
            self.check_read(ledger, entry, result)?;
        }
        Ok(shown)
    }

    /// Checks a LAC look-up: IB10.
    pub fn check_lac(&mut self, ledger: LedgerId, result: Result<Option<EntryId>, Refusal>) -> Check {
        self.compared += 1;
        if self.is_settled_by_limbo(ledger, &result, false)? || self.is_settled_by_removal(ledger, &result)? {
            return Ok(());
        }
        let state = self.ledger(ledger);
        let shown = match result {
            Ok(lac) => EntryId::to_wire(lac),
            Err(Refusal::NoLedger) => -1,
            Err(other) => return Err(format!("LAC of {ledger} failed with {other:?}")),
        };
        if shown < state.acked_lac || shown < state.shown_lac || shown > state.sent_lac {
            return Err(format!(
                "IB10: LAC of {ledger} shown as {shown}, acknowledged {}, shown before {}, sent {}",
                state.acked_lac, state.shown_lac, state.sent_lac
            ));
        }
        state.shown_lac = shown;
        Ok(())
    }

    /// Entries of a ledger that are acknowledged and not lost with a disk, with their order of submission.
    pub fn acked(&self, ledger: LedgerId) -> Vec<(i64, u64)> {
        let sent = self.ledgers.get(&ledger).into_iter().flat_map(|l| &l.sent);
        let all = sent.flat_map(|(entry, all)| all.iter().map(|s| (*entry, s)));
        all.filter(|(_, s)| s.fate == Fate::Acked && !s.is_lost)
            .map(|(entry, s)| (entry, s.submission))
            .collect()
    }

    /// A FORCE was answered OK: `covered` was acknowledged before it was sent (IB24).
    pub fn on_forced(&mut self, ledger: LedgerId, covered: &[(i64, u64)]) {
        let state = self.ledger(ledger);
        for (entry, submission) in covered {
            let all = state.sent.get_mut(entry).into_iter().flatten();
            all.filter(|s| s.submission == *submission).for_each(|s| s.is_forced = true);
        }
    }

    /// Checks the durable image of an entry that a FORCE covers: it must be there, or a later content (IB24).
    pub fn check_forced(
        &mut self,
        ledger: LedgerId,
        entry: i64,
        submission: u64,
        result: &Result<Vec<u8>, Refusal>,
    ) -> Check {
        self.compared += 1;
        let all = self.ledgers.get(&ledger).and_then(|l| l.sent.get(&entry));
        let body = result.as_ref().ok();
        if self.removal(ledger) != Removal::No
            || all.into_iter().flatten().any(|s| s.submission == submission && s.fate == Fate::Gone)
        {
            return Ok(());
        }
        let found = all.into_iter().flatten().find(|s| Some(&s.body) == body);
        let may_be_gone = self.may_be_gone(ledger, entry);
        let is_gone = may_be_gone && (found.is_some() || *result == Err(Refusal::Tiered));
        if is_gone || found.is_some_and(|s| s.submission >= submission) {
            return Ok(());
        }
        let what = result.as_ref().map(Vec::len);
        Err(format!("IB24: {ledger}:{entry} was forced, the durable image gives {what:?}"))
    }

    /// An explicit LAC was submitted with the right key.
    pub fn on_lac_submitted(&mut self, ledger: LedgerId, lac: i64, body: &[u8]) {
        let state = self.ledger(ledger);
        state.sent_lac = state.sent_lac.max(lac);
        state.explicit_sent.push((lac, body.to_vec()));
    }

    /// The answer to an explicit LAC with the right key.
    pub fn on_lac_answered(
        &mut self,
        ledger: LedgerId,
        lac: i64,
        body: &[u8],
        result: Result<(), Refusal>,
    ) -> Check {
        let state = self.ledger(ledger);
        match result {
            Ok(()) if state.removal == Removal::Done => {
                return Err(format!("IB17: an explicit LAC of ledger {ledger} was stored after its removal"));
            }
            Err(Refusal::NoLedger) if state.removal != Removal::No => {
                state.explicit_sent.retain(|(_, sent)| sent != body);
            }
            Ok(()) => {
                state.acked_lac = state.acked_lac.max(lac);
                state.explicit_acked = state.explicit_acked.max(Some(lac));
                state.is_key_durable = true;
            }
            // Stored, perhaps.
            Err(Refusal::Io) => {}
            Err(Refusal::ReadOnly | Refusal::TooManyRequests) => {
                state.explicit_sent.retain(|(_, sent)| sent != body)
            }
            Err(other) => {
                return Err(format!("IB6: an explicit LAC of ledger {ledger} was refused with {other:?}"));
            }
        }
        Ok(())
    }

    /// Checks a look-up of the explicit LAC: IB10, and it is a body that was sent.
    pub fn check_explicit_lac(
        &mut self,
        ledger: LedgerId,
        result: Result<Option<Vec<u8>>, Refusal>,
    ) -> Check {
        self.compared += 1;
        if self.is_settled_by_limbo(ledger, &result, false)? || self.is_settled_by_removal(ledger, &result)? {
            return Ok(());
        }
        let state = self.ledger(ledger);
        let shown = match result {
            Ok(body) => body,
            Err(Refusal::NoLedger) => None,
            Err(other) => return Err(format!("explicit LAC of {ledger} failed with {other:?}")),
        };
        let lac = match shown {
            None => None,
            Some(body) => match state.explicit_sent.iter().find(|(_, sent)| *sent == body) {
                Some((lac, _)) => Some(*lac),
                None => return Err(format!("IB8: the explicit LAC of {ledger} is one nobody sent")),
            },
        };
        if lac < state.explicit_acked || lac < state.explicit_shown {
            return Err(format!(
                "IB10: explicit LAC of {ledger} shown as {lac:?}, acknowledged {:?}, shown before {:?}",
                state.explicit_acked, state.explicit_shown
            ));
        }
        state.explicit_shown = lac;
        Ok(())
    }

    /// A fence was answered; `which` is the requested entry (-1 the last), `found` the result of the read behind it.
    pub fn on_fence_answered(&mut self, ledger: LedgerId, which: i64, found: Result<i64, Refusal>) {
        let state = self.ledger(ledger);
        state.is_fence_answered = true;
        state.is_key_durable = true;
        match found {
            Ok(last) if which == -1 => {
                state.fence_last = Some(state.fence_last.map_or(last, |l| l.min(last)))
            }
            Err(Refusal::NoEntry) if which == -1 => state.fence_last = Some(-1),
            Err(Refusal::NoEntry) => {
                state.fence_absent.insert(which);
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// Whether a fence of the ledger was answered (IB4, IB5: then it is fenced for good).
    pub fn is_fence_answered(&self, ledger: LedgerId) -> bool {
        self.ledgers.get(&ledger).is_some_and(|l| l.is_fence_answered)
    }

    /// After a restart: IB11, the writes that survived are a prefix of the order of submission in each shard. `read`
    /// looks an entry up. Writes that did not survive must never be seen again (IB25).
    pub fn check_prefix(&mut self, mut read: impl FnMut(LedgerId, i64) -> Result<Vec<u8>, Refusal>) -> Check {
        let mut verdict = Ok(());
        for (shard, order) in std::mem::take(&mut self.order) {
            let mut must_be_seen = false;
            for (ledger, entry, submission) in order.into_iter().rev() {
                let may_be_gone = self.may_be_gone(ledger, entry);
                let Some(all) = self.ledgers.get_mut(&ledger).and_then(|l| l.sent.get_mut(&entry)) else {
                    continue;
                };
                let Some(at) = all.iter().position(|s| s.submission == submission) else { continue };
                if matches!(all[at].fate, Fate::Refused | Fate::Gone) {
                    continue;
                }
                let found = read(ledger, entry);
                if found == Err(Refusal::Tiered) {
                    continue;
                }
                let seen =
                    found.ok().and_then(|body| all.iter().find(|s| s.body == body)).map(|s| s.submission);
                let is_exact = seen == Some(submission);
                let is_covered = seen.is_some_and(|s| s >= submission);
                // Copies of what is in object storage go one by one, whatever their age.
                if !is_covered && may_be_gone {
                    continue;
                }
                if must_be_seen && !is_covered && !self.is_damaged {
                    verdict = Err(format!(
                        "IB11: shard {shard}: {ledger}:{entry} (submission {submission}) is lost, a later one survived"
                    ));
                }
                must_be_seen |= is_exact;
                if !is_covered && all[at].fate == Fate::Open {
                    all.remove(at);
                }
            }
        }
        verdict
    }

    /// The power went with the journal running without sync: acknowledged writes may be gone, except those that a FORCE
    /// covers.
    pub fn forget_unsynced(&mut self) {
        for state in self.ledgers.values_mut() {
            let mut kept = LedgerGhost {
                sent: std::mem::take(&mut state.sent),
                explicit_sent: std::mem::take(&mut state.explicit_sent),
                // A removal may be undone as well.
                removal: if state.removal == Removal::No { Removal::No } else { Removal::Asked },
                is_revival_open: state.life > 0 && state.removal == Removal::No,
                // The return that put it into limbo may be undone, and the removal before it.
                limbo: if state.life > 0 && state.limbo == Limbo::Yes { Limbo::Leaving } else { state.limbo },
                life: state.life,
                acked_lac: -1,
                sent_lac: state.sent_lac,
                shown_lac: -1,
                shown_last: -1,
                tier: std::mem::take(&mut state.tier).forget_unsynced(),
                ..LedgerGhost::default()
            };
            for (entry, sent) in kept.sent.iter_mut().flat_map(|(e, all)| all.iter_mut().map(|s| (*e, s))) {
                if sent.fate == Fate::Gone {
                    sent.fate = Fate::Open;
                    sent.is_forced = false;
                } else if sent.is_forced {
                    kept.acked_last = kept.acked_last.max(Some(entry));
                    kept.acked_lac = kept.acked_lac.max(sent.lac);
                    kept.is_key_durable = true;
                } else if sent.must_stay() {
                    sent.fate = Fate::Open;
                }
            }
            *state = kept;
        }
    }

    fn removal(&self, ledger: LedgerId) -> Removal {
        self.ledgers.get(&ledger).map(|state| state.removal).unwrap_or_default()
    }

    /// The removal of the ledger was answered and it did not come back.
    pub fn is_removed(&self, ledger: LedgerId) -> bool {
        self.removal(ledger) == Removal::Done
    }

    /// True when the removal of the ledger decides what an answer must be: nothing is shown of a removed one (IB17).
    fn is_settled_by_removal<T>(
        &self,
        ledger: LedgerId,
        result: &Result<T, Refusal>,
    ) -> Result<bool, Violation> {
        match (self.removal(ledger), result.as_ref().err()) {
            (Removal::No, _) => Ok(false),
            (Removal::Asked, _) | (Removal::Done, Some(Refusal::NoLedger)) => Ok(true),
            (Removal::Done, Some(other)) => Err(format!("IB17: removed ledger {ledger} answers {other:?}")),
            (Removal::Done, None) => Err(format!("IB17: removed ledger {ledger} answers")),
        }
    }

    // ---- limbo -------------------------------------------------------------------------------------------------

    /// True while "unknown" is a good answer.
    pub fn may_be_limbo(&self, ledger: LedgerId) -> bool {
        let limbo = self.ledgers.get(&ledger).map(|state| state.limbo).unwrap_or_default();
        limbo != Limbo::No || self.covered.is_some_and(|up_to| ledger <= up_to)
    }

    /// IB27: of a ledger in limbo only entries are shown, `is_entry`. True when that decides what the answer must be.
    fn is_settled_by_limbo<T>(
        &self,
        ledger: LedgerId,
        result: &Result<T, Refusal>,
        is_entry: bool,
    ) -> Result<bool, Violation> {
        let limbo = self.ledgers.get(&ledger).map(|state| state.limbo).unwrap_or_default();
        let is_covered = self.covered.is_some_and(|up_to| ledger <= up_to);
        match result {
            _ if limbo == Limbo::No && !is_covered => Ok(false),
            _ if limbo == Limbo::Leaving && !is_covered => {
                Ok(matches!(result, Err(Refusal::Unknown)) && !is_entry)
            }
            Err(Refusal::NoEntry | Refusal::NoLedger) if self.removal(ledger) == Removal::Asked => Ok(true),
            Err(refusal @ (Refusal::NoEntry | Refusal::NoLedger)) => {
                Err(format!("IB27: ledger {ledger} is in limbo and answers {refusal:?}"))
            }
            Ok(_) if !is_entry => {
                Err(format!("IB27: ledger {ledger} is in limbo and answers its last entry or LAC"))
            }
            Err(Refusal::Unknown) if !is_entry || self.removal(ledger) != Removal::No => Ok(true),
            _ => Ok(!is_entry),
        }
    }

    /// The disks are gone, and everything that was on them. Ledgers up to `covered` are in limbo until it ends, those
    /// that metadata has until they are repaired.
    pub fn on_wiped(&mut self, covered: Option<LedgerId>, is_in_metadata: impl Fn(LedgerId) -> bool) {
        self.covered = covered;
        self.order.clear();
        for ledger in self.ledgers() {
            let state = self.ledger(ledger);
            state.is_revival_open = false;
            if !is_in_metadata(ledger) || state.removal != Removal::No {
                self.end_life(ledger);
            } else {
                state.limbo = Limbo::Yes;
                for sent in state.sent.values_mut().flatten() {
                    sent.is_lost = true;
                    sent.is_forced = false;
                }
            }
            let state = self.ledger(ledger);
            (state.acked_last, state.acked_lac, state.shown_lac, state.shown_last) = (None, -1, -1, -1);
            (state.explicit_acked, state.explicit_shown) = (None, None);
            (state.is_key_durable, state.is_fence_answered) = (false, false);
            state.tier = TierGhost::default();
        }
    }

    /// Only marked ledgers are in limbo from now on. Metadata lost those that are about to be removed: they may have no
    /// mark when a crash undoes the removal, and no client is promised the entries that went with the disks.
    pub fn end_cover(&mut self) {
        self.covered = None;
        let is_unmarked = |l: &&mut LedgerGhost| l.limbo == Limbo::Yes && l.removal == Removal::Asked;
        for state in self.ledgers.values_mut().filter(is_unmarked) {
            state.limbo = Limbo::Leaving;
            let lost = state.sent.values_mut().flatten().filter(|s| s.is_lost && s.must_stay());
            lost.for_each(|s| s.fate = Fate::Gone);
        }
    }

    /// Ledgers that lost entries, or may have.
    pub fn limbo_ledgers(&self) -> Vec<LedgerId> {
        let limbo = self.ledgers.iter().filter(|(_, l)| l.limbo == Limbo::Yes && l.removal == Removal::No);
        limbo.map(|(ledger, _)| *ledger).collect()
    }

    /// A recovery brought a removed ledger back: it is in limbo.
    pub fn enter_limbo(&mut self, ledger: LedgerId) {
        self.ledger(ledger).limbo = Limbo::Yes;
    }

    /// It is said to be sound.
    pub fn leave_limbo(&mut self, ledger: LedgerId) {
        self.ledger(ledger).limbo = Limbo::Leaving;
    }

    /// That is durable.
    pub fn left_limbo(&mut self, ledger: LedgerId) {
        let state = self.ledger(ledger);
        if state.limbo == Limbo::Leaving {
            state.limbo = Limbo::No;
        }
    }

    /// It was refused.
    pub fn stays_in_limbo(&mut self, ledger: LedgerId) {
        let state = self.ledger(ledger);
        if state.limbo == Limbo::Leaving {
            state.limbo = Limbo::Yes;
        }
    }

    /// After a restart: IB27, a mark is there as long as it was not said to go.
    pub fn settle_limbo(&mut self, is_marked: impl Fn(LedgerId) -> bool) -> Check {
        let is_sync = self.is_sync;
        for ledger in self.ledgers() {
            let is_covered = self.covered.is_some_and(|up_to| ledger <= up_to);
            let state = self.ledger(ledger);
            match (state.limbo, is_marked(ledger)) {
                (Limbo::Leaving, true) => state.limbo = Limbo::Yes,
                (Limbo::Leaving, false) => state.limbo = Limbo::No,
                (Limbo::Yes, false)
                    if !is_covered && state.removal == Removal::No && !state.is_revival_open =>
                {
                    return Err(format!("IB27: ledger {ledger} left limbo in a restart"));
                }
                // Without sync a power cut may undo that it left.
                (Limbo::No, true) if !is_sync => state.limbo = Limbo::Yes,
                (Limbo::No, true) if !is_covered && state.removal == Removal::No => {
                    return Err(format!("IB2: sound ledger {ledger} is in limbo after a restart"));
                }
                (Limbo::Yes, _) | (Limbo::No, _) => {}
            }
        }
        Ok(())
    }

    /// The entries that a ledger in limbo lost: entry, submission, LAC and bytes of each that must come back. `None`
    /// while an add is under way that may stand for it.
    pub fn lost(&self, ledger: LedgerId) -> Option<Vec<Lost>> {
        let mut lost = Vec::new();
        for (entry, all) in &self.ledgers.get(&ledger)?.sent {
            if all.iter().any(|s| !s.is_lost && s.fate == Fate::Open) {
                return None;
            }
            let newest = all.iter().filter(|s| s.must_stay()).max_by_key(|s| s.submission);
            if let Some(sent) = newest.filter(|s| s.is_lost) {
                lost.push((*entry, sent.submission, sent.lac, sent.body.clone()));
            }
        }
        Some(lost)
    }

    /// A lost entry was copied back, durably.
    pub fn on_repaired(&mut self, ledger: LedgerId, entry: i64, submission: u64) {
        let state = self.ledger(ledger);
        let Some(sent) =
            state.sent.get_mut(&entry).into_iter().flatten().find(|s| s.submission == submission)
        else {
            return;
        };
        if sent.fate == Fate::Gone {
            return;
        }
        (sent.is_lost, sent.fate) = (false, Fate::Acked);
        let lac = sent.lac;
        state.is_key_durable = true;
        state.acked_last = state.acked_last.max(Some(entry));
        state.acked_lac = state.acked_lac.max(lac);
    }

    /// A request to remove the ledger is about to be made; returns the life that it is to end.
    pub fn on_remove_submitted(&mut self, ledger: LedgerId) -> u32 {
        let state = self.ledger(ledger);
        if state.removal == Removal::No {
            state.removal = Removal::Asked;
        }
        state.life
    }

    /// The removal was answered.
    pub fn on_removed(&mut self, ledger: LedgerId, life: u32) {
        if self.ledger(ledger).life == life {
            self.end_life(ledger);
        }
    }

    /// The removal was refused before anything was done.
    pub fn on_remove_refused(&mut self, ledger: LedgerId) {
        let state = self.ledger(ledger);
        if state.removal == Removal::Asked {
            state.removal = Removal::No;
        }
    }

    fn end_life(&mut self, ledger: LedgerId) {
        // Without sync a power cut may bring the former life back.
        let may_return = !self.is_sync;
        let state = self.ledger(ledger);
        state.removal = Removal::Done;
        let tier = std::mem::take(&mut state.tier);
        state.tier = if may_return { tier.forget_unsynced() } else { TierGhost::default() };
        state.limbo = Limbo::No;
        state.is_revival_open = false;
        state
            .sent
            .values_mut()
            .flatten()
            .filter(|s| s.fate != Fate::Refused)
            .for_each(|s| s.fate = Fate::Gone);
    }

    /// The ledger starts over, empty; only bodies that must never be seen again, and a fence, are remembered.
    pub fn begin_life(&mut self, ledger: LedgerId) {
        self.end_life(ledger);
        // Without sync a power cut may bring the former life back.
        let may_return = !self.is_sync;
        let state = self.ledger(ledger);
        *state = LedgerGhost {
            sent: std::mem::take(&mut state.sent),
            explicit_sent: if may_return { std::mem::take(&mut state.explicit_sent) } else { Vec::new() },
            acked_lac: -1,
            sent_lac: if may_return { state.sent_lac } else { -1 },
            shown_lac: -1,
            shown_last: -1,
            is_fence_answered: state.is_fence_answered,
            is_key_durable: state.is_fence_answered,
            fence_last: state.is_fence_answered.then_some(-1),
            tier: std::mem::take(&mut state.tier),
            life: state.life + 1,
            is_revival_open: true,
            ..LedgerGhost::default()
        };
    }

    /// As [`Ghost::begin_life`], of a ledger that the bookie forgot: neither key nor fence is left of it.
    pub fn begin_life_unfenced(&mut self, ledger: LedgerId) {
        self.begin_life(ledger);
        let state = self.ledger(ledger);
        (state.is_fence_answered, state.is_key_durable, state.fence_last) = (false, false, None);
    }

    /// The return of a ledger was answered OK.
    pub fn on_revived(&mut self, ledger: LedgerId) {
        self.ledger(ledger).is_revival_open = false;
    }

    /// After a restart: the bookie's state settles, for good, whether removals that were not answered took effect.
    pub fn settle_removals(&mut self, is_known: impl Fn(LedgerId) -> bool) -> Check {
        for ledger in self.ledgers() {
            let state = self.ledger(ledger);
            match (state.removal, is_known(ledger)) {
                (Removal::Asked, true) => state.removal = Removal::No,
                (Removal::Asked, false) => self.end_life(ledger),
                (Removal::Done, true) => {
                    return Err(format!("IB17: removed ledger {ledger} exists again after a restart"));
                }
                (Removal::No, false) if state.is_revival_open => {
                    if state.acked_last.is_some() {
                        return Err(format!("IB2: ledger {ledger} came back, took entries, and is gone"));
                    }
                    self.end_life(ledger);
                }
                (Removal::No, _) | (Removal::Done, false) => state.is_revival_open = false,
            }
        }
        Ok(())
    }
}
