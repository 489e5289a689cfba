//! Quorum arithmetic: which bookies store an entry, and when enough of them have answered.
//!
//! # Invariants
//! 1. `ensemble_size >= write_quorum_size >= ack_quorum_size >= 1`: a [`Quorum`] cannot be made otherwise.
//! 2. The write set of entry e is the ensemble indexes (e + i) mod E, i < Qw (protocol reference, section 7.2).
//! 3. [`Quorum::is_covered`] holds exactly when no ack quorum can consist only of bookies nothing is known about
//!    (section 7.4).

use crate::EntryId;

/// Largest ensemble accepted. BookKeeper has no bound; metadata of one mebibyte holds some 50,000 bookie ids.
pub const ENSEMBLE_SIZE_MAX: usize = 1 << 16;

/// Ensemble size E, write quorum Qw and ack quorum Qa of a ledger.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Quorum {
    ensemble_size: usize,
    write_quorum_size: usize,
    ack_quorum_size: usize,
}

/// Sizes that are no quorum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "ensemble {ensemble_size}, write quorum {write_quorum_size}, ack quorum {ack_quorum_size}: \
     each must be at least the next, the last at least 1, the first at most {ENSEMBLE_SIZE_MAX}"
)]
pub struct InvalidQuorum {
    /// E as given.
    pub ensemble_size: usize,
    /// Qw as given.
    pub write_quorum_size: usize,
    /// Qa as given.
    pub ack_quorum_size: usize,
}

/// Sizes that somebody chose, and sizes that nobody chose, which [`fill`](Self::fill) chooses: three copies, two of which acknowledge,
/// or as many as there are bookies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct QuorumSizes {
    /// E, bookies that the ledger is spread over: as many as copies, if not chosen.
    pub ensemble: Option<usize>,
    /// Qw, copies of an entry: 3 if not chosen, or as many as the ensemble has, or as there are bookies; at least Qa.
    pub write_quorum: Option<usize>,
    /// Qa, copies that acknowledge an entry: 2 if not chosen, or 1 of one copy.
    pub ack_quorum: Option<usize>,
}

impl QuorumSizes {
    /// Qw, where it is not chosen and there are so many bookies.
    pub const WRITE_QUORUM: usize = 3;
    /// Qa, where it is not chosen and there are so many copies.
    pub const ACK_QUORUM: usize = 2;

    /// All three sizes, for a cluster in which `bookies` take writes. Sizes that were given stay, even if there are too few bookies for them.
    pub fn fill(self, bookies: usize) -> Result<Quorum, InvalidQuorum> {
        let write_quorum = self.write_quorum.unwrap_or_else(|| {
            let copies = Self::WRITE_QUORUM.min(self.ensemble.unwrap_or_else(|| bookies.max(1)));
            copies.max(self.ack_quorum.unwrap_or(0))
        });
        let ack_quorum = self.ack_quorum.unwrap_or_else(|| Self::ACK_QUORUM.min(write_quorum));
        Quorum::new(self.ensemble.unwrap_or(write_quorum), write_quorum, ack_quorum)
    }

    /// Whether all three were chosen.
    pub fn is_whole(self) -> bool {
        self.ensemble.is_some() && self.write_quorum.is_some() && self.ack_quorum.is_some()
    }
}

impl From<Quorum> for QuorumSizes {
    fn from(quorum: Quorum) -> QuorumSizes {
        QuorumSizes {
            ensemble: Some(quorum.ensemble_size),
            write_quorum: Some(quorum.write_quorum_size),
            ack_quorum: Some(quorum.ack_quorum_size),
        }
    }
}

impl Quorum {
    /// One copy, on one bookie.
    pub const SINGLE: Quorum = match Quorum::new(1, 1, 1) {
        Ok(quorum) => quorum,
        Err(_) => unreachable!(),
    };

    /// Checks invariant 1.
    pub const fn new(
        ensemble_size: usize,
        write_quorum_size: usize,
        ack_quorum_size: usize,
    ) -> Result<Quorum, InvalidQuorum> {
        if ensemble_size > ENSEMBLE_SIZE_MAX
            || ensemble_size < write_quorum_size
            || write_quorum_size < ack_quorum_size
            || ack_quorum_size == 0
        {
            return Err(InvalidQuorum { ensemble_size, write_quorum_size, ack_quorum_size });
        }
        Ok(Quorum { ensemble_size, write_quorum_size, ack_quorum_size })
    }

    /// E: bookies of a segment.
    pub const fn ensemble_size(self) -> usize {
        self.ensemble_size
    }

    /// Qw: bookies that store one entry.
    pub const fn write_quorum_size(self) -> usize {
        self.write_quorum_size
    }

    /// Qa: acknowledgements an add needs.
    pub const fn ack_quorum_size(self) -> usize {
        self.ack_quorum_size
    }

    /// The ensemble indexes that store `entry`, in the order in which they are asked (invariant 2).
    pub fn write_set(self, entry: EntryId) -> impl ExactSizeIterator<Item = usize> {
        let ensemble_size = self.ensemble_size;
        let start = (entry.get().unsigned_abs() % ensemble_size as u64) as usize;
        (0..self.write_quorum_size).map(move |offset| (start + offset) % ensemble_size)
    }

    /// Whether the bookie at `index` of the ensemble stores `entry`.
    pub fn is_in_write_set(self, entry: EntryId, index: usize) -> bool {
        assert!(index < self.ensemble_size, "an index into the ensemble");
        let start = (entry.get().unsigned_abs() % self.ensemble_size as u64) as usize;
        (index + self.ensemble_size - start) % self.ensemble_size < self.write_quorum_size
    }

    /// Whether enough bookies are known (invariant 3). `is_known[i]` says whether the bookie at ensemble index `i` gave
    /// an answer that counts as knowledge: the entry, or "no such entry", or "no such ledger"; an error, silence or a
    /// wrong digest do not.
    ///
    /// # Panics
    /// When `is_known` is not one per bookie of the ensemble.
    pub fn is_covered(self, is_known: &[bool]) -> bool {
        assert_eq!(is_known.len(), self.ensemble_size, "one answer or silence per bookie of the ensemble");
        (0..self.ensemble_size).all(|start| {
            let unknown = (0..self.write_quorum_size)
                .filter(|offset| !is_known[(start + offset) % self.ensemble_size])
                .count();
            unknown < self.ack_quorum_size
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_quorums(ensemble_size_max: usize) -> impl Iterator<Item = Quorum> {
        (1..=ensemble_size_max)
            .flat_map(|e| (1..=e).flat_map(move |w| (1..=w).map(move |a| Quorum::new(e, w, a).unwrap())))
    }

    #[test]
    fn sizes_out_of_order_are_no_quorum() {
        for (e, w, a) in [(0, 0, 0), (3, 3, 0), (3, 2, 3), (2, 3, 2), (ENSEMBLE_SIZE_MAX + 1, 3, 2)] {
            assert!(Quorum::new(e, w, a).is_err(), "{e} {w} {a}");
        }
    }

    #[test]
    fn sizes_that_nobody_chose_are_three_three_and_two_as_far_as_there_are_bookies() {
        let filled = |bookies, ensemble, write_quorum, ack_quorum| {
            let sizes = QuorumSizes { ensemble, write_quorum, ack_quorum };
            let quorum = sizes.fill(bookies).ok()?;
            Some((quorum.ensemble_size, quorum.write_quorum_size, quorum.ack_quorum_size))
        };
        let whole = [(0, (1, 1, 1)), (1, (1, 1, 1)), (2, (2, 2, 2)), (3, (3, 3, 2)), (9, (3, 3, 2))];
        for (bookies, sizes) in whole {
            assert_eq!(filled(bookies, None, None, None), Some(sizes), "{bookies} bookies");
        }
        assert_eq!(filled(3, Some(3), None, None), Some((3, 3, 2)), "one lost bookie does not stop writes");
        assert_eq!(filled(3, Some(1), None, None), Some((1, 1, 1)));
        assert_eq!(filled(9, Some(5), None, None), Some((5, 3, 2)));
        assert_eq!(filled(3, None, Some(2), None), Some((2, 2, 2)));
        assert_eq!(filled(9, None, Some(5), None), Some((5, 5, 2)));
        assert_eq!(filled(3, None, None, Some(1)), Some((3, 3, 1)), "copies are not given up silently");
        assert_eq!(filled(9, None, None, Some(4)), Some((4, 4, 4)));
        assert_eq!(filled(1, None, None, Some(2)), Some((2, 2, 2)), "what was chosen is kept");
        assert_eq!(filled(1, Some(3), None, None), Some((3, 3, 2)));
        for (ensemble, write_quorum, ack_quorum) in
            [(Some(2), Some(3), None), (Some(0), None, None), (Some(2), None, Some(3)), (None, None, Some(0))]
        {
            assert_eq!(filled(9, ensemble, write_quorum, ack_quorum), None, "{ensemble:?} {write_quorum:?}");
        }
        for quorum in all_quorums(5) {
            assert!(QuorumSizes::from(quorum).is_whole());
            assert_eq!(QuorumSizes::from(quorum).fill(1), Ok(quorum));
        }
    }

    #[test]
    fn write_sets_stripe_over_the_ensemble() {
        let quorum = Quorum::new(5, 3, 2).unwrap();
        let write_set = |entry| quorum.write_set(EntryId::new(entry).unwrap()).collect::<Vec<_>>();
        assert_eq!(write_set(0), [0, 1, 2]);
        assert_eq!(write_set(4), [4, 0, 1]);
        assert_eq!(write_set(i64::MAX), [2, 3, 4]);
        for quorum in all_quorums(7) {
            for entry in (0..14).filter_map(EntryId::new) {
                let write_set: Vec<_> = quorum.write_set(entry).collect();
                assert_eq!(write_set.len(), quorum.write_quorum_size());
                for index in 0..quorum.ensemble_size() {
                    assert_eq!(quorum.is_in_write_set(entry, index), write_set.contains(&index));
                }
            }
        }
    }

    /// Invariant 3, by definition: for every write set, every subset of it of ack quorum size has a known bookie.
    #[test]
    fn coverage_is_exact_for_every_ensemble_up_to_seven() {
        let mut cases = 0;
        for quorum in all_quorums(7) {
            let ensemble_size = quorum.ensemble_size();
            let ack_quorums: Vec<u32> = (0..ensemble_size as i64)
                .flat_map(|entry| {
                    let bits =
                        quorum.write_set(EntryId::new(entry).unwrap()).fold(0u32, |set, i| set | 1 << i);
                    (0u32..1 << ensemble_size).filter(move |subset| subset & !bits == 0)
                })
                .filter(|subset| subset.count_ones() as usize == quorum.ack_quorum_size())
                .collect();
            for known in 0u32..1 << ensemble_size {
                let is_known: Vec<bool> = (0..ensemble_size).map(|index| known >> index & 1 == 1).collect();
                let expected = ack_quorums.iter().all(|subset| subset & known != 0);
                assert_eq!(quorum.is_covered(&is_known), expected, "{quorum:?} known {known:b}");
                cases += 1;
            }
        }
        assert_eq!(cases, (1..=7usize).map(|e| (e * (e + 1) / 2) << e).sum::<usize>());
    }

    #[test]
    fn with_all_bookies_in_the_write_set_coverage_is_a_count() {
        for quorum in all_quorums(7).filter(|q| q.ensemble_size() == q.write_quorum_size()) {
            let (e, a) = (quorum.ensemble_size(), quorum.ack_quorum_size());
            for known in 0..=e {
                let is_known: Vec<bool> = (0..e).map(|index| index < known).collect();
                assert_eq!(quorum.is_covered(&is_known), known > e - a);
            }
        }
    }
}
