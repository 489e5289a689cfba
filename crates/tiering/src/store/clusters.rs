//! Whose objects a store holds.

use super::{Store, StoreError};
use crate::ClusterId;

/// The clusters that have keys below the store's prefix (T18), ascending.
///
/// # Errors
/// When the store cannot be listed.
pub async fn clusters(store: &Store) -> Result<Vec<ClusterId>, StoreError> {
    let prefix = (!store.url().prefix().is_empty()).then(|| store.key(""));
    let root = store.key("");
    let listed = store.inner().list_with_delimiter(prefix.as_ref()).await;
    let listed = listed.map_err(|error| StoreError::of(&root, &error))?;
    let names = listed.common_prefixes.iter().filter_map(|path| {
        let name = path.filename()?;
        // Keys have one spelling of it.
        name.parse().ok().filter(|id: &ClusterId| id.to_string() == name)
    });
    let mut found: Vec<ClusterId> = names.collect();
    found.sort_unstable();
    Ok(found)
}
