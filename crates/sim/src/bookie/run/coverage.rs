//! Rare states by name, counted as they come up: a swarm that never meets one says nothing about it.

use super::Sim;
use bindery_engine::LedgerPresence;
use bindery_io::Disk;
use std::path::Path;

/// Name of a rare state.
pub type Mark = &'static str;

/// All of them. A swarm of some hundred seeds meets each.
pub const MARKS: [Mark; 57] = [
    "journal.failed",
    "journal.file_taken",
    "journal.torn_tail",
    "journal.unsynced_hole",
    "start.interrupted",
    "start.refused_damage",
    "start.replayed",
    "start.waits_for_space",
    "start.same_cache",
    "start.same_cache_after_failed_sync",
    "flush.failed",
    "flush.freezing",
    "journal.refused_ahead",
    "flush.without_entries",
    "space.log_unlinked",
    "space.log_rewritten",
    "space.log_skipped",
    "space.output_failed",
    "space.merged_in_flush",
    "ledger.removed",
    "ledger.forgotten",
    "ledger.fence_forgotten",
    "ledger.refused",
    "add.no_room",
    "read.together",
    "read.waited_for_durable",
    "image.checked",
    "disk.full",
    "fault.read_error",
    "fault.latent_read_error",
    "fault.bit_rot",
    "fault.short_read",
    "fault.write_error",
    "fault.short_write",
    "fault.lost_write",
    "fault.misdirected_write",
    "fault.sync_error_new_data",
    "fault.sync_error_old_data",
    "fault.sync_error_next",
    "fault.sync_no_space",
    "fault.name_error",
    "fault.sync_dir_error",
    "ledger.revived",
    "force.covered",
    "tier.reconciled",
    "tier.said_again",
    "tier.gap_refused",
    "tier.no_room",
    "tier.trimmed",
    "tier.read",
    "ingest.committed",
    "ingest.dropped",
    "ingest.held",
    "ingest.put_off",
    "ingest.refused",
    "heal.brought",
    "heal.all",
];

impl Sim {
    pub(super) fn hit(&mut self, mark: Mark) {
        debug_assert!(MARKS.contains(&mark), "{mark} is not in the list");
        *self.hits.entry(mark).or_default() += 1;
    }

    /// Before the disk is replaced: its faults, and whether it was full.
    pub(super) fn note_faults(&mut self) {
        for (kind, hits) in self.disk.fault_hits() {
            let mark = MARKS.iter().find(|mark| mark.strip_prefix("fault.") == Some(kind.name()));
            if let Some(mark) = mark {
                *self.hits.entry(mark).or_default() += hits;
            }
        }
    }

    /// After a start.
    pub(super) fn note_start(&mut self, is_interrupted: bool) {
        let replayed = self.machine().replayed.clone();
        let found = [
            (is_interrupted, "start.interrupted"),
            (self.machine().flushing.is_waiting(), "start.waits_for_space"),
            (replayed.records > 0, "start.replayed"),
            (replayed.torn_tail.is_some(), "journal.torn_tail"),
            (replayed.unsynced_holes > 0, "journal.unsynced_hole"),
        ];
        found.into_iter().filter(|(is_so, _)| *is_so).for_each(|(_, mark)| self.hit(mark));
    }

    /// Before a bookie goes.
    pub(super) fn note_space(&mut self) {
        let Some(machine) = &self.machine else { return };
        let status = machine.engine.space_status();
        let found = [
            (status.logs_rewritten, "space.log_rewritten"),
            (status.skipped.len() as u64, "space.log_skipped"),
            (status.errors, "space.output_failed"),
            (machine.engine.ledger_memory().refused, "ledger.refused"),
            (machine.engine.stats().merge_in_flush_ns, "space.merged_in_flush"),
        ];
        for (count, mark) in found.into_iter().filter(|(count, _)| *count > 0) {
            *self.hits.entry(mark).or_default() += count;
        }
    }

    /// Somebody else fills the disk, and makes room again.
    pub(super) fn step_capacity(&mut self) {
        if self.profile.fill == 0.0 || self.disk.is_off() {
            return;
        }
        if self.checks.chance(self.profile.fill) {
            self.fill_disk();
        } else if self.checks.chance(0.05) {
            self.disk.set_capacity(None);
        }
    }

    pub(super) fn fill_disk(&mut self) {
        let Ok(space) = self.disk.space(Path::new("/data")) else { return };
        let room = self.checks.below(64 << 10);
        self.disk.set_capacity(Some(space.total - space.free + room));
        self.hit("disk.full");
    }

    /// The disk as it would be if the power went now and nothing unsynced survived, with room on it.
    pub(super) fn image(&self) -> crate::disk::SimDisk {
        let image = self.disk.durable_image();
        image.set_capacity(None);
        image
    }

    /// A removed ledger was forgotten.
    pub(super) fn note_forgotten(&mut self) {
        let forgotten = |ledger| {
            self.ghost.is_removed(ledger) && self.machine().engine.presence(ledger) == LedgerPresence::Unknown
        };
        if self.ghost.ledgers().into_iter().any(forgotten) {
            self.hit("ledger.forgotten");
        }
    }
}
