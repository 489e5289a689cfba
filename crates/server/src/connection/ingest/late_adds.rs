//! Adds of a connection that found no room, or whose tenants are over their limits. They stay in the read buffer and wait in the admission queues of their shards, or
//! are refused. Some requests that come after them may pass.
//!
//! # Data flow
//! ```text
//! batch ─► no room ─► LateAdds ─► grant: handed over ─► …
//!                       │  ├────► tenant has paid: handed over, or waits for room
//!                       │  └────► deadline of a wait for room: refused
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

use super::look_ahead::LookAhead;
use super::{CloseReason, Frames, batches};
use crate::connection::activity::{Wait, Waiting};
use crate::connection::request::Reply;
use crate::metrics::Metrics;
use crate::slow_log::{Slow, SlowKind};
use crate::tenants::{HeldMemory, Kind, LimitWait, Owner, Tenant};
use bindery_engine::{Add, AdmissionGrant, Refusal, Share};
use bindery_types::LedgerId;
use bindery_wire::ErrorCode;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Late adds of one shard, and of one tenant where there are any.
pub(super) struct Lane<'f> {
    shard: usize,
    owner: Option<Owner>,
    adds: Vec<Add<'f>>,
    /// How many of them were handed over since.
    given: usize,
}

impl<'f> Lane<'f> {
    /// Those that wait, in their order.
    pub(super) fn adds(&self) -> &[Add<'f>] {
        &self.adds[self.given..]
    }

    pub(super) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }
}

/// The wait of a lane.
#[derive(Default)]
struct LaneState {
    /// The time of the next look whether its tenant has paid, and the wait as it is counted.
    paid_at: Option<(Instant, LimitWait)>,
    /// Until when it may wait for room.
    room_until: Option<Instant>,
    /// It is placed before it is paid.
    is_unpaid: bool,
}

/// One wait of late adds, lane by lane, and its length.
struct LateWait<'w> {
    states: Vec<LaneState>,
    told: mpsc::Sender<(usize, AdmissionGrant)>,
    patience: Duration,
    /// Whether adds of tenants may wait in their memory, once some would (tenants invariant 3).
    held: Option<Option<Vec<HeldMemory>>>,
    is_for_room: bool,
    waiting: Option<Waiting<'w>>,
    room_since_ns: u64,
    room_ns: u64,
    has_refused: bool,
}

impl LateWait<'_> {
    /// A tenant whose limit adds wait for.
    fn limited(&self, late: &LateAdds<'_>) -> Option<Arc<Tenant>> {
        let mut limited = late.lanes().filter(|(lane, _)| self.states[*lane].paid_at.is_some());
        limited.find_map(|(_, lane)| lane.owner().map(|owner| owner.tenant.clone()))
    }

    /// The earliest end of a wait among these lanes.
    fn next(&self, late: &LateAdds<'_>) -> Instant {
        let next_of = |state: &LaneState| state.paid_at.as_ref().map(|(at, _)| *at).or(state.room_until);
        let next = late.lanes().filter_map(|(lane, _)| next_of(&self.states[lane])).min();
        next.expect("a lane waits for room, or to be paid")
    }
}

/// The adds that wait, and the ledgers of later requests that wait as well. It does no I/O, and decides what may pass.
pub(super) struct LateAdds<'f> {
    lanes: Vec<Lane<'f>>,
    /// Ledgers of later requests that wait: of the one at hand, and of those in frames that are kept.
    behind: HashSet<LedgerId>,
}

impl<'f> LateAdds<'f> {
    /// For the rest of a batch, by shard; `at_hand` is the ledger of the request that was decoded after it. Where there are tenants,
    /// `owner_of` tells whose a ledger is. It is asked once for each ledger of a shard, so that adds of a ledger stay together.
    pub(super) fn new(
        shards: Vec<Vec<Add<'f>>>,
        at_hand: Option<LedgerId>,
        mut owner_of: impl FnMut(LedgerId) -> Option<Owner>,
    ) -> LateAdds<'f> {
        let mut lanes: Vec<Lane<'f>> = Vec::new();
        for (shard, adds) in shards.into_iter().enumerate() {
            let Some(first) = adds.first() else { continue };
            let mut owner = owner_of(first.ledger);
            if owner.is_none() {
                lanes.push(Lane { shard, owner, adds, given: 0 });
                continue;
            }
            let of_shard = lanes.len();
            let mut lane_of: HashMap<LedgerId, usize> = HashMap::new();
            for add in adds {
                let lane = *lane_of.entry(add.ledger).or_insert_with(|| {
                    let owner = owner.take().or_else(|| owner_of(add.ledger));
                    let is_its = |lane: &Lane<'f>| match (&lane.owner, &owner) {
                        (Some(one), Some(other)) => one.is(other),
                        (one, other) => one.is_none() && other.is_none(),
                    };
                    let known = lanes[of_shard..].iter().position(is_its);
                    known.map_or_else(
                        || {
                            lanes.push(Lane { shard, owner, adds: Vec::new(), given: 0 });
                            lanes.len() - 1
                        },
                        |at| of_shard + at,
                    )
                });
                lanes[lane].adds.push(add);
            }
        }
        LateAdds { lanes, behind: at_hand.into_iter().collect() }
    }

    /// Where adds wait: a lane keeps its number.
    pub(super) fn lanes(&self) -> impl Iterator<Item = (usize, &Lane<'f>)> {
        self.lanes.iter().enumerate().filter(|(_, lane)| !lane.adds().is_empty())
    }

    /// As [`LateAdds::lanes`], of one.
    pub(super) fn lane(&self, lane: usize) -> &Lane<'f> {
        &self.lanes[lane]
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &Add<'f>> {
        self.lanes().flat_map(|(_, lane)| lane.adds())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes().next().is_none()
    }

    /// A shard took so many more of a lane. True when others of it still wait.
    pub(super) fn took(&mut self, lane: usize, adds: usize) -> bool {
        let lane = &mut self.lanes[lane];
        lane.given += adds;
        assert!(lane.given <= lane.adds.len(), "no more adds are taken than waited");
        !lane.adds().is_empty()
    }

    /// Notes that a later request to this ledger waits as well, so that no other one passes it.
    pub(super) fn keep(&mut self, ledger: LedgerId) {
        self.behind.insert(ledger);
    }

    /// True if something of this ledger, which belongs to `shard`, waits here: then no request to it may pass that depends on the
    /// order (invariant 1).
    pub(super) fn blocks(&self, shard: usize, ledger: LedgerId) -> bool {
        let has_it = |(_, lane): (usize, &Lane<'f>)| {
            lane.shard == shard && lane.adds().iter().any(|add| add.ledger == ledger)
        };
        self.behind.contains(&ledger) || self.lanes().any(has_it)
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
    /// Waits in the admission queues of all shards of the rest of the batch at once, or until tenants have paid, and hands over as
    /// grants come; adds left at the admission deadline are refused. `at_hand` is the ledger of the request that was decoded after them.
    pub(super) async fn hand_over_late(&mut self, at_hand: Option<LedgerId>) -> Result<(), CloseReason> {
        // A task with a slice turn never blocks (slice_turns invariant 1).
        self.turn = None;
        let mut source = self.source.take();
        if source.is_some() {
            // It is for the requests that pass. What is decoded afterwards asks for room again.
            self.return_credit();
        }
        let mut late = self.take_batch(at_hand);
        let rest = (!self.is_rest_ahead).then(|| self.frames.rest());
        let mut looking = source.as_mut().map(|source| LookAhead::new(source, rest));
        let result = self.wait_for_grants(&mut late, looking.as_mut()).await;
        self.is_rest_ahead |= looking.is_some_and(|looking| looking.has_rest());
        self.source = source;
        self.shards = batches::take(self.shared.engine.shard_count());
        result
    }

    /// Takes the batch, which is owed an answer from now on.
    fn take_batch(&mut self, at_hand: Option<LedgerId>) -> LateAdds<'f> {
        self.count_owed(self.batch_entries as i64);
        (self.batch_entries, self.batch_bytes) = (0, 0);
        let shards = std::mem::take(&mut self.shards);
        LateAdds::new(shards, at_hand, |ledger| self.owner_of(ledger))
    }

    async fn wait_for_grants(
        &self,
        late: &mut LateAdds<'f>,
        mut looking: Option<&mut LookAhead<'_, 'f>>,
    ) -> Result<(), CloseReason> {
        // A place for each lane: each has one waiter at a time.
        let (told, mut grants) = mpsc::channel(late.lanes.len().max(1));
        let mut wait = LateWait {
            states: late.lanes.iter().map(|_| LaneState::default()).collect(),
            told,
            patience: self.patience_with(late),
            held: None,
            is_for_room: false,
            waiting: None,
            room_since_ns: 0,
            room_ns: 0,
            has_refused: false,
        };
        for lane in 0..late.lanes.len() {
            self.begin_lane(&mut wait, late, lane);
        }
        let result = loop {
            if late.is_empty() {
                break Ok(());
            }
            self.show_wait(&mut wait, late);
            let next = wait.next(late);
            tokio::select! {
                () = self.connection.closed.wait() => break Err(CloseReason::Ours),
                told = grants.recv() => {
                    let (lane, grant) = told.expect("this task has a sender");
                    self.hand_over_lane(&mut wait, late, lane, Some(grant));
                }
                () = tokio::time::sleep_until(next) => self.on_time(&mut wait, late),
                () = LookAhead::ready(looking.as_deref_mut()) => {
                    let limited = wait.limited(late);
                    self.look_ahead(looking.as_deref_mut().expect("it is ready"), late, limited.as_ref());
                }
            }
        };
        self.show_end(&mut wait);
        let metrics = &self.shared.metrics;
        if wait.room_ns > 0 {
            let now_ns = self.shared.clock.monotonic_ns();
            metrics.stages.room.record(0, now_ns, wait.room_ns, result.is_ok() && !wait.has_refused);
        }
        if result.is_err() {
            self.count_owed(-(late.all().count() as i64));
        }
        result
    }

    /// Has a lane wait for what it needs next.
    fn begin_lane(&self, wait: &mut LateWait<'_>, late: &mut LateAdds<'f>, lane: usize) {
        let (mut held, mut is_unpaid) = (self.held_for(late.lane(lane)), false);
        if let Some((_, tenant)) = &held
            && wait.held.get_or_insert_with(|| self.hold(tenant)).is_none()
        {
            if !self.is_placed_unpaid(tenant) {
                return self.refuse_lane(wait, late, lane);
            }
            (held, is_unpaid) = (None, true);
        }
        let of_lane = late.lane(lane);
        let now_ns = self.shared.clock.monotonic_ns();
        let state = &mut wait.states[lane];
        match held {
            Some((time, tenant)) => {
                let before = state.paid_at.take().map(|(_, waiting)| waiting);
                let waiting = before.unwrap_or_else(|| tenant.waits(Kind::Adds, now_ns));
                *state =
                    LaneState { paid_at: Some((Instant::now() + time, waiting)), ..LaneState::default() };
            }
            None => {
                if let Some((_, waiting)) = state.paid_at.take() {
                    waiting.end(now_ns);
                }
                // An add that waits for the rest of its room is no younger for what it got.
                state.room_until.get_or_insert_with(|| Instant::now() + wait.patience);
                let told = wait.told.clone();
                // After the deadline the receiver is gone: the grant is dropped, and goes to the next in the queue.
                let waiter = Box::new(move |grant| drop(told.try_send((lane, grant))));
                let share = of_lane.owner().map_or(Share::DEFAULT, |owner| owner.tenant.share());
                state.is_unpaid = is_unpaid;
                let adds = self.free_of(of_lane, is_unpaid);
                self.shared.engine.when_room_for(of_lane.shard, share, adds, waiter);
            }
        }
    }

    /// Hands over what may be of a lane; the rest of it waits on.
    fn hand_over_lane(
        &self,
        wait: &mut LateWait<'_>,
        late: &mut LateAdds<'f>,
        lane: usize,
        grant: Option<AdmissionGrant>,
    ) {
        let of_lane = late.lane(lane);
        let adds = self.free_of(of_lane, wait.states[lane].is_unpaid);
        let taken = self.hand_over(of_lane.shard, adds, grant);
        if late.took(lane, taken) {
            self.begin_lane(wait, late, lane);
        } else if let Some((_, waiting)) = wait.states[lane].paid_at.take() {
            waiting.end(self.shared.clock.monotonic_ns());
        }
    }

    /// Lanes whose tenants have paid go on; those that have waited for room for too long are refused.
    fn on_time(&self, wait: &mut LateWait<'_>, late: &mut LateAdds<'f>) {
        let now = Instant::now();
        let waiting: Vec<usize> = late.lanes().map(|(lane, _)| lane).collect();
        for lane in waiting {
            let state = &wait.states[lane];
            match (&state.paid_at, state.room_until) {
                (Some((at, _)), _) if *at <= now => match self.held_for(late.lane(lane)) {
                    Some(_) => self.begin_lane(wait, late, lane),
                    None => self.hand_over_lane(wait, late, lane, None),
                },
                (None, Some(until)) if until <= now => self.refuse_lane(wait, late, lane),
                _ => {}
            }
        }
    }

    /// Refuses what still waits of a lane.
    fn refuse_lane(&self, wait: &mut LateWait<'_>, late: &mut LateAdds<'f>, lane: usize) {
        wait.has_refused = true;
        self.refuse(late, lane);
        let left = late.lane(lane).adds().len();
        late.took(lane, left);
        if let Some((_, waiting)) = wait.states[lane].paid_at.take() {
            waiting.end(self.shared.clock.monotonic_ns());
        }
    }

    /// Shows operators what the connection waits for.
    fn show_wait<'w>(&'w self, wait: &mut LateWait<'w>, late: &LateAdds<'_>) {
        let is_for_room = late.lanes().any(|(lane, _)| wait.states[lane].paid_at.is_none());
        if wait.waiting.is_some() && wait.is_for_room == is_for_room {
            return;
        }
        self.show_end(wait);
        wait.is_for_room = is_for_room;
        let why = if is_for_room { Wait::WriteRoom } else { Wait::Tenant };
        wait.waiting = Some(self.connection.activity.waits(why));
        if is_for_room {
            wait.room_since_ns = self.shared.clock.monotonic_ns();
            self.shared.metrics.adds_blocked.add(1);
        }
    }

    fn show_end(&self, wait: &mut LateWait<'_>) {
        if wait.waiting.take().is_some() && wait.is_for_room {
            let now_ns = self.shared.clock.monotonic_ns();
            wait.room_ns += now_ns.saturating_sub(wait.room_since_ns).max(1);
            self.shared.metrics.adds_blocked.add(-1);
        }
    }

    /// How long late adds may wait for room. An add that waited to be decoded is no younger for it. A recovery's
    /// adds are not refused for their age: it would only start over.
    fn patience_with(&self, late: &LateAdds<'_>) -> Duration {
        let limits = &self.shared.limits;
        let patience = limits.admission_deadline;
        let spares_all = |add: &Add<'_>| add.is_recovery || add.is_high_priority;
        match limits.request_age_max > Duration::ZERO && !late.all().any(spares_all) {
            true => patience.min(limits.request_age_max.saturating_sub(self.age_for_want_of_memory())),
            false => patience,
        }
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
        late.lanes().for_each(|(lane, _)| self.refuse(&late, lane));
        self.shards = batches::take(self.shared.engine.shard_count());
    }

    /// Refuses those of a lane that still wait (invariant 2).
    fn refuse(&self, late: &LateAdds<'_>, lane: usize) {
        let (shard, adds) = (late.lane(lane).shard, late.lane(lane).adds());
        let is_of_v2 = |add: &Add<'_>| Reply::of_origin(&add.origin).0.is_v2();
        // Only this task hands adds over, so others that are owed an answer may become fewer meanwhile, but not more.
        let owes_more = self.connection.activity.adds_owed() > late.all().count() as u64;
        let may_overtake = owes_more && late.all().any(is_of_v2);
        self.count_refused(adds);
        if may_overtake {
            self.refuse_in_order(shard, adds);
        } else {
            self.refuse_at_once(adds);
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
            self.shared.metrics.add_entry.record(Metrics::NO_JOURNAL, now_ns, latency_ns, false);
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
#[allow(clippy::disallowed_methods, reason = "what an operator puts there")]
mod tests {
    use super::*;
    use crate::tenants::{Tenancy, Tenants, TenantsConfig};
    use bindery_engine::Origin;
    use bindery_io::SystemClock;
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

    /// Invariant 1, while it becomes known whose a ledger is.
    #[test]
    fn adds_of_a_ledger_stay_together_while_it_becomes_known_whose_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tenants");
        std::fs::write(&file, "tenant a\n").unwrap();
        let config = TenantsConfig { file, refresh: TenantsConfig::REFRESH_DEFAULT };
        let tenants = Tenants::open(config, Arc::new(SystemClock::new())).unwrap();
        let owner = Tenancy::default().owner_of(&tenants, None, LedgerId::MIN, || false);
        let mut asked = 0;
        let owner_of = |_| {
            asked += 1;
            Some(Owner { is_known: asked % 2 == 0, ..owner.clone() })
        };
        let ledgers = [1, 3, 1, 5, 3, 1];
        let adds = (0..).zip(ledgers).map(|(txn, ledger)| add(txn, ledger, false)).collect();
        let late = LateAdds::new(vec![adds], None, owner_of);
        let lanes: Vec<Vec<i64>> =
            late.lanes().map(|(_, lane)| lane.adds().iter().map(|add| add.ledger.get()).collect()).collect();
        assert_eq!(lanes, [vec![1, 1, 5, 1], vec![3, 3]]);
        assert_eq!(asked, 3);
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
            let mut late = LateAdds::new(shards, at_hand.and_then(|(ledger, _)| LedgerId::new(ledger)), |_| None);
            let behind: Vec<(i64, Kind, u64)> =
                behind.into_iter().map(|(ledger, kind)| (ledger, kind, arrive(ledger))).collect();
            let mut kept: Vec<(i64, u64)> = at_hand.into_iter().collect();
            let mut looked_at = 0;
            for event in events {
                match event {
                    Event::Grant { shard, adds } => {
                        let lane = late.lanes().find(|(_, lane)| lane.shard == shard).map(|(lane, _)| lane);
                        let Some(lane) = lane else { continue };
                        let adds = adds.min(late.lane(lane).adds().len());
                        for add in &late.lane(lane).adds()[..adds] {
                            handled.entry(add.ledger.get()).or_default().push(add.origin.txn);
                        }
                        late.took(lane, adds);
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
