//! The ledger client: create, append, read, follow, recover, hand over.
//!
//! ```no_run
//! use bindery_client::{Client, CreateOptions, OpenMode};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder().metadata("zk://127.0.0.1:2181/ledgers".parse()?).connect().await?;
//!
//! // Entries go to 3 bookies each and are confirmed by 2, if there are so many. Pipelined: progress says how far.
//! let writer = client.create_ledger(CreateOptions::default()).await?;
//! for line in ["one", "two", "three"] {
//!     writer.enqueue(line.as_bytes()).await?; // waits for room only
//! }
//! let last = writer.append(b"four").await?; // confirmed, and all before it
//! println!("{:?}, up to {last}", writer.progress().borrow().confirmed);
//! let id = writer.id();
//! writer.close().await?;
//!
//! // A ledger whose writer died is fenced, recovered and closed on the way.
//! let reader = client.open_ledger(id, b"", OpenMode::Recover).await?;
//! let mut entries = reader.read(..);
//! while let Some(entry) = entries.next().await {
//!     println!("{}", String::from_utf8_lossy(&entry?.payload));
//! }
//! client.close().await;
//! # Ok(()) }
//! ```
//!
//! # Data flow
//! ```text
//! LedgerWriter --> WriterCore ----+                       +--> connection::Bookies --> bookies
//! LedgerReader --> fetch, tail,   +--> transport::Transport
//!                  verify --------+
//! open, Recover -> RecoveryCore --+        bytes bounded by two budgets
//!        |
//!        +--> bindery_metadata::Layout --> conditional writes, watches
//! ```
//! The cores are synchronous: events in, requests out; no I/O, no clock, no task. Shells around them wait, send, and own
//! the tasks. Tests drive the cores through every order of events that a seed can draw (`model`).
//!
//! # Invariants (numbers: reliability reference)
//! 1. A confirmed entry is on an ack quorum of the bookies that metadata names; entries are confirmed in order; the LAC
//!    (last add confirmed) never goes back (IC1, IC2, IC3, IC11). `window`, `writer`
//! 2. A ledger ends where a sure answer of enough bookies says, never where one could not be asked; all opens agree
//!    (IC4 to IC8, IC12, IC15). `recovery`
//! 3. Metadata is written on the condition of what was read, and an unknown outcome is resolved by reading (IC13, IC14).
//! 4. A reader gets only entries that were verified, and only confirmed ones unless it asked otherwise; it asks each
//!    replica for an entry only once (IC9, IC19, IC21). `reader`
//!    Which one is asked first, and when a second, is a matter of health (C1 to C13). `health`, `reader::race`
//! 5. Bytes in flight are bounded, no caller waits for a permit that it holds itself, and every call ends (IC17, IC18).
//!
//! # Limits     entry bytes in flight, each entry counted once, and as much again read ahead:
//! [`ClientBuilder::memory_limit`]; held up by a slow bookie: [`ClientBuilder::slow_replica_bytes_max`]; a write quorum:
//! [`WRITE_QUORUM_SIZE_MAX`]; an entry: what fits a frame of 5 MiB ([`LedgerWriter::payload_bytes_max`])
//!
//! Everything with a `next` is a [`Stream`], too, for `StreamExt` and `TryStreamExt`: [`EntryStream`],
//! [`TailStream`], [`StoredStream`], [`LedgerStream`]. For bytes without entries of their own there are tokio's
//! `AsyncWrite` and `AsyncRead`: [`ByteWriter`], [`ByteReader`].
//!
//! A program that connects, writes, reads or replaces parts of the client needs this crate and a tokio runtime: the types for
//! that are re-exported here. A [`Layout`](metadata::Layout) is here to be opened and handed to a client; what its own methods
//! return is in `bindery-metadata`.
//!
//! Without async code, and without a runtime of one's own: [`blocking`].
//!
//! For repair: [`repair`], and [`LedgerView::read_position`].
//!
//! For tiering: [`Client::bulk`] reads stored bytes in the background, [`Client::reconcile`] tells bookies what is in object
//! storage.
//!
//! TLS and users: [`ClientBuilder::tls`] and [`ClientBuilder::credentials`]. Other ways of connecting and authenticating:
//! [`Connector`] and [`Authenticator`].
//!
//! To watch a client: [`Client::bookie_health`], [`Client::read_health`], [`Client::write_health`] and
//! [`Client::memory_in_use`] are cheap to call and depend on no metrics library; `tracing` reports events.
//!
//! # Not here   telling a bookie's incarnations apart (IC16)

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub mod blocking;
mod bulk;
mod byte_io;
/// As the server's tests make them.
#[cfg(test)]
#[path = "../../server/tests/it/common/certificates.rs"]
mod certificates;
mod chain;
mod claims;
mod client;
pub mod connection;
pub mod credentials;
mod entry;
mod error;
mod gaps;
mod handover;
pub mod health;
mod hooks;
mod inspect;
mod kept_bytes;
#[cfg(test)]
mod lagging;
mod listing;
mod location;
pub mod metadata;
mod metadata_edit;
#[cfg(test)]
mod model;
mod options;
mod own_writers;
mod placement;
mod reader;
mod reconcile;
mod recovery;
pub mod repair;
pub mod resolver;
mod retry;
mod shared;
mod slow;
mod stragglers;
mod stream;
/// What [`Client::reconcile`] says of entries and objects.
pub mod tier {
    pub use bindery_types::tier::{ClusterId, InvalidId, ObjectId, ObjectRef, Reconciliation, TierExtent};
}
mod tier_secret;
mod tier_support;
pub mod tls;
pub mod transport;
mod verify;
mod window;
mod write_counts;
mod writer;

pub use bindery_flow::Permit;
pub use bindery_io::{Random, SeededRandom, SystemRandom};
pub use bindery_types::{
    BookieId, DigestType, EntryId, InvalidBookieId, InvalidQuorum, InvalidSegment, LedgerId, LedgerMetadata,
    LedgerSecret, LedgerState, MasterKey, MetadataFormatVersion, Quorum, QuorumSizes, Segment,
};
pub use bytes::Bytes;
pub use futures_core::stream::{FusedStream, Stream};
/// Of [`LedgerWriter::progress`].
pub use tokio::sync::watch;

pub use crate::bulk::{
    BulkCounts, BulkOptions, BulkReader, LedgerView, StoredBatch, StoredEntry, StoredStream,
};
pub use bindery_wire::{EntryAvailability, ErrorCode, FrameLimit};

pub use crate::byte_io::{ByteReader, ByteWriter, ENTRY_SIZE_BYTES_DEFAULT};
pub use crate::chain::TakeOver;
pub use crate::client::{BookieInfo, Client, ClientBuilder, LedgerInfo, MemoryInUse};
pub use crate::credentials::{Credentials, Mechanism, Secret};
pub use crate::entry::Entry;
pub use crate::error::{
    AppendError, AppendOpenError, BookieAnswer, BookieAnswers, CloseError, ConnectError, CreateError,
    ForceError, NotEnoughBookies, OpenError, ReadError, RecoveryError, Stopped, TakeOverError,
    TryAppendError, WhyStopped,
};
pub use crate::handover::{
    CONTINUED_PROPERTY, CONTINUES_PROPERTY, HANDOVER_PROPERTY, Handover, UnknownHandover, continued_in,
    continues,
};
pub use crate::health::{BookieHealth, BusyBookie, NodeState, Percentiles, ReadHealth};
pub use crate::hooks::{Authenticator, BookieAddress, ByteStream, Connecting, Connector, Exchange, Turn};
pub use crate::inspect::{FoundCopy, Spread};
pub use crate::listing::LedgerStream;
pub use crate::metadata::{
    Endpoint, LedgerError, MetadataFault, MetadataUri, RegistrationMode, ServerFaults, StoreError, UriError,
    Version, WaitFor,
};
pub use crate::options::{
    BOOKIE_QUARANTINE_TIME_DEFAULT, CreateOptions, EXPLICIT_LAC_INTERVAL_DEFAULT, MEMORY_LIMIT_DEFAULT,
    METADATA_PATIENCE_DEFAULT, OpenMode, REQUEST_TIMEOUT_DEFAULT, SLOW_REPLICA_PART_DEFAULT,
    WRITE_QUORUM_SIZE_MAX,
};
pub use crate::placement::{
    BOOKIE_INFO_INTERVAL_DEFAULT, Candidates, Choice, DiskWeights, InvalidLocation, Location, Placement,
    RackAware, RandomPlacement, RegionAware, Unmet, WEIGHT_MULTIPLE_MAX_DEFAULT, Wanted,
};
pub use crate::reader::{EntryStream, LedgerReader, TailStream};
pub use crate::reconcile::{
    Reconcile, ReconcileError, Reconciled, TIER_PROPERTY, TIER_PROPERTY_VALUE, TierSupport,
};
pub use crate::tls::{TlsError, TlsOptions, TlsVersion};
pub use crate::verify::{CopyCounts, FINDINGS_MAX, Fault, Finding, Verification, VerifyReport};
pub use crate::write_counts::WriteHealth;
pub use crate::writer::{Closed, LedgerWriter, Progress, ProgressWatch};
