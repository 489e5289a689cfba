use super::*;
use crate::store::read_back;
use crate::tree::{Changed, NewNode, Node};
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
    let changes = tree.commit(txn).changes;
    let mut changes: Vec<(&str, Change)> = changes.iter().map(|of| (&*of.path, of.change)).collect();
    changes.sort_by_key(|(path, _)| *path);
    assert_eq!(changes, [("\0loose", Change::Deleted), ("/e", Change::Deleted)]);
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

/// Implied nodes count against the limit of the tree, and a put counts them before it makes the first.
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
    SetRules { path: String },
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
        1 => path_strategy().prop_map(|path| Op::SetRules { path }),
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
    // Numbers that sequential children may have are skipped.
    let count = |model: &mut Expected, key: &str, told: i64| {
        let (_, modifications, _) = model.get_mut(key).unwrap();
        assert!(
            told == *modifications || (told > *modifications && (is_shared(key) || key == "/")),
            "{key:?}"
        );
        *modifications = told;
    };
    match op {
        Op::Put { key, session, index_key } => {
            let of = |key: &String| IndexKey { index: "i".into(), key: key.as_str().into() };
            let index_keys = index_key.as_ref().map(|key| [of(key)].into());
            let put = Put { session: *session, index_keys, ..Put::default() };
            let told = tree.put(txn, &[], key, put).unwrap().modifications;
            write(model, key, txn.zxid, Some(*session));
            count(model, key, told);
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
        // Rules make a record of a node that was there for others only, and change none.
        Op::SetRules { path } => {
            if tree.set_acl(txn, &[], path, acl::open_to_all().to_vec(), -1).is_ok()
                && !model.contains_key(path)
            {
                write(model, path, txn.zxid, Some(None));
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

/// An operation on one parent.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A sequential child of a client of ZooKeeper's.
    Sequential,
    /// Another child of its.
    Child,
    Set,
    /// A number is taken by a client of Oxia's.
    Put,
    /// A record below, of a client of Oxia's.
    Record,
    /// The record is deleted, but others are below it; then it is put again.
    Retire,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    use Step::{Child, Put, Record, Restart, Retire, Sequential, Set};
    let frequent = prop::sample::select(vec![Sequential, Put]);
    prop_oneof![4 => frequent, 3 => prop::sample::select(vec![Child, Set, Record, Restart]), 1 => Just(Retire)]
}

/// The parent of the numbers below, with a child that keeps it alive.
fn numbered(parent: &str, is_made_by_oxia: bool) -> Tree {
    let mut tree = Tree::new(1 << 20);
    if parent == ROOT {
        return tree;
    }
    let mut txn = Txn::new(1, 1);
    if is_made_by_oxia {
        tree.put(&mut txn, &[], parent, Put::default()).unwrap();
    } else {
        let acl = acl::open_to_all().to_vec();
        tree.create(&mut txn, &[], NewNode { path: parent, data: None, acl, owner: 0, is_sequential: false })
            .unwrap();
    }
    tree.put(&mut txn, &[], &format!("{parent}/kept"), Put::default()).unwrap();
    tree.commit(txn);
    tree
}

/// Does a step; gives the number that it took.
fn take(tree: &mut Tree, parent: &str, step: Step, zxid: i64) -> Option<i64> {
    let prefix = format!("{}/", parent.trim_end_matches('/'));
    let mut txn = Txn::new(zxid, zxid);
    let mut create = |tree: &mut Tree, name: &str, is_sequential| {
        let (acl, path) = (acl::open_to_all().to_vec(), format!("{prefix}{name}"));
        tree.create(&mut txn, &[], NewNode { path: &path, data: None, acl, owner: 0, is_sequential })
            .unwrap()
            .0
    };
    let taken = match step {
        Step::Sequential => {
            let path = create(tree, "n-", true);
            let number = path.strip_prefix(&format!("{prefix}n-")).unwrap().parse().unwrap();
            tree.delete(&mut txn, &[], &path, -1).unwrap();
            Some(number)
        }
        Step::Child => {
            create(tree, &format!("c{zxid}"), false);
            None
        }
        Step::Set => {
            tree.set_data(&mut txn, &[], parent, None, -1).unwrap();
            None
        }
        Step::Put => {
            let number = tree.put(&mut txn, &[], parent, Put::default()).unwrap().modifications;
            // The one that makes the record takes none, but for the root.
            (number > 0 || parent == ROOT).then_some(number)
        }
        Step::Record => {
            tree.put(&mut txn, &[], &format!("{prefix}r{zxid}"), Put::default()).unwrap();
            None
        }
        Step::Retire => {
            if tree.record(parent).is_some() {
                tree.delete_record(&mut txn, &[], parent).unwrap();
            }
            tree.put(&mut txn, &[], parent, Put::default()).unwrap();
            None
        }
        Step::Restart => {
            tree.commit(txn);
            let mut restarted = Tree::new(1 << 20);
            let stored: BTreeMap<Arc<str>, NodeRecord> =
                tree.nodes.iter().map(|(path, node)| (path.clone(), read_back(&node.record))).collect();
            for (path, record) in stored {
                restarted.restore(&path, record).unwrap();
            }
            *tree = restarted;
            return None;
        }
    };
    // Another transaction takes numbers, and is taken back.
    tree.commit(txn);
    let mut txn = Txn::new(zxid, zxid);
    tree.put(&mut txn, &[], parent, Put::default()).unwrap();
    let acl = acl::open_to_all().to_vec();
    let path = format!("{prefix}t-");
    tree.create(&mut txn, &[], NewNode { path: &path, data: None, acl, owner: 0, is_sequential: true })
        .unwrap();
    tree.rollback(txn);
    tree.check_invariants();
    taken
}

/// With a record that counts far ahead, ZooKeeper's counter is used up, as behind its last number, and none comes twice.
#[test]
fn a_count_that_zookeepers_counter_cannot_follow_uses_it_up() {
    let mut tree = numbered("/p", true);
    let mut txn = Txn::new(2, 2);
    let far = Put { modifications: Some(1 << 33), ..Put::default() };
    assert_eq!(tree.put(&mut txn, &[], "/p", far).unwrap().modifications, 1 << 33);
    tree.commit(txn);
    let numbers: Vec<i64> =
        (3..6).map(|zxid| take(&mut tree, "/p", Step::Sequential, zxid).unwrap()).collect();
    assert_eq!(numbers, [i64::from(i32::MIN), i64::from(i32::MIN) + 1, i64::from(i32::MIN) + 2]);
    assert_eq!(take(&mut tree, "/p", Step::Put, 6), Some((1 << 33) + 1));
    // A migration that is repeated sets nothing back.
    let mut txn = Txn::new(7, 7);
    let again = Put { modifications: Some(7), ..Put::default() };
    assert_eq!(tree.put(&mut txn, &[], "/p", again).unwrap().modifications, (1 << 33) + 1);
    tree.commit(txn);
    // One whose own counter has passed all of its numbers.
    let mut tree = numbered("/q", false);
    tree.nodes.get_mut("/q").unwrap().record.cversion = i32::MAX;
    assert_eq!(take(&mut tree, "/q", Step::Sequential, 3), Some(i32::MAX.into()));
    assert_eq!(take(&mut tree, "/q", Step::Put, 4), Some(1 << 31));
}

/// A migration may choose the number that the next write has.
#[test]
fn a_write_never_leaves_the_version_of_the_value_that_it_replaces() {
    let mut tree = Tree::new(1 << 20);
    let mut txn = Txn::new(1, 1);
    tree.put(&mut txn, &[], "/a", Put { version_id: Some(2), ..Put::default() }).unwrap();
    tree.commit(txn);
    put(&mut tree, 2, "/a", None).unwrap();
    assert_ne!(tree.record("/a").unwrap().version_id, 2);
}

proptest! {
    /// Tree invariant 3: no number of one parent comes twice, whoever asks, also over restarts, and each side's ascend.
    #[test]
    fn numbers_of_children_are_given_once(
        steps in prop::collection::vec(step(), 1..60),
        is_made_by_oxia: bool,
        is_root: bool,
    ) {
        let parent = if is_root { ROOT } else { "/p" };
        let mut tree = numbered(parent, is_made_by_oxia);
        // Those told to puts of a record that was deleted since, those told to puts, those given to sequential children.
        let mut given = [const { BTreeSet::new() }; 3];
        let mut last = [-1; 3];
        for (zxid, step) in (2..).zip(steps) {
            // A record that was deleted and put again begins to count again, as on Oxia's servers.
            if matches!(step, Step::Retire) {
                if is_root {
                    continue;
                }
                let told = std::mem::take(&mut given[1]);
                given[0].extend(told);
                last[1] = -1;
            }
            let Some(number) = take(&mut tree, parent, step, zxid) else { continue };
            let (own, others) = if matches!(step, Step::Sequential) { (2, 0..3) } else { (1, 1..3) };
            prop_assert!(!given[others].iter().any(|given| given.contains(&number)), "{number} came twice: {given:?}");
            prop_assert!(number > last[own], "{number} is no higher: {given:?}");
            given[own].insert(number);
            last[own] = number;
        }
    }

    /// Where clients of one protocol are alone, they count by one.
    #[test]
    fn numbers_of_one_protocol_have_no_gaps(steps in prop::collection::vec(step(), 1..40), are_oxias: bool) {
        let mut tree = numbered("/p", are_oxias);
        let (mut changes, mut creations) = (0, tree.node("/p").unwrap().record.cversion.into());
        for (zxid, step) in (2..).zip(steps) {
            let is_of_these = match step {
                Step::Sequential | Step::Child => !are_oxias,
                Step::Put | Step::Retire => are_oxias,
                Step::Set | Step::Record | Step::Restart => true,
            };
            if !is_of_these {
                continue;
            }
            let taken = take(&mut tree, "/p", step, zxid);
            match step {
                Step::Put | Step::Set => changes += 1,
                Step::Retire => changes = 0,
                Step::Child | Step::Record => creations += 1,
                Step::Sequential | Step::Restart => {}
            }
            match step {
                Step::Put => prop_assert_eq!(taken, Some(changes)),
                Step::Sequential => {
                    prop_assert_eq!(taken, Some(creations));
                    creations += 1;
                }
                _ => prop_assert_eq!(taken, None),
            }
        }
    }

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
                for Changed { path, change, .. } in tree.commit(txn).changes {
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
