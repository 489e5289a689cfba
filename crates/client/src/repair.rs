//! Functions for repair: choosing the bookie for a copy, listing the entries that a bookie has, and sending copies to one bookie.
//!
//! # Data flow
//! ```text
//! replication worker --> Client::entries_of       which entries a bookie has
//!                    --> Client::replacements     who may take the place of a lost bookie
//!                    --> LedgerView::read_position --> StoredBatch --> Client::copy --> the bookie
//!                    --> with_member              metadata that names it
//! ```
//!
//! # Invariants
//! 1. A copy is sent byte for byte as it was read, and verified if the ledger has digests.
//! 2. [`Client::copy`] succeeds only when the bookie has acknowledged every entry, durably.
//! 3. Copies never go ahead of what clients write.
//!
//! # Limits     what a call of [`Client::copy`] has under way are the entries it was given, which its caller holds

use std::sync::Arc;

use bindery_metadata::Layout;
use bindery_metadata::layout::RegisteredBookie;
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata, MasterKey};
use bindery_wire::{EntryAvailability, ErrorCode};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::bulk::StoredEntry;
use crate::client::Client;
use crate::metadata_edit::with_segments;
use crate::placement::{Choice, Placement as _, Wanted};
use crate::transport::{AddAnswer, AddRequest, AddSink, AddTag, BookieError};

/// The answers to one call of [`Client::copy`].
struct Answers {
    state: Mutex<AnswersState>,
    is_over: Notify,
}

struct AnswersState {
    left: usize,
    failed: Option<BookieError>,
}

impl AddSink for Answers {
    fn added(self: Arc<Self>, _bookie: &BookieId, answers: &[AddAnswer]) {
        let mut state = self.state.lock();
        for answer in answers {
            state.left = state.left.saturating_sub(1);
            if let (Err(error), None) = (&answer.result, &state.failed) {
                state.failed = Some(error.clone());
            }
        }
        if state.left == 0 {
            self.is_over.notify_one();
        }
    }
}

impl Client {
    /// The cluster's metadata.
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// Which entries of a ledger a bookie has; `None` when it has nothing of the ledger.
    ///
    /// # Errors
    /// Of the bookie: one that is not sure ("unknown ledger state") says so and not that entries are absent.
    pub async fn entries_of(
        &self,
        bookie: &BookieId,
        ledger: LedgerId,
    ) -> Result<Option<EntryAvailability>, BookieError> {
        match self.0.background.list_entries(bookie, ledger).await {
            Ok(found) => Ok(Some(found)),
            Err(BookieError::Refused(ErrorCode::NoLedger | ErrorCode::NoEntry)) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// Chooses bookies for these positions of an ensemble as an ensemble change does: by this client's policy, among the writable bookies of
    /// `registered`.
    pub async fn replacements(&self, wanted: Wanted<'_>, registered: &[RegisteredBookie]) -> Choice {
        let candidates = self.0.candidates_of(registered.to_vec(), wanted.ensemble).await;
        self.0.placement.choose(&candidates, wanted)
    }

    /// Whether `candidate` may take the first of these positions: it takes writes, and the policy would have no better spread with any
    /// other bookie of `registered`.
    pub async fn may_replace(
        &self,
        candidate: &BookieId,
        wanted: Wanted<'_>,
        registered: &[RegisteredBookie],
    ) -> bool {
        let mut candidates = self.0.candidates_of(registered.to_vec(), wanted.ensemble).await;
        if wanted.ensemble.contains(candidate) || !candidates.writable.contains(candidate) {
            return false;
        }
        let best = self.0.placement.choose(&candidates, wanted);
        candidates.writable = vec![candidate.clone()];
        candidates.avoided.remove(candidate);
        let own = self.0.placement.choose(&candidates, wanted);
        own.bookies.first() == Some(candidate) && (own.unmet.is_none() || best.unmet.is_some())
    }

    /// Stores copies of entries on one bookie, past the fence of their ledger, and waits until it has acknowledged all of them.
    ///
    /// # Errors
    /// The first one of the bookie. Other entries of the call may be stored.
    pub async fn copy(
        &self,
        target: &BookieId,
        ledger: LedgerId,
        key: MasterKey,
        entries: &[StoredEntry],
    ) -> Result<(), BookieError> {
        if entries.is_empty() {
            return Ok(());
        }
        let state = AnswersState { left: entries.len(), failed: None };
        let answers = Arc::new(Answers { state: Mutex::new(state), is_over: Notify::new() });
        let sink: Arc<dyn AddSink> = answers.clone();
        for entry in entries {
            let request = AddRequest {
                ledger,
                entry: entry.id,
                body: entry.bytes.clone(),
                master_key: key,
                is_recovery: true,
                is_background: true,
                is_deferred: false,
                tag: AddTag(0),
            };
            self.0.background.add(target, request, &sink);
        }
        self.0.background.flush();
        // Each add is answered, at the latest after the request timeout.
        answers.is_over.notified().await;
        let failed = answers.state.lock().failed.take();
        failed.map_or(Ok(()), Err)
    }
}

/// The metadata with `member` at `position` of the segment that begins at `first_entry`. `None` when there is no such segment, or the
/// bookie is a member of it already.
pub fn with_member(
    metadata: &LedgerMetadata,
    first_entry: EntryId,
    position: usize,
    member: &BookieId,
) -> Option<LedgerMetadata> {
    let mut segments = metadata.segments().to_vec();
    let segment = segments.iter_mut().find(|segment| segment.first_entry == first_entry)?;
    if segment.ensemble.contains(member) {
        return None;
    }
    *segment.ensemble.get_mut(position)? = member.clone();
    Some(with_segments(metadata, segments))
}
