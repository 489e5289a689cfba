//! The table of keys: every key of BookKeeper's `bk_server.conf` and of Pulsar's `bookkeeper.conf`, and our own.
//!
//! A row is the one home of a key: its name, its type and bounds, BookKeeper's default, where the value goes in the [`Draft`], how the
//! value in force is shown, the flag that wins over it, and what it means. `bindery config`, the warnings of `bindery bookie` and
//! docs/reference/configuration.md are made from it.
//!
//! # Invariants
//! 1. A key that has an effect has a place in the draft, or a rule that takes it (`rules`): the type of a row without one is another.
//! 2. Rows are read in their order: whether a value counts, and what a row's note says, may rest on rows above it.
//! 3. No key of BookKeeper or Pulsar is missing (tests).

pub mod draft;
pub mod flags;
mod identity;
mod java_storage;
mod journal;
mod key;
pub(crate) mod metadata;
pub(crate) mod protection;
pub(crate) mod recovery;
mod requests;
mod space;
mod tier;

pub use self::draft::Draft;
pub(crate) use self::key::Protection;
pub use self::key::{Key, Status};

use self::flags::BookieArgs;
use self::key::{Named, Place, at};
use crate::parse::Share;
use crate::sources::values::{self, Values};

const fn applied(name: &'static str, java: &'static str, about: &'static str) -> Named {
    Named::new(Key::new(name, Status::Applied, java, about))
}

const fn translated(name: &'static str, java: &'static str, about: &'static str, how: &'static str) -> Named {
    Named::new(Key::new(name, Status::Translated(how), java, about))
}

const fn nothing(name: &'static str, java: &'static str, about: &'static str, why: &'static str) -> Key {
    Key::new(name, Status::NoMeaning(why), java, about)
}

const fn refused(
    name: &'static str,
    java: &'static str,
    about: &'static str,
    asks: fn(&str) -> bool,
    why: &'static str,
) -> Key {
    Key::new(name, Status::Refused(why), java, about).asks(asks)
}

const fn ours(name: &'static str, about: &'static str) -> Named {
    Named::new(Key::new(name, Status::Ours, "", about))
}

fn is_true(value: &str) -> bool {
    values::truth(value) != Some(false)
}

fn is_false(value: &str) -> bool {
    values::truth(value) != Some(true)
}

fn always(_: &str) -> bool {
    true
}

/// A part of the table, with its heading in the reference.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// The heading.
    pub title: &'static str,
    /// The rows.
    pub keys: &'static [Key],
}

/// The whole table.
pub const PARTS: [Part; 10] = [
    Part { title: "Addresses and identity", keys: identity::KEYS },
    Part { title: "Metadata", keys: metadata::KEYS },
    Part { title: "Directories, journal and memory", keys: journal::KEYS },
    Part { title: "Disks, garbage collection and compaction", keys: space::KEYS },
    Part { title: "Requests and connections", keys: requests::KEYS },
    Part { title: "Object storage", keys: tier::KEYS },
    Part { title: "TLS, authentication and authorisation", keys: protection::KEYS },
    Part { title: "AutoRecovery, and the client inside BookKeeper's bookie", keys: recovery::KEYS },
    Part { title: "Java's ledger storages", keys: java_storage::STORAGE },
    Part { title: "Java's runtime, metrics and plug-ins", keys: java_storage::RUNTIME },
];

/// All rows.
pub fn all() -> impl Iterator<Item = &'static Key> {
    PARTS.iter().flat_map(|part| part.keys)
}

/// Fills a draft with the values of the wanted rows, from flags and a file. Rules judge combinations of keys afterwards.
pub(crate) fn read(args: &BookieArgs, file: &mut Values, is_wanted: impl Fn(&Key) -> bool) -> Draft {
    let mut draft = Draft { given: file.given().clone(), ..Draft::default() };
    for key in all().filter(|key| is_wanted(key)) {
        key.take(args, file, &mut draft);
    }
    draft
}

/// The row of a key: the one with this very name, or else that of a family (`*`) to which it belongs.
pub fn find(name: &str) -> Option<&'static Key> {
    let family = |key: &&Key| key.name.strip_suffix('*').is_some_and(|start| name.starts_with(start));
    all().find(|key| key.name == name).or_else(|| all().find(family))
}

/// The key that was probably meant.
pub fn nearest(name: &str) -> Option<&'static str> {
    let wanted = name.to_ascii_lowercase();
    let distances = all().filter(|key| !key.name.ends_with('*')).map(|key| {
        let there = key.name.to_ascii_lowercase();
        // A name that begins as another one does is a better hint than a few wrong letters are.
        let is_part = wanted.len() > 5 && (there.starts_with(&wanted) || wanted.starts_with(&there));
        (if is_part { 1 } else { distance(&wanted, &there) }, key.name)
    });
    let (distance, name) = distances.min()?;
    (distance <= 2.max(wanted.len() / 4)).then_some(name)
}

/// The edit distance: letters to insert, remove or replace; neighbours that changed places count once.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (row, a) in left.iter().enumerate() {
        let mut next = vec![row + 1];
        for (column, b) in right.iter().enumerate() {
            let exchanged = last[column] + usize::from(a != b);
            let mut best = exchanged.min(last[column + 1] + 1).min(next[column] + 1);
            if row > 0 && column > 0 && *a == right[column - 1] && left[row - 1] == *b {
                best = best.min(before[column - 1] + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut last, next);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn listed(text: &'static str) -> impl Iterator<Item = &'static str> {
        text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
    }

    /// Constants of ServerConfiguration and AbstractConfiguration, and the keys of the distributed files.
    #[test]
    fn no_key_of_bookkeeper_or_pulsar_is_missing() {
        for (version, text) in [
            ("BookKeeper 4.17.2", include_str!("../../testdata/bookkeeper-4.17.2.keys")),
            ("BookKeeper 4.18.0", include_str!("../../testdata/bookkeeper-4.18.0.keys")),
            ("Pulsar 4.0", include_str!("../../testdata/pulsar-4.0.keys")),
        ] {
            let missing: Vec<&str> = listed(text).filter(|name| find(name).is_none()).collect();
            assert!(missing.is_empty(), "{version}: {missing:?}");
        }
    }

    #[test]
    fn our_own_keys_are_none_of_bookkeepers() {
        let java: BTreeSet<&str> = listed(include_str!("../../testdata/bookkeeper-4.17.2.keys"))
            .chain(listed(include_str!("../../testdata/bookkeeper-4.18.0.keys")))
            .collect();
        for key in all() {
            let is_ours = matches!(key.status, Status::Ours);
            assert!(!is_ours || !java.contains(key.name), "{} is a key of BookKeeper", key.name);
        }
    }

    #[test]
    fn every_row_says_what_it_is_about_once() {
        let mut names = BTreeSet::new();
        for key in all() {
            assert!(names.insert(key.name), "{} stands twice", key.name);
            assert!(
                !key.about.is_empty() && !key.about.ends_with('.'),
                "{}: a line without full stop",
                key.name
            );
        }
    }

    /// Bounds that exclude their own default would make a file faulty that says what holds without it.
    #[test]
    fn a_default_is_a_value_that_its_row_takes() {
        let mut checked = 0;
        for key in all().filter(|key| !key.is_of_rule() && !key.default().is_empty()) {
            let text = key.default();
            if text.ends_with(" bytes in a group") {
                continue;
            }
            let mut file = Values::of(Some(&format!("{}={text}\n", key.name)));
            let draft = read(&BookieArgs::default(), &mut file, |row| row.name == key.name);
            assert!(file.faults.is_empty(), "{:?}", file.faults);
            assert_eq!(key.value_in(&draft), Some(text), "{}", key.name);
            checked += 1;
        }
        assert!(checked > 80, "{checked} defaults");
    }

    #[test]
    fn a_wrong_name_leads_to_the_right_one() {
        for (wrong, right) in [
            ("bookieport", Some("bookiePort")),
            ("bokiePort", Some("bookiePort")),
            ("journalDirectoreis", Some("journalDirectories")),
            ("ledgerDirs", None),
            ("zkServer", Some("zkServers")),
            ("journalSync", Some("journalSyncData")),
            ("completelyElse", None),
        ] {
            assert_eq!(nearest(wrong), right, "{wrong}");
        }
        assert_eq!((distance("abcd", "abdc"), distance("", "ab"), distance("abc", "axc")), (1, 2, 1));
    }
}
