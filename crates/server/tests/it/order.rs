//! Who waits for whom on one connection when adds find no room: only adds of one ledger keep their order, and answers of
//! v2 that have one key (protocol reference, section 1.7). A test that holds a [`AdmissionGrant`] worth all the room of a shard
//! makes ordinary adds wait; a disk whose journal stands still keeps what was placed from being answered.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::PATIENCE;
use crate::common::frames::{
    KEY, OTHER_KEY, OwnedV2, add_frame, body, fence_request, framed, framed_v3, read_request,
};
use crate::common::whole::{cluster, metadata, open};
use crate::common::wire::{Bookie, Client, start, start_on, start_with};
use bindery_engine::{Add, AdmissionGrant, MetadataVerdict, Origin};
use bindery_io::{Disk, DiskFile, DiskLayer, FileLayer, OpenMode, RealDisk};
use bindery_server::latch::Latch;
use bindery_server::limits::Limits;
use bindery_server::memory::MemoryPlan;
use bindery_server::metadata_check::{MetadataChecker, PARKED_MAX};
use bindery_types::{BookieId, EntryId, LedgerId, LedgerState};
use bindery_wire::entry::ExplicitLac;
use bindery_wire::v3::{Operation, proto};
use bindery_wire::{ErrorCode, FrameLimit, v2};
use bytes::{Bytes, BytesMut};
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Long enough to see what does not wait for it.
const DEADLINE: Duration = Duration::from_secs(20);

/// Journals whose writes wait while the gate is shut.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Default)]
pub struct GateState {
    is_shut: bool,
    is_waited_at: bool,
}

impl Gate {
    pub fn shut(&self, is_shut: bool) {
        self.0.0.lock().unwrap().is_shut = is_shut;
        self.0.1.notify_all();
    }

    fn is_waited_at(&self) -> bool {
        self.0.0.lock().unwrap().is_waited_at
    }

    fn pass(&self) {
        let mut state = self.0.0.lock().unwrap();
        state.is_waited_at = state.is_shut;
        let mut state = self.0.1.wait_while(state, |state| state.is_shut).unwrap();
        state.is_waited_at = false;
    }
}

/// A disk with such journals.
pub struct GateDisk(pub RealDisk, pub Gate);

impl DiskLayer for GateDisk {
    fn beneath(&self) -> &dyn Disk {
        &self.0
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let beneath = self.0.open(path, mode)?;
        let is_journal = path.components().any(|part| part.as_os_str() == "journal");
        if is_journal { Ok(Arc::new(GateFile(beneath, self.1.clone()))) } else { Ok(beneath) }
    }
}

struct GateFile(Arc<dyn DiskFile>, Gate);

impl FileLayer for GateFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.0
    }

    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.1.pass();
        self.0.write_durable_at(slices, offset)
    }
}

fn ledger(id: i64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn shard_of(bookie: &Bookie, id: i64) -> usize {
    bookie.shared.engine.shard_of(ledger(id))
}

/// Two ledgers of one shard.
fn neighbours(bookie: &Bookie) -> (i64, i64) {
    let other = (2..).find(|id| shard_of(bookie, *id) == shard_of(bookie, 1)).unwrap();
    (1, other)
}

fn add_of<'a>(id: i64, entry: i64, is_recovery: bool, body: &'a [u8]) -> Add<'a> {
    Add {
        // No connection has this number: no client is answered.
        origin: Origin { connection: u64::MAX, txn: 0, tag: 2 },
        ledger: ledger(id),
        entry: EntryId::new(entry).unwrap(),
        last_add_confirmed: None,
        key: KEY,
        body,
        is_recovery,
        is_high_priority: false,
    }
}

/// Stands in the line of the shard of a ledger for more room than there is.
fn wait_for_all_room(bookie: &Bookie, id: i64) -> oneshot::Receiver<AdmissionGrant> {
    let body = body(id, 0, -1, 1 << 20);
    let adds = vec![add_of(id, 0, false, &body); 64];
    let (told, turn) = oneshot::channel();
    let waiter = Box::new(move |turn| drop(told.send(turn)));
    bookie.shared.engine.when_room(shard_of(bookie, id), &adds, waiter);
    turn
}

/// All room of the shard of a ledger: until it is dropped, ordinary adds of that shard wait.
async fn all_room(bookie: &Bookie, id: i64) -> AdmissionGrant {
    tokio::time::timeout(PATIENCE, wait_for_all_room(bookie, id)).await.unwrap().unwrap()
}

async fn until(is_so: impl Fn() -> bool) {
    let looks = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looks).await.unwrap();
}

fn limits(admission_deadline: Duration) -> Limits {
    Limits { admission_deadline, ..Limits::default() }
}

async fn start_gated(limits: Limits) -> (Bookie, Gate) {
    let gate = Gate::default();
    let plan = MemoryPlan::new(256 << 20, &limits).unwrap();
    let bookie = start_on(limits, plan, Arc::new(GateDisk(RealDisk::new(), gate.clone()))).await;
    (bookie, gate)
}

const ORDINARY: v2::Flags = v2::Flags::NONE;
const RECOVERY: v2::Flags = v2::Flags::RECOVERY_ADD;

fn add(id: i64, entry: i64, flags: v2::Flags) -> BytesMut {
    add_frame(id, entry, 100, flags, KEY)
}

/// IB23: an add that is refused at the admission deadline does not overtake an older one of its key that is on its way
/// to the disk. Whoever owes nothing to its peer answers at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_at_the_deadline_stays_behind_an_older_add_of_its_key() {
    let (bookie, gate) = start_gated(limits(Duration::from_millis(100))).await;
    let turn = all_room(&bookie, 1).await;
    gate.shut(true);
    let mut client = Client::new(&bookie).await;
    client.send(&add(1, 0, RECOVERY)).await;
    let owed = || bookie.shared.metrics.adds_in_progress.get();
    until(|| owed() == 1).await;
    client.send(&add(1, 0, ORDINARY)).await;
    until(|| bookie.shared.metrics.add_rejected.get() == 1).await;

    let mut other = Client::new(&bookie).await;
    let refused = OwnedV2::Add(ErrorCode::TooManyRequests, 1, 7);
    other.send(&add(1, 7, ORDINARY)).await;
    assert_eq!(other.next_v2().await, refused, "though the journal stands still");

    gate.shut(false);
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, 0));
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::TooManyRequests, 1, 0));
    drop(turn);
    bookie.stop().await;
}

/// IB23: as well one that waited in the kernel beyond the maximum age. The older one is of recovery, which has none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_for_age_stays_behind_an_older_add_of_its_key() {
    let age_max = Duration::from_millis(100);
    let (bookie, gate) = start_gated(Limits { request_age_max: age_max, ..limits(DEADLINE) }).await;
    gate.shut(true);
    let mut client = Client::new(&bookie).await;
    client.send(&add(1, 0, RECOVERY)).await;
    let metrics = &bookie.shared.metrics;
    until(|| metrics.adds_in_progress.get() == 1).await;
    let inbound = &bookie.shared.pools.inbound_adds;
    let memory = tokio::time::timeout(PATIENCE, inbound.acquire(inbound.gauge().capacity)).await.unwrap();
    client.send(&add(1, 0, ORDINARY)).await;
    until(|| inbound.gauge().waiting == 1).await;
    tokio::time::sleep(2 * age_max).await;
    drop(memory);
    until(|| metrics.adds_too_old.get() == 1).await;
    gate.shut(false);
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, 0));
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::TooManyRequests, 1, 0));
    bookie.stop().await;
}

/// IB23 for adds that are refused without waiting: one that is too large, and one that metadata would have to speak for
/// and that finds no memory to wait in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_at_once_stays_behind_an_older_add_of_its_key() {
    let frame = FrameLimit::new(32 * 1024).unwrap();
    let (bookie, gate) = start_gated(Limits { frame, ..limits(DEADLINE) }).await;
    let mut client = Client::new(&bookie).await;
    let too_large = add_frame(1, 0, frame.entry_size_bytes_max(), ORDINARY, KEY);
    gate.shut(true);
    client.send(&add(1, 0, ORDINARY)).await;
    client.send(&too_large).await;
    // Behind it on the same connection.
    client.send(&add(1, 1, ORDINARY)).await;
    until(|| bookie.shared.metrics.write_bytes.get() >= 2 * 132).await;
    gate.shut(false);
    for (code, entry) in [(ErrorCode::Ok, 0), (ErrorCode::BadRequest, 0), (ErrorCode::Ok, 1)] {
        assert_eq!(client.next_v2().await, OwnedV2::Add(code, 1, entry));
    }

    let (told, marked) = oneshot::channel();
    bookie.shared.engine.set_limbo(
        ledger(1),
        true,
        Box::new(move |outcome| {
            let _ = told.send(outcome);
        }),
    );
    marked.await.unwrap().unwrap();
    let pool = &bookie.shared.pools.inbound_large;
    let all = pool.try_acquire(pool.capacity());
    gate.shut(true);
    let mut both = add(1, 2, RECOVERY);
    both.extend_from_slice(&add(1, 2, ORDINARY));
    client.send(&both).await;
    until(|| gate.is_waited_at()).await;
    // Nothing tells when the second one was refused; too early would only hide it if it overtook the first.
    tokio::time::sleep(Duration::from_millis(50)).await;
    gate.shut(false);
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, 2));
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::TooManyRequests, 1, 2));
    drop(all);
    bookie.stop().await;
}

async fn set_limbo(bookie: &Bookie, id: i64) {
    let (told, marked) = oneshot::channel();
    let waiter = Box::new(move |outcome| assert!(told.send(outcome).is_ok()));
    bookie.shared.engine.set_limbo(ledger(id), true, waiter);
    marked.await.unwrap().unwrap();
}

/// The check of metadata, where ledger 1 is open on this bookie.
struct Checking {
    stop: Arc<Latch>,
    task: JoinHandle<()>,
}

impl Checking {
    async fn begin(bookie: &Bookie) -> Checking {
        let layout = open(&cluster().await).await;
        layout.ledgers().create(ledger(1), &metadata("bookie-0", LedgerState::Open)).await.unwrap();
        let bookie_id = BookieId::new("bookie-0").unwrap();
        let stop = Arc::new(Latch::default());
        let shared = &bookie.shared;
        let checker = MetadataChecker {
            parked: shared.parked_adds.clone(),
            engine: shared.engine.clone(),
            io: shared.io.clone(),
            admission_deadline: shared.limits.admission_deadline,
            layout,
            bookie_id,
        };
        Checking { stop: stop.clone(), task: tokio::spawn(checker.run(stop)) }
    }

    async fn end(self) {
        self.stop.set();
        self.task.await.unwrap();
    }
}

/// IB23: an add that waits for a check of metadata is not passed by a later one of its key, though the ledger was
/// vouched for in between; nor by one that finds no memory to wait in. Later ones of other keys do not wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_add_that_waits_for_a_word_is_not_passed_by_later_ones_of_its_key() {
    let bookie = start(limits(DEADLINE)).await;
    let engine = &bookie.shared.engine;
    set_limbo(&bookie, 1).await;
    let mut client = Client::new(&bookie).await;
    client.send(&add(1, 0, ORDINARY)).await;
    let parked = || bookie.shared.parked_adds.parked();
    until(|| parked() == 1).await;
    engine.on_verdict(ledger(1), KEY, false, MetadataVerdict::OpenHere).unwrap();
    // Of another key; then all memory is taken.
    client.send(&add_frame(1, 0, 100, ORDINARY, OTHER_KEY)).await;
    until(|| parked() == 2).await;
    let pool = &bookie.shared.pools.inbound_large;
    let all = pool.try_acquire(pool.gauge().capacity - pool.gauge().used).unwrap();
    client.send(&add(1, 0, ORDINARY)).await;
    client.send(&add(1, 1, ORDINARY)).await;
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, 1));
    assert_eq!(parked(), 3);

    let checking = Checking::begin(&bookie).await;
    for code in [ErrorCode::Ok, ErrorCode::Unauthorized, ErrorCode::TooManyRequests] {
        assert_eq!(client.next_v2().await, OwnedV2::Add(code, 1, 0));
    }
    until(|| parked() == 0).await;
    checking.end().await;
    drop(all);
    bookie.stop().await;
}

/// While metadata does not answer, a connection that has all its adds parked, or refused behind them, leaves places to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adds_that_wait_for_a_word_leave_places_to_other_connections() {
    let bookie = start(limits(DEADLINE)).await;
    set_limbo(&bookie, 1).await;
    set_limbo(&bookie, 2).await;
    let places = PARKED_MAX as usize;
    let parked = || bookie.shared.parked_adds.parked();
    let (mut greedy, mut other) = (Client::new(&bookie).await, Client::new(&bookie).await);
    // One key: adds that find no place are refused behind the others, and still count.
    let all: Vec<u8> = (0..places * 3 / 4).flat_map(|_| add(1, 0, ORDINARY)).collect();
    greedy.send(&all).await;
    until(|| parked() == places * 3 / 4).await;
    // Of other keys, so they need not wait to be refused.
    greedy.send(&add(1, 1, ORDINARY)).await;
    assert_eq!(greedy.next_v2().await, OwnedV2::Add(ErrorCode::TooManyRequests, 1, 1));
    other.send(&add(2, 0, ORDINARY)).await;
    until(|| parked() == places * 3 / 4 + 1).await;
    // More refusals than its share: no client does that.
    greedy.flood(BytesMut::from(&all[..]));
    assert_eq!(greedy.try_next_v2().await, None);
    let checking = Checking::begin(&bookie).await;
    assert_eq!(other.next_v2().await, OwnedV2::Add(ErrorCode::Fenced, 2, 0));
    until(|| parked() == 0).await;
    until(|| bookie.shared.metrics.adds_in_progress.get() == 0).await;
    checking.end().await;
    bookie.stop().await;
}

/// IB23: an add that finds no room is not refused ahead of an older one of its key that waits for a check of metadata. One of
/// another ledger is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_for_want_of_room_does_not_pass_an_add_of_its_key_that_waits_for_a_word() {
    let age_max = Duration::from_millis(300);
    let bookie = start(Limits { request_age_max: age_max, ..limits(DEADLINE) }).await;
    let (one, two) = neighbours(&bookie);
    set_limbo(&bookie, one).await;
    let mut client = Client::new(&bookie).await;
    client.send(&add(one, 0, ORDINARY)).await;
    let parked = || bookie.shared.parked_adds.parked();
    until(|| parked() == 1).await;

    let turn = all_room(&bookie, one).await;
    // The first has no room, and the second is behind it.
    client.send(&[add(two, 0, ORDINARY), add(one, 0, ORDINARY)].concat()).await;
    until(|| bookie.shared.metrics.add_rejected.get() == 2).await;
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::TooManyRequests, two, 0));
    assert_eq!(parked(), 2);
    drop(turn);

    let checking = Checking::begin(&bookie).await;
    for code in [ErrorCode::Ok, ErrorCode::TooManyRequests] {
        assert_eq!(client.next_v2().await, OwnedV2::Add(code, one, 0));
    }
    until(|| parked() == 0).await;
    // Counted behind the answers.
    until(|| bookie.shared.metrics.adds_in_progress.get() == 0).await;
    checking.end().await;
    bookie.stop().await;
}

/// Recovery adds have room of their own, regardless of earlier requests on their connection; adds of one ledger stay in
/// order, those of a recovery among them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_add_does_not_wait_for_ordinary_adds_of_other_ledgers() {
    let bookie = start(limits(DEADLINE)).await;
    let (one, two) = neighbours(&bookie);
    let turn = all_room(&bookie, one).await;
    let mut client = Client::new(&bookie).await;
    let mut out = BytesMut::new();
    for (id, entry, flags) in [(one, 0, ORDINARY), (one, 1, RECOVERY), (two, 0, RECOVERY), (two, 1, ORDINARY)]
    {
        out.extend_from_slice(&add(id, entry, flags));
    }
    client.send(&out).await;
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, two, 0));
    drop(turn);
    for (id, entry) in [(one, 0), (one, 1), (two, 1)] {
        assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, id, entry));
    }
    bookie.stop().await;
}

/// Line invariant 1: ordinary adds behind a recovery add do not pass the line with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ordinary_adds_do_not_pass_the_line_behind_a_recovery_add() {
    let (bookie, gate) = start_gated(limits(DEADLINE)).await;
    let engine = &bookie.shared.engine;
    gate.shut(true);
    let bodies = [body(1, 0, -1, 10), body(1, 1, -1, 10), body(1, 2, -1, 10)];
    bookie.shared.metrics.adds_in_progress.add(2);
    // The group of this one stands still, so that no waiter gets a turn.
    assert_eq!(engine.add_batch(shard_of(&bookie, 1), &[add_of(1, 0, true, &bodies[0])]), 1);
    until(|| gate.is_waited_at()).await;
    let turn = wait_for_all_room(&bookie, 1);
    let adds = [add_of(1, 1, true, &bodies[1]), add_of(1, 2, false, &bodies[2])];
    assert_eq!(engine.add_batch(shard_of(&bookie, 1), &adds), 1, "only the recovery add");
    gate.shut(false);
    drop(turn.await);
    bookie.stop().await;
}

fn v3_add(ledger_id: i64, entry_id: i64) -> Operation {
    Operation::Add(proto::AddRequest {
        ledger_id,
        entry_id,
        master_key: Bytes::copy_from_slice(KEY.as_bytes()),
        body: body(ledger_id, entry_id, entry_id - 1, 50).into(),
        ..Default::default()
    })
}

fn v3_force(ledger_id: i64) -> Operation {
    Operation::ForceLedger(proto::ForceLedgerRequest { ledger_id })
}

fn v3_write_lac(ledger_id: i64) -> Operation {
    let mut lac = BytesMut::new();
    ExplicitLac { ledger_id, last_add_confirmed: 0 }.put(&mut lac);
    let master_key = Bytes::copy_from_slice(KEY.as_bytes());
    Operation::WriteLac(proto::WriteLacRequest { ledger_id, lac: 0, master_key, body: lac.freeze() })
}

fn v3_fence(ledger_id: i64) -> Operation {
    Operation::Read(proto::ReadRequest {
        ledger_id,
        entry_id: -1,
        flag: Some(proto::read_request::Flag::FenceLedger as i32),
        master_key: Some(Bytes::copy_from_slice(KEY.as_bytes())),
        ..Default::default()
    })
}

async fn next_v3(client: &mut Client) -> (u64, i32) {
    let answer = client.next_v3().await;
    (answer.header.txn_id, answer.status)
}

/// A fence, FORCE_LEDGER and WRITE_LAC do not wait for adds of other ledgers that came with them and find no room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fence_force_and_write_lac_do_not_wait_for_adds_of_other_ledgers() {
    let bookie = start(limits(DEADLINE)).await;
    let (one, two) = neighbours(&bookie);
    let turn = all_room(&bookie, one).await;
    let mut client = Client::new(&bookie).await;
    let mut out = framed_v3(1, v3_add(one, 0));
    out.extend_from_slice(&framed_v3(2, v3_write_lac(two)));
    out.extend_from_slice(&framed_v3(3, v3_force(two)));
    out.extend_from_slice(&framed_v3(4, v3_fence(two)));
    client.send(&out).await;
    let mut answers =
        vec![next_v3(&mut client).await, next_v3(&mut client).await, next_v3(&mut client).await];
    answers.sort_unstable();
    assert_eq!(answers, [(2, 0), (3, 0), (4, ErrorCode::NoEntry.v3())]);
    drop(turn);
    assert_eq!(next_v3(&mut client).await, (1, 0));
    bookie.stop().await;
}

/// FORCE_LEDGER and WRITE_LAC stay behind the adds of their own ledger (protocol reference, section 2.4). A fence is not
/// ordered with adds (section 1.7): one that waits for room then meets it, and is refused when its turn comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_one_ledger_force_stays_behind_an_add_that_waits_and_a_fence_does_not() {
    let bookie = start(limits(DEADLINE)).await;
    let (one, two) = neighbours(&bookie);
    let turn = all_room(&bookie, one).await;
    let (mut client, mut other) = (Client::new(&bookie).await, Client::new(&bookie).await);
    let mut out = framed_v3(1, v3_add(one, 0));
    out.extend_from_slice(&framed_v3(2, v3_force(one)));
    client.send(&out).await;
    // Behind it in the line; before, it would be refused at once.
    until(|| bookie.shared.engine.admittance().waiting == 1).await;

    let mut out = add(two, 0, ORDINARY);
    out.extend_from_slice(&framed(v2::Request::Read(fence_request(two, -1, KEY))));
    out.extend_from_slice(&add(two, 0, RECOVERY));
    other.send(&out).await;
    let fenced = other.next_v2().await;
    assert!(matches!(fenced, OwnedV2::Read(ErrorCode::NoEntry, id, -1, _) if id == two), "{fenced:?}");
    drop(turn);
    // IB23: also behind a fence equal keys keep their order.
    assert_eq!(other.next_v2().await, OwnedV2::Add(ErrorCode::Fenced, two, 0));
    assert_eq!(other.next_v2().await, OwnedV2::Add(ErrorCode::Ok, two, 0));
    assert_eq!([next_v3(&mut client).await, next_v3(&mut client).await], [(1, 0), (2, 0)]);
    bookie.stop().await;
}

fn v3_recovery_add(ledger_id: i64, entry_id: i64) -> Operation {
    let Operation::Add(mut add) = v3_add(ledger_id, entry_id) else { unreachable!("it is an add") };
    add.flag = Some(proto::add_request::Flag::RecoveryAdd as i32);
    Operation::Add(add)
}

fn health() -> Operation {
    Operation::GetBookieInfo(proto::GetBookieInfoRequest { requested: Some(1) })
}

/// A client that was answered once, and is no stranger.
async fn greeted(bookie: &Bookie) -> Client {
    let mut client = Client::new(bookie).await;
    client.send(&framed_v3(0, health())).await;
    assert_eq!(next_v3(&mut client).await, (0, 0));
    client
}

/// While adds of a connection wait for room, requests in later reads of it pass them: fences, recovery adds, health
/// requests, FORCE_LEDGER and reads of other ledgers. Requests that depend on the adds do not, and no other request
/// passes those (reader::ahead, invariant 1).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_need_not_wait_for_adds_passes_them_in_later_reads() {
    let bookie = start(limits(DEADLINE)).await;
    let (one, two) = neighbours(&bookie);
    let turn = all_room(&bookie, one).await;
    let mut client = greeted(&bookie).await;
    client.send(&framed_v3(1, v3_add(one, 0))).await;
    until(|| bookie.shared.engine.admittance().waiting == 1).await;

    // Behind it: an add, and what is behind that.
    let mut out = framed_v3(2, v3_add(two, 0));
    out.extend_from_slice(&framed_v3(3, v3_force(one)));
    out.extend_from_slice(&framed_v3(4, v3_force(two)));
    out.extend_from_slice(&framed_v3(5, v3_write_lac(two)));
    client.send(&out).await;
    // Cut in the middle of a frame.
    let fence = framed_v3(6, v3_fence(two));
    client.send(&fence[..7]).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    client.send(&fence[7..]).await;
    assert_eq!(next_v3(&mut client).await, (6, ErrorCode::NoEntry.v3()));
    client.send(&framed_v3(7, health())).await;
    assert_eq!(next_v3(&mut client).await, (7, 0));
    client.send(&framed_v3(8, v3_force(two + 1))).await;
    assert_eq!(next_v3(&mut client).await, (8, 0));
    client.send(&framed_v3(9, v3_recovery_add(two, 9))).await;
    client.send(&framed_v3(10, v3_recovery_add(two + 1, 9))).await;
    assert_eq!(next_v3(&mut client).await, (10, 0));
    let ahead = &bookie.shared.pools.ahead;
    assert_eq!(ahead.gauge().used, 32 * 1024);
    drop(turn);
    let mut answers = vec![];
    for _ in 0..6 {
        answers.push(next_v3(&mut client).await);
    }
    answers.sort_unstable();
    // The ordinary add met the fence.
    assert_eq!(answers, [(1, 0), (2, ErrorCode::Fenced.v3()), (3, 0), (4, 0), (5, 0), (9, 0)]);
    assert_eq!(ahead.gauge().used, 0);
    bookie.stop().await;
}

/// A look ahead is bounded: behind more adds than it holds nothing is seen, and the socket is not read. All of them are
/// taken, in order, when there is room; a partial frame at its end, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adds_read_ahead_stay_within_their_memory_and_keep_their_order() {
    const ADDS: i64 = 3000;
    let bookie = start(limits(DEADLINE)).await;
    let turn = all_room(&bookie, 1).await;
    let mut client = greeted(&bookie).await;
    client.send(&add(1, 0, ORDINARY)).await;
    until(|| bookie.shared.engine.admittance().waiting == 1).await;
    let mut out = BytesMut::new();
    (1..ADDS).for_each(|entry| out.extend_from_slice(&add_frame(1, entry, 1000, ORDINARY, KEY)));
    client.send(&out).await;
    let ahead = &bookie.shared.pools.ahead;
    until(|| ahead.gauge().used == 32 * 1024).await;
    client.send(&framed(v2::Request::Read(fence_request(2, -1, KEY)))).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!((ahead.gauge().used, ahead.gauge().waiting), (32 * 1024, 0));
    drop(turn);
    let mut next = 0;
    while next < ADDS {
        match client.next_v2().await {
            OwnedV2::Add(code, 1, entry) => {
                assert_eq!((code, entry), (ErrorCode::Ok, next));
                next += 1;
            }
            other => assert!(matches!(other, OwnedV2::Read(ErrorCode::NoEntry, 2, ..)), "{other:?}"),
        }
    }
    bookie.stop().await;
}

/// More writers wait for room than there are read buffers for them, and more strangers than there are for those: requests
/// of others are read and answered (reader invariant 8).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adds_that_wait_for_room_keep_no_read_buffer_from_others() {
    const BUFFERS: usize = 4;
    // Longer than any client here waits for an answer.
    let limits = limits(10 * PATIENCE);
    let (buffers, firsts) = (BUFFERS * limits.read_buffer_bytes, BUFFERS * limits.first_buffer_bytes);
    let plan = MemoryPlan {
        first: firsts as u64,
        inbound: buffers as u64,
        inbound_adds: buffers as u64,
        ..MemoryPlan::new(256 << 20, &limits).unwrap()
    };
    let bookie = start_with(limits, plan).await;
    let (one, two) = neighbours(&bookie);
    let mut other = greeted(&bookie).await;
    let mut writers = Vec::new();
    for entry in 0..4 * BUFFERS as i64 {
        let mut writer = Client::new(&bookie).await;
        writer.send(&add(one, entry, ORDINARY)).await;
        assert_eq!(writer.next_v2().await, OwnedV2::Add(ErrorCode::Ok, one, entry));
        writers.push(writer);
    }
    // Clients that are not yet known to add.
    for _ in 0..2 * BUFFERS {
        writers.push(greeted(&bookie).await);
    }
    let turn = all_room(&bookie, one).await;
    for _ in 0..2 * BUFFERS {
        writers.push(Client::new(&bookie).await);
    }
    for (entry, writer) in (100..).zip(&mut writers) {
        writer.send(&add(one, entry, ORDINARY)).await;
    }
    let waiting = || {
        let all = bookie.shared.connections.all();
        all.iter().filter(|connection| connection.flow().not_read_because.is_some()).count()
    };
    until(|| waiting() == writers.len()).await;

    assert_eq!(other.v3(1, health()).await.status, 0);
    let read = other.v2(v2::Request::Read(read_request(one, 0))).await;
    assert_eq!(read.code(), ErrorCode::Ok);
    let fence = other.v2(v2::Request::Read(fence_request(two, -1, KEY))).await;
    assert_eq!(fence.code(), ErrorCode::NoEntry);
    greeted(&bookie).await;
    assert_eq!(waiting(), writers.len(), "all of that came while they waited");

    drop(turn);
    for (entry, writer) in (100..).zip(&mut writers) {
        assert_eq!(writer.next_v2().await, OwnedV2::Add(ErrorCode::Ok, one, entry));
    }
    bookie.stop().await;
}
