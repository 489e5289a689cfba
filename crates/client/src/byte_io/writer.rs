//! Bytes that are cut into entries.
//!
//! # Invariants
//! 1. At most one future has the writer, and gives it back; no entry is made meanwhile.
//! 2. Each call polls that future until it is through, and drops it never; a write that has room in the buffer does not
//!    wait for acknowledgements.
//! 3. Only a call that is itself pending stands in line for room: room that is given to a future which nobody polls is
//!    missing to all other writers of the client.
//! 4. The first failure answers every later call.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bindery_types::LedgerId;
use tokio::io::AsyncWrite;

use crate::error::{AppendError, CloseError, ForceError, Stopped, TryAppendError, WhyStopped};
use crate::writer::{Closed, LedgerWriter, ProgressWatch};

/// Default of [`ByteWriter::entry_size_bytes`]: large enough that what each entry costs does not show, small enough that
/// several readers have room for some.
pub const ENTRY_SIZE_BYTES_DEFAULT: usize = 64 << 10;

/// Gives the writer back, and the buffer if it has that.
type Waiting<T> = Pin<Box<dyn Future<Output = (LedgerWriter, Result<(), AppendError>, T)> + Send>>;
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
/// # async fn example(writer: bindery_client::LedgerWriter, file: tokio::io::Empty) -> std::io::Result<()> {
/// use bindery_client::ByteWriter;
/// use tokio::io::{AsyncWriteExt, BufReader};
///
/// let mut bytes = ByteWriter::new(writer).entry_size_bytes(256 << 10);
/// tokio::io::copy_buf(&mut BufReader::new(file), &mut bytes).await?;
/// bytes.shutdown().await?; // everything is acknowledged, and the ledger closed
/// # Ok(()) }
/// ```
///
/// `tokio::io::copy` flushes whenever its source has nothing to read at the moment: from a socket, entries are then as small as
/// what came at once. Where their size matters use `tokio::io::copy_buf`, as above, or a loop of reads and `write_all`; both
/// flush only at the end.
///
/// Cancel safe: a write that is dropped has taken nothing, and what a flush or shutdown waited for goes on with the next
/// call. Once a shutdown has begun to close the ledger, a flush goes on with that, too, and a write fails. A write, flush or
/// shutdown that is dropped while it waits for room keeps its place in line until the next call, or until this writer is
/// dropped: until then other writers of the client may wait behind it.
///
/// # Errors
/// [`io::Error`]s with an [`AppendError`] inside, of a shutdown also a [`CloseError`]. Every call behind one fails as it
/// did. Bytes that were written and not flushed before may be lost: the error says which entry is the last that is safe.
pub struct ByteWriter {
    id: LedgerId,
    progress: ProgressWatch,
    state: State,
    /// Bytes of the next entry. Away while the state is `Enqueuing`.
    buffer: Vec<u8>,
    entry_size_bytes: usize,
    entry_size_bytes_max: usize,
    /// There may be entries that no flush has waited for.
    has_unflushed: bool,
    failed: Option<Failure>,
}

enum State {
    Idle(LedgerWriter),
    /// For room for an entry.
    Enqueuing(Waiting<Vec<u8>>),
    /// For acknowledgements.
    Draining(Waiting<()>),
    Closing(Closing),
    Closed(Closed),
    /// There is no writer: for a moment between two states, or after a close that failed.
    Gone,
}

#[derive(Debug, Clone)]
enum Failure {
    Append(AppendError),
    Close(CloseError),
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> io::Error {
        match failure {
            Failure::Append(error) => error.into(),
            Failure::Close(error) => error.into(),
        }
    }
}

impl From<Failure> for AppendError {
    fn from(failure: Failure) -> AppendError {
        match failure {
            Failure::Append(error) => error,
            Failure::Close(CloseError::Stopped(stopped) | CloseError::GivenBack(stopped)) => stopped.into(),
            Failure::Close(CloseError::ClosedElsewhere { ledger, last_confirmed, .. }) => {
                Stopped { ledger, last_confirmed, why: WhyStopped::Closed }.into()
            }
            Failure::Close(CloseError::NotForced { error, last_confirmed }) => match error {
                ForceError::Stopped(stopped) => stopped.into(),
                ForceError::Bookies { ledger, .. } => {
                    Stopped { ledger, last_confirmed, why: WhyStopped::Closing }.into()
                }
            },
        }
    }
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
            // It may have enqueued some before.
            has_unflushed: true,
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
    pub fn progress(&self) -> ProgressWatch {
        self.progress.clone()
    }

    /// The end of the ledger, after a shutdown that closed it.
    pub fn closed(&self) -> Option<Closed> {
        match self.state {
            State::Closed(closed) => Some(closed),
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
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let (writer, outcome) = match &mut self.state {
            State::Enqueuing(waiting) => {
                let (writer, outcome, buffer) = ready!(waiting.as_mut().poll(context));
                (self.buffer, self.has_unflushed) = (buffer, true);
                (writer, outcome)
            }
            State::Draining(waiting) => {
                let (writer, outcome, ()) = ready!(waiting.as_mut().poll(context));
                self.has_unflushed = false;
                (writer, outcome)
            }
            State::Idle(_) | State::Closing(_) | State::Closed(_) | State::Gone => {
                return Poll::Ready(self.usable());
            }
        };
        self.state = State::Idle(writer);
        Poll::Ready(outcome.map_err(|error| self.fail(Failure::Append(error))))
    }

    /// Whether it failed, or a shutdown has begun to close the ledger.
    fn usable(&self) -> Result<(), Failure> {
        match (&self.failed, &self.state) {
            (Some(failure), _) => Err(failure.clone()),
            (None, State::Closing(_) | State::Closed(_) | State::Gone) => {
                let last_confirmed = self.progress.borrow().confirmed;
                let stopped = Stopped { ledger: self.id, last_confirmed, why: WhyStopped::Closing };
                Err(Failure::Append(stopped.into()))
            }
            (None, State::Idle(_) | State::Enqueuing(_) | State::Draining(_)) => Ok(()),
        }
    }

    /// Makes an entry of the buffer, if there is anything in it.
    fn poll_cut(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        ready!(self.poll_idle(context))?;
        if self.buffer.is_empty() || self.try_cut()? {
            return Poll::Ready(Ok(()));
        }
        let (writer, mut buffer) = (self.take(), std::mem::take(&mut self.buffer));
        self.state = State::Enqueuing(Box::pin(async move {
            let outcome = writer.enqueue(&buffer).await.map(drop);
            buffer.clear();
            (writer, outcome, buffer)
        }));
        self.poll_idle(context)
    }

    /// Makes an entry of the buffer if that is possible at once, and says whether it was.
    fn try_cut(&mut self) -> Result<bool, Failure> {
        let State::Idle(writer) = &self.state else { return Ok(false) };
        let outcome = try_enqueue(writer, &self.buffer);
        let is_cut = outcome.map_err(|error| self.fail(error))?;
        if is_cut {
            self.buffer.clear();
            self.has_unflushed = true;
        }
        Ok(is_cut)
    }

    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        ready!(self.poll_cut(context))?;
        if !self.has_unflushed {
            return Poll::Ready(Ok(()));
        }
        let writer = self.take();
        self.state = State::Draining(Box::pin(async move {
            let outcome = writer.drain().await.map(drop);
            (writer, outcome, ())
        }));
        self.poll_idle(context)
    }

    /// For a future, which gives it back.
    fn take(&mut self) -> LedgerWriter {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Idle(writer) => writer,
            _ => unreachable!("no future has the writer (invariant 1)"),
        }
    }

    fn fail(&mut self, failure: Failure) -> Failure {
        self.failed = Some(failure.clone());
        failure
    }

    /// Takes as many of these bytes as go into the next entry.
    fn poll_take(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, Failure>> {
        if self.buffer.len() >= self.entry_size_bytes {
            ready!(self.poll_cut(context))?;
        }
        match self.poll_idle(context) {
            Poll::Ready(outcome) => outcome?,
            // A flush began and was left: the buffer has room meanwhile.
            Poll::Pending if matches!(self.state, State::Draining(_)) => {}
            Poll::Pending => return Poll::Pending,
        }
        let whole = bytes.get(..self.entry_size_bytes).filter(|_| self.buffer.is_empty());
        if let (Some(whole), State::Idle(writer)) = (whole, &self.state) {
            let outcome = try_enqueue(writer, whole);
            if outcome.map_err(|error| self.fail(error))? {
                self.has_unflushed = true;
                return Poll::Ready(Ok(whole.len()));
            }
        }
        let taken = bytes.len().min(self.entry_size_bytes - self.buffer.len());
        if self.buffer.is_empty() {
            self.buffer.reserve_exact(self.entry_size_bytes);
        }
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() >= self.entry_size_bytes {
            // These bytes are taken: the next call waits for room (invariant 3), or fails as this did.
            let _ = self.try_cut();
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        loop {
            match &mut self.state {
                State::Closing(closing) => match ready!(closing.as_mut().poll(context)) {
                    Ok(closed) => self.state = State::Closed(closed),
                    Err(error) => {
                        self.state = State::Gone;
                        return Poll::Ready(Err(self.fail(Failure::Close(error))));
                    }
                },
                State::Closed(_) => return Poll::Ready(Ok(())),
                State::Idle(_) | State::Enqueuing(_) | State::Draining(_) | State::Gone => {
                    ready!(self.poll_cut(context))?;
                    self.state = State::Closing(Box::pin(self.take().close()));
                }
            }
        }
    }
}

/// Whether there was room.
fn try_enqueue(writer: &LedgerWriter, payload: &[u8]) -> Result<bool, Failure> {
    match writer.try_enqueue(payload) {
        Ok(_) => Ok(true),
        Err(TryAppendError::NoRoom { .. }) => Ok(false),
        Err(TryAppendError::Append(error)) => Err(Failure::Append(error)),
    }
}

impl AsyncWrite for ByteWriter {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_take(context, bytes).map_err(io::Error::from)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let outcome = match this.state {
            State::Closing(_) | State::Closed(_) => this.poll_close(context),
            State::Idle(_) | State::Enqueuing(_) | State::Draining(_) | State::Gone => {
                this.poll_drain(context)
            }
        };
        outcome.map_err(io::Error::from)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_close(context).map_err(io::Error::from)
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
