//! `bindery bench`.
pub mod args;
use self::args::BenchCommand;
use crate::exit::Failure;
/// Runs one workload.
pub fn run(command: BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Add(_) | BenchCommand::Read(_) => Err(Failure::new("not there yet")),
    }
}
