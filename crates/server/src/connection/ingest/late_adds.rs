//! Adds of a connection that found no room. They stay in the read buffer and wait in the admission queues of their shards, or
//! are refused. Some requests that come after them may pass.
//!
//! # Data flow
//! ```text
//! batch ─► no room ─► LateAdds ─► grant: handed over ─► …
//!                       │  └────► deadline: refused
//!                       └ what came after them ([`super::look_ahead`]) asks it whether it may pass
//! ```
//!
//! # Invariants
//! 1. Adds of a ledger keep their order. Recovery adds of other ledgers pass ordinary ones: they have room of their own.
//!    FORCE and WRITE_LAC pass no add of their ledger, and no add, FORCE or WRITE_LAC of it passes them.
//! 2. A refusal does not overtake the answer to an older add of its key (IB23, protocol reference, section 1.7): it
//!    goes through the shard, unless the peer is owed no other answer, and if an older add of its key waits for metadata
//!    it waits after that one ([`crate::metadata_check`]).
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

/// The adds that wait, and the ledgers of later requests that wait as well. It does no I/O, and decides what may pass.
pub(super) struct LateAdds<'f> {
    /// By shard.
    shards: Vec<Vec<Add<'f>>>,
    /// How many of each shard's were handed over since.
    given: Vec<usize>,
    /// Ledgers of later requests that wait: of the one at hand, and of those in frames that are kept.
    behind: HashSet<LedgerId>,
}

impl<'f> LateAdds<'f> {
    /// For the rest of a batch; `at_hand` is the ledger of the request that was decoded after it.
    pub(super) fn new(shards: Vec<Vec<Add<'f>>>, at_hand: Option<LedgerId>) -> LateAdds<'f> {
        let given = vec![0; shards.len()];
        LateAdds { shards, given, behind: at_hand.into_iter().collect() }
    }

    /// Those of a shard that wait, in their order.
    pub(super) fn of_shard(&self, shard: usize) -> &[Add<'f>] {
        &self.shards[shard][self.given[shard]..]
    }

    /// The shards of which adds wait, with those.
    pub(super) fn shards(&self) -> impl Iterator<Item = (usize, &[Add<'f>])> {
        let all = (0..self.shards.len()).map(|shard| (shard, self.of_shard(shard)));
        all.filter(|(_, adds)| !adds.is_empty())
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &Add<'f>> {
        self.shards().flat_map(|(_, adds)| adds)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shards().next().is_none()
    }

    /// A shard took so many more. True when others of it still wait.
    pub(super) fn took(&mut self, shard: usize, adds: usize) -> bool {
        self.given[shard] += adds;
        assert!(self.given[shard] <= self.shards[shard].len(), "no more adds are taken than waited");
        !self.of_shard(shard).is_empty()
    }

    /// Notes that a later request to this ledger waits as well, so that no other one passes it.
    pub(super) fn keep(&mut self, ledger: LedgerId) {
        self.behind.insert(ledger);
    }

    /// True if something of this ledger, which belongs to `shard`, waits here: then no request to it may pass that depends on the
    /// order (invariant 1).
    pub(super) fn blocks(&self, shard: usize, ledger: LedgerId) -> bool {
        self.behind.contains(&ledger) || self.of_shard(shard).iter().any(|add| add.ledger == ledger)
    }

    /// The memory of the batch, empty.
    fn into_batch(mut self) -> Vec<Vec<Add<'f>>> {
        self.shards.iter_mut().for_each(Vec::clear);
        self.shards
    }
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
    /// left at the admission deadline are refused. `at_hand` is the ledger of the request that was decoded after them.
    pub(super) async fn hand_over_late(&mut self, at_hand: Option<LedgerId>) -> Result<(), CloseReason> {
        // A task with a slice turn never blocks (slice_turns invariant 1).
        self.turn = None;
        let mut source = self.source.take();
        if source.is_some() {
            // It is for the requests that pass. What is decoded afterwards asks for room again.
            self.return_credit();
        }
        let mut late = self.take_batch(at_hand);
        let result = self.wait_for_grants(&mut late, source.as_mut()).await;
        self.source = source;
        self.shards = late.into_batch();
        result
    }

    /// Takes the batch, which is owed an answer from now on.
    fn take_batch(&mut self, at_hand: Option<LedgerId>) -> LateAdds<'f> {
        self.count_owed(self.batch_entries as i64);
        (self.batch_entries, self.batch_bytes) = (0, 0);
        LateAdds::new(std::mem::take(&mut self.shards), at_hand)
    }

    async fn wait_for_grants(
        &self,
        late: &mut LateAdds<'f>,
        mut source: Option<&mut AheadSource<'_>>,
    ) -> Result<(), CloseReason> {
        let deadline = self.deadline_of(late);
        // A place for each shard: each has one waiter at a time.
        let (told, mut grants) = mpsc::channel(late.shards().count());
        late.shards().for_each(|(shard, adds)| self.queue_for_room(shard, adds, &told));
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
                    looking = self.begin_look_ahead(source.take().expect("it is there"), self.frames.rest());
                    if let Some(looking) = &mut looking {
                        self.let_pass(looking, late);
                    }
                    continue;
                }
                () = LookAhead::read(looking.as_mut()) => {
                    self.let_pass(looking.as_mut().expect("it has read"), late);
                    continue;
                }
            };
            let taken = self.hand_over(shard, late.of_shard(shard), Some(grant));
            if late.took(shard, taken) {
                self.queue_for_room(shard, late.of_shard(shard), &told);
            }
        };
        metrics.adds_blocked.add(-1);
        drop(waiting);
        let now_ns = self.shared.clock.monotonic_ns();
        metrics.stages.room.record(0, now_ns, now_ns.saturating_sub(begun_ns), late.is_empty());
        match result {
            Ok(()) => self.refuse(late),
            Err(_) => self.count_owed(-(late.all().count() as i64)),
        }
        result
    }

    fn queue_for_room(&self, shard: usize, adds: &[Add<'_>], told: &mpsc::Sender<(usize, AdmissionGrant)>) {
        let told = told.clone();
        // After the deadline the receiver is gone: the grant is dropped, and goes to the next in the queue.
        let waiter = Box::new(move |grant| drop(told.try_send((shard, grant))));
        self.shared.engine.when_room(shard, adds, waiter);
    }

    /// Until when the late adds may wait for room. An add that waited to be decoded is no younger for it. A recovery's
    /// adds are not refused for their age: it would only start over.
    fn deadline_of(&self, late: &LateAdds<'_>) -> Instant {
        let limits = &self.shared.limits;
        let mut patience = limits.admission_deadline;
        let spares_all = |add: &Add<'_>| add.is_recovery || add.is_high_priority;
        if limits.request_age_max > Duration::ZERO && !late.all().any(spares_all) {
            patience = patience.min(limits.request_age_max.saturating_sub(self.age_for_want_of_memory()));
        }
        Instant::now() + patience
    }

    /// True if the batch waited so long for memory, mostly in the kernel, that its client has given up (invariant 3). As when
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
        let late = self.take_batch(None);
        self.refuse(&late);
        self.shards = late.into_batch();
    }

    /// Refuses those that still wait (invariant 2).
    fn refuse(&self, late: &LateAdds<'_>) {
        let is_of_v2 = |add: &Add<'_>| Reply::of_origin(&add.origin).0.is_v2();
        // Only this task hands adds over, so others that are owed an answer may become fewer meanwhile, but not more.
        let owes_more = self.connection.activity.adds_owed() > late.all().count() as u64;
        let may_overtake = owes_more && late.all().any(is_of_v2);
        for (shard, adds) in late.shards() {
            self.count_refused(adds);
            if may_overtake {
                self.refuse_in_order(shard, adds);
            } else {
                self.refuse_at_once(adds);
            }
        }
    }

    /// Refuses each after the older adds of its key, in the shard or on their way there.
    fn refuse_in_order(&self, shard: usize, mut adds: &[Add<'_>]) {
        while !adds.is_empty() {
            let (free, behind) = adds.split_at(self.shared.parked_adds.free_run(adds));
            if !free.is_empty() {
                self.shared.engine.refuse(shard, free, Refusal::TooManyRequests);
            }
            let Some((first, others)) = behind.split_first() else { return };
            self.park_refusal(shard, first);
            adds = others;
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

    /// Counts adds as refused, and writes one line to the log for all of them if they waited long.
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

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_engine::Origin;
    use bindery_types::{EntryId, MasterKey};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const SHARDS: usize = 2;

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Kind {
        Ordinary,
        Recovery,
        /// FORCE or WRITE_LAC.
        Barrier,
    }

    #[derive(Debug, Clone)]
    enum Event {
        /// The next request is examined; a recovery add finds room in its shard, or not.
        Look { has_room: bool },
        /// A grant for so many adds.
        Grant { shard: usize, adds: usize },
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => any::<bool>().prop_map(|has_room| Event::Look { has_room }),
            1 => (0..SHARDS, 1usize..4).prop_map(|(shard, adds)| Event::Grant { shard, adds }),
        ]
    }

    fn kind() -> impl Strategy<Value = Kind> {
        prop_oneof![Just(Kind::Ordinary), Just(Kind::Recovery), Just(Kind::Barrier)]
    }

    fn add(txn: u64, ledger: i64, is_recovery: bool) -> Add<'static> {
        Add {
            origin: Origin { connection: 0, txn, tag: 0 },
            ledger: LedgerId::new(ledger).unwrap(),
            entry: EntryId::FIRST,
            last_add_confirmed: None,
            key: MasterKey::new([0; 20]),
            body: &[],
            is_recovery,
            is_high_priority: false,
        }
    }

    fn shard_of(ledger: i64) -> usize {
        ledger as usize % SHARDS
    }

    proptest! {
        /// Invariant 1: whatever finds room when, requests of a ledger are handled in the order in which they came, each once.
        #[test]
        fn requests_of_a_ledger_keep_their_order(
            batch in prop::collection::vec((0i64..4, any::<bool>()), 1..12),
            behind in prop::collection::vec((0i64..4, kind()), 0..24),
            at_hand in prop::option::of(0i64..4),
            events in prop::collection::vec(event(), 0..60),
        ) {
            let mut came: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
            let mut handled: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
            let mut txns = 0;
            let mut arrive = |ledger: i64| {
                txns += 1;
                came.entry(ledger).or_default().push(txns);
                txns
            };
            let mut shards: Vec<Vec<Add<'static>>> = vec![Vec::new(); SHARDS];
            for (ledger, is_recovery) in batch {
                shards[shard_of(ledger)].push(add(arrive(ledger), ledger, is_recovery));
            }
            for adds in &mut shards {
                bring_recovery_forward(adds);
                // No ordinary add is in front of one of a recovery that it need not wait for.
                let mut ordinary: HashSet<LedgerId> = HashSet::new();
                for add in adds {
                    let may_pass = ordinary.is_empty() || ordinary.contains(&add.ledger);
                    prop_assert!(!add.is_recovery || may_pass);
                    if !add.is_recovery || !ordinary.is_empty() {
                        ordinary.insert(add.ledger);
                    }
                }
            }
            let at_hand = at_hand.map(|ledger| (ledger, arrive(ledger)));
            let mut late = LateAdds::new(shards, at_hand.and_then(|(ledger, _)| LedgerId::new(ledger)));
            let behind: Vec<(i64, Kind, u64)> =
                behind.into_iter().map(|(ledger, kind)| (ledger, kind, arrive(ledger))).collect();
            let mut kept: Vec<(i64, u64)> = at_hand.into_iter().collect();
            let mut looked_at = 0;
            for event in events {
                match event {
                    Event::Grant { shard, adds } => {
                        let adds = adds.min(late.of_shard(shard).len());
                        for add in &late.of_shard(shard)[..adds] {
                            handled.entry(add.ledger.get()).or_default().push(add.origin.txn);
                        }
                        late.took(shard, adds);
                    }
                    Event::Look { has_room } => {
                        let Some(&(ledger, kind, txn)) = behind.get(looked_at) else { continue };
                        looked_at += 1;
                        let id = LedgerId::new(ledger).unwrap();
                        let needs_no_room = match kind {
                            Kind::Ordinary => false,
                            Kind::Recovery => has_room,
                            Kind::Barrier => true,
                        };
                        if needs_no_room && !late.blocks(shard_of(ledger), id) {
                            handled.entry(ledger).or_default().push(txn);
                            continue;
                        }
                        kept.push((ledger, txn));
                        late.keep(id);
                    }
                }
            }
            // The wait is over: the rest of the batch, the requests that were kept, those not examined.
            for add in late.all() {
                handled.entry(add.ledger.get()).or_default().push(add.origin.txn);
            }
            let rest = behind[looked_at..].iter().map(|(ledger, _, txn)| (*ledger, *txn));
            for (ledger, txn) in kept.into_iter().chain(rest) {
                handled.entry(ledger).or_default().push(txn);
            }
            prop_assert_eq!(handled, came);
        }
    }
}
