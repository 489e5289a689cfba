//! An engine on the real disk, prepared as a bookie is that runs for some time.

use super::driver::Sink;
use super::wait_until;
use bindery_engine::{Engine, EngineConfig, EngineThreads, Machine, WantedCollection};
use bindery_io::{Disk, RealDisk, SystemClock, SystemRandom};
use bindery_types::LedgerId;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub struct Running {
    pub engine: Arc<Engine>,
    threads: Option<EngineThreads>,
}

/// The defaults of a bookie with a memory limit of 1 GiB, but for a short flush interval, so that a round ends soon.
pub fn config(dir: &Path, is_smoke: bool) -> EngineConfig {
    let full = EngineConfig {
        journal_dirs: vec![dir.join("engine/journal")],
        ledger_dirs: vec![dir.join("engine/ledgers")],
        write_pool_bytes: 512 << 20,
        flush_interval: Duration::from_secs(1),
        ..EngineConfig::default()
    };
    if !is_smoke {
        return full;
    }
    let flush_interval = Duration::from_millis(50);
    EngineConfig { write_pool_bytes: 128 << 20, journal_file_bytes: 4 << 20, flush_interval, ..full }
}

impl Running {
    /// Starts it and waits until journal files are filled and memory is touched.
    pub fn start(config: EngineConfig, sink: Arc<Sink>) -> Running {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
        let (journal_dir, files) = (config.journal_dirs[0].clone(), config.journal_files_preallocated as u64);
        let bytes = files * config.journal_file_bytes;
        let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
        let machine = Machine::open(config, disk.clone(), clock, random).unwrap();
        let engine = machine.engine.clone();
        let threads = machine.start(disk, sink);
        let length = |entry: std::fs::DirEntry| entry.metadata().map_or(0, |metadata| metadata.len());
        wait_until("journal files", || {
            let entries = std::fs::read_dir(&journal_dir).unwrap();
            entries.map(|entry| length(entry.unwrap())).sum::<u64>() >= bytes
        });
        Running { engine, threads: Some(threads) }
    }

    /// Waits until everything that was added is in entry logs.
    pub fn wait_flushed(&self) {
        wait_until("the flush", || {
            let stats = self.engine.stats();
            stats.flushed_entries == stats.journal_entries
        });
    }

    /// Gives the disk space of these ledgers back.
    pub fn remove(&self, ledgers: &[LedgerId]) {
        for ledger in ledgers {
            self.engine.remove_ledger(*ledger, Box::new(|_| {}));
        }
        wait_until("the collection", || {
            // One that came before the removal was flushed found all of it live.
            if !self.engine.is_collection_wanted() {
                self.engine.want_collection(WantedCollection::default());
            }
            self.engine.stats().entry_logs <= 1
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.stop().unwrap();
        }
    }
}
