//! A sink that keeps what it is told, and short ways to build requests.

use std::sync::Arc;
use std::time::Duration;

use bindery_client::connection::{Bookies, ConnectionOptions};
use bindery_client::transport::{AddAnswer, AddRequest, AddSink, AddTag, BookieError, Transport};
use bindery_metadata::layout::{self, Registration};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{Layout, LedgerLayout};
use bindery_types::{BookieId, EntryId, LedgerId, MasterKey};
use bytes::{BufMut, Bytes, BytesMut};
use std::sync::Mutex;
use tokio::sync::Notify;

pub const KEY: MasterKey = MasterKey::new([7; 20]);
/// Longer than anything takes that works.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn ledger(raw: i64) -> LedgerId {
    LedgerId::new(raw).unwrap()
}

pub fn entry(raw: i64) -> EntryId {
    EntryId::new(raw).unwrap()
}

pub fn bookie(id: &str) -> BookieId {
    BookieId::new(id).unwrap()
}

/// An entry as it is stored, without a digest.
pub fn body(ledger: i64, entry: i64, payload_size_bytes: usize) -> Bytes {
    let mut body = BytesMut::new();
    for field in [ledger, entry, entry - 1, 0] {
        body.put_i64(field);
    }
    body.extend((0..payload_size_bytes).map(|at| (at as i64 * 31 + entry) as u8));
    body.freeze()
}

pub fn add(ledger_id: i64, entry_id: i64, tag: u64, payload_size_bytes: usize) -> AddRequest {
    AddRequest {
        ledger: ledger(ledger_id),
        entry: entry(entry_id),
        body: body(ledger_id, entry_id, payload_size_bytes),
        master_key: KEY,
        is_recovery: false,
        is_background: false,
        is_deferred: false,
        tag: AddTag(tag),
    }
}

/// Keeps every answer in the order of its coming.
#[derive(Default)]
pub struct Recorder {
    answers: Mutex<Vec<AddAnswer>>,
    changed: Notify,
}

impl AddSink for Recorder {
    fn added(self: Arc<Self>, _: &BookieId, answers: &[AddAnswer]) {
        assert!(!answers.is_empty());
        self.answers.lock().unwrap().extend_from_slice(answers);
        self.changed.notify_waiters();
    }
}

impl Recorder {
    pub fn new() -> Arc<Recorder> {
        Arc::default()
    }

    /// Adds while it holds the lock that the sink takes (transport invariant 4).
    pub fn send(self: &Arc<Self>, to: &Bookies, bookie: &BookieId, request: AddRequest) {
        let sink: Arc<dyn AddSink> = self.clone();
        let _held = self.answers.lock().unwrap();
        to.add(bookie, request, &sink);
    }

    pub fn count(&self) -> usize {
        self.answers.lock().unwrap().len()
    }

    /// The answers, once there are so many.
    pub async fn answers(&self, count: usize) -> Vec<AddAnswer> {
        let enough = async {
            loop {
                let changed = self.changed.notified();
                {
                    let answers = self.answers.lock().unwrap();
                    if answers.len() >= count {
                        return answers.clone();
                    }
                }
                changed.await;
            }
        };
        let found = tokio::time::timeout(PATIENCE, enough).await;
        let found = found.unwrap_or_else(|_| panic!("{} answers of {count}", self.count()));
        assert_eq!(found.len(), count, "no request is answered twice");
        found
    }

    /// As [`answers`](Self::answers), tag and outcome only.
    pub async fn outcomes(&self, count: usize) -> Vec<(u64, Result<(), BookieError>)> {
        self.answers(count).await.into_iter().map(|answer| (answer.tag.0, answer.result)).collect()
    }
}

pub async fn cluster() -> MemoryCluster {
    let cluster = MemoryCluster::new();
    layout::init_cluster(&cluster.open(), "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
    cluster
}

pub async fn open(cluster: &MemoryCluster) -> Layout {
    Layout::open(Arc::new(cluster.open()), "/ledgers", None).await.unwrap()
}

pub async fn registration(cluster: &MemoryCluster) -> Registration {
    open(cluster).await.registration()
}

/// Short times, so that tests may wait for them.
pub fn quick(request_timeout_ms: u64) -> ConnectionOptions {
    ConnectionOptions {
        request_timeout: Duration::from_millis(request_timeout_ms),
        reconnect_pause_max: Duration::from_millis(200),
        ..ConnectionOptions::default()
    }
}

/// A small repeatable generator (xorshift).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}
