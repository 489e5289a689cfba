//! The order of keys, ranges of children, and which shard has a key.

use crate::INTERNAL_KEY_PREFIX;
use std::cmp::Ordering;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64;

/// Keys with more slashes than this are in one order with those that have as many.
const LEVEL_MAX: usize = (1 << 15) - 1;

/// The order in which a server keeps keys, unless a namespace was made with another one: fewer slashes come first, and among keys with as
/// many each byte counts, with a slash behind all others. So the children of a path lie side by side, without their own children. The keys
/// that a server keeps for itself come last.
///
/// From the hierarchical encoding of Oxia's server (`common/compare`).
pub fn compare(one: &str, other: &str) -> Ordering {
    level(one).cmp(&level(other)).then_with(|| one.bytes().map(rank).cmp(other.bytes().map(rank)))
}

/// True for a key that a server keeps for itself: clients see it only when they ask for such keys.
pub fn is_internal(key: &str) -> bool {
    key.starts_with(INTERNAL_KEY_PREFIX)
}

/// What counts before the bytes of a key. Of two slashes at the end one counts: such a key ends a range of children, and stands among them.
fn level(key: &str) -> (bool, usize) {
    let slashes = key.bytes().filter(|byte| *byte == b'/').count();
    (is_internal(key), (slashes - usize::from(key.ends_with("//"))).min(LEVEL_MAX))
}

/// No byte of UTF-8 is 0xff.
fn rank(byte: u8) -> u8 {
    if byte == b'/' { 0xff } else { byte }
}

/// The range that holds the children of a path, and nothing else. `path` has no slash at its end; that of the root is empty.
pub fn children(path: &str) -> Range<String> {
    format!("{path}/")..format!("{path}//")
}

/// The hash by which a key is given to a shard.
pub fn hash(key: &str) -> u32 {
    // The lower half is meant.
    #[allow(clippy::cast_possible_truncation, reason = "see above")]
    let lower = xxh3_64(key.as_bytes()) as u32;
    lower
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fewer_slashes_come_first_and_a_slash_comes_behind_all_bytes() {
        let ascending = [
            "",
            "a",
            "a-b",
            "aaaaa",
            "b",
            "/",
            "/a",
            "/aaaaaaa",
            "/b",
            "/\u{10ffff}",
            "//",
            "/a/",
            "/a/a-1",
            "/a/b",
            "/a//",
            "/b/a",
            "/a/a/a",
            "/a/b/a",
            "__oxia/a",
            "__oxia/session/1",
        ];
        for (at, key) in ascending.iter().enumerate() {
            for (its, other) in ascending.iter().enumerate() {
                assert_eq!(compare(key, other), at.cmp(&its), "{key:?} {other:?}");
            }
        }
    }

    #[test]
    fn children_of_a_path_are_a_range() {
        let range = children("/ledgers");
        let is_in = |key: &str| compare(&range.start, key).is_le() && compare(key, &range.end).is_lt();
        for child in ["/ledgers/", "/ledgers/a", "/ledgers/zzz", "/ledgers/\u{10ffff}"] {
            assert!(is_in(child), "{child}");
        }
        for other in
            ["/ledgers", "/ledgers/a/b", "/ledgersa", "/ledger/a", "/a/b/c", "/", "", "/zzz", "/zzz/a"]
        {
            assert!(!is_in(other), "{other}");
        }
        let root = children("");
        assert!(compare(&root.start, "/a").is_le() && compare("/a", &root.end).is_lt());
        assert!(compare("/a/b", &root.end).is_ge());
    }

    /// From the reference implementation of XXH3: the empty input.
    #[test]
    fn the_hash_is_the_lower_half_of_xxh3() {
        assert_eq!(xxh3_64(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(hash(""), 0x38d3_94c2);
    }

    proptest! {
        #[test]
        fn it_is_an_order(a in "[/ab]{0,6}", b in "[/ab]{0,6}", c in "[/ab]{0,6}") {
            prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
            prop_assert_eq!(compare(&a, &b) == Ordering::Equal, a == b);
            if compare(&a, &b).is_le() && compare(&b, &c).is_le() {
                prop_assert!(compare(&a, &c).is_le());
            }
        }
    }
}
