//! The exceptions: one class for each thing that a program would decide by. The messages are `bindery_client`'s.

use bindery_client::{
    AppendError, AppendOpenError, CloseError, ConnectError, CreateError, ForceError, LedgerError, OpenError,
    ReadError, RecoveryError, Stopped, StoreError, TakeOverError, TryAppendError, WhyStopped,
};
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    bindery,
    BinderyError,
    PyException,
    "Whatever goes wrong with the cluster. All others derive from it."
);
create_exception!(bindery, NotFoundError, BinderyError, "There is no such ledger, or it was deleted.");
create_exception!(
    bindery,
    WrongPasswordError,
    BinderyError,
    "The password is not the ledger's, or a bookie wants TLS, a certificate or a user that the client has not."
);
create_exception!(bindery, ClosedError, BinderyError, "The client or writer was closed by this program.");
create_exception!(
    bindery,
    FencedError,
    BinderyError,
    "Another client closed or recovers the ledger: write on in a new one."
);
create_exception!(
    bindery,
    NotEnoughBookiesError,
    BinderyError,
    "Too few bookies for the ensemble or the ack quorum."
);
create_exception!(bindery, TooLargeError, BinderyError, "The entry is too large. The writer lives on.");
create_exception!(
    bindery,
    NoRoomError,
    BinderyError,
    "There is no room for the entry at once: try again later, or wait with enqueue. The writer lives on."
);
create_exception!(
    bindery,
    NotForcedError,
    BinderyError,
    "Not all bookies of the ensemble have synced, so nothing more is confirmed."
);
create_exception!(bindery, BusyError, BinderyError, "Another writer has the ledger, or died having it.");
create_exception!(
    bindery,
    NoEntryError,
    BinderyError,
    "The entry is behind the ledger's end, or on none of its bookies."
);
create_exception!(
    bindery,
    UnavailableError,
    BinderyError,
    "Bookies or the metadata store could not be asked: try again when they are back."
);

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("BinderyError", py.get_type::<BinderyError>())?;
    module.add("NotFoundError", py.get_type::<NotFoundError>())?;
    module.add("WrongPasswordError", py.get_type::<WrongPasswordError>())?;
    module.add("ClosedError", py.get_type::<ClosedError>())?;
    module.add("FencedError", py.get_type::<FencedError>())?;
    module.add("NotEnoughBookiesError", py.get_type::<NotEnoughBookiesError>())?;
    module.add("TooLargeError", py.get_type::<TooLargeError>())?;
    module.add("NoRoomError", py.get_type::<NoRoomError>())?;
    module.add("NotForcedError", py.get_type::<NotForcedError>())?;
    module.add("BusyError", py.get_type::<BusyError>())?;
    module.add("NoEntryError", py.get_type::<NoEntryError>())?;
    module.add("UnavailableError", py.get_type::<UnavailableError>())
}

/// An error of the client as an exception.
pub(crate) trait Raise: std::fmt::Display + Sized {
    /// Makes the exception of this message.
    fn class(&self) -> fn(String) -> PyErr;

    fn raise(self) -> PyErr {
        self.class()(self.to_string())
    }
}

fn of<E: pyo3::PyTypeInfo>(message: String) -> PyErr {
    PyErr::new::<E, _>(message)
}

/// Why a list is not to be had.
pub(crate) fn not_listed(what: &str, error: &StoreError) -> PyErr {
    error.class()(format!("cannot list the {what}: {error}"))
}

impl Raise for StoreError {
    fn class(&self) -> fn(String) -> PyErr {
        match self {
            StoreError::Closed => of::<ClosedError>,
            _ => of::<UnavailableError>,
        }
    }
}

impl Raise for ConnectError {
    fn class(&self) -> fn(String) -> PyErr {
        match self {
            ConnectError::Tls(_) | ConnectError::NeedsTls => of::<pyo3::exceptions::PyValueError>,
            // `NoMetadata`, `Cluster`.
            _ => of::<UnavailableError>,
        }
    }
}

impl Raise for LedgerError {
    fn class(&self) -> fn(String) -> PyErr {
        match self {
            LedgerError::NotFound(_) => of::<NotFoundError>,
            LedgerError::Store(error) => error.class(),
            // `Exists`, `Changed`, `Malformed`.
            _ => of::<BinderyError>,
        }
    }
}

impl Raise for CreateError {
    fn class(&self) -> fn(String) -> PyErr {
        match self {
            CreateError::NotEnoughBookies(_) | CreateError::CannotSpread { .. } => {
                of::<NotEnoughBookiesError>
            }
            CreateError::Sizes(_)
            | CreateError::WriteQuorumTooLarge { .. }
            | CreateError::DeferredSyncHandedOver
            | CreateError::ReservedProperty(_) => of::<pyo3::exceptions::PyValueError>,
            CreateError::Metadata(error) => error.class(),
            CreateError::Store(error) => error.class(),
            CreateError::Id(_) => of::<UnavailableError>,
            CreateError::ClientClosed => of::<ClosedError>,
            _ => of::<BinderyError>,
        }
    }
}

impl Raise for Stopped {
    fn class(&self) -> fn(String) -> PyErr {
        match &self.why {
            WhyStopped::Fenced | WhyStopped::Closed => of::<FencedError>,
            WhyStopped::Deleted => of::<NotFoundError>,
            WhyStopped::NotEnoughBookies(_) => of::<NotEnoughBookiesError>,
            WhyStopped::Unauthorized { .. } => of::<WrongPasswordError>,
            WhyStopped::TooManyChanges { .. } | WhyStopped::DeferredSync(_) => of::<UnavailableError>,
            WhyStopped::Metadata(error) => error.class(),
            WhyStopped::Closing | WhyStopped::ClientClosed => of::<ClosedError>,
            // Also `MetadataChanged` and `Full`.
            _ => of::<BinderyError>,
        }
    }
}

impl Raise for AppendError {
    fn class(&self) -> fn(String) -> PyErr {
        match self {
            AppendError::TooLarge { .. } => of::<TooLargeError>,
            AppendError::Stopped(stopped) => stopped.class(),
            _ => of::<BinderyError>,
        }
    }
}

impl Raise for TryAppendError {
    fn class(&self) -> fn(String) -> PyErr {
        match self {
            TryAppendError::NoRoom { .. } => of::<NoRoomError>,
            TryAppendError::Append(error) => error.class(),
            _ => of::<BinderyError>,
        }
    }
}

impl Raise for ForceError {
    fn class(&self) -> fn(String) -> PyErr {
        match self {
            // Apart from `UnavailableError`, which may be the end of the writer: this may be forced again.
            ForceError::Bookies { .. } => of::<NotForcedError>,
            ForceError::Stopped(stopped) => stopped.class(),
            _ => of::<BinderyError>,
        }
    }
}

impl Raise for CloseError {
    fn class(&self) -> fn(String) -> PyErr {
        match self {
            CloseError::Stopped(stopped) | CloseError::GivenBack(stopped) => stopped.class(),
            CloseError::ClosedElsewhere { .. } => of::<FencedError>,
            CloseError::NotForced { error, .. } => error.class(),
            _ => of::<BinderyError>,
        }
    }
}

impl Raise for OpenError {
    fn class(&self) -> fn(String) -> PyErr {
        match self {
            OpenError::NotFound(_) => of::<NotFoundError>,
            OpenError::WrongPassword(_) => of::<WrongPasswordError>,
            OpenError::Recovery(error) => match error {
                RecoveryError::Unauthorized { .. } => of::<WrongPasswordError>,
                RecoveryError::NotCovered { .. } | RecoveryError::EntryUnknown { .. } => {
                    of::<UnavailableError>
                }
                RecoveryError::NotEnoughBookies { .. } => of::<NotEnoughBookiesError>,
                RecoveryError::Metadata(error) => error.class(),
                // `WriteQuorumTooLarge`, `MetadataChanging`.
                _ => of::<BinderyError>,
            },
            OpenError::Lac(error) => error.class(),
            OpenError::Metadata(error) => error.class(),
            OpenError::ClientClosed => of::<ClosedError>,
            _ => of::<BinderyError>,
        }
    }
}

impl Raise for AppendOpenError {
    fn class(&self) -> fn(String) -> PyErr {
        match self {
            AppendOpenError::NotFound(_) => of::<NotFoundError>,
            AppendOpenError::WrongPassword(_) => of::<WrongPasswordError>,
            AppendOpenError::Closed { .. }
            | AppendOpenError::Continued { .. }
            | AppendOpenError::InRecovery(_) => of::<FencedError>,
            AppendOpenError::Busy(_) => of::<BusyError>,
            AppendOpenError::Metadata(error) => error.class(),
            AppendOpenError::ClientClosed => of::<ClosedError>,
            // `NotHandedOver` and `UnknownHandover`: nothing to wait for, and nothing that another call would mend.
            _ => of::<BinderyError>,
        }
    }

    /// The message names the command that closes a ledger; here there is a call for it.
    fn raise(self) -> PyErr {
        let text = match &self {
            AppendOpenError::Busy(ledger) => format!(
                "{self} (in Python: client.take_over({ledger}), or client.open({ledger}, recover=True), which closes it)"
            ),
            AppendOpenError::NotHandedOver(ledger) => {
                format!("{self} (in Python: client.open({ledger}, recover=True))")
            }
            _ => self.to_string(),
        };
        self.class()(text)
    }
}

impl Raise for TakeOverError {
    fn class(&self) -> fn(String) -> PyErr {
        match self {
            TakeOverError::Open(error) => error.class(),
            TakeOverError::Create(error) => error.class(),
            TakeOverError::Recovery { error, .. } => error.class(),
            _ => of::<BinderyError>,
        }
    }
}

impl Raise for ReadError {
    fn class(&self) -> fn(String) -> PyErr {
        match self {
            ReadError::BeyondEnd { .. } | ReadError::NoEntry { .. } => of::<NoEntryError>,
            ReadError::Unavailable { .. } | ReadError::LacUnknown { .. } => of::<UnavailableError>,
            ReadError::Deleted(_) => of::<NotFoundError>,
            ReadError::Metadata(error) => error.class(),
            ReadError::ClientClosed => of::<ClosedError>,
            _ => of::<BinderyError>,
        }
    }
}
