//! `bindery tier`: ledgers in object storage.
//!
//! # Parts
//! `run` the process that is only a tierer ([`crate::tier_role`]) · `status`, `now` ask one · `pause` for all of them · `check` a
//! store · `verify` all that is in one ([`crate::bucket`] says which) · `rebuild` the catalogue · [`restore`] ledgers from one

pub mod args;
mod check;
mod now;
mod pause;
mod rebuild;
pub mod restore;
mod run;
mod status;
mod verify;

use crate::admin_find::of_part;
use crate::admin_http::{Address, Words};
use crate::exit::Failure;
use args::{TierArgs, TierCommand};

/// Runs one command.
pub fn run(args: TierArgs) -> Result<(), Failure> {
    match args.command {
        None => run::run(args.run),
        Some(TierCommand::Run(run)) => run::run(run),
        Some(TierCommand::Status(status)) => status::run(&status),
        Some(TierCommand::Now(now)) => now::run(&now),
        Some(TierCommand::Pause(pause)) => pause::pause(&pause),
        Some(TierCommand::Resume(metadata)) => pause::resume(&metadata),
        Some(TierCommand::Check(check)) => check::run(&check),
        Some(TierCommand::Verify(verify)) => verify::run(&verify),
        Some(TierCommand::Rebuild(rebuild)) => rebuild::run(&rebuild),
        Some(TierCommand::Restore(restore)) => restore::run(&restore),
    }
}

/// What each tierer answers.
const STATUS_PATH: &str = "/api/v1/tier/status";

impl args::TierAdminArgs {
    /// The admin port of a tierer.
    async fn find(&self) -> Result<Address, Failure> {
        of_part(self.admin.as_deref(), &self.metadata, STATUS_PATH, &WORDS).await
    }
}

/// The words of errors about an admin port.
const WORDS: Words = Words {
    command: "bindery tier status",
    whose: "tierer",
    nobody: "nobody listens there. A tierer has an admin port with bindery tier run --admin IP:PORT, a bookie with --tier URL \
             on its own; name it with --admin http://HOST:PORT",
    missing: "has no tierer: start bindery tier run --store URL --admin IP:PORT, or a bookie with --tier URL",
    starting: "belongs to a tierer that is not ready",
};
