//! What can go wrong with a catalogue, and what to do about it.

use super::{CatalogueDamage, RecordTooLarge};
use crate::ClusterId;
use crate::store::StoreError;

/// Why something was not done. [`CatalogueError::Unknown`] aside, it was not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueError {
    /// A request to the store failed.
    #[error("the catalogue of the tier: {0}")]
    Store(#[from] StoreError),
    /// There is no catalogue, and none was to be made.
    #[error(
        "{key}: not found, so there is no catalogue of cluster {cluster} here (or no such bucket, or the access key is unknown): \
         check the URL and the credentials; the first tierer of a cluster makes the catalogue"
    )]
    NotThere {
        /// The key of the marker.
        key: String,
        /// The cluster.
        cluster: ClusterId,
    },
    /// The marker is missing, and other parts are there.
    #[error(
        "{key}: not found, but other parts of a catalogue are there ({found} for example): somebody deleted part of it; \
         restore what was deleted, or rebuild the catalogue from its objects"
    )]
    Incomplete {
        /// The key that is missing.
        key: String,
        /// A key that is there.
        found: String,
    },
    /// Bytes are not as they were written, or not of this catalogue.
    #[error("{key}: {damage}; restore that key, or rebuild the catalogue from its objects")]
    Damaged {
        /// The key.
        key: String,
        /// What is wrong.
        damage: CatalogueDamage,
    },
    /// A record is missing, and later ones are there.
    #[error(
        "{key}: not found, but the log goes on to number {last}, and no snapshot covers it: somebody deleted it; restore that \
         key, or rebuild the catalogue from its objects"
    )]
    LogGap {
        /// The key.
        key: String,
        /// The last number that is there.
        last: u64,
    },
    /// A commit has more in it than a record takes.
    #[error(transparent)]
    TooLarge(#[from] RecordTooLarge),
    /// The log went on for so long without this reader that the records it would have to read were deleted. It has read the newest
    /// state, and whether its last commit took effect shows there.
    #[error(
        "this process was away for too long: the log went on to number {log_floor} while it was at {position}. It has read the \
         newest state: look there whether the commit took effect"
    )]
    Superseded {
        /// Up to where records may be gone.
        log_floor: u64,
        /// Where this reader was.
        position: u64,
    },
    /// Whether the commit took effect, now or later, is not known: read the catalogue again before building on either.
    #[error(
        "whether a commit took effect is unknown: {error}. The catalogue will tell when the store answers again"
    )]
    Unknown {
        /// What happened.
        error: StoreError,
    },
    /// Others were faster, each time.
    #[error(
        "others committed first, {attempts} times in a row; nothing was committed: try again later, or run fewer tierers"
    )]
    Contended {
        /// How often.
        attempts: u32,
    },
    /// It was opened for reading.
    #[error("this catalogue was opened for reading only")]
    ReadOnly,
}
