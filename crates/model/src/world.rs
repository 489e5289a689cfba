//! Runs scenarios.

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, Runner};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Reproduces a run: with the same one the same interleavings are tried.
const SEED: u64 = 4;
/// Preemptions that the second scheduler places (Burckhardt et al. 2010).
const DEPTH: usize = 3;

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 256 * 1024;
    config.failure_persistence = FailurePersistence::None;
    config.silence_warnings = true;
    config
}

/// Tries `iterations` interleavings by each of two schedulers; panics at the first that breaks a promise or deadlocks.
pub fn check(iterations: usize, scenario: impl Fn() + Send + Sync + Clone + 'static) {
    Runner::new(RandomScheduler::new_from_seed(SEED, iterations), config()).run(scenario.clone());
    Runner::new(PctScheduler::new_from_seed(SEED, DEPTH, iterations), config()).run(scenario);
}

/// The failure of a scenario that has a planted bug; `None` when [`check`] does not find the bug.
pub fn find(iterations: usize, scenario: impl Fn() + Send + Sync + Clone + 'static) -> Option<String> {
    let payload = catch_unwind(AssertUnwindSafe(|| check(iterations, scenario))).err()?;
    let text = payload.downcast_ref::<String>().cloned();
    Some(text.or_else(|| payload.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default())
}

/// Stands for every sleep: there is no time.
pub async fn never(_: std::time::Duration) {
    std::future::pending().await
}

/// Looks at a future once, without waiting for it.
pub fn poll_once<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
