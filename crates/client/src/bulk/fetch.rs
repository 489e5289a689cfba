//! One window, read from the replicas of its entries.
//!
//! ```text
//! group --turn at one of its replicas--> bytes of the rate --> request --answer--> window
//!                                                              |--1 s--> the next replica, too, if there is room
//!                                                              '--fails--> the next replica
//! ```
//!
//! # Invariants
//! 1. Replicas that are well are asked first, of these the nearest, then the home of a ledger that has one, else the least busy; one
//!    that is not well only when no other is left, so that a bookie that is down does not take a turn of each window.
//! 2. A turn ends with its answer, also after its window went on without it (line invariant 1). A late answer has room of
//!    its own in the budget.
//! 3. When nobody returns an entry, current metadata is read, and replicas that are new are asked (as in `reader::fetch`).
//!
//! # Limits     entries of a row of single reads under way, to bookies that know no batch reads or no strides: [`SINGLES_MAX`]

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bindery_flow::Permit;
use bindery_types::{BookieId, EntryId, LedgerId};
use bindery_wire::ErrorCode;
use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::line::{End, Slot, TurnId, Wanted};
use super::rate::Taken;
use super::window::{Copy, ENTRY_OVERHEAD_BYTES, Group, Said, Standing, Window, charge_bytes};
use super::{Bulk, Ledger, StoredEntry, count};
use crate::entry::has_ids;
use crate::error::{BookieAnswer, BookieAnswers, ReadError};
use crate::health::{Node, NodeState, Outcome};
use crate::reader::Replicas;
use crate::transport::{BatchReadRequest, BookieError, ReadRequest, Transport};

/// Entries of a row under way at a time.
const SINGLES_MAX: usize = 64;
/// After so long another replica is asked.
const LATE_AFTER: Duration = Duration::from_secs(1);
/// How often the replicas may change under a window.
const REREADS_MAX: usize = 16;

/// A window to read.
pub(super) struct Job {
    pub(super) bulk: Arc<Bulk>,
    pub(super) ledger: Arc<Ledger>,
    /// Asked for.
    pub(super) first: EntryId,
    pub(super) count: usize,
    /// Of the ensemble: only its entries.
    pub(super) position: Option<usize>,
}

/// The first entries of a window that the stream wants, at least one.
pub(super) struct Part {
    pub(super) entries: Vec<StoredEntry>,
    /// The number of entries that the stream may go past, with those that it does not want.
    pub(super) covered: usize,
    pub(super) permit: Permit,
}

/// The answer of one bookie: of the first entries of a group, and an error that holds for all others.
struct Asked {
    answers: Vec<Result<Bytes, BookieError>>,
    of_others: Option<BookieError>,
}

/// The outcome of a step of a group.
enum Came {
    Turn(Slot, Taken),
    Answer(Asked, Slot),
}

/// The step of a group that is under way.
enum Step {
    /// In line for one of its candidates.
    Waits(Group),
    Sent {
        indexes: Vec<usize>,
        position: usize,
        turn: TurnId,
        at: Instant,
        is_late: bool,
    },
}

struct Attempt {
    step: Step,
    /// Room for what a late answer brings; it goes with the answer.
    room: Option<Permit>,
    future: Pin<Box<dyn Future<Output = Came> + Send>>,
}

impl Attempt {
    /// When it is late.
    fn late_at(&self) -> Option<Instant> {
        match &self.step {
            Step::Sent { at, is_late: false, .. } => Some(*at + LATE_AFTER),
            Step::Sent { .. } | Step::Waits(_) => None,
        }
    }
}

async fn next_step(attempts: &mut [Attempt]) -> (usize, Came) {
    poll_fn(|context| {
        for (index, attempt) in attempts.iter_mut().enumerate() {
            if let Poll::Ready(came) = attempt.future.as_mut().poll(context) {
                return Poll::Ready((index, came));
            }
        }
        Poll::Pending
    })
    .await
}

impl Job {
    /// Reads the window, or its first entries. Dropped, it leaves requests to be answered to nobody.
    pub(super) async fn read(self, mut permit: Permit) -> Result<Part, ReadError> {
        let state = &self.ledger.state;
        let ledger = state.id;
        for reread in 0.. {
            if self.bulk.shared.is_closed() {
                return Err(ReadError::ClientClosed);
            }
            let replicas = state.replicas();
            let answers = match self.read_from(&replicas, &permit).await {
                Ok((entries, covered)) => {
                    self.fit(&entries, &mut permit);
                    return Ok(Part { entries, covered, permit });
                }
                Err(answers) => answers,
            };
            if self.bulk.shared.is_closed() {
                return Err(ReadError::ClientClosed);
            }
            // Invariant 3.
            let begun = state.rereads_begun();
            let is_named_still = |now: &Replicas| {
                now.metadata.write_set(self.first).eq(replicas.metadata.write_set(self.first))
            };
            let mut is_current = false;
            if reread < REREADS_MAX {
                // Another window may have found out already.
                if is_named_still(&state.replicas()) {
                    is_current = state.reread_after(begun).await?;
                }
                if !is_named_still(&state.replicas()) {
                    continue;
                }
            }
            let entry = self.first;
            let is_absent = is_current && answers.0.iter().all(|(_, answer)| *answer == BookieAnswer::Absent);
            return Err(match is_absent {
                true => ReadError::NoEntry { ledger, entry, answers },
                false => ReadError::Unavailable { ledger, entry, answers },
            });
        }
        unreachable!("the last turn returns")
    }

    /// Makes the permit one for what came.
    fn fit(&self, entries: &[StoredEntry], permit: &mut Permit) {
        let needed_bytes: u64 = entries.iter().map(|entry| charge_bytes(&entry.bytes)).sum();
        permit.shrink_to(needed_bytes);
        // One entry that is larger than a range (module limits).
        if let Some(more) = self.bulk.budget.try_acquire(needed_bytes - permit.bytes()) {
            permit.merge(more);
        }
        self.ledger.state.learn_size(needed_bytes / entries.len().max(1) as u64 - ENTRY_OVERHEAD_BYTES);
    }

    /// Entries of the segment that the window begins in, as `replicas` have it.
    fn window(&self, replicas: &Replicas, room_bytes: u64) -> Window {
        let metadata = &replicas.metadata;
        let next = metadata.segments().iter().find(|segment| segment.first_entry > self.first);
        let left = next.map_or(u64::MAX, |next| (next.first_entry.get() - self.first.get()).unsigned_abs());
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(self.count);
        Window::new(self.first, count, metadata.quorum, self.position, room_bytes)
    }

    /// The entries, and how many of the window they stand for. On error: the answers of the first entry's bookies.
    async fn read_from(
        &self,
        replicas: &Arc<Replicas>,
        permit: &Permit,
    ) -> Result<(Vec<StoredEntry>, usize), BookieAnswers> {
        let ensemble = replicas.nodes.ensemble(self.first);
        if ensemble.is_empty() {
            return Err(BookieAnswers::default());
        }
        let mut window = self.window(replicas, permit.bytes());
        let mut attempts: Vec<Attempt> = Vec::new();
        loop {
            attempts.extend(window.plan().into_iter().map(|group| self.wait_for_turn(replicas, group)));
            let is_under_way =
                attempts.iter().any(|attempt| matches!(attempt.step, Step::Sent { is_late: false, .. }));
            match window.standing(is_under_way) {
                Standing::Open => {}
                Standing::Ready(found) => {
                    self.leave(attempts);
                    let entries = window
                        .into_copies(found)
                        .map(|(id, Copy { bytes, is_verified })| StoredEntry { id, bytes, is_verified });
                    return Ok((entries.collect(), found));
                }
                Standing::Lost(answers) => {
                    self.leave(attempts);
                    let named =
                        |(position, answer): (usize, _)| (ensemble[position].bookie().clone(), answer);
                    return Err(BookieAnswers(answers.into_iter().map(named).collect()));
                }
            }
            let late_at = attempts.iter().filter_map(Attempt::late_at).min();
            tokio::select! {
                biased;
                (index, came) = next_step(&mut attempts) => {
                    let attempt = attempts.swap_remove(index);
                    match (attempt.step, came) {
                        (Step::Waits(group), Came::Turn(slot, taken)) => {
                            attempts.push(self.send(replicas, &mut window, group, slot, taken));
                        }
                        (Step::Sent { indexes, position, is_late, .. }, Came::Answer(asked, slot)) => {
                            drop(slot);
                            self.took(&mut window, &indexes, position, is_late, asked);
                        }
                        (Step::Waits(_), Came::Answer(..)) | (Step::Sent { .. }, Came::Turn(..)) => {
                            unreachable!("each step has its own future")
                        }
                    }
                }
                () = sleep_until(late_at.unwrap_or_else(Instant::now)), if late_at.is_some() => {
                    let now = Instant::now();
                    for attempt in &mut attempts {
                        self.look_for_late(&mut window, attempt, now);
                    }
                }
            }
        }
    }

    /// Puts a group in line for the best of its replicas.
    fn wait_for_turn(&self, replicas: &Arc<Replicas>, mut group: Group) -> Attempt {
        let ensemble = replicas.nodes.ensemble(self.first);
        let mut candidates = std::mem::take(&mut group.candidates);
        // Not `NodeHealth::order`: that sends trials to slow bookies, which only reads whose latencies count can end. Those that
        // are equal take turns.
        let turn = self.first.get().unsigned_abs() as usize % candidates.len();
        candidates.rotate_left(turn);
        candidates.sort_by_key(|position| {
            let node = &ensemble[*position];
            let illness = match node.state() {
                NodeState::Healthy | NodeState::Probation => 0,
                NodeState::Suspect => 1,
                NodeState::Unhealthy => 2,
                NodeState::Forgotten => 3,
            };
            let order = match replicas.have_home {
                true => node.rank(self.ledger.state.id),
                false => node.pending(),
            };
            (illness, node.distance(), order)
        });
        let is_well = |position: &usize| {
            matches!(ensemble[*position].state(), NodeState::Healthy | NodeState::Probation)
        };
        // Invariant 1. Of those that are not well the best one.
        match candidates.iter().any(is_well) {
            true => candidates.retain(is_well),
            false => candidates.truncate(1),
        }
        let bookies = candidates.iter().map(|position| ensemble[*position].bookie().clone()).collect();
        group.candidates = candidates;
        let expected_bytes = match self.ledger.state.entry_size_bytes() {
            0 => self.bulk.range_size_bytes,
            size => self.bulk.range_size_bytes.min(size * group.indexes.len() as u64),
        };
        let wanted = if replicas.have_home { Wanted::FirstThatIsWell } else { Wanted::FirstWithRoom };
        let bulk = self.bulk.clone();
        let future = Box::pin(async move {
            let slot = bulk.lines.turn(bookies, wanted).await;
            // In this order: those that wait for bytes have all else that they need.
            let taken = bulk.rate.take(expected_bytes).await;
            Came::Turn(slot, taken)
        });
        Attempt { step: Step::Waits(group), room: None, future }
    }

    /// Asks the bookie whose turn it is.
    fn send(
        &self,
        replicas: &Arc<Replicas>,
        window: &mut Window,
        group: Group,
        mut slot: Slot,
        mut taken: Taken,
    ) -> Attempt {
        let (position, turn) = (group.candidates[slot.index], slot.id());
        let indexes = group.indexes;
        window.sent(&indexes, position);
        let entries: Vec<EntryId> = indexes.iter().map(|index| window.entry(*index)).collect();
        let room_bytes = window.share_bytes(&indexes);
        let (bulk, replicas, ledger) = (self.bulk.clone(), replicas.clone(), self.ledger.state.id);
        let first = self.first;
        count(&bulk.counters.ranges, 1);
        let future = Box::pin(async move {
            let node = &replicas.nodes.ensemble(first)[position];
            crate::health::count(&node.counts.reads_sent);
            let pending = node.begin();
            let transport = &*bulk.shared.background;
            let asked = ask(transport, node.bookie(), ledger, &entries, room_bytes).await;
            drop(pending);
            taken.used(asked.answers.iter().flatten().map(|stored| stored.len() as u64).sum());
            slot.ends(note(&bulk, node, &asked));
            Came::Answer(asked, slot)
        });
        let at = Instant::now();
        Attempt { step: Step::Sent { indexes, position, turn, at, is_late: false }, room: None, future }
    }

    /// Frees the entries of a late request for other bookies.
    fn look_for_late(&self, window: &mut Window, attempt: &mut Attempt, now: Instant) {
        let Some(late_at) = attempt.late_at().filter(|at| *at <= now) else { return };
        let Step::Sent { indexes, turn, at, is_late, .. } = &mut attempt.step else { return };
        let budget = &self.bulk.budget;
        // Invariant 2.
        match budget.try_acquire(window.room_bytes().max(1)) {
            Some(room) => {
                attempt.room = Some(room);
                *is_late = true;
                window.is_late(indexes);
                self.bulk.lines.is_late(turn);
                count(&self.bulk.counters.late_ranges, 1);
            }
            // Not now; perhaps at the next look.
            None => *at = late_at,
        }
    }

    /// Takes an answer.
    fn took(&self, window: &mut Window, indexes: &[usize], position: usize, was_late: bool, asked: Asked) {
        let answers = asked.answers.into_iter().zip(indexes).map(|(answer, index)| match answer {
            Ok(stored) => match self.verify(window.entry(*index), &stored) {
                Some(is_verified) => Said::Copy(Copy { bytes: stored, is_verified }),
                None => {
                    count(&self.bulk.counters.damaged_copies, 1);
                    Said::No(BookieAnswer::Damaged)
                }
            },
            Err(error) if is_refusal(&error) => Said::Refused(answer_of(error)),
            Err(error) => Said::No(answer_of(error)),
        });
        let answers: Vec<Said> = answers.collect();
        window.took(indexes, position, was_late, answers, asked.of_others.map(answer_of));
    }

    /// Whether stored bytes are the entry (module invariant 2): `Some(true)` by its digest, `Some(false)` by its ids.
    fn verify(&self, entry: EntryId, stored: &Bytes) -> Option<bool> {
        let Ledger { state, is_authentic, is_verifiable } = &*self.ledger;
        match is_authentic {
            true => {
                let lac = state.codec.check(entry, stored)?;
                if *is_verifiable {
                    state.advance(lac);
                }
                Some(*is_verifiable)
            }
            false => has_ids(stored, state.id, entry).then_some(false),
        }
    }

    /// Lets go of requests that are not needed: those that wait leave the lines, those under way keep their turns until they
    /// are answered.
    fn leave(&self, attempts: Vec<Attempt>) {
        for Attempt { step, room, future } in attempts {
            if let Step::Sent { .. } = step {
                self.bulk.shared.stragglers.adopt(async move {
                    drop(future.await);
                    drop(room);
                });
            }
        }
    }
}

/// Tells health how a range ended, also one whose window went on without it. Returns what it means for the bookie's line.
fn note(bulk: &Bulk, node: &Node, asked: &Asked) -> End {
    let health = &bulk.shared.health;
    let errors = asked.answers.iter().filter_map(|answer| answer.as_ref().err());
    // One that is of all stands among the answers, too.
    for error in errors.clone() {
        health.note(node, node.outcome_of(error));
    }
    if asked.answers.iter().any(Result::is_ok) {
        health.note(node, Outcome::Answered);
    }
    if errors.clone().any(is_refusal) {
        count(&bulk.counters.refused_ranges, 1);
        return End::Refused;
    }
    let is_failure = |error: &BookieError| !matches!(error, BookieError::Refused(_));
    if errors.clone().any(is_failure) { End::Other } else { End::Answered }
}

fn is_refusal(error: &BookieError) -> bool {
    *error == BookieError::Refused(ErrorCode::TooManyRequests)
}

fn answer_of(error: BookieError) -> BookieAnswer {
    match error {
        BookieError::Refused(ErrorCode::NoEntry | ErrorCode::NoLedger) => BookieAnswer::Absent,
        error => BookieAnswer::Failed(error),
    }
}

/// Whether an error is about the bookie, or the ledger on it, and not about one entry.
fn is_of_all(error: &BookieError) -> bool {
    match error {
        BookieError::Refused(code) => matches!(code, ErrorCode::NoLedger | ErrorCode::Unauthorized),
        _ => true,
    }
}

/// Asks one bookie for entries, which follow one another by a stride: with a batch read if it knows that, else one by one.
async fn ask(
    transport: &dyn Transport,
    bookie: &BookieId,
    ledger: LedgerId,
    entries: &[EntryId],
    size_bytes_max: u64,
) -> Asked {
    let (first, count) = (entries[0], entries.len());
    if let Some(second) = entries.get(1) {
        let count_max = u32::try_from(count).unwrap_or(u32::MAX);
        let stride = u32::try_from(second.get() - first.get()).expect("the size of an ensemble at most");
        let request = BatchReadRequest { ledger, first, stride, count_max, size_bytes_max };
        match transport.batch_read(bookie, request).await {
            Ok(stored) if !stored.is_empty() => {
                let answers = stored.into_iter().take(count).map(Ok).collect();
                return Asked { answers, of_others: None };
            }
            // It does not know the request, or answers as if it did not: single reads it may know.
            Ok(_) | Err(BookieError::Unexpected(_)) => {}
            Err(BookieError::Refused(ErrorCode::BadRequest | ErrorCode::BadVersion)) => {}
            Err(error) => {
                let of_others = is_of_all(&error).then(|| error.clone());
                return Asked { answers: vec![Err(error)], of_others };
            }
        }
    }
    let mut left = entries.iter();
    let read =
        |entry: &EntryId| transport.read(bookie, ReadRequest { ledger, entry: Some(*entry), fence: None });
    let mut under_way: VecDeque<_> = left.by_ref().take(SINGLES_MAX).map(read).collect();
    let mut asked = Asked { answers: Vec::with_capacity(count), of_others: None };
    let mut got_bytes = 0;
    let mut has_enough = false;
    while let Some(request) = under_way.pop_front() {
        let answer = request.await;
        match &answer {
            Ok(stored) => got_bytes += charge_bytes(stored),
            Err(error) if is_of_all(error) => asked.of_others = Some(error.clone()),
            Err(error) => has_enough |= is_refusal(error),
        }
        asked.answers.push(answer);
        if asked.of_others.is_some() {
            break;
        }
        has_enough |= got_bytes >= size_bytes_max;
        if !has_enough && let Some(entry) = left.next() {
            under_way.push_back(read(entry));
        }
    }
    asked
}
