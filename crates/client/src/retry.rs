//! Patience with the metadata store and with bookies.

use std::time::Duration;

use tokio::time::{Instant, sleep};

const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Pauses that grow, up to a patience in all.
pub(crate) struct Retry {
    patience: Duration,
    since: Option<Instant>,
    tries: u32,
}

impl Retry {
    /// Time begins with the first pause.
    pub fn new(patience: Duration) -> Retry {
        Retry { patience, since: None, tries: 0 }
    }

    /// False when it took too long already.
    pub async fn pause(&mut self) -> bool {
        if self.is_over() {
            return false;
        }
        sleep(self.next_pause()).await;
        true
    }

    /// The pause before the next try. Whether it took too long already is the caller's to ask.
    pub fn next_pause(&mut self) -> Duration {
        self.since.get_or_insert_with(Instant::now);
        let pause = PAUSE_MAX.min(PAUSE_MIN * 2u32.pow(self.tries.min(10)));
        self.tries += 1;
        pause
    }

    /// Whether there was a pause.
    pub fn has_begun(&self) -> bool {
        self.since.is_some()
    }

    /// Whether it took too long already.
    pub fn is_over(&self) -> bool {
        self.since.map_or(Duration::ZERO, |since| since.elapsed()) >= self.patience
    }
}
