//! Whether tiering is paused: `underreplication/bindery-tier-paused` (protocol reference, section 6.1), for all tierers of the
//! cluster. It is below `underreplication` for the reason that the marks of bookies are.

use std::sync::Arc;

use bytes::Bytes;

use super::paths::create_parents;
use crate::store::{CreateMode, MetadataStore, StoreError, Watch};

/// Below the root.
pub(super) const NODE: &str = "/underreplication/bindery-tier-paused";

/// The flag of a cluster.
#[derive(Clone)]
pub struct TierPause {
    store: Arc<dyn MetadataStore>,
    root: String,
}

impl TierPause {
    pub(super) fn new(store: Arc<dyn MetadataStore>, root: &str) -> TierPause {
        TierPause { store, root: root.into() }
    }

    fn path(&self) -> String {
        format!("{}{NODE}", self.root)
    }

    /// Whether tiering is paused, with a watch for the next change.
    pub async fn watch(&self) -> Result<(bool, Watch), StoreError> {
        let (found, watch) = self.store.exists_and_watch(&self.path()).await?;
        Ok((found.is_some(), watch))
    }

    /// Why it is paused, as whoever paused it said; `None` when it is not.
    pub async fn get(&self) -> Result<Option<String>, StoreError> {
        match self.store.get(&self.path()).await {
            Ok(node) => Ok(Some(String::from_utf8_lossy(&node.data).into_owned())),
            Err(StoreError::NoNode { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// Pauses it. False when it was paused before, and stays so with the reason it had.
    pub async fn pause(&self, why: &str) -> Result<bool, StoreError> {
        create(&*self.store, &self.root, why).await
    }

    /// Ends the pause. False when there was none.
    pub async fn resume(&self) -> Result<bool, StoreError> {
        match self.store.delete(&self.path(), None).await {
            Ok(()) => Ok(true),
            Err(StoreError::NoNode { .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }
}

/// See [`TierPause::pause`].
pub(super) async fn create(store: &dyn MetadataStore, root: &str, why: &str) -> Result<bool, StoreError> {
    let (path, data) = (format!("{root}{NODE}"), Bytes::copy_from_slice(why.as_bytes()));
    create_parents(store, &path, root).await?;
    match store.create(&path, data, CreateMode::Persistent).await {
        Ok(_) => Ok(true),
        Err(StoreError::NodeExists { .. }) => Ok(false),
        Err(other) => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryCluster;

    #[tokio::test]
    async fn a_pause_is_there_until_it_is_ended() {
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::new().open());
        store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
        let pause = TierPause::new(store, "/l");
        let (is_paused, watch) = pause.watch().await.unwrap();
        assert!(!is_paused && pause.get().await == Ok(None) && pause.resume().await == Ok(false));
        assert_eq!(pause.pause("upgrade").await, Ok(true));
        watch.changed().await;
        assert_eq!(pause.pause("again").await, Ok(false));
        assert_eq!(pause.get().await, Ok(Some("upgrade".to_owned())));
        assert!(pause.watch().await.unwrap().0);
        assert_eq!(pause.resume().await, Ok(true));
        assert!(!pause.watch().await.unwrap().0);
    }
}
