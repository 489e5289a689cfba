//! The v3 protobuf protocol (protocol reference, section 2).
//!
//! The messages of [`proto`] are generated, and adds and plain reads are also read by hand ([`HotRequest`]); around them
//! stand [`Request`], which pairs an operation with its body, the
//! constructors of [`response`], and the checks that make a decoded message safe to use.
//!
//! # Invariants
//! 1. A decoded message has every required field of the protocol.
//! 2. A request that parses is either a [`Request`] we serve, or refused with an answer ([`DecodeError::refusal`]).
//! 3. A response has the same status outside and inside, and the ids of its request also when it failed.
//! 4. Decoding from a `Bytes` shares entry bodies with it.
//! 5. Nothing prints a master key or an authentication payload.
//!
//! Beware of the generated getters of optional enums, such as `AddRequest::flag()`: unset, they give the first value of
//! the enum, not nothing. Use [`proto::AddRequest::is_recovery_add`] and its neighbours.

mod hot;
pub mod reconcile;
mod request;
mod required;
pub mod response;

use std::fmt;

use bindery_types::MasterKey;
use bytes::{Bytes, BytesMut};
use prost::Message;

pub use hot::{
    ADD_HEAD_SIZE_BYTES_MAX, HotAdd, HotRead, HotRequest, put_add_head, put_add_response, put_read_response,
};
pub use request::{Operation, Request};

use crate::{ErrorCode, frame};

/// The generated messages; `bookkeeper_protocol.proto` has the comments.
#[allow(missing_docs, reason = "generated; fields are described in the .proto file")]
#[allow(clippy::all, reason = "generated")]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/bookkeeper_protocol.rs"));
}

/// The plugin name by which a bookie without authentication answers every AUTH; clients take it for success.
pub const AUTH_DISABLED_PLUGIN_NAME: &str = "AuthDisabledPlugin";

/// Bit of `AddRequest.writeFlags`: acknowledge before the entry is synced.
pub const WRITE_FLAG_DEFERRED_SYNC: i32 = 1;

/// Why a payload is not a message we serve. Ask [`DecodeError::refusal`] whether to answer or to close the connection.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// Not protobuf.
    #[error("v3 {message} is malformed")]
    Malformed {
        /// The message it was read as.
        message: &'static str,
    },
    /// A required field is missing.
    #[error("v3 {message} lacks required field {field}")]
    MissingField {
        /// The message.
        message: &'static str,
        /// The field's number.
        field: u32,
    },
    /// A required enum has a value that the protocol does not know, which a Java peer takes for a missing field.
    #[error("v3 {field} has unknown value {value}")]
    UnknownEnumValue {
        /// The field.
        field: &'static str,
        /// Its value.
        value: i32,
    },
    /// A field has another type than the protocol says.
    #[error("v3 message does not fit the protocol")]
    Protobuf(#[from] prost::DecodeError),
    /// A well-formed request that we do not serve.
    #[error("v3 request refused with status {}", .0.status)]
    Refused(Box<proto::Response>),
}

impl DecodeError {
    /// `Some`: send this and go on. `None`: close the connection, no answer exists.
    pub fn refusal(&self) -> Option<&proto::Response> {
        match self {
            DecodeError::Refused(response) => Some(response),
            DecodeError::Malformed { .. }
            | DecodeError::MissingField { .. }
            | DecodeError::UnknownEnumValue { .. }
            | DecodeError::Protobuf(_) => None,
        }
    }
}

/// Appends the whole frame of a message, length prefix included. Whether it fits the frame limit is the sender's check:
/// [`crate::FrameLimit::admits_payload`] of `message.encoded_len()`.
pub fn put_frame(message: &impl Message, out: &mut BytesMut) {
    let size_bytes = message.encoded_len();
    out.reserve(frame::LENGTH_PREFIX_SIZE_BYTES + size_bytes);
    frame::put_length(size_bytes, out);
    message.encode(out).expect("a BytesMut grows, so that encoding cannot run out of room");
}

/// Decodes a response's payload, as a client does.
pub fn decode_response(payload: Bytes) -> Result<proto::Response, DecodeError> {
    required::check(&payload, &required::RESPONSE)?;
    let response = proto::Response::decode(payload)?;
    check_header(&response.header)?;
    if ErrorCode::from_v3(response.status).is_none() {
        return Err(DecodeError::UnknownEnumValue { field: "status", value: response.status });
    }
    Ok(response)
}

/// Bytes at the front of a message that [`decode_head`] may need: a header of version, operation, txnId and priority.
pub const HEAD_SIZE_BYTES_MAX: usize = 2 + 2 * 11 + 11 + 6;

/// The header of the message that begins with `head`, where all known peers put it; `None` when it is not whole, or stands
/// somewhere else.
pub fn decode_head(head: &[u8]) -> Option<proto::BkPacketHeader> {
    // Field 1, with a length: the same in requests and responses.
    let mut rest = head.strip_prefix(&[0x0a])?;
    let size_bytes = prost::decode_length_delimiter(&mut rest).ok()?;
    let bytes = rest.get(..size_bytes)?;
    required::check(bytes, &required::HEADER).ok()?;
    let header = proto::BkPacketHeader::decode(bytes).ok()?;
    check_header(&header).ok()?;
    Some(header)
}

/// Decodes the message inside a v2 AUTH packet, of either direction. Failure closes the connection.
pub fn decode_auth_message(bytes: &[u8]) -> Result<proto::AuthMessage, DecodeError> {
    required::check(bytes, &required::AUTH_MESSAGE)?;
    Ok(proto::AuthMessage::decode(bytes)?)
}

/// The bytes of the message inside a v2 AUTH packet, of either direction.
pub fn encode_auth_message(message: &proto::AuthMessage) -> Vec<u8> {
    message.encode_to_vec()
}

/// The answer of a bookie without authentication to any AUTH (protocol reference, section 2.5).
pub fn auth_disabled_message() -> proto::AuthMessage {
    proto::AuthMessage { auth_plugin_name: AUTH_DISABLED_PLUGIN_NAME.to_owned(), payload: Bytes::new() }
}

/// Java drops an unknown enum value as if the field were not there; both of these are required.
fn check_header(
    header: &proto::BkPacketHeader,
) -> Result<(proto::ProtocolVersion, proto::OperationType), DecodeError> {
    let unknown = |field, value| DecodeError::UnknownEnumValue { field, value };
    let version = proto::ProtocolVersion::try_from(header.version);
    let operation = proto::OperationType::try_from(header.operation);
    Ok((
        version.map_err(|_| unknown("version", header.version))?,
        operation.map_err(|_| unknown("operation", header.operation))?,
    ))
}

impl proto::AddRequest {
    /// Whether this is part of ledger recovery or re-replication. `writeFlags` are ignored then.
    pub fn is_recovery_add(&self) -> bool {
        self.flag == Some(proto::add_request::Flag::RecoveryAdd as i32)
    }

    /// Whether to acknowledge before the entry is synced.
    pub fn is_deferred_sync(&self) -> bool {
        !self.is_recovery_add() && self.write_flags.is_some_and(|flags| flags & WRITE_FLAG_DEFERRED_SYNC != 0)
    }

    /// The master key; `None` unless it is 20 bytes long (answer `Unauthorized`).
    pub fn key(&self) -> Option<MasterKey> {
        MasterKey::from_slice(&self.master_key)
    }
}

impl proto::ReadRequest {
    /// Whether to fence the ledger before reading.
    pub fn is_fencing(&self) -> bool {
        self.flag == Some(proto::read_request::Flag::FenceLedger as i32)
    }

    /// Whether a long poll wants the next entry along with the last add confirmed.
    pub fn wants_entry_piggyback(&self) -> bool {
        self.flag == Some(proto::read_request::Flag::EntryPiggyback as i32)
    }

    /// Whether to wait for the last add confirmed to move (protocol reference, section 2.6).
    pub fn is_long_poll(&self) -> bool {
        !self.is_fencing() && self.previous_lac.is_some()
    }

    /// The master key; `None` when absent or not 20 bytes long (answer `Unauthorized` to a fencing read).
    pub fn key(&self) -> Option<MasterKey> {
        self.master_key.as_deref().and_then(MasterKey::from_slice)
    }
}

impl proto::WriteLacRequest {
    /// The master key; `None` unless it is 20 bytes long (answer `Unauthorized`).
    pub fn key(&self) -> Option<MasterKey> {
        MasterKey::from_slice(&self.master_key)
    }
}

impl proto::GetBookieInfoRequest {
    /// Whether the request asks for the total capacity.
    pub fn wants_total_disk_capacity(&self) -> bool {
        self.requested() & proto::get_bookie_info_request::Flags::TotalDiskCapacity as i64 != 0
    }

    /// Whether the request asks for the free space.
    pub fn wants_free_disk_space(&self) -> bool {
        self.requested() & proto::get_bookie_info_request::Flags::FreeDiskSpace as i64 != 0
    }
}

impl fmt::Debug for proto::AddRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddRequest")
            .field("ledger_id", &self.ledger_id)
            .field("entry_id", &self.entry_id)
            .field("body_size_bytes", &self.body.len())
            .field("write_flags", &self.write_flags)
            .field("flag", &self.flag)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for proto::ReadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadRequest")
            .field("ledger_id", &self.ledger_id)
            .field("entry_id", &self.entry_id)
            .field("previous_lac", &self.previous_lac)
            .field("time_out", &self.time_out)
            .field("flag", &self.flag)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for proto::WriteLacRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteLacRequest")
            .field("ledger_id", &self.ledger_id)
            .field("lac", &self.lac)
            .field("body_size_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for proto::AuthMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthMessage")
            .field("auth_plugin_name", &self.auth_plugin_name)
            .field("payload_size_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}
