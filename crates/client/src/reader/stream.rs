//! A run of entries, read ahead.
//!
//! # Data flow
//! ```text
//! fill: [range | range | range]  one task each -> replicas      (batches when every replica has every entry)
//! next: front range -> entries in order
//! ```
//! All that waits is in tasks, so a stream that is polled no more holds up nobody, and goes on where it was when it is
//! polled again.
//!
//! # Invariants
//! 1. Entries come in order, once each, without a gap, up to the last one or the first error. A run without a last entry ends where a
//!    look at the LAC (last add confirmed) that began after its last entry came found no more.
//! 2. Entries read ahead hold permits of the client's read budget, for as many bytes as came: an answer larger than
//!    expected gets more, or is dropped and read again when its turn comes. Only the range that the caller waits for is
//!    read without a permit, so streams that are not read cannot hold up another (no stream waits for a permit).
//!
//! # Limits     [`BATCHES_MAX`] batches of [`BATCH_SIZE_BYTES`], or [`SINGLES_MAX`] single reads ([`SINGLES_AT_HOME_MAX`] of a
//! ledger whose readers stay with one replica); one of either while nothing is known of the size of the entries, and one
//! batch until the first was answered

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bindery_flow::{ByteBudget, Permit};
use bindery_types::EntryId;
use futures_core::{FusedStream, Stream};
use tokio::task::JoinSet;

use super::state::{Check, ReaderState};
use crate::entry::{Entry, OVERHEAD_SIZE_BYTES_MAX};
use crate::error::ReadError;
use crate::health::PENDING_MAX;

/// Ranges under way at a time.
const BATCHES_MAX: usize = 4;
/// Bytes asked for at a time; a whole frame must fit, headers included.
const BATCH_SIZE_BYTES: u64 = 512 << 10;
/// Entries of a range.
const BATCH_ENTRIES_MAX: u64 = 4096;
/// Reads of one entry under way at a time.
const SINGLES_MAX: usize = 64;
/// The same, all sent to one replica: so many that it does not count as blocked.
const SINGLES_AT_HOME_MAX: usize = PENDING_MAX as usize - 2;

/// Entries being read, or read.
struct Range {
    number: u64,
    first: u64,
    count: u32,
    progress: Progress,
}

enum Progress {
    /// A task is at it.
    Reading,
    Read(Result<Vec<Entry>, ReadError>, Option<Permit>),
    /// To be read when the caller waits for it (invariant 2).
    NoRoom,
}

/// What a task came to.
enum Event {
    Checked(Result<(), ReadError>),
    /// The LAC (last add confirmed) was read again.
    Looked(Result<(), ReadError>),
    /// Of the range with this number.
    Range(u64, Progress),
}

/// The state of a run without a last entry that has read everything up to the known LAC (last add confirmed).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// The LAC is to be read again.
    Due,
    /// A task is at it.
    UnderWay,
    /// It brought nothing new: the run is over.
    Done,
}

/// A run of entries, see [`LedgerReader::read`](crate::LedgerReader::read). Also a [`Stream`], for the combinators of
/// `StreamExt` and `TryStreamExt`.
#[must_use = "nothing is read before the stream is polled"]
pub struct EntryStream {
    state: Arc<ReaderState>,
    /// The next entry to ask for.
    next: u64,
    /// One behind the last entry.
    end: u64,
    /// The run has no last entry: `end` is what is known to be confirmed, and grows.
    open_end: Option<Look>,
    /// Entries behind the LAC (last add confirmed) may be read.
    is_unconfirmed: bool,
    /// Of more than one entry.
    is_run: bool,
    check: Check,
    is_over: bool,
    ranges: VecDeque<Range>,
    ready: VecDeque<Entry>,
    /// The bytes of `ready`.
    ready_permit: Option<Permit>,
    tasks: JoinSet<Event>,
    /// Names ranges.
    started: u64,
}

impl EntryStream {
    pub(super) fn new(
        state: Arc<ReaderState>,
        first: EntryId,
        last: EntryId,
        is_unconfirmed: bool,
    ) -> EntryStream {
        EntryStream {
            state,
            next: first.get().unsigned_abs(),
            end: last.get().unsigned_abs() + 1,
            open_end: None,
            is_unconfirmed,
            is_run: first < last,
            check: Check::Due,
            is_over: false,
            ranges: VecDeque::new(),
            ready: VecDeque::new(),
            ready_permit: None,
            tasks: JoinSet::new(),
            started: 0,
        }
    }

    /// Of no entry.
    pub(super) fn of_nothing(state: Arc<ReaderState>) -> EntryStream {
        let stream = EntryStream::new(state, EntryId::FIRST, EntryId::FIRST, false);
        EntryStream { next: stream.end, ..stream }
    }

    /// From `first` on, all that is confirmed: at the end the LAC (last add confirmed) is read again, until that brings no more.
    pub(super) fn without_end(state: Arc<ReaderState>, first: EntryId) -> EntryStream {
        let stream = EntryStream::new(state, first, first, false);
        EntryStream {
            end: stream.next,
            open_end: Some(Look::Due),
            is_run: true,
            check: Check::Done,
            ..stream
        }
    }

    /// Goes on to a later entry.
    pub(super) fn extend(&mut self, last: EntryId) {
        self.end = self.end.max(last.get().unsigned_abs() + 1);
        self.is_run = true;
    }

    /// The next entry; `None` after the last one, or after an error. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Entry, ReadError>> {
        poll_fn(|context| self.poll_entry(context)).await
    }

    /// See [`next`](Self::next).
    pub(super) fn poll_entry(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Entry, ReadError>>> {
        if let Some(entry) = self.ready.pop_front() {
            return Poll::Ready(Some(Ok(entry)));
        }
        Poll::Ready(match ready!(self.poll_load(context)) {
            Ok(true) => self.ready.pop_front().map(Ok),
            Ok(false) => None,
            Err(error) => {
                self.is_over = true;
                self.tasks.abort_all();
                self.ranges.clear();
                Some(Err(error))
            }
        })
    }

    /// Makes entries ready; false at the end.
    fn poll_load(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, ReadError>> {
        self.ready_permit = None;
        if self.is_over {
            return Poll::Ready(Ok(false));
        }
        loop {
            match self.check {
                Check::Due if self.next < self.end => self.begin_check()?,
                Check::Due | Check::UnderWay | Check::Done => {}
            }
            if self.check != Check::UnderWay {
                self.fill();
            }
            match self.ranges.front().map(|front| &front.progress) {
                None if self.check == Check::UnderWay => {}
                None if self.next < self.end => {
                    unreachable!("what the caller waits for is read without a permit")
                }
                None => match self.look_behind_end() {
                    Some(true) => continue,
                    Some(false) => {}
                    None => {
                        // One with a last entry may be extended.
                        self.is_over = self.open_end.is_some();
                        return Poll::Ready(Ok(false));
                    }
                },
                Some(Progress::Reading) => {}
                Some(Progress::NoRoom) => {
                    let front = self.ranges.pop_front().expect("it was just looked at");
                    self.start(front.first, front.count, None, true);
                }
                Some(Progress::Read(..)) => {
                    let front = self.ranges.pop_front().expect("it was just looked at");
                    let Progress::Read(read, permit) = front.progress else { unreachable!("just looked at") };
                    self.take(front.first, front.count, read?, permit);
                    // Keeps the bookies busy while the caller works.
                    self.fill();
                    return Poll::Ready(Ok(true));
                }
            }
            match ready!(self.tasks.poll_join_next(context)) {
                Some(Ok(Event::Checked(outcome))) => {
                    outcome?;
                    self.check = Check::Done;
                }
                Some(Ok(Event::Looked(outcome))) => {
                    outcome?;
                    self.open_end = Some(Look::Done);
                }
                Some(Ok(Event::Range(number, progress))) => {
                    if let Some(range) = self.ranges.iter_mut().find(|range| range.number == number) {
                        range.progress = progress;
                    }
                }
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
                None => unreachable!("a check, a look or a range without an outcome has a task"),
            }
        }
    }

    /// Where everything up to `end` was read: whether there is more by now, or a task that asks for it. `None` when the run is over.
    fn look_behind_end(&mut self) -> Option<bool> {
        let look = self.open_end?;
        // The state before the LAC: one that came with the close is seen.
        let is_closed = self.state.end().is_some();
        let known = self.state.lac().map_or(0, |lac| lac.get().unsigned_abs() + 1);
        if known > self.end {
            (self.end, self.open_end) = (known, Some(Look::Due));
            return Some(true);
        }
        match look {
            Look::Due if is_closed => return None,
            Look::Due => {
                self.open_end = Some(Look::UnderWay);
                let state = self.state.clone();
                // Owned by the set: ends with the stream.
                self.tasks.spawn(async move { Event::Looked(state.refresh().await.map(drop)) });
            }
            Look::UnderWay => {}
            Look::Done => return None,
        }
        Some(false)
    }

    /// Refuses what is behind the end, at once if that is known.
    fn begin_check(&mut self) -> Result<(), ReadError> {
        let last = entry(self.end - 1);
        let is_closed = self.state.end().is_some();
        if self.state.lac() >= Some(last) || (self.is_unconfirmed && !is_closed) {
            self.check = Check::Done;
            return Ok(());
        }
        if is_closed {
            return Err(beyond_end(&self.state, last));
        }
        self.check = Check::UnderWay;
        let state = self.state.clone();
        // Owned by the set: ends with the stream.
        self.tasks.spawn(async move {
            let outcome = match state.reaches(last).await {
                Ok(true) => Ok(()),
                Ok(false) => Err(beyond_end(&state, last)),
                Err(error) => Err(error),
            };
            Event::Checked(outcome)
        });
        Ok(())
    }

    fn take(&mut self, first: u64, count: u32, entries: Vec<Entry>, permit: Option<Permit>) {
        self.state.learn_size(size_bytes(&entries) / entries.len().max(1) as u64);
        self.ready_permit = permit;
        let got = entries.len() as u32;
        self.ready.extend(entries);
        if got < count {
            // The rest first: invariant 1.
            let (first, count) = (first + u64::from(got), count - got);
            let is_last = self.ranges.is_empty();
            match self.state.shared.read_budget.try_acquire(BATCH_SIZE_BYTES) {
                _ if is_last => self.next = first,
                None => self.ranges.push_front(Range { number: 0, first, count, progress: Progress::NoRoom }),
                permit => self.start(first, count, permit, true),
            }
        }
    }

    fn fill(&mut self) {
        while !self.is_over && self.next < self.end {
            let next = entry(self.next);
            let replicas = self.state.replicas();
            let metadata = &replicas.metadata;
            let quorum = metadata.quorum;
            let entry_size_bytes = self.state.entry_size_bytes();
            let fitting = BATCH_SIZE_BYTES / entry_size_bytes.max(1);
            // Of entries that fill a batch each, several are read at a time, as singles are.
            let is_batch = quorum.ensemble_size() == quorum.write_quorum_size()
                && self.end - self.next > 1
                && fitting > 1
                && self.state.batches.are_wanted();
            let ranges_max = match is_batch {
                _ if entry_size_bytes == 0 => 1,
                true if !self.state.has_batched.load(Ordering::Relaxed) => 1,
                true => BATCHES_MAX,
                false if replicas.have_home => SINGLES_AT_HOME_MAX,
                false => SINGLES_MAX,
            };
            if self.ranges.len() >= ranges_max {
                return;
            }
            let (count, size_bytes) = match is_batch {
                true => {
                    let end = metadata
                        .segments()
                        .iter()
                        .find(|segment| segment.first_entry > next)
                        .map_or(self.end, |later| self.end.min(later.first_entry.get().unsigned_abs()));
                    let left = end - self.next;
                    (left.min(fitting.min(BATCH_ENTRIES_MAX)) as u32, BATCH_SIZE_BYTES)
                }
                false => (1, entry_size_bytes.max(OVERHEAD_SIZE_BYTES_MAX as u64)),
            };
            // Invariant 2.
            let permit = self.state.shared.read_budget.try_acquire(size_bytes);
            let is_awaited = self.ranges.is_empty() && self.ready.is_empty();
            if permit.is_none() && !is_awaited {
                return;
            }
            self.start(self.next, count, permit, false);
            self.next += u64::from(count);
        }
    }

    fn start(&mut self, first: u64, count: u32, mut permit: Option<Permit>, is_front: bool) {
        self.started += 1;
        let number = self.started;
        let (state, is_run) = (self.state.clone(), self.is_run);
        let entry = entry(first);
        // Owned by the set: ends with the stream.
        self.tasks.spawn(async move {
            let read = match count {
                1 => state.fetch(entry, is_run).await.map(|entry| vec![entry]),
                _ => state.fetch_batch(entry, count, BATCH_SIZE_BYTES).await,
            };
            // Here, for nobody may look at the stream for long.
            let needed_bytes = read.as_deref().map_or(0, size_bytes);
            let progress = match has_room(&mut permit, needed_bytes, &state.shared.read_budget) {
                true => Progress::Read(read, permit),
                false => Progress::NoRoom,
            };
            Event::Range(number, progress)
        });
        let range = Range { number, first, count, progress: Progress::Reading };
        if is_front { self.ranges.push_front(range) } else { self.ranges.push_back(range) }
    }
}

impl Stream for EntryStream {
    type Item = Result<Entry, ReadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_entry(context)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.ready.len(), None)
    }
}

impl FusedStream for EntryStream {
    fn is_terminated(&self) -> bool {
        let has_more = self.next < self.end || !self.ranges.is_empty() || self.open_end.is_some();
        self.ready.is_empty() && (self.is_over || !has_more)
    }
}

fn entry(id: u64) -> EntryId {
    i64::try_from(id).ok().and_then(EntryId::new).expect("an entry of the run")
}

fn beyond_end(state: &ReaderState, last: EntryId) -> ReadError {
    ReadError::BeyondEnd { ledger: state.id, entry: last, last: state.lac() }
}

/// The part of the budget that entries take.
fn size_bytes(entries: &[Entry]) -> u64 {
    entries.iter().map(|entry| (entry.payload.len() + OVERHEAD_SIZE_BYTES_MAX) as u64).sum()
}

/// Makes a permit one for as many bytes (invariant 2).
fn has_room(permit: &mut Option<Permit>, bytes: u64, budget: &ByteBudget) -> bool {
    let Some(permit) = permit else { return true };
    permit.shrink_to(bytes);
    match bytes - permit.bytes() {
        0 => true,
        more => budget.try_acquire(more).is_some_and(|more| {
            permit.merge(more);
            true
        }),
    }
}

impl std::fmt::Debug for EntryStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EntryStream")
            .field("ledger_id", &self.state.id)
            .field("next", &self.next)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}
