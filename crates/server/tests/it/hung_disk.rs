//! A disk that hangs, beside one that does not: what is read from the other one, and what needs no disk, is answered.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::PATIENCE;
use crate::common::frames::{
    KEY, OwnedV2, add_frame, batch_request, body, fence_request, framed, framed_v3, read_request,
};
use crate::common::wire::{Bookie, Client, start_as};
use bindery_io::{Disk, DiskFile, DiskLayer, FileLayer, OpenMode, RealDisk, SystemClock};
use bindery_server::limits::Limits;
use bindery_server::memory::{MemoryPlan, MemoryPlanError, Surroundings};
use bindery_types::LedgerId;
use bindery_wire::v3::{Operation, proto};
use bindery_wire::{ErrorCode, v2};
use bytes::BytesMut;
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

/// The name of the ledger directory whose disk hangs.
const HANGS: &str = "hangs";
/// The name of that whose files the kernel keeps in memory.
const WARM: &str = "warm";

/// The parts of the bookie that the memory plan counts.
const AROUND: Surroundings = Surroundings {
    ledger_dirs: 3,
    shards_min: 3,
    are_connections_set: false,
    tier_bytes: 0,
    repair_bytes: 0,
    tls_connection_bytes: 0,
    admin_tls_connection_bytes: 0,
};

#[derive(Default)]
struct GateState {
    is_shut: bool,
    waiting: usize,
}

/// Where reads of one ledger directory wait.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<GateState>, Condvar)>);

impl Gate {
    fn shut(&self, is_shut: bool) {
        self.0.0.lock().unwrap().is_shut = is_shut;
        self.0.1.notify_all();
    }

    fn waiting(&self) -> usize {
        self.0.0.lock().unwrap().waiting
    }

    fn pass(&self) {
        let mut state = self.0.0.lock().unwrap();
        state.waiting += 1;
        let mut state = self.0.1.wait_while(state, |state| state.is_shut).unwrap();
        state.waiting -= 1;
    }
}

/// Keeps no file in memory but those of one directory, so that every read of an entry elsewhere is one of the disk.
struct ColdDisk(RealDisk, Gate);

impl DiskLayer for ColdDisk {
    fn beneath(&self) -> &dyn Disk {
        &self.0
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let is_in = |name| path.components().any(|part| part.as_os_str() == name);
        if is_in(WARM) {
            return self.0.open(path, mode);
        }
        let gate = if is_in(HANGS) { self.1.clone() } else { Gate::default() };
        Ok(Arc::new(ColdFile(self.0.open(path, mode)?, gate)))
    }
}

struct ColdFile(Arc<dyn DiskFile>, Gate);

impl FileLayer for ColdFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.0
    }

    fn read_cached_at(&self, _: &mut [u8], _: u64) -> io::Result<Option<usize>> {
        Ok(None)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.1.pass();
        self.0.read_at(buf, offset)
    }

    fn begin_reading(&self, offset: u64, len: u64) {
        self.1.pass();
        self.0.begin_reading(offset, len);
    }
}

async fn until(is_so: impl Fn() -> bool) {
    let looks = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looks).await.unwrap();
}

/// A bookie with three ledger directories, and a ledger in each whose entries are on disk.
struct World {
    bookie: Bookie,
    /// Where reads of the hung disk wait.
    gate: Gate,
    hung: i64,
    sound: i64,
    warm: i64,
    /// Of each ledger.
    entries: i64,
    /// Bytes of each entry.
    size: usize,
}

impl World {
    /// With 256 MiB, and entries of 1000 bytes.
    async fn new() -> World {
        World::of(patient(), 256 << 20, 50, 1000).await
    }

    async fn of(limits: Limits, memory: u64, entries: i64, size: usize) -> World {
        let gate = Gate::default();
        let plan = MemoryPlan::of(memory, &limits, AROUND).unwrap();
        let disk = Arc::new(ColdDisk(RealDisk::new(), gate.clone()));
        let bookie = start_as(limits, plan, disk, Arc::new(SystemClock::new()), |config| {
            let parent = config.ledger_dirs[0].parent().unwrap().to_owned();
            config.ledger_dirs = vec![parent.join(HANGS), parent.join("sound"), parent.join(WARM)];
            config.shard_count = AROUND.shards_min;
            config.flush_interval = Duration::from_millis(50);
        })
        .await;
        let engine = bookie.shared.engine.clone();
        let of = |directory| {
            let is_there = |id: &i64| engine.directory_of(LedgerId::new(*id).unwrap(), None) == directory;
            (1..).find(is_there).unwrap()
        };
        let ledgers = [of(0), of(1), of(2)];
        let mut client = Client::new(&bookie).await;
        for ledger in ledgers {
            for first in (0..entries).step_by(10) {
                let some = first..entries.min(first + 10);
                for entry in some.clone() {
                    client.send(&add_frame(ledger, entry, size, v2::Flags::NONE, KEY)).await;
                }
                for entry in some {
                    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, ledger, entry));
                }
            }
        }
        until(|| engine.stats().flushed_entries == 3 * entries as u64).await;
        // The last entry comes from disk, too, once the flush is over.
        until(|| {
            let reads =
                ledgers.map(|id| engine.read(LedgerId::new(id).unwrap(), bindery_engine::EntryRef::Last));
            reads.iter().all(|read| matches!(read, Ok(bindery_engine::Lookup::Disk(_))))
        })
        .await;
        let [hung, sound, warm] = ledgers;
        World { bookie, gate, hung, sound, warm, entries, size }
    }

    async fn client(&self) -> Client {
        Client::new(&self.bookie).await
    }

    /// The answer to a read of an entry.
    fn entry(&self, ledger: i64, entry: i64) -> OwnedV2 {
        OwnedV2::Read(ErrorCode::Ok, ledger, entry, body(ledger, entry, entry - 1, self.size))
    }

    /// Everything that the sound disk has, and a look at the bookie, is answered on this connection.
    async fn is_served(&self, client: &mut Client) {
        let sound = self.sound;
        client.send(&fencing(sound, -1)).await;
        let last = body(sound, self.entries - 1, self.entries - 2, self.size);
        assert_eq!(client.next_v2().await, OwnedV2::Read(ErrorCode::Ok, sound, -1, last), "a fence");
        for ledger in [sound, self.warm] {
            client.send(&plain(ledger, 7)).await;
            assert_eq!(client.next_v2().await, self.entry(ledger, 7));
        }
        assert_eq!(client.v3(1, list(sound)).await.status, ErrorCode::Ok.v3());
        let info = Operation::GetBookieInfo(proto::GetBookieInfoRequest { requested: Some(3) });
        assert_eq!(client.v3(2, info).await.status, ErrorCode::Ok.v3());
        let batch = batch_request(self.warm, 3, 5, 4, 1 << 20);
        assert!(matches!(client.v2(batch).await, OwnedV2::Batch(ErrorCode::Ok, ..)));
    }

    /// All entries of a ledger are read, and answered in any order, on a connection that has no other reads under way.
    async fn reads_all(&self, client: &mut Client, ledger: i64) {
        client.send(&(0..self.entries).flat_map(|entry| plain(ledger, entry)).collect::<BytesMut>()).await;
        self.expects(client, &[ledger]).await;
    }

    /// One answer comes for each entry of these ledgers, and each is as it was written.
    async fn expects(&self, client: &mut Client, ledgers: &[i64]) {
        let all = ledgers.iter().flat_map(|ledger| (0..self.entries).map(|entry| (*ledger, entry)));
        let mut missing: HashSet<(i64, i64)> = all.collect();
        while !missing.is_empty() {
            let answer = client.next_v2().await;
            let OwnedV2::Read(_, ledger, entry, _) = answer else { panic!("{answer:?}") };
            assert!(missing.remove(&(ledger, entry)), "{ledger} {entry} was not asked for");
            assert_eq!(answer, self.entry(ledger, entry));
        }
    }

    /// Reads of the hung disk are under way.
    async fn hangs(&self) {
        until(|| self.gate.waiting() > 0).await;
    }
}

/// No read grows too old, however slow the machine.
fn patient() -> Limits {
    Limits { request_age_max: Duration::ZERO, ..Limits::default() }
}

fn list(ledger_id: i64) -> Operation {
    Operation::GetListOfEntries(proto::GetListOfEntriesOfLedgerRequest { ledger_id })
}

fn plain(ledger: i64, entry: i64) -> BytesMut {
    framed(v2::Request::Read(read_request(ledger, entry)))
}

fn fencing(ledger: i64, entry: i64) -> BytesMut {
    framed(v2::Request::Read(fence_request(ledger, entry, KEY)))
}

/// Reads of all kinds hang, more than there are threads and slots: the other disk is read, on connections of which reads
/// hang as on others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_hangs_holds_up_only_what_is_read_from_it() {
    let world = World::new().await;
    let mut stuck = world.client().await;
    world.is_served(&mut stuck).await;
    world.gate.shut(true);
    let mut requests = BytesMut::new();
    for entry in 0..world.entries {
        requests.extend_from_slice(&plain(world.hung, entry));
        requests.extend_from_slice(&fencing(world.hung, entry));
    }
    stuck.send(&requests).await;
    let mut lists = world.client().await;
    for txn in 0..20 {
        lists.send(&framed_v3(txn, list(world.hung))).await;
    }
    until(|| world.gate.waiting() >= 2).await;

    world.is_served(&mut stuck).await;
    world.is_served(&mut world.client().await).await;

    world.gate.shut(false);
    for _ in 0..2 * world.entries {
        assert_eq!(stuck.next_v2().await.code(), ErrorCode::Ok);
    }
    for _ in 0..20 {
        assert_eq!(lists.next_v3().await.status, ErrorCode::Ok.v3());
    }
    world.bookie.stop().await;
}

/// One connection pipelines deeply, a third of it what a hung disk has, and so much that its loads fill a window: all else is
/// answered meanwhile, and that third when the disk is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deep_pipeline_waits_for_the_disk_that_hangs_only_where_it_needs_that() {
    let limits = Limits { read_window_bytes: 64 * 1024, ..patient() };
    let world = World::of(limits, 256 << 20, 200, 20_000).await;
    let mut client = world.client().await;
    world.gate.shut(true);
    let ledgers = [world.hung, world.sound, world.warm];
    let all = (0..world.entries).flat_map(|entry| ledgers.map(|ledger| plain(ledger, entry)));
    client.send(&all.flatten().collect::<BytesMut>()).await;
    world.expects(&mut client, &[world.sound, world.warm]).await;
    world.hangs().await;
    // Also what comes later.
    for _ in 0..3 {
        for ledger in [world.sound, world.warm] {
            world.reads_all(&mut client, ledger).await;
        }
    }
    world.is_served(&mut client).await;
    world.gate.shut(false);
    world.expects(&mut client, &[world.hung]).await;
    for ledger in ledgers {
        world.reads_all(&mut client, ledger).await;
    }
    world.bookie.stop().await;
}

/// Many connections have reads on the hung disk, single ones and batches, which together are many times the pool for
/// loaded entries at its least size: it has room for all other peers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_many_read_from_a_disk_that_hangs_leaves_the_pools_to_others() {
    const STUCK: usize = 60;
    let Err(MemoryPlanError::TooSmall { least, .. }) = MemoryPlan::of(0, &Limits::default(), AROUND) else {
        panic!("nothing is too little")
    };
    let world = World::of(patient(), least, 10, 500_000).await;
    let pools = &world.bookie.shared.pools;
    assert!(pools.outbound.capacity() < (STUCK * world.size) as u64 / 2);
    world.gate.shut(true);
    let mut stuck = Vec::new();
    for at in 0..STUCK {
        let mut client = world.client().await;
        let requests: BytesMut = match at % 3 {
            0 => (0..world.entries).flat_map(|entry| plain(world.hung, entry)).collect(),
            1 => (0..world.entries).flat_map(|entry| fencing(world.hung, entry)).collect(),
            _ => (0..world.entries)
                .flat_map(|entry| framed(batch_request(world.hung, entry, entry, 2, 1 << 20)))
                .collect(),
        };
        client.send(&requests).await;
        // Every one of them looks at the disk.
        let flows = || world.bookie.shared.connections.all().into_iter().map(|connection| connection.flow());
        let is_there = |reads: u64| reads >= world.entries as u64;
        until(|| flows().filter(|flow| is_there(flow.reads)).count() > at).await;
        stuck.push(client);
    }
    world.hangs().await;
    let mut healthy = world.client().await;
    for _ in 0..3 {
        world.is_served(&mut healthy).await;
        for ledger in [world.sound, world.warm] {
            world.reads_all(&mut healthy, ledger).await;
        }
        for pool in [&pools.outbound, &pools.outbound_priority] {
            let gauge = pool.gauge();
            assert!(gauge.used <= gauge.capacity / 2 && gauge.waiting == 0, "{gauge:?}");
        }
    }
    for client in &mut stuck {
        world.is_served(client).await;
    }
    world.gate.shut(false);
    let mut all = JoinSet::new();
    for mut client in stuck {
        all.spawn(async move {
            for _ in 0..world.entries {
                assert_eq!(client.next_v2().await.code(), ErrorCode::Ok);
            }
        });
    }
    all.join_all().await;
    world.reads_all(&mut healthy, world.hung).await;
    world.bookie.stop().await;
}

/// Reads that grow too old while they wait for a disk that hangs are refused, also those that wait for another read of their
/// key: their client asks another replica. Loads that the disk has begun end when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_disk_that_hangs_is_refused_at_the_maximum_age() {
    const OF_ONE_KEY: usize = 10;
    let limits = Limits { request_age_max: Duration::from_millis(300), ..Limits::default() };
    let world = World::of(limits, 256 << 20, 100, 20_000).await;
    let mut client = world.client().await;
    world.gate.shut(true);
    let reads = (0..world.entries).flat_map(|entry| plain(world.hung, entry)).collect::<BytesMut>();
    client.send(&plain(world.hung, 0).repeat(OF_ONE_KEY - 1)).await;
    client.send(&reads).await;
    let (mut of_key, mut refused) = (0, 0);
    // Four slots of one thread, each with what fits a buffer at most.
    let begun = 4 * 4;
    while of_key < OF_ONE_KEY - 1 || refused < world.entries - begun {
        match client.next_v2().await {
            OwnedV2::Read(ErrorCode::TooManyRequests, _, 0, _) => of_key += 1,
            OwnedV2::Read(ErrorCode::TooManyRequests, ..) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(world.bookie.shared.metrics.reads_too_old.get() as i64 >= refused);
    world.gate.shut(false);
    for _ in refused + of_key as i64..world.entries + OF_ONE_KEY as i64 - 1 {
        let answer = client.next_v2().await;
        assert!([ErrorCode::Ok, ErrorCode::TooManyRequests].contains(&answer.code()), "{answer:?}");
    }
    let fresh = async {
        // On a machine that stands still it may grow too old as well.
        while client.v2(v2::Request::Read(read_request(world.hung, 3))).await != world.entry(world.hung, 3) {}
    };
    tokio::time::timeout(PATIENCE, fresh).await.unwrap();
    world.bookie.stop().await;
}

/// The size of a batch is a bound, mostly the largest that a frame allows: batches of a few small entries, as many as wait for a
/// disk that hangs, leave the window of their connection to other reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_a_few_small_entries_do_not_fill_the_window() {
    let world = World::new().await;
    let mut client = world.client().await;
    // How long entries are is learnt from those that were read.
    world.reads_all(&mut client, world.sound).await;
    world.gate.shut(true);
    let frame = 5 << 20;
    for request in 0..4 {
        client.send(&framed(batch_request(world.hung, 10 * request, request, 10, frame))).await;
    }
    world.hangs().await;
    world.is_served(&mut client).await;
    let mut other = world.client().await;
    world.is_served(&mut other).await;
    world.gate.shut(false);
    let mut missing: HashSet<i64> = (0..4).collect();
    while !missing.is_empty() {
        let answer = client.next_v2().await;
        let OwnedV2::Batch(ErrorCode::Ok, request, entries) = answer else { panic!("{answer:?}") };
        assert!(missing.remove(&request) && entries.len() == 10, "{request}: {} entries", entries.len());
    }
    world.bookie.stop().await;
}

/// A connection that has as many reads in hand as it may have, all of them on the hung disk, is read again: some of them are
/// refused, long before their maximum age, when that disk has been silent for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_a_disk_that_hangs_do_not_keep_their_connection_from_being_read() {
    let limits = Limits { read_queue_max: 40, ..patient() };
    let world = World::of(limits, 256 << 20, 100, 20_000).await;
    let mut client = world.client().await;
    world.gate.shut(true);
    let mut requests: BytesMut = (0..world.entries).flat_map(|entry| plain(world.hung, entry)).collect();
    (0..world.entries).for_each(|entry| requests.extend_from_slice(&plain(world.sound, entry)));
    requests.extend_from_slice(&add_frame(world.sound, world.entries, 100, v2::Flags::NONE, KEY));
    client.send(&requests).await;
    let (mut refused, mut served, mut is_added) = (0, 0, false);
    while served < world.entries || !is_added {
        match client.next_v2().await {
            OwnedV2::Read(ErrorCode::TooManyRequests, ledger, ..) if ledger == world.hung => refused += 1,
            OwnedV2::Add(ErrorCode::Ok, ..) => is_added = true,
            other => {
                let OwnedV2::Read(_, _, entry, _) = other else { panic!("{other:?}") };
                assert_eq!(other, world.entry(world.sound, entry));
                served += 1;
            }
        }
    }
    assert!((1..world.entries).contains(&refused), "{refused}");
    world.gate.shut(false);
    for _ in refused..world.entries {
        let answer = client.next_v2().await;
        assert_eq!(answer.code(), ErrorCode::Ok);
    }
    world.bookie.stop().await;
}
