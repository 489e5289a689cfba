//! Which store, and whose objects in it, a command is about.

use crate::exit::{self, Failure};
use crate::metadata_failure::store_failure;
use bindery_io::{SystemClock, SystemRandom};
use bindery_metadata::Layout;
use bindery_tiering::ClusterId;
use bindery_tiering::catalogue::{Catalogue, CatalogueDamage, CatalogueError, CatalogueOptions, OpenMode};
use bindery_tiering::store::{self, Store, StoreError, StoreOptions, StoreUrl};
use std::sync::Arc;

/// Opens a store, without a request to it.
pub fn open_store(url: &str) -> Result<Store, Failure> {
    // Not by the parser of the command line, whose message repeats the value: a password may be in it.
    let url: StoreUrl = url.parse().map_err(Failure::usage)?;
    store::open(&url, &StoreOptions::default()).map_err(Failure::usage)
}

/// The INSTANCEID of a cluster.
pub async fn cluster_of(layout: &Layout) -> Result<ClusterId, Failure> {
    let found = layout.instance_id().await;
    let found = found.map_err(|error| store_failure(&error, error.to_string()))?;
    let text =
        found.ok_or_else(|| Failure::new("the cluster has no INSTANCEID: run bindery cluster init"))?;
    text.trim().parse().map_err(|error| Failure::new(format!("the cluster's INSTANCEID: {error}")))
}

/// The cluster that was named, or the only one of which the store holds something.
pub async fn cluster_in(store: &Store, named: Option<&str>, option: &str) -> Result<ClusterId, Failure> {
    if let Some(named) = named {
        return named.parse().map_err(|error| Failure::usage(format!("{option}: {error}")));
    }
    let found = store::clusters(store).await.map_err(|error| self::failure(store, &error))?;
    match found[..] {
        [cluster] => Ok(cluster),
        [] => Err(Failure::with_code(
            exit::NOT_FOUND,
            format!("{}: there is nothing of a cluster here: check the URL and the prefix", store.url()),
        )),
        _ => {
            let all: Vec<String> = found.iter().map(ToString::to_string).collect();
            Err(Failure::usage(format!(
                "{} holds objects of {} clusters: name one with {option}: {}",
                store.url(),
                all.len(),
                all.join(", ")
            )))
        }
    }
}

/// Opens a catalogue to read it.
pub async fn read_catalogue(store: &Store, cluster: ClusterId) -> Result<Catalogue, CatalogueError> {
    let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
    Catalogue::open(store, cluster, OpenMode::Read, CatalogueOptions::default(), clock, random).await
}

/// The failure that an error of a store means.
pub fn failure(store: &Store, error: &StoreError) -> Failure {
    failure_in(store.url(), &error.to_string(), error)
}

/// The same in words that lead there.
pub fn failure_in(url: &StoreUrl, text: &str, error: &StoreError) -> Failure {
    match error {
        StoreError::Unavailable { .. } => Failure::with_code(exit::UNREACHABLE, text),
        // Waiting does not mend the rest: the message names the places where the settings come from.
        other if other.names_setting() => Failure::new(text),
        _ => Failure::new(format!("{text}; looked at {}", url.kind().credentials())),
    }
}

/// The failure that an error of a catalogue means.
pub fn catalogue_failure(store: &Store, error: &CatalogueError) -> Failure {
    match error {
        CatalogueError::Store(error) => failure(store, error),
        other => Failure::new(other),
    }
}

/// Whether a catalogue is of no use as it is, and the objects' footers have all that is needed for another one.
pub fn is_lost(error: &CatalogueError) -> bool {
    // One of a newer release is not lost.
    let is_newer = |damage: &CatalogueDamage| matches!(damage, CatalogueDamage::NewerFormat { .. });
    if matches!(error, CatalogueError::Damaged { damage, .. } if is_newer(damage)) {
        return false;
    }
    matches!(
        error,
        CatalogueError::NotThere { .. }
            | CatalogueError::Incomplete { .. }
            | CatalogueError::Damaged { .. }
            | CatalogueError::LogGap { .. }
            | CatalogueError::Lost { .. }
            | CatalogueError::Older { .. }
            | CatalogueError::Store(StoreError::NotFound { .. })
    )
}
