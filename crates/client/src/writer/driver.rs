//! Does what a [`WriterCore`](super::core::WriterCore) wants done about metadata, announces the LAC of idle ledgers, and has
//! bookies that are back sent what they lack.
//!
//! # Invariants
//! 1. One driver per writer at a time; it ends with its writer, or [`PARTING_WAIT`] after one that stopped by itself. A driver
//!    cancelled anywhere leaves a step that the next one does again: writes are conditional, and a lost outcome is found by
//!    reading.
//! 2. No lock is held across an await.

use std::sync::Arc;
use std::time::Duration;

use bindery_metadata::layout::LedgerError;
use bindery_types::{BookieId, EntryId};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::announce::announce;
use super::core::{FILL_INTERVAL, Step, WriterCore};
use super::{Inner, TakenOver};
use crate::handover::Handover;
use crate::placement::{Placement, Wanted};
use crate::retry::Retry;
use crate::slow::WATCH;
use crate::transport::{AddSink, BookieError};
use bindery_wire::ErrorCode;

/// How long a writer that stopped by itself tries to say which copies are missing.
const PARTING_WAIT: Duration = Duration::from_secs(5);

/// Runs until `inner.stop_driver` is notified and nothing is left to do.
pub(super) async fn run(inner: Arc<Inner>) {
    let mut announcements = JoinSet::new();
    // When to look whether the LAC is still the one that it was.
    let mut announce_at: Option<(Instant, Option<EntryId>)> = None;
    // An entry that waits is seen by one look and announced by the next: within the interval.
    let look_interval = inner.shared.limits.explicit_lac_interval / 2;
    // When to look for replacements again, and the pause before it.
    let mut retry_at: Option<(Instant, Duration)> = None;
    // When to look whether bookies that lack something are back.
    let mut fill_at: Option<Instant> = None;
    let sink: Arc<dyn AddSink> = inner.clone();
    loop {
        drive(&inner).await;
        part(&inner).await;
        let (retry_after, is_watching, is_keeping) = {
            let mut state = inner.state.lock();
            state.is_keeping = state.core.kept_bytes() > 0;
            (state.core.retry_after(), state.is_watching, state.is_keeping)
        };
        fill_at = is_keeping.then(|| fill_at.unwrap_or_else(|| Instant::now() + FILL_INTERVAL));
        let fill_due = fill_at.unwrap_or_else(Instant::now);
        // Another pause: of something else.
        retry_at = retry_after.map(|after| {
            retry_at.filter(|(_, before)| *before == after).unwrap_or_else(|| (Instant::now() + after, after))
        });
        let retry_due = retry_at.map_or_else(Instant::now, |(due, _)| due);
        let unannounced = inner.wants_announcement();
        if unannounced.is_some() && announce_at.is_none() && announcements.is_empty() {
            announce_at = Some((Instant::now() + look_interval, unannounced));
        }
        let due = announce_at.map_or_else(Instant::now, |(due, _)| due);
        tokio::select! {
            () = inner.wake_driver.notified() => {}
            () = inner.stop_driver.notified() => break,
            () = sleep_until(due), if announce_at.is_some() => {
                let seen = announce_at.take().and_then(|(_, seen)| seen);
                // While entries come one after the other, each announces the one before it.
                if inner.wants_announcement() == seen {
                    let inner = inner.clone();
                    announcements.spawn(async move { announce(&inner).await });
                }
            }
            // Nothing may happen any more when a bookie stands still and the budget is used up.
            () = sleep(WATCH / 4), if is_watching => inner.change(&sink, |_, _| {}),
            () = sleep_until(retry_due), if retry_at.is_some() => {
                retry_at = None;
                inner.change(&sink, |core, _| core.retry());
            }
            () = sleep_until(fill_due), if fill_at.is_some() => {
                fill_at = None;
                inner.change(&sink, |core, _| core.tick(true));
            }
            Some(_) = announcements.join_next(), if !announcements.is_empty() => {}
        }
    }
    drive(&inner).await;
    part(&inner).await;
}

/// A writer that stopped by itself tries once to mark its ledger for the copies that it knows to be missing: no other process
/// knows of them.
async fn part(inner: &Arc<Inner>) {
    let Some(bookies) = inner.state.lock().core.begin_parting() else { return };
    let marks = inner.shared.layout.under_replication();
    let marking = async {
        let mut retry = Retry::new(PARTING_WAIT);
        loop {
            match marks.mark(inner.id, &bookies).await {
                Err(error) if error.is_transient() && !inner.shared.is_closed() && retry.pause().await => {}
                outcome => return outcome,
            }
        }
    };
    let is_marked = match timeout(PARTING_WAIT, marking).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            warn_unmarked(inner, &bookies, &error);
            false
        }
        Err(elapsed) => {
            warn_unmarked(inner, &bookies, &elapsed);
            false
        }
    };
    let sink: Arc<dyn AddSink> = inner.clone();
    inner.change(&sink, |core, _| core.end_parting(is_marked));
}

fn warn_unmarked(inner: &Inner, bookies: &[BookieId], error: &dyn std::fmt::Display) {
    tracing::warn!(ledger_id = %inner.id, ?bookies, %error,
        "entries are missing on these bookies, and the ledger cannot be marked as under-replicated");
}

/// Takes steps until there is none.
pub(super) async fn drive(inner: &Arc<Inner>) {
    let sink: Arc<dyn AddSink> = inner.clone();
    let ledgers = inner.shared.layout.ledgers();
    let patience = inner.shared.limits.metadata_patience;
    let mut retry = Retry::new(patience);
    loop {
        let step = inner.state.lock().core.next_step();
        let failure = match step {
            None => return,
            Some(Step::Place { positions, ensemble, avoided, asked }) => {
                match inner.shared.candidates(&ensemble).await {
                    Ok(mut candidates) => {
                        candidates.avoided.extend(avoided);
                        let wanted =
                            Wanted { quorum: inner.quorum, ensemble: &ensemble, positions: &positions };
                        let chosen = inner.shared.placement.choose(&candidates, wanted).bookies;
                        let mut alive = Vec::new();
                        if chosen.len() < positions.len() {
                            let registered =
                                asked.into_iter().filter(|bookie| candidates.writable.contains(bookie));
                            alive = tokio::select! {
                                alive = answering(inner, registered) => alive,
                                // A failure waits for the end of a search: it comes first (invariant 8 of the core).
                                () = overtaken(inner) => Vec::new(),
                            };
                        }
                        let read_only = candidates.read_only.len();
                        let may_wait = inner.has_patience();
                        inner.change(&sink, |core, _| {
                            core.may_wait(may_wait);
                            core.placed(&chosen, read_only, &alive);
                        });
                        None
                    }
                    Err(error) => Some(LedgerError::Store(error)),
                }
            }
            Some(Step::Wait) => {
                sleep(inner.begin_wait()).await;
                inner.change(&sink, WriterCore::waited);
                None
            }
            Some(Step::Mark { replicas }) => {
                match inner.shared.layout.under_replication().mark(inner.id, &replicas).await {
                    Ok(()) => {
                        inner.change(&sink, WriterCore::marked);
                        None
                    }
                    Err(error) => Some(LedgerError::Store(error)),
                }
            }
            Some(Step::Write { metadata, expected }) => {
                let outcome = ledgers.update(inner.id, &metadata, expected).await;
                let failure = outcome.as_ref().err().filter(|error| error.is_transient()).cloned();
                inner.change(&sink, |core, out| core.written(outcome, out));
                failure
            }
            Some(Step::Read) => match ledgers.get(inner.id).await {
                Ok(stored) => {
                    inner.change(&sink, |core, out| core.read(stored, out));
                    None
                }
                Err(error) => Some(error),
            },
        };
        let goes_on_without = |error: &LedgerError| {
            let mut goes_on = false;
            inner.change(&sink, |core, out| goes_on = core.goes_on_without(error, out));
            goes_on
        };
        match failure {
            None => retry = Retry::new(patience),
            Some(error) if !error.is_transient() && goes_on_without(&error) => {}
            Some(error) if inner.state.lock().core.put_off() => {
                tracing::debug!(ledger_id = %inner.id, %error, "looking for a replacement is put off");
            }
            Some(error) if error.is_transient() && !inner.shared.is_closed() => {
                if !retry.pause().await && !goes_on_without(&error) {
                    inner.change(&sink, |core, _| core.metadata_failed(error));
                }
            }
            Some(error) => inner.change(&sink, |core, _| core.metadata_failed(error)),
        }
    }
}

/// Until a member failed while replacements of others are sought. A permit that this takes from the driver is made up for
/// by the step that follows.
async fn overtaken(inner: &Arc<Inner>) {
    while !inner.state.lock().core.is_overtaken() {
        inner.wake_driver.notified().await;
    }
}

/// Those of the bookies that answer.
async fn answering(inner: &Arc<Inner>, bookies: impl Iterator<Item = BookieId>) -> Vec<BookieId> {
    // Dropped with this future.
    let mut questions = JoinSet::new();
    for bookie in bookies {
        let inner = inner.clone();
        questions.spawn(async move {
            let answer = inner.shared.transport.read_lac(&bookie, inner.id).await;
            // One that was sent nothing of this ledger yet knows nothing of it.
            let knows_nothing = BookieError::Refused(ErrorCode::NoLedger);
            let is_alive = match answer {
                Ok(_) => true,
                Err(error) => error == knows_nothing || error == BookieError::Refused(ErrorCode::NoEntry),
            };
            is_alive.then_some(bookie)
        });
    }
    let mut alive = Vec::new();
    while let Some(answer) = questions.join_next().await {
        match answer {
            Ok(bookie) => alive.extend(bookie),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    alive
}

/// Leaves a ledger to the next writer as this one took it, when bookies refused all that they were sent: nothing of it is stored, so
/// the next writer may go on at the same entry. False when that is not known, or could not be written.
pub(super) async fn give_back(inner: &Inner) -> bool {
    let Some(claim) = &inner.claim else { return false };
    let refused = async {
        while !inner.is_all_refused() {
            inner.heard.notified().await;
        }
    };
    if timeout(inner.shared.limits.request_timeout, refused).await.is_err() {
        return false;
    }
    let TakenOver { next, length_bytes, .. } = claim.start;
    let mut metadata = claim.metadata.clone();
    // What is marked, the next writer looks up.
    Handover::Idle { next, length_bytes, is_whole: false }.set(&mut metadata);
    let ledgers = inner.shared.layout.ledgers();
    // Refused when anything else became of it since.
    let update = || ledgers.update(inner.id, &metadata, claim.version);
    let Err(error) = inner.shared.patiently(LedgerError::is_transient, update).await else { return true };
    // An attempt whose outcome is unknown may be the one that changed the version.
    let stored = ledgers.get_latest(inner.id).await;
    let is_written = stored.is_ok_and(|stored| stored.metadata == metadata);
    if !is_written {
        tracing::debug!(ledger_id = %inner.id, %error, "the ledger is not given back");
    }
    is_written
}
