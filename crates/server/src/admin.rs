//! The admin port: health, state and metrics over HTTP (protocol reference, section 8.1). It asks for garbage collection or a scrub
//! when told to, and changes the cluster's settings of repair ([`cluster`]). [`access`] says which peers may.
//!
//! # Limits     connections, bytes and waits: [`port`]; scrubs waited for: [`SCRUB_WAITS_MAX`]

pub mod access;
mod cluster;
pub mod extension;
pub(crate) mod port;
mod socket;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "what an operator puts there")]
mod tls_tests;

use self::access::Access;
use self::cluster::MetadataQuestions;
use self::extension::{Extensions, Part};
use crate::config::AdminScope;
use crate::disks::{DiskDesk, ReadOnlyReasons};
use crate::flow_view::{self, CONNECTIONS_DEFAULT, CONNECTIONS_MAX, PoolFlow, Sort};
use crate::latch::Latch;
use crate::maintenance::garbage::{GarbageDesk, GarbageRequest};
use crate::metrics::Exposition;
use crate::shared::Shared;
use crate::tls::Tls;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any};
use bindery_engine::{Engine, EngineStats, JournalStats};
use bindery_flow::ByteBudget;
use bindery_storage::IndexUse;
use bindery_types::LedgerId;
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpListener;

/// Bytes of a journal record besides the entry.
const RECORD_HEADER_BYTES: u64 = 12;

/// What the admin port knows of the bookie.
#[derive(Default)]
pub struct AdminState {
    /// Set once the engine is open.
    pub shared: OnceLock<Arc<Shared>>,
    /// Set once the engine is open.
    pub garbage: OnceLock<Arc<GarbageDesk>>,
    /// Set once the engine is open.
    pub disks: OnceLock<(Arc<DiskDesk>, Arc<ReadOnlyReasons>)>,
    /// Set from the start when this port speaks TLS.
    pub tls: OnceLock<Arc<Tls>>,
    /// Other parts of this process.
    pub extensions: Extensions,
    /// Of the cluster's metadata.
    pub(crate) metadata: MetadataQuestions,
    /// Serving.
    pub is_running: AtomicBool,
    /// Clients find it, as far as the metadata store has said.
    pub is_registered: AtomicBool,
    /// On its way out.
    pub is_shutting_down: AtomicBool,
    /// Requests that wait for a scrub to end.
    scrub_waits: AtomicUsize,
}

/// Answers until `stop` what `access` allows, with answers covered by `answers`, to peers that keep nobody waiting for longer than
/// `patience`.
pub async fn serve(
    listener: TcpListener,
    scope: AdminScope,
    access: Access,
    state: Arc<AdminState>,
    answers: ByteBudget,
    patience: Duration,
    stop: Arc<Latch>,
) {
    let tls = state.tls.get().cloned();
    let serving = port::Serving { router: router(scope, state), access, tls };
    port::serve(listener, serving, answers, patience, stop).await;
}

fn router(scope: AdminScope, state: Arc<AdminState>) -> Router {
    let metrics = Router::new().route("/heartbeat", any(|| async { "OK\n" })).route("/metrics", any(metrics));
    let router = match scope {
        AdminScope::Metrics => metrics,
        AdminScope::All => with_bookie(metrics),
    };
    router.with_state(state)
}

fn with_bookie(router: Router<Arc<AdminState>>) -> Router<Arc<AdminState>> {
    router
        .route("/api/v1/bookie/is_ready", any(is_ready))
        .route("/api/v1/bookie/state", any(bookie_state))
        .route("/api/v1/bookie/gc", any(gc))
        .route("/api/v1/bookie/gc_details", any(gc_details))
        .route("/api/v1/bookie/scrub", any(scrub))
        .route("/api/v1/bookie/limbo", any(limbo))
        .route("/api/v1/bookie/tier", any(trimming))
        .route("/api/v1/bookie/tier/ledger", any(tiered_ledger))
        .route("/api/v1/bookie/flow", any(flow))
        .route("/api/v1/bookie/info", any(space))
        .route("/api/v1/tier/{name}", any_of_part(Part::Tier, "No tierer runs in this process\n"))
        .route("/api/v1/autorecovery/{name}", any_of_part(Part::Repair, cluster::NO_REPAIR))
        .merge(cluster::routes())
}

/// Other methods are not found, as in Java.
fn not_found(method: &Method) -> Response {
    (StatusCode::NOT_FOUND, format!("Not found method {method}. Should be GET method\n")).into_response()
}

async fn is_ready(State(state): State<Arc<AdminState>>, method: Method) -> Response {
    if method != Method::GET {
        return not_found(&method);
    }
    match (state.is_running.load(Ordering::Acquire), state.is_registered.load(Ordering::Acquire)) {
        (true, true) => (StatusCode::OK, "OK").into_response(),
        (true, false) => (StatusCode::SERVICE_UNAVAILABLE, "Bookie is not registered in the metadata store")
            .into_response(),
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "Bookie is not fully started yet").into_response(),
    }
}

/// The keys of Java, and what an operator must know besides.
async fn bookie_state(State(state): State<Arc<AdminState>>, method: Method) -> Response {
    if method != Method::GET {
        return not_found(&method);
    }
    let status = state.shared.get().map(|shared| shared.engine.status());
    let takes_high_priority = status.as_ref().is_some_and(|status| status.takes_high_priority);
    let failed_directories: Vec<String> =
        status.iter().flat_map(|status| status.directories_failed.values().cloned()).collect();
    let is_refusing = status.as_ref().is_none_or(|status| status.is_read_only);
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
    let alarms: Vec<String> = state.shared.get().map_or_else(Vec::new, |shared| {
        let now_ms = u64::try_from(shared.clock.wall_ms()).unwrap_or(0);
        let of_tls = shared.tls.iter().chain(state.tls.get()).flat_map(|tls| tls.alarms(now_ms));
        let of_logins = shared.auth.iter().flat_map(|auth| auth.alarms());
        let of_extensions =
            state.extensions.iter().filter_map(|extension| extension.fault()).map(|fault| fault.alarm);
        of_tls.chain(of_logins).chain(alarm_of_places(shared)).chain(of_extensions).collect()
    });
    let body = serde_json::json!({
        "running": state.is_running.load(Ordering::Acquire),
        // As it is registered, which it may be while it takes adds.
        "readOnly": is_refusing || !reasons.is_empty(),
        "shuttingDown": state.is_shutting_down.load(Ordering::Acquire),
        "availableForHighPriorityWrites": takes_high_priority,
        "recoveryReserveBytes": status.as_ref().map(|status| status.recovery_reserve_bytes),
        "readOnlyBecause": reasons,
        // Faults that do not impair service yet.
        "alarms": alarms,
        "directoriesFailed": failed_directories,
        "volumes": volumes,
        "journalSync": status.as_ref().map(|status| status.journal_sync),
        "failed": status.and_then(|status| status.failed),
    });
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// Newcomers cannot connect, because clients have all places.
fn alarm_of_places(shared: &Shared) -> Option<String> {
    let since_ns = shared.connections.door().crowded_since_ns()?;
    let waits_ms = shared.clock.monotonic_ns().saturating_sub(since_ns) / 1_000_000;
    Some(format!(
        "all {} places for connections (maxConnections) are taken by clients that are in use, and a new connection has waited for {waits_ms} ms",
        shared.limits.connections_max
    ))
}

/// What `PUT /api/v1/bookie/gc` may say.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct GcOrder {
    force_major: bool,
    force_minor: bool,
    /// Ours: one round without the checks that an operator may waive. From this machine only.
    waive_checks: bool,
    /// Ours: with a round over ledgers that should not be here.
    force_surplus: bool,
}

/// GET says whether a requested round is still to be done, PUT requests one.
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
                surplus: order.force_surplus,
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
            "unprovenLedgers": garbage.unproven,
            "ledgersRemoved": desk.removed.get(),
            "surplusRounds": desk.surplus_rounds.get(),
            "surplusRemoved": desk.surplus_removed.get(),
            "surplusStoppedBecause": garbage.surplus_doubt,
            "logsDropped": space.logs_dropped,
            "logsRewritten": space.logs_rewritten,
            "merges": space.merges,
            "logsMerged": space.logs_merged,
            "bytesMerged": space.bytes_merged,
            "replacedBytes": space.replaced_bytes,
            "bytesCopied": space.bytes_copied,
            "logsSkipped": skipped,
            "errors": space.errors,
            "lastError": space.last_error,
        },
    }]))
}

/// What `PUT /api/v1/bookie/scrub` may say.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct ScrubOrder {
    /// Answer when the pass has ended, with its result.
    wait: bool,
    /// But not later than this.
    wait_seconds: u32,
}

impl Default for ScrubOrder {
    fn default() -> ScrubOrder {
        ScrubOrder { wait: false, wait_seconds: 3600 }
    }
}

/// Requests that may wait for a scrub to end: they keep places of the port for as long.
const SCRUB_WAITS_MAX: usize = 4;

/// A place among those that wait for a scrub.
struct ScrubWait<'a>(&'a AtomicUsize);

impl ScrubWait<'_> {
    fn begin(waits: &AtomicUsize) -> Option<ScrubWait<'_>> {
        let wait = (waits.fetch_add(1, Ordering::AcqRel) < SCRUB_WAITS_MAX, ScrubWait(waits));
        wait.0.then_some(wait.1)
    }
}

impl Drop for ScrubWait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How long file systems may take to say their space.
const SPACE_WAIT_MAX: Duration = Duration::from_secs(2);

/// Between two looks whether the pass has ended.
const SCRUB_LOOK: Duration = Duration::from_millis(100);

/// GET says how the scrub goes and what it found, PUT asks for a pass now. Ours: BookKeeper has none.
async fn scrub(State(state): State<Arc<AdminState>>, method: Method, body: Bytes) -> Response {
    let Some(shared) = state.shared.get() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "Bookie is not fully started yet\n").into_response();
    };
    let engine = &shared.engine;
    match method {
        Method::GET => json(&scrub_json(engine)),
        Method::PUT => {
            let order =
                if body.is_empty() { Ok(ScrubOrder::default()) } else { serde_json::from_slice(&body) };
            let order = match order {
                Ok(order) => order,
                Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
            };
            let request = engine.want_scrub();
            if !order.wait {
                return (StatusCode::OK, "Triggered a scrub of all entry logs\n").into_response();
            }
            let Some(_wait) = ScrubWait::begin(&state.scrub_waits) else {
                let why =
                    "a scrub is asked for, and as many wait for its end as may: ask for its state with GET\n";
                return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
            };
            // It begins within a flush interval.
            for _ in 0..u64::from(order.wait_seconds) * 10 {
                let status = engine.scrub_status();
                if status.answered >= request {
                    return json(&scrub_json(engine));
                }
                if state.is_shutting_down.load(Ordering::Acquire) {
                    return (StatusCode::SERVICE_UNAVAILABLE, "Bookie is shutting down\n").into_response();
                }
                tokio::time::sleep(SCRUB_LOOK).await;
            }
            let why = "the scrub goes on: ask for its state with GET\n";
            (StatusCode::GATEWAY_TIMEOUT, why).into_response()
        }
        _ => (
            StatusCode::METHOD_NOT_ALLOWED,
            "Not found method. Should be PUT to trigger a scrub, Or GET to get its state.\n",
        )
            .into_response(),
    }
}

/// Damaged ranges that are shown one by one.
const DAMAGE_SHOWN_MAX: usize = 100;

fn scrub_json(engine: &Engine) -> serde_json::Value {
    let (status, damage) = (engine.scrub_status(), engine.damage_summary());
    let waiting: Vec<_> = engine
        .damaged(None, DAMAGE_SHOWN_MAX)
        .iter()
        .take(DAMAGE_SHOWN_MAX)
        .map(|range| {
            let (ledger, first, last) = (range.ledger.get(), range.first.get(), range.last.get());
            serde_json::json!({ "ledger": ledger, "first": first, "last": last, "file": range.file })
        })
        .collect();
    let findings: Vec<_> = status
        .listed
        .iter()
        .map(|finding| {
            let affected = finding.affected.map(
                |(ledger, first, last)| serde_json::json!({ "ledger": ledger, "first": first, "last": last }),
            );
            serde_json::json!({
                "file": finding.file,
                "offset": finding.offset,
                "what": finding.what,
                "affected": affected,
                "advice": finding.advice,
            })
        })
        .collect();
    let last = status.last.as_ref().map(|pass| {
        serde_json::json!({
            "askedFor": pass.is_asked_for,
            "beginMs": pass.begin_ms,
            "endMs": pass.end_ms,
            "logs": pass.logs,
            "entries": pass.entries,
            "bytes": pass.bytes,
            "findings": pass.findings,
        })
    });
    serde_json::json!({
        "running": status.is_running,
        "bytesDone": status.progress.0,
        "bytesInPass": status.progress.1,
        "passes": status.passes,
        "findingsEver": status.findings,
        "damagedLogs": status.damaged_logs,
        "damagedLogsWithMore": damage.logs_with_more,
        "damagedLedgers": damage.ledgers,
        "damagedRanges": damage.ranges,
        "damagedRangesMadeGood": damage.made_good,
        "damagedLogsRenewed": damage.logs_renewed,
        "damaged": waiting,
        "lastPass": last,
        "findings": findings,
    })
}

/// Ledgers of which entries may be missing here, and what is known of them.
async fn limbo(State(state): State<Arc<AdminState>>, method: Method) -> Response {
    if method != Method::GET {
        return not_found(&method);
    }
    let Some(desk) = state.garbage.get() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "Bookie is not fully started yet\n").into_response();
    };
    let ledgers: Vec<_> = desk
        .limbo()
        .iter()
        .map(|limbo| {
            serde_json::json!({
                "ledgerId": limbo.ledger.get(),
                "why": limbo.why,
                "firstMissing": limbo.first.map(bindery_types::EntryId::get),
                "missing": limbo.count,
            })
        })
        .collect();
    json(&serde_json::json!({
        "count": desk.limbo_count(),
        "ledgers": ledgers,
        "stoppedBecause": desk.status().limbo_doubt,
    }))
}

/// GET says how reading from object storage and letting local copies go are; PUT asks for a round of the latter now.
async fn trimming(State(state): State<Arc<AdminState>>, method: Method) -> Response {
    let Some(shared) = state.shared.get() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "Bookie is not fully started yet\n").into_response();
    };
    let Some(tier) = &shared.tier else {
        return (StatusCode::NOT_FOUND, "this bookie has no object storage: give it one with --tier URL\n")
            .into_response();
    };
    match method {
        Method::GET => json(&crate::tier::json(tier)),
        Method::PUT => {
            tier.desk.ask();
            (StatusCode::OK, "Triggered a round of trimming\n").into_response()
        }
        _ => (
            StatusCode::METHOD_NOT_ALLOWED,
            "Not found method. Should be PUT to trigger trimming, Or GET to get its state.\n",
        )
            .into_response(),
    }
}

/// What `GET /api/v1/bookie/tier/ledger` asks for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LedgerQuery {
    id: i64,
}

/// How far one ledger is in object storage, as this bookie knows, and what it let go.
async fn tiered_ledger(State(state): State<Arc<AdminState>>, method: Method, uri: Uri) -> Response {
    if method != Method::GET {
        return not_found(&method);
    }
    let Some(shared) = state.shared.get() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "Bookie is not fully started yet\n").into_response();
    };
    let Some(tier) = &shared.tier else {
        return (StatusCode::NOT_FOUND, "this bookie has no object storage: give it one with --tier URL\n")
            .into_response();
    };
    let query = Query::<LedgerQuery>::try_from_uri(&uri).ok();
    match query.and_then(|Query(query)| LedgerId::new(query.id)) {
        Some(ledger) => json(&crate::tier::ledger_json(tier, &shared.engine, ledger)),
        None => (StatusCode::BAD_REQUEST, "name a ledger: id=N\n").into_response(),
    }
}

/// What `GET /api/v1/bookie/flow` may say. Texts, so that an error names the value.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FlowOrder {
    sort: Option<String>,
    limit: Option<String>,
}

/// Which peers hold which bytes and which wait for what. Our own endpoint: BookKeeper has none.
async fn flow(State(state): State<Arc<AdminState>>, method: Method, uri: Uri) -> Response {
    if method != Method::GET {
        return not_found(&method);
    }
    let Some(shared) = state.shared.get() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "Bookie is not fully started yet\n").into_response();
    };
    let wrong = |why: String| (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response();
    let order = match Query::<FlowOrder>::try_from_uri(&uri) {
        Ok(Query(order)) => order,
        Err(error) => return wrong(format!("{error}: give sort=held, for example, and limit=50")),
    };
    let sort = match order.sort.as_deref().map_or(Ok(Sort::default()), str::parse) {
        Ok(sort) => sort,
        Err(error) => return wrong(format!("sort: {error}")),
    };
    let limit = match order.limit.as_deref().map_or(Ok(CONNECTIONS_DEFAULT), str::parse) {
        Ok(limit) => limit,
        Err(_) => return wrong(format!("limit: give a number, at most {CONNECTIONS_MAX}")),
    };
    let view = flow_view::gather(shared, sort, limit).await;
    match serde_json::to_value(&view) {
        Ok(body) => json(&body),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Free and total bytes of the file systems that hold ledgers.
async fn space(State(state): State<Arc<AdminState>>, method: Method) -> Response {
    if method != Method::GET {
        return (StatusCode::NOT_FOUND, "Only GET is supported.").into_response();
    }
    let Some(shared) = state.shared.get() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "Bookie is not fully started yet\n").into_response();
    };
    let volumes = shared.volumes.clone();
    let measuring = tokio::task::spawn_blocking(move || volumes.space());
    match tokio::time::timeout(SPACE_WAIT_MAX, measuring).await {
        Ok(Ok(Ok(space))) => json(&serde_json::json!({ "freeSpace": space.free, "totalSpace": space.total })),
        Ok(Ok(Err(error))) => {
            let why = format!("cannot read the free disk space: {error}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, why).into_response()
        }
        Ok(Err(_)) | Err(_) => {
            let why = "the file systems do not say their space in time: try again\n";
            (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
        }
    }
}

/// All requests for a part of this process; where it has none, 404 and `absent`.
fn any_of_part(part: Part, absent: &'static str) -> MethodRouter<Arc<AdminState>> {
    let answer = async move |State(state): State<Arc<AdminState>>,
                             Path(name): Path<String>,
                             ConnectInfo(peer): ConnectInfo<SocketAddr>,
                             method: Method,
                             uri: Uri,
                             body: Bytes| {
        match state.extensions.get(part) {
            Some(extension) => extension::answer(&**extension, &name, peer, (&method, &uri, &body)).await,
            None => (StatusCode::NOT_FOUND, absent).into_response(),
        }
    };
    any(answer)
}

fn json(body: &serde_json::Value) -> Response {
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// The label of what the admin port itself measures.
const OF_ADMIN_PORT: &[(&str, &str)] = &[("port", "admin")];

async fn metrics(State(state): State<Arc<AdminState>>, method: Method) -> Response {
    if method != Method::GET {
        return (StatusCode::FORBIDDEN, format!("{method} is forbidden\n")).into_response();
    }
    let mut out = Exposition::new();
    if let Some(shared) = state.shared.get() {
        expose(shared, &mut out);
        if let Some(tier) = &shared.tier {
            let fault = state.extensions.get(Part::Tier).and_then(|extension| extension.fault());
            let is_usable = !fault.is_some_and(|fault| fault.is_of_store);
            crate::tier::expose(tier, is_usable, shared.clock.monotonic_ns(), &mut out);
        }
    }
    const CLIENTS: &[(&str, &str)] = &[];
    let of_clients = state.shared.get().and_then(|shared| shared.tls.as_deref()).map(|tls| (tls, CLIENTS));
    let of_admin = state.tls.get().map(|tls| (&**tls, OF_ADMIN_PORT));
    Tls::expose(of_clients.into_iter().chain(of_admin), &mut out);
    if let Some(auth) = state.shared.get().and_then(|shared| shared.auth.as_ref()) {
        auth.expose(&mut out);
    }
    if let Some((desk, standing)) = state.disks.get() {
        desk.expose(standing, &mut out);
    }
    if let Some(desk) = state.garbage.get() {
        expose_garbage(desk, &mut out);
    }
    for extension in state.extensions.iter() {
        extension.expose(&mut out).await;
    }
    exposed(out)
}

fn exposed(out: Exposition) -> Response {
    (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], out.into_text())
        .into_response()
}

/// Progress of garbage collection: a round that ended in doubt shows as `bindery_gc_stopped` until one goes through.
pub fn expose_garbage(desk: &GarbageDesk, out: &mut Exposition) {
    let status = desk.status();
    out.counter("bindery_gc_rounds", &[], desk.rounds.get());
    out.counter("bindery_gc_rounds_stopped", &[], desk.doubts.get());
    out.counter("bindery_gc_ledgers_removed", &[], desk.removed.get());
    out.counter("bindery_gc_surplus_rounds", &[], desk.surplus_rounds.get());
    out.counter("bindery_gc_surplus_removed", &[], desk.surplus_removed.get());
    out.gauge("bindery_gc_surplus_stopped", &[], i64::from(status.surplus_doubt.is_some()));
    out.gauge_of("bindery_limbo_ledgers", &[], desk.limbo_count());
    out.gauge("bindery_gc_stopped", &[], i64::from(status.last_doubt.is_some()));
    out.gauge("bindery_gc_last_end_ms", &[], status.last_end_ms.unwrap_or(0));
}

/// Bytes written by cause, and what they are to the bytes of the entries that came.
fn expose_written(stats: &EngineStats, out: &mut Exposition) {
    let causes = [
        ("journal", stats.journal_disk_bytes),
        ("flush", stats.flushed_bytes),
        ("compaction", stats.compacted_bytes),
        ("merge", stats.merged_bytes),
        ("ingest", stats.ingested_bytes),
    ];
    for (cause, bytes) in causes {
        out.counter("bindery_written_bytes", &[("cause", cause)], bytes);
    }
    // Records are counted with their headers, entries without.
    let added = stats.journal_bytes.saturating_sub(stats.journal_entries * RECORD_HEADER_BYTES);
    // Copies that came past the journals are written once.
    let entries = added + stats.ingested_bytes;
    let written: u64 = causes.iter().map(|(_, bytes)| bytes).sum();
    let permille = (u128::from(written) * 1000).checked_div(u128::from(entries)).unwrap_or(0);
    let permille = i64::try_from(permille).unwrap_or(i64::MAX);
    out.gauge("bindery_write_amplification_permille", &[], permille);
}

/// What is of one journal, by its number.
fn expose_journals(shared: &Shared, out: &mut Exposition) {
    let journals = shared.engine.journal_stats();
    let now_ns = shared.clock.monotonic_ns();
    shared.metrics.stages.expose_journals(journals.len(), now_ns, out);
    type Pick = fn(&JournalStats) -> u64;
    let counters: [(&str, Pick); 4] = [
        ("bookie_journal_JOURNAL_WRITE_BYTES", |journal| journal.record_bytes),
        ("bindery_journal_written_bytes", |journal| journal.written_bytes),
        ("bindery_journal_file_waits", |journal| journal.file_waits),
        ("bindery_journal_file_wait_ms", |journal| journal.file_wait_ns / 1_000_000),
    ];
    let gauges: [(&str, Pick); 5] = [
        ("bindery_journal_used_bytes", |journal| journal.used_bytes),
        ("bindery_journal_file_bytes", |journal| journal.file_bytes),
        ("bindery_journal_max_bytes", |journal| journal.bytes_max),
        ("bindery_journal_files", |journal| journal.files),
        ("bindery_journal_files_free", |journal| journal.files_free),
    ];
    for (name, pick) in counters {
        for (number, journal) in journals.iter().enumerate() {
            out.counter(name, &[("journalIndex", &number.to_string())], pick(journal));
        }
    }
    for (name, pick) in gauges {
        for (number, journal) in journals.iter().enumerate() {
            out.gauge_of(name, &[("journalIndex", &number.to_string())], pick(journal));
        }
    }
}

/// Everything there is to measure.
pub fn expose(shared: &Shared, out: &mut Exposition) {
    shared.metrics.expose(shared.clock.monotonic_ns(), out);
    let stats = shared.engine.stats();
    expose_journals(shared, out);
    let journal = [("journalIndex", "0")];
    out.gauge_of(
        "bookie_journal_JOURNAL_MEMORY_MAX",
        &journal,
        stats.write_pool_chunks * stats.write_pool_chunk_bytes,
    );
    out.gauge_of(
        "bookie_journal_JOURNAL_MEMORY_USED",
        &journal,
        stats.write_pool_chunks_in_use * stats.write_pool_chunk_bytes,
    );
    out.gauge_of("bookie_ledgers_count", &[], stats.ledgers);
    let space = shared.engine.space_status();
    out.gauge_of("bindery_ledgers_removed", &[], stats.ledgers_removed);
    out.gauge_of("bindery_entry_logs", &[], stats.entry_logs);
    out.gauge_of("bindery_entry_log_bytes", &[], stats.entry_log_bytes);
    out.counter("bindery_space_collections", &[], space.collections);
    out.counter("bindery_space_logs_dropped", &[], space.logs_dropped);
    out.counter("bindery_space_logs_rewritten", &[], space.logs_rewritten);
    out.counter("bindery_space_bytes_copied", &[], space.bytes_copied);
    out.counter("bindery_space_bytes_removed", &[], space.bytes_removed);
    out.counter("bindery_space_bytes_rewritten", &[], space.bytes_rewritten);
    out.counter("bindery_space_merges", &[], space.merges);
    out.counter("bindery_space_logs_merged", &[], space.logs_merged);
    out.gauge_of("bindery_space_replaced_bytes", &[], space.replaced_bytes);
    expose_written(&stats, out);
    let scrub = shared.engine.scrub_status();
    out.counter("bindery_scrub_passes", &[], scrub.passes);
    out.counter("bindery_scrub_bytes", &[], scrub.bytes);
    out.counter("bindery_scrub_findings", &[], scrub.findings);
    out.gauge_of("bindery_scrub_damaged_logs", &[], scrub.damaged_logs);
    let damage = shared.engine.damage_summary();
    out.gauge_of("bindery_damaged_ledgers", &[], damage.ledgers);
    out.gauge_of("bindery_damaged_ranges", &[], damage.ranges);
    out.counter("bindery_damaged_ranges_made_good", &[], damage.made_good);
    out.counter("bindery_damaged_logs_renewed", &[], damage.logs_renewed);
    out.gauge_of("bindery_space_logs_skipped", &[], space.skipped.len() as u64);
    out.counter("bindery_space_errors", &[], space.errors);
    out.counter("bindery_parked_adds", &[], shared.parked_adds.adds.get());
    out.counter("bindery_metadata_check_reads", &[], shared.parked_adds.reads.get());
    out.counter("bindery_metadata_check_failed", &[], shared.parked_adds.silent.get());
    out.gauge_of("bindery_parked_adds_waiting", &[], shared.parked_adds.parked() as u64);
    out.counter("bindery_flushes", &[], stats.flushes);
    out.counter("bindery_flushed_entries", &[], stats.flushed_entries);
    out.counter("bindery_flushed_bytes", &[], stats.flushed_bytes);
    out.counter("bindery_write_pool_full", &[], stats.no_room);
    out.counter("bindery_flush_ms", &[], stats.flush_ns / 1_000_000);
    out.counter("bindery_merge_in_flush_ms", &[], stats.merge_in_flush_ns / 1_000_000);
    let status = shared.engine.status();
    out.gauge_of("bindery_recovery_reserve_bytes", &[], status.recovery_reserve_bytes);
    out.counter("bindery_recovery_adds_refused", &[], status.recoveries_refused);
    out.counter("bindery_journal_wakes", &[], stats.journal_wakes);
    let memory = shared.engine.storage_memory();
    let (index, cache) = (&memory.index, memory.cache.stats());
    let (of_extents, of_ledgers) = (index.used(IndexUse::Extents), index.used(IndexUse::Ledgers));
    out.gauge_of("bindery_index_extent_bytes", &[], of_extents);
    out.gauge_of("bindery_index_ledger_bytes", &[], of_ledgers);
    let ledgers = shared.engine.ledger_memory();
    out.gauge_of("bindery_index_ledger_bytes_max", &[], ledgers.bytes_max);
    out.counter("bindery_ledgers_refused", &[], ledgers.refused);
    out.gauge_of("bindery_index_writing_bytes", &[], index.used(IndexUse::Writing));
    let (in_memory, on_disk) = shared.engine.index_runs();
    out.gauge_of("bindery_index_runs", &[("kind", "memory")], in_memory as u64);
    out.gauge_of("bindery_index_runs", &[("kind", "disk")], on_disk as u64);
    let reads = &shared.metrics.reads_without_wait;
    out.counter("bindery_reads_without_wait", &[], reads.get());
    out.counter("bindery_reads_together", &[], shared.metrics.reads_together.get());
    let caches =
        [("index", cache.index_hits, cache.index_misses), ("ahead", cache.ahead_hits, cache.ahead_misses)];
    for (kind, hits, _) in caches {
        out.counter("bindery_cache_hits", &[("kind", kind)], hits);
    }
    for (kind, _, misses) in caches {
        out.counter("bindery_cache_misses", &[("kind", kind)], misses);
    }
    type Pick = fn(&PoolFlow) -> u64;
    let gauges: [(&str, Pick); 3] = [
        ("bindery_pool_capacity_bytes", |pool| pool.capacity_bytes),
        ("bindery_pool_used_bytes", |pool| pool.used_bytes),
        ("bindery_pool_waiting", |pool| pool.waiting),
    ];
    let pools = flow_view::pools(shared);
    for (name, pick) in gauges {
        for pool in &pools {
            out.gauge_of(name, &[("pool", &pool.name)], pick(pool));
        }
    }
    for (name, waits) in shared.pools.waits() {
        out.counter("bindery_pool_waits", &[("pool", name)], waits.count);
    }
    for (name, waits) in shared.pools.waits() {
        out.counter("bindery_pool_waited_ms", &[("pool", name)], waits.waited_ns / 1_000_000);
    }
    out.gauge_of("bindery_connections_max", &[], shared.limits.connections_max as u64);
    let is_crowded = shared.connections.door().crowded_since_ns().is_some();
    out.gauge("bindery_connections_crowded", &[], i64::from(is_crowded));
    out.gauge_of("bindery_long_polls_max", &[], shared.limits.long_polls_max as u64);
    out.gauge_of("bindery_disk_lists", &[], shared.io.lists() as u64);
    out.gauge_of("bindery_connections_silent", &[], shared.connections.door().silent() as u64);
    out.gauge_of("bindery_disk_reads_queued", &[], shared.io.queued() as u64);
    let status = shared.engine.status();
    out.gauge("bindery_failed", &[], i64::from(status.failed.is_some()));
    out.gauge_of("bindery_directories_failed", &[], status.directories_failed.len() as u64);
    out.gauge("bindery_waits_for_space", &[], i64::from(status.waits_for_space.is_some()));
    out.gauge("bindery_waits_for_descriptor", &[], i64::from(status.waits_for_descriptor.is_some()));
}
