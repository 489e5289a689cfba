//! Reads that memory does not answer: which runs may hold the entry, then the disk.

use crate::api::{DurablePoint, EntryRun, Refusal};
use crate::damage::{Copies, Unreadable};
use crate::fault_log::FaultLog;
use crate::run_set::RunSet;
use crate::tier::TieredRead;
use bindery_io::canary::{Canaries, Canary};
use bindery_io::chunk::ChunkSlice;
use bindery_storage::{
    Ahead, Coverage, Damaged, Extent, FoundEntry, Generation, IndexedRun, Lead, LogView, Patience, ReadError,
    SoleRun, Source, TryReadError, UnreadableRun, locate, try_locate,
};
use bindery_types::{EntryId, LedgerId};
use std::sync::Arc;

/// What readers see of each ledger directory.
pub(crate) type Views = [Arc<LogView>];

/// Where a durable entry was found.
pub enum Lookup {
    /// In memory: the entry's bytes. Copy them out soon; the slice keeps a journal chunk in use.
    Memory(ChunkSlice),
    /// On disk: load it on a thread that may block.
    Disk(DiskRead),
    /// In object storage, and nowhere here: [`crate::Engine::tier_extent`] says where.
    Tiered(TieredRead),
    /// The only copy is not durable yet: ask again after [`crate::Engine::when_durable`] at this point.
    Undurable(DurablePoint),
}

/// The answer when no durable copy is found anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Otherwise {
    /// It is not here.
    NoEntry,
    /// The ledger is in limbo.
    Unknown,
    /// A copy at this sequence is on its way to the disk; `in_limbo` as in [`Otherwise::Unknown`].
    Undurable { sequence: u64, in_limbo: bool },
}

/// A read that memory does not answer. Holds the logs it may need open.
pub struct DiskRead {
    ledger: LedgerId,
    entry: EntryId,
    /// Newest generation first.
    leads: Vec<Lead>,
    /// Number of the ledger directory of the newest of them.
    directory: usize,
    /// Copies of a lower generation are those of a former life of the ledger.
    hidden_below: Generation,
    /// Where the entry is, once it was looked up.
    located: Option<FoundEntry>,
    otherwise: Refusal,
    /// It is in object storage, if none of them gives it: `otherwise` says so.
    tiered: Option<TieredRead>,
    canaries: Canaries,
    faults: Arc<FaultLog>,
}

/// The answer of the extents about an entry that is not in memory.
pub(crate) enum OnDisk {
    Read(DiskRead),
    Refused(Refusal),
    Undurable(u64),
    Tiered(TieredRead),
}

/// Call it with the shard's lock held: a log is visible before the frozen write cache it came from is dropped, so an
/// entry that memory did not have is in this snapshot.
pub(crate) fn on_disk(
    views: &Views,
    ledger: LedgerId,
    entry: EntryId,
    otherwise: Otherwise,
    hidden_below: u64,
    tiered: Option<TieredRead>,
    (canaries, faults): (Canaries, &Arc<FaultLog>),
) -> OnDisk {
    let mut leads: Vec<Lead> = Vec::new();
    let (mut directory, mut newest) = (0, None);
    for (index, view) in views.iter().enumerate() {
        let before = leads.len();
        view.leads(ledger, entry, &mut leads);
        let newest_here = leads[before..].iter().map(Lead::newest).max();
        if newest_here > newest {
            (directory, newest) = (index, newest_here);
        }
    }
    leads.retain(|lead| lead.newest().0 >= hidden_below);
    if views.len() > 1 {
        // Within a directory they come sorted; a ledger that changed directories has runs in several.
        leads.sort_by_key(|lead| std::cmp::Reverse(lead.newest()));
    }
    // Waiting for a copy on its way would gain nothing.
    if leads.is_empty()
        && let Some(tiered) = tiered
    {
        return OnDisk::Tiered(tiered);
    }
    let otherwise = match otherwise {
        _ if tiered.is_some() => Refusal::Tiered,
        Otherwise::Undurable { sequence, .. } if leads.is_empty() => return OnDisk::Undurable(sequence),
        // If no run holds the entry after all, its copy on the way was not acknowledged at the time of the request.
        Otherwise::Undurable { in_limbo: false, .. } | Otherwise::NoEntry => Refusal::NoEntry,
        Otherwise::Undurable { in_limbo: true, .. } | Otherwise::Unknown => Refusal::Unknown,
    };
    if leads.is_empty() {
        return OnDisk::Refused(otherwise);
    }
    let hidden_below = Generation(hidden_below);
    OnDisk::Read(DiskRead {
        ledger,
        entry,
        leads,
        directory,
        hidden_below,
        located: None,
        otherwise,
        tiered,
        canaries,
        faults: faults.clone(),
    })
}

/// The run that alone may have `first` and, in the end, `last` or an earlier entry, among all directories: certainly with a `step` of
/// 1, else if its records say so. Call it with the
/// shard's lock held, for entries of which memory has no copy, as [`on_disk`].
pub(crate) fn sole_run(
    views: &Views,
    ledger: LedgerId,
    (first, last): (EntryId, EntryId),
    step: u32,
    hidden_below: u64,
) -> Option<SoleRun> {
    let (mut sole, mut last) = (None, last);
    for view in views {
        let until = match view.coverage(ledger, first, last, step) {
            Coverage::Nothing(until) => until,
            Coverage::Sole(run, until) => {
                if sole.is_some() || run.generation().0 < hidden_below {
                    return None;
                }
                sole = Some(run);
                until
            }
            Coverage::Unclear => return None,
        };
        last = last.min(until);
    }
    let mut sole = sole?;
    sole.cut_to(last);
    Some(sole)
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
            match located.map_err(|error| self.stop(error, None, Patience::Never)) {
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
        let found = self.located.as_ref().expect("it was located");
        match found.log.try_read_into(&found.location, self.ledger, self.entry, body) {
            Ok(()) => Some(Ok(())),
            Err(error) => match self.stop(error, Some(found), Patience::Never) {
                Stop::WouldBlock => None,
                Stop::Refused(refusal) => Some(Err(refusal)),
            },
        }
    }

    /// What to do when a look-up or a load ended with [`Refusal::Tiered`].
    pub fn into_tiered(self) -> Option<TieredRead> {
        self.tiered
    }

    /// Number of the ledger directory that it asks first, and mostly alone: a ledger that moved has entries in several.
    pub fn directory(&self) -> usize {
        self.directory
    }

    /// Where it is, as what is about to be read; `None` before that is known.
    pub fn ahead(&self) -> Option<Ahead> {
        self.located.as_ref().map(|FoundEntry { log, location, .. }| log.ahead(location))
    }

    /// Loads and verifies the entry. Blocks: call it on a thread that may.
    ///
    /// # Errors
    /// [`Refusal::NoEntry`] only when every run that could hold the entry was read and does not; [`Refusal::Tiered`] when it
    /// is in object storage, also when a copy here cannot be read; other damage is [`Refusal::Io`].
    pub fn load(&self) -> Result<Vec<u8>, Refusal> {
        let refused = |stop| match stop {
            Stop::Refused(refusal) => refusal,
            Stop::WouldBlock => unreachable!("a read that may wait does not give up"),
        };
        let located;
        let found = match &self.located {
            Some(found) => found,
            None => {
                let outcome = locate(&self.leads, self.ledger, self.entry, self.hidden_below);
                let outcome =
                    outcome.map_err(|error| refused(self.stop(error.into(), None, Patience::Wait)))?;
                located = outcome.ok_or(self.otherwise)?;
                &located
            }
        };
        let read = found.log.read(&found.location, self.ledger, self.entry);
        read.map_err(|error| refused(self.stop(error.into(), Some(found), Patience::Wait)))
    }

    /// `found`: the copy that was being read; `None` while it was being looked up.
    fn stop(&self, error: TryReadError, found: Option<&FoundEntry>, patience: Patience) -> Stop {
        let error = match error {
            TryReadError::WouldBlock => return Stop::WouldBlock,
            TryReadError::Failed(error) => error,
        };
        if matches!(error, ReadError::Damaged(_)) && self.canaries.has(Canary::M10DamageAsNoEntry) {
            return Stop::Refused(Refusal::NoEntry);
        }
        if let ReadError::Damaged(damaged) = &error {
            self.note(damaged, found, patience);
        }
        self.faults.write(|left_out| {
            tracing::error!(ledger = %self.ledger, entry = %self.entry, %error, left_out, "cannot read entry");
        });
        // At or below the trim object storage has it, whatever became of a copy that may go at any time.
        Stop::Refused(if self.tiered.is_some() { Refusal::Tiered } else { Refusal::Io })
    }

    /// Puts what was found into the damage register.
    fn note(&self, damaged: &Damaged, found: Option<&FoundEntry>, patience: Patience) {
        let (ledger, entry, register) = (self.ledger, self.entry, self.faults.damage());
        if let Some(FoundEntry { log, generation, .. }) = found {
            let copies = Copies { ledger, first: entry, last: entry, generation: *generation };
            return register.note_read(log, copies);
        }
        for lead in self.leads.iter().filter(|lead| lead.log().path() == damaged.path) {
            match lead {
                Lead::Run(Source { log, extent }) if extent.has_record_at(damaged.offset) => {
                    register.note_read(log, copies_taken(extent, entry));
                }
                Lead::Run(_) => {}
                Lead::Paged(paged) => {
                    let Some(run) = paged.reached(ledger, entry) else { continue };
                    if paged.is_listed_at(&run, damaged.offset) {
                        register.note_unlisted_read(paged.log(), &run);
                    } else if let Ok(Some(extent)) = paged.find(ledger, entry, patience)
                        && extent.has_record_at(damaged.offset)
                    {
                        register.note_read(paged.log(), copies_taken(&extent, entry));
                    }
                }
            }
        }
    }
}

/// The copies that a bad index record takes which stands in the way to an entry: that entry in a regular run, and any of the run when
/// it is searched, because a search that meets the record can go neither way.
fn copies_taken(run: &Extent, entry: EntryId) -> Copies {
    let Extent { ledger, first, last, generation, .. } = *run;
    match run.regular_ids().is_some() {
        true => Copies { ledger, first: entry, last: entry, generation },
        false => Copies { ledger, first, last, generation },
    }
}

/// Adds the entries of a ledger on disk that lie within the set's bounds, but for those that are `unreadable`. Blocks.
pub(crate) fn entries_on_disk(
    views: &Views,
    ledger: LedgerId,
    hidden_below: u64,
    runs: &mut RunSet,
    unreadable: &[Unreadable],
    faults: &FaultLog,
) -> Result<(), Refusal> {
    let failed = |error: &ReadError| {
        faults.write(|left_out| tracing::error!(%ledger, %error, left_out, "cannot list entries"));
        Refusal::Io
    };
    for view in views {
        let (first, last) = runs.bounds();
        let covers = |gap: &Unreadable, first: EntryId, last: EntryId, newest: Generation| {
            newest <= gap.generation && gap.first <= first && last <= gap.last
        };
        // Not looked for, if all of it is known as damaged: its place in the footer may be what is.
        let is_left_out = |run: &IndexedRun, newest: Generation| {
            newest.0 < hidden_below || unreadable.iter().any(|gap| covers(gap, run.first, run.last, newest))
        };
        let (found, lost) = view.runs_to_list(ledger, first, last, is_left_out);
        if !lost.is_empty() {
            // The next list leaves them out.
            for UnreadableRun { log, run, error } in &lost {
                if let ReadError::Damaged(_) = error {
                    faults.damage().note_unlisted_read(log, run);
                }
            }
            return Err(failed(&lost[0].error));
        }
        for Source { log, extent } in found {
            if runs.is_too_much() {
                return Ok(());
            }
            if extent.generation.0 < hidden_below {
                continue;
            }
            // The newest copy that may hold an entry decides: older ones are as unreadable.
            let hides = |gap: &&Unreadable| {
                extent.generation <= gap.generation && gap.first <= extent.last && extent.first <= gap.last
            };
            let gaps: Vec<&Unreadable> = unreadable.iter().filter(hides).collect();
            if gaps.iter().any(|gap| covers(gap, extent.first, extent.last, extent.generation)) {
                continue;
            }
            let is_readable =
                |entry: &EntryId| !gaps.iter().any(|gap| gap.first <= *entry && *entry <= gap.last);
            match extent.regular_ids_within(first, last) {
                Some(_) if extent.is_dense() && gaps.is_empty() => {
                    runs.add(EntryRun { first: extent.first, last: extent.last });
                }
                Some(ids) => runs.extend(ids.filter(is_readable)),
                None => match log.entry_ids(&extent) {
                    Ok(ids) => runs.extend(ids.into_iter().filter(is_readable)),
                    Err(error) => {
                        if let ReadError::Damaged(_) = error {
                            // The next list leaves the run out.
                            faults.damage().note_read(&log, copies_taken(&extent, extent.first));
                        }
                        return Err(failed(&error));
                    }
                },
            }
        }
    }
    Ok(())
}
