//! `bindery bookie recover`: brings back the copies that lost bookies had, now.

use super::args::{BookieRecoverArgs, CopyArgs};
use super::{bookie_ids, config, own_name};
use crate::exit::{self, Failure};
use crate::ledger::access::{ledger_failure, store_failure, with_tuned_client};
use crate::ledger::form;
use crate::output;
use crate::progress::{Progress, Unit};
use bindery_client::Client;
use bindery_io::SystemClock;
use bindery_metadata::Layout;
use bindery_repair::{StuckLedger, mark_ledgers_of, repair_ledgers};
use bindery_types::{BookieId, LedgerId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Title of the progress of a look through all ledgers.
pub(super) const LOOKING: &str = "looking through all ledgers";
/// Attempts in a row that fail before a ledger is given up.
const ATTEMPTS: u32 = 3;

/// Repairs what the bookies had.
pub fn run(args: BookieRecoverArgs) -> Result<(), Failure> {
    let lost = bookie_ids(&args.bookie_ids)?;
    let tune = args.worker.placement.tune()?;
    let (copies, is_dry_run) = (args.worker.copies.clone(), args.dry_run);
    with_tuned_client(&args.worker.access, true, tune, |client| async move {
        check_stopped(client.layout(), &lost).await?;
        let marked = mark(&client, &lost, is_dry_run).await?;
        if is_dry_run || marked.is_empty() {
            return Ok(());
        }
        let stuck = repair(&client, &copies, &marked).await?;
        report(&marked, &stuck)
    })
}

/// Refuses what is only for bookies that are stopped.
pub async fn check_stopped(layout: &Layout, bookies: &BTreeSet<BookieId>) -> Result<(), Failure> {
    let registered = layout.registration().registered().await.map_err(|error| store_failure(&error))?;
    match registered.intersection(bookies).next() {
        None => Ok(()),
        Some(running) => {
            Err(Failure::new(format!("bookie {running} is running: stop it first; nothing was changed")))
        }
    }
}

/// Marks the ledgers that refer to the bookies, and prints them when that is all.
pub(super) async fn mark(
    client: &Client,
    lost: &BTreeSet<BookieId>,
    is_dry_run: bool,
) -> Result<BTreeSet<LedgerId>, Failure> {
    let progress = Progress::wait(LOOKING);
    let marked = mark_ledgers_of(client, &SystemClock::new(), lost, is_dry_run).await;
    drop(progress);
    let found = marked.map_err(|error| ledger_failure(&error))?;
    for ledger in &found.unreadable {
        output::say(format!(
            "the metadata of ledger {ledger} cannot be read: whether it refers to the bookie is not known"
        ));
    }
    let marked = found.lacking;
    if marked.is_empty() {
        output::say("no ledger has entries there");
    }
    if is_dry_run {
        let text: String = marked
            .iter()
            .map(|(ledger, bookies)| {
                let names: Vec<&str> = bookies.iter().map(BookieId::as_str).collect();
                format!("{ledger}  {}\n", names.join(" "))
            })
            .collect();
        output::write_text(&text)?;
    }
    Ok(marked.into_iter().map(|(ledger, _)| ledger).collect())
}

/// Fails while repair is disabled in the cluster. Marks stay.
pub(super) async fn check_enabled(client: &Client) -> Result<(), Failure> {
    match client.layout().repair_settings().is_disabled().await.map_err(|error| store_failure(&error))? {
        false => Ok(()),
        true => Err(Failure::new(
            "repair is disabled in this cluster: bindery cluster repair enable; the ledgers are marked, and repaired then",
        )),
    }
}

/// Repairs ledgers, with a bar: those that cannot be repaired now.
pub(super) async fn repair(
    client: &Client,
    copies: &CopyArgs,
    ledgers: &BTreeSet<LedgerId>,
) -> Result<Vec<StuckLedger>, Failure> {
    check_enabled(client).await?;
    let total = ledgers.len() as u64;
    let mut progress = Progress::start("repairing", Unit::Ledgers, Some(total), true);
    let config = config(own_name(None)?, copies);
    let repaired =
        repair_ledgers(config, client.clone(), Arc::new(SystemClock::new()), ledgers, ATTEMPTS, |report| {
            let left: u64 = report.waiting.values().sum();
            progress.set(total.saturating_sub(left));
        })
        .await;
    progress.clear();
    repaired.map_err(|error| store_failure(&error))
}

/// Says what became of it; a failure when some are left.
pub(super) fn report(marked: &BTreeSet<LedgerId>, stuck: &[StuckLedger]) -> Result<(), Failure> {
    let whole = marked.len() - stuck.len().min(marked.len());
    output::say(format!("{} whole again", form::count(whole as u64, "ledger is", "ledgers are")));
    for left in stuck {
        output::say(format!("ledger {} cannot be repaired: {}", left.ledger, left.why));
    }
    match stuck.len() {
        0 => Ok(()),
        left => Err(Failure::with_code(
            exit::FAILURE,
            format!(
                "{} left; they stay marked (bindery cluster under-replicated): remove the causes and repeat the command",
                form::count(left as u64, "ledger is", "ledgers are")
            ),
        )),
    }
}
