//! Proves that an object is whole: every checksum, every entry against its table.

use bindery_types::codec::crc32c;
use bytes::Bytes;

use super::{
    Extent, Footer, HEADER_SIZE_BYTES, Header, ObjectError, TRAILER_SIZE_BYTES, Trailer, damaged,
    decode_block, decode_table,
};

/// Why an object was not verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError<E: std::error::Error + 'static> {
    /// It is not what it should be.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// It could not be read.
    #[error("cannot read the object: {0}")]
    Read(E),
}

/// An object that was read from end to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Its header.
    pub header: Header,
    /// Its trailer.
    pub trailer: Trailer,
    /// The ledgers and extents in it.
    pub footer: Footer,
    /// Entries in it that are sound.
    pub entries: u64,
}

/// Reads an object of this length, one part after the other, through `read` (offset and length of what is wanted).
/// `seen` is called with each extent that was found to be whole. Ends with the first damage.
pub fn verify<E: std::error::Error + 'static>(
    object_size_bytes: u64,
    read: impl FnMut(u64, u64) -> Result<Bytes, E>,
    mut seen: impl FnMut(&Extent),
) -> Result<Verified, VerifyError<E>> {
    let mut damage = None;
    let verified = examine(object_size_bytes, read, |extent, found| match found {
        Ok(()) => {
            seen(extent);
            true
        }
        Err(error) => {
            damage = Some(error);
            false
        }
    })?;
    damage.map_or(Ok(verified), |error| Err(error.into()))
}

/// As [`verify`], and goes on behind an extent that is damaged. `seen` is called with each extent and how it was found, in the
/// order of their places, and says whether to go on. An error is one of the object as a whole: of its header, footer or trailer,
/// or of reading.
pub fn examine<E: std::error::Error + 'static>(
    object_size_bytes: u64,
    mut read: impl FnMut(u64, u64) -> Result<Bytes, E>,
    mut seen: impl FnMut(&Extent, Result<(), ObjectError>) -> bool,
) -> Result<Verified, VerifyError<E>> {
    if object_size_bytes < (HEADER_SIZE_BYTES + TRAILER_SIZE_BYTES) as u64 {
        return Err(ObjectError::NotAnObject { part: "trailer" }.into());
    }
    // Bytes that are missing from a read show as damage of the part.
    let trailer_at = object_size_bytes - TRAILER_SIZE_BYTES as u64;
    let trailer = read(trailer_at, TRAILER_SIZE_BYTES as u64).map_err(VerifyError::Read)?;
    let trailer = Trailer::decode(&exactly(&trailer, "trailer", trailer_at)?, object_size_bytes)?;
    let header = read(0, HEADER_SIZE_BYTES as u64).map_err(VerifyError::Read)?;
    let header = Header::decode(&exactly(&header, "header", 0)?)?;
    if header.object != trailer.object {
        return Err(damaged("trailer", trailer_at, "it is that of another object than the header").into());
    }
    let footer = read(trailer.footer_offset, trailer.footer_size_bytes).map_err(VerifyError::Read)?;
    let footer = Footer::decode(&footer, &trailer)?;
    let mut entries = 0;
    let mut extents: Vec<&Extent> = footer.extents.iter().collect();
    extents.sort_unstable_by_key(|extent| extent.table_offset);
    for extent in extents {
        let found = match examine_extent(extent, &mut read) {
            Ok(count) => {
                entries += count;
                Ok(())
            }
            Err(VerifyError::Object(error)) => Err(error),
            Err(error @ VerifyError::Read(_)) => return Err(error),
        };
        if !seen(extent, found) {
            break;
        }
    }
    Ok(Verified { header, trailer, footer, entries })
}

/// How many entries it has, all of them as its table says.
fn examine_extent<E: std::error::Error + 'static>(
    extent: &Extent,
    read: &mut impl FnMut(u64, u64) -> Result<Bytes, E>,
) -> Result<u64, VerifyError<E>> {
    let table = read(extent.table_offset, extent.table_size_bytes()).map_err(VerifyError::Read)?;
    let table = decode_table(extent, &table)?;
    let (mut expected, mut entries) = (table.iter(), 0);
    for (index, block) in extent.blocks.iter().enumerate() {
        let stored = read(block.offset, u64::from(block.stored_size_bytes)).map_err(VerifyError::Read)?;
        for entry in decode_block(extent, index, stored)? {
            let is_as_listed = expected.next().is_some_and(|listed| {
                listed.size_bytes as usize == entry.len() && listed.crc32c == crc32c(&[&entry])
            });
            if !is_as_listed {
                return Err(damaged("block", block.offset, "an entry in it is not as its table says").into());
            }
            entries += 1;
        }
    }
    Ok(entries)
}

fn exactly<const N: usize>(bytes: &Bytes, part: &'static str, offset: u64) -> Result<[u8; N], ObjectError> {
    (**bytes).try_into().map_err(|_| damaged(part, offset, "it could not be read as a whole"))
}
