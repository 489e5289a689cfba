//! When the bytes of a TCP read came to this machine: the kernel stamps what it receives, and says so with each read.
//!
//! ```text
//! recvmsg -> bytes, control message: wall time of the packet that brought the last of them
//!         -> its age by the wall clock -> a time of our monotonic clock
//! ```
//!
//! # Invariants
//! 1. No byte of a read came later than said: the stamp is that of the youngest. The oldest may have come much earlier,
//!    at most since the read before; who refuses by age never refuses too early.
//! 2. A wall clock that is set makes nothing older. Nothing has come before the time from which on that clock is known to
//!    have kept step with the monotonic one; a jump is seen by the next read, and then that time is now.
//! 3. Without a stamp (switched off, a socket that has none, a control message of another form) bytes came when they were
//!    read.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// More than the clocks drift apart while a connection is busy. A connection that was silent for so long that they did
/// looks as if the clock had been set, and its next read as if it had just come.
const JUMP_NS: i128 = 10_000_000;

/// Room for one stamp, aligned for a header of control messages; 64 bytes are enough on every platform.
#[repr(C, align(16))]
struct Control([u8; 64]);

/// Makes the kernel stamp what it receives, or leave that. On a socket that listens its connections inherit it.
///
/// # Errors
/// The error of the kernel.
pub fn set_stamps(socket: impl AsFd, on: bool) -> io::Result<()> {
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, u32::from(on))
}

fn set_option(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: u32) -> io::Result<()> {
    let size = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the kernel reads `size` bytes of `value`, which outlives the call.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a socket writable only while less than `bytes` wait in the kernel to be sent for the first time. This does not
/// limit how much the peer's window and the network can take; it saves memory, and work, for a peer that does not read.
/// Connections inherit it from a listening socket. 0 takes the limit away.
///
/// # Errors
/// The error of the kernel.
pub fn set_unsent_max(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    // The kernel takes 0 for the limit of the whole machine.
    let value: u32 = if bytes == 0 { u32::MAX } else { bytes };
    set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, value)
}

/// The limit that [`set_unsent_max`] has set, bytes.
///
/// # Errors
/// The error of the kernel.
pub fn unsent_max(socket: impl AsFd) -> io::Result<u32> {
    let mut value: u32 = 0;
    let mut size = size_of::<u32>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `size` bytes to `value`, and both are borrowed for longer than the call.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw mut value).cast(),
            &raw mut size,
        )
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Reads as `recv` does, with the time since the Unix epoch, by the wall clock, at which the last of the bytes came; `None`
/// when the kernel does not say. 0 bytes: the peer has ended, or `target` is empty.
///
/// # Errors
/// The error of the kernel, [`io::ErrorKind::WouldBlock`] and [`io::ErrorKind::Interrupted`] included.
pub fn recv_stamped(socket: impl AsFd, target: &mut [u8]) -> io::Result<(usize, Option<Duration>)> {
    recv_stamped_fd(socket.as_fd(), target)
}

fn recv_stamped_fd(socket: BorrowedFd<'_>, target: &mut [u8]) -> io::Result<(usize, Option<Duration>)> {
    let mut control = Control([0; 64]);
    let mut slice = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
    // SAFETY: a message header is numbers and pointers, for which zeroes are a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut slice;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: the kernel writes at most `iov_len` bytes to `target` and `msg_controllen` to `control`; both are borrowed
    // for longer than the call, and no other reference to them is used meanwhile.
    let read = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let Ok(read) = usize::try_from(read) else { return Err(io::Error::last_os_error()) };
    let filled = (message.msg_controllen as usize).min(control.0.len());
    Ok((read, stamp_in(&control.0[..filled])))
}

/// The stamp in control messages as the kernel writes them: a header of length, level and kind, and what belongs to it,
/// each aligned to a `usize`.
fn stamp_in(control: &[u8]) -> Option<Duration> {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    const WORD: usize = size_of::<usize>();
    let int_at = |at: usize| Some(i32::from_ne_bytes(control.get(at..at + 4)?.try_into().ok()?));
    let long_at = |at: usize| Some(isize::from_ne_bytes(control.get(at..at + WORD)?.try_into().ok()?));
    let mut at = 0;
    loop {
        let bytes = usize::try_from(long_at(at)?).ok()?;
        let is_stamp =
            int_at(at + WORD)? == libc::SOL_SOCKET && int_at(at + WORD + 4)? == libc::SCM_TIMESTAMPNS;
        if bytes < HEADER {
            return None;
        }
        if is_stamp && bytes == HEADER + 2 * WORD {
            let seconds = u64::try_from(long_at(at + HEADER)?).ok()?;
            let nanos = u32::try_from(long_at(at + HEADER + WORD)?).ok()?;
            return (nanos < 1_000_000_000).then(|| Duration::new(seconds, nanos));
        }
        at = at.checked_add(bytes.checked_next_multiple_of(WORD)?)?;
    }
}

/// Time since the Unix epoch by the machine's wall clock, the one of the stamps.
pub fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Turns the stamps of a socket into times of our monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct Arrivals {
    /// Wall time less monotonic time, at the last read.
    offset_ns: i128,
    /// Since when, by the monotonic clock, they are known to keep step.
    steady_since_ns: u64,
}

impl Arrivals {
    /// Of a socket of which nothing was read before now; both times are now.
    pub fn new(wall: Duration, now_ns: u64) -> Arrivals {
        Arrivals { offset_ns: offset_ns(wall, now_ns), steady_since_ns: now_ns }
    }

    /// When what was read now came, by the monotonic clock: never later than `now_ns` (invariants 1 to 3).
    pub fn arrived_ns(&mut self, stamp: Option<Duration>, wall: Duration, now_ns: u64) -> u64 {
        let offset_ns = offset_ns(wall, now_ns);
        if (offset_ns - self.offset_ns).abs() > JUMP_NS {
            self.steady_since_ns = now_ns;
        }
        self.offset_ns = offset_ns;
        let Some(stamp) = stamp else { return now_ns };
        let age = wall.saturating_sub(stamp);
        let arrived_ns = now_ns.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
        arrived_ns.max(self.steady_since_ns).min(now_ns)
    }
}

fn offset_ns(wall: Duration, now_ns: u64) -> i128 {
    // 2^127 ns are longer than any `Duration`.
    wall.as_nanos() as i128 - i128::from(now_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    fn pair(mut stamps: bool) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_stamps(&listener, stamps).unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = listener.accept().unwrap().0;
        // The first socket of the machine that wants stamps gets them a moment later.
        let mut byte = [0];
        while stamps {
            peer.write_all(b"?").unwrap();
            stamps = recv_stamped(&socket, &mut byte).unwrap().1.is_none();
        }
        (socket, peer)
    }

    #[test]
    fn a_stamp_is_of_the_time_between_the_write_and_the_read() {
        let (socket, mut peer) = pair(true);
        let before = wall();
        peer.write_all(b"0123456789").unwrap();
        let mut target = [0; 64];
        // Until the bytes are in the kernel's buffer on this side.
        assert_eq!(socket.peek(&mut target).unwrap(), 10);
        let in_kernel = wall();
        std::thread::sleep(Duration::from_millis(50));
        let (bytes, stamp) = recv_stamped(&socket, &mut target[..4]).unwrap();
        assert_eq!(&target[..bytes], b"0123");
        let stamp = stamp.expect("the kernel stamps what an accepted connection receives");
        assert!(before <= stamp && stamp <= in_kernel, "{before:?} {stamp:?} {in_kernel:?}");
        // The rest of the same packet is as old.
        assert_eq!(recv_stamped(&socket, &mut target).unwrap(), (6, Some(stamp)));
        assert_eq!(&target[..6], b"456789");
    }

    #[test]
    fn a_read_has_the_stamp_of_its_youngest_byte() {
        let (socket, mut peer) = pair(true);
        let mut target = [0; 64];
        peer.write_all(b"old").unwrap();
        assert_eq!(socket.peek(&mut target).unwrap(), 3);
        std::thread::sleep(Duration::from_millis(20));
        let between = wall();
        peer.write_all(b"young").unwrap();
        while socket.peek(&mut target).unwrap() < 8 {
            std::thread::yield_now();
        }
        let (bytes, stamp) = recv_stamped(&socket, &mut target).unwrap();
        assert_eq!(&target[..bytes], b"oldyoung");
        assert!(stamp.unwrap() >= between, "invariant 1");
    }

    #[test]
    fn without_stamps_bytes_come_without_one_and_an_end_or_nothing_is_told_apart() {
        let (socket, mut peer) = pair(false);
        socket.set_nonblocking(true).unwrap();
        let mut target = [0; 8];
        assert_eq!(recv_stamped(&socket, &mut target).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        socket.set_nonblocking(false).unwrap();
        peer.write_all(b"x").unwrap();
        assert_eq!(recv_stamped(&socket, &mut target).unwrap(), (1, None), "invariant 3");
        // Switched on later, for what comes later.
        set_stamps(&socket, true).unwrap();
        let mut is_stamped = false;
        while !is_stamped {
            peer.write_all(b"y").unwrap();
            is_stamped = recv_stamped(&socket, &mut target).unwrap().1.is_some();
        }
        drop(peer);
        assert_eq!(recv_stamped(&socket, &mut target).unwrap().0, 0);
    }

    #[test]
    fn control_messages_of_another_form_are_no_stamp() {
        let message = |level: i32, kind: i32, data: &[isize]| {
            let bytes = size_of::<libc::cmsghdr>() + size_of_val(data);
            let mut out = bytes.to_ne_bytes().to_vec();
            out.extend(level.to_ne_bytes());
            out.extend(kind.to_ne_bytes());
            data.iter().for_each(|word| out.extend(word.to_ne_bytes()));
            out
        };
        let (level, kind) = (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS);
        let stamp = message(level, kind, &[7, 8]);
        assert_eq!(stamp_in(&stamp), Some(Duration::new(7, 8)));
        assert_eq!(
            stamp_in(&[message(level, kind + 1, &[9]), stamp.clone()].concat()),
            Some(Duration::new(7, 8))
        );
        for cut in 0..stamp.len() {
            assert_eq!(stamp_in(&stamp[..cut]), None, "cut at {cut}");
        }
        assert_eq!(stamp_in(&message(level, kind, &[7])), None);
        assert_eq!(stamp_in(&message(level, kind, &[-7, 8])), None);
        assert_eq!(stamp_in(&message(level, kind, &[7, 1_000_000_000])), None);
        assert_eq!(stamp_in(&[0; 64]), None, "a message of no length has no next one");
        assert_eq!(stamp_in(&[0xff; 64]), None);
    }

    const MS: u64 = 1_000_000;

    fn wall_of(ms: u64) -> Duration {
        Duration::from_millis(1_700_000_000_000 + ms)
    }

    #[test]
    fn an_age_counts_back_from_now_and_never_beyond() {
        let mut arrivals = Arrivals::new(wall_of(0), 500 * MS);
        assert_eq!(arrivals.arrived_ns(Some(wall_of(900)), wall_of(1000), 1500 * MS), 1400 * MS);
        assert_eq!(
            arrivals.arrived_ns(Some(wall_of(1001)), wall_of(1000), 1500 * MS),
            1500 * MS,
            "not in the future"
        );
        assert_eq!(arrivals.arrived_ns(None, wall_of(1000), 1500 * MS), 1500 * MS, "invariant 3");
        // Before the connection was accepted nothing is known of the clocks.
        assert_eq!(arrivals.arrived_ns(Some(Duration::ZERO), wall_of(1000), 1500 * MS), 500 * MS);
    }

    /// Invariant 2.
    #[test]
    fn a_wall_clock_that_is_set_makes_nothing_older() {
        let hour = 3_600_000;
        let mut arrivals = Arrivals::new(wall_of(0), 0);
        assert_eq!(arrivals.arrived_ns(Some(wall_of(90)), wall_of(100), 100 * MS), 90 * MS);
        // Set forward between arrival and read.
        assert_eq!(arrivals.arrived_ns(Some(wall_of(180)), wall_of(200 + hour), 200 * MS), 200 * MS);
        // Stamped before as well, read later: at least as old as the jump was seen, and said to be no older.
        assert_eq!(arrivals.arrived_ns(Some(wall_of(190)), wall_of(300 + hour), 300 * MS), 200 * MS);
        assert_eq!(arrivals.arrived_ns(Some(wall_of(350 + hour)), wall_of(400 + hour), 400 * MS), 350 * MS);
        // And back.
        assert_eq!(arrivals.arrived_ns(Some(wall_of(450 + hour)), wall_of(500), 500 * MS), 500 * MS);
        assert_eq!(arrivals.arrived_ns(Some(wall_of(550)), wall_of(600), 600 * MS), 550 * MS);
    }
}
