//! Damage to the medium, put where the bookie can tell it from a write that never finished.

use super::{GroupPlaces, Sim};
use crate::bookie::ghost::Check;
use crate::disk::{FaultKind, FaultPlan};
use bindery_io::{BLOCK_SIZE_BYTES, Disk};
use bindery_journal::inspect;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

impl Sim {
    /// Inverts bits of a durable entry log: the only effect allowed is that its entries become errors.
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

    /// IB29: a scrub right behind a start, when all log files are live, finds the logs that the medium holds wrongly, and
    /// no others.
    pub(super) fn check_scrub(&mut self) -> Check {
        if self.disk.is_off() || self.machine().engine.status().failed.is_some() {
            return Ok(());
        }
        self.disk.set_faults(FaultPlan::default());
        let mut live = BTreeSet::new();
        for dir in &self.profile.engine.ledger_dirs {
            let files =
                self.disk.list(dir).map_err(|error| format!("{} has no list: {error}", dir.display()))?;
            let logs = files.into_iter().filter(|file| file.name.ends_with(".elog"));
            live.extend(logs.map(|file| dir.join(file.name)));
        }
        let request = self.machine().engine.want_scrub();
        let machine = self.machine.as_mut().expect("a bookie is running");
        // A log that a rewrite replaces before its turn cannot be checked, so none is left to go: nothing but the scrub.
        let mut steps = 0;
        while machine.engine.scrub_status().answered < request {
            steps += 1;
            if steps > 100_000 {
                return Err("IB29: a scrub does not end".to_owned());
            }
            self.clock.advance(Duration::from_millis(50));
            machine.flushing.scrub_alone();
        }
        let status = machine.engine.scrub_status();
        let found: BTreeSet<&Path> = status.listed.iter().map(|finding| Path::new(&finding.file)).collect();
        let planted: BTreeSet<PathBuf> = self
            .disk
            .damage()
            .into_iter()
            .map(|damage| damage.path)
            .filter(|path| live.contains(path))
            .collect();
        self.ghost.compared += live.len() as u64;
        if let Some(wrong) = found.iter().find(|path| !planted.contains(**path)) {
            return Err(format!("IB29: the scrub found damage in {}, which is sound", wrong.display()));
        }
        // A lost write may go unseen until the next start: the cache has it.
        let lasting = |kind| matches!(kind, FaultKind::BitRot | FaultKind::LatentReadError);
        let damage = self.disk.damage().into_iter().filter(|damage| lasting(damage.kind));
        let missed = damage
            .map(|damage| damage.path)
            .find(|path| live.contains(path) && !found.contains(path.as_path()));
        // Findings kept are bounded; the same bits inverted twice are as they were.
        let is_full = status.listed.len() >= 100;
        match missed.filter(|path| !is_full && !self.is_restored(path)) {
            Some(missed) => Err(format!("IB29: the scrub missed the damage in {}", missed.display())),
            None => Ok(()),
        }
    }

    /// True when two damages of the file overlap and may have undone each other.
    fn is_restored(&self, path: &Path) -> bool {
        let damage = self.disk.damage();
        let of_file: Vec<_> = damage.iter().filter(|damage| damage.path == path).map(|d| &d.bytes).collect();
        of_file.iter().enumerate().any(|(at, one)| {
            of_file[at + 1..].iter().any(|other| one.start < other.end && other.start < one.end)
        })
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
