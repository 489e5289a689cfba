//! Updates of last reconciled entries (LRE): which bookie is to be told what, and when.
//!
//! # Data flow
//! ```text
//! commit reply ─► advance ─► what each member lacks ─► ready set of its bookie ─► request with all that is ready
//! answer ─► register of (bookie, ledger) ─► reconciled at the ack quorum of every ensemble | behind: send from there
//! ```
//!
//! # Invariants
//! 1. A bookie is only told of entries up to the ledger's goal, and the goal is what a commit reply or the catalogue said (T2, T7).
//! 2. Extents go to a bookie without a gap behind its register (T15).
//! 3. At most one live request carries a ledger to a bookie. A batch that is overdue no longer counts: its ledgers travel
//!    again, each alone, so that one that hangs delays no other.
//! 4. A ledger fails alone; a bookie that does not answer has few requests in flight, and in time one.
//! 5. One value waits per (bookie, ledger): a newer goal replaces an older one (T8).
//! 6. A bookie gets extents only after it said what it has: extents from the first entry on would replace those of another
//!    catalogue (T2). Nobody has been asked before it is known which bookies there are (T15).
//!
//! 7. A gap in the catalogue is there for as long as a member needs what is missing, also while that member is away: it comes back without it. It is
//!    closed by the catalogue, or when no ensemble has that member any more.
//! 8. Extents are sent within [`EXTENTS_KEPT_FOR`] after the catalogue had them; later it is asked again. So bookies are
//!    seldom told of objects whose extents others took over.
//!
//! # Limits     requests: [`UpdateSettings::in_flight_max`]; ledgers in one: [`UpdateSettings::ledgers_per_request`]; extents kept
//! for a ledger: [`EXTENTS_KEPT_MAX`], the rest comes from the catalogue

mod dispatch;
mod member;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bindery_types::tier::{Reconciliation, TierExtent};
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata};

use self::dispatch::{Peer, Sent};
use self::member::{Member, Need, Register, State};
use super::quorum;

/// Extents of one ledger that are kept for members that lack them.
pub const EXTENTS_KEPT_MAX: usize = 256;

/// How long extents are kept: bookies that take longer are told what the catalogue says by then.
pub use bindery_types::tier::EXTENTS_KEPT_FOR;

/// Extents in one request.
const EXTENTS_PER_REQUEST_MAX: usize = 4096;

/// How many ledgers travel in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateMode {
    /// As many as wait for the bookie.
    Batched,
    /// One, as systems do whose updates are commands of a replicated log.
    Single,
}

/// Limits of updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateSettings {
    /// Requests in flight to all bookies together.
    pub in_flight_max: usize,
    /// A request that has no answer by then failed; so did a ledger's update that has no ack quorum by then.
    pub timeout: Duration,
    /// The ledgers of a batch without an answer by then travel alone, and new ledgers do without that bookie's registers.
    pub overdue_after: Duration,
    /// Ledgers in one request.
    pub ledgers_per_request: usize,
    /// One or many.
    pub mode: UpdateMode,
}

impl Default for UpdateSettings {
    fn default() -> UpdateSettings {
        UpdateSettings {
            in_flight_max: 32,
            timeout: Duration::from_secs(10),
            overdue_after: Duration::from_secs(2),
            ledgers_per_request: 512,
            mode: UpdateMode::Batched,
        }
    }
}

/// What a bookie makes of updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// It takes them.
    Reconciles,
    /// It does not know them, and keeps everything: nothing is missing if it is not told.
    KeepsEverything,
    /// It is not registered at the moment.
    Absent,
}

/// A request's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A request to one bookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateRequest {
    /// Returned with the answer.
    pub id: RequestId,
    /// The bookie.
    pub bookie: BookieId,
    /// Each ledger once.
    pub ledgers: Vec<Reconciliation>,
}

/// What a bookie made of one ledger of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateStatus {
    /// The register is at least what was sent.
    Done,
    /// The extents begin behind the register + 1: send from there.
    Behind,
    /// The bookie holds nothing of the ledger.
    NoLedger,
    /// Not now.
    Busy,
    /// Anything else.
    Failed,
}

/// One ledger of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateResult {
    /// The ledger.
    pub ledger: LedgerId,
    /// How it went.
    pub status: UpdateStatus,
    /// The register now.
    pub register: Option<EntryId>,
    /// Whether the register survives a crash of the bookie.
    pub is_durable: bool,
}

/// Why a request as a whole has no results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestError {
    /// The bookie has too many requests.
    Busy,
    /// Anything else, for the log.
    Failed(String),
}

/// News for the rest of the tierer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// All registers of the ledger that can be known now are known.
    Asked(LedgerId),
    /// The goal is durable at the ack quorum of every ensemble.
    Reconciled {
        /// The ledger.
        ledger: LedgerId,
        /// Since the goal was set.
        took: Duration,
    },
    /// It is not, and the time for it is over. Stragglers are told later.
    Late(LedgerId),
    /// A bookie is ahead of the goal: another tierer's commit, or a catalogue that was put back (T2).
    Ahead {
        /// The ledger.
        ledger: LedgerId,
        /// Who says so.
        bookie: BookieId,
        /// Its register.
        register: EntryId,
    },
    /// Extents from `from` on are wanted from the catalogue.
    WantsExtents {
        /// The ledger.
        ledger: LedgerId,
        /// The first entry.
        from: EntryId,
    },
    /// The catalogue has no extent with this entry, and goes on behind it.
    Gap {
        /// The ledger.
        ledger: LedgerId,
        /// The first entry that is missing.
        first: EntryId,
        /// The first entry behind the gap.
        next: EntryId,
    },
    /// It has one by now, or no bookie of the ledger needs it any more.
    GapClosed(LedgerId),
    /// A bookie said that it has too much to do.
    Pressure,
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpdateCounts {
    /// Requests sent.
    pub requests: u64,
    /// Ledgers in them.
    pub ledgers: u64,
    /// Ledgers of requests that were refused or failed.
    pub failures: u64,
    /// Requests without an answer in time.
    pub timeouts: u64,
    /// Requests that were overdue.
    pub overdue: u64,
    /// Ledger updates that reached their ack quorums.
    pub reconciled: u64,
    /// Ledger updates that did not, in time.
    pub late: u64,
    /// Answers that named a register below what was known to begin there (T15).
    pub behind: u64,
}

/// A ledger whose members are to be told.
#[derive(Debug, Clone)]
struct Target {
    metadata: Arc<LedgerMetadata>,
    goal: Option<EntryId>,
    since: Duration,
    is_reconciled: bool,
    is_late: bool,
    /// Contiguous, ending at or below the goal.
    extents: VecDeque<Kept>,
    wants_extents: bool,
    /// When the catalogue was asked last, and for extents from which entry on.
    asked_at: Duration,
    asked_from: EntryId,
    /// It had none with that entry, and others behind it, and a member needs that entry.
    has_gap: bool,
    /// Nothing is sent before this (after the catalogue failed).
    no_extents_before: Duration,
    is_asking: bool,
    members: BTreeMap<BookieId, Member>,
}

/// An extent for members that lack it.
#[derive(Debug, Clone)]
struct Kept {
    extent: TierExtent,
    /// The catalogue had it at this time, or later.
    at: Duration,
}

impl Target {
    /// The need of a member of this ability. A bookie that is away, and said what it has, needs what is missing in a gap as if it were here
    /// (invariant 7).
    fn need(&self, member: &Member, ability: Ability) -> Need {
        let has_said = matches!(member.register, Register::At(_));
        let is_away = ability == Ability::Absent && self.has_gap && has_said;
        member.need(self, if is_away { Ability::Reconciles } else { ability })
    }

    /// Whether a member may need extents that are not here.
    fn lacks_extents(&self, peers: &BTreeMap<BookieId, Peer>) -> bool {
        self.members.iter().any(|(bookie, member)| {
            let ability = peers.get(bookie).map_or(Ability::Absent, |peer| peer.ability);
            // What is kept is behind the gap.
            self.need(member, ability) != Need::Nothing
        })
    }

    /// Invariant 8.
    fn forget_old_extents(&mut self, now: Duration) {
        while self.extents.front().is_some_and(|kept| kept.at + EXTENTS_KEPT_FOR < now) {
            self.extents.pop_front();
        }
    }
}

/// All updates of a tierer.
#[derive(Debug, Clone)]
pub struct Updates {
    settings: UpdateSettings,
    targets: BTreeMap<LedgerId, Target>,
    /// Ledgers whose registers are being asked for.
    asking: BTreeSet<LedgerId>,
    peers: BTreeMap<BookieId, Peer>,
    /// Which bookies take updates was said at least once. Before, nobody has asked anything, whoever seems absent.
    knows_bookies: bool,
    requests: BTreeMap<RequestId, Sent>,
    next_request: u64,
    /// The peer that sent last: the next one has its turn.
    turn: Option<BookieId>,
    /// Members to be tried again, by time.
    waiting: BTreeSet<(Duration, LedgerId, BookieId)>,
    /// Goals by the time at which they are late.
    late: BTreeSet<(Duration, LedgerId)>,
    counts: UpdateCounts,
    /// Since when requests were at their limit with more to send, and for how long before.
    saturated_since: Option<Duration>,
    saturated: Duration,
}

impl Updates {
    /// Nothing to tell yet.
    pub fn new(settings: UpdateSettings) -> Updates {
        Updates {
            settings,
            targets: BTreeMap::new(),
            asking: BTreeSet::new(),
            peers: BTreeMap::new(),
            knows_bookies: false,
            requests: BTreeMap::new(),
            next_request: 0,
            turn: None,
            waiting: BTreeSet::new(),
            late: BTreeSet::new(),
            counts: UpdateCounts::default(),
            saturated_since: None,
            saturated: Duration::ZERO,
        }
    }

    /// Everything that decides what comes next.
    #[cfg(test)]
    pub fn essence(&self) -> impl std::fmt::Debug + '_ {
        let of_ledgers = (&self.targets, &self.asking, &self.waiting, &self.late);
        (of_ledgers, &self.peers, self.knows_bookies, &self.requests, self.next_request, &self.turn)
    }

    /// Counts since the start.
    pub fn counts(&self) -> UpdateCounts {
        self.counts
    }

    /// Bookies that are registered and did not answer the last requests. Others may reach them.
    pub fn unreachable(&self) -> impl Iterator<Item = &BookieId> + '_ {
        self.peers.iter().filter(|(_, peer)| peer.is_unreachable()).map(|(bookie, _)| bookie)
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// How long requests have been at their limit with more to send.
    pub fn saturated(&self, now: Duration) -> Duration {
        self.saturated + self.saturated_since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// Whether nothing of the ledger is left to be told to bookies that can be told, or only to bookies that failed several
    /// times.
    pub fn is_settled(&self, ledger: LedgerId) -> bool {
        self.targets.get(&ledger).is_none_or(|target| {
            !target.is_asking
                && !target.wants_extents
                && (target.goal.is_none() || target.is_reconciled || target.is_late)
                && target.members.iter().all(|(bookie, member)| {
                    let is_given_up = member.attempts >= STRAGGLER_ATTEMPTS;
                    match member.need(target, self.ability(bookie)) {
                        Need::Nothing => !matches!(member.state, State::InFlight(_)),
                        _ => is_given_up,
                    }
                })
        })
    }

    /// The registers that are known of a ledger.
    pub fn registers(&self, ledger: LedgerId) -> Vec<(BookieId, Option<EntryId>)> {
        let members = self.targets.get(&ledger).into_iter().flat_map(|target| &target.members);
        let known = members.filter_map(|(bookie, member)| match member.register {
            Register::At(register) => Some((bookie.clone(), register)),
            Register::Unknown | Register::NoLedger => None,
        });
        known.collect()
    }

    /// The highest register that is known of a ledger.
    pub fn register_max(&self, ledger: LedgerId) -> Option<EntryId> {
        self.registers(ledger).into_iter().filter_map(|(_, register)| register).max()
    }

    /// Which bookies take updates. Those that are not named are absent.
    pub fn set_bookies(
        &mut self,
        now: Duration,
        abilities: &BTreeMap<BookieId, Ability>,
        reports: &mut Vec<Report>,
    ) {
        let mut changed = BTreeSet::new();
        for (bookie, ability) in abilities {
            let peer = self.peers.entry(bookie.clone()).or_default();
            if peer.ability != *ability {
                peer.change(*ability);
                changed.insert(bookie.clone());
            }
        }
        for (bookie, peer) in &mut self.peers {
            if !abilities.contains_key(bookie) && peer.ability != Ability::Absent {
                peer.change(Ability::Absent);
                changed.insert(bookie.clone());
            }
        }
        let is_first = !std::mem::replace(&mut self.knows_bookies, true);
        if changed.is_empty() && !is_first {
            return;
        }
        let ledgers: Vec<LedgerId> = self.targets.keys().copied().collect();
        for ledger in ledgers {
            if is_first || self.targets[&ledger].members.keys().any(|member| changed.contains(member)) {
                self.refresh(now, ledger, reports);
            }
        }
    }

    /// The ledger's metadata, up to date: its members are those of ensembles that hold entries up to `last`.
    pub fn know(&mut self, now: Duration, ledger: LedgerId, metadata: &Arc<LedgerMetadata>, last: EntryId) {
        let target = self.targets.entry(ledger).or_insert_with(|| Target {
            metadata: metadata.clone(),
            goal: None,
            since: now,
            is_reconciled: false,
            is_late: false,
            extents: VecDeque::new(),
            wants_extents: false,
            asked_at: Duration::ZERO,
            asked_from: EntryId::FIRST,
            has_gap: false,
            no_extents_before: Duration::ZERO,
            is_asking: false,
            members: BTreeMap::new(),
        });
        target.metadata = metadata.clone();
        let members = quorum::members(metadata, last);
        let gone: Vec<BookieId> =
            target.members.keys().filter(|old| !members.contains(*old)).cloned().collect();
        for bookie in gone {
            target.members.remove(&bookie);
            if let Some(peer) = self.peers.get_mut(&bookie) {
                peer.take(ledger);
            }
        }
        for bookie in members {
            self.peers.entry(bookie.clone()).or_default();
            target.members.entry(bookie).or_insert_with(Member::new);
        }
        if target.has_gap
            && let Some(bookie) = target.members.keys().next()
        {
            // Perhaps the bookie left that needed what is missing.
            self.waiting.insert((now, ledger, bookie.clone()));
        }
    }

    /// Asks all members for their registers.
    ///
    /// # Panics
    /// When the ledger is not known.
    pub fn ask(&mut self, now: Duration, ledger: LedgerId, reports: &mut Vec<Report>) {
        let target = self.targets.get_mut(&ledger).expect("a ledger is known before its registers are read");
        target.is_asking = true;
        self.asking.insert(ledger);
        for (bookie, member) in &mut target.members {
            let is_absent = self.peers.get(bookie).is_none_or(|peer| peer.ability == Ability::Absent);
            // One that is away cannot say it again.
            let is_kept = target.has_gap && is_absent;
            if !matches!(member.state, State::InFlight(_)) && !is_kept {
                member.register = Register::Unknown;
                member.attempts = 0;
            }
        }
        self.refresh(now, ledger, reports);
    }

    /// Entries up to `goal` are committed, the last of them in `extents`, which may be empty: then the catalogue is asked. The
    /// catalogue had these extents at `at`, or later. A goal below the one before changes nothing.
    ///
    /// # Panics
    /// When the ledger is not known.
    pub fn advance(
        &mut self,
        now: Duration,
        ledger: LedgerId,
        goal: EntryId,
        (extents, at): (&[TierExtent], Duration),
        reports: &mut Vec<Report>,
    ) {
        let target = self.targets.get_mut(&ledger).expect("a ledger advances after it is known");
        if target.goal >= Some(goal) {
            return;
        }
        self.late.remove(&(target.since + self.settings.timeout, ledger));
        target.goal = Some(goal);
        target.since = now;
        (target.is_reconciled, target.is_late) = (false, false);
        self.late.insert((now + self.settings.timeout, ledger));
        for extent in extents {
            let follows =
                target.extents.back().is_none_or(|last| last.extent.last.get() + 1 == extent.first.get());
            if !follows {
                target.extents.clear();
            }
            target.extents.push_back(Kept { extent: *extent, at });
        }
        if target.extents.back().is_some_and(|last| last.extent.last != goal) {
            target.extents.clear();
        }
        while target.extents.len() > EXTENTS_KEPT_MAX {
            target.extents.pop_front();
        }
        for member in target.members.values_mut() {
            // It may hold entries by now.
            if member.register == Register::NoLedger {
                member.register = Register::Unknown;
            }
        }
        self.refresh(now, ledger, reports);
    }

    /// The catalogue's answer to [`Report::WantsExtents`]: contiguous, perhaps not up to the goal; `None` when it did not
    /// answer.
    pub fn extents(
        &mut self,
        now: Duration,
        ledger: LedgerId,
        extents: Option<Vec<TierExtent>>,
        reports: &mut Vec<Report>,
    ) {
        let Some(target) = self.targets.get_mut(&ledger) else { return };
        target.wants_extents = false;
        let pause = match extents {
            Some(extents) if !extents.is_empty() => {
                // The catalogue may have gone on.
                target.goal = target.goal.max(extents.last().map(|last| last.last));
                let at = target.asked_at;
                let next = extents[0].first;
                // Bookies that know what is behind a gap take these.
                target.extents = extents.into_iter().map(|extent| Kept { extent, at }).collect();
                let is_gap = next > target.asked_from;
                match (is_gap, std::mem::replace(&mut target.has_gap, is_gap)) {
                    (true, false) => reports.push(Report::Gap { ledger, first: target.asked_from, next }),
                    (false, true) => reports.push(Report::GapClosed(ledger)),
                    _ => {}
                }
                // An object has to come back, and the catalogue has to be rebuilt: that takes a while.
                if is_gap { RETRY_MAX } else { PAGE_PAUSE }
            }
            _ => RETRY_MIN,
        };
        target.no_extents_before = now + pause;
        if let Some(bookie) = target.members.keys().next() {
            self.waiting.insert((now + pause, ledger, bookie.clone()));
        }
        self.refresh(now, ledger, reports);
    }

    /// Nothing is told of this ledger any more.
    pub fn forget(&mut self, ledger: LedgerId) {
        let Some(target) = self.targets.remove(&ledger) else { return };
        self.asking.remove(&ledger);
        self.late.remove(&(target.since + self.settings.timeout, ledger));
        for (bookie, member) in target.members {
            if let Some(peer) = self.peers.get_mut(&bookie) {
                peer.take(ledger);
            }
            if let State::Waiting(at) = member.state {
                self.waiting.remove(&(at, ledger, bookie));
            }
        }
    }

    fn ability(&self, bookie: &BookieId) -> Ability {
        self.peers.get(bookie).map_or(Ability::Absent, |peer| peer.ability)
    }

    /// Puts the members of a ledger where they belong: into the ready set of their bookie, or nowhere.
    fn refresh(&mut self, now: Duration, ledger: LedgerId, reports: &mut Vec<Report>) {
        let Some(target) = self.targets.get_mut(&ledger) else { return };
        target.forget_old_extents(now);
        let mut wanted: Option<EntryId> = None;
        let bookies: Vec<BookieId> = target.members.keys().cloned().collect();
        for bookie in bookies {
            let peer = self.peers.entry(bookie.clone()).or_default();
            let member = &target.members[&bookie];
            let need = match member.state {
                State::InFlight(_) | State::Waiting(_) => continue,
                State::Idle => target.need(member, peer.ability),
            };
            peer.take(ledger);
            match need {
                Need::Nothing => {}
                Need::Request if peer.ability == Ability::Absent => {}
                Need::Request => peer.put(ledger, member.is_suspect),
                Need::Extents(from) => wanted = Some(wanted.map_or(from, |other| other.min(from))),
            }
        }
        if target.has_gap && !target.lacks_extents(&self.peers) {
            // The bookie left the ensembles, or knows the entries from elsewhere.
            target.has_gap = false;
            reports.push(Report::GapClosed(ledger));
        }
        if let Some(from) = wanted
            && !target.wants_extents
            && now >= target.no_extents_before
        {
            (target.wants_extents, target.asked_at, target.asked_from) = (true, now, from);
            reports.push(Report::WantsExtents { ledger, from });
        }
        self.judge(now, ledger, reports);
    }

    /// Whether the ledger's update is complete, and whether its registers are known.
    fn judge(&mut self, now: Duration, ledger: LedgerId, reports: &mut Vec<Report>) {
        let Some(target) = self.targets.get_mut(&ledger) else { return };
        let peers = &self.peers;
        let ability = |bookie: &BookieId| peers.get(bookie).map_or(Ability::Absent, |peer| peer.ability);
        if target.is_asking {
            let is_answered = self.knows_bookies
                && target.members.iter().all(|(bookie, member)| {
                    ability(bookie) != Ability::Reconciles
                        || member.register != Register::Unknown
                        || member.attempts > 0
                        || peers.get(bookie).is_some_and(Peer::is_unwell)
                });
            if is_answered {
                target.is_asking = false;
                self.asking.remove(&ledger);
                reports.push(Report::Asked(ledger));
            }
        }
        let Some(goal) = target.goal.filter(|_| !target.is_reconciled) else { return };
        let is_told = |bookie: &BookieId| {
            ability(bookie) == Ability::KeepsEverything
                || target.members.get(bookie).is_some_and(|member| match member.register {
                    Register::At(register) => register >= Some(goal),
                    Register::NoLedger => true,
                    Register::Unknown => false,
                })
        };
        if quorum::is_reconciled(&target.metadata, goal, is_told) {
            target.is_reconciled = true;
            self.late.remove(&(target.since + self.settings.timeout, ledger));
            self.counts.reconciled += 1;
            reports.push(Report::Reconciled { ledger, took: now.saturating_sub(target.since) });
        }
    }
}

/// The first pause before something is tried again.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// The longest.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Between two looks into the catalogue for the extents of one ledger.
const PAGE_PAUSE: Duration = Duration::from_millis(100);
/// After so many failures of a member its ledger can be left alone.
const STRAGGLER_ATTEMPTS: u32 = 3;

fn backoff(attempts: u32) -> Duration {
    RETRY_MAX.min(RETRY_MIN * 2_u32.pow(attempts.saturating_sub(1).min(10)))
}
