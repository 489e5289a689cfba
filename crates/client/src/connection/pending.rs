//! Requests that wait for their answers, of one connection.
//!
//! # Invariants
//! 1. Every request is given out exactly once: with its answer, as overdue, or by [`Pending::drain`].
//! 2. Reads of equal ledger and entry are answered in their order, as adds are (`adds`). A fencing read and a plain one
//!    of equal keys are never under way on one connection, since bookies may answer fencing reads ahead of plain ones,
//!    and the plain answer would say that a fence is complete when it is not ([`Pending::admits_read`]).
//! 3. An overdue v2 request keeps its place until its late answer comes. A v3 request, whose id is used once, keeps it for one
//!    more timeout, by which a silent connection is known; an answer with an id that nobody has is dropped.
//! 4. Places end with the connection, which ends when they are too many or too old, or nothing comes ([`Verdict`]).
//!
//! # Limits     waiting requests: those that callers have under way, plus those that they dropped and that are not
//! answered yet; places of overdue ones: [`PLACES_MAX`], for [`PLACE_AGE_TIMEOUTS`] request timeouts

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::adds::PendingAdds;
use super::delivery::{Deliveries, Outcome, Waiter};
use crate::transport::BookieError;

/// Overdue requests whose place one connection keeps.
pub(super) const PLACES_MAX: usize = 100_000;
/// How long a place is kept, in request timeouts, before the connection is given up. A bookie that answers some requests
/// and never answers others would else make later equal ones wait for ever.
pub(super) const PLACE_AGE_TIMEOUTS: u32 = 6;

/// How an answer names its request, other than an add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum CallKey {
    /// v2 read; the entry is raw, -1 for the last one.
    Read { ledger: i64, entry: i64 },
    /// v2 batch read, by request id.
    Batch { id: i64 },
    /// v3, by transaction id.
    V3 { id: u64 },
}

struct Call {
    /// `None` once it was given out as overdue.
    waiter: Option<Waiter>,
    is_fencing: bool,
    position: u64,
    deadline: Instant,
    /// What to say when it is overdue.
    timeout: Duration,
}

/// A look for what is overdue.
pub(super) struct Sweep {
    pub(super) now: Instant,
    /// How long adds may take.
    pub(super) timeout: Duration,
    /// Below it everything was written.
    pub(super) written: u64,
    /// When the connection last brought anything.
    pub(super) last_received: Option<Instant>,
}

impl Sweep {
    fn is_silent_since(&self, sent: Instant) -> bool {
        self.last_received.is_none_or(|last| last <= sent)
    }
}

/// What a sweep found.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    /// Given out now, or earlier and still without their answer.
    places: usize,
    has_unsent: bool,
    has_too_old: bool,
    is_silent: bool,
}

/// Why a connection must end although its socket still works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A request became overdue before its first byte left: the bookie takes nothing. What is queued here would be
    /// bounded by nobody once its callers have been answered.
    TakesNothing,
    /// Not a byte came for two request timeouts, although answers are due: the machine may be gone, which TCP alone
    /// notices after a quarter of an hour.
    Silent,
    /// Too many places are kept, or one for too long.
    OwesTooMuch,
}

impl Overdue {
    /// One more is given out as overdue.
    pub(super) fn give_up(&mut self, sweep: &Sweep, position: u64) {
        self.places += 1;
        self.has_unsent |= position >= sweep.written;
    }

    /// One was given out by an earlier sweep.
    pub(super) fn keep(&mut self, sweep: &Sweep, sent: Instant, deadline: Instant) {
        self.places += 1;
        self.has_too_old |= deadline + sweep.timeout * PLACE_AGE_TIMEOUTS <= sweep.now;
        self.look_for_silence(sweep, sent, deadline);
    }

    fn look_for_silence(&mut self, sweep: &Sweep, sent: Instant, deadline: Instant) {
        self.is_silent |= deadline + sweep.timeout <= sweep.now && sweep.is_silent_since(sent);
    }

    pub(super) fn verdict(&self) -> Option<Verdict> {
        if self.has_unsent {
            Some(Verdict::TakesNothing)
        } else if self.is_silent {
            Some(Verdict::Silent)
        } else if self.has_too_old || self.places > PLACES_MAX {
            Some(Verdict::OwesTooMuch)
        } else {
            None
        }
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) adds: PendingAdds,
    calls: HashMap<CallKey, VecDeque<Call>>,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.adds.is_empty() && self.calls.is_empty()
    }

    /// Whether a read of this kind may be under way now (invariant 2).
    pub(super) fn admits_read(&self, key: CallKey, is_fencing: bool) -> bool {
        self.calls.get(&key).is_none_or(|calls| calls.iter().all(|call| call.is_fencing == is_fencing))
    }

    pub(super) fn push(
        &mut self,
        key: CallKey,
        waiter: Waiter,
        is_fencing: bool,
        position: u64,
        deadline: Instant,
        timeout: Duration,
    ) {
        debug_assert!(self.admits_read(key, is_fencing), "pending invariant 2");
        let call = Call { waiter: Some(waiter), is_fencing, position, deadline, timeout };
        self.calls.entry(key).or_default().push_back(call);
    }

    /// Gives out the request that an answer belongs to. False when there is none.
    pub(super) fn answer(
        &mut self,
        key: CallKey,
        result: Result<Outcome, BookieError>,
        out: &mut Deliveries,
    ) -> bool {
        let Some(calls) = self.calls.get_mut(&key) else { return false };
        let call = calls.pop_front();
        if calls.is_empty() {
            self.calls.remove(&key);
        }
        if let Some(waiter) = call.and_then(|call| call.waiter) {
            out.call(waiter, result);
        }
        true
    }

    /// Gives out what is overdue.
    pub(super) fn sweep(&mut self, sweep: &Sweep, out: &mut Deliveries) -> Overdue {
        let mut found = Overdue::default();
        self.adds.sweep(sweep, &mut found, out);
        self.calls.retain(|key, calls| {
            for call in calls.iter_mut() {
                if call.deadline > sweep.now {
                    continue;
                }
                let sent = call.deadline - call.timeout;
                match call.waiter.take() {
                    None => found.keep(sweep, sent, call.deadline),
                    Some(waiter) => {
                        found.give_up(sweep, call.position);
                        // The only look at one that this sweep comes a whole timeout late for.
                        found.look_for_silence(sweep, sent, call.deadline);
                        out.call(waiter, Err(BookieError::TimedOut(call.timeout)));
                    }
                }
            }
            if let CallKey::V3 { .. } = key {
                // Invariant 3.
                calls.retain(|call| call.waiter.is_some() || call.deadline + sweep.timeout > sweep.now);
            }
            !calls.is_empty()
        });
        found
    }

    /// Gives out all that wait, with the error that `why` gives for a frame at this position.
    pub(super) fn drain(&mut self, why: &impl Fn(u64) -> BookieError, out: &mut Deliveries) {
        self.adds.drain(why, out);
        for call in self.calls.drain().flat_map(|(_, calls)| calls) {
            if let Some(waiter) = call.waiter {
                out.call(waiter, Err(why(call.position)));
            }
        }
    }
}
