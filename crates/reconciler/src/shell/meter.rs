//! Requests to the object store and what they cost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bindery_tiering::catalogue::Requests;
use bindery_tiering::store::StoreKind;
use parking_lot::Mutex;

/// Requests that write objects, and those that look whether they arrived.
#[derive(Debug, Default)]
pub(super) struct Meter {
    puts: AtomicU64,
    gets: AtomicU64,
    deletes: AtomicU64,
    lists: AtomicU64,
    bytes_put: AtomicU64,
    bytes_got: AtomicU64,
    /// The catalogue's, as it last said.
    catalogue: Mutex<Requests>,
    idle: Mutex<Idle>,
}

/// Requests while nothing was built or committed.
#[derive(Debug, Default)]
struct Idle {
    requests: u64,
    time: Duration,
    /// The last look: when, and how many requests there had been.
    before: Option<(Duration, u64)>,
}

impl Meter {
    pub fn put(&self, bytes: usize) {
        self.puts.fetch_add(1, Ordering::Relaxed);
        self.bytes_put.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A request that is priced as one that writes, and carries nothing: the beginning and the end of an upload in parts.
    pub fn put_nothing(&self) {
        self.put(0);
    }

    pub fn get(&self) {
        self.gets.fetch_add(1, Ordering::Relaxed);
    }

    /// A request that reads so much of an object.
    pub fn got(&self, bytes: u64) {
        self.get();
        self.bytes_got.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn delete(&self) {
        self.deletes.fetch_add(1, Ordering::Relaxed);
    }

    pub fn list(&self) {
        self.lists.fetch_add(1, Ordering::Relaxed);
    }

    pub fn set_catalogue(&self, requests: Requests) {
        *self.catalogue.lock() = requests;
    }

    /// All requests together.
    pub fn requests(&self) -> Requests {
        let of_catalogue = *self.catalogue.lock();
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Requests {
            puts: of_catalogue.puts + of(&self.puts),
            gets: of_catalogue.gets + of(&self.gets),
            lists: of_catalogue.lists + of(&self.lists),
            deletes: of_catalogue.deletes + of(&self.deletes),
            bytes_put: of_catalogue.bytes_put + of(&self.bytes_put),
            bytes_got: of_catalogue.bytes_got + of(&self.bytes_got),
        }
    }

    /// To be called now and then. Time in which something was under way does not count.
    pub fn look(&self, now: Duration, is_idle: bool) {
        let sum = count(&self.requests());
        let mut idle = self.idle.lock();
        if let Some((at, before)) = idle.before.replace((now, sum))
            && is_idle
        {
            idle.requests += sum - before;
            idle.time += now.saturating_sub(at);
        }
    }

    /// Requests in an hour without work; `None` before there was a minute of that.
    pub fn idle_per_hour(&self) -> Option<f64> {
        let idle = self.idle.lock();
        (idle.time >= Duration::from_secs(60))
            .then(|| idle.requests as f64 * 3600.0 / idle.time.as_secs_f64())
    }
}

fn count(requests: &Requests) -> u64 {
    requests.puts + requests.gets + requests.lists + requests.deletes
}

/// List prices of standard storage in US dollars, of November 2026, in the provider's first region. They say what matters, and are
/// no bill.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prices {
    /// For 1,000 requests that write or list.
    pub thousand_writes: f64,
    /// For 1,000 requests that read.
    pub thousand_reads: f64,
    /// For a GiB in a month.
    pub gib_month: f64,
}

impl Prices {
    /// What a kind of store charges.
    pub const fn of(kind: StoreKind) -> Prices {
        match kind {
            StoreKind::Local => Prices { thousand_writes: 0.0, thousand_reads: 0.0, gib_month: 0.0 },
            StoreKind::S3 => Prices { thousand_writes: 0.005, thousand_reads: 0.0004, gib_month: 0.023 },
            StoreKind::Gcs => Prices { thousand_writes: 0.005, thousand_reads: 0.0004, gib_month: 0.020 },
            StoreKind::Azure => Prices { thousand_writes: 0.0065, thousand_reads: 0.0005, gib_month: 0.018 },
        }
    }

    /// What requests cost.
    pub fn requests(&self, requests: &Requests) -> f64 {
        let writes = (requests.puts + requests.lists) as f64;
        writes / 1000.0 * self.thousand_writes + requests.gets as f64 / 1000.0 * self.thousand_reads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_idle_time_counts_as_idle() {
        let meter = Meter::default();
        let at = Duration::from_secs;
        meter.look(at(0), true);
        (0..100).for_each(|_| meter.put(1));
        meter.look(at(10), false);
        assert_eq!(meter.idle_per_hour(), None);
        (0..2).for_each(|_| meter.get());
        meter.look(at(130), true);
        assert_eq!(meter.idle_per_hour(), Some(60.0));
    }

    #[test]
    fn a_gib_in_objects_of_64_mib_costs_little() {
        // 16 objects in 8 parts each, with beginning and end, and a commit for each.
        let requests = Requests { puts: 16 * (8 + 2 + 1), bytes_put: 1 << 30, ..Requests::default() };
        let cost = Prices::of(StoreKind::S3).requests(&requests);
        assert!((0.0008..0.001).contains(&cost), "{cost}");
        assert_eq!(Prices::of(StoreKind::Local).requests(&requests), 0.0);
    }
}
