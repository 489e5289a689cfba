//! Object storage as the admin port shows it: metrics, and one answer in JSON.

use super::Tier;
use crate::metrics::Exposition;
use bindery_engine::Engine;
use bindery_types::{EntryId, LedgerId};

/// Everything there is to measure. `is_usable`: no tierer of this process says that the bucket cannot be used.
pub fn expose(tier: &Tier, is_usable: bool, now_ns: u64, out: &mut Exposition) {
    out.summary("bindery_tier_READ_WAIT", &[], &tier.waits.snapshot(now_ns));
    let stats = tier.fetcher().map(|fetcher| fetcher.stats()).unwrap_or_default();
    let counters = [
        ("bindery_tier_read_hits", stats.hits),
        ("bindery_tier_read_misses", stats.misses),
        ("bindery_tier_reads_failed", stats.failures),
        ("bindery_tier_reads_refused", stats.refused),
        ("bindery_tier_reads_looked_up_again", tier.second_looks.get()),
        ("bindery_tier_requests", stats.requests),
        ("bindery_tier_requests_failed", stats.requests_failed),
        ("bindery_tier_request_bytes", stats.request_bytes),
        ("bindery_tier_request_ms", stats.request_ns / 1_000_000),
        ("bindery_tier_blocks_ahead", stats.blocks_ahead),
        ("bindery_tier_pins_revoked", stats.pins_revoked),
        ("bindery_tier_read_alarms", stats.alarms),
        ("bindery_tier_ledgers_reconciled", tier.reconciled.get()),
        ("bindery_tier_ledgers_not_reconciled", tier.not_reconciled.get()),
        ("bindery_tier_trim_rounds", tier.desk.rounds.get()),
        ("bindery_tier_trimmed_ledgers", tier.desk.ledgers.get()),
        ("bindery_tier_trimmed_entries", tier.desk.entries.get()),
        ("bindery_tier_checks", tier.desk.checks.get()),
        ("bindery_tier_check_differences", tier.desk.differences.get()),
        ("bindery_tier_check_entries_read", tier.desk.entries_read.get()),
    ];
    for (name, value) in counters {
        out.counter(name, &[], value);
    }
    let status = tier.desk.status();
    let gauges = [
        ("bindery_tier_reachable", u64::from(stats.is_reachable && is_usable)),
        ("bindery_tier_reads_waiting", stats.waiting),
        ("bindery_tier_requests_running", stats.running),
        ("bindery_tier_pins", stats.pins),
        ("bindery_tier_trim_waiting", status.waiting as u64),
        ("bindery_tier_trim_blocked", status.blocked_count as u64),
        ("bindery_tier_trim_stopped", u64::from(status.stopped_because.is_some())),
        ("bindery_tier_trim_lacking_bytes", status.lacking_bytes),
    ];
    for (name, value) in gauges {
        out.gauge_of(name, &[], value);
    }
    let memory =
        [("index", stats.index_bytes), ("block", stats.block_bytes), ("request", stats.under_way_bytes)];
    for (kind, bytes) in memory {
        out.gauge_of("bindery_tier_memory_bytes", &[("kind", kind)], bytes);
    }
}

/// The answer of `GET /api/v1/bookie/tier/ledger`: of a ledger that is not here, or of which nothing is in object storage, only
/// numbers that are null.
pub fn ledger_json(tier: &Tier, engine: &Engine, ledger: LedgerId) -> serde_json::Value {
    let tiered = engine.tiered(ledger);
    let status = tier.desk.status();
    let differs = status.blocked.iter().find(|(blocked, _)| *blocked == ledger).map(|(_, blocked)| blocked);
    serde_json::json!({
        "ledgerId": ledger.get(),
        "lastReconciled": tiered.map(|tiered| tiered.lre.get()),
        "trimmedBelow": tiered.and_then(|tiered| tiered.trimmed_below).map(EntryId::get),
        "differs": differs.map(|blocked| &blocked.why),
        "differsSinceMs": differs.map(|blocked| blocked.since_ms),
    })
}

/// The answer of `GET /api/v1/bookie/tier`.
pub fn json(tier: &Tier) -> serde_json::Value {
    let stats = tier.fetcher().map(|fetcher| fetcher.stats()).unwrap_or_default();
    let status = tier.desk.status();
    let blocked: Vec<_> = status
        .blocked
        .iter()
        .map(|(ledger, blocked)| {
            serde_json::json!({ "ledgerId": ledger.get(), "why": blocked.why, "sinceMs": blocked.since_ms })
        })
        .collect();
    let last_failure = tier.last_failure().map(|failure| {
        serde_json::json!({
            "ledgerId": failure.ledger.get(),
            "entry": failure.entry,
            "why": failure.why,
            "atMs": failure.at_ms,
        })
    });
    serde_json::json!({
        "url": tier.url().to_string(),
        "reachable": stats.is_reachable,
        "reads": {
            "hits": stats.hits,
            "misses": stats.misses,
            "waiting": stats.waiting,
            "failed": stats.failures,
            "refused": stats.refused,
            "alarms": stats.alarms,
            "lastFailure": last_failure,
        },
        "requests": {
            "sent": stats.requests,
            "failed": stats.requests_failed,
            "running": stats.running,
            "bytes": stats.request_bytes,
        },
        "trim": {
            "rounds": tier.desk.rounds.get(),
            "ledgers": tier.desk.ledgers.get(),
            "entries": tier.desk.entries.get(),
            "checks": tier.desk.checks.get(),
            "differences": tier.desk.differences.get(),
            "waiting": status.waiting,
            "lackingBytes": status.lacking_bytes,
            "lastEndMs": status.last_end_ms,
            "stoppedBecause": status.stopped_because,
            "blocked": status.blocked_count,
        },
        "differing": blocked,
    })
}
