//! Connections of the admin port: few, small and short, so that whoever reaches it takes nothing from the bookie's clients.
//!
//! # Invariants
//! 1. At most [`PLACES`] connections are served. A newcomer that finds none free takes that of the connection which has been
//!    here for longest of those that owe this port something: a whole request, or else the reading of an answer. So peers
//!    that send or read slowly keep nobody out; only requests that are being handled keep their places. Descriptors are taken
//!    of those kept for files ([`crate::descriptors`]): these and, for the moment until it is closed, as many that lost their
//!    place.
//! 2. A peer has the patience of the port to send a whole head, which is also how long a connection may idle, as long for the
//!    body, and as long to take all of an answer that the socket did not take at once.
//! 3. Over TLS the handshake is a part of what a peer owes, within the same patience and [`HANDSHAKE_BYTES_MAX`](crate::tls::limits::HANDSHAKE_BYTES_MAX). At most one thread
//!    of the runtime computes handshakes at a time, so that peers who begin them again and again leave the others to the bookie's
//!    clients. Behind the handshake, ciphertext must bring requests ([`TlsSocket`]).
//! 4. A head has [`HEAD_BYTES`] at most, a body [`BODY_BYTES`]. Answers are covered by the admin pool until the kernel has
//!    them; one that finds no room there becomes a short refusal. Those of [`SMALL_ANSWER_BYTES`], health among them, are
//!    covered by the memory of their connection, so slow readers of others do not make a bookie look dead.
//! 5. A request that looks takes its place before its handler runs: [`ANSWERED_AT_ONCE`] are computed at a time, in the order of arrival, and
//!    an address has at most half of the places that are free among those that wait ([`Shares`]). So what many ask for takes neither
//!    the threads nor the memory of clients. Health checks, which cost nothing, take no place. What asks the metadata store waits for others
//!    that do, one at a time, and not among the rest: a store that is slow keeps metrics and state from nobody.
//! 6. HEAD is answered as GET is, without the body.
//! 7. A request has one length, in `Content-Length`. One with `Transfer-Encoding` is refused and ends its connection: a proxy in front
//!    that believes another length than this port would pass a request on as a part of a body, unexamined.

use super::access::{Access, Asking};
use super::endpoints;
use super::socket::{PatientSocket, TlsSocket};
use crate::auth::certificate_roles;
use crate::latch::Latch;
use crate::log_limit::LogLimit;
use crate::memory::ADMIN_PLACES as PLACES;
use crate::reload::Watch;
use crate::shares::Shares;
use crate::sockets::peer_of;
use crate::tls::Tls;
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bindery_flow::{ByteBudget, Permit};
use bindery_io::has_no_descriptor;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

/// Bytes of the head of a request: browsers and proxies send a tenth of that.
const HEAD_BYTES: usize = 16 * 1024;
/// Bytes of the body of a request: orders are a line.
const BODY_BYTES: usize = 4 * 1024;
/// Answers up to this length need no memory of the pool. hyper holds a few of them at most.
const SMALL_ANSWER_BYTES: usize = 512;
/// Answers that are computed at a time.
const ANSWERED_AT_ONCE: usize = 2;
/// How long an answer may take to compute: two that hang would keep metrics and state from everybody.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);
/// Pause after accepting failed, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// One log line in this time about missing descriptors.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// What the connections share.
#[derive(Clone)]
struct Common {
    router: Router,
    access: Arc<Access>,
    tls: Option<Arc<Tls>>,
    /// Held by who computes a step of a handshake.
    handshaking: Arc<Mutex<()>>,
    answers: ByteBudget,
    /// Turns to compute an answer, and who waits for one.
    turns: Arc<Semaphore>,
    lookers: Arc<parking_lot::Mutex<Shares<IpAddr>>>,
    patience: Duration,
    stop: Arc<Latch>,
}

/// The place of a request among those that look.
struct Looker {
    lookers: Arc<parking_lot::Mutex<Shares<IpAddr>>>,
    address: IpAddr,
}

impl Looker {
    fn new(common: &Common, address: IpAddr) -> Option<Looker> {
        let is_in = common.lookers.lock().take(address, 1, PLACES as u64);
        is_in.then(|| Looker { lookers: common.lookers.clone(), address })
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        self.lookers.lock().give_back(self.address, 1);
    }
}

/// A connection that is served.
struct Place {
    id: Id,
    load: Arc<Load>,
    abort: AbortHandle,
}

/// Requests of a connection.
#[derive(Default)]
struct Load {
    /// Whole ones without an answer.
    handled: AtomicUsize,
    /// Those whose answers the kernel does not have.
    answered: AtomicUsize,
}

impl Load {
    fn is_handled(&self) -> bool {
        self.handled.load(Ordering::Acquire) > 0
    }

    fn is_idle(&self) -> bool {
        !self.is_handled() && self.answered.load(Ordering::Acquire) == 0
    }
}

/// Where the connection is that a newcomer may replace (invariant 1).
fn replaceable(places: &[Place]) -> Option<usize> {
    let idle = places.iter().position(|place| place.load.is_idle());
    idle.or_else(|| places.iter().position(|place| !place.load.is_handled()))
}

/// What a port serves, and to whom.
pub(super) struct Serving {
    pub(super) router: Router,
    pub(super) access: Access,
    /// With it, nothing is served over plain HTTP.
    pub(super) tls: Option<Arc<Tls>>,
}

/// Serves until `stop`, and then what is under way.
pub(super) async fn serve(
    listener: TcpListener,
    serving: Serving,
    answers: ByteBudget,
    patience: Duration,
    stop: Arc<Latch>,
) {
    let Serving { router, access, tls } = serving;
    // They end with this one.
    let mut watches = JoinSet::new();
    if let Some(tls) = &tls
        && let Some(interval) = tls.refresh()
    {
        watches.spawn(Watch { files: tls.clone(), interval }.run(stop.clone()));
    }
    let handshaking = Arc::default();
    let (turns, lookers) = (Arc::new(Semaphore::new(ANSWERED_AT_ONCE)), Arc::default());
    let access = Arc::new(access);
    let common = Common { router, access, tls, handshaking, answers, turns, lookers, patience, stop };
    let mut tasks = JoinSet::new();
    // In the order of arrival.
    let mut places: Vec<Place> = Vec::with_capacity(PLACES);
    let (begun, mut shortages) = (Instant::now(), LogLimit::new(LOG_INTERVAL));
    loop {
        let has_room = tasks.len() < 2 * PLACES && (places.len() < PLACES || replaceable(&places).is_some());
        tokio::select! {
            biased;
            () = common.stop.wait() => break,
            Some(ended) = tasks.join_next_with_id() => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                places.retain(|place| place.id != id);
            }
            accepted = listener.accept(), if has_room => match accepted {
                Ok((socket, peer)) => {
                    let peer = peer_of(peer);
                    if places.len() == PLACES {
                        // Otherwise all have become busy since, and the newcomer is closed.
                        let Some(oldest) = replaceable(&places) else { continue };
                        tracing::debug!(%peer, "closed a connection of the admin port: a newcomer needs its place");
                        places.remove(oldest).abort.abort();
                    }
                    let load = Arc::<Load>::default();
                    let abort = tasks.spawn(serve_one(common.clone(), socket, peer, load.clone()));
                    places.push(Place { id: abort.id(), load, abort });
                }
                Err(error) => {
                    let log = if has_no_descriptor(&error) { shortages.admit(begun.elapsed().as_nanos() as u64) } else { Some(0) };
                    if let Some(others) = log {
                        tracing::warn!(%error, others, "cannot accept a connection on the admin port");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            // Nobody says when a request was handled whose connection stays.
            () = tokio::time::sleep(ACCEPT_PAUSE), if !has_room => {}
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

async fn serve_one(common: Common, socket: TcpStream, peer: SocketAddr, load: Arc<Load>) {
    let here = socket.local_addr().ok().map(|address| address.ip());
    let asking = Asking { peer, here, is_encrypted: common.tls.is_some(), certificate_roles: Vec::new() };
    let socket = PatientSocket::new(socket, common.patience);
    let Some(tls) = common.tls.clone() else { return serve_http(common, socket, asking, load).await };
    let stop = common.stop.clone();
    let handshake = tokio::time::timeout(common.patience, handshake(&common, &tls, socket));
    let finished = tokio::select! {
        finished = handshake => finished.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        () = stop.wait() => return,
    };
    match finished {
        Ok(stream) => {
            let certificate_roles = stream.peer_certificate().map(certificate_roles).unwrap_or_default();
            serve_http(common, stream, Asking { certificate_roles, ..asking }, load).await;
        }
        Err(error) => tracing::debug!(%peer, %error, "a handshake of the admin port failed"),
    }
}

/// The handshake of a connection; its steps are computed by turns (invariant 3).
async fn handshake(common: &Common, tls: &Tls, socket: PatientSocket) -> io::Result<TlsSocket> {
    let mut handshake = TlsAcceptor::from(tls.current()).accept(socket.of_handshake());
    loop {
        let step = {
            let _turn = common.handshaking.lock().await;
            poll_fn(|context| Poll::Ready(Pin::new(&mut handshake).poll(context))).await
        };
        match step {
            Poll::Ready(finished) => return finished.map(TlsSocket::new),
            Poll::Pending => woken().await,
        }
    }
}

/// Waits until this task is woken, by whatever its last step waits for.
async fn woken() {
    let mut is_woken = false;
    poll_fn(|_| match std::mem::replace(&mut is_woken, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

async fn serve_http(
    common: Common,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    asking: Asking,
    load: Arc<Load>,
) {
    let (peer, asking) = (asking.peer, Arc::new(asking));
    let service = service_fn(|request| answer(common.clone(), request, asking.clone(), load.clone()));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(common.patience)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = common.stop.wait() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "a connection of the admin port ended");
    }
}

async fn answer(
    mut common: Common,
    request: Request<Incoming>,
    asking: Arc<Asking>,
    load: Arc<Load>,
) -> Result<Response, Infallible> {
    let (mut parts, body) = request.into_parts();
    // Invariant 7.
    if parts.headers.contains_key(header::TRANSFER_ENCODING) {
        let why = "give the body with a Content-Length, and without Transfer-Encoding\n";
        return Ok((StatusCode::LENGTH_REQUIRED, [(header::CONNECTION, "close")], why).into_response());
    }
    let body = match tokio::time::timeout(common.patience, to_bytes(Body::new(body), BODY_BYTES)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            let why = format!("give a body of {BODY_BYTES} bytes at most, and all of it\n");
            return Ok((StatusCode::PAYLOAD_TOO_LARGE, why).into_response());
        }
        Err(_) => return Ok((StatusCode::REQUEST_TIMEOUT, "the body did not come in time\n").into_response()),
    };
    parts.extensions.insert(ConnectInfo(asking.peer));
    let handled = Counted::new(&load, |load| &load.handled);
    let (method, path) = (parts.method.clone(), parts.uri.path().to_owned());
    // With the query, which says what was changed: credentials are in headers alone.
    let asked = parts.uri.path_and_query().map_or_else(|| path.clone(), ToString::to_string);
    // Invariant 6.
    if method == Method::HEAD {
        parts.method = Method::GET;
    }
    let request = Request::from_parts(parts, Body::from(body));
    let admitted = common.access.admit(&asking, &method, &path, request.headers()).await;
    let response = match admitted {
        Err(refusal) => refusal,
        Ok(Some(admitted)) => {
            let Ok(response) = common.router.call(request).await;
            common.access.log_change(&asking, &admitted, (&method, &asked), response.status());
            response
        }
        Ok(None) if endpoints::is_health(&path) => {
            let Ok(response) = common.router.call(request).await;
            response
        }
        Ok(None) => match Looker::new(&common, asking.peer.ip().to_canonical()) {
            None => {
                let why = "other requests of this address are being answered: try again\n";
                (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
            }
            Some(_looker) => {
                let turn = match endpoints::waits_elsewhere(&path) {
                    true => None,
                    false => Some(common.turns.clone().acquire_owned().await),
                };
                let called = tokio::time::timeout(ANSWER_TIME_MAX, common.router.call(request)).await;
                drop(turn);
                match called {
                    Ok(Ok(response)) => response,
                    Err(_) => {
                        (StatusCode::SERVICE_UNAVAILABLE, "no answer in time: try again\n").into_response()
                    }
                }
            }
        },
    };
    let (mut parts, body) = response.into_parts();
    // It is in memory already: this only takes it out.
    let body = to_bytes(body, usize::MAX).await;
    let answered = Counted::new(&load, |load| &load.answered);
    drop(handled);
    let covered = body.ok().and_then(|bytes| {
        let covered = if bytes.len() <= SMALL_ANSWER_BYTES { 0 } else { bytes.len() as u64 };
        common.answers.try_acquire(covered).map(|permit| (bytes, permit))
    });
    let Some((bytes, permit)) = covered else {
        let why = "other answers of this port take its memory: try again\n";
        return Ok((StatusCode::SERVICE_UNAVAILABLE, why).into_response());
    };
    if method == Method::HEAD {
        parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        return Ok(Response::from_parts(parts, Body::empty()));
    }
    let bytes = Bytes::from_owner(Answer { bytes, _permit: permit, _answered: answered });
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

/// Counts a request in a part of the load until it is dropped.
struct Counted {
    load: Arc<Load>,
    part: fn(&Load) -> &AtomicUsize,
}

impl Counted {
    fn new(load: &Arc<Load>, part: fn(&Load) -> &AtomicUsize) -> Counted {
        part(load).fetch_add(1, Ordering::AcqRel);
        Counted { load: load.clone(), part }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.part)(&self.load).fetch_sub(1, Ordering::AcqRel);
    }
}

/// The bytes of an answer, with what they hold until the last of them is sent.
struct Answer {
    bytes: Bytes,
    _permit: Permit,
    _answered: Counted,
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "what an operator puts there")]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Access is asked before a request reaches its handler, and again for each request of a connection.
    #[tokio::test]
    async fn changes_of_strangers_reach_no_handler() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens");
        std::fs::write(&file, "secret\n").unwrap();
        let (listener, stop) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Arc::new(Latch::default()));
        let address = listener.local_addr().unwrap();
        let changed = Arc::new(AtomicUsize::new(0));
        let counts = changed.clone();
        let change = move || {
            let counts = counts.clone();
            async move { counts.fetch_add(1, Ordering::SeqCst).to_string() }
        };
        let router = Router::new().route("/thing", axum::routing::get(|| async { "seen" }).put(change));
        let access = Access::for_strangers(Some(file));
        let answers = ByteBudget::new("admin", 1 << 20);
        let serving = tokio::spawn(serve(
            listener,
            Serving { router, access, tls: None },
            answers,
            Duration::from_secs(30),
            stop.clone(),
        ));
        let mut peer = TcpStream::connect(address).await.unwrap();
        for (method, header, status) in [
            ("GET", "", "200"),
            ("HEAD", "", "200"),
            ("PUT", "", "401"),
            ("PUT", "Authorization: Bearer guess\r\n", "401"),
            ("DELETE", "", "401"),
            ("GET", "", "200"),
            ("PUT", "Authorization: Bearer secret\r\n", "200"),
            ("PUT", "", "401"),
        ] {
            let request =
                format!("{method} /thing HTTP/1.1\r\nHost: localhost\r\n{header}Content-Length: 0\r\n\r\n");
            peer.write_all(request.as_bytes()).await.unwrap();
            let mut said = vec![0; 2000];
            let length = peer.read(&mut said).await.unwrap();
            let said = String::from_utf8_lossy(&said[..length]);
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {header}: {said}");
            assert!(!said.contains("secret"), "{said}");
            if method != "PUT" && method != "DELETE" {
                assert!(said.contains("content-length: 4"), "{said}");
                assert_eq!(said.ends_with("seen"), method == "GET", "{said}");
            }
        }
        assert_eq!(changed.load(Ordering::SeqCst), 1);
        drop(peer);
        stop.set();
        serving.await.unwrap();
    }

    /// Invariant 5: however many requests come at once, few answers are computed at a time, an address is refused more than its share of
    /// the places, and health checks are answered meanwhile.
    #[tokio::test]
    async fn few_answers_are_computed_at_a_time_and_health_waits_for_none() {
        let (listener, stop) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Arc::new(Latch::default()));
        let address = listener.local_addr().unwrap();
        let (computing, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let gate = Arc::new(Semaphore::new(0));
        let (counts, sees, waits) = (computing.clone(), most.clone(), gate.clone());
        let slow = move || {
            let (counts, sees, waits) = (counts.clone(), sees.clone(), waits.clone());
            async move {
                sees.fetch_max(counts.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                waits.acquire().await.unwrap().forget();
                counts.fetch_sub(1, Ordering::SeqCst);
                "seen"
            }
        };
        let router = Router::new()
            .route("/metrics", axum::routing::get(slow))
            .route("/heartbeat", axum::routing::get(|| async { "OK" }));
        let serving = Serving { router, access: Access::for_strangers(None), tls: None };
        let answers = ByteBudget::new("admin", 1 << 20);
        let serving = tokio::spawn(serve(listener, serving, answers, Duration::from_secs(60), stop.clone()));
        let ask = |path: &'static str| {
            tokio::spawn(async move {
                let mut peer = TcpStream::connect(address).await.unwrap();
                let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
                peer.write_all(request.as_bytes()).await.unwrap();
                let mut said = String::new();
                peer.read_to_string(&mut said).await.unwrap();
                said.split(' ').nth(1).unwrap().to_owned()
            })
        };
        // One after the other, so that nobody is there whom a newcomer may replace: each is refused, or being handled.
        const ASKED: usize = PLACES - 2;
        let mut asked: Vec<_> = (0..ASKED).map(|_| ask("/metrics")).collect();
        // As many as wait are not answered before the gate is open.
        let mut refused = Vec::new();
        while refused.len() < ASKED - PLACES / 2 {
            let ended = asked.iter().position(|asked| asked.is_finished());
            match ended {
                Some(ended) => refused.push(asked.swap_remove(ended).await.unwrap()),
                None => tokio::task::yield_now().await,
            }
        }
        while computing.load(Ordering::SeqCst) < ANSWERED_AT_ONCE {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask("/heartbeat").await.unwrap(), "200");
        assert!(refused.iter().all(|status| status == "503"), "{refused:?}");
        gate.add_permits(ASKED);
        for answered in asked {
            assert_eq!(answered.await.unwrap(), "200");
        }
        assert_eq!(most.load(Ordering::SeqCst), ANSWERED_AT_ONCE);
        stop.set();
        serving.await.unwrap();
    }

    /// Invariant 2.
    #[tokio::test]
    async fn a_peer_that_takes_a_little_now_and_then_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, 4096).unwrap();
        let mut socket = PatientSocket::new(socket, Duration::from_millis(300));
        let writes = async {
            loop {
                if let Err(error) = socket.write(&[0; 1024]).await {
                    return error.kind();
                }
            }
        };
        let takes = async {
            let mut some = [0; 4096];
            while peer.read(&mut some).await.is_ok_and(|read| read > 0) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let failed = tokio::select! {
            failed = writes => failed,
            () = takes => panic!("it always takes some"),
            () = tokio::time::sleep(Duration::from_secs(30)) => panic!("it is given up"),
        };
        assert_eq!(failed, io::ErrorKind::TimedOut);
    }
}
