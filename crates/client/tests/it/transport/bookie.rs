//! Against a real bookie.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bindery_client::connection::hooks::Hooks;
use bindery_client::connection::{Bookies, ConnectionOptions};
use bindery_client::transport::{
    AddRequest, AddTag, BatchReadRequest, BookieError, LacAnswer, PollRequest, ReadRequest, Transport,
};
use bindery_io::{RealDisk, SystemClock, SystemRandom};
use bindery_metadata::memory::MemoryCluster;
use bindery_server::bookie::{Bookie, Components, Ended, Metadata};
use bindery_server::config::BookieConfig;
use bindery_server::disks::DiskLimits;
use bindery_server::latch::Latch;
use bindery_server::tls::TlsConfig;
use bindery_types::{BookieId, EntryId, MasterKey};
use bindery_wire::ErrorCode;
use bindery_wire::entry::ExplicitLac;
use bytes::{BufMut, Bytes, BytesMut};

use crate::transport::support::*;

pub struct Running {
    pub id: BookieId,
    stop: Arc<Latch>,
    task: tokio::task::JoinHandle<Ended>,
}

async fn start(dir: &Path, cluster: &MemoryCluster, id: &str, tls: Option<TlsConfig>) -> Running {
    let config = BookieConfig {
        journal_dirs: vec![dir.join("journal")],
        ledger_dirs: vec![dir.join("ledgers")],
        home: Some(dir.to_owned()),
        listen: "127.0.0.1:0".parse().unwrap(),
        bookie_id: Some(id.to_owned()),
        memory_limit: Some(256 << 20),
        preallocate: 0,
        journal_file_bytes: 16 << 20,
        allow_loopback: true,
        disks: DiskLimits { reserve_bytes: Some(0), ..DiskLimits::default() },
        tls,
        ..BookieConfig::default()
    };
    let components = Components {
        disk: Arc::new(RealDisk::new()),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom),
        metadata: Metadata::Layout(open(cluster).await),
    };
    let bookie = Bookie::start(config, components).await.unwrap();
    let stop = Arc::new(Latch::default());
    let task = tokio::spawn({
        let stop = stop.clone();
        async move { bookie.run(&stop).await }
    });
    Running { id: BookieId::new(id).unwrap(), stop, task }
}

impl Running {
    async fn stop(self) {
        self.stop.set();
        assert_eq!(self.task.await.unwrap(), Ended::Stopped);
    }
}

/// A bookie, and connections to it.
pub struct Setup {
    cluster: MemoryCluster,
    pub running: Running,
    pub bookies: Bookies,
    dir: tempfile::TempDir,
}

async fn setup() -> Setup {
    setup_with(Hooks::default()).await
}

pub async fn setup_with(hooks: Hooks) -> Setup {
    setup_with_tls(hooks, None).await
}

/// With a bookie that speaks TLS.
pub async fn setup_with_tls(hooks: Hooks, tls: Option<TlsConfig>) -> Setup {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let running = start(dir.path(), &cluster, "bookie-0", tls).await;
    let options = ConnectionOptions::default();
    let bookies = Bookies::with_hooks(registration(&cluster).await, options, hooks);
    Setup { cluster, running, bookies, dir }
}

impl Setup {
    pub async fn read(&self, ledger_id: i64, at: i64) -> Result<Bytes, BookieError> {
        let request = ReadRequest { ledger: ledger(ledger_id), entry: EntryId::new(at), fence: None };
        self.bookies.read(&self.running.id, request).await
    }

    async fn fence(&self, ledger_id: i64, at: i64, key: MasterKey) -> Result<Bytes, BookieError> {
        let request = ReadRequest { ledger: ledger(ledger_id), entry: EntryId::new(at), fence: Some(key) };
        self.bookies.read(&self.running.id, request).await
    }

    /// Adds entries `0..count`, which must all succeed.
    pub async fn fill(&self, ledger_id: i64, count: i64, payload_size_bytes: usize) {
        let sink = Recorder::new();
        for at in 0..count {
            let request = add(ledger_id, at, at as u64, payload_size_bytes);
            sink.send(&self.bookies, &self.running.id, request);
        }
        let expected: Vec<_> = (0..count as u64).map(|tag| (tag, Ok(()))).collect();
        assert_eq!(sink.outcomes(count as usize).await, expected);
    }

    pub async fn end(self) {
        self.bookies.close().await;
        self.running.stop().await;
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T, BookieError>) -> ErrorCode {
    match result.unwrap_err() {
        BookieError::Refused(code) => code,
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adds_of_several_ledgers_and_sizes_are_answered_in_order_and_read_back() {
    let setup = setup().await;
    let sinks = [Recorder::new(), Recorder::new()];
    let sizes = [0, 1, 1000, 16_000, 16_384, 300_000];
    for at in 0..600 {
        for (id, sink) in sinks.iter().enumerate() {
            let size = sizes[at as usize % if at < 60 { 6 } else { 4 }];
            sink.send(&setup.bookies, &setup.running.id, add(id as i64, at, at as u64, size));
        }
    }
    for sink in &sinks {
        let expected: Vec<_> = (0..600).map(|tag| (tag, Ok(()))).collect();
        assert_eq!(sink.outcomes(600).await, expected);
    }
    for at in (0..600).step_by(7) {
        let size = sizes[at as usize % if at < 60 { 6 } else { 4 }];
        assert_eq!(setup.read(1, at).await.unwrap(), body(1, at, size), "entry {at}");
    }
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_requests_are_each_answered_once() {
    let setup = setup().await;
    let sink = Recorder::new();
    for tag in 0..50 {
        sink.send(&setup.bookies, &setup.running.id, add(1, (tag % 5) as i64, tag, 100));
    }
    let mut tags: Vec<u64> = sink.outcomes(50).await.into_iter().map(|(tag, _)| tag).collect();
    // Of each entry in their order; entries among each other as the bookie likes.
    for at in 0..5 {
        let of_entry: Vec<u64> = tags.iter().copied().filter(|tag| tag % 5 == at).collect();
        assert!(of_entry.is_sorted(), "{of_entry:?}");
    }
    tags.sort_unstable();
    assert_eq!(tags, (0..50).collect::<Vec<_>>());

    let reads: Vec<_> = (0..20).map(|_| setup.read(1, 3)).collect();
    for read in reads {
        assert_eq!(read.await.unwrap(), body(1, 3, 100));
    }
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_there_is_told_from_what_is_last() {
    let setup = setup().await;
    assert_eq!(refused(setup.read(9, 0).await), ErrorCode::NoLedger);
    assert_eq!(refused(setup.read(9, -1).await), ErrorCode::NoLedger);
    setup.fill(9, 5, 10).await;
    assert_eq!(refused(setup.read(9, 5).await), ErrorCode::NoEntry);
    assert_eq!(setup.read(9, -1).await.unwrap(), body(9, 4, 10));
    // Too short to be an entry, or too long for a frame: no bookie is asked.
    let sink = Recorder::new();
    for size in [23, 6 << 20] {
        let mut request = add(9, 5, 0, 0);
        request.body = Bytes::from(vec![0; size]);
        sink.send(&setup.bookies, &setup.running.id, request);
    }
    let bad = (0, Err(BookieError::Refused(ErrorCode::BadRequest)));
    assert_eq!(sink.outcomes(2).await, vec![bad; 2]);
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_stops_the_writer_and_lets_recovery_write() {
    let setup = setup().await;
    setup.fill(1, 3, 10).await;
    assert_eq!(refused(setup.fence(1, -1, MasterKey::new([8; 20])).await), ErrorCode::Unauthorized);
    assert_eq!(setup.fence(1, -1, KEY).await.unwrap(), body(1, 2, 10));
    assert_eq!(setup.fence(1, 1, KEY).await.unwrap(), body(1, 1, 10));
    assert_eq!(refused(setup.fence(1, 3, KEY).await), ErrorCode::NoEntry);
    let sink = Recorder::new();
    let writer = add(1, 3, 1, 10);
    let recovery = AddRequest { is_recovery: true, tag: AddTag(2), ..writer.clone() };
    let stranger = AddRequest { master_key: MasterKey::new([8; 20]), tag: AddTag(3), ..recovery.clone() };
    for request in [writer, recovery, stranger] {
        sink.send(&setup.bookies, &setup.running.id, request);
    }
    let mut outcomes = sink.outcomes(3).await;
    outcomes.sort_by_key(|(tag, _)| *tag);
    let refused = |code| Err(BookieError::Refused(code));
    assert_eq!(
        outcomes,
        [(1, refused(ErrorCode::Fenced)), (2, Ok(())), (3, refused(ErrorCode::Unauthorized))]
    );
    setup.end().await;
}

/// `pending` invariant 2: both are answered, and the fence holds when the fencing read is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_and_fencing_reads_of_the_last_entry_go_together() {
    let setup = setup().await;
    for id in 0..20 {
        setup.fill(id, 2, 10).await;
        let plain: Vec<_> = (0..5).map(|_| setup.read(id, -1)).collect();
        let fencing = setup.fence(id, -1, KEY);
        let (plain, fencing) = tokio::join!(
            async {
                let mut found = Vec::new();
                for read in plain {
                    found.push(read.await.unwrap());
                }
                found
            },
            async {
                let found = fencing.await.unwrap();
                let sink = Recorder::new();
                sink.send(&setup.bookies, &setup.running.id, add(id, 2, 0, 10));
                (found, sink.outcomes(1).await)
            }
        );
        assert!(plain.iter().all(|found| *found == body(id, 1, 10)));
        let is_fenced = vec![(0, Err(BookieError::Refused(ErrorCode::Fenced)))];
        assert_eq!(fencing, (body(id, 1, 10), is_fenced));
    }
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_bring_runs_within_their_bounds() {
    let setup = setup().await;
    setup.fill(1, 300, 1000).await;
    let batch = |first, count_max, size_bytes_max| BatchReadRequest {
        ledger: ledger(1),
        first: entry(first),
        stride: 1,
        count_max,
        size_bytes_max,
    };
    let read = |request| setup.bookies.batch_read(&setup.running.id, request);
    for (first, count, size, expected) in [
        (0, 10, 1 << 20, 10),
        (290, 100, 1 << 20, 10),
        (5, 100, 1, 1),
        // One frame of 200 KiB: larger than the reading buffer.
        (50, 200, 1 << 20, 200),
        (0, 0, 1 << 20, 1),
    ] {
        let found = read(batch(first, count, size)).await.unwrap();
        let expected: Vec<_> = (first..first + expected).map(|at| body(1, at, 1000)).collect();
        assert_eq!(found, expected, "{count} from {first}");
    }
    for (first, stride, count, expected) in
        [(0, 3, 10, 10), (280, 7, 100, 3), (1, 299, 5, 1), (2, 1000, 9, 1)]
    {
        let request = BatchReadRequest { stride, ..batch(first, count, 1 << 20) };
        let found = read(request).await.unwrap();
        let ids = (first..).step_by(stride as usize).take(expected);
        assert_eq!(found, ids.map(|at| body(1, at, 1000)).collect::<Vec<_>>(), "{first} by {stride}");
    }
    assert_eq!(refused(read(batch(300, 10, 1 << 20)).await), ErrorCode::NoEntry);
    let many: Vec<_> = (0..30).map(|first| (first, read(batch(first, 20, 1 << 20)))).collect();
    for (first, found) in many {
        assert_eq!(found.await.unwrap()[0], body(1, first, 1000));
    }
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lac_is_written_read_and_polled() {
    let setup = setup().await;
    let (bookies, id) = (&setup.bookies, &setup.running.id);
    assert_eq!(refused(bookies.read_lac(id, ledger(1)).await), ErrorCode::NoLedger);
    setup.fill(1, 5, 10).await;
    let answer = bookies.read_lac(id, ledger(1)).await.unwrap();
    assert_eq!(answer, LacAnswer::new(None, Some(body(1, 4, 10))));

    let poll = |previous, wait_ms| {
        let wait = Duration::from_millis(wait_ms);
        bookies.poll_lac(id, PollRequest { ledger: ledger(1), previous, wait })
    };
    // The last entry carries 3.
    assert_eq!(poll(None, 60_000).await.unwrap(), Some(entry(3)));
    let begin = tokio::time::Instant::now();
    assert_eq!(poll(Some(entry(3)), 200).await.unwrap(), Some(entry(3)));
    assert!(begin.elapsed() >= Duration::from_millis(200), "it waited");

    let waiting = poll(Some(entry(3)), 60_000);
    let mut lac_body = BytesMut::new();
    lac_body.put_i64(1);
    lac_body.put_i64(4);
    let lac_body = lac_body.freeze();
    assert_eq!(ExplicitLac::of(&lac_body).unwrap().last_add_confirmed, 4);
    let other = MasterKey::new([8; 20]);
    let stranger = bookies.write_lac(id, ledger(1), other, entry(4), lac_body.clone()).await;
    assert_eq!(refused(stranger), ErrorCode::Unauthorized);
    bookies.write_lac(id, ledger(1), KEY, entry(4), lac_body.clone()).await.unwrap();
    assert_eq!(waiting.await.unwrap(), Some(entry(4)), "the explicit LAC wakes the poll");
    let answer = bookies.read_lac(id, ledger(1)).await.unwrap();
    assert_eq!(answer, LacAnswer::new(Some(lac_body), Some(body(1, 4, 10))));
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_that_comes_back_elsewhere_is_found_again() {
    let setup = setup().await;
    setup.fill(1, 10, 100).await;
    let Setup { cluster, running, bookies, dir } = setup;
    let id = running.id.clone();
    running.stop().await;
    let request = ReadRequest { ledger: ledger(1), entry: Some(entry(3)), fence: None };
    // Nobody listens there any more, or it is gone from the registration, too: that is asked when the connection ended.
    let gone = async {
        while bookies.read(&id, request.clone()).await != Err(BookieError::NotRegistered) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();

    let running = start(dir.path(), &cluster, "bookie-0", None).await;
    let back = async {
        loop {
            match bookies.read(&id, request.clone()).await {
                Ok(found) => return found,
                Err(error) => assert!(!error.is_unknown(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, back).await.unwrap(), body(1, 3, 100));
    bookies.close().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_without_address_is_not_registered() {
    let bookies = Bookies::new(registration(&cluster().await).await, ConnectionOptions::default());
    let sink = Recorder::new();
    for tag in 0..3 {
        sink.send(&bookies, &bookie("nobody"), add(1, 0, tag, 10));
    }
    let expected: Vec<_> = (0..3).map(|tag| (tag, Err(BookieError::NotRegistered))).collect();
    assert_eq!(sink.outcomes(3).await, expected);
}
