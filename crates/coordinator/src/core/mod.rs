//! The coordinator's state machine: requests in, replies and changes out. No I/O, no clock. [`oxia`] has the requests of Oxia's clients.
//!
//! # Data flow
//! ```text
//! connect, request, tick -> tree, sessions, watches -> outputs, in order     -> connections, once durable
//!                                                   -> take_batch (changes)  -> store
//! ```
//!
//! # Invariants
//! 1. Outputs stand in the order in which they must reach each connection: the notification of a change before any
//!    reply that shows it.
//! 2. Every write takes a zxid of its own, also one that fails; none is given out above `zxid_ceiling` of a batch
//!    that was taken or is yet to be. A restart goes on behind the ceiling, so no zxid is used twice.
//! 3. The nodes of a session and the session itself go in one transaction.
//!
//! # Limits
//! `watches_max` and `watched_bytes_max` over all connections: beyond them the one that has most is dropped. `sessions_max`
//! sessions: beyond them a connection that adds one is dropped. [`IDENTITIES_MAX`] and [`CREDENTIALS_SIZE_MAX`] for a connection's `auth`, [`READS_BYTES_MAX`] for a
//! multiRead's answer, [`RULES_MAX`](crate::tree::acl::RULES_MAX) for a node.

mod auth;
mod multi;
pub(crate) mod oxia;
mod requests;
#[cfg(test)]
mod tests;

use crate::sessions::{SessionRecord, Sessions};
use crate::tree::acl::{Identity, PERM_READ, allows};
use crate::tree::{Committed, NodeRecord, Tree, Txn};
use crate::watches::{ConnectionId, Watches};
use crate::wire::{ConnectRequest, Malformed, Request, connect_response, notification};
use bindery_io::Random;
use bytes::Bytes;
use oxia::History;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// Zxids reserved with each batch. Failed writes use them up without one of their own.
const ZXID_RESERVE: i64 = 1 << 16;

/// Identities one connection may prove. Each request checks rules against all of them.
const IDENTITIES_MAX: usize = 64;
/// Largest credentials of an `auth` request.
const CREDENTIALS_SIZE_MAX: usize = 4 << 10;
/// Values and names that one multiRead may ask for: a small request could name a large node many thousand times.
const READS_BYTES_MAX: usize = 4 << 20;
/// The cost of a request besides its bytes while it is not durable.
const REQUEST_OVERHEAD_BYTES: usize = 512;

/// The state machine's part of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct CoreConfig {
    pub(crate) tick_ms: u64,
    pub(crate) session_timeout_min_ms: u32,
    pub(crate) session_timeout_max_ms: u32,
    pub(crate) tree_bytes_max: usize,
    pub(crate) watches_max: usize,
    pub(crate) watched_bytes_max: usize,
    pub(crate) sessions_max: usize,
    /// 0 without clients of Oxia.
    pub(crate) notifications_bytes_max: usize,
}

#[cfg(test)]
impl CoreConfig {
    /// Little room of everything.
    pub(crate) fn small() -> CoreConfig {
        CoreConfig {
            tick_ms: 1000,
            session_timeout_min_ms: 2000,
            session_timeout_max_ms: 20_000,
            tree_bytes_max: 1 << 20,
            watches_max: 100,
            watched_bytes_max: 1 << 20,
            sessions_max: 10,
            notifications_bytes_max: 1 << 20,
        }
    }
}

/// The two times a transaction needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) monotonic_ms: u64,
    pub(crate) wall_ms: i64,
}

/// Instructions to the shell, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    /// Send a frame, once everything that was changed so far is durable.
    Frame(ConnectionId, Bytes),
    /// Send what stands before it, then close.
    Close(ConnectionId),
    /// Close at once.
    Drop(ConnectionId),
}

/// Everything that changed since the last batch.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) nodes: BTreeMap<Arc<str>, Option<NodeRecord>>,
    pub(crate) sessions: BTreeMap<i64, Option<SessionRecord>>,
    /// New ones, with their offsets, ascending.
    pub(crate) notifications: Vec<(i64, Bytes)>,
    /// Those with lower offsets go.
    pub(crate) notifications_from: Option<i64>,
    /// No zxid above it was given out.
    pub(crate) zxid_ceiling: i64,
}

/// A connection, from the first byte to the last.
#[derive(Debug)]
struct Client {
    /// `None` until the connect request was answered.
    session: Option<i64>,
    identities: Vec<Identity>,
    /// Nothing more is read from it.
    is_closing: bool,
}

/// The state machine. One owner calls it under a lock.
pub(crate) struct Core {
    config: CoreConfig,
    tree: Tree,
    sessions: Sessions,
    watches: Watches,
    history: History,
    clients: HashMap<ConnectionId, Client>,
    random: Arc<dyn Random>,
    zxid: i64,
    zxid_ceiling: i64,
    /// Bytes of requests that changed something since the last batch, roughly.
    pending_bytes: usize,
}

impl Core {
    /// A core without nodes and sessions of its own, to be filled with [`Core::restore_node`] and
    /// [`Core::restore_session`]. `zxid` is the stored ceiling.
    pub(crate) fn new(config: CoreConfig, zxid: i64, now: Now, random: Arc<dyn Random>) -> Core {
        let tree = Tree::new(config.tree_bytes_max);
        let sessions = Sessions::new(config.tick_ms, now.monotonic_ms, now.wall_ms);
        let history = History::new(config.notifications_bytes_max);
        Core {
            config,
            tree,
            sessions,
            watches: Watches::default(),
            history,
            clients: HashMap::new(),
            random,
            zxid,
            zxid_ceiling: zxid,
            pending_bytes: 0,
        }
    }

    /// Takes in a stored session.
    pub(crate) fn restore_session(&mut self, id: i64, record: SessionRecord, now: Now) {
        self.sessions.restore(id, record, now.monotonic_ms);
    }

    /// Takes in a stored node, after its parent.
    pub(crate) fn restore_node(&mut self, path: &str, record: NodeRecord) -> Result<(), &'static str> {
        self.tree.restore(path, record)
    }

    /// Takes in stored notifications, in their order.
    pub(crate) fn restore_notifications(&mut self, offset: i64, encoded: Bytes) -> Result<(), &'static str> {
        oxia::readable(&encoded, &[]).map_err(|_| "a batch of notifications cannot be")?;
        self.history.restore(offset, encoded);
        Ok(())
    }

    /// Checks what was restored as a whole: core invariant 3 leaves no node without its session.
    pub(crate) fn finish_restore(&self) -> Result<(), &'static str> {
        let has_session = |owner| self.sessions.contains(owner);
        if self.tree.owners().all(has_session) { Ok(()) } else { Err("an ephemeral node has no session") }
    }

    /// A connection was accepted.
    pub(crate) fn on_connect(&mut self, connection: ConnectionId, peer: IpAddr) {
        let identities = vec![Identity { scheme: "ip", id: peer.to_string() }];
        self.clients.insert(connection, Client { session: None, identities, is_closing: false });
    }

    /// A connection has ended. Its session lives on.
    pub(crate) fn on_disconnect(&mut self, connection: ConnectionId) {
        self.watches.forget(connection);
        if let Some(Client { session: Some(session), .. }) = self.clients.remove(&connection) {
            self.sessions.disconnect(session, connection);
        }
    }

    /// The first frame of a connection.
    pub(crate) fn on_connect_request(
        &mut self,
        now: Now,
        connection: ConnectionId,
        frame: Bytes,
        out: &mut Vec<Output>,
    ) {
        let Some(client) = self.clients.get(&connection) else { return };
        assert!(client.session.is_none(), "a connection asks for its session once");
        let Ok(request) = ConnectRequest::parse(frame) else {
            out.push(Output::Drop(connection));
            return;
        };
        if request.last_zxid > self.zxid {
            // It has seen another server's future, or this one's data directory was replaced by an older one.
            tracing::warn!(
                client_zxid = request.last_zxid,
                zxid = self.zxid,
                "refused a client that has seen later changes than this coordinator has"
            );
            out.push(Output::Drop(connection));
            return;
        }
        let timeout_ms = u32::try_from(request.timeout_ms).unwrap_or(0);
        let timeout_ms =
            timeout_ms.clamp(self.config.session_timeout_min_ms, self.config.session_timeout_max_ms);
        let at = now.monotonic_ms;
        let granted = match request.session {
            0 if self.sessions.len() >= self.config.sessions_max => {
                tracing::warn!(sessions = self.sessions.len(), "too many sessions, refused a new one");
                out.push(Output::Drop(connection));
                return;
            }
            0 => {
                // ZooKeeper's sessions begin and end with a transaction.
                self.zxid += 1;
                self.pending_bytes += REQUEST_OVERHEAD_BYTES;
                Some(self.sessions.create(connection, timeout_ms, at, &*self.random))
            }
            id => self.sessions.resume(id, &request.password, connection, timeout_ms, at),
        };
        let Some(granted) = granted else {
            out.push(Output::Frame(connection, connect_response(None, request.has_read_only)));
            self.close(connection, out);
            return;
        };
        if let Some(before) = granted.moved_from {
            self.on_disconnect(before);
            out.push(Output::Drop(before));
        }
        if let Some(client) = self.clients.get_mut(&connection) {
            client.session = Some(granted.id);
        }
        let timeout_ms = i32::try_from(granted.record.timeout_ms).unwrap_or(i32::MAX);
        let answer = (timeout_ms, granted.id, &granted.record.password);
        out.push(Output::Frame(connection, connect_response(Some(answer), request.has_read_only)));
    }

    /// A tick: ends the sessions whose time is up. `was_stalled`: see [`Sessions::expired`].
    pub(crate) fn on_tick(&mut self, now: Now, was_stalled: bool, out: &mut Vec<Output>) {
        for session in self.sessions.expired(now.monotonic_ms, was_stalled) {
            tracing::info!(session = format_args!("{session:#x}"), "session expired");
            if let Some(connection) = self.end_session(now, session, out) {
                self.on_disconnect(connection);
                out.push(Output::Drop(connection));
            }
        }
    }

    /// Removes the nodes that go by themselves.
    pub(crate) fn on_container_check(&mut self, now: Now, out: &mut Vec<Output>) {
        for path in self.tree.abandoned(now.wall_ms) {
            let mut txn = self.begin(now);
            match self.tree.delete_container(&mut txn, &path) {
                Ok(()) => self.commit(txn, out),
                // Cannot be: none of them has children.
                Err(_) => self.tree.rollback(txn),
            }
        }
    }

    /// True when there is something to be made durable.
    pub(crate) fn has_changes(&self) -> bool {
        self.tree.has_changed() || self.sessions.has_changed() || self.zxid > self.zxid_ceiling
    }

    /// Bytes of requests whose changes [`Core::take_batch`] would give, roughly.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Everything that changed since the last call, in its final state.
    pub(crate) fn take_batch(&mut self) -> Batch {
        self.pending_bytes = 0;
        self.zxid_ceiling = self.zxid + ZXID_RESERVE;
        let (notifications, notifications_from) = self.history.take_changed();
        Batch {
            nodes: self.tree.take_changed(),
            sessions: self.sessions.take_changed(),
            notifications,
            notifications_from,
            zxid_ceiling: self.zxid_ceiling,
        }
    }

    /// What `stat`, `srvr` and `mntr` show.
    pub(crate) fn figures(&self) -> Figures {
        Figures {
            zxid: self.zxid,
            // ZooKeeper counts the root under both of its names.
            nodes: self.tree.len() + 1,
            size_bytes: self.tree.size_bytes(),
            ephemerals: self.tree.ephemerals_count(),
            watches: self.watches.len(),
            sessions: self.sessions.len(),
        }
    }

    fn begin(&mut self, now: Now) -> Txn {
        self.zxid += 1;
        Txn::new(self.zxid, now.wall_ms)
    }

    /// Puts a transaction into force and tells its watches (core invariant 1).
    fn commit(&mut self, txn: Txn, out: &mut Vec<Output>) {
        self.commit_with(txn, Vec::new(), out);
    }

    /// As [`Core::commit`]. Subscribers to notifications are told of ranges, in which records were deleted.
    fn commit_with(&mut self, txn: Txn, ranges: Vec<(String, String)>, out: &mut Vec<Output>) {
        let (zxid, time_ms) = (txn.zxid, txn.time_ms);
        let Committed { events, changes } = self.tree.commit(txn);
        self.history.record((zxid, time_ms), &self.tree, &changes, ranges);
        for event in events {
            let told = self.watches.fire(&event);
            if told.is_empty() {
                continue;
            }
            let frame = notification(event.kind, &event.path, Some(zxid));
            for connection in told {
                let Some(client) = self.clients.get(&connection) else { continue };
                if allows(&event.acl, PERM_READ, &client.identities) {
                    out.push(Output::Frame(connection, frame.clone()));
                }
            }
        }
    }

    /// Ends a session and its nodes (core invariant 3); gives its connection.
    fn end_session(&mut self, now: Now, session: i64, out: &mut Vec<Output>) -> Option<ConnectionId> {
        let mut txn = self.begin(now);
        self.tree.delete_ephemerals(&mut txn, session);
        let connection = self.sessions.remove(session);
        self.commit(txn, out);
        connection
    }

    fn close(&mut self, connection: ConnectionId, out: &mut Vec<Output>) {
        if let Some(client) = self.clients.get_mut(&connection) {
            client.is_closing = true;
        }
        out.push(Output::Close(connection));
    }
}

/// Counters of the core.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) zxid: i64,
    pub(crate) nodes: usize,
    pub(crate) size_bytes: usize,
    pub(crate) ephemerals: usize,
    pub(crate) watches: usize,
    pub(crate) sessions: usize,
}

/// A request that could be decoded, or not.
type Parsed = Result<Request, Malformed>;
