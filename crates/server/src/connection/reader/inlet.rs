//! The reading half of a socket, that knows when what it read came to this machine.
//!
//! # Invariants
//! 1. A request is as old as the bytes of the read that completed it, counted from their arrival in the kernel, where they
//!    may have waited while this connection was not read. A read is taken for as young as its youngest byte.
//! 2. Whoever stops waiting in the middle of a read loses no byte: a read is one step.

use crate::shared::Shared;
use bindery_io::net::{self, Arrivals};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

/// See the module.
pub(super) struct Inlet {
    shared: Arc<Shared>,
    half: OwnedReadHalf,
    arrivals: Arrivals,
    arrived_ns: u64,
}

impl Inlet {
    /// Of a socket that nothing was read from.
    pub(super) fn new(shared: &Arc<Shared>, half: OwnedReadHalf) -> Inlet {
        let now_ns = shared.clock.monotonic_ns();
        Inlet {
            shared: shared.clone(),
            half,
            arrivals: Arrivals::new(net::wall(), now_ns),
            arrived_ns: now_ns,
        }
    }

    /// The socket.
    pub(super) fn socket(&self) -> &TcpStream {
        self.half.as_ref()
    }

    /// When what was read last came, by the clock of the bookie.
    pub(super) fn arrived_ns(&self) -> u64 {
        self.arrived_ns
    }

    /// Waits for something to read, then reads some of it; 0 at the end of the stream. Cancel safe.
    pub(super) async fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        loop {
            self.socket().readable().await?;
            // A peer that sends without end leaves others their turn.
            tokio::task::consume_budget().await;
            let mut got = None;
            let tried = self.socket().try_io(Interest::READABLE, || {
                let (bytes, stamp) = net::recv_stamped(self.socket(), target)?;
                got = Some((bytes, stamp));
                // Nothing more is there: said so, the next read waits without asking the kernel.
                if bytes > 0 && bytes < target.len() { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            if let Some((bytes, stamp)) = got {
                let now_ns = self.shared.clock.monotonic_ns();
                self.arrived_ns = self.arrivals.arrived_ns(stamp, net::wall(), now_ns);
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
