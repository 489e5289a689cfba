//! A session with the metadata store, for a command that needs no client.

use crate::args::MetadataArgs;
use crate::exit::Failure;
use crate::metadata_failure::open_failure;
use bindery_metadata::{Layout, MetadataUri, UriError};
use std::time::Duration;

/// For the end of a session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Where the cluster is.
pub fn uri(args: &MetadataArgs) -> Result<MetadataUri, Failure> {
    args.metadata.parse().map_err(|error: UriError| Failure::usage(error))
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
