//! The outcomes of the requests of a class, by phase and over time. Every request belongs to the moment it was due.

use crate::clock::{MILLI, SECOND};
use bindery_wire::ErrorCode;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Width of the buckets of the series.
pub const BUCKET: u64 = 250 * MILLI;

/// Names of phases and when each ends.
pub type Phases = Vec<(&'static str, u64)>;

fn histogram(digits: u8) -> Histogram<u64> {
    Histogram::new_with_bounds(1, 120_000_000, digits).expect("bounds that fit")
}

/// One phase of one class. Times are in microseconds.
struct PhaseStats {
    due: u64,
    ok: u64,
    /// Payload bytes of good answers.
    bytes: u64,
    refused: BTreeMap<String, u64>,
    timeouts: u64,
    /// Their connection went away.
    lost: u64,
    /// Good answers, and timeouts at the timeout.
    latency: Histogram<u64>,
    /// Refusals.
    refusal: Histogram<u64>,
    /// How late this program itself was.
    lag: Histogram<u64>,
}

struct Bucket {
    ok: u64,
    failed: u64,
    latency: Histogram<u64>,
}

/// All phases of one class.
pub struct Stats {
    phases: Phases,
    begin: u64,
    by_phase: Vec<PhaseStats>,
    series: Vec<Bucket>,
    /// Answers to requests that had timed out before.
    pub late: u64,
    /// Good answers of each connection, for fairness.
    pub by_connection: Vec<u64>,
    /// When the first request was due that was refused so.
    first_refused: BTreeMap<String, u64>,
}

/// The outcome of a request.
pub enum Outcome {
    /// A good answer of so many payload bytes.
    Ok(u64),
    /// An answer that says no.
    Refused(ErrorCode),
    /// No answer in time.
    Timeout,
    /// The connection went away.
    Lost,
}

impl Stats {
    /// Of phases that begin at `begin`.
    pub fn new(begin: u64, phases: Phases, connections: usize) -> Stats {
        let by_phase = phases
            .iter()
            .map(|_| PhaseStats {
                due: 0,
                ok: 0,
                bytes: 0,
                refused: BTreeMap::new(),
                timeouts: 0,
                lost: 0,
                latency: histogram(3),
                refusal: histogram(2),
                lag: histogram(2),
            })
            .collect();
        Stats {
            phases,
            begin,
            by_phase,
            series: Vec::new(),
            late: 0,
            by_connection: vec![0; connections],
            first_refused: BTreeMap::new(),
        }
    }

    fn phase(&mut self, due: u64) -> Option<&mut PhaseStats> {
        let at = self.phases.iter().position(|(_, end)| due < *end)?;
        self.by_phase.get_mut(at)
    }

    /// A request was due, and was handed to its connection at `now`.
    pub fn on_due(&mut self, due: u64, now: u64) {
        if let Some(phase) = self.phase(due) {
            phase.due += 1;
            phase.lag.saturating_record((now.saturating_sub(due) / 1000).max(1));
        }
    }

    /// A request that was due at `due` came to its end at `now`.
    pub fn on_end(&mut self, due: u64, now: u64, connection: usize, outcome: Outcome) {
        let micros = (now.saturating_sub(due) / 1000).max(1);
        if let Outcome::Refused(code) = &outcome {
            self.first_refused.entry(format!("{code:?}")).or_insert(due);
        }
        let Some(phase) = self.phase(due) else { return };
        let is_ok = matches!(outcome, Outcome::Ok(_));
        match outcome {
            Outcome::Ok(bytes) => {
                phase.ok += 1;
                phase.bytes += bytes;
                phase.latency.saturating_record(micros);
            }
            Outcome::Refused(code) => {
                *phase.refused.entry(format!("{code:?}")).or_default() += 1;
                phase.refusal.saturating_record(micros);
            }
            Outcome::Timeout => {
                phase.timeouts += 1;
                phase.latency.saturating_record(micros);
            }
            Outcome::Lost => phase.lost += 1,
        }
        if is_ok {
            self.by_connection[connection] += 1;
        }
        let at = (due.saturating_sub(self.begin) / BUCKET) as usize;
        while self.series.len() <= at {
            self.series.push(Bucket { ok: 0, failed: 0, latency: histogram(2) });
        }
        let bucket = &mut self.series[at];
        if is_ok {
            bucket.ok += 1;
        } else {
            bucket.failed += 1;
        }
        bucket.latency.saturating_record(micros);
    }

    /// Jain's index of the good answers of the connections: 1 when all had as many.
    pub fn fairness(&self) -> f64 {
        let sum: f64 = self.by_connection.iter().map(|n| *n as f64).sum();
        let squares: f64 = self.by_connection.iter().map(|n| (*n as f64).powi(2)).sum();
        if squares == 0.0 { 0.0 } else { sum * sum / (self.by_connection.len() as f64 * squares) }
    }

    /// The best second between two moments, in good answers.
    pub fn peak_per_s(&self, from: u64, to: u64) -> f64 {
        let width = (SECOND / BUCKET) as usize;
        let at = |moment: u64| ((moment.saturating_sub(self.begin) / BUCKET) as usize).min(self.series.len());
        let buckets = &self.series[at(from)..at(to)];
        buckets.windows(width).map(|second| second.iter().map(|b| b.ok).sum::<u64>()).max().unwrap_or(0)
            as f64
    }

    /// Good answers so far.
    pub fn ok(&self) -> u64 {
        self.by_phase.iter().map(|phase| phase.ok).sum()
    }

    /// Everything, for the result file.
    pub fn json(&self) -> Value {
        let mut phases = serde_json::Map::new();
        let mut begin = self.begin;
        for ((name, end), phase) in self.phases.iter().zip(&self.by_phase) {
            let seconds = (end - begin) as f64 / SECOND as f64;
            let lag = phase.lag.value_at_quantile(0.99) as f64 / 1000.0;
            phases.insert(
                (*name).to_owned(),
                json!({
                    "seconds": seconds, "due": phase.due, "ok": phase.ok, "bytes": phase.bytes,
                    "refused": phase.refused, "timeouts": phase.timeouts, "lost": phase.lost,
                    "ok_per_s": phase.ok as f64 / seconds, "latency_ms": quantiles(&phase.latency),
                    "refusal_ms": quantiles(&phase.refusal), "own_lag_p99_ms": lag,
                }),
            );
            begin = *end;
        }
        let at = |bucket: &Bucket, q: f64| bucket.latency.value_at_quantile(q) as f64 / 1000.0;
        let series: Vec<Value> = (self.series.iter().enumerate())
            .map(|(i, b)| json!([i as f64 * BUCKET as f64 / 1e9, b.ok, b.failed, at(b, 0.5), at(b, 0.99)]))
            .collect();
        let first_refused: BTreeMap<&String, f64> = (self.first_refused.iter())
            .map(|(code, due)| (code, due.saturating_sub(self.begin) as f64 / 1e9))
            .collect();
        json!({ "phases": phases, "series": series, "late": self.late, "fairness": self.fairness(),
                "first_refused_s": first_refused })
    }

    /// When, in nanoseconds, the series is back at `p99_ms_max` with everything answered for a second, counted from
    /// `from`; `None` when it never is.
    pub fn back_to(&self, from: u64, p99_ms_max: f64) -> Option<u64> {
        let first = ((from - self.begin) / BUCKET) as usize;
        let good = |b: &Bucket| {
            b.ok > 0 && b.failed == 0 && b.latency.value_at_quantile(0.99) as f64 / 1000.0 <= p99_ms_max
        };
        let width = (SECOND / BUCKET) as usize;
        (first..self.series.len().saturating_sub(width))
            .find(|at| self.series[*at..at + width].iter().all(good))
            .map(|at| (self.begin + at as u64 * BUCKET).saturating_sub(from))
    }
}

fn quantiles(h: &Histogram<u64>) -> Value {
    let at = |q: f64| h.value_at_quantile(q) as f64 / 1000.0;
    if h.is_empty() {
        return Value::Null;
    }
    json!({ "p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "p999": at(0.999), "max": h.max() as f64 / 1000.0 })
}
