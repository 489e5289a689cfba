//! `bindery cluster under-replicated` and `bindery cluster repair`: what is marked, and the cluster's settings of repair.

use super::args::{ClusterRepairCommand, UnderReplicatedArgs};
use crate::exit::Failure;
use crate::ledger::access::{ledger_failure, store_failure, with_client};
use crate::ledger::form;
use crate::metadata_session::with_session;
use crate::output;
use crate::printable::within_line;
use bindery_client::{Client, LedgerError};
use bindery_metadata::{Layout, StoreError};
use bindery_repair::core::audit::audit;
use serde_json::json;
use std::time::Duration;

/// Prints the ledgers that are marked, the lowest id first.
pub fn under_replicated(args: UnderReplicatedArgs) -> Result<(), Failure> {
    let is_json = args.json;
    with_client(&args.access, false, |client| async move { list(&client, is_json).await })
}

async fn list(client: &Client, is_json: bool) -> Result<(), Failure> {
    let layout = client.layout();
    let live = layout.registration().registered().await.map_err(|error| store_failure(&error))?;
    let marks = layout.under_replication();
    let (mut listing, mut count) = (marks.list(), 0u64);
    while let Some(page) = listing.next().await.map_err(|error| store_failure(&error))? {
        let mut text = Vec::new();
        for ledger in page {
            let Some(mark) = marks.marked(ledger).await.map_err(|error| store_failure(&error))? else {
                continue;
            };
            let found = match layout.ledgers().get(ledger).await {
                Ok(stored) => {
                    Some((audit(&stored.metadata, |bookie| live.contains(bookie)), stored.metadata.quorum))
                }
                Err(LedgerError::NotFound(_)) => None,
                Err(error) => return Err(ledger_failure(&error)),
            };
            count += 1;
            let copies = found.as_ref().map(|(found, quorum)| (found.copies_min, quorum.write_quorum_size()));
            if is_json {
                text.extend(form::line(&json!({
                    "ledger_id": ledger.get(), "since_ms": mark.since_ms, "bookies": mark.replicas,
                    "copies_min": copies.map(|(copies, _)| copies), "write_quorum": copies.map(|(_, all)| all),
                })));
                continue;
            }
            let state = copies
                .map_or_else(|| "deleted".to_owned(), |(copies, all)| format!("{copies} of {all} copies"));
            let since = mark.since_ms.map_or_else(|| "-".to_owned(), form::utc);
            let names: Vec<_> = mark.replicas.iter().map(|name| within_line(name)).collect();
            text.extend(format!("{ledger}  {state}  {since}  {}\n", names.join(" ")).into_bytes());
        }
        output::write_all(&text)?;
    }
    if count == 0 && !is_json {
        output::say("no ledger is marked as under-replicated");
    }
    Ok(())
}

/// Shows or changes the cluster's settings of repair.
pub async fn switch(command: ClusterRepairCommand) -> Result<(), Failure> {
    let (ClusterRepairCommand::Enable(metadata)
    | ClusterRepairCommand::Disable(metadata)
    | ClusterRepairCommand::Status { metadata, .. }
    | ClusterRepairCommand::Delay { metadata, .. }) = &command;
    with_session(metadata, async |layout| {
        let settings = layout.repair_settings();
        match &command {
            ClusterRepairCommand::Enable(_) => {
                said(settings.enable().await, "repair is enabled", "it was enabled before")
            }
            ClusterRepairCommand::Disable(_) => said(
                settings.disable().await,
                "repair is disabled until bindery cluster repair enable; ledgers stay marked",
                "it was disabled before",
            ),
            ClusterRepairCommand::Delay { time, .. } => delay(layout, *time).await,
            ClusterRepairCommand::Status { json, .. } => status(layout, *json).await,
        }
    })
    .await
}

fn said(outcome: Result<bool, StoreError>, changed: &str, unchanged: &str) -> Result<(), Failure> {
    let has_changed = outcome.map_err(|error| store_failure(&error))?;
    output::write_text(&format!("{}\n", if has_changed { changed } else { unchanged }))
}

async fn delay(layout: &Layout, time: Duration) -> Result<(), Failure> {
    if time.subsec_nanos() != 0 || u32::try_from(time.as_secs()).is_err() {
        return Err(Failure::usage("give whole seconds, at most 4294967295, for example 900s or 15m"));
    }
    layout.repair_settings().set_delay(time).await.map_err(|error| store_failure(&error))?;
    output::write_text(&format!("ledgers of a bookie are repaired after {} s\n", time.as_secs()))
}

async fn status(layout: &Layout, is_json: bool) -> Result<(), Failure> {
    let failure = |error: StoreError| store_failure(&error);
    let settings = layout.repair_settings();
    let is_disabled = settings.is_disabled().await.map_err(failure)?;
    let delay = settings.delay().await.map_err(failure)?;
    let auditors = layout.auditor_votes().auditors().await.map_err(failure)?;
    let (mut marked, mut listing) = (0u64, layout.under_replication().list());
    while let Some(page) = listing.next().await.map_err(failure)? {
        marked += page.len() as u64;
    }
    if is_json {
        return output::write_all(&form::line(&json!({
            "enabled": !is_disabled, "auditors": auditors, "lost_bookie_recovery_delay_s": delay.map(|delay| delay.as_secs()),
            "under_replicated": marked,
        })));
    }
    let auditor = match auditors.is_empty() {
        true => "none: start bindery repair, or a bookie with autoRecoveryDaemonEnabled=true".to_owned(),
        false => auditors.iter().map(|name| within_line(name)).collect::<Vec<_>>().join(", "),
    };
    let delay = delay
        .map_or_else(|| "as the auditor is configured".to_owned(), |delay| format!("{} s", delay.as_secs()));
    output::write_text(&format!(
        "repair             {}\nauditor            {auditor}\nlost after         {delay}\nunder-replicated   {}\n",
        if is_disabled { "disabled (bindery cluster repair enable)" } else { "enabled" },
        form::count(marked, "ledger", "ledgers"),
    ))
}
