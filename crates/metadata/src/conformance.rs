//! What every [`MetadataStore`] must do, as tests any driver runs: `tests/memory.rs` and `tests/zookeeper.rs`.
//!
//! Each check cites the invariant of [`store`](crate::store) it is about and panics when the driver violates it. The
//! checks use only the trait, so a new driver needs nothing but a [`Harness`].

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::store::{
    CreateMode, MetadataStore, Op, SessionCredentials, SessionState, StoreError, VALUE_SIZE_BYTES_MAX,
    Version, WatchEvent,
};

/// A store in a future, as a harness opens it.
pub type Opening<'a> = Pin<Box<dyn Future<Output = Arc<dyn MetadataStore>> + Send + 'a>>;

/// How the suite gets at a driver.
pub trait Harness: Send + Sync {
    /// Opens a client with a new session.
    fn open(&self) -> Opening<'_>;

    /// Opens a client that takes up a session again.
    fn resume(&self, credentials: SessionCredentials) -> Opening<'_>;

    /// Path of an existing node without children, for `name` alone.
    fn base(&self, name: &'static str) -> Pin<Box<dyn Future<Output = String> + Send + '_>>;
}

/// How long the suite waits for something that must happen at once.
const SOON: Duration = Duration::from_secs(20);

/// The suite. Returns the number of checks made.
pub async fn run(harness: &dyn Harness) -> usize {
    values_have_versions(harness).await;
    refusals_say_what_is_wrong(harness).await;
    children_are_listed_sorted(harness).await;
    sequential_names_ascend(harness).await;
    multi_is_all_or_nothing(harness).await;
    watches_fire_once_for_the_first_change(harness).await;
    ephemeral_nodes_go_with_their_session(harness).await;
    a_session_is_taken_up_again(harness).await;
    a_closed_store_says_so(harness).await;
    many_requests_at_once_are_all_answered(harness).await;
    10
}

async fn persistent(store: &dyn MetadataStore, path: &str, data: &'static [u8]) -> String {
    let created = store.create(path, Bytes::from_static(data), CreateMode::Persistent).await;
    created.expect("create a node below an existing one").path
}

/// Invariant 1.
async fn values_have_versions(harness: &dyn Harness) {
    let (store, base) = (harness.open().await, harness.base("versions").await);
    let path = format!("{base}/n");
    assert_eq!(persistent(&*store, &path, b"0").await, path);
    let node = store.get(&path).await.expect("get");
    let first = node.stat.version;
    assert_eq!((&node.data[..], node.stat.owner, node.stat.version.is_initial()), (&b"0"[..], None, true));
    assert!(node.stat.created_ms > 0, "a creation time is set");
    let stat = store.set(&path, "1".into(), Some(first)).await.expect("set at the version read");
    let second = stat.version;
    assert!(second != first && second.is_later_than(first) && !second.is_initial(), "{stat:?}");
    assert_eq!(stat.created_ms, node.stat.created_ms);
    let stale = store.set(&path, "x".into(), Some(first)).await;
    assert_eq!(stale, Err(StoreError::BadVersion { path: path.clone() }));
    let third = store.set(&path, "2".into(), None).await.expect("set any version").version;
    assert!(third != first && third != second && third.is_later_than(second), "{third:?}");
    assert!(!first.is_later_than(third) && !third.is_later_than(third));
    let node = store.get(&path).await.expect("get");
    assert_eq!(
        (&node.data[..], node.stat.version, node.stat.version.is_initial()),
        (&b"2"[..], third, false)
    );
    for stale in [first, second] {
        let refused = store.delete(&path, Some(stale)).await;
        assert_eq!(refused, Err(StoreError::BadVersion { path: path.clone() }));
    }
    store.delete(&path, Some(third)).await.expect("delete at its version");
    assert_eq!(store.exists(&path).await, Ok(None));
    for gone in [None, Some(third)] {
        let none = Err(StoreError::NoNode { path: path.clone() });
        assert_eq!(store.set(&path, Bytes::new(), gone).await.map(drop), none);
        assert_eq!(store.delete(&path, gone).await, none);
    }
    let created = store.create(&path, Bytes::new(), CreateMode::Persistent).await.expect("create it again");
    let stat = store.exists(&path).await.expect("exists").expect("it does");
    assert_eq!((created.path, created.version), (path, stat.version));
    assert!(stat.version.is_initial(), "{stat:?}");
}

async fn refusals_say_what_is_wrong(harness: &dyn Harness) {
    let (store, base) = (harness.open().await, harness.base("refusals").await);
    let (path, child) = (format!("{base}/n"), format!("{base}/n/c"));
    let none = || StoreError::NoNode { path: path.clone() };
    assert_eq!(store.get(&path).await, Err(none()));
    assert_eq!(store.set(&path, Bytes::new(), None).await, Err(none()));
    assert_eq!(store.delete(&path, None).await, Err(none()));
    assert_eq!(store.children(&path).await, Err(none()));
    assert_eq!(store.get_and_watch(&path).await.err(), Some(none()));
    let orphan = store.create(&child, Bytes::new(), CreateMode::Persistent).await;
    assert_eq!(orphan, Err(StoreError::NoNode { path: child.clone() }));
    persistent(&*store, &path, b"").await;
    let twice = store.create(&path, Bytes::new(), CreateMode::Persistent).await;
    assert_eq!(twice, Err(StoreError::NodeExists { path: path.clone() }));
    persistent(&*store, &child, b"").await;
    assert_eq!(store.delete(&path, None).await, Err(StoreError::NotEmpty { path: path.clone() }));
    let ephemeral = format!("{base}/e");
    store.create(&ephemeral, Bytes::new(), CreateMode::Ephemeral).await.expect("create an ephemeral node");
    let below = format!("{ephemeral}/c");
    let refused = store.create(&below, Bytes::new(), CreateMode::Persistent).await;
    assert_eq!(refused, Err(StoreError::NoChildrenForEphemerals { path: below }));
    let large = Bytes::from(vec![0; VALUE_SIZE_BYTES_MAX + 1]);
    let refused = store.set(&path, large.clone(), None).await;
    assert_eq!(refused, Err(StoreError::TooLarge { path: path.clone(), size_bytes: large.len() }));
    let largest = large.slice(..VALUE_SIZE_BYTES_MAX);
    store.set(&path, largest.clone(), None).await.expect("the largest value is taken");
    assert_eq!(store.get(&path).await.expect("get").data, largest);
}

async fn children_are_listed_sorted(harness: &dyn Harness) {
    let (store, base) = (harness.open().await, harness.base("children").await);
    for name in ["b", "a", "c", "a0"] {
        persistent(&*store, &format!("{base}/{name}"), b"").await;
    }
    persistent(&*store, &format!("{base}/a/below"), b"").await;
    assert_eq!(store.children(&base).await.expect("children"), ["a", "a0", "b", "c"]);
    let stat = store.exists(&base).await.expect("exists").expect("it does");
    assert!(matches!(stat.children_count, None | Some(4)), "{stat:?}");
}

async fn sequential_names_ascend(harness: &dyn Harness) {
    let (store, base) = (harness.open().await, harness.base("sequential").await);
    let prefix = format!("{base}/ID-");
    let mut last = -1;
    for mode in [CreateMode::PersistentSequential, CreateMode::EphemeralSequential] {
        for _ in 0..3 {
            let created = store.create(&prefix, Bytes::new(), mode).await.expect("create a sequential node");
            let path = created.path;
            let digits = path.strip_prefix(&prefix).expect("the name is lengthened");
            assert_eq!(digits.len(), 10, "{path}");
            let number: i64 = digits.parse().expect("ten digits");
            assert!(number > last, "{path} after {last}");
            last = number;
            let next = async || {
                let stat = store.exists(&base).await.expect("exists").expect("it does");
                i64::from(stat.next_sequence)
            };
            assert_eq!(next().await, last + 1, "the next one's number");
            if last % 2 == 0 {
                store.delete(&path, None).await.expect("delete it");
                assert_eq!(next().await, last + 1, "those that are gone count");
            }
        }
    }
}

/// Invariant 5.
async fn multi_is_all_or_nothing(harness: &dyn Harness) {
    let (store, base) = (harness.open().await, harness.base("multi").await);
    let path = |name: &str| format!("{base}/{name}");
    let create = |name: &str| Op::Create { path: path(name), data: "v".into(), mode: CreateMode::Persistent };
    if !store.is_transactional() {
        let refused = store.multi(vec![create("a")]).await;
        assert!(matches!(refused, Err(StoreError::Unsupported(_))), "{refused:?}");
        assert_eq!(store.exists(&path("a")).await, Ok(None), "nothing was applied");
        return;
    }
    store.multi(vec![create("a"), create("a/b")]).await.expect("a multi may build upon itself");
    let version = async |name: &str| store.get(&path(name)).await.expect("get").stat.version;
    let (first, below) = (version("a").await, version("a/b").await);
    store.multi(vec![Op::Check { path: path("a"), expected: first }]).await.expect("it has this version");
    let set = Op::Set { path: path("a"), data: "w".into(), expected: Some(first) };
    let failing = vec![set.clone(), create("c"), create("a/b"), create("d")];
    let refused = store.multi(failing).await;
    assert_eq!(refused, Err(StoreError::NodeExists { path: path("a/b") }), "the first failure is reported");
    assert_eq!(store.get(&path("a")).await.expect("get").data, "v", "nothing was applied");
    assert_eq!(store.exists(&path("c")).await, Ok(None));
    let checked =
        vec![Op::Check { path: path("a"), expected: Version::counted(first.id() + 7) }, set.clone()];
    assert_eq!(store.multi(checked).await, Err(StoreError::BadVersion { path: path("a") }));
    let delete = Op::Delete { path: path("a/b"), expected: Some(below) };
    store.multi(vec![set, delete]).await.expect("set and delete");
    assert_eq!(store.get(&path("a")).await.expect("get").data, "w");
    assert_eq!(store.children(&path("a")).await.expect("children"), [""; 0]);
}

/// Invariant 3, without faults.
async fn watches_fire_once_for_the_first_change(harness: &dyn Harness) {
    let (store, other) = (harness.open().await, harness.open().await);
    let base = harness.base("watches").await;
    let path = format!("{base}/n");
    let fired = |watch: crate::store::Watch| async {
        tokio::time::timeout(SOON, watch.changed()).await.expect("an armed watch fires")
    };
    let (stat, created) = store.exists_and_watch(&path).await.expect("watch for creation");
    assert_eq!(stat, None);
    let (_, listed) = store.children_and_watch(&base).await.expect("watch children");
    persistent(&*other, &path, b"").await;
    assert_eq!(fired(created).await, WatchEvent::Created);
    assert_eq!(fired(listed).await, WatchEvent::ChildrenChanged);
    let (_, first) = store.get_and_watch(&path).await.expect("watch a value");
    let (_, second) = store.exists_and_watch(&path).await.expect("watch a value twice");
    other.set(&path, "1".into(), None).await.expect("set");
    assert_eq!(fired(first).await, WatchEvent::DataChanged);
    assert_eq!(fired(second).await, WatchEvent::DataChanged);
    let (_, deleted) = store.get_and_watch(&path).await.expect("watch for deletion");
    let (_, emptied) = store.children_and_watch(&path).await.expect("watch for deletion by children");
    other.delete(&path, None).await.expect("delete");
    assert_eq!(fired(deleted).await, WatchEvent::Deleted);
    assert_eq!(fired(emptied).await, WatchEvent::Deleted);
    let (_, lost) = store.children_and_watch(&base).await.expect("watch children");
    store.close().await.expect("close");
    assert_eq!(fired(lost).await, WatchEvent::Lost);
}

/// Invariant 4.
async fn ephemeral_nodes_go_with_their_session(harness: &dyn Harness) {
    let (store, other) = (harness.open().await, harness.open().await);
    let path = format!("{}/e", harness.base("ephemeral").await);
    let SessionState::Connected(session) = *store.session().borrow() else {
        panic!("a new store is connected")
    };
    store.create(&path, "v".into(), CreateMode::Ephemeral).await.expect("create an ephemeral node");
    other.sync(&path).await.expect("sync");
    let (node, watch) = other.get_and_watch(&path).await.expect("another client sees it");
    assert_eq!(node.stat.owner, Some(session));
    drop(watch);
    for writer in [&store, &other] {
        writer.set(&path, "w".into(), None).await.expect("set");
        let owner = other.exists(&path).await.expect("exists").expect("it does").owner;
        assert_eq!(owner, Some(session), "whoever writes to it, it stays that session's");
    }
    let (_, watch) = other.get_and_watch(&path).await.expect("another client sees it");
    store.close().await.expect("close");
    let event = tokio::time::timeout(SOON, watch.changed()).await.expect("the node goes with its session");
    assert_eq!(event, WatchEvent::Deleted);
}

/// Invariant 4, over processes: what a restarted bookie relies on.
async fn a_session_is_taken_up_again(harness: &dyn Harness) {
    let store = harness.open().await;
    let path = format!("{}/e", harness.base("resume").await);
    store.create(&path, Bytes::new(), CreateMode::Ephemeral).await.expect("create an ephemeral node");
    let credentials = store.session_credentials().expect("a connected store has credentials");
    let kept = SessionCredentials::from_text(&credentials.to_text()).expect("credentials survive their text");
    drop(store);
    let resumed = harness.resume(kept).await;
    let stat = resumed.exists(&path).await.expect("exists").expect("the node outlived the process");
    assert_eq!(stat.owner, Some(credentials.id));
    assert_eq!(*resumed.session().borrow(), SessionState::Connected(credentials.id));
    resumed.close().await.expect("close");
    // A session that is gone: a new one is opened instead.
    let fresh = harness.resume(credentials.clone()).await;
    let state = fresh.session().borrow().clone();
    assert!(matches!(state, SessionState::Connected(id) if id != credentials.id), "{state:?}");
    assert_eq!(fresh.exists(&path).await, Ok(None));
}

async fn a_closed_store_says_so(harness: &dyn Harness) {
    let (store, base) = (harness.open().await, harness.base("closed").await);
    store.close().await.expect("close");
    store.close().await.expect("closing twice is harmless");
    assert_eq!(store.get(&base).await, Err(StoreError::Closed));
    assert_eq!(*store.session().borrow(), SessionState::Closed);
}

/// Beyond every queue of the driver.
async fn many_requests_at_once_are_all_answered(harness: &dyn Harness) {
    let (store, base) = (harness.open().await, harness.base("many").await);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..1000 {
        let (store, path) = (store.clone(), format!("{base}/{number:04}"));
        tasks.spawn(async move { store.create(&path, Bytes::new(), CreateMode::Persistent).await });
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.expect("the task ran").expect("create");
    }
    assert_eq!(store.children(&base).await.expect("children").len(), 1000);
}
