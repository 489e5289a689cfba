//! Whether the catalogue that is in the bucket is the one that this process follows, and one that belongs to the objects beside it.
//!
//! People delete, copy and put back. The log alone does not show that: a catalogue that was lost looks like a new one, an older copy like
//! one in which nothing has happened since, and a record that was deleted like the end of the log.
//!
//! # Invariants
//! 1. No catalogue begins, and none is believed to be empty, while there are objects: an id is reserved in the log before its object
//!    is there.
//! 2. A process reads or writes a record only after it has found the record that it read last unchanged, and writes one only if the
//!    store lists none behind that. By this record it knows the catalogue again; where the record is gone, by the newest manifest, which
//!    is never deleted, or else by the marker.
//! 3. An object whose id was reserved later than the newest record was written proves that records are missing: ids are drawn
//!    before the record that reserves them, by the clock of the same process.
//! 4. A process that finds another catalogue than it has followed reads that one from its beginning, or fails: it never goes on from
//!    a state that other processes cannot read.

use bindery_io::Clock;
use bindery_types::codec::crc32c;
use bytes::Bytes;

use super::base::Base;
use super::bucket::{Bucket, Created, damaged};
use super::manifest::{check_marker, encode_marker};
use super::shell::manifest;
use super::{Catalogue, CatalogueError, Core, Facts, OpenMode};
use crate::ObjectId;
use crate::store::StoreError;

/// Ids whose time is later than the store's by more than this were drawn by nobody's clock, and prove nothing (invariant 3).
pub(super) const ID_AHEAD_MS_MAX: u64 = 24 * 3600 * 1000;
/// Objects behind the newest record that are examined.
const LATER_MAX: usize = 100;

/// By which a process knows again what it has read (invariant 2).
#[derive(Debug, Clone)]
pub(super) struct Anchor {
    marker: Bytes,
    /// The record that was applied last, if one was since the newest state was taken over: its number, length and checksum.
    record: Option<(u64, u64, u32)>,
}

impl Anchor {
    pub fn new(marker: Bytes) -> Anchor {
        Anchor { marker, record: None }
    }

    /// This record was applied.
    pub fn note_record(&mut self, number: u64, bytes: &[u8]) {
        self.record = Some((number, bytes.len() as u64, checksum(bytes)));
    }

    /// The state was replaced by that of a manifest.
    pub fn forget_record(&mut self) {
        self.record = None;
    }
}

impl Catalogue {
    /// Fails when what was read last is not there any more as it was (invariant 2).
    pub(super) async fn check_anchor(&mut self) -> Result<(), CatalogueError> {
        loop {
            let (key, is_same) = self.is_anchored().await?;
            if is_same {
                return Ok(());
            }
            // A cleaning may have deleted the record meanwhile, once a newer manifest covered it.
            if !self.adopt_newer().await? {
                return Err(CatalogueError::Changed { key });
            }
        }
    }

    async fn is_anchored(&self) -> Result<(String, bool), CatalogueError> {
        let manifest_here = &self.base.manifest;
        let record = self.anchor.record.filter(|(number, ..)| *number > manifest_here.log_floor);
        if let Some((number, length, crc)) = record {
            let key = self.bucket.record(number);
            let found = self.bucket.get(&key).await?;
            let is_same = found.is_some_and(|found| found.len() as u64 == length && checksum(&found) == crc);
            return Ok((key.to_string(), is_same));
        }
        if manifest_here.number > 0 {
            let key = self.bucket.manifest(manifest_here.number);
            let found = match manifest(&self.bucket, manifest_here.number).await {
                Ok(found) => found,
                Err(CatalogueError::Damaged { .. }) => None,
                Err(error) => return Err(error),
            };
            return Ok((key.to_string(), found.as_ref() == Some(manifest_here)));
        }
        let key = self.bucket.marker();
        let found = self.bucket.get(&key).await?;
        Ok((key.to_string(), found.as_ref() == Some(&self.anchor.marker)))
    }

    /// Follows the log to its end, and fails if a record is missing while later ones are there and no snapshot covers it: somebody deleted
    /// it, and going on from before it would give another state than others have.
    pub async fn check_end(&mut self) -> Result<(), CatalogueError> {
        let last = self.numbers_behind(self.position().number).await?.last().copied().unwrap_or(0);
        if last > self.position().number {
            self.refresh().await?;
        }
        let position = self.position().number;
        if last > position {
            let key = self.bucket.record(position + 1).to_string();
            return Err(CatalogueError::LogGap { key, last });
        }
        Ok(())
    }

    /// Fails when objects prove that records are missing (invariants 1 and 3).
    pub(super) async fn check_age(&mut self) -> Result<(), CatalogueError> {
        let mut is_first = true;
        loop {
            let position = self.position();
            let is_empty = position.number == 0 && self.base.manifest.number == 0;
            let found = match is_empty {
                true => self.bucket.some_objects(None, 1).await?.into_iter().next(),
                false => later_object(&self.bucket, position.log_ms).await?,
            };
            let Some(found) = found else { return Ok(()) };
            // Another tierer may have reserved its id just now.
            if std::mem::take(&mut is_first) || position != self.position() {
                self.refresh().await?;
                if position != self.position() {
                    continue;
                }
            }
            let cluster = self.cluster();
            return Err(match is_empty {
                true => CatalogueError::Lost { key: self.bucket.record(1).to_string(), found, cluster },
                false => CatalogueError::Older { found, log_ms: position.log_ms, cluster },
            });
        }
    }

    /// Reads the catalogue that is in the bucket from its beginning (invariant 4). When it fails, nothing has changed.
    pub async fn reload(&mut self) -> Result<(), CatalogueError> {
        let key = self.bucket.marker();
        let cluster = self.cluster();
        let Some(marker) = self.bucket.get(&key).await? else {
            return Err(missing_marker(&self.bucket, OpenMode::Write).await?);
        };
        check_marker(&marker, cluster).map_err(|damage| damaged(&key, damage))?;
        let base = Base::new(self.bucket.clone(), self.options.cache_bytes_max);
        let base = std::mem::replace(&mut self.base, base);
        let core = std::mem::replace(&mut self.core, Core::new(cluster));
        let facts = std::mem::replace(&mut self.facts, Facts::nothing_below());
        let anchor = std::mem::replace(&mut self.anchor, Anchor::new(marker));
        let verified = std::mem::take(&mut self.verified);
        let read = self.read_all().await;
        if read.is_err() {
            (self.base, self.core, self.facts) = (base, core, facts);
            (self.anchor, self.verified) = (anchor, verified);
        }
        read
    }
}

/// Of all but the end of a record: it ends with its own checksum, and together with that every record has the same one.
fn checksum(record: &[u8]) -> u32 {
    crc32c(&[&record[..record.len().saturating_sub(4)]])
}

/// An object whose id was reserved after that time, by the store's clock.
async fn later_object(bucket: &Bucket, log_ms: u64) -> Result<Option<String>, StoreError> {
    let after = ObjectId::new(log_ms, [u8::MAX; 10]);
    let found = bucket.some_objects(Some(after), LATER_MAX).await?;
    let is_believed = |key: &&String| {
        let id: Option<ObjectId> = key.rsplit('/').next().and_then(|name| name.parse().ok());
        id.is_some_and(|id| id > after && id.reserved_ms() <= log_ms.saturating_add(ID_AHEAD_MS_MAX))
    };
    Ok(found.iter().find(is_believed).cloned())
}

/// The marker's bytes.
pub(super) async fn check_or_make_marker(
    bucket: &Bucket,
    mode: OpenMode,
    clock: &dyn Clock,
) -> Result<Bytes, CatalogueError> {
    let key = bucket.marker();
    let checked = |bytes: Bytes| match check_marker(&bytes, bucket.cluster()) {
        Ok(()) => Ok(bytes),
        Err(damage) => Err(damaged(&key, damage)),
    };
    if let Some(bytes) = bucket.get(&key).await? {
        return checked(bytes);
    }
    // A bucket that does not exist has no keys, either: making the marker fails there, with the store's reason.
    let is_something_there = !bucket.list(&bucket.everything(), None).await?.is_empty();
    if is_something_there || !bucket.some_objects(None, 1).await?.is_empty() || mode != OpenMode::Create {
        // Another tierer may have made it just now, and put its first objects there.
        return match bucket.get(&key).await? {
            Some(bytes) => checked(bytes),
            None => Err(missing_marker(bucket, mode).await?),
        };
    }
    make_marker(bucket, clock).await
}

/// The meaning of a missing marker.
async fn missing_marker(bucket: &Bucket, mode: OpenMode) -> Result<CatalogueError, StoreError> {
    let (key, cluster) = (bucket.marker().to_string(), bucket.cluster());
    if let Some(found) = bucket.list(&bucket.everything(), None).await?.first() {
        let found = found.location.to_string();
        return Ok(CatalogueError::Incomplete { key, found, cluster });
    }
    Ok(match bucket.some_objects(None, 1).await?.into_iter().next() {
        Some(found) => CatalogueError::Lost { key, found, cluster },
        // It was there: whoever follows it does not make another one.
        None if mode == OpenMode::Create => CatalogueError::Changed { key },
        None => CatalogueError::NotThere { key, cluster },
    })
}

pub(super) async fn make_marker(bucket: &Bucket, clock: &dyn Clock) -> Result<Bytes, CatalogueError> {
    let key = bucket.marker();
    let created_ms = u64::try_from(clock.wall_ms()).unwrap_or(0);
    let marker = Bytes::from(encode_marker(bucket.cluster(), created_ms));
    match bucket.create(&key, marker.clone()).await? {
        Created::Own => Ok(marker),
        Created::Other(bytes) => match check_marker(&bytes, bucket.cluster()) {
            Ok(()) => Ok(bytes),
            Err(damage) => Err(damaged(&key, damage)),
        },
        Created::Unknown(error) => Err(CatalogueError::Unknown { error }),
    }
}
