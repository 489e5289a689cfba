//! One object, read from end to end on a thread that may block.

use bindery_types::tier::ObjectRef;
use bindery_types::{EntryId, LedgerId};
use tokio::runtime::Handle;

use super::Fault;
use crate::catalogue::object_key;
use crate::object::{self, Trailer, VerifyError};
use crate::store::{Store, StoreError};
use crate::{ClusterId, ObjectId};

/// An extent that the footer has.
pub(super) struct FoundExtent {
    pub ledger: LedgerId,
    pub first: EntryId,
    pub last: EntryId,
    pub bytes: u64,
    /// What is wrong with it.
    pub damage: Option<String>,
}

/// An object whose frame is whole.
pub(super) struct ReadObject {
    pub trailer: Trailer,
    pub extents: Vec<FoundExtent>,
    /// Sound entries.
    pub entries: u64,
}

impl ReadObject {
    /// In which way the object is not the one that was committed.
    pub fn differs_from(&self, committed: &ObjectRef) -> Option<String> {
        let Trailer { footer_offset, footer_crc32c, object_size_bytes, .. } = self.trailer;
        let found = (object_size_bytes, footer_offset, footer_crc32c);
        let said = (committed.length_bytes, committed.footer_offset, committed.footer_crc);
        (found != said).then(|| {
            format!(
                "another object than was committed: {} bytes, footer at {} with checksum {:08x}, instead of {}, {} and {:08x}",
                found.0, found.1, found.2, said.0, said.1, said.2
            )
        })
    }
}

/// How an object was found.
pub(super) enum Found {
    Read(Box<ReadObject>),
    Bad(Fault, String),
    Missing,
    Unreachable(StoreError),
}

pub(super) struct Examined {
    pub size_bytes: u64,
    pub found: Found,
}

/// Whether there is such an object now.
pub(super) async fn is_there(store: &Store, cluster: ClusterId, id: ObjectId) -> Result<bool, StoreError> {
    match store.size_bytes(&object_key(cluster, id)).await {
        Ok(_) => Ok(true),
        Err(StoreError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads it. Blocks: call it on a thread that may.
pub(super) fn examine(handle: &Handle, store: &Store, cluster: ClusterId, id: ObjectId) -> Examined {
    let name = object_key(cluster, id);
    let failed = |error: StoreError| match error {
        StoreError::NotFound { .. } => Found::Missing,
        error => Found::Unreachable(error),
    };
    let size = match handle.block_on(store.size_bytes(&name)) {
        Ok(size) => size,
        Err(error) => return Examined { size_bytes: 0, found: failed(error) },
    };
    let read = object::ahead(size, |range| handle.block_on(store.read(&name, range)));
    let mut extents = Vec::new();
    let examined = object::examine(size, read, |extent, found| {
        extents.push(FoundExtent {
            ledger: extent.ledger,
            first: extent.first,
            last: extent.last,
            bytes: extent.body_bytes,
            damage: found.err().map(|error| error.to_string()),
        });
        true
    });
    let found = match examined {
        Ok(verified) if verified.header.cluster != cluster => {
            let what = format!("it belongs to the cluster {}", verified.header.cluster);
            Found::Bad(Fault::Foreign, what)
        }
        Ok(verified) if verified.header.object != id => {
            Found::Bad(Fault::Foreign, format!("it is object {}, under another name", verified.header.object))
        }
        Ok(verified) => {
            let (trailer, entries) = (verified.trailer, verified.entries);
            Found::Read(Box::new(ReadObject { trailer, extents, entries }))
        }
        Err(VerifyError::Object(error)) => Found::Bad(Fault::Damaged, error.to_string()),
        Err(VerifyError::Read(error)) => failed(error),
    };
    Examined { size_bytes: size, found }
}
