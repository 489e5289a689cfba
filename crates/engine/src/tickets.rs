//! Messages between the journals and the ledger directories.

use crate::journals::MarkVector;
use crate::write_cache::Frozen;
use bindery_storage::Mark;
use std::sync::Arc;

/// Frozen write caches whose entries are durable in their journal.
pub struct FreezeTicket {
    /// The journal whose shards were frozen; `None` for all, at the start.
    pub(crate) journal: Option<usize>,
    /// The marks covered once the caches are flushed, sampled at the freeze: the component of this journal, and of the
    /// others the marks committed by then.
    pub(crate) marks: MarkVector,
    /// Shards that have not taken over all ledgers.
    pub(crate) freezing: Vec<usize>,
    /// The caches of the others.
    pub(crate) frozen: Vec<(usize, Arc<Frozen>)>,
}

impl FreezeTicket {
    /// Of shards whose freeze has just begun.
    pub(crate) fn begun(journal: Option<usize>, marks: MarkVector, freezing: Vec<usize>) -> FreezeTicket {
        FreezeTicket { journal, marks, freezing, frozen: Vec::new() }
    }
}

/// A flush that is committed in all ledger directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "its journal waits for it"]
pub struct Flushed {
    /// The journal whose component rose: give it to [`crate::Journaling::on_flushed`] of that one.
    pub journal: usize,
    pub(crate) mark: Mark,
}
