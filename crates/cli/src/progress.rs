//! Progress bars on standard error, only where somebody sees them.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::io::{IsTerminal, stderr, stdout};
use std::time::Duration;
use tokio::time::Instant;

/// Work done before this needs no bar.
const SHOWN_AFTER: Duration = Duration::from_millis(500);
/// A bar is drawn so often.
const DRAWS_EACH_SECOND: u8 = 5;

/// The unit that a bar counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Entries.
    Entries,
    /// Ledgers.
    Ledgers,
    /// Seconds of a measurement, with a text.
    Seconds,
}

/// A bar with rate and remaining time; nothing when standard error is no terminal.
pub struct Progress {
    bar: Option<ProgressBar>,
    template: &'static str,
    begin: Instant,
    is_shown: bool,
}

impl Progress {
    /// A bar up to `total`. With `beside_data`, none either when data goes to the same terminal.
    pub fn start(unit: Unit, total: Option<u64>, beside_data: bool) -> Progress {
        let is_seen = stderr().is_terminal() && !(beside_data && stdout().is_terminal());
        let template = match (unit, total) {
            (Unit::Bytes, Some(_)) => {
                "{bar:30} {percent:>3}%  {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left"
            }
            (Unit::Bytes, None) => "{bytes}  {bytes_per_sec}",
            (Unit::Entries, Some(_)) => {
                "{bar:30} {percent:>3}%  {human_pos} of {human_len} entries  {rate}  {eta} left"
            }
            (Unit::Entries, None) => "{human_pos} entries  {rate}",
            (Unit::Ledgers, Some(_)) => {
                "{bar:30} {percent:>3}%  {human_pos} of {human_len} ledgers  {eta} left"
            }
            (Unit::Ledgers, None) => "{human_pos} ledgers",
            (Unit::Seconds, _) => "{bar:30} {pos} of {len} s  {msg}",
        };
        let bar = is_seen.then(|| ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden()));
        Progress { bar, template, begin: Instant::now(), is_shown: false }
    }

    /// So much is done.
    pub fn set(&mut self, position: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
            self.show();
        }
    }

    /// Text beside the bar.
    pub fn say(&mut self, text: impl FnOnce() -> String) {
        if let Some(bar) = &self.bar {
            bar.set_message(text());
        }
    }

    /// Prints lines without the bar between them.
    pub fn beside<R>(&self, print: impl FnOnce() -> R) -> R {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    fn show(&mut self) {
        let Some(bar) = &self.bar else { return };
        if self.is_shown || self.begin.elapsed() < SHOWN_AFTER {
            return;
        }
        self.is_shown = true;
        let style = ProgressStyle::with_template(self.template).expect("a fixed template");
        let rate = |state: &ProgressState, out: &mut dyn Write| {
            let _ = write!(out, "{:.0}/s", state.per_sec());
        };
        bar.set_style(style.with_key("rate", rate).progress_chars("=> "));
        bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(DRAWS_EACH_SECOND));
    }

    /// Takes the bar off the terminal: whatever is said next starts on a clean line.
    pub fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
