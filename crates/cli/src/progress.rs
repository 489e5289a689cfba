//! Progress of work that takes more than two seconds: a line on standard error, only where somebody sees it.
//!
//! # Data flow
//! ```text
//! work: set(position) -> a number <- thread of the bar, five times a second -> Meter: rate, time left -> status_line
//! ```
//!
//! # Invariants
//! 1. In a pipe, on a terminal that cannot go back in a line (`TERM=dumb`), and with `--quiet`, nothing is ever written.
//! 2. After [`Progress::clear`], a drop, and a signal that ends the process, the line is gone.

mod meter;

use self::meter::Meter;
use crate::printable::within_line;
use crate::signals;
use crate::status_line::Place;
use parking_lot::Mutex;
use rustix::termios::tcgetwinsize;
use std::io::{IsTerminal, stderr, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::time::Instant;

/// Work done before this needs no bar.
const SHOWN_AFTER: Duration = Duration::from_secs(2);
/// Between two lines.
const DRAWN_EACH: Duration = Duration::from_millis(200);

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Entries.
    Entries,
    /// Ledgers.
    Ledgers,
    /// Objects of a bucket.
    Objects,
    /// Nodes of a metadata store.
    Nodes,
    /// Seconds, which pass by themselves.
    Seconds,
    /// Nothing: only the time that it takes is known.
    Wait,
}

impl Unit {
    fn noun(self) -> &'static str {
        match self {
            Unit::Bytes | Unit::Seconds | Unit::Wait => "",
            Unit::Entries => "entries",
            Unit::Ledgers => "ledgers",
            Unit::Objects => "objects",
            Unit::Nodes => "nodes",
        }
    }

    /// Whether somebody counts it.
    fn is_counted(self) -> bool {
        !matches!(self, Unit::Seconds | Unit::Wait)
    }

    fn has_rate(self) -> bool {
        self.is_counted()
    }
}

/// Bars are not wanted.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// No bar from here on.
pub fn silence() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// A bar with rate and time left; nothing where nobody sees it.
pub struct Progress(Option<Bar>);

impl Progress {
    /// A bar up to `total`. With `beside_data`, none either when data goes to the same terminal.
    pub fn start(title: impl Into<String>, unit: Unit, total: Option<u64>, beside_data: bool) -> Progress {
        let is_seen = stderr().is_terminal()
            && !(beside_data && stdout().is_terminal())
            && !IS_QUIET.load(Ordering::Relaxed)
            && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb");
        Progress(is_seen.then(|| Bar::start(title.into(), unit, total)).flatten())
    }

    /// The time that something takes.
    pub fn wait(title: impl Into<String>) -> Progress {
        Progress::start(title, Unit::Wait, None, false)
    }

    /// So much is done.
    pub fn set(&self, position: u64) {
        if let Some(bar) = &self.0 {
            bar.shared.position.store(position, Ordering::Relaxed);
        }
    }

    /// Text behind the bar.
    pub fn say(&self, text: impl FnOnce() -> String) {
        if let Some(bar) = &self.0 {
            *bar.shared.said.lock() = text();
        }
    }

    /// Takes the bar off the terminal: whatever is said next starts on a clean line.
    pub fn clear(&mut self) {
        self.0 = None;
    }
}

/// What the work and the thread of its bar share.
struct Shared {
    position: AtomicU64,
    said: Mutex<String>,
    is_over: AtomicBool,
}

struct Bar {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Bar {
    /// `None` when there is no thread for it.
    fn start(title: String, unit: Unit, total: Option<u64>) -> Option<Bar> {
        let shared = Arc::new(Shared {
            position: AtomicU64::new(0),
            said: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let (of_thread, place) = (shared.clone(), Place::take());
        let thread = std::thread::Builder::new().name("bindery-progress".to_owned());
        let thread =
            thread.spawn(move || draw(&of_thread, &place, &title, Meter::new(unit, total), unit)).ok()?;
        Some(Bar { shared, thread: Some(thread) })
    }
}

fn draw(shared: &Shared, place: &Place, title: &str, mut meter: Meter, unit: Unit) {
    let begin = Instant::now();
    let (mut is_caught, title) = (false, within_line(title));
    while !shared.is_over.load(Ordering::Acquire) {
        let at = begin.elapsed();
        let position = match unit {
            Unit::Seconds => at.as_secs(),
            _ => shared.position.load(Ordering::Relaxed),
        };
        meter.observe(at, position);
        if at >= SHOWN_AFTER {
            if !std::mem::replace(&mut is_caught, true) {
                signals::leave_a_clean_line();
            }
            let said = shared.said.lock().clone();
            // One column less: a line that fills its row would wrap.
            place.draw(&meter.line(&title, &within_line(&said), columns().saturating_sub(1)));
        }
        std::thread::park_timeout(DRAWN_EACH);
    }
}

fn columns() -> usize {
    match tcgetwinsize(stderr()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => 80,
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The line is gone then. A panic there has been said already.
            let _ = thread.join();
        }
    }
}
