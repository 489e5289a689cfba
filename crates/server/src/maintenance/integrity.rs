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

use bindery_engine::{Engine, EntryRun, Refusal, Waiter};
use bindery_metadata::Layout;
use bindery_metadata::layout::LedgerError;
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Metadata reads under way while a cover is being replaced by marks.
const READS_MAX: usize = 32;
/// Marks under way: their records take room that is kept for fences.
const BATCH_MAX: usize = 64;

/// Of a striped ledger each entry is a run of its own, 16 bytes.
const COMPARED_AT_ONCE: i64 = 1 << 18;

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

/// Compares what `bookie` should hold with what it holds; `held` says what that is from one entry to another, ascending.
///
/// # Errors
/// Those of `held`.
pub fn missing<E>(
    metadata: &LedgerMetadata,
    bookie: &BookieId,
    mut held: impl FnMut(EntryId, EntryId) -> Result<Vec<EntryRun>, E>,
) -> Result<Missing, E> {
    let end = match metadata.state {
        LedgerState::Closed { last_entry, .. } => Some(EntryId::to_wire(last_entry) + 1),
        LedgerState::Open | LedgerState::InRecovery => None,
    };
    let segments = metadata.segments();
    let (mut first, mut count, mut is_named, mut is_open_here) = (None, 0, false, false);
    let mut runs = Vec::new().into_iter().peekable();
    for (at, segment) in segments.iter().enumerate() {
        let places: Vec<usize> =
            (0..segment.ensemble.len()).filter(|index| segment.ensemble[*index] == *bookie).collect();
        if places.is_empty() {
            continue;
        }
        is_named = true;
        let end = match segments.get(at + 1) {
            Some(next) => Some(next.first_entry.get()),
            None => end,
        };
        let Some(end) = end else {
            is_open_here = true;
            continue;
        };
        let begin = segment.first_entry.get();
        for entry in (begin..end).filter_map(EntryId::new) {
            if (entry.get() - begin) % COMPARED_AT_ONCE == 0 {
                let last = EntryId::new((entry.get() + COMPARED_AT_ONCE).min(end) - 1).unwrap_or(entry);
                runs = held(entry, last)?.into_iter().peekable();
            }
            while runs.peek().is_some_and(|run| run.last < entry) {
                runs.next();
            }
            let is_held = runs.peek().is_some_and(|run| run.first <= entry);
            if !is_held && places.iter().any(|place| metadata.quorum.is_in_write_set(entry, *place)) {
                first = first.or(Some(entry));
                count += 1;
            }
        }
    }
    Ok(match first {
        Some(first) => Missing::Entries { first, count },
        None if is_open_here => Missing::Undecided,
        None if is_named => Missing::Nothing,
        None => Missing::NotOurs,
    })
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

/// Looks at one marked ledger: `None` when it is whole, or gone, and not in limbo any more.
pub async fn check(
    layout: &Layout,
    engine: &Arc<Engine>,
    bookie: &BookieId,
    ledger: LedgerId,
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
            set_limbo(engine, ledger, false).await.map_err(|refusal| refusal.to_string())?;
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
    use bindery_types::{DigestType, LedgerSecret, Quorum, Segment};
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
