//! Reads an object in large requests: small extents lie one behind the other, and each has a table of its own.

use std::ops::Range;

use bytes::Bytes;

/// Read by one request.
pub const AHEAD_BYTES: u64 = 4 << 20;

/// A reader of parts (offset and length) of an object with so many bytes, for [`verify`](super::verify), on top of one that fetches
/// ranges. Never asks for more than there is: lengths in an object that was cut short are longer than the rest of it.
pub fn ahead<E>(
    size_bytes: u64,
    mut fetch: impl FnMut(Range<u64>) -> Result<Bytes, E>,
) -> impl FnMut(u64, u64) -> Result<Bytes, E> {
    let mut window = (0, Bytes::new());
    move |offset: u64, length: u64| {
        let end = offset.saturating_add(length).min(size_bytes);
        if offset >= end {
            return Ok(Bytes::new());
        }
        if let Some(bytes) = part(&window, offset, end) {
            return Ok(bytes);
        }
        let until = end.max(offset.saturating_add(AHEAD_BYTES).min(size_bytes));
        window = (offset, fetch(offset..until)?);
        // A short answer shows as damage of the part.
        Ok(part(&window, offset, end).unwrap_or_default())
    }
}

fn part((start, bytes): &(u64, Bytes), from: u64, to: u64) -> Option<Bytes> {
    let begin = usize::try_from(from.checked_sub(*start)?).ok()?;
    let end = usize::try_from(to.checked_sub(*start)?).ok()?;
    (end <= bytes.len()).then(|| bytes.slice(begin..end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_from_few_large_requests() {
        let whole: Bytes = (0..10_000_000_u32).map(|n| n as u8).collect();
        let mut asked = Vec::new();
        let mut read = ahead(whole.len() as u64, |range: Range<u64>| {
            asked.push(range.clone());
            Ok::<_, ()>(whole.slice(range.start as usize..range.end as usize))
        });
        for at in (0..6_000_000).step_by(100_000) {
            assert_eq!(read(at, 64).unwrap(), whole.slice(at as usize..at as usize + 64));
        }
        assert_eq!(read(9_999_990, 64).unwrap().len(), 10, "never beyond the end");
        assert_eq!(read(20_000_000, 64).unwrap().len(), 0);
        assert_eq!(read(100, 5_000_000).unwrap().len(), 5_000_000, "a longer part is one request");
        drop(read);
        assert_eq!(asked.len(), 4, "{asked:?}");
        assert!(asked.iter().all(|range| range.end <= whole.len() as u64));
    }
}
