//! Crashes, stops, starts, and what must hold after each.

use super::{Inbox, Ingesting, Lane, Op, Sim, Step, check_fenced, is_damage, read_now};
use crate::bookie::facts::Facts;
use crate::bookie::ghost::Check;
use crate::bookie::watch::{self, WatchedDisk};
use crate::disk::{FaultKind, FaultPlan, SimDisk};
use bindery_engine::{EntryRef, LedgerPresence, Lookup, Machine, OpenError, Refusal};
use bindery_io::{CheckedDisk, Disk, Random, SeededRandom};
use bindery_types::EntryId;
use std::sync::Arc;
use std::time::Duration;

impl Sim {
    /// Opens what would be left if the power went now and nothing unsynced survived.
    pub(super) fn check_image(&mut self, check: impl FnOnce(&mut Sim, &Machine) -> Check) -> Check {
        if self.ghost.is_damaged || self.disk.is_off() {
            return Ok(());
        }
        let image: Arc<dyn Disk> = Arc::new(self.image());
        match self.open_machine(image) {
            Ok(machine) => {
                self.hit("image.checked");
                check(self, &machine)
            }
            Err(error) => Err(format!("IB1 IB11: the durable image cannot be opened: {error}")),
        }
    }

    pub(super) fn open_machine(&self, disk: Arc<dyn Disk>) -> Result<Machine, OpenError> {
        let random = Arc::new(self.random.child(&format!("nonce/{}", self.next_op)));
        Machine::open(self.profile.engine.clone(), disk, self.clock.clone(), random as Arc<dyn Random>)
    }

    /// IB14 and the rest of the order in which a disk may be called; IB12 and IB15 where something was overwritten.
    pub(super) fn check_call_order(&mut self) -> Check {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        for (moment, before) in self.watched.iter().flat_map(|watched| watched.take()) {
            match &moment {
                watch::Moment::JournalFileTaken(_) => {
                    *self.hits.entry("journal.file_taken").or_default() += 1
                }
                watch::Moment::LogUnlinked(_) => *self.hits.entry("space.log_unlinked").or_default() += 1,
            }
            if !self.ghost.is_damaged {
                let engine = &self.profile.engine;
                watch::judge(&moment, before, &engine.journal_dirs, &engine.ledger_dirs)?;
            }
        }
        match self.checked.as_ref().and_then(|checked| checked.violations().into_iter().next()) {
            Some(violation) => Err(format!("IB14: {violation}")),
            None => Ok(()),
        }
    }

    /// Opens the bookie on the current disk, with faults for the first tries, and checks everything it should hold.
    pub(super) fn open(&mut self) -> Step {
        self.restarts += 1;
        self.disk.set_capacity(None);
        let mut attempts = 0;
        let mut opened = None;
        self.answered_last.clear();
        self.condemned.clear();
        self.found_gone.clear();
        self.held.clear();
        self.spoken.clear();
        let journals_before = self.profile.engine.journal_dirs.len();
        for attempt in 0..5 {
            attempts = attempt;
            self.redraw_layout(attempt == 0);
            if attempt < 2 && self.restarts > 1 {
                self.disk.set_faults(self.profile.faults.clone());
                if self.random.chance(0.1) {
                    self.disk.crash_after(self.random.below(30));
                }
            }
            if attempt == 2 {
                // One that no start has met yet: the last ones end by themselves.
                self.disk.crash_after(u64::MAX);
            }
            let watched = Arc::new(WatchedDisk::new(self.disk.clone()));
            let checked = Arc::new(CheckedDisk::recording(watched.clone()));
            if attempt == 0 && self.profile.fill > 0.0 && self.checks.chance(0.3) {
                self.fill_disk();
            }
            let result = self.open_machine(checked.clone());
            // A flush that waits for space has room from now on, which may be used up again before it is tried.
            self.disk.set_capacity(None);
            (self.checked, self.watched) = (Some(checked), Some(watched));
            self.check_call_order()?;
            self.disk.set_faults(FaultPlan::default());
            match result {
                Ok(machine) if !self.disk.is_off() => {
                    opened = Some(machine);
                    break;
                }
                Err(OpenError::JournalNotDrained { .. }) if !self.is_drained => {
                    self.set_journals(journals_before);
                }
                // The power went during the start.
                Ok(_) | Err(_) if self.disk.is_off() => self.replace_disk_after_crash(),
                Ok(_) => unreachable!("covered by the two arms before"),
                // A log that the medium does not give back names itself and stops the start, as damage does.
                Err(error)
                    if self.ghost.is_damaged
                        && (is_damage(&error) || (attempt == 4 && self.is_media_damage_due())) =>
                {
                    return Ok(Some(error.to_string()));
                }
                Err(error) if attempt == 4 || is_damage(&error) => {
                    return Err(format!("IB11: the bookie does not start: {error}"));
                }
                Err(_) => self.restart_machine_or_process(),
            }
        }
        let machine = opened.ok_or("IB11: the bookie does not start")?;
        self.lanes = machine.journals.iter().map(|_| Lane::default()).collect();
        self.machine = Some(machine);
        self.is_drained = false;
        self.note_start(attempts > 0);
        self.settle_limbo()?;
        self.check_everything()?;
        if let Some(expected) = self.expected.take() {
            let found = self.facts()?;
            expected.check_same_for_clients(&found).map_err(|what| format!("IB11: {what}"))?;
        }
        self.check_marks();
        if !self.ghost.is_damaged && self.checks.chance(0.2) {
            let image: Arc<dyn Disk> = Arc::new(self.disk.durable_image());
            watch::scan(&image, &self.profile.engine.ledger_dirs)?;
        }
        self.disk.set_faults(self.profile.faults.clone());
        Ok(None)
    }

    fn facts(&self) -> Result<Facts, String> {
        self.disk.set_faults(FaultPlan::default());
        let facts = self.facts_of(self.machine(), &self.disk);
        self.disk.set_faults(self.profile.faults.clone());
        facts
    }

    fn facts_of(&self, machine: &Machine, disk: &SimDisk) -> Result<Facts, String> {
        Facts::of(machine, disk, &self.profile.engine.ledger_dirs, &self.ghost.ledgers())
    }

    /// IB11: what an undisturbed start finds on this disk, for the start that follows, which may be cut short and tried
    /// again.
    fn expect_same_replay(&mut self) -> Check {
        if self.ghost.is_damaged || !self.checks.chance(0.1) {
            return Ok(());
        }
        let image = Arc::new(self.image());
        match self.open_machine(image.clone()) {
            Ok(machine) => self.expected = Some(self.facts_of(&machine, &image)?),
            Err(error) => return Err(format!("IB11: the bookie does not start: {error}")),
        }
        Ok(())
    }

    /// The machine crashes, or the process alone: the next one then finds the same page cache, which after a sync that
    /// failed shows what the medium does not have, until it is read past or told to forget that. Names cannot be
    /// read past it at all: file systems keep them in a journal of their own, and stop when that cannot be written.
    fn restart_machine_or_process(&mut self) {
        let hits = self.disk.fault_hits();
        let has_hit = |kinds: &[FaultKind]| hits.iter().any(|(kind, _)| kinds.contains(kind));
        let can_tell = !has_hit(&[FaultKind::SyncDirError]);
        let random = SeededRandom::new(self.profile.seed).child(&format!("process/{}", self.restarts));
        if self.disk.is_off() || !can_tell || random.chance(0.6) {
            return self.replace_disk_after_crash();
        }
        self.hit("start.same_cache");
        use FaultKind as F;
        if has_hit(&[F::SyncErrorNewData, F::SyncErrorOldData, F::SyncErrorNext, F::SyncNoSpace]) {
            self.hit("start.same_cache_after_failed_sync");
        }
    }

    pub(super) fn replace_disk_after_crash(&mut self) {
        self.crash_number += 1;
        self.note_faults();
        let name = format!("crash/{}", self.crash_number);
        self.disk = Arc::new(self.disk.crash(&SeededRandom::new(self.profile.seed).child(&name)));
    }

    pub(super) fn crash_and_restart(&mut self) -> Step {
        if self.random.chance(self.profile.wipe) {
            return self.wipe_and_restart();
        }
        self.note_space();
        self.leave_ingest();
        self.machine = None;
        self.lanes.clear();
        self.tickets.clear();
        self.inbox = Inbox::default();
        self.ops.clear();
        let crashes = self.crash_number;
        let same_cache = |sim: &Sim| sim.hits.get("start.same_cache").copied();
        let before = same_cache(self);
        self.restart_machine_or_process();
        if !self.ghost.is_sync {
            self.ghost.forget_unsynced();
        }
        if self.random.chance(self.profile.damage * 60.0) {
            self.damage_the_journal();
        }
        if self.crash_number > crashes {
            self.expect_same_replay()?;
        }
        let opened = self.open()?;
        let was_machine = same_cache(self) == before;
        if opened.is_none() && self.random.chance(0.1) {
            // A second restart without traffic changes nothing.
            let before = if self.ghost.is_damaged { None } else { Some(self.facts()?) };
            let journals = self.profile.engine.journal_dirs.len();
            let waited = self.machine().flushing.is_waiting();
            self.leave_ingest();
            self.machine = None;
            self.replace_disk_after_crash();
            let opened = self.open()?;
            if let (Some(before), None) = (before, &opened) {
                // A journal that is configured again is read again, empty groups at its end included. A flush that
                // waited for space in one of the two starts completes in the other. Files that a process had unlinked
                // before it was killed come back with a power cut, and the start after that removes them.
                let found = self.facts()?;
                let is_same_layout = self.profile.engine.journal_dirs.len() == journals;
                let is_settled = was_machine && !waited && !self.machine().flushing.is_waiting();
                let same = if is_same_layout && is_settled {
                    before.check_same(&found)
                } else {
                    before.check_same_for_clients(&found)
                };
                same.map_err(|what| format!("IB25: {what}"))?;
            }
            return Ok(opened);
        }
        Ok(opened)
    }

    /// Finishes what is under way, flushes and starts again: nothing may be left to replay (IB26).
    pub(super) fn stop_and_restart(&mut self) -> Step {
        if self.disk.is_off() {
            return self.crash_and_restart();
        }
        self.disk.set_faults(FaultPlan::default());
        self.drain()?;
        self.want_freeze();
        self.drain()?;
        if self.disk.is_off() {
            return self.crash_and_restart();
        }
        self.check_lists()?;
        self.note_space();
        let status = self.machine().engine.status();
        let is_failed = status.failed.is_some() || !status.directories_failed.is_empty();
        let in_use = self.machine().engine.stats().write_pool_chunks_in_use;
        if !is_failed && in_use != 0 {
            return Err(format!("IB20: {in_use} chunks in use after everything was flushed"));
        }
        self.ingest = Ingesting::No;
        self.machine = None;
        if is_failed {
            return self.crash_and_restart();
        }
        self.is_drained = true;
        let restarted = self.open()?;
        if restarted.is_none() && self.machine().replayed.records != 0 {
            return Err(format!(
                "IB26: a clean stop left {} groups to replay",
                self.machine().replayed.groups
            ));
        }
        Ok(restarted)
    }

    /// Steps until nothing is under way; then every request has its answer (IB21).
    pub(super) fn drain(&mut self) -> Check {
        self.disk.set_capacity(None);
        for _ in 0..10_000 {
            self.check_call_order()?;
            if self.disk.is_off() {
                return Ok(());
            }
            for journal in 0..self.lanes.len() {
                self.step_journal(journal);
                self.take_answers()?;
            }
            self.step_flush();
            self.clock.advance(Duration::from_micros(200));
            self.step_space();
            self.take_answers()?;
            let is_idle = |lane: &Lane| lane.in_flight.is_none() && lane.written.is_none();
            let is_ingesting = self.ops.values().any(|op| matches!(op, Op::Ingest { .. }));
            let is_waiting = self.machine().flushing.is_waiting() || is_ingesting;
            if self.lanes.iter().all(is_idle) && self.tickets.is_empty() && !is_waiting {
                let machine = self.machine.as_mut().expect("a bookie is running");
                let is_short = machine.engine.status().waits_for_space.is_some();
                for (journaling, lane) in machine.journals.iter_mut().zip(&mut self.lanes) {
                    if is_short {
                        // An idle journal tries to make the file that its next group waits for.
                        journaling.seal();
                    }
                    lane.in_flight = journaling.cut();
                }
                if self.lanes.iter().all(is_idle) {
                    self.check_parked_polls()?;
                    self.ops.retain(|_, op| !matches!(op, Op::Poll { .. }));
                    if self.ops.is_empty() {
                        return Ok(());
                    }
                    return Err(format!("IB21: {} requests were never answered", self.ops.len()));
                }
            }
        }
        Err("IB21: the bookie never comes to rest".into())
    }

    /// After a restart: all that was acknowledged, all fences, all LACs.
    pub(super) fn check_everything(&mut self) -> Check {
        let machine = self.machine.take().expect("just opened");
        let is_known = |ledger| machine.engine.presence(ledger) == LedgerPresence::Known;
        let settled = self.ghost.settle_removals(is_known);
        let verdict = settled.and_then(|()| self.check_undecided(&machine));
        let verdict = verdict.and_then(|()| self.check_machine(&machine));
        let verdict = verdict.and_then(|()| self.check_files(&machine));
        let verdict = verdict.and_then(|()| self.check_lists_of(&machine));
        self.machine = Some(machine);
        verdict
    }

    pub(super) fn check_machine(&mut self, machine: &Machine) -> Check {
        let engine = &machine.engine;
        let entry_id = |entry| EntryId::new(entry).expect("not negative");
        self.check_tier_of(machine)?;
        if self.ghost.is_sync {
            self.ghost.check_prefix(|ledger, entry| read_now(engine, ledger, entry_id(entry)))?;
        }
        for ledger in self.ghost.ledgers() {
            for entry in self.ghost.entries(ledger) {
                let result = read_now(engine, ledger, entry_id(entry));
                self.ghost.check_read(ledger, entry, &result)?;
            }
            let last = match engine.read(ledger, EntryRef::Last) {
                Ok(Lookup::Memory(body)) => Ok(body.to_vec()),
                Ok(Lookup::Disk(read)) => read.load(),
                Ok(Lookup::Tiered(_)) => Err(Refusal::Tiered),
                Ok(Lookup::Undurable(_)) => return Err("nothing is undurable after a start".into()),
                Err(refusal) => Err(refusal),
            };
            self.ghost.check_last(ledger, &last)?;
            self.ghost.check_lac(ledger, engine.last_add_confirmed(ledger))?;
            self.ghost.check_explicit_lac(ledger, engine.explicit_lac(ledger))?;
            // Forgotten with the ledger: metadata is asked before the next writer is believed (`Sim::check_late`).
            let is_forgotten =
                self.ghost.is_removed(ledger) && engine.presence(ledger) == LedgerPresence::Unknown;
            if self.ghost.is_fence_answered(ledger) && !is_forgotten {
                check_fenced(machine, ledger)?;
            }
        }
        Ok(())
    }
}
