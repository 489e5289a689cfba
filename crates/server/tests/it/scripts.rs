//! Strangers by chance (Z4): connections of START_TLS, AUTH, requests, records of TLS and garbage in any order, cut anywhere. None of
//! them proves its identity, so none of their requests may be served, in whatever order they come (IB6), and all memory that they held is
//! given back (IB20). A client that has logged in is served beside them.
//!
//! The scripts come from a seed. `BINDERY_SCRIPTS` and `BINDERY_SCRIPTS_SEED` ask for more, or others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::auth::{operations, users};
use crate::common::PATIENCE;
use crate::common::certificates::Authority;
use crate::common::frames::{KEY, OwnedV2, add_frame, fence_request, framed, framed_v3, read_request};
use crate::common::users::{exchange_v3, sasl_message};
use crate::common::wire::{Client, start_auth};
use crate::tls::{Wanted, with};
use bindery_io::SeededRandom;
use bindery_server::limits::Limits;
use bindery_wire::v3::{self, Operation, proto};
use bindery_wire::{ErrorCode, v2};
use bytes::Bytes;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// What strangers try to write to.
const LEDGER: i64 = 66;
const AT_ONCE: usize = 16;

/// The bytes of a connection, from a generator of its own.
struct Script<'a> {
    random: SeededRandom,
    hello: &'a [u8],
}

impl Script<'_> {
    fn below(&self, n: usize) -> usize {
        self.random.below(n as u64) as usize
    }

    fn garbage(&self, length_max: usize) -> Vec<u8> {
        (0..self.below(length_max)).map(|_| self.below(256) as u8).collect()
    }

    fn message(&self) -> proto::AuthMessage {
        let token = match self.below(5) {
            0 => Bytes::new(),
            1 => Bytes::from_static(b"username=\"writer\",realm=\"default\",nonce=\"AAAA\",nc=00000001"),
            2 => Bytes::from_static(b"\0writer\0writer"),
            3 => Bytes::from(vec![b','; 5000]),
            _ => self.garbage(600).into(),
        };
        let mut message = sasl_message(&token);
        match self.below(8) {
            0 => message.auth_plugin_name = "sasl-plain".to_owned(),
            1 => message.auth_plugin_name = "other".to_owned(),
            _ => {}
        }
        message
    }

    fn piece(&self) -> Vec<u8> {
        match self.below(10) {
            0 | 1 => framed_v3(1, Operation::StartTls).to_vec(),
            2 => framed_v3(2, Operation::Auth(self.message())).to_vec(),
            3 => {
                let message = v3::encode_auth_message(&self.message());
                let auth = v2::Auth { version: 2, flags: v2::Flags::NONE, message: &message };
                framed(v2::Request::Auth(auth)).to_vec()
            }
            4 => add_frame(LEDGER, 0, self.below(30_000), v2::Flags::NONE, KEY).to_vec(),
            5 => framed(v2::Request::Read(fence_request(LEDGER, -1, KEY))).to_vec(),
            6 => {
                let mut all = operations(LEDGER);
                framed_v3(3, all.swap_remove(self.below(all.len()))).to_vec()
            }
            7 => self.hello.to_vec(),
            8 => {
                let content = self.garbage(300);
                let kind = 20 + self.below(5) as u8;
                [&[kind, 3, 3], &(content.len() as u16).to_be_bytes()[..], &content].concat()
            }
            _ => self.garbage(100),
        }
    }

    /// All that the peer sends, in the pieces in which it does.
    fn chunks(&self) -> Vec<Vec<u8>> {
        let mut bytes: Vec<u8> = (0..=self.below(8)).flat_map(|_| self.piece()).collect();
        if self.random.chance(0.3) {
            bytes.truncate(self.below(bytes.len() + 1));
        }
        if self.random.chance(0.2) && !bytes.is_empty() {
            let at = self.below(bytes.len());
            bytes[at] ^= 1 << self.below(8);
        }
        let mut chunks = Vec::new();
        while !bytes.is_empty() {
            let length = if self.random.chance(0.5) { bytes.len() } else { 1 + self.below(bytes.len()) };
            let rest = bytes.split_off(length);
            chunks.push(std::mem::replace(&mut bytes, rest));
        }
        chunks
    }
}

/// Plays one; what the bookie answers, unless the peer does not listen.
async fn play(address: SocketAddr, script: &Script<'_>) -> Vec<u8> {
    let mut socket = TcpStream::connect(address).await.unwrap();
    for chunk in script.chunks() {
        if socket.write_all(&chunk).await.is_err() {
            break;
        }
        tokio::task::yield_now().await;
    }
    let mut answers = Vec::new();
    if script.random.chance(0.7) {
        let _ = socket.shutdown().await;
        let read = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut answers)).await;
        // A reset is an end like any other.
        let _ = read.expect("the bookie closes it");
    }
    answers
}

fn hello(config: &Arc<ClientConfig>) -> Vec<u8> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut hello = Vec::new();
    ClientConnection::new(config.clone(), name).unwrap().write_tls(&mut hello).unwrap();
    hello
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_order_of_messages_makes_a_client_of_a_stranger() {
    let scripts = from_environment("BINDERY_SCRIPTS", 3000);
    let seed = from_environment("BINDERY_SCRIPTS_SEED", 4);
    let authority = Authority::new("authority");
    let config = authority.client(None, &[]);
    let hello: Arc<[u8]> = hello(&config).into();
    let bookie = start_auth(Limits::default(), Some(with(&authority, Wanted::default())), users(true)).await;
    let mut known = Client::tls(&bookie, config).await.unwrap();
    exchange_v3(&mut known, "writer-reader", "writer,reader").await.unwrap();

    let (address, next, answered) =
        (bookie.address, Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut playing = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (hello, next, answered) = (hello.clone(), next.clone(), answered.clone());
        playing.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= scripts {
                    return;
                }
                let random = SeededRandom::new(seed).child(&format!("script/{number}"));
                let answers = play(address, &Script { random, hello: &hello }).await;
                answered.fetch_add(u64::from(!answers.is_empty()), Ordering::Relaxed);
            }
        });
    }
    let mut entry = 0;
    while next.load(Ordering::Relaxed) < scripts {
        known.send(&add_frame(1, entry, 100, v2::Flags::NONE, KEY)).await;
        assert_eq!(known.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, entry), "seed {seed}");
        entry += 1;
    }
    while let Some(played) = playing.join_next().await {
        played.unwrap();
    }
    let answered = answered.load(Ordering::Relaxed);
    assert!(answered > scripts / 4, "{answered} of {scripts} were answered at all");
    assert_eq!(bookie.shared.metrics.auth_succeeded.get(), 1, "seed {seed}");
    let read = known.v2(v2::Request::Read(read_request(LEDGER, 0))).await;
    assert_eq!(read.code(), ErrorCode::NoLedger, "seed {seed}: no add and no fence of a stranger counted");
    drop(known);
    bookie.stop().await;
}
