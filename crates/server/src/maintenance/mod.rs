//! Work that a bookie does beside requests, each by asking the metadata store: removal of deleted ledgers
//! ([`garbage`]), of replicas that no ensemble names ([`surplus`]), and the search for ledgers that may have lost
//! entries here ([`integrity`]), or have damaged ones ([`damage`]).
//! [`crate::cluster_record`] is what a bookie remembers about the cluster between starts.

use bindery_engine::Refusal;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

pub mod damage;
pub mod garbage;
pub mod integrity;
pub mod surplus;

/// A journal did not answer in time. It may still carry out the request later.
#[derive(Debug)]
struct JournalHangs;

/// Waits for the answer of a journal, or of storage that failed and gives none.
async fn durable(
    answer: oneshot::Receiver<Result<(), Refusal>>,
    deadline: Instant,
) -> Result<Result<(), Refusal>, JournalHangs> {
    let answered = timeout_at(deadline, answer).await.map_err(|_| JournalHangs)?;
    Ok(answered.unwrap_or(Err(Refusal::Io)))
}
