//! Whether the store can be reached: after failures in a row, readers are told so at once.

use std::sync::Arc;

use crate::fetch::{FetchError, FetchOptions};

#[derive(Debug)]
enum State {
    /// Requests are sent.
    Reachable,
    /// None is sent before then.
    Pause { until_ns: u64 },
    /// One is on its way, or in a queue, to find out.
    Trial,
}

/// See the module.
#[derive(Debug)]
pub struct Circuit {
    failures_max: u32,
    pause_min_ns: u64,
    pause_max_ns: u64,
    failures: u32,
    pause_ns: u64,
    state: State,
    reason: Arc<str>,
}

impl Circuit {
    pub fn new(options: &FetchOptions) -> Circuit {
        let pause_min_ns = options.pause_min.as_nanos() as u64;
        Circuit {
            failures_max: options.failures_max,
            pause_min_ns,
            pause_max_ns: options.pause_max.as_nanos() as u64,
            failures: 0,
            pause_ns: pause_min_ns,
            state: State::Reachable,
            reason: Arc::from(""),
        }
    }

    /// Requests are sent without doubt.
    pub fn is_reachable(&self) -> bool {
        matches!(self.state, State::Reachable)
    }

    /// True when a request may be sent that is not yet on its way. The first after a pause is the trial.
    pub fn admit(&mut self, now_ns: u64) -> Result<(), FetchError> {
        match self.state {
            State::Reachable => Ok(()),
            State::Pause { until_ns } if until_ns <= now_ns => {
                self.state = State::Trial;
                Ok(())
            }
            State::Pause { .. } | State::Trial => Err(self.error()),
        }
    }

    /// The answer to those that may not send one.
    pub fn error(&self) -> FetchError {
        FetchError::Unreachable { reason: self.reason.clone() }
    }

    /// The store answered, whatever it said.
    pub fn succeed(&mut self) {
        self.failures = 0;
        self.pause_ns = self.pause_min_ns;
        self.state = State::Reachable;
    }

    /// A request failed. True when from now on none is sent.
    pub fn fail(&mut self, now_ns: u64, reason: &Arc<str>) -> bool {
        self.reason = reason.clone();
        self.failures = self.failures.saturating_add(1);
        match self.state {
            State::Reachable if self.failures < self.failures_max => return false,
            // Requests of before: the pause is as long as it was.
            State::Pause { .. } => return true,
            State::Reachable => {}
            State::Trial => self.pause_ns = self.pause_ns.saturating_mul(2).min(self.pause_max_ns),
        }
        self.state = State::Pause { until_ns: now_ns.saturating_add(self.pause_ns) };
        true
    }

    /// The trial was given up before it was sent: the next one tries.
    pub fn give_up_trial(&mut self, now_ns: u64) {
        if matches!(self.state, State::Trial) {
            self.state = State::Pause { until_ns: now_ns };
        }
    }
}
