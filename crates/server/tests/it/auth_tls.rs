//! Logins beside TLS (S4): the memory they hold while they wait, and the line between plain text and TLS.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::auth::{users, v3_add};
use crate::common::certificates::Authority;
use crate::common::frames::{KEY, OwnedV2, add_frame, framed_v3};
use crate::common::users::{config, digest_line, sasl_message};
use crate::common::wire::{Client, start_auth};
use crate::tls;
use bindery_io::SystemRandom;
use bindery_sasl::{Credentials, Secret, plain};
use bindery_server::auth::Auth;
use bindery_server::limits::Limits;
use bindery_server::turns::{LOGINS_OF_ADDRESS_MAX, Turns};
use bindery_wire::v3::{self, Operation, proto};
use bindery_wire::{ErrorCode, v2};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const EUA: ErrorCode = ErrorCode::Unauthorized;

fn plain_login(user: &str, password: &str) -> Operation {
    let payload = plain::encode(&Credentials::new(user, Secret::new(password))).into();
    Operation::Auth(proto::AuthMessage { auth_plugin_name: "sasl-plain".to_owned(), payload })
}

/// `connection::ingest::authenticate` invariant 4 and `turns` invariant 3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logins_that_wait_for_a_turn_hold_little_and_are_few() {
    let authority = Authority::new("authority");
    let (dir, turns) = (tempfile::tempdir().unwrap(), Turns::new(1));
    let users = config(dir.path(), &digest_line("writer", "writer", "writer"), false);
    let auth = Auth::open(users, turns.clone(), Arc::new(SystemRandom)).unwrap();
    let limits = Limits { first_request_max: Duration::from_secs(600), ..Limits::default() };
    let bookie = start_auth(limits, Some(tls::with(&authority, tls::Wanted::default())), auth).await;
    let tls = authority.client(None, &[]);
    let taken = turns.handshake().await;
    let login = framed_v3(1, plain_login("writer", "writer"));
    let mut waiting = Vec::new();
    for ledger in 1..=LOGINS_OF_ADDRESS_MAX as i64 {
        let mut client = Client::tls(&bookie, tls.clone()).await.unwrap();
        client.send(&[&login[..], &add_frame(ledger, 0, 10, v2::Flags::NONE, KEY)].concat()).await;
        waiting.push((client, ledger));
    }
    while turns.logins() < LOGINS_OF_ADDRESS_MAX {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let used = bookie.shared.pools.first.gauge().used;
    assert!(used <= LOGINS_OF_ADDRESS_MAX as u64 * 512, "{used} bytes for messages of some 200");
    let mut client = Client::tls(&bookie, tls.clone()).await.unwrap();
    assert_eq!(client.v3(1, plain_login("writer", "writer")).await.status, EUA.v3());
    assert_eq!(client.next().await, None, "it is not waited for");
    drop(taken);
    for (client, ledger) in &mut waiting {
        assert_eq!(client.next_v3().await.status, 0);
        assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, *ledger, 0), "what came behind it");
    }
    drop(waiting);
    // A stop does not wait for a turn.
    let _taken = turns.handshake().await;
    let mut client = Client::tls(&bookie, tls).await.unwrap();
    client.send(&login).await;
    while turns.logins() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    bookie.stop().await;
}

/// A request whose first bytes came with a slow login is as good as any, wherever it was cut: a cut inside its length ended the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_may_begin_behind_a_login_and_come_in_pieces() {
    let authority = Authority::new("authority");
    let dir = tempfile::tempdir().unwrap();
    let users = config(dir.path(), &digest_line("writer", "writer", "writer"), false);
    let auth = Auth::open(users, Turns::new(1), Arc::new(SystemRandom)).unwrap();
    let bookie =
        start_auth(Limits::default(), Some(tls::with(&authority, tls::Wanted::default())), auth).await;
    let tls = authority.client(None, &[]);
    let login = framed_v3(1, plain_login("writer", "writer"));
    for cut in 0..10 {
        let mut client = Client::tls(&bookie, tls.clone()).await.unwrap();
        let add = add_frame(1, cut as i64, 10, v2::Flags::NONE, KEY);
        client.send(&[&login[..], &add[..cut]].concat()).await;
        assert_eq!(client.next_v3().await.status, 0, "cut at {cut}");
        client.send(&add[cut..]).await;
        assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, cut as i64), "cut at {cut}");
    }
    bookie.stop().await;
}

/// A connection that waits for START_TLS behind AUTH holds the bytes that came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auth_that_waits_for_start_tls_holds_little() {
    let authority = Authority::new("authority");
    let server = tls::with(&authority, tls::Wanted { is_required: true, ..tls::Wanted::default() });
    let bookie = start_auth(Limits::default(), Some(server), users(false)).await;
    let first = framed_v3(2, Operation::Auth(sasl_message(b"")));
    let mut client = Client::new(&bookie).await;
    client.send(&first).await;
    loop {
        let used = bookie.shared.pools.first.gauge().used;
        if used == first.len() as u64 {
            break;
        }
        if bookie.shared.metrics.connections.get() == 0 {
            // The machine was busy for longer than the bookie waits.
            client = Client::new(&bookie).await;
            client.send(&first).await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // A stop does not wait for it.
    bookie.stop().await;
    drop(client);
}

/// The payload of the next frame in plain text.
async fn plain_frame(socket: &mut TcpStream) -> Bytes {
    let len = socket.read_u32().await.unwrap();
    let mut payload = vec![0; len as usize];
    socket.read_exact(&mut payload).await.unwrap();
    payload.into()
}

/// `connection::ingest::early_auth` invariant 2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_exchange_from_before_tls_is_completed() {
    let authority = Authority::new("authority");
    let server = tls::with(&authority, tls::Wanted::default());
    let bookie = start_auth(Limits::default(), Some(server), users(false)).await;
    let tls = authority.client(None, &[]);
    for is_early in [true, false] {
        let mut socket = TcpStream::connect(bookie.address).await.unwrap();
        socket.write_all(&framed_v3(1, Operation::Auth(sasl_message(b"")))).await.unwrap();
        let challenge = v3::decode_response(plain_frame(&mut socket).await).unwrap().auth_response.unwrap();
        let mut sasl = crate::common::users::sasl_client("writer", "writer");
        let bindery_sasl::digest_md5::Step::Reply(reply) = sasl.step(&challenge.payload).unwrap() else {
            panic!()
        };
        let start = framed_v3(2, Operation::StartTls);
        let response = framed_v3(3, Operation::Auth(sasl_message(&reply)));
        if is_early {
            let together = [&start[..], &response].concat();
            let mut client = Client::tls_behind(socket, tls.clone(), &[&together]).await.unwrap();
            assert_eq!(client.next().await, None);
            continue;
        }
        let mut client = Client::tls_behind(socket, tls.clone(), &[&start]).await.unwrap();
        client.send(&response).await;
        let answer = client.next_v3().await.auth_response.unwrap();
        assert!(answer.payload.starts_with(b"realm="), "it is the first message of another exchange");
        assert_eq!(client.v3(4, v3_add(1, 0)).await.status, EUA.v3());
    }
    assert_eq!(bookie.shared.metrics.auth_succeeded.get(), 0);
    bookie.stop().await;
}

/// `connection::ingest::start_tls` invariant 3: silence behind the handshake has an end, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_to_log_in_runs_from_the_handshake_on() {
    let authority = Authority::new("authority");
    let server = tls::with(&authority, tls::Wanted::default());
    let limits =
        Limits { first_request_max: Duration::from_millis(500), silent_max: None, ..Limits::default() };
    let bookie = start_auth(limits, Some(server), users(false)).await;
    let mut client = loop {
        // On a busy machine the handshake may take as long.
        if let Ok(client) = Client::tls(&bookie, authority.client(None, &[])).await {
            break client;
        }
    };
    assert_eq!(client.next().await, None);
    bookie.stop().await;
}
