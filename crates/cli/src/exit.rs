//! Exit codes, and failures that carry one.

use crate::printable;
use std::fmt;

/// Done.
pub const OK: u8 = 0;
/// It did not work; the message says why and what to do.
pub const FAILURE: u8 = 1;
/// The command line or the configuration is wrong.
pub const USAGE: u8 = 2;
/// A running bookie lost its registration for good: another process may own its identity.
pub const REGISTRATION_LOST: u8 = 3;
/// Stopped on request before all was done. A bookie's acknowledged entries are safe, its next start replays them.
pub const UNCLEAN_STOP: u8 = 4;
/// The ledger can no longer be written: closed, fenced, or too few bookies; the message names the last acknowledged entry.
pub const LEDGER_ENDED: u8 = 5;
/// No such ledger, or no such entry.
pub const NOT_FOUND: u8 = 6;
/// No metadata server, or no bookie that is needed, can be reached.
pub const UNREACHABLE: u8 = 7;
/// The reader of standard output closed it, as `head` does. That is its decision: nothing is said.
pub const OUTPUT_CLOSED: u8 = 8;
/// `bindery verify`, `bindery ledger verify` or `bindery tier verify` found damage, or `bindery ledger repair` could not mend it all.
pub const DAMAGED: u8 = 9;
/// `bindery cluster safe-to-stop`: entries would have too few copies.
pub const NOT_SAFE: u8 = 10;
/// An append was stopped by a signal with everything acknowledged; the number of the signal is added.
pub const SIGNALLED: u8 = 128;

/// Each fault is a line that begins as every failure does.
pub const BETWEEN_FAULTS: &str = "\nbindery: ";

/// One clear message and the code to exit with.
#[derive(Debug)]
pub struct Failure {
    /// For the shell.
    pub code: u8,
    /// Empty: the code says it all.
    message: String,
}

impl Failure {
    /// A failure with a code of its own.
    pub fn with_code(code: u8, message: impl fmt::Display) -> Failure {
        // Much of it may be what another process said, which makes no lines of its own.
        let message = message.to_string();
        let faults: Vec<_> = message.split(BETWEEN_FAULTS).map(printable::within_line).collect();
        Failure { code, message: faults.join(BETWEEN_FAULTS) }
    }

    /// Something did not work.
    pub fn new(message: impl fmt::Display) -> Failure {
        Failure::with_code(FAILURE, message)
    }

    /// The same with several faults.
    pub fn usage_of(faults: &[String]) -> Failure {
        Failure::usage(faults.join(BETWEEN_FAULTS))
    }

    /// The faults, each a line.
    pub fn faults(&self) -> impl Iterator<Item = &str> {
        self.message.split(BETWEEN_FAULTS)
    }

    /// True when there is nothing to say besides the code.
    pub fn is_silent(&self) -> bool {
        self.message.is_empty()
    }

    /// A mistake in how the command was called.
    pub fn usage(message: impl fmt::Display) -> Failure {
        Failure::with_code(USAGE, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_say_in_a_failure_makes_no_lines() {
        let failure = Failure::new("cannot connect to \x1b]0;t\x07\nevil: refused");
        assert_eq!(failure.to_string(), r"cannot connect to \u{1b}]0;t\u{7}\nevil: refused");
        let faults = ["one".to_owned(), "two\r".to_owned()];
        assert_eq!(Failure::usage_of(&faults).faults().collect::<Vec<_>>(), ["one", r"two\r"]);
        let again = Failure::new(&failure);
        assert_eq!(again.to_string(), failure.to_string());
    }
}
