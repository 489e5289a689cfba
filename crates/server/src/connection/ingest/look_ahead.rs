//! Requests that arrive while adds of their connection wait for room. Those that need not wait are handled at once.
//!
//! # Data flow
//! ```text
//! socket ─► Ahead ─► fences, reads, recovery adds, adds of tenants who are within their limits, admin, health: handled now
//!             └────► other adds, and FORCE and WRITE_LAC behind them: kept, and handled when the wait is over
//! ```
//!
//! # Invariants
//! 1. [`LateAdds`] says what may pass: adds of a ledger keep their order, those that wait for room and those that are kept
//!    here; FORCE and WRITE_LAC do not overtake them, nor are they overtaken by what depends on their ledger (IB23, protocol
//!    reference, section 1.7). Kept frames keep their order.
//! 2. A request that passes never waits: it has a promise for its answer, and room in the queue of reads. Without these
//!    looking ahead stops, so a peer that does not read its answers is not read either.
//! 3. Memory comes from a pool of its own, without waiting, once there is something to look at, and goes when nothing of that is left: a
//!    waiting connection without new bytes takes none. Without memory, or room for answers, the connection tries again after a while. A
//!    malformed frame is left to the reader.
//! 4. A tenant's connections that wait for its limit leave as much of that pool as they have (tenants invariant 3).
//!
//! # Limits
//! Kept frames take [`AHEAD_BYTES`] at most, or a read buffer where so much was read already. Looking ahead therefore begins only after
//! [`PATIENCE`], so that it does not shorten batches that wait for the next group.

use super::CloseReason;
use super::frame_buffer::FrameBuffer;
use super::frames::Frames;
use super::late_adds::LateAdds;
use super::tenancy::LOOK;
use crate::connection::activity::Activity;
use crate::connection::ingest::operations::{Next, WriteLac};
use crate::connection::request::{Reply, V3_ANSWER_BYTES};
use crate::connection::transport::Inlet;
use crate::tenants::{HeldMemory, Tenant};
use bindery_engine::Add;
use bindery_wire::Protocol;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Memory to look ahead with.
pub(super) const AHEAD_BYTES: usize = 32 * 1024;
/// How long adds wait before looking ahead begins.
pub(super) const PATIENCE: Duration = Duration::from_millis(10);

/// Bytes read ahead: whole frames that are kept, then bytes not looked at yet, which may end in a part of a frame.
#[derive(Default)]
pub(super) struct Ahead {
    buffer: Option<FrameBuffer>,
    /// Of a connection that waits for its tenant's limit (invariant 4).
    _held: Option<HeldMemory>,
}

impl Ahead {
    /// True from when something was read until it was handled, or moved back.
    pub(super) fn is_in_use(&self) -> bool {
        self.buffer.is_some()
    }

    fn give_back(&mut self, activity: &Activity) {
        *self = Ahead::default();
        activity.holds_ahead(0);
    }

    /// Moves what is here to the read buffer, which is empty, and gives the memory back.
    pub(super) fn move_to(&mut self, buffer: &mut FrameBuffer, activity: &Activity) {
        let Some(ahead) = &mut self.buffer else { return };
        buffer.take_from(ahead);
        self.give_back(activity);
    }
}

/// The socket behind frames that wait, and the memory to read it into.
pub(super) struct AheadSource<'a> {
    pub(super) socket: &'a mut Inlet,
    pub(super) ahead: &'a mut Ahead,
}

/// The look ahead of one wait.
pub(super) struct LookAhead<'o, 'f> {
    socket: &'o mut Inlet,
    ahead: &'o mut Ahead,
    /// The bytes behind the waiting adds in the read buffer, until there is memory to examine them.
    rest: Option<&'f [u8]>,
    /// Bytes that were examined, and stay.
    seen: usize,
    /// Nothing is done before then.
    at: Option<Instant>,
    is_over: bool,
}

impl<'o, 'f> LookAhead<'o, 'f> {
    /// Begins after [`PATIENCE`], at `rest`; `None` when an earlier wait has that.
    pub(super) fn new(source: &'o mut AheadSource<'_>, rest: Option<&'f [u8]>) -> LookAhead<'o, 'f> {
        let AheadSource { socket, ahead } = source;
        LookAhead { socket, ahead, rest, seen: 0, at: Some(Instant::now() + PATIENCE), is_over: false }
    }

    /// True when the rest of the read buffer was moved to memory of its own.
    pub(super) fn has_rest(&self) -> bool {
        self.rest.is_none()
    }

    /// Waits until there is something to look at, and reads it where it has memory. Cancel safe; for ever when nothing comes.
    pub(super) async fn ready(looking: Option<&mut Self>) {
        let Some(looking) = looking.filter(|looking| !looking.is_over) else {
            return std::future::pending().await;
        };
        let is_due = match looking.at {
            Some(at) => {
                tokio::time::sleep_until(at).await;
                looking.at = None;
                true
            }
            None => false,
        };
        match &mut looking.ahead.buffer {
            None if is_due && looking.rest.is_some_and(|rest| !rest.is_empty()) => {}
            None => looking.is_over = looking.socket.readable().await.is_err(),
            Some(_) if is_due => {}
            Some(buffer) if buffer.has_space() => match looking.socket.read(buffer.space(usize::MAX)).await {
                // The reader finds the end again.
                Ok(0) | Err(_) => looking.is_over = true,
                Ok(read) => buffer.filled(read),
            },
            Some(_) => std::future::pending().await,
        }
    }
}

impl<'f> Frames<'_, 'f> {
    /// Examines the requests that are there, and handles those that may pass the waiting adds. `limited` is the tenant whose limit the
    /// adds wait for.
    pub(super) fn look_ahead(
        &self,
        looking: &mut LookAhead<'_, 'f>,
        late: &mut LateAdds<'_>,
        limited: Option<&Arc<Tenant>>,
    ) {
        looking.is_over |= self.connection.draining.is_set();
        if !looking.is_over {
            let is_new = !looking.ahead.is_in_use();
            if !self.has_ahead(looking, limited) {
                looking.at = Some(Instant::now() + LOOK);
                return;
            }
            if is_new && looking.ahead.buffer.as_ref().is_some_and(FrameBuffer::is_empty) {
                // To be read into.
                return;
            }
            self.let_pass(looking, late);
        }
        if looking.ahead.buffer.as_ref().is_some_and(FrameBuffer::is_empty) {
            looking.ahead.give_back(&self.connection.activity);
        }
    }

    /// True if there is memory to look ahead with, after an attempt to get it.
    fn has_ahead(&self, looking: &mut LookAhead<'_, 'f>, limited: Option<&Arc<Tenant>>) -> bool {
        if looking.ahead.is_in_use() {
            return true;
        }
        let rest = looking.rest.unwrap_or_default();
        let buffer_bytes = self.shared.limits.read_buffer_bytes;
        // Kept frames move back to the read buffer, so they must fit into it.
        let size = if rest.len() < AHEAD_BYTES { AHEAD_BYTES.min(buffer_bytes) } else { buffer_bytes };
        let pool = &self.shared.pools.ahead;
        let Some(permit) = pool.try_acquire(size as u64).filter(|_| rest.len() <= size) else { return false };
        let mut held = None;
        if let (Some(tenants), Some(tenant)) = (&self.shared.tenants, limited) {
            held = tenants.hold(tenant, pool, permit.bytes());
            if held.is_none() {
                return false;
            }
        }
        self.connection.activity.holds_ahead(permit.bytes());
        let mut buffer = FrameBuffer::new(vec![0; size], permit, self.shared.limits.frame);
        buffer.append(rest);
        *looking.ahead = Ahead { buffer: Some(buffer), _held: held };
        (looking.rest, looking.seen) = (None, 0);
        true
    }

    fn let_pass(&self, looking: &mut LookAhead<'_, 'f>, late: &mut LateAdds<'_>) {
        let Some(ahead) = &mut looking.ahead.buffer else { return };
        let mut passing = Frames::new(self.shared, self.connection, 0, looking.socket.arrived_ns());
        let mut stays: Vec<Range<usize>> = Vec::new();
        let mut frames = ahead.frames();
        frames.pass_bytes(looking.seen);
        let mut passed = 0;
        loop {
            let at = frames.passed();
            let payload = match frames.next_frame() {
                Ok(Some(payload)) => payload,
                Ok(None) => {
                    let staying: usize = stays.iter().map(Range::len).sum();
                    let whole = frames.begun().unwrap_or_default();
                    looking.is_over = looking.seen + staying + whole > ahead.size();
                    break;
                }
                Err(_) => {
                    looking.is_over = true;
                    break;
                }
            };
            if !passing.may_decode() || self.connection.is_bulk() {
                looking.at = Some(Instant::now() + LOOK);
                break;
            }
            let Ok(has_passed) = passing.pass(payload, late) else {
                looking.is_over = true;
                break;
            };
            frames.pass(payload);
            match has_passed {
                true => passed += frames.passed() - at,
                false => stays.push(at..frames.passed()),
            }
        }
        let looked_at = frames.passed();
        passing.finish(passed);
        looking.seen = ahead.retain(looking.seen, &stays, looked_at);
    }

    /// True when the request was handled, false when it must stay.
    fn pass(&mut self, payload: &'f [u8], late: &mut LateAdds<'_>) -> Result<bool, CloseReason> {
        let protocol = Protocol::of(payload);
        let engine = &self.shared.engine;
        let has_passed = match self.decode(payload)? {
            Next::Done => true,
            Next::Add(add) => {
                let is_blocked = late.blocks(engine.shard_of(add.ledger), add.ledger);
                let may_pass = add.is_recovery || self.may_take(add.ledger);
                let has_passed = may_pass && !is_blocked && self.add_at_once(add);
                if !has_passed {
                    late.keep(add.ledger);
                    // Until it is decoded again.
                    self.unpromise(Reply::of_origin(&add.origin).0.add_answer_bytes());
                }
                has_passed
            }
            Next::WriteLac(_, WriteLac { ledger, .. }) | Next::Force(_, ledger)
                if late.blocks(engine.shard_of(ledger), ledger) =>
            {
                late.keep(ledger);
                false
            }
            Next::WriteLac(txn, write) => {
                self.promise(V3_ANSWER_BYTES);
                self.write_lac(txn, write);
                true
            }
            Next::Force(txn, ledger) => {
                self.promise(V3_ANSWER_BYTES);
                self.force(txn, ledger);
                true
            }
        };
        if has_passed {
            protocol.into_iter().for_each(|protocol| self.received.saw(protocol));
        }
        Ok(has_passed)
    }

    /// Places an add if its shard has room for it.
    fn add_at_once(&mut self, add: Add<'f>) -> bool {
        self.count_owed(1);
        let is_placed = self.hand_over(self.shared.engine.shard_of(add.ledger), &[add], None) == 1;
        if is_placed {
            self.shared.metrics.write_bytes.add(add.body.len() as u64);
            self.received.adds += 1;
            self.received.recovery += u64::from(add.is_recovery);
        } else {
            self.count_owed(-1);
        }
        is_placed
    }
}
