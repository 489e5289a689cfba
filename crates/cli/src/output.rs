//! Standard output: buffered, written by a thread of its own, every error noticed.
//!
//! # Data flow
//! ```text
//! write -> buffer (full, or flushed) -> full buffers (bounded) -> thread -> standard output
//!             ^--------------------- empty buffers ----------------+
//! ```
//!
//! # Invariants
//! 1. Bytes reach standard output in the order of the calls; after an error nothing more is written.
//! 2. [`Output::finish`] returns `Ok` only when every byte was taken by the system.
//! 3. The runtime never waits inside a write: a slow reader of the pipe stops only `write`.
//!
//! # Limits     [`BUFFERS_COUNT`] buffers of [`BUFFER_SIZE_BYTES`] and one entry each

use crate::exit::{self, Failure};
use crate::printable;
use crate::status_line;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::thread::JoinHandle;
use tokio::sync::mpsc;

/// A buffer is sent on when it holds so much.
const BUFFER_SIZE_BYTES: usize = 256 << 10;
/// One that fills, one that is written, one between them.
const BUFFERS_COUNT: usize = 3;

/// Standard output without the line buffer of `std`.
pub fn raw_stdout() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Writes all of a small output at once.
pub fn write_all(bytes: &[u8]) -> Result<(), Failure> {
    raw_stdout().and_then(|mut out| out.write_all(bytes)).map_err(|error| failure(&error))
}

/// Writes all of a small text for people at once. It may have parts from outside, which a terminal only shows.
pub fn write_text(text: &str) -> Result<(), Failure> {
    write_all(printable::lines(text).as_bytes())
}

/// Says a line on standard error. One that cannot be written is lost: there is nowhere else to say so, and what the
/// command does must not end with it, as it would in the panic of `eprintln!`.
pub fn say(line: impl Display) {
    let line = line.to_string();
    say_part(format!("{}\n", printable::lines(&line)));
}

/// The same without the end of the line.
pub fn say_part(text: impl Display) {
    let text = text.to_string();
    status_line::beside(|| {
        let mut stderr = io::stderr().lock();
        let _ = stderr.write_all(text.as_bytes());
        let _ = stderr.flush();
    });
}

/// The failure that an error of standard output means.
pub fn failure(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::with_code(exit::OUTPUT_CLOSED, ""),
        _ => Failure::new(format!("cannot write to standard output: {error}; the rest was not written")),
    }
}

/// The thread that writes has ended: [`Output::finish`] says why.
#[derive(Debug)]
pub struct OutputEnded;

/// Standard output, for more than fits into memory.
pub struct Output {
    buffer: Vec<u8>,
    full: mpsc::Sender<Vec<u8>>,
    empty: mpsc::Receiver<Vec<u8>>,
    thread: JoinHandle<io::Result<()>>,
}

impl Output {
    /// Starts the thread.
    pub fn start() -> Result<Output, Failure> {
        let file = raw_stdout().map_err(|error| failure(&error))?;
        Output::start_with(file).map_err(|error| Failure::new(format!("cannot start a thread: {error}")))
    }

    fn start_with(mut file: impl Write + Send + 'static) -> io::Result<Output> {
        let (full, mut queue) = mpsc::channel::<Vec<u8>>(BUFFERS_COUNT);
        let (give_back, empty) = mpsc::channel(BUFFERS_COUNT);
        for _ in 1..BUFFERS_COUNT {
            let _ = give_back.try_send(Vec::new());
        }
        let thread = std::thread::Builder::new().name("bindery-stdout".into()).spawn(move || {
            while let Some(mut buffer) = queue.blocking_recv() {
                file.write_all(&buffer)?;
                buffer.clear();
                // One entry may have made it large; a receiver that is gone needs no buffer.
                buffer.shrink_to(2 * BUFFER_SIZE_BYTES);
                let _ = give_back.try_send(buffer);
            }
            file.flush()
        })?;
        Ok(Output { buffer: Vec::with_capacity(BUFFER_SIZE_BYTES), full, empty, thread })
    }

    /// Adds bytes; waits while the reader of the pipe is behind.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), OutputEnded> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER_SIZE_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Whether bytes wait for a [`flush`](Self::flush).
    pub fn is_pending(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Passes on what there is.
    pub async fn flush(&mut self) -> Result<(), OutputEnded> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        // Cancelled here: the buffer is still whole.
        let next = self.empty.recv().await.ok_or(OutputEnded)?;
        let full = std::mem::replace(&mut self.buffer, next);
        // There is room: as many buffers exist as places.
        self.full.send(full).await.map_err(|_| OutputEnded)
    }

    /// Passes on the rest and waits until all is written (invariant 2). Waits as long as the reader of the pipe does.
    pub async fn finish(mut self) -> Result<(), Failure> {
        let flushed = self.flush().await;
        let Output { full, empty, thread, .. } = self;
        drop((full, empty));
        let joined = tokio::task::spawn_blocking(|| thread.join()).await;
        match joined {
            Ok(Ok(Ok(()))) if flushed.is_ok() => Ok(()),
            Ok(Ok(Err(error))) => Err(failure(&error)),
            _ => Err(Failure::new("the thread that writes standard output failed: this is a bug")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink {
        written: Arc<Mutex<Vec<u8>>>,
        room: Option<usize>,
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut written = self.written.lock().unwrap();
            if self.room.is_some_and(|room| written.len() + bytes.len() > room) {
                return Err(io::Error::from(ErrorKind::BrokenPipe));
            }
            written.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn all_bytes_arrive_in_order() {
        let sink = Sink::default();
        let mut output = Output::start_with(sink.clone()).unwrap();
        let mut expected = Vec::new();
        for n in 0..200_000u32 {
            let bytes = n.to_string();
            expected.extend_from_slice(bytes.as_bytes());
            output.write(bytes.as_bytes()).await.unwrap();
            if n % 1000 == 0 {
                output.flush().await.unwrap();
                assert!(!output.is_pending());
            }
        }
        output.finish().await.unwrap();
        assert_eq!(*sink.written.lock().unwrap(), expected, "invariants 1 and 2");
    }

    #[tokio::test]
    async fn a_reader_that_went_away_ends_it_with_its_own_code() {
        let sink = Sink { room: Some(BUFFER_SIZE_BYTES + 10), ..Sink::default() };
        let mut output = Output::start_with(sink.clone()).unwrap();
        let mut ended = false;
        for _ in 0..1000 {
            ended = output.write(&vec![7; 64 << 10]).await.is_err();
            if ended {
                break;
            }
        }
        assert!(ended, "invariant 1: nothing more is taken");
        let failed = output.finish().await.unwrap_err();
        assert_eq!(failed.code, exit::OUTPUT_CLOSED, "{failed}");
        assert_eq!(sink.written.lock().unwrap().len(), BUFFER_SIZE_BYTES);
    }
}
