//! Outbox: the bytes on their way to one peer, bounded, in order, written by whoever is there.
//!
//! # Data flow
//! ```text
//! reader: credit() ──► request ──► answer() ─┐
//! sender, I/O threads: entry permit ─► entry() ┴─► segments ──► flush(): one thread at a time, never waits ──► socket
//!                                                     │
//! reads that wait ◄── descriptors ◄── drop_responses() ┴─► Part ──► the same bytes loaded ──► resume() ──► segments
//! ```
//! Answers of a group are appended under a short mutex and written right there, by the completion thread, as long as
//! the socket takes them; the rest is left to the sender task, which waits for the socket.
//!
//! # Invariants
//! 1. Bytes leave in the order in which they were appended, but for responses that were dropped and loaded again; one
//!    thread writes at a time (`is_writing`), outside the lock.
//! 2. `promised + queued answers <= answers_max`: a request is decoded only after room for its answer was promised, so
//!    appending never waits and never grows beyond the bound. A peer that does not read is not read any more. The
//!    promise of a response with entries lasts until the kernel has it: dropped, it may still end in a failure.
//! 3. Bytes of loaded entries are covered by permits that live until the kernel took the bytes, or they were dropped.
//! 4. After `close` nothing is queued and everything held is given back.
//! 5. Each read_window of reads (plain; fencing and high priority) holds at most `window_max` bytes, or one larger entry, so
//!    that one peer that does not read cannot hold a whole outbound pool. Nothing is loaded while `ahead_max` bytes are
//!    loaded and not with the kernel: the kernel's buffer feeds the peer, so more would only wait. Loads that a disk has
//!    in hand have as much for each place that reads it, and no other load waits for them: a disk that hangs has its own part.
//! 6. A reader that waits for the pool goes on as soon as [`FREE_BYTES`] are enough for what is owed, whether or not
//!    others give anything back.
//! 7. `drop_responses` makes descriptors of whole responses, so that they are loaded again. Of a frame of which the peer
//!    has a part it keeps layout and identity ([`Identity`]), and nothing is written before the rest of that very
//!    frame. Answers without entries stay.
//! 8. A request leaves by `finished` when the kernel has the last byte of its response, once.
//! 9. Half of the outbox pool is for first steps: a connection takes more only of the other half, and no more than one
//!    part in [`SHARES`] of what it leaves free of that. Beyond that it gets bytes only as its own answers leave. So
//!    peers that ask for much and read nothing leave a first step to later peers. Promises of long polls that ended are
//!    no new requests, and may have all of the pool.
//! 10. Bytes that wait for a peer are in buffers of at most twice their size, or of a KiB.
//!
//! # Limits     `answers_max` per connection; above [`FREE_BYTES`] backed by the outbox pool in steps of
//! [`LEASE_STEP`], but for [`UNBACKED_BYTES_MAX`] of long polls; `window_max` and `ahead_max` per class; a segment:
//! [`SEGMENT_BYTES`] unless one answer is larger

mod part;
mod segment;
#[cfg(test)]
mod tests;

pub use part::Identity;

use crate::connection::request::ReadRequest;
use crate::read_class::{PerClass, ReadClass};
use bindery_flow::{ByteBudget, Permit};
use bytes::BytesMut;
use parking_lot::Mutex;
use segment::Segment;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Room for answers that every connection has without asking the pool: part of its fixed cost.
pub const FREE_BYTES: usize = 4096;
/// Bytes that a connection takes from the outbox pool at a time.
const LEASE_STEP: usize = 8 * 1024;
/// Promised to long polls that ended without anything that backs it, at most.
const UNBACKED_BYTES_MAX: usize = 32 * 1024;
/// The smaller, the less one connection alone may take; the larger, the sooner many leave but a step to the next.
const SHARES: u64 = 16;
/// How often a reader that must leave bytes to others looks whether there are more of them.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Answers are gathered in buffers of this size.
const SEGMENT_BYTES: usize = 16 * 1024;
/// Charged beside a frame for its descriptor, which lives until the frame is sent.
const DESCRIPTOR_BYTES: usize = 128;
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
    /// The rest of a frame must be loaded first ([`Outbox::part`]).
    Held,
    /// The connection is closed or broke; the first kind of error is kept by the caller.
    Broken,
}

/// The connection is closed.
#[derive(Debug, PartialEq, Eq)]
pub struct Closed;

/// The read window of one class.
#[derive(Default)]
struct ReadWindow {
    /// Bytes in use: loads under way that no disk has, and entries not yet with the kernel.
    bytes: usize,
    /// Of these, bytes of entries not yet with the kernel.
    queued: usize,
    /// Bytes of loads that a disk has, by place; as many as were needed.
    on_disk: Vec<usize>,
    /// Loads under way: begun, and neither appended nor given up.
    loads: usize,
    /// A load was refused because the window was full: the sender wants to know when it opens.
    is_wanted: bool,
}

/// Room that a load took in the window of its class. It goes back with [`Outbox::entry`] or [`Outbox::close_window`].
#[derive(Debug)]
#[must_use = "a window that is not given back stays taken"]
pub struct Window {
    bytes: usize,
    class: ReadClass,
    /// The place that has the load.
    disk: Option<usize>,
}

/// A frame of which the peer has a part, dropped.
pub struct Part {
    /// The identity that the rebuilt frame must have.
    pub identity: Arc<Identity>,
    /// Bytes of it that the kernel had taken.
    pub sent: usize,
    /// Of its read.
    pub class: ReadClass,
}

/// Bytes in a connection's outbox at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutboxUse {
    /// Loaded entries not yet with the kernel.
    pub queued: usize,
    /// Windows in use: those, and loads under way.
    pub windows: usize,
    /// Answers without entries not yet with the kernel.
    pub answers: usize,
    /// Room promised for answers.
    pub promised: usize,
    /// Taken from the outbox pool for both.
    pub leased: usize,
    /// Bytes the kernel ever took.
    pub sent: u64,
}

#[derive(Default)]
struct State {
    segments: VecDeque<Segment>,
    /// Goes before all segments, once it is loaded again.
    part: Option<(ReadRequest, Part)>,
    /// Room given to requests whose answer has not been appended yet, or may be dropped.
    promised: usize,
    /// Bytes of answers appended and not yet with the kernel.
    answers: usize,
    windows: PerClass<ReadWindow>,
    lease: Option<Permit>,
    is_writing: bool,
    is_closed: bool,
    /// Bytes ever taken by the kernel.
    sent: u64,
}

/// The contents of an outbox, for operators, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboxView {
    /// Appended, and not with the kernel.
    pub unsent: u64,
    /// Promised for answers that are still owed.
    pub promised: u64,
    /// Held of the pool for answers.
    pub leased: u64,
    /// What each read_window of reads may hold.
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
    /// Bytes that wait for the kernel; none while a thread writes.
    fn unsent(&self) -> u64 {
        let queued: usize = self.segments.iter().map(|segment| segment.len() - segment.written).sum();
        let dropped = self.part.as_ref().map_or(0, |(_, part)| part.identity.frame_len() - part.sent);
        (queued + dropped) as u64
    }

    /// Bytes of answers that the free part and the lease cover.
    fn backed(&self) -> usize {
        FREE_BYTES + self.leased() as usize
    }

    /// Bytes of the pool that it has.
    fn leased(&self) -> u64 {
        self.lease.as_ref().map_or(0, Permit::bytes)
    }
}

/// See the module.
pub struct Outbox {
    state: Mutex<State>,
    answers_max: usize,
    window_max: usize,
    ahead_max: usize,
    pool: ByteBudget,
    /// Told when there is room for answers again; one waiter, the reader.
    room: Notify,
    /// Told when a window that refused a load opens again.
    sender: Arc<Notify>,
}

impl Outbox {
    /// An empty outbox that holds `answers_max` bytes of answers, leased from `pool`, and `window_max` of entries
    /// in each read_window, `ahead_max` of them loaded before they are needed. `sender` is told when loads that were refused
    /// can be tried again.
    pub fn new(
        answers_max: usize,
        window_max: usize,
        ahead_max: usize,
        pool: ByteBudget,
        sender: Arc<Notify>,
    ) -> Outbox {
        assert!(answers_max >= FREE_BYTES);
        let state = Mutex::new(State::default());
        Outbox { state, answers_max, window_max, ahead_max, pool, room: Notify::new(), sender }
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
            if !self.may_step(state) {
                return None;
            }
            merge_lease(state, self.pool.try_acquire(LEASE_STEP as u64)?);
        }
        let given = (state.backed().min(self.answers_max) - held).min(most);
        state.promised += given;
        Some(given)
    }

    /// True when a step more leaves enough to others (invariant 9).
    fn may_step(&self, state: &State) -> bool {
        state.lease.is_none() || state.leased() + LEASE_STEP as u64 <= self.share()
    }

    /// Bytes that a connection may take of the pool now, beyond a first step (invariant 9).
    fn share(&self) -> u64 {
        let gauge = self.pool.gauge();
        (gauge.capacity / 2).saturating_sub(gauge.used) / SHARES
    }

    /// As [`Outbox::try_credit`], waiting for the peer to read and for the pool if need be. Cancel safe: promises are
    /// made in one step at the end. `least` must not exceed [`FREE_BYTES`].
    pub async fn credit(&self, least: usize, most: usize) -> Result<usize, Closed> {
        // Asks for nothing until it is polled, and then keeps its place in line while answers leave.
        let lease = self.pool.acquire(LEASE_STEP as u64);
        tokio::pin!(lease);
        loop {
            let (wants_lease, leaves_to_others) = {
                let mut state = self.state.lock();
                if state.is_closed {
                    return Err(Closed);
                }
                if let Some(given) = self.give_credit(&mut state, least, most) {
                    return Ok(given);
                }
                let is_below_max = state.promised + state.answers + least <= self.answers_max;
                let may_step = self.may_step(&state);
                (is_below_max && may_step, is_below_max && !may_step)
            };
            if !wants_lease {
                // Nothing to use it for: no place in line, and no grant that lies unused.
                lease.set(self.pool.acquire(LEASE_STEP as u64));
            }
            tokio::select! {
                // A notification since the look above is kept. Own answers may leave before strangers give a lease
                // back, and then none is needed (invariant 6).
                () = self.room.notified() => {}
                () = tokio::time::sleep(LOOK_AGAIN), if leaves_to_others => {}
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

    /// About how many bytes of answers could be promised now, with what the pool would give. A first step may be had or
    /// not; it is little.
    pub fn room(&self) -> usize {
        let state = self.state.lock();
        let step = if state.lease.is_none() { LEASE_STEP as u64 } else { 0 };
        let more = self.share().saturating_sub(state.leased()).max(step);
        let most = state.backed().saturating_add(more as usize).min(self.answers_max);
        most.saturating_sub(state.promised + state.answers)
    }

    /// Renews a promise that was given back while its request waited for something else than the peer: a long poll, whose
    /// descriptor stood for it meanwhile. These may exceed the bound, by as much as polls are parked; the pool backs them.
    /// False when it has nothing left and more than [`UNBACKED_BYTES_MAX`] are not backed: the connection is to be closed.
    #[must_use]
    pub fn promise_again(&self, bytes: usize) -> bool {
        let mut state = self.state.lock();
        state.promised += bytes;
        loop {
            let unbacked = (state.promised + state.answers).saturating_sub(state.backed());
            if unbacked == 0 {
                return true;
            }
            // Not by shares (invariant 9): what cannot be promised here ends the connection, with all that is under way on it.
            match self.pool.try_acquire(LEASE_STEP as u64) {
                Some(step) => merge_lease(&mut state, step),
                None => return unbacked <= UNBACKED_BYTES_MAX,
            }
        }
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
    }

    /// As [`Outbox::answer`] for the few answers that may exceed their promise by a small body (an explicit LAC).
    pub fn unpromised_answer(&self, promised: usize, encode: impl FnOnce(&mut BytesMut)) {
        let mut frame = BytesMut::new();
        encode(&mut frame);
        self.state.lock().promised += frame.len().saturating_sub(promised);
        self.answer(promised.max(frame.len()), |out| out.extend_from_slice(&frame));
    }

    /// Takes `bytes` of the window of its read_window for a load that begins, or refuses when it is full, or when
    /// enough is loaded that the kernel has not taken. An entry larger than the whole window goes alone: an empty
    /// read_window refuses no load (invariant 5).
    pub fn open_window(&self, bytes: usize, class: ReadClass) -> Option<Window> {
        let (window_max, ahead_max) = (self.window_max, self.ahead_max);
        let mut state = self.state.lock();
        let read_window = &mut state.windows[class];
        if read_window.queued >= ahead_max
            || (read_window.bytes > 0 && read_window.bytes + bytes > window_max)
        {
            read_window.is_wanted = true;
            return None;
        }
        read_window.is_wanted = false;
        Some(read_window.open(bytes, class))
    }

    /// As [`Outbox::open_window`], for a load whose turn has come at a place. Its connection took its place in that line while
    /// the read_window had room, so what has filled it since is no reason to pass: only loads that this place has are.
    pub fn open_window_on_disk(&self, bytes: usize, class: ReadClass, place: usize) -> Option<Window> {
        let mut state = self.state.lock();
        let read_window = &mut state.windows[class];
        if !read_window.has_room_on_disk(bytes, place, self.window_max) {
            return None;
        }
        let mut window = read_window.open(bytes, class);
        read_window.move_to_disk(&mut window, place);
        Some(window)
    }

    /// A place is about to take over a load of `bytes`, which has these windows: they count there from now on. False when
    /// it has too much already, which is over when one of its loads has ended.
    #[must_use]
    pub fn move_to_disk<'a>(
        &self,
        bytes: usize,
        windows: impl Iterator<Item = &'a mut Window>,
        class: ReadClass,
        place: usize,
    ) -> bool {
        let mut state = self.state.lock();
        let read_window = &mut state.windows[class];
        let has_room = read_window.has_room_on_disk(bytes, place, self.window_max);
        if has_room {
            windows.for_each(|window| read_window.move_to_disk(window, place));
        }
        has_room
    }

    /// The window for the rest of a frame of which the peer has a part: no other bytes are sent before it, so it is
    /// never refused. There is one such frame.
    pub fn open_window_of_part(&self, bytes: usize, class: ReadClass) -> Window {
        self.state.lock().windows[class].open(bytes, class)
    }

    /// Gives a window back without sending.
    pub fn close_window(&self, window: Window) {
        let mut state = self.state.lock();
        let read_window = &mut state.windows[window.class];
        read_window.end_load(&window);
        read_window.bytes -= window.bytes.min(read_window.bytes);
        self.tell_sender(read_window);
    }

    /// A window gave bytes back: a load that it refused may begin.
    fn tell_sender(&self, read_window: &mut ReadWindow) {
        if std::mem::take(&mut read_window.is_wanted) {
            self.sender.notify_one();
        }
    }

    /// Appends the answer to `request` with entry bytes, covered by `permit` and by `window`. `body` follows the head
    /// that `encode` writes. Bytes charged beyond the frame go back.
    pub fn entry(
        &self,
        request: ReadRequest,
        mut window: Window,
        mut permit: Permit,
        body: Body<'_>,
        encode: impl FnOnce(&mut BytesMut),
    ) {
        let (body, is_large) = match body {
            Body::Owned(mut bytes) if bytes.len() >= SEGMENT_BYTES => {
                // Invariant 10.
                bytes.shrink_to_fit();
                (Body::Owned(bytes), true)
            }
            body => (body, false),
        };
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        state.windows[window.class].end_load(&window);
        let segment = if is_large {
            state.segments.push_back(Segment::default());
            state.segments.back_mut().expect("just pushed")
        } else {
            open_segment(&mut state)
        };
        let begin = segment.bytes.len();
        encode(&mut segment.bytes);
        match body {
            Body::Copy(bytes) => segment.bytes.extend_from_slice(bytes),
            Body::Owned(bytes) if is_large => segment.body = bytes,
            Body::Owned(bytes) => segment.bytes.extend_from_slice(&bytes),
        }
        let (charged, used) = (window.bytes, (segment.len() - begin + DESCRIPTOR_BYTES).min(window.bytes));
        let class = window.class;
        permit.shrink_to(used as u64);
        window.bytes = used;
        segment.cover(request, begin, window, permit);
        let read_window = &mut state.windows[class];
        read_window.queued += used;
        if charged > used {
            read_window.bytes -= (charged - used).min(read_window.bytes);
            self.tell_sender(read_window);
        }
    }

    /// Gives the memory of entries that wait for the peer back, their permits and windows with it (invariant 7): for a
    /// peer that takes nothing while others wait. Returns the requests that are to be loaded again, in the order of
    /// their responses, and the bytes given back.
    pub fn drop_responses(&self) -> (Vec<ReadRequest>, u64) {
        let taken = {
            let mut state = self.state.lock();
            if state.is_closed || state.is_writing {
                return (Vec::new(), 0);
            }
            // No thread writes in the meantime: the bytes are taken apart outside the lock.
            state.is_writing = true;
            std::mem::take(&mut state.segments)
        };
        let mut pieces: Vec<_> = taken.into_iter().map(Segment::drop_responses).collect();
        let mut state = self.state.lock();
        state.is_writing = false;
        if state.is_closed {
            return (Vec::new(), 0);
        }
        let (mut requests, mut bytes) = (Vec::new(), 0);
        let mut kept = VecDeque::new();
        for piece in &mut pieces {
            requests.append(&mut piece.requests);
            kept.extend(piece.kept.take());
            state.answers -= piece.answer_bytes;
            if let Some((request, identity, sent)) = piece.part.take() {
                assert!(state.part.is_none(), "the peer has a part of one frame (outbox invariant 7)");
                let class = request.class;
                state.part = Some((request, Part { identity, sent, class }));
            }
            for (read_window, given) in state.windows.iter_mut().zip(piece.window_bytes.iter().copied()) {
                read_window.release(given);
                self.tell_sender(read_window);
            }
            bytes += piece.permits.iter().map(Permit::bytes).sum::<u64>();
        }
        kept.append(&mut state.segments);
        state.segments = kept;
        self.after_release(&mut state);
        drop(state);
        // Here the permits go.
        drop(pieces);
        (requests, bytes)
    }

    /// True when [`Outbox::drop_responses`] would give something back.
    pub fn may_drop(&self) -> bool {
        let state = self.state.lock();
        state.segments.iter().any(|segment| segment.responses.iter().any(|response| response.may_drop))
    }

    /// The frame that must be loaded again before anything is written.
    pub fn part(&self) -> Option<Part> {
        let state = self.state.lock();
        let (_, Part { identity, sent, class }) = state.part.as_ref()?;
        Some(Part { identity: identity.clone(), sent: *sent, class: *class })
    }

    /// Puts the rest of the dropped frame, [`Identity::rest`], before everything else.
    pub fn resume(&self, rest: BytesMut, window: Window, permit: Permit) {
        let mut state = self.state.lock();
        state.windows[window.class].end_load(&window);
        let Some((request, part)) = state.part.take() else { return };
        debug_assert_eq!(rest.len() + part.sent, part.identity.frame_len());
        let (class, charge, end) = (window.class, window.bytes, rest.len());
        let mut segment = Segment { bytes: rest, ..Segment::default() };
        segment.cover(request, 0, window, permit);
        let response = segment.responses.back_mut().expect("just covered");
        debug_assert_eq!((response.begin, response.end), (0, end));
        (response.sent_before, response.identity) = (part.sent, Some(part.identity));
        state.windows[class].queued += charge;
        state.segments.push_front(segment);
    }

    /// Writes what is queued, as far as the peer takes it, without ever waiting. The work is bounded, more tightly for
    /// threads that serve everybody. Requests whose responses the kernel has wholly are added to `finished`.
    pub fn flush(&self, sink: &impl Sink, is_sender: bool, finished: &mut Vec<ReadRequest>) -> Flush {
        let rounds = if is_sender { SENDER_ROUNDS_MAX } else { ROUNDS_MAX };
        for _ in 0..rounds {
            let mut taken = {
                let mut state = self.state.lock();
                if state.is_closed {
                    return Flush::Broken;
                }
                if state.part.is_some() {
                    return Flush::Held;
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
            self.retire(&mut state, &mut taken, written, finished);
            let is_left = !taken.is_empty();
            // Segments that others appended in the meantime go behind those that are left.
            taken.append(&mut state.segments);
            state.segments = taken;
            self.after_release(&mut state);
            if is_left && written == 0 {
                state.segments.iter_mut().for_each(Segment::fit);
                return Flush::Left;
            }
        }
        if self.state.lock().segments.is_empty() { Flush::Done } else { Flush::Left }
    }

    /// The bytes it holds now.
    pub fn in_use(&self) -> OutboxUse {
        let state = self.state.lock();
        OutboxUse {
            queued: state.windows.iter().map(|read_window| read_window.queued).sum(),
            windows: state.windows.iter().map(ReadWindow::all_bytes).sum(),
            answers: state.answers,
            promised: state.promised,
            leased: state.leased() as usize,
            sent: state.sent,
        }
    }

    /// True when something is queued that no thread is writing.
    pub fn has_unsent(&self) -> bool {
        !self.state.lock().segments.is_empty()
    }

    /// True when everything that was queued is with the kernel.
    pub fn is_sent(&self) -> bool {
        let state = self.state.lock();
        state.segments.is_empty() && !state.is_writing && state.part.is_none()
    }

    /// Bytes the kernel ever took, and bytes that wait for it.
    pub fn progress(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.sent, state.unsent())
    }

    /// Its contents at this moment, for operators.
    pub fn view(&self) -> OutboxView {
        let state = self.state.lock();
        OutboxView {
            unsent: state.unsent(),
            promised: state.promised as u64,
            leased: state.leased(),
            window_max: self.window_max as u64,
            plain: state.windows.plain.all_bytes() as u64,
            high: state.windows.priority.all_bytes() as u64,
            loads: state.windows.iter().map(|window| window.loads).sum(),
            is_window_full: state.windows.iter().any(|window| window.is_wanted),
            sent: state.sent,
        }
    }

    /// True when every promised answer was appended and written.
    pub fn owes_nothing(&self) -> bool {
        let state = self.state.lock();
        let is_loading = state.windows.iter().any(|read_window| read_window.all_bytes() > 0);
        let is_empty = state.segments.is_empty() && state.part.is_none();
        state.promised == 0 && is_empty && !state.is_writing && !is_loading
    }

    /// Drops everything and wakes the reader (invariant 4).
    pub fn close(&self) {
        let dropped = {
            let mut state = self.state.lock();
            state.is_closed = true;
            state.part = None;
            (std::mem::take(&mut state.segments), state.lease.take())
        };
        drop(dropped);
        self.room.notify_one();
    }

    /// Drops the segments that `written` bytes finish and accounts for them.
    fn retire(
        &self,
        state: &mut State,
        taken: &mut VecDeque<Segment>,
        mut written: usize,
        finished: &mut Vec<ReadRequest>,
    ) {
        while let Some(first) = taken.front_mut() {
            let step = written.min(first.len() - first.written);
            first.written += step;
            written -= step;
            first.take_finished(|request| {
                state.promised -= request.promised.min(state.promised);
                finished.push(request);
            });
            if !first.is_written() {
                break;
            }
            let done = taken.pop_front().expect("there is a front");
            state.answers -= done.answer_bytes;
            for (read_window, bytes) in state.windows.iter_mut().zip(done.window_bytes.iter().copied()) {
                if bytes > 0 {
                    read_window.release(bytes);
                    self.tell_sender(read_window);
                }
            }
            segment::keep_spare(done.bytes);
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

impl ReadWindow {
    fn open(&mut self, bytes: usize, class: ReadClass) -> Window {
        self.bytes += bytes;
        self.loads += 1;
        Window { bytes, class, disk: None }
    }

    /// A load ended; if a disk had it, its bytes count for the read_window again.
    fn end_load(&mut self, window: &Window) {
        debug_assert!(self.loads > 0, "a window is given back once");
        self.loads -= self.loads.min(1);
        if let Some(place) = window.disk {
            self.on_disk[place] -= window.bytes;
            self.bytes += window.bytes;
        }
    }

    /// True when a place may take a load of so many bytes over; one that is larger than the window goes alone.
    fn has_room_on_disk(&self, bytes: usize, place: usize, window_max: usize) -> bool {
        let has = self.on_disk.get(place).copied().unwrap_or(0);
        has == 0 || has + bytes <= window_max
    }

    fn move_to_disk(&mut self, window: &mut Window, place: usize) {
        debug_assert!(window.disk.is_none(), "a load goes to one place");
        if self.on_disk.len() <= place {
            self.on_disk.resize(place + 1, 0);
        }
        self.bytes -= window.bytes.min(self.bytes);
        self.on_disk[place] += window.bytes;
        window.disk = Some(place);
    }

    /// Bytes in use, wherever.
    fn all_bytes(&self) -> usize {
        self.bytes + self.on_disk.iter().sum::<usize>()
    }

    /// Entries of so many bytes left, or were dropped.
    fn release(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.queued && bytes <= self.bytes);
        self.queued -= bytes.min(self.queued);
        self.bytes -= bytes.min(self.bytes);
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
    let is_full =
        state.segments.back().is_none_or(|last| last.len() >= SEGMENT_BYTES || !last.body.is_empty());
    if is_full {
        state.segments.push_back(Segment { bytes: segment::take_spare(), ..Segment::default() });
    }
    state.segments.back_mut().expect("there is a last segment now")
}

fn write_some(sink: &impl Sink, segments: &VecDeque<Segment>) -> io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
    let mut count = 0;
    for (slice, piece) in slices.iter_mut().zip(segments.iter().flat_map(Segment::slices)) {
        *slice = piece;
        count += 1;
    }
    match sink.try_write_vectored(&slices[..count]) {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        other => other,
    }
}
