//! Why a bookie does not start.

use crate::auth::AuthError;
use crate::config::IdentityError;
use crate::data_dirs::DataDirError;
use crate::descriptors::TooFewDescriptors;
use crate::memory::MemoryPlanError;
use crate::tenants::rules::RulesError;
use crate::tier::TierError;
use crate::tls::TlsError;
use bindery_metadata::layout::CookiesError;
use bindery_metadata::{CookieProblem, OpenError, StoreError};
use std::io;
use std::net::SocketAddr;

/// Why a bookie does not start. Each says what to do; nothing is lost.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Too few file descriptors.
    #[error(transparent)]
    Descriptors(#[from] TooFewDescriptors),
    /// The memory limit is too small.
    #[error(transparent)]
    Memory(#[from] MemoryPlanError),
    /// A data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// A port cannot be bound.
    #[error("cannot listen on {address}: {source}. {}", port_advice(.source, .option))]
    Bind {
        /// Where.
        address: SocketAddr,
        /// The option that says so.
        option: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The bookie has no usable name.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The cluster cannot be opened.
    #[error("{source}{}", metadata_advice(.source))]
    Metadata {
        /// Why.
        #[from]
        source: OpenError,
    },
    /// The metadata store failed.
    #[error("metadata: {0}")]
    Store(#[from] StoreError),
    /// The cookies say no.
    #[error(transparent)]
    Cookie(#[from] Box<CookieProblem>),
    /// A cookie cannot be read or written.
    #[error("cookie in the metadata store: {0}")]
    StoredCookie(#[from] CookiesError),
    /// TLS cannot be spoken as it is configured.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The file of tenants is missing or not understood.
    #[error(transparent)]
    Tenants(#[from] RulesError),
    /// No client could log in with this configuration.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// Object storage cannot be used as it is configured.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// The engine cannot be opened.
    #[error(transparent)]
    Engine(#[from] Box<bindery_engine::OpenError>),
    /// Files of a ledger directory are damaged or missing.
    #[error("{error}. Nothing was changed. For all that is damaged, and what to do about it, run: {verify}")]
    Damaged {
        /// The first that was found.
        error: Box<bindery_engine::OpenError>,
        /// The command that looks at everything.
        verify: String,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The bookie cannot be registered.
    #[error("{0}")]
    Registration(String),
    /// Entries may be lost, and metadata does not say of which ledgers.
    #[error(
        "cannot find out in metadata which ledgers this bookie may have lost entries of: {0}. Nothing was denied to \
         anybody; start again when the metadata store is well"
    )]
    Integrity(String),
    /// Stopped while starting.
    #[error("stopped while starting")]
    Stopped,
}

fn metadata_advice(error: &OpenError) -> &'static str {
    match error {
        OpenError::Store(StoreError::Unreachable { .. }) => {
            ". Start the metadata store, or correct its address (--metadata, metadataServiceUri), and start again"
        }
        _ => "",
    }
}

fn port_advice(source: &io::Error, option: &str) -> String {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            format!("Another process has the port: stop it, or choose another port with {option}")
        }
        io::ErrorKind::PermissionDenied => {
            format!("Ports below 1024 need privileges: choose another port with {option}")
        }
        _ => format!("Give an address of this machine with {option}"),
    }
}
