//! Checks of a bookie at rest, and what changes between two starts.

use super::profile::{JOURNALS_MAX, journal_dirs};
use super::{Op, Sim, read_now};
use crate::bookie::ghost::Check;
use bindery_engine::{Machine, Refusal};
use bindery_types::EntryId;
use std::collections::BTreeSet;

impl Sim {
    /// IB21: no poll sleeps once the last add confirmed it waits for is shown.
    pub(super) fn check_parked_polls(&self) -> Check {
        for op in self.ops.values() {
            let Op::Poll { ledger, previous } = op else { continue };
            if self.ghost.is_removed(*ledger) {
                return Err(format!("IB21: a poll of removed ledger {ledger} sleeps"));
            }
            let lac = self.machine().engine.last_add_confirmed(*ledger);
            let shown = EntryId::to_wire(lac.unwrap_or(None));
            if shown > *previous {
                return Err(format!("IB21: a poll of {ledger} beyond {previous} sleeps at {shown}"));
            }
        }
        Ok(())
    }

    /// See [`Sim::check_lists_of`], of the running bookie.
    pub(super) fn check_lists(&mut self) -> Check {
        if self.disk.is_off() {
            return Ok(());
        }
        let mut machine = self.machine.take().expect("a bookie is running");
        let verdict = machine.flushing.check_dead_bytes().map_err(|error| format!("IB15: {error}"));
        let verdict = verdict.and_then(|()| self.check_lists_of(&machine));
        self.machine = Some(machine);
        verdict
    }

    /// A list of entries names exactly the entries that can be read. Nothing may be under way.
    pub(super) fn check_lists_of(&mut self, machine: &Machine) -> Check {
        if self.ghost.is_damaged {
            return self.check_lists_leave_damage_out(machine);
        }
        for ledger in self.ghost.ledgers() {
            let mut readable = BTreeSet::new();
            for entry in self.ghost.entries(ledger) {
                let id = EntryId::new(entry).expect("not negative");
                if matches!(read_now(&machine.engine, ledger, id), Ok(_) | Err(Refusal::Tiered)) {
                    readable.insert(entry);
                }
            }
            let runs = match machine.engine.list_entries(ledger) {
                Ok(runs) => {
                    // Entries that were let go are listed, whether somebody sent them here or not.
                    readable.extend(0..=self.ghost.trimmed(ledger));
                    runs
                }
                Err(Refusal::NoLedger) => Vec::new(),
                Err(Refusal::Unknown) if self.ghost.may_be_limbo(ledger) => continue,
                Err(other) => return Err(format!("the list of {ledger} failed with {other:?}")),
            };
            let listed: BTreeSet<i64> = runs.iter().flat_map(|r| r.first.get()..=r.last.get()).collect();
            // What the disk refused to read once may be left out until it is found sound.
            let suspects = machine.engine.damaged_of(ledger);
            let is_suspect = |entry: &i64| {
                suspects.iter().any(|range| (range.first.get()..=range.last.get()).contains(entry))
            };
            readable.retain(|entry| listed.contains(entry) || !is_suspect(entry));
            if listed != readable {
                let wrong: Vec<_> = listed.symmetric_difference(&readable).collect();
                return Err(format!(
                    "IB7: the list of {ledger} and its readable entries, {} let go, differ in {wrong:?}",
                    self.ghost.trimmed(ledger)
                ));
            }
            self.ghost.compared += 1;
        }
        Ok(())
    }

    /// A list does not name an entry that a read before it found damaged.
    fn check_lists_leave_damage_out(&self, machine: &Machine) -> Check {
        let engine = &machine.engine;
        let list = |ledger| engine.held_entries(ledger, EntryId::FIRST, EntryId::MAX).unwrap_or_default();
        for ledger in self.ghost.ledgers() {
            let all = list(ledger).into_iter().flat_map(|run| run.first.get()..=run.last.get());
            let is_bad = |entry: &EntryId| read_now(engine, ledger, *entry) == Err(Refusal::Io);
            let bad: Vec<EntryId> = all.filter_map(EntryId::new).filter(is_bad).collect();
            // The disk may have refused to read, and of some damage only the scrub finds what it is about.
            if self.is_media_damage_due() || engine.damage_summary().logs_with_more > 0 {
                return Ok(());
            }
            let named = list(ledger);
            let is_named =
                |entry: &&EntryId| named.iter().any(|run| run.first <= **entry && **entry <= run.last);
            if let Some(entry) = bad.iter().find(is_named) {
                return Err(format!("IB7: {ledger}:{entry} is listed, and a read before found it damaged"));
            }
        }
        Ok(())
    }

    /// An operator may change the number of shards and the size of the write pool between two starts, add journals,
    /// and take away drained ones: everything is replayed and flushed before the bookie serves.
    pub(super) fn redraw_layout(&mut self, are_journals_redrawn: bool) {
        self.journals_ever = self.journals_ever.max(self.profile.engine.journal_dirs.len());
        if self.restarts < 2 || !self.random.chance(0.3) {
            return;
        }
        if are_journals_redrawn {
            self.set_journals(1 + self.random.below(JOURNALS_MAX as u64) as usize);
        }
        let engine = &mut self.profile.engine;
        let fewest = engine.ledger_dirs.len().max(engine.journal_dirs.len()) as u64;
        let shards = fewest + self.random.below(4 - fewest);
        let chunks = shards * [4, 6, 12][self.random.below(3) as usize];
        engine.shard_count = shards as usize;
        engine.chunk_bytes = [8 << 10, 16 << 10, 64 << 10][self.random.below(3) as usize];
        engine.write_pool_bytes = chunks * engine.chunk_bytes as u64;
    }

    /// Configures so many journals, and as many shards as they need.
    pub(super) fn set_journals(&mut self, journals: usize) {
        let engine = &mut self.profile.engine;
        engine.shard_count = engine.shard_count.max(journals);
        let chunks = 4 * engine.shard_count as u64;
        engine.write_pool_bytes = engine.write_pool_bytes.max(chunks * engine.chunk_bytes as u64);
        self.journals_ever = self.journals_ever.max(journals);
        engine.journal_dirs = journal_dirs(0..journals);
        engine.former_journal_dirs = journal_dirs(journals..self.journals_ever);
    }
}
