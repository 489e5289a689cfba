//! Object storage as the admin port shows it: metrics, and one answer in JSON.

use super::Tier;
use super::trim::TrimStatus;
use bindery_engine::Engine;
use bindery_metrics::{Exposition, Kind, Row, Table};
use bindery_tiering::fetch::FetchStats;
use bindery_types::{EntryId, LedgerId};
use std::sync::Arc;

/// At one moment.
pub struct TierNumbers {
    tier: Arc<Tier>,
    stats: FetchStats,
    status: TrimStatus,
    /// No tierer of this process says that the bucket cannot be used.
    is_usable: bool,
}

const REACHABLE_NAME: &str = "bindery_tier_reachable";
const REACHABLE_HELP: &str =
    "0 while the bucket does not answer, or a tierer of this process cannot start because of it.";

/// The same of a process that has a tierer only.
pub const REACHABLE: Table<bool> = Table::new(&[Row::flag(REACHABLE_NAME, REACHABLE_HELP, |is_it| *is_it)]);

/// What is measured of object storage, as a bookie uses it.
pub const NUMBERS: Table<TierNumbers> = Table::new(&[
    Row::summary("bindery_tier_READ_WAIT", "How long reads wait for object storage, in ms.", |of, now_ns| {
        of.tier.waits.snapshot(now_ns)
    }),
    Row::counter("bindery_tier_read_hits", "Reads of trimmed entries that were found in memory.", |of| {
        of.stats.hits
    }),
    Row::counter("bindery_tier_read_misses", "Reads of trimmed entries that were fetched.", |of| {
        of.stats.misses
    }),
    Row::counter("bindery_tier_reads_failed", "Reads of trimmed entries that did not come.", |of| {
        of.stats.failures
    }),
    Row::counter(
        "bindery_tier_reads_refused",
        "Reads of trimmed entries that were refused because too many wait.",
        |of| of.stats.refused,
    ),
    Row::counter(
        "bindery_tier_reads_looked_up_again",
        "Reads that looked their entry up a second time because its object was gone.",
        |of| of.tier.second_looks.get(),
    ),
    Row::counter(
        "bindery_tier_requests",
        "Requests to the bucket, retries and those of checks included.",
        |of| of.stats.requests,
    ),
    Row::counter(
        "bindery_tier_catalogue_requests",
        "Requests to the bucket that looked into the catalogue, for objects that took the place of others and before copies go.",
        |of| {
            let requests = of.tier.catalogue_requests();
            requests.gets + requests.lists
        },
    ),
    Row::counter("bindery_tier_requests_failed", "Requests to the bucket that failed, each try.", |of| {
        of.stats.requests_failed
    }),
    Row::counter("bindery_tier_request_bytes", "Bytes that came from the bucket.", |of| {
        of.stats.request_bytes
    }),
    Row::counter("bindery_tier_request_ms", "Milliseconds of requests to the bucket.", |of| {
        of.stats.request_ns / 1_000_000
    }),
    Row::counter("bindery_tier_blocks_ahead", "Blocks read ahead of their readers.", |of| {
        of.stats.blocks_ahead
    }),
    Row::counter(
        "bindery_tier_pins_revoked",
        "Entries from the bucket that their connections did not take in time.",
        |of| of.stats.pins_revoked,
    ),
    Row::counter(
        "bindery_tier_read_alarms",
        "Reads that met objects that are missing, damaged or foreign: look at the log.",
        |of| of.stats.alarms,
    ),
    Row::counter(
        "bindery_tier_ledgers_reconciled",
        "Ledgers of which a tierer said how far they are in object storage, and that was taken.",
        |of| of.tier.reconciled.get(),
    ),
    Row::counter(
        "bindery_tier_ledgers_not_reconciled",
        "Ledgers of which a tierer said that, and it was not taken.",
        |of| of.tier.not_reconciled.get(),
    ),
    Row::counter("bindery_tier_trim_rounds", "Rounds of trimming.", |of| of.tier.desk.rounds.get()),
    Row::counter("bindery_tier_trimmed_ledgers", "Ledgers whose local copies were let go.", |of| {
        of.tier.desk.ledgers.get()
    }),
    Row::counter("bindery_tier_trimmed_entries", "Entries whose local copies were let go.", |of| {
        of.tier.desk.entries.get()
    }),
    Row::counter(
        "bindery_tier_checks",
        "Extents that were checked before trimming, and found to be good.",
        |of| of.tier.desk.checks.get(),
    ),
    Row::counter("bindery_tier_check_differences", "Checks before trimming that found a difference.", |of| {
        of.tier.desk.differences.get()
    }),
    Row::counter(
        "bindery_tier_check_entries_read",
        "Entries read back from the bucket to be compared.",
        |of| of.tier.desk.entries_read.get(),
    ),
    Row::flag(REACHABLE_NAME, REACHABLE_HELP, |of| of.stats.is_reachable && of.is_usable),
    Row::gauge("bindery_tier_reads_waiting", "Reads that wait for object storage.", |of| of.stats.waiting),
    Row::gauge("bindery_tier_requests_running", "Requests to the bucket under way.", |of| of.stats.running),
    Row::gauge("bindery_tier_pins", "Entries that arrived from the bucket and are not answered yet.", |of| {
        of.stats.pins
    }),
    Row::gauge("bindery_tier_trim_waiting", "Ledgers that have something to be trimmed.", |of| {
        of.status.waiting as u64
    }),
    Row::gauge(
        "bindery_tier_trim_blocked",
        "Ledgers whose copy in the bucket differs: their local copies stay.",
        |of| of.status.blocked_count as u64,
    ),
    Row::flag("bindery_tier_trim_stopped", "1 when the last round of trimming ended early.", |of| {
        of.status.stopped_because.is_some()
    }),
    Row::gauge(
        "bindery_tier_trim_lacking_bytes",
        "Bytes that are to go before their time, for want of space.",
        |of| of.status.lacking_bytes,
    ),
    Row::each(
        Kind::Gauge,
        "bindery_tier_memory_bytes",
        &["kind"],
        "Memory of reads from the bucket: indexes, blocks, requests under way.",
        |of, series| {
            let (index, block) = (of.stats.index_bytes, of.stats.block_bytes);
            for (kind, bytes) in [("index", index), ("block", block), ("request", of.stats.under_way_bytes)] {
                series.count(&[("kind", kind)], bytes);
            }
        },
    ),
]);

/// Everything there is to measure. `is_usable`: no tierer of this process says that the bucket cannot be used.
pub fn expose(tier: &Arc<Tier>, is_usable: bool, out: &mut Exposition) {
    let stats = tier.fetcher().map(|fetcher| fetcher.stats()).unwrap_or_default();
    NUMBERS.expose(&TierNumbers { tier: tier.clone(), stats, status: tier.desk.status(), is_usable }, out);
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
