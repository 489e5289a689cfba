//! Members of the ensemble that are not as they should be: slow ones, held ones, and which entries bookies lack for it.
//!
//! # Data flow
//! ```text
//! on_slow ---> slow ------------------------+-- marked, an ack quorum is left --> held
//! failed, no replacement, marked -----------|-----------------------------------> held
//!              ^ caught up, or failed: out  +-- needed: written to as before
//! replaced, or joined again: out of both
//! held, or slow and to be let go of; let go of --> lacking: what a mark names --> unmarked, until one was made
//! ```
//!
//! # Invariants
//! 1. Those of the core: 5, 6, 7, and the pauses between the searches of 8.
//! 2. A bookie that entries were let go of for is unmarked until a mark that began later was made.
//!
//! # Not here   when a mark is made and what is written (`change`); how slow is too slow (`slow` of the crate)

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_types::{BookieId, LedgerId};

use crate::error::{BookieAnswer, BookieAnswers};
use crate::transport::BookieError;
use crate::window::AddWindow;

/// The first pause before another search for a replacement of a held bookie; it doubles each time.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The longest pause.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// See the module. Positions are of the window's ensemble.
#[cfg_attr(test, derive(Clone, Debug))]
pub(super) struct Members {
    ledger: LedgerId,
    /// Members that are too far behind and still get entries, because they were not yet dealt with, or because the ack
    /// quorum needs them.
    slow: BTreeMap<usize, BookieError>,
    /// Whether `slow` has members that have not been dealt with.
    has_news: bool,
    /// Held members, and why (core invariant 5).
    held: BTreeMap<usize, BookieError>,
    /// Searches for replacements of slow and held members since all were well.
    searches: u32,
    /// Bookies that failed in this ledger, or were slow: taken again only when there is no other.
    suspects: BTreeSet<BookieId>,
    /// Bookies that lack entries which this writer let go of (core invariant 6).
    lacking: BTreeSet<BookieId>,
    /// Those of them that no mark names yet (invariant 2; core invariant 9).
    unmarked: BTreeSet<BookieId>,
    /// Some of them are to be marked now, not after a pause.
    wants_mark: bool,
    /// Bookies that the mark under way names.
    named: BTreeSet<BookieId>,
    /// Those of them that were unmarked.
    due: BTreeSet<BookieId>,
    /// Marks that could not be made since one was made.
    failed_marks: u32,
    /// Bookies whose queued adds are not to be sent any more.
    withdrawn: Vec<BookieId>,
}

impl Members {
    pub fn new(ledger: LedgerId) -> Members {
        Members {
            ledger,
            slow: BTreeMap::new(),
            has_news: false,
            held: BTreeMap::new(),
            searches: 0,
            suspects: BTreeSet::new(),
            lacking: BTreeSet::new(),
            unmarked: BTreeSet::new(),
            wants_mark: false,
            named: BTreeSet::new(),
            due: BTreeSet::new(),
            failed_marks: 0,
            withdrawn: Vec::new(),
        }
    }

    pub fn is_slow(&self, position: usize) -> bool {
        self.slow.contains_key(&position)
    }

    pub fn has_slow(&self) -> bool {
        !self.slow.is_empty()
    }

    pub fn is_held(&self, position: usize) -> bool {
        self.held.contains_key(&position)
    }

    pub fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether there are slow members that have not been dealt with.
    pub fn has_news(&self) -> bool {
        self.has_news
    }

    /// Bookies to be taken only when there is no other.
    pub fn suspects(&self) -> &BTreeSet<BookieId> {
        &self.suspects
    }

    /// Whether bookies lack entries that were let go of.
    pub fn has_lacking(&self) -> bool {
        !self.lacking.is_empty()
    }

    /// Whether some of them are named by no mark.
    pub fn has_unmarked(&self) -> bool {
        !self.unmarked.is_empty() || !self.due.is_empty()
    }

    /// Bookies that the mark under way names.
    pub fn named(&self) -> &BTreeSet<BookieId> {
        &self.named
    }

    pub fn take_withdrawn(&mut self) -> Vec<BookieId> {
        std::mem::take(&mut self.withdrawn)
    }

    /// The bookies that are held.
    pub fn held<'a>(&'a self, window: &'a AddWindow) -> impl Iterator<Item = &'a BookieId> {
        self.held.keys().map(|&position| &window.ensemble()[position])
    }

    /// The same, and why.
    pub fn held_answers(&self, window: &AddWindow) -> BookieAnswers {
        let errors = self.held.values().map(|error| BookieAnswer::Failed(error.clone()));
        BookieAnswers(self.held(window).cloned().zip(errors).collect())
    }

    /// The bookie at a position holds up `bytes`, which is too much.
    pub fn on_slow(&mut self, position: usize, bytes: u64, window: &AddWindow) {
        self.slow.insert(position, BookieError::Behind(bytes));
        self.suspects.insert(window.ensemble()[position].clone());
        self.has_news = true;
    }

    /// A change began for members that failed.
    pub fn on_failed(&mut self, window: &AddWindow) {
        for &position in window.replacing().into_iter().flat_map(BTreeMap::keys) {
            let bookie = &window.ensemble()[position];
            // That it failed matters more.
            self.slow.remove(&position);
            self.withdrawn.push(bookie.clone());
            self.suspects.insert(bookie.clone());
        }
    }

    /// Begins to deal with slow members, which are to be held if an ack quorum is left without them. Returns whether a mark is to come
    /// first.
    pub fn begin_holding(&mut self, window: &AddWindow) -> bool {
        self.has_news = false;
        let holds = !self.slow.is_empty() && window.can_hold(|position| self.is_slow(position));
        if holds {
            self.lacking.extend(self.slow.keys().map(|&position| window.ensemble()[position].clone()));
        }
        holds || !self.unmarked.is_empty()
    }

    /// The mark was made, or the writer goes on without it: slow members that it names are held, as long as an ack
    /// quorum is left.
    pub fn hold_slow(&mut self, window: &mut AddWindow) {
        for (position, error) in std::mem::take(&mut self.slow) {
            let is_marked = self.lacking.contains(&window.ensemble()[position]);
            if is_marked && window.can_hold(|other| other == position) {
                self.hold(position, error, window);
                window.hold(position);
            } else {
                self.slow.insert(position, error);
            }
        }
    }

    /// A member is held: it gets nothing more. The window is told by the caller, or by the change under way.
    pub fn hold(&mut self, position: usize, error: BookieError, window: &AddWindow) {
        let bookie = &window.ensemble()[position];
        tracing::warn!(ledger_id = %self.ledger, bookie_id = %bookie, %error,
            "no longer writing to this bookie: the ledger continues with its ack quorum, marked as under-replicated");
        self.lacking.insert(bookie.clone());
        self.withdrawn.push(bookie.clone());
        self.held.insert(position, error);
    }

    /// Slow and held members, and why. Slow ones first: the ack quorum needs them.
    pub fn wanting(&self) -> impl Iterator<Item = (usize, &BookieError)> {
        self.slow.iter().chain(&self.held).map(|(&position, error)| (position, error))
    }

    /// Held positions whose bookie is alive and keeps its position in this ensemble.
    pub fn rejoining(&self, alive: &[BookieId], ensemble: &[BookieId]) -> BTreeSet<usize> {
        self.held.keys().copied().filter(|&position| alive.contains(&ensemble[position])).collect()
    }

    /// Members are to be replaced, or to join again: they are marked again, or for the first time (core invariant 6).
    pub fn begin_joining<'a>(&mut self, positions: impl Iterator<Item = &'a usize>, window: &AddWindow) {
        self.lacking.extend(positions.map(|&position| window.ensemble()[position].clone()));
    }

    /// The change of these members begins: adds that are queued for their bookies are not to be sent.
    pub fn withdraw<'a>(&mut self, positions: impl Iterator<Item = &'a usize>, window: &AddWindow) {
        self.withdrawn.extend(positions.map(|&position| window.ensemble()[position].clone()));
    }

    /// An ensemble change is complete, after which the members at some positions are as they should be.
    pub fn on_changed(&mut self, is_good: impl Fn(usize) -> bool, has_rejoined: bool) {
        self.held.retain(|&position, _| !is_good(position));
        self.slow.retain(|&position, _| !is_good(position));
        if self.held.is_empty() && self.slow.is_empty() && !has_rejoined {
            self.searches = 0;
        }
    }

    /// A mark begins that names all bookies that lack something.
    pub fn begin_mark(&mut self) {
        self.wants_mark = false;
        self.named = self.lacking.clone();
        self.due.append(&mut self.unmarked);
    }

    /// The mark was made, or given up.
    pub fn on_marked(&mut self, is_marked: bool) {
        self.due.clear();
        let named = std::mem::take(&mut self.named);
        if is_marked {
            self.failed_marks = 0;
        } else {
            self.failed_marks += 1;
            self.unmarked.extend(named);
        }
    }

    /// The mark is put off: bookies that it was to name for the first time are unmarked again.
    pub fn put_off_mark(&mut self) {
        self.failed_marks += 1;
        self.named.clear();
        self.unmarked.append(&mut self.due);
    }

    /// Entries that these bookies lack were let go of. A member that is held was marked before, or is unmarked already.
    pub fn on_lost(&mut self, mut bookies: BTreeSet<BookieId>, window: &AddWindow) {
        self.held(window).for_each(|held| {
            bookies.remove(held);
        });
        if bookies.is_empty() {
            return;
        }
        self.wants_mark = true;
        self.lacking.extend(bookies.iter().cloned());
        self.unmarked.extend(bookies);
    }

    /// The writer stopped, and let go of entries that the bookies in `lost` lack.
    pub fn on_stopped(&mut self, lost: BTreeSet<BookieId>) {
        self.unmarked.extend(lost);
    }

    /// The mark was made that a writer makes once it has stopped.
    pub fn on_parted(&mut self) {
        self.unmarked.clear();
        self.due.clear();
    }

    /// Whether somebody is to be marked now.
    pub fn wants_mark(&self) -> bool {
        self.wants_mark
    }

    /// The writer ends: `lacking` lack something (core invariant 6), and what is queued for `withdrawn` is not to be sent.
    pub fn begin_end(&mut self, lacking: BTreeSet<BookieId>, withdrawn: BTreeSet<BookieId>) {
        self.named.clear();
        self.due.clear();
        self.unmarked = lacking.clone();
        self.lacking = lacking;
        self.withdrawn.extend(withdrawn);
    }

    /// The pause before the next search for replacements of members that are held, or slow and needed; or before another
    /// try to mark the ledger (invariant 2). After searches, when all members are well again, the longest pause: only when
    /// they stay well for that long do the pauses start over, as a bookie that rejoins and fails again and again makes a
    /// segment each time.
    pub fn retry_after(&self) -> Option<Duration> {
        let pause = |tries: u32| Some(RETRY_MAX.min(RETRY_MIN * 2u32.pow(tries.min(10))));
        match self.held.is_empty() && self.slow.is_empty() {
            true if !self.unmarked.is_empty() => pause(self.failed_marks.saturating_sub(1)),
            true => (self.searches > 0).then_some(RETRY_MAX),
            false => pause(self.searches),
        }
    }

    /// Whether a search is wanted, as not all members are well; if so it is counted.
    pub fn begin_search(&mut self, window: &AddWindow) -> bool {
        // A member that has caught up meanwhile is no longer slow.
        let mut behind = Vec::new();
        window.held_back(&mut behind);
        self.slow.retain(|position, _| behind.contains(position));
        let is_wanted = !self.held.is_empty() || !self.slow.is_empty();
        if is_wanted {
            self.searches += 1;
        } else if self.unmarked.is_empty() {
            self.searches = 0;
        }
        is_wanted
    }
}
