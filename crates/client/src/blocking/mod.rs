//! The client for programs without async code: each call waits for its answer.
//!
//! ```no_run
//! use bindery_client::blocking::Client;
//! use bindery_client::CreateOptions;
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let builder = bindery_client::Client::builder().metadata("zk://127.0.0.1:2181/ledgers".parse()?);
//! let client = Client::connect(builder)?;
//! let writer = client.create_ledger(CreateOptions::default())?;
//! for line in ["one", "two", "three"] {
//!     writer.enqueue(line.as_bytes())?; // waits for room only
//! }
//! writer.drain()?; // confirmed, all of them
//! let id = writer.id();
//! writer.close()?;
//! for entry in &client.open(id)? {
//!     println!("{}", String::from_utf8_lossy(&entry?.payload));
//! }
//! client.close()?;
//! # Ok(()) }
//! ```
//!
//! # Data flow
//! ```text
//! caller's thread --block_on--> the async client --tasks--> own runtime: one thread
//! ```
//! Handles are those of the async client with the runtime that carries their connections, so enqueued entries are sent
//! even while no call is under way. Calls may come from several threads at once, and do not wait for each other's
//! answers.
//!
//! # Invariants
//! 1. A call inside a tokio runtime, `spawn_blocking` included, is refused ([`Error::InsideRuntime`]): it would hold up a
//!    thread that runs tasks. Such a program uses [`bindery_client::Client`](crate::Client), or a thread of its own.
//! 2. The runtime ends with the last handle, also when that is dropped inside another runtime; the drop does not wait
//!    for it.
//!
//! # Limits     one thread for each [`Client`]; bytes: those of the async client

mod ledger;

use std::fmt;
use std::sync::Arc;

use bindery_metadata::StoreError;
use bindery_types::{BookieId, LedgerId, Quorum, QuorumSizes};
use tokio::runtime::{Builder, Handle, Runtime};

pub use self::ledger::{Entries, Following, LedgerReader, LedgerWriter};
use crate::client::{BookieInfo, ClientBuilder, LedgerInfo, MemoryInUse};
use crate::error::{AppendOpenError, ConnectError, CreateError, OpenError};
use crate::health::BookieHealth;
use crate::options::{CreateOptions, OpenMode};
use crate::{LedgerError, ReadHealth, WriteHealth};

/// Why a blocking call failed: as the async one would have, or because of where it was called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error<E> {
    /// Inside a tokio runtime nothing may block. Nothing was done.
    #[error(
        "a blocking call inside a tokio runtime would hold up its tasks: use bindery_client::Client there, or a thread of \
         your own (std::thread::spawn, not spawn_blocking)"
    )]
    InsideRuntime,
    /// The machine gives no thread for the runtime.
    #[error("cannot start a thread: {0}")]
    NoThread(String),
    /// The operation failed.
    #[error(transparent)]
    Failed(E),
}

impl<E> Error<E> {
    /// Why the operation failed, if it was tried.
    pub fn failed(self) -> Option<E> {
        match self {
            Error::Failed(error) => Some(error),
            Error::InsideRuntime | Error::NoThread(_) => None,
        }
    }
}

/// The runtime of a client and its handles.
struct Owned(Option<Runtime>);

impl Drop for Owned {
    fn drop(&mut self) {
        // Invariant 2: an ordinary drop would wait, and panics where waiting is not allowed.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A reference to it.
#[derive(Clone)]
struct Calls(Arc<Owned>);

impl Calls {
    fn start() -> std::io::Result<Calls> {
        // Not a current-thread runtime: that one does nothing between calls.
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("bindery-client").enable_all().build();
        Ok(Calls(Arc::new(Owned(Some(runtime?)))))
    }

    /// Waits for an operation of the async client.
    fn wait<T, E>(&self, operation: impl Future<Output = Result<T, E>>) -> Result<T, Error<E>> {
        self.wait_for(operation).ok_or(Error::InsideRuntime)?.map_err(Error::Failed)
    }

    /// The same for what cannot fail by itself; `None` inside a runtime.
    fn wait_for<T>(&self, operation: impl Future<Output = T>) -> Option<T> {
        if is_inside_runtime() {
            return None;
        }
        let runtime = self.0.0.as_ref().expect("it is taken by the drop of the last reference only");
        Some(runtime.block_on(operation))
    }
}

/// Invariant 1.
fn is_inside_runtime() -> bool {
    Handle::try_current().is_ok()
}

/// A client of a cluster, see the [module](self). Clones share everything.
#[derive(Clone)]
pub struct Client {
    calls: Calls,
    client: crate::Client,
}

impl Client {
    /// Connects as [`ClientBuilder::connect`] does, and starts a thread for the client.
    pub fn connect(builder: ClientBuilder) -> Result<Client, Error<ConnectError>> {
        if is_inside_runtime() {
            return Err(Error::InsideRuntime);
        }
        let calls = Calls::start().map_err(|error| Error::NoThread(error.to_string()))?;
        let client = calls.wait(builder.connect())?;
        Ok(Client { calls, client })
    }

    /// See [`create_ledger`](crate::Client::create_ledger).
    pub fn create_ledger(&self, options: CreateOptions) -> Result<LedgerWriter, Error<CreateError>> {
        let writer = self.calls.wait(self.client.create_ledger(options))?;
        Ok(LedgerWriter { calls: self.calls.clone(), writer })
    }

    /// See [`create_handed_over`](crate::Client::create_handed_over).
    pub fn create_handed_over(&self, options: CreateOptions) -> Result<LedgerId, Error<CreateError>> {
        self.calls.wait(self.client.create_handed_over(options))
    }

    /// See [`open_for_append`](crate::Client::open_for_append).
    pub fn open_for_append(
        &self,
        id: LedgerId,
        password: &[u8],
    ) -> Result<LedgerWriter, Error<AppendOpenError>> {
        let writer = self.calls.wait(self.client.open_for_append(id, password))?;
        Ok(LedgerWriter { calls: self.calls.clone(), writer })
    }

    /// See [`quorum`](crate::Client::quorum).
    pub fn quorum(&self, sizes: QuorumSizes) -> Result<Quorum, Error<CreateError>> {
        self.calls.wait(self.client.quorum(sizes))
    }

    /// See [`open`](crate::Client::open).
    pub fn open(&self, id: LedgerId) -> Result<LedgerReader, Error<OpenError>> {
        self.open_ledger(id, b"", OpenMode::ReadOnly)
    }

    /// See [`open_ledger`](crate::Client::open_ledger).
    pub fn open_ledger(
        &self,
        id: LedgerId,
        password: &[u8],
        how: OpenMode,
    ) -> Result<LedgerReader, Error<OpenError>> {
        let reader = self.calls.wait(self.client.open_ledger(id, password, how))?;
        Ok(LedgerReader { calls: self.calls.clone(), reader })
    }

    /// See [`delete_ledger`](crate::Client::delete_ledger).
    pub fn delete_ledger(&self, id: LedgerId) -> Result<(), Error<LedgerError>> {
        self.calls.wait(self.client.delete_ledger(id))
    }

    /// See [`metadata`](crate::Client::metadata).
    pub fn metadata(&self, id: LedgerId) -> Result<LedgerInfo, Error<LedgerError>> {
        self.calls.wait(self.client.metadata(id))
    }

    /// All ledgers, ascending; one range of ids is read at a time. Ends after an error.
    pub fn ledgers(&self) -> impl Iterator<Item = Result<LedgerId, Error<StoreError>>> + use<> {
        let (calls, mut listing) = (self.calls.clone(), self.client.ledgers());
        let mut is_over = false;
        std::iter::from_fn(move || {
            let next = async { listing.next().await.transpose() };
            let next = if is_over { None } else { calls.wait(next).transpose() };
            is_over = !matches!(next, Some(Ok(_)));
            next
        })
    }

    /// See [`bookies`](crate::Client::bookies).
    pub fn bookies(&self) -> Result<Vec<BookieInfo>, Error<StoreError>> {
        self.calls.wait(self.client.bookies())
    }

    /// See [`member_bookies`](crate::Client::member_bookies).
    pub fn member_bookies(&self) -> Result<Vec<BookieId>, Error<StoreError>> {
        self.calls.wait(self.client.member_bookies())
    }

    /// See [`ask_bookies`](crate::Client::ask_bookies). Inside a runtime nobody is asked.
    pub fn ask_bookies(&self, bookies: &[BookieId]) {
        let _ = self.calls.wait_for(self.client.ask_bookies(bookies));
    }

    /// See [`bookie_health`](crate::Client::bookie_health).
    pub fn bookie_health(&self) -> Vec<BookieHealth> {
        self.client.bookie_health()
    }

    /// See [`read_health`](crate::Client::read_health).
    pub fn read_health(&self) -> ReadHealth {
        self.client.read_health()
    }

    /// See [`write_health`](crate::Client::write_health).
    pub fn write_health(&self) -> WriteHealth {
        self.client.write_health()
    }

    /// See [`memory_in_use`](crate::Client::memory_in_use).
    pub fn memory_in_use(&self) -> MemoryInUse {
        self.client.memory_in_use()
    }

    /// See [`close`](crate::Client::close). A client that is dropped instead leaves its session to time out.
    pub fn close(&self) -> Result<(), Error<std::convert::Infallible>> {
        self.calls.wait_for(self.client.close()).ok_or(Error::InsideRuntime)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
