//! The reading side of a transport, which knows when what it read came to this machine.
//!
//! # Invariants
//! 1. A request is as old as the bytes of the read that completed it, counted from their arrival in the kernel, where they
//!    may have waited while this connection was not read. A read is taken for as young as its youngest byte.
//! 2. Whoever stops waiting in the middle of a read loses no byte: a read is one step.
//! 3. Once the drain has begun, exactly the bytes are read that the kernel had at that moment, whatever comes later.

use super::Transport;
use bindery_io::Clock;
use bindery_io::net::{self, Arrivals};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use tokio::io::Interest;

/// See the module.
pub(in crate::connection) struct Inlet {
    transport: Arc<Transport>,
    clock: Arc<dyn Clock>,
    arrivals: Arrivals,
    arrived_ns: u64,
    /// Of the bytes that the kernel had when the drain began, those not read yet.
    left_to_drain: Option<u64>,
}

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
        }
    }

    /// When what was read last came, by the clock of the bookie.
    pub(in crate::connection) fn arrived_ns(&self) -> u64 {
        self.arrived_ns
    }

    /// Waits until there is something to read, the end of the stream included. Cancel safe.
    pub(in crate::connection) async fn readable(&self) -> io::Result<()> {
        self.transport.socket.readable().await
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
        self.left_to_drain == Some(0)
    }

    /// Waits for something to read, then reads some of it; 0 at the end of the stream. Cancel safe (invariant 2).
    pub(in crate::connection) async fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        loop {
            self.readable().await?;
            // A peer that sends without end leaves others their turn.
            tokio::task::consume_budget().await;
            let socket = &self.transport.socket;
            let mut got = None;
            let tried = socket.try_io(Interest::READABLE, || {
                let (bytes, stamp) = net::recv_stamped(socket, target)?;
                got = Some((bytes, stamp));
                // Nothing more is there: said so, the next read waits without asking the kernel.
                if bytes > 0 && bytes < target.len() { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            if let Some((bytes, stamp)) = got {
                let now_ns = self.clock.monotonic_ns();
                self.arrived_ns = self.arrivals.arrived_ns(stamp, net::wall(), now_ns);
                if let Some(left) = &mut self.left_to_drain {
                    *left = left.saturating_sub(bytes as u64);
                }
                return Ok(bytes);
            }
            match tried {
                Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    return Err(error);
                }
                _ => {}
            }
        }
    }
}
