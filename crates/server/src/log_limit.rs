//! Limits for log lines that a peer can cause.

pub use bindery_io::LogLimit;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// Between two lines of a [`PeerLog`].
const INTERVAL: Duration = Duration::from_secs(10);

/// One kind of line that peers cause, however often: one in ten seconds.
pub struct PeerLog {
    limit: Mutex<LogLimit>,
    begun: Instant,
}

impl Default for PeerLog {
    fn default() -> PeerLog {
        PeerLog { limit: Mutex::new(LogLimit::new(INTERVAL)), begun: Instant::now() }
    }
}

impl PeerLog {
    /// Writes a line, which gets the number of those that were left out before, unless one was written just now.
    pub fn write(&self, line: impl FnOnce(u64)) {
        let now_ns = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let admitted = self.limit.lock().admit(now_ns);
        if let Some(left_out) = admitted {
            line(left_out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_lines_are_one() {
        let (log, mut lines) = (PeerLog::default(), 0);
        for _ in 0..1000 {
            log.write(|_| lines += 1);
        }
        assert!((1..100).contains(&lines), "{lines}");
    }
}
