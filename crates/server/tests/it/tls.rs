//! TLS from START_TLS on (S1, S2): both protocols inside, peers that do not finish a handshake, prove themselves badly or take
//! nothing, and clients without TLS beside them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::PATIENCE;
use crate::common::certificates::{Authority, Files, Issued, Use};
use crate::common::frames::{
    KEY, OwnedV2, add_frame, batch_request, body, fence_request, framed, framed_v3, read_request,
};
use crate::common::wire::{Bookie, Client, start, start_tls};
use bindery_server::limits::Limits;
use bindery_server::memory::MemoryPlan;
use bindery_server::tls::{Tls, TlsConfig};
use bindery_wire::v3::{self, Operation, proto};
use bindery_wire::{ErrorCode, v2};
use bytes::{Bytes, BytesMut};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, version};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Requirements on clients.
#[derive(Default)]
pub struct Wanted<'a> {
    pub client_authority: Option<&'a Authority>,
    pub is_required: bool,
}

/// TLS with a certificate of this authority.
pub fn with(authority: &Authority, wanted: Wanted<'_>) -> Tls {
    let dir = tempfile::tempdir().unwrap();
    let believed = wanted.client_authority.map_or("", |authority| &authority.certificate);
    let files = Files::write(dir.path(), &authority.issue(Use::Bookie), believed);
    let config = TlsConfig {
        client_authorities: wanted.client_authority.map(|_| files.authorities),
        refresh: None,
        is_required: wanted.is_required,
        ..TlsConfig::new(files.certificates, files.key)
    };
    Tls::open(config, bindery_server::turns::Turns::new(1)).unwrap()
}

async fn start_with_tls(tls: Tls) -> Bookie {
    let limits = Limits::default();
    let plan = MemoryPlan::new(256 << 20, &limits).unwrap();
    start_tls(limits, plan, tls).await
}

/// A bookie with TLS, and a client that trusts it.
async fn start_plainly(limits: Limits) -> (Bookie, Arc<ClientConfig>) {
    let authority = Authority::new("authority");
    let plan = MemoryPlan::new(256 << 20, &limits).unwrap();
    let bookie = start_tls(limits, plan, with(&authority, Wanted::default())).await;
    (bookie, authority.client(None, &[]))
}

fn v3_add(ledger: i64, entry: i64, size: usize) -> Operation {
    Operation::Add(proto::AddRequest {
        ledger_id: ledger,
        entry_id: entry,
        master_key: Bytes::copy_from_slice(KEY.as_bytes()),
        body: Bytes::from(body(ledger, entry, entry - 1, size)),
        ..proto::AddRequest::default()
    })
}

fn v3_read(ledger_id: i64, entry_id: i64) -> Operation {
    Operation::Read(proto::ReadRequest { ledger_id, entry_id, ..proto::ReadRequest::default() })
}

/// True when the bookie closes the connection.
async fn is_closed(client: &mut Client) -> bool {
    client.next().await.is_none()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v2_and_v3_are_spoken_over_both_versions_of_tls() {
    let authority = Authority::new("authority");
    let bookie = start_with_tls(with(&authority, Wanted::default())).await;
    for (ledger, version) in [(10, &version::TLS12), (20, &version::TLS13)] {
        let config = authority.client(None, &[version]);
        let mut client = Client::tls(&bookie, config).await.unwrap();
        // From nothing to many records.
        let sizes = [0, 1, 100, 16_000, 20_000, 1_000_000, 3_000_000];
        for (entry, size) in (0..).zip(sizes) {
            client.send(&add_frame(ledger, entry, size, v2::Flags::NONE, KEY)).await;
            assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, ledger, entry));
        }
        for (entry, size) in (0..).zip(sizes) {
            let read = client.v2(v2::Request::Read(read_request(ledger, entry))).await;
            let expected = body(ledger, entry, entry - 1, size);
            assert!(read == OwnedV2::Read(ErrorCode::Ok, ledger, entry, expected), "entry {entry}");
        }
        let batch = client.v2(batch_request(ledger, 0, 5, 4, 1 << 20)).await;
        assert!(matches!(batch, OwnedV2::Batch(ErrorCode::Ok, 5, entries) if entries.len() == 4));

        // The other protocol on the same connection.
        let own = ledger + 1;
        for (entry, size) in (0..).zip(sizes) {
            assert_eq!(client.v3(entry as u64, v3_add(own, entry, size)).await.status, 0);
            let read = client.v3(100, v3_read(own, entry)).await.read_response.unwrap();
            assert!(read.body.unwrap() == body(own, entry, entry - 1, size), "entry {entry}");
        }
        let fence = client.v2(v2::Request::Read(fence_request(own, 0, KEY))).await;
        assert_eq!(fence.code(), ErrorCode::Ok);
        assert_eq!(client.v3(101, v3_add(own, 7, 10)).await.status, ErrorCode::Fenced.v3());
    }
    assert_eq!(bookie.shared.metrics.tls_handshakes.get(), 2);
    bookie.stop().await;
}

/// A client that begins with TLS is told by its first bytes, also where TLS or a certificate is required.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_may_begin_with_the_first_byte() {
    let authority = Authority::new("authority");
    let wanted = Wanted { is_required: true, client_authority: Some(&authority) };
    let bookie = start_with_tls(with(&authority, wanted)).await;
    let own = authority.issue(Use::Client);
    for (ledger, version) in [(10, &version::TLS12), (20, &version::TLS13)] {
        let config = authority.client(Some(&own), &[version]);
        let mut client = Client::tls_at_once(&bookie, config).await.unwrap();
        client.send(&add_frame(ledger, 0, 20_000, v2::Flags::NONE, KEY)).await;
        assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, ledger, 0));
        assert_eq!(client.v3(1, v3_read(ledger, 0)).await.status, 0);
        // TLS within TLS is none.
        assert_ne!(client.v3(2, Operation::StartTls).await.status, 0);
    }
    // Byte by byte: a record without a handshake. And what is no record after all.
    let mut slow = Client::new(&bookie).await;
    for byte in [0x16, 0x03, 0x01, 0, 5, 9, 9, 9, 9, 9] {
        slow.send(&[byte]).await;
    }
    let mut clients = vec![slow];
    for begin in [[0x16, 0x04, 0, 0], [0x17, 0x03, 3, 0]] {
        let mut client = Client::new(&bookie).await;
        client.send(&begin).await;
        clients.push(client);
    }
    for client in &mut clients {
        // An alert of TLS at most, and the end.
        while client.next_raw().await.is_some() {}
    }
    assert_eq!(bookie.shared.metrics.tls_handshakes.get(), 2);
    bookie.stop().await;

    // Without TLS such a record is a frame that is too long.
    let plain = start(Limits::default()).await;
    assert!(Client::tls_at_once(&plain, authority.client(None, &[])).await.is_err());
    plain.stop().await;
}

/// Answers that come from all kinds of threads, to pipelines as deep as clients have them, in the order of their keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deep_pipelines_lose_and_mix_up_nothing() {
    const ADDS: i64 = 5000;
    let (bookie, config) = start_plainly(Limits::default()).await;
    let (mut writer, mut reader) =
        (Client::tls(&bookie, config.clone()).await.unwrap(), Client::tls(&bookie, config).await.unwrap());
    let mut adds = BytesMut::new();
    for entry in 0..ADDS {
        adds.extend_from_slice(&add_frame(1, entry, (entry % 2000) as usize, v2::Flags::NONE, KEY));
    }
    writer.flood(adds);
    for entry in 0..ADDS {
        assert_eq!(writer.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, entry));
    }
    let mut reads = BytesMut::new();
    for entry in 0..ADDS {
        reads.extend_from_slice(&framed(v2::Request::Read(read_request(1, entry))));
    }
    reader.flood(reads);
    let mut seen = vec![false; ADDS as usize];
    for _ in 0..ADDS {
        let OwnedV2::Read(ErrorCode::Ok, 1, entry, bytes) = reader.next_v2().await else { panic!("a read") };
        assert!(bytes == body(1, entry, entry - 1, (entry % 2000) as usize), "entry {entry}");
        assert!(!std::mem::replace(&mut seen[entry as usize], true), "entry {entry} once");
    }
    drop((writer, reader));
    bookie.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_without_tls_are_served_beside_those_with_it() {
    let (bookie, config) = start_plainly(Limits::default()).await;
    let mut plain = Client::new(&bookie).await;
    let mut encrypted = Client::tls(&bookie, config).await.unwrap();
    for entry in 0..20 {
        let client = if entry % 2 == 0 { &mut plain } else { &mut encrypted };
        client.send(&add_frame(3, entry, 500, v2::Flags::NONE, KEY)).await;
        assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 3, entry));
    }
    assert_eq!(bookie.shared.metrics.tls_connections.get(), 1);
    drop((plain, encrypted));
    bookie.stop().await;
}

/// start_tls invariant 1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_tls_is_refused_where_it_cannot_begin_and_the_connection_goes_on() {
    let bad = ErrorCode::BadRequest.v3();
    // A bookie without certificates.
    let bookie = start(Limits::default()).await;
    let mut client = Client::new(&bookie).await;
    assert_eq!(client.v3(1, Operation::StartTls).await.status, bad);
    assert_eq!(client.v3(2, v3_add(1, 0, 10)).await.status, 0);
    drop(client);
    bookie.stop().await;

    let (bookie, config) = start_plainly(Limits::default()).await;
    // Behind a request, behind AUTH that is answered, and in one write with a request (with AUTH: `auth`).
    let first = [v3_add(2, 0, 10), Operation::Auth(v3::auth_disabled_message())];
    for first in first {
        let is_auth = matches!(first, Operation::Auth(_));
        let mut client = Client::new(&bookie).await;
        assert_eq!(client.v3(1, first.clone()).await.status, 0);
        assert_eq!(client.v3(2, Operation::StartTls).await.status, bad);
        if is_auth {
            continue;
        }
        let mut client = Client::new(&bookie).await;
        client.send(&[framed_v3(1, first), framed_v3(2, Operation::StartTls)].concat()).await;
        let mut statuses = [client.next_v3().await.status, client.next_v3().await.status];
        statuses.sort_unstable();
        assert_eq!(statuses, [0, bad]);
    }
    // A second time, inside.
    let mut client = Client::tls(&bookie, config).await.unwrap();
    assert_eq!(client.v3(1, Operation::StartTls).await.status, bad);
    assert_eq!(client.v3(2, v3_add(2, 1, 10)).await.status, 0);
    assert_eq!(client.v3(3, Operation::StartTls).await.status, bad);
    drop(client);
    bookie.stop().await;
}

/// start_tls invariant 2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_behind_start_tls_is_the_handshake_whatever_it_looks_like() {
    let (bookie, config) = start_plainly(Limits::default()).await;
    // A frame there is not a request.
    let mut client = Client::new(&bookie).await;
    let add = add_frame(5, 0, 100, v2::Flags::NONE, KEY);
    client.send(&[&framed_v3(1, Operation::StartTls)[..], &add[..]].concat()).await;
    assert_eq!(client.next_v3().await.status, 0);
    // An alert, or the end; no answer to an add.
    client.send(&add).await;
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, async {
        while let Some(frame) = client.next_raw().await {
            rest.push(frame)
        }
    })
    .await
    .unwrap();
    let mut other = Client::new(&bookie).await;
    let read = other.v2(v2::Request::Read(read_request(5, 0))).await;
    assert_eq!(read.code(), ErrorCode::NoLedger);
    assert_eq!(bookie.shared.metrics.tls_refused.get(), 1);

    // The client's first message is taken from the same read, also when only some of it is there.
    let mut hello = Vec::new();
    let mut session = ClientConnection::new(config, ServerName::try_from("localhost").unwrap()).unwrap();
    session.write_tls(&mut hello).unwrap();
    for cut in [0, 1, 5, 6, hello.len() / 2, hello.len() - 1, hello.len()] {
        let mut socket = TcpStream::connect(bookie.address).await.unwrap();
        let begun = [&framed_v3(1, Operation::StartTls)[..], &hello[..cut]].concat();
        socket.write_all(&begun).await.unwrap();
        let len = socket.read_u32().await.unwrap() as usize;
        let mut answer = vec![0; len];
        socket.read_exact(&mut answer).await.unwrap();
        assert_eq!(v3::decode_response(answer.into()).unwrap().status, 0);
        socket.write_all(&hello[cut..]).await.unwrap();
        let mut head = [0; 5];
        tokio::time::timeout(PATIENCE, socket.read_exact(&mut head)).await.unwrap().unwrap();
        assert_eq!(head[..3], [22, 3, 3], "a message of the handshake, cut at {cut}");
    }
    drop((client, other));
    bookie.stop().await;
}

/// start_tls invariant 3, S7: a handshake that stops at any byte, or goes on a byte at a time, ends at the deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_is_not_finished_ends_at_the_deadline() {
    let limits = Limits { first_request_max: Duration::from_millis(500), ..Limits::default() };
    let (bookie, config) = start_plainly(limits).await;
    let mut hello = Vec::new();
    let mut session =
        ClientConnection::new(config.clone(), ServerName::try_from("localhost").unwrap()).unwrap();
    session.write_tls(&mut hello).unwrap();
    let start = framed_v3(1, Operation::StartTls);
    let mut peers = Vec::new();
    for cut in (0..=hello.len()).step_by(16) {
        let mut socket = TcpStream::connect(bookie.address).await.unwrap();
        socket.write_all(&start).await.unwrap();
        socket.write_all(&hello[..cut]).await.unwrap();
        peers.push(socket);
    }
    // Drips for as long as it is let.
    let mut drip = TcpStream::connect(bookie.address).await.unwrap();
    drip.write_all(&start).await.unwrap();
    let dripping = tokio::spawn(async move {
        for byte in hello {
            if drip.write_all(&[byte]).await.is_err() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    });
    // Meanwhile others are served.
    let mut client = Client::tls(&bookie, config).await.unwrap();
    client.send(&add_frame(1, 0, 10, v2::Flags::NONE, KEY)).await;
    assert_eq!(client.next_v2().await.code(), ErrorCode::Ok);
    let silent = peers.len() as u64 + 1;
    for mut socket in peers {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "closed");
    }
    assert!(tokio::time::timeout(PATIENCE, dripping).await.unwrap().unwrap(), "the one that drips, too");
    assert_eq!(bookie.shared.metrics.closed_silent.get(), silent);
    let door = bookie.shared.connections.door();
    assert_eq!(door.silent(), 0);
    drop(client);
    bookie.stop().await;
}

/// A peer that made the handshake and says nothing is as silent as one that did not: it goes first when places are short.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_is_a_stranger_until_its_first_request_over_tls() {
    let (bookie, config) = start_plainly(Limits { connections_max: 2, ..Limits::default() }).await;
    let mut silent = Client::tls(&bookie, config.clone()).await.unwrap();
    let mut known = Client::tls(&bookie, config.clone()).await.unwrap();
    known.send(&add_frame(1, 0, 10, v2::Flags::NONE, KEY)).await;
    assert_eq!(known.next_v2().await.code(), ErrorCode::Ok);
    assert_eq!(bookie.shared.connections.door().silent(), 1);
    let mut third = Client::tls(&bookie, config).await.unwrap();
    assert!(is_closed(&mut silent).await);
    third.send(&add_frame(1, 1, 10, v2::Flags::NONE, KEY)).await;
    assert_eq!(third.next_v2().await.code(), ErrorCode::Ok);
    known.send(&add_frame(1, 2, 10, v2::Flags::NONE, KEY)).await;
    assert_eq!(known.next_v2().await.code(), ErrorCode::Ok);
    drop((known, silent, third));
    bookie.stop().await;
}

/// A record of the handshake.
fn handshake_record(piece: &[u8]) -> Vec<u8> {
    [&[22, 3, 1], &(piece.len() as u16).to_be_bytes()[..], piece].concat()
}

/// TLS invariant 3: more than any first message that is in use, and more than any chain of certificates, is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_without_end_is_ended_before_it_takes_memory() {
    // Only the bytes can be why it ends.
    let limits = Limits { first_request_max: Duration::from_secs(24 * 3600), ..Limits::default() };
    let (bookie, config) = start_plainly(limits).await;
    let mut client = Client::new(&bookie).await;
    assert_eq!(client.v3(1, Operation::StartTls).await.status, 0);
    // A ClientHello of 60,000 bytes is announced, and 10,000 come.
    let mut message = vec![1, 0, 0xea, 0x60];
    message.resize(10_000, 0);
    client.send(&message.chunks(1000).flat_map(handshake_record).collect::<Vec<u8>>()).await;
    // An alert, perhaps, and the end.
    while client.next_raw().await.is_some() {}
    assert_eq!(bookie.shared.metrics.tls_refused.get(), 1);

    // The same behind an honest first message, which is answered.
    let mut client = Client::new(&bookie).await;
    assert_eq!(client.v3(1, Operation::StartTls).await.status, 0);
    let mut session = ClientConnection::new(config, ServerName::try_from("localhost").unwrap()).unwrap();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).unwrap();
    client.send(&hello).await;
    assert!(client.next_raw().await.is_some());
    message.resize(40_000, 0);
    client.flood(message.chunks(1000).flat_map(handshake_record).collect::<Vec<u8>>()[..].into());
    while client.next_raw().await.is_some() {}
    assert_eq!(bookie.shared.metrics.tls_refused.get(), 2);
    assert_eq!(bookie.shared.metrics.closed_silent.get(), 0);
    drop(client);
    bookie.stop().await;
}

/// Inlet invariant 5: a large frame in the smallest records, and one with new keys between all of them, on the one thread
/// that everybody has.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_frame_in_records_of_a_byte_holds_nobody_up() {
    let (bookie, config) = start_plainly(Limits::default()).await;
    let mut healthy = Client::tls(&bookie, config.clone()).await.unwrap();
    let frame = add_frame(1, 0, 4 << 20, v2::Flags::NONE, KEY);
    for has_new_keys in [false, true] {
        let mut socket = TcpStream::connect(bookie.address).await.unwrap();
        let (session, rest) = shaken(&mut socket, config.clone()).await;
        assert!(rest.is_empty());
        let frame = frame.clone();
        let refused = bookie.shared.metrics.tls_refused.get();
        // On a thread of its own: encrypting takes longer than decrypting.
        let (send, mut pieces) = tokio::sync::mpsc::channel::<Vec<u8>>(4);
        let encrypting = std::thread::spawn(move || {
            let mut session = session;
            let mut records = Vec::new();
            for byte in frame {
                for _ in 0..if has_new_keys { 20 } else { 0 } {
                    session.refresh_traffic_keys().unwrap();
                    session.write_tls(&mut records).unwrap();
                }
                std::io::Write::write_all(&mut session.writer(), &[byte]).unwrap();
                session.write_tls(&mut records).unwrap();
                if records.len() > 60_000 && send.blocking_send(std::mem::take(&mut records)).is_err() {
                    return;
                }
            }
        });
        let hostile = tokio::spawn(async move {
            while let Some(records) = pieces.recv().await {
                if socket.write_all(&records).await.is_err() {
                    return true;
                }
            }
            false
        });
        let mut round = 0;
        while bookie.shared.metrics.tls_refused.get() == refused || round < 20 {
            healthy.send(&add_frame(2, round, 100, v2::Flags::NONE, KEY)).await;
            assert_eq!(healthy.next_v2().await.code(), ErrorCode::Ok);
            round += 1;
        }
        let was_closed = tokio::time::timeout(PATIENCE, hostile).await.unwrap().unwrap();
        assert!(was_closed, "before all of it was decrypted");
        tokio::task::spawn_blocking(|| encrypting.join().unwrap()).await.unwrap();
    }
    drop(healthy);
    bookie.stop().await;
}

/// A client's session with the handshake made, and what was received behind that.
pub async fn shaken(socket: &mut TcpStream, config: Arc<ClientConfig>) -> (ClientConnection, Vec<u8>) {
    socket.write_all(&framed_v3(1, Operation::StartTls)).await.unwrap();
    let len = socket.read_u32().await.unwrap() as usize;
    let mut answer = vec![0; len];
    socket.read_exact(&mut answer).await.unwrap();
    let mut session = ClientConnection::new(config, ServerName::try_from("localhost").unwrap()).unwrap();
    let mut received = Vec::new();
    loop {
        let mut records = Vec::new();
        while session.wants_write() {
            session.write_tls(&mut records).unwrap();
        }
        socket.write_all(&records).await.unwrap();
        if !session.is_handshaking() {
            return (session, received);
        }
        assert!(socket.read_buf(&mut received).await.unwrap() > 0);
        let mut left = &received[..];
        while !left.is_empty() {
            session.read_tls(&mut left).unwrap();
            session.process_new_packets().unwrap();
        }
        received.clear();
    }
}

/// Sender invariant 6: the answer of an add waits for no turn of the reads before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_of_adds_do_not_stand_in_the_line_of_reads() {
    const READS: usize = 40;
    for is_encrypted in [false, true] {
        let (bookie, config) = start_plainly(Limits::default()).await;
        let mut client = match is_encrypted {
            true => Client::tls(&bookie, config).await.unwrap(),
            false => Client::new(&bookie).await,
        };
        client.send(&add_frame(1, 0, 100, v2::Flags::NONE, KEY)).await;
        assert_eq!(client.next_v2().await.code(), ErrorCode::Ok);
        // The only turn there is.
        let turn = bookie.shared.bulk.turn().await;
        let mut requests = BytesMut::new();
        for _ in 0..READS {
            requests.extend_from_slice(&framed(v2::Request::Read(read_request(1, 0))));
        }
        client.send(&requests).await;
        client.send(&add_frame(1, 1, 100, v2::Flags::NONE, KEY)).await;
        assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, 1));
        drop(turn);
        for _ in 0..READS {
            assert!(matches!(client.next_v2().await, OwnedV2::Read(ErrorCode::Ok, 1, 0, _)));
        }
        drop(client);
        bookie.stop().await;
    }
}

/// TLS invariant 5: a connection whose keys are used up answers what it took and ends, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_ends_in_order_before_its_keys_are_used_up() {
    const RECORDS: u64 = 2000;
    let authority = Authority::new("authority");
    let bookie = start_with_tls(with(&authority, Wanted::default()).with_records_max(RECORDS)).await;
    let mut client = Client::tls(&bookie, authority.client(None, &[&version::TLS12])).await.unwrap();
    let mut answered = 0;
    loop {
        client.flood(add_frame(1, answered, 10, v2::Flags::NONE, KEY));
        match client.try_next_v2().await {
            Some(answer) => assert_eq!(answer, OwnedV2::Add(ErrorCode::Ok, 1, answered)),
            None => break,
        }
        answered += 1;
    }
    assert!(answered as u64 > RECORDS / 2 && (answered as u64) < RECORDS, "{answered} answers");
    // Nothing was done that was not answered.
    let mut client = Client::new(&bookie).await;
    let read = client.v2(v2::Request::Read(read_request(1, answered))).await;
    assert_eq!(read.code(), ErrorCode::NoEntry);
    drop(client);
    bookie.stop().await;
}

/// S2: a client that must prove itself, and what does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_clients_with_a_certificate_of_the_authority_are_served() {
    let (authority, other) = (Authority::new("authority"), Authority::new("other"));
    let wanted = Wanted { client_authority: Some(&authority), ..Wanted::default() };
    let bookie = start_with_tls(with(&authority, wanted)).await;
    let right = authority.issue(Use::Client);
    let wrong: [(&str, Option<Issued>); 4] = [
        ("none", None),
        ("another authority's", Some(other.issue(Use::Client))),
        ("expired", Some(authority.issue_until(Use::Client, 2020))),
        ("for another use", Some(authority.issue(Use::Bookie))),
    ];
    let mut refused = 0;
    for version in [&version::TLS12, &version::TLS13] {
        let mut client = Client::tls(&bookie, authority.client(Some(&right), &[version])).await.unwrap();
        client.send(&add_frame(1, 0, 10, v2::Flags::NONE, KEY)).await;
        assert_eq!(client.next_v2().await.code(), ErrorCode::Ok);
        for (what, own) in &wrong {
            // A client of TLS 1.3 is done before the bookie has seen its certificate, and hears of it afterwards.
            if let Ok(mut client) = Client::tls(&bookie, authority.client(own.as_ref(), &[version])).await {
                client.flood(add_frame(1, 1, 10, v2::Flags::NONE, KEY));
                assert!(is_closed(&mut client).await, "{what}");
            }
            refused += 1;
        }
    }
    let mut client = Client::new(&bookie).await;
    let read = client.v2(v2::Request::Read(read_request(1, 1))).await;
    assert_eq!(read.code(), ErrorCode::NoEntry, "nothing of theirs was taken");
    assert_eq!(bookie.shared.metrics.tls_refused.get(), refused);
    drop(client);
    bookie.stop().await;
}

/// A client that does not believe the bookie leaves, and says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_trusts_others_does_not_connect() {
    let (bookie, _) = start_plainly(Limits::default()).await;
    let stranger = Authority::new("stranger").client(None, &[]);
    let error = Client::tls(&bookie, stranger).await.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    bookie.stop().await;
}

/// start_tls invariant 4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_tls_is_required_nothing_is_handled_without_it() {
    let authority = Authority::new("authority");
    let wanted = Wanted { is_required: true, ..Wanted::default() };
    let bookie = start_with_tls(with(&authority, wanted)).await;
    for size in [10, 100_000] {
        let mut client = Client::new(&bookie).await;
        client.flood(add_frame(1, 0, size, v2::Flags::NONE, KEY));
        let answer = client.try_next_v2().await;
        // A frame longer than any START_TLS is not decoded.
        let expected = (size == 10).then_some(OwnedV2::Add(ErrorCode::Unauthorized, 1, 0));
        assert_eq!(answer, expected);
        assert!(is_closed(&mut client).await);
    }
    let mut client = Client::new(&bookie).await;
    let read = client.v2(v2::Request::Read(read_request(1, 0))).await;
    assert_eq!(read.code(), ErrorCode::Unauthorized);
    let mut client = Client::new(&bookie).await;
    client.send(&[framed_v3(1, v3_add(1, 0, 10)), framed_v3(2, v3_add(1, 1, 10))].concat()).await;
    assert_eq!(client.next_v3().await.status, ErrorCode::Unauthorized.v3());
    assert!(is_closed(&mut client).await);
    let mut client = Client::tls(&bookie, authority.client(None, &[])).await.unwrap();
    let read = client.v2(v2::Request::Read(read_request(1, 0))).await;
    assert_eq!(read.code(), ErrorCode::NoLedger, "nothing was added");
    drop(client);
    bookie.stop().await;
}

/// R16 over TLS: peers that take nothing hold their windows, and all other peers are served. This looks at the pools;
/// what TLS itself holds is in none of them, but charged for every connection, and bounded by the unit tests of the
/// transport (TLS invariants 2 and 3).
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn peers_that_take_nothing_hold_no_more_than_without_tls() {
    const DEAF: usize = 12;
    let limits = Limits { read_window_bytes: 256 * 1024, ..Limits::default() };
    let window = limits.read_window_bytes as u64;
    let (bookie, config) = start_plainly(limits).await;
    let mut healthy = Client::tls(&bookie, config.clone()).await.unwrap();
    for entry in 0..64 {
        healthy.send(&add_frame(1, entry, 4096, v2::Flags::NONE, KEY)).await;
        assert_eq!(healthy.next_v2().await.code(), ErrorCode::Ok);
    }
    let mut deaf = Vec::new();
    for _ in 0..DEAF {
        let mut client = Client::deaf_tls(&bookie, config.clone()).await;
        let mut reads = BytesMut::new();
        for entry in 0..10_000 {
            reads.extend_from_slice(&framed(v2::Request::Read(read_request(1, entry % 64))));
        }
        client.flood(reads);
        deaf.push(client);
    }
    for round in 0..100 {
        healthy.send(&add_frame(2, round, 100, v2::Flags::NONE, KEY)).await;
        assert_eq!(healthy.next_v2().await.code(), ErrorCode::Ok);
        assert_eq!(healthy.v2(v2::Request::Read(read_request(1, round % 64))).await.code(), ErrorCode::Ok);
        let held = bookie.shared.pools.outbound.gauge().used;
        assert!(held <= (DEAF as u64 + 1) * (window + 64 * 1024), "outbox invariant 5: {held}");
    }
    assert!(bookie.shared.pools.outbound.gauge().used > 0, "they do hold something");
    // One of them reads at last: whole answers, in whatever order, and not one too many.
    let mut reader = deaf.pop().unwrap();
    for _ in 0..10_000 {
        let answer = reader.next_v2().await;
        assert!(matches!(answer.code(), ErrorCode::Ok | ErrorCode::TooManyRequests), "{:?}", answer.code());
    }
    drop((deaf, reader));
    let returned = async {
        while bookie.shared.pools.gauges().iter().any(|(_, gauge)| (gauge.used, gauge.waiting) != (0, 0)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, returned).await.expect("IB20");
    drop(healthy);
    bookie.stop().await;
}

/// A stop answers every request that had arrived, and announces the end of the stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_answers_what_had_come_over_tls() {
    const ADDS: i64 = 200;
    let (bookie, config) = start_plainly(Limits::default()).await;
    let mut client = Client::tls(&bookie, config).await.unwrap();
    client.send(&add_frame(1, 0, 10, v2::Flags::NONE, KEY)).await;
    assert_eq!(client.next_v2().await.code(), ErrorCode::Ok);
    let mut adds = BytesMut::new();
    for entry in 1..=ADDS {
        adds.extend_from_slice(&add_frame(1, entry, 1000, v2::Flags::NONE, KEY));
    }
    client.send(&adds).await;
    // Loopback delivers before it returns, or nearly.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let stopped = tokio::spawn(bookie.stop());
    for entry in 1..=ADDS {
        assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, entry));
    }
    assert!(is_closed(&mut client).await);
    tokio::time::timeout(PATIENCE, stopped).await.unwrap().unwrap();
}

/// A client that says that nothing follows is gone, with everything it held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_ends_gives_everything_back() {
    let (bookie, config) = start_plainly(Limits::default()).await;
    let mut client = Client::tls(&bookie, config).await.unwrap();
    client.send(&add_frame(1, 0, 10, v2::Flags::NONE, KEY)).await;
    assert_eq!(client.next_v2().await.code(), ErrorCode::Ok);
    client.end().await;
    assert!(is_closed(&mut client).await);
    let gone = async {
        while bookie.shared.metrics.tls_connections.get() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
    bookie.stop().await;
}
