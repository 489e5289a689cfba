//! Requests: which bookie has its turn, what travels together, and what an answer changes.

use std::collections::BTreeSet;
use std::time::Duration;

use bindery_types::tier::Reconciliation;
use bindery_types::{BookieId, EntryId, LedgerId};

use super::member::{Register, State, after};
use super::{
    Ability, EXTENTS_KEPT_MAX, EXTENTS_PER_REQUEST_MAX, Report, RequestError, RequestId, UpdateMode,
    UpdateRequest, UpdateResult, UpdateStatus, Updates, backoff,
};

/// Batches in flight to one bookie: the second collects while the first is journaled.
const BATCHES_PER_BOOKIE: usize = 2;
/// Single ledgers in flight to one bookie beside them, for those of an overdue batch.
const SUSPECTS_PER_BOOKIE: usize = 2;
/// The share of all requests that bookies which failed have together.
const UNWELL_SHARE: usize = 4;

/// After so many requests in a row without an answer a registered bookie counts as one that this tierer does not reach.
const UNREACHABLE_AFTER: u32 = 3;

/// A bookie.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub ability: Ability,
    ready: BTreeSet<LedgerId>,
    /// Those that travel alone.
    suspects: BTreeSet<LedgerId>,
    /// Behind the last ledger that was sent: the next batch begins here.
    cursor: Option<LedgerId>,
    batches: usize,
    singles: usize,
    /// Requests in flight that are overdue.
    overdue: usize,
    /// Requests in a row that failed.
    failures: u32,
    /// Those of them in which it did not say that it has too much to do.
    unanswered: u32,
    not_before: Duration,
}

impl Default for Peer {
    fn default() -> Peer {
        Peer {
            ability: Ability::Absent,
            ready: BTreeSet::new(),
            suspects: BTreeSet::new(),
            cursor: None,
            batches: 0,
            singles: 0,
            overdue: 0,
            failures: 0,
            unanswered: 0,
            not_before: Duration::ZERO,
        }
    }
}

impl Peer {
    pub fn change(&mut self, ability: Ability) {
        self.ability = ability;
        (self.failures, self.unanswered, self.not_before) = (0, 0, Duration::ZERO);
        if ability != Ability::Reconciles {
            self.ready.clear();
            self.suspects.clear();
        }
    }

    pub fn put(&mut self, ledger: LedgerId, is_suspect: bool) {
        match is_suspect {
            true => self.suspects.insert(ledger),
            false => self.ready.insert(ledger),
        };
    }

    pub fn take(&mut self, ledger: LedgerId) {
        self.ready.remove(&ledger);
        self.suspects.remove(&ledger);
    }

    /// Whether it does not answer at the moment.
    pub fn is_unwell(&self) -> bool {
        self.failures > 0 || self.overdue > 0
    }

    /// Whether it is registered, and this tierer does not reach it.
    pub fn is_unreachable(&self) -> bool {
        self.ability != Ability::Absent && self.unanswered >= UNREACHABLE_AFTER
    }

    fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.suspects.is_empty()
    }

    fn in_flight(&self) -> usize {
        self.batches + self.singles
    }

    /// Whether it may send now: `Some(true)` a batch, `Some(false)` one ledger.
    fn may_send(&self, now: Duration, mode: UpdateMode, singles_max: usize) -> Option<bool> {
        if now < self.not_before || !self.has_work() || (self.failures > 0 && self.in_flight() > 0) {
            return None;
        }
        match mode {
            UpdateMode::Batched if !self.ready.is_empty() && self.batches < BATCHES_PER_BOOKIE => Some(true),
            UpdateMode::Batched if !self.suspects.is_empty() && self.singles < SUSPECTS_PER_BOOKIE => {
                Some(false)
            }
            UpdateMode::Batched => None,
            UpdateMode::Single => (self.singles < singles_max).then_some(false),
        }
    }

    /// The next ledgers, each leaving its set.
    fn next(&mut self, is_batch: bool, most: usize) -> Vec<LedgerId> {
        if !is_batch {
            let next = self.suspects.pop_first().or_else(|| self.next(true, 1).pop());
            return next.into_iter().collect();
        }
        let behind = self
            .cursor
            .map_or(LedgerId::MIN, |last| LedgerId::new(last.get().saturating_add(1)).expect("above an id"));
        let chosen: Vec<LedgerId> =
            self.ready.range(behind..).chain(self.ready.range(..behind)).take(most).copied().collect();
        for ledger in &chosen {
            self.ready.remove(ledger);
        }
        self.cursor = chosen.last().copied().or(self.cursor);
        chosen
    }
}

/// A request in flight.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    bookie: BookieId,
    /// Each with the first and the last entry of the extents that were sent; none asked for the register.
    ledgers: Vec<(LedgerId, Option<(EntryId, EntryId)>)>,
    at: Duration,
    is_batch: bool,
    is_overdue: bool,
}

impl Updates {
    /// Sends what may be sent now.
    pub fn dispatch(&mut self, now: Duration, requests: &mut Vec<UpdateRequest>) {
        let mut is_full = false;
        while let Some((bookie, is_batch)) = self.next_peer(now) {
            if self.requests.len() >= self.settings.in_flight_max {
                is_full = true;
                break;
            }
            self.turn = Some(bookie.clone());
            if let Some(request) = self.request(now, bookie, is_batch) {
                requests.push(request);
            }
        }
        match (is_full, self.saturated_since) {
            (true, None) => self.saturated_since = Some(now),
            (false, Some(since)) => {
                self.saturated += now.saturating_sub(since);
                self.saturated_since = None;
            }
            _ => {}
        }
    }

    /// Whose turn it is, by bookie after the one that sent last.
    fn next_peer(&self, now: Duration) -> Option<(BookieId, bool)> {
        let with_work = self.peers.values().filter(|peer| peer.has_work()).count();
        let singles_max = match with_work {
            0 | 1 => self.settings.in_flight_max,
            _ => self.settings.in_flight_max.div_ceil(2),
        };
        let of_unwell: usize =
            self.peers.values().filter(|peer| peer.failures > 0).map(Peer::in_flight).sum();
        let unwell_max = (self.settings.in_flight_max / UNWELL_SHARE).max(1);
        let may_send = |(bookie, peer): (&BookieId, &Peer)| {
            if peer.failures > 0 && of_unwell >= unwell_max {
                return None;
            }
            peer.may_send(now, self.settings.mode, singles_max).map(|is_batch| (bookie.clone(), is_batch))
        };
        let is_behind = |bookie: &BookieId| self.turn.as_ref().is_none_or(|turn| bookie > turn);
        let behind = self.peers.iter().filter(|(bookie, _)| is_behind(bookie)).find_map(may_send);
        behind.or_else(|| self.peers.iter().filter(|(bookie, _)| !is_behind(bookie)).find_map(may_send))
    }

    fn request(&mut self, now: Duration, bookie: BookieId, is_batch: bool) -> Option<UpdateRequest> {
        let most = if is_batch { self.settings.ledgers_per_request } else { 1 };
        let peer = self.peers.get_mut(&bookie).expect("it was just found");
        let chosen = peer.next(is_batch, most);
        let id = RequestId(self.next_request);
        let (mut ledgers, mut sent, mut extents_left) = (Vec::new(), Vec::new(), EXTENTS_PER_REQUEST_MAX);
        for ledger in chosen {
            if extents_left == 0 {
                peer.put(ledger, !is_batch);
                continue;
            }
            let Some(target) = self.targets.get_mut(&ledger) else { continue };
            // Without them the request asks the bookie for its register, and the ledger needs extents from the
            // catalogue then.
            target.forget_old_extents(now);
            let created_ms = target.metadata.created_ms;
            let Some(member) = target.members.get(&bookie) else { continue };
            let extents = member.extents(target, extents_left.min(EXTENTS_KEPT_MAX));
            extents_left -= extents.len();
            let range = extents.first().zip(extents.last()).map(|(first, last)| (first.first, last.last));
            let last = range.map(|(_, last)| last);
            assert!(
                last <= target.goal,
                "updates invariant 1: ledger {ledger} is told {last:?} of {:?}",
                target.goal
            );
            let member = target.members.get_mut(&bookie).expect("it was just there");
            member.state = State::InFlight(id);
            sent.push((ledger, range));
            ledgers.push(Reconciliation { ledger, last, extents, created_ms });
        }
        if ledgers.is_empty() {
            return None;
        }
        match is_batch {
            true => peer.batches += 1,
            false => peer.singles += 1,
        }
        self.next_request += 1;
        self.counts.requests += 1;
        self.counts.ledgers += ledgers.len() as u64;
        self.requests
            .insert(id, Sent { bookie: bookie.clone(), ledgers: sent, at: now, is_batch, is_overdue: false });
        Some(UpdateRequest { id, bookie, ledgers })
    }

    /// An answer. One to a request that was given up is ignored.
    pub fn on_answer(
        &mut self,
        now: Duration,
        id: RequestId,
        answer: Result<Vec<UpdateResult>, RequestError>,
        reports: &mut Vec<Report>,
    ) {
        let Some(sent) = self.end(id) else { return };
        match answer {
            Ok(results) => {
                let peer = self.peers.entry(sent.bookie.clone()).or_default();
                (peer.failures, peer.unanswered, peer.not_before) = (0, 0, Duration::ZERO);
                let mut missing: BTreeSet<LedgerId> =
                    sent.ledgers.iter().map(|(ledger, _)| *ledger).collect();
                for result in results {
                    if missing.remove(&result.ledger) {
                        self.on_result(now, id, &sent, result, reports);
                    }
                }
                for ledger in missing {
                    self.fail(now, id, ledger, &sent.bookie, reports);
                }
            }
            Err(error) => {
                let is_busy = error == RequestError::Busy;
                if is_busy {
                    reports.push(Report::Pressure);
                }
                self.fail_all(now, id, &sent, is_busy, reports);
            }
        }
    }

    fn on_result(
        &mut self,
        now: Duration,
        id: RequestId,
        sent: &Sent,
        result: UpdateResult,
        reports: &mut Vec<Report>,
    ) {
        let ledger = result.ledger;
        let Some(target) = self.targets.get_mut(&ledger) else { return };
        let goal = target.goal;
        let Some(member) = target.members.get_mut(&sent.bookie) else { return };
        let is_live = member.state == State::InFlight(id);
        let register = match (result.status, result.is_durable) {
            (UpdateStatus::NoLedger, _) => Register::NoLedger,
            (UpdateStatus::Done, true) => Register::At(result.register),
            (UpdateStatus::Behind, _) => {
                self.counts.behind += 1;
                Register::At(result.register)
            }
            (UpdateStatus::Busy, _) => {
                reports.push(Report::Pressure);
                return self.fail(now, id, ledger, &sent.bookie, reports);
            }
            (UpdateStatus::Done, false) | (UpdateStatus::Failed, _) => {
                return self.fail(now, id, ledger, &sent.bookie, reports);
            }
        };
        // A late answer may be older than one that came since.
        member.register = match (member.register, register, is_live) {
            (Register::At(known), Register::At(told), false) => Register::At(known.max(told)),
            (known, Register::NoLedger, false) => known,
            _ => register,
        };
        let sent_range = sent.ledgers.iter().find(|(of, _)| *of == ledger).and_then(|(_, range)| *range);
        // Sending the same again would have the same answer.
        let is_useless = match (result.status, sent_range) {
            (UpdateStatus::Behind, Some((first, _))) => after(result.register) >= first,
            (UpdateStatus::Behind, None) => true,
            (UpdateStatus::Done, Some((_, last))) => result.register < Some(last),
            _ => false,
        };
        if is_useless {
            return self.fail(now, id, ledger, &sent.bookie, reports);
        }
        (member.attempts, member.is_suspect) = (0, false);
        if is_live {
            member.state = State::Idle;
        }
        if let Register::At(Some(register)) = member.register
            && Some(register) > goal
        {
            reports.push(Report::Ahead { ledger, bookie: sent.bookie.clone(), register });
        }
        self.refresh(now, ledger, reports);
    }

    /// Takes a request off the books.
    fn end(&mut self, id: RequestId) -> Option<Sent> {
        let sent = self.requests.remove(&id)?;
        if let Some(peer) = self.peers.get_mut(&sent.bookie) {
            match sent.is_batch {
                true => peer.batches -= 1,
                false => peer.singles -= 1,
            }
            peer.overdue -= usize::from(sent.is_overdue);
        }
        Some(sent)
    }

    fn fail_all(
        &mut self,
        now: Duration,
        id: RequestId,
        sent: &Sent,
        is_busy: bool,
        reports: &mut Vec<Report>,
    ) {
        let peer = self.peers.entry(sent.bookie.clone()).or_default();
        // Of one ledger among many it says nothing about the bookie.
        if sent.is_batch || self.settings.mode == UpdateMode::Single {
            peer.failures += 1;
            peer.unanswered = if is_busy { 0 } else { peer.unanswered + 1 };
            peer.not_before = now + backoff(peer.failures) / 10;
        }
        for (ledger, _) in &sent.ledgers {
            self.fail(now, id, *ledger, &sent.bookie, reports);
        }
    }

    /// One ledger at one bookie, which is tried again later.
    fn fail(
        &mut self,
        now: Duration,
        id: RequestId,
        ledger: LedgerId,
        bookie: &BookieId,
        reports: &mut Vec<Report>,
    ) {
        self.counts.failures += 1;
        let Some(target) = self.targets.get_mut(&ledger) else { return };
        let Some(member) = target.members.get_mut(bookie) else { return };
        if member.state != State::InFlight(id) {
            return;
        }
        member.attempts += 1;
        let at = now + backoff(member.attempts);
        member.state = State::Waiting(at);
        self.waiting.insert((at, ledger, bookie.clone()));
        self.judge(now, ledger, reports);
    }

    /// Lets time pass: overdue batches, requests without an answer, late goals, what is to be tried again. The requests in
    /// `given_up` need no answer any more.
    pub fn on_time(&mut self, now: Duration, given_up: &mut Vec<RequestId>, reports: &mut Vec<Report>) {
        let overdue: Vec<RequestId> = self
            .requests
            .iter()
            .filter(|(_, sent)| !sent.is_overdue && now >= sent.at + self.settings.overdue_after)
            .map(|(id, _)| *id)
            .collect();
        for id in &overdue {
            self.counts.overdue += 1;
            let sent = self.requests.get_mut(id).expect("it was just listed");
            sent.is_overdue = true;
            let (bookie, ledgers) = (sent.bookie.clone(), sent.ledgers.clone());
            let is_to_split = sent.is_batch && ledgers.len() > 1;
            if let Some(peer) = self.peers.get_mut(&bookie) {
                peer.overdue += 1;
            }
            for (ledger, _) in ledgers.into_iter().filter(|_| is_to_split) {
                let member = self.targets.get_mut(&ledger).and_then(|target| target.members.get_mut(&bookie));
                if let Some(member) = member.filter(|member| member.state == State::InFlight(*id)) {
                    (member.state, member.is_suspect) = (State::Idle, true);
                    self.refresh(now, ledger, reports);
                }
            }
        }
        let timeout = self.settings.timeout;
        let ended: Vec<RequestId> =
            self.requests.iter().filter(|(_, sent)| now >= sent.at + timeout).map(|(id, _)| *id).collect();
        for id in ended {
            let sent = self.end(id).expect("it was just listed");
            self.counts.timeouts += 1;
            given_up.push(id);
            self.fail_all(now, id, &sent, false, reports);
        }
        if !overdue.is_empty() || !given_up.is_empty() {
            // Some wait for registers of bookies that do not answer.
            let asking: Vec<LedgerId> = self.asking.iter().copied().collect();
            asking.into_iter().for_each(|ledger| self.judge(now, ledger, reports));
        }
        while let Some((at, ledger)) = self.late.first().copied().filter(|(at, _)| *at <= now) {
            self.late.remove(&(at, ledger));
            if let Some(target) = self.targets.get_mut(&ledger) {
                target.is_late = true;
                self.counts.late += 1;
                reports.push(Report::Late(ledger));
            }
        }
        while let Some(first) = self.waiting.first().filter(|(at, ..)| *at <= now).cloned() {
            self.waiting.remove(&first);
            let (at, ledger, bookie) = first;
            let Some(target) = self.targets.get_mut(&ledger) else { continue };
            if let Some(member) = target.members.get_mut(&bookie)
                && member.state == State::Waiting(at)
            {
                member.state = State::Idle;
            }
            self.refresh(now, ledger, reports);
        }
    }

    /// When [`on_time`](Self::on_time) or [`dispatch`](Self::dispatch) has something to do.
    pub fn wake_at(&self, now: Duration) -> Option<Duration> {
        let of_requests = self.requests.values().map(|sent| {
            sent.at + if sent.is_overdue { self.settings.timeout } else { self.settings.overdue_after }
        });
        let of_peers = self
            .peers
            .values()
            .filter(|peer| peer.has_work() && peer.not_before > now)
            .map(|peer| peer.not_before);
        let of_late = self.late.first().map(|(at, _)| *at);
        let of_waiting = self.waiting.first().map(|(at, ..)| *at);
        of_requests.chain(of_peers).chain(of_late).chain(of_waiting).min()
    }
}
