//! From result lines to Markdown and plots.

use crate::args::Args;
use crate::plot::{GREY, Line, Panel, draw};
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// `report RESULTS.json [--images DIR] [--link PREFIX]`.
pub fn run(mut args: Args) -> Result<()> {
    let images = args.text("images").map(PathBuf::from);
    let link = args.text("link").unwrap_or_else(|| "images".to_owned());
    let path = args.words.first().context("report RESULTS.json")?.clone();
    args.finish()?;
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let results: Vec<Value> =
        text.lines().map(serde_json::from_str).collect::<Result<_, _>>().with_context(|| path.clone())?;
    let mut out = String::new();
    machine(&results, &mut out);
    let mut shown = Vec::new();
    if let Some(dir) = &images {
        std::fs::create_dir_all(dir)?;
        shown = plots(&results, dir)?;
    }
    let image = |name: &str, out: &mut String| {
        for (file, title) in shown.iter().filter(|(file, _)| file.starts_with(name)) {
            let _ = writeln!(out, "![{title}]({link}/{file})\n");
        }
    };
    let of = |scenario: &str| results.iter().filter(|r| r["scenario"] == scenario).collect::<Vec<_>>();
    let rows = of("stall");
    if !rows.is_empty() {
        stall(&rows, &mut out);
        image("overload-consumers", &mut out);
        image("overload-latency", &mut out);
    }
    let (slow, usual): (Vec<_>, Vec<_>) = of("rates").into_iter().partition(|r| r["case"] == "L4");
    if !usual.is_empty() {
        rates(&usual, "Adds at 50 to 200 % of capacity", &mut out);
        image("overload-goodput", &mut out);
    }
    if !slow.is_empty() {
        rates(&slow, "The same with slow syncs: each 20 ms longer, one each 10 s a second", &mut out);
    }
    for (scenario, write) in [
        ("overrun", overrun as fn(&[&Value], &mut String)),
        ("idle", idle),
        ("big", big),
        ("catchup", catchup),
        ("adds", adds),
        ("reads", reads),
        ("many", many),
    ] {
        if !of(scenario).is_empty() {
            write(&of(scenario), &mut out);
        }
    }
    print!("{out}");
    Ok(())
}

/// The number at a path of keys.
fn at(value: &Value, path: &str) -> Option<f64> {
    path.split('.').try_fold(value, |value, key| value.get(key)).and_then(Value::as_f64)
}

/// A number with as many digits as say something; a dash for none.
fn show(value: Option<f64>) -> String {
    match value {
        None => "–".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(v) if v.fract() == 0.0 || v.abs() >= 100.0 => format!("{v:.0}"),
        Some(v) if v.abs() >= 10.0 => format!("{v:.1}"),
        Some(v) if v.abs() >= 0.1 => format!("{v:.2}"),
        Some(v) => format!("{v:.3}"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("–")
}

fn machine(results: &[Value], out: &mut String) {
    let Some(machine) = results.iter().map(|r| &r["machine"]).find(|m| !m.is_null()) else { return };
    let other: Vec<f64> = results.iter().filter_map(|r| at(r, "during.other_cores")).collect();
    let client: Vec<f64> = results.iter().filter_map(|r| at(r, "during.client_cores")).collect();
    let mut lag: f64 = 0.0;
    for result in results {
        for phases in result["flows"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(_, flow)| flow["phases"].as_object())
        {
            lag = phases.values().filter_map(|phase| at(phase, "own_lag_p99_ms")).fold(lag, f64::max);
        }
    }
    let max = |list: &[f64]| list.iter().copied().fold(0.0, f64::max);
    let mean =
        |list: &[f64]| if list.is_empty() { 0.0 } else { list.iter().sum::<f64>() / list.len() as f64 };
    let _ = writeln!(
        out,
        "{} cores ({}), Linux {}, shared by client and bookie; tcp_wmem {}, tcp_rmem {}. While load ran the client took {:.2}\n\
         cores in the mean ({:.2} at most), everything but client and bookie {:.2} ({:.2} at most). At worst the client was {} ms late\n\
         itself with the 99th percentile of a phase's requests; that is in the latencies.\n",
        show(at(machine, "cores")),
        text(&machine["model"]),
        text(&machine["linux"]),
        text(&machine["tcp_wmem"]),
        text(&machine["tcp_rmem"]),
        mean(&client),
        max(&client),
        mean(&other),
        max(&other),
        show(Some(lag)),
    );
}

/// The protocol, and whether it was spoken over TLS.
fn protocol(row: &Value) -> String {
    let over = if row["is_encrypted"] == true { " over TLS" } else { "" };
    format!("{}{over}", text(&row["protocol"]))
}

fn drain(row: &Value) -> String {
    let rate = at(row, "drain_per_s").unwrap_or(0.0);
    let mut text = if rate > 0.0 { format!("{:.0} MB/s", rate / 1e6) } else { "never".to_owned() };
    if let Some(head_bytes) = at(row, "head_bytes") {
        text = format!("heads of {:.0} KB at the HTTP port", head_bytes / 1e3);
        if let Some(after) = at(row, "again_after_s").filter(|after| *after > 0.0) {
            let _ = write!(text, ", again {} s after they were closed", show(Some(after)));
        }
    }
    if row["elsewhere"] == true {
        text.push_str(", at another bookie");
    }
    if row["half_close"] == true {
        text.push_str(", half closed");
    }
    text
}

/// p99 of a class during over before.
fn ratio(row: &Value, class: &str) -> Option<f64> {
    let p99 = |phase: &str| at(row, &format!("flows.{class}.phases.{phase}.latency_ms.p99"));
    Some(p99("during")? / p99("before")?)
}

fn answered(row: &Value, class: &str, phase: &str) -> String {
    let of = |name: &str| at(row, &format!("flows.{class}.phases.{phase}.{name}")).unwrap_or(0.0);
    if of("ok") == 0.0 {
        return format!("**0** in {:.0} s", of("seconds"));
    }
    let share = of("ok") / of("due").max(1.0) * 100.0;
    if of("ok") >= of("due") { "all".to_owned() } else { format!("{share:.1} %") }
}

fn probed(row: &Value, phase: &str) -> String {
    let mut parts = Vec::new();
    for name in ["fence", "health", "http"] {
        let of = |field: &str| at(row, &format!("probes.{name}.{phase}.{field}"));
        let Some(ok) = of("answered") else { continue };
        let all = ok + of("failed").unwrap_or(0.0);
        let slow = of("max_ms").map_or(String::new(), |ms| format!(" ({} ms)", show(Some(ms))));
        parts.push(format!("{ok:.0}/{all:.0}{slow}"));
    }
    parts.join(", ")
}

fn stall(rows: &[&Value], out: &mut String) {
    let first = rows[0];
    let _ = writeln!(
        out,
        "### Consumers that drain slowly or never\n\n\
         Each consumer pipelines {} reads. Beside them, in open loop: {} reads/s and {} adds/s. Latency counts from when a\n\
         request was due, a request without an answer in 5 s counts as 5 s; \"ratio\" is p99 during over p99 before.\n",
        show(at(first, "pipeline")),
        show(at(first, "reads_per_s")),
        show(at(first, "adds_per_s")),
    );
    let _ = writeln!(
        out,
        "| case | bookie | protocol, entry | consumers, drain | reads p50 / p99 before, ms | p50 / p99 / max during | ratio | \
         answered | adds p99 before / during | ratio | answered | reads after: answered, p99 |"
    );
    let _ = writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        let of = |class: &str, phase: &str, q: &str| {
            show(at(row, &format!("flows.{class}.phases.{phase}.latency_ms.{q}")))
        };
        let _ = writeln!(
            out,
            "| {} | {} | {}, {} B | {}, {} | {} / {} | {} / {} / {} | {} | {} | {} / {} | {} | {} | {}, {} |",
            text(&row["case"]),
            text(&row["label"]),
            protocol(row),
            show(at(row, "entry_size_bytes")),
            show(at(row, "consumers")),
            drain(row),
            of("reads", "before", "p50"),
            of("reads", "before", "p99"),
            of("reads", "during", "p50"),
            of("reads", "during", "p99"),
            of("reads", "during", "max"),
            show(ratio(row, "reads")),
            answered(row, "reads", "during"),
            of("adds", "before", "p99"),
            of("adds", "during", "p99"),
            show(ratio(row, "adds")),
            answered(row, "adds", "during"),
            answered(row, "reads", "after"),
            of("reads", "after", "p99"),
        );
    }
    let _ = writeln!(
        out,
        "\nThe same runs: answered of asked (slowest) are fences, health over v3 on new connections, and the HTTP port, during the\n\
         stall. Socket memory is what the kernel keeps of the bookie's answers. \"Bytes back\" is from the close of the consumers\n\
         until the pools hold no more than before. Stopped: threads that ran before and not at all in the second half of the stall.\n"
    );
    let _ = writeln!(
        out,
        "| case | bookie | protocol | consumers, drain | fence, health, http | RSS before / most, MiB | sockets, MiB | bytes back, ms | \
         consumers closed by the bookie | threads stopped; waiting for a peer | Java: in acquire; in send | pools at the end |"
    );
    let _ = writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        let is_java = text(&row["label"]).starts_with("java");
        let stopped = row["threads_stopped"].as_array().map_or(0, Vec::len);
        let most = [at(row, "during.rss_mib_max"), at(row, "after.rss_mib_max")]
            .into_iter()
            .flatten()
            .fold(0.0, f64::max);
        let pools: f64 =
            row["pools_end"].as_object().map_or(0.0, |pools| pools.values().filter_map(Value::as_f64).sum());
        let _ = writeln!(
            out,
            "| {} | {} | {} | {}, {} | {} | {} / {} | {} | {} | {} | {}; {} | {} | {} |",
            text(&row["case"]),
            text(&row["label"]),
            protocol(row),
            show(at(row, "consumers")),
            drain(row),
            probed(row, "during"),
            show(at(row, "before.rss_mib_max")),
            show(Some(most)),
            show(at(row, "socket_sent_mib")),
            if is_java {
                "–".to_owned()
            } else {
                at(row, "bytes_back_ms").map_or("**more than 10 s**".to_owned(), |v| show(Some(v)))
            },
            show(at(row, "seen.closed_by_bookie")),
            stopped,
            show(at(row, "threads_wait_for_peer")),
            if is_java {
                format!("{}; {}", show(at(row, "java_acquire")), show(at(row, "java_send")))
            } else {
                "–".to_owned()
            },
            if is_java { "–".to_owned() } else { show(Some(pools)) },
        );
    }
    out.push('\n');
}

fn refused(phase: &Value) -> f64 {
    phase["refused"].as_object().map_or(0.0, |codes| codes.values().filter_map(Value::as_f64).sum())
}

/// Refusals each second with their codes, and when the first came.
fn refusals(row: &Value, phase: &Value, seconds: f64) -> String {
    let first = |code: &str| at(row, &format!("flows.adds.first_refused_s.{code}"));
    let codes: Vec<String> = (phase["refused"].as_object().into_iter().flatten())
        .map(|(code, n)| {
            let rate = show(n.as_f64().map(|n| n / seconds));
            format!("{rate} {code} (from {} s on)", show(first(code)))
        })
        .collect();
    if codes.is_empty() { "0".to_owned() } else { codes.join(", ") }
}

fn rates(rows: &[&Value], title: &str, out: &mut String) {
    let _ = writeln!(
        out,
        "### {title}\n\nCapacity is the best second in closed loop just before, with {} adds under way; \"deep\" is that\n\
         with {}. An answer later than {} s counts as none, and what the kernel\n\
         has not taken {} s after it was due is not sent any more. \"Back\" is from the drop to 50 % until p99 is at most twice\n\
         (or 5 ms more than) that of the first step for a second with nothing failed.\n",
        show(rows.first().and_then(|row| at(row, "under_way"))),
        show(rows.first().and_then(|row| at(row, "deep_under_way"))),
        show(rows.first().and_then(|row| at(row, "timeout_s"))),
        show(rows.first().and_then(|row| at(row, "unsent_max_s"))),
    );
    let _ = writeln!(
        out,
        "| bookie | protocol | offered | adds/s offered | goodput | of capacity | of deep | p50 / p99 / p99.9 ms | refused/s | not in time/s | client late, p99 ms | back s | RSS MiB |"
    );
    let _ = writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        let deep = at(row, "deep_capacity").unwrap_or(1.0);
        let capacity = at(row, "capacity").unwrap_or(1.0);
        for step in row["steps"].as_array().into_iter().flatten() {
            let name = text(&step[0]);
            let phase = &row["flows"]["adds"]["phases"][name];
            let of = |path: &str| at(phase, path);
            let seconds = of("seconds").unwrap_or(1.0);
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} % | {} % | {} / {} / {} | {} | {} | {} | {} | {} |",
                text(&row["label"]),
                text(&row["protocol"]),
                if name == "after" { "50 % again".to_owned() } else { format!("{name} %") },
                show(of("due").map(|n| n / seconds)),
                show(of("ok_per_s")),
                show(of("ok_per_s").map(|n| n / capacity * 100.0)),
                show(of("ok_per_s").map(|n| n / deep * 100.0)),
                show(of("latency_ms.p50")),
                show(of("latency_ms.p99")),
                show(of("latency_ms.p999")),
                refusals(row, phase, seconds),
                show(of("timeouts").map(|n| n / seconds)),
                show(of("own_lag_p99_ms")),
                if name == "after" {
                    at(row, "back_s").map_or("**never**".to_owned(), |s| show(Some(s)))
                } else {
                    String::new()
                },
                if name == "200" { show(at(row, "during.rss_mib_max")) } else { String::new() },
            );
        }
    }
    out.push('\n');
}

fn overrun(rows: &[&Value], out: &mut String) {
    let first = rows[0];
    let _ = writeln!(
        out,
        "### Writers that ask for more than the journal takes\n\n\
         {} v2 writers with {} adds of {} bytes under way each; beside them, of each kind {} a second in open loop, each kind on a\n\
         connection of its own. A fence waits for a durable write of the journal; one of a ledger that is fenced already does not.\n",
        show(at(first, "writers")),
        show(at(first, "under_way")),
        show(at(first, "entry_size_bytes")),
        show(at(first, "probes_per_s")),
    );
    let _ = writeln!(
        out,
        "| bookie | kind | before: p50 / p99 / max ms | during: p50 / p99 / max ms | answered | writers: adds/s, refused/s | a write of the journal, ms | RSS MiB |"
    );
    let _ = writeln!(out, "|---|---|---|---|---|---|---|---|");
    for row in rows {
        for kind in ["info", "reads", "fences", "fences again"] {
            let times = |phase: &str| {
                let of = |q: &str| show(at(row, &format!("flows.{kind}.phases.{phase}.latency_ms.{q}")));
                format!("{} / {} / {}", of("p50"), of("p99"), of("max"))
            };
            let writers = &row["flows"]["writers"]["phases"]["during"];
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {}, {} | {} | {} |",
                text(&row["label"]),
                kind,
                times("before"),
                times("during"),
                answered(row, kind, "during"),
                show(at(writers, "ok_per_s")),
                show(at(writers, "seconds").map(|seconds| refused(writers) / seconds)),
                show(at(row, "journal_write_ms")),
                show(at(row, "rss_peak_mib")),
            );
        }
    }
    out.push('\n');
}

fn idle(rows: &[&Value], out: &mut String) {
    let _ = writeln!(out, "### Many connections: idle, then one add of each every second\n");
    let _ = writeln!(
        out,
        "| bookie | protocol | connections | connected/s | KiB each, idle | kernel's KiB each | adds answered | p50 / p99 / p99.9 / max ms | RSS MiB | bookie cores |"
    );
    let _ = writeln!(out, "|---|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        let of = |q: &str| show(at(row, &format!("flows.adds.phases.adds.latency_ms.{q}")));
        let took = at(row, "accepted_s").or(at(row, "connect_s"));
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} / {} / {} / {} | {} | {} |",
            text(&row["label"]),
            text(&row["protocol"]),
            show(at(row, "connections")),
            show(at(row, "connections").zip(took).map(|(n, s)| n / s)),
            show(at(row, "idle_kib_each")),
            show(at(row, "idle_socket_kib_each")),
            answered(row, "adds", "adds"),
            of("p50"),
            of("p99"),
            of("p999"),
            of("max"),
            show(at(row, "during.rss_mib_max")),
            show(at(row, "during.bookie_cores")),
        );
    }
    out.push('\n');
}

fn big(rows: &[&Value], out: &mut String) {
    let _ = writeln!(out, "### Largest and smallest adds, batch reads of 500\n");
    let _ = writeln!(
        out,
        "| bookie | load | connections | operations/s | MiB/s | load p50 / p99 ms | refused; not in time | fairness (Jain) | healthy reads p99 before / during | healthy adds p99 before / during | healthy answered | RSS before / most MiB |"
    );
    let _ = writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        let load = &row["flows"]["load"]["phases"]["during"];
        let of =
            |class: &str, phase: &str| show(at(row, &format!("flows.{class}.phases.{phase}.latency_ms.p99")));
        let rate = at(load, "ok_per_s").unwrap_or(0.0);
        let bytes = match text(&row["kind"]) {
            "batch" => at(load, "bytes").unwrap_or(0.0) / at(load, "seconds").unwrap_or(1.0),
            _ => rate * at(row, "entry_size_bytes").unwrap_or(0.0),
        };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} / {} | {}; {} | {} | {} / {} | {} / {} | {}, {} | {} / {} |",
            text(&row["label"]),
            match text(&row["kind"]) {
                "frames" => "adds of 5 MiB",
                "empty" => "adds without payload",
                _ => "batch reads of 500",
            },
            show(at(row, "connections")),
            show(Some(rate)),
            show(Some(bytes / 1048576.0)),
            show(at(load, "latency_ms.p50")),
            show(at(load, "latency_ms.p99")),
            show(Some(refused(load))),
            show(at(load, "timeouts")),
            show(at(row, "flows.load.fairness")),
            of("reads", "before"),
            of("reads", "during"),
            of("adds", "before"),
            of("adds", "during"),
            answered(row, "reads", "during"),
            answered(row, "adds", "during"),
            show(at(row, "before.rss_mib_max")),
            show(at(row, "during.rss_mib_max")),
        );
    }
    out.push('\n');
}

fn catchup(rows: &[&Value], out: &mut String) {
    let _ = writeln!(out, "### Catch-up readers beside tail readers and writers\n");
    let _ = writeln!(
        out,
        "| bookie | filled MiB | catch-up entries/s | tail p50 / p99 before, ms | during | adds p99 before / during | tail answered | read-ahead hits | RSS MiB |"
    );
    let _ = writeln!(out, "|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        let of = |class: &str, phase: &str, q: &str| {
            show(at(row, &format!("flows.{class}.phases.{phase}.latency_ms.{q}")))
        };
        let (hits, misses) = (at(row, "ahead_hits").unwrap_or(0.0), at(row, "ahead_misses").unwrap_or(0.0));
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} / {} | {} / {} | {} / {} | {} | {} | {} |",
            text(&row["label"]),
            show(at(row, "fill_mib")),
            show(at(row, "flows.catch-up.phases.during.ok_per_s")),
            of("tail", "before", "p50"),
            of("tail", "before", "p99"),
            of("tail", "during", "p50"),
            of("tail", "during", "p99"),
            of("adds", "before", "p99"),
            of("adds", "during", "p99"),
            answered(row, "tail", "during"),
            if hits + misses > 0.0 {
                format!("{:.0} %", hits / (hits + misses) * 100.0)
            } else {
                "–".to_owned()
            },
            show(at(row, "during.rss_mib_max")),
        );
    }
    out.push('\n');
}

fn adds(rows: &[&Value], out: &mut String) {
    let _ = writeln!(out, "### What a batch shares: adds in closed loop\n");
    let _ = writeln!(
        out,
        "| bookie | batch cap | ledgers | connections | adds/s | p50 / p99 ms | CPU µs/add | wake-ups/add | system calls/add | entries/group | adds/batch p50, p90 | answers/write p50, p90 |"
    );
    let _ = writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} / {} | {} | {} | {} | {} | {}, {} | {}, {} |",
            text(&row["label"]),
            text(&row["cap"]),
            show(at(row, "ledgers")),
            show(at(row, "connections")),
            show(at(row, "adds_per_s")),
            show(at(row, "latency_ms.p50")),
            show(at(row, "latency_ms.p99")),
            show(at(row, "cpu_us_per_add")),
            show(at(row, "wakes_per_add")),
            show(at(row, "calls_per_add")),
            show(at(row, "group_entries")),
            show(at(row, "batch_p50")),
            show(at(row, "batch_p90")),
            show(at(row, "answers_p50")),
            show(at(row, "answers_p90")),
        );
    }
    out.push('\n');
}

fn reads(rows: &[&Value], out: &mut String) {
    let _ = writeln!(out, "### Reads in closed loop\n");
    let _ = writeln!(
        out,
        "| bookie | protocol | reads | page cache | calls/s | entries/s | p50 / p99 ms | CPU µs/call | CPU µs/entry | entries/s per core |"
    );
    let _ = writeln!(out, "|---|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        let of = |path: &str| show(at(row, path));
        let per_core = at(row, "cpu_us_per_entry").filter(|us| *us > 0.0).map(|us| 1e6 / us);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} / {} | {} | {} | {} |",
            text(&row["label"]),
            text(&row["protocol"]),
            text(&row["case"]),
            if row["cold"] == true { "cold" } else { "warm" },
            of("calls_per_s"),
            of("entries_per_s"),
            of("latency_ms.p50"),
            of("latency_ms.p99"),
            of("cpu_us_per_call"),
            of("cpu_us_per_entry"),
            show(per_core),
        );
    }
    out.push('\n');
}

fn many(rows: &[&Value], out: &mut String) {
    let _ = writeln!(
        out,
        "### Many ledgers\n\n\
         Entries of 100 bytes, one to each ledger in turn, from four connections in closed loop; then a start, and single reads all\n\
         over by four readers. Processor time is the bookie's, of adds until 10 s behind the last one.\n\n\
         | bookie | ledgers | entries | adds/s | CPU \u{b5}s/add | RSS, MiB | entry logs | start, s | read CPU \u{b5}s cold / warm | reads/s cold / warm | p99 ms cold / warm |\n\
         |---|---|---|---|---|---|---|---|---|---|---|"
    );
    for fill in rows.iter().filter(|row| row["case"] == "adds") {
        let [cold, warm] = [true, false].map(|is_cold| many_reads(rows, fill, is_cold));
        let pair = |path: &str| {
            let [cold, warm] = [cold, warm].map(|row| show(row.and_then(|row| at(row, path))));
            format!("{cold} / {warm}")
        };
        let start = cold.and_then(|row| at(row, "start_ms")).map(|ms| ms / 1e3);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            text(&fill["label"]),
            show(at(fill, "ledgers")),
            show(at(fill, "entries_filled")),
            show(at(fill, "calls_per_s")),
            show(at(fill, "cpu_us_per_call")),
            show(at(fill, "rss_mib")),
            show(at(fill, "logs")),
            show(start),
            pair("cpu_us_per_call"),
            pair("calls_per_s"),
            pair("latency_ms.p99"),
        );
    }
    out.push('\n');
}

/// The reads of a bookie that was filled.
fn many_reads<'a>(rows: &[&'a Value], fill: &Value, is_cold: bool) -> Option<&'a Value> {
    let is_of_it = |row: &&&Value| {
        row["case"] != "adds"
            && row["cold"] == is_cold
            && ["label", "ledgers", "entries_filled"].iter().all(|key| row[key] == fill[key])
    };
    rows.iter().copied().find(|row| is_of_it(&row))
}

/// Bookies in order of appearance: the colour of each.
fn labels(results: &[Value]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    results.iter().filter_map(|r| r["label"].as_str()).filter(|label| seen.insert(*label)).collect()
}

/// A picture for each protocol.
const GOODPUT_IMAGES: [(&str, &str); 2] = [("v2", "overload-goodput.png"), ("v3", "overload-goodput-v3.png")];

/// Goodput and p99 of adds over this protocol against what is offered.
fn goodput(results: &[Value], protocol: &str, colour: &impl Fn(&str) -> usize) -> Vec<Panel> {
    let steps =
        results.iter().filter(|r| r["scenario"] == "rates" && r["case"] == "L2" && r["protocol"] == protocol);
    let panel = |title: String, y_label, is_log| Panel {
        title,
        x_label: "adds/s offered: 50, 80, 100, 120 and 200 % of each bookie's closed-loop rate",
        y_label,
        is_log,
        has_dots: true,
        ..Panel::default()
    };
    let mut goodput = panel(format!("Goodput over {protocol}: answers within 1 s"), "adds/s", false);
    let mut latency =
        panel(format!("p99 of adds over {protocol} (from 1,000 ms on: not in time)"), "ms", true);
    let mut offered_max: f64 = 0.0;
    for row in steps {
        let label = text(&row["label"]);
        let points = |path: &str| -> Vec<(f64, f64)> {
            let value = |s: &&str| {
                let phase = &row["flows"]["adds"]["phases"][s];
                Some((at(phase, "due")? / at(phase, "seconds")?, at(phase, path)?))
            };
            ["50", "80", "100", "120", "200"].iter().filter_map(value).collect()
        };
        let good = points("ok_per_s");
        offered_max = good.iter().map(|p| p.1).fold(offered_max, f64::max);
        let line = |points| Line { name: label.to_owned(), points, colour: colour(label), is_thin: false };
        goodput.lines.push(line(good));
        latency.lines.push(line(points("latency_ms.p99")));
    }
    if !goodput.lines.is_empty() {
        goodput.lines.push(Line {
            name: "all that is offered".to_owned(),
            points: vec![(0.0, 0.0), (offered_max, offered_max)],
            colour: GREY,
            is_thin: true,
        });
    }
    vec![goodput, latency]
}

/// Draws what there are results for; gives file names and titles.
fn plots(results: &[Value], dir: &Path) -> Result<Vec<(String, String)>> {
    let labels = labels(results);
    let colour = |label: &str| labels.iter().position(|known| *known == label).unwrap_or(0);
    let mut made = Vec::new();
    let mut make = |name: &str, title: &str, panels: Vec<Panel>| -> Result<()> {
        if panels.iter().any(|panel| panel.lines.iter().any(|line| !line.points.is_empty())) {
            draw(&dir.join(name), &panels)?;
            made.push((name.to_owned(), title.to_owned()));
        }
        Ok(())
    };
    let stalls: Vec<&Value> = results
        .iter()
        .filter(|r| r["scenario"] == "stall" && r["half_close"] != true && r["elsewhere"] != true)
        .filter(|r| r["is_encrypted"] != true)
        .collect();

    // p99 against the number of consumers, of those that never drain and those that drain slowly
    let mut panels = Vec::new();
    for (is_slow, protocol) in [(false, "v2"), (false, "v3"), (true, "v2"), (true, "v3")] {
        let of: Vec<&&Value> = (stalls.iter())
            .filter(|r| (at(r, "drain_per_s").unwrap_or(0.0) > 0.0) == is_slow && r["protocol"] == protocol)
            .filter(|r| r["case"] == "D2")
            .collect();
        let counts: BTreeSet<u64> = of.iter().filter_map(|r| r["consumers"].as_u64()).collect();
        if counts.len() < 2 {
            continue;
        }
        let mut panel = Panel {
            title: format!(
                "Healthy reads beside consumers that {} ({protocol})",
                if is_slow { "drain slowly" } else { "never drain" }
            ),
            x_names: std::iter::once("none".to_owned()).chain(counts.iter().map(u64::to_string)).collect(),
            x_label: "consumers, 20,000 reads pipelined each",
            y_label: "p99, ms",
            is_log: true,
            has_dots: true,
            ..Panel::default()
        };
        for label in &labels {
            let mine: Vec<&&&Value> = of.iter().filter(|r| r["label"] == *label).collect();
            let mut before: Vec<f64> =
                mine.iter().filter_map(|r| at(r, "flows.reads.phases.before.latency_ms.p99")).collect();
            before.sort_by(f64::total_cmp);
            let Some(calm) = before.get(before.len() / 2) else { continue };
            let mut points = vec![(0.0, *calm)];
            for (place, count) in counts.iter().enumerate() {
                let runs = mine.iter().filter(|r| r["consumers"].as_u64() == Some(*count));
                let mut p99s: Vec<f64> =
                    runs.filter_map(|r| at(r, "flows.reads.phases.during.latency_ms.p99")).collect();
                p99s.sort_by(f64::total_cmp);
                if let Some(p99) = p99s.get(p99s.len() / 2) {
                    points.push((place as f64 + 1.0, *p99));
                }
            }
            panel.lines.push(Line {
                name: (*label).to_owned(),
                points,
                colour: colour(label),
                is_thin: false,
            });
        }
        panels.push(panel);
    }
    make("overload-consumers.png", "p99 of healthy reads against the number of consumers", panels)?;

    // latency over time, of one consumer that never drains
    let mut panels = Vec::new();
    for label in &labels {
        let one =
            |r: &&&Value| r["label"] == *label && r["consumers"] == 1 && at(r, "drain_per_s") == Some(0.0);
        let Some(row) =
            stalls.iter().find(|r| one(r) && r["protocol"] == "v2").or_else(|| stalls.iter().find(one))
        else {
            continue;
        };
        let ends: Vec<f64> =
            row["phase_ends"].as_array().into_iter().flatten().filter_map(|e| e[1].as_f64()).collect();
        let (Some(from), Some(to)) = (ends.get(1), ends.get(2)) else { continue };
        let mut panel = Panel {
            title: format!(
                "{label}: one consumer pipelines {} reads and never drains",
                show(at(row, "pipeline"))
            ),
            shade: Some((*from, *to, "consumer connected")),
            x_label: "seconds",
            y_label: "latency, ms",
            is_log: true,
            ..Panel::default()
        };
        for (class, colour) in [("reads", 0), ("adds", 1)] {
            let series = row["flows"][class]["series"].as_array().cloned().unwrap_or_default();
            for (column, q, is_thin) in [(3, "p50", true), (4, "p99", false)] {
                let point = |b: &Value| Some((b[0].as_f64()?, b[column].as_f64().filter(|v| *v > 0.0)?));
                let points = series.iter().filter_map(point).collect();
                panel.lines.push(Line { name: format!("{class} {q}"), points, colour, is_thin });
            }
            for bucket in series.iter().filter(|b| b[2].as_u64().unwrap_or(0) > 0) {
                panel.crosses.push((bucket[0].as_f64().unwrap_or(0.0), bucket[4].as_f64().unwrap_or(1.0)));
            }
        }
        panels.push(panel);
    }
    make("overload-latency.png", "Latency over time beside one consumer that never drains", panels)?;

    for (protocol, name) in GOODPUT_IMAGES {
        let title = format!("Goodput against offered load, {protocol}");
        make(name, &title, goodput(results, protocol, &colour))?;
    }

    let rows: Vec<&Value> = results.iter().filter(|r| r["scenario"] == "many").collect();
    let counts: BTreeSet<u64> = rows.iter().filter_map(|r| r["ledgers"].as_u64()).collect();
    let mut panels = Vec::new();
    for (y_label, case, is_cold, path, unit) in [
        ("CPU \u{b5}s for each read, warm", "random", Some(false), "cpu_us_per_call", 1.0),
        ("start, s", "random", Some(true), "start_ms", 1e-3),
        ("entry logs", "adds", None, "logs", 1.0),
    ] {
        let mut panel = Panel {
            title: format!("Many ledgers: {y_label}"),
            x_label: "million entries of 100 bytes",
            y_label,
            is_log: true,
            has_dots: true,
            ..Panel::default()
        };
        for label in &labels {
            for ledgers in &counts {
                let mut points: Vec<(f64, f64)> = (rows.iter())
                    .filter(|r| r["label"] == *label && r["ledgers"].as_u64() == Some(*ledgers))
                    .filter(|r| r["case"] == case && is_cold.is_none_or(|cold| r["cold"] == cold))
                    .filter_map(|r| Some((at(r, "entries_filled")? / 1e6, at(r, path)? * unit)))
                    .collect();
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                if !points.is_empty() {
                    panel.lines.push(Line {
                        name: format!("{label}, {} k", ledgers / 1000),
                        points,
                        colour: colour(label),
                        is_thin: *ledgers > 200_000,
                    });
                }
            }
        }
        panels.push(panel);
    }
    make("overload-many.png", "Many ledgers: read CPU, start, entry logs", panels)?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_picture_in_the_documentation_is_made_by_a_report() {
        let steps: serde_json::Map<String, Value> = ["50", "80", "100", "120", "200"]
            .into_iter()
            .map(|step| {
                let phase =
                    json!({ "due": 100.0, "seconds": 1.0, "ok_per_s": 90.0, "latency_ms": { "p99": 3.0 } });
                (step.to_owned(), phase)
            })
            .collect();
        let row = |protocol: &str| {
            json!({
                "scenario": "rates", "case": "L2", "label": "bindery", "protocol": protocol,
                "flows": { "adds": { "phases": steps } },
            })
        };
        let dir = tempfile::tempdir().unwrap();
        let made = plots(&[row("v2"), row("v3")], dir.path()).unwrap();
        for (file, _) in &made {
            assert!(dir.path().join(file).exists(), "{file}");
        }
        let page = include_str!("../../../docs/benchmarks/overload.md");
        let shown = page.match_indices("](../images/overload-goodput").map(|(at, _)| {
            let link = &page[at + "](../images/".len()..];
            &link[..link.find(')').unwrap()]
        });
        let shown: Vec<&str> = shown.collect();
        assert_eq!(shown, made.iter().map(|(file, _)| file.as_str()).collect::<Vec<_>>());
    }
}
