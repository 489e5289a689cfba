use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A peer that takes `limit` bytes and then no more.
struct Peer {
    limit: AtomicUsize,
    got: Mutex<Vec<u8>>,
}

impl Peer {
    fn new(limit: usize) -> Peer {
        Peer { limit: AtomicUsize::new(limit), got: Mutex::new(Vec::new()) }
    }
}

impl Sink for Peer {
    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        for slice in slices {
            let n = slice.len().min(self.limit.load(Ordering::Relaxed));
            self.limit.fetch_sub(n, Ordering::Relaxed);
            self.got.lock().extend_from_slice(&slice[..n]);
            taken += n;
        }
        if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }
}

const AHEAD: usize = 64 * 1024;

fn read(seq: u64) -> ReadRequest {
    ReadRequest::for_test(seq, seq as i64)
}

fn flush(outbox: &Outbox, peer: &Peer, is_sender: bool) -> Flush {
    outbox.flush(peer, is_sender, &mut Vec::new())
}

fn outbox(answers_max: usize) -> (Outbox, ByteBudget) {
    let pool = ByteBudget::new("outbox", 64 << 20);
    (Outbox::new(answers_max, 1000, AHEAD, pool.clone(), Arc::default()), pool)
}

#[tokio::test]
async fn bytes_leave_in_order_across_short_writes_and_nothing_stays_held() {
    let pool = ByteBudget::new("outbox", 1 << 20);
    // Only the pool of the entries bounds them here.
    let outbox = Outbox::new(200_000, 1 << 30, 1 << 30, pool.clone(), Arc::default());
    let entries = ByteBudget::new("outbound", 1 << 20);
    let mut expected = Vec::new();
    let peer = Peer::new(0);
    for i in 0u32..2000 {
        assert_eq!(outbox.credit(28, 28).await, Ok(28));
        if i % 3 == 0 {
            let len = (i as usize % 40) * 1024;
            let window = outbox.open_window(len, ReadClass::of(i % 2 == 0)).unwrap();
            let body = vec![i as u8; len];
            expected.extend_from_slice(&i.to_be_bytes());
            expected.extend_from_slice(&body);
            let Some(permit) = entries.try_acquire(len as u64) else {
                peer.limit.store(usize::MAX, Ordering::Relaxed);
                outbox.return_credit(28);
                expected.truncate(expected.len() - len - 4);
                outbox.close_window(window);
                assert_eq!(flush(&outbox, &peer, true), Flush::Done);
                continue;
            };
            outbox.entry(read(u64::from(i)), window, permit, Body::Owned(body), |out| {
                out.extend_from_slice(&i.to_be_bytes())
            });
        } else {
            outbox.answer(28, |out| out.extend_from_slice(&i.to_be_bytes()));
            expected.extend_from_slice(&i.to_be_bytes());
        }
        peer.limit.store(i as usize % 5000, Ordering::Relaxed);
        assert_ne!(flush(&outbox, &peer, false), Flush::Broken);
    }
    peer.limit.store(usize::MAX, Ordering::Relaxed);
    assert_eq!(flush(&outbox, &peer, true), Flush::Done);
    assert!(*peer.got.lock() == expected, "invariant 1");
    assert!(outbox.owes_nothing());
    assert_eq!((entries.gauge().used, pool.gauge().used), (0, 0), "invariant 3");
}

#[tokio::test]
async fn a_peer_that_does_not_read_gets_no_more_credit_until_it_reads() {
    let (outbox, pool) = outbox(100_000);
    let mut promised = 0;
    while promised < 100_000 {
        let given = outbox.credit(28, 1000).await.unwrap();
        outbox.answer(given, |out| out.resize(out.len() + given, 7));
        promised += given;
        if 100_000 - promised < 28 {
            break;
        }
    }
    let waiting = outbox.credit(28, 28);
    tokio::pin!(waiting);
    let patience = std::time::Duration::from_millis(20);
    assert!(tokio::time::timeout(patience, waiting.as_mut()).await.is_err(), "invariant 2");
    assert!(pool.gauge().used > 0);
    let peer = Peer::new(usize::MAX);
    flush(&outbox, &peer, true);
    assert_eq!(waiting.await, Ok(28));
    outbox.return_credit(28);
    assert_eq!(pool.gauge().used, 0);
}

#[tokio::test]
async fn closing_gives_everything_back_and_wakes_the_reader() {
    let (outbox, pool) = outbox(5000);
    let given = outbox.credit(28, 100_000).await.unwrap();
    outbox.answer(given, |out| out.resize(given, 0));
    while outbox.credit(28, 28).await.is_ok() {
        if pool.gauge().used > 0 && outbox.state.lock().promised + given + 28 > 5000 {
            break;
        }
    }
    let waiting = outbox.credit(28, 28);
    tokio::pin!(waiting);
    assert!(tokio::time::timeout(std::time::Duration::from_millis(5), waiting.as_mut()).await.is_err());
    outbox.close();
    assert_eq!(waiting.await, Err(Closed));
    assert_eq!(pool.gauge().used, 0, "invariant 4");
    assert_eq!(flush(&outbox, &Peer::new(1), true), Flush::Broken);
}

#[tokio::test]
async fn a_reader_whose_answers_have_left_does_not_wait_for_the_leases_of_others() {
    let pool = ByteBudget::new("outbox", 2 * LEASE_STEP as u64);
    let outbox = Outbox::new(200_000, 1000, AHEAD, pool.clone(), Arc::default());
    let strangers = pool.try_acquire(2 * LEASE_STEP as u64);
    assert!(strangers.is_some());
    let given = outbox.credit(28, 100_000).await.unwrap();
    assert_eq!(given, FREE_BYTES);
    outbox.answer(given, |out| out.resize(given, 7));
    let waiting = outbox.credit(28, 28);
    tokio::pin!(waiting);
    let patience = std::time::Duration::from_millis(5);
    assert!(tokio::time::timeout(patience, waiting.as_mut()).await.is_err());
    assert_eq!(pool.gauge().waiting, 1, "in line for a lease");
    assert_eq!(flush(&outbox, &Peer::new(usize::MAX), true), Flush::Done);
    let given = tokio::time::timeout(std::time::Duration::from_secs(60), waiting).await;
    assert_eq!(given, Ok(Ok(28)), "invariant 6");
    assert_eq!(pool.gauge().waiting, 0, "no place in line is left behind");
}

#[tokio::test]
async fn a_waiting_reader_takes_the_lease_that_another_gives_back() {
    let pool = ByteBudget::new("outbox", LEASE_STEP as u64);
    let outbox = Outbox::new(200_000, 1000, AHEAD, pool.clone(), Arc::default());
    let stranger = pool.try_acquire(LEASE_STEP as u64);
    assert_eq!(outbox.credit(28, 100_000).await, Ok(FREE_BYTES));
    let waiting = outbox.credit(28, 100_000);
    tokio::pin!(waiting);
    let patience = std::time::Duration::from_millis(5);
    assert!(tokio::time::timeout(patience, waiting.as_mut()).await.is_err());
    drop(stranger);
    assert_eq!(waiting.await, Ok(LEASE_STEP));
    outbox.return_credit(FREE_BYTES + LEASE_STEP);
    assert_eq!(pool.gauge().used, 0);
}

#[tokio::test]
async fn the_lease_shrinks_with_what_is_held() {
    let (outbox, pool) = outbox(1 << 20);
    let mut held = 0;
    while held < 10 * LEASE_STEP {
        held += outbox.credit(28, LEASE_STEP).await.unwrap();
    }
    let step = LEASE_STEP as u64;
    assert_eq!(pool.gauge().used, 10 * step);
    // One step of hysteresis: nothing moves until more than two steps are spare.
    outbox.return_credit(held - 8 * LEASE_STEP - FREE_BYTES);
    assert_eq!(pool.gauge().used, 10 * step);
    outbox.return_credit(LEASE_STEP);
    assert_eq!(pool.gauge().used, 8 * step);
    outbox.return_credit(5 * LEASE_STEP);
    assert_eq!(pool.gauge().used, 3 * step);
    assert!(outbox.state.lock().backed() >= 2 * LEASE_STEP + FREE_BYTES, "what is held stays backed");
    outbox.return_credit(2 * LEASE_STEP + FREE_BYTES);
    assert_eq!(pool.gauge().used, 0);
}

#[test]
fn peers_that_take_nothing_leave_a_first_step_to_the_next_ones() {
    let pool = ByteBudget::new("outbox", 32 << 20);
    let new = || Outbox::new(1 << 20, 1000, AHEAD, pool.clone(), Arc::default());
    let take_all = |outbox: &Outbox| std::iter::from_fn(|| outbox.try_credit(96, 16 * 1024)).sum::<usize>();
    let alone = new();
    assert!(take_all(&alone) > 20_000 * 40, "20,000 reads of one connection");
    alone.close();
    let greedy: Vec<Outbox> = (0..1000).map(|_| new()).collect();
    for _ in 0..3 {
        assert!(greedy.iter().map(take_all).sum::<usize>() <= 64 << 20);
    }
    let healthy: Vec<Outbox> = (0..100).map(|_| new()).collect();
    for outbox in &healthy {
        assert!(outbox.room() > 0);
        assert!(take_all(outbox) >= FREE_BYTES + LEASE_STEP, "invariant 9: {:?}", pool.gauge());
    }
    greedy.iter().chain(&healthy).for_each(Outbox::close);
    assert_eq!(pool.gauge().used, 0);
}

#[test]
fn the_window_admits_one_oversized_entry_alone() {
    let (outbox, _) = outbox(5000);
    for class in ReadClass::IN_ORDER {
        let whole = outbox.open_window(5000, class).expect("larger than the window of 1000, and alone");
        assert!(outbox.open_window(1, class).is_none());
        outbox.close_window(whole);
        assert!(outbox.open_window(600, class).is_some());
        assert!(outbox.open_window(400, class).is_some());
        assert!(outbox.open_window(1, class).is_none(), "invariant 5");
    }
}

#[tokio::test]
async fn the_fencing_lane_has_a_window_of_its_own_that_opens_when_the_peer_reads() {
    let (outbox, _) = outbox(5000);
    let entries = ByteBudget::new("outbound", 1 << 20);
    let plain = outbox.open_window(1000, ReadClass::Plain);
    assert!(plain.is_some());
    let window = outbox.open_window(1000, ReadClass::Priority).expect("plain reads keep no fence out");
    assert_eq!(outbox.state.lock().windows[ReadClass::Priority].loads, 1);
    assert_eq!(outbox.credit(28, 28).await, Ok(28));
    let permit = entries.try_acquire(1000).unwrap();
    outbox.entry(read(0), window, permit, Body::Owned(vec![7; 1000]), |_| {});
    assert_eq!(outbox.state.lock().windows[ReadClass::Priority].loads, 0, "loaded, but not sent");
    assert!(outbox.open_window(1, ReadClass::Priority).is_none(), "invariant 5");
    assert_eq!(flush(&outbox, &Peer::new(usize::MAX), true), Flush::Done);
    let patience = std::time::Duration::from_secs(60);
    assert!(tokio::time::timeout(patience, outbox.sender.notified()).await.is_ok());
    assert!(outbox.open_window(1000, ReadClass::Priority).is_some());
    assert!(outbox.open_window(1, ReadClass::Plain).is_none(), "the plain window is as full as it was");
}

/// Invariant 5: loads that a disk has in hand keep no others waiting, and come back to the class when they end.
#[test]
fn loads_that_a_disk_has_count_for_that_disk_only() {
    const PLACES: usize = 3;
    let (outbox, _) = outbox(5000);
    let entries = ByteBudget::new("outbound", 1 << 20);
    let to_disk = |bytes, place| {
        let mut window = outbox.open_window(bytes, ReadClass::Plain)?;
        let is_moved = outbox.move_to_disk(bytes, std::iter::once(&mut window), ReadClass::Plain, place);
        if is_moved {
            return Some(window);
        }
        outbox.close_window(window);
        None
    };
    let mut held: Vec<Window> = Vec::new();
    for place in 0..PLACES {
        held.extend((0..2).map(|_| to_disk(500, place).expect("each has a window of its own")));
        assert!(to_disk(1, place).is_none(), "place {place} has its window full");
        assert!(outbox.open_window_on_disk(1, ReadClass::Plain, place).is_none());
    }
    let whole = outbox
        .open_window(1000, ReadClass::Plain)
        .expect("loads without a disk have all of the window of their class");
    assert!(outbox.open_window(1, ReadClass::Plain).is_none());
    assert_eq!(outbox.in_use().windows, (PLACES + 1) * 1000);
    outbox.close_window(whole);
    // A turn that came counts also while the peer has enough to take.
    outbox.close_window(held.pop().expect("there are some"));
    outbox.state.lock().windows[ReadClass::Plain].queued = AHEAD;
    assert!(outbox.open_window(1, ReadClass::Plain).is_none());
    held.push(outbox.open_window_on_disk(500, ReadClass::Plain, PLACES - 1).expect("its loads have room"));
    outbox.state.lock().windows[ReadClass::Plain].queued = 0;

    outbox.state.lock().promised += 28;
    let permit = entries.try_acquire(500).expect("an empty pool");
    let first = held.remove(0);
    outbox.entry(read(0), first, permit, Body::Owned(vec![7; 300]), |_| {});
    assert!(outbox.open_window(1000, ReadClass::Plain).is_none(), "it waits for the peer now");
    held.push(to_disk(500, 0).expect("and not for its disk"));
    assert!(to_disk(1, 0).is_none());
    assert_eq!(flush(&outbox, &Peer::new(usize::MAX), true), Flush::Done);
    held.into_iter().for_each(|window| outbox.close_window(window));
    assert_eq!(outbox.in_use().windows, 0);
    assert!(to_disk(5000, 1).is_some(), "larger than a window, and alone");
    assert!(to_disk(1, 1).is_none());
}

/// An outbox whose pools only the test looks at, and its pool of entries.
fn roomy() -> (Outbox, ByteBudget) {
    let answers = ByteBudget::new("outbox", 1 << 20);
    (Outbox::new(1 << 20, 64 << 20, 64 << 20, answers, Arc::default()), ByteBudget::new("outbound", 64 << 20))
}

fn entry_of(request: &ReadRequest, len: usize) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend_from_slice(&request.ledger.get().to_be_bytes());
    body.extend_from_slice(&request.entry.to_be_bytes());
    body.resize(len.max(32), request.entry as u8 ^ 0x55);
    body
}

/// Appends the answer to a v2 read; returns its frame.
fn answer_read(outbox: &Outbox, entries: &ByteBudget, request: ReadRequest, len: usize) -> Vec<u8> {
    let body = entry_of(&request, len);
    let mut frame = BytesMut::new();
    bindery_wire::v2::put_read_response(2, request.ledger.get(), request.entry, &body, &mut frame);
    let charge = body.len() + 128;
    let window = outbox.open_window(charge, request.class).expect("there is room");
    let permit = entries.try_acquire(charge as u64).expect("there is room");
    let head = frame[..frame.len() - body.len()].to_vec();
    outbox.entry(request, window, permit, Body::Owned(body), |out| out.extend_from_slice(&head));
    frame.to_vec()
}

#[test]
fn nothing_is_loaded_while_enough_waits_for_the_kernel() {
    let answers = ByteBudget::new("outbox", 1 << 20);
    let outbox = Outbox::new(1 << 20, 1 << 20, 10_000, answers, Arc::default());
    let entries = ByteBudget::new("outbound", 1 << 20);
    for seq in 0..3 {
        outbox.state.lock().promised += 28;
        answer_read(&outbox, &entries, read(seq), 4000);
    }
    assert!(outbox.open_window(1, ReadClass::Plain).is_none(), "invariant 5");
    assert!(outbox.open_window(1, ReadClass::Priority).is_some(), "the other class has its own");
    assert_eq!(flush(&outbox, &Peer::new(5000), true), Flush::Left);
    assert!(outbox.open_window(1, ReadClass::Plain).is_none(), "what is half with the kernel is still held");
    assert_eq!(flush(&outbox, &Peer::new(usize::MAX), true), Flush::Done);
    assert!(outbox.open_window(1, ReadClass::Plain).is_some());
}

#[test]
fn what_was_charged_beyond_the_frame_goes_back_at_once() {
    let (outbox, entries) = roomy();
    outbox.state.lock().promised += 28;
    let window = outbox.open_window(1 << 20, ReadClass::Plain).unwrap();
    let permit = entries.try_acquire(1 << 20).unwrap();
    outbox.entry(read(0), window, permit, Body::Owned(vec![0; 10_000]), |_| {});
    assert_eq!(entries.gauge().used, 10_000 + DESCRIPTOR_BYTES as u64);
    assert_eq!(outbox.in_use().windows, 10_000 + DESCRIPTOR_BYTES);
}

#[test]
fn a_request_leaves_when_the_kernel_has_the_last_byte() {
    let (outbox, entries) = roomy();
    outbox.state.lock().promised += 3 * 28;
    let frames: Vec<_> = (0..3).map(|seq| answer_read(&outbox, &entries, read(seq), 100)).collect();
    let mut finished = Vec::new();
    outbox.flush(&Peer::new(frames[0].len() + frames[1].len() - 1), true, &mut finished);
    assert_eq!(finished, [read(0)], "invariant 8");
    outbox.flush(&Peer::new(1), true, &mut finished);
    assert_eq!(finished, [read(0), read(1)]);
    outbox.flush(&Peer::new(usize::MAX), true, &mut finished);
    assert_eq!(finished.len(), 3);
    assert!(outbox.owes_nothing(), "promises last as long as the responses, and no longer");
}

/// Loads what was dropped again, as the sender and the I/O threads do.
fn load_again(outbox: &Outbox, entries: &ByteBudget, requests: Vec<ReadRequest>, lens: &[usize]) {
    if let Some(part) = outbox.part() {
        let first = part.identity.entries().0.next().expect("a frame has an entry");
        let request = ReadRequest::for_test(0, first);
        let body = entry_of(&request, lens[first as usize]);
        let charge = part.identity.frame_len();
        let window = outbox.open_window_of_part(charge, part.class);
        let permit = entries.try_acquire(charge as u64).unwrap();
        let rest = part.identity.rest(part.sent, &body).expect("the same copy");
        outbox.resume(rest, window, permit);
    }
    for request in requests {
        let len = lens[request.entry as usize];
        answer_read(outbox, entries, request, len);
    }
}

/// Invariants 1, 3, 7 and 8: wherever the peer stops, in the end it gets each frame once and whole, answers without
/// entries included, however often responses were dropped.
#[test]
fn dropped_responses_come_again_whole_and_once_wherever_the_peer_stopped() {
    let lens = [100usize, 20_000, 50, 9000, 40, 100_000, 70];
    let whole: usize = lens.iter().map(|len| len + 28).sum::<usize>() + 4 * lens.len();
    let mut stops: Vec<usize> = (0..140).collect();
    stops.extend((0..whole).step_by(1997));
    for stop in stops {
        for again in [1, 3000, 90_000] {
            let (outbox, entries) = roomy();
            outbox.state.lock().promised += lens.len() * (28 + 4);
            let mut expected: Vec<Vec<u8>> = Vec::new();
            for (seq, len) in lens.iter().enumerate() {
                expected.push(answer_read(&outbox, &entries, read(seq as u64), *len));
                let marker = [0, 0, 0, 0].to_vec();
                outbox.answer(4, |out| out.extend_from_slice(&marker));
                expected.push(marker);
            }
            let peer = Peer::new(stop);
            let mut finished = Vec::new();
            outbox.flush(&peer, true, &mut finished);
            for taken in [again, 1, usize::MAX] {
                let before = entries.gauge().used;
                let (requests, bytes) = outbox.drop_responses();
                assert_eq!(entries.gauge().used, before - bytes, "invariant 3");
                assert!(entries.gauge().used <= segment::REST_KEPT_BYTES as u64, "stopped at {stop}");
                assert!(!outbox.may_drop() && outbox.drop_responses().0.is_empty());
                if outbox.part().is_some() {
                    assert_eq!(
                        flush(&outbox, &peer, true),
                        Flush::Held,
                        "nothing before the rest: invariant 7"
                    );
                }
                load_again(&outbox, &entries, requests, &lens);
                peer.limit.store(taken, Ordering::Relaxed);
                outbox.flush(&peer, true, &mut finished);
            }
            let mut got = Vec::new();
            let stream = peer.got.lock().clone();
            let mut stream = &stream[..];
            while !stream.is_empty() {
                let len = u32::from_be_bytes(stream[..4].try_into().unwrap()) as usize;
                got.push(stream[..4 + len].to_vec());
                stream = &stream[4 + len..];
            }
            // Answers without entries may overtake what was dropped.
            got.sort();
            expected.sort();
            assert!(got == expected, "stopped at {stop}, then after {again}");
            let mut seqs: Vec<u64> = finished.iter().map(|request| request.seq).collect();
            seqs.sort_unstable();
            assert_eq!(seqs, (0..lens.len() as u64).collect::<Vec<_>>(), "invariant 8");
            assert!(outbox.owes_nothing());
            assert_eq!((entries.gauge().used, outbox.in_use().windows), (0, 0), "invariant 3");
        }
    }
}

/// For the rest of a frame its entry is not fetched again from object storage; whole frames go as others do.
#[test]
fn the_rest_of_a_frame_from_object_storage_stays_and_is_charged() {
    let (outbox, entries) = roomy();
    outbox.state.lock().promised += 2 * 28;
    let from_tier = |seq: u64| ReadRequest { is_from_tier: true, ..read(seq) };
    let first = answer_read(&outbox, &entries, from_tier(0), 50_000);
    answer_read(&outbox, &entries, from_tier(1), 50_000);
    flush(&outbox, &Peer::new(1_000), true);
    let (requests, _) = outbox.drop_responses();
    assert_eq!(requests.iter().map(|request| request.seq).collect::<Vec<_>>(), [1]);
    assert!(outbox.part().is_none() && !outbox.may_drop());
    let left = first.len() - 1_000;
    assert_eq!((entries.gauge().used, outbox.in_use().windows), (left as u64, left), "invariant 3");
    let (peer, mut finished) = (Peer::new(usize::MAX), Vec::new());
    outbox.flush(&peer, true, &mut finished);
    assert!(*peer.got.lock() == first[1_000..], "invariant 7");
    assert_eq!((finished.len(), finished[0].seq, entries.gauge().used), (1, 0, 0), "invariant 8");
}

#[test]
fn closing_gives_back_a_dropped_frame_and_what_came_after_it() {
    let (outbox, entries) = roomy();
    outbox.state.lock().promised += 2 * 28;
    answer_read(&outbox, &entries, read(0), 50_000);
    flush(&outbox, &Peer::new(10), true);
    outbox.drop_responses();
    assert!(outbox.part().is_some());
    answer_read(&outbox, &entries, read(1), 100);
    outbox.close();
    assert!(outbox.part().is_none());
    assert_eq!(entries.gauge().used, 0, "invariant 4");
}

/// Promises of long polls that end are backed by the pool as well, and bounded when they are not.
#[tokio::test]
async fn promises_of_ended_long_polls_are_backed_or_refused() {
    const PROMISE: usize = 96;
    let (outbox, pool) = outbox(1 << 20);
    // Also where others have more than half of the pool, of which no request gets more than a first step.
    let others = pool.try_acquire(pool.gauge().capacity / 4 * 3);
    assert!(others.is_some());
    for _ in 0..2000 {
        assert!(outbox.promise_again(PROMISE));
    }
    drop(others);
    assert!(pool.gauge().used + FREE_BYTES as u64 >= 2000 * PROMISE as u64, "{:?}", pool.gauge());
    outbox.return_credit(2000 * PROMISE);
    drop(outbox);
    assert_eq!(pool.gauge().used, 0);

    let pool = ByteBudget::new("outbox", 64 << 10);
    let outbox = Outbox::new(1 << 20, 1000, AHEAD, pool.clone(), Arc::default());
    let others = pool.try_acquire(64 << 10);
    let promised = (0..2000).take_while(|_| outbox.promise_again(PROMISE)).count() * PROMISE;
    assert!(promised <= FREE_BYTES + UNBACKED_BYTES_MAX, "{promised}");
    assert!(promised > UNBACKED_BYTES_MAX, "{promised}");
    drop(others);
}

/// Invariant 10: a peer that takes nothing keeps no buffer that grew for others, and no room behind a list of entries.
#[tokio::test]
async fn what_waits_for_a_peer_stands_in_buffers_that_fit() {
    let (outbox, _) = outbox(1 << 20);
    let entries = ByteBudget::new("entries", 1 << 20);
    let promised = outbox.credit(28, 40_000).await.unwrap();
    let one = promised / 2;
    outbox.answer(one, |out| out.resize(one, 1));
    let peer = Peer::new(usize::MAX);
    assert_eq!(flush(&outbox, &peer, true), Flush::Done);
    let capacity = |outbox: &Outbox| {
        let state = outbox.state.lock();
        state.segments.iter().map(|segment| segment.bytes.capacity() + segment.body.capacity()).sum::<usize>()
    };
    // Into the buffer that was just emptied.
    outbox.answer(28, |out| out.resize(28, 2));
    assert!(capacity(&outbox) >= one);
    peer.limit.store(0, Ordering::Relaxed);
    assert_eq!(flush(&outbox, &peer, true), Flush::Left);
    assert!(capacity(&outbox) <= 1024, "{}", capacity(&outbox));

    let mut body = Vec::with_capacity(400_000);
    body.resize(200_000, 3);
    let window = outbox.open_window(210_000, ReadClass::Plain).expect("an empty window");
    let permit = entries.try_acquire(210_000).expect("an empty pool");
    outbox.entry(read(1), window, permit, Body::Owned(body), |out| out.extend_from_slice(&[4; 10]));
    assert_eq!(flush(&outbox, &peer, true), Flush::Left);
    assert!(capacity(&outbox) <= 210_000, "{}", capacity(&outbox));
    peer.limit.store(usize::MAX, Ordering::Relaxed);
    assert_eq!(flush(&outbox, &peer, true), Flush::Done);
    assert_eq!(peer.got.lock().len(), one + 28 + 200_010, "invariant 1");
}
