//! Liveness and readiness as probes see them: a disk that hangs is told, and overload is not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::PATIENCE;
use crate::common::frames::{KEY, add_frame};
use crate::common::whole::{Running, cluster, config, config_that_flushes, start_on};
use bindery_io::{Disk, DiskFile, DiskLayer, FileLayer, OpenMode, RealDisk};
use bindery_wire::v2;
use bytes::BytesMut;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

const PROBED: [&str; 2] = ["/api/v1/bookie/is_ready", "/api/v1/bookie/is_alive"];

/// Where changes of one directory wait, or take long.
#[derive(Default)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
    takes: Duration,
}

impl Gate {
    fn shut(&self, is_shut: bool) {
        *self.is_shut.lock().unwrap() = is_shut;
        self.opened.notify_all();
    }

    fn pass(&self) {
        std::thread::sleep(self.takes);
        drop(self.opened.wait_while(self.is_shut.lock().unwrap(), |is_shut| *is_shut).unwrap());
    }
}

struct GatedDisk {
    inner: RealDisk,
    directory: &'static str,
    gate: Arc<Gate>,
}

struct GatedFile {
    inner: Arc<dyn DiskFile>,
    gate: Arc<Gate>,
}

impl DiskLayer for GatedDisk {
    fn beneath(&self) -> &dyn Disk {
        &self.inner
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let inner = self.inner.open(path, mode)?;
        let is_gated = path.components().any(|part| part.as_os_str() == self.directory);
        Ok(if is_gated { Arc::new(GatedFile { inner, gate: self.gate.clone() }) } else { inner })
    }
}

impl FileLayer for GatedFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.inner
    }

    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.gate.pass();
        self.inner.write_at(slices, offset)
    }

    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.gate.pass();
        self.inner.write_durable_at(slices, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.pass();
        self.inner.sync()
    }
}

/// Waits until both probes have this status, and gives what they say.
async fn told(running: &Running, expected: &str) -> Vec<String> {
    let both = async {
        loop {
            let mut said = Vec::new();
            for path in PROBED {
                let (status, body) = running.http("GET", path, "").await;
                said.extend(status.contains(expected).then_some(body));
            }
            if said.len() == PROBED.len() {
                return said;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, both).await.unwrap()
}

/// An idle bookie whose disk begins to hang, and ends.
async fn hangs_and_is_told(directory: &'static str, says: &str) {
    let dir = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let disk = GatedDisk { inner: RealDisk::new(), directory, gate: gate.clone() };
    let running = start_on(Arc::new(disk), config(dir.path()), &cluster().await).await.unwrap();
    told(&running, "200").await;
    gate.shut(true);
    for said in told(&running, "503").await {
        assert!(said.contains(says), "{said}");
    }
    let sanity = running.json("/api/v1/bookie/sanity").await;
    assert_eq!(sanity["passed"], false);
    let state = running.get("/api/v1/bookie/state").await;
    assert!(state.contains(says), "an alarm says it, too: {state}");
    // The heartbeat says that it lives.
    assert_eq!(running.get("/heartbeat").await, "OK\n");
    gate.shut(false);
    told(&running, "200").await;
    assert_eq!(running.json("/api/v1/bookie/sanity").await["passed"], true);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_disk_that_hangs_makes_an_idle_bookie_neither_ready_nor_alive() {
    hangs_and_is_told("journal", "journal 0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_disk_that_hangs_makes_an_idle_bookie_neither_ready_nor_alive() {
    hangs_and_is_told("ledgers", "the disk of ledger directory").await;
}

/// How long overload lasts here: longer than any bound of the watch.
const OVERLOAD: Duration = Duration::from_secs(12);

/// Every write takes a third of a second, and clients offer more than memory and journal hold all the while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overload_makes_no_bookie_unready() {
    const CLIENTS: i64 = 8;
    let dir = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate { takes: Duration::from_millis(330), ..Gate::default() });
    let disk = GatedDisk { inner: RealDisk::new(), directory: "journal", gate };
    let running = start_on(Arc::new(disk), config_that_flushes(dir.path()), &cluster().await).await.unwrap();
    told(&running, "200").await;
    let address = running.address;
    let clients: Vec<_> = (1..=CLIENTS)
        .map(|ledger| {
            tokio::spawn(async move {
                let (mut answers, mut requests) = TcpStream::connect(address).await.unwrap().into_split();
                let reading = tokio::spawn(async move {
                    let mut buffer = vec![0; 64 << 10];
                    while answers.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
                });
                for entry in 0.. {
                    let frame: BytesMut = add_frame(ledger, entry, 100_000, v2::Flags::NONE, KEY);
                    if requests.write_all(&frame).await.is_err() {
                        break;
                    }
                }
                reading.await.unwrap();
            })
        })
        .collect();
    let begun = Instant::now();
    let mut looks = 0;
    while begun.elapsed() < OVERLOAD {
        for path in PROBED {
            let (status, body) = running.http("GET", path, "").await;
            assert!(status.contains("200"), "{path}: {status} {body}");
        }
        looks += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(looks > 0);
    let flow = running.json("/api/v1/bookie/flow").await;
    let write = flow["pools"].as_array().unwrap().iter().find(|pool| pool["name"] == "write").unwrap();
    assert!(write["waits"].as_u64().unwrap() > 0, "there was more than fits: {write}");
    clients.iter().for_each(tokio::task::JoinHandle::abort);
    running.stop().await;
}
