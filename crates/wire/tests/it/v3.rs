//! The v3 codec: round trips of every message, presence of required fields, refusals, damaged messages.

use crate::common::error_code;
use crate::common::messages::{request, response as any_response};
use bindery_wire::v3::proto::{self, OperationType, ProtocolVersion};
use bindery_wire::v3::response;
use bindery_wire::v3::{self, DecodeError, Operation, Request};
use bindery_wire::{ErrorCode, FrameLimit, Protocol, frame};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use prost::Message;

fn framed(message: &impl Message) -> Bytes {
    let mut out = BytesMut::new();
    v3::put_frame(message, &mut out);
    out.freeze()
}

fn payload(message: &impl Message) -> Bytes {
    framed(message).slice(4..)
}

/// Status and ids inside the body of a response, for the bodies that have them.
fn inner(response: &proto::Response) -> Option<(i32, Option<i64>, Option<i64>)> {
    let proto::Response {
        header: _,
        status: _,
        read_response,
        add_response,
        auth_response: _,
        write_lac_response,
        read_lac_response,
        get_bookie_info_response,
        start_tls_response: _,
        force_ledger_response,
        get_list_of_entries_of_ledger_response,
        reconcile_ledgers_response,
    } = response;
    let read = read_response.as_ref().map(|r| (r.status, Some(r.ledger_id), Some(r.entry_id)));
    let add = add_response.as_ref().map(|r| (r.status, Some(r.ledger_id), Some(r.entry_id)));
    let write_lac = write_lac_response.as_ref().map(|r| (r.status, Some(r.ledger_id), None));
    let read_lac = read_lac_response.as_ref().map(|r| (r.status, Some(r.ledger_id), None));
    let info = get_bookie_info_response.as_ref().map(|r| (r.status, None, None));
    let force = force_ledger_response.as_ref().map(|r| (r.status, Some(r.ledger_id), None));
    let list = get_list_of_entries_of_ledger_response.as_ref().map(|r| (r.status, Some(r.ledger_id), None));
    let reconcile = reconcile_ledgers_response.as_ref().map(|r| (r.status, None, None));
    read.or(add).or(write_lac).or(read_lac).or(info).or(force).or(list).or(reconcile)
}

/// A Java client's add, taken apart by hand: the tags, their order and the always-written zeros.
#[test]
fn an_add_is_laid_out_as_the_protocol_says() {
    let add = proto::AddRequest {
        ledger_id: 1,
        entry_id: 0,
        master_key: Bytes::from_static(b"k"),
        body: Bytes::from_static(b"body"),
        write_flags: None,
        flag: Some(proto::add_request::Flag::RecoveryAdd as i32),
    };
    let message = Request { txn_id: 300, priority: 0, operation: Operation::Add(add) }.into_message();
    let expected: &[u8] = &[
        0, 0, 0, 28, // frame length
        0x0a, 7, 0x08, 3, 0x10, 2, 0x18, 0xac, 0x02, // header: VERSION_THREE, ADD_ENTRY, txnId 300
        0xaa, 0x06, 16, // field 101, 16 bytes
        0x08, 1, 0x10, 0, // ledgerId, entryId
        0x1a, 1, b'k', 0x22, 4, b'b', b'o', b'd', b'y', // masterKey, body
        0xa0, 0x06, 1, // flag, field 100
    ];
    assert_eq!(framed(&message), expected);
}

/// Crate invariant 3 and module invariant 4.
#[test]
fn the_body_of_an_add_is_shared_with_its_frame() {
    let add = proto::AddRequest { body: Bytes::from(vec![9; 1000]), ..Default::default() };
    let bytes = payload(&Request { txn_id: 1, priority: 0, operation: Operation::Add(add) }.into_message());
    let Ok(Request { operation: Operation::Add(add), .. }) = Request::decode(bytes.clone()) else {
        panic!("an add")
    };
    assert!(bytes.as_ptr_range().contains(&add.body.as_ptr()));
    assert_eq!(add.body, vec![9; 1000]);
}

#[test]
fn operations_nobody_serves_are_refused_with_header_and_status_only() {
    for kind in [OperationType::RangeReadEntry, OperationType::RangeAddEntry, OperationType::BatchReadEntry] {
        let header = proto::BkPacketHeader {
            version: ProtocolVersion::VersionThree as i32,
            operation: kind as i32,
            txn_id: 5,
            priority: Some(100),
        };
        let error = Request::decode(payload(&proto::Request { header, ..Default::default() })).unwrap_err();
        let expected = response::without_body(5, kind, ErrorCode::BadRequest);
        assert_eq!(error.refusal(), Some(&expected));
        assert_eq!((expected.status, expected.header.priority), (404, None));
    }
}

#[test]
fn another_version_is_refused_with_the_ids_of_the_request() {
    let read = proto::ReadRequest { ledger_id: 4, entry_id: -1, ..Default::default() };
    let mut message = Request { txn_id: 6, priority: 0, operation: Operation::Read(read) }.into_message();
    message.header.version = ProtocolVersion::VersionTwo as i32;
    let error = Request::decode(payload(&message)).unwrap_err();
    assert_eq!(error.refusal(), Some(&response::read_failure(6, ErrorCode::BadVersion, 4, -1)));
}

#[test]
fn an_operation_without_its_body_is_a_bad_request() {
    let add = Operation::Add(proto::AddRequest::default());
    let mut message = Request { txn_id: 7, priority: 0, operation: add }.into_message();
    message.add_request = None;
    message.read_request = Some(proto::ReadRequest::default());
    let error = Request::decode(payload(&message)).unwrap_err();
    let expected = response::without_body(7, OperationType::AddEntry, ErrorCode::BadRequest);
    assert_eq!(error.refusal(), Some(&expected));
}

/// A frame of the client's logging context would take ten times its bytes in memory: it is skipped, once it is whole.
#[test]
fn the_logging_context_of_a_request_is_not_kept() {
    let pair = [0xc2, 0x0c, 4, 0x0a, 0, 0x12, 0];
    let operation = Operation::ReadLac(proto::ReadLacRequest { ledger_id: 5 });
    let message = Request { txn_id: 7, priority: 0, operation }.into_message();
    let alone = payload(&message);
    let with_pairs = [&alone[..], &pair.repeat(100_000)].concat();
    assert_eq!(proto::Request::decode(&with_pairs[..]).unwrap(), message);
    assert!(Request::decode(with_pairs.into()).is_ok());
    let half = [&alone[..], &pair[..5]].concat();
    assert!(Request::decode(half.into()).is_err());
}

/// Module invariant 1: dropping any one required field makes the message malformed, as it does for Java.
#[test]
fn a_missing_required_field_closes_the_connection() {
    let header = [0x0a, 6, 0x08, 3, 0x10, 2, 0x18, 1];
    // RECONCILE_LEDGERS, down to the parts of its parts.
    let reconcile = |body: &[u8]| [&[0xca, 0x3e, body.len() as u8], body].concat();
    let cluster = [&[0x0a, 16][..], &[7; 16]].concat();
    let without_cluster = reconcile(&[]);
    let without_tag = reconcile(
        &[&cluster[..], &[0x12, 27, 0x0a, 16], &[7; 16], &[0x10, 9, 0x18, 8, 0x25, 0, 0, 0, 0]].concat(),
    );
    let without_register = reconcile(&[&cluster[..], &[0x1a, 2, 0x08, 5]].concat());
    let without_object =
        reconcile(&[&cluster[..], &[0x1a, 10, 0x08, 5, 0x10, 3, 0x1a, 4, 0x08, 0, 0x10, 3]].concat());
    let cases: [(&[u8], &str, u32); 9] = [
        (&without_cluster, "ReconcileLedgersRequest", 1),
        (&without_tag, "ReconcileLedgersRequest.Object", 5),
        (&without_register, "ReconcileLedgersRequest.Ledger", 2),
        (&without_object, "ReconcileLedgersRequest.Extent", 3),
        (&[], "Request", 1),
        (&[0x0a, 4, 0x08, 3, 0x10, 2], "BKPacketHeader", 3),
        (&[0xaa, 0x06, 4, 0x08, 1, 0x10, 0], "AddRequest", 3),
        (&[0xa2, 0x06, 2, 0x08, 1], "ReadRequest", 2),
        (&[0xda, 0x06, 0], "ForceLedgerRequest", 1),
    ];
    for (bytes, message, field) in cases {
        let bytes = if field == 3 && message == "BKPacketHeader" || bytes.is_empty() {
            Bytes::copy_from_slice(bytes)
        } else {
            [&header[..], bytes].concat().into()
        };
        let error = Request::decode(bytes).unwrap_err();
        assert_eq!(error, DecodeError::MissingField { message, field });
        assert_eq!(error.refusal(), None);
    }
}

#[test]
fn unknown_versions_operations_and_statuses_are_errors() {
    let mut message = Request { txn_id: 1, priority: 0, operation: Operation::StartTls }.into_message();
    message.header.operation = 13;
    let expected = DecodeError::UnknownEnumValue { field: "operation", value: 13 };
    assert_eq!(Request::decode(payload(&message)), Err(expected));
    message.header.version = 4;
    let expected = DecodeError::UnknownEnumValue { field: "version", value: 4 };
    assert_eq!(Request::decode(payload(&message)), Err(expected));
    let mut answer = response::start_tls(1, ErrorCode::Ok);
    answer.status = 1;
    let expected = DecodeError::UnknownEnumValue { field: "status", value: 1 };
    assert_eq!(v3::decode_response(payload(&answer)), Err(expected));
}

/// The generated getters give the first enum value for an unset flag; ours must not.
#[test]
fn an_unset_or_unknown_flag_is_no_flag() {
    for flag in [None, Some(0), Some(7)] {
        let add = proto::AddRequest { flag, write_flags: Some(1), ..Default::default() };
        assert!(!add.is_recovery_add() && add.is_deferred_sync());
        let read = proto::ReadRequest { flag, previous_lac: Some(3), ..Default::default() };
        assert!(!read.is_fencing() && !read.wants_entry_piggyback() && read.is_long_poll());
    }
    let recovery = proto::AddRequest { flag: Some(1), write_flags: Some(1), ..Default::default() };
    assert!(recovery.is_recovery_add() && !recovery.is_deferred_sync());
    let fencing = proto::ReadRequest { flag: Some(1), previous_lac: Some(3), ..Default::default() };
    assert!(fencing.is_fencing() && !fencing.is_long_poll());
    let info = proto::GetBookieInfoRequest { requested: Some(2) };
    assert!(!info.wants_total_disk_capacity() && info.wants_free_disk_space());
}

/// Lengths that reach beyond the message, inside it and at its end, and nesting without end.
#[test]
fn length_bombs_are_errors() {
    let header = [0x0a, 6, 0x08, 3, 0x10, 2, 0x18, 1];
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    for field in [&[0xaa, 0x06][..], &[0xf2, 0x3f]] {
        let bytes = [&header[..], field, &huge[..]].concat();
        assert_eq!(Request::decode(bytes.into()), Err(DecodeError::Malformed { message: "Request" }));
    }
    let groups = [&header[..], &vec![0x4b; 100_000]].concat();
    assert_eq!(Request::decode(groups.into()), Err(DecodeError::Malformed { message: "Request" }));
    let mut nested = Bytes::new();
    for _ in 0..1000 {
        nested =
            proto::AuthMessage { auth_plugin_name: String::new(), payload: nested }.encode_to_vec().into();
    }
    assert!(v3::decode_auth_message(&nested).is_ok(), "bytes are not parsed further");
}

#[test]
fn nothing_prints_a_secret() {
    let key = Bytes::from_static(b"secret-secret-secret");
    let add = proto::AddRequest { master_key: key.clone(), body: key.clone(), ..Default::default() };
    let read = proto::ReadRequest { master_key: Some(key.clone()), ..Default::default() };
    let lac = proto::WriteLacRequest { master_key: key.clone(), body: key.clone(), ..Default::default() };
    let auth = proto::AuthMessage { auth_plugin_name: "plugin".to_owned(), payload: key };
    let bytes =
        payload(&Request { txn_id: 1, priority: 0, operation: Operation::Add(add.clone()) }.into_message());
    let hot = v3::HotRequest::parse(&bytes);
    let text = format!("{add:?} {read:?} {lac:?} {auth:?} {hot:?}");
    assert!(text.contains("HotAdd"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    assert!(text.contains("plugin"));
}

#[test]
fn a_bookie_without_authentication_names_the_disabled_plugin() {
    let message = v3::auth_disabled_message();
    assert_eq!((message.auth_plugin_name.as_str(), message.payload.len()), ("AuthDisabledPlugin", 0));
    assert_eq!(v3::decode_auth_message(&message.encode_to_vec()), Ok(message));
}

proptest! {
    #[test]
    fn requests_survive_the_round_trip(request in request()) {
        let bytes = framed(&request.clone().into_message());
        prop_assert_eq!(frame::split(&bytes, FrameLimit::DEFAULT)?, frame::Split::Frame(4..bytes.len()));
        prop_assert_eq!(Protocol::of(&bytes[4..]), Some(Protocol::V3), "Z3: no confusion with v2");
        prop_assert_eq!(Request::decode(bytes.slice(4..)), Ok(request));
    }

    /// Hot invariant 1, and that no usual request is left to the slow way. `checks::v3_request` compares the results of
    /// both for damaged messages.
    #[test]
    fn adds_and_plain_reads_are_read_by_hand_as_by_the_generated_decoder(request in request()) {
        let bytes = payload(&request.clone().into_message());
        prop_assert_eq!(v3::HotRequest::parse(&bytes), crate::common::checks::hot_form(&request));
    }

    /// Hot invariant 2.
    #[test]
    fn answers_written_by_hand_are_those_of_the_generated_encoder(
        txn in any::<u64>(), code in error_code(), ledger in any::<i64>(), entry in any::<i64>(),
        body in prop::collection::vec(any::<u8>(), 0..300), lac in any::<Option<i64>>(),
    ) {
        let mut out = BytesMut::new();
        v3::put_add_response(txn, code, ledger, entry, &mut out);
        prop_assert_eq!(&out, &framed(&response::add(txn, code, ledger, entry)));
        out.clear();
        v3::put_read_response(txn, ledger, entry, &body, lac, &mut out);
        let body = Some(Bytes::from(body));
        let result = response::ReadResult { body, max_lac: lac, ..Default::default() };
        prop_assert_eq!(&out, &framed(&response::read(txn, ledger, entry, result)));
    }

    /// Hot invariant 2: either decoder reads the add that the head and the body after it make.
    #[test]
    fn the_head_of_an_add_and_its_body_are_an_add(
        txn_id in any::<u64>(), ledger_id in any::<i64>(), entry_id in any::<i64>(), key in any::<[u8; 20]>(),
        flags in any::<i32>(), body in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut out = BytesMut::new();
        v3::put_add_head(txn_id, ledger_id, entry_id, &key, flags, body.len(), &mut out);
        prop_assert!(out.len() <= v3::ADD_HEAD_SIZE_BYTES_MAX);
        out.extend_from_slice(&body);
        prop_assert_eq!(frame::split(&out, FrameLimit::DEFAULT)?, frame::Split::Frame(4..out.len()));
        let add = proto::AddRequest {
            ledger_id,
            entry_id,
            master_key: Bytes::copy_from_slice(&key),
            body: body.into(),
            write_flags: Some(flags),
            flag: None,
        };
        let request = Request { txn_id, priority: 0, operation: Operation::Add(add) };
        let payload = out.freeze().slice(4..);
        prop_assert_eq!(v3::HotRequest::parse(&payload), crate::common::checks::hot_form(&request));
        prop_assert_eq!(Request::decode(payload), Ok(request));
    }

    #[test]
    fn responses_survive_the_round_trip(response in any_response()) {
        let bytes = framed(&response);
        prop_assert_eq!(Protocol::of(&bytes[4..]), Some(Protocol::V3), "Z3: no confusion with v2");
        let decoded = v3::decode_response(bytes.slice(4..)).unwrap();
        prop_assert_eq!(framed(&decoded), bytes);
        prop_assert_eq!(&decoded, &response);
    }

    /// Module invariant 3.
    #[test]
    fn a_failure_has_one_status_and_the_ids_of_its_request(request in request(), code in error_code()) {
        let failure = request.failure(code);
        prop_assert_eq!(failure.status, code.v3());
        prop_assert_eq!(failure.header.txn_id, request.txn_id);
        prop_assert_eq!(failure.header.operation, request.operation.kind() as i32);
        prop_assert_eq!(failure.header.version, ProtocolVersion::VersionThree as i32);
        prop_assert_eq!(failure.header.priority, None);
        let expected = match &request.operation {
            Operation::Add(body) => Some((Some(body.ledger_id), Some(body.entry_id))),
            Operation::Read(body) => Some((Some(body.ledger_id), Some(body.entry_id))),
            Operation::WriteLac(body) => Some((Some(body.ledger_id), None)),
            Operation::ReadLac(body) => Some((Some(body.ledger_id), None)),
            Operation::ForceLedger(body) => Some((Some(body.ledger_id), None)),
            Operation::GetListOfEntries(body) => Some((Some(body.ledger_id), None)),
            Operation::GetBookieInfo(_) | Operation::ReconcileLedgers(_) => Some((None, None)),
            Operation::Auth(_) | Operation::StartTls => None,
        };
        let expected = expected.map(|(ledger_id, entry_id)| (code.v3(), ledger_id, entry_id));
        prop_assert_eq!(inner(&failure), expected);
        prop_assert_eq!(failure.start_tls_response.is_some(), request.operation == Operation::StartTls);
    }

    /// Crate invariant 1, at every length. A cut at the end of the header leaves an operation without its body.
    #[test]
    fn a_message_cut_short_is_an_error(request in request(), response in any_response()) {
        let bytes = payload(&request.clone().into_message());
        for size in 0..bytes.len() {
            match Request::decode(bytes.slice(..size)) {
                Err(_) => {}
                Ok(cut) => {
                    let empty_body = matches!(cut.operation, Operation::StartTls | Operation::GetBookieInfo(_));
                    prop_assert!(empty_body, "{:?} cut at {} became {:?}", request, size, cut);
                }
            }
        }
        let bytes = payload(&response);
        for size in 0..bytes.len() {
            if let Ok(cut) = v3::decode_response(bytes.slice(..size)) {
                prop_assert_eq!(inner(&cut), None, "only the whole body can be missing");
            }
        }
    }

    /// The head of a message has its header, whole or not at all.
    #[test]
    fn a_message_is_told_by_its_head(response in any_response()) {
        let bytes = payload(&response);
        let header = v3::decode_head(&bytes[..bytes.len().min(v3::HEAD_SIZE_BYTES_MAX)]);
        prop_assert_eq!(header.as_ref(), Some(&response.header));
        for size in 0..bytes.len().min(v3::HEAD_SIZE_BYTES_MAX) {
            let cut = v3::decode_head(&bytes[..size]);
            prop_assert!(cut.is_none() || cut == header, "{cut:?}");
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in crate::common::bytes(0..80)) {
        let header = [0x0a, 6, 0x08, 3, 0x10, 2, 0x18, 1];
        let _ = Request::decode([&header[..], &bytes].concat().into());
        let _ = v3::decode_response([&header[..], &[0x10, 0], &bytes].concat().into());
        let _ = v3::decode_auth_message(&bytes);
        let _ = v3::decode_head(&bytes);
        let _ = Request::decode(bytes.into());
    }
}
