//! `bindery bench read`: readers that each make one call at a time, on ledgers that are filled first.
//!
//! # Limits     filling: the client's memory limit; of readers, see `readers`

use super::args::{BenchReadArgs, ReadMode};
use super::call_log::CallLog;
use super::drawing::{Second, Target};
use super::latency::round;
use super::proc::Watched;
use super::readers::{Load, start_readers};
use super::report::{ReadPhase, ReadReport, java_name};
use super::{Made, PASSWORD, join, space};
use crate::exit::Failure;
use crate::figure::grouped;
use crate::ledger::access::{open_failure, stopped_code};
use crate::progress::{Progress, Unit};
use bindery_client::{
    AppendError, Client, CloseError, EntryId, LedgerId, LedgerReader, LedgerWriter, OpenMode, Quorum,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

/// Memory is sampled so often, as the Java driver does.
const RSS_INTERVAL: Duration = Duration::from_millis(50);

/// Runs the workload and reports.
pub async fn run(client: Client, args: BenchReadArgs, plot: Option<Target>) -> Result<(), Failure> {
    let watched = Watched::new(&args.common.bookie_pids)?;
    let (stop, stopped) = watch::channel(false);
    let mut made = Made::new(&client, &args.common);
    let (report, seconds) = made
        .run_and_delete(&stop, async |made: &mut Made| {
            let (ids, password) = match args.ledger {
                Some(id) => (vec![id], args.password.password.as_bytes()),
                None => (fill(made, &args).await?, PASSWORD),
            };
            let settles = Progress::start("settling", Unit::Seconds, Some(u64::from(args.settle)), false);
            sleep(Duration::from_secs(u64::from(args.settle))).await;
            drop(settles);
            let mut ledgers = Vec::with_capacity(ids.len());
            for id in ids {
                let reader = client.open_ledger(id, password, OpenMode::ReadOnly).await;
                ledgers.push(reader.map_err(|error| open_failure(&error))?);
            }
            let log = args.log.then(|| CallLog::start(&client));
            measure(ledgers, &args, &watched, log, &stop, stopped).await
        })
        .await?;
    space::leave(&client, &args.common, made.written_bytes).await;
    let said = report.print(args.common.json);
    if let Some(plot) = plot {
        plot.draw(&report.plot(&seconds))?;
    }
    said
}

async fn fill(made: &mut Made, args: &BenchReadArgs) -> Result<Vec<LedgerId>, Failure> {
    let total = u64::from(args.fill_ledgers) * u64::from(args.entries);
    let writers = made.create(&args.common, args.fill_ledgers, Some(total)).await?;
    let quorum = writers.first().map_or(Quorum::SINGLE, LedgerWriter::quorum);
    made.written_bytes = space::bytes_of(total, &args.common, quorum);
    let payload = vec![b'r'; args.common.entry_size as usize];
    let progress = Progress::start("filling", Unit::Entries, Some(total), false);
    let append_failure = |error: AppendError| match &error {
        AppendError::Stopped(stopped) => Failure::with_code(stopped_code(stopped), error),
        AppendError::TooLarge { .. } => Failure::usage(format!("--entry-size: {error}")),
        _ => Failure::new(error),
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
            CloseError::Stopped(stopped) | CloseError::GivenBack(stopped) => {
                Failure::with_code(stopped_code(stopped), error)
            }
            _ => Failure::new(error),
        })?;
    }
    Ok(ids)
}

async fn measure(
    ledgers: Vec<LedgerReader>,
    args: &BenchReadArgs,
    watched: &Watched,
    log: Option<CallLog>,
    stop: &watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
) -> Result<(ReadReport, Vec<Second>), Failure> {
    let common = &args.common;
    let counts: Vec<u64> = ledgers.iter().map(entry_count).collect();
    let entries = counts.iter().copied().min().unwrap_or(0);
    if entries == 0 {
        return Err(Failure::usage("there is nothing to read: the ledger has no acknowledged entries"));
    }
    let batch = u64::from(args.batch).min(entries);
    let ledger_count = ledgers.len();
    let load = Arc::new(Load::new(ledgers, entries, batch, log));
    let readers = start_readers(&load, args, &stopped)?;
    let mut progress = super::seconds_bar(common);
    sleep(Duration::from_secs(u64::from(common.warmup))).await;

    load.latencies.reset();
    load.lock_errors().clear();
    let before = watched.counters();
    let counted = load.counted();
    let begin = Instant::now();
    let mut seconds = Vec::new();
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
        progress.say(|| format!("{} calls/s", grouped(calls - last)));
        seconds.push(Second { ops: calls - last, latency: load.latencies.lap() });
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
    if let Some(log) = &load.log {
        log.print().await?;
    }
    let per_call = |cpu_s: f64| round(cpu_s * 1e6 / calls.max(1) as f64);
    let report = ReadReport {
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
    };
    Ok((report, seconds))
}

fn entry_count(reader: &LedgerReader) -> u64 {
    (EntryId::to_wire(reader.last_add_confirmed()) + 1) as u64
}
