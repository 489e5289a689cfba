//! Parts of the world that are cheap to copy and to compare, for the explorer.

use std::cell::OnceCell;
use std::fmt::{Debug, Write as _};
use std::hash::{DefaultHasher, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A part of the world: copied when it is changed, and known by a hash of its debug text, which is kept while it is not.
#[derive(Clone)]
pub(in crate::core) struct Part<T> {
    value: Arc<T>,
    hash: OnceCell<u64>,
}

impl<T> From<T> for Part<T> {
    fn from(value: T) -> Part<T> {
        Part { value: Arc::new(value), hash: OnceCell::new() }
    }
}

impl<T> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Clone> DerefMut for Part<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.hash.take();
        Arc::make_mut(&mut self.value)
    }
}

impl<T: Debug> Debug for Part<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.value.fmt(f)
    }
}

impl<T: Debug> Part<T> {
    pub fn fingerprint(&self) -> u64 {
        *self.hash.get_or_init(|| {
            let mut hashing = Hashing(DefaultHasher::new());
            write!(hashing, "{:?}", self.value).expect("hashing does not fail");
            hashing.0.finish()
        })
    }
}

/// Text that is hashed and not kept.
struct Hashing(DefaultHasher);

impl std::fmt::Write for Hashing {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}
