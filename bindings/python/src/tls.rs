//! TLS to bookies, of PEM files. They are read when the object is made, so that a wrong file is an exception there, and by the client,
//! which takes changed files for its new connections.

use std::io;
use std::path::PathBuf;

use bindery_client::{TlsError, TlsOptions, tls};
use pyo3::exceptions::{PyRuntimeWarning, PyValueError};
use pyo3::prelude::*;

/// TLS for a client's connections to bookies.
#[pyclass(frozen, from_py_object, module = "bindery")]
#[derive(Clone)]
pub(crate) struct Tls(TlsOptions);

#[pymethods]
impl Tls {
    #[new]
    #[pyo3(signature = (trust=None, *, certificate=None, key=None, check_names=true))]
    fn new(
        py: Python<'_>,
        trust: Option<PathBuf>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        check_names: bool,
    ) -> PyResult<Tls> {
        let mut options = TlsOptions::new();
        if let Some(trust) = trust {
            options = options.authority(trust);
        }
        options = match (certificate, key) {
            (None, None) => options,
            (Some(certificate), Some(key)) => options.identity(certificate, key),
            (Some(_), None) => return Err(PyValueError::new_err("a certificate needs its key: give both")),
            (None, Some(_)) => return Err(PyValueError::new_err("a key needs its certificate: give both")),
        };
        if !check_names {
            options = options.skip_name_check();
            // The client logs this, and Python shows no log of it.
            let category = py.get_type::<PyRuntimeWarning>();
            let said = c"the names in bookies' certificates are not checked: anybody with a certificate of a trusted authority can \
                         pass for any bookie";
            PyErr::warn(py, &category, said, 1)?;
        }
        let opened = py.detach(|| tls::Tls::open(options.clone()));
        opened.map_err(|error| not_usable(&error))?;
        Ok(Tls(options))
    }
}

impl Tls {
    /// For the client.
    pub(crate) fn options(&self) -> TlsOptions {
        self.0.clone()
    }
}

/// A file that cannot be read is an `OSError`, whose subclass its kind decides; others are a `ValueError`.
fn not_usable(error: &TlsError) -> PyErr {
    match error {
        TlsError::Unreadable { kind, .. } => io::Error::new(*kind, error.to_string()).into(),
        _ => PyValueError::new_err(error.to_string()),
    }
}
