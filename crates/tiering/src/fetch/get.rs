//! Requests: a footer, blocks, a table, the properties of an object.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bindery_types::tier::{ClusterId, ObjectRef};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta};

use super::FetchError;
use super::index::{Block, Index, damaged};
use crate::object::{
    Extent, FOOTER_BYTES_MAX, Footer, ObjectError, TRAILER_SIZE_BYTES, Trailer, decode_block,
};
use crate::store::{Store, StoreError};

/// Where a cluster's objects are.
pub struct Bucket {
    pub store: Store,
    pub cluster: ClusterId,
}

/// An object as the store describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Its length.
    pub length_bytes: u64,
}

impl Head {
    fn of(meta: &ObjectMeta) -> Head {
        Head { length_bytes: meta.size }
    }

    /// The object that was committed has this length. Its entity tag says nothing: every copy of a bucket may change it. The
    /// checksum of the footer, which the reference has, tells whether the content is the one that was committed.
    pub fn compare(&self, object: &ObjectRef) -> Result<(), FetchError> {
        if self.length_bytes == object.length_bytes {
            return Ok(());
        }
        let difference = format!("it has {} bytes instead of {}", self.length_bytes, object.length_bytes);
        Err(FetchError::Different { object: object.id, difference: difference.into() })
    }
}

impl Bucket {
    fn key(&self, object: &ObjectRef) -> Path {
        self.store.key(&format!("{}/objects/{}", self.cluster, object.id))
    }

    fn failed(object: &ObjectRef, key: &Path, error: &object_store::Error) -> FetchError {
        let said = StoreError::of(key, error);
        let (object, reason) = (object.id, said.to_string().into());
        match (said, error) {
            (StoreError::NotFound { .. }, _) => FetchError::Missing { object, reason },
            // Not for want of credentials, which concerns all objects.
            (_, object_store::Error::PermissionDenied { .. }) => FetchError::Refused { object, reason },
            _ => FetchError::Unreachable { reason },
        }
    }

    /// Length of an object, as the store says.
    pub async fn head(&self, object: &ObjectRef) -> Result<Head, FetchError> {
        let key = self.key(object);
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.store.inner().get_opts(&key, options).await {
            Ok(result) => Ok(Head::of(&result.meta)),
            Err(error) => Err(Self::failed(object, &key, &error)),
        }
    }

    /// Begins to read a range.
    pub async fn get(&self, object: &ObjectRef, offset: u64, size_bytes: u64) -> Result<Body, FetchError> {
        let key = self.key(object);
        let range = GetRange::Bounded(offset..offset.saturating_add(size_bytes));
        let options = GetOptions { range: Some(range), ..GetOptions::default() };
        let result = match self.store.inner().get_opts(&key, options).await {
            Ok(result) => result,
            Err(error) => {
                let error = Self::failed(object, &key, &error);
                return Err(self.explain(object, error).await);
            }
        };
        Head::of(&result.meta).compare(object)?;
        Ok(Body::new(object, key, result))
    }

    /// A range behind the end of an object that was cut short is refused, which is not the store's fault.
    async fn explain(&self, object: &ObjectRef, error: FetchError) -> FetchError {
        let FetchError::Unreachable { reason } = &error else { return error };
        if !(reason.contains("416") || reason.to_lowercase().contains("range")) {
            return error;
        }
        let head = self.head(object).await;
        let compared = head.and_then(|head| head.compare(object));
        match compared {
            Err(found) if found.is_alarm() => found,
            _ => error,
        }
    }

    /// The index of an object: its footer, as the reference names it. Counts what came into `bytes`.
    pub async fn index(&self, object: &ObjectRef, bytes: &mut u64) -> Result<Arc<Index>, FetchError> {
        let wrong = |problem| {
            damaged(object, ObjectError::Damaged { part: "footer", offset: object.footer_offset, problem })
        };
        let size = object.length_bytes.saturating_sub(object.footer_offset);
        let Some(footer_size) = size.checked_sub(TRAILER_SIZE_BYTES as u64) else {
            return Err(wrong("its reference leaves no room for it"));
        };
        if footer_size > FOOTER_BYTES_MAX {
            return Err(wrong("its reference announces one above the limit"));
        }
        let mut body = self.get(object, object.footer_offset, size).await?;
        let mut footer = body.next(size as usize).await?;
        *bytes += size;
        let trailer = footer.split_off(footer_size as usize);
        let trailer: &[u8; TRAILER_SIZE_BYTES] =
            trailer.first_chunk().expect("it was read with the length of a trailer at its end");
        let trailer =
            Trailer::decode(trailer, object.length_bytes).map_err(|error| damaged(object, error))?;
        let is_referred_to = trailer.object == object.id
            && trailer.footer_offset == object.footer_offset
            && trailer.footer_crc32c == object.footer_crc;
        if !is_referred_to {
            let difference = "its trailer names another id, or another place or checksum of the footer";
            return Err(FetchError::Different { object: object.id, difference: difference.into() });
        }
        let footer = Footer::decode(&footer, &trailer).map_err(|error| damaged(object, error))?;
        Ok(Arc::new(Index::new(footer)))
    }
}

/// The bytes of a range, in pieces of known lengths.
pub struct Body {
    object: ObjectRef,
    key: Path,
    source: Source,
}

enum Source {
    File { file: Arc<std::fs::File>, offset: u64, end: u64 },
    Stream { stream: BoxStream<'static, object_store::Result<Bytes>>, rest: Bytes },
}

impl Body {
    fn new(object: &ObjectRef, key: Path, result: GetResult) -> Body {
        let source = match result.payload {
            GetResultPayload::File(file, _) => {
                Source::File { file: Arc::new(file), offset: result.range.start, end: result.range.end }
            }
            GetResultPayload::Stream(stream) => Source::Stream { stream, rest: Bytes::new() },
        };
        Body { object: *object, key, source }
    }

    /// The next bytes, in memory of their own: a piece of what came at once would keep all of that.
    pub async fn next(&mut self, size_bytes: usize) -> Result<Bytes, FetchError> {
        let early = || FetchError::Unreachable {
            reason: format!("{}: the answer ended before the range that was asked for", self.key).into(),
        };
        match &mut self.source {
            Source::File { file, offset, end } => {
                let at = *offset;
                *offset += size_bytes as u64;
                if *offset > *end {
                    return Err(early());
                }
                let file = file.clone();
                let read = tokio::task::spawn_blocking(move || {
                    let mut bytes = vec![0; size_bytes];
                    file.read_exact_at(&mut bytes, at).map(|()| bytes)
                });
                match read.await {
                    Ok(Ok(bytes)) => Ok(bytes.into()),
                    Ok(Err(error)) => {
                        Err(FetchError::Unreachable { reason: format!("{}: {error}", self.key).into() })
                    }
                    Err(_) => Err(FetchError::Stopped),
                }
            }
            Source::Stream { stream, rest } => {
                let mut bytes = Vec::with_capacity(size_bytes);
                loop {
                    let taken = rest.split_to(rest.len().min(size_bytes - bytes.len()));
                    bytes.extend_from_slice(&taken);
                    if bytes.len() == size_bytes {
                        return Ok(bytes.into());
                    }
                    match stream.next().await {
                        Some(Ok(chunk)) => *rest = chunk,
                        Some(Err(error)) => return Err(Bucket::failed(&self.object, &self.key, &error)),
                        None => return Err(early()),
                    }
                }
            }
        }
    }

    /// The next block of a piece of an extent.
    pub async fn block(
        &mut self,
        extent: &Extent,
        at: usize,
    ) -> Result<Result<Block, FetchError>, FetchError> {
        let place = &extent.blocks[at];
        let stored = self.next(place.stored_size_bytes as usize).await?;
        let entries = decode_block(extent, at, stored).map_err(|error| damaged(&self.object, error));
        Ok(entries.map(|entries| Block { first: place.first, entries }))
    }
}
