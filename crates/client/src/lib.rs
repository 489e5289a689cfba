//! The ledger client.

mod client;
pub mod connection;
mod entry;
mod error;
mod handover;
mod health;
mod metadata_edit;
#[cfg(test)]
mod model;
mod options;
mod placement;
mod reader;
mod recovery;
mod retry;
pub mod transport;
mod window;
mod writer;

pub use bindery_metadata::layout::{LedgerError, LedgerListing};
pub use bindery_metadata::{Endpoint, MetadataUri, RegistrationMode};
pub use bindery_types::{
    BookieId, DigestType, EntryId, InvalidQuorum, LedgerId, LedgerMetadata, LedgerState, Quorum, Segment,
};

pub use crate::client::{BookieInfo, Client, ClientBuilder, LedgerInfo};
pub use crate::entry::Entry;
pub use crate::error::{
    AppendError, AppendOpenError, BookieAnswer, BookieAnswers, CloseError, ConnectError, CreateError,
    NotEnoughBookies, OpenError, ReadError, RecoveryError, Stopped, WhyStopped,
};
pub use crate::handover::{HANDOVER_PROPERTY, Handover, UnknownHandover};
pub use crate::options::{
    CreateOptions, EXPLICIT_LAC_INTERVAL_DEFAULT, MEMORY_LIMIT_DEFAULT, OpenMode, REQUEST_TIMEOUT_DEFAULT,
    WRITE_QUORUM_SIZE_MAX,
};
pub use crate::placement::{Candidates, Placement, RandomPlacement};
pub use crate::reader::{EntryStream, LedgerReader, TailStream};
pub use crate::writer::{Closed, LedgerWriter, Progress};
