//! Groups reads of one shard that come at about the same time into one request, because a request costs several times as much as a record in it.
//!
//! # Invariants
//! 1. The server reads a record after its caller asked: no read joins a batch that may have been sent. Callers arm a watch before they read its node.
//! 2. A caller that goes away, or whose time is over, leaves the others of its batch: one of them sends it then.
//!
//! # Limits     [`GETS_MAX`] records of a request; [`REQUESTS_MAX`] under way to a shard, so that a shard that is slow holds up no other

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use bindery_oxia::proto::{GetRequest, GetResponse};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::store::StoreError;

/// Records of one request.
const GETS_MAX: usize = 100;
/// Requests under way to a shard. Reads that come meanwhile go with the next one.
const REQUESTS_MAX: usize = 2;

/// The reads of all shards.
#[derive(Default)]
pub(super) struct Reads(Mutex<BTreeMap<i64, Arc<Queue>>>);

impl Reads {
    /// Those of a shard.
    pub(super) fn of_shard(&self, shard: i64) -> Arc<Queue> {
        let mut queues = self.0.lock();
        if !queues.contains_key(&shard) {
            // No read goes to a shard that was split.
            queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        }
        queues.entry(shard).or_default().clone()
    }
}

/// The reads of one shard.
pub(super) struct Queue {
    requests: Semaphore,
    /// The batch that further reads join.
    open: Mutex<Option<Arc<Batch>>>,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { requests: Semaphore::new(REQUESTS_MAX), open: Mutex::default() }
    }
}

/// Reads that go together.
#[derive(Default)]
struct Batch {
    gets: Mutex<Vec<GetRequest>>,
    /// In the order of the reads. Each is taken once.
    answers: OnceCell<Mutex<Vec<Option<GetResponse>>>>,
}

impl Queue {
    /// Reads a record, together with those of other callers. `send` reads several and gives their answers in the same order; of the callers
    /// whose reads go together one calls it, and after a failure, which is that caller's alone, another one.
    pub(super) async fn read<R>(
        &self,
        get: GetRequest,
        deadline: Instant,
        send: impl FnOnce(Vec<GetRequest>) -> R,
        too_late: impl FnOnce() -> StoreError,
    ) -> Result<GetResponse, StoreError>
    where
        R: Future<Output = Result<Vec<GetResponse>, StoreError>>,
    {
        let (batch, place) = self.join(get);
        let sent = batch.answers.get_or_try_init(|| async {
            let Ok(permit) = timeout_at(deadline, self.requests.acquire()).await else {
                return Err(too_late());
            };
            // Held to the end. The semaphore is never closed.
            let _permit = permit.map_err(|_| StoreError::Closed)?;
            // Those who are about to ask join.
            tokio::task::yield_now().await;
            let gets = self.close(&batch);
            let count = gets.len();
            let answers = send(gets).await?;
            if answers.len() != count {
                return Err(StoreError::Protocol(format!("{} answers to {count} reads", answers.len())));
            }
            Ok(Mutex::new(answers.into_iter().map(Some).collect()))
        });
        let answer = sent.await?.lock()[place].take();
        Ok(answer.expect("each answer has one caller"))
    }

    /// Adds a read to the open batch; gives the batch and the read's place in it.
    fn join(&self, get: GetRequest) -> (Arc<Batch>, usize) {
        let mut open = self.open.lock();
        let has_room = |batch: &&Arc<Batch>| batch.gets.lock().len() < GETS_MAX;
        let batch = open.as_ref().filter(has_room).cloned().unwrap_or_default();
        let place = batch.gets.lock().len();
        batch.gets.lock().push(get);
        *open = Some(batch.clone());
        (batch, place)
    }

    /// Lets nothing join a batch any more (invariant 1); gives its reads.
    fn close(&self, batch: &Arc<Batch>) -> Vec<GetRequest> {
        let mut open = self.open.lock();
        if open.as_ref().is_some_and(|open| Arc::ptr_eq(open, batch)) {
            *open = None;
        }
        batch.gets.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::mpsc;

    fn get(key: usize) -> GetRequest {
        GetRequest { key: key.to_string(), ..GetRequest::default() }
    }

    fn answers(gets: &[GetRequest]) -> Vec<GetResponse> {
        gets.iter().map(|get| GetResponse { key: Some(get.key.clone()), ..GetResponse::default() }).collect()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Reads a key, and reports the size of its batch.
    async fn read(
        queue: Arc<Queue>,
        key: usize,
        sizes: mpsc::Sender<usize>,
        pause: Duration,
    ) -> Result<GetResponse, StoreError> {
        let send = |gets: Vec<GetRequest>| async move {
            sizes.send(gets.len()).await.unwrap();
            tokio::time::sleep(pause).await;
            Ok(answers(&gets))
        };
        queue.read(get(key), soon(), send, || StoreError::Closed).await
    }

    #[tokio::test]
    async fn reads_that_are_asked_for_together_go_together_and_each_gets_its_own_answer() {
        let queue = Reads::default().of_shard(0);
        let (sizes, mut seen) = mpsc::channel(1000);
        let read = |key| tokio::spawn(read(queue.clone(), key, sizes.clone(), Duration::from_millis(5)));
        let reads: Vec<_> = (0..250).map(read).collect();
        for (key, read) in reads.into_iter().enumerate() {
            assert_eq!(read.await.unwrap().unwrap().key, Some(key.to_string()));
        }
        drop(sizes);
        let mut requests = Vec::new();
        while let Some(size) = seen.recv().await {
            requests.push(size);
        }
        assert_eq!(requests, [100, 100, 50]);
    }

    #[tokio::test]
    async fn nothing_joins_what_was_sent() {
        let queue = Reads::default().of_shard(0);
        let (sizes, mut seen) = mpsc::channel(1000);
        let pause = Duration::from_millis(5);
        let first = tokio::spawn(read(queue.clone(), 1, sizes.clone(), pause));
        assert_eq!(seen.recv().await, Some(1));
        let second = tokio::spawn(read(queue.clone(), 2, sizes.clone(), pause));
        assert_eq!(seen.recv().await, Some(1), "invariant 1");
        first.await.unwrap().unwrap();
        second.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_or_fails_leaves_the_others() {
        let queue = Reads::default().of_shard(0);
        let (sizes, mut seen) = mpsc::channel(1000);
        let gone = tokio::spawn(read(queue.clone(), 1, sizes.clone(), Duration::MAX));
        let failing = |gets: Vec<GetRequest>| async move {
            assert_eq!(gets.len(), 3);
            Err(StoreError::ConnectionLoss)
        };
        let too_late = || StoreError::Closed;
        let failed = queue.clone();
        let failed = tokio::spawn(async move { failed.read(get(2), soon(), failing, too_late).await });
        let other = tokio::spawn(read(queue.clone(), 3, sizes.clone(), Duration::ZERO));
        assert_eq!(seen.recv().await, Some(3));
        gone.abort();
        assert_eq!(failed.await.unwrap(), Err(StoreError::ConnectionLoss));
        assert_eq!(other.await.unwrap().unwrap().key, Some("3".to_owned()), "invariant 2");
    }

    #[tokio::test]
    async fn a_shard_that_answers_nothing_holds_up_its_own_reads_only_and_these_until_their_time_is_over() {
        let reads = Reads::default();
        let silent = |_| std::future::pending();
        let queue = reads.of_shard(0);
        let mut hanging = Vec::new();
        for key in 0..REQUESTS_MAX {
            let queue = queue.clone();
            hanging.push(tokio::spawn(async move {
                queue.read(get(key), soon(), silent, || StoreError::Closed).await
            }));
            // Each is sent before the next one asks.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let briefly = Instant::now() + Duration::from_millis(50);
        let waits = queue.read(get(7), briefly, silent, || StoreError::ConnectionLoss).await;
        assert_eq!(waits, Err(StoreError::ConnectionLoss));
        let (sizes, _seen) = mpsc::channel(1000);
        let other = read(reads.of_shard(1), 8, sizes, Duration::ZERO).await;
        assert_eq!(other.unwrap().key, Some("8".to_owned()));
        hanging.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
