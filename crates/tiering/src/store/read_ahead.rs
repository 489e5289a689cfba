//! Reads objects in large requests when the wanted ranges lie one behind the other, as small extents do.
//!
//! # Data flow
//! ```text
//! range ─► within a window? ─ yes ─► a part of it
//!              └ no ─► close behind one? ─ yes ─► a window twice as long ┐
//!                                        └ no ─► the range alone         ┴─► one request
//! ```
//!
//! # Invariants
//! 1. A range that does not lie close to one before it costs one request of its own length: objects whose extents are read in any
//!    order cost what they cost without a window.
//! 2. Reads of one window at the same time share its request.
//! 3. A request that failed, or that nobody waited for to its end, leaves no window.
//! 4. A window takes the place of the one that it goes on with, and a range of its own that of the oldest of its object: objects that are read
//!    side by side do not push out each other's.
//!
//! # Limits
//! Windows of an object: [`WINDOWS_OF_OBJECT`]; of all: [`WINDOWS_MAX`], each of [`WINDOW_BYTES_MAX`] at most: 24 MiB. Longer ranges are not kept.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;

use super::StoreError;

/// Windows that are kept: those of the sources of one object, and of some that it is made of.
const WINDOWS_MAX: usize = 48;
/// Reads that run side by side are not in order.
const WINDOWS_OF_OBJECT: usize = 2;
/// The longest window.
const WINDOW_BYTES_MAX: u64 = 512 << 10;
/// The first window behind a range.
const WINDOW_BYTES_MIN: u64 = 16 << 10;
/// A range that begins so far from a window, at most, goes on with it: the bytes between are read in vain.
const GAP_BYTES_MAX: u64 = 16 << 10;

type Reading = Shared<BoxFuture<'static, Result<Bytes, StoreError>>>;

/// Called before each request with its bytes, and waited for.
type Account = Box<dyn Fn(u64) -> BoxFuture<'static, ()> + Send + Sync>;

/// A range of an object, and the request that reads it.
struct Window {
    name: String,
    range: Range<u64>,
    reading: Reading,
}

/// The windows of one store. See the module.
pub(super) struct ReadAhead {
    windows: Mutex<VecDeque<Window>>,
    window_bytes_max: u64,
    account: Account,
}

/// Removes a window that nobody read to its end (invariant 3): its request would stay where it is, with what it holds.
struct Unfinished<'a> {
    windows: &'a Mutex<VecDeque<Window>>,
    name: &'a str,
    range: Range<u64>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let mut windows = self.windows.lock();
        let place = windows.iter().position(|window| window.name == self.name && window.range == self.range);
        let removed = place.and_then(|place| windows.remove(place));
        drop(windows);
        drop(removed);
    }
}

impl ReadAhead {
    /// No window yet.
    pub fn new(account: impl Fn(u64) -> BoxFuture<'static, ()> + Send + Sync + 'static) -> ReadAhead {
        let account = Box::new(account);
        ReadAhead { windows: Mutex::default(), window_bytes_max: WINDOW_BYTES_MAX, account }
    }

    /// Reads nothing ahead, and keeps nothing.
    #[cfg(test)]
    pub fn exact(account: impl Fn(u64) -> BoxFuture<'static, ()> + Send + Sync + 'static) -> ReadAhead {
        ReadAhead { window_bytes_max: 0, ..ReadAhead::new(account) }
    }

    /// Reads a range of an object, and ahead up to `end`. `fetch` makes a request.
    pub async fn read<F>(
        &self,
        name: &str,
        range: Range<u64>,
        end: u64,
        fetch: impl FnOnce(Range<u64>) -> F,
    ) -> Result<Bytes, StoreError>
    where
        F: Future<Output = Result<Bytes, StoreError>> + Send + 'static,
    {
        let (window, reading) = self.window(name, &range, end, fetch);
        let unfinished = Unfinished { windows: &self.windows, name, range: window.clone() };
        let bytes = reading.await?;
        std::mem::forget(unfinished);
        let part = |at: u64| usize::try_from(at - window.start).unwrap_or(usize::MAX).min(bytes.len());
        // An object that ends before gives a short answer, as it does without a window.
        Ok(bytes.slice(part(range.start)..part(range.end)))
    }

    /// The window that has the range, or a new one.
    fn window<F>(
        &self,
        name: &str,
        range: &Range<u64>,
        end: u64,
        fetch: impl FnOnce(Range<u64>) -> F,
    ) -> (Range<u64>, Reading)
    where
        F: Future<Output = Result<Bytes, StoreError>> + Send + 'static,
    {
        let mut windows = self.windows.lock();
        let is_of_object = |window: &Window| window.name == name;
        let has_all = |window: &Window| window.range.start <= range.start && range.end <= window.range.end;
        if let Some(window) = windows.iter().find(|window| is_of_object(window) && has_all(window)) {
            return (window.range.clone(), window.reading.clone());
        }
        let is_close = |window: &Window| {
            let reach = window.range.start.saturating_sub(GAP_BYTES_MAX)
                ..=window.range.end.saturating_add(GAP_BYTES_MAX);
            reach.contains(&range.start)
        };
        let before = windows.iter().rposition(|window| is_of_object(window) && is_close(window));
        let length = |window: &Window| window.range.end - window.range.start;
        let ahead = before.map_or(0, |place| {
            (2 * length(&windows[place])).max(WINDOW_BYTES_MIN).min(self.window_bytes_max)
        });
        let asked = range.start..range.end.max(range.start.saturating_add(ahead).min(end));
        let (paid, fetched) = ((self.account)(asked.end - asked.start), fetch(asked.clone()));
        let reading = paid.then(|()| fetched).boxed().shared();
        if asked.end - asked.start <= self.window_bytes_max {
            // Invariant 4.
            let of_object = windows.iter().filter(|window| is_of_object(window)).count();
            let oldest = windows.iter().position(is_of_object).filter(|_| of_object >= WINDOWS_OF_OBJECT);
            let replaced = before.or(oldest).or_else(|| (windows.len() >= WINDOWS_MAX).then_some(0));
            if let Some(place) = replaced {
                windows.remove(place);
            }
            let (name, range, reading) = (name.to_owned(), asked.clone(), reading.clone());
            windows.push_back(Window { name, range, reading });
        }
        (asked, reading)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
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
        let account = move |bytes| {
            of_requests.lock().push(bytes);
            async {}.boxed()
        };
        (store.with_read_ahead(account), asked, inner)
    }

    fn expected(at: u64, bytes: u64) -> Vec<u8> {
        (at..(at + bytes).min(LENGTH)).map(|at| (at / 1000) as u8).collect()
    }

    #[tokio::test]
    async fn ranges_that_lie_one_behind_the_other_come_in_few_requests() {
        let (store, asked, _) = world().await;
        // Of every two ranges one is read.
        for at in (0..LENGTH).step_by(6000) {
            assert_eq!(
                store.read_part("a", at..at + 3000, LENGTH).await.unwrap(),
                expected(at, 3000),
                "{at}"
            );
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
            assert_eq!(store.read_part("a", at..at + 500, LENGTH).await.unwrap(), expected(at, 500));
        }
        assert_eq!(*asked.lock(), [500; 40]);
    }

    /// Invariant 2.
    #[tokio::test]
    async fn ranges_of_one_window_share_its_request() {
        let (store, asked, _) = world().await;
        drop(store.read_part("a", 0..1000, LENGTH).await.unwrap());
        let reads = (1..9).map(|at| {
            let store = store.clone();
            async move { store.read_part("a", at * 1000..(at + 1) * 1000, LENGTH).await.unwrap() }
        });
        let read = futures_util::future::join_all(reads).await;
        assert!(read.iter().zip(1..).all(|(bytes, at)| *bytes == expected(at * 1000, 1000)));
        assert_eq!(*asked.lock(), [1000, 16 << 10]);
    }

    /// Invariant 3, and the end of the object.
    #[tokio::test]
    async fn a_failure_is_not_remembered() {
        let (store, asked, inner) = world().await;
        assert_eq!(
            store.read_part("a", LENGTH - 10..LENGTH + 90, LENGTH).await.unwrap(),
            expected(LENGTH - 10, 10)
        );
        for _ in 0..2 {
            store.read_part("b", 0..10, LENGTH).await.unwrap_err();
        }
        inner.put(&"b".into(), vec![7; 100].into()).await.unwrap();
        assert_eq!(store.read_part("b", 0..10, LENGTH).await.unwrap(), [7; 10][..]);
        assert_eq!(
            store.read_part("b", 10..20, LENGTH).await.unwrap(),
            [7; 10][..],
            "a window beyond the end"
        );
        assert_eq!(asked.lock().len(), 5);
    }

    /// Invariant 4: as many objects as are joined, a piece of each in turn, and not quite in order.
    #[tokio::test]
    async fn objects_that_are_read_side_by_side_keep_their_windows() {
        let (store, asked, inner) = world().await;
        let bytes = inner.get(&"a".into()).await.unwrap().bytes().await.unwrap();
        for object in 0..16 {
            inner.put(&format!("of-{object}").into(), bytes.clone().into()).await.unwrap();
        }
        for turn in 0..200_u64 {
            for object in 0..16 {
                // Of two that follow each other the second comes first.
                let at = (turn ^ 1) * 3200;
                let read = store.read_part(&format!("of-{object}"), at..at + 3200, LENGTH).await.unwrap();
                assert_eq!(read, expected(at, 3200));
            }
        }
        let asked = asked.lock();
        assert!(asked.len() <= 16 * 10, "{}", asked.len());
        // The last windows reach beyond what is read, up to the end at most.
        let bytes = asked.iter().sum::<u64>();
        assert!(bytes < 16 * (640_000 + (1 << 20)), "{bytes}");
    }

    /// Invariant 3.
    #[tokio::test]
    async fn a_window_whose_reader_went_is_asked_for_again() {
        let (store, asked, _) = world().await;
        let read = store.read_part("a", 0..1000, LENGTH);
        assert!(futures_util::poll!(std::pin::pin!(read)).is_pending() || !asked.lock().is_empty());
        assert_eq!(store.read_part("a", 0..1000, LENGTH).await.unwrap(), expected(0, 1000));
    }
}
