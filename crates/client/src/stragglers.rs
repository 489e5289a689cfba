//! Requests that go on although their read was answered by another replica.

use std::future::Future;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Of a client.
pub(crate) struct Stragglers {
    tasks: Mutex<JoinSet<()>>,
    runtime: Handle,
}

impl Stragglers {
    /// # Panics
    /// Outside a tokio runtime.
    pub(crate) fn new() -> Stragglers {
        Stragglers { tasks: Mutex::default(), runtime: Handle::current() }
    }

    pub(crate) fn adopt(&self, request: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(request, &self.runtime);
    }
}
