//! Results, as an object with the Java driver's fields or as text.

use super::drawing::{self, Second};
use super::latency::Percentiles;
use super::proc::Used;
use crate::exit::Failure;
use crate::ledger::args::Digest;
use crate::ledger::form;
use crate::output;
use crate::plot::Plot;
use bindery_client::{ReadError, WhyStopped};
use serde::Serialize;
use std::collections::BTreeMap;

/// Adds and reads of entries use the compact protocol, as the Java client does with `--v2`.
pub const PROTOCOL: &str = "v2";

/// Name of a digest in the Java API.
pub fn java_name(digest: Digest) -> &'static str {
    match digest {
        Digest::Crc32 => "CRC32",
        Digest::Crc32c => "CRC32C",
        Digest::Mac => "MAC",
        Digest::Dummy => "DUMMY",
    }
}

/// Key in `errors_by_code`.
pub fn why_stopped(why: &WhyStopped) -> &'static str {
    match why {
        WhyStopped::Fenced => "fenced",
        WhyStopped::Closed => "closed",
        WhyStopped::Deleted => "deleted",
        WhyStopped::NotEnoughBookies(_) => "not_enough_bookies",
        WhyStopped::Unauthorized { .. } => "unauthorized",
        WhyStopped::TooManyChanges { .. } => "too_many_changes",
        WhyStopped::DeferredSync(_) => "deferred_sync",
        WhyStopped::MetadataChanged => "metadata_changed",
        WhyStopped::Metadata(_) => "metadata",
        WhyStopped::Full => "full",
        WhyStopped::Closing => "closing",
        WhyStopped::ClientClosed => "client_closed",
        _ => "other",
    }
}

/// Key in `errors_by_code`.
pub fn why_unread(error: &ReadError) -> &'static str {
    match error {
        ReadError::BeyondEnd { .. } => "beyond_end",
        ReadError::NoEntry { .. } => "no_entry",
        ReadError::Unavailable { .. } => "unavailable",
        ReadError::LacUnknown { .. } => "lac_unknown",
        ReadError::Deleted(_) => "deleted",
        ReadError::Metadata(_) => "metadata",
        ReadError::ClientClosed => "client_closed",
        _ => "other",
    }
}

/// Result of `bench add`: the fields of the Java driver's `load add`, and `client_cpu_us_per_add`.
#[derive(Debug, Serialize)]
pub struct AddReport {
    pub load: &'static str,
    pub label: String,
    pub ensemble: usize,
    pub quorum: usize,
    pub ack_quorum: usize,
    pub ledgers: u32,
    pub throttle: u32,
    pub entry_size: u32,
    pub protocol: &'static str,
    pub digest: &'static str,
    pub rate: u32,
    pub warmup_s: u32,
    pub seconds: f64,
    pub ops: u64,
    pub ops_per_s: f64,
    pub mb_per_s: f64,
    #[serde(flatten)]
    pub latency: Percentiles,
    pub failed_ledgers: u64,
    pub errors: u64,
    pub errors_by_code: BTreeMap<&'static str, u64>,
    pub drained: bool,
    pub client_cpu_us_per_add: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bookie_cpu_us_per_add: Option<f64>,
    #[serde(flatten)]
    pub used: Used,
}

impl AddReport {
    /// Prints the report; then fails if adds failed, so that the exit code says so.
    pub fn print(&self, is_json: bool) -> Result<(), Failure> {
        let text = if is_json { json(self)? } else { self.text() };
        output::write_all(text.as_bytes())?;
        failed(self.errors, &self.errors_by_code, "adds")?;
        match (self.failed_ledgers, self.drained) {
            (0, true) => Ok(()),
            (0, false) => Err(Failure::new("some adds were still not acknowledged 15 s after the end")),
            (failed, _) => Err(Failure::new(format!("{failed} ledgers could not be written on"))),
        }
    }

    /// The drawing of the run.
    pub fn plot(&self, seconds: &[Second]) -> Plot {
        let about = vec![self.workload(), format!("{}; {}", self.rate(), latency_text(&self.latency))];
        drawing::of_run("add", &self.label, "adds", "adds/s", about, seconds)
    }

    fn workload(&self) -> String {
        format!(
            "{}, E/Qw/Qa {}/{}/{}, entries of {} bytes, {}, {}",
            form::count(u64::from(self.ledgers), "ledger", "ledgers"),
            self.ensemble,
            self.quorum,
            self.ack_quorum,
            self.entry_size,
            self.digest,
            loop_text(self.rate, &format!("at most {} outstanding", self.throttle)),
        )
    }

    fn rate(&self) -> String {
        format!("{:.0} adds/s, {:.1} MB/s", self.ops_per_s, self.mb_per_s)
    }

    fn text(&self) -> String {
        let mut lines = vec![
            ("workload", self.workload()),
            ("adds", format!("{} in {:.1} s", self.ops, self.seconds)),
            ("rate", self.rate()),
            ("latency", latency_text(&self.latency)),
            ("errors", errors_text(self.errors, &self.errors_by_code)),
            (
                "client",
                format!(
                    "{:.2} s CPU, {:.2} us for each add",
                    self.used.client_cpu_s, self.client_cpu_us_per_add
                ),
            ),
        ];
        if let Some(per_add) = self.bookie_cpu_us_per_add {
            lines.push(("bookies", bookie_text(&self.used, &format!("{per_add:.2} us for each add"))));
        }
        table(&lines)
    }
}

/// Result of `bench read`: the measured phase, inside the parameters of the run, like that of the Java driver's `load read`.
#[derive(Debug, Serialize)]
pub struct ReadReport {
    pub load: &'static str,
    pub label: String,
    pub protocol: &'static str,
    pub digest: Option<&'static str>,
    pub ledgers: usize,
    pub entries: u64,
    pub entry_size: Option<u32>,
    pub readers: u32,
    pub clients: u32,
    pub mode: &'static str,
    pub batch: u32,
    pub rate: u32,
    pub warmup_s: u32,
    pub during: ReadPhase,
    pub reads_each_second: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bookie_rss_mib: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bookie_hwm_mib: Option<f64>,
}

/// The measured seconds.
#[derive(Debug, Serialize)]
pub struct ReadPhase {
    pub seconds: f64,
    pub calls: u64,
    pub calls_per_s: f64,
    pub entries_per_s: f64,
    pub mb_per_s: f64,
    #[serde(flatten)]
    pub latency: Percentiles,
    pub seconds_without_a_read: usize,
    pub errors: u64,
    pub errors_by_code: BTreeMap<&'static str, u64>,
    pub client_cpu_us_per_call: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bookie_cpu_us_per_call: Option<f64>,
    /// The highest of many samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bookie_rss_peak_mib: Option<f64>,
    #[serde(flatten)]
    pub used: Used,
}

impl ReadReport {
    /// Prints the report; then fails if reads failed, so that the exit code says so.
    pub fn print(&self, is_json: bool) -> Result<(), Failure> {
        let text = if is_json { json(self)? } else { self.text() };
        output::write_all(text.as_bytes())?;
        failed(self.during.errors, &self.during.errors_by_code, "reads")
    }

    /// The drawing of the run.
    pub fn plot(&self, seconds: &[Second]) -> Plot {
        let about = vec![self.workload(), format!("{}; {}", self.rate(), latency_text(&self.during.latency))];
        drawing::of_run("read", &self.label, "calls", "calls/s", about, seconds)
    }

    fn workload(&self) -> String {
        format!(
            "{} of {}, {}, {}, {} each call, {}",
            form::count(self.ledgers as u64, "ledger", "ledgers"),
            form::count(self.entries, "entry", "entries"),
            form::count(u64::from(self.readers), "reader", "readers"),
            self.mode,
            form::count(u64::from(self.batch), "entry", "entries"),
            loop_text(self.rate, "one call each at a time"),
        )
    }

    fn rate(&self) -> String {
        let during = &self.during;
        format!(
            "{:.0} calls/s, {:.0} entries/s, {:.1} MB/s",
            during.calls_per_s, during.entries_per_s, during.mb_per_s
        )
    }

    fn text(&self) -> String {
        let during = &self.during;
        let mut lines = vec![
            ("workload", self.workload()),
            ("calls", format!("{} in {:.1} s", during.calls, during.seconds)),
            ("rate", self.rate()),
            ("latency", latency_text(&during.latency)),
            ("errors", errors_text(during.errors, &during.errors_by_code)),
            (
                "client",
                format!(
                    "{:.2} s CPU, {:.2} us for each call",
                    during.used.client_cpu_s, during.client_cpu_us_per_call
                ),
            ),
        ];
        if let Some(per_call) = during.bookie_cpu_us_per_call {
            lines.push(("bookies", bookie_text(&during.used, &format!("{per_call:.2} us for each call"))));
        }
        table(&lines)
    }
}

fn json(report: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string(report);
    text.map(|text| text + "\n").map_err(|error| Failure::new(format!("cannot form the result: {error}")))
}

fn failed(errors: u64, by_code: &BTreeMap<&'static str, u64>, what: &str) -> Result<(), Failure> {
    match errors {
        0 => Ok(()),
        _ => Err(Failure::new(format!("{what} failed: {}", errors_text(errors, by_code)))),
    }
}

fn loop_text(rate: u32, closed: &str) -> String {
    match rate {
        0 => format!("closed loop, {closed}"),
        rate => format!("open loop, {rate} each second, {closed}"),
    }
}

fn latency_text(latency: &Percentiles) -> String {
    let ms = |value: Option<f64>| value.map_or("-".to_owned(), |ms| format!("{ms:.2}"));
    format!(
        "p50 {}  p95 {}  p99 {}  p99.9 {}  max {}  mean {}  (ms)",
        ms(latency.p50_ms),
        ms(latency.p95_ms),
        ms(latency.p99_ms),
        ms(latency.p999_ms),
        ms(latency.max_ms),
        ms(latency.mean_ms)
    )
}

fn errors_text(errors: u64, by_code: &BTreeMap<&'static str, u64>) -> String {
    if by_code.is_empty() {
        return errors.to_string();
    }
    let each: Vec<String> = by_code.iter().map(|(code, count)| format!("{code} {count}")).collect();
    format!("{errors} ({})", each.join(", "))
}

fn bookie_text(used: &Used, each: &str) -> String {
    let value = |value: Option<f64>| value.unwrap_or(0.0);
    format!(
        "{:.2} s CPU, {each}, {:.2} cores, {:.1} MB written, {:.1} MiB of memory (most: {:.1})",
        value(used.bookie_cpu_s),
        value(used.bookie_cpu_cores),
        value(used.bookie_disk_write_mb),
        value(used.bookie_rss_mib),
        value(used.bookie_hwm_mib)
    )
}

fn table(lines: &[(&str, String)]) -> String {
    lines.iter().map(|(key, value)| format!("{key:<9} {value}\n")).collect()
}
