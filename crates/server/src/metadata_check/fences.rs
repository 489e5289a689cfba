//! Fences of ledgers that are unknown here while the memory of ledgers is used up ([`Engine::fence_or_ask`]): ids that nobody created
//! must not take more, and a ledger that somebody created must be closed whatever others filled the memory with.
//!
//! ```text
//! ingest: no memory -> WaitingFences -> does metadata have the ledger? -> Engine::fence_known, or too many requests
//! ```
//!
//! # Limits
//! [`WAITING_MAX`] fences wait, of which a connection has its share ([`Shares`]); [`READS_MAX`] reads are under way.

use super::{MetadataChecker, READS_MAX};
use crate::shares::Shares;
use bindery_engine::{Engine, Refusal, Waiter};
use bindery_metadata::Layout;
use bindery_metadata::layout::LedgerError;
use bindery_types::{LedgerId, MasterKey};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Fences that wait for metadata; more are answered with too-many-requests.
pub const WAITING_MAX: u64 = 1024;

struct WaitingFence {
    connection: u64,
    ledger: LedgerId,
    key: MasterKey,
    waiter: Waiter,
    since: Instant,
}

#[derive(Default)]
struct State {
    places: Shares<u64>,
    queue: VecDeque<WaitingFence>,
}

/// Those that wait. Connections put them in, the checker takes them out.
#[derive(Default)]
pub struct WaitingFences {
    state: Mutex<State>,
    wake: Notify,
}

impl WaitingFences {
    /// Leaves a fence here; answers it when there is no room.
    pub fn push(&self, connection: u64, ledger: LedgerId, key: MasterKey, waiter: Waiter) {
        let mut state = self.state.lock();
        if !state.places.take(connection, 1, WAITING_MAX) {
            drop(state);
            return waiter(Err(Refusal::TooManyRequests));
        }
        state.queue.push_back(WaitingFence { connection, ledger, key, waiter, since: Instant::now() });
        drop(state);
        self.wake.notify_one();
    }

    fn pop(&self) -> Option<WaitingFence> {
        self.state.lock().queue.pop_front()
    }

    /// Takes fences out and answers them, for as long as it is polled.
    pub(super) async fn serve(&self, checker: &MetadataChecker) {
        let mut reads = JoinSet::new();
        loop {
            while reads.len() < READS_MAX
                && let Some(fence) = self.pop()
            {
                let (engine, layout) = (checker.engine.clone(), checker.layout.clone());
                let deadline = fence.since + checker.admission_deadline;
                let connection = fence.connection;
                reads.spawn(async move {
                    let is_there = tokio::time::timeout_at(deadline, exists(&layout, fence.ledger));
                    answer(&engine, fence, is_there.await.unwrap_or(Ok(false)));
                    connection
                });
            }
            tokio::select! {
                () = self.wake.notified() => {}
                Some(answered) = reads.join_next() => {
                    // One that panicked keeps its place, which costs its connection one of many.
                    if let Ok(connection) = answered {
                        self.state.lock().places.give_back(connection, 1);
                    }
                }
            }
        }
    }
}

async fn exists(layout: &Layout, ledger: LedgerId) -> Result<bool, LedgerError> {
    let ledgers = layout.ledgers();
    // A server that lags would not know a new ledger.
    layout.store().sync(&ledgers.path(ledger)).await.map_err(LedgerError::from)?;
    ledgers.exists(ledger).await
}

fn answer(engine: &Arc<Engine>, fence: WaitingFence, is_there: Result<bool, LedgerError>) {
    let WaitingFence { ledger, key, waiter, .. } = fence;
    match is_there {
        Ok(true) => engine.fence_known(ledger, key, waiter),
        Ok(false) => waiter(Err(Refusal::TooManyRequests)),
        Err(error) => {
            tracing::debug!(%ledger, %error, "cannot look up a ledger that is to be fenced");
            waiter(Err(Refusal::TooManyRequests));
        }
    }
}
