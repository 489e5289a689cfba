//! Opening an engine: ledger directories, then the journal behind their marks, then one flush.
//!
//! # Invariants
//! 1. Replay starts behind the lowest mark of any directory; applying a record that a directory has already is
//!    harmless, because a later generation holds the same content.
//! 2. When opening returns, everything the journal held is committed in the directories and its files are free. So a
//!    change of the number of shards or directories needs nothing else.

use crate::config::{ConfigFaults, EngineConfig};
use crate::engine::Engine;
use crate::machine::{FlushError, Flushing, FreezeTicket, Journaling, mark_of};
use crate::shard::NoRoom;
use crate::write_cache::Frozen;
use bindery_io::{Clock, Disk, Random};
use bindery_journal::{Journal, JournalConfig, ReplayError, Replayed};
use bindery_storage::{DirectoryCommit, LedgerDirectory, Mark, Meta};
use std::path::PathBuf;
use std::sync::Arc;

/// Why an engine cannot be opened. Nothing is lost: what is on disk stays as it was.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Settings that cannot work.
    #[error(transparent)]
    Config(#[from] ConfigFaults),
    /// A directory cannot be made.
    #[error("cannot create directory {}: {source}", path.display())]
    Create {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A ledger directory is unusable.
    #[error("ledger directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: bindery_storage::DirectoryError,
    },
    /// A ledger directory belongs to somebody else.
    #[error(
        "ledger directory {} belongs to bookie {found_bookie} of cluster {found_instance:?}, and this is bookie \
         {bookie} of cluster {instance:?}: give each bookie its own directories",
        path.display()
    )]
    OtherOwner {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        found_bookie: String,
        /// Of which cluster.
        found_instance: String,
        /// Who we are.
        bookie: String,
        /// Our cluster.
        instance: String,
    },
    /// The journal is unusable, or damaged where acknowledged entries may be.
    #[error(transparent)]
    Journal(#[from] Box<ReplayError<FlushError>>),
    /// The directories cover groups that the journal does not have any more.
    #[error(
        "the journal files in {} are gone: the ledger directories expect them up to group {expected}. If the journal \
         is on another disk, mount it and start again",
        path.display()
    )]
    JournalMissing {
        /// The journal directory.
        path: PathBuf,
        /// Last group known to have been written.
        expected: u64,
    },
    /// Replayed entries cannot be written to a ledger directory.
    #[error(transparent)]
    Flush(#[from] FlushError),
}

/// An engine that is ready to be driven, by threads or by the simulator.
pub struct Machine {
    /// What requests go to.
    pub engine: Arc<Engine>,
    /// The journal's half.
    pub journaling: Journaling,
    /// The ledger directories' half.
    pub flushing: Flushing,
    /// What the restart found.
    pub replayed: Replayed,
}

impl Machine {
    /// Opens everything, replays the journal and flushes what it held. Blocks on the disk.
    pub fn open(
        config: EngineConfig,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Machine, OpenError> {
        config.validate()?;
        for dir in config.ledger_dirs.iter().chain([&config.journal_dir]) {
            make_dir(&*disk, dir).map_err(|source| OpenError::Create { path: dir.clone(), source })?;
        }
        let mut directories = Vec::new();
        let mut known = Vec::new();
        let mut marks: Vec<Mark> = Vec::new();
        for (index, path) in config.ledger_dirs.iter().enumerate() {
            let failed = |source| OpenError::Directory { path: path.clone(), source };
            let mut opened = LedgerDirectory::open(&disk, path).map_err(failed)?;
            let meta = meta_of(&config, index);
            if let Some(found) = &opened.recovered.meta {
                check_owner(path, found, &meta)?;
            }
            if opened.recovered.meta.as_ref() != Some(&meta) {
                let commit = DirectoryCommit { meta: Some(&meta), ..Default::default() };
                opened.directory.commit(&commit).map_err(failed)?;
            }
            marks.push(opened.recovered.marks.first().map_or(Mark { file_id: 0, group: 0 }, |m| m.mark));
            known.append(&mut opened.recovered.ledgers);
            directories.push(opened.directory);
        }
        let journal_config = JournalConfig {
            dir: config.journal_dir.clone(),
            file_bytes: config.journal_file_bytes,
            owner: format!("{} {}", config.instance_id, config.bookie_id),
            sync: config.journal_sync,
            canaries: config.canaries,
        };
        let mut journal =
            Journal::open(disk.clone(), journal_config, random).map_err(|e| Box::new(e.into()))?;
        let newest = marks.iter().max().copied().expect("there is a ledger directory");
        journal.raise_file_id(newest.file_id);
        if newest.group > 0 && journal.file_count() == 0 {
            return Err(OpenError::JournalMissing {
                path: config.journal_dir.clone(),
                expected: newest.group,
            });
        }
        let views: Vec<_> = directories.iter().map(LedgerDirectory::view).collect();
        let generations = views.iter().flat_map(|view| view.logs()).map(|log| log.generation().0);
        let last_generation = generations.max().unwrap_or(0);
        let engine = Arc::new(Engine::new(config, views));
        for record in &known {
            engine.shards[engine.shard_of(record.ledger)].lock().restore(record);
        }
        let mut machine = Machine {
            journaling: Journaling {
                engine: engine.clone(),
                journal,
                clock: clock.clone(),
                is_flushing: false,
                is_sealed: true,
            },
            flushing: Flushing { engine: engine.clone(), directories, last_generation, clock },
            engine,
            replayed: Replayed::default(),
        };
        let lowest = marks.iter().min().copied().expect("there is a ledger directory");
        machine.replay(lowest, newest)?;
        Ok(machine)
    }

    /// Asks for a flush of everything at the next cut, as an elapsed flush interval does.
    pub fn want_freeze(&self) {
        self.engine.is_freeze_wanted.store(true, std::sync::atomic::Ordering::Release);
    }

    fn replay(&mut self, lowest: Mark, newest: Mark) -> Result<(), OpenError> {
        let Machine { engine, journaling, flushing, .. } = self;
        for shard in &engine.shards {
            shard.lock().begin_replay();
        }
        let file_id = journaling.journal.last_file_id();
        // A mark never goes back: a directory that is ahead of the lowest mark keeps its own until replay passes it.
        let mark_at = |group: u64| Mark { file_id, group }.max(newest);
        let replayed = journaling.journal.replay(lowest.group, |group, records| {
            for record in records {
                let index = engine.shard_of(record.ledger);
                let placed = engine.shards[index].lock().replay(record);
                if placed == Err(NoRoom) {
                    // The group is applied up to here; committing the group before it keeps all of it replayable.
                    let boundary = mark_at(group - 1);
                    flushing.flush(FreezeTicket { boundary, frozen: freeze_all(engine) })?;
                    let again = engine.shards[index].lock().replay(record);
                    assert_eq!(again, Ok(()), "an empty pool holds a record");
                }
            }
            Ok(())
        });
        let replayed = replayed.map_err(Box::new)?;
        let boundary = mark_at(mark_of(&journaling.journal).group);
        // Also without entries (a seal alone, say): files are released up to the mark, so the mark must be there.
        if replayed.groups > 0 {
            flushing.flush(FreezeTicket { boundary, frozen: freeze_all(engine) })?;
        }
        journaling.journal.release_up_to(boundary.group);
        for shard in &engine.shards {
            shard.lock().end_replay();
        }
        self.replayed = replayed;
        Ok(())
    }
}

/// Freezes everything placed so far.
fn freeze_all(engine: &Engine) -> Vec<(usize, Arc<Frozen>)> {
    engine.shards.iter().enumerate().filter_map(|(i, s)| Some((i, s.lock().freeze()?))).collect()
}

/// Makes a directory whose name survives a power cut.
fn make_dir(disk: &dyn Disk, dir: &std::path::Path) -> std::io::Result<()> {
    if disk.exists(dir)? {
        return Ok(());
    }
    disk.create_dir_all(dir)?;
    for parent in dir.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()) {
        disk.sync_dir(parent)?;
    }
    Ok(())
}

fn meta_of(config: &EngineConfig, index: usize) -> Meta {
    let small = |n: usize| u32::try_from(n).expect("shards and directories are few");
    Meta {
        bookie_id: config.bookie_id.clone(),
        instance_id: config.instance_id.clone(),
        shards: small(config.shard_count),
        journals: 1,
        directories: small(config.ledger_dirs.len()),
        directory: small(index),
    }
}

fn check_owner(path: &std::path::Path, found: &Meta, ours: &Meta) -> Result<(), OpenError> {
    if found.bookie_id == ours.bookie_id && found.instance_id == ours.instance_id {
        return Ok(());
    }
    Err(OpenError::OtherOwner {
        path: path.to_owned(),
        found_bookie: found.bookie_id.clone(),
        found_instance: found.instance_id.clone(),
        bookie: ours.bookie_id.clone(),
        instance: ours.instance_id.clone(),
    })
}
