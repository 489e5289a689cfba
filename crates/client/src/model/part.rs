//! Parts of the simulated world, which share what did not change.

use std::cell::OnceCell;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A part of the world: copied when it is changed, and known by a hash that is kept while it is not.
#[derive(Clone, Debug)]
pub(super) struct Part<T> {
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

impl<T: std::fmt::Debug> Part<T> {
    /// Of all that its debug form shows.
    pub fn fingerprint(&self) -> u64 {
        *self.hash.get_or_init(|| {
            let mut hashing = Hashing(DefaultHasher::new());
            write!(hashing, "{:?}", self.value).expect("hashing does not fail");
            hashing.0.finish()
        })
    }
}

struct Hashing(DefaultHasher);

impl std::fmt::Write for Hashing {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}
