//! Memory of objects that wait: the answers of bookies, and the records of the log that have been known for long enough.
//!
//! # Limits     lengths of the log: [`SEEN_MAX`]; answers: as many bytes as [`Answers::bound`] is given

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::StoredObject;
use bindery_types::BookieId;

/// A word of answers in memory, about.
const WORD_BYTES: usize = 32;

/// Lengths of the log that are remembered until they were seen for long enough.
const SEEN_MAX: usize = 64;

/// Which records of the log this tierer has known for long enough. The log grows only, so a record was seen when a longer log was:
/// no object has to be remembered.
#[derive(Debug, Clone, Default)]
pub(super) struct Settled {
    /// All records up to this number.
    pub through: u64,
    /// Lengths of the log, and when they were seen first.
    seen: VecDeque<(u64, Duration)>,
    /// The last one that was seen.
    length: u64,
}

impl Settled {
    /// The log is so long now. True: the catalogue was put back, and its numbers are given out again.
    pub fn see(&mut self, now: Duration, length: u64, settle: Duration) -> bool {
        let is_put_back = length < self.length;
        if is_put_back {
            *self = Settled::default();
        }
        self.length = length;
        let is_longer = self.seen.back().map_or(self.through, |(seen, _)| *seen) < length;
        // Without room the next one stands for it, later.
        if is_longer && self.seen.len() < SEEN_MAX {
            self.seen.push_back((length, now));
        }
        while let Some((length, _)) = self.seen.front().copied().filter(|(_, at)| *at + settle <= now) {
            self.through = length;
            self.seen.pop_front();
        }
        is_put_back
    }
}

/// How far an object is from its release.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    /// The record that took extents over last.
    number: u64,
    /// A bit for each extent in the footer: set when the last examination found it done (invariant 1).
    done: Vec<u64>,
    /// Extents that are not.
    pub left: u32,
    /// Extents that a bookie confirmed: bits as in `done`, by the index in it and the bookie's number.
    said_yes: BTreeMap<(usize, u32), u64>,
}

impl Progress {
    pub fn new(number: u64, extents: u32) -> Progress {
        let done = vec![0; (extents as usize).div_ceil(64)];
        Progress { number, done, left: extents, said_yes: BTreeMap::new() }
    }

    fn is_done(&self, place: u32) -> bool {
        let (word, bit) = split(place);
        self.done.get(word).is_none_or(|word| word & bit != 0)
    }

    pub fn finish(&mut self, place: u32) {
        if self.is_done(place) {
            return;
        }
        let (word, bit) = split(place);
        self.done[word] |= bit;
        self.left -= 1;
    }

    pub fn reopen(&mut self, place: u32) {
        let (word, bit) = split(place);
        if let Some(word) = self.done.get_mut(word).filter(|word| **word & bit != 0) {
            *word &= !bit;
            self.left += 1;
        }
    }

    pub fn has_said_yes(&self, place: u32, bookie: u32) -> bool {
        let (word, bit) = split(place);
        self.said_yes.get(&(word, bookie)).is_some_and(|bits| bits & bit != 0)
    }

    pub fn say_yes(&mut self, place: u32, bookie: u32) {
        let (word, bit) = split(place);
        *self.said_yes.entry((word, bookie)).or_default() |= bit;
    }

    /// The next extents from this one on that are not done.
    pub fn window(&self, extents: u32, from: u32, limit: usize) -> Vec<u32> {
        (from..extents).filter(|place| !self.is_done(*place)).take(limit).collect()
    }

    /// Answers about extents that lack others.
    #[cfg(test)]
    pub fn answers_of_open(&self) -> usize {
        let of_open =
            |((word, _), bits): (&(usize, u32), &u64)| (bits & !self.done[*word]).count_ones() as usize;
        self.said_yes.iter().map(of_open).sum()
    }

    fn bytes(&self) -> usize {
        (self.done.len() + 8) * 8 + self.said_yes.len() * WORD_BYTES
    }
}

/// The word of an extent's bit, and the bit.
fn split(place: u32) -> (usize, u64) {
    (place as usize / 64, 1 << (place % 64))
}

/// Answers of bookies.
#[derive(Debug, Clone, Default)]
pub(super) struct Answers {
    pub of_objects: BTreeMap<ObjectId, Progress>,
    /// Bookies by number.
    bookies: BTreeMap<BookieId, u32>,
    /// Bytes that may have come since memory was bounded last.
    grown_bytes: usize,
}

/// This part of the memory may grow before it is bounded, which looks at all objects.
const GROWTH: usize = 8;

impl Answers {
    /// Of an object, also when nothing is known yet, or only of what was taken over before.
    pub fn of(&mut self, stored: &StoredObject) -> &mut Progress {
        let number = stored.replaced.map_or(0, |replaced| replaced.number);
        let progress =
            self.of_objects.entry(stored.object.id).or_insert_with(|| Progress::new(number, stored.extents));
        if progress.number != number {
            *progress = Progress::new(number, stored.extents);
        }
        progress
    }

    pub fn bookie(&mut self, bookie: &BookieId) -> u32 {
        if let Some(number) = self.bookies.get(bookie) {
            return *number;
        }
        let number = self.bookies.len() as u32;
        self.bookies.insert(bookie.clone(), number);
        number
    }

    /// Keeps within the bound, after an object was examined.
    pub fn bound_after(&mut self, object: ObjectId, bytes_max: usize) {
        self.grown_bytes += self.of_objects.get(&object).map_or(0, Progress::bytes);
        if self.grown_bytes >= bytes_max / GROWTH {
            self.bound(bytes_max - bytes_max / GROWTH);
        }
    }

    /// Forgets what no object needs any more, and then what there is no room for: of the newest objects (invariant 6).
    pub fn bound(&mut self, bytes_max: usize) {
        self.grown_bytes = 0;
        let nearest = self.of_objects.iter().min_by_key(|(_, progress)| progress.left).map(|(id, _)| *id);
        let mut bytes: usize = self.of_objects.values().map(Progress::bytes).sum();
        while bytes > bytes_max {
            let newest = self.of_objects.keys().rev().find(|id| Some(**id) != nearest).copied();
            let Some(progress) = newest.and_then(|newest| self.of_objects.remove(&newest)) else { break };
            bytes -= progress.bytes();
        }
        if self.of_objects.is_empty() {
            self.bookies.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(n: u8) -> ObjectId {
        ObjectId::new(7, [n; 10])
    }

    #[test]
    fn a_bit_for_each_extent_and_bookie() {
        let mut progress = Progress::new(5, 130);
        for place in [0, 1, 64, 129] {
            progress.say_yes(place, 3);
        }
        assert!(
            progress.has_said_yes(64, 3) && !progress.has_said_yes(64, 2) && !progress.has_said_yes(63, 3)
        );
        (0..128).for_each(|place| progress.finish(place));
        progress.finish(127);
        assert_eq!((progress.left, progress.window(130, 0, 10)), (2, vec![128, 129]));
        assert!(progress.has_said_yes(64, 3), "also of those that are done");
        assert_eq!(progress.window(130, 129, 10), [129]);
        progress.finish(128);
        progress.finish(129);
        assert_eq!(progress.left, 0);
        progress.reopen(129);
        progress.reopen(129);
        assert_eq!((progress.left, progress.window(130, 0, 10)), (1, vec![129]));
    }

    /// Invariant 2.
    #[test]
    fn records_count_when_they_were_seen_for_long_enough() {
        let (at, settle) = (Duration::from_secs, Duration::from_secs(45));
        let mut settled = Settled::default();
        settled.see(at(100), 7, settle);
        settled.see(at(120), 9, settle);
        settled.see(at(144), 9, settle);
        assert_eq!(settled.through, 0);
        settled.see(at(145), 12, settle);
        assert_eq!(settled.through, 7);
        settled.see(at(165), 12, settle);
        assert_eq!(settled.through, 9);
        settled.see(at(1000), 12, settle);
        assert_eq!((settled.through, settled.seen.len()), (12, 0));
        for more in 1..1000 {
            settled.see(at(1001), 12 + more, settle);
        }
        assert_eq!(settled.seen.len(), SEEN_MAX);
        settled.see(at(1046), 1011, settle);
        assert_eq!(settled.through, 12 + SEEN_MAX as u64);
        assert!(!settled.see(at(1046), 1011, settle) && settled.see(at(1047), 3, settle));
        assert_eq!(settled.through, 0, "it was put back");
        settled.see(at(1092), 3, settle);
        assert_eq!(settled.through, 3);
    }

    /// Invariant 6.
    #[test]
    fn answers_about_the_object_that_is_nearest_to_its_release_stay() {
        let mut answers = Answers::default();
        for n in 0..4 {
            let mut progress = Progress::new(5, 6400);
            (0..100).for_each(|place| progress.say_yes(place * 64, 1));
            answers.of_objects.insert(object(n), progress);
        }
        answers.of_objects.get_mut(&object(2)).unwrap().finish(0);
        let one = answers.of_objects[&object(0)].bytes();
        answers.bound(4 * one);
        assert_eq!(answers.of_objects.len(), 4);
        answers.bound(2 * one);
        assert_eq!(answers.of_objects.keys().copied().collect::<Vec<_>>(), [object(0), object(2)]);
        answers.bound(0);
        assert_eq!(answers.of_objects.keys().copied().collect::<Vec<_>>(), [object(2)]);
    }
}
