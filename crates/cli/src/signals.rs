//! SIGTERM and SIGINT as a request to stop, and a second one as a request not to wait for that.

use crate::exit::{self, Failure};
use bindery_server::latch::Latch;
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals, caught from here on.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals over. Call it inside a runtime.
    pub fn new() -> Result<Signals, Failure> {
        let catch =
            |kind| signal(kind).map_err(|error| Failure::new(format!("cannot handle signals: {error}")));
        Ok(Signals { terminate: catch(SignalKind::terminate())?, interrupt: catch(SignalKind::interrupt())? })
    }

    /// Switches `stop` on at the first of them. The second ends the process at once, which is as safe as kill -9: what
    /// was acknowledged is in the journal, and the next start replays it.
    pub async fn run(mut self, stop: Arc<Latch>) {
        let signal = self.next().await;
        tracing::info!(signal, "asked to stop");
        stop.set();
        let signal = self.next().await;
        tracing::warn!(
            signal,
            "asked to stop again: exiting immediately; the next start replays the journal"
        );
        std::process::exit(i32::from(exit::UNCLEAN_STOP));
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
