//! Bytes from one bookie, cut into frames.
//!
//! ```text
//! socket ──► fixed buffer ──► small frames, borrowed          (answers to adds: thousands in one read)
//!        ├─► buffer of the frame's exact size ──► large frames, owned: entries are slices of it
//!        └─► frames above the limit: their first bytes, borrowed; the rest is skipped
//! ```
//!
//! # Invariants
//! 1. Any chunking of the stream gives the same frames.
//! 2. A length is judged before anything is allocated for it. Of a frame above the limit at most the fixed buffer is held.
//!
//! # Limits     fixed buffer: [`BUFFER_BYTES`]; a larger frame takes its own length, at most the frame limit

use std::io;
use std::task::Context;

use bindery_wire::frame::{self, FrameTooLarge, LENGTH_PREFIX_SIZE_BYTES, Split};
use bindery_wire::{FrameLimit, v2, v3};
use bytes::{BufMut, Bytes, BytesMut};

use crate::stream::ByteStream;

/// Holds 2,300 answers to adds.
const BUFFER_BYTES: usize = 64 * 1024;

/// The first bytes of a frame, which name its request. No limit is lower.
const HEAD_BYTES: usize = 64;
const _: () =
    assert!(HEAD_BYTES >= v2::RESPONSE_HEAD_SIZE_BYTES_MAX && HEAD_BYTES >= v3::HEAD_SIZE_BYTES_MAX);
const _: () = assert!(LENGTH_PREFIX_SIZE_BYTES + HEAD_BYTES <= FrameLimit::MIN.size_bytes());

/// What came next.
#[derive(Debug)]
pub(super) enum Next<'a> {
    /// A whole frame.
    Frame(Frame<'a>),
    /// A frame above the limit, the rest of which is going to be skipped.
    TooLarge {
        /// Its first bytes.
        head: &'a [u8],
        /// Its length, prefix included.
        size_bytes: usize,
    },
}

/// The payload of one frame.
#[derive(Debug)]
pub(super) enum Frame<'a> {
    /// Inside the fixed buffer: copy it to keep it longer.
    Small(&'a [u8]),
    /// In a buffer of its own.
    Large(Bytes),
}

impl Frame<'_> {
    /// The bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Frame::Small(bytes) => bytes,
            Frame::Large(bytes) => bytes,
        }
    }

    /// The payload to keep; copied once if it was small.
    pub(super) fn to_bytes(&self) -> Bytes {
        match self {
            Frame::Small(bytes) => Bytes::copy_from_slice(bytes),
            Frame::Large(bytes) => bytes.clone(),
        }
    }

    /// A part of [`bytes`](Self::bytes) to keep; copied only if the frame was small.
    pub(super) fn part(&self, part: &[u8]) -> Bytes {
        match self {
            Frame::Small(_) => Bytes::copy_from_slice(part),
            Frame::Large(bytes) => bytes.slice_ref(part),
        }
    }
}

/// The receiving end of one connection.
pub(super) struct Incoming {
    limit: FrameLimit,
    buffer: Box<[u8]>,
    begin: usize,
    end: usize,
    /// A large frame under way, and how many bytes of its payload are missing.
    large: Option<(BytesMut, usize)>,
    /// Bytes to come of a frame above the limit.
    skipped: usize,
}

impl Incoming {
    pub(super) fn new(limit: FrameLimit) -> Incoming {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Incoming { limit, buffer, begin: 0, end: 0, large: None, skipped: 0 }
    }

    /// The largest frame that it takes.
    pub(super) fn limit(&self) -> FrameLimit {
        self.limit
    }

    /// The small frames, or the beginning of one, that were read and not taken.
    pub(super) fn unread(&self) -> &[u8] {
        &self.buffer[self.begin..self.end]
    }

    /// Reads what one call gives, without waiting. Call it when [`next_frame`](Self::next_frame) has no more: there is
    /// room then. 0 is the end of the stream.
    pub(super) fn read_some(
        &mut self,
        stream: &mut ByteStream,
        context: &mut Context<'_>,
    ) -> io::Result<usize> {
        if self.skipped > 0 {
            // The fixed buffer is empty meanwhile.
            let room = self.buffer.len().min(self.skipped);
            let count = stream.try_read(&mut self.buffer[..room], context)?;
            self.skipped -= count;
            return Ok(count);
        }
        match &mut self.large {
            Some((payload, missing)) => {
                let count = match stream.tcp() {
                    Some(socket) => socket.try_read_buf(&mut payload.limit(*missing))?,
                    None => {
                        // The fixed buffer is empty as long as a large frame is under way.
                        let room = self.buffer.len().min(*missing);
                        let count = stream.try_read(&mut self.buffer[..room], context)?;
                        payload.put_slice(&self.buffer[..count]);
                        count
                    }
                };
                *missing -= count;
                Ok(count)
            }
            None => {
                let count = stream.try_read(&mut self.buffer[self.end..], context)?;
                self.end += count;
                Ok(count)
            }
        }
    }

    /// The next whole frame, or the beginning of one above the limit, if there is one. A length below zero is an error.
    pub(super) fn next_frame(&mut self) -> Result<Option<Next<'_>>, FrameTooLarge> {
        if self.skipped > 0 {
            return Ok(None);
        }
        if let Some((payload, missing)) = &mut self.large {
            if *missing > 0 {
                return Ok(None);
            }
            let payload = std::mem::take(payload).freeze();
            self.large = None;
            return Ok(Some(Next::Frame(Frame::Large(payload))));
        }
        match frame::split(&self.buffer[self.begin..self.end], self.limit) {
            Ok(Split::Frame(payload)) => {
                let (begin, end) = (self.begin + payload.start, self.begin + payload.end);
                self.begin = end;
                Ok(Some(Next::Frame(Frame::Small(&self.buffer[begin..end]))))
            }
            Ok(Split::Incomplete { missing }) => {
                self.make_room(missing);
                Ok(None)
            }
            Err(refused) => match usize::try_from(refused.len) {
                Ok(payload_bytes) => Ok(self.begin_skipping(payload_bytes)),
                Err(_) => Err(refused),
            },
        }
    }

    /// The beginning of a frame above the limit, once it is there; then nothing of that frame is held any more.
    fn begin_skipping(&mut self, payload_bytes: usize) -> Option<Next<'_>> {
        let (begin, have) = (self.begin + LENGTH_PREFIX_SIZE_BYTES, self.end - self.begin);
        if have < LENGTH_PREFIX_SIZE_BYTES + HEAD_BYTES {
            self.make_room(LENGTH_PREFIX_SIZE_BYTES + HEAD_BYTES - have);
            return None;
        }
        let size_bytes = LENGTH_PREFIX_SIZE_BYTES + payload_bytes;
        let here = have.min(size_bytes);
        self.skipped = size_bytes - here;
        self.begin += here;
        if self.skipped > 0 {
            (self.begin, self.end) = (0, 0);
        }
        Some(Next::TooLarge { head: &self.buffer[begin..begin + HEAD_BYTES], size_bytes })
    }

    /// Makes room for `missing` bytes behind an incomplete frame.
    fn make_room(&mut self, missing: usize) {
        let have = self.end - self.begin;
        if have + missing > self.buffer.len() {
            // Longer than the prefix, so this is the whole rest of the frame.
            let mut payload = BytesMut::with_capacity(have + missing - LENGTH_PREFIX_SIZE_BYTES);
            payload.put_slice(&self.buffer[self.begin + LENGTH_PREFIX_SIZE_BYTES..self.end]);
            self.large = Some((payload, missing));
            (self.begin, self.end) = (0, 0);
        } else if have == 0 {
            (self.begin, self.end) = (0, 0);
        } else if self.begin > 0 && self.end + missing.max(BUFFER_BYTES / 4) > self.buffer.len() {
            self.buffer.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, have);
        }
    }
}
