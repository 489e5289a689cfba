//! Which ledgers are garbage: one round of comparing the ledgers here with those in metadata (protocol reference,
//! section 6.1). Decides, and asks nobody: the shell lists and reads metadata and tells what it found.
//!
//! # Data flow
//! ```text
//! begin (ledgers here) -> metadata synced -> on_range ... -> on_listed -> candidate -> read again -> on_read -> Drop
//!                                                                '- a large share -> Unconfirmed -> another round, soon
//! ```
//!
//! # Invariants (IB16)
//! 1. The ledgers here are taken first. A ledger is in metadata before its first entry is anywhere, so what is here and
//!    not in a later, complete listing was deleted.
//! 2. Nothing is dropped before the listing ended well, and each ledger only when it was read again and is not there.
//! 3. Metadata is believed only when its INSTANCEID is the one of our cookie and it reaches as far as it is *expected* to: it
//!    lists a ledger at least as high, or proves that it is current (4). Only ids that metadata was seen to know are
//!    expected: peers may have anything here begin under any id.
//! 4. An empty listing, and one by which a large share of the ledgers here would go, needs proof that the store is current
//!    ([`Evidence`]): our INSTANCEID, our cookie, the mark that this bookie left there last, and that it reaches as far as
//!    expected, by ids given out or because it did when it got the mark ([`GarbageRound::known_at_mark`]). An older copy has
//!    an older mark, an import and an empty store have none. No round adds to the evidence before it has ended without
//!    needing it ([`GarbageRound::may_mark`]): the rounds of this bookie and of others must not make a store look current.
//!    A large share goes only when the next round finds all of it gone as well.
//! 5. A ledger above everything that the store lists, has given out, or knew when it got its mark is *unproven*: made up by a
//!    client, or created after the copy was taken that answers now. It stops no other ledger. It goes when the store shows
//!    our mark, and the caller found the ledger unproven for long enough ([`GarbageRound::release`]).
//! 6. An operator may waive, for one round, that the store reaches far enough (3, 5) and that the share is not too large,
//!    nothing else. Only ids that the store knows are then expected of it ([`GarbageRound::accepted`]).
//! 7. The first doubt ends the round; there is no way to go on with it.

use bindery_io::canary::{Canaries, Canary};
use bindery_types::LedgerId;

/// When a round goes too far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GarbageLimits {
    /// Largest share of the ledgers here that one round may drop.
    pub share_max: f64,
    /// As many may always go: a few ledgers are easily all there are.
    pub always: usize,
}

impl Default for GarbageLimits {
    fn default() -> GarbageLimits {
        GarbageLimits { share_max: 0.5, always: 10 }
    }
}

/// Why a round ended early. Nothing more is dropped in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// Another cluster's metadata, or a new one's under the same address.
    #[error(
        "the metadata store says it is cluster {found:?}, and this bookie belongs to {ours:?}: check the metadata \
         address of this bookie"
    )]
    OtherCluster {
        /// INSTANCEID in metadata.
        found: String,
        /// INSTANCEID of the cookie.
        ours: String,
    },
    /// Half a cluster.
    #[error("metadata is not a whole cluster: its LAYOUT is missing or another one, or it is being imported")]
    NotWhole,
    /// The store lacks a mark that it had.
    #[error(
        "the mark that this bookie left in metadata is not there any more: an older copy of it answers now, or another \
         store. If that is how it shall stay, ask for one round without this check"
    )]
    MarkGone,
    /// The store failed, or the listing did.
    #[error("metadata: {0}")]
    Metadata(String),
    /// The journal does not make removals durable.
    #[error(
        "removals of ledgers are not durable after {0} s: a journal hangs, or is far too slow. They count once it goes on"
    )]
    JournalHangs(u64),
    /// Ids that do not ascend.
    #[error("the listing of ledgers is out of order at ledger {0}")]
    OutOfOrder(LedgerId),
    /// No ledger at all, and no proof that this is so.
    #[error(
        "metadata lists no ledger, and {here} are here: an empty metadata store is believed only when it has an \
         INSTANCEID, the cookie of this bookie and the mark that this bookie left there last"
    )]
    Empty {
        /// Ledgers here.
        here: usize,
    },
    /// The store knows less than it did.
    #[error(
        "metadata knows of ledgers up to {listed} only, and it knew ledger {expected} before: it may be an old copy. If \
         those ledgers really are deleted, ask for one round without this check"
    )]
    Behind {
        /// Highest ledger that metadata lists, or has given out if it is current.
        listed: LedgerId,
        /// Highest ledger that it was seen to know.
        expected: LedgerId,
    },
    /// Too large a share at once, and no proof that this is so.
    #[error(
        "{dropped} of {here} ledgers here are not in metadata, which does not prove to be current (by the mark that this \
         bookie left there last): that is too large a share to be dropped. If they really are deleted, ask for one round \
         without this check"
    )]
    TooMany {
        /// Ledgers to be dropped.
        dropped: usize,
        /// Ledgers here.
        here: usize,
    },
}

/// Facts that can show that a store is current (invariant 4). Reading them changes none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The cluster has an INSTANCEID, and a cookie of this bookie.
    pub is_member: bool,
    /// It has the mark that this bookie left there last.
    pub has_mark: bool,
    /// The ledger id that it gives out next.
    pub next_id: Option<LedgerId>,
}

impl Evidence {
    /// This bookie knows the store again.
    fn is_known(self, canaries: Canaries) -> bool {
        self.is_member && (self.has_mark || canaries.has(Canary::M42MarkIgnored))
    }

    /// The highest id that was given out, by a store that this bookie knows again.
    fn counted(self, canaries: Canaries) -> Option<LedgerId> {
        self.next_id.filter(|_| self.is_known(canaries)).and_then(|id| LedgerId::new(id.get() - 1))
    }
}

/// What a listing that ended well allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listed {
    /// The candidates are to be read again.
    Believed,
    /// A large share would go: these ledgers, ascending. Nothing is dropped in this round, and all of it in the next, if
    /// that does not list any of them ([`GarbageRound::confirms`]).
    Unconfirmed(Vec<LedgerId>),
}

/// What a second look at a ledger's metadata said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecondLook {
    /// It is not there, on the store's own word.
    Absent,
    /// It is there.
    Present,
}

/// One round.
#[derive(Debug, Clone)]
pub struct GarbageRound {
    /// Ascending.
    here: Vec<LedgerId>,
    expected: Option<LedgerId>,
    marked: Option<LedgerId>,
    needs_mark: bool,
    limits: GarbageLimits,
    is_waived: bool,
    canaries: Canaries,
    /// What the round before found gone, if that was a large share; ascending.
    found_before: Vec<LedgerId>,
    /// Found unproven for long enough; ascending.
    released: Vec<LedgerId>,
    /// How many of `here` the listing has passed.
    passed: usize,
    listed: Option<LedgerId>,
    /// The highest of `here` that is listed.
    listed_here: Option<LedgerId>,
    candidates: Vec<LedgerId>,
    unproven: Vec<LedgerId>,
    is_listed: bool,
    may_mark: bool,
    accepted: Option<LedgerId>,
}

impl GarbageRound {
    /// Begins a round over the ledgers `here`, ascending; `expected` is the highest ledger that metadata was seen to know, as
    /// far as that is remembered. `is_waived`: an operator waived the checks (invariant 6).
    ///
    /// # Panics
    /// When `here` does not ascend.
    pub fn begin(
        here: Vec<LedgerId>,
        expected: Option<LedgerId>,
        limits: GarbageLimits,
        is_waived: bool,
        canaries: Canaries,
    ) -> GarbageRound {
        assert!(here.is_sorted_by(|a, b| a < b), "the ledgers here ascend");
        GarbageRound {
            here,
            expected,
            marked: None,
            needs_mark: false,
            limits,
            is_waived,
            canaries,
            found_before: Vec::new(),
            released: Vec::new(),
            passed: 0,
            listed: None,
            listed_here: None,
            candidates: Vec::new(),
            unproven: Vec::new(),
            is_listed: false,
            may_mark: false,
            accepted: None,
        }
    }

    /// This round comes right after one that ended with [`Listed::Unconfirmed`], and may say the same.
    #[must_use]
    pub fn confirms(mut self, found_before: Vec<LedgerId>) -> GarbageRound {
        self.found_before = found_before;
        self
    }

    /// The highest ledger that the store knew when it got the mark that this bookie left there last: with that mark it is
    /// from after that, so that what it lacks up to there was deleted.
    #[must_use]
    pub fn known_at_mark(mut self, known: Option<LedgerId>) -> GarbageRound {
        self.marked = known;
        self
    }

    /// All that is remembered of the store is that it had a mark: without one it is behind.
    #[must_use]
    pub fn needs_mark(mut self, needs_mark: bool) -> GarbageRound {
        self.needs_mark = needs_mark;
        self
    }

    /// These, ascending, were found unproven for long enough (invariant 5).
    #[must_use]
    pub fn release(mut self, unproven: Vec<LedgerId>) -> GarbageRound {
        self.released = unproven;
        self
    }

    /// True when metadata of cluster `found` may speak about data of cluster `ours`; both empty for one without id.
    pub fn check_cluster(found: &str, ours: &str) -> Result<(), Doubt> {
        if found == ours {
            return Ok(());
        }
        Err(Doubt::OtherCluster { found: found.to_owned(), ours: ours.to_owned() })
    }

    /// The next range of the listing, ascending and above all before.
    pub fn on_range(&mut self, ids: &[LedgerId]) -> Result<(), Doubt> {
        for id in ids {
            if self.listed.is_some_and(|listed| listed >= *id) {
                return Err(Doubt::OutOfOrder(*id));
            }
            self.listed = Some(*id);
            while let Some(here) = self.here.get(self.passed).filter(|here| *here <= id) {
                if here == id {
                    self.listed_here = Some(*id);
                } else {
                    self.candidates.push(*here);
                }
                self.passed += 1;
            }
        }
        Ok(())
    }

    /// The listing has ended, without any error. True when only [`Evidence`] can show that the store is current, which is
    /// what [`GarbageRound::on_listed`] is told then.
    pub fn needs_evidence(&mut self) -> bool {
        self.end_listing();
        let is_any_above = self.candidates.last().copied() > self.listed;
        let is_doubtful = !self.candidates.is_empty()
            && (self.is_behind() || is_any_above || (self.is_large() && !self.is_waived));
        is_doubtful || self.needs_mark
    }

    /// The listing alone does not reach as far as is expected.
    fn is_behind(&self) -> bool {
        self.needs_mark || self.listed.is_none() || self.listed < self.expected
    }

    fn end_listing(&mut self) {
        self.candidates.extend(&self.here[self.passed..]);
        self.passed = self.here.len();
        self.is_listed = true;
    }

    /// One listing does not suffice to drop so many.
    fn is_large(&self) -> bool {
        let (dropped, here) = (self.candidates.len(), self.here.len());
        dropped > self.limits.always && dropped as f64 > self.limits.share_max * here as f64
    }

    /// The listing ended, without any error; `evidence` was read after it.
    pub fn on_listed(&mut self, evidence: Evidence) -> Result<Listed, Doubt> {
        self.end_listing();
        if self.candidates.is_empty() || self.believes_all() {
            let is_known = self.needs_mark && self.listed.is_some() && evidence.is_known(self.canaries);
            self.may_mark = !self.here.is_empty() && (is_known || !self.is_behind());
            return Ok(Listed::Believed);
        }
        let here = self.here.len();
        let counted = evidence.counted(self.canaries);
        let is_known = evidence.is_known(self.canaries);
        let marked = self.marked.filter(|_| is_known);
        let is_current = is_known && counted.max(marked) >= self.expected;
        self.may_mark = is_current || !self.is_behind();
        if self.listed.is_none() && !is_current {
            return Err(Doubt::Empty { here });
        }
        let proven = self.listed.max(counted).max(marked);
        if self.needs_mark && !is_known {
            if !self.is_waived {
                return Err(Doubt::MarkGone);
            }
            self.accepted = proven;
        }
        if let (Some(listed), Some(expected)) = (proven, self.expected)
            && listed < expected
        {
            if !self.is_waived {
                return Err(Doubt::Behind { listed, expected });
            }
            self.accepted = Some(listed);
        }
        let last = self.set_unproven_aside(proven, is_known);
        if self.candidates.is_empty() {
            return Ok(Listed::Believed);
        }
        if self.is_waived || !self.is_large() {
            return Ok(Listed::Believed);
        }
        // That ids were listed in between says nothing of a large share.
        if !is_current || counted.max(marked) < last {
            return Err(Doubt::TooMany { dropped: self.candidates.len(), here });
        }
        // What is not here any more says nothing.
        let is_here = |ledger: &&LedgerId| self.here.binary_search(ledger).is_ok();
        let is_found = |ledger: &LedgerId| self.candidates.binary_search(ledger).is_ok();
        let agrees = !self.found_before.is_empty() && self.found_before.iter().filter(is_here).all(is_found);
        if !agrees {
            return Ok(Listed::Unconfirmed(self.candidates.clone()));
        }
        // The others have been missing in one listing only.
        self.candidates.retain(|ledger| self.found_before.binary_search(ledger).is_ok());
        Ok(Listed::Believed)
    }

    /// Invariant 5. Returns the last candidate that is not unproven.
    fn set_unproven_aside(&mut self, proven: Option<LedgerId>, is_known: bool) -> Option<LedgerId> {
        let first = self.candidates.partition_point(|ledger| Some(*ledger) <= proven);
        self.unproven = self.candidates.split_off(first);
        let last = self.candidates.last().copied();
        if self.is_waived {
            self.candidates.append(&mut self.unproven.clone());
        } else if is_known {
            let is_released = |ledger: &&LedgerId| self.released.binary_search(ledger).is_ok();
            self.candidates.extend(self.unproven.iter().filter(is_released));
        }
        last
    }

    /// The ledgers that are unproven, ascending, those that go for it included.
    pub fn unproven(&self) -> &[LedgerId] {
        &self.unproven
    }

    /// The highest of the ledgers here that the store lists.
    pub fn listed_here(&self) -> Option<LedgerId> {
        self.listed_here
    }

    /// True when the store that answered may get a new mark of this bookie once the round has gone through: it is not empty and
    /// not behind, and what it lacks is no large share unless an operator says so; or it proved to be current. A bookie
    /// without ledgers cannot tell.
    pub fn may_mark(&self) -> bool {
        self.may_mark
    }

    /// What a waiver accepted: no more than this is expected of the store from now on, which is to be kept before anything is
    /// dropped.
    pub fn accepted(&self) -> Option<LedgerId> {
        self.accepted
    }

    /// The next ledger whose metadata is to be read again; `None` at the end.
    ///
    /// # Panics
    /// Before `on_listed`.
    pub fn next_candidate(&mut self) -> Option<LedgerId> {
        assert!(self.is_listed, "a candidate is one only when the listing has ended");
        self.candidates.pop()
    }

    /// The ledger that [`next_candidate`](Self::next_candidate) returns next.
    pub fn peek_candidate(&self) -> Option<LedgerId> {
        self.candidates.last().copied()
    }

    /// Candidates left.
    pub fn candidates(&self) -> usize {
        self.candidates.len()
    }

    /// True when the ledger is to be dropped.
    pub fn is_garbage(&self, look: &SecondLook) -> bool {
        *look == SecondLook::Absent || self.believes_all()
    }

    /// Planted bugs, of the bookie and of the tierer.
    fn believes_all(&self) -> bool {
        self.canaries.has(Canary::M21ListingBelieved) || self.canaries.has(Canary::T17ListingBelieved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn ids(raw: &[i64]) -> Vec<LedgerId> {
        raw.iter().filter_map(|id| LedgerId::new(*id)).collect()
    }

    fn round(here: &[i64], seen: i64) -> GarbageRound {
        let limits = GarbageLimits::default();
        GarbageRound::begin(ids(here), LedgerId::new(seen), limits, false, Canaries::none())
    }

    /// Of a store that is ours, and gives out this id next.
    fn ours(next_id: i64) -> Evidence {
        Evidence { is_member: true, has_mark: true, next_id: LedgerId::new(next_id) }
    }

    fn rest(mut round: GarbageRound) -> Vec<i64> {
        let mut found: Vec<i64> = std::iter::from_fn(|| round.next_candidate()).map(|id| id.get()).collect();
        found.sort_unstable();
        found
    }

    proptest! {
        /// Invariant 1: candidates are exactly what is here and not listed, however the listing is cut into ranges;
        /// ledger 0 (BookKeeper #4544) and the tail behind the last listed id included.
        #[test]
        fn candidates_are_what_is_here_and_not_listed(
            here in prop::collection::btree_set(0..60i64, 0..30),
            listed in prop::collection::btree_set(0..60i64, 1..60),
            cut in 1..10usize,
        ) {
            let here: Vec<i64> = here.into_iter().collect();
            let limits = GarbageLimits { share_max: 1.0, always: 0 };
            let mut round =
                GarbageRound::begin(ids(&here), LedgerId::new(0), limits, false, Canaries::none());
            for range in listed.iter().copied().collect::<Vec<_>>().chunks(cut) {
                round.on_range(&ids(range)).unwrap();
            }
            // It has given out all of these ids.
            round.on_listed(ours(60)).unwrap();
            let here: BTreeSet<i64> = here.into_iter().collect();
            prop_assert_eq!(rest(round), here.difference(&listed).copied().collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_empty_listing_is_believed_only_of_a_store_that_proves_to_be_current() {
        for is_waived in [false, true] {
            let outcome = |evidence| {
                let (limits, seen) = (GarbageLimits::default(), LedgerId::new(7));
                let mut round = GarbageRound::begin(ids(&[1, 2]), seen, limits, is_waived, Canaries::none());
                assert!(round.needs_evidence());
                let outcome = round.on_listed(evidence);
                outcome.map(|listed| (listed, round.may_mark(), rest(round)))
            };
            let far = ours(1 << 40);
            // A wiped store, one from before ledger 7, which it knew, and copies that somebody draws ids from.
            let wrong = [
                Evidence { next_id: None, ..far },
                Evidence { is_member: false, ..far },
                Evidence { has_mark: false, ..far },
                ours(0),
                ours(7),
            ];
            for evidence in wrong {
                assert_eq!(outcome(evidence), Err(Doubt::Empty { here: 2 }), "{evidence:?}");
            }
            assert_eq!(outcome(ours(8)), Ok((Listed::Believed, true, vec![1, 2])));
        }
        let mut nothing = round(&[], 5);
        assert!(!nothing.needs_evidence());
        assert_eq!(
            nothing.on_listed(Evidence::default()),
            Ok(Listed::Believed),
            "there is nothing to be wrong about"
        );
        assert!(!nothing.may_mark());
    }

    #[test]
    fn a_large_share_goes_when_a_current_store_says_so_twice() {
        let here: Vec<i64> = (0..52).collect();
        let round = |here: &[i64], listed: &[i64], before: &[i64], new_id: i64| {
            let mut round = round(here, 51).confirms(ids(before));
            round.on_range(&ids(listed)).unwrap();
            assert!(round.needs_evidence());
            let outcome = round.on_listed(ours(new_id));
            outcome.map(|listed| (listed, rest(round)))
        };
        let deleted: Vec<i64> = (0..51).collect();
        let unconfirmed = |found: &[i64]| Ok((Listed::Unconfirmed(ids(found)), found.to_vec()));
        assert_eq!(round(&here, &[51], &[], 52), unconfirmed(&deleted));
        assert_eq!(round(&here, &[51], &deleted, 53), Ok((Listed::Believed, deleted.clone())));
        assert_eq!(round(&here, &[51], &deleted, 51), Err(Doubt::TooMany { dropped: 51, here: 52 }));
        // All of them, by an empty listing.
        assert_eq!(round(&here, &[], &here, 53), Ok((Listed::Believed, here.clone())));
        // One of those that were gone is there again: the two do not agree.
        assert_eq!(round(&here, &[4, 51], &deleted, 53), unconfirmed(&[&here[..4], &here[5..51]].concat()));
        // What went meanwhile says nothing, and what is found gone only now waits for another round.
        assert_eq!(round(&here[3..], &[], &deleted, 53), Ok((Listed::Believed, deleted[3..].to_vec())));
    }

    #[test]
    fn a_listing_that_knows_less_than_this_bookie_is_not_believed() {
        let behind = |evidence| {
            let mut round = round(&[1, 7], 9);
            round.on_range(&ids(&[0, 1, 8])).unwrap();
            assert!(round.needs_evidence());
            let outcome = round.on_listed(evidence);
            assert_eq!(round.may_mark(), outcome.is_ok());
            outcome
        };
        let doubt = |listed| {
            Err(Doubt::Behind { listed: LedgerId::new(listed).unwrap(), expected: LedgerId::new(9).unwrap() })
        };
        assert_eq!(behind(Evidence::default()), doubt(8));
        assert_eq!(behind(ours(3)), doubt(8));
        // It gives out 9 only now: a copy from before ledger 9, which was here, does the same.
        assert_eq!(behind(ours(9)), doubt(8));
        // An import gives out ids above all others, whatever it lacks.
        assert_eq!(behind(Evidence { has_mark: false, ..ours(1 << 32) }), doubt(8));
        assert_eq!(behind(ours(10)), Ok(Listed::Believed));
        let mut round = round(&[1, 7], 9);
        round.on_range(&ids(&[1, 9])).unwrap();
        assert!(!round.needs_evidence());
        assert_eq!(round.on_listed(Evidence::default()), Ok(Listed::Believed));
        assert!(round.may_mark());
        assert_eq!(rest(round), [7]);
    }

    #[test]
    fn only_a_store_that_knows_as_much_as_this_bookie_gets_its_mark() {
        let may_mark = |here: &[i64], listed: &[i64]| {
            let mut round = round(here, 9);
            round.on_range(&ids(listed)).unwrap();
            assert_eq!(round.on_listed(Evidence::default()), Ok(Listed::Believed));
            round.may_mark()
        };
        assert!(may_mark(&[1, 2], &[1, 2, 9]));
        assert!(!may_mark(&[1, 2], &[1, 2, 8]), "nothing goes, but ledger 9 was here");
        assert!(!may_mark(&[], &[1, 2, 9]));
    }

    #[test]
    fn what_an_operator_accepted_is_all_that_is_expected_later() {
        let waived = |expected: i64, here: &[i64], listed: &[i64]| {
            let limits = GarbageLimits::default();
            let mut round =
                GarbageRound::begin(ids(here), LedgerId::new(expected), limits, true, Canaries::none());
            round.on_range(&ids(listed)).unwrap();
            round.on_listed(Evidence::default()).unwrap();
            (round.accepted().map(LedgerId::get), rest(round))
        };
        assert_eq!(waived(9, &[1, 2], &[1, 9]), (None, vec![2]), "there was nothing to accept");
        let far = 1 << 50;
        assert_eq!(waived(far, &[1, 2, far], &[1, 3]), (Some(3), vec![2, far]));
    }

    /// A made-up ledger, or one of another cluster, has any id: it stops nobody, and goes when it was unproven for long
    /// enough under our mark.
    #[test]
    fn ids_that_metadata_never_knew_stop_no_other_ledger() {
        let far = 1 << 62;
        let outcome = |here: &[i64], listed: &[i64], evidence: Evidence, released: &[i64]| {
            let limits = GarbageLimits::default();
            let known = LedgerId::new(9);
            let mut round = GarbageRound::begin(ids(here), known, limits, false, Canaries::none())
                .known_at_mark(known)
                .release(ids(released));
            round.on_range(&ids(listed)).unwrap();
            assert!(round.needs_evidence());
            round.on_listed(evidence)?;
            let unproven: Vec<i64> = round.unproven().iter().map(|ledger| ledger.get()).collect();
            Ok((round.may_mark(), unproven, rest(round)))
        };
        let here = [1, 2, 12, far];
        assert_eq!(outcome(&here, &[2, 9], ours(13), &[]), Ok((true, vec![far], vec![1, 12])));
        assert_eq!(outcome(&here, &[2, 9], ours(13), &[far]), Ok((true, vec![far], vec![1, 12, far])));
        // A copy from after the mark and before ledger 12: that may exist.
        assert_eq!(outcome(&here, &[2, 9], ours(12), &[]), Ok((true, vec![12, far], vec![1])));
        // It shows no mark of ours: nothing above its listing goes, however long it lacked that.
        let unknown = Evidence { has_mark: false, ..ours(13) };
        assert_eq!(outcome(&here, &[2, 9], unknown, &[12, far]), Ok((true, vec![12, far], vec![1])));
        // The highest that it knew is deleted, and ids are not counted: by the mark it is no older copy.
        let random_ids = Evidence { next_id: None, ..ours(0) };
        assert_eq!(outcome(&here, &[2, 5], random_ids, &[]), Ok((true, vec![12, far], vec![1])));
        assert_eq!(outcome(&[1, 9, far], &[], random_ids, &[]), Ok((true, vec![far], vec![1, 9])));
        let needs_mark = |evidence, is_waived| {
            let limits = GarbageLimits::default();
            let round = GarbageRound::begin(ids(&[1, 2, far]), None, limits, is_waived, Canaries::none());
            let mut round = round.needs_mark(true);
            round.on_range(&ids(&[2])).unwrap();
            assert!(round.needs_evidence());
            let outcome = round.on_listed(evidence);
            outcome.map(|_| (round.accepted().map(LedgerId::get), rest(round)))
        };
        assert_eq!(needs_mark(unknown, false), Err(Doubt::MarkGone));
        assert_eq!(needs_mark(unknown, true), Ok((Some(2), vec![1, far])));
        assert_eq!(needs_mark(random_ids, false), Ok((None, vec![1])));
        // However many were made up.
        let many: Vec<i64> = (0..50).map(|id| far + id).collect();
        let round = GarbageRound::begin(
            ids(&many),
            LedgerId::new(9),
            GarbageLimits::default(),
            false,
            Canaries::none(),
        );
        let mut round = round.known_at_mark(LedgerId::new(9)).release(ids(&many)).confirms(ids(&many));
        assert_eq!(round.on_listed(random_ids), Ok(Listed::Believed));
        assert_eq!(rest(round), many);
        // An older copy still is one.
        let behind = Doubt::Behind { listed: LedgerId::new(5).unwrap(), expected: LedgerId::new(9).unwrap() };
        assert_eq!(outcome(&here, &[2, 5], unknown, &[far]), Err(behind));
        assert_eq!(outcome(&here, &[], unknown, &[far]), Err(Doubt::Empty { here: 4 }));
    }

    #[test]
    fn a_round_that_would_drop_too_much_without_proof_is_stopped_unless_an_operator_says_so() {
        let here: Vec<i64> = (0..30).collect();
        let outcome = |listed: &[i64], is_waived| {
            let limits = GarbageLimits::default();
            let mut round =
                GarbageRound::begin(ids(&here), LedgerId::new(29), limits, is_waived, Canaries::none());
            round.on_range(&ids(listed)).unwrap();
            round.on_listed(Evidence::default())
        };
        assert_eq!(outcome(&(15..30).collect::<Vec<_>>(), false), Ok(Listed::Believed));
        let listed: Vec<i64> = (16..30).collect();
        assert_eq!(outcome(&listed, false), Err(Doubt::TooMany { dropped: 16, here: 30 }));
        assert_eq!(outcome(&listed, true), Ok(Listed::Believed));
        let mut few = round(&[1, 2, 3], 3);
        few.on_range(&ids(&[5])).unwrap();
        assert_eq!(few.on_listed(Evidence::default()), Ok(Listed::Believed), "all of a few");
    }

    #[test]
    fn disorder_and_another_cluster_are_doubts() {
        let mut round = round(&[1], 1);
        round.on_range(&ids(&[3])).unwrap();
        assert_eq!(round.on_range(&ids(&[3])), Err(Doubt::OutOfOrder(LedgerId::new(3).unwrap())));
        assert!(GarbageRound::check_cluster("a", "a").is_ok());
        assert!(GarbageRound::check_cluster("", "").is_ok());
        for (found, ours) in [("a", "b"), ("", "b"), ("a", "")] {
            assert!(GarbageRound::check_cluster(found, ours).is_err(), "{found} {ours}");
        }
    }

    #[test]
    fn only_an_absence_is_garbage() {
        let round = round(&[1], 1);
        assert!(round.is_garbage(&SecondLook::Absent));
        assert!(!round.is_garbage(&SecondLook::Present));
    }
}
