//! Which entries of a ledger a bookie has, as GET_LIST_OF_ENTRIES_OF_LEDGER sends it (protocol reference, section 2.7).
//!
//! ```text
//!  0             4               8         64
//!  +-------------+---------------+---------+---------+---------+---
//!  | version = 0 | groupCount(4) | zeroes  | group   | group   |
//!  +-------------+---------------+---------+---------+---------+---
//!  group: firstSequenceStart(8) lastSequenceStart(8) sequenceSize(4) sequencePeriod(4)
//! ```
//!
//! A group stands for runs of `size` consecutive ids, starting at first, first + period, ..., last; period 0 for one run. All numbers
//! are big-endian.
//!
//! # Invariants
//! 1. Groups are sorted and do not overlap; ids are never negative.
//! 2. Runs within a group do not overlap: size <= period.
//! 3. We write one group per contiguous run, which every decoder understands, and read any valid grouping. A run of more ids than a size can
//!    say takes a group of runs that touch, and one for the rest.

use bindery_types::EntryId;
use bytes::{BufMut, Bytes, BytesMut};

use crate::cursor::{take_array, take_i32, take_i64};

const VERSION: i32 = 0;
const HEADER_SIZE_BYTES: usize = 64;
const GROUP_SIZE_BYTES: usize = 24;
/// Ids of one run where a contiguous run has more than two of these: two of them do not overflow a size.
const LONG_RUN_SIZE: i32 = 1 << 29;

/// The set of entries of one ledger on one bookie.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntryAvailability {
    groups: Vec<Group>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Group {
    first: i64,
    last: i64,
    size: i32,
    period: i32,
}

/// Bytes that are not a valid list of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AvailabilityError {
    /// Shorter than its header or longer or shorter than its group count says.
    #[error("list of entries of {size_bytes} bytes does not hold {group_count} groups")]
    WrongSize {
        /// Size of the whole list.
        size_bytes: usize,
        /// The count in its header, 0 when there is no header.
        group_count: i32,
    },
    /// A version other than 0.
    #[error("list of entries has unknown version {version}")]
    UnknownVersion {
        /// The version found.
        version: i32,
    },
    /// A group that breaks invariant 1 or 2.
    #[error("group {index} of the list of entries is invalid")]
    InvalidGroup {
        /// 0-based.
        index: usize,
    },
}

impl EntryAvailability {
    /// Adds an entry, which must be higher than all those added before. See [`EntryAvailability::push_run`].
    pub fn push(&mut self, entry_id: EntryId) {
        self.push_run(entry_id, entry_id);
    }

    /// Adds the entries from `first` to `last`, which must be higher than all those added before. Takes the same time however many they are.
    ///
    /// Panics otherwise: the ids come from our own index, in order.
    pub fn push_run(&mut self, first: EntryId, last: EntryId) {
        let (mut first, last) = (first.get(), last.get());
        assert!(first <= last, "a run from {first} to {last}: it ends before it begins");
        if let Some(run) = self.groups.last_mut() {
            // `end` is the last id, not one beyond it, so it cannot overflow.
            let end = run.end();
            assert!(first > end, "entry {first} after {end}: ids are added in order");
            if run.period == 0 && first == end + 1 {
                let more = (last - first).min(i64::from(i32::MAX - run.size) - 1) + 1;
                run.size += i32::try_from(more).expect("it is no more than is left of an i32");
                match first.checked_add(more) {
                    Some(next) if next <= last => first = next,
                    _ => return,
                }
            }
        }
        if last - first >= 2 * i64::from(LONG_RUN_SIZE) {
            let runs = (last - first) / i64::from(LONG_RUN_SIZE);
            let last_start = first + (runs - 1) * i64::from(LONG_RUN_SIZE);
            self.groups.push(Group { first, last: last_start, size: LONG_RUN_SIZE, period: LONG_RUN_SIZE });
            first = last_start + i64::from(LONG_RUN_SIZE);
        }
        let size = i32::try_from(last - first + 1).expect("the rest is shorter than two long runs");
        self.groups.push(Group { first, last: first, size, period: 0 });
    }

    /// Whether the bookie has the entry.
    pub fn contains(&self, entry_id: EntryId) -> bool {
        let id = entry_id.get();
        let beyond = self.groups.partition_point(|group| group.first <= id);
        self.groups[..beyond].last().is_some_and(|group| group.contains(id))
    }

    /// How many entries the bookie has.
    pub fn entry_count(&self) -> u64 {
        self.groups.iter().map(|group| group.run_count() * group.size as u64).sum()
    }

    /// Size of the encoded list, to be checked against the frame limit before encoding.
    pub fn encoded_size_bytes(&self) -> usize {
        HEADER_SIZE_BYTES + GROUP_SIZE_BYTES * self.groups.len()
    }

    /// The bytes of `availabilityOfEntriesOfLedger`.
    ///
    /// Panics beyond i32::MAX groups, 48 GiB, far above any frame.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.encoded_size_bytes());
        out.put_i32(VERSION);
        out.put_i32(i32::try_from(self.groups.len()).expect("the list was checked against the frame limit"));
        out.put_bytes(0, HEADER_SIZE_BYTES - 8);
        for group in &self.groups {
            out.put_i64(group.first);
            out.put_i64(group.last);
            out.put_i32(group.size);
            out.put_i32(group.period);
        }
        out.freeze()
    }

    /// Reads `availabilityOfEntriesOfLedger`. Allocates no more than the bytes are long.
    pub fn decode(bytes: &[u8]) -> Result<EntryAvailability, AvailabilityError> {
        let size_bytes = bytes.len();
        let mut header = bytes;
        let (version, group_count) = (take_i32(&mut header), take_i32(&mut header));
        let (Some(version), Some(group_count), Some(mut rest)) =
            (version, group_count, bytes.get(HEADER_SIZE_BYTES..))
        else {
            return Err(AvailabilityError::WrongSize { size_bytes, group_count: 0 });
        };
        if version != VERSION {
            return Err(AvailabilityError::UnknownVersion { version });
        }
        let expected =
            usize::try_from(group_count).ok().and_then(|count| count.checked_mul(GROUP_SIZE_BYTES));
        if expected != Some(rest.len()) {
            return Err(AvailabilityError::WrongSize { size_bytes, group_count });
        }
        let mut groups: Vec<Group> = Vec::with_capacity(rest.len() / GROUP_SIZE_BYTES);
        while let Some(mut raw) = take_array::<GROUP_SIZE_BYTES>(&mut rest).as_ref().map(|raw| &raw[..]) {
            let previous_end = groups.last().map_or(-1, Group::end);
            let group = Group::take(&mut raw).filter(|group| group.is_valid() && group.first > previous_end);
            groups.push(group.ok_or(AvailabilityError::InvalidGroup { index: groups.len() })?);
        }
        Ok(EntryAvailability { groups })
    }
}

impl Group {
    fn take(raw: &mut &[u8]) -> Option<Group> {
        Some(Group {
            first: take_i64(raw)?,
            last: take_i64(raw)?,
            size: take_i32(raw)?,
            period: take_i32(raw)?,
        })
    }

    fn is_valid(&self) -> bool {
        // Checked first, so that none of the sums below can overflow.
        if self.first < 0 || self.last < self.first || self.size < 1 {
            return false;
        }
        let runs_fit = if self.period == 0 {
            self.first == self.last
        } else {
            self.period >= self.size
                && self.last > self.first
                && (self.last - self.first) % i64::from(self.period) == 0
        };
        runs_fit && self.last.checked_add(i64::from(self.size) - 1).is_some()
    }

    /// The largest id in the group.
    fn end(&self) -> i64 {
        self.last + i64::from(self.size - 1)
    }

    fn run_count(&self) -> u64 {
        match self.period {
            0 => 1,
            period => (self.last - self.first) as u64 / period as u64 + 1,
        }
    }

    fn contains(&self, id: i64) -> bool {
        let offset = id - self.first;
        let within_run = if self.period == 0 { offset } else { offset % i64::from(self.period) };
        offset >= 0 && id <= self.end() && within_run < i64::from(self.size)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// However many ids it has, a run takes two groups at most, and is read back.
    #[test]
    fn a_run_of_any_length_takes_some_groups() {
        let long = i64::from(LONG_RUN_SIZE);
        let ends =
            [0, 1, 1000, long, 2 * long - 1, 2 * long, 2 * long + 1, i64::from(i32::MAX), 1 << 60, i64::MAX];
        for last in ends {
            for first in [0, 1, 5].into_iter().filter(|first| *first <= last) {
                let id = |id| EntryId::new(id).unwrap();
                let mut list = EntryAvailability::default();
                list.push_run(id(first), id(last));
                assert!(list.groups.len() <= 2, "{first} to {last}");
                let read = EntryAvailability::decode(&list.encode()).unwrap();
                assert_eq!(read, list);
                assert_eq!(read.entry_count(), (last - first) as u64 + 1, "{first} to {last}");
                assert!(
                    read.contains(id(first))
                        && read.contains(id(last))
                        && read.contains(id(first + (last - first) / 2))
                );
                assert!(first == 0 || !read.contains(id(first - 1)));
                assert!(last == i64::MAX || !read.contains(id(last + 1)));
            }
        }
        // Runs that touch become one, as far as a size goes.
        let mut list = EntryAvailability::default();
        for (first, last) in [(0, 9), (10, 10), (11, i64::from(i32::MAX) + 5), (i64::MAX, i64::MAX)] {
            list.push_run(EntryId::new(first).unwrap(), EntryId::new(last).unwrap());
        }
        assert_eq!(list.entry_count(), i32::MAX as u64 + 7);
        assert_eq!(EntryAvailability::decode(&list.encode()).unwrap(), list);
    }

    fn of(ids: impl IntoIterator<Item = i64>) -> EntryAvailability {
        let mut list = EntryAvailability::default();
        ids.into_iter().for_each(|id| list.push(EntryId::new(id).expect("test ids are not negative")));
        list
    }

    fn has(list: &EntryAvailability, id: i64) -> bool {
        list.contains(EntryId::new(id).expect("test ids are not negative"))
    }

    fn raw(groups: &[(i64, i64, i32, i32)]) -> Vec<u8> {
        let mut out = vec![0; 4];
        out.put_i32(groups.len() as i32);
        out.resize(64, 0);
        for &(first, last, size, period) in groups {
            out.put_i64(first);
            out.put_i64(last);
            out.put_i32(size);
            out.put_i32(period);
        }
        out
    }

    #[test]
    fn one_group_per_contiguous_run() {
        let list = of([0, 1, 2, 5, i64::MAX]);
        assert_eq!(list.encode(), raw(&[(0, 0, 3, 0), (5, 5, 1, 0), (i64::MAX, i64::MAX, 1, 0)]));
        assert_eq!(list.encoded_size_bytes(), 64 + 3 * 24);
        assert_eq!(of([]).encode(), raw(&[]));
    }

    #[test]
    fn periodic_groups_are_understood() {
        let list = EntryAvailability::decode(&raw(&[(2, 12, 2, 5), (20, 20, 1, 0)])).unwrap();
        let present: Vec<i64> = (0..30).filter(|id| has(&list, *id)).collect();
        assert_eq!(present, [2, 3, 7, 8, 12, 13, 20]);
        assert_eq!(list.entry_count(), 7);
        assert!(!has(&list, i64::MAX));
    }

    #[test]
    fn groups_that_break_an_invariant_are_errors() {
        let max = i64::MAX;
        let bad = [
            (-1, -1, 1, 0),
            (0, 0, 0, 0),
            (0, 0, -1, 0),
            (0, 4, 1, 0),
            (0, 0, 1, 1),
            (0, 4, 3, 2),
            (0, 5, 1, 2),
            (4, 0, 1, 2),
            (0, 4, 1, -2),
            (max, max, 2, 0),
            (i64::MIN, max, 1, 1),
        ];
        for group in bad {
            let error = EntryAvailability::decode(&raw(&[group])).unwrap_err();
            assert_eq!(error, AvailabilityError::InvalidGroup { index: 0 }, "{group:?}");
        }
        let overlap = raw(&[(0, 0, 3, 0), (2, 2, 1, 0)]);
        assert_eq!(EntryAvailability::decode(&overlap), Err(AvailabilityError::InvalidGroup { index: 1 }));
    }

    #[test]
    fn sizes_and_versions_are_checked() {
        let good = raw(&[(0, 0, 3, 0)]);
        for size in 0..good.len() {
            assert!(matches!(
                EntryAvailability::decode(&good[..size]),
                Err(AvailabilityError::WrongSize { size_bytes, .. }) if size_bytes == size
            ));
        }
        for count in [0, 2, -1, i32::MAX] {
            let mut bytes = good.clone();
            bytes[4..8].copy_from_slice(&i32::to_be_bytes(count));
            let expected = AvailabilityError::WrongSize { size_bytes: good.len(), group_count: count };
            assert_eq!(EntryAvailability::decode(&bytes), Err(expected));
        }
        let mut bytes = good;
        bytes[3] = 1;
        assert_eq!(EntryAvailability::decode(&bytes), Err(AvailabilityError::UnknownVersion { version: 1 }));
    }

    proptest! {
        #[test]
        fn a_list_reads_back_as_the_set_it_was_made_of(ids in prop::collection::btree_set(0i64..60, 0..40)) {
            let ids: BTreeSet<i64> = ids;
            let list = EntryAvailability::decode(&of(ids.iter().copied()).encode())?;
            prop_assert_eq!(list.entry_count(), ids.len() as u64);
            for id in 0..70 {
                prop_assert_eq!(has(&list, id), ids.contains(&id), "entry {}", id);
            }
        }
    }
}
