//! Runs of the world in an order, and with faults, drawn from a seed.
//!
//! Each kind of fault is on in half of the runs, at a rate of its own; a tenth of the runs have none, a tenth one kind.

use std::sync::Arc;

use bindery_flow::ByteBudget;
use bindery_io::SeededRandom;
use bindery_io::canary::Canaries;
use bindery_types::{DigestType, Quorum};
use bindery_wire::ErrorCode;

use super::bookie::Mode;
use super::checks::Summary;
use super::event::{Event, StoreFate};
use super::world::{Call, Core, Setup, WRITER, World};
use crate::recovery::core::READ_AHEAD_ENTRIES;
use crate::writer::core::GRACE_TICKS;

const SHAPES: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (2, 2, 1),
    (2, 2, 2),
    (3, 2, 1),
    (3, 2, 2),
    (3, 3, 2),
    (3, 3, 3),
    (4, 3, 2),
    (5, 3, 2),
    (5, 3, 3),
    (6, 2, 2),
    (6, 4, 3),
];

/// How likely each kind of fault is: per event it can happen to, or per step.
#[derive(Debug, Default)]
struct Rates {
    time_outs: f64,
    breaks: f64,
    crashes: f64,
    stops: f64,
    refusals: f64,
    damage: f64,
    read_only: f64,
    store_losses: f64,
    stale_reads: f64,
    deaths: f64,
    recoveries: f64,
    /// Of a bookie's disks: once in a run.
    disk_losses: f64,
    repairs: f64,
}

impl Rates {
    fn draw(random: &SeededRandom) -> Rates {
        let only = match random.below(10) {
            0 => return Rates { recoveries: 0.004, ..Rates::default() },
            1 => Some(random.below(10)),
            _ => None,
        };
        let rate = |kind: u64| {
            let is_on = only.map_or_else(|| random.chance(0.5), |only| only == kind);
            // From 1 in 1000 to 1 in 10, evenly by order of magnitude.
            let rate = 10f64.powf(-3.0 + 2.0 * (random.below(1000) as f64 / 1000.0));
            if is_on { rate } else { 0.0 }
        };
        Rates {
            time_outs: rate(0),
            breaks: rate(1),
            crashes: rate(2) / 10.0,
            stops: rate(3) / 10.0,
            refusals: rate(4),
            damage: rate(5) * 2.0,
            read_only: rate(6) / 10.0,
            store_losses: rate(7) * 5.0,
            stale_reads: rate(8) * 5.0,
            deaths: rate(9) / 30.0,
            recoveries: [0.0005, 0.002, 0.008][random.below(3) as usize],
            disk_losses: if only.is_none() { rate(10) } else { 0.0 },
            repairs: if only.is_none() { rate(11) * 3.0 } else { 0.0 },
        }
    }
}

pub(super) struct Swarm {
    pub world: World,
    random: Arc<SeededRandom>,
    rates: Rates,
    steps: u64,
    appends: f64,
    closes: f64,
    /// Of each bookie at most so many others are down at a time, in most runs.
    down_max: usize,
}

/// Runs one seed; returns what happened, for the count of interesting runs.
pub(super) fn run(seed: u64, canaries: Canaries) -> Summary {
    let mut swarm = Swarm::new(seed, canaries);
    for _ in 0..swarm.steps {
        swarm.step();
    }
    swarm.heal();
    swarm.world.check_end();
    // Repair of a ledger that nobody changes any more.
    for _ in 0..swarm.random.below(100) {
        swarm.world.apply(&Event::Repair);
    }
    swarm.world.check_end();
    swarm.world.ghost.summary
}

impl Swarm {
    pub fn new(seed: u64, canaries: Canaries) -> Swarm {
        let random = Arc::new(SeededRandom::new(seed));
        let (e, qw, qa) = SHAPES[random.below(SHAPES.len() as u64) as usize];
        let rates = Rates::draw(&random);
        let digests: &[DigestType] = match rates.damage > 0.0 {
            // Without a digest nobody can tell.
            true => &[DigestType::Crc32c, DigestType::Crc32, DigestType::Hmac],
            false => &DigestType::ALL,
        };
        let is_deferred = random.chance(0.15);
        let setup = Setup {
            quorum: Quorum::new(e, qw, qa).expect("a quorum"),
            bookies: e + [0, 1, 2, 4][random.below(4) as usize],
            digest: digests[random.below(digests.len() as u64) as usize],
            is_prompt: random.chance(0.3),
            is_deferred,
            is_handed_over: !is_deferred && random.chance(0.5),
            only_outcomes: false,
            slow_bytes_max: 1000 + random.below(6000),
            keep_bytes_max: [0, 2000, u64::MAX][random.below(3) as usize],
            read_ahead_entries: [1, 2, READ_AHEAD_ENTRIES][random.below(3) as usize],
            canaries,
            budget: Some(ByteBudget::new(
                "adds",
                [2_000, 8_000, 64_000, 1_000_000][random.below(4) as usize],
            )),
            random: Some(random.clone()),
        };
        let rates = match setup.is_handed_over && random.chance(0.5) {
            // Many writers, one after the other.
            true => Rates { recoveries: 0.0, ..rates },
            false => rates,
        };
        Swarm {
            rates,
            steps: 200 + random.below(1500),
            appends: [0.02, 0.1, 0.2][random.below(3) as usize],
            closes: [0.0, 0.001, 0.005][random.below(3) as usize],
            down_max: 1 + random.below(3) as usize,
            world: World::new(setup),
            random,
        }
    }

    fn any(&self, count: usize) -> usize {
        self.random.below(count as u64) as usize
    }

    fn step(&mut self) {
        let random = self.random.clone();
        let chance = |rate: f64| rate > 0.0 && random.chance(rate);
        if chance(self.appends) {
            return self.append();
        }
        if chance(self.rates.recoveries) && self.world.recoverers() < 3 {
            return self.world.apply(&Event::StartRecovery);
        }
        // Entries that the writer let go of must be marked when it ends.
        let is_for_marks = !self.world.ghost.was_held.is_empty() && chance(0.02);
        if is_for_marks && self.world.setup.is_handed_over && random.chance(0.8) {
            return self.world.apply(&Event::HandOver);
        }
        if is_for_marks || chance(self.closes) {
            return self.world.apply(&Event::BeginClose);
        }
        if self.world.setup.is_handed_over {
            match self.world.writer() {
                Some(writer) => {
                    // As a rule it waits until all copies are there. Gaps are of more interest.
                    let rate = match writer.held().is_empty() {
                        true if writer.is_complete() => 0.03,
                        true => 0.01,
                        false => 0.1,
                    };
                    if chance(rate) {
                        return self.world.apply(&Event::HandOver);
                    }
                }
                None if chance(0.1) => return self.world.apply(&Event::TakeOver),
                None => {}
            }
        }
        if self.world.writer().is_some_and(|writer| writer.kept_bytes() > 0) && chance(0.05) {
            return self.world.apply(&Event::Tick);
        }
        if let Some(party) = self.world.lingering()
            && chance(0.1)
        {
            return self.world.apply(&Event::LosePatience(party));
        }
        if chance(0.01) {
            return self.world.apply(&Event::Retry);
        }
        if chance(0.03) {
            return self.world.apply(&Event::ReportSlow);
        }
        if chance(0.005) && self.world.writer().is_some_and(|writer| writer.unannounced().is_some()) {
            self.world.ghost.summary.announced += 1;
            return self.world.apply(&Event::Announce);
        }
        if self.world.setup.is_deferred && chance(0.05) {
            return self.world.apply(&Event::Force);
        }
        // A bookie is back before anybody missed it.
        if self.world.setup.is_deferred && self.rates.crashes > 0.0 && chance(0.01) {
            let bookie = self.any(self.world.bookies.len());
            self.world.apply(&Event::Crash(bookie));
            return self.world.apply(&Event::Turn(bookie, Mode::Up));
        }
        if chance(self.rates.deaths) {
            return self.world.apply(&Event::Kill(self.any(self.world.parties.len())));
        }
        if chance(self.rates.crashes) {
            return self.crash();
        }
        // One copy of an entry may go, when it is acknowledged by others as well.
        let is_spare = self.world.setup.quorum.ack_quorum_size() > 1;
        if is_spare && self.world.ghost.summary.lost_disks == 0 && chance(self.rates.disk_losses) {
            return self.world.apply(&Event::LoseDisks(self.any(self.world.bookies.len())));
        }
        if chance(self.rates.repairs) || self.world.repair.is_some() && chance(0.4) {
            return self.world.apply(&Event::Repair);
        }
        if chance(0.02) {
            self.raise_one();
        }
        if chance(self.rates.stops) {
            return self.stop_one();
        }
        if chance(self.rates.read_only) || chance(0.005) {
            let bookie = self.any(self.world.bookies.len());
            let is_read_only = self.rates.read_only > 0.0 && !self.world.bookies[bookie].is_read_only;
            return self.world.apply(&Event::TurnReadOnly(bookie, is_read_only));
        }
        if chance(self.rates.breaks)
            && let Some(&(party, bookie)) = self.any_link()
        {
            return self.world.apply(&Event::Break { party, bookie });
        }
        if chance(self.rates.time_outs) {
            return self.time_out();
        }
        self.deliver();
    }

    fn append(&mut self) {
        let is_burst = self.random.chance(0.2);
        for _ in 0..if is_burst { 8 } else { 1 } {
            self.world.apply(&Event::Append);
        }
    }

    fn any_link(&self) -> Option<&(usize, usize)> {
        let count = self.world.links.len();
        if count == 0 { None } else { self.world.links.keys().nth(self.any(count)) }
    }

    fn crash(&mut self) {
        let bookie = self.any(self.world.bookies.len());
        let down = self.world.bookies.iter().filter(|bookie| bookie.mode == Mode::Down).count();
        if down < self.down_max {
            self.world.ghost.summary.crashes += 1;
            self.world.apply(&Event::Crash(bookie));
        }
    }

    fn raise_one(&mut self) {
        let not_up = self.world.bookies.iter().position(|bookie| bookie.mode != Mode::Up);
        if let Some(bookie) = not_up {
            self.world.apply(&Event::Turn(bookie, Mode::Up));
        }
    }

    /// One at most stands still, as Qw - Qa may be 1.
    fn stop_one(&mut self) {
        let bookie = self.any(self.world.bookies.len());
        let is_one_stopped = self.world.bookies.iter().any(|bookie| bookie.mode == Mode::Stopped);
        if !is_one_stopped && self.world.bookies[bookie].mode == Mode::Up {
            self.world.apply(&Event::Turn(bookie, Mode::Stopped));
        }
    }

    fn time_out(&mut self) {
        let Some(&(party, bookie)) = self.any_link() else { return };
        let open: Vec<usize> = self.world.links[&(party, bookie)].unanswered().collect();
        if !open.is_empty() {
            let flight = open[self.any(open.len())];
            self.world.apply(&Event::TimeOut { party, bookie, flight });
        }
    }

    /// Lets something that is under way arrive, perhaps not in good order.
    fn deliver(&mut self) {
        let events = self.world.deliveries();
        if events.is_empty() {
            return;
        }
        let mut event = events[self.any(events.len())].clone();
        let chance = |rate: f64| rate > 0.0 && self.random.chance(rate);
        match &mut event {
            Event::Serve { refusal, .. } if chance(self.rates.refusals) => {
                *refusal = Some([ErrorCode::Io, ErrorCode::TooManyRequests][self.any(2)]);
            }
            Event::Hear { is_damaged, .. } => *is_damaged = chance(self.rates.damage),
            Event::AskStore { fate, .. } if chance(self.rates.store_losses) => {
                *fate = [StoreFate::LostBefore, StoreFate::LostAfter][self.any(2)];
            }
            Event::AskStore { fate, .. } if chance(self.rates.stale_reads) => {
                *fate = StoreFate::Stale(self.any(self.world.version() as usize + 1) as i64);
            }
            Event::HearStore { gives_up, .. } => *gives_up = self.random.chance(0.1),
            _ => {}
        }
        self.world.apply(&event);
    }

    /// Delivers until nothing is under way, or `is_done`.
    fn settle(&mut self, is_done: impl Fn(&World) -> bool) {
        for _ in 0..50_000 {
            if is_done(&self.world) || self.world.deliveries().is_empty() {
                return;
            }
            self.deliver();
        }
        panic!("IC18, IC20: it goes on for ever although nothing fails: {:?}", self.world.deliveries());
    }

    /// Ends all faults. A writer that nobody shut out gets everything confirmed; a recovery succeeds (IC18, IC20).
    fn heal(&mut self) {
        self.rates = Rates::default();
        self.world.repair = None;
        for bookie in 0..self.world.bookies.len() {
            self.world.apply(&Event::Turn(bookie, Mode::Up));
            self.world.apply(&Event::TurnReadOnly(bookie, false));
        }
        if self.world.recoverers() == 0 && self.random.chance(0.5) {
            self.quiet_writer();
        }
        for _ in 0..20 {
            self.world.apply(&Event::StartRecovery);
            self.settle(|world| world.recoverers() == 0);
            if self.world.end().is_some() {
                self.settle(|_| false);
                return self.world.note_confirmed();
            }
        }
        panic!("IC20: no recovery succeeds although nothing fails");
    }

    fn quiet_writer(&mut self) {
        self.settle(|_| false);
        self.world.apply(&Event::Append);
        self.settle(|_| false);
        if self.world.setup.is_deferred {
            self.world.apply(&Event::Force);
            self.settle(|_| false);
        }
        // Bookies that lack something are back, or are given up.
        for _ in 0..=GRACE_TICKS {
            if self.world.writer().is_some_and(|writer| writer.kept_bytes() > 0) {
                self.world.apply(&Event::Tick);
                self.settle(|_| false);
            }
        }
        let Core::Writer(writer) = &self.world.parties[WRITER].core else { return };
        assert!(!writer.has_unconfirmed(), "IC18, IC20: an entry is not confirmed although nothing fails");
        assert!(matches!(self.world.parties[WRITER].call, Call::Idle), "IC18: it waits for nothing");
        let in_use = self.world.setup.budget.as_ref().map(|budget| budget.gauge().used);
        assert_eq!(in_use, Some(0), "IC17: nothing is kept when everything is answered");
        self.world.ghost.summary.quiet_writers += 1;
    }
}
