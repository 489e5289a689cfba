//! Hand-over of an open ledger between writers, as text in its custom metadata.
//!
//! A ledger has one writer. The property `bindery.writer` says who that is, and every change of it is a conditional
//! write of the metadata: of two that claim a ledger at once, one wins. Recovery ignores it.
//! ```text
//! idle next=<entry id> length=<bytes> [whole]   nobody; everything below `next` is confirmed
//! busy token=<16 hex digits>                    the one that drew the token
//! ```
//! A ledger whose writer died having it goes on in another one; the two name one another in properties of their own (`chain`).
//!
//! `whole`: see [`Handover::Idle`]. Earlier builds do not write it, and refuse a ledger that has it.

use std::fmt;

use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata};

use crate::metadata_edit::with_ensemble;

/// Name of the property.
pub const HANDOVER_PROPERTY: &str = "bindery.writer";

/// Names that begin so are the client's own.
pub(crate) const RESERVED_PREFIX: &str = "bindery.";

/// Name of the property of a ledger that says which ledger it continues.
pub const CONTINUES_PROPERTY: &str = "bindery.continues";

/// Name of the property of a ledger that says which ledger continues it.
pub const CONTINUED_PROPERTY: &str = "bindery.continued-in";

/// The ledger that continues this one.
pub fn continued_in(metadata: &LedgerMetadata) -> Option<LedgerId> {
    named(metadata, CONTINUED_PROPERTY)
}

/// The ledger that this one continues.
pub fn continues(metadata: &LedgerMetadata) -> Option<LedgerId> {
    named(metadata, CONTINUES_PROPERTY)
}

fn named(metadata: &LedgerMetadata, property: &str) -> Option<LedgerId> {
    let text = std::str::from_utf8(metadata.custom.get(property)?).ok()?;
    LedgerId::new(text.parse().ok()?)
}

/// The writer of a ledger that can be handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Handover {
    /// Nobody: the next writer goes on at `next`.
    Idle {
        /// The next entry; the one before it is the LAC (last add confirmed).
        next: EntryId,
        /// Sum of the payloads so far.
        length_bytes: u64,
        /// The last writer knew of no bookie that lacks entries of the last segment: it began a segment at `next` if there was
        /// one. Otherwise the next writer begins one if the ledger is marked as under-replicated.
        is_whole: bool,
    },
    /// The writer that drew this token.
    Busy {
        /// Random.
        token: u64,
    },
}

/// A property that is neither form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownHandover(pub String);

impl Handover {
    /// What the metadata says; `None` when the ledger cannot be handed over.
    pub fn of(metadata: &LedgerMetadata) -> Option<Result<Handover, UnknownHandover>> {
        let value = metadata.custom.get(HANDOVER_PROPERTY)?;
        let text = String::from_utf8_lossy(value);
        Some(Handover::parse(&text).ok_or_else(|| UnknownHandover(text.into_owned())))
    }

    /// Replaces the property.
    pub(crate) fn set(self, metadata: &mut LedgerMetadata) {
        metadata.custom.insert(HANDOVER_PROPERTY.to_owned(), self.to_string().into_bytes());
    }

    fn parse(text: &str) -> Option<Handover> {
        let mut words = text.split(' ');
        let handover = match words.next()? {
            "idle" => Handover::Idle {
                next: EntryId::new(words.next()?.strip_prefix("next=")?.parse().ok()?)?,
                length_bytes: words.next()?.strip_prefix("length=")?.parse().ok()?,
                is_whole: match words.next() {
                    Some("whole") => true,
                    Some(_) => return None,
                    None => false,
                },
            },
            "busy" => {
                let digits = words.next()?.strip_prefix("token=")?;
                if digits.len() != 16 {
                    return None;
                }
                Handover::Busy { token: u64::from_str_radix(digits, 16).ok()? }
            }
            _ => return None,
        };
        words.next().is_none().then_some(handover)
    }
}

/// Whether a writer that takes a ledger at `next` has to look on which bookies it is marked. Nobody but whoever repairs the
/// ledger removes a mark, so without this a marked ledger would get a segment from each of its writers.
pub(crate) fn needs_marks(metadata: &LedgerMetadata, next: EntryId) -> bool {
    let is_whole = matches!(Handover::of(metadata), Some(Ok(Handover::Idle { is_whole: true, .. })));
    // At the beginning of the last segment nothing of it can be missing.
    !is_whole && metadata.segments().last().is_some_and(|last| last.first_entry < next)
}

/// The metadata of a ledger that a writer takes. `marked`: the bookies on which it is marked as under-replicated, if
/// [that matters](needs_marks). One of them may lack the last entries, and gets the next ones: with a segment of their own the
/// gap ends where a segment does, so that repair sees it (IC23).
pub(crate) fn claimed(
    metadata: &LedgerMetadata,
    token: u64,
    next: EntryId,
    marked: &[String],
) -> LedgerMetadata {
    let is_marked = |bookie: &BookieId| marked.iter().any(|marked| marked == bookie.as_str());
    let mut claimed = match metadata.segments().last() {
        Some(last) if last.ensemble.iter().any(is_marked) => {
            with_ensemble(metadata, next, last.ensemble.clone())
        }
        Some(_) | None => metadata.clone(),
    };
    Handover::Busy { token }.set(&mut claimed);
    claimed
}

impl fmt::Display for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Handover::Idle { next, length_bytes, is_whole } => {
                let whole = if *is_whole { " whole" } else { "" };
                write!(f, "idle next={next} length={length_bytes}{whole}")
            }
            Handover::Busy { token } => write!(f, "busy token={token:016x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::{DigestType, LedgerSecret, Quorum, Segment};

    #[test]
    fn a_marked_ledger_goes_on_with_a_segment_of_its_own() {
        let at = |entry| EntryId::new(entry).unwrap();
        let ensemble: Vec<BookieId> = ["a", "b"].map(|name| BookieId::new(name).unwrap()).to_vec();
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(Quorum::new(2, 2, 1).unwrap(), secret);
        metadata.push_segment(Segment { first_entry: at(0), ensemble: ensemble.clone() }).unwrap();
        let starts = |next: i64, marked: &[&str]| -> Vec<i64> {
            let marked: Vec<String> = marked.iter().map(ToString::to_string).collect();
            let claimed = claimed(&metadata, 7, at(next), &marked);
            assert_eq!(Handover::of(&claimed), Some(Ok(Handover::Busy { token: 7 })));
            assert!(claimed.segments().iter().all(|segment| segment.ensemble == ensemble));
            claimed.segments().iter().map(|segment| segment.first_entry.get()).collect()
        };
        assert_eq!(starts(5, &["x", "b"]), [0, 5]);
        assert_eq!(starts(5, &["x"]), [0], "a bookie of another segment");
        assert_eq!(starts(5, &[]), [0]);
        assert_eq!(starts(0, &["b"]), [0], "nothing was written yet");

        let needs_marks = |next: i64, is_whole: bool| {
            let mut metadata = metadata.clone();
            Handover::Idle { next: at(next), length_bytes: 0, is_whole }.set(&mut metadata);
            needs_marks(&metadata, at(next))
        };
        assert!(needs_marks(5, false) && !needs_marks(5, true) && !needs_marks(0, false));
    }

    #[test]
    fn both_forms_read_back_and_nothing_else_does() {
        for handover in [
            Handover::Idle { next: EntryId::FIRST, length_bytes: 0, is_whole: false },
            Handover::Idle { next: EntryId::new(i64::MAX).unwrap(), length_bytes: u64::MAX, is_whole: false },
            Handover::Idle { next: EntryId::FIRST, length_bytes: 1, is_whole: true },
            Handover::Busy { token: 0xab },
        ] {
            assert_eq!(Handover::parse(&handover.to_string()), Some(handover));
        }
        let earlier = Handover::Idle { next: EntryId::new(5).unwrap(), length_bytes: 9, is_whole: false };
        assert_eq!(Handover::parse("idle next=5 length=9"), Some(earlier), "of earlier builds");
        for bad in [
            "",
            "idle",
            "idle next=-1 length=0",
            "idle next=0",
            "idle next=0 length=0 x",
            "idle next=0 length=0 ",
            "idle next=0 length=0 whole x",
            "busy token=00000000000000ab whole",
            "busy token=ab",
            "busy token=00000000000000zz",
            "gone",
        ] {
            assert_eq!(Handover::parse(bad), None, "{bad:?}");
        }
    }
}
