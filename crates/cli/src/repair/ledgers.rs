//! `bindery ledger repair`: brings back the copies that some ledgers lack, now.
//!
//! Every copy is read before and after: a bookie's list of its entries says nothing of copies that are damaged and that it believes to be
//! sound.

use super::args::LedgerRepairArgs;
use super::recover::repair;
use crate::exit::{self, Failure};
use crate::ledger::access::{ledger_failure, store_failure, with_tuned_client};
use crate::ledger::form;
use crate::ledger::verify::{at_fault, every_copy};
use crate::output;
use bindery_client::{Client, LedgerInfo};
use bindery_io::{Clock, SystemClock};
use bindery_types::LedgerId;
use std::collections::BTreeSet;

/// Repairs the ledgers.
pub fn run(args: LedgerRepairArgs) -> Result<(), Failure> {
    let tune = args.worker.placement.tune()?;
    let access = args.worker.access.clone();
    with_tuned_client(&access, true, tune, |client| async move { repair_all(&client, &args).await })
}

async fn repair_all(client: &Client, args: &LedgerRepairArgs) -> Result<(), Failure> {
    let ledgers: BTreeSet<LedgerId> = args.ledgers.iter().copied().collect();
    let mut infos = Vec::with_capacity(ledgers.len());
    for id in &ledgers {
        let info = client.metadata(*id).await.map_err(|error| {
            let failure = ledger_failure(&error);
            Failure::with_code(failure.code, format!("{failure}; nothing was repaired"))
        })?;
        infos.push(info);
    }
    let mut marked = BTreeSet::new();
    for info in &infos {
        if mark(client, info, args).await? {
            marked.insert(info.id);
        } else {
            output::write_text(&format!("ledger {} lacks nothing\n", info.id))?;
        }
    }
    if marked.is_empty() {
        return Ok(());
    }
    let stuck = repair(client, &args.worker.copies, &marked).await?;
    let mut left = Vec::new();
    for ledger in &marked {
        left.push(match stuck.iter().find(|stuck| stuck.ledger == ledger.get()) {
            Some(stuck) => format!("ledger {ledger} cannot be repaired now: {}", stuck.why),
            None => match lacks_still(client, *ledger, args).await? {
                None => {
                    output::write_text(&format!("ledger {ledger} is whole again\n"))?;
                    continue;
                }
                Some(names) => format!(
                    "copies of ledger {ledger} on {names} are not as they should be: bindery ledger verify {ledger} says more"
                ),
            },
        });
    }
    match &left[..] {
        [] => Ok(()),
        [one] => Err(Failure::with_code(exit::DAMAGED, one)),
        several => {
            several.iter().for_each(output::say);
            let said = form::count(several.len() as u64, "ledger is", "ledgers are");
            Err(Failure::with_code(
                exit::DAMAGED,
                format!("{said} not whole: remove the causes and repeat the command"),
            ))
        }
    }
}

/// Marks a ledger for what its bookies lack; false when it lacks nothing.
async fn mark(client: &Client, info: &LedgerInfo, args: &LedgerRepairArgs) -> Result<bool, Failure> {
    let lacking = at_fault(&every_copy(client, info, &args.password, None, None).await?);
    if lacking.is_empty() {
        return Ok(false);
    }
    let marks = client.layout().under_replication();
    let now = SystemClock::new().wall_ms();
    marks.mark_since(info.id, &lacking, Some(now)).await.map_err(|error| store_failure(&error))?;
    Ok(true)
}

/// The bookies that lack copies after the repair. A ledger that was deleted meanwhile lacks none.
async fn lacks_still(
    client: &Client,
    ledger: LedgerId,
    args: &LedgerRepairArgs,
) -> Result<Option<String>, Failure> {
    let info = match client.metadata(ledger).await {
        Ok(info) => info,
        Err(bindery_client::LedgerError::NotFound(_)) => return Ok(None),
        Err(error) => return Err(ledger_failure(&error)),
    };
    let lacking = at_fault(&every_copy(client, &info, &args.password, None, None).await?);
    let names: Vec<&str> = lacking.iter().map(|bookie| bookie.as_str()).collect();
    Ok((!names.is_empty()).then(|| names.join(", ")))
}
