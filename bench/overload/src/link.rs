//! A connection to a bookie, plain or over TLS as BookKeeper's clients begin it: START_TLS, whatever protocol follows.
//!
//! # Invariants
//! 1. The socket is read in [`Link::read`] alone: a peer that only writes takes nothing that it is sent.
//! 2. A read that gives fewer bytes than it could has taken all that had come, so that the next event tells of the rest.
//! 3. A write takes no bytes while those before it are not with the kernel.

use anyhow::Result;
use bindery_tls::client::ClientFiles;
use bindery_tls::store::StoreFile;
use bindery_wire::v3::{self, Operation};
use bindery_wire::{ErrorCode, FrameLimit, frame};
use bytes::{Buf, Bytes, BytesMut};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// Encrypted bytes that are read at once.
const READ_SIZE_BYTES: usize = 32 << 10;
/// Bytes that are encrypted at once: a record.
const RECORD_BYTES_MAX: usize = 16 << 10;

/// Where a bookie serves, and how to speak with it.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Its address.
    pub address: SocketAddr,
    /// TLS, if it is spoken.
    pub tls: Option<Arc<ClientConfig>>,
}

/// TLS with servers whose certificate is of an authority in this PEM file and has the address that is connected to.
pub fn trusting(file: &str) -> Result<Arc<ClientConfig>> {
    let files = ClientFiles::new(StoreFile::new("--tls-ca", file));
    let contents = files.read()?;
    Ok(Arc::new(files.configure(&contents)?))
}

/// A connection, which blocks for at most the time that was given to connect, until it is told not to block.
pub struct Link {
    socket: TcpStream,
    session: Option<Box<Session>>,
}

struct Session {
    tls: ClientConnection,
    /// Encrypted, and not taken by the kernel.
    out: BytesMut,
    /// Taken from the kernel, and decrypted before `at`.
    taken: Vec<u8>,
    at: usize,
    is_ended: bool,
}

impl Endpoint {
    /// Connects, and makes the handshake if there is one; each step of it may take `wait`.
    pub fn connect(&self, wait: Duration) -> io::Result<Link> {
        let socket = TcpStream::connect_timeout(&self.address, wait)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(wait))?;
        socket.set_write_timeout(Some(wait))?;
        let mut link = Link { socket, session: None };
        if let Some(config) = &self.tls {
            link.start_tls(config.clone(), ServerName::from(self.address.ip()))?;
        }
        Ok(link)
    }
}

impl Link {
    fn start_tls(&mut self, config: Arc<ClientConfig>, name: ServerName<'static>) -> io::Result<()> {
        let request = v3::Request { txn_id: u64::MAX, priority: 0, operation: Operation::StartTls };
        let mut out = BytesMut::new();
        v3::put_frame(&request.into_message(), &mut out);
        self.socket.write_all(&out)?;
        let answer = v3::decode_response(Bytes::from(self.answer()?)).map_err(io::Error::other)?;
        if ErrorCode::from_v3(answer.status) != Some(ErrorCode::Ok) || answer.start_tls_response.is_none() {
            return Err(io::Error::other(format!("START_TLS was answered with {answer:?}")));
        }
        let mut tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut self.socket)?;
        }
        let session = Session { tls, out: BytesMut::new(), taken: Vec::new(), at: 0, is_ended: false };
        self.session = Some(Box::new(session));
        Ok(())
    }

    /// The payload of the next frame. For a connection that blocks.
    pub fn answer(&mut self) -> io::Result<Vec<u8>> {
        let mut prefix = [0; frame::LENGTH_PREFIX_SIZE_BYTES];
        self.read_exact(&mut prefix)?;
        let size_bytes = u32::from_be_bytes(prefix) as usize;
        if !FrameLimit::DEFAULT.admits_payload(size_bytes) {
            return Err(io::Error::other(format!("an answer of {size_bytes} bytes")));
        }
        let mut payload = vec![0; size_bytes];
        self.read_exact(&mut payload)?;
        Ok(payload)
    }

    /// From now on nothing here waits.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        self.socket.set_nonblocking(true)
    }

    /// Bytes that were taken by [`Link::write`] and not by the kernel: encrypted ones.
    pub fn unsent(&self) -> usize {
        self.session.as_ref().map_or(0, |session| session.out.len())
    }

    /// Says that nothing follows, and closes this side; false when the kernel does not take the saying yet.
    pub fn end(&mut self) -> io::Result<bool> {
        if let Some(session) = &mut self.session {
            if !std::mem::replace(&mut session.is_ended, true) {
                session.tls.send_close_notify();
            }
            match session.send(&mut self.socket) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                sent => sent?,
            }
        }
        self.socket.shutdown(Shutdown::Write).map(|()| true)
    }
}

impl Session {
    /// Encrypts, and sends all there is. Errors with `WouldBlock` when the kernel leaves some.
    fn send(&mut self, socket: &mut TcpStream) -> io::Result<()> {
        while self.tls.wants_write() {
            let mut sealed = Vec::new();
            self.tls.write_tls(&mut sealed)?;
            self.out.extend_from_slice(&sealed);
        }
        while !self.out.is_empty() {
            match socket.write(&self.out) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => self.out.advance(sent),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Decrypts some of what was taken from the kernel.
    fn open(&mut self) -> io::Result<()> {
        let mut rest = &self.taken[self.at..];
        self.tls.read_tls(&mut rest)?;
        self.at = self.taken.len() - rest.len();
        self.tls.process_new_packets().map_err(io::Error::other)?;
        Ok(())
    }
}

impl Read for Link {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(session) = &mut self.session else { return self.socket.read(into) };
        let mut filled = 0;
        loop {
            match session.tls.reader().read(&mut into[filled..]) {
                Ok(0) => return Ok(filled),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if filled == into.len() {
                return Ok(filled);
            }
            if session.at < session.taken.len() {
                session.open()?;
            } else if filled > 0 {
                return Ok(filled);
            } else {
                session.at = 0;
                session.taken.resize(READ_SIZE_BYTES, 0);
                let count = self.socket.read(&mut session.taken);
                session.taken.truncate(*count.as_ref().unwrap_or(&0));
                if count? == 0 {
                    return Ok(0);
                }
            }
        }
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(session) = &mut self.session else { return self.socket.write(bytes) };
        session.send(&mut self.socket)?;
        let taken = session.tls.writer().write(&bytes[..bytes.len().min(RECORD_BYTES_MAX)])?;
        match session.send(&mut self.socket) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            sent => sent?,
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.session {
            None => Ok(()),
            Some(session) => session.send(&mut self.socket),
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustix::io::ioctl_fionread;
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::{ServerConfig, ServerConnection};
    use std::net::TcpListener;

    /// Both ends, the other one after a handshake as a bookie makes it.
    fn pair() -> (Link, ServerConnection, TcpStream) {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), cert.pem()).unwrap();
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der()).into();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tls = Some(trusting(file.path().to_str().unwrap()).unwrap());
        let bookie = Endpoint { address: listener.local_addr().unwrap(), tls };
        let serving = std::thread::spawn(move || {
            let mut plain = Link { socket: listener.accept().unwrap().0, session: None };
            plain.answer().unwrap();
            let mut out = BytesMut::new();
            v3::put_frame(&v3::response::start_tls(u64::MAX, ErrorCode::Ok), &mut out);
            plain.write_all(&out).unwrap();
            let mut session = ServerConnection::new(Arc::new(config)).unwrap();
            while session.is_handshaking() {
                session.complete_io(&mut plain.socket).unwrap();
            }
            (session, plain.socket)
        });
        let link = bookie.connect(Duration::from_secs(60)).unwrap();
        let (session, socket) = serving.join().unwrap();
        (link, session, socket)
    }

    /// Invariants 1 and 2.
    #[test]
    fn nothing_is_taken_until_it_is_read_and_then_all_of_it() {
        const SENT_BYTES: usize = 200_000;
        let (mut link, mut session, mut socket) = pair();
        let sending = std::thread::spawn(move || {
            for piece in vec![7; SENT_BYTES].chunks(5000) {
                rustls::Stream::new(&mut session, &mut socket).write_all(piece).unwrap();
            }
            (session, socket)
        });
        link.set_nonblocking().unwrap();
        while ioctl_fionread(&link).unwrap() == 0 {
            std::thread::yield_now();
        }
        let there = ioctl_fionread(&link).unwrap();
        for _ in 0..100 {
            assert_eq!(link.write(&[1; 100]).unwrap(), 100);
            link.flush().unwrap();
            assert!(ioctl_fionread(&link).unwrap() >= there, "a write takes nothing");
        }
        let (mut taken, mut into) = (0, vec![0; 30_000]);
        while taken < SENT_BYTES {
            match link.read(&mut into) {
                Ok(count) => {
                    assert!(count > 0 && into[..count].iter().all(|byte| *byte == 7));
                    let session = link.session.as_ref().unwrap();
                    assert!(count == into.len() || session.at == session.taken.len(), "nothing is left");
                    taken += count;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        assert_eq!(taken, SENT_BYTES);
        drop(sending.join().unwrap());
    }

    /// Invariant 3, and the end of one side.
    #[test]
    fn what_the_kernel_does_not_take_holds_up_what_follows() {
        let (mut link, mut session, mut socket) = pair();
        link.set_nonblocking().unwrap();
        let mut written = 0;
        let error = loop {
            match link.write(&[3; 100_000]) {
                Ok(count) => written += count,
                Err(error) => break error,
            }
            assert!(link.unsent() < 2 * RECORD_BYTES_MAX, "a record and its head");
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(link.unsent() > 0 && !link.end().unwrap(), "the end comes behind it");
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            rustls::Stream::new(&mut session, &mut socket).read_to_end(&mut all).unwrap();
            all.len()
        });
        while !link.end().unwrap_or(false) {
            std::thread::yield_now();
        }
        assert_eq!(reading.join().unwrap(), written);
    }
}
