//! At most so many bytes in a second.
//!
//! A bucket holds what may be read at once, and fills with the rate. Whoever wants bytes takes them at once, also of an empty
//! bucket, and waits until it would have held them: so turns come in the order of the calls, and no queue is kept.
//!
//! # Invariants
//! 1. In any time t no more than burst + rate * t bytes are let through, as far as sizes were known before.
//! 2. Bytes that were taken and not used go back; bytes used beyond those taken are owed.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// A bucket holds what flows in so much time.
const BURST: Duration = Duration::from_millis(250);

/// Synchronous: `now` counts from any moment.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// `None` lets everything through.
    bytes_per_second: Option<u64>,
    /// Below zero it is owed. Meaningless without a rate.
    level_bytes: f64,
    filled_at: Duration,
}

impl Bucket {
    /// A full one.
    pub(super) fn new(bytes_per_second: Option<u64>) -> Bucket {
        let mut bucket = Bucket { bytes_per_second, level_bytes: 0.0, filled_at: Duration::ZERO };
        bucket.level_bytes = bucket.burst_bytes();
        bucket
    }

    fn burst_bytes(&self) -> f64 {
        self.bytes_per_second.map_or(0.0, |rate| rate as f64 * BURST.as_secs_f64())
    }

    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.filled_at);
        self.filled_at = self.filled_at.max(now);
        if let Some(rate) = self.bytes_per_second {
            let filled = self.level_bytes + rate as f64 * passed.as_secs_f64();
            self.level_bytes = filled.min(self.burst_bytes());
        }
    }

    /// From now on. Debts stay.
    pub(super) fn set_rate(&mut self, now: Duration, bytes_per_second: Option<u64>) {
        self.fill(now);
        if self.bytes_per_second.is_none() {
            self.level_bytes = 0.0;
        }
        self.bytes_per_second = bytes_per_second.map(|rate| rate.max(1));
        self.level_bytes = self.level_bytes.min(self.burst_bytes());
    }

    /// Takes bytes, and says how many have to flow in before they may be read.
    pub(super) fn take(&mut self, now: Duration, bytes: u64) -> f64 {
        self.fill(now);
        if self.bytes_per_second.is_none() {
            return 0.0;
        }
        self.level_bytes -= bytes as f64;
        // More than a bucket at a time goes when the bucket is full.
        let missing_bytes = -self.level_bytes - (bytes as f64 - self.burst_bytes()).max(0.0);
        missing_bytes.max(0.0)
    }

    /// Invariant 2.
    pub(super) fn settle(&mut self, taken_bytes: u64, used_bytes: u64) {
        if self.bytes_per_second.is_some() {
            let level = self.level_bytes + taken_bytes as f64 - used_bytes as f64;
            self.level_bytes = level.min(self.burst_bytes());
        }
    }
}

/// A bucket for all readers of a process.
pub(super) struct Rate {
    origin: Instant,
    bucket: Mutex<Bucket>,
    /// The rate of the bucket: those that wait for bytes wait by the current one.
    current: watch::Sender<Option<u64>>,
}

/// Bytes taken, to be settled: dropped, they go back.
pub(super) struct Taken {
    rate: Arc<Rate>,
    bytes: u64,
    used_bytes: u64,
}

impl Rate {
    pub(super) fn new(bytes_per_second: Option<u64>) -> Rate {
        Rate {
            origin: Instant::now(),
            bucket: Mutex::new(Bucket::new(bytes_per_second)),
            current: watch::Sender::new(bytes_per_second),
        }
    }

    pub(super) fn set(&self, bytes_per_second: Option<u64>) {
        self.bucket.lock().set_rate(self.origin.elapsed(), bytes_per_second);
        self.current.send_replace(bytes_per_second);
    }

    /// Waits until so many bytes may be read.
    pub(super) async fn take(self: &Arc<Self>, bytes: u64) -> Taken {
        let mut current = self.current.subscribe();
        let mut missing_bytes = self.bucket.lock().take(self.origin.elapsed(), bytes);
        let taken = Taken { rate: self.clone(), bytes, used_bytes: 0 };
        // Cancelled here, they go back.
        while missing_bytes > 0.0 {
            let now = *current.borrow_and_update();
            let Some(rate) = now else { break };
            let rate = rate.max(1) as f64;
            let wait = Duration::try_from_secs_f64(missing_bytes / rate).unwrap_or(Duration::MAX);
            let began = Instant::now();
            if tokio::time::timeout(wait, current.changed()).await.is_err() {
                break;
            }
            missing_bytes -= began.elapsed().as_secs_f64() * rate;
        }
        taken
    }
}

impl Taken {
    pub(super) fn used(&mut self, bytes: u64) {
        self.used_bytes = bytes;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.rate.bucket.lock().settle(self.bytes, self.used_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// How long bytes wait, if the rate stays.
    fn wait(bucket: &mut Bucket, now: Duration, bytes: u64) -> Duration {
        let missing_bytes = bucket.take(now, bytes);
        Duration::from_secs_f64(missing_bytes / bucket.bytes_per_second.unwrap_or(1) as f64)
    }

    #[test]
    fn what_passes_in_any_time_is_a_burst_and_the_rate() {
        // Invariant 1: 1,000 bytes a second, asked for in pieces of 100 as fast as they may go.
        let mut bucket = Bucket::new(Some(1000));
        let mut now = Duration::ZERO;
        let mut passed = Vec::new();
        for _ in 0..100 {
            now += wait(&mut bucket, now, 100);
            passed.push(now);
        }
        for (index, from) in passed.iter().enumerate() {
            let within = passed[index..].iter().filter(|at| **at - *from <= 1000 * MS).count();
            assert!(within <= 13, "250 at once, 1,000 in the second, and the first one: {within}");
        }
        assert!(passed[99] >= 9700 * MS && passed[99] <= 9800 * MS, "{:?}", passed[99]);
        // Idle, it is full again and not fuller.
        now += 60_000 * MS;
        assert_eq!(wait(&mut bucket, now, 250), Duration::ZERO);
        assert_eq!(wait(&mut bucket, now, 100), 100 * MS);
    }

    #[test]
    fn more_than_a_bucket_goes_alone_and_is_owed() {
        let mut bucket = Bucket::new(Some(1000));
        assert_eq!(wait(&mut bucket, Duration::ZERO, 5000), Duration::ZERO, "or it would never go");
        assert_eq!(wait(&mut bucket, Duration::ZERO, 100), 4850 * MS);
    }

    #[test]
    fn what_was_not_used_goes_back_and_what_was_used_beyond_it_is_owed() {
        // Invariant 2.
        let mut bucket = Bucket::new(Some(1000));
        assert_eq!(wait(&mut bucket, Duration::ZERO, 250), Duration::ZERO);
        bucket.settle(250, 50);
        assert_eq!(wait(&mut bucket, Duration::ZERO, 200), Duration::ZERO);
        bucket.settle(200, 1200);
        assert_eq!(wait(&mut bucket, Duration::ZERO, 10), 1010 * MS);
    }

    #[test]
    fn a_rate_can_be_changed_and_taken_away() {
        let mut bucket = Bucket::new(None);
        assert_eq!(wait(&mut bucket, Duration::ZERO, u64::MAX), Duration::ZERO);
        bucket.set_rate(Duration::ZERO, Some(1000));
        assert_eq!(wait(&mut bucket, Duration::ZERO, 100), 100 * MS, "it begins empty");
        bucket.set_rate(Duration::ZERO, Some(100));
        assert_eq!(wait(&mut bucket, Duration::ZERO, 10), 1100 * MS, "what is owed stays owed");
        bucket.set_rate(Duration::ZERO, None);
        assert_eq!(wait(&mut bucket, Duration::ZERO, 10), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_goes_by_a_rate_that_is_changed_meanwhile() {
        let rate = Arc::new(Rate::new(Some(16 << 10)));
        let takers: Vec<_> = (0..5)
            .map(|_| {
                let rate = rate.clone();
                tokio::spawn(async move { rate.take(512 << 10).await.used(512 << 10) })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!takers[4].is_finished());
        rate.set(Some(40 << 20));
        let began = Instant::now();
        for taker in takers {
            taker.await.unwrap();
        }
        assert!(began.elapsed() < Duration::from_millis(200), "{:?}", began.elapsed());
        rate.set(Some(1));
        let waits = tokio::spawn({
            let rate = rate.clone();
            async move { drop(rate.take(1 << 20).await) }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        rate.set(None);
        waits.await.unwrap();
    }
}
