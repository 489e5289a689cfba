//! The hot messages by hand: adds and plain reads, in the form in which clients send them, and their answers.
//!
//! The generated decoder takes an owned payload, which costs a copy of every entry; here bodies are borrowed from the
//! receive buffer, and nothing is allocated.
//!
//! # Invariants
//! 1. [`super::Request::decode`] understands every message that [`HotRequest::parse`] understands, in the same way.
//!    `parse` leaves everything unusual to `decode`: other operations, other versions, fields that are repeated or that
//!    it does not know, fencing and polling reads, damage.
//! 2. The `put_` functions write, byte for byte, the same as the generated encoder; the head of an add has the fields
//!    of a generated one with the body last, so that the body can be written from where it is.

use bytes::BufMut;

use super::proto::add_request::Flag;
use super::proto::{OperationType, ProtocolVersion};
use crate::{ErrorCode, frame};

/// A request of the hot path, borrowing from its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HotRequest<'a> {
    /// ADD_ENTRY.
    Add(HotAdd<'a>),
    /// READ_ENTRY that neither fences nor polls.
    Read(HotRead),
}

/// ADD_ENTRY. Ids are raw.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HotAdd<'a> {
    /// The client's correlation id; echoed.
    pub txn_id: u64,
    /// Above zero: serve ahead of ordinary traffic.
    pub priority: u32,
    /// As the message says.
    pub ledger_id: i64,
    /// As the message says.
    pub entry_id: i64,
    /// 20 bytes, unless the client is wrong (answer `Unauthorized`).
    pub master_key: &'a [u8],
    /// The entry exactly as it must be stored and returned.
    pub body: &'a [u8],
    /// Bits; see [`super::WRITE_FLAG_DEFERRED_SYNC`].
    pub write_flags: Option<i32>,
    /// Part of ledger recovery or re-replication.
    pub is_recovery: bool,
}

/// The key stays out of it (module invariant 5 of [`super`]).
impl std::fmt::Debug for HotAdd<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HotAdd")
            .field("txn_id", &self.txn_id)
            .field("ledger_id", &self.ledger_id)
            .field("entry_id", &self.entry_id)
            .field("body_size_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// A plain READ_ENTRY. Ids are raw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HotRead {
    /// The client's correlation id; echoed.
    pub txn_id: u64,
    /// Above zero: serve ahead of ordinary traffic.
    pub priority: u32,
    /// As the message says.
    pub ledger_id: i64,
    /// As the message says; -1 for the last entry.
    pub entry_id: i64,
}

const VARINT: u64 = 0;
const BYTES: u64 = 2;

const fn key(field: u64, wire_type: u64) -> u64 {
    field << 3 | wire_type
}

const HEADER: u64 = key(1, BYTES);
const READ: u64 = key(100, BYTES);
const ADD: u64 = key(101, BYTES);
/// Of headers and bodies: field n as a number.
const NUMBER_1: u64 = key(1, VARINT);
const NUMBER_2: u64 = key(2, VARINT);
const NUMBER_3: u64 = key(3, VARINT);
const NUMBER_4: u64 = key(4, VARINT);
const NUMBER_5: u64 = key(5, VARINT);
const MASTER_KEY: u64 = key(3, BYTES);
const BODY: u64 = key(4, BYTES);
const FLAG: u64 = key(100, VARINT);

impl<'a> HotRequest<'a> {
    /// Reads a frame's payload; `None`: ask [`super::Request::decode`].
    pub fn parse(payload: &'a [u8]) -> Option<HotRequest<'a>> {
        let (mut header, mut body) = (None, None);
        let mut rest = payload;
        while !rest.is_empty() {
            match take_varint(&mut rest)? {
                HEADER => once(&mut header, take_bytes(&mut rest)?)?,
                which @ (READ | ADD) => once(&mut body, (which, take_bytes(&mut rest)?))?,
                _ => return None,
            }
        }
        let Header { operation, txn_id, priority } = Header::parse(header?)?;
        match body? {
            (ADD, body) if operation == OperationType::AddEntry as u64 => add(txn_id, priority, body),
            (READ, body) if operation == OperationType::ReadEntry as u64 => read(txn_id, priority, body),
            _ => None,
        }
    }
}

struct Header {
    operation: u64,
    txn_id: u64,
    priority: u32,
}

impl Header {
    fn parse(mut rest: &[u8]) -> Option<Header> {
        let (mut version, mut operation, mut txn_id, mut priority) = (None, None, None, None);
        while !rest.is_empty() {
            let field = match take_varint(&mut rest)? {
                NUMBER_1 => &mut version,
                NUMBER_2 => &mut operation,
                NUMBER_3 => &mut txn_id,
                NUMBER_4 => &mut priority,
                _ => return None,
            };
            once(field, take_varint(&mut rest)?)?;
        }
        (version? == ProtocolVersion::VersionThree as u64).then_some(())?;
        let priority = u32::try_from(priority.unwrap_or(0)).ok()?;
        Some(Header { operation: operation?, txn_id: txn_id?, priority })
    }
}

fn add<'a>(txn_id: u64, priority: u32, mut rest: &'a [u8]) -> Option<HotRequest<'a>> {
    let (mut ledger_id, mut entry_id, mut write_flags, mut flag) = (None, None, None, None);
    let (mut master_key, mut body) = (None, None);
    while !rest.is_empty() {
        match take_varint(&mut rest)? {
            NUMBER_1 => once(&mut ledger_id, take_varint(&mut rest)?)?,
            NUMBER_2 => once(&mut entry_id, take_varint(&mut rest)?)?,
            MASTER_KEY => once(&mut master_key, take_bytes(&mut rest)?)?,
            BODY => once(&mut body, take_bytes(&mut rest)?)?,
            NUMBER_5 => once(&mut write_flags, take_varint(&mut rest)?)?,
            FLAG => once(&mut flag, take_varint(&mut rest)?)?,
            _ => return None,
        }
    }
    let is_recovery = match flag {
        None => false,
        Some(flag) if flag == Flag::RecoveryAdd as u64 => true,
        Some(_) => return None,
    };
    Some(HotRequest::Add(HotAdd {
        txn_id,
        priority,
        ledger_id: ledger_id? as i64,
        entry_id: entry_id? as i64,
        master_key: master_key?,
        body: body?,
        // Protobuf keeps the low half, whatever the rest is.
        write_flags: write_flags.map(|flags| flags as i32),
        is_recovery,
    }))
}

fn read<'a>(txn_id: u64, priority: u32, mut rest: &'a [u8]) -> Option<HotRequest<'a>> {
    let (mut ledger_id, mut entry_id) = (None, None);
    while !rest.is_empty() {
        match take_varint(&mut rest)? {
            NUMBER_1 => once(&mut ledger_id, take_varint(&mut rest)?)?,
            NUMBER_2 => once(&mut entry_id, take_varint(&mut rest)?)?,
            _ => return None,
        }
    }
    let (ledger_id, entry_id) = (ledger_id? as i64, entry_id? as i64);
    Some(HotRequest::Read(HotRead { txn_id, priority, ledger_id, entry_id }))
}

/// `None` when the field was there before.
fn once<T>(field: &mut Option<T>, value: T) -> Option<()> {
    field.replace(value).is_none().then_some(())
}

fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let size_bytes = usize::try_from(take_varint(rest)?).ok()?;
    let (head, tail) = rest.split_at_checked(size_bytes)?;
    *rest = tail;
    Some(head)
}

/// `None` also for numbers above 64 bits, which decoders treat in different ways.
fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let (first, tail) = rest.split_first()?;
    if *first < 0x80 {
        *rest = tail;
        return Some(u64::from(*first));
    }
    let mut value = u64::from(first & 0x7f);
    for (index, byte) in tail.iter().enumerate().take(9) {
        value |= u64::from(byte & 0x7f) << (7 * (index + 1));
        if byte & 0x80 == 0 {
            *rest = &tail[index + 1..];
            return (index < 8 || *byte <= 1).then_some(value);
        }
    }
    None
}

/// The largest [`put_add_head`].
pub const ADD_HEAD_SIZE_BYTES_MAX: usize = 96;

/// Appends the frame of an ADD_ENTRY up to its body, of which `body_size_bytes` are to follow; at most
/// [`ADD_HEAD_SIZE_BYTES_MAX`]. `write_flags`: see [`super::WRITE_FLAG_DEFERRED_SYNC`].
pub fn put_add_head(
    txn_id: u64,
    ledger_id: i64,
    entry_id: i64,
    master_key: &[u8; 20],
    write_flags: i32,
    body_size_bytes: usize,
    out: &mut impl BufMut,
) {
    let mut inner = Scratch::new();
    inner.put_number(NUMBER_1, ledger_id as u64);
    inner.put_number(NUMBER_2, entry_id as u64);
    inner.put_varint(MASTER_KEY);
    inner.put_varint(master_key.len() as u64);
    inner.put_slice(master_key);
    inner.put_number(NUMBER_5, i64::from(write_flags) as u64);
    inner.put_varint(BODY);
    inner.put_varint(body_size_bytes as u64);
    let mut message = Scratch::new();
    message.put_header(txn_id, OperationType::AddEntry);
    message.put_varint(ADD);
    message.put_varint((inner.size_bytes() + body_size_bytes) as u64);
    message.put_framed(inner.bytes(), body_size_bytes, out);
}

/// Appends the whole frame of an answer to ADD_ENTRY, of success or failure.
pub fn put_add_response(txn_id: u64, code: ErrorCode, ledger_id: i64, entry_id: i64, out: &mut impl BufMut) {
    let mut inner = Scratch::new();
    inner.put_ids(code, ledger_id, entry_id);
    let mut message = Scratch::new();
    message.put_head(txn_id, OperationType::AddEntry, code);
    message.put_varint(ADD);
    message.put_varint(inner.size_bytes() as u64);
    message.put_framed(inner.bytes(), 0, out);
}

/// Appends the whole frame of a successful answer to READ_ENTRY with an entry. `max_lac` is the last add confirmed that
/// the bookie knows; absent in answers to fencing reads.
pub fn put_read_response(
    txn_id: u64,
    ledger_id: i64,
    entry_id: i64,
    body: &[u8],
    max_lac: Option<i64>,
    out: &mut impl BufMut,
) {
    let mut inner = Scratch::new();
    inner.put_ids(ErrorCode::Ok, ledger_id, entry_id);
    inner.put_varint(BODY);
    inner.put_varint(body.len() as u64);
    let mut tail = Scratch::new();
    if let Some(max_lac) = max_lac {
        tail.put_number(NUMBER_5, max_lac as u64);
    }
    let mut message = Scratch::new();
    message.put_head(txn_id, OperationType::ReadEntry, ErrorCode::Ok);
    message.put_varint(READ);
    message.put_varint((inner.size_bytes() + body.len() + tail.size_bytes()) as u64);
    message.put_framed(inner.bytes(), body.len() + tail.size_bytes(), out);
    out.put_slice(body);
    out.put_slice(tail.bytes());
}

/// A small message under construction, on the stack. The largest takes 68 bytes; a longer one would be a bug and panics.
struct Scratch {
    bytes: [u8; 72],
    used: usize,
}

impl Scratch {
    fn new() -> Scratch {
        Scratch { bytes: [0; 72], used: 0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    fn size_bytes(&self) -> usize {
        self.used
    }

    /// Appends a protobuf varint: seven bits a byte, the lowest first, the top bit set on all but the last; at most 10 bytes.
    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes[self.used] = value as u8 | 0x80;
            self.used += 1;
            value >>= 7;
        }
        self.bytes[self.used] = value as u8;
        self.used += 1;
    }

    fn put_number(&mut self, key: u64, value: u64) {
        self.put_varint(key);
        self.put_varint(value);
    }

    fn put_slice(&mut self, slice: &[u8]) {
        self.bytes[self.used..self.used + slice.len()].copy_from_slice(slice);
        self.used += slice.len();
    }

    /// Header and outer status.
    fn put_head(&mut self, txn_id: u64, operation: OperationType, code: ErrorCode) {
        self.put_header(txn_id, operation);
        self.put_number(NUMBER_2, code.v3() as u64);
    }

    fn put_header(&mut self, txn_id: u64, operation: OperationType) {
        let mut header = Scratch::new();
        header.put_number(NUMBER_1, ProtocolVersion::VersionThree as u64);
        header.put_number(NUMBER_2, operation as u64);
        header.put_number(NUMBER_3, txn_id);
        self.put_varint(HEADER);
        self.put_varint(header.size_bytes() as u64);
        self.put_slice(header.bytes());
    }

    /// Inner status and ids.
    fn put_ids(&mut self, code: ErrorCode, ledger_id: i64, entry_id: i64) {
        self.put_number(NUMBER_1, code.v3() as u64);
        self.put_number(NUMBER_2, ledger_id as u64);
        self.put_number(NUMBER_3, entry_id as u64);
    }

    /// Appends a frame that begins with this, then `next`; `more_bytes` are to follow.
    fn put_framed(&self, next: &[u8], more_bytes: usize, out: &mut impl BufMut) {
        frame::put_length(self.used + next.len() + more_bytes, out);
        out.put_slice(self.bytes());
        out.put_slice(next);
    }
}
