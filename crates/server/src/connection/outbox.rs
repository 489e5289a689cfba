//! Outbox: the bytes on their way to one peer, bounded, in order, written by whoever is there.
//!
//! # Data flow
//! ```text
//! reader: credit() ──► request ──► answer() ─┐
//! sender, I/O threads: entry permit ─► entry() ┴─► segments ──► flush(): one thread at a time, never waits ──► socket
//! ```
//! Answers of a group are appended under a short mutex and written right there, by the completion thread, as long as
//! the socket takes them; what it does not take is left to the sender task, which waits for the socket.
//!
//! # Invariants
//! 1. Bytes leave in the order in which they were appended; one thread writes at a time (`is_writing`), outside the
//!    lock.
//! 2. `promised + queued answers <= answers_max`: a request is decoded only after room for its answer was promised, so
//!    appending never waits and never grows beyond the bound. A peer that does not read is not read any more.
//! 3. Bytes of loaded entries are covered by permits that live until the kernel took the bytes.
//! 4. After `close` nothing is queued and everything held is given back.
//! 5. Each lane of reads (plain; fencing and high priority) holds at most `window_max` bytes, or one larger entry, so
//!    that one peer that does not read cannot hold a whole outbound pool.
//! 6. A reader that waits for the pool goes on as soon as [`FREE_BYTES`] are enough for what is owed, whether or not
//!    others give anything back.
//!
//! # Limits     `answers_max` per connection; above [`FREE_BYTES`] backed by the outbox pool in steps of
//! [`LEASE_STEP`]; `window_max` per lane; a segment: [`SEGMENT_BYTES`] unless one answer is larger

use bindery_flow::{ByteBudget, Permit};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use tokio::sync::Notify;

/// Room for answers that every connection has without asking the pool: part of its fixed cost.
pub const FREE_BYTES: usize = 4096;
/// What a connection takes from the outbox pool at a time.
const LEASE_STEP: usize = 64 * 1024;
/// Answers are gathered in buffers of this size.
const SEGMENT_BYTES: usize = 16 * 1024;
/// Larger buffers are not kept for reuse.
const SPARE_BYTES_MAX: usize = 64 * 1024;
/// Buffers written by one call.
const SLICES_MAX: usize = 32;
/// Writes after which a thread that is not the sender leaves the rest to it: bounded work on shared threads.
const ROUNDS_MAX: usize = 4;
/// Writes after which the sender looks at its other work.
const SENDER_ROUNDS_MAX: usize = 64;

/// Where the bytes go: a socket that never blocks.
pub trait Sink {
    /// Writes some of the bytes; `WouldBlock` when the peer takes none now.
    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
}

/// What came of an attempt to write.
#[derive(Debug, PartialEq, Eq)]
pub enum Flush {
    /// Nothing is left, or another thread is writing and will take it along.
    Done,
    /// The peer takes no more now, or this thread did its share.
    Left,
    /// The connection is closed or broke; the first kind of error is kept by the caller.
    Broken,
}

/// The connection is closed.
#[derive(Debug, PartialEq, Eq)]
pub struct Closed;

#[derive(Default)]
struct Segment {
    bytes: BytesMut,
    /// Bytes of `bytes` that the kernel has.
    written: usize,
    /// Bytes of answers inside.
    answer_bytes: usize,
    /// Covers the bytes of entries inside.
    permits: Vec<Permit>,
    /// Bytes charged to the read windows.
    plain_bytes: usize,
    high_bytes: usize,
}

/// The read window of one lane.
#[derive(Default)]
struct Lane {
    /// Bytes in use: loads under way and entries not yet with the kernel.
    bytes: usize,
    /// Loads under way: begun, and neither appended nor given up.
    loads: usize,
    /// A load was refused because the window was full: the sender wants to know when it opens.
    is_wanted: bool,
}

/// Room that a load took in the window of its lane. It goes back with [`Outbox::entry`] or [`Outbox::close_window`].
#[derive(Debug)]
#[must_use = "a window that is not given back stays taken"]
pub struct Window {
    bytes: usize,
    is_high: bool,
}

#[derive(Default)]
struct State {
    segments: VecDeque<Segment>,
    /// An emptied buffer kept for reuse.
    spare: BytesMut,
    /// Room given to requests whose answer has not been appended yet.
    promised: usize,
    /// Bytes of answers appended and not yet with the kernel.
    answers: usize,
    plain: Lane,
    high: Lane,
    lease: Option<Permit>,
    is_writing: bool,
    is_closed: bool,
    /// Bytes ever taken by the kernel.
    sent: u64,
    /// Bytes appended and not taken by the kernel.
    unsent: u64,
}

/// What an outbox holds, for operators. Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboxView {
    /// Appended, and not with the kernel.
    pub unsent: u64,
    /// Promised for answers that are still owed.
    pub promised: u64,
    /// Held of the pool for answers.
    pub leased: u64,
    /// What each lane of reads may hold.
    pub window_max: u64,
    /// Held by plain reads: loads under way, and entries not with the kernel.
    pub plain: u64,
    /// The same for fencing and high priority.
    pub high: u64,
    /// Loads under way; a number.
    pub loads: usize,
    /// Reads wait for the window: the peer must take entries first.
    pub is_window_full: bool,
    /// Ever taken by the kernel.
    pub sent: u64,
}

impl State {
    fn lane(&mut self, is_high: bool) -> &mut Lane {
        if is_high { &mut self.high } else { &mut self.plain }
    }

    /// Bytes of answers that the free part and the lease cover.
    fn backed(&self) -> usize {
        FREE_BYTES + self.lease.as_ref().map_or(0, |lease| lease.bytes() as usize)
    }
}

/// See the module.
pub struct Outbox {
    state: Mutex<State>,
    answers_max: usize,
    window_max: usize,
    pool: ByteBudget,
    /// Told when there is room for answers again; one waiter, the reader.
    room: Notify,
    /// Told when a window that refused a load opens again.
    sender: Arc<Notify>,
}

impl Outbox {
    /// An empty outbox that holds `answers_max` bytes of answers, leased from `pool`, and `window_max` of entries
    /// in each lane. `sender` is told when loads that were refused can be tried again.
    pub fn new(answers_max: usize, window_max: usize, pool: ByteBudget, sender: Arc<Notify>) -> Outbox {
        assert!(answers_max >= FREE_BYTES);
        let state = Mutex::new(State::default());
        Outbox { state, answers_max, window_max, pool, room: Notify::new(), sender }
    }

    /// Promises room for answers if there is some at once: at least `least` and at most `most` bytes.
    pub fn try_credit(&self, least: usize, most: usize) -> Option<usize> {
        let mut state = self.state.lock();
        self.give_credit(&mut state, least, most)
    }

    fn give_credit(&self, state: &mut State, least: usize, most: usize) -> Option<usize> {
        debug_assert!(least <= FREE_BYTES && least <= most);
        let held = state.promised + state.answers;
        if state.is_closed || held + least > self.answers_max {
            return None;
        }
        // More than one step only after answers that exceeded their promise.
        while state.backed() < held + least {
            merge_lease(state, self.pool.try_acquire(LEASE_STEP as u64)?);
        }
        let given = (state.backed().min(self.answers_max) - held).min(most);
        state.promised += given;
        Some(given)
    }

    /// As [`Outbox::try_credit`], waiting for the peer to read and for the pool if need be. Cancel safe: promises are
    /// made in one step at the end. `least` must not exceed [`FREE_BYTES`].
    pub async fn credit(&self, least: usize, most: usize) -> Result<usize, Closed> {
        // Asks for nothing until it is polled, and then keeps its place in line while answers leave.
        let lease = self.pool.acquire(LEASE_STEP as u64);
        tokio::pin!(lease);
        loop {
            let wants_lease = {
                let mut state = self.state.lock();
                if state.is_closed {
                    return Err(Closed);
                }
                if let Some(given) = self.give_credit(&mut state, least, most) {
                    return Ok(given);
                }
                state.promised + state.answers + least <= self.answers_max
            };
            if !wants_lease {
                // Nothing to use it for: no place in line, and no grant that lies unused.
                lease.set(self.pool.acquire(LEASE_STEP as u64));
            }
            tokio::select! {
                // A notification since the look above is kept. Own answers may leave before strangers give a lease
                // back, and then none is needed (invariant 6).
                () = self.room.notified() => {}
                step = lease.as_mut(), if wants_lease => {
                    // A pool smaller than a step cannot be: start-up checks it.
                    let Ok(step) = step else { return Err(Closed) };
                    lease.set(self.pool.acquire(LEASE_STEP as u64));
                    let mut state = self.state.lock();
                    if state.is_closed {
                        return Err(Closed);
                    }
                    merge_lease(&mut state, step);
                }
            }
        }
    }

    /// Gives back a promise that is not needed.
    pub fn return_credit(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.promised -= bytes.min(state.promised);
        self.after_release(&mut state);
    }

    /// Appends answers for which `promised` bytes were promised; `encode` must write no more than that.
    pub fn answer(&self, promised: usize, encode: impl FnOnce(&mut BytesMut)) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        debug_assert!(promised <= state.promised);
        state.promised -= promised.min(state.promised);
        let segment = open_segment(&mut state);
        let before = segment.bytes.len();
        encode(&mut segment.bytes);
        let added = segment.bytes.len() - before;
        segment.answer_bytes += added;
        debug_assert!(added <= promised, "an answer of {added} bytes was promised {promised}");
        state.answers += added;
        state.unsent += added as u64;
    }

    /// As [`Outbox::answer`] for the few answers that may exceed their promise by a small body (an explicit LAC).
    pub fn unpromised_answer(&self, promised: usize, encode: impl FnOnce(&mut BytesMut)) {
        let mut frame = BytesMut::new();
        encode(&mut frame);
        self.state.lock().promised += frame.len().saturating_sub(promised);
        self.answer(promised.max(frame.len()), |out| out.extend_from_slice(&frame));
    }

    /// Takes `bytes` of the window of its lane for a load that begins, or refuses when it is full. An entry larger than
    /// the whole window goes alone: what is asked of an empty lane is never refused (invariant 5).
    pub fn open_window(&self, bytes: usize, is_high: bool) -> Option<Window> {
        let mut state = self.state.lock();
        let lane = state.lane(is_high);
        if lane.bytes > 0 && lane.bytes + bytes > self.window_max {
            lane.is_wanted = true;
            return None;
        }
        lane.bytes += bytes;
        lane.loads += 1;
        Some(Window { bytes, is_high })
    }

    /// Gives a window back without sending.
    pub fn close_window(&self, window: Window) {
        let mut state = self.state.lock();
        state.lane(window.is_high).end_load();
        self.shrink_window(&mut state, window.bytes, window.is_high);
    }

    /// Loads of the fencing lane under way.
    pub fn high_loads(&self) -> usize {
        self.state.lock().high.loads
    }

    fn shrink_window(&self, state: &mut State, bytes: usize, is_high: bool) {
        let lane = state.lane(is_high);
        lane.bytes -= bytes.min(lane.bytes);
        if bytes > 0 && lane.is_wanted {
            lane.is_wanted = false;
            self.sender.notify_one();
        }
    }

    /// Appends an answer with entry bytes, covered by `permit` and by `window`; `promised` is the promise its
    /// request came with. `body` follows the head that `encode` writes.
    pub fn entry(
        &self,
        promised: usize,
        window: Window,
        permit: Permit,
        body: Body<'_>,
        encode: impl FnOnce(&mut BytesMut),
    ) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        state.promised -= promised.min(state.promised);
        state.lane(window.is_high).end_load();
        let segment = open_segment(&mut state);
        let before = segment.bytes.len();
        encode(&mut segment.bytes);
        let mut added = segment.bytes.len() - before;
        added += match &body {
            Body::Copy(bytes) => bytes.len(),
            Body::Owned(bytes) => bytes.len(),
        };
        let segment = match body {
            Body::Copy(bytes) => {
                segment.bytes.extend_from_slice(bytes);
                segment
            }
            Body::Owned(bytes) if bytes.len() < SEGMENT_BYTES => {
                segment.bytes.extend_from_slice(&bytes);
                segment
            }
            Body::Owned(bytes) => {
                let bytes = BytesMut::from(Bytes::from(bytes));
                state.segments.push_back(Segment { bytes, ..Segment::default() });
                state.segments.back_mut().expect("just pushed")
            }
        };
        if window.is_high {
            segment.high_bytes += window.bytes;
        } else {
            segment.plain_bytes += window.bytes;
        }
        match segment.permits.last_mut() {
            Some(last) if last.is_of_pool(&permit) => last.merge(permit),
            _ => segment.permits.push(permit),
        }
        state.unsent += added as u64;
        self.after_release(&mut state);
    }

    /// Writes what is queued, as far as the peer takes it, without ever waiting. The work is bounded, more tightly for
    /// threads that serve everybody.
    pub fn flush(&self, sink: &impl Sink, is_sender: bool) -> Flush {
        let rounds = if is_sender { SENDER_ROUNDS_MAX } else { ROUNDS_MAX };
        for _ in 0..rounds {
            let mut taken = {
                let mut state = self.state.lock();
                if state.is_closed {
                    return Flush::Broken;
                }
                if state.is_writing || state.segments.is_empty() {
                    return Flush::Done;
                }
                state.is_writing = true;
                std::mem::take(&mut state.segments)
            };
            let result = write_some(sink, &taken);
            let mut state = self.state.lock();
            state.is_writing = false;
            if state.is_closed {
                return Flush::Broken;
            }
            let written = match result {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(_) => return Flush::Broken,
            };
            state.sent += written as u64;
            state.unsent -= written as u64;
            self.retire(&mut state, &mut taken, written);
            let is_left = !taken.is_empty();
            // What others appended meanwhile goes behind what is left.
            taken.append(&mut state.segments);
            state.segments = taken;
            self.after_release(&mut state);
            if is_left && written == 0 {
                return Flush::Left;
            }
        }
        if self.state.lock().segments.is_empty() { Flush::Done } else { Flush::Left }
    }

    /// Bytes the kernel ever took: a peer that reads makes it grow.
    pub fn sent(&self) -> u64 {
        self.state.lock().sent
    }

    /// Bytes the kernel ever took, and bytes that wait for it.
    pub fn progress(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.sent, state.unsent)
    }

    /// What it holds at this moment.
    pub fn view(&self) -> OutboxView {
        let state = self.state.lock();
        OutboxView {
            unsent: state.unsent,
            promised: state.promised as u64,
            leased: state.lease.as_ref().map_or(0, Permit::bytes),
            window_max: self.window_max as u64,
            plain: state.plain.bytes as u64,
            high: state.high.bytes as u64,
            loads: state.plain.loads + state.high.loads,
            is_window_full: state.plain.is_wanted || state.high.is_wanted,
            sent: state.sent,
        }
    }

    /// True when every promised answer but `promised` bytes of them was appended and written.
    pub fn owes_only(&self, promised: usize) -> bool {
        let state = self.state.lock();
        let is_loading = state.plain.bytes > 0 || state.high.bytes > 0;
        state.promised <= promised && state.segments.is_empty() && !state.is_writing && !is_loading
    }

    /// Drops everything and wakes the reader (invariant 4).
    pub fn close(&self) {
        let dropped = {
            let mut state = self.state.lock();
            state.is_closed = true;
            (std::mem::take(&mut state.segments), state.lease.take())
        };
        drop(dropped);
        self.room.notify_one();
    }

    /// Drops the segments that `written` bytes finish and accounts for them.
    fn retire(&self, state: &mut State, taken: &mut VecDeque<Segment>, mut written: usize) {
        while let Some(first) = taken.front_mut() {
            let step = written.min(first.bytes.len() - first.written);
            first.written += step;
            written -= step;
            if first.written < first.bytes.len() {
                break;
            }
            let mut done = taken.pop_front().expect("there is a front");
            state.answers -= done.answer_bytes;
            self.shrink_window(state, done.plain_bytes, false);
            self.shrink_window(state, done.high_bytes, true);
            if state.spare.capacity() == 0 && done.bytes.capacity() <= SPARE_BYTES_MAX {
                done.bytes.clear();
                state.spare = done.bytes;
            }
        }
        debug_assert_eq!(written, 0);
    }

    /// The lease goes back as answers leave: wholly when the free part is enough again, before that down to what is
    /// held and a step more. Another step is left until it is worth asking for it again. The reader is told that there
    /// is room.
    fn after_release(&self, state: &mut State) {
        let held = state.promised + state.answers;
        if held <= FREE_BYTES / 2 {
            drop(state.lease.take());
        } else if let Some(lease) = &mut state.lease {
            let need = held.saturating_sub(FREE_BYTES).next_multiple_of(LEASE_STEP) + LEASE_STEP;
            if lease.bytes() > (need + LEASE_STEP) as u64 {
                lease.shrink_to(need as u64);
            }
        }
        if held < self.answers_max {
            self.room.notify_one();
        }
    }
}

impl Lane {
    fn end_load(&mut self) {
        debug_assert!(self.loads > 0, "a window is given back once");
        self.loads -= self.loads.min(1);
    }
}

/// Entry bytes to be sent.
pub enum Body<'a> {
    /// To be copied: they belong to memory that must be let go soon.
    Copy(&'a [u8]),
    /// Loaded for this answer.
    Owned(Vec<u8>),
}

fn merge_lease(state: &mut State, step: Permit) {
    match &mut state.lease {
        Some(lease) => lease.merge(step),
        None => state.lease = Some(step),
    }
}

/// The last segment, or a new one when it is full.
fn open_segment(state: &mut State) -> &mut Segment {
    let is_full = state.segments.back().is_none_or(|last| last.bytes.len() >= SEGMENT_BYTES);
    if is_full {
        let bytes = std::mem::take(&mut state.spare);
        state.segments.push_back(Segment { bytes, ..Segment::default() });
    }
    state.segments.back_mut().expect("there is a last segment now")
}

fn write_some(sink: &impl Sink, segments: &VecDeque<Segment>) -> io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
    let mut count = 0;
    for (slice, segment) in slices.iter_mut().zip(segments) {
        *slice = IoSlice::new(&segment.bytes[segment.written..]);
        count += 1;
    }
    match sink.try_write_vectored(&slices[..count]) {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
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

    fn outbox(answers_max: usize) -> (Outbox, ByteBudget) {
        let pool = ByteBudget::new("outbox", 1 << 20);
        (Outbox::new(answers_max, 1000, pool.clone(), Arc::default()), pool)
    }

    #[tokio::test]
    async fn bytes_leave_in_order_across_short_writes_and_nothing_stays_held() {
        let pool = ByteBudget::new("outbox", 1 << 20);
        // Only the pool of the entries bounds them here.
        let outbox = Outbox::new(200_000, 1 << 30, pool.clone(), Arc::default());
        let entries = ByteBudget::new("outbound", 1 << 20);
        let mut expected = Vec::new();
        let peer = Peer::new(0);
        for i in 0u32..2000 {
            assert_eq!(outbox.credit(28, 28).await, Ok(28));
            if i % 3 == 0 {
                let len = (i as usize % 40) * 1024;
                let window = outbox.open_window(len, i % 2 == 0).unwrap();
                let body = vec![i as u8; len];
                expected.extend_from_slice(&i.to_be_bytes());
                expected.extend_from_slice(&body);
                let Some(permit) = entries.try_acquire(len as u64) else {
                    peer.limit.store(usize::MAX, Ordering::Relaxed);
                    outbox.return_credit(28);
                    expected.truncate(expected.len() - len - 4);
                    outbox.close_window(window);
                    assert_eq!(outbox.flush(&peer, true), Flush::Done);
                    continue;
                };
                outbox.entry(28, window, permit, Body::Owned(body), |out| {
                    out.extend_from_slice(&i.to_be_bytes())
                });
            } else {
                outbox.answer(28, |out| out.extend_from_slice(&i.to_be_bytes()));
                expected.extend_from_slice(&i.to_be_bytes());
            }
            peer.limit.store(i as usize % 5000, Ordering::Relaxed);
            assert_ne!(outbox.flush(&peer, false), Flush::Broken);
        }
        peer.limit.store(usize::MAX, Ordering::Relaxed);
        assert_eq!(outbox.flush(&peer, true), Flush::Done);
        assert!(*peer.got.lock() == expected, "invariant 1");
        assert!(outbox.owes_only(0));
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
        outbox.flush(&peer, true);
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
        assert_eq!(outbox.flush(&Peer::new(1), true), Flush::Broken);
    }

    #[tokio::test]
    async fn a_reader_whose_answers_have_left_does_not_wait_for_the_leases_of_others() {
        let pool = ByteBudget::new("outbox", 2 * LEASE_STEP as u64);
        let outbox = Outbox::new(200_000, 1000, pool.clone(), Arc::default());
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
        assert_eq!(outbox.flush(&Peer::new(usize::MAX), true), Flush::Done);
        let given = tokio::time::timeout(std::time::Duration::from_secs(60), waiting).await;
        assert_eq!(given, Ok(Ok(28)), "invariant 6");
        assert_eq!(pool.gauge().waiting, 0, "no place in line is left behind");
    }

    #[tokio::test]
    async fn a_waiting_reader_takes_the_lease_that_another_gives_back() {
        let pool = ByteBudget::new("outbox", LEASE_STEP as u64);
        let outbox = Outbox::new(200_000, 1000, pool.clone(), Arc::default());
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
    fn the_window_admits_one_oversized_entry_alone() {
        let (outbox, _) = outbox(5000);
        for is_high in [false, true] {
            let whole = outbox.open_window(5000, is_high).expect("larger than the window of 1000, and alone");
            assert!(outbox.open_window(1, is_high).is_none());
            outbox.close_window(whole);
            assert!(outbox.open_window(600, is_high).is_some());
            assert!(outbox.open_window(400, is_high).is_some());
            assert!(outbox.open_window(1, is_high).is_none(), "invariant 5");
        }
    }

    #[tokio::test]
    async fn the_fencing_lane_has_a_window_of_its_own_that_opens_when_the_peer_reads() {
        let (outbox, _) = outbox(5000);
        let entries = ByteBudget::new("outbound", 1 << 20);
        let plain = outbox.open_window(1000, false);
        assert!(plain.is_some());
        let window = outbox.open_window(1000, true).expect("plain reads keep no fence out");
        assert_eq!(outbox.high_loads(), 1);
        assert_eq!(outbox.credit(28, 28).await, Ok(28));
        let permit = entries.try_acquire(1000).unwrap();
        outbox.entry(28, window, permit, Body::Owned(vec![7; 1000]), |_| {});
        assert_eq!(outbox.high_loads(), 0, "loaded, but not sent");
        assert!(outbox.open_window(1, true).is_none(), "invariant 5");
        assert_eq!(outbox.flush(&Peer::new(usize::MAX), true), Flush::Done);
        let patience = std::time::Duration::from_secs(60);
        assert!(tokio::time::timeout(patience, outbox.sender.notified()).await.is_ok());
        assert!(outbox.open_window(1000, true).is_some());
        assert!(outbox.open_window(1, false).is_none(), "the plain window is as full as it was");
    }
}
