//! Opening an engine: ledger directories, then each journal from its lowest mark on, then one flush.
//!
//! # Invariants
//! 1. Replay of a journal starts after the lowest mark that any directory has of it. Applying a record that a directory has already is
//!    harmless, because a later generation holds the same content. A directory that joins has no mark and needs no
//!    replay: it gets its first mark when the replay is over. Directories that begin together start with mark 0.
//! 2. No mark is above what the journal proved to hold: a journal that ends before one has lost acknowledged groups.
//! 3. When opening returns, everything the journals held is committed in all directories and their files are free, or
//!    waits for space as it was laid out (`held`). So after the marks a ledger's records are in one journal only, and
//!    a change of the number of shards, journals or directories needs no further step.

use crate::config::{ConfigFaults, EngineConfig};
use crate::directories::{Directories, FlushError, meta_of};
use crate::engine::Engine;
use crate::flush_routing::take_back;
use crate::flushing::Flushing;
use crate::journaling::{Journaling, mark_of};
use crate::journals::MarkVector;
use crate::shard::NoRoom;
use crate::shared::Shared;
use crate::tickets::FreezeTicket;
#[cfg(debug_assertions)]
use bindery_io::canary::{CachedDisk, Canary};
use bindery_io::{Clock, Disk, OpenMode, Random, create_durable_dir};
use bindery_journal::record::HEADER_SIZE_BYTES;
use bindery_journal::{ReplayError, Replayed};
use bindery_storage::{
    DirectoryCommit, JournalMark, LedgerDirectory, LedgerRanges, Mark, Meta, StorageMemory,
};
use journals::Coverage;
use std::path::PathBuf;
use std::sync::Arc;

mod held;
mod journals;

pub use held::WantOfSpace;

/// Why an engine cannot be opened. Nothing is lost: the files on disk stay as they were.
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
    /// A ledger directory belongs to another owner.
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
        /// This bookie.
        bookie: String,
        /// Our cluster.
        instance: String,
    },
    /// The journal is unusable, or damaged where acknowledged entries may be.
    #[error(transparent)]
    Journal(#[from] Box<ReplayError<ReplayFault>>),
    /// A directory has a mark after the last group that the journal holds.
    #[error(
        "the journal in {} ends with group {last}, and a ledger directory holds entries up to group {expected}: the \
         end of the journal is damaged or a file is missing. Nothing was changed. Look at the files with `bindery \
         inspect journal`; restore them from a copy, or remove this bookie from the cluster and let its ledgers be \
         re-replicated, or start with --accept-journal-damage: what may be missing is then answered as unknown",
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
         is on another disk, mount it and start again. If it is lost for good, start with --accept-journal-damage: \
         what may be missing is then answered as unknown",
        path.display()
    )]
    JournalMissing {
        /// The journal directory.
        path: PathBuf,
        /// Last group known to have been written.
        expected: u64,
    },
    /// A journal is no longer configured, and nothing says where it was.
    #[error(
        "this bookie has {found} journals, and {configured} are configured: name all of them in journalDirectories, in \
         the order they had. To give up journal {number} (counted from 0), start once with it, stop the bookie with \
         SIGTERM, which flushes everything, and take it from the end of the list while it is still readable"
    )]
    JournalRemoved {
        /// The first one that is not configured.
        number: usize,
        /// How many there were.
        found: usize,
        /// How many are configured.
        configured: usize,
    },
    /// A journal that is no longer configured holds records that are nowhere else.
    #[error(
        "journal directory {} is not configured any more and holds {records} records that are not flushed: name it in \
         journalDirectories again, at its former place, start once, and stop the bookie with SIGTERM, which flushes \
         everything; then it may go",
        path.display()
    )]
    JournalNotDrained {
        /// The directory.
        path: PathBuf,
        /// Records in it that ledger storage lacks.
        records: u64,
    },
    /// Replayed entries cannot be written to a ledger directory.
    #[error(transparent)]
    Flush(#[from] FlushError),
    /// There is no space for them, and this start cannot wait for it.
    #[error(transparent)]
    NoSpace(#[from] WantOfSpace),
}

impl OpenError {
    /// True when files of a ledger directory are damaged or missing.
    pub fn is_directory_damage(&self) -> bool {
        matches!(self, OpenError::Directory { source, .. } if source.is_damage())
    }

    /// True when the only fault is that acknowledged records may be missing from the journal:
    /// [`EngineConfig::accepts_journal_damage`] would open what is left.
    pub fn is_journal_damage(&self) -> bool {
        match self {
            OpenError::Journal(error) => matches!(**error, ReplayError::Damage(_)),
            OpenError::JournalEnds { .. } | OpenError::JournalMissing { .. } => true,
            _ => false,
        }
    }
}

/// Why replayed records cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum ReplayFault {
    /// They cannot be written to a ledger directory.
    #[error(transparent)]
    Flush(#[from] FlushError),
    /// There is no space for them, and memory takes no more.
    #[error(transparent)]
    NoSpace(#[from] WantOfSpace),
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
    /// The journals' halves, by their number.
    pub journals: Vec<Journaling>,
    /// The ledger directories' half.
    pub flushing: Flushing,
    /// What the restart found, in all journals.
    pub replayed: Replayed,
}

impl Machine {
    /// Opens everything, replays the journals and flushes what they held; without space for that it opens as well, and
    /// takes no adds until there is. Blocks on the disk.
    pub fn open(
        config: EngineConfig,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Machine, OpenError> {
        config.validate()?;
        #[cfg(debug_assertions)]
        let disk: Arc<dyn Disk> = match config.canaries.has(Canary::M38CacheBelieved) {
            true => Arc::new(CachedDisk(disk)),
            false => disk,
        };
        for dir in config.ledger_dirs.iter().chain(&config.journal_dirs) {
            create_durable_dir(&*disk, dir)
                .map_err(|source| OpenError::Create { path: dir.clone(), source })?;
        }
        let mut directories = Vec::new();
        let mut known = Vec::new();
        let mut metas = Vec::new();
        let mut fences_forgotten = LedgerRanges::default();
        let memory = StorageMemory {
            log_write_bytes: config.log_write_bytes,
            ..StorageMemory::new(config.index_pool_bytes, config.cache_pool_bytes)
        };
        for (index, path) in config.ledger_dirs.iter().enumerate() {
            let failed = |source| OpenError::Directory { path: path.clone(), source };
            let mut opened = LedgerDirectory::open_with(&disk, path, &memory).map_err(failed)?;
            if let Some(found) = &opened.recovered.meta {
                check_owner(path, found, &meta_of(&config, index))?;
            }
            metas.push(opened.recovered.meta.take());
            fences_forgotten.join(&opened.recovered.fences_forgotten);
            known.append(&mut opened.recovered.ledgers);
            directories.push(opened.directory);
        }
        if let Err((index, source)) = take_back(&mut directories, &metas) {
            return Err(OpenError::Directory { path: config.ledger_dirs[index].clone(), source });
        }
        // `None`: the directory is new.
        let marks_of = |directory: &LedgerDirectory| {
            let found = directory.marks();
            (!found.is_empty()).then(|| MarkVector::of(&found))
        };
        let marks: Vec<Option<MarkVector>> = directories.iter().map(marks_of).collect();
        let is_settled =
            metas.iter().enumerate().all(|(index, meta)| meta.as_ref() == Some(&meta_of(&config, index)));
        let mut coverage = Coverage::of(&marks, &metas);
        if marks.iter().all(Option::is_none) {
            for index in 0..directories.len() {
                join(&config, &mut directories, index, &MarkVector::default())?;
            }
        }
        let journals = journals::open_all(&config, &mut coverage, &disk, &random)?;
        journals::check_former(&config, &coverage, &disk, &random)?;
        let views: Vec<_> = directories.iter().map(LedgerDirectory::view).collect();
        let tiers = directories.iter().map(LedgerDirectory::tier).collect();
        let generations = views.iter().flat_map(|view| view.logs()).map(|log| log.generation().0);
        // A removed ledger hides generations whose logs may be gone: new generations must be above these, too.
        let hidden = known.iter().map(|record| record.hidden_below.0);
        let last_generation = generations.chain(hidden).max().unwrap_or(0);
        let makers = directories.iter().map(LedgerDirectory::maker).collect();
        let shared = Arc::new(Shared::new(config, views, tiers, makers, memory, clock.clone()));
        let engine = Arc::new(Engine::new(shared.clone()));
        *shared.covered().lock() = coverage.lowest.clone();
        for shard in shared.shards() {
            shard.lock().recall_fences(&fences_forgotten);
        }
        for record in known {
            shared.lock_of(record.ledger).restore(&record);
        }
        // Also after a start that was cut short: identities are written last.
        if !is_settled && let Err((index, source)) = engine.drop_uncovered() {
            return Err(OpenError::Directory {
                path: shared.config().ledger_dirs[index].clone(),
                source: source.into(),
            });
        }
        shared.begin_generations(last_generation + 1);
        let journaling = |(index, journal)| Journaling::new(shared.clone(), index, journal, clock.clone());
        let directories = Directories::new(shared.clone(), directories, last_generation);
        let mut machine = Machine {
            journals: journals.into_iter().enumerate().map(journaling).collect(),
            flushing: Flushing::new(shared.clone(), directories, clock),
            engine,
            replayed: Replayed::default(),
        };
        // Records out of place must be flushed, and after accepted damage no part of the journal may be read again.
        let may_wait = is_settled && !marks.contains(&None) && !shared.config().accepts_journal_damage;
        machine.replay(&coverage, may_wait)?;
        // Also after a change of their number: only now is nothing in the journals needed any more.
        if !is_settled || marks.contains(&None) {
            let boundary = machine.boundary();
            // The memory of removed ledgers moves to the directory that is theirs now, before any may be forgotten.
            for shard in shared.shards() {
                shard.lock().touch_removed();
            }
            let freezing = begin_freezes(&shared, None);
            if !freezing.is_empty() {
                let ticket = FreezeTicket::begun(None, boundary.clone(), freezing);
                let _ = machine.flushing.flush(ticket)?;
            }
            let config = shared.config();
            for index in 0..config.ledger_dirs.len() {
                join(config, machine.flushing.directories_mut().as_mut_slice(), index, &boundary)?;
            }
        }
        machine.flushing.directories_mut().routing_mut().may_lose = true;
        for journaling in &mut machine.journals {
            let prepared = journaling.journal_mut().prepare();
            prepared.map_err(|error| Box::new(ReplayError::<ReplayFault>::from(error)))?;
            journaling.tell_about_space();
            journaling.offer_room();
        }
        let config = shared.config();
        for dir in config.ledger_dirs.iter().chain(&config.journal_dirs) {
            warn_without_direct_io(&*disk, dir);
        }
        Ok(machine)
    }

    /// Asks for a flush of everything at the next cut, as an elapsed flush interval does.
    pub fn want_freeze(&self) {
        self.engine.shared().want_freeze();
    }

    /// The marks of all that the journals hold.
    fn boundary(&self) -> MarkVector {
        let mut boundary = MarkVector::default();
        for journaling in &self.journals {
            boundary.raise(journaling.index(), mark_of(journaling.journal()));
        }
        boundary
    }

    /// Applies what each journal holds after its lowest mark, and flushes all of it (invariant 3).
    fn replay(&mut self, coverage: &Coverage, may_wait: bool) -> Result<(), OpenError> {
        for shard in self.engine.shared().shards() {
            shard.lock().begin_replay();
        }
        // What is applied so far: a flush in between covers that, and nothing of the journals that follow.
        let mut applied = coverage.lowest.clone();
        let mut raised = Vec::new();
        for index in 0..self.journals.len() {
            let replayed = self.replay_journal(index, coverage, &mut applied)?;
            if self.journals[index].journal().last_group() > replayed.last_group {
                raised.push(index);
            }
            self.replayed.add(replayed);
        }
        if may_wait {
            self.flush_each(&coverage.lowest, &applied, &raised)?;
        } else {
            self.flush_at_once(&coverage.lowest, applied)?;
        }
        for journaling in &self.journals {
            *self.engine.shared().journals()[journaling.index()].written.lock() =
                mark_of(journaling.journal());
        }
        for shard in self.engine.shared().shards() {
            shard.lock().end_replay();
        }
        Ok(())
    }

    fn replay_journal(
        &mut self,
        index: usize,
        coverage: &Coverage,
        applied: &mut MarkVector,
    ) -> Result<Replayed, OpenError> {
        let Machine { engine, journals, flushing, .. } = self;
        let shared = engine.shared();
        let journal = journals[index].journal_mut();
        let (lowest, newest) = (coverage.lowest.of_journal(index), coverage.newest.of_journal(index));
        let file_id = journal.last_file_id();
        let chunk_bytes = shared.pool().chunk_size();
        let replayed = journal.replay(lowest.group, |group, records| {
            for record in records {
                let bytes = record.body.len() + HEADER_SIZE_BYTES;
                if bytes > chunk_bytes {
                    return Err(ReplayFault::TooLarge { bytes, chunk_bytes });
                }
                let shard = shared.shard_of(record.ledger);
                let placed = shared.lock(shard).replay(record);
                if placed == Err(NoRoom) {
                    // The group is applied up to here; committing the group before it keeps all of it replayable.
                    applied.raise(index, Mark { file_id, group: group - 1 });
                    let marks = applied.clone();
                    let ticket = FreezeTicket::begun(None, marks, begin_freezes(shared, None));
                    if let Err(error) = flushing.flush(ticket) {
                        return Err(if flushing.is_waiting() {
                            WantOfSpace::of_memory(error).into()
                        } else {
                            error.into()
                        });
                    }
                    let again = shared.lock(shard).replay(record);
                    assert_eq!(again, Ok(()), "an empty pool holds a record");
                }
            }
            Ok(())
        });
        let replayed = replayed.map_err(Box::new)?;
        if replayed.last_group < newest.group {
            let is_explained = replayed.unsynced_holes > 0 || shared.config().accepts_journal_damage;
            if shared.config().journal_sync && !is_explained {
                let path = shared.config().journal_dirs[index].clone();
                return Err(OpenError::JournalEnds {
                    path,
                    last: replayed.last_group,
                    expected: newest.group,
                });
            }
            // Without sync a power cut may take the end of the journal; group numbers continue after what is flushed.
            journal.raise_group(newest.group);
        }
        applied.raise(index, mark_of(journal));
        Ok(replayed)
    }
}

/// Writes identity and layout into a directory that lacks them or knows others, and its first mark of each journal that
/// it has none of.
fn join(
    config: &EngineConfig,
    directories: &mut [LedgerDirectory],
    index: usize,
    marks: &MarkVector,
) -> Result<(), OpenError> {
    let (directory, meta) = (&mut directories[index], meta_of(config, index));
    let known = directory.marks();
    let number = |journal: usize| u32::try_from(journal).expect("journals are few");
    let first: Vec<JournalMark> = (0..config.journal_dirs.len())
        .map(|journal| JournalMark { journal: number(journal), mark: marks.of_journal(journal) })
        .filter(|first| known.iter().all(|mark| mark.journal != first.journal))
        .collect();
    let commit = DirectoryCommit { meta: Some(&meta), marks: &first, ..Default::default() };
    let failed = |source| OpenError::Directory { path: config.ledger_dirs[index].clone(), source };
    directory.commit(&commit).map_err(failed)
}

/// Begins to freeze everything placed so far, in all shards or in those of one journal, under one generation. Returns the shards in
/// which something changed.
fn begin_freezes(shared: &Shared, journal: Option<usize>) -> Vec<usize> {
    let next = shared.next_generation();
    let is_meant = |shard: usize| journal.is_none_or(|journal| shared.journal_of(shard) == journal);
    let meant = (0..shared.shards().len()).filter(|shard| is_meant(*shard));
    meant.filter(|shard| shared.lock(*shard).begin_freeze(next)).collect()
}

/// Warns if the file system of a directory has no direct I/O: a start can then read through the page cache only, after it asked the
/// kernel to drop what a failed sync may have left there.
fn warn_without_direct_io(disk: &dyn Disk, dir: &std::path::Path) {
    let names = disk.list(dir).unwrap_or_default();
    let Some(name) = names.iter().find(|entry| !entry.is_dir) else { return };
    if disk.open(&dir.join(&name.name), OpenMode::ReadDirect).is_ok_and(|file| !file.is_direct()) {
        tracing::warn!(
            dir = %dir.display(),
            "the file system has no direct I/O: after a failed sync, a start can only ask the kernel to drop its \
             cached pages of the files, and read them again"
        );
    }
}

/// Checks what a ledger directory says about itself: that it is of this bookie and cluster, and that it was not laid out with more
/// directories than are configured, because entries on the missing ones would be denied.
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
