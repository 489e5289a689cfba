//! The memory driver conforms to the trait.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bindery_metadata::conformance::{self, Harness, Opening};
use bindery_metadata::memory::{Kind, MemoryCluster};
use bindery_metadata::store::{CreateMode, MetadataStore, SessionCredentials};

struct Memory(MemoryCluster);

impl Harness for Memory {
    fn open(&self) -> Opening<'_> {
        Box::pin(async { Arc::new(self.0.open()) as Arc<dyn MetadataStore> })
    }

    fn resume(&self, credentials: SessionCredentials) -> Opening<'_> {
        Box::pin(async move { Arc::new(self.0.resume(&credentials)) as Arc<dyn MetadataStore> })
    }

    fn base(&self, name: &'static str) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(async move {
            let created = self.0.open().create(&format!("/{name}"), "".into(), CreateMode::Persistent).await;
            created.expect("create a fresh node").path
        })
    }
}

#[tokio::test]
async fn the_memory_driver_conforms() {
    for kind in Kind::ALL {
        let checks = conformance::run(&Memory(MemoryCluster::of(kind))).await;
        println!("driver=memory kind={kind:?} conformance_checks={checks}");
    }
}
