//! Files of an operator that are loaded again when they have changed: a task that looks at them at intervals.

use crate::latch::Latch;
use std::sync::Arc;
use std::time::Duration;

/// Files are replaced one after the other and do not fit together for a moment, so a load that fails is repeated after this
/// time before it is reported.
const SETTLE: Duration = Duration::from_secs(1);

/// How the log and alarms speak of the files.
pub(crate) struct Wording {
    /// The files.
    pub(crate) files: &'static str,
    /// The contents that count while the files cannot be loaded.
    pub(crate) kept: &'static str,
}

/// Why changed files cannot be loaded, if they cannot. The log says when that begins, changes and ends.
#[derive(Default)]
pub(crate) struct LoadFailure(Option<String>);

impl LoadFailure {
    /// True while the files cannot be loaded.
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Takes the outcome of a last try: why it failed, or nothing. True when it failed.
    pub(crate) fn note(&mut self, failed: Option<String>, wording: &Wording) -> bool {
        let Wording { files, kept } = wording;
        match &failed {
            Some(error) if self.0 != failed => tracing::error!(error, "cannot reload {files}: {kept}"),
            None if self.is_some() => tracing::info!("{files} can be loaded again"),
            _ => {}
        }
        self.0 = failed;
        self.is_some()
    }

    /// The alarm while the files cannot be loaded.
    pub(crate) fn alarm(&self, wording: &Wording) -> Option<String> {
        let Wording { files, kept } = wording;
        self.0.as_ref().map(|why| format!("cannot reload {files}, {kept}: {why}"))
    }
}

/// Contents that were loaded from files, and can be loaded again.
pub(crate) trait Reload: Send + Sync + 'static {
    /// How to speak of the files.
    const WORDING: Wording;

    /// Reads the files and loads them if they have changed. Blocks. True when they have changed and cannot be loaded, or cannot be
    /// read; unless it is the last try, that is kept quiet, because they may be changing at this moment.
    fn reload(&self, is_last_try: bool) -> bool;
}

/// Looks at the files at intervals until it is stopped.
pub(crate) struct Watch<T> {
    pub(crate) files: Arc<T>,
    pub(crate) interval: Duration,
}

impl<T: Reload> Watch<T> {
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
        let files = self.files.clone();
        let looked = tokio::task::spawn_blocking(move || files.reload(is_last_try)).await;
        looked.unwrap_or_else(|error| {
            tracing::error!(%error, "reloading {} panicked: the contents loaded earlier stay in use", T::WORDING.files);
            false
        })
    }
}

async fn is_stopped_within(stop: &Latch, time: Duration) -> bool {
    tokio::time::timeout(time, stop.wait()).await.is_ok()
}
