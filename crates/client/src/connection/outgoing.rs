//! Bytes on their way to one bookie: appended by callers, taken by the connection's task, written many frames at a time.
//!
//! ```text
//! callers ──► gathered: copied side by side ──take──► Batch (the task's own) ──one writev──► socket
//!    │                                                  ▲
//!    └─ full ──► frames: head + shared body ────────────┘
//!                     │ withdraw
//!                     ▼ dropped
//! ```
//!
//! A small body is copied by its caller, who has it in the cache of its processor, as long as the task keeps up. Behind a
//! bookie that does not, frames wait that only refer to their bodies.
//!
//! # Invariants
//! 1. Frames leave whole, in the order in which they were appended.
//! 2. A frame is known by its number in the lane, and those of which the kernel took a byte are a prefix of those that
//!    were not withdrawn: all below [`Batch::written`].
//! 3. The bytes copied for one bookie are bounded; everything else in its queue refers to the body that its caller
//!    shares among all bookies (IC17).
//!
//! # Limits     copied: [`GATHERED_BYTES_MAX`], and [`TAKEN_BYTES_MAX`] and one frame being written; frames: what callers
//! have permits for (a head besides, see `FRAME_OVERHEAD_BYTES` of the crate). Bodies of [`SHARED_BYTES_MIN`] and more are
//! never copied

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::Bytes;

use super::lane::ADD_HEAD_BYTES;

/// Frames are gathered in buffers of this size: large enough for one write, small enough for the processor's cache.
const CHUNK_BYTES: usize = 64 * 1024;
/// From this size on a body is written from where it is: copying it would cost more than one more slice.
pub(super) const SHARED_BYTES_MIN: usize = 16 * 1024;
/// Callers copy as long as no more than this is copied and not taken: what is copied cannot be withdrawn.
const GATHERED_BYTES_MAX: usize = 256 * 1024;
/// No frame is taken once so much was taken: the rest can still be withdrawn.
const TAKEN_BYTES_MAX: usize = 256 * 1024;
/// Empty buffers kept for reuse.
const SPARES_MAX: usize = 8;
/// Buffers that one call writes.
const SLICES_MAX: usize = 32;

/// A frame that waits to be written; without a byte, the place of one that was withdrawn.
pub(super) struct Frame {
    number: u64,
    head: [u8; ADD_HEAD_BYTES],
    head_size_bytes: u8,
    /// An add, or the head of one that waits in two parts.
    is_add: bool,
    body: Bytes,
}

impl Frame {
    /// One without a head of its own.
    fn whole(number: u64, body: Bytes, is_add: bool) -> Frame {
        Frame { number, head: [0; ADD_HEAD_BYTES], head_size_bytes: 0, is_add, body }
    }

    fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.head_size_bytes)]
    }

    fn size_bytes(&self) -> usize {
        usize::from(self.head_size_bytes) + self.body.len()
    }

    fn is_withdrawn(&self) -> bool {
        self.size_bytes() == 0
    }
}

/// Frames that callers appended and the task has not taken.
#[derive(Default)]
pub(super) struct Outgoing {
    /// Before all of `frames`.
    gathered: Gathered,
    /// Ascending by number; the first and the last are not withdrawn.
    frames: VecDeque<Frame>,
    /// Places of withdrawn frames among them: never more than half.
    withdrawn: usize,
    /// Adds among `frames`.
    adds: usize,
    /// Number of the next frame.
    next: u64,
    /// Frames that withdrawing others moved.
    #[cfg(test)]
    moved: usize,
}

impl Outgoing {
    /// The number of the next frame.
    pub(super) fn position(&self) -> u64 {
        self.next
    }

    /// The number of the first frame that was not taken.
    pub(super) fn begin(&self) -> u64 {
        let first = self.gathered.starts.front().map(|&(number, _)| number);
        first.unwrap_or_else(|| self.first_withdrawable())
    }

    /// The number of the first frame that was not copied: from it on frames can be withdrawn.
    pub(super) fn first_withdrawable(&self) -> u64 {
        self.frames.front().map_or(self.next, |frame| frame.number)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gathered.is_empty() && self.frames.is_empty()
    }

    /// How many adds wait.
    pub(super) fn adds(&self) -> usize {
        self.gathered.adds + self.adds
    }

    /// Appends the frame of an add.
    pub(super) fn push(&mut self, head: [u8; ADD_HEAD_BYTES], body: Bytes) {
        let size_bytes = head.len() + body.len();
        if self.gathers(size_bytes, body.len()) {
            self.gathered.copy(self.next, &head, &body);
            self.gathered.adds += 1;
            self.next += 1;
            return;
        }
        let head_size_bytes = ADD_HEAD_BYTES as u8;
        self.put(Frame { number: self.next, head, head_size_bytes, is_add: true, body });
    }

    /// Appends a whole frame.
    pub(super) fn push_frame(&mut self, frame: Bytes) {
        if self.gathers(frame.len(), frame.len()) {
            self.gathered.copy(self.next, &[], &frame);
            self.next += 1;
            return;
        }
        self.put(Frame::whole(self.next, frame, false));
    }

    /// Appends an add whose head has any form. If it is not copied at once, it waits as two frames, one behind the
    /// other, and cannot be withdrawn.
    pub(super) fn push_parts(&mut self, head: &[u8], body: Bytes) {
        if self.gathers(head.len() + body.len(), body.len()) {
            self.gathered.copy(self.next, head, &body);
            self.gathered.adds += 1;
            self.next += 1;
            return;
        }
        self.put(Frame::whole(self.next, Bytes::copy_from_slice(head), true));
        self.put(Frame::whole(self.next, body, false));
    }

    /// Whether the next frame is copied at once.
    fn gathers(&self, size_bytes: usize, body_size_bytes: usize) -> bool {
        self.frames.is_empty()
            && body_size_bytes < SHARED_BYTES_MIN
            && self.gathered.bytes as usize + size_bytes <= GATHERED_BYTES_MAX
    }

    fn put(&mut self, frame: Frame) {
        self.next += 1;
        self.adds += usize::from(frame.is_add);
        self.frames.push_back(frame);
    }

    /// Takes frames from the front, without those that were withdrawn, until they are enough for a batch of which so many
    /// bytes are there.
    fn take_into(&mut self, taken: &mut Vec<Frame>, mut size_bytes: usize) {
        while size_bytes < TAKEN_BYTES_MAX
            && let Some(frame) = self.frames.pop_front()
        {
            if frame.is_withdrawn() {
                self.withdrawn -= 1;
                continue;
            }
            size_bytes += frame.size_bytes();
            self.adds -= usize::from(frame.is_add);
            taken.push(frame);
        }
        self.trim();
        if self.frames.is_empty() && self.frames.capacity() > FRAMES_KEPT {
            // Grown while the bookie took nothing.
            self.frames = VecDeque::new();
        }
    }

    /// Takes out the frames of these numbers that were not copied, for the caller to drop. The work is that of finding
    /// them, whatever else is queued: a place stays empty until it comes to the front, or half of all are.
    pub(super) fn withdraw(&mut self, numbers: impl IntoIterator<Item = u64>) -> Vec<Frame> {
        let mut withdrawn = Vec::new();
        for number in numbers {
            let Ok(at) = self.frames.binary_search_by_key(&number, |frame| frame.number) else { continue };
            let place = Frame::whole(number, Bytes::new(), false);
            let frame = std::mem::replace(&mut self.frames[at], place);
            self.adds -= usize::from(frame.is_add);
            if !frame.is_withdrawn() {
                self.withdrawn += 1;
                withdrawn.push(frame);
            }
        }
        self.trim();
        if self.withdrawn > self.frames.len() / 2 {
            #[cfg(test)]
            {
                self.moved += self.frames.len();
            }
            self.frames.retain(|frame| !frame.is_withdrawn());
            self.withdrawn = 0;
        }
        withdrawn
    }

    /// Removes empty places at both ends, so that a queue with no other frames is empty.
    fn trim(&mut self) {
        while self.frames.front().is_some_and(Frame::is_withdrawn) {
            self.frames.pop_front();
            self.withdrawn -= 1;
        }
        while self.frames.back().is_some_and(Frame::is_withdrawn) {
            self.frames.pop_back();
            self.withdrawn -= 1;
        }
    }

    /// Forgets what was not taken, whose requests have been answered with an error; for the caller to drop.
    pub(super) fn clear(&mut self) -> VecDeque<Frame> {
        self.gathered.clear();
        self.withdrawn = 0;
        self.adds = 0;
        std::mem::take(&mut self.frames)
    }
}

/// Room for frames that an empty queue keeps.
const FRAMES_KEPT: usize = 16 * 1024;

enum Chunk {
    Copied(Vec<u8>),
    Shared(Bytes),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Chunk::Copied(bytes) => bytes,
            Chunk::Shared(bytes) => bytes,
        }
    }
}

/// Frames as they go to the kernel.
#[derive(Default)]
struct Gathered {
    chunks: VecDeque<Chunk>,
    /// Number of each frame and where it begins.
    starts: VecDeque<(u64, u64)>,
    /// Of all frames since it was empty.
    bytes: u64,
    /// Adds that callers copied here.
    adds: usize,
    spares: Vec<Vec<u8>>,
}

impl Gathered {
    fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    fn copy(&mut self, number: u64, head: &[u8], body: &[u8]) {
        self.begin(number, head.len() + body.len());
        let chunk = self.open_chunk(head.len() + body.len());
        chunk.extend_from_slice(head);
        chunk.extend_from_slice(body);
    }

    /// Small bodies are copied and let go of.
    fn put(&mut self, frame: Frame) {
        if frame.body.len() < SHARED_BYTES_MIN {
            return self.copy(frame.number, frame.head(), &frame.body);
        }
        self.begin(frame.number, frame.size_bytes());
        self.open_chunk(frame.head().len()).extend_from_slice(frame.head());
        self.chunks.push_back(Chunk::Shared(frame.body));
    }

    fn begin(&mut self, number: u64, size_bytes: usize) {
        self.starts.push_back((number, self.bytes));
        self.bytes += size_bytes as u64;
    }

    /// The last buffer if it has room, else a new one: buffers do not grow by copying.
    fn open_chunk(&mut self, room: usize) -> &mut Vec<u8> {
        let has_room =
            matches!(self.chunks.back(), Some(Chunk::Copied(last)) if last.capacity() - last.len() >= room);
        if !has_room {
            let spare = self.spares.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK_BYTES));
            self.chunks.push_back(Chunk::Copied(spare));
        }
        match self.chunks.back_mut() {
            Some(Chunk::Copied(last)) => last,
            Some(Chunk::Shared(_)) | None => unreachable!("a buffer to copy into was just seen to be last"),
        }
    }

    /// Forgets the first chunk, and keeps its buffer.
    fn pop_chunk(&mut self) {
        if let Some(Chunk::Copied(mut emptied)) = self.chunks.pop_front() {
            emptied.clear();
            // One that a single large frame made grow is not worth keeping.
            if self.spares.len() < SPARES_MAX && emptied.capacity() <= CHUNK_BYTES {
                self.spares.push(emptied);
            }
        }
    }

    fn clear(&mut self) {
        while !self.is_empty() {
            self.pop_chunk();
        }
        self.starts.clear();
        self.bytes = 0;
        self.adds = 0;
    }
}

/// Frames that the task took and the kernel has not taken completely.
#[derive(Default)]
pub(super) struct Batch {
    gathered: Gathered,
    /// Bytes of the first chunk that the kernel has.
    offset: usize,
    /// Bytes of `gathered` that the kernel has.
    written_bytes: u64,
    /// See [`Batch::written`].
    written: u64,
}

impl Batch {
    /// The batch of a connection whose first frame is the one of this number, or a later one.
    pub(super) fn new(number: u64) -> Batch {
        Batch { written: number, ..Batch::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gathered.is_empty()
    }

    /// Of every frame with a lower number, unless it was withdrawn, the kernel has something; of the others nothing.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Takes what callers copied, and moves frames to `taken` until they are enough for a batch. Under the lane's lock; to
    /// be followed by [`fill`](Self::fill).
    pub(super) fn take(&mut self, outgoing: &mut Outgoing, taken: &mut Vec<Frame>) {
        assert!(self.is_empty() && taken.is_empty(), "one batch at a time");
        self.gathered.clear();
        self.written_bytes = 0;
        std::mem::swap(&mut self.gathered, &mut outgoing.gathered);
        outgoing.take_into(taken, self.gathered.bytes as usize);
    }

    /// Lines up the frames to be written.
    pub(super) fn fill(&mut self, taken: &mut Vec<Frame>) {
        for frame in taken.drain(..) {
            self.gathered.put(frame);
        }
    }

    /// Writes what one call of `write` takes, which returns a count as `writev` does.
    pub(super) fn write_some(
        &mut self,
        write: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut offset = self.offset;
        let mut count = 0;
        for (slice, chunk) in slices.iter_mut().zip(&self.gathered.chunks) {
            *slice = IoSlice::new(&chunk.bytes()[offset..]);
            offset = 0;
            count += 1;
        }
        let taken = write(&slices[..count])?;
        self.written_bytes += taken as u64;
        while let Some(&(number, start)) = self.gathered.starts.front()
            && start < self.written_bytes
        {
            self.written = number + 1;
            self.gathered.starts.pop_front();
        }
        self.advance(taken);
        Ok(taken)
    }

    fn advance(&mut self, mut taken: usize) {
        while let Some(first) = self.gathered.chunks.front() {
            let left = first.bytes().len() - self.offset;
            if taken < left {
                self.offset += taken;
                return;
            }
            taken -= left;
            self.offset = 0;
            self.gathered.pop_chunk();
        }
        assert_eq!(taken, 0, "no more is written than there was");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Invariants 1 and 2, with a socket that takes any number of bytes at a time, and a ledger whose adds are
        /// withdrawn now and then: its frames leave whole or not at all, and those of other ledgers are not touched.
        #[test]
        fn frames_leave_whole_and_in_order_and_are_counted(
            frames in prop::collection::vec((0i64..3, prop::sample::select(vec![0usize, 1, 900, 16_383, 16_384, 70_000])), 1..60),
            takes in prop::collection::vec(1usize..200_000, 1..20),
            take_every in 1usize..5,
            withdraw_every in 2usize..9,
        ) {
            let (mut outgoing, mut batch, mut taken) = (Outgoing::default(), Batch::new(0), Vec::new());
            let mut sent = Vec::new();
            let mut takes = takes.into_iter().cycle();
            let mut pump = |outgoing: &mut Outgoing, batch: &mut Batch| {
                if batch.is_empty() {
                    batch.take(outgoing, &mut taken);
                    batch.fill(&mut taken);
                }
                let most = takes.next().unwrap();
                batch.write_some(|slices| {
                    let all: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
                    let taken = all.len().min(most);
                    sent.extend_from_slice(&all[..taken]);
                    Ok(taken)
                }).unwrap();
                sent.len()
            };
            // The bytes of each frame, unless it was withdrawn.
            let mut expected: Vec<Option<Vec<u8>>> = Vec::new();
            let check = |expected: &[Option<Vec<u8>>], batch: &Batch, sent: usize| {
                let mut start = 0;
                for (number, frame) in expected.iter().enumerate() {
                    let Some(frame) = frame else { continue };
                    assert_eq!((number as u64) < batch.written(), start < sent, "invariant 2, frame {number}");
                    start += frame.len();
                }
            };
            for (index, (kind, body)) in frames.iter().enumerate() {
                let body = Bytes::from(vec![!(index as u8); *body]);
                prop_assert_eq!(outgoing.position(), index as u64);
                if *kind == 0 {
                    let mut frame = vec![index as u8; 3];
                    frame.extend_from_slice(&body);
                    expected.push(Some(frame.clone()));
                    outgoing.push_frame(frame.into());
                } else {
                    let head = [index as u8; ADD_HEAD_BYTES];
                    expected.push(Some([&head[..], &body[..]].concat()));
                    outgoing.push(head, body);
                }
                if index % withdraw_every == 0 {
                    let numbers = (0..=index).filter(|number| frames[*number].0 == 1).map(|number| number as u64);
                    for frame in outgoing.withdraw(numbers) {
                        prop_assert_eq!(frames[frame.number as usize].0, 1);
                        expected[frame.number as usize] = None;
                    }
                }
                if index % take_every == 0 {
                    let sent = pump(&mut outgoing, &mut batch);
                    check(&expected, &batch, sent);
                }
            }
            while !(outgoing.is_empty() && batch.is_empty()) {
                let sent = pump(&mut outgoing, &mut batch);
                check(&expected, &batch, sent);
            }
            let expected: Vec<u8> = expected.into_iter().flatten().flatten().collect();
            prop_assert!(sent == expected, "invariant 1: the bytes that left are those that were appended");
        }
    }

    /// Invariant 3: bodies are shared while they wait, and what is copied to be written is bounded.
    #[test]
    fn a_bookie_that_takes_nothing_holds_no_copies_but_of_one_batch() {
        struct Body {
            bytes: [u8; 1000],
            _alive: std::sync::Arc<()>,
        }
        impl AsRef<[u8]> for Body {
            fn as_ref(&self) -> &[u8] {
                &self.bytes
            }
        }
        let alive = std::sync::Arc::new(());
        let (mut outgoing, mut batch, mut taken) = (Outgoing::default(), Batch::new(0), Vec::new());
        for _ in 0..10_000 {
            outgoing.push(
                [0; ADD_HEAD_BYTES],
                Bytes::from_owner(Body { bytes: [7; 1000], _alive: alive.clone() }),
            );
        }
        let gathered = outgoing.gathered.bytes as usize;
        assert!(gathered <= GATHERED_BYTES_MAX, "{gathered}");
        batch.take(&mut outgoing, &mut taken);
        batch.fill(&mut taken);
        let held: usize = batch.gathered.chunks.iter().map(|chunk| chunk.bytes().len()).sum();
        assert!(held > gathered && held < TAKEN_BYTES_MAX + 2000, "{held}");
        let copied = held / (1000 + ADD_HEAD_BYTES);
        assert_eq!(std::sync::Arc::strong_count(&alive) - 1, 10_000 - copied, "copied bodies are let go of");
        let withdrawn = outgoing.withdraw(0..10_000);
        assert_eq!(withdrawn.len(), 10_000 - copied);
        drop(withdrawn);
        assert_eq!(std::sync::Arc::strong_count(&alive), 1, "and withdrawn ones, too");
        assert!(outgoing.is_empty() && !batch.is_empty(), "what was begun is finished");
        assert_eq!(outgoing.begin(), 10_000);
    }

    /// A bookie stops, and every ledger that is written to it withdraws what is queued.
    #[test]
    fn withdrawing_one_ledger_after_the_other_does_not_walk_the_queue_for_each() {
        const LEDGERS: u64 = 1000;
        const ENTRIES: u64 = 10;
        let mut outgoing = Outgoing::default();
        // What callers copy cannot be withdrawn, and is followed by frames.
        outgoing.push([1; ADD_HEAD_BYTES], Bytes::from(vec![0; SHARED_BYTES_MIN]));
        let first = outgoing.position();
        for _ in 0..LEDGERS * ENTRIES {
            outgoing.push([1; ADD_HEAD_BYTES], Bytes::new());
        }
        assert_eq!(outgoing.withdraw([0]).len(), 1);
        for ledger in 0..LEDGERS {
            let numbers = (0..ENTRIES).map(|entry| first + entry * LEDGERS + ledger);
            assert_eq!(outgoing.withdraw(numbers.clone()).len() as u64, ENTRIES);
            assert!(outgoing.withdraw(numbers).is_empty(), "once each");
            let left = (LEDGERS - ledger - 1) * ENTRIES;
            assert!(outgoing.frames.len() as u64 <= 2 * left, "empty places are bounded");
        }
        assert!(outgoing.is_empty());
        assert!(outgoing.moved as u64 <= 2 * LEDGERS * ENTRIES, "{} moved", outgoing.moved);
    }
}
