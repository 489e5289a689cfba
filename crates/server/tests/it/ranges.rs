//! Reads of neighbours that are in hand at once are read together from disk; whoever asked must not see that, whatever
//! happens to one of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::frames::{OwnedV2, batch_request, fence_request, framed, hello, read_request, strided};
use crate::common::whole::{Running, cluster, config_that_flushes, damage_entry, start};
use crate::common::wire::Client;
use bindery_wire::{BatchReadBudget, ErrorCode, FrameLimit, v2};
use bytes::BytesMut;
use std::collections::HashMap;
use tokio::net::TcpStream;

const ENTRIES: i64 = 300;
/// Damaged on disk.
const DAMAGED: [i64; 3] = [57, 58, 130];

/// Sends all requests in one piece, and gives the answers back by the key that they name.
async fn ask(client: &mut Client, requests: &[v2::Read]) -> HashMap<(i64, i64), Vec<(ErrorCode, Vec<u8>)>> {
    let mut frames = BytesMut::new();
    requests.iter().for_each(|request| frames.extend_from_slice(&framed(v2::Request::Read(*request))));
    client.send(&frames).await;
    let mut answers: HashMap<_, Vec<_>> = HashMap::new();
    for _ in requests {
        match client.next_v2().await {
            OwnedV2::Read(code, ledger, entry, body) => {
                answers.entry((ledger, entry)).or_default().push((code, body));
            }
            other => panic!("{other:?}"),
        }
    }
    answers
}

/// Ledger 1 without gaps, ledger 2 with.
fn is_there(ledger: i64, entry: i64) -> bool {
    entry < ENTRIES && (ledger == 1 || entry % 7 != 3)
}

/// A bookie with both ledgers in entry logs, some entries of the first damaged.
async fn filled(dir: &std::path::Path) -> Running {
    let cluster = cluster().await;
    let bookie = start(config_that_flushes(dir), &cluster).await;
    let mut stored = 0;
    for (ledger, entry) in (1..3).flat_map(|ledger| (0..ENTRIES).map(move |entry| (ledger, entry))) {
        if is_there(ledger, entry) {
            assert_eq!(bookie.add(ledger, entry).await, ErrorCode::Ok);
            stored += 1;
        }
    }
    bookie.flushed(stored).await;
    bookie.stop().await;
    DAMAGED.iter().for_each(|entry| damage_entry(dir, &hello(1, *entry)));
    start(config_that_flushes(dir), &cluster).await
}

/// A batch has what its limits admit of the entries from its first one on, by its stride, up to the first that is not there or is
/// damaged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_from_disk_ends_where_its_limits_or_its_entries_end() {
    let dir = tempfile::tempdir().unwrap();
    let bookie = filled(dir.path()).await;
    let mut client = Client::of(TcpStream::connect(bookie.address).await.unwrap());
    let is_sound = |ledger, entry| is_there(ledger, entry) && !(ledger == 1 && DAMAGED.contains(&entry));
    let frame = FrameLimit::DEFAULT;
    let rounds = [
        (1, 1),
        (2, 1),
        (1, 1),
        (2, 1),
        (1, 2),
        (2, 2),
        (1, 3),
        (2, 3),
        (2, 7),
        (2, 40),
        (1, i32::MAX as u32),
    ];
    for (round, (ledger, stride)) in (0..).zip(rounds) {
        for start in (0..ENTRIES + 3).step_by(11).chain(55..60) {
            for (max_count, max_size) in
                [(0, 1 << 20), (1, 1 << 20), (2, 1 << 20), (65, 1 << 20), (0, 300), (200, 4000), (0, 0)]
            {
                let plain = batch_request(ledger, start, round, max_count, max_size);
                // A stride of 1 may be said or not.
                let request = if round < 2 { plain } else { strided(plain, stride) };
                let v2::Request::BatchRead(batch) = &request else { unreachable!() };
                let mut budget = BatchReadBudget::new(batch, u32::MAX, frame);
                let ids = (start..).step_by(stride as usize);
                let sound =
                    ids.take_while(|entry| is_sound(ledger, *entry)).map(|entry| hello(ledger, entry));
                let expected: Vec<_> = sound.take_while(|body| budget.admit(body.len())).collect();
                let code = match expected.is_empty() {
                    false => ErrorCode::Ok,
                    true if is_there(ledger, start) => ErrorCode::Io,
                    true => ErrorCode::NoEntry,
                };
                let answer = client.v2(request).await;
                assert_eq!(
                    answer,
                    OwnedV2::Batch(code, round, expected),
                    "{ledger}:{start} by {stride}, {max_count} entries, {max_size} bytes"
                );
            }
        }
    }
    let together = bookie.metric("bindery_reads_together").await;
    let inline = bookie.metric("bindery_reads_without_wait").await;
    assert!(together > 1000 && inline > 1000, "{together} together, {inline} without a wait");
    drop(client);
    bookie.stop().await;
}

/// Entries of a striped ledger lie beside others on a bookie: a batch with a stride reads its own with as few reads as a plain one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_with_a_stride_is_read_together() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config_that_flushes(dir.path()), &cluster).await;
    let held = (0..ENTRIES).filter(|entry| entry % 3 != 2);
    for entry in held.clone() {
        assert_eq!(bookie.add(5, entry).await, ErrorCode::Ok);
    }
    bookie.flushed(held.count() as i64).await;
    let mut client = Client::of(TcpStream::connect(bookie.address).await.unwrap());
    let before = bookie.metric("bindery_reads_together").await;
    for class in 0..2 {
        let answer = client.v2(strided(batch_request(5, class, 9, 0, 1 << 20), 3)).await;
        let expected = (class..ENTRIES).step_by(3).map(|entry| hello(5, entry)).collect();
        assert_eq!(answer, OwnedV2::Batch(ErrorCode::Ok, 9, expected));
    }
    let together = bookie.metric("bindery_reads_together").await - before;
    // Where one flush ends and the next begins differs from run to run, and an entry alone in its log is read alone.
    assert!(together >= 2 * ENTRIES / 3 - 5, "{together} of {} were read together", 2 * ENTRIES / 3);
    drop(client);
    bookie.stop().await;
}

/// Load invariants 1, 4 and 5 of ranges (`connection::load::together`): each request is answered once, with its own
/// entry and by what became of that one; from disk and from memory, of ledgers with and without gaps, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_of_a_range_is_answered_with_its_own_entry() {
    let dir = tempfile::tempdir().unwrap();
    let bookie = filled(dir.path()).await;
    // Newer copies of some, which are in memory for a moment; one of them of a damaged entry.
    let newer = [58, 200, 201, 290];

    let mut client = Client::of(TcpStream::connect(bookie.address).await.unwrap());
    for round in 0..6 {
        if round == 2 {
            for entry in newer {
                assert_eq!(bookie.add_as(v2::Flags::RECOVERY_ADD, 1, entry).await, ErrorCode::Ok);
            }
        }
        for ledger in 1..3 {
            // A range to beyond the end, some of it twice, and one backwards.
            let forth = (0..ENTRIES + 5).chain(40..70);
            let back = (100..140).rev();
            let asked: Vec<v2::Read> = forth.chain(back).map(|entry| read_request(ledger, entry)).collect();
            let answers = ask(&mut client, &asked).await;
            for ((_, entry), answers) in &answers {
                let times = asked.iter().filter(|request| request.entry_id == *entry).count();
                assert_eq!(answers.len(), times, "{ledger}:{entry}");
                let is_damaged =
                    ledger == 1 && DAMAGED.contains(entry) && (round < 2 || !newer.contains(entry));
                let expected = match (is_there(ledger, *entry), is_damaged) {
                    (true, false) => (ErrorCode::Ok, hello(ledger, *entry)),
                    (true, true) => (ErrorCode::Io, Vec::new()),
                    (false, _) => (ErrorCode::NoEntry, Vec::new()),
                };
                assert!(answers.iter().all(|answer| *answer == expected), "{ledger}:{entry}: {answers:?}");
            }
            assert_eq!(answers.len() as i64, ENTRIES + 5);
        }
    }
    assert!(bookie.metric("bindery_reads_together").await > 6 * 100, "ranges are read together");

    // A fencing read amid a range goes before all of it, but is answered in its line (read queue invariants 1 and 2).
    let mut asked: Vec<v2::Read> = (0..100).map(|entry| read_request(1, entry)).collect();
    asked.insert(50, fence_request(1, 20, crate::common::frames::KEY));
    let answers = ask(&mut client, &asked).await;
    let good = (ErrorCode::Ok, hello(1, 20));
    assert_eq!(answers[&(1, 20)], [good.clone(), good]);
    assert_eq!(bookie.add(1, ENTRIES + 10).await, ErrorCode::Fenced);
    drop(client);
    bookie.stop().await;
}
