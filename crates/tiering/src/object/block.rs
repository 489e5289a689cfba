//! Blocks: entries in one piece, as it is fetched.

use bindery_types::codec::{Put, Take, crc32c};
use bindery_types::{EntryId, LedgerId};
use bytes::Bytes;

use super::{BLOCK_BYTES_TARGET, BLOCK_ENTRIES_MAX, ENTRY_BYTES_MAX, Extent, ObjectError, damaged};

/// Shortest stored entry: ledger, entry and LAC, last add confirmed (protocol reference, section 3.1).
pub(super) const ENTRY_BYTES_MIN: usize = 24;

/// How a block is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// As it is.
    #[default]
    None,
    /// Zstandard, level 1, one frame. A block that it makes less than a tenth shorter is stored as it is.
    Zstd,
}

/// Measured on text-like entries, level 3 takes twice the time of level 1 for 4 % fewer bytes.
const ZSTD_LEVEL: i32 = 1;

impl Compression {
    pub(super) const fn number(self) -> u32 {
        match self {
            Compression::None => 0,
            Compression::Zstd => 1,
        }
    }

    pub(super) const fn of_number(number: u32) -> Option<Compression> {
        match number {
            0 => Some(Compression::None),
            1 => Some(Compression::Zstd),
            _ => None,
        }
    }
}

/// Length of a raw block in front of its first body.
const fn head_size_bytes(entries: usize) -> usize {
    4 + 4 * entries
}

/// Largest raw block of so many entries: closed by the entry that reached the target.
pub(super) const fn raw_size_bytes_max(entries: usize) -> usize {
    head_size_bytes(entries) + BLOCK_BYTES_TARGET + ENTRY_BYTES_MAX
}

pub(super) const fn raw_size_bytes_min(entries: usize) -> usize {
    head_size_bytes(entries) + ENTRY_BYTES_MIN * entries
}

/// A block that is being filled.
#[derive(Default)]
pub(super) struct OpenBlock {
    bodies: Vec<Bytes>,
    body_bytes: usize,
}

/// A block as it goes into the object.
pub(super) struct StoredBlock {
    pub parts: Vec<Bytes>,
    pub stored_size_bytes: u32,
    pub raw_size_bytes: u32,
    pub crc32c: u32,
    pub compression: Compression,
}

impl OpenBlock {
    pub(super) fn push(&mut self, body: Bytes) {
        self.body_bytes += body.len();
        self.bodies.push(body);
    }

    pub(super) fn entries(&self) -> usize {
        self.bodies.len()
    }

    pub(super) fn raw_size_bytes(&self) -> usize {
        head_size_bytes(self.bodies.len()) + self.body_bytes
    }

    pub(super) fn is_full(&self) -> bool {
        self.body_bytes >= BLOCK_BYTES_TARGET || self.bodies.len() >= BLOCK_ENTRIES_MAX
    }

    /// Closes the block and leaves an empty one.
    pub(super) fn close(&mut self, wanted: Compression) -> StoredBlock {
        let OpenBlock { bodies, body_bytes } = std::mem::take(self);
        let mut head = Vec::with_capacity(head_size_bytes(bodies.len()));
        let mut out = Put(&mut head);
        out.u32(u32::try_from(bodies.len()).expect("a block within its limit"));
        for body in &bodies {
            out.u32(u32::try_from(body.len()).expect("an entry within its limit"));
        }
        let raw_size_bytes = head.len() + body_bytes;
        let mut parts = Vec::with_capacity(1 + bodies.len());
        parts.push(Bytes::from(head));
        parts.extend(bodies);
        let compressed = match wanted {
            Compression::None => None,
            Compression::Zstd => compressed(&parts, raw_size_bytes),
        };
        let compression = if compressed.is_some() { wanted } else { Compression::None };
        let parts = compressed.map_or(parts, |bytes| vec![bytes]);
        let slices: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
        let crc32c = crc32c(&slices);
        let size = |bytes: usize| u32::try_from(bytes).expect("a block within its limit");
        let stored_size_bytes = size(parts.iter().map(Bytes::len).sum());
        StoredBlock { parts, stored_size_bytes, raw_size_bytes: size(raw_size_bytes), crc32c, compression }
    }
}

/// `None` when it saves less than a tenth.
fn compressed(parts: &[Bytes], raw_size_bytes: usize) -> Option<Bytes> {
    let raw = parts.concat();
    let stored = zstd::bulk::compress(&raw, ZSTD_LEVEL).ok()?;
    (stored.len() < raw_size_bytes - raw_size_bytes / 10).then(|| Bytes::from(stored))
}

/// The entries of block `index` of an extent, from its bytes in the object. Each is the stored entry whose ids its place
/// says; anything that does not verify is an error.
///
/// # Panics
/// When the extent has no such block.
pub fn decode_block(extent: &Extent, index: usize, stored: Bytes) -> Result<Vec<Bytes>, ObjectError> {
    let place = &extent.blocks[index];
    let wrong = |problem| damaged("block", place.offset, problem);
    if stored.len() != place.stored_size_bytes as usize {
        return Err(wrong("there are fewer or more bytes than the footer says"));
    }
    if crc32c(&[&stored]) != place.crc32c {
        return Err(wrong("its checksum does not match"));
    }
    let raw_size = place.raw_size_bytes as usize;
    let raw = match place.compression {
        Compression::None => stored,
        Compression::Zstd => match zstd::bulk::decompress(&stored, raw_size) {
            Ok(raw) if raw.len() == raw_size => Bytes::from(raw),
            _ => return Err(wrong("it cannot be decompressed to the length that the footer says")),
        },
    };
    let expected = (extent.last_of(index).get() - place.first.get()) as usize + 1;
    let mut fields = Take(&raw);
    if fields.u32().map(|count| count as usize) != Some(expected) {
        return Err(wrong("it has another number of entries than the footer says"));
    }
    let Some(lengths) = expected.checked_mul(4).and_then(|size| fields.bytes(size)) else {
        return Err(wrong("it ends inside the lengths of its entries"));
    };
    let (lengths, _) = lengths.as_chunks::<4>();
    let mut entries = Vec::with_capacity(expected);
    for (id, length) in (place.first.get()..).zip(lengths) {
        let Some(body) = fields.bytes(u32::from_le_bytes(*length) as usize) else {
            return Err(wrong("it ends inside an entry"));
        };
        if !EntryId::new(id).is_some_and(|id| is_entry(body, extent.ledger, id)) {
            return Err(wrong("an entry in it carries other ids than its place says"));
        }
        entries.push(raw.slice_ref(body));
    }
    if !fields.is_empty() {
        return Err(wrong("there are bytes behind its last entry"));
    }
    Ok(entries)
}

/// Whether these are the bytes of a stored entry with these ids.
pub(super) fn is_entry(body: &[u8], ledger: LedgerId, entry: EntryId) -> bool {
    let ids = body.first_chunk::<16>().filter(|_| body.len() >= ENTRY_BYTES_MIN);
    ids.is_some_and(|ids| {
        let (of_ledger, of_entry) = ids.split_at(8);
        of_ledger == ledger.get().to_be_bytes() && of_entry == entry.get().to_be_bytes()
    })
}
