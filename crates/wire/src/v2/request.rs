//! v2 requests: what a client asks (protocol reference, section 1.4).
//!
//! Offsets within the packet, that is after the length prefix:
//!
//! ```text
//! ADDENTRY          0 header | 4 masterKey(20) | 24 entry, as stored
//! READENTRY         0 header | 4 ledgerId | 12 entryId | 20 masterKey(20)*
//! BATCH_READ_ENTRY  0 header | 4 ledgerId | 12 startEntryId | 20 requestId | 28 maxCount(4) | 32 maxSize
//!                   | 40 masterKey(20)* | stride(4)**
//! AUTH              0 header | 4 protobuf AuthMessage
//!                                                  * only with DO_FENCING and version >= 2
//!                                                  ** only with STRIDE: ours
//! ```

use bindery_types::{MASTER_KEY_SIZE_BYTES, MasterKey};
use bytes::BufMut;

use super::{
    Correlation, Flags, Header, Opcode, VERSION_CURRENT, VERSION_WITH_FENCING_KEY, is_supported,
    put_error_response,
};
use crate::cursor::{take_array, take_i32, take_i64, take_u32};
use crate::entry::{self, EntryHeader};
use crate::{ErrorCode, frame};

/// A v2 request of a version we speak, borrowing from its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// Store an entry.
    Add(Add<'a>),
    /// Read one entry, or the last one, fencing the ledger first if asked.
    Read(Read),
    /// Read entries that follow one another, or a stride.
    BatchRead(BatchRead),
    /// One step of authentication.
    Auth(Auth<'a>),
}

/// ADDENTRY. The ids are those inside the body; they are raw, a negative one is a bad request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Add<'a> {
    /// Protocol version, 0 to 2.
    pub version: i8,
    /// `RECOVERY_ADD` and `HIGH_PRIORITY` matter.
    pub flags: Flags,
    /// The key of the ledger's writer.
    pub master_key: MasterKey,
    /// Body bytes 0..8.
    pub ledger_id: i64,
    /// Body bytes 8..16.
    pub entry_id: i64,
    /// Body bytes 16..24: the last add confirmed (LAC) the writer knew, -1 for none.
    pub last_add_confirmed: i64,
    /// The entry exactly as it must be stored and returned; at least [`entry::ENTRY_SIZE_BYTES_MIN`] bytes.
    pub body: &'a [u8],
}

impl<'a> Add<'a> {
    /// An add of the current version. Errors when `body` is too short to be an entry.
    pub fn new(flags: Flags, master_key: MasterKey, body: &'a [u8]) -> Result<Add<'a>, entry::EntryTooShort> {
        let EntryHeader { ledger_id, entry_id, last_add_confirmed } = EntryHeader::of(body)?;
        Ok(Add { version: VERSION_CURRENT, flags, master_key, ledger_id, entry_id, last_add_confirmed, body })
    }
}

/// READENTRY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Protocol version, 0 to 2.
    pub version: i8,
    /// `DO_FENCING` and `HIGH_PRIORITY` matter.
    pub flags: Flags,
    /// Raw, as sent.
    pub ledger_id: i64,
    /// Raw, as sent; -1 asks for the last entry this bookie has.
    pub entry_id: i64,
    /// Present exactly when `DO_FENCING` is set and version >= 2. Fencing without it is answered `Unauthorized`.
    pub master_key: Option<MasterKey>,
}

/// BATCH_READ_ENTRY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchRead {
    /// Protocol version, 0 to 2.
    pub version: i8,
    /// `DO_FENCING`, `HIGH_PRIORITY` and `STRIDE` matter.
    pub flags: Flags,
    /// Raw, as sent.
    pub ledger_id: i64,
    /// Raw, as sent: the first entry wanted.
    pub start_entry_id: i64,
    /// Opaque; echoed.
    pub request_id: i64,
    /// Entries wanted; zero or less means unlimited. See [`super::BatchReadBudget`].
    pub max_count: i32,
    /// Bytes of response frame wanted.
    pub max_size_bytes: i64,
    /// Present exactly when `DO_FENCING` is set and version >= 2.
    pub master_key: Option<MasterKey>,
    /// How far each entry wanted is behind the one before it, in entry ids, at least 1; 1 without `STRIDE`.
    pub stride: u32,
}

/// AUTH. The only request whose version is not judged, since its response has no room for an error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Auth<'a> {
    /// Protocol version, any; echoed.
    pub version: i8,
    /// Carried along; no flag matters here.
    pub flags: Flags,
    /// A serialised `AuthMessage`: [`crate::v3::decode_auth_message`] reads it.
    pub message: &'a [u8],
}

/// Why a packet is not a request. Ask [`DecodeError::refusal`] whether to answer or to close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The packet ends before its fixed fields do.
    #[error("v2 packet of {size_bytes} bytes ends within its fixed fields")]
    Truncated {
        /// Size of the packet.
        size_bytes: usize,
    },
    /// An opcode v2 does not accept. For version 0 this is the whole header.
    #[error("v2 opcode {opcode} of version {version} is not accepted")]
    UnknownOpcode {
        /// Version of the packet.
        version: i8,
        /// The number found.
        opcode: u32,
    },
    /// A well-formed request of a version outside 0..=2.
    #[error("v2 version {} is not supported", .0.version)]
    UnsupportedVersion(Refusal),
    /// An add whose body is too short to be an entry. Ids the body does not reach are -1.
    #[error("entry of {size_bytes} bytes is too short")]
    EntryTooShort {
        /// The answer to give.
        refusal: Refusal,
        /// Size of the body.
        size_bytes: usize,
    },
    /// A batch read with a stride below 1.
    #[error("v2 batch read has stride {stride}, and the least is 1")]
    BadStride {
        /// The answer to give.
        refusal: Refusal,
        /// As sent.
        stride: i32,
    },
}

/// The answer to a request that was understood just well enough to be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The request's version, echoed.
    pub version: i8,
    /// Opcode and ids of the request, echoed.
    pub correlation: Correlation,
    /// `BadVersion` or `BadRequest`.
    pub code: ErrorCode,
}

impl Refusal {
    /// Appends the whole response frame.
    pub fn encode(&self, out: &mut impl BufMut) {
        put_error_response(self.version, self.correlation, self.code, out);
    }
}

impl DecodeError {
    /// `Some`: send this and go on. `None`: close the connection, no answer exists (module invariant 2).
    pub fn refusal(&self) -> Option<Refusal> {
        match *self {
            DecodeError::Truncated { .. } | DecodeError::UnknownOpcode { .. } => None,
            DecodeError::UnsupportedVersion(refusal)
            | DecodeError::EntryTooShort { refusal, .. }
            | DecodeError::BadStride { refusal, .. } => Some(refusal),
        }
    }
}

impl<'a> Request<'a> {
    /// Decodes a frame's payload. Allocates nothing.
    pub fn decode(packet: &'a [u8]) -> Result<Request<'a>, DecodeError> {
        let truncated = DecodeError::Truncated { size_bytes: packet.len() };
        let mut rest = packet;
        let Header { version, opcode, flags } = Header::decode(take_u32(&mut rest).ok_or(truncated)?);
        let Some(opcode) = Opcode::from_wire(opcode) else {
            return Err(DecodeError::UnknownOpcode { version, opcode });
        };
        let request = match opcode {
            Opcode::Add => return decode_add(version, flags, rest).ok_or(truncated)?,
            Opcode::Read => decode_read(version, flags, rest).map(Request::Read),
            Opcode::BatchRead => return decode_batch_read(version, flags, rest).ok_or(truncated)?,
            Opcode::Auth => Some(Request::Auth(Auth { version, flags, message: rest })),
        }
        .ok_or(truncated)?;
        match request.correlation() {
            Some(correlation) if !is_supported(version) => Err(DecodeError::UnsupportedVersion(Refusal {
                version,
                correlation,
                code: ErrorCode::BadVersion,
            })),
            _ => Ok(request),
        }
    }

    /// Appends the whole frame, length prefix included.
    ///
    /// Panics when a fencing read of version 2 lacks its key, which is our own mistake, not the peer's.
    pub fn encode(&self, out: &mut impl BufMut) {
        match self {
            Request::Add(add) => {
                frame::put_length(super::ADD_BODY_OFFSET_BYTES + add.body.len(), out);
                out.put_u32(Header::encode(add.version, Opcode::Add, add.flags));
                out.put_slice(add.master_key.as_bytes());
                out.put_slice(add.body);
            }
            Request::Read(read) => {
                let key = fencing_key(read.version, read.flags, &read.master_key);
                frame::put_length(20 + key.len(), out);
                out.put_u32(Header::encode(read.version, Opcode::Read, read.flags));
                out.put_i64(read.ledger_id);
                out.put_i64(read.entry_id);
                out.put_slice(key);
            }
            Request::BatchRead(read) => {
                let key = fencing_key(read.version, read.flags, &read.master_key);
                let has_stride = carries_stride(read.version, read.flags);
                assert!(has_stride || read.stride == 1, "a stride is announced by its flag");
                frame::put_length(40 + key.len() + 4 * usize::from(has_stride), out);
                out.put_u32(Header::encode(read.version, Opcode::BatchRead, read.flags));
                out.put_i64(read.ledger_id);
                out.put_i64(read.start_entry_id);
                out.put_i64(read.request_id);
                out.put_i32(read.max_count);
                out.put_i64(read.max_size_bytes);
                out.put_slice(key);
                if has_stride {
                    out.put_u32(read.stride);
                }
            }
            Request::Auth(auth) => {
                frame::put_length(4 + auth.message.len(), out);
                out.put_u32(Header::encode(auth.version, Opcode::Auth, auth.flags));
                out.put_slice(auth.message);
            }
        }
    }

    /// The version to echo.
    pub fn version(&self) -> i8 {
        match self {
            Request::Add(add) => add.version,
            Request::Read(read) => read.version,
            Request::BatchRead(read) => read.version,
            Request::Auth(auth) => auth.version,
        }
    }

    /// The ids to echo; `None` for AUTH, whose response has none and no error code either.
    pub fn correlation(&self) -> Option<Correlation> {
        match *self {
            Request::Add(Add { ledger_id, entry_id, .. }) => Some(Correlation::Add { ledger_id, entry_id }),
            Request::Read(Read { ledger_id, entry_id, .. }) => {
                Some(Correlation::Read { ledger_id, entry_id })
            }
            Request::BatchRead(BatchRead { ledger_id, start_entry_id, request_id, .. }) => {
                Some(Correlation::BatchRead { ledger_id, start_entry_id, request_id })
            }
            Request::Auth(_) => None,
        }
    }
}

/// Version 0 has no flags.
const fn carries_stride(version: i8, flags: Flags) -> bool {
    version != 0 && flags.contains(Flags::STRIDE)
}

const fn carries_key(version: i8, flags: Flags) -> bool {
    version >= VERSION_WITH_FENCING_KEY && flags.contains(Flags::DO_FENCING)
}

fn fencing_key(version: i8, flags: Flags, key: &Option<MasterKey>) -> &[u8] {
    if !carries_key(version, flags) {
        return &[];
    }
    key.as_ref().expect("a fencing read of version 2 is built with its master key").as_bytes()
}

/// `None` when truncated; `Some(Err)` when the add can be answered but not served.
fn decode_add(version: i8, flags: Flags, mut rest: &[u8]) -> Option<Result<Request<'_>, DecodeError>> {
    let master_key = MasterKey::new(take_array(&mut rest)?);
    let body = rest;
    let refuse = |ledger_id, entry_id, code| Refusal {
        version,
        correlation: Correlation::Add { ledger_id, entry_id },
        code,
    };
    let header = EntryHeader::of(body);
    if !is_supported(version) {
        let (ledger_id, entry_id) = ids_in_reach(body);
        return Some(Err(DecodeError::UnsupportedVersion(refuse(
            ledger_id,
            entry_id,
            ErrorCode::BadVersion,
        ))));
    }
    Some(match header {
        Ok(EntryHeader { ledger_id, entry_id, last_add_confirmed }) => Ok(Request::Add(Add {
            version,
            flags,
            master_key,
            ledger_id,
            entry_id,
            last_add_confirmed,
            body,
        })),
        Err(entry::EntryTooShort { size_bytes }) => {
            let (ledger_id, entry_id) = ids_in_reach(body);
            let refusal = refuse(ledger_id, entry_id, ErrorCode::BadRequest);
            Err(DecodeError::EntryTooShort { refusal, size_bytes })
        }
    })
}

/// The ids at the front of a body that may be too short to hold them; -1 stands for a missing one.
fn ids_in_reach(mut body: &[u8]) -> (i64, i64) {
    let ledger_id = take_i64(&mut body);
    let entry_id = ledger_id.and_then(|_| take_i64(&mut body));
    (ledger_id.unwrap_or(-1), entry_id.unwrap_or(-1))
}

fn decode_read(version: i8, flags: Flags, mut rest: &[u8]) -> Option<Read> {
    Some(Read {
        version,
        flags,
        ledger_id: take_i64(&mut rest)?,
        entry_id: take_i64(&mut rest)?,
        master_key: decode_fencing_key(version, flags, &mut rest)?,
    })
}

/// `None` when truncated; `Some(Err)` when it can be answered but not served.
fn decode_batch_read(version: i8, flags: Flags, mut rest: &[u8]) -> Option<Result<Request<'_>, DecodeError>> {
    let (ledger_id, start_entry_id) = (take_i64(&mut rest)?, take_i64(&mut rest)?);
    let (request_id, max_count) = (take_i64(&mut rest)?, take_i32(&mut rest)?);
    let max_size_bytes = take_i64(&mut rest)?;
    let master_key = decode_fencing_key(version, flags, &mut rest)?;
    let stride = if carries_stride(version, flags) { take_i32(&mut rest)? } else { 1 };
    let refuse = |code| Refusal {
        version,
        correlation: Correlation::BatchRead { ledger_id, start_entry_id, request_id },
        code,
    };
    if !is_supported(version) {
        return Some(Err(DecodeError::UnsupportedVersion(refuse(ErrorCode::BadVersion))));
    }
    let Some(step) = u32::try_from(stride).ok().filter(|stride| *stride > 0) else {
        return Some(Err(DecodeError::BadStride { refusal: refuse(ErrorCode::BadRequest), stride }));
    };
    Some(Ok(Request::BatchRead(BatchRead {
        version,
        flags,
        ledger_id,
        start_entry_id,
        request_id,
        max_count,
        max_size_bytes,
        master_key,
        stride: step,
    })))
}

/// Outer `None` when the key is due and missing.
fn decode_fencing_key(version: i8, flags: Flags, rest: &mut &[u8]) -> Option<Option<MasterKey>> {
    if !carries_key(version, flags) {
        return Some(None);
    }
    take_array::<MASTER_KEY_SIZE_BYTES>(rest).map(|key| Some(MasterKey::new(key)))
}
