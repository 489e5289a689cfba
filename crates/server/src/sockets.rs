//! Socket options for a client's connection: how the kernel finds out that a peer is gone, and how much memory it may
//! keep for one.
//!
//! # Invariants
//! 1. A peer that vanished silently is found whether or not answers are on their way to it: probes find it while no
//!    answer is owed, [`SocketOptions::unanswered_max`] when one is. Until then it holds what its window allows.
//! 2. The kernel's buffers of a connection are bounded. They are not in the memory limit, which bounds this process;
//!    the start-up table shows them beside it.

use rustix::io::Errno;
use rustix::net::sockopt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};

/// Connections that may wait to be accepted; the kernel takes less where `net.core.somaxconn` is lower. One more costs
/// its client a second, until it asks again: a thousand clients that come back together must all find room.
const BACKLOG: u32 = 4096;

/// The least that a bound of a kernel buffer may be: a few packets.
pub const KERNEL_BUFFER_BYTES_MIN: usize = 16 * 1024;

/// When an idle peer is asked whether it is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe (`tcpKeepaliveIdleSec`). Whole seconds.
    pub idle: Duration,
    /// Time between two probes (`tcpKeepaliveIntervalSec`). Whole seconds.
    pub interval: Duration,
    /// Probes without an answer after which the peer is gone (`tcpKeepaliveProbes`).
    pub probes: u32,
}

/// Options of a client's socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketOptions {
    /// Send small answers at once (`serverTcpNoDelay`). Answers are gathered before they are written, so that waiting
    /// for more would only delay them.
    pub no_delay: bool,
    /// Probes of idle peers (`serverSockKeepalive`); `None` for none.
    pub keepalive: Option<Keepalive>,
    /// A peer that acknowledges nothing of what was sent, or keeps its window shut, for this long is gone
    /// (`tcpUserTimeoutSec`); `None` for the kernel's patience, which is a quarter of an hour and more.
    pub unanswered_max: Option<Duration>,
    /// Kernel memory for answers on their way (`serverSendBufferSizeBytes`); 0 lets the kernel choose.
    pub send_buffer_bytes: usize,
    /// Bytes of answers that wait in the kernel for their first sending from which on it takes no more
    /// (`serverUnsentBytesMax`); 0 for no limit but the buffer. Bytes in flight are not limited by it, so it costs no
    /// throughput. A peer that does not read then holds this much in place of a whole buffer, and so much less was loaded
    /// and copied for it.
    pub unsent_bytes_max: u32,
    /// Kernel memory for requests not yet read (`serverReceiveBufferSizeBytes`); 0 lets the kernel choose.
    pub receive_buffer_bytes: usize,
}

impl Default for SocketOptions {
    fn default() -> SocketOptions {
        SocketOptions {
            no_delay: true,
            keepalive: Some(Keepalive {
                idle: Duration::from_secs(60),
                interval: Duration::from_secs(10),
                probes: 3,
            }),
            unanswered_max: Some(Duration::from_secs(90)),
            send_buffer_bytes: 256 * 1024,
            unsent_bytes_max: 16 * 1024,
            // The bytes that a sender may have in flight are worth their memory: the kernel grows the buffer with use,
            // and shrinks it.
            receive_buffer_bytes: 0,
        }
    }
}

/// What the kernel grants of the buffers asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelBuffers {
    /// For answers, bytes of kernel memory; 0: the kernel chooses.
    pub send: usize,
    /// For requests.
    pub receive: usize,
}

impl SocketOptions {
    /// Sets all of it on a socket; on one that listens, its connections inherit it.
    ///
    /// # Errors
    /// The first option that the kernel refuses; those behind it are not set.
    pub fn apply(&self, socket: impl AsFd) -> io::Result<()> {
        sockopt::set_tcp_nodelay(&socket, self.no_delay)?;
        sockopt::set_socket_keepalive(&socket, self.keepalive.is_some())?;
        if let Some(Keepalive { idle, interval, probes }) = self.keepalive {
            sockopt::set_tcp_keepidle(&socket, idle)?;
            sockopt::set_tcp_keepintvl(&socket, interval)?;
            sockopt::set_tcp_keepcnt(&socket, probes)?;
        }
        let unanswered_ms = self.unanswered_max.map_or(0, |max| max.as_millis());
        sockopt::set_tcp_user_timeout(&socket, u32::try_from(unanswered_ms).unwrap_or(u32::MAX))?;
        // Linux takes a size without its own overhead and doubles it; both options here are kernel memory.
        if self.send_buffer_bytes > 0 {
            sockopt::set_socket_send_buffer_size(&socket, self.send_buffer_bytes / 2)?;
        }
        if self.receive_buffer_bytes > 0 {
            sockopt::set_socket_recv_buffer_size(&socket, self.receive_buffer_bytes / 2)?;
        }
        bindery_io::net::set_unsent_max(&socket, self.unsent_bytes_max)?;
        // Tells how long requests waited in the kernel.
        bindery_io::net::set_stamps(&socket, true)
    }

    /// What the kernel grants, by a socket that has these options.
    pub fn granted(&self, socket: impl AsFd) -> io::Result<KernelBuffers> {
        let or_auto = |wanted: usize, granted: rustix::io::Result<usize>| {
            if wanted == 0 { Ok(0) } else { granted }
        };
        Ok(KernelBuffers {
            send: or_auto(self.send_buffer_bytes, sockopt::socket_send_buffer_size(&socket))?,
            receive: or_auto(self.receive_buffer_bytes, sockopt::socket_recv_buffer_size(&socket))?,
        })
    }
}

/// Binds and listens. On a runtime only.
///
/// # Errors
/// What the kernel says, e.g. [`io::ErrorKind::AddrInUse`].
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match listen_on(address) {
        // Here is no IPv6: all addresses are those of IPv4.
        Err(error) if is_all_kinds(address) && has_no_ipv6(&error) => {
            listen_on((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        listening => listening,
    }
}

/// Where a connection comes from: one of IPv4 that a socket of both kinds took has its IPv4 address.
pub fn peer_of(accepted: SocketAddr) -> SocketAddr {
    SocketAddr::new(accepted.ip().to_canonical(), accepted.port())
}

fn is_all_kinds(address: SocketAddr) -> bool {
    address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
}

fn has_no_ipv6(error: &io::Error) -> bool {
    [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if is_all_kinds(address) {
        // The default of the machine may be another.
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    // Otherwise connections of the process before, closed and not yet forgotten, keep the port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Makes the close of this socket a reset: bytes that its peer has not taken are dropped at once, instead of being kept
/// by the kernel until the peer takes them or is given up.
pub fn reset_on_close(socket: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(socket, Some(Duration::ZERO))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A machine may lack IPv6; then it is all addresses of IPv4.
    #[tokio::test]
    async fn all_addresses_are_those_of_both_kinds_and_an_ipv4_peer_has_its_ipv4_address() {
        let listener = listen("[::]:0".parse().unwrap()).unwrap();
        let bound = listener.local_addr().unwrap();
        let has_ipv6 = TcpListener::bind("[::1]:0").is_ok();
        let hosts: &[&str] = if has_ipv6 { &["127.0.0.1", "::1"] } else { &["127.0.0.1"] };
        for host in hosts {
            let client = tokio::net::TcpStream::connect((*host, bound.port())).await.unwrap();
            let (_, peer) = listener.accept().await.unwrap();
            assert_eq!(peer_of(peer), client.local_addr().unwrap());
        }
        assert_eq!(
            listen("0.0.0.0:0".parse().unwrap()).unwrap().local_addr().unwrap().ip(),
            Ipv4Addr::UNSPECIFIED
        );
        for errno in [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL] {
            assert!(has_no_ipv6(&errno.into()));
        }
        assert!(!has_no_ipv6(&Errno::ADDRINUSE.into()));
    }

    #[test]
    fn everything_is_set_and_the_buffers_are_kernel_memory() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = SocketOptions {
            send_buffer_bytes: 64 << 10,
            receive_buffer_bytes: 256 << 10,
            ..SocketOptions::default()
        };
        options.apply(&socket).unwrap();
        assert!(sockopt::tcp_nodelay(&socket).unwrap());
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), Duration::from_secs(60));
        assert_eq!(sockopt::tcp_keepintvl(&socket).unwrap(), Duration::from_secs(10));
        assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), 3);
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 90_000);
        assert_eq!(bindery_io::net::unsent_max(&socket).unwrap(), 16 << 10);
        let granted = options.granted(&socket).unwrap();
        assert_eq!(granted, KernelBuffers { send: 64 << 10, receive: 256 << 10 });
        let client = std::net::TcpStream::connect(socket.local_addr().unwrap()).unwrap();
        let (accepted, _) = socket.accept().unwrap();
        assert_eq!(bindery_io::net::unsent_max(&accepted).unwrap(), 16 << 10, "inherited");
        drop(client);
    }

    #[test]
    fn what_is_switched_off_is_left_to_the_kernel() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let before = sockopt::socket_send_buffer_size(&socket).unwrap();
        let options = SocketOptions {
            no_delay: false,
            keepalive: None,
            unanswered_max: None,
            send_buffer_bytes: 0,
            unsent_bytes_max: 0,
            receive_buffer_bytes: 0,
        };
        options.apply(&socket).unwrap();
        assert!(!sockopt::tcp_nodelay(&socket).unwrap() && !sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 0);
        assert_eq!(bindery_io::net::unsent_max(&socket).unwrap(), u32::MAX, "no limit");
        assert_eq!(sockopt::socket_send_buffer_size(&socket).unwrap(), before);
        assert_eq!(options.granted(&socket).unwrap(), KernelBuffers { send: 0, receive: 0 });
    }

    /// With the usual backlog of 128 the 130th would wait until somebody accepts, and nobody does.
    #[tokio::test]
    async fn hundreds_find_room_before_any_is_accepted() {
        let listener = super::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        for _ in 0..400 {
            clients.push(tokio::net::TcpStream::connect(address).await.unwrap());
        }
        assert_eq!(clients.len(), 400);
    }
}
