//! What ledgers ask of bookies, as a trait: the network below it, the replication protocol above.
//!
//! # Invariants (every implementation)
//! 1. Each request is answered exactly once: by the bookie, or with an error after at most the request timeout. An add
//!    that was withdrawn is answered at most once.
//! 2. Requests of one ledger to one bookie leave in the order in which they were given.
//! 3. [`BookieError::is_unknown`] is false only when the bookie certainly did not and will not do what was asked.
//! 4. A sink is never called from inside [`Transport::add`], so a caller may hold the lock that its sink takes.
//! 5. Forces and adds with deferred sync go to a bookie over one connection at a time, and its number comes with their
//!    answers. A bookie that restarted, and may have lost entries it had not synced, answers over another one.

mod layer;

pub use layer::TransportLayer;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bindery_types::{BookieId, EntryId, LedgerId, MasterKey, TierSecret};
use bindery_wire::EntryAvailability;
use bindery_wire::ErrorCode;
use bindery_wire::v3::reconcile::{Reconcile, Reconciled};
use bytes::Bytes;

/// What a request other than an add returns.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, BookieError>> + Send + 'a>>;

/// Why a bookie did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BookieError {
    /// It answered with a code.
    #[error("refused: {0:?}{advice}", advice = refusal_advice(*.0))]
    Refused(ErrorCode),
    /// It is not registered, or its registration names no address.
    #[error("not registered in the metadata store")]
    NotRegistered,
    /// No connection could be made; nothing was sent.
    #[error("cannot connect: {0}")]
    Unreachable(String),
    /// The connection broke, or was closed, after the request may have been sent.
    #[error("the connection was lost before the answer came")]
    Lost,
    /// The same, before the bookie had answered anything over this connection.
    #[error("the connection was lost before the bookie answered anything: {0}")]
    LostUnanswered(String),
    /// No answer in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// It answered with a frame above the client's limit.
    #[error(
        "answered with a frame of {size_bytes} bytes, above the client's frame limit of {limit_bytes}: set it \
         (ClientBuilder::frame_limit, --frame-limit) to the bookies' nettyMaxFrameSizeBytes"
    )]
    AnswerTooLarge {
        /// Size of the frame, with its length prefix.
        size_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// It answered with bytes that are no answer to the request.
    #[error("answered something unexpected: {0}")]
    Unexpected(String),
    /// The client was closed.
    #[error("the client was closed")]
    Closed,
    /// It is so far behind the other replicas that it holds up more than `slow_replica_bytes_max`. Said by the writer,
    /// never by a transport.
    #[error("is behind: it holds up {0} bytes that others have acknowledged")]
    Behind(u64),
    /// It acknowledged entries of a ledger with deferred sync, and its connection was lost before they were forced. Said by
    /// the writer, never by a transport.
    #[error(
        "lost its connection before it synced: entries that it acknowledged may be gone if it was restarted"
    )]
    Reconnected,
}

/// One code stands for all of these.
pub(crate) const UNAUTHORIZED: &str = "the ledger's password is another, or the bookie wants what this client has not: TLS \
    (ClientBuilder::tls, --tls), a certificate (TlsOptions::identity, --tls-cert), a user (ClientBuilder::credentials, --user) or a role";
/// All that the protocol says of a disk or an object that fails.
const IO: &str = "its disk or object storage failed, and its log says how";

fn refusal_advice(code: ErrorCode) -> String {
    match code {
        ErrorCode::Unauthorized => format!(": {UNAUTHORIZED}"),
        ErrorCode::Io => format!(": {IO}"),
        _ => String::new(),
    }
}

impl BookieError {
    /// Whether the same bookie may take the same request later although nobody changed it or the client: it is away, starts
    /// again, or has no room for now.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            BookieError::Refused(code) => {
                matches!(code, ErrorCode::ReadOnly | ErrorCode::TooManyRequests | ErrorCode::Io)
            }
            BookieError::NotRegistered
            | BookieError::Unreachable(_)
            | BookieError::Lost
            | BookieError::LostUnanswered(_)
            | BookieError::TimedOut(_)
            | BookieError::Behind(_) => true,
            BookieError::AnswerTooLarge { .. }
            | BookieError::Unexpected(_)
            | BookieError::Closed
            | BookieError::Reconnected => false,
        }
    }

    /// Whether the bookie may have done, or may still do, what was asked.
    pub fn is_unknown(&self) -> bool {
        matches!(
            self,
            BookieError::Lost
                | BookieError::LostUnanswered(_)
                | BookieError::TimedOut(_)
                | BookieError::AnswerTooLarge { .. }
                | BookieError::Unexpected(_)
                | BookieError::Closed
        )
    }
}

/// What an add carries back to its sink: opaque to the transport. The writer packs ensemble position and the number of
/// the ensemble change into it, so that answers of a replaced bookie are told from those of its successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddTag(pub u64);

/// One of the connections that were made to a bookie, by its number; a later one has another. Of requests other than forces
/// and adds with deferred sync, and of failures, it says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Connection(pub u64);

/// An entry on its way to one bookie.
#[derive(Debug, Clone)]
pub struct AddRequest {
    /// The ledger, as in `body`.
    pub ledger: LedgerId,
    /// The entry, as in `body`.
    pub entry: EntryId,
    /// The entry as it is stored: header, digest, payload. Shared by all replicas.
    pub body: Bytes,
    /// The key of the ledger.
    pub master_key: MasterKey,
    /// Part of a recovery or a re-replication: allowed on a fenced ledger, and ahead of ordinary traffic unless it is in the
    /// background.
    pub is_recovery: bool,
    /// With `is_recovery`: a copy that may wait, which a bookie refuses as it refuses ordinary adds.
    pub is_background: bool,
    /// Answered once written, before it is synced: it is durable after a [`Transport::force`] on the same connection. Not
    /// for recoveries.
    pub is_deferred: bool,
    /// Returned with the answer.
    pub tag: AddTag,
}

/// The answer to one add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddAnswer {
    /// The entry.
    pub entry: EntryId,
    /// From the request.
    pub tag: AddTag,
    /// What brought it (invariant 5).
    pub connection: Connection,
    /// Stored, durably unless its sync was deferred; or why not.
    pub result: Result<(), BookieError>,
}

/// Where answers to adds go: one ledger's writer.
pub trait AddSink: Send + Sync {
    /// The answers of this ledger that one bookie gave in one socket read, in their order. Never blocks for long: it
    /// runs on the task that reads the socket.
    fn added(self: Arc<Self>, bookie: &BookieId, answers: &[AddAnswer]);
}

/// A read of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRequest {
    /// The ledger.
    pub ledger: LedgerId,
    /// The entry; `None` asks for the last one that the bookie has.
    pub entry: Option<EntryId>,
    /// Fences the ledger first, with this key, and goes ahead of ordinary traffic.
    pub fence: Option<MasterKey>,
}

/// A read of entries that follow one another, or a stride, and that one bookie has all of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchReadRequest {
    /// The ledger.
    pub ledger: LedgerId,
    /// The first entry.
    pub first: EntryId,
    /// From one entry to the next, at least 1: of a striped ledger every so many entries have the same bookies.
    pub stride: u32,
    /// At most so many.
    pub count_max: u32,
    /// At most so many bytes of answer (at least one entry is returned).
    pub size_bytes_max: u64,
}

/// What a bookie knows of a ledger's last add confirmed (LAC).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LacAnswer {
    /// Body of the last explicit LAC, when one was written.
    pub explicit: Option<Bytes>,
    /// The last entry it has, as stored, when it has any.
    pub last_entry: Option<Bytes>,
}

impl LacAnswer {
    /// What a bookie sent of it.
    pub fn new(explicit: Option<Bytes>, last_entry: Option<Bytes>) -> LacAnswer {
        LacAnswer { explicit, last_entry }
    }
}

/// Room on a bookie's ledger volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskSpace {
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes still free.
    pub free_bytes: u64,
}

impl DiskSpace {
    /// So many bytes, of which some are free.
    pub fn new(total_bytes: u64, free_bytes: u64) -> DiskSpace {
        DiskSpace { total_bytes, free_bytes }
    }
}

/// A long poll for the LAC to pass `previous` (protocol reference, section 2.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PollRequest {
    /// The ledger.
    pub ledger: LedgerId,
    /// The LAC already known; `None` before the first entry.
    pub previous: Option<EntryId>,
    /// How long the bookie may hold the request.
    pub wait: Duration,
}

/// The way to all bookies of a cluster. Connections are made when first needed and again after they broke.
pub trait Transport: Send + Sync + 'static {
    /// Queues an add; its answer goes to `sink`. Never waits: callers bound the bytes they have in flight.
    fn add(&self, bookie: &BookieId, request: AddRequest, sink: &Arc<dyn AddSink>);

    /// Sends what [`add`](Self::add) queued and has not sent yet. Adds leave without it, too, but perhaps one by one.
    fn flush(&self) {}

    /// The adds of this ledger and sink that have not left for this bookie need not leave any more: those not sent are
    /// dropped and never answered. A transport that queues nothing has nothing to do.
    fn withdraw(&self, bookie: &BookieId, ledger: LedgerId, sink: &Arc<dyn AddSink>) {
        let _ = (bookie, ledger, sink);
    }

    /// Reads one entry, as stored; its digest is not verified here.
    fn read(&self, bookie: &BookieId, request: ReadRequest) -> Answer<'_, Bytes>;

    /// Reads entries as stored: `first`, and those that follow it by the stride, without a gap; never empty. A bookie that knows no
    /// batch reads, or no strides, is answered for with [`ErrorCode::BadRequest`].
    fn batch_read(&self, bookie: &BookieId, request: BatchReadRequest) -> Answer<'_, Vec<Bytes>>;

    /// Asks what the bookie knows of the LAC.
    fn read_lac(&self, bookie: &BookieId, ledger: LedgerId) -> Answer<'_, LacAnswer>;

    /// Writes an explicit LAC (protocol reference, section 3.3).
    fn write_lac(
        &self,
        bookie: &BookieId,
        ledger: LedgerId,
        key: MasterKey,
        lac: EntryId,
        body: Bytes,
    ) -> Answer<'_, ()>;

    /// Waits until the bookie knows of a LAC above `previous`, or its wait is over; the LAC it then knows, if any.
    fn poll_lac(&self, bookie: &BookieId, request: PollRequest) -> Answer<'_, Option<EntryId>>;

    /// Makes durable what the bookie has acknowledged of a ledger, over the connection that is returned (invariant 5).
    /// A transport need not know how; ledgers with deferred sync cannot be written then.
    fn force(&self, bookie: &BookieId, ledger: LedgerId) -> Answer<'_, Connection> {
        let error = BookieError::Unexpected(format!("{bookie} cannot be asked to sync ledger {ledger}"));
        Box::pin(async { Err(error) })
    }

    /// Tells a bookie which entries of many ledgers are in object storage; one result for each ledger, in the order of the
    /// request, which is within the limits of [`bindery_wire::v3::reconcile`]. Only for bookies that advertise that they know it ([`Client::tier_support`](crate::Client::tier_support)).
    /// With `secret` it proves that it comes from a tierer of the cluster. `timeout` takes the place of the request timeout. A transport
    /// need not know how.
    fn reconcile(
        &self,
        bookie: &BookieId,
        request: Reconcile,
        secret: Option<TierSecret>,
        timeout: Duration,
    ) -> Answer<'_, Vec<Reconciled>> {
        let _ = (request, secret, timeout);
        let error = BookieError::Unexpected(format!("{bookie} cannot be told what is in object storage"));
        Box::pin(async { Err(error) })
    }

    /// Asks which entries of a ledger the bookie has. A transport need not know how.
    fn list_entries(&self, bookie: &BookieId, ledger: LedgerId) -> Answer<'_, EntryAvailability> {
        let error =
            BookieError::Unexpected(format!("{bookie} cannot be asked for its entries of ledger {ledger}"));
        Box::pin(async { Err(error) })
    }

    /// Asks for the room on the bookie's disks. A transport need not know how.
    fn disk_space(&self, bookie: &BookieId) -> Answer<'_, DiskSpace> {
        let error = BookieError::Unexpected(format!("{bookie} cannot be asked for its disk space"));
        Box::pin(async { Err(error) })
    }
}
