//! Damaged entries that a repair brings back from other copies, between everything else; and, in the end, all of them.

use super::{KEY, Op, Sim, Writable};
use crate::bookie::ghost::{Check, Lost};
use crate::disk::FaultPlan;
use bindery_engine::{Add, Engine, LedgerPresence, Origin};
use bindery_types::{EntryId, LedgerId};
use std::collections::BTreeSet;
use std::time::Duration;

/// Rounds of repair at the end: what is damaged may be found by the reads of one.
const ROUNDS_MAX: usize = 8;

impl Sim {
    /// A worker looks at a ledger of which something is damaged, and brings some of what the bookie does not list.
    pub(super) fn step_heal(&mut self) {
        let known = self.machine().engine.damaged(None, 64);
        if known.is_empty() {
            return;
        }
        let ledger = known[self.heals.below(known.len() as u64) as usize].ledger;
        let lacking = self.lacking_here(ledger, true);
        let most = 1 + self.heals.below(6) as usize;
        if self.bring(ledger, &lacking[..most.min(lacking.len())]) > 0 {
            self.hit("heal.brought");
        }
    }

    /// What other bookies have of a ledger and this one does not list. `is_busy`: adds are under way.
    fn lacking_here(&self, ledger: LedgerId, is_busy: bool) -> Vec<Lost> {
        let engine = &self.machine().engine;
        let is_here = engine.presence(ledger) == LedgerPresence::Known;
        if !is_here || self.ghost.may_go(ledger) || self.writable(ledger, true, true) != Writable::Yes {
            return Vec::new();
        }
        let Some(held) = held(engine, ledger) else { return Vec::new() };
        let mut lacking = self.ghost.copies_elsewhere(ledger, is_busy);
        lacking.retain(|(entry, ..)| !held.contains(entry) && *entry > self.ghost.trimmed(ledger));
        lacking
    }

    /// Adds entries as a recovery does; returns how many found room.
    fn bring(&mut self, ledger: LedgerId, lacking: &[Lost]) -> usize {
        let engine = self.machine().engine.clone();
        for (count, (entry, submission, lac, body)) in lacking.iter().enumerate() {
            let op = self.op(Op::Repair { ledger, entry: *entry, submission: *submission });
            let add = Add {
                origin: Origin { connection: 1, txn: op, tag: 0 },
                ledger,
                entry: EntryId::new(*entry).expect("not negative"),
                last_add_confirmed: EntryId::new(*lac),
                key: KEY,
                body,
                is_recovery: true,
                is_high_priority: true,
            };
            let (seen, mut asks) = (engine.tiered(ledger), Vec::new());
            if engine.add_judged(engine.shard_of(ledger), &[add], None, seen.as_ref(), &mut asks) == 0 {
                self.ops.remove(&op);
                return count;
            }
        }
        lacking.len()
    }

    /// Once everything that is damaged was brought back, the bookie is as sound as any: all reads give their entries, lists have them,
    /// and nothing damaged is left on its disks.
    pub(super) fn heal_everything(&mut self) -> Check {
        if !self.ghost.is_damaged || self.is_media_damage_due() {
            return Ok(());
        }
        self.disk.set_faults(FaultPlan::default());
        for _ in 0..ROUNDS_MAX {
            let status = self.machine().engine.status();
            if self.disk.is_off() || status.failed.is_some() || !status.directories_failed.is_empty() {
                return Ok(());
            }
            self.machine().engine.set_read_only(false);
            for ledger in self.ghost.ledgers() {
                // Reads find what the scrub has not come to.
                for (entry, ..) in self.ghost.copies_elsewhere(ledger, false) {
                    let id = EntryId::new(entry).expect("not negative");
                    let _ = super::read_now(&self.machine().engine, ledger, id);
                }
                loop {
                    let lacking = self.lacking_here(ledger, false);
                    let brought = self.bring(ledger, &lacking);
                    self.drain()?;
                    if lacking.is_empty() || self.disk.is_off() || brought < lacking.len() {
                        break;
                    }
                }
            }
            self.want_freeze();
            self.drain()?;
            if self.disk.is_off() {
                return Ok(());
            }
            self.give_word_of_metadata();
            for _ in 0..400 {
                self.clock.advance(Duration::from_millis(20));
                self.step_space();
            }
            self.drain()?;
        }
        let status = self.machine().engine.status();
        if self.disk.is_off() || status.failed.is_some() || !status.directories_failed.is_empty() {
            return Ok(());
        }
        for ledger in self.ghost.ledgers() {
            self.check_healed(ledger)?;
        }
        let summary = self.machine().engine.damage_summary();
        if summary.logs == 0 {
            self.hit("heal.all");
            // From now on damage is no excuse.
            self.ghost.is_damaged = false;
            self.check_lists()?;
        }
        Ok(())
    }

    /// Every entry reads as it was acknowledged. Of a ledger that stays in limbo, or is about to go, damage may stay.
    fn check_healed(&mut self, ledger: LedgerId) -> Check {
        let engine = &self.machine().engine;
        if self.ghost.may_go(ledger)
            || self.ghost.may_be_limbo(ledger)
            || self.writable(ledger, true, true) != Writable::Yes
            || engine.presence(ledger) != LedgerPresence::Known
        {
            return Ok(());
        }
        for (entry, _, _, body) in self.ghost.copies_elsewhere(ledger, false) {
            let id = EntryId::new(entry).expect("not negative");
            let found = super::read_now(engine, ledger, id);
            if entry > self.ghost.trimmed(ledger) && found.as_ref() != Ok(&body) {
                let found = found.map(|body| body.len());
                return Err(format!("{ledger}:{entry} was brought back, and reads as {found:?}"));
            }
        }
        self.ghost.compared += 1;
        Ok(())
    }

    /// Of ledgers of which nothing is missing here, damaged copies are not needed: metadata says so.
    fn give_word_of_metadata(&mut self) {
        for ledger in self.ghost.ledgers() {
            let ranges = self.machine().engine.damaged_of(ledger);
            let engine = &self.machine().engine;
            if ranges.is_empty() || engine.presence(ledger) != LedgerPresence::Known {
                continue;
            }
            let Some(held) = held(engine, ledger) else { continue };
            let trimmed = self.ghost.trimmed(ledger);
            let mut wanted = self.ghost.copies_elsewhere(ledger, false).into_iter();
            if wanted.all(|(entry, ..)| entry <= trimmed || held.contains(&entry)) {
                engine.damage_is_made_good(&ranges);
            }
        }
    }
}

/// The entries that the bookie lists.
fn held(engine: &Engine, ledger: LedgerId) -> Option<BTreeSet<i64>> {
    let runs = engine.held_entries(ledger, EntryId::FIRST, EntryId::MAX).ok()?;
    Some(runs.iter().flat_map(|run| run.first.get()..=run.last.get()).collect())
}
