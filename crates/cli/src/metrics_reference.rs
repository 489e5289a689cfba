//! docs/reference/metrics.md, made from the rows of all metrics and from what published boards query.

use bindery_metrics::{About, Kind};
use bindery_reconciler::TierReport;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Names that published boards query and that nothing here has, and why.
const ABSENT: [(&str, &str); 5] = [
    (
        "bookie_readahead_batch_count",
        "The kernel reads ahead, blocks rather than entries. `bindery_reads_together` counts entries read in one piece with their neighbours.",
    ),
    ("jvm_gc_collection_seconds", "No garbage is collected in memory."),
    (
        "kubelet_volume_stats_available_bytes",
        "The kubelet's. `bindery_volume_free_bytes` says it of a bookie's volumes.",
    ),
    (
        "kubelet_volume_stats_capacity_bytes",
        "The kubelet's. `bindery_volume_total_bytes` says it of a bookie's volumes.",
    ),
    ("pulsar_version_info", "The broker's."),
];

const HEAD: &str = "# Metrics

<!-- Made by `BINDERY_WRITE_REFERENCE=1 cargo test -p bindery-cli metrics_reference`; do not edit. -->

What `GET /metrics` of an admin port has, in Prometheus' text format 0.0.4, with `# HELP` and `# TYPE` lines. The
[guide](../guide/monitoring.md) says which of them are worth an alarm. Names of BookKeeper have its labels and shapes:

- **A summary** has the label `success` (`true`, `false`), quantiles of the last minute (NaN when there was nothing), and
  `_count` and `_sum` since the start. Times are in milliseconds.
- **A stand-in** has a name of BookKeeper and says something close to what it says there: the text tells what.
- **Labels** are those of BookKeeper where the thing is told apart here: journals, entry logs of ledger directories. Ledgers, caches and flushes
  belong to the whole bookie, so their numbers have no `ledgerDir`.

Counters begin at 0 when the process starts, and have no `_total`.
";

const BOARDS: &str = "
## Names of BookKeeper, as published boards query them

The boards for BookKeeper, its recovery and its JVM of [lhotari/pulsar-grafana-dashboards](https://github.com/lhotari/pulsar-grafana-dashboards)
and [streamnative/apache-pulsar-grafana-dashboard](https://github.com/streamnative/apache-pulsar-grafana-dashboard). A test evaluates each of
their expressions in Prometheus, beside a bookie under load.

| metric | here | |
|---|---|---|
";

/// By part of the process.
fn parts() -> Vec<(&'static str, Vec<About>)> {
    use crate::repair::numbers;
    let mut parts = bindery_server::admin::about_numbers();
    parts.push(("The tierer", [crate::tier_role::UP.about(), TierReport::TABLE.about()].concat()));
    parts.push((
        "Auditor and replication worker",
        [numbers::STANDING.about(), numbers::REPORT.about(), numbers::AS_JAVA.about()].concat(),
    ));
    parts
}

/// The expressions of published boards.
fn queries() -> Vec<&'static str> {
    let file = include_str!("../../../tests/interop/boards/queries.tsv");
    file.lines().filter_map(|line| line.split_once('\t')).map(|(_, expression)| expression).collect()
}

/// Names that expressions begin series with: words with an underscore, but for labels.
fn names_in(expressions: &[&str]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for expression in expressions {
        let (mut depth, mut word, mut is_grouping) = (0usize, String::new(), false);
        for char in expression.chars().chain([' ']) {
            if char.is_ascii_alphanumeric() || char == '_' {
                word.push(char);
                continue;
            }
            if depth == 0 && word.contains('_') && word.starts_with(|first: char| first.is_ascii_lowercase())
            {
                names.insert(word.clone());
            }
            // by (label): its labels are no names.
            is_grouping = (is_grouping && word.is_empty()) || word == "by";
            word.clear();
            match char {
                '(' if is_grouping || depth > 0 => depth += 1,
                '{' => depth += 1,
                ')' | '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            is_grouping &= char == ' ';
        }
    }
    names
}

/// The row that a queried name belongs to.
fn row_of<'a>(name: &str, rows: &'a [About]) -> Option<&'a About> {
    let exact = rows.iter().find(|row| row.name == name);
    let of_summary = || {
        let base = ["_count", "_sum"].iter().find_map(|suffix| name.strip_suffix(suffix))?;
        rows.iter().find(|row| row.kind == Kind::Summary && row.name == base)
    };
    let of_directory = || {
        rows.iter().find(|row| {
            let parts = row.name.split_once("<path>");
            parts.is_some_and(|(before, after)| name.starts_with(before) && name.ends_with(after))
        })
    };
    exact.or_else(of_summary).or_else(of_directory)
}

fn absence(name: &str) -> Option<(&'static str, &'static str)> {
    let base = ["_count", "_sum"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
    ABSENT.into_iter().find(|(absent, _)| *absent == name || *absent == base)
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "\\<")
}

/// The page.
fn page() -> String {
    let mut text = HEAD.to_owned();
    let parts = parts();
    for (title, rows) in &parts {
        let _ = write!(text, "\n## {title}\n\n| metric | kind, labels | |\n|---|---|---|\n");
        for row in rows {
            let labels: Vec<_> =
                [row.label].iter().chain(row.labels).copied().filter(|label| !label.is_empty()).collect();
            let kind = [&[row.kind.name()], &*labels].concat().join(", ");
            let help = if row.is_stand_in { format!("Stand-in. {}", row.help) } else { row.help.to_owned() };
            let _ = writeln!(text, "| `{}` | {kind} | {} |", row.name, cell(&help));
        }
    }
    let rows: Vec<About> = parts.into_iter().flat_map(|(_, rows)| rows).collect();
    text.push_str(BOARDS);
    let mut said = BTreeMap::new();
    for name in names_in(&queries()) {
        match (row_of(&name, &rows), absence(&name)) {
            (Some(row), _) if row.is_stand_in => said.insert(row.name, ("stand-in", row.help)),
            (Some(row), _) => said.insert(row.name, ("served", row.help)),
            (None, Some((absent, why))) => said.insert(absent, ("absent", why)),
            (None, None) => panic!("{name} is queried, and neither a row nor the list of absent ones has it"),
        };
    }
    for (name, (how, why)) in said {
        let _ = writeln!(text, "| `{name}` | {how} | {} |", cell(why));
    }
    text
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a file of the repository")]
mod tests {
    use super::*;

    #[test]
    fn the_committed_reference_of_metrics_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
        let page = page();
        if std::env::var_os("BINDERY_WRITE_REFERENCE").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == page,
            "run: BINDERY_WRITE_REFERENCE=1 cargo test -p bindery-cli metrics_reference"
        );
    }

    #[test]
    fn names_are_told_apart_and_explained() {
        let rows: Vec<About> = parts().into_iter().flat_map(|(_, rows)| rows).collect();
        let mut names = BTreeSet::new();
        for row in &rows {
            assert!(names.insert(row.name), "{} twice", row.name);
            let is_name = |char: char| char.is_ascii_alphanumeric() || "_:<>".contains(char);
            assert!(row.name.chars().all(is_name), "{}", row.name);
            assert!(row.help.ends_with('.') && !row.help.contains('\n'), "{}: {}", row.name, row.help);
        }
        for (absent, _) in ABSENT {
            assert!(!names.contains(absent) && !queries().is_empty(), "{absent} is served");
        }
    }

    #[test]
    fn names_are_found_in_expressions() {
        let expressions = [
            "sum(irate(a_b_count{job=~\"$job\", pod_name=\"c_d\"}[1m])) by (pod_name) / sum(e_f) by (x_y)",
            "sum by(pod_name, thread) (g_h{thread=~\"A-.*\"})",
            "(100 * count(i_j == 1)) / label_less",
        ];
        let names: Vec<_> = names_in(&expressions).into_iter().collect();
        assert_eq!(names, ["a_b_count", "e_f", "g_h", "i_j", "label_less"]);
    }
}
