//! Against peers that follow a script: behaviour that a bookie shows once in years, or never.

use std::sync::Arc;
use std::time::Duration;

use bindery_client::connection::{Bookies, ConnectionOptions};
use bindery_client::transport::{
    AddRequest, BatchReadRequest, BookieError, PollRequest, ReadRequest, Transport,
};
use bindery_metadata::{BookieServiceInfo, Layout, RegistrationMode};
use bindery_types::BookieId;
use bindery_wire::frame::{self, Split};
use bindery_wire::v3::{self, proto, response};
use bindery_wire::{ErrorCode, FrameLimit, v2};
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::transport::support::*;

pub struct Peer {
    pub id: BookieId,
    listener: TcpListener,
}

impl Peer {
    pub async fn new() -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Peer { id: bookie(&listener.local_addr().unwrap().to_string()), listener }
    }

    /// What a bookie that listens here registers.
    pub fn info(&self) -> BookieServiceInfo {
        let address = self.listener.local_addr().unwrap();
        BookieServiceInfo::of_bookie((&address.ip().to_string(), address.port()), None)
    }

    pub async fn accept(&self) -> Line {
        let accepted = tokio::time::timeout(PATIENCE, self.listener.accept()).await;
        Line { socket: accepted.unwrap().unwrap().0, buffer: BytesMut::new() }
    }
}

/// One connection, as a bookie has it.
pub struct Line {
    pub socket: TcpStream,
    buffer: BytesMut,
}

impl Line {
    /// The payload of the next request; `None` when the client closed the connection.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            match frame::split(&self.buffer, FrameLimit::DEFAULT).unwrap() {
                Split::Frame(payload) => {
                    self.buffer.advance(payload.start);
                    return Some(self.buffer.split_to(payload.len()).freeze());
                }
                Split::Incomplete { .. } => {
                    let read = tokio::time::timeout(PATIENCE, self.socket.read_buf(&mut self.buffer)).await;
                    if !matches!(read.unwrap(), Ok(count) if count > 0) {
                        return None;
                    }
                }
            }
        }
    }

    pub async fn next_add(&mut self) -> (i64, i64) {
        let payload = self.next().await.unwrap();
        match v2::Request::decode(&payload).unwrap() {
            v2::Request::Add(add) => (add.ledger_id, add.entry_id),
            other => panic!("{other:?}"),
        }
    }

    pub async fn next_v3(&mut self) -> v3::Request {
        v3::Request::decode(self.next().await.unwrap()).unwrap()
    }

    pub async fn answer_adds(&mut self, answers: impl IntoIterator<Item = (i64, i64, ErrorCode)>) {
        let mut out = BytesMut::new();
        for (ledger_id, entry_id, code) in answers {
            v2::put_add_response(2, code, ledger_id, entry_id, &mut out);
        }
        self.socket.write_all(&out).await.unwrap();
    }

    /// Answers the batch read that comes next, with an entry.
    pub async fn answer_batch(&mut self) {
        let request = self.next().await.unwrap();
        let Ok(v2::Request::BatchRead(read)) = v2::Request::decode(&request) else { panic!("{request:?}") };
        self.answer_batch_read(&read).await;
    }

    pub async fn answer_batch_read(&mut self, read: &v2::BatchRead) {
        let (ledger, id, mut out) = (read.ledger_id, read.request_id, BytesMut::new());
        v2::put_batch_read_response(2, ledger, 0, id, false, [&b"body"[..]].into_iter(), &mut out);
        self.socket.write_all(&out).await.unwrap();
    }

    pub async fn answer_v3(&mut self, message: proto::Response) {
        let mut out = BytesMut::new();
        v3::put_frame(&message, &mut out);
        self.socket.write_all(&out).await.unwrap();
    }

    pub async fn until_closed(mut self) -> bool {
        while self.next().await.is_some() {}
        true
    }
}

pub async fn bookies(options: ConnectionOptions) -> Arc<Bookies> {
    Arc::new(Bookies::new(registration(&cluster().await).await, options))
}

fn read_last() -> ReadRequest {
    ReadRequest { ledger: ledger(1), entry: None, fence: None }
}

/// Task invariant 1.
#[tokio::test]
async fn a_request_is_unreachable_only_when_no_byte_of_it_left() {
    let size = 100_000;
    // On a busy machine the default is over before the peer is gone.
    let options =
        ConnectionOptions { request_timeout: Duration::from_secs(300), ..ConnectionOptions::default() };
    for taken in [0, 1, size * 3 + 5, size * 10] {
        let (bookies, peer, sink) = (bookies(options).await, Peer::new().await, Recorder::new());
        // More than the kernel takes at once.
        for tag in 0..300 {
            sink.send(&bookies, &peer.id, add(1, tag, tag as u64, size));
        }
        let mut line = peer.accept().await;
        let mut seen = vec![0; taken];
        line.socket.read_exact(&mut seen).await.unwrap();
        // Until the kernel takes no more.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(sink.count(), 0);
        drop(line);
        let outcomes = sink.outcomes(300).await;
        assert!(outcomes.is_sorted_by_key(|(tag, _)| *tag));
        let is_lost =
            |result: &Result<(), BookieError>| matches!(result, Err(BookieError::LostUnanswered(_)));
        let lost = outcomes.iter().filter(|(_, result)| is_lost(result)).count();
        let frame = 4 + v2::ADD_BODY_OFFSET_BYTES + 32 + size;
        assert!(lost >= taken.div_ceil(frame), "{lost} may have been seen, {taken} bytes were");
        assert!(lost < 300, "the kernel took everything: the test has too few bytes");
        for (_, result) in &outcomes[lost..] {
            assert!(matches!(result, Err(BookieError::Unreachable(_))), "{result:?}");
        }
    }
}

/// Lane invariant 3. A Java bookie refuses adds beyond 10,000, and that is no failure of its own.
#[tokio::test]
async fn a_bookie_is_not_sent_more_adds_than_it_takes() {
    const ADDS: usize = 30_000;
    let (bookies, peer, sink) =
        (bookies(ConnectionOptions::default()).await, Peer::new().await, Recorder::new());
    for tag in 0..ADDS {
        sink.send(&bookies, &peer.id, add(1, tag as i64, tag as u64, 10));
    }
    let (mut line, mut answered, mut most) = (peer.accept().await, 0, 0);
    while answered < ADDS {
        let mut owed = Vec::new();
        while let Ok((ledger, entry)) =
            tokio::time::timeout(Duration::from_millis(200), line.next_add()).await
        {
            assert_eq!(entry as usize, answered + owed.len(), "in their order");
            owed.push((ledger, entry, ErrorCode::Ok));
        }
        assert!(!owed.is_empty(), "{answered} were answered, and no more come");
        most = most.max(owed.len());
        answered += owed.len();
        line.answer_adds(owed).await;
    }
    assert!((5_000..10_000).contains(&most), "{most} at a time");
    assert!(sink.outcomes(ADDS).await.iter().all(|(_, result)| result.is_ok()));
}

/// Lane invariant 3: reads and fences do not wait for the answers to adds that a bookie owes.
#[tokio::test]
async fn reads_pass_adds_that_wait_for_answers() {
    const ADDS: i64 = 6_000;
    let (bookies, peer, sink) =
        (bookies(ConnectionOptions::default()).await, Peer::new().await, Recorder::new());
    let batch = || BatchReadRequest {
        ledger: ledger(2),
        first: entry(0),
        stride: 1,
        count_max: 9,
        size_bytes_max: 99,
    };
    let known = async { peer.accept().await.answer_batch().await };
    let (entries, ()) = tokio::join!(bookies.batch_read(&peer.id, batch()), known);
    assert!(entries.is_ok());
    for tag in 0..ADDS {
        sink.send(&bookies, &peer.id, add(1, tag, tag as u64, 10));
    }
    let mut line = peer.accept().await;
    assert_eq!(line.next_add().await, (1, 0));
    let fence = Some(KEY);
    let (read, batch_read) = (
        bookies.read(&peer.id, ReadRequest { ledger: ledger(2), entry: Some(entry(7)), fence }),
        bookies.batch_read(&peer.id, batch()),
    );
    let answers = async {
        // Each on a connection of its own, in either order.
        let mut others = Vec::new();
        for _ in 0..2 {
            let mut other = peer.accept().await;
            let request = other.next().await.unwrap();
            match v2::Request::decode(&request) {
                Ok(v2::Request::BatchRead(read)) => other.answer_batch_read(&read).await,
                _ => {
                    let request = v3::Request::decode(request).unwrap();
                    let v3::Operation::Read(read) = &request.operation else { panic!("{request:?}") };
                    assert_eq!((read.ledger_id, read.entry_id), (2, 7));
                }
            }
            others.push(other);
        }
        others
    };
    let passed = async {
        tokio::select! {
            (entries, _others) = async { tokio::join!(batch_read, answers) } => assert!(entries.is_ok()),
            answer = read => panic!("{answer:?}"),
        }
    };
    assert!(tokio::time::timeout(PATIENCE, passed).await.is_ok());
}

/// What a Java bookie before 4.17 does.
#[tokio::test]
async fn a_bookie_that_hangs_up_on_a_batch_read_keeps_its_other_connection_and_is_not_asked_again() {
    let (bookies, peer, sink) =
        (bookies(ConnectionOptions::default()).await, Peer::new().await, Recorder::new());
    sink.send(&bookies, &peer.id, add(1, 0, 0, 10));
    let mut line = peer.accept().await;
    let under_way = line.next_add().await;
    let batch = || BatchReadRequest {
        ledger: ledger(1),
        first: entry(0),
        stride: 1,
        count_max: 9,
        size_bytes_max: 1,
    };
    let unknown = Err(BookieError::Refused(ErrorCode::BadRequest));
    let (asked, both) = (bookies.batch_read(&peer.id, batch()), bookies.batch_read(&peer.id, batch()));
    let hangs_up = async {
        let mut trial = peer.accept().await;
        let request = trial.next().await.unwrap();
        assert!(matches!(v2::Request::decode(&request).unwrap(), v2::Request::BatchRead(_)));
    };
    let (first, second, ()) = tokio::join!(asked, both, hangs_up);
    assert_eq!((first, second), (unknown.clone(), unknown.clone()));
    assert_eq!(bookies.batch_read(&peer.id, batch()).await, unknown, "without asking");
    line.answer_adds([(under_way.0, under_way.1, ErrorCode::Ok)]).await;
    assert_eq!(sink.outcomes(1).await, [(0, Ok(()))]);
    let more = tokio::time::timeout(Duration::from_millis(200), peer.accept());
    assert!(more.await.is_err(), "no connection was made besides");
}

#[tokio::test]
async fn a_bookie_that_answers_a_batch_read_is_asked_for_more_beside_all_else() {
    let (bookies, peer) = (bookies(ConnectionOptions::default()).await, Peer::new().await);
    let batch = || BatchReadRequest {
        ledger: ledger(1),
        first: entry(0),
        stride: 1,
        count_max: 9,
        size_bytes_max: 99,
    };
    let first = async {
        let mut trial = peer.accept().await;
        trial.answer_batch().await;
        assert!(trial.until_closed().await, "it ends with its request");
    };
    let (entries, ()) = tokio::join!(bookies.batch_read(&peer.id, batch()), first);
    assert_eq!(entries.unwrap(), [&b"body"[..]]);
    let (again, sink) = (bookies.batch_read(&peer.id, batch()), Recorder::new());
    sink.send(&bookies, &peer.id, add(1, 0, 0, 10));
    let mut line = peer.accept().await;
    line.answer_batch().await;
    assert_eq!(again.await.unwrap(), [&b"body"[..]]);
    let (ledger, entry) = line.next_add().await;
    line.answer_adds([(ledger, entry, ErrorCode::Ok)]).await;
    assert_eq!(sink.outcomes(1).await, [(0, Ok(()))], "over the same connection");
}

/// A metadata store that does not answer keeps nobody from a bookie whose id is its address.
#[tokio::test]
async fn a_bookie_is_reached_again_while_the_metadata_store_hangs() {
    let (cluster, peer) = (cluster().await, Peer::new().await);
    let store = Arc::new(cluster.open());
    let layout = Layout::open(store.clone(), "/ledgers", None).await.unwrap();
    let options =
        ConnectionOptions { connect_timeout: Duration::from_secs(1), ..ConnectionOptions::default() };
    let bookies = Bookies::new(layout.registration(), options);
    for _ in 0..2 {
        let asks = async {
            loop {
                let _ = bookies.read(&peer.id, read_last()).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            line = peer.accept() => drop(line),
            () = asks => {}
        }
        store.hang();
    }
}

/// The one that had the address may still answer there, or somebody else: nothing on the wire tells.
#[tokio::test]
async fn a_bookie_with_a_chosen_id_is_looked_for_again_after_each_connection() {
    let registration = registration(&cluster().await).await;
    let (before, after, id) = (Peer::new().await, Peer::new().await, bookie("named"));
    let bookies = Bookies::new(registration.clone(), quick(500));
    let sink = Recorder::new();
    registration.register(&id, RegistrationMode::Writable, &before.info()).await.unwrap();
    sink.send(&bookies, &id, add(1, 0, 0, 10));
    let mut line = before.accept().await;
    let (ledger, entry) = line.next_add().await;
    line.answer_adds([(ledger, entry, ErrorCode::Ok)]).await;
    assert_eq!(sink.outcomes(1).await, [(0, Ok(()))]);
    registration.register(&id, RegistrationMode::Writable, &after.info()).await.unwrap();
    drop(line);
    let moved = tokio::spawn(async move {
        let mut line = after.accept().await;
        let (ledger, entry) = line.next_add().await;
        line.answer_adds([(ledger, entry, ErrorCode::Ok)]).await;
        line
    });
    // Those that find the old connection ended are lost.
    for tag in 1.. {
        sink.send(&bookies, &id, add(1, tag as i64, tag, 10));
        let outcomes = sink.outcomes(tag as usize + 1).await;
        match &outcomes[tag as usize] {
            (_, Ok(())) => break,
            (_, Err(error)) => {
                assert_ne!(*error, BookieError::TimedOut(Duration::from_millis(500)), "sent where it was")
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(moved.await.unwrap());
}

#[tokio::test]
async fn while_nobody_listens_requests_fail_at_once_until_somebody_does() {
    let (bookies, peer) = (bookies(ConnectionOptions::default()).await, Peer::new().await);
    let Peer { id, listener } = peer;
    let address = listener.local_addr().unwrap();
    drop(listener);
    // Each at once: a thousand time-outs would take longer than a test may.
    let all = async {
        for _ in 0..1000 {
            let error = bookies.read(&id, read_last()).await.unwrap_err();
            assert!(matches!(&error, BookieError::Unreachable(why) if why.contains("refused")), "{error}");
            let lac = bookies.read_lac(&id, ledger(1)).await.unwrap_err();
            assert!(!lac.is_unknown(), "{lac}");
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("each at once");
    let listener = TcpListener::bind(address).await.unwrap();
    let peer = Peer { id, listener };
    let serve = async {
        let mut line = peer.accept().await;
        line.next().await.unwrap();
        let mut out = BytesMut::new();
        v2::put_read_response(2, 1, -1, b"found", &mut out);
        line.socket.write_all(&out).await.unwrap();
        line
    };
    let ask = async {
        loop {
            match bookies.read(&peer.id, read_last()).await {
                Ok(found) => return found,
                Err(BookieError::Unreachable(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(other) => panic!("{other}"),
            }
        }
    };
    let (_line, found) = tokio::time::timeout(PATIENCE, async { tokio::join!(serve, ask) }).await.unwrap();
    assert_eq!(found, &b"found"[..]);
}

/// `adds` and `pending` invariants 2 and 3: the place of an overdue request takes its late answer.
#[tokio::test]
async fn a_late_answer_is_not_taken_for_the_answer_to_an_equal_request() {
    let timeout = Duration::from_millis(600);
    let (bookies, peer, sink) = (bookies(quick(600)).await, Peer::new().await, Recorder::new());
    let begin = tokio::time::Instant::now();
    sink.send(&bookies, &peer.id, add(1, 0, 1, 10));
    let first = tokio::spawn({
        let (bookies, id) = (bookies.clone(), peer.id.clone());
        async move { bookies.read(&id, read_last()).await }
    });
    let mut line = peer.accept().await;
    assert_eq!(line.next_add().await, (1, 0));
    line.next().await.unwrap();
    assert_eq!(sink.outcomes(1).await, [(1, Err(BookieError::TimedOut(timeout)))]);
    assert_eq!(first.await.unwrap(), Err(BookieError::TimedOut(timeout)));
    assert!(begin.elapsed() > timeout / 2, "{:?}", begin.elapsed());

    sink.send(&bookies, &peer.id, add(1, 0, 2, 10));
    let second = bookies.read(&peer.id, read_last());
    line.next_add().await;
    line.next().await.unwrap();
    line.answer_adds([(1, 0, ErrorCode::Fenced)]).await;
    let mut out = BytesMut::new();
    v2::put_read_response(2, 1, -1, b"old", &mut out);
    v2::put_read_response(2, 1, -1, b"new", &mut out);
    line.socket.write_all(&out).await.unwrap();
    assert_eq!(second.await.unwrap(), &b"new"[..]);
    assert_eq!(sink.count(), 1, "the late answer is dropped");
    line.answer_adds([(1, 0, ErrorCode::Ok)]).await;
    assert_eq!(sink.outcomes(2).await[1], (2, Ok(())));
}

#[tokio::test]
async fn answers_in_any_order_find_their_requests() {
    let (bookies, peer, sink) =
        (bookies(ConnectionOptions::default()).await, Peer::new().await, Recorder::new());
    // Ascending runs, a re-sent tail, equal keys, several ledgers.
    let keys: Vec<(i64, i64)> =
        (0..3000).map(|at| (at % 3, at / 3)).chain((1500..3000).map(|at| (at % 3, at / 3))).collect();
    for (tag, (ledger_id, entry_id)) in keys.iter().enumerate() {
        sink.send(&bookies, &peer.id, add(*ledger_id, *entry_id, tag as u64, 20));
    }
    let mut line = peer.accept().await;
    for key in &keys {
        assert_eq!(line.next_add().await, *key, "transport invariant 2");
    }
    // Any order; the first answer of a key is OK and the second one is not.
    let mut order: Vec<usize> = (0..keys.len()).collect();
    let mut dice = Dice(5);
    for at in (1..order.len()).rev() {
        let other = dice.roll(at as u64 + 1) as usize;
        order.swap(at, other);
    }
    let mut seen = std::collections::HashSet::new();
    for part in order.chunks(700) {
        let answers: Vec<_> = part
            .iter()
            .map(|at| {
                let (ledger_id, entry_id) = keys[*at];
                let code = if seen.insert(keys[*at]) { ErrorCode::Ok } else { ErrorCode::Io };
                (ledger_id, entry_id, code)
            })
            .collect();
        line.answer_adds(answers).await;
    }
    for answer in sink.answers(keys.len()).await {
        let tag = answer.tag.0 as usize;
        let expected = if tag < 3000 { Ok(()) } else { Err(BookieError::Refused(ErrorCode::Io)) };
        assert_eq!((answer.entry.get(), answer.result), (keys[tag].1, expected), "tag {tag}");
    }
}

#[tokio::test]
async fn answers_to_nothing_are_ignored() {
    let (bookies, peer, sink) =
        (bookies(ConnectionOptions::default()).await, Peer::new().await, Recorder::new());
    sink.send(&bookies, &peer.id, add(1, 5, 9, 10));
    let mut line = peer.accept().await;
    line.next_add().await;
    line.answer_adds([
        (2, 5, ErrorCode::Ok),
        (1, 4, ErrorCode::Ok),
        (1, 7, ErrorCode::Io),
        (-1, -1, ErrorCode::Io),
    ])
    .await;
    let mut out = BytesMut::new();
    v2::put_read_response(2, 1, 5, b"body", &mut out);
    v2::put_batch_read_response(2, 1, 5, 77, false, [&b"body"[..]].into_iter(), &mut out);
    v2::put_auth_response(2, b"", &mut out);
    v3::put_frame(&response::add(5, ErrorCode::Ok, 1, 5), &mut out);
    line.socket.write_all(&out).await.unwrap();
    line.answer_adds([(1, 5, ErrorCode::ReadOnly), (1, 5, ErrorCode::Ok)]).await;
    sink.send(&bookies, &peer.id, add(1, 6, 10, 10));
    line.next_add().await;
    line.answer_adds([(1, 6, ErrorCode::Ok)]).await;
    assert_eq!(sink.outcomes(2).await, [(9, Err(BookieError::Refused(ErrorCode::ReadOnly))), (10, Ok(()))]);
}

#[tokio::test]
async fn what_is_no_answer_ends_the_connection() {
    let mut unknown_code = Vec::new();
    v2::put_add_response(2, ErrorCode::Ok, 1, 0, &mut unknown_code);
    unknown_code[11] = 3;
    let malformed: [&[u8]; 7] = [
        &[0xff, 0xff, 0xff, 0xff],
        &{
            // Far above the limit, and not the beginning of an answer.
            let mut bytes = [0; 68];
            bytes[0] = 0x7f;
            bytes
        },
        &[0, 0, 0, 0],
        &[0, 0, 0, 4, 2, 9, 0, 0],
        &[0, 0, 0, 8, 2, 1, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 2, 0x0a, 0x7f],
        &unknown_code,
    ];
    for bytes in malformed {
        let (bookies, peer, sink) = (bookies(quick(5000)).await, Peer::new().await, Recorder::new());
        for tag in 0..3 {
            sink.send(&bookies, &peer.id, add(1, tag, tag as u64, 10));
        }
        let mut line = peer.accept().await;
        for _ in 0..3 {
            line.next_add().await;
        }
        // An answer before the malformed bytes counts.
        line.answer_adds([(1, 0, ErrorCode::Ok)]).await;
        line.socket.write_all(bytes).await.unwrap();
        let outcomes = sink.outcomes(3).await;
        assert_eq!(outcomes[0], (0, Ok(())));
        for (_, result) in &outcomes[1..] {
            assert!(matches!(result, Err(BookieError::Unexpected(_))), "{bytes:?}: {result:?}");
        }
        assert!(line.until_closed().await);
        // The next request gets a new connection.
        sink.send(&bookies, &peer.id, add(1, 3, 3, 10));
        let mut line = peer.accept().await;
        assert_eq!(line.next_add().await, (1, 3));
    }
}

const LIMIT: u32 = 2000;

/// With a frame limit that is soon exceeded.
async fn narrow() -> Arc<Bookies> {
    bookies(ConnectionOptions { frame_limit: FrameLimit::new(LIMIT).unwrap(), ..quick(5000) }).await
}

/// In pieces of so many bytes.
async fn send_in_pieces(line: &mut Line, bytes: &[u8], size: usize) {
    line.socket.set_nodelay(true).unwrap();
    for piece in bytes.chunks(size) {
        line.socket.write_all(piece).await.unwrap();
    }
}

/// Whatever pieces it comes in, and whether or not the fixed buffer holds it: answers before and behind it are taken.
#[tokio::test]
async fn an_answer_above_the_frame_limit_fails_its_request_and_nothing_else() {
    let (bookies, peer, sink) = (narrow().await, Peer::new().await, Recorder::new());
    let mut line = None;
    for (size, piece) in
        [(LIMIT as usize, 1), (3000, 7), (64 * 1024, 100), (200_000, 4001), (5 << 20, 1 << 20)]
    {
        let read = |at| ReadRequest { ledger: ledger(1), entry: Some(entry(at)), fence: None };
        let (first, large, last) = (
            bookies.read(&peer.id, read(0)),
            bookies.read(&peer.id, read(1)),
            bookies.read(&peer.id, read(2)),
        );
        sink.send(&bookies, &peer.id, add(1, size as i64, size as u64, 10));
        let line = match &mut line {
            Some(line) => line,
            none => none.insert(peer.accept().await),
        };
        for _ in 0..4 {
            line.next().await.unwrap();
        }
        let mut out = Vec::new();
        v2::put_read_response(2, 1, 0, b"before", &mut out);
        v2::put_read_response(2, 1, 1, &vec![7; size], &mut out);
        v2::put_add_response(2, ErrorCode::Ok, 1, size as i64, &mut out);
        v2::put_read_response(2, 1, 2, b"behind", &mut out);
        let (first, large, last, ()) = tokio::join!(first, large, last, send_in_pieces(line, &out, piece));
        assert_eq!((first, last), (Ok(Bytes::from("before")), Ok(Bytes::from("behind"))));
        let error = large.unwrap_err();
        let (size_bytes, limit_bytes) = (size as u64 + 28, u64::from(LIMIT));
        assert_eq!(error, BookieError::AnswerTooLarge { size_bytes, limit_bytes });
        assert!(error.to_string().contains("--frame-limit"), "{error}");
    }
    assert!(sink.outcomes(5).await.iter().all(|(_, result)| result.is_ok()));
}

#[tokio::test]
async fn batches_and_control_answers_above_the_frame_limit_fail_alone_as_well() {
    let (bookies, peer) = (narrow().await, Peer::new().await);
    let first = BatchReadRequest {
        ledger: ledger(1),
        first: entry(0),
        stride: 1,
        count_max: 9,
        size_bytes_max: 1 << 20,
    };
    let large = |line: &mut Line, read: &v2::BatchRead| {
        assert_eq!(read.max_size_bytes, i64::from(LIMIT), "more would be for nothing");
        let mut out = Vec::new();
        let id = read.request_id;
        v2::put_batch_read_response(2, read.ledger_id, 0, id, false, [&[1; 3000][..]].into_iter(), &mut out);
        line.socket.try_write(&out).unwrap();
    };
    // The bookie knows the request: the next one goes over the common connection.
    for _ in 0..2 {
        let answer = async {
            let mut line = peer.accept().await;
            let request = line.next().await.unwrap();
            let Ok(v2::Request::BatchRead(read)) = v2::Request::decode(&request) else {
                panic!("{request:?}")
            };
            large(&mut line, &read);
            line
        };
        let (outcome, _line) = tokio::join!(bookies.batch_read(&peer.id, first.clone()), answer);
        assert!(matches!(outcome, Err(BookieError::AnswerTooLarge { .. })), "{outcome:?}");
    }
    let (asked, next) = (bookies.read_lac(&peer.id, ledger(1)), bookies.read_lac(&peer.id, ledger(1)));
    let answers = async {
        let mut line = peer.accept().await;
        let ids = [line.next_v3().await.txn_id, line.next_v3().await.txn_id];
        let body = Some(Bytes::from(vec![3; 100_000]));
        line.answer_v3(response::read_lac(ids[0], ErrorCode::Ok, 1, None, body)).await;
        let body = Some(Bytes::from("small"));
        line.answer_v3(response::read_lac(ids[1], ErrorCode::Ok, 1, None, body)).await;
        line
    };
    let (asked, next, _line) = tokio::join!(asked, next, answers);
    assert!(matches!(asked, Err(BookieError::AnswerTooLarge { .. })), "{asked:?}");
    assert_eq!(next.unwrap().last_entry, Some(Bytes::from("small")));
}

/// A stream with such a frame that finds no request cannot be trusted.
#[tokio::test]
async fn a_frame_above_the_limit_that_answers_nothing_ends_the_connection_and_says_which_limit_it_was() {
    let mut of_another_read = Vec::new();
    v2::put_read_response(2, 1, 8, &[0; 5000], &mut of_another_read);
    let mut of_an_add = of_another_read.clone();
    of_an_add[5] = 1;
    let mut v3 = BytesMut::new();
    let message = response::read_lac(77, ErrorCode::Ok, 1, None, Some(Bytes::from(vec![0; 5000])));
    v3::put_frame(&message, &mut v3);
    for bytes in [&of_another_read[..], &of_an_add, &v3] {
        let (bookies, peer) = (narrow().await, Peer::new().await);
        let read = bookies.read(&peer.id, read_last());
        let answer = async {
            let mut line = peer.accept().await;
            line.next().await.unwrap();
            // The client may hang up before it has all of it.
            let _ = line.socket.write_all(bytes).await;
            line
        };
        let (outcome, line) = tokio::join!(read, answer);
        let Err(BookieError::Unexpected(why)) = outcome else { panic!("{outcome:?}") };
        assert!(why.contains("frame limit of 2000") && why.contains("--frame-limit"), "{why}");
        assert!(line.until_closed().await);
    }
}

#[tokio::test]
async fn a_peer_that_says_nothing_is_left() {
    let (bookies, peer, sink) = (bookies(quick(200)).await, Peer::new().await, Recorder::new());
    sink.send(&bookies, &peer.id, add(1, 0, 0, 10));
    let mut line = peer.accept().await;
    line.next_add().await;
    assert!(line.until_closed().await, "`Verdict::Silent`");
    let lac = bookies.read_lac(&peer.id, ledger(1));
    let mut line = peer.accept().await;
    line.next().await.unwrap();
    assert_eq!(lac.await, Err(BookieError::TimedOut(Duration::from_millis(200))));
    assert!(line.until_closed().await, "`Verdict::Silent`");
    assert_eq!(sink.outcomes(1).await, [(0, Err(BookieError::TimedOut(Duration::from_millis(200))))]);
}

#[tokio::test]
async fn a_force_that_is_overdue_does_not_cost_the_connection() {
    // Else the next force would come over another one than the acknowledgements it is to cover, and stop the writer.
    let (bookies, peer) = (bookies(quick(2000)).await, Peer::new().await);
    let first = bookies.force(&peer.id, ledger(1));
    let mut line = peer.accept().await;
    let asked = line.next_v3().await;
    assert_eq!(first.await, Err(BookieError::TimedOut(Duration::from_millis(2000))));
    let second = bookies.force(&peer.id, ledger(1));
    let again = line.next_v3().await;
    for txn_id in [asked.txn_id, again.txn_id] {
        line.answer_v3(response::force_ledger(txn_id, ErrorCode::Ok, 1)).await;
    }
    second.await.expect("over the connection that there was");
}

#[tokio::test]
async fn a_peer_that_takes_nothing_is_left_and_nothing_piles_up() {
    let (bookies, peer, sink) = (bookies(quick(300)).await, Peer::new().await, Recorder::new());
    for tag in 0..400 {
        sink.send(&bookies, &peer.id, add(1, tag, tag as u64, 100_000));
    }
    let line = peer.accept().await;
    let outcomes = sink.outcomes(400).await;
    assert!(outcomes.iter().all(|(_, result)| result.as_ref().is_err_and(|error| {
        matches!(error, BookieError::TimedOut(_) | BookieError::Lost | BookieError::Unreachable(_))
    })));
    assert!(line.until_closed().await, "`Verdict::TakesNothing`");
}

#[tokio::test]
async fn a_peer_that_owes_answers_for_long_is_left() {
    let (bookies, peer, sink) = (bookies(quick(100)).await, Peer::new().await, Recorder::new());
    let begin = tokio::time::Instant::now();
    sink.send(&bookies, &peer.id, add(1, 0, 0, 10));
    let mut line = peer.accept().await;
    line.next_add().await;
    // Entry 0 is never answered, all others are.
    let left = async {
        for at in 1.. {
            sink.send(&bookies, &peer.id, add(1, at, at as u64, 10));
            let Some(_) = line.next().await else { break };
            line.answer_adds([(1, at, ErrorCode::Ok)]).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, left).await.expect("it is left");
    assert!(begin.elapsed() > Duration::from_millis(500), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn closing_answers_everything_and_all_that_follows() {
    let (bookies, peer, sink) =
        (bookies(ConnectionOptions::default()).await, Peer::new().await, Recorder::new());
    for tag in 0..100 {
        sink.send(&bookies, &peer.id, add(1, tag, tag as u64, 10));
    }
    let (read, lac) = (bookies.read(&peer.id, read_last()), bookies.read_lac(&peer.id, ledger(1)));
    let line = peer.accept().await;
    bookies.close().await;
    assert_eq!((read.await, lac.await), (Err(BookieError::Closed), Err(BookieError::Closed)));
    assert!(line.until_closed().await);
    sink.send(&bookies, &peer.id, add(1, 100, 100, 10));
    sink.send(&bookies, &bookie("never-used"), add(1, 101, 101, 10));
    let poll = PollRequest { ledger: ledger(1), previous: None, wait: Duration::from_secs(1) };
    assert_eq!(bookies.poll_lac(&bookie("never-used"), poll).await, Err(BookieError::Closed));
    let batch =
        BatchReadRequest { ledger: ledger(1), first: entry(0), stride: 1, count_max: 1, size_bytes_max: 1 };
    assert_eq!(bookies.batch_read(&peer.id, batch).await, Err(BookieError::Closed));
    let outcomes = sink.outcomes(102).await;
    assert!(outcomes.iter().all(|(_, result)| *result == Err(BookieError::Closed)));
    bookies.close().await;
}

/// Task invariant 4.
#[test]
fn dropping_answers_everything_even_with_the_runtime() {
    for drops_runtime_first in [false, true] {
        let sink = Recorder::new();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (bookies, lines) = runtime.block_on(async {
            let bookies = bookies(ConnectionOptions::default()).await;
            let (talking, deaf) = (Peer::new().await, Peer::new().await);
            for tag in 0..100 {
                sink.send(&bookies, &talking.id, add(1, tag, tag as u64, 10));
                sink.send(&bookies, &deaf.id, add(1, tag, 100 + tag as u64, 10));
            }
            let mut line = talking.accept().await;
            line.next_add().await;
            (bookies, (line, deaf))
        });
        if drops_runtime_first {
            drop(runtime);
            // Nobody is left to answer; it must not hang or panic.
            sink.send(&bookies, &bookie("127.0.0.1:1"), add(1, 0, 0, 10));
            drop(bookies);
        } else {
            drop(bookies);
            let outcomes = runtime.block_on(sink.outcomes(200));
            assert!(outcomes.iter().all(|(_, result)| *result == Err(BookieError::Closed)));
        }
        assert_eq!(sink.count(), 200);
        drop(lines);
    }
}

#[tokio::test]
async fn control_requests_are_told_apart_by_their_ids() {
    let (bookies, peer) = (bookies(quick(1000)).await, Peer::new().await);
    let poll = PollRequest { ledger: ledger(1), previous: Some(entry(3)), wait: Duration::from_millis(1500) };
    let begin = tokio::time::Instant::now();
    let (poll, first, second, third) = (
        bookies.poll_lac(&peer.id, poll),
        bookies.read_lac(&peer.id, ledger(1)),
        bookies.read_lac(&peer.id, ledger(1)),
        bookies.read_lac(&peer.id, ledger(1)),
    );
    let mut line = peer.accept().await;
    let asked = line.next_v3().await;
    match &asked.operation {
        v3::Operation::Read(read) => {
            assert!(read.is_long_poll() && read.wants_entry_piggyback());
            assert_eq!((read.entry_id, read.previous_lac, read.time_out), (-1, Some(3), Some(1500)));
        }
        other => panic!("{other:?}"),
    }
    let ids = [line.next_v3().await.txn_id, line.next_v3().await.txn_id, line.next_v3().await.txn_id];
    line.answer_v3(response::without_body(ids[2], proto::OperationType::ReadLac, ErrorCode::Ok)).await;
    line.answer_v3(response::read_lac(ids[1], ErrorCode::NoEntry, 1, None, None)).await;
    assert!(matches!(third.await, Err(BookieError::Unexpected(_))));
    assert_eq!(second.await, Err(BookieError::Refused(ErrorCode::NoEntry)));
    assert_eq!(first.await, Err(BookieError::TimedOut(Duration::from_secs(1))));
    // A long poll may take its wait in addition.
    let result = poll.await;
    assert!(begin.elapsed() > Duration::from_millis(2000), "{:?}", begin.elapsed());
    assert_eq!(result, Err(BookieError::TimedOut(Duration::from_millis(2500))));
}

#[tokio::test]
async fn a_recovery_add_says_so() {
    let (bookies, peer, sink) =
        (bookies(ConnectionOptions::default()).await, Peer::new().await, Recorder::new());
    sink.send(&bookies, &peer.id, AddRequest { is_recovery: true, ..add(1, 0, 0, 20_000) });
    let mut line = peer.accept().await;
    let payload = line.next().await.unwrap();
    let v2::Request::Add(found) = v2::Request::decode(&payload).unwrap() else { panic!("an add") };
    assert_eq!((found.flags.bits(), found.master_key, found.body), (6, KEY, &body(1, 0, 20_000)[..]));
}

/// Transport invariant 5: v3, in order, with the flag; told by the connection, and overdue like any other.
#[tokio::test]
async fn adds_with_deferred_sync_and_forces_share_a_connection_that_is_known_by_its_number() {
    let (bookies, peer, sink) = (bookies(quick(1000)).await, Peer::new().await, Recorder::new());
    let mut tags = 0..;
    let mut connections = Vec::new();
    for _ in 0..2 {
        let first = tags.start;
        // Copied at once, and those that wait with their bodies shared.
        let sizes = (0..60).map(|n| [10, 900, 16_384, 70_000][n % 4]);
        for (size, tag) in sizes.clone().zip(&mut tags) {
            let request = AddRequest { is_deferred: true, ..add(1, tag, tag as u64, size) };
            sink.send(&bookies, &peer.id, request);
        }
        let force = bookies.force(&peer.id, ledger(1));
        let mut line = peer.accept().await;
        for (size, id) in sizes.zip(first..) {
            let asked = line.next_v3().await;
            let v3::Operation::Add(found) = &asked.operation else { panic!("{asked:?}") };
            assert_eq!((found.ledger_id, found.entry_id), (1, id), "in their order");
            assert!(found.is_deferred_sync() && found.key() == Some(KEY));
            assert_eq!(found.body, body(1, id, size));
            // The last one is overdue.
            if id < first + 59 {
                line.answer_v3(response::add(asked.txn_id, ErrorCode::Ok, 1, id)).await;
            }
        }
        let asked = line.next_v3().await;
        assert!(matches!(asked.operation, v3::Operation::ForceLedger(_)), "{asked:?}");
        line.answer_v3(response::force_ledger(asked.txn_id, ErrorCode::Ok, 1)).await;
        let over = force.await.unwrap();
        let answers = sink.answers(tags.start as usize).await;
        let (last, rest) = answers[first as usize..].split_last().unwrap();
        assert_eq!(last.result, Err(BookieError::TimedOut(Duration::from_secs(1))));
        assert!(rest.iter().all(|answer| (&answer.result, answer.connection) == (&Ok(()), over)));
        connections.push(over);
        // What does not say whom it answers ends the connection.
        let lac = bookies.read_lac(&peer.id, ledger(1));
        let asked = line.next_v3().await;
        line.answer_v3(response::without_body(
            asked.txn_id,
            proto::OperationType::AddEntry,
            ErrorCode::Unauthorized,
        ))
        .await;
        assert!(matches!(lac.await, Err(BookieError::Unexpected(_))));
        assert!(line.until_closed().await);
    }
    assert_ne!(connections[0], connections[1]);
}
