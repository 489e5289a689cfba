//! Bookies in this process, on a metadata store in memory.

use std::sync::Arc;
use std::time::Duration;

use bindery_client::{BookieId, Client, ClientBuilder, CreateOptions, Quorum};
use bindery_metadata::Layout;
use bindery_metadata::memory::{MemoryCluster, MemoryStore};

use super::bookies::Bookies;
pub use super::bookies::{entry, payload};

/// The cluster of one test.
pub struct Cluster {
    bookies: Bookies,
}

impl Cluster {
    /// `count` bookies, named `b0`, `b1`, ...
    pub async fn start(count: usize) -> Cluster {
        let mut cluster = Cluster { bookies: Bookies::new(MemoryCluster::new(), [1; 16]).await };
        for index in 0..count {
            cluster.start_bookie(index).await;
        }
        cluster
    }

    /// Another session.
    pub fn store(&self) -> MemoryStore {
        self.bookies.metadata.open()
    }

    pub async fn layout(&self) -> Layout {
        self.bookies.layout().await
    }

    /// A client, and the store that it uses, to take away.
    pub async fn client_on_store(&self) -> (Client, Arc<MemoryStore>) {
        let store = Arc::new(self.bookies.metadata.open());
        let layout = Layout::open(store.clone(), "/ledgers", None).await.unwrap();
        (Client::builder().layout(layout).connect().await.unwrap(), store)
    }

    /// A client with a session and connections of its own.
    pub async fn client(&self) -> Client {
        self.builder().await.connect().await.unwrap()
    }

    pub async fn builder(&self) -> ClientBuilder {
        Client::builder().layout(self.layout().await).request_timeout(Duration::from_secs(5))
    }

    /// Starts a bookie, again or for the first time, on the directories it had.
    pub async fn start_bookie(&mut self, index: usize) {
        // Each on a host of its own, as far as racks go.
        let listen = format!("127.0.0.{}:0", index + 1).parse().unwrap();
        self.bookies.start(index, |config| config.listen = listen).await;
    }

    /// Stops the bookie of this id.
    pub async fn stop_bookie(&mut self, id: &BookieId) {
        self.bookies.stop(Bookies::index_of(id)).await;
    }

    pub async fn stop(self) {
        self.bookies.stop_all().await;
    }
}

/// Options with a password, so that keys are checked.
pub fn options(ensemble: usize, write_quorum: usize, ack_quorum: usize) -> CreateOptions {
    let mut options = CreateOptions::new(Quorum::new(ensemble, write_quorum, ack_quorum).unwrap());
    options.password = b"secret".to_vec();
    options
}
