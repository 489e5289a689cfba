//! Following a ledger that is being written.
//!
//! # Data flow
//! ```text
//! read to the LAC (last add confirmed) -> wait -> ...
//! wait: one long poll per bookie of the last ensemble, a watch on the metadata; READ_LAC when polls fail
//! ```
//!
//! # Invariants
//! 1. Entries come in order, once each, and only confirmed ones.
//! 2. The stream ends when the ledger is closed and everything up to its last entry was returned.
//! 3. While the metadata store is away, it goes on by what the bookies say: only a ledger that was deleted, and a store that
//!    refuses, end it.
//! 4. At most one poll per bookie is under way, also across waits: a ledger that grows fast does not pile up requests.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bindery_types::{BookieId, EntryId};
use futures_core::{FusedStream, Stream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::state::ReaderState;
use super::stream::EntryStream;
use crate::entry::Entry;
use crate::error::ReadError;
use crate::transport::{BookieError, PollRequest};

/// How long a bookie holds a poll.
const POLL_WAIT: Duration = Duration::from_secs(10);

/// Pause after a poll that ended at once without news: a bookie without any entry of the ledger refuses it.
const POLL_PAUSE: Duration = Duration::from_millis(200);

/// Pause between two tries to learn the LAC otherwise, and to watch the metadata.
const REFRESH_PAUSE: Duration = Duration::from_secs(1);

enum Event {
    Polled(BookieId, Result<Option<EntryId>, BookieError>),
    /// Metadata changed, or could not be watched.
    Metadata(Result<(), ReadError>),
    Refreshed,
}

/// A ledger being followed, see [`LedgerReader::tail`](crate::LedgerReader::tail). Also a [`Stream`], for the combinators
/// of `StreamExt` and `TryStreamExt`.
#[must_use = "nothing is read before the stream is polled"]
pub struct TailStream {
    state: Arc<ReaderState>,
    /// The next entry to return; `None` behind the last one there can be.
    next: Option<EntryId>,
    entries: Option<EntryStream>,
    is_over: bool,
    /// Ends with the stream.
    tasks: JoinSet<Event>,
    polled: BTreeSet<BookieId>,
    is_watching: bool,
    is_refreshing: bool,
    /// The last look at the metadata failed.
    is_without_metadata: bool,
}

impl TailStream {
    pub(super) fn new(state: Arc<ReaderState>, from: EntryId) -> TailStream {
        TailStream {
            state,
            next: Some(from),
            entries: None,
            is_over: false,
            tasks: JoinSet::new(),
            polled: BTreeSet::new(),
            is_watching: false,
            is_refreshing: false,
            is_without_metadata: false,
        }
    }

    /// The next entry, as soon as it is confirmed; `None` at the end of a closed ledger, or after an error. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Entry, ReadError>> {
        poll_fn(|context| self.poll_entry(context)).await
    }

    /// See [`next`](Self::next). Events that nobody looks at stay in the set.
    fn poll_entry(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Entry, ReadError>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let outcome = ready!(self.poll_step(context)).transpose();
        self.is_over = !matches!(outcome, Some(Ok(_)));
        Poll::Ready(outcome)
    }

    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Entry>, ReadError>> {
        loop {
            if let Some(entries) = &mut self.entries
                && let Some(entry) = ready!(entries.poll_entry(context)?)
            {
                self.next = entry.id.get().checked_add(1).and_then(EntryId::new);
                return Poll::Ready(Ok(Some(entry)));
            }
            let is_closed = self.state.end().is_some();
            // After the state: a LAC that came with the close is seen.
            let lac = self.state.lac();
            match (lac, self.next) {
                (Some(lac), Some(next)) if next <= lac => match &mut self.entries {
                    Some(entries) => entries.extend(lac),
                    None => {
                        self.entries = Some(EntryStream::new(self.state.clone(), next, lac, false));
                    }
                },
                _ if is_closed => return Poll::Ready(Ok(None)),
                _ => ready!(self.poll_wait(lac, context))?,
            }
        }
    }

    /// Until the LAC is past `lac`, or the ledger is closed.
    fn poll_wait(&mut self, lac: Option<EntryId>, context: &mut Context<'_>) -> Poll<Result<(), ReadError>> {
        while self.state.lac() <= lac && self.state.end().is_none() {
            if self.state.shared.is_closed() {
                return Poll::Ready(Err(ReadError::ClientClosed));
            }
            self.ask(lac);
            let event = match ready!(self.tasks.poll_join_next(context)) {
                Some(Ok(event)) => event,
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
                None => unreachable!("the watch is always under way"),
            };
            match event {
                Event::Polled(bookie, outcome) => {
                    self.polled.remove(&bookie);
                    match outcome {
                        Ok(lac) => self.state.advance(lac),
                        Err(_) => self.refresh(),
                    }
                }
                Event::Metadata(outcome) => {
                    self.is_watching = false;
                    match outcome {
                        Err(ReadError::Metadata(error)) if error.is_transient() => {
                            if !std::mem::replace(&mut self.is_without_metadata, true) {
                                tracing::warn!(
                                    ledger_id = %self.state.id,
                                    %error,
                                    "the metadata store is unreachable: tailing from the bookies alone, which do not \
                                     know when the ledger is closed"
                                );
                            }
                        }
                        outcome => {
                            outcome?;
                            self.is_without_metadata = false;
                        }
                    }
                }
                Event::Refreshed => self.is_refreshing = false,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Sees to it that everything that can bring news is under way.
    fn ask(&mut self, previous: Option<EntryId>) {
        if !self.is_watching {
            self.is_watching = true;
            let state = self.state.clone();
            self.tasks.spawn(async move {
                let outcome = watch(&state).await;
                if outcome.is_err() {
                    sleep(REFRESH_PAUSE).await;
                }
                Event::Metadata(outcome)
            });
        }
        let replicas = self.state.replicas();
        let Some(last) = replicas.metadata.segments().last() else { return };
        for bookie in &last.ensemble {
            if !self.polled.insert(bookie.clone()) {
                continue;
            }
            let (state, bookie) = (self.state.clone(), bookie.clone());
            self.tasks.spawn(async move {
                let started = Instant::now();
                let request = PollRequest { ledger: state.id, previous, wait: POLL_WAIT };
                let outcome = state.shared.transport.poll_lac(&bookie, request).await;
                let has_news = matches!(outcome, Ok(lac) if lac > previous);
                if !has_news && started.elapsed() < POLL_PAUSE {
                    sleep(POLL_PAUSE).await;
                }
                Event::Polled(bookie, outcome)
            });
        }
    }

    /// Asks for the LAC by other means, after a pause.
    fn refresh(&mut self) {
        if self.is_refreshing {
            return;
        }
        self.is_refreshing = true;
        let state = self.state.clone();
        self.tasks.spawn(async move {
            sleep(REFRESH_PAUSE).await;
            let mut refreshed = state.refresh().await.map(drop);
            if let Err(ReadError::Metadata(error)) = &refreshed
                && error.is_transient()
            {
                // Invariant 3.
                refreshed = state.ask_for_lac().await;
            }
            if let Err(error) = refreshed {
                tracing::debug!(ledger_id = %state.id, %error, "the LAC cannot be learned now");
            }
            Event::Refreshed
        });
    }
}

impl Stream for TailStream {
    type Item = Result<Entry, ReadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_entry(context)
    }
}

impl FusedStream for TailStream {
    fn is_terminated(&self) -> bool {
        self.is_over
    }
}

/// Waits until the metadata is news.
async fn watch(state: &ReaderState) -> Result<(), ReadError> {
    let watch = match state.shared.layout.ledgers().watch(state.id).await {
        Ok(watch) => Some(watch),
        Err(error) => {
            tracing::debug!(ledger_id = %state.id, %error, "the metadata cannot be watched now");
            None
        }
    };
    // A change before the watch was armed.
    if state.reread().await? {
        return Ok(());
    }
    match watch {
        Some(watch) => drop(watch.changed().await),
        None => sleep(REFRESH_PAUSE).await,
    }
    state.reread().await.map(drop)
}

impl std::fmt::Debug for TailStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TailStream")
            .field("ledger_id", &self.state.id)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}
