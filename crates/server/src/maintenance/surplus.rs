//! Ledgers that should not be here: closed, and no ensemble names this bookie (protocol reference, section 6.2). They
//! are what is left when others replaced a bookie that came back.
//!
//! # Data flow
//! ```text
//! ledgers here -> metadata of each -> surplus, and untouched since the round before -> too many? -> for each:
//!     replication lock -> changes -> store synced, INSTANCEID, metadata again -> removed if unchanged -> lock back
//! ```
//!
//! # Invariants (IB16)
//! 1. Only a closed ledger goes, according to metadata read after the lock was taken: a repair that names this bookie
//!    holds the lock, or has published its work (BookKeeper #4668).
//! 2. A repair without the lock writes here before metadata names this bookie. So a ledger that was written to in this
//!    process goes only in the second round that finds it surplus and unchanged.
//! 3. Metadata are written anew, as they are, under the lock: a repair that lost its lock with its session, and has not noticed, cannot name
//!    this bookie any more, because it knows their version from before.
//! 4. Any error of the store ends the round; too large a share does as well, unless an operator says otherwise.

use crate::maintenance::{JournalHangs, durable};
use bindery_engine::{Changes, Doubt, Engine, GarbageLimits, GarbageRound, LedgerPresence};
use bindery_metadata::layout::LedgerError;
use bindery_metadata::{Layout, StoreError};
use bindery_types::{BookieId, LedgerId, LedgerMetadata, LedgerState};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Settings. Keys of `bk_server.conf` in brackets.
#[derive(Debug, Clone, PartialEq)]
pub struct SurplusConfig {
    /// Time between two rounds; zero for none (`gcOverreplicatedLedgerWaitTime`).
    pub interval: Duration,
    /// Metadata reads under way (`gcOverreplicatedLedgerMaxConcurrentRequests`).
    pub reads_max: usize,
}

impl Default for SurplusConfig {
    fn default() -> SurplusConfig {
        SurplusConfig { interval: Duration::from_secs(86_400), reads_max: 1000 }
    }
}

/// True for a ledger that is not to be here.
pub fn is_surplus(metadata: &LedgerMetadata, bookie: &BookieId) -> bool {
    matches!(metadata.state, LedgerState::Closed { .. }) && !metadata.names(bookie)
}

/// What rounds share.
pub struct Surplus {
    /// What removes.
    pub engine: Arc<Engine>,
    /// The cluster.
    pub layout: Layout,
    /// This bookie.
    pub bookie_id: BookieId,
    /// INSTANCEID of the cookie.
    pub instance_id: String,
    /// Settings.
    pub config: SurplusConfig,
    /// Metadata operations in a second.
    pub ops_per_second: u32,
    /// When a round goes too far.
    pub limits: GarbageLimits,
    /// How long a removal waits for the journal.
    pub journal_patience: Duration,
    /// What the round before found, with what was placed last.
    pub before: BTreeMap<LedgerId, Changes>,
}

impl Surplus {
    /// One round; says how many ledgers went, or why it ended.
    pub async fn round(&mut self, here: Vec<LedgerId>, is_waived: bool) -> Result<u64, String> {
        let store = |error: StoreError| error.to_string();
        self.layout.store().sync(self.layout.root()).await.map_err(store)?;
        self.check_cluster().await?;
        let count = here.len();
        let found = self.find(here).await?;
        if !is_waived
            && found.len() > self.limits.always
            && found.len() as f64 > self.limits.share_max * count as f64
        {
            return Err(format!(
                "{} of {count} ledgers here are closed and name other bookies only: that is too large a share to be \
                 removed at once. If that is right, ask for one round without this check",
                found.len()
            ));
        }
        let mut removed = 0;
        for (ledger, changes) in &found {
            let is_settled = *changes == Changes::NONE || self.before.get(ledger) == Some(changes);
            if is_settled && self.remove(*ledger, *changes).await? {
                removed += 1;
            }
        }
        self.before = found;
        Ok(removed)
    }

    async fn find(&self, here: Vec<LedgerId>) -> Result<BTreeMap<LedgerId, Changes>, String> {
        let mut found = BTreeMap::new();
        let mut reads: JoinSet<Result<Option<(LedgerId, Changes)>, String>> = JoinSet::new();
        let mut take = |read: Result<Result<Option<_>, String>, tokio::task::JoinError>| {
            found.extend(read.map_err(|error| error.to_string())??);
            Ok::<(), String>(())
        };
        for ledger in here {
            if reads.len() >= self.config.reads_max.max(1)
                && let Some(read) = reads.join_next().await
            {
                take(read)?;
            }
            self.pace().await;
            let changes = self.engine.changes(ledger);
            let (ledgers, bookie) = (self.layout.ledgers(), self.bookie_id.clone());
            reads.spawn(async move {
                match ledgers.get(ledger).await {
                    Ok(stored) => Ok(is_surplus(&stored.metadata, &bookie).then_some((ledger, changes))),
                    // Deleted, which is for the other round to say; or unreadable, which is no reason to go.
                    Err(LedgerError::NotFound(_) | LedgerError::Malformed { .. }) => Ok(None),
                    Err(other) => Err(other.to_string()),
                }
            });
        }
        while let Some(read) = reads.join_next().await {
            take(read)?;
        }
        Ok(found)
    }

    /// Removes one ledger under its lock (invariant 1); false when it is not to go after all.
    async fn remove(&self, ledger: LedgerId, changes: Changes) -> Result<bool, String> {
        let locks = self.layout.replication_locks();
        self.pace().await;
        let lock = locks.try_lock(ledger, &self.bookie_id).await.map_err(|error| error.to_string())?;
        let Some(lock) = lock else {
            tracing::debug!(%ledger, "surplus, but being replicated");
            return Ok(false);
        };
        let removed = self.remove_locked(ledger, changes).await;
        let unlocked = locks.unlock(lock).await.map_err(|error| error.to_string());
        unlocked.and(removed)
    }

    async fn remove_locked(&self, ledger: LedgerId, changes: Changes) -> Result<bool, String> {
        self.layout.store().sync(self.layout.root()).await.map_err(|error| error.to_string())?;
        self.check_cluster().await?;
        let stored = match self.layout.ledgers().get(ledger).await {
            Ok(stored) if is_surplus(&stored.metadata, &self.bookie_id) => stored,
            Ok(_) | Err(LedgerError::NotFound(_) | LedgerError::Malformed { .. }) => return Ok(false),
            Err(other) => return Err(other.to_string()),
        };
        // Invariant 3.
        match self.layout.ledgers().update(ledger, &stored.metadata, stored.version).await {
            Ok(_) => {}
            Err(LedgerError::NotFound(_) | LedgerError::Changed(_)) => return Ok(false),
            Err(other) => return Err(other.to_string()),
        }
        if self.engine.presence(ledger) != LedgerPresence::Known {
            return Ok(false);
        }
        let (done, answer) = oneshot::channel();
        let waiter = Box::new(move |outcome| {
            let _ = done.send(outcome);
        });
        if !self.engine.remove_unchanged(ledger, changes, waiter) {
            return Ok(false);
        }
        match durable(answer, Instant::now() + self.journal_patience).await {
            Ok(Ok(())) => {
                tracing::info!(%ledger, "removed a surplus ledger: it is closed, and other bookies have it");
                Ok(true)
            }
            Ok(Err(refusal)) => Err(refusal.to_string()),
            Err(JournalHangs) => Err(Doubt::JournalHangs(self.journal_patience.as_secs()).to_string()),
        }
    }

    async fn check_cluster(&self) -> Result<(), String> {
        let found = self.layout.instance_id().await.map_err(|error| error.to_string())?;
        GarbageRound::check_cluster(found.as_deref().unwrap_or_default(), &self.instance_id)
            .map_err(|doubt| doubt.to_string())?;
        match self.layout.is_whole().await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Doubt::NotWhole.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn pace(&self) {
        tokio::time::sleep(Duration::from_secs(1) / self.ops_per_second.max(1)).await;
    }
}
