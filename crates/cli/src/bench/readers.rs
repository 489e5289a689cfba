//! The readers of `bindery bench read`: who reads what, and when.
//!
//! ```text
//! closed loop   reader (a thread): choose -> read -> choose ...
//! open loop     pace (a thread): sleep until the next call is due -> a free reader -> task: read -> free again
//! ```
//!
//! # Invariants
//! 1. A reader makes one call at a time. In open loop a call goes to the reader that has been free for longest, and
//!    waits for one when there is none; its latency counts from when it was due.
//! 2. Threads and tasks end after `stopped` is true and the calls under way are over.
//!
//! # Limits     closed loop: a thread for each reader; open loop: a task for each call under way, at most the readers

use super::args::{BenchReadArgs, ReadMode};
use super::call_log::CallLog;
use super::latency::Latencies;
use super::on_thread;
use super::report::why_unread;
use crate::exit::Failure;
use bindery_client::{EntryId, LedgerReader, ReadError};
use bindery_io::SeededRandom;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// A waiting thread checks at this interval whether it is to stop.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// State that all readers share.
pub struct Load {
    begin: Instant,
    ledgers: Vec<LedgerReader>,
    /// Entries of the shortest ledger, above 0.
    entries: u64,
    /// Entries of one call, at most `entries`.
    batch: u64,
    pub latencies: Latencies,
    pub calls: AtomicU64,
    entries_read: AtomicU64,
    bytes_read: AtomicU64,
    errors: Mutex<BTreeMap<&'static str, u64>>,
    pub log: Option<CallLog>,
}

impl Load {
    /// Begins now. `entries` of each ledger are read, above 0, and `batch` of them by a call, at most all.
    pub fn new(ledgers: Vec<LedgerReader>, entries: u64, batch: u64, log: Option<CallLog>) -> Load {
        Load {
            begin: Instant::now(),
            ledgers,
            entries,
            batch,
            latencies: Latencies::new(),
            calls: AtomicU64::new(0),
            entries_read: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            errors: Mutex::new(BTreeMap::new()),
            log,
        }
    }

    /// Calls, entries and bytes so far.
    pub fn counted(&self) -> (u64, u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        (load(&self.calls), load(&self.entries_read), load(&self.bytes_read))
    }

    /// How many calls failed, and why.
    pub fn lock_errors(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.errors.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes a call whose latency counts from `from`.
    async fn call(&self, ledger: usize, first: u64, from: Instant) {
        let outcome = read(&self.ledgers[ledger], first, self.batch).await;
        let latency = from.elapsed();
        // An error counts in the latency, too: so long was the caller kept waiting.
        self.latencies.record(std::iter::once(latency.as_micros() as u64));
        let error = outcome.as_ref().err().map(why_unread);
        if let Some(log) = &self.log {
            log.call(from, latency, error);
        }
        match outcome {
            Ok((entries, bytes)) => {
                self.entries_read.fetch_add(entries, Ordering::AcqRel);
                self.bytes_read.fetch_add(bytes, Ordering::AcqRel);
                self.calls.fetch_add(1, Ordering::AcqRel);
            }
            Err(_) => *self.lock_errors().entry(error.unwrap_or_default()).or_default() += 1,
        }
    }
}

/// Starts them; the threads end soon after `stopped` is true.
pub fn start_readers(
    load: &Arc<Load>,
    args: &BenchReadArgs,
    stopped: &watch::Receiver<bool>,
) -> Result<Vec<JoinHandle<()>>, Failure> {
    let readers = (0..args.readers).map(|index| Reader {
        load: load.clone(),
        random: (args.mode == ReadMode::Random).then(|| SeededRandom::new(u64::from(index))),
        ledger: index as usize % load.ledgers.len(),
        next: 0,
    });
    match args.common.rate {
        Some(rate) => {
            let pace = Pace::new(load.clone(), rate, readers, stopped.clone());
            Ok(vec![on_thread("bindery-pace", pace.run())?])
        }
        None => {
            let start = |(index, reader): (usize, Reader)| {
                on_thread(&format!("bindery-read-{index}"), reader.run(stopped.clone()))
            };
            readers.enumerate().map(start).collect()
        }
    }
}

struct Reader {
    load: Arc<Load>,
    random: Option<SeededRandom>,
    ledger: usize,
    next: u64,
}

impl Reader {
    async fn run(mut self, stopped: watch::Receiver<bool>) {
        while !*stopped.borrow() {
            let (ledger, first) = self.choose();
            self.load.call(ledger, first, Instant::now()).await;
        }
    }

    /// Ledger and first entry of the next call.
    fn choose(&mut self) -> (usize, u64) {
        let Load { ledgers, entries, batch, .. } = &*self.load;
        if let Some(random) = &self.random {
            return (random.below(ledgers.len() as u64) as usize, random.below(entries - batch + 1));
        }
        if self.next + batch > *entries {
            self.next = 0;
            self.ledger = (self.ledger + 1) % ledgers.len();
        }
        self.next += batch;
        (self.ledger, self.next - batch)
    }
}

/// Calls spread evenly over time.
struct Pace {
    load: Arc<Load>,
    rate: u32,
    /// Readers without a call.
    free: mpsc::Receiver<Reader>,
    give_back: mpsc::Sender<Reader>,
    stopped: watch::Receiver<bool>,
}

impl Pace {
    fn new(
        load: Arc<Load>,
        rate: u32,
        readers: impl ExactSizeIterator<Item = Reader>,
        stopped: watch::Receiver<bool>,
    ) -> Pace {
        let (give_back, free) = mpsc::channel(readers.len().max(1));
        for reader in readers {
            let is_sent = give_back.try_send(reader).is_ok();
            assert!(is_sent, "there is a place for each reader");
        }
        Pace { load, rate, free, give_back, stopped }
    }

    /// Sleeps on this thread.
    async fn run(mut self) {
        let mut calls = JoinSet::new();
        let mut turn: u64 = 0;
        while !*self.stopped.borrow() {
            let due_ns = u128::from(turn) * 1_000_000_000 / u128::from(self.rate);
            let due = self.load.begin + Duration::from_nanos(due_ns as u64);
            let wait = due.saturating_duration_since(Instant::now());
            std::thread::sleep(wait.min(LOOK_INTERVAL));
            if wait > LOOK_INTERVAL {
                continue;
            }
            let Ok(Some(mut reader)) = timeout(LOOK_INTERVAL, self.free.recv()).await else { continue };
            turn += 1;
            while calls.try_join_next().is_some() {}
            let (ledger, first) = reader.choose();
            let give_back = self.give_back.clone();
            calls.spawn(async move {
                reader.load.call(ledger, first, due).await;
                // The channel has room for it; the receiver is gone when the load is over.
                let _ = give_back.try_send(reader);
            });
        }
        while calls.join_next().await.is_some() {}
    }
}

/// Entries and bytes of one call.
async fn read(ledger: &LedgerReader, first: u64, count: u64) -> Result<(u64, u64), ReadError> {
    let id = |raw: u64| EntryId::new(raw as i64).expect("below a number of entries");
    if count == 1 {
        return Ok((1, ledger.read_entry(id(first)).await?.payload.len() as u64));
    }
    let mut stream = ledger.read(id(first)..=id(first + count - 1));
    let (mut entries, mut bytes) = (0, 0);
    while let Some(entry) = stream.next().await {
        bytes += entry?.payload.len() as u64;
        entries += 1;
    }
    Ok((entries, bytes))
}
