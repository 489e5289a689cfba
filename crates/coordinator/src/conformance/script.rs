//! What a script works with: named connections, and the transcript of what they send and get.

use std::collections::{BTreeMap, VecDeque};
use std::thread;
use std::time::Duration;

use super::connection::{Connect, Connected, Connection, Lost, PATIENCE};
use super::jute::Reader;
use super::render::{self, Symbols};
use super::request::{Request, op};

/// A script ends early: something it needs did not come. The reason is in the transcript.
pub(super) struct Stop;

pub(super) type Done = Result<(), Stop>;

const XID_NOTIFICATION: i32 = -1;
const XID_PING: i32 = -2;
const AUTH_FAILED: i32 = -115;
/// Let pass before data is set, so that the time of change differs from the time of creation.
const TICK: Duration = Duration::from_millis(3);

struct Client {
    connection: Connection,
    next_xid: i32,
    /// Sent, not yet answered.
    waiting: VecDeque<(i32, Request)>,
    session_id: i64,
    password: Vec<u8>,
}

/// A reply, for what a script goes on with.
pub(super) struct Reply {
    pub zxid: i64,
    code: i32,
}

enum Message {
    Reply(Reply),
    Event,
}

/// One run of one script.
pub(super) struct Script {
    address: String,
    text: String,
    symbols: Symbols,
    clients: BTreeMap<&'static str, Client>,
}

impl Script {
    /// Runs `body` against the server and returns the transcript.
    pub(super) fn run(address: &str, name: &str, body: fn(&mut Script) -> Done) -> String {
        let mut script = Script {
            address: address.into(),
            text: format!("# {name}\n"),
            symbols: Symbols::default(),
            clients: BTreeMap::new(),
        };
        if body(&mut script).is_err() {
            script.note("the script ends here");
        }
        // Sessions that are still open end now, so that they do not expire in the middle of another script.
        let names: Vec<_> = script.clients.keys().copied().collect();
        for who in names {
            script.end_quietly(who);
        }
        script.symbols.resolve(&script.text)
    }

    /// A heading or remark in the transcript.
    pub(super) fn note(&mut self, text: &str) {
        self.text += &format!("# {text}\n");
    }

    fn line(&mut self, who: &str, direction: char, text: &str) {
        self.text += &format!("{who}{direction} {text}\n");
    }

    fn lost(&mut self, who: &str, lost: &Lost) -> Stop {
        let text = match lost {
            Lost::Closed => "CLOSED BY THE SERVER".into(),
            Lost::Silent => "NO ANSWER".into(),
            Lost::Garbage(what) => format!("GARBAGE: {what}"),
        };
        self.line(who, '!', &text);
        self.clients.remove(who);
        Stop
    }

    fn client(&mut self, who: &str) -> &mut Client {
        self.clients.get_mut(who).expect("a script connects before it sends")
    }

    /// A TCP connection with nothing sent on it.
    pub(super) fn open(&mut self, who: &'static str) -> Done {
        match Connection::open(&self.address) {
            Ok(connection) => {
                let (waiting, password) = (VecDeque::new(), Vec::new());
                let client = Client { connection, next_xid: 1, waiting, session_id: 0, password };
                self.clients.insert(who, client);
                Ok(())
            }
            Err(error) => {
                self.line(who, '!', &format!("cannot connect to {}: {error}", self.address));
                Err(Stop)
            }
        }
    }

    /// A new connection with a new session of 30 s.
    pub(super) fn connect(&mut self, who: &'static str) -> Done {
        self.connect_with(who, Connect::default())
    }

    /// A new connection, and whatever answer there is to this connect request. A connection of that name that was
    /// open is dropped without a word.
    pub(super) fn connect_with(&mut self, who: &'static str, request: Connect) -> Done {
        self.open(who)?;
        let session = match self.symbols.known_session(request.session_id) {
            Some(symbol) => symbol,
            None => format!("unknown({:#x})", request.session_id),
        };
        let read_only = request.read_only.map_or("absent".into(), |read_only| read_only.to_string());
        self.line(
            who,
            '>',
            &format!("connect timeout={} session={session} readOnly={read_only}", request.timeout_ms),
        );
        self.client(who).connection.send_frame(&request.encode());
        let frame = match self.client(who).connection.receive(PATIENCE) {
            Ok(frame) => frame,
            Err(lost) => return Err(self.lost(who, &lost)),
        };
        let Some(reply) = Connected::parse(&frame) else {
            return Err(self.lost(who, &Lost::Garbage("a connect response cut short".into())));
        };
        let session = self.symbols.session(reply.session_id);
        let password = match reply.password.iter().all(|byte| *byte == 0) {
            true => format!("{} zeros", reply.password.len()),
            false => format!("{} bytes", reply.password.len()),
        };
        let read_only = match reply.read_only {
            None => "absent".into(),
            Some(0) => "false".to_string(),
            Some(1) => "true".into(),
            Some(other) => other.to_string(),
        };
        let mut text = format!(
            "connected timeout={} session={session} password={password} readOnly={read_only}",
            reply.timeout_ms
        );
        if reply.protocol_version != 0 || reply.extra != 0 {
            text += &format!(" protocolVersion={} extra={}", reply.protocol_version, reply.extra);
        }
        self.line(who, '<', &text);
        let client = self.client(who);
        (client.session_id, client.password) = (reply.session_id, reply.password);
        Ok(())
    }

    /// The connect request with which another connection takes up this one's session.
    pub(super) fn resume(&mut self, who: &str) -> Connect {
        let client = self.client(who);
        Connect { session_id: client.session_id, password: client.password.clone(), ..Connect::default() }
    }

    /// Drops a connection without closing its session.
    pub(super) fn drop_connection(&mut self, who: &str) {
        self.line(who, '!', "the client drops the connection");
        self.clients.remove(who);
    }

    pub(super) fn send(&mut self, who: &str, request: Request) {
        if let Request::SetData { .. } | Request::Multi { .. } = request {
            thread::sleep(TICK);
        }
        self.line(who, '>', &request.describe());
        let client = self.client(who);
        let xid = request.fixed_xid().unwrap_or_else(|| {
            client.next_xid += 1;
            client.next_xid - 1
        });
        client.connection.send_frame(&request.encode(xid));
        client.waiting.push_back((xid, request));
    }

    /// Sends several requests in one write.
    pub(super) fn send_together(&mut self, who: &str, requests: Vec<Request>) {
        thread::sleep(TICK);
        let mut bytes = Vec::new();
        for request in requests {
            self.line(who, '>', &request.describe());
            let client = self.client(who);
            let xid = request.fixed_xid().unwrap_or_else(|| {
                client.next_xid += 1;
                client.next_xid - 1
            });
            let body = request.encode(xid);
            bytes.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
            bytes.extend_from_slice(&body);
            client.waiting.push_back((xid, request));
        }
        self.client(who).connection.send_bytes(&bytes);
    }

    /// Sends bytes that are no frame of ours.
    pub(super) fn send_bytes(&mut self, who: &str, what: &str, bytes: &[u8]) {
        self.line(who, '>', what);
        self.client(who).connection.send_bytes(bytes);
    }

    pub(super) fn end_sending(&mut self, who: &str) {
        self.line(who, '>', "end of the stream");
        self.client(who).connection.end_sending();
    }

    fn receive_within(&mut self, who: &str, patience: Duration) -> Result<Message, Lost> {
        let frame = self.client(who).connection.receive(patience)?;
        let mut input = Reader(&frame);
        let header = (|| Ok::<_, super::jute::Short>((input.i32()?, input.i64()?, input.i32()?)))();
        let Ok((xid, zxid, code)) = header else {
            return Err(Lost::Garbage("a reply cut short".into()));
        };
        if xid == XID_NOTIFICATION {
            let text = render::event(input.0, zxid, &mut self.symbols);
            self.line(who, '!', &text);
            return Ok(Message::Event);
        }
        let Some((expected, request)) = self.client(who).waiting.pop_front() else {
            return Err(Lost::Garbage(format!("a reply with xid {xid} to nothing")));
        };
        let record = input.0;
        if request.opcode() != op::PING || code != 0 || !record.is_empty() {
            let mut text = render::reply(&request, zxid, code, record, &mut self.symbols);
            if xid != expected {
                text += " OUT OF ORDER";
            }
            self.line(who, '<', &text);
        }
        Ok(Message::Reply(Reply { zxid, code }))
    }

    /// The next reply; notifications before it are written down.
    pub(super) fn reply(&mut self, who: &str) -> Result<Reply, Stop> {
        loop {
            match self.receive_within(who, PATIENCE) {
                Ok(Message::Reply(reply)) => return Ok(reply),
                Ok(Message::Event) => {}
                Err(lost) => return Err(self.lost(who, &lost)),
            }
        }
    }

    pub(super) fn call(&mut self, who: &str, request: Request) -> Result<Reply, Stop> {
        self.send(who, request);
        self.reply(who)
    }

    /// Several calls after another.
    pub(super) fn calls(&mut self, who: &str, requests: Vec<Request>) -> Done {
        for request in requests {
            self.call(who, request)?;
        }
        Ok(())
    }

    /// Everything that was sent to `who` up to now: what comes before the answer to a ping.
    pub(super) fn drain(&mut self, who: &str) -> Done {
        let client = self.client(who);
        client.connection.send_frame(&Request::ping().encode(XID_PING));
        client.waiting.push_back((XID_PING, Request::ping()));
        self.reply(who).map(drop)
    }

    /// Waits for the next notification, keeping the session alive meanwhile; at most `seconds`. A ping that it crossed is
    /// answered when this returns: the next reply is that of the next call.
    pub(super) fn wait_for_event(&mut self, who: &str, seconds: u32) -> Done {
        let mut silent = 0;
        while silent < seconds {
            match self.receive_within(who, Duration::from_secs(1)) {
                Ok(Message::Event) => {
                    while self.client(who).waiting.iter().any(|(xid, _)| *xid == XID_PING) {
                        self.reply(who)?;
                    }
                    return Ok(());
                }
                Ok(Message::Reply(_)) => {}
                Err(Lost::Silent) => {
                    silent += 1;
                    let client = self.client(who);
                    client.connection.send_frame(&Request::ping().encode(XID_PING));
                    client.waiting.push_back((XID_PING, Request::ping()));
                }
                Err(lost) => return Err(self.lost(who, &lost)),
            }
        }
        self.line(who, '!', "NO NOTIFICATION");
        Err(Stop)
    }

    /// The server must close the connection; the frames that it sends before are recorded.
    pub(super) fn closed(&mut self, who: &str) -> Done {
        loop {
            match self.receive_within(who, PATIENCE) {
                Ok(_) => {}
                Err(Lost::Closed) => {
                    self.line(who, '!', "closed by the server");
                    self.clients.remove(who);
                    return Ok(());
                }
                Err(lost) => return Err(self.lost(who, &lost)),
            }
        }
    }

    /// One reply, or the end of the connection: whichever the server chooses is written down. True for a reply that
    /// is no refusal of the whole connection.
    pub(super) fn reply_or_end(&mut self, who: &str) -> Result<bool, Stop> {
        match self.receive_within(who, PATIENCE) {
            Ok(Message::Reply(reply)) => {
                if reply.code == AUTH_FAILED {
                    self.closed(who)?;
                }
                Ok(reply.code != AUTH_FAILED)
            }
            Ok(Message::Event) => Ok(true),
            Err(Lost::Closed) => {
                self.line(who, '!', "closed by the server");
                self.clients.remove(who);
                Ok(false)
            }
            Err(lost) => Err(self.lost(who, &lost)),
        }
    }

    /// Everything the server sends until it closes.
    pub(super) fn read_to_end(&mut self, who: &str) -> Result<Vec<u8>, Stop> {
        match self.client(who).connection.receive_all() {
            Ok(bytes) => {
                self.clients.remove(who);
                Ok(bytes)
            }
            Err(lost) => Err(self.lost(who, &lost)),
        }
    }

    pub(super) fn said(&mut self, who: &str, text: &str) {
        self.line(who, '<', text);
    }

    /// Closes the session and waits for the server to close the connection.
    pub(super) fn close(&mut self, who: &str) -> Done {
        self.call(who, Request::close())?;
        self.closed(who)
    }

    /// How the transcript writes a zxid that a script hands back to the server.
    pub(super) fn symbol(&mut self, zxid: i64) -> String {
        self.symbols.zxid(zxid)
    }

    fn end_quietly(&mut self, who: &str) {
        let client = self.client(who);
        if client.session_id != 0 {
            client.connection.send_frame(&Request::close().encode(i32::MAX));
            while client.connection.receive(Duration::from_secs(5)).is_ok() {}
        }
        self.clients.remove(who);
    }
}
