//! The last line of the terminal on standard error, where a bar may stand.
//!
//! # Invariants
//! 1. Nothing is written between the begin of a line and its end: whatever else goes to the terminal goes through [`beside`].
//! 2. Of several bars, the one that began last is drawn.

use parking_lot::Mutex;
use std::io::{self, Write, stderr};

/// Takes the line away.
const ERASE: &str = "\r\x1b[K";

/// Locked while something is written, as standard error itself is.
static LINE: Mutex<Line> = Mutex::new(Line { is_drawn: false, bars: Vec::new(), next: 0 });

struct Line {
    /// A bar stands there.
    is_drawn: bool,
    /// Bars that have begun, the newest last.
    bars: Vec<u64>,
    next: u64,
}

impl Line {
    fn erase(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            write(ERASE);
        }
    }
}

/// A bar that cannot be drawn is nobody's failure.
fn write(text: &str) {
    let mut stderr = stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}

/// Writes to the terminal without a bar in between.
pub fn beside<R>(print: impl FnOnce() -> R) -> R {
    let mut line = LINE.lock();
    line.erase();
    print()
}

/// Standard error for a log, beside bars.
pub struct BesideBars;

impl Write for BesideBars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        beside(|| stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        stderr().flush()
    }
}

/// The place of one bar. The bar is gone when this is dropped.
#[derive(Debug)]
pub struct Place(u64);

impl Place {
    /// In front of all others.
    pub fn take() -> Place {
        let mut line = LINE.lock();
        line.next += 1;
        let number = line.next;
        line.bars.push(number);
        Place(number)
    }

    /// Draws the bar, if it is in front.
    pub fn draw(&self, text: &str) {
        let mut line = LINE.lock();
        if line.bars.last() == Some(&self.0) {
            line.is_drawn = true;
            write(&format!("{ERASE}{text}"));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut line = LINE.lock();
        line.bars.retain(|number| *number != self.0);
        line.erase();
    }
}
