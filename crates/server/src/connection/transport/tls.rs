//! TLS on a connection: the session, and its ciphertext on the way in and out.
//!
//! # Data flow
//! ```text
//! kernel ─► fill() ─► records ─► process() ─► plaintext ─► take() ─► reader
//! sender ─► try_write_vectored() ─► one record ─► push() ─► kernel
//! ```
//!
//! # Invariants
//! 1. Encryption and decryption run only on the connection's own tasks and, during the handshake, on a thread of the blocking
//!    pool. Threads that serve all connections, such as the completion thread, leave both to the sender.
//! 2. At most [`RECORD_BYTES`] of plaintext are encrypted at a time, and none while ciphertext waits for the kernel. A
//!    connection whose peer never reads therefore holds one record, and records leave in order.
//! 3. No ciphertext is received while plaintext waits for the reader. A handshake ends behind [`HELLO_BYTES_MAX`] that are no
//!    message to answer, and behind [`HANDSHAKE_BYTES_MAX`] in all. Later each byte of plaintext allows for
//!    [`PLAINTEXT_WEIGHT`] of ciphertext, itself included, and all plaintext together for [`BARREN_BYTES_MAX`] more: records
//!    that hold hardly anything, or new keys all the time, cost much for what they bring. `HELD_BYTES_MAX` covers both
//!    directions and is charged for every connection; `CLIENT_AUTH_BYTES` more where clients have certificates ([`crate::tls::limits`]).
//! 4. The lock is held for the work of a few records, and never across a wait.
//! 5. Bytes that count as encrypted are. At the number of records that the keys are good for, the library would take bytes and
//!    encrypt nothing; no record is begun from there on, and a while before, the connection begins to end in order
//!    ([`TlsLink::has_worn_keys`]). Only keys of TLS 1.2 have that end, others are renewed by the library.

pub(crate) use crate::tls::limits::{
    BARREN_BYTES_MAX, HANDSHAKE_BYTES_MAX, HELLO_BYTES_MAX, PLAINTEXT_WEIGHT, RECORD_BYTES,
};
use parking_lot::Mutex;
use rustls::{ServerConnection, SupportedCipherSuite};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::net::TcpStream;

/// So many records before the last that the keys are good for, nothing is encrypted any more: the library sends a few itself.
const RECORDS_KEPT: u64 = 16;
/// From so small a part of those records on, the connection ends in order: enough for the answers to what had come by then.
const WORN_PART: u64 = 16;

/// The outcome of processing received records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::connection) struct Processed {
    /// Bytes that [`TlsLink::take`] has.
    pub(super) plaintext: usize,
    /// The peer announced the end of its stream.
    pub(super) has_ended: bool,
}

/// See the module.
pub(super) struct TlsLink {
    session: Mutex<ServerConnection>,
    has_pending: AtomicBool,
    /// Ciphertext that the kernel took, bytes.
    sent: AtomicU64,
    /// Records that were encrypted.
    records: AtomicU64,
    /// How many its keys are good for; less only in tests.
    records_max: u64,
    has_worn_keys: AtomicBool,
}

impl TlsLink {
    /// Over a session that has received nothing yet, and encrypts at most `records_max` records with its keys.
    pub(super) fn new(mut session: ServerConnection, records_max: u64) -> TlsLink {
        session.set_buffer_limit(Some(RECORD_BYTES));
        TlsLink {
            session: Mutex::new(session),
            has_pending: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            records: AtomicU64::new(0),
            records_max,
            has_worn_keys: AtomicBool::new(false),
        }
    }

    /// Receives some ciphertext from `source`; 0 at its end. [`TlsLink::process`] must follow.
    ///
    /// # Errors
    /// Those of `source`, or a handshake message that is too long.
    pub(super) fn fill(&self, source: &mut dyn Read) -> io::Result<usize> {
        self.session.lock().read_tls(source)
    }

    /// Decrypts all records that are complete. During the handshake this advances it, and may compute for milliseconds.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] with a [`rustls::Error`]: the session is broken. The alert for the peer is pending.
    pub(super) fn process(&self) -> io::Result<Processed> {
        let mut session = self.session.lock();
        let state = session.process_new_packets();
        self.has_pending.store(session.wants_write(), Ordering::Release);
        let state = state.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        Ok(Processed { plaintext: state.plaintext_bytes_to_read(), has_ended: state.peer_has_closed() })
    }

    /// Moves decrypted bytes to `target`; returns how many.
    pub(super) fn take(&self, target: &mut [u8]) -> usize {
        // An empty buffer and the end of the stream are reported by `process`.
        self.session.lock().reader().read(target).unwrap_or(0)
    }

    /// True until both sides may send requests and answers.
    pub(super) fn is_handshaking(&self) -> bool {
        self.session.lock().is_handshaking()
    }

    /// The peer's own certificate (DER).
    pub(super) fn peer_certificate(&self) -> Option<Vec<u8>> {
        self.session.lock().peer_certificates()?.first().map(|own| own.to_vec())
    }

    /// True when ciphertext waits for the kernel.
    pub(super) fn has_pending(&self) -> bool {
        self.has_pending.load(Ordering::Acquire)
    }

    /// Bytes of ciphertext that the kernel ever took.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// True when its keys can encrypt only a few records more, or none (invariant 5).
    pub(super) fn has_worn_keys(&self) -> bool {
        self.has_worn_keys.load(Ordering::Acquire)
    }

    /// Counts a record that is about to be encrypted.
    fn count_record(&self, session: &ServerConnection) -> io::Result<()> {
        let max = match session.negotiated_cipher_suite() {
            Some(SupportedCipherSuite::Tls12(suite)) => {
                suite.common.confidentiality_limit.min(self.records_max)
            }
            _ => self.records_max,
        };
        let records = self.records.fetch_add(1, Ordering::Relaxed) + 1;
        if records >= max - max / WORN_PART {
            self.has_worn_keys.store(true, Ordering::Release);
        }
        if records > max.saturating_sub(RECORDS_KEPT) {
            Err(ErrorKind::ConnectionAborted.into())
        } else {
            Ok(())
        }
    }

    /// Encrypts some of the bytes if nothing is pending, and writes as much as the kernel takes. Returns how many bytes of
    /// plaintext were encrypted; all of them may still be pending.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] when ciphertext is pending and the kernel takes none; those of the socket;
    /// [`ErrorKind::ConnectionAborted`] when the keys are used up (invariant 5).
    pub(super) fn try_write_vectored(&self, socket: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut session = self.session.lock();
        if !self.push(&mut session, socket)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.count_record(&session)?;
        let encrypted = session.writer().write_vectored(slices)?;
        if encrypted > 0 && !session.wants_write() {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        // These bytes now belong to the session: if the socket is broken, the next call reports it.
        let _ = self.push(&mut session, socket);
        Ok(encrypted)
    }

    /// Writes pending ciphertext as far as the kernel takes it. True when none is left.
    ///
    /// # Errors
    /// Those of the socket.
    pub(super) fn push_pending(&self, socket: &TcpStream) -> io::Result<bool> {
        if !self.has_pending() {
            return Ok(true);
        }
        self.push(&mut self.session.lock(), socket)
    }

    /// Announces the end of the stream to the peer, if the kernel takes the alert now.
    pub(super) fn end(&self, socket: &TcpStream) {
        let mut session = self.session.lock();
        session.send_close_notify();
        // The connection ends either way.
        let _ = self.push(&mut session, socket);
    }

    fn push(&self, session: &mut ServerConnection, socket: &TcpStream) -> io::Result<bool> {
        let result = loop {
            if !session.wants_write() {
                break Ok(true);
            }
            match session.write_tls(&mut Kernel(socket)) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(false),
                Err(error) => break Err(error),
            }
        };
        self.has_pending.store(session.wants_write(), Ordering::Release);
        result
    }
}

/// A socket as a writer that never waits.
struct Kernel<'a>(&'a TcpStream);

impl Write for Kernel<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
