//! Cluster initialisation and the LAYOUT node.
//!
//! # Invariants
//! 1. A cluster without LAYOUT is one of Pulsar's driver ([`unlaid`]): it is read and nothing is written at its root. One whose ledgers
//!    are where that driver has none has lost its LAYOUT, and is not opened.
//! 2. An initialisation that names the INSTANCEID changes nothing of a cluster that has another.

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
    let (stored, has_layout_node) = match stored_layout(&*store, root).await? {
        Some(bytes) => (LedgerLayout::parse(&bytes)?, true),
        None if store.exists(&format!("{root}{IMPORT_MARKER}")).await?.is_some() => {
            return Err(OpenError::Importing { root: root.into() });
        }
        None => match unlaid::look(&*store, root).await? {
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
    Ok(is_there && store.exists(&format!("{root}{IMPORT_MARKER}")).await?.is_none())
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
    let children = match store.children(root).await {
        Ok(children) => children,
        Err(StoreError::NoNode { .. }) => return Ok(false),
        Err(other) => return Err(other),
    };
    let is_bare = children.iter().all(|name| WITHOUT_LEDGERS.contains(&&**name));
    if !is_bare || !children.iter().any(|name| name == "available") {
        return Ok(false);
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
    let node = |name: &str, data: Bytes| Op::Create {
        path: format!("{root}{name}"),
        data,
        mode: CreateMode::Persistent,
    };
    let mut ops = vec![
        node("", Bytes::new()),
        node("/available", Bytes::new()),
        node("/available/readonly", Bytes::new()),
        node("/INSTANCEID", id.clone().into()),
    ];
    if let Some(why) = paused {
        let (parent, _) = tier_pause::NODE.rsplit_once('/').expect("it is below another node");
        ops.push(node(parent, Bytes::new()));
        ops.push(node(tier_pause::NODE, Bytes::copy_from_slice(why.as_bytes())));
    }
    let created = match store.multi(ops).await {
        Ok(()) => true,
        // Another process's cluster, or ours after a lost connection or an earlier crash: the stored nodes decide.
        Err(StoreError::NodeExists { .. }) => false,
        Err(other) => return Err(other.into()),
    };
    store.sync("/").await?;
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
    if store.exists(&format!("{root}{IMPORT_MARKER}")).await?.is_some() {
        return Err(InitError::Importing { root: root.into() });
    }
    match unlaid::look(store, root).await? {
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
mod tests {
    use super::super::paths::Root;
    use super::*;
    use crate::layout::TierPause;
    use crate::memory::{Fault, MemoryCluster};

    const HIERARCHICAL: &[u8] = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1";

    #[test]
    fn layout_text_is_javas() {
        assert_eq!(LedgerLayout::Hierarchical.to_text().as_bytes(), HIERARCHICAL);
        for layout in [LedgerLayout::Hierarchical, LedgerLayout::LongHierarchical] {
            assert_eq!(LedgerLayout::parse(layout.to_text().as_bytes()), Ok(layout));
        }
        assert_eq!(LedgerLayout::parse(b"1\nflat:1"), Err(LayoutError::FormatVersion(1)));
        let flat = b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1";
        assert!(matches!(LedgerLayout::parse(flat), Err(LayoutError::Unsupported(_))));
        for bad in [&b""[..], b"x\ny:1", b"2\nno-version", b"2", b"\xff\n:"] {
            assert!(matches!(LedgerLayout::parse(bad), Err(LayoutError::Malformed(_))));
        }
    }

    #[test]
    fn instance_ids_are_version_4_uuids() {
        assert_eq!(uuid_text([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }

    #[tokio::test]
    async fn init_creates_once_completes_what_stopped_and_refuses_another_layout() {
        let store = MemoryCluster::new().open();
        let init = |layout| init_cluster(&store, "/a/ledgers", layout, [1; 16]);
        assert_eq!(init(LedgerLayout::Hierarchical).await, Ok(InitOutcome::Created));
        assert_eq!(init(LedgerLayout::Hierarchical).await, Ok(InitOutcome::AlreadyInitialised));
        let other = init(LedgerLayout::LongHierarchical).await;
        assert!(matches!(other, Err(InitError::OtherLayout { .. })), "{other:?}");
        assert_eq!(store.children("/a/ledgers").await.unwrap(), ["INSTANCEID", "LAYOUT", "available"]);
        assert_eq!(store.get("/a/ledgers/LAYOUT").await.unwrap().data, HIERARCHICAL);
        store.delete("/a/ledgers/LAYOUT", None).await.unwrap();
        assert_eq!(init(LedgerLayout::Hierarchical).await, Ok(InitOutcome::Completed));
        store.create("/else", Bytes::new(), CreateMode::Persistent).await.unwrap();
        for missing in [&["/available/readonly"][..], &["/available/readonly", "/available"]] {
            for name in missing {
                store.delete(&format!("/a/ledgers{name}"), None).await.unwrap();
            }
            assert_eq!(init(LedgerLayout::Hierarchical).await, Ok(InitOutcome::Mended), "{missing:?}");
            assert_eq!(init(LedgerLayout::Hierarchical).await, Ok(InitOutcome::AlreadyInitialised));
        }
        let foreign = init_cluster(&store, "/else", LedgerLayout::Hierarchical, [1; 16]).await;
        assert!(matches!(foreign, Err(InitError::ForeignRoot { .. })), "{foreign:?}");
    }

    /// As Java's bookies do: `ParallelLedgerRecoveryTest` and others make no more than this.
    #[tokio::test]
    async fn a_bookie_writes_the_layout_of_a_bare_cluster_only() {
        let bare = |nodes: &'static [&'static str]| async move {
            let store: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::new().open());
            for node in nodes {
                store.create(node, Bytes::new(), CreateMode::Persistent).await.unwrap();
            }
            store
        };
        let store = bare(&["/l", "/l/available", "/l/cookies"]).await;
        assert!(Layout::open(store.clone(), "/l", None).await.is_err(), "a client changes nothing");
        let layout = Layout::open_or_complete(store.clone(), "/l", None).await.unwrap();
        assert_eq!(layout.ledger_layout(), LedgerLayout::Hierarchical);
        assert_eq!(store.get("/l/LAYOUT").await.unwrap().data, HIERARCHICAL);
        assert_eq!(layout.instance_id().await, Ok(None));
        assert!(store.exists("/l/available/readonly").await.unwrap().is_some());
        let long = Some(LedgerLayout::LongHierarchical);
        let layout = Layout::open_or_complete(bare(&["/l", "/l/available"]).await, "/l", long).await.unwrap();
        assert_eq!(layout.ledger_layout(), LedgerLayout::LongHierarchical);
        for nodes in [
            &["/l"][..],
            &[],
            &["/l", "/l/available", "/l/00"],
            &["/l", "/l/available", "/l/idgen"],
            &["/l", "/l/available", "/l/IMPORTING"],
        ] {
            let store = bare(nodes).await;
            assert!(Layout::open_or_complete(store.clone(), "/l", None).await.is_err(), "{nodes:?}");
            assert!(store.exists("/l/LAYOUT").await.unwrap().is_none(), "{nodes:?}");
        }
    }

    #[tokio::test]
    async fn a_lost_connection_anywhere_does_not_stop_an_initialisation() {
        for fault in [Fault::LossBeforeApply, Fault::LossAfterApply] {
            for writes in 0..3 {
                let store = MemoryCluster::new().open();
                store.inject_at(writes, fault);
                let outcome = init_cluster(&store, "/a/ledgers", LedgerLayout::Hierarchical, [1; 16]).await;
                assert_eq!(outcome, Ok(InitOutcome::Completed), "{fault:?} at write {writes}");
                assert_eq!(store.get("/a/ledgers/LAYOUT").await.unwrap().data, HIERARCHICAL);
            }
        }
    }

    /// A process that is killed after any of its writes: with the cluster there is the pause.
    #[tokio::test]
    async fn a_paused_cluster_is_never_there_without_its_pause() {
        let pause_of = |store: &Arc<dyn MetadataStore>| TierPause(Root::new(store.clone(), "/a/ledgers"));
        let mut created = 0;
        for writes in 0..6 {
            let cluster = MemoryCluster::new();
            let store = cluster.open();
            store.inject_at(writes, Fault::LossAfterApply);
            let _ = try_init_cluster(&store, "/a/ledgers", LedgerLayout::Hierarchical, [1; 16], Some("why"))
                .await;
            let store: Arc<dyn MetadataStore> = Arc::new(cluster.open());
            let is_there = store.exists("/a/ledgers/INSTANCEID").await.unwrap().is_some();
            assert_eq!(
                pause_of(&store).get().await.unwrap().is_some(),
                is_there,
                "killed after write {writes}"
            );
            created += u32::from(is_there);
        }
        assert!(created > 1 && created < 6, "{created}");
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::new().open());
        let init =
            || init_cluster_with(&*store, "/a/ledgers", LedgerLayout::Hierarchical, [1; 16], Some("why"));
        assert_eq!(init().await, Ok(InitOutcome::Created));
        assert_eq!(pause_of(&store).get().await, Ok(Some("why".to_owned())));
        assert_eq!(pause_of(&store).resume().await, Ok(true));
        assert_eq!(init().await, Ok(InitOutcome::AlreadyInitialised));
        assert_eq!(pause_of(&store).get().await, Ok(None), "it keeps its state");
        // One that an earlier build left without LAYOUT.
        store.delete("/a/ledgers/LAYOUT", None).await.unwrap();
        assert_eq!(init().await, Ok(InitOutcome::Completed));
        assert_eq!(pause_of(&store).get().await, Ok(Some("why".to_owned())));
    }

    #[tokio::test]
    async fn a_cluster_that_is_named_is_no_other_half_made_or_whole() {
        let store = MemoryCluster::new().open();
        let hierarchical = LedgerLayout::Hierarchical;
        init_cluster(&store, "/l", hierarchical, [1; 16]).await.unwrap();
        let named = || init_cluster_with(&store, "/l", hierarchical, [2; 16], Some("why"));
        let found = "01010101-0101-4101-8101-010101010101".to_owned();
        let other = Err(InitError::OtherCluster { found });
        assert_eq!(named().await, other);
        // Half-made: it stopped before the last step.
        store.delete("/l/LAYOUT", None).await.unwrap();
        assert_eq!(named().await, other);
        assert!(store.exists("/l/LAYOUT").await.unwrap().is_none());
        store.delete("/l/available/readonly", None).await.unwrap();
        assert_eq!(named().await, other);
        assert_eq!(store.children("/l/available").await.unwrap(), Vec::<String>::new());
        store.delete("/l/INSTANCEID", None).await.unwrap();
        assert_eq!(named().await, Err(InitError::OtherCluster { found: String::new() }));
        assert_eq!(store.children("/l").await.unwrap(), ["available"]);
        // The id is written as it was named, of whatever version of UUID, and known again however it is written.
        let named = || init_cluster_with(&store, "/n", hierarchical, [0xff; 16], Some("why"));
        assert_eq!(named().await, Ok(InitOutcome::Created));
        let id = store.get("/n/INSTANCEID").await.unwrap().data;
        assert_eq!(id, "ffffffff-ffff-ffff-ffff-ffffffffffff");
        let upper = Bytes::from(String::from_utf8_lossy(&id).to_uppercase() + "\n");
        store.set("/n/INSTANCEID", upper, None).await.unwrap();
        assert_eq!(named().await, Ok(InitOutcome::AlreadyInitialised));
    }

    /// The tree that the driver of Pulsar 4.2 and 5.0 makes, without the parents that are containers and have gone.
    async fn of_pulsar(nodes: &[&str]) -> Arc<dyn MetadataStore> {
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::new().open());
        for node in ["/l", "/l/INSTANCEID"].iter().chain(nodes) {
            create_parents(&*store, node, "").await.unwrap();
            let data = if node.ends_with("INSTANCEID") { "76d4c7ac-4b8e-4a6c-9ad2-3f5b8c3f8a51" } else { "" };
            store.create(node, Bytes::from(data), CreateMode::Persistent).await.unwrap();
        }
        store
    }

    #[tokio::test]
    async fn a_cluster_of_pulsars_driver_is_read_and_nothing_is_written_there() {
        let trees: [&[&str]; 5] = [
            &[],
            &["/l/cookies/b1"],
            &["/l/available/b1", "/l/cookies/b1"],
            &[
                "/l/available/readonly/b1",
                "/l/cookies/b1",
                "/l/00/0000/L0002",
                "/l/idgen",
                "/l/underreplication/LAYOUT",
            ],
            &["/l/cookies/b1", "/l/000/0000/0021/4748/L3647", "/l/idgen-long/HOB-0000000001"],
        ];
        for nodes in trees {
            let store = of_pulsar(nodes).await;
            let before = store.children("/l").await.unwrap();
            for wanted in [None, Some(LedgerLayout::Hierarchical)] {
                for layout in [
                    Layout::open(store.clone(), "/l", wanted).await.unwrap(),
                    Layout::open_or_complete(store.clone(), "/l", wanted).await.unwrap(),
                ] {
                    assert_eq!(layout.ledger_layout(), LedgerLayout::Hierarchical);
                    assert_eq!(layout.is_whole().await, Ok(true), "{nodes:?}");
                    let id = layout.instance_id().await.unwrap().unwrap();
                    assert_eq!(id, "76d4c7ac-4b8e-4a6c-9ad2-3f5b8c3f8a51");
                }
            }
            let long = LedgerLayout::LongHierarchical;
            let mismatch = Layout::open(store.clone(), "/l", Some(long)).await.unwrap_err();
            assert!(matches!(mismatch, OpenError::LayoutMismatch { .. }), "{mismatch}");
            let init = |layout| init_cluster(&*store, "/l", layout, [1; 16]);
            assert_eq!(init(LedgerLayout::Hierarchical).await, Ok(InitOutcome::AlreadyInitialised));
            assert!(matches!(init(long).await, Err(InitError::OtherLayout { .. })));
            assert_eq!(store.children("/l").await.unwrap(), before, "{nodes:?}");
        }
    }

    #[tokio::test]
    async fn whoever_opened_a_cluster_with_its_layout_does_not_go_on_without() {
        let store = of_pulsar(&["/l/cookies/b1", "/l/00/0000/L0002"]).await;
        let without = Layout::open(store.clone(), "/l", None).await.unwrap();
        // Java's own driver writes it.
        let text = LedgerLayout::Hierarchical.to_text();
        store.create("/l/LAYOUT", text.into(), CreateMode::Persistent).await.unwrap();
        let with = Layout::open(store.clone(), "/l", None).await.unwrap();
        assert_eq!((without.is_whole().await, with.is_whole().await), (Ok(true), Ok(true)));
        store.delete("/l/LAYOUT", None).await.unwrap();
        assert_eq!((without.is_whole().await, with.is_whole().await), (Ok(true), Ok(false)));
        store.delete("/l/INSTANCEID", None).await.unwrap();
        assert_eq!(without.is_whole().await, Ok(false));
    }

    #[tokio::test]
    async fn a_cluster_that_lost_its_layout_is_told_from_one_of_pulsars() {
        let (hierarchical, long) = (LedgerLayout::Hierarchical, LedgerLayout::LongHierarchical);
        for (ledger, has_long_paths) in [
            ("/l/000/0000/0000/0000/L0005", true),
            ("/l/000/0000/0021/4748/L3646", true),
            ("/l/L0000000007", false),
        ] {
            let store = of_pulsar(&["/l/cookies/b1", "/l/available/readonly", ledger]).await;
            let gone = LayoutGone { root: "/l".into(), has_long_paths };
            for wanted in [None, Some(hierarchical), Some(long)] {
                let opened = Layout::open_or_complete(store.clone(), "/l", wanted).await.unwrap_err();
                assert_eq!(opened, OpenError::LayoutGone(gone.clone()), "{ledger}");
            }
            let init = |layout| init_cluster(&*store, "/l", layout, [1; 16]);
            let refused = init(hierarchical).await.unwrap_err();
            assert_eq!(refused, InitError::LayoutGone(gone), "{ledger}");
            assert!(!refused.to_string().contains("remove it"), "{refused}");
            assert!(store.exists("/l/LAYOUT").await.unwrap().is_none());
            if has_long_paths {
                assert_eq!(init(long).await, Ok(InitOutcome::Completed));
                assert_eq!(Layout::open(store, "/l", None).await.unwrap().ledger_layout(), long);
            }
        }
    }

    #[tokio::test]
    async fn a_cluster_opens_only_when_initialised_and_with_its_own_layout() {
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::new().open());
        let open = |wanted| Layout::open(store.clone(), "/ledgers", wanted);
        assert!(matches!(open(None).await, Err(OpenError::NotInitialised { .. })));
        init_cluster(&*store, "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
        let layout = open(Some(LedgerLayout::Hierarchical)).await.unwrap();
        assert_eq!(layout.instance_id().await.unwrap().unwrap(), "01010101-0101-4101-8101-010101010101");
        let mismatch = open(Some(LedgerLayout::LongHierarchical)).await.unwrap_err();
        assert!(mismatch.to_string().contains("use zk+hierarchical://"), "{mismatch}");
        store.delete("/ledgers/INSTANCEID", None).await.unwrap();
        assert_eq!(open(None).await.unwrap().instance_id().await, Ok(None));

        assert_eq!(layout.is_whole().await, Ok(true));
        let marker = format!("/ledgers{IMPORT_MARKER}");
        store.create(&marker, Bytes::new(), CreateMode::Persistent).await.unwrap();
        assert_eq!(layout.is_whole().await, Ok(false));
        store.delete(&marker, None).await.unwrap();
        let other: Bytes = LedgerLayout::LongHierarchical.to_text().into();
        store.set("/ledgers/LAYOUT", other, None).await.unwrap();
        assert_eq!(layout.is_whole().await, Ok(false));
        store.delete("/ledgers/LAYOUT", None).await.unwrap();
        assert_eq!(layout.is_whole().await, Ok(false));
    }
}
