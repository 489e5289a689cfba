//! Oxia's protocol over gRPC: connections, and the calls on them.
//!
//! # Data flow
//! ```text
//! socket -> HTTP/2 -> Metered (request bytes) -> Calls -> Shared::perform (core) -> answer, once durable -> HTTP/2 -> socket
//! ```
//!
//! # Invariants
//! 1. An answer leaves only when everything that it shows is durable, as on ZooKeeper's side.
//! 2. What a connection holds is counted: bytes of requests until they were executed, bytes of the message that each call last gave until the
//!    next one is asked for. Beyond `outbox_bytes_max` the connection goes, beyond `outboxes_bytes_max` the one that holds most.
//! 3. A call makes its next message only when the peer takes the one before: one that does not read stops its own calls only.
//! 4. No write is executed while more waits to become durable than `pending_bytes_max`.
//! 5. Tasks of a connection end with it.
//!
//! # Limits
//! [`STREAMS_MAX`] calls of a connection, [`MESSAGE_BYTES_MAX`] of a request; HTTP/2 buffers [`CONNECTION_WINDOW_BYTES`] that come and
//! [`SEND_BYTES_MAX`] of each call that go, which are not counted.

mod calls;
mod metered;

use crate::outbox::Outbox;
use crate::shared::Shared;
use crate::tree::acl::Identity;
use crate::watches::ConnectionId;
use bindery_oxia::proto::oxia_client_server::OxiaClientServer;
use calls::Calls;
use http::uri::PathAndQuery;
use http::{Request, Uri};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use metered::{Account, Metered};
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
/// Bytes of requests that a connection may send before they are taken, and a call.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Bytes of each call that wait for the socket.
const SEND_BYTES_MAX: usize = 64 << 10;
const HEADERS_BYTES_MAX: u32 = 16 << 10;
/// A peer that is asked for a sign of life this often and gives none for so long is gone.
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

/// Deregisters a connection when its task ends, however it does.
struct Registration<'a> {
    shared: &'a Shared,
    id: ConnectionId,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.shared.disconnect(self.id);
    }
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
    match tokio::time::timeout(shared.config.handshake_timeout, socket.peek(&mut [0])).await {
        Ok(Ok(1..)) => {}
        Ok(_) => return tracing::debug!(%peer, "closed by the client before it said anything"),
        Err(_) => return tracing::debug!(%peer, "nothing came"),
    }
    let identities: Arc<[Identity]> = [Identity { scheme: "ip", id: peer.ip().to_string() }].into();
    let calls = OxiaClientServer::new(Calls::new(shared.clone(), identities))
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let service = service_fn(|request: Request<Incoming>| {
        let account = Arc::new(Account::new(shared.clone(), outbox.clone()));
        let request = enter(request, account, &here);
        calls.clone().call(request)
    });
    let tasks = Tasks::default();
    let connection = http2::Builder::new(tasks.clone())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .max_send_buf_size(SEND_BYTES_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .serve_connection(TokioIo::new(socket), service);
    let _ending = Ending(&tasks);
    tokio::select! {
        ended = connection => tracing::debug!(%peer, ?ended, "connection closed"),
        () = outbox.is_dropped() => tracing::debug!(%peer, "connection dropped"),
    }
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
