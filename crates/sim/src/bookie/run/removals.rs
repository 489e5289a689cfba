//! Ledgers that go, and some that come back.

use super::{KEY, Op, Sim};
use crate::bookie::ghost::Check;
use bindery_engine::{LedgerPresence, Machine, Refusal, WantedCollection};
use bindery_io::Disk;
use bindery_types::LedgerId;

impl Sim {
    /// A request that could create the ledger is about to be made. A ledger that was removed may be forgotten, and then
    /// starts over; any other stays removed (IB17). One that was fenced takes no normal add then before metadata has answered
    /// ([`Sim::check_late`]).
    pub(super) fn meet(&mut self, ledger: LedgerId) -> Check {
        if !self.ghost.is_removed(ledger) {
            return Ok(());
        }
        match self.machine().engine.presence(ledger) {
            LedgerPresence::Removed => Ok(()),
            LedgerPresence::Known => Err(format!("IB17: removed ledger {ledger} exists again")),
            LedgerPresence::Unknown => {
                if self.ghost.is_fence_answered(ledger) {
                    self.hit("ledger.fence_forgotten");
                    self.late.insert(ledger);
                }
                self.ghost.begin_life_unfenced(ledger);
                Ok(())
            }
        }
    }

    /// IB5: the ledger was fenced, and is forgotten. Its late writer adds nothing.
    pub(super) fn check_late(&self, ledger: LedgerId, entry: i64, is_recovery: bool) -> Check {
        if is_recovery || !self.late.contains(&ledger) {
            return Ok(());
        }
        Err(format!(
            "IB5: normal add {ledger}:{entry} was acknowledged after the ledger was fenced and forgotten"
        ))
    }

    /// Metadata lost a ledger, or names this bookie for it again.
    pub(super) fn submit_removal(&mut self) -> Check {
        let engine = self.machine().engine.clone();
        if self.random.chance(0.3) {
            let gone: Vec<LedgerId> =
                self.ghost.ledgers().into_iter().filter(|ledger| self.ghost.is_removed(*ledger)).collect();
            if gone.is_empty() {
                return Ok(());
            }
            let ledger = gone[self.random.below(gone.len() as u64) as usize];
            self.meet(ledger)?;
            if engine.presence(ledger) == LedgerPresence::Removed && engine.status().failed.is_none() {
                self.ghost.begin_life(ledger);
                let op = self.op(Op::Revive { ledger });
                engine.revive_ledger(ledger, KEY, self.inbox.waiter(op));
                // Metadata spoke for it.
                self.spoken.insert(ledger);
                self.late.remove(&ledger);
                if engine.presence(ledger) == LedgerPresence::Removed {
                    // No room for the record.
                    self.ghost.on_remove_submitted(ledger);
                }
            }
            return Ok(());
        }
        let ledger = self.some_ledger();
        self.meet(ledger)?;
        if engine.presence(ledger) == LedgerPresence::Unknown {
            return Ok(());
        }
        let life = self.ghost.on_remove_submitted(ledger);
        let op = self.op(Op::Remove { ledger, life });
        engine.remove_ledger(ledger, self.inbox.waiter(op));
        if let Some(slot) = self.slots.iter_mut().find(|slot| **slot == ledger)
            && self.random.chance(0.8)
        {
            self.retired.push(ledger);
            *slot = LedgerId::new(10_000 + self.retired.len() as i64).expect("not negative");
        }
        Ok(())
    }

    /// IB17: the durable image has nothing of a ledger whose removal was answered.
    pub(super) fn on_removed(&mut self, ledger: LedgerId, life: u32, outcome: Result<(), Refusal>) -> Check {
        match outcome {
            Ok(()) => {
                self.ghost.on_removed(ledger, life);
                self.hit("ledger.removed");
                if !self.ghost.is_removed(ledger) || !self.ghost.is_sync || !self.random.chance(0.3) {
                    return Ok(());
                }
                self.check_image(|_, image| match image.engine.presence(ledger) {
                    LedgerPresence::Removed | LedgerPresence::Unknown => Ok(()),
                    LedgerPresence::Known => {
                        Err(format!("IB17: removed ledger {ledger} is in the durable image"))
                    }
                })
            }
            Err(Refusal::TooManyRequests)
                if self.machine().engine.presence(ledger) == LedgerPresence::Known =>
            {
                self.ghost.on_remove_refused(ledger);
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }

    /// Gives space back, a step.
    pub(super) fn step_space(&mut self) {
        if self.random.chance(0.1) {
            let wanted = WantedCollection { minor: self.random.chance(0.5), major: self.random.chance(0.5) };
            self.machine().engine.want_collection(wanted);
        }
        if self.random.chance(0.02) {
            self.machine().engine.want_scrub();
        }
        let machine = self.machine.as_mut().expect("a bookie is running");
        if let Some(Ok(flushed)) = machine.flushing.retry() {
            machine.journals[flushed.journal].on_flushed(flushed);
        }
        // A failure costs a directory or latches the engine, which the schedule notices.
        let _ = machine.flushing.tend();
    }

    /// IB18: after a start the ledger directories hold the files of live logs and no others.
    pub(super) fn check_files(&self, machine: &Machine) -> Check {
        let mut files = 0;
        for dir in &self.profile.engine.ledger_dirs {
            let Ok(names) = self.disk.list(dir) else { return Ok(()) };
            files += names.iter().filter(|file| file.name.ends_with(".elog")).count() as u64;
        }
        let logs = machine.engine.stats().entry_logs;
        if files == logs {
            Ok(())
        } else {
            Err(format!("IB18: {files} entry log files for {logs} live logs"))
        }
    }

    pub(super) fn step_forget(&mut self) {
        let machine = self.machine.as_mut().expect("a bookie is running");
        // A failure latches the engine, which the schedule notices.
        let _ = machine.flushing.forget_removed();
        self.note_forgotten();
    }
}
