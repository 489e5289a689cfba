//! TLS and SASL to the metadata store. Files are read for each connection.

use std::path::PathBuf;

use bindery_client::metadata::{Password, PasswordSource, SaslLogin, Security, StoreFile, TlsOptions};
use pyo3::exceptions::{PyRuntimeWarning, PyValueError};
use pyo3::prelude::*;

/// The section of a JAAS file in which ZooKeeper's client looks for itself.
const SECTION: &str = "Client";

/// How the connection to the metadata store is protected.
#[pyclass(frozen, from_py_object, module = "bindery")]
#[derive(Clone)]
pub(crate) struct MetadataSecurity(Security);

#[pymethods]
impl MetadataSecurity {
    #[new]
    #[pyo3(signature = (*, trust=None, trust_password=None, identity=None, identity_password=None, check_names=true,
        user=None, password_file=None, jaas_file=None, jaas_section=None, restricted=false))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        trust: Option<PathBuf>,
        trust_password: Option<String>,
        identity: Option<PathBuf>,
        identity_password: Option<String>,
        check_names: bool,
        user: Option<String>,
        password_file: Option<PathBuf>,
        jaas_file: Option<PathBuf>,
        jaas_section: Option<String>,
        restricted: bool,
    ) -> PyResult<MetadataSecurity> {
        let wrong = |text: &str| Err(PyValueError::new_err(text.to_owned()));
        let mut security = Security::new().restricted(restricted);
        security.tls = match trust {
            Some(trust) => {
                let mut tls = TlsOptions::new(store("trust", trust, trust_password));
                if let Some(identity) = identity {
                    tls = tls.identity(store("identity", identity, identity_password));
                } else if identity_password.is_some() {
                    return wrong("identity_password is that of a store: give identity, too");
                }
                if !check_names {
                    tls = tls.skip_name_check();
                    let category = py.get_type::<PyRuntimeWarning>();
                    let said = c"the names in the certificates of metadata servers are not checked: anybody with a certificate of a \
                                 trusted authority can pass for one";
                    PyErr::warn(py, &category, said, 1)?;
                }
                Some(tls)
            }
            None if trust_password.is_some()
                || identity.is_some()
                || identity_password.is_some()
                || !check_names =>
            {
                return wrong(
                    "identity, check_names and passwords of stores are for TLS, which needs trust: the file with the authorities \
                     that sign the servers' certificates",
                );
            }
            None => None,
        };
        security.sasl = match (user, password_file, jaas_file) {
            (Some(name), Some(password_file), None) => Some(SaslLogin::User { name, password_file }),
            (None, None, Some(file)) => {
                let section = jaas_section.clone().unwrap_or_else(|| SECTION.to_owned());
                // A caller that names the file wants to log in.
                Some(SaslLogin::Jaas { file, section, is_needed: true })
            }
            (None, None, None) => None,
            (_, _, Some(_)) => return wrong("give user and password_file, or jaas_file, not both"),
            (_, _, None) => return wrong("user and password_file go together: give both"),
        };
        if jaas_section.is_some() && !matches!(security.sasl, Some(SaslLogin::Jaas { .. })) {
            return wrong("jaas_section is a section of a file: give jaas_file, too");
        }
        if restricted && !security.may_have_identity() {
            return wrong(
                "restricted nodes need an identity that they belong to: give user and password_file, jaas_file, or trust and identity",
            );
        }
        Ok(MetadataSecurity(security))
    }
}

impl MetadataSecurity {
    /// For the client.
    pub(crate) fn security(&self) -> Security {
        self.0.clone()
    }
}

fn store(setting: &'static str, path: PathBuf, password: Option<String>) -> StoreFile {
    let mut store = StoreFile::new(setting, path);
    store.password = password.map(|password| PasswordSource::Given(Password::new(password)));
    store
}
