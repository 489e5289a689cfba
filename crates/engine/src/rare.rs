//! A list that most owners never have: a pointer while it is empty.

use std::ops::Deref;

/// See the module.
#[derive(Debug)]
#[allow(clippy::box_collection, reason = "a list takes three words, also when it is empty")]
pub(crate) struct RareVec<T>(Option<Box<Vec<T>>>);

impl<T> Default for RareVec<T> {
    fn default() -> RareVec<T> {
        RareVec(None)
    }
}

impl<T> Deref for RareVec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

impl<T> From<Vec<T>> for RareVec<T> {
    fn from(list: Vec<T>) -> RareVec<T> {
        RareVec((!list.is_empty()).then(|| Box::new(list)))
    }
}

impl<T> FromIterator<T> for RareVec<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> RareVec<T> {
        Vec::from_iter(items).into()
    }
}

impl<T> RareVec<T> {
    /// The list; nothing is left.
    pub(crate) fn take(&mut self) -> Vec<T> {
        self.0.take().map_or(Vec::new(), |list| *list)
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        let mut list = self.take();
        list.retain(keep);
        *self = list.into();
    }
}
