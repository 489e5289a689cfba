//! The Oxia driver. Only this module knows Oxia.
//!
//! Keys are the paths of nodes, values their data, and a cluster is laid out as Pulsar's driver does it on Oxia, so that brokers and Java's
//! bookies with `metadata-store:oxia://` share it.
//!
//! # How a node is a record
//! - **Parents** are records of their own, with empty values, as Pulsar's driver makes them. A child is created only while its parent is
//!   there, but nothing joins the two: the store is not transactional ([`MetadataStore::is_transactional`]), and layouts that make parents
//!   make them as they do on ZooKeeper.
//! - **Children** of `p` are the keys from `p/` to `p//`, in the order of Oxia's keys, of all shards together: a key's shard follows from its
//!   own hash, as with Pulsar's driver, which gives no partition key. A node with children is not deleted.
//! - **Versions** are those of the record: a counter of the shard names it, and its modifications count orders it.
//! - **Sequential children** get the number that writing the parent gives: its modifications count, from 1 on. Oxia's own sequence keys are
//!   not used: they go on behind the highest key that is there, and used names are deleted, so that ids would come again. The parent keeps
//!   its value, unless another client sets it at that very moment.
//! - **Ephemeral nodes** belong to a session of the shard that they are in, and name as their client's identity the session of this store
//!   ([`SessionId`]), which stands for the sessions of all shards. Whoever sets such a node hands its session on.
//! - **Watches** are fired by the notifications of all shards.
//!
//! # Data flow
//! ```text
//! request -> permit -> shard of the key -> its leader -> answer            `calls`, `shards`; reads of one shard together: `reads`
//! keeper: assignments of shards -> sessions -> state of the store          `keeper`
//!         notifications of each shard -> watches                           `watches`
//! a request that failed -> a doubt -> keeper: assignments of the next server
//! ```
//!
//! # Invariants
//! 1. A request that may have been applied is not sent again: it ends with [`StoreError::ConnectionLoss`]. One that a server refused, or that
//!    found no connection, is sent again until its time is over, and then ends with [`StoreError::Unreachable`].
//! 2. A watch is armed while the notifications of all shards come in, and before its node is read. When those of one shard break off, its
//!    server is silent, or another one leads it, all watches fire [`Lost`](crate::store::WatchEvent::Lost). An event of the very value that
//!    was read does not fire it.
//! 3. A session of this store is open while all of its shards' sessions are. When one is gone, or the shards are others, it is expired: the
//!    others are closed, so that its ephemeral nodes go, and a new one is opened under another id. The new id is published before a node is
//!    created under it. A record is sent with the session of the very shard that it is sent to, because each shard numbers its own.
//! 4. Reads are answered by the leader of the shard, which has all that was acknowledged unless it was deposed and does not know it. `sync`
//!    has each shard's leader complete a write of nothing, which such a one cannot.
//!
//! A later process takes a session up again by the ids of its shards' sessions ([`MetadataStore::session_credentials`]). Oxia has no secret
//! for them: whoever reaches the servers can do so.
//!
//! # Limits     requests under way: [`REQUESTS_MAX`]; listings: [`LISTINGS_MAX`], each [`LIST_SIZE_BYTES_MAX`]; an answer:
//! [`MESSAGE_SIZE_BYTES_MAX`]; shards: `shards::SHARDS_MAX`; shards whose sessions can be taken up again: `session::RESUMED_SHARDS_MAX`. Every
//! task is the keeper's, which [`MetadataStore::close`] ends and a drop aborts, except those by which `tonic` drives a connection: they end
//! with the store's channels, and those to silent servers by their pings.
//!
//! # Not here   transactions; TLS and logins (refused, [`connect`]); secondary indexes, partition keys, sequence keys

mod calls;
mod keeper;
mod reads;
mod session;
mod shards;
mod status;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use bindery_oxia::proto::{self, PutRequest};
use bindery_oxia::{VERSION_NOT_EXISTS, keys};
use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use self::calls::{LIST_SIZE_BYTES_MAX, LISTINGS_MAX, MESSAGE_SIZE_BYTES_MAX, REQUESTS_MAX};

use self::calls::{Owner, Shared, Stored};
use self::keeper::Keeper;
use self::watches::{Armed, Read};
use crate::store::{
    CreateMode, Created, MetadataStore, Node, Op, SessionCredentials, SessionId, SessionState, Stat,
    StoreError, StoreFuture, VALUE_SIZE_BYTES_MAX, Version, Watch, parent_of,
};
use crate::zookeeper::{SaslLogin, ZooKeeperOptions as ConnectOptions};

/// The session timeouts that Oxia's servers take.
const SESSION_TIMEOUT_MIN: Duration = Duration::from_secs(2);
const SESSION_TIMEOUT_MAX: Duration = Duration::from_secs(300);
/// Added to the wait for a first session, so that the last attempt can still report why it failed.
const LAST_WORDS_WAIT: Duration = Duration::from_millis(100);
/// How often a node that others keep writing is set without a condition.
const CONFLICTS_MAX: usize = 64;

/// A connection to the servers of an Oxia namespace under one session at a time. Dropping it leaves the session to time out (so a later
/// process can resume it); [`MetadataStore::close`] ends it.
pub struct OxiaStore {
    shared: Arc<Shared>,
    state: watch::Receiver<SessionState>,
    keeper: JoinHandle<()>,
}

/// Opens a session (or resumes one) in a namespace. `servers` are `host:port`, tried in order until one names the leaders of the shards; any
/// server of the Oxia cluster can.
///
/// # Errors
/// [`StoreError::Untrusted`] when `options` ask for TLS or a login, or restrict nodes to our identity, which this driver cannot;
/// [`StoreError::Unreachable`] when no session was opened in time, or as soon as no server is worth waiting for.
pub async fn connect(
    servers: &[String],
    namespace: &str,
    options: ConnectOptions,
) -> Result<OxiaStore, StoreError> {
    let security = &options.security;
    // A section of a JAAS file that need not be there is none here.
    let has_login = !matches!(security.sasl, None | Some(SaslLogin::Jaas { is_needed: false, .. }));
    if security.tls.is_some() || has_login || security.is_restricted {
        let why = "TLS (zkTlsEnable), logins (zkSaslUser, JAAS) and restricted nodes (zkEnableSecurity) are of ZooKeeper; the Oxia driver \
                   knows none of its own yet: take these settings out, and keep Oxia's servers in a network that only the cluster reaches";
        return Err(StoreError::Untrusted { why: why.to_owned() });
    }
    let timeout = options.session_timeout.clamp(SESSION_TIMEOUT_MIN, SESSION_TIMEOUT_MAX);
    let wait = options.connect_timeout.unwrap_or(timeout);
    let shared = Arc::new(Shared::new(servers, namespace, timeout));
    let mut state = shared.state.subscribe();
    let keeper = tokio::spawn(Keeper::new(shared.clone(), options.resume).run());
    let store = OxiaStore { shared, state: state.clone(), keeper };
    let mut rounds = store.shared.rounds.subscribe();
    let deadline = Instant::now() + wait + LAST_WORDS_WAIT;
    loop {
        let is_open = |state: &SessionState| matches!(state, SessionState::Connected(_));
        tokio::select! {
            opened = state.wait_for(is_open) => {
                return opened.map(drop).map_err(|_| StoreError::Closed).map(|()| store);
            }
            round = rounds.changed() => {
                round.map_err(|_| StoreError::Closed)?;
                let faults = store.shared.faults();
                if !faults.0.iter().any(|(_, fault)| fault.is_waited_for(options.wait_for)) {
                    return Err(StoreError::Unreachable { waited: Duration::ZERO, faults });
                }
            }
            () = tokio::time::sleep_until(deadline) => {
                return Err(StoreError::Unreachable { waited: wait, faults: store.shared.faults() });
            }
        }
    }
}

impl Drop for OxiaStore {
    fn drop(&mut self) {
        // Its tasks are in a set that goes with it; sessions are left to their timeout.
        self.keeper.abort();
    }
}

impl OxiaStore {
    fn deadline(&self) -> Instant {
        Instant::now() + self.shared.timeout
    }

    async fn find(&self, path: &str, deadline: Instant) -> Result<Option<Stored>, StoreError> {
        check_path(path)?;
        self.shared.find(path, true, deadline).await
    }

    async fn names(&self, path: &str, deadline: Instant) -> Result<Vec<String>, StoreError> {
        check_path(path)?;
        let names = self.shared.children(path, deadline).await?;
        // A parent without children may be none.
        if names.is_empty() && path != "/" && self.shared.find(path, false, deadline).await?.is_none() {
            return Err(StoreError::NoNode { path: path.to_owned() });
        }
        Ok(names)
    }

    async fn create_node(&self, path: &str, data: Bytes, mode: CreateMode) -> Result<Created, StoreError> {
        check_path(path)?;
        check_size(path, &data)?;
        let deadline = self.deadline();
        let (is_sequential, is_ephemeral) = match mode {
            CreateMode::Persistent => (false, false),
            CreateMode::Ephemeral => (false, true),
            CreateMode::PersistentSequential => (true, false),
            CreateMode::EphemeralSequential => (true, true),
        };
        let no_parent = || StoreError::NoNode { path: path.to_owned() };
        let parent = parent_of(path);
        // The root is there without a record.
        let found = match (parent, is_sequential) {
            ("/", false) => None,
            _ => self.shared.find(parent, is_sequential, deadline).await?,
        };
        match &found {
            None if parent != "/" => return Err(no_parent()),
            Some(stored) if stored.version.session_id.is_some() => {
                return Err(StoreError::NoChildrenForEphemerals { path: path.to_owned() });
            }
            None | Some(_) => {}
        }
        let path = if is_sequential {
            let value = found.map(|stored| stored.value).unwrap_or_default();
            let number = self.take_number(parent, value, deadline).await?;
            format!("{path}{:010}", number.ok_or_else(no_parent)?)
        } else {
            path.to_owned()
        };
        let record = PutRequest {
            key: path.clone(),
            value: data,
            expected_version_id: Some(VERSION_NOT_EXISTS),
            ..PutRequest::default()
        };
        let put = match is_ephemeral {
            true => self.shared.put_ephemeral(record, deadline).await?,
            false => self.shared.put(record, Owner::None, deadline).await?,
        };
        match put {
            Put::Done(version) => Ok(Created { path, version: version_of(&version) }),
            Put::OtherVersion => Err(StoreError::NodeExists { path }),
            Put::NoSession => Err(StoreError::SessionExpired),
        }
    }

    /// Writes the parent of a sequential child: the number that this gives. `None` when the parent is gone.
    async fn take_number(
        &self,
        parent: &str,
        value: Bytes,
        deadline: Instant,
    ) -> Result<Option<i64>, StoreError> {
        let record = PutRequest { key: parent.to_owned(), value, ..PutRequest::default() };
        let Put::Done(version) = self.shared.put(record, Owner::None, deadline).await? else {
            return Err(StoreError::Protocol("a condition failed that was not set".to_owned()));
        };
        if version.modifications_count > 0 || parent == "/" {
            return Ok(Some(version.modifications_count));
        }
        // It was deleted since it was found, and this made another one, whose numbers begin anew.
        match self.shared.delete(parent, Some(version.version_id), deadline).await {
            Ok(_) => Ok(None),
            // Nothing of the deletion, and yet something was applied.
            Err(StoreError::Unreachable { .. }) => Err(StoreError::ConnectionLoss),
            Err(other) => Err(other),
        }
    }

    /// Sets the count of a parent's writes, of which a sequential child gets the one that its creation makes.
    async fn skip_numbers(&self, parent: &str, next: u32) -> Result<(), StoreError> {
        check_path(parent)?;
        let (deadline, wanted) = (self.deadline(), i64::from(next) - 1);
        for _ in 0..CONFLICTS_MAX {
            let Some(found) = self.shared.find(parent, true, deadline).await? else {
                return Err(StoreError::NoNode { path: parent.to_owned() });
            };
            if found.version.modifications_count >= wanted {
                return Ok(());
            }
            let record = PutRequest {
                key: parent.to_owned(),
                value: found.value.clone(),
                expected_version_id: Some(found.version.version_id),
                override_modifications_count: Some(wanted),
                ..PutRequest::default()
            };
            match self.shared.put(record, Owner::Former(&found), deadline).await? {
                Put::Done(version) if version.modifications_count >= wanted => return Ok(()),
                Put::Done(_) => return Err(StoreError::Unsupported("a chosen count of modifications")),
                Put::OtherVersion | Put::NoSession => {}
            }
        }
        Err(StoreError::BadVersion { path: parent.to_owned() })
    }

    async fn set_node(&self, path: &str, data: Bytes, expected: Option<Version>) -> Result<Stat, StoreError> {
        check_path(path)?;
        check_size(path, &data)?;
        let deadline = self.deadline();
        for _ in 0..CONFLICTS_MAX {
            let Some(found) = self.shared.find(path, false, deadline).await? else {
                return Err(StoreError::NoNode { path: path.to_owned() });
            };
            let version_id = found.version.version_id;
            // The count of writes, too: a move of metadata carries the small version ids of ZooKeeper over, which a shard may reach again.
            if expected.is_some_and(|expected| expected != stat_of(&found.version).version) {
                break;
            }
            let record = PutRequest {
                key: path.to_owned(),
                value: data.clone(),
                expected_version_id: Some(version_id),
                ..PutRequest::default()
            };
            // A record that is written without a session is no longer ephemeral.
            match self.shared.put(record, Owner::Former(&found), deadline).await? {
                Put::Done(version) => return Ok(stat_of(&version)),
                // It was written or deleted since, moved to another shard, or its session ended and it goes: the next look tells.
                Put::OtherVersion | Put::NoSession => {}
            }
        }
        Err(StoreError::BadVersion { path: path.to_owned() })
    }

    async fn delete_node(&self, path: &str, expected: Option<Version>) -> Result<(), StoreError> {
        check_path(path)?;
        let deadline = self.deadline();
        if self.shared.has_children(path, deadline).await? {
            return Err(StoreError::NotEmpty { path: path.to_owned() });
        }
        let no_node = || StoreError::NoNode { path: path.to_owned() };
        match self.shared.delete(path, expected.map(Version::id), deadline).await? {
            Deleted::Done => Ok(()),
            Deleted::NotThere => Err(no_node()),
            // Also what there is none of has another version.
            Deleted::OtherVersion => match self.shared.find(path, false, deadline).await? {
                None => Err(no_node()),
                Some(_) => Err(StoreError::BadVersion { path: path.to_owned() }),
            },
        }
    }

    /// Arms a watch, reads, and leaves the watch armed unless the read failed (invariant 2).
    async fn watched<T>(
        &self,
        arm: impl Fn(&mut watches::Watches) -> Option<(Armed, Watch)>,
        read: impl Future<Output = Result<T, StoreError>>,
        settled: impl FnOnce(&T) -> Read<'_>,
        deadline: Instant,
    ) -> Result<(T, Watch), StoreError> {
        let (armed, watch) = self.shared.armed(arm, deadline).await?;
        // Cancelled or failed here: the watch is dropped, and swept from the table later.
        let found = read.await?;
        self.shared.watches.lock().settle(armed, settled(&found));
        Ok((found, watch))
    }
}

/// What came of a write.
enum Put {
    Done(proto::Version),
    /// The record has another version than was expected, or is not there.
    OtherVersion,
    /// The session that it was to belong to is gone.
    NoSession,
}

/// What came of a deletion.
enum Deleted {
    Done,
    NotThere,
    OtherVersion,
}

fn check_path(path: &str) -> Result<(), StoreError> {
    let rest = path.strip_prefix('/');
    let well_formed = rest.is_some_and(|rest| {
        rest.is_empty() || !rest.split('/').any(|part| part.is_empty() || part == "." || part == "..")
    });
    if well_formed { Ok(()) } else { Err(StoreError::Protocol(format!("{path:?} is not a path"))) }
}

fn check_size(path: &str, data: &[u8]) -> Result<(), StoreError> {
    match data.len() > VALUE_SIZE_BYTES_MAX {
        true => Err(StoreError::TooLarge { path: path.into(), size_bytes: data.len() }),
        false => Ok(()),
    }
}

/// The identity of clients whose session of this store has this id.
fn identity_of(session: SessionId) -> String {
    format!("bindery-{:016x}", session.0)
}

/// The session that owns a record. One of another client, which has no such identity, gets an id that none of ours has.
fn owner_of(version: &proto::Version) -> Option<SessionId> {
    let session = version.session_id?;
    let identity = version.client_identity.as_deref().unwrap_or_default();
    let ours = identity.strip_prefix("bindery-").and_then(|digits| i64::from_str_radix(digits, 16).ok());
    let id = ours.filter(|id| *id > 0).unwrap_or_else(|| {
        let foreign = keys::hash(&format!("{identity} {session}"));
        -1 - i64::from(foreign)
    });
    Some(SessionId(id))
}

fn version_of(version: &proto::Version) -> Version {
    Version::new(version.version_id, version.modifications_count)
}

fn stat_of(version: &proto::Version) -> Stat {
    Stat {
        version: version_of(version),
        owner: owner_of(version),
        created_ms: i64::try_from(version.created_timestamp).unwrap_or(i64::MAX),
        children_count: None,
        next_sequence: u32::try_from(version.modifications_count.saturating_add(1)).unwrap_or(u32::MAX),
    }
}

fn node_of(path: &str, stored: Option<Stored>) -> Result<Node, StoreError> {
    let Stored { value, version, .. } = stored.ok_or_else(|| StoreError::NoNode { path: path.to_owned() })?;
    Ok(Node { data: value, stat: stat_of(&version) })
}

impl MetadataStore for OxiaStore {
    fn get(&self, path: &str) -> StoreFuture<'_, Node> {
        let path = path.to_owned();
        Box::pin(async move { node_of(&path, self.find(&path, self.deadline()).await?) })
    }

    fn get_and_watch(&self, path: &str) -> StoreFuture<'_, (Node, Watch)> {
        let path = path.to_owned();
        Box::pin(async move {
            let deadline = self.deadline();
            let read = async { node_of(&path, self.find(&path, deadline).await?) };
            self.watched(
                |watches| watches.arm_data(&path),
                read,
                |node: &Node| Read::Version(Some(node.stat.version.id())),
                deadline,
            )
            .await
        })
    }

    fn exists(&self, path: &str) -> StoreFuture<'_, Option<Stat>> {
        let path = path.to_owned();
        Box::pin(async move {
            check_path(&path)?;
            let found = self.shared.find(&path, false, self.deadline()).await?;
            Ok(found.map(|stored| stat_of(&stored.version)))
        })
    }

    fn exists_and_watch(&self, path: &str) -> StoreFuture<'_, (Option<Stat>, Watch)> {
        let path = path.to_owned();
        Box::pin(async move {
            check_path(&path)?;
            let deadline = self.deadline();
            let read = async {
                let found = self.shared.find(&path, false, deadline).await?;
                Ok(found.map(|stored| stat_of(&stored.version)))
            };
            self.watched(
                |watches| watches.arm_data(&path),
                read,
                |stat: &Option<Stat>| Read::Version(stat.map(|stat| stat.version.id())),
                deadline,
            )
            .await
        })
    }

    fn children(&self, path: &str) -> StoreFuture<'_, Vec<String>> {
        let path = path.to_owned();
        Box::pin(async move { self.names(&path, self.deadline()).await })
    }

    fn children_and_watch(&self, path: &str) -> StoreFuture<'_, (Vec<String>, Watch)> {
        let path = path.to_owned();
        Box::pin(async move {
            let deadline = self.deadline();
            let read = self.names(&path, deadline);
            self.watched(
                |watches| watches.arm_children(&path),
                read,
                |names: &Vec<String>| Read::Names(names),
                deadline,
            )
            .await
        })
    }

    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> StoreFuture<'_, Created> {
        let path = path.to_owned();
        Box::pin(async move { self.create_node(&path, data, mode).await })
    }

    fn set(&self, path: &str, data: Bytes, expected: Option<Version>) -> StoreFuture<'_, Stat> {
        let path = path.to_owned();
        Box::pin(async move { self.set_node(&path, data, expected).await })
    }

    fn delete(&self, path: &str, expected: Option<Version>) -> StoreFuture<'_, ()> {
        let path = path.to_owned();
        Box::pin(async move { self.delete_node(&path, expected).await })
    }

    fn is_transactional(&self) -> bool {
        false
    }

    fn skip_sequence(&self, parent: &str, next: u32) -> StoreFuture<'_, ()> {
        let parent = parent.to_owned();
        Box::pin(async move { self.skip_numbers(&parent, next).await })
    }

    fn multi(&self, _ops: Vec<Op>) -> StoreFuture<'_, ()> {
        Box::pin(std::future::ready(Err(StoreError::Unsupported("transactions (Oxia has none)"))))
    }

    fn sync(&self, path: &str) -> StoreFuture<'_, ()> {
        let path = path.to_owned();
        Box::pin(async move { self.shared.sync(&path, self.deadline()).await })
    }

    fn session(&self) -> watch::Receiver<SessionState> {
        self.state.clone()
    }

    fn session_credentials(&self) -> Option<SessionCredentials> {
        self.shared.session.borrow().as_ref().and_then(|session| session.credentials())
    }

    fn session_timeout(&self) -> Duration {
        self.shared.timeout
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.shared.closing.send_replace(true);
            let mut state = self.state.clone();
            // The keeper publishes the end, however it comes.
            let _ = state.wait_for(|state| *state == SessionState::Closed).await;
            match self.shared.is_closed_cleanly() {
                true => Ok(()),
                // Sessions of some shards may be closed.
                false => Err(StoreError::ConnectionLoss),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_node_is_its_clients_session_and_foreign_ones_are_told_apart() {
        let of = |identity: Option<&str>, session| {
            let client_identity = identity.map(str::to_owned);
            owner_of(&proto::Version { session_id: session, client_identity, ..proto::Version::default() })
        };
        let id = SessionId(0x1234_5678_9abc);
        assert_eq!(of(Some(&identity_of(id)), Some(7)), Some(id));
        assert_eq!(of(Some(&identity_of(id)), None), None, "not ephemeral");
        let foreign = [
            of(Some("dd0f"), Some(7)),
            of(Some("dd0f"), Some(8)),
            of(Some("dd10"), Some(7)),
            of(None, Some(7)),
            of(Some("bindery-0000000000000000"), Some(7)),
            of(Some("bindery-ffffffffffffffff"), Some(7)),
        ];
        for (at, one) in foreign.iter().enumerate() {
            assert!(one.is_some_and(|SessionId(id)| id < 0), "{one:?}");
            assert!(foreign[..at].iter().all(|other| other != one), "{foreign:?}");
        }
    }

    #[test]
    fn the_number_of_the_next_child_follows_the_writes() {
        let version = proto::Version { version_id: 900, modifications_count: 4, ..proto::Version::default() };
        let stat = stat_of(&version);
        assert_eq!((stat.next_sequence, stat.version), (5, Version::new(900, 4)));
        let version = proto::Version { modifications_count: i64::MAX, ..version };
        assert_eq!(stat_of(&version).next_sequence, u32::MAX);
    }
}
