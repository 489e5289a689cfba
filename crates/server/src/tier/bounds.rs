//! How far a tierer is believed: what this bookie knows of a ledger itself, then what metadata says, then the object.
//!
//! A register never goes back, so one above a ledger's end would stop the ledger for good: its tierer takes it for a bookie that is ahead,
//! and trimming for a ledger that is longer than it can be.
//!
//! # Invariants
//! 1. A register rises above the highest entry that is known here only up to the end of a closed ledger; up to the last segment of one that
//!    is open, and so far beyond what is here as other bookies of that segment have entries in between; or up to where an object is there
//!    and has the entries.
//! 2. A ledger is taken over only when metadata says that it is closed at or above its last entry. It is at once answered from object
//!    storage, and this bookie has nothing of it that could be compared.
//! 3. An update that metadata does not confirm in time is refused as a failure that may pass.
//!
//! Whether the objects of first and appended extents are there is otherwise left to the comparison before a trim: until then the copies
//! here are what is read, and a look at the bucket for each update would cost a request for each ledger and bookie.

use super::Tier;
use super::reconcile::Nothing;
use bindery_engine::{Engine, Refusal, Tiered};
use bindery_metadata::layout::{LedgerError, StoredLedger};
use bindery_types::tier::{Reconciliation, TierExtent};
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState};
use tokio::time::Instant;

/// How metadata bounds the register of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// It may rise.
    Within,
    /// It would be above the end.
    Beyond,
    /// The ledger is open, and may have so many entries.
    Unclear,
}

impl Tier {
    /// Whether an update would raise the register above what is known here.
    pub(super) fn is_beyond(&self, engine: &Engine, update: &Reconciliation) -> bool {
        // Of a ledger that is not here nothing is raised.
        last_known(engine, update).is_ok_and(|known| update.last > known)
    }

    /// Invariant 1.
    pub(super) async fn may_raise(
        &self,
        engine: &Engine,
        update: &Reconciliation,
        by: Instant,
    ) -> Result<(), Refusal> {
        let Some(last) = update.last else { return Ok(()) };
        let metadata = match self.metadata_of(update.ledger, by).await {
            Ok(stored) => stored.metadata,
            Err(Silent::Absent) => return Err(Refusal::BadRequest),
            Err(Silent::Unknown) => return Err(Refusal::Io),
        };
        let bookie = self.home.get().map(|home| &home.bookie);
        let known = last_known(engine, update)?;
        match bookie.map_or(Bound::Unclear, |bookie| bound(&metadata, bookie, known, last)) {
            Bound::Within => Ok(()),
            Bound::Beyond => Err(Refusal::BadRequest),
            Bound::Unclear => self.has_objects(update, known).await,
        }
    }

    /// Invariant 2.
    pub(super) async fn may_take_over(
        &self,
        ledger: LedgerId,
        last: Option<EntryId>,
        by: Instant,
    ) -> Result<(), Refusal> {
        match self.metadata_of(ledger, by).await.map(|stored| stored.metadata.state) {
            Ok(LedgerState::Closed { last_entry, .. }) if last_entry >= last => Ok(()),
            Ok(_) | Err(Silent::Absent) => Err(Refusal::BadRequest),
            Err(Silent::Unknown) => Err(Refusal::TooManyRequests),
        }
    }

    /// What metadata says of a ledger, from a server that is up to date, by the deadline of the request and with some other reads at most.
    pub(super) async fn metadata_of(&self, ledger: LedgerId, by: Instant) -> Result<StoredLedger, Silent> {
        let home = self.home.get().ok_or(Silent::Unknown)?;
        let place = tokio::time::timeout_at(by, home.reads.acquire()).await;
        let Ok(Ok(_place)) = place else { return Err(Silent::Unknown) };
        if Instant::now() >= by {
            return Err(Silent::Unknown);
        }
        let ledgers = home.layout.ledgers();
        let answer = async {
            // A server that lags would not know that the ledger was closed, or created.
            home.layout.store().sync(&ledgers.path(ledger)).await.map_err(LedgerError::from)?;
            ledgers.get(ledger).await
        };
        match tokio::time::timeout_at(by, answer).await {
            Ok(Ok(stored)) => Ok(stored),
            Ok(Err(LedgerError::NotFound(_))) => Err(Silent::Absent),
            Ok(Err(error)) => {
                tracing::debug!(%ledger, %error, "cannot read the metadata of a ledger that a tierer speaks of");
                Err(Silent::Unknown)
            }
            Err(_) => Err(Silent::Unknown),
        }
    }

    /// Whether the objects have the entries above `known`.
    async fn has_objects(&self, update: &Reconciliation, known: Option<EntryId>) -> Result<(), Refusal> {
        let fetcher = self.fetcher().ok_or(Refusal::Io)?;
        let above: Vec<TierExtent> =
            update.extents.iter().copied().filter(|extent| Some(extent.last) > known).collect();
        for extent in above {
            if let Err(error) = fetcher.check(update.ledger, &extent, |_| Vec::new(), &mut Nothing).await {
                let (ledger, first) = (update.ledger, extent.first);
                self.warn(|left_out| {
                    tracing::warn!(%ledger, %first, %error, left_out, "refused a tierer's word on entries that are not here, because \
                     their object failed its check or could not be read");
                });
                return Err(Refusal::Io);
            }
        }
        Ok(())
    }
}

/// Whether an update is of another ledger than what is known here, by their creation times.
pub(super) fn is_of_another(known: &Tiered, update: &Reconciliation) -> bool {
    known.created_ms.zip(update.created_ms).is_some_and(|(known, said)| known != said)
}

/// The last entry here of the ledger that an update is of; entries of another ledger that had its id do not count.
fn last_known(engine: &Engine, update: &Reconciliation) -> Result<Option<EntryId>, Refusal> {
    if engine.tiered(update.ledger).is_some_and(|tiered| is_of_another(&tiered, update)) {
        return Ok(None);
    }
    engine.last_known(update.ledger)
}

/// Why metadata says nothing of a ledger.
pub(super) enum Silent {
    /// It has no such ledger.
    Absent,
    /// It could not be read.
    Unknown,
}

fn bound(metadata: &LedgerMetadata, bookie: &BookieId, known: Option<EntryId>, last: EntryId) -> Bound {
    if let LedgerState::Closed { last_entry, .. } = metadata.state {
        return if Some(last) <= last_entry { Bound::Within } else { Bound::Beyond };
    }
    let Some(segment) = metadata.segments().last() else { return Bound::Unclear };
    // A segment begins behind what was confirmed.
    if last < segment.first_entry {
        return Bound::Within;
    }
    if !segment.ensemble.contains(bookie) {
        return Bound::Unclear;
    }
    let others = segment.ensemble.len() as i64 - 1;
    let here = EntryId::to_wire(known).max(segment.first_entry.get() - 1);
    if last.get() <= here.saturating_add(others) { Bound::Within } else { Bound::Unclear }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::{DigestType, LedgerSecret, Quorum, Segment};

    fn entry(id: i64) -> EntryId {
        EntryId::new(id).unwrap()
    }

    /// Three of four bookies, the last of which came with entry 10.
    fn metadata(state: LedgerState) -> LedgerMetadata {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(Quorum::new(3, 2, 2).unwrap(), secret);
        let ids = |names: [&str; 3]| names.map(|name| BookieId::new(name).unwrap()).to_vec();
        for (first, names) in [(0, ["a", "b", "c"]), (10, ["a", "b", "d"])] {
            metadata.push_segment(Segment { first_entry: entry(first), ensemble: ids(names) }).unwrap();
        }
        metadata.state = state;
        metadata
    }

    fn of(state: LedgerState, bookie: &str, known: i64, last: i64) -> Bound {
        bound(&metadata(state), &BookieId::new(bookie).unwrap(), EntryId::new(known), entry(last))
    }

    #[test]
    fn a_closed_ledger_ends_where_it_ends() {
        let closed = |last| LedgerState::Closed { last_entry: EntryId::new(last), length_bytes: 0 };
        for bookie in ["a", "c", "stranger"] {
            assert_eq!(of(closed(20), bookie, 3, 20), Bound::Within);
            assert_eq!(of(closed(20), bookie, 3, 21), Bound::Beyond);
            assert_eq!(of(closed(-1), bookie, -1, 0), Bound::Beyond);
        }
    }

    #[test]
    fn an_open_ledger_may_be_longer_by_what_others_have() {
        for state in [LedgerState::Open, LedgerState::InRecovery] {
            // The ensemble has two others, each of which may have one entry more.
            assert_eq!(of(state, "a", 30, 32), Bound::Within);
            assert_eq!(of(state, "a", 30, 33), Bound::Unclear);
            assert_eq!(of(state, "d", -1, 11), Bound::Within);
            assert_eq!(of(state, "d", -1, 12), Bound::Unclear);
            // Everything below the last segment is confirmed; of what is in it a former member knows nothing.
            assert_eq!(of(state, "c", 3, 9), Bound::Within);
            assert_eq!(of(state, "c", 3, 10), Bound::Unclear);
            assert_eq!(of(state, "a", i64::MAX, i64::MAX), Bound::Within);
        }
    }
}
