//! The journals at a start: each behind what the ledger directories say of it, and those that are configured no more.
//!
//! # Invariants
//! 1. A journal that the directories were written with is there with its files, or the start is refused.
//! 2. A journal that is no longer configured has nothing behind the lowest mark, which is checked, or the start is
//!    refused. Its component stays in the state tables: a journal that later takes its number goes on behind it.

use super::{OpenError, ReplayFault};
use crate::config::EngineConfig;
use crate::journals::MarkVector;
use bindery_io::{Disk, Random};
use bindery_journal::{Journal, JournalConfig, OpenError as JournalOpenError};
use bindery_storage::Meta;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the ledger directories say of the journals.
pub(super) struct Coverage {
    /// Groups up to it are in every directory that was here before.
    pub(super) lowest: MarkVector,
    /// Groups up to it are in some directory, so they were written.
    pub(super) newest: MarkVector,
    /// Journals that some directory was written with.
    pub(super) journals: usize,
}

impl Coverage {
    /// From the marks and the layouts of the directories that have them.
    pub(super) fn of(marks: &[Option<MarkVector>], metas: &[Option<Meta>]) -> Coverage {
        let mut known = marks.iter().flatten();
        let mut lowest = known.next().cloned().unwrap_or_default();
        let mut newest = lowest.clone();
        for marks in known {
            lowest.meet(marks);
            newest.join(marks);
        }
        let journals = metas.iter().flatten().map(|meta| meta.journals as usize).max().unwrap_or(0);
        Coverage { lowest, newest, journals }
    }
}

/// Opens the configured journals, by number. Nothing is written.
pub(super) fn open_all(
    config: &EngineConfig,
    coverage: &mut Coverage,
    disk: &Arc<dyn Disk>,
    random: &Arc<dyn Random>,
) -> Result<Vec<Journal>, OpenError> {
    let mut journals = Vec::with_capacity(config.journal_dirs.len());
    for (number, dir) in config.journal_dirs.iter().enumerate() {
        let mut journal = open(config, number, dir, disk, random)?;
        let newest = coverage.newest.of_journal(number);
        journal.raise_file_id(newest.file_id);
        if config.accepts_journal_damage {
            journal.accept_damage();
        }
        if number >= coverage.journals {
            // A journal of that number was drained and taken away, if there was one: this one goes on behind it, and a
            // directory that never heard of it lacks nothing.
            coverage.lowest.raise(number, newest);
        } else if newest.group > 0 && journal.file_count() == 0 && !config.accepts_journal_damage {
            return Err(OpenError::JournalMissing { path: dir.clone(), expected: newest.group });
        }
        journals.push(journal);
    }
    Ok(journals)
}

/// Refuses a start without a journal that is not drained (invariant 2).
pub(super) fn check_former(
    config: &EngineConfig,
    coverage: &Coverage,
    disk: &Arc<dyn Disk>,
    random: &Arc<dyn Random>,
) -> Result<(), OpenError> {
    let configured = config.journal_dirs.len();
    for number in configured..coverage.journals {
        let Some(dir) = config.former_journal_dirs.get(number - configured) else {
            let found = coverage.journals;
            return Err(OpenError::JournalRemoved { number, found, configured });
        };
        let failed =
            |source| unusable(JournalOpenError::Io { action: "look for", path: dir.clone(), source });
        let is_there = disk.exists(dir).map_err(failed)?;
        let expected = coverage.newest.of_journal(number).group;
        // Records lost with it are unknown from now on, as with a journal that is in use.
        let accepts = config.accepts_journal_damage;
        if !is_there && accepts {
            continue;
        }
        if !is_there {
            return Err(OpenError::JournalMissing { path: dir.clone(), expected });
        }
        let mut journal = open(config, number, dir, disk, random)?;
        if accepts {
            journal.accept_damage();
        }
        if expected > 0 && journal.file_count() == 0 && !accepts {
            return Err(OpenError::JournalMissing { path: dir.clone(), expected });
        }
        let covered = coverage.lowest.of_journal(number).group;
        let replayed = journal.replay(covered, |_, _| Ok::<(), ReplayFault>(())).map_err(Box::new)?;
        if replayed.records > 0 {
            return Err(OpenError::JournalNotDrained { path: dir.clone(), records: replayed.records });
        }
        let is_explained = replayed.unsynced_holes > 0 || accepts;
        if replayed.last_group < expected && config.journal_sync && !is_explained {
            return Err(OpenError::JournalEnds { path: dir.clone(), last: replayed.last_group, expected });
        }
        tracing::info!(number, path = %dir.display(), "this journal is drained and no longer used");
    }
    Ok(())
}

fn unusable(error: JournalOpenError) -> OpenError {
    OpenError::Journal(Box::new(error.into()))
}

/// Opens one journal.
fn open(
    config: &EngineConfig,
    number: usize,
    dir: &Path,
    disk: &Arc<dyn Disk>,
    random: &Arc<dyn Random>,
) -> Result<Journal, OpenError> {
    let journal_config = JournalConfig {
        dir: PathBuf::from(dir),
        file_bytes: config.journal_file_bytes,
        owner: format!("{} {}", config.instance_id, config.bookie_id),
        journal: u16::try_from(number).expect("validate bounds the number of journals"),
        is_tiered: config.tier_extents_bytes > 0,
        bytes_max: config.journal_cap_bytes(),
        sync: config.journal_sync,
        canaries: config.canaries,
    };
    Journal::open(disk.clone(), journal_config, random.clone()).map_err(unusable)
}
