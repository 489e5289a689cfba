//! Frames: a 4-byte big-endian length, then that many bytes (protocol reference, section 1.1).
//!
//! ```text
//!  0        4                4+len
//!  +--------+----------------+
//!  | len    | payload        |      len + 4 <= limit
//!  +--------+----------------+
//! ```
//!
//! # Invariants
//! 1. Any chunking of a byte stream gives the same frames: [`split`] looks only at what it is given and keeps no state.
//! 2. A length that is negative or above the limit is an error as soon as its 4 bytes are there, before any allocation.
//! 3. We never emit what a peer with our limit would refuse: senders check [`FrameLimit::admits_payload`].

use std::ops::Range;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The length prefix of every frame.
pub const LENGTH_PREFIX_SIZE_BYTES: usize = 4;

/// Room kept between the largest accepted entry and the frame limit, so that an entry accepted over v2 (overhead 28
/// bytes) can still be read by a batch (40) or over v3 (about 40 to 80). BookKeeper warns at the same distance.
pub const ENTRY_MARGIN_SIZE_BYTES: usize = 500;

/// The largest frame either side may send, length prefix included (`nettyMaxFrameSizeBytes`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLimit(u32);

impl FrameLimit {
    /// BookKeeper's default: 5 MiB.
    pub const DEFAULT: FrameLimit = FrameLimit(5 * 1024 * 1024);
    /// The limit that Pulsar gives its bookies: 5 MiB for a message, and 10 KiB for the fields around it.
    pub const PULSAR: FrameLimit = FrameLimit(5 * 1024 * 1024 + 10 * 1024);
    /// The smallest limit that leaves room for an entry.
    pub const MIN: FrameLimit = FrameLimit(1024);
    /// The length prefix is a signed 32-bit number.
    pub const MAX: FrameLimit = FrameLimit(i32::MAX as u32);

    /// `None` below [`FrameLimit::MIN`] or above [`FrameLimit::MAX`].
    pub const fn new(size_bytes: u32) -> Option<FrameLimit> {
        if size_bytes < Self::MIN.0 || size_bytes > Self::MAX.0 { None } else { Some(FrameLimit(size_bytes)) }
    }

    /// The limit in bytes, length prefix included.
    pub const fn size_bytes(self) -> usize {
        self.0 as usize
    }

    /// Whether a payload of this many bytes makes a frame within the limit.
    pub const fn admits_payload(self, payload_size_bytes: usize) -> bool {
        payload_size_bytes <= self.size_bytes() - LENGTH_PREFIX_SIZE_BYTES
    }

    /// The largest entry body an add may carry; a larger one is refused as a bad request, because once stored it might
    /// fit no response frame.
    pub const fn entry_size_bytes_max(self) -> usize {
        self.size_bytes() - ENTRY_MARGIN_SIZE_BYTES
    }
}

impl Default for FrameLimit {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const _: () = assert!(FrameLimit::MIN.size_bytes() > ENTRY_MARGIN_SIZE_BYTES, "an entry must fit");

/// A length prefix that is negative or above the limit. No reply exists: close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("frame length {len} is outside 0..={max}")]
pub struct FrameTooLarge {
    /// The length the peer announced.
    pub len: i32,
    /// The largest length allowed, which is the frame limit less the prefix.
    pub max: usize,
}

/// The front of a buffer, whole frame or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Split {
    /// A whole frame: the range of its payload. The frame ends where the range ends.
    Frame(Range<usize>),
    /// Not a whole frame yet: read at least this many bytes more. While the prefix itself is incomplete that is the
    /// rest of the prefix; afterwards it is exactly the rest of the frame.
    Incomplete {
        /// Bytes still missing, at least 1.
        missing: usize,
    },
}

/// Looks for a frame at the front of `buf` (invariants 1 and 2).
pub const fn split(buf: &[u8], limit: FrameLimit) -> Result<Split, FrameTooLarge> {
    let Some(prefix) = buf.first_chunk::<LENGTH_PREFIX_SIZE_BYTES>() else {
        return Ok(Split::Incomplete { missing: LENGTH_PREFIX_SIZE_BYTES - buf.len() });
    };
    let len = i32::from_be_bytes(*prefix);
    if len < 0 || !limit.admits_payload(len as usize) {
        return Err(FrameTooLarge { len, max: limit.size_bytes() - LENGTH_PREFIX_SIZE_BYTES });
    }
    let end = LENGTH_PREFIX_SIZE_BYTES + len as usize;
    if buf.len() < end {
        return Ok(Split::Incomplete { missing: end - buf.len() });
    }
    Ok(Split::Frame(LENGTH_PREFIX_SIZE_BYTES..end))
}

/// Takes the next frame's payload off `buf` without copying it; `None` when more bytes are needed.
///
/// Errors as [`split`] does; `buf` is then left alone.
pub fn take_payload(buf: &mut BytesMut, limit: FrameLimit) -> Result<Option<Bytes>, FrameTooLarge> {
    match split(buf, limit)? {
        Split::Incomplete { .. } => Ok(None),
        Split::Frame(payload) => {
            buf.advance(payload.start);
            Ok(Some(buf.split_to(payload.len()).freeze()))
        }
    }
}

/// Writes the length prefix of a payload of this many bytes.
///
/// Panics when the length does not fit the prefix: senders check [`FrameLimit::admits_payload`] first (invariant 3).
pub fn put_length(payload_size_bytes: usize, out: &mut impl BufMut) {
    assert!(payload_size_bytes <= FrameLimit::MAX.size_bytes(), "payload of {payload_size_bytes} bytes");
    out.put_i32(payload_size_bytes as i32);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream(payloads: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        for payload in payloads {
            put_length(payload.len(), &mut out);
            out.extend_from_slice(payload);
        }
        out
    }

    #[test]
    fn the_prefix_counts_against_the_limit() {
        let limit = FrameLimit::DEFAULT;
        let max = 5_242_880 - 4;
        assert_eq!(split(&i32::to_be_bytes(max), limit), Ok(Split::Incomplete { missing: max as usize }));
        for len in [max + 1, i32::MAX, -1, i32::MIN] {
            let refused = FrameTooLarge { len, max: max as usize };
            assert_eq!(split(&len.to_be_bytes(), limit), Err(refused));
            let mut buf = BytesMut::from(&len.to_be_bytes()[..]);
            assert_eq!(take_payload(&mut buf, limit), Err(refused));
        }
        assert_eq!(split(&i32::MAX.to_be_bytes()[..3], limit), Ok(Split::Incomplete { missing: 1 }));
    }

    #[test]
    fn an_empty_frame_is_a_frame() {
        assert_eq!(split(&[0, 0, 0, 0, 9], FrameLimit::DEFAULT), Ok(Split::Frame(4..4)));
    }

    #[test]
    fn limits_have_bounds() {
        assert_eq!(FrameLimit::new(1023), None);
        assert_eq!(FrameLimit::new(u32::MAX), None);
        assert_eq!(FrameLimit::new(5_242_880), Some(FrameLimit::default()));
        assert_eq!(FrameLimit::DEFAULT.entry_size_bytes_max(), 5_242_380);
        assert_eq!(FrameLimit::PULSAR.size_bytes(), 5_253_120);
    }

    proptest! {
        /// Invariant 1.
        #[test]
        fn any_chunking_gives_the_same_frames(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            chunk_sizes in prop::collection::vec(1usize..30, 1..20),
        ) {
            let bytes = stream(&payloads);
            let (mut buf, mut got, mut at) = (BytesMut::new(), Vec::new(), 0);
            for size in chunk_sizes.iter().cycle() {
                if at == bytes.len() {
                    break;
                }
                let end = bytes.len().min(at + size);
                buf.extend_from_slice(&bytes[at..end]);
                at = end;
                while let Some(payload) = take_payload(&mut buf, FrameLimit::DEFAULT)? {
                    got.push(payload.to_vec());
                }
            }
            prop_assert_eq!(got, payloads);
            prop_assert!(buf.is_empty());
        }

        #[test]
        fn the_missing_count_is_exact_once_the_length_is_known(
            payload in prop::collection::vec(any::<u8>(), 0..40), cut in 0usize..44,
        ) {
            let bytes = stream(std::slice::from_ref(&payload));
            let cut = cut.min(bytes.len());
            match split(&bytes[..cut], FrameLimit::DEFAULT)? {
                Split::Frame(range) => prop_assert_eq!(&bytes[range], &payload[..]),
                Split::Incomplete { missing } => {
                    let whole = if cut < 4 { 4 } else { bytes.len() };
                    prop_assert_eq!(missing, whole - cut);
                }
            }
        }
    }
}
