//! Oxia's protocol over gRPC: connections, and the calls on them.
//!
//! # Data flow
//! ```text
//! socket -> HTTP/2 -> Metered (request bytes) -> Calls -> Shared::perform (core) -> answer, once durable -> HTTP/2 -> socket
//! ```
//!
//! # Invariants
//! 1. An answer leaves only when everything that it shows is durable, as on ZooKeeper's side.
//! 2. The bytes that a connection holds are counted: each call with its headers, requests until they were executed, encoded and decoded,
//!    and answers until the socket has them, also in HTTP/2's buffers. Beyond `outbox_bytes_max` the connection goes, beyond
//!    `outboxes_bytes_max` the one that holds most.
//! 3. A call makes its next message only when fewer than two of its messages wait: a peer that does not read stops its own calls only.
//! 4. No write is executed while more waits to become durable than `pending_bytes_max`.
//! 5. Tasks of a connection end with it.
//! 6. A peer has a connection only as long as it gives signs of life: preface and settings of HTTP/2 in `handshake_timeout`, an answer to a ping
//!    in [`PING_TIMEOUT`] from then on.
//!
//! # Limits
//! [`STREAMS_MAX`] calls of a connection, each with [`CALL_BYTES`] and [`HEADERS_BYTES_MAX`] at most, which is less than `outbox_bytes_max`
//! (64 MiB); [`MESSAGE_BYTES_MAX`] and [`ELEMENTS_MAX`](bindery_oxia::codec::ELEMENTS_MAX) of a request. Two things of a connection are not
//! counted: HTTP/2's window, which is what came and no call has taken; and a frame each way with headers, which are about 64 KiB. The window is
//! the connection's share of `outboxes_bytes_max`, so that the windows of `connections_max` connections are no more than that, unless the share
//! is below the 64 KiB that HTTP/2 prescribes. With the defaults that is 256 MiB counted, 256 MiB in windows, and 64 MiB in frames.

mod calls;
mod metered;
mod opening;

use crate::config::CoordinatorConfig;
use crate::outbox::Outbox;
use crate::shared::{Registration, Shared};
use crate::tree::acl::Identity;
use bindery_oxia::proto::oxia_client_server::OxiaClientServer;
use calls::Calls;
use http::uri::PathAndQuery;
use http::{Request, Uri};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use metered::{Account, Answer, Metered};
use opening::Opening;
use parking_lot::Mutex;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tower_service::Service;

/// Calls of a connection at a time; the client keeps further ones back.
const STREAMS_MAX: u32 = 1000;
/// Largest request.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// A connection's window (what it may send before it is taken) is never smaller in HTTP/2, and need not be larger.
const WINDOW_BYTES_MIN: u32 = (1 << 16) - 1;
const WINDOW_BYTES_MAX: u32 = 1 << 20;
/// A call's window is a part of it: one call that is not taken leaves the others theirs.
const CALLS_PER_WINDOW: u32 = 4;
/// A call takes its next part of an answer when fewer bytes wait for the socket.
const SEND_BYTES_MAX: usize = 16 << 10;
/// An estimate of the memory of a call besides headers, requests and answers.
const CALL_BYTES: usize = 8 << 10;
const HEADERS_BYTES_MAX: u32 = 16 << 10;
/// The server pings a silent peer this often, and closes the connection when no answer comes within the timeout.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(40);

/// The service's names: clients before 1.0 use the second one.
const SERVICE: &str = "/io.oxia.proto.v1.OxiaClient/";
const SERVICE_BEFORE: &str = "/io.streamnative.oxia.proto.OxiaClient/";

/// What a call knows of its connection.
#[derive(Clone)]
struct Caller {
    account: Arc<Account>,
    /// How the client names this server.
    authority: Arc<str>,
}

/// Serves a connection until it ends.
pub(crate) async fn serve(shared: Arc<Shared>, socket: TcpStream, peer: SocketAddr) {
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%peer, %error, "set TCP_NODELAY");
    }
    let outbox = Arc::new(Outbox::new(peer, &shared.config, shared.owed.clone()));
    let id = shared.connect_oxia(outbox.clone());
    let _registration = Registration { shared: &shared, id };
    let here = socket.local_addr().map(|address| address.to_string()).unwrap_or_default();
    let identities: Arc<[Identity]> = [Identity { scheme: "ip", id: peer.ip().to_string() }].into();
    let calls = OxiaClientServer::new(Calls::new(shared.clone(), identities))
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let service = service_fn(|request: Request<Incoming>| {
        let headers: usize =
            request.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        let account = Arc::new(Account::new(shared.clone(), outbox.clone(), CALL_BYTES + headers));
        let call = calls.clone().call(enter(request, account.clone(), &here));
        async move { call.await.map(|answer| answer.map(|body| Answer::new(body, account))) }
    });
    let window = window_bytes(&shared.config);
    let tasks = Tasks::default();
    let connection = http2::Builder::new(tasks.clone())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_connection_window_size(window)
        .initial_stream_window_size(window / CALLS_PER_WINDOW)
        .max_send_buf_size(SEND_BYTES_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .serve_connection(TokioIo::new(Opening::new(socket, shared.config.handshake_timeout)), service);
    let _ending = Ending(&tasks);
    tokio::select! {
        ended = connection => tracing::debug!(%peer, ?ended, "connection closed"),
        () = outbox.is_dropped() => tracing::debug!(%peer, "connection dropped"),
    }
}

/// A connection's share of what all connections may hold.
fn window_bytes(config: &CoordinatorConfig) -> u32 {
    let share = config.outboxes_bytes_max / config.connections_max.max(1);
    u32::try_from(share).unwrap_or(u32::MAX).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX)
}

/// Says to a call whose it is, and under which name of the service it came.
fn enter(request: Request<Incoming>, account: Arc<Account>, here: &str) -> Request<Metered> {
    let (mut parts, body) = request.into_parts();
    let authority = parts.uri.authority().map_or(here, |authority| authority.as_str()).into();
    if let Some(method) = parts.uri.path().strip_prefix(SERVICE_BEFORE)
        && let Ok(path) = format!("{SERVICE}{method}").parse::<PathAndQuery>()
    {
        parts.uri = Uri::from(path);
    }
    parts.extensions.insert(Caller { account: account.clone(), authority });
    Request::from_parts(parts, Metered::new(body, account))
}

/// The tasks of a connection: one for each call.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, future: F) {
        let mut tasks = self.0.lock();
        // Those that have ended are taken out.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(future);
    }
}

/// Aborts the tasks of a connection. They hold each other: to drop one of them is not enough.
struct Ending<'a>(&'a Tasks);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let tasks = std::mem::take(&mut *self.0.0.lock());
        drop(tasks);
    }
}
