//! Tells bookies which entries are in object storage: RECONCILE_LEDGERS, and which bookies know it.
//!
//! # Data flow
//! ```text
//! tier_support: registration --(property bindery.tier)--> cached until the registration's watch fires
//! reconcile:    supported? --> one request, with a deadline --> tier lane --> one result for each ledger
//! ```
//!
//! # Invariants
//! 1. A bookie whose registration does not advertise the operation is never sent it: Java bookies end the connection.
//! 2. A registration that changed, or may have changed, is read again.
//! 3. A registration that cannot be read counts as none, because the bookie may have a tier.
//! 4. An answer counts as a whole or not at all: one result for each ledger asked, in their order, none of which contradicts
//!    itself.
//!
//! # Limits     remembered: the registered bookies among those of earlier calls; a request: [`LEDGERS_MAX`], [`EXTENTS_MAX`]

use std::collections::HashMap;
use std::time::Duration;

use bindery_metadata::StoreError;
use bindery_metadata::layout::Registration;
use bindery_metadata::store::Watch;
use bindery_types::{BookieId, EntryId, LedgerId};
use bindery_wire::ErrorCode;
use bindery_wire::v3::proto;
use bindery_wire::v3::reconcile::{EXTENTS_MAX, LEDGERS_MAX};
pub use bindery_wire::v3::reconcile::{Reconcile, Reconciled};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::client::Client;
use crate::transport::BookieError;

/// Name of the property by which a bookie advertises the operation.
pub const TIER_PROPERTY: &str = "bindery.tier";
/// Its value: the version of the operation.
pub const TIER_PROPERTY_VALUE: &str = "1";

/// Whether a bookie keeps the last reconciled entries of its ledgers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TierSupport {
    /// It does, and may drop its copies of what is in object storage.
    Supported,
    /// It keeps everything: it has no tier configured, or is another program.
    KeepsEverything,
    /// Not known now: it is not registered, or its registration cannot be read.
    NotRegistered,
}

/// Why a bookie was not told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReconcileError {
    /// It does not advertise the operation.
    #[error(
        "bookie {0} does not take part in tiering: its registration lacks {TIER_PROPERTY}={TIER_PROPERTY_VALUE}"
    )]
    NotSupported(BookieId),
    /// More than one request may carry; nothing was sent.
    #[error(
        "{ledgers} ledgers with {extents} extents are more than one request may carry ({LEDGERS_MAX} and {EXTENTS_MAX}): send \
         them in several"
    )]
    TooLarge {
        /// How many ledgers.
        ledgers: usize,
        /// How many extents, of all ledgers.
        extents: usize,
    },
    /// It is not registered.
    #[error("bookie {0} is not registered in the metadata store")]
    NotRegistered(BookieId),
    /// It failed, or answered something else. See [`BookieError::is_unknown`].
    #[error("bookie {bookie}: {error}")]
    Bookie {
        /// The bookie.
        bookie: BookieId,
        /// How.
        error: BookieError,
    },
    /// Its registration could not be read; nothing was sent.
    #[error("read the registration of {bookie}: {error}")]
    Metadata {
        /// The bookie.
        bookie: BookieId,
        /// Why.
        error: StoreError,
    },
}

/// Checks an answer (invariant 3) to a request for `asked`: ledgers, and their last entries in object storage.
pub(crate) fn results_of(
    asked: &[(LedgerId, Option<EntryId>)],
    response: proto::ReconcileLedgersResponse,
) -> Result<Vec<Reconciled>, BookieError> {
    let unexpected = |text: String| BookieError::Unexpected(format!("RECONCILE_LEDGERS: {text}"));
    match ErrorCode::from_v3(response.status) {
        Some(ErrorCode::Ok) => {}
        Some(code) => return Err(BookieError::Refused(code)),
        None => return Err(unexpected(format!("unknown status {}", response.status))),
    }
    if response.results.len() != asked.len() {
        let (found, wanted) = (response.results.len(), asked.len());
        return Err(unexpected(format!("{found} results for {wanted} ledgers")));
    }
    let results = response.results.iter().zip(asked).map(|(result, (ledger, last))| {
        let result = Reconciled::from_message(result).map_err(|error| unexpected(error.0.into()))?;
        if result.ledger != *ledger {
            return Err(unexpected(format!("a result for ledger {} in place of {ledger}", result.ledger)));
        }
        if result.code == ErrorCode::Ok && result.last < *last {
            let (found, wanted) = (EntryId::to_wire(result.last), EntryId::to_wire(*last));
            return Err(unexpected(format!(
                "ledger {ledger} has register {found} after an update to {wanted}"
            )));
        }
        Ok(result)
    });
    results.collect()
}

/// What a registered bookie advertises, and the watch that says when that is old.
struct Advertised {
    support: TierSupport,
    watch: Watch,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Supports {
    known: Mutex<HashMap<BookieId, Advertised>>,
}

impl Supports {
    /// Cancelled, it leaves nothing behind.
    async fn of(&self, registration: &Registration, bookie: &BookieId) -> Result<TierSupport, StoreError> {
        {
            let mut known = self.known.lock();
            if let Some(advertised) = known.get_mut(bookie) {
                // Invariant 2.
                match advertised.watch.has_fired() {
                    true => drop(known.remove(bookie)),
                    false => return Ok(advertised.support),
                }
            }
        }
        let Some((info, watch)) = registration.service_info_and_watch(bookie).await? else {
            return Ok(TierSupport::NotRegistered);
        };
        let support = match info {
            Ok(info) => match info.properties.get(TIER_PROPERTY).map(String::as_str) {
                Some(TIER_PROPERTY_VALUE) => TierSupport::Supported,
                Some(_) | None => TierSupport::KeepsEverything,
            },
            // Invariant 3.
            Err(_) => TierSupport::NotRegistered,
        };
        self.known.lock().insert(bookie.clone(), Advertised { support, watch });
        Ok(support)
    }
}

impl Client {
    /// Whether a bookie takes part in tiering, as its registration says. Remembered until the registration changes, so that
    /// asking before each request costs nothing.
    pub async fn tier_support(&self, bookie: &BookieId) -> Result<TierSupport, StoreError> {
        self.0.supports.of(&self.0.layout.registration(), bookie).await
    }

    /// The INSTANCEID of the cluster, by which its objects are told from those of others; `None` when it has none.
    pub async fn instance_id(&self) -> Result<Option<String>, StoreError> {
        self.0.layout.instance_id().await
    }

    /// Tells one bookie which entries of many ledgers are in object storage, and returns one result for each ledger, in the order
    /// of the request, within `deadline`. Nothing is repeated: an update that was applied and timed out does no harm when
    /// it is sent again. An empty request is answered without asking.
    ///
    /// # Errors
    /// Of the request as a whole. Ledgers that the bookie refused are in the results.
    pub async fn reconcile(
        &self,
        bookie: &BookieId,
        request: Reconcile,
        deadline: Duration,
    ) -> Result<Vec<Reconciled>, ReconcileError> {
        let failed = |error| ReconcileError::Bookie { bookie: bookie.clone(), error };
        if self.0.is_closed() {
            return Err(failed(BookieError::Closed));
        }
        if request.ledgers.is_empty() {
            return Ok(Vec::new());
        }
        let ledgers = request.ledgers.len();
        let extents = request.ledgers.iter().map(|ledger| ledger.extents.len()).sum::<usize>();
        if ledgers > LEDGERS_MAX || extents > EXTENTS_MAX {
            return Err(ReconcileError::TooLarge { ledgers, extents });
        }
        let until = Instant::now() + deadline;
        // Invariant 1.
        match timeout_at(until, self.tier_support(bookie)).await {
            Ok(Ok(TierSupport::Supported)) => {}
            Ok(Ok(TierSupport::KeepsEverything)) => return Err(ReconcileError::NotSupported(bookie.clone())),
            Ok(Ok(TierSupport::NotRegistered)) => return Err(ReconcileError::NotRegistered(bookie.clone())),
            Ok(Err(error)) => return Err(ReconcileError::Metadata { bookie: bookie.clone(), error }),
            Err(_) => {
                let error = StoreError::ConnectionLoss;
                return Err(ReconcileError::Metadata { bookie: bookie.clone(), error });
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        // The transport keeps to it, too, but not while it connects.
        let answer = timeout_at(until, self.0.transport.reconcile(bookie, request, left)).await;
        let answer = answer.unwrap_or(Err(BookieError::TimedOut(deadline)));
        answer.map_err(|error| {
            self.0.health.note_failure(bookie, &error);
            failed(error)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bindery_metadata::memory::MemoryCluster;
    use bindery_metadata::store::{CreateMode, MetadataStore};
    use bindery_metadata::{BookieServiceInfo, Layout, LedgerLayout, layout};
    use bytes::Bytes;

    use super::*;

    /// Invariants 2 and 3. A bookie of which nothing is known may have let copies go, so "it keeps everything" would be the wrong guess.
    #[tokio::test]
    async fn a_registration_that_does_not_decode_counts_as_none() {
        let metadata = MemoryCluster::new();
        let store = metadata.open();
        layout::init_cluster(&store, "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
        let layout = Layout::open(Arc::new(metadata.open()), "/ledgers", None).await.unwrap();
        let (registration, supports) = (layout.registration(), Supports::default());
        let bookie = BookieId::new("b1").unwrap();
        let support = async || supports.of(&registration, &bookie).await.unwrap();
        assert_eq!(support().await, TierSupport::NotRegistered);

        let mut info = BookieServiceInfo::of_bookie(("h1", 3181), None);
        let nothing_said = info.encode();
        info.properties.insert(TIER_PROPERTY.into(), TIER_PROPERTY_VALUE.into());
        let with_tier = info.encode();
        let cut_short = with_tier[..with_tier.len() - 1].to_vec();
        let path = "/ledgers/available/b1";
        store.create(path, Bytes::from(cut_short.clone()), CreateMode::Ephemeral).await.unwrap();
        // Asked twice: once read, once remembered.
        for _ in 0..2 {
            assert_eq!(support().await, TierSupport::NotRegistered);
        }
        for (bytes, expected) in [
            (with_tier, TierSupport::Supported),
            (b"\xff\xff".to_vec(), TierSupport::NotRegistered),
            (nothing_said, TierSupport::KeepsEverything),
            (cut_short, TierSupport::NotRegistered),
        ] {
            store.set(path, Bytes::from(bytes), None).await.unwrap();
            for _ in 0..2 {
                assert_eq!(support().await, expected);
            }
        }
        store.delete(path, None).await.unwrap();
        assert_eq!(support().await, TierSupport::NotRegistered);
    }
}
