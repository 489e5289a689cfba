//! Entries between payload and stored form (protocol reference, section 3.1).
//!
//! # Invariants
//! 1. Only authentic entries are returned: they have the requested ids, and a valid digest. Authentic does not mean "as
//!    the writer sent it": anyone with the password may have packed the entry again (invariant 3).
//! 2. Bytes of a bookie give `None`, never a panic.
//! 3. The LAC (last add confirmed) in the header of an authentic entry was confirmed when somebody stored that copy. A writer
//!    and a recovery send an entry before it is confirmed, with a LAC below it. Re-replication by Java packs it again, with the
//!    LAC of that moment: the entry itself, or a later one.

use bindery_types::{DIGEST_SIZE_BYTES_MAX, Digester, EntryId, LedgerId};
use bindery_wire::entry::{
    ENTRY_PREFIX_SIZE_BYTES, EXPLICIT_LAC_PREFIX_SIZE_BYTES, EntryHeader, ExplicitLac, ledger_length_bytes,
};
use bytes::{BufMut, Bytes};

/// An entry as a reader gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Its number.
    pub id: EntryId,
    /// What was appended.
    pub payload: Bytes,
    /// The LAC (last add confirmed) inside this copy. As its writer sent it that is below the entry; a copy made by
    /// BookKeeper's re-replication has the LAC of that moment, which is the entry itself or a later one.
    pub last_add_confirmed: Option<EntryId>,
    /// Sum of the payloads of the ledger up to and including this one.
    pub length_bytes: u64,
}

/// Makes and checks the stored forms of one ledger's entries and LACs.
#[derive(Debug, Clone)]
pub(crate) struct EntryCodec {
    ledger: LedgerId,
    digester: Digester,
}

/// Bytes before the payload, at most.
pub(crate) const OVERHEAD_SIZE_BYTES_MAX: usize = ENTRY_PREFIX_SIZE_BYTES + DIGEST_SIZE_BYTES_MAX;

impl EntryCodec {
    pub fn new(ledger: LedgerId, digester: Digester) -> EntryCodec {
        EntryCodec { ledger, digester }
    }

    /// Length of the stored form.
    pub fn stored_size_bytes(&self, payload: usize) -> usize {
        self.payload_at() + payload
    }

    /// Appends the stored form. `length_bytes` includes this payload.
    pub fn put(
        &self,
        entry: EntryId,
        lac: Option<EntryId>,
        length_bytes: u64,
        payload: &[u8],
        out: &mut impl BufMut,
    ) {
        let mut header = [0u8; ENTRY_PREFIX_SIZE_BYTES];
        let fields = EntryHeader {
            ledger_id: self.ledger.get(),
            entry_id: entry.get(),
            last_add_confirmed: EntryId::to_wire(lac),
        };
        let length = i64::try_from(length_bytes).expect("the writer stops before the length overflows");
        fields.put_with_length(length, &mut header.as_mut_slice());
        let digest = self.digester.compute(&header, payload);
        out.put_slice(&header);
        out.put_slice(digest.as_bytes());
        out.put_slice(payload);
    }

    /// Checks ids and digest as [`open`](Self::open) does; the LAC (last add confirmed) inside.
    pub fn check(&self, expected: EntryId, stored: &[u8]) -> Option<Option<EntryId>> {
        self.judge(Some(expected), stored).map(|(_, lac, _)| lac)
    }

    /// Checks ids and digest of a stored entry (invariant 1). `expected` is `None` for the last entry a bookie has.
    pub fn open(&self, expected: Option<EntryId>, stored: &Bytes) -> Option<Entry> {
        let (id, lac, length_bytes) = self.judge(expected, stored)?;
        let payload = stored.slice(self.payload_at()..);
        Some(Entry { id, payload, last_add_confirmed: lac, length_bytes })
    }

    fn payload_at(&self) -> usize {
        ENTRY_PREFIX_SIZE_BYTES + self.digester.digest_type().size_bytes()
    }

    /// Id, LAC and length of an authentic entry.
    fn judge(&self, expected: Option<EntryId>, stored: &[u8]) -> Option<(EntryId, Option<EntryId>, u64)> {
        let (front, payload) = stored.split_at_checked(self.payload_at())?;
        let (header, digest) = front.split_at(ENTRY_PREFIX_SIZE_BYTES);
        let fields = EntryHeader::of(header).ok()?;
        let id = EntryId::new(fields.entry_id)?;
        if fields.ledger_id != self.ledger.get() || expected.is_some_and(|expected| expected != id) {
            return None;
        }
        let lac = lac_of_wire(fields.last_add_confirmed)?;
        let length_bytes = u64::try_from(ledger_length_bytes(header)?).ok()?;
        self.digester.verify(header, payload, digest).then_some((id, lac, length_bytes))
    }

    /// The body of an explicit LAC (protocol reference, section 3.3).
    pub fn lac_body(&self, lac: EntryId) -> Bytes {
        let mut body = Vec::with_capacity(EXPLICIT_LAC_PREFIX_SIZE_BYTES + DIGEST_SIZE_BYTES_MAX);
        ExplicitLac { ledger_id: self.ledger.get(), last_add_confirmed: lac.get() }.put(&mut body);
        let digest = self.digester.compute(&body, &[]);
        body.extend_from_slice(digest.as_bytes());
        Bytes::from(body)
    }

    /// Checks the body of an explicit LAC.
    pub fn open_lac(&self, body: &[u8]) -> Option<Option<EntryId>> {
        let (front, digest) = body.split_at_checked(EXPLICIT_LAC_PREFIX_SIZE_BYTES)?;
        let fields = ExplicitLac::of(front).ok()?;
        let is_ours = fields.ledger_id == self.ledger.get() && self.digester.verify(front, &[], digest);
        if is_ours { lac_of_wire(fields.last_add_confirmed) } else { None }
    }
}

/// Whether stored bytes have these ids, and a whole header; for entries whose password is not known.
pub(crate) fn has_ids(stored: &[u8], ledger: LedgerId, entry: EntryId) -> bool {
    let header = stored.get(..ENTRY_PREFIX_SIZE_BYTES).and_then(|header| EntryHeader::of(header).ok());
    header.is_some_and(|fields| fields.ledger_id == ledger.get() && fields.entry_id == entry.get())
}

/// `None` for a number that is neither an entry nor "none". The last number is no entry: a segment may begin behind each.
fn lac_of_wire(raw: i64) -> Option<Option<EntryId>> {
    match raw {
        -1 => Some(None),
        i64::MAX => None,
        raw => EntryId::new(raw).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::DigestType;

    fn codec(digest: DigestType) -> EntryCodec {
        EntryCodec::new(LedgerId::new(7).unwrap(), Digester::new(digest, b"p"))
    }

    #[test]
    fn an_entry_reads_back_and_any_other_bytes_are_refused() {
        let (id, lac) = (EntryId::new(5).unwrap(), EntryId::new(3));
        for digest in DigestType::ALL {
            let codec = codec(digest);
            let mut stored = Vec::new();
            codec.put(id, lac, 12, b"hello", &mut stored);
            assert_eq!(stored.len(), codec.stored_size_bytes(5));
            let stored = Bytes::from(stored);
            let entry = Entry { id, payload: "hello".into(), last_add_confirmed: lac, length_bytes: 12 };
            assert_eq!(codec.open(Some(id), &stored), Some(entry.clone()));
            assert_eq!(codec.open(None, &stored), Some(entry));
            assert_eq!(codec.open(EntryId::new(6), &stored), None, "invariant 1: another entry");
            for size in 0..stored.len() - 5 {
                assert_eq!(codec.open(Some(id), &stored.slice(..size)), None, "invariant 2: {size} bytes");
            }
            for at in 0..stored.len() {
                let mut damaged = stored.to_vec();
                damaged[at] ^= 0x80;
                // Without a digest only ids and ranges are checked.
                if digest != DigestType::Dummy || at < 16 {
                    assert_eq!(codec.open(Some(id), &damaged.into()), None, "invariant 1: byte {at}");
                }
            }
        }
    }

    #[test]
    fn a_lac_that_no_entry_has_is_refused() {
        for lac in [i64::MIN, -2, i64::MAX] {
            assert_eq!(lac_of_wire(lac), None, "{lac}");
        }
        assert_eq!(lac_of_wire(-1), Some(None));
    }

    #[test]
    fn an_explicit_lac_reads_back_and_any_other_bytes_are_refused() {
        let codec = codec(DigestType::Crc32c);
        let body = codec.lac_body(EntryId::new(9).unwrap());
        assert_eq!(codec.open_lac(&body), Some(EntryId::new(9)));
        for at in 0..body.len() {
            let mut damaged = body.to_vec();
            damaged[at] ^= 1;
            assert_eq!(codec.open_lac(&damaged), None, "byte {at}");
            assert_eq!(codec.open_lac(&body[..at]), None, "{at} bytes");
        }
    }

    /// Java's re-replication packs an entry again, with the ledger's LAC of that moment.
    #[test]
    fn an_entry_that_was_packed_again_when_it_was_confirmed_is_authentic() {
        for digest in DigestType::ALL {
            let codec = codec(digest);
            for lac in [5, 6, i64::MAX - 1] {
                let (id, lac) = (EntryId::new(5).unwrap(), EntryId::new(lac));
                let mut stored = Vec::new();
                codec.put(id, lac, 12, b"hello", &mut stored);
                let entry = Entry { id, payload: "hello".into(), last_add_confirmed: lac, length_bytes: 12 };
                assert_eq!(codec.open(Some(id), &stored.into()), Some(entry), "{digest:?}");
            }
        }
    }
}
