//! The calls made to a simulated disk: the last operations for failure reports, and a hash of all for comparing runs.

use std::collections::VecDeque;
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// One operation and how it ended.
struct Operation {
    number: u64,
    name: &'static str,
    path: Arc<Path>,
    offset: u64,
    len: u64,
    outcome: Result<u64, ErrorKind>,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {} {}", self.number, self.name, self.path.display())?;
        if self.len > 0 || self.offset > 0 {
            write!(f, " at {} len {}", self.offset, self.len)?;
        }
        match self.outcome {
            Ok(n) => write!(f, " -> {n}"),
            Err(kind) => write!(f, " -> {kind:?}"),
        }
    }
}

pub(super) struct Trace {
    last: VecDeque<Operation>,
    capacity: usize,
    pub(super) operations: u64,
    pub(super) changes: u64,
    pub(super) hash: u64,
}

impl Trace {
    pub(super) fn new(capacity: usize) -> Trace {
        Trace { last: VecDeque::new(), capacity, operations: 0, changes: 0, hash: HASH_START }
    }

    pub(super) fn push(
        &mut self,
        name: &'static str,
        path: Arc<Path>,
        offset: u64,
        len: u64,
        outcome: Result<u64, ErrorKind>,
    ) {
        self.operations += 1;
        self.hash = hash_bytes(self.hash, name.as_bytes());
        self.hash = hash_bytes(self.hash, path.as_os_str().as_encoded_bytes());
        self.hash = hash_word(hash_word(self.hash, offset), len);
        self.hash = match outcome {
            Ok(n) => hash_word(self.hash, n),
            Err(kind) => hash_bytes(self.hash, format!("{kind:?}").as_bytes()),
        };
        if self.capacity == 0 {
            return;
        }
        if self.last.len() == self.capacity {
            self.last.pop_front();
        }
        self.last.push_back(Operation { number: self.operations, name, path, offset, len, outcome });
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.last.iter().map(Operation::to_string).collect()
    }
}

/// FNV-1a over words instead of bytes: fast, stable, and nobody attacks it.
pub(super) const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;

pub(super) fn hash_word(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
}

pub(super) fn hash_bytes(hash: u64, bytes: &[u8]) -> u64 {
    let hash = hash_word(hash, bytes.len() as u64);
    bytes.chunks(8).fold(hash, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash_word(hash, u64::from_le_bytes(word))
    })
}
