//! Footers of committed objects, for those that want the metadata of ledgers back.
//!
//! # Data flow
//! ```text
//! object reference ─► range of its footer, checked against the reference ─► Footer (the last few are kept) ─► metadata of a ledger
//!                                                                              └─► block with a last entry ─► the entry
//! ```
//!
//! # Limits
//! [`FOOTERS_KEPT`] footers, each up to [`FOOTER_BYTES_MAX`](crate::object::FOOTER_BYTES_MAX).

use std::collections::VecDeque;
use std::sync::Arc;

use bindery_types::tier::{ObjectRef, TierExtent};
use bindery_types::{EntryId, LedgerId};
use bytes::Bytes;
use parking_lot::Mutex;

use crate::catalogue::object_key;
use crate::object::{
    Extent, FOOTER_BYTES_MAX, Footer, ObjectError, TRAILER_SIZE_BYTES, TableEntry, Trailer, decode_block,
    decode_table,
};
use crate::store::{Store, StoreError};
use crate::{ClusterId, ObjectId};

/// Ledgers that follow each other are often in the same objects.
const FOOTERS_KEPT: usize = 8;
/// Read from the end of an object that nobody refers to, at first.
const TAIL_BYTES: u64 = 64 << 10;

/// Why a footer, or an entry, cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FooterError {
    /// The object is missing, or the store does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It is damaged.
    #[error("object {object}: {error}")]
    Object {
        /// The object.
        object: ObjectId,
        /// How.
        error: ObjectError,
    },
    /// It is another object than the one that was committed.
    #[error("object {object} is not the one that was committed: {what}")]
    Other {
        /// The object.
        object: ObjectId,
        /// In which way.
        what: &'static str,
    },
}

/// Reads footers of one cluster's objects.
pub struct Footers {
    store: Store,
    cluster: ClusterId,
    kept: Mutex<VecDeque<(ObjectId, Arc<Footer>)>>,
}

impl Footers {
    /// Nothing is read yet.
    pub fn new(store: Store, cluster: ClusterId) -> Footers {
        Footers { store, cluster, kept: Mutex::default() }
    }

    /// The footer of an object, as it was committed.
    pub async fn of(&self, object: &ObjectRef) -> Result<Arc<Footer>, FooterError> {
        if let Some((_, footer)) = self.kept.lock().iter().find(|(id, _)| *id == object.id) {
            return Ok(footer.clone());
        }
        let footer = Arc::new(self.read(object).await?);
        let mut kept = self.kept.lock();
        if kept.len() == FOOTERS_KEPT {
            kept.pop_front();
        }
        kept.push_back((object.id, footer.clone()));
        Ok(footer)
    }

    /// The store that it reads.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The cluster whose objects it reads.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    async fn read(&self, object: &ObjectRef) -> Result<Footer, FooterError> {
        let of_object = |error| FooterError::Object { object: object.id, error };
        let other = |what| FooterError::Other { object: object.id, what };
        let size = object.length_bytes.saturating_sub(object.footer_offset);
        let footer_size =
            size.checked_sub(TRAILER_SIZE_BYTES as u64).filter(|size| *size <= FOOTER_BYTES_MAX);
        let footer_size = footer_size.ok_or_else(|| other("its footer has an impossible length"))?;
        let bytes = self.range(object, object.footer_offset, size).await?;
        if bytes.len() as u64 != size {
            return Err(other("it is shorter"));
        }
        let footer = bytes.slice(..bytes.len() - TRAILER_SIZE_BYTES);
        let trailer = bytes.last_chunk().ok_or_else(|| other("it is shorter"))?;
        let trailer = Trailer::decode(trailer, object.length_bytes).map_err(of_object)?;
        let found = (trailer.object, trailer.footer_offset, trailer.footer_size_bytes, trailer.footer_crc32c);
        if found != (object.id, object.footer_offset, footer_size, object.footer_crc) {
            return Err(other("it has another footer"));
        }
        Footer::decode(&footer, &trailer).map_err(of_object)
    }

    /// The footer of an object that nobody refers to, of this length, and the reference to it. Two requests at most.
    pub async fn of_found(
        &self,
        id: ObjectId,
        length_bytes: u64,
    ) -> Result<(ObjectRef, Footer), FooterError> {
        let of_object = |error| FooterError::Object { object: id, error };
        let other = |what| FooterError::Other { object: id, what };
        let name = object_key(self.cluster, id);
        let from = length_bytes.saturating_sub(TAIL_BYTES);
        let tail = self.store.read(&name, from..length_bytes).await?;
        let trailer = tail.last_chunk().filter(|_| tail.len() as u64 == length_bytes - from);
        let trailer = trailer.ok_or_else(|| other("it is shorter than was listed, or than a trailer"))?;
        let trailer = Trailer::decode(trailer, length_bytes).map_err(of_object)?;
        if trailer.object != id {
            return Err(other("it has another id"));
        }
        if trailer.footer_size_bytes > FOOTER_BYTES_MAX {
            return Err(other("its footer has an impossible length"));
        }
        let end = trailer.footer_offset + trailer.footer_size_bytes;
        let footer = match trailer.footer_offset.checked_sub(from) {
            Some(at) => tail.slice(at as usize..(end - from) as usize),
            None => self.store.read(&name, trailer.footer_offset..end).await?,
        };
        let footer = Footer::decode(&footer, &trailer).map_err(of_object)?;
        let (footer_offset, footer_crc) = (trailer.footer_offset, trailer.footer_crc32c);
        Ok((ObjectRef { id, length_bytes, footer_offset, footer_crc, etag_crc: 0 }, footer))
    }

    async fn range(&self, object: &ObjectRef, offset: u64, size: u64) -> Result<Bytes, StoreError> {
        let name = object_key(self.cluster, object.id);
        self.store.read_part(&name, offset..offset.saturating_add(size), object.footer_offset).await
    }

    /// The table of an extent, with length and checksum of each of its entries.
    pub async fn table(&self, object: &ObjectRef, extent: &Extent) -> Result<Vec<TableEntry>, FooterError> {
        let bytes = self.range(object, extent.table_offset, extent.table_size_bytes()).await?;
        decode_table(extent, &bytes).map_err(|error| FooterError::Object { object: object.id, error })
    }

    /// The stored bytes of one entry of an extent.
    pub async fn entry(
        &self,
        ledger: LedgerId,
        extent: &TierExtent,
        entry: EntryId,
    ) -> Result<Bytes, FooterError> {
        let object = &extent.object;
        let missing =
            || FooterError::Other { object: object.id, what: "it lacks an entry that it was committed with" };
        let footer = self.of(object).await?;
        let place = footer.extents_of(ledger).find_map(|extent| Some((extent, extent.block_of(entry)?)));
        let (extent, block) = place.ok_or_else(missing)?;
        let stored = &extent.blocks[block];
        let bytes = self.range(object, stored.offset, u64::from(stored.stored_size_bytes)).await?;
        let entries = decode_block(extent, block, bytes)
            .map_err(|error| FooterError::Object { object: object.id, error })?;
        let at = usize::try_from(entry.get() - stored.first.get()).ok();
        at.and_then(|at| entries.get(at)).cloned().ok_or_else(missing)
    }
}
