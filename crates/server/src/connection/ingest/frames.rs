//! The frames of one read, on their way to the engine and the queue of reads.

use super::frame_buffer::FrameCursor;
use super::look_ahead::AheadSource;
use super::tenancy::Kept;
use super::{CREDIT_STEP, CloseReason, batches, late_adds};
use crate::auth::{Need, Rights};
use crate::connection::Connection;
use crate::connection::activity::Received;
use crate::connection::ingest::operations::Next;
use crate::connection::request::{Reply, V3_ANSWER_BYTES};
use crate::connection::slice_turns::SliceTurn;
use crate::metadata_check::NotParked;
use crate::shared::Shared;
use bindery_engine::{Add, AdmissionGrant, Unplaced};
use bindery_types::LedgerId;
use bindery_wire::Protocol;
use std::sync::Arc;
use std::time::Duration;

/// What became of the frames of a read.
pub(super) struct Handled {
    /// Bytes of the frames that were handled here or by [`super::look_ahead`].
    pub(super) used: usize,
    /// Bytes of room for answers that they took.
    pub(super) promised: usize,
    /// The next one is here, and there is no room for its answer.
    pub(super) lacks_room: bool,
    /// When these came.
    pub(super) received_ns: u64,
    /// The next one is an add, which may have to wait for room, and the buffer that it is in must not be kept that long.
    pub(super) is_at_add: bool,
    /// The turn of a connection with many reads in hand, unless it had to wait.
    pub(super) turn: Option<SliceTurn>,
}

/// The frames of one read, on their way to the engine.
pub(in crate::connection) struct Frames<'a, 'f> {
    pub(in crate::connection) shared: &'a Arc<Shared>,
    pub(in crate::connection) connection: &'a Arc<Connection>,
    pub(in crate::connection) received_ns: u64,
    /// The rights of the peer.
    pub(super) rights: Rights,
    /// Adds per shard, bodies borrowed from the read buffer.
    pub(super) shards: Vec<Vec<Add<'f>>>,
    /// How many they are in all.
    pub(super) batch_entries: usize,
    /// Bytes of those that were not offered to the engine yet.
    pub(super) batch_bytes: usize,
    /// Room for answers promised and not yet used.
    pub(super) credit: usize,
    /// Room for answers that was used.
    pub(super) promised: usize,
    pub(in crate::connection) received: Received,
    /// Until they are handled, or wait (slice_turns invariant 1).
    pub(super) turn: Option<SliceTurn>,
    /// Reads that the queue takes for certain.
    pub(in crate::connection) read_room: usize,
    /// Adds may keep the buffer that they are in while they wait for room (reader invariant 8).
    pub(super) may_keep: bool,
    /// The memory that they are in, where they may wait for the limit of their tenant (tenants invariant 3).
    pub(super) kept: Kept<'a>,
    /// What is not decoded yet.
    pub(super) frames: FrameCursor<'f>,
    /// [`super::look_ahead`] took over the frames behind adds that waited; they are not decoded here.
    pub(super) is_rest_ahead: bool,
    /// Access to what comes while adds wait; `None` where nothing may pass them.
    pub(super) source: Option<AheadSource<'a>>,
}

impl<'a, 'f> Frames<'a, 'f> {
    /// For frames that came at `received_ns`, with `credit` bytes of room for answers in hand.
    pub(super) fn new(
        shared: &'a Arc<Shared>,
        connection: &'a Arc<Connection>,
        credit: usize,
        received_ns: u64,
    ) -> Frames<'a, 'f> {
        Frames {
            shared,
            connection,
            received_ns,
            rights: connection.rights(shared),
            shards: batches::take(shared.engine.shard_count()),
            batch_entries: 0,
            batch_bytes: 0,
            credit,
            promised: 0,
            received: Received::default(),
            turn: None,
            read_room: 0,
            may_keep: true,
            kept: [None; 2],
            frames: FrameCursor::empty(shared.limits.frame),
            is_rest_ahead: false,
            source: None,
        }
    }

    /// Handles all whole frames that there is room to answer, up to the first add if that may not keep its buffer. If
    /// adds had to wait long, [`super::look_ahead`] has the rest.
    pub(super) async fn handle(mut self, frames: FrameCursor<'f>) -> Result<Handled, CloseReason> {
        self.frames = frames;
        let (mut lacks_room, mut is_at_add) = (false, false);
        while let Some(payload) = self.frames.next_frame()? {
            if !self.may_decode() {
                lacks_room = true;
                break;
            }
            Protocol::of(payload).into_iter().for_each(|protocol| self.received.saw(protocol));
            let next = self.decode(payload)?;
            if let Next::Add(add) = &next
                && !self.may_keep
            {
                // The promise is made again when the frame is decoded again.
                self.unpromise(Reply::of_origin(&add.origin).0.add_answer_bytes());
                is_at_add = true;
                break;
            }
            self.frames.pass(payload);
            match next {
                Next::Done => {}
                Next::Add(add) => self.add(add).await?,
                Next::WriteLac(txn, write) => {
                    self.promise(V3_ANSWER_BYTES);
                    self.submit_of(write.ledger).await?;
                    self.write_lac(txn, write);
                }
                Next::Force(txn, ledger) => {
                    self.promise(V3_ANSWER_BYTES);
                    self.submit_of(ledger).await?;
                    self.force(txn, ledger);
                }
            }
            if self.is_rest_ahead {
                break;
            }
        }
        self.submit().await?;
        let is_rest_ahead = self.is_rest_ahead;
        let passed = self.frames.passed();
        let used = if is_rest_ahead { self.frames.len() } else { passed };
        let lacks_room = lacks_room && !is_rest_ahead;
        let (promised, received_ns, turn) = (self.promised, self.received_ns, self.turn.take());
        self.finish(passed);
        Ok(Handled { used, promised, lacks_room, received_ns, is_at_add, turn })
    }

    /// To be called when no more is handled: returns unused room for answers, and notes what was received in `bytes` of frames.
    pub(super) fn finish(self, bytes: usize) {
        let Frames { connection, mut received, received_ns, credit, .. } = self;
        batches::put(self.shards);
        if credit > 0 {
            connection.outbox.return_credit(credit);
        }
        if bytes == 0 {
            return;
        }
        received.bytes = bytes as u64;
        connection.activity.on_received(received_ns, received);
        // Answers given at once; those of the engine write themselves.
        connection.flush();
    }

    /// Whether a request that needs this may be served; one that may not is audited.
    pub(in crate::connection) fn may(&self, need: Need) -> bool {
        let may = self.rights.permit(need);
        if !may && let Some(auth) = &self.shared.auth {
            let user = self.connection.identity().map(crate::auth::Identity::name);
            let now_ns = self.shared.clock.monotonic_ns();
            auth.log_refusal(now_ns, self.connection.peer(), user, true, need.refusal());
            self.shared.metrics.requests_unauthorized.add(1);
        }
        may
    }

    /// Decodes a frame, and handles what need not wait for adds before it. Call it only when [`Frames::may_decode`] is true.
    pub(super) fn decode(&mut self, payload: &'f [u8]) -> Result<Next<'f>, CloseReason> {
        match Protocol::of(payload) {
            Some(Protocol::V2) => self.on_v2(payload),
            Some(Protocol::V3) => self.on_v3(payload),
            None => Err(CloseReason::BadFrame("empty frame".to_owned())),
        }
    }

    /// True when there is room for what the next frame may be (invariant 2).
    pub(super) fn may_decode(&mut self) -> bool {
        self.has_credit() && self.has_read_room()
    }

    /// True if the queue would take a read, which the next frame may be (invariant 2).
    fn has_read_room(&mut self) -> bool {
        if self.read_room == 0 {
            self.read_room = self.connection.reads.lock().room();
        }
        self.read_room > 0
    }

    /// True when there is room for the largest answer that is promised, after an attempt to get it (invariant 2).
    fn has_credit(&mut self) -> bool {
        if self.credit < V3_ANSWER_BYTES {
            self.return_credit();
            self.credit = self.connection.outbox.try_credit(V3_ANSWER_BYTES, CREDIT_STEP).unwrap_or(0);
        }
        self.credit >= V3_ANSWER_BYTES
    }

    /// Takes room for the answer to the frame at hand from the room in hand; each frame has one answer. There is enough, because
    /// [`Frames::may_decode`] was true.
    pub(in crate::connection) fn promise(&mut self, bytes: usize) {
        assert!(
            bytes <= self.credit,
            "room for an answer is there before its request is decoded (invariant 2)"
        );
        self.credit -= bytes;
        self.promised += bytes;
    }

    /// Puts promised room back into the room in hand, because the frame at hand is not handled now.
    pub(super) fn unpromise(&mut self, bytes: usize) {
        self.credit += bytes;
        self.promised -= bytes;
    }

    /// Returns the room in hand to the outbox, before this task waits.
    pub(super) fn return_credit(&mut self) {
        if self.credit > 0 {
            self.connection.outbox.return_credit(std::mem::take(&mut self.credit));
        }
    }

    /// Adds an entry to the batch of its shard. Its answer was promised.
    async fn add(&mut self, add: Add<'f>) -> Result<(), CloseReason> {
        let limits = &self.shared.limits;
        let is_full = self.batch_entries >= limits.add_batch_entries_max
            || self.batch_bytes + add.body.len() > limits.add_batch_bytes_max;
        if is_full && !self.hand_over_all() {
            self.hand_over_late(Some(add.ledger)).await?;
        }
        self.batch_entries += 1;
        self.batch_bytes += add.body.len();
        self.received.adds += 1;
        self.received.recovery += u64::from(add.is_recovery);
        let shard = self.shared.engine.shard_of(add.ledger);
        self.shards[shard].push(add);
        Ok(())
    }

    /// Hands the batch to the engine, and waits until it took or refused all of it (invariants 3 and 4).
    async fn submit(&mut self) -> Result<(), CloseReason> {
        if self.hand_over_all() { Ok(()) } else { self.hand_over_late(None).await }
    }

    /// As [`Frames::submit`], for what must come after the adds of `ledger`; does not wait for those of other ledgers.
    async fn submit_of(&mut self, ledger: LedgerId) -> Result<(), CloseReason> {
        let shard = self.shared.engine.shard_of(ledger);
        if self.hand_over_all() || self.shards[shard].iter().all(|add| add.ledger != ledger) {
            return Ok(());
        }
        self.hand_over_late(Some(ledger)).await
    }

    /// Hands the batch to the engine as far as there is room; the rest stays in it. True when nothing is left.
    pub(in crate::connection) fn hand_over_all(&mut self) -> bool {
        if self.batch_entries == 0 {
            return true;
        }
        if self.is_batch_too_old() {
            self.refuse_batch();
            return true;
        }
        let metrics = &self.shared.metrics;
        metrics.write_bytes.add(self.batch_bytes as u64);
        // Before they are handed over: the answers may come before the calls return.
        self.count_owed(self.batch_entries as i64);
        (self.batch_entries, self.batch_bytes) = (0, 0);
        for shard in 0..self.shards.len() {
            if self.shards[shard].is_empty() {
                continue;
            }
            let mut adds = std::mem::take(&mut self.shards[shard]);
            let held = self.take_out_held(&mut adds);
            let given = self.hand_over(shard, &adds, None);
            if given == adds.len() {
                adds.clear();
            } else {
                adds.drain(..given);
                if late_adds::bring_recovery_forward(&mut adds) {
                    let given = self.hand_over(shard, &adds, None);
                    adds.drain(..given);
                }
            }
            adds.extend(held);
            self.batch_entries += adds.len();
            self.shards[shard] = adds;
        }
        if self.batch_entries > 0 {
            self.count_owed(-(self.batch_entries as i64));
        }
        self.batch_entries == 0
    }

    /// Counts adds that are owed an answer from now on (positive), or that are not handed over after all.
    pub(super) fn count_owed(&self, change: i64) {
        self.shared.metrics.adds_in_progress.add(change);
        self.connection.activity.on_adds_owed(change);
    }

    /// Gives adds to a shard as far as it has room, or the grant is worth; returns how many it took, and counts them for their tenants. An
    /// add that follows a parked one of its key is parked as well, and counts as taken.
    pub(super) fn hand_over(
        &self,
        shard: usize,
        adds: &[Add<'f>],
        mut grant: Option<AdmissionGrant>,
    ) -> usize {
        let mut given = 0;
        while given < adds.len() {
            let run = self.shared.parked_adds.free_run(&adds[given..]);
            let run_end = given + run;
            // A grant is for those that go to the shard, not for one that is parked before them.
            if run > 0 {
                given += self.hand_over_run(shard, &adds[given..run_end], grant.take());
            }
            if given < run_end {
                break;
            }
            if given < adds.len() {
                self.park(shard, &adds[given]);
                given += 1;
            }
        }
        if given > 0 {
            self.shared.metrics.batching.add_batches.record(given as u64);
        }
        given
    }

    fn hand_over_run(&self, shard: usize, adds: &[Add<'f>], grant: Option<AdmissionGrant>) -> usize {
        let mut unplaced = Vec::new();
        let given = self.shared.engine.add_or_ask(shard, adds, grant, &mut unplaced);
        if self.shared.tenants.is_some() {
            self.take_placed(&adds[..given], &unplaced);
        }
        let asks = unplaced.into_iter().filter(|(_, what)| *what == Unplaced::Asks);
        asks.for_each(|(at, _)| self.park(shard, &adds[at]));
        given
    }

    /// Parks one add until metadata is checked, or refuses it.
    fn park(&self, shard: usize, add: &Add<'_>) {
        let (engine, memory) = (&self.shared.engine, &self.shared.pools.inbound_large);
        let parked = self.shared.parked_adds.park(engine, memory, add);
        if parked.is_ok() {
            self.take(std::slice::from_ref(add));
        }
        self.when_not_parked(shard, add, parked);
    }

    /// Refuses an add that found no room, once the parked adds of its key before it are answered.
    pub(super) fn park_refusal(&self, shard: usize, add: &Add<'_>) {
        let parked = self.shared.parked_adds.park_refusal(add);
        self.when_not_parked(shard, add, parked);
    }

    fn when_not_parked(&self, shard: usize, add: &Add<'_>, parked: Result<(), NotParked>) {
        match parked {
            Ok(()) => {}
            Err(NotParked::Refused(refusal)) => {
                self.shared.engine.refuse(shard, std::slice::from_ref(add), refusal);
            }
            Err(NotParked::TooMany) => {
                self.count_owed(-1);
                self.connection.close();
            }
        }
    }

    /// How long ago these frames came to this machine.
    pub(super) fn age(&self) -> Duration {
        Duration::from_nanos(self.shared.clock.monotonic_ns().saturating_sub(self.received_ns))
    }

    /// How much of that age is for lack of memory (late_adds invariant 3).
    pub(super) fn age_for_want_of_memory(&self) -> Duration {
        let now_ns = self.shared.clock.monotonic_ns();
        self.connection.age(self.received_ns, now_ns).min(self.shared.pressure.lasts(now_ns))
    }
}
