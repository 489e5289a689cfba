//! `bindery bookie decommission`: takes a bookie out of the cluster for good.

use super::args::DecommissionArgs;
use super::recover::{LOOKING, check_enabled, check_stopped, mark, repair, report};
use crate::exit::Failure;
use crate::ledger::access::{ledger_failure, store_failure, with_tuned_client};
use crate::ledger::form;
use crate::metadata_failure::cookie_failure;
use crate::output;
use crate::progress::Progress;
use bindery_client::Client;
use bindery_io::SystemClock;
use bindery_repair::mark_ledgers_of;
use bindery_types::BookieId;
use std::collections::BTreeSet;

/// Empties the bookie, proves that nothing refers to it, and removes its cookie; or begins that.
pub fn run(args: DecommissionArgs) -> Result<(), Failure> {
    let bookie = BookieId::new(args.bookie_id).map_err(Failure::usage)?;
    let lost = BTreeSet::from([bookie.clone()]);
    let tune = args.worker.placement.tune()?;
    let copies = args.worker.copies.clone();
    let (is_dry_run, waits) = (args.dry_run, args.wait);
    with_tuned_client(&args.worker.access, true, tune, |client| async move {
        check_known(&client, &bookie, &lost).await?;
        check_stopped(client.layout(), &lost).await?;
        let marked = mark(&client, &lost, is_dry_run).await?;
        if is_dry_run {
            return Ok(());
        }
        if !waits && !marked.is_empty() {
            return begun(&client, marked.len() as u64).await;
        }
        if !marked.is_empty() {
            let stuck = repair(&client, &copies, &marked).await?;
            report(&marked, &stuck)?;
        }
        remove(&client, &bookie, &lost).await?;
        output::write_text(&format!(
            "{bookie}: decommissioned; no ledger refers to it, and its cookie is removed\n"
        ))
    })
}

/// Refuses an id that neither a cookie nor a ledger has: it is a typing error.
pub(super) async fn check_known(
    client: &Client,
    bookie: &BookieId,
    lost: &BTreeSet<BookieId>,
) -> Result<(), Failure> {
    let cookie = client.layout().cookies().raw(bookie).await;
    if cookie.map_err(|error| cookie_failure(&error))?.is_some() {
        return Ok(());
    }
    let progress = Progress::wait(LOOKING);
    let named = mark_ledgers_of(client, &SystemClock::new(), lost, true).await;
    drop(progress);
    match named.map_err(|error| ledger_failure(&error))?.lacking.is_empty() {
        false => Ok(()),
        true => Err(Failure::new(format!(
            "nothing is known of bookie {bookie}: it has no cookie, and no ledger has entries there; bindery cluster cookie list \
             shows the bookies of the cluster"
        ))),
    }
}

/// Says who goes on.
async fn begun(client: &Client, ledgers: u64) -> Result<(), Failure> {
    check_enabled(client).await?;
    let auditors = client.layout().auditor_votes().auditors().await.map_err(|error| store_failure(&error))?;
    let ledgers = form::count(ledgers, "ledger is", "ledgers are");
    match auditors.is_empty() {
        false => output::say(format!(
            "{ledgers} marked, and the cluster's replication workers copy them: repeat the command when bindery cluster \
             under-replicated is empty, or with --wait, to prove that nothing refers to the bookie and to remove its cookie"
        )),
        true => output::say(format!(
            "{ledgers} marked, and nobody repairs this cluster: repeat the command with --wait to copy them here, or start \
             bindery repair"
        )),
    }
    Ok(())
}

/// Looks through all ledgers again, then removes the cookie of a stopped bookie: false when there was none.
pub(super) async fn remove(
    client: &Client,
    bookie: &BookieId,
    lost: &BTreeSet<BookieId>,
) -> Result<bool, Failure> {
    prove(client, bookie, lost).await?;
    // It may have come back meanwhile.
    check_stopped(client.layout(), lost).await?;
    let has_gone = remove_cookie(client, bookie).await?;
    // It may have been taken out while it ran, too.
    client.layout().draining().end(bookie).await.map_err(|error| store_failure(&error))?;
    Ok(has_gone)
}

/// Looks through all ledgers: a failure when any refers to the bookie, or may.
pub(super) async fn prove(
    client: &Client,
    bookie: &BookieId,
    lost: &BTreeSet<BookieId>,
) -> Result<(), Failure> {
    let layout = client.layout();
    // The server may lack ledgers that another one has already.
    let synced = layout.store().sync(&format!("{}/available", layout.root())).await;
    synced.map_err(|error| store_failure(&error))?;
    let progress = Progress::wait("proving that no ledger refers to the bookie");
    let left = mark_ledgers_of(client, &SystemClock::new(), lost, true).await;
    drop(progress);
    let left = left.map_err(|error| ledger_failure(&error))?;
    if let Some((ledger, _)) = left.lacking.first() {
        return Err(Failure::new(format!(
            "{} to bookie {bookie} still, for example ledger {ledger}: repeat the command; its cookie is kept",
            form::count(left.lacking.len() as u64, "ledger refers", "ledgers refer")
        )));
    }
    if let Some(ledger) = left.unreadable.first() {
        return Err(Failure::new(format!(
            "the metadata of {} cannot be read, for example of ledger {ledger}, so nothing proves that bookie {bookie} is not needed: put \
             it right or delete it (bindery ledger show {ledger}), and repeat the command; the cookie is kept",
            form::count(left.unreadable.len() as u64, "ledger", "ledgers")
        )));
    }
    Ok(())
}

/// Removes the cookie of a bookie: false when there was none.
async fn remove_cookie(client: &Client, bookie: &BookieId) -> Result<bool, Failure> {
    let cookies = client.layout().cookies();
    match cookies.raw(bookie).await.map_err(|error| cookie_failure(&error))? {
        None => Ok(false),
        Some((version, _)) => {
            cookies.delete(bookie, Some(version)).await.map_err(|error| cookie_failure(&error))?;
            Ok(true)
        }
    }
}
