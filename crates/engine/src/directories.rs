//! The ledger directories, as the thread that owns them has them: which of them failed, and what is flushed to them.

use crate::config::EngineConfig;
use crate::flush_routing::{FlushRouting, StorageFault};
use crate::shared::Shared;
use bindery_io::Shortage;
use bindery_storage::{DirectoryCommit, DirectoryError, LedgerDirectory, Meta};
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A flush did not go through: it waits for space, or no ledger directory is left and the engine is latched (IB14).
#[derive(Debug, thiserror::Error)]
#[error("flush to {directory}: {reason}")]
pub struct FlushError {
    directory: String,
    reason: String,
}

impl FlushError {
    fn new(directory: String, reason: String) -> FlushError {
        FlushError { directory, reason }
    }
}

/// The ledger directories, by their number.
pub(crate) struct Directories {
    shared: Arc<Shared>,
    list: Vec<LedgerDirectory>,
    routing: FlushRouting,
}

impl Index<usize> for Directories {
    type Output = LedgerDirectory;

    fn index(&self, index: usize) -> &LedgerDirectory {
        &self.list[index]
    }
}

impl IndexMut<usize> for Directories {
    fn index_mut(&mut self, index: usize) -> &mut LedgerDirectory {
        &mut self.list[index]
    }
}

impl Directories {
    /// Everything of this generation or a lower one is on disk.
    pub(crate) fn new(shared: Arc<Shared>, list: Vec<LedgerDirectory>, flushed: u64) -> Directories {
        let routing = FlushRouting::new(list.len());
        shared
            .journals()
            .iter()
            .for_each(|journal| journal.flushed_generation.store(flushed, Ordering::Release));
        Directories { shared, list, routing }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [LedgerDirectory] {
        &mut self.list
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LedgerDirectory> {
        self.list.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Which directories failed, and what waits for space.
    pub(crate) fn routing(&self) -> &FlushRouting {
        &self.routing
    }

    pub(crate) fn routing_mut(&mut self) -> &mut FlushRouting {
        &mut self.routing
    }

    /// Everything in the shard of this generation or a lower one is on disk.
    pub(crate) fn flushed_generation(&self, shard: usize) -> u64 {
        self.shared.flushed_generation(shard)
    }

    /// A cache of the shard is on disk, and those before it.
    pub(crate) fn on_flushed(&mut self, shard: usize, generation: u64) {
        let journal = &self.shared.journals()[self.shared.journal_of(shard)];
        journal.flushed_generation.fetch_max(generation, Ordering::AcqRel);
    }

    /// What a commit that did not go through says about its directory.
    pub(crate) fn fault_of(&self, index: usize, error: &DirectoryError) -> StorageFault {
        // One that has to be opened again for want of space may lack a descriptor for that.
        match (self.list[index].lacks_space(), error.lacks_descriptor()) {
            (_, true) => StorageFault::Short(Shortage::Descriptors, error.to_string()),
            (true, false) => StorageFault::Short(Shortage::Space, error.to_string()),
            (false, false) => StorageFault::Failed(error.to_string()),
        }
    }

    /// Writes down which directories are out, in each of the others, before anything is released that only the marks
    /// of the lost ones still called for (`flush_routing` invariant 1).
    pub(crate) fn tell_who_is_out(&mut self) -> Result<(), (usize, StorageFault)> {
        while let Some(out) = self.routing.untold() {
            let mut fault = None;
            for index in 0..self.list.len() {
                if self.routing.has_failed(index) {
                    continue;
                }
                let meta = Meta { out: out.clone(), ..meta_of(self.shared.config(), index) };
                let commit = DirectoryCommit { meta: Some(&meta), ..Default::default() };
                if let Err(error) = self.list[index].commit(&commit) {
                    fault = Some((index, self.fault_of(index, &error)));
                    break;
                }
            }
            match fault {
                None => self.routing.on_told(&out),
                Some((index, StorageFault::Failed(reason))) if self.routing.may_lose_another() => {
                    self.fail(index, reason);
                }
                Some(fault) => return Err(fault),
            }
        }
        Ok(())
    }

    /// The last failure, when no directory is left.
    pub(crate) fn lost(&self) -> Option<FlushError> {
        let index = self.list.len() - 1;
        let reason = self.routing.failure(index).unwrap_or_default();
        self.shared.is_storage_lost().then(|| self.error(index, reason))
    }

    pub(crate) fn error(&self, index: usize, reason: String) -> FlushError {
        FlushError::new(self.shared.config().ledger_dirs[index].display().to_string(), reason)
    }

    /// A directory can take no more changes. The others go on; without any, this bookie takes no adds.
    pub(crate) fn fail(&mut self, index: usize, reason: String) -> FlushError {
        let error = self.error(index, reason);
        let is_first = self.routing.on_failed(index, &error.to_string());
        let is_one_left = self.routing.has_one_left();
        if is_first {
            self.shared.lose_directory(index, error.to_string());
        }
        if is_one_left {
            if is_first {
                tracing::error!(
                    %error,
                    "a ledger directory failed: the others take over its writes; entries that only it holds may be \
                     unreadable. Replace the disk: see \"One bad directory\" in the guide"
                );
            }
        } else {
            tracing::error!(%error, "ledger storage failed: this bookie no longer accepts adds; reads continue");
            self.shared.lose_storage(&error.to_string());
        }
        error
    }
}

/// Identity and layout, as a directory has them.
pub(crate) fn meta_of(config: &EngineConfig, index: usize) -> Meta {
    let small = |n: usize| u32::try_from(n).expect("shards, journals and directories are few");
    Meta {
        bookie_id: config.bookie_id.clone(),
        instance_id: config.instance_id.clone(),
        shards: small(config.shard_count),
        journals: small(config.journal_dirs.len()),
        directories: small(config.ledger_dirs.len()),
        directory: small(index),
        out: Vec::new(),
    }
}
