//! One record of the journal: a header of 12 bytes, then the body.
//!
//! ```text
//! offset size
//!      0    4  length of the body in bytes
//!      4    4  CRC32C of the body
//!      8    1  kind
//!      9    3  zero
//!     12    n  body
//! ```
//!
//! The body of every kind starts with its ledger id, so an entry has no second copy of its ids. The 12 header bytes
//! are covered by the checksum of the part they lie in ([`fold_header`]). Big-endian, as on the wire; what
//! [`bindery_types::tier`] encodes is little-endian.

use bindery_types::codec::Take;
use bindery_types::tier::{TierExtent, TierStamp};
use bindery_types::{EntryId, LedgerId, MASTER_KEY_SIZE_BYTES, MasterKey};

/// Bytes before the body.
pub const HEADER_SIZE_BYTES: usize = 12;

/// Smallest body: a ledger id.
const BODY_MIN: usize = 8;
/// Smallest body of an entry: ledger, entry, LAC (protocol reference, section 3.1).
pub const ENTRY_BODY_MIN: usize = 24;
const KEY_END: usize = 8 + MASTER_KEY_SIZE_BYTES;
/// The creation time in a record of what is in object storage.
const CREATED_SIZE_BYTES: usize = 8;

/// The meaning of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// An entry, exactly as received.
    Entry = 1,
    /// Ledger id, master key: before the first entry of a ledger this bookie did not know.
    LedgerKey = 2,
    /// Ledger id, master key: the ledger is fenced. Holds the key, so it can recreate the ledger by itself.
    Fence = 3,
    /// Ledger id, master key, then the opaque body of a WRITE_LAC.
    ExplicitLac = 4,
    /// Ledger id alone: the fence record of the M4 canary; never written otherwise.
    FenceWithoutKey = 5,
    /// Ledger id, one byte, 1 when the ledger is fenced: everything of the ledger before it is gone. Any other record
    /// of the ledger behind it says that the ledger is back. Since format version 2.
    Removal = 6,
    /// Ledger id, one byte, 1 when the ledger enters limbo, 0 when it leaves: whether entries of it may be missing here.
    /// The ledger exists from then on. An older build takes it for damage.
    Limbo = 7,
    /// Ledger id, stamp of the update, creation time of the ledger (i64, not in records of older builds), extents: the entries up to
    /// the last one of these are in object storage, too. Says nothing about whether the ledger exists. Since format version 5.
    Reconciled = 8,
    /// As [`Kind::Reconciled`], of a ledger that is brought back from object storage: it exists from then on, without copies here,
    /// and the entries are read from there. An older build takes it for damage.
    Restored = 9,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Entry,
            2 => Kind::LedgerKey,
            3 => Kind::Fence,
            4 => Kind::ExplicitLac,
            5 => Kind::FenceWithoutKey,
            6 => Kind::Removal,
            7 => Kind::Limbo,
            8 => Kind::Reconciled,
            9 => Kind::Restored,
            _ => return None,
        })
    }
}

/// CRC32C (Castagnoli) of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Chains one record header into the checksum of its part.
pub fn fold_header(chain: u32, header: &[u8; HEADER_SIZE_BYTES]) -> u32 {
    let mut block = [0; 4 + HEADER_SIZE_BYTES];
    block[..4].copy_from_slice(&chain.to_be_bytes());
    block[4..].copy_from_slice(header);
    crc32c(&block)
}

/// Writes header and body (the concatenation of `pieces`) into `target`, which must be exactly that long, and returns
/// the header and the body's CRC. The body is checksummed right behind the copy, while it is in the CPU's cache.
///
/// # Panics
/// When the lengths differ.
pub fn encode(target: &mut [u8], kind: Kind, pieces: &[&[u8]]) -> ([u8; HEADER_SIZE_BYTES], u32) {
    let (header, body) = target.split_at_mut(HEADER_SIZE_BYTES);
    let mut at = 0;
    for piece in pieces {
        body[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
    assert_eq!(at, body.len(), "a record fills its place");
    let crc = crc32c(body);
    let mut h = [0; HEADER_SIZE_BYTES];
    h[..4].copy_from_slice(&u32::try_from(at).expect("a record is far below 4 GiB").to_be_bytes());
    h[4..8].copy_from_slice(&crc.to_be_bytes());
    h[8] = kind as u8;
    header.copy_from_slice(&h);
    (h, crc)
}

/// A record as replay sees it; borrows from the group that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its meaning.
    pub kind: Kind,
    /// The ledger it is about.
    pub ledger: LedgerId,
    /// CRC32C of `body`, verified.
    pub crc32c: u32,
    /// All of the body, ledger id included.
    pub body: &'a [u8],
}

impl<'a> Record<'a> {
    /// The entry id of an entry record.
    pub fn entry(&self) -> Option<EntryId> {
        (self.kind == Kind::Entry).then(|| EntryId::new(read_i64(self.body, 8)))?
    }

    /// The LAC (last add confirmed) inside an entry record.
    pub fn last_add_confirmed(&self) -> Option<EntryId> {
        (self.kind == Kind::Entry).then(|| EntryId::new(read_i64(self.body, 16)))?
    }

    /// The master key of a key, fence or explicit-LAC record.
    pub fn master_key(&self) -> Option<MasterKey> {
        match self.kind {
            Kind::LedgerKey | Kind::Fence | Kind::ExplicitLac => {
                MasterKey::from_slice(&self.body[8..KEY_END])
            }
            Kind::Entry
            | Kind::FenceWithoutKey
            | Kind::Removal
            | Kind::Limbo
            | Kind::Reconciled
            | Kind::Restored => None,
        }
    }

    /// Of a removal record: whether the ledger was fenced, which is remembered.
    pub fn is_fenced_removal(&self) -> bool {
        self.kind == Kind::Removal && self.body[BODY_MIN] != 0
    }

    /// Of a limbo record: whether the ledger enters limbo.
    pub fn enters_limbo(&self) -> bool {
        self.kind == Kind::Limbo && self.body[BODY_MIN] != 0
    }

    /// Of a reconciled or restored record: which update it is, when its ledger was created, if that is known, and its extents,
    /// ascending and without gaps.
    pub fn reconciled(&self) -> Option<(TierStamp, Option<i64>, Vec<TierExtent>)> {
        if !matches!(self.kind, Kind::Reconciled | Kind::Restored) {
            return None;
        }
        let mut fields = Take(&self.body[BODY_MIN..]);
        let stamp = TierStamp::decode(&mut fields)?;
        // The length tells: extents are much longer.
        let created_ms = match fields.0.len() % TierExtent::SIZE_BYTES {
            CREATED_SIZE_BYTES => Some(fields.i64()?),
            _ => None,
        };
        let mut extents: Vec<TierExtent> = Vec::with_capacity(fields.0.len() / TierExtent::SIZE_BYTES);
        while !fields.is_empty() {
            let extent = TierExtent::decode(&mut fields)?;
            if extents
                .last()
                .is_some_and(|before| before.last.get().checked_add(1) != Some(extent.first.get()))
            {
                return None;
            }
            extents.push(extent);
        }
        (!extents.is_empty()).then_some((stamp, created_ms, extents))
    }

    /// The WRITE_LAC body of an explicit-LAC record.
    pub fn explicit_lac(&self) -> Option<&'a [u8]> {
        (self.kind == Kind::ExplicitLac).then(|| &self.body[KEY_END..])
    }
}

fn read_i64(bytes: &[u8], at: usize) -> i64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    i64::from_be_bytes(raw)
}

/// Why the bytes of a part are not what its group header promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// A record reaches beyond its part.
    #[error("record at {0} reaches beyond its part")]
    Length(usize),
    /// Unknown kind, non-zero reserved bytes, or a body that none of its kind has.
    #[error("record at {0} is malformed")]
    Malformed(usize),
    /// The body's checksum differs.
    #[error("record at {0} has a wrong body checksum")]
    BodyCrc(usize),
    /// Count or chained checksum of the headers differ.
    #[error("record headers do not match the group header")]
    Headers,
}

/// Walks the records of a part and checks every byte: each body against its CRC, all headers against `headers_crc`.
/// `visit` sees the records only after the whole part proved good.
pub fn decode_part<'a>(
    data: &'a [u8],
    record_count: u32,
    headers_crc: u32,
) -> Result<Vec<Record<'a>>, BadRecord> {
    // A record takes at least a header and a ledger id: bounds the allocation by the bytes that are really there.
    let capacity = (record_count as usize).min(data.len() / (HEADER_SIZE_BYTES + BODY_MIN));
    let mut records = Vec::with_capacity(capacity);
    let mut chain = 0;
    let mut at = 0;
    while at < data.len() {
        let Some(header) = data[at..].first_chunk::<HEADER_SIZE_BYTES>() else {
            return Err(BadRecord::Length(at));
        };
        chain = fold_header(chain, header);
        let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let crc = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let body_at = at + HEADER_SIZE_BYTES;
        let Some(body) = data.get(body_at..).and_then(|rest| rest.get(..length)) else {
            return Err(BadRecord::Length(at));
        };
        let Some(kind) = Kind::from_byte(header[8]) else { return Err(BadRecord::Malformed(at)) };
        let body_min = match kind {
            Kind::Entry => ENTRY_BODY_MIN,
            Kind::LedgerKey | Kind::Fence | Kind::ExplicitLac => KEY_END,
            Kind::FenceWithoutKey => BODY_MIN,
            Kind::Removal | Kind::Limbo => BODY_MIN + 1,
            Kind::Reconciled | Kind::Restored => BODY_MIN + TierStamp::SIZE_BYTES + TierExtent::SIZE_BYTES,
        };
        if header[9..] != [0; 3] || length < body_min {
            return Err(BadRecord::Malformed(at));
        }
        let Some(ledger) = LedgerId::new(read_i64(body, 0)) else { return Err(BadRecord::Malformed(at)) };
        if kind == Kind::Entry && EntryId::new(read_i64(body, 8)).is_none() {
            return Err(BadRecord::Malformed(at));
        }
        if crc32c(body) != crc {
            return Err(BadRecord::BodyCrc(at));
        }
        let record = Record { kind, ledger, crc32c: crc, body };
        if matches!(kind, Kind::Reconciled | Kind::Restored) && record.reconciled().is_none() {
            return Err(BadRecord::Malformed(at));
        }
        records.push(record);
        at = body_at + length;
    }
    if records.len() != record_count as usize || chain != headers_crc {
        return Err(BadRecord::Headers);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ledger: i64, entry: i64, payload: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        for v in [ledger, entry, -1, payload.len() as i64] {
            body.extend_from_slice(&v.to_be_bytes());
        }
        body.extend_from_slice(payload);
        body
    }

    fn part(bodies: &[(Kind, Vec<u8>)]) -> (Vec<u8>, u32) {
        let (mut data, mut chain) = (Vec::new(), 0);
        for (kind, body) in bodies {
            let mut record = vec![0; HEADER_SIZE_BYTES + body.len()];
            let (header, _) = encode(&mut record, *kind, &[body]);
            chain = fold_header(chain, &header);
            data.extend_from_slice(&record);
        }
        (data, chain)
    }

    #[test]
    fn records_come_back_as_written() {
        let key = [&7i64.to_be_bytes()[..], &[9; 20]].concat();
        let (data, chain) = part(&[(Kind::LedgerKey, key), (Kind::Entry, entry(7, 3, b"hello"))]);
        let records = decode_part(&data, 2, chain).unwrap();
        assert_eq!(records[0].master_key(), Some(MasterKey::new([9; 20])));
        assert_eq!(records[1].entry(), EntryId::new(3));
        assert_eq!(records[1].last_add_confirmed(), None);
        assert_eq!(&records[1].body[32..], b"hello");
    }

    fn extents(ranges: &[(i64, i64)]) -> Vec<u8> {
        let mut body = 7i64.to_be_bytes().to_vec();
        TierStamp { epoch: 2, update: 5 }.encode(&mut body);
        for (first, last) in ranges {
            for number in [first, last] {
                body.extend_from_slice(&number.to_le_bytes());
            }
            body.extend_from_slice(&[3; 40]);
        }
        body
    }

    #[test]
    fn a_reconciled_record_comes_back_and_one_with_impossible_extents_does_not() {
        let (data, chain) = part(&[(Kind::Reconciled, extents(&[(0, 4), (5, 5)]))]);
        let records = decode_part(&data, 1, chain).unwrap();
        let (stamp, created_ms, found) = records[0].reconciled().unwrap();
        assert_eq!((stamp, created_ms), (TierStamp { epoch: 2, update: 5 }, None));
        let mut created = extents(&[(0, 4), (5, 5)]);
        created.splice(20..20, 1_234_567_i64.to_le_bytes());
        let (data, chain) = part(&[(Kind::Reconciled, created)]);
        let with = decode_part(&data, 1, chain).unwrap()[0].reconciled();
        assert_eq!(with, Some((stamp, Some(1_234_567), found.clone())));
        let ranges: Vec<_> = found.iter().map(|extent| (extent.first.get(), extent.last.get())).collect();
        assert_eq!(ranges, [(0, 4), (5, 5)]);
        assert_eq!((records[0].entry(), records[0].master_key()), (None, None));
        let mut longer = extents(&[(0, 4)]);
        longer.push(0);
        let bad = [extents(&[]), extents(&[(4, 3)]), extents(&[(-1, 3)]), longer];
        for body in bad.into_iter().chain([extents(&[(0, 4), (6, 7)]), extents(&[(0, 4), (4, 7)])]) {
            let (data, chain) = part(&[(Kind::Reconciled, body)]);
            assert_eq!(decode_part(&data, 1, chain), Err(BadRecord::Malformed(0)));
        }
        let max = i64::MAX;
        let (data, chain) = part(&[(Kind::Reconciled, extents(&[(0, max), (i64::MIN, 0)]))]);
        assert_eq!(decode_part(&data, 1, chain), Err(BadRecord::Malformed(0)));
    }

    /// Reliability Z5: a damaged part never yields a record.
    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let fence = [&7i64.to_be_bytes()[..], &[9; 20]].concat();
        let (data, chain) = part(&[(Kind::Entry, entry(7, 3, b"hello")), (Kind::Fence, fence)]);
        every_change_is_noticed(&data, 2, chain);
        let (data, chain) = part(&[(Kind::Reconciled, extents(&[(0, 4)]))]);
        every_change_is_noticed(&data, 1, chain);
        let mut created = extents(&[(0, 4)]);
        created.splice(20..20, [7; 8]);
        let (data, chain) = part(&[(Kind::Reconciled, created)]);
        every_change_is_noticed(&data, 1, chain);
        let (data, chain) = part(&[(Kind::Restored, extents(&[(0, 4)]))]);
        assert_eq!(decode_part(&data, 1, chain).unwrap()[0].reconciled().unwrap().2.len(), 1);
        every_change_is_noticed(&data, 1, chain);
    }

    fn every_change_is_noticed(data: &[u8], count: u32, chain: u32) {
        for bit in 0..data.len() * 8 {
            let mut bad = data.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_part(&bad, count, chain).is_err(), "bit {bit}");
        }
        for cut in 0..data.len() {
            assert!(decode_part(&data[..cut], count, chain).is_err(), "cut at {cut}");
        }
    }
}
