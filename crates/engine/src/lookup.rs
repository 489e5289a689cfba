//! Reads that memory does not answer: which runs may hold the entry, then the disk.

use crate::api::{EntryRun, Refusal};
use crate::shard::Otherwise;
use bindery_io::canary::{Canaries, Canary};
use bindery_storage::{
    FoundEntry, Generation, Lead, LogView, ReadError, Source, TryReadError, locate, try_locate,
};
use bindery_types::{EntryId, LedgerId};
use std::sync::Arc;

/// What readers see of each ledger directory.
pub(crate) type Views = [Arc<LogView>];

/// A read that memory does not answer. Holds the logs it may need open.
pub struct DiskRead {
    ledger: LedgerId,
    entry: EntryId,
    /// Newest generation first.
    leads: Vec<Lead>,
    /// Copies of a lower generation are those of a former life of the ledger.
    hidden_below: Generation,
    /// Where the entry is, once it was looked up.
    located: Option<FoundEntry>,
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
    let mut leads: Vec<Lead> = Vec::new();
    views.iter().for_each(|view| view.leads(ledger, entry, &mut leads));
    leads.retain(|lead| lead.newest().0 >= hidden_below);
    if views.len() > 1 {
        // Within a directory they come sorted; a ledger that changed directories has runs in several.
        leads.sort_by_key(|lead| std::cmp::Reverse(lead.newest()));
    }
    let otherwise = match otherwise {
        Otherwise::Undurable { sequence, .. } if leads.is_empty() => return OnDisk::Undurable(sequence),
        // Should no run hold the entry after all, its copy on the way was not acknowledged when it was asked for.
        Otherwise::Undurable { in_limbo: false, .. } | Otherwise::NoEntry => Refusal::NoEntry,
        Otherwise::Undurable { in_limbo: true, .. } | Otherwise::Unknown => Refusal::Unknown,
    };
    if leads.is_empty() {
        return OnDisk::Refused(otherwise);
    }
    let hidden_below = Generation(hidden_below);
    OnDisk::Read(DiskRead { ledger, entry, leads, hidden_below, located: None, otherwise, canaries })
}

/// How a look-up on disk ended without the entry.
enum Stop {
    /// It would have to wait for the disk.
    WouldBlock,
    Refused(Refusal),
}

impl DiskRead {
    /// Finds the entry and its size in bytes without waiting for the disk; `None` when that takes a wait. Refusals as
    /// [`DiskRead::load`].
    pub fn try_locate(&mut self) -> Option<Result<u32, Refusal>> {
        if self.located.is_none() {
            let located = try_locate(&self.leads, self.ledger, self.entry, self.hidden_below);
            match located.map_err(|error| self.stop(error)) {
                Ok(Some(located)) => self.located = Some(located),
                Ok(None) => return Some(Err(self.otherwise)),
                Err(Stop::WouldBlock) => return None,
                Err(Stop::Refused(refusal)) => return Some(Err(refusal)),
            }
        }
        self.located.as_ref().map(|located| Ok(located.location.length))
    }

    /// Loads and verifies the entry into `body`, which gets its length, without waiting for the disk; `None` when that
    /// takes a wait. Refusals as [`DiskRead::load`].
    pub fn try_load(&mut self, body: &mut Vec<u8>) -> Option<Result<(), Refusal>> {
        match self.try_locate()? {
            Ok(length) => body.resize(length as usize, 0),
            Err(refusal) => return Some(Err(refusal)),
        }
        let FoundEntry { log, location, .. } = self.located.as_ref().expect("it was located");
        match log.try_read_into(location, self.ledger, self.entry, body) {
            Ok(()) => Some(Ok(())),
            Err(error) => match self.stop(error) {
                Stop::WouldBlock => None,
                Stop::Refused(refusal) => Some(Err(refusal)),
            },
        }
    }

    /// Loads and verifies the entry. Blocks: call it on a thread that may.
    ///
    /// # Errors
    /// [`Refusal::NoEntry`] only when every run that could hold the entry was read and does not; damage is
    /// [`Refusal::Io`].
    pub fn load(&self) -> Result<Vec<u8>, Refusal> {
        let refused = |stop| match stop {
            Stop::Refused(refusal) => refusal,
            Stop::WouldBlock => unreachable!("a read that may wait does not give up"),
        };
        let found;
        let FoundEntry { log, location, .. } = match &self.located {
            Some(located) => located,
            None => {
                let located = locate(&self.leads, self.ledger, self.entry, self.hidden_below);
                found = located.map_err(|error| refused(self.stop(error.into())))?.ok_or(self.otherwise)?;
                &found
            }
        };
        log.read(location, self.ledger, self.entry).map_err(|error| refused(self.stop(error.into())))
    }

    fn stop(&self, error: TryReadError) -> Stop {
        let error = match error {
            TryReadError::WouldBlock => return Stop::WouldBlock,
            TryReadError::Failed(error) => error,
        };
        if matches!(error, ReadError::Damaged(_)) && self.canaries.has(Canary::M10DamageAsNoEntry) {
            return Stop::Refused(Refusal::NoEntry);
        }
        tracing::error!(ledger = %self.ledger, entry = %self.entry, %error, "cannot read entry");
        Stop::Refused(Refusal::Io)
    }
}

/// Ids of all entries of a ledger on disk, appended to `entries` in no order. Blocks.
pub(crate) fn entries_on_disk(
    views: &Views,
    ledger: LedgerId,
    hidden_below: u64,
    entries: &mut Vec<i64>,
) -> Result<(), Refusal> {
    let failed = |error: ReadError| {
        tracing::error!(%ledger, %error, "cannot list entries");
        Refusal::Io
    };
    for view in views {
        for Source { log, extent } in view.runs(ledger).map_err(failed)? {
            if extent.generation.0 >= hidden_below {
                entries.extend(log.entry_ids(&extent).map_err(failed)?.iter().map(|id| id.get()));
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
