//! One connection to the server under test: whole frames, bounded waits.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::jute::{Reader, Writer};

/// Longest wait for bytes that must come. Servers answer in milliseconds; a loaded machine may take seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Largest frame accepted; above what any script asks for.
const FRAME_SIZE_BYTES_MAX: usize = 8 << 20;

/// Why a wait ended without a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lost {
    /// The server closed or reset the connection.
    Closed,
    /// Nothing came in time.
    Silent,
    /// Something that is no frame.
    Garbage(String),
}

/// A connect request's fields.
#[derive(Clone)]
pub(super) struct Connect {
    pub protocol_version: i32,
    pub last_zxid: i64,
    pub timeout_ms: i32,
    pub session_id: i64,
    pub password: Vec<u8>,
    /// `None` leaves the byte out, as clients before 3.4 do.
    pub read_only: Option<bool>,
}

impl Default for Connect {
    fn default() -> Connect {
        Connect {
            protocol_version: 0,
            last_zxid: 0,
            timeout_ms: 30_000,
            session_id: 0,
            password: vec![0; 16],
            read_only: Some(false),
        }
    }
}

impl Connect {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.i32(self.protocol_version).i64(self.last_zxid).i32(self.timeout_ms).i64(self.session_id);
        out.buffer(Some(&self.password));
        if let Some(read_only) = self.read_only {
            out.bool(read_only);
        }
        out.0
    }
}

/// A connect response's fields.
pub(super) struct Connected {
    pub protocol_version: i32,
    pub timeout_ms: i32,
    pub session_id: i64,
    pub password: Vec<u8>,
    pub read_only: Option<u8>,
    pub extra: usize,
}

impl Connected {
    pub(super) fn parse(frame: &[u8]) -> Option<Connected> {
        let mut input = Reader(frame);
        Some(Connected {
            protocol_version: input.i32().ok()?,
            timeout_ms: input.i32().ok()?,
            session_id: input.i64().ok()?,
            password: input.buffer().ok()?.unwrap_or_default().to_vec(),
            read_only: input.u8().ok(),
            extra: input.0.len(),
        })
    }
}

pub(super) struct Connection(TcpStream);

impl Connection {
    pub(super) fn open(address: &str) -> io::Result<Connection> {
        let addresses = address.to_socket_addrs()?;
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_write_timeout(Some(PATIENCE))?;
                    return Ok(Connection(stream));
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Sends bytes as they are. A server that has closed already shows in the next read.
    pub(super) fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    pub(super) fn send_frame(&mut self, body: &[u8]) {
        let mut frame = Writer::default();
        frame.buffer(Some(body));
        self.send_bytes(&frame.0);
    }

    /// Says that nothing more will be sent.
    pub(super) fn end_sending(&mut self) {
        let _ = self.0.shutdown(Shutdown::Write);
    }

    fn fill(&mut self, buffer: &mut [u8], patience: Duration) -> Result<(), Lost> {
        self.0.set_read_timeout(Some(patience)).map_err(|_| Lost::Closed)?;
        self.0.read_exact(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Lost::Silent,
            _ => Lost::Closed,
        })
    }

    /// The next frame. `patience` bounds the wait for each part of it.
    pub(super) fn receive(&mut self, patience: Duration) -> Result<Vec<u8>, Lost> {
        let mut size = [0; 4];
        self.fill(&mut size, patience)?;
        let size = usize::try_from(i32::from_be_bytes(size)).unwrap_or(usize::MAX);
        if size > FRAME_SIZE_BYTES_MAX {
            return Err(Lost::Garbage(format!("a frame of {size} bytes")));
        }
        let mut frame = vec![0; size];
        self.fill(&mut frame, patience.max(PATIENCE))?;
        Ok(frame)
    }

    /// Everything up to the end of the stream, at most 1 MiB.
    pub(super) fn receive_all(&mut self) -> Result<Vec<u8>, Lost> {
        self.0.set_read_timeout(Some(PATIENCE)).map_err(|_| Lost::Closed)?;
        let (mut all, mut part) = (Vec::new(), [0; 4096]);
        while all.len() < 1 << 20 {
            match self.0.read(&mut part) {
                Ok(0) => break,
                Ok(size) => all.extend_from_slice(&part[..size]),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Err(Lost::Silent);
                }
                // A reset after the answer: the server closed before it read everything.
                Err(_) => break,
            }
        }
        Ok(all)
    }
}
