//! The ZooKeeper driver against a real server, named by `BINDERY_TEST_ZOOKEEPER=host:port`.
//!
//! Ignored by a plain `cargo test`, because it needs that server; the repository's `./test` starts one and includes it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bindery_metadata::conformance::{self, Harness, Opening};
use bindery_metadata::store::{CreateMode, MetadataStore, SessionCredentials, SessionState, StoreError};
use bindery_metadata::zookeeper::{self, ZooKeeperOptions, ZooKeeperStore};

fn server() -> String {
    let server = std::env::var("BINDERY_TEST_ZOOKEEPER");
    server.expect("BINDERY_TEST_ZOOKEEPER=host:port names the ZooKeeper server to test against")
}

async fn connect(resume: Option<SessionCredentials>) -> ZooKeeperStore {
    let options = ZooKeeperOptions { session_timeout: Duration::from_secs(4), resume };
    // A server that is not there, in front: the driver goes on to the next.
    zookeeper::connect(&["127.0.0.1:1".into(), server()], options).await.expect("a reachable server")
}

/// A node that is this test run's alone.
async fn scratch(store: &dyn MetadataStore, name: &str) -> String {
    let path = format!("/bindery-test-{name}-");
    store.create(&path, "".into(), CreateMode::PersistentSequential).await.expect("create a fresh node")
}

struct ZooKeeper;

impl Harness for ZooKeeper {
    fn open(&self) -> Opening<'_> {
        Box::pin(async { Arc::new(connect(None).await) as Arc<dyn MetadataStore> })
    }

    fn resume(&self, credentials: SessionCredentials) -> Opening<'_> {
        Box::pin(async { Arc::new(connect(Some(credentials)).await) as Arc<dyn MetadataStore> })
    }

    fn base(&self, name: &'static str) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(async move {
            let store = connect(None).await;
            let path = scratch(&store, name).await;
            store.close().await.expect("close");
            path
        })
    }
}

#[tokio::test]
#[ignore = "needs BINDERY_TEST_ZOOKEEPER"]
async fn the_zookeeper_driver_conforms() {
    let checks = conformance::run(&ZooKeeper).await;
    println!("driver=zookeeper server={} conformance_checks={checks}", server());
}
