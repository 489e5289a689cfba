//! As much of DER (ITU-T X.690) as it takes to read a PKCS12 store and the names in a certificate.
//!
//! # Invariants
//! 1. A length is checked against the bytes at hand. The indefinite lengths of BER are refused.
//! 2. Nothing here is recursive: callers enter nested elements one by one, so that deep nesting cannot exhaust the stack.

/// DER tags.
pub(super) const INTEGER: u8 = 0x02;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const OID: u8 = 0x06;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;
/// The context-specific tag `[0]`, constructed and primitive: the enclosing structure defines the type of the content.
pub(super) const CONTEXT_0: u8 = 0xa0;
pub(super) const CONTEXT_0_PRIMITIVE: u8 = 0x80;

/// The bytes do not have the structure that is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// Reads bytes element by element.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tag of the next element.
    pub(super) fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The next element: its tag and its content.
    pub(super) fn next(&mut self) -> Result<(u8, &'a [u8]), Malformed> {
        let (&tag, rest) = self.0.split_first().ok_or(Malformed)?;
        let (&first, mut rest) = rest.split_first().ok_or(Malformed)?;
        let len = match first {
            0..=0x7f => usize::from(first),
            0x81..=0x84 => {
                let (bytes, behind) = rest.split_at_checked(usize::from(first & 0x7f)).ok_or(Malformed)?;
                rest = behind;
                bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte))
            }
            _ => return Err(Malformed),
        };
        let (content, behind) = rest.split_at_checked(len).ok_or(Malformed)?;
        self.0 = behind;
        Ok((tag, content))
    }

    /// The content of the next element, which must have this tag.
    pub(super) fn take(&mut self, tag: u8) -> Result<&'a [u8], Malformed> {
        match self.next()? {
            (found, content) if found == tag => Ok(content),
            _ => Err(Malformed),
        }
    }

    /// As [`take`](Self::take), but returns a reader of the content.
    pub(super) fn enter(&mut self, tag: u8) -> Result<Reader<'a>, Malformed> {
        self.take(tag).map(Reader)
    }

    /// The whole of the next element, tag and length included.
    pub(super) fn whole(&mut self) -> Result<&'a [u8], Malformed> {
        let begin = self.0;
        self.next()?;
        Ok(&begin[..begin.len() - self.0.len()])
    }

    /// The next element as a non-negative INTEGER. Malformed if it has another tag, is negative, or exceeds `u32::MAX`.
    pub(super) fn number(&mut self) -> Result<u32, Malformed> {
        let bytes = self.take(INTEGER)?;
        if bytes.is_empty() || bytes.len() > 5 || bytes[0] & 0x80 != 0 {
            return Err(Malformed);
        }
        let number = bytes.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        u32::try_from(number).map_err(|_| Malformed)
    }
}

/// The issuer and the subject of a certificate, both still encoded, tag and length included, so that they can be compared as bytes.
pub(super) fn names(certificate: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let mut fields = Reader::new(certificate).enter(SEQUENCE)?.enter(SEQUENCE)?;
    if fields.peek() == Some(CONTEXT_0) {
        fields.next()?; // version
    }
    fields.take(INTEGER)?; // serial number
    fields.take(SEQUENCE)?; // algorithm of the signature
    let issuer = fields.whole()?;
    fields.take(SEQUENCE)?; // validity
    Ok((issuer, fields.whole()?))
}
