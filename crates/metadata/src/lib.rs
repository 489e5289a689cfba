//! The metadata store: one trait, the BookKeeper layout written once on top of it, and the drivers.
//!
//! # What a bookie does with it
//! ```no_run
//! # use std::sync::Arc;
//! # use bindery_metadata::*;
//! # async fn start(session_file: Arc<dyn SessionStore>, id: bindery_types::BookieId) -> Result<(), Box<dyn std::error::Error>> {
//! let uri: MetadataUri = "zk+hierarchical://127.0.0.1:2181/ledgers".parse()?;
//! // Under the data directory's lock: take up the session of the process before, if it left one.
//! let options = ConnectOptions { resume: session_file.load()?, ..ConnectOptions::default() };
//! let layout = connect(&uri, options).await?;
//!
//! let instance_id = layout.instance_id().await?; // None is accepted
//! let expected = Cookie::new(&id, &["/j".into()], &["/d".into()], None, instance_id.as_deref());
//! let stored = layout.cookies().get(&id).await?;
//! let found: Vec<Cookie> = stored.iter().map(|stored| stored.cookie.clone()).collect();
//! match cookie::validate(&expected, &found, &[/* every directory */], false)? {
//!     StartKind::New => layout.cookies().create(&id, &expected).await?, // after stamping the directories
//!     StartKind::Restart => {}
//!     StartKind::Expansion { stamp: _ } => {} // stamp in this order, then cookies().update(.., version)
//!     StartKind::JournalsRemoved { .. } => {} // the same, once the former journals proved to be drained
//!     StartKind::Lost { stamp: _ } => {} // note that everything may be missing, durably, then stamp in this order
//! }
//!
//! let info = BookieServiceInfo::of_bookie(("127.0.0.1", 3181), Some(("127.0.0.1", 8080)));
//! let membership = Membership::new(layout.clone(), id, instance_id, Some(expected));
//! let (registrar, mut events) = BookieRegistrar::start(
//!     membership, info, RegistrationMode::Writable, Some(session_file));
//! while let Some(event) = events.recv().await {
//!     match event {
//!         RegistrationEvent::Registered { .. } | RegistrationEvent::Lost | RegistrationEvent::Expired => {}
//!         RegistrationEvent::Refused(error) => return Err(error.into()), // stop serving, exit
//!     }
//! }
//! registrar.stop(std::time::Duration::from_secs(5)).await; // at shutdown
//! layout.store().close().await?;
//! # Ok(()) }
//! ```
//! `bindery cluster init` is [`init`].
//!
//! # Parts
//! [`store`] the trait · [`layer`] a store over another one · [`zookeeper`], [`oxia`], [`memory`] drivers · [`conformance`] what every driver
//! must do · [`migration`] from ZooKeeper to Oxia · [`uri`] · [`fault`] why a server gives no session · [`layout`] cluster, cookies, registration, ledgers, ids ·
//! [`cookie`] start-up checks · [`registrar`] · [`codec`] bytes · [`transfer`] export and import
//!
//! # Not here   files and clocks (callers keep the session file), placement, garbage collection

pub mod codec;
pub mod conformance;
pub mod cookie;
pub mod fault;
pub mod layer;
pub mod layout;
pub mod memory;
pub mod migration;
pub mod oxia;
pub mod registrar;
pub mod store;
pub mod transfer;
pub mod uri;
pub mod zookeeper;

use std::sync::Arc;

use crate::migration::MigratingStore;
use crate::store::StoreFuture;

pub use crate::codec::service_info::{BookieServiceInfo, Endpoint};
pub use crate::cookie::{Cookie, CookieProblem, Directory, StartKind};
pub use crate::fault::{Fault, ServerFaults, WaitFor};
pub use crate::layer::StoreLayer;
pub use crate::layout::{
    InitError, InitOutcome, Layout, LedgerLayout, Membership, OpenError, RegistrationMode,
};
pub use crate::registrar::{BookieRegistrar, RegistrationEvent, SessionStore};
pub use crate::store::{MetadataStore, SessionCredentials, SessionId, SessionState, StoreError, Version};
pub use crate::uri::{Driver, MetadataUri, UriError};
pub use crate::zookeeper::ZooKeeperOptions as ConnectOptions;
pub use crate::zookeeper::{SaslLogin, Security, TlsOptions};

/// Connects to the store that `uri` names, whatever is in it.
///
/// # Errors
/// [`StoreError::Unreachable`] when no server opens a session in time, or none will ([`WaitFor`]); [`StoreError::Untrusted`] and
/// [`StoreError::AuthFailed`] when there is no trust.
pub async fn open_store(
    uri: &MetadataUri,
    options: ConnectOptions,
) -> Result<Arc<dyn MetadataStore>, StoreError> {
    Ok(match &uri.driver {
        Driver::ZooKeeper => Arc::new(zookeeper::connect(&uri.servers, options).await?),
        Driver::PulsarOnZooKeeper { chroot } => {
            // The source and, after a move, the target.
            let patience = 2 * options.connect_timeout.unwrap_or(options.session_timeout);
            let source = zookeeper::connect(&uri.servers, options.clone()).await?;
            let connector = Arc::new(move |url: &str| open_target(url.to_owned(), options.clone()));
            Arc::new(MigratingStore::open(Arc::new(source), chroot, connector, patience).await?)
        }
        Driver::Oxia { namespace } => Arc::new(oxia::connect(&uri.servers, namespace, options).await?),
    })
}

/// Connects to where a Pulsar cluster moves its metadata: `url` is of Pulsar's form, `oxia://HOST:PORT/NAMESPACE`.
fn open_target(url: String, options: ConnectOptions) -> StoreFuture<'static, Arc<dyn MetadataStore>> {
    Box::pin(async move {
        let refused =
            |why: String| StoreError::Protocol(format!("the metadata cannot move to {url:?}: {why}"));
        let uri: MetadataUri =
            format!("metadata-store:{url}").parse().map_err(|error: UriError| refused(error.to_string()))?;
        let Driver::Oxia { namespace } = &uri.driver else {
            return Err(refused("it is no store of Oxia's".to_owned()));
        };
        let store: Arc<dyn MetadataStore> = Arc::new(oxia::connect(&uri.servers, namespace, options).await?);
        Ok(store)
    })
}

/// Connects to the store that `uri` names and opens the cluster at its root.
///
/// # Errors
/// [`OpenError::Store`] with [`StoreError::Unreachable`] when no server opens a session in time, or none will ([`WaitFor`]);
/// [`OpenError::NotInitialised`] when there is no cluster at the root, [`OpenError::Importing`] while one is copied there.
pub async fn connect(uri: &MetadataUri, options: ConnectOptions) -> Result<Layout, OpenError> {
    Layout::open(open_store(uri, options).await?, &uri.root, uri.layout).await
}

/// As [`connect`], for a bookie: see [`Layout::open_or_complete`].
///
/// # Errors
/// As [`connect`].
pub async fn connect_as_bookie(uri: &MetadataUri, options: ConnectOptions) -> Result<Layout, OpenError> {
    Layout::open_or_complete(open_store(uri, options).await?, &uri.root, uri.layout).await
}

/// Creates the cluster that `uri` names (hierarchical layout unless it says otherwise). `instance_id` is 16 random bytes. With `paused`
/// tiering is paused for that reason from the beginning ([`layout::init_cluster_with`]).
pub async fn init(
    uri: &MetadataUri,
    options: ConnectOptions,
    instance_id: [u8; 16],
    paused: Option<&str>,
) -> Result<InitOutcome, InitError> {
    let store = open_store(uri, options).await?;
    let layout = uri.layout.unwrap_or(LedgerLayout::Hierarchical);
    let outcome = layout::init_cluster_with(&*store, &uri.root, layout, instance_id, paused).await;
    // The session would end by itself; an error in ending it changes nothing about the outcome.
    let _ = store.close().await;
    outcome
}
