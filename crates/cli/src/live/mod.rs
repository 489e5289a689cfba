//! Commands that draw again and again on a terminal until somebody has seen enough: `bindery flow`, `bindery bookie health`, `bindery
//! cluster status`.

pub mod fit;
mod screen;
pub mod spark;

pub use screen::{Key, Screen};

use crate::exit::Failure;
use crate::signals;
use clap::Args;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind};

/// The end of a wait.
pub enum Event {
    /// The interval is over.
    Time,
    /// A key.
    Key(Key),
    /// A signal to end.
    Quit,
    /// The terminal has another size.
    Resized,
}

/// How a command draws.
#[derive(Debug, Clone, Copy, Args)]
pub struct DrawArgs {
    /// Draw with ASCII characters alone, as when the locale is not one of UTF-8
    #[arg(long)]
    pub ascii: bool,
}

/// Whether colours may be shown: not with `NO_COLOR` set (<https://no-color.org>).
pub fn has_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Signals and keys of a command that draws on a terminal.
pub struct Events {
    terminate: Signal,
    interrupt: Signal,
    resized: Signal,
}

impl Events {
    /// Catches signals from here on.
    pub fn new() -> Result<Events, Failure> {
        let catch = signals::catch;
        Ok(Events {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
            resized: catch(SignalKind::window_change())?,
        })
    }

    /// The next one, or the end of the interval.
    pub async fn next(&mut self, screen: &mut Screen, interval: Duration) -> Event {
        tokio::select! {
            _ = self.terminate.recv() => Event::Quit,
            _ = self.interrupt.recv() => Event::Quit,
            _ = self.resized.recv() => Event::Resized,
            key = screen.key() => Event::Key(key),
            () = tokio::time::sleep(interval) => Event::Time,
        }
    }
}
