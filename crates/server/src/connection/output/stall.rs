//! What to do with a peer that takes nothing.
//!
//! # Invariants
//! 1. Only time without any progress counts: a single byte taken restarts it.
//! 2. Pools cause no drop and no close while they have room and no task waits for them.
//! 3. Dropping comes first: a peer that no longer holds anything is not closed for the sake of others, unless the
//!    operator wants stalled peers always closed.

use crate::limits::{StallRules, StalledClose};
use std::time::Duration;

/// Since when a peer has taken nothing.
#[derive(Debug, Default)]
pub struct Watch(Option<(u64, u64)>);

impl Watch {
    /// Called when no bytes wait for the peer.
    pub fn reset(&mut self) {
        self.0 = None;
    }

    /// Something waits for the peer, which took `sent` bytes in all so far. Returns how long it has taken nothing.
    pub fn look(&mut self, now_ns: u64, sent: u64) -> Duration {
        match self.0 {
            Some((sent_before, since_ns)) if sent_before == sent => {
                Duration::from_nanos(now_ns.saturating_sub(since_ns))
            }
            _ => {
                self.0 = Some((sent, now_ns));
                Duration::ZERO
            }
        }
    }
}

/// How short of bytes a pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shortage {
    /// There is room.
    None,
    /// Above three quarters.
    Near,
    /// Above nine tenths, or somebody waits.
    Now,
}

impl Shortage {
    /// Of a pool as it is now.
    pub fn of(gauge: bindery_flow::BudgetGauge) -> Shortage {
        if gauge.waiting > 0 || gauge.used > gauge.capacity / 10 * 9 {
            Shortage::Now
        } else if gauge.used > gauge.capacity / 4 * 3 {
            Shortage::Near
        } else {
            Shortage::None
        }
    }
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Wait.
    Nothing,
    /// Make descriptors of its responses.
    Drop,
    /// Close it.
    Close,
}

/// What to do with a peer that took nothing for `idle`. Of the pool of entries, and of the `rest` (answers, descriptors):
/// whether it holds bytes that it could give back, and how short they are.
pub fn judge(
    rules: StallRules,
    idle: Duration,
    entries: (bool, Shortage),
    rest: [(bool, Shortage); 2],
) -> Act {
    let (can_drop, entries_short) = entries;
    if can_drop && entries_short > Shortage::None && idle >= rules.drop_after {
        return Act::Drop;
    }
    let is_closed = match rules.close {
        StalledClose::Never => false,
        StalledClose::Always => true,
        StalledClose::UnderPressure => {
            rest.into_iter().chain([entries]).any(|(holds, short)| holds && short == Shortage::Now)
        }
    };
    if is_closed && idle >= rules.close_after { Act::Close } else { Act::Nothing }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_flow::BudgetGauge;

    const RULES: StallRules = StallRules {
        drop_after: Duration::from_millis(200),
        close_after: Duration::from_secs(5),
        close: StalledClose::UnderPressure,
    };
    const NOTHING: [(bool, Shortage); 2] = [(false, Shortage::Now); 2];

    #[test]
    fn any_byte_begins_the_time_anew() {
        let mut watch = Watch::default();
        assert_eq!(watch.look(100, 7), Duration::ZERO);
        assert_eq!(watch.look(150, 7), Duration::from_nanos(50));
        assert_eq!(watch.look(160, 8), Duration::ZERO, "invariant 1");
        assert_eq!(watch.look(170, 8), Duration::from_nanos(10));
        watch.reset();
        assert_eq!(watch.look(180, 8), Duration::ZERO);
    }

    #[test]
    fn responses_are_dropped_when_memory_is_short_and_before_anybody_is_closed() {
        let long = Duration::from_secs(100);
        assert_eq!(
            judge(RULES, long, (true, Shortage::None), [(true, Shortage::None); 2]),
            Act::Nothing,
            "invariant 2"
        );
        assert_eq!(judge(RULES, Duration::from_millis(199), (true, Shortage::Now), NOTHING), Act::Nothing);
        assert_eq!(judge(RULES, Duration::from_millis(200), (true, Shortage::Near), NOTHING), Act::Drop);
        assert_eq!(judge(RULES, long, (true, Shortage::Now), NOTHING), Act::Drop, "invariant 3");
        assert_eq!(judge(RULES, long, (false, Shortage::Now), NOTHING), Act::Nothing, "invariant 3");
    }

    #[test]
    fn answers_cannot_be_dropped_so_their_holder_is_closed_when_others_wait() {
        let rest = |short| [(false, Shortage::Now), (true, short)];
        let none = (false, Shortage::None);
        let (short, near) = (rest(Shortage::Now), rest(Shortage::Near));
        assert_eq!(judge(RULES, Duration::from_millis(4999), none, short), Act::Nothing);
        assert_eq!(judge(RULES, Duration::from_secs(5), none, short), Act::Close);
        assert_eq!(judge(RULES, Duration::from_secs(5), none, near), Act::Nothing);
        let never = StallRules { close: StalledClose::Never, ..RULES };
        assert_eq!(judge(never, Duration::from_secs(5), none, short), Act::Nothing);
        let always = StallRules { close: StalledClose::Always, ..RULES };
        assert_eq!(judge(always, Duration::from_secs(5), none, [none; 2]), Act::Close);
        assert_eq!(judge(always, Duration::from_secs(4), none, [none; 2]), Act::Nothing);
    }

    #[test]
    fn a_pool_is_short_when_it_is_nearly_used_or_somebody_waits() {
        let gauge = |used, waiting| Shortage::of(BudgetGauge { capacity: 1000, used, waiting });
        assert_eq!(
            [gauge(750, 0), gauge(751, 0), gauge(900, 0)],
            [Shortage::None, Shortage::Near, Shortage::Near]
        );
        assert_eq!([gauge(901, 0), gauge(1, 1)], [Shortage::Now; 2]);
    }
}
