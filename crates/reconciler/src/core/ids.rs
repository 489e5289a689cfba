//! A set of ledgers that stays small with millions of them, whoever owns their neighbours.
//!
//! Ids are divided by all but their lowest 16 bits into chunks. A chunk is a sorted list of those 16 bits, or, with more than [`LIST_MAX`]
//! ids, a bit for each of 65,536.
//!
//! # Limits     2 bytes an id and at most 8 KiB for 65,536 neighbours, beside [`CHUNK_BYTES`] a chunk; [`BYTES_MAX`] in all. Above that the
//! chunk with the lowest ids is forgotten, or the one whose turn comes last ([`LedgerSet::insert_by_turn`]).

use std::collections::BTreeMap;

use bindery_types::LedgerId;

/// Bytes of a set: 16 million ids, unless most of them are alone in their chunk.
const BYTES_MAX: usize = 32 << 20;
/// Bytes of a chunk beside its ids, about.
const CHUNK_BYTES: usize = 96;
/// A longer list takes more than bits.
const LIST_MAX: usize = 4096;
const WORDS: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Chunk {
    List(Vec<u16>),
    Bits { words: Box<[u64; WORDS]>, count: u32 },
}

impl Chunk {
    fn bytes(&self) -> usize {
        let ids = match self {
            Chunk::List(list) => 2 * list.len(),
            Chunk::Bits { .. } => 8 * WORDS,
        };
        CHUNK_BYTES + ids
    }

    fn count(&self) -> u64 {
        match self {
            Chunk::List(list) => list.len() as u64,
            Chunk::Bits { count, .. } => u64::from(*count),
        }
    }

    fn contains(&self, low: u16) -> bool {
        match self {
            Chunk::List(list) => list.binary_search(&low).is_ok(),
            Chunk::Bits { words, .. } => words[word_of(low)] & bit_of(low) != 0,
        }
    }

    fn insert(&mut self, low: u16) -> bool {
        match self {
            Chunk::List(list) => {
                let Err(at) = list.binary_search(&low) else { return false };
                list.insert(at, low);
                if list.len() > LIST_MAX {
                    let mut words = Box::new([0; WORDS]);
                    list.iter().for_each(|low| words[word_of(*low)] |= bit_of(*low));
                    *self = Chunk::Bits { count: list.len() as u32, words };
                }
                true
            }
            Chunk::Bits { words, count } => {
                let is_new = words[word_of(low)] & bit_of(low) == 0;
                words[word_of(low)] |= bit_of(low);
                *count += u32::from(is_new);
                is_new
            }
        }
    }

    fn remove(&mut self, low: u16) -> bool {
        match self {
            Chunk::List(list) => list.binary_search(&low).map(|at| list.remove(at)).is_ok(),
            Chunk::Bits { words, count } => {
                let was_there = words[word_of(low)] & bit_of(low) != 0;
                words[word_of(low)] &= !bit_of(low);
                *count -= u32::from(was_there);
                was_there
            }
        }
    }

    /// The largest up to this one.
    fn last_through(&self, low: u16) -> Option<u16> {
        match self {
            Chunk::List(list) => list[..list.partition_point(|id| *id <= low)].last().copied(),
            Chunk::Bits { words, .. } => (0..=word_of(low)).rev().find_map(|at| {
                let of_word = if at == word_of(low) { u64::MAX >> (63 - low % 64) } else { u64::MAX };
                let word = words[at] & of_word;
                (word != 0).then(|| (at * 64 + 63) as u16 - word.leading_zeros() as u16)
            }),
        }
    }
}

fn word_of(low: u16) -> usize {
    usize::from(low) / 64
}

fn bit_of(low: u16) -> u64 {
    1 << (low % 64)
}

/// A chunk's number, and the place in it.
fn split(ledger: LedgerId) -> (i64, u16) {
    (ledger.get() >> 16, ledger.get() as u16)
}

/// A set of ledgers.
#[derive(Debug, Clone)]
pub(super) struct LedgerSet {
    chunks: BTreeMap<i64, Chunk>,
    count: u64,
    bytes: usize,
    bytes_max: usize,
}

impl Default for LedgerSet {
    fn default() -> LedgerSet {
        LedgerSet { chunks: BTreeMap::new(), count: 0, bytes: 0, bytes_max: BYTES_MAX }
    }
}

impl LedgerSet {
    /// Whether it is in.
    pub fn contains(&self, ledger: LedgerId) -> bool {
        let (number, low) = split(ledger);
        self.chunks.get(&number).is_some_and(|chunk| chunk.contains(low))
    }

    /// Ledgers in it.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Puts one in.
    pub fn insert(&mut self, ledger: LedgerId) {
        let _ = self.insert_by_turn(ledger, None, None);
    }

    /// Puts one into a set whose ids have their turns in descending order: those above `newest` at once, then those below `last`, and then, from `newest`
    /// on, those down to `last`. Where there is no room, the chunk whose turn comes last is forgotten. False: that happened.
    #[must_use]
    pub fn insert_by_turn(
        &mut self,
        ledger: LedgerId,
        last: Option<LedgerId>,
        newest: Option<LedgerId>,
    ) -> bool {
        let mut had_room = true;
        let (number, low) = split(ledger);
        let mut before = 0;
        let chunk = self.chunks.entry(number).and_modify(|chunk| before = chunk.bytes());
        let chunk = chunk.or_insert_with(|| Chunk::List(Vec::new()));
        self.count += u64::from(chunk.insert(low));
        self.bytes = self.bytes + chunk.bytes() - before;
        while self.bytes > self.bytes_max && self.chunks.len() > 1 {
            let had_turn = last.zip(newest).map(|(last, newest)| (split(last).0, split(newest).0));
            let had_turn = had_turn.filter(|(last, newest)| last < newest);
            let behind = had_turn
                .and_then(|(last, newest)| self.chunks.range(last + 1..=newest).next().map(|(n, _)| *n));
            let Some(number) = behind.or_else(|| self.chunks.keys().next().copied()) else { break };
            if let Some(chunk) = self.chunks.remove(&number) {
                self.bytes -= chunk.bytes();
                self.count -= chunk.count();
            }
            had_room = false;
        }
        had_room
    }

    /// Takes one out.
    pub fn remove(&mut self, ledger: LedgerId) {
        let (number, low) = split(ledger);
        let Some(chunk) = self.chunks.get_mut(&number) else { return };
        self.bytes -= chunk.bytes();
        self.count -= u64::from(chunk.remove(low));
        match chunk.count() {
            0 => drop(self.chunks.remove(&number)),
            _ => self.bytes += chunk.bytes(),
        }
    }

    /// The largest one.
    pub fn last(&self) -> Option<LedgerId> {
        let (number, chunk) = self.chunks.last_key_value()?;
        LedgerId::new(number << 16 | i64::from(chunk.last_through(u16::MAX)?))
    }

    /// The largest one below this one.
    pub fn last_below(&self, ledger: LedgerId) -> Option<LedgerId> {
        let through = ledger.get().checked_sub(1).and_then(LedgerId::new)?;
        let (of_through, low) = split(through);
        self.chunks.range(..=of_through).rev().find_map(|(number, chunk)| {
            let low = if *number == of_through { low } else { u16::MAX };
            LedgerId::new(number << 16 | i64::from(chunk.last_through(low)?))
        })
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.chunks.clear();
        (self.count, self.bytes) = (0, 0);
    }
}

#[cfg(test)]
impl LedgerSet {
    /// With room for so many chunks of one id each.
    pub fn for_chunks(count: usize) -> LedgerSet {
        LedgerSet { bytes_max: count * (CHUNK_BYTES + 2), ..LedgerSet::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bindery_io::SeededRandom;

    use super::*;

    fn ledger(id: i64) -> LedgerId {
        LedgerId::new(id).unwrap()
    }

    fn all(set: &LedgerSet) -> Vec<i64> {
        let next = |before: &LedgerId| set.last_below(*before);
        std::iter::successors(set.last(), next).map(LedgerId::get).collect()
    }

    /// Lists, and lists that become bits.
    #[test]
    fn it_is_a_set() {
        for (span, count) in [(500, 2000), (70_000, 20_000), (i64::MAX as u64, 2000)] {
            let random = SeededRandom::new(1);
            let (mut set, mut model) = (LedgerSet::default(), BTreeSet::new());
            for _ in 0..count {
                let id = random.below(span) as i64;
                match random.chance(0.2) {
                    true => {
                        set.remove(ledger(id));
                        model.remove(&id);
                    }
                    false => {
                        set.insert(ledger(id));
                        model.insert(id);
                    }
                }
                let probe = random.below(span) as i64;
                assert_eq!(set.contains(ledger(probe)), model.contains(&probe));
                assert_eq!(
                    set.last_below(ledger(probe)).map(LedgerId::get),
                    model.range(..probe).next_back().copied()
                );
            }
            assert_eq!(set.count(), model.len() as u64);
            assert_eq!(all(&set), model.iter().rev().copied().collect::<Vec<_>>());
            assert_eq!(set.bytes, set.chunks.values().map(Chunk::bytes).sum::<usize>());
            model.iter().for_each(|id| set.remove(ledger(*id)));
            assert_eq!((set.count(), set.bytes, set.last()), (0, 0, None));
        }
        let mut set = LedgerSet::default();
        set.insert(LedgerId::MAX);
        assert_eq!((set.contains(LedgerId::MAX), set.last()), (true, Some(LedgerId::MAX)));
        assert_eq!(set.last_below(ledger(0)), None);
    }

    /// Ten million closed ledgers of which every third is this tierer's, in no order that it could have chosen; and as many with only every
    /// hundredth id in use.
    #[test]
    fn ten_million_ledgers_have_room() {
        for (stride, most) in [(3, 4 << 20), (100, 22 << 20)] {
            let mut set = LedgerSet::default();
            (0..10_000_000).for_each(|n| set.insert(ledger(n * stride + n % 2)));
            assert_eq!(set.count(), 10_000_000);
            assert!(set.bytes <= most, "{} bytes with a stride of {stride}", set.bytes);
            assert!((0..10_000_000).step_by(997).all(|n| set.contains(ledger(n * stride + n % 2))));
        }
    }

    #[test]
    fn above_its_bytes_the_lowest_are_forgotten() {
        let mut set = LedgerSet::for_chunks(10);
        (0..30).for_each(|n| set.insert(ledger(n << 16)));
        assert_eq!(all(&set), (20..30).rev().map(|n| n << 16).collect::<Vec<_>>());
        assert!(set.count() == 10 && set.bytes <= set.bytes_max);
    }
}
