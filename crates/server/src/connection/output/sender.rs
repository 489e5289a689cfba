//! The sender task of a connection: starts its reads as its window and the pools allow, writes what the socket did not
//! take at once, and ends its long polls.
//!
//! # Invariants
//! 1. It never waits inside a step: it waits for bytes, slots of the I/O pool, the socket and deadlines all at once. So
//!    a read that waits for the disk holds up neither reads from memory, nor those of another disk, nor writing.
//! 2. Reads are started while the peer takes what is loaded. From a drop of responses ([`Outbox::drop_responses`]) on,
//!    nothing is loaded before the socket takes bytes again, and then the frame of which the peer has a part goes first.
//! 3. A turn at a pool is used or given back before the task waits for its peer.
//! 4. A load larger than its pool is refused: no turn at the pool would ever be enough.
//! 5. A read that waits for a disk is refused at the maximum age also while that disk takes no more loads. It is refused
//!    earlier when its connection is not read for want of room for more reads, and the disk has been silent for
//!    [`crate::limits::Limits::admission_deadline`]: later requests may need another disk, or none.
//! 6. Plain reads of a tenant over its limit are set aside, and no others wait for them ([`crate::connection::reads::held`]). At the maximum
//!    age they are refused.
//! 7. Answers of adds and fences stand in no line of reads. Without TLS whoever has them writes them; over TLS it is this task,
//!    also when it is not its turn.
//!
//! [`Outbox::drop_responses`]: crate::connection::output::outbox::Outbox::drop_responses

use crate::connection::output::outbox::{Flush, Window};
use crate::connection::output::stall::{self, Act, Shortage, Watch};
use crate::connection::reads::disk_queue::DiskQueue;
use crate::connection::reads::fair_share::FairShare;
use crate::connection::reads::held::HeldReads;
use crate::connection::reads::load::{self, FOLLOWING_MAX, Granted, Plan, Together, Work};
use crate::connection::request::ReadRequest;
use crate::connection::slice_turns::SlicePlace;
use crate::connection::{CloseReason, Connection};
use crate::io_pool::Place;
use crate::read_class::{PerClass, ReadClass};
use crate::shared::Shared;
use crate::yielding::after_all_others;
use bindery_engine::{FoundRun, Refusal};
use bindery_flow::{ByteBudget, Permit};
use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// Reads started before the sender looks at the socket again: half a millisecond of work. Those that are read together
/// with the last one come with it.
const STARTS_MAX: usize = 64;
/// Long polls that time out in one turn, before reads are started, bytes are written and other connections run.
const EXPIRED_MAX: usize = 256;
/// Reads refused in one turn that wait for a disk for too long.
const LATE_MAX: usize = 64;
/// How often the ages of reads that wait for a disk are checked; more often with a low maximum age.
const LATE_CHECK: Duration = Duration::from_secs(1);
/// So often while their connection is not read because of them.
const UNREAD_CHECK: Duration = Duration::from_millis(100);
/// How often a peer that does not read is checked, at least; more often when drops come sooner.
const STALL_CHECK: Duration = Duration::from_millis(250);

/// How often to check whether all answers of a connection with used-up keys have left.
const WORN_CHECK: Duration = Duration::from_millis(20);

/// What a turn of a connection sent.
enum Sent {
    /// Whatever there was.
    All,
    /// As much as the peer takes now.
    Part,
    /// Nothing: it is the turn of others.
    Nothing,
    /// The connection broke.
    Broken,
}

/// Why a read gets no bytes now.
enum Lack {
    /// Its peer is to take something first.
    Peer,
    /// Its disk is to finish a load of this class first.
    Disk,
    /// The pool has none.
    Pool,
}

/// The reads of one class.
struct ClassReads {
    class: ReadClass,
    claim: FairShare,
    /// By the place that they wait for; as many as were needed.
    disks: Vec<DiskQueue>,
    /// The peer or the pool refused a read in this round.
    is_refused: bool,
}

impl ClassReads {
    fn new(class: ReadClass, quantum: usize) -> ClassReads {
        ClassReads { class, claim: FairShare::new(quantum), disks: Vec::new(), is_refused: false }
    }

    fn pool<'a>(&self, shared: &'a Shared) -> &'a ByteBudget {
        if self.class.is_priority() { &shared.pools.outbound_priority } else { &shared.pools.outbound }
    }

    /// Those that wait for a place.
    fn disk(&mut self, shared: &Shared, place: Place) -> &mut DiskQueue {
        let class = self.class;
        let missing = shared.io.places().take(place.index() + 1).skip(self.disks.len());
        self.disks.extend(missing.map(|at| DiskQueue::new(at, class)));
        &mut self.disks[place.index()]
    }

    /// Loads of this class that a place has.
    fn under_way(&self, connection: &Connection, place: Place) -> usize {
        connection.loads_in_flight(place, self.class).load(Ordering::Acquire)
    }

    /// Keeps a read for the next round, at the front of where it came from.
    fn put_back(
        &mut self,
        shared: &Shared,
        connection: &Connection,
        request: ReadRequest,
        to: Option<Place>,
    ) {
        match to {
            Some(place) => self.disk(shared, place).wait(iter::once(request), true),
            None => connection.reads.lock().put_back(request),
        }
    }

    /// The first read that waits for a place where a load may begin, and that place; those first for which a slot came.
    fn next_from_disks(&mut self, shared: &Shared, connection: &Connection) -> Option<(ReadRequest, Place)> {
        for is_with_slot in [true, false] {
            for place in shared.io.places().take(self.disks.len()) {
                let under_way = self.under_way(connection, place);
                let disk = &mut self.disks[place.index()];
                if !disk.is_waiting() {
                    disk.give_up_slot();
                    continue;
                }
                let has_turn = disk.has_slot() || under_way < loads_max(shared, place);
                let is_next = disk.has_slot() == is_with_slot && disk.may_begin(under_way);
                if has_turn
                    && is_next
                    && let Some(request) = disk.next()
                {
                    return Some((request, place));
                }
            }
        }
        None
    }

    /// Gives back slots that are there to be used, but for that of `kept`.
    fn give_up_slots(&mut self, kept: Option<Place>) {
        for (index, disk) in self.disks.iter_mut().enumerate() {
            if disk.has_slot() && kept.is_none_or(|place| place.index() != index) {
                disk.give_up_slot();
            }
        }
    }
}

/// Waits for a slot of one of these disks; for ever when none of them is awaited. Cancel safe: places are kept.
async fn granted(disks: &mut [DiskQueue]) {
    std::future::poll_fn(|context| {
        let is_granted = disks.iter_mut().any(|disk| disk.poll_granted(context).is_ready());
        if is_granted { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl ClassReads {
    /// Bytes and room for a read, if its pool and its window have them now. `on` is the place where a slot is there for it.
    fn grant(
        &mut self,
        shared: &Shared,
        connection: &Connection,
        charge: usize,
        on: Option<Place>,
    ) -> Result<(Permit, Window), Lack> {
        let window = match on {
            Some(place) => {
                let window = connection.outbox.open_window_on_disk(charge, self.class, place.index());
                window.ok_or(Lack::Disk)?
            }
            None => {
                let Some(window) = connection.outbox.open_window(charge, self.class) else {
                    // Bytes that cannot be used before the peer reads are for others (invariant 3).
                    self.claim.end_turn();
                    return Err(Lack::Peer);
                };
                window
            }
        };
        let backlog = charge.saturating_mul(1 + connection.reads.lock().in_hand());
        let Some(permit) = self.claim.take(self.pool(shared), charge, backlog) else {
            connection.outbox.close_window(window);
            return Err(Lack::Pool);
        };
        Ok((permit, window))
    }

    /// What can be read together with a read: those behind it.
    fn find_together(
        &self,
        shared: &Shared,
        connection: &Connection,
        first: &Granted,
        from: Option<Place>,
    ) -> Option<FoundRun> {
        let following = match from {
            _ if self.class.is_priority() => 0,
            Some(place) => self.disks[place.index()].count_following(&first.request, FOLLOWING_MAX),
            None => connection.reads.lock().count_following(&first.request, FOLLOWING_MAX),
        };
        Together::find(shared, first, following)
    }

    /// A read and those behind it that were found together with it, as far as there are bytes for them.
    fn gather(
        &mut self,
        shared: &Shared,
        connection: &Connection,
        (found, first): (FoundRun, Granted),
        (from, on): (Option<Place>, Option<Place>),
    ) -> Together {
        let started_ns = first.request.started_ns;
        let mut together = Together::new(found, first);
        while let Some((last, charge)) = together.next() {
            let Ok((permit, window)) = self.grant(shared, connection, charge, on) else { break };
            let next = match from {
                Some(place) => self.disk(shared, place).next_following(last),
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

    /// Has a place begin a load, or keeps its reads until that may. `on` as for [`ClassReads::grant`].
    fn begin(
        &mut self,
        shared: &Arc<Shared>,
        connection: &Arc<Connection>,
        mut work: Work,
        place: Place,
        (from, on): (Option<Place>, Option<Place>),
    ) {
        let (class, bytes) = (self.class, work.bytes());
        // Looked at before the window: a load that ends in between makes it another number.
        let under_way = self.under_way(connection, place);
        let disk = self.disk(shared, place);
        let is_first = from == Some(place);
        let may_begin =
            on.is_some() || (under_way < loads_max(shared, place) && (is_first || disk.is_free()));
        if may_begin {
            let outbox = &connection.outbox;
            let has_room =
                on.is_some() || outbox.move_to_disk(bytes as usize, work.windows(), class, place.index());
            if !has_room {
                disk.is_full_with(under_way);
            } else if let Some(slot) = disk.slot(shared, bytes) {
                return load::run(shared, connection, work, slot);
            }
        }
        disk.wait(work.give_up(connection).into_iter(), is_first);
    }

    /// Gets a slot for a read that begins with one, before it takes bytes. False when it has to wait.
    fn has_slot_for(
        &mut self,
        shared: &Arc<Shared>,
        connection: &Connection,
        bytes: usize,
        place: Place,
        from: Option<Place>,
    ) -> bool {
        let under_way = self.under_way(connection, place);
        let disk = self.disk(shared, place);
        if from != Some(place) && !disk.is_free() {
            return false;
        }
        if !disk.has_slot() && under_way >= loads_max(shared, place) {
            return false;
        }
        let slot = disk.slot(shared, bytes as u64);
        let has_slot = slot.is_some();
        slot.into_iter().for_each(|slot| disk.keep(slot));
        has_slot
    }
}

/// Loads that a connection may have in a place.
fn loads_max(shared: &Shared, place: Place) -> usize {
    shared.io.loads_max(place, shared.limits.loads_in_flight_max)
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
        "a read needs more bytes than its pool has, and is answered with an I/O error: restart this bookie with the \
         nettyMaxFrameSizeBytes that the entry was written with; further such reads on this connection are not \
         logged"
    );
}

struct Sender {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    classes: PerClass<ClassReads>,
    bulk: SlicePlace,
    /// Plain reads whose tenants are over their limits.
    held: HeldReads,
    /// The sequence number of the plain read that could not start and went back to the front of the queue, where there are tenants.
    put_back: Option<u64>,
    watch: Watch,
    /// The socket took less than there was, as the connection's [`crate::connection::output::peer_time`] knows.
    is_peer_awaited: bool,
    /// Responses were dropped, and the socket has taken nothing since.
    is_silent: bool,
    /// The rest of a dropped frame is on its way.
    has_part_begun: bool,
    /// Where the rest of a dropped frame waits for a slot: the class of its read, and the place.
    part_waits: Option<(ReadClass, Place)>,
    /// When the ages of reads that wait for a disk, or for a limit, are checked next, while some wait.
    late_at: Option<Instant>,
    /// Once for a connection is enough.
    has_logged_too_large: bool,
}

/// Runs until the connection is closed.
pub async fn run(shared: Arc<Shared>, connection: Arc<Connection>) -> CloseReason {
    let quantum = connection.ahead_max;
    let mut sender = Sender {
        shared,
        connection,
        classes: PerClass {
            plain: ClassReads::new(ReadClass::Plain, quantum),
            priority: ClassReads::new(ReadClass::Priority, quantum),
        },
        bulk: SlicePlace::default(),
        held: HeldReads::default(),
        put_back: None,
        watch: Watch::default(),
        is_peer_awaited: false,
        is_silent: false,
        has_part_begun: false,
        part_waits: None,
        late_at: None,
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
        // When only time has passed, only the peer is checked. A thousand peers that take nothing must cost nothing.
        let mut is_look = false;
        loop {
            if connection.closed.is_set() {
                return CloseReason::Ours;
            }
            let has_expired = self.expire_polls() | self.refuse_late();
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
                Sent::Broken if connection.transport.has_worn_keys() => return CloseReason::KeysUsedUp,
                Sent::Broken => return CloseReason::Peer,
            }
            let is_worn = connection.transport.has_worn_keys();
            if is_worn {
                // As at a stop: answer the requests that have arrived.
                connection.stop_reading();
                if connection.is_drained() {
                    return CloseReason::KeysUsedUp;
                }
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
            let late_at = self.next_look_at_late();
            let held_wait = self.held.wait(&self.shared, &connection);
            let PerClass { plain, priority } = &mut self.classes;
            // Every branch is cancel safe: places in line are kept, notifications keep their permit.
            tokio::select! {
                biased;
                () = connection.closed.wait() => return CloseReason::Ours,
                () = connection.wake_sender.notified() => {}
                () = priority.claim.granted() => {}
                () = plain.claim.granted() => {}
                () = granted(&mut priority.disks) => {}
                () = granted(&mut plain.disks) => {}
                () = self.bulk.granted() => {}
                result = connection.transport.writable(), if is_blocked => {
                    if let Err(error) = result {
                        return CloseReason::Socket(error.kind());
                    }
                    self.is_silent = false;
                    // Waiting for a turn is no time of the peer's.
                    self.end_peer_wait();
                }
                () = tokio::time::sleep(stall_check), if is_blocked => is_look = true,
                () = tokio::time::sleep(WORN_CHECK), if is_worn => {}
                () = sleep_or_forever(poll_wait) => {}
                () = sleep_or_forever(held_wait) => {}
                () = sleep_until_or_forever(late_at) => {}
            }
        }
    }

    /// Starts reads and writes when it is this connection's turn, and over TLS writes a little otherwise (invariant 7). True
    /// when it stopped only to let others run.
    fn take_turn(&mut self) -> (bool, Sent) {
        self.held.begin_turn();
        let is_my_turn = self.may_start();
        let mut has_more = false;
        if self.is_silent || self.has_to_wait_for_part() {
            self.end_turns();
        } else if is_my_turn {
            has_more = self.start_reads();
        }
        if !self.classes.plain.claim.is_waiting() {
            self.held.leave_line();
        }
        if !is_my_turn && !self.connection.transport.is_tls() {
            return (has_more, Sent::Nothing);
        }
        let sent = match self.connection.flush_once(is_my_turn) {
            // The peer would take more: in its turn.
            Flush::Left if !is_my_turn && !self.connection.transport.has_pending() => Sent::Nothing,
            Flush::Done | Flush::Held if !self.is_silent => Sent::All,
            Flush::Done | Flush::Held | Flush::Left => Sent::Part,
            Flush::Broken => Sent::Broken,
        };
        (has_more, sent)
    }

    /// Whether this connection may start reads now. It may when the pool granted it bytes or a disk granted it a slot, which must not
    /// lie idle; otherwise with few reads in hand, or when its slice has come (slice_turns invariant 2). Queues for a slice if not.
    fn may_start(&mut self) -> bool {
        let held = self.connection.reads.lock().in_hand();
        let has_turn = |of_class: &ClassReads| {
            of_class.claim.has_turn() || of_class.disks.iter().any(DiskQueue::has_slot)
        };
        self.classes.iter().any(has_turn) || self.bulk.may_start(&self.shared.bulk, held)
    }

    /// Gives back turns and slots that came while nothing may be loaded (invariant 3), but for what the rest of a frame needs.
    fn end_turns(&mut self) {
        let part_waits = self.part_waits.filter(|_| !self.is_silent);
        for of_class in self.classes.iter_mut() {
            of_class.claim.end_turn();
            of_class
                .give_up_slots(part_waits.filter(|(class, _)| *class == of_class.class).map(|(_, at)| at));
        }
    }

    /// The peer has a part of a frame, whose rest must be loaded before anything else (invariant 2): begins that.
    fn has_to_wait_for_part(&mut self) -> bool {
        self.part_waits = None;
        let Some(part) = self.connection.outbox.part() else {
            self.has_part_begun = false;
            return false;
        };
        if self.has_part_begun {
            return true;
        }
        let place = load::place_of_part(&self.shared, &part);
        let of_class = &mut self.classes[part.class];
        self.part_waits = Some((part.class, place));
        let charge = load::charge_of_part(&part);
        let disk = of_class.disk(&self.shared, place);
        let Some(slot) = disk.slot(&self.shared, charge as u64) else { return true };
        let Some(permit) = of_class.claim.take(of_class.pool(&self.shared), charge, charge) else {
            of_class.disk(&self.shared, place).keep(slot);
            return true;
        };
        of_class.claim.end_turn();
        let window = self.connection.outbox.open_window_of_part(charge, part.class);
        load::run(&self.shared, &self.connection, Work::Part(part, permit, window), slot);
        (self.has_part_begun, self.part_waits) = (true, None);
        true
    }

    /// Starts reads, fencing first. True when it stopped only to let others run.
    fn start_reads(&mut self) -> bool {
        for of_class in self.classes.iter_mut() {
            of_class.is_refused = false;
        }
        self.release_held();
        let mut started = 0;
        // One reading of the clock for a whole turn, when there is something to start.
        let mut now_ns = None;
        for class in ReadClass::IN_ORDER {
            while started < STARTS_MAX {
                let Some((mut request, from)) = self.next_request(class) else { break };
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
                started += self.start(class, request, from);
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

    /// The next read of a class, and where it waited for a disk before.
    fn next_request(&mut self, class: ReadClass) -> Option<(ReadRequest, Option<Place>)> {
        let of_class = &mut self.classes[class];
        if of_class.is_refused || of_class.claim.is_waiting() {
            return None;
        }
        if let Some((request, place)) = of_class.next_from_disks(&self.shared, &self.connection) {
            return Some((request, Some(place)));
        }
        let next = match class {
            _ if self.shared.tenants.is_none() => self.connection.reads.lock().next(class),
            ReadClass::Priority => self.connection.reads.lock().next(class),
            ReadClass::Plain => self.next_paid(),
        };
        if next.is_none() {
            // Nothing to use it for (invariant 3).
            self.classes[class].claim.end_turn();
        }
        next.map(|request| (request, None))
    }

    /// The next plain read that need not wait for a tenant's limit; sets those aside that have to. The one that could not start before
    /// comes first: others of its tenant are behind it.
    fn next_paid(&mut self) -> Option<ReadRequest> {
        let (shared, connection) = (&self.shared, &self.connection);
        if let Some(seq) = self.put_back.take()
            && let Some(next) = connection.reads.lock().next_put_back(seq)
        {
            return Some(next);
        }
        if let Some(next) = self.held.next(shared, connection) {
            return Some(next);
        }
        loop {
            let next = connection.reads.lock().next(ReadClass::Plain)?;
            if let Some(next) = self.held.hold(shared, connection, next) {
                return Some(next);
            }
        }
    }

    /// Reads that fencing ones wait for wait for no limit.
    fn release_held(&mut self) {
        if self.shared.tenants.is_none() || !self.connection.reads.lock().take_fence_behind() {
            return;
        }
        let released = self.held.release(&self.shared, &self.connection);
        self.connection.reads.lock().take_back(released);
    }

    /// Starts one read, with those behind it that can be read together with it, or puts it back. Returns how many came
    /// to something.
    fn start(&mut self, class: ReadClass, request: ReadRequest, from: Option<Place>) -> usize {
        let (shared, connection) = (&self.shared, &self.connection);
        let of_class = &mut self.classes[class];
        let (plan, request) = load::plan(shared, connection, request);
        let Some(request) = request else { return 1 };
        if plan.charge() as u64 > of_class.pool(shared).capacity() {
            if !std::mem::replace(&mut self.has_logged_too_large, true) {
                log_too_large(connection, &request, plan.charge(), of_class.pool(shared));
            }
            load::answer_failure(shared, connection, &request, Refusal::Io);
            return 1;
        }
        let place = plan.place(shared);
        if let Some(place) = place.filter(|_| plan.needs_slot())
            && !of_class.has_slot_for(shared, connection, plan.charge(), place, from)
        {
            of_class.disk(shared, place).wait(iter::once(request), from == Some(place));
            return 1;
        }
        let is_its_slot = |place: &Place| {
            (from == Some(*place) || plan.needs_slot()) && of_class.disk(shared, *place).has_slot()
        };
        let on = place.filter(is_its_slot);
        let under_way = on.map_or(0, |place| of_class.under_way(connection, place));
        let shares = shared.tenants.is_some() && !class.is_priority();
        if shares {
            of_class.claim.set_quantum(self.held.quantum(shared, connection, &request));
        }
        let (permit, window) = match of_class.grant(shared, connection, plan.charge(), on) {
            Ok(granted) => granted,
            Err(lack) => {
                match (lack, on) {
                    (Lack::Disk, Some(place)) => of_class.disk(shared, place).is_full_with(under_way),
                    (Lack::Pool, _) => {
                        of_class.is_refused = true;
                        if shares {
                            self.held.stand_in_line(shared, connection, &request);
                        }
                    }
                    (Lack::Peer | Lack::Disk, _) => {
                        of_class.is_refused = true;
                        of_class.give_up_slots(None);
                    }
                }
                let to = on.or(from);
                if shares && to.is_none() {
                    self.put_back = Some(request.seq);
                }
                of_class.put_back(shared, connection, request, to);
                return 1;
            }
        };
        let granted = Granted { request, permit, window };
        let (work, count) = match plan {
            Plan::Settled => unreachable!("a settled plan gives no request back"),
            Plan::Memory(bytes, _) => {
                load::answer_from_memory(shared, connection, granted, &bytes);
                return 1;
            }
            Plan::Tier(_) => {
                load::answer_from_tier(shared, connection, granted);
                return 1;
            }
            Plan::Disk(read, _) => match of_class.find_together(shared, connection, &granted, from) {
                Some(found) => {
                    let together = of_class.gather(shared, connection, (found, granted), (from, on));
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
        of_class.begin(shared, connection, work, place, (from, on));
        count
    }

    /// When to check the ages of reads that wait for a disk, for another one of their key, or for a limit; never when there are none.
    fn next_look_at_late(&mut self) -> Option<Instant> {
        let is_on_disk = self.classes.iter().any(|of_class| of_class.disks.iter().any(DiskQueue::is_waiting));
        let has_maximum = self.shared.limits.request_age_max > Duration::ZERO;
        let is_waiting = is_on_disk || (has_maximum && !self.held.is_empty());
        if !is_waiting && !self.connection.reads.lock().has_behind() {
            self.late_at = None;
            return None;
        }
        let check = match self.connection.is_unread() {
            true if self.waits_for_silence() => Duration::ZERO,
            true => UNREAD_CHECK,
            false => LATE_CHECK.min((self.shared.limits.request_age_max / 8).max(UNREAD_CHECK)),
        };
        let soon = Instant::now() + check;
        let at = self.late_at.map_or(soon, |at| at.min(soon));
        self.late_at = Some(at);
        Some(at)
    }

    /// True when a read waits for a disk that has been silent for long (invariant 5).
    fn waits_for_silence(&self) -> bool {
        let waits_at = |place: &Place| {
            let disk =
                |of_class: &ClassReads| of_class.disks.get(place.index()).is_some_and(DiskQueue::is_waiting);
            self.classes.iter().any(disk)
        };
        let patience = self.shared.limits.admission_deadline;
        let mut places = self.shared.io.places().filter(waits_at);
        places.any(|place| self.shared.io.silent_for(place) >= patience)
    }

    /// Answers some of the reads that are not to wait for a disk, or for a limit, any longer (invariants 5 and 6), when it is time to check.
    /// True when there may be more.
    fn refuse_late(&mut self) -> bool {
        let is_time = |at: Instant| at <= Instant::now();
        if !self.late_at.is_some_and(is_time) {
            return false;
        }
        self.late_at = None;
        let (shared, connection) = (&self.shared, &self.connection);
        let is_unread = connection.is_unread();
        let is_late = |request: &ReadRequest| connection.is_too_old(shared, request);
        let mut left = LATE_MAX;
        let PerClass { plain, priority } = &mut self.classes;
        for disk in &mut plain.disks {
            while left > 0
                && let Some(request) = disk.next_if(is_late)
            {
                load::refuse_too_old(shared, connection, &request);
                left -= 1;
            }
        }
        let limited = self.held.take_late(shared, connection, left, is_late);
        left -= limited.len();
        limited.iter().for_each(|request| load::refuse_too_old(shared, connection, request));
        let behind = connection.reads.lock().take_late(left, is_late);
        left -= behind.len();
        behind.iter().for_each(|request| load::refuse_too_old_behind(shared, connection, request));
        let patience = shared.limits.admission_deadline;
        let is_silent = |place: &Place| shared.io.silent_for(*place) >= patience;
        // A fencing read only when no plain one has made room.
        for of_class in [plain, priority] {
            for place in shared.io.places().take(of_class.disks.len()).filter(|_| is_unread).filter(is_silent)
            {
                while left > 0
                    && connection.is_unread()
                    && let Some(request) = of_class.disks[place.index()].next()
                {
                    shared.metrics.read_rejected.add(1);
                    load::answer_failure(shared, connection, &request, Refusal::TooManyRequests);
                    left -= 1;
                }
            }
            if left < LATE_MAX {
                connection.reads.lock().offer_room();
                break;
            }
        }
        if left == 0 {
            self.late_at = Some(Instant::now());
        }
        left == 0
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
        let progress = in_use.sent + self.connection.transport.pending_progress();
        let idle = self.watch.look(now_ns, progress);
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

async fn sleep_until_or_forever(then: Option<Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}

async fn sleep_or_forever(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
