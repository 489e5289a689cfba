//! The sender task of a connection: starts its reads as its window and the pools allow, writes what the socket did not
//! take at once, and ends its long polls.
//!
//! # Invariants
//! 1. It never waits inside a step: bytes, slots of the I/O pool, the socket and deadlines are waited for all at once.
//!    So a read that waits for the disk holds up neither reads from memory nor writing.
//! 2. Reads are started while the peer takes what is loaded. From a drop of responses ([`Outbox::drop_responses`]) on,
//!    nothing is loaded before the socket takes bytes again, and then the frame of which the peer has a part goes first.
//! 3. A turn at a pool is used or given back before the task waits for its peer.
//! 4. What is larger than its pool is refused: no turn at it would ever be enough.
//!
//! [`Outbox::drop_responses`]: super::outbox::Outbox::drop_responses

use super::bulk;
use super::claim::Claim;
use super::disk_line::{DiskLine, waiting_max};
use super::load::{self, FOLLOWING_MAX, Granted, Plan, Together, Work};
use super::outbox::{Flush, Window};
use super::request::ReadRequest;
use super::stall::{self, Act, Shortage, Watch};
use super::{CloseReason, Connection};
use crate::io_pool::{self, Place};
use crate::shared::Shared;
use crate::yielding::after_all_others;
use bindery_engine::{FoundRun, Refusal};
use bindery_flow::{ByteBudget, Permit};
use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

/// Reads started before the sender looks at the socket again: half a millisecond of work. Those that are read together
/// with the last one come with it.
const STARTS_MAX: usize = 64;
/// Long polls that time out in one turn, before reads are started, bytes are written and other connections run.
const EXPIRED_MAX: usize = 256;
/// A peer that does not read is looked at so often, or more often when drops come sooner.
const STALL_CHECK: Duration = Duration::from_millis(250);

/// What a turn of a connection sent.
enum Sent {
    /// Whatever there was.
    All,
    /// What the peer takes now.
    Part,
    /// Nothing: it is the turn of others.
    Nothing,
    /// The connection broke.
    Broken,
}

/// One of the two kinds of reads: plain; fencing and high priority.
struct Lane {
    is_high: bool,
    claim: Claim,
    /// By the place that they wait for; as many as were needed.
    disks: Vec<DiskLine<Work>>,
    /// Its window or its pool refused a read in this round.
    is_refused: bool,
}

impl Lane {
    fn new(is_high: bool, quantum: usize) -> Lane {
        Lane { is_high, claim: Claim::new(quantum), disks: Vec::new(), is_refused: false }
    }

    fn pool<'a>(&self, shared: &'a Shared) -> &'a ByteBudget {
        if self.is_high { &shared.pools.outbound_priority } else { &shared.pools.outbound }
    }

    fn of_io(&self) -> io_pool::Lane {
        if self.is_high { io_pool::Lane::High } else { io_pool::Lane::Plain }
    }

    /// Those that wait for a place.
    fn disk(&mut self, place: Place) -> &mut DiskLine<Work> {
        let lane = self.of_io();
        while self.disks.len() <= place.index() {
            self.disks.push(DiskLine::new(lane));
        }
        &mut self.disks[place.index()]
    }

    /// Reads that would find a place wherever they turn out to be.
    fn room(&self) -> usize {
        let rooms = self.disks.iter().map(DiskLine::room);
        rooms.min().unwrap_or_else(|| waiting_max(self.of_io()))
    }

    /// Keeps a read for the next round.
    fn put_back(&mut self, connection: &Connection, request: ReadRequest, from: Option<Place>) {
        self.is_refused = true;
        match from {
            Some(place) => self.disk(place).wait(iter::once(request), true),
            None => connection.reads.lock().put_back(request),
        }
    }

    /// True when a load may begin there.
    fn may_load(&self, shared: &Shared, connection: &Connection, place: Place) -> bool {
        let under_way = connection.loads_in_flight(place, self.is_high).load(Ordering::Acquire);
        let is_free = self.disks.get(place.index()).is_none_or(DiskLine::is_free);
        is_free && under_way < shared.limits.loads_in_flight_max
    }

    /// The first read that waits for a place where a load may begin, and that place.
    fn next_from_disks(&mut self, shared: &Shared, connection: &Connection) -> Option<(ReadRequest, Place)> {
        for place in shared.io.places().take(self.disks.len()) {
            if self.may_load(shared, connection, place)
                && let Some(request) = self.disk(place).next()
            {
                return Some((request, place));
            }
        }
        None
    }
}

/// Waits for a slot for one of the loads that wait for one; for ever when none does. Cancel safe: places are kept.
async fn granted(disks: &mut [DiskLine<Work>]) {
    std::future::poll_fn(|context| {
        let is_granted = disks.iter_mut().any(|disk| disk.poll_granted(context).is_ready());
        if is_granted { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl Lane {
    /// Bytes and room for a read, if its pool and its window have them now.
    fn grant(&mut self, shared: &Shared, connection: &Connection, charge: usize) -> Option<(Permit, Window)> {
        let Some(window) = connection.outbox.open_window(charge, self.is_high) else {
            // Bytes that cannot be used before the peer reads are for others (invariant 3).
            self.claim.end_turn();
            return None;
        };
        let backlog = charge.saturating_mul(1 + connection.reads.lock().len());
        let Some(permit) = self.claim.take(self.pool(shared), charge, backlog) else {
            connection.outbox.close_window(window);
            return None;
        };
        Some((permit, window))
    }

    /// What can be read together with a read: those behind it that have places should they have to wait for the disk.
    fn find_together(
        &self,
        shared: &Shared,
        connection: &Connection,
        first: &Granted,
        from: Option<Place>,
    ) -> Option<FoundRun> {
        let following = match from {
            _ if self.is_high => 0,
            Some(place) => self.disks[place.index()].count_following(&first.request, FOLLOWING_MAX),
            None => {
                let most = FOLLOWING_MAX.min(self.room() - 1);
                connection.reads.lock().count_following(&first.request, most)
            }
        };
        Together::find(shared, first, following)
    }

    /// A read and those behind it that were found together with it, as far as there are bytes for them.
    fn gather(
        &mut self,
        shared: &Shared,
        connection: &Connection,
        (found, first): (FoundRun, Granted),
        from: Option<Place>,
    ) -> Together {
        let started_ns = first.request.started_ns;
        let mut together = Together::new(found, first);
        while let Some((last, charge)) = together.next() {
            let Some((permit, window)) = self.grant(shared, connection, charge) else { break };
            let next = match from {
                Some(place) => self.disk(place).next_following(last),
                None => connection.reads.lock().next_following(last),
            };
            let Some(request) = next else {
                connection.outbox.close_window(window);
                break;
            };
            together.push(Granted { request: ReadRequest { started_ns, ..request }, permit, window });
        }
        together
    }
}

/// Invariant 4. Such an entry was accepted with a larger limit on frames: every pool holds two of the largest.
fn log_too_large(connection: &Connection, request: &ReadRequest, bytes: usize, pool: &ByteBudget) {
    tracing::error!(
        ledger = request.ledger.get(),
        entry = request.entry,
        bytes,
        pool = pool.name(),
        capacity = pool.capacity(),
        peer = %connection.peer(),
        "a read takes more bytes than its pool has, and is answered with an I/O error: start this bookie with the \
         nettyMaxFrameSizeBytes that the entry was written with; others of this connection are not logged"
    );
}

struct Sender {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    /// Fencing first.
    lanes: [Lane; 2],
    bulk: bulk::Place,
    watch: Watch,
    /// The socket took less than there was, as the connection's [`super::peer_time`] knows.
    is_peer_awaited: bool,
    /// Responses were dropped, and the socket has taken nothing since.
    is_silent: bool,
    /// The rest of a dropped frame is on its way.
    has_part_begun: bool,
    /// Once for a connection is enough.
    has_logged_too_large: bool,
}

/// Runs until the connection is closed.
pub async fn run(shared: Arc<Shared>, connection: Arc<Connection>) -> CloseReason {
    let quantum = connection.ahead_max;
    let mut sender = Sender {
        shared,
        connection,
        lanes: [Lane::new(true, quantum), Lane::new(false, quantum)],
        bulk: bulk::Place::default(),
        watch: Watch::default(),
        is_peer_awaited: false,
        is_silent: false,
        has_part_begun: false,
        has_logged_too_large: false,
    };
    let reason = sender.run().await;
    sender.connection.close();
    reason
}

impl Sender {
    async fn run(&mut self) -> CloseReason {
        let connection = self.connection.clone();
        let rules = self.shared.limits.stall;
        let stall_check = STALL_CHECK.min(rules.drop_after.max(Duration::from_millis(10)));
        // Nothing happened but that time went by: only the peer is looked at. A thousand that take nothing are to cost nothing.
        let mut is_look = false;
        loop {
            if connection.closed.is_set() {
                return CloseReason::Ours;
            }
            let has_expired = self.expire_polls();
            let (mut has_more, sent) = if is_look { (false, Sent::Part) } else { self.take_turn() };
            is_look = false;
            match sent {
                Sent::Nothing => {}
                Sent::All => self.on_all_sent(),
                Sent::Part => {
                    if let Some(reason) = self.on_blocked() {
                        return reason;
                    }
                }
                Sent::Broken => return CloseReason::Peer,
            }
            has_more |= has_expired;
            let is_blocked = matches!(sent, Sent::Part);
            let have_others_run = self.bulk.end().await;
            if has_more {
                if !have_others_run {
                    after_all_others().await;
                }
                continue;
            }
            let poll_wait = self.until_next_poll();
            let [high, plain] = &mut self.lanes;
            // Every branch is cancel safe: places in line are kept, notifications keep their permit.
            tokio::select! {
                biased;
                () = connection.closed.wait() => return CloseReason::Ours,
                () = connection.wake_sender.notified() => {}
                () = high.claim.granted() => {}
                () = plain.claim.granted() => {}
                () = granted(&mut high.disks) => {}
                () = granted(&mut plain.disks) => {}
                () = self.bulk.granted() => {}
                result = connection.socket.writable(), if is_blocked => {
                    if let Err(error) = result {
                        return CloseReason::Socket(error.kind());
                    }
                    self.is_silent = false;
                    // Waiting for a turn is no time of the peer's.
                    self.end_peer_wait();
                }
                () = tokio::time::sleep(stall_check), if is_blocked => is_look = true,
                () = sleep_or_forever(poll_wait) => {}
            }
        }
    }

    /// Starts reads and writes when it is this connection's turn. True when it stopped only to let others run.
    fn take_turn(&mut self) -> (bool, Sent) {
        self.run_granted();
        let is_my_turn = self.may_start();
        let mut has_more = false;
        if self.is_silent || self.has_to_wait_for_part() {
            self.end_turns();
        } else if is_my_turn {
            has_more = self.start_reads();
        }
        if !is_my_turn {
            return (has_more, Sent::Nothing);
        }
        let sent = match self.connection.flush_once(true) {
            Flush::Done | Flush::Held if !self.is_silent => Sent::All,
            Flush::Done | Flush::Held | Flush::Left => Sent::Part,
            Flush::Broken => Sent::Broken,
        };
        (has_more, sent)
    }

    /// True when it is the turn of this connection's reads (bulk invariant 2). Bytes that came are not kept waiting.
    fn may_start(&mut self) -> bool {
        let held = self.connection.reads.lock().len();
        self.lanes.iter().any(|lane| lane.claim.has_turn()) || self.bulk.may_start(&self.shared.bulk, held)
    }

    /// Gives back turns that came while nothing may be loaded (invariant 3).
    fn end_turns(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.claim.end_turn());
    }

    /// Runs loads whose slots have come.
    fn run_granted(&mut self) {
        for disk in self.lanes.iter_mut().flat_map(|lane| &mut lane.disks) {
            if let Some((work, slot)) = disk.take_granted() {
                load::run(&self.shared, &self.connection, work, slot);
            }
        }
    }

    /// The peer has a part of a frame, whose rest must be loaded before anything else (invariant 2): begins that.
    fn has_to_wait_for_part(&mut self) -> bool {
        let Some(part) = self.connection.outbox.part() else {
            self.has_part_begun = false;
            return false;
        };
        if self.has_part_begun {
            return true;
        }
        let place = load::place_of_part(&self.shared, &part);
        let lane = &mut self.lanes[usize::from(!part.is_high)];
        if !lane.disk(place).is_free() {
            return true;
        }
        let charge = load::charge_of_part(&part);
        let Some(permit) = lane.claim.take(lane.pool(&self.shared), charge, charge) else { return true };
        lane.claim.end_turn();
        let window = self.connection.outbox.open_window_of_part(charge, part.is_high);
        let work = Work::Part(part, permit, window);
        if let Some((work, slot)) = lane.disk(place).begin(&self.shared, place, work) {
            load::run(&self.shared, &self.connection, work, slot);
        }
        self.has_part_begun = true;
        true
    }

    /// Starts reads, fencing first. True when it stopped only to let others run.
    fn start_reads(&mut self) -> bool {
        for lane in &mut self.lanes {
            lane.is_refused = false;
        }
        let mut started = 0;
        // One reading of the clock for a whole turn, when there is something to start.
        let mut now_ns = None;
        for at in 0..self.lanes.len() {
            while started < STARTS_MAX {
                let Some((mut request, from)) = self.next_request(at) else { break };
                request.started_ns = *now_ns.get_or_insert_with(|| self.begin_turn(&request));
                let request = if request.is_fence && request.wait_outcome.is_none() {
                    match self.connection.reads.lock().await_fence(request) {
                        Some(request) => request,
                        None => {
                            started += 1;
                            continue;
                        }
                    }
                } else {
                    request
                };
                started += self.start(at, request, from);
            }
        }
        started >= STARTS_MAX
    }

    /// Reads the clock for a turn that begins with `first`, and notes how long that has waited.
    fn begin_turn(&self, first: &ReadRequest) -> u64 {
        let now_ns = self.shared.clock.monotonic_ns();
        let waited_ns = now_ns.saturating_sub(first.received_ns);
        self.shared.metrics.stages.read_queue.record(0, now_ns, waited_ns, true);
        now_ns
    }

    /// The next read of a lane, and where it waited for a disk before.
    fn next_request(&mut self, at: usize) -> Option<(ReadRequest, Option<Place>)> {
        let lane = &mut self.lanes[at];
        if lane.is_refused || lane.claim.is_waiting() {
            return None;
        }
        if let Some((request, place)) = lane.next_from_disks(&self.shared, &self.connection) {
            return Some((request, Some(place)));
        }
        if lane.room() > 0 {
            let mut reads = self.connection.reads.lock();
            let next = if lane.is_high { reads.next_high() } else { reads.next_plain() };
            if let Some(request) = next {
                return Some((request, None));
            }
        }
        // Nothing to use it for (invariant 3).
        lane.claim.end_turn();
        None
    }

    /// Starts one read, with those behind it that can be read together with it, or puts it back. Returns how many came
    /// to something.
    fn start(&mut self, at: usize, request: ReadRequest, from: Option<Place>) -> usize {
        let (shared, connection) = (&self.shared, &self.connection);
        let lane = &mut self.lanes[at];
        let (plan, request) = load::plan(shared, connection, request);
        let Some(request) = request else { return 1 };
        if plan.charge() as u64 > lane.pool(shared).capacity() {
            if !std::mem::replace(&mut self.has_logged_too_large, true) {
                log_too_large(connection, &request, plan.charge(), lane.pool(shared));
            }
            load::answer_failure(shared, connection, &request, Refusal::Io);
            return 1;
        }
        let place = plan.place(shared);
        if let Some(place) = place.filter(|_| plan.may_wait())
            && !lane.may_load(shared, connection, place)
        {
            lane.disk(place).wait(iter::once(request), from == Some(place));
            return 1;
        }
        let Some((permit, window)) = lane.grant(shared, connection, plan.charge()) else {
            lane.put_back(connection, request, from);
            return 1;
        };
        let granted = Granted { request, permit, window };
        let (work, count) = match plan {
            Plan::Settled => unreachable!("a settled plan gives no request back"),
            Plan::Memory(bytes, _) => {
                load::answer_from_memory(shared, connection, granted, &bytes);
                return 1;
            }
            Plan::Disk(read, _) => match lane.find_together(shared, connection, &granted, from) {
                Some(found) => {
                    let together = lane.gather(shared, connection, (found, granted), from);
                    let count = together.len();
                    match together.run_inline(shared, connection) {
                        None => return count,
                        Some(rest) => (Work::Together(rest), count),
                    }
                }
                None => match load::run_inline(shared, connection, granted, read) {
                    Ok(()) => return 1,
                    Err(given_back) => (Work::Entry(given_back.0, given_back.1), 1),
                },
            },
            Plan::Batch(batch, ..) => match batch.run_inline(shared, connection, granted) {
                Ok(starts) => return starts,
                Err(given_back) => {
                    let starts = given_back.1.starts();
                    (Work::Batch(given_back.0, given_back.1), starts)
                }
            },
            Plan::Blocking(..) => (Work::Whole(granted), 1),
        };
        let place = place.expect("entries in memory are answered above");
        if !lane.may_load(shared, connection, place) {
            lane.disk(place).wait(work.give_up(connection).into_iter(), from == Some(place));
        } else if let Some((work, slot)) = lane.disk(place).begin(shared, place, work) {
            load::run(shared, connection, work, slot);
        }
        count
    }

    /// Ends some of the long polls whose time is over. True when there may be more.
    fn expire_polls(&self) -> bool {
        let now_ns = self.shared.clock.monotonic_ns();
        for _ in 0..EXPIRED_MAX {
            let Some((request, id)) = self.connection.polls.lock().take_expired(now_ns) else { return false };
            if let Some(id) = id {
                self.shared.engine.cancel_poll(request.ledger, id);
            }
            self.connection.end_poll(&self.shared, request, false);
        }
        true
    }

    fn until_next_poll(&self) -> Option<Duration> {
        let deadline_ns = self.connection.polls.lock().next_deadline_ns()?;
        Some(Duration::from_nanos(deadline_ns.saturating_sub(self.shared.clock.monotonic_ns())))
    }

    /// The peer has taken everything.
    fn on_all_sent(&mut self) {
        self.watch.reset();
        self.end_peer_wait();
    }

    /// The peer keeps nothing waiting, until the socket takes no more again.
    fn end_peer_wait(&mut self) {
        if std::mem::take(&mut self.is_peer_awaited) {
            self.connection.peer_time.lock().end(self.shared.clock.monotonic_ns());
        }
    }

    /// The peer takes nothing now: drops what the peer holds when others need that. Returns why the connection is to be
    /// closed, if it is.
    fn on_blocked(&mut self) -> Option<CloseReason> {
        let in_use = self.connection.outbox.in_use();
        let now_ns = self.shared.clock.monotonic_ns();
        if !std::mem::replace(&mut self.is_peer_awaited, true) {
            self.connection.peer_time.lock().begin(now_ns);
        }
        let idle = self.watch.look(now_ns, in_use.sent);
        if idle.is_zero() {
            return None;
        }
        let connection = &self.connection;
        let pools = &self.shared.pools;
        let entries = Shortage::of(pools.outbound.gauge()).max(Shortage::of(pools.outbound_priority.gauge()));
        let rest = [
            (in_use.leased > 0, Shortage::of(pools.outbox.gauge())),
            (connection.reads.lock().leased_bytes() > 0, Shortage::of(pools.control.gauge())),
        ];
        let can_drop = in_use.queued > 0 && connection.outbox.may_drop();
        let rules = self.shared.limits.stall;
        match stall::judge(rules, idle, (can_drop, entries), rest) {
            Act::Nothing => None,
            Act::Drop => {
                let (requests, bytes) = connection.outbox.drop_responses();
                let metrics = &self.shared.metrics;
                metrics.responses_dropped.add(requests.len() as u64);
                metrics.responses_dropped_bytes.add(bytes);
                tracing::debug!(peer = %connection.peer, bytes, responses = requests.len(), "responses dropped");
                connection.reads.lock().take_back(requests);
                self.is_silent = true;
                None
            }
            Act::Close => Some(CloseReason::Stalled {
                bytes_held: (in_use.queued + in_use.leased) as u64,
                took_nothing_for: idle,
            }),
        }
    }
}

async fn sleep_or_forever(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
