//! Rounds: objects under construction, their commit, and what becomes of their ledgers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_io::canary::Canary;
use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::{ExtentOutcome, NewObject, Refusal, Verdict};
use bindery_types::tier::TierExtent;
use bindery_types::{EntryId, LedgerId};

use super::event::{Action, BuildLedger, BuildOrder, Built, CommitId, CommitReply, Left, RoundId};
use super::ledger::Stage;
use super::measure::{self, BuildTimes};
use super::plan::plan;
use super::trouble::Kind;
use super::updates::Report;
use super::{Core, Ending, PLAN_PAUSE, USAGE_WINDOW};

/// Extents in one commit.
const COMMIT_EXTENTS_MAX: usize = 100_000;

/// One object of a round.
#[derive(Debug, Clone)]
enum Piece {
    /// Under construction, from entries of these ledgers.
    Building(Vec<LedgerId>),
    Uploaded(NewObject),
    /// Committed, given up, or never made.
    Over,
}

/// A round, from its plan until its updates are done.
#[derive(Debug, Clone)]
pub(super) struct Round {
    began: Duration,
    pieces: BTreeMap<ObjectId, Piece>,
    times: BuildTimes,
    largest: u64,
    uploaded_at: Duration,
    committed_at: Duration,
    /// Once it is committed: the ledgers whose ack quorums have not been told yet.
    telling: Option<BTreeSet<LedgerId>>,
}

/// A commit that has not been answered.
#[derive(Debug, Clone)]
pub(super) struct Commit {
    id: CommitId,
    rounds: Vec<RoundId>,
    objects: Vec<NewObject>,
    reserve: usize,
    since: Duration,
    attempts: u32,
    /// When it is sent again; none while it is on its way.
    pub again_at: Option<Duration>,
}

impl Core {
    /// Begins a round, if something is due and there is room.
    pub(super) fn begin_round(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let is_time = now >= self.next_round_at || self.has_backlog || self.due.is_urgent();
        let room = self.objects_max().saturating_sub(self.building.len());
        if self.is_paused
            || !is_time
            || room == 0
            || now < self.plan_not_before
            || now < self.store_not_before
        {
            return;
        }
        self.plan_not_before = now + PLAN_PAUSE;
        if !self.due.has_some() {
            self.has_backlog = false;
            if now >= self.next_round_at {
                self.counts.idle_rounds += 1;
                self.interval.adapt(0, self.settings.target_bytes());
                self.next_round_at = now + self.interval.current();
            }
            return;
        }
        let before = self.reserved.len();
        self.reserved.retain(|(_, until)| *until > now);
        self.counts.expired += (before - self.reserved.len()) as u64;
        if self.reserved.is_empty() {
            if !self.is_reserving {
                self.is_reserving = true;
                actions.push(Action::Reserve(self.settings.objects_max));
            }
            return;
        }
        let entry_bytes = self.entry_bytes();
        let due = self.due.iter().map(|id| (id, self.ledgers[&id].lag_bytes(entry_bytes)));
        let planned = plan(due, room.min(self.reserved.len()), self.settings.target_bytes());
        let id = RoundId(self.next_round);
        self.next_round += 1;
        self.counts.rounds += 1;
        self.next_round_at = now + self.interval.current();
        let mut pieces = BTreeMap::new();
        for ledgers in planned {
            let (object, _) = self.reserved.remove(0);
            let order = self.order(id, object, &ledgers);
            self.building.insert(object, id);
            pieces.insert(object, Piece::Building(ledgers));
            actions.push(Action::Build(order));
        }
        self.leave_out(now);
        let round = Round {
            began: now,
            pieces,
            times: BuildTimes::default(),
            largest: 0,
            uploaded_at: now,
            committed_at: now,
            telling: None,
        };
        self.rounds.insert(id, round);
    }

    /// What is still due found no room: it comes first in the next round.
    fn leave_out(&mut self, now: Duration) {
        for ledger in self.due.new_ones() {
            self.ledgers.get_mut(&ledger).expect("a ledger that is due is watched").was_left_out = true;
            self.place(now, ledger);
        }
        self.has_backlog = self.due.has_some();
    }

    /// Ledgers lie in an object in the order of their ids: objects are read one extent behind the other when they are joined. The first one is
    /// the most urgent, and what an object is too short for is first in the next one (T14).
    fn order(&mut self, round: RoundId, object: ObjectId, ledgers: &[LedgerId]) -> BuildOrder {
        let entry_bytes = self.entry_bytes();
        let first = ledgers.first().copied();
        let mut ledgers = ledgers.to_vec();
        ledgers.sort_unstable_by_key(|ledger| (Some(*ledger) < first, *ledger));
        let ledgers = ledgers.iter().map(|id| {
            let ledger = self.ledgers.get_mut(id).expect("it was planned");
            assert!(ledger.stage == Stage::Idle, "core invariant 2: ledger {id} is in an object");
            ledger.stage = Stage::Building(round);
            ledger.was_left_out = false;
            self.due.set(*id, None);
            let (first, last) = ledger.untiered().expect("a ledger that may be built has entries");
            let metadata = ledger.metadata.clone().expect("a ledger with entries was seen");
            BuildLedger { ledger: *id, first, last, metadata, bytes: ledger.lag_bytes(entry_bytes) }
        });
        BuildOrder { object, ledgers: ledgers.collect() }
    }

    pub(super) fn on_reserved(&mut self, now: Duration, outcome: Result<Vec<ObjectId>, String>) {
        self.is_reserving = false;
        self.troubles.note(now, Kind::Reserve, outcome.as_ref().map(drop).map_err(String::as_str));
        match outcome {
            Ok(objects) if !objects.is_empty() => {
                self.store_failures = 0;
                self.reserve(now, objects);
            }
            Ok(_) => self.on_store_failure(now, "no ids could be reserved".to_owned()),
            Err(why) => self.on_store_failure(now, why),
        }
        self.plan_not_before = now;
    }

    fn reserve(&mut self, now: Duration, objects: Vec<ObjectId>) {
        self.counts.reserved += objects.len() as u64;
        let until = now + self.settings.reservation_use;
        self.reserved.extend(objects.into_iter().map(|object| (object, until)));
    }

    fn on_store_failure(&mut self, now: Duration, why: String) {
        self.store_failures += 1;
        self.last_error = Some(why);
        let pause = Duration::from_millis(250) * 2_u32.pow(self.store_failures.min(7));
        self.store_not_before = now + pause.min(Duration::from_secs(30));
    }

    pub(super) fn on_built(
        &mut self,
        now: Duration,
        object: ObjectId,
        built: Built,
        reports: &mut Vec<Report>,
    ) {
        let Some(id) = self.building.remove(&object) else { return };
        let round = self.rounds.get_mut(&id).expect("a round has the objects that are built for it");
        let Some(Piece::Building(ledgers)) = round.pieces.insert(object, Piece::Over) else { return };
        round.uploaded_at = now;
        round.times.read += built.times.read;
        round.times.build += built.times.build;
        round.times.upload += built.times.upload;
        for (stage, time) in [
            (measure::Stage::Read, built.times.read),
            (measure::Stage::Build, built.times.build),
            (measure::Stage::Upload, built.times.upload),
        ] {
            self.usage.add(stage, time);
        }
        let mut committing = BTreeSet::new();
        let unread = built.left.iter().find_map(|(_, left)| match left {
            Left::Unread(why) => Some(why.as_str()),
            Left::Full | Left::OutOfTime => None,
        });
        match (&built.outcome, unread) {
            (Ok(Some(_)), _) => {
                self.troubles.note(now, Kind::Read, Ok(()));
                self.troubles.note(now, Kind::Upload, Ok(()));
            }
            (Ok(None), Some(why)) => self.troubles.note(now, Kind::Read, Err(why)),
            (Ok(None), None) => {}
            (Err(why), _) => self.troubles.note(now, Kind::Upload, Err(why)),
        }
        match built.outcome {
            Ok(Some(new)) => {
                self.store_failures = 0;
                committing.extend(new.extents.iter().map(|extent| extent.ledger));
                round.largest = round.largest.max(new.object.length_bytes);
                if self.settings.canaries.has(Canary::M23LreBeforeCommit) {
                    self.tell_early(now, &new, reports);
                }
                let round = self.rounds.get_mut(&id).expect("it was just there");
                round.pieces.insert(object, Piece::Uploaded(new));
            }
            Ok(None) => {}
            Err(why) => {
                self.counts.upload_failures += 1;
                self.on_store_failure(now, why);
                for ledger in &ledgers {
                    if let Some(ledger) = self.ledgers.get_mut(ledger) {
                        ledger.was_left_out = true;
                    }
                }
                self.has_backlog = true;
            }
        }
        for ledger in &ledgers {
            if !committing.contains(ledger) {
                self.release(*ledger);
            }
        }
        for (ledger, left) in built.left {
            let Some(watched) = self.ledgers.get_mut(&ledger) else { continue };
            self.touched.insert(ledger);
            match left {
                Left::Full | Left::OutOfTime => {
                    watched.was_left_out = true;
                    self.has_backlog = true;
                }
                Left::Unread(why) => {
                    self.counts.read_failures += 1;
                    watched.fail(now, why);
                }
            }
        }
        self.end_building(now, id);
    }

    /// The planted bug M23: tells bookies of entries before they are committed.
    fn tell_early(&mut self, now: Duration, new: &NewObject, reports: &mut Vec<Report>) {
        for extent in &new.extents {
            let told = TierExtent { first: extent.first, last: extent.last, object: new.object };
            if self.ledgers.contains_key(&extent.ledger) {
                self.updates.advance(now, extent.ledger, extent.last, (&[told], now), reports);
            }
        }
    }

    /// The ledger is no longer in an object under construction. It may go into another one, or be forgotten by the next sweep if nothing
    /// is left to do for it.
    fn release(&mut self, ledger: LedgerId) {
        if let Some(watched) = self.ledgers.get_mut(&ledger) {
            watched.stage = Stage::Idle;
        }
        self.touched.insert(ledger);
    }

    /// Once all objects of a round are done, it waits for its commit, or is over.
    fn end_building(&mut self, now: Duration, id: RoundId) {
        let round = self.rounds.get(&id).expect("a round that ends is there");
        if round.pieces.values().any(|piece| matches!(piece, Piece::Building(_))) {
            return;
        }
        let target = self.settings.target_bytes();
        self.interval.adapt(round.largest, target);
        if !self.has_backlog {
            self.next_round_at = round.began + self.interval.current();
        }
        self.plan_not_before = now;
        match round.pieces.values().any(|piece| matches!(piece, Piece::Uploaded(_))) {
            true => self.to_commit.push(id),
            false => drop(self.rounds.remove(&id)),
        }
    }

    /// Sends a commit, or sends one again.
    pub(super) fn begin_commit(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if let Some(commit) = &mut self.commit {
            if commit.again_at.is_some_and(|at| now >= at) {
                commit.again_at = None;
                self.counts.commit_retries += 1;
                let (commit, objects) = (commit.id, commit.objects.clone());
                let reserve = self.commit.as_ref().map_or(0, |commit| commit.reserve);
                actions.push(Action::Commit { commit, objects, reserve });
            }
            return;
        }
        let (mut rounds, mut objects, mut extents) = (Vec::new(), Vec::new(), 0);
        for id in &self.to_commit {
            let of_round = self.rounds[id].pieces.values().filter_map(|piece| match piece {
                Piece::Uploaded(new) => Some(new.clone()),
                Piece::Building(_) | Piece::Over => None,
            });
            let of_round: Vec<NewObject> = of_round.collect();
            let more: usize = of_round.iter().map(|new| new.extents.len()).sum();
            if !rounds.is_empty() && extents + more > COMMIT_EXTENTS_MAX {
                break;
            }
            extents += more;
            rounds.push(*id);
            objects.extend(of_round);
        }
        if rounds.is_empty() {
            return;
        }
        self.to_commit.drain(..rounds.len());
        let id = CommitId(self.next_commit);
        self.next_commit += 1;
        let wanted = if self.ending == Ending::No { self.settings.objects_max } else { 0 };
        let reserve = wanted.saturating_sub(self.reserved.len());
        actions.push(Action::Commit { commit: id, objects: objects.clone(), reserve });
        self.commit = Some(Commit { id, rounds, objects, reserve, since: now, attempts: 0, again_at: None });
    }

    pub(super) fn on_committed(
        &mut self,
        now: Duration,
        id: CommitId,
        outcome: Result<CommitReply, String>,
        reports: &mut Vec<Report>,
    ) {
        let Some(mut commit) = self.commit.take_if(|commit| commit.id == id) else { return };
        self.troubles.note(now, Kind::Commit, outcome.as_ref().map(drop).map_err(String::as_str));
        match outcome {
            Ok(reply) => {
                self.counts.commits += 1;
                self.usage.add(measure::Stage::Commit, now.saturating_sub(commit.since));
                if !reply.reserved.is_empty() {
                    // While commits bring ids, no request for ids alone is sent, so no other success would end that trouble.
                    self.troubles.note(now, Kind::Reserve, Ok(()));
                }
                self.reserve(now, reply.reserved);
                self.plan_not_before = now;
                let mut outcomes: BTreeMap<ObjectId, _> = reply.objects.into_iter().collect();
                let mut told = BTreeMap::new();
                for new in &commit.objects {
                    let outcome = outcomes.remove(&new.object.id).unwrap_or(Err(Refusal::NotReserved));
                    self.on_object(now, new, outcome, &mut told);
                }
                self.tell(now, commit.since, told, &commit.rounds, reports);
            }
            Err(why) if now < commit.since + self.settings.commit_patience => {
                self.last_error = Some(why);
                let (first, most) = self.settings.commit_retry;
                commit.again_at = Some(now + (first * 2_u32.pow(commit.attempts.min(10))).min(most));
                commit.attempts += 1;
                self.commit = Some(commit);
            }
            Err(why) => {
                // The outcome is unknown: nothing more of these ledgers is built before the catalogue has told what it has of them.
                self.last_error = Some(why);
                for ledger in commit.objects.iter().flat_map(|new| &new.extents).map(|extent| extent.ledger) {
                    self.release(ledger);
                    if let Some(watched) = self.ledgers.get_mut(&ledger) {
                        watched.is_asked = false;
                        self.to_locate.insert(ledger);
                    }
                }
                for round in commit.rounds {
                    self.rounds.remove(&round);
                }
            }
        }
    }

    /// Takes in what the catalogue made of one object. `told` collects what bookies are to be told of each ledger.
    fn on_object(
        &mut self,
        now: Duration,
        new: &NewObject,
        outcome: Result<Vec<ExtentOutcome>, Refusal>,
        told: &mut BTreeMap<LedgerId, (EntryId, Vec<TierExtent>)>,
    ) {
        let outcomes = match outcome {
            Ok(outcomes) => outcomes,
            Err(refusal) => {
                self.counts.refused_objects += 1;
                self.last_error = Some(format!("object {}: {refusal}", new.object.id));
                for extent in &new.extents {
                    self.release(extent.ledger);
                    self.to_locate.insert(extent.ledger);
                }
                return;
            }
        };
        self.counts.objects += 1;
        self.counts.object_bytes += new.object.length_bytes;
        for (extent, outcome) in new.extents.iter().zip(outcomes) {
            self.release(extent.ledger);
            let is_believed = self.settings.canaries.has(Canary::T3CorrectionIgnored);
            let (verdict, tiered) = match is_believed && outcome.verdict == Verdict::Misaligned {
                true => (Verdict::Accepted, Some(extent.last)),
                false => (outcome.verdict, outcome.next.get().checked_sub(1).and_then(EntryId::new)),
            };
            let Some(watched) = self.ledgers.get_mut(&extent.ledger) else { continue };
            if verdict == Verdict::OtherLedger {
                // How far the other one is means nothing.
                self.counts.corrections += 1;
                watched.tiered = None;
                self.to_locate.insert(extent.ledger);
                continue;
            }
            watched.tier(tiered);
            match verdict {
                Verdict::Accepted => {
                    self.counts.extents += 1;
                    let entries = (extent.last.get() - extent.first.get()) as u64 + 1;
                    self.counts.entries += entries;
                    self.counts.entry_bytes += extent.bytes;
                    watched.entry_bytes = Some(extent.bytes / entries);
                    (watched.failures, watched.last_error) = match now < watched.not_before {
                        true => (watched.failures, watched.last_error.take()),
                        false => (0, None),
                    };
                }
                Verdict::Misaligned | Verdict::NotReplaceable | Verdict::OtherLedger => {
                    self.counts.corrections += 1
                }
                Verdict::Removed => watched.is_gone = true,
            }
            match watched.untiered() {
                None => watched.is_urgent = false,
                Some(_) => self.has_backlog |= watched.was_left_out,
            }
            let Some(tiered) = tiered else { continue };
            let (goal, extents) = told.entry(extent.ledger).or_insert((tiered, Vec::new()));
            *goal = tiered.max(*goal);
            if verdict == Verdict::Accepted {
                extents.push(TierExtent { first: extent.first, last: extent.last, object: new.object });
            }
        }
    }

    /// Tells bookies what was committed (T7), at `committed_at` or later. The rounds go on until the ack quorums have been told.
    fn tell(
        &mut self,
        now: Duration,
        committed_at: Duration,
        told: BTreeMap<LedgerId, (EntryId, Vec<TierExtent>)>,
        rounds: &[RoundId],
        reports: &mut Vec<Report>,
    ) {
        let mut telling = BTreeSet::new();
        for (ledger, (goal, extents)) in told {
            let Some(watched) = self.ledgers.get(&ledger) else { continue };
            let Some(metadata) = watched.metadata.clone() else { continue };
            let last = watched.available.map_or(goal, |available| available.max(goal));
            self.updates.know(now, ledger, &metadata, last);
            self.updates.advance(now, ledger, goal, (&extents, committed_at), reports);
            telling.insert(ledger);
        }
        for id in rounds {
            let Some(round) = self.rounds.get_mut(id) else { continue };
            round.committed_at = now;
            let mut of_round = BTreeSet::new();
            for piece in round.pieces.values_mut() {
                if let Piece::Uploaded(new) = std::mem::replace(piece, Piece::Over) {
                    of_round.extend(new.extents.iter().map(|extent| extent.ledger));
                }
            }
            round.telling = Some(of_round.intersection(&telling).copied().collect());
            self.end_if_told(now, *id);
        }
    }

    /// A ledger's update is complete, or so late that rounds no longer wait for it.
    pub(super) fn settle(&mut self, now: Duration, ledger: LedgerId) {
        self.touched.insert(ledger);
        let rounds = self.rounds.iter_mut().filter_map(|(id, round)| {
            round.telling.as_mut().is_some_and(|telling| telling.remove(&ledger)).then_some(*id)
        });
        for id in rounds.collect::<Vec<_>>() {
            self.end_if_told(now, id);
        }
    }

    fn end_if_told(&mut self, now: Duration, id: RoundId) {
        if self.rounds.get(&id).is_none_or(|round| round.telling.as_ref().is_none_or(|t| !t.is_empty())) {
            return;
        }
        let round = self.rounds.remove(&id).expect("it was just there");
        let phases = [
            (measure::Stage::Read, round.times.read),
            (measure::Stage::Build, round.times.build),
            (measure::Stage::Upload, round.times.upload),
            (measure::Stage::Commit, round.committed_at.saturating_sub(round.uploaded_at)),
            (measure::Stage::Update, now.saturating_sub(round.committed_at)),
        ];
        for (stage, took) in phases {
            self.phases.record(stage, took);
        }
        self.cycles.record(now.saturating_sub(round.began));
    }

    /// Determines which stage the others wait for.
    pub(super) fn measure(&mut self, now: Duration) {
        let (since, before) = self.usage_before;
        let elapsed = now.saturating_sub(since);
        if elapsed < USAGE_WINDOW {
            return;
        }
        self.usage.set(measure::Stage::Update, self.updates.saturated(now));
        self.limit = self.usage.largest_since(&before, elapsed, self.settings.objects_max);
        self.usage_before = (now, self.usage);
    }
}
