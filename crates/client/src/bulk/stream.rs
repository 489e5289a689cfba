//! A run of stored entries, read ahead in windows.
//!
//! # Invariants
//! 1. Entries come in order, once each, without a gap, up to the last one or the first error.
//! 2. Each window has a permit before its first request. A window that is read ahead takes one only if there is room and no more
//!    than half of the budget is in use (module invariant 4); the window that the caller waits for gets one in turn, and
//!    nothing is held by the stream meanwhile that the caller could not take first.
//! 3. A call of `next` that is dropped leaves that line. As a `Stream` it stays there, which is part of its contract.
//!
//! # Limits     [`WINDOWS_MAX`] windows; one while nothing is known of the size of the entries

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bindery_flow::Permit;
use bindery_types::EntryId;
use futures_core::{FusedStream, Stream};
use tokio::task::JoinSet;

use super::fetch::{Job, Part};
use super::window::ENTRY_OVERHEAD_BYTES;
use super::{Bulk, Ledger, StoredBatch, count};
use crate::error::ReadError;
use crate::reader::Check;

/// Windows of a stream under way or read.
const WINDOWS_MAX: usize = 4;
/// Entries of a window.
const WINDOW_ENTRIES_MAX: u64 = 16 << 10;
/// A window is planned to fill so much of its range, so that entries somewhat larger than before still fit.
const FILL_PERCENT: u64 = 90;

struct Ahead {
    number: u64,
    first: u64,
    count: usize,
    progress: Progress,
}

enum Progress {
    /// No permit yet.
    Planned,
    /// A task is at it.
    Reading,
    Read(Result<Part, ReadError>),
}

/// What a task came to.
enum Event {
    Checked(Result<(), ReadError>),
    /// Of the window with this number.
    Window(u64, Result<Part, ReadError>),
}

type Acquiring = Pin<Box<dyn Future<Output = Permit> + Send>>;

/// A run of stored entries, see [`LedgerView::read`](crate::LedgerView::read). Also a [`Stream`], for the combinators of
/// `StreamExt` and `TryStreamExt`. As such it keeps its place in the line for room, and the room that it gets there, until
/// it is polled again or dropped: do not leave one alone that others of its reader wait behind.
#[must_use = "nothing is read before the stream is polled"]
pub struct StoredStream {
    bulk: Arc<Bulk>,
    ledger: Arc<Ledger>,
    /// The next entry to plan; one behind the last entry there can be is no entry.
    next: u64,
    last: u64,
    check: Check,
    is_over: bool,
    /// Of the ensemble: only its entries.
    position: Option<usize>,
    windows: VecDeque<Ahead>,
    /// Waits for room for the first window, which is planned.
    acquiring: Option<Acquiring>,
    tasks: JoinSet<Event>,
    /// Names windows.
    started: u64,
}

impl StoredStream {
    /// `position`: of the ensemble, to read the entries alone that belong to it.
    pub(super) fn new(
        bulk: Arc<Bulk>,
        ledger: Arc<Ledger>,
        first: EntryId,
        last: EntryId,
        position: Option<usize>,
    ) -> StoredStream {
        StoredStream {
            bulk,
            ledger,
            next: first.get().unsigned_abs(),
            last: last.get().unsigned_abs(),
            check: Check::Due,
            is_over: false,
            position,
            windows: VecDeque::new(),
            acquiring: None,
            tasks: JoinSet::new(),
            started: 0,
        }
    }

    /// The next entries; `None` after the last one, or after an error. Cancel safe. It waits until the reader's budget has room for
    /// a range: a caller that keeps batches, or their permits, must leave half of the budget free.
    ///
    /// # Errors
    /// [`ReadError::NoEntry`] and [`ReadError::Unavailable`] name the first entry that no replica returned, and what each of its
    /// bookies said; all entries before it have come.
    pub async fn next(&mut self) -> Option<Result<StoredBatch, ReadError>> {
        /// Takes its place in the line for room along (invariant 3).
        struct Call<'a>(&'a mut StoredStream);
        impl Drop for Call<'_> {
            fn drop(&mut self) {
                self.0.acquiring = None;
            }
        }
        let call = Call(self);
        poll_fn(|context| call.0.poll_batch(context)).await
    }

    fn poll_batch(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<StoredBatch, ReadError>>> {
        Poll::Ready(match ready!(self.poll_load(context)) {
            Ok(None) => {
                self.is_over = true;
                None
            }
            Ok(Some(Part { entries, permit, .. })) => {
                let counters = &self.bulk.counters;
                count(&counters.entries, entries.len() as u64);
                count(&counters.bytes, entries.iter().map(|entry| entry.bytes.len() as u64).sum());
                Some(Ok(StoredBatch { entries, permit }))
            }
            Err(error) => {
                self.is_over = true;
                self.tasks.abort_all();
                self.windows.clear();
                Some(Err(error))
            }
        })
    }

    fn poll_load(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Part>, ReadError>> {
        if self.is_over {
            return Poll::Ready(Ok(None));
        }
        loop {
            if self.check == Check::Due && self.next <= self.last {
                self.begin_check();
            }
            if let Some(acquiring) = &mut self.acquiring {
                let permit = ready!(acquiring.as_mut().poll(context));
                self.acquiring = None;
                self.start(0, permit);
            }
            if self.check != Check::UnderWay {
                self.fill();
            }
            match self.windows.front().map(|front| &front.progress) {
                None if self.check == Check::UnderWay => {}
                None => return Poll::Ready(Ok(None)),
                Some(Progress::Reading) => {}
                Some(Progress::Planned) => {
                    let (budget, bytes) = (self.bulk.budget.clone(), self.bulk.range_size_bytes);
                    self.acquiring = Some(Box::pin(async move {
                        budget.acquire(bytes).await.expect("a budget is no smaller than two ranges")
                    }));
                    continue;
                }
                Some(Progress::Read(_)) => {
                    let front = self.windows.pop_front().expect("it was just looked at");
                    let Progress::Read(read) = front.progress else { unreachable!("just looked at") };
                    let part = read?;
                    self.plan_rest(front.first, front.count, part.covered);
                    // Keeps the bookies busy while the caller works.
                    self.fill();
                    return Poll::Ready(Ok(Some(part)));
                }
            }
            match ready!(self.tasks.poll_join_next(context)) {
                Some(Ok(Event::Checked(outcome))) => {
                    outcome?;
                    self.check = Check::Done;
                }
                Some(Ok(Event::Window(number, read))) => {
                    if let Some(window) = self.windows.iter_mut().find(|window| window.number == number) {
                        window.progress = Progress::Read(read);
                    }
                }
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
                None => unreachable!("a check or a window that is read has a task"),
            }
        }
    }

    fn begin_check(&mut self) {
        self.check = Check::UnderWay;
        let (ledger, last) = (self.ledger.clone(), entry(self.last));
        // Owned by the set: ends with the stream.
        self.tasks.spawn(async move { Event::Checked(ledger.check(last).await) });
    }

    /// Plans the entries that a window did not bring: they come first (invariant 1).
    fn plan_rest(&mut self, first: u64, count: usize, got: usize) {
        if got == count {
            return;
        }
        let (first, count) = (first + got as u64, count - got);
        match self.windows.is_empty() {
            true => self.next = first,
            false => self.windows.push_front(self.planned(first, count)),
        }
    }

    fn planned(&self, first: u64, count: usize) -> Ahead {
        Ahead { number: 0, first, count, progress: Progress::Planned }
    }

    /// Plans windows, and starts those that there is room for.
    fn fill(&mut self) {
        while !self.is_over && self.pass_over() {
            let entry_size_bytes = self.ledger.state.entry_size_bytes();
            let windows_max = if entry_size_bytes == 0 { 1 } else { WINDOWS_MAX };
            if self.windows.len() >= windows_max {
                break;
            }
            let count = self.window_entries(entry(self.next), entry_size_bytes);
            let window = self.planned(self.next, count);
            self.windows.push_back(window);
            self.next += count as u64;
        }
        let (budget, range) = (self.bulk.budget.clone(), self.bulk.range_size_bytes);
        for index in 0..self.windows.len() {
            if !matches!(self.windows[index].progress, Progress::Planned) {
                continue;
            }
            // Invariant 2.
            let has_room = budget.gauge().used + range <= budget.capacity() / 2;
            let Some(permit) = has_room.then(|| budget.try_acquire(range)).flatten() else { break };
            self.start(index, permit);
        }
    }

    /// Goes on to the next entry of the position; false when there is none.
    fn pass_over(&mut self) -> bool {
        let quorum = self.ledger.state.replicas().metadata.quorum;
        let belongs = |next, position| quorum.is_in_write_set(entry(next), position);
        while self.next <= self.last && self.position.is_some_and(|position| !belongs(self.next, position)) {
            self.next += 1;
        }
        self.next <= self.last
    }

    /// How many entries the window at `first` has: of one segment, as many as are likely to fit a range.
    fn window_entries(&self, first: EntryId, entry_size_bytes: u64) -> usize {
        let replicas = self.ledger.state.replicas();
        let metadata = &replicas.metadata;
        let end = metadata
            .segments()
            .iter()
            .find(|segment| segment.first_entry > first)
            .map_or(self.last, |next| self.last.min(next.first_entry.get().unsigned_abs() - 1));
        let left = end - first.get().unsigned_abs() + 1;
        let quorum = metadata.quorum;
        let is_whole = quorum.ensemble_size() == quorum.write_quorum_size();
        let fitting = match entry_size_bytes {
            // Answers to batch reads are bounded by bytes; single ones, which some bookies need for a stride, are not.
            0 if is_whole => WINDOW_ENTRIES_MAX,
            0 => quorum.ensemble_size() as u64,
            size => {
                let room_bytes = self.bulk.range_size_bytes * FILL_PERCENT / 100;
                let wanted = room_bytes / (size + ENTRY_OVERHEAD_BYTES);
                let with_passed = match self.position {
                    Some(_) => wanted * quorum.ensemble_size() as u64 / quorum.write_quorum_size() as u64,
                    None => wanted,
                };
                with_passed.clamp(1, WINDOW_ENTRIES_MAX)
            }
        };
        left.min(fitting) as usize
    }

    fn start(&mut self, index: usize, permit: Permit) {
        self.started += 1;
        let number = self.started;
        let window = &mut self.windows[index];
        window.number = number;
        window.progress = Progress::Reading;
        let job = Job {
            bulk: self.bulk.clone(),
            ledger: self.ledger.clone(),
            first: entry(window.first),
            count: window.count,
            position: self.position,
        };
        // Owned by the set: ends with the stream.
        self.tasks.spawn(async move { Event::Window(number, job.read(permit).await) });
    }
}

impl Stream for StoredStream {
    type Item = Result<StoredBatch, ReadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_batch(context)
    }
}

impl FusedStream for StoredStream {
    fn is_terminated(&self) -> bool {
        self.is_over
    }
}

impl Ledger {
    /// Whether the ledger reaches as far as `last`.
    async fn check(&self, last: EntryId) -> Result<(), ReadError> {
        let state = &self.state;
        let is_there = match self.is_authentic {
            true => state.reaches(last).await?,
            false => {
                if state.end().is_none() {
                    state.reread_latest().await?;
                }
                state.lac() >= Some(last)
            }
        };
        match is_there {
            true => Ok(()),
            false => Err(ReadError::BeyondEnd { ledger: state.id, entry: last, last: state.lac() }),
        }
    }
}

fn entry(id: u64) -> EntryId {
    i64::try_from(id).ok().and_then(EntryId::new).expect("an entry of the run")
}

impl std::fmt::Debug for StoredStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredStream")
            .field("ledger_id", &self.ledger.state.id)
            .field("next", &self.next)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}
