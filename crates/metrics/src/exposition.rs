//! Prometheus text 0.0.4 as the Java bookie writes it (protocol reference, section 8.2): one `# TYPE` line per name, no
//! `_total`, summaries with both outcomes, failure first. A `# HELP` line, which Java does not write, stands before it.

use crate::about::About;
use crate::summary::{OutcomeSnapshot, QUANTILES, SummarySnapshot};
use std::fmt::Write as _;

/// Text under construction.
#[derive(Default)]
pub struct Exposition {
    text: String,
    last_name: String,
    now_ns: u64,
}

impl Exposition {
    /// Empty text.
    pub fn new() -> Exposition {
        Exposition::default()
    }

    /// Empty text of this moment, in nanoseconds of the clock with which summaries are recorded.
    pub fn at(now_ns: u64) -> Exposition {
        Exposition { now_ns, ..Exposition::default() }
    }

    /// The finished text.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Begins a name, or goes on with it. `base`: a label of all its series, left out when it is empty.
    pub(crate) fn series<'a>(&'a mut self, name: &str, about: &About, base: Label<'a>) -> Series<'a> {
        let name = clean(name);
        if self.last_name != name {
            self.last_name.clone_from(&name);
            let help = about.help.replace('\\', "\\\\").replace('\n', "\\n");
            self.line(format_args!("# HELP {name} {help}"));
            self.line(format_args!("# TYPE {name} {}", about.kind.name()));
        }
        Series { out: self, name, base }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("writing to a string does not fail");
    }
}

/// The series of one name.
pub struct Series<'a> {
    out: &'a mut Exposition,
    name: String,
    base: Label<'a>,
}

impl Series<'_> {
    /// The moment that is shown.
    pub fn now_ns(&self) -> u64 {
        self.out.now_ns
    }

    /// A number from zero up.
    pub fn count(&mut self, labels: &[(&str, &str)], value: u64) {
        self.put(labels, "", format_args!("{value}"));
    }

    /// A number that may be below zero.
    pub fn signed(&mut self, labels: &[(&str, &str)], value: i64) {
        self.put(labels, "", format_args!("{value}"));
    }

    /// A number with a fraction.
    pub fn real(&mut self, labels: &[(&str, &str)], value: f64) {
        self.put(labels, "", format_args!("{value:?}"));
    }

    /// A summary, both outcomes.
    pub fn summary(&mut self, labels: &[(&str, &str)], summary: &SummarySnapshot) {
        self.outcome(labels, "false", &summary.failure);
        self.outcome(labels, "true", &summary.success);
    }

    /// A histogram: for each bound (`None` above the last one) how many were at most that large, and the sum of all.
    pub fn histogram(&mut self, buckets: &[(Option<u64>, u64)], sum: u64) {
        for (bound, count) in buckets {
            let bound = bound.map_or("+Inf".to_owned(), |bound| bound.to_string());
            self.put(&[("le", &bound)], "_bucket", format_args!("{count}"));
        }
        self.put(&[], "_sum", format_args!("{sum}"));
        self.put(&[], "_count", format_args!("{}", buckets.last().map_or(0, |(_, count)| *count)));
    }

    fn put(&mut self, labels: &[(&str, &str)], suffix: &str, value: std::fmt::Arguments<'_>) {
        let (name, labels) = (&self.name, Plain(self.base, labels));
        self.out.line(format_args!("{name}{suffix}{labels} {value}"));
    }

    fn outcome(&mut self, labels: &[(&str, &str)], success: &str, outcome: &OutcomeSnapshot) {
        let (name, more) = (&self.name, More(self.base, labels));
        for ((_, quantile), value) in QUANTILES.iter().zip(outcome.quantiles) {
            self.out.line(format_args!(
                "{name}{{success=\"{success}\",quantile=\"{quantile}\"{more}}} {value:?}"
            ));
        }
        self.out.line(format_args!("{name}_count{{success=\"{success}\"{more}}} {}", outcome.count));
        self.out.line(format_args!("{name}_sum{{success=\"{success}\"{more}}} {:?}", outcome.sum));
    }
}

/// Characters outside `[a-zA-Z0-9_:]` become `_`.
fn clean(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == ':' { c } else { '_' }).collect()
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

type Label<'a> = (&'a str, &'a str);

/// The base label and the others, without those that say nothing.
fn spoken<'a>(base: Label<'a>, labels: &'a [Label<'a>]) -> impl Iterator<Item = Label<'a>> {
    std::iter::once(base).chain(labels.iter().copied()).filter(|(_, value)| !value.is_empty())
}

/// `{a="1",b="2"}`, or nothing without labels.
struct Plain<'a>(Label<'a>, &'a [Label<'a>]);

impl std::fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut is_empty = true;
        for (name, value) in spoken(self.0, self.1) {
            write!(f, "{}{name}=\"{}\"", if is_empty { "{" } else { "," }, escape(value))?;
            is_empty = false;
        }
        if is_empty { Ok(()) } else { f.write_str("}") }
    }
}

/// Labels behind others: comma and space, as Java writes them.
struct More<'a>(Label<'a>, &'a [Label<'a>]);

impl std::fmt::Display for More<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        spoken(self.0, self.1).try_for_each(|(name, value)| write!(f, ", {name}=\"{}\"", escape(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Row, Table, numbers};

    numbers! {
        /// One summary.
        struct Requests {
            adds: Summary("bookkeeper_server_ADD_ENTRY_REQUEST", "Adds."),
        }
    }

    /// The shape of the protocol reference, section 8.2, byte for byte.
    #[test]
    fn a_summary_reads_as_java_writes_it() {
        let requests = Requests::default();
        for latency_ms in 1..=4 {
            requests.adds.record(0, 0, latency_ms * 1_000_000, true);
        }
        let mut out = Exposition::new();
        Requests::TABLE.expose(&requests, &mut out);
        let expected = "\
# HELP bookkeeper_server_ADD_ENTRY_REQUEST Adds.
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
        const TABLE: Table<f64> = Table::by(
            "journalIndex",
            &[Row::summary("bookie_journal_JOURNAL_SYNC", "Syncs.", |sum, _| {
                SummarySnapshot::of_sums(3, *sum)
            })],
        );
        let mut out = Exposition::new();
        TABLE.expose_each([("0", &1.5)], &mut out);
        let text = out.into_text();
        assert!(text.contains(
            "bookie_journal_JOURNAL_SYNC{success=\"true\",quantile=\"0.99\", journalIndex=\"0\"} NaN\n"
        ));
        assert!(text.contains("bookie_journal_JOURNAL_SYNC_sum{success=\"true\", journalIndex=\"0\"} 1.5\n"));
    }

    #[test]
    fn gauges_and_counters_have_one_help_and_one_type_line_per_name() {
        const TABLE: Table<i64> = Table::by(
            "pool",
            &[
                Row::signed("bindery_pool-used", "Bytes,\nor \\ none.", |value| *value),
                Row::counter("bookie_WRITE_BYTES", "Bytes.", |_| 7),
            ],
        );
        let mut out = Exposition::new();
        TABLE.expose_each([("in\"bound", &1), ("", &-1)], &mut out);
        let expected = "# HELP bindery_pool_used Bytes,\\nor \\\\ none.\n# TYPE bindery_pool_used gauge\n\
                        bindery_pool_used{pool=\"in\\\"bound\"} 1\nbindery_pool_used -1\n\
                        # HELP bookie_WRITE_BYTES Bytes.\n# TYPE bookie_WRITE_BYTES counter\n\
                        bookie_WRITE_BYTES{pool=\"in\\\"bound\"} 7\nbookie_WRITE_BYTES 7\n";
        assert_eq!(out.into_text(), expected);
    }
}
