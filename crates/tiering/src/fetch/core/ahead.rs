//! Readers in sequence, and how far ahead of them to read.
//!
//! A block that is touched right after the one before it belongs to a sequence; each further step doubles what is read ahead,
//! up to a limit. Sequences are known by the entry with which their next block begins, so that several readers of one ledger
//! have one each, and one that goes from an extent to the next stays one.

use std::collections::{BTreeMap, HashMap};

use bindery_types::{EntryId, LedgerId};

/// Sequences remembered.
const SEQUENCES_MAX: usize = 4_096;
/// Most blocks read ahead; bytes are bounded otherwise.
const BLOCKS_MAX: usize = 64;
/// A sequence that has not moved for so long has ended.
const IDLE_NS: u64 = 10_000_000_000;

type Next = (LedgerId, EntryId);

#[derive(Debug)]
struct Sequence {
    blocks: usize,
    touched: u64,
    at_ns: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Sequences {
    by_next: HashMap<Next, Sequence>,
    by_touch: BTreeMap<u64, Next>,
    next_touch: u64,
    /// Of those that read ahead.
    reading_ahead: usize,
}

impl Sequences {
    /// A block from `first` on was touched; the one that follows it begins with `next`. Returns how many blocks to have from
    /// there on, when it is a step of a sequence.
    pub fn touch(&mut self, now_ns: u64, ledger: LedgerId, first: EntryId, next: EntryId) -> Option<usize> {
        self.forget_idle(now_ns);
        if self.by_next.contains_key(&(ledger, next)) {
            return None;
        }
        let before = self.remove((ledger, first)).map_or(0, |sequence| sequence.blocks);
        let blocks = (2 * before).clamp(1, BLOCKS_MAX);
        self.insert(now_ns, (ledger, next), blocks);
        (before > 0).then_some(blocks)
    }

    /// Blocks to have from a block on, which `next` follows.
    pub fn blocks(&self, ledger: LedgerId, next: EntryId) -> usize {
        self.by_next.get(&(ledger, next)).map_or(1, |sequence| sequence.blocks)
    }

    /// Sequences for which something is read ahead, which share the memory for that.
    pub fn count(&self) -> usize {
        self.reading_ahead
    }

    fn forget_idle(&mut self, now_ns: u64) {
        while let Some((_, next)) = self.by_touch.first_key_value() {
            let is_idle = now_ns.saturating_sub(self.by_next[next].at_ns) > IDLE_NS;
            if !is_idle && self.by_next.len() < SEQUENCES_MAX {
                break;
            }
            self.remove(*next);
        }
    }

    fn insert(&mut self, at_ns: u64, next: Next, blocks: usize) {
        let touched = self.next_touch;
        self.next_touch += 1;
        self.reading_ahead += usize::from(blocks > 1);
        self.by_touch.insert(touched, next);
        self.by_next.insert(next, Sequence { blocks, touched, at_ns });
    }

    fn remove(&mut self, next: Next) -> Option<Sequence> {
        let sequence = self.by_next.remove(&next)?;
        self.by_touch.remove(&sequence.touched);
        self.reading_ahead -= usize::from(sequence.blocks > 1);
        Some(sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: i64) -> EntryId {
        EntryId::new(id).unwrap()
    }

    #[test]
    fn a_sequence_is_told_from_single_reads_and_grows() {
        let (mut sequences, ledger) = (Sequences::default(), LedgerId::new(7).unwrap());
        let mut touch = |block: i64| sequences.touch(0, ledger, entry(block * 10), entry(block * 10 + 10));
        assert_eq!([touch(5), touch(9), touch(1)], [None; 3], "single reads");
        assert_eq!([touch(0), touch(0)], [None; 2]);
        // Block 1 was touched before: the sequence from 0 is taken for that one.
        assert_eq!([touch(2), touch(2), touch(3), touch(4)], [Some(2), None, Some(4), Some(8)]);
        assert_eq!(sequences.blocks(ledger, entry(50)), 8);
        assert_eq!(sequences.count(), 1);
        assert_eq!(sequences.touch(IDLE_NS * 2, ledger, entry(1000), entry(1010)), None);
        assert_eq!((sequences.count(), sequences.by_next.len(), sequences.by_touch.len()), (0, 1, 1));
    }
}
