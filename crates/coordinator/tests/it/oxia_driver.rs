//! Our own driver for Oxia on the coordinator, beside our own for ZooKeeper on the same tree.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use bindery_coordinator::{Coordinator, CoordinatorConfig};
use bindery_io::{SystemClock, SystemRandom};
use bindery_metadata::conformance::{self, Harness, Opening};
use bindery_metadata::oxia::{self, OxiaStore};
use bindery_metadata::store::{
    CreateMode, MetadataStore, SessionCredentials, SessionState, StoreError, WatchEvent,
};
use bindery_metadata::{ConnectOptions, InitOutcome, Layout, LedgerLayout, MetadataUri};
use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(120);
/// The shortest that Oxia grants.
const SESSION_TIMEOUT: Duration = Duration::from_secs(2);

async fn start(dir: &TempDir, oxia: &str) -> Coordinator {
    let mut config = CoordinatorConfig::new("127.0.0.1:0".parse().unwrap(), dir.path());
    config.oxia = Some(oxia.parse().unwrap());
    config.tick = Duration::from_millis(100);
    Coordinator::start(config, Arc::new(SystemClock::new()), Arc::new(SystemRandom)).await.unwrap()
}

fn options(session_timeout: Duration, resume: Option<SessionCredentials>) -> ConnectOptions {
    ConnectOptions { session_timeout, resume, connect_timeout: Some(PATIENCE), ..ConnectOptions::default() }
}

async fn connect(address: SocketAddr, options: ConnectOptions) -> OxiaStore {
    oxia::connect(&[address.to_string()], "default", options).await.expect("a coordinator that serves")
}

struct Embedded(SocketAddr);

impl Harness for Embedded {
    fn open(&self) -> Opening<'_> {
        Box::pin(async { Arc::new(connect(self.0, options(PATIENCE, None)).await) as Arc<dyn MetadataStore> })
    }
    fn resume(&self, credentials: SessionCredentials) -> Opening<'_> {
        Box::pin(async {
            Arc::new(connect(self.0, options(PATIENCE, Some(credentials))).await) as Arc<dyn MetadataStore>
        })
    }
    fn base(&self, name: &'static str) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(async move {
            let store = self.open().await;
            store.create(&format!("/{name}"), "".into(), CreateMode::Persistent).await.unwrap().path
        })
    }
}

#[tokio::test]
async fn the_oxia_driver_conforms_on_the_coordinator() {
    let dir = TempDir::new().unwrap();
    let coordinator = start(&dir, "127.0.0.1:0").await;
    let checks = conformance::run(&Embedded(coordinator.oxia_addr().unwrap())).await;
    println!("conformance_checks={checks}");
    coordinator.stop().await;
}

/// Ids of ledgers that clients of both protocols take in turn, with restarts: none comes twice, and none is below what was to come next.
#[tokio::test]
async fn ids_of_ledgers_come_once_whichever_protocol_takes_them() {
    let dir = TempDir::new().unwrap();
    let mut ids = BTreeSet::new();
    for restart in 0..3 {
        let coordinator = start(&dir, "127.0.0.1:0").await;
        let oxia: MetadataUri =
            format!("metadata-store:oxia://{}/default", coordinator.oxia_addr().unwrap()).parse().unwrap();
        let zookeeper: MetadataUri = format!("zk://{}/ledgers", coordinator.local_addr()).parse().unwrap();
        if restart == 0 {
            let init = bindery_metadata::init(&oxia, options(PATIENCE, None), [7; 16], None).await;
            assert_eq!(init, Ok(InitOutcome::Created));
        }
        let layouts = [
            bindery_metadata::connect(&oxia, options(PATIENCE, None)).await.unwrap(),
            bindery_metadata::connect(&zookeeper, options(PATIENCE, None)).await.unwrap(),
        ];
        for who in [0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 1] {
            let peeked = [layouts[0].ids().peek().await.unwrap(), layouts[1].ids().peek().await.unwrap()];
            let id = layouts[who].ids().next().await.unwrap();
            assert!(ids.insert(id), "{id} came twice: {ids:?}");
            assert!(
                peeked.iter().all(|peeked| *peeked <= Some(id)),
                "{id} is below what was to come: {peeked:?}"
            );
        }
        for layout in &layouts {
            layout.store().close().await.unwrap();
        }
        coordinator.stop().await;
    }
    assert_eq!(ids.len(), 33);
}

/// Sessions, nodes and watches over a restart, and the layout as either driver sees it.
#[tokio::test]
async fn a_cluster_is_one_for_both_drivers_and_survives_a_restart() {
    let dir = TempDir::new().unwrap();
    let coordinator = start(&dir, "127.0.0.1:0").await;
    let address = coordinator.oxia_addr().unwrap();
    let uri: MetadataUri = format!("metadata-store:oxia://{address}/default").parse().unwrap();
    let init = bindery_metadata::init(&uri, options(PATIENCE, None), [7; 16], None).await;
    assert_eq!(init, Ok(InitOutcome::Created));
    let layout = bindery_metadata::connect(&uri, options(SESSION_TIMEOUT, None)).await.unwrap();
    let zookeeper: MetadataUri = format!("zk://{}/ledgers", coordinator.local_addr()).parse().unwrap();
    let theirs = bindery_metadata::connect(&zookeeper, options(PATIENCE, None)).await.unwrap();
    assert_eq!(theirs.ledger_layout(), LedgerLayout::Hierarchical);
    assert_eq!(theirs.instance_id().await, layout.instance_id().await);
    let store = layout.store().clone();
    let session = store.session().borrow().clone().connected().unwrap();
    store.create("/e", "v".into(), CreateMode::Ephemeral).await.unwrap();
    let (_, watch) = store.children_and_watch("/ledgers/available").await.unwrap();
    theirs.store().create("/ledgers/available/b:1", "".into(), CreateMode::Ephemeral).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap(), WatchEvent::ChildrenChanged);

    let (_, watch) = store.get_and_watch("/e").await.unwrap();
    coordinator.stop().await;
    assert_eq!(tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap(), WatchEvent::Lost);
    let gone = store.get("/e").await.unwrap_err();
    assert!(matches!(gone, StoreError::Unreachable { .. }), "{gone}");
    let coordinator = start(&dir, &address.to_string()).await;
    let mut state = store.session();
    let is_back = state.wait_for(|state| *state == SessionState::Connected(session));
    tokio::time::timeout(PATIENCE, is_back).await.expect("the same session").unwrap();
    assert_eq!(store.get("/e").await.unwrap().stat.owner, Some(session));
    assert_eq!(Layout::open(store.clone(), "/ledgers", None).await.map(drop), Ok(()));
    store.close().await.unwrap();
    coordinator.stop().await;
}
