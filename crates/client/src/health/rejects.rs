//! How much a bookie refuses with "too many requests": a share of the requests goes elsewhere (C6).
//!
//! Of r requests of the last 30 s, a accepted, the share is (r - 2 a) / (r + 1), between 0 and 0.9.
//!
//! # Limits     ten windows of 3 s; nothing is counted while it refuses nothing

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

const STEP_SECS: u64 = 3;
const STEPS: u64 = 10;
const ACCEPTS_FACTOR: f64 = 2.0;
const RATIO_MAX: f64 = 0.9;

#[derive(Default)]
struct Window {
    step: u64,
    requests: u64,
    accepted: u64,
}

#[derive(Default)]
pub(super) struct Rejects {
    is_refusing: AtomicBool,
    windows: Mutex<VecDeque<Window>>,
}

impl Rejects {
    fn add(&self, now: Duration, accepted: u64) {
        let step = now.as_secs() / STEP_SECS;
        let mut windows = self.windows.lock();
        windows.retain(|window| window.step + STEPS > step);
        match windows.back_mut() {
            Some(last) if last.step >= step => {
                last.requests += 1;
                last.accepted += accepted;
            }
            _ => windows.push_back(Window { step, requests: 1, accepted }),
        }
        let is_refusing = windows.iter().any(|window| window.accepted < window.requests);
        self.is_refusing.store(is_refusing, Ordering::Release);
    }

    pub(super) fn rejected(&self, now: Duration) {
        self.add(now, 0);
    }

    pub(super) fn accepted(&self, now: Duration) {
        if self.is_refusing.load(Ordering::Acquire) {
            self.add(now, 1);
        }
    }

    pub(super) fn ratio(&self, now: Duration) -> f64 {
        if !self.is_refusing.load(Ordering::Acquire) {
            return 0.0;
        }
        let step = now.as_secs() / STEP_SECS;
        let windows = self.windows.lock();
        let recent = windows.iter().filter(|window| window.step + STEPS > step);
        let (requests, accepted) = recent.fold((0, 0), |(requests, accepted), window| {
            (requests + window.requests, accepted + window.accepted)
        });
        let ratio = (requests as f64 - ACCEPTS_FACTOR * accepted as f64) / (requests + 1) as f64;
        ratio.clamp(0.0, RATIO_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_that_goes_elsewhere() {
        let at = Duration::from_secs;
        // (accepted, rejected, ratio in per cent)
        for (accepted, rejected, expected) in
            [(100, 0, 0), (50, 49, 0), (25, 75, 49), (0, 9, 90), (0, 1000, 90)]
        {
            let rejects = Rejects::default();
            for _ in 0..rejected {
                rejects.rejected(at(1));
            }
            for _ in 0..accepted {
                rejects.accepted(at(2));
            }
            let percent = (rejects.ratio(at(3)) * 100.0) as u32;
            assert_eq!(percent, expected, "{accepted} accepted, {rejected} rejected (C6)");
            assert_eq!(rejects.ratio(at(40)), 0.0, "forgotten");
        }
        let rejects = Rejects::default();
        rejects.rejected(at(0));
        rejects.accepted(at(60));
        rejects.accepted(at(60));
        assert!(!rejects.is_refusing.load(Ordering::Acquire), "counted no more");
    }
}
