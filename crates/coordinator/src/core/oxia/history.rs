//! The last notifications, for subscribers that come back.
//!
//! # Limits     `bytes_max` over all batches; the newest one is always kept

use crate::tree::records::key_of;
use crate::tree::{Change, Tree};
use bindery_oxia::keys;
use bindery_oxia::proto::{Notification, NotificationBatch, NotificationType};
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What a batch costs besides its bytes.
const BATCH_OVERHEAD_BYTES: usize = 64;

/// Batches of notifications, each under its offset: the zxid of the transaction.
#[derive(Debug)]
pub(in crate::core) struct History {
    /// Ascending.
    batches: VecDeque<(i64, Bytes)>,
    bytes: usize,
    bytes_max: usize,
    /// Every batch up to it was given to the store.
    taken: i64,
    /// The oldest batch went since the last call of [`History::take_changed`].
    was_trimmed: bool,
}

impl History {
    /// `bytes_max` of 0 keeps nothing.
    pub(in crate::core) fn new(bytes_max: usize) -> History {
        History { batches: VecDeque::new(), bytes: 0, bytes_max, taken: 0, was_trimmed: false }
    }

    /// Takes in a stored batch, in their order.
    pub(in crate::core) fn restore(&mut self, offset: i64, encoded: Bytes) {
        self.taken = offset;
        self.push(offset, encoded);
        if self.bytes_max == 0 {
            // What follows is not recorded: a subscriber must not get the old ones as if nothing were missing.
            self.trim();
        }
    }

    /// Records what a transaction did. `ranges` were deleted as a whole, and stand for their records.
    pub(in crate::core) fn record(
        &mut self,
        (offset, time_ms): (i64, i64),
        tree: &Tree,
        changes: &[(Arc<str>, Change)],
        ranges: Vec<(String, String)>,
    ) {
        if self.bytes_max == 0 {
            return;
        }
        let mut notifications = BTreeMap::new();
        for (path, change) in changes {
            let Some(key) = key_of(path).filter(|key| !keys::is_internal(key)) else { continue };
            let version_id = || tree.record(key).map(|record| record.version_id);
            let (kind, version_id) = match change {
                Change::Created => (NotificationType::KeyCreated, version_id()),
                Change::Modified => (NotificationType::KeyModified, version_id()),
                Change::Deleted => (NotificationType::KeyDeleted, None),
            };
            let notification = Notification { r#type: kind.into(), version_id, key_range_last: None };
            notifications.insert(key.to_owned(), notification);
        }
        for (start, end) in ranges.into_iter().filter(|(start, _)| !keys::is_internal(start)) {
            let kind = NotificationType::KeyRangeDeleted.into();
            let notification = Notification { r#type: kind, version_id: None, key_range_last: Some(end) };
            notifications.insert(start, notification);
        }
        if notifications.is_empty() {
            return;
        }
        let timestamp = u64::try_from(time_ms).unwrap_or(0);
        let batch = NotificationBatch { shard: super::SHARD, offset, timestamp, notifications };
        self.push(offset, batch.encode_to_vec().into());
    }

    fn push(&mut self, offset: i64, encoded: Bytes) {
        self.bytes += encoded.len() + BATCH_OVERHEAD_BYTES;
        self.batches.push_back((offset, encoded));
        while self.bytes > self.bytes_max && self.batches.len() > 1 {
            self.trim();
        }
    }

    fn trim(&mut self) {
        if let Some((_, oldest)) = self.batches.pop_front() {
            self.bytes -= oldest.len() + BATCH_OVERHEAD_BYTES;
            self.was_trimmed = true;
        }
    }

    /// Some of the batches behind an offset, encoded: as many as there are, or as fit in `bytes`, one at least.
    pub(in crate::core) fn after(&self, offset: i64, bytes: usize) -> Vec<(i64, Bytes)> {
        let begin = self.batches.partition_point(|(at, _)| *at <= offset);
        let mut left = bytes;
        let mut batches = Vec::new();
        for batch in self.batches.range(begin..) {
            if !batches.is_empty() && batch.1.len() > left {
                break;
            }
            left = left.saturating_sub(batch.1.len());
            batches.push(batch.clone());
        }
        batches
    }

    /// What the store lacks, and the offset below which it is to keep nothing.
    pub(in crate::core) fn take_changed(&mut self) -> (Vec<(i64, Bytes)>, Option<i64>) {
        let begin = self.batches.partition_point(|(at, _)| *at <= self.taken);
        let new: Vec<(i64, Bytes)> = self.batches.range(begin..).cloned().collect();
        if let Some((offset, _)) = new.last() {
            self.taken = *offset;
        }
        let from = self.batches.front().map_or(i64::MAX, |(offset, _)| *offset);
        (new, std::mem::take(&mut self.was_trimmed).then_some(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_and_the_store_learns_what_is_new_and_what_went() {
        let mut history = History::new(3 * (BATCH_OVERHEAD_BYTES + 10));
        for offset in 1..=3 {
            history.push(offset, vec![0; 10].into());
        }
        let (new, from) = history.take_changed();
        assert_eq!((new.len(), from), (3, None));
        for offset in 4..=8 {
            history.push(offset, vec![0; 10].into());
        }
        let (new, from) = history.take_changed();
        let offsets: Vec<i64> = new.iter().map(|(offset, _)| *offset).collect();
        assert_eq!((offsets, from), (vec![6, 7, 8], Some(6)), "4 and 5 came and went");
        let after =
            |offset, bytes| history.after(offset, bytes).iter().map(|(at, _)| *at).collect::<Vec<_>>();
        assert_eq!(after(0, 1000), [6, 7, 8], "from the oldest that there is");
        assert_eq!(after(6, 10), [7]);
        assert_eq!(after(6, 0), [7], "one at least");
        assert_eq!(after(8, 1000), [] as [i64; 0]);
        history.push(9, vec![0; 5000].into());
        assert_eq!(history.after(0, 1000).len(), 1, "the newest is kept");
    }

    #[test]
    fn a_history_that_is_switched_off_forgets_what_was_stored() {
        let mut history = History::new(0);
        history.restore(7, vec![0; 10].into());
        assert_eq!(history.after(0, 1000), []);
        assert_eq!(history.take_changed(), (Vec::new(), Some(i64::MAX)));
        assert_eq!(history.take_changed(), (Vec::new(), None));
    }
}
