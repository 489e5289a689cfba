//! Requests as a client sends them, and answers taken apart.

use bindery_types::MasterKey;
use bindery_wire::{ErrorCode, v2, v3};
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The key of all ledgers.
pub const KEY: MasterKey = MasterKey::new([7; 20]);
/// A key that is not theirs.
pub const OTHER_KEY: MasterKey = MasterKey::new([8; 20]);

/// The head that entries begin with (protocol reference, section 1.8), then `payload`.
fn entry(ledger: i64, entry: i64, lac: i64, payload: impl ExactSizeIterator<Item = u8>) -> Vec<u8> {
    let mut body = [ledger, entry, lac, payload.len() as i64].map(i64::to_be_bytes).concat();
    body.extend(payload);
    body
}

/// Beginnings of connections that no client makes: each ends its own.
pub const BAD_FRAMES: [&[u8]; 7] = [
    &[0x7f, 0xff, 0xff, 0xff, 2, 1],
    &[0xff, 0xff, 0xff, 0xff],
    &[0, 0, 0, 0],
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    &[0, 0, 0, 4, 2, 5, 0, 0],
    &[0, 0, 0, 6, 2, 2, 0, 0, 1, 2],
    &[0, 0, 0, 3, 0x0a, 0xff, 0xff],
];

/// An entry of `size` bytes behind its head, different for each entry id.
pub fn body(ledger: i64, entry_id: i64, lac: i64, size: usize) -> Vec<u8> {
    entry(ledger, entry_id, lac, (0..size).map(|i| (i as i64 * 31 + entry_id) as u8))
}

/// An entry that says "hello".
pub fn hello(ledger: i64, entry_id: i64) -> Vec<u8> {
    entry(ledger, entry_id, entry_id - 1, b"hello".iter().copied())
}

/// An add as a frame.
pub fn add_frame(ledger: i64, entry: i64, size: usize, flags: v2::Flags, key: MasterKey) -> BytesMut {
    let body = body(ledger, entry, entry - 1, size);
    framed(v2::Request::Add(v2::Add::new(flags, key, &body).unwrap()))
}

/// A request as a frame.
pub fn framed(request: v2::Request<'_>) -> BytesMut {
    let mut out = BytesMut::new();
    request.encode(&mut out);
    out
}

/// A v3 request as a frame.
pub fn framed_v3(txn_id: u64, operation: v3::Operation) -> BytesMut {
    let mut out = BytesMut::new();
    v3::put_frame(&v3::Request { txn_id, priority: 0, operation }.into_message(), &mut out);
    out
}

/// A plain read.
pub fn read_request(ledger_id: i64, entry_id: i64) -> v2::Read {
    v2::Read { version: 2, flags: v2::Flags::NONE, ledger_id, entry_id, master_key: None }
}

/// A fencing read.
pub fn fence_request(ledger_id: i64, entry_id: i64, key: MasterKey) -> v2::Read {
    v2::Read { flags: v2::Flags::DO_FENCING, master_key: Some(key), ..read_request(ledger_id, entry_id) }
}

/// A batch read.
pub fn batch_request(
    ledger_id: i64,
    start_entry_id: i64,
    request_id: i64,
    max_count: i32,
    max_size_bytes: i64,
) -> v2::Request<'static> {
    v2::Request::BatchRead(v2::BatchRead {
        version: 2,
        flags: v2::Flags::NONE,
        ledger_id,
        start_entry_id,
        request_id,
        max_count,
        max_size_bytes,
        master_key: None,
        stride: 1,
    })
}

/// The same batch read, with a stride.
pub fn strided(batch: v2::Request<'static>, stride: u32) -> v2::Request<'static> {
    let v2::Request::BatchRead(batch) = batch else { panic!("{batch:?} is no batch read") };
    v2::Request::BatchRead(v2::BatchRead { flags: v2::Flags::STRIDE, stride, ..batch })
}

/// An answer of v2 that owns its bytes.
#[derive(Debug, PartialEq)]
pub enum OwnedV2 {
    /// Code, ledger, entry.
    Add(ErrorCode, i64, i64),
    /// Code, ledger, entry, body.
    Read(ErrorCode, i64, i64, Vec<u8>),
    /// Code, request id, bodies.
    Batch(ErrorCode, i64, Vec<Vec<u8>>),
    /// Name of the plugin.
    Auth(String),
}

impl OwnedV2 {
    /// From the payload of a frame.
    pub fn of(payload: &[u8]) -> OwnedV2 {
        match v2::Response::decode(payload).unwrap() {
            v2::Response::Add { code, ledger_id, entry_id, .. } => OwnedV2::Add(code, ledger_id, entry_id),
            v2::Response::Read { code, ledger_id, entry_id, body, .. } => {
                OwnedV2::Read(code, ledger_id, entry_id, body.to_vec())
            }
            v2::Response::BatchRead { code, request_id, entries, .. } => {
                OwnedV2::Batch(code, request_id, entries.map(<[u8]>::to_vec).collect())
            }
            v2::Response::Auth { message, .. } => {
                OwnedV2::Auth(v3::decode_auth_message(message).unwrap().auth_plugin_name)
            }
        }
    }

    /// What became of an add or a read.
    pub fn code(&self) -> ErrorCode {
        match self {
            OwnedV2::Add(code, ..) | OwnedV2::Read(code, ..) | OwnedV2::Batch(code, ..) => *code,
            OwnedV2::Auth(_) => panic!("{self:?}"),
        }
    }
}

/// Sends a request and waits for its answer; no other request may be under way on the socket.
pub async fn exchange(socket: &mut TcpStream, request: v2::Request<'_>) -> OwnedV2 {
    socket.write_all(&framed(request)).await.unwrap();
    let len = socket.read_u32().await.unwrap();
    let mut payload = vec![0; len as usize];
    socket.read_exact(&mut payload).await.unwrap();
    OwnedV2::of(&payload)
}

/// The first line and the body of an answer to a request of the admin port.
pub async fn http(address: std::net::SocketAddr, method: &str, path: &str, body: &str) -> (String, String) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}
