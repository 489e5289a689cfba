//! A lane to one bookie: callers queue requests here, and the lane's task (`task`) carries them.
//!
//! A lane outlives its connections. Callers never see whether there is one: they append, and the task answers.
//!
//! # Invariants
//! 1. What is in `outgoing`, or was taken from it, has its request in `pending`; both change under one lock.
//! 2. The task is woken only when it waits for requests: while it writes, more are gathered, and leave together.
//! 3. Nothing more is sent while the bookie owes [`ADDS_UNANSWERED_MAX`] answers to adds. Reads do not wait for those: while
//!    there are that many adds the lane takes no reads (`is_crowded`), and they go over another connection.
//! 4. Once the task is gone (`is_gone`) nobody answers: that is after the last owner was dropped or the runtime ended, when
//!    nobody listens any more.

use std::sync::Arc;
use std::time::Duration;

use bindery_types::{BookieId, EntryId, LedgerId, MasterKey};
use bindery_wire::v2::{self, Flags};
use bindery_wire::v3::{self, Operation};
use bindery_wire::{ErrorCode, FrameLimit, entry, frame};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::delivery::{Batch, Deliveries, Waiter};
use super::outgoing::Outgoing;
use super::pending::{CallKey, Pending};
use crate::transport::{AddRequest, AddSink, AddTag, BatchReadRequest, BookieError, Connection};

/// The frame of an add without its body: length, header, master key.
pub(super) const ADD_HEAD_BYTES: usize = frame::LENGTH_PREFIX_SIZE_BYTES + v2::ADD_BODY_OFFSET_BYTES;
/// How many adds a bookie may have been sent and not answered before it is sent more; those that are on their way by then
/// come on top, at most some 3,000 small ones. A Java bookie refuses adds beyond 10,000 (`maxPendingAddRequestsPerThread`),
/// and to a writer a bookie that refuses has failed.
const ADDS_UNANSWERED_MAX: usize = 5_000;
/// The largest v2 request other than an add: a fencing batch read.
const CALL_BYTES_MAX: usize = 64;

pub(super) struct State {
    pub(super) outgoing: Outgoing,
    pub(super) pending: Pending,
    /// Adds that fit no frame. They are answered by the task like all others (transport invariant 4).
    refused: Vec<(Arc<dyn AddSink>, EntryId, AddTag)>,
    /// The task has nothing to write and waits to be told.
    pub(super) is_waiting: bool,
    pub(super) is_closing: bool,
    /// The task has closed its connection after `is_closing`.
    pub(super) is_closed: bool,
    is_gone: bool,
    /// The time as of the task's last round; callers do not ask the clock for each request.
    pub(super) now: Instant,
    next_id: u64,
}

impl State {
    /// To be called before a request is pushed. True if the task has to be woken afterwards.
    fn begin_push(&mut self) -> bool {
        let wakes = self.is_waiting;
        if wakes {
            self.is_waiting = false;
            // The task slept and did not update it.
            self.now = Instant::now();
        }
        wakes
    }

    /// Whether to wait for answers of the bookie before more is sent (invariant 3).
    pub(super) fn is_paced(&self) -> bool {
        self.pending.adds.len().saturating_sub(self.outgoing.adds()) >= ADDS_UNANSWERED_MAX
    }

    /// Whether so many adds are sent or queued that a new request would wait for answers to them.
    fn is_crowded(&self) -> bool {
        self.pending.adds.len() >= ADDS_UNANSWERED_MAX
    }

    /// Answers the adds that were refused before they were sent.
    pub(super) fn give_out_refused(&mut self, out: &mut Deliveries) {
        for (sink, entry, tag) in self.refused.drain(..) {
            out.add(&sink, entry, tag, Err(BookieError::Refused(ErrorCode::BadRequest)));
        }
    }
}

/// See the module.
pub(super) struct Lane {
    pub(super) bookie: BookieId,
    pub(super) state: Mutex<State>,
    /// Wakes the task.
    pub(super) wake: Notify,
    /// Notified when `is_closed` or `is_gone` becomes true.
    ended: Notify,
    limit: FrameLimit,
    request_timeout: Duration,
}

/// What a caller awaits; an error means that the lane's task is gone.
pub(super) type Receiver<T> = oneshot::Receiver<Result<T, BookieError>>;

impl Lane {
    pub(super) fn new(
        bookie: BookieId,
        limit: FrameLimit,
        request_timeout: Duration,
        is_closing: bool,
    ) -> Lane {
        let state = State {
            outgoing: Outgoing::default(),
            pending: Pending::default(),
            refused: Vec::new(),
            is_waiting: false,
            is_closing,
            is_closed: false,
            is_gone: false,
            now: Instant::now(),
            next_id: 0,
        };
        Lane {
            bookie,
            state: Mutex::new(state),
            wake: Notify::new(),
            ended: Notify::new(),
            limit,
            request_timeout,
        }
    }

    /// Queues an add; everything that may be slow happens elsewhere.
    pub(super) fn add(&self, request: AddRequest, sink: &Arc<dyn AddSink>) {
        let AddRequest { ledger, entry, body, master_key, is_recovery, is_background, is_deferred, tag } =
            request;
        let overhead = match is_deferred {
            true => v3::ADD_HEAD_SIZE_BYTES_MAX,
            false => v2::ADD_BODY_OFFSET_BYTES,
        };
        let fits =
            body.len() >= entry::ENTRY_SIZE_BYTES_MIN && self.limit.admits_payload(overhead + body.len());
        let head = add_head(master_key, add_flags(is_recovery, is_background), body.len());
        let wakes = {
            let mut state = self.state.lock();
            if state.is_gone {
                return;
            }
            let wakes = state.begin_push();
            if fits {
                let deadline = state.now + self.request_timeout;
                let position = state.outgoing.position();
                assert!(state.pending.adds.are_v3 == is_deferred || state.pending.adds.is_empty());
                state.pending.adds.are_v3 = is_deferred;
                match is_deferred {
                    true => {
                        state.next_id += 1;
                        let (head, size_bytes) =
                            deferred_add_head(state.next_id, ledger, entry, master_key, body.len());
                        state.outgoing.push_parts(&head[..size_bytes], body);
                    }
                    false => state.outgoing.push(head, body),
                }
                state.pending.adds.push(ledger, entry, tag, position, deadline, sink);
            } else {
                state.refused.push((sink.clone(), entry, tag));
            }
            wakes
        };
        if wakes {
            self.wake.notify_one();
        }
    }

    /// Forgets the adds of a ledger that the task has not taken: they are neither sent nor answered. Not for adds with
    /// deferred sync, whose frames are in two parts.
    pub(super) fn withdraw(&self, ledger: LedgerId, sink: &Arc<dyn AddSink>) {
        let withdrawn = {
            let mut state = self.state.lock();
            let first = state.outgoing.first_withdrawable();
            let numbers = state.pending.adds.withdraw(ledger, sink, first);
            state.outgoing.withdraw(numbers)
        };
        // Their bytes go back to a budget outside the lock.
        drop(withdrawn);
    }

    /// Whether the lane takes no reads at the moment (invariant 3).
    pub(super) fn is_crowded(&self) -> bool {
        self.state.lock().is_crowded()
    }

    /// Queues a v2 read. `None` when it may not be under way together with what is (`pending` invariant 2), or would wait
    /// for adds (invariant 3).
    pub(super) fn read(
        &self,
        ledger: LedgerId,
        entry: Option<EntryId>,
        fence: Option<MasterKey>,
    ) -> Option<Receiver<Bytes>> {
        let read = v2::Read {
            version: v2::VERSION_CURRENT,
            flags: read_flags(fence.is_some(), entry),
            ledger_id: ledger.get(),
            entry_id: EntryId::to_wire(entry),
            master_key: fence,
        };
        let key = CallKey::Read { ledger: read.ledger_id, entry: read.entry_id };
        let (sender, receiver) = oneshot::channel();
        let is_queued = self.push(self.request_timeout, |state, deadline| {
            if state.is_crowded() || !state.pending.admits_read(key, fence.is_some()) {
                return false;
            }
            let position = put_v2(state, &v2::Request::Read(read));
            let waiter = Waiter::Read(sender);
            state.pending.push(key, waiter, fence.is_some(), position, deadline, self.request_timeout);
            true
        });
        is_queued.then_some(receiver)
    }

    /// Queues a v2 batch read.
    ///
    /// # Panics
    /// When its stride is 0.
    pub(super) fn batch_read(&self, request: &BatchReadRequest) -> Receiver<Batch> {
        assert!(request.stride > 0, "each entry is behind the one before");
        let (sender, receiver) = oneshot::channel();
        self.push(self.request_timeout, |state, deadline| {
            state.next_id += 1;
            let read = v2::BatchRead {
                version: v2::VERSION_CURRENT,
                flags: if request.stride > 1 { Flags::STRIDE } else { Flags::NONE },
                ledger_id: request.ledger.get(),
                start_entry_id: request.first.get(),
                request_id: state.next_id as i64,
                // Zero would ask for everything.
                max_count: request.count_max.clamp(1, i32::MAX as u32) as i32,
                // An answer that exceeds a frame would be sent in vain.
                max_size_bytes: request.size_bytes_max.min(self.limit.size_bytes() as u64) as i64,
                master_key: None,
                stride: request.stride,
            };
            let key = CallKey::Batch { id: read.request_id };
            let position = put_v2(state, &v2::Request::BatchRead(read));
            let waiter = Waiter::Batch(sender);
            state.pending.push(key, waiter, false, position, deadline, self.request_timeout);
            true
        });
        receiver
    }

    /// Queues a v3 request that may take `timeout`.
    pub(super) fn v3(
        &self,
        operation: Operation,
        priority: u32,
        timeout: Duration,
    ) -> Receiver<Box<v3::proto::Response>> {
        let (sender, receiver) = oneshot::channel();
        self.push_v3(operation, priority, timeout, Waiter::V3(sender));
        receiver
    }

    /// Queues a FORCE_LEDGER.
    pub(super) fn force(&self, ledger: LedgerId) -> Receiver<Connection> {
        let (sender, receiver) = oneshot::channel();
        let operation = Operation::ForceLedger(v3::proto::ForceLedgerRequest { ledger_id: ledger.get() });
        self.push_v3(operation, 0, self.request_timeout, Waiter::Force(sender));
        receiver
    }

    fn push_v3(&self, operation: Operation, priority: u32, timeout: Duration, waiter: Waiter) {
        self.push(timeout, |state, deadline| {
            state.next_id += 1;
            let txn_id = state.next_id;
            let mut frame = BytesMut::new();
            v3::put_frame(&v3::Request { txn_id, priority, operation }.into_message(), &mut frame);
            let position = state.outgoing.position();
            state.outgoing.push_frame(frame.freeze());
            let key = CallKey::V3 { id: txn_id };
            state.pending.push(key, waiter, false, position, deadline, timeout);
            true
        });
    }

    fn push(&self, timeout: Duration, queue: impl FnOnce(&mut State, Instant) -> bool) -> bool {
        let (wakes, is_queued) = {
            let mut state = self.state.lock();
            if state.is_gone {
                // The waiter is dropped, which tells its caller.
                return true;
            }
            let wakes = state.begin_push();
            let deadline = state.now + timeout;
            (wakes, queue(&mut state, deadline))
        };
        if wakes {
            self.wake.notify_one();
        }
        is_queued
    }

    /// Tells the task to close its connection and to answer everything with [`BookieError::Closed`] from now on.
    pub(super) fn close(&self) {
        self.state.lock().is_closing = true;
        self.wake.notify_one();
    }

    /// Waits until the task has closed its connection after [`close`](Self::close), or is gone.
    pub(super) async fn closed(&self) {
        loop {
            let ended = self.ended.notified();
            {
                let state = self.state.lock();
                if state.is_closed || state.is_gone {
                    return;
                }
            }
            ended.await;
        }
    }

    /// The task closed its connection.
    pub(super) fn set_closed(&self) {
        self.state.lock().is_closed = true;
        self.ended.notify_waiters();
    }

    /// Answers everything with the error that `why` returns for the number of its frame, and drops what was queued.
    pub(super) fn drain(&self, why: &impl Fn(u64) -> BookieError, out: &mut Deliveries) {
        let unsent = {
            let mut state = self.state.lock();
            // The next request has to wake the task.
            state.is_waiting = true;
            state.give_out_refused(out);
            state.pending.drain(why, out);
            state.outgoing.clear()
        };
        drop(unsent);
    }

    /// The task ends: answers everything, for the last time.
    pub(super) fn set_gone(&self, out: &mut Deliveries) {
        self.state.lock().is_gone = true;
        self.drain(&|_| BookieError::Closed, out);
        self.ended.notify_waiters();
    }
}

/// The flags that Java clients send (protocol reference, section 1.3).
fn read_flags(is_fencing: bool, entry: Option<EntryId>) -> Flags {
    match (is_fencing, entry) {
        (false, _) => Flags::NONE,
        (true, None) => Flags::DO_FENCING,
        (true, Some(_)) => Flags::DO_FENCING.with(Flags::HIGH_PRIORITY),
    }
}

/// The flags that Java's recoveries and its replication workers send.
fn add_flags(is_recovery: bool, is_background: bool) -> Flags {
    match (is_recovery, is_background) {
        (true, false) => Flags::RECOVERY_ADD.with(Flags::HIGH_PRIORITY),
        (true, true) => Flags::RECOVERY_ADD,
        (false, _) => Flags::NONE,
    }
}

fn add_head(master_key: MasterKey, flags: Flags, body_size_bytes: usize) -> [u8; ADD_HEAD_BYTES] {
    let add = v2::Add {
        version: v2::VERSION_CURRENT,
        flags,
        master_key,
        ledger_id: 0,
        entry_id: 0,
        last_add_confirmed: 0,
        body: &[],
    };
    let mut head = [0; ADD_HEAD_BYTES];
    // The ids are those inside the body, which follows: only the length is not yet right.
    v2::Request::Add(add).encode(&mut &mut head[..]);
    frame::put_length(v2::ADD_BODY_OFFSET_BYTES + body_size_bytes, &mut &mut head[..]);
    head
}

fn deferred_add_head(
    txn_id: u64,
    ledger: LedgerId,
    entry: EntryId,
    master_key: MasterKey,
    body_size_bytes: usize,
) -> ([u8; v3::ADD_HEAD_SIZE_BYTES_MAX], usize) {
    let mut head = [0; v3::ADD_HEAD_SIZE_BYTES_MAX];
    let mut rest = &mut head[..];
    let (flags, key) = (v3::WRITE_FLAG_DEFERRED_SYNC, master_key.as_bytes());
    v3::put_add_head(txn_id, ledger.get(), entry.get(), key, flags, body_size_bytes, &mut rest);
    let size_bytes = v3::ADD_HEAD_SIZE_BYTES_MAX - rest.len();
    (head, size_bytes)
}

/// Appends a small v2 request; returns the number of its frame.
fn put_v2(state: &mut State, request: &v2::Request<'_>) -> u64 {
    let mut frame = [0; CALL_BYTES_MAX];
    let mut rest = &mut frame[..];
    request.encode(&mut rest);
    let size_bytes = CALL_BYTES_MAX - rest.len();
    let position = state.outgoing.position();
    state.outgoing.push_frame(Bytes::copy_from_slice(&frame[..size_bytes]));
    position
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_an_add_is_what_the_codec_writes() {
        let body = [7; 100];
        let key = MasterKey::new([9; 20]);
        for (is_recovery, is_background, bits) in [(false, false, 0), (true, false, 6), (true, true, 2)] {
            let flags = Flags::from_bits(bits);
            let mut expected = Vec::new();
            v2::Request::Add(v2::Add::new(flags, key, &body).unwrap()).encode(&mut expected);
            let mut found = add_head(key, add_flags(is_recovery, is_background), body.len()).to_vec();
            found.extend_from_slice(&body);
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn reads_carry_the_flags_of_java_clients() {
        let flags = |is_fencing, entry| read_flags(is_fencing, entry).bits();
        assert_eq!(flags(false, None), 0);
        assert_eq!(flags(true, None), 1);
        assert_eq!(flags(true, Some(EntryId::FIRST)), 5);
    }
}
