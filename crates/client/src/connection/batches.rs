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

use std::sync::{Arc, Weak};
use std::time::Duration;

use bindery_wire::ErrorCode;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::OwnedLane;
use crate::transport::BookieError;

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
    /// Owned by the requests that use it.
    trial: Mutex<Weak<OwnedLane>>,
}

impl Batches {
    pub(super) fn way(&self, now: Instant) -> Way {
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
            Way::Bulk if is_lost => *knows = Knows::Untried,
            Way::Trial | Way::Bulk | Way::Refused => {}
        }
        Some(outcome)
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

    #[tokio::test(start_paused = true)]
    async fn one_who_ends_the_connection_is_not_asked_for_a_while_and_one_who_answers_is() {
        let (batches, begin) = (Batches::default(), Instant::now());
        assert_eq!(batches.way(begin), Way::Trial);
        // Nothing was learned of the bookie.
        for error in
            [BookieError::TimedOut(RETRY_AFTER), BookieError::Unreachable("x".into()), BookieError::Closed]
        {
            assert_eq!(batches.judge(Way::Trial, Err::<(), _>(error.clone()), begin), Some(Err(error)));
            assert_eq!(batches.way(begin), Way::Trial);
        }
        let refused = BookieError::Refused(ErrorCode::BadRequest);
        for error in [BookieError::Lost, BookieError::Unexpected("x".into()), refused] {
            assert_eq!(batches.judge(Way::Trial, Err::<(), _>(error), begin), None);
            assert_eq!(batches.way(begin + RETRY_AFTER / 2), Way::Refused);
            assert_eq!(batches.way(begin + RETRY_AFTER), Way::Trial);
        }
        let absent = Err::<(), _>(BookieError::Refused(ErrorCode::NoEntry));
        assert_eq!(batches.judge(Way::Trial, absent.clone(), begin), Some(absent), "which is an answer");
        assert_eq!(batches.way(begin), Way::Bulk);
        assert_eq!(batches.judge(Way::Bulk, Ok(()), begin), Some(Ok(())));
        assert_eq!(batches.way(begin), Way::Bulk);
        let large = Err::<(), _>(BookieError::AnswerTooLarge { size_bytes: 2000, limit_bytes: 1024 });
        assert_eq!(batches.judge(Way::Bulk, large.clone(), begin), Some(large));
        assert_eq!(batches.way(begin), Way::Bulk);
        let lost = Err::<(), _>(BookieError::Lost);
        assert_eq!(batches.judge(Way::Bulk, lost.clone(), begin), Some(lost));
        assert_eq!(batches.way(begin), Way::Trial, "it may be another release now");
    }
}
