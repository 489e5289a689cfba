//! The owner of the catalogue: one request after the other, and its upkeep beside them.

use std::sync::Arc;

use bindery_io::Random;
use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::{
    Catalogue, CatalogueError, Change, ChangeOutcome, NewObject, Position, Totals, UpkeepDone,
};
use bindery_types::tier::TierExtent;
use bindery_types::{EntryId, LedgerId};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::meter::Meter;
use crate::core::CommitReply;

/// Requests that wait for the catalogue: the core has a few under way at most.
pub(super) const WAITING_MAX: usize = 256;
/// Extents in one answer.
const EXTENTS_MAX: usize = 256;

/// Ledgers, each with its last entry in the catalogue.
type Ends = Vec<(LedgerId, Option<EntryId>)>;

/// A question or an order.
pub(super) enum Ask {
    Locate(Vec<LedgerId>, oneshot::Sender<Result<Ends, String>>),
    Extents(LedgerId, EntryId, oneshot::Sender<Option<Vec<TierExtent>>>),
    Reserve(usize, oneshot::Sender<Result<Vec<ObjectId>, String>>),
    Commit(Vec<NewObject>, usize, oneshot::Sender<Result<CommitReply, String>>),
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

impl Desk {
    /// Answers until nobody can ask any more.
    pub async fn run(mut self, mut asks: mpsc::Receiver<Ask>) {
        let mut upkeep: JoinSet<Result<UpkeepDone, CatalogueError>> = JoinSet::new();
        self.show();
        loop {
            tokio::select! {
                ask = asks.recv() => match ask {
                    Some(ask) => self.answer(ask).await,
                    None => break,
                },
                Some(done) = upkeep.join_next(), if !upkeep.is_empty() => match done {
                    Ok(done) => self.install(done).await,
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
            }
            if upkeep.is_empty()
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

    async fn install(&mut self, done: Result<UpkeepDone, CatalogueError>) {
        let installed = match done {
            Ok(done) => match self.catalogue.install(done).await {
                Ok(_) => self.catalogue.clean().await.map(drop),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        if let Err(error) = installed {
            tracing::warn!(%error, "a snapshot of the catalogue did not succeed; a later one will");
        }
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
        }
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
