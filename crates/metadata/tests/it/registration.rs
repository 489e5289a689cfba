//! Registration and the registrar, on the memory driver with faults: the order of nodes, owners, and session loss.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bindery_metadata::layout::{
    Layout, Membership, RegisteredBookie, Registration, RegistrationError, init_cluster,
};
use bindery_metadata::memory::{Fault, Kind, MemoryCluster, MemoryStore};
use bindery_metadata::registrar::{BookieRegistrar, RegistrationEvent, SessionStore};
use bindery_metadata::store::{
    CreateMode, MetadataStore, SessionCredentials, SessionState, StoreError, StoreFuture, Version,
};
use bindery_metadata::{BookieServiceInfo, Cookie, LedgerLayout, RegistrationMode, SessionId, StoreLayer};
use bindery_types::BookieId;
use parking_lot::Mutex;
use tokio::sync::mpsc;

const WRITABLE: &str = "/ledgers/available/b:1";
const READ_ONLY: &str = "/ledgers/available/readonly/b:1";

async fn cluster() -> MemoryCluster {
    cluster_of(Kind::OfZooKeeper).await
}

async fn cluster_of(kind: Kind) -> MemoryCluster {
    let cluster = MemoryCluster::of(kind);
    init_cluster(&cluster.open(), "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.expect("init");
    cluster
}

async fn layout(store: &Arc<MemoryStore>) -> Layout {
    let store: Arc<dyn MetadataStore> = store.clone();
    Layout::open(store, "/ledgers", None).await.expect("an initialised cluster")
}

async fn registration(store: &Arc<MemoryStore>) -> Registration {
    layout(store).await.registration()
}

/// Of a bookie that starts now, with a cookie.
async fn membership(store: &Arc<MemoryStore>) -> Membership {
    membership_in(layout(store).await).await
}

async fn membership_in(layout: Layout) -> Membership {
    let instance_id = layout.instance_id().await.expect("readable");
    let cookie = Cookie::new(&bookie(), &["/j".into()], &["/l".into()], None, instance_id.as_deref());
    layout.cookies().create(&bookie(), &cookie).await.expect("the first");
    Membership::new(layout, bookie(), instance_id, Some(cookie))
}

fn bookie() -> BookieId {
    BookieId::new("b:1").expect("a bookie id")
}

fn info() -> BookieServiceInfo {
    BookieServiceInfo::of_bookie(("h", 3181), None)
}

fn session_of(store: &MemoryStore) -> SessionId {
    match *store.session().borrow() {
        SessionState::Connected(id) => id,
        ref other => panic!("{other:?}"),
    }
}

async fn owner(store: &MemoryStore, path: &str) -> Option<SessionId> {
    store.exists(path).await.expect("exists").and_then(|stat| stat.owner)
}

#[tokio::test]
async fn a_bookie_moves_between_its_nodes_and_is_listed_and_resolved() {
    for kind in Kind::ALL {
        let cluster = cluster_of(kind).await;
        let store = Arc::new(cluster.open());
        let registration = registration(&store).await;
        let listed = |mode| vec![RegisteredBookie { bookie_id: bookie(), mode }];
        for mode in [RegistrationMode::Writable, RegistrationMode::ReadOnly, RegistrationMode::Writable] {
            for _ in 0..2 {
                assert_eq!(registration.register(&bookie(), mode, &info()).await, Ok(session_of(&store)));
                assert_eq!(registration.list().await.unwrap(), listed(mode));
                assert_eq!(registration.service_info(&bookie()).await.unwrap(), Some(Ok(info())));
            }
        }
        registration.unregister(&bookie()).await.unwrap();
        assert_eq!(registration.list().await.unwrap(), []);
        assert_eq!(registration.service_info(&bookie()).await.unwrap(), None);
    }
}

/// Pulsar's driver makes parents that go with their last child.
#[tokio::test]
async fn nodes_below_which_bookies_register_are_made_again() {
    for gone in [&["readonly"][..], &["readonly", ""]] {
        for mode in [RegistrationMode::Writable, RegistrationMode::ReadOnly] {
            let cluster = cluster().await;
            let store = Arc::new(cluster.open());
            for node in gone {
                let path = format!("/ledgers/available/{node}");
                store.delete(path.trim_end_matches('/'), None).await.unwrap();
            }
            let registration = registration(&store).await;
            assert_eq!(registration.list().await.unwrap(), []);
            assert_eq!(registration.register(&bookie(), mode, &info()).await, Ok(session_of(&store)));
            assert_eq!(registration.list().await.unwrap(), [RegisteredBookie { bookie_id: bookie(), mode }]);
        }
    }
    // Nothing is made of a cluster that is gone.
    let cluster = cluster().await;
    let store = Arc::new(cluster.open());
    let registration = registration(&store).await;
    for node in ["/available/readonly", "/available", "/LAYOUT", "/INSTANCEID", ""] {
        store.delete(&format!("/ledgers{node}"), None).await.unwrap();
    }
    let refused = registration.register(&bookie(), RegistrationMode::Writable, &info()).await;
    assert_eq!(refused, Err(RegistrationError::NotInitialised { root: "/ledgers".to_owned() }));
    assert!(store.exists("/ledgers").await.unwrap().is_none());
}

/// Registration invariant 1, for one who looks while the bookie moves.
#[tokio::test]
async fn a_bookie_that_moves_meanwhile_is_listed_and_resolved() {
    let cluster = cluster().await;
    let (store, reader) = (Arc::new(cluster.open()), Arc::new(cluster.open()));
    let (moved, watched) = (registration(&store).await, registration(&reader).await);
    for to in [RegistrationMode::Writable, RegistrationMode::ReadOnly] {
        let from = if to == RegistrationMode::Writable {
            RegistrationMode::ReadOnly
        } else {
            RegistrationMode::Writable
        };
        for reads in 0..3 {
            moved.register(&bookie(), from, &info()).await.unwrap();
            reader.interleave(reads, moves(&moved, to));
            let listed = watched.list().await.unwrap();
            assert!(listed.iter().any(|listed| listed.bookie_id == bookie()), "{reads} reads, then {to:?}");
            moved.register(&bookie(), from, &info()).await.unwrap();
            reader.interleave(reads, moves(&moved, to));
            assert_eq!(
                watched.service_info(&bookie()).await.unwrap(),
                Some(Ok(info())),
                "{reads} reads, then {to:?}"
            );
        }
    }
}

/// Moves the bookie at once: the memory driver never waits.
fn moves(registration: &Registration, to: RegistrationMode) -> impl FnOnce() + Send + 'static {
    let registration = registration.clone();
    move || {
        let (id, info) = (bookie(), info());
        let registered =
            pin!(registration.register(&id, to, &info)).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(registered, Poll::Ready(Ok(_))), "{registered:?}");
    }
}

/// Registration invariant 1: whatever the moment of a failure, the bookie stays visible, and repeating finishes.
#[tokio::test]
async fn a_move_that_fails_anywhere_leaves_the_bookie_visible() {
    for fault in [Fault::LossBeforeApply, Fault::LossAfterApply] {
        for write in 0..2 {
            let cluster = cluster().await;
            let (store, observer) = (Arc::new(cluster.open()), cluster.open());
            let registration = registration(&store).await;
            registration.register(&bookie(), RegistrationMode::Writable, &info()).await.unwrap();
            store.inject_at(write, fault);
            let outcome = registration.register(&bookie(), RegistrationMode::ReadOnly, &info()).await;
            assert_eq!(outcome, Err(RegistrationError::Store(StoreError::ConnectionLoss)));
            let visible = owner(&observer, WRITABLE).await.or(owner(&observer, READ_ONLY).await);
            assert_eq!(visible, Some(session_of(&store)), "{fault:?} at write {write}");
            registration.register(&bookie(), RegistrationMode::ReadOnly, &info()).await.unwrap();
            assert_eq!(owner(&observer, WRITABLE).await, None);
            assert_eq!(owner(&observer, READ_ONLY).await, Some(session_of(&store)));
        }
    }
}

/// Registration invariant 2, for either node.
#[tokio::test]
async fn another_sessions_node_is_waited_for_then_refused_and_never_touched() {
    for (path, mode) in [(WRITABLE, RegistrationMode::Writable), (READ_ONLY, RegistrationMode::Writable)] {
        let cluster = cluster().await;
        let (store, other) = (Arc::new(cluster.open()), cluster.open());
        other.create(path, "theirs".into(), CreateMode::Ephemeral).await.unwrap();
        let registration = registration(&store).await;
        let refused = registration.register(&bookie(), mode, &info()).await;
        let Err(RegistrationError::Owned { owner: found, path: at, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!((found, at.as_str()), (session_of(&other), path));
        assert_eq!(store.get(path).await.unwrap().data, "theirs");
        // When the node goes while registration waits for it, the bookie registers.
        let (id, info) = (bookie(), info());
        let waiting = registration.register(&id, mode, &info);
        let (outcome, ()) = tokio::join!(waiting, async { other.close().await.unwrap() });
        assert_eq!(outcome, Ok(session_of(&store)));
    }
}

/// Registration invariant 2, for a session that ends while its bookie unregisters.
#[tokio::test]
async fn a_bookie_that_registered_meanwhile_stays_registered() {
    let cluster = cluster_of(Kind::OfOxia).await;
    let store = Arc::new(cluster.open());
    let ours = registration(&store).await;
    ours.register(&bookie(), RegistrationMode::Writable, &info()).await.unwrap();
    let other = cluster.open();
    let theirs = session_of(&other);
    let registered = registration(&Arc::new(other)).await;
    store.interleave_write(0, {
        let (cluster, session) = (cluster.clone(), session_of(&store));
        move || {
            cluster.expire_quietly(session);
            moves(&registered, RegistrationMode::Writable)();
        }
    });
    ours.unregister(&bookie()).await.unwrap();
    assert_eq!(owner(&cluster.open(), WRITABLE).await, Some(theirs));
}

#[tokio::test]
async fn a_node_made_by_hand_is_refused_with_what_to_do() {
    let cluster = cluster().await;
    let store = Arc::new(cluster.open());
    store.create(WRITABLE, "".into(), CreateMode::Persistent).await.unwrap();
    let outcome = registration(&store).await.register(&bookie(), RegistrationMode::Writable, &info()).await;
    assert_eq!(outcome, Err(RegistrationError::NotEphemeral { path: WRITABLE.into() }));
    assert!(outcome.unwrap_err().to_string().contains("delete it"));
}

#[tokio::test]
async fn a_resumed_session_keeps_its_node_and_refreshes_it() {
    let cluster = cluster().await;
    let former = Arc::new(cluster.open());
    registration(&former).await.register(&bookie(), RegistrationMode::ReadOnly, &info()).await.unwrap();
    let credentials = former.session_credentials().unwrap();
    drop(former);
    let store = Arc::new(cluster.resume(&credentials));
    let moved = BookieServiceInfo::of_bookie(("other", 1), None);
    let registration = registration(&store).await;
    assert_eq!(
        registration.register(&bookie(), RegistrationMode::ReadOnly, &moved).await,
        Ok(credentials.id)
    );
    assert_eq!(store.get(READ_ONLY).await.unwrap().data, moved.encode());
    assert_eq!(
        registration.register(&bookie(), RegistrationMode::Writable, &moved).await,
        Ok(credentials.id)
    );
    assert_eq!((owner(&store, READ_ONLY).await, owner(&store, WRITABLE).await), (None, Some(credentials.id)));
}

#[derive(Default)]
struct Kept {
    credentials: Mutex<Option<SessionCredentials>>,
    /// The node did not exist yet at each save (registrar invariant 2).
    saved_before_node: Mutex<Vec<bool>>,
    observer: Option<MemoryStore>,
}

impl SessionStore for Kept {
    fn load(&self) -> io::Result<Option<SessionCredentials>> {
        Ok(self.credentials.lock().clone())
    }

    fn save(&self, credentials: &SessionCredentials) -> io::Result<()> {
        *self.credentials.lock() = Some(credentials.clone());
        if let Some(observer) = &self.observer {
            let node = futures_now(observer.exists(WRITABLE));
            let owned = node.expect("exists").is_some_and(|stat| stat.owner == Some(credentials.id));
            self.saved_before_node.lock().push(!owned);
        }
        Ok(())
    }
}

/// The memory store's futures are ready at once.
fn futures_now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("the memory store answers at once"),
    }
}

struct Running {
    cluster: MemoryCluster,
    store: Arc<MemoryStore>,
    registrar: BookieRegistrar,
    events: mpsc::Receiver<RegistrationEvent>,
    kept: Arc<Kept>,
}

async fn start() -> Running {
    let cluster = cluster().await;
    let store = Arc::new(cluster.open());
    let kept = Arc::new(Kept { observer: Some(cluster.open()), ..Kept::default() });
    let membership = membership(&store).await;
    let (registrar, events) =
        BookieRegistrar::start(membership, info(), RegistrationMode::Writable, Some(kept.clone()));
    Running { cluster, store, registrar, events, kept }
}

impl Running {
    async fn event(&mut self) -> RegistrationEvent {
        let event = tokio::time::timeout(Duration::from_secs(20), self.events.recv()).await;
        event.expect("an event follows").expect("the registrar runs")
    }

    async fn registered(&mut self, mode: RegistrationMode) {
        let session = session_of(&self.store);
        assert_eq!(self.event().await, RegistrationEvent::Registered { mode, session });
    }
}

#[tokio::test]
async fn the_registrar_saves_the_session_registers_moves_and_cleans_up() {
    let mut running = start().await;
    running.registered(RegistrationMode::Writable).await;
    assert_eq!(*running.kept.saved_before_node.lock(), [true], "saved once, before the node");
    assert_eq!(*running.kept.credentials.lock(), running.store.session_credentials());
    running.registrar.set_mode(RegistrationMode::ReadOnly);
    running.registered(RegistrationMode::ReadOnly).await;
    assert_eq!(owner(&running.store, WRITABLE).await, None);
    let Running { registrar, store, .. } = running;
    registrar.stop(Duration::from_secs(20)).await;
    assert_eq!(owner(&store, READ_ONLY).await, None);
}

#[tokio::test]
async fn after_an_expiry_the_registrar_registers_under_the_new_session() {
    let mut running = start().await;
    running.registered(RegistrationMode::Writable).await;
    let former = session_of(&running.store);
    running.cluster.expire(former);
    assert_eq!(running.event().await, RegistrationEvent::Expired);
    running.registered(RegistrationMode::Writable).await;
    assert_ne!(session_of(&running.store), former);
    assert_eq!(*running.kept.saved_before_node.lock(), [true, true]);
    assert_eq!(*running.kept.credentials.lock(), running.store.session_credentials());
}

#[tokio::test]
async fn a_lost_connection_is_told_and_the_registration_confirmed_afterwards() {
    let mut running = start().await;
    running.registered(RegistrationMode::Writable).await;
    running.store.disconnect();
    assert_eq!(running.event().await, RegistrationEvent::Lost);
    running.store.reconnect();
    running.registered(RegistrationMode::Writable).await;
    // Expired while away: the new session gets a node of its own.
    let former = session_of(&running.store);
    running.store.disconnect();
    assert_eq!(running.event().await, RegistrationEvent::Lost);
    running.cluster.expire_quietly(former);
    running.store.reconnect();
    assert_eq!(running.event().await, RegistrationEvent::Expired);
    running.registered(RegistrationMode::Writable).await;
    assert_eq!(owner(&running.store, WRITABLE).await, Some(session_of(&running.store)));
}

#[tokio::test]
async fn a_deleted_node_is_made_again_and_a_stolen_one_ends_the_registrar() {
    let mut running = start().await;
    running.registered(RegistrationMode::Writable).await;
    let other = running.cluster.open();
    other.delete(WRITABLE, None).await.unwrap();
    assert_eq!(running.event().await, RegistrationEvent::Expired);
    running.registered(RegistrationMode::Writable).await;
    let delete =
        bindery_metadata::store::Op::Delete { path: WRITABLE.into(), expected: Some(Version::counted(0)) };
    let steal = bindery_metadata::store::Op::Create {
        path: WRITABLE.into(),
        data: "theirs".into(),
        mode: CreateMode::Ephemeral,
    };
    other.multi(vec![delete, steal]).await.unwrap();
    assert_eq!(running.event().await, RegistrationEvent::Expired);
    let refused = running.event().await;
    assert!(matches!(refused, RegistrationEvent::Refused(RegistrationError::Owned { .. })), "{refused:?}");
    assert_eq!(running.events.recv().await, None, "nothing follows a refusal");
    assert_eq!(other.get(WRITABLE).await.unwrap().data, "theirs");
}

/// A store whose deletions take their time.
struct SlowToDelete {
    inner: Arc<MemoryStore>,
}

impl StoreLayer for SlowToDelete {
    fn beneath(&self) -> &dyn MetadataStore {
        &*self.inner
    }
    fn delete(&self, path: &str, expected: Option<Version>) -> StoreFuture<'_, ()> {
        let path = path.to_owned();
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            self.inner.delete(&path, expected).await
        })
    }
}

/// A mode that is wished back while the registration under the other one is half done: the node that this made goes again.
#[tokio::test]
async fn a_change_of_mode_that_is_taken_back_half_way_leaves_one_node() {
    let cluster = cluster().await;
    let store = Arc::new(cluster.open());
    let slow: Arc<dyn MetadataStore> = Arc::new(SlowToDelete { inner: store.clone() });
    let layout = Layout::open(slow, "/ledgers", None).await.expect("an initialised cluster");
    let membership = membership_in(layout).await;
    let (registrar, events) = BookieRegistrar::start(membership, info(), RegistrationMode::ReadOnly, None);
    let kept = Arc::new(Kept::default());
    let mut running = Running { cluster, store, registrar, events, kept };
    running.registered(RegistrationMode::ReadOnly).await;
    running.registrar.set_mode(RegistrationMode::Writable);
    while owner(&running.store, WRITABLE).await.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    running.registrar.set_mode(RegistrationMode::ReadOnly);
    let one_is_left = async {
        while owner(&running.store, WRITABLE).await.is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), one_is_left)
        .await
        .expect("the bookie is registered as read-only alone");
    assert_eq!(owner(&running.store, READ_ONLY).await, Some(session_of(&running.store)));
}

#[tokio::test]
async fn every_fault_while_registering_ends_in_a_registration() {
    for fault in [Fault::LossBeforeApply, Fault::LossAfterApply] {
        let cluster = cluster().await;
        let store = Arc::new(cluster.open());
        let membership = membership(&store).await;
        store.inject(fault);
        let (_registrar, events) =
            BookieRegistrar::start(membership, info(), RegistrationMode::Writable, None);
        let kept = Arc::new(Kept::default());
        let mut running = Running { cluster, store, registrar: _registrar, events, kept };
        running.registered(RegistrationMode::Writable).await;
    }
}

/// Registrar invariant 5: a store that holds another cluster under the same address, or was told to forget the bookie, must
/// not list it: ledger ids there mean other ledgers.
#[tokio::test]
async fn a_bookie_is_not_listed_in_another_cluster_or_without_its_cookie() {
    for what in ["id changed", "id gone", "cookie gone", "cookie changed", "cookie unreadable"] {
        let mut running = start().await;
        running.registered(RegistrationMode::Writable).await;
        let (operator, cookie) = (running.cluster.open(), "/ledgers/cookies/b:1");
        let former = session_of(&running.store);
        running.store.disconnect();
        assert_eq!(running.event().await, RegistrationEvent::Lost);
        match what {
            "id changed" => operator.set("/ledgers/INSTANCEID", "another".into(), None).await.map(drop),
            "id gone" => operator.delete("/ledgers/INSTANCEID", None).await,
            "cookie gone" => operator.delete(cookie, None).await,
            "cookie changed" => {
                let text = String::from_utf8(operator.get(cookie).await.unwrap().data.to_vec()).unwrap();
                operator.set(cookie, text.replace("/l", "/other").into(), None).await.map(drop)
            }
            _ => operator.set(cookie, "no cookie".into(), None).await.map(drop),
        }
        .unwrap();
        running.cluster.expire_quietly(former);
        running.store.reconnect();
        assert_eq!(running.event().await, RegistrationEvent::Expired);
        let refused = running.event().await;
        let is_right = match &refused {
            RegistrationEvent::Refused(RegistrationError::OtherCluster { .. }) => what.starts_with("id"),
            RegistrationEvent::Refused(RegistrationError::CookieChanged { .. }) => what.starts_with("cookie"),
            _ => false,
        };
        assert!(is_right, "{what}: {refused:?}");
        assert_eq!(running.events.recv().await, None, "nothing follows a refusal");
        for node in [WRITABLE, READ_ONLY] {
            assert_eq!(operator.exists(node).await.unwrap(), None, "{what}");
        }
    }
}
