//! Whether a bookie knows batch reads. Java bookies before 4.17 end the connection when they get one, and with it what was
//! added and read over it. So the first one goes over a connection of its own, which lasts as long as its request.
//!
//! ```text
//! untried ── answered ──► known            (bulk lane)  ── connection lost ──► untried
//!    ▲   ── connection ended, refused ──► unknown until (refused here)
//!    └───────────── time is up ─────────────┘
//! ```
//!
//! A bookie that fails at that moment for another reason gets no batch reads until then, which only costs
//! speed.
//!
//! A stride is an extension of ours. Who does not know it passes over it, and answers with entries that follow one another: of a
//! striped ledger one or two, which are not worth a request. The first such answer tells, and such a bookie gets no strides for the
//! same time.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bindery_types::EntryId;
use bindery_wire::{ErrorCode, entry};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::OwnedLane;
use super::delivery::Batch;
use crate::transport::{BatchReadRequest, BookieError};

/// After which a bookie that did not know the request is tried again: it may have been replaced by a later release.
const RETRY_AFTER: Duration = Duration::from_secs(600);

/// How a batch read goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Bulk,
    /// Over a connection of its own.
    Trial,
    /// Not at all.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Knows {
    #[default]
    Untried,
    Yes,
    NotBefore(Instant),
}

/// What is known of one bookie.
#[derive(Default)]
pub(super) struct Batches {
    knows: Mutex<Knows>,
    /// A batch read with a stride is not worth it before.
    no_strides_before: Mutex<Option<Instant>>,
    /// Owned by the requests that use it.
    trial: Mutex<Weak<OwnedLane>>,
}

impl Batches {
    pub(super) fn way(&self, request: &BatchReadRequest, now: Instant) -> Way {
        if request.stride > 1 && self.no_strides_before.lock().is_some_and(|until| now < until) {
            return Way::Refused;
        }
        match *self.knows.lock() {
            Knows::Yes => Way::Bulk,
            Knows::NotBefore(until) if now < until => Way::Refused,
            Knows::NotBefore(_) | Knows::Untried => Way::Trial,
        }
    }

    /// Learns from what became of a batch read; `None` when the bookie does not know the request.
    pub(super) fn judge<T>(
        &self,
        way: Way,
        outcome: Result<T, BookieError>,
        now: Instant,
    ) -> Option<Result<T, BookieError>> {
        let is_lost = matches!(
            outcome,
            Err(BookieError::Lost | BookieError::LostUnanswered(_) | BookieError::Unexpected(_))
        );
        let is_refused =
            matches!(outcome, Err(BookieError::Refused(ErrorCode::BadRequest | ErrorCode::BadVersion)));
        let is_answered =
            matches!(outcome, Ok(_) | Err(BookieError::Refused(_) | BookieError::AnswerTooLarge { .. }));
        let mut knows = self.knows.lock();
        match way {
            Way::Trial if is_lost || is_refused => {
                *knows = Knows::NotBefore(now + RETRY_AFTER);
                return None;
            }
            Way::Trial if is_answered => *knows = Knows::Yes,
            // Perhaps an earlier release came back.
            Way::Bulk if is_lost => {
                *knows = Knows::Untried;
                *self.no_strides_before.lock() = None;
            }
            Way::Trial | Way::Bulk | Way::Refused => {}
        }
        Some(outcome)
    }

    /// Returns the requested entries of an answer, and learns whether the bookie knows strides.
    pub(super) fn wanted_of(&self, request: &BatchReadRequest, answer: Batch, now: Instant) -> Vec<Bytes> {
        let Batch { entries, is_strided } = answer;
        if request.stride == 1 || is_strided {
            return entries;
        }
        *self.no_strides_before.lock() = Some(now + RETRY_AFTER);
        let mut wanted = Some(request.first);
        let mut found = Vec::new();
        for stored in &entries {
            let id = entry::EntryHeader::of(stored).ok().and_then(|header| EntryId::new(header.entry_id));
            if id.is_some() && id == wanted {
                // The copy frees the answer, which holds unrequested entries, too.
                found.push(Bytes::copy_from_slice(stored));
                let next = request.first.get().checked_add(found.len() as i64 * i64::from(request.stride));
                wanted = next.and_then(EntryId::new);
            }
        }
        found
    }

    /// The trial's lane: the one that others use, or a new one.
    pub(super) fn trial(&self, open: impl FnOnce() -> OwnedLane) -> Arc<OwnedLane> {
        let mut trial = self.trial.lock();
        trial.upgrade().unwrap_or_else(|| {
            let opened = Arc::new(open());
            *trial = Arc::downgrade(&opened);
            opened
        })
    }

    /// The trial's lane if there is one.
    pub(super) fn trial_under_way(&self) -> Option<Arc<OwnedLane>> {
        self.trial.lock().upgrade()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::LedgerId;

    fn by(stride: u32) -> BatchReadRequest {
        let (ledger, first) = (LedgerId::new(1).unwrap(), EntryId::new(4).unwrap());
        BatchReadRequest { ledger, first, stride, count_max: 10, size_bytes_max: 1000 }
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_passes_over_a_stride_is_asked_for_runs_only() {
        let (batches, begin) = (Batches::default(), Instant::now());
        assert_eq!(batches.judge(Way::Trial, Ok(()), begin), Some(Ok(())));
        let stored = |id: i64| Bytes::from([1i64, id, -1, 0].map(i64::to_be_bytes).concat());
        let found = |stride, ids: &[i64], is_strided| {
            let entries = ids.iter().map(|id| stored(*id)).collect();
            batches.wanted_of(&by(stride), Batch { entries, is_strided }, begin)
        };
        assert_eq!(found(1, &[4, 5, 6], false), [4, 5, 6].map(stored));
        assert_eq!(found(3, &[4, 7, 10], true), [4, 7, 10].map(stored));
        assert_eq!(batches.way(&by(3), begin), Way::Bulk);
        assert_eq!(found(3, &[4, 5, 6, 7, 8], false), [4, 7].map(stored));
        let later = begin + RETRY_AFTER / 2;
        assert_eq!((batches.way(&by(3), later), batches.way(&by(1), later)), (Way::Refused, Way::Bulk));
        assert_eq!(batches.way(&by(3), begin + RETRY_AFTER), Way::Bulk);
        // The first requested entry is missing, and then the header of an entry.
        assert_eq!(found(3, &[5, 8], false), Vec::<Bytes>::new());
        let short = Batch { entries: vec![Bytes::from_static(b"short")], is_strided: false };
        assert_eq!(batches.wanted_of(&by(3), short, begin), Vec::<Bytes>::new());
        let lost = Err::<(), _>(BookieError::Lost);
        assert_eq!(batches.judge(Way::Bulk, lost.clone(), begin), Some(lost));
        assert_eq!(batches.way(&by(3), later), Way::Trial, "it may be another release now");
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_ends_the_connection_is_not_asked_for_a_while_and_one_who_answers_is() {
        let (batches, begin) = (Batches::default(), Instant::now());
        assert_eq!(batches.way(&by(1), begin), Way::Trial);
        // Nothing was learned of the bookie.
        for error in
            [BookieError::TimedOut(RETRY_AFTER), BookieError::Unreachable("x".into()), BookieError::Closed]
        {
            assert_eq!(batches.judge(Way::Trial, Err::<(), _>(error.clone()), begin), Some(Err(error)));
            assert_eq!(batches.way(&by(1), begin), Way::Trial);
        }
        let refused = BookieError::Refused(ErrorCode::BadRequest);
        for error in [BookieError::Lost, BookieError::Unexpected("x".into()), refused] {
            assert_eq!(batches.judge(Way::Trial, Err::<(), _>(error), begin), None);
            assert_eq!(batches.way(&by(1), begin + RETRY_AFTER / 2), Way::Refused);
            assert_eq!(batches.way(&by(1), begin + RETRY_AFTER), Way::Trial);
        }
        let absent = Err::<(), _>(BookieError::Refused(ErrorCode::NoEntry));
        assert_eq!(batches.judge(Way::Trial, absent.clone(), begin), Some(absent), "which is an answer");
        assert_eq!(batches.way(&by(1), begin), Way::Bulk);
        assert_eq!(batches.judge(Way::Bulk, Ok(()), begin), Some(Ok(())));
        assert_eq!(batches.way(&by(1), begin), Way::Bulk);
        let large = Err::<(), _>(BookieError::AnswerTooLarge { size_bytes: 2000, limit_bytes: 1024 });
        assert_eq!(batches.judge(Way::Bulk, large.clone(), begin), Some(large));
        assert_eq!(batches.way(&by(1), begin), Way::Bulk);
        let lost = Err::<(), _>(BookieError::Lost);
        assert_eq!(batches.judge(Way::Bulk, lost.clone(), begin), Some(lost));
        assert_eq!(batches.way(&by(1), begin), Way::Trial, "it may be another release now");
    }
}
