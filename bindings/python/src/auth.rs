//! Authentication to bookies by a Python generator: it yields what is sent, is sent what the bookie answers, and ends when
//! it is through.

use std::sync::Arc;

use bindery_client::{Authenticator, BookieAddress, Exchange, Turn};
use pyo3::exceptions::{PyStopIteration, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

/// A plugin's name, and the generator function that is called for each connection.
#[derive(Clone)]
pub(crate) struct Authentication {
    plugin_name: String,
    authenticate: Arc<Py<PyAny>>,
}

impl Authentication {
    /// Of the arguments of `Client`, which go together.
    pub(crate) fn of(
        plugin_name: Option<String>,
        authenticate: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Option<Authentication>> {
        match (plugin_name, authenticate) {
            (None, None) => Ok(None),
            (Some(_), Some(authenticate)) if !authenticate.is_callable() => {
                Err(PyTypeError::new_err("authenticate must be a generator function"))
            }
            (Some(plugin_name), Some(authenticate)) => {
                Ok(Some(Authentication { plugin_name, authenticate: Arc::new(authenticate.unbind()) }))
            }
            (_, _) => Err(PyValueError::new_err(
                "auth_plugin (the name that the bookies know) and authenticate go together: give both",
            )),
        }
    }
}

impl Authenticator for Authentication {
    fn plugin_name(&self) -> &str {
        &self.plugin_name
    }

    fn begin(&self, to: &BookieAddress) -> Box<dyn Exchange> {
        Box::new(Conversation { of: self.clone(), to: to.clone(), generator: None })
    }
}

/// One connection's generator, once it was begun.
struct Conversation {
    of: Authentication,
    to: BookieAddress,
    generator: Option<Py<PyAny>>,
}

impl Exchange for Conversation {
    fn next(&mut self, received: Option<&[u8]>) -> Result<Turn, String> {
        // Another thread takes this one's place in the runtime while it waits for the GIL and runs Python code.
        let turn = tokio::task::block_in_place(|| {
            Python::try_attach(|py| self.turn(py, received).map_err(|error| error.to_string()))
        });
        turn.unwrap_or_else(|| Err("the interpreter is exiting".into()))
    }
}

impl Conversation {
    fn turn(&mut self, py: Python<'_>, received: Option<&[u8]>) -> PyResult<Turn> {
        let step = match (&self.generator, received) {
            (Some(generator), Some(received)) => {
                generator.bind(py).call_method1("send", (PyBytes::new(py, received),))
            }
            (_, _) => {
                let BookieAddress { bookie, host, port } = &self.to;
                let made = self.of.authenticate.bind(py).call1((bookie.as_str(), host, *port))?;
                if !(made.hasattr("send")? && made.hasattr("__next__")?) {
                    return Err(PyTypeError::new_err(format!(
                        "authenticate must be a generator function, and returned {}",
                        made.get_type().name()?
                    )));
                }
                let step = made.call_method0("__next__");
                self.generator = Some(made.unbind());
                step
            }
        };
        match step {
            Ok(sent) => Ok(Turn::Send(bytes(&sent, "yield")?)),
            Err(error) if error.is_instance_of::<PyStopIteration>(py) => {
                let last = error.value(py).getattr("value")?;
                match last.is_none() {
                    true => Ok(Turn::Done),
                    false => Ok(Turn::SendLast(bytes(&last, "return")?)),
                }
            }
            Err(error) => Err(error),
        }
    }
}

fn bytes(value: &Bound<'_, PyAny>, how: &str) -> PyResult<Vec<u8>> {
    let bytes: PyBackedBytes = value.extract().map_err(|_| {
        let of = value.get_type();
        PyTypeError::new_err(format!("authenticate must {how} bytes, not {of}"))
    })?;
    Ok(bytes.to_vec())
}
