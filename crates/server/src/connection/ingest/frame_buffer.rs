//! The bytes that a connection received, and the frames in them. It does no I/O, waits for nothing, and decides nothing about
//! requests.
//!
//! ```text
//!           begin            end
//!   | handled | frame | frame | pa| space |      one permit for all of it
//! ```
//!
//! # Invariants
//! 1. The permit covers the memory at any time, and memory grows only with a permit that the caller brings. A few bytes of a stranger
//!    are the exception ([`FrameBuffer::extend_uncharged`]).
//! 2. Any chunking of a stream gives the same frames, and each byte comes out once: [`FrameBuffer::skip`] removes exactly the frames
//!    that were handled, and what follows them can be taken as bytes, because it may not be frames (TLS).
//! 3. A length that is negative or above the limit is an error as soon as its four bytes are here. [`FrameBuffer::begun`], which says
//!    how much memory a frame takes, comes after that check.
//! 4. Frames are borrowed where they were received, so bytes move only between reads: to the front, when the rest of a frame would
//!    not fit after them, or to other memory.

use bindery_flow::Permit;
use bindery_wire::FrameLimit;
use bindery_wire::frame::{self, FrameTooLarge, LENGTH_PREFIX_SIZE_BYTES, Split};
use std::ops::Range;

/// See the module.
pub(super) struct FrameBuffer {
    /// All of it may be read into.
    memory: Vec<u8>,
    begin: usize,
    end: usize,
    permit: Permit,
    limit: FrameLimit,
}

impl FrameBuffer {
    /// Nothing is received yet.
    ///
    /// # Panics
    /// When the permit does not cover the memory (invariant 1).
    pub(super) fn new(memory: Vec<u8>, permit: Permit, limit: FrameLimit) -> FrameBuffer {
        let buffer = FrameBuffer { memory, begin: 0, end: 0, permit, limit };
        buffer.assert_covered();
        buffer
    }

    fn assert_covered(&self) {
        let (size, covered) = (self.memory.len() as u64, self.permit.bytes());
        assert!(size <= covered, "{size} bytes of memory, and a permit for {covered}");
    }

    /// Bytes of memory.
    pub(super) fn size(&self) -> usize {
        self.memory.len()
    }

    /// Bytes of the permit.
    pub(super) fn charged(&self) -> u64 {
        self.permit.bytes()
    }

    /// Bytes that are not handled.
    pub(super) fn len(&self) -> usize {
        self.end - self.begin
    }

    pub(super) fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// What is not handled.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.begin..self.end]
    }

    /// The frames of what is not handled. They stay until they are skipped.
    pub(super) fn frames(&self) -> FrameCursor<'_> {
        FrameCursor { bytes: self.bytes(), at: 0, limit: self.limit }
    }

    /// The space to read into, `most` bytes of it at most. Empty when the memory is full.
    pub(super) fn space(&mut self, most: usize) -> &mut [u8] {
        let until = self.memory.len().min(self.end.saturating_add(most));
        &mut self.memory[self.end..until]
    }

    /// True when the space is not empty.
    pub(super) fn has_space(&self) -> bool {
        self.end < self.memory.len()
    }

    /// So many bytes were read into the front of the space.
    pub(super) fn filled(&mut self, bytes: usize) {
        self.end += bytes;
        assert!(self.end <= self.memory.len(), "no more is read than there is space for");
    }

    /// So many bytes of frames are handled.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.begin += bytes;
        assert!(self.begin <= self.end, "no more is handled than was received");
        if self.is_empty() {
            (self.begin, self.end) = (0, 0);
        }
    }

    /// True when a whole frame is at the front.
    pub(super) fn has_frame(&self) -> bool {
        matches!(self.frames().next_frame(), Ok(Some(_)))
    }

    /// The length, prefix included, of a frame of which only a part is here; the length of a prefix while even that is not
    /// whole. `None` if nothing is here, or a whole frame is at the front, or something with which no frame begins.
    pub(super) fn begun(&self) -> Option<usize> {
        self.frames().begun().filter(|_| !self.is_empty())
    }

    /// True if only a part of a frame is here, and all of it will not fit this memory.
    pub(super) fn is_outgrown(&self) -> bool {
        self.begun().is_some_and(|whole| whole > self.size())
    }

    /// Moves what is here to the front, if a frame of `whole` bytes does not fit where it begins, or there is no space.
    pub(super) fn make_room(&mut self, whole: usize) {
        if self.begin + whole > self.size() || self.end == self.size() {
            self.memory.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.len());
        }
    }

    /// Grows memory that is too small for the length prefix of the frame that begins here; true if it was. It grows by three bytes at
    /// most, which the permit does not cover.
    pub(super) fn make_room_for_prefix(&mut self) -> bool {
        let is_short = self.size() < LENGTH_PREFIX_SIZE_BYTES;
        if is_short {
            self.memory.resize(LENGTH_PREFIX_SIZE_BYTES, 0);
        }
        is_short
    }

    /// Keeps only memory for what is here, with no space to read into, and of the permit `beside` bytes more than that. Returns the memory
    /// that it had; empty memory if it keeps what it had.
    pub(super) fn shrink(&mut self, beside: usize) -> Vec<u8> {
        let (kept, mut before) = (self.len(), Vec::new());
        if kept < self.size() {
            let memory = self.bytes().to_vec();
            before = std::mem::replace(&mut self.memory, memory);
            (self.begin, self.end) = (0, kept);
        }
        self.permit.shrink_to((kept + beside) as u64);
        before
    }

    /// Adds bytes that the permit does not cover, to memory without space. They are few, and part of the fixed cost of a
    /// connection.
    ///
    /// # Panics
    /// When there is space.
    pub(super) fn extend_uncharged(&mut self, bytes: &[u8]) {
        assert!(!self.has_space(), "bytes are read to the space first");
        self.memory.extend_from_slice(bytes);
        self.end = self.memory.len();
    }

    /// Moves what is here to other memory, with its permit; drops the memory and the permit that it had.
    ///
    /// # Panics
    /// When it does not fit, or the permit does not cover the memory.
    pub(super) fn move_to(&mut self, memory: Vec<u8>, permit: Permit) {
        let mut to = FrameBuffer::new(memory, permit, self.limit);
        to.append(self.bytes());
        *self = to;
    }

    /// Moves all that is in `other` to the end of what is here.
    ///
    /// # Panics
    /// When it does not fit.
    pub(super) fn take_from(&mut self, other: &mut FrameBuffer) {
        self.append(other.bytes());
        other.skip(other.len());
    }

    /// Copies bytes to the end of what is here.
    ///
    /// # Panics
    /// When they do not fit.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
        self.filled(bytes.len());
    }

    /// Replaces the permit, by one of another pool.
    pub(super) fn recharge(&mut self, permit: Permit) {
        self.permit = permit;
        self.assert_covered();
    }

    /// Takes out what is here, in the memory that it is in: the buffer is without memory then. The permit stays until
    /// [`FrameBuffer::release`].
    pub(super) fn take_bytes(&mut self) -> Vec<u8> {
        let mut memory = std::mem::take(&mut self.memory);
        memory.truncate(self.end);
        memory.drain(..self.begin);
        (self.begin, self.end) = (0, 0);
        memory
    }

    /// Takes out the memory, to be used again, and drops what is here.
    pub(super) fn take_memory(&mut self) -> Vec<u8> {
        (self.begin, self.end) = (0, 0);
        std::mem::take(&mut self.memory)
    }

    /// Returns what the permit has beyond the memory.
    pub(super) fn release(&mut self) {
        self.permit.shrink_to(self.memory.len() as u64);
    }

    /// Of [`FrameBuffer::bytes`] keeps what is before `from`, the ranges `kept` in their order, and what is from `rest` on; closes the gaps
    /// between them. Returns where the last part begins now.
    pub(super) fn retain(&mut self, from: usize, kept: &[Range<usize>], rest: usize) -> usize {
        let mut at = self.begin + from;
        for range in kept {
            let range = self.begin + range.start..self.begin + range.end;
            let len = range.len();
            self.memory.copy_within(range, at);
            at += len;
        }
        let rest = self.begin + rest..self.end;
        self.end = at + rest.len();
        self.memory.copy_within(rest, at);
        at - self.begin
    }
}

/// A place in received bytes, which passes one frame after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameCursor<'f> {
    bytes: &'f [u8],
    at: usize,
    limit: FrameLimit,
}

impl<'f> FrameCursor<'f> {
    /// The payload of the frame at the front, which stays there; `None` when it is not whole.
    ///
    /// # Errors
    /// Its length is negative or above the limit.
    pub(super) fn next_frame(&self) -> Result<Option<&'f [u8]>, FrameTooLarge> {
        let rest = self.rest();
        match frame::split(rest, self.limit)? {
            Split::Frame(payload) => Ok(Some(&rest[payload])),
            Split::Incomplete { .. } => Ok(None),
        }
    }

    /// As [`FrameBuffer::begun`], of what was not passed; the length of a prefix when that is nothing.
    pub(super) fn begun(&self) -> Option<usize> {
        match frame::split(self.rest(), self.limit) {
            Ok(Split::Incomplete { missing }) => Some(self.rest().len() + missing),
            Ok(Split::Frame(_)) | Err(_) => None,
        }
    }

    /// Passes so many bytes, which end with a frame.
    pub(super) fn pass_bytes(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// Passes the frame at the front, which has this payload.
    pub(super) fn pass(&mut self, payload: &[u8]) {
        self.at += LENGTH_PREFIX_SIZE_BYTES + payload.len();
    }

    /// Bytes of the frames that were passed.
    pub(super) fn passed(&self) -> usize {
        self.at
    }

    /// What was not passed.
    pub(super) fn rest(&self) -> &'f [u8] {
        &self.bytes[self.at..]
    }

    /// Length of all the bytes, passed or not.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// A cursor without bytes.
    pub(super) const fn empty(limit: FrameLimit) -> FrameCursor<'static> {
        FrameCursor { bytes: &[], at: 0, limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_flow::ByteBudget;
    use bindery_wire::v3::{self, Operation};
    use bytes::{Bytes, BytesMut};
    use proptest::prelude::*;

    const LIMIT: FrameLimit = FrameLimit::MIN;

    fn frame(payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frame::put_length(payload.len(), &mut out);
        out.extend_from_slice(payload);
        out
    }

    /// A read, and what follows until the next one, in bytes and frames.
    #[derive(Debug, Clone, Copy)]
    struct Step {
        /// Read at most.
        read: usize,
        /// Handled at most, as if there were no more room for answers.
        handled: usize,
        /// Then the rest is set aside, and moves to a new buffer.
        is_aside: bool,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = (1usize..90, 0usize..4, any::<bool>());
        let step = step.prop_map(|(read, handled, is_aside)| Step { read, handled, is_aside });
        prop::collection::vec(step, 1..12)
    }

    fn payloads(len_max: usize) -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..len_max), 0..12)
    }

    /// A reader without a socket: reads a stream into a buffer of `size` bytes, and what does not fit that to memory of its own.
    struct Reader<'s> {
        stream: &'s [u8],
        size: usize,
        pool: ByteBudget,
        large: ByteBudget,
        buffer: FrameBuffer,
        frames: Vec<Vec<u8>>,
    }

    impl<'s> Reader<'s> {
        fn new(stream: &'s [u8], size: usize) -> Reader<'s> {
            // Room for a new buffer beside what was set aside.
            let pool = ByteBudget::new("inbound", 2 * size as u64);
            let large = ByteBudget::new("inbound-large", LIMIT.size_bytes() as u64);
            let buffer = Self::memory(&pool, size);
            Reader { stream, size, pool, large, buffer, frames: Vec::new() }
        }

        fn memory(pool: &ByteBudget, size: usize) -> FrameBuffer {
            FrameBuffer::new(vec![0; size], pool.try_acquire(size as u64).unwrap(), LIMIT)
        }

        fn read(stream: &mut &[u8], space: &mut [u8]) -> usize {
            let read = space.len().min(stream.len());
            let (now, later) = stream.split_at(read);
            space[..read].copy_from_slice(now);
            *stream = later;
            read
        }

        /// Invariant 1, and that nothing but the buffer holds memory between two steps.
        fn check_memory(&self) {
            assert!(self.buffer.size() <= self.size);
            assert_eq!(self.pool.gauge().used, self.buffer.charged());
            assert!(self.buffer.size() as u64 <= self.buffer.charged());
            assert!(self.buffer.charged() <= self.size as u64);
            assert_eq!(self.large.gauge().used, 0);
        }

        /// Handles frames up to one that `stops` is true of, which stays.
        fn handle(&mut self, most: usize, stops: impl Fn(&[u8]) -> bool) -> Result<bool, FrameTooLarge> {
            let mut cursor = self.buffer.frames();
            for _ in 0..most {
                let Some(payload) = cursor.next_frame()? else { break };
                if stops(payload) {
                    self.buffer.skip(cursor.passed());
                    return Ok(true);
                }
                self.frames.push(payload.to_vec());
                cursor.pass(payload);
            }
            let passed = cursor.passed();
            self.buffer.skip(passed);
            Ok(false)
        }

        fn read_large(&mut self, whole: usize) {
            assert!(whole <= LIMIT.size_bytes(), "the length was checked (invariant 3)");
            let mut large = Self::memory(&self.large, whole);
            large.take_from(&mut self.buffer);
            while large.len() < whole {
                let read = Self::read(&mut self.stream, large.space(whole - large.len()));
                if read == 0 {
                    return;
                }
                large.filled(read);
            }
            let mut cursor = large.frames();
            let payload = cursor.next_frame().unwrap().expect("it is whole");
            self.frames.push(payload.to_vec());
            cursor.pass(payload);
            assert_eq!(cursor.passed(), whole, "read exactly to its end");
        }

        /// Goes on until the stream is at its end, or a frame stops it: then true.
        fn run(&mut self, steps: &[Step], stops: impl Fn(&[u8]) -> bool) -> Result<bool, FrameTooLarge> {
            for step in steps.iter().cycle() {
                let space = self.buffer.space(step.read);
                let read = Self::read(&mut self.stream, space);
                self.buffer.filled(read);
                self.check_memory();
                let is_end = self.stream.is_empty();
                // Room comes back, and at the end of the stream everything is handled.
                let handled = if is_end || read == 0 { usize::MAX } else { step.handled };
                if self.handle(handled, &stops)? {
                    return Ok(true);
                }
                if is_end {
                    return Ok(false);
                }
                if step.is_aside {
                    drop(self.buffer.shrink(3));
                    assert_eq!(self.buffer.size(), self.buffer.len());
                    self.buffer.release();
                    self.check_memory();
                    let permit = self.pool.try_acquire(self.size as u64).unwrap();
                    self.buffer.move_to(vec![7; self.size], permit);
                }
                match self.buffer.begun() {
                    Some(whole) if whole > self.buffer.size() => self.read_large(whole),
                    Some(whole) => self.buffer.make_room(whole),
                    None => {}
                }
                self.check_memory();
            }
            unreachable!("the steps are repeated")
        }
    }

    fn start_tls(txn_id: u64) -> Vec<u8> {
        let mut frame = BytesMut::new();
        let request = v3::Request { txn_id, priority: 0, operation: Operation::StartTls };
        v3::put_frame(&request.into_message(), &mut frame);
        frame.to_vec()
    }

    fn is_start_tls(payload: &[u8]) -> bool {
        let request = v3::Request::decode(Bytes::copy_from_slice(payload));
        matches!(request, Ok(v3::Request { operation: Operation::StartTls, .. }))
    }

    proptest! {
        /// Invariants 1, 2 and 4: the same frames in any chunks, in any buffer, however many are handled at a time.
        #[test]
        fn any_chunking_gives_the_same_frames(
            payloads in payloads(200), steps in steps(), size in 8usize..150, cut in any::<prop::sample::Index>(),
        ) {
            let stream: Vec<u8> = payloads.iter().flat_map(|payload| frame(payload)).collect();
            let mut reader = Reader::new(&stream, size);
            prop_assert_eq!(reader.run(&steps, |_| false), Ok(false));
            prop_assert_eq!(&reader.frames, &payloads);
            prop_assert!(reader.buffer.is_empty());

            // Of a stream that ends in the middle of a frame, all frames before that.
            let cut = cut.index(stream.len() + 1);
            let mut reader = Reader::new(&stream[..cut], size);
            prop_assert_eq!(reader.run(&steps, |_| false), Ok(false));
            let whole: usize = reader.frames.iter().map(|payload| payload.len() + 4).sum();
            prop_assert_eq!(&reader.frames[..], &payloads[..reader.frames.len()]);
            prop_assert!(whole <= cut);
            let is_next_whole = payloads.get(reader.frames.len()).is_some_and(|next| whole + 4 + next.len() <= cut);
            prop_assert!(!is_next_whole);
        }

        /// Invariant 3: no memory is taken for what is no length of a frame.
        #[test]
        fn a_length_outside_the_limit_is_an_error_before_memory_is_taken(
            payloads in payloads(200),
            steps in steps(),
            size in 8usize..150,
            len in prop_oneof![i32::MIN..0, LIMIT.size_bytes() as i32 - 3..=i32::MAX],
            behind in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut stream: Vec<u8> = payloads.iter().flat_map(|payload| frame(payload)).collect();
            stream.extend_from_slice(&len.to_be_bytes());
            stream.extend_from_slice(&behind);
            let mut reader = Reader::new(&stream, size);
            let max = LIMIT.size_bytes() - LENGTH_PREFIX_SIZE_BYTES;
            prop_assert_eq!(reader.run(&steps, |_| false), Err(FrameTooLarge { len, max }));
            prop_assert!(payloads.starts_with(&reader.frames));
            prop_assert_eq!(reader.large.gauge().used, 0);

            let mut front = Reader::memory(&reader.large, 8);
            front.append(&len.to_be_bytes());
            prop_assert_eq!((front.begun(), front.is_outgrown(), front.has_frame()), (None, false, false));
        }

        /// Invariant 2: what follows START_TLS is not split into frames, and none of it is lost.
        #[test]
        fn it_stops_exactly_at_start_tls_and_gives_back_the_rest(
            payloads in payloads(60),
            steps in steps(),
            size in 70usize..150,
            behind in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let before: Vec<u8> = payloads.iter().flat_map(|payload| frame(payload)).collect();
            let stream = [&before[..], &start_tls(3), &behind].concat();
            let mut reader = Reader::new(&stream, size);
            prop_assert_eq!(reader.run(&steps, is_start_tls), Ok(true));
            prop_assert_eq!(&reader.frames, &payloads);

            let len = start_tls(3).len();
            prop_assert_eq!(&reader.buffer.bytes()[..len], &start_tls(3)[..]);
            reader.buffer.skip(len);
            drop(reader.buffer.shrink(0));
            let rest = reader.buffer.take_bytes();
            prop_assert_eq!(reader.buffer.charged(), rest.len() as u64, "it is held for as long as the bytes are");
            reader.buffer.release();
            prop_assert_eq!(reader.pool.gauge().used, 0);
            prop_assert_eq!([&rest, reader.stream].concat(), behind);
        }

        /// Frames that stay keep their order, and so does what follows them.
        #[test]
        fn what_is_retained_keeps_its_order(
            payloads in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..20), any::<bool>()), 0..10),
            seen in 0usize..4,
            behind in prop::collection::vec(any::<u8>(), 0..3),
        ) {
            let pool = ByteBudget::new("ahead", 400);
            let mut buffer = Reader::memory(&pool, 400);
            payloads.iter().for_each(|(payload, _)| buffer.append(&frame(payload)));
            buffer.append(&behind);
            let mut cursor = buffer.frames();
            let (mut from, mut stays) = (0, Vec::new());
            let mut expected = Vec::new();
            for (index, (payload, may_stay)) in payloads.iter().enumerate() {
                let at = cursor.passed();
                cursor.pass(cursor.next_frame().unwrap().unwrap());
                if index < seen {
                    from = cursor.passed();
                } else if *may_stay {
                    stays.push(at..cursor.passed());
                }
                if index < seen || *may_stay {
                    expected.extend(frame(payload));
                }
            }
            let rest = cursor.passed();
            prop_assert_eq!(buffer.retain(from, &stays, rest), expected.len());
            expected.extend_from_slice(&behind);
            prop_assert_eq!(buffer.bytes(), &expected[..]);
        }
    }

    #[test]
    #[should_panic(expected = "a permit for 7")]
    fn memory_without_a_permit_is_refused() {
        let pool = ByteBudget::new("inbound", 7);
        drop(FrameBuffer::new(vec![0; 8], pool.try_acquire(7).unwrap(), LIMIT));
    }
}
