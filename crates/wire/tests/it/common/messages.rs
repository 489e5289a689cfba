//! Generated v3 requests and responses.

use bindery_types::tier::{ClusterId, ObjectId, ObjectRef, Reconciliation, TierExtent};
use bindery_types::{EntryId, LedgerId};
use bindery_wire::v3::proto::{self, OperationType};
use bindery_wire::v3::reconcile::{Reconcile, Reconciled};
use bindery_wire::v3::response::{self as make, ReadResult};
use bindery_wire::v3::{Operation, Request};
use bytes::Bytes;
use proptest::prelude::*;

use super::{bytes, error_code, id};

fn body_bytes() -> impl Strategy<Value = Bytes> {
    bytes(0..60).prop_map(Bytes::from)
}

fn optional_bytes() -> impl Strategy<Value = Option<Bytes>> {
    prop::option::of(body_bytes())
}

fn auth_message() -> impl Strategy<Value = proto::AuthMessage> {
    (".{0,12}", body_bytes())
        .prop_map(|(auth_plugin_name, payload)| proto::AuthMessage { auth_plugin_name, payload })
}

fn object() -> impl Strategy<Value = ObjectRef> {
    let footer = (any::<u64>(), any::<u64>()).prop_filter("an object has a footer", |(a, b)| a != b);
    (any::<[u8; 16]>(), footer, any::<u32>(), any::<u32>()).prop_map(|(id, (a, b), footer_crc, etag_crc)| {
        ObjectRef {
            id: ObjectId::from_bytes(id),
            length_bytes: a.max(b),
            footer_offset: a.min(b),
            footer_crc,
            etag_crc,
        }
    })
}

/// Valid: extents one after the other, of a few objects.
pub fn reconcile() -> impl Strategy<Value = Reconcile> {
    let extents = prop::collection::vec((0i64..1000, any::<prop::sample::Index>()), 0..4);
    let created = prop::option::of(-5i64..=1 << 41);
    let ledgers = prop::collection::btree_map(0..=i64::MAX, (0i64..=1 << 40, extents, created), 0..4);
    (any::<[u8; 16]>(), prop::collection::vec(object(), 1..4), ledgers).prop_map(
        |(cluster, objects, ledgers)| {
            let ledgers = ledgers.into_iter().map(|(ledger, (first, lengths, created_ms))| {
                let mut next = first;
                let mut extents = Vec::new();
                for (more, object) in lengths {
                    let (first, last) = (EntryId::new(next), EntryId::new(next + more));
                    let (first, last) = (first.expect("not negative"), last.expect("not negative"));
                    extents.push(TierExtent { first, last, object: *object.get(&objects) });
                    next += more + 1;
                }
                let last = extents.last().map(|extent| extent.last);
                let ledger = LedgerId::new(ledger).expect("not negative");
                Reconciliation { ledger, last, extents, created_ms }
            });
            Reconcile {
                cluster: ClusterId::from_bytes(cluster),
                ledgers: ledgers.collect(),
                is_restore: false,
            }
        },
    )
}

pub fn reconciled() -> impl Strategy<Value = Vec<Reconciled>> {
    let entry = || prop::option::of(0..=i64::MAX);
    let one = (0..=i64::MAX, error_code(), entry(), entry());
    let one = one.prop_map(|(ledger, code, last, let_go)| Reconciled {
        ledger: LedgerId::new(ledger).expect("not negative"),
        code,
        last: last.and_then(EntryId::new),
        let_go: let_go.min(last).and_then(EntryId::new),
    });
    prop::collection::vec(one, 0..4)
}

pub fn operation() -> impl Strategy<Value = Operation> {
    let flag = prop::option::of(1i32..=2);
    let add = (id(), id(), body_bytes(), body_bytes(), any::<Option<i32>>(), prop::option::of(Just(1)));
    let read = (id(), id(), optional_bytes(), any::<Option<i64>>(), any::<Option<i64>>(), flag);
    prop_oneof![
        add.prop_map(|(ledger_id, entry_id, master_key, body, write_flags, flag)| {
            Operation::Add(proto::AddRequest { ledger_id, entry_id, master_key, body, write_flags, flag })
        }),
        read.prop_map(|(ledger_id, entry_id, master_key, previous_lac, time_out, flag)| {
            Operation::Read(proto::ReadRequest {
                ledger_id,
                entry_id,
                master_key,
                previous_lac,
                time_out,
                flag,
            })
        }),
        auth_message().prop_map(Operation::Auth),
        (id(), id(), body_bytes(), body_bytes()).prop_map(|(ledger_id, lac, master_key, body)| {
            Operation::WriteLac(proto::WriteLacRequest { ledger_id, lac, master_key, body })
        }),
        id().prop_map(|ledger_id| Operation::ReadLac(proto::ReadLacRequest { ledger_id })),
        id().prop_map(|ledger_id| Operation::ForceLedger(proto::ForceLedgerRequest { ledger_id })),
        any::<Option<i64>>()
            .prop_map(|requested| Operation::GetBookieInfo(proto::GetBookieInfoRequest { requested })),
        id().prop_map(|ledger_id| {
            Operation::GetListOfEntries(proto::GetListOfEntriesOfLedgerRequest { ledger_id })
        }),
        Just(Operation::StartTls),
        reconcile().prop_map(|request| Operation::ReconcileLedgers(request.into_message())),
    ]
}

pub fn request() -> impl Strategy<Value = Request> {
    (any::<u64>(), prop_oneof![Just(0), Just(100), any::<u32>()], operation())
        .prop_map(|(txn_id, priority, operation)| Request { txn_id, priority, operation })
}

fn read_result() -> impl Strategy<Value = ReadResult> {
    (optional_bytes(), any::<Option<i64>>(), any::<Option<i64>>()).prop_map(
        |(body, max_lac, lac_update_timestamp_ms)| ReadResult { body, max_lac, lac_update_timestamp_ms },
    )
}

pub fn response() -> impl Strategy<Value = proto::Response> {
    (any::<u64>(), error_code(), id(), id()).prop_flat_map(|(txn, code, ledger, entry)| {
        prop_oneof![
            Just(make::add(txn, code, ledger, entry)),
            read_result().prop_map(move |result| make::read(txn, ledger, entry, result)),
            Just(make::read_failure(txn, code, ledger, entry)),
            Just(make::write_lac(txn, code, ledger)),
            (optional_bytes(), optional_bytes())
                .prop_map(move |(lac, last)| make::read_lac(txn, code, ledger, lac, last)),
            Just(make::force_ledger(txn, code, ledger)),
            any::<(Option<i64>, Option<i64>)>()
                .prop_map(move |(total, free)| make::get_bookie_info(txn, code, total, free)),
            optional_bytes().prop_map(move |list| make::get_list_of_entries(txn, code, ledger, list)),
            auth_message().prop_map(move |message| make::auth(txn, message)),
            Just(make::start_tls(txn, code)),
            reconciled().prop_map(move |results| make::reconcile_ledgers(txn, code, results)),
            Just(make::without_body(txn, OperationType::RangeAddEntry, code)),
        ]
    })
}
