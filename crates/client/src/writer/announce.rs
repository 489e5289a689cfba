//! Tells bookies the LAC (last add confirmed) that no entry tells them (protocol reference, section 3.3).
//!
//! # Invariants
//! 1. A bookie has at most one of these requests of a writer under way: one that stands still collects no more of them.
//! 2. They take turns. A caller that finds nothing to announce when it has its turn knows that it was announced.

use std::collections::BTreeSet;

use bindery_types::{BookieId, EntryId};
use bytes::Bytes;
use tokio::task::JoinSet;

use super::Inner;

/// What is under way. Ends with the writer.
#[derive(Default)]
pub(super) struct Announcements {
    requests: JoinSet<Answer>,
    asked: BTreeSet<BookieId>,
}

struct Answer {
    bookie: BookieId,
    lac: EntryId,
    is_stored: bool,
}

/// Announces the LAC, and waits until an ack quorum has it, so that whoever asks enough bookies for it learns it, or until all have
/// answered. As well as it goes: the next entry says it again.
pub(super) async fn announce(inner: &Inner) {
    let announcements = &mut *inner.announcements.lock().await;
    while let Some(answer) = announcements.requests.try_join_next() {
        announcements.take(answer);
    }
    let Some((lac, body, mut bookies)) = inner.state.lock().core.announce() else { return };
    let mut missing = inner.quorum.ack_quorum_size();
    while missing > 0 {
        bookies.retain(|bookie| !announcements.ask(inner, bookie, lac, &body));
        let Some(answer) = announcements.requests.join_next().await else { return };
        let answer = announcements.take(answer);
        missing -= usize::from(answer.is_stored && answer.lac == lac);
    }
}

impl Announcements {
    /// Sends a bookie the LAC; false while it has an earlier one to answer.
    fn ask(&mut self, inner: &Inner, bookie: &BookieId, lac: EntryId, body: &Bytes) -> bool {
        if !self.asked.insert(bookie.clone()) {
            return false;
        }
        let (transport, id, key) = (inner.shared.transport.clone(), inner.id, inner.master_key);
        let (bookie, body) = (bookie.clone(), body.clone());
        self.requests.spawn(async move {
            let outcome = transport.write_lac(&bookie, id, key, lac, body).await;
            if let Err(error) = &outcome {
                tracing::debug!(ledger_id = %id, bookie_id = %bookie, %error, "explicit LAC not written");
            }
            Answer { bookie, lac, is_stored: outcome.is_ok() }
        });
        true
    }

    fn take(&mut self, answer: Result<Answer, tokio::task::JoinError>) -> Answer {
        let answer = answer.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        self.asked.remove(&answer.bookie);
        answer
    }
}
