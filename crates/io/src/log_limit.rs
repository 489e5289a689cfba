//! A limit for log lines that a peer can cause: one in a while, with the number of those left out.

use std::time::Duration;

/// Lets one event through in each interval and counts the others.
#[derive(Debug)]
pub struct LogLimit {
    interval_ns: u64,
    last_ns: Option<u64>,
    left_out: u64,
}

impl LogLimit {
    /// One event in `interval`; the first goes through at once.
    pub fn new(interval: Duration) -> LogLimit {
        LogLimit { interval_ns: interval.as_nanos() as u64, last_ns: None, left_out: 0 }
    }

    /// Of an event at `now_ns`: how many were left out since the last one that went through, or `None` when this one is
    /// left out, too.
    pub fn admit(&mut self, now_ns: u64) -> Option<u64> {
        if self.last_ns.is_some_and(|last| now_ns.saturating_sub(last) < self.interval_ns) {
            self.left_out += 1;
            return None;
        }
        self.last_ns = Some(now_ns);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_an_interval_says_how_many_there_were() {
        let mut limit = LogLimit::new(Duration::from_nanos(10));
        let seen: Vec<_> = [0, 1, 9, 10, 19, 30].into_iter().map(|now| limit.admit(now)).collect();
        assert_eq!(seen, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
