//! The BookKeeper layout of a metadata store, written once on [`MetadataStore`] (protocol reference, section 5.1).
//!
//! ```text
//! <root>/LAYOUT  INSTANCEID                                  cluster
//! <root>/available/<id>  available/readonly/<id>             registration
//! <root>/cookies/<id>                                        cookies
//! <root>/underreplication/locks/urL<id>                      replication locks
//! <root>/underreplication/ledgers/*/*/*/*/urL<id>            ledgers that lack replicas
//! <root>/underreplication/auditorelection/V_<n>              who is the auditor
//! <root>/underreplication/disable  lostBookieRecoveryDelay   settings of repair
//! <root>/underreplication/check*ctime  *checkctime           when auditors ended their checks
//! <root>/underreplication/bindery-marks/<id>                what bookies know a store by (ours)
//! <root>/underreplication/bindery-draining/<id>            bookies that are being emptied (ours)
//! <root>/underreplication/bindery-tier-paused              tiering is paused (ours)
//! <root>/underreplication/bindery-tier-secret              by which bookies know tierers (ours)
//! <root>/underreplication/bindery-tierers/<name>           tierers that run (ours)
//! <root>/idgen/ID-*  idgen-long/HOB-*/ID-*                   ids
//! <root>/00/0000/L0001  000/0000/0000/0000/L0001             ledgers
//! ```

mod auditor_votes;
mod cluster;
mod cookies;
mod draining;
mod ids;
mod ledgers;
mod membership;
mod paths;
mod registration;
mod repair_settings;
mod repaired;
mod replication_locks;
mod store_marks;
mod tier_pause;
mod tier_secret;
mod tierers;
mod under_replication;
mod unlaid;

use std::fmt;
use std::sync::Arc;

pub use self::auditor_votes::{AuditorPlace, AuditorVote, AuditorVotes};
pub(crate) use self::cluster::IMPORT_MARKER;
pub use self::cluster::{
    InitError, InitOutcome, LayoutError, LayoutGone, OpenError, init_cluster, init_cluster_with,
};
pub use self::cookies::{Cookies, CookiesError, StoredCookie};
pub use self::draining::{DrainStanding, Draining};
pub use self::ids::{IdError, Ids};
pub use self::ledgers::{LedgerError, LedgerListing, Ledgers, StoredLedger};
pub use self::membership::Membership;
pub use self::paths::LedgerLayout;
use self::paths::Root;
pub(crate) use self::paths::create_parents;
pub use self::registration::{RegisteredBookie, Registration, RegistrationError, RegistrationMode};
pub use self::repair_settings::{PeriodicCheck, RepairSettings, StoredDelay};
pub use self::repaired::Repaired;
pub(crate) use self::replication_locks::PARENT as LOCKS_PARENT;
pub use self::replication_locks::{ReplicationLock, ReplicationLocks};
pub use self::store_marks::StoreMarks;
pub(crate) use self::store_marks::{NAME as STORE_MARKS_NAME, PARENT as STORE_MARKS_PARENT};
pub use self::tier_pause::TierPause;
pub(crate) use self::tier_secret::NAME as TIER_SECRET_NAME;
pub use self::tier_secret::TierSecretNode;
pub use self::tierers::{LiveTierers, Note, Tierers};
pub use self::under_replication::{Danger, MarkListing, Marked, MarksWatch, NewMark, UnderReplication};
use crate::store::{MetadataStore, StoreError};

/// The nodes of a cluster below which names are numbered: those of ledger ids and of the votes of auditors. Some may not be there.
pub(crate) async fn sequences(store: &dyn MetadataStore, root: &str) -> Result<Vec<String>, StoreError> {
    let mut parents = ids::parents(store, root).await?;
    parents.push(format!("{root}/{}", auditor_votes::ELECTION));
    Ok(parents)
}

/// A metadata store that holds an initialised BookKeeper cluster. Cheap to clone.
#[derive(Clone)]
pub struct Layout {
    store: Arc<dyn MetadataStore>,
    root: Arc<str>,
    ledger_layout: LedgerLayout,
    /// False for a cluster of Pulsar's driver, which writes no LAYOUT.
    has_layout_node: bool,
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layout")
            .field("root", &self.root)
            .field("ledger_layout", &self.ledger_layout)
            .finish_non_exhaustive()
    }
}

impl Layout {
    /// Opens an initialised cluster. `wanted` is what a URI asks for; `None` takes what is stored. One of Pulsar's driver has no LAYOUT, and
    /// is hierarchical.
    pub async fn open(
        store: Arc<dyn MetadataStore>,
        root: &str,
        wanted: Option<LedgerLayout>,
    ) -> Result<Layout, OpenError> {
        cluster::open(store, root, wanted).await
    }

    /// As [`open`](Self::open), for a bookie: where no more is there than the root and the place where bookies register, it writes
    /// the layout that is wanted (hierarchical unless the URI says otherwise), as Java's bookies do.
    pub async fn open_or_complete(
        store: Arc<dyn MetadataStore>,
        root: &str,
        wanted: Option<LedgerLayout>,
    ) -> Result<Layout, OpenError> {
        match cluster::open(store.clone(), root, wanted).await {
            Err(OpenError::NotInitialised { root: missing }) => {
                let layout = wanted.unwrap_or(LedgerLayout::Hierarchical);
                match cluster::complete(&*store, root, layout).await? {
                    true => cluster::open(store, root, wanted).await,
                    false => Err(OpenError::NotInitialised { root: missing }),
                }
            }
            opened => opened,
        }
    }

    /// The store underneath.
    pub fn store(&self) -> &Arc<dyn MetadataStore> {
        &self.store
    }

    /// The ledgers root, without a trailing slash.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// How ledger ids become paths in this cluster.
    pub fn ledger_layout(&self) -> LedgerLayout {
        self.ledger_layout
    }

    /// The cluster's id. `None` when the cluster has none, which Java bookies accept too: cookies then have none.
    pub async fn instance_id(&self) -> Result<Option<String>, StoreError> {
        match self.store.get(&format!("{}/INSTANCEID", self.root)).await {
            Ok(node) => match String::from_utf8(node.data.to_vec()) {
                Ok(id) => Ok(Some(id)),
                Err(_) => Err(StoreError::Protocol(format!("{}/INSTANCEID is not text", self.root))),
            },
            Err(StoreError::NoNode { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// The text of the cluster's LAYOUT node, whether it has that or not.
    pub(crate) fn layout_text(&self) -> String {
        self.ledger_layout.to_text()
    }

    /// When the INSTANCEID was written into this store, by the store's clock: no ledger's node is older, unless it was copied.
    pub async fn made_ms(&self) -> Result<Option<i64>, StoreError> {
        let stat = self.store.exists(&format!("{}/INSTANCEID", self.root)).await?;
        Ok(stat.map(|stat| stat.created_ms))
    }

    /// True while the store holds a whole cluster of this layout: not without the LAYOUT that it had, and not while it is imported.
    pub async fn is_whole(&self) -> Result<bool, StoreError> {
        cluster::is_whole(&*self.store, &self.root, self.ledger_layout, self.has_layout_node).await
    }

    /// The marks that bookies leave.
    pub fn store_marks(&self) -> StoreMarks {
        StoreMarks(Root::new(self.store.clone(), &self.root))
    }

    /// The cookies of all bookies.
    pub fn cookies(&self) -> Cookies {
        Cookies::new(self.store.clone(), &self.root)
    }

    /// The registration nodes of all bookies.
    pub fn registration(&self) -> Registration {
        Registration::new(self.store.clone(), &self.root)
    }

    /// The metadata of all ledgers.
    pub fn ledgers(&self) -> Ledgers {
        Ledgers::new(self.store.clone(), &self.root, self.ledger_layout)
    }

    /// The locks on ledgers that are being replicated.
    pub fn replication_locks(&self) -> ReplicationLocks {
        ReplicationLocks::new(self.store.clone(), &self.root)
    }

    /// The marks of ledgers that lack replicas.
    pub fn under_replication(&self) -> UnderReplication {
        UnderReplication::new(self.store.clone(), &self.root)
    }

    /// The election of the cluster's auditor.
    pub fn auditor_votes(&self) -> AuditorVotes {
        AuditorVotes(Root::new(self.store.clone(), &self.root))
    }

    /// What operators and auditors keep for repair.
    pub fn repair_settings(&self) -> RepairSettings {
        RepairSettings(Root::new(self.store.clone(), &self.root))
    }

    /// The bookies that are being emptied.
    pub fn draining(&self) -> Draining {
        Draining(Root::new(self.store.clone(), &self.root))
    }

    /// Whether tiering is paused.
    pub fn tier_pause(&self) -> TierPause {
        TierPause(Root::new(self.store.clone(), &self.root))
    }

    /// The tierers that run.
    pub fn tierers(&self) -> Tierers {
        Tierers(Root::new(self.store.clone(), &self.root))
    }

    /// The secret by which bookies know tierers.
    pub fn tier_secret(&self) -> TierSecretNode {
        TierSecretNode(Root::new(self.store.clone(), &self.root))
    }

    /// The generator of ledger ids.
    pub fn ids(&self) -> Ids {
        Ids::new(self.store.clone(), &self.root)
    }
}
