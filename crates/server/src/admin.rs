//! The admin port: health, state and metrics over HTTP (protocol reference, section 8.1). It changes nothing, but asks
//! for garbage collection when told to.

use crate::disks::{DiskDesk, Standing};
use crate::garbage::{GarbageDesk, GarbageRequest};
use crate::latch::Latch;
use crate::metrics::{Exposition, SummarySnapshot};
use crate::shared::Shared;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::net::TcpListener;

/// What the admin port knows of the bookie.
#[derive(Default)]
pub struct AdminState {
    /// Set once the engine is open.
    pub shared: OnceLock<Arc<Shared>>,
    /// Set once the engine is open.
    pub garbage: OnceLock<Arc<GarbageDesk>>,
    /// Set once the engine is open.
    pub disks: OnceLock<(Arc<DiskDesk>, Arc<Standing>)>,
    /// Registered and serving.
    pub is_running: AtomicBool,
    /// On its way out.
    pub is_shutting_down: AtomicBool,
}

/// Answers until `stop`.
pub async fn serve(listener: TcpListener, state: Arc<AdminState>, stop: Arc<Latch>) {
    let served = axum::serve(listener, router(state).into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(async move { stop.wait().await });
    if let Err(error) = served.await {
        tracing::warn!(%error, "admin port");
    }
}

fn router(state: Arc<AdminState>) -> Router {
    Router::new()
        .route("/heartbeat", any(|| async { "OK\n" }))
        .route("/metrics", any(metrics))
        .route("/api/v1/bookie/is_ready", any(is_ready))
        .route("/api/v1/bookie/state", any(bookie_state))
        .route("/api/v1/bookie/gc", any(gc))
        .route("/api/v1/bookie/gc_details", any(gc_details))
        .with_state(state)
}

/// Other methods are not found, as in Java.
fn not_found(method: &Method) -> Response {
    (StatusCode::NOT_FOUND, format!("Not found method {method}. Should be GET method\n")).into_response()
}

async fn is_ready(State(state): State<Arc<AdminState>>, method: Method) -> Response {
    if method != Method::GET {
        return not_found(&method);
    }
    if state.is_running.load(Ordering::Acquire) {
        (StatusCode::OK, "OK").into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "Bookie is not fully started yet").into_response()
    }
}

/// The keys of Java, and what an operator must know besides.
async fn bookie_state(State(state): State<Arc<AdminState>>, method: Method) -> Response {
    if method != Method::GET {
        return not_found(&method);
    }
    let status = state.shared.get().map(|shared| shared.engine.status());
    let takes_high_priority = status.as_ref().is_some_and(|status| status.takes_high_priority);
    let (mut reasons, mut volumes) = (serde_json::Map::new(), Vec::new());
    if let Some((desk, standing)) = state.disks.get() {
        reasons
            .extend(standing.reasons().into_iter().map(|(cause, why)| (cause.name().to_owned(), why.into())));
        volumes.extend(desk.volumes().iter().map(|volume| {
            serde_json::json!({
                "dir": volume.dir.display().to_string(),
                "totalBytes": volume.space.map(|space| space.total),
                "freeBytes": volume.space.map(|space| space.free),
                "reserveBytes": volume.reserve.0,
                "reserveBytesWanted": volume.reserve.1,
                "full": volume.is_full,
            })
        }));
    }
    let body = serde_json::json!({
        "running": state.is_running.load(Ordering::Acquire),
        "readOnly": status.as_ref().is_none_or(|status| status.is_read_only),
        "shuttingDown": state.is_shutting_down.load(Ordering::Acquire),
        "availableForHighPriorityWrites": takes_high_priority,
        "readOnlyBecause": reasons,
        "volumes": volumes,
        "journalSync": status.as_ref().map(|status| status.journal_sync),
        "failed": status.and_then(|status| status.failed),
    });
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// What `PUT /api/v1/bookie/gc` may say.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct GcOrder {
    force_major: bool,
    force_minor: bool,
    /// Ours: one round without the checks that an operator may waive. From this machine only.
    waive_checks: bool,
}

/// GET says whether a round that was asked for is still to be done, PUT asks for one.
async fn gc(
    State(state): State<Arc<AdminState>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    method: Method,
    body: Bytes,
) -> Response {
    let Some(desk) = state.garbage.get() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "Bookie is not fully started yet\n").into_response();
    };
    match method {
        Method::GET => {
            let is_forced = desk.status().is_forced.to_string();
            json(&serde_json::json!({ "is_in_force_gc": is_forced }))
        }
        Method::PUT => {
            let order = if body.is_empty() { Ok(GcOrder::default()) } else { serde_json::from_slice(&body) };
            let order = match order {
                Ok(order) => order,
                Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
            };
            if order.waive_checks && !peer.ip().to_canonical().is_loopback() {
                let why = "waiveChecks is taken from this machine only\n";
                return (StatusCode::FORBIDDEN, why).into_response();
            }
            if order.waive_checks {
                tracing::warn!(%peer, "the next garbage collection runs without checking how much it removes");
            }
            desk.ask(GarbageRequest {
                minor: order.force_minor,
                major: order.force_major,
                is_waived: order.waive_checks,
            });
            (StatusCode::OK, "Triggered GC on BookieServer\n").into_response()
        }
        _ => (
            StatusCode::METHOD_NOT_ALLOWED,
            "Not found method. Should be PUT to trigger GC, Or GET to get Force GC state.\n",
        )
            .into_response(),
    }
}

/// Java's keys, in a list as there; what is ours besides under "bindery".
async fn gc_details(State(state): State<Arc<AdminState>>, method: Method) -> Response {
    if method != Method::GET {
        return not_found(&method);
    }
    let (Some(shared), Some(desk)) = (state.shared.get(), state.garbage.get()) else {
        return (StatusCode::SERVICE_UNAVAILABLE, "Bookie is not fully started yet\n").into_response();
    };
    let (space, garbage) = (shared.engine.space_status(), desk.status());
    let skipped: Vec<_> =
        space.skipped.iter().map(|(log, why)| serde_json::json!({ "log": log, "why": why })).collect();
    json(&serde_json::json!([{
        "forceCompacting": garbage.is_forced,
        "majorCompacting": space.is_major_compacting,
        "minorCompacting": space.is_minor_compacting,
        "majorCompactionCounter": space.major_compactions,
        "minorCompactionCounter": space.minor_compactions,
        "gcCounter": desk.rounds.get(),
        "bindery": {
            "lastRoundEndMs": garbage.last_end_ms,
            "lastRoundLedgers": garbage.last_ledgers,
            "lastRoundRemoved": garbage.last_removed,
            "stoppedBecause": garbage.last_doubt,
            "ledgersRemoved": desk.removed.get(),
            "logsDropped": space.logs_dropped,
            "logsRewritten": space.logs_rewritten,
            "bytesCopied": space.bytes_copied,
            "logsSkipped": skipped,
            "errors": space.errors,
            "lastError": space.last_error,
        },
    }]))
}

fn json(body: &serde_json::Value) -> Response {
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn metrics(State(state): State<Arc<AdminState>>, method: Method) -> Response {
    if method != Method::GET {
        return (StatusCode::FORBIDDEN, format!("{method} is forbidden\n")).into_response();
    }
    let mut out = Exposition::new();
    if let Some(shared) = state.shared.get() {
        expose(shared, &mut out);
    }
    if let Some((desk, standing)) = state.disks.get() {
        desk.expose(standing, &mut out);
    }
    if let Some(desk) = state.garbage.get() {
        expose_garbage(desk, &mut out);
    }
    (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], out.into_text())
        .into_response()
}

/// Progress of garbage collection: a round that ended in doubt shows as `bindery_gc_stopped` until one goes through.
pub fn expose_garbage(desk: &GarbageDesk, out: &mut Exposition) {
    let status = desk.status();
    out.counter("bindery_gc_rounds", &[], desk.rounds.get());
    out.counter("bindery_gc_rounds_stopped", &[], desk.doubts.get());
    out.counter("bindery_gc_ledgers_removed", &[], desk.removed.get());
    out.gauge("bindery_gc_stopped", &[], i64::from(status.last_doubt.is_some()));
    out.gauge("bindery_gc_last_end_ms", &[], status.last_end_ms.unwrap_or(0));
}

/// Everything there is to measure.
pub fn expose(shared: &Shared, out: &mut Exposition) {
    shared.metrics.expose(shared.clock.monotonic_ns(), out);
    let stats = shared.engine.stats();
    let journal = [("journalIndex", "0")];
    let as_f64 = |n: u64| n as f64;
    let summaries = [
        ("JOURNAL_SYNC", as_f64(stats.journal_write_ns) / 1e6),
        ("JOURNAL_FORCE_WRITE_BATCH_ENTRIES", as_f64(stats.journal_entries)),
        ("JOURNAL_FORCE_WRITE_BATCH_BYTES", as_f64(stats.journal_bytes)),
    ];
    for (name, sum) in summaries {
        let snapshot = SummarySnapshot::of_sums(stats.journal_groups, sum);
        out.summary(&format!("bookie_journal_{name}"), &journal, &snapshot);
    }
    out.counter("bookie_journal_JOURNAL_WRITE_BYTES", &journal, stats.journal_bytes);
    let gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    out.gauge(
        "bookie_journal_JOURNAL_MEMORY_MAX",
        &journal,
        gauge(stats.write_pool_chunks * stats.write_pool_chunk_bytes),
    );
    out.gauge(
        "bookie_journal_JOURNAL_MEMORY_USED",
        &journal,
        gauge(stats.write_pool_chunks_in_use * stats.write_pool_chunk_bytes),
    );
    out.gauge("bookie_ledgers_count", &[], gauge(stats.ledgers));
    let space = shared.engine.space_status();
    out.gauge("bindery_ledgers_removed", &[], gauge(stats.ledgers_removed));
    out.gauge("bindery_entry_logs", &[], gauge(stats.entry_logs));
    out.gauge("bindery_entry_log_bytes", &[], gauge(stats.entry_log_bytes));
    out.counter("bindery_space_collections", &[], space.collections);
    out.counter("bindery_space_logs_dropped", &[], space.logs_dropped);
    out.counter("bindery_space_logs_rewritten", &[], space.logs_rewritten);
    out.counter("bindery_space_bytes_copied", &[], space.bytes_copied);
    out.counter("bindery_space_bytes_removed", &[], space.bytes_removed);
    out.counter("bindery_space_bytes_rewritten", &[], space.bytes_rewritten);
    out.gauge("bindery_space_logs_skipped", &[], gauge(space.skipped.len() as u64));
    out.counter("bindery_space_errors", &[], space.errors);
    out.counter("bindery_flushes", &[], stats.flushes);
    out.counter("bindery_flushed_entries", &[], stats.flushed_entries);
    out.counter("bindery_flushed_bytes", &[], stats.flushed_bytes);
    out.counter("bindery_write_pool_full", &[], stats.no_room);
    let mut pools: Vec<(&str, i64, i64, i64)> = vec![(
        "write",
        gauge(stats.write_pool_chunks * stats.write_pool_chunk_bytes),
        gauge(stats.write_pool_chunks_in_use * stats.write_pool_chunk_bytes),
        shared.metrics.adds_blocked.get(),
    )];
    for (name, pool) in shared.pools.gauges() {
        pools.push((name, gauge(pool.capacity), gauge(pool.used), pool.waiting as i64));
    }
    for (name, capacity, _, _) in &pools {
        out.gauge("bindery_pool_capacity_bytes", &[("pool", name)], *capacity);
    }
    for (name, _, used, _) in &pools {
        out.gauge("bindery_pool_used_bytes", &[("pool", name)], *used);
    }
    for (name, _, _, waiting) in &pools {
        out.gauge("bindery_pool_waiting", &[("pool", name)], *waiting);
    }
    out.gauge("bindery_disk_reads_queued", &[], gauge(shared.io.queued() as u64));
    out.gauge("bindery_failed", &[], i64::from(shared.engine.status().failed.is_some()));
}
