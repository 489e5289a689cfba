//! `bindery bench add`: one sender, a random ledger for each entry, a bounded number of adds outstanding over all.
//!
//! # Data flow
//! ```text
//! sender thread: room? -> pick ledger -> send time into its ring -> enqueue -> client
//!      ^                                       |                                  | confirmed entries move
//!      +---- done, room <- latencies <- completion task of the ledger <-----------+
//! ```
//!
//! # Invariants
//! 1. The slot of an entry is written before it is enqueued and read before the add counts as done; a ring has a slot
//!    for each outstanding add, so that no slot is written again before it was read.
//! 2. Adds of a failed ledger are given up once, by the sender, after the ledger's task has ended.
//!
//! # Limits     slots of all rings: [`SLOTS_MAX`]

use super::args::BenchAddArgs;
use super::drawing::{Second, Target};
use super::latency::{Latencies, round};
use super::proc::Watched;
use super::report::{AddReport, why_stopped};
use super::{Made, join, on_thread, space};
use crate::exit::Failure;
use crate::figure::grouped;
use bindery_client::{AppendError, Client, EntryId, LedgerWriter, ProgressWatch, Quorum};
use bindery_io::SeededRandom;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// 1 GiB of send times.
const SLOTS_MAX: u64 = 1 << 27;
/// How long to wait for the last acknowledgements.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);
/// The sender looks so often whether it is to stop.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the workload and reports.
pub async fn run(client: Client, args: BenchAddArgs, plot: Option<Target>) -> Result<(), Failure> {
    let slots = u64::from(args.outstanding).next_power_of_two();
    if u64::from(args.ledgers) * slots > SLOTS_MAX {
        return Err(Failure::usage("too many --ledgers for so many --outstanding: lower one of them"));
    }
    let watched = Watched::new(&args.common.bookie_pids)?;
    let (stop, stopped) = watch::channel(false);
    let mut made = Made::new(&client, &args.common);
    let (report, seconds) = made
        .run_and_delete(&stop, async |made: &mut Made| {
            let common = &args.common;
            let limit = |rate: u32| u64::from(rate) * u64::from(common.warmup + common.seconds);
            let writers = made.create(common, args.ledgers, common.rate.map(limit)).await?;
            let quorum = writers.first().map_or(Quorum::SINGLE, LedgerWriter::quorum);
            let (report, seconds, sent) = measure(writers, &args, &watched, &stop, stopped).await?;
            made.written_bytes = space::bytes_of(sent, common, quorum);
            Ok((report, seconds))
        })
        .await?;
    space::leave(&client, &args.common, made.written_bytes).await;
    let said = report.print(args.common.json);
    if let Some(plot) = plot {
        plot.draw(&report.plot(&seconds))?;
    }
    said
}

/// The report, what each second brought, and how many entries were sent.
async fn measure(
    writers: Vec<LedgerWriter>,
    args: &BenchAddArgs,
    watched: &Watched,
    stop: &watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
) -> Result<(AddReport, Vec<Second>, u64), Failure> {
    let common = &args.common;
    let quorum = writers.first().map_or(Quorum::SINGLE, LedgerWriter::quorum);
    let load = Arc::new(Load::new(writers.len(), args.outstanding));
    let mut completions = JoinSet::new();
    for (index, writer) in writers.iter().enumerate() {
        completions.spawn(complete(load.clone(), index, writer.progress()));
    }
    let sender = Sender {
        load: load.clone(),
        writers,
        payload: vec![b'x'; common.entry_size as usize],
        outstanding_max: u64::from(args.outstanding),
        rate: common.rate,
        stopped,
        sent: 0,
        given_up: 0,
        failures: 0,
    };
    let sender = on_thread("bindery-bench", sender.run())?;
    let mut progress = super::seconds_bar(common);

    sleep(Duration::from_secs(u64::from(common.warmup))).await;
    load.latencies.reset();
    let before = watched.counters();
    let done_before = load.done.load(Ordering::Acquire);
    let begin = Instant::now();
    let mut last = done_before;
    let mut seconds = Vec::new();
    for second in 1..=u64::from(common.seconds) {
        sleep_until(begin + Duration::from_secs(second)).await;
        let done = load.done.load(Ordering::Acquire);
        progress.say(|| format!("{} adds/s", grouped(done - last)));
        seconds.push(Second { ops: done - last, latency: load.latencies.lap() });
        last = done;
        if load.failures.load(Ordering::Acquire) == u64::from(args.ledgers) {
            break;
        }
    }
    let ops = load.done.load(Ordering::Acquire) - done_before;
    let elapsed_s = begin.elapsed().as_secs_f64();
    let used = watched.used(before, elapsed_s);
    let latency = load.latencies.percentiles();
    stop.send_replace(true);
    progress.clear();

    let sender = join(sender).await?;
    let is_drained = timeout(DRAIN_TIMEOUT, async {
        while load.done.load(Ordering::Acquire) + load.failed_adds(&sender) < sender.sent {
            sleep(Duration::from_millis(1)).await;
        }
    });
    let drained = is_drained.await.is_ok();
    let sent = sender.sent;
    let errors = load.errors();
    completions.abort_all();
    if common.keep {
        for writer in sender.writers {
            // A ledger that failed, or did not drain, is left to recovery.
            let _ = timeout(DRAIN_TIMEOUT, writer.close()).await;
        }
    }
    let per_add = |cpu_s: f64| round(cpu_s * 1e6 / ops.max(1) as f64);
    let report = AddReport {
        load: "add",
        label: common.label.clone(),
        ensemble: quorum.ensemble_size(),
        quorum: quorum.write_quorum_size(),
        ack_quorum: quorum.ack_quorum_size(),
        ledgers: args.ledgers,
        throttle: args.outstanding,
        entry_size: common.entry_size,
        protocol: super::report::PROTOCOL,
        digest: super::report::java_name(common.digest),
        rate: common.rate.unwrap_or(0),
        warmup_s: common.warmup,
        seconds: round(elapsed_s),
        ops,
        ops_per_s: round(ops as f64 / elapsed_s),
        mb_per_s: round(ops as f64 / elapsed_s * f64::from(common.entry_size) / 1e6),
        latency,
        failed_ledgers: load.failures.load(Ordering::Acquire),
        errors: errors.values().sum(),
        errors_by_code: errors,
        drained,
        client_cpu_us_per_add: per_add(used.client_cpu_s),
        bookie_cpu_us_per_add: used.bookie_cpu_s.map(per_add),
        used,
    };
    Ok((report, seconds, sent))
}

/// State that the sender and completion tasks share.
struct Load {
    begin: Instant,
    ledgers: Vec<Ledger>,
    /// Confirmed adds of all ledgers.
    done: AtomicU64,
    /// Ledgers whose task has ended.
    failures: AtomicU64,
    /// Told whenever `done` or `failures` moves.
    room: Notify,
    latencies: Latencies,
}

struct Ledger {
    /// Send time of entry n at n modulo the size, in microseconds since `begin` (invariant 1).
    ring: Box<[AtomicU64]>,
    /// Entries enqueued, or being enqueued. Only the sender writes it.
    pushed: AtomicU64,
    /// Entries confirmed and counted. Only the task writes it.
    completed: AtomicU64,
    is_failed: AtomicBool,
    why: std::sync::OnceLock<&'static str>,
}

impl Load {
    fn new(ledgers: usize, outstanding: u32) -> Load {
        let slots = outstanding.next_power_of_two();
        let ledger = |_| Ledger {
            ring: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            pushed: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            is_failed: AtomicBool::new(false),
            why: std::sync::OnceLock::new(),
        };
        Load {
            begin: Instant::now(),
            ledgers: (0..ledgers).map(ledger).collect(),
            done: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            room: Notify::new(),
            latencies: Latencies::new(),
        }
    }

    fn now_us(&self) -> u64 {
        self.begin.elapsed().as_micros() as u64
    }

    /// Adds of failed ledgers, given up by the sender or not.
    fn failed_adds(&self, sender: &Sender) -> u64 {
        let ungiven = self.ledgers.iter().filter(|ledger| ledger.is_failed.load(Ordering::Acquire));
        let all: u64 = ungiven.map(Ledger::unconfirmed).sum();
        all.max(sender.given_up)
    }

    fn errors(&self) -> BTreeMap<&'static str, u64> {
        let mut errors = BTreeMap::new();
        for ledger in &self.ledgers {
            if let (true, Some(why)) = (ledger.is_failed.load(Ordering::Acquire), ledger.why.get()) {
                *errors.entry(*why).or_default() += ledger.unconfirmed();
            }
        }
        errors
    }
}

impl Ledger {
    fn slot(&self, entry: u64) -> &AtomicU64 {
        &self.ring[entry as usize & (self.ring.len() - 1)]
    }

    fn unconfirmed(&self) -> u64 {
        self.pushed.load(Ordering::Acquire) - self.completed.load(Ordering::Acquire)
    }
}

/// The task of one ledger: turns confirmed entries into latencies and room.
async fn complete(load: Arc<Load>, index: usize, mut confirmed: ProgressWatch) {
    let ledger = &load.ledgers[index];
    let mut next = 0;
    // The writer goes at the end of the run.
    while confirmed.changed().await.is_ok() {
        let (end, failure) = {
            let progress = confirmed.borrow_and_update();
            ((EntryId::to_wire(progress.confirmed) + 1) as u64, progress.failure.clone())
        };
        if end > next {
            let now_us = load.now_us();
            let sent_us = (next..end).map(|entry| ledger.slot(entry).load(Ordering::Acquire));
            load.latencies.record(sent_us.map(|sent_us| now_us.saturating_sub(sent_us)));
            ledger.completed.store(end, Ordering::Release);
            load.done.fetch_add(end - next, Ordering::AcqRel);
            load.room.notify_one();
            next = end;
        }
        if let Some(failure) = failure {
            let why = match &failure {
                AppendError::Stopped(stopped) => why_stopped(&stopped.why),
                AppendError::TooLarge { .. } => "too_large",
                _ => "other",
            };
            let _ = ledger.why.set(why);
            ledger.is_failed.store(true, Ordering::Release);
            load.failures.fetch_add(1, Ordering::AcqRel);
            load.room.notify_one();
            return;
        }
    }
}

struct Sender {
    load: Arc<Load>,
    writers: Vec<LedgerWriter>,
    payload: Vec<u8>,
    outstanding_max: u64,
    rate: Option<u32>,
    stopped: watch::Receiver<bool>,
    sent: u64,
    /// Adds of failed ledgers, no longer outstanding.
    given_up: u64,
    /// Failures seen.
    failures: u64,
}

impl Sender {
    /// Sends until it is told to stop, or no ledger is left; returns itself with what it counted.
    async fn run(mut self) -> Sender {
        // The same choices in every run, as the Java driver makes them.
        let random = SeededRandom::new(42);
        let mut usable: Vec<usize> = (0..self.writers.len()).collect();
        loop {
            if self.load.failures.load(Ordering::Acquire) != self.failures {
                self.give_up(&mut usable);
            }
            if usable.is_empty() || *self.stopped.borrow() {
                return self;
            }
            let due = match self.rate {
                None => None,
                Some(rate) => match self.wait_until_due(rate) {
                    Some(due) => Some(due),
                    None => continue,
                },
            };
            if self.sent - self.given_up - self.load.done.load(Ordering::Acquire) >= self.outstanding_max {
                // Woken by each completion; late only when all is lost.
                let _ = timeout(LOOK_INTERVAL, self.load.room.notified()).await;
                continue;
            }
            let at = random.below(usable.len() as u64) as usize;
            let ledger = &self.load.ledgers[usable[at]];
            let entry = ledger.pushed.load(Ordering::Relaxed);
            let from_us = match due {
                Some(due) => due.duration_since(self.load.begin).as_micros() as u64,
                None => self.load.now_us(),
            };
            ledger.slot(entry).store(from_us, Ordering::Release);
            ledger.pushed.store(entry + 1, Ordering::Release);
            if self.writers[usable[at]].enqueue(&self.payload).await.is_err() {
                // Not sent; the ledger's task finds the failure and counts what was.
                ledger.pushed.store(entry, Ordering::Release);
                usable.swap_remove(at);
                continue;
            }
            self.sent += 1;
        }
    }

    /// When the next add is due, or `None` to look around first. Sleeps on this thread: the runtime's timer is coarser.
    fn wait_until_due(&self, rate: u32) -> Option<Instant> {
        let due = self.load.begin
            + Duration::from_nanos((u128::from(self.sent) * 1_000_000_000 / u128::from(rate)) as u64);
        let wait = due.saturating_duration_since(Instant::now());
        std::thread::sleep(wait.min(LOOK_INTERVAL));
        (wait <= LOOK_INTERVAL).then_some(due)
    }

    /// Invariant 2.
    fn give_up(&mut self, usable: &mut Vec<usize>) {
        self.failures = self.load.failures.load(Ordering::Acquire);
        usable.retain(|index| !self.load.ledgers[*index].is_failed.load(Ordering::Acquire));
        let failed = self.load.ledgers.iter().filter(|ledger| ledger.is_failed.load(Ordering::Acquire));
        self.given_up = failed.map(Ledger::unconfirmed).sum();
    }
}
