//! The owner of the catalogue: one request after the other, and its upkeep beside them.

use std::sync::Arc;
use std::time::Duration;

use bindery_io::Random;
use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::{
    Catalogue, CatalogueError, Change, ChangeOutcome, NewObject, ObjectRow, Position, Totals, UpkeepDone,
};
use bindery_types::tier::TierExtent;
use bindery_types::{EntryId, LedgerId};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::meter::Meter;
use crate::core::CommitReply;
use crate::core::upkeep::ScannedRow;

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

/// The pause after upkeep that failed: the first, which doubles with each failure, and the longest.
const UPKEEP_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Ledgers, each with its last entry in the catalogue.
type Ends = Vec<(LedgerId, Option<EntryId>)>;

/// A question or an order.
pub(super) enum Ask {
    Locate(Vec<LedgerId>, oneshot::Sender<Result<Ends, String>>),
    Extents(LedgerId, EntryId, oneshot::Sender<Option<Vec<TierExtent>>>),
    Reserve(usize, oneshot::Sender<Result<Vec<ObjectId>, String>>),
    Commit(Vec<NewObject>, usize, oneshot::Sender<Result<CommitReply, String>>),
    /// The ledgers behind this one, ascending; none at the end. From the beginning the log is followed first.
    Ledgers(Option<LedgerId>, oneshot::Sender<Result<Vec<LedgerId>, String>>),
    /// Ledgers that are gone, answered with the extents that are left of each.
    Remove(Vec<LedgerId>, oneshot::Sender<Result<Vec<(LedgerId, u64)>, String>>),
    /// Objects that are of no use for so long, by the store's time.
    Garbage(Duration, usize, oneshot::Sender<Result<Vec<ObjectId>, String>>),
    /// Rows of objects that are deleted, answered with how many are gone.
    Forget(Vec<ObjectId>, oneshot::Sender<Result<u64, String>>),
    /// Rows of objects behind the first and up to the second, or to the end, after the log was followed.
    Rows(Option<ObjectId>, Option<ObjectId>, oneshot::Sender<Result<Vec<ScannedRow>, String>>),
    /// The store's time, in milliseconds since the epoch.
    Time(oneshot::Sender<u64>),
}

/// Numbers that it shows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct View {
    pub position: Position,
    pub totals: Totals,
    pub clock_ahead_ms: i64,
}

pub(super) struct Desk {
    pub catalogue: Catalogue,
    pub random: Arc<dyn Random>,
    pub reservation_ttl_ms: u64,
    pub meter: Arc<Meter>,
    pub view: Arc<Mutex<View>>,
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
            tracing::warn!(%error, "a snapshot of the catalogue did not succeed; it is tried again later");
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
            Ask::Garbage(delay, limit, reply) => drop(reply.send(in_words(self.garbage(delay, limit).await))),
            Ask::Forget(objects, reply) => drop(reply.send(in_words(self.forget(objects).await))),
            Ask::Rows(after, through, reply) => drop(reply.send(in_words(self.rows(after, through).await))),
            Ask::Time(reply) => drop(reply.send(self.catalogue.now_ms())),
        }
    }

    async fn ledgers(&mut self, after: Option<LedgerId>) -> Result<Vec<LedgerId>, CatalogueError> {
        if after.is_none() {
            self.catalogue.refresh().await?;
        }
        let rows = self.catalogue.ledgers_after(after, LEDGERS_PAGE).await?;
        Ok(rows.into_iter().map(|(ledger, _)| ledger).collect())
    }

    /// As many of these as one record may take, at least one; the others have all of their extents left.
    async fn remove(&mut self, ledgers: &[LedgerId]) -> Result<Vec<(LedgerId, u64)>, CatalogueError> {
        self.catalogue.refresh().await?;
        let rows = self.catalogue.ledgers(ledgers).await?;
        let (mut taken, mut extents, mut left) = (Vec::new(), 0, Vec::new());
        for ledger in ledgers {
            let of_ledger = rows.get(ledger).map_or(0, |row| row.extents);
            if !taken.is_empty() && extents + of_ledger.min(EXTENTS_REMOVED_MAX) > EXTENTS_REMOVED_MAX {
                left.push((*ledger, of_ledger));
                continue;
            }
            extents += of_ledger;
            taken.push(*ledger);
        }
        let changes = taken.iter().map(|ledger| Change::RemoveLedger(*ledger)).collect();
        let outcome = self.catalogue.commit(changes).await?;
        for (ledger, change) in taken.into_iter().zip(outcome.changes) {
            if let ChangeOutcome::LedgerRemoved { left: of_ledger, .. } = change {
                left.push((ledger, of_ledger));
            }
        }
        Ok(left)
    }

    async fn garbage(&mut self, delay: Duration, limit: usize) -> Result<Vec<ObjectId>, CatalogueError> {
        self.catalogue.refresh().await?;
        let totals = self.catalogue.totals();
        if totals.reserved + totals.unreferenced == 0 {
            return Ok(Vec::new());
        }
        let now_ms = self.catalogue.now_ms();
        // Reservations expire by the log's time, which stands still while nothing is committed: once all of them have, a record
        // without changes moves it on.
        let expired_ms = self.catalogue.position().log_ms.saturating_add(self.reservation_ttl_ms);
        if totals.reserved > 0 && expired_ms <= now_ms {
            self.catalogue.commit(Vec::new()).await?;
        }
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        let found = self.catalogue.garbage(now_ms.saturating_sub(delay_ms), limit).await?;
        Ok(found.into_iter().map(|(object, _)| object).collect())
    }

    async fn rows(
        &mut self,
        after: Option<ObjectId>,
        through: Option<ObjectId>,
    ) -> Result<Vec<ScannedRow>, CatalogueError> {
        self.catalogue.refresh().await?;
        let mut rows = Vec::new();
        let mut after = after;
        loop {
            let page = self.catalogue.objects_after(after, ROWS_PAGE).await?;
            let Some((last, _)) = page.last().copied() else { return Ok(rows) };
            for (object, row) in page {
                if through.is_some_and(|through| object > through) {
                    return Ok(rows);
                }
                let live_bytes = match row {
                    ObjectRow::Stored(stored) if stored.live_extents > 0 => Some(stored.object.length_bytes),
                    ObjectRow::Stored(_) | ObjectRow::Reserved { .. } => None,
                };
                rows.push(ScannedRow { object, live_bytes });
            }
            after = Some(last);
        }
    }

    async fn forget(&mut self, objects: Vec<ObjectId>) -> Result<u64, CatalogueError> {
        let changes = objects.into_iter().map(Change::ForgetObject).collect();
        let outcome = self.catalogue.commit(changes).await?;
        let is_gone = |change: &&ChangeOutcome| matches!(change, ChangeOutcome::Forgotten(Ok(())));
        Ok(outcome.changes.iter().filter(is_gone).count() as u64)
    }

    async fn locate(&mut self, ledgers: Vec<LedgerId>) -> Result<Ends, String> {
        self.catalogue.refresh().await.map_err(|error| error.to_string())?;
        let rows = self.catalogue.ledgers(&ledgers).await.map_err(|error| error.to_string())?;
        let last = |ledger: &LedgerId| {
            rows.get(ledger).and_then(|row| row.next.get().checked_sub(1)).and_then(EntryId::new)
        };
        Ok(ledgers.iter().map(|ledger| (*ledger, last(ledger))).collect())
    }

    async fn extents(&mut self, ledger: LedgerId, from: EntryId) -> Option<Vec<TierExtent>> {
        let mut found = self.catalogue.extents(ledger, from, EXTENTS_MAX).await;
        if found.as_ref().is_ok_and(Vec::is_empty) && self.catalogue.refresh().await.is_ok() {
            found = self.catalogue.extents(ledger, from, EXTENTS_MAX).await;
        }
        match found {
            Ok(rows) => Some(rows.iter().map(|(first, row)| row.tier_extent(*first)).collect()),
            Err(error) => {
                tracing::debug!(%error, %ledger, "extents cannot be read from the catalogue");
                None
            }
        }
    }

    async fn commit(&mut self, objects: Vec<NewObject>, reserve: usize) -> Result<CommitReply, String> {
        let ids: Vec<ObjectId> = (0..reserve).map(|_| self.draw()).collect();
        let committed: Vec<ObjectId> = objects.iter().map(|new| new.object.id).collect();
        let mut changes: Vec<Change> = objects.into_iter().map(Change::Commit).collect();
        if !ids.is_empty() {
            changes.push(Change::Reserve { objects: ids.clone(), ttl_ms: self.reservation_ttl_ms });
        }
        let outcome = self.catalogue.commit(changes).await.map_err(|error| error.to_string())?;
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
                ChangeOutcome::LedgerRemoved { .. } | ChangeOutcome::Forgotten(_) => {}
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
