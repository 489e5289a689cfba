//! The process's runtime, and the two ways to wait for a call: blocking, and as an asyncio future.

use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::AbortHandle;

use crate::errors::ClosedError;

/// How soon a blocked call sees a signal.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);
/// How long the interpreter's exit waits for tasks.
const EXIT_WAIT_MAX: Duration = Duration::from_secs(1);

/// Outcomes that wait for the delivery thread; tasks wait when there are more.
const DELIVERIES_MAX: usize = 1024;

static RUNNING: Mutex<State> = Mutex::new(State::NotYet);

enum State {
    NotYet,
    Running(Running),
    /// The interpreter is exiting.
    Ended,
}

/// The runtime and the delivery thread, one of each per process.
struct Running {
    /// The process that made it: threads do not survive a fork.
    process: u32,
    runtime: Runtime,
    deliveries: Sender<Option<Delivery>>,
    delivery_thread: JoinHandle<()>,
}

/// Makes a value or exception of what a call returned.
type Outcome = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// The outcome of a call for the event loop that waits for it.
struct Delivery {
    event_loop: Py<PyAny>,
    future: Py<PyAny>,
    outcome: Outcome,
}

fn forked() -> PyErr {
    PyRuntimeError::new_err(
        "bindery was used before this process was forked, and its threads are the parent's: start the process \
         with multiprocessing's \"spawn\", or use bindery after the fork only",
    )
}

/// Refuses in a process that was forked: a lock of the parent's threads may be taken here for ever. For calls that do
/// without the runtime.
pub(crate) fn check_process() -> PyResult<()> {
    match &*RUNNING.lock().unwrap_or_else(PoisonError::into_inner) {
        State::Running(running) if running.process != std::process::id() => Err(forked()),
        State::NotYet | State::Running(_) | State::Ended => Ok(()),
    }
}

fn running() -> PyResult<(Handle, Sender<Option<Delivery>>)> {
    let mut state = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    if matches!(*state, State::NotYet) {
        let runtime = Builder::new_multi_thread().thread_name("bindery").enable_all().build()?;
        let (deliveries, receiver) = channel(DELIVERIES_MAX);
        let delivery_thread =
            std::thread::Builder::new().name("bindery-deliver".into()).spawn(move || deliver(receiver))?;
        *state =
            State::Running(Running { process: std::process::id(), runtime, deliveries, delivery_thread });
    }
    match &*state {
        State::Running(running) if running.process == std::process::id() => {
            Ok((running.runtime.handle().clone(), running.deliveries.clone()))
        }
        State::Running(_) => Err(forked()),
        State::NotYet | State::Ended => Err(ClosedError::new_err("the interpreter is exiting")),
    }
}

/// Has the runtime ended at interpreter exit, while Python can still run.
pub(crate) fn end_at_exit(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let end = wrap_pyfunction!(end, module)?;
    module.py().import("atexit")?.call_method1("register", (end,))?;
    Ok(())
}

#[pyfunction]
fn end(py: Python<'_>) {
    let state = {
        let mut state = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *state, State::Ended)
    };
    let State::Running(running) = state else { return };
    if running.process != std::process::id() {
        // Threads of the parent: they cannot be joined here.
        std::mem::forget(running);
        return;
    }
    py.detach(|| {
        running.runtime.shutdown_timeout(EXIT_WAIT_MAX);
        // A receiver or thread that is gone needs no end.
        let _ = running.deliveries.blocking_send(None);
        let _ = running.delivery_thread.join();
    });
}

/// Waits for `call` with the GIL released, Ctrl-C excepted.
pub(crate) fn wait<T: Send>(py: Python<'_>, call: impl Future<Output = PyResult<T>> + Send) -> PyResult<T> {
    let (handle, _) = running()?;
    let mut call = pin!(call);
    if let Poll::Ready(outcome) = poll_once(&handle, call.as_mut()) {
        return outcome;
    }
    loop {
        let call = call.as_mut();
        let turn = py.detach(|| handle.block_on(async { tokio::time::timeout(SIGNALS_EVERY, call).await }));
        match turn {
            Ok(outcome) => return outcome,
            Err(_) => py.check_signals()?,
        }
    }
}

/// Starts `call`; an asyncio future of the running event loop.
pub(crate) fn start<'py, T>(
    py: Python<'py>,
    call: impl Future<Output = PyResult<T>> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>>
where
    T: for<'a> IntoPyObject<'a> + Send + 'static,
{
    let event_loop = py.import("asyncio")?.call_method0("get_running_loop")?;
    let future = event_loop.call_method0("create_future")?;
    let (handle, deliveries) = running()?;
    let mut call = Box::pin(call);
    if let Poll::Ready(outcome) = poll_once(&handle, call.as_mut()) {
        settle(&future, outcome.and_then(|value| into_object(py, value)))?;
        return Ok(future);
    }
    let (to_loop, to_future) = (event_loop.unbind(), future.clone().unbind());
    let task = handle.spawn(async move {
        let outcome = call.await;
        let outcome: Outcome = Box::new(move |py| outcome.and_then(|value| into_object(py, value)));
        // Without a receiver the interpreter is exiting.
        let _ = deliveries.send(Some(Delivery { event_loop: to_loop, future: to_future, outcome })).await;
    });
    future.call_method1("add_done_callback", (Canceller(task.abort_handle()),))?;
    Ok(future)
}

/// The outcome of a call that need not wait; `None` when it must.
pub(crate) fn poll_now<F: Future + ?Sized>(call: std::pin::Pin<&mut F>) -> PyResult<Option<F::Output>> {
    let (handle, _) = running()?;
    match poll_once(&handle, call) {
        Poll::Ready(outcome) => Ok(Some(outcome)),
        Poll::Pending => Ok(None),
    }
}

/// Invariant 2: takes the call's place in line. Its waker is the next poll's.
fn poll_once<F: Future + ?Sized>(handle: &Handle, call: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    let _context = handle.enter();
    call.poll(&mut Context::from_waker(Waker::noop()))
}

fn into_object<T: for<'a> IntoPyObject<'a>>(py: Python<'_>, value: T) -> PyResult<Py<PyAny>> {
    value.into_py_any(py)
}

/// Drops the call of a future that was cancelled.
#[pyclass(frozen)]
struct Canceller(AbortHandle);

#[pymethods]
impl Canceller {
    fn __call__(&self, future: &Bound<'_, PyAny>) -> PyResult<()> {
        if future.call_method0("cancelled")?.is_truthy()? {
            self.0.abort();
        }
        Ok(())
    }
}

/// The delivery thread: takes the GIL once for all that is there, and wakes a loop once for its share.
fn deliver(mut deliveries: Receiver<Option<Delivery>>) {
    while let Some(Some(first)) = deliveries.blocking_recv() {
        let mut batch = vec![first];
        let mut is_ending = false;
        while let Ok(next) = deliveries.try_recv() {
            match next {
                Some(next) => batch.push(next),
                None => is_ending = true,
            }
        }
        // Without an interpreter no caller waits.
        Python::try_attach(|py| {
            let mut batch = batch.into_iter().peekable();
            while let Some(first) = batch.next() {
                let event_loop = first.event_loop.clone_ref(py);
                let mut share = vec![first];
                while let Some(next) = batch.next_if(|next| next.event_loop.is(&event_loop)) {
                    share.push(next);
                }
                // A loop that is closed has no callers that wait.
                let _ = hand_to_loop(py, &event_loop, share);
            }
        });
        if is_ending {
            return;
        }
    }
}

fn hand_to_loop(py: Python<'_>, event_loop: &Py<PyAny>, share: Vec<Delivery>) -> PyResult<()> {
    let settled = PyList::empty(py);
    for Delivery { future, outcome, .. } in share {
        let (is_value, object) = match outcome(py) {
            Ok(value) => (true, value),
            Err(error) => (false, error.into_value(py).into_any()),
        };
        settled.append((future, is_value, object))?;
    }
    let settle = wrap_pyfunction!(settle_all, py)?;
    event_loop.call_method1(py, "call_soon_threadsafe", (settle, settled))?;
    Ok(())
}

/// Runs on the event loop.
#[pyfunction]
fn settle_all(outcomes: &Bound<'_, PyList>) -> PyResult<()> {
    for outcome in outcomes {
        let outcome = outcome.cast_into::<PyTuple>()?;
        let future = outcome.get_item(0)?;
        // Cancelled meanwhile.
        if future.call_method0("done")?.is_truthy()? {
            continue;
        }
        let method = if outcome.get_item(1)?.is_truthy()? { "set_result" } else { "set_exception" };
        future.call_method1(method, (outcome.get_item(2)?,))?;
    }
    Ok(())
}

fn settle(future: &Bound<'_, PyAny>, outcome: PyResult<Py<PyAny>>) -> PyResult<()> {
    match outcome {
        Ok(value) => future.call_method1("set_result", (value,))?,
        Err(error) => future.call_method1("set_exception", (error.into_value(future.py()),))?,
    };
    Ok(())
}
