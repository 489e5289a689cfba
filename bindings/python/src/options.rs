//! Options from Python callers, checked, as `bindery_client` takes them.

use std::collections::BTreeMap;
use std::time::Duration;

use bindery_client::{
    CreateOptions, Credentials, DigestType, EntryId, LedgerId, Mechanism, OpenMode, QuorumSizes, Secret,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

/// Those that are `None` are filled in as far as there are bookies.
pub(crate) fn sizes(
    ensemble: Option<usize>,
    write_quorum: Option<usize>,
    ack_quorum: Option<usize>,
) -> QuorumSizes {
    QuorumSizes { ensemble, write_quorum, ack_quorum }
}

pub(crate) fn create_options(
    sizes: QuorumSizes,
    digest: &str,
    password: Option<PyBackedBytes>,
    custom: Option<BTreeMap<String, Vec<u8>>>,
) -> PyResult<CreateOptions> {
    // Wrong however many bookies there are: no need to ask.
    sizes.fill(0).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let digest =
        DigestType::ALL.into_iter().find(|known| digest_word(*known) == digest).ok_or_else(|| {
            PyValueError::new_err(format!("no digest {digest:?}: choose crc32c, crc32, mac or dummy"))
        })?;
    let mut options = CreateOptions::new(sizes).digest(digest);
    if let Some(password) = password {
        options = options.password(&password[..]);
    }
    options.custom = custom.unwrap_or_default();
    Ok(options)
}

/// The user that a client proves to be, if it is somebody.
pub(crate) fn credentials(
    user: Option<String>,
    password: Option<String>,
    mechanism: &str,
) -> PyResult<Option<Credentials>> {
    let mechanism = match mechanism {
        "digest-md5" => Mechanism::DigestMd5,
        "plain" => Mechanism::Plain,
        other => {
            let text = format!("no mechanism {other:?}: choose digest-md5 or plain");
            return Err(PyValueError::new_err(text));
        }
    };
    match (user, password) {
        (None, None) => Ok(None),
        (Some(user), Some(password)) => Ok(Some(Credentials::new(user, Secret::new(password), mechanism))),
        (_, _) => Err(PyValueError::new_err("user and password go together: give both")),
    }
}

/// Python's name for a digest.
pub(crate) fn digest_word(digest: DigestType) -> &'static str {
    match digest {
        DigestType::Crc32 => "crc32",
        DigestType::Crc32c => "crc32c",
        DigestType::Hmac => "mac",
        DigestType::Dummy => "dummy",
    }
}

pub(crate) fn password_or_none(py: Python<'_>, password: Option<PyBackedBytes>) -> PyBackedBytes {
    password.unwrap_or_else(|| pyo3::types::PyBytes::new(py, b"").into())
}

pub(crate) fn mode(recover: bool) -> OpenMode {
    if recover { OpenMode::Recover } else { OpenMode::ReadOnly }
}

pub(crate) fn ledger_id(raw: i64) -> PyResult<LedgerId> {
    LedgerId::new(raw)
        .ok_or_else(|| PyValueError::new_err(format!("{raw} is no ledger id: they begin with 0")))
}

pub(crate) fn entry_id(raw: i64) -> PyResult<EntryId> {
    EntryId::new(raw).ok_or_else(|| PyValueError::new_err(format!("{raw} is no entry id: they begin with 0")))
}

pub(crate) fn seconds(name: &str, value: Option<f64>) -> PyResult<Option<Duration>> {
    let convert = |value| {
        Duration::try_from_secs_f64(value)
            .map_err(|error| PyValueError::new_err(format!("{name}: {value} s: {error}")))
    };
    value.map(convert).transpose()
}
