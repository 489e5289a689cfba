//! Data integrity: which ledgers a bookie may have lost entries of, and which of them are whole again (protocol
//! reference, section 4.5).
//!
//! # Data flow
//! ```text
//! start, all in limbo up to an id -> every ledger in metadata up to it: names us? -> marked, durably -> cover ends
//! later, each marked ledger       -> metadata -> entries it should hold, entries it holds -> whole: mark goes
//! ```
//!
//! # Invariants (IB27, IB28)
//! 1. The cover ends only when every ledger that metadata has up to it was read, and those that name this bookie (or
//!    cannot be read) are marked, durably also when the journal does not sync.
//! 2. A mark goes only when metadata says which entries belong here, and all of them are here durably. For an open
//!    ledger that is unknown while this bookie is in its last ensemble.
//!
//! # Limits
//! Metadata reads under way: [`READS_MAX`]; marks under way: [`BATCH_MAX`]; entries that are compared at a time:
//! [`COMPARED_AT_ONCE`].

use bindery_engine::{Doubt, Engine, EntryRun, Refusal, Waiter};
use bindery_metadata::Layout;
use bindery_metadata::layout::LedgerError;
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Quorum};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Metadata reads under way while a cover is being replaced by marks.
const READS_MAX: usize = 32;
/// Marks under way: their records take room that is kept for fences.
const BATCH_MAX: usize = 64;

/// Of a striped ledger each entry is a run of its own, 16 bytes.
const COMPARED_AT_ONCE: i64 = 1 << 18;
/// Once something is missing, so many ranges of [`COMPARED_AT_ONCE`] entries are compared still, to count what else is.
const COUNTED_FURTHER: u32 = 64;

/// What a bookie lacks of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Nothing.
    Nothing,
    /// No ensemble names it, so nothing belongs here.
    NotOurs,
    /// At least these.
    Entries {
        /// The first of them.
        first: EntryId,
        /// How many.
        count: u64,
    },
    /// It is open with this bookie in the last ensemble: not known yet.
    Undecided,
}

/// Compares what `bookie` should hold with what it holds; `held` says what that is from one entry to another, ascending. Takes
/// time by what is held, whatever ids metadata names: it ends soon after the first range of entries of which one is missing.
///
/// # Errors
/// Those of `held`.
pub fn missing<E>(
    metadata: &LedgerMetadata,
    bookie: &BookieId,
    mut held: impl FnMut(EntryId, EntryId) -> Result<Vec<EntryRun>, E>,
) -> Result<Missing, E> {
    let end = match metadata.state {
        LedgerState::Closed { last_entry, .. } => Some(EntryId::to_wire(last_entry)),
        LedgerState::Open | LedgerState::InRecovery => None,
    };
    let segments = metadata.segments();
    let (mut first, mut count, mut is_named, mut is_open_here) = (None, 0, false, false);
    let mut further = COUNTED_FURTHER;
    for (at, segment) in segments.iter().enumerate() {
        if !segment.ensemble.contains(bookie) {
            continue;
        }
        is_named = true;
        let last = match segments.get(at + 1) {
            Some(next) => Some(next.first_entry.get() - 1),
            None => end,
        };
        let Some(last) = last else {
            is_open_here = true;
            continue;
        };
        let stripes = Stripes::of(metadata.quorum, &segment.ensemble, bookie);
        let mut next = Some(segment.first_entry.get());
        while let Some(begin) = next.filter(|begin| *begin <= last && further > 0) {
            let until = last.min(begin.saturating_add(COMPARED_AT_ONCE - 1));
            let (Some(from), Some(to)) = (EntryId::new(begin), EntryId::new(until)) else { break };
            let (lacked, lacked_first) = stripes.lacked(begin, until, &held(from, to)?);
            count += lacked;
            first = first.or(lacked_first);
            further -= u32::from(first.is_some());
            next = until.checked_add(1);
        }
    }
    Ok(match first {
        Some(first) => Missing::Entries { first, count },
        None if is_open_here => Missing::Undecided,
        None if is_named => Missing::Nothing,
        None => Missing::NotOurs,
    })
}

/// The entries of a segment that belong to a bookie: those whose ids leave one of these remainders.
struct Stripes {
    ensemble_size: i64,
    /// Ascending.
    remainders: Vec<i64>,
}

impl Stripes {
    fn of(quorum: Quorum, ensemble: &[BookieId], bookie: &BookieId) -> Stripes {
        let places: Vec<usize> = (0..ensemble.len()).filter(|place| ensemble[*place] == *bookie).collect();
        let belongs = |remainder: &i64| {
            let entry = EntryId::new(*remainder).expect("a remainder is not negative");
            places.iter().any(|place| quorum.is_in_write_set(entry, *place))
        };
        let ensemble_size = i64::try_from(quorum.ensemble_size()).expect("an ensemble is small");
        Stripes { ensemble_size, remainders: (0..ensemble_size).filter(belongs).collect() }
    }

    /// How many of the entries from `first` to `last` belong to the bookie.
    fn count(&self, first: i64, last: i64) -> u64 {
        if first > last {
            return 0;
        }
        // Of the entries below `end`, which may be beyond the last id.
        let below = |end: i128| -> i128 {
            let size = i128::from(self.ensemble_size);
            let partial = self.remainders.iter().filter(|r| i128::from(**r) < end % size).count() as i128;
            end / size * self.remainders.len() as i128 + partial
        };
        u64::try_from(below(i128::from(last) + 1) - below(i128::from(first))).expect("no more than ids")
    }

    /// The first from `first` to `last`.
    fn first(&self, first: i64, last: i64) -> Option<EntryId> {
        let after = |remainder: &i64| {
            first.checked_add((remainder - first % self.ensemble_size).rem_euclid(self.ensemble_size))
        };
        self.remainders.iter().filter_map(after).min().filter(|entry| *entry <= last).and_then(EntryId::new)
    }

    /// Of the entries from `first` to `last`: how many that belong to the bookie are in no run, and the first of them.
    fn lacked(&self, first: i64, last: i64, held: &[EntryRun]) -> (u64, Option<EntryId>) {
        let (mut count, mut lowest, mut next) = (0, None, Some(first));
        for run in held {
            let Some(begin) = next else { break };
            let gap_end = last.min(run.first.get() - 1);
            count += self.count(begin, gap_end);
            lowest = lowest.or_else(|| self.first(begin, gap_end));
            next = run.last.get().checked_add(1).map(|after| after.max(begin));
        }
        if let Some(begin) = next {
            count += self.count(begin, last);
            lowest = lowest.or_else(|| self.first(begin, last));
        }
        (count, lowest)
    }
}

/// Marks every ledger up to `up_to` that metadata says may have been here (invariant 1). Returns how many.
pub async fn mark(
    layout: &Layout,
    engine: &Arc<Engine>,
    bookie: &BookieId,
    up_to: LedgerId,
) -> Result<u64, String> {
    layout.store().sync(layout.root()).await.map_err(|error| error.to_string())?;
    let ledgers = layout.ledgers();
    let mut listing = ledgers.list();
    let mut reads: JoinSet<Result<Option<LedgerId>, LedgerError>> = JoinSet::new();
    let (mut marked, mut batch) = (0, Vec::new());
    while let Some(range) = listing.next().await.map_err(|error| error.to_string())? {
        for ledger in range.into_iter().filter(|ledger| *ledger <= up_to) {
            if reads.len() >= READS_MAX
                && let Some(read) = reads.join_next().await
            {
                batch.extend(named(read)?);
            }
            let (ledgers, bookie) = (ledgers.clone(), bookie.clone());
            reads.spawn(async move {
                match ledgers.get(ledger).await {
                    Ok(stored) => Ok(stored.metadata.names(&bookie).then_some(ledger)),
                    Err(LedgerError::NotFound(_)) => Ok(None),
                    // Whatever it says, it may say our name.
                    Err(LedgerError::Malformed { .. }) => Ok(Some(ledger)),
                    Err(other) => Err(other),
                }
            });
            if batch.len() >= BATCH_MAX {
                marked += place(engine, &mut batch).await?;
            }
        }
    }
    while let Some(read) = reads.join_next().await {
        batch.extend(named(read)?);
        if batch.len() >= BATCH_MAX {
            marked += place(engine, &mut batch).await?;
        }
    }
    marked += place(engine, &mut batch).await?;
    Ok(marked)
}

fn named(
    read: Result<Result<Option<LedgerId>, LedgerError>, tokio::task::JoinError>,
) -> Result<Option<LedgerId>, String> {
    read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

/// Marks ledgers and forces the marks, so that they outlive a power cut whatever the journal does.
async fn place(engine: &Arc<Engine>, batch: &mut Vec<LedgerId>) -> Result<u64, String> {
    // All of a batch share a group of the journal.
    let steps: [fn(&Engine, LedgerId, Waiter); 2] =
        [|engine, ledger, waiter| engine.set_limbo(ledger, true, waiter), Engine::force];
    for step in steps {
        let answers: Vec<_> =
            batch.iter().map(|ledger| answer_of(|waiter| step(engine, *ledger, waiter))).collect();
        for answer in answers {
            answer.await.map_err(|refusal| refusal.to_string())?;
        }
    }
    Ok(batch.drain(..).count() as u64)
}

/// Begins `act` now; the future is what its waiter is told.
fn answer_of(act: impl FnOnce(Waiter)) -> impl Future<Output = Result<(), Refusal>> {
    let (done, answer) = oneshot::channel();
    act(Box::new(move |outcome| {
        let _ = done.send(outcome);
    }));
    async { answer.await.unwrap_or(Err(Refusal::Io)) }
}

/// Sets or takes a mark; returns when that is durable.
pub async fn set_limbo(engine: &Engine, ledger: LedgerId, is_limbo: bool) -> Result<(), Refusal> {
    answer_of(|waiter| engine.set_limbo(ledger, is_limbo, waiter)).await
}

/// A ledger that stays in limbo, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InLimbo {
    /// The ledger.
    pub ledger: LedgerId,
    /// The entries it lacks here, or why they are unknown.
    pub why: String,
    /// The first entry that is missing.
    pub first: Option<EntryId>,
    /// How many are, at least.
    pub count: u64,
}

/// Looks at one marked ledger: `None` when it is whole, or gone, and not in limbo any more. Waits for the journal no longer than
/// `journal_patience`.
pub async fn check(
    layout: &Layout,
    engine: &Arc<Engine>,
    bookie: &BookieId,
    ledger: LedgerId,
    journal_patience: Duration,
) -> Result<Option<InLimbo>, String> {
    let stays = |why: &str, first, count| Ok(Some(InLimbo { ledger, why: why.to_owned(), first, count }));
    let stored = match layout.ledgers().get(ledger).await {
        Ok(stored) => stored,
        Err(LedgerError::NotFound(_)) => {
            return stays("deleted: the next garbage collection removes it", None, 0);
        }
        Err(error @ LedgerError::Malformed { .. }) => return stays(&error.to_string(), None, 0),
        Err(other) => return Err(other.to_string()),
    };
    let (of_blocking, bookie) = (engine.clone(), bookie.clone());
    let compared = tokio::task::spawn_blocking(move || {
        let held = |first, last| of_blocking.held_entries(ledger, first, last);
        missing(&stored.metadata, &bookie, held)
    });
    match compared.await.map_err(|error| error.to_string())? {
        Ok(Missing::Nothing) => {
            let sound = tokio::time::timeout(journal_patience, set_limbo(engine, ledger, false)).await;
            let sound = sound.map_err(|_| Doubt::JournalHangs(journal_patience.as_secs()).to_string())?;
            sound.map_err(|refusal| refusal.to_string())?;
            tracing::info!(%ledger, "nothing is missing: the ledger leaves limbo");
            Ok(None)
        }
        Ok(Missing::NotOurs) => stays("no ensemble names this bookie", None, 0),
        Ok(Missing::Undecided) => stays("open: what belongs here is known when it is closed", None, 0),
        Ok(Missing::Entries { first, count }) => stays("entries are missing", Some(first), count),
        Err(refusal) => stays(&format!("cannot be listed: {refusal}"), None, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::{DigestType, LedgerSecret, Segment};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn runs(entries: &BTreeSet<i64>) -> Vec<EntryRun> {
        let mut runs: Vec<EntryRun> = Vec::new();
        for entry in entries.iter().copied().filter_map(EntryId::new) {
            match runs.last_mut() {
                Some(run) if run.last.get() + 1 == entry.get() => run.last = entry,
                _ => runs.push(EntryRun { first: entry, last: entry }),
            }
        }
        runs
    }

    /// Ids that metadata may name, and no bookie ever held.
    #[test]
    fn a_ledger_that_ends_at_any_id_is_compared_in_bounded_time_and_lacks_what_is_not_here() {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let ensemble: Vec<BookieId> = (0..3).map(|n| BookieId::new(format!("b:{n}")).unwrap()).collect();
        for end in [1 << 40, 1 << 60, 1 << 62, i64::MAX - 1, i64::MAX] {
            let mut metadata = LedgerMetadata::new(Quorum::new(3, 2, 2).unwrap(), secret.clone());
            metadata
                .push_segment(Segment { first_entry: EntryId::FIRST, ensemble: ensemble.clone() })
                .unwrap();
            metadata.state = LedgerState::Closed { last_entry: EntryId::new(end), length_bytes: 0 };
            let mut asked = 0;
            let outcome = missing(&metadata, &ensemble[0], |first, last| {
                assert!(first <= last);
                asked += 1;
                Ok::<_, ()>(Vec::new())
            });
            assert!(asked <= COUNTED_FURTHER, "{asked}");
            let Ok(Missing::Entries { first, count }) = outcome else { panic!("{outcome:?}") };
            assert_eq!(first, EntryId::FIRST);
            assert!(count >= (COMPARED_AT_ONCE as u64) * 2 / 3, "{count}");
            // At the very end.
            metadata
                .push_segment(Segment { first_entry: EntryId::new(end).unwrap(), ensemble: ensemble.clone() })
                .unwrap();
            let all = |first: EntryId, last: EntryId| Ok::<_, ()>(vec![EntryRun { first, last }]);
            let near = Stripes::of(metadata.quorum, &ensemble, &ensemble[0]);
            assert_eq!(
                near.lacked(
                    end - 2,
                    end,
                    &all(EntryId::new(end - 2).unwrap(), EntryId::new(end).unwrap()).unwrap()
                ),
                (0, None)
            );
            assert_eq!(near.lacked(end - 2, end, &[]).0, 2);
        }
    }

    proptest! {
        /// Invariant 2, against the write set of each entry by itself.
        #[test]
        fn missing_is_what_the_write_sets_say(
            sizes in (1..5usize).prop_flat_map(|e| (Just(e), 1..=e)),
            segments in prop::collection::vec((1..6i64, prop::collection::vec(0..6u32, 5)), 1..4),
            length in 0..8i64,
            state in 0..3u8,
            held in prop::collection::btree_set(0..24i64, 0..24),
        ) {
            let (e, w) = sizes;
            let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
            let mut metadata = LedgerMetadata::new(Quorum::new(e, w, 1).unwrap(), secret);
            let id = |n: u32| BookieId::new(format!("b:{n}")).unwrap();
            let mut first = 0;
            for (step, names) in &segments {
                let ensemble = names[..e].iter().map(|n| id(*n)).collect();
                metadata.push_segment(Segment { first_entry: EntryId::new(first).unwrap(), ensemble }).unwrap();
                first += step;
            }
            let last = first - segments[segments.len() - 1].0 + length - 1;
            metadata.state = match state {
                0 => LedgerState::Open,
                1 => LedgerState::InRecovery,
                _ => LedgerState::Closed { last_entry: EntryId::new(last), length_bytes: 0 },
            };
            let begin = metadata.segments().last().unwrap().first_entry.get();
            let end = if state == 2 { last + 1 } else { begin };
            let lacked: Vec<i64> = (0..end.max(0))
                .filter(|n| !held.contains(n))
                .filter(|n| metadata.write_set(EntryId::new(*n).unwrap()).any(|b| *b == id(0)))
                .collect();
            let is_last = metadata.segments().last().unwrap().ensemble.contains(&id(0));
            let expected = match lacked.first() {
                Some(n) => Missing::Entries { first: EntryId::new(*n).unwrap(), count: lacked.len() as u64 },
                None if state != 2 && is_last => Missing::Undecided,
                None if metadata.names(&id(0)) => Missing::Nothing,
                None => Missing::NotOurs,
            };
            let held_between = |first: EntryId, last: EntryId| {
                Ok::<_, ()>(runs(&held.range(first.get()..=last.get()).copied().collect()))
            };
            prop_assert_eq!(missing(&metadata, &id(0), held_between), Ok(expected));
        }
    }
}
