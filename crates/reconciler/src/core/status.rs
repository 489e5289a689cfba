//! What a tierer reports of itself.

use std::time::Duration;

use bindery_types::{BookieId, EntryId, LedgerId};

use super::ledger::{Ledger, Stage as LedgerStage};
use super::measure::{Counts, Durations, Phases, Stage};
use super::updates::UpdateCounts;
use super::{Core, Ending};

/// How far the tier lags behind one ledger, or all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lag {
    /// Entries that could be in the tier and are not.
    pub entries: u64,
    /// Their bytes, approximately.
    pub bytes: u64,
    /// How long the oldest of them could have been in the tier.
    pub age: Duration,
}

/// What holds a tierer up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// Nothing: there is room for all that is due.
    None,
    /// This stage, which was busy for this share of the time.
    Stage(Stage, f64),
}

/// The state of a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Everything that may be tiered is.
    Tiered,
    /// It is being looked at for the first time, or bookies are being asked.
    Opening,
    /// It is not due.
    Waiting,
    /// It is due.
    Due,
    /// It is in an object that is not committed.
    Building,
    /// It cannot be read, and is tried again later.
    Failing(String),
    /// A bookie is ahead of the catalogue (T2).
    Stopped {
        /// Which.
        bookie: BookieId,
        /// Its register.
        register: EntryId,
    },
}

/// What is known of a ledger that is not watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unwatched {
    /// It is closed, all of it is in the tier, and its bookies know.
    Done,
    /// Somebody asked for it, and the metadata store has no such ledger.
    Gone,
    /// Another tierer owns it.
    Elsewhere,
    /// It has not had its look yet, or there is no such ledger.
    Unknown,
}

impl Unwatched {
    /// Its name in JSON and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Unwatched::Done => "tiered",
            Unwatched::Gone => "gone",
            Unwatched::Elsewhere => "elsewhere",
            Unwatched::Unknown => "unknown",
        }
    }
}

impl State {
    /// Its name in JSON and tables.
    pub const fn name(&self) -> &'static str {
        match self {
            State::Tiered => "tiered",
            State::Opening => "opening",
            State::Waiting => "waiting",
            State::Due => "due",
            State::Building => "building",
            State::Failing(_) => "failing",
            State::Stopped { .. } => "stopped",
        }
    }
}

/// One ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerStatus {
    /// The ledger.
    pub ledger: LedgerId,
    /// Whether it is closed.
    pub is_sealed: bool,
    /// The last entry that may be tiered.
    pub available: Option<EntryId>,
    /// The last entry in the catalogue.
    pub tiered: Option<EntryId>,
    /// The registers of bookies, as far as they are known.
    pub registers: Vec<(BookieId, Option<EntryId>)>,
    /// How far the tier lags behind it.
    pub lag: Lag,
    /// Its state.
    pub state: State,
}

/// A tierer.
#[derive(Debug, Clone)]
pub struct Status {
    /// Whether it is paused.
    pub is_paused: bool,
    /// Whether it is ending.
    pub is_stopping: bool,
    /// Ledgers that are watched.
    pub watched: u64,
    /// Its name among those that share the ledgers.
    pub name: String,
    /// Tierers that share the ledgers, this one included.
    pub tierers: u64,
    /// Why this one cannot do its work, so that others do its part as well.
    pub unable: Option<String>,
    /// Ledgers of the last listing, and those of them that are this tierer's.
    pub listed: u64,
    /// See `listed`.
    pub own: u64,
    /// Those of its own that are not watched: they wait for a look.
    pub waiting: u64,
    /// In this time each of them had its look, or how long that is taking by now; zero when none waits.
    pub turn: Duration,
    /// There is no room for more ledgers, and none could be left: those that wait are not looked at.
    pub is_crowded: bool,
    /// Ledgers with which it is done.
    pub done: u64,
    /// Ledgers that are stopped (T2).
    pub stopped: u64,
    /// Ledgers that cannot be read.
    pub failing: u64,
    /// All together; the age is the largest.
    pub lag: Lag,
    /// Ages of the lag of those ledgers that have one: the median and the 99th percentile.
    pub lag_age: (Duration, Duration),
    /// The ledgers whose lag is the oldest.
    pub behind: Vec<LedgerStatus>,
    /// What holds it up.
    pub limit: Limit,
    /// The wait between rounds.
    pub interval: Duration,
    /// Objects being built.
    pub objects_building: usize,
    /// Objects that may be built at once.
    pub objects_max: usize,
    /// Rounds under way.
    pub rounds: usize,
    /// Bookies that are registered and did not answer this tierer's last requests.
    pub unreachable: Vec<BookieId>,
    /// Requests to bookies in flight.
    pub updates_in_flight: usize,
    /// Counts.
    pub counts: Counts,
    /// Counts of updates.
    pub updates: UpdateCounts,
    /// How long the phases of rounds took.
    pub phases: Phases,
    /// How long rounds took, from plan to the last update.
    pub cycles: Durations,
    /// How long updates of ledgers took, from the commit to the ack quorum.
    pub lre: Durations,
    /// The last failure of anything.
    pub last_error: Option<String>,
}

/// Ledgers listed in a status.
const BEHIND_MAX: usize = 20;

impl Core {
    /// The state of the tierer.
    pub fn status(&self, now: Duration) -> Status {
        let mut ages = Vec::new();
        let (mut lag, mut stopped, mut failing) = (Lag::default(), 0, 0);
        for (id, ledger) in &self.ledgers {
            stopped += u64::from(ledger.stopped.is_some());
            failing += u64::from(ledger.failures > 0);
            let of_ledger = lag_of(now, ledger, self.entry_bytes());
            if of_ledger.entries > 0 {
                ages.push((of_ledger.age, *id));
                lag.entries += of_ledger.entries;
                lag.bytes += of_ledger.bytes;
                lag.age = lag.age.max(of_ledger.age);
            }
        }
        ages.sort_unstable_by(|a, b| b.cmp(a));
        let at = |share: f64| {
            let index = ((1.0 - share) * ages.len() as f64) as usize;
            ages.get(index.min(ages.len().saturating_sub(1))).map_or(Duration::ZERO, |(age, _)| *age)
        };
        let behind = ages.iter().take(BEHIND_MAX).filter_map(|(_, id)| self.ledger(now, *id));
        Status {
            is_paused: self.is_paused,
            is_stopping: self.ending != Ending::No,
            watched: self.ledgers.len() as u64,
            name: self.team.name().to_owned(),
            tierers: self.team.count() as u64,
            unable: self.unable.clone(),
            listed: self.listed_before.all,
            own: self.listed_before.own,
            waiting: self.visits.waiting(),
            turn: self.visits.turn(now),
            is_crowded: self.is_crowded && self.visits.waiting() > 0,
            done: self.done.count(),
            stopped,
            failing,
            lag,
            lag_age: (at(0.5), at(0.99)),
            behind: behind.collect(),
            limit: match self.has_backlog {
                true => Limit::Stage(self.limit.0, self.limit.1),
                false => Limit::None,
            },
            interval: self.interval.current(),
            objects_building: self.building.len(),
            objects_max: self.settings.objects_max,
            rounds: self.rounds.len(),
            unreachable: self.updates.unreachable().cloned().collect(),
            updates_in_flight: self.updates.in_flight(),
            counts: self.counts,
            updates: self.updates.counts(),
            phases: self.phases.clone(),
            cycles: self.cycles.clone(),
            lre: self.lre_times.clone(),
            last_error: self.last_error.clone(),
        }
    }

    /// The status of one ledger, or `None` when it is not watched ([`unwatched`](Self::unwatched) has its state then).
    pub fn ledger(&self, now: Duration, id: LedgerId) -> Option<LedgerStatus> {
        let ledger = self.ledgers.get(&id)?;
        let state = match &ledger.stopped {
            Some(stopped) => State::Stopped { bookie: stopped.bookie.clone(), register: stopped.register },
            None if matches!(ledger.stage, LedgerStage::Building(_)) => State::Building,
            None if ledger.failures > 0 => State::Failing(ledger.last_error.clone().unwrap_or_default()),
            None if ledger.is_stale => State::Opening,
            None if ledger.tiered.is_some() && ledger.available.is_none() => State::Tiered,
            None if !ledger.is_asked => State::Opening,
            None if ledger.untiered().is_none() => State::Tiered,
            None if self.is_due(now, ledger) => State::Due,
            None => State::Waiting,
        };
        Some(LedgerStatus {
            ledger: id,
            is_sealed: ledger.is_sealed(),
            available: ledger.available,
            tiered: ledger.tiered.flatten(),
            registers: self.updates.registers(id),
            lag: lag_of(now, ledger, self.entry_bytes()),
            state,
        })
    }

    /// What is known of a ledger that is not watched.
    pub fn unwatched(&self, ledger: LedgerId) -> Unwatched {
        match () {
            () if self.done.contains(ledger) => Unwatched::Done,
            () if self.asked_in_vain.contains(&ledger) => Unwatched::Gone,
            () if !self.team.owns_ledger(ledger) => Unwatched::Elsewhere,
            () => Unwatched::Unknown,
        }
    }

    /// Somebody waits for the ledger: it is watched for a while longer, also when another tierer owns it.
    pub fn keep(&mut self, now: Duration, ledger: LedgerId) {
        if let Some(watched) = self.ledgers.get_mut(&ledger).filter(|watched| watched.kept_until > now) {
            watched.kept_until = now + self.settings.asked_kept;
        }
    }
}

fn lag_of(now: Duration, ledger: &Ledger, entry_bytes: u64) -> Lag {
    match ledger.tiered {
        None => Lag::default(),
        Some(_) => Lag {
            entries: ledger.lag_entries(),
            bytes: ledger.lag_bytes(entry_bytes),
            age: ledger.behind_since().map_or(Duration::ZERO, |since| now.saturating_sub(since)),
        },
    }
}

impl Core {
    /// Whether the ledger is watched.
    pub fn is_watched(&self, ledger: LedgerId) -> bool {
        self.ledgers.contains_key(&ledger)
    }

    /// Whether nothing is being built or committed and no bookie is being told: requests to the store in such times are what the tierer
    /// costs without work.
    pub fn is_idle(&self) -> bool {
        self.building.is_empty()
            && self.to_commit.is_empty()
            && self.commit.is_none()
            && self.updates.in_flight() == 0
    }
}
