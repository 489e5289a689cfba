//! Memory: what is under way, what is in the caches, what is pinned.
//!
//! # Invariants
//! 1. `under_way + indexes + blocks <= max` at all times; each part is the sum of what it names.
//! 2. A block that is pinned is not evicted. One that is not is in the order of eviction, and those there are not pinned.
//! 3. Blocks that readers in sequence have passed go first, then the others, by their last use.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bindery_types::tier::ObjectRef;

use crate::fetch::index::{Block, Index};

/// A block: its object, and where it begins in that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub ObjectKey, pub u64);

/// A reference, in an order of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectKey(pub ObjectRef);

impl ObjectKey {
    fn fields(&self) -> (&[u8; 16], u64, u64, u32, u32) {
        let ObjectRef { id, length_bytes, footer_offset, footer_crc, etag_crc } = &self.0;
        (id.as_bytes(), *length_bytes, *footer_offset, *footer_crc, *etag_crc)
    }
}

impl PartialOrd for ObjectKey {
    fn partial_cmp(&self, other: &ObjectKey) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObjectKey {
    fn cmp(&self, other: &ObjectKey) -> std::cmp::Ordering {
        self.fields().cmp(&other.fields())
    }
}

/// A pin: its owner has the entry, or will have it when its turn comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PinId(u64);

#[derive(Debug)]
struct Pin {
    block: BlockId,
    /// In use at this moment, so that it cannot be revoked; otherwise since when it waits.
    since_ns: Option<u64>,
}

#[derive(Debug)]
struct Held<T> {
    value: Arc<T>,
    cost_bytes: u64,
    pins: usize,
    /// Readers in sequence have passed it.
    is_passed: bool,
    /// In the order of eviction.
    place: (u8, u64),
}

/// Numbers of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUse {
    /// Bytes for requests that are under way.
    pub under_way_bytes: u64,
    /// Bytes of indexes.
    pub index_bytes: u64,
    /// Bytes of blocks.
    pub block_bytes: u64,
    /// Entries that are pinned.
    pub pins: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Memory {
    max: u64,
    index_max: u64,
    lease_ns: u64,
    under_way: u64,
    index_bytes: u64,
    block_bytes: u64,
    /// Of the blocks, those that are pinned.
    pinned_bytes: u64,
    next_place: u64,
    indexes: HashMap<ObjectKey, Held<Index>>,
    index_order: BTreeMap<(u8, u64), ObjectKey>,
    blocks: HashMap<BlockId, Held<Block>>,
    block_order: BTreeMap<(u8, u64), BlockId>,
    pins: HashMap<PinId, Pin>,
    /// Those that may be revoked, the oldest first.
    waiting_pins: BTreeSet<(u64, PinId)>,
    next_pin: u64,
    revoked: u64,
}

/// Freed by the caller when it holds no lock: a block is a mebibyte, and giving it back takes a while.
#[derive(Debug)]
pub enum Evicted {
    Index(#[expect(dead_code, reason = "to be dropped")] Arc<Index>),
    Block(#[expect(dead_code, reason = "to be dropped")] Arc<Block>),
}

impl Memory {
    pub fn new(max: u64, index_max: u64, lease_ns: u64) -> Memory {
        Memory {
            max,
            index_max,
            lease_ns,
            under_way: 0,
            index_bytes: 0,
            block_bytes: 0,
            pinned_bytes: 0,
            next_place: 0,
            indexes: HashMap::new(),
            index_order: BTreeMap::new(),
            blocks: HashMap::new(),
            block_order: BTreeMap::new(),
            pins: HashMap::new(),
            waiting_pins: BTreeSet::new(),
            next_pin: 0,
            revoked: 0,
        }
    }

    pub fn max(&self) -> u64 {
        self.max
    }

    pub fn usage(&self) -> MemoryUse {
        MemoryUse {
            under_way_bytes: self.under_way,
            index_bytes: self.index_bytes,
            block_bytes: self.block_bytes,
            pins: self.pins.len(),
        }
    }

    pub fn revoked(&self) -> u64 {
        self.revoked
    }

    fn used(&self) -> u64 {
        self.under_way + self.index_bytes + self.block_bytes
    }

    /// Takes bytes for a request, evicting and revoking as much as that needs and allows. `may_evict` is false for
    /// reading ahead.
    pub fn reserve(&mut self, now_ns: u64, bytes: u64, may_evict: bool, out: &mut Vec<Evicted>) -> bool {
        let fits = |used: u64, max: u64| used.saturating_add(bytes) <= max;
        // Not to empty the caches in vain.
        while !fits(self.under_way + self.pinned_bytes, self.max) {
            if !(may_evict && self.revoke_oldest(now_ns)) {
                return false;
            }
        }
        while !fits(self.used(), self.max) {
            let is_passed = self.block_order.first_key_value().is_some_and(|((class, _), _)| *class == 0);
            let is_freed = match may_evict {
                true => self.evict_block(out) || self.evict_index(out),
                false => is_passed && self.evict_block(out),
            };
            if !is_freed {
                return false;
            }
        }
        self.under_way += bytes;
        true
    }

    /// Gives bytes of a request back.
    pub fn release(&mut self, bytes: u64) {
        assert!(bytes <= self.under_way, "a request gives back what it took, once");
        self.under_way -= bytes;
    }

    fn evict_block(&mut self, out: &mut Vec<Evicted>) -> bool {
        let Some((_, id)) = self.block_order.pop_first() else { return false };
        let held = self.blocks.remove(&id).expect("all of the order is in the cache");
        debug_assert_eq!(held.pins, 0, "memory invariant 2");
        self.block_bytes -= held.cost_bytes;
        out.push(Evicted::Block(held.value));
        true
    }

    fn evict_index(&mut self, out: &mut Vec<Evicted>) -> bool {
        let Some((_, key)) = self.index_order.pop_first() else { return false };
        let held = self.indexes.remove(&key).expect("all of the order is in the cache");
        self.index_bytes -= held.cost_bytes;
        out.push(Evicted::Index(held.value));
        true
    }

    /// Revokes the oldest pin, if its lease is over.
    fn revoke_oldest(&mut self, now_ns: u64) -> bool {
        let Some((since_ns, pin)) = self.waiting_pins.first().copied() else { return false };
        if now_ns.saturating_sub(since_ns) < self.lease_ns {
            return false;
        }
        self.unpin(pin);
        self.revoked += 1;
        true
    }

    /// When the next pin may be revoked.
    pub fn next_lease_end_ns(&self) -> Option<u64> {
        self.waiting_pins.first().map(|(since_ns, _)| since_ns.saturating_add(self.lease_ns))
    }

    fn place(&mut self, class: u8) -> (u8, u64) {
        let place = (class, self.next_place);
        self.next_place += 1;
        place
    }

    /// Moves an index from what is under way to the cache. Memory for it is reserved.
    pub fn insert_index(&mut self, key: ObjectKey, index: Arc<Index>, reserved: u64, out: &mut Vec<Evicted>) {
        self.release(reserved);
        let (place, cost_bytes) = (self.place(0), index.cost_bytes());
        assert!(cost_bytes <= reserved, "an index of {cost_bytes} bytes, and {reserved} for its footer");
        if self.indexes.contains_key(&key) {
            return;
        }
        self.index_bytes += cost_bytes;
        self.index_order.insert(place, key);
        self.indexes.insert(key, Held { value: index, cost_bytes, pins: 0, is_passed: false, place });
        while self.index_bytes > self.index_max && self.indexes.len() > 1 {
            self.evict_index(out);
        }
    }

    /// An index, which counts as used.
    pub fn index(&mut self, key: &ObjectKey) -> Option<Arc<Index>> {
        let place = self.place(0);
        let held = self.indexes.get_mut(key)?;
        let older = std::mem::replace(&mut held.place, place);
        self.index_order.remove(&older);
        self.index_order.insert(place, *key);
        Some(held.value.clone())
    }

    /// Moves a block from what is under way to the cache.
    pub fn insert_block(&mut self, id: BlockId, block: Arc<Block>, cost_bytes: u64) {
        self.release(cost_bytes);
        let place = self.place(1);
        self.block_bytes += cost_bytes;
        self.block_order.insert(place, id);
        let held = Held { value: block, cost_bytes, pins: 0, is_passed: false, place };
        let previous = self.blocks.insert(id, held);
        assert!(previous.is_none(), "one request is under way for a block");
    }

    pub fn has_block(&self, id: &BlockId) -> bool {
        self.blocks.contains_key(id)
    }

    /// Readers in sequence have passed a block.
    pub fn pass_block(&mut self, id: &BlockId) {
        let place = self.place(0);
        let Some(held) = self.blocks.get_mut(id) else { return };
        held.is_passed = true;
        if held.pins == 0 {
            let older = std::mem::replace(&mut held.place, place);
            self.block_order.remove(&older);
            self.block_order.insert(place, *id);
        }
    }

    /// Pins a block for an owner that waits for its turn from `since_ns` on, or is to use it right now.
    pub fn pin(&mut self, id: &BlockId, since_ns: Option<u64>) -> Option<PinId> {
        let held = self.blocks.get_mut(id)?;
        if held.pins == 0 {
            self.block_order.remove(&held.place);
            self.pinned_bytes += held.cost_bytes;
        }
        held.pins += 1;
        // Somebody wants it after all.
        held.is_passed = false;
        let pin = PinId(self.next_pin);
        self.next_pin += 1;
        self.pins.insert(pin, Pin { block: *id, since_ns });
        if let Some(since_ns) = since_ns {
            self.waiting_pins.insert((since_ns, pin));
        }
        Some(pin)
    }

    /// The block of a pin, which cannot be revoked from now on. `None` when it was.
    pub fn open(&mut self, pin: PinId) -> Option<Arc<Block>> {
        let Pin { block, since_ns } = self.pins.get_mut(&pin)?;
        if let Some(since_ns) = since_ns.take() {
            self.waiting_pins.remove(&(since_ns, pin));
        }
        Some(
            self.blocks.get(block).expect("memory invariant 2: a pinned block is in the cache").value.clone(),
        )
    }

    /// A pin that is open waits for its owner's turn again, and may be revoked.
    pub fn close(&mut self, pin: PinId, now_ns: u64) {
        let Some(Pin { since_ns, .. }) = self.pins.get_mut(&pin) else { return };
        if since_ns.is_none() {
            *since_ns = Some(now_ns);
            self.waiting_pins.insert((now_ns, pin));
        }
    }

    /// The block of a pin, which may still be revoked.
    pub fn peek(&self, pin: PinId) -> Option<&Block> {
        let Pin { block, .. } = self.pins.get(&pin)?;
        self.blocks.get(block).map(|held| &*held.value)
    }

    /// Gives a pin back. Nothing when it was revoked.
    pub fn unpin(&mut self, pin: PinId) {
        let Some(Pin { block, since_ns }) = self.pins.remove(&pin) else { return };
        if let Some(since_ns) = since_ns {
            self.waiting_pins.remove(&(since_ns, pin));
        }
        let next = self.next_place;
        let held = self.blocks.get_mut(&block).expect("memory invariant 2: a pinned block is in the cache");
        held.pins -= 1;
        if held.pins == 0 {
            held.place = (u8::from(!held.is_passed), next);
            self.next_place += 1;
            self.pinned_bytes -= held.cost_bytes;
            self.block_order.insert(held.place, block);
        }
    }

    /// Empties the caches.
    pub fn clear(&mut self, out: &mut Vec<Evicted>) {
        while self.evict_block(out) || self.evict_index(out) {}
    }

    #[cfg(test)]
    pub fn check_invariants(&self, under_way: u64) {
        assert_eq!(self.under_way, under_way, "memory invariant 1");
        assert!(self.used() <= self.max, "memory invariant 1: {} of {}", self.used(), self.max);
        assert_eq!(self.block_bytes, self.blocks.values().map(|held| held.cost_bytes).sum::<u64>());
        let pinned = self.blocks.values().filter(|held| held.pins > 0).map(|held| held.cost_bytes);
        assert_eq!(self.pinned_bytes, pinned.sum::<u64>());
        assert_eq!(self.index_bytes, self.indexes.values().map(|held| held.cost_bytes).sum::<u64>());
        assert_eq!(self.index_order.len(), self.indexes.len());
        let mut pins: HashMap<BlockId, usize> = HashMap::new();
        for pin in self.pins.values() {
            *pins.entry(pin.block).or_default() += 1;
        }
        for (id, held) in &self.blocks {
            assert_eq!(held.pins, pins.remove(id).unwrap_or(0), "memory invariant 2");
            let ordered = self.block_order.get(&held.place) == Some(id);
            assert_eq!(ordered, held.pins == 0, "memory invariant 2");
        }
        assert!(pins.is_empty(), "memory invariant 2");
        assert_eq!(self.block_order.len(), self.blocks.values().filter(|held| held.pins == 0).count());
        assert_eq!(self.waiting_pins.len(), self.pins.values().filter(|pin| pin.since_ns.is_some()).count());
    }
}
