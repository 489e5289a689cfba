//! The reading side of a transport, which knows when what it read came to this machine.
//!
//! # Invariants
//! 1. A request is as old as the bytes of the read that completed it, counted from their arrival in the kernel, where they
//!    may have waited while this connection was not read. A read is taken for as young as its youngest byte.
//! 2. Cancelling a read loses no byte: taking bytes is one step.
//! 3. A drain reads exactly the bytes that the kernel had when the drain began. Over TLS these are bytes of
//!    ciphertext, and all plaintext that they decrypt to is read, too.
//! 4. A read over TLS continues until its target is full, the kernel is empty, or it has received [`RECEIVES_MAX`] times, so
//!    batches are nearly as large as without TLS.
//! 5. Decrypting is charged to the budget of the task before the next read, by what it costs and not by what it yields: a peer
//!    that sends without end, in whatever records, leaves others their turn.
//! 6. An error that is found behind plaintext comes after it, and again with every read from then on.

use super::tls::{BARREN_BYTES_MAX, HANDSHAKE_BYTES_MAX, HELLO_BYTES_MAX, PLAINTEXT_WEIGHT, TlsLink};
use super::{Processed, Transport};
use bindery_io::Clock;
use bindery_io::net::{self, Arrivals};
use rustls::ServerConnection;
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// See the module.
pub(in crate::connection) struct Inlet {
    transport: Arc<Transport>,
    clock: Arc<dyn Clock>,
    arrivals: Arrivals,
    arrived_ns: u64,
    /// Of the bytes that the kernel had when the drain began, those not read yet.
    left_to_drain: Option<u64>,
    /// Bytes that are decrypted and not read.
    buffered: usize,
    /// The peer announced the end of its stream behind those.
    has_ended: bool,
    /// Bytes of ciphertext received, less the weight of the plaintext that came out; at least 0 (TLS invariant 3).
    barren: usize,
    /// How many of those are taken.
    barren_max: usize,
    /// Work that is not charged yet, in [`WORK_UNIT`]s; below 0 where more was charged than was done.
    work: i64,
    /// What every read ends with from now on, behind the plaintext (invariant 6).
    failure: Option<Failure>,
}

/// Receives of one read at most, of 4 KiB each.
const RECEIVES_MAX: usize = 16;
/// What costs a part of a task's budget, of which there are 128: some ten records with nothing in them, or a full one. A budget
/// is a millisecond or two, whatever the records.
const WORK_UNIT: i64 = 256;
/// So many bytes of a full record cost as much as one byte of header, tag, or a message of TLS itself.
const BYTES_PER_WORK: i64 = 64;

/// Why reading failed.
struct Failure {
    kind: ErrorKind,
    tls: Option<rustls::Error>,
}

impl Failure {
    fn of(error: &io::Error) -> Failure {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        Failure { kind: error.kind(), tls: tls.cloned() }
    }

    fn error(&self) -> io::Error {
        match &self.tls {
            Some(tls) => io::Error::new(self.kind, tls.clone()),
            None => self.kind.into(),
        }
    }
}

/// The result of one read from the kernel: bytes, and their time of arrival.
type Got = (usize, Option<Duration>);

impl Inlet {
    /// Reads from a transport that nothing was read from.
    pub(in crate::connection) fn new(transport: Arc<Transport>, clock: Arc<dyn Clock>) -> Inlet {
        let now_ns = clock.monotonic_ns();
        Inlet {
            transport,
            clock,
            arrivals: Arrivals::new(net::wall(), now_ns),
            arrived_ns: now_ns,
            left_to_drain: None,
            buffered: 0,
            has_ended: false,
            barren: 0,
            barren_max: HELLO_BYTES_MAX,
            work: 0,
            failure: None,
        }
    }

    /// When what was read last came, by the clock of the bookie.
    pub(in crate::connection) fn arrived_ns(&self) -> u64 {
        self.arrived_ns
    }

    /// True when a read succeeds without asking the kernel.
    fn has_buffered(&self) -> bool {
        self.buffered > 0 || self.has_ended || self.failure.is_some()
    }

    /// Waits until there is something to read, the end of the stream included (transport invariant 4). Cancel safe.
    pub(in crate::connection) async fn readable(&self) -> io::Result<()> {
        if self.has_buffered() { Ok(()) } else { self.transport.socket.readable().await }
    }

    /// From now on only what the kernel has is read (invariant 3). Calls after the first change nothing.
    pub(in crate::connection) fn begin_drain(&mut self) {
        if self.left_to_drain.is_none() {
            // From a socket that cannot say so nothing more is read.
            self.left_to_drain = Some(rustix::io::ioctl_fionread(&self.transport.socket).unwrap_or(0));
        }
    }

    /// True from [`Inlet::begin_drain`] on.
    pub(in crate::connection) fn is_draining(&self) -> bool {
        self.left_to_drain.is_some()
    }

    /// True when the drain has begun and everything that had come by then is read.
    pub(in crate::connection) fn is_drained(&self) -> bool {
        self.left_to_drain == Some(0) && self.buffered == 0
    }

    /// Waits for something to read, then reads some of it; 0 at the end of the stream. Cancel safe (invariant 2).
    ///
    /// # Errors
    /// Those of the socket. Over TLS also [`ErrorKind::InvalidData`] with a [`rustls::Error`], and
    /// [`ErrorKind::UnexpectedEof`] when the stream ends without the peer announcing it.
    pub(in crate::connection) async fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let transport = self.transport.clone();
        if let Some(tls) = transport.tls.get() {
            return self.read_tls(tls, target).await;
        }
        loop {
            self.readable().await?;
            // A peer that sends without end leaves others their turn.
            tokio::task::consume_budget().await;
            let got = self.try_socket(|socket, got| {
                let (bytes, stamp) = net::recv_stamped(socket, target)?;
                *got = Some((bytes, stamp));
                // Nothing more is there: said so, the next read waits without asking the kernel.
                if bytes > 0 && bytes < target.len() { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
            })?;
            if let Some(bytes) = got {
                return Ok(bytes);
            }
        }
    }

    async fn read_tls(&mut self, tls: &TlsLink, target: &mut [u8]) -> io::Result<usize> {
        loop {
            self.readable().await?;
            // Before anything is taken (invariant 2), and whether or not there is plaintext (invariant 5).
            self.charge().await;
            if let Some(read) = self.try_read_tls(tls, target)? {
                return Ok(read);
            }
        }
    }

    /// Lets others run as often as the work since the last call wants that, at least when the task's time is over. Cancel safe.
    async fn charge(&mut self) {
        tokio::task::consume_budget().await;
        while self.work >= WORK_UNIT {
            tokio::task::consume_budget().await;
            self.work -= WORK_UNIT;
        }
    }

    /// One read, without waiting (invariant 4). `None` when nothing came out.
    fn try_read_tls(&mut self, tls: &TlsLink, target: &mut [u8]) -> io::Result<Option<usize>> {
        let mut filled = 0;
        for receives in 0.. {
            if self.buffered > 0 {
                let taken = tls.take(&mut target[filled..]);
                self.buffered -= taken;
                filled += taken;
            }
            // Behind the last byte of a drain others may follow, which are not for this read (invariant 3).
            let is_last = receives == RECEIVES_MAX || self.left_to_drain == Some(0);
            if filled == target.len() || self.has_ended || (filled > 0 && is_last) {
                return Ok(Some(filled));
            }
            if let Some(failure) = &self.failure {
                return if filled > 0 { Ok(Some(filled)) } else { Err(failure.error()) };
            }
            if receives == RECEIVES_MAX {
                break;
            }
            match self.receive_some(tls) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => self.failure = Some(Failure::of(&error)),
            }
        }
        Ok(Some(filled).filter(|filled| *filled > 0))
    }

    /// Receives and decrypts the bytes of one read. False when the kernel has none.
    fn receive_some(&mut self, tls: &TlsLink) -> io::Result<bool> {
        match self.receive(tls)? {
            None => Ok(false),
            Some(0) => Err(ErrorKind::UnexpectedEof.into()),
            Some(received) => {
                self.work += received as i64 + received as i64 / BYTES_PER_WORK;
                let processed = tls.process();
                if tls.has_pending() {
                    // TLS itself answers some messages.
                    self.transport.sender.notify_one();
                }
                self.processed(processed?);
                Ok(true)
            }
        }
    }

    /// Switches to TLS. The handshake follows, by [`Inlet::feed`] and [`Inlet::receive_handshake`]. Keys of the session encrypt
    /// at most `records_max` records.
    pub(in crate::connection) fn upgrade(&mut self, session: ServerConnection, records_max: u64) {
        self.transport.upgrade(session, records_max);
    }

    /// Hands over ciphertext that was read before the upgrade, some of it at a time, from the front of `bytes`.
    /// [`Transport::process_handshake`] must follow.
    ///
    /// # Errors
    /// A message of the handshake is too long.
    pub(in crate::connection) fn feed(&mut self, bytes: &mut &[u8]) -> io::Result<()> {
        let tls = self.transport.tls.get().expect("the transport was upgraded");
        let fed = tls.fill(bytes)?;
        self.count_barren(fed)
    }

    /// Receives some of the handshake, if the kernel has some; 0 at the end of the stream. As [`Inlet::feed`].
    ///
    /// # Errors
    /// Those of the socket; a message of the handshake is too long.
    pub(in crate::connection) fn receive_handshake(&mut self) -> io::Result<Option<usize>> {
        let transport = self.transport.clone();
        self.receive(transport.tls.get().expect("the transport was upgraded"))
    }

    /// Marks the handshake as finished: requests follow.
    pub(in crate::connection) fn finish_handshake(&mut self) {
        (self.barren, self.barren_max) = (0, BARREN_BYTES_MAX);
    }

    /// Counts received ciphertext (TLS invariant 3).
    fn count_barren(&mut self, bytes: usize) -> io::Result<()> {
        self.barren += bytes;
        let max = self.barren_max;
        if self.barren <= max {
            return Ok(());
        }
        let error = rustls::Error::General(match max {
            BARREN_BYTES_MAX => format!("more than {max} bytes with hardly anything of a request in them"),
            _ => format!("more than {max} bytes of a handshake"),
        });
        Err(io::Error::new(ErrorKind::InvalidData, error))
    }

    /// Notes the result of processing. Requests may have come right behind the last message of the handshake.
    pub(in crate::connection) fn processed(&mut self, processed: Processed) {
        let plaintext = processed.plaintext.saturating_sub(self.buffered);
        self.buffered = processed.plaintext;
        self.has_ended = processed.has_ended;
        self.barren = self.barren.saturating_sub(plaintext.saturating_mul(PLAINTEXT_WEIGHT));
        self.work -= plaintext as i64;
        if self.barren_max == HELLO_BYTES_MAX && self.transport.has_answered() {
            self.barren_max = HANDSHAKE_BYTES_MAX;
        }
    }

    /// Receives some ciphertext without waiting.
    fn receive(&mut self, tls: &TlsLink) -> io::Result<Option<usize>> {
        let left = self.left_to_drain.filter(|left| *left > 0);
        let most = left.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
        let received = self.try_socket(|socket, got| {
            let mut source = Stamped { socket, most, got: None, is_short: false };
            let bytes = tls.fill(&mut source)?;
            *got = source.got.or(Some((bytes, None)));
            if source.is_short { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
        })?;
        self.count_barren(received.unwrap_or(0))?;
        Ok(received)
    }

    /// Reads from the kernel once. `None` when it has nothing now.
    fn try_socket(
        &mut self,
        ask: impl FnOnce(&TcpStream, &mut Option<Got>) -> io::Result<()>,
    ) -> io::Result<Option<usize>> {
        let socket = &self.transport.socket;
        let mut got = None;
        let tried = socket.try_io(Interest::READABLE, || ask(socket, &mut got));
        if let Some((bytes, stamp)) = got {
            let now_ns = self.clock.monotonic_ns();
            self.arrived_ns = self.arrivals.arrived_ns(stamp, net::wall(), now_ns);
            if let Some(left) = &mut self.left_to_drain {
                *left = left.saturating_sub(bytes as u64);
            }
            return Ok(Some(bytes));
        }
        match tried {
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Err(error)
            }
            _ => Ok(None),
        }
    }
}

/// Reads from a socket once and keeps the time of arrival.
struct Stamped<'a> {
    socket: &'a TcpStream,
    /// Bytes that may be read.
    most: usize,
    got: Option<Got>,
    /// The kernel filled less than the buffer, so it has nothing more.
    is_short: bool,
}

impl Read for Stamped<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let most = target.len().min(self.most);
        let (bytes, stamp) = net::recv_stamped(self.socket, &mut target[..most])?;
        self.got = Some((bytes, stamp));
        self.is_short = bytes > 0 && bytes < most;
        Ok(bytes)
    }
}
