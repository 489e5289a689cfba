//! Payloads to be appended: any object with the buffer protocol (`bytes`, `bytearray`, `memoryview`, arrays of numpy).
//!
//! # Invariants
//! 1. Bytes that may change are copied once, in the call that was given them, and only the copy is read: its digest is that of what is
//!    stored, whatever others write into the buffer meanwhile (`readinto` of another thread, a mapping that processes share). `bytes`
//!    never change, and are never copied before they are an entry.

use bindery_client::{AppendError, EntryId, TryAppendError};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::errors::Raise;

/// Bytes that do not change.
pub(crate) enum Payload {
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
            true => Ok(Payload::Copy(copy(&buffer))),
            false => Err(PyBufferError::new_err(
                "the payload does not lie in one piece: give a contiguous buffer, or bytes(payload)",
            )),
        }
    }
}

/// The bytes of a contiguous buffer. Of one that is written meanwhile it is a mixture of before and after, as any reader's.
#[allow(unsafe_code, reason = "copies out of memory that Python lends")]
fn copy(buffer: &PyUntypedBuffer) -> Vec<u8> {
    let size_bytes = buffer.len_bytes();
    let mut copy = Vec::with_capacity(size_bytes);
    if size_bytes > 0 {
        // SAFETY: the buffer is C-contiguous, so `size_bytes` bytes lie behind the pointer, where its owner leaves them until it is
        // released. No reference to them is made, because others may write there. The copy has that capacity, and lies elsewhere.
        unsafe {
            std::ptr::copy_nonoverlapping(buffer.buf_ptr().cast::<u8>(), copy.as_mut_ptr(), size_bytes);
            copy.set_len(size_bytes);
        }
    }
    copy
}

impl Payload {
    /// Has it enqueued if there is room at once, else gives it back, to wait for room.
    pub fn send<T>(
        self,
        try_send: impl FnOnce(&[u8]) -> Result<T, TryAppendError>,
    ) -> PyResult<Result<T, Payload>> {
        match try_send(self.as_ref()) {
            Ok(sent) => Ok(Ok(sent)),
            Err(TryAppendError::NoRoom { .. }) => Ok(Err(self)),
            Err(error) => Err(error.raise()),
        }
    }

    /// The same, without waiting.
    pub fn send_now(
        &self,
        try_send: impl FnOnce(&[u8]) -> Result<EntryId, TryAppendError>,
    ) -> PyResult<EntryId> {
        try_send(self.as_ref()).map_err(Raise::raise)
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        match self {
            Payload::Bytes(bytes) => bytes,
            Payload::Copy(bytes) => bytes,
        }
    }
}

/// The id of an entry that was appended.
pub(crate) fn id_of(appended: Result<EntryId, AppendError>) -> PyResult<i64> {
    appended.map(EntryId::get).map_err(Raise::raise)
}
