//! A bookie that refuses adds with "too many requests" again and again: new ensembles avoid it for a while (C6).
//!
//! Each refusal is a sound answer, which a busy bookie gives and is well again. But one whose memory stays full, because its disk hangs,
//! answers all else: probes find it well, and its registration may say that it is writable. Each ledger that gets it then
//! stands still for as long as the bookie lets adds wait, and changes its ensemble.
//!
//! # Invariants
//! 1. Refusals less than [`APART`] after the last one that counted are one with it: a burst is no repetition.
//! 2. It is avoided [`AVOIDED`] from the last one that counted, if there was one not longer than [`AGAIN`] before. Then it is tried: the
//!    next refusal has it avoided again, and when there is none it is as any other.
//!
//! # Limits     two moments

use std::time::Duration;

use parking_lot::Mutex;

const APART: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_secs(60);
const AVOIDED: Duration = Duration::from_secs(30);

/// See the module. `now` counts from any fixed moment.
#[derive(Default)]
pub(super) struct AddRefusals {
    /// The last two that count, the later one first.
    last: Mutex<[Option<Duration>; 2]>,
}

impl AddRefusals {
    pub(super) fn refused(&self, now: Duration) {
        let mut last = self.last.lock();
        if last[0].is_none_or(|at| now.saturating_sub(at) >= APART) {
            *last = [Some(now), last[0]];
        }
    }

    pub(super) fn is_avoided(&self, now: Duration) -> bool {
        let [Some(last), Some(before)] = *self.last.lock() else { return false };
        last.saturating_sub(before) <= AGAIN && now.saturating_sub(last) < AVOIDED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_avoided_when_it_refuses_again_and_comes_back_when_it_does_not() {
        let (refusals, at) = (AddRefusals::default(), Duration::from_millis);
        assert!(!refusals.is_avoided(at(0)));
        for ms in 0..900 {
            refusals.refused(at(ms));
        }
        assert!(!refusals.is_avoided(at(900)), "one burst");
        refusals.refused(at(40_000));
        assert!(refusals.is_avoided(at(40_000)) && refusals.is_avoided(at(69_999)));
        assert!(!refusals.is_avoided(at(70_000)), "it is tried");
        refusals.refused(at(72_000));
        assert!(refusals.is_avoided(at(72_000)) && refusals.is_avoided(at(101_000)));
        refusals.refused(at(200_000));
        assert!(!refusals.is_avoided(at(200_000)), "it was well for so long that this is the first");
    }
}
