//! Hand-over of an open ledger between writers, as text in its custom metadata.
//!
//! A ledger has one writer. The property `bindery.writer` says who that is, and every change of it is a conditional
//! write of the metadata: of two that claim a ledger at once, one wins. Recovery ignores it.
//! ```text
//! idle next=<entry id> length=<bytes>     nobody; everything below `next` is confirmed
//! busy token=<16 hex digits>              the one that drew the token
//! ```

use std::fmt;

use bindery_types::{EntryId, LedgerMetadata};

/// Name of the property.
pub const HANDOVER_PROPERTY: &str = "bindery.writer";

/// Names that begin so are the client's own.
pub(crate) const RESERVED_PREFIX: &str = "bindery.";

/// Who writes a ledger that can be handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handover {
    /// Nobody: the next writer goes on at `next`.
    Idle {
        /// The next entry; the one before it is the LAC (last add confirmed).
        next: EntryId,
        /// Sum of the payloads so far.
        length_bytes: u64,
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

impl fmt::Display for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Handover::Idle { next, length_bytes } => write!(f, "idle next={next} length={length_bytes}"),
            Handover::Busy { token } => write!(f, "busy token={token:016x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_read_back_and_nothing_else_does() {
        for handover in [
            Handover::Idle { next: EntryId::FIRST, length_bytes: 0 },
            Handover::Idle { next: EntryId::new(i64::MAX).unwrap(), length_bytes: u64::MAX },
            Handover::Busy { token: 0xab },
        ] {
            assert_eq!(Handover::parse(&handover.to_string()), Some(handover));
        }
        for bad in [
            "",
            "idle",
            "idle next=-1 length=0",
            "idle next=0",
            "idle next=0 length=0 x",
            "busy token=ab",
            "busy token=00000000000000zz",
            "gone",
        ] {
            assert_eq!(Handover::parse(bad), None, "{bad:?}");
        }
    }
}
