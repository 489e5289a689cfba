//! `bindery ledger recover`: ledgers whose writers are gone are fenced, brought to one end, and closed.
//!
//! As `ledger close`, for several ledgers, and prints their former state. All are read before the first is changed.

use super::access::{ledger_failure, open_failure};
use super::args::RecoverArgs;
use super::{confirm, end_of, form, list};
use crate::exit::Failure;
use crate::output;
use crate::progress::Progress;
use bindery_client::{Client, EntryId, LedgerInfo, LedgerState, OpenMode};
use serde_json::json;
use tokio::time::Instant;

/// Runs the command.
pub async fn run(client: Client, args: RecoverArgs) -> Result<(), Failure> {
    let mut ledgers = Vec::new();
    for id in &args.ledgers {
        let info = client.metadata(*id).await.map_err(|error| {
            let failure = ledger_failure(&error);
            Failure::with_code(failure.code, format!("{failure}; nothing was recovered"))
        })?;
        ledgers.push(info);
    }
    // A ledger that no writer holds, and one in recovery, has no writer to stop.
    let has_writer = |info: &&LedgerInfo| !matches!(list::writer(info), None | Some("idle"));
    let written: Vec<String> = ledgers
        .iter()
        .filter(has_writer)
        .map(|info| format!("{} ({})", info.id, list::state_for_people(info)))
        .collect();
    if !written.is_empty() && !args.yes {
        confirm("This stops whoever still writes to:", "recover", "recovered", &written)?;
    }
    let mut failed = Vec::new();
    for info in &ledgers {
        match recover(&client, info, &args).await {
            Ok(()) => {}
            Err(failure) if ledgers.len() == 1 => return Err(failure),
            Err(failure) => {
                // The others can still be recovered.
                output::say(format!("bindery: ledger {}: {failure}", info.id));
                failed.push(failure.code);
            }
        }
    }
    match failed.first() {
        None => Ok(()),
        Some(code) => Err(Failure::with_code(
            *code,
            format!("{} of {} ledgers were not recovered: see above", failed.len(), ledgers.len()),
        )),
    }
}

async fn recover(client: &Client, before: &LedgerInfo, args: &RecoverArgs) -> Result<(), Failure> {
    let started = Instant::now();
    let progress = Progress::wait(format!("recovering ledger {}", before.id));
    let opened = client.open_ledger(before.id, args.password.of(before), OpenMode::Recover).await;
    drop(progress);
    let reader = opened.map_err(|error| open_failure(&error))?;
    let took = started.elapsed();
    let (last, length_bytes) = (reader.last_add_confirmed(), reader.length_bytes().unwrap_or(0));
    if args.json {
        return output::write_all(&form::line(&json!({
            "ledger_id": before.id.get(),
            "state_before": list::state(before),
            "writer_before": list::writer(before),
            "state": "closed",
            "last_entry": last.map(EntryId::get),
            "length_bytes": length_bytes,
            "milliseconds": took.as_secs_f64() * 1000.0,
        })));
    }
    let end = end_of(last, length_bytes);
    let said = match before.metadata.state {
        LedgerState::Closed { .. } => format!("ledger {} was closed already: {end}\n", before.id),
        LedgerState::Open | LedgerState::InRecovery => {
            let state = list::state_for_people(before);
            let ms = took.as_millis();
            format!("ledger {} was {state}; it is closed now, after {ms} ms: {end}\n", before.id)
        }
    };
    output::write_all(said.as_bytes())
}
