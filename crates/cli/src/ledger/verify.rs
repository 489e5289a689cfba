//! `bindery ledger verify`: every copy of every entry, from each bookie that should have it.
//!
//! # Data flow
//! ```text
//! ids, or the listing -> metadata -> LedgerReader::verify, step by step -> report -> text or a line of JSON
//! ```
//! The client decides which entries to compare and what counts as a fault (`Verification`). Ledgers are verified one
//! after the other.

use std::fmt::Write as _;

use super::access::{ledger_failure, open_failure, read_failure, store_failure};
use super::args::{LedgerVerifyArgs, StoredPasswordArgs};
use super::form::{self, count};
use super::list;
use crate::exit::{self, Failure};
use crate::output;
use crate::progress::{Progress, Unit};
use bindery_client::{Client, EntryId, Fault, LedgerError, LedgerId, LedgerInfo, OpenMode, VerifyReport};
use bindery_types::BookieId;
use serde_json::{Value, json};

/// Findings that are shown of one ledger; JSON has more.
const FINDINGS_SHOWN: usize = 20;

/// The results for all ledgers.
#[derive(Default)]
struct Sum {
    ledgers: u64,
    entries: u64,
    copies: u64,
    damaged: u64,
    /// Ledgers with no other fault than bookies that could not be asked.
    unreachable: u64,
    /// Exit codes of those that could not be verified.
    failed: Vec<u8>,
}

/// Runs the command.
pub async fn run(client: Client, args: LedgerVerifyArgs) -> Result<(), Failure> {
    if let (Some(first), Some(last)) = (args.first, args.last)
        && first > last
    {
        return Err(Failure::usage(format!("--first {first} is behind --last {last}")));
    }
    let mut sum = Sum::default();
    if args.all {
        let mut listing = client.ledgers();
        while let Some(ids) = listing.next_range().await.transpose().map_err(|error| store_failure(&error))? {
            for id in ids {
                verify(&client, id, &args, &mut sum).await?;
            }
        }
    } else {
        for id in &args.ledgers {
            verify(&client, *id, &args, &mut sum).await?;
        }
    }
    if !args.json && (args.all || args.ledgers.len() > 1) {
        let Sum { ledgers, entries, copies, .. } = sum;
        let said = format!(
            "{}, {}, {}\n",
            count(ledgers, "ledger", "ledgers"),
            count(entries, "entry", "entries"),
            count(copies, "copy", "copies")
        );
        output::write_all(said.as_bytes())?;
    }
    sum.verdict()
}

impl Sum {
    /// The outcome of the command: a failure with the exit code for damage, else the one for bookies that could not be asked, else that of
    /// the first ledger that could not be verified.
    fn verdict(&self) -> Result<(), Failure> {
        let not_looked_at = match self.failed.len() {
            0 => String::new(),
            failed => format!("; {failed} could not be looked at, see above"),
        };
        let of = |number: u64| format!("{number} of {}", count(self.ledgers, "ledger", "ledgers"));
        if self.damaged > 0 {
            return Err(Failure::with_code(
                exit::DAMAGED,
                format!("copies of {} are missing, damaged or different{not_looked_at}", of(self.damaged)),
            ));
        }
        if self.unreachable > 0 {
            return Err(Failure::with_code(
                exit::UNREACHABLE,
                format!(
                    "bookies of {} could not be asked for all copies: bindery bookie list shows which are registered, \
                     bindery bookie health how they answer{not_looked_at}",
                    of(self.unreachable)
                ),
            ));
        }
        match self.failed.first() {
            None => Ok(()),
            Some(code) => Err(Failure::with_code(
                *code,
                format!("{} could not be looked at, see above", of(self.failed.len() as u64)),
            )),
        }
    }
}

async fn verify(
    client: &Client,
    id: LedgerId,
    args: &LedgerVerifyArgs,
    sum: &mut Sum,
) -> Result<(), Failure> {
    match look(client, id, args).await {
        Ok(None) => Ok(()),
        Ok(Some((state, report))) => {
            sum.ledgers += 1;
            sum.entries += report.entries;
            sum.copies += copies(&report);
            sum.damaged += u64::from(report.is_damaged());
            sum.unreachable += u64::from(!report.is_damaged() && !report.is_sound());
            match args.json {
                true => output::write_all(&form::line(&object(state, &report))),
                false => output::write_text(&text(state, &report)),
            }
        }
        Err(failure) if !args.all && args.ledgers.len() == 1 => Err(failure),
        Err(failure) => {
            // The others can still be verified.
            output::say(format!("bindery: ledger {id}: {failure}"));
            sum.ledgers += 1;
            sum.failed.push(failure.code);
            Ok(())
        }
    }
}

/// Verifies one ledger; returns its state and what was found, or nothing if it was deleted after it was listed.
async fn look(
    client: &Client,
    id: LedgerId,
    args: &LedgerVerifyArgs,
) -> Result<Option<(&'static str, VerifyReport)>, Failure> {
    let info = match client.metadata(id).await {
        Ok(info) => info,
        Err(LedgerError::NotFound(_)) if args.all => return Ok(None),
        Err(error) => return Err(ledger_failure(&error)),
    };
    let report = every_copy(client, &info, &args.password, args.first, args.last).await?;
    Ok(Some((list::state(&info), report)))
}

/// Reads every copy of the entries of a ledger from `first` to `last`, by default of all, and compares them.
pub async fn every_copy(
    client: &Client,
    info: &LedgerInfo,
    password: &StoredPasswordArgs,
    first: Option<EntryId>,
    last: Option<EntryId>,
) -> Result<VerifyReport, Failure> {
    let opened = client.open_ledger(info.id, password.of(info), OpenMode::ReadOnly).await;
    let reader = opened.map_err(|error| open_failure(&error))?;
    let first = first.unwrap_or(EntryId::FIRST);
    let mut look = reader.verify(first, last).await.map_err(|error| read_failure(&error))?;
    let total = look.report().last.map_or(0, |last| (last.get() - first.get()) as u64 + 1);
    // It ends before the report is printed, so the two never mix.
    let progress = Progress::start(format!("ledger {}", info.id), Unit::Entries, Some(total), false);
    while look.step().await.map_err(|error| read_failure(&error))? {
        progress.set(look.report().entries);
    }
    Ok(look.into_report())
}

/// The bookies without a sound copy of each entry that they should have, also those that could not be asked.
pub fn at_fault(report: &VerifyReport) -> Vec<BookieId> {
    let at_fault = report.bookies.iter().filter(|(_, counts)| counts.sound() < counts.checked);
    at_fault.map(|(bookie, _)| bookie.clone()).collect()
}

fn copies(report: &VerifyReport) -> u64 {
    report.bookies.values().map(|counts| counts.checked).sum()
}

/// The fields of `--json`, which never change their meaning.
fn object(state: &str, report: &VerifyReport) -> Value {
    let bookies: Vec<Value> = report
        .bookies
        .iter()
        .map(|(bookie, counts)| {
            json!({
                "bookie_id": bookie.as_str(),
                "checked": counts.checked,
                "missing": counts.missing,
                "damaged": counts.damaged,
                "different": counts.different,
                "unreachable": counts.unreachable,
            })
        })
        .collect();
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|finding| {
            json!({
                "bookie_id": finding.bookie.as_str(),
                "fault": finding.fault.to_string(),
                "first_entry": finding.first.get(),
                "last_entry": finding.last.get(),
                "entries": finding.entries,
                "error": finding.error.as_ref().map(ToString::to_string),
            })
        })
        .collect();
    json!({
        "ledger_id": report.ledger.get(),
        "state": state,
        "sound": report.is_sound(),
        "first_entry": report.first.get(),
        "last_entry": report.last.map(EntryId::get),
        "entries": report.entries,
        "payload_bytes": report.payload_bytes,
        "copies": copies(report),
        "bookies": bookies,
        "ack_quorum_size": report.ack_quorum_size,
        "below_ack_quorum": report.below_ack_quorum,
        "lost": report.lost,
        "undecided": report.undecided,
        "first_below": report.first_below.map(EntryId::get),
        "findings": findings,
        "findings_left_out": report.findings_left_out,
    })
}

fn text(state: &str, report: &VerifyReport) -> String {
    let mut text = format!("ledger {}", report.ledger);
    if !report.is_closed {
        let _ = write!(text, " ({state}: up to the last entry known to be acknowledged)");
    }
    let Some(last) = report.last else {
        text.push_str(": no entries\n");
        return text;
    };
    let bookies = report.bookies.len() as u64;
    let _ = write!(
        text,
        ": {}, {} to {last}, {} on {}",
        count(report.entries, "entry", "entries"),
        report.first,
        count(copies(report), "copy", "copies"),
        count(bookies, "bookie", "bookies"),
    );
    if report.is_sound() {
        text.push_str(", all sound\n");
        return text;
    }
    let faults = Fault::ALL.map(|fault| (report.copies(fault), fault)).into_iter();
    let faults: Vec<String> =
        faults.filter(|(copies, _)| *copies > 0).map(|(copies, fault)| format!("{copies} {fault}")).collect();
    let _ = writeln!(text, ": {}", faults.join(", "));
    let width = report.bookies.keys().map(|bookie| bookie.as_str().len()).max().unwrap_or(0).max(6);
    let _ = writeln!(
        text,
        "  {:<width$}  {:>9}  {:>9}  {:>9}  {:>9}  {:>11}",
        "BOOKIE", "CHECKED", "MISSING", "DAMAGED", "DIFFERENT", "UNREACHABLE"
    );
    for (bookie, counts) in &report.bookies {
        let _ = writeln!(
            text,
            "  {:<width$}  {:>9}  {:>9}  {:>9}  {:>9}  {:>11}",
            bookie.as_str(),
            counts.checked,
            counts.missing,
            counts.damaged,
            counts.different,
            counts.unreachable
        );
    }
    for finding in report.findings.iter().take(FINDINGS_SHOWN) {
        let _ = writeln!(text, "  {finding}");
    }
    let more = report.findings.len().saturating_sub(FINDINGS_SHOWN) as u64 + report.findings_left_out;
    if more > 0 {
        let _ = writeln!(text, "  and {more} more; --json shows up to {}", bindery_client::FINDINGS_MAX);
    }
    for line in consequences(report).into_iter().chain(advice(report)) {
        let _ = writeln!(text, "  {line}");
    }
    text
}

/// The consequences for the entries.
fn consequences(report: &VerifyReport) -> Vec<String> {
    let VerifyReport { below_ack_quorum, lost, undecided, ack_quorum_size, .. } = report;
    let Some(first) = report.first_below else {
        return vec![format!(
            "every entry has {} or more",
            count(*ack_quorum_size as u64, "sound copy", "sound copies")
        )];
    };
    let mut lines = Vec::new();
    if *below_ack_quorum > 0 {
        lines.push(format!(
            "{} below the ack quorum of {ack_quorum_size}, {lost} of them without any sound copy",
            count(*below_ack_quorum, "entry is", "entries are")
        ));
    }
    if *undecided > 0 {
        lines.push(format!(
            "{} the ack quorum of {ack_quorum_size} only if bookies that could not be asked have sound copies",
            count(*undecided, "entry has", "entries have")
        ));
    }
    lines.push(format!("the first of these is entry {first}"));
    lines
}

/// The remedies, with commands that exist.
fn advice(report: &VerifyReport) -> Vec<String> {
    let id = report.ledger;
    let has = |fault| report.copies(fault) > 0;
    let mut lines = Vec::new();
    if has(Fault::Unreachable) {
        lines.push(format!(
            "unreachable: bindery bookie list shows who is registered, bindery bookie health how they answer; start them, \
             then bindery ledger verify {id}"
        ));
    }
    if has(Fault::Damaged) || has(Fault::Different) {
        lines.push(
            "damaged, different: stop that bookie and run bindery verify on its directories, which says what is wrong there"
                .to_owned(),
        );
    }
    // The only sound copies may be on bookies that could not be asked: nothing is repaired before they are.
    if report.is_damaged() && !has(Fault::Unreachable) {
        lines.push(repair(id, report.lost, report.is_closed));
        if has(Fault::Different) && report.lost == 0 {
            lines.push(format!(
                "different: a repair does not tell which copy is right, and takes those on bookies that run for sound: stop the bookies with \
                 the wrong ones before bindery ledger repair {id}, which then replaces them"
            ));
        }
    }
    lines
}

/// How to bring back what is missing, as far as that is possible.
fn repair(id: LedgerId, lost: u64, is_closed: bool) -> String {
    if lost > 0 {
        return format!(
            "{} without any sound copy and cannot be brought back: to save the others, copy what is before and behind them (--last, \
             --first): bindery ledger read {id} --delimiter length | bindery ledger append NEW --length-delimited, into a ledger made with \
             bindery ledger create",
            count(lost, "entry is", "entries are")
        );
    }
    if !is_closed {
        return format!(
            "the ledger is open: repair it once it is closed, by its writer or, where that is gone, by bindery ledger close {id}; then \
             bindery ledger verify {id}"
        );
    }
    format!(
        "bindery ledger repair {id} brings missing and damaged copies back from other bookies; bookies that repair do it by themselves for \
         ledgers that are marked (bindery cluster under-replicated)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_is_copied_only_where_repair_does_not_help() {
        let id = LedgerId::MIN;
        let whole = repair(id, 0, true);
        assert!(whole.contains("bindery ledger repair 0 ") && !whole.contains("append"), "{whole}");
        let open = repair(id, 0, false);
        assert!(open.contains("once it is closed") && !open.contains("ledger repair"), "{open}");
        let lost = repair(id, 2, true);
        assert!(
            lost.starts_with("2 entries are without any sound copy") && lost.contains("append NEW"),
            "{lost}"
        );
        assert!(!lost.contains("ledger repair"), "{lost}");
    }
}
