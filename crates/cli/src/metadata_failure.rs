//! A metadata store that a command does not reach.

use crate::exit::{self, Failure};
use bindery_metadata::StoreError;
use std::fmt::Display;

/// The failure that is to be shown.
pub fn unreachable(uri: &str, error: &StoreError) -> Failure {
    match error {
        StoreError::Unreachable { faults, waited } if waited.is_zero() => unreachable_because(uri, faults),
        StoreError::Unreachable { faults, waited } => {
            unreachable_because(uri, &format_args!("{faults} (tried for {waited:?})"))
        }
        other => unreachable_because(uri, other),
    }
}

/// As [`unreachable`], for another reason.
pub fn unreachable_because(uri: &str, why: &dyn Display) -> Failure {
    Failure::with_code(
        exit::UNREACHABLE,
        format!(
            "cannot reach the metadata store {uri}: {why}. bindery standalone starts a store and a bookie on this machine; \
             --metadata URI or BINDERY_METADATA names another cluster"
        ),
    )
}

/// Whether an error of the metadata store means that it cannot be reached.
pub fn is_unreachable(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::ConnectionLoss
            | StoreError::Unreachable { .. }
            | StoreError::SessionExpired
            | StoreError::Closed
    )
}
