//! A connection that never blocks: bytes out, frames in.

use crate::link::{Endpoint, Link};
use anyhow::{Result, bail};
use bindery_wire::frame::{self, Split};
use bindery_wire::{FrameLimit, FrameTooLarge};
use bytes::{Buf, Bytes, BytesMut};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Read calls in a row on one connection before the others have their turn.
const READS_MAX: usize = 8;

/// One socket with what is not sent yet and what is not a whole frame yet.
pub struct Conn {
    link: Link,
    /// Encoded and not taken by the link.
    pub out: BytesMut,
    /// The bytes that follow it, the same for many connections, so that large entries are in memory once.
    pub tail: Bytes,
    rest: Vec<u8>,
    wants_write: bool,
    token: u64,
}

fn limit() -> FrameLimit {
    FrameLimit::new(64 << 20).expect("within the bounds of a limit")
}

impl Conn {
    /// Connects (waits up to 5 s) and registers for reading under `token`.
    pub fn connect(bookie: &Endpoint, epoll: &OwnedFd, token: u64) -> io::Result<Conn> {
        Conn::connect_within(bookie, epoll, token, Duration::from_secs(5))
    }

    /// The same with another wait.
    pub fn connect_within(
        bookie: &Endpoint,
        epoll: &OwnedFd,
        token: u64,
        wait: Duration,
    ) -> io::Result<Conn> {
        let link = bookie.connect(wait)?;
        link.set_nonblocking()?;
        epoll::add(epoll, &link, EventData::new_u64(token), EventFlags::IN)?;
        Ok(Conn {
            link,
            out: BytesMut::new(),
            tail: Bytes::new(),
            rest: Vec::new(),
            wants_write: false,
            token,
        })
    }

    /// Bytes that the link has not taken. Nothing may be encoded behind a tail.
    pub fn unsent(&self) -> usize {
        self.out.len() + self.tail.len()
    }

    /// Sends what is there, as far as the kernel takes it, and asks for writability when some is left.
    pub fn flush(&mut self, epoll: &OwnedFd) -> io::Result<()> {
        while self.unsent() > 0 {
            let is_tail = self.out.is_empty();
            match self.link.write(if is_tail { &self.tail } else { &self.out }) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(taken) if is_tail => self.tail.advance(taken),
                Ok(taken) => self.out.advance(taken),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.unsent() == 0 {
            match self.link.flush() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                flushed => flushed?,
            }
        }
        let wants_write = self.unsent() + self.link.unsent() > 0;
        if wants_write != self.wants_write {
            let flags = if wants_write { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(epoll, self.link.as_fd(), EventData::new_u64(self.token), flags)?;
            self.wants_write = wants_write;
        }
        Ok(())
    }

    /// Reads what is there and gives each whole frame's payload to `on_frame`. Errors also at the end of the stream.
    pub fn read(&mut self, scratch: &mut [u8], mut on_frame: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        for _ in 0..READS_MAX {
            let count = match self.link.read(scratch) {
                Ok(0) => bail!("closed by the bookie"),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            if self.rest.is_empty() {
                let taken = frames(&scratch[..count], &mut on_frame)?;
                self.rest.extend_from_slice(&scratch[taken..count]);
            } else {
                self.rest.extend_from_slice(&scratch[..count]);
                let taken = frames(&self.rest, &mut on_frame)?;
                self.rest.drain(..taken);
            }
            if count < scratch.len() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Gives out whole frames; returns the bytes they took.
fn frames(bytes: &[u8], on_frame: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<usize> {
    let mut taken = 0;
    loop {
        match frame::split(&bytes[taken..], limit()).map_err(|error: FrameTooLarge| anyhow::anyhow!(error))? {
            Split::Incomplete { .. } => return Ok(taken),
            Split::Frame(payload) => {
                on_frame(&bytes[taken + payload.start..taken + payload.end])?;
                taken += payload.end;
            }
        }
    }
}
