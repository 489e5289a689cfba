//! The admin port: health, state and metrics over HTTP (protocol reference, section 8.1). It asks for garbage collection or a scrub
//! when told to ([`bookie`]), changes the cluster's settings of repair ([`cluster`]), and shows ledgers ([`ledgers`]). [`endpoints`] has the
//! table of all of it, and [`access`] says which peers may.
//!
//! # Limits     connections, bytes and waits: [`port`]

pub mod access;
mod as_java;
mod bookie;
mod cluster;
mod console;
pub(crate) mod endpoints;
pub mod extension;
pub mod ledgers;
mod numbers;
pub mod openapi;
pub(crate) mod port;
mod process;
pub mod shown;
mod socket;
mod table;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "what an operator puts there")]
mod tls_tests;

use self::access::Access;
use self::cluster::MetadataQuestions;
use self::console::Remembering;
use self::endpoints::{Call, Endpoint};
use self::extension::{Extensions, Part};
use self::ledgers::EntryReads;
use crate::config::AdminScope;
use crate::data_dirs::DataDirs;
use crate::disks::{DiskDesk, ReadOnlyReasons};
use crate::health::Health;
use crate::latch::Latch;
use crate::maintenance::garbage::GarbageDesk;
use crate::shared::Shared;
use crate::tls::Tls;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bindery_flow::ByteBudget;
use bindery_io::Disk;
use bindery_metrics::Exposition;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpListener;

pub use numbers::about as about_numbers;

/// What the admin port knows of the bookie.
#[derive(Default)]
pub struct AdminState {
    /// Set once the engine is open.
    pub shared: OnceLock<Arc<Shared>>,
    /// Set once the engine is open.
    pub garbage: OnceLock<Arc<GarbageDesk>>,
    /// Set once the engine is open.
    pub disks: OnceLock<(Arc<DiskDesk>, Arc<ReadOnlyReasons>)>,
    /// Whether data passes.
    pub health: Arc<Health>,
    /// Set once the engine is open.
    pub(crate) standing: OnceLock<Standing>,
    /// Settings in force, as a JSON object; set by the process.
    pub(crate) settings: OnceLock<String>,
    /// Set from the start when this port speaks TLS.
    pub tls: OnceLock<Arc<Tls>>,
    /// Other parts of this process.
    pub extensions: Extensions,
    /// Of the cluster's metadata.
    pub(crate) metadata: MetadataQuestions,
    /// Entries of ledgers of the cluster.
    pub(crate) entry_reads: EntryReads,
    /// The id of the bookie, set once it is known.
    pub(crate) bookie_id: OnceLock<String>,
    /// Serving.
    pub is_running: AtomicBool,
    /// Clients find it, as far as the metadata store has said.
    pub is_registered: AtomicBool,
    /// On its way out.
    pub is_shutting_down: AtomicBool,
    /// Requests that wait for a scrub to end.
    scrub_waits: AtomicUsize,
}

/// The other parts of the bookie that handlers need.
pub(crate) struct Standing {
    /// False: it stops where it would be read-only.
    pub(crate) may_be_read_only: bool,
    /// For looks at its directories.
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dirs: Arc<DataDirs>,
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
    // Its task ends with this port.
    let remembering = matches!(scope, AdminScope::All).then(|| Remembering::of_bookie(&state));
    let router = router(scope, state);
    let router = match &remembering {
        Some(remembering) => router.merge(console::routes(&remembering.history)),
        None => router,
    };
    let serving = port::Serving { router, access, tls };
    port::serve(listener, serving, answers, patience, stop).await;
}

fn router(scope: AdminScope, state: Arc<AdminState>) -> Router {
    let is_served: fn(&Endpoint) -> bool = match scope {
        AdminScope::All => |_| true,
        AdminScope::Metrics => |endpoint| ["/heartbeat", "/metrics"].contains(&endpoint.path),
    };
    let dispatch = async move |State(state): State<Arc<AdminState>>,
                               ConnectInfo(peer): ConnectInfo<SocketAddr>,
                               method: Method,
                               uri: Uri,
                               body: Bytes| {
        endpoints::dispatch(Call { state, method, uri, body, peer }, is_served).await
    };
    Router::new().fallback(dispatch).with_state(state)
}

/// Other methods are not found, as in Java.
fn not_found(method: &Method) -> Response {
    (StatusCode::NOT_FOUND, format!("Not found method {method}. Should be GET method\n")).into_response()
}

fn json(body: &serde_json::Value) -> Response {
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// The port whose files these are, as metrics name it: none is that of the port for clients.
const OF_ADMIN_PORT: &str = "admin";

async fn metrics(state: Arc<AdminState>) -> Response {
    let shared = state.shared.get();
    let mut out = Exposition::at(shared.map_or(0, |shared| shared.clock.monotonic_ns()));
    if let Some(shared) = shared {
        numbers::expose(shared, &mut out).await;
        if let Some(tier) = &shared.tier {
            let fault = state.extensions.get(Part::Tier).and_then(|extension| extension.fault());
            let is_usable = !fault.is_some_and(|fault| fault.is_of_store);
            crate::tier::expose(tier, is_usable, &mut out);
        }
        if let Some(auth) = &shared.auth {
            auth.expose(&mut out);
        }
    }
    let of_clients = shared.and_then(|shared| shared.tls.as_deref()).map(|tls| ("", tls));
    let of_admin = state.tls.get().map(|tls| (OF_ADMIN_PORT, &**tls));
    Tls::expose(of_clients.into_iter().chain(of_admin), &mut out);
    if let Some((desk, standing)) = state.disks.get() {
        desk.expose(standing, &mut out);
        if let Some(shared) = shared {
            as_java::expose_directories(shared, desk, &mut out);
        }
    }
    if let Some(desk) = state.garbage.get() {
        GarbageDesk::TABLE.expose(desk, &mut out);
        as_java::GARBAGE.expose(desk, &mut out);
    }
    for extension in state.extensions.iter() {
        extension.expose(&mut out).await;
    }
    expose_process(&mut out).await;
    exposed(out)
}

/// How long the kernel may take to say how the process stands.
const PROCESS_WAIT_MAX: Duration = Duration::from_secs(2);

/// The process, as far as the kernel tells in time.
async fn expose_process(out: &mut Exposition) {
    let reading = tokio::task::spawn_blocking(process::Process::read);
    if let Ok(Ok(process)) = tokio::time::timeout(PROCESS_WAIT_MAX, reading).await {
        process::PROCESS.expose(&process, out);
    }
}

fn exposed(out: Exposition) -> Response {
    (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], out.into_text())
        .into_response()
}
