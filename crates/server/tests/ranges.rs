//! Reads of neighbours that are in hand at once are read together from disk; whoever asked must not see that, whatever
//! happens to one of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use bindery_wire::{ErrorCode, v2};
use bytes::BytesMut;
use common::frames::{OwnedV2, fence_request, framed, hello, read_request};
use common::whole::{cluster, config_that_flushes, damage_entry, start};
use common::wire::Client;
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

/// Load invariants 1, 4 and 5 of ranges (`connection::load::together`): each request is answered once, with its own
/// entry and by what became of that one; from disk and from memory, of ledgers with and without gaps, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_of_a_range_is_answered_with_its_own_entry() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config_that_flushes(dir.path()), &cluster).await;
    let is_there = |ledger: i64, entry: i64| entry < ENTRIES && (ledger == 1 || entry % 7 != 3);
    for (ledger, entry) in (1..3).flat_map(|ledger| (0..ENTRIES).map(move |entry| (ledger, entry))) {
        if is_there(ledger, entry) {
            assert_eq!(bookie.add(ledger, entry).await, ErrorCode::Ok);
        }
    }
    let stored =
        (1..3).map(|ledger| (0..ENTRIES).filter(|entry| is_there(ledger, *entry)).count()).sum::<usize>();
    bookie.flushed(stored as i64).await;
    DAMAGED.iter().for_each(|entry| damage_entry(dir.path(), &hello(1, *entry)));
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
    asked.insert(50, fence_request(1, 20, common::frames::KEY));
    let answers = ask(&mut client, &asked).await;
    let good = (ErrorCode::Ok, hello(1, 20));
    assert_eq!(answers[&(1, 20)], [good.clone(), good]);
    assert_eq!(bookie.add(1, ENTRIES + 10).await, ErrorCode::Fenced);
    drop(client);
    bookie.stop().await;
}
