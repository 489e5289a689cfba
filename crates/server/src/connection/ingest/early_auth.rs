//! AUTH in plain text beside START_TLS. BookKeeper's client sends the first message of its plugin as soon as it is connected, and START_TLS at
//! the same moment: behind it with epoll, before it with NIO (`AuthHandler.ClientSideHandler.channelActive`). It takes the answer inside TLS.
//!
//! # Invariants
//! 1. One frame is taken, of at most [`FRAME_BYTES_MAX`], and only if it is AUTH. Everything else behind START_TLS is the handshake's, which
//!    refuses what is no record of TLS (start_tls invariant 2).
//! 2. Such a message counts as sent without TLS. It may begin an exchange and never completes one: START_TLS discards an exchange that was
//!    begun before it, the answer and everything after it are inside TLS, and a plugin that sends passwords is refused without TLS (auth
//!    invariant 3). A message that continues an earlier exchange is refused. Where TLS is optional, a client whose first AUTH was answered in plain
//!    text therefore has to begin again inside TLS.

use super::{Active, CloseReason, received, until};
use bindery_wire::frame::{self, LENGTH_PREFIX_SIZE_BYTES, Split};
use bindery_wire::v3::{self, Operation};
use bindery_wire::{FrameLimit, Protocol, v2};
use bytes::Bytes;

/// The first message of BookKeeper's SASL client is empty, the second has some 300 bytes.
pub(super) const FRAME_BYTES_MAX: usize = 1024;

/// What bytes behind START_TLS are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Too few to say.
    Unknown,
    /// The handshake's.
    Handshake,
    /// A frame of AUTH of this length.
    Auth(usize),
}

pub(super) fn look(bytes: &[u8]) -> Look {
    match bytes.first() {
        None => return Look::Unknown,
        // The length of a short frame begins with zero, a record of TLS with its type, which is not zero.
        Some(0) => {}
        Some(_) => return Look::Handshake,
    }
    match frame::split(bytes, FrameLimit::DEFAULT) {
        Ok(Split::Frame(payload)) if payload.end <= FRAME_BYTES_MAX && is_auth(&bytes[payload.clone()]) => {
            Look::Auth(payload.end)
        }
        Ok(Split::Incomplete { missing }) if bytes.len() + missing <= FRAME_BYTES_MAX => Look::Unknown,
        _ => Look::Handshake,
    }
}

fn is_auth(payload: &[u8]) -> bool {
    match Protocol::of(payload) {
        Some(Protocol::V2) => matches!(v2::Request::decode(payload), Ok(v2::Request::Auth(_))),
        Some(Protocol::V3) => {
            let request = v3::Request::decode(Bytes::copy_from_slice(payload));
            matches!(request, Ok(v3::Request { operation: Operation::Auth(_), .. }))
        }
        None => false,
    }
}

impl Active<'_> {
    /// Takes the payload of such a frame, if there is one, from the front of `behind`, to which it adds what comes until that is clear.
    pub(super) async fn early_auth(&mut self, behind: &mut Vec<u8>) -> Result<Option<Vec<u8>>, CloseReason> {
        loop {
            match look(behind) {
                Look::Handshake => return Ok(None),
                Look::Auth(len) => {
                    let frame: Vec<u8> = behind.drain(..len).collect();
                    return Ok(Some(frame[LENGTH_PREFIX_SIZE_BYTES..].to_vec()));
                }
                Look::Unknown => {}
            }
            let mut piece = [0; FRAME_BYTES_MAX];
            let room = FRAME_BYTES_MAX - behind.len();
            let read = tokio::select! {
                () = self.connection.closed.wait() => return Err(CloseReason::Ours),
                // A stop has no request to wait for here.
                () = self.connection.draining.wait() => return Err(CloseReason::Ours),
                () = until(self.deadline) => return Err(CloseReason::HandshakeLate),
                read = self.socket.read(&mut piece[..room]) => received(read)?,
            };
            behind.extend_from_slice(&piece[..read]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_wire::v3::proto;
    use bytes::BytesMut;

    fn auth(payload: usize) -> proto::AuthMessage {
        proto::AuthMessage { auth_plugin_name: "sasl".to_owned(), payload: vec![7; payload].into() }
    }

    /// Invariant 1.
    #[test]
    fn only_a_short_frame_of_auth_is_taken() {
        let of_v3 = |operation| {
            let mut frame = BytesMut::new();
            v3::put_frame(&v3::Request { txn_id: 1, priority: 0, operation }.into_message(), &mut frame);
            frame
        };
        let of_v2 = |request: v2::Request<'_>| {
            let mut frame = BytesMut::new();
            request.encode(&mut frame);
            frame
        };
        let message = v3::encode_auth_message(&auth(0));
        let in_v2 =
            of_v2(v2::Request::Auth(v2::Auth { version: 2, flags: v2::Flags::NONE, message: &message }));
        for frame in [in_v2, of_v3(Operation::Auth(auth(0))), of_v3(Operation::Auth(auth(400)))] {
            for cut in 0..frame.len() {
                assert_eq!(look(&frame[..cut]), Look::Unknown, "cut at {cut}");
            }
            let len = frame.len();
            assert_eq!(look(&frame), Look::Auth(len));
            assert_eq!(look(&[&frame[..], &[22, 3, 1]].concat()), Look::Auth(len));
        }
        let read =
            v2::Read { version: 2, flags: v2::Flags::NONE, ledger_id: 1, entry_id: 0, master_key: None };
        for other in [
            of_v3(Operation::StartTls),
            of_v2(v2::Request::Read(read)),
            of_v3(Operation::Auth(auth(1100))),
            BytesMut::from(&[0, 0, 4, 0][..]),
            BytesMut::from(&[22, 3, 1, 0, 0][..]),
            BytesMut::from(&[0, 0, 0, 0][..]),
        ] {
            assert_eq!(look(&other), Look::Handshake, "{other:?}");
        }
    }
}
