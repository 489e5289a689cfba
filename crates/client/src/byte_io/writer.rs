//! Bytes that are cut into entries.
//!
//! # Invariants
//! 1. At most one future has the writer, and gives it back; no entry is made meanwhile.
//! 2. Each call polls that future until it is through; no call drops it.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bindery_types::LedgerId;
use tokio::io::AsyncWrite;
use tokio::sync::watch;

use crate::error::{AppendError, CloseError, Stopped, TryAppendError, WhyStopped};
use crate::writer::{Closed, LedgerWriter, Progress};

/// Default of [`ByteWriter::entry_size_bytes`]: large enough that what each entry costs does not show, small enough that
/// several readers have room for some.
pub const ENTRY_SIZE_BYTES_DEFAULT: usize = 64 << 10;

type Waiting = Pin<Box<dyn Future<Output = (LedgerWriter, Vec<u8>, Result<(), AppendError>)> + Send>>;
type Closing = Pin<Box<dyn Future<Output = Result<Closed, CloseError>> + Send>>;

/// Writes bytes to a ledger as entries of one size: tokio's [`AsyncWrite`].
///
/// | call | is through when |
/// |---|---|
/// | `write` | the bytes are in the entry that is being filled, or on their way. While the client's memory limit has no room for an entry that is full, it waits |
/// | `flush` | everything written so far is in entries and acknowledged; with [deferred sync](crate::CreateOptions::deferred_sync) it may not be synced yet |
/// | `shutdown` | all that, and the ledger is closed for good, as by [`LedgerWriter::close`] |
///
/// Dropped without a shutdown it leaves the ledger open, as a [`LedgerWriter`] does, and loses what was not flushed. To hand the ledger over
/// instead, or write entries of another kind to it, take the writer back: [`into_writer`](Self::into_writer).
///
/// ```no_run
/// # async fn example(writer: bindery_client::LedgerWriter, mut file: tokio::io::Empty) -> std::io::Result<()> {
/// use bindery_client::ByteWriter;
/// use tokio::io::AsyncWriteExt;
///
/// let mut bytes = ByteWriter::new(writer).entry_size_bytes(256 << 10);
/// tokio::io::copy(&mut file, &mut bytes).await?;
/// bytes.shutdown().await?; // everything is acknowledged, and the ledger closed
/// # Ok(()) }
/// ```
///
/// Cancel safe: a write that is dropped has taken nothing, and what a flush or shutdown waited for goes on with the next
/// call.
///
/// # Errors
/// [`io::Error`]s with an [`AppendError`] inside, of a shutdown also a [`CloseError`]. Every call behind one fails as it
/// did. Bytes that were written and not flushed before may be lost: the error says which entry is the last that is safe.
pub struct ByteWriter {
    id: LedgerId,
    progress: watch::Receiver<Progress>,
    state: State,
    /// Bytes of the next entry. Away while the state is `Waiting`.
    buffer: Vec<u8>,
    entry_size_bytes: usize,
    entry_size_bytes_max: usize,
    /// Entries were made that no flush has waited for.
    has_unflushed: bool,
    failed: Option<AppendError>,
}

enum State {
    Idle(LedgerWriter),
    /// For room for an entry.
    Enqueuing(Waiting),
    /// For acknowledgements.
    Draining(Waiting),
    Closing(Closing),
    Closed(Result<Closed, CloseError>),
}

impl ByteWriter {
    /// Goes on behind what was written, with entries of [`ENTRY_SIZE_BYTES_DEFAULT`] bytes.
    pub fn new(writer: LedgerWriter) -> ByteWriter {
        let entry_size_bytes_max = usize::try_from(writer.payload_bytes_max()).unwrap_or(usize::MAX).max(1);
        ByteWriter {
            id: writer.id(),
            progress: writer.progress(),
            state: State::Idle(writer),
            buffer: Vec::new(),
            entry_size_bytes: ENTRY_SIZE_BYTES_DEFAULT.min(entry_size_bytes_max),
            entry_size_bytes_max,
            has_unflushed: false,
            failed: None,
        }
    }

    /// How many bytes each entry gets, from the next one on: at least one, at most
    /// [`LedgerWriter::payload_bytes_max`]; a value outside counts as the nearest of these.
    pub fn entry_size_bytes(mut self, bytes: usize) -> ByteWriter {
        self.entry_size_bytes = bytes.clamp(1, self.entry_size_bytes_max);
        self
    }

    /// The ledger.
    pub fn id(&self) -> LedgerId {
        self.id
    }

    /// What is confirmed, as it moves.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }

    /// The end of the ledger, after a shutdown that closed it.
    pub fn closed(&self) -> Option<Closed> {
        match self.state {
            State::Closed(Ok(closed)) => Some(closed),
            _ => None,
        }
    }

    /// Makes an entry of what is left, and gives the writer back. Does not wait for acknowledgements:
    /// [`LedgerWriter::drain`] does.
    ///
    /// # Errors
    /// Those of a write. The writer is then gone, and the ledger open.
    pub async fn into_writer(mut self) -> Result<LedgerWriter, AppendError> {
        poll_fn(|context| self.poll_cut(context)).await?;
        match self.state {
            State::Idle(writer) => Ok(writer),
            _ => unreachable!("an entry was made just now, or there was nothing to make one of"),
        }
    }

    /// Until no future has the writer.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<Result<(), AppendError>> {
        let is_drain = matches!(self.state, State::Draining(_));
        if let State::Enqueuing(waiting) | State::Draining(waiting) = &mut self.state {
            let (writer, buffer, outcome) = ready!(waiting.as_mut().poll(context));
            (self.state, self.buffer) = (State::Idle(writer), buffer);
            match outcome {
                Ok(()) => self.has_unflushed = !is_drain,
                Err(error) => self.failed = Some(error),
            }
        }
        Poll::Ready(match (&self.failed, &self.state) {
            (Some(error), _) => Err(error.clone()),
            (None, State::Closing(_) | State::Closed(_)) => Err(self.stopped().into()),
            (None, _) => Ok(()),
        })
    }

    /// What is said to a call behind a shutdown.
    fn stopped(&self) -> Stopped {
        let last_confirmed = self.progress.borrow().confirmed;
        Stopped { ledger: self.id, last_confirmed, why: WhyStopped::Closing }
    }

    /// Makes an entry of the buffer, if there is anything in it.
    fn poll_cut(&mut self, context: &mut Context<'_>) -> Poll<Result<(), AppendError>> {
        ready!(self.poll_idle(context))?;
        let State::Idle(writer) = &self.state else { unreachable!("no future has the writer (invariant 1)") };
        if self.buffer.is_empty() {
            return Poll::Ready(Ok(()));
        }
        match writer.try_enqueue(&self.buffer) {
            Ok(_) => {
                self.buffer.clear();
                self.has_unflushed = true;
                return Poll::Ready(Ok(()));
            }
            Err(TryAppendError::NoRoom { .. }) => {}
            Err(TryAppendError::Append(error)) => return Poll::Ready(Err(self.fail(error))),
        }
        let (writer, mut buffer) = self.take();
        self.state = State::Enqueuing(Box::pin(async move {
            let outcome = writer.enqueue(&buffer).await.map(drop);
            buffer.clear();
            (writer, buffer, outcome)
        }));
        self.poll_idle(context)
    }

    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<Result<(), AppendError>> {
        ready!(self.poll_cut(context))?;
        if !self.has_unflushed {
            return Poll::Ready(Ok(()));
        }
        let (writer, buffer) = self.take();
        self.state = State::Draining(Box::pin(async move {
            let outcome = writer.drain().await.map(drop);
            (writer, buffer, outcome)
        }));
        self.poll_idle(context)
    }

    /// For what waits, which gives both back.
    fn take(&mut self) -> (LedgerWriter, Vec<u8>) {
        // Until there is another one, a moment later.
        let meanwhile = State::Closed(Err(self.stopped().into()));
        match std::mem::replace(&mut self.state, meanwhile) {
            State::Idle(writer) => (writer, std::mem::take(&mut self.buffer)),
            _ => unreachable!("no future has the writer (invariant 1)"),
        }
    }

    fn fail(&mut self, error: AppendError) -> AppendError {
        self.failed = Some(error.clone());
        error
    }

    /// Takes as many of these bytes as go into the next entry.
    fn poll_take(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, AppendError>> {
        // An entry that was full and found no room makes this wait.
        match self.buffer.len() >= self.entry_size_bytes {
            true => ready!(self.poll_cut(context))?,
            false => ready!(self.poll_idle(context))?,
        }
        let whole = bytes.get(..self.entry_size_bytes).filter(|_| self.buffer.is_empty());
        if let (Some(whole), State::Idle(writer)) = (whole, &self.state) {
            match writer.try_enqueue(whole) {
                Ok(_) => {
                    self.has_unflushed = true;
                    return Poll::Ready(Ok(whole.len()));
                }
                Err(TryAppendError::NoRoom { .. }) => {}
                Err(TryAppendError::Append(error)) => return Poll::Ready(Err(self.fail(error))),
            }
        }
        let taken = bytes.len().min(self.entry_size_bytes - self.buffer.len());
        if self.buffer.is_empty() {
            self.buffer.reserve_exact(self.entry_size_bytes);
        }
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() >= self.entry_size_bytes {
            // Whatever comes of it is for the next call: these bytes are taken.
            let _ = self.poll_cut(context);
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.state {
                State::Closed(outcome) => {
                    let outcome = outcome.clone().map(drop);
                    return Poll::Ready(outcome.map_err(io::Error::from));
                }
                State::Closing(closing) => {
                    let outcome = ready!(closing.as_mut().poll(context));
                    self.state = State::Closed(outcome);
                }
                State::Idle(_) | State::Enqueuing(_) | State::Draining(_) => {
                    ready!(self.poll_cut(context))?;
                    let (writer, _) = self.take();
                    self.state = State::Closing(Box::pin(writer.close()));
                }
            }
        }
    }
}

impl AsyncWrite for ByteWriter {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_take(context, bytes).map_err(io::Error::from)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.closed().is_some() {
            return Poll::Ready(Ok(()));
        }
        this.poll_drain(context).map_err(io::Error::from)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_close(context)
    }
}

impl fmt::Debug for ByteWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteWriter")
            .field("id", &self.id)
            .field("entry_size_bytes", &self.entry_size_bytes)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}
