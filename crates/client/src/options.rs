//! What callers choose: the shape of a ledger, how it is opened, and the limits of a client.

use std::collections::BTreeMap;
use std::time::Duration;

use bindery_types::{DigestType, QuorumSizes};
use bindery_wire::FrameLimit;

/// Default of [`ClientBuilder::request_timeout`](crate::ClientBuilder::request_timeout) (BookKeeper's
/// `addEntryTimeoutSec`).
pub const REQUEST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// Default of [`ClientBuilder::memory_limit`](crate::ClientBuilder::memory_limit).
pub const MEMORY_LIMIT_DEFAULT: u64 = 64 << 20;

/// Default of [`ClientBuilder::slow_replica_bytes_max`](crate::ClientBuilder::slow_replica_bytes_max): this part of the
/// memory limit, so that what a stopped bookie holds leaves room for the others to go on.
pub const SLOW_REPLICA_PART_DEFAULT: u64 = 2;

/// Default of [`ClientBuilder::explicit_lac_interval`](crate::ClientBuilder::explicit_lac_interval).
pub const EXPLICIT_LAC_INTERVAL_DEFAULT: Duration = Duration::from_millis(100);

/// Default of [`ClientBuilder::bookie_quarantine_time`](crate::ClientBuilder::bookie_quarantine_time) (BookKeeper's
/// `bookieQuarantineTimeSeconds`).
pub const BOOKIE_QUARANTINE_TIME_DEFAULT: Duration = Duration::from_secs(30 * 60);

/// Default of [`ClientBuilder::metadata_patience`](crate::ClientBuilder::metadata_patience): three of the metadata sessions
/// that a client asks for, in which a store elects a new leader many times over.
pub const METADATA_PATIENCE_DEFAULT: Duration = Duration::from_secs(30);

/// The largest write quorum: a writer keeps one bit per replica of an entry.
pub const WRITE_QUORUM_SIZE_MAX: usize = 64;

/// How a new ledger is to be made.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CreateOptions {
    /// Ensemble, write quorum (at most [`WRITE_QUORUM_SIZE_MAX`]) and ack quorum. Those that are not chosen are filled in when the
    /// ledger is created; [`LedgerWriter::quorum`](crate::LedgerWriter::quorum) says what they are.
    pub sizes: QuorumSizes,
    /// How entries are digested.
    pub digest: DigestType,
    /// The password of the ledger; may be empty. Never printed.
    pub password: Vec<u8>,
    /// Free properties. Names that begin with `bindery.` are the client's own.
    pub custom: BTreeMap<String, Vec<u8>>,
    /// See [`deferred_sync`](Self::deferred_sync).
    pub deferred_sync: bool,
}

impl Default for CreateOptions {
    /// Three copies, two of which acknowledge, or as many as there are bookies.
    fn default() -> CreateOptions {
        CreateOptions::new(QuorumSizes::default())
    }
}

impl CreateOptions {
    /// CRC32C, an empty password, no properties, no deferred sync.
    pub fn new(sizes: impl Into<QuorumSizes>) -> CreateOptions {
        CreateOptions {
            sizes: sizes.into(),
            digest: DigestType::Crc32c,
            password: Vec::new(),
            custom: BTreeMap::new(),
            deferred_sync: false,
        }
    }

    /// Another [`digest`](Self::digest).
    pub fn digest(mut self, digest: DigestType) -> CreateOptions {
        self.digest = digest;
        self
    }

    /// A [`password`](Self::password), which readers need as well.
    pub fn password(mut self, password: impl Into<Vec<u8>>) -> CreateOptions {
        self.password = password.into();
        self
    }

    /// One more [free property](Self::custom), or another value of it.
    pub fn property(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> CreateOptions {
        self.custom.insert(name.into(), value.into());
        self
    }

    /// Whether bookies may acknowledge entries before they sync them (BookKeeper's `DEFERRED_SYNC`). Entries are then
    /// confirmed, and seen by readers, only up to the last [`LedgerWriter::force`](crate::LedgerWriter::force), which all
    /// bookies of the ensemble must answer. A bookie that fails cannot be replaced, and ends the writer; the ledger cannot
    /// be handed over without a force. Nothing of this is kept in the ledger's metadata: it is this writer's.
    pub fn deferred_sync(mut self, deferred_sync: bool) -> CreateOptions {
        self.deferred_sync = deferred_sync;
        self
    }
}

impl std::fmt::Debug for CreateOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreateOptions")
            .field("sizes", &self.sizes)
            .field("digest", &self.digest)
            .field("custom", &self.custom.keys())
            .field("deferred_sync", &self.deferred_sync)
            .finish_non_exhaustive()
    }
}

/// How to open an unclosed ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenMode {
    /// Fences its writer out, finds the last entry, and closes the ledger. Reads after that are final.
    Recover,
    /// Leaves it alone: entries up to the LAC (last add confirmed) can be read, and followed.
    ReadOnly,
}

/// Limits of a client, set through the builder.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// How long a bookie has to answer.
    pub request_timeout: Duration,
    /// How long to wait for a metadata store that fails.
    pub metadata_patience: Duration,
    /// How long a writer without an ack quorum waits for bookies.
    pub bookie_patience: Duration,
    /// Entry bytes in flight to bookies.
    pub memory_limit: u64,
    /// The bookies' limit of a frame, if set.
    pub frame_limit: Option<FrameLimit>,
    /// Bytes that one bookie may hold up; a part of the memory limit if not set.
    pub slow_replica_bytes_max: Option<u64>,
    /// How long a confirmed entry may stay unannounced to readers; zero is for ever.
    pub explicit_lac_interval: Duration,
    /// How long new ensembles avoid a bookie that was found unhealthy.
    pub bookie_quarantine_time: Duration,
}

impl Limits {
    /// The largest frame that is taken: bookies of any kind may have stored it.
    pub fn frame_taken(&self) -> FrameLimit {
        self.frame_limit.unwrap_or(FrameLimit::PULSAR)
    }

    /// The largest frame that an entry is written with: bookies of any kind take it.
    pub fn frame_written(&self) -> FrameLimit {
        self.frame_limit.unwrap_or(FrameLimit::DEFAULT)
    }

    /// Bytes that one bookie may hold up.
    pub fn slow_replica_bytes_max(&self) -> u64 {
        self.slow_replica_bytes_max.unwrap_or(self.memory_limit / SLOW_REPLICA_PART_DEFAULT)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            request_timeout: REQUEST_TIMEOUT_DEFAULT,
            metadata_patience: METADATA_PATIENCE_DEFAULT,
            bookie_patience: Duration::ZERO,
            memory_limit: MEMORY_LIMIT_DEFAULT,
            frame_limit: None,
            slow_replica_bytes_max: None,
            explicit_lac_interval: EXPLICIT_LAC_INTERVAL_DEFAULT,
            bookie_quarantine_time: BOOKIE_QUARANTINE_TIME_DEFAULT,
        }
    }
}
