//! `bindery tier rebuild`: the catalogue of a cluster that lives, from the footers of its objects.
//!
//! Tiering is paused meanwhile; tierers that run take the new catalogue over by themselves, and those that could not start do. No ledger and
//! no object is touched.

use super::args::TierRebuildArgs;
use crate::args::LogFormat;
use crate::bucket::{catalogue_failure, cluster_of, failure, open_store};
use crate::exit::{self, Failure};
use crate::ledger::form::{self, count};
use crate::logging;
use crate::metadata_failure::store_failure;
use crate::metadata_session::with_session;
use crate::output;
use crate::progress::{Progress, Unit};
use crate::runtime;
use bindery_io::{SystemClock, SystemRandom};
use bindery_metadata::StoreError as MetadataError;
use bindery_metadata::codec;
use bindery_metadata::layout::Layout;
use bindery_tiering::ClusterId;
use bindery_tiering::catalogue::{self, CatalogueOptions, Rebuilt};
use bindery_tiering::store::{self, Store};
use serde_json::json;
use std::sync::Arc;

/// The reason of a pause that this command ends.
const PAUSE_REASON: &str = "bindery tier rebuild";
/// Gaps that are named one by one.
const GAPS_SAID: usize = 20;

/// Runs the command.
pub fn run(args: &TierRebuildArgs) -> Result<(), Failure> {
    logging::start_at(LogFormat::Text, "warn");
    let store = open_store(&args.store)?;
    let work = async |layout: &Layout| with_layout(&store, layout, args).await;
    runtime::for_data()?.block_on(with_session(&args.metadata, work))
}

async fn with_layout(store: &Store, layout: &Layout, args: &TierRebuildArgs) -> Result<(), Failure> {
    let cluster = cluster_of(layout).await?;
    let found = store::clusters(store).await.map_err(|error| failure(store, &error))?;
    if !found.contains(&cluster) {
        return Err(Failure::with_code(
            exit::NOT_FOUND,
            format!(
                "{}: there is nothing of cluster {cluster} here: check the URL and the prefix",
                store.url()
            ),
        ));
    }
    let failed = |error: MetadataError| store_failure(&error, error.to_string());
    let pause = layout.tier_pause();
    pause.pause(PAUSE_REASON).await.map_err(failed)?;
    let is_our_pause = pause.get().await.map_err(failed)?.is_some_and(|why| why.starts_with(PAUSE_REASON));
    let outcome = catalogue(store, cluster).await;
    if is_our_pause {
        pause.resume().await.map_err(failed)?;
    }
    let rebuilt = outcome?;
    say(&rebuilt, |line| output::say(line));
    let totals = rebuilt.totals;
    let text = match args.json {
        true => form::line(&json!({
            "type": "summary", "objects": totals.objects, "ledgers": totals.ledgers, "extents": totals.extents,
            "gaps": rebuilt.gap_count, "unreadable": rebuilt.unreadable_count, "tiering_paused": !is_our_pause,
        })),
        false => format!(
            "the catalogue is rebuilt: {} with {}\n",
            count(totals.objects, "object", "objects"),
            count(totals.ledgers, "ledger", "ledgers")
        )
        .into_bytes(),
    };
    output::write_all(&text)?;
    if !is_our_pause {
        output::say("tiering was paused before this command, and stays so; bindery tier resume ends it");
    }
    Ok(())
}

/// Rebuilds the catalogue from the objects. Tiering is already paused.
pub async fn catalogue(store: &Store, cluster: ClusterId) -> Result<Rebuilt, Failure> {
    let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
    let options = CatalogueOptions::default();
    let created_ms = |bytes: &[u8]| codec::ledger::decode(bytes).ok()?.created_ms;
    let progress = Progress::start("reading footers", Unit::Objects, None, true);
    let rebuilt = catalogue::rebuild(store, cluster, &options, clock, random, created_ms, |objects| {
        progress.set(objects)
    })
    .await;
    rebuilt.map_err(|error| catalogue_failure(store, &error))
}

/// What could not be taken over.
pub fn say(rebuilt: &Rebuilt, mut line: impl FnMut(&str)) {
    for (key, problem) in &rebuilt.unreadable {
        line(&format!("{key} cannot be read, and is left alone: {problem}"));
    }
    for gap in rebuilt.gaps.iter().take(GAPS_SAID) {
        line(&format!("ledger {}: no object has entries {} to {}", gap.ledger, gap.first, gap.last));
    }
    if rebuilt.gap_count > GAPS_SAID as u64 {
        line(&format!("and {} more gaps", rebuilt.gap_count - GAPS_SAID as u64));
    }
}
