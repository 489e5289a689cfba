//! Ledger id generation, shared with Java clients (protocol reference, section 5.1).
//!
//! The store's counter of sequential names, which begins at 0 or at 1, gives the ids: those of `idgen/ID-` until 2^31 - 1 are used up, then
//! `idgen-long/HOB-<high>/ID-`, where `high` is the upper and the counter the lower half. Once `idgen-long` exists every
//! client uses it. An id may already be taken (by a ledger with a chosen id): the creator then takes the next.

use std::sync::Arc;

use bindery_types::LedgerId;
use bytes::Bytes;

use crate::store::{CreateMode, MetadataStore, Op, StoreError};

/// Counters at or above this start over in the next half, as in Java.
const COUNTER_END: i64 = i32::MAX as i64;

/// How many exhausted halves one call may step over. Two callers stepping at once need one each.
const STEPS_MAX: u32 = 8;

/// Ids that are skipped one by one: some seconds.
const ADVANCE_STEPS_MAX: i64 = 100_000;
/// Of these, in one request.
const ADVANCE_BATCH: i64 = 200;

/// Why no id was generated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdError {
    /// The store gave a name that is no counter.
    #[error("{0} is not a generated name")]
    BadName(String),
    /// All 63 bits are used up, or the halves run out faster than they are made.
    #[error("no ledger ids are left")]
    Exhausted,
    /// The store failed; generating again is harmless, an id may be skipped.
    #[error("generate a ledger id: {0}")]
    Store(#[from] StoreError),
}

impl IdError {
    /// True when the same request may succeed later without anybody acting.
    pub fn is_transient(&self) -> bool {
        matches!(self, IdError::Store(error) if error.is_transient())
    }
}

/// The nodes below which ids are numbered, where there are any.
pub(super) async fn parents(store: &dyn MetadataStore, root: &str) -> Result<Vec<String>, StoreError> {
    let long = format!("{root}/idgen-long");
    let halves = match store.children(&long).await {
        Err(StoreError::NoNode { .. }) => Vec::new(),
        names => names?,
    };
    let halves = halves.into_iter().map(|half| format!("{long}/{half}"));
    Ok(std::iter::once(format!("{root}/idgen")).chain(halves).collect())
}

/// The generator of a cluster.
#[derive(Clone)]
pub struct Ids {
    store: Arc<dyn MetadataStore>,
    root: String,
}

impl Ids {
    pub(super) fn new(store: Arc<dyn MetadataStore>, root: &str) -> Ids {
        Ids { store, root: root.into() }
    }

    /// An id that no other caller gets.
    pub async fn next(&self) -> Result<LedgerId, IdError> {
        let long = format!("{}/idgen-long", self.root);
        if self.store.exists(&long).await?.is_none() {
            let short = format!("{}/idgen", self.root);
            if let Some(counter) = self.count(&short).await? {
                return LedgerId::new(counter).ok_or(IdError::Exhausted);
            }
            self.ensure(&long).await?;
        }
        for _ in 0..STEPS_MAX {
            let names = self.store.children(&long).await?;
            let high = highest_half(&names);
            if let Some(high) = high
                && let Some(counter) = self.count(&format!("{long}/HOB-{high:010}")).await?
            {
                return LedgerId::new(i64::from(high) << 32 | counter).ok_or(IdError::Exhausted);
            }
            let next =
                high.map_or(Some(1), |high| high.checked_add(1)).filter(|next| *next <= i32::MAX as u32);
            let next = next.ok_or(IdError::Exhausted)?;
            self.ensure(&format!("{long}/HOB-{next:010}")).await?;
        }
        Err(IdError::Exhausted)
    }

    /// The id that [`next`](Self::next) would return now; asking takes none. `None` before the first.
    pub async fn peek(&self) -> Result<Option<LedgerId>, StoreError> {
        let long = format!("{}/idgen-long", self.root);
        if self.store.exists(&long).await?.is_none() {
            return self.peek_below(0, &format!("{}/idgen", self.root)).await;
        }
        let names = self.store.children(&long).await?;
        match highest_half(&names) {
            Some(high) => self.peek_below(high, &format!("{long}/HOB-{high:010}")).await,
            None => Ok(None),
        }
    }

    /// Whether [`advance`](Self::advance) can get beyond `id`. No generated id is above the others.
    pub fn can_advance_beyond(id: LedgerId) -> bool {
        id.get() >> 32 < i64::from(i32::MAX)
    }

    /// Makes every id that is generated from now on higher than `id`: for ledgers that are brought back from elsewhere. The 31-bit
    /// counter is moved one by one as long as that takes seconds; beyond, ids get a new upper half.
    pub async fn advance(&self, id: LedgerId) -> Result<(), IdError> {
        let raw = id.get();
        let long = format!("{}/idgen-long", self.root);
        let is_long = self.store.exists(&long).await?.is_some();
        if !is_long && raw < COUNTER_END {
            let reached = self.peek().await?.map_or(0, LedgerId::get);
            if reached > raw {
                return Ok(());
            }
            if !self.store.is_transactional() {
                let short = format!("{}/idgen", self.root);
                self.ensure(&short).await?;
                let next = u32::try_from(raw + 1).map_err(|_| IdError::Exhausted)?;
                return Ok(self.store.skip_sequence(&short, next).await?);
            }
            if raw - reached < ADVANCE_STEPS_MAX {
                return self.count_beyond(raw).await;
            }
        }
        let wanted = u32::try_from(raw >> 32).unwrap_or(u32::MAX).saturating_add(1);
        let highest = match is_long {
            true => highest_half(&self.store.children(&long).await?),
            false => None,
        };
        if highest.is_some_and(|highest| highest >= wanted) || self.peek().await? > Some(id) {
            return Ok(());
        }
        if wanted > i32::MAX as u32 {
            return Err(IdError::Exhausted);
        }
        self.ensure(&long).await?;
        Ok(self.ensure(&format!("{long}/HOB-{wanted:010}")).await?)
    }

    /// Uses up the numbers of the 31-bit counter up to `last`, many in one request.
    async fn count_beyond(&self, last: i64) -> Result<(), IdError> {
        let parent = format!("{}/idgen", self.root);
        self.ensure(&parent).await?;
        let path = format!("{parent}/ID-");
        loop {
            let reached = self.peek().await?.map_or(0, LedgerId::get);
            if reached > last {
                return Ok(());
            }
            let steps = (last + 1 - reached).min(ADVANCE_BATCH);
            let data = Bytes::new();
            let create = || Op::Create {
                path: path.clone(),
                data: data.clone(),
                mode: CreateMode::EphemeralSequential,
            };
            self.store.multi((0..steps).map(|_| create()).collect()).await?;
            // Names have served; those that cannot be deleted go with the session.
            let names = self.store.children(&parent).await?;
            for names in names.chunks(ADVANCE_BATCH as usize) {
                let delete = |name: &String| Op::Delete { path: format!("{parent}/{name}"), expected: None };
                if let Err(error) = self.store.multi(names.iter().map(delete).collect()).await {
                    tracing::debug!(%error, "used id names stay until their sessions end");
                }
            }
        }
    }

    async fn peek_below(&self, high: u32, parent: &str) -> Result<Option<LedgerId>, StoreError> {
        let stat = self.store.exists(parent).await?;
        // Where a counter is used up the next id is higher than what this says.
        let counter = stat.map(|stat| i64::from(stat.next_sequence).min(COUNTER_END));
        Ok(counter.and_then(|counter| LedgerId::new(i64::from(high) << 32 | counter)))
    }

    /// The next count below `parent`, which is created if missing. `None` when its counter is used up.
    async fn count(&self, parent: &str) -> Result<Option<i64>, IdError> {
        let prefix = format!("{parent}/ID-");
        let mut created = self.store.create(&prefix, Bytes::new(), CreateMode::EphemeralSequential).await;
        if matches!(created, Err(StoreError::NoNode { .. })) {
            self.ensure(parent).await?;
            created = self.store.create(&prefix, Bytes::new(), CreateMode::EphemeralSequential).await;
        }
        let path = created?.path;
        // The name has served; if this fails it goes with the session.
        if let Err(error) = self.store.delete(&path, None).await {
            tracing::debug!(path, %error, "a used id name stays until the session ends");
        }
        let counter = path.strip_prefix(&prefix).and_then(|counter| counter.parse::<i64>().ok());
        // ZooKeeper's counter turns negative after 2^31 - 1.
        let counter = counter.ok_or(IdError::BadName(path))?;
        Ok((0..COUNTER_END).contains(&counter).then_some(counter))
    }

    async fn ensure(&self, path: &str) -> Result<(), StoreError> {
        match self.store.create(path, Bytes::new(), CreateMode::Persistent).await {
            Ok(_) | Err(StoreError::NodeExists { .. }) => Ok(()),
            Err(other) => Err(other),
        }
    }
}

/// The highest of the upper halves of ids.
fn highest_half(names: &[String]) -> Option<u32> {
    names.iter().filter_map(|name| name.strip_prefix("HOB-")?.parse::<u32>().ok()).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Kind, MemoryCluster};

    #[tokio::test]
    async fn ids_ascend_leave_no_nodes_and_move_to_63_bits() {
        let cluster = MemoryCluster::new();
        let store: Arc<dyn MetadataStore> = Arc::new(cluster.open());
        store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
        let ids = Ids::new(store.clone(), "/l");
        let peek = async || ids.peek().await.unwrap().map(LedgerId::get);
        assert_eq!(peek().await, None);
        assert_eq!(ids.next().await.unwrap().get(), 0);
        assert_eq!((peek().await, peek().await), (Some(1), Some(1)), "it takes none");
        assert_eq!(ids.next().await.unwrap().get(), 1);
        cluster.set_sequence("/l/idgen", i32::MAX as u32 - 1);
        assert_eq!(ids.next().await.unwrap().get(), i64::from(i32::MAX) - 1);
        assert_eq!(ids.next().await.unwrap().get(), 1 << 32);
        assert_eq!(ids.next().await.unwrap().get(), (1 << 32) + 1);
        assert_eq!(peek().await, Some((1 << 32) + 2));
        cluster.set_sequence("/l/idgen-long/HOB-0000000001", i32::MAX as u32);
        assert_eq!(ids.next().await.unwrap().get(), 2 << 32);
        assert_eq!(store.children("/l/idgen-long").await.unwrap(), ["HOB-0000000001", "HOB-0000000002"]);
        assert_eq!(store.children("/l/idgen").await.unwrap(), [""; 0]);
    }

    /// Where the store counts from 1 and has no transactions.
    #[tokio::test]
    async fn ids_begin_where_the_store_does_and_are_moved_at_once() {
        let cluster = MemoryCluster::of(Kind::OfOxia);
        let store: Arc<dyn MetadataStore> = Arc::new(cluster.open());
        store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
        let ids = Ids::new(store.clone(), "/l");
        let id = |raw: i64| LedgerId::new(raw).unwrap();
        assert_eq!(ids.next().await, Ok(id(1)));
        assert_eq!((ids.peek().await, ids.next().await), (Ok(Some(id(2))), Ok(id(2))));
        ids.advance(id(500)).await.unwrap();
        assert_eq!(ids.next().await, Ok(id(501)));
        ids.advance(id(3)).await.unwrap();
        assert_eq!(ids.next().await, Ok(id(502)), "nothing is used up in vain");
        assert_eq!(store.children("/l/idgen").await.unwrap(), [""; 0]);
        cluster.set_sequence("/l/idgen", i32::MAX as u32);
        assert_eq!(ids.next().await, Ok(id((1 << 32) + 1)));
        ids.advance(id(7 << 32)).await.unwrap();
        assert_eq!(ids.next().await, Ok(id((8 << 32) + 1)));
        let ids = Ids::new(store.clone(), "/m");
        store.create("/m", Bytes::new(), CreateMode::Persistent).await.unwrap();
        ids.advance(id(COUNTER_END - 2)).await.unwrap();
        assert_eq!(ids.next().await, Ok(id(COUNTER_END - 1)));
        assert_eq!(ids.next().await, Ok(id((1 << 32) + 1)), "the half is used up");
    }

    #[tokio::test]
    async fn ids_can_be_made_to_begin_behind_one() {
        let cluster = MemoryCluster::new();
        let store: Arc<dyn MetadataStore> = Arc::new(cluster.open());
        store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
        let ids = Ids::new(store.clone(), "/l");
        let id = |raw: i64| LedgerId::new(raw).unwrap();
        ids.advance(id(500)).await.unwrap();
        assert_eq!(ids.next().await.unwrap(), id(501));
        ids.advance(id(500)).await.unwrap();
        ids.advance(id(3)).await.unwrap();
        assert_eq!(ids.next().await.unwrap(), id(502), "nothing is used up in vain");
        ids.advance(id(5_000_000)).await.unwrap();
        assert_eq!(ids.next().await.unwrap(), id(1 << 32), "too far to count");
        ids.advance(id((7 << 32) + 9)).await.unwrap();
        assert_eq!(ids.next().await.unwrap(), id(8 << 32));
        ids.advance(id(8 << 32)).await.unwrap();
        assert_eq!(ids.next().await.unwrap(), id((8 << 32) + 1));
        assert_eq!(ids.advance(LedgerId::MAX).await, Err(IdError::Exhausted));
        let last = id((i64::from(i32::MAX) << 32) - 1);
        assert!(Ids::can_advance_beyond(last) && !Ids::can_advance_beyond(id(last.get() + 1)));
        ids.advance(last).await.unwrap();
        assert_eq!(ids.next().await.unwrap(), id(last.get() + 1));
        assert!(!Ids::can_advance_beyond(LedgerId::MAX));
    }
}
