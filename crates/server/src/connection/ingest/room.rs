//! Requests that are here, and for whose answers there is no room, or for whose reads: they wait for the peer to read
//! (reader invariant 2).

use super::frames::Frames;
use super::{Active, CREDIT_STEP, CloseReason, lease};
use crate::connection::activity::Wait;
use crate::connection::output::outbox::Closed;
use crate::connection::request::V3_ANSWER_BYTES;
use bindery_flow::ByteBudget;
use bindery_io::canary::Canary;
use bindery_wire::frame::LENGTH_PREFIX_SIZE_BYTES;
use std::sync::atomic::Ordering;

impl<'a> Active<'a> {
    /// Waits until there is room for answers, and handles the requests that are here (reader invariant 2). A part of a frame that is
    /// left is in a buffer again, at its beginning; false when no bytes are left.
    pub(super) async fn wait_for_room(&mut self, received_ns: u64) -> Result<bool, CloseReason> {
        self.set_aside();
        if self.is_first {
            self.recharge(&self.shared.pools.inbound).await?;
            (self.is_first, self.deadline) = (false, None);
        }
        loop {
            self.wait_for_reads().await?;
            let credit = self.wait_for_credit(CREDIT_STEP).await?;
            // Their age is that of the read that brought them.
            let frames = Frames {
                may_keep: self.is_of_adds(),
                kept: [self.is_of_adds().then_some((self.pool, self.buffer.charged())), None],
                ..Frames::new(self.shared, self.connection, credit, received_ns)
            };
            let handled = frames.handle(self.buffer.frames()).await?;
            self.buffer.skip(handled.used);
            if handled.is_at_add {
                self.recharge(&self.shared.pools.inbound_adds).await?;
            } else if !handled.lacks_room {
                break;
            }
        }
        self.set_aside();
        let Some(whole) = self.buffer.begun() else { return Ok(false) };
        let size = self.shared.limits.read_buffer_bytes;
        let permit = match self.pool.try_acquire(size as u64) {
            Some(permit) => permit,
            // Few bytes are no hindrance: all connections together hold less than a buffer.
            None if self.buffer.len() < LENGTH_PREFIX_SIZE_BYTES => {
                lease(self.connection, self.pool, size, None, Wait::Inbound).await?
            }
            // No task waits for this pool while it holds more bytes of it.
            None => return self.read_aside(whole).await,
        };
        self.take_buffer(permit);
        Ok(true)
    }

    /// Holds what was set aside in memory of another pool.
    async fn recharge(&mut self, pool: &'a ByteBudget) -> Result<(), CloseReason> {
        let permit = lease(self.connection, pool, self.buffer.size(), None, Wait::Inbound).await?;
        self.buffer.recharge(permit);
        self.pool = pool;
        Ok(())
    }

    /// Waits until reads that are in hand have finished, when there is no room for more.
    async fn wait_for_reads(&self) -> Result<(), CloseReason> {
        let Some(room_made) = self.connection.reads.lock().await_room() else { return Ok(()) };
        let _waiting = self.connection.activity.waits(Wait::Reads);
        // Some of them may be waiting for a disk that hangs.
        self.connection.wake_sender.notify_one();
        tokio::select! {
            () = self.connection.closed.wait() => Err(self.died_paused()),
            () = room_made.notified() => Ok(()),
        }
    }

    /// Waits for the peer to take answers; then there is room for one at least.
    pub(super) async fn wait_for_credit(&self, most: usize) -> Result<usize, CloseReason> {
        let _waiting = self.connection.activity.waits(Wait::Outbox);
        self.connection.waits_for_credit.store(true, Ordering::Release);
        self.connection.wake_sender.notify_one();
        let credit = tokio::select! {
            () = self.connection.closed.wait() => return Err(self.died_paused()),
            credit = self.connection.outbox.credit(V3_ANSWER_BYTES, most) => credit,
        };
        self.connection.waits_for_credit.store(false, Ordering::Release);
        credit.map_err(|Closed| CloseReason::Ours)
    }

    /// The connection was closed while it waited for its peer to read. Here is canary M24.
    fn died_paused(&self) -> CloseReason {
        if self.shared.limits.canaries.has(Canary::M24PausedPermitLeaks) {
            std::mem::forget(self.shared.pools.inbound.try_acquire(1));
        }
        CloseReason::Ours
    }
}
