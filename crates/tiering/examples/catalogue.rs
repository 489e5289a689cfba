//! Measures the catalogue: how long it takes to build one, what a commit costs, how long an opening and a lookup take, in how
//! much memory. Decision 0026 has the figures.
//!
//! ```text
//! cargo run --release -p bindery-tiering --example catalogue -- build file:///empty/directory 10000000
//! cargo run --release -p bindery-tiering --example catalogue -- read file:///the/same 10000000
//! cargo run --release -p bindery-tiering --example catalogue -- follow file:///the/same 10000000
//! ```
//!
//! `follow` is what a bookie does that looks up where entries are: a catalogue that is opened for reading, with little memory, while
//! every request to the store takes [`LATENCY`] longer. Decision 0040 has the figures.

use std::sync::Arc;
use std::time::Duration;

use bindery_io::{Clock, Random, SeededRandom, SystemClock};
use bindery_tiering::catalogue::{Catalogue, CatalogueOptions, Change, NewExtent, NewObject, OpenMode};
use bindery_tiering::store::{self, Store, StoreOptions};
use bindery_tiering::{ClusterId, ObjectId};
use bindery_types::tier::ObjectRef;
use bindery_types::{EntryId, LedgerId};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};

/// Extents of one commit, each of another ledger.
const EXTENTS: u64 = 1000;
/// A hundred extents a ledger.
const EXTENTS_OF_LEDGER: u64 = 100;
const ENTRIES: i64 = 500;
const LOOKUPS: usize = 5000;
/// By which each request to the store is slower in `follow`.
const LATENCY: Duration = Duration::from_millis(25);
/// Memory for blocks of a bookie's follower.
const FOLLOWER_CACHE_BYTES: usize = 8 << 20;
/// Bookies that start at once.
const FOLLOWERS: usize = 100;
/// Lookups of `follow`: each takes a request's time or more.
const COLD_LOOKUPS: usize = 500;
const CLUSTER: ClusterId = ClusterId::from_bytes([7; 16]);

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [phase, url, extents] = arguments.as_slice() else {
        return Err("usage: catalogue build|read|follow URL EXTENTS".into());
    };
    let extents: u64 = extents.parse()?;
    let store = store::open(&url.parse()?, &StoreOptions::default())?;
    let clock = Arc::new(SystemClock::new());
    if phase == "follow" {
        return follow(&store, clock, extents).await;
    }
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
        let ledger = random.next_u64() % ledgers;
        took.push(find_entry(catalogue, clock, ledger, random.next_u64()).await?);
    }
    println!("extent of an entry: {}, {} gets", percentiles(&mut took), catalogue.requests().gets - gets);
    took.clear();
    for _ in 0..200 {
        took.push(find_all(catalogue, clock, random.next_u64() % ledgers).await?);
    }
    println!("all {EXTENTS_OF_LEDGER} extents of a ledger: {}", percentiles(&mut took));
    Ok(())
}

/// Looks up one entry of a ledger; returns the time that took, in ns. `drawn` chooses the entry.
async fn find_entry(
    catalogue: &mut Catalogue,
    clock: &dyn Clock,
    ledger: u64,
    drawn: u64,
) -> Result<u64, Failure> {
    let ledger = LedgerId::new(ledger as i64).ok_or("a ledger")?;
    let entry = (drawn % EXTENTS_OF_LEDGER) as i64 * ENTRIES + 7;
    let at = clock.monotonic_ns();
    let found = catalogue.extents(ledger, EntryId::new(entry).ok_or("an entry")?, 1).await?;
    let took_ns = clock.monotonic_ns() - at;
    if found.first().is_none_or(|(first, row)| first.get() > entry || row.last.get() < entry) {
        return Err(format!("entry {entry} of ledger {ledger} is in {found:?}").into());
    }
    Ok(took_ns)
}

/// Looks up all extents of a ledger; returns the time that took, in ns.
async fn find_all(catalogue: &mut Catalogue, clock: &dyn Clock, ledger: u64) -> Result<u64, Failure> {
    let ledger = LedgerId::new(ledger as i64).ok_or("a ledger")?;
    let at = clock.monotonic_ns();
    let found = catalogue.extents(ledger, EntryId::FIRST, 1000).await?;
    let took_ns = clock.monotonic_ns() - at;
    if found.len() as u64 != EXTENTS_OF_LEDGER {
        return Err(format!("ledger {ledger} has {} extents", found.len()).into());
    }
    Ok(took_ns)
}

/// A store whose requests take [`LATENCY`] longer.
#[derive(Debug)]
struct Slow(Arc<dyn ObjectStore>);

impl std::fmt::Display for Slow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "slow {}", self.0)
    }
}

#[async_trait::async_trait]
impl ObjectStore for Slow {
    async fn put_opts(
        &self,
        key: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        tokio::time::sleep(LATENCY).await;
        self.0.put_opts(key, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        tokio::time::sleep(LATENCY).await;
        self.0.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        tokio::time::sleep(LATENCY).await;
        self.0.get_opts(key, options).await
    }

    fn delete_stream(
        &self,
        keys: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.0.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let listing = self.0.list(prefix);
        let waits = async {
            tokio::time::sleep(LATENCY).await;
            listing
        };
        futures_util::stream::once(waits).flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        tokio::time::sleep(LATENCY).await;
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        tokio::time::sleep(LATENCY).await;
        self.0.copy_opts(from, to, options).await
    }
}

async fn open_follower(store: &Store, clock: Arc<SystemClock>, seed: u64) -> Result<Catalogue, Failure> {
    let options = CatalogueOptions { cache_bytes_max: FOLLOWER_CACHE_BYTES, ..CatalogueOptions::default() };
    let random = Arc::new(SeededRandom::new(seed));
    Ok(Catalogue::open(store, CLUSTER, OpenMode::Read, options, clock, random).await?)
}

async fn follow(store: &Store, clock: Arc<SystemClock>, extents: u64) -> Result<(), Failure> {
    let slow = Arc::new(Slow(store.inner().clone()));
    let store = Store::new(store.url().clone(), slow);
    println!("memory before: {}", memory());
    let began = clock.monotonic_ns();
    let mut catalogue = open_follower(&store, clock.clone(), 1).await?;
    println!("open: {:.0} ms, {:?}", ms(clock.monotonic_ns() - began), catalogue.requests());
    println!("held: {:?} (bytes of indexes and cache, rows), {}", catalogue.held(), memory());
    let ledgers = (extents / EXTENTS_OF_LEDGER).max(EXTENTS);
    let random = SeededRandom::new(2);
    // The first pass looks up another ledger each time, the second one the same ledgers again.
    for what in ["cold", "in ledgers looked up before"] {
        let (mut took, before) = (Vec::new(), catalogue.requests());
        let random = SeededRandom::new(if what == "cold" { 2 } else { 3 });
        let of_ledgers = SeededRandom::new(4);
        for _ in 0..COLD_LOOKUPS {
            let ledger = of_ledgers.next_u64() % ledgers;
            took.push(find_entry(&mut catalogue, &*clock, ledger, random.next_u64()).await?);
        }
        let after = catalogue.requests();
        let each = |sum: u64| sum as f64 / COLD_LOOKUPS as f64;
        println!(
            "extent of an entry, {what}: {}; {:.1} gets and {:.0} bytes each",
            percentiles(&mut took),
            each(after.gets - before.gets),
            each(after.bytes_got - before.bytes_got)
        );
    }
    // A reader that goes through a ledger asks for all its extents at once.
    let (mut took, before) = (Vec::new(), catalogue.requests());
    for _ in 0..COLD_LOOKUPS / 5 {
        took.push(find_all(&mut catalogue, &*clock, random.next_u64() % ledgers).await?);
    }
    let gets = (catalogue.requests().gets - before.gets) as f64 / took.len() as f64;
    println!(
        "all {EXTENTS_OF_LEDGER} extents of a ledger, cold: {}; {gets:.1} gets each",
        percentiles(&mut took)
    );
    println!("held: {:?}, {}", catalogue.held(), memory());
    let (before, at) = (catalogue.requests(), clock.monotonic_ns());
    catalogue.refresh().await?;
    let after = catalogue.requests();
    println!(
        "refresh with nothing new: {:.0} ms, {} gets",
        ms(clock.monotonic_ns() - at),
        after.gets - before.gets
    );
    drop(catalogue);
    let began = clock.monotonic_ns();
    let opened: Vec<Result<Catalogue, Failure>> = futures_util::stream::iter(0..FOLLOWERS as u64)
        .map(|seed| open_follower(&store, clock.clone(), seed))
        .buffer_unordered(FOLLOWERS)
        .collect()
        .await;
    let opened = opened.into_iter().collect::<Result<Vec<_>, _>>()?;
    let (gets, bytes) = opened.iter().fold((0, 0), |(gets, bytes), catalogue| {
        (gets + catalogue.requests().gets, bytes + catalogue.requests().bytes_got)
    });
    println!(
        "{FOLLOWERS} open at once: {:.1} s, {gets} gets, {:.1} MB in all, {}",
        ms(clock.monotonic_ns() - began) / 1e3,
        bytes as f64 / 1e6,
        memory()
    );
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
