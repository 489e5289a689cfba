//! Proof of the right to say which entries are in object storage, where peers do not log in: every process that can read the cluster's
//! metadata has it.
//!
//! # Data flow
//! ```text
//! start ─► secret of the cluster, drawn if there is none
//! request ─► proof fits? ─ yes ─► taken
//!                          └ no ─► refused; the secret is read again, for the next request
//! ```
//!
//! # Invariants
//! 1. While no secret is known, no request is taken.
//! 2. Strangers cause one read of metadata in [`REREAD_INTERVAL`] at most, and no request waits for it.

use super::Tier;
use bindery_io::Random;
use bindery_metadata::{Layout, StoreError};
use bindery_types::{BookieId, TierSecret};
use bindery_wire::v3::proto;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Between two reads of the secret because of a proof that does not fit.
pub const REREAD_INTERVAL: Duration = Duration::from_secs(1);
/// For one read of metadata, or all that a request needs.
pub(super) const METADATA_DEADLINE: Duration = Duration::from_secs(5);
/// Reads of metadata under way for requests of tierers.
const READS_MAX: usize = 16;

/// A bookie's place in the metadata of its cluster.
pub(super) struct Home {
    pub layout: Layout,
    pub bookie: BookieId,
    random: Arc<dyn Random>,
    secret: Mutex<Known>,
    /// Places for reads of metadata.
    pub reads: Semaphore,
}

#[derive(Default)]
struct Known {
    secret: Option<TierSecret>,
    read_ns: Option<u64>,
}

impl Home {
    fn drawn(&self) -> TierSecret {
        let mut bytes = [0; TierSecret::SIZE_BYTES];
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.random.next_u64().to_be_bytes()[..part.len()]);
        }
        TierSecret::from_bytes(bytes)
    }

    async fn read(&self) -> Result<(), StoreError> {
        let node = self.layout.tier_secret();
        let read = tokio::time::timeout(METADATA_DEADLINE, node.get_or_create(self.drawn())).await;
        let secret = read.unwrap_or(Err(StoreError::ConnectionLoss))?;
        self.secret.lock().secret = Some(secret);
        Ok(())
    }
}

impl Tier {
    /// Tells it where the cluster's metadata is and who this bookie is, and reads the secret by which it knows tierers. A failure to read is
    /// written down, and mended by the first request.
    pub async fn join(&self, layout: Layout, bookie: BookieId, random: Arc<dyn Random>) {
        let (secret, reads) = (Mutex::default(), Semaphore::new(READS_MAX));
        let home = self.home.get_or_init(|| Home { layout, bookie, random, secret, reads });
        if let Err(error) = home.read().await {
            tracing::warn!(path = home.layout.tier_secret().path(), %error, "cannot read the tier secret of the cluster: \
             tierers are refused until it can be read");
        }
    }

    /// Whether a request comes from a tierer of this cluster. If it does not look so, the secret is read again in the background.
    pub fn is_of_tierer(self: &Arc<Self>, request: &proto::ReconcileLedgersRequest) -> bool {
        let Some(home) = self.home.get() else { return false };
        let secret = home.secret.lock().secret.clone();
        if secret.is_some_and(|secret| request.is_proven(&secret, &home.bookie)) {
            return true;
        }
        let now_ns = self.clock.monotonic_ns();
        {
            let mut known = home.secret.lock();
            let interval = REREAD_INTERVAL.as_nanos() as u64;
            if known.read_ns.is_some_and(|read| now_ns.saturating_sub(read) < interval) {
                return false;
            }
            known.read_ns = Some(now_ns);
        }
        let tier = self.clone();
        self.handle().spawn(async move {
            if let Some(home) = tier.home.get()
                && let Err(error) = home.read().await
            {
                tracing::debug!(%error, "cannot read the tier secret");
            }
        });
        false
    }

    /// Where the secret is, for those who are refused.
    pub fn secret_path(&self) -> String {
        self.home.get().map(|home| home.layout.tier_secret().path()).unwrap_or_default()
    }
}
