//! Failures of the metadata store, as commands report them.

use crate::exit::{self, Failure};
use bindery_metadata::layout::CookiesError;
use bindery_metadata::{OpenError, StoreError};
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

/// A failure of the metadata store, with the code that says whether it could be reached.
pub fn store_failure(error: &StoreError, message: String) -> Failure {
    let code = if is_unreachable(error) { exit::UNREACHABLE } else { exit::FAILURE };
    Failure::with_code(code, message)
}

/// Why the cluster at `uri` cannot be opened, likewise.
pub fn open_failure(uri: &str, error: &OpenError) -> Failure {
    match error {
        OpenError::Store(cause @ StoreError::Unreachable { .. }) => unreachable(uri, cause),
        OpenError::Store(cause) => store_failure(cause, error.to_string()),
        _ => Failure::new(error),
    }
}

/// Why a cookie cannot be read, written or deleted.
pub fn cookie_failure(error: &CookiesError) -> Failure {
    match error {
        CookiesError::Store(cause) => store_failure(cause, error.to_string()),
        _ => Failure::new(error),
    }
}

/// Whether an error of the metadata store means that it cannot be reached.
pub fn is_unreachable(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::ConnectionLoss
            | StoreError::Unreachable { .. }
            | StoreError::SessionExpired
            | StoreError::Moving
            | StoreError::Closed
    )
}
