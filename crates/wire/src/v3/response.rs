//! Constructors of v3 responses. Each gives the same status outside and inside, and includes the body with its ids also
//! on failure: released clients take the ids for their callbacks from it (protocol reference, section 2.2).

use bytes::Bytes;

use super::proto::{self, OperationType};
use super::reconcile::Reconciled;
use crate::ErrorCode;

/// A response with header and status only: for operations without a body to answer, and for requests on a connection
/// that has not authenticated.
pub fn without_body(txn_id: u64, operation: OperationType, code: ErrorCode) -> proto::Response {
    let header = proto::BkPacketHeader {
        version: proto::ProtocolVersion::VersionThree as i32,
        operation: operation as i32,
        txn_id,
        priority: None,
    };
    proto::Response { header, status: code.v3(), ..Default::default() }
}

/// ADD_ENTRY, of success or failure.
pub fn add(txn_id: u64, code: ErrorCode, ledger_id: i64, entry_id: i64) -> proto::Response {
    let body = proto::AddResponse { status: code.v3(), ledger_id, entry_id };
    proto::Response { add_response: Some(body), ..without_body(txn_id, OperationType::AddEntry, code) }
}

/// The result of a successful READ_ENTRY; which fields are set depends on the kind of read (protocol reference, section
/// 2.4).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadResult {
    /// The stored entry; absent when a long poll ends without one.
    pub body: Option<Bytes>,
    /// The last add confirmed the bookie knows; absent in answers to fencing reads.
    pub max_lac: Option<i64>,
    /// When that was learnt, in milliseconds since 1970; set by a long poll that an update woke.
    pub lac_update_timestamp_ms: Option<i64>,
}

/// READ_ENTRY, of success. `entry_id` is the request's (so -1 for "last"), except after a long poll: what it read.
pub fn read(txn_id: u64, ledger_id: i64, entry_id: i64, result: ReadResult) -> proto::Response {
    let body = proto::ReadResponse {
        status: ErrorCode::Ok.v3(),
        ledger_id,
        entry_id,
        body: result.body,
        max_lac: result.max_lac,
        lac_update_timestamp: result.lac_update_timestamp_ms,
    };
    proto::Response {
        read_response: Some(body),
        ..without_body(txn_id, OperationType::ReadEntry, ErrorCode::Ok)
    }
}

/// READ_ENTRY, of failure.
pub fn read_failure(txn_id: u64, code: ErrorCode, ledger_id: i64, entry_id: i64) -> proto::Response {
    let body = proto::ReadResponse { status: code.v3(), ledger_id, entry_id, ..Default::default() };
    proto::Response { read_response: Some(body), ..without_body(txn_id, OperationType::ReadEntry, code) }
}

/// WRITE_LAC, of success or failure.
pub fn write_lac(txn_id: u64, code: ErrorCode, ledger_id: i64) -> proto::Response {
    let body = proto::WriteLacResponse { status: code.v3(), ledger_id };
    proto::Response { write_lac_response: Some(body), ..without_body(txn_id, OperationType::WriteLac, code) }
}

/// READ_LAC, of success or failure: the last explicit LAC (last add confirmed) and the last entry, whichever exist.
pub fn read_lac(
    txn_id: u64,
    code: ErrorCode,
    ledger_id: i64,
    lac_body: Option<Bytes>,
    last_entry_body: Option<Bytes>,
) -> proto::Response {
    let body = proto::ReadLacResponse { status: code.v3(), ledger_id, lac_body, last_entry_body };
    proto::Response { read_lac_response: Some(body), ..without_body(txn_id, OperationType::ReadLac, code) }
}

/// FORCE_LEDGER, of success or failure.
pub fn force_ledger(txn_id: u64, code: ErrorCode, ledger_id: i64) -> proto::Response {
    let body = proto::ForceLedgerResponse { status: code.v3(), ledger_id };
    proto::Response {
        force_ledger_response: Some(body),
        ..without_body(txn_id, OperationType::ForceLedger, code)
    }
}

/// GET_BOOKIE_INFO, of success or failure. Only the requested fields are set.
pub fn get_bookie_info(
    txn_id: u64,
    code: ErrorCode,
    total_bytes: Option<i64>,
    free_bytes: Option<i64>,
) -> proto::Response {
    let body = proto::GetBookieInfoResponse {
        status: code.v3(),
        total_disk_capacity: total_bytes,
        free_disk_space: free_bytes,
    };
    proto::Response {
        get_bookie_info_response: Some(body),
        ..without_body(txn_id, OperationType::GetBookieInfo, code)
    }
}

/// GET_LIST_OF_ENTRIES_OF_LEDGER, of success or failure; the list is [`crate::EntryAvailability::encode`]d.
pub fn get_list_of_entries(
    txn_id: u64,
    code: ErrorCode,
    ledger_id: i64,
    availability: Option<Bytes>,
) -> proto::Response {
    let body = proto::GetListOfEntriesOfLedgerResponse {
        status: code.v3(),
        ledger_id,
        availability_of_entries_of_ledger: availability,
    };
    proto::Response {
        get_list_of_entries_of_ledger_response: Some(body),
        ..without_body(txn_id, OperationType::GetListOfEntriesOfLedger, code)
    }
}

/// AUTH, of success or of a further step. A failure is `without_body(.., Unauthorized)`, then the connection closes.
pub fn auth(txn_id: u64, message: proto::AuthMessage) -> proto::Response {
    proto::Response {
        auth_response: Some(message),
        ..without_body(txn_id, OperationType::Auth, ErrorCode::Ok)
    }
}

/// START_TLS, of success or failure.
pub fn start_tls(txn_id: u64, code: ErrorCode) -> proto::Response {
    proto::Response {
        start_tls_response: Some(proto::StartTlsResponse {}),
        ..without_body(txn_id, OperationType::StartTls, code)
    }
}

/// RECONCILE_LEDGERS, of success or failure; without results unless it succeeded.
pub fn reconcile_ledgers(txn_id: u64, code: ErrorCode, results: Vec<Reconciled>) -> proto::Response {
    let results = results.into_iter().map(Reconciled::into_message).collect();
    let body = proto::ReconcileLedgersResponse { status: code.v3(), results };
    proto::Response {
        reconcile_ledgers_response: Some(body),
        ..without_body(txn_id, OperationType::ReconcileLedgers, code)
    }
}
