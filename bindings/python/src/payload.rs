//! Payloads to be appended: any object with the buffer protocol (`bytes`, `bytearray`, `memoryview`, arrays of numpy), read where it lies.
//!
//! # Invariants
//! 1. Bytes that may change are read while the GIL is held, in the call that was given them. An entry that has to wait for room
//!    waits as a copy of them. `bytes` never change, and are never copied before they are an entry.

use bindery_client::{AppendError, EntryId, TryAppendError};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::errors::Raise;

/// The object that was given.
pub(crate) enum Payload {
    Bytes(PyBackedBytes),
    /// C-contiguous, and perhaps to be changed by its owner.
    Buffer(PyUntypedBuffer),
}

/// Bytes that nobody changes.
pub(crate) enum Owned {
    Bytes(PyBackedBytes),
    Copy(Vec<u8>),
}

impl FromPyObject<'_, '_> for Payload {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Payload> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Payload::Bytes(bytes.to_owned().into()));
        }
        // A `TypeError` that names the object's type.
        let buffer = PyUntypedBuffer::get(&object)?;
        match buffer.is_c_contiguous() {
            true => Ok(Payload::Buffer(buffer)),
            false => Err(PyBufferError::new_err(
                "the payload does not lie in one piece: give a contiguous buffer, or bytes(payload)",
            )),
        }
    }
}

impl Payload {
    /// Reads it in place.
    #[allow(unsafe_code, reason = "a view of memory that Python lends")]
    fn read<T>(&self, _py: Python<'_>, read: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Payload::Bytes(bytes) => read(bytes),
            Payload::Buffer(buffer) if buffer.len_bytes() == 0 => read(&[]),
            Payload::Buffer(buffer) => {
                // SAFETY: the buffer is C-contiguous, so all of its bytes lie behind the pointer, where its owner leaves them
                // until it is released. The GIL is held until `read` returns, and `read` runs no Python code (it may not: it
                // has no token), so nothing that keeps to Python's rules changes them meanwhile.
                let bytes =
                    unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) };
                read(bytes)
            }
        }
    }

    fn into_owned(self, py: Python<'_>) -> Owned {
        match self {
            Payload::Bytes(bytes) => Owned::Bytes(bytes),
            buffer => Owned::Copy(buffer.read(py, <[u8]>::to_vec)),
        }
    }

    /// Has it enqueued if there is room at once, else keeps it for as long as that takes. To be called before anything is
    /// awaited: where the GIL is held (invariant 1).
    pub fn send<T>(
        self,
        try_send: impl FnOnce(&[u8]) -> Result<T, TryAppendError>,
    ) -> PyResult<Result<T, Owned>> {
        Python::attach(|py| match self.read(py, try_send) {
            Ok(sent) => Ok(Ok(sent)),
            Err(TryAppendError::NoRoom { .. }) => Ok(Err(self.into_owned(py))),
            Err(error) => Err(error.raise()),
        })
    }

    /// The same, without waiting.
    pub fn send_now(
        self,
        try_send: impl FnOnce(&[u8]) -> Result<EntryId, TryAppendError>,
    ) -> PyResult<EntryId> {
        Python::attach(|py| self.read(py, try_send).map_err(Raise::raise))
    }
}

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        match self {
            Owned::Bytes(bytes) => bytes,
            Owned::Copy(bytes) => bytes,
        }
    }
}

/// The id of an entry that was appended.
pub(crate) fn id_of(appended: Result<EntryId, AppendError>) -> PyResult<i64> {
    appended.map(EntryId::get).map_err(Raise::raise)
}
