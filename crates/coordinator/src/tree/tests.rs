use super::*;
use crate::wire::Acl;
use proptest::prelude::*;

const SESSION: i64 = 7;

fn tree() -> Tree {
    Tree::new(1 << 20)
}

fn world() -> Vec<Acl> {
    acl::open_to_all().to_vec()
}

fn new(path: &str, owner: i64, is_sequential: bool) -> NewNode<'_> {
    NewNode { path, data: Some(Bytes::from_static(b"v")), acl: world(), owner, is_sequential }
}

/// One operation in a transaction of its own, rolled back when it fails.
fn run<T>(
    tree: &mut Tree,
    zxid: i64,
    act: impl FnOnce(&mut Tree, &mut Txn) -> Result<T, Code>,
) -> Result<T, Code> {
    let mut txn = Txn::new(zxid, zxid * 10);
    let done = act(tree, &mut txn);
    match &done {
        Ok(_) => drop(tree.commit(txn)),
        Err(_) => tree.rollback(txn),
    }
    tree.check_invariants();
    done
}

fn create(tree: &mut Tree, zxid: i64, path: &str) -> Result<Arc<str>, Code> {
    run(tree, zxid, |tree, txn| tree.create(txn, &[], new(path, 0, false))).map(|(path, _)| path)
}

#[test]
fn a_new_tree_has_zookeepers_nodes() {
    let tree = tree();
    assert_eq!(tree.node("/").unwrap().children().collect::<Vec<_>>(), ["zookeeper"]);
    assert_eq!(tree.node("").unwrap().stat().cversion, -1, "never created, but there");
    assert_eq!(tree.node("/zookeeper").unwrap().children().collect::<Vec<_>>(), ["config", "quota"]);
    assert_eq!(tree.node("/zookeeper/config").unwrap().stat().aversion, -1);
    assert_eq!((tree.len(), tree.descendants("/")), (4, 3));
}

#[test]
fn versions_count_and_wrong_ones_are_refused() {
    let mut tree = tree();
    create(&mut tree, 1, "/a").unwrap();
    create(&mut tree, 2, "/a/b").unwrap();
    run(&mut tree, 3, |tree, txn| tree.delete(txn, &[], "/a/b", 0)).unwrap();
    let set = |tree: &mut Tree, zxid, version| {
        run(tree, zxid, |tree, txn| tree.set_data(txn, &[], "/a", Some("12".into()), version))
    };
    assert_eq!(set(&mut tree, 4, 1), Err(Code::BadVersion));
    let stat = set(&mut tree, 5, 0).unwrap();
    let expected = Stat {
        czxid: 1,
        mzxid: 5,
        pzxid: 3,
        ctime_ms: 10,
        mtime_ms: 50,
        version: 1,
        cversion: 2,
        data_size: 2,
        ..Stat::default()
    };
    assert_eq!(stat, expected, "tree invariant 3: one creation, one deletion");
    assert_eq!(set(&mut tree, 6, -1).unwrap().version, 2);
    let acl = |tree: &mut Tree, version| {
        run(tree, 7, |tree, txn| tree.set_acl(txn, &[], "/a", world(), version)).map(|stat| stat.aversion)
    };
    assert_eq!((acl(&mut tree, 0), acl(&mut tree, 0)), (Ok(1), Err(Code::BadVersion)));
    assert_eq!(next_version(-2, -2), Ok(0), "-1 is no version");
}

#[test]
fn a_sequential_name_is_never_given_out_twice() {
    let mut tree = tree();
    create(&mut tree, 1, "/p").unwrap();
    let next = |tree: &mut Tree, zxid| {
        run(tree, zxid, |tree, txn| tree.create(txn, &[], new("/p/n-", 0, true))).unwrap().0
    };
    assert_eq!(&*next(&mut tree, 2), "/p/n-0000000000");
    run(&mut tree, 3, |tree, txn| tree.delete(txn, &[], "/p/n-0000000000", -1)).unwrap();
    assert_eq!(&*next(&mut tree, 4), "/p/n-0000000001", "tree invariant 3");
    assert_eq!(tree.node("/p").unwrap().record.pzxid, 4);
}

#[test]
fn wrong_requests_get_zookeepers_error() {
    let mut tree = tree();
    create(&mut tree, 1, "/a").unwrap();
    create(&mut tree, 2, "/a/b").unwrap();
    run(&mut tree, 3, |tree, txn| tree.create(txn, &[], new("/e", SESSION, false))).unwrap();
    for (path, code) in [
        ("/a", Code::NodeExists),
        ("/", Code::NodeExists),
        ("/x/y", Code::NoNode),
        ("/e/x", Code::NoChildrenForEphemerals),
        ("x", Code::BadArguments),
        ("/x/", Code::NoNode),
        ("/a/", Code::BadArguments),
        ("/a/..", Code::BadArguments),
        ("/a\0", Code::BadArguments),
        ("/zookeeper/quota/a", Code::Unimplemented),
        ("/zookeeper/quota", Code::NodeExists),
    ] {
        assert_eq!(create(&mut tree, 9, path), Err(code), "create {path:?}");
    }
    for (path, code) in [
        ("/a", Code::NotEmpty),
        ("/x", Code::NoNode),
        ("/x/y", Code::NoNode),
        ("/", Code::BadArguments),
        ("/zookeeper", Code::BadArguments),
        ("", Code::BadArguments),
    ] {
        let done = run(&mut tree, 9, |tree, txn| tree.delete(txn, &[], path, -1));
        assert_eq!(done, Err(code), "delete {path:?}");
    }
    let set = |tree: &mut Tree, path: &str| {
        run(tree, 9, |tree, txn| tree.set_data(txn, &[], path, None, -1)).unwrap_err()
    };
    assert_eq!(set(&mut tree, "/zookeeper/config"), Code::NoAuth);
    assert_eq!(set(&mut tree, "/x"), Code::NoNode);
    assert_eq!(set(&mut tree, "/a//b"), Code::BadArguments);
    let container = run(&mut tree, 9, |tree, txn| tree.delete_container(txn, "/e"));
    assert_eq!(container, Err(Code::BadVersion));
}

#[test]
fn a_full_tree_takes_no_more_but_lets_go() {
    let mut tree = Tree::new(5 * NODE_OVERHEAD_BYTES + 275);
    create(&mut tree, 1, "/a").unwrap();
    assert_eq!(create(&mut tree, 2, "/b"), Err(Code::QuotaExceeded));
    let set = |tree: &mut Tree, size: usize| {
        run(tree, 3, |tree, txn| tree.set_data(txn, &[], "/a", Some(vec![0; size].into()), -1)).map(drop)
    };
    assert_eq!(set(&mut tree, 300), Err(Code::QuotaExceeded));
    set(&mut tree, 100).unwrap();
    set(&mut tree, 0).unwrap();
    let rules = |tree: &mut Tree, size: usize| {
        let acl = vec![Acl { perms: 31, scheme: "digest".into(), id: format!("{}:h", "u".repeat(size)) }];
        run(tree, 3, |tree, txn| tree.set_acl(txn, &[], "/a", acl, -1)).map(drop)
    };
    assert_eq!(rules(&mut tree, 300), Err(Code::QuotaExceeded), "rules take memory, too");
    rules(&mut tree, 10).unwrap();
    // A process that registers is let in, and so many of them.
    for session in 1..=RESERVE_NODES {
        let path = format!("/s{session}");
        run(&mut tree, 4, |tree, txn| tree.create(txn, &[], new(&path, session as i64, false))).unwrap();
    }
    let one_more = run(&mut tree, 4, |tree, txn| tree.create(txn, &[], new("/one", 1, false)));
    assert_eq!(one_more.map(drop), Err(Code::QuotaExceeded));
    for session in 1..=RESERVE_NODES {
        let path = format!("/s{session}");
        run(&mut tree, 5, |tree, txn| tree.delete(txn, &[], &path, -1)).unwrap();
    }
    for owner in [CONTAINER_OWNER, ttl_owner(500).unwrap()] {
        let by_itself = run(&mut tree, 5, |tree, txn| tree.create(txn, &[], new("/c", owner, false)));
        assert_eq!(by_itself.map(drop), Err(Code::QuotaExceeded));
    }
    let mut large = new("/l", 1, false);
    large.data = Some(vec![0; RESERVE_BYTES_MAX].into());
    let large = run(&mut tree, 5, |tree, txn| tree.create(txn, &[], large));
    assert_eq!(large.map(drop), Err(Code::QuotaExceeded));
    run(&mut tree, 6, |tree, txn| tree.delete(txn, &[], "/a", -1)).unwrap();
    create(&mut tree, 7, "/b").unwrap();
}

#[test]
fn nodes_that_go_by_themselves_are_found_when_their_time_has_come() {
    let mut tree = tree();
    run(&mut tree, 1, |tree, txn| tree.create(txn, &[], new("/c", CONTAINER_OWNER, false))).unwrap();
    let owner = ttl_owner(500).unwrap();
    run(&mut tree, 2, |tree, txn| tree.create(txn, &[], new("/t", owner, false))).unwrap();
    assert_eq!(tree.node("/t").unwrap().stat().ephemeral_owner, 0);
    assert!(tree.abandoned(520).is_empty(), "a container without a past, and a node that is young");
    assert_eq!(tree.abandoned(521), [Arc::from("/t")]);
    create(&mut tree, 3, "/t/x").unwrap();
    create(&mut tree, 4, "/c/x").unwrap();
    assert!(tree.abandoned(9999).is_empty(), "they have children");
    run(&mut tree, 5, |tree, txn| tree.delete(txn, &[], "/c/x", -1)).unwrap();
    assert_eq!(tree.abandoned(0), [Arc::from("/c")]);
    assert_eq!([0, -1, 1 << 40].map(ttl_owner), [None; 3]);
}

#[derive(Debug, Clone)]
enum Op {
    Create { path: String, owner: i64, is_sequential: bool },
    Delete { path: String, version: i32 },
    Set { path: String, data: Vec<u8>, version: i32 },
    Check { path: String, version: i32 },
    EndSession(i64),
}

fn path_strategy() -> impl Strategy<Value = String> {
    prop::collection::vec("[ab]", 1..4)
        .prop_map(|names| names.iter().map(|name| format!("/{name}")).collect())
}

fn op() -> impl Strategy<Value = Op> {
    let owner = prop_oneof![4 => Just(0), 1 => Just(7), 1 => Just(8), 1 => Just(CONTAINER_OWNER)];
    prop_oneof![
        4 => (path_strategy(), owner, prop::bool::weighted(0.2))
            .prop_map(|(path, owner, is_sequential)| Op::Create { path, owner, is_sequential }),
        3 => (path_strategy(), -1..3i32).prop_map(|(path, version)| Op::Delete { path, version }),
        3 => (path_strategy(), prop::collection::vec(any::<u8>(), 0..5), -1..3i32)
            .prop_map(|(path, data, version)| Op::Set { path, data, version }),
        1 => (path_strategy(), -1..3i32).prop_map(|(path, version)| Op::Check { path, version }),
        1 => (7..9i64).prop_map(Op::EndSession),
    ]
}

fn apply(tree: &mut Tree, txn: &mut Txn, op: &Op) -> Result<Option<Arc<str>>, Code> {
    match op {
        Op::Create { path, owner, is_sequential } => {
            tree.create(txn, &[], new(path, *owner, *is_sequential)).map(|(path, _)| Some(path))
        }
        Op::Delete { path, version } => tree.delete(txn, &[], path, *version).map(|()| None),
        Op::Set { path, data, version } => {
            tree.set_data(txn, &[], path, Some(data.clone().into()), *version).map(|_| None)
        }
        Op::Check { path, version } => tree.check(&[], path, *version).map(|()| None),
        Op::EndSession(session) => {
            tree.delete_ephemerals(txn, *session);
            Ok(None)
        }
    }
}

/// The naive model: a list of nodes, and everything looked up by walking it.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model(BTreeMap<String, (Vec<u8>, i32, i64, i32)>);

impl Model {
    fn has_children(&self, path: &str) -> bool {
        self.0.keys().any(|other| other.starts_with(&format!("{path}/")))
    }

    fn apply(&mut self, op: &Op, root_cversion: &mut i32) -> Result<Option<String>, Code> {
        let checked = |model: &Model, path: &str, version: i32| match model.0.get(path) {
            None => Err(Code::NoNode),
            Some((_, current, ..)) if version != -1 && version != *current => Err(Code::BadVersion),
            Some(_) => Ok(()),
        };
        match op {
            Op::Create { path, owner, is_sequential } => {
                let parent = &path[..path.rfind('/').unwrap()];
                let (cversion, parent_owner) = match parent {
                    "" => (*root_cversion, 0),
                    parent => self
                        .0
                        .get(parent)
                        .map(|(_, _, owner, cversion)| (*cversion, *owner))
                        .ok_or(Code::NoNode)?,
                };
                let path = if *is_sequential { format!("{path}{cversion:010}") } else { path.clone() };
                if self.0.contains_key(&path) {
                    return Err(Code::NodeExists);
                }
                if (7..9).contains(&parent_owner) {
                    return Err(Code::NoChildrenForEphemerals);
                }
                match self.0.get_mut(parent) {
                    Some(parent) => parent.3 += 1,
                    None => *root_cversion += 1,
                }
                self.0.insert(path.clone(), (b"v".to_vec(), 0, *owner, 0));
                Ok(Some(path))
            }
            Op::Delete { path, version } => {
                checked(self, path, *version)?;
                if self.has_children(path) {
                    return Err(Code::NotEmpty);
                }
                self.0.remove(path);
                Ok(None)
            }
            Op::Set { path, data, version } => {
                checked(self, path, *version)?;
                let node = self.0.get_mut(path).unwrap();
                (node.0, node.1) = (data.clone(), node.1 + 1);
                Ok(None)
            }
            Op::Check { path, version } => checked(self, path, *version).map(|()| None),
            Op::EndSession(session) => {
                self.0.retain(|_, (_, _, owner, _)| owner != session);
                Ok(None)
            }
        }
    }

    fn of(tree: &Tree) -> Model {
        let ours = |path: &str| path != "/" && !path.starts_with("/zookeeper");
        let fields = |node: &Node| {
            let record = &node.record;
            (record.data.clone().unwrap_or_default().to_vec(), record.version, record.owner, record.cversion)
        };
        Model(
            tree.nodes
                .iter()
                .filter(|(path, _)| ours(path))
                .map(|(path, node)| (path.to_string(), fields(node)))
                .collect(),
        )
    }
}

proptest! {
    /// Transactions of one or several operations against the naive model: same results, same trees, and what
    /// `take_changed` reports turns the tree before into the tree after.
    #[test]
    fn the_tree_behaves_as_the_naive_model(txns in prop::collection::vec(prop::collection::vec(op(), 1..4), 1..60)) {
        let (mut tree, mut model, mut root_cversion) = (tree(), Model::default(), 0);
        let mut stored: BTreeMap<Arc<str>, NodeRecord> = BTreeMap::new();
        for (zxid, ops) in (1..).zip(&txns) {
            let before: BTreeMap<Arc<str>, Node> = tree.nodes.clone().into_iter().collect();
            let (model_before, root_before) = (model.clone(), root_cversion);
            let mut txn = Txn::new(zxid, 0);
            let mut failed = false;
            for op in ops {
                let ours = apply(&mut tree, &mut txn, op).map(|path| path.map(|path| path.to_string()));
                prop_assert_eq!(&ours, &model.apply(op, &mut root_cversion), "{:?}", op);
                if ours.is_err() {
                    failed = true;
                    break;
                }
            }
            if failed {
                tree.rollback(txn);
                (model, root_cversion) = (model_before, root_before);
                let after: BTreeMap<Arc<str>, Node> = tree.nodes.clone().into_iter().collect();
                prop_assert_eq!(before, after, "tree invariant 1");
            } else {
                tree.commit(txn);
            }
            tree.check_invariants();
            prop_assert_eq!(&Model::of(&tree), &model);
            for (path, record) in tree.take_changed() {
                match record {
                    Some(record) => drop(stored.insert(path, record)),
                    None => drop(stored.remove(&path)),
                }
            }
            prop_assert!(!tree.has_changed());
        }
        // Tree invariant 4: the reported changes add up to the tree.
        let mut restored = Tree::new(1 << 20);
        for (path, record) in stored {
            restored.restore(&path, record).unwrap();
        }
        restored.check_invariants();
        prop_assert_eq!(restored.nodes, tree.nodes);
    }
}
