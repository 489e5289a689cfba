//! The last notifications, for subscribers that come back.
//!
//! A batch is kept as it is sent, encoded. Behind it stand the rules of records that not everybody may read, as they stood when the record
//! changed: [`readable`] takes out of a batch what a client may not know.
//!
//! # Limits     `bytes_max` over all batches; the newest one is always kept. [`READERS_BYTES_MAX`] of a batch's rules

use crate::tree::acl::{self, Identity, PERM_READ};
use crate::tree::records::key_of;
use crate::tree::{Change, Changed, Tree};
use crate::wire::Acl;
use bindery_oxia::keys;
use bindery_oxia::proto::{Notification, NotificationBatch, NotificationType};
use bytes::Bytes;
use prost::{DecodeError, Message};
use std::collections::{BTreeMap, VecDeque};

/// What a batch costs besides its bytes.
const BATCH_OVERHEAD_BYTES: usize = 64;
/// What a notification costs in its batch besides its key and itself.
const ENTRY_OVERHEAD_BYTES: usize = 16;
/// Addresses that may read records of a batch. The records of further ones are told to nobody: a small request can touch nodes with very many
/// rules.
const READERS_BYTES_MAX: usize = 64 << 10;

/// What stands behind a batch: further fields of the same message, as protobuf has it.
#[derive(Clone, PartialEq, Message)]
struct Restrictions {
    /// Key -> who may read it, for those that not everybody may read.
    #[prost(btree_map = "string, message", tag = "15")]
    readers: BTreeMap<String, Readers>,
}

/// Who may read a record. A client of Oxia's has no names, only an address.
#[derive(Clone, PartialEq, Message)]
struct Readers {
    /// As in rules of the scheme `ip`.
    #[prost(string, repeated, tag = "1")]
    networks: Vec<String>,
}

impl Readers {
    /// `None` when everybody may.
    fn of(rules: &[Acl]) -> Option<Readers> {
        if acl::allows(rules, PERM_READ, &[]) {
            return None;
        }
        let addresses = rules.iter().filter(|rule| rule.perms & PERM_READ != 0 && rule.scheme == "ip");
        Some(Readers { networks: addresses.map(|rule| rule.id.clone()).collect() })
    }

    fn include(&self, identities: &[Identity]) -> bool {
        let rule = |network: &String| Acl { perms: PERM_READ, scheme: "ip".to_owned(), id: network.clone() };
        self.networks.iter().any(|network| acl::allows(&[rule(network)], PERM_READ, identities))
    }
}

/// A kept batch without the records that a client may not read. `None` when nothing is left of it.
pub(crate) fn readable(
    encoded: &Bytes,
    identities: &[Identity],
) -> Result<Option<NotificationBatch>, DecodeError> {
    let mut batch = NotificationBatch::decode(encoded.clone())?;
    let Restrictions { readers } = Restrictions::decode(encoded.clone())?;
    for (key, readers) in readers {
        if !readers.include(identities) {
            batch.notifications.remove(&key);
        }
    }
    Ok((!batch.notifications.is_empty()).then_some(batch))
}

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
    /// A history that keeps at most `bytes_max` bytes of batches; with 0 it keeps none.
    pub(in crate::core) fn new(bytes_max: usize) -> History {
        History { batches: VecDeque::new(), bytes: 0, bytes_max, taken: 0, was_trimmed: false }
    }

    /// Takes in a stored batch, in their order.
    pub(in crate::core) fn restore(&mut self, offset: i64, encoded: Bytes) {
        self.taken = offset;
        self.push(offset, encoded);
        if self.bytes_max == 0 {
            // Later batches are not recorded, and a subscriber that got the old ones would not notice the gap.
            self.trim();
        }
    }

    /// Records what a transaction did. `ranges` were deleted as a whole, and stand for their records.
    pub(in crate::core) fn record(
        &mut self,
        (offset, time_ms): (i64, i64),
        tree: &Tree,
        changes: &[Changed],
        ranges: Vec<(String, String)>,
    ) {
        if self.bytes_max == 0 {
            return;
        }
        let (mut notifications, mut readers, mut left) =
            (BTreeMap::new(), BTreeMap::new(), READERS_BYTES_MAX);
        for Changed { path, change, acl } in changes {
            let Some(key) = key_of(path).filter(|key| !keys::is_internal(key)) else { continue };
            let version_id = || tree.record(key).map(|record| record.version_id);
            let (kind, version_id) = match change {
                Change::Created => (NotificationType::KeyCreated, version_id()),
                Change::Modified => (NotificationType::KeyModified, version_id()),
                Change::Deleted => (NotificationType::KeyDeleted, None),
            };
            let notification = Notification { r#type: kind.into(), version_id, key_range_last: None };
            notifications.insert(key.to_owned(), notification);
            match Readers::of(acl) {
                None => drop(readers.remove(key)),
                Some(mut of_key) => {
                    match left.checked_sub(of_key.encoded_len()) {
                        Some(rest) => left = rest,
                        None => of_key = Readers::default(),
                    }
                    readers.insert(key.to_owned(), of_key);
                }
            }
        }
        for (start, mut end) in ranges.into_iter().filter(|(start, _)| !keys::is_internal(start)) {
            // Of two that begin alike the larger one stands for both. One without an end has the empty one.
            let before = notifications.get(&start).and_then(|of: &Notification| of.key_range_last.clone());
            if let Some(before) = before
                && !end.is_empty()
                && (before.is_empty() || keys::compare(&before, &end).is_gt())
            {
                end = before;
            }
            readers.remove(&start);
            let kind = NotificationType::KeyRangeDeleted.into();
            let notification = Notification { r#type: kind, version_id: None, key_range_last: Some(end) };
            notifications.insert(start, notification);
        }
        if notifications.is_empty() {
            return;
        }
        let timestamp = u64::try_from(time_ms).unwrap_or(0);
        let batch = NotificationBatch { shard: super::SHARD, offset, timestamp, notifications };
        let mut encoded = batch.encode_to_vec();
        encoded.extend_from_slice(&Restrictions { readers }.encode_to_vec());
        self.push(offset, encoded.into());
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

/// Cuts a batch into messages of so many bytes, roughly: its client could take no larger one, and would never get past it. All but the last one
/// say the offset before, so that a client that goes on after some of them gets them all.
pub(crate) fn parts(batch: NotificationBatch, bytes: usize) -> VecDeque<NotificationBatch> {
    let NotificationBatch { shard, offset, timestamp, notifications } = batch;
    let part = |offset, notifications| NotificationBatch { shard, offset, timestamp, notifications };
    let (mut parts, mut next, mut left) = (VecDeque::new(), BTreeMap::new(), bytes);
    for (key, notification) in notifications {
        let size = key.len() + notification.encoded_len() + ENTRY_OVERHEAD_BYTES;
        if size > left && !next.is_empty() {
            parts.push_back(part(offset - 1, std::mem::take(&mut next)));
            left = bytes;
        }
        left = left.saturating_sub(size);
        next.insert(key, notification);
    }
    parts.push_back(part(offset, next));
    parts
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
    fn a_large_batch_is_told_in_parts() {
        let notifications: BTreeMap<String, Notification> =
            (0..1000).map(|number| (format!("/{number:099}"), Notification::default())).collect();
        let batch = NotificationBatch { shard: 0, offset: 7, timestamp: 5, notifications };
        assert_eq!(parts(batch.clone(), 1 << 20), std::slice::from_ref(&batch));
        let parts = parts(batch.clone(), 10_000);
        assert!((10..=20).contains(&parts.len()), "{}", parts.len());
        assert!(parts.iter().all(|part| part.encoded_len() <= 10_100 && part.timestamp == 5));
        let offsets: Vec<i64> = parts.iter().map(|part| part.offset).collect();
        assert!(offsets[..offsets.len() - 1].iter().all(|offset| *offset == 6), "{offsets:?}");
        assert_eq!(offsets.last(), Some(&7));
        let all: BTreeMap<_, _> = parts.into_iter().flat_map(|part| part.notifications).collect();
        assert_eq!(all, batch.notifications);
        let one =
            NotificationBatch { notifications: [("x".repeat(99), Notification::default())].into(), ..batch };
        assert_eq!(super::parts(one.clone(), 1), [one], "one at least");
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
