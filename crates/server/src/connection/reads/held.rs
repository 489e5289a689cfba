//! Reads that wait until their tenants have paid for earlier ones. They are descriptors, counted by their connection's queue.
//!
//! # Invariants
//! 1. Only plain reads of entries wait here. What fences, what has an answer already or its entry from object storage, what asks for no
//!    bytes, and what is of a ledger whose tenant is not known yet passes.
//! 2. Those of a tenant keep their order; those of others pass them.
//! 3. A read with a fencing one behind it in its line waits no longer ([`HeldReads::release`]).
//! 4. A held read is refused at the maximum age, as any other read ([`HeldReads::take_late`]).
//! 5. A paid line wakes the sender only after a turn that found no paid line. In any other turn a read did not start for want of memory or
//!    of a peer that takes answers, and that wait wakes the sender.

use crate::connection::Connection;
use crate::connection::request::{ReadKind, ReadRequest};
use crate::shared::Shared;
use crate::tenants::{InLine, Kind, LimitWait, Owner, Tenant};
use bindery_engine::LedgerPresence;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How often a wait looks whether the limit is another one.
const LOOK: Duration = Duration::from_millis(500);

struct Line {
    tenant: Arc<Tenant>,
    reads: VecDeque<ReadRequest>,
    waiting: LimitWait,
}

/// See the module.
#[derive(Default)]
pub struct HeldReads {
    lines: Vec<Line>,
    /// Of all of them.
    len: usize,
    /// The last search for a paid line in this turn found none.
    has_looked: bool,
    /// While the connection stands in line for memory.
    in_line: Option<InLine>,
}

fn until_paid(shared: &Shared, connection: &Connection, tenant: &Arc<Tenant>) -> Option<Duration> {
    if connection.draining.is_set() {
        return None;
    }
    let now_ns = shared.clock.monotonic_ns();
    connection.tenancy.lock().until_paid(tenant, Kind::Reads, now_ns)
}

/// The owner of a read. A ledger that is not here is not worth a look-up: no bytes of it are read.
fn owner_of(shared: &Shared, connection: &Connection, request: &ReadRequest) -> Option<Owner> {
    let tenants = shared.tenants.as_ref()?;
    let is_here = || shared.engine.presence(request.ledger) == LedgerPresence::Known;
    Some(connection.tenancy.lock().owner_of(tenants, connection.identity(), request.ledger, is_here))
}

/// Whether a read may wait here (invariant 1).
fn may_wait(request: &ReadRequest) -> bool {
    let has_bytes = matches!(request.kind, ReadKind::Entry | ReadKind::Batch(_) | ReadKind::Poll(_));
    // An entry in memory is not to wait there.
    let has_come = request.tier.as_ref().is_some_and(|tier| tier.arrived.is_some() || tier.failed.is_some());
    has_bytes && !has_come && !request.is_fence && request.wait_outcome.is_none()
}

/// How long until the sender looks at a line (invariant 5). `until_paid` is `None` for one that is paid.
fn wait_of(until_paid: Option<Duration>, has_looked: bool) -> Duration {
    match until_paid {
        Some(wait) => wait.min(LOOK),
        None if has_looked => Duration::ZERO,
        None => LOOK,
    }
}

impl HeldReads {
    /// Another turn of the sender begins.
    pub fn begin_turn(&mut self) {
        self.has_looked = false;
    }

    /// The first read whose tenant has paid.
    pub fn next(&mut self, shared: &Shared, connection: &Connection) -> Option<ReadRequest> {
        let is_paid = |line: &&mut Line| until_paid(shared, connection, &line.tenant).is_none();
        let next = self.lines.iter_mut().find(is_paid).and_then(|line| line.reads.pop_front());
        self.has_looked = next.is_none();
        if next.is_some() {
            self.count(shared, connection);
        }
        next
    }

    /// Ends empty lines, and tells the queue how many reads are left.
    fn count(&mut self, shared: &Shared, connection: &Connection) {
        let ended = self.lines.extract_if(.., |line| line.reads.is_empty());
        ended.for_each(|line| line.waiting.end(shared.clock.monotonic_ns()));
        self.len = self.lines.iter().map(|line| line.reads.len()).sum();
        connection.reads.lock().set_limited(self.len);
    }

    /// Keeps a plain read that has to wait, or gives it back.
    pub fn hold(
        &mut self,
        shared: &Shared,
        connection: &Connection,
        request: ReadRequest,
    ) -> Option<ReadRequest> {
        if !may_wait(&request) {
            return Some(request);
        }
        let owner = owner_of(shared, connection, &request).filter(|owner| owner.is_known);
        let Some(Owner { tenant, .. }) = owner else { return Some(request) };
        if let Some(line) = self.lines.iter_mut().find(|line| Arc::ptr_eq(&line.tenant, &tenant)) {
            line.reads.push_back(request);
            self.count(shared, connection);
            return None;
        }
        if until_paid(shared, connection, &tenant).is_none() {
            return Some(request);
        }
        let waiting = tenant.waits(Kind::Reads, shared.clock.monotonic_ns());
        self.lines.push(Line { tenant, reads: VecDeque::from([request]), waiting });
        self.count(shared, connection);
        None
    }

    /// Takes out the reads that others must not wait for (invariant 3).
    pub fn release(&mut self, shared: &Shared, connection: &Connection) -> Vec<ReadRequest> {
        let mut released = Vec::new();
        let queue = connection.reads.lock();
        for line in &mut self.lines {
            let reads = std::mem::take(&mut line.reads);
            let (awaited, others): (VecDeque<_>, _) =
                reads.into_iter().partition(|request| queue.is_before_fence(request));
            line.reads = others;
            released.extend(awaited);
        }
        drop(queue);
        self.count(shared, connection);
        released
    }

    /// Takes out up to `most` reads that are late (invariant 4).
    pub fn take_late(
        &mut self,
        shared: &Shared,
        connection: &Connection,
        most: usize,
        is_late: impl Fn(&ReadRequest) -> bool,
    ) -> Vec<ReadRequest> {
        let mut late = Vec::new();
        for line in &mut self.lines {
            while late.len() < most && line.reads.front().is_some_and(&is_late) {
                late.extend(line.reads.pop_front());
            }
        }
        if !late.is_empty() {
            self.count(shared, connection);
        }
        late
    }

    /// True when no read waits here.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How long until some read may go on, or until the next look (invariant 5).
    pub fn wait(&self, shared: &Shared, connection: &Connection) -> Option<Duration> {
        let waits = self
            .lines
            .iter()
            .map(|line| wait_of(until_paid(shared, connection, &line.tenant), self.has_looked));
        waits.min()
    }

    /// The bytes that the next turn at the pool is to bring, for a connection that does not stand in line now.
    pub fn quantum(&mut self, shared: &Shared, connection: &Connection, request: &ReadRequest) -> usize {
        self.leave_line();
        let base = connection.ahead_max;
        owner_of(shared, connection, request).map_or(base, |owner| owner.tenant.quantum(base))
    }

    /// The connection does not stand in line for memory any more.
    pub fn leave_line(&mut self) {
        self.in_line = None;
    }

    /// The connection stands in line for memory for this read.
    pub fn stand_in_line(&mut self, shared: &Shared, connection: &Connection, request: &ReadRequest) {
        self.in_line = owner_of(shared, connection, request).map(|owner| owner.tenant.stand_in_line());
    }
}

/// Counts the bytes that a read is answered with, for its tenant. Those of fences and recoveries were not held up.
pub fn take(shared: &Shared, connection: &Connection, request: &ReadRequest, bytes: usize) {
    let Some(Owner { tenant, .. }) = owner_of(shared, connection, request) else { return };
    let is_free = request.class.is_priority();
    let now_ns = shared.clock.monotonic_ns();
    connection.tenancy.lock().take(&tenant, Kind::Reads, bytes as u64, 1, is_free, now_ns);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::request::TierRead;
    use crate::tier::Failure;
    use bindery_engine::Refusal;

    #[test]
    fn what_has_an_answer_or_its_entry_does_not_wait() {
        let read = || ReadRequest::for_test(0, 7);
        assert!(may_wait(&read()));
        let parked_before = TierRead { parked: 1, ..TierRead::default() };
        assert!(may_wait(&ReadRequest { tier: Some(Box::new(parked_before)), ..read() }));
        let failed =
            TierRead { failed: Some((Failure::Lookup(Refusal::NoLedger), None)), ..TierRead::default() };
        assert!(!may_wait(&ReadRequest { tier: Some(Box::new(failed)), ..read() }));
        assert!(!may_wait(&ReadRequest { is_fence: true, ..read() }));
        assert!(!may_wait(&ReadRequest { wait_outcome: Some(Err(Refusal::TooManyRequests)), ..read() }));
        assert!(!may_wait(&ReadRequest { kind: ReadKind::Lac, ..read() }));
    }

    /// A read that is paid and cannot start, for want of memory or because its peer takes nothing, is no reason to look again at once.
    #[test]
    fn a_paid_line_wakes_the_sender_only_after_a_look_in_vain() {
        let ms = Duration::from_millis;
        assert_eq!([wait_of(Some(ms(3)), true), wait_of(Some(ms(3)), false)], [ms(3); 2]);
        assert_eq!(wait_of(Some(ms(3_000)), false), LOOK);
        assert_eq!([wait_of(None, true), wait_of(None, false)], [Duration::ZERO, LOOK]);
    }
}
