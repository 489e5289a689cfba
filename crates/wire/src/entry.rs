//! The layout of stored entries and explicit LAC bodies (protocol reference, sections 3.1 and 3.3).
//!
//! ```text
//!  0          8         16        24       32        32+d
//!  +----------+---------+---------+--------+---------+---------+
//!  | ledgerId | entryId | LAC     | length | digest  | payload |     entry
//!  +----------+---------+---------+--------+---------+---------+
//!  | ledgerId | LAC     | digest           explicit LAC
//!  +----------+---------+---------
//! ```
//!
//! All numbers are big-endian. The bookie reads the ids and the last add confirmed (LAC) only: length and digest are for clients.

use bytes::BufMut;

use crate::cursor::take_i64;

/// The shortest body a bookie takes for an entry: ledger id, entry id, LAC.
pub const ENTRY_SIZE_BYTES_MIN: usize = 24;

/// Bytes before an entry's digest.
pub const ENTRY_PREFIX_SIZE_BYTES: usize = 32;

/// Bytes before an explicit LAC's digest.
pub const EXPLICIT_LAC_PREFIX_SIZE_BYTES: usize = 16;

/// A body too short to be an entry, or an explicit LAC: answer `BadRequest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("body of {size_bytes} bytes is too short")]
pub struct EntryTooShort {
    /// Size of the body.
    pub size_bytes: usize,
}

/// The part of an entry that the bookie reads. All three are raw: bytes of a peer may hold negative ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryHeader {
    /// Bytes 0..8.
    pub ledger_id: i64,
    /// Bytes 8..16.
    pub entry_id: i64,
    /// Bytes 16..24: the LAC the writer knew when sending, -1 for none.
    pub last_add_confirmed: i64,
}

impl EntryHeader {
    /// Decodes the first 24 bytes of an entry. Fails only if there are fewer.
    pub fn of(entry: &[u8]) -> Result<EntryHeader, EntryTooShort> {
        let mut rest = entry;
        let mut next = || take_i64(&mut rest).ok_or(EntryTooShort { size_bytes: entry.len() });
        Ok(EntryHeader { ledger_id: next()?, entry_id: next()?, last_add_confirmed: next()? })
    }

    /// Appends the 32 bytes before the digest. `length_bytes` is the ledger's length including this payload.
    pub fn put_with_length(&self, length_bytes: i64, out: &mut impl BufMut) {
        out.put_i64(self.ledger_id);
        out.put_i64(self.entry_id);
        out.put_i64(self.last_add_confirmed);
        out.put_i64(length_bytes);
    }
}

/// The ledger's length that an entry states; `None` when the entry is too short to state one.
pub fn ledger_length_bytes(entry: &[u8]) -> Option<i64> {
    take_i64(&mut entry.get(ENTRY_SIZE_BYTES_MIN..)?)
}

/// The part of an explicit LAC body that the bookie reads; it stores the body as it is. Raw, as in [`EntryHeader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExplicitLac {
    /// Bytes 0..8.
    pub ledger_id: i64,
    /// Bytes 8..16.
    pub last_add_confirmed: i64,
}

impl ExplicitLac {
    /// Decodes the first 16 bytes of an explicit LAC body. Fails only if there are fewer.
    pub fn of(body: &[u8]) -> Result<ExplicitLac, EntryTooShort> {
        let mut rest = body;
        let mut next = || take_i64(&mut rest).ok_or(EntryTooShort { size_bytes: body.len() });
        Ok(ExplicitLac { ledger_id: next()?, last_add_confirmed: next()? })
    }

    /// Appends the 16 bytes before the digest.
    pub fn put(&self, out: &mut impl BufMut) {
        out.put_i64(self.ledger_id);
        out.put_i64(self.last_add_confirmed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_header_reads_back_and_needs_24_bytes() {
        let header = EntryHeader { ledger_id: 7, entry_id: i64::MAX, last_add_confirmed: -1 };
        let mut entry = Vec::new();
        header.put_with_length(1 << 40, &mut entry);
        assert_eq!(entry.len(), ENTRY_PREFIX_SIZE_BYTES);
        for size in 0..=entry.len() {
            let expected = if size < ENTRY_SIZE_BYTES_MIN {
                Err(EntryTooShort { size_bytes: size })
            } else {
                Ok(header)
            };
            assert_eq!(EntryHeader::of(&entry[..size]), expected);
            assert_eq!(ledger_length_bytes(&entry[..size]), (size == 32).then_some(1 << 40));
        }
    }

    #[test]
    fn an_explicit_lac_reads_back_and_needs_16_bytes() {
        let lac = ExplicitLac { ledger_id: 7, last_add_confirmed: 41 };
        let mut body = Vec::new();
        lac.put(&mut body);
        assert_eq!(body.len(), EXPLICIT_LAC_PREFIX_SIZE_BYTES);
        assert_eq!(ExplicitLac::of(&body), Ok(lac));
        assert_eq!(ExplicitLac::of(&body[..15]), Err(EntryTooShort { size_bytes: 15 }));
    }
}
