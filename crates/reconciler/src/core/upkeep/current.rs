//! The object that waits and is under examination: whom to tell of which of its extents ([`super::waiting`], invariant 1).
//!
//! # Limits     ledgers in one request: [`TOLD_MAX`]; extents in one: [`EXTENTS_MAX`]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bindery_tiering::catalogue::StoredObject;
use bindery_types::tier::Reconciliation;
use bindery_types::{BookieId, EntryId, LedgerId};

use super::answers::Answers;
use super::event::{Moved, Whereabouts};
use crate::core::quorum;
use crate::core::updates::Ability;

/// Ledgers in one request, at most: a bookie looks at the objects of those that it let go. There are fewer for one that did not answer.
pub(super) const TOLD_MAX: usize = 16;
/// Extents in one request: as many as one may carry.
const EXTENTS_MAX: usize = 4096;

/// The object under examination.
#[derive(Debug, Clone)]
pub(super) struct Current {
    pub stored: StoredObject,
    /// All extents were done, and are being examined once more (invariant 1), until this time at most.
    pub is_check: bool,
    pub check_until: Duration,
    /// Extents before this one have been examined.
    pub from: u32,
    /// Extents under examination: their places in the footer, and what the catalogue has, as of `at`.
    pub window: Vec<u32>,
    pub at: Duration,
    pub moved: Vec<Moved>,
    /// For each of `moved`, the number of answers and conditions that it lacks before it is done.
    pub lacks: Vec<usize>,
    /// Places in `moved` of which each bookie is still to be told,
    pub todo: BTreeMap<BookieId, VecDeque<usize>>,
    /// and those that are on their way.
    pub sent: BTreeMap<BookieId, Vec<usize>>,
    /// A bookie said yes since the catalogue was asked.
    pub has_gained: bool,
    /// Why it cannot be released, if so.
    pub lacking: Option<String>,
}

impl Current {
    pub fn new(stored: StoredObject, from: u32) -> Current {
        Current {
            stored,
            is_check: false,
            check_until: Duration::ZERO,
            from,
            window: Vec::new(),
            at: Duration::ZERO,
            moved: Vec::new(),
            lacks: Vec::new(),
            todo: BTreeMap::new(),
            sent: BTreeMap::new(),
            has_gained: false,
            lacking: None,
        }
    }

    /// Whom to tell of what (invariant 1). Of an object without a row, the word of the catalogue is no proof that a ledger was
    /// deleted: `proven` has those of which it was proved ([`super::orphans`], invariant 1).
    pub fn plan(
        &mut self,
        found: Whereabouts,
        bookies: &BTreeMap<BookieId, Ability>,
        answers: &mut Answers,
        proven: Option<&BTreeSet<LedgerId>>,
    ) {
        (self.at, self.moved, self.has_gained) = (found.at, found.moved, false);
        (self.lacks, self.todo) = (vec![0; self.moved.len()], BTreeMap::new());
        let mut of_catalogue: BTreeSet<u32> = BTreeSet::new();
        for (at, moved) in self.moved.iter().enumerate() {
            let Moved { ledger, place, .. } = *moved;
            of_catalogue.insert(place);
            // It may have got a row meanwhile: then the catalogue was put back.
            let is_elsewhere = moved.extents.iter().all(|extent| extent.object.id != self.stored.object.id);
            let is_covered = moved.is_covered() && (is_elsewhere || proven.is_none());
            let Some(metadata) = moved.metadata.as_ref().filter(|_| is_covered) else {
                self.lacking = Some(match moved.metadata {
                    Some(_) => format!(
                        "the catalogue does not have entries {} to {} of ledger {ledger} in other objects that are in the bucket",
                        moved.first, moved.last
                    ),
                    None => format!("ledger {ledger} is about to leave the catalogue"),
                });
                self.lacks[at] += 1;
                continue;
            };
            if moved.extents.len() > EXTENTS_MAX {
                self.lacking = Some(format!("ledger {ledger} has too many extents there"));
                self.lacks[at] += 1;
                continue;
            }
            for bookie in quorum::members(metadata, EntryId::MAX) {
                match bookies.get(&bookie) {
                    Some(Ability::KeepsEverything) => {}
                    Some(Ability::Reconciles) => {
                        let number = answers.bookie(&bookie);
                        if !answers.of(&self.stored).has_said_yes(place, number) {
                            self.lacks[at] += 1;
                            self.todo.entry(bookie).or_default().push_back(at);
                        }
                    }
                    Some(Ability::Absent) | None => {
                        self.lacking = Some(format!("bookie {bookie} is not registered"));
                        self.lacks[at] += 1;
                    }
                }
            }
        }
        let progress = answers.of(&self.stored);
        for (moved, lacks) in self.moved.iter().zip(&self.lacks) {
            match lacks {
                0 => progress.finish(moved.place),
                _ => progress.reopen(moved.place),
            }
        }
        let absent: BTreeMap<u32, LedgerId> = found.absent.into_iter().collect();
        for place in self.window.iter().filter(|place| !of_catalogue.contains(place)) {
            let ledger = absent.get(place);
            match proven {
                Some(proven) if ledger.is_none_or(|ledger| !proven.contains(ledger)) => {
                    progress.reopen(*place);
                    let ledger = ledger.map_or_else(|| "of it".to_owned(), ToString::to_string);
                    self.lacking = Some(format!("that ledger {ledger} was deleted is not proved yet"));
                }
                _ => progress.finish(*place),
            }
        }
        if self.is_check && progress.left > 0 {
            // A bookie that lacks these may lack others. They are examined in as many passes as that takes (invariant 4).
            self.is_check = false;
            (self.behind()..self.stored.extents).for_each(|place| answers.of(&self.stored).reopen(place));
        }
    }

    /// The next requests, one to each bookie: a ledger once, within limits.
    pub fn requests(&mut self, told_max: &BTreeMap<BookieId, usize>) -> Vec<(BookieId, Vec<Reconciliation>)> {
        let mut requests = Vec::new();
        self.sent.clear();
        for (bookie, todo) in &mut self.todo {
            let told_max = told_max.get(bookie).copied().unwrap_or(TOLD_MAX);
            let (mut updates, mut sent, mut extents): (Vec<Reconciliation>, _, _) =
                (Vec::new(), Vec::new(), 0);
            while let Some(at) = todo.front().copied() {
                let Moved { ledger, extents: of_ledger, .. } = &self.moved[at];
                extents += of_ledger.len();
                let is_twice = updates.last().is_some_and(|update| update.ledger == *ledger);
                if updates.len() == told_max || extents > EXTENTS_MAX || is_twice {
                    break;
                }
                let last = of_ledger.last().map(|extent| extent.last);
                updates.push(Reconciliation {
                    ledger: *ledger,
                    last,
                    extents: of_ledger.clone(),
                    created_ms: None,
                });
                sent.push(at);
                todo.pop_front();
            }
            if !updates.is_empty() {
                requests.push((bookie.clone(), updates));
                self.sent.insert(bookie.clone(), sent);
            }
        }
        requests
    }

    /// Behind the window.
    pub fn behind(&self) -> u32 {
        self.window.last().map_or(self.from, |last| last + 1)
    }
}
