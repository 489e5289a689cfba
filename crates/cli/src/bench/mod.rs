//! `bindery bench`: load on a cluster, measured the way `tests/interop/peer/load` measures it for the Java client, so
//! that two results can be laid side by side: the fields of `--json` have the names and meanings of that tool's.
//!
//! # Invariants
//! 1. Closed loop: the latency of an operation begins just before it is handed to the client. Open loop (`--rate`): it
//!    begins when the operation was due, so that a stall is seen by every operation that it delayed.
//! 2. Only what completes inside the measured seconds counts.
//! 3. Ledgers that were made are deleted in the end, also after a failure or SIGINT, unless `--keep`.

mod add;
pub mod args;
mod call_log;
mod drawing;
mod latency;
mod proc;
mod read;
mod readers;
mod report;
mod space;

use self::args::{BenchCommand, BenchCommonArgs};
use self::drawing::Target;
use crate::exit::{self, Failure};
use crate::ledger::access::{self, with_tuned_client};
use crate::progress::{Progress, Unit};
use crate::signals;
use bindery_client::{Client, CreateOptions, LedgerId, LedgerWriter};
use std::future::Future;
use tokio::signal::unix::SignalKind;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// No ledger of a benchmark is secret; the Java driver uses the same.
const PASSWORD: &[u8] = b"peer";
/// Ledgers deleted at once.
const DELETES_MAX: usize = 16;

/// Runs one workload.
pub fn run(command: BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Add(args) => {
            let plot = Target::open(&args.common)?;
            let (access, place) = (args.common.access.clone(), args.common.placement.tune()?);
            let in_flight_bytes = u64::from(args.outstanding) * (u64::from(args.common.entry_size) + 256);
            // The number of outstanding adds is to be the limit, not the client's memory.
            let tune = |builder: bindery_client::ClientBuilder| {
                place(builder).memory_limit(bindery_client::MEMORY_LIMIT_DEFAULT.max(2 * in_flight_bytes))
            };
            with_tuned_client(&access, true, tune, |client| add::run(client, args, plot))
        }
        BenchCommand::Read(args) => {
            let plot = Target::open(&args.common)?;
            let (access, tune) = (args.common.access.clone(), args.common.placement.tune()?);
            with_tuned_client(&access, true, tune, |client| read::run(client, args, plot))
        }
    }
}

/// The ledgers of a run.
struct Made {
    client: Client,
    ids: Vec<LedgerId>,
    is_kept: bool,
    /// Bytes that they take on bookies.
    written_bytes: u64,
}

impl Made {
    fn new(client: &Client, args: &BenchCommonArgs) -> Made {
        Made { client: client.clone(), ids: Vec::new(), is_kept: args.keep, written_bytes: 0 }
    }

    /// Creates so many ledgers for `entries`, or for as many as are acknowledged.
    async fn create(
        &mut self,
        args: &BenchCommonArgs,
        count: u32,
        entries: Option<u64>,
    ) -> Result<Vec<LedgerWriter>, Failure> {
        let quorum = access::quorum(&self.client, &args.quorum).await?;
        space::check(&self.client, args, quorum, entries).await?;
        let mut options = CreateOptions::new(quorum);
        options.digest = args.digest.digest_type();
        options.password = PASSWORD.to_vec();
        let mut writers = Vec::with_capacity(count as usize);
        let progress = Progress::start("creating", Unit::Ledgers, Some(u64::from(count)), false);
        for _ in 0..count {
            progress.set(writers.len() as u64);
            let writer = self.client.create_ledger(options.clone()).await;
            let writer = writer.map_err(|error| access::create_failure(&error))?;
            self.ids.push(writer.id());
            writers.push(writer);
        }
        drop(progress);
        if !args.json {
            access::say_quorum(&args.quorum, quorum);
        }
        Ok(writers)
    }

    /// Runs `work` until it is done or SIGINT comes, then deletes the ledgers (invariant 3). `interrupted` turns true
    /// for what `work` left running.
    async fn run_and_delete<T>(
        &mut self,
        stop: &watch::Sender<bool>,
        work: impl AsyncFnOnce(&mut Made) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut interrupt = signals::catch(SignalKind::interrupt())?;
        let outcome = tokio::select! {
            outcome = work(self) => outcome,
            _ = interrupt.recv() => {
                Err(Failure::with_code(exit::SIGNALLED + 2, "stopped by SIGINT, no result"))
            }
        };
        stop.send_replace(true);
        let deleted = self.delete().await;
        let value = outcome?;
        deleted?;
        Ok(value)
    }

    async fn delete(&mut self) -> Result<(), Failure> {
        if self.is_kept {
            return Ok(());
        }
        let progress = Progress::start("deleting", Unit::Ledgers, Some(self.ids.len() as u64), false);
        for (at, ids) in self.ids.chunks(DELETES_MAX).enumerate() {
            progress.set((at * DELETES_MAX) as u64);
            let mut deletes = JoinSet::new();
            for id in ids {
                let (client, id) = (self.client.clone(), *id);
                deletes.spawn(async move { client.delete_ledger(id).await });
            }
            while let Some(deleted) = deletes.join_next().await {
                let deleted = deleted.map_err(|error| Failure::new(format!("deleting failed: {error}")))?;
                deleted.map_err(|error| access::ledger_failure(&error))?;
            }
        }
        self.ids.clear();
        Ok(())
    }
}

/// The bar of the seconds that a run takes.
fn seconds_bar(args: &BenchCommonArgs) -> Progress {
    let progress = Progress::start("", Unit::Seconds, Some(u64::from(args.warmup + args.seconds)), false);
    progress.say(|| "warming up".to_owned());
    progress
}

/// Runs a future on a thread of its own, which may sleep without holding up the runtime.
fn on_thread<T, F>(name: &str, future: F) -> Result<std::thread::JoinHandle<T>, Failure>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let runtime = tokio::runtime::Handle::current();
    let thread = std::thread::Builder::new().name(name.into());
    let spawned = thread.spawn(move || runtime.block_on(future));
    spawned.map_err(|error| Failure::new(format!("cannot start a thread: {error}")))
}

/// Joins it without holding up the runtime either.
async fn join<T: Send + 'static>(thread: std::thread::JoinHandle<T>) -> Result<T, Failure> {
    let joined = tokio::task::spawn_blocking(|| thread.join()).await;
    match joined {
        Ok(Ok(value)) => Ok(value),
        _ => Err(Failure::new("a thread of the benchmark failed: this is a bug")),
    }
}
