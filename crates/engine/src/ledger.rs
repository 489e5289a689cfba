//! What a shard knows of one ledger. There is one such object for each ledger, ever: two would mean two fence bits,
//! and an add could slip past a fence (BookKeeper #4701).
//!
//! It is small, because there may be a million: state that a ledger needs only while a client writes to it or waits for
//! it is in boxes, which go with [`LedgerState::rest`].

use crate::lagging::Lagging;
use crate::polls::Polls;
use crate::rare::RareVec;
use crate::tier::PlacedUpdate;
use crate::write_cache::CacheRecords;
use bindery_storage::{Generation, LedgerRecord, TierRecord};
use bindery_types::tier::TierStamp;
use bindery_types::{EntryId, LedgerId, MasterKey};
use std::sync::Arc;

/// From one freeze of a shard to the next. Two are told apart: the active one, and that of the freeze under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Epoch(bool);

impl Epoch {
    pub(crate) fn next(self) -> Epoch {
        Epoch(!self.0)
    }
}

pub(crate) struct LedgerState {
    /// `None` until somebody presented one (a ledger restored without its key, or created by repair).
    pub(crate) key: Option<MasterKey>,
    /// Sequence of the record that fences the ledger; 0 when the state table has it.
    pub(crate) fence: Option<u64>,
    pub(crate) is_limbo: bool,
    pub(crate) last_entry: Lagging,
    pub(crate) last_add_confirmed: Lagging,
    /// Explicit LACs with their sequence, oldest first; all but the last durable one are dropped as they age.
    pub(crate) explicit_lacs: RareVec<(u64, Arc<[u8]>)>,
    /// Of the active write cache.
    pub(crate) records: CacheRecords,
    /// Requests to be told when the LAC moves.
    pub(crate) polls: Polls,
    /// Sequence of a fence that wakes them.
    pub(crate) wake_polls_at: Option<u64>,
    /// It changed, and no frozen cache has that yet.
    pub(crate) dirty_in: Option<Epoch>,
    /// Odd while the ledger is removed: grows with each removal, each return and, by two, each end of limbo, so that of
    /// two records of a ledger the later one is known.
    pub(crate) life: u32,
    /// Copies of a lower generation are older than the last removal.
    pub(crate) hidden_below: u64,
    /// Sequence of the record that removed it last; 0 when the state table has it.
    pub(crate) removed_at: u64,
    /// Sequence of the record that was placed last; 0 when none was in this process. Updates of what is
    /// in object storage do not count.
    pub(crate) changed_at: u64,
    /// Of a ledger of which entries are in object storage.
    pub(crate) tier: Option<Box<TierState>>,
    /// The ledger was removed since the last freeze: the extents that the tables have of it go.
    pub(crate) are_extents_gone: bool,
}

/// What is known of a ledger's entries in object storage, since it was removed last.
pub(crate) struct TierState {
    /// The last reconciled entry.
    pub(crate) lre: Lagging,
    /// Of the update that was placed last.
    pub(crate) stamp: TierStamp,
    /// Entries up to it are read from there when no copy is here.
    pub(crate) trimmed_below: Option<EntryId>,
    /// When the ledger was created that all this is about; `None`: no tierer said so.
    pub(crate) created_ms: Option<i64>,
    /// Sequence of the update that was placed last; 0 when the state table has it.
    pub(crate) updated_at: u64,
    /// The record that every directory has committed.
    pub(crate) committed: Option<TierRecord>,
    /// Placed since the last freeze, oldest first.
    pub(crate) updates: Vec<PlacedUpdate>,
}

impl TierState {
    /// Charged for one: the state, a list of one update, and what the allocator adds.
    pub(crate) const BYTES: usize = size_of::<TierState>() + 32;

    fn restore(record: &TierRecord) -> TierState {
        TierState {
            lre: Lagging::durable(record.lre.get()),
            trimmed_below: record.trimmed_below,
            created_ms: record.created_ms,
            committed: Some(*record),
            ..TierState::new(record.stamp)
        }
    }

    /// Everything placed so far; `None` while nothing is.
    fn record(&self) -> Option<TierRecord> {
        let lre = EntryId::new(self.lre.placed())?;
        let TierState { trimmed_below, stamp, created_ms, .. } = *self;
        Some(TierRecord { lre, trimmed_below, stamp, created_ms })
    }
}

impl LedgerState {
    /// A ledger that was not known.
    pub(crate) fn new(key: Option<MasterKey>) -> LedgerState {
        LedgerState {
            key,
            fence: None,
            is_limbo: false,
            last_entry: Lagging::durable(-1),
            last_add_confirmed: Lagging::durable(-1),
            explicit_lacs: RareVec::default(),
            records: CacheRecords::default(),
            polls: Polls::default(),
            wake_polls_at: None,
            dirty_in: None,
            life: 0,
            hidden_below: 0,
            removed_at: 0,
            changed_at: 0,
            tier: None,
            are_extents_gone: false,
        }
    }

    /// Charged for one: the state, and what the allocator adds to a box.
    pub(crate) const BYTES: usize = size_of::<LedgerState>() + 16;

    /// As [`LedgerState::new`], as shards keep it.
    pub(crate) fn boxed(key: Option<MasterKey>) -> Box<LedgerState> {
        Box::new(LedgerState::new(key))
    }

    /// A ledger from the state table.
    pub(crate) fn restore(record: &LedgerRecord) -> LedgerState {
        LedgerState {
            fence: record.is_fenced.then_some(0),
            is_limbo: record.is_limbo,
            last_entry: Lagging::durable(EntryId::to_wire(record.last_entry)),
            last_add_confirmed: Lagging::durable(EntryId::to_wire(record.last_add_confirmed)),
            explicit_lacs: record.explicit_lac.iter().map(|body| (0, body.as_slice().into())).collect(),
            life: record.life,
            hidden_below: record.hidden_below.0,
            tier: record.tier.as_ref().map(|tier| Box::new(TierState::restore(tier))),
            ..LedgerState::new(record.master_key)
        }
    }

    /// Everything placed so far, for the state table. Only a freeze may ask: its group boundary makes all of it
    /// durable before it is written.
    pub(crate) fn snapshot(&self, ledger: LedgerId) -> LedgerRecord {
        LedgerRecord {
            ledger,
            master_key: self.key,
            is_fenced: self.fence.is_some(),
            is_limbo: self.is_limbo,
            explicit_lac: self.explicit_lacs.last().map(|(_, body)| body.to_vec()),
            last_add_confirmed: EntryId::new(self.last_add_confirmed.placed()),
            last_entry: EntryId::new(self.last_entry.placed()),
            life: self.life,
            hidden_below: Generation(self.hidden_below),
            tier: self.tier.as_ref().and_then(|tier| tier.record()),
        }
    }

    /// The tier fields that the state tables have of the ledger.
    pub(crate) fn committed_tier(&self) -> Option<TierRecord> {
        self.tier.as_ref()?.committed
    }

    /// Takes over what another record of this life says of the ledger in object storage.
    pub(crate) fn join_tier(&mut self, other: Option<TierRecord>) {
        let Some(other) = other else { return };
        let joined = self.committed_tier().map_or(other, |known| known.join(other));
        self.tier = Some(Box::new(TierState::restore(&joined)));
    }

    /// A record at `sequence` changed it. True when it is the first since the last freeze.
    pub(crate) fn mark_dirty(&mut self, sequence: u64, epoch: Epoch) -> bool {
        self.changed_at = sequence;
        self.touch(epoch)
    }

    /// As [`LedgerState::mark_dirty`], of a change that does not speak against a removal.
    pub(crate) fn touch(&mut self, epoch: Epoch) -> bool {
        let before = self.dirty_in.replace(epoch);
        // Or the freeze under way would leave it out, and the mark would cover that.
        assert!(before.is_none_or(|before| before == epoch), "a ledger is settled before it changes");
        before.is_none()
    }

    /// True for a ledger that was removed and did not come back.
    pub(crate) fn is_removed(&self) -> bool {
        self.life % 2 == 1
    }

    /// Everything placed so far is gone: `sequence` is the record that says so, `generation` the one that what is in
    /// the active write cache will have on disk. Key and fence are remembered.
    pub(crate) fn remove(&mut self, sequence: u64, generation: u64) {
        if !self.is_removed() {
            self.life += 1;
        }
        self.hidden_below = generation;
        self.removed_at = sequence;
        self.is_limbo = false;
        self.last_entry = Lagging::durable(-1);
        self.last_add_confirmed = Lagging::durable(-1);
        self.explicit_lacs = RareVec::default();
        self.records = CacheRecords::default();
        self.tier = None;
        self.are_extents_gone = true;
        if !self.polls.is_empty() {
            self.wake_polls_at.get_or_insert(sequence);
        }
    }

    /// The ledger exists again, empty. One that was not fenced takes the key it is given next.
    pub(crate) fn revive(&mut self) {
        if self.is_removed() {
            self.life += 1;
            self.key = self.key.filter(|_| self.fence.is_some());
        }
    }

    /// It came after `record`, which a table may remember: came back, or came back and went again. Later than what the
    /// table says, both times.
    pub(crate) fn outlive(&mut self, record: &LedgerRecord) {
        debug_assert!(record.life % 2 == 1, "what is forgotten was removed");
        self.life += record.life + 1;
        self.hidden_below = self.hidden_below.max(record.hidden_below.0);
    }

    /// The generation below which copies are permanently removed: a removal that is not in the state table yet, which
    /// has what was frozen up to `flushed`, hides nothing that a power cut could not bring back.
    pub(crate) fn hidden_for_good(&self, flushed: u64) -> u64 {
        if self.hidden_below <= flushed { self.hidden_below } else { 0 }
    }

    /// True when `key` may write or fence. The all-zero placeholder gives way to the first real key (section 4.1).
    pub(crate) fn accepts(&self, key: &MasterKey) -> bool {
        self.key.is_none_or(|known| known.is_zero() || known == *key)
    }

    /// True when the presented key must be recorded.
    pub(crate) fn needs_key(&self, key: &MasterKey) -> bool {
        self.key.is_none_or(|known| known.is_zero() && !key.is_zero())
    }

    pub(crate) fn push_explicit_lac(&mut self, sequence: u64, durable: u64, body: Arc<[u8]>) {
        let mut kept = self.trim_explicit_lacs(durable);
        kept.push((sequence, body));
        self.explicit_lacs = kept.into();
    }

    /// The last durable explicit LAC.
    pub(crate) fn explicit_lac(&self, durable: u64) -> Option<&Arc<[u8]>> {
        self.explicit_lacs.iter().rev().find(|(s, _)| *s <= durable).map(|(_, body)| body)
    }

    /// The newest explicit LAC placed, durable or not.
    pub(crate) fn explicit_lacs_newest(&self) -> Option<&[u8]> {
        self.explicit_lacs.last().map(|(_, body)| &**body)
    }

    /// Charged for explicit LACs: the last one, and the list that it is in. Those before it go once it is flushed, and the write
    /// cache counts them until then.
    pub(crate) fn explicit_lac_charge(&self) -> usize {
        self.explicit_lacs.last().map_or(0, |(_, body)| LedgerState::charge_of_lac(body.len()))
    }

    /// Charged for an explicit LAC of so many bytes.
    pub(crate) const fn charge_of_lac(length: usize) -> usize {
        // A box, a list of one, the counts of an `Arc`, and what the allocator adds to each.
        size_of::<Vec<(u64, Arc<[u8]>)>>()
            + size_of::<(u64, Arc<[u8]>)>()
            + 2 * size_of::<usize>()
            + 3 * 16
            + length
    }

    /// Takes the explicit LACs out, but for those before the last durable one.
    fn trim_explicit_lacs(&mut self, durable: u64) -> Vec<(u64, Arc<[u8]>)> {
        let mut kept = self.explicit_lacs.take();
        let settled = kept.iter().rposition(|(s, _)| *s <= durable).unwrap_or(0);
        kept.drain(..settled);
        kept
    }

    /// Gives back what only a ledger that is written to needs, as far as it does not need it now.
    pub(crate) fn rest(&mut self, durable: u64) {
        if !self.explicit_lacs.is_empty() {
            let mut kept = self.trim_explicit_lacs(durable);
            kept.shrink_to_fit();
            self.explicit_lacs = kept.into();
        }
        if let Some(tier) = &mut self.tier {
            tier.lre.rest(durable);
        }
        self.last_entry.rest(durable);
        self.last_add_confirmed.rest(durable);
    }

    /// Drops what is not durable: the journal failed. The fence bit stays: no add is accepted any more anyway.
    pub(crate) fn forget_above(&mut self, durable: u64) {
        self.last_entry.forget_above(durable);
        self.last_add_confirmed.forget_above(durable);
        self.explicit_lacs.retain(|(s, _)| *s <= durable);
        self.records.forget_above(durable);
        if let Some(tier) = &mut self.tier {
            tier.lre.forget_above(durable);
            tier.updates.retain(|update| update.sequence <= durable);
        }
    }
}
