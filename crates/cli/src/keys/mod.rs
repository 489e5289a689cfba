//! The table of keys: every key of BookKeeper's `bk_server.conf` and of Pulsar's `bookkeeper.conf`, and our own.
//!
//! `config check`, `config show`, `config explain`, the warnings of `bindery bookie` and docs/reference/configuration.md are
//! made from it. Tests compare it with what the settings take (`settings::tests`) and with the keys of BookKeeper's sources
//! ([`tests`]), so that it cannot fall out of step with either.

mod identity;
mod java_storage;
mod journal;
mod metadata;
mod protection;
mod recovery;
mod requests;
mod space;
mod tier;

use crate::args::BookieArgs;
use crate::repair::RepairRoleSettings;
use crate::sources::values::{self, Given};
use crate::tier_role::TierSettings;
use bindery_metadata::MetadataUri;
use bindery_server::config::BookieConfig;
use std::collections::BTreeMap;
use std::time::Duration;

/// How a key is treated.
#[derive(Debug, Clone, Copy)]
pub enum Status {
    /// It does what it does in BookKeeper.
    Applied,
    /// Its purpose is achieved by other means: how.
    Translated(&'static str),
    /// There is nothing for it to do: why.
    NoMeaning(&'static str),
    /// A value that asks for something that does not exist here prevents the start: why, and what to do instead.
    Refused(&'static str),
    /// BookKeeper does not have it.
    Ours,
}

impl Status {
    /// One word for it.
    pub fn word(&self) -> &'static str {
        match self {
            Status::Applied => "applied",
            Status::Translated(_) => "translated",
            Status::NoMeaning(_) => "no effect",
            Status::Refused(_) => "refused",
            Status::Ours => "Bindery's own",
        }
    }
}

/// The settings of a bookie, as far as they are known.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Its own.
    pub config: &'a BookieConfig,
    /// Where the cluster is.
    pub metadata: Option<&'a MetadataUri>,
    /// Object storage, and whether this process moves ledgers there.
    pub tier: Option<&'a (TierSettings, bool)>,
    /// Auditor and replication worker of this process.
    pub repair: Option<&'a RepairRoleSettings>,
    /// The settings as they were written, for what the config does not keep.
    pub given: Option<&'a BTreeMap<String, Given>>,
}

impl View<'_> {
    /// The text of a key, if it was given.
    fn text(&self, key: &str) -> Option<String> {
        let given = self.given?.get(key)?;
        Some(given.text.clone()).filter(|text| !text.is_empty())
    }
}

/// A flag of `bindery bookie` that wins over a key.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// As it is written.
    pub name: &'static str,
    /// Whether it was given.
    pub is_given: fn(&BookieArgs) -> bool,
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its name; one that ends in `*` stands for all keys that begin with the rest.
    pub name: &'static str,
    /// How we treat it.
    pub status: Status,
    /// Its description.
    pub about: &'static str,
    /// BookKeeper's default, as it would stand in a file; empty when there is none.
    pub java: &'static str,
    /// The unit of its value; empty for words, names and counts.
    pub unit: &'static str,
    /// The flag that does the same.
    pub flag: Option<Flag>,
    /// Its value in force, as it would stand in a file.
    pub shown: Option<fn(&View<'_>) -> String>,
    /// Whether a value asks for something that does not exist here: for `Refused` a fault, for `NoMeaning` a warning.
    pub asks: Option<fn(&str) -> bool>,
    /// Its value is not to be printed.
    pub is_secret: bool,
}

impl Key {
    const fn new(name: &'static str, status: Status, java: &'static str, about: &'static str) -> Key {
        Key { name, status, about, java, unit: "", flag: None, shown: None, asks: None, is_secret: false }
    }

    const fn unit(self, unit: &'static str) -> Key {
        Key { unit, ..self }
    }

    const fn flag(self, name: &'static str, is_given: fn(&BookieArgs) -> bool) -> Key {
        Key { flag: Some(Flag { name, is_given }), ..self }
    }

    const fn shown(self, shown: fn(&View<'_>) -> String) -> Key {
        Key { shown: Some(shown), ..self }
    }

    const fn asks(self, asks: fn(&str) -> bool) -> Key {
        Key { asks: Some(asks), ..self }
    }

    const fn secret(self) -> Key {
        Key { is_secret: true, ..self }
    }

    /// Whether the settings take it.
    pub fn has_effect(&self) -> bool {
        matches!(self.status, Status::Applied | Status::Translated(_) | Status::Ours)
    }

    /// The default here, as it would stand in a file; empty when there is none.
    pub fn default(&self) -> String {
        let config = BookieConfig::default();
        let view = View { config: &config, metadata: None, tier: None, repair: None, given: None };
        self.shown.map_or_else(String::new, |shown| shown(&view))
    }
}

const fn applied(name: &'static str, java: &'static str, about: &'static str) -> Key {
    Key::new(name, Status::Applied, java, about)
}

const fn translated(name: &'static str, java: &'static str, about: &'static str, how: &'static str) -> Key {
    Key::new(name, Status::Translated(how), java, about)
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

const fn ours(name: &'static str, about: &'static str) -> Key {
    Key::new(name, Status::Ours, "", about)
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

fn millis(time: Duration) -> String {
    time.as_millis().to_string()
}

fn seconds(time: Duration) -> String {
    time.as_secs().to_string()
}

fn mebibytes(bytes: u64) -> String {
    (bytes >> 20).to_string()
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
            ("BookKeeper 4.17.2", include_str!("../config/testdata/bookkeeper-4.17.2.keys")),
            ("BookKeeper 4.18.0", include_str!("../config/testdata/bookkeeper-4.18.0.keys")),
            ("Pulsar 4.0", include_str!("../config/testdata/pulsar-4.0.keys")),
        ] {
            let missing: Vec<&str> = listed(text).filter(|name| find(name).is_none()).collect();
            assert!(missing.is_empty(), "{version}: {missing:?}");
        }
    }

    #[test]
    fn our_own_keys_are_none_of_bookkeepers() {
        let java: BTreeSet<&str> = listed(include_str!("../config/testdata/bookkeeper-4.17.2.keys"))
            .chain(listed(include_str!("../config/testdata/bookkeeper-4.18.0.keys")))
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
            assert_eq!(key.shown.is_some(), key.has_effect(), "{}: shown when it has an effect", key.name);
            if let Status::Refused(why) = key.status {
                assert!(key.asks.is_some() && why.contains(|c: char| c.is_alphabetic()), "{}", key.name);
            }
        }
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
