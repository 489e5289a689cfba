//! Iterators, for `for` and `async for`.
//!
//! # Data flow
//! ```text
//! __next__:   Source.next, waited for without the GIL
//! __anext__:  Step.  await -> take what is ahead -> value
//!                          -> or a future: when it is done the Source has the next item ahead, and the step takes it
//! ```
//! # Invariants
//! 1. An item leaves its source at the moment when the caller gets it, whatever is cancelled before: a task, a wait
//!    with a time limit, a future. An item that was fetched ahead then goes to the next step.
//! 2. Steps of several threads and tasks take turns.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyStopAsyncIteration, PyStopIteration};
use pyo3::prelude::*;

use crate::runtime::{poll_now, start, wait};

/// Where items come from.
pub(crate) trait Items: Send + 'static {
    type Item: for<'py> IntoPyObject<'py> + Send + 'static;

    /// The next item, `None` at the end. Cancel safe.
    fn next(&mut self) -> impl Future<Output = PyResult<Option<Self::Item>>> + Send;
}

/// Items, and the outcome of the next one if it was fetched ahead.
pub(crate) struct Source<I: Items>(Arc<tokio::sync::Mutex<State<I>>>);

struct State<I: Items> {
    items: I,
    ahead: Option<PyResult<Option<I::Item>>>,
}

impl<I: Items> Clone for Source<I> {
    fn clone(&self) -> Source<I> {
        Source(self.0.clone())
    }
}

impl<I: Items> Source<I> {
    pub fn new(items: I) -> Source<I> {
        Source(Arc::new(tokio::sync::Mutex::new(State { items, ahead: None })))
    }

    /// `__next__`.
    pub fn next(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let next = async {
            let state = &mut *self.0.lock().await;
            match state.ahead.take() {
                Some(ahead) => ahead,
                None => state.items.next().await,
            }
        };
        wait(py, next)?.map(|item| item.into_py_any(py)).transpose()
    }

    /// `__anext__`.
    pub fn step(&self) -> Step {
        Step { source: Box::new(self.clone()), waiting: Mutex::new(None) }
    }
}

/// A source of whatever items.
trait AnySource: Send + Sync {
    /// Has the next item ahead.
    fn look(&self) -> Pin<Box<dyn Future<Output = PyResult<()>> + Send>>;

    /// The item fetched ahead, if any, as Python has it.
    fn take(&self, py: Python<'_>) -> Option<PyResult<Option<Py<PyAny>>>>;
}

impl<I: Items> AnySource for Source<I> {
    fn look(&self) -> Pin<Box<dyn Future<Output = PyResult<()>> + Send>> {
        let source = self.clone();
        Box::pin(async move {
            let state = &mut *source.0.lock().await;
            if state.ahead.is_none() {
                state.ahead = Some(state.items.next().await);
            }
            Ok(())
        })
    }

    fn take(&self, py: Python<'_>) -> Option<PyResult<Option<Py<PyAny>>>> {
        // Another step has the turn: this one waits for it as for an item.
        let ahead = self.0.try_lock().ok()?.ahead.take()?;
        Some(ahead.and_then(|item| item.map(|item| item.into_py_any(py)).transpose()))
    }
}

/// One step of an `async for`: begins when it is awaited.
#[pyclass(frozen, module = "bindery")]
pub(crate) struct Step {
    source: Box<dyn AnySource>,
    /// The future that it waits for, and the iterator of its `__await__`.
    waiting: Mutex<Option<(Py<PyAny>, Py<PyAny>)>>,
}

impl Step {
    fn set(&self, waiting: Option<(Py<PyAny>, Py<PyAny>)>) -> Option<(Py<PyAny>, Py<PyAny>)> {
        std::mem::replace(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner), waiting)
    }
}

#[pymethods]
impl Step {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Gives the event loop a future to wait for, or ends with `StopIteration(item)`.
    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        loop {
            if let Some((future, iterator)) = self.set(None) {
                match iterator.call_method0(py, "__next__") {
                    Ok(yielded) => {
                        self.set(Some((future, iterator)));
                        return Ok(yielded);
                    }
                    Err(done) if done.is_instance_of::<PyStopIteration>(py) => {}
                    Err(error) => return Err(error),
                }
            }
            match self.source.take(py) {
                Some(Ok(Some(item))) => return Err(PyStopIteration::new_err((item,))),
                Some(Ok(None)) => return Err(PyStopAsyncIteration::new_err(())),
                Some(Err(error)) => return Err(error),
                None => {}
            }
            let mut look = self.source.look();
            if let Some(looked) = poll_now(look.as_mut())? {
                looked?;
                continue;
            }
            let future = start(py, look)?;
            let iterator = future.call_method0("__await__")?;
            self.set(Some((future.unbind(), iterator.unbind())));
        }
    }

    fn send(&self, py: Python<'_>, _value: Py<PyAny>) -> PyResult<Py<PyAny>> {
        self.__next__(py)
    }

    #[pyo3(signature = (kind, value=None, _traceback=None))]
    fn throw(
        &self,
        py: Python<'_>,
        kind: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.close(py)?;
        Err(match value {
            Some(value) if kind.is_instance_of::<pyo3::types::PyType>() => {
                let is_made = value.is_instance(&kind)?;
                PyErr::from_value(if is_made { value } else { kind.call1((value,))? })
            }
            _ => PyErr::from_value(kind),
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if let Some((future, _)) = self.set(None) {
            // Nothing if it is done.
            future.call_method0(py, "cancel")?;
        }
        Ok(())
    }
}
