//! A store follows the move of a cluster's metadata from ZooKeeper to Oxia, beside a coordinator like Pulsar's.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bindery_metadata::StoreLayer;
use bindery_metadata::conformance::{self, Harness, Opening};
use bindery_metadata::memory::{Fault, Kind, MemoryCluster, MemoryStore};
use bindery_metadata::migration::{Connector, FLAG, MigratingStore, PARTICIPANTS};
use bindery_metadata::store::{
    CreateMode, Created, MetadataStore, Node, Op, SessionCredentials, SessionId, SessionState, Stat,
    StoreError, StoreFuture, Version, Watch, WatchEvent,
};
use bytes::Bytes;
use tokio::sync::Notify;

const CHROOT: &str = "/p";
const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for whatever is going to happen.
const SETTLED: Duration = Duration::from_millis(100);

/// A source, a target, and the coordinator's own connection to the source.
struct World {
    source: MemoryCluster,
    target: MemoryCluster,
    is_target_down: Arc<AtomicBool>,
    coordinator: MemoryStore,
}

impl World {
    async fn new() -> World {
        let (source, target) = (MemoryCluster::of(Kind::OfZooKeeper), MemoryCluster::of(Kind::OfOxia));
        let coordinator = source.open();
        let world = World { source, target, is_target_down: Arc::default(), coordinator };
        world.make(CHROOT).await;
        world
    }

    async fn make(&self, path: &str) {
        self.coordinator.create(path, Bytes::new(), CreateMode::Persistent).await.unwrap();
    }

    fn connector(&self) -> Connector {
        let (target, is_down) = (self.target.clone(), self.is_target_down.clone());
        Arc::new(move |url: &str| {
            assert_eq!(url, "oxia://o:6648/n");
            let opened: Result<Arc<dyn MetadataStore>, StoreError> = match is_down.load(Ordering::Relaxed) {
                true => Err(StoreError::ConnectionLoss),
                false => Ok(Arc::new(target.open())),
            };
            Box::pin(async move { opened })
        })
    }

    async fn open(&self) -> MigratingStore {
        self.open_over(Arc::new(self.source.open())).await
    }

    async fn open_over(&self, source: Arc<dyn MetadataStore>) -> MigratingStore {
        MigratingStore::open(source, CHROOT, self.connector(), PATIENCE).await.unwrap()
    }

    async fn set_phase(&self, phase: &str) {
        self.set_flag(&format!(r#"{{"phase":"{phase}","targetUrl":"oxia://o:6648/n"}}"#)).await;
    }

    async fn set_flag(&self, text: &str) {
        let path = format!("{CHROOT}{FLAG}");
        let value = Bytes::copy_from_slice(text.as_bytes());
        if self.coordinator.exists(&path).await.unwrap().is_some() {
            self.coordinator.set(&path, value, None).await.unwrap();
            return;
        }
        for (end, _) in path.match_indices('/').skip(1) {
            let made = self.coordinator.create(&path[..end], Bytes::new(), CreateMode::Persistent).await;
            assert!(matches!(made, Ok(_) | Err(StoreError::NodeExists { .. })));
        }
        self.coordinator.create(&path, value, CreateMode::Persistent).await.unwrap();
    }

    async fn participants(&self) -> usize {
        match self.coordinator.children(&format!("{CHROOT}{PARTICIPANTS}")).await {
            Ok(names) => names.len(),
            Err(StoreError::NoNode { .. }) => 0,
            Err(other) => panic!("{other}"),
        }
    }

    async fn wait_for_participants(&self, count: usize) {
        let reached = async {
            while self.participants().await != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("the participants");
    }

    /// Copies everything below the chroot that is not ephemeral, as the coordinator does.
    async fn copy(&self) {
        let target = self.target.open();
        let mut paths = VecDeque::from([CHROOT.to_owned()]);
        while let Some(path) = paths.pop_front() {
            let names = self.coordinator.children(&path).await.unwrap();
            paths.extend(names.iter().map(|name| format!("{path}/{name}")));
            let node = self.coordinator.get(&path).await.unwrap();
            let at = path.strip_prefix(CHROOT).unwrap();
            if node.stat.owner.is_some() || at.is_empty() {
                continue;
            }
            if target.exists(at).await.unwrap().is_some() {
                target.set(at, node.data, None).await.unwrap();
            } else {
                target.create(at, node.data, CreateMode::Persistent).await.unwrap();
            }
        }
    }

    /// From the first phase to the last.
    async fn migrate(&self) {
        self.set_phase("PREPARATION").await;
        self.wait_for_participants(0).await;
        self.set_phase("COPYING").await;
        self.copy().await;
        self.set_phase("COMPLETED").await;
    }
}

async fn wait_for_move(store: &MigratingStore) {
    let moved = async {
        while store.is_transactional() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, moved).await.expect("the store moves");
}

fn data(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[tokio::test]
async fn reads_writes_watches_and_ephemeral_nodes_follow_the_move() {
    let world = World::new().await;
    let store = Arc::new(world.open().await);
    assert_eq!(store.exists("/p/ledgers").await.unwrap(), None);
    assert_eq!(world.participants().await, 0, "a reader leaves nothing behind");
    assert!(store.is_transactional());

    store.create("/p/ledgers", data("1"), CreateMode::Persistent).await.unwrap();
    assert_eq!(world.participants().await, 1);
    store.create("/p/ledgers/b", data("b"), CreateMode::Ephemeral).await.unwrap();
    let vote = store.create("/p/ledgers/v_", data("v"), CreateMode::EphemeralSequential).await.unwrap().path;
    store.create("/p/ledgers/gone", data(""), CreateMode::Ephemeral).await.unwrap();
    store.delete("/p/ledgers/gone", None).await.unwrap();
    let (_, watch) = store.get_and_watch("/p/ledgers").await.unwrap();
    let (_, mut of_children) = store.children_and_watch("/p/ledgers").await.unwrap();
    let mut session = store.session();
    let before = session.borrow_and_update().clone().connected().unwrap();

    world.set_phase("PREPARATION").await;
    world.wait_for_participants(0).await;
    let at_target = world.target.open();
    let copy = at_target.get("/ledgers/b").await.unwrap();
    assert_eq!(&copy.data[..], b"b");
    assert_eq!(&at_target.get(vote.strip_prefix(CHROOT).unwrap()).await.unwrap().data[..], b"v");
    assert_eq!(at_target.exists("/ledgers/gone").await.unwrap(), None);
    assert_eq!(&store.get("/p/ledgers").await.unwrap().data[..], b"1", "reads go on");
    let writer = store.clone();
    let waiting =
        tokio::spawn(async move { writer.create("/p/ledgers/2", data("2"), CreateMode::Persistent).await });
    world.set_phase("COPYING").await;
    world.copy().await;
    tokio::time::sleep(SETTLED).await;
    assert!(!waiting.is_finished() && !of_children.has_fired());
    assert_eq!(world.coordinator.exists("/p/ledgers/2").await.unwrap(), None);

    world.set_phase("COMPLETED").await;
    assert_eq!(waiting.await.unwrap().unwrap().path, "/p/ledgers/2");
    assert_eq!(&at_target.get("/ledgers/2").await.unwrap().data[..], b"2");
    assert_eq!(world.coordinator.exists("/p/ledgers/2").await.unwrap(), None);
    assert_eq!(watch.changed().await, WatchEvent::Lost);
    assert!(of_children.has_fired() && !store.is_transactional());
    let after = session.wait_for(|state| *state != SessionState::Connected(before)).await.unwrap().clone();
    assert_eq!(
        Some(after.connected().unwrap()),
        copy.stat.owner,
        "the session that owns what was brought over"
    );
    assert_eq!(store.session_credentials().map(|credentials| credentials.id), copy.stat.owner);

    let (_, watch) = store.get_and_watch("/p/ledgers").await.unwrap();
    let stat = store.set("/p/ledgers", data("3"), None).await.unwrap();
    assert_eq!(watch.changed().await, WatchEvent::DataChanged);
    assert_eq!(at_target.get("/ledgers").await.unwrap().stat.version, stat.version);
    assert_eq!(
        store.multi(Vec::new()).await,
        Err(StoreError::Moving),
        "of a caller that asked before the move"
    );
    store.delete("/p/ledgers/2", None).await.unwrap();
    store.close().await.unwrap();
    assert_eq!(at_target.exists("/ledgers/b").await.unwrap(), None);
    assert_eq!(store.get("/p/ledgers").await.err(), Some(StoreError::Closed));
}

#[tokio::test]
async fn a_move_that_failed_leaves_everything_at_the_source_and_may_be_tried_again() {
    let world = World::new().await;
    let store = Arc::new(world.open().await);
    store.create("/p/ledgers", data("1"), CreateMode::Persistent).await.unwrap();
    store.create("/p/ledgers/b", data("b"), CreateMode::Ephemeral).await.unwrap();
    world.set_phase("PREPARATION").await;
    world.wait_for_participants(0).await;
    let writer = store.clone();
    let waiting = tokio::spawn(async move { writer.set("/p/ledgers", data("2"), None).await });
    world.set_phase("FAILED").await;
    waiting.await.unwrap().unwrap();
    assert_eq!(&world.coordinator.get("/p/ledgers").await.unwrap().data[..], b"2");
    assert_eq!(world.participants().await, 1, "of the next attempt");
    assert_eq!(world.target.open().exists("/ledgers/b").await.unwrap(), None);

    world.migrate().await;
    wait_for_move(&store).await;
    assert_eq!(&store.get("/p/ledgers").await.unwrap().data[..], b"2");
    assert_eq!(&store.get("/p/ledgers/b").await.unwrap().data[..], b"b");
}

#[tokio::test]
async fn a_target_that_cannot_be_reached_is_not_acknowledged() {
    let world = World::new().await;
    world.is_target_down.store(true, Ordering::Relaxed);
    let store = Arc::new(world.open().await);
    store.create("/p/ledgers", data("1"), CreateMode::Persistent).await.unwrap();
    world.set_phase("PREPARATION").await;
    let writer = store.clone();
    let waiting = tokio::spawn(async move { writer.set("/p/ledgers", data("2"), None).await });
    tokio::time::sleep(SETTLED).await;
    assert!(world.participants().await == 1 && !waiting.is_finished());
    world.set_phase("FAILED").await;
    waiting.await.unwrap().unwrap();

    // It is acknowledged when the target comes up in time.
    world.set_phase("PREPARATION").await;
    tokio::time::sleep(SETTLED).await;
    assert_eq!(world.participants().await, 1);
    world.is_target_down.store(false, Ordering::Relaxed);
    world.wait_for_participants(0).await;
}

#[tokio::test]
async fn a_store_that_is_opened_during_or_after_a_move_ends_at_the_target() {
    let world = World::new().await;
    world.make("/p/ledgers").await;
    world.set_phase("COPYING").await;
    let during = Arc::new(world.open().await);
    let writer = during.clone();
    let waiting =
        tokio::spawn(async move { writer.create("/p/ledgers/b", data(""), CreateMode::Ephemeral).await });
    tokio::time::sleep(SETTLED).await;
    assert!(!waiting.is_finished());
    world.copy().await;
    world.set_phase("COMPLETED").await;
    waiting.await.unwrap().unwrap();
    assert!(world.target.open().exists("/ledgers/b").await.unwrap().is_some());

    let after = world.open().await;
    assert!(!after.is_transactional(), "at once");
    assert!(after.exists("/p/ledgers/b").await.unwrap().is_some());
    after.create("/p/ledgers/c", data(""), CreateMode::Persistent).await.unwrap();
    assert!(world.target.open().exists("/ledgers/c").await.unwrap().is_some());
    assert_eq!(world.participants().await, 0);

    world.is_target_down.store(true, Ordering::Relaxed);
    let source = Arc::new(world.source.open());
    let patience = Duration::from_millis(50);
    let opened = MigratingStore::open(source, CHROOT, world.connector(), patience).await;
    assert_eq!(opened.err(), Some(StoreError::ConnectionLoss), "of the target");
}

#[tokio::test]
async fn a_new_session_has_a_new_participant_and_only_its_own_nodes_move() {
    let world = World::new().await;
    let store = world.open().await;
    store.create("/p/ledgers", data(""), CreateMode::Persistent).await.unwrap();
    store.create("/p/ledgers/old", data(""), CreateMode::Ephemeral).await.unwrap();
    let session = store.session().borrow().clone().connected().unwrap();
    world.source.expire(session);
    world.wait_for_participants(1).await;
    let theirs = world.source.open();
    theirs.create("/p/ledgers/old", data("theirs"), CreateMode::Ephemeral).await.unwrap();
    store.create("/p/ledgers/new", data(""), CreateMode::Ephemeral).await.unwrap();
    world.migrate().await;
    wait_for_move(&store).await;
    assert!(store.exists("/p/ledgers/new").await.unwrap().is_some());
    assert_eq!(store.exists("/p/ledgers/old").await.unwrap(), None, "its owner brings it");
}

/// A source whose writes wait to be released, or that lets nobody write below the participants.
#[derive(Clone)]
struct Layer {
    beneath: Arc<dyn MetadataStore>,
    released: Arc<Notify>,
    refuses_participants: bool,
}

impl StoreLayer for Layer {
    fn beneath(&self) -> &dyn MetadataStore {
        &*self.beneath
    }

    fn pinned(&self, session: SessionId) -> Option<Arc<dyn MetadataStore>> {
        let beneath = self.beneath.pinned(session)?;
        Some(Arc::new(Layer { beneath, ..self.clone() }))
    }

    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> StoreFuture<'_, Created> {
        if self.refuses_participants && path.contains(PARTICIPANTS) {
            let path = path.to_owned();
            return Box::pin(async move { Err(StoreError::NoAuth { path }) });
        }
        self.beneath.create(path, data, mode)
    }

    fn set(&self, path: &str, data: Bytes, expected: Option<Version>) -> StoreFuture<'_, Stat> {
        let path = path.to_owned();
        Box::pin(async move {
            self.released.notified().await;
            self.beneath.set(&path, data, expected).await
        })
    }
}

impl World {
    fn layer(&self) -> Layer {
        Layer { beneath: Arc::new(self.source.open()), released: Arc::default(), refuses_participants: false }
    }
}

#[tokio::test]
async fn a_write_under_way_is_waited_for_before_anything_is_acknowledged() {
    let world = World::new().await;
    let layer = world.layer();
    let released = layer.released.clone();
    let store = Arc::new(world.open_over(Arc::new(layer)).await);
    store.create("/p/ledgers", data("1"), CreateMode::Persistent).await.unwrap();
    let writer = store.clone();
    let write = tokio::spawn(async move { writer.set("/p/ledgers", data("2"), None).await });
    tokio::time::sleep(SETTLED).await;
    world.set_phase("PREPARATION").await;
    tokio::time::sleep(SETTLED).await;
    assert_eq!(world.participants().await, 1);
    released.notify_one();
    write.await.unwrap().unwrap();
    world.wait_for_participants(0).await;
    assert_eq!(&world.coordinator.get("/p/ledgers").await.unwrap().data[..], b"2");

    // One that is dropped does not count for ever.
    world.set_phase("FAILED").await;
    world.wait_for_participants(1).await;
    let writer = store.clone();
    let write = tokio::spawn(async move { writer.set("/p/ledgers", data("3"), None).await });
    tokio::time::sleep(SETTLED).await;
    write.abort();
    world.set_phase("PREPARATION").await;
    world.wait_for_participants(0).await;
}

#[tokio::test]
async fn a_process_that_may_not_take_part_reads_and_writes_nothing() {
    let world = World::new().await;
    world.make("/p/ledgers").await;
    let store = world.open_over(Arc::new(Layer { refuses_participants: true, ..world.layer() })).await;
    store.get("/p/ledgers").await.unwrap();
    let written = store.set("/p/ledgers", data("1"), None).await;
    assert!(matches!(written, Err(StoreError::NoAuth { path }) if path.contains(PARTICIPANTS)));
    world.migrate().await;
    wait_for_move(&store).await;
    store.set("/p/ledgers", data("1"), None).await.unwrap();
}

/// The coordinator does not wait for a session that has ended: what was written under it, or is still to be, must not reach the source.
#[tokio::test]
async fn a_write_of_an_ended_session_does_not_follow_it_into_a_move() {
    let world = World::new().await;
    let layer = world.layer();
    let released = layer.released.clone();
    let store = Arc::new(world.open_over(Arc::new(layer)).await);
    store.create("/p/ledgers", data("1"), CreateMode::Persistent).await.unwrap();
    let session = store.session().borrow().clone().connected().unwrap();
    let writer = store.clone();
    let under_way = tokio::spawn(async move { writer.set("/p/ledgers", data("2"), None).await });
    tokio::time::sleep(SETTLED).await;
    world.source.expire(session);
    world.set_phase("COPYING").await;
    released.notify_one();
    assert_eq!(under_way.await.unwrap().err(), Some(StoreError::SessionExpired));
    let writer = store.clone();
    let later =
        tokio::spawn(async move { writer.create("/p/ledgers/2", data(""), CreateMode::Persistent).await });
    tokio::time::sleep(SETTLED).await;
    assert_eq!(&world.coordinator.get("/p/ledgers").await.unwrap().data[..], b"1");
    assert_eq!(world.coordinator.exists("/p/ledgers/2").await.unwrap(), None);
    world.copy().await;
    world.set_phase("COMPLETED").await;
    later.await.unwrap().unwrap();
    assert!(world.target.open().exists("/ledgers/2").await.unwrap().is_some());
}

#[tokio::test]
async fn participants_of_our_session_that_were_left_behind_go_with_ours() {
    let world = World::new().await;
    let before = world.source.open();
    let session = before.session_credentials().unwrap();
    for _ in 0..2 {
        let store = MigratingStore::open(
            Arc::new(world.source.resume(&session)),
            CHROOT,
            world.connector(),
            PATIENCE,
        );
        let made = store.await.unwrap().create("/p/ledgers", data(""), CreateMode::Persistent).await;
        assert!(matches!(made, Ok(_) | Err(StoreError::NodeExists { .. })));
    }
    assert_eq!(world.participants().await, 1, "that of the process before is taken over");
    let path = format!("{CHROOT}{PARTICIPANTS}/id-");
    before.create(&path, data(""), CreateMode::EphemeralSequential).await.unwrap();
    let resumed = Arc::new(world.source.resume(&session));
    let store = world.open_over(resumed.clone()).await;
    store.create("/p/ledgers/a", data(""), CreateMode::Persistent).await.unwrap();
    before.create(&path, data(""), CreateMode::EphemeralSequential).await.unwrap();
    world.migrate().await;
    wait_for_move(&store).await;
}

#[tokio::test]
async fn an_acknowledgement_whose_answer_is_lost_leaves_a_participant_for_the_next_attempt() {
    let world = World::new().await;
    let source = Arc::new(world.source.open());
    let store = world.open_over(source.clone()).await;
    store.create("/p/ledgers", data(""), CreateMode::Persistent).await.unwrap();
    source.inject(Fault::LossAfterApply);
    world.set_phase("PREPARATION").await;
    world.wait_for_participants(0).await;
    world.set_phase("FAILED").await;
    store.set("/p/ledgers", data("1"), None).await.unwrap();
    assert_eq!(world.participants().await, 1);
    world.migrate().await;
    wait_for_move(&store).await;
}

/// A bookie that was killed takes its session up, finds everything as it left it, and has nothing to write.
#[tokio::test]
async fn a_process_that_takes_up_a_session_acknowledges_without_having_written() {
    let world = World::new().await;
    let session = {
        let before = world.open().await;
        before.create("/p/ledgers", data(""), CreateMode::Persistent).await.unwrap();
        before.create("/p/ledgers/b", data("b"), CreateMode::Ephemeral).await.unwrap();
        before.session_credentials().unwrap()
    };
    let store = world.open_over(Arc::new(world.source.resume(&session))).await;
    assert!(store.exists("/p/ledgers/b").await.unwrap().is_some());
    assert_eq!(world.participants().await, 1);
    world.migrate().await;
    wait_for_move(&store).await;
    assert_eq!(&store.get("/p/ledgers/b").await.unwrap().data[..], b"b");
}

#[tokio::test]
async fn a_write_that_waited_through_an_attempt_has_its_time_afterwards() {
    let world = World::new().await;
    world.is_target_down.store(true, Ordering::Relaxed);
    let store = Arc::new(world.open().await);
    store.create("/p/ledgers", data("1"), CreateMode::Persistent).await.unwrap();
    for round in 0..2 {
        // The second attempt has the flag at the version that the first one had.
        world.set_phase("PREPARATION").await;
        tokio::time::sleep(SETTLED).await;
        let writer = store.clone();
        let waiting = tokio::spawn(async move { writer.set("/p/ledgers", data("2"), None).await });
        // Longer than a session timeout of the memory store.
        tokio::time::sleep(4 * SETTLED).await;
        if round == 1 {
            world.is_target_down.store(false, Ordering::Relaxed);
            world.wait_for_participants(0).await;
        }
        world.coordinator.delete(&format!("{CHROOT}{FLAG}"), None).await.unwrap();
        waiting.await.unwrap().unwrap();
        world.wait_for_participants(1).await;
    }
    world.migrate().await;
    wait_for_move(&store).await;
}

/// Garbage collection deletes what it does not find after a `sync`.
#[tokio::test]
async fn nothing_is_read_from_the_source_once_the_move_is_completed() {
    let world = World::new().await;
    let store = Arc::new(world.open().await);
    store.create("/p/ledgers", data(""), CreateMode::Persistent).await.unwrap();
    world.set_phase("PREPARATION").await;
    world.wait_for_participants(0).await;
    world.copy().await;
    world.target.open().create("/ledgers/1", data(""), CreateMode::Persistent).await.unwrap();
    let path = format!("{CHROOT}{FLAG}");
    let completed = r#"{"phase":"COMPLETED","targetUrl":"oxia://o:6648/n"}"#;
    world.coordinator.set(&path, completed.into(), None).await.unwrap();
    // The follower has had no turn yet.
    store.sync("/p/ledgers").await.unwrap();
    assert!(store.exists("/p/ledgers/1").await.unwrap().is_some());
}

/// A source whose reads of the flag are counted.
struct Counted {
    beneath: MemoryStore,
    reads: AtomicUsize,
}

impl Counted {
    fn count(&self, path: &str) -> &MemoryStore {
        self.reads.fetch_add(usize::from(path.ends_with(FLAG)), Ordering::Relaxed);
        &self.beneath
    }

    fn taken(&self) -> usize {
        self.reads.swap(0, Ordering::Relaxed)
    }
}

impl StoreLayer for Counted {
    fn beneath(&self) -> &dyn MetadataStore {
        &self.beneath
    }

    fn get(&self, path: &str) -> StoreFuture<'_, Node> {
        self.count(path).get(path)
    }

    fn get_and_watch(&self, path: &str) -> StoreFuture<'_, (Node, Watch)> {
        self.count(path).get_and_watch(path)
    }

    fn exists_and_watch(&self, path: &str) -> StoreFuture<'_, (Option<Stat>, Watch)> {
        self.count(path).exists_and_watch(path)
    }
}

/// A tierer syncs before each look at a ledger.
#[tokio::test]
async fn a_sync_reads_the_flag_when_it_changed_and_not_each_time() {
    let world = World::new().await;
    let source = Arc::new(Counted { beneath: world.source.open(), reads: AtomicUsize::new(0) });
    let store = world.open_over(source.clone()).await;
    store.create("/p/ledgers", data(""), CreateMode::Persistent).await.unwrap();
    let syncs = async || {
        source.taken();
        for _ in 0..20 {
            store.sync("/p/ledgers").await.unwrap();
        }
        source.taken()
    };
    assert_eq!((syncs().await, syncs().await), (2, 0), "a flag that is not there is looked for twice");
    // Its change is seen by the next sync, before the follower has a turn.
    for phase in ["PREPARATION", "FAILED", "PREPARATION", "COPYING"] {
        world.set_phase(phase).await;
        tokio::time::sleep(SETTLED).await;
        assert_eq!((syncs().await, syncs().await), (1, 0), "{phase}");
    }
    // Nobody tells of a change while there is no connection.
    source.beneath.disconnect();
    world.copy().await;
    world.target.open().create("/ledgers/1", data(""), CreateMode::Persistent).await.unwrap();
    let path = format!("{CHROOT}{FLAG}");
    let completed = r#"{"phase":"COMPLETED","targetUrl":"oxia://o:6648/n"}"#;
    world.coordinator.set(&path, completed.into(), None).await.unwrap();
    source.beneath.reconnect();
    store.sync("/p/ledgers").await.unwrap();
    assert!(store.exists("/p/ledgers/1").await.unwrap().is_some());
}

#[tokio::test]
async fn a_deletion_that_waits_for_the_move_is_decided_anew() {
    let world = World::new().await;
    let store = Arc::new(world.open().await);
    for path in ["/p/ledgers", "/p/ledgers/00", "/p/ledgers/x"] {
        store.create(path, data(""), CreateMode::Persistent).await.unwrap();
    }
    let version = store.get("/p/ledgers/x").await.unwrap().stat.version;
    world.set_phase("PREPARATION").await;
    world.wait_for_participants(0).await;
    let (one, other) = (store.clone(), store.clone());
    let directory = tokio::spawn(async move { one.delete("/p/ledgers/00", None).await });
    let leaf = tokio::spawn(async move { other.delete("/p/ledgers/x", Some(version)).await });
    tokio::time::sleep(SETTLED).await;
    world.copy().await;
    world.set_phase("COMPLETED").await;
    assert_eq!(directory.await.unwrap(), Err(StoreError::Moving));
    // The copies of this test have versions of their own.
    assert!(matches!(leaf.await.unwrap(), Err(StoreError::BadVersion { path }) if path == "/p/ledgers/x"));
    store.delete("/p/ledgers/00", None).await.unwrap();
}

#[tokio::test]
async fn a_store_that_is_closed_during_a_move_says_so_and_leaves_nothing_at_the_target() {
    let world = World::new().await;
    let store = Arc::new(world.open().await);
    store.create("/p/ledgers", data(""), CreateMode::Persistent).await.unwrap();
    store.create("/p/ledgers/b", data(""), CreateMode::Ephemeral).await.unwrap();
    world.set_phase("PREPARATION").await;
    world.wait_for_participants(0).await;
    assert!(world.target.open().exists("/ledgers/b").await.unwrap().is_some());
    let writer = store.clone();
    let waiting = tokio::spawn(async move { writer.set("/p/ledgers", data("2"), None).await });
    tokio::time::sleep(SETTLED).await;
    store.close().await.unwrap();
    assert_eq!(waiting.await.unwrap().err(), Some(StoreError::Closed));
    assert_eq!(store.get("/p/ledgers").await.err(), Some(StoreError::Closed));
    assert_eq!(*store.session().borrow(), SessionState::Closed);
    assert_eq!(world.target.open().exists("/ledgers/b").await.unwrap(), None);
}

#[tokio::test]
async fn locks_are_lost_in_the_move_and_other_ephemeral_nodes_of_the_session_go_with_it() {
    let world = World::new().await;
    let store = world.open().await;
    for path in ["/p/ledgers", "/p/ledgers/underreplication", "/p/ledgers/underreplication/locks"] {
        store.create(path, data(""), CreateMode::Persistent).await.unwrap();
    }
    store.create("/p/ledgers/underreplication/locks/urL1", data(""), CreateMode::Ephemeral).await.unwrap();
    // As an earlier process with this session left it.
    let session = store.session_credentials().unwrap();
    world.source.resume(&session).create("/p/ledgers/b", data("old"), CreateMode::Ephemeral).await.unwrap();
    store.set("/p/ledgers/b", data("new"), None).await.unwrap();
    world.migrate().await;
    wait_for_move(&store).await;
    assert_eq!(&store.get("/p/ledgers/b").await.unwrap().data[..], b"new");
    assert_eq!(store.children("/p/ledgers/underreplication/locks").await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_flag_that_is_none_refuses_a_start_and_changes_nothing_later() {
    let world = World::new().await;
    let store = world.open().await;
    store.create("/p/ledgers", data("1"), CreateMode::Persistent).await.unwrap();
    world.set_flag("PREPARATION").await;
    tokio::time::sleep(SETTLED).await;
    store.set("/p/ledgers", data("2"), None).await.unwrap();
    assert_eq!(world.participants().await, 1);
    let source = Arc::new(world.source.open());
    let opened = MigratingStore::open(source, CHROOT, world.connector(), Duration::from_millis(50)).await;
    let why = opened.err().expect("refused").to_string();
    assert!(why.contains("migration-coordinator/migration does not describe a migration"), "{why}");
    // Put right, it is followed.
    world.migrate().await;
    wait_for_move(&store).await;
}

#[tokio::test]
async fn sequential_names_go_on_behind_those_of_the_source() {
    let world = World::new().await;
    let store = world.open().await;
    for parent in
        ["/p/ledgers", "/p/ledgers/idgen", "/p/ledgers/idgen-long", "/p/ledgers/idgen-long/HOB-0000000001"]
    {
        store.create(parent, data(""), CreateMode::Persistent).await.unwrap();
    }
    let next = async |parent: &str| {
        let path = store
            .create(&format!("{parent}/ID-"), data(""), CreateMode::EphemeralSequential)
            .await
            .unwrap()
            .path;
        store.delete(&path, None).await.unwrap();
        path.rsplit('-').next().unwrap().parse::<u32>().unwrap()
    };
    for number in 0..5 {
        assert_eq!(next("/p/ledgers/idgen").await, number);
    }
    assert_eq!(next("/p/ledgers/idgen-long/HOB-0000000001").await, 0);
    world.migrate().await;
    wait_for_move(&store).await;
    assert_eq!(next("/p/ledgers/idgen").await, 5);
    assert_eq!(next("/p/ledgers/idgen").await, 6);
    assert_eq!(next("/p/ledgers/idgen-long/HOB-0000000001").await, 1);
}

#[tokio::test]
async fn transactions_are_those_of_the_source_until_it_moved() {
    let world = World::new().await;
    let store = world.open().await;
    let create = |path: &str, mode| Op::Create { path: path.to_owned(), data: Bytes::new(), mode };
    store
        .multi(vec![
            create("/p/ledgers", CreateMode::Persistent),
            create("/p/ledgers/a", CreateMode::Ephemeral),
        ])
        .await
        .unwrap();
    store.multi(vec![create("/p/ledgers/b", CreateMode::Ephemeral)]).await.unwrap();
    store.multi(vec![Op::Delete { path: "/p/ledgers/a".to_owned(), expected: None }]).await.unwrap();
    world.migrate().await;
    wait_for_move(&store).await;
    assert_eq!(store.children("/p/ledgers").await.unwrap(), ["b"]);
}

struct Moved {
    world: World,
    is_moved: bool,
}

impl Harness for Moved {
    fn open(&self) -> Opening<'_> {
        Box::pin(async { Arc::new(self.world.open().await) as Arc<dyn MetadataStore> })
    }

    fn resume(&self, credentials: SessionCredentials) -> Opening<'_> {
        Box::pin(async move {
            let (source, mut connector) = match self.is_moved {
                false => (self.world.source.resume(&credentials), self.world.connector()),
                true => (self.world.source.open(), self.world.connector()),
            };
            if self.is_moved {
                let target = self.world.target.clone();
                connector = Arc::new(move |_: &str| {
                    let opened: Arc<dyn MetadataStore> = Arc::new(target.resume(&credentials));
                    Box::pin(async move { Ok(opened) })
                });
            }
            let store = MigratingStore::open(Arc::new(source), CHROOT, connector, PATIENCE).await.unwrap();
            Arc::new(store) as Arc<dyn MetadataStore>
        })
    }

    fn base(&self, name: &'static str) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(async move {
            let path = format!("{CHROOT}/{name}");
            self.world
                .open()
                .await
                .create(&path, "".into(), CreateMode::Persistent)
                .await
                .expect("a fresh node")
                .path
        })
    }
}

#[tokio::test]
async fn a_store_that_may_move_conforms_before_and_after() {
    for is_moved in [false, true] {
        let world = World::new().await;
        if is_moved {
            world.migrate().await;
        }
        let checks = conformance::run(&Moved { world, is_moved }).await;
        println!("driver=migration is_moved={is_moved} conformance_checks={checks}");
    }
}
