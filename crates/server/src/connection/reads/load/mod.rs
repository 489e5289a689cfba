//! Answers reads: finds the entry, takes bytes for it, loads it, encodes the answer.
//!
//! # Data flow
//! ```text
//! request ─► plan ─► bytes taken: Granted ─► in memory ───────────────────────────────────────► answers
//!      └► in object storage alone ─► parked until it is here ─► plan
//!                                         └► on disk ─► Work ─► inline, when nobody has to wait ─►│
//!                                                          └──► a slot of the I/O pool: run ─────►│
//! ```
//!
//! # Invariants
//! 1. A permit for an entry's bytes is held before they are loaded. When an entry turns out larger than was expected
//!    its bytes are dropped and the request goes back with the size it needs.
//! 2. An entry that is not durable is not shown: its request is parked until it is, without a thread.
//! 3. Only what runs on the I/O pool waits for a disk, or begins to read from it. Inline an entry is read only if the
//!    kernel says that it has it in memory (`DiskFile::read_cached_at`).
//! 4. Every request given to `plan` or `run` is answered, parked or put back, exactly one of these.
//! 5. A request older than the maximum age is answered with too-many-requests when its turn comes, and never reaches a
//!    disk: its client has given up, and asks another replica. The time in which that client did not take its answers does
//!    not count ([`crate::connection::output::peer_time`]). Fencing, recovery and high priority have no maximum age; the rest of a frame whose
//!    beginning was sent has none either.
//!
//! # Limits
//! A thread of the runtime or of the I/O pool keeps a buffer of [`SCRATCH_BYTES`], through which entries pass that lie
//! together, or are answered inline.

mod answers;
mod batch;
mod list;
mod part;
mod tier;
mod together;

pub use answers::answer_failure;
pub use batch::BatchLoad;
pub use part::charge_of_part;
pub use tier::answer_from_tier;
pub use together::{FOLLOWING_MAX, Together};

use crate::connection::Connection;
use crate::connection::output::outbox::{Body, Part, Window};
use crate::connection::request::{ReadKind, ReadRequest};
use crate::io_pool::{Place, Slot};
use crate::shared::Shared;
use answers::{answer_entry, answer_info, answer_poll_without_entry, answer_without_entry};
use bindery_engine::{Ahead, DiskRead, DurablePoint, EntryRef, Lookup, Refusal};
use bindery_flow::Permit;
use bindery_types::{EntryId, LedgerId};
use bindery_wire::v2;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Charged in addition to an entry for the head of its answer: at most 40 bytes on v2, 96 on v3.
const HEAD_BYTES: usize = 128;

/// Largest entry that is read on a thread of the runtime, when the kernel has it in memory, and most bytes that are read
/// together.
const SCRATCH_BYTES: usize = 64 * 1024;

thread_local! {
    /// Where entries are read to before they are copied to the outbox.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A read with bytes for its entry in hand.
pub struct Granted {
    /// The request.
    pub request: ReadRequest,
    /// Bytes of the pool of its class.
    pub permit: Permit,
    /// Room in the window of its class.
    pub window: Window,
}

impl Granted {
    /// Gives back the window and the bytes; returns the request alone.
    pub fn give_up(self, connection: &Connection) -> ReadRequest {
        connection.outbox.close_window(self.window);
        self.request
    }

    /// Bytes that the permit leaves for entries.
    fn room(&self) -> usize {
        self.permit.bytes() as usize - HEAD_BYTES
    }
}

/// What to load, and how many bytes it takes.
pub enum Plan {
    /// Answered already, or parked.
    Settled,
    /// An entry whose bytes are in memory.
    Memory(bindery_io::chunk::ChunkSlice, usize),
    /// An entry that came from object storage: the request has it.
    Tier(usize),
    /// An entry on disk.
    Disk(DiskRead, usize),
    /// A batch, and the place whose threads read the part of it that is not in memory.
    Batch(BatchLoad, usize, Place),
    /// Work that runs as a whole on a thread that may block.
    Blocking(usize, Place),
}

impl Plan {
    /// True when it begins with a slot of the I/O pool.
    pub fn needs_slot(&self) -> bool {
        matches!(self, Plan::Blocking(..))
    }

    /// Bytes that must be held before `run`.
    pub fn charge(&self) -> usize {
        match self {
            Plan::Settled => 0,
            Plan::Tier(charge) => *charge,
            Plan::Memory(_, charge) | Plan::Disk(_, charge) => *charge,
            Plan::Batch(_, charge, _) | Plan::Blocking(charge, _) => *charge,
        }
    }

    /// On which threads it may wait; `None` when it does not.
    pub fn place(&self, shared: &Shared) -> Option<Place> {
        match self {
            Plan::Settled | Plan::Memory(..) | Plan::Tier(_) => None,
            Plan::Disk(read, _) => Some(shared.io.of_directory(read.directory())),
            Plan::Batch(_, _, place) | Plan::Blocking(_, place) => Some(*place),
        }
    }
}

/// A load from disk with the bytes for it in hand: all it needs but a slot of the I/O pool.
pub enum Work {
    /// One entry.
    Entry(Granted, DiskRead),
    /// Entries that lie together.
    Together(Together),
    /// What is left of a batch.
    Batch(Granted, BatchLoad),
    /// A list, or free disk space.
    Whole(Granted),
    /// The rest of a frame of which the peer has a part.
    Part(Part, Permit, Window),
}

impl Work {
    /// The part of the disk that it is about to read, if known.
    fn ahead(&self) -> Option<Ahead> {
        match self {
            Work::Entry(_, read) => read.ahead(),
            Work::Together(together) => Some(together.ahead()),
            Work::Batch(..) | Work::Whole(_) | Work::Part(..) => None,
        }
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> u64 {
        match self {
            Work::Entry(granted, _) | Work::Batch(granted, _) | Work::Whole(granted) => {
                granted.permit.bytes()
            }
            Work::Together(together) => together.bytes(),
            Work::Part(_, permit, _) => permit.bytes(),
        }
    }

    /// The windows of its reads.
    pub fn windows(&mut self) -> impl Iterator<Item = &mut Window> {
        let (one, several) = match self {
            Work::Entry(granted, _) | Work::Batch(granted, _) | Work::Whole(granted) => {
                (Some(&mut granted.window), None)
            }
            Work::Part(_, _, window) => (Some(window), None),
            Work::Together(together) => (None, Some(together.windows())),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// The requests, in order, when it cannot begin now. A part returns none: it is begun at once, or not at all.
    pub fn give_up(self, connection: &Connection) -> Vec<ReadRequest> {
        match self {
            Work::Entry(granted, _) | Work::Batch(granted, _) | Work::Whole(granted) => {
                vec![granted.give_up(connection)]
            }
            Work::Together(together) => together.give_up(connection),
            Work::Part(_, _, window) => {
                connection.outbox.close_window(window);
                Vec::new()
            }
        }
    }
}

/// Looks a read up. Settles it when that takes no bytes; otherwise gives it back with what to do.
pub fn plan(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    request: ReadRequest,
) -> (Plan, Option<ReadRequest>) {
    if let Some(Err(refusal)) = request.wait_outcome {
        answer_failure(shared, connection, &request, refusal);
        return (Plan::Settled, None);
    }
    if connection.is_too_old(shared, &request) {
        refuse_too_old(shared, connection, &request);
        return (Plan::Settled, None);
    }
    let Some(request) = tier::settle_failure(shared, connection, request) else {
        return (Plan::Settled, None);
    };
    let limits = &shared.limits;
    let entry = match &request.kind {
        ReadKind::Entry => EntryId::new(request.entry).map_or(EntryRef::Last, EntryRef::At),
        ReadKind::Lac => EntryRef::Last,
        ReadKind::Poll(poll) => match shared.engine.last_add_confirmed(request.ledger) {
            Err(refusal) => {
                answer_failure(shared, connection, &request, refusal);
                return (Plan::Settled, None);
            }
            Ok(lac) => match EntryId::new(poll.previous.saturating_add(1)) {
                Some(next) if EntryId::to_wire(lac) > poll.previous && poll.wants_entry => EntryRef::At(next),
                _ => {
                    answer_poll_without_entry(shared, connection, &request);
                    return (Plan::Settled, None);
                }
            },
        },
        ReadKind::Batch(batch) => {
            let asked = usize::try_from(batch.max_size_bytes).unwrap_or(0);
            let allowed = (limits.batch_read_size_bytes_max as usize).min(limits.frame.size_bytes());
            let most = asked.min(allowed).min(limits.read_window_bytes);
            // The requested size is a bound, often the largest possible, and would fill the window for a few entries.
            let each = connection.size_guess.load(Ordering::Relaxed) + v2::BATCH_READ_ENTRY_OVERHEAD_BYTES;
            let count = usize::try_from(batch.max_count).ok().filter(|count| *count > 0);
            let likely = count.map_or(most, |count| most.min(count.saturating_mul(each)));
            let charge =
                if request.size_hint > 0 { most.max(request.size_hint) } else { likely } + HEAD_BYTES;
            let place = place_of(shared, request.ledger, EntryId::new(request.entry));
            let load = BatchLoad::new(limits, batch, (connection.id, request.ledger), charge, most);
            return (Plan::Batch(load, charge, place), Some(request));
        }
        ReadKind::List => {
            let place = shared.io.of_lists(shared.engine.directory_of(request.ledger, None));
            return (Plan::Blocking(list::LEAST_BYTES.max(request.size_hint), place), Some(request));
        }
        ReadKind::Info(_) => return (Plan::Blocking(HEAD_BYTES, shared.io.of_none()), Some(request)),
    };
    let explicit_lac_bytes = match request.kind {
        ReadKind::Lac => {
            shared.engine.explicit_lac(request.ledger).ok().flatten().map_or(0, |body| body.len())
        }
        _ => 0,
    };
    match shared.engine.read(request.ledger, entry) {
        Ok(Lookup::Memory(bytes)) => {
            let charge = bytes.len() + explicit_lac_bytes + HEAD_BYTES;
            (Plan::Memory(bytes, charge), Some(request))
        }
        Ok(Lookup::Disk(mut read)) => {
            let size = match read.try_locate() {
                Some(Ok(size)) => size as usize,
                Some(Err(Refusal::Tiered)) => match read.into_tiered() {
                    Some(read) => return tier::plan(shared, connection, request, read, explicit_lac_bytes),
                    None => {
                        answer_without_entry(shared, connection, &request, Refusal::Io);
                        return (Plan::Settled, None);
                    }
                },
                Some(Err(refusal)) => {
                    answer_without_entry(shared, connection, &request, refusal);
                    return (Plan::Settled, None);
                }
                None if request.size_hint > 0 => request.size_hint,
                None => connection.size_guess.load(Ordering::Relaxed).min(limits.frame.size_bytes()),
            };
            (Plan::Disk(read, size + explicit_lac_bytes + HEAD_BYTES), Some(request))
        }
        Ok(Lookup::Tiered(read)) => tier::plan(shared, connection, request, read, explicit_lac_bytes),
        Ok(Lookup::Undurable(point)) => {
            park_until_durable(shared, connection, request, point);
            (Plan::Settled, None)
        }
        Err(refusal) => {
            answer_without_entry(shared, connection, &request, refusal);
            (Plan::Settled, None)
        }
    }
}

/// The place for reads of a ledger from this entry on.
fn place_of(shared: &Shared, ledger: LedgerId, entry: Option<EntryId>) -> Place {
    shared.io.of_directory(shared.engine.directory_of(ledger, entry))
}

/// The place where the rest of a frame is loaded.
pub fn place_of_part(shared: &Shared, part: &Part) -> Place {
    let (mut entries, _) = part.identity.entries();
    place_of(shared, part.identity.ledger(), entries.next().and_then(EntryId::new))
}

/// Answers a request that has waited too long (invariant 5).
pub fn refuse_too_old(shared: &Shared, connection: &Connection, request: &ReadRequest) {
    shared.metrics.reads_too_old.add(1);
    answer_failure(shared, connection, request, Refusal::TooManyRequests);
}

/// As [`refuse_too_old`], for a read that waited for an older one of its ledger and entry: the queue of reads has dropped it already
/// (`ReadQueue::take_late`), so it must not be finished there again.
pub fn refuse_too_old_behind(shared: &Shared, connection: &Connection, request: &ReadRequest) {
    shared.metrics.reads_too_old.add(1);
    answers::answer_failure_of_finished(shared, connection, request, Refusal::TooManyRequests);
}

/// Answers an entry that is in memory.
pub fn answer_from_memory(shared: &Shared, connection: &Connection, granted: Granted, bytes: &[u8]) {
    answer_entry(shared, connection, granted, Body::Copy(bytes), shared.clock.monotonic_ns());
}

/// Answers an entry on disk at once when no thread has to wait for the disk, up to [`SCRATCH_BYTES`]. Gives everything
/// back when it takes a thread that may wait.
pub fn run_inline(
    shared: &Shared,
    connection: &Connection,
    granted: Granted,
    mut read: DiskRead,
) -> Result<(), Box<(Granted, DiskRead)>> {
    let most = granted.room().min(SCRATCH_BYTES);
    if !matches!(read.try_locate(), Some(Ok(size)) if size as usize <= most) {
        return Err(Box::new((granted, read)));
    }
    SCRATCH.with_borrow_mut(|body| match read.try_load(body) {
        None => Err(Box::new((granted, read))),
        Some(Ok(())) => {
            shared.metrics.reads_without_wait.add(1);
            learn_size(connection, body.len());
            answer_entry(shared, connection, granted, Body::Copy(body), shared.clock.monotonic_ns());
            Ok(())
        }
        Some(Err(refusal)) => {
            answer_without_entry(shared, connection, &granted.give_up(connection), refusal);
            Ok(())
        }
    })
}

/// Runs a load on the I/O pool.
pub fn run(shared: &Arc<Shared>, connection: &Arc<Connection>, work: Work, slot: Slot) {
    let (place, class) = (slot.place(), slot.class());
    let (shared, connection) = (shared.clone(), connection.clone());
    connection.loads_in_flight(place, class).fetch_add(1, Ordering::AcqRel);
    let begun_ns = shared.clock.monotonic_ns();
    let ahead = work.ahead();
    let pool = shared.clone();
    let job = move || {
        match work {
            Work::Part(part, permit, window) => part::run(&shared, &connection, &part, permit, window),
            Work::Together(together) => together.run(&shared, &connection),
            Work::Entry(granted, _) | Work::Batch(granted, _) | Work::Whole(granted)
                if connection.is_too_old(&shared, &granted.request) =>
            {
                refuse_too_old(&shared, &connection, &granted.give_up(&connection));
            }
            Work::Entry(granted, read) => run_entry(&shared, &connection, granted, read),
            Work::Batch(granted, batch) => batch.run(&shared, &connection, granted),
            Work::Whole(granted) => match granted.request.kind {
                ReadKind::List => list::run(&shared, &connection, granted),
                _ => answer_info(&shared, &connection, &granted.give_up(&connection)),
            },
        }
        let now_ns = shared.clock.monotonic_ns();
        shared.metrics.stages.read_load.record(0, now_ns, now_ns.saturating_sub(begun_ns), true);
        connection.loads_in_flight(place, class).fetch_sub(1, Ordering::AcqRel);
        connection.flush();
        // Room for one load more.
        connection.wake_sender.notify_one();
    };
    pool.io.run(slot, ahead.map(|ahead| move || ahead.begin()), job);
}

fn run_entry(shared: &Arc<Shared>, connection: &Connection, granted: Granted, read: DiskRead) {
    match read.load() {
        Ok(bytes) if bytes.len() > granted.room() => retry_larger(connection, granted, bytes.len()),
        Ok(bytes) => {
            learn_size(connection, bytes.len());
            answer_entry(shared, connection, granted, Body::Owned(bytes), shared.clock.monotonic_ns());
        }
        Err(Refusal::Tiered) => tier::run_tiered(shared, connection, granted, read.into_tiered()),
        Err(refusal) => answer_without_entry(shared, connection, &granted.give_up(connection), refusal),
    }
}

/// Keeps the guess near the size of the largest recent entries: too small a guess costs a second load.
fn learn_size(connection: &Connection, size: usize) {
    let guess = connection.size_guess.load(Ordering::Relaxed);
    connection.size_guess.store(size.max(guess - guess / 8), Ordering::Relaxed);
}

/// Back to the front of its class, with the size it needs (invariant 1).
fn retry_larger(connection: &Connection, granted: Granted, size: usize) {
    let mut request = granted.give_up(connection);
    if !matches!(request.kind, ReadKind::List | ReadKind::Batch(_)) {
        learn_size(connection, size);
    }
    request.size_hint = size;
    if !connection.closed.is_set() {
        connection.reads.lock().put_back(request);
    }
}

fn park_until_durable(
    shared: &Arc<Shared>,
    connection: &Connection,
    request: ReadRequest,
    point: DurablePoint,
) {
    let (id, seq) = (connection.id, request.seq);
    // Parked first: the waiter may fire before this returns.
    connection.reads.lock().park(request);
    let shared_of_waiter = shared.clone();
    let waiter = move |outcome| {
        if let Some(connection) = shared_of_waiter.connection(id) {
            connection.unpark(seq, outcome);
        }
    };
    shared.engine.when_durable(point, Box::new(waiter));
}
