//! The rate, the time left and the line of a bar: pure, so that it can be held against pictures.
//!
//! # Invariants
//! 1. A line is never wider than it may be, and no number in it is cut: whole parts are left out.
//! 2. No time left is shown before [`MEANING_AFTER`] of work and [`ADVANCES_MIN`] steps were seen, nor while nothing moves.

use super::Unit;
use crate::figure::{grouped, size, span};
use std::time::Duration;

/// What was done so long ago weighs 1/e of what was done now, in the rate.
const RATE_MEMORY: Duration = Duration::from_secs(10);
/// A rate of less time than this says nothing about the rest.
const MEANING_AFTER: Duration = Duration::from_secs(3);
/// So many steps forward are a rate; fewer may be one large step.
const ADVANCES_MIN: u32 = 3;
/// After this long without a step, work is said to stand still.
const STILL_AFTER: Duration = Duration::from_secs(10);
/// Widths of the bar that are tried, the widest first.
const BAR_WIDTHS: [usize; 4] = [30, 20, 10, 0];

/// Position, rate and time left of one piece of work. Times are since its begin.
#[derive(Debug, Clone)]
pub struct Meter {
    unit: Unit,
    total: Option<u64>,
    at: Duration,
    position: u64,
    moved_at: Duration,
    advances: u32,
    /// Sums that fade: what was done, and the seconds in which it was.
    done: f64,
    seconds: f64,
}

impl Meter {
    /// Work of so much, if that is known.
    pub fn new(unit: Unit, total: Option<u64>) -> Meter {
        Meter {
            unit,
            total,
            at: Duration::ZERO,
            position: 0,
            moved_at: Duration::ZERO,
            advances: 0,
            done: 0.0,
            seconds: 0.0,
        }
    }

    /// Takes in the position at a time. Times never go back.
    pub fn observe(&mut self, at: Duration, position: u64) {
        let seconds = at.saturating_sub(self.at).as_secs_f64();
        let fade = (-seconds / RATE_MEMORY.as_secs_f64()).exp();
        self.done = self.done * fade + position.saturating_sub(self.position) as f64;
        self.seconds = self.seconds * fade + seconds;
        if position != self.position {
            self.moved_at = at;
            self.advances = self.advances.saturating_add(1);
        }
        (self.at, self.position) = (at, position);
    }

    /// In a second, of late.
    fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.done / self.seconds } else { 0.0 }
    }

    /// Seconds until all is done (invariant 2).
    fn left(&self) -> Option<f64> {
        let left = self.total?.saturating_sub(self.position) as f64;
        if self.unit == Unit::Seconds {
            return Some(left);
        }
        let has_meaning = self.at >= MEANING_AFTER && self.advances >= ADVANCES_MIN && !self.stands_still();
        let left = left / self.rate();
        (has_meaning && left.is_finite()).then_some(left)
    }

    fn stands_still(&self) -> bool {
        self.unit.is_counted() && self.at.saturating_sub(self.moved_at) >= STILL_AFTER
    }

    /// The line: what is done, a bar where the total is known, and `said` behind it.
    pub fn line(&self, title: &str, said: &str, columns: usize) -> String {
        let share =
            self.total.filter(|total| *total > 0).map(|total| self.position.min(total) as f64 / total as f64);
        // The amount and the time are the last parts to go.
        for (bar, has_rate, has_title) in
            BAR_WIDTHS.into_iter().map(|bar| (bar, true, true)).chain([(0, false, true), (0, false, false)])
        {
            let mut parts = Vec::new();
            if has_title && !title.is_empty() {
                parts.push(title.to_owned());
            }
            if let Some(share) = share {
                let percent = format!("{:>3}%", (share * 100.0) as u64);
                parts.push(match bar {
                    0 => percent,
                    bar => format!("[{}] {percent}", drawn(share, bar)),
                });
            }
            parts.extend(self.unit.is_counted().then(|| self.amount()));
            parts.extend((has_rate && self.unit.has_rate()).then(|| self.rate_text()));
            parts.extend(Some(said.to_owned()).filter(|said| !said.is_empty()));
            parts.push(self.end());
            let line = parts.join("  ");
            if line.chars().count() <= columns {
                return line;
            }
        }
        let shortest = match share {
            Some(share) => Some(format!("{}%", (share * 100.0) as u64)),
            None => self.unit.is_counted().then(|| self.amount()),
        };
        let both: Vec<String> = shortest.clone().into_iter().chain([self.end()]).collect();
        let lines = [both.join("  "), shortest.unwrap_or_default()];
        lines.into_iter().find(|line| line.chars().count() <= columns).unwrap_or_default()
    }

    fn amount(&self) -> String {
        let number = |number| if self.unit == Unit::Bytes { size(number) } else { grouped(number) };
        let done = number(self.position);
        let done = self.total.map_or_else(|| done.clone(), |total| format!("{done} of {}", number(total)));
        match self.unit.noun() {
            "" => done,
            noun => format!("{done} {noun}"),
        }
    }

    fn rate_text(&self) -> String {
        let rate = self.rate();
        match self.unit {
            Unit::Bytes => format!("{}/s", size(rate as u64)),
            _ if rate >= 9.95 => format!("{}/s", grouped(rate.round() as u64)),
            _ => format!("{rate:.1}/s"),
        }
    }

    /// Time left, or time that has gone by.
    fn end(&self) -> String {
        if self.stands_still() {
            return format!("no step for {}", span(self.at.saturating_sub(self.moved_at).as_secs_f64()));
        }
        match self.left() {
            Some(left) => format!("{} left", span(left)),
            None => span(self.at.as_secs_f64().floor()),
        }
    }
}

/// `=====>    `.
fn drawn(share: f64, width: usize) -> String {
    let filled = ((share * width as f64) as usize).min(width);
    let tip = usize::from(filled < width);
    format!("{}{}{}", "=".repeat(filled), ">".repeat(tip), " ".repeat(width - filled - tip))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A meter that has seen `rate` a second for so many seconds, five times a second.
    fn steady(unit: Unit, total: Option<u64>, rate: u64, seconds: u64) -> Meter {
        let mut meter = Meter::new(unit, total);
        for step in 1..=seconds * 5 {
            meter.observe(Duration::from_millis(step * 200), step * rate / 5);
        }
        meter
    }

    #[test]
    fn a_line_has_a_bar_where_the_end_is_known_and_time_gone_by_where_not() {
        let entries = steady(Unit::Entries, Some(10_000), 500, 8);
        assert_eq!(
            entries.line("", "", 100),
            "[============>                 ]  40%  4,000 of 10,000 entries  500/s  12 s left"
        );
        let bytes = steady(Unit::Bytes, Some(3 << 30), 10 << 20, 30);
        assert_eq!(
            bytes.line("ledger 7", "", 100),
            "ledger 7  [==>                           ]   9%  300.0 MiB of 3.0 GiB  10.0 MiB/s  5 min left"
        );
        let unknown = steady(Unit::Ledgers, None, 4, 65);
        assert_eq!(unknown.line("looking through", "", 100), "looking through  260 ledgers  4.0/s  65 s");
        let waits = steady(Unit::Wait, None, 0, 12);
        assert_eq!(waits.line("recovering ledger 7", "", 100), "recovering ledger 7  12 s");
        assert_eq!(waits.line("recovering ledger 7", "", 10), "12 s");
        let mut seconds = Meter::new(Unit::Seconds, Some(15));
        seconds.observe(Duration::from_secs(6), 6);
        assert_eq!(
            seconds.line("", "1,234 adds/s", 100),
            "[============>                 ]  40%  1,234 adds/s  9 s left"
        );
        assert_eq!(
            steady(Unit::Entries, Some(40), 10, 4).line("", "", 80),
            "[==============================] 100%  40 of 40 entries  10/s  0 s left"
        );
    }

    #[test]
    fn the_rate_is_that_of_late() {
        let mut meter = steady(Unit::Entries, Some(100_000), 1000, 20);
        for step in 1..=300 {
            meter.observe(Duration::from_millis(20_000 + step * 200), 20_000 + step * 20);
        }
        assert!((100.0..105.0).contains(&meter.rate()), "{}", meter.rate());
    }

    #[test]
    fn no_time_left_before_it_means_something() {
        assert!(steady(Unit::Entries, Some(100), 5, 2).left().is_none(), "too early");
        assert!(steady(Unit::Entries, Some(100), 5, 3).left().is_some());
        let mut jump = Meter::new(Unit::Ledgers, Some(100));
        jump.observe(Duration::from_secs(5), 50);
        assert_eq!(jump.left(), None, "one step is no rate");
        let mut still = steady(Unit::Entries, Some(100), 5, 10);
        still.observe(Duration::from_secs(19), 50);
        assert!(still.left().is_some_and(|left| left > 10.0), "a pause makes it longer");
        still.observe(Duration::from_secs(25), 50);
        assert_eq!(still.left(), None);
        assert!(still.line("", "", 90).ends_with("  no step for 15 s"), "{}", still.line("", "", 90));
        assert_eq!(Meter::new(Unit::Entries, Some(0)).line("", "", 40), "0 of 0 entries  0.0/s  0 s");
    }

    #[test]
    fn a_narrow_line_loses_whole_parts() {
        let meter = steady(Unit::Entries, Some(1_234_567), 1000, 30);
        let said = [
            (
                120,
                "ledger 7  [>                             ]   2%  30,000 of 1,234,567 entries  1,000/s  20 min left",
            ),
            (80, "ledger 7  [>         ]   2%  30,000 of 1,234,567 entries  1,000/s  20 min left"),
            (70, "ledger 7    2%  30,000 of 1,234,567 entries  1,000/s  20 min left"),
            (60, "ledger 7    2%  30,000 of 1,234,567 entries  20 min left"),
            (50, "  2%  30,000 of 1,234,567 entries  20 min left"),
            (20, "2%  20 min left"),
            (5, "2%"),
        ];
        for (columns, line) in said {
            assert_eq!(meter.line("ledger 7", "", columns), line);
        }
        for columns in 0..130 {
            let line = meter.line("ledger 7", "", columns);
            assert!(line.chars().count() <= columns, "invariant 1: {columns}: {line}");
        }
    }
}
