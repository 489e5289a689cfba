//! The loops without anything of a tierer: what its work costs at least.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use bindery_client::{BulkOptions, Client, EntryId, LedgerId};
use bindery_io::{SystemClock, SystemRandom};
use bindery_tiering::catalogue::{Catalogue, CatalogueOptions, OpenMode, object_key};
use bytes::Bytes;
use clap::Args;
use object_store::{ObjectStoreExt, PutPayload};
use serde_json::{Value, json};
use std::collections::BTreeMap;

use crate::{Place, close, cpu_seconds, peak_mib};

#[derive(Args)]
pub struct CopyArgs {
    #[command(flatten)]
    place: Place,
    /// Ledgers, all closed
    #[arg(required = true)]
    ledgers: Vec<i64>,
    /// Size of an object, in MiB
    #[arg(long, default_value_t = 64)]
    object_mib: usize,
}

/// Reads ledgers, two at a time as a tierer with little to do would, and puts the bytes.
pub async fn copy(args: CopyArgs) -> anyhow::Result<Value> {
    let layout = args.place.layout().await?;
    let client = Client::builder().layout(layout.clone()).connect().await?;
    let store = args.place.store()?;
    let bulk = client.bulk(BulkOptions::default());
    let (t0, cpu0) = (Instant::now(), cpu_seconds()?);
    let (mut object, mut size, mut objects, mut bytes) = (Vec::<Bytes>::new(), 0, 0u64, 0u64);
    for id in &args.ledgers {
        let view = bulk.open(LedgerId::new(*id).context("a ledger id")?).await?;
        let Some(last) = view.last_readable() else { continue };
        let mut stream = view.read(EntryId::FIRST, last);
        while let Some(batch) = stream.next().await {
            for entry in batch?.entries() {
                size += entry.bytes.len();
                bytes += entry.bytes.len() as u64;
                object.push(entry.bytes.clone());
            }
            if size >= args.object_mib << 20 {
                put(&store, objects, std::mem::take(&mut object)).await?;
                (size, objects) = (0, objects + 1);
            }
        }
    }
    put(&store, objects, object).await?;
    let (seconds, cpu) = (t0.elapsed().as_secs_f64(), cpu_seconds()? - cpu0);
    close(client, layout).await;
    Ok(json!({
        "bytes": bytes, "seconds": seconds, "mbPerSecond": bytes as f64 / seconds / 1e6, "cpuSeconds": cpu,
        "bytesPerCpuSecond": bytes as f64 / cpu.max(0.01), "peakMib": peak_mib()?,
    }))
}

async fn put(store: &bindery_tiering::store::Store, number: u64, parts: Vec<Bytes>) -> anyhow::Result<()> {
    let key = store.key(&format!("bare/{number}"));
    store.inner().put(&key, PutPayload::from_iter(parts)).await.map(drop).context("put")
}

#[derive(Args)]
pub struct FetchArgs {
    #[command(flatten)]
    place: Place,
    /// Ledgers whose objects are read
    #[arg(required = true)]
    ledgers: Vec<i64>,
}

/// Gets each object that has entries of the ledgers, once.
pub async fn fetch(args: FetchArgs) -> anyhow::Result<Value> {
    let layout = args.place.layout().await?;
    let store = args.place.store()?;
    let cluster = layout.instance_id().await?.context("the cluster has no INSTANCEID")?.parse()?;
    let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
    let options = CatalogueOptions::default();
    let mut catalogue = Catalogue::open(&store, cluster, OpenMode::Read, options, clock, random).await?;
    let mut objects = BTreeMap::new();
    for id in &args.ledgers {
        let ledger = LedgerId::new(*id).context("a ledger id")?;
        for (_, row) in catalogue.extents(ledger, EntryId::FIRST, 1_000_000).await? {
            objects.insert(row.object.id, row.object);
        }
    }
    let (t0, cpu0, mut bytes) = (Instant::now(), cpu_seconds()?, 0u64);
    for object in objects.values() {
        let key = store.key(&object_key(cluster, object.id));
        bytes += store.inner().get(&key).await?.bytes().await?.len() as u64;
    }
    let (seconds, cpu) = (t0.elapsed().as_secs_f64(), cpu_seconds()? - cpu0);
    let _ = layout.store().close().await;
    Ok(json!({
        "objects": objects.len(), "bytes": bytes, "seconds": seconds, "mbPerSecond": bytes as f64 / seconds / 1e6,
        "cpuSeconds": cpu,
    }))
}
