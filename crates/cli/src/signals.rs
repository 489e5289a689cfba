//! Signals: SIGTERM and SIGINT as a request to stop, a second one as a request not to wait for that, and what they leave on a terminal.
//!
//! # Invariant
//! 1. [`catch`] is the only way to take a signal over. Every other signal ends the process, also while a bar is shown.

use crate::exit::{self, Failure};
use crate::runtime;
use crate::status_line;
use bindery_server::latch::Latch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that a part of the process takes.
static IS_INTERRUPT_TAKEN: AtomicBool = AtomicBool::new(false);
static IS_TERMINATE_TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes a signal over: from here on it does not end the process by itself. Call it inside a runtime.
pub fn catch(kind: SignalKind) -> Result<Signal, Failure> {
    let caught = signal(kind).map_err(|error| Failure::new(format!("cannot handle signals: {error}")))?;
    if kind == SignalKind::interrupt() {
        IS_INTERRUPT_TAKEN.store(true, Ordering::Release);
    }
    if kind == SignalKind::terminate() {
        IS_TERMINATE_TAKEN.store(true, Ordering::Release);
    }
    Ok(caught)
}

/// From here on SIGINT and SIGTERM take the bar off the terminal, and then end the process if nobody took them over.
pub fn leave_a_clean_line() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        // Without a thread or descriptors for it the line stays, and the process ends as ever.
        let Ok(runtime) = runtime::single() else { return };
        let both = runtime.block_on(async {
            signal(SignalKind::interrupt()).ok().zip(signal(SignalKind::terminate()).ok())
        });
        let Some((interrupt, terminate)) = both else { return };
        let thread = std::thread::Builder::new().name("bindery-signals".to_owned());
        // It ends with the process.
        let _ = thread.spawn(move || runtime.block_on(clean(interrupt, terminate)));
    });
}

async fn clean(mut interrupt: Signal, mut terminate: Signal) {
    loop {
        let (kind, is_taken) = tokio::select! {
            _ = interrupt.recv() => (SignalKind::interrupt(), &IS_INTERRUPT_TAKEN),
            _ = terminate.recv() => (SignalKind::terminate(), &IS_TERMINATE_TAKEN),
        };
        match is_taken.load(Ordering::Acquire) {
            true => status_line::beside(|| ()),
            // The line is held until the end: no bar comes back.
            false => status_line::beside(|| {
                std::process::exit(i32::from(exit::SIGNALLED) + kind.as_raw_value());
            }),
        }
    }
}

/// Both signals, caught from here on.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals over. Call it inside a runtime.
    pub fn new() -> Result<Signals, Failure> {
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
