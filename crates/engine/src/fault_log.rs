//! What reads say of entries that cannot be read: log lines, of which there must not be one for each request for a damaged entry, or they
//! would fill the disk of the log; and what goes into the damage register.

use crate::damage::DamageRegister;
use bindery_io::{Clock, LogLimit};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Between two lines.
const INTERVAL: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct FaultLog {
    limit: Mutex<LogLimit>,
    clock: Arc<dyn Clock>,
    damage: Arc<DamageRegister>,
}

impl FaultLog {
    pub(crate) fn new(clock: Arc<dyn Clock>, damage: Arc<DamageRegister>) -> FaultLog {
        FaultLog { limit: Mutex::new(LogLimit::new(INTERVAL)), clock, damage }
    }

    /// Where damage is noted.
    pub(crate) fn damage(&self) -> &DamageRegister {
        &self.damage
    }

    /// Writes a line, which gets the number of those that were left out before, unless one was written just now.
    pub(crate) fn write(&self, line: impl FnOnce(u64)) {
        let admitted = self.limit.lock().admit(self.clock.monotonic_ns());
        if let Some(left_out) = admitted {
            line(left_out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_io::SystemClock;

    #[test]
    fn many_faults_are_one_line() {
        let (log, mut lines) =
            (FaultLog::new(Arc::new(SystemClock::new()), Arc::new(DamageRegister::new(&[]))), 0);
        for _ in 0..1000 {
            log.write(|_| lines += 1);
        }
        // More than one only where the machine stood still for a second in between.
        assert!((1..100).contains(&lines), "{lines}");
    }
}
