//! Copies of entries that are taken into entry logs directly, with one commit, past the journals: for repairs.
//!
//! # Data flow
//! ```text
//! Engine::begin_ingest -> Ingest::append ... -> seal: logs durable, read back, compared with what is here -> SealedIngest
//!                              |                                                                                 |
//!                              '- dropped, refused: its files go               Engine::commit_ingest -> the owner of the directories
//! ```
//! All but the commit is done by the caller's thread, which may block: the owner of the ledger directories is not held up, and
//! writes at the caller's pace. The commit waits for its turn, between two writes of a flush at the latest.
//!
//! # Invariants
//! 1. Nothing of an ingest is shown before its commit, everything is after it; one that is not committed leaves nothing behind: its
//!    files are removed at once, or by the next start.
//! 2. No entry of an ingest is here in another copy of its generation or a lower one, in memory or on disk, durable or not. The
//!    generation is taken before the copies are looked for: copies that are placed in between have a higher one, and so have all
//!    that are not flushed. So any other copy that ever comes is newer, and the order among copies of an entry is never
//!    in doubt (decision 0013).
//! 3. Bytes are taken as they are: body, ids and LAC (last add confirmed) in one. They are not verified against a digest: whoever
//!    brings them did that.
//!
//! # Limits
//! [`INGESTS_MAX`] at a time. Each holds, for each of its logs ([`INGEST_LOGS_MAX`]), a buffer of one write (1 MiB), the index records
//! of one run (2 MiB), and about 20 bytes for each run, charged to the index pool; for each ledger about 100 bytes, and 16 for each
//! gap between its entries: at most 4 MiB for [`INGEST_ENTRIES_MAX`] entries. An ingest that brings its ledgers in ascending order has
//! one log.

use super::Engine;
use crate::api::{EntryRun, LedgerPresence, Refusal};
use crate::damage::Unreadable;
use crate::ingest_desk::{
    INGEST_BYTES_MAX, INGEST_ENTRIES_MAX, INGEST_LEDGERS_MAX, INGEST_LOGS_MAX, IngestError, IngestWaiter,
    IngestedLedger, IngestedLogs,
};
use crate::run_set::RunSet;
use crate::shard::MemoryWalk;
use bindery_io::canary::Canary;
use bindery_journal::record::{ENTRY_BODY_MIN, crc32c};
use bindery_storage::entry_log::RECORD_BYTES;
use bindery_storage::{EntryLogWriter, Generation};
use bindery_types::{EntryId, LedgerId};
use std::collections::BTreeMap;

/// The entries of one ledger so far.
struct Ledger {
    generation: Generation,
    runs: Vec<EntryRun>,
    last_add_confirmed: Option<EntryId>,
}

struct Log {
    writer: EntryLogWriter,
    last: (LedgerId, EntryId),
    /// Bytes on disk, as of the last look at the room on the volume.
    written: u64,
}

/// Claims of ledgers, which end with it.
struct Claims {
    engine: Engine,
    number: u64,
    ledgers: Vec<LedgerId>,
    /// Somebody else ends them.
    are_passed_on: bool,
}

impl Claims {
    /// These, for the next stage of the ingest.
    fn pass_on(&mut self) -> Claims {
        self.are_passed_on = true;
        let engine = Engine::new(self.engine.shared.clone());
        Claims {
            engine,
            number: self.number,
            ledgers: std::mem::take(&mut self.ledgers),
            are_passed_on: false,
        }
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        if self.are_passed_on {
            return;
        }
        for ledger in &self.ledgers {
            self.engine.shared.lock_of(*ledger).end_ingest(*ledger, self.number);
        }
        self.engine.shared.ingests().end();
    }
}

/// An ingest under way. Dropping it removes its files, so it is dropped on a thread that may block.
pub struct Ingest {
    directory: usize,
    header: Generation,
    logs: Vec<Log>,
    ledgers: BTreeMap<LedgerId, Ledger>,
    entries: u64,
    bytes: u64,
    /// A write failed.
    is_over: bool,
    claims: Claims,
}

/// An ingest whose entries are on disk and durable; [`Engine::commit_ingest`] is still to come. Dropped, it leaves nothing, as
/// an [`Ingest`].
pub struct SealedIngest {
    logs: Option<IngestedLogs>,
    entries: u64,
    claims: Claims,
}

impl Engine {
    /// Begins to take copies of entries that are missing here, past the journals. `ledger` is the first one of which entries will
    /// come: the ledger directory that its entries are flushed to takes those of all others of this ingest, too.
    ///
    /// # Errors
    /// [`IngestError::TooMany`], and [`IngestError::ReadOnly`] while the bookie takes no copies. Nothing is left behind.
    pub fn begin_ingest(&self, ledger: LedgerId) -> Result<Ingest, IngestError> {
        self.may_ingest()?;
        let directory = self.shared.directory_with_room(self.shared.shard_of(ledger)).ok_or_else(|| {
            IngestError::ReadOnly("every ledger directory has failed or is full".to_owned())
        })?;
        let number = self.shared.ingests().begin().ok_or(IngestError::TooMany)?;
        let engine = Engine::new(self.shared.clone());
        let claims = Claims { engine, number, ledgers: Vec::new(), are_passed_on: false };
        Ok(Ingest {
            directory,
            header: Generation(self.shared.newest_generation().saturating_sub(1)),
            logs: Vec::new(),
            ledgers: BTreeMap::new(),
            entries: 0,
            bytes: 0,
            is_over: false,
            claims,
        })
    }

    /// Asks for the commit of an ingest. The waiter fires when that is durable and every read shows the entries, or with the
    /// reason why nothing of them will ever be shown; after [`IngestError::Io`] a restart may show all of them. It waits, for
    /// some flushes at most, while what is known of one of the ledgers is not on disk, and asks for these flushes.
    pub fn commit_ingest(&self, mut sealed: SealedIngest, waiter: IngestWaiter) {
        let Some(logs) = sealed.logs.take() else { return waiter(Err(IngestError::Over)) };
        // From now on the owner of the directories ends the claims.
        sealed.claims.are_passed_on = true;
        self.shared.ingests().push(logs, waiter);
        self.shared.flush_signal().raise();
    }

    fn may_ingest(&self) -> Result<(), IngestError> {
        let status = self.shared.status();
        if let Some(reason) = status.failed.as_deref().or(status.waits()) {
            return Err(IngestError::ReadOnly(reason.to_owned()));
        }
        match status.is_read_only {
            true => Err(IngestError::ReadOnly("it is read-only".to_owned())),
            false => Ok(()),
        }
    }
}

impl Ingest {
    /// Takes an entry, whose bytes are `body`, exactly as they must be returned. Ledgers come in any order, though each time that
    /// one comes after a higher one may cost another entry log; the entries of each ascend. Blocks on the disk now and then. While
    /// [`Engine::adds_wait`], the disk is better left to the flush, for a second at most.
    ///
    /// # Errors
    /// After a refusal the ingest goes on without the entry, unless a write failed or there is no space for one: then it is over.
    pub fn append(&mut self, ledger: LedgerId, entry: EntryId, body: &[u8]) -> Result<(), IngestError> {
        if self.is_over {
            return Err(IngestError::Over);
        }
        self.check_body(ledger, entry, body)?;
        let last = self.ledgers.get(&ledger).and_then(|known| known.runs.last()).map(|run| run.last);
        if let Some(after) = last.filter(|last| *last >= entry) {
            return Err(IngestError::NotAscending { ledger, entry, after });
        }
        let size = body.len() as u64 + RECORD_BYTES;
        if self.entries == INGEST_ENTRIES_MAX {
            return Err(IngestError::Full("entries"));
        }
        if self.entries > 0 && self.bytes + size > INGEST_BYTES_MAX {
            return Err(IngestError::Full("bytes"));
        }
        let is_new = last.is_none();
        if is_new && self.ledgers.len() == INGEST_LEDGERS_MAX {
            return Err(IngestError::Full("ledgers"));
        }
        let log = self.log_before(ledger, entry);
        if log.is_none() && self.logs.len() == INGEST_LOGS_MAX {
            return Err(IngestError::LedgersOutOfOrder(ledger));
        }
        let generation = if is_new { self.claim(ledger, entry)? } else { self.ledgers[&ledger].generation };
        // Until it is known that this went well.
        self.is_over = true;
        let log = match log {
            Some(log) => log,
            None => self.begin_log(ledger, entry)?,
        };
        self.write(log, (ledger, entry), body, generation)?;
        self.is_over = false;
        let known = self.ledgers.entry(ledger).or_insert(Ledger {
            generation,
            runs: Vec::new(),
            last_add_confirmed: None,
        });
        match known.runs.last_mut() {
            Some(run) if run.last.get() + 1 == entry.get() => run.last = entry,
            _ => known.runs.push(EntryRun { first: entry, last: entry }),
        }
        known.last_add_confirmed = known.last_add_confirmed.max(lac_of(body));
        self.entries += 1;
        self.bytes += size;
        Ok(())
    }

    /// Bytes of the volume that it takes so far, without the end of its logs.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Entries so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Writes what is left, makes all of it durable, reads it back, and makes sure that none of the entries is here. Blocks on the
    /// disk.
    ///
    /// # Errors
    /// The ingest is over, and its files are removed.
    pub fn seal(mut self) -> Result<SealedIngest, IngestError> {
        if self.is_over {
            return Err(IngestError::Over);
        }
        if self.entries == 0 {
            return Err(IngestError::Empty);
        }
        self.check_none_is_here()?;
        let maker = self.claims.engine.shared.maker(self.directory).clone();
        let logs = IngestedLogs {
            number: self.claims.number,
            directory: self.directory,
            ledgers: self.parts(),
            logs: Vec::new(),
        };
        let entries = self.entries;
        let mut sealed = SealedIngest { logs: Some(logs), entries, claims: self.claims.pass_on() };
        while let Some(log) = self.logs.pop() {
            let log = log.writer.finish_unnamed().map_err(|error| IngestError::Io(error.to_string()))?;
            let mut read_back = match maker.read_back(log.sealed()) {
                Ok(read_back) => read_back,
                Err(error) => {
                    let _ = log.abandon();
                    return Err(IngestError::Io(error.to_string()));
                }
            };
            let is_read = loop {
                match read_back.read_on() {
                    Ok(true) => break Ok(()),
                    Ok(false) => {}
                    Err(error) => break Err(error),
                }
            };
            if sealed.claims.engine.shared.config().canaries.has(Canary::M51IngestShownEarly) {
                let _ = maker.publish_now(log.sealed());
            }
            if let Some(logs) = &mut sealed.logs {
                logs.logs.push((log, read_back));
            }
            is_read.map_err(|error| IngestError::Io(error.to_string()))?;
        }
        Ok(sealed)
    }

    /// Ends it as the end of the process would: its files stay, and the next start removes them. For simulators.
    pub fn leave(mut self) {
        self.logs.clear();
    }

    fn parts(&self) -> Vec<IngestedLedger> {
        let part = |(ledger, known): (&LedgerId, &Ledger)| {
            let (first, last) = (known.runs.first()?.first, known.runs.last()?.last);
            let Ledger { generation, last_add_confirmed, .. } = *known;
            Some(IngestedLedger { ledger: *ledger, generation, first, last, last_add_confirmed })
        };
        self.ledgers.iter().filter_map(part).collect()
    }

    fn check_body(&self, ledger: LedgerId, entry: EntryId, body: &[u8]) -> Result<(), IngestError> {
        let bad = |why| Err(IngestError::BadBody { ledger, entry, bytes: body.len(), why });
        if body.len() < ENTRY_BODY_MIN {
            return bad("an entry begins with the ids of ledger and entry and the last add confirmed");
        }
        if body.len() > self.claims.engine.shared.config().entry_bytes_max {
            return bad("this bookie takes no entry of that length");
        }
        if body[..8] != ledger.get().to_be_bytes() {
            return bad("they name another ledger");
        }
        if body[8..16] != entry.get().to_be_bytes() {
            return bad("they name another entry");
        }
        Ok(())
    }

    /// Of the logs that end before the entry the one that ends last.
    fn log_before(&self, ledger: LedgerId, entry: EntryId) -> Option<usize> {
        let before = self.logs.iter().enumerate().filter(|(_, log)| log.last < (ledger, entry));
        before.max_by_key(|(_, log)| log.last).map(|(at, _)| at)
    }

    /// Begins a log with this entry.
    fn begin_log(&mut self, ledger: LedgerId, entry: EntryId) -> Result<usize, IngestError> {
        let begun = self.claims.engine.shared.maker(self.directory).begin_log(self.header);
        let writer = begun.map_err(|error| IngestError::Io(error.to_string()))?;
        self.logs.push(Log { writer, last: (ledger, entry), written: 0 });
        Ok(self.logs.len() - 1)
    }

    /// Claims a ledger, and returns the generation of its copies.
    fn claim(&mut self, ledger: LedgerId, first: EntryId) -> Result<Generation, IngestError> {
        let shared = &self.claims.engine.shared;
        let shard = shared.shard_of(ledger);
        // Looked up first: it only grows.
        let flushed = shared.flushed_generation(shard);
        let claimed =
            shared.lock(shard).begin_ingest(ledger, first, self.claims.number, flushed, self.header);
        if let Err(IngestError::RemovalNotFlushed(_)) = claimed {
            shared.want_freeze_of(shard);
        }
        let generation = claimed?;
        self.claims.ledgers.push(ledger);
        Ok(generation)
    }

    fn write(
        &mut self,
        at: usize,
        (ledger, entry): (LedgerId, EntryId),
        body: &[u8],
        generation: Generation,
    ) -> Result<(), IngestError> {
        let log = &mut self.logs[at];
        let appended = log.writer.append_as(ledger, entry, body, crc32c(body), generation);
        appended.map_err(|error| IngestError::Io(error.to_string()))?;
        log.last = (ledger, entry);
        if log.writer.written_bytes() == log.written {
            return Ok(());
        }
        log.written = log.writer.written_bytes();
        let unwritten: u64 = self.logs.iter().map(|log| log.writer.unwritten_bytes()).sum();
        self.check_room(unwritten)
    }

    /// Refuses to use the room that rewrites need, as flushes do.
    fn check_room(&self, unwritten: u64) -> Result<(), IngestError> {
        let shared = &self.claims.engine.shared;
        let kept = shared.rewrite_room(self.directory);
        match shared.maker(self.directory).free_bytes() {
            Some(free) if free < unwritten.saturating_add(kept) => Err(IngestError::ReadOnly(format!(
                "{free} bytes are free on its volume, and {kept} of them are kept for giving back the space of deleted \
                 ledgers"
            ))),
            _ => Ok(()),
        }
    }

    /// Invariant 2.
    fn check_none_is_here(&self) -> Result<(), IngestError> {
        let engine = &self.claims.engine;
        for (ledger, known) in &self.ledgers {
            let (Some(first), Some(last)) = (known.runs.first(), known.runs.last()) else { continue };
            let within = RunSet::within(first.first, last.last);
            // What is damaged counts as here: a copy of a lower generation would never be read. What the register has need not be
            // listed, and could not always be: of a run with a bad index record nobody can tell which entries it has.
            let known_damage = engine.shared.damage().unreadable(*ledger);
            if let Some(entry) = first_damaged(&known.runs, &known_damage) {
                return Err(IngestError::Held { ledger: *ledger, entry });
            }
            let held = engine.list(*ledger, true, MemoryWalk::with_undurable(), within, &known_damage);
            // The list may be what finds damage.
            if let (Err(Refusal::Io), Some(entry)) =
                (&held, first_damaged(&known.runs, &engine.shared.damage().unreadable(*ledger)))
            {
                return Err(IngestError::Held { ledger: *ledger, entry });
            }
            let held = match held {
                Ok(held) => held.unwrap_or_default(),
                Err(Refusal::NoLedger) => return Err(IngestError::NoLedger(*ledger)),
                Err(refusal) if engine.presence(*ledger) == LedgerPresence::Known => {
                    return Err(IngestError::Io(format!(
                        "cannot list the entries of ledger {ledger}: {refusal}"
                    )));
                }
                Err(_) => return Err(IngestError::NoLedger(*ledger)),
            };
            if let Some(entry) = first_of_both(&known.runs, &held) {
                return Err(IngestError::Held { ledger: *ledger, entry });
            }
        }
        Ok(())
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        for log in std::mem::take(&mut self.logs) {
            // A file that stays is an orphan of the next start.
            let _ = log.writer.abandon();
        }
    }
}

impl SealedIngest {
    /// Entries in it.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// As [`Ingest::leave`].
    pub fn leave(mut self) {
        self.logs = None;
    }
}

impl Drop for SealedIngest {
    fn drop(&mut self) {
        for (log, _) in self.logs.take().into_iter().flat_map(|logs| logs.logs) {
            let _ = log.abandon();
        }
    }
}

fn lac_of(body: &[u8]) -> Option<EntryId> {
    let raw: [u8; 8] = body.get(16..24)?.try_into().ok()?;
    EntryId::new(i64::from_be_bytes(raw))
}

/// The lowest entry of these runs, which ascend, that may be in a damaged copy.
fn first_damaged(ours: &[EntryRun], damaged: &[Unreadable]) -> Option<EntryId> {
    let first_in = |run: &EntryRun| {
        let met = damaged.iter().filter(|gap| gap.first <= run.last && run.first <= gap.last);
        met.map(|gap| gap.first.max(run.first)).min()
    };
    ours.iter().find_map(first_in)
}

/// The lowest entry that is in both. Both ascend.
fn first_of_both(ours: &[EntryRun], held: &[EntryRun]) -> Option<EntryId> {
    let (mut ours, mut held) = (ours.iter().peekable(), held.iter().peekable());
    while let (Some(one), Some(other)) = (ours.peek(), held.peek()) {
        let first = one.first.max(other.first);
        if first <= one.last.min(other.last) {
            return Some(first);
        }
        let shorter = if one.last < other.last { &mut ours } else { &mut held };
        shorter.next();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn runs(ids: &[i64]) -> Vec<EntryRun> {
        let mut runs = RunSet::new(usize::MAX);
        runs.extend(ids.iter().map(|id| EntryId::new(*id).unwrap()));
        runs.finish().unwrap()
    }

    proptest! {
        /// Against sets of ids.
        #[test]
        fn the_lowest_entry_of_both_is_found(
            ours in prop::collection::btree_set(0i64..40, 0..20),
            held in prop::collection::btree_set(0i64..40, 0..20),
        ) {
            let expected = ours.intersection(&held).next().copied();
            let list = |ids: &std::collections::BTreeSet<i64>| runs(&ids.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(first_of_both(&list(&ours), &list(&held)).map(EntryId::get), expected);
        }
    }
}
