//! What of the upkeep fails at this tierer, pass after pass, so that another one is to do it.
//!
//! # Invariants
//! 1. A task that failed in [`PASSES_MAX`] passes, without a success in between, makes this tierer leave the upkeep to others. Passes in which
//!    nothing of it was tried say nothing.
//! 2. One success of a task ends its failure, and nothing else does. While another tierer has the upkeep, each task that fails is tried once in each
//!    pass ([`Failures::to_try`]), so this tierer takes part again as soon as it can.
//!
//! # Not here   listings of all ledgers, uploads and reads, whose failures make unable to do anything (`core::trouble`); deletions that are denied,
//! which count at once

use std::collections::{BTreeMap, BTreeSet};

use bindery_types::LedgerId;

use super::event::{Deletion, UpkeepAction, UpkeepEvent};

/// Passes in which a task fails before others are to do it.
const PASSES_MAX: u32 = 3;

/// What can fail by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    Ledgers,
    Prove,
    LookAgain,
    Change,
    Garbage,
    Delete,
    Scan,
}

impl Task {
    fn words(self) -> &'static str {
        match self {
            Task::Ledgers => "read the ledgers of the catalogue",
            Task::Prove => "ask the metadata store who it is",
            Task::LookAgain => "look up ledgers in the metadata store",
            Task::Change => "write to the catalogue",
            Task::Garbage => "read the unreferenced objects of the catalogue",
            Task::Delete => "delete objects",
            Task::Scan => "compare the bucket with the catalogue",
        }
    }

    /// What shows whether it works by now, and changes nothing; `None`: each pass does it, also one that leaves the upkeep to another tierer.
    fn attempt(self) -> Option<UpkeepAction> {
        match self {
            Task::Ledgers => Some(UpkeepAction::Ledgers),
            Task::Prove => Some(UpkeepAction::Prove),
            Task::LookAgain => Some(UpkeepAction::LookAgain(vec![LedgerId::MIN])),
            // A record without changes.
            Task::Change => Some(UpkeepAction::Forget(Vec::new())),
            Task::Delete => Some(UpkeepAction::TryDeletion),
            Task::Garbage | Task::Scan => None,
        }
    }

    /// What an event says of a task, if it says something.
    fn outcome(event: &UpkeepEvent) -> Option<(Task, Result<(), &str>)> {
        fn of<T>(task: Task, outcome: &Result<T, String>) -> Option<(Task, Result<(), &str>)> {
            Some((task, outcome.as_ref().map(drop).map_err(String::as_str)))
        }
        match event {
            UpkeepEvent::Ledgers(outcome) => of(Task::Ledgers, outcome),
            UpkeepEvent::Proven(outcome) => of(Task::Prove, outcome),
            UpkeepEvent::LookedAgain(outcome) => of(Task::LookAgain, outcome),
            UpkeepEvent::Removed(outcome) => of(Task::Change, outcome),
            UpkeepEvent::Forgotten(outcome) => of(Task::Change, outcome),
            UpkeepEvent::Reserved(outcome) => of(Task::Change, outcome),
            UpkeepEvent::Replaced(outcome) => of(Task::Change, outcome),
            UpkeepEvent::Garbage(outcome) => of(Task::Garbage, outcome),
            UpkeepEvent::Scanned(outcome) => of(Task::Scan, outcome),
            UpkeepEvent::DeletionTried(outcome) => of_deletions([outcome]),
            UpkeepEvent::Deleted(outcomes) => of_deletions(outcomes.iter().map(|(_, outcome)| outcome)),
            UpkeepEvent::Listed(_)
            | UpkeepEvent::Marked(_)
            | UpkeepEvent::Missing(_)
            | UpkeepEvent::FootersRead(_)
            | UpkeepEvent::Whereabouts(_)
            | UpkeepEvent::Surveyed(_)
            | UpkeepEvent::Rewritten(..) => None,
        }
    }
}

/// One that was done shows that deletions work; an object that fails beside it fails alone.
fn of_deletions<'a>(outcomes: impl IntoIterator<Item = &'a Deletion>) -> Option<(Task, Result<(), &'a str>)> {
    let mut failed = None;
    for outcome in outcomes {
        match outcome {
            Deletion::Done => return Some((Task::Delete, Ok(()))),
            Deletion::Failed(why) => failed = Some((Task::Delete, Err(why.as_str()))),
            Deletion::Denied(_) => {}
        }
    }
    failed
}

#[derive(Debug, Clone)]
struct Failure {
    /// Passes in which it failed, and the last one of them.
    passes: u32,
    last: u64,
    why: String,
}

/// What fails at the moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Failures(BTreeMap<Task, Failure>);

impl Failures {
    /// Notes what an event of the pass with this number says.
    pub fn note(&mut self, pass: u64, event: &UpkeepEvent) {
        let Some((task, outcome)) = Task::outcome(event) else { return };
        let Err(why) = outcome else { return drop(self.0.remove(&task)) };
        let failure = self.0.entry(task).or_insert(Failure { passes: 0, last: 0, why: String::new() });
        if failure.passes == 0 || failure.last != pass {
            (failure.passes, failure.last) = (failure.passes.saturating_add(1), pass);
        }
        failure.why = why.to_owned();
    }

    /// What shows whether the tasks that fail work by now, beside what each pass does; with `is_denied` that of deletions, too.
    pub fn to_try(&self, is_denied: bool) -> Vec<UpkeepAction> {
        let denied = is_denied.then_some(Task::Delete);
        let tasks: BTreeSet<Task> = self.0.keys().copied().chain(denied).collect();
        tasks.into_iter().filter_map(Task::attempt).collect()
    }

    /// Why others are to do the upkeep, in words.
    pub fn lasting(&self) -> Option<String> {
        let (task, failure) = self.0.iter().find(|(_, failure)| failure.passes >= PASSES_MAX)?;
        Some(format!("it cannot {}: {}", task.words(), failure.why))
    }
}

#[cfg(test)]
mod tests {
    use bindery_tiering::ObjectId;

    use super::*;

    #[test]
    fn what_fails_in_several_passes_lasts_until_it_works_once() {
        let mut failures = Failures::default();
        let failed = UpkeepEvent::Forgotten(Err("503".into()));
        for pass in [1, 1, 1, 2] {
            failures.note(pass, &failed);
        }
        assert_eq!(failures.lasting(), None, "it failed in two passes");
        // What works beside it says nothing of it, nor does a pass in which it was not tried.
        failures.note(3, &UpkeepEvent::Garbage(Ok(Vec::new())));
        failures.note(9, &UpkeepEvent::Removed(Err("504".into())));
        assert_eq!(failures.lasting().as_deref(), Some("it cannot write to the catalogue: 504"));
        assert_eq!(failures.to_try(true), [UpkeepAction::Forget(Vec::new()), UpkeepAction::TryDeletion]);
        failures.note(10, &UpkeepEvent::Forgotten(Ok(0)));
        assert_eq!((failures.lasting(), failures.to_try(false)), (None, Vec::new()));
    }

    #[test]
    fn an_object_that_cannot_be_deleted_beside_others_fails_alone() {
        let mut failures = Failures::default();
        let object = ObjectId::new(7, [1; 10]);
        let failed = || (object, Deletion::Failed("503".into()));
        for pass in 1..=3 {
            failures.note(pass, &UpkeepEvent::Deleted(vec![failed(), (object, Deletion::Done)]));
        }
        assert_eq!(failures.lasting(), None);
        for pass in 4..=6 {
            failures.note(pass, &UpkeepEvent::Deleted(vec![failed()]));
        }
        // A denial is no news of another kind of failure.
        failures.note(7, &UpkeepEvent::DeletionTried(Deletion::Denied("403".into())));
        assert!(failures.lasting().is_some());
        failures.note(8, &UpkeepEvent::DeletionTried(Deletion::Done));
        assert_eq!(failures.lasting(), None);
    }
}
