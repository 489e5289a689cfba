//! Turns: readers one after the other, and within a reader its ledgers.
//!
//! # Invariants
//! 1. A reader is in the ring when it has something queued, a ledger in its reader's ring likewise, and only then.
//! 2. A reader without waiters, queue and requests is not remembered.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bindery_types::LedgerId;

use crate::fetch::ReaderId;

/// A place in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub reader: ReaderId,
    pub ledger: LedgerId,
    sequence: u64,
}

#[derive(Debug)]
struct Reader<K> {
    waiters: usize,
    running: usize,
    ledgers: HashMap<LedgerId, BTreeMap<u64, K>>,
    ring: VecDeque<LedgerId>,
}

impl<K> Default for Reader<K> {
    fn default() -> Reader<K> {
        Reader { waiters: 0, running: 0, ledgers: HashMap::new(), ring: VecDeque::new() }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Lanes<K> {
    readers: HashMap<ReaderId, Reader<K>>,
    ring: VecDeque<ReaderId>,
    next_sequence: u64,
}

impl<K: Copy> Lanes<K> {
    pub fn new() -> Lanes<K> {
        Lanes { readers: HashMap::new(), ring: VecDeque::new(), next_sequence: 0 }
    }

    pub fn push(&mut self, reader: ReaderId, ledger: LedgerId, key: K) -> Place {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let state = self.readers.entry(reader).or_default();
        if state.ring.is_empty() {
            self.ring.push_back(reader);
        }
        let queue = state.ledgers.entry(ledger).or_default();
        if queue.is_empty() {
            state.ring.push_back(ledger);
        }
        queue.insert(sequence, key);
        Place { reader, ledger, sequence }
    }

    /// Whose turn it is, of those with fewer than `running_max` requests.
    pub fn next(&mut self, running_max: usize) -> Option<(Place, K)> {
        for _ in 0..self.ring.len() {
            let reader = *self.ring.front()?;
            let state = &self.readers[&reader];
            if state.running < running_max {
                let ledger =
                    *state.ring.front().expect("lanes invariant 1: a reader in the ring has a ledger");
                let queue = &state.ledgers[&ledger];
                let (sequence, key) = queue.first_key_value().expect("lanes invariant 1: it has a queue");
                return Some((Place { reader, ledger, sequence: *sequence }, *key));
            }
            self.ring.rotate_left(1);
        }
        None
    }

    /// Takes what [`Lanes::next`] gave; reader and ledger go behind the others.
    pub fn take(&mut self, place: Place) {
        self.remove(place);
        if self.ring.front() == Some(&place.reader) {
            self.ring.rotate_left(1);
        }
        let ring = self.readers.get_mut(&place.reader).map(|state| &mut state.ring);
        if let Some(ring) = ring.filter(|ring| ring.front() == Some(&place.ledger)) {
            ring.rotate_left(1);
        }
    }

    /// Takes something out of the middle.
    pub fn remove(&mut self, place: Place) {
        let state = self.readers.get_mut(&place.reader).expect("a place is of a reader with a queue");
        let queue = state.ledgers.get_mut(&place.ledger).expect("a place is of a ledger with a queue");
        queue.remove(&place.sequence).expect("a place is taken once");
        if queue.is_empty() {
            state.ledgers.remove(&place.ledger);
            state.ring.retain(|ledger| *ledger != place.ledger);
            if state.ring.is_empty() {
                self.ring.retain(|reader| *reader != place.reader);
            }
        }
        self.forget(place.reader);
    }

    pub fn waiters(&self, reader: ReaderId) -> usize {
        self.readers.get(&reader).map_or(0, |state| state.waiters)
    }

    pub fn add_waiter(&mut self, reader: ReaderId) {
        self.readers.entry(reader).or_default().waiters += 1;
    }

    pub fn remove_waiter(&mut self, reader: ReaderId) {
        self.readers.get_mut(&reader).expect("a reader that waits is remembered").waiters -= 1;
        self.forget(reader);
    }

    pub fn begin(&mut self, reader: ReaderId) {
        self.readers.entry(reader).or_default().running += 1;
    }

    pub fn end(&mut self, reader: ReaderId) {
        self.readers.get_mut(&reader).expect("a reader with requests is remembered").running -= 1;
        self.forget(reader);
    }

    pub fn running(&self, reader: ReaderId) -> usize {
        self.readers.get(&reader).map_or(0, |state| state.running)
    }

    fn forget(&mut self, reader: ReaderId) {
        let is_idle = |state: &Reader<K>| state.waiters == 0 && state.running == 0 && state.ring.is_empty();
        if self.readers.get(&reader).is_some_and(is_idle) {
            self.readers.remove(&reader);
        }
    }

    /// Nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Nobody is remembered.
    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        self.readers.is_empty() && self.ring.is_empty()
    }

    /// Everything queued, for the invariants of the core.
    #[cfg(test)]
    pub fn queued(&self) -> Vec<(Place, K)> {
        let mut all = Vec::new();
        for (reader, state) in &self.readers {
            assert_eq!(
                self.ring.iter().filter(|at| *at == reader).count(),
                usize::from(!state.ring.is_empty())
            );
            assert_eq!(state.ring.len(), state.ledgers.len(), "lanes invariant 1");
            for (ledger, queue) in &state.ledgers {
                assert!(!queue.is_empty() && state.ring.contains(ledger), "lanes invariant 1");
                all.extend(queue.iter().map(|(sequence, key)| {
                    (Place { reader: *reader, ledger: *ledger, sequence: *sequence }, *key)
                }));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(id: i64) -> LedgerId {
        LedgerId::new(id).unwrap()
    }

    #[test]
    fn readers_take_turns_and_within_them_their_ledgers() {
        let mut lanes = Lanes::new();
        for (reader, of, key) in
            [(1, 1, 'a'), (1, 1, 'b'), (1, 1, 'c'), (1, 2, 'd'), (2, 1, 'e'), (2, 1, 'f')]
        {
            lanes.push(ReaderId(reader), ledger(of), key);
        }
        let mut order = String::new();
        while let Some((place, key)) = lanes.next(10) {
            lanes.take(place);
            order.push(key);
        }
        assert_eq!(order, "aedfbc");
        assert!(lanes.is_idle());
    }

    #[test]
    fn a_reader_with_its_share_under_way_is_passed() {
        let mut lanes = Lanes::new();
        lanes.push(ReaderId(1), ledger(1), 'a');
        lanes.push(ReaderId(2), ledger(1), 'b');
        lanes.begin(ReaderId(1));
        let (place, key) = lanes.next(1).unwrap();
        assert_eq!(key, 'b');
        lanes.take(place);
        assert!(lanes.next(1).is_none());
        lanes.end(ReaderId(1));
        assert_eq!(lanes.next(1).unwrap().1, 'a');
    }
}
