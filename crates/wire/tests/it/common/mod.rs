//! Parts that several tests of the codecs share: generated requests and responses, captures, checks.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod checks;
pub mod golden;
pub mod messages;
pub mod slow;

use bindery_types::MasterKey;
use bindery_wire::ErrorCode;
use bindery_wire::v2::{self, Add, Auth, BatchRead, Flags, Read};
use proptest::prelude::*;

/// A request that owns its bytes.
#[derive(Debug, Clone)]
pub enum OwnedRequest {
    Add { version: i8, flags: Flags, master_key: MasterKey, body: Vec<u8> },
    Read(Read),
    BatchRead(BatchRead),
    Auth { version: i8, flags: Flags, message: Vec<u8> },
}

impl OwnedRequest {
    pub fn borrowed(&self) -> v2::Request<'_> {
        match self {
            OwnedRequest::Add { version, flags, master_key, body } => {
                let add = Add::new(*flags, *master_key, body).expect("bodies are generated long enough");
                v2::Request::Add(Add { version: *version, ..add })
            }
            OwnedRequest::Read(read) => v2::Request::Read(*read),
            OwnedRequest::BatchRead(read) => v2::Request::BatchRead(*read),
            OwnedRequest::Auth { version, flags, message } => {
                v2::Request::Auth(Auth { version: *version, flags: *flags, message })
            }
        }
    }
}

pub fn encoded_request(request: &v2::Request<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    request.encode(&mut out);
    out
}

pub fn encoded_response(response: &v2::Response<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    response.encode(&mut out);
    out
}

/// Edge values as often as arbitrary ones.
pub fn id() -> impl Strategy<Value = i64> {
    prop_oneof![Just(-1), Just(0), Just(i64::MAX), Just(i64::MIN), Just(-0x1000), any::<i64>()]
}

pub fn master_key() -> impl Strategy<Value = MasterKey> {
    any::<[u8; 20]>().prop_map(MasterKey::new)
}

pub fn bytes(size: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), size)
}

/// Version 0 has no flags.
fn version_and_flags() -> impl Strategy<Value = (i8, Flags)> {
    (0i8..=2, prop_oneof![0u16..8, any::<u16>()])
        .prop_map(|(version, bits)| (version, Flags::from_bits(if version == 0 { 0 } else { bits })))
}

fn key_if_due(version: i8, flags: Flags, key: MasterKey) -> Option<MasterKey> {
    (version >= 2 && flags.contains(Flags::DO_FENCING)).then_some(key)
}

pub fn request() -> impl Strategy<Value = OwnedRequest> {
    let add =
        (version_and_flags(), master_key(), bytes(24..120)).prop_map(|((version, flags), key, body)| {
            OwnedRequest::Add { version, flags, master_key: key, body }
        });
    let read = (version_and_flags(), master_key(), id(), id()).prop_map(
        |((version, flags), key, ledger_id, entry_id)| {
            let master_key = key_if_due(version, flags, key);
            OwnedRequest::Read(Read { version, flags, ledger_id, entry_id, master_key })
        },
    );
    let limits = (any::<i32>(), any::<i64>(), 1..=i32::MAX as u32);
    let batch = (version_and_flags(), master_key(), id(), id(), id(), limits).prop_map(
        |(
            (version, flags),
            key,
            ledger_id,
            start_entry_id,
            request_id,
            (max_count, max_size_bytes, stride),
        )| {
            let master_key = key_if_due(version, flags, key);
            let stride = if flags.contains(Flags::STRIDE) { stride } else { 1 };
            OwnedRequest::BatchRead(BatchRead {
                version,
                flags,
                ledger_id,
                start_entry_id,
                request_id,
                max_count,
                max_size_bytes,
                master_key,
                stride,
            })
        },
    );
    let auth = (version_and_flags(), bytes(0..60))
        .prop_map(|((version, flags), message)| OwnedRequest::Auth { version, flags, message });
    prop_oneof![add, read, batch, auth]
}

pub fn error_code() -> impl Strategy<Value = ErrorCode> {
    prop::sample::select(&ErrorCode::ALL[..])
}

/// A response frame and the values that went in.
#[derive(Debug, Clone)]
pub enum OwnedResponse {
    Add {
        version: i8,
        code: ErrorCode,
        ledger_id: i64,
        entry_id: i64,
    },
    Read {
        version: i8,
        ledger_id: i64,
        entry_id: i64,
        body: Vec<u8>,
    },
    BatchRead {
        version: i8,
        ledger_id: i64,
        start_entry_id: i64,
        request_id: i64,
        is_strided: bool,
        entries: Vec<Vec<u8>>,
    },
    Error {
        version: i8,
        request: v2::Correlation,
        code: ErrorCode,
    },
    Auth {
        version: i8,
        message: Vec<u8>,
    },
}

impl OwnedResponse {
    /// The frame as the server's functions write it.
    pub fn frame(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            OwnedResponse::Add { version, code, ledger_id, entry_id } => {
                v2::put_add_response(*version, *code, *ledger_id, *entry_id, &mut out);
            }
            OwnedResponse::Read { version, ledger_id, entry_id, body } => {
                v2::put_read_response(*version, *ledger_id, *entry_id, body, &mut out);
            }
            OwnedResponse::BatchRead {
                version,
                ledger_id,
                start_entry_id,
                request_id,
                is_strided,
                entries,
            } => {
                let entries = entries.iter().map(Vec::as_slice);
                v2::put_batch_read_response(
                    *version,
                    *ledger_id,
                    *start_entry_id,
                    *request_id,
                    *is_strided,
                    entries,
                    &mut out,
                );
            }
            OwnedResponse::Error { version, request, code } => {
                v2::put_error_response(*version, *request, *code, &mut out);
            }
            OwnedResponse::Auth { version, message } => v2::put_auth_response(*version, message, &mut out),
        }
        out
    }
}

pub fn response() -> impl Strategy<Value = OwnedResponse> {
    let add = (0i8..=2, error_code(), id(), id()).prop_map(|(version, code, ledger_id, entry_id)| {
        OwnedResponse::Add { version, code, ledger_id, entry_id }
    });
    let read = (0i8..=2, id(), id(), bytes(0..80)).prop_map(|(version, ledger_id, entry_id, body)| {
        OwnedResponse::Read { version, ledger_id, entry_id, body }
    });
    let entries = prop::collection::vec(bytes(0..40), 0..6);
    let batch = (0i8..=2, id(), id(), id(), any::<bool>(), entries).prop_map(
        |(version, ledger_id, start_entry_id, request_id, is_strided, entries)| OwnedResponse::BatchRead {
            version,
            ledger_id,
            start_entry_id,
            request_id,
            // Version 0 has no flags.
            is_strided: is_strided && version > 0,
            entries,
        },
    );
    let error = (any::<i8>(), id(), id(), id(), 0..3, error_code()).prop_map(
        |(version, ledger_id, entry_id, request_id, which, code)| {
            // A success of these two has a body; `Io` is as good an error as any.
            let code = if code == ErrorCode::Ok { ErrorCode::Io } else { code };
            let request = match which {
                0 => v2::Correlation::Add { ledger_id, entry_id },
                1 => v2::Correlation::Read { ledger_id, entry_id },
                _ => v2::Correlation::BatchRead { ledger_id, start_entry_id: entry_id, request_id },
            };
            OwnedResponse::Error { version, request, code }
        },
    );
    let auth =
        (0i8..=2, bytes(0..60)).prop_map(|(version, message)| OwnedResponse::Auth { version, message });
    prop_oneof![add, read, batch, error, auth]
}
