//! How far each bookie is behind, over all ledgers of a client: which replica is slow (IC17).
//!
//! A writer knows what one bookie holds up in its ledger. With many ledgers each may hold little and all of them
//! everything, so the bytes are summed by bookie, and the limit is for the sum.
//!
//! Holding up much is not enough to be slow. Of three bookies that are written to as fast as they go one is the slowest,
//! and what the two others acknowledged before it grows until the budget makes the writer wait: that is how a writer
//! follows its bookies, and no reason to replace one. Slow is a bookie above the limit that would need longer than the
//! request timeout for what it holds, at the rate of the last [`WATCH`]: requests to it are going to fail.
//!
//! # Invariants
//! 1. A bookie's sum is what the living [`Share`]s report for it.
//! 2. Above the limit a bookie is watched, and the ledgers that have a part in its sum are told so: they ask again soon,
//!    also when nothing happens.
//! 3. Each of them is told when the bookie is slow, until the sum is below the limit or the bookie is fast enough.
//!
//! # Limits     a few numbers for each bookie that ledgers being written name

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bindery_types::BookieId;
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long a bookie is watched before it is called slow.
pub(crate) const WATCH: Duration = Duration::from_millis(500);

/// The sums of a client.
pub(crate) struct SlowReplicas {
    bytes_max: u64,
    request_timeout: Duration,
    by_bookie: Mutex<HashMap<BookieId, Weak<Sums>>>,
}

#[derive(Default)]
struct Sums {
    held_bytes: AtomicU64,
    /// Ever acknowledged.
    acked_bytes: AtomicU64,
    /// Since the sum is above the limit.
    watch: Mutex<Option<Watched>>,
}

struct Watched {
    since: Instant,
    acked_bytes: u64,
    is_slow: bool,
}

/// What one ledger reports of one bookie.
pub(crate) struct Share {
    sums: Arc<Sums>,
    bytes: u64,
}

/// How slow a bookie is, as told to a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fine,
    /// It holds up too much, and may be slow: report again soon.
    Watched,
    /// It is slow, and holds up so much over all ledgers.
    Slow(u64),
}

impl SlowReplicas {
    pub fn new(bytes_max: u64, request_timeout: Duration) -> SlowReplicas {
        SlowReplicas { bytes_max, request_timeout, by_bookie: Mutex::default() }
    }

    /// To be kept as long as a ledger is written to this bookie.
    pub fn share(&self, bookie: &BookieId) -> Share {
        let mut by_bookie = self.by_bookie.lock();
        if let Some(sums) = by_bookie.get(bookie).and_then(Weak::upgrade) {
            return Share { sums, bytes: 0 };
        }
        // Now and then, so that bookies long gone are forgotten.
        by_bookie.retain(|_, sums| sums.strong_count() > 0);
        let sums = Arc::new(Sums::default());
        by_bookie.insert(bookie.clone(), Arc::downgrade(&sums));
        Share { sums, bytes: 0 }
    }

    /// Reports what a bookie holds up in one ledger now, and what it acknowledged since the last report.
    pub fn report(&self, share: &mut Share, bytes: u64, acked_bytes: u64) -> Verdict {
        let held_bytes = share.set(bytes);
        let sums = &*share.sums;
        let acked_bytes = match acked_bytes {
            0 => sums.acked_bytes.load(Ordering::Relaxed),
            more => sums.acked_bytes.fetch_add(more, Ordering::Relaxed) + more,
        };
        if bytes == 0 {
            return Verdict::Fine;
        }
        if held_bytes <= self.bytes_max {
            // Asked for by those only that have a part in the sum; uncontended, and nothing is done under it.
            *sums.watch.lock() = None;
            return Verdict::Fine;
        }
        let now = Instant::now();
        let mut watch = sums.watch.lock();
        let watched = watch.get_or_insert(Watched { since: now, acked_bytes, is_slow: false });
        let elapsed = now - watched.since;
        if elapsed >= WATCH {
            // How much it would acknowledge before requests fail.
            let acked = u128::from(acked_bytes.saturating_sub(watched.acked_bytes));
            let in_time = acked * self.request_timeout.as_millis() / elapsed.as_millis();
            *watched = Watched { since: now, acked_bytes, is_slow: in_time < u128::from(held_bytes) };
        }
        if watched.is_slow { Verdict::Slow(held_bytes) } else { Verdict::Watched }
    }
}

impl Share {
    fn set(&mut self, bytes: u64) -> u64 {
        let before = std::mem::replace(&mut self.bytes, bytes);
        let sum = &self.sums.held_bytes;
        match bytes.checked_sub(before) {
            Some(0) => sum.load(Ordering::Relaxed),
            Some(more) => sum.fetch_add(more, Ordering::Relaxed) + more,
            None => sum.fetch_sub(before - bytes, Ordering::Relaxed) - (before - bytes),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    fn id(name: &str) -> BookieId {
        BookieId::new(name).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn ledgers_that_hold_little_each_make_a_bookie_slow_together() {
        let slow = SlowReplicas::new(100, Duration::from_secs(5));
        let (mut one, mut two, mut other) =
            (slow.share(&id("a")), slow.share(&id("a")), slow.share(&id("b")));
        assert_eq!(slow.report(&mut one, 60, 0), Verdict::Fine);
        assert_eq!(slow.report(&mut other, 100, 0), Verdict::Fine, "by bookie");
        assert_eq!(slow.report(&mut two, 41, 0), Verdict::Watched, "invariant 2");
        advance(WATCH).await;
        assert_eq!(slow.report(&mut two, 41, 0), Verdict::Slow(101));
        assert_eq!(slow.report(&mut one, 60, 0), Verdict::Slow(101), "invariant 3");
        assert_eq!(slow.report(&mut two, 0, 0), Verdict::Fine, "it let go");
        assert_eq!(slow.report(&mut one, 60, 0), Verdict::Fine);
        assert_eq!(slow.report(&mut one, 101, 0), Verdict::Watched, "watched anew");
        drop(one);
        assert_eq!(
            slow.report(&mut two, 100, 0),
            Verdict::Fine,
            "invariant 1: a writer takes its part with it"
        );
        drop((two, other));
        let _again = slow.share(&id("b"));
        assert_eq!(slow.by_bookie.lock().len(), 1, "bookies without a ledger are forgotten");
    }

    /// A writer that floods its bookies makes one of them the slowest. It is slow only if it will not do in time.
    #[tokio::test(start_paused = true)]
    async fn a_bookie_that_is_behind_and_goes_on_is_not_slow() {
        let slow = SlowReplicas::new(100, Duration::from_secs(5));
        let mut share = slow.share(&id("a"));
        for _ in 0..100 {
            // 2000 bytes a second, 5 s for 10,000.
            assert_ne!(slow.report(&mut share, 9999, 1000), Verdict::Slow(9999));
            advance(WATCH).await;
        }
        for _ in 0..2 {
            assert_eq!(slow.report(&mut share, 9999, 1000), Verdict::Watched);
            advance(WATCH).await;
        }
        assert_eq!(slow.report(&mut share, 9999, 999), Verdict::Slow(9999), "too slow for what it holds");
        advance(WATCH).await;
        assert_eq!(slow.report(&mut share, 9999, 1000), Verdict::Watched, "fast enough again");
        advance(WATCH / 2).await;
        assert_eq!(slow.report(&mut share, 9999, 0), Verdict::Watched, "not at once");
        advance(WATCH / 2).await;
        assert_eq!(slow.report(&mut share, 9999, 0), Verdict::Slow(9999), "it stands still");
    }
}
