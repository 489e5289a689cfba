//! Counts of things by their size.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of buckets with an upper bound: 1, 2, 4, to 2^(n - 1). There is one more for what is above.
const BOUNDED: usize = 14;

/// Counts of things by the power of two that bounds their size.
#[derive(Debug, Default)]
pub struct Log2Histogram {
    buckets: [AtomicU64; BOUNDED + 1],
    sum: AtomicU64,
}

impl Log2Histogram {
    /// Counts one thing of this size. Size 0 counts with 1.
    #[inline]
    pub fn record(&self, size: u64) {
        let bucket = (size.max(1) - 1).checked_ilog2().map_or(0, |power| power as usize + 1).min(BOUNDED);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum.fetch_add(size, Relaxed);
    }

    /// How many there were, and their sizes together.
    pub fn totals(&self) -> (u64, u64) {
        (self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum(), self.sum.load(Relaxed))
    }

    /// For each bound (`None` above the last one) how many were at most that large.
    pub(crate) fn cumulative(&self) -> Vec<(Option<u64>, u64)> {
        let mut below = 0;
        let buckets = self.buckets.iter().enumerate().map(|(power, bucket)| {
            below += bucket.load(Relaxed);
            ((power < BOUNDED).then_some(1u64 << power), below)
        });
        buckets.collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Exposition, Table, numbers};

    numbers! {
        /// For the test.
        struct Sizes {
            sizes: Log2Histogram("sizes", "Sizes of things."),
        }
    }

    #[test]
    fn a_size_counts_in_the_bucket_of_the_power_that_bounds_it() {
        let source = Sizes::default();
        let sizes = &source.sizes;
        for size in [0, 1, 2, 3, 4, 5, 1000, 8192, 8193, u64::from(u32::MAX)] {
            sizes.record(size);
        }
        assert_eq!(sizes.totals(), (10, 1 + 2 + 3 + 4 + 5 + 1000 + 8192 + 8193 + u64::from(u32::MAX)));
        let mut out = Exposition::new();
        const TABLE: Table<Sizes> = Sizes::TABLE;
        TABLE.expose(&source, &mut out);
        let text = out.into_text();
        let cumulative = [(1, 2), (2, 3), (4, 5), (8, 6), (16, 6), (512, 6), (1024, 7), (4096, 7), (8192, 8)];
        for (bound, count) in cumulative {
            assert!(text.contains(&format!("sizes_bucket{{le=\"{bound}\"}} {count}\n")), "{bound}: {text}");
        }
        assert!(text.starts_with("# HELP sizes Sizes of things.\n# TYPE sizes histogram\n"), "{text}");
        assert!(
            text.contains("sizes_bucket{le=\"+Inf\"} 10\nsizes_sum 4294984695\nsizes_count 10\n"),
            "{text}"
        );
    }
}
