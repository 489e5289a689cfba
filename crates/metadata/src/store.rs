//! The metadata store: a hierarchical, versioned key-value store with ephemeral nodes and one-time watches.
//!
//! The shape is ZooKeeper's, because the BookKeeper layout is written in those terms; other stores are adapted to it
//! by their drivers. The trait is object safe: everything above it holds an `Arc<dyn MetadataStore>`.
//!
//! # Invariants (every driver; checked by [`conformance`](crate::conformance))
//! 1. A write with an expected version succeeds only when the node still has that version.
//! 2. [`StoreError::Unreachable`] means that nothing was applied; [`StoreError::ConnectionLoss`] that it may have been.
//! 3. A [`Watch`] fires at least once for the first change after the read that armed it, and always fires when the
//!    connection or the session is lost: a caller that re-reads on every event misses nothing.
//! 4. An ephemeral node belongs to the session under which it was created and goes with it. A store that opens a new
//!    session after an expiry publishes the new id in [`MetadataStore::session`] before it serves a request under it.
//! 5. `multi` applies all of its operations or none. A store that is not transactional has no `multi`, and deletes a node although a child
//!    of it is created at the same moment, and lists children not of one moment: see [`MetadataStore::is_transactional`].
//! 6. Of the [`Version`]s of a node, from its creation to its deletion, no two are equal, and a later one is [later](Version::is_later_than).
//!
//! # Limits     a node's value: [`VALUE_SIZE_BYTES_MAX`]; requests waiting for the store: bounded by each driver

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use crate::fault::ServerFaults;

/// Largest value of one node (ZooKeeper's `jute.maxbuffer` default of 1 MiB, minus room for the path and headers).
pub const VALUE_SIZE_BYTES_MAX: usize = (1 << 20) - 4096;

/// What every store operation returns.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Which value of a node is meant. It is compared with others of the same node, and with nothing else.
///
/// ZooKeeper names a value by the number of writes before it since the node was created. Oxia names it by a counter of the shard that the
/// node is in, which a migration may set back; it counts the writes of the node beside that.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Version {
    id: i64,
    writes: i64,
}

impl Version {
    /// The version that a store names `id`, after `writes` writes since the node was created.
    pub const fn new(id: i64, writes: i64) -> Version {
        Version { id, writes }
    }

    /// The version of a store that names it by its `writes`.
    pub const fn counted(writes: i64) -> Version {
        Version { id: writes, writes }
    }

    /// What the store names it by.
    pub const fn id(self) -> i64 {
        self.id
    }

    /// Whether the value is the one that the node was created with: nothing was set since.
    pub const fn is_initial(self) -> bool {
        self.writes == 0
    }

    /// Whether it came after another one of the same node.
    pub const fn is_later_than(self, other: Version) -> bool {
        self.writes > other.writes
    }
}

/// The identity of a session. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub i64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({:#x})", self.0)
    }
}

/// What the store knows about a node besides its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Version of the value.
    pub version: Version,
    /// The session that owns the node, when it is ephemeral.
    pub owner: Option<SessionId>,
    /// Creation time in milliseconds since the epoch, by the store's clock.
    pub created_ms: i64,
    /// Number of children; `None` from a store that would have to list them to know.
    pub children_count: Option<u32>,
    /// What the name of its next sequential child ends with. It never falls while the node lives, and may skip numbers.
    pub next_sequence: u32,
}

/// What a node got when it was created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Created {
    /// Its path, which a sequential mode lengthened.
    pub path: String,
    /// Its first version.
    pub version: Version,
}

/// A node's value together with what the store knows about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// The value.
    pub data: Bytes,
    /// Version, owner and times.
    pub stat: Stat,
}

/// How long a node lives and how it gets its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CreateMode {
    /// Until it is deleted.
    Persistent,
    /// Until it is deleted or the session that created it ends.
    Ephemeral,
    /// Persistent, with a ten-digit counter of the parent appended to the path.
    PersistentSequential,
    /// Ephemeral, with a ten-digit counter of the parent appended to the path.
    EphemeralSequential,
}

/// One step of [`MetadataStore::multi`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Create a node. Sequential modes are allowed, but the name that was given is not reported.
    Create {
        /// Path of the node.
        path: String,
        /// Its value.
        data: Bytes,
        /// Its life time.
        mode: CreateMode,
    },
    /// Replace a value.
    Set {
        /// Path of the node.
        path: String,
        /// The new value.
        data: Bytes,
        /// The version it must have; `None` accepts any.
        expected: Option<Version>,
    },
    /// Delete a node.
    Delete {
        /// Path of the node.
        path: String,
        /// The version it must have; `None` accepts any.
        expected: Option<Version>,
    },
    /// Fail unless the node has this version.
    Check {
        /// Path of the node.
        path: String,
        /// The version it must have.
        expected: Version,
    },
}

/// Why a watch fired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchEvent {
    /// The node was created.
    Created,
    /// The node was deleted.
    Deleted,
    /// The node's value was set.
    DataChanged,
    /// A child was created or deleted.
    ChildrenChanged,
    /// The connection was lost: anything may have changed, read again.
    Lost,
}

/// A one-time watch, armed by the read that returned it. Dropping it disarms it.
#[derive(Debug)]
pub struct Watch {
    fired: oneshot::Receiver<WatchEvent>,
    /// It also fires, as lost, once this is true.
    is_over: Option<watch::Receiver<bool>>,
}

impl Watch {
    /// A watch and the end that fires it. Dropping that end fires [`WatchEvent::Lost`].
    pub(crate) fn new() -> (oneshot::Sender<WatchEvent>, Watch) {
        let (sender, receiver) = oneshot::channel();
        (sender, Watch { fired: receiver, is_over: None })
    }

    /// The same watch, which also fires [`WatchEvent::Lost`] once `is_over` is true.
    pub(crate) fn or_when(self, is_over: watch::Receiver<bool>) -> Watch {
        Watch { is_over: Some(is_over), ..self }
    }

    /// Whether something changed, or may have changed, since it was armed.
    pub fn has_fired(&mut self) -> bool {
        self.is_over.as_ref().is_some_and(|is_over| *is_over.borrow())
            || !matches!(self.fired.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    /// Waits for the first change. A dropped wait disarms the watch.
    pub async fn changed(self) -> WatchEvent {
        let over = async {
            if let Some(mut is_over) = self.is_over
                && is_over.wait_for(|is_over| *is_over).await.is_ok()
            {
                return;
            }
            // A store that is dropped fires its watches itself.
            std::future::pending().await
        };
        tokio::select! {
            fired = self.fired => fired.unwrap_or(WatchEvent::Lost),
            () = over => WatchEvent::Lost,
        }
    }
}

/// Where the session with the store stands. Published in a `watch` channel: states may be skipped, the last is current.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionState {
    /// No session yet, or a new one is being opened after an expiry.
    Connecting,
    /// Connected under this session.
    Connected(SessionId),
    /// The connection is lost; the session and its ephemeral nodes may live on or be expired. Only a server can tell
    /// which, so this lasts until one is reached.
    Suspended(SessionId),
    /// The store said that this session is gone, and with it its ephemeral nodes. A new one is being opened.
    Expired(SessionId),
    /// The store refuses our credentials, or we refuse it, and this is why; no further attempt is made.
    AuthFailed(Arc<str>),
    /// Closed by [`MetadataStore::close`]; nothing more happens.
    Closed,
}

impl SessionState {
    /// The session under which requests run now; without one, the error that a request would end with.
    pub fn connected(self) -> Result<SessionId, StoreError> {
        match self {
            SessionState::Connected(id) => Ok(id),
            SessionState::Closed => Err(StoreError::Closed),
            SessionState::AuthFailed(why) => Err(StoreError::AuthFailed { why }),
            SessionState::Connecting | SessionState::Suspended(_) | SessionState::Expired(_) => {
                Err(StoreError::ConnectionLoss)
            }
        }
    }
}

/// The credentials with which a later process goes on under the same session.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionCredentials {
    /// The session.
    pub id: SessionId,
    /// The secret that proves ownership. Never printed.
    pub password: Vec<u8>,
}

impl fmt::Debug for SessionCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionCredentials").field("id", &self.id).finish_non_exhaustive()
    }
}

const CREDENTIALS_HEADER: &str = "bindery-session 1";
const CREDENTIALS_PASSWORD_SIZE_BYTES_MAX: usize = 1024;

impl SessionCredentials {
    /// The text to keep in a file (mode 0600: it lets its reader take over the session).
    pub fn to_text(&self) -> String {
        let mut text = format!("{CREDENTIALS_HEADER}\n{:016x}\n", self.id.0);
        for byte in &self.password {
            text.push_str(&format!("{byte:02x}"));
        }
        text.push('\n');
        text
    }

    /// Reads what [`to_text`](Self::to_text) wrote. `None` for anything else: the caller then opens a new session.
    pub fn from_text(text: &str) -> Option<SessionCredentials> {
        let mut lines = text.lines();
        if lines.next()? != CREDENTIALS_HEADER {
            return None;
        }
        let id = i64::from_ne_bytes(u64::from_str_radix(lines.next()?, 16).ok()?.to_ne_bytes());
        let hex = lines.next()?.as_bytes();
        if id == 0 || hex.len() % 2 != 0 || hex.len() > 2 * CREDENTIALS_PASSWORD_SIZE_BYTES_MAX {
            return None;
        }
        let digit = |b: u8| (b as char).to_digit(16);
        let password = hex
            .chunks_exact(2)
            .map(|pair| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8))
            .collect::<Option<Vec<u8>>>()?;
        Some(SessionCredentials { id: SessionId(id), password })
    }
}

/// Why a store operation failed; each variant answers what the caller can do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The node is not there.
    #[error("{path} does not exist in the metadata store")]
    NoNode {
        /// The path asked for.
        path: String,
    },
    /// The node is already there.
    #[error("{path} already exists in the metadata store")]
    NodeExists {
        /// The path to be created.
        path: String,
    },
    /// Another client changed the node: read it again and decide again.
    #[error("{path} was changed by somebody else")]
    BadVersion {
        /// The path to be changed.
        path: String,
    },
    /// The node still has children.
    #[error("{path} still has children")]
    NotEmpty {
        /// The path to be deleted.
        path: String,
    },
    /// An ephemeral node cannot have children.
    #[error("the parent of {path} is ephemeral and cannot have children")]
    NoChildrenForEphemerals {
        /// The path to be created.
        path: String,
    },
    /// The connection broke after the request was sent: it may or may not have been applied. Read before repeating.
    #[error("lost the connection to the metadata store: the outcome of the request is unknown")]
    ConnectionLoss,
    /// No server gave a session and nothing was sent: repeating is safe.
    #[error("no metadata server can be reached{}: {faults}", within(*.waited))]
    Unreachable {
        /// For how long it was tried; zero when there was nothing to wait for.
        waited: Duration,
        /// What is wrong with each server.
        faults: ServerFaults,
    },
    /// No server is trusted, or none trusts us: certificates or settings must be changed. Nothing was sent.
    #[error("no secure connection to a metadata server: {why}")]
    Untrusted {
        /// The server, and what is wrong.
        why: String,
    },
    /// The session ended while the request was in flight; ephemeral nodes are gone. A new session is being opened.
    #[error("the session with the metadata store expired")]
    SessionExpired,
    /// The access list of the path names others.
    #[error(
        "the metadata store refuses access to {path}: its access list (ACL) names another identity. Connect with the SASL user or \
         the certificate of the processes that wrote it, or have one of these change the list"
    )]
    NoAuth {
        /// The path.
        path: String,
    },
    /// Nodes are to be restricted to our identity, and the store knows none. Nothing was written.
    #[error(
        "the metadata store cannot restrict {path} to us, because it knows no identity of ours: with zkEnableSecurity=true give SASL \
         credentials (section Client of the JAAS file, or zkSaslUser) or a certificate (zkTlsKeyStore)"
    )]
    NoIdentity {
        /// The path to be created.
        path: String,
    },
    /// The store refuses the session's credentials, or cannot prove that it knows them; it is not tried again.
    #[error("no login with the metadata store: {why}")]
    AuthFailed {
        /// The server, which side refused, and what to do.
        why: Arc<str>,
    },
    /// All metadata is being moved to another store, and writes wait until that is done; this one waited for long, or behind too many.
    /// Nothing was sent: repeating is safe.
    #[error("the metadata is being moved from ZooKeeper to Oxia, and is not written meanwhile")]
    Moving,
    /// The store was closed by this process.
    #[error("the metadata store was closed")]
    Closed,
    /// More than the store takes; nothing was sent.
    #[error("{path}: a value of {size_bytes} bytes is above the limit of {VALUE_SIZE_BYTES_MAX}")]
    TooLarge {
        /// The path.
        path: String,
        /// Size of the refused value.
        size_bytes: usize,
    },
    /// The store has no room for more, or a quota of it: deletions go on.
    #[error(
        "the metadata store has no room for {path}: delete ledgers that nobody needs, or give it more room (that of bindery \
         standalone follows from --memory-limit, that of a ZooKeeper from its quotas)"
    )]
    Full {
        /// The path.
        path: String,
    },
    /// The driver or the server does not know this operation.
    #[error("the metadata store does not support {0}")]
    Unsupported(&'static str),
    /// The server answered something that is not its protocol, or an error code we do not know: a bug or a wrong port.
    #[error("the metadata server answered something unexpected: {0}")]
    Protocol(String),
}

fn within(waited: Duration) -> String {
    if waited.is_zero() { String::new() } else { format!(" within {waited:?}") }
}

impl StoreError {
    /// The path that it names.
    pub(crate) fn path_mut(&mut self) -> Option<&mut String> {
        match self {
            StoreError::NoNode { path }
            | StoreError::NodeExists { path }
            | StoreError::BadVersion { path }
            | StoreError::NotEmpty { path }
            | StoreError::NoChildrenForEphemerals { path }
            | StoreError::NoAuth { path }
            | StoreError::NoIdentity { path }
            | StoreError::TooLarge { path, .. }
            | StoreError::Full { path } => Some(path),
            StoreError::ConnectionLoss
            | StoreError::Unreachable { .. }
            | StoreError::Untrusted { .. }
            | StoreError::SessionExpired
            | StoreError::AuthFailed { .. }
            | StoreError::Moving
            | StoreError::Closed
            | StoreError::Unsupported(_)
            | StoreError::Protocol(_) => None,
        }
    }

    /// True when the same request may succeed later without anybody acting.
    pub fn is_transient(&self) -> bool {
        match self {
            // Servers return, and certificates and settings of servers are put right while this process runs.
            StoreError::ConnectionLoss
            | StoreError::SessionExpired
            | StoreError::Unreachable { .. }
            | StoreError::Moving => true,
            _ => false,
        }
    }
}

/// A hierarchical, versioned key-value store. Paths are absolute, `/`-separated, without a trailing slash.
pub trait MetadataStore: Send + Sync + 'static {
    /// Reads a node.
    fn get(&self, path: &str) -> StoreFuture<'_, Node>;

    /// Reads a node and arms a watch for its next change or deletion. Nothing is armed when the read fails.
    fn get_and_watch(&self, path: &str) -> StoreFuture<'_, (Node, Watch)>;

    /// What is known of a node, `None` when it does not exist.
    fn exists(&self, path: &str) -> StoreFuture<'_, Option<Stat>>;

    /// As [`exists`](Self::exists), and arms a watch for creation, change or deletion.
    fn exists_and_watch(&self, path: &str) -> StoreFuture<'_, (Option<Stat>, Watch)>;

    /// Names (not paths) of a node's children, sorted.
    fn children(&self, path: &str) -> StoreFuture<'_, Vec<String>>;

    /// As [`children`](Self::children), and arms a watch for children created or deleted, or the node's deletion.
    fn children_and_watch(&self, path: &str) -> StoreFuture<'_, (Vec<String>, Watch)>;

    /// Creates a node below an existing parent.
    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> StoreFuture<'_, Created>;

    /// Replaces a node's value; `expected` = `None` accepts any version.
    fn set(&self, path: &str, data: Bytes, expected: Option<Version>) -> StoreFuture<'_, Stat>;

    /// Deletes a node without children; `expected` = `None` accepts any version.
    fn delete(&self, path: &str, expected: Option<Version>) -> StoreFuture<'_, ()>;

    /// Whether requests that concern several nodes are one step. Where they are not,
    ///
    /// - [`multi`](Self::multi) is [`StoreError::Unsupported`];
    /// - a node may be deleted while a child of it is created, and the child is left without a parent, where no listing finds it. So nobody
    ///   deletes a node below which others create nodes that matter, or both look afterwards and make the parent again;
    /// - the number of a sequential child is drawn before the child is there, so that a lower one may appear after a higher one;
    /// - [`children`](Self::children) shows each child as it was at some moment of the call, not all at the same: of two that were made one
    ///   after the other it may show the second one alone. The next call shows both.
    fn is_transactional(&self) -> bool;

    /// Makes the names of sequential children of `parent` end with `next` or a higher number from now on; nothing changes where they do already.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] by stores that count nothing but children; otherwise as [`set`](Self::set).
    fn skip_sequence(&self, parent: &str, next: u32) -> StoreFuture<'_, ()>;

    /// Applies all of `ops` or none; the error is the one of the first operation that failed.
    fn multi(&self, ops: Vec<Op>) -> StoreFuture<'_, ()>;

    /// Returns once reads see every write that any client completed before this call.
    fn sync(&self, path: &str) -> StoreFuture<'_, ()>;

    /// The state of the session, now and as it changes.
    fn session(&self) -> watch::Receiver<SessionState>;

    /// Credentials of the current session; `None` when there is none or the driver's sessions cannot be resumed.
    fn session_credentials(&self) -> Option<SessionCredentials>;

    /// The session timeout agreed with the store (the one asked for, before the first connection).
    fn session_timeout(&self) -> Duration;

    /// A view of this store whose requests are sent under `session` or not at all: under another one they fail with
    /// [`StoreError::SessionExpired`]. `None` by a store that has no such views. A view ends with its store.
    fn pinned(&self, session: SessionId) -> Option<Arc<dyn MetadataStore>> {
        let _ = session;
        None
    }

    /// Ends the session: its ephemeral nodes go at once. Later requests fail with [`StoreError::Closed`], also when this one failed:
    /// then the session may live on until its timeout.
    fn close(&self) -> StoreFuture<'_, ()>;
}

/// The path of the node above this one; the root is above itself.
pub(crate) fn parent_of(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever has an open session goes on: certificates that have expired are renewed, and servers return.
    #[test]
    fn no_fault_of_a_server_is_for_good() {
        let expired = ("zk:2281".to_owned(), crate::Fault::Untrusted("certificate expired".to_owned()));
        let unreachable =
            StoreError::Unreachable { waited: Duration::from_secs(10), faults: ServerFaults(vec![expired]) };
        assert!(unreachable.is_transient());
        assert!(!StoreError::AuthFailed { why: "no user".into() }.is_transient());
    }

    #[test]
    fn credentials_survive_their_text_and_never_print_the_password() {
        let credentials = SessionCredentials { id: SessionId(-5), password: vec![0, 1, 0xab, 0xff] };
        assert_eq!(SessionCredentials::from_text(&credentials.to_text()), Some(credentials.clone()));
        assert!(!format!("{credentials:?}").contains("ab"));
        for bad in
            ["", "bindery-session 2\n1\nab", "bindery-session 1\n0\nab", "bindery-session 1\n1\nabc", "x\ny"]
        {
            assert_eq!(SessionCredentials::from_text(bad), None, "{bad:?}");
        }
    }
}
