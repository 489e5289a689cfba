//! Why a coordinator does not start.

use bindery_storage::{Damaged, NewerFormat, StateError};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use thiserror::Error;

/// Why [`Coordinator::start`](crate::Coordinator::start) failed. Nothing was left running.
#[derive(Debug, Error)]
pub enum StartError {
    /// The address is reachable from elsewhere. The coordinator has no encryption and no replicas: it serves one
    /// machine.
    #[error(
        "the embedded coordinator listens on loopback only, not on {address}; use 127.0.0.1 or ::1, or a ZooKeeper \
         ensemble for more than one machine"
    )]
    NotLoopback {
        /// The address asked for.
        address: SocketAddr,
    },
    /// Somebody listens there already. The caller knows which option changes the address.
    #[error("{address} is in use by another process")]
    AddressInUse {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The address cannot be listened on for another reason.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Another process uses the directory.
    #[error("{} is in use by another coordinator", dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory or the store in it cannot be used.
    #[error("cannot {action} {}: {source}", path.display())]
    Disk {
        /// What was attempted, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The store is not what was committed. Nothing was changed.
    #[error("the coordinator's store cannot be trusted: {0}; restore it from a copy")]
    Damaged(Damaged),
    /// A newer release wrote the store. Nothing was changed.
    #[error(transparent)]
    NewerFormat(NewerFormat),
    /// The database gave up for another reason.
    #[error("the coordinator's store cannot be opened: {0}")]
    Database(String),
}

impl From<StateError> for StartError {
    fn from(error: StateError) -> StartError {
        match error {
            StateError::Disk(error) => {
                StartError::Disk { action: error.action, path: error.path, source: error.source }
            }
            StateError::Damaged(damaged) => StartError::Damaged(damaged),
            StateError::NewerFormat(newer) => StartError::NewerFormat(newer),
            StateError::Latched { .. } | StateError::Database { .. } => {
                StartError::Database(error.to_string())
            }
        }
    }
}
