//! How a task leaves the thread to others.

use std::future::poll_fn;
use std::task::Poll;

/// Lets everything run that is ready on this thread. [`tokio::task::yield_now`] does not: it comes back as soon as the
/// sockets were polled, before the tasks in the queue.
pub async fn after_all_others() {
    let mut is_behind = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_behind, true) {
            return Poll::Ready(());
        }
        // A task that wakes itself goes to the end of the queue.
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
