//! The last hour and the last day of this node, in a ring of fixed size that the console draws.
//!
//! # Invariants
//! 1. Memory is taken once and does not grow ([`BYTES`]); the oldest row makes room for the newest.
//! 2. A row covers a whole step: rates are means over it, other numbers its maximum. A number that was not measured is null.
//! 3. Rows are in the order of time: while the clock is behind the last row, for example after it was set back, none is added.
//!
//! # Limits
//! [`FINE`] and [`COARSE`]; a number has [`DIGITS`] digits in answers.

use super::series::{COUNT, Moment, Of, SERIES, pick};
use crate::memory::CONSOLE_HISTORY_BYTES;
use axum::extract::{Query, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bindery_io::Clock;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// The path of the endpoint.
pub(super) const PATH: &str = "/api/v1/console/history";

/// Between two looks at the metrics.
pub(super) const PERIOD: Duration = Duration::from_secs(5);

/// Rows of the last hour, a look each.
const FINE: Size = Size { step_s: 5, rows: 720 };
/// Rows of the last day.
const COARSE: Size = Size { step_s: 60, rows: 1440 };

/// Significant digits of a number in an answer.
const DIGITS: i32 = 5;

/// Bytes of all rows, with what is kept of the rows that are not whole.
const BYTES: usize = FINE.bytes() + COARSE.bytes();
const _: () = assert!(BYTES as u64 <= CONSOLE_HISTORY_BYTES);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    step_s: u32,
    rows: usize,
}

impl Size {
    const fn bytes(self) -> usize {
        self.rows * size_of::<Row>() + size_of::<Ring>()
    }

    fn step_ms(self) -> i64 {
        i64::from(self.step_s) * 1000
    }
}

#[derive(Debug, Clone, Copy)]
struct Row {
    /// Milliseconds since 1970, of its end.
    at_ms: i64,
    numbers: [f32; COUNT],
}

/// Rows of one step.
struct Ring {
    size: Size,
    /// As many as `size` says at most; from then on `next` is the oldest.
    rows: Vec<Row>,
    next: usize,
    /// Where the row under way began: milliseconds of a clock that never goes back, and the numbers then.
    begin: Option<(u64, Moment)>,
    peaks: Moment,
}

/// Numbers grow to their peaks; those that were not measured leave them as they are.
fn raise(peaks: &mut Moment, moment: &Moment) {
    for (peak, number) in peaks.iter_mut().zip(moment) {
        // Of NaN and a number it is the number.
        *peak = peak.max(*number);
    }
}

impl Ring {
    fn new(size: Size) -> Ring {
        Ring { size, rows: Vec::with_capacity(size.rows), next: 0, begin: None, peaks: [f64::NAN; COUNT] }
    }

    fn push(&mut self, at_ms: i64, monotonic_ms: u64, moment: &Moment) {
        raise(&mut self.peaks, moment);
        let Some((begin_ms, before)) = self.begin else {
            self.begin = Some((monotonic_ms, *moment));
            self.peaks = [f64::NAN; COUNT];
            return;
        };
        let took_ms = monotonic_ms.saturating_sub(begin_ms);
        // Looks are not quite on time, and a row must not become longer by one for that.
        let period_ms = PERIOD.as_millis() as u64;
        if took_ms + period_ms / 2 < self.size.step_ms() as u64 {
            return;
        }
        let numbers = std::array::from_fn(|index| match SERIES[index].of {
            Of::Peak => self.peaks[index] as f32,
            Of::Rate => {
                let grown = moment[index] - before[index];
                // A part of the process was restarted, and its counters began at zero.
                if grown < 0.0 { f32::NAN } else { (grown * 1000.0 / took_ms.max(1) as f64) as f32 }
            }
        });
        self.begin = Some((monotonic_ms, *moment));
        self.peaks = [f64::NAN; COUNT];
        if self.newest_ms().is_none_or(|newest| at_ms > newest) {
            self.add(Row { at_ms, numbers });
        }
    }

    fn newest_ms(&self) -> Option<i64> {
        self.since(i64::MIN).last().map(|row| row.at_ms)
    }

    fn add(&mut self, row: Row) {
        match self.rows.get_mut(self.next) {
            Some(oldest) => *oldest = row,
            None => self.rows.push(row),
        }
        self.next = (self.next + 1) % self.size.rows;
    }

    /// Rows that end after `since_ms`, the oldest first.
    fn since(&self, since_ms: i64) -> impl Iterator<Item = &Row> {
        let (newer, older) = self.rows.split_at(self.next.min(self.rows.len()));
        older.iter().chain(newer).filter(move |row| row.at_ms > since_ms)
    }
}

/// What a node says of itself besides.
type About = Box<dyn Fn() -> Value + Send + Sync>;

/// The past of this node, since its process began.
pub(in crate::admin) struct History {
    about: About,
    rings: Mutex<[Ring; 2]>,
}

impl History {
    /// Nothing yet. `about`: which node it is, for the page.
    pub(in crate::admin) fn new(about: impl Fn() -> Value + Send + Sync + 'static) -> Arc<History> {
        Arc::new(History { about: Box::new(about), rings: Mutex::new([Ring::new(FINE), Ring::new(COARSE)]) })
    }

    /// Looks each [`PERIOD`] at what `metrics` says, for as long as it is polled.
    pub(in crate::admin) async fn fill<F>(self: Arc<Self>, clock: Arc<dyn Clock>, metrics: impl Fn() -> F)
    where
        F: Future<Output = String>,
    {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let moment = pick(&metrics().await);
            self.push(clock.wall_ms(), clock.monotonic_ns() / 1_000_000, &moment);
        }
    }

    fn push(&self, at_ms: i64, monotonic_ms: u64, moment: &Moment) {
        for ring in &mut *self.rings.lock() {
            ring.push(at_ms, monotonic_ms, moment);
        }
    }

    /// Rows of the step that end after `since_ms`, and of these the `newest`, as JSON; nothing if there is no such step.
    fn text(&self, step_s: u32, since_ms: i64, newest: usize) -> Option<String> {
        let rows: Vec<Row> = {
            let rings = self.rings.lock();
            let ring = rings.iter().find(|ring| ring.size.step_s == step_s)?;
            let older = ring.since(since_ms).count().saturating_sub(newest);
            ring.since(since_ms).skip(older).copied().collect()
        };
        let keys: Vec<&str> = SERIES.iter().map(|series| series.key).collect();
        let steps = [FINE, COARSE].map(|size| json!({ "seconds": size.step_s, "rows": size.rows }));
        let head =
            json!({ "node": (self.about)(), "steps": steps, "step": step_s, "series": keys }).to_string();
        let mut text = head.strip_suffix('}').unwrap_or(&head).to_owned();
        text.push_str(",\"rows\":[");
        for (index, row) in rows.iter().enumerate() {
            let gap = if index == 0 { "" } else { "," };
            let _ = write!(text, "{gap}[{}", row.at_ms);
            for number in row.numbers {
                text.push(',');
                write_short(number, &mut text);
            }
            text.push(']');
        }
        text.push_str("]}");
        Some(text)
    }
}

/// A number with few digits, null for none.
fn write_short(number: f32, text: &mut String) {
    let number = f64::from(number);
    let written = match number {
        _ if !number.is_finite() => write!(text, "null"),
        0.0 => write!(text, "0"),
        _ => {
            let magnitude = number.abs().log10().floor() as i32;
            let unit = 10f64.powi(DIGITS - 1 - magnitude);
            // Division last: 1.1 has a short text, and 11 * 0.1 has not.
            let rounded = match unit >= 1.0 {
                true => (number * unit).round() / unit,
                false => (number * unit).round() * 10f64.powi(magnitude + 1 - DIGITS),
            };
            write!(text, "{rounded}")
        }
    };
    written.expect("writing to a string does not fail");
}

/// What may be asked. Texts, so that an error names the value.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Wanted {
    step: Option<String>,
    since: Option<String>,
    newest: Option<String>,
}

/// `GET ?step=5&since=MS&newest=N`: rows of the step that end after the moment, the newest of them if there are more.
pub(super) async fn answer(State(history): State<Arc<History>>, method: Method, uri: Uri) -> Response {
    if method != Method::GET {
        return super::not_found(&method);
    }
    let wrong = |why: &str| (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response();
    let wanted = match Query::<Wanted>::try_from_uri(&uri) {
        Ok(Query(wanted)) => wanted,
        Err(error) => return wrong(&format!("{error}: give step=5, for example, and since=0")),
    };
    let Ok(step_s) = wanted.step.as_deref().map_or(Ok(FINE.step_s), str::parse) else {
        return wrong("step: give a number of seconds");
    };
    let Ok(since_ms) = wanted.since.as_deref().map_or(Ok(0), str::parse) else {
        return wrong("since: give milliseconds since 1970");
    };
    let Ok(newest) = wanted.newest.as_deref().map_or(Ok(usize::MAX), str::parse) else {
        return wrong("newest: give a number of rows");
    };
    match history.text(step_s, since_ms, newest) {
        Some(text) => (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], text).into_response(),
        None => wrong(&format!("step={step_s}: give {} or {}", FINE.step_s, COARSE.step_s)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(key: &str) -> usize {
        SERIES.iter().position(|series| series.key == key).unwrap()
    }

    fn moment(adds: f64, stalled: f64) -> Moment {
        let mut moment = [f64::NAN; COUNT];
        (moment[index("adds")], moment[index("stalled")]) = (adds, stalled);
        moment
    }

    fn rows(history: &History, step_s: u32, since_ms: i64) -> Vec<(i64, Value, Value)> {
        let answer: Value =
            serde_json::from_str(&history.text(step_s, since_ms, usize::MAX).unwrap()).unwrap();
        let rows = answer["rows"].as_array().unwrap().clone();
        let of = |row: &Value, key| row[1 + index(key)].clone();
        rows.iter().map(|row| (row[0].as_i64().unwrap(), of(row, "adds"), of(row, "stalled"))).collect()
    }

    fn history() -> Arc<History> {
        History::new(|| json!({ "version": "0" }))
    }

    /// Invariant 2.
    #[test]
    fn rates_are_means_and_the_rest_is_the_most_of_a_step() {
        let history = history();
        for look in 0..=12u32 {
            // A stall between two ends of rows.
            let stalled = if look == 7 { 3.0 } else { 1.0 };
            let at = u64::from(look) * 5000;
            history.push(1_000_000 + at as i64, at, &moment(f64::from(look * look) * 10.0, stalled));
        }
        let fine = rows(&history, 5, 0);
        assert_eq!(fine.len(), 12);
        assert_eq!(fine[0], (1_005_000, json!(2), json!(1)));
        assert_eq!(fine[6], (1_035_000, json!(26), json!(3)));
        assert_eq!(rows(&history, 60, 0), [(1_060_000, json!(24), json!(3))], "1440 adds in 60 s");
        assert_eq!(rows(&history, 5, 1_055_000), fine[11..]);
        let newest: Value = serde_json::from_str(&history.text(5, 0, 2).unwrap()).unwrap();
        let ends: Vec<_> = newest["rows"].as_array().unwrap().iter().map(|row| row[0].clone()).collect();
        assert_eq!(ends, [1_055_000, 1_060_000]);
    }

    /// A number is null, and no rate, where it is missing or its counter began at zero again.
    #[test]
    fn what_was_not_measured_is_null() {
        let history = history();
        for (look, adds) in [f64::NAN, 5.0, 15.0, 2.0, 12.0].into_iter().enumerate() {
            let at = look as u64 * 5000;
            history.push(at as i64 + 1, at, &moment(adds, f64::NAN));
        }
        let adds: Vec<_> =
            rows(&history, 5, 0).into_iter().map(|(_, adds, stalled)| (adds, stalled)).collect();
        let none = Value::Null;
        assert_eq!(adds, [none.clone(), json!(2), none.clone(), json!(2)].map(|adds| (adds, none.clone())));
    }

    /// Invariants 1 and 3.
    #[test]
    fn the_ring_is_bounded_and_in_order() {
        let history = history();
        for look in 0..20_000u64 {
            // Ten minutes back after an hour.
            let wall = if look < 720 { look } else { look - 120 };
            history.push(wall as i64 * 5000, look * 5000, &moment(look as f64, 0.0));
        }
        for size in [FINE, COARSE] {
            let rows = rows(&history, size.step_s, i64::MIN);
            assert_eq!(rows.len(), size.rows);
            assert!(rows.is_sorted_by(|one, next| one.0 < next.0));
            let rings = history.rings.lock();
            let ring = rings.iter().find(|ring| ring.size == size).unwrap();
            assert_eq!(ring.rows.capacity(), size.rows, "it does not grow");
        }
        const { assert!(BYTES < 1 << 20) };
        // All of a day fits the memory of answers, whatever the numbers are.
        assert!(COARSE.rows * COUNT * "-1.2345e-10,".len() < 1 << 20);
    }

    #[test]
    fn numbers_are_short() {
        for (number, expected) in [
            (0.0, "0"),
            (1.1, "1.1"),
            (123_456.7, "123460"),
            (0.001_234_56, "0.0012346"),
            (7.0, "7"),
            (99_999.6, "100000"),
            (f32::NAN, "null"),
            (f32::INFINITY, "null"),
        ] {
            let mut text = String::new();
            write_short(number, &mut text);
            assert_eq!(text, expected);
        }
    }
}
