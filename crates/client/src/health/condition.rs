//! The state of one bookie as this process sees it: what it answered, and what probes of it found.
//!
//! ```text
//! Healthy --timeout, no connection, or 3 errors in a row--> Suspect --2 probes failed--> Unhealthy
//!    ^  ^---------------------- a probe answered --------------'                          |    ^
//!    '------ 10 s without an error ------ Probation <---- 2 probes answered in a row -----'    |
//!                                             '------------------- an error -------------------'
//! any --left the cluster--> Forgotten --registered again--> Healthy
//! ```
//!
//! # Invariants
//! 1. Nothing changes the state of a forgotten bookie but its return (C12).
//! 2. The search for a forgotten bookie ends after [`LOOKED_FOR`]; it begins again only if the bookie answers a request
//!    nevertheless.

use std::time::Duration;

/// Errors in a row that make a bookie suspect.
const ERRORS_MAX: u32 = 3;
/// Probes in a row that decide about a bookie, either way.
const PROBES: u32 = 2;
/// How long a bookie on probation must go without an error.
const PROBATION: Duration = Duration::from_secs(10);

/// How long the registration is searched for a bookie that left.
pub(super) const LOOKED_FOR: Duration = Duration::from_secs(30 * 60);

/// How a bookie looks from this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum NodeState {
    /// It answers.
    Healthy = 0,
    /// It was unhealthy, answers probes again, and gets a tenth of its share until it has gone without an error for a while.
    Probation = 1,
    /// It failed recently; a probe will tell whether it is well.
    Suspect = 2,
    /// It does not answer probes.
    Unhealthy = 3,
    /// It is not registered any more.
    Forgotten = 4,
}

impl NodeState {
    /// Its name, in lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            NodeState::Healthy => "healthy",
            NodeState::Probation => "probation",
            NodeState::Suspect => "suspect",
            NodeState::Unhealthy => "unhealthy",
            NodeState::Forgotten => "forgotten",
        }
    }

    pub(super) fn of(byte: u8) -> NodeState {
        match byte {
            0 => NodeState::Healthy,
            1 => NodeState::Probation,
            2 => NodeState::Suspect,
            3 => NodeState::Unhealthy,
            _ => NodeState::Forgotten,
        }
    }
}

/// The outcome of a request or a probe, as far as the state is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Any answer that is not an error of the bookie.
    Answered,
    /// No answer in the time that health allows.
    TimedOut,
    /// No connection, or it broke.
    Unreachable,
    /// An answer that says that the bookie has trouble, or makes no sense.
    Failed,
    /// The answer to a probe.
    ProbeAnswered,
    /// No answer to a probe.
    ProbeFailed,
    /// The registration is gone.
    Left,
    /// It is back.
    Returned,
}

/// See the module. `now` counts from any fixed moment.
#[derive(Debug, Default)]
pub(super) struct Condition {
    state: Option<NodeState>,
    errors_in_a_row: u32,
    /// Those with the outcome that counts in this state: failures of a suspect bookie, answers of an unhealthy one.
    probes_in_a_row: u32,
    since: Duration,
    last_failure: Option<Duration>,
    last_unhealthy: Option<Duration>,
    transitions: u64,
}

impl Condition {
    pub(super) fn state(&self) -> NodeState {
        self.state.unwrap_or(NodeState::Healthy)
    }

    /// Whether an answer would change nothing.
    pub(super) fn is_calm(&self) -> bool {
        self.state() == NodeState::Healthy && self.errors_in_a_row == 0
    }

    pub(super) fn last_failure(&self) -> Option<Duration> {
        self.last_failure
    }

    pub(super) fn transitions(&self) -> u64 {
        self.transitions
    }

    /// For how long a forgotten bookie has not been seen; `None` for any other.
    pub(super) fn gone_for(&self, now: Duration) -> Option<Duration> {
        (self.state() == NodeState::Forgotten).then(|| now.saturating_sub(self.since))
    }

    /// Whether new ensembles should avoid it: while it is not healthy, and for `quarantine` after it was found unhealthy.
    pub(super) fn is_quarantined(&self, now: Duration, quarantine: Duration) -> bool {
        self.state() != NodeState::Healthy
            || self.last_unhealthy.is_some_and(|at| now.saturating_sub(at) < quarantine)
    }

    fn go(&mut self, state: NodeState, now: Duration) {
        self.state = Some(state);
        self.since = now;
        self.errors_in_a_row = 0;
        self.probes_in_a_row = 0;
        self.transitions += 1;
        if state == NodeState::Unhealthy {
            self.last_unhealthy = Some(now);
        }
    }

    /// Takes an event: ends a probation that is over by now, then changes the state as the module's diagram shows.
    pub(super) fn on(&mut self, event: Event, now: Duration) {
        use Event::{Answered, Failed, Left, ProbeAnswered, ProbeFailed, Returned, TimedOut, Unreachable};
        use NodeState::{Forgotten, Healthy, Probation, Suspect, Unhealthy};
        self.settle(now);
        let state = self.state();
        match event {
            Left if state != Forgotten => return self.go(Forgotten, now),
            Returned if state == Forgotten => {
                // Its past does not count: it starts over.
                *self = Condition { transitions: self.transitions, ..Condition::default() };
                return self.go(Healthy, now);
            }
            Left | Returned => return,
            // Invariants 1 and 2.
            Answered if state == Forgotten && self.gone_for(now) >= Some(LOOKED_FOR) => {
                self.since = now;
                return;
            }
            _ if state == Forgotten => return,
            TimedOut | Unreachable | Failed | ProbeFailed => self.last_failure = Some(now),
            Answered | ProbeAnswered => {}
        }
        match (state, event) {
            (Healthy, Answered | ProbeAnswered) => self.errors_in_a_row = 0,
            (Healthy, TimedOut | Unreachable | ProbeFailed) => self.go(Suspect, now),
            (Healthy, Failed) => {
                self.errors_in_a_row += 1;
                if self.errors_in_a_row >= ERRORS_MAX {
                    self.go(Suspect, now);
                }
            }
            (Suspect, ProbeAnswered) => self.go(Healthy, now),
            (Suspect, ProbeFailed) => self.probe_counts(Unhealthy, now),
            (Unhealthy, ProbeAnswered) => self.probe_counts(Probation, now),
            (Unhealthy, ProbeFailed) => self.probes_in_a_row = 0,
            (Probation, TimedOut | Unreachable | Failed | ProbeFailed) => self.go(Unhealthy, now),
            // A request tells nothing that a probe will not tell soon.
            (Suspect | Unhealthy | Probation, _) => {}
            (Forgotten, _) | (_, Left | Returned) => unreachable!("looked at before"),
        }
    }

    fn probe_counts(&mut self, next: NodeState, now: Duration) {
        self.probes_in_a_row += 1;
        if self.probes_in_a_row >= PROBES {
            self.go(next, now);
        }
    }

    /// Ends a probation that is over.
    pub(super) fn settle(&mut self, now: Duration) {
        if self.state() == NodeState::Probation && now.saturating_sub(self.since) >= PROBATION {
            self.go(NodeState::Healthy, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Event::{Answered, Failed, Left, ProbeAnswered, ProbeFailed, Returned, TimedOut, Unreachable};
    use super::NodeState::{Forgotten, Healthy, Probation, Suspect, Unhealthy};
    use super::*;

    /// An event, the second at which it happens, and the state after it.
    type Step = (u64, Event, NodeState);

    #[test]
    fn every_transition_of_the_table() {
        let ill: [Step; 3] = [(0, TimedOut, Suspect), (1, ProbeFailed, Suspect), (2, ProbeFailed, Unhealthy)];
        let probation: [Step; 2] = [(3, ProbeAnswered, Unhealthy), (4, ProbeAnswered, Probation)];
        let cases: Vec<(&str, Vec<Step>)> = vec![
            (
                "an answer clears",
                vec![(0, TimedOut, Suspect), (0, Answered, Suspect), (1, ProbeAnswered, Healthy)],
            ),
            ("no connection", vec![(0, Unreachable, Suspect)]),
            ("C9: three errors", vec![(0, Failed, Healthy), (0, Failed, Healthy), (0, Failed, Suspect)]),
            (
                "errors in a row only",
                vec![
                    (0, Failed, Healthy),
                    (0, Failed, Healthy),
                    (0, Answered, Healthy),
                    (0, Failed, Healthy),
                    (0, Failed, Healthy),
                    (0, Failed, Suspect),
                ],
            ),
            ("two probes", ill.to_vec()),
            (
                "probes in a row only",
                [&ill[..], &[(3, ProbeAnswered, Unhealthy), (4, ProbeFailed, Unhealthy)]].concat(),
            ),
            (
                "probation",
                [&ill[..], &probation, &[(13, Answered, Probation), (14, Answered, Healthy)]].concat(),
            ),
            ("an error on probation", [&ill[..], &probation, &[(5, Failed, Unhealthy)]].concat()),
            ("C12: gone", [&ill[..], &[(3, Left, Forgotten), (4, ProbeAnswered, Forgotten)]].concat()),
            (
                "C12: late events, then back and clean",
                vec![
                    (0, Failed, Healthy),
                    (0, Failed, Healthy),
                    (1, Left, Forgotten),
                    (2, Answered, Forgotten),
                    (2, TimedOut, Forgotten),
                    (3, Returned, Healthy),
                    (3, Failed, Healthy),
                ],
            ),
            (
                "a member that is listed",
                vec![(0, Returned, Healthy), (1, TimedOut, Suspect), (1, Returned, Suspect)],
            ),
        ];
        for (name, steps) in cases {
            let mut condition = Condition::default();
            for (index, (second, event, expected)) in steps.into_iter().enumerate() {
                condition.on(event, Duration::from_secs(second));
                assert_eq!(condition.state(), expected, "{name}, step {index}");
            }
        }
    }

    #[test]
    fn new_ensembles_avoid_what_is_ill_and_for_a_while_what_was_unhealthy() {
        let at = Duration::from_secs;
        let quarantine = at(1800);
        let mut condition = Condition::default();
        assert!(!condition.is_quarantined(at(0), quarantine));
        condition.on(TimedOut, at(0));
        assert!(condition.is_quarantined(at(0), quarantine));
        condition.on(ProbeAnswered, at(1));
        assert!(!condition.is_quarantined(at(1), quarantine), "it was never found unhealthy");
        for event in [TimedOut, ProbeFailed, ProbeFailed, ProbeAnswered, ProbeAnswered] {
            condition.on(event, at(2));
        }
        condition.settle(at(12));
        assert_eq!(condition.state(), Healthy);
        assert!(condition.is_quarantined(at(12), quarantine));
        assert!(!condition.is_quarantined(at(2) + quarantine, quarantine));
        assert!(!condition.is_quarantined(at(12), Duration::ZERO), "as long as it is ill only");
    }
}
