//! The ZooKeeper driver. Only this module knows ZooKeeper.
//!
//! It speaks the client protocol itself (`wire`, `session`) because no published client lets a session's id and
//! password be kept and used again by a later process, and that is how a restarted bookie registers at once instead
//! of waiting for its own dead session (see [`connect`]). No second reactor and no unbounded queue come with it either.
//!
//! # Parts
//! `wire` bytes · `connection` the socket, up to the first answer · `probe` what a silent port is · `session` the task that owns it · `tls` streams of TLS · `sasl` the login ·
//! `files` looks at the files of both · [`Security`] what is protected, and how
//!
//! # Not here   ZooKeeper's own digest scheme (`addAuthInfo`), Kerberos, watches that survive a reconnect (they fire `Lost` instead)

mod connection;
mod files;
mod probe;
mod sasl;
mod security;
mod session;
mod tls;
mod wire;

pub use self::security::{SaslLogin, Security};
pub use bindery_tls::client::ClientFiles as TlsOptions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::security::Access;
use self::session::{First, Identity, REQUESTS_QUEUED_MAX, Request, Session, Shared, WatchKind};
use crate::fault::WaitFor;
use crate::store::{
    CreateMode, Created, MetadataStore, Node, Op, SessionCredentials, SessionId, SessionState, Stat,
    StoreError, StoreFuture, VALUE_SIZE_BYTES_MAX, Version, Watch,
};

/// The session timeout to request when none is configured (`zkTimeout`, BookKeeper's default).
pub const SESSION_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// Added to the wait for a first session, so that the last attempt can still report why it failed.
const LAST_WORDS_WAIT: Duration = Duration::from_millis(100);

/// How to connect.
#[derive(Debug, Clone)]
pub struct ZooKeeperOptions {
    /// Session timeout to ask for (`zkTimeout`). The server bounds it (2 to 20 of its ticks by default). Its answer counts
    /// from 100 ms up to twice this value, or 5 min if that is longer.
    pub session_timeout: Duration,
    /// A session of an earlier process of the same bookie, to be taken up again. The caller must hold the lock of the
    /// data directory the credentials lie in: two processes using one session keep breaking each other's connection.
    pub resume: Option<SessionCredentials>,
    /// TLS, SASL, and who may use new nodes.
    pub security: Security,
    /// How long [`connect`] tries for a first session, in place of the session timeout.
    pub connect_timeout: Option<Duration>,
    /// Which servers it waits for meanwhile.
    pub wait_for: WaitFor,
}

impl Default for ZooKeeperOptions {
    fn default() -> ZooKeeperOptions {
        ZooKeeperOptions {
            session_timeout: SESSION_TIMEOUT_DEFAULT,
            resume: None,
            security: Security::default(),
            connect_timeout: None,
            wait_for: WaitFor::default(),
        }
    }
}

/// A connection to a ZooKeeper ensemble under one session at a time. Dropping it leaves the session to time out (so a
/// later process can resume it); [`MetadataStore::close`] ends it.
pub struct ZooKeeperStore {
    requests: mpsc::Sender<Request>,
    shared: Arc<Shared>,
    state: watch::Receiver<SessionState>,
    /// The ACL of new nodes.
    access: Access,
    /// Requests are sent under this session or not at all.
    pinned: Option<SessionId>,
    /// `None` in a view, which ends with the store that has it.
    task: Option<JoinHandle<()>>,
}

/// Opens a session (or resumes one) with the first of `servers` that answers. They are tried in random order, so that the clients
/// of an ensemble are spread over it. A fault that is waited out is logged once, as soon as it is known.
///
/// # Errors
/// [`StoreError::Unreachable`] when no server opened a session in time, or as soon as none is worth waiting for ([`WaitFor`]);
/// [`StoreError::Untrusted`] as soon as all of them were found not to be trusted, or not to trust us; [`StoreError::AuthFailed`]
/// when one refuses the credentials.
pub async fn connect(servers: &[String], options: ZooKeeperOptions) -> Result<ZooKeeperStore, StoreError> {
    let wait = options.connect_timeout.unwrap_or(options.session_timeout);
    let (sender, mut state) = watch::channel(SessionState::Connecting);
    let identity = Identity { credentials: options.resume, timeout: options.session_timeout };
    let shared = Arc::new(Shared {
        state: sender,
        identity: parking_lot::Mutex::new(identity),
        faults: parking_lot::Mutex::new(BTreeMap::new()),
    });
    let (requests, queue) = mpsc::channel(REQUESTS_QUEUED_MAX);
    let access = options.security.access();
    let first = First { wait_for: options.wait_for, begun: Instant::now(), timeout: wait };
    let session = Session::new(
        servers.to_vec(),
        options.session_timeout,
        first,
        options.security,
        shared.clone(),
        queue,
    );
    let task = tokio::spawn(session.run());
    let store =
        ZooKeeperStore { requests, shared, state: state.clone(), access, pinned: None, task: Some(task) };
    let connected = state.wait_for(|state| {
        matches!(state, SessionState::Connected(_) | SessionState::AuthFailed(_) | SessionState::Closed)
    });
    // Slightly longer than the last attempt has: its fault says best what is wrong.
    let waited = match tokio::time::timeout(wait + LAST_WORDS_WAIT, connected).await {
        Ok(Ok(state)) => match state.clone() {
            SessionState::AuthFailed(why) => return Err(StoreError::AuthFailed { why }),
            SessionState::Closed => Duration::ZERO,
            _ => return Ok(store),
        },
        Ok(Err(_)) => return Err(StoreError::Closed),
        Err(_) => wait,
    };
    let faults = store.shared.faults(servers);
    match waited.is_zero() && faults.are_all_untrusted() {
        true => Err(StoreError::Untrusted { why: faults.to_string() }),
        false => Err(StoreError::Unreachable { waited, faults }),
    }
}

impl Drop for ZooKeeperStore {
    fn drop(&mut self) {
        // The task holds nothing but the socket; ending it at any await leaves the session to its timeout.
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl ZooKeeperStore {
    /// Sends one request and waits for its reply: the server's error code, which the caller must check, the record, and the watch,
    /// if `watch` (kind and path) asked for one. Waits while the queue is full. A request that finds no connection within a session
    /// timeout fails without having been sent ([`session`], invariant 4).
    async fn call(
        &self,
        opcode: i32,
        body: BytesMut,
        watch: Option<(WatchKind, String)>,
    ) -> Result<(i32, Bytes, Option<Watch>), StoreError> {
        let (reply, answer) = oneshot::channel();
        let deadline = Instant::now() + self.session_timeout();
        let request = Request { opcode, body, watch, reply, deadline, session: self.pinned };
        let ended = || match self.state.borrow().clone() {
            SessionState::AuthFailed(why) => StoreError::AuthFailed { why },
            _ => StoreError::Closed,
        };
        self.requests.send(request).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }

    async fn read(
        &self,
        opcode: i32,
        path: String,
        kind: Option<WatchKind>,
    ) -> Result<(i32, Bytes, Option<Watch>), StoreError> {
        check_path(&path)?;
        let mut body = BytesMut::with_capacity(path.len() + 8);
        wire::put_buffer(&mut body, path.as_bytes());
        body.extend_from_slice(&[u8::from(kind.is_some())]);
        let (error, body, watch) = self.call(opcode, body, kind.map(|kind| (kind, path.clone()))).await?;
        match error {
            wire::OK => Ok((error, body, watch)),
            wire::ERR_NO_NODE if opcode == wire::OP_EXISTS => Ok((error, body, watch)),
            _ => Err(wire::error_of(error, &path)),
        }
    }

    async fn node(&self, path: String, kind: Option<WatchKind>) -> Result<(Node, Option<Watch>), StoreError> {
        let (_, mut body, watch) = self.read(wire::OP_GET_DATA, path, kind).await?;
        let data = wire::get_buffer(&mut body)?;
        Ok((Node { data, stat: wire::get_stat(&mut body)? }, watch))
    }

    async fn stat(
        &self,
        path: String,
        kind: Option<WatchKind>,
    ) -> Result<(Option<Stat>, Option<Watch>), StoreError> {
        let (error, mut body, watch) = self.read(wire::OP_EXISTS, path, kind).await?;
        let stat = if error == wire::OK { Some(wire::get_stat(&mut body)?) } else { None };
        Ok((stat, watch))
    }

    async fn names(
        &self,
        path: String,
        kind: Option<WatchKind>,
    ) -> Result<(Vec<String>, Option<Watch>), StoreError> {
        let (_, mut body, watch) = self.read(wire::OP_GET_CHILDREN, path, kind).await?;
        let mut names = wire::get_strings(&mut body)?;
        names.sort_unstable();
        Ok((names, watch))
    }

    async fn write(&self, op: Op) -> Result<Bytes, StoreError> {
        check_op(&op)?;
        let (opcode, body) = wire::write_request(&op, self.access);
        let (error, body, _) = self.call(opcode, body, None).await?;
        match error {
            wire::OK => Ok(body),
            code => Err(wire::error_of(code, wire::path_of(&op))),
        }
    }
}

fn check_path(path: &str) -> Result<(), StoreError> {
    let rest = path.strip_prefix('/');
    let well_formed = rest.is_some_and(|rest| {
        rest.is_empty() || !rest.split('/').any(|part| part.is_empty() || part == "." || part == "..")
    });
    if well_formed { Ok(()) } else { Err(StoreError::Protocol(format!("{path:?} is not a path"))) }
}

fn check_op(op: &Op) -> Result<(), StoreError> {
    check_path(wire::path_of(op))?;
    match op {
        Op::Create { path, data, .. } | Op::Set { path, data, .. } if data.len() > VALUE_SIZE_BYTES_MAX => {
            Err(StoreError::TooLarge { path: path.clone(), size_bytes: data.len() })
        }
        _ => Ok(()),
    }
}

/// A read that asked for a watch and succeeded has one.
fn armed(watch: Option<Watch>) -> Watch {
    watch.expect("the session arms a watch with every successful read that asks for one")
}

impl MetadataStore for ZooKeeperStore {
    fn get(&self, path: &str) -> StoreFuture<'_, Node> {
        let path = path.to_string();
        Box::pin(async move { Ok(self.node(path, None).await?.0) })
    }

    fn get_and_watch(&self, path: &str) -> StoreFuture<'_, (Node, Watch)> {
        let path = path.to_string();
        Box::pin(async move {
            let (node, watch) = self.node(path, Some(WatchKind::Data)).await?;
            Ok((node, armed(watch)))
        })
    }

    fn exists(&self, path: &str) -> StoreFuture<'_, Option<Stat>> {
        let path = path.to_string();
        Box::pin(async move { Ok(self.stat(path, None).await?.0) })
    }

    fn exists_and_watch(&self, path: &str) -> StoreFuture<'_, (Option<Stat>, Watch)> {
        let path = path.to_string();
        Box::pin(async move {
            let (stat, watch) = self.stat(path, Some(WatchKind::Data)).await?;
            Ok((stat, armed(watch)))
        })
    }

    fn children(&self, path: &str) -> StoreFuture<'_, Vec<String>> {
        let path = path.to_string();
        Box::pin(async move { Ok(self.names(path, None).await?.0) })
    }

    fn children_and_watch(&self, path: &str) -> StoreFuture<'_, (Vec<String>, Watch)> {
        let path = path.to_string();
        Box::pin(async move {
            let (names, watch) = self.names(path, Some(WatchKind::Children)).await?;
            Ok((names, armed(watch)))
        })
    }

    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> StoreFuture<'_, Created> {
        let op = Op::Create { path: path.to_string(), data, mode };
        Box::pin(async move {
            let path = wire::get_string(&mut self.write(op).await?)?;
            Ok(Created { path, version: Version::counted(0) })
        })
    }

    fn set(&self, path: &str, data: Bytes, expected: Option<Version>) -> StoreFuture<'_, Stat> {
        let op = Op::Set { path: path.to_string(), data, expected };
        Box::pin(async move { Ok(wire::get_stat(&mut self.write(op).await?)?) })
    }

    fn delete(&self, path: &str, expected: Option<Version>) -> StoreFuture<'_, ()> {
        let op = Op::Delete { path: path.to_string(), expected };
        Box::pin(async move { self.write(op).await.map(drop) })
    }

    fn is_transactional(&self) -> bool {
        true
    }

    fn pinned(&self, session: SessionId) -> Option<Arc<dyn MetadataStore>> {
        Some(Arc::new(ZooKeeperStore {
            requests: self.requests.clone(),
            shared: self.shared.clone(),
            state: self.state.clone(),
            access: self.access,
            pinned: Some(session),
            task: None,
        }))
    }

    fn skip_sequence(&self, _parent: &str, _next: u32) -> StoreFuture<'_, ()> {
        let why = "skipping numbers of sequential names (ZooKeeper counts children)";
        Box::pin(std::future::ready(Err(StoreError::Unsupported(why))))
    }

    fn multi(&self, ops: Vec<Op>) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            ops.iter().try_for_each(check_op)?;
            let body = wire::multi_request(&ops, self.access);
            if body.len() > VALUE_SIZE_BYTES_MAX {
                let path = ops.first().map(|op| wire::path_of(op).to_string()).unwrap_or_default();
                return Err(StoreError::TooLarge { path, size_bytes: body.len() });
            }
            let (error, body, _) = self.call(wire::OP_MULTI, body, None).await?;
            let failure =
                if error == wire::OK || !body.is_empty() { wire::multi_failure(body)? } else { None };
            match failure {
                Some((index, code)) => {
                    Err(wire::error_of(code, ops.get(index).map(wire::path_of).unwrap_or_default()))
                }
                None if error == wire::OK => Ok(()),
                None => Err(wire::error_of(error, ops.first().map(wire::path_of).unwrap_or_default())),
            }
        })
    }

    fn sync(&self, path: &str) -> StoreFuture<'_, ()> {
        let path = path.to_string();
        Box::pin(async move {
            check_path(&path)?;
            let mut body = BytesMut::new();
            wire::put_buffer(&mut body, path.as_bytes());
            match self.call(wire::OP_SYNC, body, None).await?.0 {
                wire::OK => Ok(()),
                code => Err(wire::error_of(code, &path)),
            }
        })
    }

    fn session(&self) -> watch::Receiver<SessionState> {
        self.state.clone()
    }

    fn session_credentials(&self) -> Option<SessionCredentials> {
        self.shared.identity.lock().credentials.clone()
    }

    fn session_timeout(&self) -> Duration {
        self.shared.identity.lock().timeout
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            match self.call(wire::OP_CLOSE_SESSION, BytesMut::new(), None).await {
                Ok(_) | Err(StoreError::Closed) => {}
                Err(other) => return Err(other),
            }
            // The task publishes the end just after it answers; an error means that it is gone already.
            let _ = self.state.clone().wait_for(|state| *state == SessionState::Closed).await;
            Ok(())
        })
    }
}
