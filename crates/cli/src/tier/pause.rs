//! `bindery tier pause` and `resume`: a flag in the metadata store, which all tierers of the cluster watch.

use super::args::TierPauseArgs;
use crate::args::{LogFormat, MetadataArgs};
use crate::cluster_transfer::{open_failure, store_failure};
use crate::exit::Failure;
use crate::ledger::form;
use crate::logging;
use crate::output;
use crate::runtime;
use bindery_io::{Clock, SystemClock};
use bindery_metadata::layout::TierPause;
use bindery_metadata::{MetadataUri, StoreError};

/// Pauses tiering.
pub fn pause(args: &TierPauseArgs) -> Result<(), Failure> {
    let since = form::utc(SystemClock::new().wall_ms());
    let reason = match args.reason.as_str() {
        "" => format!("since {since}"),
        reason => format!("since {since}: {reason}"),
    };
    with_flag(&args.metadata, async |flag| {
        Ok(match flag.pause(&reason).await? {
            true => "tiering is paused: tierers finish what they are at, and begin nothing until bindery tier resume".to_owned(),
            false => {
                let before = flag.get().await?.unwrap_or_default();
                format!("tiering was paused already, {before}")
            }
        })
    })
}

/// Ends a pause.
pub fn resume(args: &MetadataArgs) -> Result<(), Failure> {
    with_flag(args, async |flag| {
        Ok(match flag.resume().await? {
            true => "tiering goes on".to_owned(),
            false => "tiering was not paused".to_owned(),
        })
    })
}

fn with_flag(
    args: &MetadataArgs,
    change: impl AsyncFnOnce(TierPause) -> Result<String, StoreError>,
) -> Result<(), Failure> {
    logging::start_at(LogFormat::Text, "warn");
    let uri: MetadataUri =
        args.metadata.parse().map_err(|error: bindery_metadata::UriError| Failure::usage(error))?;
    let options = args.options()?;
    let runtime = runtime::single()?;
    runtime.block_on(async {
        let layout = bindery_metadata::connect(&uri, options).await;
        let layout = layout.map_err(|error| open_failure(&args.metadata, &error))?;
        let changed = change(layout.tier_pause()).await;
        // The session would end by itself.
        let _ = layout.store().close().await;
        let said = changed.map_err(|error| store_failure(&error, error.to_string()))?;
        output::write_all(format!("{said}\n").as_bytes())
    })
}
