//! What other parts of the process add to an admin port: paths below `/api/v1/tier/` and `/api/v1/autorecovery/`, and metrics. And a
//! port of its own for a process that has no bookie.

use super::access::Access;
use super::console::{self, Remembering};
use super::endpoints::Call;
use super::{cluster, port};
use crate::latch::Latch;
use crate::tls::{Tls, TlsConfig, TlsError};
use crate::turns::Turns;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bindery_flow::ByteBudget;
use bindery_io::{Clock, SystemClock};
use bindery_metrics::Exposition;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpListener;

/// A part of the process that may extend an admin port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The tierer, below `/api/v1/tier/`.
    Tier,
    /// Auditor and replication worker, below `/api/v1/autorecovery/`.
    Repair,
}

/// The parts of this process that extend its admin port, each once.
#[derive(Default)]
pub struct Extensions {
    tier: OnceLock<Arc<dyn AdminExtension>>,
    repair: OnceLock<Arc<dyn AdminExtension>>,
}

impl Extensions {
    fn slot(&self, part: Part) -> &OnceLock<Arc<dyn AdminExtension>> {
        match part {
            Part::Tier => &self.tier,
            Part::Repair => &self.repair,
        }
    }

    /// Adds a part; one that is there stays.
    pub fn add(&self, part: Part, extension: Arc<dyn AdminExtension>) {
        let _ = self.slot(part).set(extension);
    }

    /// The part, if this process has it.
    pub fn get(&self, part: Part) -> Option<&Arc<dyn AdminExtension>> {
        self.slot(part).get()
    }

    /// All that this process has.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn AdminExtension>> {
        [Part::Tier, Part::Repair].into_iter().filter_map(|part| self.get(part))
    }
}

/// A request for a path of an extension.
#[derive(Debug)]
pub struct ExtensionRequest<'a> {
    /// GET, PUT and so on.
    pub method: &'a str,
    /// Behind the path of the [`Part`].
    pub name: &'a str,
    /// Behind the question mark; empty without one.
    pub query: &'a str,
    /// What came with it; empty without a body.
    pub body: &'a [u8],
    /// Who asks.
    pub peer: SocketAddr,
}

/// An answer: its status, and text or JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtensionAnswer {
    /// 200 with JSON.
    Json(String),
    /// 200 with text.
    Text(String),
    /// Another status, with a line that says why.
    Refused(u16, String),
}

/// Work that an extension does for a request.
pub type Extending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why a part of the process does not do its work at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtensionFault {
    /// An alarm, in one line.
    pub alarm: String,
    /// The object store, or the settings for it, are the cause.
    pub is_of_store: bool,
}

/// A part of the process that answers on an admin port.
pub trait AdminExtension: Send + Sync + 'static {
    /// What keeps it from its work, from the first attempt that failed until one succeeds.
    fn fault(&self) -> Option<ExtensionFault>;
    /// Answers a request.
    fn answer<'a>(&'a self, request: ExtensionRequest<'a>) -> Extending<'a, ExtensionAnswer>;
    /// Adds metrics.
    fn expose<'a>(&'a self, out: &'a mut Exposition) -> Extending<'a, ()>;
}

/// Bytes of answers on their way, of a process that has no bookie's memory plan.
const ANSWERS_BYTES: u64 = 4 << 20;
/// Time that peers have for a request and its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Loads what the port of an extension speaks TLS with.
///
/// # Errors
/// The files cannot be used as they are configured.
pub async fn open_tls(config: TlsConfig) -> Result<Arc<Tls>, TlsError> {
    // Its handshakes have a turn of their own.
    let opening = tokio::task::spawn_blocking(move || Tls::open(config, Turns::new(1)));
    match opening.await {
        Ok(opened) => opened.map(Arc::new),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Cancelled: the runtime is going away, and with it whoever waits here.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Answers a request for a path of a part of this process; where it has none, 404 says so.
pub(super) async fn of_part(part: Part, call: Call) -> Response {
    let Call { state, method, uri, body, peer } = call;
    let absent = match part {
        Part::Tier => "No tierer runs in this process\n",
        Part::Repair => cluster::NO_REPAIR,
    };
    let name = uri.path().rsplit('/').next().unwrap_or("");
    match state.extensions.get(part) {
        Some(extension) => answer(&**extension, name, peer, (&method, &uri, &body)).await,
        None => (StatusCode::NOT_FOUND, absent).into_response(),
    }
}

/// What a port of an extension shows.
#[derive(Clone)]
struct Alone {
    part: Part,
    extension: Arc<dyn AdminExtension>,
    tls: Option<Arc<Tls>>,
    clock: Arc<dyn Clock>,
}

/// Serves the only part of a process on a port of its own what `access` allows, with `/heartbeat`, `/metrics` and `state` below the path of
/// the part, until `stop`. With `tls` nothing is served over plain HTTP.
pub async fn serve_extension(
    listener: TcpListener,
    access: Access,
    tls: Option<Arc<Tls>>,
    (part, extension): (Part, Arc<dyn AdminExtension>),
    stop: Arc<Latch>,
) {
    let (of_state, of_others) = match part {
        Part::Tier => ("/api/v1/tier/state", "/api/v1/tier/{name}"),
        Part::Repair => ("/api/v1/autorecovery/state", "/api/v1/autorecovery/{name}"),
    };
    let alone_here = Alone { part, extension, tls: tls.clone(), clock: Arc::new(SystemClock::new()) };
    // Its task ends with this port.
    let remembering = Remembering::of_part(part, {
        let alone = alone_here.clone();
        move || metrics(State(alone.clone()), Method::GET)
    });
    let router = Router::new()
        .route("/heartbeat", any(|| async { "OK\n" }))
        .route("/metrics", any(metrics))
        .route(of_state, any(state))
        .route(of_others, any(alone))
        .with_state(alone_here)
        .merge(console::routes(&remembering.history));
    let serving = port::Serving { router, access, tls };
    port::serve(listener, serving, ByteBudget::new("admin", ANSWERS_BYTES), PATIENCE, stop).await;
}

async fn metrics(State(alone): State<Alone>, method: Method) -> Response {
    if method != Method::GET && method != Method::HEAD {
        return (StatusCode::FORBIDDEN, format!("{method} is forbidden\n")).into_response();
    }
    let mut out = Exposition::new();
    if alone.part == Part::Tier {
        let is_reachable = !alone.extension.fault().is_some_and(|fault| fault.is_of_store);
        crate::tier::REACHABLE.expose(&is_reachable, &mut out);
    }
    Tls::expose(alone.tls.iter().map(|tls| (super::OF_ADMIN_PORT, &**tls)), &mut out);
    alone.extension.expose(&mut out).await;
    super::expose_process(&mut out).await;
    super::exposed(out)
}

/// Whether the extension does its work, and what an operator must know, as `/api/v1/bookie/state` says it of a bookie.
async fn state(State(alone): State<Alone>, method: Method) -> Response {
    if method != Method::GET && method != Method::HEAD {
        return (StatusCode::NOT_FOUND, "Not found method. Should be GET method").into_response();
    }
    let now_ms = u64::try_from(alone.clock.wall_ms()).unwrap_or(0);
    let fault = alone.extension.fault();
    let of_tls = alone.tls.iter().flat_map(|tls| tls.alarms(now_ms));
    let alarms: Vec<String> = fault.iter().map(|fault| fault.alarm.clone()).chain(of_tls).collect();
    super::json(&serde_json::json!({ "running": fault.is_none(), "alarms": alarms }))
}

async fn alone(
    State(alone): State<Alone>,
    Path(name): Path<String>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> Response {
    answer(&*alone.extension, &name, peer, (&method, &uri, &body)).await
}

/// An extension's answer as a response.
pub(super) async fn answer(
    extension: &dyn AdminExtension,
    name: &str,
    peer: SocketAddr,
    (method, uri, body): (&Method, &Uri, &[u8]),
) -> Response {
    let query = uri.query().unwrap_or("");
    let request = ExtensionRequest { method: method.as_str(), name, query, body, peer };
    match extension.answer(request).await {
        ExtensionAnswer::Json(text) => {
            (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], text).into_response()
        }
        ExtensionAnswer::Text(text) => (StatusCode::OK, text).into_response(),
        ExtensionAnswer::Refused(status, why) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            (status, format!("{why}\n")).into_response()
        }
    }
}
