//! Opening an engine: ledger directories, then the journal behind their marks, then one flush.
//!
//! # Invariants
//! 1. Replay starts behind the lowest mark of any directory; applying a record that a directory has already is
//!    harmless, because a later generation holds the same content. A directory that joins has no mark and nothing
//!    behind it: it gets its first mark when the replay is over. Directories that begin together start with mark 0.
//! 2. No mark is above what the journal proved to hold: a journal that ends before one has lost acknowledged groups.
//! 3. When opening returns, everything the journal held is committed in the directories and its files are free. So a
//!    change of the number of shards or directories needs nothing else.

use crate::config::{ConfigFaults, EngineConfig};
use crate::engine::Engine;
use crate::machine::{FlushError, Flushing, FreezeTicket, Journaling, mark_of};
use crate::shard::NoRoom;
use crate::space::Space;
use crate::write_cache::Frozen;
use bindery_io::{Clock, Disk, Random};
use bindery_journal::record::HEADER_SIZE_BYTES;
use bindery_journal::{Journal, JournalConfig, ReplayError, Replayed};
use bindery_storage::{DirectoryCommit, JournalMark, LedgerDirectory, Mark, Meta};
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
    Journal(#[from] Box<ReplayError<ReplayFault>>),
    /// A directory knows of groups behind the last one that the journal holds.
    #[error(
        "the journal in {} ends with group {last}, and a ledger directory holds entries up to group {expected}: the \
         end of the journal is damaged or a file is missing. Nothing was changed. Look at the files with `bindery \
         inspect journal`; restore them from a copy, or remove this bookie from the cluster and let its ledgers be \
         re-replicated",
        path.display()
    )]
    JournalEnds {
        /// The journal directory.
        path: PathBuf,
        /// Last group found.
        last: u64,
        /// Highest mark of any directory.
        expected: u64,
    },
    /// Fewer ledger directories than the data was laid out with.
    #[error(
        "ledger directory {} is one of {found}, and {configured} are configured: name all of them, or entries on the \
         missing ones would be denied",
        path.display()
    )]
    DirectoriesMissing {
        /// The directory that says so.
        path: PathBuf,
        /// How many there were.
        found: u32,
        /// How many are configured.
        configured: u32,
    },
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

/// Why replayed records cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum ReplayFault {
    /// They cannot be written to a ledger directory.
    #[error(transparent)]
    Flush(#[from] FlushError),
    /// An entry accepted under a higher limit.
    #[error(
        "the journal holds an entry of {bytes} bytes, and chunks are {chunk_bytes} bytes now: start once with the frame \
         limit (nettyMaxFrameSizeBytes) and memory limit it was accepted with"
    )]
    TooLarge {
        /// Size of the record.
        bytes: usize,
        /// Size of a chunk.
        chunk_bytes: usize,
    },
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
        // `None`: the directory is new.
        let mut marks: Vec<Option<Mark>> = Vec::new();
        let mut highest_ledger = None;
        let mut is_settled = true;
        for (index, path) in config.ledger_dirs.iter().enumerate() {
            let failed = |source| OpenError::Directory { path: path.clone(), source };
            let mut opened = LedgerDirectory::open(&disk, path).map_err(failed)?;
            if let Some(found) = &opened.recovered.meta {
                check_owner(path, found, &meta_of(&config, index))?;
            }
            is_settled &= opened.recovered.meta == Some(meta_of(&config, index));
            marks.push(opened.recovered.marks.first().map(|m| m.mark));
            highest_ledger = highest_ledger.max(opened.recovered.highest_ledger);
            known.append(&mut opened.recovered.ledgers);
            directories.push(opened.directory);
        }
        let newest = marks.iter().flatten().max().copied().unwrap_or(NO_MARK);
        let lowest = marks.iter().flatten().min().copied().unwrap_or(NO_MARK);
        let is_first_start = marks.iter().all(Option::is_none);
        if is_first_start {
            for index in 0..directories.len() {
                join(&config, &mut directories, index, NO_MARK)?;
            }
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
        journal.raise_file_id(newest.file_id);
        if newest.group > 0 && journal.file_count() == 0 {
            return Err(OpenError::JournalMissing {
                path: config.journal_dir.clone(),
                expected: newest.group,
            });
        }
        let views: Vec<_> = directories.iter().map(LedgerDirectory::view).collect();
        let generations = views.iter().flat_map(|view| view.logs()).map(|log| log.generation().0);
        // A removed ledger hides generations that may have gone with their logs: what comes is above them too.
        let hidden = known.iter().map(|record| record.hidden_below.0);
        let last_generation = generations.chain(hidden).max().unwrap_or(0);
        let engine = Arc::new(Engine::new(config, views, highest_ledger));
        for record in &known {
            engine.shards[engine.shard_of(record.ledger)].lock().restore(record);
        }
        for shard in &engine.shards {
            shard.lock().begin_generation(last_generation + 1);
        }
        let mut machine = Machine {
            journaling: Journaling {
                engine: engine.clone(),
                journal,
                clock: clock.clone(),
                is_flushing: false,
                is_sealed: true,
            },
            flushing: Flushing {
                engine: engine.clone(),
                directories,
                flushed_generation: last_generation,
                space: Space::new(clock.monotonic_ns(), &engine.config.space),
                clock,
                pause: None,
            },
            engine,
            replayed: Replayed::default(),
        };
        machine.replay(lowest, newest)?;
        // Also after a change of their number, which only now needs nothing of the journal any more.
        let config = &machine.engine.config;
        let boundary = mark_of(&machine.journaling.journal);
        if !is_settled || marks.contains(&None) {
            // The memory of removed ledgers moves to the directory that is theirs now, before any may be forgotten.
            for shard in &machine.engine.shards {
                shard.lock().touch_removed();
            }
            let frozen = freeze_all(&machine.engine);
            if !frozen.is_empty() {
                machine.flushing.flush(FreezeTicket { boundary, frozen })?;
            }
            for index in 0..config.ledger_dirs.len() {
                join(config, &mut machine.flushing.directories, index, boundary)?;
            }
        }
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
        let chunk_bytes = engine.pool.chunk_size();
        let replayed = journaling.journal.replay(lowest.group, |group, records| {
            for record in records {
                let bytes = record.body.len() + HEADER_SIZE_BYTES;
                if bytes > chunk_bytes {
                    return Err(ReplayFault::TooLarge { bytes, chunk_bytes });
                }
                let index = engine.shard_of(record.ledger);
                let placed = engine.shards[index].lock().replay(record);
                if placed == Err(NoRoom) {
                    // The group is applied up to here; committing the group before it keeps all of it replayable.
                    let boundary = Mark { file_id, group: group - 1 };
                    flushing.flush(FreezeTicket { boundary, frozen: freeze_all(engine) })?;
                    let again = engine.shards[index].lock().replay(record);
                    assert_eq!(again, Ok(()), "an empty pool holds a record");
                }
            }
            Ok(())
        });
        let replayed = replayed.map_err(Box::new)?;
        if replayed.last_group < newest.group {
            if engine.config.journal_sync && replayed.unsynced_holes == 0 {
                let path = engine.config.journal_dir.clone();
                return Err(OpenError::JournalEnds {
                    path,
                    last: replayed.last_group,
                    expected: newest.group,
                });
            }
            // Without sync a power cut may take the end of the journal; numbers go on behind what is flushed.
            journaling.journal.raise_group(newest.group);
        }
        let boundary = mark_of(&journaling.journal);
        // Also without records (a seal alone, or numbers raised over a hole): files are released up to the mark, and the
        // next one begins behind it, which a lower mark would take for a gap.
        if boundary.group > lowest.group {
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

const NO_MARK: Mark = Mark { file_id: 0, group: 0 };

/// Writes identity and layout into a directory that lacks them or knows others, and its first mark if it has none.
fn join(
    config: &EngineConfig,
    directories: &mut [LedgerDirectory],
    index: usize,
    mark: Mark,
) -> Result<(), OpenError> {
    let (directory, meta) = (&mut directories[index], meta_of(config, index));
    let first = [JournalMark { journal: 0, mark }];
    let marks: &[JournalMark] = if directory.marks().is_empty() { &first } else { &[] };
    let commit = DirectoryCommit { meta: Some(&meta), marks, ..Default::default() };
    let failed = |source| OpenError::Directory { path: config.ledger_dirs[index].clone(), source };
    directory.commit(&commit).map_err(failed)
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
    if found.directories > ours.directories {
        let (found, configured) = (found.directories, ours.directories);
        return Err(OpenError::DirectoriesMissing { path: path.to_owned(), found, configured });
    }
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
