//! Tells bookies which entries are in object storage: RECONCILE_LEDGERS, and which bookies know it.
//!
//! # Data flow
//! ```text
//! tier_support: registration --(property bindery.tier)--> cached until the registration's watch fires
//! reconcile:    supported? --> the secret of the cluster --> one request, with a proof and a deadline --> tier lane
//!               --> one result for each ledger
//! ```
//!
//! # Invariants
//! 1. A bookie whose registration does not advertise the operation is never sent it: Java bookies end the connection.
//! 2. An answer counts as a whole or not at all: one result for each ledger asked, in their order, none of which contradicts
//!    itself.
//!
//! # Limits     a request: [`LEDGERS_MAX`], [`EXTENTS_MAX`]

use std::time::Duration;

use bindery_metadata::StoreError;
use bindery_types::BookieId;
use bindery_wire::ErrorCode;
use bindery_wire::v3::reconcile::{EXTENTS_MAX, LEDGERS_MAX};
pub use bindery_wire::v3::reconcile::{Reconcile, Reconciled};
use tokio::time::{Instant, timeout_at};

use crate::client::Client;
pub use crate::tier_support::{TIER_PROPERTY, TIER_PROPERTY_VALUE, TierSupport};
use crate::transport::BookieError;

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
    /// It takes the request for one of a stranger. The next request reads the secret again.
    #[error(
        "bookie {bookie} does not take it from this client: it needs the tier secret of the cluster, which is read from {path} in the \
         metadata store, or, where clients log in, a user with the role tier"
    )]
    NotAllowed {
        /// The bookie.
        bookie: BookieId,
        /// Where the secret is.
        path: String,
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
    /// Its registration, or the tier secret, could not be read; nothing was sent.
    #[error("read the registration of {bookie} and the tier secret: {error}")]
    Metadata {
        /// The bookie.
        bookie: BookieId,
        /// Why.
        error: StoreError,
    },
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
        let node = self.0.layout.tier_secret();
        let secret = match timeout_at(until, self.0.tier_secret.get(&node)).await {
            Ok(Ok(secret)) => secret,
            Ok(Err(error)) => return Err(ReconcileError::Metadata { bookie: bookie.clone(), error }),
            Err(_) => {
                let error = StoreError::ConnectionLoss;
                return Err(ReconcileError::Metadata { bookie: bookie.clone(), error });
            }
        };
        let left = until.saturating_duration_since(Instant::now());
        // The transport keeps to it, too, but not while it connects.
        let answer = timeout_at(until, self.0.transport.reconcile(bookie, request, secret, left)).await;
        let answer = answer.unwrap_or(Err(BookieError::TimedOut(deadline)));
        answer.map_err(|error| {
            if matches!(error, BookieError::Refused(ErrorCode::Unauthorized)) {
                self.0.tier_secret.forget();
                return ReconcileError::NotAllowed { bookie: bookie.clone(), path: node.path() };
            }
            self.0.health.note_failure(bookie, &error);
            failed(error)
        })
    }
}
