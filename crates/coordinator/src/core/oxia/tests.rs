use super::*;
use crate::core::CoreConfig;
use crate::core::tests::{A, at, connect, create, frames, header, read};
use crate::tree::acl;
use crate::wire::{Acl, opcode};
use bindery_io::SeededRandom;
use bindery_oxia::proto::{
    DeleteRangeRequest, DeleteRequest, NotificationBatch, NotificationType, PutRequest, PutResponse,
    SecondaryIndex, WriteRequest, WriteResponse,
};
use prost::Message;
use std::sync::Arc;

const EVERYTHING: usize = usize::MAX;

fn core() -> Core {
    Core::new(CoreConfig::small(), 0, at(0), Arc::new(SeededRandom::new(1)))
}

fn write(core: &mut Core, request: WriteRequest) -> Result<WriteResponse, Failure> {
    let done = core.oxia_write(at(0), &[], request, &mut Vec::new());
    core.tree.check_invariants();
    done
}

fn put_of(key: &str, value: &str) -> PutRequest {
    PutRequest { key: key.into(), value: value.to_owned().into(), ..PutRequest::default() }
}

fn put(core: &mut Core, put: PutRequest) -> PutResponse {
    write(core, WriteRequest { puts: vec![put], ..WriteRequest::default() }).unwrap().puts.remove(0)
}

fn version_of(response: &PutResponse) -> Version {
    assert_eq!(response.status(), Status::Ok);
    response.version.clone().unwrap()
}

fn delete(core: &mut Core, key: &str, expected_version_id: Option<i64>) -> Status {
    let deletes = vec![DeleteRequest { key: key.into(), expected_version_id, partition_key: None }];
    let done = write(core, WriteRequest { deletes, ..WriteRequest::default() }).unwrap();
    done.deletes[0].status()
}

fn list(core: &Core, start: &str, end: &str) -> Vec<String> {
    core.oxia_list(&[], &KeyRange::new(start.into(), end.into(), false, None), EVERYTHING).items
}

fn get(core: &Core, key: &str, comparison: KeyComparisonType) -> Option<(Option<String>, String)> {
    let get = GetRequest {
        key: key.into(),
        include_value: true,
        comparison_type: comparison.into(),
        secondary_index_name: None,
    };
    let answer = core.oxia_get(&[], &get).unwrap();
    let value = || String::from_utf8(answer.value.clone().unwrap().to_vec()).unwrap();
    (answer.status() == Status::Ok).then(|| (answer.key.clone(), value()))
}

/// Every batch behind an offset: its offset, and each key with the kind of its change.
fn told(core: &Core, offset: i64) -> Vec<(i64, Vec<(String, NotificationType)>)> {
    let batches = core.oxia_notifications(offset, EVERYTHING);
    let decode = |(at, encoded): (i64, Bytes)| {
        let batch = NotificationBatch::decode(encoded).unwrap();
        assert_eq!((batch.offset, batch.shard), (at, SHARD));
        let kinds = batch.notifications.iter().map(|(key, of)| (key.clone(), of.r#type()));
        (at, kinds.collect())
    };
    batches.into_iter().map(decode).collect()
}

#[test]
fn versions_are_expected_and_counted() {
    let mut core = core();
    let first = put(&mut core, PutRequest { expected_version_id: Some(-1), ..put_of("a", "1") });
    let version = version_of(&first);
    assert_eq!((version.modifications_count, version.created_timestamp), (0, 1_700_000_000_000));
    let again = put(&mut core, PutRequest { expected_version_id: Some(-1), ..put_of("a", "2") });
    assert_eq!(again.status(), Status::UnexpectedVersionId);
    let expected = Some(version.version_id);
    let next = put(&mut core, PutRequest { expected_version_id: expected, ..put_of("a", "2") });
    let next = version_of(&next);
    assert!(next.version_id > version.version_id, "invariant 2");
    assert_eq!(next.modifications_count, 1);
    let old = put(&mut core, PutRequest { expected_version_id: expected, ..put_of("a", "3") });
    assert_eq!(old.status(), Status::UnexpectedVersionId);
    let none = put(&mut core, PutRequest { expected_version_id: Some(5), ..put_of("b", "") });
    assert_eq!(none.status(), Status::UnexpectedVersionId);
    assert_eq!(delete(&mut core, "a", expected), Status::UnexpectedVersionId);
    assert_eq!(delete(&mut core, "a", Some(next.version_id)), Status::Ok);
    assert_eq!(delete(&mut core, "a", None), Status::KeyNotFound);
    assert_eq!(delete(&mut core, "a", Some(-1)), Status::KeyNotFound);
    let overridden = PutRequest {
        override_version_id: Some(1),
        override_modifications_count: Some(41),
        ..put_of("a", "")
    };
    let version = version_of(&put(&mut core, overridden));
    assert_eq!((version.version_id, version.modifications_count), (1, 41));
    let next = version_of(&put(&mut core, put_of("a", "")));
    assert_eq!((next.version_id > 1, next.modifications_count), (true, 42));
}

/// Invariant 1: operations have statuses of their own, but a request that fails leaves nothing.
#[test]
fn a_request_is_applied_in_order_or_not_at_all() {
    let mut core = core();
    let request = WriteRequest {
        puts: vec![
            put_of("/x/1", ""),
            PutRequest { expected_version_id: Some(7), ..put_of("/x/2", "") },
            put_of("/y", ""),
        ],
        deletes: vec![DeleteRequest { key: "/y".into(), ..DeleteRequest::default() }],
        delete_ranges: vec![DeleteRangeRequest {
            start_inclusive: "/x/".into(),
            end_exclusive: "/x//".into(),
        }],
        ..WriteRequest::default()
    };
    let offset = core.oxia_offset();
    let response = write(&mut core, request.clone()).unwrap();
    let statuses: Vec<Status> = response.puts.iter().map(PutResponse::status).collect();
    assert_eq!(statuses, [Status::Ok, Status::UnexpectedVersionId, Status::Ok]);
    assert_eq!(list(&core, "", ""), [] as [&str; 0]);
    let told = told(&core, offset);
    let [(_, changes)] = &told[..] else { panic!("one batch: {told:?}") };
    assert!(changes.contains(&("/x/".into(), NotificationType::KeyRangeDeleted)), "{changes:?}");
    assert!(changes.contains(&("/y".into(), NotificationType::KeyDeleted)), "the last change of a key");
    let mut request = request;
    request.puts.push(PutRequest { sequence_key_delta: vec![1], ..put_of("s", "") });
    request.delete_ranges.clear();
    assert!(matches!(write(&mut core, request), Err(Failure::Invalid(_))));
    assert_eq!(list(&core, "", ""), [] as [&str; 0]);
}

#[test]
fn reads_find_neighbours_in_the_order_of_keys() {
    use KeyComparisonType::{Ceiling, Equal, Floor, Higher, Lower};
    let mut core = core();
    for key in ["a", "c", "/x", "/x/1", "/x/3", "__oxia/own"] {
        put(&mut core, put_of(key, key));
    }
    let found = |key: &str, comparison| get(&core, key, comparison).map(|(key, value)| key.unwrap_or(value));
    assert_eq!(get(&core, "a", Equal), Some((None, "a".into())), "the key is not repeated");
    assert_eq!(get(&core, "b", Equal), None);
    for (key, comparison, expected) in [
        ("a", Floor, Some("a")),
        ("b", Floor, Some("a")),
        ("A", Floor, None),
        ("b", Ceiling, Some("c")),
        ("c", Ceiling, Some("c")),
        ("c", Higher, Some("/x")),
        ("/x/2", Higher, Some("/x/3")),
        ("/x/3", Higher, None),
        ("/x/3", Lower, Some("/x/1")),
        ("/x/1", Lower, Some("/x")),
        ("__oxia/p", Floor, Some("/x/3")),
        ("__oxia/own", Floor, Some("__oxia/own")),
    ] {
        assert_eq!(found(key, comparison).as_deref(), expected, "{key} {comparison:?}");
    }
    assert_eq!(list(&core, "/x/", "/x//"), ["/x/1", "/x/3"]);
    assert_eq!(list(&core, "", ""), ["a", "c", "/x", "/x/1", "/x/3"], "own keys are not listed");
    assert_eq!(list(&core, "c", "a"), [] as [&str; 0], "a range that ends before it begins");
    let with_own = KeyRange::new("/x/3".into(), String::new(), true, None);
    assert_eq!(core.oxia_list(&[], &with_own, EVERYTHING).items, ["/x/3", "__oxia/own"]);
    // In pages, each of which goes on behind the one before.
    let (mut range, mut pages) = (Some(KeyRange::new(String::new(), String::new(), false, None)), Vec::new());
    while let Some(rest) = range {
        let page = core.oxia_scan(&[], &rest, 1);
        pages.push(page.items.into_iter().map(|record| record.key.unwrap()).collect::<Vec<_>>());
        range = page.rest;
    }
    assert_eq!(pages.concat(), ["a", "c", "/x", "/x/1", "/x/3"]);
    assert_eq!(pages.len(), 6, "one record each, and an empty one");
}

#[test]
fn sequences_go_on_from_their_last_key() {
    let mut core = core();
    let next = |core: &mut Core, deltas: &[u64]| {
        let sequential = PutRequest {
            partition_key: Some("p".into()),
            sequence_key_delta: deltas.to_vec(),
            ..put_of("s", "")
        };
        let puts = vec![sequential];
        write(core, WriteRequest { puts, ..WriteRequest::default() })
            .map(|done| done.puts[0].key.clone().unwrap())
    };
    assert_eq!(core.oxia_highest_in_sequence(&[], "s"), None);
    assert_eq!(next(&mut core, &[3]).unwrap(), "s-00000000000000000003");
    assert_eq!(next(&mut core, &[1]).unwrap(), "s-00000000000000000004");
    assert_eq!(
        next(&mut core, &[1, 7]).unwrap(),
        "s-00000000000000000005-00000000000000000007",
        "a further number begins at zero"
    );
    assert!(matches!(next(&mut core, &[1]), Err(Failure::Invalid(_))), "one number is missing");
    assert!(matches!(next(&mut core, &[0, 1]), Err(Failure::Invalid(_))));
    assert!(matches!(next(&mut core, &[u64::MAX, 1]), Err(Failure::Invalid(_))), "it would go back");
    let highest = core.oxia_highest_in_sequence(&[], "s");
    assert_eq!(highest.as_deref(), Some("s-00000000000000000005-00000000000000000007"));
    let no_partition = PutRequest { sequence_key_delta: vec![1], ..put_of("t", "") };
    let request = WriteRequest { puts: vec![no_partition], ..WriteRequest::default() };
    assert!(matches!(write(&mut core, request), Err(Failure::Invalid(_))));
}

#[test]
fn sessions_take_their_records_along() {
    let mut core = core();
    for timeout_ms in [1999, 300_001] {
        let refused = core.oxia_create_session(at(0), timeout_ms, "me");
        assert_eq!(refused, Err(Failure::SessionTimeout(timeout_ms)));
    }
    let session = core.oxia_create_session(at(0), 2000, "me").unwrap();
    let ephemeral = |session| PutRequest {
        session_id: Some(session),
        client_identity: Some("me".into()),
        ..put_of("/e", "")
    };
    let version = version_of(&put(&mut core, ephemeral(session)));
    assert_eq!((version.session_id, version.client_identity.as_deref()), (Some(session), Some("me")));
    assert_eq!(put(&mut core, ephemeral(session + 1)).status(), Status::SessionDoesNotExist);
    let mut out = Vec::new();
    for second in 1..=9 {
        core.oxia_keep_alive(at(second * 1000), session).unwrap();
        core.on_tick(at(second * 1000), false, &mut out);
    }
    assert_eq!(list(&core, "", ""), ["/e"]);
    (10..=13).for_each(|second| core.on_tick(at(second * 1000), false, &mut out));
    assert_eq!(list(&core, "", ""), [] as [&str; 0], "its time is up");
    assert_eq!(core.oxia_keep_alive(at(0), session), Err(Failure::NoSession));
    assert_eq!(core.oxia_close_session(at(0), session, &mut out), Err(Failure::NoSession));
    // Those of ZooKeeper's clients are their own.
    let (_, theirs, password) = connect(&mut core, A, 0, &[]);
    assert_eq!(core.oxia_keep_alive(at(0), theirs), Err(Failure::NoSession));
    assert_eq!(put(&mut core, ephemeral(theirs)).status(), Status::SessionDoesNotExist);
    let session = core.oxia_create_session(at(0), 2000, "me").unwrap();
    assert_eq!(core.sessions.resume(session, &[0; 16], A, 2000, 0), None, "and the other way round");
    assert_eq!(password.len(), 16);
    core.oxia_close_session(at(0), session, &mut out).unwrap();
    (0..20).for_each(|_| drop(core.oxia_create_session(at(0), 2000, "me")));
    assert_eq!(core.oxia_create_session(at(0), 2000, "me"), Err(Failure::TooManySessions));
}

/// Invariant 3, and watches of the other protocol.
#[test]
fn each_protocol_is_told_of_the_others_writes() {
    let mut core = core();
    connect(&mut core, A, 0, &[]);
    read(&mut core, A, opcode::EXISTS, "/a", true);
    let mut out = Vec::new();
    let request = WriteRequest { puts: vec![put_of("/a", "1")], ..WriteRequest::default() };
    core.oxia_write(at(0), &[], request, &mut out).unwrap();
    assert_eq!(header(&frames(&out, A)[0]).0, -1, "the watch fires");
    let offset = core.oxia_offset();
    let replies = create(&mut core, A, "/b", 1);
    let zxid = header(&frames(&replies, A)[0]).1;
    assert_eq!(told(&core, offset), [(zxid, vec![("/b".into(), NotificationType::KeyCreated)])]);
    let record = core.tree.record("/b").unwrap();
    assert_eq!((record.version_id, record.modifications), (zxid, 0));
    // Its session ends.
    let batch = core.take_batch();
    assert_eq!(batch.notifications.len(), 2);
    (1..=9).for_each(|second| core.on_tick(at(second * 1000), false, &mut out));
    assert_eq!(told(&core, zxid)[0].1, [("/b".into(), NotificationType::KeyDeleted)]);
}

/// Nodes whose rules shut clients of Oxia out: they have no names, so only rules for all and for addresses let them in.
#[test]
fn rules_of_zookeepers_side_hold() {
    let mut core = core();
    put(&mut core, put_of("/mine", "secret"));
    let mut txn = crate::tree::Txn::new(99, 0);
    let mine = Acl { perms: 31, scheme: "digest".into(), id: format!("me:{}=", "x".repeat(27)) };
    core.tree.set_acl(&mut txn, &[], "/mine", vec![mine], -1).unwrap();
    core.tree.commit(txn);
    let get = GetRequest { key: "/mine".into(), ..GetRequest::default() };
    assert_eq!(core.oxia_get(&[], &get), Err(Failure::NotAllowed));
    assert_eq!(list(&core, "", ""), [] as [&str; 0]);
    for request in [
        WriteRequest { puts: vec![put_of("/other", ""), put_of("/mine", "")], ..WriteRequest::default() },
        WriteRequest { puts: vec![put_of("/mine/below", "")], ..WriteRequest::default() },
    ] {
        assert_eq!(write(&mut core, request), Err(Failure::NotAllowed));
    }
    assert!(core.tree.record("/other").is_none(), "nothing of it was done");
    let reader = Acl { perms: acl::PERM_READ, scheme: "ip".into(), id: "127.0.0.1".into() };
    let mut txn = crate::tree::Txn::new(100, 0);
    let me = Identity { scheme: "digest", id: format!("me:{}=", "x".repeat(27)) };
    core.tree.set_acl(&mut txn, &[me], "/mine", vec![reader], -1).unwrap();
    core.tree.commit(txn);
    let local = [Identity { scheme: "ip", id: "127.0.0.1".into() }];
    assert_eq!(core.oxia_get(&local, &get).map(|answer| answer.status()), Ok(Status::Ok));
}

/// Replaces the rules of a node.
fn set_rules(core: &mut Core, path: &str, perms: i32, scheme: &str, id: &str) {
    let mut txn = crate::tree::Txn::new(core.zxid, 0);
    let rules = vec![Acl { perms, scheme: scheme.into(), id: id.into() }];
    core.tree.set_acl(&mut txn, &[], path, rules, -1).unwrap();
    core.tree.commit(txn);
}

/// A record that a client may not read is in none of its notifications: its name, its version, and that it changed, are not the client's to
/// know. The rules are those of the moment of the change, also of a deletion.
#[test]
fn notifications_leave_out_what_a_client_may_not_read() {
    let mut core = core();
    for key in ["/hidden", "/local", "/open"] {
        put(&mut core, put_of(key, "v"));
    }
    set_rules(&mut core, "/hidden", acl::PERM_WRITE, "world", "anyone");
    let readers = Acl { perms: 31, scheme: "ip".into(), id: "127.0.0.0/8".into() };
    let writers = Acl { perms: acl::PERM_WRITE, scheme: "world".into(), id: "anyone".into() };
    let mut txn = crate::tree::Txn::new(core.zxid, 0);
    core.tree.set_acl(&mut txn, &[], "/local", vec![readers, writers], -1).unwrap();
    core.tree.commit(txn);
    let offset = core.oxia_offset();
    let puts = ["/hidden", "/local", "/open"].map(|key| put_of(key, "w")).to_vec();
    write(&mut core, WriteRequest { puts, ..WriteRequest::default() }).unwrap();
    put(&mut core, put_of("/hidden", "x"));
    delete(&mut core, "/hidden", None);
    delete(&mut core, "/local", None);
    let (local, other) = ([identity("127.0.0.1")], [identity("::1")]);
    let told = |core: &Core, identities: &[Identity]| -> Vec<Vec<String>> {
        let batches = core.oxia_notifications(offset, EVERYTHING);
        let readable = batches.iter().map(|(_, encoded)| readable(encoded, identities).unwrap());
        readable.flatten().map(|batch| batch.notifications.into_keys().collect()).collect()
    };
    let names = |batches: &[&[&str]]| -> Vec<Vec<String>> {
        batches.iter().map(|keys| keys.iter().map(|key| (*key).to_owned()).collect()).collect()
    };
    assert_eq!(told(&core, &local), names(&[&["/local", "/open"], &["/local"]]));
    assert_eq!(told(&core, &other), names(&[&["/open"]]));
    // They come from the store as they were.
    let batch = core.take_batch();
    let mut restarted = self::core();
    for (offset, encoded) in batch.notifications {
        restarted.restore_notifications(offset, encoded).unwrap();
    }
    assert_eq!(told(&restarted, &local), told(&core, &local));
    assert!(restarted.restore_notifications(1, Bytes::from_static(&[0xff])).is_err());
}

fn identity(address: &str) -> Identity {
    Identity { scheme: "ip", id: address.into() }
}

/// Rules that are longer than may be kept: nobody is told, rather than everybody.
#[test]
fn a_record_with_too_many_readers_is_told_to_nobody() {
    let mut core = core();
    put(&mut core, put_of("/a", "v"));
    let rule = |number: usize| Acl {
        perms: 31,
        scheme: "ip".into(),
        id: format!("127:{:x}:{number:x}:1111:1111:1111:1111:1111/128", number % 7),
    };
    let mut rules: Vec<Acl> = (0..900).map(rule).collect();
    rules.push(Acl { perms: 31, scheme: "ip".into(), id: "127.0.0.1".into() });
    let me = [identity("127.0.0.1")];
    for path in ["/a/1", "/a/2", "/a/3"] {
        let mut txn = crate::tree::Txn::new(core.zxid, 0);
        let new =
            crate::tree::NewNode { path, data: None, acl: rules.clone(), owner: 0, is_sequential: false };
        core.tree.create(&mut txn, &[], new).unwrap();
        core.tree.commit(txn);
    }
    let offset = core.oxia_offset();
    let puts = ["/a/1", "/a/2", "/a/3"].map(|key| put_of(key, "w")).to_vec();
    let request = WriteRequest { puts, ..WriteRequest::default() };
    core.oxia_write(at(0), &me, request, &mut Vec::new()).unwrap();
    let [(_, encoded)] = &core.oxia_notifications(offset, EVERYTHING)[..] else { panic!("one batch") };
    let batch = readable(encoded, &me).unwrap().unwrap();
    assert_eq!(batch.notifications.keys().collect::<Vec<_>>(), ["/a/1"]);
}

/// Of two ranges with one beginning both are told.
#[test]
fn ranges_that_begin_alike_are_told_as_the_larger_one() {
    for (ends, expected) in [(["/c", "/b"], "/c"), (["/b", "/c"], "/c"), (["", "/b"], ""), (["/b", ""], "")] {
        let mut core = core();
        let range =
            |end: &str| DeleteRangeRequest { start_inclusive: "/a".into(), end_exclusive: end.into() };
        let delete_ranges = ends.map(range).to_vec();
        write(&mut core, WriteRequest { delete_ranges, ..WriteRequest::default() }).unwrap();
        let batches = core.oxia_notifications(0, EVERYTHING);
        let batch = NotificationBatch::decode(batches[0].1.clone()).unwrap();
        assert_eq!(batch.notifications["/a"].key_range_last.as_deref(), Some(expected), "{ends:?}");
    }
}

/// A condition is answered only to who may do without it: it would tell what there is, and which version it has.
#[test]
fn conditions_tell_nothing_to_whom_a_write_is_refused() {
    let mut core = core();
    let version = version_of(&put(&mut core, put_of("/a", "v"))).version_id;
    put(&mut core, put_of("/a/b", "v"));
    set_rules(&mut core, "/a", acl::PERM_READ, "digest", &format!("me:{}=", "x".repeat(27)));
    for expected_version_id in [None, Some(-1), Some(version), Some(version + 1)] {
        for key in ["/a", "/a/new", "/a/new/below"] {
            let puts = vec![PutRequest { expected_version_id, ..put_of(key, "") }];
            let done = write(&mut core, WriteRequest { puts, ..WriteRequest::default() });
            assert_eq!(done, Err(Failure::NotAllowed), "{key} {expected_version_id:?}");
        }
        for key in ["/a/b", "/a/none"] {
            let deletes = vec![DeleteRequest { key: key.into(), expected_version_id, partition_key: None }];
            let done = write(&mut core, WriteRequest { deletes, ..WriteRequest::default() });
            assert_eq!(done, Err(Failure::NotAllowed), "{key} {expected_version_id:?}");
        }
    }
}

/// Records that a client may not read are passed over in parts, so that no look takes long.
#[test]
fn hidden_records_are_passed_over_in_parts() {
    let mut core = core();
    let keys: Vec<String> = (0..=HIDDEN_MAX).map(|number| format!("/h/{number:05}")).collect();
    let hidden = |key: &String| PutRequest { secondary_indexes: vec![index("i", "k")], ..put_of(key, "") };
    let puts = keys.iter().map(hidden).collect();
    write(&mut core, WriteRequest { puts, ..WriteRequest::default() }).unwrap();
    for key in &keys {
        set_rules(&mut core, key, acl::PERM_WRITE, "world", "anyone");
    }
    put(&mut core, PutRequest { secondary_indexes: vec![index("i", "l")], ..put_of("/h/last", "v") });
    let (mut range, mut pages, mut found) =
        (Some(KeyRange::new("/h/".into(), "/h//".into(), false, None)), 0, vec![]);
    while let Some(rest) = range {
        let page = core.oxia_list(&[], &rest, 100);
        found.extend(page.items);
        (range, pages) = (page.rest, pages + 1);
    }
    assert_eq!(found, ["/h/last"]);
    assert!(pages > 50, "{pages}");
    use KeyComparisonType::{Ceiling, Equal, Higher};
    let get = |core: &Core, key: &str, comparison: KeyComparisonType, index: Option<&str>| {
        let get = GetRequest {
            key: key.into(),
            comparison_type: comparison.into(),
            secondary_index_name: index.map(str::to_owned),
            ..GetRequest::default()
        };
        core.oxia_get(&[], &get).map(|answer| answer.key)
    };
    let last = Ok(Some("/h/last".to_owned()));
    assert_eq!(get(&core, "/h/", Ceiling, None), Err(Failure::NotAllowed));
    assert_eq!(get(&core, "/h/00001", Higher, None), last, "as many as may be");
    assert_eq!(get(&core, "k", Equal, Some("i")), Err(Failure::NotAllowed));
    assert_eq!(get(&core, "k", Higher, Some("i")), last, "those of the key itself are not looked at");
}

#[test]
fn what_waits_is_counted_by_the_nodes_that_it_brings() {
    let mut core = core();
    put(&mut core, put_of("/a/b/c/d", ""));
    assert!(core.pending_bytes() >= 5 * REQUEST_OVERHEAD_BYTES, "{}", core.pending_bytes());
}

#[test]
fn a_full_tree_refuses_requests_as_a_whole() {
    let mut core = core();
    let large = "x".repeat(600 << 10);
    put(&mut core, put_of("a", &large));
    let puts = vec![put_of("b", ""), put_of("c", &large)];
    assert_eq!(write(&mut core, WriteRequest { puts, ..WriteRequest::default() }), Err(Failure::NoRoom));
    assert_eq!(list(&core, "", ""), ["a"]);
    delete(&mut core, "a", None);
    put(&mut core, put_of("c", &large));
}

fn index(name: &str, key: &str) -> SecondaryIndex {
    SecondaryIndex { index_name: name.into(), secondary_key: key.into() }
}

#[test]
fn records_are_found_by_their_keys_in_indexes() {
    use KeyComparisonType::{Ceiling, Equal, Floor, Higher, Lower};
    let mut core = core();
    for (key, of) in [("/r/1", "b"), ("/r/2", "d"), ("/r/3", "b"), ("loose", "f")] {
        let secondary_indexes = vec![index("i", of), index("i", of), index("other", "x")];
        put(&mut core, PutRequest { secondary_indexes, ..put_of(key, key) });
    }
    let range = |start: &str, end: &str| KeyRange::new(start.into(), end.into(), false, Some("i"));
    let list = |core: &Core, start, end| core.oxia_list(&[], &range(start, end), EVERYTHING).items;
    assert_eq!(list(&core, "", ""), ["/r/1", "/r/3", "/r/2", "loose"], "in the order of the index");
    assert_eq!(list(&core, "b", "d"), ["/r/1", "/r/3"]);
    assert_eq!(list(&core, "d", "b"), [] as [&str; 0]);
    let (mut rest, mut found) = (Some(range("", "")), Vec::new());
    while let Some(range) = rest {
        let page = core.oxia_scan(&[], &range, 1);
        found.extend(page.items.into_iter().map(|record| record.key.unwrap()));
        rest = page.rest;
    }
    assert_eq!(found, ["/r/1", "/r/3", "/r/2", "loose"], "in pages, too");
    let get = |core: &Core, key: &str, comparison: KeyComparisonType| {
        let get = GetRequest {
            key: key.into(),
            include_value: false,
            comparison_type: comparison.into(),
            secondary_index_name: Some("i".into()),
        };
        let answer = core.oxia_get(&[], &get).unwrap();
        answer.key.map(|key| (key, answer.secondary_index_key.unwrap()))
    };
    for (key, comparison, expected) in [
        ("b", Equal, Some(("/r/1", "b"))),
        ("c", Equal, None),
        ("c", Floor, Some(("/r/3", "b"))),
        ("d", Floor, Some(("/r/2", "d"))),
        ("a", Floor, None),
        ("d", Lower, Some(("/r/3", "b"))),
        ("b", Lower, None),
        ("c", Ceiling, Some(("/r/2", "d"))),
        ("b", Higher, Some(("/r/2", "d"))),
        ("f", Higher, None),
    ] {
        let expected = expected.map(|(key, of): (&str, &str)| (key.to_owned(), of.to_owned()));
        assert_eq!(get(&core, key, comparison), expected, "{key} {comparison:?}");
    }
    // Each write replaces a record's keys in indexes, and a deletion removes them.
    put(&mut core, PutRequest { secondary_indexes: vec![index("i", "z")], ..put_of("/r/1", "") });
    put(&mut core, put_of("/r/2", ""));
    delete(&mut core, "loose", None);
    assert_eq!(list(&core, "", ""), ["/r/3", "/r/1"]);
    let ranges = vec![DeleteRangeRequest { start_inclusive: "/r/".into(), end_exclusive: "/r//".into() }];
    write(&mut core, WriteRequest { delete_ranges: ranges, ..WriteRequest::default() }).unwrap();
    assert_eq!(list(&core, "", ""), [] as [&str; 0]);
}

#[test]
fn requests_that_cannot_be_are_refused_as_a_whole() {
    let mut core = core();
    let many = (0..101).map(|number| index("i", &number.to_string())).collect();
    let puts = vec![put_of("b", ""), PutRequest { secondary_indexes: many, ..put_of("a", "") }];
    let refused = write(&mut core, WriteRequest { puts, ..WriteRequest::default() });
    assert!(matches!(refused, Err(Failure::Invalid(_))));
    let get = GetRequest { comparison_type: 9, ..GetRequest::default() };
    assert!(matches!(core.oxia_get(&[], &get), Err(Failure::Invalid(_))));
    for bad in [
        PutRequest { client_identity: Some("x".repeat(2000)), ..put_of("a", "") },
        PutRequest { override_version_id: Some(-1), ..put_of("a", "") },
        PutRequest { override_version_id: Some(i64::MIN), ..put_of("a", "") },
        PutRequest { override_modifications_count: Some(-1), ..put_of("a", "") },
        PutRequest { override_modifications_count: Some(i64::MAX), ..put_of("a", "") },
    ] {
        let refused = write(&mut core, WriteRequest { puts: vec![bad], ..WriteRequest::default() });
        assert!(matches!(refused, Err(Failure::Invalid(_))));
    }
    assert_eq!(list(&core, "", ""), [] as [&str; 0]);
}
