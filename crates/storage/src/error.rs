//! Errors, sorted by what the caller should do about them.

use bindery_io::{Shortage, has_no_descriptor, is_shortage};
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A call to the operating system failed.
#[derive(Debug, Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct DiskError {
    /// The file or directory.
    pub path: PathBuf,
    /// The attempted action, as a verb.
    pub action: &'static str,
    /// Why it failed.
    pub source: io::Error,
}

impl DiskError {
    pub(crate) fn new(path: &Path, action: &'static str, source: io::Error) -> DiskError {
        DiskError { path: path.to_owned(), action, source }
    }

    /// True when the only trouble is that the volume is full or no file can be opened: the same may work later, on
    /// another file.
    pub fn may_pass(&self) -> bool {
        self.shortage().is_some()
    }

    /// The shortage behind the error, when it may pass.
    pub fn shortage(&self) -> Option<Shortage> {
        // Neither a directory nor a state table can be replaced by a new one, and a failed sync of them must not be
        // repeated. Without a descriptor no sync was attempted.
        let is_sync = [SYNC_DIRECTORY, SYNC_STATE_TABLE].contains(&self.action);
        Shortage::of(&self.source).filter(|shortage| *shortage == Shortage::Descriptors || !is_sync)
    }
}

/// Name of the file of a state table in its directory.
pub const STATE_FILE_NAME: &str = "state.redb";
pub(crate) const SYNC_DIRECTORY: &str = "sync directory";
pub(crate) const SYNC_STATE_TABLE: &str = "sync state table";

/// Bytes on disk are not what was written there. The answer to the client is an I/O error, never "no such entry".
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{} is damaged at byte {offset}: {what}", path.display())]
pub struct Damaged {
    /// The file.
    pub path: PathBuf,
    /// Where the damaged structure begins, in bytes.
    pub offset: u64,
    /// The damage, in words.
    pub what: String,
}

impl Damaged {
    pub(crate) fn new(path: &Path, offset: u64, what: impl Into<String>) -> Damaged {
        Damaged { path: path.to_owned(), offset, what: what.into() }
    }
}

/// The file comes from a newer release. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{} was written by a newer format {found}; this build reads up to {supported}; use a newer bindery",
    path.display()
)]
pub struct NewerFormat {
    /// The file.
    pub path: PathBuf,
    /// Its format version.
    pub found: u32,
    /// The newest this build knows.
    pub supported: u32,
}

/// Why an entry log could not be opened. Its entries are unknown, not absent.
#[derive(Debug, Error)]
pub enum OpenLogError {
    /// The file cannot be read.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Header, footer or trailer do not verify, or the file has another length than it was sealed with.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// A newer release wrote it.
    #[error(transparent)]
    NewerFormat(#[from] NewerFormat),
}

impl OpenLogError {
    /// True if the file could not be opened or read because the process or the machine lacks descriptors or memory. That says nothing
    /// about the file, so it must not be reported as damaged.
    pub fn is_shortage(&self) -> bool {
        matches!(self, OpenLogError::Disk(error) if is_shortage(&error.source))
    }
}

/// Why an entry could not be read: an I/O error to the client.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The bytes do not verify.
    #[error(transparent)]
    Damaged(#[from] Damaged),
}

/// Why a read that does not wait for the disk gave nothing.
#[derive(Debug, Error)]
pub enum TryReadError {
    /// It would have to wait: read again where that is allowed. Says nothing about the entry.
    #[error("the bytes are not in memory")]
    WouldBlock,
    /// A read that waits would have failed as well.
    #[error(transparent)]
    Failed(#[from] ReadError),
}

impl From<ReadError> for OpenLogError {
    fn from(error: ReadError) -> OpenLogError {
        match error {
            ReadError::Disk(error) => OpenLogError::Disk(error),
            ReadError::Damaged(error) => OpenLogError::Damaged(error),
        }
    }
}

/// Why an entry log could not be written. The directory takes no more writes (IB14).
#[derive(Debug, Error)]
pub enum WriteError {
    /// The first failure.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Used again after the first failure; nothing was attempted.
    #[error("{} takes no more writes: an earlier write failed", path.display())]
    AlreadyFailed {
        /// The file.
        path: PathBuf,
    },
}

impl WriteError {
    /// The shortage behind the error, when that is the only cause: another log may be written later, never this one.
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            WriteError::Disk(error) => error.shortage(),
            WriteError::AlreadyFailed { .. } => None,
        }
    }
}

/// Why a state table could not be used.
#[derive(Debug, Error)]
pub enum StateError {
    /// The file cannot be opened, made or read.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The file is not what was committed. Its content is unknown, not empty.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// A newer release wrote it; nothing was changed.
    #[error(transparent)]
    NewerFormat(#[from] NewerFormat),
    /// An earlier write, sync or commit failed: the directory takes no more changes (IB14).
    #[error("{} takes no more changes: {reason}", path.display())]
    Latched {
        /// The file.
        path: PathBuf,
        /// The first failure.
        reason: String,
    },
    /// The database library gave up for another reason.
    #[error("the database {} failed: {reason}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// The error of the library.
        reason: String,
    },
}

impl StateError {
    /// True when the only trouble is that the volume is full or no file can be opened.
    pub fn may_pass(&self) -> bool {
        matches!(self, StateError::Disk(error) if error.may_pass())
    }
}

/// Why a ledger directory could not be opened or changed.
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// The directory itself cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// One of its logs is unusable. A bookie must not serve without it: the log's entries would look absent.
    #[error(transparent)]
    Log(#[from] OpenLogError),
    /// Its state table is unusable, or takes no more changes.
    #[error(transparent)]
    State(#[from] StateError),
    /// There are entry logs but no table that says which of them count. Nothing was removed.
    #[error(
        "{} has {logs} entry logs but no {}; restore the file, or wipe the directory and let the bookie recover",
        dir.display(),
        STATE_FILE_NAME
    )]
    StateMissing {
        /// The directory.
        dir: PathBuf,
        /// Number of entry logs in it.
        logs: usize,
    },
}

impl DirectoryError {
    /// True when files are damaged or missing, so that `bindery verify` has something to report.
    pub fn is_damage(&self) -> bool {
        let is_gone = |error: &DiskError| error.source.kind() == io::ErrorKind::NotFound;
        match self {
            DirectoryError::Disk(_) => false,
            DirectoryError::Log(OpenLogError::Disk(error))
            | DirectoryError::State(StateError::Disk(error)) => is_gone(error),
            DirectoryError::Log(OpenLogError::Damaged(_))
            | DirectoryError::State(StateError::Damaged(_) | StateError::Database { .. })
            | DirectoryError::StateMissing { .. } => true,
            DirectoryError::Log(OpenLogError::NewerFormat(_))
            | DirectoryError::State(StateError::NewerFormat(_) | StateError::Latched { .. }) => false,
        }
    }

    /// True if a log that was to be committed, or a state table that had run out of space, could not be opened for lack of
    /// a file descriptor: nothing was committed, and the same may work later.
    pub fn lacks_descriptor(&self) -> bool {
        match self {
            DirectoryError::Log(OpenLogError::Disk(error))
            | DirectoryError::State(StateError::Disk(error)) => has_no_descriptor(&error.source),
            _ => false,
        }
    }
}
