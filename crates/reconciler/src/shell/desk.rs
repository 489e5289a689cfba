//! The owner of the catalogue: one request after the other, and its upkeep beside them.

use std::sync::Arc;
use std::time::Duration;

use bindery_io::Random;
use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::{
    Catalogue, CatalogueError, Change, ChangeOutcome, ExtentOutcome, ExtentRow, NewObject, ObjectRow,
    Outcome, Position, Refusal, Totals, UpkeepDone,
};
use bindery_types::tier::TierExtent;
use bindery_types::{EntryId, LedgerId};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::meter::Meter;
use crate::core::upkeep::{Absent, Garbage, ScannedRow};
use crate::core::{CommitReply, Place};

/// Requests that wait for the catalogue: the core has a few under way at most.
pub(super) const WAITING_MAX: usize = 256;
/// Extents in one answer.
const EXTENTS_MAX: usize = 256;

/// Ledgers of the catalogue in one answer.
const LEDGERS_PAGE: usize = 10_000;
/// Rows of objects that are read at once.
const ROWS_PAGE: usize = 1000;
/// Extents that one record removes, about: their rows are in memory meanwhile.
const EXTENTS_REMOVED_MAX: u64 = 16_384;

/// Extents that a range of a ledger is in, at most: more than a request to a bookie may carry.
const COVERING_MAX: usize = 4097;
/// Answers about extents are no older than this.
const FRESH: Duration = Duration::from_secs(5);

/// The pause after upkeep that failed: the first, which doubles with each failure, and the longest.
const UPKEEP_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// What the catalogue has of a range of a ledger.
pub(super) struct Covering {
    /// Extents that follow each other.
    pub extents: Vec<TierExtent>,
    /// When the ledger was created, as far as its row says.
    pub created_ms: Option<i64>,
}

/// A question or an order.
pub(super) enum Ask {
    Locate(Vec<LedgerId>, oneshot::Sender<Result<Vec<Place>, String>>),
    Extents(LedgerId, EntryId, oneshot::Sender<Option<Vec<TierExtent>>>),
    Reserve(usize, oneshot::Sender<Result<Vec<ObjectId>, String>>),
    Commit(Vec<NewObject>, usize, oneshot::Sender<Result<CommitReply, String>>),
    /// The ledgers behind this one, ascending; none at the end. From the beginning the log is followed first.
    Ledgers(Option<LedgerId>, oneshot::Sender<Result<Vec<LedgerId>, String>>),
    /// Ledgers that are gone, answered with the extents that are left of each.
    Remove(Vec<Absent>, oneshot::Sender<Result<Vec<(LedgerId, u64)>, String>>),
    /// Objects that are of no use for so long, by the store's time.
    Garbage(Duration, (Option<ObjectId>, usize), oneshot::Sender<Result<Vec<Garbage>, String>>),
    /// Which of these objects the catalogue refers to, after the log was followed. It fails when another catalogue is found by that.
    Referenced(Vec<ObjectId>, oneshot::Sender<Result<Vec<ObjectId>, String>>),
    /// Rows of objects that are deleted, answered with how many are gone.
    Forget(Vec<ObjectId>, oneshot::Sender<Result<u64, String>>),
    /// Rows of objects behind the first and up to the second, or to the end, after the log was followed.
    Rows(Option<ObjectId>, Option<ObjectId>, oneshot::Sender<Result<Vec<ScannedRow>, String>>),
    /// An object with a later id than this one, if there is one that was committed.
    Later(ObjectId, oneshot::Sender<Result<Option<ObjectId>, String>>),
    /// The store's time, in milliseconds since the epoch.
    Time(oneshot::Sender<u64>),
    /// Whether the catalogue refers to extents of an object, given by ledger and first entry.
    Live(ObjectId, Vec<(LedgerId, EntryId)>, oneshot::Sender<Result<Vec<bool>, String>>),
    /// Extents of an object take the place of extents of others.
    Replace(NewObject, Vec<ObjectId>, oneshot::Sender<Result<Result<Vec<ExtentOutcome>, Refusal>, String>>),
    /// What there is of ranges of ledgers, from a first to a last entry; `None` for a ledger that is not there, or is being removed.
    Covering(Vec<(LedgerId, EntryId, EntryId)>, oneshot::Sender<Result<Vec<Option<Covering>>, String>>),
}

/// What it shows.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    pub position: Position,
    pub totals: Totals,
    pub clock_ahead_ms: i64,
    /// Why the catalogue cannot be followed: it was lost, cut, or replaced by what cannot be read.
    pub fault: Option<String>,
    /// How often another catalogue was found than the one that was followed, and read from its beginning.
    pub reloads: u64,
}

/// A catalogue that cannot be followed.
#[derive(Default)]
pub(super) struct Lost {
    fault: Option<String>,
    reloads: u64,
    /// It is read from its beginning again at this time.
    until: Option<Instant>,
}

/// Between two attempts to read a catalogue that cannot be followed from its beginning.
const RELOAD_PAUSE: Duration = Duration::from_secs(5);

pub(super) struct Desk {
    pub catalogue: Catalogue,
    pub random: Arc<dyn Random>,
    pub reservation_ttl_ms: u64,
    pub meter: Arc<Meter>,
    pub view: Arc<Mutex<View>>,
    /// When the log was last followed to its end.
    pub refreshed_at: Option<Instant>,
    pub lost: Lost,
}

/// Keeps upkeep that fails from being repeated without end.
#[derive(Default)]
struct Pause {
    failures: u32,
    until: Option<Instant>,
}

impl Pause {
    fn note(&mut self, is_done: bool) {
        self.failures = if is_done { 0 } else { self.failures + 1 };
        let (first, longest) = UPKEEP_PAUSE;
        let doubled = self.failures.checked_sub(1).map(|times| first * 2_u32.pow(times.min(10)));
        self.until = doubled.map(|pause| Instant::now() + pause.min(longest));
    }

    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| until <= Instant::now())
    }
}

impl Desk {
    /// Answers until nobody can ask any more.
    pub async fn run(mut self, mut asks: mpsc::Receiver<Ask>) {
        let mut upkeep: JoinSet<Result<UpkeepDone, CatalogueError>> = JoinSet::new();
        let mut pause = Pause::default();
        self.show();
        loop {
            tokio::select! {
                ask = asks.recv() => match ask {
                    Some(ask) => self.answer(ask).await,
                    None => break,
                },
                Some(done) = upkeep.join_next(), if !upkeep.is_empty() => match done {
                    Ok(done) => pause.note(self.install(done).await),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
            }
            // Upkeep that failed is due again at once: a run that is damaged, or a bucket that is full.
            if upkeep.is_empty()
                && pause.is_over()
                && let Some(job) = self.catalogue.upkeep_due()
            {
                upkeep.spawn(job.run());
            }
            self.show();
        }
        // A run that was not installed counts for nothing, and the next cleaning deletes it.
    }

    fn show(&self) {
        self.meter.set_catalogue(self.catalogue.requests());
        *self.view.lock() = View {
            position: self.catalogue.position(),
            totals: self.catalogue.totals(),
            clock_ahead_ms: self.catalogue.clock_ahead_ms().unwrap_or(0),
            fault: self.lost.fault.clone(),
            reloads: self.lost.reloads,
        };
    }

    /// Whether it did not fail.
    async fn install(&mut self, done: Result<UpkeepDone, CatalogueError>) -> bool {
        let installed = match done {
            Ok(done) => match self.catalogue.install(done).await {
                Ok(_) => self.catalogue.clean().await.map(drop),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        if let Err(error) = &installed {
            tracing::warn!(%error, "a catalogue snapshot failed and will be retried");
        }
        installed.is_ok()
    }

    async fn answer(&mut self, ask: Ask) {
        // Whoever went away does not need an answer.
        match ask {
            Ask::Locate(ledgers, reply) => drop(reply.send(self.locate(ledgers).await)),
            Ask::Extents(ledger, from, reply) => drop(reply.send(self.extents(ledger, from).await)),
            Ask::Reserve(count, reply) => {
                let reserved = self.commit(Vec::new(), count).await;
                drop(reply.send(reserved.map(|reply| reply.reserved)));
            }
            Ask::Commit(objects, reserve, reply) => drop(reply.send(self.commit(objects, reserve).await)),
            Ask::Ledgers(after, reply) => drop(reply.send(in_words(self.ledgers(after).await))),
            Ask::Remove(ledgers, reply) => drop(reply.send(in_words(self.remove(&ledgers).await))),
            Ask::Garbage(delay, page, reply) => drop(reply.send(in_words(self.garbage(delay, page).await))),
            Ask::Forget(objects, reply) => drop(reply.send(in_words(self.forget(objects).await))),
            Ask::Rows(after, through, reply) => drop(reply.send(in_words(self.rows(after, through).await))),
            Ask::Later(object, reply) => drop(reply.send(in_words(self.later(object).await))),
            Ask::Time(reply) => drop(reply.send(self.catalogue.now_ms())),
            Ask::Live(object, extents, reply) => {
                drop(reply.send(in_words(self.live(object, &extents).await)));
            }
            Ask::Replace(object, sources, reply) => {
                drop(reply.send(in_words(self.replace(object, sources).await)));
            }
            Ask::Referenced(objects, reply) => drop(reply.send(self.referenced(&objects).await)),
            Ask::Covering(ranges, reply) => drop(reply.send(in_words(self.covering(&ranges).await))),
        }
    }

    /// Follows the log to its end.
    async fn refresh(&mut self) -> Result<(), CatalogueError> {
        let began = Instant::now();
        let mut followed = self.catalogue.refresh().await;
        if followed.is_ok() && self.lost.fault.is_some() {
            // The missing record may be behind the end.
            followed = self.catalogue.check_end().await;
        }
        self.or_read_anew(followed).await?;
        self.refreshed_at = Some(began);
        self.lost.fault = None;
        Ok(())
    }

    /// As [`Self::refresh`], and looks whether a record is missing where the log seems to end.
    async fn refresh_to_its_end(&mut self) -> Result<(), CatalogueError> {
        self.refresh().await?;
        let followed = self.catalogue.check_end().await;
        self.or_read_anew(followed).await
    }

    async fn commit_changes(&mut self, changes: Vec<Change>) -> Result<Outcome, CatalogueError> {
        match self.catalogue.commit(changes).await {
            Err(error) if error.is_tampered() => {
                // They were meant for the other one.
                self.read_anew(&error).await?;
                Err(error)
            }
            outcome => outcome,
        }
    }

    async fn or_read_anew(&mut self, followed: Result<(), CatalogueError>) -> Result<(), CatalogueError> {
        match followed {
            Err(error) if error.is_tampered() => self.read_anew(&error).await,
            outcome => outcome,
        }
    }

    /// The catalogue is not the one that was followed: reads what is there.
    async fn read_anew(&mut self, error: &CatalogueError) -> Result<(), CatalogueError> {
        if self.lost.until.is_some_and(|until| until > Instant::now()) {
            return Err(error.clone());
        }
        self.refreshed_at = None;
        match self.catalogue.reload().await {
            Ok(()) => {
                tracing::warn!(%error, "the catalogue was replaced: reading the one that is there now");
                self.lost = Lost { fault: None, reloads: self.lost.reloads + 1, until: None };
                Ok(())
            }
            Err(error) => {
                self.lost.until = Some(Instant::now() + RELOAD_PAUSE);
                if error.is_tampered() {
                    self.lost.fault = Some(error.to_string());
                }
                Err(error)
            }
        }
    }

    /// Follows the log, unless that was done just now.
    async fn be_fresh(&mut self) -> Result<(), CatalogueError> {
        match self.refreshed_at {
            Some(at) if at.elapsed() < FRESH => Ok(()),
            _ => self.refresh().await,
        }
    }

    async fn live(
        &mut self,
        object: ObjectId,
        extents: &[(LedgerId, EntryId)],
    ) -> Result<Vec<bool>, CatalogueError> {
        self.be_fresh().await?;
        let mut live = Vec::with_capacity(extents.len());
        for (ledger, first) in extents {
            let found = self.catalogue.extents(*ledger, *first, 1).await?;
            let is_it = found.first().is_some_and(|(begin, row)| begin == first && row.object.id == object);
            live.push(is_it);
        }
        Ok(live)
    }

    async fn replace(
        &mut self,
        object: NewObject,
        sources: Vec<ObjectId>,
    ) -> Result<Result<Vec<ExtentOutcome>, Refusal>, CatalogueError> {
        let mut outcome = self.commit_changes(vec![Change::Replace { object, sources }]).await?;
        match outcome.changes.pop() {
            Some(ChangeOutcome::Committed(outcome)) => Ok(outcome),
            other => unreachable!("the outcome of a replacement, not {other:?}"),
        }
    }

    async fn covering(
        &mut self,
        ranges: &[(LedgerId, EntryId, EntryId)],
    ) -> Result<Vec<Option<Covering>>, CatalogueError> {
        self.be_fresh().await?;
        let mut covering = Vec::with_capacity(ranges.len());
        for (ledger, first, last) in ranges {
            let row = self.catalogue.ledger(*ledger).await?.filter(|row| !row.is_removed);
            let Some(row) = row else {
                covering.push(None);
                continue;
            };
            let mut limit = 2;
            let extents = loop {
                let found = self.catalogue.extents(*ledger, *first, limit).await?;
                let is_whole = found.len() < limit || found.last().is_some_and(|(_, row)| row.last >= *last);
                if is_whole || limit >= COVERING_MAX {
                    break found;
                }
                limit = (limit * 8).min(COVERING_MAX);
            };
            let of_range = extents.iter().filter(|(begin, _)| begin <= last);
            let extents = of_range.map(|(begin, row)| row.tier_extent(*begin)).collect();
            covering.push(Some(Covering { extents, created_ms: row.created_ms }));
        }
        Ok(covering)
    }

    async fn ledgers(&mut self, after: Option<LedgerId>) -> Result<Vec<LedgerId>, CatalogueError> {
        if after.is_none() {
            self.refresh_to_its_end().await?;
        }
        let rows = self.catalogue.ledgers_after(after, LEDGERS_PAGE).await?;
        Ok(rows.into_iter().map(|(ledger, _)| ledger).collect())
    }

    /// As many of these as one record may take, at least one; the others have all of their extents left.
    async fn remove(&mut self, absent: &[Absent]) -> Result<Vec<(LedgerId, u64)>, CatalogueError> {
        self.refresh().await?;
        let ledgers: Vec<LedgerId> = absent.iter().map(|absent| absent.ledger).collect();
        let rows = self.catalogue.ledgers(&ledgers).await?;
        let (mut taken, mut extents, mut left) = (Vec::new(), 0, Vec::new());
        for Absent { ledger, created_ms } in absent {
            let of_ledger = rows.get(ledger).map_or(0, |row| row.extents);
            if !taken.is_empty() && extents + of_ledger.min(EXTENTS_REMOVED_MAX) > EXTENTS_REMOVED_MAX {
                left.push((*ledger, of_ledger));
                continue;
            }
            extents += of_ledger;
            taken.push(Change::RemoveLedger { ledger: *ledger, created_ms: *created_ms });
        }
        let changes = taken.clone();
        let outcome = self.commit_changes(changes).await?;
        for (change, outcome) in taken.into_iter().zip(outcome.changes) {
            if let (Change::RemoveLedger { ledger, .. }, ChangeOutcome::LedgerRemoved { left: more, .. }) =
                (change, outcome)
            {
                left.push((ledger, more));
            }
        }
        Ok(left)
    }

    async fn garbage(
        &mut self,
        delay: Duration,
        (after, limit): (Option<ObjectId>, usize),
    ) -> Result<Vec<Garbage>, CatalogueError> {
        self.refresh().await?;
        let totals = self.catalogue.totals();
        if totals.reserved + totals.unreferenced == 0 {
            return Ok(Vec::new());
        }
        let now_ms = self.catalogue.now_ms();
        // Reservations expire by the log's time, which stands still while nothing is committed: once all of them have, a record
        // without changes moves it on.
        let expired_ms = self.catalogue.position().log_ms.saturating_add(self.reservation_ttl_ms);
        if totals.reserved > 0 && expired_ms <= now_ms {
            self.commit_changes(Vec::new()).await?;
        }
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        let found = self.catalogue.garbage_rows(now_ms.saturating_sub(delay_ms), after, limit).await?;
        Ok(found.into_iter().map(|(object, row)| Garbage::new(object, &row)).collect())
    }

    async fn rows(
        &mut self,
        after: Option<ObjectId>,
        through: Option<ObjectId>,
    ) -> Result<Vec<ScannedRow>, CatalogueError> {
        self.refresh().await?;
        let mut rows = Vec::new();
        let mut after = after;
        loop {
            let page = self.catalogue.objects_after(after, ROWS_PAGE).await?;
            let Some((last, _)) = page.last().copied() else { return Ok(rows) };
            for (object, row) in page {
                if through.is_some_and(|through| object > through) {
                    return Ok(rows);
                }
                rows.push(ScannedRow::new(object, &row));
            }
            after = Some(last);
        }
    }

    async fn later(&mut self, object: ObjectId) -> Result<Option<ObjectId>, CatalogueError> {
        self.refresh().await?;
        let mut after = object;
        loop {
            let page = self.catalogue.objects_after(Some(after), ROWS_PAGE).await?;
            let Some((last, _)) = page.last() else { return Ok(None) };
            after = *last;
            let mut stored = page.iter().filter(|(_, row)| matches!(row, ObjectRow::Stored(_)));
            if let Some((later, _)) = stored.next() {
                return Ok(Some(*later));
            }
        }
    }

    async fn referenced(&mut self, objects: &[ObjectId]) -> Result<Vec<ObjectId>, String> {
        let reloads = self.lost.reloads;
        self.refresh_to_its_end().await.map_err(|error| error.to_string())?;
        if self.lost.reloads != reloads {
            return Err("the catalogue was replaced".to_owned());
        }
        let mut referenced = Vec::new();
        for object in objects {
            let row = self.catalogue.object(*object).await.map_err(|error| error.to_string())?;
            let is_live = matches!(row, Some(ObjectRow::Stored(stored)) if stored.live_extents > 0);
            referenced.extend(is_live.then_some(*object));
        }
        Ok(referenced)
    }

    async fn forget(&mut self, objects: Vec<ObjectId>) -> Result<u64, CatalogueError> {
        let changes = objects.into_iter().map(Change::ForgetObject).collect();
        let outcome = self.commit_changes(changes).await?;
        let is_gone = |change: &&ChangeOutcome| matches!(change, ChangeOutcome::Forgotten(Ok(())));
        Ok(outcome.changes.iter().filter(is_gone).count() as u64)
    }

    async fn locate(&mut self, ledgers: Vec<LedgerId>) -> Result<Vec<Place>, String> {
        self.refresh().await.map_err(|error| error.to_string())?;
        let rows = self.catalogue.ledgers(&ledgers).await.map_err(|error| error.to_string())?;
        let place = |ledger: LedgerId| {
            let row = rows.get(&ledger);
            let last = row.and_then(|row| row.next.get().checked_sub(1)).and_then(EntryId::new);
            Place { ledger, last, created_ms: row.and_then(|row| row.created_ms) }
        };
        Ok(ledgers.iter().map(|ledger| place(*ledger)).collect())
    }

    /// As of now: others may have taken over what was said before.
    async fn extents(&mut self, ledger: LedgerId, from: EntryId) -> Option<Vec<TierExtent>> {
        let mut found = match self.be_fresh().await {
            Ok(()) => self.extents_of(ledger, from).await,
            Err(error) => Err(error),
        };
        if found.as_ref().is_ok_and(Vec::is_empty) && self.refresh().await.is_ok() {
            found = self.extents_of(ledger, from).await;
        }
        match found {
            Ok(rows) => Some(rows.iter().map(|(first, row)| row.tier_extent(*first)).collect()),
            Err(error) => {
                tracing::debug!(%error, %ledger, "extents cannot be read from the catalogue");
                None
            }
        }
    }

    /// As far as it was read. Of a ledger that is being removed, some at a time, none counts.
    async fn extents_of(
        &mut self,
        ledger: LedgerId,
        from: EntryId,
    ) -> Result<Vec<(EntryId, ExtentRow)>, CatalogueError> {
        match self.catalogue.ledger(ledger).await? {
            Some(row) if !row.is_removed => self.catalogue.extents(ledger, from, EXTENTS_MAX).await,
            _ => Ok(Vec::new()),
        }
    }

    async fn commit(&mut self, objects: Vec<NewObject>, reserve: usize) -> Result<CommitReply, String> {
        let ids: Vec<ObjectId> = (0..reserve).map(|_| self.draw()).collect();
        let committed: Vec<ObjectId> = objects.iter().map(|new| new.object.id).collect();
        let mut changes: Vec<Change> = objects.into_iter().map(Change::Commit).collect();
        if !ids.is_empty() {
            changes.push(Change::Reserve { objects: ids.clone(), ttl_ms: self.reservation_ttl_ms });
        }
        let outcome = self.commit_changes(changes).await.map_err(|error| error.to_string())?;
        let mut reply = CommitReply { objects: Vec::new(), reserved: Vec::new() };
        let mut of_commits = committed.into_iter();
        for change in outcome.changes {
            match change {
                ChangeOutcome::Committed(outcome) => {
                    reply.objects.extend(of_commits.next().map(|id| (id, outcome)))
                }
                ChangeOutcome::Reserved { refused } => {
                    reply.reserved = ids.iter().copied().filter(|id| !refused.contains(id)).collect();
                }
                ChangeOutcome::LedgerRemoved { .. }
                | ChangeOutcome::Forgotten(_)
                | ChangeOutcome::Nothing => {}
            }
        }
        Ok(reply)
    }

    fn draw(&self) -> ObjectId {
        let mut random = [0; 10];
        random[..8].copy_from_slice(&self.random.next_u64().to_be_bytes());
        random[8..].copy_from_slice(&self.random.next_u64().to_be_bytes()[..2]);
        ObjectId::new(self.catalogue.now_ms(), random)
    }
}

fn in_words<T>(outcome: Result<T, CatalogueError>) -> Result<T, String> {
    outcome.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_io::{SystemClock, SystemRandom};
    use bindery_tiering::catalogue::{CatalogueOptions, NewExtent, OpenMode, REMOVED_EXTENTS_MAX};
    use bindery_tiering::store::Store;
    use bindery_types::tier::{ClusterId, ObjectRef};
    use object_store::memory::InMemory;

    /// A ledger of so many extents leaves the catalogue some at a time. Nobody is told of those that are left.
    #[tokio::test]
    async fn extents_of_a_ledger_that_is_being_removed_are_told_to_nobody() {
        let store = Store::new("s3://bucket".parse().unwrap(), Arc::new(InMemory::new()));
        let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
        let (cluster, options) = (ClusterId::from_bytes([1; 16]), CatalogueOptions::default());
        let catalogue = Catalogue::open(&store, cluster, OpenMode::Create, options, clock, random.clone());
        let mut desk = Desk {
            catalogue: catalogue.await.unwrap(),
            random,
            reservation_ttl_ms: 60_000,
            meter: Arc::new(Meter::default()),
            view: Arc::default(),
            refreshed_at: None,
            lost: Lost::default(),
        };
        let ledger = LedgerId::new(1).unwrap();
        let entry = |id| EntryId::new(id).unwrap();
        let id = desk.commit(Vec::new(), 1).await.unwrap().reserved[0];
        let count = REMOVED_EXTENTS_MAX as i64 + 10;
        let extent =
            |first| NewExtent { ledger, first: entry(first), last: entry(first), bytes: 1, created_ms: None };
        let object = ObjectRef { id, length_bytes: 9, footer_offset: 1, footer_crc: 0, etag_crc: 0 };
        let object = NewObject { object, extents: (0..count).map(extent).collect() };
        desk.commit(vec![object], 0).await.unwrap();
        assert_eq!(desk.extents(ledger, entry(count - 1)).await.unwrap().len(), 1);
        let absent = Absent { ledger, created_ms: None };
        assert_eq!(desk.remove(&[absent]).await.unwrap(), [(ledger, 10)]);
        assert_eq!(desk.extents(ledger, entry(count - 1)).await, Some(Vec::new()));
    }

    #[tokio::test(start_paused = true)]
    async fn upkeep_that_fails_is_tried_again_ever_more_rarely() {
        let mut pause = Pause::default();
        assert!(pause.is_over());
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            pause.note(false);
            tokio::time::advance(Duration::from_secs(seconds) - Duration::from_millis(1)).await;
            assert!(!pause.is_over(), "{seconds}");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(pause.is_over(), "{seconds}");
        }
        pause.note(false);
        pause.note(true);
        assert!(pause.is_over());
    }
}
