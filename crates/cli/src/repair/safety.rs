//! `bindery cluster safe-to-stop`: what a rolling restart asks before each step.

use super::args::SafeToStopArgs;
use super::bookie_ids;
use super::recover::LOOKING;
use crate::exit::{self, Failure};
use crate::ledger::access::{ledger_failure, store_failure, with_client};
use crate::ledger::form;
use crate::output;
use crate::progress::{Progress, Unit};
use bindery_client::Client;
use bindery_metadata::layout::RegistrationMode;
use bindery_repair::core::safety::{StopVerdict, verdict};
use bindery_repair::for_each_ledger;
use bindery_types::{BookieId, LedgerId};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// Ledgers that are named.
const NAMED_MAX: usize = 5;

/// Looks through all ledgers, and answers.
pub fn run(args: SafeToStopArgs) -> Result<(), Failure> {
    let stopped = bookie_ids(&args.bookie_ids)?;
    let is_json = args.json;
    with_client(&args.access, false, |client| async move { answer(&client, &stopped, is_json).await })
}

#[derive(Default)]
struct Found {
    ledgers: u64,
    unsafe_ledgers: Vec<(LedgerId, StopVerdict)>,
    unsafe_count: u64,
    /// The largest ensemble of a ledger that is written to.
    ensemble_max: usize,
}

async fn answer(client: &Client, stopped: &BTreeSet<BookieId>, is_json: bool) -> Result<(), Failure> {
    let registered = client.layout().registration().list().await.map_err(|error| store_failure(&error))?;
    let live: BTreeSet<BookieId> = registered.iter().map(|bookie| bookie.bookie_id.clone()).collect();
    if let Some(unknown) = stopped.iter().find(|bookie| !live.contains(*bookie)) {
        return Err(Failure::new(format!(
            "bookie {unknown} is not registered: it is stopped already, or its id is another; bindery bookie list shows those that run"
        )));
    }
    let lacking = marked(client).await?;
    let mut found = Found::default();
    let progress = Progress::start(LOOKING, Unit::Ledgers, None, false);
    let scanned = for_each_ledger(client, |ledger, metadata| {
        found.ledgers += 1;
        progress.set(found.ledgers);
        if metadata.state == bindery_types::LedgerState::Open {
            found.ensemble_max = found.ensemble_max.max(metadata.quorum.ensemble_size());
        }
        // A bookie that a mark names may lack entries, also when it is registered.
        let verdict = match lacking.get(&ledger) {
            None => verdict(metadata, &live, stopped),
            Some(lacking) => verdict(metadata, &live.difference(lacking).cloned().collect(), stopped),
        };
        if verdict != StopVerdict::Safe {
            found.unsafe_count += 1;
            found.unsafe_ledgers.push((ledger, verdict));
            // The smallest ids.
            found.unsafe_ledgers.sort_unstable_by_key(|(ledger, _)| *ledger);
            found.unsafe_ledgers.truncate(NAMED_MAX);
        }
    })
    .await;
    drop(progress);
    let unreadable = scanned.map_err(|error| ledger_failure(&error))?;
    let now = client.layout().registration().registered().await.map_err(|error| store_failure(&error))?;
    let writable = registered.iter().filter(|bookie| bookie.mode == RegistrationMode::Writable);
    let left = writable.filter(|bookie| !stopped.contains(&bookie.bookie_id)).count();
    let mut reasons: Vec<String> =
        found.unsafe_ledgers.iter().map(|(ledger, verdict)| reason(*ledger, *verdict)).collect();
    if found.unsafe_count > reasons.len() as u64 {
        reasons.push(format!("and {} more ledgers", found.unsafe_count - reasons.len() as u64));
    }
    if left < found.ensemble_max {
        reasons.push(format!(
            "{} would take writes, and ledgers that are written to have ensembles of {}: writers could not replace one that fails",
            form::count(left as u64, "bookie", "bookies"),
            found.ensemble_max
        ));
    }
    if let Some(ledger) = unreadable.first() {
        reasons.push(format!(
            "the metadata of {} cannot be read, for example of ledger {ledger}",
            form::count(unreadable.len() as u64, "ledger", "ledgers")
        ));
    }
    if let Some(gone) = live.difference(&now).next() {
        reasons.push(format!("bookie {gone} went away meanwhile: repeat the command"));
    }
    let is_safe = reasons.is_empty();
    let names: Vec<&str> = stopped.iter().map(BookieId::as_str).collect();
    if is_json {
        output::write_all(&form::line(&json!({
            "bookies": names, "safe": is_safe, "ledgers": found.ledgers, "unsafe_ledgers": found.unsafe_count,
            "reasons": reasons,
        })))?;
    } else if is_safe {
        output::write_text(&format!(
            "safe: {} looked at, and each keeps its ack quorum and two copies without {}\n",
            form::count(found.ledgers, "ledger was", "ledgers were"),
            names.join(" ")
        ))?;
    }
    match is_safe {
        true => Ok(()),
        false => Err(Failure::with_code(
            exit::NOT_SAFE,
            format!("not safe to stop {} now: {}", names.join(" "), reasons.join("; ")),
        )),
    }
}

/// Marked ledgers, and the bookies that lack entries of them.
async fn marked(client: &Client) -> Result<BTreeMap<LedgerId, BTreeSet<BookieId>>, Failure> {
    let marks = client.layout().under_replication();
    let (mut found, mut listing) = (BTreeMap::new(), marks.list());
    while let Some(page) = listing.next().await.map_err(|error| store_failure(&error))? {
        for ledger in page {
            let mark = marks.marked(ledger).await.map_err(|error| store_failure(&error))?;
            let Some(mark) = mark else { continue };
            let replicas = mark.replicas.iter().filter_map(|replica| BookieId::new(replica.as_str()).ok());
            found.insert(ledger, replicas.collect());
        }
    }
    Ok(found)
}

fn reason(ledger: LedgerId, verdict: StopVerdict) -> String {
    match verdict {
        StopVerdict::Safe => String::new(),
        StopVerdict::Unreadable => format!("entries of ledger {ledger} would have no copy"),
        StopVerdict::FewCopies { copies, ack_quorum } => format!(
            "entries of ledger {ledger} would have {} (ack quorum {ack_quorum})",
            form::count(copies as u64, "copy", "copies")
        ),
    }
}
