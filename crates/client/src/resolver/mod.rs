//! Which rack a host is in: asked of the operator's script or map file.

mod script;
mod table;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

/// What [`TableResolver::open`] reads its file from: [`RealDisk`], but for tests.
pub use bindery_io::{Disk, RealDisk};

pub use self::script::{SCRIPT_ARGUMENTS_MAX_DEFAULT, SCRIPT_TIMEOUT_DEFAULT, ScriptResolver};
pub use self::table::TableResolver;
use crate::location::{InvalidLocation, Location};

/// What a resolver returns: a place for each host, in their order, `None` where it knows none.
pub type Resolution<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<Option<Location>>, ResolveError>> + Send + 'a>>;

/// Knows where hosts stand. Asked for new bookies, and now and then for all; answers are kept meanwhile.
///
/// # Invariants (every implementation)
/// 1. It gives one answer for each host, in their order.
/// 2. It ends in a bounded time, and blocks no thread of the runtime.
/// 3. Dropped, it leaves nothing running.
pub trait NetworkResolver: Send + Sync + 'static {
    /// Looks up hosts as bookies register them: names or IP addresses, without a port.
    fn resolve<'a>(&'a self, hosts: &'a [String]) -> Resolution<'a>;
}

/// Why the places of bookies are unknown. They count as being in `/default-region/default-rack` until the next attempt,
/// or where they were last known to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// It cannot be started.
    #[error("cannot run {}: {error}. It has to be an executable file, with #! and its interpreter if it is a script", script.display())]
    CannotRun {
        /// The script.
        script: PathBuf,
        /// What the system said.
        error: String,
    },
    /// It ended with an error.
    #[error("{} failed ({status}){}", script.display(), said(stderr))]
    Failed {
        /// The script.
        script: PathBuf,
        /// How it ended.
        status: String,
        /// The beginning of what it wrote to standard error.
        stderr: String,
    },
    /// It took too long, and was killed.
    #[error("{} did not end within {timeout:?} and was killed", script.display())]
    TimedOut {
        /// The script.
        script: PathBuf,
        /// The time it had.
        timeout: Duration,
    },
    /// It printed another number of racks than it was given hosts.
    #[error(
        "{} printed {found} racks for {expected} hosts: it has to print one for each argument, separated by blanks or \
         newlines", script.display()
    )]
    WrongCount {
        /// The script.
        script: PathBuf,
        /// Hosts it was given.
        expected: usize,
        /// Words it printed.
        found: usize,
    },
    /// It printed more than any list of racks has.
    #[error("{} printed more than {bytes_max} bytes", script.display())]
    TooMuch {
        /// The script.
        script: PathBuf,
        /// The limit.
        bytes_max: usize,
    },
    /// It printed something else than racks.
    #[error("{}: {error}", script.display())]
    Invalid {
        /// The script.
        script: PathBuf,
        /// What is wrong.
        error: InvalidLocation,
    },
    /// The map file cannot be read.
    #[error("cannot read the rack map {}: {error}", path.display())]
    CannotRead {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: String,
    },
    /// A line of the map is not a host and a rack.
    #[error("line {line} of the rack map{}: {error}", path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    InvalidLine {
        /// The file, if it is one.
        path: Option<PathBuf>,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        error: String,
    },
    /// Of a resolver of the application's own.
    #[error("{0}")]
    Other(String),
}

fn said(stderr: &str) -> String {
    let said = stderr.trim();
    if said.is_empty() { ", and said nothing".into() } else { format!(": {said}") }
}
