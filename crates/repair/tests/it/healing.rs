//! Entries that rot on the disk of a bookie are brought back from other copies, and the damage goes.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bindery_client::{Client, EntryId, LedgerId, OpenMode};
use bindery_io::{Disk, RealDisk, SystemClock};
use bindery_repair::{Repair, RepairConfig, Targets};
use bindery_storage::entry_log::VerifyReport;
use bindery_storage::{EntryLog, OpenLogError, ReadError};
use bytes::Bytes;
use tokio::time::Instant;

use super::cluster::{Cluster, PASSWORD, append, assert_whole, entry, id, payload, sealed, writer};

/// Far above anything that must happen.
const HANG: Duration = Duration::from_secs(120);
const ENTRIES: i64 = 700;
const FLIPS: u64 = 1000;

/// Flips single bits of the logs, each anywhere in them.
fn flip_bits(logs: &[PathBuf], flips: u64) {
    let total: u64 = logs.iter().map(|log| log.metadata().unwrap().len()).sum();
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    for _ in 0..flips {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let mut at = state % total;
        for log in logs {
            let length = log.metadata().unwrap().len();
            if at < length {
                let file = std::fs::OpenOptions::new().read(true).write(true).open(log).unwrap();
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                byte[0] ^= 1 << (state >> 61);
                file.write_all_at(&byte, at).unwrap();
                break;
            }
            at -= length;
        }
    }
}

/// The findings in a log, or the reason why it cannot be checked.
fn verdict(disk: &Arc<dyn Disk>, log: &Path) -> Result<Result<VerifyReport, ReadError>, OpenLogError> {
    EntryLog::open_file(disk, log).map(|(log, _)| log.verify())
}

/// Damages in a log; none of one that is gone.
fn damages(disk: &Arc<dyn Disk>, log: &Path) -> u64 {
    match verdict(disk, log) {
        Ok(Ok(report)) => report.damage_count,
        Err(OpenLogError::Disk(_)) | Ok(Err(ReadError::Disk(_))) if !log.exists() => 0,
        Ok(Err(_)) | Err(_) => 1,
    }
}

async fn read_all(client: &Client, ledgers: &[LedgerId]) {
    for ledger in ledgers {
        let reader = client.open_ledger(*ledger, PASSWORD, OpenMode::ReadOnly).await.unwrap();
        let mut stream = reader.read(EntryId::FIRST..=entry(ENTRIES - 1));
        let mut next = 0;
        while let Some(read) = stream.next().await {
            assert_eq!(read.unwrap().payload, Bytes::from(payload(next)), "{ledger}:{next}");
            next += 1;
        }
        assert_eq!(next, ENTRIES);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flipped_bits_are_replaced_from_other_copies_while_readers_see_none() {
    let mut cluster = Cluster::start(2).await;
    cluster.start_scrubbing_bookie(2).await;
    let client = cluster.client().await;
    let whole = sealed(&client, 6, ENTRIES, (3, 3, 2)).await;
    let striped = sealed(&client, 6, ENTRIES, (3, 2, 2)).await;
    let ids: Vec<LedgerId> = whole.iter().chain(&striped).copied().collect();
    // All of it goes into entry logs.
    cluster.stop_bookie(2).await;
    cluster.start_scrubbing_bookie(2).await;
    let mut all = Vec::new();
    for index in 0..3 {
        let mut config = RepairConfig::new(id(&format!("b{index}")), Targets::Own(id(&format!("b{index}"))));
        config.auditor.delay = Duration::from_secs(600);
        config.look_interval = Duration::from_millis(100);
        let own = cluster.own(index);
        all.push(Repair::start(config, cluster.client().await, own, Arc::new(SystemClock::new())));
    }
    let (is_over, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let reading = tokio::spawn({
        let (client, ids, is_over, rounds) =
            (cluster.client().await, ids.clone(), is_over.clone(), rounds.clone());
        async move {
            while !is_over.load(Ordering::Acquire) {
                read_all(&client, &ids).await;
                rounds.fetch_add(1, Ordering::AcqRel);
            }
        }
    });
    let writing = tokio::spawn({
        let (client, is_over) = (cluster.client().await, is_over.clone());
        async move {
            let (writer, mut next) = (writer(&client, (3, 3, 2)).await, 0);
            while !is_over.load(Ordering::Acquire) {
                append(&writer, next..next + 10).await;
                next += 10;
                // Without a pause it writes hundreds of MiB, and the test reads all of them at the end.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let id = writer.id();
            writer.close().await.unwrap();
            (id, next)
        }
    });
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    // Later logs do not count here: a log has no trailer while it is being written, and looks damaged.
    let flipped = cluster.entry_logs(2);
    flip_bits(&flipped, FLIPS);
    let found = |logs: &[PathBuf]| -> u64 { logs.iter().map(|log| damages(&disk, log)).sum() };
    let marks = cluster.layout().await.under_replication();
    let (began, flipped_at) = (Instant::now(), rounds.load(Ordering::Acquire));
    while found(&flipped) > 0 || !marks.after(None, 1).await.unwrap().is_empty() {
        assert!(
            began.elapsed() < HANG,
            "{:#?}\nmarked: {:#?}\nrepair: {:#?}",
            flipped.iter().map(|log| (log, verdict(&disk, log))).collect::<Vec<_>>(),
            marks.after(None, 10).await,
            all.iter().map(|repair| repair.handle().report()).collect::<Vec<_>>()
        );
        assert!(!reading.is_finished(), "{:?}", reading.await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    while rounds.load(Ordering::Acquire) < flipped_at + 2 {
        assert!(!reading.is_finished(), "{:?}", reading.await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    is_over.store(true, Ordering::Release);
    reading.await.unwrap();
    let (written, count) = writing.await.unwrap();
    assert_whole(&client, written, count, "nobody").await;
    for ledger in &ids {
        assert_whole(&client, *ledger, ENTRIES, "nobody").await;
    }
    let copied: u64 = all.iter().map(|repair| repair.handle().report().entries).sum();
    assert!(copied > FLIPS / 2, "{copied} entries were replaced: the bits hit too few");
    for repair in all {
        repair.stop().await;
    }
    // What was replaced is replaced for good.
    cluster.stop_bookie(2).await;
    cluster.start_bookie(2).await;
    // A stop leaves a log that a merge had begun; the start removes it.
    let began = Instant::now();
    loop {
        let left = found(&cluster.entry_logs(2));
        if left == 0 {
            break;
        }
        assert!(began.elapsed() < HANG, "{left} damages after a restart");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for ledger in &ids {
        assert_whole(&client, *ledger, ENTRIES, "nobody").await;
    }
    cluster.stop().await;
}
