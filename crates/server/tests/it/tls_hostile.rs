//! Peers that speak TLS badly (S1, S6, S7): versions that are too old, handshakes that stop at any byte, plain text behind one, and
//! bad frames inside it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::PATIENCE;
use crate::common::certificates::Authority;
use crate::common::frames::{BAD_FRAMES, KEY, OwnedV2, add_frame, framed_v3, read_request};
use crate::common::wire::{Bookie, Client, start_tls};
use crate::tls::{Wanted, shaken, with};
use bindery_server::limits::Limits;
use bindery_server::memory::MemoryPlan;
use bindery_wire::v3::Operation;
use bindery_wire::{ErrorCode, v2};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, SupportedProtocolVersion, version};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A bookie with TLS, and a client that trusts it, of these versions.
async fn start(
    limits: Limits,
    versions: &[&'static SupportedProtocolVersion],
) -> (Bookie, Arc<ClientConfig>) {
    let authority = Authority::new("authority");
    let plan = MemoryPlan::new(256 << 20, &limits).unwrap();
    let bookie = start_tls(limits, plan, with(&authority, Wanted::default())).await;
    (bookie, authority.client(None, versions))
}

/// What comes until the bookie closes the connection.
async fn rest(socket: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is an end like any other.
    let _ = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut rest)).await.expect("it is closed");
    rest
}

/// A socket on which TLS may begin.
async fn begun(bookie: &Bookie) -> TcpStream {
    let mut socket = TcpStream::connect(bookie.address).await.unwrap();
    socket.write_all(&framed_v3(1, Operation::StartTls)).await.unwrap();
    let mut answer = vec![0; socket.read_u32().await.unwrap() as usize];
    socket.read_exact(&mut answer).await.unwrap();
    socket
}

fn session(config: &Arc<ClientConfig>) -> ClientConnection {
    ClientConnection::new(config.clone(), ServerName::try_from("localhost").unwrap()).unwrap()
}

/// The first message of a client that speaks this version and none after it, in a record.
fn old_hello(version: [u8; 2]) -> Vec<u8> {
    let ciphers = [0xc0, 0x2b, 0xc0, 0x13, 0xc0, 0x14, 0, 0x2f];
    // P-256 and X25519, ECDSA with SHA-256: for 1.2 these are enough.
    let extensions = [0, 10, 0, 6, 0, 4, 0, 0x1d, 0, 0x17, 0, 13, 0, 4, 0, 2, 4, 3];
    let mut body = version.to_vec();
    body.extend_from_slice(&[7; 32]);
    // No session; the ciphers of their day; no compression.
    body.extend_from_slice(&[0, 0, ciphers.len() as u8]);
    body.extend_from_slice(&ciphers);
    body.extend_from_slice(&[1, 0, 0, extensions.len() as u8]);
    body.extend_from_slice(&extensions);
    let message = [&[1, 0, 0, body.len() as u8][..], &body].concat();
    [&[22, 3, 1, 0, message.len() as u8][..], &message].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_before_1_2_are_refused() {
    let (bookie, _) = start(Limits::default(), &[]).await;
    for version in [[3, 0], [3, 1], [3, 2]] {
        for is_at_once in [false, true] {
            let mut socket = match is_at_once {
                true => TcpStream::connect(bookie.address).await.unwrap(),
                false => begun(&bookie).await,
            };
            socket.write_all(&old_hello(version)).await.unwrap();
            let said = rest(&mut socket).await;
            assert!(matches!(said[..], [21, 3, _, 0, 2, 2, 40 | 70]), "a fatal alert: {said:?}");
        }
    }
    // The version is why.
    let mut socket = begun(&bookie).await;
    socket.write_all(&old_hello([3, 3])).await.unwrap();
    let mut head = [0; 5];
    socket.read_exact(&mut head).await.unwrap();
    assert_eq!(head[..3], [22, 3, 3], "a message of the handshake");
    drop(socket);
    assert_eq!(bookie.shared.metrics.tls_refused.get(), 6);
    assert_eq!(bookie.shared.metrics.tls_handshakes.get(), 0);
    bookie.stop().await;
}

/// All that a client sends after the bookie's first messages, without having sent it; nothing when the bookie closed the connection.
async fn second_flight(socket: &mut TcpStream, session: &mut ClientConnection) -> Vec<u8> {
    let mut flight = Vec::new();
    session.write_tls(&mut flight).unwrap();
    if socket.write_all(&flight).await.is_err() {
        return Vec::new();
    }
    flight.clear();
    while flight.is_empty() {
        let mut received = vec![0; 4096];
        let Ok(count @ 1..) = socket.read(&mut received).await else { return Vec::new() };
        let mut left = &received[..count];
        while !left.is_empty() {
            session.read_tls(&mut left).unwrap();
            session.process_new_packets().unwrap();
        }
        while session.wants_write() {
            session.write_tls(&mut flight).unwrap();
        }
    }
    flight
}

/// start_tls invariant 3, S7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_stops_at_any_byte_ends_at_the_deadline() {
    const AT_ONCE: usize = 64;
    let limits = Limits { first_request_max: Duration::from_millis(500), ..Limits::default() };
    let mut peers = 0;
    for version in [&version::TLS12, &version::TLS13] {
        let (bookie, config) = start(limits.clone(), &[version]).await;
        let mut hello = Vec::new();
        session(&config).write_tls(&mut hello).unwrap();
        let mut cuts: Vec<(bool, usize)> = (0..=hello.len()).map(|cut| (false, cut)).collect();
        let length = second_flight(&mut begun(&bookie).await, &mut session(&config)).await.len();
        assert!(length > 40, "{length} bytes");
        // With all of it the handshake would be finished.
        cuts.extend((0..length).map(|cut| (true, cut)));
        for some in cuts.chunks(AT_ONCE) {
            let mut silent = Vec::new();
            for (is_second, cut) in some {
                let mut socket = begun(&bookie).await;
                let bytes = match is_second {
                    true => second_flight(&mut socket, &mut session(&config)).await,
                    false => hello.clone(),
                };
                // On a machine that stands still it may be closed by now, which is what is wanted.
                let _ = socket.write_all(&bytes[..(*cut).min(bytes.len())]).await;
                silent.push(socket);
            }
            for socket in &mut silent {
                rest(socket).await;
            }
            peers += silent.len();
        }
        let metrics = &bookie.shared.metrics;
        assert_eq!(metrics.closed_silent.get() + metrics.tls_refused.get(), cuts.len() as u64);
        assert_eq!(metrics.tls_handshakes.get(), 0);
        bookie.stop().await;
    }
    assert!(peers > 500, "{peers} peers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_text_behind_a_handshake_ends_the_connection() {
    for version in [&version::TLS12, &version::TLS13] {
        let (bookie, config) = start(Limits::default(), &[version]).await;
        let mut socket = TcpStream::connect(bookie.address).await.unwrap();
        let (_session, _) = shaken(&mut socket, config.clone()).await;
        socket.write_all(&add_frame(1, 0, 100, v2::Flags::NONE, KEY)).await.unwrap();
        let said = rest(&mut socket).await;
        // An alert, encrypted for TLS 1.3, and no answer.
        assert!(matches!(said[..], [21 | 23, 3, 3, ..]), "{said:?}");
        let mut other = Client::tls(&bookie, config).await.unwrap();
        let read = other.v2(v2::Request::Read(read_request(1, 0))).await;
        assert_eq!(read.code(), ErrorCode::NoLedger, "nothing was added");
        assert_eq!(bookie.shared.metrics.tls_refused.get(), 1);
        drop(other);
        bookie.stop().await;
    }
}

/// S6 over TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_client_sends_is_refused_inside_tls_as_well() {
    let (bookie, config) = start(Limits::default(), &[]).await;
    let mut healthy = Client::tls(&bookie, config.clone()).await.unwrap();
    for bytes in BAD_FRAMES {
        let mut client = Client::tls(&bookie, config.clone()).await.unwrap();
        client.send(bytes).await;
        assert_eq!(client.next().await, None, "{bytes:?}");
    }
    assert_eq!(bookie.shared.metrics.closed_bad_frame.get(), BAD_FRAMES.len() as u64);
    // Large frames that are announced and do not come, on fifty connections at a time: the pools hold no more than they have.
    for _ in 0..10 {
        let mut bombs = Vec::new();
        for _ in 0..50 {
            let mut bomb = Client::tls(&bookie, config.clone()).await.unwrap();
            bomb.send(&[0, 0x40, 0, 0, 2, 1, 0, 0]).await;
            bombs.push(bomb);
        }
        for (name, gauge) in bookie.shared.pools.gauges() {
            assert!(gauge.used <= gauge.capacity, "pool {name}: {gauge:?}");
        }
        healthy.send(&add_frame(1, 0, 100, v2::Flags::NONE, KEY)).await;
        assert_eq!(healthy.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, 0));
    }
    drop(healthy);
    bookie.stop().await;
}
