//! Requests that arrive while adds of their connection wait for room. Those that need not wait are handled at once.
//!
//! # Data flow
//! ```text
//! socket ─► Ahead ─► fences, reads, recovery adds, admin, health: handled now
//!             └────► other adds, and FORCE and WRITE_LAC behind them: kept, and handled when the wait is over
//! ```
//!
//! # Invariants
//! 1. [`LateAdds`] says what may pass: adds of a ledger keep their order, those that wait for room and those that are kept
//!    here; FORCE and WRITE_LAC do not overtake them, nor are they overtaken by what depends on their ledger (IB23, protocol
//!    reference, section 1.7). Kept frames keep their order.
//! 2. A request that passes never waits: it has a promise for its answer, and room in the queue of reads. Without these
//!    looking ahead stops, so a peer that does not read its answers is not read either.
//! 3. Memory comes from a pool of its own, without waiting; without memory there is no looking ahead. A malformed frame is
//!    left to the reader.
//!
//! # Limits
//! Kept frames take [`AHEAD_BYTES`] at most, and less than a read buffer. Looking ahead therefore begins only after
//! [`PATIENCE`], so that it does not shorten batches that wait for the next group.

use super::CloseReason;
use super::frame_buffer::FrameBuffer;
use super::frames::Frames;
use super::late_adds::LateAdds;
use crate::connection::activity::Activity;
use crate::connection::ingest::operations::{Next, WriteLac};
use crate::connection::request::{Reply, V3_ANSWER_BYTES};
use crate::connection::transport::Inlet;
use bindery_engine::Add;
use bindery_wire::Protocol;
use std::ops::Range;
use std::time::Duration;

/// Memory to look ahead with.
pub(super) const AHEAD_BYTES: usize = 32 * 1024;
/// How long adds wait before looking ahead begins.
pub(super) const PATIENCE: Duration = Duration::from_millis(10);

/// Bytes read ahead: whole frames that are kept, then bytes not looked at yet, which may end in a part of a frame.
#[derive(Default)]
pub(super) struct Ahead(Option<FrameBuffer>);

impl Ahead {
    /// True from when something was read until it was moved back.
    pub(super) fn is_in_use(&self) -> bool {
        self.0.is_some()
    }

    /// Moves what is here to the read buffer, which is empty, and gives the memory back.
    pub(super) fn move_to(&mut self, buffer: &mut FrameBuffer, activity: &Activity) {
        let Some(mut ahead) = self.0.take() else { return };
        buffer.take_from(&mut ahead);
        drop(ahead);
        activity.holds_ahead(0);
    }
}

/// The socket behind frames that wait, and the memory to read it into.
pub(super) struct AheadSource<'a> {
    pub(super) socket: &'a mut Inlet,
    pub(super) ahead: &'a mut Ahead,
}

/// The look ahead of one wait.
pub(super) struct LookAhead<'o> {
    socket: &'o mut Inlet,
    ahead: &'o mut FrameBuffer,
    /// Bytes that were examined, and stay.
    seen: usize,
    is_over: bool,
}

impl LookAhead<'_> {
    /// Reads some more. Cancel safe; for ever when there is nothing to be read.
    pub(super) async fn read(looking: Option<&mut Self>) {
        let wants_more = |looking: &&mut Self| !looking.is_over && looking.ahead.has_space();
        let Some(looking) = looking.filter(wants_more) else {
            return std::future::pending().await;
        };
        match looking.socket.read(looking.ahead.space(usize::MAX)).await {
            // The reader finds the end again.
            Ok(0) | Err(_) => looking.is_over = true,
            Ok(read) => looking.ahead.filled(read),
        }
    }
}

impl<'f> Frames<'_, 'f> {
    /// Begins to look past the adds that wait, first at `rest`. `None` while there is no memory for it.
    pub(super) fn begin_look_ahead<'o>(
        &self,
        source: &'o mut AheadSource<'_>,
        rest: &[u8],
    ) -> Option<LookAhead<'o>> {
        let AheadSource { socket, ahead } = source;
        if ahead.0.is_none() {
            let size = AHEAD_BYTES.min(self.shared.limits.read_buffer_bytes);
            if rest.len() >= size || self.connection.draining.is_set() {
                return None;
            }
            let permit = self.shared.pools.ahead.try_acquire(size as u64)?;
            self.connection.activity.holds_ahead(permit.bytes());
            let mut buffer = FrameBuffer::new(vec![0; size], permit, self.shared.limits.frame);
            buffer.append(rest);
            ahead.0 = Some(buffer);
        }
        let ahead = ahead.0.as_mut()?;
        Some(LookAhead { socket, ahead, seen: 0, is_over: false })
    }

    /// Handles what may pass the adds that wait for room.
    pub(super) fn let_pass(&self, looking: &mut LookAhead<'_>, late: &mut LateAdds<'_>) {
        let mut passing = Frames::new(self.shared, self.connection, 0, looking.socket.arrived_ns());
        let mut stays: Vec<Range<usize>> = Vec::new();
        let mut frames = looking.ahead.frames();
        frames.pass_bytes(looking.seen);
        let mut passed = 0;
        let mut is_over = self.connection.draining.is_set();
        while !is_over {
            let at = frames.passed();
            let payload = match frames.next_frame() {
                Ok(Some(payload)) => payload,
                Ok(None) => {
                    let staying: usize = stays.iter().map(Range::len).sum();
                    let whole = frames.begun().unwrap_or_default();
                    is_over = looking.seen + staying + whole > looking.ahead.size();
                    break;
                }
                Err(_) => {
                    is_over = true;
                    break;
                }
            };
            if !passing.may_decode() || self.connection.is_bulk() {
                is_over = true;
                break;
            }
            let has_passed = passing.pass(payload, late);
            let Ok(has_passed) = has_passed else {
                is_over = true;
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
        looking.seen = looking.ahead.retain(looking.seen, &stays, looked_at);
        looking.is_over = is_over;
    }

    /// True when the request was handled, false when it must stay.
    fn pass(&mut self, payload: &'f [u8], late: &mut LateAdds<'_>) -> Result<bool, CloseReason> {
        let protocol = Protocol::of(payload);
        let engine = &self.shared.engine;
        let has_passed = match self.decode(payload)? {
            Next::Done => true,
            Next::Add(add) => {
                let is_blocked = late.blocks(engine.shard_of(add.ledger), add.ledger);
                let has_passed = add.is_recovery && !is_blocked && self.add_at_once(add);
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
