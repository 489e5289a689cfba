//! Repair from the command line: a process that does it, repairs on demand, and questions about copies.

mod admin;
pub mod args;
mod decommission;
mod drain;
mod ledgers;
mod marks;
pub mod numbers;
mod order;
mod recover;
mod role;
mod run;
mod safety;

pub use self::decommission::run as decommission;
pub use self::drain::run as drain;
pub use self::ledgers::run as repair_ledgers;
pub use self::marks::{switch, under_replicated};
pub use self::recover::{check_stopped, run as recover};
pub use self::role::RepairRole;
pub use self::run::run;
pub use self::safety::run as safe_to_stop;

use crate::exit::Failure;
use bindery_repair::{RepairConfig, Targets};
use bindery_types::BookieId;
use std::collections::BTreeSet;

use self::args::CopyArgs;

/// A worker that copies to whichever bookie the placement chooses.
fn config(name: BookieId, copies: &CopyArgs) -> RepairConfig {
    let mut config = RepairConfig::new(name, Targets::Any);
    config.bytes_per_second = copies.rate;
    config.memory_limit = copies.memory_limit;
    config.parallel = usize::from(copies.parallel);
    config.open_grace = copies.open_grace;
    config
}

/// The name of a process that is part of no bookie.
fn own_name(given: Option<&str>) -> Result<BookieId, Failure> {
    match given {
        Some(name) => BookieId::new(name).map_err(|error| Failure::usage(format!("--name: {error}"))),
        None => BookieId::new(format!("repair-{}", std::process::id())).map_err(Failure::new),
    }
}

fn bookie_ids(texts: &[String]) -> Result<BTreeSet<BookieId>, Failure> {
    texts.iter().map(|text| BookieId::new(text).map_err(Failure::usage)).collect()
}
