//! `bindery bench read`: readers that each make one call at a time, on ledgers that are filled first.
//!
//! # Limits     a reader is a thread with one call; filling: the client's memory limit

use super::args::{BenchReadArgs, ReadMode};
use super::latency::{Latencies, round};
use super::proc::Watched;
use super::report::{ReadPhase, ReadReport, java_name, why_unread};
use super::{Made, PASSWORD, join, on_thread};
use crate::exit::Failure;
use crate::ledger::access::{open_failure, stopped_code};
use crate::progress::{Progress, Unit};
use bindery_client::{AppendError, Client, CloseError, EntryId, LedgerId, LedgerReader, OpenMode, ReadError};
use bindery_io::SeededRandom;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

/// A reader looks so often whether it is to stop.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Memory is sampled so often, as the Java driver does.
const RSS_INTERVAL: Duration = Duration::from_millis(50);

/// Runs the workload and reports.
pub async fn run(client: Client, args: BenchReadArgs) -> Result<(), Failure> {
    let watched = Watched::new(&args.common.bookie_pids)?;
    let (stop, stopped) = watch::channel(false);
    let mut made = Made::new(&client, &args.common);
    let report = made
        .run_and_delete(&stop, async |made: &mut Made| {
            let (ids, password) = match args.ledger {
                Some(id) => (vec![id], args.password.password.as_bytes()),
                None => (fill(made, &args).await?, PASSWORD),
            };
            sleep(Duration::from_secs(u64::from(args.settle))).await;
            let mut ledgers = Vec::with_capacity(ids.len());
            for id in ids {
                let reader = client.open_ledger(id, password, OpenMode::ReadOnly).await;
                ledgers.push(reader.map_err(|error| open_failure(&error))?);
            }
            measure(ledgers, &args, &watched, &stop, stopped).await
        })
        .await?;
    report.print(args.common.json)
}

async fn fill(made: &mut Made, args: &BenchReadArgs) -> Result<Vec<LedgerId>, Failure> {
    let writers = made.create(&args.common, args.fill_ledgers).await?;
    let payload = vec![b'r'; args.common.entry_size as usize];
    let total = u64::from(args.fill_ledgers) * u64::from(args.entries);
    let mut progress = Progress::start(Unit::Entries, Some(total), false);
    let append_failure = |error: AppendError| match &error {
        AppendError::Stopped(stopped) => Failure::with_code(stopped_code(stopped), error),
        AppendError::TooLarge { .. } => Failure::usage(format!("--entry-size: {error}")),
    };
    let mut done = 0;
    for _ in 0..args.entries {
        for writer in &writers {
            writer.enqueue(&payload).await.map_err(append_failure)?;
        }
        done += u64::from(args.fill_ledgers);
        progress.set(done);
    }
    let mut ids = Vec::with_capacity(writers.len());
    for writer in writers {
        ids.push(writer.id());
        writer.close().await.map_err(|error| match &error {
            CloseError::Stopped(stopped) => Failure::with_code(stopped_code(stopped), error),
            CloseError::ClosedElsewhere { .. } | CloseError::NotForced { .. } => Failure::new(error),
        })?;
    }
    Ok(ids)
}

async fn measure(
    ledgers: Vec<LedgerReader>,
    args: &BenchReadArgs,
    watched: &Watched,
    stop: &watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
) -> Result<ReadReport, Failure> {
    let common = &args.common;
    let counts: Vec<u64> = ledgers.iter().map(entry_count).collect();
    let entries = counts.iter().copied().min().unwrap_or(0);
    if entries == 0 {
        return Err(Failure::usage("there is nothing to read: the ledger has no acknowledged entries"));
    }
    let batch = u64::from(args.batch).min(entries);
    let ledger_count = ledgers.len();
    let load = Arc::new(Load {
        begin: Instant::now(),
        ledgers,
        entries,
        batch,
        latencies: Latencies::new(),
        calls: AtomicU64::new(0),
        entries_read: AtomicU64::new(0),
        bytes_read: AtomicU64::new(0),
        errors: Mutex::new(BTreeMap::new()),
    });
    let mut readers = Vec::with_capacity(args.readers as usize);
    for index in 0..args.readers {
        let reader = Reader {
            load: load.clone(),
            random: (args.mode == ReadMode::Random).then(|| SeededRandom::new(u64::from(index))),
            ledger: index as usize % ledger_count,
            next: 0,
            pace: common.rate.map(|rate| Pace { rate, readers: args.readers, turn: u64::from(index) }),
            stopped: stopped.clone(),
        };
        readers.push(on_thread(&format!("bindery-read-{index}"), reader.run())?);
    }
    let mut progress = Progress::start(Unit::Seconds, Some(u64::from(common.warmup + common.seconds)), false);
    sleep(Duration::from_secs(u64::from(common.warmup))).await;

    load.latencies.reset();
    load.lock_errors().clear();
    let before = watched.counters();
    let counted = load.counted();
    let begin = Instant::now();
    let mut each_second = Vec::with_capacity(common.seconds as usize);
    let mut last = counted.0;
    let mut rss_peak_mib: f64 = 0.0;
    for second in 1..=u64::from(common.seconds) {
        let until = begin + Duration::from_secs(second);
        while Instant::now() < until {
            sleep_until(until.min(Instant::now() + RSS_INTERVAL)).await;
            rss_peak_mib = watched.rss_mib().max(rss_peak_mib);
        }
        let calls = load.calls.load(Ordering::Acquire);
        each_second.push(calls - last);
        progress.say(|| format!("{} calls/s", calls - last));
        progress.set(u64::from(common.warmup) + second);
        last = calls;
    }
    let elapsed_s = begin.elapsed().as_secs_f64();
    let (calls, entries_read, bytes) = load.counted();
    let (calls, entries_read, bytes) = (calls - counted.0, entries_read - counted.1, bytes - counted.2);
    let used = watched.used(before, elapsed_s);
    let latency = load.latencies.percentiles();
    let errors = load.lock_errors().clone();
    stop.send_replace(true);
    progress.clear();
    for reader in readers {
        join(reader).await?;
    }
    let per_call = |cpu_s: f64| round(cpu_s * 1e6 / calls.max(1) as f64);
    Ok(ReadReport {
        load: "read",
        label: common.label.clone(),
        protocol: super::report::PROTOCOL,
        digest: args.ledger.is_none().then(|| java_name(common.digest)),
        ledgers: ledger_count,
        entries,
        entry_size: args.ledger.is_none().then_some(common.entry_size),
        readers: args.readers,
        clients: 1,
        mode: if args.mode == ReadMode::Random { "random" } else { "seq" },
        batch: args.batch,
        rate: common.rate.unwrap_or(0),
        warmup_s: common.warmup,
        during: ReadPhase {
            seconds: round(elapsed_s),
            calls,
            calls_per_s: round(calls as f64 / elapsed_s),
            entries_per_s: round(entries_read as f64 / elapsed_s),
            mb_per_s: round(bytes as f64 / elapsed_s / 1e6),
            latency,
            seconds_without_a_read: each_second.iter().filter(|calls| **calls == 0).count(),
            errors: errors.values().sum(),
            errors_by_code: errors,
            client_cpu_us_per_call: per_call(used.client_cpu_s),
            bookie_cpu_us_per_call: used.bookie_cpu_s.map(per_call),
            bookie_rss_peak_mib: used.bookie_rss_mib.map(|_| round(rss_peak_mib)),
            used: used.clone(),
        },
        reads_each_second: each_second,
        bookie_rss_mib: used.bookie_rss_mib,
        bookie_hwm_mib: used.bookie_hwm_mib,
    })
}

fn entry_count(reader: &LedgerReader) -> u64 {
    (EntryId::to_wire(reader.last_add_confirmed()) + 1) as u64
}

/// What all readers share.
struct Load {
    begin: Instant,
    ledgers: Vec<LedgerReader>,
    /// Entries of the shortest ledger, above 0.
    entries: u64,
    /// Entries of one call, at most `entries`.
    batch: u64,
    latencies: Latencies,
    calls: AtomicU64,
    entries_read: AtomicU64,
    bytes_read: AtomicU64,
    errors: Mutex<BTreeMap<&'static str, u64>>,
}

impl Load {
    fn counted(&self) -> (u64, u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        (load(&self.calls), load(&self.entries_read), load(&self.bytes_read))
    }

    fn lock_errors(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.errors.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Calls of all readers, spread evenly over time.
struct Pace {
    rate: u32,
    readers: u32,
    /// Of the next call of this reader, among those of all.
    turn: u64,
}

struct Reader {
    load: Arc<Load>,
    random: Option<SeededRandom>,
    ledger: usize,
    next: u64,
    pace: Option<Pace>,
    stopped: watch::Receiver<bool>,
}

impl Reader {
    async fn run(mut self) {
        while !*self.stopped.borrow() {
            let Some(from) = self.wait_for_turn() else { continue };
            let (ledger, first) = self.choose();
            let load = &self.load;
            let outcome = read(&load.ledgers[ledger], first, load.batch).await;
            // An error counts in the latency, too: so long was the caller kept waiting.
            load.latencies.record(std::iter::once(from.elapsed().as_micros() as u64));
            match outcome {
                Ok((entries, bytes)) => {
                    load.entries_read.fetch_add(entries, Ordering::AcqRel);
                    load.bytes_read.fetch_add(bytes, Ordering::AcqRel);
                    load.calls.fetch_add(1, Ordering::AcqRel);
                }
                Err(error) => *load.lock_errors().entry(why_unread(&error)).or_default() += 1,
            }
        }
    }

    /// From when the latency of the next call counts; `None` to look around first. Sleeps on this thread.
    fn wait_for_turn(&mut self) -> Option<Instant> {
        let Some(pace) = &mut self.pace else { return Some(Instant::now()) };
        let due_ns = u128::from(pace.turn) * 1_000_000_000 / u128::from(pace.rate);
        let due = self.load.begin + Duration::from_nanos(due_ns as u64);
        let wait = due.saturating_duration_since(Instant::now());
        std::thread::sleep(wait.min(LOOK_INTERVAL));
        if wait > LOOK_INTERVAL {
            return None;
        }
        pace.turn += u64::from(pace.readers);
        Some(due)
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

/// Entries and bytes of one call.
async fn read(ledger: &LedgerReader, first: u64, count: u64) -> Result<(u64, u64), ReadError> {
    let id = |raw: u64| EntryId::new(raw as i64).expect("below a number of entries");
    if count == 1 {
        return Ok((1, ledger.read_entry(id(first)).await?.payload.len() as u64));
    }
    let mut stream = ledger.read(id(first), id(first + count - 1));
    let (mut entries, mut bytes) = (0, 0);
    while let Some(entry) = stream.next().await {
        bytes += entry?.payload.len() as u64;
        entries += 1;
    }
    Ok((entries, bytes))
}
