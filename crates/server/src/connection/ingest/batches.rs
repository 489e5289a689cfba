//! Empty batches of adds kept for reuse, a few for each thread of the runtime: a batch then allocates nothing.

use bindery_engine::Add;
use std::cell::RefCell;

/// Kept by a thread.
const KEPT_MAX: usize = 4;
/// A longer batch is not kept.
const KEPT_ENTRIES_MAX: usize = 1024;

thread_local! {
    static KEPT: RefCell<Vec<Vec<Vec<Add<'static>>>>> = const { RefCell::new(Vec::new()) };
}

/// An empty batch for each shard.
pub(super) fn take<'f>(shard_count: usize) -> Vec<Vec<Add<'f>>> {
    let mut shards = KEPT.with_borrow_mut(Vec::pop).map_or_else(Vec::new, relabelled);
    shards.resize_with(shard_count, Vec::new);
    shards
}

pub(super) fn put(mut shards: Vec<Vec<Add<'_>>>) {
    shards.iter_mut().filter(|adds| adds.capacity() > KEPT_ENTRIES_MAX).for_each(|adds| *adds = Vec::new());
    KEPT.with_borrow_mut(|kept| {
        if kept.len() < KEPT_MAX {
            kept.push(relabelled(shards));
        }
    });
}

/// The same memory, empty, for adds that borrow from another buffer.
fn relabelled<'b>(shards: Vec<Vec<Add<'_>>>) -> Vec<Vec<Add<'b>>> {
    let emptied = |mut adds: Vec<Add<'_>>| -> Vec<Add<'b>> {
        adds.clear();
        adds.into_iter().map(|_| unreachable!("it is empty")).collect()
    };
    shards.into_iter().map(emptied).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_engine::Origin;
    use bindery_types::{EntryId, LedgerId, MasterKey};

    /// The reason for it: memory is found again. Without that every batch would allocate.
    #[test]
    fn a_batch_is_used_again() {
        let body = [0; 24];
        let add = Add {
            origin: Origin { connection: 0, txn: 0, tag: 0 },
            ledger: LedgerId::MIN,
            entry: EntryId::FIRST,
            last_add_confirmed: None,
            key: MasterKey::new([0; 20]),
            body: &body,
            is_recovery: false,
            is_high_priority: false,
        };
        let mut shards = take(2);
        shards[1].extend([add; 100]);
        let memory = shards[1].as_ptr() as usize;
        put(shards);
        let mut shards = take(2);
        assert!(shards.iter().all(Vec::is_empty));
        assert_eq!(shards[1].as_ptr() as usize, memory);
        shards[0].extend(vec![add; KEPT_ENTRIES_MAX + 1]);
        put(shards);
        assert_eq!(take(2)[0].capacity(), 0);
    }
}
