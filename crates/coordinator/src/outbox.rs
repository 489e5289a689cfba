//! A connection's outgoing frames, in order, each to be sent once the changes it shows are durable.
//!
//! # Invariants
//! 1. Frames leave in the order in which they came.
//! 2. A frame leaves only when its batch is durable: nothing is shown or acknowledged that a crash could take back.
//!
//! # Limits
//! Reading stops at `replies_max` or `replies_bytes_max`; a connection is dropped beyond `outbox_bytes_max`, which
//! notifications alone can reach. [`Owed`] counts the bytes owed to all connections; the code that hands out frames
//! bounds it.

use crate::config::CoordinatorConfig;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Most bytes that one write takes; a larger frame goes alone.
const WRITE_BYTES_MAX: usize = 256 << 10;

struct Item {
    /// The batch it waits for.
    batch: u64,
    frame: Bytes,
    queued_ms: u64,
}

#[derive(Default)]
struct State {
    items: VecDeque<Item>,
    /// Queued or being written.
    bytes: usize,
    is_closing: bool,
    is_dropped: bool,
}

/// The writer's next action.
pub(crate) enum Next {
    /// Write these; `queued_ms` of each.
    Write(Vec<Bytes>, Vec<u64>),
    /// Wait for more, or for a batch.
    Wait,
    /// Everything was written, and nothing follows.
    Close,
}

/// Bytes that all connections together are owed. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Owed(Arc<AtomicUsize>);

impl Owed {
    /// In bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn take_off(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// One connection's frames. One reader and one writer wait on it.
pub(crate) struct Outbox {
    pub(crate) peer: SocketAddr,
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    state: Mutex<State>,
    owed_by_all: Owed,
    ready: Notify,
    room: Notify,
    dropped: Notify,
    replies_max: usize,
    replies_bytes_max: usize,
    bytes_max: usize,
}

impl Outbox {
    pub(crate) fn new(peer: SocketAddr, config: &CoordinatorConfig, owed_by_all: Owed) -> Outbox {
        Outbox {
            peer,
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            state: Mutex::default(),
            owed_by_all,
            ready: Notify::new(),
            room: Notify::new(),
            dropped: Notify::new(),
            replies_max: config.replies_max,
            replies_bytes_max: config.replies_bytes_max,
            bytes_max: config.outbox_bytes_max,
        }
    }

    /// Queues a frame behind `batch`.
    pub(crate) fn push(&self, frame: Bytes, batch: u64, now_ms: u64) {
        let mut state = self.state.lock();
        if state.is_closing || state.is_dropped {
            return;
        }
        let bytes = state.bytes + frame.len();
        if bytes > self.bytes_max {
            tracing::warn!(peer = %self.peer, bytes, "too many unsent bytes for one client, closing its connection");
            drop(state);
            return self.drop_now();
        }
        state.bytes = bytes;
        self.owed_by_all.add(frame.len());
        state.items.push_back(Item { batch, frame, queued_ms: now_ms });
        drop(state);
        self.ready.notify_one();
    }

    /// Nothing follows what is queued.
    pub(crate) fn close(&self) {
        self.state.lock().is_closing = true;
        self.ready.notify_one();
    }

    /// Closes at once.
    pub(crate) fn drop_now(&self) {
        let mut state = self.state.lock();
        state.is_dropped = true;
        state.items.clear();
        self.owed_by_all.take_off(std::mem::take(&mut state.bytes));
        drop(state);
        self.dropped.notify_one();
    }

    /// Bytes not yet written.
    pub(crate) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// Frames not yet written.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().items.len()
    }

    /// Counts bytes that the connection holds besides its frames, until [`Outbox::release`] is told of as many.
    pub(crate) fn hold(&self, bytes: usize) {
        let mut state = self.state.lock();
        // A dropped connection is owed nothing any more.
        if state.is_dropped {
            return;
        }
        state.bytes += bytes;
        self.owed_by_all.add(bytes);
        let held = state.bytes;
        drop(state);
        if held > self.bytes_max {
            tracing::warn!(peer = %self.peer, bytes = held, "too many bytes for one client, closing its connection");
            self.drop_now();
        }
    }

    /// Bytes that were held are gone.
    pub(crate) fn release(&self, bytes: usize) {
        let mut state = self.state.lock();
        if !state.is_dropped {
            state.bytes -= bytes;
            self.owed_by_all.take_off(bytes);
        }
    }

    /// Waits until one more request may be read. Cancel safe. One task waits.
    pub(crate) async fn has_room(&self) {
        loop {
            {
                let state = self.state.lock();
                if state.items.len() < self.replies_max && state.bytes < self.replies_bytes_max {
                    return;
                }
            }
            self.room.notified().await;
        }
    }

    /// Waits until the connection is to be closed at once. Cancel safe. One task waits.
    pub(crate) async fn is_dropped(&self) {
        while !self.state.lock().is_dropped {
            self.dropped.notified().await;
        }
    }

    /// Waits until something was queued. Cancel safe. One task waits.
    pub(crate) async fn is_ready(&self) {
        self.ready.notified().await;
    }

    /// Takes what may leave when everything up to batch `durable` is durable (outbox invariant 2).
    pub(crate) fn next(&self, durable: u64) -> Next {
        let mut state = self.state.lock();
        let (mut frames, mut queued, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some(item) = state.items.front()
            && item.batch <= durable
            && (bytes == 0 || bytes + item.frame.len() <= WRITE_BYTES_MAX)
        {
            let item = state.items.pop_front().expect("the loop has seen it");
            bytes += item.frame.len();
            frames.push(item.frame);
            queued.push(item.queued_ms);
        }
        match frames.is_empty() {
            false => Next::Write(frames, queued),
            true if state.is_closing && state.items.is_empty() => Next::Close,
            true => Next::Wait,
        }
    }

    /// Frames that [`Outbox::next`] gave have been written.
    pub(crate) fn written(&self, frames: usize, bytes: usize) {
        self.sent.fetch_add(frames as u64, Ordering::Relaxed);
        let mut state = self.state.lock();
        // A dropped connection is owed nothing any more.
        if !state.is_dropped {
            state.bytes -= bytes;
            self.owed_by_all.take_off(bytes);
        }
        drop(state);
        self.room.notify_one();
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.owed_by_all.take_off(self.state.get_mut().bytes);
    }
}

/// Counters over all connections.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) latency_sum_ms: AtomicU64,
    pub(crate) latency_max_ms: AtomicU64,
}

impl Counters {
    /// Adds what a connection that ends had.
    pub(crate) fn absorb(&self, outbox: &Outbox) {
        self.received.fetch_add(outbox.received.load(Ordering::Relaxed), Ordering::Relaxed);
        self.sent.fetch_add(outbox.sent.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Frames queued at these times were written now.
    pub(crate) fn replied(&self, queued_ms: &[u64], now_ms: u64) {
        for queued in queued_ms.iter().filter(|queued| **queued > 0) {
            let latency = now_ms.saturating_sub(*queued);
            self.latency_sum_ms.fetch_add(latency, Ordering::Relaxed);
            self.latency_max_ms.fetch_max(latency, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox() -> Outbox {
        let mut config = CoordinatorConfig::new(([127, 0, 0, 1], 0).into(), "unused");
        (config.replies_max, config.replies_bytes_max, config.outbox_bytes_max) = (2, 100, 1000);
        Outbox::new(([127, 0, 0, 1], 1).into(), &config, Owed::default())
    }

    #[test]
    fn frames_leave_in_order_and_only_when_their_batch_is_durable() {
        let outbox = outbox();
        for (frame, batch) in [("a", 1), ("b", 2), ("c", 1), ("d", 3)] {
            outbox.push(frame.into(), batch, 0);
        }
        assert!(matches!(outbox.next(0), Next::Wait), "outbox invariant 2");
        let taken = |durable| match outbox.next(durable) {
            Next::Write(frames, _) => frames,
            Next::Wait | Next::Close => panic!("there is something"),
        };
        assert_eq!(taken(1), ["a"], "outbox invariant 1: b stands before c");
        assert_eq!(taken(2), ["b", "c"]);
        outbox.close();
        outbox.push("e".into(), 0, 0);
        assert!(matches!(outbox.next(2), Next::Wait));
        assert_eq!(taken(3), ["d"]);
        assert!(matches!(outbox.next(3), Next::Close));
    }

    #[tokio::test]
    async fn reading_stops_at_the_bound_and_a_silent_client_is_dropped() {
        let outbox = outbox();
        outbox.has_room().await;
        outbox.push(vec![0; 99].into(), 0, 0);
        outbox.has_room().await;
        outbox.push(vec![0; 1].into(), 0, 0);
        let waits = tokio::time::timeout(std::time::Duration::from_millis(20), outbox.has_room());
        assert!(waits.await.is_err());
        let Next::Write(frames, _) = outbox.next(0) else { panic!("there is something") };
        outbox.written(frames.len(), 100);
        outbox.has_room().await;
        outbox.push(vec![0; 1001].into(), 0, 0);
        outbox.is_dropped().await;
        assert_eq!(outbox.len(), 0);
    }

    #[test]
    fn what_all_are_owed_is_what_each_is_owed() {
        let mut config = CoordinatorConfig::new(([127, 0, 0, 1], 0).into(), "unused");
        config.outbox_bytes_max = 1000;
        let owed = Owed::default();
        let outboxes =
            [0, 1, 2].map(|port| Outbox::new(([127, 0, 0, 1], port).into(), &config, owed.clone()));
        for (outbox, bytes) in outboxes.iter().zip([900, 20, 7]) {
            outbox.push(vec![0; bytes].into(), 0, 0);
        }
        assert_eq!(owed.bytes(), 927);
        let Next::Write(frames, _) = outboxes[0].next(0) else { panic!("there is something") };
        outboxes[0].push(vec![0; 101].into(), 0, 0);
        assert_eq!((owed.bytes(), outboxes[0].bytes()), (27, 0), "it was dropped while it was written");
        outboxes[0].written(frames.len(), 900);
        assert_eq!(owed.bytes(), 27);
        let Next::Write(frames, _) = outboxes[1].next(0) else { panic!("there is something") };
        outboxes[1].written(frames.len(), 20);
        assert_eq!(owed.bytes(), 7);
        drop(outboxes);
        assert_eq!(owed.bytes(), 0, "nobody is there to be owed anything");
    }
}
