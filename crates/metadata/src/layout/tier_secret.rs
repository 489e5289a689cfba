//! The secret by which bookies know tierers: `underreplication/bindery-tier-secret` (protocol reference, section 6.1). It is below
//! `underreplication` for the reason that the marks of bookies are, and has the access list of every node of ours.
//!
//! A bookie with object storage creates it, and tierers and commands read it. An export leaves it out, so an imported cluster gets a
//! secret of its own. Deleted, it is drawn again by the next bookie that meets a proof that does not fit.

use bindery_types::TierSecret;
use bytes::Bytes;

use super::paths::Root;
use crate::store::StoreError;

/// Below `underreplication`.
pub(crate) const NAME: &str = "bindery-tier-secret";

/// The node of a cluster.
#[derive(Clone)]
pub struct TierSecretNode(pub(super) Root);

impl TierSecretNode {
    /// Where it is.
    pub fn path(&self) -> String {
        format!("{}/underreplication/{NAME}", self.0.path)
    }

    /// The secret; `None` while no bookie has drawn one.
    ///
    /// # Errors
    /// Those of the store, and a node that holds something else.
    pub async fn get(&self) -> Result<Option<TierSecret>, StoreError> {
        let path = self.path();
        // Another process may just have created it through another server.
        self.0.store.sync(&path).await?;
        let Some(found) = self.0.find(&path).await? else { return Ok(None) };
        match <[u8; TierSecret::SIZE_BYTES]>::try_from(&found[..]) {
            Ok(bytes) => Ok(Some(TierSecret::from_bytes(bytes))),
            Err(_) => Err(StoreError::Protocol(format!(
                "{path} does not hold {} bytes: delete this node, and a bookie draws another secret",
                TierSecret::SIZE_BYTES
            ))),
        }
    }

    /// The secret; this one, drawn at random, where there is none.
    ///
    /// # Errors
    /// As [`TierSecretNode::get`].
    pub async fn get_or_create(&self, drawn: TierSecret) -> Result<TierSecret, StoreError> {
        if let Some(secret) = self.get().await? {
            return Ok(secret);
        }
        let path = self.path();
        match self.0.create(&path, Bytes::copy_from_slice(drawn.as_bytes())).await? {
            true => Ok(drawn),
            // Another bookie was faster.
            false => self.get().await?.ok_or(StoreError::NoNode { path }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Kind, MemoryCluster};
    use crate::store::{CreateMode, MetadataStore};
    use std::sync::Arc;

    #[tokio::test]
    async fn the_first_secret_stays() {
        for kind in Kind::ALL {
            let store: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::of(kind).open());
            store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
            let node = TierSecretNode(Root::new(store.clone(), "/l"));
            let [first, second] = [1, 2].map(|byte| TierSecret::from_bytes([byte; 32]));
            assert_eq!(node.get().await, Ok(None));
            assert_eq!(node.get_or_create(first.clone()).await, Ok(first.clone()));
            assert_eq!(node.get_or_create(second).await, Ok(first.clone()));
            assert_eq!(node.get().await, Ok(Some(first)));
            store.set(&node.path(), "short".into(), None).await.unwrap();
            let error = node.get().await.unwrap_err().to_string();
            assert!(
                error.contains("/l/underreplication/bindery-tier-secret") && error.contains("delete"),
                "{error}"
            );
        }
    }
}
