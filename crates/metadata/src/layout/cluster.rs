//! Cluster initialisation and the LAYOUT node.
//!
//! # Invariants
//! 1. A cluster without LAYOUT is one of Pulsar's driver ([`unlaid`]): it is read and nothing is written at its root. One whose ledgers
//!    are where that driver has none has lost its LAYOUT, and is not opened.
//! 2. An initialisation that names the INSTANCEID changes nothing of a cluster that has another.
//! 3. All before LAYOUT is made in one transaction. In a store without transactions it is made node by node, below a root that has nothing
//!    else, and INSTANCEID comes last of them: where it is, nothing is missing, or Pulsar's driver made it. Of several initialisations the one
//!    that makes it decides whose cluster it is, and none opens before LAYOUT.
//! 4. A cluster that is to be paused has its pause before it has the INSTANCEID, without which nothing is tiered. The node above the pause is
//!    the first of all below the root, so that no bookie completes a cluster that is being initialised ([`complete`]).
//! 5. A root with the marker of an import is no cluster, also where LAYOUT is beside it. An import makes the marker
//!    first and removes it last, so a look at the marker comes after the look at the nodes.

use std::sync::Arc;

use bytes::Bytes;

use super::paths::create_parents;
use super::tier_pause;
use super::unlaid::{self, Unlaid};
use super::{Layout, LedgerLayout};
use crate::store::{CreateMode, MetadataStore, Op, StoreError};

const LAYOUT_FORMAT_VERSION: u32 = 2;
const LEDGER_MANAGER_VERSION: u32 = 1;

/// Why a LAYOUT node is not one this version works with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Not `<version>\n<class>:<version>`.
    #[error("the LAYOUT node holds {0:?}, which is no ledger layout")]
    Malformed(String),
    /// A format before or after ours.
    #[error("the LAYOUT node has format version {0}; version {LAYOUT_FORMAT_VERSION} is supported")]
    FormatVersion(u32),
    /// A known or unknown layout that is not supported.
    #[error(
        "the cluster's ledgers are laid out by {0}; supported are the hierarchical and the long hierarchical layout"
    )]
    Unsupported(String),
}

/// Why a cluster cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Nothing, or half of a cluster, is there.
    #[error(
        "{root} in the metadata store is not an initialised BookKeeper cluster: correct the root at the end of the metadata URI, or, \
         for a new cluster, run bindery cluster init with this --metadata URI"
    )]
    NotInitialised {
        /// The ledgers root.
        root: String,
    },
    /// A cluster is being copied to there.
    #[error(
        "{root} is being imported; when that stopped half-way, repeat bindery cluster import, which goes on there"
    )]
    Importing {
        /// The ledgers root.
        root: String,
    },
    /// The cluster has ledgers, and no LAYOUT that says where.
    #[error("{0}")]
    LayoutGone(LayoutGone),
    /// The stored layout is not usable.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The URI asks for another layout than the stored one.
    #[error(
        "the URI asks for the {wanted} layout, the cluster has the {stored} one: use zk+{stored}:// or zk://"
    )]
    LayoutMismatch {
        /// In the URI.
        wanted: LedgerLayout,
        /// In the store.
        stored: LedgerLayout,
    },
    /// The store failed.
    #[error("open the cluster: {0}")]
    Store(#[from] StoreError),
}

/// A cluster whose LAYOUT was removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{root} in the metadata store has an INSTANCEID and ledgers, and no LAYOUT that says how they are laid out: somebody removed it. Only \
     Pulsar's driver goes without, and its ledgers are elsewhere. Nothing was changed: put {root}/LAYOUT back as it was{}",
    match has_long_paths {
        true => ", which bindery cluster init does with a URI of zk+longhierarchical://",
        false => "",
    }
)]
pub struct LayoutGone {
    /// The ledgers root.
    pub root: String,
    /// Its ledgers are laid out the long hierarchical way.
    pub has_long_paths: bool,
}

/// What [`init_cluster`] found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitOutcome {
    /// The cluster was created.
    Created,
    /// Missing nodes were made: an initialisation had stopped half-way, an earlier one or this one when its connection was lost.
    Completed,
    /// A whole cluster with the same layout was there, without nodes below which bookies register: these were made again.
    Mended,
    /// A cluster with the same layout was there; nothing was changed.
    AlreadyInitialised,
}

/// Why a cluster cannot be initialised.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// A cluster with another layout is there.
    #[error("the cluster exists with the {stored} layout, not {wanted}; nothing was changed")]
    OtherLayout {
        /// Asked for.
        wanted: LedgerLayout,
        /// In the store.
        stored: LedgerLayout,
    },
    /// The existing cluster has a layout that cannot be used.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Somebody copies a cluster to there.
    #[error(
        "{root} is being imported; when that stopped half-way, repeat bindery cluster import, which goes on there"
    )]
    Importing {
        /// The ledgers root.
        root: String,
    },
    /// The cluster has ledgers, and no LAYOUT that says where.
    #[error("{0}")]
    LayoutGone(LayoutGone),
    /// A cluster with another INSTANCEID than the one that was named is there.
    #[error(
        "there is a cluster with INSTANCEID {found:?} already, which stays what it is: choose another root or metadata store"
    )]
    OtherCluster {
        /// Its INSTANCEID; empty when it has none.
        found: String,
    },
    /// The root exists, but it is not a cluster's.
    #[error("{root} exists in the metadata store and is no BookKeeper cluster: choose another root")]
    ForeignRoot {
        /// The ledgers root.
        root: String,
    },
    /// The store failed.
    #[error("initialise the cluster: {0}")]
    Store(#[from] StoreError),
}

impl LedgerLayout {
    /// The Java class whose name identifies the path scheme in LAYOUT.
    fn class(self) -> &'static str {
        match self {
            LedgerLayout::Hierarchical => "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory",
            LedgerLayout::LongHierarchical => {
                "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory"
            }
        }
    }

    pub(super) fn to_text(self) -> String {
        format!("{LAYOUT_FORMAT_VERSION}\n{}:{LEDGER_MANAGER_VERSION}", self.class())
    }

    fn parse(bytes: &[u8]) -> Result<LedgerLayout, LayoutError> {
        let malformed = || LayoutError::Malformed(String::from_utf8_lossy(bytes).chars().take(200).collect());
        let text = std::str::from_utf8(bytes).map_err(|_| malformed())?;
        let (version, rest) = text.split_once('\n').ok_or_else(malformed)?;
        let version: u32 = version.trim().parse().map_err(|_| malformed())?;
        if version != LAYOUT_FORMAT_VERSION {
            return Err(LayoutError::FormatVersion(version));
        }
        let (class, manager) = rest.trim_end().split_once(':').ok_or_else(malformed)?;
        let known = [LedgerLayout::Hierarchical, LedgerLayout::LongHierarchical];
        match known.into_iter().find(|layout| layout.class() == class) {
            Some(layout) if manager.parse() == Ok(LEDGER_MANAGER_VERSION) => Ok(layout),
            _ => Err(LayoutError::Unsupported(rest.chars().take(200).collect())),
        }
    }
}

async fn stored_layout(store: &dyn MetadataStore, root: &str) -> Result<Option<Bytes>, StoreError> {
    match store.get(&format!("{root}/LAYOUT")).await {
        Ok(node) => Ok(Some(node.data)),
        Err(StoreError::NoNode { .. }) => Ok(None),
        Err(other) => Err(other),
    }
}

/// Below the root while an import is under way; holds the checksum of its file.
pub(crate) const IMPORT_MARKER: &str = "/IMPORTING";

pub(super) async fn open(
    store: Arc<dyn MetadataStore>,
    root: &str,
    wanted: Option<LedgerLayout>,
) -> Result<Layout, OpenError> {
    // Another client may just have initialised the cluster through another server.
    store.sync("/").await?;
    let importing = || OpenError::Importing { root: root.into() };
    let (stored, has_layout_node) = match stored_layout(&*store, root).await? {
        Some(_) if is_importing(&*store, root).await? => return Err(importing()),
        Some(bytes) => (LedgerLayout::parse(&bytes)?, true),
        None => match unlaid::look(&*store, root).await? {
            Unlaid::Importing => return Err(importing()),
            Unlaid::OfPulsar => (LedgerLayout::Hierarchical, false),
            Unlaid::LayoutGone { has_long_paths } => {
                return Err(OpenError::LayoutGone(LayoutGone { root: root.into(), has_long_paths }));
            }
            Unlaid::HalfMade | Unlaid::Other => return Err(OpenError::NotInitialised { root: root.into() }),
        },
    };
    match wanted {
        Some(wanted) if wanted != stored => Err(OpenError::LayoutMismatch { wanted, stored }),
        _ => Ok(Layout { store, root: root.into(), ledger_layout: stored, has_layout_node }),
    }
}

/// Whether a cluster is being copied to this root, or was until the copy was cut off.
pub(super) async fn is_importing(store: &dyn MetadataStore, root: &str) -> Result<bool, StoreError> {
    Ok(store.exists(&format!("{root}{IMPORT_MARKER}")).await?.is_some())
}

/// `has_layout_node`: LAYOUT was there when the cluster was opened. One that was there must not be missing.
pub(super) async fn is_whole(
    store: &dyn MetadataStore,
    root: &str,
    layout: LedgerLayout,
    has_layout_node: bool,
) -> Result<bool, StoreError> {
    let is_there = match stored_layout(store, root).await? {
        Some(bytes) => LedgerLayout::parse(&bytes) == Ok(layout),
        None => !has_layout_node && unlaid::look(store, root).await? == Unlaid::OfPulsar,
    };
    Ok(is_there && !is_importing(store, root).await?)
}

/// Nodes of a cluster that hold no ledgers. A root with any other has metadata whose layout is not known.
const WITHOUT_LEDGERS: [&str; 3] = ["INSTANCEID", "available", "cookies"];

/// Writes the layout of a cluster of which no more is there than the root and where bookies register. False when something else is
/// there, or less: this bookie would search for its ledgers in the wrong places.
pub(super) async fn complete(
    store: &dyn MetadataStore,
    root: &str,
    layout: LedgerLayout,
) -> Result<bool, StoreError> {
    // Twice: where the store is in parts, one listing is not of one moment. What an initialisation or an import made before `available`,
    // which the first one shows, the second one shows too.
    for _ in 0..2 {
        let children = match store.children(root).await {
            Ok(children) => children,
            Err(StoreError::NoNode { .. }) => return Ok(false),
            Err(other) => return Err(other),
        };
        let is_bare = children.iter().all(|name| WITHOUT_LEDGERS.contains(&&**name));
        if !is_bare || !children.iter().any(|name| name == "available") {
            return Ok(false);
        }
    }
    for (name, data) in [("/available/readonly", Bytes::new()), ("/LAYOUT", layout.to_text().into())] {
        match store.create(&format!("{root}{name}"), data, CreateMode::Persistent).await {
            // Another bookie that starts now; which layout it wrote is read afterwards.
            Ok(_) | Err(StoreError::NodeExists { .. }) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(true)
}

/// How often an initialisation is tried whose connection is lost.
const INIT_ATTEMPTS_MAX: usize = 3;

/// Creates a cluster: what `bookkeeper shell initnewcluster` creates, in the same order. Repeating it is harmless.
///
/// A cluster of Pulsar's driver, which has no LAYOUT, is there already: nothing is written.
///
/// `instance_id` is 16 random bytes; they become the cluster's UUID. Only the caller has a source of randomness.
pub async fn init_cluster(
    store: &dyn MetadataStore,
    root: &str,
    layout: LedgerLayout,
    instance_id: [u8; 16],
) -> Result<InitOutcome, InitError> {
    init_cluster_with(store, root, layout, instance_id, None).await
}

/// As [`init_cluster`], for a cluster that is to have this very `instance_id` when `paused` is given: one with another is refused and left
/// as it is. Tiering is paused for that reason from the moment on at which the cluster is there: no process that stops half-way leaves one
/// in which a tierer may begin. A cluster that was there before keeps its state.
pub async fn init_cluster_with(
    store: &dyn MetadataStore,
    root: &str,
    layout: LedgerLayout,
    instance_id: [u8; 16],
    paused: Option<&str>,
) -> Result<InitOutcome, InitError> {
    let attempt = || try_init_cluster(store, root, layout, instance_id, paused);
    let mut outcome = attempt().await;
    for _ in 1..INIT_ATTEMPTS_MAX {
        if outcome != Err(InitError::Store(StoreError::ConnectionLoss)) {
            return outcome;
        }
        // The last attempt may have created the cluster: all that is known is that it is complete.
        outcome = attempt().await.map(|_| InitOutcome::Completed);
    }
    outcome
}

async fn try_init_cluster(
    store: &dyn MetadataStore,
    root: &str,
    layout: LedgerLayout,
    instance_id: [u8; 16],
    paused: Option<&str>,
) -> Result<InitOutcome, InitError> {
    create_parents(store, root, "").await?;
    // One that was named stays as it is.
    let id = if paused.is_some() { hyphenated(instance_id) } else { uuid_text(instance_id) };
    let mut nodes = vec![("", Bytes::new())];
    // Invariant 4. One transaction shows nobody its parts.
    if paused.is_some() || !store.is_transactional() {
        nodes.push((tier_pause::PARENT, Bytes::new()));
    }
    if let Some(why) = paused {
        nodes.push((tier_pause::NODE, Bytes::copy_from_slice(why.as_bytes())));
    }
    nodes.extend([
        ("/available", Bytes::new()),
        ("/available/readonly", Bytes::new()),
        ("/INSTANCEID", id.clone().into()),
    ]);
    let created = match store.is_transactional() {
        true => create_at_once(store, root, nodes).await?,
        false => create_one_by_one(store, root, nodes).await?,
    };
    store.sync("/").await?;
    if is_importing(store, root).await? {
        return Err(InitError::Importing { root: root.into() });
    }
    if paused.is_some() {
        let found = match store.get(&format!("{root}/INSTANCEID")).await {
            Ok(node) => String::from_utf8_lossy(&node.data).into_owned(),
            Err(StoreError::NoNode { .. }) => String::new(),
            Err(other) => return Err(other.into()),
        };
        if !found.trim().eq_ignore_ascii_case(&id) {
            return Err(InitError::OtherCluster { found });
        }
    }
    if let Some(bytes) = stored_layout(store, root).await? {
        let stored = LedgerLayout::parse(&bytes)?;
        if stored != layout {
            return Err(InitError::OtherLayout { wanted: layout, stored });
        }
        return Ok(match mend_registration(store, root).await? {
            _ if created => InitOutcome::Created,
            true => InitOutcome::Mended,
            false => InitOutcome::AlreadyInitialised,
        });
    }
    match unlaid::look(store, root).await? {
        Unlaid::Importing => return Err(InitError::Importing { root: root.into() }),
        Unlaid::OfPulsar if layout == LedgerLayout::Hierarchical => {
            return Ok(InitOutcome::AlreadyInitialised);
        }
        Unlaid::OfPulsar => {
            return Err(InitError::OtherLayout { wanted: layout, stored: LedgerLayout::Hierarchical });
        }
        // LAYOUT is made again, as the ledgers show that it was.
        Unlaid::LayoutGone { has_long_paths: true } if layout == LedgerLayout::LongHierarchical => {}
        Unlaid::LayoutGone { has_long_paths } => {
            return Err(InitError::LayoutGone(LayoutGone { root: root.into(), has_long_paths }));
        }
        Unlaid::HalfMade => {}
        Unlaid::Other if store.exists(&format!("{root}/available/readonly")).await?.is_some() => {}
        Unlaid::Other => return Err(InitError::ForeignRoot { root: root.into() }),
    }
    if let Some(why) = paused {
        // One that stopped half-way, perhaps of a build that knew no pause: LAYOUT is what makes a cluster.
        tier_pause::create(store, root, why).await?;
    }
    let path = format!("{root}/LAYOUT");
    match store.create(&path, layout.to_text().into(), CreateMode::Persistent).await {
        Ok(_) => Ok(if created { InitOutcome::Created } else { InitOutcome::Completed }),
        // Two initialisations at once: whoever wrote LAYOUT decided.
        Err(StoreError::NodeExists { .. }) => {
            let bytes = stored_layout(store, root).await?.ok_or(StoreError::NoNode { path })?;
            let stored = LedgerLayout::parse(&bytes)?;
            match stored == layout {
                true => Ok(if created { InitOutcome::Created } else { InitOutcome::Completed }),
                false => Err(InitError::OtherLayout { wanted: layout, stored }),
            }
        }
        Err(other) => Err(other.into()),
    }
}

/// Creates nodes below the root in one step. False when one of them is there: another process's cluster, or ours after a lost connection or
/// an earlier crash; the stored nodes decide.
async fn create_at_once(
    store: &dyn MetadataStore,
    root: &str,
    nodes: Vec<(&str, Bytes)>,
) -> Result<bool, StoreError> {
    let create =
        |(name, data)| Op::Create { path: format!("{root}{name}"), data, mode: CreateMode::Persistent };
    match store.multi(nodes.into_iter().map(create).collect()).await {
        Ok(()) => Ok(true),
        Err(StoreError::NodeExists { .. }) => Ok(false),
        Err(other) => Err(other),
    }
}

/// Creates those nodes that are missing, unless the root has any that an initialisation does not make before the last of them, or that last
/// one (invariant 3). True when that last one was made here.
///
/// A pause that was made here stays when another initialisation, at the same moment, makes the last node: that one may have found the pause
/// and rely on it.
async fn create_one_by_one(
    store: &dyn MetadataStore,
    root: &str,
    nodes: Vec<(&str, Bytes)>,
) -> Result<bool, StoreError> {
    match store.children(root).await {
        Ok(names) if names.iter().any(|name| !unlaid::BEFORE_ID.contains(&&**name)) => return Ok(false),
        Ok(_) | Err(StoreError::NoNode { .. }) => {}
        Err(other) => return Err(other),
    }
    if !unlaid::is_pause_alone(store, root).await? {
        return Ok(false);
    }
    let mut is_made = false;
    for (name, data) in nodes {
        is_made = match store.create(&format!("{root}{name}"), data, CreateMode::Persistent).await {
            Ok(_) => true,
            Err(StoreError::NodeExists { .. }) => false,
            Err(other) => return Err(other),
        };
    }
    Ok(is_made)
}

/// Makes the nodes below which bookies register, where somebody deleted them. True when one was missing.
async fn mend_registration(store: &dyn MetadataStore, root: &str) -> Result<bool, StoreError> {
    let mut was_missing = false;
    for name in ["/available", "/available/readonly"] {
        match store.create(&format!("{root}{name}"), Bytes::new(), CreateMode::Persistent).await {
            Ok(_) => was_missing = true,
            Err(StoreError::NodeExists { .. }) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(was_missing)
}

/// The text of a random (version 4) UUID, as Java's `UUID.randomUUID()` prints it.
fn uuid_text(mut bytes: [u8; 16]) -> String {
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    hyphenated(bytes)
}

fn hyphenated(bytes: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests;
