//! The state kept of a request until it is answered, and the encoding of answers.
//!
//! The answer to an add must be encodable from what the engine carries ([`bindery_engine::Origin`]), without a look-up:
//!
//! ```text
//! Origin.tag   63          8 7        0
//!              +------------+----------+
//!              | received   | protocol |     received: nanoseconds >> 8, protocol: v2 version, or 3
//!              +------------+----------+
//! Origin.txn   v3: the client's txnId
//! ```

use crate::connection::reads::long_poll::PollRead;
use crate::read_class::ReadClass;
use crate::tier::{Failure, Waiting};
use bindery_engine::{Origin, Refusal};
use bindery_tiering::fetch::Fetched;
use bindery_types::LedgerId;
use bindery_types::tier::ObjectRef;
use bindery_wire::v3::{self, response};
use bindery_wire::{ErrorCode, v2};
use bytes::BytesMut;
use std::collections::VecDeque;

/// Room promised for a v3 answer without entry bytes: the largest, a long poll's, takes 79.
pub const V3_ANSWER_BYTES: usize = 96;
/// Room promised for a v2 answer without entry bytes, other than adds and AUTH: the largest, a batch read's, takes 36.
pub const V2_ANSWER_BYTES: usize = 40;

const PROTOCOL_V3: u64 = 3;

/// In which protocol, and under which name, a request wants its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// The binary protocol.
    V2 {
        /// 0 to 2, echoed.
        version: i8,
    },
    /// The protobuf protocol.
    V3 {
        /// Echoed.
        txn: u64,
    },
}

impl Reply {
    /// True for the binary protocol, whose clients match answers by ledger and entry.
    pub fn is_v2(self) -> bool {
        matches!(self, Reply::V2 { .. })
    }

    /// Room to promise for the answer to an add.
    pub fn add_answer_bytes(self) -> usize {
        match self {
            Reply::V2 { .. } => v2::ADD_RESPONSE_SIZE_BYTES,
            Reply::V3 { .. } => V3_ANSWER_BYTES,
        }
    }

    /// Room to promise for the answer to anything else.
    pub fn answer_bytes(self) -> usize {
        match self {
            Reply::V2 { .. } => V2_ANSWER_BYTES,
            Reply::V3 { .. } => V3_ANSWER_BYTES,
        }
    }

    /// What the engine carries for an add.
    pub fn origin(self, connection: u64, received_ns: u64) -> Origin {
        let (protocol, txn) = match self {
            Reply::V2 { version } => (version as u64, 0),
            Reply::V3 { txn } => (PROTOCOL_V3, txn),
        };
        Origin { connection, txn, tag: (received_ns & !0xff) | protocol }
    }

    /// The inverse of [`Reply::origin`]: the reply, and when the request was received (256 ns resolution).
    pub fn of_origin(origin: &Origin) -> (Reply, u64) {
        let received_ns = origin.tag & !0xff;
        match origin.tag & 0xff {
            PROTOCOL_V3 => (Reply::V3 { txn: origin.txn }, received_ns),
            version => (Reply::V2 { version: version as i8 }, received_ns),
        }
    }

    /// Appends the answer to an add.
    pub fn put_add(self, code: ErrorCode, ledger: i64, entry: i64, out: &mut BytesMut) {
        match self {
            Reply::V2 { version } => v2::put_add_response(version, code, ledger, entry, out),
            Reply::V3 { txn } => v3::put_add_response(txn, code, ledger, entry, out),
        }
    }
}

/// What kind of read a descriptor stands for.
#[derive(Debug, PartialEq)]
pub enum ReadKind {
    /// One entry, or the last one.
    Entry,
    /// A run of entries (v2 only).
    Batch(Box<v2::BatchRead>),
    /// The end of a long poll (v3 only).
    Poll(Box<PollRead>),
    /// READ_LAC (v3 only).
    Lac,
    /// GET_LIST_OF_ENTRIES_OF_LEDGER (v3 only).
    List,
    /// GET_BOOKIE_INFO (v3 only).
    Info(bindery_wire::v3::proto::GetBookieInfoRequest),
}

/// A read that waits for its turn: about 80 bytes, no entry bytes.
#[derive(Debug, PartialEq)]
pub struct ReadRequest {
    /// Unique on its connection, in arrival order.
    pub seq: u64,
    /// What to do.
    pub kind: ReadKind,
    /// The ledger.
    pub ledger: LedgerId,
    /// As on the wire: -1 for the last entry, echoed.
    pub entry: i64,
    /// How to answer.
    pub reply: Reply,
    /// When it came to this machine.
    pub received_ns: u64,
    /// When its turn came last; 0 before.
    pub started_ns: u64,
    /// Since when it waits to be read: when it came, or when its long poll ended.
    pub waits_since_ns: u64,
    /// Room promised for an answer without entry bytes.
    pub promised: usize,
    /// The ledger is being fenced; the answer waits until that is durable, whatever it says (section 4.3).
    pub is_fence: bool,
    /// Which pools and queues it uses.
    pub class: ReadClass,
    /// Bytes of the entry, once known; 0 before.
    pub size_hint: usize,
    /// How the last wait ended: the fence, or an entry becoming durable.
    pub wait_outcome: Option<Result<(), Refusal>>,
    /// Of one whose entry is in object storage.
    pub tier: Option<Box<TierRead>>,
    /// Its answer has bytes from object storage, which are not to be had again at once.
    pub is_from_tier: bool,
}

/// How far a read is whose entry is in object storage. To be dropped without the lock of the read queue: that may call others
/// back.
#[derive(Debug, Default)]
pub struct TierRead {
    /// Number of its parking, while it is parked.
    pub parked: u64,
    /// Its place among those that wait, while it is parked.
    pub waiting: Option<Waiting>,
    /// The entry that came, and the epoch of the ledger for which it was asked.
    pub arrived: Option<(Fetched, u32)>,
    /// Why none came, and the object that was asked.
    pub failed: Option<(Failure, Option<ObjectRef>)>,
    /// A failure has been followed by a second look already.
    pub has_looked_again: bool,
}

/// Descriptors are compared in tests, where none of them has this.
impl PartialEq for TierRead {
    fn eq(&self, other: &TierRead) -> bool {
        self.parked == other.parked && self.failed == other.failed
    }
}

impl ReadRequest {
    /// True when it may come to be too old. Fencing and what is of high priority may not: a recovery that is put off comes
    /// again and takes as long.
    pub fn has_maximum_age(&self) -> bool {
        !self.class.is_priority() && !self.is_fence
    }

    /// True when both are plain reads of an entry each, `next` of the one behind this one's, and `next` has not waited
    /// longer: what can be read together.
    pub fn is_followed_by(&self, next: &ReadRequest) -> bool {
        let is_plain = |request: &ReadRequest| {
            matches!(request.kind, ReadKind::Entry)
                && request.entry >= 0
                && !request.is_fence
                && !request.class.is_priority()
                && request.wait_outcome.is_none()
                && request.tier.is_none()
        };
        self.ledger == next.ledger
            && self.entry.checked_add(1) == Some(next.entry)
            && self.waits_since_ns <= next.waits_since_ns
            && is_plain(self)
            && is_plain(next)
    }

    /// How many requests at the front of `queue` follow this one, each the one before it; at most `most`.
    pub fn count_following(&self, queue: &VecDeque<ReadRequest>, most: usize) -> usize {
        let pairs = std::iter::once(self).chain(queue).zip(queue.iter().take(most));
        pairs.take_while(|(before, next)| before.is_followed_by(next)).count()
    }

    /// Takes the request at the front of `queue` when it follows this one.
    pub fn take_following(&self, queue: &mut VecDeque<ReadRequest>) -> Option<ReadRequest> {
        queue.front().filter(|next| self.is_followed_by(next))?;
        queue.pop_front()
    }

    /// Appends a failure, ids included, in the form of the operation.
    pub fn put_failure(&self, code: ErrorCode, out: &mut BytesMut) {
        let ledger = self.ledger.get();
        match (self.reply, &self.kind) {
            (Reply::V2 { version }, ReadKind::Batch(batch)) => {
                let request = v2::Correlation::BatchRead {
                    ledger_id: ledger,
                    start_entry_id: batch.start_entry_id,
                    request_id: batch.request_id,
                };
                v2::put_error_response(version, request, code, out);
            }
            (Reply::V2 { version }, _) => {
                let request = v2::Correlation::Read { ledger_id: ledger, entry_id: self.entry };
                v2::put_error_response(version, request, code, out);
            }
            (Reply::V3 { txn }, kind) => {
                let message = match kind {
                    ReadKind::Entry | ReadKind::Batch(_) | ReadKind::Poll(_) => {
                        response::read_failure(txn, code, ledger, self.entry)
                    }
                    ReadKind::Lac => response::read_lac(txn, code, ledger, None, None),
                    ReadKind::List => response::get_list_of_entries(txn, code, ledger, None),
                    ReadKind::Info(_) => response::get_bookie_info(txn, code, None, None),
                };
                v3::put_frame(&message, out);
            }
        }
    }
}

#[cfg(test)]
impl ReadRequest {
    /// A plain v2 read of an entry of the lowest ledger.
    pub fn for_test(seq: u64, entry: i64) -> ReadRequest {
        ReadRequest {
            seq,
            kind: ReadKind::Entry,
            ledger: LedgerId::MIN,
            entry,
            reply: Reply::V2 { version: 2 },
            received_ns: 0,
            started_ns: 0,
            waits_since_ns: 0,
            promised: 28,
            is_fence: false,
            class: ReadClass::Plain,
            size_hint: 0,
            wait_outcome: None,
            tier: None,
            is_from_tier: false,
        }
    }
}

/// The wire code of a refused add (section 4.2): limbo is an I/O error, because unauthorised would kill the writer.
pub fn add_code(refusal: Refusal) -> ErrorCode {
    match refusal {
        Refusal::Unknown => ErrorCode::Io,
        other => code(other),
    }
}

/// The wire code of anything refused (sections 1.6, 4.2 to 4.4). On v2, "unknown" leaves as an I/O error.
pub fn code(refusal: Refusal) -> ErrorCode {
    match refusal {
        Refusal::NoLedger => ErrorCode::NoLedger,
        Refusal::NoEntry => ErrorCode::NoEntry,
        Refusal::WrongKey => ErrorCode::Unauthorized,
        Refusal::Fenced => ErrorCode::Fenced,
        Refusal::ReadOnly => ErrorCode::ReadOnly,
        // What passes, as far as a client can tell: never an absence.
        Refusal::Io | Refusal::Tiered => ErrorCode::Io,
        Refusal::TooManyRequests => ErrorCode::TooManyRequests,
        Refusal::BadRequest => ErrorCode::BadRequest,
        Refusal::Unknown => ErrorCode::UnknownLedgerState,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_its_code() {
        use Refusal::*;
        let table = [
            (NoLedger, 1, 402),
            (NoEntry, 2, 403),
            (WrongKey, 102, 502),
            (Fenced, 104, 504),
            (ReadOnly, 105, 505),
            (Io, 101, 501),
            (Tiered, 101, 501),
            (TooManyRequests, 106, 506),
            (BadRequest, 100, 404),
            (Unknown, 101, 507),
        ];
        for (refusal, v2, v3) in table {
            assert_eq!((code(refusal).v2(), code(refusal).v3()), (v2, v3), "{refusal:?}");
            let of_add = if refusal == Unknown { ErrorCode::Io } else { code(refusal) };
            assert_eq!(add_code(refusal), of_add, "{refusal:?}");
        }
    }

    #[test]
    fn an_origin_remembers_protocol_and_time() {
        for reply in [Reply::V2 { version: 0 }, Reply::V2 { version: 2 }, Reply::V3 { txn: u64::MAX }] {
            let origin = reply.origin(7, 123_456_789);
            assert_eq!(Reply::of_origin(&origin), (reply, 123_456_789 & !0xff));
        }
    }

    #[test]
    fn answers_without_entry_bytes_fit_their_promise() {
        let mut out = BytesMut::new();
        let lac = Some(i64::MAX);
        let result = response::ReadResult { body: None, max_lac: lac, lac_update_timestamp_ms: lac };
        v3::put_frame(&response::read(u64::MAX, i64::MAX, -1, result), &mut out);
        assert!(out.len() <= V3_ANSWER_BYTES, "{}", out.len());
        for kind in [ReadKind::Entry, ReadKind::Lac, ReadKind::List, ReadKind::Info(Default::default())] {
            for reply in [Reply::V2 { version: 2 }, Reply::V3 { txn: u64::MAX }] {
                let mut out = BytesMut::new();
                let request = ReadRequest { ledger: LedgerId::MAX, reply, ..ReadRequest::for_test(0, -1) };
                if reply.is_v2() && kind != ReadKind::Entry {
                    continue;
                }
                request.put_failure(ErrorCode::UnknownLedgerState, &mut out);
                assert!(out.len() <= reply.answer_bytes(), "{kind:?} {}", out.len());
            }
        }
        let mut out = BytesMut::new();
        let auth = response::auth(u64::MAX, v3::auth_disabled_message());
        v3::put_frame(&auth, &mut out);
        assert!(out.len() <= V3_ANSWER_BYTES, "{}", out.len());
    }
}
