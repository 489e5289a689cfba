//! Whether an object arrived after all, when the answer to the request that wrote it was lost.

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::StoreError;

/// Last bytes that are compared: a trailer, which has the checksum of what has all other checksums.
const END_BYTES: usize = 64;

/// The bytes that were written under a key, as far as they tell the object from another one: how many, and the last of them.
#[derive(Debug, Default)]
pub struct Written {
    size_bytes: u64,
    end: Vec<u8>,
}

/// An object that is there as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// Its entity tag, if the store gives one.
    pub tag: Option<String>,
}

impl Written {
    /// More bytes, behind those before.
    pub fn add(&mut self, chunks: &[Bytes]) {
        for chunk in chunks {
            self.size_bytes += chunk.len() as u64;
            self.end.extend_from_slice(&chunk[chunk.len().saturating_sub(END_BYTES)..]);
            self.end.drain(..self.end.len().saturating_sub(END_BYTES));
        }
    }

    /// Looks whether the object is there as a whole; `None` when there is none, or another one. Two requests at most.
    pub async fn find(&self, store: &dyn ObjectStore, key: &Path) -> Result<Option<Arrived>, StoreError> {
        let found = match store.head(key).await.map_err(|error| StoreError::of(key, &error)) {
            Ok(found) => found,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        if found.size != self.size_bytes {
            return Ok(None);
        }
        let from = self.size_bytes - self.end.len() as u64;
        let end = store.get_range(key, from..self.size_bytes).await;
        let end = end.map_err(|error| StoreError::of(key, &error))?;
        Ok((end == self.end).then_some(Arrived { tag: found.e_tag }))
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    #[tokio::test]
    async fn an_object_is_known_by_its_length_and_its_end() {
        let (store, key) = (InMemory::new(), Path::from("key"));
        let mut written = Written::default();
        written.add(&[Bytes::from_static(b"a"), Bytes::from(vec![7; 1000])]);
        written.add(&[Bytes::from_static(b"the end")]);
        assert_eq!(written.find(&store, &key).await, Ok(None), "nothing is there");
        let whole = [b"a".to_vec(), vec![7; 1000], b"the end".to_vec()].concat();
        let mut other = whole.clone();
        *other.last_mut().unwrap() ^= 1;
        for bytes in [whole[1..].to_vec(), other] {
            store.put(&key, bytes.into()).await.unwrap();
            assert_eq!(written.find(&store, &key).await, Ok(None), "another one");
        }
        let tag = store.put(&key, whole.into()).await.unwrap().e_tag;
        assert_eq!(written.find(&store, &key).await, Ok(Some(Arrived { tag })));
    }
}
