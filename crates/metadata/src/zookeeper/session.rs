//! One ZooKeeper session: the task that owns the socket, the requests in flight and the armed watches.
//!
//! # Data flow
//! ```text
//! request -> queue (bounded) -> xid, write -> in flight -> reply, in order -> answer
//!                                              notification -> watches of that path fire
//! ```
//!
//! # Invariants
//! 1. Requests are answered in the order they were written; an answer out of order ends the connection.
//! 2. When a connection ends, everything in flight fails with `ConnectionLoss` and all watches fire `Lost`:
//!    the server forgets a connection's watches, and re-reading is always right.
//! 3. The state channel shows a new session before any request is sent under it.
//! 4. A request that waited longer than the session timeout without a server fails with `Unreachable`; it was not sent.
//! 5. Servers are tried in an order drawn at random at the start. Each may take a share of the session timeout, TLS included, before it
//!    is the next one's turn. A command, which tries each server once, divides its time among them equally.
//! 6. With SASL, each connection logs in before anything else is sent on it. A refused login ends the session for good.
//! 7. A session that was never open ends when no server of a round is worth waiting for ([`WaitFor`]). One that was open keeps trying:
//!    servers return, and certificates may be renewed meanwhile.
//! 8. Only whole frames count as signs of life: a server that sends a byte now and then is silent. The timeout that it grants is
//!    clamped ([`agreed_timeout`]), so that it can make us neither ping without a pause nor wait for hours.
//!
//! # Limits     `REQUESTS_QUEUED_MAX` waiting, `REQUESTS_IN_FLIGHT_MAX` written and not yet answered

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::connection::{Connection, Refused, Way, Writer, send, take_frame};
use super::security::Security;
use super::wire;
use crate::fault::{Fault, ServerFaults, WaitFor};
use crate::store::{SessionCredentials, SessionId, SessionState, StoreError, Watch, WatchEvent};

/// Requests waiting to be written; more wait in their callers.
pub(super) const REQUESTS_QUEUED_MAX: usize = 256;
/// Requests written and not yet answered (ZooKeeper throttles a server at 1000 over all clients).
const REQUESTS_IN_FLIGHT_MAX: usize = 256;
/// Pause after all servers were tried once, growing to the maximum.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(50);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);
/// The shortest share of the session timeout that a server gets (invariant 5).
const CONNECT_WAIT_MIN: Duration = Duration::from_millis(500);
/// When a server has been silent for this long, operators are told in the log, and the wait goes on.
const SILENCE_SAID_AFTER: Duration = Duration::from_millis(900);
/// A shorter session timeout would keep us busy with pings.
const SESSION_TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// A server may grant more than this only up to twice what we asked for.
const SESSION_TIMEOUT_MAX: Duration = Duration::from_secs(300);
/// Dead watches are swept when the table has doubled since the last sweep, at the earliest at this size.
const WATCHES_SWEEP_MIN: usize = 256;

/// Which changes of a path a watch is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum WatchKind {
    /// The value, creation, deletion.
    Data,
    /// The children, deletion.
    Children,
}

/// The answer to a request: error code, record, and the watch that was armed.
pub(super) type Reply = Result<(i32, Bytes, Option<Watch>), StoreError>;

/// A request on its way to the server.
pub(super) struct Request {
    pub opcode: i32,
    pub body: BytesMut,
    pub watch: Option<(WatchKind, String)>,
    pub reply: oneshot::Sender<Reply>,
    pub deadline: Instant,
    /// It is sent under this session or not at all.
    pub session: Option<SessionId>,
}

struct InFlight {
    xid: i32,
    opcode: i32,
    watch: Option<(WatchKind, String)>,
    reply: oneshot::Sender<Reply>,
}

/// What the task and the store that owns it share.
pub(super) struct Shared {
    pub state: watch::Sender<SessionState>,
    pub identity: parking_lot::Mutex<Identity>,
    /// Why the last attempt at each server failed; empty while there is a connection.
    pub faults: parking_lot::Mutex<BTreeMap<String, Fault>>,
}

impl Shared {
    /// What is wrong with each of `servers`.
    pub(super) fn faults(&self, servers: &[String]) -> ServerFaults {
        let faults = self.faults.lock();
        let fault = |server: &String| faults.get(server).cloned().unwrap_or(Fault::NotTried);
        ServerFaults(servers.iter().map(|server| (server.clone(), fault(server))).collect())
    }
}

/// Limits that hold until the first session is open.
pub(super) struct First {
    /// The servers to wait for.
    pub wait_for: WaitFor,
    /// When the attempt began.
    pub begun: Instant,
    /// How long it may take in all.
    pub timeout: Duration,
}

/// The current session's credentials and agreed timeout.
pub(super) struct Identity {
    pub credentials: Option<SessionCredentials>,
    pub timeout: Duration,
}

/// The task. `run` returns when the store is closed or dropped.
pub(super) struct Session {
    servers: Vec<String>,
    way: Arc<Way>,
    /// Asked for at each new session; the server may grant another.
    timeout_wanted: Duration,
    first: First,
    shared: Arc<Shared>,
    requests: mpsc::Receiver<Request>,
    /// Requests taken from the queue while there was no connection; at most `REQUESTS_QUEUED_MAX`.
    waiting: VecDeque<Request>,
    /// The highest transaction that was seen: a server that has not seen it is behind, and refuses this client. See
    /// [`Session::connect_request`].
    last_zxid: i64,
    /// When a server spoke to this session last.
    heard_at: Instant,
    next_xid: i32,
    watches: BTreeMap<(String, WatchKind), Vec<oneshot::Sender<WatchEvent>>>,
    watches_sweep_at: usize,
    /// What was last logged for operators about each server since the last connection.
    warned_of: BTreeMap<String, String>,
    has_said_waiting: bool,
    explained: Explained,
}

/// How long the result of a probe is kept: each probe opens connections, and a server in an election has few to spare.
const EXPLANATION_KEPT: Duration = Duration::from_secs(10);

/// Faults of servers that were probed ([`super::probe`]), by server.
#[derive(Default)]
struct Explained(BTreeMap<String, (Instant, Fault)>);

impl Explained {
    fn may_look(&self, server: &str) -> bool {
        self.0.get(server).is_none_or(|(at, _)| at.elapsed() >= EXPLANATION_KEPT)
    }

    fn note(&mut self, server: &str, fault: Fault) -> Fault {
        self.0.insert(server.to_owned(), (Instant::now(), fault.clone()));
        fault
    }

    /// The fault to report: what an earlier probe found out, as long as the server still closes connections or says nothing.
    fn recall(&mut self, server: &str, fault: Fault) -> Fault {
        let is_unexplained = matches!(fault, Fault::Closed(_) | Fault::Mute(_));
        match self.0.get(server) {
            Some((_, explained @ (Fault::WrongProtocol(_) | Fault::NotServing))) if is_unexplained => {
                explained.clone()
            }
            _ if is_unexplained => fault,
            // Another fault: should the server close connections again, it is worth another probe.
            _ => {
                self.0.remove(server);
                fault
            }
        }
    }
}

/// How a connection, or the attempt at one, ended.
enum End {
    /// Try again, with the same session.
    Lost(StoreError),
    /// The server no longer knows the session.
    Expired,
    /// There is no login; why.
    AuthFailed(Arc<str>),
    /// The session was closed on request, or the store was dropped.
    Closed,
}

impl From<StoreError> for End {
    fn from(error: StoreError) -> End {
        match error {
            StoreError::SessionExpired => End::Expired,
            StoreError::AuthFailed { why } => End::AuthFailed(why),
            other => End::Lost(other),
        }
    }
}

fn lost(why: impl std::fmt::Display) -> End {
    debug!(%why, "metadata connection");
    End::Lost(StoreError::ConnectionLoss)
}

impl Session {
    pub(super) fn new(
        servers: Vec<String>,
        timeout_wanted: Duration,
        first: First,
        security: Security,
        shared: Arc<Shared>,
        requests: mpsc::Receiver<Request>,
    ) -> Session {
        assert!(!servers.is_empty(), "a URI names at least one server");
        Session {
            servers: shuffled(servers),
            way: Arc::new(Way::new(security)),
            timeout_wanted,
            first,
            shared,
            requests,
            waiting: VecDeque::new(),
            last_zxid: 0,
            heard_at: Instant::now(),
            next_xid: 1,
            watches: BTreeMap::new(),
            watches_sweep_at: WATCHES_SWEEP_MIN,
            warned_of: BTreeMap::new(),
            has_said_waiting: false,
            explained: Explained::default(),
        }
    }

    pub(super) async fn run(mut self) {
        let final_state = loop {
            let end = match self.connect().await {
                Ok(connection) => self.serve(connection).await,
                Err(end) => end,
            };
            self.lose_watches();
            let id = self.session_id();
            match end {
                End::Lost(why) => {
                    if let Some(id) = id {
                        let server = self.servers.first().map(String::as_str);
                        info!(server, session = %id, %why, "lost the connection to the metadata store, reconnecting");
                        self.publish(SessionState::Suspended(id));
                    }
                    // Another server may do better, and one that accepts and closes at once is not hammered.
                    self.servers.rotate_left(1);
                    if let End::Closed = self.collect_requests(Some(Instant::now() + RETRY_PAUSE_MIN)).await {
                        break SessionState::Closed;
                    }
                }
                End::Expired => {
                    self.shared.identity.lock().credentials = None;
                    if let Some(id) = id {
                        warn!(session = %id, "the metadata store no longer knows our session; opening a new one");
                        self.publish(SessionState::Expired(id));
                    }
                    // These were meant for the session that is gone, and were never sent.
                    for request in self.waiting.drain(..) {
                        let _ = request.reply.send(Err(StoreError::SessionExpired));
                    }
                }
                End::AuthFailed(why) => break SessionState::AuthFailed(why),
                End::Closed => break SessionState::Closed,
            }
        };
        // Published before the queue closes, so that a caller who finds it closed can read why.
        self.publish(final_state.clone());
        self.requests.close();
        while let Some(request) = self.next_request().await {
            let _ = request.reply.send(Err(match final_state.clone() {
                SessionState::AuthFailed(why) => StoreError::AuthFailed { why },
                _ => StoreError::Closed,
            }));
        }
    }

    /// The message for a server that refuses requests without a login: its name, its reason and a remedy.
    fn login_wanted(&self, why: &str) -> Arc<str> {
        let server = self.servers.first().map_or("the server", String::as_str);
        format!("{server}: {why}; give the user for SASL that it knows (section Client of the JAAS file, or zkSaslUser)").into()
    }

    fn session_id(&self) -> Option<SessionId> {
        self.shared.identity.lock().credentials.as_ref().map(|credentials| credentials.id)
    }

    fn publish(&self, state: SessionState) {
        self.shared.state.send_if_modified(|current| {
            let is_new = *current != state;
            *current = state;
            is_new
        });
    }

    fn lose_watches(&mut self) {
        for sender in std::mem::take(&mut self.watches).into_values().flatten() {
            let _ = sender.send(WatchEvent::Lost);
        }
    }

    /// The next request in order. `None` once the store was dropped. Cancellation safe, as `recv` is.
    async fn next_request(&mut self) -> Option<Request> {
        match self.waiting.pop_front() {
            Some(request) => Some(request),
            None => self.requests.recv().await,
        }
    }

    /// Tries the servers in turn until one accepts the session.
    async fn connect(&mut self) -> Result<Connection, End> {
        let mut pause = RETRY_PAUSE_MIN;
        loop {
            for server in self.servers.clone() {
                let (frame, agreed) = self.connect_request();
                let wait = self.wait_for_one(agreed);
                let explains = self.is_first() && self.explained.may_look(&server);
                let way = self.way.clone();
                let is_connected = AtomicBool::new(false);
                // To be reported if the time runs out during this attempt.
                self.shared.faults.lock().entry(server.clone()).or_insert(Fault::Silent(wait));
                let opening = Connection::open(&server, &way, frame, &is_connected, explains);
                let handshake = timeout(wait, opening);
                tokio::pin!(handshake);
                let said_at = self.first.begun + SILENCE_SAID_AFTER;
                // Dropping the handshake drops its socket; the server keeps a session it may have opened until that
                // session times out, which harms nobody.
                let answer = loop {
                    let is_quiet = self.is_quiet();
                    tokio::select! {
                        answer = &mut handshake => break answer,
                        end = self.collect_requests(None) => return Err(end),
                        () = sleep_until(said_at), if is_quiet => {
                            let fault = silence(&is_connected, SILENCE_SAID_AFTER);
                            self.shared.faults.lock().insert(server.clone(), fault);
                            self.say_waiting();
                        }
                    }
                };
                let fault = match answer {
                    Ok(Ok((_, response))) if self.refuses_new_session(&response) => {
                        Fault::Other("it opens no session".to_owned())
                    }
                    Ok(Ok((connection, response))) => {
                        self.adopt(response)?;
                        info!(server, session = %self.session_id().map(|id| id.to_string()).unwrap_or_default(),
                            "connected to the metadata store");
                        self.shared.faults.lock().clear();
                        self.warned_of.clear();
                        return Ok(connection);
                    }
                    Ok(Err(Refused::Fault(fault))) => fault,
                    Ok(Err(Refused::AuthFailed(why))) => {
                        let said = format!("{server}: {why}").into();
                        self.refused(&server, Fault::Untrusted(why));
                        return Err(End::AuthFailed(said));
                    }
                    Err(_) => silence(&is_connected, wait),
                };
                let fault = match explains {
                    true => self.explained.note(&server, fault),
                    false => self.explained.recall(&server, fault),
                };
                self.refused(&server, fault);
            }
            if self.is_first() {
                self.after_first_round()?;
            }
            match self.collect_requests(Some(Instant::now() + pause)).await {
                End::Lost(_) => {}
                end => return Err(end),
            }
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
    }

    /// How long one server may take to open a session (invariant 5), when `all` is the time for all of them. A command tries each of
    /// them once; a service keeps some of the time for servers that come up meanwhile.
    fn wait_for_one(&self, all: Duration) -> Duration {
        let (all, shares) = match (self.is_first(), self.first.wait_for) {
            (true, WaitFor::Silent) => (self.first.timeout, self.servers.len()),
            (true, WaitFor::Down) => (self.first.timeout, self.servers.len() + 1),
            (false, _) => (all, self.servers.len() + 1),
        };
        (all / u32::try_from(shares).unwrap_or(u32::MAX)).max(CONNECT_WAIT_MIN)
    }

    /// Whether no session has been open yet.
    fn is_first(&self) -> bool {
        *self.shared.state.borrow() == SessionState::Connecting
    }

    /// Whether the wait for a first session is yet to be logged.
    fn is_quiet(&self) -> bool {
        self.first.wait_for == WaitFor::Down && self.is_first() && !self.has_said_waiting
    }

    fn say_waiting(&mut self) {
        let faults = self.shared.faults.lock();
        let faults = ServerFaults(faults.iter().map(|(at, fault)| (at.clone(), fault.clone())).collect());
        let left = (self.first.begun + self.first.timeout).saturating_duration_since(Instant::now());
        warn!(%faults, "no metadata server can be reached yet: trying for another {:.0} s", left.as_secs_f64());
        self.has_said_waiting = true;
    }

    /// Ends the session if no server is worth waiting for (invariant 7); otherwise logs, once, that it waits.
    fn after_first_round(&mut self) -> Result<(), End> {
        let faults = self.shared.faults(&self.servers);
        if !faults.0.iter().any(|(_, fault)| fault.is_waited_for(self.first.wait_for)) {
            return Err(End::Closed);
        }
        if self.is_quiet() {
            self.say_waiting();
        }
        Ok(())
    }

    /// Notes why a server gives no session, and warns if it is news that an operator must know.
    fn refused(&mut self, server: &str, fault: Fault) {
        let why = format!("{server}: {fault}");
        let is_for_operators = matches!(fault, Fault::Untrusted(_));
        let is_new =
            is_for_operators && self.warned_of.insert(server.to_owned(), why.clone()).as_ref() != Some(&why);
        match is_new {
            true => warn!(why, "cannot establish a secure connection to this metadata server"),
            false => debug!(why, "no session with this metadata server"),
        }
        self.shared.faults.lock().insert(server.to_owned(), fault);
    }

    /// The connect request for the current session, or for a new one, and the session timeout in force.
    ///
    /// A store that was put back from a copy has seen less than this client, and refuses it before it looks at the session. So what was
    /// seen is forgotten for a new session, to which nothing was shown yet, and once no server has spoken for a whole session timeout: such
    /// a server then says that the session is gone. A server that only lags does not do so for that long.
    fn connect_request(&mut self) -> (BytesMut, Duration) {
        let identity = self.shared.identity.lock();
        if identity.credentials.is_none() || self.heard_at.elapsed() > identity.timeout {
            self.last_zxid = 0;
        }
        let new = ([0u8; 16].to_vec(), 0);
        let (password, session_id) = match &identity.credentials {
            Some(credentials) => (credentials.password.clone(), credentials.id.0),
            None => new,
        };
        let timeout_ms = i32::try_from(self.timeout_wanted.as_millis()).unwrap_or(i32::MAX);
        let request =
            wire::ConnectRequest { last_zxid: self.last_zxid, timeout_ms, session_id, password: &password };
        (request.frame(), identity.timeout)
    }

    /// Whether the server has declined to open a new session.
    fn refuses_new_session(&self, response: &wire::ConnectResponse) -> bool {
        !response.is_open() && self.shared.identity.lock().credentials.is_none()
    }

    /// Adopts the session that the server granted, and publishes it before anything is sent under it (invariant 3).
    fn adopt(&mut self, response: wire::ConnectResponse) -> Result<(), End> {
        let id = {
            let mut identity = self.shared.identity.lock();
            if !response.is_open() {
                return match identity.credentials {
                    Some(_) => Err(End::Expired),
                    None => Err(lost("the server refused to open a session")),
                };
            }
            let id = SessionId(response.session_id);
            identity.timeout = agreed_timeout(self.timeout_wanted, response.timeout_ms);
            identity.credentials = Some(SessionCredentials { id, password: response.password.to_vec() });
            id
        };
        self.heard_at = Instant::now();
        self.publish(SessionState::Connected(id));
        Ok(())
    }

    /// While there is no connection: takes requests in and fails the overdue ones (invariant 4). Returns
    /// `End::Lost` at `until`, `End::Closed` when the store was closed or dropped. Cancellation safe.
    async fn collect_requests(&mut self, until: Option<Instant>) -> End {
        loop {
            let now = Instant::now();
            if until.is_some_and(|until| until <= now) {
                return End::Lost(StoreError::ConnectionLoss);
            }
            self.fail_overdue(now);
            let wake = self.waiting.iter().map(|request| request.deadline).chain(until).min();
            tokio::select! {
                request = self.requests.recv(), if self.waiting.len() < REQUESTS_QUEUED_MAX => match request {
                    None => return End::Closed,
                    Some(request) if request.opcode == wire::OP_CLOSE_SESSION => {
                        // Without a connection the session ends by its timeout.
                        let _ = request.reply.send(Err(StoreError::ConnectionLoss));
                        return End::Closed;
                    }
                    Some(request) => self.waiting.push_back(request),
                },
                () = sleep_until(wake.unwrap_or(now)), if wake.is_some() => {}
            }
        }
    }

    fn fail_overdue(&mut self, now: Instant) {
        if !self.waiting.iter().any(|request| request.deadline <= now) {
            return;
        }
        let waited = self.shared.identity.lock().timeout;
        let faults = self.shared.faults(&self.servers);
        for request in std::mem::take(&mut self.waiting) {
            if request.deadline > now {
                self.waiting.push_back(request);
                continue;
            }
            let faults = faults.clone();
            let _ = request.reply.send(Err(StoreError::Unreachable { waited, faults }));
        }
    }

    async fn serve(&mut self, mut connection: Connection) -> End {
        let mut in_flight = VecDeque::new();
        let mut end = match self.exchange(&mut connection, &mut in_flight).await {
            Ok(never) => match never {},
            Err(end) => end,
        };
        let closing = in_flight.iter().any(|request: &InFlight| request.opcode == wire::OP_CLOSE_SESSION);
        if closing && matches!(end, End::Lost(_)) {
            end = End::Closed;
        }
        for request in in_flight {
            let _ = request.reply.send(match end {
                End::Expired => Err(StoreError::SessionExpired),
                End::AuthFailed(ref why) => Err(StoreError::AuthFailed { why: why.clone() }),
                End::Lost(_) | End::Closed => Err(StoreError::ConnectionLoss),
            });
        }
        end
    }

    /// Moves requests, replies, notifications and pings until the connection ends.
    async fn exchange(
        &mut self,
        connection: &mut Connection,
        in_flight: &mut VecDeque<InFlight>,
    ) -> Result<std::convert::Infallible, End> {
        let agreed = self.shared.identity.lock().timeout;
        let (ping_after, silence_max) = (agreed / 3, agreed * 2 / 3);
        let (mut last_sent, mut last_heard) = (Instant::now(), Instant::now());
        loop {
            while let Some(frame) = take_frame(&mut connection.buffer)? {
                last_heard = Instant::now();
                self.on_frame(frame, in_flight)?;
            }
            let Connection { reader, writer, buffer } = connection;
            let wake = (last_sent + ping_after).min(last_heard + silence_max);
            tokio::select! {
                read = reader.read_buf(buffer) => {
                    match read {
                        Ok(0) => return Err(lost("closed by the server")),
                        Ok(_) => {}
                        Err(error) => return Err(lost(error)),
                    }
                }
                request = self.next_request(), if in_flight.len() < REQUESTS_IN_FLIGHT_MAX => {
                    let Some(request) = request else { return Err(End::Closed) };
                    if request.session.is_some_and(|session| self.session_id() != Some(session)) {
                        let _ = request.reply.send(Err(StoreError::SessionExpired));
                        continue;
                    }
                    let frame = self.begin(request, in_flight);
                    write(writer, &frame, silence_max).await?;
                    last_sent = Instant::now();
                }
                () = sleep_until(wake) => {
                    let now = Instant::now();
                    if now >= last_heard + silence_max {
                        return Err(lost("silent server"));
                    }
                    if now >= last_sent + ping_after {
                        let mut ping = wire::begin_frame(wire::XID_PING, wire::OP_PING);
                        wire::finish_frame(&mut ping);
                        write(writer, &ping, silence_max).await?;
                        last_sent = Instant::now();
                    }
                }
            }
        }
    }

    /// Numbers a request and notes it as in flight: from here on its outcome is unknown until the reply.
    fn begin(&mut self, request: Request, in_flight: &mut VecDeque<InFlight>) -> BytesMut {
        let xid = self.next_xid;
        self.next_xid = if xid == i32::MAX { 1 } else { xid + 1 };
        let mut frame = wire::begin_frame(xid, request.opcode);
        frame.extend_from_slice(&request.body);
        wire::finish_frame(&mut frame);
        let Request { opcode, watch, reply, .. } = request;
        in_flight.push_back(InFlight { xid, opcode, watch, reply });
        frame
    }

    /// Handles one frame: fires the watches of a notification, or answers the oldest request in flight with its reply (invariant 1).
    /// An error ends the connection: a frame that is malformed or out of order, the end of the session, or a refused login.
    fn on_frame(&mut self, mut frame: Bytes, in_flight: &mut VecDeque<InFlight>) -> Result<(), End> {
        let header = wire::ReplyHeader::parse(&mut frame).map_err(StoreError::from)?;
        self.heard_at = Instant::now();
        match header.xid {
            wire::XID_NOTIFICATION => return self.on_notification(frame),
            wire::XID_PING => return Ok(()),
            _ => {}
        }
        let expected = in_flight.front().map(|request| request.xid);
        if expected != Some(header.xid) {
            let text = format!("reply {} while {expected:?} was due", header.xid);
            return Err(End::Lost(StoreError::Protocol(text)));
        }
        self.last_zxid = self.last_zxid.max(header.zxid);
        match wire::error_of(header.error, "") {
            StoreError::SessionExpired => return Err(End::Expired),
            StoreError::AuthFailed { why } => return Err(End::AuthFailed(self.login_wanted(&why))),
            _ => {}
        }
        let request = in_flight.pop_front().expect("its xid was just compared");
        let armed = match request.watch {
            Some((kind, path)) if leaves_watch(request.opcode, header.error) => Some(self.arm(path, kind)),
            _ => None,
        };
        let _ = request.reply.send(Ok((header.error, frame, armed)));
        match request.opcode {
            wire::OP_CLOSE_SESSION => Err(End::Closed),
            _ => Ok(()),
        }
    }

    fn on_notification(&mut self, mut frame: Bytes) -> Result<(), End> {
        let kind = wire::get_i32(&mut frame).map_err(StoreError::from)?;
        let _state = wire::get_i32(&mut frame).map_err(StoreError::from)?;
        let path = wire::get_string(&mut frame)?;
        let (event, kinds): (WatchEvent, &[WatchKind]) = match kind {
            1 => (WatchEvent::Created, &[WatchKind::Data]),
            2 => (WatchEvent::Deleted, &[WatchKind::Data, WatchKind::Children]),
            3 => (WatchEvent::DataChanged, &[WatchKind::Data]),
            4 => (WatchEvent::ChildrenChanged, &[WatchKind::Children]),
            other => return Err(End::Lost(StoreError::Protocol(format!("notification of type {other}")))),
        };
        for kind in kinds {
            for sender in self.watches.remove(&(path.clone(), *kind)).into_iter().flatten() {
                let _ = sender.send(event);
            }
        }
        Ok(())
    }

    fn arm(&mut self, path: String, kind: WatchKind) -> Watch {
        let (sender, watch) = Watch::new();
        let senders = self.watches.entry((path, kind)).or_default();
        senders.retain(|sender| !sender.is_closed());
        senders.push(sender);
        if self.watches.len() > self.watches_sweep_at {
            self.watches.retain(|_, senders| {
                senders.retain(|sender| !sender.is_closed());
                !senders.is_empty()
            });
            self.watches_sweep_at = (2 * self.watches.len()).max(WATCHES_SWEEP_MIN);
        }
        watch
    }
}

/// The session timeout that is used when a server grants this many milliseconds (invariant 8).
fn agreed_timeout(wanted: Duration, granted_ms: i32) -> Duration {
    let most = (wanted * 2).max(SESSION_TIMEOUT_MAX);
    Duration::from_millis(u64::from(granted_ms.unsigned_abs())).clamp(SESSION_TIMEOUT_MIN, most)
}

/// Whether the request left its watch armed at the server. A failed read does not, except that `exists` also watches a node that is
/// not there yet.
fn leaves_watch(opcode: i32, error: i32) -> bool {
    error == wire::OK || (opcode == wire::OP_EXISTS && error == wire::ERR_NO_NODE)
}

fn silence(is_connected: &AtomicBool, waited: Duration) -> Fault {
    if is_connected.load(Ordering::Relaxed) { Fault::Mute(waited) } else { Fault::Silent(waited) }
}

async fn write(writer: &mut Writer, frame: &[u8], wait: Duration) -> Result<(), End> {
    match timeout(wait, send(writer, frame)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(lost(error)),
        Err(_) => Err(lost("the server takes nothing")),
    }
}

/// The servers in random order, so that the clients of an ensemble are spread over it.
fn shuffled(mut servers: Vec<String>) -> Vec<String> {
    let random = RandomState::new();
    servers.sort_by_cached_key(|server| random.hash_one(server));
    servers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Invariant 8.
    #[test]
    fn a_server_grants_a_timeout_within_bounds() {
        let second = Duration::from_secs(1);
        for (wanted, granted_ms, agreed) in [
            (10 * second, 10_000, 10 * second),
            (10 * second, 4_000, 4 * second),
            (10 * second, 40_000, 40 * second),
            (10 * second, 1, SESSION_TIMEOUT_MIN),
            (10 * second, i32::MAX, 300 * second),
            (600 * second, i32::MAX, 1200 * second),
        ] {
            assert_eq!(agreed_timeout(wanted, granted_ms), agreed, "{granted_ms}");
        }
    }

    /// Invariant 5.
    #[test]
    fn no_server_is_always_the_first() {
        let servers: Vec<String> = (0..3).map(|at| format!("zk{at}:2181")).collect();
        let mut firsts = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let mut drawn = shuffled(servers.clone());
            firsts.insert(drawn[0].clone());
            drawn.sort();
            assert_eq!(drawn, servers, "none is lost");
        }
        assert_eq!(firsts.len(), 3);
    }
}
