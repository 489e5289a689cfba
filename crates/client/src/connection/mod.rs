//! The network below the ledger protocols: connections to bookies.
//!
//! # Data flow
//! ```text
//! add, read ──► slot of the bookie ──► bulk lane:    v2   adds, reads, batch reads
//!                                 └──► control lane: v3   READ_LAC, WRITE_LAC, long polls, info, forces, adds with
//!                                                         deferred sync (opened when needed)
//!                                 ├──► trial lane:   v2   batch reads, until the bookie answered one (`batches`)
//!                                 ├──► background:   v2   reads and batch reads of bulk readers (opened when needed)
//!                                 └──► tier lane:    v3   RECONCILE_LEDGERS (opened when needed)
//!
//! lane: callers append frames and waiters under one short lock ──► task: one write for all that gathered
//!       task: one read ──► decode all answers ──► match under the lock, once ──► sinks and waiters, outside the lock
//! ```
//!
//! # Invariants (besides those of [`transport`](crate::transport))
//! 1. An add costs its caller a lock, no copy and no allocation; nobody is woken while the task writes.
//! 2. The order of the requests of one ledger to one bookie (transport invariant 2) holds within each lane. What must
//!    come after an answer, as an explicit LAC (last add confirmed) after its entries, has to wait for it anyway.
//! 3. A late answer is never taken for the answer to a later request: v2 requests keep their place until they are
//!    answered, v3 requests have ids of their own (`pending`, `adds`).
//! 4. Each task belongs to its lane's handle and ends with it.
//! 5. An answer above the frame limit fails its own request, found by the ids at its front; if no waiting request has
//!    these ids, the connection ends.
//!
//! # Limits     per bookie ever used: a slot, one or two tasks, two more with a tierer, another one while a first batch
//! read is under way; per connection: 64 KiB to read into, and a frame of at most the limit; requests and their bytes:
//! as far as callers have permits. A request is answered before its caller's permit can return, and a connection that
//! keeps the bytes of an overdue request is closed, so nothing piles up.
//!
//! TLS and authentication ([`crate::tls`], [`crate::credentials`], or the application's own by [`hooks`]): a lane's task has them
//! done with before it sends anything.
//!
//! # Not here   quorums, retries on other bookies, digests (`writer`, `reader`)

mod adds;
mod answers;
mod background;
mod batches;
mod delivery;
mod foreign;
mod handshake;
pub mod hooks;
mod incoming;
mod lane;
mod outgoing;
mod pending;
mod reconciled;
mod resolve;
mod task;

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bindery_metadata::layout::Registration;
use bindery_types::{BookieId, EntryId, LedgerId, MasterKey, TierSecret};
use bindery_wire::v3::reconcile::{Reconcile, Reconciled};
use bindery_wire::v3::{Operation, proto};
use bindery_wire::{EntryAvailability, ErrorCode, FrameLimit};
use bytes::Bytes;
use parking_lot::RwLock;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::background::Background;
use self::batches::{Batches, Way};
use self::handshake::Speaks;
use self::hooks::Hooks;
use self::lane::{Lane, Receiver};
use self::reconciled::results_of;
use self::resolve::Resolver;
use self::task::Timing;
use crate::transport::{
    AddRequest, AddSink, Answer, BatchReadRequest, BookieError, Connection, DiskSpace, LacAnswer,
    PollRequest, ReadRequest, Transport,
};

/// Bookies hold a long poll for minutes at most.
const POLL_WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Settings of the connections to bookies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionOptions {
    /// How long a request may take; a long poll may take its wait in addition. At least 10 ms.
    pub request_timeout: Duration,
    /// How long finding and reaching a bookie may take. Never more than three quarters of `request_timeout`.
    pub connect_timeout: Duration,
    /// The longest time in which requests fail at once after attempts to connect failed; it begins with 100 ms and
    /// doubles with each failure.
    pub reconnect_pause_max: Duration,
    /// The largest frame, either direction: at least the bookies' `nettyMaxFrameSizeBytes`. An answer above it fails its
    /// request, with [`BookieError::AnswerTooLarge`].
    pub frame_limit: FrameLimit,
}

impl Default for ConnectionOptions {
    fn default() -> ConnectionOptions {
        ConnectionOptions {
            request_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            reconnect_pause_max: Duration::from_secs(5),
            frame_limit: FrameLimit::PULSAR,
        }
    }
}

impl ConnectionOptions {
    fn timing(&self) -> Timing {
        let request_timeout = self.request_timeout.max(Duration::from_millis(10));
        Timing {
            request_timeout,
            connect_timeout: self.connect_timeout.min(request_timeout * 3 / 4),
            sweep_interval: (request_timeout / 50)
                .clamp(Duration::from_millis(1), Duration::from_millis(100)),
            pause_max: self.reconnect_pause_max,
        }
    }
}

/// A lane and the task that carries it.
struct OwnedLane {
    lane: Arc<Lane>,
    task: JoinHandle<()>,
}

impl Drop for OwnedLane {
    fn drop(&mut self) {
        // Dropped, the task answers what is left (task invariant 4).
        self.task.abort();
    }
}

/// The connections to one bookie.
struct Slot {
    resolver: Arc<Resolver>,
    bulk: OwnedLane,
    control: OnceLock<OwnedLane>,
    background: OnceLock<OwnedLane>,
    /// Apart from `control`: adds with deferred sync hold that one up, and a request here may be large.
    tier: OnceLock<OwnedLane>,
    batches: Arc<Batches>,
}

/// Which lanes reads go over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lanes {
    Foreground,
    Background,
}

#[derive(Default)]
struct Slots {
    by_id: HashMap<BookieId, Slot>,
    is_closing: bool,
}

/// The connections to all bookies of a cluster: [`Transport`] over TCP.
///
/// Dropping it ends all connections and answers what is under way with [`BookieError::Closed`].
pub struct Bookies {
    registration: Registration,
    options: ConnectionOptions,
    hooks: Hooks,
    runtime: Handle,
    slots: RwLock<Slots>,
}

impl Bookies {
    /// Connects to nobody yet. Bookies are found through `registration`.
    ///
    /// # Panics
    /// Outside a tokio runtime with time and I/O: connections are carried by tasks of it, for as long as it lives.
    pub fn new(registration: Registration, options: ConnectionOptions) -> Bookies {
        Bookies::with_hooks(registration, options, Hooks::default())
    }

    /// As [`new`](Self::new), with connections as the hooks make them.
    ///
    /// # Panics
    /// As `new`.
    pub fn with_hooks(registration: Registration, options: ConnectionOptions, hooks: Hooks) -> Bookies {
        Bookies { registration, options, hooks, runtime: Handle::current(), slots: RwLock::default() }
    }

    /// Ends all connections; every request under way, and every later one, is answered with [`BookieError::Closed`].
    /// Ends them even if it is cancelled.
    pub async fn close(&self) {
        let lanes: Vec<Arc<Lane>> = {
            let mut slots = self.slots.write();
            slots.is_closing = true;
            let lanes = slots.by_id.values().flat_map(|slot| {
                let trial = slot.batches.trial_under_way().map(|owned| owned.lane.clone());
                let opened = [slot.control.get(), slot.background.get(), slot.tier.get()];
                let owned = [&slot.bulk].into_iter().chain(opened.into_iter().flatten());
                owned.map(|owned| owned.lane.clone()).chain(trial)
            });
            lanes.collect()
        };
        for lane in &lanes {
            lane.close();
        }
        for lane in &lanes {
            lane.closed().await;
        }
    }

    fn with_slot<R>(&self, bookie: &BookieId, use_slot: impl FnOnce(&Slot, bool) -> R) -> R {
        {
            let slots = self.slots.read();
            if let Some(slot) = slots.by_id.get(bookie) {
                return use_slot(slot, slots.is_closing);
            }
        }
        let mut slots = self.slots.write();
        let is_closing = slots.is_closing;
        let slot = slots.by_id.entry(bookie.clone()).or_insert_with(|| {
            let resolver = Arc::new(Resolver::new(
                self.registration.clone(),
                bookie.clone(),
                self.options.timing().connect_timeout,
            ));
            let bulk = self.open_lane(bookie, &resolver, Speaks::V2, is_closing);
            let (control, background, tier) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
            Slot { resolver, bulk, control, background, tier, batches: Arc::default() }
        });
        use_slot(slot, is_closing)
    }

    fn open_lane(
        &self,
        bookie: &BookieId,
        resolver: &Arc<Resolver>,
        speaks: Speaks,
        is_closing: bool,
    ) -> OwnedLane {
        let (limit, timing) = (self.options.frame_limit, self.options.timing());
        let lane = Arc::new(Lane::new(bookie.clone(), limit, timing.request_timeout, is_closing));
        let (resolver, hooks) = (resolver.clone(), self.hooks.clone());
        let task = self.runtime.spawn(task::run(lane.clone(), resolver, hooks, speaks, limit, timing));
        OwnedLane { lane, task }
    }

    fn with_bulk<R>(&self, bookie: &BookieId, use_lane: impl FnOnce(&Lane) -> R) -> R {
        self.with_slot(bookie, |slot, _| use_lane(&slot.bulk.lane))
    }

    /// Opens the control lane if this is its first use.
    fn with_control<R>(&self, bookie: &BookieId, use_lane: impl FnOnce(&Lane) -> R) -> R {
        self.with_slot(bookie, |slot, is_closing| {
            let control =
                slot.control.get_or_init(|| self.open_lane(bookie, &slot.resolver, Speaks::V3, is_closing));
            use_lane(&control.lane)
        })
    }

    /// Opens the background's lane if this is its first use.
    fn background_of<'a>(&self, bookie: &BookieId, slot: &'a Slot, is_closing: bool) -> &'a Lane {
        let open = || self.open_lane(bookie, &slot.resolver, Speaks::V2, is_closing);
        &slot.background.get_or_init(open).lane
    }

    /// The same bookies, with reads over connections apart from those of the foreground.
    pub fn background(self: &Arc<Self>) -> Arc<dyn Transport> {
        Arc::new(Background(self.clone()))
    }

    fn read_over(&self, lanes: Lanes, bookie: &BookieId, request: ReadRequest) -> Answer<'_, Bytes> {
        let ReadRequest { ledger, entry, fence } = request;
        let receiver = match lanes {
            Lanes::Foreground => self.with_bulk(bookie, |lane| lane.read(ledger, entry, fence)),
            Lanes::Background => self.with_slot(bookie, |slot, is_closing| {
                self.background_of(bookie, slot, is_closing).read(ledger, entry, fence)
            }),
        };
        if let Some(receiver) = receiver {
            return Box::pin(receive(receiver));
        }
        // A fencing and a plain read of the same entry at once: v3 tells their answers apart (`pending` invariant 2). And the
        // way past adds that wait (lane invariant 3).
        let operation = Operation::Read(read_message(ledger, entry, fence));
        let response = self.v3(bookie, operation, self.request_timeout());
        Box::pin(async move {
            let answer = body_of(response.await?.read_response, "a read")?;
            body_of(answer.body, "a read")
        })
    }

    fn batch_read_over(
        &self,
        lanes: Lanes,
        bookie: &BookieId,
        request: BatchReadRequest,
    ) -> Answer<'_, Vec<Bytes>> {
        let (batches, way, sent) = self.with_slot(bookie, |slot, is_closing| {
            let batches = slot.batches.clone();
            let way = batches.way(&request, Instant::now());
            let sent = match way {
                Way::Bulk if lanes == Lanes::Background => {
                    Some((self.background_of(bookie, slot, is_closing).batch_read(&request), None))
                }
                Way::Bulk if !slot.bulk.lane.is_crowded() => {
                    Some((slot.bulk.lane.batch_read(&request), None))
                }
                // A connection of its own, too, past adds that wait (lane invariant 3).
                Way::Bulk | Way::Trial => {
                    let open = || self.open_lane(bookie, &slot.resolver, Speaks::V2, is_closing);
                    let trial = batches.trial(open);
                    Some((trial.lane.batch_read(&request), Some(trial)))
                }
                Way::Refused => None,
            };
            (batches, way, sent)
        });
        Box::pin(async move {
            let unknown = BookieError::Refused(ErrorCode::BadRequest);
            let Some((receiver, trial)) = sent else { return Err(unknown) };
            let outcome = receive(receiver).await;
            // Its connection ends with its last request.
            drop(trial);
            let now = Instant::now();
            let answer = batches.judge(way, outcome, now).unwrap_or(Err(unknown))?;
            let entries = batches.wanted_of(&request, answer, now);
            if entries.is_empty() {
                return Err(BookieError::Unexpected("a batch without entries".into()));
            }
            Ok(entries)
        })
    }

    fn v3(
        &self,
        bookie: &BookieId,
        operation: Operation,
        timeout: Duration,
    ) -> impl Future<Output = Result<Box<proto::Response>, BookieError>> + use<> {
        receive(self.with_control(bookie, |lane| lane.v3(operation, 0, timeout)))
    }

    fn request_timeout(&self) -> Duration {
        self.options.timing().request_timeout
    }
}

async fn receive<T>(receiver: Receiver<T>) -> Result<T, BookieError> {
    receiver.await.unwrap_or(Err(BookieError::Closed))
}

/// The body that a successful v3 answer must have.
fn body_of<T>(body: Option<T>, operation: &str) -> Result<T, BookieError> {
    body.ok_or_else(|| BookieError::Unexpected(format!("{operation} was answered without its message")))
}

fn read_message(ledger: LedgerId, entry: Option<EntryId>, fence: Option<MasterKey>) -> proto::ReadRequest {
    proto::ReadRequest {
        ledger_id: ledger.get(),
        entry_id: EntryId::to_wire(entry),
        flag: fence.map(|_| proto::read_request::Flag::FenceLedger as i32),
        master_key: fence.map(|key| Bytes::copy_from_slice(key.as_bytes())),
        ..Default::default()
    }
}

impl Transport for Bookies {
    fn add(&self, bookie: &BookieId, request: AddRequest, sink: &Arc<dyn AddSink>) {
        match request.is_deferred {
            // v2 has no words for it, and bookies take no v3 behind v2.
            true => self.with_control(bookie, |lane| lane.add(request, sink)),
            false => self.with_bulk(bookie, |lane| lane.add(request, sink)),
        }
    }

    fn withdraw(&self, bookie: &BookieId, ledger: LedgerId, sink: &Arc<dyn AddSink>) {
        if let Some(slot) = self.slots.read().by_id.get(bookie) {
            slot.bulk.lane.withdraw(ledger, sink);
        }
    }

    fn read(&self, bookie: &BookieId, request: ReadRequest) -> Answer<'_, Bytes> {
        self.read_over(Lanes::Foreground, bookie, request)
    }

    fn batch_read(&self, bookie: &BookieId, request: BatchReadRequest) -> Answer<'_, Vec<Bytes>> {
        self.batch_read_over(Lanes::Foreground, bookie, request)
    }

    fn read_lac(&self, bookie: &BookieId, ledger: LedgerId) -> Answer<'_, LacAnswer> {
        let operation = Operation::ReadLac(proto::ReadLacRequest { ledger_id: ledger.get() });
        let response = self.v3(bookie, operation, self.request_timeout());
        Box::pin(async move {
            let answer = body_of(response.await?.read_lac_response, "READ_LAC")?;
            Ok(LacAnswer { explicit: answer.lac_body, last_entry: answer.last_entry_body })
        })
    }

    fn write_lac(
        &self,
        bookie: &BookieId,
        ledger: LedgerId,
        key: MasterKey,
        lac: EntryId,
        body: Bytes,
    ) -> Answer<'_, ()> {
        let operation = Operation::WriteLac(proto::WriteLacRequest {
            ledger_id: ledger.get(),
            lac: lac.get(),
            master_key: Bytes::copy_from_slice(key.as_bytes()),
            body,
        });
        let response = self.v3(bookie, operation, self.request_timeout());
        Box::pin(async move { response.await.map(drop) })
    }

    fn poll_lac(&self, bookie: &BookieId, request: PollRequest) -> Answer<'_, Option<EntryId>> {
        let wait = request.wait.min(POLL_WAIT_MAX);
        let operation = Operation::Read(proto::ReadRequest {
            previous_lac: Some(EntryId::to_wire(request.previous)),
            time_out: Some(i64::try_from(wait.as_millis()).unwrap_or(i64::MAX)),
            flag: Some(proto::read_request::Flag::EntryPiggyback as i32),
            ..read_message(request.ledger, None, None)
        });
        let response = self.v3(bookie, operation, self.request_timeout() + wait);
        Box::pin(async move {
            let answer = body_of(response.await?.read_response, "a long poll")?;
            Ok(answer.max_lac.and_then(EntryId::new))
        })
    }

    fn force(&self, bookie: &BookieId, ledger: LedgerId) -> Answer<'_, Connection> {
        Box::pin(receive(self.with_control(bookie, |lane| lane.force(ledger))))
    }

    fn reconcile(
        &self,
        bookie: &BookieId,
        request: Reconcile,
        secret: Option<TierSecret>,
        timeout: Duration,
    ) -> Answer<'_, Vec<Reconciled>> {
        let asked = request.ledgers.iter().map(|ledger| (ledger.ledger, ledger.last)).collect::<Vec<_>>();
        let mut message = request.into_message();
        if let Some(secret) = secret {
            message.prove(&secret, bookie);
        }
        let operation = Operation::ReconcileLedgers(message);
        let receiver = self.with_slot(bookie, |slot, is_closing| {
            let open = || self.open_lane(bookie, &slot.resolver, Speaks::V3, is_closing);
            slot.tier.get_or_init(open).lane.v3(operation, 0, timeout)
        });
        Box::pin(async move {
            let response = receive(receiver).await?;
            results_of(&asked, body_of(response.reconcile_ledgers_response, "RECONCILE_LEDGERS")?)
        })
    }

    fn list_entries(&self, bookie: &BookieId, ledger: LedgerId) -> Answer<'_, EntryAvailability> {
        let request = proto::GetListOfEntriesOfLedgerRequest { ledger_id: ledger.get() };
        let response = self.v3(bookie, Operation::GetListOfEntries(request), self.request_timeout());
        Box::pin(async move {
            let answer = response.await?.get_list_of_entries_of_ledger_response;
            let list = body_of(answer, "GET_LIST_OF_ENTRIES_OF_LEDGER")?.availability_of_entries_of_ledger;
            let list = body_of(list, "GET_LIST_OF_ENTRIES_OF_LEDGER")?;
            EntryAvailability::decode(&list).map_err(|error| BookieError::Unexpected(error.to_string()))
        })
    }

    fn disk_space(&self, bookie: &BookieId) -> Answer<'_, DiskSpace> {
        use proto::get_bookie_info_request::Flags;
        let requested = Flags::TotalDiskCapacity as i64 | Flags::FreeDiskSpace as i64;
        let operation = Operation::GetBookieInfo(proto::GetBookieInfoRequest { requested: Some(requested) });
        let response = self.v3(bookie, operation, self.request_timeout());
        Box::pin(async move {
            let answer = body_of(response.await?.get_bookie_info_response, "GET_BOOKIE_INFO")?;
            let bytes = |found: Option<i64>| {
                u64::try_from(body_of(found, "GET_BOOKIE_INFO")?)
                    .map_err(|_| BookieError::Unexpected("a negative number of bytes".into()))
            };
            Ok(DiskSpace {
                total_bytes: bytes(answer.total_disk_capacity)?,
                free_bytes: bytes(answer.free_disk_space)?,
            })
        })
    }
}
