//! Which of the live tierers a ledger, an object or the upkeep belongs to: rendezvous hashing over their names.
//!
//! # Invariants
//! 1. Tierers that know the same members agree on every owner: the hash depends on names and keys alone, not on their order, the build or
//!    the machine. It must not change between versions that run side by side; if it does, both do the same work, which is harmless (T11).
//! 2. A tierer always owns its part of the ledgers: one whose registration is lost goes on with what it has, and one that is unable tries its
//!    part, so that it notices when it works again.
//! 3. A member that comes takes keys over from all others alike, and no key moves between those others. A member that goes, or becomes unable, leaves
//!    its keys to all others alike.
//! 4. If all are unable, it is not for their own sake, and none has less to do than before: all of them count. The upkeep goes to one that is
//!    unable, and can do the upkeep, before it goes to one that cannot.
//!
//! # Limits     members in a decision: all of them, one multiplication or two each

use std::collections::{BTreeMap, BTreeSet};

use bindery_tiering::ObjectId;
use bindery_types::LedgerId;

/// The key of what only one tierer does for all.
const UPKEEP: u64 = 0x7570_6b65_6570_0001;

/// A live tierer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// It cannot do its work.
    pub is_unable: bool,
    /// It cannot do its part of the upkeep.
    pub is_without_upkeep: bool,
}

impl Member {
    /// One that can do everything.
    pub fn able(name: impl Into<String>) -> Member {
        Member { name: name.into(), is_unable: false, is_without_upkeep: false }
    }
}

/// The tierers that share the work, as one of them sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Team {
    own: u64,
    /// Names by their hashes.
    names: BTreeMap<u64, String>,
    /// Hashes of those that move ledgers, this tierer included, and of those that do the upkeep.
    movers: BTreeSet<u64>,
    keepers: BTreeSet<u64>,
}

impl Team {
    /// The team of the tierer `own`, in which these live; `own` need not be among them. Names have to differ; equal ones are one member.
    pub fn new(own: &str, members: impl IntoIterator<Item = Member>) -> Team {
        let mut members: Vec<Member> = members.into_iter().collect();
        if !members.iter().any(|member| member.name == own) {
            members.push(Member::able(own));
        }
        // The first of these that somebody is.
        let first = |of_kind: &[fn(&Member) -> bool]| -> BTreeSet<u64> {
            let hashes = |is_it: &fn(&Member) -> bool| -> BTreeSet<u64> {
                members.iter().filter(|of| is_it(of)).map(|of| hash(of.name.as_bytes())).collect()
            };
            of_kind.iter().map(hashes).find(|those| !those.is_empty()).unwrap_or_default()
        };
        let mut movers = first(&[|of| !of.is_unable, |_| true]);
        let keepers =
            first(&[|of| !of.is_unable && !of.is_without_upkeep, |of| !of.is_without_upkeep, |_| true]);
        let own = hash(own.as_bytes());
        movers.insert(own);
        let names = members.into_iter().map(|of| (hash(of.name.as_bytes()), of.name)).collect();
        Team { own, names, movers, keepers }
    }

    /// A team of one, who owns everything.
    pub fn alone() -> Team {
        Team::new("", [])
    }

    /// This team with the members of another one.
    pub(super) fn with(mut self, other: &Team) -> Team {
        self.names.extend(other.names.iter().map(|(hash, name)| (*hash, name.clone())));
        self.movers.extend(&other.movers);
        self.keepers.extend(&other.keepers);
        self
    }

    /// This tierer's name.
    pub fn name(&self) -> &str {
        &self.names[&self.own]
    }

    /// How many live, those that are unable included.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// Whether this tierer moves the ledger.
    pub fn owns_ledger(&self, ledger: LedgerId) -> bool {
        owner(&self.movers, ledger.get() as u64) == Some(self.own)
    }

    /// The name of the tierer that moves the ledger.
    pub fn owner(&self, ledger: LedgerId) -> &str {
        let owner = owner(&self.movers, ledger.get() as u64);
        owner.and_then(|owner| self.names.get(&owner)).map_or("", String::as_str)
    }

    /// Whether this tierer rewrites the object.
    pub fn owns_object(&self, object: &ObjectId) -> bool {
        owner(&self.keepers, hash(object.to_string().as_bytes())) == Some(self.own)
    }

    /// Whether this tierer removes ledgers and deletes objects.
    pub fn owns_upkeep(&self) -> bool {
        owner(&self.keepers, UPKEEP) == Some(self.own)
    }

    /// Everybody that moves ledgers in `other` does here, too, so no ledger comes from others.
    pub fn includes(&self, other: &Team) -> bool {
        other.movers.is_subset(&self.movers)
    }
}

/// The member with the largest weight.
fn owner(members: &BTreeSet<u64>, key: u64) -> Option<u64> {
    members.iter().copied().max_by_key(|member| (weight(*member, key), *member))
}

/// What decides between the members, for this key.
fn weight(member: u64, key: u64) -> u64 {
    mix(member ^ mix(key))
}

/// The finalizer of SplitMix64: every bit of the input changes every bit of the output with a probability of about one half.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// FNV-1a, mixed.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 5] =
        ["0a1b2c3d4e5f6071", "0a1b2c3d4e5f6072", "f000000000000000", "0000000000000001", "7777777777777777"];

    fn teams(members: &[&'static str]) -> Vec<Team> {
        members.iter().map(|own| Team::new(own, members.iter().copied().map(Member::able))).collect()
    }

    /// The place of the member that owns it. Exactly one does.
    fn owner(teams: &[Team], ledger: i64) -> usize {
        let ledger = LedgerId::new(ledger).unwrap();
        let owners: Vec<usize> = (0..teams.len()).filter(|of| teams[*of].owns_ledger(ledger)).collect();
        assert_eq!(owners.len(), 1, "{ledger}: {owners:?}");
        owners[0]
    }

    /// Ids that follow each other, and such as are far apart: each member gets its part within a twentieth.
    #[test]
    fn each_has_one_owner_and_parts_are_equal() {
        const LEDGERS: i64 = 100_000;
        for count in 1..=NAMES.len() {
            let teams = teams(&NAMES[..count]);
            for stride in [1, 1 << 20] {
                let mut parts = vec![0; count];
                (0..LEDGERS).for_each(|id| parts[owner(&teams, id * stride)] += 1);
                let fair = LEDGERS / count as i64;
                assert!(parts.iter().all(|part| (part - fair).abs() <= fair / 20), "{count}: {parts:?}");
            }
            assert_eq!(teams.iter().filter(|team| team.owns_upkeep()).count(), 1);
            let object = ObjectId::new(7, [3; 10]);
            assert_eq!(teams.iter().filter(|team| team.owns_object(&object)).count(), 1);
        }
    }

    /// Invariant 3.
    #[test]
    fn only_keys_of_who_comes_or_goes_move() {
        let (before, after) = (teams(&NAMES[..3]), teams(&NAMES[..4]));
        let (mut moved, count) = (0, 20_000);
        for id in 0..count {
            let (was, is) = (owner(&before, id), owner(&after, id));
            assert!(is == was || is == 3, "ledger {id} moved from {was} to {is}");
            moved += i64::from(is == 3);
        }
        assert!((moved - count / 4).abs() < count / 80, "{moved} of {count}");
        assert!(after[0].includes(&before[1]) && !before[0].includes(&after[1]));
    }

    /// Invariants 1 and 2. The owners are written down: another hash would make two versions do the same work.
    #[test]
    fn owners_depend_on_names_alone() {
        let reversed = Team::new(NAMES[0], NAMES.iter().rev().copied().map(Member::able));
        assert_eq!(reversed, Team::new(NAMES[0], NAMES.map(Member::able)));
        let unlisted = Team::new(NAMES[0], [Member::able(NAMES[1])]);
        assert_eq!(unlisted.count(), 2, "the own name counts without being listed");
        let owners: Vec<usize> = (0..12).map(|id| owner(&teams(&NAMES), id)).collect();
        assert_eq!(owners, [1, 4, 2, 1, 1, 2, 3, 0, 3, 3, 2, 2]);
        let alone = Team::alone();
        assert!(alone.owns_upkeep() && (0..100).all(|id| alone.owns_ledger(LedgerId::new(id).unwrap())));
    }

    /// Each of three as the others see it when those at these places are unable, or without upkeep.
    fn partly(unable: &[usize], without_upkeep: &[usize]) -> Vec<Team> {
        let member = |of: usize| Member {
            is_unable: unable.contains(&of),
            is_without_upkeep: without_upkeep.contains(&of),
            ..Member::able(NAMES[of])
        };
        NAMES[..3].iter().map(|own| Team::new(own, (0..3).map(member))).collect()
    }

    /// Invariants 2 to 4.
    #[test]
    fn others_do_what_one_is_unable_to_do() {
        let (before, after) = (teams(&NAMES[..3]), partly(&[1], &[]));
        let ledgers = || (0..1000).filter_map(LedgerId::new);
        for ledger in ledgers() {
            let owners: Vec<usize> = (0..3).filter(|of| after[*of].owns_ledger(ledger)).collect();
            match before[1].owns_ledger(ledger) {
                true => assert!(
                    owners.len() == 2 && owners.contains(&1),
                    "it tries, and another one does it: {owners:?}"
                ),
                false => assert_eq!(owners, [owner(&before, ledger.get())]),
            }
        }
        assert_eq!(partly(&[0, 1, 2], &[])[0].movers, before[0].movers, "all of them");
        assert!(before[0].includes(&after[0]) && !after[0].includes(&before[0]));
        assert_eq!((after[0].count(), after[0].name()), (3, NAMES[0]));
        let first = LedgerId::new(0).unwrap();
        assert!(before.iter().all(|team| team.owner(first) == NAMES[owner(&before, 0)]));
    }

    /// Nobody does upkeep that he is unable to do, and somebody does it.
    #[test]
    fn the_upkeep_goes_to_one_that_can_do_it() {
        let keeper =
            |teams: &[Team]| -> Vec<usize> { (0..3).filter(|of| teams[*of].owns_upkeep()).collect() };
        let all = keeper(&partly(&[], &[]));
        assert_eq!(all.len(), 1);
        for teams in [partly(&all, &[]), partly(&[], &all)] {
            let next = keeper(&teams);
            assert!(next.len() == 1 && next != all, "{next:?}");
            let of_objects = (0..100).map(|n| ObjectId::new(7, [n; 10]));
            assert!(of_objects.into_iter().all(|object| !teams[all[0]].owns_object(&object)));
        }
        assert_eq!(keeper(&partly(&[], &[0, 1, 2])), all);
        assert_eq!(keeper(&partly(&[0], &[1, 2])), [0], "it cannot move ledgers, and can do the upkeep");
        assert_eq!(keeper(&partly(&[0], &[0, 1, 2])), all, "nobody can: all count");
    }
}
