//! Requests that are sent again when no answer comes.

use std::time::Duration;

use object_store::path::Path;

use super::StoreError;

/// Tries of a request to a store that has answered before.
const TRIES: u32 = 8;
/// Tries of one that has not, with the client's own retries of each on top: a wrong address is to be said soon.
const TRIES_FIRST: u32 = 2;
/// The first pause between two tries, doubled each time up to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// A try that the store's own limits do not end: a directory on a mount that hangs.
const TRY_MAX: Duration = Duration::from_secs(75);

/// Sends requests again that got no answer.
#[derive(Debug)]
pub(super) struct Patient {
    has_answered: bool,
    sent: u32,
}

impl Patient {
    pub fn new() -> Patient {
        Patient { has_answered: false, sent: 0 }
    }

    /// The store answered somebody else.
    pub fn expect_answers(&mut self) {
        self.has_answered = true;
    }

    /// Requests that were sent.
    pub fn sent(&self) -> u32 {
        self.sent
    }

    /// Sends a request until an answer comes, or for long enough. Whether a write took effect is unknown when none came.
    pub async fn ask<T, F: Future<Output = object_store::Result<T>>>(
        &mut self,
        key: &Path,
        request: impl Fn() -> F,
    ) -> Result<T, StoreError> {
        let (mut pause, mut left) = (PAUSES.0, if self.has_answered { TRIES - 1 } else { TRIES_FIRST - 1 });
        loop {
            self.sent += 1;
            let outcome = once(key, request()).await;
            let is_unknown = matches!(outcome, Err(StoreError::Unavailable { .. }));
            self.has_answered |= !is_unknown;
            if !is_unknown || left == 0 {
                return outcome;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
            left -= 1;
        }
    }
}

/// One try.
pub(super) async fn once<T>(
    key: &Path,
    request: impl Future<Output = object_store::Result<T>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(TRY_MAX, request).await {
        Ok(outcome) => outcome.map_err(|error| StoreError::of(key, &error)),
        Err(_) => Err(StoreError::Unavailable {
            key: key.to_string(),
            reason: format!("no answer within {} s", TRY_MAX.as_secs()),
        }),
    }
}
