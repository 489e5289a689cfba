//! What operators and auditors keep in metadata for repair, below `underreplication` (protocol reference, section 5.6):
//!
//! ```text
//! disable                    its presence stops auditors and replication workers, ours and Java's
//! lostBookieRecoveryDelay    how long a bookie may be away before its ledgers are marked: seconds, as decimal text
//! checkallledgersctime       when a check ended last, so that the next auditor goes on from there: Protobuf, field 1 is the
//! placementpolicycheckctime  time in milliseconds since the epoch
//! replicascheckctime
//! ```

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;

use super::paths::Root;
use crate::store::{StoreError, Version, Watch};

const DISABLE: &str = "underreplication/disable";
const DELAY: &str = "underreplication/lostBookieRecoveryDelay";

/// A check that auditors make from time to time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PeriodicCheck {
    /// Whether bookies have the entries that metadata say they have.
    AllLedgers,
    /// Whether ensembles are as the placement policy wants them.
    Placement,
    /// The check of replicas of BookKeeper's auditor. Ours compares lists of entries in the first one.
    Replicas,
}

impl PeriodicCheck {
    fn node(self) -> &'static str {
        match self {
            PeriodicCheck::AllLedgers => "underreplication/checkallledgersctime",
            PeriodicCheck::Placement => "underreplication/placementpolicycheckctime",
            PeriodicCheck::Replicas => "underreplication/replicascheckctime",
        }
    }
}

/// `CheckAllLedgersFormat`, `PlacementPolicyCheckFormat` and `ReplicasCheckFormat` of BookKeeper: they differ in names alone.
#[derive(Clone, PartialEq, prost::Message)]
struct CheckTime {
    #[prost(int64, required, tag = "1")]
    ended_ms: i64,
}

/// Settings of a cluster's repair.
#[derive(Clone)]
pub struct RepairSettings(pub(super) Root);

impl RepairSettings {
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.0.path)
    }

    /// Whether repair is disabled, with a watch for the next change.
    ///
    /// # Errors
    /// Of the store.
    pub async fn watch_disabled(&self) -> Result<(bool, Watch), StoreError> {
        let (found, watch) = self.0.store.exists_and_watch(&self.path(DISABLE)).await?;
        Ok((found.is_some(), watch))
    }

    /// Whether repair is disabled.
    ///
    /// # Errors
    /// Of the store.
    pub async fn is_disabled(&self) -> Result<bool, StoreError> {
        Ok(self.0.store.exists(&self.path(DISABLE)).await?.is_some())
    }

    /// Stops repair in the whole cluster, Java's too. False when it was stopped before.
    ///
    /// # Errors
    /// Of the store.
    pub async fn disable(&self) -> Result<bool, StoreError> {
        self.0.create(&self.path(DISABLE), Bytes::new()).await
    }

    /// Lets repair go on. False when it was not stopped.
    ///
    /// # Errors
    /// Of the store.
    pub async fn enable(&self) -> Result<bool, StoreError> {
        match self.0.store.delete(&self.path(DISABLE), None).await {
            Ok(()) => Ok(true),
            Err(StoreError::NoNode { .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// What is said of how long a bookie may be away before its ledgers are marked, with a watch for the next change.
    ///
    /// # Errors
    /// Of the store.
    pub async fn watch_delay(&self) -> Result<(Option<StoredDelay>, Watch), StoreError> {
        let path = self.path(DELAY);
        let (found, watch) = self.0.store.exists_and_watch(&path).await?;
        let delay = match found {
            Some(_) => self.stored_delay().await?,
            None => None,
        };
        Ok((delay, watch))
    }

    async fn stored_delay(&self) -> Result<Option<StoredDelay>, StoreError> {
        match self.0.store.get(&self.path(DELAY)).await {
            Ok(node) => {
                let text = std::str::from_utf8(&node.data).ok();
                let seconds = text.and_then(|text| text.trim().parse::<u32>().ok());
                let delay = seconds.map(|seconds| Duration::from_secs(seconds.into()));
                Ok(Some(StoredDelay { delay, version: node.stat.version }))
            }
            Err(StoreError::NoNode { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// How long a bookie may be away before its ledgers are marked, if the cluster says so.
    ///
    /// # Errors
    /// Of the store; [`StoreError::Protocol`] when the node holds no number.
    pub async fn delay(&self) -> Result<Option<Duration>, StoreError> {
        match self.stored_delay().await? {
            None => Ok(None),
            Some(StoredDelay { delay: Some(delay), .. }) => Ok(Some(delay)),
            Some(StoredDelay { delay: None, .. }) => {
                Err(StoreError::Protocol(format!("{} holds no number of seconds", self.path(DELAY))))
            }
        }
    }

    /// When a check ended last, in milliseconds since the epoch. `None` when there was none, or the node cannot be read: the check is due
    /// then.
    ///
    /// # Errors
    /// Of the store.
    pub async fn check_ended(&self, check: PeriodicCheck) -> Result<Option<i64>, StoreError> {
        let found = self.0.find(&self.path(check.node())).await?;
        Ok(found.and_then(|data| CheckTime::decode(data).ok()).map(|time| time.ended_ms))
    }

    /// Says that a check has ended.
    ///
    /// # Errors
    /// Of the store.
    pub async fn set_check_ended(&self, check: PeriodicCheck, ended_ms: i64) -> Result<(), StoreError> {
        self.put(&self.path(check.node()), CheckTime { ended_ms }.encode_to_vec().into()).await
    }

    /// Says how long a bookie may be away, in whole seconds, for all auditors.
    ///
    /// # Errors
    /// Of the store.
    pub async fn set_delay(&self, delay: Duration) -> Result<(), StoreError> {
        self.put(&self.path(DELAY), Bytes::from(delay.as_secs().to_string())).await
    }

    async fn put(&self, path: &str, data: Bytes) -> Result<(), StoreError> {
        match self.0.store.set(path, data.clone(), None).await {
            Err(StoreError::NoNode { .. }) => {}
            written => return written.map(drop),
        }
        if !self.0.create(path, data.clone()).await? {
            // Another client created it meanwhile.
            self.0.store.set(path, data, None).await?;
        }
        Ok(())
    }
}

/// The node of the delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredDelay {
    /// What it says; `None` when that is no number of seconds.
    pub delay: Option<Duration>,
    /// Of the node. It is written again, with the same value, to ask for a look through all ledgers.
    pub version: Version,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Kind, MemoryCluster};
    use crate::store::{CreateMode, MetadataStore as _};
    use std::sync::Arc;

    #[tokio::test]
    async fn check_times_have_javas_bytes() {
        for kind in Kind::ALL {
            let store = Arc::new(MemoryCluster::of(kind).open());
            store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
            let settings = RepairSettings(Root::new(store.clone(), "/l"));
            assert_eq!(settings.check_ended(PeriodicCheck::AllLedgers).await.unwrap(), None);
            for ended_ms in [1_700_000_000_123, 300] {
                settings.set_check_ended(PeriodicCheck::AllLedgers, ended_ms).await.unwrap();
                assert_eq!(settings.check_ended(PeriodicCheck::AllLedgers).await.unwrap(), Some(ended_ms));
            }
            // Tag of field 1 as a varint, then 300.
            let path = "/l/underreplication/checkallledgersctime";
            assert_eq!(store.get(path).await.unwrap().data, [0x08, 0xac, 0x02].as_slice());
            settings.set_check_ended(PeriodicCheck::Placement, 0).await.unwrap();
            let path = "/l/underreplication/placementpolicycheckctime";
            assert_eq!(
                store.get(path).await.unwrap().data,
                [0x08, 0x00].as_slice(),
                "a required field is written"
            );
            store.set(path, "soon".into(), None).await.unwrap();
            assert_eq!(settings.check_ended(PeriodicCheck::Placement).await.unwrap(), None);
            assert_eq!(settings.check_ended(PeriodicCheck::Replicas).await.unwrap(), None);
        }
    }

    #[tokio::test]
    async fn settings_are_kept_where_java_looks_for_them() {
        for kind in Kind::ALL {
            let store = Arc::new(MemoryCluster::of(kind).open());
            store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
            let settings = RepairSettings(Root::new(store.clone(), "/l"));
            let (is_disabled, mut watch) = settings.watch_disabled().await.unwrap();
            assert!(!is_disabled && !settings.enable().await.unwrap());
            assert!(settings.disable().await.unwrap() && watch.has_fired());
            assert!(!settings.disable().await.unwrap() && settings.is_disabled().await.unwrap());
            assert!(store.exists("/l/underreplication/disable").await.unwrap().is_some());
            assert!(settings.enable().await.unwrap() && !settings.is_disabled().await.unwrap());

            let (delay, mut watch) = settings.watch_delay().await.unwrap();
            assert_eq!(delay, None);
            settings.set_delay(Duration::from_secs(90)).await.unwrap();
            assert!(watch.has_fired());
            let path = "/l/underreplication/lostBookieRecoveryDelay";
            assert_eq!(store.get(path).await.unwrap().data, "90".as_bytes());
            settings.set_delay(Duration::from_secs(7)).await.unwrap();
            let again = settings.watch_delay().await.unwrap().0.unwrap();
            assert_eq!(again.delay, Some(Duration::from_secs(7)));
            assert_eq!(again.version, store.exists(path).await.unwrap().unwrap().version);
            store.set(path, "soon".into(), None).await.unwrap();
            assert!(matches!(settings.delay().await, Err(StoreError::Protocol(_))));
            assert_eq!(settings.watch_delay().await.unwrap().0.unwrap().delay, None);
        }
    }
}
