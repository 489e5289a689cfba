//! Frames that do not fit the read buffer: each takes a permit for its whole length from a pool of its own before memory is
//! allocated, and is read exactly to its end (reader invariant 1).

use super::frame_buffer::FrameBuffer;
use super::frames::{Frames, Handled};
use super::look_ahead::AheadSource;
use super::{Active, CloseReason, lease, patience};
use crate::connection::activity::Wait;
use crate::connection::request::V3_ANSWER_BYTES;
use bindery_flow::ByteBudget;
use tokio::time::Instant;

impl<'a> Active<'a> {
    pub(super) fn large_pool(&self) -> &'a ByteBudget {
        let pools = &self.shared.pools;
        if self.is_first { &pools.first_large } else { &pools.inbound_large }
    }

    /// Gives back the memory that a large frame left for the next one.
    pub(super) fn drop_large(&mut self) {
        if self.large.take().is_some() {
            self.connection.activity.holds_inbound_large(0);
        }
    }

    /// Reads the rest of the frame of `whole` bytes, prefix included, whose beginning is in the buffer and which does not fit
    /// that; handles it. False when no more is to be read.
    pub(super) async fn read_large(&mut self, whole: usize) -> Result<bool, CloseReason> {
        // Given back before asking for more: no task waits for this pool while it holds bytes of it.
        let kept = self.large.take().filter(|kept| kept.size() >= whole);
        let at_once = kept.or_else(|| {
            let permit = self.large_pool().try_acquire(whole as u64)?;
            Some(FrameBuffer::new(vec![0; whole], permit, self.shared.limits.frame))
        });
        self.connection.activity.holds_inbound_large(0);
        let Some(mut large) = at_once else {
            self.set_aside();
            return self.read_aside(whole).await;
        };
        let Some(credit) = self.connection.outbox.try_credit(V3_ANSWER_BYTES, V3_ANSWER_BYTES) else {
            drop(large);
            self.set_aside();
            return self.read_aside(whole).await;
        };
        large.take_from(&mut self.buffer);
        if !self.is_of_adds() {
            // It is most likely an add, and holds no other memory while it waits for room (reader invariant 8).
            self.set_aside();
        }
        self.read_rest(large, credit, whole).await
    }

    /// As [`Active::read_large`], of a frame whose beginning was set aside; waits in line for what it lacks. True only with a buffer for what
    /// was read ahead.
    pub(super) async fn read_aside(&mut self, whole: usize) -> Result<bool, CloseReason> {
        let credit = match self.connection.outbox.try_credit(V3_ANSWER_BYTES, V3_ANSWER_BYTES) {
            Some(credit) => credit,
            None => self.wait_for_credit(V3_ANSWER_BYTES).await?,
        };
        let permit =
            lease(self.connection, self.large_pool(), whole, self.deadline, Wait::LargeFrame).await?;
        let mut large = FrameBuffer::new(vec![0; whole], permit, self.shared.limits.frame);
        large.take_from(&mut self.buffer);
        self.set_aside();
        self.read_rest(large, credit, whole).await
    }

    /// Reads a large frame to its end and handles it. False when the connection is to be read no further, or has neither a buffer nor
    /// bytes that were read ahead. `credit` was promised for its answer.
    async fn read_rest(
        &mut self,
        mut large: FrameBuffer,
        credit: usize,
        whole: usize,
    ) -> Result<bool, CloseReason> {
        self.connection.activity.holds_inbound_large(large.charged());
        // The peer answers for its own time, not for the wait for memory.
        let since = Instant::now();
        while large.len() < whole {
            let (most, pace) = (whole - large.len(), self.pace(since, self.large_pool()));
            if !patience::read(self.shared, self.connection, self.socket, &mut large, most, pace).await? {
                self.connection.outbox.return_credit(credit);
                return Ok(false);
            }
        }
        if self.lacks_tls() {
            return Err(CloseReason::NotEncrypted);
        }
        self.connection.speak(self.shared);
        let pools = &self.shared.pools;
        let has_tenants = self.shared.tenants.is_some();
        if self.is_first && has_tenants {
            // The frame may have to wait for a limit, and other new connections need this memory.
            let whole = large.size();
            let permit = lease(self.connection, &pools.inbound_large, whole, None, Wait::LargeFrame).await?;
            large.recharge(permit);
        }
        // Handled whatever it is: a read beyond the room is refused.
        let received_ns = self.socket.arrived_ns();
        let has_buffer = self.buffer.size() > 0;
        let source = AheadSource { socket: &mut *self.socket, ahead: &mut *self.ahead };
        let frames = Frames {
            read_room: 1,
            // It goes into the buffer afterwards. Without one that may take long, but so may the wait for a limit.
            source: Some(source).filter(|_| has_buffer || has_tenants),
            kept: [
                Some((&pools.inbound_large, large.charged())),
                has_buffer.then_some((self.pool, self.buffer.charged())),
            ],
            ..Frames::new(self.shared, self.connection, credit, received_ns)
        };
        let Handled { used, .. } = frames.handle(large.frames()).await?;
        assert_eq!(used, whole, "a large frame is read exactly to its end (reader invariant 1)");
        if !has_buffer {
            // The task does not wait for a buffer while it holds memory for large frames.
            drop(large);
            self.connection.activity.holds_inbound_large(0);
            if self.ahead.is_in_use() {
                let size = self.shared.limits.read_buffer_bytes;
                let permit = lease(self.connection, &pools.inbound_adds, size, None, Wait::Inbound).await?;
                self.pool = &pools.inbound_adds;
                self.take_buffer(permit);
                (self.is_first, self.deadline) = (false, None);
            }
            return Ok(self.buffer.size() > 0);
        }
        large.skip(used);
        self.large = Some(large);
        Ok(true)
    }
}
