//! Ledgers whose copies were let go: their places in object storage are moved, and no data.
#![allow(clippy::disallowed_methods, reason = "objects are taken away and damaged behind the store's back")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bindery_client::{Client, EntryId, LedgerId};
use bindery_engine::Engine;
use bindery_io::{SystemClock, SystemRandom};
use bindery_reconciler::core::Settings;
use bindery_reconciler::core::interval::IntervalSettings;
use bindery_reconciler::core::upkeep::UpkeepSettings;
use bindery_reconciler::{Components, MEMORY_MIN, TierReport, Tierer, TiererConfig};
use bindery_repair::{Repair, RepairConfig, RepairReport, Targets};
use bindery_server::tier::TierConfig;
use bindery_tiering::store::{StoreOptions, StoreUrl, open};
use bindery_types::tier::{ObjectId, ObjectRef, Reconciliation, TierExtent};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::cluster::{Cluster, assert_whole, entry, id, sealed};
use super::repairing::{HANG, config, entries_on, reports, start_all, stop_all, until, until_repaired};

/// Entries of a large ledger: some 9 MB.
const ENTRIES: i64 = 3000;

/// A local directory in the place of a bucket.
struct Bucket {
    dir: tempfile::TempDir,
    url: StoreUrl,
}

impl Bucket {
    fn new() -> Bucket {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}", dir.path().display()).parse().unwrap();
        Bucket { dir, url }
    }

    /// For bookies that let copies go after `grace`.
    fn config(&self, grace: Duration) -> TierConfig {
        let mut config = TierConfig::new(self.url.clone());
        config.trim.set_grace(grace);
        config.trim.interval = Duration::from_millis(100);
        config.trim.ledgers_per_second = 1000;
        config
    }

    /// A tierer that is quick, and quick to rewrite and to delete.
    async fn tierer(&self, cluster: &Cluster, client: &Client) -> Tierer {
        let upkeep = UpkeepSettings {
            interval: Duration::from_millis(200),
            delete_delay: Duration::from_millis(500),
            confirm_pause: Duration::from_millis(100),
            rewrite_pause: Duration::from_millis(200),
            ..UpkeepSettings::default()
        };
        let interval = IntervalSettings {
            min: Duration::from_millis(20),
            max: Duration::from_millis(300),
            ..IntervalSettings::default()
        };
        let settings = Settings {
            list_interval: Duration::from_millis(300),
            look_interval: (Duration::from_millis(100), Duration::from_millis(500)),
            doubt_kept: Duration::from_millis(500),
            interval,
            upkeep,
            ..Settings::default()
        };
        let config = TiererConfig {
            memory_limit: MEMORY_MIN,
            checks_store: false,
            stop_patience: Duration::from_secs(10),
            settings,
            ..TiererConfig::default()
        };
        let components = Components {
            layout: cluster.layout().await,
            client: client.clone(),
            store: open(&self.url, &StoreOptions::default()).unwrap(),
            gate: Arc::default(),
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom),
        };
        Tierer::start(config, components).await.unwrap()
    }

    /// The directory of the cluster's objects, or of its catalogue.
    async fn part(&self, cluster: &Cluster, name: &str) -> PathBuf {
        let cluster = cluster.layout().await.instance_id().await.unwrap().unwrap();
        self.dir.path().join(cluster.trim()).join(name)
    }

    async fn objects(&self, cluster: &Cluster) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.part(cluster, "objects").await).unwrap();
        files.map(|file| file.unwrap().path()).collect()
    }
}

async fn until_tiered(tierer: &Tierer, what: &str, is_it: impl Fn(&TierReport) -> bool) {
    let began = Instant::now();
    loop {
        let report = tierer.handle().report().await.unwrap();
        if is_it(&report) {
            return;
        }
        assert!(began.elapsed() < HANG, "{what}: {report:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn engine(cluster: &Cluster, index: usize) -> Arc<Engine> {
    cluster.own(index).unwrap().engine
}

fn let_go(cluster: &Cluster, index: usize, ledger: LedgerId) -> Option<EntryId> {
    engine(cluster, index).tiered(ledger).and_then(|tiered| tiered.trimmed_below)
}

/// All bookies of `indexes` let their copies of the ledgers go.
async fn until_let_go(cluster: &Cluster, indexes: std::ops::Range<usize>, ledgers: &[LedgerId], last: i64) {
    let began = Instant::now();
    for index in indexes {
        for ledger in ledgers {
            while let_go(cluster, index, *ledger) != Some(entry(last)) {
                assert!(began.elapsed() < HANG, "b{index} keeps its copies of ledger {ledger}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// The entry logs with the copies are gone.
async fn until_gone(cluster: &Cluster, indexes: std::ops::Range<usize>) {
    let began = Instant::now();
    for index in indexes {
        while cluster.local_bytes(index) > 1 << 20 {
            assert!(began.elapsed() < HANG, "b{index} keeps {:?}", cluster.entry_logs(index));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The bookie was told of all of a ledger.
async fn until_told(engine: &Engine, ledger: LedgerId) {
    let began = Instant::now();
    while engine
        .tiered(ledger)
        .is_none_or(|tiered| tiered.lre < entry(ENTRIES - 1) || engine.has_unflushed(ledger))
    {
        assert!(began.elapsed() < HANG, "{:?}", engine.tiered(ledger));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Three bookies with the ledgers of this size, in object storage.
async fn tiered_cluster(
    bucket: &Bucket,
    grace: Duration,
    ledgers: usize,
) -> (Cluster, Client, Vec<LedgerId>, Tierer) {
    let mut cluster = Cluster::start(0).await;
    cluster.tier = Some(bucket.config(grace));
    for index in 0..3 {
        cluster.start_bookie(index).await;
    }
    let client = cluster.client().await;
    let ids = sealed(&client, ledgers, ENTRIES, (3, 3, 2)).await;
    let tierer = bucket.tierer(&cluster, &client).await;
    until_tiered(&tierer, "all is in the tier", |report| report.ledgers_done == ledgers as u64).await;
    (cluster, client, ids, tierer)
}

/// As [`tiered_cluster`]; all copies were let go.
async fn let_go_cluster(bucket: &Bucket, ledgers: usize) -> (Cluster, Client, Vec<LedgerId>, Tierer) {
    let (cluster, client, ids, tierer) = tiered_cluster(bucket, Duration::ZERO, ledgers).await;
    until_let_go(&cluster, 0..3, &ids, ENTRIES - 1).await;
    (cluster, client, ids, tierer)
}

/// A new bookie may take the place of the first one, which is lost.
async fn lose_b0(cluster: &mut Cluster) -> Vec<Repair> {
    cluster.start_bookie(3).await;
    let all = start_all(cluster, 1..4, Duration::ZERO).await;
    cluster.lose_bookie(0).await;
    all
}

async fn names_b0(client: &Client, ledger: LedgerId) -> bool {
    client.metadata(ledger).await.unwrap().metadata.segments()[0].ensemble.contains(&id("b0"))
}

fn sum(all: &[RepairReport], of: impl Fn(&RepairReport) -> u64) -> u64 {
    all.iter().map(of).sum()
}

/// Entries whose bytes were copied, and those whose places were moved.
fn copied_and_moved(all: &[RepairReport]) -> (u64, u64) {
    (sum(all, |report| report.entries), sum(all, |report| report.tiered_entries))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_let_go_everywhere_is_moved_by_its_places_and_no_entry_is_copied() {
    let bucket = Bucket::new();
    let (mut cluster, client, ids, tierer) = let_go_cluster(&bucket, 3).await;
    until_gone(&cluster, 0..3).await;
    cluster.start_bookie(3).await;
    let read_before: Vec<u64> = (1..4).map(|index| cluster.bytes_from_bucket(index)).collect();
    let (lost, ledgers) = entries_on(&client, &ids, "b0").await;
    assert_eq!((lost, ledgers), (3 * ENTRIES as u64, 3));
    let lost_bytes: u64 = {
        let metadata = client.metadata(ids[0]).await.unwrap().metadata;
        let bindery_client::LedgerState::Closed { length_bytes, .. } = metadata.state else { panic!() };
        3 * length_bytes
    };
    let all = start_all(&cluster, 1..4, Duration::ZERO).await;
    cluster.lose_bookie(0).await;
    until_repaired(&cluster, &all, 3).await;
    let report = reports(&all);
    assert_eq!((sum(&report, |r| r.entries), sum(&report, |r| r.bytes)), (0, 0), "{report:#?}");
    assert_eq!(sum(&report, |r| r.tiered_entries), lost, "{report:#?}");
    let read: Vec<u64> =
        (1..4).zip(&read_before).map(|(index, before)| cluster.bytes_from_bucket(index) - before).collect();
    assert_eq!(read[..2], [0, 0], "nobody read for others");
    assert!(read[2] > 0 && read[2] < lost_bytes / 4, "{read:?} of {lost_bytes}");
    stop_all(all).await;
    // The new member has no copy, and serves every entry; also after a restart.
    for _ in 0..2 {
        for ledger in &ids {
            assert_eq!(let_go(&cluster, 3, *ledger), Some(entry(ENTRIES - 1)));
            assert!(cluster.local_bytes(3) < 1 << 20);
            assert_whole(&client, *ledger, ENTRIES, "b0").await;
        }
        cluster.stop_bookie(3).await;
        cluster.start_bookie(3).await;
    }
    tierer.stop().await;
    cluster.stop().await;
}

/// A bookie that comes back empty under its id is in limbo, and gets back what it had in the same way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_that_lost_its_disks_is_told_where_its_entries_are() {
    let bucket = Bucket::new();
    let (mut cluster, client, ids, tierer) = let_go_cluster(&bucket, 1).await;
    cluster.stop_bookie(1).await;
    cluster.wipe_bookie(1);
    cluster.start_bookie_with(1, true).await;
    assert!(client.entries_of(&id("b1"), ids[0]).await.is_err(), "it is in limbo");
    let all = start_all(&cluster, 0..3, Duration::from_secs(600)).await;
    until(&all, "it is in limbo no more", async |_: &[RepairReport]| {
        client.entries_of(&id("b1"), ids[0]).await.is_ok_and(|found| found.is_some())
    })
    .await;
    let report = reports(&all);
    assert_eq!(copied_and_moved(&report), (0, ENTRIES as u64));
    stop_all(all).await;
    assert_eq!(let_go(&cluster, 1, ids[0]), Some(entry(ENTRIES - 1)));
    assert_whole(&client, ids[0], ENTRIES, "nobody").await;
    tierer.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_ledger_that_was_let_go_by_half_the_other_half_is_copied() {
    let bucket = Bucket::new();
    // The test lets go.
    let (mut cluster, client, ids, tierer) = tiered_cluster(&bucket, Duration::from_secs(3600), 1).await;
    let half = ENTRIES / 2;
    for index in 0..3 {
        let engine = engine(&cluster, index);
        until_told(&engine, ids[0]).await;
        engine.trim(ids[0], &engine.tiered(ids[0]).unwrap(), entry(half - 1)).unwrap();
    }
    let all = lose_b0(&mut cluster).await;
    until_repaired(&cluster, &all, 1).await;
    let report = reports(&all);
    assert_eq!(copied_and_moved(&report), ((ENTRIES - half) as u64, half as u64));
    assert_eq!(report[2].bytes_past_journal, report[2].bytes, "{report:#?}");
    stop_all(all).await;
    assert_eq!(let_go(&cluster, 3, ids[0]), Some(entry(half - 1)));
    assert_whole(&client, ids[0], ENTRIES, "b0").await;
    tierer.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_without_a_tier_or_without_the_catalogue_gets_copies() {
    for has_tier in [false, true] {
        let bucket = Bucket::new();
        let (mut cluster, client, ids, tierer) = let_go_cluster(&bucket, 1).await;
        tierer.stop().await;
        if has_tier {
            let catalogue = bucket.part(&cluster, "catalogue").await;
            std::fs::rename(&catalogue, bucket.dir.path().join("elsewhere")).unwrap();
        } else {
            cluster.tier = None;
        }
        let all = lose_b0(&mut cluster).await;
        until_repaired(&cluster, &all, 1).await;
        let report = reports(&all);
        let counts = copied_and_moved(&report);
        assert_eq!(counts, (ENTRIES as u64, 0), "has_tier: {has_tier}");
        stop_all(all).await;
        assert_eq!(let_go(&cluster, 3, ids[0]), None);
        assert_whole(&client, ids[0], ENTRIES, "b0").await;
        cluster.stop().await;
    }
}

/// Damages the block with the last entry of a ledger in the only object. Returns the object and what it was.
async fn damage(bucket: &Bucket, cluster: &Cluster, ledger: LedgerId) -> (PathBuf, Vec<u8>) {
    let objects = bucket.objects(cluster).await;
    let [object] = &objects[..] else { panic!("{objects:?}") };
    let sound = std::fs::read(object).unwrap();
    let mut damaged = sound.clone();
    let extent = known(cluster, 1, ledger)[0];
    let table_bytes = 8 * ENTRIES as usize;
    damaged[extent.object.footer_offset as usize - table_bytes - 1000] ^= 1;
    std::fs::write(object, &damaged).unwrap();
    (object.clone(), sound)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_places_in_a_damaged_object_are_not_moved_while_others_still_have_copies() {
    let bucket = Bucket::new();
    let (mut cluster, client, ids, tierer) = tiered_cluster(&bucket, Duration::from_secs(3600), 1).await;
    // One let go, two have copies.
    for index in 0..3 {
        until_told(&engine(&cluster, index), ids[0]).await;
    }
    let first = engine(&cluster, 1);
    first.trim(ids[0], &first.tiered(ids[0]).unwrap(), entry(ENTRIES - 1)).unwrap();
    tierer.stop().await;
    let (object, sound) = damage(&bucket, &cluster, ids[0]).await;
    let all = lose_b0(&mut cluster).await;
    until_repaired(&cluster, &all, 1).await;
    let report = reports(&all);
    let counts = copied_and_moved(&report);
    assert_eq!(counts, (ENTRIES as u64, 0));
    stop_all(all).await;
    // The bookie that let go reads from it.
    std::fs::write(&object, &sound).unwrap();
    assert_whole(&client, ids[0], ENTRIES, "b0").await;
    cluster.stop().await;
}

/// Nobody is named that could not serve the entries. When the object is back, the repair goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_an_object_is_damaged_or_missing_no_bookie_is_named() {
    let bucket = Bucket::new();
    let (mut cluster, client, ids, tierer) = let_go_cluster(&bucket, 1).await;
    until_gone(&cluster, 0..3).await;
    tierer.stop().await;
    let (object, sound) = damage(&bucket, &cluster, ids[0]).await;
    let all = lose_b0(&mut cluster).await;
    let failures = |reports: &[RepairReport]| sum(reports, |report| report.failures);
    until(&all, "it fails", async |reports: &[RepairReport]| failures(reports) > 0).await;
    assert!(names_b0(&client, ids[0]).await);
    assert_eq!((sum(&reports(&all), |r| r.tiered_entries), let_go(&cluster, 3, ids[0])), (0, None));
    std::fs::remove_file(&object).unwrap();
    let failed = failures(&reports(&all));
    until(&all, "it fails again", async |reports: &[RepairReport]| failures(reports) > failed).await;
    assert!(names_b0(&client, ids[0]).await);
    assert_eq!(let_go(&cluster, 3, ids[0]), None);
    std::fs::write(&object, &sound).unwrap();
    until_repaired(&cluster, &all, 1).await;
    stop_all(all).await;
    assert_whole(&client, ids[0], ENTRIES, "b0").await;
    cluster.stop().await;
}

/// The objects that a bookie knows of a ledger.
fn known(cluster: &Cluster, index: usize, ledger: LedgerId) -> Vec<TierExtent> {
    engine(cluster, index).tier_extents(ledger, EntryId::FIRST, 100).unwrap()
}

/// The bookie has no copies of the ledger, and is told of these places.
async fn restore(
    cluster: &Cluster,
    index: usize,
    ledger: LedgerId,
    extents: Vec<TierExtent>,
    created_ms: Option<i64>,
) {
    let last = extents.last().map(|extent| extent.last);
    let (answer, told) = oneshot::channel();
    let tell = Box::new(move |results| drop(answer.send(results)));
    let update = Reconciliation { ledger, last, extents, created_ms };
    engine(cluster, index).restore_lacking(vec![update], tell);
    assert_eq!(told.await.unwrap()[0].result, Ok(()));
}

/// Nobody tells a bookie that is no member where the entries are now that it let go as a former one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_elsewhere_does_not_name_a_bookie_that_let_copies_go() {
    let bucket = Bucket::new();
    let (mut cluster, client, ids, tierer) = let_go_cluster(&bucket, 1).await;
    cluster.start_keeping_bookie(3).await;
    let created_ms = engine(&cluster, 1).tiered(ids[0]).unwrap().created_ms;
    restore(&cluster, 3, ids[0], known(&cluster, 1, ids[0]), created_ms).await;
    cluster.lose_bookie(0).await;
    let config = RepairConfig { targets: Targets::Any, ..config("elsewhere", Duration::ZERO) };
    let elsewhere = Repair::start(config, cluster.client().await, None, Arc::new(SystemClock::new()));
    let all = [elsewhere];
    until(&all, "it fails", async |reports: &[RepairReport]| reports[0].failures > 0).await;
    assert!(names_b0(&client, ids[0]).await);
    let own = start_all(&cluster, 3..4, Duration::ZERO).await;
    until_repaired(&cluster, &own, 1).await;
    stop_all(all.into_iter().chain(own).collect()).await;
    assert_whole(&client, ids[0], ENTRIES, "b0").await;
    tierer.stop().await;
    cluster.stop().await;
}

/// The only bookie that can take the place still has all, or some, of a ledger that had the id before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_of_a_former_ledger_with_the_id_holds_no_repair_up() {
    let bucket = Bucket::new();
    let (mut cluster, client, ids, tierer) = let_go_cluster(&bucket, 2).await;
    cluster.start_keeping_bookie(3).await;
    // The first ledger of the cluster.
    let created_ms = cluster.layout().await.made_ms().await.unwrap();
    let former = ObjectId::new(1, [7; 10]);
    for (ledger, last) in ids.iter().zip([ENTRIES - 1, ENTRIES / 2]) {
        let now = known(&cluster, 1, *ledger)[0];
        let extent = TierExtent {
            first: EntryId::FIRST,
            last: entry(last),
            object: ObjectRef { id: former, ..now.object },
        };
        restore(&cluster, 3, *ledger, vec![extent], created_ms).await;
    }
    let all = start_all(&cluster, 1..4, Duration::ZERO).await;
    cluster.lose_bookie(0).await;
    until_repaired(&cluster, &all, 2).await;
    assert_eq!(sum(&reports(&all), |r| r.entries), 0);
    stop_all(all).await;
    for ledger in &ids {
        assert_eq!(known(&cluster, 3, *ledger), known(&cluster, 1, *ledger));
        assert_whole(&client, *ledger, ENTRIES, "b0").await;
    }
    tierer.stop().await;
    cluster.stop().await;
}

async fn is_in_bucket(bucket: &Bucket, cluster: &Cluster, object: &ObjectRef) -> bool {
    let name = object.id.to_string();
    let is_it = |path: &PathBuf| path.file_name().is_some_and(|found| *found == *name);
    bucket.objects(cluster).await.iter().any(is_it)
}

/// A worker died after it had moved the places and before metadata named the bookie. Meanwhile the object was rewritten and deleted, of which no
/// bookie is told: the places that the bookie gets are the catalogue's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_that_moved_before_metadata_named_the_bookie_are_brought_up_to_date() {
    let bucket = Bucket::new();
    let mut cluster = Cluster::start(0).await;
    cluster.tier = Some(bucket.config(Duration::ZERO));
    for index in 0..3 {
        cluster.start_bookie(index).await;
    }
    let client = cluster.client().await;
    let large = sealed(&client, 1, ENTRIES, (3, 3, 2)).await[0];
    let small = sealed(&client, 1, 300, (3, 3, 2)).await[0];
    let tierer = bucket.tierer(&cluster, &client).await;
    until_tiered(&tierer, "both are in the tier", |report| report.ledgers_done == 2).await;
    until_let_go(&cluster, 0..3, &[small], 299).await;
    let passes = tierer.handle().report().await.unwrap().upkeep_passes;
    // By the mark of a pass the metadata store proves to be current.
    until_tiered(&tierer, "passes", |report| report.upkeep_passes > passes + 1).await;
    let before = known(&cluster, 1, small);
    assert_eq!(bucket.objects(&cluster).await.len(), 1, "one object has both");

    cluster.start_keeping_bookie(3).await;
    let created_ms = engine(&cluster, 1).tiered(small).unwrap().created_ms;
    restore(&cluster, 3, small, before.clone(), created_ms).await;

    client.delete_ledger(large).await.unwrap();
    until_tiered(&tierer, "the object is rewritten", |report| report.objects_rewritten == 1).await;
    until_tiered(&tierer, "and deleted", |report| report.catalogue_objects == 1).await;
    assert!(known(&cluster, 1, small) == before && known(&cluster, 3, small) == before);
    assert!(!is_in_bucket(&bucket, &cluster, &before[0].object).await);

    let all = start_all(&cluster, 1..4, Duration::ZERO).await;
    cluster.lose_bookie(0).await;
    until_repaired(&cluster, &all, 1).await;
    assert_eq!(sum(&reports(&all), |r| r.entries), 0, "all of it was there");
    stop_all(all).await;
    let now = known(&cluster, 3, small);
    assert!(now.len() == 1 && is_in_bucket(&bucket, &cluster, &now[0].object).await, "{now:?}");
    assert_whole(&client, small, 300, "b0").await;
    tierer.stop().await;
    cluster.stop().await;
}
