//! `bindery tier pause` and `resume`: a flag in the metadata store, which all tierers of the cluster watch.

use super::args::TierPauseArgs;
use crate::args::{LogFormat, MetadataArgs};
use crate::exit::Failure;
use crate::ledger::form;
use crate::logging;
use crate::metadata_failure::store_failure;
use crate::metadata_session::with_session;
use crate::output;
use crate::printable::within_line;
use crate::runtime;
use bindery_io::{Clock, SystemClock};
use bindery_metadata::StoreError;
use bindery_metadata::layout::{Layout, TierPause};

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
    let work = async |layout: &Layout| {
        let changed = change(layout.tier_pause()).await;
        changed.map_err(|error| store_failure(&error, error.to_string()))
    };
    let said = runtime::single()?.block_on(with_session(args, work))?;
    // The reason of a pause is text of whoever may write metadata.
    output::write_text(&format!("{}\n", within_line(&said)))
}
