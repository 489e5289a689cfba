use super::*;
use crate::tree::{NewNode, Node};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn put(tree: &mut Tree, zxid: i64, key: &str, session: Option<i64>) -> Result<(), Refused> {
    let mut txn = Txn::new(zxid, zxid * 10);
    let put = Put { value: "v".into(), session, ..Put::default() };
    let done = tree.put(&mut txn, &[], key, put).map(drop);
    match done {
        Ok(()) => drop(tree.commit(txn)),
        Err(_) => tree.rollback(txn),
    }
    tree.check_invariants();
    done
}

fn delete(tree: &mut Tree, zxid: i64, key: &str) -> Vec<Event> {
    let mut txn = Txn::new(zxid, zxid * 10);
    tree.delete_record(&mut txn, &[], key).unwrap();
    let events = tree.commit(txn).events;
    tree.check_invariants();
    events
}

fn keys_of(tree: &Tree) -> Vec<&str> {
    tree.records(Bound::Unbounded, Bound::Unbounded).map(|(key, _)| key).collect()
}

#[test]
fn keys_that_are_paths_are_shared_and_all_others_are_not() {
    for key in ["/a", "/a/b", "/a b", "/zookeepers", "/ledgers/00/0000/L0001"] {
        assert!(is_shared(key), "{key:?}");
    }
    let (deep, long) = ("/a".repeat(SHARED_PARTS_MAX + 1), format!("/{}", "a".repeat(SHARED_BYTES_MAX)));
    for key in
        ["", "a", "/", "//", "/a/", "/a//b", "/a/..", "/zookeeper", "/zookeeper/quota", "/\0", &deep, &long]
    {
        assert!(!is_shared(key), "{key:?}");
        assert_eq!(key_of(&path_of(key)), Some(key));
    }
    for path in ["/", "/zookeeper/config", &deep] {
        assert_eq!(key_of(path), None, "a node of ZooKeeper's own");
    }
}

/// A record below a path brings nodes for ZooKeeper's clients, which Oxia's do not see, and which go with it.
#[test]
fn missing_parents_are_implied_and_go_with_the_last_record() {
    let mut tree = Tree::new(1 << 20);
    put(&mut tree, 1, "/a/b/c", None).unwrap();
    assert_eq!(keys_of(&tree), ["/a/b/c"]);
    let node = tree.node("/a/b").unwrap();
    assert_eq!((node.record.data.clone(), node.children().collect::<Vec<_>>()), (None, vec!["c"]));
    // Made, it is a new record; to ZooKeeper's clients its value changed.
    put(&mut tree, 2, "/a", None).unwrap();
    let record = tree.record("/a").unwrap();
    assert_eq!((record.version_id, record.modifications, record.version, record.ctime_ms), (2, 0, 1, 20));
    let events = delete(&mut tree, 3, "/a");
    let kinds: Vec<EventKind> = events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::DataChanged], "the node stays for what is below it");
    assert_eq!(tree.node("/a").unwrap().record.version, 2);
    assert_eq!(keys_of(&tree), ["/a/b/c"]);
    let events = delete(&mut tree, 4, "/a/b/c");
    let gone = |event: &&Event| event.kind == EventKind::Deleted;
    let gone: Vec<&str> = events.iter().filter(gone).map(|event| &*event.path).collect();
    assert_eq!(gone, ["/a/b/c", "/a/b", "/a"]);
    assert_eq!(tree.len(), 4, "ZooKeeper's own");
}

#[test]
fn the_end_of_a_session_leaves_what_others_put_below_its_records() {
    let mut tree = Tree::new(1 << 20);
    put(&mut tree, 1, "/e", Some(7)).unwrap();
    put(&mut tree, 2, "/e/kept", None).unwrap();
    put(&mut tree, 3, "loose", Some(7)).unwrap();
    let mut txn = Txn::new(4, 0);
    tree.delete_ephemerals(&mut txn, 7);
    let mut changes = tree.commit(txn).changes;
    changes.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(changes, [("\0loose".into(), Change::Deleted), ("/e".into(), Change::Deleted)]);
    tree.check_invariants();
    assert_eq!(keys_of(&tree), ["/e/kept"]);
    assert!(tree.node("/e").is_some_and(|node| node.record.session().is_none()));
}

#[test]
fn a_record_that_is_put_without_a_session_is_no_longer_ephemeral() {
    let mut tree = Tree::new(1 << 20);
    put(&mut tree, 1, "/e", Some(7)).unwrap();
    put(&mut tree, 2, "/e", None).unwrap();
    assert_eq!(tree.ephemerals_of(7).count(), 0);
    put(&mut tree, 3, "/e", Some(8)).unwrap();
    assert_eq!((tree.ephemerals_of(7).count(), tree.ephemerals_of(8).count()), (0, 1));
}

/// [`SHARED_PARTS_MAX`]: what is implied counts, and is counted before any of it is made.
#[test]
fn implied_nodes_need_room() {
    let mut tree = Tree::new(20 * NODE_OVERHEAD_BYTES);
    assert_eq!(put(&mut tree, 1, &"/a".repeat(30), None), Err(Refused::NoRoom));
    assert_eq!(tree.len(), 4);
    put(&mut tree, 2, &"/a".repeat(5), None).unwrap();
    assert_eq!(put(&mut tree, 3, &format!("/{}", "x".repeat(9000)), None), Err(Refused::NoRoom));
    put(&mut tree, 4, &"/a".repeat(30), Some(1)).unwrap_err();
    put(&mut tree, 5, "/registration", Some(1)).unwrap();
}

#[test]
fn a_path_longer_than_zookeeper_should_see_is_kept_beside_it() {
    let mut tree = Tree::new(1 << 20);
    let deep = "/a".repeat(SHARED_PARTS_MAX + 1);
    put(&mut tree, 1, &deep, None).unwrap();
    assert_eq!((keys_of(&tree), tree.len()), (vec![&*deep], 4));
    assert!(tree.node("/a").is_none() && tree.node(&format!("\0{deep}")).is_none());
}

#[derive(Debug, Clone)]
enum Op {
    Put { key: String, session: Option<i64>, index_key: Option<String> },
    Delete { key: String },
    Create { path: String, session: i64 },
    Set { path: String },
    Remove { path: String },
    EndSession(i64),
}

fn path_strategy() -> impl Strategy<Value = String> {
    prop::collection::vec("[ab]", 1..5)
        .prop_map(|names| names.iter().map(|name| format!("/{name}")).collect())
}

fn key_strategy() -> impl Strategy<Value = String> {
    let loose = prop::sample::select(vec![
        "",
        "x",
        "/",
        "//",
        "/a/",
        "a/b",
        "/zookeeper",
        "/zookeeper/x",
        "__oxia/x",
    ]);
    prop_oneof![4 => path_strategy(), 1 => loose.prop_map(str::to_owned)]
}

fn op() -> impl Strategy<Value = Op> {
    let session = || prop_oneof![3 => Just(None), 1 => (7..9i64).prop_map(Some)];
    prop_oneof![
        4 => (key_strategy(), session(), prop::option::of("[xy]"))
            .prop_map(|(key, session, index_key)| Op::Put { key, session, index_key }),
        3 => key_strategy().prop_map(|key| Op::Delete { key }),
        2 => (path_strategy(), session())
            .prop_map(|(path, session)| Op::Create { path, session: session.unwrap_or(0) }),
        1 => path_strategy().prop_map(|path| Op::Set { path }),
        2 => path_strategy().prop_map(|path| Op::Remove { path }),
        1 => (7..9i64).prop_map(Op::EndSession),
    ]
}

/// A record as the model has it: version, changes, session.
type Fields = (i64, i64, Option<i64>);
type Expected = BTreeMap<String, Fields>;

fn run(tree: &mut Tree, txn: &mut Txn, model: &mut Expected, op: &Op) {
    let write = |model: &mut Expected, key: &str, version: i64, session: Option<Option<i64>>| {
        let before = model.get(key).copied();
        let session = session.unwrap_or_else(|| before.and_then(|(_, _, session)| session));
        let modifications = before.map_or(0, |(_, modifications, _)| modifications + 1);
        model.insert(key.to_owned(), (version, modifications, session));
    };
    match op {
        Op::Put { key, session, index_key } => {
            let of = |key: &String| IndexKey { index: "i".into(), key: key.as_str().into() };
            let index_keys = index_key.as_ref().map(|key| [of(key)].into());
            tree.put(txn, &[], key, Put { session: *session, index_keys, ..Put::default() }).unwrap();
            write(model, key, txn.zxid, Some(*session));
        }
        Op::Delete { key } => {
            let was_there = model.remove(key).is_some();
            assert_eq!(tree.delete_record(txn, &[], key).is_ok(), was_there, "{key:?}");
        }
        Op::Create { path, session } => {
            let acl = acl::open_to_all().to_vec();
            let new = NewNode { path, data: None, acl, owner: *session, is_sequential: false };
            if tree.create(txn, &[], new).is_ok() {
                assert!(!model.contains_key(path));
                write(model, path, txn.zxid, Some((*session != 0).then_some(*session)));
            }
        }
        Op::Set { path } => {
            if tree.set_data(txn, &[], path, Some("w".into()), -1).is_ok() {
                write(model, path, txn.zxid, None);
            }
        }
        Op::Remove { path } => {
            if tree.delete(txn, &[], path, -1).is_ok() {
                assert!(model.remove(path).is_some());
            }
        }
        Op::EndSession(session) => {
            tree.delete_ephemerals(txn, *session);
            model.retain(|_, (_, _, owner)| *owner != Some(*session));
        }
    }
}

proptest! {
    /// Clients of both protocols against a plain map: the same records in Oxia's order, nodes for ZooKeeper where a record is at or below a
    /// path, whole transactions taken back, changes that add up, and a store from which the same tree comes.
    #[test]
    fn both_protocols_see_one_tree(
        txns in prop::collection::vec((prop::collection::vec(op(), 1..4), prop::bool::weighted(0.2)), 1..60),
    ) {
        let (mut tree, mut model) = (Tree::new(1 << 20), Expected::new());
        let mut stored: BTreeMap<Arc<str>, NodeRecord> = BTreeMap::new();
        for (zxid, (ops, is_taken_back)) in (1..).zip(&txns) {
            let (nodes_before, model_before) = (tree.nodes.clone(), model.clone());
            let mut txn = Txn::new(zxid, zxid);
            for op in ops {
                run(&mut tree, &mut txn, &mut model, op);
            }
            if *is_taken_back {
                tree.rollback(txn);
                model = model_before;
                let same = nodes_before.iter().all(|(path, node)| tree.nodes.get(path) == Some(node));
                prop_assert!(same && nodes_before.len() == tree.nodes.len(), "tree invariant 1");
            } else {
                let mut told: BTreeSet<String> = model_before.into_keys().collect();
                for (path, change) in tree.commit(txn).changes {
                    let Some(key) = key_of(&path) else { continue };
                    match change {
                        Change::Created => prop_assert!(told.insert(key.to_owned()), "{key:?} was there"),
                        Change::Modified => prop_assert!(told.contains(key), "{key:?} was not there"),
                        Change::Deleted => prop_assert!(told.remove(key), "{key:?} was not there"),
                    }
                }
                prop_assert!(told.iter().eq(model.keys()), "the changes say what there is");
            }
            tree.check_invariants();
            let found: Vec<(&str, Fields)> = tree
                .records(Bound::Unbounded, Bound::Unbounded)
                .map(|(key, record)| (key, (record.version_id, record.modifications, record.session())))
                .collect();
            let mut expected: Vec<_> = model.iter().map(|(key, fields)| (key.as_str(), *fields)).collect();
            expected.sort_by(|one, other| keys::compare(one.0, other.0));
            prop_assert_eq!(found, expected);
            let visible: BTreeSet<&str> = model
                .keys()
                .filter(|key| is_shared(key))
                .flat_map(|key| key.match_indices('/').map(|(at, _)| &key[..at]).skip(1).chain([key.as_str()]))
                .collect();
            let own = |path: &&str| *path != "/" && !path.starts_with("/zookeeper") && !is_loose(path);
            let nodes: BTreeSet<&str> = tree.nodes.keys().map(|path| &**path).filter(own).collect();
            prop_assert_eq!(nodes, visible);
            for (path, record) in tree.take_changed() {
                match record {
                    Some(record) => drop(stored.insert(path, record)),
                    None => drop(stored.remove(&path)),
                }
            }
        }
        let mut restored = Tree::new(1 << 20);
        for (path, record) in stored {
            restored.restore(&path, record).unwrap();
        }
        restored.check_invariants();
        let sorted = |tree: &Tree| -> BTreeMap<Arc<str>, Node> { tree.nodes.clone().into_iter().collect() };
        prop_assert_eq!(sorted(&restored), sorted(&tree));
    }
}
