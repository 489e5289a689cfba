//! What this process knows of one bookie: a counter of requests under way, latencies, and its state.
//!
//! # Invariants
//! 1. `pending` is what guards are alive plus what is held after a timeout; never negative, 0 when idle (C1).
//! 2. A request that timed out is held for [`HOLD`] after it was given up, so that a bookie that stopped does not look
//!    idle; the hold ends when the bookie is on probation, so that it does not look busy when it answers again (C2,
//!    C10).
//! 3. Sending takes no lock and no look-up: whoever holds a node has it. Threads do not count on one cache line (C13).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use bindery_io::{Random, SeededRandom};
use bindery_types::{BookieId, LedgerId};
use parking_lot::Mutex;

use super::READ_TIMEOUT;
use super::condition::{Condition, Event, NodeState};
use super::latency::Latency;
use super::load::{Load, Taken};
use super::refusals::AddRefusals;
use super::rejects::Rejects;
use super::trial::Trial;
use crate::location::Distance;
use crate::transport::BookieError;

/// How long a request that timed out goes on counting as under way.
pub(crate) const HOLD: Duration = Duration::from_secs(10);

/// Kinds of requests whose latencies are not comparable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// A read of one entry.
    Read = 0,
    /// A read of a run of entries.
    BatchRead = 1,
}

pub(super) const OPERATIONS: usize = 2;

/// What a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The answer that the request asks for.
    Answered,
    /// A sound answer with another result, such as "no such entry" or "fenced". Its latency says nothing: a bookie that
    /// has lost everything answers so at once.
    Declined,
    /// Too many requests.
    Rejected,
    /// An error of the bookie, or an answer that makes no sense.
    Failed,
    /// No connection, or it broke.
    Unreachable,
    /// No answer before it was given up.
    TimedOut,
    /// Nothing that is about the bookie: the client was closed.
    None,
}

/// Counts for those who watch, which nothing here goes by.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) reads_sent: AtomicU64,
    pub(crate) timeouts: AtomicU64,
    pub(crate) unreachable: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) missing_copies: AtomicU64,
    pub(crate) probes_answered: AtomicU64,
    pub(crate) probes_failed: AtomicU64,
    pub(crate) hedges_sent: AtomicU64,
    pub(crate) hedges_won: AtomicU64,
}

/// Counts one more.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[derive(Default)]
struct Guarded {
    condition: Condition,
    /// When what timed out stops counting, ascending.
    held: VecDeque<Duration>,
}

/// One bookie, see the module. `now` counts from the start of its [`NodeHealth`](super::NodeHealth).
pub struct Node {
    bookie: BookieId,
    /// Of its id, the same in every process.
    seed: u64,
    load: Load,
    /// Of `guarded`, for those who only look.
    state: AtomicU8,
    is_calm: AtomicBool,
    held: AtomicU64,
    guarded: Mutex<Guarded>,
    latency: [Latency; OPERATIONS],
    trials: [Trial; OPERATIONS],
    rejects: Rejects,
    add_refusals: AddRefusals,
    /// When it last said "too many requests", in milliseconds since the start, plus one; 0 if it never did.
    rejected_at: AtomicU64,
    /// A [`Distance`].
    distance: AtomicU8,
    /// Why it last did not do what was asked.
    last_error: Mutex<Option<String>>,
    pub(crate) counts: Counts,
}

impl Node {
    /// What an error of its requests means, which is kept for those who watch.
    pub(crate) fn outcome_of(&self, error: &BookieError) -> Outcome {
        let outcome = Outcome::from(error);
        if matches!(outcome, Outcome::Failed | Outcome::Unreachable) {
            *self.last_error.lock() = Some(error.to_string());
        }
        outcome
    }

    pub(super) fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }

    pub(super) fn new(bookie: BookieId) -> Node {
        Node {
            seed: SeededRandom::new(0).child(bookie.as_str()).seed(),
            bookie,
            load: Load::default(),
            state: AtomicU8::new(NodeState::Healthy as u8),
            is_calm: AtomicBool::new(true),
            held: AtomicU64::new(0),
            guarded: Mutex::default(),
            latency: Default::default(),
            trials: Default::default(),
            rejects: Rejects::default(),
            add_refusals: AddRefusals::default(),
            rejected_at: AtomicU64::new(0),
            distance: AtomicU8::new(Distance::Far as u8),
            last_error: Mutex::default(),
            counts: Counts::default(),
        }
    }

    /// The bookie.
    pub fn bookie(&self) -> &BookieId {
        &self.bookie
    }

    /// Where it stands among the replicas of a ledger whose readers stay: the lowest is its home. It depends on nothing but the two
    /// ids (rendezvous hashing), so that one replica that is replaced moves no other ledger.
    pub(crate) fn rank(&self, ledger: LedgerId) -> u64 {
        SeededRandom::new(self.seed ^ ledger.get().unsigned_abs()).next_u64()
    }

    /// Counts a request as under way until the guard is dropped.
    pub fn begin(&self) -> Pending<'_> {
        Pending { node: self, taken: self.load.take() }
    }

    /// Requests under way, and those held after a timeout.
    pub fn pending(&self) -> u64 {
        self.load.under_way() + self.held.load(Ordering::Acquire)
    }

    /// The state as of the last event; a probation may be over meanwhile, see [`settle`](Self::settle).
    pub fn state(&self) -> NodeState {
        NodeState::of(self.state.load(Ordering::Acquire))
    }

    fn change(&self, now: Duration, change: impl FnOnce(&mut Guarded)) {
        let mut guarded = self.guarded.lock();
        let before = guarded.condition.state();
        change(&mut guarded);
        let after = guarded.condition.state();
        self.state.store(after as u8, Ordering::Release);
        self.is_calm.store(guarded.condition.is_calm(), Ordering::Release);
        // Invariant 2.
        if before == NodeState::Unhealthy && after == NodeState::Probation {
            guarded.held = VecDeque::new();
        }
        self.held.store(guarded.held.len() as u64, Ordering::Release);
        drop(guarded);
        if before != after {
            tracing::info!(bookie_id = %self.bookie, ?before, ?after, at = ?now, "bookie state changed");
        }
    }

    pub(super) fn on(&self, event: Event, now: Duration) {
        match event {
            // All is well and stays so: no lock.
            Event::Answered if self.is_calm.load(Ordering::Acquire) => return,
            Event::ProbeAnswered => count(&self.counts.probes_answered),
            Event::ProbeFailed => count(&self.counts.probes_failed),
            _ => {}
        }
        self.change(now, |guarded| guarded.condition.on(event, now));
    }

    /// Ends a probation, and the hold of what timed out, when their time has come.
    pub(super) fn settle(&self, now: Duration) {
        if self.held.load(Ordering::Acquire) == 0 && self.state() != NodeState::Probation {
            return;
        }
        self.change(now, |guarded| {
            guarded.condition.settle(now);
            let over = guarded.held.partition_point(|until| *until <= now);
            guarded.held.drain(..over);
        });
    }

    /// A request took longer than health allows; it may still be answered.
    pub(super) fn is_late(&self, now: Duration) {
        count(&self.counts.timeouts);
        self.on(Event::TimedOut, now);
    }

    /// Takes what a request came to.
    pub(super) fn finished(
        &self,
        pending: Pending<'_>,
        operation: Operation,
        latency: Duration,
        outcome: Outcome,
        now: Duration,
    ) {
        if outcome == Outcome::Answered {
            let known = &self.latency[operation as usize];
            if self.trials[operation as usize].ends(latency, || known.mean(now)) {
                known.forget();
            }
            known.record(now, latency);
            self.load.answer(pending.taken);
        }
        if outcome == Outcome::TimedOut {
            pending.hold(now + HOLD);
            if latency >= READ_TIMEOUT {
                // It was known to be late before.
                return;
            }
        }
        self.note(outcome, now);
    }

    /// Takes what a request came to that was not counted.
    pub(super) fn note(&self, outcome: Outcome, now: Duration) {
        match outcome {
            Outcome::Answered | Outcome::Declined => {
                self.rejects.accepted(now);
                self.on(Event::Answered, now);
            }
            Outcome::Rejected => {
                count(&self.counts.rejected);
                self.rejects.rejected(now);
                self.rejected_at.fetch_max(now.as_millis() as u64 + 1, Ordering::Relaxed);
                self.on(Event::Answered, now);
            }
            Outcome::Failed => {
                count(&self.counts.errors);
                self.on(Event::Failed, now);
            }
            Outcome::Unreachable => {
                count(&self.counts.unreachable);
                self.on(Event::Unreachable, now);
            }
            Outcome::TimedOut => self.is_late(now),
            Outcome::None => {}
        }
    }

    /// Whether there may be anything to wait for: a probe, the end of a probation or of a hold, a return.
    pub(super) fn needs_care(&self) -> bool {
        self.state() != NodeState::Healthy || self.held.load(Ordering::Acquire) > 0
    }

    /// For how long a forgotten bookie was not seen; `None` of any other.
    pub(super) fn gone_for(&self, now: Duration) -> Option<Duration> {
        self.guarded.lock().condition.gone_for(now)
    }

    pub(super) fn last_failure(&self) -> Option<Duration> {
        self.guarded.lock().condition.last_failure()
    }

    /// Whether new ensembles avoid it: it is ill, was found unhealthy within `quarantine`, or refuses adds again and again.
    pub(super) fn is_avoided(&self, now: Duration, quarantine: Duration) -> bool {
        self.add_refusals.is_avoided(now) || self.guarded.lock().condition.is_quarantined(now, quarantine)
    }

    pub(super) fn transitions(&self) -> u64 {
        self.guarded.lock().condition.transitions()
    }

    pub(super) fn answered(&self) -> u64 {
        self.load.answered()
    }

    pub(super) fn latency(&self, operation: Operation) -> &Latency {
        &self.latency[operation as usize]
    }

    /// It is slow, and a request would go elsewhere: whether this one is to see if that still holds.
    pub(super) fn tries(&self, operation: Operation, now: Duration) -> bool {
        self.trials[operation as usize].begins(now)
    }

    /// How far away it is.
    pub(crate) fn distance(&self) -> Distance {
        match self.distance.load(Ordering::Relaxed) {
            0 => Distance::Rack,
            1 => Distance::Region,
            _ => Distance::Far,
        }
    }

    pub(super) fn is_at(&self, distance: Distance) {
        self.distance.store(distance as u8, Ordering::Relaxed);
    }

    /// How long ago it said "too many requests".
    pub(super) fn since_rejected(&self, now: Duration) -> Option<Duration> {
        let at = self.rejected_at.load(Ordering::Relaxed).checked_sub(1)?;
        Some(now.saturating_sub(Duration::from_millis(at)))
    }

    /// It refused an add for want of room.
    pub(super) fn refused_add(&self, now: Duration) {
        self.add_refusals.refused(now);
    }

    /// The share of requests (0 to 1) that had better go elsewhere, because it refuses too many.
    pub(super) fn reject_ratio(&self, now: Duration) -> f64 {
        self.rejects.ratio(now)
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("bookie", &self.bookie)
            .field("state", &self.state())
            .field("pending", &self.pending())
            .finish_non_exhaustive()
    }
}

/// A request under way. Dropped, it counts no more: on every path, once (C1).
#[must_use = "dropped at once, it counts nothing"]
pub struct Pending<'a> {
    node: &'a Node,
    taken: Taken,
}

impl Pending<'_> {
    /// Goes on counting until then (invariant 2).
    fn hold(self, until: Duration) {
        let mut guarded = self.node.guarded.lock();
        let at = guarded.held.partition_point(|held| *held <= until);
        guarded.held.insert(at, until);
        // From here on twice, until the guard goes: never not at all.
        self.node.held.store(guarded.held.len() as u64, Ordering::Release);
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.node.load.give_back(self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_io::SeededRandom;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn node() -> Node {
        Node::new(BookieId::new("a").unwrap())
    }

    #[test]
    fn what_timed_out_is_held_and_a_late_answer_is_not() {
        // C2.
        let node = node();
        let (answered_late, given_up) = (node.begin(), node.begin());
        node.is_late(at(1));
        assert_eq!((node.state(), node.pending()), (NodeState::Suspect, 2));
        node.finished(answered_late, Operation::Read, at(2), Outcome::Answered, at(2));
        assert_eq!(node.pending(), 1, "released at once");
        node.finished(given_up, Operation::Read, at(5), Outcome::TimedOut, at(5));
        node.settle(at(14));
        assert_eq!(node.pending(), 1, "held");
        node.settle(at(15));
        assert_eq!((node.pending(), node.held.load(Ordering::Acquire)), (0, 0));
    }

    #[test]
    fn what_a_bookie_did_not_answer_counts_no_more_when_it_is_back() {
        // Else fifty timeouts would block it for most of its probation (C10).
        let node = node();
        for _ in 0..60 {
            node.finished(node.begin(), Operation::Read, at(5), Outcome::TimedOut, at(5));
        }
        node.is_late(at(5));
        for _ in 0..2 {
            node.on(Event::ProbeFailed, at(6));
        }
        assert_eq!((node.state(), node.pending()), (NodeState::Unhealthy, 60));
        node.on(Event::ProbeAnswered, at(7));
        assert_eq!(node.pending(), 60);
        node.on(Event::ProbeAnswered, at(8));
        assert_eq!((node.state(), node.pending()), (NodeState::Probation, 0));
    }

    #[test]
    fn an_answer_without_the_entry_is_no_fault_and_no_latency() {
        let node = node();
        for _ in 0..10 {
            node.finished(node.begin(), Operation::Read, at(0), Outcome::Declined, at(1));
        }
        assert_eq!((node.state(), node.answered(), node.pending()), (NodeState::Healthy, 0, 0));
        assert_eq!(node.latency(Operation::Read).mean(at(1)), None);
    }

    #[test]
    fn too_many_requests_is_no_fault_and_counts_towards_the_reject_ratio() {
        // C6.
        let node = node();
        for _ in 0..100 {
            node.finished(node.begin(), Operation::Read, at(0), Outcome::Rejected, at(1));
        }
        assert_eq!(node.state(), NodeState::Healthy);
        assert!(node.reject_ratio(at(4)) > 0.8);
    }

    #[test]
    fn a_million_random_operations_leave_nothing_pending() {
        // C1: drops, timeouts, late answers, errors, removal and return.
        let (node, random) = (node(), SeededRandom::new(6));
        let mut under_way = VecDeque::new();
        let (mut now, mut held) = (Duration::ZERO, VecDeque::new());
        for _ in 0..1_000_000 {
            now += Duration::from_micros(random.below(2000));
            match random.below(8) {
                0..4 => under_way.push_back(node.begin()),
                4 => drop(under_way.pop_front()),
                5 => {
                    if let Some(pending) = under_way.pop_front() {
                        let outcome =
                            [Outcome::Answered, Outcome::Failed, Outcome::TimedOut, Outcome::Unreachable]
                                [random.below(4) as usize];
                        if outcome == Outcome::TimedOut {
                            held.push_back(now + HOLD);
                        }
                        node.finished(pending, Operation::Read, Duration::ZERO, outcome, now);
                    }
                }
                6 => {
                    let events = [Event::Left, Event::Returned, Event::ProbeAnswered, Event::ProbeFailed];
                    let before = node.state();
                    node.on(events[random.below(4) as usize], now);
                    if (before, node.state()) == (NodeState::Unhealthy, NodeState::Probation) {
                        held.clear();
                    }
                }
                _ => {
                    node.settle(now);
                    held.retain(|until| *until > now);
                    assert_eq!(node.pending(), (under_way.len() + held.len()) as u64);
                    if random.below(100) == 0 {
                        under_way.clear();
                    }
                }
            }
        }
        under_way.clear();
        node.settle(now + HOLD);
        assert_eq!(node.pending(), 0);
    }
}
