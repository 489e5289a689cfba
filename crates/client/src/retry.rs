//! Patience with the metadata store.

use std::time::Duration;

use tokio::time::{Instant, sleep};

const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Pauses that grow, up to the client's `metadata_patience` in all.
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
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.patience {
            return false;
        }
        sleep(PAUSE_MAX.min(PAUSE_MIN * 2u32.pow(self.tries.min(10)))).await;
        self.tries += 1;
        true
    }
}
