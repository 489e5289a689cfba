//! The v2 codecs against the reference's vectors, against themselves, and against damaged packets.

use crate::common::{OwnedResponse, encoded_request, encoded_response};
use bindery_types::MasterKey;
use bindery_wire::v2::{
    self, Add, BatchRead, Correlation, DecodeError, Flags, Read, Refusal, Request, Response,
};
use bindery_wire::{ErrorCode, FrameLimit, frame};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|b| !b.is_ascii_whitespace())
        .map(|b| (b as char).to_digit(16).expect("vectors are hex digits") as u8)
        .collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn add_vector() -> Vec<u8> {
    hex("00000041 02010000 850bf1071c5e3d8c24235676f8816ae0cbe2f14f
         0000000000000001 0000000000000000 ffffffffffffffff 0000000000000005 e3a5f74d 68656c6c6f")
}

fn payload(frame_bytes: &[u8]) -> &[u8] {
    &frame_bytes[4..]
}

/// Protocol reference, section 1.8.
#[test]
fn the_vectors_of_the_reference_hold_byte_for_byte() {
    let frame_bytes = add_vector();
    let Request::Add(add) = Request::decode(payload(&frame_bytes)).unwrap() else { panic!("an add") };
    let key: [u8; 20] = hex("850bf1071c5e3d8c24235676f8816ae0cbe2f14f").try_into().unwrap();
    assert_eq!((add.version, add.flags, add.master_key), (2, Flags::NONE, MasterKey::new(key)));
    assert_eq!((add.ledger_id, add.entry_id, add.last_add_confirmed), (1, 0, -1));
    assert!(add.body.ends_with(b"hello"));
    assert_eq!(
        encoded_request(&Request::Add(Add::new(Flags::NONE, MasterKey::new(key), add.body).unwrap())),
        frame_bytes
    );

    let mut out = BytesMut::new();
    v2::put_add_response(2, ErrorCode::Ok, 1, 0, &mut out);
    assert_eq!(out, hex("00000018 02010000 00000000 0000000000000001 0000000000000000"));
}

/// The flag combinations a Java client sends (protocol reference, section 1.3).
#[test]
fn a_read_carries_its_key_only_when_it_fences_in_version_2() {
    let key = MasterKey::new([7; 20]);
    let mut with_key = hex("02020005 0000000000000009 ffffffffffffffff");
    with_key.extend_from_slice(&[7; 20]);
    let fencing = Flags::DO_FENCING.with(Flags::HIGH_PRIORITY);
    let expected = Read { version: 2, flags: fencing, ledger_id: 9, entry_id: -1, master_key: Some(key) };
    assert_eq!(Request::decode(&with_key), Ok(Request::Read(expected)));
    assert_eq!(Request::decode(&with_key[..39]), Err(DecodeError::Truncated { size_bytes: 39 }));

    let mut version_1 = with_key.clone();
    version_1[0] = 1;
    assert_eq!(
        Request::decode(&version_1),
        Ok(Request::Read(Read { version: 1, master_key: None, ..expected }))
    );
    let mut plain = with_key;
    plain[3] = 4;
    let read = Read { flags: Flags::HIGH_PRIORITY, master_key: None, ..expected };
    assert_eq!(Request::decode(&plain), Ok(Request::Read(read)), "trailing bytes are ignored");
}

#[test]
fn a_read_of_the_last_entry_is_answered_with_entry_minus_one() {
    let mut out = Vec::new();
    v2::put_read_response(2, 9, -1, b"body", &mut out);
    assert_eq!(
        out,
        [&hex("0000001c 02020000 00000000 0000000000000009 ffffffffffffffff")[..], b"body"].concat()
    );
    out.clear();
    v2::put_error_response(2, Correlation::Read { ledger_id: 9, entry_id: -1 }, ErrorCode::NoEntry, &mut out);
    assert_eq!(out, hex("00000018 02020000 00000002 0000000000000009 ffffffffffffffff"));
}

#[test]
fn a_batch_has_its_request_id_and_a_size_before_each_entry() {
    let request =
        hex("02070000 0000000000000001 0000000000000002 0000000000000003 0000000a 0000000000001000");
    let expected = BatchRead {
        version: 2,
        flags: Flags::NONE,
        ledger_id: 1,
        start_entry_id: 2,
        request_id: 3,
        max_count: 10,
        max_size_bytes: 4096,
        master_key: None,
        stride: 1,
    };
    assert_eq!(Request::decode(&request), Ok(Request::BatchRead(expected)));

    let mut out = Vec::new();
    v2::put_batch_read_response(2, 1, 2, 3, false, [&b"ab"[..], &b""[..]].into_iter(), &mut out);
    let head = "0000002a 02070000 00000000 0000000000000001 0000000000000002 0000000000000003";
    assert_eq!(out, hex(&format!("{head} 00000002 6162 00000000")));
    let Response::BatchRead { entries, .. } = Response::decode(payload(&out)).unwrap() else {
        panic!("a batch")
    };
    assert_eq!(entries.collect::<Vec<_>>(), [&b"ab"[..], b""]);

    out.clear();
    let failed = Correlation::BatchRead { ledger_id: 1, start_entry_id: 2, request_id: 3 };
    v2::put_error_response(2, failed, ErrorCode::UnknownLedgerState, &mut out);
    assert_eq!(out, hex("00000020 02070000 00000065 0000000000000001 0000000000000002 0000000000000003"));
}

#[test]
fn a_batch_with_a_stride_says_so_in_both_directions() {
    let fields = "0000000000000001 0000000000000002 0000000000000003 0000000a 0000000000001000";
    let plain = BatchRead {
        version: 2,
        flags: Flags::STRIDE,
        ledger_id: 1,
        start_entry_id: 2,
        request_id: 3,
        max_count: 10,
        max_size_bytes: 4096,
        master_key: None,
        stride: 3,
    };
    let request = hex(&format!("02078000 {fields} 00000003"));
    assert_eq!(Request::decode(&request), Ok(Request::BatchRead(plain)));
    assert_eq!(encoded_request(&Request::BatchRead(plain))[4..], request);
    // Behind the key where there is one.
    let key = MasterKey::new([7; 20]);
    let fencing = BatchRead { flags: Flags::STRIDE.with(Flags::DO_FENCING), master_key: Some(key), ..plain };
    let request = hex(&format!("02078001 {fields} {} 00000003", "07".repeat(20)));
    assert_eq!(Request::decode(&request), Ok(Request::BatchRead(fencing)));
    // Those who do not know the flag pass over the field; without the flag so do we.
    let request = hex(&format!("02070000 {fields} 00000003"));
    let unknown = BatchRead { flags: Flags::NONE, stride: 1, ..plain };
    assert_eq!(Request::decode(&request), Ok(Request::BatchRead(unknown)));
    for (stride, sent) in [("00000000", 0), ("ffffffff", -1)] {
        let error = Request::decode(&hex(&format!("02078000 {fields} {stride}"))).unwrap_err();
        let correlation = Correlation::BatchRead { ledger_id: 1, start_entry_id: 2, request_id: 3 };
        let refusal = Refusal { version: 2, correlation, code: ErrorCode::BadRequest };
        assert_eq!(error, DecodeError::BadStride { refusal, stride: sent });
        assert_eq!(error.refusal(), Some(refusal));
    }
    let cut = Request::decode(&hex(&format!("02078000 {fields} 000000"))).unwrap_err();
    assert_eq!((cut, cut.refusal()), (DecodeError::Truncated { size_bytes: 43 }, None));

    let mut out = Vec::new();
    v2::put_batch_read_response(2, 1, 2, 3, true, [&b"ab"[..]].into_iter(), &mut out);
    let head = "00000026 02078000 00000000 0000000000000001 0000000000000002 0000000000000003";
    assert_eq!(out, hex(&format!("{head} 00000002 6162")));
    let answer = Response::decode(payload(&out)).unwrap();
    assert!(matches!(answer, Response::BatchRead { is_strided: true, .. }), "{answer:?}");
}

#[test]
fn a_batch_whose_sizes_do_not_add_up_is_an_error() {
    let head = hex("02070000 00000000 0000000000000001 0000000000000002 0000000000000003");
    for sizes in ["00000003 6162", "ffffffff", "7fffffff", "000000", "00000000 00"] {
        let packet = [&head[..], &hex(sizes)].concat();
        assert_eq!(Response::decode(&packet), Err(v2::ResponseError::BatchEntrySize), "{sizes}");
    }
}

#[test]
fn every_opcode_but_four_closes_the_connection() {
    for version in [1u8, 2, 3, 0x80, 0xff] {
        for opcode in (0..=u8::MAX).filter(|opcode| ![1, 2, 3, 7].contains(opcode)) {
            let mut packet = vec![version, opcode, 0, 0];
            packet.extend_from_slice(&[0; 100]);
            let error = Request::decode(&packet).unwrap_err();
            assert_eq!(error, DecodeError::UnknownOpcode { version: version as i8, opcode: opcode.into() });
            assert_eq!(error.refusal(), None);
        }
    }
}

#[test]
fn a_version_we_do_not_speak_is_refused_with_its_own_ids() {
    for version in [3i8, 127, -1, -128] {
        let mut packet = add_vector()[4..].to_vec();
        packet[0] = version as u8;
        let correlation = Correlation::Add { ledger_id: 1, entry_id: 0 };
        let refusal = Refusal { version, correlation, code: ErrorCode::BadVersion };
        let error = Request::decode(&packet).unwrap_err();
        assert_eq!(error, DecodeError::UnsupportedVersion(refusal));
        let mut out = Vec::new();
        error.refusal().unwrap().encode(&mut out);
        let mut expected = hex("00000018 02010000 00000067 0000000000000001 0000000000000000");
        expected[4] = version as u8;
        assert_eq!(out, expected);
    }
    let batch = hex("03070000 0000000000000001 0000000000000002 0000000000000003 0000000a 0000000000001000");
    let correlation = Correlation::BatchRead { ledger_id: 1, start_entry_id: 2, request_id: 3 };
    assert_eq!(Request::decode(&batch).unwrap_err().refusal().unwrap().correlation, correlation);
}

#[test]
fn an_add_too_short_to_be_an_entry_is_a_bad_request() {
    let packet = &add_vector()[4..];
    for body_size in 0..24 {
        let error = Request::decode(&packet[..24 + body_size]).unwrap_err();
        let ledger_id = if body_size < 8 { -1 } else { 1 };
        let entry_id = if body_size < 16 { -1 } else { 0 };
        let correlation = Correlation::Add { ledger_id, entry_id };
        let refusal = Refusal { version: 2, correlation, code: ErrorCode::BadRequest };
        assert_eq!(error, DecodeError::EntryTooShort { refusal, size_bytes: body_size });
    }
    assert!(Request::decode(&packet[..48]).is_ok());
    for size in 0..24 {
        assert_eq!(
            Request::decode(&packet[..size]).unwrap_err().refusal(),
            None,
            "no answer exists at {size}"
        );
    }
}

#[test]
fn the_body_of_an_add_is_shared_with_its_frame() {
    let packet = Bytes::from(add_vector()).slice(4..);
    let Ok(Request::Add(add)) = Request::decode(&packet) else { panic!("an add") };
    let shared = packet.slice(v2::ADD_BODY_OFFSET_BYTES..);
    assert_eq!((shared.as_ptr(), shared.len()), (add.body.as_ptr(), add.body.len()));
}

#[test]
fn an_entry_at_the_limit_fits_every_v2_response() {
    let limit = FrameLimit::DEFAULT;
    let body = limit.entry_size_bytes_max();
    assert!(limit.admits_payload(v2::READ_RESPONSE_OVERHEAD_BYTES + body));
    assert!(
        limit.admits_payload(
            v2::BATCH_READ_RESPONSE_OVERHEAD_BYTES + v2::BATCH_READ_ENTRY_OVERHEAD_BYTES + body
        )
    );
}

/// The code of a response after a trip over v2, which cannot say `UnknownLedgerState`.
fn as_sent(code: ErrorCode) -> ErrorCode {
    if code == ErrorCode::UnknownLedgerState { ErrorCode::Io } else { code }
}

proptest! {
    #[test]
    fn requests_survive_the_round_trip(request in crate::common::request()) {
        let frame_bytes = encoded_request(&request.borrowed());
        let whole = frame::split(&frame_bytes, FrameLimit::DEFAULT)?;
        prop_assert_eq!(whole, frame::Split::Frame(4..frame_bytes.len()));
        prop_assert_eq!(Request::decode(payload(&frame_bytes)), Ok(request.borrowed()));
    }

    #[test]
    fn responses_survive_the_round_trip(response in crate::common::response()) {
        let frame_bytes = response.frame();
        let whole = frame::split(&frame_bytes, FrameLimit::DEFAULT)?;
        prop_assert_eq!(whole, frame::Split::Frame(4..frame_bytes.len()));
        let decoded = Response::decode(payload(&frame_bytes)).unwrap();
        prop_assert_eq!(&encoded_response(&decoded), &frame_bytes);
        match (&response, decoded) {
            (OwnedResponse::Add { version, code, ledger_id, entry_id }, decoded) => {
                let (version, code) = (*version, as_sent(*code));
                let expected = Response::Add { version, code, ledger_id: *ledger_id, entry_id: *entry_id };
                prop_assert_eq!(decoded, expected);
            }
            (OwnedResponse::Read { version, ledger_id, entry_id, body }, decoded) => {
                let (version, code) = (*version, ErrorCode::Ok);
                let (ledger_id, entry_id) = (*ledger_id, *entry_id);
                prop_assert_eq!(decoded, Response::Read { version, code, ledger_id, entry_id, body });
            }
            (
                OwnedResponse::BatchRead { entries: sent, request_id: sent_id, is_strided: sent_flag, .. },
                Response::BatchRead { request_id, is_strided, entries, .. },
            ) => {
                prop_assert_eq!((request_id, is_strided), (*sent_id, *sent_flag));
                prop_assert_eq!(entries.map(<[u8]>::to_vec).collect::<Vec<_>>(), sent.clone());
            }
            (OwnedResponse::Error { version: sent, request, code: sent_code }, decoded) => {
                let (got, version, code) = match decoded {
                    Response::Add { version, code, ledger_id, entry_id } =>
                        (Correlation::Add { ledger_id, entry_id }, version, code),
                    Response::Read { version, code, ledger_id, entry_id, body } => {
                        prop_assert!(body.is_empty());
                        (Correlation::Read { ledger_id, entry_id }, version, code)
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
                        prop_assert_eq!((is_strided, entries), (false, v2::BatchEntries::NONE));
                        (Correlation::BatchRead { ledger_id, start_entry_id, request_id }, version, code)
                    }
                    Response::Auth { .. } => return Err(TestCaseError::fail("an error became an AUTH")),
                };
                prop_assert_eq!((got, version, code), (*request, *sent, as_sent(*sent_code)));
            }
            (OwnedResponse::Auth { version, message }, decoded) =>
                prop_assert_eq!(decoded, Response::Auth { version: *version, message }),
            (sent, decoded) => return Err(TestCaseError::fail(format!("{sent:?} became {decoded:?}"))),
        }
    }

    /// Crate invariant 1, at every length.
    #[test]
    fn a_request_cut_short_is_an_error_or_a_shorter_request(request in crate::common::request()) {
        let frame_bytes = encoded_request(&request.borrowed());
        let packet = payload(&frame_bytes);
        for size in 0..packet.len() {
            match (request.borrowed(), Request::decode(&packet[..size])) {
                (_, Err(_)) => {}
                (Request::Add(whole), Ok(Request::Add(cut))) => prop_assert!(whole.body.starts_with(cut.body)),
                (Request::Auth(whole), Ok(Request::Auth(cut))) => prop_assert!(whole.message.starts_with(cut.message)),
                (whole, Ok(cut)) => return Err(TestCaseError::fail(format!("{whole:?} cut became {cut:?}"))),
            }
        }
    }

    #[test]
    fn a_response_cut_short_is_an_error_or_a_shorter_response(response in crate::common::response()) {
        let frame_bytes = response.frame();
        let packet = payload(&frame_bytes);
        for size in 0..packet.len() {
            if let Ok(cut) = Response::decode(&packet[..size]) {
                let again = encoded_response(&cut);
                prop_assert_eq!(payload(&again), &packet[..size]);
            }
        }
    }

    /// The head of a response says as much of its request as the whole.
    #[test]
    fn a_response_is_told_by_its_head(response in crate::common::response()) {
        let frame_bytes = response.frame();
        let packet = payload(&frame_bytes);
        let head = &packet[..packet.len().min(v2::RESPONSE_HEAD_SIZE_BYTES_MAX)];
        let whole = match Response::decode(packet).expect("it was encoded") {
            Response::Add { ledger_id, entry_id, .. } => Some(Correlation::Add { ledger_id, entry_id }),
            Response::Read { ledger_id, entry_id, .. } => Some(Correlation::Read { ledger_id, entry_id }),
            Response::BatchRead { ledger_id, start_entry_id, request_id, .. } => {
                Some(Correlation::BatchRead { ledger_id, start_entry_id, request_id })
            }
            Response::Auth { .. } => None,
        };
        prop_assert_eq!(Correlation::of_response_head(head), whole);
        for size in 0..24.min(packet.len()) {
            prop_assert_eq!(Correlation::of_response_head(&packet[..size]), None);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(packet in crate::common::bytes(0..80)) {
        let _ = Request::decode(&packet);
        let _ = Response::decode(&packet);
        let _ = Correlation::of_response_head(&packet);
    }
}
