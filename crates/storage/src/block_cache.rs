//! The block cache: parts of entry logs in memory, bounded in bytes. It holds index blocks and what was read ahead;
//! other entry bodies stay with the kernel's page cache.
//!
//! # Data flow
//! ```text
//! EntryLog: get (copies out) -> missed: read the whole block -> put -> the coldest blocks go (clock)
//! ```
//!
//! # Invariants
//! 1. The bytes held, with [`BLOCK_COST_BYTES`] for each block, never exceed the capacity.
//! 2. A block is put only after it was read whole; bytes of a failed or short read never get here (BookKeeper #4841).
//! 3. Nothing is trusted because it is here: callers verify the checksum of bytes that they take out, as with bytes
//!    from disk.
//! 4. A key is a file and a block of it. Files are numbered by this cache and a number is never given out twice, so
//!    nothing is to be invalidated when a log is removed.
//!
//! # Limits
//! The capacity. Blocks are copied out under the lock of their part, so none outlives its eviction.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Charged for each block in addition to its bytes: its slot, its entry in the map, and what the allocator adds.
pub const BLOCK_COST_BYTES: u64 = 96;
/// Bytes of an index block.
pub(crate) const INDEX_BLOCK_BYTES: usize = 4096;
/// Bytes that are read ahead at once.
pub(crate) const AHEAD_BLOCK_BYTES: usize = 64 * 1024;

/// Fewer parts for a small cache, so that each still holds some blocks of what is read ahead.
const PARTS_MAX: u64 = 16;
const PART_BYTES_MIN: u64 = 16 * AHEAD_BLOCK_BYTES as u64;

/// The use of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum BlockKind {
    /// Index records and footers: kept while they are in use.
    Index,
    /// Bodies that a sequential reader needs next: the oldest goes first.
    Ahead,
}

impl BlockKind {
    pub(crate) const fn bytes(self) -> usize {
        match self {
            BlockKind::Index => INDEX_BLOCK_BYTES,
            BlockKind::Ahead => AHEAD_BLOCK_BYTES,
        }
    }
}

/// Which block: file, kind, number within the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlockKey {
    pub(crate) file: u64,
    pub(crate) kind: BlockKind,
    pub(crate) number: u64,
}

struct Slot {
    key: BlockKey,
    bytes: Box<[u8]>,
    was_used: bool,
}

/// Blocks whose keys hash to it, on a clock.
#[derive(Default)]
struct Part {
    places: HashMap<BlockKey, usize>,
    slots: Vec<Slot>,
    hand: usize,
    held: u64,
}

/// See the module.
pub struct BlockCache {
    parts: Box<[Mutex<Part>]>,
    part_capacity: u64,
    next_file: AtomicU64,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    index_hits: AtomicU64,
    index_misses: AtomicU64,
    ahead_hits: AtomicU64,
    ahead_misses: AtomicU64,
}

/// The content of a block cache, and its hits and misses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Most bytes it may hold.
    pub capacity: u64,
    /// Bytes held, with the charge for each block.
    pub held: u64,
    /// Lookups of index blocks that found them here.
    pub index_hits: u64,
    /// Lookups of index blocks that did not.
    pub index_misses: u64,
    /// Blocks read ahead that were here when a reader came to them.
    pub ahead_hits: u64,
    /// Blocks that a sequential reader had to fetch.
    pub ahead_misses: u64,
}

fn cost(bytes: &[u8]) -> u64 {
    bytes.len() as u64 + BLOCK_COST_BYTES
}

impl Part {
    /// Drops the first block from the hand on that was not used since the hand last passed it. There must be a block.
    fn evict_one(&mut self) {
        loop {
            self.hand = if self.hand < self.slots.len() { self.hand } else { 0 };
            let slot = &mut self.slots[self.hand];
            if std::mem::take(&mut slot.was_used) {
                self.hand += 1;
                continue;
            }
            let gone = self.slots.swap_remove(self.hand);
            self.places.remove(&gone.key);
            self.held -= cost(&gone.bytes);
            if let Some(moved) = self.slots.get(self.hand) {
                self.places.insert(moved.key, self.hand);
            }
            return;
        }
    }
}

impl BlockCache {
    /// A cache of at most `capacity` bytes; 0 for one that holds nothing.
    pub fn new(capacity: u64) -> BlockCache {
        let parts = (capacity / PART_BYTES_MIN).clamp(1, PARTS_MAX);
        BlockCache {
            parts: (0..parts).map(|_| Mutex::default()).collect(),
            part_capacity: capacity / parts,
            next_file: AtomicU64::new(0),
            counters: Counters::default(),
        }
    }

    /// A number for a file that is opened.
    pub(crate) fn register(&self) -> u64 {
        self.next_file.fetch_add(1, Relaxed)
    }

    fn part(&self, key: &BlockKey) -> &Mutex<Part> {
        let mixed = (key.file ^ key.number.rotate_left(20)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        &self.parts[mixed as usize % self.parts.len()]
    }

    /// Copies `out.len()` bytes at `at` of a block out; false when the block is not here.
    pub(crate) fn get(&self, key: BlockKey, at: usize, out: &mut [u8]) -> bool {
        let mut part = self.part(&key).lock();
        let place = part.places.get(&key).copied();
        let found = place.is_some_and(|place| {
            let slot = &mut part.slots[place];
            // A sequential reader does not come back to a block.
            slot.was_used = key.kind == BlockKind::Index;
            match slot.bytes.get(at..at + out.len()) {
                Some(bytes) => {
                    out.copy_from_slice(bytes);
                    true
                }
                None => false,
            }
        });
        drop(part);
        let counters = &self.counters;
        let counter = match (key.kind, found) {
            (BlockKind::Index, true) => &counters.index_hits,
            (BlockKind::Index, false) => &counters.index_misses,
            (BlockKind::Ahead, true) => &counters.ahead_hits,
            (BlockKind::Ahead, false) => &counters.ahead_misses,
        };
        counter.fetch_add(1, Relaxed);
        found
    }

    /// Takes a block that was read whole (invariant 2).
    pub(crate) fn put(&self, key: BlockKey, bytes: Box<[u8]>) {
        let cost = cost(&bytes);
        if cost > self.part_capacity {
            return;
        }
        let mut part = self.part(&key).lock();
        if part.places.contains_key(&key) {
            return; // two readers missed it at once
        }
        while part.held + cost > self.part_capacity {
            part.evict_one();
        }
        part.held += cost;
        let place = part.slots.len();
        part.slots.push(Slot { key, bytes, was_used: false });
        part.places.insert(key, place);
        assert!(part.held <= self.part_capacity, "the block cache stays within its pool");
    }

    /// Its content, and its hits and misses.
    pub fn stats(&self) -> CacheStats {
        let counters = &self.counters;
        CacheStats {
            capacity: self.part_capacity * self.parts.len() as u64,
            held: self.parts.iter().map(|part| part.lock().held).sum(),
            index_hits: counters.index_hits.load(Relaxed),
            index_misses: counters.index_misses.load(Relaxed),
            ahead_hits: counters.ahead_hits.load(Relaxed),
            ahead_misses: counters.ahead_misses.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::numbers;

    fn key(file: u64, number: u64) -> BlockKey {
        BlockKey { file, kind: BlockKind::Index, number }
    }

    fn block(file: u64, number: u64) -> Box<[u8]> {
        (0..INDEX_BLOCK_BYTES).map(|i| (i as u64 * 31 + file * 7 + number) as u8).collect()
    }

    /// Invariants 1 and 4, against what each block must hold.
    #[test]
    fn blocks_are_their_own_and_the_capacity_holds() {
        for capacity in [0, 3 * 4192, 100_000, 3 << 20] {
            let cache = BlockCache::new(capacity);
            let (mut next, mut hits) = (numbers(capacity + 1), 0);
            for _ in 0..20_000 {
                let (file, number) = (u64::from(next() % 4), u64::from(next() % 300));
                let at = next() as usize % (INDEX_BLOCK_BYTES - 50);
                let mut out = [0; 50];
                if cache.get(key(file, number), at, &mut out) {
                    hits += 1;
                    assert_eq!(out[..], block(file, number)[at..at + 50]);
                } else {
                    cache.put(key(file, number), block(file, number));
                }
                let stats = cache.stats();
                assert!(stats.held <= capacity, "{stats:?}");
            }
            assert_eq!(hits > 0, capacity > 0, "{capacity}: {hits} hits");
        }
    }

    /// A scan through more than the cache holds does not evict the index blocks in use.
    #[test]
    fn reading_ahead_does_not_drive_out_the_index() {
        let cache = BlockCache::new(4 << 20);
        let mut out = [0; 1];
        cache.put(key(1, 1), block(1, 1));
        for number in 0..1000 {
            assert!(cache.get(key(1, 1), 5, &mut out), "block {number}");
            let ahead = BlockKey { file: 2, kind: BlockKind::Ahead, number };
            cache.put(ahead, vec![0; AHEAD_BLOCK_BYTES].into());
            assert!(cache.get(ahead, 5, &mut out), "block {number}");
        }
    }
}
