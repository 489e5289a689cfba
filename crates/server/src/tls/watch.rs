//! The task that looks at the files of TLS for changes.

use super::Tls;
use crate::latch::Latch;
use std::sync::Arc;
use std::time::Duration;

/// Files are replaced one after the other and do not fit together for a moment, so a load that fails is repeated after this
/// time before it is reported.
const SETTLE: Duration = Duration::from_secs(1);

/// Looks at the files at intervals until it is stopped.
pub(crate) struct Watch {
    pub(crate) tls: Arc<Tls>,
    pub(crate) interval: Duration,
}

impl Watch {
    /// Runs until `stop`. A stop waits for no more than one look at the files.
    pub(crate) async fn run(self, stop: Arc<Latch>) {
        loop {
            if is_stopped_within(&stop, self.interval).await {
                return;
            }
            if self.look(false).await {
                if is_stopped_within(&stop, SETTLE).await {
                    return;
                }
                self.look(true).await;
            }
        }
    }

    async fn look(&self, is_last_try: bool) -> bool {
        let tls = self.tls.clone();
        let looked = tokio::task::spawn_blocking(move || tls.reload(is_last_try)).await;
        looked.unwrap_or_else(|error| {
            tracing::error!(%error, "the reload of TLS files panicked: the certificates loaded before stay in use");
            false
        })
    }
}

async fn is_stopped_within(stop: &Latch, time: Duration) -> bool {
    tokio::time::timeout(time, stop.wait()).await.is_ok()
}
