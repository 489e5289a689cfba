//! Adds that wait for a verdict of metadata, and a bookie whose disks are lost and replaced by empty ones.
//!
//! IB28: no normal add of a ledger that the bookie may have held before is acknowledged without a verdict that lets it
//! pass. IB27: lost entries are answered as unknown, until they were copied back.

use super::{Inbox, KEY, Op, Sim, Step, WRONG_KEY, Writable};
use crate::bookie::ghost::Check;
use crate::disk::SimDisk;
use bindery_engine::{Add, AddDone, LedgerPresence, MetadataVerdict, Origin, Refusal};
use bindery_types::{EntryId, LedgerId};
use std::sync::Arc;

/// An add that the bookie left with its server.
pub(super) struct Held {
    pub(super) ledger: LedgerId,
    pub(super) entry: i64,
    pub(super) lac: i64,
    pub(super) is_recovery: bool,
    pub(super) is_key_right: bool,
    pub(super) is_high_priority: bool,
    pub(super) body: Vec<u8>,
}

/// How far a bookie with empty disks has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Comeback {
    /// Its disks were never lost, or all that is over.
    #[default]
    No,
    /// Every ledger that it might have held is in limbo.
    Covered,
    /// As before, and the marks of those that it did hold are on their way.
    Marking,
    /// The journal runs without sync: the marks are forced before the cover ends.
    Forcing,
}

impl Sim {
    /// The verdict of metadata on a ledger, if it has one. OPEN with this bookie in the last ensemble unless a client
    /// deleted it or began a recovery.
    fn verdict_of(&self, ledger: LedgerId) -> MetadataVerdict {
        if self.random.chance(0.15) {
            MetadataVerdict::Silent
        } else if self.deleted.contains(&ledger) {
            MetadataVerdict::Absent
        } else if self.ended.contains(&ledger) {
            MetadataVerdict::Ended
        } else if self.random.chance(0.1) {
            MetadataVerdict::OpenElsewhere
        } else {
            MetadataVerdict::OpenHere
        }
    }

    /// Metadata is read for one of the adds that wait, and the add goes on.
    pub(super) fn settle_a_word(&mut self) -> Check {
        if self.held.is_empty() {
            return Ok(());
        }
        let held = self.held.remove(self.random.below(self.held.len() as u64) as usize);
        let (ledger, key) = (held.ledger, if held.is_key_right { KEY } else { WRONG_KEY });
        self.meet(ledger)?;
        let engine = self.machine().engine.clone();
        let was_removed = engine.presence(ledger) == LedgerPresence::Removed;
        if was_removed && !self.ghost.is_removed(ledger) {
            // The removal is on its way, and answers to adds before it.
            self.held.push(held);
            return Ok(());
        }
        if !held.is_key_right && (was_removed || !self.ghost.is_key_durable(ledger)) {
            // The ledger starts over: any key may be its first.
            return Ok(());
        }
        let word = self.verdict_of(ledger);
        match engine.on_verdict(ledger, key, held.is_recovery, word) {
            Ok(()) => {}
            Err(Refusal::NoEntry | Refusal::NoLedger | Refusal::BadRequest) => {
                return Err(format!("an add of {ledger} that waited for a word was refused as a read"));
            }
            Err(_) => return Ok(()),
        }
        if was_removed {
            let may_come_back = match word {
                MetadataVerdict::OpenHere => true,
                MetadataVerdict::Ended | MetadataVerdict::OpenElsewhere => held.is_recovery,
                MetadataVerdict::Absent | MetadataVerdict::Silent => false,
            };
            if !may_come_back {
                return Err(format!("IB17: removed ledger {ledger} came back at the word {word:?}"));
            }
            self.ghost.begin_life(ledger);
            if held.is_recovery {
                self.ghost.enter_limbo(ledger);
            }
        }
        if word == MetadataVerdict::OpenHere && !held.is_recovery {
            self.spoken.insert(ledger);
            self.late.remove(&ledger);
        }
        self.offer(held);
        Ok(())
    }

    fn offer(&mut self, mut held: Held) {
        let Held { ledger, entry, lac, is_recovery, is_key_right, .. } = held;
        // It is submitted only now; its number makes its body unique.
        let submission = self.ghost.next_submission();
        held.body[32..40].copy_from_slice(&submission.to_be_bytes());
        let writable = self.writable(ledger, is_recovery, held.is_high_priority);
        let op = self.op(Op::Add { ledger, entry, submission, lac, is_recovery, is_key_right, writable });
        let engine = self.machine().engine.clone();
        let add = Add {
            origin: Origin { connection: 1, txn: op, tag: 0 },
            ledger,
            entry: EntryId::new(entry).expect("not negative"),
            last_add_confirmed: EntryId::new(lac),
            key: if is_key_right { KEY } else { WRONG_KEY },
            body: &held.body,
            is_recovery,
            is_high_priority: held.is_high_priority,
        };
        let shard = engine.shard_of(ledger);
        let is_refused = writable != Writable::Yes || (engine.is_fenced(ledger) && !is_recovery);
        let (seen, mut asks) = (engine.tiered(ledger), Vec::new());
        if engine.add_judged(shard, &[add], None, seen.as_ref(), &mut asks) == 0 {
            self.ops.remove(&op);
        } else if is_key_right {
            let order = (!is_refused).then_some(shard);
            self.ghost.on_submitted(order, ledger, entry, submission, lac, &held.body);
        }
    }

    /// IB28: the word came after the start, the removal, the limbo.
    pub(super) fn check_spoken(&self, ledger: LedgerId, entry: i64, is_recovery: bool) -> Check {
        let is_checked = self.profile.engine.checked_up_to.is_some_and(|up_to| ledger <= up_to);
        if !is_checked || is_recovery || self.spoken.contains(&ledger) {
            return Ok(());
        }
        Err(format!("IB28: normal add {ledger}:{entry} was acknowledged without a word of metadata"))
    }

    // ---- lost disks --------------------------------------------------------------------------------------------

    /// The machine comes back with empty disks, and an operator nevertheless starts the bookie under its id.
    pub(super) fn wipe_and_restart(&mut self) -> Step {
        self.leave_ingest();
        self.undecided.clear();
        self.machine = None;
        self.lanes.clear();
        self.tickets.clear();
        self.inbox = Inbox::default();
        self.ops.clear();
        self.wipes += 1;
        let random = self.random.child(&format!("disk/{}", self.wipes));
        self.disk = Arc::new(SimDisk::new(self.profile.disk.clone(), &random));
        self.make_root();
        self.marks.clear();
        // With the disks the memory of fences is gone; IB28 is what holds then.
        self.late.clear();
        let known = self.in_metadata();
        let highest = known.last().copied();
        self.profile.engine.limbo_up_to = highest;
        self.profile.engine.checked_up_to = highest;
        self.comeback = Comeback::Covered;
        self.ghost.on_wiped(highest, |ledger| known.contains(&ledger));
        self.open()
    }

    /// The way back from lost disks, a step: marks, the end of the cover, copies, sound again.
    pub(super) fn step_comeback(&mut self) -> Check {
        let engine = self.machine().engine.clone();
        match self.comeback {
            Comeback::Covered => {
                for ledger in self.ghost.limbo_ledgers() {
                    let op = self.op(Op::Mark);
                    engine.set_limbo(ledger, true, self.inbox.waiter(op));
                }
                self.comeback = Comeback::Marking;
                self.marks_failed = false;
            }
            Comeback::Marking | Comeback::Forcing if self.ops.values().any(|op| matches!(op, Op::Mark)) => {}
            Comeback::Marking | Comeback::Forcing if self.marks_failed => self.comeback = Comeback::Covered,
            Comeback::Marking if !self.ghost.is_sync => {
                for ledger in self.ghost.limbo_ledgers() {
                    let op = self.op(Op::Mark);
                    engine.force(ledger, self.inbox.waiter(op));
                }
                self.comeback = Comeback::Forcing;
            }
            Comeback::Marking | Comeback::Forcing => {
                engine.end_cover();
                self.profile.engine.limbo_up_to = None;
                self.ghost.end_cover();
                self.comeback = Comeback::No;
            }
            Comeback::No => self.repair_a_ledger(),
        }
        Ok(())
    }

    /// Copies back what a ledger in limbo lacks, or says that it lacks nothing.
    fn repair_a_ledger(&mut self) {
        let engine = self.machine().engine.clone();
        let limbo = self.ghost.limbo_ledgers();
        if limbo.is_empty() {
            return;
        }
        let ledger = limbo[self.random.below(limbo.len() as u64) as usize];
        if self.writable(ledger, true, true) != Writable::Yes
            || self.ops.values().any(|op| matches!(op, Op::Sound { ledger: l } if *l == ledger))
            || engine.presence(ledger) != LedgerPresence::Known
        {
            return;
        }
        let Some(lost) = self.ghost.lost(ledger) else { return };
        if lost.is_empty() {
            // Only what is durable counts as copied.
            let op = self.op(Op::Sound { ledger });
            self.ghost.leave_limbo(ledger);
            self.spoken.remove(&ledger);
            engine.set_limbo(ledger, false, self.inbox.waiter(op));
            return;
        }
        for (entry, submission, lac, body) in lost.into_iter().take(4) {
            let op = self.op(Op::Repair { ledger, entry, submission });
            let add = Add {
                origin: Origin { connection: 1, txn: op, tag: 0 },
                ledger,
                entry: EntryId::new(entry).expect("not negative"),
                last_add_confirmed: EntryId::new(lac),
                key: KEY,
                body: &body,
                is_recovery: true,
                is_high_priority: true,
            };
            let (seen, mut asks) = (engine.tiered(ledger), Vec::new());
            if engine.add_judged(engine.shard_of(ledger), &[add], None, seen.as_ref(), &mut asks) == 0 {
                self.ops.remove(&op);
                return;
            }
        }
    }

    /// The answer to a copy.
    pub(super) fn on_repaired(&mut self, ledger: LedgerId, entry: i64, submission: u64, done: &AddDone) {
        if done.result.is_ok() {
            self.ghost.on_repaired(ledger, entry, submission);
        }
    }

    /// The answers to marks.
    pub(super) fn on_marked(&mut self, outcome: Result<(), Refusal>) {
        self.marks_failed |= outcome.is_err();
    }

    /// The answer to "sound again": after an error the ledger may still be in limbo.
    pub(super) fn on_sound(&mut self, ledger: LedgerId, outcome: Result<(), Refusal>) {
        match outcome {
            Ok(()) => self.ghost.left_limbo(ledger),
            Err(_) if self.machine().engine.limbo_ledgers().contains(&ledger) => {
                self.ghost.stays_in_limbo(ledger);
            }
            // The journal failed with the record in it.
            Err(_) => {}
        }
    }

    /// After a restart: whether ledgers that were leaving limbo left it.
    pub(super) fn settle_limbo(&mut self) -> Check {
        if self.comeback != Comeback::No {
            self.comeback = Comeback::Covered;
        }
        let marked = self.machine().engine.limbo_ledgers();
        self.ghost.settle_limbo(|ledger| marked.binary_search(&ledger).is_ok())
    }
}
