//! Patience with the metadata store.

use std::time::Duration;

use bindery_metadata::StoreError;
use bindery_metadata::layout::LedgerError;
use tokio::time::{Instant, sleep};

/// How long a metadata store that fails is waited for.
pub(crate) const METADATA_PATIENCE: Duration = Duration::from_secs(30);

const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Whether trying again may help.
pub(crate) fn is_transient(error: &LedgerError) -> bool {
    matches!(error, LedgerError::Store(error) if StoreError::is_transient(error))
}

/// Pauses that grow, up to [`METADATA_PATIENCE`] in all.
#[derive(Default)]
pub(crate) struct Retry {
    since: Option<Instant>,
    tries: u32,
}

impl Retry {
    /// False when it took too long already.
    pub async fn pause(&mut self) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= METADATA_PATIENCE {
            return false;
        }
        sleep(PAUSE_MAX.min(PAUSE_MIN * 2u32.pow(self.tries.min(10)))).await;
        self.tries += 1;
        true
    }
}
