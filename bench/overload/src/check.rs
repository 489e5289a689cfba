//! Checks that our bookie must pass in any scenario and on any machine, however busy: none is about times.

use crate::args::Args;
use anyhow::{Result, bail};
use serde_json::Value;

/// Reads a result line from standard input; fails with everything that does not hold.
pub fn run(mut args: Args) -> Result<()> {
    let rss_mib_max = args.or("rss-mib-max", f64::INFINITY)?;
    args.finish()?;
    let result: Value = serde_json::from_reader(std::io::stdin())?;
    let faults = faults(&result, rss_mib_max);
    if faults.is_empty() {
        return Ok(());
    }
    bail!("{} {}: {}", result["case"], result["label"], faults.join("; "))
}

fn number(value: &Value, path: &str) -> f64 {
    path.split('.').try_fold(value, |value, key| value.get(key)).and_then(Value::as_f64).unwrap_or(0.0)
}

/// The checks that fail.
fn faults(result: &Value, rss_mib_max: f64) -> Vec<String> {
    let mut faults = Vec::new();
    let is_stall = result["scenario"] == "stall";
    let measured = ["before", "during", "after"].into_iter().filter(|phase| result.get(phase).is_some());
    // A figure that is missing holds nothing, and would pass as one that is small.
    if is_stall && measured.clone().count() < 3 {
        faults.push("a phase is missing".to_owned());
    }
    for phase in measured {
        let rss = number(result, &format!("{phase}.rss_mib_max"));
        if rss > rss_mib_max {
            faults.push(format!("{rss:.0} MiB resident {phase}, {rss_mib_max:.0} allowed"));
        }
        if rss == 0.0 && is_stall {
            faults.push(format!("nobody looked at the memory in phase {phase}"));
        }
    }
    let pools = result.get("pools_end");
    if pools.is_some_and(|pools| pools.as_object().is_none_or(|pools| pools.is_empty()))
        || (is_stall && pools.is_none())
    {
        faults.push("nobody looked at the pools".to_owned());
    }
    for (pool, used) in result["pools_end"].as_object().into_iter().flatten() {
        if used != 0 {
            faults.push(format!("pool {pool} holds {used} bytes at the end"));
        }
    }
    // of every class some in every phase; beside stalled consumers nearly all
    let share = if is_stall { 0.9 } else { 0.0 };
    for (class, flow) in result["flows"].as_object().into_iter().flatten() {
        for (phase, of) in flow["phases"].as_object().into_iter().flatten() {
            let (due, ok) = (number(of, "due"), number(of, "ok"));
            if due > 0.0 && ok <= share * due {
                faults.push(format!("{ok} of {due} {class} answered in phase {phase}: {of}"));
            }
        }
    }
    for (probe, phases) in result["probes"].as_object().into_iter().flatten() {
        for (phase, of) in phases.as_object().into_iter().flatten() {
            if number(of, "failed") > 0.0 {
                faults.push(format!("{probe} failed in phase {phase}: {of}"));
            }
        }
    }
    if is_stall {
        let (consumers, connected) = (number(result, "consumers"), number(result, "seen.connected"));
        if connected < consumers || consumers == 0.0 {
            faults.push(format!("{connected} of {consumers} consumers came to the bookie"));
        }
        // None of them may have come without TLS. Peers that hold what others wait for may have been closed.
        let are_open = number(result, "tls_connections");
        let seen = are_open + number(result, "seen.closed_by_bookie");
        if result["is_encrypted"] == true && (are_open == 0.0 || seen < consumers) {
            faults.push(format!("TLS on {} connections of the bookie", result["tls_connections"]));
        }
        let drains = number(result, "drain_per_s") > 0.0 || !result["head_bytes"].is_null();
        if !drains && number(result, "seen.bytes") > 0.0 {
            faults.push("consumers that never drain took answers".to_owned());
        }
        if number(result, "threads_wait_for_peer") > 0.0 {
            faults.push("a thread waits for a peer".to_owned());
        }
        if result["bytes_back_ms"].is_null() {
            faults.push("bytes are not back 10 s after the consumers closed".to_owned());
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn healthy() -> Value {
        json!({
            "scenario": "stall", "is_encrypted": true, "tls_connections": 14, "case": "D2", "label": "x", "consumers": 8, "seen": { "connected": 8 },
            "before": { "rss_mib_max": 400.0 }, "during": { "rss_mib_max": 500.0 }, "after": { "rss_mib_max": 500.0 },
            "pools_end": { "outbound": 0 }, "threads_wait_for_peer": 0, "bytes_back_ms": 3.0,
            "flows": { "reads": { "phases": { "during": { "due": 100, "ok": 100 } } } },
            "probes": { "fence": { "during": { "answered": 9, "failed": 0 } } },
        })
    }

    #[test]
    fn every_fault_is_seen() {
        assert_eq!(faults(&healthy(), 576.0), Vec::<String>::new());
        let spoilt: [fn(&mut Value); 14] = [
            |r| r["seen"]["connected"] = json!(7),
            |r| r["pools_end"] = json!({}),
            |r| r["pools_end"] = Value::Null,
            |r| r["during"] = json!({}),
            |r| drop(r.as_object_mut().map(|r| r.remove("after"))),
            |r| r["during"]["rss_mib_max"] = json!(577.0),
            |r| r["pools_end"]["outbound"] = json!(1),
            |r| r["threads_wait_for_peer"] = json!(1),
            |r| r["bytes_back_ms"] = Value::Null,
            |r| r["tls_connections"] = json!(7),
            |r| r["tls_connections"] = Value::Null,
            |r| r["seen"]["bytes"] = json!(1),
            |r| r["flows"]["reads"]["phases"]["during"]["ok"] = json!(90),
            |r| r["probes"]["fence"]["during"]["failed"] = json!(1),
        ];
        for (at, spoil) in spoilt.iter().enumerate() {
            let mut result = healthy();
            spoil(&mut result);
            assert_eq!(faults(&result, 576.0).len(), 1, "fault {at}");
        }
    }
}
