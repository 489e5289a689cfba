//! The two classes of reads. Each has pools, windows, queues and threads of its own, so that no number of plain reads
//! keeps a recovery waiting.

use std::ops::{Index, IndexMut};

/// Which pools and queues a read uses. A class that goes first is greater.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadClass {
    /// Everything but the other class.
    #[default]
    Plain,
    /// Reads that fence, reads of a recovery, and reads that a client marked as of high priority.
    Priority,
}

impl ReadClass {
    /// Both, in the order in which they are served.
    pub const IN_ORDER: [ReadClass; 2] = [ReadClass::Priority, ReadClass::Plain];

    /// The class of a read that fences or is marked (`is_priority`), or does neither.
    pub fn of(is_priority: bool) -> ReadClass {
        if is_priority { ReadClass::Priority } else { ReadClass::Plain }
    }

    /// Whether it is [`ReadClass::Priority`].
    pub fn is_priority(self) -> bool {
        self == ReadClass::Priority
    }
}

/// One of something for each class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerClass<T> {
    /// Of [`ReadClass::Plain`].
    pub plain: T,
    /// Of [`ReadClass::Priority`].
    pub priority: T,
}

impl<T> PerClass<T> {
    /// Both, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        [&self.plain, &self.priority].into_iter()
    }

    /// As [`PerClass::iter`].
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        [&mut self.plain, &mut self.priority].into_iter()
    }
}

impl<T> Index<ReadClass> for PerClass<T> {
    type Output = T;

    fn index(&self, class: ReadClass) -> &T {
        match class {
            ReadClass::Plain => &self.plain,
            ReadClass::Priority => &self.priority,
        }
    }
}

impl<T> IndexMut<ReadClass> for PerClass<T> {
    fn index_mut(&mut self, class: ReadClass) -> &mut T {
        match class {
            ReadClass::Plain => &mut self.plain,
            ReadClass::Priority => &mut self.priority,
        }
    }
}
