//! RECONCILE_LEDGERS: domain types survive the round trip, and what no tierer sends is refused (`v3::reconcile`).

use crate::common::messages::{reconcile, reconciled};
use bindery_types::tier::{ClusterId, ObjectId, ObjectRef, Reconciliation, TierExtent};
use bindery_types::{BookieId, EntryId, LedgerId, TierSecret};
use bindery_wire::v3::proto::{self, OperationType, reconcile_ledgers_request as message};
use bindery_wire::v3::reconcile::{EXTENTS_MAX, LEDGERS_MAX, MESSAGE_SIZE_BYTES_MAX, Reconcile, Reconciled};
use bindery_wire::v3::{self, Operation, Request, response};
use bindery_wire::{ErrorCode, FrameLimit};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use prost::Message;

fn payload(request: proto::ReconcileLedgersRequest) -> Bytes {
    let request = Request { txn_id: 7, priority: 0, operation: Operation::ReconcileLedgers(request) };
    let mut out = BytesMut::new();
    v3::put_frame(&request.into_message(), &mut out);
    out.freeze().slice(4..)
}

fn object(id: u8) -> message::Object {
    message::Object {
        id: Bytes::from(vec![id; 16]),
        length: 100,
        footer_offset: 99,
        footer_crc: 1,
        etag_crc: 2,
    }
}

fn extent(first: i64, last: i64, object: u32) -> message::Extent {
    message::Extent { first, last, object }
}

fn valid() -> proto::ReconcileLedgersRequest {
    let ledger =
        |ledger_id, last_reconciled, extents| message::Ledger { ledger_id, last_reconciled, extents };
    proto::ReconcileLedgersRequest {
        cluster: Bytes::from(vec![3; 16]),
        objects: vec![object(1), object(2)],
        ledgers: vec![
            ledger(5, 9, vec![extent(2, 4, 0), extent(5, 9, 1)]),
            ledger(6, -1, vec![]),
            ledger(0, i64::MAX, vec![extent(i64::MAX, i64::MAX, 1)]),
        ],
        restore: None,
        created: Vec::new(),
        proof: None,
    }
}

/// Every field counts, and the bookie.
#[test]
fn a_proof_is_of_one_message_to_one_bookie() {
    let (secret, bookie) = (TierSecret::from_bytes([9; 32]), BookieId::new("b1").unwrap());
    let mut proven = valid();
    proven.prove(&secret, &bookie);
    // As it arrives.
    let Ok(Request { operation: Operation::ReconcileLedgers(arrived), .. }) =
        Request::decode(payload(proven.clone()))
    else {
        panic!("a request")
    };
    assert!(arrived.is_proven(&secret, &bookie));
    assert!(!arrived.is_proven(&secret, &BookieId::new("b2").unwrap()));
    assert!(!arrived.is_proven(&TierSecret::from_bytes([8; 32]), &bookie));
    let mut again = proven.clone();
    again.prove(&secret, &bookie);
    assert_eq!(again, proven, "a former proof does not count");
    let changes: [fn(&mut proto::ReconcileLedgersRequest); 6] = [
        |message| message.restore = Some(true),
        |message| message.cluster = Bytes::from(vec![4; 16]),
        |message| message.ledgers[0].last_reconciled = 10,
        |message| message.objects[0].length = 101,
        |message| message.proof = None,
        |message| message.proof = Some(Bytes::from(vec![0; 33])),
    ];
    for change in changes {
        let mut changed = proven.clone();
        change(&mut changed);
        assert!(!changed.is_proven(&secret, &bookie), "{changed:?}");
    }
    assert!(!valid().is_proven(&secret, &bookie));
}

#[test]
fn a_message_is_read_as_it_is_meant() {
    let reconcile = Reconcile::from_message(&valid()).unwrap();
    assert_eq!(reconcile.cluster, ClusterId::from_bytes([3; 16]));
    let named = |id| ObjectRef {
        id: ObjectId::from_bytes([id; 16]),
        length_bytes: 100,
        footer_offset: 99,
        footer_crc: 1,
        etag_crc: 2,
    };
    let at = |first, last, id| TierExtent {
        first: EntryId::new(first).unwrap(),
        last: EntryId::new(last).unwrap(),
        object: named(id),
    };
    let of = |ledger, extents: Vec<TierExtent>| Reconciliation {
        ledger: LedgerId::new(ledger).unwrap(),
        last: extents.last().map(|extent| extent.last),
        extents,
        created_ms: None,
    };
    let max = i64::MAX;
    let expected =
        vec![of(5, vec![at(2, 4, 1), at(5, 9, 2)]), of(6, Vec::new()), of(0, vec![at(max, max, 2)])];
    assert_eq!(reconcile.ledgers, expected);
}

/// Invariants 1 and 2: one thing wrong is enough.
#[test]
fn each_violation_is_refused() {
    type Spoil = fn(&mut proto::ReconcileLedgersRequest);
    let cases: [(&str, Spoil); 19] = [
        ("not as many creation times", |r| r.created = vec![1]),
        ("the cluster's id is not 16", |r| r.cluster.truncate(15)),
        ("the cluster's id is not 16", |r| r.cluster = Bytes::from(vec![3; 17])),
        ("an object's id is not 16", |r| r.objects[1].id = Bytes::new()),
        ("an object's footer lies beyond", |r| r.objects[0].footer_offset = 100),
        ("an object's footer lies beyond", |r| r.objects[0].length = 0),
        ("a ledger's id is negative", |r| r.ledgers[1].ledger_id = -1),
        ("a ledger occurs twice", |r| r.ledgers[1].ledger_id = 5),
        ("below -1", |r| r.ledgers[1].last_reconciled = -2),
        ("do not end at", |r| r.ledgers[1].last_reconciled = 0),
        ("do not end at", |r| r.ledgers[0].last_reconciled = 8),
        ("do not end at", |r| r.ledgers[0].last_reconciled = -1),
        ("empty or negative", |r| r.ledgers[0].extents[0].first = -1),
        ("empty or negative", |r| r.ledgers[0].extents[0].last = 1),
        ("overlap or leave a gap", |r| r.ledgers[0].extents[1].first = 4),
        ("overlap or leave a gap", |r| r.ledgers[0].extents[1].first = 6),
        ("overlap or leave a gap", |r| r.ledgers[0].extents.swap(0, 1)),
        ("overlap or leave a gap", |r| r.ledgers[2].extents.push(extent(0, i64::MAX, 1))),
        ("not listed", |r| r.ledgers[0].extents[0].object = 2),
    ];
    assert!(Reconcile::from_message(&valid()).is_ok());
    for (index, (expected, spoil)) in cases.into_iter().enumerate() {
        let mut request = valid();
        spoil(&mut request);
        let error = Reconcile::from_message(&request).unwrap_err();
        assert!(error.to_string().contains(expected), "case {index}: {error}");
    }
}

#[test]
fn a_request_at_each_limit_is_read_and_one_above_is_not() {
    let ledger = |ledger_id, extents: Vec<message::Extent>| message::Ledger {
        ledger_id,
        last_reconciled: extents.last().map_or(-1, |extent| extent.last),
        extents,
    };
    let with = |objects: usize, ledgers: Vec<message::Ledger>| proto::ReconcileLedgersRequest {
        cluster: Bytes::from(vec![3; 16]),
        objects: (0..objects).map(|_| object(1)).collect(),
        ledgers,
        restore: None,
        created: Vec::new(),
        proof: None,
    };
    let chain = |from: i64, count: usize| {
        (0..).map(|n| extent(from + n, from + n, 0)).take(count).collect::<Vec<_>>()
    };
    let queries = |count: i64| (0..count).map(|id| ledger(id, Vec::new())).collect::<Vec<_>>();
    let most = LEDGERS_MAX as i64;
    assert!(Reconcile::from_message(&with(0, queries(most))).is_ok());
    let error = Reconcile::from_message(&with(0, queries(most + 1))).unwrap_err();
    assert!(error.to_string().contains("more ledgers"), "{error}");
    let half = EXTENTS_MAX / 2;
    let halves = |more| vec![ledger(1, chain(0, half)), ledger(2, chain(0, half + more))];
    assert!(Reconcile::from_message(&with(EXTENTS_MAX, halves(0))).is_ok());
    for request in [with(1, halves(1)), with(EXTENTS_MAX + 1, halves(0))] {
        let error = Reconcile::from_message(&request).unwrap_err();
        assert!(error.to_string().contains("more extents or objects"), "{error}");
    }
}

/// Invariant 3: whatever its numbers are, a request within the limits on counts can be sent, in one frame.
#[test]
fn the_largest_request_is_below_the_largest_message() {
    let ledgers = (0..LEDGERS_MAX as i64).map(|n| {
        let last = i64::MAX - n;
        message::Ledger {
            ledger_id: i64::MAX - n,
            last_reconciled: last,
            extents: vec![extent(last, last, EXTENTS_MAX as u32 - 1)],
        }
    });
    let objects = (0..EXTENTS_MAX as u64).map(|n| message::Object {
        id: Bytes::from(vec![0xff; 16]),
        length: u64::MAX,
        footer_offset: u64::MAX - 1 - n,
        footer_crc: u32::MAX,
        etag_crc: u32::MAX,
    });
    let cluster = Bytes::from(vec![0xff; 16]);
    let request = proto::ReconcileLedgersRequest {
        cluster,
        objects: objects.collect(),
        ledgers: ledgers.collect(),
        restore: Some(true),
        created: Vec::new(),
        proof: None,
    };
    assert!(request.encoded_len() <= MESSAGE_SIZE_BYTES_MAX, "{}", request.encoded_len());
    assert!(FrameLimit::DEFAULT.admits_payload(request.encoded_len() + 100));
    let decoded = Request::decode(payload(request.clone())).unwrap();
    assert_eq!(decoded.operation, Operation::ReconcileLedgers(request.clone()));
    assert!(Reconcile::from_message(&request).is_ok());
}

/// Invariant 3: a larger one is answered by its header, also when the size comes in several bodies.
#[test]
fn a_message_above_the_limit_is_refused_without_being_decoded() {
    let refused = response::without_body(7, OperationType::ReconcileLedgers, ErrorCode::BadRequest);
    // The smallest ledgers there are: they would take the most memory for their bytes.
    let ledger = message::Ledger { ledger_id: 1, last_reconciled: 1, extents: Vec::new() };
    let cluster = Bytes::from(vec![3; 16]);
    let of = |count| proto::ReconcileLedgersRequest {
        cluster: cluster.clone(),
        objects: Vec::new(),
        ledgers: vec![ledger.clone(); count],
        restore: None,
        created: Vec::new(),
        proof: None,
    };
    let count = (MESSAGE_SIZE_BYTES_MAX - 18) / 6;
    assert!(of(count).encoded_len() <= MESSAGE_SIZE_BYTES_MAX);
    assert!(Request::decode(payload(of(count))).is_ok());
    let error = Request::decode(payload(of(count + 1))).unwrap_err();
    assert_eq!(error.refusal(), Some(&refused));
    // Twice the same body, of more than half the size, behind the header of the first.
    let whole = payload(of(count / 2 + 10));
    let body = &whole[whole.len() - of(count / 2 + 10).encoded_len() - 5..];
    assert_eq!(body[..2], [0xca, 0x3e], "key of the body, and three bytes of its length");
    let error = Request::decode([&whole, body].concat().into()).unwrap_err();
    assert_eq!(error.refusal(), Some(&refused));
}

#[test]
fn an_answer_that_no_bookie_gives_is_an_error() {
    let good = Reconciled {
        ledger: LedgerId::new(4).unwrap(),
        code: ErrorCode::BadRequest,
        last: EntryId::new(2),
        let_go: EntryId::new(1),
    };
    let message = good.into_message();
    assert_eq!(
        (message.ledger_id, message.status, message.last_reconciled, message.let_go),
        (4, 404, 2, Some(1))
    );
    assert_eq!(Reconciled::from_message(&message), Ok(good));
    // A bookie of an earlier release does not say what it let go.
    let earlier = proto::reconcile_ledgers_response::Result { let_go: None, ..message };
    assert_eq!(Reconciled::from_message(&earlier), Ok(Reconciled { let_go: None, ..good }));
    type Spoil = fn(&mut proto::reconcile_ledgers_response::Result);
    let cases: [Spoil; 5] = [
        |r| r.ledger_id = -1,
        |r| r.status = 1,
        |r| r.last_reconciled = -2,
        |r| r.let_go = Some(3),
        |r| r.let_go = Some(-2),
    ];
    for spoil in cases {
        let mut message = good.into_message();
        spoil(&mut message);
        assert!(Reconciled::from_message(&message).is_err());
    }
}

proptest! {
    #[test]
    fn requests_survive_the_round_trip(reconcile in reconcile()) {
        let decoded = Request::decode(payload(reconcile.clone().into_message())).unwrap();
        let Operation::ReconcileLedgers(message) = decoded.operation else { panic!("another operation") };
        let distinct = reconcile.ledgers.iter().flat_map(|ledger| &ledger.extents);
        let distinct: std::collections::HashSet<_> = distinct.map(|extent| extent.object).collect();
        prop_assert_eq!(message.objects.len(), distinct.len(), "each object once");
        prop_assert_eq!(Reconcile::from_message(&message), Ok(reconcile));
    }

    #[test]
    fn results_survive_the_round_trip(results in reconciled()) {
        let mut out = BytesMut::new();
        v3::put_frame(&response::reconcile_ledgers(8, ErrorCode::Ok, results.clone()), &mut out);
        let decoded = v3::decode_response(out.freeze().slice(4..)).unwrap();
        let body = decoded.reconcile_ledgers_response.unwrap();
        prop_assert_eq!(body.status, ErrorCode::Ok.v3());
        let again: Result<Vec<_>, _> = body.results.iter().map(Reconciled::from_message).collect();
        prop_assert_eq!(again, Ok(results));
    }
}
