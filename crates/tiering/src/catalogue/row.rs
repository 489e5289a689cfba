//! Rows as they stand in runs: a key of 17 bytes whose order is that of the run, and a short value.
//!
//! ```text
//! key       0 table u8 | 1 sixteen bytes, numbers big-endian
//! ledgers   1 | ledger i64 | zero                     first i64, next i64, extents u64, bytes u64, flags u8 (1: being removed,
//!                                                     2: created at i64 follows)
//! extents   2 | ledger i64 | first entry i64          last i64, bytes u64, object reference 40 bytes
//! objects   3 | object id, 16 bytes                   kind u8: 1 reserved: expires u64, writer u64
//!                                                     2 stored: object reference, CRC u32, extents u32, bytes u64, live extents
//!                                                       u32, live bytes u64, committed at u64, unreferenced since u64 (MAX: not)
//!                                                     3 stored, with extents that others took over: as 2, then number u64,
//!                                                       time u64
//! garbage   4 | object id, 16 bytes                   nothing: its row in objects is reserved or unreferenced
//! ```

use bindery_types::codec::{Put, Take};
use bindery_types::tier::ObjectRef;
use bindery_types::{EntryId, LedgerId};

use super::core::Tail;
use super::{ExtentRow, LedgerRow, ObjectRow, Replaced, StoredObject, WriterId};
use crate::ObjectId;

/// Length of a key.
pub(super) const KEY_SIZE_BYTES: usize = 17;
/// Longest value: the length byte above it marks a row that is gone.
pub(super) const VALUE_SIZE_BYTES_MAX: usize = 254;

/// A key, ordered as in runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key(pub [u8; KEY_SIZE_BYTES]);

/// The table that a key belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    Ledgers = 1,
    Extents = 2,
    Objects = 3,
    Garbage = 4,
}

impl Key {
    fn new(table: Table, high: [u8; 8], low: [u8; 8]) -> Key {
        let mut bytes = [0; KEY_SIZE_BYTES];
        bytes[0] = table as u8;
        bytes[1..9].copy_from_slice(&high);
        bytes[9..].copy_from_slice(&low);
        Key(bytes)
    }

    pub(super) fn ledger(ledger: LedgerId) -> Key {
        Key::new(Table::Ledgers, ledger.get().to_be_bytes(), [0; 8])
    }

    pub(super) fn extent(ledger: LedgerId, first: EntryId) -> Key {
        Key::new(Table::Extents, ledger.get().to_be_bytes(), first.get().to_be_bytes())
    }

    fn of_object(table: Table, object: ObjectId) -> Key {
        let (high, low) = object.as_bytes().split_at(8);
        Key::new(table, high.try_into().expect("8 of 16 bytes"), low.try_into().expect("8 of 16 bytes"))
    }

    pub(super) fn object(object: ObjectId) -> Key {
        Key::of_object(Table::Objects, object)
    }

    pub(super) fn garbage(object: ObjectId) -> Key {
        Key::of_object(Table::Garbage, object)
    }

    /// The next larger key, if there is one.
    pub(super) fn successor(self) -> Option<Key> {
        let mut bytes = self.0;
        for byte in bytes.iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                return Some(Key(bytes));
            }
        }
        None
    }

    /// The next smaller key, if there is one.
    pub(super) fn predecessor(self) -> Option<Key> {
        let mut bytes = self.0;
        for byte in bytes.iter_mut().rev() {
            *byte = byte.wrapping_sub(1);
            if *byte != 255 {
                return Some(Key(bytes));
            }
        }
        None
    }

    pub(super) fn table(self) -> Option<Table> {
        [Table::Ledgers, Table::Extents, Table::Objects, Table::Garbage]
            .into_iter()
            .find(|table| *table as u8 == self.0[0])
    }

    /// A description for error messages.
    pub(super) fn name(self) -> String {
        match self.table() {
            Some(Table::Ledgers) => format!("the row of ledger {} in a run", self.number(1)),
            Some(Table::Extents) => {
                format!("the row of ledger {}'s extent at entry {} in a run", self.number(1), self.number(9))
            }
            Some(Table::Objects | Table::Garbage) => {
                format!("the row of object {} in a run", self.object_id())
            }
            None => "a row of no table in a run".to_owned(),
        }
    }

    fn number(self, at: usize) -> i64 {
        i64::from_be_bytes(self.0[at..at + 8].try_into().expect("8 bytes of 17"))
    }

    /// For keys of the tables of ledgers and extents.
    pub(super) fn ledger_id(self) -> Option<LedgerId> {
        LedgerId::new(self.number(1))
    }

    /// The first entry, for keys of the table of extents.
    pub(super) fn first(self) -> Option<EntryId> {
        EntryId::new(self.number(9))
    }

    /// For keys of the tables of objects and garbage.
    pub(super) fn object_id(self) -> ObjectId {
        ObjectId::from_bytes(self.0[1..].try_into().expect("16 bytes of 17"))
    }
}

const IS_REMOVED: u8 = 1;
const HAS_CREATION: u8 = 2;

impl LedgerRow {
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = flag(self.is_removed, IS_REMOVED) | flag(self.created_ms.is_some(), HAS_CREATION);
        Put(bytes).i64(self.first.get()).i64(self.next.get()).u64(self.extents).u64(self.bytes).u8(flags);
        if let Some(created_ms) = self.created_ms {
            Put(bytes).i64(created_ms);
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<LedgerRow> {
        let mut fields = Take(bytes);
        let (first, next) = (EntryId::new(fields.i64()?)?, EntryId::new(fields.i64()?)?);
        let (extents, bytes, flags) = (fields.u64()?, fields.u64()?, fields.u8()?);
        let created_ms = if flags & HAS_CREATION == 0 { None } else { Some(fields.i64()?) };
        (fields.is_empty() && flags & !(IS_REMOVED | HAS_CREATION) == 0).then_some(LedgerRow {
            first,
            next,
            extents,
            bytes,
            is_removed: flags & IS_REMOVED != 0,
            created_ms,
        })
    }
}

impl ExtentRow {
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        Put(bytes).i64(self.last.get()).u64(self.bytes);
        self.object.encode(bytes);
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<ExtentRow> {
        let mut fields = Take(bytes);
        let (last, bytes) = (EntryId::new(fields.i64()?)?, fields.u64()?);
        let object = ObjectRef::decode(&mut fields)?;
        fields.is_empty().then_some(ExtentRow { last, bytes, object })
    }
}

const RESERVED: u8 = 1;
const STORED: u8 = 2;
const STORED_REPLACED: u8 = 3;

impl ObjectRow {
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            ObjectRow::Reserved { expires_ms, writer } => {
                Put(bytes).u8(RESERVED).u64(*expires_ms).u64(writer.0);
            }
            ObjectRow::Stored(stored) => {
                Put(bytes).u8(if stored.replaced.is_some() { STORED_REPLACED } else { STORED });
                stored.object.encode(bytes);
                Put(bytes)
                    .u32(stored.crc)
                    .u32(stored.extents)
                    .u64(stored.bytes)
                    .u32(stored.live_extents)
                    .u64(stored.live_bytes)
                    .u64(stored.committed_ms)
                    .u64(stored.unreferenced_ms.unwrap_or(u64::MAX));
                if let Some(Replaced { number, at_ms }) = stored.replaced {
                    Put(bytes).u64(number).u64(at_ms);
                }
            }
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<ObjectRow> {
        let mut fields = Take(bytes);
        let row = match fields.u8()? {
            RESERVED => ObjectRow::Reserved { expires_ms: fields.u64()?, writer: WriterId(fields.u64()?) },
            kind @ (STORED | STORED_REPLACED) => {
                let mut stored = StoredObject {
                    object: ObjectRef::decode(&mut fields)?,
                    crc: fields.u32()?,
                    extents: fields.u32()?,
                    bytes: fields.u64()?,
                    live_extents: fields.u32()?,
                    live_bytes: fields.u64()?,
                    committed_ms: fields.u64()?,
                    unreferenced_ms: Some(fields.u64()?).filter(|ms| *ms != u64::MAX),
                    replaced: match kind {
                        STORED => None,
                        _ => Some(Replaced { number: fields.u64()?, at_ms: fields.u64()? }),
                    },
                };
                // Earlier builds let such an object wait until all bookies were told.
                let replaced = stored.replaced.filter(|_| stored.live_extents == 0);
                stored.unreferenced_ms = stored.unreferenced_ms.or(replaced.map(|replaced| replaced.at_ms));
                ObjectRow::Stored(stored)
            }
            _ => return None,
        };
        fields.is_empty().then_some(row)
    }

    /// Whether the object has a row in the table of garbage: it is unreferenced, or its id is reserved, which may expire.
    pub(super) fn may_be_garbage(&self) -> bool {
        match self {
            ObjectRow::Reserved { .. } => true,
            ObjectRow::Stored(stored) => stored.unreferenced_ms.is_some(),
        }
    }
}

/// The rows of a tail, in the order of a run. `None`: the row is gone.
pub(super) fn rows_of(tail: &Tail) -> impl Iterator<Item = (Key, Option<Vec<u8>>)> {
    let encoded = |encode: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::with_capacity(96);
        encode(&mut bytes);
        bytes
    };
    let ledgers = tail.ledgers.iter().map(move |(ledger, (_, row))| {
        (Key::ledger(*ledger), row.map(|row| encoded(&|bytes| row.encode(bytes))))
    });
    let extents = tail.extents.iter().map(move |((ledger, first), (_, row))| {
        (Key::extent(*ledger, *first), row.map(|row| encoded(&|bytes| row.encode(bytes))))
    });
    let objects = tail
        .objects
        .iter()
        .map(move |(id, (_, row))| (Key::object(*id), row.map(|row| encoded(&|bytes| row.encode(bytes)))));
    let garbage = tail
        .objects
        .iter()
        .map(|(id, (_, row))| (Key::garbage(*id), row.filter(ObjectRow::may_be_garbage).map(|_| Vec::new())));
    ledgers.chain(extents).chain(objects).chain(garbage)
}
