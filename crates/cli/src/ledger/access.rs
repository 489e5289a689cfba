//! The way from a command line to a client, and from the client's errors to exit codes.

use super::args::{AccessArgs, QuorumArgs};
use crate::exit::{self, Failure};
use crate::logging;
use crate::metadata_failure::{self, is_unreachable, unreachable, unreachable_because};
use crate::metadata_session;
use crate::output;
use crate::progress::Progress;
use crate::runtime;
use bindery_client::{
    AppendOpenError, Client, ClientBuilder, ConnectError, CreateError, LedgerError, OpenError, Quorum,
    ReadError, RecoveryError, Stopped, TakeOverError, WaitFor, WhyStopped,
};
use bindery_metadata::layout::IdError;
use bindery_metadata::{OpenError as ClusterError, StoreError};
use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

/// How long a person waits for a metadata server that says nothing.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// For the requests that open a cluster, once there is a session.
const OPEN_TIMEOUT: Duration = Duration::from_secs(1);
/// Ending a session is a courtesy to the store: it ends by itself, too.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs a command with a client, and ends its session whatever the outcome.
pub fn with_client<F>(
    access: &AccessArgs,
    is_data_moved: bool,
    run: impl FnOnce(Client) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    with_tuned_client(access, is_data_moved, |builder| builder, run)
}

/// The same, with a client of other limits.
pub fn with_tuned_client<F>(
    access: &AccessArgs,
    is_data_moved: bool,
    tune: impl FnOnce(ClientBuilder) -> ClientBuilder,
    run: impl FnOnce(Client) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    logging::start_for_command(access.verbose);
    let runtime = if is_data_moved { runtime::for_data()? } else { runtime::single()? };
    let result = runtime.block_on(async {
        let connecting = Progress::wait("connecting to the metadata store");
        let client = connect(access, tune).await?;
        drop(connecting);
        let result = run(client.clone()).await;
        let _ = tokio::time::timeout(GOODBYE_TIMEOUT, client.close()).await;
        result
    });
    // A thread that still reads standard input must not keep the process.
    runtime.shutdown_background();
    result
}

/// Connects to the metadata store, or says why that cannot be: at once, unless servers say nothing.
pub async fn connect(
    access: &AccessArgs,
    tune: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> Result<Client, Failure> {
    let text = &access.metadata.metadata;
    let uri = metadata_session::uri(&access.metadata)?;
    let servers = uri.servers.join(", ");
    let security = access.security.security()?;
    let metadata_security = access.metadata.options()?.security;
    let builder = tune(Client::builder().metadata(uri).metadata_security(metadata_security));
    let mut builder = security.apply(builder).await.map_err(Failure::usage)?;
    if let Some(timeout) = access.timeout {
        builder = builder.request_timeout(timeout);
    }
    if let Some(limit) = access.frame_limit {
        builder = builder.frame_limit(limit);
    }
    let patience = access.timeout.unwrap_or(CONNECT_TIMEOUT);
    builder = builder.metadata_wait(patience, WaitFor::Silent);
    match tokio::time::timeout(patience + OPEN_TIMEOUT, builder.connect()).await {
        Ok(Ok(client)) => Ok(client),
        Ok(Err(ConnectError::Cluster(ClusterError::Store(error)))) if is_unreachable(&error) => {
            Err(unreachable(text, &error))
        }
        Ok(Err(error @ (ConnectError::NoMetadata | ConnectError::Tls(_) | ConnectError::NeedsTls))) => {
            Err(Failure::usage(error))
        }
        Ok(Err(error)) => Err(Failure::new(format!("{text}: {error}"))),
        Err(_) => Err(unreachable_because(
            text,
            &format_args!("a server of {servers} opened a session, and then did not answer a request"),
        )),
    }
}

/// Of the metadata store.
pub fn store_failure(error: &StoreError) -> Failure {
    metadata_failure::store_failure(error, error.to_string())
}

/// Of a ledger's metadata.
pub fn ledger_failure(error: &LedgerError) -> Failure {
    Failure::with_code(ledger_code(error), advised(error))
}

fn ledger_code(error: &LedgerError) -> u8 {
    match error {
        LedgerError::NotFound(_) => exit::NOT_FOUND,
        LedgerError::Store(error) if is_unreachable(error) => exit::UNREACHABLE,
        _ => exit::FAILURE,
    }
}

fn advised(error: &LedgerError) -> String {
    match error {
        LedgerError::NotFound(_) => format!("{error}; bindery ledger list shows those that do"),
        _ => error.to_string(),
    }
}

/// Of creating.
pub fn create_failure(error: &CreateError) -> Failure {
    let code = match error {
        CreateError::NotEnoughBookies(_) | CreateError::CannotSpread { .. } => exit::UNREACHABLE,
        CreateError::WriteQuorumTooLarge { .. }
        | CreateError::Sizes(_)
        | CreateError::ReservedProperty(_)
        | CreateError::DeferredSyncHandedOver => exit::USAGE,
        CreateError::Metadata(error) => ledger_code(error),
        CreateError::Store(error) | CreateError::Id(IdError::Store(error)) if is_unreachable(error) => {
            exit::UNREACHABLE
        }
        _ => exit::FAILURE,
    };
    match error {
        // The error advises a smaller ensemble: this names our option for it.
        CreateError::NotEnoughBookies(_) => Failure::with_code(code, format_args!("{error} (--ensemble)")),
        CreateError::Sizes(_) => Failure::with_code(
            code,
            format_args!("{error}: --ensemble >= --write-quorum >= --ack-quorum >= 1 is needed"),
        ),
        _ => Failure::with_code(code, error),
    }
}

/// Of opening for appends.
pub fn append_open_failure(error: &AppendOpenError) -> Failure {
    let code = match error {
        AppendOpenError::NotFound(_) => exit::NOT_FOUND,
        AppendOpenError::Closed { .. }
        | AppendOpenError::Continued { .. }
        | AppendOpenError::InRecovery(_)
        | AppendOpenError::Busy(_)
        | AppendOpenError::NotHandedOver(_) => exit::LEDGER_ENDED,
        AppendOpenError::Metadata(error) => ledger_code(error),
        _ => exit::FAILURE,
    };
    match error {
        AppendOpenError::NotFound(id) => Failure::with_code(code, advised(&LedgerError::NotFound(*id))),
        AppendOpenError::WrongPassword(_) => Failure::with_code(code, with_password_hint(error)),
        AppendOpenError::Continued { .. } => {
            Failure::with_code(code, format!("{error}: append there, or with --take-over"))
        }
        _ => Failure::with_code(code, error),
    }
}

/// Of taking a ledger over.
pub fn take_over_failure(error: &TakeOverError) -> Failure {
    match error {
        TakeOverError::Open(error) => append_open_failure(error),
        TakeOverError::Create(error) => create_failure(error),
        TakeOverError::Recovery { error, .. } => open_failure(error),
        _ => Failure::new(error),
    }
}

fn with_password_hint(error: &dyn Display) -> String {
    format!("{error}: give the one it was created with, by --password or BINDERY_PASSWORD")
}

/// Of opening for reads.
pub fn open_failure(error: &OpenError) -> Failure {
    match error {
        OpenError::NotFound(id) => ledger_failure(&LedgerError::NotFound(*id)),
        OpenError::WrongPassword(_) => Failure::new(with_password_hint(error)),
        OpenError::Recovery(recovery) => Failure::with_code(recovery_code(recovery), error),
        OpenError::Lac(error) => read_failure(error),
        OpenError::Metadata(error) => ledger_failure(error),
        _ => Failure::new(error),
    }
}

fn recovery_code(error: &RecoveryError) -> u8 {
    match error {
        RecoveryError::NotCovered { .. }
        | RecoveryError::EntryUnknown { .. }
        | RecoveryError::NotEnoughBookies { .. } => exit::UNREACHABLE,
        RecoveryError::Metadata(error) => ledger_code(error),
        _ => exit::FAILURE,
    }
}

/// Of reading.
pub fn read_failure(error: &ReadError) -> Failure {
    let code = match error {
        ReadError::BeyondEnd { .. } | ReadError::Deleted(_) => exit::NOT_FOUND,
        ReadError::Unavailable { .. } | ReadError::LacUnknown { .. } => exit::UNREACHABLE,
        ReadError::Metadata(error) => ledger_code(error),
        // Also of an entry that should be there and is lost (`NoEntry`): no ordinary "not found".
        _ => exit::FAILURE,
    };
    Failure::with_code(code, error)
}

/// The code for a writer that stopped. A refused key has nothing to do with the ledger's end.
pub fn stopped_code(stopped: &Stopped) -> u8 {
    match stopped.why {
        WhyStopped::Unauthorized { .. } => exit::FAILURE,
        _ => exit::LEDGER_ENDED,
    }
}

/// Sizes from flags, filled in as far as there are bookies.
pub async fn quorum(client: &Client, args: &QuorumArgs) -> Result<Quorum, Failure> {
    client.quorum(args.sizes()).await.map_err(|error| create_failure(&error))
}

/// Says on standard error, once there is a ledger, what was chosen here, and that there is one copy.
pub fn say_quorum(args: &QuorumArgs, quorum: Quorum) {
    if !args.sizes().is_whole() || quorum.write_quorum_size() == 1 {
        output::say(sizes_for_people(quorum));
    }
}

fn sizes_for_people(quorum: Quorum) -> String {
    let (bookies, copies, acks) =
        (quorum.ensemble_size(), quorum.write_quorum_size(), quorum.ack_quorum_size());
    let place = match bookies {
        1 => "on one bookie".to_owned(),
        _ if bookies == copies => format!("on {bookies} bookies"),
        _ => format!("spread over {bookies} bookies"),
    };
    let sizes = match copies {
        1 => format!("one copy of each entry, {place}, lost with its disk"),
        _ if acks == copies => format!("{copies} copies of each entry, {place}, all of which acknowledge it"),
        _ if acks == 1 => format!("{copies} copies of each entry, {place}, one of which acknowledges it"),
        _ => format!("{copies} copies of each entry, {place}, {acks} of which acknowledge it"),
    };
    format!("{sizes}; --ensemble, --write-quorum and --ack-quorum choose otherwise")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_chosen_is_said_and_one_copy_is_warned_of() {
        let said = |e, w, a| sizes_for_people(Quorum::new(e, w, a).unwrap());
        assert!(said(1, 1, 1).starts_with("one copy of each entry, on one bookie, lost with its disk;"));
        assert!(
            said(3, 1, 1).starts_with("one copy of each entry, spread over 3 bookies, lost with its disk;")
        );
        assert!(
            said(3, 3, 2).starts_with("3 copies of each entry, on 3 bookies, 2 of which acknowledge it;")
        );
        assert!(said(5, 3, 2).starts_with("3 copies of each entry, spread over 5 bookies, 2 of which"));
        assert!(
            said(2, 2, 2).starts_with("2 copies of each entry, on 2 bookies, all of which acknowledge it;")
        );
    }
}
