//! Marks that bookies leave in the store: `underreplication/bindery-marks/<bookie id>` (protocol reference, section 6.1).
//!
//! A bookie replaces its mark with a new random number now and then, and remembers it. A store that shows another one, or none,
//! is not the store that it was: it was put back from a copy, or imported, or is empty.
//!
//! They are below `underreplication` because Java's tools take every other new child of the root for a stranger's node, and
//! refuse to remove a cluster that has one. An export leaves them out, so an imported cluster has none.

use bindery_types::BookieId;
use bytes::Bytes;

use super::paths::Root;
use crate::store::StoreError;

/// Below the root.
pub(crate) const PARENT: &str = "/underreplication";
/// Below [`PARENT`].
pub(crate) const NAME: &str = "bindery-marks";

/// The marks of a cluster.
#[derive(Clone)]
pub struct StoreMarks(pub(super) Root);

impl StoreMarks {
    /// The path of a bookie's mark.
    pub fn path(&self, id: &BookieId) -> String {
        format!("{}{PARENT}/{NAME}/{id}", self.0.path)
    }

    /// The mark of a bookie; `None` when it has none, or one that no bookie wrote.
    pub async fn get(&self, id: &BookieId) -> Result<Option<u64>, StoreError> {
        let Some(found) = self.0.find(&self.path(id)).await? else { return Ok(None) };
        let text = std::str::from_utf8(&found).ok().filter(|text| text.len() == 16);
        Ok(text.and_then(|text| u64::from_str_radix(text, 16).ok()))
    }

    /// Replaces the mark of a bookie. Repeating it is harmless.
    pub async fn put(&self, id: &BookieId, mark: u64) -> Result<(), StoreError> {
        let (path, data) = (self.path(id), Bytes::from(format!("{mark:016x}")));
        match self.0.store.set(&path, data.clone(), None).await {
            Err(StoreError::NoNode { .. }) => {}
            outcome => return outcome.map(drop),
        }
        match self.0.create(&path, data.clone()).await? {
            true => Ok(()),
            false => self.0.store.set(&path, data, None).await.map(drop),
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
    async fn a_mark_is_what_was_put_last() {
        for kind in Kind::ALL {
            let store: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::of(kind).open());
            store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
            let marks = StoreMarks(Root::new(store.clone(), "/l"));
            let (id, other) = (BookieId::new("b:1").unwrap(), BookieId::new("b:2").unwrap());
            assert_eq!(marks.get(&id).await, Ok(None));
            for mark in [7, u64::MAX, 0] {
                marks.put(&id, mark).await.unwrap();
                assert_eq!(marks.get(&id).await, Ok(Some(mark)));
            }
            marks.put(&other, 1).await.unwrap();
            assert_eq!((marks.get(&id).await, marks.get(&other).await), (Ok(Some(0)), Ok(Some(1))));
            store.set(&marks.path(&id), "7".into(), None).await.unwrap();
            assert_eq!(marks.get(&id).await, Ok(None), "nobody's");
        }
    }
}
