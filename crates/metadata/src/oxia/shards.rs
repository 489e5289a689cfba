//! Which shard has a key, and which server leads it.

use bindery_oxia::keys;
use bindery_oxia::proto::shard_assignment::ShardBoundaries;
use bindery_oxia::proto::{NamespaceShardsAssignment, ShardAssignment};

/// Most shards that a namespace may have here: each costs a session and a stream.
pub(super) const SHARDS_MAX: usize = 1024;

/// A shard of the namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shard {
    pub id: i64,
    /// `host:port`.
    pub leader: String,
    /// The lowest and the highest hash that it has.
    min: u32,
    max: u32,
}

/// All shards of a namespace. Each hash is in one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shards(Vec<Shard>);

impl Shards {
    /// What a server says of a namespace; why it cannot be, otherwise. A shard without a leader is taken: it has one soon.
    pub(super) fn of(assigned: NamespaceShardsAssignment) -> Result<Shards, String> {
        let assignments = assigned.assignments;
        if assignments.len() > SHARDS_MAX {
            return Err(format!(
                "the namespace has {} shards, and {SHARDS_MAX} are the most",
                assignments.len()
            ));
        }
        let mut shards = Vec::with_capacity(assignments.len());
        for ShardAssignment { shard, leader, shard_boundaries } in assignments {
            let Some(ShardBoundaries::Int32HashRange(range)) = shard_boundaries else {
                return Err(format!("shard {shard} has no range of hashes"));
            };
            let (min, max) = (range.min_hash_inclusive, range.max_hash_inclusive);
            shards.push(Shard { id: shard, leader, min, max });
        }
        shards.sort_by_key(|shard| shard.min);
        // They follow one another from the lowest hash to the highest.
        let mut next = Some(0);
        for shard in &shards {
            if next != Some(shard.min) || shard.max < shard.min {
                return Err(format!("the shards leave hashes out or have them twice, at shard {}", shard.id));
            }
            next = shard.max.checked_add(1);
        }
        match next {
            None => Ok(Shards(shards)),
            Some(hash) => Err(format!("no shard has the hashes from {hash} on")),
        }
    }

    /// The shard of a key.
    pub(super) fn of_key(&self, key: &str) -> &Shard {
        let hash = keys::hash(key);
        let at = self.0.partition_point(|shard| shard.max < hash);
        &self.0[at]
    }

    /// The shard of this id.
    pub(super) fn get(&self, id: i64) -> Option<&Shard> {
        self.0.iter().find(|shard| shard.id == id)
    }

    /// The shard of this id, if it is that of all of these keys.
    pub(super) fn of_keys<'a>(&self, id: i64, mut keys: impl Iterator<Item = &'a str>) -> Option<&Shard> {
        self.get(id).filter(|_| keys.all(|key| self.of_key(key).id == id))
    }

    /// Their ids, by their ranges.
    pub(super) fn ids(&self) -> impl Iterator<Item = i64> + '_ {
        self.0.iter().map(|shard| shard.id)
    }

    /// Whether the same shards have the same ranges, whoever leads them.
    pub(super) fn are_those_of(&self, other: &Shards) -> bool {
        let ranges = |shards: &Shards| -> Vec<_> {
            shards.0.iter().map(|shard| (shard.id, shard.min, shard.max)).collect()
        };
        ranges(self) == ranges(other)
    }

    /// Whether a server leads any of them.
    pub(super) fn has_leader(&self, server: &str) -> bool {
        self.0.iter().any(|shard| shard.leader == server)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use bindery_oxia::proto::Int32HashRange;

    fn assigned(ranges: &[(i64, u32, u32)]) -> NamespaceShardsAssignment {
        let assignment = |(shard, min_hash_inclusive, max_hash_inclusive): &(i64, u32, u32)| {
            let range = Int32HashRange {
                min_hash_inclusive: *min_hash_inclusive,
                max_hash_inclusive: *max_hash_inclusive,
            };
            let shard_boundaries = Some(ShardBoundaries::Int32HashRange(range));
            ShardAssignment { shard: *shard, leader: format!("h{shard}:1"), shard_boundaries }
        };
        NamespaceShardsAssignment {
            assignments: ranges.iter().map(assignment).collect(),
            ..NamespaceShardsAssignment::default()
        }
    }

    #[test]
    fn every_hash_has_one_shard_whatever_their_order() {
        let half = u32::MAX / 2;
        let shards = Shards::of(assigned(&[(7, half + 1, u32::MAX), (3, 0, 99), (4, 100, half)])).unwrap();
        assert_eq!(shards.ids().collect::<Vec<_>>(), [3, 4, 7]);
        for number in 0..1000 {
            let key = format!("/ledgers/{number}");
            let (hash, shard) = (keys::hash(&key), shards.of_key(&key));
            assert!(shard.min <= hash && hash <= shard.max, "{key} in {shard:?}");
        }
        assert_eq!(shards.get(7).map(|shard| &*shard.leader), Some("h7:1"));
        assert!(shards.get(5).is_none() && shards.has_leader("h3:1") && !shards.has_leader("h5:1"));
        let others = Shards::of(assigned(&[(3, 0, 99), (4, 100, half), (8, half + 1, u32::MAX)])).unwrap();
        assert!(shards.are_those_of(&shards.clone()) && !shards.are_those_of(&others));
    }

    #[test]
    fn shards_that_cannot_be_are_refused() {
        for ranges in [
            &[][..],
            &[(1, 1, u32::MAX)],
            &[(1, 0, 7)],
            &[(1, 0, 7), (2, 7, u32::MAX)],
            &[(1, 0, 7), (2, 9, u32::MAX)],
            &[(1, 0, u32::MAX), (2, 0, u32::MAX)],
            &[(1, 0, 7), (2, 8, 3), (3, 8, u32::MAX)],
        ] {
            assert!(Shards::of(assigned(ranges)).is_err(), "{ranges:?}");
        }
        let mut without = assigned(&[(1, 0, u32::MAX)]);
        without.assignments[0].shard_boundaries = None;
        assert!(Shards::of(without).is_err());
        let many: Vec<_> = (0..SHARDS_MAX as u32 + 1).map(|at| (i64::from(at), at, at)).collect();
        assert!(Shards::of(assigned(&many)).unwrap_err().contains("1025"));
    }
}
