//! The names of things: ledgers, entries, bookies, and the key that guards a ledger.

use std::fmt;

/// A ledger: an append-only sequence of entries. Never negative (protocol reference, section 3.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LedgerId(i64);

impl LedgerId {
    /// The smallest ledger id.
    pub const MIN: LedgerId = LedgerId(0);
    /// The largest ledger id.
    pub const MAX: LedgerId = LedgerId(i64::MAX);

    /// `None` when `raw` is negative, which no ledger is.
    pub const fn new(raw: i64) -> Option<LedgerId> {
        if raw < 0 { None } else { Some(LedgerId(raw)) }
    }

    /// The id as it stands on the wire and on disk.
    pub const fn get(self) -> i64 {
        self.0
    }
}

/// The number of an entry inside its ledger, from 0. "None" on the wire is -1; here it is `Option::None`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(i64);

impl EntryId {
    /// The first entry of a ledger.
    pub const FIRST: EntryId = EntryId(0);
    /// The largest that can be written down.
    pub const MAX: EntryId = EntryId(i64::MAX);

    /// `None` when `raw` is negative: -1 means "none" on the wire, other negatives are Java's journal meta records.
    pub const fn new(raw: i64) -> Option<EntryId> {
        if raw < 0 { None } else { Some(EntryId(raw)) }
    }

    /// The id as it stands on the wire and on disk.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// -1 for `None`, as the wire writes a missing entry or LAC (last add confirmed).
    pub const fn to_wire(id: Option<EntryId>) -> i64 {
        match id {
            Some(id) => id.0,
            None => -1,
        }
    }
}

macro_rules! number_formats {
    ($($name:ident),+) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    )+};
}
number_formats!(LedgerId, EntryId);

/// Compares secrets in a time that does not depend on where they differ.
pub fn are_equal_secrets<const N: usize>(a: &[u8; N], b: &[u8; N]) -> bool {
    a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// Length of a master key: SHA-1("ledger" ‖ password) (protocol reference, section 3.2).
pub const MASTER_KEY_SIZE_BYTES: usize = 20;

/// The key a ledger's writer presents. Compared in constant time; never printed.
#[derive(Clone, Copy)]
pub struct MasterKey([u8; MASTER_KEY_SIZE_BYTES]);

impl MasterKey {
    /// The placeholder that data-integrity repair stores; the first real key replaces it (section 4.1).
    pub const ZERO: MasterKey = MasterKey([0; MASTER_KEY_SIZE_BYTES]);

    /// Wraps the 20 bytes.
    pub const fn new(bytes: [u8; MASTER_KEY_SIZE_BYTES]) -> MasterKey {
        MasterKey(bytes)
    }

    /// `None` unless `bytes` is exactly 20 bytes long.
    pub fn from_slice(bytes: &[u8]) -> Option<MasterKey> {
        bytes.try_into().ok().map(MasterKey)
    }

    /// The raw bytes, for the wire and the journal.
    pub const fn as_bytes(&self) -> &[u8; MASTER_KEY_SIZE_BYTES] {
        &self.0
    }

    /// True for the all-zero placeholder.
    pub fn is_zero(&self) -> bool {
        *self == MasterKey::ZERO
    }
}

impl PartialEq for MasterKey {
    fn eq(&self, other: &Self) -> bool {
        are_equal_secrets(&self.0, &other.0)
    }
}
impl Eq for MasterKey {}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

/// The name under which a bookie registers: a fixed id or `host:port` (section 5.1).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BookieId(String);

/// A string that cannot name a bookie.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a bookie id: use letters, digits and : ; < = > ? @ [ \\ ] ^ _ - . and not \"readonly\""
)]
pub struct InvalidBookieId(pub String);

impl BookieId {
    /// Checks the characters BookKeeper allows: `[a-zA-Z0-9:-_.\-]+`, where `:-_` is a range, and not "readonly".
    pub fn new(name: impl Into<String>) -> Result<BookieId, InvalidBookieId> {
        let name = name.into();
        let allowed =
            |b: u8| b.is_ascii_alphanumeric() || (b':'..=b'_').contains(&b) || b == b'.' || b == b'-';
        if name.is_empty() || name == "readonly" || !name.bytes().all(allowed) {
            return Err(InvalidBookieId(name));
        }
        Ok(BookieId(name))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BookieId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Debug for BookieId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BookieId({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_ids_do_not_exist() {
        assert!(LedgerId::new(-1).is_none());
        assert!(EntryId::new(-0x1000).is_none());
        assert_eq!(EntryId::to_wire(EntryId::new(7)), 7);
        assert_eq!(EntryId::to_wire(None), -1);
    }

    #[test]
    fn bookie_ids_follow_the_java_pattern() {
        for good in ["127.0.0.1:3181", "bookie-1.example", "A_b", "x"] {
            assert!(BookieId::new(good).is_ok(), "{good}");
        }
        for bad in ["", "readonly", "a b", "a/b", "ü", "a,b"] {
            assert!(BookieId::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_never_prints_itself() {
        assert_eq!(format!("{:?}", MasterKey::new([7; 20])), "MasterKey(..)");
    }
}
