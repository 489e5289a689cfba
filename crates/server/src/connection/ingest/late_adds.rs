//! Adds of a batch that find no room: they wait in the admission queues of their shards, or are refused.
//!
//! # Invariants
//! 1. Adds of a ledger keep their order. Recovery adds of other ledgers pass ordinary ones: they have room of their own.
//! 2. A refusal does not overtake the answer to an older add of its key (IB23, protocol reference, section 1.7): it
//!    goes through the shard, unless the peer is owed no other answer.
//! 3. An add is refused for its age only as far as it aged while memory was short ([`crate::pressure`]). One that is old
//!    because this process stood still is still placed: its writer may have its quorum from others and never send it
//!    again.

use super::look_ahead::{self, AheadSource, LookAhead};
use super::{CloseReason, Frames};
use crate::connection::activity::Wait;
use crate::connection::request::Reply;
use crate::slow_log::{Slow, SlowKind};
use bindery_engine::{Add, AdmissionGrant, Refusal};
use bindery_types::LedgerId;
use bindery_wire::ErrorCode;
use std::collections::HashSet;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Adds of a shard that had no room for all of them.
struct Late {
    shard: usize,
    /// So many of them were taken since.
    given: usize,
}

/// Brings recovery adds to the front, but not past an ordinary add of their ledger. True when one passed another add.
pub(super) fn bring_recovery_forward(adds: &mut Vec<Add<'_>>) -> bool {
    if adds.iter().all(|add| !add.is_recovery) {
        return false;
    }
    let mut waiting: HashSet<LedgerId> = HashSet::new();
    let (mut ahead, mut behind, mut has_passed) = (Vec::new(), Vec::new(), false);
    for add in adds.drain(..) {
        if add.is_recovery && !waiting.contains(&add.ledger) {
            has_passed |= !behind.is_empty();
            ahead.push(add);
        } else {
            waiting.insert(add.ledger);
            behind.push(add);
        }
    }
    adds.append(&mut ahead);
    adds.append(&mut behind);
    has_passed
}

impl<'f> Frames<'_, 'f> {
    /// Waits in the admission queues of all shards of the rest of the batch at once, and hands over as grants come; adds
    /// left at the admission deadline are refused. `at_hand` is the ledger of what was decoded behind them.
    pub(super) async fn hand_over_late(&mut self, at_hand: Option<LedgerId>) -> Result<(), CloseReason> {
        // A task with a slice turn never blocks (slice_turns invariant 1).
        self.turn = None;
        let mut source = self.source.take();
        if source.is_some() {
            // For what passes. What is decoded afterwards asks again.
            self.return_credit();
        }
        let entries = std::mem::take(&mut self.batch_entries);
        self.count_owed(entries as i64);
        let left = self.shards.iter().enumerate().filter(|(_, adds)| !adds.is_empty());
        let late = left.map(|(shard, _)| Late { shard, given: 0 }).collect();
        let result = self.wait_for_grants(late, source.as_mut(), at_hand).await;
        self.source = source;
        self.shards.iter_mut().for_each(Vec::clear);
        result
    }

    async fn wait_for_grants(
        &self,
        mut late: Vec<Late>,
        mut source: Option<&mut AheadSource<'_>>,
        at_hand: Option<LedgerId>,
    ) -> Result<(), CloseReason> {
        let deadline = self.deadline_of(&late);
        // A place for each shard: each has one waiter at a time.
        let (told, mut grants) = mpsc::channel(late.len());
        late.iter().for_each(|late| self.queue_for_room(late, &told));
        let metrics = &self.shared.metrics;
        let waiting = self.connection.activity.waits(Wait::WriteRoom);
        let begun_ns = self.shared.clock.monotonic_ns();
        metrics.adds_blocked.add(1);
        let (look_at, mut looking) = (Instant::now() + look_ahead::PATIENCE, None);
        let result = loop {
            if late.is_empty() {
                break Ok(());
            }
            let (shard, grant) = tokio::select! {
                () = self.connection.closed.wait() => break Err(CloseReason::Ours),
                told = grants.recv() => told.expect("this task has a sender"),
                () = tokio::time::sleep_until(deadline) => break Ok(()),
                () = tokio::time::sleep_until(look_at), if source.is_some() => {
                    looking = self.begin_look_ahead(source.take().expect("it is there"), self.frames.rest(), at_hand);
                    if let Some(looking) = &mut looking {
                        self.let_pass(looking, |ledger| self.is_late(&late, ledger));
                    }
                    continue;
                }
                () = LookAhead::read(looking.as_mut()) => {
                    let looking = looking.as_mut().expect("it has read");
                    self.let_pass(looking, |ledger| self.is_late(&late, ledger));
                    continue;
                }
            };
            let place = late.iter().position(|late| late.shard == shard).expect("only late shards are told");
            let adds = &self.shards[shard];
            late[place].given += self.hand_over(shard, &adds[late[place].given..], Some(grant));
            if late[place].given == adds.len() {
                late.swap_remove(place);
            } else {
                self.queue_for_room(&late[place], &told);
            }
        };
        metrics.adds_blocked.add(-1);
        drop(waiting);
        let now_ns = self.shared.clock.monotonic_ns();
        metrics.stages.room.record(0, now_ns, now_ns.saturating_sub(begun_ns), late.is_empty());
        match result {
            Ok(()) => self.refuse(&late),
            Err(_) => late.iter().for_each(|late| self.count_owed(-(self.left_of(late).len() as i64))),
        }
        result
    }

    fn left_of(&self, late: &Late) -> &[Add<'f>] {
        &self.shards[late.shard][late.given..]
    }

    /// True when adds of the ledger are among those that wait.
    fn is_late(&self, late: &[Late], ledger: LedgerId) -> bool {
        let shard = self.shared.engine.shard_of(ledger);
        let mut late = late.iter().filter(|late| late.shard == shard);
        late.any(|late| self.left_of(late).iter().any(|add| add.ledger == ledger))
    }

    fn queue_for_room(&self, late: &Late, told: &mpsc::Sender<(usize, AdmissionGrant)>) {
        let (shard, told) = (late.shard, told.clone());
        // After the deadline the receiver is gone: the grant is dropped, and goes to the next in the queue.
        let waiter = Box::new(move |grant| drop(told.try_send((shard, grant))));
        self.shared.engine.when_room(shard, self.left_of(late), waiter);
    }

    /// Until when the late adds may wait for room. An add that waited to be decoded is no younger for it. A recovery's
    /// adds are not refused for their age: it would only start over.
    fn deadline_of(&self, late: &[Late]) -> Instant {
        let limits = &self.shared.limits;
        let mut patience = limits.admission_deadline;
        let mut left = late.iter().flat_map(|late| self.left_of(late));
        if limits.request_age_max > Duration::ZERO && !left.any(|add| add.is_recovery || add.is_high_priority)
        {
            patience = patience.min(limits.request_age_max.saturating_sub(self.age_for_want_of_memory()));
        }
        Instant::now() + patience
    }

    /// True when the batch waited so long for memory that its client has given up, mostly in the kernel (invariant 3). As when
    /// it waits for room, one add of recovery or of high priority spares all: they keep their order.
    pub(super) fn is_batch_too_old(&self) -> bool {
        let age_max = self.shared.limits.request_age_max;
        age_max > Duration::ZERO
            && self.age() >= age_max
            && self.age_for_want_of_memory() >= age_max
            && self.shards.iter().flatten().all(|add| !add.is_recovery && !add.is_high_priority)
    }

    /// Refuses the batch without a look at its shards.
    pub(super) fn refuse_batch(&mut self) {
        self.count_owed(self.batch_entries as i64);
        (self.batch_entries, self.batch_bytes) = (0, 0);
        let all = self.shards.iter().enumerate().filter(|(_, adds)| !adds.is_empty());
        let all: Vec<Late> = all.map(|(shard, _)| Late { shard, given: 0 }).collect();
        self.refuse(&all);
        self.shards.iter_mut().for_each(Vec::clear);
    }

    /// Refuses what is left (invariant 2).
    fn refuse(&self, late: &[Late]) {
        let is_of_v2 = |add: &Add<'_>| Reply::of_origin(&add.origin).0.is_v2();
        let left: usize = late.iter().map(|late| self.left_of(late).len()).sum();
        // Only this task hands adds over, so there may be less of the rest meanwhile, but not more.
        let owes_more = self.connection.activity.adds_owed() > left as u64;
        let may_overtake = owes_more && late.iter().flat_map(|late| self.left_of(late)).any(is_of_v2);
        for late in late {
            let adds = self.left_of(late);
            self.count_refused(adds);
            if may_overtake {
                self.shared.engine.refuse(late.shard, adds, Refusal::TooManyRequests);
            } else {
                self.refuse_at_once(adds);
            }
        }
    }

    /// A peer that is owed no other answer gets the refusal even when the journal stands still.
    fn refuse_at_once(&self, adds: &[Add<'_>]) {
        for add in adds {
            let (reply, received_ns) = Reply::of_origin(&add.origin);
            self.connection.outbox.answer(reply.add_answer_bytes(), |out| {
                reply.put_add(ErrorCode::TooManyRequests, add.ledger.get(), add.entry.get(), out);
            });
            let now_ns = self.shared.clock.monotonic_ns();
            let latency_ns = now_ns.saturating_sub(received_ns);
            self.shared.metrics.add_entry.record(0, now_ns, latency_ns, false);
        }
        self.count_owed(-(adds.len() as i64));
    }

    /// In the metrics, and one line in the log for all of them, when they waited long for room.
    fn count_refused(&self, adds: &[Add<'_>]) {
        let metrics = &self.shared.metrics;
        metrics.add_rejected.add(adds.len() as u64);
        let (age, age_max) = (self.age(), self.shared.limits.request_age_max);
        if age_max > Duration::ZERO && self.age_for_want_of_memory() >= age_max {
            metrics.adds_too_old.add(adds.len() as u64);
        }
        let threshold = self.shared.limits.slow_request;
        let Some(first) = adds.first().filter(|_| !threshold.is_zero() && age >= threshold) else { return };
        let slow = Slow {
            peer: Some(self.connection.peer()),
            ids: Some((first.ledger.get(), first.entry.get())),
            bytes: first.body.len() as u64,
            total: age,
            queue: Some(age),
            others: adds.len() as u64 - 1,
            ..Slow::default()
        };
        metrics.stages.slow.report(self.shared.clock.monotonic_ns(), SlowKind::RefusedAdd, &slow);
    }
}
