//! Little-endian fields and checksums: the building blocks of all formats on disk and in object storage.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC32C (Castagnoli), the checksum of every structure here.
pub fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut crc = Crc32c::new();
    for part in parts {
        crc.update(part);
    }
    crc.value()
}

/// CRC32C over bytes that come in pieces.
pub struct Crc32c(Digest);

impl Crc32c {
    /// Of no bytes yet.
    pub fn new() -> Crc32c {
        Crc32c(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
    /// Adds the bytes that follow.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
    /// The checksum of everything up to here.
    pub fn value(&self) -> u32 {
        u32::try_from(self.0.finalize()).expect("a 32-bit CRC fits 32 bits")
    }
}

impl Default for Crc32c {
    fn default() -> Crc32c {
        Crc32c::new()
    }
}

/// Fields written one after another.
pub struct Put<'a>(pub &'a mut Vec<u8>);

impl Put<'_> {
    /// A byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }
    /// Four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }
    /// Eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }
    /// Eight bytes.
    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }
    /// Bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// Fields read one after another; `None` when the bytes end before.
pub struct Take<'a>(pub &'a [u8]);

impl<'a> Take<'a> {
    /// The next `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }
    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }
    /// A byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(|[b]| b)
    }
    /// Four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    /// Eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    /// Eight bytes.
    pub fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }
    /// Whether all bytes were read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
