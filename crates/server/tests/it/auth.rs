//! Authentication on connections (S3, S4): every request before it, exchanges that go wrong, roles, and what the audit log says. Section 2.5
//! of the protocol reference.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "what an operator puts there")]

use crate::common::certificates::{Authority, Use};
use crate::common::frames::{
    KEY, OwnedV2, add_frame, batch_request, body, fence_request, framed, framed_v3, read_request,
};
use crate::common::users::{config, digest_line, exchange_v2, exchange_v3, sasl_message};
use crate::common::wire::{Bookie, Client, start_auth, start_tls};
use crate::tls;
use bindery_io::SystemRandom;
use bindery_sasl::{Credentials, Secret, plain};
use bindery_server::auth::{Auth, AuthConfig, Provider};
use bindery_server::limits::Limits;
use bindery_server::memory::MemoryPlan;
use bindery_server::turns::Turns;
use bindery_types::MasterKey;
use bindery_wire::entry::ExplicitLac;
use bindery_wire::v3::{self, Operation, proto};
use bindery_wire::{ErrorCode, v2};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const EUA: ErrorCode = ErrorCode::Unauthorized;
/// See `connection::ingest::authenticate`.
const FRAMES_MAX: usize = 32;

/// Users of all kinds, each with its name as password.
pub(crate) fn users(requires_reader: bool) -> Auth {
    let dir = tempfile::tempdir().unwrap();
    let names = ["writer", "reader", "tier", "admin", "writer,reader"];
    let lines = names.map(|roles| digest_line(&roles.replace(',', "-"), roles, roles));
    Auth::open(config(dir.path(), &lines.concat(), requires_reader), Turns::new(1), Arc::new(SystemRandom))
        .unwrap()
}

async fn start(limits: Limits) -> Bookie {
    start_auth(limits, None, users(false)).await
}

/// A connection of this user.
async fn client_of(bookie: &Bookie, user: &str, password: &str) -> Client {
    let mut client = Client::new(bookie).await;
    exchange_v3(&mut client, user, password).await.unwrap();
    client
}

fn key() -> Bytes {
    Bytes::copy_from_slice(KEY.as_bytes())
}

fn explicit_lac(ledger_id: i64) -> Operation {
    let mut lac = BytesMut::new();
    ExplicitLac { ledger_id, last_add_confirmed: 0 }.put(&mut lac);
    Operation::WriteLac(proto::WriteLacRequest { ledger_id, lac: 0, master_key: key(), body: lac.freeze() })
}

pub(crate) fn v3_add(ledger_id: i64, entry_id: i64) -> Operation {
    let body = body(ledger_id, entry_id, entry_id - 1, 10).into();
    Operation::Add(proto::AddRequest { ledger_id, entry_id, master_key: key(), body, ..Default::default() })
}

fn v3_read(ledger_id: i64, entry_id: i64) -> proto::ReadRequest {
    proto::ReadRequest { ledger_id, entry_id, ..Default::default() }
}

/// Every operation of v3 but AUTH and START_TLS, on one ledger.
pub(crate) fn operations(ledger_id: i64) -> Vec<Operation> {
    let fence = Some(proto::read_request::Flag::FenceLedger as i32);
    let piggyback = Some(proto::read_request::Flag::EntryPiggyback as i32);
    let read = v3_read(ledger_id, -1);
    vec![
        v3_add(ledger_id, 0),
        Operation::Read(v3_read(ledger_id, 0)),
        Operation::Read(proto::ReadRequest { flag: fence, master_key: Some(key()), ..read.clone() }),
        Operation::Read(proto::ReadRequest {
            flag: piggyback,
            previous_lac: Some(9),
            time_out: Some(1),
            ..read
        }),
        explicit_lac(ledger_id),
        Operation::ReadLac(proto::ReadLacRequest { ledger_id }),
        Operation::ForceLedger(proto::ForceLedgerRequest { ledger_id }),
        Operation::GetBookieInfo(proto::GetBookieInfoRequest { requested: Some(3) }),
        Operation::GetListOfEntries(proto::GetListOfEntriesOfLedgerRequest { ledger_id }),
        Operation::ReconcileLedgers(proto::ReconcileLedgersRequest::default()),
    ]
}

/// The state is what it was: no add, fence or LAC of a stranger counted (IB6).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_auth_nothing_is_served_and_the_answers_are_those_of_java() {
    let bookie = start(Limits::default()).await;
    let mut client = Client::new(&bookie).await;
    for (txn, operation) in (1..).zip(operations(1)) {
        let kind = operation.kind() as i32;
        let answer = client.v3(txn, operation).await;
        assert_eq!((answer.header.txn_id, answer.header.operation, answer.status), (txn, kind, EUA.v3()));
        let bare = proto::Response { header: answer.header, status: answer.status, ..Default::default() };
        assert_eq!(answer, bare, "there is no inner message");
    }
    // The other protocol, on the same connection.
    client.send(&add_frame(1, 0, 10, v2::Flags::NONE, KEY)).await;
    assert_eq!(client.next_v2().await, OwnedV2::Add(EUA, 1, 0));
    client.send(&add_frame(1, 0, 10, v2::Flags::RECOVERY_ADD, KEY)).await;
    assert_eq!(client.next_v2().await, OwnedV2::Add(EUA, 1, 0));
    for read in [read_request(1, 0), read_request(1, -1), fence_request(1, -1, KEY)] {
        let entry = read.entry_id;
        assert_eq!(client.v2(v2::Request::Read(read)).await, OwnedV2::Read(EUA, 1, entry, Vec::new()));
    }
    assert_eq!(client.v3(50, Operation::StartTls).await.status, ErrorCode::BadRequest.v3());
    assert_eq!(bookie.shared.connections.door().silent(), 1, "it is still a stranger");
    exchange_v3(&mut client, "writer-reader", "writer,reader").await.unwrap();
    assert_eq!(bookie.shared.connections.door().silent(), 0);
    // Nothing of the above is there.
    let read = client.v2(v2::Request::Read(read_request(1, 0))).await;
    assert_eq!(read.code(), ErrorCode::NoLedger);
    client.send(&add_frame(1, 0, 10, v2::Flags::NONE, MasterKey::new([9; 20]))).await;
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, 0), "another key, and no fence");

    // A batch read has no such answer.
    let mut client = Client::new(&bookie).await;
    client.send(&framed(batch_request(1, 0, 1, 1, 1000))).await;
    assert_eq!(client.next().await, None);
    bookie.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_auth_both_protocols_are_served_and_auth_is_answered_as_where_there_is_none() {
    let bookie = start(Limits::default()).await;
    for is_v2 in [true, false] {
        let ledger = 1 + i64::from(is_v2);
        let mut client = Client::new(&bookie).await;
        match is_v2 {
            true => exchange_v2(&mut client, "writer-reader", "writer,reader").await.unwrap(),
            false => exchange_v3(&mut client, "writer-reader", "writer,reader").await.unwrap(),
        }
        client.send(&add_frame(ledger, 0, 10, v2::Flags::NONE, KEY)).await;
        assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, ledger, 0));
        let read = client.v3(9, Operation::Read(v3_read(ledger, 0))).await;
        assert_eq!(read.read_response.unwrap().body.unwrap(), body(ledger, 0, -1, 10));
        // BookKeeper's client ends the exchange with one message more.
        let answer = client.v3(10, Operation::Auth(sasl_message(b""))).await;
        let name = answer.auth_response.unwrap().auth_plugin_name;
        assert_eq!((answer.status, &*name), (0, v3::AUTH_DISABLED_PLUGIN_NAME));
        let message = v3::encode_auth_message(&sasl_message(b""));
        let last = v2::Request::Auth(v2::Auth { version: 2, flags: v2::Flags::NONE, message: &message });
        assert_eq!(client.v2(last).await, OwnedV2::Auth(v3::AUTH_DISABLED_PLUGIN_NAME.to_owned()));
        assert_eq!(client.v3(11, Operation::StartTls).await.status, ErrorCode::BadRequest.v3());
    }
    assert_eq!(bookie.shared.metrics.auth_succeeded.get(), 2);
    bookie.stop().await;
}

fn v2_auth(message: &proto::AuthMessage) -> BytesMut {
    let message = v3::encode_auth_message(message);
    framed(v2::Request::Auth(v2::Auth { version: 2, flags: v2::Flags::NONE, message: &message }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exchanges_that_go_wrong_end_the_connection() {
    let bookie = start(Limits::default()).await;
    // Another plugin: v3 may go on, v2 may not.
    let other = proto::AuthMessage { auth_plugin_name: "other".to_owned(), payload: Bytes::new() };
    let mut client = Client::new(&bookie).await;
    let answer = client.v3(1, Operation::Auth(other.clone())).await;
    assert_eq!((answer.status, answer.auth_response), (EUA.v3(), None));
    exchange_v3(&mut client, "reader", "reader").await.unwrap();
    let mut client = Client::new(&bookie).await;
    client.send(&v2_auth(&other)).await;
    assert_eq!(client.next().await, None);

    // An unknown user and a wrong password look the same, to the byte.
    let mut seen = Vec::new();
    for (user, password) in [("writer", "wrong"), ("nobody", "writer"), ("writer", "")] {
        let mut client = Client::new(&bookie).await;
        let refusal = exchange_v3(&mut client, user, password).await.unwrap_err().unwrap();
        assert_eq!(client.next().await, None, "it is closed");
        seen.push(refusal);
        let mut client = Client::new(&bookie).await;
        assert_eq!(exchange_v2(&mut client, user, password).await, Err(None), "v2 has no such answer");
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
    assert_eq!((seen[0].status, seen[0].auth_response.as_ref()), (EUA.v3(), None));

    // AUTH again instead of a response, a response to no challenge of this connection, and one that is too long.
    for second in [Bytes::new(), Bytes::from_static(b"username=\"writer\""), Bytes::from(vec![b','; 5000])] {
        for is_v2 in [true, false] {
            let mut client = Client::new(&bookie).await;
            let (first, second) = (sasl_message(b""), sasl_message(&second));
            if is_v2 {
                client.send(&v2_auth(&first)).await;
                assert_eq!(client.next_v2().await, OwnedV2::Auth("sasl".to_owned()));
                client.send(&v2_auth(&second)).await;
            } else {
                assert_eq!(client.v3(1, Operation::Auth(first)).await.status, 0);
                assert_eq!(client.v3(2, Operation::Auth(second)).await.status, EUA.v3());
            }
            assert_eq!(client.next().await, None);
        }
    }
    // PLAIN without TLS.
    let message = plain::encode(&Credentials::new("writer", Secret::new("writer")));
    let message = proto::AuthMessage { auth_plugin_name: "sasl-plain".to_owned(), payload: message.into() };
    let mut client = Client::new(&bookie).await;
    assert_eq!(client.v3(1, Operation::Auth(message)).await.status, EUA.v3());
    drop(client);
    bookie.stop().await;
}

/// A request longer than a stranger's buffer is refused by its beginning, and no memory is taken for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_requests_of_strangers_are_not_read() {
    let bookie = start(Limits::default()).await;
    let long = Bytes::from(vec![b','; 100_000]);
    let requests = [
        (framed_v3(7, Operation::Auth(sasl_message(&long))), false),
        (framed_v3(7, v3_add(1, 0)), false),
        (add_frame(1, 0, 100_000, v2::Flags::NONE, KEY), true),
    ];
    for (frame, is_v2) in requests {
        let mut client = Client::new(&bookie).await;
        let is_long = frame.len() > 16 * 1024;
        client.send(&frame[..frame.len().min(16_000)]).await;
        match is_v2 {
            true => assert_eq!(client.next_v2().await, OwnedV2::Add(EUA, 1, 0)),
            false => assert_eq!(client.next_v3().await.status, EUA.v3()),
        }
        if is_long {
            assert_eq!(client.next().await, None);
        }
    }
    let mut client = Client::new(&bookie).await;
    client.send(&v2_auth(&sasl_message(&long))[..16_000]).await;
    assert_eq!(client.next().await, None);
    bookie.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_has_so_many_requests_and_so_much_time() {
    let bookie = start(Limits::default()).await;
    let mut client = Client::new(&bookie).await;
    for _ in 0..FRAMES_MAX {
        assert_eq!(client.v2(v2::Request::Read(read_request(1, 0))).await.code(), EUA);
    }
    client.send(&framed(v2::Request::Read(read_request(1, 0)))).await;
    assert_eq!(client.next().await, None);
    // AUTH itself counts.
    let mut client = Client::new(&bookie).await;
    let other = proto::AuthMessage { auth_plugin_name: "other".to_owned(), payload: Bytes::new() };
    for txn in 0..FRAMES_MAX as u64 {
        assert_eq!(client.v3(txn, Operation::Auth(other.clone())).await.status, EUA.v3());
    }
    client.send(&framed_v3(100, Operation::Auth(other))).await;
    assert_eq!(client.next().await, None);
    bookie.stop().await;

    // Answers do not give it more time, and silence after them neither.
    let limits =
        Limits { first_request_max: Duration::from_millis(300), silent_max: None, ..Limits::default() };
    let bookie = start(limits).await;
    let mut client = Client::new(&bookie).await;
    assert_eq!(client.v2(v2::Request::Read(read_request(1, 0))).await.code(), EUA);
    assert_eq!(client.next().await, None);
    let mut client = Client::new(&bookie).await;
    let answer = client.v3(1, Operation::Auth(sasl_message(b""))).await;
    assert_eq!(answer.status, 0);
    assert_eq!(client.next().await, None);
    bookie.stop().await;
}

/// S8: far more strangers than there are places; some are silent, some send half a request, some begin to log in. A client that has
/// logged in is served all the while, and another one gets the place of a stranger.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_strangers_leaves_places_to_those_who_log_in() {
    const PLACES: usize = 8;
    const FLOOD: usize = 20 * PLACES;
    let bookie = start(Limits { connections_max: PLACES, ..Limits::default() }).await;
    let mut known = client_of(&bookie, "writer-reader", "writer,reader").await;
    let begin = framed_v3(1, Operation::Auth(sasl_message(b"")));
    let mut flood = Vec::new();
    for entry in 0..FLOOD {
        let mut stranger = TcpStream::connect(bookie.address).await.unwrap();
        let said = [&begin[..0], &begin[..10], &begin[..]][entry % 3];
        stranger.write_all(said).await.unwrap();
        flood.push(stranger);
        let entry = entry as i64;
        known.send(&add_frame(1, entry, 100, v2::Flags::NONE, KEY)).await;
        assert_eq!(known.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, entry));
        let read = known.v2(v2::Request::Read(read_request(1, entry))).await;
        assert_eq!(read.code(), ErrorCode::Ok);
    }
    // All places but one are taken by strangers now: the newcomer gets that of one of them.
    let mut newcomer = client_of(&bookie, "reader", "reader").await;
    assert_eq!(newcomer.v2(v2::Request::Read(read_request(1, 0))).await.code(), ErrorCode::Ok);
    let metrics = &bookie.shared.metrics;
    assert!(metrics.connections.get() <= PLACES as i64);
    assert!(metrics.closed_silent.get() >= (FLOOD - PLACES) as u64, "{}", metrics.closed_silent.get());
    assert_eq!(metrics.auth_succeeded.get(), 2);
    drop((known, newcomer, flood));
    bookie.stop().await;
}

/// Requests behind AUTH in the same bytes, and bytes that come one by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_does_not_matter_how_the_bytes_are_cut() {
    let bookie = start(Limits::default()).await;
    let mut client = Client::new(&bookie).await;
    let refused = framed(v2::Request::Read(read_request(1, 0)));
    client.send(&[&refused[..], &refused, &framed_v3(1, Operation::Auth(sasl_message(b"")))].concat()).await;
    assert_eq!(client.next_v2().await.code(), EUA);
    assert_eq!(client.next_v2().await.code(), EUA);
    let challenge = client.next_v3().await.auth_response.unwrap().payload;
    let mut sasl = crate::common::users::sasl_client("writer-reader", "writer,reader");
    let bindery_sasl::digest_md5::Step::Reply(reply) = sasl.step(&challenge).unwrap() else { panic!() };
    let mut bytes = framed_v3(2, Operation::Auth(sasl_message(&reply)));
    for entry in 0..100 {
        bytes.extend_from_slice(&add_frame(1, entry, 300, v2::Flags::NONE, KEY));
    }
    let (all, last) = bytes.split_at(bytes.len() - 100);
    client.send(all).await;
    assert_eq!(client.next_v3().await.status, 0);
    for piece in last.chunks(1) {
        client.send(piece).await;
    }
    for entry in 0..100 {
        assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, entry));
    }
    drop(client);
    bookie.stop().await;
}

/// Each role serves its own requests; the pure table is `auth::rights`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_decide_what_is_served() {
    for requires_reader in [false, true] {
        let bookie = start_auth(Limits::default(), None, users(requires_reader)).await;
        // On these ledgers the operations of v3 succeed.
        let mut all = client_of(&bookie, "writer-reader", "writer,reader").await;
        for (ledger, user) in (1..).zip(["writer", "reader", "tier", "admin"]) {
            all.send(&add_frame(ledger, 0, 10, v2::Flags::NONE, KEY)).await;
            assert_eq!(all.next_v2().await.code(), ErrorCode::Ok);
            let mut client = client_of(&bookie, user, user).await;
            let (may_write, may_read) = (user == "writer", user == "reader" || !requires_reader);
            for (txn, operation) in (10..).zip(operations(ledger)) {
                let needs_write = match &operation {
                    Operation::Add(_) | Operation::WriteLac(_) | Operation::ForceLedger(_) => true,
                    Operation::Read(read) => read.is_fencing(),
                    _ => false,
                };
                let is_tier = matches!(operation, Operation::ReconcileLedgers(_));
                let may = if is_tier {
                    user == "tier"
                } else if needs_write {
                    may_write
                } else {
                    may_read
                };
                let kind = operation.kind();
                let status = client.v3(txn, operation).await.status;
                match (may, is_tier) {
                    (false, _) => assert_eq!(status, EUA.v3(), "{user} {kind:?}"),
                    // There is no object storage.
                    (true, true) => assert_eq!(status, ErrorCode::BadRequest.v3(), "{user} {kind:?}"),
                    // The writer has fenced it by then.
                    (true, false) => assert_ne!(status, EUA.v3(), "{user} {kind:?}"),
                }
            }
            let code = |may| if may { ErrorCode::Ok } else { EUA };
            let recovery = add_frame(ledger, 1, 10, v2::Flags::RECOVERY_ADD, KEY);
            client.send(&recovery).await;
            assert_eq!(client.next_v2().await, OwnedV2::Add(code(may_write), ledger, 1), "{user}");
            // Equal keys in a row: each gets its own answer (IB23).
            let (plain, fence) = (read_request(ledger, 0), fence_request(ledger, 0, KEY));
            let mut reads = BytesMut::new();
            for read in [plain, fence, plain, fence] {
                reads.extend_from_slice(&framed(v2::Request::Read(read)));
            }
            client.send(&reads).await;
            for may in [may_read, may_write, may_read, may_write] {
                assert_eq!(client.next_v2().await.code(), code(may), "{user}");
            }
            assert_eq!(
                client.v2(batch_request(ledger, 0, 1, 1, 1000)).await.code(),
                code(may_read),
                "{user}"
            );
        }
        assert!(bookie.shared.metrics.requests_unauthorized.get() > 10);
        drop(all);
        bookie.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inside_tls_a_name_is_proved_by_both_mechanisms() {
    let authority = Authority::new("authority");
    let server = tls::with(&authority, tls::Wanted { is_required: true, ..tls::Wanted::default() });
    let bookie = start_auth(Limits::default(), Some(server), users(false)).await;
    let config = authority.client(None, &[]);
    let plain_message = |password: &str| {
        let payload = plain::encode(&Credentials::new("writer", Secret::new(password))).into();
        Operation::Auth(proto::AuthMessage { auth_plugin_name: "sasl-plain".to_owned(), payload })
    };
    for (ledger, is_plain) in [(1, false), (2, true)] {
        let mut client = Client::tls(&bookie, config.clone()).await.unwrap();
        assert_eq!(client.v3(1, v3_add(ledger, 0)).await.status, EUA.v3());
        if is_plain {
            let answer = client.v3(2, plain_message("writer")).await;
            let message = answer.auth_response.unwrap();
            assert_eq!((answer.status, &*message.auth_plugin_name), (0, "sasl-plain"));
        } else {
            exchange_v2(&mut client, "writer", "writer").await.unwrap();
        }
        assert_eq!(client.v3(3, v3_add(ledger, 0)).await.status, 0);
    }
    let mut client = Client::tls(&bookie, config).await.unwrap();
    assert_eq!(client.v3(1, plain_message("reader")).await.status, EUA.v3());
    assert_eq!(client.next().await, None);
    // TLS is required: AUTH does not replace it.
    let mut client = Client::new(&bookie).await;
    assert_eq!(client.v3(1, Operation::Auth(sasl_message(b""))).await.status, EUA.v3());
    assert_eq!(client.next().await, None);
    bookie.stop().await;
}

/// BookKeeper's client sends its first message together with START_TLS, in plain text, and gets the answer inside TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auth_may_begin_in_plain_text_behind_start_tls() {
    let authority = Authority::new("authority");
    let server = tls::with(&authority, tls::Wanted { is_required: true, ..tls::Wanted::default() });
    let bookie = start_auth(Limits::default(), Some(server), users(false)).await;
    let config = authority.client(None, &[]);
    let (start, first_v3) =
        (framed_v3(1, Operation::StartTls), framed_v3(2, Operation::Auth(sasl_message(b""))));
    let connect = async |pieces: &[&[u8]]| {
        let socket = TcpStream::connect(bookie.address).await.unwrap();
        Client::tls_behind(socket, config.clone(), pieces).await.unwrap()
    };
    let first_v2 = v2_auth(&sasl_message(b""));
    for (first, is_v3) in [(&first_v3, true), (&first_v2, false)] {
        let together = [&start[..], first].concat();
        let (begin, end) = first.split_at(7);
        let before = [&first[..], &start].concat();
        for pieces in
            [&[&together[..]][..], &[&start, first], &[&start, begin, end], &[&before], &[first, &start]]
        {
            let mut client = connect(pieces).await;
            let payload = client.next().await.unwrap();
            let challenge = if is_v3 {
                v3::decode_response(payload).unwrap().auth_response.unwrap().payload
            } else {
                let v2::Response::Auth { message, .. } = v2::Response::decode(&payload).unwrap() else {
                    panic!()
                };
                v3::decode_auth_message(message).unwrap().payload
            };
            let mut sasl = crate::common::users::sasl_client("writer", "writer");
            let bindery_sasl::digest_md5::Step::Reply(reply) = sasl.step(&challenge).unwrap() else {
                panic!()
            };
            assert_eq!(client.v3(3, Operation::Auth(sasl_message(&reply))).await.status, 0);
            assert_ne!(client.v3(4, v3_add(1, 0)).await.status, EUA.v3());
        }
    }
    // A message with a password in it.
    let message = plain::encode(&Credentials::new("writer", Secret::new("writer")));
    let message = proto::AuthMessage { auth_plugin_name: "sasl-plain".to_owned(), payload: message.into() };
    let mut client = connect(&[&start, &framed_v3(2, Operation::Auth(message))]).await;
    assert_eq!(client.next_v3().await.status, EUA.v3());
    drop(client);
    bookie.stop().await;

    // A bookie that asks for no login answers as always.
    let bookie = start_tls_only(&authority).await;
    for pieces in [&[&start[..], &first_v3][..], &[&[&first_v3[..], &start].concat()]] {
        let socket = TcpStream::connect(bookie.address).await.unwrap();
        let mut client = Client::tls_behind(socket, config.clone(), pieces).await.unwrap();
        let answer = client.next_v3().await;
        assert_eq!(answer.auth_response.unwrap().auth_plugin_name, v3::AUTH_DISABLED_PLUGIN_NAME);
        assert_eq!(client.v3(4, v3_add(1, 0)).await.status, 0);
    }
    bookie.stop().await;
}

async fn start_tls_only(authority: &Authority) -> Bookie {
    let limits = Limits::default();
    let plan = MemoryPlan::new(256 << 20, &limits).unwrap();
    start_tls(limits, plan, tls::with(authority, tls::Wanted::default())).await
}

/// `BookieAuthZFactory`: the first role in the certificate's OU lets its owner in; other certificates do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_in_certificates_let_clients_in() {
    let authority = Authority::new("authority");
    let wanted = tls::Wanted { client_authority: Some(&authority), is_required: false };
    let server = tls::with(&authority, wanted);
    let provider = Provider::Certificates { roles: vec!["writers".to_owned()] };
    let auth = AuthConfig { provider, requires_reader: false, refresh: AuthConfig::REFRESH_DEFAULT };
    let auth = Auth::open(auth, Turns::new(1), Arc::new(SystemRandom)).unwrap();
    let bookie = start_auth(Limits::default(), Some(server), auth).await;
    for (unit, is_in, is_tierer) in [
        ("0:writers", true, false),
        ("1:cluster;0:writers,tier", true, true),
        ("0:others,writers", false, false),
        ("writers", false, false),
    ] {
        let own = authority.issue_to(Use::Client, unit);
        let mut client = Client::tls(&bookie, authority.client(Some(&own), &[])).await.unwrap();
        let status = |may| if may { 0 } else { EUA.v3() };
        assert_eq!(client.v3(1, v3_add(1, 0)).await.status, status(is_in), "{unit}");
        let tier = client.v3(2, Operation::ReconcileLedgers(proto::ReconcileLedgersRequest::default())).await;
        assert_eq!(tier.status != EUA.v3(), is_tierer, "{unit}");
        if !is_in {
            assert_eq!(client.v3(3, Operation::Auth(sasl_message(b""))).await.status, EUA.v3());
        }
    }
    let mut client = Client::of(TcpStream::connect(bookie.address).await.unwrap());
    assert_eq!(client.v3(1, v3_add(1, 0)).await.status, EUA.v3(), "without TLS");
    drop(client);
    bookie.stop().await;
}
