//! Entries that are in object storage: how far a bookie is told their places instead of being sent their bytes, and when metadata may rely
//! on that.
//!
//! ```text
//! what bookies let go --> how_far --> places of the catalogue, looked at --> durable in the bookie that lacks the entries
//!     --> copies of the rest --> compared with the catalogue once more --> metadata names the bookie while that is_fresh
//! ```
//!
//! # Invariants
//! 1. Only of closed ledgers, and only entries that another bookie let go: that bookie has compared its copies with the objects.
//! 2. Metadata names a bookie that reads entries of its place from object storage only if all places that it knows of them were the
//!    catalogue's at a look that began after they were durable there, and no longer than [`EXTENTS_KEPT_FOR`] ago. Should an
//!    object go after that, a read that finds it gone asks the catalogue (T10).
//! 3. Where the answer to the naming came too late for that, the places are compared once more: [`is_sure`].
//! 4. A place of a later object is never replaced by one of an earlier object: a tierer told of it meanwhile.

use std::time::Duration;

use bindery_types::tier::{EXTENTS_KEPT_FOR, TierExtent};
use bindery_types::{EntryId, LedgerMetadata, LedgerState};

use super::audit::Lack;

/// How long the metadata store may take to answer. Objects are examined after more than this and [`EXTENTS_KEPT_FOR`].
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// Up to which entry places are moved to a bookie that lacks these entries. `let_go`: up to where other members of the segment let their
/// copies go.
pub fn how_far(
    metadata: &LedgerMetadata,
    lack: &Lack,
    let_go: impl IntoIterator<Item = Option<EntryId>>,
) -> Option<EntryId> {
    let LedgerState::Closed { last_entry, .. } = metadata.state else { return None };
    let most = let_go.into_iter().flatten().max()?;
    let upto = most.min(lack.last).min(last_entry?);
    (upto >= lack.first).then_some(upto)
}

/// Whether metadata may name a bookie by a look of this age.
pub fn is_fresh(age: Duration) -> bool {
    age <= EXTENTS_KEPT_FOR
}

/// Whether no object of that look can have been deleted before tierers knew of the naming, when that was answered at this age.
pub fn is_sure(age: Duration) -> bool {
    age <= EXTENTS_KEPT_FOR + ANSWERED_WITHIN
}

/// What a bookie knows of places, beside the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// They are the same.
    Same,
    /// The bookie has to be told.
    Behind,
    /// The bookie was told of an object that came after the look at the catalogue.
    Ahead,
    /// The catalogue has no object with this entry.
    Missing(EntryId),
}

/// Compares places of the entries from `first` to `last`. Both lists ascend.
pub fn compare((first, last): (EntryId, EntryId), known: &[TierExtent], now: &[TierExtent]) -> Comparison {
    let mut at = first;
    while at <= last {
        let of = |extents: &[TierExtent]| extents.iter().find(|extent| extent.contains(at)).copied();
        let Some(now) = of(now) else { return Comparison::Missing(at) };
        let Some(known) = of(known) else { return Comparison::Behind };
        if known.object != now.object {
            let is_later = known.object.id > now.object.id;
            return if is_later { Comparison::Ahead } else { Comparison::Behind };
        }
        let Some(next) = EntryId::new(known.last.min(now.last).get().saturating_add(1)) else { break };
        at = next;
    }
    Comparison::Same
}

/// Of extents in ascending order, those that continue from `next` without a gap, up to `upto`: cut where they begin before or end behind.
pub fn continued(extents: Vec<TierExtent>, next: EntryId, upto: EntryId) -> Vec<TierExtent> {
    let (from, mut next, mut taken) = (next, next, Vec::new());
    for extent in extents.into_iter().skip_while(|extent| extent.last < from) {
        if next > upto || !extent.contains(next) {
            break;
        }
        let last = extent.last.min(upto);
        taken.push(TierExtent { first: next, last, ..extent });
        let Some(behind) = EntryId::new(last.get().saturating_add(1)) else { break };
        next = behind;
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::tier::{ObjectId, ObjectRef};
    use bindery_types::{BookieId, DigestType, LedgerSecret, Quorum};

    fn entry(id: i64) -> EntryId {
        EntryId::new(id).unwrap()
    }

    fn extent(first: i64, last: i64, of: u64) -> TierExtent {
        let id = ObjectId::new(of, [0; 10]);
        let object = ObjectRef { id, length_bytes: 9, footer_offset: 1, footer_crc: 0, etag_crc: 0 };
        TierExtent { first: entry(first), last: entry(last), object }
    }

    fn lack(first: i64, last: i64) -> Lack {
        let bookie = BookieId::new("b").unwrap();
        Lack { first: entry(first), last: entry(last), position: 0, bookie }
    }

    /// Invariant 1.
    #[test]
    fn places_are_moved_as_far_as_another_bookie_let_go_and_only_of_a_closed_ledger() {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(Quorum::new(3, 3, 2).unwrap(), secret);
        let far = |metadata: &LedgerMetadata, let_go: &[Option<i64>]| {
            let let_go = let_go.iter().map(|last| last.and_then(EntryId::new));
            how_far(metadata, &lack(10, 19), let_go).map(EntryId::get)
        };
        assert_eq!(far(&metadata, &[Some(19)]), None, "it is open");
        let closed = |last| LedgerState::Closed { last_entry: EntryId::new(last), length_bytes: 1 };
        metadata.state = closed(99);
        assert_eq!(far(&metadata, &[None, Some(14), Some(12)]), Some(14));
        assert_eq!(far(&metadata, &[Some(99)]), Some(19), "no more than is lacking");
        assert_eq!(far(&metadata, &[Some(9)]), None, "nothing of what is lacking");
        assert_eq!((far(&metadata, &[None]), far(&metadata, &[])), (None, None));
        metadata.state = closed(12);
        assert_eq!(far(&metadata, &[Some(99)]), Some(12), "a bookie that says more than there is");
    }

    #[test]
    fn what_a_bookie_knows_is_compared_entry_by_entry() {
        let range = |first, last| (entry(first), entry(last));
        let now = [extent(0, 9, 1), extent(10, 19, 5)];
        assert_eq!(compare(range(0, 19), &now, &now), Comparison::Same);
        let in_parts = [extent(0, 3, 1), extent(4, 9, 1), extent(10, 30, 5)];
        assert_eq!(compare(range(2, 19), &in_parts, &now), Comparison::Same);
        assert_eq!(compare(range(2, 20), &in_parts, &now), Comparison::Missing(entry(20)));
        let older = [extent(0, 9, 1), extent(10, 19, 2)];
        assert_eq!(compare(range(0, 9), &older, &now), Comparison::Same);
        assert_eq!(compare(range(0, 10), &older, &now), Comparison::Behind);
        assert_eq!(compare(range(0, 19), &now[..1], &now), Comparison::Behind);
        let later = [extent(0, 19, 7)];
        assert_eq!(compare(range(0, 19), &later, &now), Comparison::Ahead, "invariant 4");
    }

    #[test]
    fn extents_are_taken_without_a_gap_and_cut_at_both_ends() {
        let all = vec![extent(0, 9, 1), extent(10, 19, 2), extent(25, 30, 3)];
        assert_eq!(continued(all.clone(), entry(4), entry(14)), [extent(4, 9, 1), extent(10, 14, 2)]);
        assert_eq!(continued(all.clone(), entry(12), entry(40)), [extent(12, 19, 2)]);
        assert_eq!(continued(all.clone(), entry(20), entry(40)), []);
        assert_eq!(continued(all, entry(31), entry(30)), []);
    }

    /// Invariants 2 and 3.
    #[test]
    fn metadata_rely_on_a_look_for_as_long_as_tierers_take_for_granted() {
        let second = Duration::from_secs(1);
        assert!(is_fresh(EXTENTS_KEPT_FOR) && !is_fresh(EXTENTS_KEPT_FOR + second));
        assert!(
            is_sure(EXTENTS_KEPT_FOR + ANSWERED_WITHIN)
                && !is_sure(EXTENTS_KEPT_FOR + ANSWERED_WITHIN + second)
        );
    }
}
