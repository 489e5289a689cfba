//! What can go wrong with a catalogue, and what to do about it.

use super::{CatalogueDamage, RecordTooLarge};
use crate::ClusterId;
use crate::store::StoreError;

/// The way out of a catalogue that is lost, damaged, cut or older than its objects.
const REMEDY: &str = "put back the newest copy of the catalogue, or rebuild it from its objects, which loses nothing: bindery tier \
                      rebuild --metadata URI --store URL";

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
        "{key}: not found, but other parts of the catalogue of cluster {cluster} are there ({found} for example): somebody deleted \
         part of it; {REMEDY}"
    )]
    Incomplete {
        /// The key that is missing.
        key: String,
        /// A key that is there.
        found: String,
        /// The cluster.
        cluster: ClusterId,
    },
    /// There is no catalogue, or an empty one, and there are objects.
    #[error(
        "{key}: not found, but objects of cluster {cluster} are there ({found} for example): their catalogue was lost. No other one \
         begins beside them, and none of them is deleted; {REMEDY}"
    )]
    Lost {
        /// The key that is missing.
        key: String,
        /// An object that is there.
        found: String,
        /// The cluster.
        cluster: ClusterId,
    },
    /// An object is newer than everything that the catalogue knows.
    #[error(
        "{found}: its id was reserved after the newest record of the catalogue of cluster {cluster} was written ({log_ms} ms since \
         1970): an older copy of the catalogue was put back, or records were deleted; {REMEDY}"
    )]
    Older {
        /// The object.
        found: String,
        /// The log's time.
        log_ms: u64,
        /// The cluster.
        cluster: ClusterId,
    },
    /// A record that was read is not there any more.
    #[error(
        "{key}: not as this process has read or written it: somebody deleted part of the catalogue, or put another copy of it \
         there; {REMEDY}"
    )]
    Changed {
        /// The key.
        key: String,
    },
    /// Bytes are not as they were written, or not of this catalogue.
    #[error("{key}: {damage}; {REMEDY}")]
    Damaged {
        /// The key.
        key: String,
        /// What is wrong.
        damage: CatalogueDamage,
    },
    /// A record is missing, and later ones are there.
    #[error(
        "{key}: not found, but the log goes on to number {last}, and no snapshot covers it: somebody deleted it; {REMEDY}"
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
    /// Tierers did not stop.
    #[error(
        "tierers were still at work, {attempts} times in a row: the catalogue is not rebuilt. Look with bindery tier status whether they are \
         paused, and what they are at, and repeat this"
    )]
    Busy {
        /// How often.
        attempts: u32,
    },
    /// It was opened for reading.
    #[error("this catalogue was opened for reading only")]
    ReadOnly,
}

impl CatalogueError {
    /// The bucket does not hold all that was there: part of it was deleted, cut, damaged, or replaced by another copy.
    pub fn is_tampered(&self) -> bool {
        match self {
            CatalogueError::Incomplete { .. }
            | CatalogueError::Lost { .. }
            | CatalogueError::Older { .. }
            | CatalogueError::Changed { .. }
            | CatalogueError::Damaged { .. }
            | CatalogueError::NotThere { .. }
            | CatalogueError::LogGap { .. } => true,
            // A run of which nobody has said that it goes.
            CatalogueError::Store(error) => matches!(error, StoreError::NotFound { .. }),
            CatalogueError::TooLarge(_)
            | CatalogueError::Superseded { .. }
            | CatalogueError::Unknown { .. }
            | CatalogueError::Contended { .. }
            | CatalogueError::Busy { .. }
            | CatalogueError::ReadOnly => false,
        }
    }
}
