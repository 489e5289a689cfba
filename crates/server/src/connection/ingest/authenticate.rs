//! Frames of a peer that has not said who it is, where the bookie wants to know (protocol reference, section 2.5).
//!
//! # Data flow
//! ```text
//! frame ─► judge ─► refusal, or close
//!            └────► AUTH ─► Auth::step ─► next message, or identity of the connection, or refusal and close
//! ```
//!
//! # Invariants
//! 1. Until a connection has an identity nothing of what it sends reaches the engine, the queue of reads, or a buffer of clients.
//!    Frames are handled one at a time: the next one waits until the kernel has the answer.
//! 2. Before that it may send [`FRAMES_MAX`] frames, and has `first_request_max` for all of them, from the first byte on. It stays a
//!    stranger ([`crate::connection::ConnectionLimits`]) whatever it sends.
//! 3. A frame that does not fit the buffer of a stranger is not read. It is refused, as far as its first bytes say how, and the
//!    connection ends.
//! 4. While a password is checked, which is done by turns, the connection holds memory for that message and for what came behind it only. It
//!    waits no longer than its deadline, nor beyond a stop, and where too many wait it is refused at once ([`crate::turns`]).
//! 5. Peers get the answers of a Java bookie; where that one says nothing at all, a v3 peer gets "unauthorised", and the connection ends.

use super::{Active, CloseReason};
use crate::auth::{Auth, Exchange, Failure, Plugin, Progress};
use bindery_wire::frame::LENGTH_PREFIX_SIZE_BYTES;
use bindery_wire::v3::{self, Operation, proto, response};
use bindery_wire::{ErrorCode, Protocol, v2};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use tokio::time::Instant;

/// Two would do for the exchanges that there are, and clients without a plugin send what they would send otherwise.
pub(super) const FRAMES_MAX: u32 = 32;

/// A peer before it has said who it is.
#[derive(Default)]
pub(super) struct Stranger {
    /// That were handled.
    pub(super) frames: u32,
    /// By when it must have said it; set by its first byte, and again after a handshake of TLS.
    pub(super) deadline: Option<Instant>,
    /// It had its time to send START_TLS behind a first AUTH.
    pub(super) has_had_grace: bool,
    /// Nothing of it crosses into TLS (early_auth invariant 2).
    pub(super) exchange: Option<Exchange>,
}

/// How an AUTH request wants its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AuthReply {
    V2 { version: i8 },
    V3 { txn: u64 },
}

impl AuthReply {
    /// A step that went well.
    fn frame(self, message: proto::AuthMessage) -> BytesMut {
        let mut frame = BytesMut::new();
        match self {
            AuthReply::V2 { version } => {
                v2::put_auth_response(version, &v3::encode_auth_message(&message), &mut frame);
            }
            AuthReply::V3 { txn } => v3::put_frame(&response::auth(txn, message), &mut frame),
        }
        frame
    }

    /// A failure, in the protocol that has one.
    fn refusal(self) -> Option<BytesMut> {
        match self {
            AuthReply::V2 { .. } => None,
            AuthReply::V3 { txn } => Some(unauthorized(txn, proto::OperationType::Auth)),
        }
    }
}

/// What becomes of a frame.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// It says who its peer is.
    Auth(AuthReply, proto::AuthMessage),
    /// This is the answer, and the connection goes on.
    Refuse(BytesMut),
    /// There is no answer.
    Close(&'static str),
}

/// Judges a frame's payload; has no effect.
fn judge(payload: &[u8]) -> Result<Verdict, CloseReason> {
    match Protocol::of(payload) {
        Some(Protocol::V2) => judge_v2(payload),
        Some(Protocol::V3) => judge_v3(payload),
        None => Err(CloseReason::BadFrame("empty frame".to_owned())),
    }
}

fn judge_v2(packet: &[u8]) -> Result<Verdict, CloseReason> {
    let bad = |error: &dyn std::fmt::Display| CloseReason::BadFrame(error.to_string());
    let (version, ids) = match v2::Request::decode(packet) {
        Ok(v2::Request::Auth(auth)) => {
            let message = v3::decode_auth_message(auth.message).map_err(|error| bad(&error))?;
            return Ok(Verdict::Auth(AuthReply::V2 { version: auth.version }, message));
        }
        Ok(request) => (request.version(), request.correlation()),
        Err(error) => {
            let refusal = error.refusal().ok_or_else(|| bad(&error))?;
            (refusal.version, Some(refusal.correlation))
        }
    };
    Ok(match ids {
        Some(ids @ (v2::Correlation::Add { .. } | v2::Correlation::Read { .. })) => {
            let mut frame = BytesMut::new();
            v2::put_error_response(version, ids, ErrorCode::Unauthorized, &mut frame);
            Verdict::Refuse(frame)
        }
        _ => Verdict::Close("a request in v2 that has no refusal"),
    })
}

fn judge_v3(payload: &[u8]) -> Result<Verdict, CloseReason> {
    let (txn, kind) = match v3::Request::decode(Bytes::copy_from_slice(payload)) {
        Ok(v3::Request { txn_id, operation: Operation::Auth(message), .. }) => {
            return Ok(Verdict::Auth(AuthReply::V3 { txn: txn_id }, message));
        }
        // One that may begin TLS does not come here; the others are served in no state (start_tls invariant 1).
        Ok(request) if matches!(request.operation, Operation::StartTls) => {
            let mut frame = BytesMut::new();
            v3::put_frame(&request.failure(ErrorCode::BadRequest), &mut frame);
            return Ok(Verdict::Refuse(frame));
        }
        Ok(request) => (request.txn_id, request.operation.kind()),
        Err(error) => {
            let header = error.refusal().map(|refusal| refusal.header);
            let kind =
                header.as_ref().and_then(|header| proto::OperationType::try_from(header.operation).ok());
            match (header, kind) {
                (Some(header), Some(kind)) => (header.txn_id, kind),
                _ => return Err(CloseReason::BadFrame(error.to_string())),
            }
        }
    };
    Ok(Verdict::Refuse(unauthorized(txn, kind)))
}

/// The answer without an inner message.
fn unauthorized(txn: u64, kind: proto::OperationType) -> BytesMut {
    let mut frame = BytesMut::new();
    v3::put_frame(&response::without_body(txn, kind, ErrorCode::Unauthorized), &mut frame);
    frame
}

/// The answer to a frame of which only the beginning is here.
fn refusal_of_head(head: &[u8]) -> Option<BytesMut> {
    match Protocol::of(head)? {
        Protocol::V2 => match judge_v2(head) {
            Ok(Verdict::Refuse(frame)) => Some(frame),
            _ => None,
        },
        Protocol::V3 => {
            let header = v3::decode_head(head)?;
            Some(unauthorized(header.txn_id, proto::OperationType::try_from(header.operation).ok()?))
        }
    }
}

impl Active<'_> {
    /// Somebody to convince, while the connection has no identity.
    fn gatekeeper(&self) -> Option<Arc<Auth>> {
        self.shared.auth.clone().filter(|_| self.connection.identity().is_none())
    }

    /// True while nothing of its peer may be handled (invariant 1).
    pub(super) fn is_unauthenticated(&self) -> bool {
        self.shared.auth.is_some() && self.connection.identity().is_none()
    }

    /// By when a stranger's first request must be here, or all that authenticates it.
    pub(super) fn first_deadline(&mut self) -> Instant {
        let deadline = Instant::now() + self.shared.limits.first_request_max;
        if self.is_unauthenticated() { *self.stranger.deadline.get_or_insert(deadline) } else { deadline }
    }

    /// True when nothing that came before was handled.
    pub(super) fn is_first_frame(&self) -> bool {
        self.stranger.frames == 0
    }

    /// Handles the whole frame at the front of the buffer, of a peer that has not said who it is. The bytes behind it may
    /// have moved to memory of just their length (invariant 4).
    pub(super) async fn authenticate_with_first(&mut self) -> Result<(), CloseReason> {
        let Some(payload) = self.buffer.frames().next_frame()? else { return Ok(()) };
        let (judged, len) = (judge(payload), LENGTH_PREFIX_SIZE_BYTES + payload.len());
        self.buffer.skip(len);
        let is_tls = self.connection.transport.is_tls();
        self.authenticate(judged, is_tls).await
    }

    /// Answers the frame of AUTH that came in plain text, before the handshake that is over now.
    pub(super) async fn answer_early_auth(&mut self, payload: &[u8]) -> Result<(), CloseReason> {
        let judged = judge(payload);
        if self.is_unauthenticated() {
            return self.authenticate(judged, false).await;
        }
        match judged? {
            // As any AUTH where no login is needed any more.
            Verdict::Auth(reply, _) => self.answer_plainly(&reply.frame(v3::auth_disabled_message())).await,
            Verdict::Refuse(_) | Verdict::Close(_) => Err(CloseReason::BadFrame("not AUTH".to_owned())),
        }
    }

    /// Refuses AUTH in plain text that would go on with an exchange from before START_TLS (early_auth invariant 2).
    pub(super) fn refuse_split_exchange(&self) -> CloseReason {
        let why = "AUTH in plain text beside START_TLS that is not the first of an exchange";
        match &self.shared.auth {
            Some(auth) => self.not_let_in(auth, None, why),
            None => CloseReason::NotAuthenticated,
        }
    }

    /// Handles a frame, which came inside TLS or not, and is not in the buffer any more.
    ///
    /// # Errors
    /// The connection ends.
    async fn authenticate(
        &mut self,
        judged: Result<Verdict, CloseReason>,
        is_tls: bool,
    ) -> Result<(), CloseReason> {
        let Some(auth) = self.gatekeeper() else { return Ok(()) };
        self.stranger.frames += 1;
        if self.stranger.frames > FRAMES_MAX {
            return Err(self.not_let_in(&auth, None, "too many requests before authentication"));
        }
        match judged? {
            Verdict::Refuse(frame) => {
                self.log_refusal(&auth, None, "a request before authentication");
                self.answer_plainly(&frame).await
            }
            Verdict::Close(why) => Err(self.not_let_in(&auth, None, why)),
            Verdict::Auth(reply, message) => {
                let proto::AuthMessage { auth_plugin_name: name, payload } = message;
                let Some(plugin) = auth.plugin(&name, is_tls) else {
                    let why = "a plugin for authentication that is not taken here";
                    let Some(refusal) = reply.refusal() else {
                        return Err(self.not_let_in(&auth, None, why));
                    };
                    self.log_refusal(&auth, None, why);
                    return self.answer_plainly(&refusal).await;
                };
                // Without the frame that it is a part of, which may be longer.
                let token = payload.to_vec();
                drop(payload);
                if plugin.is_slow() {
                    // All memory but for this message and for what came behind it (invariant 4).
                    self.keep_only(token.len());
                }
                self.on_auth(&auth, reply, (name, plugin), &token).await
            }
        }
    }

    async fn on_auth(
        &mut self,
        auth: &Auth,
        reply: AuthReply,
        (name, plugin): (String, Plugin),
        token: &[u8],
    ) -> Result<(), CloseReason> {
        let answer = |payload: Vec<u8>| {
            let payload = Bytes::from(payload);
            reply.frame(proto::AuthMessage { auth_plugin_name: name, payload })
        };
        match self.step(auth, plugin, token).await? {
            Progress::Continue(token) => self.answer_plainly(&answer(token)).await,
            Progress::Done(token, identity) => {
                tracing::debug!(peer = %self.connection.peer, user = identity.name(), "authenticated");
                self.connection.identify(identity);
                // Its user may have been changed or removed in between, when nobody saw this connection (auth invariant 4).
                if !self.connection.identity().is_some_and(|identity| auth.holds(identity)) {
                    return Err(CloseReason::Ours);
                }
                self.shared.metrics.auth_succeeded.add(1);
                // Before the answer can be seen: a peer that has it is a client.
                self.connection.speak(self.shared);
                self.answer_plainly(&answer(token)).await
            }
            Progress::Failed(Failure { why, user }) => {
                let reason = self.not_let_in(auth, user.as_deref(), &why);
                if let Some(refusal) = reply.refusal() {
                    self.answer_plainly(&refusal).await?;
                }
                Err(reason)
            }
        }
    }

    async fn step(&mut self, auth: &Auth, plugin: Plugin, token: &[u8]) -> Result<Progress, CloseReason> {
        let address = self.connection.peer.ip();
        tokio::select! {
            biased;
            progress = auth.step(&mut self.stranger.exchange, plugin, token, address) => Ok(progress),
            () = self.connection.closed.wait() => Err(CloseReason::Ours),
            // A stop has no request to wait for here.
            () = self.connection.draining.wait() => Err(CloseReason::Ours),
            () = super::until(self.deadline) => Err(CloseReason::Silent),
        }
    }

    /// Refuses the frame in the buffer, which is longer than that of a stranger, by its beginning (invariant 3).
    pub(super) async fn refuse_long(&mut self) -> CloseReason {
        let Some(auth) = self.gatekeeper() else { return CloseReason::Ours };
        let reason = self.not_let_in(&auth, None, "a long request before authentication");
        let head = self.buffer.bytes().get(LENGTH_PREFIX_SIZE_BYTES..);
        match head.and_then(refusal_of_head) {
            Some(refusal) => self.answer_plainly(&refusal).await.err().unwrap_or(reason),
            None => reason,
        }
    }

    /// Believes the certificate of a handshake that is over, where certificates say who somebody is.
    pub(super) fn authenticate_by_certificate(&self) {
        let Some(auth) = &self.shared.auth else { return };
        let certificate = self.connection.transport.peer_certificate();
        match auth.of_certificate(certificate.as_deref()) {
            None => {}
            Some(Ok(identity)) => {
                tracing::debug!(peer = %self.connection.peer, role = identity.name(), "authenticated");
                self.connection.identify(identity);
                self.shared.metrics.auth_succeeded.add(1);
            }
            Some(Err(Failure { why, .. })) => {
                self.shared.metrics.auth_failed.add(1);
                self.log_refusal(auth, None, &why);
            }
        }
    }

    /// Notes why a connection ends.
    fn not_let_in(&self, auth: &Auth, user: Option<&str>, why: &str) -> CloseReason {
        self.shared.metrics.auth_failed.add(1);
        self.log_refusal(auth, user, why);
        CloseReason::NotAuthenticated
    }

    fn log_refusal(&self, auth: &Auth, user: Option<&str>, why: &str) {
        let now_ns = self.shared.clock.monotonic_ns();
        auth.log_refusal(now_ns, self.connection.peer, user, false, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::MasterKey;

    fn payload(frame: &[u8]) -> &[u8] {
        &frame[4..]
    }

    fn v2_payload(request: v2::Request<'_>) -> Vec<u8> {
        let mut frame = BytesMut::new();
        request.encode(&mut frame);
        payload(&frame).to_vec()
    }

    fn v3_payload(operation: Operation) -> Vec<u8> {
        message_payload(&v3::Request { txn_id: 7, priority: 0, operation }.into_message())
    }

    fn message_payload(message: &proto::Request) -> Vec<u8> {
        let mut frame = BytesMut::new();
        v3::put_frame(message, &mut frame);
        payload(&frame).to_vec()
    }

    fn message() -> proto::AuthMessage {
        proto::AuthMessage { auth_plugin_name: "sasl".to_owned(), payload: Bytes::from_static(b"token") }
    }

    /// Protocol reference, section 2.5.
    #[test]
    fn of_v2_adds_and_reads_are_refused_and_others_have_no_answer() {
        let key = MasterKey::new([1; 20]);
        let body = [0, 0, 0, 0, 0, 0, 0, 1].repeat(4);
        let add = v2_payload(v2::Request::Add(v2::Add::new(v2::Flags::RECOVERY_ADD, key, &body).unwrap()));
        let read = |version, flags| {
            let master_key = Some(key);
            v2_payload(v2::Request::Read(v2::Read { version, flags, ledger_id: 1, entry_id: -1, master_key }))
        };
        let mut too_new = read(2, v2::Flags::NONE);
        too_new[0] = 3;
        for (packet, id) in [
            (add.clone(), 1),
            // Too short to be an entry: its ids are still here.
            (add[..24 + 16].to_vec(), 1),
            (read(2, v2::Flags::NONE), -1),
            (read(2, v2::Flags::DO_FENCING), -1),
            (read(0, v2::Flags::NONE), -1),
            (too_new, -1),
        ] {
            let Ok(Verdict::Refuse(answer)) = judge(&packet) else { panic!("{packet:?}") };
            assert_eq!(answer[4], packet[0], "version");
            assert_eq!(answer[8..12], ErrorCode::Unauthorized.v2().to_be_bytes());
            assert_eq!(answer[12..20], 1_i64.to_be_bytes());
            assert_eq!(answer[20..28], i64::to_be_bytes(id));
        }
        let batch = v2_payload(v2::Request::BatchRead(v2::BatchRead {
            version: 2,
            flags: v2::Flags::NONE,
            ledger_id: 1,
            start_entry_id: 0,
            request_id: 1,
            max_count: 1,
            max_size_bytes: 1,
            master_key: None,
            stride: 1,
        }));
        assert!(matches!(judge(&batch), Ok(Verdict::Close(_))));
        for junk in [&[2, 9, 0, 0][..], &[2, 1, 0, 0], &[2], &[]] {
            assert!(matches!(judge(junk), Err(CloseReason::BadFrame(_))), "{junk:?}");
        }
        let auth = v3::encode_auth_message(&message());
        let auth =
            v2_payload(v2::Request::Auth(v2::Auth { version: 1, flags: v2::Flags::NONE, message: &auth }));
        assert_eq!(judge(&auth), Ok(Verdict::Auth(AuthReply::V2 { version: 1 }, message())));
        assert!(matches!(judge(&auth[..6]), Err(CloseReason::BadFrame(_))));
    }

    #[test]
    fn of_v3_everything_but_auth_gets_a_status_without_a_body() {
        let operations = [
            Operation::Add(proto::AddRequest::default()),
            Operation::Read(proto::ReadRequest::default()),
            Operation::WriteLac(proto::WriteLacRequest::default()),
            Operation::ReadLac(proto::ReadLacRequest::default()),
            Operation::ForceLedger(proto::ForceLedgerRequest::default()),
            Operation::GetBookieInfo(proto::GetBookieInfoRequest::default()),
            Operation::GetListOfEntries(proto::GetListOfEntriesOfLedgerRequest::default()),
            Operation::ReconcileLedgers(proto::ReconcileLedgersRequest::default()),
        ];
        for operation in operations {
            let kind = operation.kind();
            let Ok(Verdict::Refuse(answer)) = judge(&v3_payload(operation)) else { panic!("{kind:?}") };
            let answer = v3::decode_response(answer.freeze().slice(4..)).unwrap();
            assert_eq!(answer, response::without_body(7, kind, ErrorCode::Unauthorized));
        }
        assert_eq!(
            judge(&v3_payload(Operation::Auth(message()))),
            Ok(Verdict::Auth(AuthReply::V3 { txn: 7 }, message()))
        );
        let Ok(Verdict::Refuse(answer)) = judge(&v3_payload(Operation::StartTls)) else {
            panic!("START_TLS")
        };
        assert_eq!(
            v3::decode_response(answer.freeze().slice(4..)).unwrap().status,
            ErrorCode::BadRequest.v3()
        );

        // Of another version, or without a body.
        let header = |version: proto::ProtocolVersion, operation: proto::OperationType| proto::Request {
            header: proto::BkPacketHeader {
                version: version as i32,
                operation: operation as i32,
                txn_id: 7,
                priority: None,
            },
            ..proto::Request::default()
        };
        for message in [
            header(proto::ProtocolVersion::VersionThree, proto::OperationType::Auth),
            header(proto::ProtocolVersion::VersionTwo, proto::OperationType::AddEntry),
            header(proto::ProtocolVersion::VersionThree, proto::OperationType::RangeReadEntry),
        ] {
            let kind = message.header.operation;
            let Ok(Verdict::Refuse(answer)) = judge(&message_payload(&message)) else { panic!("{kind}") };
            let answer = v3::decode_response(answer.freeze().slice(4..)).unwrap();
            assert_eq!((answer.status, answer.header.operation), (ErrorCode::Unauthorized.v3(), kind));
        }
        assert!(matches!(judge(&[0xff, 0xff]), Err(CloseReason::BadFrame(_))));
    }

    /// Invariant 3.
    #[test]
    fn a_long_frame_is_refused_by_its_beginning() {
        let body = Bytes::from([0, 0, 0, 0, 0, 0, 0, 1].repeat(4000));
        let add = v3_payload(Operation::Add(proto::AddRequest { body: body.clone(), ..Default::default() }));
        let answer = refusal_of_head(&add[..1000]).unwrap().freeze();
        let answer = v3::decode_response(answer.slice(4..)).unwrap();
        assert_eq!(
            answer,
            response::without_body(7, proto::OperationType::AddEntry, ErrorCode::Unauthorized)
        );
        let key = MasterKey::new([1; 20]);
        let add = v2_payload(v2::Request::Add(v2::Add::new(v2::Flags::NONE, key, &body).unwrap()));
        let answer = refusal_of_head(&add[..1000]).unwrap();
        assert_eq!(answer[8..12], ErrorCode::Unauthorized.v2().to_be_bytes());
        for head in [&[][..], &[2], &[2, 1, 0, 0, 1], &[0x0a, 2], &[0x12, 0]] {
            assert_eq!(refusal_of_head(head), None, "{head:?}");
        }
    }
}
