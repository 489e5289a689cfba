//! Which bookies failed lately: they are asked last. It changes an order, never what counts (IC19).
//!
//! # Limits     one entry per bookie that failed, until it answers again

use std::collections::HashMap;
use std::time::Duration;

use bindery_types::BookieId;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::transport::BookieError;

/// How long a failure is remembered.
const MEMORY: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct RecentFailures(Mutex<HashMap<BookieId, Instant>>);

impl RecentFailures {
    /// Notes how a bookie answered. A refusal is an answer.
    pub fn note(&self, bookie: &BookieId, failure: Option<&BookieError>) {
        let has_failed = failure.is_some_and(|error| !matches!(error, BookieError::Refused(_)));
        let mut failures = self.0.lock();
        if has_failed {
            failures.insert(bookie.clone(), Instant::now());
        } else if !failures.is_empty() {
            failures.remove(bookie);
        }
    }

    /// Moves those that failed lately behind the others, which keep their order.
    pub fn sort(&self, bookies: &mut [BookieId]) {
        let failures = self.0.lock();
        if !failures.is_empty() {
            bookies.sort_by_key(|bookie| failures.get(bookie).is_some_and(|at| at.elapsed() < MEMORY));
        }
    }

    /// Those that failed lately.
    pub fn all(&self) -> impl Iterator<Item = BookieId> {
        let failures = self.0.lock();
        let recent = failures.iter().filter(|(_, at)| at.elapsed() < MEMORY);
        recent.map(|(bookie, _)| bookie.clone()).collect::<Vec<_>>().into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failed_bookie_is_asked_last_for_a_while() {
        let ids = |names: &str| -> Vec<BookieId> {
            names.split(' ').map(|name| BookieId::new(name).unwrap()).collect()
        };
        let failures = RecentFailures::default();
        let sorted = || {
            let mut bookies = ids("a b c");
            failures.sort(&mut bookies);
            bookies
        };
        failures.note(&ids("a")[0], Some(&BookieError::Lost));
        failures.note(&ids("b")[0], Some(&BookieError::Refused(bindery_wire::ErrorCode::NoEntry)));
        assert_eq!(sorted(), ids("b c a"));
        assert_eq!(failures.all().collect::<Vec<_>>(), ids("a"));
        failures.note(&ids("a")[0], None);
        assert_eq!(sorted(), ids("a b c"));
        failures.note(&ids("b")[0], Some(&BookieError::Lost));
        tokio::time::advance(MEMORY).await;
        assert_eq!(sorted(), ids("a b c"));
    }
}
