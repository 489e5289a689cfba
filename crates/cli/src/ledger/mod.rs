//! `bindery ledger`: one file for each verb that does more than ask the client.
//!
//! Data goes to standard output through [`crate::output`], messages to standard error; errors carry their exit code
//! from [`access`]. Not here: replication, hand-over, recovery (`bindery_client`).

pub mod access;
mod append;
pub mod args;
pub mod form;
mod input;
mod list;
pub mod placement;
mod printer;
mod read;
mod recover;
mod tiered;
pub mod verify;

use self::access::{create_failure, ledger_failure, open_failure, with_client, with_tuned_client};
use self::args::{CloseArgs, CreateArgs, DeleteArgs, Digest, LedgerCommand};
use crate::exit::Failure;
use crate::output;
use crate::progress::Progress;
use bindery_client::{
    Client, CreateOptions, EntryId, LedgerId, LedgerState, METADATA_PATIENCE_DEFAULT, OpenMode,
};
use serde_json::json;
use std::io::IsTerminal;

/// Runs one command.
pub fn run(command: LedgerCommand) -> Result<(), Failure> {
    match command {
        LedgerCommand::Create(args) => {
            let (access, tune) = (args.access.clone(), args.placement.tune()?);
            with_tuned_client(&access, false, tune, |client| create(client, args))
        }
        LedgerCommand::Append(args) => {
            let (access, tune) = (args.access.clone(), args.placement.tune()?);
            // When a standalone restarts, its metadata store does, too.
            let (patience, of_store) = (args.patience, args.patience.max(METADATA_PATIENCE_DEFAULT));
            let tune = |builder| tune(builder).bookie_patience(patience).metadata_patience(of_store);
            with_tuned_client(&access, true, tune, |client| append::run(client, args))
        }
        LedgerCommand::Close(args) => {
            let (access, tune) = (args.access.clone(), args.placement.tune()?);
            with_tuned_client(&access, false, tune, |client| close(client, args))
        }
        LedgerCommand::Recover(args) => {
            let (access, tune) = (args.access.clone(), args.placement.tune()?);
            with_tuned_client(&access, false, tune, |client| recover::run(client, args))
        }
        LedgerCommand::Verify(args) => {
            let access = args.access.clone();
            with_client(&access, true, |client| verify::run(client, args))
        }
        LedgerCommand::Read(args) => {
            let (access, tune) = (args.access.clone(), args.placement.tune()?);
            with_tuned_client(&access, true, tune, |client| read::read(client, args))
        }
        LedgerCommand::Tail(args) => {
            let (access, tune) = (args.access.clone(), args.placement.tune()?);
            with_tuned_client(&access, true, tune, |client| read::tail(client, args))
        }
        LedgerCommand::List(args) => {
            let access = args.access.clone();
            with_client(&access, false, |client| list::list(client, args))
        }
        LedgerCommand::Show(args) => {
            let access = args.access.clone();
            with_client(&access, false, |client| list::show(client, args))
        }
        LedgerCommand::Delete(args) => {
            let access = args.access.clone();
            with_client(&access, false, |client| delete(client, args))
        }
    }
}

async fn create(client: Client, args: CreateArgs) -> Result<(), Failure> {
    let quorum = access::quorum(&client, &args.quorum).await?;
    let mut options = CreateOptions::new(quorum);
    options.digest = args.digest.digest_type();
    options.password = args.password.password.into_bytes();
    options.custom = args.property.into_iter().map(|(key, value)| (key, value.into_bytes())).collect();
    let ledger = client.create_handed_over(options).await.map_err(|error| create_failure(&error))?;
    if !args.json {
        access::say_quorum(&args.quorum, quorum);
        return output::write_all(format!("{ledger}\n").as_bytes());
    }
    output::write_all(&form::line(&json!({
        "ledger_id": ledger.get(),
        "ensemble_size": quorum.ensemble_size(),
        "write_quorum_size": quorum.write_quorum_size(),
        "ack_quorum_size": quorum.ack_quorum_size(),
        "digest": Digest::name_of(args.digest.digest_type()),
    })))
}

async fn close(client: Client, args: CloseArgs) -> Result<(), Failure> {
    let progress = Progress::wait(format!("closing ledger {}", args.ledger));
    let opened = client.open_ledger(args.ledger, args.password.password.as_bytes(), OpenMode::Recover).await;
    drop(progress);
    let reader = opened.map_err(|error| open_failure(&error))?;
    let (last, length_bytes) = (reader.last_add_confirmed(), reader.length_bytes());
    if args.json {
        return output::write_all(&form::line(&json!({
            "ledger_id": args.ledger.get(),
            "last_entry": last.map(EntryId::get),
            "length_bytes": length_bytes,
        })));
    }
    let end = end_of(last, length_bytes.unwrap_or(0));
    output::write_all(format!("ledger {} is closed: {end}\n", args.ledger).as_bytes())
}

async fn delete(client: Client, args: DeleteArgs) -> Result<(), Failure> {
    // All are read first: a wrong id is found before anything is deleted.
    let mut described = Vec::new();
    for id in &args.ledgers {
        let info = client.metadata(*id).await.map_err(|error| {
            let failure = ledger_failure(&error);
            Failure::with_code(failure.code, format!("{failure}; nothing was deleted"))
        })?;
        described.push(match info.metadata.state {
            LedgerState::Closed { last_entry: Some(last), length_bytes } => {
                format!("{id} (closed, entries 0 to {last}, {})", form::size(length_bytes))
            }
            LedgerState::Closed { last_entry: None, .. } => format!("{id} (closed, empty)"),
            LedgerState::Open if list::writer(&info) == Some("idle") => format!("{id} (open, no writer)"),
            LedgerState::Open => format!("{id} (open, a writer may be at work)"),
            LedgerState::InRecovery => format!("{id} (in recovery)"),
        });
    }
    if !args.yes {
        confirm("This deletes, for good and for all readers:", "delete", "deleted", &described)?;
    }
    for id in &args.ledgers {
        client.delete_ledger(*id).await.map_err(|error| ledger_failure(&error))?;
        deleted(*id, args.json)?;
    }
    Ok(())
}

/// Asks whether to `verb` what is described; an error unless the answer is yes.
fn confirm(begin: &str, verb: &str, done: &str, described: &[String]) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!(
            "standard input is no terminal to ask on: give --yes to {verb} without being asked"
        )));
    }
    output::say(begin);
    for ledger in described {
        output::say(format!("  ledger {ledger}"));
    }
    output::say_part("Type yes to go on: ");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(Failure::new)?;
    if line.trim() == "yes" { Ok(()) } else { Err(Failure::new(format!("nothing was {done}"))) }
}

/// Where a closed ledger ends, as part of a sentence.
fn end_of(last: Option<EntryId>, length_bytes: u64) -> String {
    match last {
        Some(entry) => format!("its last entry is {entry}, it has {length_bytes} bytes"),
        None => "it has no entries".into(),
    }
}

fn deleted(id: LedgerId, is_json: bool) -> Result<(), Failure> {
    let said = match is_json {
        true => form::line(&json!({ "ledger_id": id.get(), "deleted": true })),
        false => format!("ledger {id} deleted\n").into_bytes(),
    };
    output::write_all(&said)
}
