//! Damage to the medium, put where the bookie can tell it from a write that never finished.

use super::{GroupPlaces, Sim};
use bindery_io::{BLOCK_SIZE_BYTES, Disk};
use bindery_journal::inspect;
use std::path::PathBuf;
use std::sync::Arc;

impl Sim {
    /// Inverts bits of a durable entry log: its entries may become errors, nothing else.
    pub(super) fn damage_an_entry_log(&mut self) {
        for dir in self.profile.engine.ledger_dirs.clone() {
            let Ok(files) = self.disk.list(&dir) else { continue };
            let logs: Vec<_> = files.iter().filter(|f| f.name.ends_with(".elog") && f.len > 0).collect();
            if logs.is_empty() || self.random.chance(0.3) {
                continue;
            }
            let log = logs[self.random.below(logs.len() as u64) as usize];
            let offset = self.random.below(log.len);
            if self.disk.flip_bits(&dir.join(&log.name), offset, 1 + self.random.below(64) as u32).is_ok() {
                self.ghost.is_damaged = true;
            }
        }
    }

    /// Inverts bits inside a group of the newest file of a journal that another group follows: unlike damage to the last
    /// group, it cannot be taken for a write that never finished.
    pub(super) fn damage_the_journal(&mut self) {
        let dirs = &self.profile.engine.journal_dirs;
        let dir = dirs[self.random.below(dirs.len() as u64) as usize].clone();
        let Ok(files) = self.disk.list(&dir) else { return };
        let disk: Arc<dyn Disk> = self.disk.clone();
        let mut newest: Option<(u64, PathBuf, GroupPlaces)> = None;
        for file in files {
            let path = dir.join(&file.name);
            let (mut file_id, mut groups) = (0, Vec::new());
            let walked = inspect::walk(&disk, &path, |item| match item {
                inspect::Item::Header(Ok(header)) => file_id = header.identity.file_id,
                inspect::Item::Group(group, _) => groups.push((group.offset, group.total_bytes)),
                inspect::Item::Header(Err(_)) | inspect::Item::End { .. } => {}
            });
            if walked.is_ok() && newest.as_ref().is_none_or(|(id, ..)| *id < file_id) {
                newest = Some((file_id, path, groups));
            }
        }
        let Some((_, path, groups)) = newest else { return };
        if groups.len() < 2 {
            return;
        }
        let (offset, length) = groups[self.random.below(groups.len() as u64 - 1) as usize];
        // At most 64 bits in a row: they stay inside the group, or the last one might be hit after all.
        let at = offset + self.random.below(length.min(BLOCK_SIZE_BYTES as u64) - 8);
        if self.disk.flip_bits(&path, at, 1 + self.random.below(64) as u32).is_ok() {
            self.ghost.is_damaged = true;
        }
    }
}
