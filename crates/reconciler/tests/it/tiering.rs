use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bindery_client::{Client, EntryId, LedgerId};
use bindery_io::{SeededRandom, SystemClock, SystemRandom};
use bindery_metadata::Layout;
use bindery_reconciler::core::Settings;
use bindery_reconciler::core::interval::IntervalSettings;
use bindery_reconciler::core::updates::UpdateSettings;
use bindery_reconciler::{
    Components, MEMORY_MIN, StartError, TierReport, Tierer, TiererConfig, TiererHandle,
};
use bindery_tiering::catalogue::{Catalogue, CatalogueOptions, OpenMode, object_key};
use bindery_tiering::object::{self, Footer, Trailer, decode_block};
use bindery_tiering::store::{Store, StoreOptions, StoreUrl, open};
use bytes::Bytes;
use object_store::ObjectStoreExt;
use tokio::time::Instant;

use super::cluster::{Cluster, append, entry, payload, read, writer};
use super::faulty::{Faults, Faulty};

const MIB: u64 = 1 << 20;
/// Far above anything that must happen.
const HANG: Duration = Duration::from_secs(60);

/// A local directory, and a tierer's settings in small.
pub struct Tier {
    dir: tempfile::TempDir,
    pub store: Store,
    pub faults: Arc<Faults>,
}

impl Tier {
    pub fn new() -> Tier {
        let dir = tempfile::tempdir().unwrap();
        let url: StoreUrl = format!("file://{}", dir.path().display()).parse().unwrap();
        let local = open(&url, &StoreOptions::default()).unwrap();
        let faults = Arc::new(Faults::default());
        let faulty =
            Faulty { inner: local.inner().clone(), faults: faults.clone(), random: SeededRandom::new(1) };
        Tier { dir, store: Store::new(url, Arc::new(faulty)), faults }
    }

    /// The store of another directory, with the faults of this one.
    pub fn other_way(&self, other: &Tier) -> Store {
        let local = open(other.store.url(), &StoreOptions::default()).unwrap();
        let inner = local.inner().clone();
        let faulty = Faulty { inner, faults: self.faults.clone(), random: SeededRandom::new(2) };
        Store::new(other.store.url().clone(), Arc::new(faulty))
    }

    pub async fn start(&self, cluster: &Cluster, client: &Client, config: TiererConfig) -> Tierer {
        self.try_start(cluster, client, config).await.unwrap()
    }

    pub async fn try_start(
        &self,
        cluster: &Cluster,
        client: &Client,
        config: TiererConfig,
    ) -> Result<Tierer, StartError> {
        self.start_on(cluster.layout().await, client, config).await
    }

    /// With a session that is the caller's.
    pub async fn start_on(
        &self,
        layout: Layout,
        client: &Client,
        config: TiererConfig,
    ) -> Result<Tierer, StartError> {
        let components = Components {
            layout,
            client: client.clone(),
            store: self.store.clone(),
            gate: Arc::default(),
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom),
        };
        Tierer::start(config, components).await
    }

    /// The directory of the cluster's catalogue, or of its objects.
    pub async fn part(&self, cluster: &Cluster, name: &str) -> std::path::PathBuf {
        let id = cluster.layout().await.instance_id().await.unwrap().unwrap();
        self.dir.path().join(id.trim()).join(name)
    }

    pub async fn catalogue(&self, cluster: &Cluster) -> Catalogue {
        let id = cluster.layout().await.instance_id().await.unwrap().unwrap().parse().unwrap();
        let options = CatalogueOptions::default();
        let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
        Catalogue::open(&self.store, id, OpenMode::Read, options, clock, random).await.unwrap()
    }

    /// All entries of a ledger as the tier has them, every object verified, extents without a gap.
    async fn entries(&self, cluster: &Cluster, ledger: LedgerId) -> Vec<Bytes> {
        let mut catalogue = self.catalogue(cluster).await;
        let extents = catalogue.extents(ledger, EntryId::FIRST, 100_000).await.unwrap();
        let mut objects = BTreeMap::new();
        let mut entries = Vec::new();
        for (first, row) in extents {
            assert_eq!(first.get(), entries.len() as i64, "without a gap (T3)");
            let key = self.store.key(&object_key(catalogue.cluster(), row.object.id));
            if let Entry::Vacant(place) = objects.entry(row.object.id) {
                let bytes = self.store.inner().get(&key).await.unwrap().bytes().await.unwrap();
                assert_eq!(bytes.len() as u64, row.object.length_bytes);
                let part = |at: u64, size: u64| {
                    Ok::<_, std::io::Error>(bytes.slice(at as usize..(at + size) as usize))
                };
                object::verify(bytes.len() as u64, part, |_| {}).unwrap();
                place.insert(bytes);
            }
            let bytes = &objects[&row.object.id];
            let trailer =
                Trailer::decode(bytes[bytes.len() - 64..].try_into().unwrap(), bytes.len() as u64).unwrap();
            let at = trailer.footer_offset as usize;
            let footer =
                Footer::decode(&bytes.slice(at..at + trailer.footer_size_bytes as usize), &trailer).unwrap();
            let extent = footer.extents.iter().find(|e| e.ledger == ledger && e.first == first).unwrap();
            assert_eq!(extent.last, row.last);
            for (index, block) in extent.blocks.iter().enumerate() {
                let at = block.offset as usize;
                let stored = bytes.slice(at..at + block.stored_size_bytes as usize);
                for body in decode_block(extent, index, stored).unwrap() {
                    // Ids, LAC, length, and a CRC32C of 4 bytes before the payload.
                    entries.push(body.slice(36..));
                }
            }
        }
        entries
    }

    /// Everything that readers get is in the tier, byte for byte.
    pub async fn assert_holds(&self, cluster: &Cluster, client: &Client, ledgers: &[LedgerId]) {
        for ledger in ledgers {
            let (held, expected) = (self.entries(cluster, *ledger).await, read(client, *ledger).await);
            assert_eq!(held.len(), expected.len(), "ledger {ledger}");
            assert!(held == expected, "ledger {ledger}");
        }
    }

    pub fn objects(&self) -> usize {
        let clusters =
            std::fs::read_dir(self.dir.path()).unwrap().map(|dir| dir.unwrap().path().join("objects"));
        clusters.filter_map(|objects| std::fs::read_dir(objects).ok()).map(Iterator::count).sum()
    }
}

/// Quick, with small objects.
pub fn config() -> TiererConfig {
    let mut config = TiererConfig {
        memory_limit: MEMORY_MIN,
        checks_store: false,
        stop_patience: Duration::from_secs(10),
        settings: Settings {
            object_bytes_max: 4 * MIB,
            interval: IntervalSettings {
                min: Duration::from_millis(20),
                max: Duration::from_millis(300),
                ..IntervalSettings::default()
            },
            open_bytes_min: 0,
            open_age_max: Duration::from_millis(200),
            list_interval: Duration::from_millis(300),
            handover: Duration::ZERO,
            // Nobody was there before.
            doubt_kept: Duration::ZERO,
            look_interval: (Duration::from_millis(100), Duration::from_millis(500)),
            updates: UpdateSettings {
                timeout: Duration::from_secs(4),
                overdue_after: Duration::from_millis(500),
                ..UpdateSettings::default()
            },
            ..Settings::default()
        },
        ..TiererConfig::default()
    };
    config.limits.part_bytes = 1 << 20;
    config
}

/// A tierer with a session of its own.
pub struct Member {
    pub tierer: Tierer,
    pub layout: Layout,
}

impl Member {
    pub async fn start(tier: &Tier, cluster: &Cluster, client: &Client, config: TiererConfig) -> Member {
        let layout = cluster.layout().await;
        let tierer = tier.start_on(layout.clone(), client, config).await.unwrap();
        Member { tierer, layout }
    }

    pub async fn report(&self) -> TierReport {
        self.tierer.handle().report().await.unwrap()
    }

    /// As if the process were killed: nothing more comes of it, and its session ends.
    pub async fn crash(self) {
        drop(self.tierer);
        self.layout.store().close().await.unwrap();
    }

    pub async fn stop(self) {
        self.tierer.stop().await;
        self.layout.store().close().await.unwrap();
    }
}

/// Stops the tierers, then what they work on.
pub async fn stop_all(members: impl IntoIterator<Item = Member>, client: Client, cluster: Cluster) {
    for member in members {
        member.stop().await;
    }
    client.close().await;
    cluster.stop().await;
}

pub async fn until(handle: &TiererHandle, what: &str, is_it: impl Fn(&TierReport) -> bool) -> TierReport {
    let began = Instant::now();
    loop {
        let report = handle.report().await.expect("the tierer runs");
        if is_it(&report) {
            return report;
        }
        assert!(began.elapsed() < HANG, "{what}: {report:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub async fn sealed(client: &Client, ledgers: usize, entries: i64) -> Vec<LedgerId> {
    let mut ids = Vec::new();
    for index in 0..ledgers {
        let writer = writer(client).await;
        append(&writer, 0..entries + index as i64).await;
        ids.push(writer.id());
        writer.close().await.unwrap();
    }
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sealed_and_open_ledgers_are_tiered_and_their_bookies_told() {
    let cluster = Cluster::start(3, 2).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let ids = sealed(&client, 12, 300).await;
    let open = writer(&client).await;
    append(&open, 0..100).await;
    let config = TiererConfig { checks_store: true, ..config() };
    let tierer = tier.start(&cluster, &client, config).await;
    let handle = tierer.handle();
    until(&handle, "the closed ones are done", |report| report.ledgers_done == 12).await;
    until(&handle, "and the open one is up to date", |report| {
        report.lag.entries == 0 && report.entries > 3700
    })
    .await;
    let found = handle.ledger(open.id()).await.unwrap();
    assert_eq!((found.state.as_str(), found.tiered), ("tiered", Some(99)));
    // It grows, and closes.
    append(&open, 100..150).await;
    until(&handle, "what came since", |report| report.entries == 12 * 300 + 66 + 150).await;
    let id = open.id();
    open.close().await.unwrap();
    let report = until(&handle, "all of them are done", |report| report.ledgers_done == 13).await;
    let all: Vec<LedgerId> = ids.iter().copied().chain([id]).collect();
    tier.assert_holds(&cluster, &client, &all).await;
    for ledger in &all {
        let expected = EntryId::new(read(&client, *ledger).await.len() as i64 - 1);
        for bookie in ["b0", "b1"] {
            let register = cluster.registers.of(bookie, *ledger);
            assert_eq!(register.last, expected, "{bookie}, ledger {ledger}");
            let mut catalogue = tier.catalogue(&cluster).await;
            let rows = catalogue.extents(*ledger, EntryId::FIRST, 1000).await.unwrap();
            let extents: Vec<_> = rows.iter().map(|(first, row)| row.tier_extent(*first)).collect();
            assert_eq!(register.extents, extents, "the extents of the catalogue");
        }
        assert_eq!(cluster.registers.of("b2", *ledger).last, None, "it keeps everything, and is not told");
    }
    assert_eq!((report.corrections, report.upload_failures, report.alarms.len()), (0, 0, 0), "{report:#?}");
    assert!(report.requests.puts > 0 && report.requests.bytes_put > report.entry_bytes);
    assert!(report.requests.per_gib.is_some() && report.cost.requests_usd == 0.0);
    assert_eq!(report.catalogue_ledgers, 13);
    assert_eq!(report.entries_unverified, 0);
    // Later there is nothing to do, and the store gets no requests.
    let puts = report.requests.puts;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(handle.report().await.unwrap().requests.puts, puts);
    tierer.stop().await;
    assert!(handle.report().await.is_none());
    client.close().await;
    cluster.stop().await;
}

/// T15: after a restart nothing is uploaded again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_uploads_nothing_again_and_tells_bookies_what_they_missed() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let ids = sealed(&client, 4, 50).await;
    // The bookies hear of nothing while it runs.
    cluster.registers.is_refusing.store(true, Ordering::Relaxed);
    let member = Member::start(&tier, &cluster, &client, config()).await;
    let report =
        until(&member.tierer.handle(), "all in the catalogue", |report| report.catalogue_ledgers == 4).await;
    assert!(report.pressure > 0 || report.update_failures > 0, "{report:#?}");
    let before = tier.objects();
    member.crash().await;
    cluster.registers.is_refusing.store(false, Ordering::Relaxed);
    let tierer = tier.start(&cluster, &client, config()).await;
    let report = until(&tierer.handle(), "all done", |report| report.ledgers_done == 4).await;
    assert_eq!((tier.objects(), report.objects, report.rounds), (before, 0, 0));
    for ledger in &ids {
        assert!(cluster.registers.of("b0", *ledger).last.is_some());
    }
    tier.assert_holds(&cluster, &client, &ids).await;
    tierer.stop().await;
    client.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_step_of_an_upload_in_parts_may_fail() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    tier.faults.steps.store(true, Ordering::Relaxed);
    // 1.5 MiB each: parts of 1 MiB.
    let ids = sealed(&client, 6, 500).await;
    let tierer = tier.start(&cluster, &client, config()).await;
    let report = until(&tierer.handle(), "all done", |report| report.ledgers_done == 6).await;
    assert!(tier.faults.failed.load(Ordering::Relaxed) >= 4, "{:?}", tier.faults);
    assert!(
        report.upload_failures >= 3,
        "the beginning, a part, giving up; the completion was found done: {report:#?}"
    );
    tier.assert_holds(&cluster, &client, &ids).await;
    tierer.stop().await;
    client.close().await;
    cluster.stop().await;
}

/// T3, T5, T6, T11 from the outside: two tierers, kills, errors, lost replies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tierers_that_are_killed_on_a_store_that_fails_lose_and_double_nothing() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let mut writers = Vec::new();
    for _ in 0..16 {
        writers.push(writer(&client).await);
    }
    let mut tierers = Vec::new();
    for _ in 0..2 {
        tierers.push(Member::start(&tier, &cluster, &client, config()).await);
    }
    tier.faults.fail_every.store(12, Ordering::Relaxed);
    tier.faults.lose_every.store(12, Ordering::Relaxed);
    let mut corrections = 0;
    for turn in 0..10 {
        for writer in &writers {
            append(writer, turn * 40..(turn + 1) * 40).await;
        }
        tokio::time::sleep(Duration::from_millis(400)).await;
        let victim = turn as usize % 2;
        corrections += tierers[victim].report().await.corrections;
        // It dies as it is, and another one begins. The store may fail at its start, too.
        tierers.remove(victim).crash().await;
        tier.faults.fail_every.store(0, Ordering::Relaxed);
        tier.faults.lose_every.store(0, Ordering::Relaxed);
        tierers.insert(victim, Member::start(&tier, &cluster, &client, config()).await);
        tier.faults.fail_every.store(12, Ordering::Relaxed);
        tier.faults.lose_every.store(12, Ordering::Relaxed);
    }
    assert!(tier.faults.failed.load(Ordering::Relaxed) > 20, "{:?}", tier.faults);
    tier.faults.fail_every.store(0, Ordering::Relaxed);
    tier.faults.lose_every.store(0, Ordering::Relaxed);
    let ids: Vec<LedgerId> = writers.iter().map(|writer| writer.id()).collect();
    for writer in writers {
        writer.close().await.unwrap();
    }
    let mut done = 0;
    for member in &tierers {
        let is_done =
            |report: &TierReport| report.ledgers_listed == 16 && report.ledgers_done == report.ledgers_own;
        let report = until(&member.tierer.handle(), "all done", is_done).await;
        (corrections, done) = (corrections + report.corrections, done + report.ledgers_done);
        assert!(report.alarms.is_empty(), "{report:#?}");
    }
    assert_eq!(done, 16, "each has its part");
    println!("{corrections} corrections, {} objects", tier.objects());
    tier.assert_holds(&cluster, &client, &ids).await;
    for ledger in &ids {
        assert_eq!(cluster.registers.of("b1", *ledger).last, Some(entry(399)));
    }
    stop_all(tierers, client, cluster).await;
}

/// T8: one ledger whose updates hang, at every bookie.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_ledger_whose_update_hangs_delays_no_other() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let ids = sealed(&client, 20, 10).await;
    let tierer = tier.start(&cluster, &client, config()).await;
    let handle = tierer.handle();
    until(&handle, "the registers are asked for", |report| report.update_requests >= 3).await;
    cluster.registers.hang_on.lock().insert(ids[7]);
    until(&handle, "all but one are done", |report| report.ledgers_done >= 19).await;
    assert!(handle.ledger(ids[8]).await.unwrap().state == "tiered");
    cluster.registers.hang_on.lock().clear();
    until(&handle, "and that one, too", |report| report.ledgers_done == 20).await;
    tierer.stop().await;
    client.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_holds_for_all_tierers_and_somebody_who_asks_is_not_made_to_wait() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let pause = cluster.layout().await.tier_pause();
    assert!(pause.pause("a test").await.unwrap());
    let tierer = tier.start(&cluster, &client, config()).await;
    let handle = tierer.handle();
    until(&handle, "it knows of the pause", |report| report.paused).await;
    let ids = sealed(&client, 2, 10).await;
    let report = until(&handle, "it sees what there is", |report| report.lag.entries == 21).await;
    assert_eq!((report.objects, report.behind.len()), (0, 2));
    assert!(pause.resume().await.unwrap());
    until(&handle, "it goes on", |report| report.ledgers_done == 2).await;
    // An open ledger that is not due.
    let mut slow = config();
    slow.settings.open_age_max = Duration::from_secs(3600);
    slow.settings.open_bytes_min = u64::MAX;
    tierer.stop().await;
    let tierer = tier.start(&cluster, &client, slow).await;
    let handle = tierer.handle();
    let open = writer(&client).await;
    append(&open, 0..10).await;
    until(&handle, "it is seen", |report| report.lag.entries == 10).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(handle.ledger(open.id()).await.unwrap().state, "waiting");
    assert!(handle.tier_now(open.id()).await);
    until(&handle, "now", |report| report.lag.entries == 0).await;
    tier.assert_holds(&cluster, &client, &[ids[0], ids[1], open.id()]).await;
    tierer.stop().await;
    client.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_does_not_wait_for_a_store_that_hangs() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let config = TiererConfig { stop_patience: Duration::from_secs(1), ..config() };
    let tierer = tier.start(&cluster, &client, config).await;
    tier.faults.hangs.store(true, Ordering::Relaxed);
    let ids = sealed(&client, 2, 10).await;
    until(&tierer.handle(), "it has seen them", |report| report.ledgers_watched == 2).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The store never answers: a stop that waited for it would not end.
    tokio::time::timeout(HANG, tierer.stop()).await.expect("a stop ends without the store");
    tier.faults.hangs.store(false, Ordering::Relaxed);
    let tierer = tier.start(&cluster, &client, self::config()).await;
    until(&tierer.handle(), "another one does it", |report| report.ledgers_done == 2).await;
    tier.assert_holds(&cluster, &client, &ids).await;
    tierer.stop().await;
    client.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_are_read_from_other_bookies_when_one_is_down() {
    let mut cluster = Cluster::start(4, 4).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let ids = sealed(&client, 6, 60).await;
    cluster.stop_bookie(1).await;
    let tierer = tier.start(&cluster, &client, config()).await;
    until(&tierer.handle(), "all are in the catalogue", |report| report.catalogue_ledgers == 6).await;
    tier.assert_holds(&cluster, &client, &ids).await;
    tierer.stop().await;
    client.close().await;
    cluster.stop().await;
}

/// T18, and other reasons not to begin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_does_not_begin_without_a_cluster_id_or_on_a_store_that_fails() {
    let cluster = Cluster::start(1, 0).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let layout = cluster.layout().await;
    let start = async |layout| {
        let components = Components {
            layout,
            client: client.clone(),
            store: tier.store.clone(),
            gate: Arc::default(),
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom),
        };
        Tierer::start(TiererConfig { checks_store: true, ..config() }, components).await.map(drop)
    };
    tier.faults.fail_every.store(1, Ordering::Relaxed);
    let error = start(layout.clone()).await.unwrap_err();
    assert!(matches!(error, StartError::Store { .. }), "{error}");
    tier.faults.fail_every.store(0, Ordering::Relaxed);
    layout.store().set("/ledgers/INSTANCEID", Bytes::from("no uuid"), None).await.unwrap();
    let error = start(layout.clone()).await.unwrap_err();
    assert!(error.to_string().contains("cannot name its objects"), "{error}");
    layout.store().delete("/ledgers/INSTANCEID", None).await.unwrap();
    let error = start(layout.clone()).await.unwrap_err();
    assert!(error.to_string().contains("bindery cluster init"), "{error}");
    assert_eq!(payload(6).len(), 20_000);
    client.close().await;
    cluster.stop().await;
}
