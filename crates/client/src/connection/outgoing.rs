//! Bytes on their way to one bookie: appended by callers, taken by the connection's task, written many frames at a time.
//!
//! ```text
//! callers: frames ──► Outgoing (under the lane's lock) ──take──► Batch (the task's own) ──one writev──► socket
//!                          ▲                                       │
//!                          └────────── emptied buffers ◄───────────┘
//! ```
//!
//! # Invariants
//! 1. Bytes leave in the order in which they were appended.
//! 2. [`Outgoing::position`] counts every byte ever appended, so a frame is known by the position of its first byte, and
//!    the bytes of a lane that the kernel took are a prefix: everything below [`Batch::written`].
//!
//! # Limits     none of its own: what is queued here belongs to requests whose bytes the callers budget, and the lane
//! closes a connection that takes nothing for a request's time (see `lane`). Small bodies are copied, one copy for each
//! bookie; bodies of [`SHARED_BYTES_MIN`] and more are shared. [`SPARES_MAX`] empty buffers are kept.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::Bytes;

/// Frames are gathered in buffers of this size: large enough for one write, small enough for the processor's cache.
const CHUNK_BYTES: usize = 64 * 1024;
/// From this size on a body is written from where it is: copying it would cost more than one more slice.
pub(super) const SHARED_BYTES_MIN: usize = 16 * 1024;
/// Empty buffers kept for reuse.
const SPARES_MAX: usize = 8;
/// Buffers that one call writes.
const SLICES_MAX: usize = 32;

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

/// What callers appended and the task has not taken.
#[derive(Default)]
pub(super) struct Outgoing {
    chunks: VecDeque<Chunk>,
    spares: Vec<Vec<u8>>,
    position: u64,
    /// Bytes in `chunks`.
    queued: u64,
}

impl Outgoing {
    /// Where the next byte goes.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Where the first byte is that was not taken.
    pub(super) fn begin(&self) -> u64 {
        self.position - self.queued
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Appends a frame whose last part may be large.
    pub(super) fn push(&mut self, head: &[u8], body: &Bytes) {
        self.position += (head.len() + body.len()) as u64;
        self.queued += (head.len() + body.len()) as u64;
        if body.len() >= SHARED_BYTES_MIN {
            self.open_chunk(head.len()).extend_from_slice(head);
            self.chunks.push_back(Chunk::Shared(body.clone()));
        } else {
            let chunk = self.open_chunk(head.len() + body.len());
            chunk.extend_from_slice(head);
            chunk.extend_from_slice(body);
        }
    }

    /// Appends a whole frame.
    pub(super) fn push_frame(&mut self, frame: &[u8]) {
        self.push(frame, &Bytes::new());
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

    /// Moves everything into an empty batch and takes its emptied buffers back.
    pub(super) fn take_into(&mut self, batch: &mut Batch) {
        assert!(batch.is_empty(), "a batch is written before the next one is taken");
        for spare in batch.emptied.drain(..) {
            if self.spares.len() < SPARES_MAX {
                self.spares.push(spare);
            }
        }
        std::mem::swap(&mut self.chunks, &mut batch.chunks);
        self.queued = 0;
    }

    /// Forgets what was not taken: its requests have been answered with an error.
    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        self.queued = 0;
    }
}

/// What the task took and the kernel has not taken whole.
pub(super) struct Batch {
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that the kernel has.
    offset: usize,
    emptied: Vec<Vec<u8>>,
    written: u64,
}

impl Batch {
    /// The batch of a connection whose first byte is the one at `position`.
    pub(super) fn new(position: u64) -> Batch {
        Batch { chunks: VecDeque::new(), offset: 0, emptied: Vec::new(), written: position }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Everything below this position is with the kernel, and nothing from it on.
    pub(super) fn written(&self) -> u64 {
        self.written
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
        self.written += taken as u64;
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
                if self.emptied.len() < SPARES_MAX && emptied.capacity() <= CHUNK_BYTES {
                    self.emptied.push(emptied);
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

    proptest! {
        /// Invariants 1 and 2, with a socket that takes any number of bytes at a time.
        #[test]
        fn bytes_leave_in_order_and_are_counted(
            frames in prop::collection::vec((0usize..60, prop::sample::select(vec![0usize, 1, 900, 16_383, 16_384, 70_000])), 1..40),
            takes in prop::collection::vec(1usize..200_000, 1..20),
            take_every in 1usize..5,
        ) {
            let (mut outgoing, mut batch) = (Outgoing::default(), Batch::new(0));
            let (mut expected, mut sent) = (Vec::new(), Vec::new());
            let mut takes = takes.into_iter().cycle();
            let mut pump = |outgoing: &mut Outgoing, batch: &mut Batch| {
                if batch.is_empty() {
                    outgoing.take_into(batch);
                }
                let most = takes.next().unwrap();
                batch.write_some(|slices| {
                    let all: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
                    let taken = all.len().min(most);
                    sent.extend_from_slice(&all[..taken]);
                    Ok(taken)
                }).unwrap();
                assert_eq!(batch.written(), sent.len() as u64);
            };
            for (index, (head, body)) in frames.iter().enumerate() {
                let head = vec![index as u8; *head];
                let body = Bytes::from(vec![!(index as u8); *body]);
                prop_assert_eq!(outgoing.position(), expected.len() as u64);
                outgoing.push(&head, &body);
                expected.extend_from_slice(&head);
                expected.extend_from_slice(&body);
                if index % take_every == 0 {
                    pump(&mut outgoing, &mut batch);
                }
            }
            while !(outgoing.is_empty() && batch.is_empty()) {
                pump(&mut outgoing, &mut batch);
            }
            prop_assert!(sent == expected, "the bytes that left are those that were appended");
        }
    }
}
