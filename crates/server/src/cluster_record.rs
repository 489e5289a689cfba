//! The bookie's record of its cluster's metadata: the file `KNOWN` in `current` of each ledger directory.
//!
//! ```text
//! bindery-known 3
//! checkedUpTo 4711         normal adds of ledgers up to it are checked with metadata first (IB28)
//! limboUpTo 4711           ledgers up to it are in limbo until metadata was gone through (IB27)
//! knownUpTo 4711           the highest ledger here that the store ever listed when it got a mark (IB16)
//! storeMark 000011112222333a    the store that this bookie knows has this mark of it (IB16)
//! storeMark 000011112222333b    or this one, when a new one was on its way there
//! crc32c 1a2b3c4d          of all lines before
//! ```
//!
//! Lines that say nothing are left out; version 1 had no marks, and version 2 a line `acceptedGap`, which is not needed any more. The text
//! is the same in every directory; where copies differ, after a crash between two of them or with an exchanged disk, the one that
//! forbids more counts.

use bindery_journal::record::crc32c;
use bindery_types::LedgerId;
use std::fmt::Write;

/// Name of the file.
pub const CLUSTER_RECORD_NAME: &str = "KNOWN";
const FIRST_LINE: &str = "bindery-known 3";
const FIRST_LINES_BEFORE: [&str; 2] = ["bindery-known 1", "bindery-known 2"];

/// See the module.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClusterRecord {
    /// The highest ledger in metadata when the directories were new.
    pub checked_up_to: Option<LedgerId>,
    /// Ledgers up to it may have lost entries here.
    pub limbo_up_to: Option<LedgerId>,
    /// The highest ledger here that the metadata store was seen to know, and is expected to know still.
    pub known_up_to: Option<LedgerId>,
    /// The mark in the metadata store, as it was written last; behind it a newer one while it is not known whether that got there.
    pub store_marks: [Option<u64>; 2],
}

/// Why a text is not one of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KnownError {
    /// Another first line: a later version.
    #[error("it begins with {0:?}, and this version reads up to {FIRST_LINE:?}")]
    Version(String),
    /// A line or the checksum is wrong.
    #[error("it is damaged")]
    Damaged,
}

/// The line of a mark that may not be in the store yet.
const NEXT_MARK: &str = "nextStoreMark";

impl ClusterRecord {
    /// The text of the file.
    pub fn to_text(&self) -> String {
        let mut text = format!("{FIRST_LINE}\n");
        let ids = [
            ("checkedUpTo", self.checked_up_to),
            ("limboUpTo", self.limbo_up_to),
            ("knownUpTo", self.known_up_to),
        ];
        for (name, id) in ids {
            if let Some(id) = id {
                let _ = writeln!(text, "{name} {id}");
            }
        }
        for (name, mark) in ["storeMark", NEXT_MARK].into_iter().zip(self.store_marks) {
            if let Some(mark) = mark {
                let _ = writeln!(text, "{name} {mark:016x}");
            }
        }
        let crc = crc32c(text.as_bytes());
        let _ = writeln!(text, "crc32c {crc:08x}");
        text
    }

    /// Reads a text.
    pub fn parse(bytes: &[u8]) -> Result<ClusterRecord, KnownError> {
        let text = std::str::from_utf8(bytes).map_err(|_| KnownError::Damaged)?;
        let first = text.lines().next().unwrap_or_default();
        if first != FIRST_LINE && !FIRST_LINES_BEFORE.contains(&first) {
            // A flipped bit can turn one version into another, so only a line that the checksum covers counts as newer.
            let is_sealed = Self::sealed(bytes, text).is_some();
            return Err(match first.starts_with("bindery-known ") && is_sealed {
                true => KnownError::Version(first.chars().take(80).collect()),
                false => KnownError::Damaged,
            });
        }
        let mut known = ClusterRecord::default();
        for line in Self::sealed(bytes, text).ok_or(KnownError::Damaged)?.lines().skip(1) {
            let mut words = line.split(' ');
            let name = words.next();
            if name == Some("storeMark") || name == Some(NEXT_MARK) {
                let mark = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
                // Earlier versions wrote both by the first name.
                let from = usize::from(name == Some(NEXT_MARK));
                let slot = known.store_marks[from..].iter_mut().find(|slot| slot.is_none());
                *slot.ok_or(KnownError::Damaged)? = Some(mark.ok_or(KnownError::Damaged)?);
                continue;
            }
            let mut id = || words.next().and_then(|word| word.parse().ok()).and_then(LedgerId::new);
            match name {
                Some("checkedUpTo") => known.checked_up_to = Some(id().ok_or(KnownError::Damaged)?),
                Some("limboUpTo") => known.limbo_up_to = Some(id().ok_or(KnownError::Damaged)?),
                Some("knownUpTo") => known.known_up_to = Some(id().ok_or(KnownError::Damaged)?),
                Some("acceptedGap") if first != FIRST_LINE => {}
                _ => return Err(KnownError::Damaged),
            }
        }
        Ok(known)
    }

    /// The lines that the checksum at the end covers, when it matches.
    fn sealed<'a>(bytes: &[u8], text: &'a str) -> Option<&'a str> {
        let at = text.rfind("crc32c ")?;
        let is_sealed = text[at..] == format!("crc32c {:08x}\n", crc32c(&bytes[..at]));
        is_sealed.then_some(&text[..at])
    }

    /// True when the store that shows this mark is the one that this bookie knows.
    pub fn knows(&self, mark: u64) -> bool {
        self.store_marks.contains(&Some(mark))
    }

    /// What two copies say together: the one that forbids more counts.
    pub fn joined(self, other: ClusterRecord) -> ClusterRecord {
        ClusterRecord {
            checked_up_to: self.checked_up_to.max(other.checked_up_to),
            limbo_up_to: self.limbo_up_to.max(other.limbo_up_to),
            known_up_to: self.known_up_to.max(other.known_up_to),
            store_marks: self.store_marks.map(|mark| mark.filter(|mark| other.knows(*mark))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(raw: i64) -> LedgerId {
        LedgerId::new(raw).unwrap()
    }

    fn full() -> ClusterRecord {
        ClusterRecord {
            checked_up_to: Some(id(i64::MAX)),
            limbo_up_to: Some(id(0)),
            known_up_to: Some(id(5)),
            store_marks: [Some(0x1111_2222_333a), Some(u64::MAX)],
        }
    }

    #[test]
    fn texts_are_read_back_and_no_changed_bit_is() {
        for known in [
            ClusterRecord::default(),
            full(),
            ClusterRecord { limbo_up_to: Some(id(7)), ..ClusterRecord::default() },
        ] {
            let text = known.to_text();
            assert_eq!(ClusterRecord::parse(text.as_bytes()), Ok(known), "{text}");
            for at in 0..text.len() {
                for bit in 0..8 {
                    let mut bytes = text.clone().into_bytes();
                    bytes[at] ^= 1 << bit;
                    assert!(ClusterRecord::parse(&bytes).is_err(), "bit {bit} of byte {at} of {text}");
                }
                assert!(ClusterRecord::parse(&text.as_bytes()[..at]).is_err(), "cut at {at}: {text}");
            }
        }
        let sealed = |text: &str| format!("{text}crc32c {:08x}\n", crc32c(text.as_bytes()));
        let later = sealed("bindery-known 4\nwhatever\n");
        assert_eq!(
            ClusterRecord::parse(later.as_bytes()),
            Err(KnownError::Version("bindery-known 4".into()))
        );
        for before in
            ["bindery-known 1\ncheckedUpTo 5\n", "bindery-known 2\ncheckedUpTo 5\nacceptedGap 1 9\n"]
        {
            let known = ClusterRecord { checked_up_to: Some(id(5)), ..ClusterRecord::default() };
            assert_eq!(ClusterRecord::parse(sealed(before).as_bytes()), Ok(known));
        }
        let now = sealed("bindery-known 3\nacceptedGap 1 9\n");
        assert_eq!(ClusterRecord::parse(now.as_bytes()), Err(KnownError::Damaged));
    }

    #[test]
    fn of_two_copies_the_stricter_counts() {
        let none = ClusterRecord::default();
        let joined = none.joined(full());
        assert_eq!((joined.checked_up_to, joined.limbo_up_to), (Some(id(i64::MAX)), Some(id(0))));
        assert_eq!(joined.known_up_to, Some(id(5)));
        let marked = |store_marks| ClusterRecord { store_marks, ..none };
        // A crash before the new mark was written to the store, and one after.
        for (one, two, both) in
            [([7, 8], [7, 0], &[7][..]), ([8, 0], [7, 8], &[8]), ([7, 8], [8, 7], &[7, 8])]
        {
            let of = |marks: &[u64]| {
                let mut marks = marks.iter().copied().filter(|mark| *mark != 0);
                marked([marks.next(), marks.next()])
            };
            let joined = of(&one).joined(of(&two));
            for mark in 0..10 {
                assert_eq!(joined.knows(mark), both.contains(&mark), "{one:?} {two:?} {mark}");
            }
            assert!(!of(&one).joined(none).knows(one[0]), "a copy from before the first mark");
        }
    }
}
