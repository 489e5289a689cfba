//! The names that tiering uses on the wire, on disk and in object storage: clusters, objects, extents.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::codec::{Put, Take};
use crate::{EntryId, LedgerId};

/// Extents are told to bookies, and relied on in metadata, within this time after the catalogue had them; later it is asked again. A bookie
/// that was told of an object which has gone since asks the catalogue.
pub const EXTENTS_KEPT_FOR: Duration = Duration::from_secs(20);

/// The cluster that an object belongs to: its INSTANCEID, a UUID that `cluster init` (and Java's `metaformat`) draws once.
/// Clusters that share a bucket are told apart by it (T18).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId([u8; 16]);

/// A text that is no id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct InvalidId {
    text: String,
    expected: &'static str,
}

impl ClusterId {
    /// From the 16 bytes of the UUID.
    pub const fn from_bytes(bytes: [u8; 16]) -> ClusterId {
        ClusterId(bytes)
    }

    /// The 16 bytes of the UUID.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Where the hyphens of a UUID stand.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

impl FromStr for ClusterId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<ClusterId, InvalidId> {
        let invalid = || InvalidId { text: text.into(), expected: "an INSTANCEID (a UUID)" };
        let is_uuid = text.len() == 36
            && text.bytes().enumerate().all(|(at, byte)| (byte == b'-') == HYPHENS.contains(&at));
        // Some tools write UUIDs in upper case; keys have one spelling, that of `Display`.
        let digits: String =
            text.chars().filter(|char| *char != '-').map(|char| char.to_ascii_lowercase()).collect();
        if is_uuid { from_hex(&digits).map(ClusterId).ok_or_else(invalid) } else { Err(invalid()) }
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if [4, 6, 8, 10].contains(&index) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterId({self})")
    }
}

/// An object: 48 bits of the time at which its id was reserved (milliseconds since the epoch, big-endian), then 80 random
/// bits. Ids ascend with time, and two tierers never draw the same one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId([u8; 16]);

impl ObjectId {
    /// A new id. Times beyond the year 10889 are cut to their lower 48 bits.
    pub fn new(reserved_ms: u64, random: [u8; 10]) -> ObjectId {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&reserved_ms.to_be_bytes()[2..]);
        bytes[6..].copy_from_slice(&random);
        ObjectId(bytes)
    }

    /// As it stands in an object.
    pub const fn from_bytes(bytes: [u8; 16]) -> ObjectId {
        ObjectId(bytes)
    }

    /// As it stands in an object.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// When the id was reserved, in milliseconds since the epoch by the clock of the tierer that did it.
    pub fn reserved_ms(&self) -> u64 {
        self.0[..6].iter().fold(0, |ms, byte| ms << 8 | u64::from(*byte))
    }
}

impl FromStr for ObjectId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<ObjectId, InvalidId> {
        let invalid = || InvalidId { text: text.into(), expected: "an object id (32 hexadecimal digits)" };
        from_hex(text).map(ObjectId).ok_or_else(invalid)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectId({self})")
    }
}

/// An object as everybody refers to it who keeps a reference: enough to fetch its footer with one ranged GET and to tell
/// whether the store still holds the object that was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// Its id, from which its key follows.
    pub id: ObjectId,
    /// Its whole length, in bytes.
    pub length_bytes: u64,
    /// Where the footer begins; it ends, with the trailer behind it, at the object's end.
    pub footer_offset: u64,
    /// CRC32C of the footer, which holds the checksums of everything before it.
    pub footer_crc: u32,
    /// CRC32C of the entity tag that the store gave when the object was written; 0 when it gave none. It is kept for people, and
    /// decides nothing: every copy of a bucket may change it.
    pub etag_crc: u32,
}

impl ObjectRef {
    /// Bytes that [`ObjectRef::encode`] writes.
    pub const SIZE_BYTES: usize = 40;

    /// Writes it down, little-endian: id 16, length u64, footer offset u64, footer CRC u32, tag CRC u32.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Put(out).bytes(&self.id.0).u64(self.length_bytes).u64(self.footer_offset);
        Put(out).u32(self.footer_crc).u32(self.etag_crc);
    }

    /// Reads what [`ObjectRef::encode`] wrote; `None` when bytes are missing.
    pub fn decode(fields: &mut Take<'_>) -> Option<ObjectRef> {
        Some(ObjectRef {
            id: ObjectId(fields.array()?),
            length_bytes: fields.u64()?,
            footer_offset: fields.u64()?,
            footer_crc: fields.u32()?,
            etag_crc: fields.u32()?,
        })
    }
}

/// A contiguous range of one ledger's entries, and the object that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TierExtent {
    /// The first entry.
    pub first: EntryId,
    /// The last entry, not before the first.
    pub last: EntryId,
    /// The object.
    pub object: ObjectRef,
}

impl TierExtent {
    /// Bytes that [`TierExtent::encode`] writes.
    pub const SIZE_BYTES: usize = 16 + ObjectRef::SIZE_BYTES;

    /// Writes it down, little-endian: first i64, last i64, object.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Put(out).i64(self.first.get()).i64(self.last.get());
        self.object.encode(out);
    }

    /// Reads what [`TierExtent::encode`] wrote; `None` when bytes are missing, or it ends before it begins.
    pub fn decode(fields: &mut Take<'_>) -> Option<TierExtent> {
        let (first, last) = (EntryId::new(fields.i64()?)?, EntryId::new(fields.i64()?)?);
        let object = ObjectRef::decode(fields)?;
        (first <= last).then_some(TierExtent { first, last, object })
    }

    /// True when the entry lies in it.
    pub fn contains(&self, entry: EntryId) -> bool {
        (self.first..=self.last).contains(&entry)
    }
}

/// Which update of a ledger's extents on a bookie this is: of two, the later one is greater. `epoch` is the number of the
/// ledger's life in which the first one came, so that what is left of a ledger that was removed is told from what comes after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TierStamp {
    /// Since when: the same for all updates until the ledger is removed.
    pub epoch: u32,
    /// Counts from 1.
    pub update: u64,
}

impl TierStamp {
    /// Bytes that [`TierStamp::encode`] writes.
    pub const SIZE_BYTES: usize = 12;

    /// Writes it down, little-endian: epoch u32, update u64.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Put(out).u32(self.epoch).u64(self.update);
    }

    /// Reads what [`TierStamp::encode`] wrote; `None` when bytes are missing, or when the number of the update is out
    /// of range: every number within the range has a next one.
    pub fn decode(fields: &mut Take<'_>) -> Option<TierStamp> {
        let (epoch, update) = (fields.u32()?, fields.u64()?);
        (1..=i64::MAX.unsigned_abs()).contains(&update).then_some(TierStamp { epoch, update })
    }
}

/// A tierer's message to a bookie about one ledger: everything up to an entry is in object storage, and where.
///
/// The **last reconciled entry** (LRE) of a ledger on a bookie is a maximum register: an update below it changes nothing.
/// Without extents, and with no entry, this only asks for the register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reconciliation {
    /// The ledger.
    pub ledger: LedgerId,
    /// The last entry that is in object storage; `None` queries the register without changing it.
    pub last: Option<EntryId>,
    /// Ascending and contiguous, ending at `last`. The first begins at or below the bookie's register + 1, or the bookie
    /// refuses the update and answers with its register, so that the next one can begin there. Extents that the bookie has
    /// for the same entries are replaced, which is how it learns that an object was rewritten.
    pub extents: Vec<TierExtent>,
    /// When the ledger was created ([`crate::Creation`]), as the tierer noted it; `None`: not known. The bookie has a register for each
    /// creation time, and at most one at a time.
    pub created_ms: Option<i64>,
}

/// 32 lower-case digits.
fn from_hex(text: &str) -> Option<[u8; 16]> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_hex.then(|| u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_the_same_in_upper_case() {
        let id: ClusterId = "00112233-4455-6677-8899-aabbccddeeff".parse().unwrap();
        assert_eq!("00112233-4455-6677-8899-AABBCCDDEEFF".parse(), Ok(id));
        assert_eq!(id.to_string(), "00112233-4455-6677-8899-aabbccddeeff");
        assert!("00112233-4455-6677-8899-AABBCCDDEEFG".parse::<ClusterId>().is_err());
    }

    #[test]
    fn ids_ascend_with_time_and_come_back_from_text() {
        let older = ObjectId::new(1_700_000_000_000, [255; 10]);
        let newer = ObjectId::new(1_700_000_000_001, [0; 10]);
        assert!(older < newer && older.to_string() < newer.to_string());
        assert_eq!(older.reserved_ms(), 1_700_000_000_000);
        assert_eq!(older.to_string().parse(), Ok(older));
        for text in ["", "00", "0123456789abcdef0123456789abcdeF", "+123456789abcdef0123456789abcdef"] {
            assert!(text.parse::<ObjectId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_reference_comes_back_from_its_bytes() {
        let reference = ObjectRef {
            id: ObjectId::new(7, [9; 10]),
            length_bytes: 1 << 40,
            footer_offset: 12,
            footer_crc: 3,
            etag_crc: u32::MAX,
        };
        let mut bytes = Vec::new();
        reference.encode(&mut bytes);
        assert_eq!(bytes.len(), ObjectRef::SIZE_BYTES);
        assert_eq!(ObjectRef::decode(&mut Take(&bytes)), Some(reference));
        assert_eq!(ObjectRef::decode(&mut Take(&bytes[1..])), None);
    }

    #[test]
    fn an_extent_comes_back_from_its_bytes_and_never_ends_before_it_begins() {
        let object = ObjectRef {
            id: ObjectId::new(7, [9; 10]),
            length_bytes: 100,
            footer_offset: 12,
            footer_crc: 3,
            etag_crc: 0,
        };
        let entry = |id| EntryId::new(id).unwrap();
        let extent = TierExtent { first: entry(3), last: entry(3), object };
        let mut bytes = Vec::new();
        extent.encode(&mut bytes);
        assert_eq!(bytes.len(), TierExtent::SIZE_BYTES);
        assert_eq!(TierExtent::decode(&mut Take(&bytes)), Some(extent));
        assert_eq!(TierExtent::decode(&mut Take(&bytes[..55])), None);
        for (at, byte) in [(0, 4), (7, 0x80), (8, 2), (15, 0x80)] {
            let mut bad = bytes.clone();
            bad[at] = byte;
            assert_eq!(TierExtent::decode(&mut Take(&bad)), None, "byte {at}");
        }
        let stamp = TierStamp { epoch: 2, update: 1 << 40 };
        let mut bytes = Vec::new();
        stamp.encode(&mut bytes);
        assert_eq!(bytes.len(), TierStamp::SIZE_BYTES);
        assert_eq!(TierStamp::decode(&mut Take(&bytes)), Some(stamp));
        assert!(TierStamp { epoch: 1, update: 9 } < TierStamp { epoch: 2, update: 1 });
        for (update, is_known) in [(0, false), (1, true), (i64::MAX as u64, true), (u64::MAX, false)] {
            let stamp = TierStamp { epoch: 2, update };
            let mut bytes = Vec::new();
            stamp.encode(&mut bytes);
            assert_eq!(TierStamp::decode(&mut Take(&bytes)), is_known.then_some(stamp), "update {update}");
        }
    }

    #[test]
    fn a_cluster_is_a_uuid() {
        let text = "6c2c5a2f-0f5c-4f0c-9d0e-1a2b3c4d5e6f";
        assert_eq!(text.parse::<ClusterId>().unwrap().to_string(), text);
        for text in ["", "6c2c5a2f0f5c4f0c9d0e1a2b3c4d5e6f", "6c2c5a2f-0f5c-4f0c-9d0e-1a2b3c4d5e6-"] {
            assert!(text.parse::<ClusterId>().is_err(), "{text}");
        }
    }
}
