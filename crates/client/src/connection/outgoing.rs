//! Bytes on their way to one bookie: appended by callers, taken by the connection's task, written many frames at a time.
//!
//! ```text
//! callers: frames ──► Outgoing (under the lane's lock) ──take──► Batch (the task's own) ──one writev──► socket
//!          head + shared body         │ withdraw                  small bodies are copied here, side by side
//!                                     ▼
//!                                  dropped
//! ```
//!
//! # Invariants
//! 1. Frames leave whole, in the order in which they were appended.
//! 2. A frame is known by its number in the lane, and those of which the kernel took a byte are a prefix of those that
//!    were not withdrawn: all below [`Batch::written`].
//! 3. A queued frame refers to the body that its caller shares among all bookies; no bookie has a copy of its own,
//!    except of what is being written (IC17).
//!
//! # Limits     queued: none of its own, it is what callers have permits for (a head besides, see `FRAME_OVERHEAD_BYTES`
//! of the crate); being written: [`TAKEN_BYTES_MAX`] and one frame. Bodies of [`SHARED_BYTES_MIN`] and more are written
//! from where they are

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bindery_types::LedgerId;
use bytes::Bytes;

use super::lane::ADD_HEAD_BYTES;

/// Frames are gathered in buffers of this size: large enough for one write, small enough for the processor's cache.
const CHUNK_BYTES: usize = 64 * 1024;
/// From this size on a body is written from where it is: copying it would cost more than one more slice.
pub(super) const SHARED_BYTES_MIN: usize = 16 * 1024;
/// No frame is taken once so much was taken: the rest can still be withdrawn.
const TAKEN_BYTES_MAX: usize = 256 * 1024;
/// Empty buffers kept for reuse.
const SPARES_MAX: usize = 8;
/// Buffers that one call writes.
const SLICES_MAX: usize = 32;

/// Whose adds: a ledger, and the sink that its answers go to, by address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) ledger: LedgerId,
    pub(super) sink: usize,
}

/// A frame that waits to be written.
pub(super) struct Frame {
    number: u64,
    /// Of adds only.
    owner: Option<Owner>,
    head: [u8; ADD_HEAD_BYTES],
    head_size_bytes: u8,
    body: Bytes,
}

impl Frame {
    /// Its number in the lane.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    fn size_bytes(&self) -> usize {
        usize::from(self.head_size_bytes) + self.body.len()
    }
}

/// What callers appended and the task has not taken.
#[derive(Default)]
pub(super) struct Outgoing {
    frames: VecDeque<Frame>,
    /// Number of the next frame.
    next: u64,
}

impl Outgoing {
    /// The number of the next frame.
    pub(super) fn position(&self) -> u64 {
        self.next
    }

    /// The number of the first frame that was not taken.
    pub(super) fn begin(&self) -> u64 {
        self.frames.front().map_or(self.next, |frame| frame.number)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Appends the frame of an add.
    pub(super) fn push(&mut self, owner: Owner, head: [u8; ADD_HEAD_BYTES], body: Bytes) {
        self.put(Frame {
            number: self.next,
            owner: Some(owner),
            head,
            head_size_bytes: ADD_HEAD_BYTES as u8,
            body,
        });
    }

    /// Appends a whole frame.
    pub(super) fn push_frame(&mut self, frame: Bytes) {
        self.put(Frame {
            number: self.next,
            owner: None,
            head: [0; ADD_HEAD_BYTES],
            head_size_bytes: 0,
            body: frame,
        });
    }

    fn put(&mut self, frame: Frame) {
        self.next += 1;
        self.frames.push_back(frame);
    }

    /// Moves frames from the front to `taken`, until they are enough for a batch.
    pub(super) fn take_into(&mut self, taken: &mut Vec<Frame>) {
        let mut size_bytes = 0;
        while size_bytes < TAKEN_BYTES_MAX
            && let Some(frame) = self.frames.pop_front()
        {
            size_bytes += frame.size_bytes();
            taken.push(frame);
        }
        if self.frames.is_empty() && self.frames.capacity() > FRAMES_KEPT {
            // Grown while the bookie took nothing.
            self.frames = VecDeque::new();
        }
    }

    /// Takes out the frames of one owner, for the caller to drop; those that the task has stay.
    pub(super) fn withdraw(&mut self, owner: Owner) -> Vec<Frame> {
        let mut withdrawn = Vec::new();
        let frames = std::mem::take(&mut self.frames);
        for frame in frames {
            if frame.owner == Some(owner) {
                withdrawn.push(frame);
            } else {
                self.frames.push_back(frame);
            }
        }
        withdrawn
    }

    /// Forgets what was not taken, whose requests have been answered with an error; for the caller to drop.
    pub(super) fn clear(&mut self) -> VecDeque<Frame> {
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

/// What the task took and the kernel has not taken whole.
#[derive(Default)]
pub(super) struct Batch {
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that the kernel has.
    offset: usize,
    spares: Vec<Vec<u8>>,
    /// Number of each frame and where it begins, in bytes of this connection, of those not begun.
    starts: VecDeque<(u64, u64)>,
    taken_bytes: u64,
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
        self.chunks.is_empty()
    }

    /// Of every frame with a lower number, unless it was withdrawn, the kernel has something; of the others nothing.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Lines up frames to be written. Bodies that are copied are let go of here.
    pub(super) fn fill(&mut self, taken: &mut Vec<Frame>) {
        for frame in taken.drain(..) {
            self.starts.push_back((frame.number, self.taken_bytes));
            self.taken_bytes += frame.size_bytes() as u64;
            let head = &frame.head[..usize::from(frame.head_size_bytes)];
            if frame.body.len() >= SHARED_BYTES_MIN {
                self.open_chunk(head.len()).extend_from_slice(head);
                self.chunks.push_back(Chunk::Shared(frame.body));
            } else {
                let chunk = self.open_chunk(head.len() + frame.body.len());
                chunk.extend_from_slice(head);
                chunk.extend_from_slice(&frame.body);
            }
        }
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

    /// Writes what one call of `write` takes, which returns a count as `writev` does.
    pub(super) fn write_some(
        &mut self,
        write: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut offset = self.offset;
        let mut count = 0;
        for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
            *slice = IoSlice::new(&chunk.bytes()[offset..]);
            offset = 0;
            count += 1;
        }
        let taken = write(&slices[..count])?;
        self.written_bytes += taken as u64;
        while let Some(&(number, start)) = self.starts.front()
            && start < self.written_bytes
        {
            self.written = number + 1;
            self.starts.pop_front();
        }
        self.advance(taken);
        Ok(taken)
    }

    fn advance(&mut self, mut taken: usize) {
        while let Some(first) = self.chunks.front() {
            let left = first.bytes().len() - self.offset;
            if taken < left {
                self.offset += taken;
                return;
            }
            taken -= left;
            self.offset = 0;
            if let Some(Chunk::Copied(mut emptied)) = self.chunks.pop_front() {
                emptied.clear();
                // One that a single large frame made grow is not worth keeping.
                if self.spares.len() < SPARES_MAX && emptied.capacity() <= CHUNK_BYTES {
                    self.spares.push(emptied);
                }
            }
        }
        assert_eq!(taken, 0, "no more is written than there was");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owner(ledger: i64) -> Owner {
        Owner { ledger: LedgerId::new(ledger).unwrap(), sink: 1 }
    }

    proptest! {
        /// Invariants 1 and 2, with a socket that takes any number of bytes at a time, and a ledger whose adds are
        /// withdrawn now and then: its frames leave whole or not at all, and nobody else's are touched.
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
                    outgoing.take_into(&mut taken);
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
                    outgoing.push(owner(*kind), head, body);
                }
                if index % withdraw_every == 0 {
                    for frame in outgoing.withdraw(owner(1)) {
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
                owner(1),
                [0; ADD_HEAD_BYTES],
                Bytes::from_owner(Body { bytes: [7; 1000], _alive: alive.clone() }),
            );
        }
        outgoing.take_into(&mut taken);
        batch.fill(&mut taken);
        let held: usize = batch.chunks.iter().map(|chunk| chunk.bytes().len()).sum();
        assert!(held < TAKEN_BYTES_MAX + 2000, "{held}");
        let copied = held / (1000 + ADD_HEAD_BYTES);
        assert_eq!(std::sync::Arc::strong_count(&alive) - 1, 10_000 - copied, "copied bodies are let go of");
        let withdrawn = outgoing.withdraw(owner(1));
        assert_eq!(withdrawn.len(), 10_000 - copied);
        drop(withdrawn);
        assert_eq!(std::sync::Arc::strong_count(&alive), 1, "and withdrawn ones, too");
        assert!(outgoing.is_empty() && !batch.is_empty(), "what was begun is finished");
        assert_eq!(outgoing.begin(), 10_000);
    }
}
