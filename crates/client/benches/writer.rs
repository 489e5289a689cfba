//! Entries per second that one core can enqueue, encode, digest, and see confirmed, with many ledgers.
//!
//! ```text
//! cargo bench -p bindery-client --bench writer -- [seconds] [payload bytes] [ledgers]
//! ```
//! Bookies are a list in this process that acknowledges in batches, so only the cost of the writer itself is measured,
//! on one thread, with 20,000 entries outstanding. Given no `--bench` (as by `cargo test --benches`), each measurement
//! is short.

#![allow(clippy::unwrap_used, reason = "a measurement fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use bindery_client::transport::{
    AddAnswer, AddRequest, AddSink, Answer, BatchReadRequest, BookieError, Connection, LacAnswer,
    PollRequest, ReadRequest, Transport,
};
use bindery_client::{BookieId, Client, CreateOptions, EntryId, LedgerId, Quorum};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{BookieServiceInfo, Layout, LedgerLayout, RegistrationMode, layout};
use bindery_types::MasterKey;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

const OUTSTANDING: usize = 20_000;
/// Answers that a bookie gives in one socket read.
const BATCH: usize = 64;

/// The answers that one ledger waits for.
type Unanswered = (Arc<dyn AddSink>, Vec<AddAnswer>);

/// By ledger, as answers come in runs of one ledger each.
#[derive(Default)]
struct Acknowledging(Mutex<Vec<Unanswered>>);

impl Acknowledging {
    fn acknowledge_all(&self, bookie: &BookieId) {
        let mut lists = std::mem::take(&mut *self.0.lock());
        for (sink, answers) in &mut lists {
            for batch in answers.chunks(BATCH) {
                sink.clone().added(bookie, batch);
            }
            answers.clear();
        }
        *self.0.lock() = lists;
    }
}

fn no<T>() -> Answer<'static, T> {
    Box::pin(async { Err(BookieError::NotRegistered) })
}

impl Transport for Acknowledging {
    fn add(&self, _: &BookieId, request: AddRequest, sink: &Arc<dyn AddSink>) {
        let mut lists = self.0.lock();
        // Ledgers are numbered from 0 in the order of their creation.
        let index = request.ledger.get() as usize;
        while lists.len() <= index {
            lists.push((sink.clone(), Vec::new()));
        }
        let (entry, tag, connection) = (request.entry, request.tag, Connection::default());
        lists[index].1.push(AddAnswer { entry, tag, connection, result: Ok(()) });
    }
    fn read(&self, _: &BookieId, _: ReadRequest) -> Answer<'_, Bytes> {
        no()
    }
    fn batch_read(&self, _: &BookieId, _: BatchReadRequest) -> Answer<'_, Vec<Bytes>> {
        no()
    }
    fn read_lac(&self, _: &BookieId, _: LedgerId) -> Answer<'_, LacAnswer> {
        no()
    }
    fn write_lac(&self, _: &BookieId, _: LedgerId, _: MasterKey, _: EntryId, _: Bytes) -> Answer<'_, ()> {
        no()
    }
    fn poll_lac(&self, _: &BookieId, _: PollRequest) -> Answer<'_, Option<EntryId>> {
        no()
    }
}

async fn run(seconds: f64, payload: usize, ledgers: usize, quorum: Quorum) {
    let cluster = MemoryCluster::new();
    let store = Arc::new(cluster.open());
    layout::init_cluster(&*store, "/l", LedgerLayout::Hierarchical, [0; 16]).await.unwrap();
    let layout = Layout::open(store, "/l", None).await.unwrap();
    for index in 0..quorum.ensemble_size() {
        let info = BookieServiceInfo::of_bookie(("127.0.0.1", 1), None);
        let id = BookieId::new(format!("b{index}")).unwrap();
        layout.registration().register(&id, RegistrationMode::Writable, &info).await.unwrap();
    }
    let transport = Arc::new(Acknowledging::default());
    let client = Client::builder().layout(layout).transport(transport.clone()).connect().await.unwrap();
    let mut writers = Vec::new();
    for _ in 0..ledgers {
        writers.push(client.create_ledger(CreateOptions::new(quorum)).await.unwrap());
    }
    let bookie = BookieId::new("b0").unwrap();
    let payload = vec![7; payload];
    let (start, mut entries) = (Instant::now(), 0u64);
    while start.elapsed().as_secs_f64() < seconds {
        for index in 0..OUTSTANDING {
            writers[index % ledgers].enqueue(&payload).await.unwrap();
        }
        transport.acknowledge_all(&bookie);
        entries += OUTSTANDING as u64;
    }
    let elapsed = start.elapsed();
    for writer in &writers {
        let progress = writer.progress();
        let enqueued = progress.borrow().confirmed.unwrap().get() + 1;
        assert_eq!(enqueued as u64, entries / ledgers as u64, "everything is confirmed");
    }
    println!(
        "{:>9} {:>9} {ledgers:>8} {:>12.0} {:>10.2}",
        payload.len(),
        format!("{}/{}/{}", quorum.ensemble_size(), quorum.write_quorum_size(), quorum.ack_quorum_size()),
        entries as f64 / elapsed.as_secs_f64(),
        elapsed.as_secs_f64() * 1e6 / entries as f64,
    );
    tokio::time::sleep(Duration::ZERO).await;
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let is_bench = args.iter().any(|arg| arg == "--bench");
    let mut numbers = args.iter().filter_map(|arg| arg.parse::<u64>().ok());
    let seconds = numbers.next().map_or(if is_bench { 2.0 } else { 0.05 }, |seconds| seconds as f64);
    let payloads = numbers.next().map_or(vec![100, 1024], |size| vec![size as usize]);
    let ledgers = numbers.next().map_or(vec![1, 20, 1000], |count| vec![count as usize]);
    println!("{:>9} {:>9} {:>8} {:>12} {:>10}", "payload", "E/Qw/Qa", "ledgers", "entries/s", "us/entry");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (e, qw, qa) in [(1, 1, 1), (3, 3, 2)] {
        for &payload in &payloads {
            for &ledgers in &ledgers {
                runtime.block_on(run(seconds, payload, ledgers, Quorum::new(e, qw, qa).unwrap()));
            }
        }
    }
}
