//! `bindery cluster`: metadata by hand.

pub mod args;
mod status;

use self::args::ClusterCommand;
use crate::args::{CookieCommand, InitArgs, LogFormat, MetadataArgs};
use crate::cluster_transfer;
use crate::exit::Failure;
use crate::logging;
use crate::metadata_failure::{cookie_failure, store_failure, unreachable};
use crate::metadata_session::{uri, with_session};
use crate::output;
use crate::repair;
use crate::runtime;
use crate::tier::restore::PAUSE_REASON;
use bindery_io::{Random, SystemRandom};
use bindery_metadata::{ConnectOptions, Cookie, InitError, InitOutcome, Layout, MetadataUri, StoreError};
use bindery_tiering::ClusterId;
use bindery_types::BookieId;
use std::collections::BTreeSet;
use std::io::IsTerminal;

/// Runs one command.
pub fn run(command: ClusterCommand) -> Result<(), Failure> {
    match command {
        ClusterCommand::SafeToStop(args) => repair::safe_to_stop(args),
        ClusterCommand::UnderReplicated(args) => repair::under_replicated(args),
        ClusterCommand::Status(args) => status::run(args),
        ClusterCommand::Init(args) => on_metadata(init(&args)),
        ClusterCommand::Export(args) => on_metadata(cluster_transfer::export(&args)),
        ClusterCommand::Import(args) => on_metadata(cluster_transfer::import(&args)),
        ClusterCommand::Repair(args) => on_metadata(repair::switch(args.command)),
        ClusterCommand::Cookie(args) => match args.command {
            CookieCommand::List(args) => on_metadata(list(&args)),
            CookieCommand::Show { metadata, bookie_id } => on_metadata(show(&metadata, &bookie_id)),
            CookieCommand::Delete { metadata, bookie_id, yes } => {
                on_metadata(delete(&metadata, &bookie_id, yes))
            }
        },
    }
}

/// Runs a command that needs no client.
fn on_metadata(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    logging::start_at(LogFormat::Text, "warn");
    runtime::single()?.block_on(command)
}

async fn init(args: &InitArgs) -> Result<(), Failure> {
    let named = args.instance_id.as_deref().map(named_cluster).transpose()?;
    let args = &args.metadata;
    let outcome = create(&uri(args)?, &args.options()?, named, &SystemRandom).await?;
    let said = match outcome {
        InitOutcome::Created => "created",
        InitOutcome::Completed => "completed: nodes of the cluster were missing",
        InitOutcome::Mended => "mended: nodes below which bookies register were missing",
        InitOutcome::AlreadyInitialised => "already initialised, nothing changed",
        _ => "initialised",
    };
    output::write_all(format!("{}: {said}\n", args.metadata).as_bytes())
}

/// The INSTANCEID that --instance-id names.
pub fn named_cluster(text: &str) -> Result<ClusterId, Failure> {
    text.parse().map_err(|error| Failure::usage(format!("--instance-id: {error}")))
}

/// Creates a cluster's metadata. With an INSTANCEID of the caller's choice it is created with tiering paused, because to a tierer the
/// ledgers in the bucket would look deleted, and a cluster with another INSTANCEID is refused.
pub async fn create(
    uri: &MetadataUri,
    options: &ConnectOptions,
    named: Option<ClusterId>,
    random: &dyn Random,
) -> Result<InitOutcome, Failure> {
    let mut instance_id = [0; 16];
    match named {
        Some(named) => instance_id = *named.as_bytes(),
        None => {
            instance_id[..8].copy_from_slice(&random.next_u64().to_be_bytes());
            instance_id[8..].copy_from_slice(&random.next_u64().to_be_bytes());
        }
    }
    let why = format!("{PAUSE_REASON} has not run yet");
    let outcome = bindery_metadata::init(uri, options.clone(), instance_id, named.map(|_| &*why)).await;
    outcome.map_err(|error| match &error {
        InitError::Store(cause @ StoreError::Unreachable { .. }) => unreachable(&uri.to_string(), cause),
        InitError::Store(cause) => store_failure(cause, error.to_string()),
        _ => Failure::new(format!("initialise the cluster: {error}")),
    })
}

async fn list(args: &MetadataArgs) -> Result<(), Failure> {
    let ids = with_session(args, async |layout| {
        layout.cookies().list().await.map_err(|error| cookie_failure(&error))
    });
    let text: String = ids.await?.iter().map(|id| format!("{id}\n")).collect();
    output::write_text(&text)
}

fn bookie_id(text: &str) -> Result<BookieId, Failure> {
    BookieId::new(text).map_err(Failure::usage)
}

/// The beginning of bytes that are no cookie, for people.
fn shown(bytes: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 200;
    let text = format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES_MAX)]));
    match bytes.len() {
        0 => "nothing".to_owned(),
        len if len > SHOWN_BYTES_MAX => format!("{text} and {} more bytes", len - SHOWN_BYTES_MAX),
        _ => text,
    }
}

fn no_cookie(id: &BookieId) -> Failure {
    Failure::new(format!("bookie {id} has no cookie; bindery cluster cookie list shows those that have"))
}

async fn show(args: &MetadataArgs, id: &str) -> Result<(), Failure> {
    let id = bookie_id(id)?;
    let stored = with_session(args, async |layout| {
        layout.cookies().raw(&id).await.map_err(|error| cookie_failure(&error))
    });
    let (_, bytes) = stored.await?.ok_or_else(|| no_cookie(&id))?;
    match Cookie::parse(&bytes) {
        Ok(cookie) => output::write_text(&cookie.to_text()),
        Err(error) => {
            output::say(format!("bindery: warning: the cookie cannot be used: {error}; what is there:"));
            output::write_all(format!("{}\n", shown(&bytes)).as_bytes())
        }
    }
}

async fn delete(args: &MetadataArgs, id: &str, yes: bool) -> Result<(), Failure> {
    let id = bookie_id(id)?;
    with_session(args, async |layout| delete_in(layout, &id, yes).await).await
}

async fn delete_in(layout: &Layout, id: &BookieId, yes: bool) -> Result<(), Failure> {
    // As bytes: one that makes no sense has to go, too.
    let stored = layout.cookies().raw(id).await.map_err(|error| cookie_failure(&error))?;
    let (version, bytes) = stored.ok_or_else(|| no_cookie(id))?;
    repair::check_stopped(layout, &BTreeSet::from([id.clone()])).await?;
    if let Err(error) = Cookie::parse(&bytes) {
        output::say(format!(
            "The cookie of bookie {id} is damaged ({error}), and no bookie can start with it. It holds {}.",
            shown(&bytes)
        ));
    }
    output::say(format!(
        "This removes bookie {id} from the cluster: it can start again only with empty directories, and entries that only \
         it holds are lost to readers."
    ));
    if !yes && !confirmed()? {
        return Err(Failure::new("nothing was changed"));
    }
    let deleted = layout.cookies().delete(id, Some(version)).await;
    deleted.map_err(|error| cookie_failure(&error))?;
    output::write_all(format!("{id}: cookie deleted\n").as_bytes())
}

fn confirmed() -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage("not a terminal: give --yes to delete without being asked"));
    }
    output::say_part("Type yes to go on: ");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(Failure::new)?;
    Ok(line.trim() == "yes")
}
