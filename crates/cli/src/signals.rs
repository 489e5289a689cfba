//! SIGTERM and SIGINT as a request to stop.

use crate::exit::Failure;
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

    /// Switches `stop` on at the first of them.
    pub async fn run(mut self, stop: Arc<Latch>) {
        let name = tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "asked to stop");
        stop.set();
    }
}
