//! What operators and auditors keep in metadata for repair, below `underreplication` (protocol reference, section 5.6):
//!
//! ```text
//! disable                    its presence stops auditors and replication workers, ours and Java's
//! lostBookieRecoveryDelay    how long a bookie may be away before its ledgers are marked: seconds, as decimal text
//! checkallledgersctime       when all ledgers were checked last: a protobuf message with one int64 (field 1), milliseconds
//! ```

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::paths::create_parents;
use crate::store::{CreateMode, MetadataStore, StoreError, Version, Watch};

const DISABLE: &str = "underreplication/disable";
const DELAY: &str = "underreplication/lostBookieRecoveryDelay";
const CHECKED: &str = "underreplication/checkallledgersctime";

/// Settings of a cluster's repair.
#[derive(Clone)]
pub struct RepairSettings {
    store: Arc<dyn MetadataStore>,
    root: String,
}

impl RepairSettings {
    pub(super) fn new(store: Arc<dyn MetadataStore>, root: &str) -> RepairSettings {
        RepairSettings { store, root: root.into() }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }

    /// Whether repair is disabled, with a watch for the next change.
    ///
    /// # Errors
    /// Of the store.
    pub async fn watch_disabled(&self) -> Result<(bool, Watch), StoreError> {
        let (found, watch) = self.store.exists_and_watch(&self.path(DISABLE)).await?;
        Ok((found.is_some(), watch))
    }

    /// Whether repair is disabled.
    ///
    /// # Errors
    /// Of the store.
    pub async fn is_disabled(&self) -> Result<bool, StoreError> {
        Ok(self.store.exists(&self.path(DISABLE)).await?.is_some())
    }

    /// Stops repair in the whole cluster, Java's too. False when it was stopped before.
    ///
    /// # Errors
    /// Of the store.
    pub async fn disable(&self) -> Result<bool, StoreError> {
        match self.create(DISABLE, Bytes::new()).await {
            Ok(()) => Ok(true),
            Err(StoreError::NodeExists { .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// Lets repair go on. False when it was not stopped.
    ///
    /// # Errors
    /// Of the store.
    pub async fn enable(&self) -> Result<bool, StoreError> {
        match self.store.delete(&self.path(DISABLE), None).await {
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
        let (found, watch) = self.store.exists_and_watch(&path).await?;
        let delay = match found {
            Some(_) => self.stored_delay().await?,
            None => None,
        };
        Ok((delay, watch))
    }

    async fn stored_delay(&self) -> Result<Option<StoredDelay>, StoreError> {
        match self.store.get(&self.path(DELAY)).await {
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

    /// Says how long a bookie may be away, in whole seconds, for all auditors.
    ///
    /// # Errors
    /// Of the store.
    pub async fn set_delay(&self, delay: Duration) -> Result<(), StoreError> {
        self.put(DELAY, Bytes::from(delay.as_secs().to_string())).await
    }

    /// When all ledgers were checked last, in milliseconds since the epoch; `None` before the first check.
    ///
    /// # Errors
    /// Of the store; [`StoreError::Protocol`] when the node holds something else.
    pub async fn checked_ms(&self) -> Result<Option<i64>, StoreError> {
        let path = self.path(CHECKED);
        let data = match self.store.get(&path).await {
            Ok(node) => node.data,
            Err(StoreError::NoNode { .. }) => return Ok(None),
            Err(other) => return Err(other),
        };
        match read_time(&data) {
            Some(ms) => Ok(Some(ms)),
            None => Err(StoreError::Protocol(format!("{path} holds no time"))),
        }
    }

    /// Notes that all ledgers were checked at this time.
    ///
    /// # Errors
    /// Of the store.
    pub async fn set_checked_ms(&self, ms: i64) -> Result<(), StoreError> {
        self.put(CHECKED, write_time(ms)).await
    }

    async fn put(&self, name: &str, data: Bytes) -> Result<(), StoreError> {
        match self.store.set(&self.path(name), data.clone(), None).await {
            Ok(_) => return Ok(()),
            Err(StoreError::NoNode { .. }) => {}
            Err(other) => return Err(other),
        }
        match self.create(name, data.clone()).await {
            // Another made it meanwhile.
            Err(StoreError::NodeExists { .. }) => {
                self.store.set(&self.path(name), data, None).await.map(drop)
            }
            made => made,
        }
    }

    async fn create(&self, name: &str, data: Bytes) -> Result<(), StoreError> {
        let path = self.path(name);
        match self.store.create(&path, data.clone(), CreateMode::Persistent).await {
            Err(StoreError::NoNode { .. }) => {}
            made => return made.map(drop),
        }
        create_parents(&*self.store, &path, &self.root).await?;
        self.store.create(&path, data, CreateMode::Persistent).await.map(drop)
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

/// The tag of field 1 as a varint.
const TIME_TAG: u8 = 0x08;

fn write_time(ms: i64) -> Bytes {
    let mut bytes = vec![TIME_TAG];
    let mut left = ms.cast_unsigned();
    loop {
        let low = u8::try_from(left & 0x7f).expect("seven bits");
        left >>= 7;
        if left == 0 {
            bytes.push(low);
            return Bytes::from(bytes);
        }
        bytes.push(low | 0x80);
    }
}

fn read_time(bytes: &[u8]) -> Option<i64> {
    let (tag, digits) = bytes.split_first()?;
    if *tag != TIME_TAG || digits.len() > 10 {
        return None;
    }
    let mut value = 0u64;
    for (index, byte) in digits.iter().enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(7 * index as u32)?;
        if byte & 0x80 == 0 {
            return (index + 1 == digits.len()).then(|| value.cast_signed());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryCluster;

    #[tokio::test]
    async fn settings_are_kept_where_java_looks_for_them() {
        let store = Arc::new(MemoryCluster::new().open());
        store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
        let settings = RepairSettings::new(store.clone(), "/l");
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
        assert_eq!((again.delay, again.version), (Some(Duration::from_secs(7)), Version(1)));
        store.set(path, "soon".into(), None).await.unwrap();
        assert!(matches!(settings.delay().await, Err(StoreError::Protocol(_))));
        assert_eq!(settings.watch_delay().await.unwrap().0.unwrap().delay, None);

        assert_eq!(settings.checked_ms().await.unwrap(), None);
        settings.set_checked_ms(1_700_000_000_000).await.unwrap();
        // As protobuf's encoder writes int64 1700000000000 in field 1.
        let node = store.get("/l/underreplication/checkallledgersctime").await.unwrap();
        assert_eq!(node.data, [0x08, 0x80, 0xd0, 0x95, 0xff, 0xbc, 0x31].as_slice());
        for ms in [0, 1, 127, 128, i64::MAX, -1] {
            settings.set_checked_ms(ms).await.unwrap();
            assert_eq!(settings.checked_ms().await.unwrap(), Some(ms));
        }
        for bad in [&[][..], &[8], &[8, 0x80], &[16, 1], &[8, 1, 1]] {
            assert_eq!(read_time(bad), None, "{bad:?}");
        }
    }
}
