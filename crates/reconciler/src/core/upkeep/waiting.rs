//! Objects whose extents others took over stay until every bookie knows where these went (T16).
//!
//! # Data flow
//! ```text
//! rows of objects that wait ─► where its extents are now, by ledger ─► bookies of the ledgers' ensembles are told
//!                               all of them said yes: the catalogue lets the object go, which is deleted after the delay ◄─┘
//! ```
//!
//! # Invariants
//! 1. An object is released when each bookie in an ensemble of each of its ledgers, as metadata has them, took the extents that the
//!    catalogue has for its ranges, or holds nothing of the ledger, or keeps everything (it does not advertise tiering). Who is not
//!    registered has not. A ledger that is not in the catalogue any more was deleted, and asks for nothing.
//! 2. It is looked at only [`UpkeepSettings::settle`](super::UpkeepSettings::settle) after extents were taken over last: by then no tierer
//!    tells anybody of the old ones ([`EXTENTS_KEPT_FOR`](crate::core::updates::EXTENTS_KEPT_FOR)).
//! 3. Whoever begins again tells them again, which changes nothing.
//!
//! # Limits     objects in one pass: [`WAITING_MAX`]; ledgers in one request: [`TOLD_MAX`]; answers that are remembered:
//! [`ANSWERS_MAX`]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bindery_io::canary::Canary;
use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::StoredObject;
use bindery_types::tier::Reconciliation;
use bindery_types::{BookieId, EntryId, LedgerId};

use super::event::{Moved, Told, WaitingPage};
use super::{Phase, Upkeep};
use crate::core::quorum;
use crate::core::updates::{Ability, EXTENTS_KEPT_FOR, UpdateStatus};

/// Objects of one pass; the next one goes on.
pub const WAITING_MAX: usize = 64;
/// Ledgers in one request: a bookie looks at the objects of those that it let go.
const TOLD_MAX: usize = 16;
/// Extents in one request: as many as one may carry.
const EXTENTS_MAX: usize = 4096;
/// Answers of bookies that are remembered, so that those of an object that waits for another bookie are not asked again.
const ANSWERS_MAX: usize = 200_000;

/// A range of a ledger, by its first entry, and a bookie.
type Pair = (LedgerId, EntryId, BookieId);

/// The object under examination.
#[derive(Debug)]
struct Current {
    stored: StoredObject,
    /// When `moved` was read from the catalogue.
    at: Duration,
    moved: Vec<Moved>,
    /// Places in `moved` of which each bookie is still to be told,
    todo: BTreeMap<BookieId, VecDeque<usize>>,
    /// and those that are on their way.
    sent: BTreeMap<BookieId, Vec<usize>>,
    /// Why it cannot be released, if so.
    lacking: Option<String>,
}

/// What is going on.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Behind which the next page begins.
    after: Option<ObjectId>,
    queue: VecDeque<StoredObject>,
    current: Option<Current>,
    /// Bookies that know, by object.
    answers: BTreeMap<ObjectId, BTreeSet<Pair>>,
    /// Bookies that did not answer in this pass.
    silent: BTreeSet<BookieId>,
    released: Vec<(ObjectId, u64)>,
    /// Objects that were seen since the beginning of the table.
    seen: BTreeSet<ObjectId>,
}

impl Waiting {
    pub fn after(&self) -> Option<ObjectId> {
        self.after
    }
}

impl Current {
    fn new(now: Duration, stored: StoredObject) -> Current {
        let (todo, sent) = (BTreeMap::new(), BTreeMap::new());
        Current { stored, at: now, moved: Vec::new(), todo, sent, lacking: None }
    }

    /// Whom to tell of what (invariant 1).
    fn plan(&mut self, moved: Vec<Moved>, bookies: &BTreeMap<BookieId, Ability>, known: &BTreeSet<Pair>) {
        self.moved = moved;
        for (at, moved) in self.moved.iter().enumerate() {
            let Moved { ledger, first, .. } = *moved;
            let Some(metadata) = moved.metadata.as_ref().filter(|_| moved.is_covered()) else {
                self.lacking = Some(format!("ledger {ledger} is about to leave the catalogue"));
                continue;
            };
            if moved.extents.len() > EXTENTS_MAX {
                self.lacking = Some(format!("ledger {ledger} has too many extents there"));
                continue;
            }
            for bookie in quorum::members(metadata, EntryId::MAX) {
                match bookies.get(&bookie) {
                    Some(Ability::KeepsEverything) => {}
                    Some(Ability::Reconciles) => {
                        let pair = (ledger, first, bookie);
                        if !known.contains(&pair) {
                            self.todo.entry(pair.2).or_default().push_back(at);
                        }
                    }
                    Some(Ability::Absent) | None => {
                        self.lacking = Some(format!("bookie {bookie} is not registered"));
                    }
                }
            }
        }
    }

    /// The next requests, one to each bookie: a ledger once, within limits.
    fn requests(&mut self) -> Vec<(BookieId, Vec<Reconciliation>)> {
        let mut requests = Vec::new();
        self.sent.clear();
        for (bookie, todo) in &mut self.todo {
            let (mut updates, mut sent, mut extents): (Vec<Reconciliation>, _, _) =
                (Vec::new(), Vec::new(), 0);
            while let Some(at) = todo.front().copied() {
                let Moved { ledger, extents: of_ledger, .. } = &self.moved[at];
                extents += of_ledger.len();
                let is_twice = updates.last().is_some_and(|update| update.ledger == *ledger);
                if updates.len() == TOLD_MAX || extents > EXTENTS_MAX || is_twice {
                    break;
                }
                let last = of_ledger.last().map(|extent| extent.last);
                updates.push(Reconciliation { ledger: *ledger, last, extents: of_ledger.clone() });
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
}

impl Upkeep {
    pub(super) fn on_waiting(&mut self, now: Duration, page: Result<WaitingPage, String>) -> Phase {
        let page = match page {
            Ok(page) => page,
            Err(why) => {
                self.status.last_error = Some(why);
                return Phase::Scan;
            }
        };
        let settle_ms = u64::try_from(self.settings.settle.as_millis()).unwrap_or(u64::MAX);
        let waiting = &mut self.waiting;
        waiting.silent.clear();
        waiting.seen.extend(page.objects.iter().map(|stored| stored.object.id));
        waiting.after = page.objects.last().map(|stored| stored.object.id);
        if page.objects.len() < WAITING_MAX {
            waiting.after = None;
            let seen = std::mem::take(&mut waiting.seen);
            waiting.answers.retain(|object, _| seen.contains(object));
            self.status.objects_waiting = seen.len() as u64;
            if seen.is_empty() {
                self.status.waits_for = None;
            }
        } else {
            self.status.objects_waiting = self.status.objects_waiting.max(waiting.seen.len() as u64);
        }
        // Invariant 2.
        let is_settled = |stored: &StoredObject| {
            stored.replaced.is_some_and(|replaced| replaced.at_ms.saturating_add(settle_ms) <= page.now_ms)
        };
        self.waiting.queue = page.objects.into_iter().filter(is_settled).collect();
        self.next_waiting(now)
    }

    fn next_waiting(&mut self, now: Duration) -> Phase {
        let waiting = &mut self.waiting;
        waiting.current = None;
        if waiting.answers.values().map(BTreeSet::len).sum::<usize>() > ANSWERS_MAX {
            waiting.answers.clear();
        }
        match waiting.queue.pop_front() {
            Some(stored) => {
                waiting.current = Some(Current::new(now, stored));
                Phase::WhereTo(stored.object)
            }
            None if waiting.released.is_empty() => Phase::Scan,
            None => Phase::Release(std::mem::take(&mut waiting.released)),
        }
    }

    pub(super) fn on_whereabouts(&mut self, now: Duration, found: Result<Vec<Moved>, String>) -> Phase {
        let waiting = &mut self.waiting;
        let Some(current) = &mut waiting.current else { return self.next_waiting(now) };
        let object = current.stored.object.id;
        match found {
            Ok(moved) => {
                let known = waiting.answers.entry(object).or_default();
                current.plan(moved, &self.bookies, known);
                self.go_on_telling(now)
            }
            Err(why) => {
                self.status.waits_for = Some(format!("object {object}: {why}"));
                self.next_waiting(now)
            }
        }
    }

    /// Tells bookies what they have not said to know, or judges when all were told.
    fn go_on_telling(&mut self, now: Duration) -> Phase {
        let waiting = &mut self.waiting;
        let Some(current) = &mut waiting.current else { return self.next_waiting(now) };
        for bookie in &waiting.silent {
            if current.todo.remove(bookie).is_some_and(|todo| !todo.is_empty()) {
                current.lacking = Some(format!("bookie {bookie} does not answer"));
            }
        }
        let requests = current.requests();
        if !requests.is_empty() {
            // What the catalogue said is as old as what others may tell at most (invariant 2).
            if now <= current.at + EXTENTS_KEPT_FOR {
                return Phase::Tell(requests);
            }
            current.lacking = Some("telling bookies takes long, and goes on".to_owned());
        }
        let object = current.stored.object.id;
        match (current.lacking.take(), current.stored.replaced) {
            (None, Some(replaced)) => {
                waiting.answers.remove(&object);
                waiting.released.push((object, replaced.number));
            }
            (why, _) => self.status.waits_for = why.map(|why| format!("object {object}: {why}")),
        }
        self.next_waiting(now)
    }

    pub(super) fn on_told(&mut self, now: Duration, answers: Vec<Told>) -> Phase {
        let is_blind = self.canaries.has(Canary::T16BookiesNotAwaited);
        let mut answers: BTreeMap<BookieId, _> = answers.into_iter().collect();
        let waiting = &mut self.waiting;
        let Some(current) = &mut waiting.current else { return self.next_waiting(now) };
        let known = waiting.answers.entry(current.stored.object.id).or_default();
        for (bookie, sent) in std::mem::take(&mut current.sent) {
            let results = match answers.remove(&bookie) {
                Some(Ok(results)) => results,
                Some(Err(_)) | None => {
                    if !is_blind {
                        current.lacking = Some(format!("bookie {bookie} does not answer"));
                        waiting.silent.insert(bookie);
                    }
                    continue;
                }
            };
            let by_ledger: BTreeMap<LedgerId, _> =
                results.into_iter().map(|result| (result.ledger, result)).collect();
            for at in sent {
                let Moved { ledger, first, extents, .. } = &current.moved[at];
                let last = extents.last().map(|extent| extent.last);
                let is_told = by_ledger.get(ledger).is_some_and(|result| match result.status {
                    UpdateStatus::Done => result.is_durable && result.register >= last,
                    UpdateStatus::NoLedger => true,
                    UpdateStatus::Behind | UpdateStatus::Busy | UpdateStatus::Failed => false,
                });
                if is_told {
                    known.insert((*ledger, *first, bookie.clone()));
                } else if !is_blind {
                    current.lacking = Some(format!("bookie {bookie} did not take ledger {ledger}"));
                }
            }
        }
        self.go_on_telling(now)
    }

    pub(super) fn on_released(&mut self, released: Result<u64, String>) -> Phase {
        match released {
            Ok(count) => self.status.counts.objects_released += count,
            // The next pass finds what is left.
            Err(why) => self.status.last_error = Some(why),
        }
        Phase::Scan
    }
}
