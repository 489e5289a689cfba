//! Peers of the HTTP port that each send a head and never end it: as much of it as the bookie takes. One thread for all of them.

use crate::clock::{MILLI, SECOND, now};
use anyhow::Result;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Connections begun in a row before those that are there have their turn.
const CONNECTS_MAX: usize = 64;
const TICK: u64 = 10 * MILLI;

/// The peers' behaviour.
#[derive(Debug, Clone)]
pub struct HeadsSpec {
    /// How many.
    pub count: usize,
    /// Bytes of each head.
    pub head_bytes: usize,
    /// How long after it was closed a connection is made again, in nanoseconds; 0: never.
    pub again_after: u64,
}

/// The peers' results.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    /// Peers that were connected at least once.
    pub connected: usize,
    /// Connections made, those made again included.
    pub connections: u64,
    /// Connections that could not be made.
    pub not_connected: usize,
    /// Bytes that the kernel took.
    pub bytes: u64,
    /// Closed by the bookie.
    pub closed: usize,
    /// Connections that were open at the end.
    pub open: usize,
}

#[derive(Default)]
struct Peer {
    stream: Option<TcpStream>,
    sent: usize,
    /// It is connected now; it was at any time.
    is_connected: bool,
    was_connected: bool,
}

/// Runs until `stop`; gives what was seen. Connections close when this returns.
pub fn run(address: SocketAddr, spec: &HeadsSpec, stop: &Arc<AtomicBool>) -> Result<Seen> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Filler: ".to_vec();
    head.resize(spec.head_bytes, b'a');
    let mut seen = Seen::default();
    let mut peers: Vec<Peer> = (0..spec.count).map(|_| Peer::default()).collect();
    // In the order in which they are due.
    let mut due: VecDeque<(u64, usize)> = (0..spec.count).map(|at| (0, at)).collect();
    let mut events: Vec<epoll::Event> = Vec::with_capacity(1024);
    let mut scratch = vec![0; 64 << 10];
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..CONNECTS_MAX {
            let Some((_, at)) = due.front().copied().filter(|(moment, _)| *moment <= now()) else { break };
            due.pop_front();
            match begin(address, &epoll, at as u64) {
                Ok(stream) => {
                    peers[at] = Peer {
                        stream: Some(stream),
                        was_connected: peers[at].was_connected,
                        ..Peer::default()
                    };
                }
                Err(_) => {
                    seen.not_connected += 1;
                    due.push_back((now() + SECOND, at));
                }
            }
        }
        events.clear();
        let wait = Timespec { tv_sec: 0, tv_nsec: TICK as i64 };
        match epoll::wait(&epoll, spare_capacity(&mut events), Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let (flags, data) = (event.flags, event.data);
            let at = data.u64() as usize;
            let peer = &mut peers[at];
            let is_closed = (flags.contains(EventFlags::OUT)
                && send(peer, &head, &epoll, at as u64, &mut seen)?)
                || (flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP)
                    && ends(peer, &mut scratch));
            if is_closed {
                peer.stream = None;
                if peer.is_connected {
                    seen.closed += 1
                } else {
                    seen.not_connected += 1
                }
                if spec.again_after > 0 {
                    due.push_back((now() + spec.again_after, at));
                }
            }
        }
    }
    seen.open = peers.iter().filter(|peer| peer.stream.is_some() && peer.is_connected).count();
    Ok(seen)
}

/// Begins to connect, without waiting: a listener that accepts no connection would hold up all others otherwise.
fn begin(address: SocketAddr, epoll: &OwnedFd, token: u64) -> Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    epoll::add(
        epoll,
        &stream,
        EventData::new_u64(token),
        EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP,
    )?;
    Ok(stream)
}

/// Sends what is left of the head; whether the connection is closed.
fn send(peer: &mut Peer, head: &[u8], epoll: &OwnedFd, token: u64, seen: &mut Seen) -> Result<bool> {
    let Some(stream) = &mut peer.stream else { return Ok(false) };
    while peer.sent < head.len() {
        match stream.write(&head[peer.sent..]) {
            Ok(count) => {
                peer.sent += count;
                seen.bytes += count as u64;
                if !peer.is_connected {
                    peer.is_connected = true;
                    seen.connections += 1;
                    seen.connected += usize::from(!std::mem::replace(&mut peer.was_connected, true));
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(_) => return Ok(true),
        }
    }
    epoll::modify(epoll, &*stream, EventData::new_u64(token), EventFlags::IN | EventFlags::RDHUP)?;
    Ok(false)
}

/// Takes what the bookie says; whether the connection is closed.
fn ends(peer: &mut Peer, scratch: &mut [u8]) -> bool {
    let Some(stream) = &mut peer.stream else { return false };
    loop {
        match stream.read(scratch) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

impl Seen {
    /// For the result file.
    pub fn json(&self) -> Value {
        json!({
            "connected": self.connected, "connections": self.connections, "not_connected": self.not_connected,
            "bytes": self.bytes, "closed_by_bookie": self.closed, "open_at_end": self.open,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    /// A peer that is closed comes again, and sends its head from the begin.
    #[test]
    fn a_closed_peer_comes_again() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let stop = Arc::new(AtomicBool::new(false));
        let spec = HeadsSpec { count: 3, head_bytes: 1000, again_after: MILLI };
        let until = Arc::clone(&stop);
        let peers = thread::spawn(move || run(address, &spec, &until));
        for _ in 0..7 {
            let (mut stream, _) = listener.accept().expect("a peer");
            stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
            let mut head = vec![0; 1000];
            stream.read_exact(&mut head).expect("a head");
            assert!(head.starts_with(b"GET /metrics HTTP/1.1\r\n"));
            assert!(!head.windows(4).any(|part| part == b"\r\n\r\n"), "it has no end");
        }
        stop.store(true, Ordering::Relaxed);
        let seen = peers.join().expect("no panic").expect("no error");
        assert_eq!(seen.connected, 3);
        assert!(seen.connections >= 7, "{seen:?}");
        assert!(seen.bytes >= 7000, "{seen:?}");
    }
}
