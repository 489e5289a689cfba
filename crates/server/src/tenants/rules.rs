//! The file of tenants: their names and limits, and the rules that decide which tenant a request belongs to.
//!
//! ```text
//! tenant NAME [weight=N] [adds=BYTES] [reads=BYTES]
//! user PATTERN NAME
//! role PATTERN NAME
//! property KEY PATTERN NAME
//! ```
//! A pattern is what a name or a value is, or with `*` at its end what that begins with. Rules are tried in their order, first those of
//! users and roles, then those of properties; all other requests are the tenant `default`'s.
//!
//! # Limits     [`FILE_BYTES_MAX`], [`TENANTS_MAX`], [`RULES_MAX`], [`NAME_BYTES_MAX`]

use bindery_tls::file;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// A larger file is refused, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Tenants, `default` not counted: each has series of metrics.
pub const TENANTS_MAX: usize = 64;
/// Rules of all kinds.
pub const RULES_MAX: usize = 1024;
/// A longer name of a tenant is refused, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// The tenant of everything that no rule knows.
pub const DEFAULT: &str = "default";
/// Weights are at least 1.
pub const WEIGHT_MAX: u32 = 1000;
/// Where none is given.
pub const WEIGHT_DEFAULT: u32 = 100;
/// A lower limit is refused, in bytes a second: what one connection reads at once would be paid for longer than a client waits.
pub const LIMIT_MIN: u64 = 64 * 1024;

/// The limits and the weight of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Its share where there is not enough for all, against the weights of others.
    pub weight: u32,
    /// Bytes of entries that it may add in a second; `None`: without a limit.
    pub adds: Option<u64>,
    /// Bytes of entries that it may read in a second.
    pub reads: Option<u64>,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance { weight: WEIGHT_DEFAULT, adds: None, reads: None }
    }
}

/// A whole text, or how it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    text: String,
    is_prefix: bool,
}

impl Pattern {
    fn of(word: &str) -> Result<Pattern, String> {
        let begin = word.strip_suffix('*');
        let text = begin.unwrap_or(word);
        if text.contains('*') {
            return Err(format!("a pattern may have one * at its end, and none before it: {word}"));
        }
        Ok(Pattern { text: text.to_owned(), is_prefix: begin.is_some() })
    }

    fn matches(&self, value: &[u8]) -> bool {
        match self.is_prefix {
            true => value.starts_with(self.text.as_bytes()),
            false => value == self.text.as_bytes(),
        }
    }
}

/// By what a request is known.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mark {
    User(Pattern),
    Role(Pattern),
    Property(String, Pattern),
}

/// How a peer has said who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer<'a> {
    /// By a name and a password.
    User(&'a str),
    /// By a role in its certificate.
    Role(&'a str),
}

/// Everything a file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// By name; `default` is always there.
    pub tenants: BTreeMap<String, Allowance>,
    rules: Vec<(Mark, String)>,
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// It cannot be read.
    #[error("tenantsFile={}: {source}. Give a file that this process may read", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It says something that is not understood.
    #[error("tenantsFile={}: {why}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, what is wrong with it, and what to write.
        why: String,
    },
}

/// The text of a file of tenants. Blocks.
///
/// # Errors
/// It cannot be read, is too large or no text.
pub fn read(path: &Path) -> Result<String, RulesError> {
    let failed = |source| RulesError::Read { path: path.to_owned(), source };
    let content = |why: String| RulesError::Content { path: path.to_owned(), why };
    let file = file::open(path).map_err(failed)?;
    let bytes = file::read_at_most(file, FILE_BYTES_MAX).map_err(failed)?;
    let bytes = bytes.ok_or_else(|| content(format!("it has more than {FILE_BYTES_MAX} bytes")))?;
    String::from_utf8(bytes).map_err(|_| content("it is not text in UTF-8".to_owned()))
}

impl Rules {
    /// Reads and checks a file. Blocks.
    ///
    /// # Errors
    /// The first line that is not understood, and what to write.
    pub fn load(path: &Path) -> Result<Rules, RulesError> {
        Rules::of_text(path, &read(path)?)
    }

    /// Checks the text of a file.
    ///
    /// # Errors
    /// As [`Rules::load`].
    pub fn of_text(path: &Path, text: &str) -> Result<Rules, RulesError> {
        Rules::parse(text).map_err(|why| RulesError::Content { path: path.to_owned(), why })
    }

    fn parse(text: &str) -> Result<Rules, String> {
        let mut rules = Rules::default();
        let mut rule_lines = Vec::new();
        let lines = text.lines().map(str::trim).zip(1usize..);
        for (line, number) in lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let taken = match *words.as_slice() {
                ["tenant", name, ref allowed @ ..] => rules.add_tenant(name, allowed),
                ["user", pattern, name] => rules.add(pattern, Mark::User, name),
                ["role", pattern, name] => rules.add(pattern, Mark::Role, name),
                ["property", key, pattern, name] => {
                    rules.add(pattern, |pattern| Mark::Property(key.to_owned(), pattern), name)
                }
                _ => Err("write tenant NAME [weight=N] [adds=BYTES] [reads=BYTES], user PATTERN NAME, role PATTERN NAME, or \
                          property KEY PATTERN NAME"
                    .to_owned()),
            };
            taken.map_err(|why| format!("line {number}: {why}"))?;
            if rules.rules.len() > rule_lines.len() {
                rule_lines.push(number);
            }
        }
        rules.tenants.entry(DEFAULT.to_owned()).or_default();
        for ((_, name), number) in rules.rules.iter().zip(rule_lines) {
            if !rules.tenants.contains_key(name) {
                return Err(format!("line {number}: there is no tenant {name}: write a line tenant {name}"));
            }
        }
        Ok(rules)
    }

    fn add_tenant(&mut self, name: &str, allowed: &[&str]) -> Result<(), String> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
            return Err(format!(
                "the name of a tenant is letters, digits, _, . and -, {NAME_BYTES_MAX} at most"
            ));
        }
        let mut allowance = Allowance::default();
        let mut seen: Vec<&str> = Vec::new();
        for word in allowed {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            if seen.contains(&key) {
                return Err(format!("{key} stands there twice"));
            }
            seen.push(key);
            match key {
                "weight" => {
                    let weight = value.parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight));
                    allowance.weight =
                        weight.ok_or(format!("a weight is a number from 1 to {WEIGHT_MAX}, not {value}"))?;
                }
                "adds" => allowance.adds = Some(limit(value)?),
                "reads" => allowance.reads = Some(limit(value)?),
                _ => return Err(format!("a tenant has weight=N, adds=BYTES and reads=BYTES, and no {word}")),
            }
        }
        if self.tenants.insert(name.to_owned(), allowance).is_some() {
            return Err(format!("the tenant {name} has a line already"));
        }
        if self.tenants.keys().filter(|name| *name != DEFAULT).count() > TENANTS_MAX {
            return Err(format!("a bookie has {TENANTS_MAX} tenants at most, besides {DEFAULT}"));
        }
        Ok(())
    }

    fn add(
        &mut self,
        pattern: &str,
        mark_of: impl FnOnce(Pattern) -> Mark,
        name: &str,
    ) -> Result<(), String> {
        let mark = mark_of(Pattern::of(pattern)?);
        if self.rules.iter().any(|(known, _)| *known == mark) {
            return Err("the same rule stands in a line before: only that one would count".to_owned());
        }
        if self.rules.len() >= RULES_MAX {
            return Err(format!("a file has {RULES_MAX} rules at most"));
        }
        self.rules.push((mark, name.to_owned()));
        Ok(())
    }

    /// The tenant of everything that this peer asks for.
    pub fn of_peer(&self, peer: Peer<'_>) -> Option<&str> {
        let is_its = |mark: &Mark| match (mark, peer) {
            (Mark::User(pattern), Peer::User(name)) | (Mark::Role(pattern), Peer::Role(name)) => {
                pattern.matches(name.as_bytes())
            }
            _ => false,
        };
        self.first(is_its)
    }

    /// The tenant of a ledger with these properties.
    pub fn of_properties(&self, custom: &BTreeMap<String, Vec<u8>>) -> Option<&str> {
        let is_its = |mark: &Mark| match mark {
            Mark::Property(key, pattern) => custom.get(key).is_some_and(|value| pattern.matches(value)),
            Mark::User(_) | Mark::Role(_) => false,
        };
        self.first(is_its)
    }

    fn first(&self, is_its: impl Fn(&Mark) -> bool) -> Option<&str> {
        self.rules.iter().find(|(mark, _)| is_its(mark)).map(|(_, name)| name.as_str())
    }

    /// True when ledgers have to be looked up.
    pub fn wants_properties(&self) -> bool {
        self.rules.iter().any(|(mark, _)| matches!(mark, Mark::Property(..)))
    }

    /// How many rules there are.
    pub fn count(&self) -> usize {
        self.rules.len()
    }
}

/// Bytes a second: a number, with k, M or G for thousands, or Ki, Mi or Gi for their binary kin.
fn limit(value: &str) -> Result<u64, String> {
    let wrong = || format!("a limit is a number of bytes a second, like 500k, 20M or 16Mi, and not {value}");
    let number_end = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let (number, unit) = value.split_at(number_end);
    let factor: u64 = match unit {
        "" => 1,
        "k" | "K" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let bytes = number.checked_mul(factor).ok_or_else(wrong)?;
    match bytes {
        LIMIT_MIN.. => Ok(bytes),
        _ => Err(format!("a limit is {LIMIT_MIN} bytes a second at least, and {value} is less")),
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "what an operator puts there")]
mod tests {
    use super::*;

    const FILE: &str = "# ours\n\
        tenant payments weight=400\n\
        tenant etl weight=50 adds=20M reads=16Mi\n\
        user etl-* etl\n\
        role payments payments\n\
        property pulsar/managed-ledger payments/* payments\n\
        property application pulsar default\n\
        property pulsar/managed-ledger * etl\n";

    #[test]
    fn rules_are_tried_in_their_order() {
        let rules = Rules::parse(FILE).unwrap();
        assert_eq!(rules.tenants.len(), 3);
        assert_eq!(rules.tenants["payments"], Allowance { weight: 400, adds: None, reads: None });
        assert_eq!(
            rules.tenants["etl"],
            Allowance { weight: 50, adds: Some(20_000_000), reads: Some(16 << 20) }
        );
        assert_eq!(rules.tenants[DEFAULT], Allowance::default());
        assert_eq!(rules.of_peer(Peer::User("etl-7")), Some("etl"));
        assert_eq!(rules.of_peer(Peer::User("payments")), None);
        assert_eq!(rules.of_peer(Peer::Role("payments")), Some("payments"));
        assert_eq!(rules.of_peer(Peer::Role("payments2")), None);
        let of = |properties: &[(&str, &str)]| {
            let custom = properties.iter().map(|(key, value)| (key.to_string(), value.as_bytes().to_vec()));
            rules.of_properties(&custom.collect()).map(str::to_owned)
        };
        assert_eq!(of(&[("pulsar/managed-ledger", "payments/a/persistent/t")]).as_deref(), Some("payments"));
        assert_eq!(
            of(&[("pulsar/managed-ledger", "x"), ("application", "pulsar")]).as_deref(),
            Some("default")
        );
        assert_eq!(of(&[("pulsar/managed-ledger", "x")]).as_deref(), Some("etl"));
        assert_eq!(of(&[("other", "payments/")]), None);
        assert!(rules.wants_properties() && !Rules::parse("user a default").unwrap().wants_properties());
        assert_eq!(Rules::parse("").unwrap().tenants.len(), 1);
    }

    #[test]
    fn a_file_is_refused_as_a_whole_with_the_line_and_the_reason() {
        let many: String = (0..=TENANTS_MAX).map(|number| format!("tenant t{number}\n")).collect();
        for (text, why) in [
            ("tenant", "line 1: write tenant NAME"),
            ("\ntenants a", "line 2: write tenant NAME"),
            ("tenant a weight=0", "line 1: a weight is a number from 1 to 1000, not 0"),
            ("tenant a weight=x", "a weight is"),
            ("tenant a adds=5", "a limit is 65536 bytes a second at least, and 5 is less"),
            ("tenant a adds=5MB", "line 1: a limit is a number of bytes a second, like 500k"),
            ("tenant a adds=99999999999G", "like 500k"),
            ("tenant a adds=1M adds=2M", "adds stands there twice"),
            ("tenant a writes=1M", "line 1: a tenant has weight=N"),
            ("tenant a\ntenant a", "line 2: the tenant a has a line already"),
            ("tenant a/b", "the name of a tenant is letters"),
            ("tenant a\nuser u a\nuser v b", "line 3: there is no tenant b: write a line tenant b"),
            ("tenant a\nuser u a\nuser u default", "line 3: the same rule"),
            ("property k v", "line 1: write"),
            (
                "tenant a\nuser *-etl a",
                "line 2: a pattern may have one * at its end, and none before it: *-etl",
            ),
            ("tenant a\nproperty k v** a", "line 2: a pattern may have one *"),
            (&many, "line 65: a bookie has 64 tenants at most"),
        ] {
            let error = Rules::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tenants");
        let error = Rules::load(&file).unwrap_err().to_string();
        assert!(error.contains("tenantsFile=") && error.contains("may read"), "{error}");
        std::fs::write(&file, [0xff]).unwrap();
        assert!(Rules::load(&file).unwrap_err().to_string().contains("UTF-8"));
        std::fs::write(&file, vec![b'#'; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(Rules::load(&file).unwrap_err().to_string().contains("more than"));
    }
}
