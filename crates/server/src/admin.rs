//! The admin port: health, state and metrics over HTTP (protocol reference, section 8.1). It changes nothing.

use crate::latch::Latch;
use crate::metrics::{Exposition, SummarySnapshot};
use crate::shared::Shared;
use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::net::TcpListener;

/// What the admin port knows of the bookie.
#[derive(Default)]
pub struct AdminState {
    /// Set once the engine is open.
    pub shared: OnceLock<Arc<Shared>>,
    /// Registered and serving.
    pub is_running: AtomicBool,
    /// On its way out.
    pub is_shutting_down: AtomicBool,
}

/// Answers until `stop`.
pub async fn serve(listener: TcpListener, state: Arc<AdminState>, stop: Arc<Latch>) {
    let served =
        axum::serve(listener, router(state)).with_graceful_shutdown(async move { stop.wait().await });
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
    let is_failed = status.as_ref().is_some_and(|status| status.failed.is_some());
    let body = serde_json::json!({
        "running": state.is_running.load(Ordering::Acquire),
        "readOnly": status.as_ref().is_none_or(|status| status.is_read_only),
        "shuttingDown": state.is_shutting_down.load(Ordering::Acquire),
        "availableForHighPriorityWrites": status.is_some() && !is_failed,
        "journalSync": status.as_ref().map(|status| status.journal_sync),
        "failed": status.and_then(|status| status.failed),
    });
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
    (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], out.into_text())
        .into_response()
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
