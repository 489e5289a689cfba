//! TLS to bookies, of PEM files: what a connection needs is read when the object is made, so that a wrong file is an
//! exception there.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bindery_client::{BookieAddress, ByteStream, Connecting, Connector};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// TLS for a client's connections to bookies.
#[pyclass(frozen, from_py_object, module = "bindery")]
#[derive(Clone)]
pub(crate) struct Tls(TlsConnector);

#[pymethods]
impl Tls {
    #[new]
    #[pyo3(signature = (trust, *, certificate=None, key=None))]
    fn new(trust: PathBuf, certificate: Option<PathBuf>, key: Option<PathBuf>) -> PyResult<Tls> {
        let mut roots = RootCertStore::empty();
        for root in certificates(&trust)? {
            roots.add(root).map_err(|error| not_usable(&trust, "certificate", &error))?;
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = match (certificate, key) {
            (None, None) => config.with_no_client_auth(),
            (Some(certificate), Some(key)) => config
                .with_client_auth_cert(certificates(&certificate)?, private_key(&key)?)
                .map_err(|error| not_usable(&key, "key of that certificate", &error))?,
            (Some(_), None) => return Err(PyValueError::new_err("a certificate needs its key: give both")),
            (None, Some(_)) => return Err(PyValueError::new_err("a key needs its certificate: give both")),
        };
        Ok(Tls(TlsConnector::from(Arc::new(config))))
    }
}

fn not_usable(path: &Path, what: &str, error: &dyn std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("{} is no usable {what}: {error}", path.display()))
}

/// `between`: what the file should have had.
fn not_read(path: &Path, between: &str, error: PemError) -> PyErr {
    let path_shown = path.display();
    match error {
        // The kind decides which subclass of OSError it becomes.
        PemError::Io(error) => io::Error::new(error.kind(), format!("{path_shown}: {error}")).into(),
        PemError::NoItemsFound => PyValueError::new_err(format!(
            "{path_shown} has no {between}: PEM files have it between BEGIN {between} and END {between}, without a password"
        )),
        error => not_usable(path, "PEM file", &error),
    }
}

fn certificates(path: &Path) -> PyResult<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, PemError>>);
    match all {
        Ok(all) if all.is_empty() => Err(PemError::NoItemsFound),
        all => all,
    }
    .map_err(|error| not_read(path, "CERTIFICATE", error))
}

fn private_key(path: &Path) -> PyResult<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| not_read(path, "PRIVATE KEY", error))
}

impl Connector for Tls {
    fn starts_tls(&self) -> bool {
        true
    }

    fn upgrade<'a>(&'a self, stream: ByteStream, to: &'a BookieAddress) -> Connecting<'a> {
        Box::pin(async move {
            let ByteStream::Tcp(socket) = stream else {
                return Err(io::Error::other("connections are made by TCP"));
            };
            // A name, or an IP address.
            let name = ServerName::try_from(to.host.clone()).map_err(io::Error::other)?;
            Ok(ByteStream::boxed(self.0.connect(name, socket).await?))
        })
    }
}
