//! v3 requests: an operation together with its body (protocol reference, sections 2.2 and 2.3).

use bytes::Bytes;
use prost::Message;

use super::proto::{self, OperationType};
use super::reconcile::MESSAGE_SIZE_BYTES_MAX;
use super::{DecodeError, check_header, required, response};
use crate::ErrorCode;

/// A v3 request that we serve.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The client's correlation id; echoed.
    pub txn_id: u64,
    /// Above zero: serve ahead of ordinary traffic.
    pub priority: u32,
    /// The operation to perform.
    pub operation: Operation,
}

/// The operations v3 has, each with its body. Ids in the bodies are raw.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// ADD_ENTRY
    Add(proto::AddRequest),
    /// READ_ENTRY: plain, fencing or long poll
    Read(proto::ReadRequest),
    /// AUTH
    Auth(proto::AuthMessage),
    /// WRITE_LAC
    WriteLac(proto::WriteLacRequest),
    /// READ_LAC
    ReadLac(proto::ReadLacRequest),
    /// FORCE_LEDGER
    ForceLedger(proto::ForceLedgerRequest),
    /// GET_BOOKIE_INFO
    GetBookieInfo(proto::GetBookieInfoRequest),
    /// GET_LIST_OF_ENTRIES_OF_LEDGER
    GetListOfEntries(proto::GetListOfEntriesOfLedgerRequest),
    /// START_TLS
    StartTls,
    /// RECONCILE_LEDGERS, of Bindery alone; see [`super::reconcile`]
    ReconcileLedgers(proto::ReconcileLedgersRequest),
}

impl Operation {
    /// The operation's number.
    pub fn kind(&self) -> OperationType {
        match self {
            Operation::Add(_) => OperationType::AddEntry,
            Operation::Read(_) => OperationType::ReadEntry,
            Operation::Auth(_) => OperationType::Auth,
            Operation::WriteLac(_) => OperationType::WriteLac,
            Operation::ReadLac(_) => OperationType::ReadLac,
            Operation::ForceLedger(_) => OperationType::ForceLedger,
            Operation::GetBookieInfo(_) => OperationType::GetBookieInfo,
            Operation::GetListOfEntries(_) => OperationType::GetListOfEntriesOfLedger,
            Operation::StartTls => OperationType::StartTls,
            Operation::ReconcileLedgers(_) => OperationType::ReconcileLedgers,
        }
    }

    /// `None` for an operation nobody serves, or one without its body.
    fn from_message(kind: OperationType, message: proto::Request) -> Option<Operation> {
        match kind {
            OperationType::AddEntry => message.add_request.map(Operation::Add),
            OperationType::ReadEntry => message.read_request.map(Operation::Read),
            OperationType::Auth => message.auth_request.map(Operation::Auth),
            OperationType::WriteLac => message.write_lac_request.map(Operation::WriteLac),
            OperationType::ReadLac => message.read_lac_request.map(Operation::ReadLac),
            OperationType::ForceLedger => message.force_ledger_request.map(Operation::ForceLedger),
            OperationType::GetListOfEntriesOfLedger => {
                message.get_list_of_entries_of_ledger_request.map(Operation::GetListOfEntries)
            }
            // These two bodies have no required field, so an absent one says the same as an empty one.
            OperationType::GetBookieInfo => {
                Some(Operation::GetBookieInfo(message.get_bookie_info_request.unwrap_or_default()))
            }
            OperationType::StartTls => Some(Operation::StartTls),
            OperationType::ReconcileLedgers => {
                message.reconcile_ledgers_request.map(Operation::ReconcileLedgers)
            }
            OperationType::RangeReadEntry | OperationType::RangeAddEntry | OperationType::BatchReadEntry => {
                None
            }
        }
    }
}

/// The number of the body of RECONCILE_LEDGERS.
const RECONCILE_FIELD: u32 = 1001;

/// `BadRequest`, of a well-formed message of which only the header may be decoded.
fn refuse_by_header(payload: &[u8]) -> DecodeError {
    let answer = || -> Result<proto::Response, DecodeError> {
        let header = required::last_body(payload, 1).unwrap_or_default();
        let header = proto::BkPacketHeader::decode(header)?;
        let (_, kind) = check_header(&header)?;
        Ok(response::without_body(header.txn_id, kind, ErrorCode::BadRequest))
    };
    answer().map_or_else(|error| error, |answer| DecodeError::Refused(Box::new(answer)))
}

impl Request {
    /// Decodes a frame's payload; bodies share it. A version other than THREE is refused with `BadVersion` in an otherwise
    /// normal response; operations 3, 4 and 12, an operation without its body, and a RECONCILE_LEDGERS above
    /// [`MESSAGE_SIZE_BYTES_MAX`], with `BadRequest` and no body.
    pub fn decode(payload: Bytes) -> Result<Request, DecodeError> {
        required::check(&payload, &required::REQUEST)?;
        // Its parts take several times their bytes in memory (`reconcile`, invariant 3), so nothing of it is decoded.
        if required::body_size_bytes(&payload, RECONCILE_FIELD) > MESSAGE_SIZE_BYTES_MAX {
            return Err(refuse_by_header(&payload));
        }
        let message = proto::Request::decode(payload)?;
        let (version, kind) = check_header(&message.header)?;
        let (txn_id, priority) = (message.header.txn_id, message.header.priority());
        let Some(operation) = Operation::from_message(kind, message) else {
            let code = match version {
                proto::ProtocolVersion::VersionThree => ErrorCode::BadRequest,
                proto::ProtocolVersion::VersionOne | proto::ProtocolVersion::VersionTwo => {
                    ErrorCode::BadVersion
                }
            };
            return Err(DecodeError::Refused(Box::new(response::without_body(txn_id, kind, code))));
        };
        let request = Request { txn_id, priority, operation };
        match version {
            proto::ProtocolVersion::VersionThree => Ok(request),
            proto::ProtocolVersion::VersionOne | proto::ProtocolVersion::VersionTwo => {
                Err(DecodeError::Refused(Box::new(request.failure(ErrorCode::BadVersion))))
            }
        }
    }

    /// The message to send, as a client does: `put_frame(&request.into_message(), out)`.
    pub fn into_message(self) -> proto::Request {
        let header = proto::BkPacketHeader {
            version: proto::ProtocolVersion::VersionThree as i32,
            operation: self.operation.kind() as i32,
            txn_id: self.txn_id,
            // Java leaves an ordinary priority out.
            priority: (self.priority > 0).then_some(self.priority),
        };
        let mut message = proto::Request { header, ..Default::default() };
        match self.operation {
            Operation::Add(body) => message.add_request = Some(body),
            Operation::Read(body) => message.read_request = Some(body),
            Operation::Auth(body) => message.auth_request = Some(body),
            Operation::WriteLac(body) => message.write_lac_request = Some(body),
            Operation::ReadLac(body) => message.read_lac_request = Some(body),
            Operation::ForceLedger(body) => message.force_ledger_request = Some(body),
            Operation::GetBookieInfo(body) => message.get_bookie_info_request = Some(body),
            Operation::GetListOfEntries(body) => message.get_list_of_entries_of_ledger_request = Some(body),
            Operation::StartTls => message.start_tls_request = Some(proto::StartTlsRequest {}),
            Operation::ReconcileLedgers(body) => message.reconcile_ledgers_request = Some(body),
        }
        message
    }

    /// The response that answers this request with a failure, ids included (module invariant 3).
    pub fn failure(&self, code: ErrorCode) -> proto::Response {
        let txn_id = self.txn_id;
        match &self.operation {
            Operation::Add(body) => response::add(txn_id, code, body.ledger_id, body.entry_id),
            Operation::Read(body) => response::read_failure(txn_id, code, body.ledger_id, body.entry_id),
            Operation::WriteLac(body) => response::write_lac(txn_id, code, body.ledger_id),
            Operation::ReadLac(body) => response::read_lac(txn_id, code, body.ledger_id, None, None),
            Operation::ForceLedger(body) => response::force_ledger(txn_id, code, body.ledger_id),
            Operation::GetBookieInfo(_) => response::get_bookie_info(txn_id, code, None, None),
            Operation::GetListOfEntries(body) => {
                response::get_list_of_entries(txn_id, code, body.ledger_id, None)
            }
            Operation::StartTls => response::start_tls(txn_id, code),
            Operation::ReconcileLedgers(_) => response::reconcile_ledgers(txn_id, code, Vec::new()),
            // Its body has no status and no ids, only the plugin's next token, and there is none.
            Operation::Auth(_) => response::without_body(txn_id, OperationType::Auth, code),
        }
    }
}
