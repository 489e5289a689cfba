//! How much a batch read may return (protocol reference, section 1.5).
//!
//! # Invariants
//! 1. The first entry is returned whatever the request's or the server's size limit says.
//! 2. No further entry is returned that would take the response frame over any of the limits, or the count over its own.
//! 3. The response frame never exceeds the frame limit, not even with the first entry.

use super::{BATCH_READ_ENTRY_OVERHEAD_BYTES, BATCH_READ_RESPONSE_OVERHEAD_BYTES, BatchRead};
use crate::FrameLimit;

/// Counts the response frame of one batch read while its entries are read one after the other:
/// offer each to [`BatchReadBudget::admit`] until it says no, [`BatchReadBudget::is_full`], or an entry is missing.
#[derive(Debug, Clone)]
pub struct BatchReadBudget {
    /// The smallest of the request's, the server's and the frame's size limit; zero or less admits one entry.
    limit: i64,
    frame_limit: FrameLimit,
    /// Size of the response frame so far, length prefix included.
    frame_size_bytes: usize,
    count: u32,
    count_max: u32,
}

impl BatchReadBudget {
    /// The budget of one request. `server_size_bytes_max` is `maxBatchReadSize`.
    pub fn new(request: &BatchRead, server_size_bytes_max: u32, frame_limit: FrameLimit) -> BatchReadBudget {
        let frame_size_bytes_max = frame_limit.size_bytes() as i64;
        BatchReadBudget {
            limit: request.max_size_bytes.min(i64::from(server_size_bytes_max)).min(frame_size_bytes_max),
            frame_limit,
            frame_size_bytes: BATCH_READ_RESPONSE_OVERHEAD_BYTES,
            count: 0,
            count_max: if request.max_count <= 0 { u32::MAX } else { request.max_count as u32 },
        }
    }

    /// Whether an entry of this size goes into the response; if so it is counted. After a no the batch is complete.
    ///
    /// A no to the very first entry means that not even that one fits a frame (invariant 3): answer `Io`.
    pub fn admit(&mut self, entry_size_bytes: usize) -> bool {
        let grown = self.frame_size_bytes.saturating_add(BATCH_READ_ENTRY_OVERHEAD_BYTES);
        let grown = grown.saturating_add(entry_size_bytes);
        let within = if self.count == 0 {
            grown <= self.frame_limit.size_bytes()
        } else {
            self.count < self.count_max && i64::try_from(grown).is_ok_and(|grown| grown <= self.limit)
        };
        if within {
            self.frame_size_bytes = grown;
            self.count += 1;
        }
        within
    }

    /// Whether no further entry, not even an empty one, would be admitted: saves reading one for nothing.
    pub fn is_full(&self) -> bool {
        !self.clone().admit(0)
    }

    /// Entries admitted.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The admitted entries with their sizes, for [`super::put_batch_read_response_header`].
    pub fn entries_size_bytes(&self) -> usize {
        self.frame_size_bytes - BATCH_READ_RESPONSE_OVERHEAD_BYTES
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::v2::{Flags, VERSION_CURRENT};

    const SERVER: u32 = 5 * 1024 * 1024;

    fn request(max_count: i32, max_size_bytes: i64) -> BatchRead {
        BatchRead {
            version: VERSION_CURRENT,
            flags: Flags::NONE,
            ledger_id: 1,
            start_entry_id: 0,
            request_id: 9,
            max_count,
            max_size_bytes,
            master_key: None,
            stride: 1,
        }
    }

    fn admitted(max_count: i32, max_size_bytes: i64, server: u32, sizes: &[usize]) -> usize {
        let mut budget =
            BatchReadBudget::new(&request(max_count, max_size_bytes), server, FrameLimit::DEFAULT);
        sizes.iter().take_while(|size| budget.admit(**size)).count()
    }

    #[test]
    fn the_counter_starts_at_36_and_the_limit_is_inclusive() {
        let two = 36 + 2 * (4 + 100);
        assert_eq!(admitted(0, two, SERVER, &[100; 3]), 2);
        assert_eq!(admitted(0, two - 1, SERVER, &[100; 3]), 1);
        assert_eq!(admitted(0, i64::MAX, two as u32, &[100; 3]), 2);
        assert_eq!(admitted(0, i64::MAX, two as u32 - 1, &[100; 3]), 1);
    }

    #[test]
    fn the_first_entry_always_goes() {
        for max_size in [i64::MIN, -1, 0, 36, 139] {
            assert_eq!(admitted(10, max_size, SERVER, &[100, 0]), 1, "invariant 1 at {max_size}");
        }
        assert_eq!(admitted(10, i64::MAX, 0, &[100, 0]), 1);
    }

    #[test]
    fn a_count_of_zero_or_less_is_unlimited() {
        for max_count in [0, -1, i32::MIN] {
            assert_eq!(admitted(max_count, i64::MAX, SERVER, &[10; 500]), 500);
        }
        assert_eq!(admitted(1, i64::MAX, SERVER, &[10; 5]), 1);
        assert_eq!(admitted(3, i64::MAX, SERVER, &[10; 5]), 3);
    }

    #[test]
    fn the_frame_limit_binds_even_the_first_entry() {
        let limit = FrameLimit::new(2000).expect("above the minimum");
        let mut budget = BatchReadBudget::new(&request(0, i64::MAX), SERVER, limit);
        assert!(!budget.admit(2000 - 40 + 1), "invariant 3");
        assert!(!budget.admit(usize::MAX), "invariant 3");
        assert!(budget.admit(2000 - 40));
        assert!(budget.is_full());
        assert_eq!((budget.count(), budget.entries_size_bytes()), (1, 2000 - 36));
    }

    proptest! {
        /// Agrees with the rule of the reference, written the slow way.
        #[test]
        fn agrees_with_the_rule_as_written(
            sizes in prop::collection::vec(0usize..200, 1..20), max_count in -2i32..12,
            max_size in -10i64..2000, server in 0u32..2000,
        ) {
            let limit = max_size.min(i64::from(server));
            let (mut counter, mut expected) = (36, 0);
            for (index, size) in sizes.iter().enumerate() {
                counter += 4 + *size as i64;
                let count_left = max_count <= 0 || (index as i32) < max_count;
                if index > 0 && !(count_left && counter <= limit) {
                    break;
                }
                expected += 1;
            }
            prop_assert_eq!(admitted(max_count, max_size, server, &sizes), expected);
        }
    }
}
