//! The values of the state table, encode beside decode. Little-endian; each value ends with the CRC32C of
//! (table u8, key, value), so that a value that redb returns for the wrong key is found out too.

use crate::codec::{Put, Take, crc32c};
use crate::ledger_ranges::LedgerRanges;
use crate::{Generation, LogId};
use bindery_types::tier::{ObjectRef, TierExtent, TierStamp};
use bindery_types::{EntryId, LedgerId, MASTER_KEY_SIZE_BYTES, MasterKey};
use std::fmt;

/// Version byte in front of every value. 1: first.
const VALUE_VERSION: u8 = 1;
/// Of values with fields that came later. Others stay at version 1.
const VERSION_WITH_LIFE: u8 = 2;
const VERSION_WITH_OUT: u8 = 3;
const VERSION_WITH_TIER: u8 = 4;
const VERSION_WITH_FENCES: u8 = 5;
/// Of another kind of value than the former; both came with one release.
const VERSION_WITH_CREATION: u8 = 5;
const VALUE_VERSION_MAX: u8 = 5;

const HAS_KEY: u8 = 1;
const FENCED: u8 = 2;
const LIMBO: u8 = 4;
const HAS_EXPLICIT_LAC: u8 = 8;
/// The ledger was removed at least once: life and hidden generations follow. Since value version 2.
const HAS_LIFE: u8 = 16;
/// Entries of it are in object storage: what is known of that follows. Since value version 4.
const HAS_TIER: u8 = 32;
/// Of that, also when the ledger was created. Since value version 5.
const HAS_CREATION: u8 = 64;
const KNOWN_FLAGS: u8 = HAS_KEY | FENCED | LIMBO | HAS_EXPLICIT_LAC | HAS_LIFE | HAS_TIER | HAS_CREATION;

/// A position in one journal: everything at or before it is durable in the ledger directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// The journal file.
    pub file_id: u64,
    /// The group inside it.
    pub group: u64,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file {} group {}", self.file_id, self.group)
    }
}

/// The mark of journal `journal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JournalMark {
    /// Number of the journal, from 0.
    pub journal: u32,
    /// How far it is covered.
    pub mark: Mark,
}

/// Whose directory this is and for which layout of shards it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Id of the bookie that owns the directory.
    pub bookie_id: String,
    /// INSTANCEID of its cluster; empty where the cluster has none.
    pub instance_id: String,
    /// Number of shards.
    pub shards: u32,
    /// Number of journals.
    pub journals: u32,
    /// Number of ledger directories.
    pub directories: u32,
    /// Which of them this is, from 0.
    pub directory: u32,
    /// Directories that failed while the others went on: whatever their marks do not cover, the others hold.
    pub out: Vec<u32>,
}

/// A live entry log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// The log.
    pub log_id: LogId,
    /// Its generation.
    pub generation: Generation,
    /// Length of its file in bytes.
    pub size: u64,
    /// Number of its entries.
    pub entries: u64,
    /// The journal marks up to which it holds entries: where its contents came from.
    pub marks: Vec<JournalMark>,
}

/// The durable knowledge about a ledger, besides its entries (protocol reference, sections 4.1 to 4.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerRecord {
    /// The ledger.
    pub ledger: LedgerId,
    /// The key of its writer, once one was presented.
    pub master_key: Option<MasterKey>,
    /// True for good once fenced.
    pub is_fenced: bool,
    /// True while this bookie may miss entries of it: no negative answers.
    pub is_limbo: bool,
    /// Body of the last WRITE_LAC, opaque.
    pub explicit_lac: Option<Vec<u8>>,
    /// Largest LAC (last add confirmed) that an entry carried.
    pub last_add_confirmed: Option<EntryId>,
    /// Highest entry.
    pub last_entry: Option<EntryId>,
    /// How often it was removed and came back. See [`LedgerRecord::is_removed`].
    pub life: u32,
    /// Copies of a lower generation are older than its last removal and count as absent.
    pub hidden_below: Generation,
    /// The knowledge about its entries in object storage; `None` when none are there.
    pub tier: Option<TierRecord>,
}

/// How far a ledger is in object storage, as this bookie was told since the ledger was removed last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierRecord {
    /// The last reconciled entry (LRE): all entries up to it are in object storage, at the extents of the ledger. Never goes
    /// back.
    pub lre: EntryId,
    /// Entries up to this one, and never beyond `lre`, are read from there when no copy is here: copies of them count as
    /// dead. Never goes back.
    pub trimmed_below: Option<EntryId>,
    /// The last update of its extents.
    pub stamp: TierStamp,
    /// When the ledger of this register was created, in milliseconds since the epoch, as its tierer noted it; `None`: not known.
    pub created_ms: Option<i64>,
}

impl TierRecord {
    /// Joins two records of a ledger. Of two epochs the later one counts; within one nothing goes back.
    pub fn join(self, other: TierRecord) -> TierRecord {
        match self.stamp.epoch.cmp(&other.stamp.epoch) {
            std::cmp::Ordering::Less => other,
            std::cmp::Ordering::Greater => self,
            std::cmp::Ordering::Equal => TierRecord {
                lre: self.lre.max(other.lre),
                trimmed_below: self.trimmed_below.max(other.trimmed_below),
                stamp: self.stamp.max(other.stamp),
                created_ms: self.created_ms.or(other.created_ms),
            },
        }
    }
}

/// A row of the table of extents: a range of a ledger's entries in object storage. Ranges of a ledger do not overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentRow {
    /// The update that brought it; one of another epoch than the ledger's is what a removal left.
    pub stamp: TierStamp,
    /// Range and object.
    pub extent: TierExtent,
}

/// Numbers of the tables, as they go into checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableId {
    Meta = 0,
    Marks = 1,
    Logs = 2,
    Ledgers = 3,
    Extents = 4,
}

/// A key, as it goes into checksums.
pub(super) trait TableKey: Copy {
    fn bytes(self) -> impl AsRef<[u8]>;
}

impl TableKey for u64 {
    fn bytes(self) -> impl AsRef<[u8]> {
        self.to_le_bytes()
    }
}

impl TableKey for (u64, u64) {
    fn bytes(self) -> impl AsRef<[u8]> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.1.to_le_bytes());
        bytes
    }
}

fn value_crc(table: TableId, key: impl TableKey, payload: &[u8]) -> [u8; 4] {
    crc32c(&[&[table as u8], key.bytes().as_ref(), payload]).to_le_bytes()
}

/// Appends version and checksum.
pub(super) fn seal(table: TableId, key: impl TableKey, fill: impl FnOnce(&mut Put<'_>)) -> Vec<u8> {
    seal_as(VALUE_VERSION, table, key, fill)
}

/// As [`seal`], for a value with fields that an older build does not know: it then names the version.
pub(super) fn seal_as(
    version: u8,
    table: TableId,
    key: impl TableKey,
    fill: impl FnOnce(&mut Put<'_>),
) -> Vec<u8> {
    let mut out = vec![version];
    fill(&mut Put(&mut out));
    let crc = value_crc(table, key, &out);
    out.extend_from_slice(&crc);
    out
}

/// Why a value is not one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadValue {
    Damaged(&'static str),
    Newer(u32),
}

/// Checks version and checksum and decodes the fields between, all of them.
pub(super) fn unseal<T>(
    table: TableId,
    key: impl TableKey,
    value: &[u8],
    decode: impl FnOnce(&mut Take<'_>) -> Option<T>,
) -> Result<T, BadValue> {
    let damaged = BadValue::Damaged;
    let (payload, crc) = value.split_last_chunk::<4>().ok_or(damaged("a value is cut"))?;
    if *crc != value_crc(table, key, payload) {
        return Err(damaged("the checksum of a value does not match"));
    }
    let mut take = Take(payload);
    match take.u8() {
        Some(VALUE_VERSION..=VALUE_VERSION_MAX) => {}
        Some(newer) if newer > VALUE_VERSION_MAX => return Err(BadValue::Newer(newer.into())),
        _ => return Err(damaged("a value has no version")),
    }
    let decoded = decode(&mut take).ok_or(damaged("a value has fields that cannot be"))?;
    if take.is_empty() { Ok(decoded) } else { Err(damaged("a value is longer than its fields")) }
}

fn put_string(put: &mut Put<'_>, text: &str) {
    put.u32(u32::try_from(text.len()).expect("an id is short")).bytes(text.as_bytes());
}

fn take_string(take: &mut Take<'_>) -> Option<String> {
    let len = take.u32()? as usize;
    String::from_utf8(take.bytes(len)?.to_vec()).ok()
}

impl Meta {
    pub(super) fn seal(&self, key: u64) -> Vec<u8> {
        let version = if self.out.is_empty() { VALUE_VERSION } else { VERSION_WITH_OUT };
        seal_as(version, TableId::Meta, key, |put| {
            put_string(put, &self.bookie_id);
            put_string(put, &self.instance_id);
            put.u32(self.shards).u32(self.journals).u32(self.directories).u32(self.directory);
            for directory in &self.out {
                put.u32(*directory);
            }
        })
    }

    pub(super) fn take(take: &mut Take<'_>) -> Option<Meta> {
        Some(Meta {
            bookie_id: take_string(take)?,
            instance_id: take_string(take)?,
            shards: take.u32()?,
            journals: take.u32()?,
            directories: take.u32()?,
            directory: take.u32()?,
            out: {
                let mut out = Vec::new();
                while !take.is_empty() {
                    out.push(take.u32()?);
                }
                out
            },
        })
    }
}

impl Mark {
    pub(super) fn put(&self, put: &mut Put<'_>) {
        put.u64(self.file_id).u64(self.group);
    }

    pub(super) fn take(take: &mut Take<'_>) -> Option<Mark> {
        Some(Mark { file_id: take.u64()?, group: take.u64()? })
    }
}

impl LogRecord {
    pub(super) fn put(&self, put: &mut Put<'_>) {
        put.u64(self.generation.0).u64(self.size).u64(self.entries);
        for JournalMark { journal, mark } in &self.marks {
            put.u32(*journal);
            mark.put(put);
        }
    }

    pub(super) fn take(log_id: LogId, take: &mut Take<'_>) -> Option<LogRecord> {
        let (generation, size, entries) = (Generation(take.u64()?), take.u64()?, take.u64()?);
        let mut marks = Vec::new();
        while !take.is_empty() {
            marks.push(JournalMark { journal: take.u32()?, mark: Mark::take(take)? });
        }
        Some(LogRecord { log_id, generation, size, entries, marks })
    }
}

/// The next log id: lower ones are never given out again. And the ledgers that were forgotten although they were fenced.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct NextIds {
    pub(super) log: u64,
    pub(super) fences_forgotten: LedgerRanges,
}

impl NextIds {
    pub(super) fn seal(&self, key: u64) -> Vec<u8> {
        let version = if self.fences_forgotten.is_empty() { VALUE_VERSION } else { VERSION_WITH_FENCES };
        seal_as(version, TableId::Meta, key, |put| {
            put.u64(self.log);
            self.fences_forgotten.put(put);
        })
    }

    pub(super) fn take(take: &mut Take<'_>) -> Option<NextIds> {
        let log = take.u64()?;
        // Version 2 had the highest ledger ever seen here. Ranges are pairs.
        if take.0.len() == size_of::<i64>() {
            take.i64()?;
        }
        Some(NextIds { log, fences_forgotten: LedgerRanges::take(take)? })
    }
}

impl LedgerRecord {
    /// A ledger of which nothing is known yet.
    pub fn new(ledger: LedgerId) -> LedgerRecord {
        LedgerRecord {
            ledger,
            master_key: None,
            is_fenced: false,
            is_limbo: false,
            explicit_lac: None,
            last_add_confirmed: None,
            last_entry: None,
            life: 0,
            hidden_below: Generation(0),
            tier: None,
        }
    }

    /// True for a ledger that was removed and did not come back: only the memory of it is left.
    pub fn is_removed(&self) -> bool {
        self.life % 2 == 1
    }

    /// The version its value is written with.
    pub(super) fn value_version(&self) -> u8 {
        match (&self.tier, self.life) {
            (Some(TierRecord { created_ms: Some(_), .. }), _) => VERSION_WITH_CREATION,
            (Some(_), _) => VERSION_WITH_TIER,
            (None, 1..) => VERSION_WITH_LIFE,
            (None, 0) => VALUE_VERSION,
        }
    }

    pub(super) fn seal(&self, key: u64) -> Vec<u8> {
        seal_as(self.value_version(), TableId::Ledgers, key, |put| self.put(put))
    }

    pub(super) fn put(&self, put: &mut Put<'_>) {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        put.u8(flag(self.master_key.is_some(), HAS_KEY)
            | flag(self.is_fenced, FENCED)
            | flag(self.is_limbo, LIMBO)
            | flag(self.explicit_lac.is_some(), HAS_EXPLICIT_LAC)
            | flag(self.life > 0, HAS_LIFE)
            | flag(self.tier.is_some(), HAS_TIER)
            | flag(self.tier.is_some_and(|tier| tier.created_ms.is_some()), HAS_CREATION));
        put.i64(EntryId::to_wire(self.last_add_confirmed)).i64(EntryId::to_wire(self.last_entry));
        if let Some(key) = &self.master_key {
            put.bytes(key.as_bytes());
        }
        if self.life > 0 {
            put.u32(self.life).u64(self.hidden_below.0);
        }
        if let Some(tier) = &self.tier {
            tier.stamp.encode(put.0);
            put.i64(tier.lre.get()).i64(EntryId::to_wire(tier.trimmed_below));
            if let Some(created_ms) = tier.created_ms {
                put.i64(created_ms);
            }
        }
        // The last field, so that the value's end is its own.
        if let Some(body) = &self.explicit_lac {
            put.bytes(body);
        }
    }

    pub(super) fn take(ledger: LedgerId, take: &mut Take<'_>) -> Option<LedgerRecord> {
        let flags = take.u8()?;
        if flags & !KNOWN_FLAGS != 0 {
            return None;
        }
        let (last_add_confirmed, last_entry) = (EntryId::new(take.i64()?), EntryId::new(take.i64()?));
        let master_key = match flags & HAS_KEY {
            0 => None,
            _ => Some(MasterKey::new(take.array::<MASTER_KEY_SIZE_BYTES>()?)),
        };
        let (life, hidden_below) = match flags & HAS_LIFE {
            0 => (0, Generation(0)),
            _ => (take.u32()?, Generation(take.u64()?)),
        };
        let tier = match flags & HAS_TIER {
            0 => None,
            _ => {
                let stamp = TierStamp::decode(take)?;
                let (lre, trimmed_below) = (EntryId::new(take.i64()?)?, EntryId::new(take.i64()?));
                let created_ms = match flags & HAS_CREATION {
                    0 => None,
                    _ => Some(take.i64()?),
                };
                Some(TierRecord { lre, trimmed_below, stamp, created_ms })
                    .filter(|_| trimmed_below <= Some(lre))
            }
        };
        if flags & (HAS_TIER | HAS_CREATION) != 0 && tier.is_none() {
            return None;
        }
        let explicit_lac = match flags & HAS_EXPLICIT_LAC {
            0 => None,
            _ => Some(take.bytes(take.0.len())?.to_vec()),
        };
        let (is_fenced, is_limbo) = (flags & FENCED != 0, flags & LIMBO != 0);
        Some(LedgerRecord {
            ledger,
            master_key,
            is_fenced,
            is_limbo,
            explicit_lac,
            last_add_confirmed,
            last_entry,
            life,
            hidden_below,
            tier,
        })
    }
}

impl ExtentRow {
    /// Its key: ledger, first entry.
    pub(super) fn key(&self, ledger: LedgerId) -> (u64, u64) {
        (number_of(ledger.get()), number_of(self.extent.first.get()))
    }

    pub(super) fn seal(&self, ledger: LedgerId) -> Vec<u8> {
        seal(TableId::Extents, self.key(ledger), |put| {
            self.stamp.encode(put.0);
            put.i64(self.extent.last.get());
            self.extent.object.encode(put.0);
        })
    }

    pub(super) fn unseal(key: (u64, u64), value: &[u8]) -> Result<ExtentRow, BadValue> {
        let first = i64::try_from(key.1).ok().and_then(EntryId::new);
        let first = first.ok_or(BadValue::Damaged("an entry id is too large"))?;
        unseal(TableId::Extents, key, value, |take| {
            let stamp = TierStamp::decode(take)?;
            let last = EntryId::new(take.i64()?).filter(|last| *last >= first)?;
            Some(ExtentRow { stamp, extent: TierExtent { first, last, object: ObjectRef::decode(take)? } })
        })
    }
}

/// An id of the wire as part of a key: keys ascend as ids do.
pub(super) fn number_of(id: i64) -> u64 {
    u64::try_from(id).expect("ids are not negative")
}
