//! Which ledgers have a look: those that are new to this tierer, and, in times, closed ones with which it was done.
//!
//! # Invariants
//! 1. A visit has a place of its own beside the ledgers that are watched ([`super::Settings::visits_max`]), and gives it back once the ledger was looked at:
//!    however many are to be visited, no ledger that is watched has to leave for one that turns out to be done.
//! 2. New ones come before those with which the tierer was done, but for one of [`AGAIN_SHARE`] places: otherwise more open ledgers than are watched
//!    would keep those from their second visit for ever.
//! 3. The newest come first, and what is newer than everything before has its visit at once. The rest have their turn in descending order:
//!    each has its visit before any has a second one. Where there is no room for all that wait, those are left out whose turn comes last, and the
//!    next listing finds them again.

use std::collections::BTreeSet;
use std::time::Duration;

use bindery_types::LedgerId;

use super::ids::LedgerSet;

/// One of so many places is for a ledger that is visited again, while there are such.
const AGAIN_SHARE: u8 = 8;

/// Ledgers that are to be visited, and those that are being visited.
#[derive(Debug, Clone)]
pub(super) struct Visits {
    /// Ledgers that are to be visited.
    waiting: LedgerSet,
    /// The newest that ever was visited.
    newest: Option<LedgerId>,
    /// The last one by its turn; those below come next.
    last: Option<LedgerId>,
    under_way: BTreeSet<LedgerId>,
    /// The last one that was visited again, while that goes on.
    again: Option<Option<LedgerId>>,
    again_at: Duration,
    /// Places that others had since one was visited again, while that goes on.
    since_again: u8,
    began: Duration,
    took: Duration,
    /// The listing of which not all ledgers had their visits yet: when it began, and after how many turns they have.
    listed: Option<(Duration, u8)>,
    /// Some of the listing that is under way had no room.
    has_left_out: bool,
    looked_since: Option<Duration>,
}

impl Visits {
    pub fn new(now: Duration, again_at: Duration) -> Visits {
        Visits {
            waiting: LedgerSet::default(),
            newest: None,
            last: None,
            under_way: BTreeSet::new(),
            again: None,
            again_at,
            since_again: 0,
            began: now,
            took: Duration::ZERO,
            listed: None,
            has_left_out: false,
            looked_since: None,
        }
    }

    /// Everything that decides what comes next.
    #[cfg(test)]
    pub fn essence(&self) -> impl std::fmt::Debug + '_ {
        let of_again = (self.again, self.again_at, self.since_again);
        (&self.waiting, self.newest, self.last, &self.under_way, of_again)
    }

    /// How many wait for a visit.
    pub fn waiting(&self) -> u64 {
        self.waiting.count()
    }

    /// How many are being visited.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// It is to be visited.
    pub fn want(&mut self, now: Duration, ledger: LedgerId) {
        if self.waiting.count() == 0 {
            (self.began, self.took) = (now, Duration::ZERO);
        }
        if !self.waiting.insert_by_turn(ledger, self.last, self.newest) {
            // Those had no visit that were left out.
            (self.has_left_out, self.listed) = (true, None);
        }
    }

    /// A listing is complete that began at this time: all that it found and that is to be visited waits.
    pub fn listed(&mut self, since: Duration) {
        if std::mem::take(&mut self.has_left_out) {
            return;
        }
        match self.waiting.count() {
            0 => (self.listed, self.looked_since) = (None, Some(since)),
            // What the rest of the turn that is under way left out comes in the next one.
            _ => drop(self.listed.get_or_insert((since, 2))),
        }
    }

    /// When the last listing began of which all ledgers that are this tierer's have begun their visits, or needed none.
    pub fn looked_since(&self) -> Option<Duration> {
        self.looked_since
    }

    /// A turn is over.
    fn end_turn(&mut self, none_waits: bool) {
        let Some((since, turns)) = &mut self.listed else { return };
        *turns -= 1;
        if *turns == 0 || none_waits {
            self.looked_since = Some(*since);
            self.listed = None;
        }
    }

    /// The next one to be visited: one that waits, or one of `done` that is visited again (invariant 2).
    pub fn next(&mut self, now: Duration, done: &LedgerSet, interval: Duration) -> Option<LedgerId> {
        let is_again = self.again.is_some() || now >= self.again_at;
        if is_again
            && self.since_again + 1 >= AGAIN_SHARE
            && let Some(ledger) = self.next_again(now, done, interval)
        {
            self.since_again = 0;
            return Some(ledger);
        }
        let waiting = self.next_waiting(now);
        self.since_again = match waiting {
            Some(_) if is_again => (self.since_again + 1).min(AGAIN_SHARE - 1),
            _ => 0,
        };
        waiting.or_else(|| self.next_again(now, done, interval))
    }

    /// Takes the next one out of those that wait.
    fn next_waiting(&mut self, now: Duration) -> Option<LedgerId> {
        let newest = self.waiting.last()?;
        let ledger = if Some(newest) > self.newest {
            self.newest = Some(newest);
            self.last.get_or_insert(newest);
            newest
        } else {
            let next = self.last.and_then(|last| self.waiting.last_below(last));
            if next.is_none() {
                self.took = now.saturating_sub(self.began);
                self.began = now;
                self.end_turn(false);
            }
            *self.last.insert(next.unwrap_or(newest))
        };
        self.waiting.remove(ledger);
        if self.waiting.count() == 0 {
            self.end_turn(true);
        }
        Some(ledger)
    }

    /// The next one of `done` to be visited again, if it is time for that.
    fn next_again(&mut self, now: Duration, done: &LedgerSet, interval: Duration) -> Option<LedgerId> {
        if self.again.is_none() && now >= self.again_at {
            self.again = Some(None);
            self.again_at = now + interval;
        }
        let next = match self.again? {
            None => done.last(),
            Some(last) => done.last_below(last),
        };
        self.again = next.map(Some);
        next
    }

    /// A visit begins,
    pub fn begin(&mut self, ledger: LedgerId) {
        self.under_way.insert(ledger);
    }

    /// and ends.
    pub fn end(&mut self, ledger: LedgerId) {
        self.under_way.remove(&ledger);
    }

    /// How long it takes until every ledger has had its look: the last turn, or this one if it takes longer already.
    pub fn turn(&self, now: Duration) -> Duration {
        match self.waiting.count() {
            0 => Duration::ZERO,
            _ => self.took.max(now.saturating_sub(self.began)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(id: i64) -> LedgerId {
        LedgerId::new(id).unwrap()
    }

    /// Invariant 3.
    #[test]
    fn each_has_its_turn_and_the_newest_at_once() {
        let at = Duration::from_secs;
        let mut visits = Visits::new(at(0), at(1000));
        (0..5).for_each(|id| visits.want(at(0), ledger(id)));
        let next = |visits: &mut Visits, now| visits.next_waiting(at(now)).map(LedgerId::get);
        assert_eq!((next(&mut visits, 1), next(&mut visits, 1)), (Some(4), Some(3)));
        // These left, and come again: not before those that wait.
        visits.want(at(2), ledger(4));
        visits.want(at(2), ledger(3));
        assert_eq!(next(&mut visits, 3), Some(2));
        visits.want(at(3), ledger(9));
        assert_eq!(
            (next(&mut visits, 3), next(&mut visits, 3), next(&mut visits, 3)),
            (Some(9), Some(1), Some(0))
        );
        assert_eq!((visits.waiting(), visits.turn(at(7))), (2, at(7)), "the turn takes so long by now");
        assert_eq!((next(&mut visits, 8), visits.turn(at(9))), (Some(4), at(8)));
        assert_eq!((next(&mut visits, 9), next(&mut visits, 9), visits.turn(at(9))), (Some(3), None, at(0)));
    }

    /// A listing counts once all that it found had its visit, also while some come again and again.
    #[test]
    fn it_is_known_when_all_of_a_listing_had_their_visits() {
        let at = Duration::from_secs;
        let mut visits = Visits::new(at(0), at(1000));
        (0..5).for_each(|id| visits.want(at(0), ledger(id)));
        visits.listed(at(1));
        for _ in 0..4 {
            visits.next_waiting(at(2));
            assert_eq!(visits.looked_since(), None);
        }
        visits.next_waiting(at(3));
        assert_eq!(visits.looked_since(), Some(at(1)));
        visits.listed(at(4));
        assert_eq!(visits.looked_since(), Some(at(4)), "none waits");
        // Each that had its visit waits again, and new listings find that.
        (0..5).for_each(|id| visits.want(at(5), ledger(id)));
        assert!((0..2).all(|_| visits.next_waiting(at(5)).is_some()));
        (3..5).for_each(|id| visits.want(at(5), ledger(id)));
        visits.listed(at(6));
        let mut visited = BTreeSet::new();
        while visits.looked_since() == Some(at(4)) {
            let next = visits.next_waiting(at(7)).unwrap();
            visited.insert(next);
            visits.want(at(7), next);
            visits.listed(at(8));
        }
        assert_eq!((visits.looked_since(), visited.len()), (Some(at(6)), 5));
    }

    #[test]
    fn those_that_are_done_are_visited_again_in_times_the_newest_first() {
        let at = Duration::from_secs;
        let mut visits = Visits::new(at(0), at(100));
        let mut done = LedgerSet::default();
        (0..3).for_each(|id| done.insert(ledger(id)));
        let next = |visits: &mut Visits, now| visits.next_again(at(now), &done, at(100)).map(LedgerId::get);
        assert_eq!(next(&mut visits, 99), None);
        let all: Vec<_> = (0..4).map(|_| next(&mut visits, 100)).collect();
        assert_eq!(all, [Some(2), Some(1), Some(0), None]);
        assert_eq!((next(&mut visits, 199), next(&mut visits, 200)), (None, Some(2)));
    }

    /// Invariant 2.
    #[test]
    fn those_that_wait_leave_some_places_to_those_that_are_visited_again() {
        let at = Duration::from_secs;
        let mut visits = Visits::new(at(0), at(100));
        let mut done = LedgerSet::default();
        (0..3).for_each(|id| done.insert(ledger(id)));
        let mut next = |now| {
            (10..20).for_each(|id| visits.want(at(now), ledger(id)));
            visits.next(at(now), &done, at(100)).unwrap().get()
        };
        assert!((0..99).all(|now| next(now) >= 10));
        let again: Vec<usize> = (0..80).filter(|_| next(100) < 10).collect();
        assert_eq!(again, [7, 15, 23], "each once");
        assert_eq!((0..16).filter(|_| next(200) < 10).count(), 2);
    }

    /// Invariant 3: ids that are so far apart that not all of them have room.
    #[test]
    fn each_has_its_turn_although_not_all_have_room() {
        let at = Duration::from_secs;
        let mut visits = Visits::new(at(0), at(1000));
        visits.waiting = LedgerSet::for_chunks(10);
        let (mut visited, ids) = (BTreeSet::new(), (0..30).map(|n| ledger(n << 20)).collect::<Vec<_>>());
        for now in 0..100 {
            // All that are not watched are found again.
            if now % 5 == 0 {
                ids.iter().for_each(|id| visits.want(at(now), *id));
            }
            visited.extend(visits.next_waiting(at(now)));
        }
        assert_eq!(visited.len(), 30, "{visited:?}");
        visits.listed(at(100));
        while visits.next_waiting(at(101)).is_some() {}
        assert_eq!(visits.looked_since(), None, "not all of it waited");
        ids[..9].iter().for_each(|id| visits.want(at(102), *id));
        visits.listed(at(102));
        while visits.next_waiting(at(102)).is_some() {}
        assert_eq!(visits.looked_since(), Some(at(102)));
        // What is newer than all of them is visited at once.
        ids.iter().for_each(|id| visits.want(at(200), *id));
        visits.want(at(200), ledger(31 << 20));
        assert_eq!(visits.next_waiting(at(200)), Some(ledger(31 << 20)));
    }
}
