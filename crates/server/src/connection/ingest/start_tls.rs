//! From plain frames to TLS (protocol reference, section 2.5), or TLS from the first byte.
//!
//! A record of TLS is told from a frame by its first bytes: `16 03` would begin a frame of 369 MB, and frames are limited to less. With a
//! higher limit TLS begins by START_TLS only.
//!
//! # Data flow
//! ```text
//! START_TLS ─► plain answer, sent completely ─► Inlet::upgrade (a first record: at once) ─► bytes after the frame, then from the kernel
//!           ─► one step of the handshake, on the blocking pool, by turns ─► its messages to the kernel ─► … ─► frames again
//! ```
//!
//! # Invariants
//! 1. TLS begins with the first frame of a connection or not at all, so the peer is owed no answer when it begins. A
//!    peer that has to log in and has not may send other frames first ([`super::authenticate`]): each is answered
//!    before the next is handled. A later START_TLS is refused as a bad request, as is any START_TLS sent to a bookie
//!    without certificates.
//! 2. Bytes after the frame, or those of the first record, even from the same read, belong to the handshake and are never split into
//!    frames. One short frame of AUTH after START_TLS is an exception ([`super::early_auth`]): it is answered inside TLS.
//! 3. START_TLS does not count as a request: the peer stays a stranger until its first whole request over TLS. It has
//!    `first_request_max` from the first byte of START_TLS to the end of the handshake, and as long again to log in, where it has to.
//! 4. When TLS is required, no request is handled that comes without it.

use super::early_auth::{self, Look};
use super::{Active, CloseReason, failed, received, until};
use crate::connection::request::V3_ANSWER_BYTES;
use crate::tls::Tls;
use bindery_wire::frame::LENGTH_PREFIX_SIZE_BYTES;
use bindery_wire::v3::{self, Operation, response};
use bindery_wire::{ErrorCode, Protocol, v2};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The longest first frame of AUTH together with the START_TLS after it.
const EARLY_BYTES_MAX: usize = early_auth::FRAME_BYTES_MAX + 64;
/// How long a client that began with AUTH may take to send START_TLS, which it sends at the same moment.
const START_TLS_GRACE: Duration = Duration::from_secs(3);

/// What begins TLS: a first frame that asks for it, or the first record.
pub(super) struct StartTls {
    tls: Arc<Tls>,
    /// Transaction id of the frame, for its answer. `None` for a record, which has none.
    txn: Option<u64>,
    /// The length of the frame, prefix included, and that of AUTH before it.
    len: usize,
    /// The payload of AUTH that came just before it ([`super::early_auth`]).
    early: Option<Vec<u8>>,
}

/// What a connection begins with.
pub(super) enum First {
    /// START_TLS.
    Tls(StartTls),
    /// Something else.
    Other,
    /// AUTH, after which START_TLS may follow ([`Active::await_start_tls`]).
    Unknown,
}

/// How a handshake record of TLS begins, in any version: the first bytes of a client that begins with TLS.
const HANDSHAKE_RECORD: [u8; 2] = [0x16, 0x03];
/// The shortest frame that would begin so.
const FRAME_LIKE_A_RECORD: usize = 0x1603_0000;

impl Active<'_> {
    /// `Some` when the connection begins with TLS instead of a frame.
    pub(super) fn first_record(&self) -> Option<StartTls> {
        let is_record = self.buffer.bytes().starts_with(&HANDSHAKE_RECORD)
            && self.shared.limits.frame.size_bytes() < FRAME_LIKE_A_RECORD
            && !self.connection.transport.is_tls();
        let tls = self.shared.tls.as_ref().filter(|_| is_record)?;
        Some(StartTls { tls: tls.clone(), txn: None, len: 0, early: None })
    }

    /// Looks at the frame at the front of the buffer, with which TLS may begin (invariant 1).
    ///
    /// # Errors
    /// TLS is required and the frame does not ask for it (invariant 4).
    pub(super) async fn first_frame(&self) -> Result<First, CloseReason> {
        let Some(tls) = &self.shared.tls else { return Ok(First::Other) };
        let may_begin = self.is_first_frame() || self.is_unauthenticated();
        if self.connection.transport.is_tls() || !may_begin {
            return Ok(First::Other);
        }
        let Some(payload) = self.buffer.frames().next_frame()? else { return Ok(First::Other) };
        if self.is_first_frame()
            && let Some(first) = self.auth_before_tls(tls)
        {
            return Ok(first);
        }
        let len = LENGTH_PREFIX_SIZE_BYTES + payload.len();
        let request = match Protocol::of(payload) {
            Some(Protocol::V3) => v3::Request::decode(Bytes::copy_from_slice(payload)).ok(),
            Some(Protocol::V2) | None => None,
        };
        match request {
            Some(v3::Request { txn_id, operation: Operation::StartTls, .. }) => {
                Ok(First::Tls(StartTls { tls: tls.clone(), txn: Some(txn_id), len, early: None }))
            }
            request if tls.is_required() => {
                let refusal = request.map_or_else(
                    || v2_refusal(payload),
                    |request| {
                        let mut frame = BytesMut::new();
                        v3::put_frame(&request.failure(ErrorCode::Unauthorized), &mut frame);
                        frame
                    },
                );
                self.answer_plainly(&refusal).await?;
                Err(CloseReason::NotEncrypted)
            }
            _ => Ok(First::Other),
        }
    }

    /// Looks for START_TLS after a first frame of AUTH; `None` when it is not there and may not follow.
    fn auth_before_tls(&self, tls: &Arc<Tls>) -> Option<First> {
        let mut frames = self.buffer.frames();
        let Look::Auth(auth_len) = early_auth::look(frames.rest()) else { return None };
        let early = frames.next_frame().ok()??;
        frames.pass(early);
        debug_assert_eq!(frames.passed(), auth_len);
        let Some(payload) = frames.next_frame().ok()? else {
            let is_short = auth_len + frames.begun()? <= EARLY_BYTES_MAX;
            return (is_short && tls.is_required() && !self.stranger.has_had_grace).then_some(First::Unknown);
        };
        frames.pass(payload);
        let request = v3::Request::decode(Bytes::copy_from_slice(payload));
        let Ok(v3::Request { txn_id, operation: Operation::StartTls, .. }) = request else { return None };
        let (tls, early) = (tls.clone(), Some(early.to_vec()));
        Some(First::Tls(StartTls { tls, txn: Some(txn_id), len: frames.passed(), early }))
    }

    /// Waits a little for the frame after a first frame of AUTH. The connection holds what came, and [`EARLY_BYTES_MAX`] at most.
    pub(super) async fn await_start_tls(&mut self) -> Result<(), CloseReason> {
        self.stranger.has_had_grace = true;
        self.set_aside();
        let over = Instant::now() + START_TLS_GRACE;
        loop {
            let mut frames = self.buffer.frames();
            let Some(auth) = frames.next_frame()? else {
                unreachable!("the first frame is AUTH, and stays as it is")
            };
            frames.pass(auth);
            let whole = match frames.begun() {
                Some(whole) if frames.passed() + whole <= EARLY_BYTES_MAX => whole,
                // It is whole, or will be refused for what it is.
                _ => return Ok(()),
            };
            // Nothing of the handshake after it is read yet.
            let missing = whole - frames.rest().len();
            let mut piece = [0; EARLY_BYTES_MAX];
            let read = tokio::select! {
                () = self.connection.closed.wait() => return Err(CloseReason::Ours),
                // A stop has no request to wait for here.
                () = self.connection.draining.wait() => return Err(CloseReason::Ours),
                () = until(self.deadline) => return Err(CloseReason::Silent),
                () = tokio::time::sleep_until(over) => return Ok(()),
                read = self.socket.read(&mut piece[..missing]) => received(read)?,
            };
            self.buffer.extend_uncharged(&piece[..read]);
        }
    }

    /// True when a first request that is too long to be START_TLS must be refused (invariant 4).
    pub(super) fn lacks_tls(&self) -> bool {
        let is_required = self.shared.tls.as_ref().is_some_and(|tls| tls.is_required());
        is_required && !self.connection.transport.is_tls()
    }

    /// Agrees to TLS and runs the handshake. Its first bytes are those in the buffer after the frame.
    pub(super) async fn start_tls(&mut self, start: StartTls) -> Result<(), CloseReason> {
        self.buffer.skip(start.len);
        self.set_aside();
        let mut behind = self.buffer.take_bytes();
        let early = match start.txn {
            None => None,
            Some(txn) => {
                let mut answer = BytesMut::new();
                v3::put_frame(&response::start_tls(txn, ErrorCode::Ok), &mut answer);
                self.answer_plainly(&answer).await?;
                match start.early {
                    Some(early) => Some(early),
                    None => self.early_auth(&mut behind).await?,
                }
            }
        };
        let session = start.tls.begin().map_err(|error| CloseReason::Tls(error.to_string()))?;
        self.socket.upgrade(session, start.tls.records_max());
        self.shared.metrics.tls_connections.add(1);
        self.handshake(&start.tls, &behind).await?;
        self.shared.metrics.tls_handshakes.add(1);
        self.authenticate_by_certificate();
        // The login after the handshake has a deadline of its own, which runs from now on.
        self.stranger.deadline = None;
        self.deadline = Some(self.first_deadline());
        let was_begun = self.stranger.exchange.take().is_some();
        if let Some(payload) = early {
            if was_begun {
                return Err(self.refuse_split_exchange());
            }
            self.answer_early_auth(&payload).await?;
        }
        Ok(())
    }

    /// Sends a frame of a few hundred bytes to a stranger, and waits until the kernel has it.
    pub(super) async fn answer_plainly(&self, frame: &[u8]) -> Result<(), CloseReason> {
        let outbox = &self.connection.outbox;
        let room = frame.len().max(V3_ANSWER_BYTES);
        let Some(promised) = outbox.try_credit(room, room) else {
            return Err(CloseReason::Ours);
        };
        outbox.answer(promised, |out| out.extend_from_slice(frame));
        loop {
            self.connection.flush();
            if outbox.is_sent() {
                return Ok(());
            }
            self.writable().await?;
            // The sender may be writing at this moment.
            tokio::task::yield_now().await;
        }
    }

    async fn handshake(&mut self, tls: &Tls, mut behind: &[u8]) -> Result<(), CloseReason> {
        let connection = self.connection;
        loop {
            match behind.is_empty() {
                true => self.handshake_bytes().await?,
                false => self.socket.feed(&mut behind).map_err(failed)?,
            }
            if behind.is_empty() {
                self.buffer.release();
                connection.activity.holds_inbound(0);
            }
            let turn = tokio::select! {
                () = connection.closed.wait() => return Err(CloseReason::Ours),
                () = until(self.deadline) => return Err(CloseReason::HandshakeLate),
                turn = tls.turn() => turn,
            };
            let transport = connection.transport.clone();
            // Always awaited: it takes milliseconds.
            let processed = tokio::task::spawn_blocking(move || transport.process_handshake()).await;
            drop(turn);
            let processed = processed.map_err(|error| CloseReason::Tls(error.to_string()))?;
            self.socket.processed(processed.map_err(failed)?);
            while !connection.transport.push_pending().map_err(failed)? {
                self.writable().await?;
            }
            if !connection.transport.is_handshaking() && behind.is_empty() {
                self.socket.finish_handshake();
                return Ok(());
            }
        }
    }

    /// Waits for bytes of the handshake.
    async fn handshake_bytes(&mut self) -> Result<(), CloseReason> {
        loop {
            tokio::select! {
                () = self.connection.closed.wait() => return Err(CloseReason::Ours),
                // A stop has no request to wait for here.
                () = self.connection.draining.wait() => return Err(CloseReason::Ours),
                () = until(self.deadline) => return Err(CloseReason::HandshakeLate),
                ready = self.socket.readable() => ready.map_err(failed)?,
            }
            match self.socket.receive_handshake().map_err(failed)? {
                Some(0) => return Err(CloseReason::Peer),
                Some(_) => return Ok(()),
                None => {}
            }
        }
    }

    /// Why to close when a stranger's time is over.
    fn late(&self) -> CloseReason {
        match self.connection.transport.is_handshaking() {
            true => CloseReason::HandshakeLate,
            false => CloseReason::Silent,
        }
    }

    /// Waits until the kernel takes something.
    async fn writable(&self) -> Result<(), CloseReason> {
        tokio::select! {
            () = self.connection.closed.wait() => Err(CloseReason::Ours),
            () = until(self.deadline) => Err(self.late()),
            ready = self.connection.transport.writable() => ready.map_err(failed),
        }
    }
}

/// The answer "unauthorised" to an add or a read in v2. Empty for any other packet, and for one that is malformed.
fn v2_refusal(packet: &[u8]) -> BytesMut {
    let (version, ids) = match v2::Request::decode(packet) {
        Ok(v2::Request::Add(add)) => {
            (add.version, v2::Correlation::Add { ledger_id: add.ledger_id, entry_id: add.entry_id })
        }
        Ok(v2::Request::Read(read)) => {
            (read.version, v2::Correlation::Read { ledger_id: read.ledger_id, entry_id: read.entry_id })
        }
        _ => return BytesMut::new(),
    };
    let mut frame = BytesMut::new();
    v2::put_error_response(version, ids, ErrorCode::Unauthorized, &mut frame);
    frame
}
