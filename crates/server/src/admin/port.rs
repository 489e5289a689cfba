//! Connections of the admin port: few, small and short, so that whoever reaches it takes nothing from the bookie's clients.
//!
//! # Invariants
//! 1. At most [`PLACES`] connections are served. A newcomer that finds none free takes that of the connection which has been
//!    here for longest without a request under way. Descriptors are taken of those kept for files
//!    ([`crate::descriptors`]): these and, for the moment until it is closed, as many that lost their place.
//! 2. A peer has the patience of the port to send a whole head, which is also how long a connection may idle, as long for the
//!    body, and as long for each piece of an answer that the socket does not take.
//! 3. A head has [`HEAD_BYTES`] at most, a body [`BODY_BYTES`]. Answers are covered by the admin pool until the kernel has
//!    them; one that finds no room there becomes a short refusal.

use crate::latch::Latch;
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{ConnectInfo, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bindery_flow::{ByteBudget, Permit};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::Sleep;
use tower_service::Service;

/// Connections served at once.
pub(crate) const PLACES: usize = 16;
/// Bytes of the head of a request: browsers and proxies send a tenth of that.
const HEAD_BYTES: usize = 16 * 1024;
/// Bytes of the body of a request: orders are a line.
const BODY_BYTES: usize = 4 * 1024;
/// Memory of a connection besides its answer: buffers for a head and a body, and its task.
const CONNECTION_BYTES: u64 = 32 * 1024;
/// Memory of all connections, a part of the admin part of the memory limit; the rest is for answers.
pub(crate) const PLACES_BYTES: u64 = PLACES as u64 * CONNECTION_BYTES;
/// Pause after accepting failed, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the connections share.
#[derive(Clone)]
struct Common {
    router: Router,
    answers: ByteBudget,
    patience: Duration,
    stop: Arc<Latch>,
}

/// A connection that is served.
struct Place {
    id: Id,
    /// Requests whose answers the kernel does not have.
    under_way: Arc<AtomicUsize>,
    abort: AbortHandle,
}

impl Place {
    fn is_idle(&self) -> bool {
        self.under_way.load(Ordering::Acquire) == 0
    }
}

/// Serves until `stop`, and then what is under way.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    answers: ByteBudget,
    patience: Duration,
    stop: Arc<Latch>,
) {
    let common = Common { router, answers, patience, stop };
    let mut tasks = JoinSet::new();
    // In the order of arrival.
    let mut places: Vec<Place> = Vec::with_capacity(PLACES);
    loop {
        let has_room =
            tasks.len() < 2 * PLACES && (places.len() < PLACES || places.iter().any(Place::is_idle));
        tokio::select! {
            biased;
            () = common.stop.wait() => break,
            Some(ended) = tasks.join_next_with_id() => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                places.retain(|place| place.id != id);
            }
            accepted = listener.accept(), if has_room => match accepted {
                Ok((socket, peer)) => {
                    if places.len() == PLACES {
                        // Otherwise all have become busy since, and the newcomer is closed.
                        let Some(oldest) = places.iter().position(Place::is_idle) else { continue };
                        tracing::debug!(%peer, "closed an idle connection of the admin port: a newcomer needs its place");
                        places.remove(oldest).abort.abort();
                    }
                    let under_way = Arc::new(AtomicUsize::new(0));
                    let abort = tasks.spawn(serve_one(common.clone(), socket, peer, under_way.clone()));
                    places.push(Place { id: abort.id(), under_way, abort });
                }
                Err(error) => {
                    tracing::warn!(%error, "accept a connection of the admin port");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            // Nobody says when a request is over whose connection stays.
            () = tokio::time::sleep(ACCEPT_PAUSE), if !has_room => {}
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

async fn serve_one(common: Common, socket: TcpStream, peer: SocketAddr, under_way: Arc<AtomicUsize>) {
    let service = service_fn(|request| answer(common.clone(), request, peer, UnderWay::new(&under_way)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(common.patience)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(PatientSocket::new(socket, common.patience)), service);
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
    peer: SocketAddr,
    under_way: UnderWay,
) -> Result<Response, Infallible> {
    let (mut parts, body) = request.into_parts();
    let body = match tokio::time::timeout(common.patience, to_bytes(Body::new(body), BODY_BYTES)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            let why = format!("give a body of {BODY_BYTES} bytes at most, and all of it\n");
            return Ok((StatusCode::PAYLOAD_TOO_LARGE, why).into_response());
        }
        Err(_) => return Ok((StatusCode::REQUEST_TIMEOUT, "the body did not come in time\n").into_response()),
    };
    parts.extensions.insert(ConnectInfo(peer));
    let Ok(response) = common.router.call(Request::from_parts(parts, Body::from(body))).await;
    let (parts, body) = response.into_parts();
    // It is in memory already: this only takes it out.
    let covered = match to_bytes(body, usize::MAX).await {
        Ok(bytes) => common.answers.try_acquire(bytes.len() as u64).map(|permit| (bytes, permit)),
        Err(_) => None,
    };
    let Some((bytes, permit)) = covered else {
        let why = "other answers of this port take its memory: try again\n";
        return Ok((StatusCode::SERVICE_UNAVAILABLE, why).into_response());
    };
    let bytes = Bytes::from_owner(Answer { bytes, _permit: permit, _under_way: under_way });
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

/// Counts a request until the kernel has its answer.
struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    fn new(count: &Arc<AtomicUsize>) -> UnderWay {
        count.fetch_add(1, Ordering::AcqRel);
        UnderWay(count.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The bytes of an answer, with what they hold until the last of them is sent.
struct Answer {
    bytes: Bytes,
    _permit: Permit,
    _under_way: UnderWay,
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A socket that fails when its peer takes nothing for too long. For requests there are hyper's deadline for heads and ours for
/// bodies.
struct PatientSocket {
    socket: TcpStream,
    patience: Duration,
    /// While the peer takes nothing.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl PatientSocket {
    fn new(socket: TcpStream, patience: Duration) -> PatientSocket {
        PatientSocket { socket, patience, deadline: None }
    }

    /// What comes of an attempt to write.
    fn within_patience<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let patience = self.patience;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for PatientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, into)
    }
}

impl AsyncWrite for PatientSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.within_patience(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.within_patience(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
