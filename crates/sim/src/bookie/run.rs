//! The schedule of one run.

mod ahead;
mod at_rest;
mod coverage;
mod damage;
mod heal;
mod ingest;
mod metadata;
mod parked_adds;
mod profile;
mod removals;
mod requests;
mod restarts;
mod tier;

use super::facts::Facts;
use super::ghost::{Brought, Check, Ghost, SentUpdate};
use super::watch::{self, Marks, WatchedDisk};
use crate::disk::{FaultPlan, SimDisk};
use bindery_engine::{
    AddDone, AddSink, Changes, EntryRef, GroupTimes, InFlight, IngestError, Lookup, Machine, OpenError,
    Patience, Reconciled, Refusal, Waiter,
};
use bindery_io::{CheckedDisk, Disk, ManualClock, SeededRandom};
use bindery_types::{EntryId, LedgerId, MasterKey};
pub use coverage::{MARKS, Mark};
use ingest::Ingesting;
use metadata::Stores;
use parked_adds::{Comeback, Held};
use parking_lot::Mutex;
pub use profile::Profile;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
pub(super) use tier::tier_facts;

const KEY: MasterKey = MasterKey::new([0x11; 20]);
const WRONG_KEY: MasterKey = MasterKey::new([0x22; 20]);

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every promise was kept.
    Kept,
    /// Damage that was put there on purpose was found at a start and named.
    RefusedDamage(String),
    /// A promise was broken.
    Violated(String),
}

/// The results of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// Crashes, stops and other restarts.
    pub restarts: u64,
    /// Reads compared with the ghost.
    pub compared: u64,
    /// How often each rare state came up, see [`MARKS`].
    pub marks: BTreeMap<Mark, u64>,
    /// Hash over all disk operations: equal for equal seeds (K11).
    pub hash: u64,
    /// The last disk operations, for a failure.
    pub trace: Vec<String>,
}

#[derive(Clone)]
enum Op {
    Add {
        ledger: LedgerId,
        entry: i64,
        submission: u64,
        lac: i64,
        is_recovery: bool,
        is_key_right: bool,
        writable: Writable,
    },
    Fence {
        ledger: LedgerId,
        which: i64,
        is_key_right: bool,
    },
    WriteLac {
        ledger: LedgerId,
        lac: i64,
        body: Vec<u8>,
        is_key_right: bool,
        writable: Writable,
    },
    /// With the adds of the ledger that were acknowledged before (IB24).
    Force {
        ledger: LedgerId,
        covered: Vec<(i64, u64)>,
    },
    Read {
        ledger: LedgerId,
        entry: i64,
    },
    Poll {
        ledger: LedgerId,
        previous: i64,
    },
    Remove {
        ledger: LedgerId,
        life: u32,
    },
    Revive {
        ledger: LedgerId,
    },
    /// A ledger is marked as in limbo, or as sound.
    Mark,
    Sound {
        ledger: LedgerId,
    },
    /// A lost entry is copied back.
    Repair {
        ledger: LedgerId,
        entry: i64,
        submission: u64,
    },
    Room,
    Reconcile {
        sent: Vec<SentUpdate>,
    },
    /// The commit of copies past the journal.
    Ingest {
        brought: Vec<Brought>,
    },
}

/// The outcome to expect of a write, by the state of the bookie when it is submitted (IB19).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writable {
    Yes,
    /// The bookie is read-only and the write has no high priority.
    No,
    /// It waits for space, and has some left for what recoveries add, or not.
    Perhaps,
    /// Journal or storage failed: nothing is acknowledged, whatever the reason given.
    Failed,
}

enum Answer {
    Add(AddDone),
    /// Refused ahead of a group whose write hangs.
    Ahead(AddDone),
    Waiter(u64, Result<(), Refusal>),
    Reconciled(u64, Vec<Reconciled>),
    Ingested(u64, Result<(), IngestError>),
}

#[derive(Clone, Default)]
struct Inbox(Arc<Mutex<VecDeque<Answer>>>);

impl AddSink for Inbox {
    fn on_adds_done(&self, _: &GroupTimes, shards: &[Vec<AddDone>]) {
        self.0.lock().extend(shards.iter().flatten().map(|d| Answer::Add(*d)));
    }
}

impl Inbox {
    fn waiter(&self, op: u64) -> Waiter {
        let inbox = self.clone();
        Box::new(move |outcome| inbox.0.lock().push_back(Answer::Waiter(op, outcome)))
    }

    fn on_reconciled(&self, op: u64, results: Vec<Reconciled>) {
        self.0.lock().push_back(Answer::Reconciled(op, results));
    }

    fn on_ingested(&self, op: u64, outcome: Result<(), IngestError>) {
        self.0.lock().push_back(Answer::Ingested(op, outcome));
    }
}

/// Where a journal is between cut and finish.
#[derive(Default)]
struct Lane {
    in_flight: Option<InFlight>,
    /// Written, not finished.
    written: Option<(InFlight, Result<(), bindery_journal::JournalError>)>,
}

struct Sim {
    profile: Profile,
    random: SeededRandom,
    disk: Arc<SimDisk>,
    /// Around `disk` for as long as a bookie runs on it: IB14.
    checked: Option<Arc<CheckedDisk<Arc<WatchedDisk>>>>,
    watched: Option<Arc<WatchedDisk>>,
    /// When to look closely: a generator of its own, so that checks do not move the schedule.
    checks: SeededRandom,
    /// The choices of the tierer.
    tier: SeededRandom,
    /// Updates that it sent.
    updates: u64,
    /// The choices of repairs that bring copies past the journal.
    ingests: SeededRandom,
    ingest: Ingesting,
    /// The choices of repairs that bring damaged entries back.
    heals: SeededRandom,
    /// Those whose commit was not answered, or failed: a restart decides.
    undecided: Vec<Vec<Brought>>,
    /// The durable marks, as last seen.
    marks: Marks,
    /// The facts that the start under way must find.
    expected: Option<Facts>,
    /// A broken promise found where no verdict could be returned.
    broken: Option<String>,
    hits: BTreeMap<Mark, u64>,
    clock: Arc<ManualClock>,
    machine: Option<Machine>,
    /// Of each journal, when a bookie runs.
    lanes: Vec<Lane>,
    tickets: Vec<bindery_engine::FreezeTicket>,
    inbox: Inbox,
    ops: BTreeMap<u64, Op>,
    next_op: u64,
    /// Request whose add was answered last, for each shard, since the last restart (IB22 IB23).
    answered_last: BTreeMap<usize, u64>,
    ghost: Ghost,
    /// The ledgers that clients write to now, and those they wrote to before.
    slots: Vec<LedgerId>,
    retired: Vec<LedgerId>,
    /// Deleted in metadata.
    deleted: BTreeSet<LedgerId>,
    /// To be removed, as metadata was read, and the number of the last add submitted before that.
    condemned: Vec<(LedgerId, Changes, u64)>,
    /// The ledgers that the last round of garbage collection found gone, when they were too many to go at once.
    found_gone: Vec<LedgerId>,
    stores: Stores,
    /// A recovery began in metadata: they never are open again.
    ended: BTreeSet<LedgerId>,
    /// Adds that wait for a verdict of metadata.
    held: Vec<Held>,
    /// Ledgers whose writers metadata spoke for since the last start.
    spoken: BTreeSet<LedgerId>,
    /// Fenced, removed and forgotten, and metadata did not speak for a writer since.
    late: BTreeSet<LedgerId>,
    comeback: Comeback,
    marks_failed: bool,
    wipes: u64,
    restarts: u64,
    crash_number: u64,
    /// The bookie was stopped with nothing left to replay: a journal may be taken away.
    is_drained: bool,
    /// Journals there ever were.
    journals_ever: usize,
}

/// Runs one seed.
pub fn run(profile: Profile) -> Report {
    let random = SeededRandom::new(profile.seed);
    let disk = Arc::new(SimDisk::new(profile.disk.clone(), &random.child("disk")));
    let mut sim = Sim {
        random: random.child("schedule"),
        disk,
        checked: None,
        watched: None,
        checks: random.child("checks"),
        tier: random.child("tierer"),
        updates: 0,
        ingests: random.child("ingests"),
        ingest: Ingesting::No,
        heals: random.child("heals"),
        undecided: Vec::new(),
        marks: Marks::new(),
        expected: None,
        broken: None,
        hits: BTreeMap::new(),
        clock: Arc::new(ManualClock::new(1_700_000_000_000).ticking(profile.tick)),
        machine: None,
        lanes: Vec::new(),
        tickets: Vec::new(),
        inbox: Inbox::default(),
        ops: BTreeMap::new(),
        next_op: 0,
        answered_last: BTreeMap::new(),
        ghost: Ghost::new(profile.engine.journal_sync),
        slots: (0..profile.ledgers).filter_map(LedgerId::new).collect(),
        retired: Vec::new(),
        deleted: BTreeSet::new(),
        condemned: Vec::new(),
        found_gone: Vec::new(),
        stores: Stores::default(),
        ended: BTreeSet::new(),
        held: Vec::new(),
        spoken: BTreeSet::new(),
        late: BTreeSet::new(),
        comeback: Comeback::No,
        marks_failed: false,
        wipes: 0,
        restarts: 0,
        crash_number: 0,
        is_drained: false,
        journals_ever: 0,
        profile,
    };
    let outcome = match catch_unwind(AssertUnwindSafe(|| sim.run())) {
        Ok(Ok(None)) => Outcome::Kept,
        Ok(Ok(Some(refusal))) => Outcome::RefusedDamage(refusal),
        Ok(Err(violation)) => Outcome::Violated(violation),
        // A failed assertion of the code under test is a finding like any other.
        Err(panic) => Outcome::Violated(format!("panic: {}", panic_text(&*panic))),
    };
    sim.note_faults();
    if matches!(outcome, Outcome::RefusedDamage(_)) {
        sim.hit("start.refused_damage");
    }
    Report {
        outcome,
        marks: sim.hits,
        restarts: sim.restarts,
        compared: sim.ghost.compared,
        hash: sim.disk.trace_hash(),
        trace: sim.disk.trace(),
    }
}

/// `Ok(Some(..))`: a start named damage that was put there on purpose.
type Step = Result<Option<String>, String>;

impl Sim {
    fn run(&mut self) -> Step {
        self.make_root();
        if let Some(refusal) = self.open()? {
            return Ok(Some(refusal));
        }
        self.disk.set_faults(self.profile.faults.clone());
        self.ghost.is_damaged |= self.is_media_damage_due();
        for _ in 0..self.profile.steps {
            self.clock.advance(Duration::from_micros(50));
            if let Some(refusal) = self.step()? {
                return Ok(Some(refusal));
            }
        }
        self.disk.set_faults(FaultPlan::default());
        self.drain()?;
        self.check_lists()?;
        if let Some(refusal) = self.stop_and_restart()? {
            return Ok(Some(refusal));
        }
        self.check_scrub()?;
        self.heal_everything()?;
        self.crash_and_restart()
    }

    /// The medium may lie in this run: errors are honest answers, negatives and other bytes are not.
    fn is_media_damage_due(&self) -> bool {
        !self.profile.disk.damaged_files.is_empty()
    }

    fn make_root(&self) {
        let root = Path::new("/data");
        self.disk.create_dir_all(root).expect("no faults yet");
        self.disk.sync_dir(Path::new("/")).expect("no faults yet");
    }

    fn step(&mut self) -> Step {
        let crash = self.profile.crash;
        if self.disk.is_off() || self.random.chance(crash / 2.0) {
            return self.crash_and_restart();
        }
        if self.random.chance(crash / 2.0) {
            self.disk.crash_after(self.random.below(12));
        }
        if self.random.chance(self.profile.damage) {
            self.damage_an_entry_log();
        }
        self.step_capacity();
        if self.random.chance(0.002) {
            return self.stop_and_restart();
        }
        if self.tier.chance(self.profile.tier) {
            self.step_tier()?;
        }
        if self.ingests.chance(self.profile.ingest) {
            self.step_ingest()?;
        }
        if self.heals.chance(self.profile.heal) {
            self.step_heal();
        }
        match self.random.below(100) {
            0..=44 => self.submit_adds()?,
            45..=47 => self.submit_fence()?,
            48..=50 => self.submit_write_lac()?,
            51 => self.submit_force(),
            52..=53 => self.submit_poll()?,
            54..=65 => self.check_random_reads()?,
            66..=88 => self.step_some_journal(),
            89..=92 => self.step_space(),
            93 => self.submit_removal()?,
            94 if self.random.chance(0.3) => self.step_forget(),
            94 if self.random.chance(0.3) => self.delete_or_recreate(),
            94 if !self.condemned.is_empty() => self.remove_condemned()?,
            94 => self.collect_garbage()?,
            95..=96 => self.step_flush(),
            97 if self.random.chance(0.5) => self.step_comeback()?,
            97 => self.settle_a_word()?,
            98 => self.machine().engine.set_read_only(self.random.chance(0.3)),
            _ => self.want_freeze(),
        }
        self.take_answers()?;
        if !self.held.is_empty() && self.random.chance(0.2) {
            self.settle_a_word()?;
        }
        self.check_call_order()?;
        if self.random.chance(0.05) {
            self.check_parked_polls()?;
        }
        if self.machine().engine.status().failed.is_some() && self.random.chance(0.1) {
            return self.crash_and_restart();
        }
        Ok(None)
    }

    fn machine(&self) -> &Machine {
        self.machine.as_ref().expect("a bookie is running")
    }

    // ---- reads -------------------------------------------------------------------------------------------------

    /// Reads as the server does. `None`: not durable yet, a waiter was left.
    fn read(&mut self, ledger: LedgerId, which: EntryRef) -> Option<Result<Vec<u8>, Refusal>> {
        match self.machine().engine.read(ledger, which) {
            Ok(Lookup::Memory(body)) => Some(Ok(body.to_vec())),
            Ok(Lookup::Disk(mut read)) => match self.load_patiently(&mut read) {
                Err(Refusal::Tiered) => Some(self.on_tiered_after_all(read)),
                loaded => Some(loaded),
            },
            Ok(Lookup::Undurable(point)) => {
                let EntryRef::At(entry) = which else { return None };
                self.hit("read.waited_for_durable");
                let op = self.op(Op::Read { ledger, entry: entry.get() });
                self.machine().engine.clone().when_durable(point, self.inbox.waiter(op));
                None
            }
            Ok(Lookup::Tiered(read)) => {
                let engine = self.machine().engine.clone();
                Some(self.on_tiered(&engine, &read))
            }
            Err(refusal) => Some(Err(refusal)),
        }
    }

    /// Entries that are read together (the server reads ranges so) must be what each of them may be.
    fn check_run(&mut self, ledger: LedgerId, first: EntryId) -> Check {
        let count = 1 + first.get() as u32 % 9;
        (1..=3).try_for_each(|step| self.check_run_by(ledger, (first, step), count))
    }

    fn check_run_by(&mut self, ledger: LedgerId, (first, step): (EntryId, u32), count: u32) -> Check {
        let engine = &self.machine().engine;
        let Some(found) = engine.read_run(ledger, (first, step), count, 1 << 14, Patience::Wait) else {
            return Ok(());
        };
        let length = found.lengths().len();
        if length > count as usize {
            return Err(format!("{length} entries of {ledger} were found, {count} were asked for"));
        }
        let mut buffer = Vec::new();
        let sound = found.read(0, length, &mut buffer, Patience::Wait).into_iter().flatten();
        for (number, body) in sound.enumerate() {
            if number == 1 {
                self.hit("read.together");
            }
            let entry = first.get() + number as i64 * i64::from(step);
            self.ghost.check_read(ledger, entry, &Ok(body.to_vec()))?;
        }
        Ok(())
    }

    /// A transient read error is an honest answer; asking again must give the entry.
    fn load_patiently(&self, read: &mut bindery_engine::DiskRead) -> Result<Vec<u8>, Refusal> {
        let mut body = Vec::new();
        let first = match read.try_load(&mut body) {
            Some(loaded) => loaded.map(|()| body),
            None => read.load(),
        };
        match first {
            Err(Refusal::Io) => {
                self.disk.set_faults(FaultPlan::default());
                let again = read.load();
                self.disk.set_faults(self.profile.faults.clone());
                again
            }
            other => other,
        }
    }

    fn check_random_reads(&mut self) -> Check {
        for _ in 0..1 + self.random.below(4) {
            let ledger = self.some_ledger();
            if self.disk.is_off() {
                return Ok(());
            }
            match self.random.below(6) {
                2 => {
                    let lac = self.machine().engine.explicit_lac(ledger);
                    self.ghost.check_explicit_lac(ledger, lac)?;
                }
                0 => {
                    if let Some(result) = self.read(ledger, EntryRef::Last) {
                        self.ghost.check_last(ledger, &result)?;
                    }
                }
                1 => {
                    let lac = self.machine().engine.last_add_confirmed(ledger);
                    self.ghost.check_lac(ledger, lac)?;
                }
                _ => {
                    let highest = self.ghost.highest_sent(ledger);
                    let entry = self.random.below((highest + 3) as u64) as i64;
                    self.check_entry(ledger, entry)?;
                    if !self.disk.is_off()
                        && let Some(entry) = EntryId::new(entry)
                    {
                        self.check_run(ledger, entry)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn check_entry(&mut self, ledger: LedgerId, entry: i64) -> Check {
        let id = EntryId::new(entry).expect("not negative");
        match self.read(ledger, EntryRef::At(id)) {
            Some(result) if !self.disk.is_off() => self.ghost.check_read(ledger, entry, &result),
            _ => Ok(()),
        }
    }

    // ---- journal and flush -------------------------------------------------------------------------------------

    fn step_some_journal(&mut self) {
        let journal = self.random.below(self.lanes.len() as u64) as usize;
        self.step_journal(journal);
    }

    fn step_journal(&mut self, journal: usize) {
        if self.refuses_ahead(journal) {
            return;
        }
        let machine = self.machine.as_mut().expect("a bookie is running");
        let (journaling, lane) = (&mut machine.journals[journal], &mut self.lanes[journal]);
        if let Some((in_flight, written)) = lane.written.take() {
            let is_failed = written.is_err();
            let mut done = journaling.finish(in_flight, written);
            self.tickets.extend(done.freeze.take());
            done.deliver(&self.inbox);
            if is_failed {
                self.hit("journal.failed");
                self.check_answers_of_a_failed_group();
            }
        } else if let Some(in_flight) = lane.in_flight.take() {
            let written = journaling.write(&in_flight);
            lane.written = Some((in_flight, written));
        } else {
            lane.in_flight = journaling.cut();
            if lane.in_flight.is_none() && self.random.chance(0.05) {
                journaling.seal();
            }
        }
    }

    /// IB14: no request in a group whose write failed is answered OK.
    fn check_answers_of_a_failed_group(&mut self) {
        let is_told = |answer: &Answer| match answer {
            Answer::Add(done) | Answer::Ahead(done) => done.result.is_ok(),
            // Some of it may have been durable before.
            Answer::Reconciled(..) => false,
            // It is in no group.
            Answer::Ingested(..) => false,
            Answer::Waiter(op, outcome) => {
                outcome.is_ok()
                    && !matches!(self.ops.get(op), Some(Op::Room | Op::Read { .. } | Op::Poll { .. }))
            }
        };
        if self.inbox.0.lock().iter().any(is_told) {
            self.broken = Some("IB14: a request of a group whose write failed was answered OK".into());
        } else if self.machine().engine.status().failed.is_none() {
            self.broken = Some("IB14: the journal failed and the state does not say so".into());
        }
    }

    /// Between journals any order of flushes will do.
    fn step_flush(&mut self) {
        if self.tickets.is_empty() {
            return;
        }
        let at = self.random.below(self.tickets.len() as u64) as usize;
        let machine = self.machine.as_mut().expect("a bookie is running");
        // A freeze takes ledgers over while requests come.
        if self.random.chance(0.5) && machine.flushing.freeze_some(&mut self.tickets[at], 1) {
            self.hit("flush.freezing");
            return;
        }
        let ticket = self.tickets.remove(at);
        let logs = machine.engine.stats().entry_logs;
        if let Ok(flushed) = machine.flushing.flush(ticket) {
            machine.journals[flushed.journal].on_flushed(flushed);
            if machine.engine.stats().entry_logs == logs {
                self.hit("flush.without_entries");
            }
            if self.checks.chance(0.2) {
                self.check_marks();
            }
        } else {
            self.hit("flush.failed");
        }
    }

    /// IB12: no durable mark goes back.
    fn check_marks(&mut self) {
        if self.ghost.is_damaged || self.disk.is_off() {
            return;
        }
        let image: Arc<dyn Disk> = Arc::new(self.disk.durable_image());
        let checked = watch::marks(&image, &self.profile.engine.ledger_dirs)
            .and_then(|now| watch::check_marks(&self.marks, &now).map(|()| self.marks.extend(now)));
        if let Err(violation) = checked {
            self.broken = Some(violation);
        }
    }

    fn want_freeze(&mut self) {
        self.machine().want_freeze();
    }

    fn take_answers(&mut self) -> Check {
        loop {
            let Some(answer) = self.inbox.0.lock().pop_front() else { return Ok(()) };
            match answer {
                Answer::Add(done) => self.on_add_done(&done)?,
                Answer::Ahead(done) => self.on_refused_ahead(&done)?,
                Answer::Waiter(op, outcome) => self.on_waiter(op, outcome)?,
                Answer::Reconciled(op, results) => match self.ops.remove(&op) {
                    Some(Op::Reconcile { sent }) => self.on_reconciled(&sent, &results)?,
                    _ => return Err("IB22: a tierer was answered twice".into()),
                },
                Answer::Ingested(op, outcome) => self.on_ingest_answered(op, outcome)?,
            }
        }
    }

    fn on_add_done(&mut self, done: &AddDone) -> Check {
        // Requests are numbered in the order of submission.
        let shard = self.machine().engine.shard_of(done.ledger);
        let before = self.answered_last.insert(shard, done.origin.txn);
        if before.is_some_and(|before| before > done.origin.txn) {
            let (ledger, entry) = (done.ledger, done.entry);
            return Err(format!("IB22 IB23: the answer to add {ledger}:{entry} comes behind a later one's"));
        }
        self.on_add_answered(done)
    }

    fn on_add_answered(&mut self, done: &AddDone) -> Check {
        let (ledger, entry, submission, lac, is_recovery, is_key_right, writable) = match self
            .ops
            .remove(&done.origin.txn)
        {
            Some(Op::Add { ledger, entry, submission, lac, is_recovery, is_key_right, writable }) => {
                (ledger, entry, submission, lac, is_recovery, is_key_right, writable)
            }
            Some(Op::Repair { ledger, entry, submission }) => {
                self.on_repaired(ledger, entry, submission, done);
                return Ok(());
            }
            _ => return Err(format!("IB22: an add of {}:{} was answered twice", done.ledger, done.entry)),
        };
        self.check_writable(&format!("add {ledger}:{entry}"), writable, done.result)?;
        if done.result.is_ok() {
            self.check_spoken(ledger, entry, is_recovery)?;
            self.check_late(ledger, entry, is_recovery)?;
        }
        if !is_key_right {
            return self.ghost.on_wrong_key_answered(ledger, done.result);
        }
        self.ghost.on_add_answered(ledger, entry, submission, lac, is_recovery, done.result)?;
        if done.result.is_ok() && self.ghost.is_sync && self.random.chance(self.profile.image_check) {
            self.check_image(|sim, image| {
                let engine = &image.engine;
                let result = read_now(engine, ledger, EntryId::new(entry).expect("not negative"));
                sim.ghost
                    .check_read(ledger, entry, &result)
                    .map_err(|v| format!("IB1: in the durable image: {v}"))
            })?;
        }
        Ok(())
    }

    fn on_waiter(&mut self, op: u64, outcome: Result<(), Refusal>) -> Check {
        let Some(op) = self.ops.remove(&op) else { return Err("IB22: a waiter fired twice".into()) };
        match (op, outcome) {
            (Op::Fence { ledger, is_key_right: false, .. }, outcome) => {
                self.ghost.on_wrong_key_answered(ledger, outcome)
            }
            (Op::Fence { ledger, which, .. }, Ok(())) => self.on_fenced(ledger, which),
            (Op::WriteLac { ledger, lac, body, is_key_right, writable }, outcome) => {
                self.check_writable(&format!("explicit LAC of {ledger}"), writable, outcome)?;
                if !is_key_right {
                    return self.ghost.on_wrong_key_answered(ledger, outcome);
                }
                self.ghost.on_lac_answered(ledger, lac, &body, outcome)?;
                self.ghost.check_explicit_lac(ledger, self.machine().engine.explicit_lac(ledger))
            }
            (Op::Force { ledger, covered }, Ok(())) => self.on_forced(ledger, &covered),
            (Op::Read { ledger, entry }, Ok(())) => self.check_entry(ledger, entry),
            (Op::Poll { ledger, previous }, Ok(())) => {
                let lac = self.machine().engine.last_add_confirmed(ledger);
                if self.ghost.may_be_limbo(ledger) {
                    return self.ghost.check_lac(ledger, lac);
                }
                // A fence wakes those that wait, whatever the LAC.
                if EntryId::to_wire(lac.unwrap_or(None)) <= previous
                    && !self.machine().engine.is_fenced(ledger)
                {
                    return Err(format!("a poll of {ledger} beyond {previous} fired at {lac:?}"));
                }
                self.ghost.check_lac(ledger, lac)
            }
            (Op::Remove { ledger, life }, outcome) => self.on_removed(ledger, life, outcome),
            (Op::Mark, outcome) => {
                self.on_marked(outcome);
                Ok(())
            }
            (Op::Sound { ledger }, outcome) => {
                self.on_sound(ledger, outcome);
                Ok(())
            }
            (Op::Revive { ledger }, Ok(())) => {
                self.ghost.on_revived(ledger);
                self.hit("ledger.revived");
                Ok(())
            }
            (Op::Fence { ledger, .. }, Err(refusal @ (Refusal::WrongKey | Refusal::ReadOnly))) => {
                Err(format!("IB6 IB19: a fence of ledger {ledger} with its key was refused: {refusal:?}"))
            }
            _ => Ok(()),
        }
    }

    /// IB24: what was acknowledged before the FORCE is in the durable image.
    fn on_forced(&mut self, ledger: LedgerId, covered: &[(i64, u64)]) -> Check {
        self.ghost.on_forced(ledger, covered);
        if !covered.is_empty() {
            self.hit("force.covered");
        }
        // A journal that syncs every group forces nothing on its own: rarely checked.
        if covered.is_empty() || (self.ghost.is_sync && !self.random.chance(0.05)) {
            return Ok(());
        }
        self.check_image(|sim, image| {
            for (entry, submission) in covered {
                let id = EntryId::new(*entry).expect("not negative");
                let result = read_now(&image.engine, ledger, id);
                sim.ghost.check_forced(ledger, *entry, *submission, &result)?;
            }
            Ok(())
        })
    }

    /// IB19: a write that the state of the bookie forbids is refused for that reason, any other is not.
    fn check_writable(&self, what: &str, writable: Writable, result: Result<(), Refusal>) -> Check {
        let is_kept = match (writable, result) {
            (Writable::No, result) => result == Err(Refusal::ReadOnly),
            (Writable::Perhaps, _) => true,
            (Writable::Failed, result) => result.is_err(),
            (Writable::Yes, Err(Refusal::ReadOnly)) => self.machine().engine.status().failed.is_some(),
            (Writable::Yes, _) => true,
        };
        if is_kept {
            return Ok(());
        }
        Err(format!("IB19: {what} was answered {result:?} while the bookie was writable: {writable:?}"))
    }

    /// The server answers a fencing read now: read, reply. IB4: the durable image says fenced and holds the key.
    fn on_fenced(&mut self, ledger: LedgerId, which: i64) -> Check {
        if self.disk.is_off() {
            return Ok(());
        }
        let result = match EntryId::new(which) {
            None => {
                let Some(result) = self.read(ledger, EntryRef::Last) else { return Ok(()) };
                self.ghost.check_last(ledger, &result)?.ok_or_else(|| result.err().unwrap_or(Refusal::Io))
            }
            Some(entry) => {
                // A recovery add of this entry is on its way: the server would wait for it, and reply later.
                let Some(result) = self.read(ledger, EntryRef::At(entry)) else { return Ok(()) };
                self.ghost.check_read(ledger, which, &result)?;
                result.map(|_| which)
            }
        };
        // One that is in object storage is answered when it came from there.
        if matches!(result, Err(Refusal::Io | Refusal::Unknown | Refusal::Tiered)) {
            return Ok(());
        }
        self.ghost.on_fence_answered(ledger, which, result);
        if self.ghost.is_sync && self.random.chance(0.3) {
            self.check_image(|_, image| check_fenced(image, ledger))?;
        }
        Ok(())
    }
}

/// Reads an entry of an engine at rest.
fn read_now(engine: &bindery_engine::Engine, ledger: LedgerId, entry: EntryId) -> Result<Vec<u8>, Refusal> {
    match engine.read(ledger, EntryRef::At(entry))? {
        Lookup::Memory(body) => Ok(body.to_vec()),
        Lookup::Disk(read) => read.load(),
        Lookup::Tiered(_) => Err(Refusal::Tiered),
        Lookup::Undurable(_) => Err(Refusal::TooManyRequests),
    }
}

/// IB4, IB5: the ledger is fenced and refuses another key.
fn check_fenced(machine: &Machine, ledger: LedgerId) -> Check {
    if !machine.engine.is_fenced(ledger) {
        return Err(format!(
            "IB4 IB5: ledger {ledger} is not fenced after its fence was answered and a restart"
        ));
    }
    let refused = Arc::new(Mutex::new(None));
    let answer = refused.clone();
    machine.engine.fence(ledger, WRONG_KEY, Box::new(move |outcome| *answer.lock() = Some(outcome)));
    let refused = refused.lock().take();
    if refused != Some(Err(Refusal::WrongKey)) {
        return Err(format!(
            "IB4 IB6: fenced ledger {ledger} lost its key: a wrong one was answered {refused:?}"
        ));
    }
    Ok(())
}

/// Offset and length of each group of a journal file.
type GroupPlaces = Vec<(u64, u64)>;

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

fn is_damage(error: &OpenError) -> bool {
    let text = error.to_string();
    text.contains("damaged") || text.contains("are gone")
}
