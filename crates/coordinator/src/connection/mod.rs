//! One client's connection: frames in, frames out. One task reads, executes and writes.
//!
//! # Data flow
//! ```text
//! socket -> frame -> Shared::act (core) -> outboxes -> socket, once durable
//! ```
//!
//! # Invariants
//! 1. A frame's length is checked before memory is set aside for it.
//! 2. No request is read while the connection is owed more than its bounds, or while more waits to become durable than
//!    `pending_bytes_max`. A client that takes nothing thus falls silent, and its session expires.
//! 3. When the task ends, the core knows: watches are gone, the session waits for another connection.

mod four_letter;

use crate::outbox::{Next, Outbox};
use crate::requests::Kind;
use crate::shared::{Progress, Registration, Shared};
use crate::watches::ConnectionId;
use crate::wire::FRAME_SIZE_BYTES_MAX;
use bytes::{Bytes, BytesMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

/// Set aside for the first bytes of a connection.
const READ_SIZE: usize = 1024;
/// Most that is set aside for a frame before its bytes arrive.
const READ_RESERVE_MAX: usize = 64 << 10;

/// Serves a connection until it ends.
pub(crate) async fn serve(shared: Arc<Shared>, socket: TcpStream, peer: SocketAddr) {
    // Small frames must not wait for an acknowledgement of the ones before.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%peer, %error, "set TCP_NODELAY");
    }
    let outbox = Arc::new(Outbox::new(peer, &shared.config, shared.owed.clone()));
    let id = shared.connect(peer, outbox.clone());
    let _registration = Registration { shared: &shared, id };
    let (reader, writer) = socket.into_split();
    let why = tokio::select! {
        why = read(&shared, &outbox, id, reader) => why,
        why = write(&shared, &outbox, writer) => why,
        () = outbox.is_dropped() => "dropped",
    };
    tracing::debug!(%peer, why, "connection closed");
}

/// Reads and executes; returns why it ended.
async fn read(shared: &Shared, outbox: &Outbox, id: ConnectionId, mut socket: OwnedReadHalf) -> &'static str {
    let mut buffer = BytesMut::with_capacity(READ_SIZE);
    let mut progress = shared.progress();
    let first = tokio::time::timeout(shared.config.handshake_timeout, async {
        while buffer.len() < 4 {
            if !read_some(&mut socket, &mut buffer).await {
                return Err("closed by the client before it said anything");
            }
        }
        match buffer.first_chunk::<4>().and_then(four_letter::Word::from_bytes) {
            Some(word) => Ok(First::Word(word)),
            None => next_frame(&mut socket, &mut buffer).await.map(First::Frame),
        }
    });
    match first.await {
        Err(_) => return "no connect request came",
        Ok(Err(why)) => return why,
        Ok(Ok(First::Word(word))) => {
            outbox.push(four_letter::answer(shared, word), 0, 0);
            outbox.close();
            // The writer ends the connection.
            return std::future::pending().await;
        }
        Ok(Ok(First::Frame(frame))) => {
            outbox.received.fetch_add(1, Ordering::Relaxed);
            shared.requests.count(Kind::ZooKeeperSession, 1);
            // Sessions are written, too.
            while shared.is_behind() {
                if progress.changed().await.is_err() {
                    return "the coordinator has stopped";
                }
            }
            shared.act(|core, now, out| core.on_connect_request(now, id, frame, out));
        }
    }
    loop {
        let frame = match next_frame(&mut socket, &mut buffer).await {
            Ok(frame) => frame,
            Err(why) => return why,
        };
        outbox.received.fetch_add(1, Ordering::Relaxed);
        shared.requests.count(Kind::of_frame(&frame), 1);
        // Connection invariant 2. While the connection may not be read, its requests must not be executed either, hence
        // the order.
        outbox.has_room().await;
        while shared.is_behind() {
            if progress.changed().await.is_err() {
                return "the coordinator has stopped";
            }
        }
        shared.act(|core, now, out| core.on_request(now, id, frame, out));
        // An idle connection keeps no large buffer.
        if buffer.is_empty() && buffer.capacity() > READ_RESERVE_MAX {
            buffer = BytesMut::with_capacity(READ_SIZE);
        }
    }
}

enum First {
    Word(four_letter::Word),
    Frame(Bytes),
}

/// False when nothing more comes.
async fn read_some(socket: &mut OwnedReadHalf, buffer: &mut BytesMut) -> bool {
    buffer.reserve(READ_SIZE);
    matches!(socket.read_buf(buffer).await, Ok(1..))
}

/// The next frame's body (connection invariant 1).
async fn next_frame(socket: &mut OwnedReadHalf, buffer: &mut BytesMut) -> Result<Bytes, &'static str> {
    loop {
        if let Some(prefix) = buffer.first_chunk::<4>() {
            let size = usize::try_from(i32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
            if size > FRAME_SIZE_BYTES_MAX {
                return Err("a frame is longer than may be");
            }
            if buffer.len() >= 4 + size {
                let mut frame = buffer.split_to(4 + size);
                let _ = frame.split_to(4);
                return Ok(frame.freeze());
            }
            buffer.reserve((4 + size - buffer.len()).min(READ_RESERVE_MAX));
        }
        if !read_some(socket, buffer).await {
            return Err("closed by the client");
        }
    }
}

/// Writes what becomes durable; returns why it ended.
async fn write(shared: &Shared, outbox: &Outbox, mut socket: OwnedWriteHalf) -> &'static str {
    let (_, timeout_max_ms) = shared.config.session_timeouts_ms();
    let stall_max = Duration::from_millis(timeout_max_ms.into()).max(shared.config.handshake_timeout);
    let mut progress: watch::Receiver<Progress> = shared.progress();
    loop {
        let (durable, has_failed) = {
            let now = progress.borrow_and_update();
            (now.durable, now.failure.is_some())
        };
        if has_failed {
            return "the store has failed";
        }
        match outbox.next(durable) {
            Next::Write(frames, queued_ms) => {
                let bytes: usize = frames.iter().map(Bytes::len).sum();
                match tokio::time::timeout(stall_max, write_all(&mut socket, &frames, bytes)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return "closed by the client",
                    Err(_) => return "the client takes nothing",
                }
                outbox.written(frames.len(), bytes);
                shared.counters.replied(&queued_ms, shared.now_ms());
            }
            Next::Close => {
                let _ = socket.shutdown().await;
                return "closed";
            }
            Next::Wait => {
                tokio::select! {
                    () = outbox.is_ready() => {}
                    changed = progress.changed() => {
                        if changed.is_err() {
                            return "the coordinator has stopped";
                        }
                    }
                }
            }
        }
    }
}

async fn write_all(socket: &mut OwnedWriteHalf, frames: &[Bytes], bytes: usize) -> std::io::Result<()> {
    match frames {
        [frame] => socket.write_all(frame).await,
        frames => {
            let mut joined = BytesMut::with_capacity(bytes);
            for frame in frames {
                joined.extend_from_slice(frame);
            }
            socket.write_all(&joined).await
        }
    }
}
