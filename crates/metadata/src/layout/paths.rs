//! Ledger ids as paths (protocol reference, section 5.1), and the nodes above a path.
//!
//! ```text
//! 2-4-4      <NN>/<NNNN>/L<NNNN>                     ids below 2^31 - 1 in the hierarchical layout
//! 3-4-4-4-4  <NNN>/<NNNN>/<NNNN>/<NNNN>/L<NNNN>      all others
//! ```

use std::fmt;
use std::sync::Arc;

use bindery_types::LedgerId;
use bytes::Bytes;

use crate::store::{CreateMode, MetadataStore, StoreError};

/// The ledgers root of a cluster, below which a part of the layout has its nodes.
#[derive(Clone)]
pub(super) struct Root {
    pub(super) store: Arc<dyn MetadataStore>,
    /// Without a trailing slash.
    pub(super) path: String,
}

impl Root {
    pub(super) fn new(store: Arc<dyn MetadataStore>, path: &str) -> Root {
        Root { store, path: path.into() }
    }

    /// What a node holds; `None` where there is no such node.
    pub(super) async fn find(&self, path: &str) -> Result<Option<Bytes>, StoreError> {
        match self.store.get(path).await {
            Ok(node) => Ok(Some(node.data)),
            Err(StoreError::NoNode { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// Creates a node below the root, with those above it. False where it is there.
    pub(super) async fn create(&self, path: &str, data: Bytes) -> Result<bool, StoreError> {
        create_with_parents(&*self.store, &self.path, path, data).await
    }
}

/// As [`Root::create`].
pub(super) async fn create_with_parents(
    store: &dyn MetadataStore,
    root: &str,
    path: &str,
    data: Bytes,
) -> Result<bool, StoreError> {
    create_parents(store, path, root).await?;
    match store.create(path, data, CreateMode::Persistent).await {
        Ok(_) => Ok(true),
        Err(StoreError::NodeExists { .. }) => Ok(false),
        Err(other) => Err(other),
    }
}

/// Creates the nodes above `path` and below `root`, which a create of `path` needs. An empty root stands for the whole tree.
pub(crate) async fn create_parents(
    store: &dyn MetadataStore,
    path: &str,
    root: &str,
) -> Result<(), StoreError> {
    for (at, _) in path.match_indices('/').filter(|(at, _)| *at > root.len()) {
        match store.create(&path[..at], Bytes::new(), CreateMode::Persistent).await {
            Ok(_) | Err(StoreError::NodeExists { .. }) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

/// How ledger ids become paths. The LAYOUT node of a cluster says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerLayout {
    /// Short paths for ids below 2^31 - 1, long ones above. BookKeeper's default.
    Hierarchical,
    /// Long paths for all ids.
    LongHierarchical,
}

impl fmt::Display for LedgerLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LedgerLayout::Hierarchical => "hierarchical",
            LedgerLayout::LongHierarchical => "longhierarchical",
        })
    }
}

/// The first id with a long path in the hierarchical layout.
pub(super) const LONG_PATHS_FROM: i64 = i32::MAX as i64;

/// A shape of path: how many digits each part has. The last part is the node's, after an `L`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    Short,
    Long,
}

impl Shape {
    pub(super) fn of(layout: LedgerLayout, id: LedgerId) -> Shape {
        match layout {
            LedgerLayout::Hierarchical if id.get() < LONG_PATHS_FROM => Shape::Short,
            LedgerLayout::Hierarchical | LedgerLayout::LongHierarchical => Shape::Long,
        }
    }

    /// Digits per part.
    pub(super) fn parts(self) -> &'static [usize] {
        match self {
            Shape::Short => &[2, 4, 4],
            Shape::Long => &[3, 4, 4, 4, 4],
        }
    }
}

/// The path of a ledger below the root, with its leading slash.
pub(super) fn ledger_path(layout: LedgerLayout, id: LedgerId) -> String {
    let shape = Shape::of(layout, id);
    let digits = match shape {
        Shape::Short => format!("{:010}", id.get()),
        Shape::Long => format!("{:019}", id.get()),
    };
    let mut path = String::with_capacity(32);
    let mut rest = digits.as_str();
    for (index, size) in shape.parts().iter().enumerate() {
        let (part, after) = rest.split_at(*size);
        path.push('/');
        if index + 1 == shape.parts().len() {
            path.push('L');
        }
        path.push_str(part);
        rest = after;
    }
    assert!(rest.is_empty(), "the parts of a path hold all digits of an id");
    path
}

/// The digits of a directory name or a node name (`L...`), if it has the shape of that level.
pub(super) fn digits_of(shape: Shape, level: usize, name: &str) -> Option<&str> {
    let parts = shape.parts();
    let digits = if level + 1 == parts.len() { name.strip_prefix('L')? } else { name };
    (digits.len() == parts[level] && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_javas_paths_at_every_boundary() {
        let path = |layout, id| ledger_path(layout, LedgerId::new(id).unwrap());
        let hierarchical = |id| path(LedgerLayout::Hierarchical, id);
        assert_eq!(hierarchical(0), "/00/0000/L0000");
        assert_eq!(hierarchical(12_345), "/00/0001/L2345");
        assert_eq!(hierarchical(2_147_483_646), "/21/4748/L3646");
        assert_eq!(hierarchical(2_147_483_647), "/000/0000/0021/4748/L3647");
        assert_eq!(hierarchical(i64::MAX), "/922/3372/0368/5477/L5807");
        assert_eq!(path(LedgerLayout::LongHierarchical, 5), "/000/0000/0000/0000/L0005");
    }

    #[test]
    fn names_of_other_things_are_not_ledgers() {
        for special in ["available", "cookies", "idgen", "LAYOUT", "000", "0", "1a", "-1"] {
            assert_eq!(digits_of(Shape::Short, 0, special), None, "{special}");
        }
        assert_eq!(digits_of(Shape::Short, 2, "L0042"), Some("0042"));
        assert_eq!(digits_of(Shape::Short, 2, "0042"), None);
        assert_eq!(digits_of(Shape::Long, 0, "000"), Some("000"));
    }
}
