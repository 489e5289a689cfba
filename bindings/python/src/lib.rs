//! The ledger client of `bindery_client` for Python: blocking methods, and the same ones for asyncio.
//!
//! # Data flow
//! ```text
//! Python thread --> Client, LedgerWriter, LedgerReader --> a future of bindery_client
//!                        |  name()        runtime::wait:  polled once, then awaited without the GIL
//!                        |  name_async()  runtime::start: polled once, then a task; its outcome goes
//!                        |                through the delivery thread to loop.call_soon_threadsafe
//! ```
//! # Invariants
//! 1. The GIL (global interpreter lock) is released while a call waits; no runtime thread waits for the GIL, except for
//!    authentication written in Python, for which another thread takes its place in the runtime (`auth`).
//! 2. Entries get their ids in the order of the calls, asyncio included: a call is polled once before it returns.
//! 3. Every call ends, with a value or an exception of the module; a cancelled one is dropped, and the client's calls
//!    say what that means; a cancelled step of an iterator takes nothing (`iterate`). Ctrl-C is seen within 0.1 s.
//! 4. Memory of Python objects is read where the GIL is held (`payload`). Entries lend the memory of their payloads.
//! 5. One runtime for each process, made when first needed and ended at interpreter exit. After a fork, objects of the
//!    parent refuse.
//!
//! # Limits   what `bindery_client` bounds; outcomes on their way to event
//! loops: 1024, then tasks wait
//!
//! # Not here   placement by a policy of the program's own, connections by anything but TCP, the look at every copy (`verify`), figures of a client's reads as a
//! whole; reference documentation for Python users stands in `bindery.pyi`

use pyo3::prelude::*;

mod auth;
mod client;
mod errors;
mod health;
mod info;
mod iterate;
mod listing;
mod metadata_security;
mod options;
mod payload;
mod placement;
mod reader;
mod runtime;
mod shared;
mod tls;
mod writer;

/// The ledger client of Bindery and Apache BookKeeper bookies.
///
/// Each method that waits is there twice: `name` blocks, with the GIL released, and `name_async` returns an
/// asyncio future. Types and meanings: the stub file, `bindery.pyi`.
#[pymodule(gil_used = true)]
fn bindery(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<client::Client>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<tls::Tls>()?;
    module.add_class::<metadata_security::MetadataSecurity>()?;
    module.add_class::<placement::RackAware>()?;
    module.add_class::<placement::RegionAware>()?;
    module.add_class::<placement::DiskWeights>()?;
    module.add_class::<writer::LedgerWriter>()?;
    module.add_class::<reader::LedgerReader>()?;
    module.add_class::<reader::EntryIterator>()?;
    module.add_class::<reader::Entry>()?;
    module.add_class::<info::LedgerInfo>()?;
    module.add_class::<info::BookieInfo>()?;
    module.add_class::<listing::LedgerIterator>()?;
    module.add_class::<health::BookieHealth>()?;
    module.add_class::<health::WriteHealth>()?;
    module.add_class::<health::Latencies>()?;
    errors::add_to(module)?;
    runtime::end_at_exit(module)
}
