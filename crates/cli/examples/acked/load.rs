//! Writers that never do the same thing twice: ledgers are closed, left behind, fenced in the middle, deleted.

use super::Common;
use super::log::{Log, hash, payload};
use bindery_client::{Client, CreateOptions, EntryId, LedgerId, LedgerWriter, OpenMode, Quorum, ReadError};
use bindery_io::{Random, SeededRandom, SystemRandom};
use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How the load is made.
#[derive(clap::Args, Clone)]
pub struct LoadArgs {
    #[command(flatten)]
    common: Common,
    /// Bookies, write quorum, ack quorum
    #[arg(long, default_value = "1/1/1")]
    quorum: String,
    /// Writers at once
    #[arg(long, default_value_t = 4)]
    writers: u32,
    /// How long
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Ends early when creating ledgers has failed for this long
    #[arg(long, default_value_t = 3.0)]
    give_up_seconds: f64,
    /// Ends once so many entries are acknowledged
    #[arg(long, default_value_t = u64::MAX)]
    entries: u64,
    /// Entries of a ledger, at most
    #[arg(long, default_value_t = 400)]
    ledger_entries: u64,
    /// How many of ten ledgers are deleted after they were closed
    #[arg(long, default_value_t = 1)]
    deletes: u64,
    /// Leaves all ledgers open, none fenced, none deleted
    #[arg(long)]
    leave_open: bool,
    /// Seed of what is done, not of what is in it
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

struct Load {
    args: LoadArgs,
    client: Client,
    log: Log,
    rng: SeededRandom,
    quorum: Quorum,
    until: Instant,
    acknowledged: Cell<u64>,
    ledgers: Cell<u64>,
    failures: Cell<u64>,
    /// When anything worked last.
    worked: Cell<Instant>,
    /// Ledgers with something acknowledged, for the reader.
    known: RefCell<Vec<(LedgerId, EntryId)>>,
    read: Cell<u64>,
    faults: RefCell<Vec<String>>,
}

fn count(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get() + more);
}

/// Runs it; false when a read during it was wrong.
pub async fn run(args: LoadArgs) -> bool {
    let parts: Vec<usize> = args.quorum.split('/').map(|part| part.parse().unwrap()).collect();
    let seed = if args.seed == 0 { SystemRandom.next_u64() } else { args.seed };
    let load = Rc::new(Load {
        client: args.common.client().await,
        log: Log::open(&args.common.log),
        rng: SeededRandom::new(seed),
        quorum: Quorum::new(parts[0], parts[1], parts[2]).unwrap(),
        until: Instant::now() + Duration::from_secs_f64(args.seconds),
        acknowledged: Cell::new(0),
        ledgers: Cell::new(0),
        failures: Cell::new(0),
        worked: Cell::new(Instant::now()),
        known: RefCell::default(),
        read: Cell::new(0),
        faults: RefCell::default(),
        args,
    });
    let local = tokio::task::LocalSet::new();
    for _ in 0..load.args.writers {
        local.spawn_local(write(load.clone()));
    }
    local.spawn_local(read(load.clone()));
    local.await;
    for fault in load.faults.borrow().iter() {
        println!("FAULT {fault}");
    }
    let (faults, worked) = (load.faults.borrow().len(), load.worked.get().elapsed().as_millis());
    println!(
        "load: acknowledged={} ledgers={} failures={} read={} faults={faults} last_worked_ms={worked} seed={seed}",
        load.acknowledged.get(),
        load.ledgers.get(),
        load.failures.get(),
        load.read.get(),
    );
    faults == 0
}

impl Load {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
            || self.acknowledged.get() >= self.args.entries
            || self.worked.get().elapsed().as_secs_f64() > self.args.give_up_seconds
    }

    /// Logs what was confirmed since `from`; the next one.
    fn confirm(&self, ledger: LedgerId, from: i64, confirmed: Option<EntryId>) -> i64 {
        let Some(confirmed) = confirmed else { return from };
        let mut lines = String::new();
        for entry in from..=confirmed.get() {
            let hash = hash(&payload(ledger.get(), entry));
            writeln!(lines, "A {ledger} {entry} {hash:016x}").unwrap();
        }
        self.log.add(&lines);
        let more = (confirmed.get() + 1 - from).max(0);
        count(&self.acknowledged, more as u64);
        if more > 0 {
            self.worked.set(Instant::now());
            let mut known = self.known.borrow_mut();
            if known.len() < 1000 {
                known.push((ledger, confirmed));
            } else {
                let place = self.rng.below(1000) as usize;
                known[place] = (ledger, confirmed);
            }
        }
        from.max(confirmed.get() + 1)
    }

    /// Writes one ledger; the writer, when all of it was confirmed.
    async fn fill(&self, writer: LedgerWriter, fence_at: Option<u64>) -> Option<LedgerWriter> {
        let (ledger, progress) = (writer.id(), writer.progress());
        let entries = 1 + self.rng.below(self.args.ledger_entries);
        let (mut logged, mut fencing) = (0, None);
        let mut is_ok = true;
        for entry in 0..entries {
            if Some(entry) == fence_at {
                let client = self.client.clone();
                fencing =
                    Some(tokio::spawn(
                        async move { client.open_ledger(ledger, b"", OpenMode::Recover).await },
                    ));
            }
            let bytes = payload(ledger.get(), entry as i64);
            match timeout(Duration::from_secs(20), writer.enqueue(&bytes)).await {
                Ok(Ok(id)) => assert_eq!(id.get(), entry as i64),
                Ok(Err(_)) | Err(_) => {
                    is_ok = false;
                    break;
                }
            }
            // Groups of all sizes, and time for others.
            if self.rng.below(24) == 0 {
                sleep(Duration::from_micros(self.rng.below(6000))).await;
                let confirmed = progress.borrow().confirmed;
                logged = self.confirm(ledger, logged, confirmed);
                if self.is_over() {
                    break;
                }
            }
        }
        is_ok &= matches!(timeout(Duration::from_secs(20), writer.drain()).await, Ok(Ok(_)));
        let confirmed = progress.borrow().confirmed;
        self.confirm(ledger, logged, confirmed);
        if let Some(fencing) = fencing {
            match timeout(Duration::from_secs(20), fencing).await {
                Ok(Ok(Ok(reader))) => {
                    let end = EntryId::to_wire(reader.last_add_confirmed());
                    self.log.add(&format!("C {ledger} {end}\n"));
                }
                _ => count(&self.failures, 1),
            }
            return None;
        }
        if !is_ok {
            count(&self.failures, 1);
        }
        is_ok.then_some(writer)
    }
}

async fn write(load: Rc<Load>) {
    while !load.is_over() {
        let creating = load.client.create_ledger(CreateOptions::new(load.quorum));
        let Ok(Ok(writer)) = timeout(Duration::from_secs(5), creating).await else {
            count(&load.failures, 1);
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        count(&load.ledgers, 1);
        let ledger = writer.id();
        let fate = if load.args.leave_open { 9 } else { load.rng.below(10) };
        let fence_at = (fate == 0).then(|| load.rng.below(load.args.ledger_entries / 2 + 1));
        let Some(writer) = load.fill(writer, fence_at).await else { continue };
        if fate >= 6 {
            continue; // left to recovery
        }
        let Ok(Ok(closed)) = timeout(Duration::from_secs(20), writer.close()).await else {
            count(&load.failures, 1);
            continue;
        };
        load.log.add(&format!("C {ledger} {}\n", EntryId::to_wire(closed.last_entry)));
        if (1..=load.args.deletes).contains(&fate) {
            load.log.add(&format!("D {ledger}\n"));
            load.known.borrow_mut().retain(|(id, _)| *id != ledger);
            let _ = timeout(Duration::from_secs(5), load.client.delete_ledger(ledger)).await;
        }
    }
}

/// Reads acknowledged entries while all this goes on: an error is no fault, other bytes and a negative answer are.
async fn read(load: Rc<Load>) {
    while !load.is_over() {
        sleep(Duration::from_millis(3)).await;
        let (ledger, last) = {
            let known = load.known.borrow();
            if known.is_empty() {
                continue;
            }
            known[load.rng.below(known.len() as u64) as usize]
        };
        let entry = load.rng.below(last.get() as u64 + 1) as i64;
        let opening = load.client.open_ledger(ledger, b"", OpenMode::ReadOnly);
        let Ok(Ok(reader)) = timeout(Duration::from_secs(5), opening).await else { continue };
        let Some(id) = EntryId::new(entry) else { continue };
        let mut stream = reader.read_unconfirmed(id, id);
        let fault = match timeout(Duration::from_secs(5), stream.next()).await {
            Ok(Some(Ok(found))) if found.payload[..] == payload(ledger.get(), entry)[..] => {
                count(&load.read, 1);
                continue;
            }
            Ok(Some(Ok(_))) => "other bytes".to_owned(),
            Ok(Some(Err(error @ (ReadError::NoEntry { .. } | ReadError::BeyondEnd { .. })))) => {
                error.to_string()
            }
            _ => continue,
        };
        // It may have been deleted in between.
        if load.known.borrow().iter().any(|(id, _)| *id == ledger) {
            load.faults.borrow_mut().push(format!("ledger {ledger} entry {entry} was acknowledged: {fault}"));
        }
    }
}
