//! Requests that arrive while adds of their connection wait for room. Those that need not wait are handled at once.
//!
//! # Data flow
//! ```text
//! socket ─► Ahead ─► fences, reads, recovery adds, admin, health: handled now
//!             └────► other adds, and FORCE and WRITE_LAC behind them: kept, and handled when the wait is over
//! ```
//!
//! # Invariants
//! 1. Adds of a ledger keep their order, those that wait for room and those that are kept here; FORCE and WRITE_LAC do not
//!    overtake them (IB23, protocol reference, section 1.7). Kept frames keep their order.
//! 2. A request that passes never waits: it has a promise for its answer, and room in the queue of reads. Without these
//!    looking ahead stops, so a peer that does not read its answers is not read either.
//! 3. Memory comes from a pool of its own, without waiting; without memory there is no looking ahead. A malformed frame is
//!    left to the reader.
//!
//! # Limits
//! Kept frames take [`AHEAD_BYTES`] at most, and less than a read buffer. Looking ahead therefore begins only after
//! [`PATIENCE`], so that it does not shorten batches that wait for the next group.

use super::CloseReason;
use super::frames::Frames;
use crate::connection::activity::Activity;
use crate::connection::ingest::operations::Next;
use crate::connection::request::{Reply, V3_ANSWER_BYTES};
use crate::connection::transport::Inlet;
use bindery_engine::Add;
use bindery_flow::Permit;
use bindery_types::LedgerId;
use bindery_wire::Protocol;
use bindery_wire::frame::{self, Split};
use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

/// Memory to look ahead with.
pub(super) const AHEAD_BYTES: usize = 32 * 1024;
/// How long adds wait before looking ahead begins.
pub(super) const PATIENCE: Duration = Duration::from_millis(10);

/// Bytes read ahead: whole frames that are kept, then bytes not looked at yet, which may end in a part of a frame.
#[derive(Default)]
pub(super) struct Ahead {
    /// All of it memory to read into.
    bytes: Vec<u8>,
    filled: usize,
    /// While it is in use.
    permit: Option<Permit>,
}

impl Ahead {
    /// True from when something was read until it was moved back.
    pub(super) fn is_in_use(&self) -> bool {
        self.permit.is_some()
    }

    /// Moves what is here to the beginning of the read buffer, and gives the memory back.
    pub(super) fn move_to(&mut self, base: &mut [u8], activity: &Activity) -> usize {
        let Some(permit) = self.permit.take() else { return 0 };
        let filled = std::mem::take(&mut self.filled);
        base[..filled].copy_from_slice(&self.bytes[..filled]);
        self.bytes = Vec::new();
        drop(permit);
        activity.holds_ahead(0);
        filled
    }
}

/// The socket behind frames that wait, and the memory to read it into.
pub(super) struct AheadSource<'a> {
    pub(super) socket: &'a mut Inlet,
    pub(super) ahead: &'a mut Ahead,
}

/// The look ahead of one wait.
pub(super) struct LookAhead<'o, 'a> {
    source: &'o mut AheadSource<'a>,
    /// Bytes that were examined, and stay.
    seen: usize,
    /// Ledgers of adds that stay here, or that are at hand behind those that wait.
    held: HashSet<LedgerId>,
    is_over: bool,
}

impl LookAhead<'_, '_> {
    /// True when there is room to read into, and a reason to.
    fn wants_more(&self) -> bool {
        !self.is_over && self.source.ahead.filled < self.source.ahead.bytes.len()
    }

    /// Reads some more. Cancel safe; for ever when there is nothing to be read.
    pub(super) async fn read(looking: Option<&mut Self>) {
        let Some(looking) = looking.filter(|looking| looking.wants_more()) else {
            return std::future::pending().await;
        };
        let ahead = &mut *looking.source.ahead;
        match looking.source.socket.read(&mut ahead.bytes[ahead.filled..]).await {
            // The reader finds the end again.
            Ok(0) | Err(_) => looking.is_over = true,
            Ok(read) => ahead.filled += read,
        }
    }

    /// Closes the gaps between the frames that stay.
    fn compact(&mut self, stays: &[Range<usize>], looked_at: usize) {
        let (ahead, begin) = (&mut *self.source.ahead, self.seen);
        for range in stays {
            ahead.bytes.copy_within(begin + range.start..begin + range.end, self.seen);
            self.seen += range.len();
        }
        let rest = begin + looked_at..ahead.filled;
        let left = rest.len();
        ahead.bytes.copy_within(rest, self.seen);
        ahead.filled = self.seen + left;
    }
}

impl<'f> Frames<'_, 'f> {
    /// Begins to look past the adds that wait, first at `rest`; `at_hand` is the ledger of what was decoded behind them.
    /// `None` while there is no memory for it.
    pub(super) fn begin_look_ahead<'o, 'a>(
        &self,
        source: &'o mut AheadSource<'a>,
        rest: &[u8],
        at_hand: Option<LedgerId>,
    ) -> Option<LookAhead<'o, 'a>> {
        if !source.ahead.is_in_use() {
            let size = AHEAD_BYTES.min(self.shared.limits.read_buffer_bytes);
            if rest.len() >= size || self.connection.draining.is_set() {
                return None;
            }
            let permit = self.shared.pools.ahead.try_acquire(size as u64)?;
            self.connection.activity.holds_ahead(permit.bytes());
            let mut bytes = vec![0; size];
            bytes[..rest.len()].copy_from_slice(rest);
            *source.ahead = Ahead { bytes, filled: rest.len(), permit: Some(permit) };
        }
        Some(LookAhead { source, seen: 0, held: at_hand.into_iter().collect(), is_over: false })
    }

    /// Handles what may pass; `waits` says whether adds of a ledger are among those that wait for room.
    pub(super) fn let_pass(&self, looking: &mut LookAhead<'_, '_>, waits: impl Fn(LedgerId) -> bool) {
        let received_ns = looking.source.socket.arrived_ns();
        let mut passing = Frames::new(self.shared, self.connection, 0, received_ns);
        let mut held = std::mem::take(&mut looking.held);
        let mut stays: Vec<Range<usize>> = Vec::new();
        let ahead = &looking.source.ahead;
        let data = &ahead.bytes[looking.seen..ahead.filled];
        let room = ahead.bytes.len() - looking.seen;
        let (mut at, mut passed) = (0, 0);
        let mut is_over = self.connection.draining.is_set();
        while !is_over {
            let whole = match frame::split(&data[at..], self.shared.limits.frame) {
                Ok(Split::Frame(payload)) => payload,
                Ok(Split::Incomplete { missing }) => {
                    let staying: usize = stays.iter().map(Range::len).sum();
                    is_over = staying + (data.len() - at) + missing > room;
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
            let frame = at..at + whole.end;
            match passing.pass(&data[at + whole.start..frame.end], &mut held, &waits) {
                Ok(true) => passed += frame.len(),
                Ok(false) => stays.push(frame.clone()),
                Err(_) => {
                    is_over = true;
                    break;
                }
            }
            at = frame.end;
        }
        passing.finish(passed);
        looking.compact(&stays, at);
        (looking.held, looking.is_over) = (held, is_over);
    }

    /// True when the request was handled, false when it must stay.
    fn pass(
        &mut self,
        payload: &'f [u8],
        held: &mut HashSet<LedgerId>,
        waits: impl Fn(LedgerId) -> bool,
    ) -> Result<bool, CloseReason> {
        let protocol = Protocol::of(payload);
        let next = self.decode(payload)?;
        let is_behind = |ledger: LedgerId| held.contains(&ledger) || waits(ledger);
        let has_passed = match next {
            Next::Done => true,
            Next::Add(add) => {
                let has_passed = add.is_recovery && !is_behind(add.ledger) && self.add_at_once(add);
                if !has_passed {
                    held.insert(add.ledger);
                    // Until it is decoded again.
                    self.unpromise(Reply::of_origin(&add.origin).0.add_answer_bytes());
                }
                has_passed
            }
            Next::WriteLac(txn, write) if !is_behind(write.ledger) => {
                self.promise(V3_ANSWER_BYTES);
                self.write_lac(txn, write);
                true
            }
            Next::Force(txn, ledger) if !is_behind(ledger) => {
                self.promise(V3_ANSWER_BYTES);
                self.force(txn, ledger);
                true
            }
            Next::WriteLac(..) | Next::Force(..) => false,
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
