//! The time in which the peer of a connection did not take what waited for it. A request does not grow old meanwhile: it is
//! served late because of its own client, which may have stood still and asks again when it is refused.
//!
//! # Limits
//! [`STRETCHES_MAX`] stretches, none of them shorter than a sixteenth of the maximum age unless it is the last: together at
//! least twice that age, beyond which nothing has to be known.

use std::collections::VecDeque;
use std::time::Duration;

/// See the module.
const STRETCHES_MAX: usize = 32;
/// Parts of the maximum age that are told apart.
const PARTS: u32 = 16;

/// A time in which the peer kept this side waiting, on and off.
struct Stretch {
    begin_ns: u64,
    end_ns: u64,
    /// How much of it.
    waited_ns: u64,
}

/// See the module.
pub struct PeerTime {
    /// Waits that begin within so much of each other are one stretch.
    step_ns: u64,
    /// Since when this side has been waiting for the peer.
    since_ns: Option<u64>,
    stretches: VecDeque<Stretch>,
}

impl PeerTime {
    /// For requests of this maximum age.
    pub fn new(age_max: Duration) -> PeerTime {
        let step_ns = u64::try_from((age_max / PARTS).as_nanos()).unwrap_or(u64::MAX);
        PeerTime { step_ns, since_ns: None, stretches: VecDeque::new() }
    }

    /// The socket takes nothing more.
    pub fn begin(&mut self, now_ns: u64) {
        self.since_ns.get_or_insert(now_ns);
    }

    /// It took everything, or takes more.
    pub fn end(&mut self, now_ns: u64) {
        let Some(begin_ns) = self.since_ns.take() else { return };
        let end_ns = now_ns.max(begin_ns);
        match self.stretches.back_mut() {
            Some(last) if end_ns.saturating_sub(last.begin_ns) < self.step_ns => {
                last.end_ns = end_ns;
                last.waited_ns += end_ns - begin_ns;
            }
            _ => {
                if self.stretches.len() == STRETCHES_MAX {
                    self.stretches.pop_front();
                }
                self.stretches.push_back(Stretch { begin_ns, end_ns, waited_ns: end_ns - begin_ns });
            }
        }
    }

    /// How much of the time from `begin_ns` to now the peer took.
    pub fn since(&self, begin_ns: u64, now_ns: u64) -> Duration {
        let now_waits = self.since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns.max(begin_ns)));
        let later = self.stretches.iter().rev().take_while(|stretch| stretch.end_ns > begin_ns);
        let waited_ns =
            later.fold(now_waits, |sum, stretch| sum.saturating_add(stretch.waited_since(begin_ns)));
        Duration::from_nanos(waited_ns)
    }
}

impl Stretch {
    /// The waits are taken to be spread evenly.
    fn waited_since(&self, begin_ns: u64) -> u64 {
        if begin_ns <= self.begin_ns {
            return self.waited_ns;
        }
        let (part, whole) = (self.end_ns.saturating_sub(begin_ns), self.end_ns - self.begin_ns);
        let waited = u128::from(self.waited_ns) * u128::from(part) / u128::from(whole.max(1));
        u64::try_from(waited).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(waits: &[(u64, u64)]) -> PeerTime {
        let mut peer = PeerTime::new(Duration::from_nanos(1600));
        for (begin, end) in waits {
            peer.begin(*begin);
            // Seen again while it lasts.
            peer.begin(begin + 1);
            peer.end(*end);
            peer.end(end + 1);
        }
        peer
    }

    fn took(peer: &PeerTime, begin: u64, now: u64) -> u128 {
        peer.since(begin, now).as_nanos()
    }

    #[test]
    fn the_part_of_a_wait_that_a_request_was_there_for_counts() {
        let mut peer = peer(&[(1000, 2000), (5000, 5500)]);
        assert_eq!(took(&peer, 0, 6000), 1500);
        assert_eq!(took(&peer, 1900, 6000), 600);
        assert_eq!(took(&peer, 3000, 6000), 500);
        assert_eq!(took(&peer, 5500, 6000), 0);
        peer.begin(7000);
        assert_eq!(
            [took(&peer, 5400, 7300), took(&peer, 7200, 7300), took(&peer, 7400, 7300)],
            [400, 100, 0]
        );
    }

    #[test]
    fn short_waits_count_with_their_own_length_and_take_little_memory() {
        // A tenth of the time, for longer than is remembered.
        let waits: Vec<(u64, u64)> = (0..2000).map(|i| (i * 10, i * 10 + 1)).collect();
        let peer = peer(&waits);
        assert_eq!(peer.stretches.len(), STRETCHES_MAX);
        let took = took(&peer, 20_000 - 1600, 20_000);
        assert!((150..=170).contains(&took), "{took}");
        // A clock that went back between two threads.
        let mut peer = PeerTime::new(Duration::ZERO);
        peer.begin(10);
        peer.end(5);
        assert_eq!(peer.since(0, 20), Duration::ZERO);
    }
}
