//! How commands reach the metadata store, and a session with it for those that need no client.

use crate::args::MetadataArgs;
use crate::exit::{self, Failure};
use crate::metadata_failure::open_failure;
use crate::output;
use bindery_config::rules::metadata_security;
use bindery_config::sources::values::{Finding, Values};
use bindery_metadata::{ConnectOptions, Layout, MetadataUri, UriError, WaitFor};
use std::time::Duration;

/// For the end of a session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Where the cluster is. Says on standard error what the URI leaves out.
pub fn uri(args: &MetadataArgs) -> Result<MetadataUri, Failure> {
    let uri = args.metadata.parse().map_err(|error: UriError| Failure::usage(error))?;
    if let Some(full) = MetadataUri::completed(&args.metadata) {
        output::say(format!("the metadata store {} is taken as {full}", args.metadata));
    }
    Ok(uri)
}

/// Connects to the metadata store for as long as `work` takes.
pub async fn with_session<T>(
    metadata: &MetadataArgs,
    work: impl AsyncFnOnce(&Layout) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let opened = bindery_metadata::connect(&uri(metadata)?, metadata.options()?).await;
    let layout = opened.map_err(|error| open_failure(&metadata.metadata, &error))?;
    let outcome = work(&layout).await;
    // The session would end by its timeout; an error in ending it changes nothing.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, layout.store().close()).await;
    outcome
}

impl MetadataArgs {
    /// How a command connects to the metadata store.
    pub fn options(&self) -> Result<ConnectOptions, Failure> {
        // A server that says nothing has the session timeout: one that was just started, for a cluster that is being made, is slow.
        let of_command = ConnectOptions { wait_for: WaitFor::Silent, ..ConnectOptions::default() };
        let Some(path) = &self.metadata_config else { return Ok(of_command) };
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("--metadata-config {shown}: {error}")))?;
        let mut file = Values::of(Some(&text));
        let security = metadata_security::of_file(&mut file);
        for warning in &file.warnings {
            output::say(format!("bindery: --metadata-config {shown}: {warning}"));
        }
        let faults: Vec<String> = file.faults.iter().map(Finding::to_string).collect();
        match faults.is_empty() {
            true => Ok(ConnectOptions { security, ..of_command }),
            false => Err(Failure::usage(format!(
                "--metadata-config {shown}: {}",
                faults.join(exit::BETWEEN_FAULTS)
            ))),
        }
    }
}
