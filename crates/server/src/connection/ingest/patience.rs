//! Reading the rest of a frame of which a part is here: for as long as its peer keeps up, or nobody needs the memory
//! (reader invariant 6).

use super::frame_buffer::FrameBuffer;
use super::{CloseReason, is_drained, received};
use crate::connection::Connection;
use crate::connection::transport::Inlet;
use crate::shared::Shared;
use bindery_flow::ByteBudget;
use std::time::Duration;
use tokio::time::Instant;

/// Minimum average rate of a peer in the middle of a frame while others wait for memory. It is below the rate of any
/// network that bookies run on, so that only peers that do not really send fall short of it; the largest frame (5 MiB)
/// then holds its memory for 80 s at most.
const MIN_BYTES_PER_S: u64 = 64 * 1024;

/// The pace that the peer has to keep.
pub(super) struct Pace<'a> {
    /// When the rest of the frame was first waited for.
    pub(super) since: Instant,
    /// Where its memory is from.
    pub(super) pool: &'a ByteBudget,
    /// How long the peer may have before it is judged.
    pub(super) stall_max: Duration,
    /// When the frame must be whole, whether or not anybody waits.
    pub(super) deadline: Option<Instant>,
}

impl Pace<'_> {
    /// True when the peer, of whose frame so many bytes are here, is too slow for the memory it holds.
    fn is_missed(&self, filled: usize, now: Instant) -> bool {
        let elapsed = now.duration_since(self.since);
        elapsed >= self.stall_max
            && (filled as u128) * 1000 < u128::from(MIN_BYTES_PER_S) * elapsed.as_millis()
            && self.pool.gauge().waiting > 0
    }
}

/// Reads `most` bytes of the rest of a frame into the buffer, or fewer; false when no more is to be read.
///
/// # Errors
/// The connection ends. A peer that does not keep the pace is given up.
pub(super) async fn read(
    shared: &Shared,
    connection: &Connection,
    socket: &mut Inlet,
    buffer: &mut FrameBuffer,
    most: usize,
    pace: Pace<'_>,
) -> Result<bool, CloseReason> {
    let step = Duration::from_millis(500);
    loop {
        // At every call too: a peer that trickles never lets the timer end.
        let now = Instant::now();
        if pace.deadline.is_some_and(|deadline| now >= deadline) {
            return Err(CloseReason::Silent);
        }
        if pace.is_missed(buffer.len(), now) {
            let bytes_held = (buffer.len() + buffer.space(most).len()) as u64;
            let took_nothing_for = now.duration_since(pace.since);
            return Err(CloseReason::Stalled { bytes_held, took_nothing_for });
        }
        if is_drained(connection, socket) {
            return Ok(false);
        }
        let drain_begins = connection.draining.wait();
        let is_draining = socket.is_draining();
        tokio::select! {
            biased;
            read = socket.read(buffer.space(most)) => {
                shared.metrics.batching.socket_reads.add(1);
                buffer.filled(received(read)?);
                return Ok(true);
            }
            () = connection.closed.wait() => return Err(CloseReason::Ours),
            () = drain_begins, if !is_draining => {}
            () = tokio::time::sleep(step) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_frame_is_judged_by_its_rate_and_only_while_others_wait() {
        let pool = ByteBudget::new("inbound_large", 100);
        let since = Instant::now();
        let at = |seconds| since + Duration::from_secs(seconds);
        let pace = Pace { since, pool: &pool, stall_max: Duration::from_secs(5), deadline: None };
        let rate = MIN_BYTES_PER_S as usize;

        let held = pool.try_acquire(100);
        assert!(!pace.is_missed(0, at(1000)), "nobody waits");
        let mut waiting = Box::pin(pool.acquire(1));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());

        assert!(!pace.is_missed(0, at(4)), "every peer has this long");
        assert!(pace.is_missed(0, at(5)));
        // A byte every four seconds: no wait is long, and still it is no progress (reader invariant 6).
        assert!(pace.is_missed(25, at(100)));
        assert!(pace.is_missed(20 * rate - 1, at(20)));
        assert!(!pace.is_missed(20 * rate, at(20)), "slow, but it keeps up");
        drop((held, waiting));
        assert!(!pace.is_missed(0, at(5)));
    }
}
