//! Chunks: large aligned buffers that are filled once from the front and shared for reading while they are filled.
//!
//! The journal writes from a chunk, the write cache reads from it, and it goes back to its pool when the last of
//! them lets go. That is how an entry has one copy in memory.
//!
//! # Data flow
//! ```text
//! ChunkPool::take -> OpenChunk::append (one writer) -> OpenChunk::slice (many readers) -> drop -> pool
//! ```
//!
//! # Invariants
//! 1. Bytes below `len` never change until the chunk is back in the pool; bytes at or above `len` are seen by the
//!    one writer only. So a `&[u8]` below `len` and the writer's `&mut [u8]` above it never overlap.
//! 2. `len` moves forward only, after the bytes below it are written.
//! 3. A pool never holds more than `capacity` chunks in use; used goes back to 0 when all handles are dropped.

use crate::BLOCK_SIZE_BYTES;
use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// From this size on, memory is mapped: the kernel provides its pages as they are touched, and gets them back on drop.
/// The allocator does neither for aligned memory: it writes the zeros itself, and keeps large blocks that are freed.
const MAPPED_BYTES_MIN: usize = 128 << 10;

/// From this size on, huge pages are requested: entries are copied to and from places all over the memory, and direct writes pin
/// its pages one by one.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zero-initialised memory aligned to [`BLOCK_SIZE_BYTES`].
pub struct AlignedBuf {
    memory: NonNull<u8>,
    size: usize,
}

// SAFETY: the memory is owned by the value alone and has no thread affinity.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access hands out `&[u8]` only.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// Allocates `size` zero bytes. `size` is rounded up to a multiple of [`BLOCK_SIZE_BYTES`], at least one block.
    pub fn zeroed(size: usize) -> AlignedBuf {
        let size = size.max(1).next_multiple_of(BLOCK_SIZE_BYTES);
        let layout = Self::layout(size);
        if size >= MAPPED_BYTES_MIN {
            // SAFETY: a new mapping of our own at a place the kernel chooses; it aliases nothing.
            let mapped = unsafe {
                mmap_anonymous(
                    std::ptr::null_mut(),
                    size,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE,
                )
            };
            let memory = mapped.ok().and_then(|memory| NonNull::new(memory.cast::<u8>()));
            let Some(memory) = memory else { handle_alloc_error(layout) };
            debug_assert!(
                memory.as_ptr().addr().is_multiple_of(BLOCK_SIZE_BYTES),
                "pages are blocks or more"
            );
            if size >= HUGE_PAGE_BYTES {
                // SAFETY: the mapping made above; the advice changes how it is backed, not what it holds. Where it is
                // not taken, small pages serve.
                let _ = unsafe { madvise(memory.as_ptr().cast(), size, Advice::LinuxHugepage) };
            }
            return AlignedBuf { memory, size };
        }
        // SAFETY: `layout` has a size above 0.
        let Some(memory) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        AlignedBuf { memory, size }
    }

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, BLOCK_SIZE_BYTES).expect("a buffer size fits the address space")
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.size >= MAPPED_BYTES_MIN {
            // SAFETY: mapped in `zeroed` with this size, dropped once, and no borrow outlives the value.
            let unmapped = unsafe { munmap(self.memory.as_ptr().cast(), self.size) };
            debug_assert!(unmapped.is_ok(), "a mapping of our own: {unmapped:?}");
            return;
        }
        // SAFETY: allocated in `zeroed` with this layout, dropped once.
        unsafe { dealloc(self.memory.as_ptr(), Self::layout(self.size)) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `size` initialised bytes, borrowed as long as `self`.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.size) }
    }
}

impl std::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.size) }
    }
}

/// The kind of request for a chunk. The reserve is for work that must go on when adds have filled the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Ordinary adds.
    Normal,
    /// Recovery adds and explicit LACs (last add confirmed): may use half of the reserve, so that many of them leave room for a
    /// fence.
    Recovery,
    /// Fences, removals, and records of what metadata said about a ledger.
    Reserved,
}

struct PoolState {
    free: Vec<AlignedBuf>,
    in_use: usize,
    /// A chunk was taken since the last [`ChunkPool::give_back_idle`].
    was_used: bool,
}

struct PoolShared {
    chunk_size: usize,
    capacity: usize,
    reserve: usize,
    state: Mutex<PoolState>,
}

/// A bounded set of equal chunks. Memory is allocated at first use and recycled, because fresh pages are expensive.
#[derive(Clone)]
pub struct ChunkPool(Arc<PoolShared>);

impl ChunkPool {
    /// A pool of `capacity` chunks of `chunk_size` bytes (rounded up to whole blocks), of which the last `reserve`
    /// are not for [`Lane::Normal`], and half of these are for [`Lane::Reserved`] only.
    ///
    /// # Panics
    /// When `reserve >= capacity`: ordinary adds would never get a chunk.
    pub fn new(chunk_size: usize, capacity: usize, reserve: usize) -> ChunkPool {
        assert!(reserve < capacity, "a pool of {capacity} chunks cannot reserve {reserve}");
        let chunk_size = chunk_size.next_multiple_of(BLOCK_SIZE_BYTES);
        let state = Mutex::new(PoolState { free: Vec::with_capacity(capacity), in_use: 0, was_used: false });
        ChunkPool(Arc::new(PoolShared { chunk_size, capacity, reserve, state }))
    }

    fn usable(&self, lane: Lane) -> usize {
        match lane {
            Lane::Normal => self.0.capacity - self.0.reserve,
            Lane::Recovery => self.0.capacity - self.0.reserve / 2,
            Lane::Reserved => self.0.capacity,
        }
    }

    /// True when [`ChunkPool::take`] would give a chunk.
    pub fn has_free(&self, lane: Lane) -> bool {
        self.in_use() < self.usable(lane)
    }

    /// A chunk, or `None` when the lane's share is used up.
    pub fn take(&self, lane: Lane) -> Option<OpenChunk> {
        let usable = self.usable(lane);
        let recycled = {
            let mut state = self.0.state.lock();
            if state.in_use >= usable {
                return None;
            }
            state.in_use += 1;
            state.was_used = true;
            state.free.pop()
        };
        let memory = recycled.unwrap_or_else(|| AlignedBuf::zeroed(self.0.chunk_size));
        Some(OpenChunk { shared: Arc::new(ChunkShared { memory: Some(memory), pool: self.clone() }), len: 0 })
    }

    /// Allocates one more chunk ahead of its use and touches every page of it. False when all chunks are allocated.
    pub fn warm_one(&self) -> bool {
        let is_missing = |state: &PoolState| state.in_use + state.free.len() < self.0.capacity;
        if !is_missing(&self.0.state.lock()) {
            return false;
        }
        let mut memory = AlignedBuf::zeroed(self.0.chunk_size);
        for page in memory.chunks_mut(BLOCK_SIZE_BYTES) {
            page[0] = 1;
        }
        let mut state = self.0.state.lock();
        // A take may have allocated the last chunk meanwhile; the memory is given back then.
        if is_missing(&state) {
            state.free.push(memory);
        }
        true
    }

    /// Gives the memory of free chunks back to the system when no chunk was taken since the last call: to be called
    /// at intervals by an owner that would rather meet fresh pages after a pause than hold memory through it.
    pub fn give_back_idle(&self) {
        let idle = {
            let mut state = self.0.state.lock();
            let was_used = std::mem::replace(&mut state.was_used, false);
            if was_used { Vec::new() } else { std::mem::take(&mut state.free) }
        };
        // Unmapped here, without the lock.
        drop(idle);
    }

    /// Bytes of chunks that are handed out or kept for reuse.
    pub fn held_bytes(&self) -> usize {
        let state = self.0.state.lock();
        (state.in_use + state.free.len()) * self.0.chunk_size
    }

    /// Size of each chunk in bytes.
    pub fn chunk_size(&self) -> usize {
        self.0.chunk_size
    }

    /// Number of chunks there can be.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Number of chunks handed out and not yet back.
    pub fn in_use(&self) -> usize {
        self.0.state.lock().in_use
    }
}

struct ChunkShared {
    /// `None` only inside `drop`.
    memory: Option<AlignedBuf>,
    pool: ChunkPool,
}

impl ChunkShared {
    fn base(&self) -> *mut u8 {
        self.memory.as_ref().expect("a live chunk has its memory").memory.as_ptr()
    }
    fn size(&self) -> usize {
        self.memory.as_ref().expect("a live chunk has its memory").size
    }
}

impl Drop for ChunkShared {
    fn drop(&mut self) {
        let memory = self.memory.take().expect("dropped once");
        let mut state = self.pool.0.state.lock();
        state.in_use -= 1;
        debug_assert!(state.free.len() + state.in_use < self.pool.0.capacity, "a chunk has one place");
        state.free.push(memory);
    }
}

/// The writing end of a chunk: there is one.
pub struct OpenChunk {
    shared: Arc<ChunkShared>,
    len: usize,
}

impl OpenChunk {
    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True while nothing is written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that still fit.
    pub fn remaining(&self) -> usize {
        self.shared.size() - self.len
    }

    /// Lets `fill` write the next `size` bytes, which then become readable, and returns where they begin.
    /// The bytes hold arbitrary old content before `fill` runs: it must write all of them.
    ///
    /// # Panics
    /// When `size > remaining()`.
    pub fn append(&mut self, size: usize, fill: impl FnOnce(&mut [u8])) -> usize {
        assert!(size <= self.remaining(), "{size} bytes do not fit into {}", self.remaining());
        let start = self.len;
        // SAFETY: [start, start + size) lies inside the allocation and is initialised memory. No slice covers it,
        // because slices end at `len` (invariant 1), and there is one writer, borrowed mutably here.
        fill(unsafe { std::slice::from_raw_parts_mut(self.shared.base().add(start), size) });
        self.len = start + size;
        start
    }

    /// A shared view of bytes that are already written.
    ///
    /// # Panics
    /// When `range` reaches beyond `len()`.
    pub fn slice(&self, range: Range<usize>) -> ChunkSlice {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is beyond {}", self.len);
        ChunkSlice { shared: self.shared.clone(), start: range.start, len: range.end - range.start }
    }
}

/// Bytes of a chunk that no longer change. Keeps the whole chunk out of its pool while it lives.
#[derive(Clone)]
pub struct ChunkSlice {
    shared: Arc<ChunkShared>,
    start: usize,
    len: usize,
}

// SAFETY: `ChunkShared` is reached through raw pointers to disjoint ranges only (invariant 1): readers below `len`,
// the one writer above it. `len` travels inside the handles, so a reader on another thread got its range through a
// synchronising hand-over of the handle.
unsafe impl Send for ChunkSlice {}
// SAFETY: as above; shared access reads only.
unsafe impl Sync for ChunkSlice {}
// SAFETY: as above; the writer is unique and moves with the value.
unsafe impl Send for OpenChunk {}

impl ChunkSlice {
    /// A part of this view; `range` counts from the start of the view.
    ///
    /// # Panics
    /// When `range` reaches beyond the view.
    pub fn slice(&self, range: Range<usize>) -> ChunkSlice {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is beyond {}", self.len);
        ChunkSlice {
            shared: self.shared.clone(),
            start: self.start + range.start,
            len: range.end - range.start,
        }
    }

    /// Position of the first byte inside its chunk: memory alignment follows from it, chunks are block-aligned.
    pub fn offset_in_chunk(&self) -> usize {
        self.start
    }

    /// True when `next` starts where this view ends, in the same chunk.
    pub fn is_followed_by(&self, next: &ChunkSlice) -> bool {
        Arc::ptr_eq(&self.shared, &next.shared) && self.start + self.len == next.start
    }
}

impl Deref for ChunkSlice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the range was below `len` when the view was made, so its bytes do not change (invariant 1).
        unsafe { std::slice::from_raw_parts(self.shared.base().add(self.start), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_what_was_written_while_the_writer_goes_on() {
        let pool = ChunkPool::new(8192, 2, 0);
        let mut chunk = pool.take(Lane::Normal).unwrap();
        chunk.append(5, |b| b.copy_from_slice(b"hello"));
        let hello = chunk.slice(0..5);
        let reader = std::thread::spawn(move || hello.to_vec());
        chunk.append(5, |b| b.copy_from_slice(b"world"));
        assert_eq!(reader.join().unwrap(), b"hello");
        assert_eq!(&*chunk.slice(0..10), b"helloworld");
        assert!(chunk.slice(0..5).is_followed_by(&chunk.slice(5..10)));
    }

    #[test]
    fn a_chunk_returns_to_its_pool_exactly_once() {
        let pool = ChunkPool::new(4096, 2, 1);
        let chunk = pool.take(Lane::Normal).unwrap();
        assert!(pool.take(Lane::Normal).is_none(), "the last chunk is the reserve");
        let reserved = pool.take(Lane::Reserved).unwrap();
        assert!(pool.take(Lane::Reserved).is_none());
        let view = chunk.slice(0..0);
        drop(chunk);
        assert_eq!(pool.in_use(), 2, "a view keeps the chunk");
        drop(view);
        drop(reserved);
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn an_idle_pool_gives_its_memory_back_and_works_on() {
        let pool = ChunkPool::new(MAPPED_BYTES_MIN, 2, 0);
        let mut chunk = pool.take(Lane::Normal).unwrap();
        chunk.append(3, |b| b.copy_from_slice(b"old"));
        let view = chunk.slice(0..3);
        drop(chunk);
        pool.give_back_idle();
        pool.give_back_idle();
        assert_eq!((&*view, pool.held_bytes()), (&b"old"[..], MAPPED_BYTES_MIN), "what is in use stays");
        drop(view);
        drop(pool.take(Lane::Normal).unwrap());
        pool.give_back_idle();
        assert_eq!(pool.held_bytes(), MAPPED_BYTES_MIN, "a chunk was taken since the last call");
        pool.give_back_idle();
        assert_eq!(pool.held_bytes(), 0);
        let mut fresh = pool.take(Lane::Normal).unwrap();
        fresh.append(3, |b| assert_eq!(b, [0; 3]));
    }

    #[test]
    fn large_buffers_are_zero_aligned_and_not_resident_before_their_use() {
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
        let before = resident();
        let mut buffer = AlignedBuf::zeroed(256 << 20);
        assert!(resident() < before + (64 << 20), "{} before, {} now", before, resident());
        assert!(buffer.as_ptr().addr().is_multiple_of(BLOCK_SIZE_BYTES));
        assert_eq!((buffer.len(), buffer[0], buffer[buffer.len() - 1]), (256 << 20, 0, 0));
        buffer[1 << 20] = 7;
        assert_eq!(buffer[1 << 20], 7);
    }

    #[test]
    #[should_panic(expected = "beyond")]
    fn nobody_reads_ahead_of_the_writer() {
        let pool = ChunkPool::new(4096, 1, 0);
        let chunk = pool.take(Lane::Normal).unwrap();
        let _ = chunk.slice(0..1);
    }
}
