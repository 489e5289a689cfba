//! Tierers that share the ledgers.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bindery_client::{Client, LedgerId, LedgerWriter};
use bindery_reconciler::core::Settings;
use bindery_reconciler::{TierReport, TiererConfig};
use tokio::time::Instant;

use super::cluster::{Cluster, writer};
use super::tiering::{Member, Tier, config, stop_all, until};

const HANG: Duration = Duration::from_secs(120);
const ENTRY_BYTES: usize = 32 << 10;

/// One that hears of others, and of what it cannot do, soon.
async fn start(tier: &Tier, cluster: &Cluster, client: &Client) -> Member {
    let config = config();
    let settings = Settings {
        handover: Duration::from_millis(300),
        unable_after: Duration::from_secs(3),
        ..config.settings
    };
    Member::start(tier, cluster, client, TiererConfig { settings, ..config }).await
}

async fn write(client: &Client, ledgers: usize, entries: usize) -> Vec<LedgerWriter> {
    let mut writers = Vec::new();
    for _ in 0..ledgers {
        let writer = writer(client).await;
        for entry in 0..entries {
            writer.enqueue(&vec![entry as u8; ENTRY_BYTES]).await.unwrap();
        }
        writers.push(writer);
    }
    writers
}

async fn close(writers: Vec<LedgerWriter>) -> Vec<LedgerId> {
    let mut ids = Vec::new();
    for writer in writers {
        ids.push(writer.id());
        writer.close().await.unwrap();
    }
    ids
}

/// Waits until all together have committed so many entries.
async fn moved(members: &[Member], entries: u64) -> Vec<TierReport> {
    let began = Instant::now();
    loop {
        let mut reports = Vec::new();
        for member in members {
            reports.push(member.report().await);
        }
        if reports.iter().map(|report| report.entries).sum::<u64>() >= entries {
            return reports;
        }
        assert!(began.elapsed() < HANG, "{reports:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The lengths of all objects that were ever uploaded: nothing is deleted within the delay.
async fn uploaded(tier: &Tier, cluster: &Cluster) -> u64 {
    let Ok(objects) = std::fs::read_dir(tier.part(cluster, "objects").await) else { return 0 };
    // One that is being written may get another name meanwhile.
    objects.filter_map(|object| Some(object.ok()?.metadata().ok()?.len())).sum()
}

/// Waits until all know of so many.
async fn are(members: &[Member], tierers: u64) {
    for member in members {
        until(&member.tierer.handle(), "all know of each other", |report| report.tierers == tierers).await;
    }
}

/// Writes ledgers, and waits until they are moved: of what was uploaded meanwhile at most a fiftieth is in vain, or no data. Returns the entries that
/// each has moved by then.
async fn move_once(
    tier: &Tier,
    cluster: &Cluster,
    client: &Client,
    members: &[Member],
    ledgers: usize,
) -> (Vec<LedgerId>, Vec<u64>) {
    const ENTRIES: usize = 12;
    let mut before = 0;
    for member in members {
        before += member.report().await.entries;
    }
    let uploaded_before = uploaded(tier, cluster).await;
    let ids = close(write(client, ledgers, ENTRIES).await).await;
    let reports = moved(members, before + (ledgers * ENTRIES) as u64).await;
    let (data, sum) =
        ((ledgers * ENTRIES * ENTRY_BYTES) as u64, uploaded(tier, cluster).await - uploaded_before);
    println!("{sum} bytes were uploaded for {data}");
    assert!(sum <= data + data / 50, "{sum} bytes were uploaded for {data}");
    (ids, reports.iter().map(|report| report.entries).collect())
}

/// Tierers upload everything once; one that comes takes a part over, and one that dies leaves its part to the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tierers_that_share_upload_everything_once() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let mut members = Vec::new();
    for _ in 0..2 {
        members.push(start(&tier, &cluster, &client).await);
    }
    are(&members, 2).await;
    let (mut all, moved) = move_once(&tier, &cluster, &client, &members, 30).await;
    assert!(moved.iter().all(|entries| *entries > 0), "each has its part: {moved:?}");
    for member in &members {
        let handle = member.tierer.handle();
        let report = until(&handle, "a listing is complete", |report| report.ledgers_listed == 30).await;
        assert!((1..30).contains(&report.ledgers_own) && report.corrections == 0, "{report:#?}");
    }

    // A ledger that another one owns is moved by whoever is asked, who says whose it is.
    let open = write(&client, 4, 2).await;
    let handle = members[0].tierer.handle();
    let other = members[1].report().await.name;
    for writer in &open {
        assert!(handle.tier_now(writer.id()).await);
        let began = Instant::now();
        loop {
            let report = handle.ledger(writer.id()).await.unwrap();
            assert!(report.owner.is_none_or(|owner| owner == other));
            if report.state == "tiered" {
                break;
            }
            assert!(began.elapsed() < HANG, "{}", report.state);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    assert!(handle.tier_now(LedgerId::new(1 << 40).unwrap()).await);
    let began = Instant::now();
    while handle.ledger(LedgerId::new(1 << 40).unwrap()).await.unwrap().state != "gone" {
        assert!(began.elapsed() < HANG);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    all.extend(close(open).await);

    // One comes.
    members.push(start(&tier, &cluster, &client).await);
    are(&members, 3).await;
    let (ids, moved) = move_once(&tier, &cluster, &client, &members, 30).await;
    assert!(moved[2] > 0, "it has its part: {moved:?}");
    all.extend(ids);

    // One dies: the others take over what it has not moved, and all that comes.
    members.remove(0).crash().await;
    let ids = close(write(&client, 12, 3).await).await;
    are(&members, 2).await;
    let began = Instant::now();
    loop {
        let mut catalogue = tier.catalogue(&cluster).await;
        let mut are_whole = true;
        for ledger in &ids {
            are_whole &= catalogue.next(*ledger).await.unwrap().get() == 3;
        }
        if are_whole {
            break;
        }
        assert!(began.elapsed() < HANG, "ledgers of a tierer that died are not moved");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    all.extend(ids);
    let (ids, _) = move_once(&tier, &cluster, &client, &members, 10).await;
    all.extend(ids);
    tier.assert_holds(&cluster, &client, &all).await;
    stop_all(members, client, cluster).await;
}

/// The part of a tierer that does not reach the bucket is moved by the other one, until it does again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_tierer_cannot_move_another_one_moves() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let (tier, mut cut_off) = (Tier::new(), Tier::new());
    // The same directory, by another way.
    cut_off.store = cut_off.other_way(&tier);
    let members = [start(&tier, &cluster, &client).await, start(&cut_off, &cluster, &client).await];
    are(&members, 2).await;
    cut_off.faults.fail_every.store(1, Ordering::Relaxed);
    let mut all = close(write(&client, 20, 3).await).await;
    let handle = members[1].tierer.handle();
    until(&handle, "it notices", |report| report.unable.is_some()).await;
    moved(&members, 60).await;
    cut_off.faults.fail_every.store(0, Ordering::Relaxed);
    all.extend(close(write(&client, 20, 3).await).await);
    until(&handle, "it works again", |report| report.unable.is_none()).await;
    moved(&members, 120).await;
    tier.assert_holds(&cluster, &client, &all).await;
    stop_all(members, client, cluster).await;
}

/// A tierer whose session ended registers again, and goes on meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tierer_registers_again_when_its_session_ended() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let member = start(&tier, &cluster, &client).await;
    let tierers = cluster.layout().await.tierers();
    let names = async || tierers.watch().await.unwrap().0.names;
    let began = Instant::now();
    while names().await.len() != 1 {
        assert!(began.elapsed() < HANG);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = names().await;
    tierers.leave(&before[0]).await.unwrap();
    while names().await != before {
        assert!(began.elapsed() < HANG, "it is not registered again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ledgers = close(write(&client, 3, 3).await).await;
    until(&member.tierer.handle(), "all is moved", |report| report.entries == 9).await;
    tier.assert_holds(&cluster, &client, &ledgers).await;
    member.tierer.stop().await;
    assert!(names().await.is_empty(), "it leaves at once");
    client.close().await;
    cluster.stop().await;
}
