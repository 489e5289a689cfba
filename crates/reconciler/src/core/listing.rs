//! Which ledgers are watched: those of the listing that are this tierer's, and for which there is room.
//!
//! # Invariants
//! 1. The listing never waits for room: what it finds and this tierer does not watch is to be visited ([`super::visits`]), so it is known how many wait.
//! 2. Where there is no room for all, the tierer leaves ledgers that need nothing at the moment, and watches them again after those that wait.
//! 3. A ledger is left, for another tierer or to make room, only while it is in no object, and no doubt about the catalogue rests on it.
//!
//! # Limits     ledgers watched: [`Settings::ledgers_max`](super::Settings::ledgers_max), those that are being visited, and those that were asked for

use std::time::Duration;

use bindery_io::canary::Canary;
use bindery_types::LedgerId;

use super::event::Action;
use super::ledger::{Ledger, Stage};
use super::team::Team;
use super::{Core, SWEEP_MAX};

/// Where the listing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listing {
    /// It begins at this time.
    Waits(Duration),
    /// The next page is read.
    GoesOn,
    /// A page is on its way.
    Asked,
}

/// Ledgers of a listing that began at this time, and those of them that are this tierer's.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Listed {
    pub since: Duration,
    pub all: u64,
    pub own: u64,
}

impl Core {
    pub(super) fn list(&mut self, now: Duration, actions: &mut Vec<Action>) {
        match self.listing {
            Listing::Waits(begin) if now >= begin => {
                self.listed = Listed { since: now, ..Listed::default() };
            }
            Listing::GoesOn => {}
            Listing::Waits(_) | Listing::Asked => return,
        }
        self.listing = Listing::Asked;
        actions.push(Action::List);
    }

    pub(super) fn on_listed(&mut self, now: Duration, ledgers: &[LedgerId], is_last: bool) {
        self.listed.all += ledgers.len() as u64;
        for ledger in ledgers.iter().filter(|ledger| self.team.owns_ledger(**ledger)) {
            self.listed.own += 1;
            if !self.done.contains(*ledger) && !self.ledgers.contains_key(ledger) {
                self.visits.want(now, *ledger);
            }
        }
        self.listing = match is_last {
            true => Listing::Waits(now + self.settings.list_interval),
            false => Listing::GoesOn,
        };
        if is_last {
            self.listed_before = self.listed;
            self.visits.listed(self.listed.since);
        }
    }

    /// Begins visits, as many as there are places.
    pub(super) fn visit(&mut self, now: Duration) {
        let ledgers_max = self.settings.ledgers_max + self.settings.visits_max;
        for _ in 0..SWEEP_MAX {
            if self.visits.under_way() >= self.settings.visits_max || self.ledgers.len() >= ledgers_max {
                return;
            }
            let next = self.visits.next(now, &self.done, self.settings.revisit_interval);
            let Some(ledger) = next else { return };
            // Others may have taken it over since, or it was asked for.
            if self.team.owns_ledger(ledger) && !self.ledgers.contains_key(&ledger) {
                self.done.remove(ledger);
                self.visits.begin(ledger);
                self.watch(now, ledger);
            }
        }
    }

    /// Ends the visit of a ledger that was looked at, or cannot be.
    pub(super) fn end_visit(&mut self, id: LedgerId) {
        let Some(ledger) = self.ledgers.get(&id) else { return };
        let is_known = ledger.failures > 0 || self.reborn.contains(&id);
        if has_looked(ledger) || is_known || ledger.stage != Stage::Idle {
            self.visits.end(id);
        }
    }

    /// Leaves as many ledgers as there are above the limit: such with which nothing is to be done at the moment, or else such as cannot be helped
    /// at the moment, or do not have enough yet. All of the latter are due at once when their turn comes again. When none can be left, that shows
    /// ([`Status::is_crowded`](super::Status::is_crowded)).
    pub(super) fn make_room(&mut self, now: Duration) {
        let watched = self.ledgers.len() - self.visits.under_way();
        let wanted = watched.saturating_sub(self.settings.ledgers_max);
        if wanted == 0 {
            self.is_crowded = false;
            return;
        }
        let mut left = self.find(wanted, |core, id, ledger| core.is_idle_ledger(now, id, ledger));
        if left.len() < wanted {
            let may_be = |core: &Core, id, ledger: &Ledger| {
                core.may_wait(now, id, ledger) && !core.is_idle_ledger(now, id, ledger)
            };
            left.extend(self.find(wanted - left.len(), may_be));
        }
        self.is_crowded = left.is_empty();
        for ledger in left {
            self.left_last = ledger;
            self.leave(now, ledger);
        }
    }

    /// So many ledgers of a kind, from the one on that was left last.
    fn find(&self, count: usize, is_it: impl Fn(&Core, LedgerId, &Ledger) -> bool) -> Vec<LedgerId> {
        let behind = self.ledgers.range(self.left_last..);
        let all = behind.chain(self.ledgers.range(..self.left_last));
        all.filter(|(id, ledger)| is_it(self, **id, ledger)).take(count).map(|(id, _)| *id).collect()
    }

    /// Whether nothing is to be done with it: an open one that does not grow, mostly.
    fn is_idle_ledger(&self, now: Duration, id: LedgerId, ledger: &Ledger) -> bool {
        self.may_be_left(now, id, ledger)
            && has_looked(ledger)
            && ledger.untiered().is_none()
            // It did not grow between the last two looks.
            && ledger.look_pause > self.settings.look_interval.0
            && self.updates.is_settled(id)
    }

    /// Whether nothing is lost when it is left: it had its look, and is not due, or cannot be read at the moment.
    fn may_wait(&self, now: Duration, id: LedgerId, ledger: &Ledger) -> bool {
        let is_due = ledger.untiered().is_some() && self.is_due(now, ledger);
        let is_failing = ledger.failures > 0 && now < ledger.not_before;
        self.may_be_left(now, id, ledger) && (is_failing || (has_looked(ledger) && !is_due))
    }

    /// Whether it may make room: it was not asked for, either.
    fn may_be_left(&self, now: Duration, id: LedgerId, ledger: &Ledger) -> bool {
        self.is_free(id, ledger) && !ledger.is_urgent && !ledger.is_stale && now >= ledger.kept_until
    }

    pub(super) fn watch(&mut self, now: Duration, ledger: LedgerId) {
        self.ledgers.entry(ledger).or_insert_with(|| {
            self.looks.insert((now, ledger));
            Ledger::new(now)
        });
    }

    /// The live tierers are others than before.
    pub(super) fn on_tierers(&mut self, now: Duration, team: Team) {
        let team = match self.settings.canaries.has(Canary::T20MembersStay) && self.has_team {
            true => team.with(&self.team),
            false => team,
        };
        let is_first = !std::mem::replace(&mut self.has_team, true);
        let before = std::mem::replace(&mut self.team, team);
        if self.team == before {
            return;
        }
        if !before.includes(&self.team) {
            // A tierer came, and takes ledgers over.
            self.touched.extend(self.ledgers.keys().copied());
        }
        if let Listing::Waits(begin) = self.listing {
            self.listing = Listing::Waits(match is_first {
                // Other tierers hear of this one meanwhile, and finish what they have begun.
                true if self.team.count() > 1 => now + self.settings.handover,
                true => begin,
                // Ledgers of a tierer that went are to be found.
                false if !self.team.includes(&before) => now,
                false => begin,
            });
        }
    }

    /// Whether another tierer's ledger can be left to it (invariant 3). One that was asked for is kept for a time, however it grows.
    pub(super) fn is_handed_over(&self, now: Duration, id: LedgerId, ledger: &Ledger) -> bool {
        !self.team.owns_ledger(id) && now >= ledger.kept_until && self.is_free(id, ledger)
    }

    /// Whether the ledger is in no object, no question about it is open, and no doubt rests on it: no bookie is ahead of the catalogue, the
    /// catalogue has no gap in it, and does not hold another ledger of the same id.
    fn is_free(&self, id: LedgerId, ledger: &Ledger) -> bool {
        ledger.stage == Stage::Idle
            && !ledger.is_looking
            && !ledger.is_locating
            && !ledger.is_asking
            && ledger.doubt.is_none()
            && ledger.stopped.is_none()
            && !self.gaps.contains_key(&id)
            && !self.reborn.contains(&id)
    }
}

/// Whether it is known where it ends, there and in the catalogue, and what its bookies know.
fn has_looked(ledger: &Ledger) -> bool {
    ledger.tiered.is_some() && (ledger.is_asked || ledger.available.is_none())
}
