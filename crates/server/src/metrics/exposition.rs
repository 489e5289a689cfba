//! Prometheus text 0.0.4 exactly as the Java bookie writes it (protocol reference, section 8.2): one `# TYPE` line per
//! name, no help lines, no `_total`, summaries with both outcomes, failure first.

use super::summary::{OutcomeSnapshot, QUANTILES, SummarySnapshot};
use std::fmt::Write as _;

/// Text under construction.
#[derive(Default)]
pub struct Exposition {
    text: String,
    last_name: String,
}

impl Exposition {
    /// Empty text.
    pub fn new() -> Exposition {
        Exposition::default()
    }

    /// The finished text.
    pub fn into_text(self) -> String {
        self.text
    }

    /// A counter.
    pub fn counter(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.begin(name, "counter");
        let name = clean(name);
        self.line(format_args!("{name}{} {value}", Plain(labels)));
    }

    /// A gauge.
    pub fn gauge(&mut self, name: &str, labels: &[(&str, &str)], value: i64) {
        self.begin(name, "gauge");
        let name = clean(name);
        self.line(format_args!("{name}{} {value}", Plain(labels)));
    }

    /// A gauge of something that is counted, or of bytes.
    pub fn gauge_of(&mut self, name: &str, labels: &[(&str, &str)], count: u64) {
        self.gauge(name, labels, i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A summary, both outcomes.
    pub fn summary(&mut self, name: &str, labels: &[(&str, &str)], summary: &SummarySnapshot) {
        self.begin(name, "summary");
        let name = clean(name);
        self.outcome(&name, labels, "false", &summary.failure);
        self.outcome(&name, labels, "true", &summary.success);
    }

    /// A histogram: for each bound (`None` above the last one) how many were at most that large, and the sum of all.
    pub fn histogram(&mut self, name: &str, buckets: &[(Option<u64>, u64)], sum: u64) {
        self.begin(name, "histogram");
        let name = clean(name);
        for (bound, count) in buckets {
            match bound {
                Some(bound) => self.line(format_args!("{name}_bucket{{le=\"{bound}\"}} {count}")),
                None => self.line(format_args!("{name}_bucket{{le=\"+Inf\"}} {count}")),
            }
        }
        self.line(format_args!("{name}_sum {sum}"));
        self.line(format_args!("{name}_count {}", buckets.last().map_or(0, |(_, count)| *count)));
    }

    fn outcome(&mut self, name: &str, labels: &[(&str, &str)], success: &str, outcome: &OutcomeSnapshot) {
        let more = More(labels);
        for ((_, quantile), value) in QUANTILES.iter().zip(outcome.quantiles) {
            self.line(format_args!(
                "{name}{{success=\"{success}\",quantile=\"{quantile}\"{more}}} {value:?}"
            ));
        }
        self.line(format_args!("{name}_count{{success=\"{success}\"{more}}} {}", outcome.count));
        self.line(format_args!("{name}_sum{{success=\"{success}\"{more}}} {:?}", outcome.sum));
    }

    /// The type line, once for consecutive series of one name.
    fn begin(&mut self, name: &str, kind: &str) {
        if self.last_name != name {
            self.last_name = name.to_owned();
            let name = clean(name);
            self.line(format_args!("# TYPE {name} {kind}"));
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("writing to a string does not fail");
    }
}

/// Characters outside `[a-zA-Z0-9_:]` become `_`.
fn clean(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == ':' { c } else { '_' }).collect()
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// `{a="1",b="2"}`, or nothing without labels.
struct Plain<'a>(&'a [(&'a str, &'a str)]);

impl std::fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, (name, value)) in self.0.iter().enumerate() {
            write!(f, "{}{name}=\"{}\"", if i == 0 { "{" } else { "," }, escape(value))?;
        }
        if self.0.is_empty() { Ok(()) } else { f.write_str("}") }
    }
}

/// Labels behind others: comma and space, as Java writes them.
struct More<'a>(&'a [(&'a str, &'a str)]);

impl std::fmt::Display for More<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|(name, value)| write!(f, ", {name}=\"{}\"", escape(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Summary;
    use super::*;

    /// The shape of the protocol reference, section 8.2, byte for byte.
    #[test]
    fn a_summary_reads_as_java_writes_it() {
        let summary = Summary::latency(1);
        for latency_ms in 1..=4 {
            summary.record(0, 0, latency_ms * 1_000_000, true);
        }
        let mut out = Exposition::new();
        out.summary("bookkeeper_server_ADD_ENTRY_REQUEST", &[], &summary.snapshot(0));
        let expected = "\
# TYPE bookkeeper_server_ADD_ENTRY_REQUEST summary
bookkeeper_server_ADD_ENTRY_REQUEST{success=\"false\",quantile=\"0.5\"} NaN
bookkeeper_server_ADD_ENTRY_REQUEST{success=\"false\",quantile=\"0.75\"} NaN
bookkeeper_server_ADD_ENTRY_REQUEST{success=\"false\",quantile=\"0.95\"} NaN
bookkeeper_server_ADD_ENTRY_REQUEST{success=\"false\",quantile=\"0.99\"} NaN
bookkeeper_server_ADD_ENTRY_REQUEST{success=\"false\",quantile=\"0.999\"} NaN
bookkeeper_server_ADD_ENTRY_REQUEST{success=\"false\",quantile=\"0.9999\"} NaN
bookkeeper_server_ADD_ENTRY_REQUEST{success=\"false\",quantile=\"1.0\"} NaN
bookkeeper_server_ADD_ENTRY_REQUEST_count{success=\"false\"} 0
bookkeeper_server_ADD_ENTRY_REQUEST_sum{success=\"false\"} 0.0
bookkeeper_server_ADD_ENTRY_REQUEST{success=\"true\",quantile=\"0.5\"} 2.007
bookkeeper_server_ADD_ENTRY_REQUEST{success=\"true\",quantile=\"0.75\"} 3.007
bookkeeper_server_ADD_ENTRY_REQUEST{success=\"true\",quantile=\"0.95\"} 4.015
bookkeeper_server_ADD_ENTRY_REQUEST{success=\"true\",quantile=\"0.99\"} 4.015
bookkeeper_server_ADD_ENTRY_REQUEST{success=\"true\",quantile=\"0.999\"} 4.015
bookkeeper_server_ADD_ENTRY_REQUEST{success=\"true\",quantile=\"0.9999\"} 4.015
bookkeeper_server_ADD_ENTRY_REQUEST{success=\"true\",quantile=\"1.0\"} 4.015
bookkeeper_server_ADD_ENTRY_REQUEST_count{success=\"true\"} 4
bookkeeper_server_ADD_ENTRY_REQUEST_sum{success=\"true\"} 10.0
";
        assert_eq!(out.into_text(), expected);
    }

    #[test]
    fn extra_labels_follow_after_comma_and_space() {
        let mut out = Exposition::new();
        let labels = [("journalIndex", "0")];
        out.summary("bookie_journal_JOURNAL_SYNC", &labels, &SummarySnapshot::of_sums(3, 1.5));
        let text = out.into_text();
        assert!(text.contains(
            "bookie_journal_JOURNAL_SYNC{success=\"true\",quantile=\"0.99\", journalIndex=\"0\"} NaN\n"
        ));
        assert!(text.contains("bookie_journal_JOURNAL_SYNC_sum{success=\"true\", journalIndex=\"0\"} 1.5\n"));
    }

    #[test]
    fn gauges_and_counters_have_one_type_line_per_name() {
        let mut out = Exposition::new();
        out.gauge("bindery_pool-used", &[("pool", "in\"bound")], 1);
        out.gauge("bindery_pool-used", &[("pool", "write")], -1);
        out.counter("bookie_WRITE_BYTES", &[], 7);
        let expected = "# TYPE bindery_pool_used gauge\nbindery_pool_used{pool=\"in\\\"bound\"} 1\n\
                        bindery_pool_used{pool=\"write\"} -1\n# TYPE bookie_WRITE_BYTES counter\nbookie_WRITE_BYTES 7\n";
        assert_eq!(out.into_text(), expected);
    }
}
