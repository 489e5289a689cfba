//! A bookie in process, prepared as one that runs for some time.

use crate::support::wait_until;
use bindery_io::{RealDisk, SystemClock, SystemRandom};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{Layout, LedgerLayout, layout};
use bindery_server::bookie::{Bookie, Components, Metadata};
use bindery_server::config::BookieConfig;
use bindery_server::latch::Latch;
use bindery_server::limits::Limits;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub struct Running {
    pub address: SocketAddr,
    admin: SocketAddr,
    dir: PathBuf,
    stop: Arc<Latch>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// The defaults of a bookie with a memory limit of 1 GiB, but for a short flush interval, so that a round ends soon.
    /// Waits until journal files are filled and memory is touched.
    pub fn start(dir: &Path, is_smoke: bool, add_batch_entries_max: usize) -> Running {
        let dir = dir.join("bookie");
        std::fs::create_dir_all(&dir).unwrap();
        let full = BookieConfig {
            journal_dirs: vec![dir.join("journal")],
            ledger_dirs: vec![dir.join("ledgers")],
            home: Some(dir.clone()),
            listen: "127.0.0.1:0".parse().unwrap(),
            admin: Some("127.0.0.1:0".parse().unwrap()),
            memory_limit: Some(1 << 30),
            flush_interval: Duration::from_secs(1),
            allow_loopback: true,
            limits: Limits { add_batch_entries_max, ..Limits::default() },
            ..BookieConfig::default()
        };
        let config = match is_smoke {
            true => BookieConfig { memory_limit: Some(192 << 20), preallocate: 0, ..full },
            false => full,
        };
        let prepared = config.preallocate as u64 * config.journal_file_bytes;
        let journal_dir = config.journal_dirs[0].join("current");
        let stop = Arc::new(Latch::default());
        let (told, addresses) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || {
                // As the binary: a worker for each core.
                let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let cluster = MemoryCluster::new();
                    let hierarchical = LedgerLayout::Hierarchical;
                    layout::init_cluster(&cluster.open(), "/ledgers", hierarchical, [1; 16]).await.unwrap();
                    let store = Arc::new(cluster.open());
                    let metadata = Metadata::Layout(Layout::open(store, "/ledgers", None).await.unwrap());
                    let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
                    let disk = Arc::new(RealDisk::new());
                    let components = Components { disk, clock, random, metadata };
                    let bookie = Bookie::start(config, components).await.unwrap();
                    told.send((bookie.address(), bookie.admin_address().unwrap())).unwrap();
                    bookie.run(&stop).await;
                });
            }
        });
        let (address, admin) = addresses.recv().unwrap();
        let length = |entry: std::fs::DirEntry| entry.metadata().map_or(0, |metadata| metadata.len());
        wait_until("journal files", || {
            let entries = std::fs::read_dir(&journal_dir).unwrap();
            entries.map(|entry| length(entry.unwrap())).sum::<u64>() >= prepared
        });
        Running { address, admin, dir, stop, thread: Some(thread) }
    }

    /// All metrics, as text.
    pub fn metrics(&self) -> String {
        let mut socket = TcpStream::connect(self.admin).unwrap();
        let request = "GET /metrics HTTP/1.1\r\nHost: bookie\r\nConnection: close\r\n\r\n";
        socket.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        text
    }

    /// The value of the first series that begins so; 0 when there is none.
    pub fn metric(&self, series: &str) -> f64 {
        value_of(&self.metrics(), series)
    }

    /// Waits until everything that was added is in entry logs, so that no flush disturbs what is measured next.
    pub fn wait_flushed(&self) {
        wait_until("the flush", || {
            let text = self.metrics();
            let added =
                value_of(&text, "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES_sum{success=\"true\"");
            value_of(&text, "bindery_flushed_entries") >= added
        });
    }
}

/// As [`Running::metric`].
pub fn value_of(text: &str, series: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(series));
    line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.set();
        self.thread.take().unwrap().join().unwrap();
        std::fs::remove_dir_all(&self.dir).unwrap();
    }
}
