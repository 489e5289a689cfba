//! v2 responses: what a bookie answers (protocol reference, section 1.5).
//!
//! Offsets within the packet, that is after the length prefix:
//!
//! ```text
//! ADDENTRY          0 header | 4 rc(4) | 8 ledgerId | 16 entryId                                      24 bytes
//! READENTRY         0 header | 4 rc(4) | 8 ledgerId | 16 entryId | 24 entry, as stored, if rc = 0
//! BATCH_READ_ENTRY  0 header | 4 rc(4) | 8 ledgerId | 16 startEntryId | 24 requestId
//!                   | 32 { size(4) entry }...           flag STRIDE: they follow the stride of the request (ours)
//! AUTH              0 header | 4 protobuf AuthMessage                                  no rc, no ids
//! ```
//!
//! The `put_` functions append to anything that grows (`BytesMut`, `Vec`); on a fixed buffer they panic when it is full.
//! Whether a response fits the frame limit is the sender's check, made before it reads the entries
//! ([`crate::FrameLimit::admits_payload`], [`super::BatchReadBudget`]).

use bytes::BufMut;

use super::{Flags, Header, Opcode};
use crate::cursor::{take_i32, take_i64, take_u32};
use crate::{ErrorCode, frame};

const IDS_PACKET_SIZE_BYTES: usize = 24;
const BATCH_PACKET_SIZE_BYTES: usize = IDS_PACKET_SIZE_BYTES + 8;

/// A whole ADD response frame.
pub const ADD_RESPONSE_SIZE_BYTES: usize = frame::LENGTH_PREFIX_SIZE_BYTES + IDS_PACKET_SIZE_BYTES;
/// Bytes that a READ response frame adds to its entry.
pub const READ_RESPONSE_OVERHEAD_BYTES: usize = frame::LENGTH_PREFIX_SIZE_BYTES + IDS_PACKET_SIZE_BYTES;
/// Bytes that a BATCH_READ response frame adds to its entries and their sizes.
pub const BATCH_READ_RESPONSE_OVERHEAD_BYTES: usize =
    frame::LENGTH_PREFIX_SIZE_BYTES + BATCH_PACKET_SIZE_BYTES;
/// Bytes that a BATCH_READ response adds to each entry: its size.
pub const BATCH_READ_ENTRY_OVERHEAD_BYTES: usize = 4;

const _: () = assert!(ADD_RESPONSE_SIZE_BYTES == 28, "protocol reference, section 1.5");
const _: () = assert!(BATCH_READ_RESPONSE_OVERHEAD_BYTES == 36, "protocol reference, section 1.5");

/// The operation and ids by which a client finds the request a response belongs to, echoed as they were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Correlation {
    /// ADDENTRY
    Add {
        /// As sent.
        ledger_id: i64,
        /// As sent.
        entry_id: i64,
    },
    /// READENTRY
    Read {
        /// As sent.
        ledger_id: i64,
        /// As sent, so -1 for a read of the last entry.
        entry_id: i64,
    },
    /// BATCH_READ_ENTRY
    BatchRead {
        /// As sent.
        ledger_id: i64,
        /// As sent.
        start_entry_id: i64,
        /// As sent.
        request_id: i64,
    },
}

/// Bytes at the front of a response that [`Correlation::of_response_head`] may need.
pub const RESPONSE_HEAD_SIZE_BYTES_MAX: usize = BATCH_PACKET_SIZE_BYTES;

impl Correlation {
    /// Of the response that begins with `head`; `None` when that is too short, or no response with ids.
    pub fn of_response_head(head: &[u8]) -> Option<Correlation> {
        let mut rest = head;
        let opcode = Opcode::from_wire(Header::decode(take_u32(&mut rest)?).opcode)?;
        let _code = take_i32(&mut rest)?;
        let (ledger_id, entry_id) = (take_i64(&mut rest)?, take_i64(&mut rest)?);
        match opcode {
            Opcode::Add => Some(Correlation::Add { ledger_id, entry_id }),
            Opcode::Read => Some(Correlation::Read { ledger_id, entry_id }),
            Opcode::BatchRead => {
                let request_id = take_i64(&mut rest)?;
                Some(Correlation::BatchRead { ledger_id, start_entry_id: entry_id, request_id })
            }
            Opcode::Auth => None,
        }
    }
}

/// Appends an ADD response frame, of success or failure.
pub fn put_add_response(version: i8, code: ErrorCode, ledger_id: i64, entry_id: i64, out: &mut impl BufMut) {
    // One copy of a fixed array: a group commit appends thousands of these.
    let mut frame = [0; ADD_RESPONSE_SIZE_BYTES];
    frame[0..4].copy_from_slice(&(IDS_PACKET_SIZE_BYTES as u32).to_be_bytes());
    frame[4..8].copy_from_slice(&Header::encode(version, Opcode::Add, Flags::NONE).to_be_bytes());
    frame[8..12].copy_from_slice(&code.v2().to_be_bytes());
    frame[12..20].copy_from_slice(&ledger_id.to_be_bytes());
    frame[20..28].copy_from_slice(&entry_id.to_be_bytes());
    out.put_slice(&frame);
}

/// Appends everything of a successful READ response frame but the entry, whose `body_size_bytes` bytes must follow.
pub fn put_read_response_header(
    version: i8,
    ledger_id: i64,
    entry_id: i64,
    body_size_bytes: usize,
    out: &mut impl BufMut,
) {
    frame::put_length(IDS_PACKET_SIZE_BYTES + body_size_bytes, out);
    put_ids(version, Opcode::Read, Flags::NONE, ErrorCode::Ok, ledger_id, entry_id, out);
}

/// Appends a successful READ response frame.
pub fn put_read_response(version: i8, ledger_id: i64, entry_id: i64, body: &[u8], out: &mut impl BufMut) {
    put_read_response_header(version, ledger_id, entry_id, body.len(), out);
    out.put_slice(body);
}

/// Appends everything of a successful BATCH_READ response frame but the entries. `entries_size_bytes` bytes must follow:
/// for each entry [`put_batch_entry_size`] and its bytes. [`super::BatchReadBudget::entries_size_bytes`] counts them.
/// `is_strided`: they follow the stride of the request.
pub fn put_batch_read_response_header(
    version: i8,
    ledger_id: i64,
    start_entry_id: i64,
    request_id: i64,
    is_strided: bool,
    entries_size_bytes: usize,
    out: &mut impl BufMut,
) {
    let flags = if is_strided { Flags::STRIDE } else { Flags::NONE };
    frame::put_length(BATCH_PACKET_SIZE_BYTES + entries_size_bytes, out);
    put_ids(version, Opcode::BatchRead, flags, ErrorCode::Ok, ledger_id, start_entry_id, out);
    out.put_i64(request_id);
}

/// Appends the size that precedes each entry of a BATCH_READ response.
pub fn put_batch_entry_size(entry_size_bytes: usize, out: &mut impl BufMut) {
    frame::put_length(entry_size_bytes, out);
}

/// Appends a successful BATCH_READ response frame. `is_strided`: the entries follow the stride of the request.
pub fn put_batch_read_response<'a>(
    version: i8,
    ledger_id: i64,
    start_entry_id: i64,
    request_id: i64,
    is_strided: bool,
    entries: impl Iterator<Item = &'a [u8]> + Clone,
    out: &mut impl BufMut,
) {
    let size_bytes = entries.clone().map(|entry| BATCH_READ_ENTRY_OVERHEAD_BYTES + entry.len()).sum();
    put_batch_read_response_header(
        version,
        ledger_id,
        start_entry_id,
        request_id,
        is_strided,
        size_bytes,
        out,
    );
    for entry in entries {
        put_batch_entry_size(entry.len(), out);
        out.put_slice(entry);
    }
}

/// Appends an AUTH response frame around a serialised `AuthMessage`.
pub fn put_auth_response(version: i8, message: &[u8], out: &mut impl BufMut) {
    frame::put_length(4 + message.len(), out);
    out.put_u32(Header::encode(version, Opcode::Auth, Flags::NONE));
    out.put_slice(message);
}

/// Appends the frame that answers a request with a failure. For an add, `Ok` is the success.
pub fn put_error_response(version: i8, request: Correlation, code: ErrorCode, out: &mut impl BufMut) {
    match request {
        Correlation::Add { ledger_id, entry_id } => put_add_response(version, code, ledger_id, entry_id, out),
        Correlation::Read { ledger_id, entry_id } => {
            frame::put_length(IDS_PACKET_SIZE_BYTES, out);
            put_ids(version, Opcode::Read, Flags::NONE, code, ledger_id, entry_id, out);
        }
        Correlation::BatchRead { ledger_id, start_entry_id, request_id } => {
            frame::put_length(BATCH_PACKET_SIZE_BYTES, out);
            put_ids(version, Opcode::BatchRead, Flags::NONE, code, ledger_id, start_entry_id, out);
            out.put_i64(request_id);
        }
    }
}

fn put_ids(
    version: i8,
    opcode: Opcode,
    flags: Flags,
    code: ErrorCode,
    ledger_id: i64,
    entry_id: i64,
    out: &mut impl BufMut,
) {
    out.put_u32(Header::encode(version, opcode, flags));
    out.put_i32(code.v2());
    out.put_i64(ledger_id);
    out.put_i64(entry_id);
}

/// A v2 response as a client reads it, borrowing from its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response<'a> {
    /// To an add.
    Add {
        /// The request's version.
        version: i8,
        /// The outcome.
        code: ErrorCode,
        /// As sent.
        ledger_id: i64,
        /// As sent.
        entry_id: i64,
    },
    /// To a read.
    Read {
        /// The request's version.
        version: i8,
        /// The outcome.
        code: ErrorCode,
        /// As sent.
        ledger_id: i64,
        /// As sent.
        entry_id: i64,
        /// The stored entry; empty unless `code` is `Ok`.
        body: &'a [u8],
    },
    /// To a batch read.
    BatchRead {
        /// The request's version.
        version: i8,
        /// The outcome.
        code: ErrorCode,
        /// As sent.
        ledger_id: i64,
        /// As sent.
        start_entry_id: i64,
        /// As sent.
        request_id: i64,
        /// The entries follow the stride of the request, and not one another. False unless `code` is `Ok`.
        is_strided: bool,
        /// Stored entries; none unless `code` is `Ok`.
        entries: BatchEntries<'a>,
    },
    /// To an AUTH.
    Auth {
        /// The request's version.
        version: i8,
        /// A serialised `AuthMessage`: [`crate::v3::decode_auth_message`] reads it.
        message: &'a [u8],
    },
}

/// Why a packet is not a response. A client can only close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// The packet ends before its fixed fields do.
    #[error("v2 response of {size_bytes} bytes ends within its fixed fields")]
    Truncated {
        /// Size of the packet.
        size_bytes: usize,
    },
    /// Not an opcode that is ever answered.
    #[error("v2 response has unknown opcode {opcode}")]
    UnknownOpcode {
        /// The number found.
        opcode: u32,
    },
    /// Not a result code of the protocol.
    #[error("v2 response has unknown result code {code}")]
    UnknownCode {
        /// The number found.
        code: i32,
    },
    /// The sizes inside a batch do not add up to the packet.
    #[error("v2 batch response has an entry size that does not fit the packet")]
    BatchEntrySize,
}

impl<'a> Response<'a> {
    /// Decodes a frame's payload. Allocates nothing. Bytes after the fields of a failed response are ignored.
    pub fn decode(packet: &'a [u8]) -> Result<Response<'a>, ResponseError> {
        let truncated = ResponseError::Truncated { size_bytes: packet.len() };
        let mut rest = packet;
        let Header { version, opcode, flags } = Header::decode(take_u32(&mut rest).ok_or(truncated)?);
        let opcode = Opcode::from_wire(opcode).ok_or(ResponseError::UnknownOpcode { opcode })?;
        if opcode == Opcode::Auth {
            return Ok(Response::Auth { version, message: rest });
        }
        let raw_code = take_i32(&mut rest).ok_or(truncated)?;
        let ledger_id = take_i64(&mut rest).ok_or(truncated)?;
        let entry_id = take_i64(&mut rest).ok_or(truncated)?;
        let code = ErrorCode::from_v2(raw_code).ok_or(ResponseError::UnknownCode { code: raw_code })?;
        Ok(match opcode {
            Opcode::Auth => Response::Auth { version, message: rest },
            Opcode::Add => Response::Add { version, code, ledger_id, entry_id },
            Opcode::Read => {
                let body = if code == ErrorCode::Ok { rest } else { &[] };
                Response::Read { version, code, ledger_id, entry_id, body }
            }
            Opcode::BatchRead => {
                let request_id = take_i64(&mut rest).ok_or(truncated)?;
                let entries = BatchEntries::checked(if code == ErrorCode::Ok { rest } else { &[] })?;
                Response::BatchRead {
                    version,
                    code,
                    ledger_id,
                    start_entry_id: entry_id,
                    request_id,
                    is_strided: code == ErrorCode::Ok && flags.contains(Flags::STRIDE),
                    entries,
                }
            }
        })
    }

    /// Appends the whole frame, length prefix included.
    pub fn encode(&self, out: &mut impl BufMut) {
        match *self {
            Response::Add { version, code, ledger_id, entry_id } => {
                put_add_response(version, code, ledger_id, entry_id, out);
            }
            Response::Read { version, code: ErrorCode::Ok, ledger_id, entry_id, body } => {
                put_read_response(version, ledger_id, entry_id, body, out);
            }
            Response::Read { version, code, ledger_id, entry_id, .. } => {
                put_error_response(version, Correlation::Read { ledger_id, entry_id }, code, out);
            }
            Response::BatchRead {
                version,
                code,
                ledger_id,
                start_entry_id,
                request_id,
                is_strided,
                entries,
            } => {
                if code == ErrorCode::Ok {
                    put_batch_read_response(
                        version,
                        ledger_id,
                        start_entry_id,
                        request_id,
                        is_strided,
                        entries,
                        out,
                    );
                } else {
                    let request = Correlation::BatchRead { ledger_id, start_entry_id, request_id };
                    put_error_response(version, request, code, out);
                }
            }
            Response::Auth { version, message } => put_auth_response(version, message, out),
        }
    }
}

/// The entries of a batch response, in order of id. Iterating allocates nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchEntries<'a> {
    /// Sizes in it were checked to add up exactly.
    rest: &'a [u8],
}

impl<'a> BatchEntries<'a> {
    /// No entries, as in a failed response.
    pub const NONE: BatchEntries<'static> = BatchEntries { rest: &[] };

    fn checked(bytes: &'a [u8]) -> Result<BatchEntries<'a>, ResponseError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            take_batch_entry(&mut rest).ok_or(ResponseError::BatchEntrySize)?;
        }
        Ok(BatchEntries { rest: bytes })
    }
}

impl<'a> Iterator for BatchEntries<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        take_batch_entry(&mut self.rest)
    }
}

fn take_batch_entry<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let size_bytes = usize::try_from(take_i32(rest)?).ok()?;
    let (entry, tail) = rest.split_at_checked(size_bytes)?;
    *rest = tail;
    Some(entry)
}
