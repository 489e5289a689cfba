//! Measures the catalogue: how long it takes to build one, what a commit costs, how long an opening and a lookup take, in how
//! much memory. Decision 0026 has the figures.
//!
//! ```text
//! cargo run --release -p bindery-tiering --example catalogue -- build file:///empty/directory 10000000
//! cargo run --release -p bindery-tiering --example catalogue -- read file:///the/same 10000000
//! ```

use std::sync::Arc;

use bindery_io::{Clock, Random, SeededRandom, SystemClock};
use bindery_tiering::catalogue::{Catalogue, CatalogueOptions, Change, NewExtent, NewObject, OpenMode};
use bindery_tiering::store::{self, StoreOptions};
use bindery_tiering::{ClusterId, ObjectId};
use bindery_types::tier::ObjectRef;
use bindery_types::{EntryId, LedgerId};

/// Extents of one commit, each of another ledger.
const EXTENTS: u64 = 1000;
/// A hundred extents a ledger.
const EXTENTS_OF_LEDGER: u64 = 100;
const ENTRIES: i64 = 500;
const LOOKUPS: usize = 5000;
const CLUSTER: ClusterId = ClusterId::from_bytes([7; 16]);

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [phase, url, extents] = arguments.as_slice() else {
        return Err("usage: catalogue build|read URL EXTENTS".into());
    };
    let extents: u64 = extents.parse()?;
    let store = store::open(&url.parse()?, &StoreOptions::default())?;
    let clock = Arc::new(SystemClock::new());
    let mode = if phase == "build" { OpenMode::Create } else { OpenMode::Write };
    let began = clock.monotonic_ns();
    let options = CatalogueOptions::default();
    let random = Arc::new(SeededRandom::new(1));
    let mut catalogue =
        Catalogue::open(&store, CLUSTER, mode, options, clock.clone(), random.clone()).await?;
    println!("open: {:.1} ms, {:?}", ms(clock.monotonic_ns() - began), catalogue.requests());
    match phase.as_str() {
        "build" => build(&mut catalogue, &*clock, extents).await?,
        _ => read(&mut catalogue, &*clock, &*random, extents).await?,
    }
    println!("totals: {:?}", catalogue.totals());
    println!("position: {:?}, runs and their bytes: {:?}", catalogue.position(), catalogue.runs());
    println!("held: {:?} (bytes of indexes and cache, rows)", catalogue.held());
    println!("memory: {}", memory());
    Ok(())
}

fn object(number: u64) -> ObjectRef {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&SeededRandom::new(number).next_u64().to_le_bytes());
    ObjectRef {
        id: ObjectId::new(1_700_000_000_000 + number, random),
        length_bytes: 64 << 20,
        footer_offset: (63 << 20) + number % 1000,
        footer_crc: (number as u32).wrapping_mul(2_654_435_761),
        etag_crc: (number as u32).wrapping_mul(2_246_822_519),
    }
}

async fn build(catalogue: &mut Catalogue, clock: &dyn Clock, extents: u64) -> Result<(), Failure> {
    let ledgers = (extents / EXTENTS_OF_LEDGER).max(EXTENTS);
    let reserve = |number: u64| Change::Reserve { objects: vec![object(number).id], ttl_ms: 3_600_000 };
    catalogue.commit(vec![reserve(0)]).await?;
    let (mut commits, mut upkeep_ns) = (Vec::new(), 0);
    let mut upkeep_longest_ns = 0;
    let began = clock.monotonic_ns();
    for number in 0..extents / EXTENTS {
        let of_round = (0..EXTENTS).map(|at| {
            let place = number * EXTENTS + at;
            let first = (place / ledgers) as i64 * ENTRIES;
            NewExtent {
                // Neighbours are in other objects, so that little of a block repeats itself.
                ledger: LedgerId::new((place * 70_001 % ledgers) as i64).expect("not negative"),
                first: EntryId::new(first).expect("not negative"),
                last: EntryId::new(first + ENTRIES - 1).expect("not negative"),
                bytes: 64 << 10,
                created_ms: None,
            }
        });
        let object = NewObject { object: object(number), extents: of_round.collect() };
        let at = clock.monotonic_ns();
        catalogue.commit(vec![Change::Commit(object), reserve(number + 1)]).await?;
        let committed = clock.monotonic_ns();
        commits.push(committed - at);
        catalogue.maintain().await?;
        let took = clock.monotonic_ns() - committed;
        upkeep_ns += took;
        upkeep_longest_ns = upkeep_longest_ns.max(took);
        if number % 1000 == 999 {
            println!(
                "{} extents, {:.1} s, {}",
                (number + 1) * EXTENTS,
                ms(clock.monotonic_ns() - began) / 1e3,
                memory()
            );
        }
    }
    println!("build: {:.1} s", ms(clock.monotonic_ns() - began) / 1e3);
    println!(
        "of that upkeep: {:.1} s, the longest {:.1} s",
        ms(upkeep_ns) / 1e3,
        ms(upkeep_longest_ns) / 1e3
    );
    println!("commit of {EXTENTS} extents: {}", percentiles(&mut commits));
    println!("requests: {:?}", catalogue.requests());
    Ok(())
}

async fn read(
    catalogue: &mut Catalogue,
    clock: &dyn Clock,
    random: &dyn Random,
    extents: u64,
) -> Result<(), Failure> {
    let ledgers = (extents / EXTENTS_OF_LEDGER).max(EXTENTS);
    println!("memory when open: {}", memory());
    let mut took = Vec::new();
    let gets = catalogue.requests().gets;
    for _ in 0..LOOKUPS {
        let ledger = LedgerId::new((random.next_u64() % ledgers) as i64).ok_or("a ledger")?;
        let at = clock.monotonic_ns();
        let next = catalogue.next(ledger).await?;
        took.push(clock.monotonic_ns() - at);
        if next.get() != EXTENTS_OF_LEDGER as i64 * ENTRIES {
            return Err(format!("ledger {ledger} goes on at {next}").into());
        }
    }
    println!("next(ledger): {}, {} gets", percentiles(&mut took), catalogue.requests().gets - gets);
    took.clear();
    let gets = catalogue.requests().gets;
    for _ in 0..LOOKUPS {
        let ledger = LedgerId::new((random.next_u64() % ledgers) as i64).ok_or("a ledger")?;
        let entry = (random.next_u64() % EXTENTS_OF_LEDGER) as i64 * ENTRIES + 7;
        let at = clock.monotonic_ns();
        let found = catalogue.extents(ledger, EntryId::new(entry).ok_or("an entry")?, 1).await?;
        took.push(clock.monotonic_ns() - at);
        if found.first().is_none_or(|(first, row)| first.get() > entry || row.last.get() < entry) {
            return Err(format!("entry {entry} of ledger {ledger} is in {found:?}").into());
        }
    }
    println!("extent of an entry: {}, {} gets", percentiles(&mut took), catalogue.requests().gets - gets);
    took.clear();
    for _ in 0..200 {
        let ledger = LedgerId::new((random.next_u64() % ledgers) as i64).ok_or("a ledger")?;
        let at = clock.monotonic_ns();
        let found = catalogue.extents(ledger, EntryId::FIRST, 1000).await?;
        took.push(clock.monotonic_ns() - at);
        if found.len() as u64 != EXTENTS_OF_LEDGER {
            return Err(format!("ledger {ledger} has {} extents", found.len()).into());
        }
    }
    println!("all {EXTENTS_OF_LEDGER} extents of a ledger: {}", percentiles(&mut took));
    Ok(())
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn percentiles(took: &mut [u64]) -> String {
    took.sort_unstable();
    let at = |share: f64| ms(took[((took.len() - 1) as f64 * share) as usize]);
    format!("p50 {:.3} ms, p99 {:.3} ms, longest {:.1} ms", at(0.5), at(0.99), at(1.0))
}

/// Resident memory, now and at its highest.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lines = status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", ")
}
