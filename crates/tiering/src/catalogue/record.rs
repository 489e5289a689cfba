//! A record of the log: the changes that one tierer asks for, as value and bytes. The picture is in [`super`].

use bindery_types::codec::{Put, Take, crc32c};
use bindery_types::tier::ObjectRef;
use bindery_types::{EntryId, LedgerId};

use super::{CatalogueDamage, FORMAT_VERSION, RECORD_BYTES_MAX};
use crate::{ClusterId, ObjectId};

const MAGIC: &[u8; 8] = b"BNDRTLOG";
/// Magic, version and length, which stand where they are in every version.
const HEAD_SIZE_BYTES: usize = 16;
const CRC_SIZE_BYTES: usize = 4;

/// Longest time for which ids are reserved: a day. An upload takes minutes.
pub const RESERVATION_TTL_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// One incarnation of a tierer: drawn at random when it starts, so that it knows its own records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterId(pub u64);

/// An extent that is to be committed with its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NewExtent {
    /// The ledger.
    pub ledger: LedgerId,
    /// The first entry.
    pub first: EntryId,
    /// The last entry, not before the first and not the largest there is: the next one has an id, too.
    pub last: EntryId,
    /// Bytes of the entries, by which the live part of an object is measured.
    pub bytes: u64,
    /// When the ledger was created, as the object's footer has it; `None`: not known.
    pub created_ms: Option<i64>,
}

/// An object that was uploaded whole, under an id that was reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewObject {
    /// The object.
    pub object: ObjectRef,
    /// All extents in it. Those of one ledger ascend.
    pub extents: Vec<NewExtent>,
}

/// One wish of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Ids under which objects will be uploaded (T5).
    Reserve {
        /// The ids.
        objects: Vec<ObjectId>,
        /// How long, by the log's time: up to [`RESERVATION_TTL_MS_MAX`].
        ttl_ms: u64,
    },
    /// An object whose extents continue their ledgers (T3).
    Commit(NewObject),
    /// An object whose extents take the place of extents in other objects (T16).
    Replace {
        /// The object.
        object: NewObject,
        /// The objects from which extents are taken over.
        sources: Vec<ObjectId>,
    },
    /// A ledger that was deleted. Large ones need several: see [`super::ChangeOutcome::LedgerRemoved`].
    RemoveLedger {
        /// The ledger.
        ledger: LedgerId,
        /// Its creation time in the row that was compared with metadata. A row with another one is of a ledger that came later: it stays.
        created_ms: Option<i64>,
    },
    /// The object is gone from the store, and so may its row (T13).
    ForgetObject(ObjectId),
    /// Earlier builds wrote this when all bookies knew where the extents of the object went. It is read, and changes nothing.
    Release {
        /// The object.
        object: ObjectId,
        /// The number of the record that took extents of it over last.
        replaced: u64,
    },
}

/// What one tierer writes at one number of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The cluster (T18).
    pub cluster: ClusterId,
    /// Its place in the log, from 1.
    pub number: u64,
    /// The tierer that wrote it.
    pub writer: WriterId,
    /// When, in milliseconds since the epoch, by the store's clock as that tierer knows it.
    pub time_ms: u64,
    /// Applied in this order.
    pub changes: Vec<Change>,
}

/// A record that would be longer than [`RECORD_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the record has {size_bytes} bytes, and the catalogue takes up to {max}: commit fewer objects at once", max = RECORD_BYTES_MAX)]
pub struct RecordTooLarge {
    /// Its length.
    pub size_bytes: usize,
}

const RESERVE: u8 = 1;
const COMMIT: u8 = 2;
const REPLACE: u8 = 3;
const REMOVE_LEDGER: u8 = 4;
const FORGET_OBJECT: u8 = 5;
const RELEASE: u8 = 6;
/// As `COMMIT`, `REPLACE`, `REMOVE_LEDGER`, with creation times. Since format version 3.
const COMMIT_CREATED: u8 = 7;
const REPLACE_CREATED: u8 = 8;
const REMOVE_CREATED: u8 = 9;
/// A creation time that is not known.
const UNKNOWN: i64 = i64::MIN;

impl NewObject {
    /// Tells this commit from another one for the same id (T6).
    pub fn crc(&self) -> u32 {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        crc32c(&[&bytes])
    }

    /// Bytes of all its entries.
    pub fn bytes(&self) -> u64 {
        self.extents.iter().fold(0, |sum, extent| sum.saturating_add(extent.bytes))
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        self.object.encode(bytes);
        let mut out = Put(bytes);
        let has_creations = self.has_creations();
        out.u32(count(self.extents.len()));
        for extent in &self.extents {
            out.i64(extent.ledger.get()).i64(extent.first.get()).i64(extent.last.get()).u64(extent.bytes);
            if has_creations {
                out.i64(extent.created_ms.unwrap_or(UNKNOWN));
            }
        }
    }

    fn has_creations(&self) -> bool {
        self.extents.iter().any(|extent| extent.created_ms.is_some())
    }

    fn decode(fields: &mut Take<'_>, has_creations: bool) -> Option<NewObject> {
        let object = ObjectRef::decode(fields)?;
        let extents = list(fields, 32, |fields| {
            let ledger = LedgerId::new(fields.i64()?)?;
            let (first, last) = (EntryId::new(fields.i64()?)?, EntryId::new(fields.i64()?)?);
            let bytes = fields.u64()?;
            let created_ms =
                if has_creations { Some(fields.i64()?).filter(|ms| *ms != UNKNOWN) } else { None };
            (first <= last && last < EntryId::MAX).then_some(NewExtent {
                ledger,
                first,
                last,
                bytes,
                created_ms,
            })
        })?;
        Some(NewObject { object, extents })
    }
}

/// More than fit a record are refused by its length.
fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// A count, and so many items of at least `size_bytes` each: the count is compared with what is there before anything is
/// allocated.
fn list<T>(
    fields: &mut Take<'_>,
    size_bytes: usize,
    mut item: impl FnMut(&mut Take<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let count = fields.u32()? as usize;
    if fields.0.len() / size_bytes < count {
        return None;
    }
    (0..count).map(|_| item(fields)).collect()
}

fn ids(fields: &mut Take<'_>) -> Option<Vec<ObjectId>> {
    list(fields, 16, |fields| fields.array().map(ObjectId::from_bytes))
}

fn put_ids(bytes: &mut Vec<u8>, ids: &[ObjectId]) {
    Put(bytes).u32(count(ids.len()));
    ids.iter().for_each(|id| bytes.extend_from_slice(id.as_bytes()));
}

impl Change {
    fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Reserve { objects, ttl_ms } => {
                Put(bytes).u8(RESERVE).u64(*ttl_ms);
                put_ids(bytes, objects);
            }
            Change::Commit(object) => {
                Put(bytes).u8(if object.has_creations() { COMMIT_CREATED } else { COMMIT });
                object.encode(bytes);
            }
            Change::Replace { object, sources } => {
                Put(bytes).u8(if object.has_creations() { REPLACE_CREATED } else { REPLACE });
                object.encode(bytes);
                put_ids(bytes, sources);
            }
            Change::RemoveLedger { ledger, created_ms: None } => {
                Put(bytes).u8(REMOVE_LEDGER).i64(ledger.get());
            }
            Change::RemoveLedger { ledger, created_ms: Some(created_ms) } => {
                Put(bytes).u8(REMOVE_CREATED).i64(ledger.get()).i64(*created_ms);
            }
            Change::ForgetObject(object) => {
                Put(bytes).u8(FORGET_OBJECT).bytes(object.as_bytes());
            }
            Change::Release { object, replaced } => {
                Put(bytes).u8(RELEASE).bytes(object.as_bytes()).u64(*replaced);
            }
        }
    }

    fn decode(fields: &mut Take<'_>) -> Option<Change> {
        Some(match fields.u8()? {
            RESERVE => Change::Reserve { ttl_ms: fields.u64()?, objects: ids(fields)? },
            kind @ (COMMIT | COMMIT_CREATED) => {
                Change::Commit(NewObject::decode(fields, kind == COMMIT_CREATED)?)
            }
            kind @ (REPLACE | REPLACE_CREATED) => Change::Replace {
                object: NewObject::decode(fields, kind == REPLACE_CREATED)?,
                sources: ids(fields)?,
            },
            REMOVE_LEDGER => Change::RemoveLedger { ledger: LedgerId::new(fields.i64()?)?, created_ms: None },
            REMOVE_CREATED => Change::RemoveLedger {
                ledger: LedgerId::new(fields.i64()?)?,
                created_ms: Some(fields.i64()?),
            },
            FORGET_OBJECT => Change::ForgetObject(ObjectId::from_bytes(fields.array()?)),
            RELEASE => {
                Change::Release { object: ObjectId::from_bytes(fields.array()?), replaced: fields.u64()? }
            }
            _ => return None,
        })
    }
}

impl Record {
    /// The bytes.
    pub fn encode(&self) -> Result<Vec<u8>, RecordTooLarge> {
        let mut body = Vec::new();
        Put(&mut body)
            .bytes(self.cluster.as_bytes())
            .u64(self.number)
            .u64(self.writer.0)
            .u64(self.time_ms)
            .u32(count(self.changes.len()));
        self.changes.iter().for_each(|change| change.encode(&mut body));
        let size_bytes = HEAD_SIZE_BYTES + body.len() + CRC_SIZE_BYTES;
        if size_bytes > RECORD_BYTES_MAX {
            return Err(RecordTooLarge { size_bytes });
        }
        Ok(envelop(MAGIC, &body))
    }

    /// From the bytes at number `number` of the log of `cluster`.
    pub fn decode(bytes: &[u8], cluster: ClusterId, number: u64) -> Result<Record, CatalogueDamage> {
        let mut fields = enveloped(bytes, MAGIC, RECORD_BYTES_MAX)?;
        let record = (|| {
            let cluster = ClusterId::from_bytes(fields.array()?);
            let (number, writer, time_ms) = (fields.u64()?, WriterId(fields.u64()?), fields.u64()?);
            let changes = list(&mut fields, 9, Change::decode)?;
            fields.is_empty().then_some(Record { cluster, number, writer, time_ms, changes })
        })()
        .ok_or(CatalogueDamage::Malformed)?;
        if record.cluster != cluster {
            return Err(CatalogueDamage::OtherCluster { found: record.cluster, expected: cluster });
        }
        if record.number != number {
            return Err(CatalogueDamage::Misplaced { found: record.number, expected: number });
        }
        Ok(record)
    }
}

/// Checks magic, version, length and the checksum at the end, and returns what lies between: the frame of records, manifests and
/// the format marker.
pub(super) fn enveloped<'a>(
    bytes: &'a [u8],
    magic: &[u8; 8],
    size_bytes_max: usize,
) -> Result<Take<'a>, CatalogueDamage> {
    if bytes.len() < HEAD_SIZE_BYTES + CRC_SIZE_BYTES || bytes.len() > size_bytes_max {
        return Err(CatalogueDamage::Length { found: bytes.len() });
    }
    let (sealed, crc) = bytes.split_at(bytes.len() - CRC_SIZE_BYTES);
    let mut fields = Take(sealed);
    let found = (fields.array::<8>(), fields.u32(), fields.u32());
    let (Some(found_magic), Some(version), Some(length)) = found else {
        return Err(CatalogueDamage::Length { found: bytes.len() });
    };
    if found_magic != *magic {
        return Err(CatalogueDamage::Magic);
    }
    if length as usize != bytes.len() {
        return Err(CatalogueDamage::Length { found: bytes.len() });
    }
    if crc != crc32c(&[sealed]).to_le_bytes() {
        return Err(CatalogueDamage::Checksum);
    }
    match version {
        1..=FORMAT_VERSION => Ok(fields),
        found if found > FORMAT_VERSION => Err(CatalogueDamage::NewerFormat { found }),
        _ => Err(CatalogueDamage::Malformed),
    }
}

/// The frame that [`enveloped`] checks.
pub(super) fn envelop(magic: &[u8; 8], body: &[u8]) -> Vec<u8> {
    let size_bytes = HEAD_SIZE_BYTES + body.len() + CRC_SIZE_BYTES;
    let mut bytes = Vec::with_capacity(size_bytes);
    Put(&mut bytes).bytes(magic).u32(FORMAT_VERSION).u32(count(size_bytes)).bytes(body);
    let crc = crc32c(&[&bytes]);
    Put(&mut bytes).u32(crc);
    bytes
}
