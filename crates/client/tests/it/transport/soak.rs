//! Peers that break connections, stall and answer wrongly at random: still every request is answered once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bindery_client::connection::Bookies;
use bindery_client::transport::{BatchReadRequest, BookieError, PollRequest, ReadRequest, Transport};
use bindery_types::EntryId;
use bindery_wire::{ErrorCode, v2};
use bytes::BytesMut;
use tokio::io::AsyncWriteExt;

use crate::transport::peer::{Line, Peer};
use crate::transport::support::*;

/// Answers v2 requests, in shuffled order now and then, until it feels like something else.
async fn misbehave(mut line: Line, mut dice: Dice) {
    let mut kept: Vec<BytesMut> = Vec::new();
    while let Some(payload) = line.next().await {
        let mut out = BytesMut::new();
        let Ok(request) = v2::Request::decode(&payload) else { return };
        let code = if dice.roll(10) == 0 { ErrorCode::Io } else { ErrorCode::Ok };
        match (request.correlation().unwrap(), code) {
            (v2::Correlation::Read { ledger_id, entry_id }, ErrorCode::Ok) => {
                v2::put_read_response(2, ledger_id, entry_id, &payload, &mut out);
            }
            (v2::Correlation::BatchRead { ledger_id, start_entry_id, request_id }, ErrorCode::Ok) => {
                let entries = [&payload[..]; 3].into_iter();
                v2::put_batch_read_response(
                    2,
                    ledger_id,
                    start_entry_id,
                    request_id,
                    false,
                    entries,
                    &mut out,
                );
            }
            (correlation, code) => v2::put_error_response(2, correlation, code, &mut out),
        }
        kept.push(out);
        if dice.roll(50) == 0 && kept.len() > 1 {
            let (a, b) = (dice.roll(kept.len() as u64) as usize, dice.roll(kept.len() as u64) as usize);
            kept.swap(a, b);
        }
        if dice.roll(20) == 0 {
            for answer in kept.drain(..) {
                let part = match dice.roll(200) {
                    // Breaks off in the middle of an answer.
                    0 => return drop(line.socket.write_all(&answer[..answer.len() / 2]).await),
                    // Never answers.
                    1 => continue,
                    _ => &answer[..],
                };
                if line.socket.write_all(part).await.is_err() {
                    return;
                }
            }
        }
        match dice.roll(3000) {
            0 => return,
            1 => return drop(line.socket.write_all(&[0xff; 8]).await),
            2 => tokio::time::sleep(Duration::from_millis(150)).await,
            3 => kept.clear(),
            _ => {}
        }
    }
}

/// Transport invariants 1 and 4; tags and results are those of the request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_peers_do_every_request_is_answered_once() {
    let bookies = Arc::new(Bookies::new(registration(&cluster().await).await, quick(250)));
    let is_over = Arc::new(AtomicBool::new(false));
    let (mut ids, mut peers) = (Vec::new(), Vec::new());
    for seed in 1..=3 {
        let peer = Peer::new().await;
        ids.push(peer.id.clone());
        peers.push(tokio::spawn(async move {
            let mut dice = Dice(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
            let mut lines = tokio::task::JoinSet::new();
            loop {
                let line = peer.accept().await;
                let seed = dice.roll(u64::MAX);
                lines.spawn(misbehave(line, Dice(seed | 1)));
            }
        }));
    }

    let mut callers = Vec::new();
    for caller in 0..4 {
        let (bookies, ids, is_over) = (bookies.clone(), ids.clone(), is_over.clone());
        callers.push(tokio::spawn(async move {
            let sink = Recorder::new();
            let mut dice = Dice(caller as u64 * 77 + 5);
            let mut sent = 0;
            let (mut ok, mut unknown, mut certain) = (0, 0, 0);
            while !is_over.load(Ordering::Relaxed) {
                let id = &ids[dice.roll(3) as usize];
                for _ in 0..dice.roll(200) {
                    let size = if dice.roll(100) == 0 { 40_000 } else { 50 };
                    // Some entries are sent again.
                    let entry_id =
                        sent as i64 - if dice.roll(30) == 0 { dice.roll(50).min(sent) as i64 } else { 0 };
                    sink.send(&bookies, id, add(caller, entry_id, sent, size));
                    sent += 1;
                }
                let at = EntryId::new(dice.roll(3) as i64 - 1);
                let read =
                    ReadRequest { ledger: ledger(9), entry: at, fence: (dice.roll(4) == 0).then_some(KEY) };
                let first = entry(dice.roll(10) as i64);
                let batch = BatchReadRequest {
                    ledger: ledger(9),
                    first,
                    stride: 1,
                    count_max: 3,
                    size_bytes_max: 1000,
                };
                let poll = PollRequest { ledger: ledger(9), previous: at, wait: Duration::from_millis(20) };
                let reads = async { tokio::join!(bookies.read(id, read), bookies.batch_read(id, batch)) };
                // Some callers stop waiting.
                let patience = Duration::from_millis(if dice.roll(5) == 0 { 1 } else { 20_000 });
                if let Ok((read, batch)) = tokio::time::timeout(patience, reads).await {
                    for error in [read.err(), batch.err()].into_iter().flatten() {
                        assert_ne!(error, BookieError::Closed);
                    }
                }
                if dice.roll(10) == 0 {
                    // The peers do not speak v3: an error, in time.
                    bookies.poll_lac(id, poll).await.unwrap_err();
                }
            }
            let answers = sink.answers(sent as usize).await;
            let mut is_answered = vec![false; sent as usize];
            for answer in answers {
                assert!(!std::mem::replace(&mut is_answered[answer.tag.0 as usize], true), "once");
                match answer.result {
                    Ok(()) => ok += 1,
                    Err(error) if error.is_unknown() => unknown += 1,
                    Err(_) => certain += 1,
                }
            }
            (ok, unknown, certain)
        }));
    }
    tokio::time::sleep(Duration::from_secs(6)).await;
    is_over.store(true, Ordering::Relaxed);
    for caller in callers {
        let (ok, unknown, certain) = tokio::time::timeout(PATIENCE, caller).await.unwrap().unwrap();
        println!("{ok} acknowledged, {unknown} unknown, {certain} certainly not done");
        assert!(ok > 100 && unknown > 0 && certain > 0, "each kind was met: {ok} {unknown} {certain}");
    }
    for peer in peers {
        peer.abort();
    }
}
