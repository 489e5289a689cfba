//! The sender task of a connection: starts its reads as its window and the pools allow, writes what the socket did not
//! take at once, and ends its long polls.

use super::load::{self, Plan};
use super::outbox::Flush;
use super::request::ReadRequest;
use super::{CloseReason, Connection};
use crate::shared::Shared;
use bindery_flow::{AcquireError, ByteBudget, Permit};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Reads started before the sender looks at the socket again.
const STARTS_MAX: usize = 256;
/// How often a peer that does not read is looked at.
const STALL_CHECK: Duration = Duration::from_secs(1);

type Waiting = Pin<Box<dyn Future<Output = Result<Permit, AcquireError>> + Send>>;

/// A request for bytes that keeps its place in the pool's queue while the sender does other things: above all writing,
/// which may be what frees the bytes.
#[derive(Default)]
struct Claim {
    waiting: Option<Waiting>,
    granted: Option<Permit>,
}

impl Claim {
    /// A permit for `bytes` now, or a place in the queue.
    fn take(&mut self, pool: &ByteBudget, bytes: usize) -> Option<Permit> {
        if let Some(mut granted) = self.granted.take()
            && granted.bytes() >= bytes as u64
        {
            granted.shrink_to(bytes as u64);
            return Some(granted);
        }
        if self.waiting.is_some() {
            return None;
        }
        if let Some(permit) = pool.try_acquire(bytes as u64) {
            return Some(permit);
        }
        let pool = pool.clone();
        self.waiting = Some(Box::pin(async move { pool.acquire(bytes as u64).await }));
        None
    }

    /// Waits for the grant; for ever when there is nothing to wait for. Cancel safe.
    async fn granted(&mut self) {
        let Some(waiting) = &mut self.waiting else { return std::future::pending().await };
        let result = waiting.await;
        self.waiting = None;
        // Larger than the pool cannot be: every pool holds two of the largest frames.
        self.granted = result.ok();
    }
}

struct Sender {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    plain: Claim,
    high: Claim,
    /// The fencing lane's window refused a read in this round: plain reads may go on.
    is_high_refused: bool,
    /// While the socket takes nothing: bytes the kernel had taken when progress was last seen, and when that was.
    blocked: Option<(u64, u64)>,
}

/// Runs until the connection is closed.
pub async fn run(shared: Arc<Shared>, connection: Arc<Connection>) -> CloseReason {
    let mut sender = Sender {
        shared,
        connection,
        plain: Claim::default(),
        high: Claim::default(),
        is_high_refused: false,
        blocked: None,
    };
    let reason = sender.run().await;
    sender.connection.close();
    reason
}

impl Sender {
    async fn run(&mut self) -> CloseReason {
        let connection = self.connection.clone();
        loop {
            if connection.closed.is_set() {
                return CloseReason::Ours;
            }
            self.expire_polls();
            let has_more = self.start_reads().await;
            let is_blocked = match connection.flush_once(true) {
                Flush::Done => false,
                Flush::Left => true,
                Flush::Broken => return CloseReason::Peer,
            };
            if !is_blocked {
                self.blocked = None;
            } else if self.is_stalled() {
                return CloseReason::Stalled;
            }
            if has_more {
                tokio::task::yield_now().await;
                continue;
            }
            let poll_wait = self.until_next_poll();
            // Every branch is cancel safe: claims keep their place, notifications keep their permit.
            tokio::select! {
                biased;
                () = connection.closed.wait() => return CloseReason::Ours,
                () = connection.wake_sender.notified() => {}
                () = self.high.granted() => {}
                () = self.plain.granted() => {}
                result = connection.socket.writable(), if is_blocked => {
                    if let Err(error) = result {
                        return CloseReason::Socket(error.kind());
                    }
                }
                () = tokio::time::sleep(STALL_CHECK), if is_blocked => {}
                () = sleep_or_forever(poll_wait) => {}
            }
        }
    }

    /// Starts reads, fencing first. True when it stopped only to let others run.
    async fn start_reads(&mut self) -> bool {
        self.is_high_refused = false;
        // One reading of the clock for a whole turn, when there is something to start.
        let mut now_ns = None;
        for _ in 0..STARTS_MAX {
            let Some(mut request) = self.next_request() else { return false };
            request.started_ns = *now_ns.get_or_insert_with(|| self.begin_turn(&request));
            let request = if request.is_fence && request.wait_outcome.is_none() {
                match self.connection.reads.lock().await_fence(request) {
                    Some(request) => request,
                    None => continue,
                }
            } else {
                request
            };
            if !self.start(request).await {
                return false;
            }
        }
        true
    }

    /// The time of this turn. How long the first of it waited stands for all of them.
    fn begin_turn(&self, first: &ReadRequest) -> u64 {
        let now_ns = self.shared.clock.monotonic_ns();
        let waited_ns = now_ns.saturating_sub(first.received_ns);
        self.shared.metrics.stages.read_queue.record(0, now_ns, waited_ns, true);
        now_ns
    }

    fn next_request(&mut self) -> Option<ReadRequest> {
        let limits = &self.shared.limits;
        // Each lane has its own bound: loads that end wake this task.
        let high_has_room = !self.is_high_refused
            && self.high.waiting.is_none()
            && self.connection.outbox.high_loads() < limits.loads_in_flight_max;
        let mut reads = self.connection.reads.lock();
        if high_has_room && let Some(request) = reads.next_high() {
            return Some(request);
        }
        let has_room = self.connection.loads_in_flight.load(Ordering::Acquire) < limits.loads_in_flight_max;
        if !has_room || self.plain.waiting.is_some() {
            return None;
        }
        let next = reads.next_plain();
        if next.is_none() {
            // Nothing to use it for.
            self.plain.granted = None;
        }
        next
    }

    /// Starts one read; false when there is no room for it and it went back.
    async fn start(&mut self, request: ReadRequest) -> bool {
        let is_high = request.is_high;
        let (plan, request) = load::plan(&self.shared, &self.connection, request);
        let Some(request) = request else { return true };
        let charge = plan.charge();
        let (claim, pool) = if is_high {
            (&mut self.high, &self.shared.pools.outbound_priority)
        } else {
            (&mut self.plain, &self.shared.pools.outbound)
        };
        let Some(window) = self.connection.outbox.open_window(charge, is_high) else {
            // Bytes that cannot be used before the peer reads are for others.
            claim.granted = None;
            self.connection.reads.lock().put_back(request);
            self.is_high_refused |= is_high;
            return is_high;
        };
        let Some(permit) = claim.take(pool, charge) else {
            self.connection.outbox.close_window(window);
            self.connection.reads.lock().put_back(request);
            // Plain reads may go on while the fencing lane waits for bytes.
            return is_high;
        };
        let (request, plan, permit, window) = match plan {
            Plan::Disk(read, charge) => {
                match load::run_inline(&self.shared, &self.connection, request, read, permit, window) {
                    Ok(()) => return true,
                    Err((request, read, permit, window)) => {
                        (request, Plan::Disk(read, charge), permit, window)
                    }
                }
            }
            plan => (request, plan, permit, window),
        };
        // Disks free slots, peers do not: this wait is short.
        let slot = match plan {
            Plan::Disk(..) | Plan::Blocking(_) => Some(self.shared.io.slot(load::lane_of(&request)).await),
            Plan::Settled | Plan::Memory(..) => None,
        };
        load::run(&self.shared, &self.connection, request, plan, permit, window, slot);
        true
    }

    fn expire_polls(&self) {
        let now_ns = self.shared.clock.monotonic_ns();
        loop {
            let Some((request, id)) = self.connection.polls.lock().take_expired(now_ns) else { return };
            if let Some(id) = id {
                self.shared.engine.cancel_poll(request.ledger, id);
            }
            self.connection.end_poll(&self.shared, request, false);
        }
    }

    fn until_next_poll(&self) -> Option<Duration> {
        let deadline_ns = self.connection.polls.lock().next_deadline_ns()?;
        Some(Duration::from_nanos(deadline_ns.saturating_sub(self.shared.clock.monotonic_ns())))
    }

    /// A peer that takes nothing is closed, but only while others wait for bytes it may hold.
    fn is_stalled(&mut self) -> bool {
        let now_ns = self.shared.clock.monotonic_ns();
        let sent = self.connection.outbox.sent();
        let since_ns = match self.blocked {
            Some((sent_before, since_ns)) if sent_before == sent => since_ns,
            _ => {
                self.blocked = Some((sent, now_ns));
                return false;
            }
        };
        if now_ns - since_ns < self.shared.limits.stall_max.as_nanos() as u64 {
            return false;
        }
        let pools = &self.shared.pools;
        [&pools.outbound, &pools.outbound_priority, &pools.outbox, &pools.control].into_iter().any(|pool| {
            let gauge = pool.gauge();
            gauge.waiting > 0 || gauge.used > gauge.capacity / 10 * 9
        })
    }
}

async fn sleep_or_forever(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
