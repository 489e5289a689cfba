//! Changes of the ledger's metadata, one at a time: ensemble changes, and the end.
//!
//! # Data flow
//! ```text
//! members failed, slow, held --> Phase (`step`) --> next_step --> the driver --> placed | marked | written | read
//! the end -----------------------^  ^                                                |
//!                                   +------------------------------------------------+--> window, sends; or stop
//! ```
//! Functions that can end the writer say so by their error: the reason, which [`WriterCore`](super::WriterCore) latches.
//!
//! # Invariants
//! 1. A writer that stopped has no change under way, and begins none.
//! 2. Invariants 4 to 10 of the core, in the order in which things are done. `members` keeps those about members,
//!    `known` those about metadata.
//!
//! # Limits     [`CHANGES_IN_A_ROW_MAX`]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_io::canary::{Canaries, Canary};
use bindery_metadata::StoreError;
use bindery_metadata::layout::{LedgerError, StoredLedger};
use bindery_metadata::store::Version;
use bindery_types::{BookieId, EntryId, LedgerId};

use super::adds::Adds;
use super::known::{Found, KnownMetadata};
use super::members::Members;
use super::step::{AfterMark, EnsembleChange, Goal, Phase, Step};
use crate::error::{NotEnoughBookies, WhyStopped};
use crate::metadata_edit::with_replacements;
use crate::transport::BookieError;
use crate::window::{AddWindow, Send};

/// How many ensemble changes may follow one another while no entry gets through.
pub(crate) const CHANGES_IN_A_ROW_MAX: u32 = 64;

/// See the module; of one ledger.
#[cfg_attr(test, derive(Clone, Debug))]
pub(super) struct Changes {
    ledger: LedgerId,
    phase: Phase,
    known: KnownMetadata,
    members: Members,
    changes_in_a_row: u32,
    confirmed_at_change: Option<EntryId>,
    /// See [`may_wait`](Self::may_wait).
    may_wait: bool,
    /// It was logged that metadata has grown.
    is_growth_told: bool,
    canaries: Canaries,
}

impl Changes {
    pub fn new(ledger: LedgerId, known: KnownMetadata) -> Changes {
        Changes {
            ledger,
            phase: Phase::Idle,
            known,
            members: Members::new(ledger),
            changes_in_a_row: 0,
            confirmed_at_change: None,
            may_wait: false,
            is_growth_told: false,
            canaries: Canaries::none(),
        }
    }

    #[cfg(test)]
    pub fn plant(&mut self, canaries: Canaries) {
        self.canaries = canaries;
    }

    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    pub fn known(&self) -> &KnownMetadata {
        &self.known
    }

    pub fn members(&self) -> &Members {
        &self.members
    }

    /// Entries that these bookies lack were let go of: repair is told.
    pub fn on_lost(&mut self, bookies: BTreeSet<BookieId>, adds: &mut Adds) -> Result<(), WhyStopped> {
        self.members.on_lost(bookies, &adds.window);
        self.begin_if_wanted(adds)
    }

    /// See [`Members::take_withdrawn`].
    pub fn take_withdrawn(&mut self) -> Vec<BookieId> {
        self.members.take_withdrawn()
    }

    /// The writer stopped (invariant 1), and lets go of entries that these bookies lack.
    pub fn abandon(&mut self, lost: BTreeSet<BookieId>) {
        self.phase = Phase::Idle;
        self.members.on_stopped(lost);
    }

    /// The mark that a writer makes when it stopped was made.
    pub fn on_parted(&mut self) {
        self.members.on_parted();
    }

    /// The bookie at a position holds up too much.
    pub fn on_slow(&mut self, position: usize, bytes: u64, adds: &mut Adds) -> Result<(), WhyStopped> {
        let window = &adds.window;
        let is_replaced = window.replacing().is_some_and(|replacing| replacing.contains_key(&position));
        // Core invariant 10: with deferred sync the writer waits for it, within the budget, until its requests fail.
        if adds.is_deferred()
            || is_replaced
            || self.members.is_slow(position)
            || self.members.is_held(position)
        {
            return Ok(());
        }
        self.members.on_slow(position, bytes, window);
        self.begin_if_wanted(adds)
    }

    /// An entry was pushed, which brings up failures of complete entries.
    pub fn on_pushed(&mut self, adds: &mut Adds, out: &mut Vec<Send>) -> Result<(), WhyStopped> {
        if self.canaries.has(Canary::M17EnsembleUnpublished)
            && let Phase::Writing(Goal::Ensemble(change)) = self.phase.clone()
            && adds.window.replacing().is_some()
        {
            adds.window.finish_change(change.ensemble, change.holds_rest, &change.rejoins, out);
        }
        self.begin_if_wanted(adds)
    }

    /// Begins what members that failed or are slow ask for, unless something is under way.
    pub fn begin_if_wanted(&mut self, adds: &mut Adds) -> Result<(), WhyStopped> {
        if self.phase != Phase::Idle {
            return Ok(());
        }
        if !adds.window.wants_change() {
            if self.members.has_news() {
                self.deal_with_slow(false, &adds.window);
            } else if self.members.wants_mark() {
                self.tell_repair(adds);
            }
            return Ok(());
        }
        adds.window.begin_change();
        let failed = adds.window.failures();
        if adds.is_deferred() {
            // Core invariant 10.
            return Err(WhyStopped::DeferredSync(failed));
        }
        self.members.on_failed(&adds.window);
        if self.confirmed_at_change != adds.confirmed() {
            self.changes_in_a_row = 0;
            self.confirmed_at_change = adds.confirmed();
        }
        self.changes_in_a_row += 1;
        if self.changes_in_a_row > CHANGES_IN_A_ROW_MAX {
            if !self.is_worth_waiting(&adds.window) {
                return Err(WhyStopped::TooManyChanges { changes: CHANGES_IN_A_ROW_MAX, failed });
            }
            // The replacements fail as the members do: from here on one change for each pause, while the driver has patience.
            self.changes_in_a_row = CHANGES_IN_A_ROW_MAX;
            self.phase = Phase::Waiting;
            return Ok(());
        }
        self.phase = Phase::Placing;
        Ok(())
    }

    /// Whether the members that are to be replaced may come back, and the driver has patience.
    fn is_worth_waiting(&self, window: &AddWindow) -> bool {
        let mut failures = window.replacing().into_iter().flat_map(BTreeMap::values);
        self.may_wait && failures.all(BookieError::may_pass)
    }

    /// Slow members are held if that can be, and replacements looked for.
    fn deal_with_slow(&mut self, is_retry: bool, window: &AddWindow) {
        match self.members.begin_holding(window) {
            true => self.mark(AfterMark::Hold { is_retry }),
            false => self.phase = Phase::Seeking { is_retry },
        }
    }

    /// Bookies that lack something are marked, once metadata is such that repair sees it (core invariant 7): after a crash of
    /// this process a gap between entries that a bookie has would be known nowhere.
    fn tell_repair(&mut self, adds: &Adds) {
        self.members.begin_mark();
        if self.known.is_unresolved() {
            self.phase = Phase::Reading(Goal::Splits);
        } else if self.known.propose_splits(adds.end(), adds.gaps(), self.canaries) {
            self.phase = Phase::Writing(Goal::Splits);
        } else {
            self.mark(AfterMark::Nothing);
        }
    }

    fn mark(&mut self, after: AfterMark) {
        self.members.begin_mark();
        self.phase = Phase::Marking(after);
    }

    /// When to call [`retry`](Self::retry): see [`Members::retry_after`]; not while something is being done.
    pub fn retry_after(&self) -> Option<Duration> {
        self.members.retry_after().filter(|_| self.phase == Phase::Idle)
    }

    /// Looks again for replacements, or whether held bookies can be written again; or tries again to mark the ledger.
    pub fn retry(&mut self, adds: &Adds) {
        if self.retry_after().is_none() {
            return;
        }
        if self.members.begin_search(&adds.window) {
            self.deal_with_slow(true, &adds.window);
        } else if self.members.has_unmarked() {
            self.tell_repair(adds);
        }
    }

    /// Gives up a step that is optional: it is tried again later.
    pub fn put_off(&mut self, adds: &mut Adds) -> Result<(), WhyStopped> {
        assert!(self.phase.is_optional(), "nothing waits for what is put off");
        if !matches!(self.phase, Phase::Seeking { .. }) {
            self.members.put_off_mark();
        }
        self.phase = Phase::Idle;
        self.begin_if_wanted(adds)
    }

    /// Whether a search for replacements of slow and held members keeps a failed one waiting.
    pub fn is_overtaken(&self, window: &AddWindow) -> bool {
        matches!(self.phase, Phase::Seeking { .. }) && window.wants_change()
    }

    /// What is to be done now, if anything.
    pub fn next_step(&self, adds: &Adds) -> Option<Step> {
        let window = &adds.window;
        match &self.phase {
            Phase::Idle => None,
            Phase::Placing => {
                // Confirming waits for the answers: held members are asked only if there is no ack quorum without them.
                let asks = !window.can_hold(|_| false);
                let replacing = window.replacing().into_iter().flat_map(BTreeMap::keys);
                Some(self.place(replacing.copied().collect(), asks, window))
            }
            Phase::Seeking { is_retry } => {
                let wanting = self.members.wanting().map(|(position, _)| position);
                Some(self.place(wanting.collect(), *is_retry, window))
            }
            Phase::Waiting => Some(Step::Wait),
            Phase::Marking(_) => {
                Some(Step::Mark { replicas: self.members.named().iter().cloned().collect() })
            }
            Phase::Writing(_) => {
                let metadata = Box::new(self.known.proposal().clone());
                Some(Step::Write { metadata, expected: self.known.version() })
            }
            Phase::Reading(_) => Some(Step::Read),
        }
    }

    /// Begins to write, and decides the contents: they stay the same until the outcome is known.
    fn write(&mut self, goal: Goal, adds: &Adds) {
        self.known.propose(&goal, adds.end(), adds.gaps(), self.canaries);
        self.phase = Phase::Writing(goal);
    }

    fn place(&self, positions: Vec<usize>, asks: bool, window: &AddWindow) -> Step {
        Step::Place {
            positions,
            ensemble: window.ensemble().to_vec(),
            avoided: self.members.suspects().clone(),
            asked: self.members.held(window).filter(|_| asks).cloned().collect(),
        }
    }

    /// Whether bookies that may come back are tried again after a pause when there is no ack quorum without them, instead of
    /// stopping the writer: from the next [`placed`](Self::placed) on.
    pub fn may_wait(&mut self, may_wait: bool) {
        self.may_wait = may_wait;
    }

    /// Outcome of [`Step::Place`].
    pub fn placed(
        &mut self,
        chosen: &[BookieId],
        read_only: usize,
        alive: &[BookieId],
        adds: &mut Adds,
    ) -> Result<(), WhyStopped> {
        match self.phase {
            Phase::Placing => self.placed_for_failed(chosen, read_only, alive, adds),
            Phase::Seeking { .. } => self.placed_for_held(chosen, alive, adds),
            _ => Ok(()),
        }
    }

    fn placed_for_failed(
        &mut self,
        chosen: &[BookieId],
        read_only: usize,
        alive: &[BookieId],
        adds: &Adds,
    ) -> Result<(), WhyStopped> {
        let window = &adds.window;
        let replacing = window.replacing().expect("a change is under way while placing");
        let is_held = |position: usize| self.members.is_held(position);
        let can_go_on_as_it_is =
            window.keeps_quorum(|position| !replacing.contains_key(&position) && !is_held(position));
        // Core invariant 13: nothing is written then.
        let (chosen, alive) = match can_go_on_as_it_is {
            true if self.known.is_full() => (&[][..], &[][..]),
            true if chosen.is_empty() && self.known.is_grown() => (chosen, &[][..]),
            _ => (chosen, alive),
        };
        let ensemble = with_replacements(window.ensemble(), replacing.keys(), chosen);
        // Fewer replacements than failures: those that were found are used, and the rest is held (core invariant 5).
        let rest: BTreeSet<usize> = replacing.keys().copied().skip(chosen.len()).collect();
        let rejoins = self.members.rejoining(alive, &ensemble);
        let holds_rest = window.keeps_quorum(|position| {
            !rest.contains(&position) && (!is_held(position) || rejoins.contains(&position))
        });
        let change = EnsembleChange { ensemble, holds_rest, rejoins };
        if rest.is_empty() {
            self.write(Goal::Ensemble(change), adds);
        } else if holds_rest {
            for position in rest {
                self.members.hold(position, replacing[&position].clone(), window);
            }
            self.mark(AfterMark::Change(change));
        } else if chosen.is_empty() && self.is_worth_waiting(window) {
            self.phase = Phase::Waiting;
        } else if chosen.is_empty() {
            let mut failed = window.failures();
            failed.0.extend(self.members.held_answers(window).0);
            let error = NotEnoughBookies { needed: replacing.len(), available: 0, read_only, failed };
            return Err(WhyStopped::NotEnoughBookies(error));
        } else {
            // Those that have no replacement are tried once more: without them there is no ack quorum.
            self.write(Goal::Ensemble(change), adds);
        }
        Ok(())
    }

    fn placed_for_held(
        &mut self,
        chosen: &[BookieId],
        alive: &[BookieId],
        adds: &mut Adds,
    ) -> Result<(), WhyStopped> {
        self.phase = Phase::Idle;
        if adds.window.wants_change() || self.members.has_news() {
            // First things first; the search is repeated.
            return self.begin_if_wanted(adds);
        }
        if self.known.is_grown() {
            // Core invariant 13.
            if !self.is_growth_told {
                self.is_growth_told = true;
                tracing::warn!(ledger_id = %self.ledger, "the metadata of this ledger is so large that no bookie is taken back or \
                     replaced any more as long as an ack quorum is left: close the ledger, and write to another one");
            }
            return Ok(());
        }
        let before = adds.ensemble();
        // In the order in which they were requested.
        let wanting: Vec<usize> = self.members.wanting().map(|(position, _)| position).collect();
        let ensemble = with_replacements(before, wanting.iter(), chosen);
        let rejoins = self.members.rejoining(alive, &ensemble);
        let wanting = self.members.wanting().map(|(position, error)| (position, error.clone()));
        let replacing: BTreeMap<usize, BookieError> = wanting
            .filter(|(position, _)| ensemble[*position] != before[*position] || rejoins.contains(position))
            .collect();
        if replacing.is_empty() {
            return Ok(());
        }
        self.members.begin_joining(replacing.keys(), &adds.window);
        let change = EnsembleChange { ensemble, holds_rest: false, rejoins };
        self.mark(AfterMark::Join { replacing, change });
        Ok(())
    }

    /// Outcome of [`Step::Wait`]: the pause is over. Members that failed are sent what they have not acknowledged.
    pub fn waited(&mut self, adds: &mut Adds, out: &mut Vec<Send>) -> Result<(), WhyStopped> {
        if self.phase != Phase::Waiting {
            return Ok(());
        }
        self.phase = Phase::Idle;
        // Nothing was changed.
        self.changes_in_a_row = self.changes_in_a_row.saturating_sub(1);
        let ensemble = adds.ensemble().to_vec();
        self.finish(EnsembleChange { ensemble, holds_rest: false, rejoins: BTreeSet::new() }, adds, out)
    }

    /// Outcome of [`Step::Mark`], when it succeeded.
    pub fn marked(&mut self, adds: &mut Adds, out: &mut Vec<Send>) -> Result<(), WhyStopped> {
        let Phase::Marking(after) = self.phase.clone() else { return Ok(()) };
        self.members.on_marked(true);
        self.go_on(after, adds, out)
    }

    /// Whether the writer can go on without the step under way, which failed (core invariant 9).
    pub fn can_go_on_without(&self, window: &AddWindow) -> bool {
        match &self.phase {
            // One that is held already lacks what it lacks; of a slow one entries would be let go of.
            Phase::Marking(AfterMark::Hold { .. }) => !self.members.has_slow(),
            Phase::Marking(AfterMark::Join { replacing, .. }) => {
                !replacing.keys().any(|&position| self.members.is_slow(position))
            }
            Phase::Marking(AfterMark::Change(_) | AfterMark::End(_) | AfterMark::Nothing) => true,
            Phase::Placing => window.can_hold(|_| false),
            Phase::Idle | Phase::Waiting | Phase::Seeking { .. } | Phase::Writing(_) | Phase::Reading(_) => {
                false
            }
        }
    }

    /// Goes on without it.
    pub fn go_on_without(
        &mut self,
        error: &LedgerError,
        adds: &mut Adds,
        out: &mut Vec<Send>,
    ) -> Result<(), WhyStopped> {
        if let Phase::Marking(after) = self.phase.clone() {
            tracing::warn!(ledger_id = %self.ledger, bookies = ?self.members.named(), %error,
                "entries are missing on these bookies, and the ledger cannot be marked as under-replicated");
            self.members.on_marked(false);
            self.go_on(after, adds, out)
        } else {
            tracing::warn!(ledger_id = %self.ledger, %error, "cannot look for a replacement bookie");
            self.placed_for_failed(&[], 0, &[], adds)
        }
    }

    fn go_on(&mut self, after: AfterMark, adds: &mut Adds, out: &mut Vec<Send>) -> Result<(), WhyStopped> {
        self.phase = Phase::Idle;
        match after {
            AfterMark::Hold { is_retry } => {
                self.members.hold_slow(&mut adds.window);
                if adds.window.wants_change() || self.members.has_news() {
                    return self.begin_if_wanted(adds);
                }
                // A member that was just given up gets a pause before the next request.
                self.phase = Phase::Seeking { is_retry };
            }
            AfterMark::Change(change) if change.rejoins.is_empty() && change.ensemble == adds.ensemble() => {
                return self.finish(change, adds, out);
            }
            AfterMark::Change(change) => self.write(Goal::Ensemble(change), adds),
            // First things first; the search is repeated.
            AfterMark::Join { .. } if adds.window.wants_change() || self.members.has_news() => {
                return self.begin_if_wanted(adds);
            }
            AfterMark::Join { replacing, change } => {
                tracing::info!(ledger_id = %self.ledger, positions = ?replacing.keys(),
                    "writing to a full ensemble again");
                self.members.withdraw(replacing.keys(), &adds.window);
                adds.window.begin_change_of(replacing);
                self.write(Goal::Ensemble(change), adds);
            }
            AfterMark::End(goal) => self.write(goal, adds),
            AfterMark::Nothing => return self.begin_if_wanted(adds),
        }
        Ok(())
    }

    /// Outcome of [`Step::Write`].
    pub fn written(
        &mut self,
        outcome: Result<Version, LedgerError>,
        adds: &mut Adds,
        out: &mut Vec<Send>,
    ) -> Result<(), WhyStopped> {
        let Phase::Writing(goal) = self.phase.clone() else { return Ok(()) };
        match outcome {
            Ok(version) => {
                self.known.written(version);
                return self.reached(goal, adds, out);
            }
            Err(error) if goal == Goal::Close && self.canaries.has(Canary::M20LostCloseFailed) => {
                return Err(why_stopped(error));
            }
            // Core invariant 3.
            Err(LedgerError::Changed(_)) => self.phase = Phase::Reading(goal),
            Err(error) if error.is_transient() => self.phase = Phase::Reading(goal),
            Err(error @ (LedgerError::NotFound(_) | LedgerError::Store(StoreError::Closed))) => {
                return Err(why_stopped(error));
            }
            // Core invariant 9.
            Err(error) if goal == Goal::Splits => {
                tracing::warn!(ledger_id = %self.ledger, bookies = ?self.members.named(), %error,
                    "entries are missing on these bookies, and repair may not notice until the ledger is closed");
                self.known.settle();
                self.mark(AfterMark::Nothing);
            }
            Err(error) => return Err(why_stopped(error)),
        }
        Ok(())
    }

    /// Outcome of [`Step::Read`], when it succeeded.
    pub fn read(
        &mut self,
        stored: StoredLedger,
        adds: &mut Adds,
        out: &mut Vec<Send>,
    ) -> Result<(), WhyStopped> {
        let Phase::Reading(goal) = self.phase.clone() else { return Ok(()) };
        match self.known.reconcile(stored, &goal, adds.end())? {
            Found::Reached => return self.reached(goal, adds, out),
            Found::Again if goal == Goal::Splits => self.tell_repair(adds),
            Found::Again => self.write(goal, adds),
        }
        Ok(())
    }

    fn reached(&mut self, goal: Goal, adds: &mut Adds, out: &mut Vec<Send>) -> Result<(), WhyStopped> {
        self.phase = Phase::Idle;
        match goal {
            Goal::Ensemble(change) => self.finish(change, adds, out),
            Goal::Splits => {
                self.mark(AfterMark::Nothing);
                Ok(())
            }
            Goal::Close | Goal::HandOver => Err(WhyStopped::Closing),
        }
    }

    /// An ensemble change is complete.
    fn finish(
        &mut self,
        change: EnsembleChange,
        adds: &mut Adds,
        out: &mut Vec<Send>,
    ) -> Result<(), WhyStopped> {
        let before = adds.ensemble().to_vec();
        let EnsembleChange { ensemble, holds_rest, rejoins } = change;
        if !self.canaries.has(Canary::M17EnsembleUnpublished) || adds.window.replacing().is_some() {
            adds.window.finish_change(ensemble, holds_rest, &rejoins, out);
        }
        let after = adds.ensemble();
        let is_back = |position: usize| after[position] != before[position] || rejoins.contains(&position);
        self.members.on_changed(is_back, !rejoins.is_empty());
        // Failures that came meanwhile are next; nothing is confirmed in between.
        self.begin_if_wanted(adds)
    }

    /// Begins to write the end: closed, or left to the next writer.
    pub fn begin_end(&mut self, goal: Goal, adds: &mut Adds) {
        assert!(
            self.phase == Phase::Idle || self.phase.is_optional(),
            "one change of metadata at a time (IC11)"
        );
        assert!(!adds.has_unconfirmed(), "entries are drained, and forced, before the end is written");
        let mut withdrawn = adds.give_up_rest();
        if adds.is_deferred() {
            // Forced adds have left the queue, and frames of deferred adds cannot be withdrawn.
            withdrawn.clear();
        }
        // Among those of the gaps.
        adds.take_lost();
        self.members.begin_end(adds.gaps().bookies(), withdrawn);
        match self.members.has_lacking() {
            false => self.write(goal, adds),
            true => self.mark(AfterMark::End(goal)),
        }
    }
}

/// A step failed for good, or for longer than the driver is patient.
pub(super) fn why_stopped(error: LedgerError) -> WhyStopped {
    match error {
        LedgerError::NotFound(_) => WhyStopped::Deleted,
        LedgerError::Store(StoreError::Closed) => WhyStopped::ClientClosed,
        other => WhyStopped::Metadata(other),
    }
}
