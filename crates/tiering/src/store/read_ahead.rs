//! Reads objects in large requests when what is asked for lies one behind the other, as small extents do.
//!
//! # Data flow
//! ```text
//! range ─► within a window? ─ yes ─► a part of it
//!              └ no ─► close behind one? ─ yes ─► a window twice as long ┐
//!                                        └ no ─► the range alone         ┴─► one request
//! ```
//!
//! # Invariants
//! 1. A range that does not lie close behind the one before it costs one request of its own length: objects whose extents are read in any
//!    order cost what they cost without a window.
//! 2. Ranges of one window that are asked for at the same time share its request.
//! 3. A request that failed leaves no window.
//!
//! # Limits
//! Windows: [`WINDOWS_MAX`], each of [`WINDOW_BYTES_MAX`], or of one range that is longer: 16 MiB, and longer ranges come on top.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;

use super::StoreError;

/// Windows that are kept: as many as objects that are read side by side, twice.
const WINDOWS_MAX: usize = 32;
/// The longest window.
const WINDOW_BYTES_MAX: u64 = 512 << 10;
/// The first window behind a range.
const WINDOW_BYTES_MIN: u64 = 16 << 10;
/// A range that begins so far behind a window, at most, goes on with it: what lies between is read in vain.
const GAP_BYTES_MAX: u64 = 16 << 10;

type Reading = Shared<BoxFuture<'static, Result<Bytes, StoreError>>>;

/// A range that was asked of the store.
struct Window {
    name: String,
    range: Range<u64>,
    reading: Reading,
}

/// The windows of one store. See the module.
pub(super) struct ReadAhead {
    windows: Mutex<VecDeque<Window>>,
    /// Called before each request with its bytes.
    on_request: Box<dyn Fn(u64) + Send + Sync>,
}

impl ReadAhead {
    /// No window yet.
    pub fn new(on_request: impl Fn(u64) + Send + Sync + 'static) -> ReadAhead {
        ReadAhead { windows: Mutex::default(), on_request: Box::new(on_request) }
    }

    /// Reads a range of an object. `fetch` makes a request.
    pub async fn read<F>(
        &self,
        name: &str,
        range: Range<u64>,
        fetch: impl FnOnce(Range<u64>) -> F,
    ) -> Result<Bytes, StoreError>
    where
        F: Future<Output = Result<Bytes, StoreError>> + Send + 'static,
    {
        let (window, reading) = self.window(name, &range, fetch);
        match reading.await {
            Ok(bytes) => {
                let part =
                    |at: u64| usize::try_from(at - window.start).unwrap_or(usize::MAX).min(bytes.len());
                // An object that ends before gives a short answer, as it does without a window.
                Ok(bytes.slice(part(range.start)..part(range.end)))
            }
            Err(error) => {
                // Invariant 3.
                self.windows.lock().retain(|other| other.name != name || other.range != window);
                Err(error)
            }
        }
    }

    /// The window that has the range, or a new one.
    fn window<F>(
        &self,
        name: &str,
        range: &Range<u64>,
        fetch: impl FnOnce(Range<u64>) -> F,
    ) -> (Range<u64>, Reading)
    where
        F: Future<Output = Result<Bytes, StoreError>> + Send + 'static,
    {
        let mut windows = self.windows.lock();
        let of_object = || windows.iter().rev().filter(|window| window.name == name);
        let has_all = |window: &&Window| window.range.start <= range.start && range.end <= window.range.end;
        if let Some(window) = of_object().find(has_all) {
            return (window.range.clone(), window.reading.clone());
        }
        let is_close = |window: &&Window| {
            (window.range.start..=window.range.end.saturating_add(GAP_BYTES_MAX)).contains(&range.start)
        };
        let before = of_object().find(is_close).map(|window| window.range.end - window.range.start);
        let ahead = before.map_or(0, |bytes| (2 * bytes).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX));
        let asked = range.start..range.end.max(range.start.saturating_add(ahead));
        (self.on_request)(asked.end - asked.start);
        let reading = fetch(asked.clone()).boxed().shared();
        if windows.len() == WINDOWS_MAX {
            windows.pop_front();
        }
        windows.push_back(Window { name: name.to_owned(), range: asked.clone(), reading: reading.clone() });
        (asked, reading)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use object_store::{ObjectStore, ObjectStoreExt};

    use crate::store::Store;

    const LENGTH: u64 = 4 << 20;

    async fn world() -> (Store, Arc<parking_lot::Mutex<Vec<u64>>>, Arc<dyn ObjectStore>) {
        let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let bytes: Vec<u8> = (0..LENGTH).map(|at| (at / 1000) as u8).collect();
        inner.put(&"a".into(), bytes.into()).await.unwrap();
        let asked = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let store = Store::new("s3://bucket".parse().unwrap(), inner.clone());
        let of_requests = asked.clone();
        (store.with_read_ahead(move |bytes| of_requests.lock().push(bytes)), asked, inner)
    }

    fn expected(at: u64, bytes: u64) -> Vec<u8> {
        (at..(at + bytes).min(LENGTH)).map(|at| (at / 1000) as u8).collect()
    }

    #[tokio::test]
    async fn ranges_that_lie_one_behind_the_other_come_in_few_requests() {
        let (store, asked, _) = world().await;
        // Of every two ranges one is read.
        for at in (0..LENGTH).step_by(6000) {
            assert_eq!(store.read("a", at..at + 3000).await.unwrap(), expected(at, 3000), "{at}");
        }
        let asked = asked.lock();
        assert!(asked.len() <= 16, "{asked:?}");
        assert!(asked.iter().sum::<u64>() < LENGTH + (1 << 20), "{asked:?}");
    }

    /// Invariant 1.
    #[tokio::test]
    async fn ranges_in_any_order_cost_what_they_cost_alone() {
        let (store, asked, _) = world().await;
        for at in (0..40).map(|n| (n * 17 % 40) * 100_000) {
            assert_eq!(store.read("a", at..at + 500).await.unwrap(), expected(at, 500));
        }
        assert_eq!(*asked.lock(), [500; 40]);
    }

    /// Invariant 2.
    #[tokio::test]
    async fn ranges_of_one_window_share_its_request() {
        let (store, asked, _) = world().await;
        drop(store.read("a", 0..1000).await.unwrap());
        let reads = (1..9).map(|at| {
            let store = store.clone();
            async move { store.read("a", at * 1000..(at + 1) * 1000).await.unwrap() }
        });
        let read = futures_util::future::join_all(reads).await;
        assert!(read.iter().zip(1..).all(|(bytes, at)| *bytes == expected(at * 1000, 1000)));
        assert_eq!(*asked.lock(), [1000, 16 << 10]);
    }

    /// Invariant 3, and the end of the object.
    #[tokio::test]
    async fn a_failure_is_not_remembered() {
        let (store, asked, inner) = world().await;
        assert_eq!(store.read("a", LENGTH - 10..LENGTH + 90).await.unwrap(), expected(LENGTH - 10, 10));
        for _ in 0..2 {
            store.read("b", 0..10).await.unwrap_err();
        }
        inner.put(&"b".into(), vec![7; 100].into()).await.unwrap();
        assert_eq!(store.read("b", 0..10).await.unwrap(), [7; 10][..]);
        assert_eq!(store.read("b", 10..20).await.unwrap(), [7; 10][..], "a window beyond the end");
        assert_eq!(asked.lock().len(), 5);
    }
}
