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
        match self.next_pause() {
            Some(pause) => sleep(pause).await,
            None => return false,
        }
        true
    }

    /// The pause before the next try; nothing when it took too long already.
    pub fn next_pause(&mut self) -> Option<Duration> {
        let since = *self.since.get_or_insert_with(Instant::now);
        (since.elapsed() < self.patience).then(|| {
            let pause = PAUSE_MAX.min(PAUSE_MIN * 2u32.pow(self.tries.min(10)));
            self.tries += 1;
            pause
        })
    }
}
