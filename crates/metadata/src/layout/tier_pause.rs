//! Whether tiering is paused: `underreplication/bindery-tier-paused` (protocol reference, section 6.1), for all tierers of the
//! cluster. It is below `underreplication` for the reason that the marks of bookies are.

use bytes::Bytes;

use super::paths::{Root, create_with_parents};
use crate::store::{MetadataStore, StoreError, Watch};

/// Below the root.
pub(super) const NODE: &str = "/underreplication/bindery-tier-paused";
/// The node above it, below the root.
pub(super) const PARENT: &str = "/underreplication";
/// Its name below [`PARENT`].
pub(super) const NAME: &str = "bindery-tier-paused";

/// The flag of a cluster.
#[derive(Clone)]
pub struct TierPause(pub(super) Root);

impl TierPause {
    fn path(&self) -> String {
        format!("{}{NODE}", self.0.path)
    }

    /// Whether tiering is paused, with a watch for the next change.
    pub async fn watch(&self) -> Result<(bool, Watch), StoreError> {
        let (found, watch) = self.0.store.exists_and_watch(&self.path()).await?;
        Ok((found.is_some(), watch))
    }

    /// Why it is paused, as whoever paused it said; `None` when it is not.
    pub async fn get(&self) -> Result<Option<String>, StoreError> {
        let found = self.0.find(&self.path()).await?;
        Ok(found.map(|why| String::from_utf8_lossy(&why).into_owned()))
    }

    /// Pauses it. False when it was paused before, and stays so with the reason it had.
    pub async fn pause(&self, why: &str) -> Result<bool, StoreError> {
        create(&*self.0.store, &self.0.path, why).await
    }

    /// Ends the pause. False when there was none.
    pub async fn resume(&self) -> Result<bool, StoreError> {
        match self.0.store.delete(&self.path(), None).await {
            Ok(()) => Ok(true),
            Err(StoreError::NoNode { .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }
}

/// See [`TierPause::pause`].
pub(super) async fn create(store: &dyn MetadataStore, root: &str, why: &str) -> Result<bool, StoreError> {
    let why = Bytes::copy_from_slice(why.as_bytes());
    create_with_parents(store, root, &format!("{root}{NODE}"), why).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Kind, MemoryCluster};
    use crate::store::CreateMode;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_pause_is_there_until_it_is_ended() {
        for kind in Kind::ALL {
            let store: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::of(kind).open());
            store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
            let pause = TierPause(Root::new(store, "/l"));
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
}
