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
//! 2. What a bookie advertises is read again after its registration changed, or may have changed.
//! 3. An answer counts as a whole or not at all: one result for each ledger asked, in their order. A result that cannot be
//!    right concerns its ledger alone.
//!
//! # Limits     remembered: bookies that were asked for and are registered; a request: one frame

use std::collections::HashMap;
use std::time::Duration;

use bindery_metadata::StoreError;
use bindery_metadata::layout::Registration;
use bindery_metadata::store::Watch;
use bindery_types::{BookieId, EntryId, LedgerId};
pub use bindery_wire::v3::reconcile::Reconcile;
use bindery_wire::v3::{message_size_bytes, proto};
use bindery_wire::{ErrorCode, FrameLimit};
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
pub enum TierSupport {
    /// It does, and may drop its copies of what is in object storage.
    Supported,
    /// It keeps everything: it has no tier configured, or is another program.
    KeepsEverything,
    /// Not known now: it is not registered.
    NotRegistered,
}

/// What became of one ledger of a [`Reconcile`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reconciled {
    /// The ledger.
    pub ledger: LedgerId,
    /// The ledger's last reconciled entry when the bookie answered, durable there; whatever `result` is.
    pub register: Option<EntryId>,
    /// Whether it took the update.
    pub result: Result<(), Refusal>,
}

/// Why a bookie did not take the update of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It said so. [`ErrorCode::NoLedger`]: it holds nothing of the ledger. [`ErrorCode::BadRequest`]: the extents begin
    /// behind its register + 1.
    #[error("refused: {0:?}")]
    Code(ErrorCode),
    /// With a status that this version does not know.
    #[error("answered with the unknown status {0}")]
    UnknownStatus(i32),
    /// It said that it did, with a register below the update.
    #[error("claims to have taken the update, with a register below it")]
    Behind,
}

/// Why a bookie was not told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReconcileError {
    /// It does not advertise the operation.
    #[error(
        "bookie {0} does not take part in tiering: its registration lacks {TIER_PROPERTY}={TIER_PROPERTY_VALUE}"
    )]
    NotSupported(BookieId),
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

/// The message to send, if it fits a frame.
pub(crate) fn message_of(
    request: Reconcile,
    limit: FrameLimit,
) -> Result<proto::ReconcileLedgersRequest, BookieError> {
    /// Length, header and the field around the message.
    const AROUND_BYTES: usize = 64;
    let message = request.into_message();
    let size_bytes = message_size_bytes(&message) + AROUND_BYTES;
    let max_bytes = limit.size_bytes();
    if limit.admits_payload(size_bytes) {
        Ok(message)
    } else {
        Err(BookieError::TooLarge { size_bytes, max_bytes })
    }
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
        if result.ledger_id != ledger.get() {
            return Err(unexpected(format!("a result for ledger {} in place of {ledger}", result.ledger_id)));
        }
        if result.last_reconciled < -1 {
            return Err(unexpected(format!("register {} of ledger {ledger}", result.last_reconciled)));
        }
        let register = EntryId::new(result.last_reconciled);
        let result = match ErrorCode::from_v3(result.status) {
            Some(ErrorCode::Ok) if register < *last => Err(Refusal::Behind),
            Some(ErrorCode::Ok) => Ok(()),
            Some(code) => Err(Refusal::Code(code)),
            None => Err(Refusal::UnknownStatus(result.status)),
        };
        Ok(Reconciled { ledger: *ledger, register, result })
    });
    results.collect()
}

/// What a registered bookie advertises, and the watch that says when that is old.
struct Advertised {
    is_supported: bool,
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
        let support = |is_supported| match is_supported {
            true => TierSupport::Supported,
            false => TierSupport::KeepsEverything,
        };
        {
            let mut known = self.known.lock();
            if let Some(advertised) = known.get_mut(bookie) {
                // Invariant 2.
                match advertised.watch.has_fired() {
                    true => drop(known.remove(bookie)),
                    false => return Ok(support(advertised.is_supported)),
                }
            }
        }
        let Some((info, watch)) = registration.service_info_and_watch(bookie).await? else {
            return Ok(TierSupport::NotRegistered);
        };
        let value = info.ok().and_then(|mut info| info.properties.remove(TIER_PROPERTY));
        let is_supported = value.as_deref() == Some(TIER_PROPERTY_VALUE);
        self.known.lock().insert(bookie.clone(), Advertised { is_supported, watch });
        Ok(support(is_supported))
    }
}

impl Client {
    /// Whether a bookie takes part in tiering, as its registration says. Remembered until the registration changes, so that
    /// asking before each request costs nothing.
    pub async fn tier_support(&self, bookie: &BookieId) -> Result<TierSupport, StoreError> {
        self.0.supports.of(&self.0.layout.registration(), bookie).await
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
