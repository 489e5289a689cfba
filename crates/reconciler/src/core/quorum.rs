//! When enough bookies know that a ledger's entries are in object storage.

use std::collections::BTreeSet;

use bindery_types::{BookieId, EntryId, LedgerMetadata};

/// The bookies of every ensemble that holds entries up to `last`.
pub fn members(metadata: &LedgerMetadata, last: EntryId) -> BTreeSet<BookieId> {
    let segments = metadata.segments().iter().take_while(|segment| segment.first_entry <= last);
    segments.flat_map(|segment| segment.ensemble.iter().cloned()).collect()
}

/// Whether of every entry up to `last` an ack quorum of its write set satisfies `is_told`.
pub fn is_reconciled(metadata: &LedgerMetadata, last: EntryId, is_told: impl Fn(&BookieId) -> bool) -> bool {
    let (quorum, segments) = (metadata.quorum, metadata.segments());
    let in_ensemble = quorum.ensemble_size() as i64;
    segments.iter().enumerate().take_while(|(_, segment)| segment.first_entry <= last).all(|(at, segment)| {
        let told: Vec<bool> = segment.ensemble.iter().map(&is_told).collect();
        let end = segments.get(at + 1).map_or(last.get(), |next| last.get().min(next.first_entry.get() - 1));
        let first = segment.first_entry.get();
        // Write sets repeat after as many entries as the ensemble has bookies.
        (first..=end.min(first.saturating_add(in_ensemble - 1))).filter_map(EntryId::new).all(|entry| {
            quorum.write_set(entry).filter(|index| told[*index]).count() >= quorum.ack_quorum_size()
        })
    })
}

#[cfg(test)]
mod tests {
    use bindery_types::{DigestType, LedgerSecret, Quorum, Segment};

    use super::*;

    fn entry(id: i64) -> EntryId {
        EntryId::new(id).unwrap()
    }

    fn metadata(shape: (usize, usize, usize), segments: &[(i64, &str)]) -> LedgerMetadata {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(Quorum::new(shape.0, shape.1, shape.2).unwrap(), secret);
        for (first, names) in segments {
            let ensemble = names.split(' ').map(|name| BookieId::new(name).unwrap()).collect();
            metadata.push_segment(Segment { first_entry: entry(*first), ensemble }).unwrap();
        }
        metadata
    }

    #[test]
    fn each_ensemble_below_the_entry_needs_its_own_ack_quorum() {
        let metadata = metadata((3, 3, 2), &[(0, "a b c"), (10, "d e f")]);
        let told = |names: &'static str| move |bookie: &BookieId| names.contains(bookie.as_str());
        assert!(is_reconciled(&metadata, entry(9), told("ab")));
        assert!(!is_reconciled(&metadata, entry(9), told("a")));
        assert!(!is_reconciled(&metadata, entry(10), told("abcd")));
        assert!(is_reconciled(&metadata, entry(10), told("acdf")));
        assert_eq!(members(&metadata, entry(9)).len(), 3);
        assert_eq!(members(&metadata, entry(10)).len(), 6);
    }

    /// By definition, entry by entry, for every set of bookies of small ensembles and short ledgers.
    #[test]
    fn a_quorum_is_one_for_every_entry() {
        for (e, w, a) in [(1, 1, 1), (3, 2, 1), (3, 2, 2), (4, 2, 2), (4, 3, 2), (5, 3, 2)] {
            let names: Vec<String> = (0..e).map(|index| format!("b{index}")).collect();
            let metadata = metadata((e, w, a), &[(0, &names.join(" "))]);
            for told in 0..1_u32 << e {
                let is_told =
                    |bookie: &BookieId| told >> bookie.as_str()[1..].parse::<u32>().unwrap() & 1 == 1;
                for last in 0..2 * e as i64 {
                    let expected = (0..=last).all(|id| {
                        metadata.write_set(entry(id)).filter(|bookie| is_told(bookie)).count() >= a
                    });
                    assert_eq!(
                        is_reconciled(&metadata, entry(last), is_told),
                        expected,
                        "{e}/{w}/{a} {told:b} {last}"
                    );
                }
            }
        }
    }
}
