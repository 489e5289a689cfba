//! A run of entries of one segment on its way: what to ask whom next, and what has come.
//!
//! # Data flow
//! ```text
//! plan --> groups of entries with the same replicas left --> the shell sends them --> took, is_late
//!                        settle --> all here | as far as the room goes | an entry that nobody has
//! ```
//! Of a striped ledger (write quorum below the ensemble) the entries at one position in the turn of the ensemble have the
//! same replicas: they are one group, so a window is read from all bookies at a time, and put together here. The entries of a group
//! follow one another, or the stride of the ensemble, so that one request can name them. A window may be for the entries of one
//! position of the ensemble alone: it passes over the others.
//!
//! # Invariants
//! 1. Each replica gets one request for an entry at most, and another one after it said "too many requests", up to
//!    [`REFUSALS_MAX`] times in a window.
//! 2. Copies are never changed; of two copies of an entry the first one counts.
//! 3. An entry is given up only when each of its replicas has answered.
//! 4. Groups that are under way at a time may bring no more than the room together: each has a share, by its entries.
//!
//! # Limits     replicas of an entry: [`REPLICAS_MAX`]

use bindery_types::{EntryId, Quorum};
use bytes::Bytes;

use crate::error::BookieAnswer;

/// Of a write set: a bit for each.
const REPLICAS_MAX: usize = 64;
/// Refusals in one window; beyond them one counts as a failure. With growing pauses that is some 20 s of a bookie.
const REFUSALS_MAX: u32 = 12;
/// Beside its bytes an entry takes so much.
pub(super) const ENTRY_OVERHEAD_BYTES: u64 = 64;

/// Bytes that one entry takes.
pub(super) fn charge_bytes(stored: &Bytes) -> u64 {
    stored.len() as u64 + ENTRY_OVERHEAD_BYTES
}

/// A copy that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) bytes: Bytes,
    pub(super) is_verified: bool,
}

/// Entries to ask one bookie for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// Indexes into the window, each [`Window::stride`] behind the one before.
    pub(super) indexes: Vec<usize>,
    /// Positions in the ensemble, each of which has not been asked.
    pub(super) candidates: Vec<usize>,
}

/// What one replica said of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    Copy(Copy),
    /// Too many requests.
    Refused(BookieAnswer),
    No(BookieAnswer),
}

/// Where a window stands.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Something is to be asked or under way.
    Open,
    /// So many entries can be taken: all, or as many as there is room for, or those before one that nobody has.
    Ready(usize),
    /// Nobody has the first one. Positions and what they said.
    Lost(Vec<(usize, BookieAnswer)>),
}

#[derive(Debug, Default)]
struct Wanted {
    copy: Option<Copy>,
    /// The window passes over it.
    is_passed: bool,
    /// A group waits for a turn or for its answer, and is not late.
    is_assigned: bool,
    /// Bits of replicas under way, late ones included.
    asked: u64,
    /// Bits of replicas that answered without it.
    tried: u64,
    answers: Vec<(usize, BookieAnswer)>,
}

impl Wanted {
    fn is_settled(&self) -> bool {
        self.copy.is_some() || self.is_passed
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Window {
    first: i64,
    quorum: Quorum,
    wanted: Vec<Wanted>,
    /// The first entry without a copy.
    begun: usize,
    room_bytes: u64,
    held_bytes: u64,
    refusals: u32,
}

impl Window {
    /// `count` entries from `first` on, of one segment, for which there are `room_bytes`; of these the ones that belong to `position` of
    /// the ensemble, or all.
    ///
    /// # Panics
    /// When the first entry does not belong there.
    pub(super) fn new(
        first: EntryId,
        count: usize,
        quorum: Quorum,
        position: Option<usize>,
        room_bytes: u64,
    ) -> Window {
        let wanted = (0..count).map(|_| Wanted::default()).collect();
        let first = first.get();
        let mut window = Window { first, quorum, wanted, begun: 0, room_bytes, held_bytes: 0, refusals: 0 };
        if let Some(position) = position {
            for index in 0..count {
                window.wanted[index].is_passed = !quorum.is_in_write_set(window.entry(index), position);
            }
        }
        assert!(!window.wanted[0].is_passed, "a window begins with an entry that is asked for");
        window
    }

    /// Moves to the first entry that is wanted and has no copy.
    fn go_on(&mut self) {
        while self.wanted.get(self.begun).is_some_and(Wanted::is_settled) {
            self.begun += 1;
        }
    }

    pub(super) fn entry(&self, index: usize) -> EntryId {
        let id = i64::try_from(index).ok().and_then(|index| self.first.checked_add(index));
        id.and_then(EntryId::new).expect("a window ends at the last entry there can be")
    }

    fn is_whole(&self) -> bool {
        self.quorum.ensemble_size() == self.quorum.write_quorum_size()
    }

    /// From one entry of a group to the next.
    pub(super) fn stride(&self) -> usize {
        if self.is_whole() { 1 } else { self.quorum.ensemble_size() }
    }

    /// Entries with the same replicas have the same one: the position of the first of them.
    fn class(&self, index: usize) -> usize {
        match self.is_whole() {
            true => 0,
            false => self.quorum.write_set(self.entry(index)).next().expect("a write set has a replica"),
        }
    }

    fn replicas(&self) -> usize {
        self.quorum.write_quorum_size().min(REPLICAS_MAX)
    }

    fn position(&self, class: usize, replica: usize) -> usize {
        (class + replica) % self.quorum.ensemble_size()
    }

    fn bit(&self, index: usize, position: usize) -> u64 {
        let ensemble_size = self.quorum.ensemble_size();
        1 << ((position + ensemble_size - self.class(index)) % ensemble_size)
    }

    /// Bits of the replicas that have not been asked.
    fn left(&self, index: usize) -> u64 {
        let wanted = &self.wanted[index];
        let all = u64::MAX >> (REPLICAS_MAX - self.replicas());
        all & !(wanted.asked | wanted.tried)
    }

    fn is_lost(&self, index: usize) -> bool {
        let wanted = &self.wanted[index];
        // Invariant 3.
        !wanted.is_settled() && !wanted.is_assigned && wanted.asked == 0 && self.left(index) == 0
    }

    /// Bytes that can still come.
    pub(super) fn room_bytes(&self) -> u64 {
        self.room_bytes.saturating_sub(self.held_bytes)
    }

    /// Of these the share that belongs to the entries of one group (invariant 4).
    pub(super) fn share_bytes(&self, indexes: &[usize]) -> u64 {
        let missing = self.wanted[self.begun..].iter().filter(|wanted| !wanted.is_settled()).count();
        let (share, all) = (indexes.len() as u128, missing.max(indexes.len()).max(1) as u128);
        u64::try_from(u128::from(self.room_bytes()) * share / all).expect("no more than the room")
    }

    /// Groups to send now. Each is assigned until it is [late](Self::is_late) or answered.
    pub(super) fn plan(&mut self) -> Vec<Group> {
        let end = match self.room_bytes() {
            // No more than must be: the first one.
            0 => self.wanted.len().min(self.begun + 1),
            _ => self.wanted.len(),
        };
        // A group for each class and set of replicas left, and each run of entries without a gap in it.
        let mut groups: Vec<(usize, u64, Group)> = Vec::new();
        let stride = self.stride();
        for index in self.begun..end {
            let wanted = &self.wanted[index];
            if wanted.is_settled() || wanted.is_assigned {
                continue;
            }
            if self.is_lost(index) {
                // The window ends before it.
                break;
            }
            let (class, left) = (self.class(index), self.left(index));
            if left == 0 {
                continue;
            }
            self.wanted[index].is_assigned = true;
            let known = groups.iter_mut().rev().find(|(known, set, group)| {
                let is_next = group.indexes.last().is_some_and(|last| last + stride == index);
                *known == class && *set == left && is_next
            });
            if let Some((_, _, group)) = known {
                group.indexes.push(index);
                continue;
            }
            let replicas = (0..self.replicas()).filter(|replica| left & 1 << replica != 0);
            let candidates = replicas.map(|replica| self.position(class, replica)).collect();
            groups.push((class, left, Group { indexes: vec![index], candidates }));
        }
        groups.into_iter().map(|(_, _, group)| group).collect()
    }

    /// A group was sent to this position.
    pub(super) fn sent(&mut self, indexes: &[usize], position: usize) {
        for index in indexes {
            let bit = self.bit(*index, position);
            self.wanted[*index].asked |= bit;
        }
    }

    /// A group takes long: others may be asked, and its answer still counts.
    pub(super) fn is_late(&mut self, indexes: &[usize]) {
        for index in indexes {
            self.wanted[*index].is_assigned = false;
        }
    }

    /// What came of a group: of its first entries, in order, and what holds for the others, if anything does.
    pub(super) fn took(
        &mut self,
        indexes: &[usize],
        position: usize,
        was_late: bool,
        said: Vec<Said>,
        of_others: Option<BookieAnswer>,
    ) {
        let said = said.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        let mut has_refused = false;
        for (index, said) in indexes.iter().zip(said) {
            let bit = self.bit(*index, position);
            let wanted = &mut self.wanted[*index];
            wanted.asked &= !bit;
            if !was_late {
                wanted.is_assigned = false;
            }
            let answer = match said {
                Some(Said::Copy(copy)) => {
                    // Invariant 2.
                    if wanted.copy.is_none() {
                        self.held_bytes += charge_bytes(&copy.bytes);
                        wanted.copy = Some(copy);
                    }
                    continue;
                }
                Some(Said::Refused(answer)) => {
                    has_refused = true;
                    match self.refusals < REFUSALS_MAX {
                        true => continue,
                        false => Some(answer),
                    }
                }
                Some(Said::No(answer)) => Some(answer),
                None => of_others.clone(),
            };
            if let Some(answer) = answer {
                wanted.tried |= bit;
                wanted.answers.push((position, answer));
            }
        }
        self.refusals += u32::from(has_refused);
        self.go_on();
        if self.begun == 0 && self.room_bytes() == 0 {
            // What stands behind a gap gives way to it.
            for wanted in &mut self.wanted {
                if let Some(copy) = wanted.copy.take() {
                    self.held_bytes -= charge_bytes(&copy.bytes);
                }
            }
        }
    }

    /// `is_under_way`: something that is not late was sent and has not been answered.
    pub(super) fn standing(&self, is_under_way: bool) -> Standing {
        if self.begun == self.wanted.len() {
            return Standing::Ready(self.begun);
        }
        let is_full = self.begun > 0 && self.room_bytes() == 0 && !is_under_way;
        if is_full || (self.is_lost(self.begun) && self.begun > 0) {
            return Standing::Ready(self.begun);
        }
        match self.is_lost(self.begun) {
            true => Standing::Lost(self.wanted[self.begun].answers.clone()),
            false => Standing::Open,
        }
    }

    /// Of the first `count` entries those that the window did not pass over.
    pub(super) fn into_copies(self, count: usize) -> impl Iterator<Item = (EntryId, Copy)> {
        assert!(count <= self.begun, "entries that came");
        let first = self.first;
        // Not a range that is open at its end: it would count on behind the last entry there can be.
        self.wanted.into_iter().take(count).enumerate().filter_map(move |(index, wanted)| {
            let id = EntryId::new(first + index as i64).expect("an entry of the window");
            Some((id, wanted.copy?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(entry: i64) -> EntryId {
        EntryId::new(entry).unwrap()
    }

    fn quorum(ensemble: usize, write: usize) -> Quorum {
        Quorum::new(ensemble, write, 1).unwrap()
    }

    fn copy(size: usize) -> Said {
        Said::Copy(Copy { bytes: vec![7; size].into(), is_verified: true })
    }

    fn absent() -> Said {
        Said::No(BookieAnswer::Absent)
    }

    #[test]
    fn a_whole_ensemble_is_asked_for_runs_and_a_striped_one_at_each_position() {
        let mut window = Window::new(at(10), 6, quorum(3, 3), None, 1 << 20);
        let all = Group { indexes: (0..6).collect(), candidates: vec![0, 1, 2] };
        assert_eq!(window.plan(), std::slice::from_ref(&all));
        assert_eq!(window.plan(), [], "assigned");
        window.sent(&all.indexes, 1);
        // A batch that ended early, behind one that is damaged.
        let damaged = Said::No(BookieAnswer::Damaged);
        window.took(&all.indexes, 1, false, vec![copy(1), copy(1), damaged, copy(1)], None);
        let [hole, rest] = [(vec![2], vec![0, 2]), (vec![4, 5], vec![0, 1, 2])];
        let groups = [hole, rest].map(|(indexes, candidates)| Group { indexes, candidates });
        assert_eq!(window.plan(), groups);

        // Entry 10 is at positions 1 and 2 of 3.
        let mut window = Window::new(at(10), 6, quorum(3, 2), None, 1 << 20);
        let groups = [(vec![0, 3], vec![1, 2]), (vec![1, 4], vec![2, 0]), (vec![2, 5], vec![0, 1])];
        assert_eq!(window.plan(), groups.map(|(indexes, candidates)| Group { indexes, candidates }));
        // One that is damaged ends a run there, too.
        let first = Group { indexes: vec![0, 3], candidates: vec![1, 2] };
        window.sent(&first.indexes, 1);
        window.took(&first.indexes, 1, false, vec![Said::No(BookieAnswer::Damaged), copy(1)], None);
        assert_eq!(window.plan(), [Group { indexes: vec![0], candidates: vec![2] }]);
        // Of one position: entries 1, 2, 4 and 5 of 3 bookies belong to position 2.
        let mut window = Window::new(at(1), 5, quorum(3, 2), Some(2), 1 << 20);
        let groups = [(vec![0, 3], vec![1, 2]), (vec![1, 4], vec![2, 0])];
        assert_eq!(window.plan(), groups.map(|(indexes, candidates)| Group { indexes, candidates }));
    }

    #[test]
    fn groups_under_way_share_the_room() {
        // Invariant 4.
        let mut window = Window::new(at(0), 10, quorum(3, 2), None, 1000 + 3 * (36 + ENTRY_OVERHEAD_BYTES));
        let groups = window.plan();
        let shares: Vec<u64> = groups.iter().map(|group| window.share_bytes(&group.indexes)).collect();
        assert_eq!(shares, [520, 390, 390], "by 4, 3 and 3 entries");
        let [first, second, _] = &groups[..] else { panic!("{groups:?}") };
        window.sent(&first.indexes, 0);
        window.took(&first.indexes, 0, false, vec![copy(36), copy(36), copy(36)], None);
        assert_eq!(window.share_bytes(&second.indexes), 1000 * 3 / 7, "what came is counted as it is");
        let mut whole = Window::new(at(0), 10, quorum(3, 3), None, u64::MAX);
        let groups = whole.plan();
        assert_eq!(whole.share_bytes(&groups[0].indexes), u64::MAX);
    }

    #[test]
    fn a_late_answer_counts_and_the_first_copy_stays() {
        // Invariants 1 and 2.
        let mut window = Window::new(at(0), 2, quorum(2, 2), None, 1 << 20);
        assert_eq!(window.plan().len(), 1);
        window.sent(&[0, 1], 0);
        window.is_late(&[0, 1]);
        assert_eq!(window.plan(), [Group { indexes: vec![0, 1], candidates: vec![1] }]);
        window.sent(&[0, 1], 1);
        window.took(&[0, 1], 0, true, vec![copy(5), absent()], None);
        assert_eq!(window.plan(), [], "the other one is still at it");
        assert_eq!(window.standing(true), Standing::Open, "invariant 3");
        window.took(&[0, 1], 1, false, vec![copy(6), copy(7)], None);
        assert_eq!(window.standing(false), Standing::Ready(2));
        let sizes: Vec<_> = window.into_copies(2).map(|(id, copy)| (id.get(), copy.bytes.len())).collect();
        assert_eq!(sizes, [(0, 5), (1, 7)]);
    }

    #[test]
    fn an_entry_that_nobody_has_ends_the_window_before_it() {
        let mut window = Window::new(at(0), 3, quorum(1, 1), None, 1 << 20);
        window.plan();
        window.sent(&[0, 1, 2], 0);
        window.took(&[0, 1, 2], 0, false, vec![copy(1), absent()], None);
        assert_eq!(window.plan(), [], "what comes behind it is not needed");
        assert_eq!(window.standing(false), Standing::Ready(1));
        let mut window = Window::new(at(1), 2, quorum(1, 1), None, 1 << 20);
        window.plan();
        window.sent(&[0, 1], 0);
        window.took(&[0, 1], 0, false, vec![absent()], None);
        assert_eq!(window.standing(false), Standing::Lost(vec![(0, BookieAnswer::Absent)]));
    }

    #[test]
    fn one_who_refuses_is_asked_again_but_not_for_ever() {
        // Invariant 1.
        let mut window = Window::new(at(0), 2, quorum(1, 1), None, 1 << 20);
        let mut asked = 0;
        while let [group] = &window.plan()[..] {
            window.sent(&group.indexes, 0);
            window.took(&group.indexes, 0, false, vec![Said::Refused(BookieAnswer::Answered)], None);
            asked += 1;
            if asked <= REFUSALS_MAX {
                assert_eq!(window.standing(false), Standing::Open);
            }
        }
        assert_eq!(asked, REFUSALS_MAX + 1);
        assert!(matches!(window.standing(false), Standing::Lost(_)));
    }

    #[test]
    fn what_does_not_fit_is_left_for_another_window() {
        let mut window = Window::new(at(0), 4, quorum(1, 1), None, 3 * (100 + ENTRY_OVERHEAD_BYTES));
        window.plan();
        window.sent(&[0, 1, 2, 3], 0);
        window.took(&[0, 1, 2, 3], 0, false, vec![copy(200), copy(200)], None);
        assert_eq!(window.standing(true), Standing::Open, "what is under way is held anyway");
        assert_eq!(window.standing(false), Standing::Ready(2));
        assert_eq!(window.plan(), [Group { indexes: vec![2], candidates: vec![0] }], "if it were to go on");
        // Striped: the first one is missing, and the room is used up by what is behind it.
        let mut window = Window::new(at(0), 4, quorum(2, 1), None, 100);
        window.plan();
        window.sent(&[1, 3], 1);
        window.took(&[1, 3], 1, false, vec![copy(200), copy(200)], None);
        assert_eq!((window.standing(false), window.room_bytes()), (Standing::Open, 100), "it was let go of");
    }

    proptest! {
        /// Whatever replicas say, in whatever order: a window ends; it gives a run of good copies from the first entry on; and
        /// one that is given up was denied by each of its replicas, which were asked once (invariants 1 to 3).
        #[test]
        fn every_window_ends_with_what_its_replicas_have(
            sizes in (1usize..6).prop_flat_map(|e| (Just(e), 1..=e)),
            (first, count) in (0i64..20, 1usize..12),
            room in prop_oneof![Just(u64::MAX), 1u64..2000],
            seed in prop::collection::vec(any::<u8>(), 200),
        ) {
            let (e, qw) = sizes;
            let quorum = quorum(e, qw);
            let mut dice = seed.into_iter().cycle();
            let mut has = |_: usize, _: i64| dice.next().unwrap();
            let mut window = Window::new(at(first), count, quorum, None, room);
            // (indexes, position, is late)
            let mut under_way: Vec<(Vec<usize>, usize, bool)> = Vec::new();
            let mut asked = std::collections::BTreeMap::new();
            for step in 0.. {
                prop_assert!(step < 10_000, "it ends");
                match window.standing(under_way.iter().any(|sent| !sent.2)) {
                    Standing::Open => {}
                    Standing::Ready(found) => {
                        prop_assert!(found >= 1 && found <= count);
                        let ids: Vec<i64> = window.into_copies(found).map(|(id, _)| id.get()).collect();
                        prop_assert_eq!(ids, (first..first + found as i64).collect::<Vec<_>>());
                        break;
                    }
                    Standing::Lost(answers) => {
                        let mut denied: Vec<usize> = answers.into_iter().map(|answer| answer.0).collect();
                        denied.sort_unstable();
                        let mut replicas: Vec<usize> = quorum.write_set(at(first)).collect();
                        replicas.sort_unstable();
                        prop_assert_eq!(denied, replicas, "invariant 3");
                        break;
                    }
                }
                for group in window.plan() {
                    let position = group.candidates[has(0, 0) as usize % group.candidates.len()];
                    for index in &group.indexes {
                        let entry = first + *index as i64;
                        prop_assert!(quorum.is_in_write_set(at(entry), position));
                        *asked.entry((entry, position)).or_insert(0) += 1;
                    }
                    window.sent(&group.indexes, position);
                    under_way.push((group.indexes, position, false));
                }
                if under_way.is_empty() {
                    continue;
                }
                let pick = has(0, 0) as usize % under_way.len();
                if !under_way[pick].2 && has(0, 0) < 60 {
                    under_way[pick].2 = true;
                    window.is_late(&under_way[pick].0);
                    continue;
                }
                let (indexes, position, was_late) = under_way.swap_remove(pick);
                let answered = 1 + has(0, 0) as usize % indexes.len();
                let of_others = (has(0, 0) < 60).then_some(BookieAnswer::Absent);
                // The rest of a batch that ended early may be sent again.
                for index in &indexes[answered..] {
                    if of_others.is_none() {
                        *asked.get_mut(&(first + *index as i64, position)).unwrap() -= 1;
                    }
                }
                let mut said = Vec::new();
                for index in &indexes[..answered] {
                    said.push(match has(0, 0) {
                        0..100 => copy(has(0, 0) as usize),
                        100..130 => {
                            *asked.get_mut(&(first + *index as i64, position)).unwrap() -= 1;
                            Said::Refused(BookieAnswer::Answered)
                        }
                        _ => absent(),
                    });
                }
                window.took(&indexes, position, was_late, said, of_others);
                if room == u64::MAX {
                    prop_assert!(asked.values().all(|times| *times <= 1), "invariant 1: {:?}", asked);
                }
            }
        }
    }
}
