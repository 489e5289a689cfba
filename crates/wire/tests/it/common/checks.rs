//! Properties that must hold for any bytes at all. `Err` names one that does not; a panic is a failure too. The
//! libFuzzer targets in the top-level `fuzz` folder include this file, so that both fuzzers check the same properties.

use bindery_wire::v2::{self, Correlation};
use bindery_wire::v3::{self, DecodeError};
use bindery_wire::{EntryAvailability, ErrorCode, FrameLimit, Protocol, entry, frame};
use bytes::{Bytes, BytesMut};

use super::slow::{self, Seen};

pub type Check = fn(&[u8]) -> Result<(), String>;

/// Every check, by name.
pub const ALL: [(&str, Check); 6] = [
    ("v2_request", v2_request),
    ("v2_response", v2_response),
    ("v3_request", v3_request),
    ("v3_response", v3_response),
    ("bodies", bodies),
    ("frames", frames),
];

fn same<T: PartialEq + std::fmt::Debug>(what: &str, left: T, right: T) -> Result<(), String> {
    if left == right { Ok(()) } else { Err(format!("{what}: {left:?} is not {right:?}")) }
}

/// Decoding a v2 request agrees with the slow decoder and survives the round trip; so does the refusal.
pub fn v2_request(packet: &[u8]) -> Result<(), String> {
    let decoded = v2::Request::decode(packet);
    same("slow decoder", seen_request(&decoded), slow::request(packet))?;
    let mut out = Vec::new();
    match decoded {
        Ok(request) => {
            request.encode(&mut out);
            same("length", frame::split(&out, FrameLimit::MAX), Ok(frame::Split::Frame(4..out.len())))?;
            same("round trip", v2::Request::decode(&out[4..]), Ok(request))
        }
        Err(error) => match error.refusal() {
            None => Ok(()),
            Some(refusal) => {
                refusal.encode(&mut out);
                v2_response(&out[4..])
            }
        },
    }
}

/// Decoding a v2 response agrees with the slow decoder and survives the round trip.
pub fn v2_response(packet: &[u8]) -> Result<(), String> {
    let decoded = v2::Response::decode(packet);
    same("slow decoder", seen_response(&decoded), slow::response(packet))?;
    let Ok(response) = decoded else { return Ok(()) };
    let mut out = Vec::new();
    response.encode(&mut out);
    same("length", frame::split(&out, FrameLimit::MAX), Ok(frame::Split::Frame(4..out.len())))?;
    same("round trip", v2::Response::decode(&out[4..]), Ok(sendable(response)))
}

/// We understand 107 and never send it.
fn sendable(mut response: v2::Response<'_>) -> v2::Response<'_> {
    if let v2::Response::Add { code, .. }
    | v2::Response::Read { code, .. }
    | v2::Response::BatchRead { code, .. } = &mut response
        && *code == ErrorCode::UnknownLedgerState
    {
        *code = ErrorCode::Io;
    }
    response
}

fn seen_request(decoded: &Result<v2::Request<'_>, v2::DecodeError>) -> Seen {
    let numbers = |all: &[i64]| all.iter().copied().map(i128::from).collect::<Vec<_>>();
    match decoded {
        Err(error) => error.refusal().map_or(Seen::Close, |refusal| {
            let head = [i64::from(refusal.version)];
            let tail = [i64::from(refusal.code.v2())];
            Seen::Refuse(numbers(&[&head[..], &correlation(refusal.correlation), &tail].concat()))
        }),
        Ok(v2::Request::Add(add)) => Seen::Packet {
            numbers: numbers(&[
                add.version.into(),
                1,
                add.flags.bits().into(),
                add.ledger_id,
                add.entry_id,
                add.last_add_confirmed,
            ]),
            key: Some(add.master_key.as_bytes().to_vec()),
            parts: vec![add.body.to_vec()],
        },
        Ok(v2::Request::Read(read)) => Seen::Packet {
            numbers: numbers(&[
                read.version.into(),
                2,
                read.flags.bits().into(),
                read.ledger_id,
                read.entry_id,
            ]),
            key: read.master_key.map(|key| key.as_bytes().to_vec()),
            parts: Vec::new(),
        },
        Ok(v2::Request::BatchRead(read)) => Seen::Packet {
            numbers: numbers(&[
                read.version.into(),
                7,
                read.flags.bits().into(),
                read.ledger_id,
                read.start_entry_id,
                read.request_id,
                read.max_count.into(),
                read.max_size_bytes,
                read.stride.into(),
            ]),
            key: read.master_key.map(|key| key.as_bytes().to_vec()),
            parts: Vec::new(),
        },
        Ok(v2::Request::Auth(auth)) => Seen::Packet {
            numbers: numbers(&[auth.version.into(), 3, auth.flags.bits().into()]),
            key: None,
            parts: vec![auth.message.to_vec()],
        },
    }
}

fn correlation(correlation: Correlation) -> Vec<i64> {
    match correlation {
        Correlation::Add { ledger_id, entry_id } => vec![1, ledger_id, entry_id],
        Correlation::Read { ledger_id, entry_id } => vec![2, ledger_id, entry_id],
        Correlation::BatchRead { ledger_id, start_entry_id, request_id } => {
            vec![7, ledger_id, start_entry_id, request_id]
        }
    }
}

fn seen_response(decoded: &Result<v2::Response<'_>, v2::ResponseError>) -> Seen {
    let code_number =
        |code: ErrorCode| if code == ErrorCode::UnknownLedgerState { 107 } else { i64::from(code.v2()) };
    let (numbers, parts) = match *decoded {
        Err(_) => return Seen::Close,
        Ok(v2::Response::Add { version, code, ledger_id, entry_id }) => {
            (vec![version.into(), 1, code_number(code), ledger_id, entry_id], Vec::new())
        }
        Ok(v2::Response::Read { version, code, ledger_id, entry_id, body }) => {
            (vec![version.into(), 2, code_number(code), ledger_id, entry_id], vec![body.to_vec()])
        }
        Ok(v2::Response::BatchRead {
            version,
            code,
            ledger_id,
            start_entry_id,
            request_id,
            is_strided,
            entries,
        }) => {
            let head = [version.into(), 7, code_number(code)];
            let numbers = [&head[..], &[ledger_id, start_entry_id, request_id, is_strided.into()]].concat();
            (numbers, entries.map(<[u8]>::to_vec).collect())
        }
        Ok(v2::Response::Auth { version, message }) => (vec![version.into(), 3], vec![message.to_vec()]),
    };
    Seen::Packet { numbers: numbers.into_iter().map(i128::from).collect(), key: None, parts }
}

/// A v3 request that decodes survives the round trip and cannot be taken for v2; a refusal is a good response.
pub fn v3_request(payload: &[u8]) -> Result<(), String> {
    let decoded = v3::Request::decode(Bytes::copy_from_slice(payload));
    let parsed = matches!(decoded, Ok(_) | Err(DecodeError::Refused(_)));
    if parsed && Protocol::of(payload) != Some(Protocol::V3) {
        return Err("a v3 request looks like v2".to_owned());
    }
    if let Some(hot) = v3::HotRequest::parse(payload) {
        same("by hand", Some(hot), decoded.as_ref().ok().and_then(hot_form))?;
    }
    let mut out = BytesMut::new();
    match decoded {
        Ok(request) => {
            v3::put_frame(&request.clone().into_message(), &mut out);
            same("round trip", v3::Request::decode(out.freeze().slice(4..)), Ok(request))
        }
        Err(DecodeError::Refused(response)) => {
            v3::put_frame(&*response, &mut out);
            same("refusal", v3::decode_response(out.freeze().slice(4..)), Ok(*response))
        }
        Err(_) => Ok(()),
    }
}

/// The form in which the hand-written reader must have parsed a request, if it may have parsed it at all.
pub fn hot_form(request: &v3::Request) -> Option<v3::HotRequest<'_>> {
    let v3::Request { txn_id, priority, operation } = request;
    let (txn_id, priority) = (*txn_id, *priority);
    match operation {
        v3::Operation::Add(add) if add.flag.is_none() || add.is_recovery_add() => {
            Some(v3::HotRequest::Add(v3::HotAdd {
                txn_id,
                priority,
                ledger_id: add.ledger_id,
                entry_id: add.entry_id,
                master_key: &add.master_key,
                body: &add.body,
                write_flags: add.write_flags,
                is_recovery: add.is_recovery_add(),
            }))
        }
        v3::Operation::Read(read) => {
            let v3::proto::ReadRequest { ledger_id, entry_id, master_key, previous_lac, time_out, flag } =
                read;
            let is_plain =
                master_key.is_none() && previous_lac.is_none() && time_out.is_none() && flag.is_none();
            let (ledger_id, entry_id) = (*ledger_id, *entry_id);
            is_plain.then_some(v3::HotRequest::Read(v3::HotRead { txn_id, priority, ledger_id, entry_id }))
        }
        _ => None,
    }
}

/// A v3 response that decodes survives the round trip and cannot be taken for v2.
pub fn v3_response(payload: &[u8]) -> Result<(), String> {
    let Ok(response) = v3::decode_response(Bytes::copy_from_slice(payload)) else { return Ok(()) };
    if Protocol::of(payload) != Some(Protocol::V3) {
        return Err("a v3 response looks like v2".to_owned());
    }
    let mut out = BytesMut::new();
    v3::put_frame(&response, &mut out);
    same("round trip", v3::decode_response(out.freeze().slice(4..)), Ok(response))
}

/// The bodies inside: entries, explicit LACs (last add confirmed), authentication, lists of entries.
pub fn bodies(bytes: &[u8]) -> Result<(), String> {
    same("entry", entry::EntryHeader::of(bytes).is_ok(), bytes.len() >= entry::ENTRY_SIZE_BYTES_MIN)?;
    let prefix = entry::EXPLICIT_LAC_PREFIX_SIZE_BYTES;
    same("explicit LAC", entry::ExplicitLac::of(bytes).is_ok(), bytes.len() >= prefix)?;
    if let Ok(message) = v3::decode_auth_message(bytes) {
        let mut out = BytesMut::new();
        v3::put_frame(&message, &mut out);
        same("authentication", v3::decode_auth_message(&out[4..]), Ok(message))?;
    }
    if let Ok(list) = EntryAvailability::decode(bytes) {
        let again = list.encode();
        same("size of the list of entries", again.len(), bytes.len())?;
        same("list of entries", EntryAvailability::decode(&again), Ok(list.clone()))?;
        same("an empty list of entries", list.entry_count() == 0, bytes.len() == 64)?;
    }
    Ok(())
}

/// The first byte says how to cut the rest into chunks; the frames must come out as from the whole.
pub fn frames(input: &[u8]) -> Result<(), String> {
    let limit = FrameLimit::MIN;
    let Some((&seed, stream)) = input.split_first() else { return Ok(()) };
    let (mut whole, mut expected, mut at) = (Vec::new(), Ok(()), 0);
    loop {
        match frame::split(&stream[at..], limit) {
            Ok(frame::Split::Frame(range)) => {
                whole.push(stream[at..][range.clone()].to_vec());
                at += range.end;
            }
            Ok(frame::Split::Incomplete { .. }) => break,
            Err(error) => {
                expected = Err(error);
                break;
            }
        }
    }
    let (mut buf, mut got, mut outcome) = (BytesMut::new(), Vec::new(), Ok(()));
    let mut chunk_size = 1 + usize::from(seed % 31);
    let mut rest = stream;
    'stream: while !rest.is_empty() {
        let (chunk, tail) = rest.split_at(chunk_size.min(rest.len()));
        chunk_size = 1 + (chunk_size * 7 + usize::from(seed)) % 97;
        rest = tail;
        buf.extend_from_slice(chunk);
        loop {
            match frame::take_payload(&mut buf, limit) {
                Ok(Some(payload)) if payload.len() + 4 > limit.size_bytes() => {
                    return Err(format!("a frame of {} bytes passed", payload.len()));
                }
                Ok(Some(payload)) => got.push(payload.to_vec()),
                Ok(None) => break,
                Err(error) => {
                    outcome = Err(error);
                    break 'stream;
                }
            }
        }
    }
    same("frames", got, whole)?;
    same("end of the stream", outcome, expected)
}
