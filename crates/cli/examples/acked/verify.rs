//! V: no acknowledged entry missing or changed, every ledger closes to one value, no wrong negative.

use super::Common;
use super::log::{self, Log, Promised, hash, payload};
use bindery_client::{Client, EntryId, LedgerId, LedgerReader, OpenError, OpenMode, ReadError};
use std::fmt::Debug;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How strict it is.
#[derive(clap::Args, Clone)]
pub struct VerifyArgs {
    #[command(flatten)]
    common: Common,
    /// Reads without recovery, as far as ledgers go, and lets them be open
    #[arg(long)]
    read_only: bool,
    /// An entry or ledger that no bookie can say anything about is counted, not a fault
    #[arg(long)]
    allow_unreadable: bool,
    /// How long to try again what could not be answered, in seconds
    #[arg(long, default_value_t = 0.0)]
    patience: f64,
    /// Looks at this many ledgers, the newest, instead of all
    #[arg(long, default_value_t = usize::MAX)]
    ledgers: usize,
}

#[derive(Default)]
struct Found {
    acknowledged: u64,
    read: u64,
    missing: u64,
    changed: u64,
    unreadable: u64,
    ends: u64,
    faults: Vec<String>,
}

/// Runs it; false when a promise is broken.
pub async fn run(args: VerifyArgs) -> bool {
    let (mut ledgers, faults) = log::read(&args.common.log);
    while ledgers.len() > args.ledgers {
        ledgers.pop_first();
    }
    let mut found = Found { ends: faults.len() as u64, faults, ..Found::default() };
    let (client, second) = (args.common.client().await, args.common.client().await);
    let log = Log::open(&args.common.log);
    let until = Instant::now() + Duration::from_secs_f64(args.patience);
    for (&id, promised) in &ledgers {
        found.acknowledged += promised.entries.len() as u64;
        let ledger = LedgerId::new(id).unwrap();
        if args.read_only {
            read_only(&args, &client, ledger, promised, until, &mut found).await;
        } else {
            recover(&args, [&client, &second], &log, ledger, promised, until, &mut found).await;
        }
    }
    for fault in found.faults.iter().take(20) {
        println!("FAULT {fault}");
    }
    let Found { acknowledged, read, missing, changed, unreadable, ends, faults } = found;
    println!(
        "verify: ledgers={} acknowledged={acknowledged} read={read} missing={missing} changed={changed} \
         unreadable={unreadable} ends={ends} faults={}",
        ledgers.len(),
        faults.len()
    );
    faults.is_empty()
}

/// Opens until it works, the ledger cannot be opened for good, or patience is over.
async fn open(
    client: &Client,
    ledger: LedgerId,
    how: OpenMode,
    until: Instant,
) -> Result<LedgerReader, OpenError> {
    loop {
        match client.open_ledger(ledger, b"", how).await {
            Err(error) if Instant::now() < until && !matches!(error, OpenError::NotFound(_)) => {
                sleep(Duration::from_millis(100)).await;
            }
            done => return done,
        }
    }
}

fn unreadable(args: &VerifyArgs, found: &mut Found, entries: u64, why: &dyn Debug) {
    found.unreadable += entries;
    if !args.allow_unreadable {
        found.faults.push(format!("cannot be read: {why:?}"));
    }
}

/// Each entry up to `last`, whatever happens to the one before.
async fn compare(
    args: &VerifyArgs,
    reader: &LedgerReader,
    promised: &Promised,
    last: i64,
    until: Instant,
    found: &mut Found,
) {
    let ledger = reader.id();
    let mut next = 0;
    while next <= last {
        let (first, end) = (EntryId::new(next).unwrap(), EntryId::new(last).unwrap());
        let mut stream =
            if args.read_only { reader.read_unconfirmed(first, end) } else { reader.read(first..=end) };
        while let Some(entry) = stream.next().await {
            match entry {
                Ok(entry) => {
                    found.read += 1;
                    assert_eq!(entry.id.get(), next);
                    let is_promised =
                        promised.entries.get(&next).is_none_or(|&hashed| hashed == hash(&entry.payload));
                    if !is_promised || entry.payload[..] != payload(ledger.get(), next)[..] {
                        found.changed += 1;
                        found.faults.push(format!("ledger {ledger} entry {next} has other bytes"));
                    }
                }
                // The same entry again: a bookie may still be coming.
                Err(ReadError::Unavailable { .. }) if Instant::now() < until => {
                    sleep(Duration::from_millis(100)).await;
                    break;
                }
                Err(error @ (ReadError::NoEntry { .. } | ReadError::BeyondEnd { .. })) => {
                    // In a closed ledger every entry was promised, by its end.
                    if promised.entries.contains_key(&next) || !args.read_only {
                        found.missing += 1;
                        found.faults.push(format!("ledger {ledger} entry {next} is missing: {error}"));
                    }
                }
                Err(error) => unreadable(args, found, 1, &error),
            }
            next += 1;
        }
    }
}

async fn read_only(
    args: &VerifyArgs,
    client: &Client,
    ledger: LedgerId,
    promised: &Promised,
    until: Instant,
    found: &mut Found,
) {
    let Some((&last, _)) = promised.entries.last_key_value() else { return };
    match open(client, ledger, OpenMode::ReadOnly, until).await {
        Ok(reader) => compare(args, &reader, promised, last, until, found).await,
        Err(error @ OpenError::NotFound(_)) => found.faults.push(format!("{error}")),
        Err(error) => unreadable(args, found, promised.entries.len() as u64, &error),
    }
}

async fn recover(
    args: &VerifyArgs,
    clients: [&Client; 2],
    log: &Log,
    ledger: LedgerId,
    promised: &Promised,
    until: Instant,
    found: &mut Found,
) {
    let reader = match open(clients[0], ledger, OpenMode::Recover, until).await {
        Ok(reader) => reader,
        Err(error @ OpenError::NotFound(_)) => {
            found.missing += promised.entries.len() as u64;
            return found.faults.push(format!("{error}"));
        }
        Err(error) => return unreadable(args, found, promised.entries.len() as u64, &error),
    };
    let end = EntryId::to_wire(reader.last_add_confirmed());
    if promised.closed.is_some_and(|before| before != end) {
        found.ends += 1;
        found.faults.push(format!("ledger {ledger} ended with {:?}, now with {end}", promised.closed));
    }
    if promised.closed.is_none() {
        log.add(&format!("C {ledger} {end}\n"));
    }
    let beyond = promised.entries.range(end + 1..).count() as u64;
    if beyond > 0 {
        found.missing += beyond;
        found
            .faults
            .push(format!("ledger {ledger} ends with {end}: {beyond} acknowledged entries are behind it"));
    }
    compare(args, &reader, promised, end, until, found).await;
    match open(clients[1], ledger, OpenMode::Recover, until).await {
        Ok(reader) if EntryId::to_wire(reader.last_add_confirmed()) == end => {}
        Ok(reader) => {
            found.ends += 1;
            let other = reader.last_add_confirmed();
            found.faults.push(format!("ledger {ledger} ends with {end}, for another client with {other:?}"));
        }
        Err(error) => unreadable(args, found, 0, &error),
    }
}
