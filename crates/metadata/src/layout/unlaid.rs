//! A root without a LAYOUT node: whose it is.
//!
//! Pulsar's driver (`metadata-store:`) never writes LAYOUT; its ledgers are laid out the hierarchical way. Its parents are nodes that go
//! with their last child, so that any of them may be missing. BookKeeper's own driver writes LAYOUT last, after INSTANCEID.

use super::cluster::is_importing;
use super::paths::{LONG_PATHS_FROM, Shape, digits_of};
use super::tier_pause;
use crate::store::{MetadataStore, StoreError};

/// What a root without LAYOUT is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unlaid {
    /// A cluster of Pulsar's driver.
    OfPulsar,
    /// A cluster with ledgers where that driver has none: its LAYOUT was removed. `has_long_paths`: they are laid out the long way.
    LayoutGone {
        /// They are where the long hierarchical layout has them.
        has_long_paths: bool,
    },
    /// A cluster is being copied to there.
    Importing,
    /// An initialisation that stopped before its last step, or is under way.
    HalfMade,
    /// No cluster, or none with an INSTANCEID.
    Other,
}

/// Nodes that an initialisation makes before LAYOUT.
const OF_INIT: [&str; 3] = ["INSTANCEID", "available", "underreplication"];
/// Those of them that it makes before INSTANCEID.
pub(super) const BEFORE_ID: [&str; 2] = ["available", "underreplication"];

pub(super) async fn look(store: &dyn MetadataStore, root: &str) -> Result<Unlaid, StoreError> {
    let names = children(store, root).await?;
    // After the listing: an import makes its marker before anything that is listed here.
    if is_importing(store, root).await? {
        return Ok(Unlaid::Importing);
    }
    let has = |name: &str| names.iter().any(|found| found == name);
    // LAYOUT has come since somebody looked for it: the next look finds it.
    if !has("INSTANCEID") || has("LAYOUT") {
        return Ok(Unlaid::Other);
    }
    if names.iter().all(|name| OF_INIT.contains(&&**name))
        && store.exists(&format!("{root}/available/readonly")).await?.is_some()
        && is_pause_alone(store, root).await?
        && children(store, &format!("{root}/available")).await?.len() == 1
    {
        return Ok(Unlaid::HalfMade);
    }
    if names.iter().any(|name| is_flat_ledger(name)) {
        return Ok(Unlaid::LayoutGone { has_long_paths: false });
    }
    // The hierarchical layout has long paths, too, of ids from there on.
    let has_long_paths = lowest_of_long_paths(store, root).await?.is_some_and(|id| id < LONG_PATHS_FROM);
    Ok(if has_long_paths { Unlaid::LayoutGone { has_long_paths } } else { Unlaid::OfPulsar })
}

async fn children(store: &dyn MetadataStore, path: &str) -> Result<Vec<String>, StoreError> {
    match store.children(path).await {
        Err(StoreError::NoNode { .. }) => Ok(Vec::new()),
        found => found,
    }
}

/// True when an initialisation may have made all that is below `underreplication`.
pub(super) async fn is_pause_alone(store: &dyn MetadataStore, root: &str) -> Result<bool, StoreError> {
    let names = children(store, &format!("{root}{}", tier_pause::PARENT)).await?;
    Ok(names.iter().all(|name| name == tier_pause::NAME))
}

/// A ledger of BookKeeper's flat layout, which is not supported.
fn is_flat_ledger(name: &str) -> bool {
    name.strip_prefix('L').is_some_and(|id| id.len() == 10 && id.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The lowest id of a ledger with a long path.
async fn lowest_of_long_paths(store: &dyn MetadataStore, root: &str) -> Result<Option<i64>, StoreError> {
    let last = Shape::Long.parts().len() - 1;
    // Directories still to be read, the lowest at the end. Some may be empty.
    let mut pending = vec![(root.to_owned(), String::new(), 0)];
    while let Some((path, digits, level)) = pending.pop() {
        let names = children(store, &path).await?;
        let mut parts: Vec<(&str, &str)> =
            names.iter().filter_map(|name| Some((&**name, digits_of(Shape::Long, level, name)?))).collect();
        parts.sort_by(|left, right| right.1.cmp(left.1));
        if level == last {
            if let Some((_, lowest)) = parts.last() {
                return Ok(format!("{digits}{lowest}").parse().ok());
            }
            continue;
        }
        pending.extend(
            parts.iter().map(|(name, part)| (format!("{path}/{name}"), format!("{digits}{part}"), level + 1)),
        );
    }
    Ok(None)
}
