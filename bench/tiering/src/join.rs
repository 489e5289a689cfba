//! `join`: ledgers that grow slowly, and so have a small extent in each of many objects. What a bookie pays for such a ledger when it lets copies go,
//! and a reader for a cold read, before and after the extents are joined.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bindery_client::{Client, CreateOptions, LedgerWriter, Quorum};
use bindery_io::{SystemClock, SystemRandom};
use bindery_metadata::Layout;
use bindery_reconciler::{Components, TierReport, Tierer, TiererConfig};
use bindery_tiering::ClusterId;
use bindery_tiering::catalogue::{CatalogueOptions, Locator};
use bindery_tiering::fetch::check::{LocalDifference, LocalRecords};
use bindery_tiering::fetch::{Ask, FetchOptions, Fetcher, Offer, ReaderId};
use bindery_tiering::object::TableEntry;
use bindery_tiering::store::Store;
use bindery_types::tier::TierExtent;
use bindery_types::{EntryId, LedgerId};
use clap::Args;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::slow::SlowStore;
use crate::{Place, close, tierer_config};

/// Extents of a ledger that a bookie checks side by side.
const CHECKS_AT_ONCE: usize = 8;

#[derive(Args)]
pub struct JoinArgs {
    #[command(flatten)]
    place: Place,
    /// Open ledgers
    #[arg(long, default_value_t = 200)]
    ledgers: usize,
    /// Objects, each with an extent of every ledger
    #[arg(long, default_value_t = 64)]
    rounds: usize,
    /// Entries of a ledger in each of them, of 1 KiB
    #[arg(long, default_value_t = 3)]
    entries: usize,
    /// Milliseconds that each request of a cold read waits
    #[arg(long, default_value_t = 25)]
    delay_ms: u64,
    /// Ledgers that are read
    #[arg(long, default_value_t = 5)]
    reads: usize,
}

/// No copies are here to compare with: the requests are the same.
struct NoCopies;

impl LocalRecords for NoCopies {
    fn compare(&mut self, _: EntryId, _: &[TableEntry]) -> Result<Vec<EntryId>, LocalDifference> {
        Ok(Vec::new())
    }

    fn compare_entry(&mut self, _: EntryId, _: &[u8]) -> Result<(), LocalDifference> {
        Ok(())
    }
}

/// What a bookie reads a bucket with.
struct Reader {
    locator: Locator,
    fetcher: Fetcher,
    gets: Arc<AtomicU64>,
}

impl Reader {
    /// Everything is cold, but for the catalogue, which is open.
    async fn open(place: &Place, cluster: ClusterId, delay: Duration) -> anyhow::Result<Reader> {
        let store = place.store()?;
        let gets = Arc::<AtomicU64>::default();
        let (inner, writes) = (store.inner().clone(), Duration::ZERO);
        let slow = SlowStore { inner, writes, reads: delay, gets: gets.clone() };
        let store = Store::new(store.url().clone(), Arc::new(slow));
        let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
        let options = CatalogueOptions::default();
        let locator = Locator::start(store.clone(), cluster, options, clock, random, &Handle::current());
        let absent = LedgerId::new(i64::MAX).context("an id")?;
        drop(locator.locate(absent, EntryId::FIRST, None, Duration::ZERO).await);
        gets.store(0, Ordering::Relaxed);
        let fetcher = Fetcher::new(store, cluster, FetchOptions::default(), Handle::current());
        Ok(Reader { locator, fetcher, gets })
    }

    fn gets(&self) -> u64 {
        self.gets.load(Ordering::Relaxed)
    }

    /// The extents from an entry on.
    async fn extents(&self, ledger: LedgerId, from: EntryId) -> anyhow::Result<Vec<TierExtent>> {
        Ok(self.locator.locate(ledger, from, None, Duration::from_secs(10)).await?)
    }

    /// As a bookie does before it lets copies go: some blocks of each extent are read back. Returns the number of extents.
    async fn check(&self, ledger: LedgerId, last: EntryId) -> anyhow::Result<usize> {
        let (mut count, mut next) = (0, EntryId::FIRST);
        loop {
            let extents = self.extents(ledger, next).await?;
            let checks: Vec<_> = extents
                .iter()
                .map(|extent| async move {
                    let samples = |blocks: usize| (0..blocks.min(2)).map(|at| at * (blocks - 1)).collect();
                    self.fetcher.check(ledger, extent, samples, &mut NoCopies).await
                })
                .collect();
            let mut checks = futures_util::stream::iter(checks).buffered(CHECKS_AT_ONCE);
            while let Some(checked) = checks.next().await {
                checked?;
                count += 1;
            }
            drop(checks);
            let end = extents.last().context("an answer has extents")?.last;
            if end >= last {
                return Ok(count);
            }
            next = EntryId::new(end.get() + 1).context("an entry behind another")?;
        }
    }

    /// Reads a ledger from its beginning to its end, one entry after the other.
    async fn read(&self, ledger: LedgerId, last: EntryId) -> anyhow::Result<()> {
        let mut known: Vec<TierExtent> = Vec::new();
        for id in 0..=last.get() {
            let entry = EntryId::new(id).context("an entry")?;
            if !known.iter().any(|extent| extent.contains(entry)) {
                known = self.extents(ledger, entry).await?;
            }
            let extent = *known.iter().find(|extent| extent.contains(entry)).context("an extent")?;
            let (answer, answered) = oneshot::channel();
            let ask = Ask { reader: ReaderId(1), ledger, entry, extent };
            match self.fetcher.ask(ask, move |fetched| drop(answer.send(fetched.map(drop))))? {
                Offer::Here(_) => {}
                Offer::Coming(_ticket) => answered.await??,
            }
        }
        Ok(())
    }
}

/// What ledgers cost.
async fn measure(
    args: &JoinArgs,
    cluster: ClusterId,
    ledgers: &[LedgerId],
    last: EntryId,
) -> anyhow::Result<Value> {
    let reader = Reader::open(&args.place, cluster, Duration::ZERO).await?;
    let mut extents = 0;
    for ledger in ledgers {
        extents += reader.check(*ledger, last).await?;
    }
    let checks = reader.gets() as f64 / ledgers.len() as f64;
    let (mut millis, mut gets) = (Vec::new(), 0);
    for ledger in ledgers.iter().step_by((ledgers.len() / args.reads.max(1)).max(1)).take(args.reads) {
        let reader = Reader::open(&args.place, cluster, Duration::from_millis(args.delay_ms)).await?;
        let began = Instant::now();
        reader.read(*ledger, last).await?;
        millis.push(began.elapsed().as_millis() as u64);
        gets += reader.gets();
    }
    millis.sort_unstable();
    Ok(json!({
        "extentsPerLedger": extents as f64 / ledgers.len() as f64, "requestsPerTrimmedLedger": checks,
        "coldReadMs": millis, "requestsPerColdRead": gets as f64 / millis.len().max(1) as f64,
    }))
}

fn config(join_below: u64) -> TiererConfig {
    let mut config = tierer_config(64, 80);
    config.settings.open_bytes_min = 0;
    config.settings.open_age_max = Duration::from_millis(200);
    config.settings.interval.min = Duration::from_millis(50);
    config.settings.interval.max = Duration::from_millis(300);
    config.settings.look_interval = (Duration::from_millis(100), Duration::from_millis(300));
    config.settings.doubt_kept = Duration::from_millis(500);
    config.settings.upkeep.interval = Duration::from_secs(2);
    config.settings.upkeep.delete_delay = Duration::from_secs(2);
    config.settings.upkeep.join_after = Duration::from_secs(10);
    config.settings.upkeep.join_below_bytes = join_below;
    config
}

async fn start(args: &JoinArgs, layout: &Layout, client: &Client, join_below: u64) -> anyhow::Result<Tierer> {
    let components = Components {
        layout: layout.clone(),
        client: client.clone(),
        store: args.place.store()?,
        gate: Arc::default(),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom),
    };
    Tierer::start(config(join_below), components).await.context("start a tierer")
}

/// Waits until the report is so.
async fn until(
    tierer: &Tierer,
    what: &str,
    is_it: impl Fn(&TierReport) -> bool,
) -> anyhow::Result<TierReport> {
    let began = Instant::now();
    loop {
        let report = tierer.handle().report().await.context("the tierer ended")?;
        if is_it(&report) {
            return Ok(report);
        }
        ensure!(began.elapsed() < Duration::from_secs(40), "{what}: {report:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Makes the ledgers, measures, joins, and measures again.
pub async fn run(args: JoinArgs) -> anyhow::Result<Value> {
    let layout = args.place.layout().await?;
    let instance = layout.instance_id().await?.context("the cluster has an INSTANCEID")?;
    let cluster: ClusterId = instance.trim().parse().context("its INSTANCEID")?;
    let client = Client::builder().layout(layout.clone()).connect().await?;
    let mut writers: Vec<LedgerWriter> = Vec::new();
    for _ in 0..args.ledgers {
        writers
            .push(client.create_ledger(CreateOptions::new(Quorum::new(3, 3, 2).context("a quorum")?)).await?);
    }
    let tierer = start(&args, &layout, &client, 0).await?;
    let payload = vec![7; 1024];
    for round in 1..=args.rounds {
        for writer in &writers {
            for _ in 0..args.entries {
                writer.append(&payload).await?;
            }
        }
        let all = (round * args.entries * args.ledgers) as u64;
        until(&tierer, "a round is moved", |report| report.entries >= all).await?;
    }
    let ledgers: Vec<LedgerId> = writers.iter().map(LedgerWriter::id).collect();
    for writer in writers {
        writer.close().await?;
    }
    until(&tierer, "all are done", |report| report.ledgers_done >= args.ledgers as u64).await?;
    let objects = until(&tierer, "", |_| true).await?.catalogue_objects;
    tierer.stop().await;
    let last = EntryId::new((args.rounds * args.entries) as i64 - 1).context("an entry")?;
    let before = measure(&args, cluster, &ledgers, last).await?;

    let tierer = start(&args, &layout, &client, 1 << 20).await?;
    let first = until(&tierer, "", |_| true).await?;
    let is_joined = |report: &TierReport| {
        report.extents_joined > 0 && report.catalogue_objects <= 4 && report.unreferenced_objects == 0
    };
    let began = Instant::now();
    let joined = until(&tierer, "joined, and the objects are gone", is_joined).await?;
    let seconds = began.elapsed().as_secs_f64();
    tierer.stop().await;
    let after = measure(&args, cluster, &ledgers, last).await?;
    close(client, layout).await;
    Ok(json!({
        "ledgers": args.ledgers, "objects": objects, "before": before, "after": after,
        "joining": {
            "seconds": seconds, "objectsNow": joined.catalogue_objects, "extents": joined.extents_joined,
            "copiedBytes": joined.rewritten_bytes,
            "bytes": args.rounds * args.entries * args.ledgers * 1024,
            "gets": joined.requests.gets - first.requests.gets, "puts": joined.requests.puts - first.requests.puts,
            "bytesGot": joined.requests.bytes_got - first.requests.bytes_got,
        },
    }))
}
