//! Reads that memory does not answer: which runs may hold the entry, then the disk.

use crate::api::{EntryRun, Refusal};
use crate::shard::Otherwise;
use bindery_io::canary::{Canaries, Canary};
use bindery_storage::{LogView, ReadError, Source};
use bindery_types::{EntryId, LedgerId};
use std::sync::Arc;

/// What readers see of each ledger directory.
pub(crate) type Views = [Arc<LogView>];

/// A read that must go to the disk. Holds the logs it may need open.
pub struct DiskRead {
    ledger: LedgerId,
    entry: EntryId,
    /// Newest generation first.
    sources: Vec<Source>,
    otherwise: Refusal,
    canaries: Canaries,
}

/// What the extents say about an entry that is not in memory.
pub(crate) enum OnDisk {
    Read(DiskRead),
    Refused(Refusal),
    Undurable(u64),
}

/// Call it with the shard's lock held: a log is visible before the frozen write cache it came from is dropped, so an
/// entry that memory did not have is in this snapshot.
pub(crate) fn on_disk(
    views: &Views,
    ledger: LedgerId,
    entry: EntryId,
    otherwise: Otherwise,
    hidden_below: u64,
    canaries: Canaries,
) -> OnDisk {
    let mut sources: Vec<Source> = views.iter().flat_map(|view| view.sources(ledger, entry)).collect();
    sources.retain(|source| source.extent.generation.0 >= hidden_below);
    // Within a directory they come sorted; a ledger that changed directories has runs in several.
    sources.sort_by_key(|source| std::cmp::Reverse(source.extent.generation));
    let otherwise = match otherwise {
        Otherwise::Undurable(sequence) if sources.is_empty() => return OnDisk::Undurable(sequence),
        // Should no run hold the entry after all, its copy on the way was not acknowledged when it was asked for.
        Otherwise::Undurable(_) | Otherwise::NoEntry => Refusal::NoEntry,
        Otherwise::Unknown => Refusal::Unknown,
    };
    if sources.is_empty() {
        return OnDisk::Refused(otherwise);
    }
    OnDisk::Read(DiskRead { ledger, entry, sources, otherwise, canaries })
}

impl DiskRead {
    /// Loads and verifies the entry. Blocks: call it on a thread that may.
    ///
    /// # Errors
    /// [`Refusal::NoEntry`] only when every run that could hold the entry was read and does not; damage is
    /// [`Refusal::Io`].
    pub fn load(&self) -> Result<Vec<u8>, Refusal> {
        for Source { log, extent } in &self.sources {
            let read = log.lookup(extent, self.entry).and_then(|location| match location {
                Some(location) => log.read(&location, self.ledger, self.entry).map(Some),
                None => Ok(None),
            });
            match read {
                Ok(Some(body)) => return Ok(body),
                Ok(None) => {}
                Err(ReadError::Damaged(_)) if self.canaries.has(Canary::M10DamageAsNoEntry) => {
                    return Err(Refusal::NoEntry);
                }
                Err(error) => {
                    tracing::error!(ledger = %self.ledger, entry = %self.entry, %error, "cannot read entry");
                    return Err(Refusal::Io);
                }
            }
        }
        Err(self.otherwise)
    }
}

/// Ids of all entries of a ledger on disk, appended to `entries` in no order. Blocks.
pub(crate) fn entries_on_disk(
    views: &Views,
    ledger: LedgerId,
    hidden_below: u64,
    entries: &mut Vec<i64>,
) -> Result<(), Refusal> {
    for Source { log, extent } in views.iter().flat_map(|view| view.runs(ledger)) {
        if extent.generation.0 < hidden_below {
            continue;
        }
        match log.entry_ids(&extent) {
            Ok(ids) => entries.extend(ids.iter().map(|id| id.get())),
            Err(error) => {
                tracing::error!(%ledger, %error, "cannot list entries");
                return Err(Refusal::Io);
            }
        }
    }
    Ok(())
}

/// Ids, in any order and with duplicates, as maximal runs.
pub(crate) fn runs_of(mut entries: Vec<i64>) -> Vec<EntryRun> {
    entries.sort_unstable();
    entries.dedup();
    let mut runs: Vec<EntryRun> = Vec::new();
    for entry in entries.into_iter().filter_map(EntryId::new) {
        match runs.last_mut() {
            Some(run) if run.last.get() + 1 == entry.get() => run.last = entry,
            _ => runs.push(EntryRun { first: entry, last: entry }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_maximal() {
        let ends = |ids: &[i64]| {
            runs_of(ids.to_vec()).iter().map(|r| (r.first.get(), r.last.get())).collect::<Vec<_>>()
        };
        assert_eq!(ends(&[5, 3, 4, 4, 9, 0]), [(0, 0), (3, 5), (9, 9)]);
        assert_eq!(ends(&[]), []);
    }
}
