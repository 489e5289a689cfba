//! Ledgers in object storage: written, built into an object, reconciled, trimmed, their logs gone, and read back; with a
//! bucket that hangs, is gone, lies or was changed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod claims;
mod lives;
mod rewritten;

use crate::common::PATIENCE;
use crate::common::frames::{
    KEY, OwnedV2, add_frame, batch_request, body, exchange, fence_request, framed, read_request,
};
use crate::common::whole;
use crate::common::wire::{self, Bookie, Client};
use bindery_engine::WantedCollection;
use bindery_io::canary::{Canaries, Canary};
use bindery_io::{LogLimit, RealDisk, SystemClock, SystemRandom};
use bindery_metadata::Layout;
use bindery_server::latch::Latch;
use bindery_server::limits::Limits;
use bindery_server::memory::MemoryPlan;
use bindery_server::tier::{Tier, TierConfig, TrimConfig, TrimTask, Trimmer};
use bindery_tiering::catalogue::{
    Catalogue, CatalogueOptions, Change, ChangeOutcome, NewExtent, NewObject, OpenMode, Verdict, rebuild,
};
use bindery_tiering::fetch::FetchOptions;
use bindery_tiering::object::{Compression, ObjectBuilder};
use bindery_tiering::store::Store;
use bindery_types::codec::crc32c;
use bindery_types::tier::{ClusterId, ObjectId, ObjectRef, Reconciliation, TierExtent};
use bindery_types::{BookieId, EntryId, LedgerState};
use bindery_wire::v3::reconcile::{Reconcile, Reconciled};
use bindery_wire::v3::{Operation, proto};
use bindery_wire::{ErrorCode, v2};
use bytes::{Bytes, BytesMut};
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, watch};

/// A bucket that a test can stop, take away and change.
#[derive(Debug)]
struct Bucket {
    inner: Arc<InMemory>,
    /// While this is so, requests wait.
    hangs: watch::Sender<bool>,
    is_refusing: AtomicBool,
    /// Of a key that is not there it says that access is denied, as S3 does where keys may not be listed.
    hides_missing: AtomicBool,
    requests: AtomicUsize,
}

impl Bucket {
    fn new() -> Arc<Bucket> {
        Arc::new(Bucket {
            inner: Arc::new(InMemory::new()),
            hangs: watch::Sender::new(false),
            is_refusing: AtomicBool::new(false),
            hides_missing: AtomicBool::new(false),
            requests: AtomicUsize::new(0),
        })
    }

    async fn requested(&self, count: usize) {
        let requested = async {
            while self.requests.load(Ordering::SeqCst) < count {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, requested).await.unwrap();
    }
}

impl std::fmt::Display for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("bucket")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Bucket {
    async fn put_opts(&self, key: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(key, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let mut hangs = self.hangs.subscribe();
        drop(hangs.wait_for(|hangs| !*hangs).await);
        if self.is_refusing.load(Ordering::SeqCst) {
            let source = "503 SlowDown".to_owned().into();
            return Err(object_store::Error::Generic { store: "bucket", source });
        }
        match self.inner.get_opts(key, options).await {
            Err(object_store::Error::NotFound { path, source })
                if self.hides_missing.load(Ordering::SeqCst) =>
            {
                Err(object_store::Error::PermissionDenied { path, source })
            }
            answer => answer,
        }
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn bookie_id() -> BookieId {
    BookieId::new("bookie-0").unwrap()
}

const CLUSTER: ClusterId = ClusterId::from_bytes([1; 16]);
const ENTRIES: i64 = 60;
/// Some twenty to a block.
const SIZE: usize = 50_000;

fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}

/// As it was added.
fn stored(ledger: i64, id: i64) -> Vec<u8> {
    body(ledger, id, id - 1, SIZE)
}

fn key(object: &ObjectRef) -> Path {
    Path::from(format!("{CLUSTER}/objects/{}", object.id))
}

struct World {
    bookie: Bookie,
    bucket: Arc<Bucket>,
    tier: Arc<Tier>,
    layout: Layout,
    /// As a tierer has it, whatever the bookie's requests meet.
    catalogue: Mutex<Catalogue>,
    stop_trim: Arc<Latch>,
    trim: tokio::task::JoinHandle<()>,
}

/// Readers of a bucket that hangs wait until the test lets it go on.
fn patient() -> FetchOptions {
    FetchOptions {
        deadline: PATIENCE,
        try_timeout: PATIENCE,
        request_timeout: PATIENCE,
        bad_for: Duration::ZERO,
        retry_pause: Duration::from_millis(1),
        pause_min: Duration::from_millis(1),
        pause_max: Duration::from_millis(1),
        ..FetchOptions::default()
    }
}

impl World {
    async fn new(fetch: FetchOptions, canaries: Canaries) -> World {
        World::with(fetch, canaries, whole::open(&whole::cluster().await).await).await
    }

    /// Over this metadata.
    async fn with(fetch: FetchOptions, canaries: Canaries, layout: Layout) -> World {
        let bucket = Bucket::new();
        let store = Store::new("s3://bucket".parse().unwrap(), bucket.clone());
        let clock = Arc::new(SystemClock::new());
        let of_tierer = Store::new("s3://bucket".parse().unwrap(), bucket.inner.clone());
        let (options, random) = (CatalogueOptions::default(), Arc::new(SystemRandom));
        let mode = OpenMode::Create;
        let catalogue =
            Catalogue::open(&of_tierer, CLUSTER, mode, options, clock.clone(), random).await.unwrap();
        let tier = Tier::with_store(store, CLUSTER, fetch, clock.clone(), canaries).unwrap();
        let limits = Limits { canaries, ..Limits::default() };
        let plan = MemoryPlan::new(256 << 20, &limits).unwrap();
        let change = |config: &mut bindery_engine::EngineConfig| {
            config.flush_interval = Duration::from_millis(50);
            config.space.replaced_grace = Duration::ZERO;
            config.space.merge_fan_in = 0;
            config.tier_extents_bytes = 1 << 20;
        };
        let disk = Arc::new(RealDisk::new());
        tier.join(layout.clone(), bookie_id(), Arc::new(SystemRandom)).await;
        let bookie = wire::start_tiered(limits, plan, disk, clock, change, Some(tier.clone())).await;
        let config = TrimConfig {
            grace: Duration::ZERO,
            grace_when_short: Duration::ZERO,
            interval: Duration::from_millis(20),
            recheck: Duration::ZERO,
            samples: None,
            ledgers_per_second: 1_000,
            ..TrimConfig::default()
        };
        let task = TrimTask {
            engine: bookie.shared.engine.clone(),
            clock: bookie.shared.clock.clone(),
            volumes: bookie.shared.volumes.clone(),
            tier: tier.clone(),
            layout: layout.clone(),
            random: Arc::new(SystemRandom),
            trimmer: Trimmer::new(config, canaries),
            log: LogLimit::new(Duration::from_secs(10)),
        };
        let stop_trim = Arc::new(Latch::default());
        let trim = task.start(stop_trim.clone());
        World { bookie, bucket, tier, layout, catalogue: Mutex::new(catalogue), stop_trim, trim }
    }

    /// Adds a ledger's entries and waits until they are in entry logs.
    async fn write(&self, ledger: i64) {
        let mut client = Client::new(&self.bookie).await;
        for id in 0..ENTRIES {
            client.send(&add_frame(ledger, id, SIZE, v2::Flags::NONE, KEY)).await;
            assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, ledger, id));
        }
        self.until("flushed", || !self.bookie.shared.engine.has_unflushed(whole::id(ledger))).await;
    }

    async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let waits = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waits).await;
        assert!(waited.is_ok(), "{what}: {:?}", self.tier.desk.status());
    }

    /// Builds an object of a ledger and puts it into the bucket.
    async fn upload(&self, number: u8, ledger: i64, bodies: impl Iterator<Item = Vec<u8>>) -> ObjectRef {
        self.upload_from(number, ledger, 0, bodies).await
    }

    async fn upload_from(
        &self,
        number: u8,
        ledger: i64,
        first: i64,
        bodies: impl Iterator<Item = Vec<u8>>,
    ) -> ObjectRef {
        let id = ObjectId::new(7, [number; 10]);
        let mut builder = ObjectBuilder::new(id, CLUSTER, 7, Compression::Zstd);
        builder.begin(whole::id(ledger), entry(first), Bytes::from_static(b"metadata")).unwrap();
        for body in bodies {
            let crc = crc32c(&[&body]);
            builder.append(body.into(), crc).unwrap();
        }
        let (chunks, summary) = builder.finish();
        let mut object = ObjectRef {
            id,
            length_bytes: summary.size_bytes,
            footer_offset: summary.trailer.footer_offset,
            footer_crc: summary.trailer.footer_crc32c,
            etag_crc: 0,
        };
        object.etag_crc = self.put(&object, chunks.concat()).await;
        object
    }

    /// Replaces the bytes of an object; returns the checksum of its entity tag.
    async fn put(&self, object: &ObjectRef, bytes: Vec<u8>) -> u32 {
        let put = self.bucket.inner.put(&key(object), PutPayload::from(bytes)).await.unwrap();
        crc32c(&[put.e_tag.unwrap().as_bytes()])
    }

    async fn bytes(&self, object: &ObjectRef) -> Vec<u8> {
        self.bucket.inner.get(&key(object)).await.unwrap().bytes().await.unwrap().to_vec()
    }

    /// The message, with the proof of a tierer.
    async fn proven(&self, request: Reconcile) -> proto::ReconcileLedgersRequest {
        let secret = self.layout.tier_secret().get().await.unwrap().unwrap();
        let mut message = request.into_message();
        message.prove(&secret, &bookie_id());
        message
    }

    /// The catalogue has the entries from the first one on, and the bookie is told.
    async fn reconcile(&self, ledger: i64, object: ObjectRef, last: i64) {
        self.commit(ledger, object, 0, last).await;
        assert_eq!(self.tell(ledger, object, 0, last).await, last);
    }

    async fn commit(&self, ledger: i64, object: ObjectRef, first: i64, last: i64) {
        let object = new_object(ledger, object, first, last);
        self.change(Change::Commit(object)).await;
    }

    /// An object takes the place of others.
    async fn replace(&self, sources: &[ObjectRef], ledger: i64, object: ObjectRef, first: i64, last: i64) {
        let sources = sources.iter().map(|source| source.id).collect();
        self.change(Change::Replace { object: new_object(ledger, object, first, last), sources }).await;
    }

    /// Reserves the id of the object of a change, and makes it. All of it is taken.
    async fn change(&self, change: Change) {
        let (Change::Commit(new) | Change::Replace { object: new, .. }) = &change else {
            panic!("an object")
        };
        let reserve = Change::Reserve { objects: vec![new.object.id], ttl_ms: 3_600_000 };
        let outcome = self.catalogue.lock().await.commit(vec![reserve, change]).await.unwrap();
        let ChangeOutcome::Committed(Ok(extents)) = &outcome.changes[1] else { panic!("{outcome:?}") };
        assert!(extents.iter().all(|extent| extent.verdict == Verdict::Accepted), "{outcome:?}");
    }

    /// Tells of an extent; the register that comes of it.
    async fn tell(&self, ledger: i64, object: ObjectRef, first: i64, last: i64) -> i64 {
        let extent = TierExtent { first: entry(first), last: entry(last), object };
        let update = Reconciliation {
            ledger: whole::id(ledger),
            last: Some(entry(last)),
            extents: vec![extent],
            created_ms: None,
        };
        self.update(update).await
    }

    async fn register(&self, ledger: i64) -> i64 {
        self.update(Reconciliation {
            ledger: whole::id(ledger),
            last: None,
            extents: Vec::new(),
            created_ms: None,
        })
        .await
    }

    async fn update(&self, update: Reconciliation) -> i64 {
        let message =
            self.proven(Reconcile { cluster: CLUSTER, ledgers: vec![update], is_restore: false }).await;
        let answer = Client::new(&self.bookie).await.v3(3, Operation::ReconcileLedgers(message)).await;
        let answer = answer.reconcile_ledgers_response.unwrap();
        let result = Reconciled::from_message(&answer.results[0]).unwrap();
        assert_eq!(result.code, ErrorCode::Ok);
        EntryId::to_wire(result.last)
    }

    async fn close_ledger(&self, ledger: i64, last: i64) {
        let state =
            LedgerState::Closed { last_entry: Some(entry(last)), length_bytes: ENTRIES as u64 * SIZE as u64 };
        self.layout.ledgers().create(whole::id(ledger), &whole::metadata("bookie-0", state)).await.unwrap();
    }

    fn is_trimmed(&self, ledger: i64) -> bool {
        let tiered = self.bookie.shared.engine.tiered(whole::id(ledger));
        tiered.is_some_and(|tiered| tiered.trimmed_below == Some(tiered.lre) && tiered.is_trim_committed)
    }

    /// Everything from the first add to the last byte of its logs gone.
    async fn tier_away(&self, number: u8, ledger: i64) -> ObjectRef {
        self.write(ledger).await;
        let object = self.upload(number, ledger, (0..ENTRIES).map(|id| stored(ledger, id))).await;
        self.close_ledger(ledger, ENTRIES - 1).await;
        self.reconcile(ledger, object, ENTRIES - 1).await;
        self.until("trimmed", || self.is_trimmed(ledger)).await;
        self.collect().await;
        object
    }

    /// All logs are of trimmed ledgers: none is left.
    async fn collect(&self) {
        let engine = &self.bookie.shared.engine;
        engine.want_collection(WantedCollection { minor: false, major: true });
        self.until("collected", || engine.stats().entry_logs == 0).await;
    }

    async fn read(&self, ledger: i64, id: i64) -> OwnedV2 {
        let mut socket = TcpStream::connect(self.bookie.address).await.unwrap();
        exchange(&mut socket, v2::Request::Read(read_request(ledger, id))).await
    }

    /// Ends it all, and nothing is held.
    async fn stop(self) {
        self.stop_trim.set();
        tokio::time::timeout(PATIENCE, self.trim).await.unwrap().unwrap();
        self.bookie.stop().await;
        let running = || self.tier.fetcher().unwrap().stats().running;
        let ended = async {
            while running() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.unwrap();
        let stats = self.tier.fetcher().unwrap().stats();
        assert_eq!((stats.waiting, stats.pins, stats.under_way_bytes), (0, 0, 0), "fetch invariant 8");
    }
}

fn new_object(ledger: i64, object: ObjectRef, first: i64, last: i64) -> NewObject {
    let extent = NewExtent {
        ledger: whole::id(ledger),
        first: entry(first),
        last: entry(last),
        bytes: (last - first + 1) as u64 * SIZE as u64,
        created_ms: None,
    };
    NewObject { object, extents: vec![extent] }
}

fn v3_read(ledger_id: i64, entry_id: i64) -> Operation {
    Operation::Read(proto::ReadRequest { ledger_id, entry_id, ..Default::default() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_whose_logs_are_gone_are_read_back_byte_for_byte() {
    let world = World::new(patient(), Canaries::none()).await;
    world.tier_away(1, 7).await;
    let mut client = Client::new(&world.bookie).await;
    // All at once, on one connection, each once on v2 and once on v3.
    let mut out = BytesMut::new();
    for id in 0..ENTRIES {
        out.extend_from_slice(&framed(v2::Request::Read(read_request(7, id))));
    }
    client.send(&out).await;
    let mut found = Vec::new();
    for _ in 0..ENTRIES {
        let OwnedV2::Read(ErrorCode::Ok, 7, id, body) = client.next_v2().await else { panic!("an entry") };
        assert!(body == stored(7, id), "entry {id}");
        found.push(id);
    }
    found.sort_unstable();
    assert_eq!(found, (0..ENTRIES).collect::<Vec<_>>(), "each once (IB22)");
    let mut client = Client::new(&world.bookie).await;
    for id in [0, 3, ENTRIES - 1, -1] {
        let answer = client.v3(id as u64 & 0xff, v3_read(7, id)).await.read_response.unwrap();
        let expected = stored(7, if id < 0 { ENTRIES - 1 } else { id });
        assert!(answer.body.unwrap() == expected, "entry {id}");
    }
    let lac = client.v3(9, Operation::ReadLac(proto::ReadLacRequest { ledger_id: 7 })).await;
    assert!(lac.read_lac_response.unwrap().last_entry_body.unwrap() == stored(7, ENTRIES - 1));
    // In batches, from cold: as many as are there, then the rest.
    let mut client = Client::new(&world.bookie).await;
    let mut next = 0;
    while next < ENTRIES {
        let request = batch_request(7, next, next, 0, i64::MAX);
        let OwnedV2::Batch(ErrorCode::Ok, id, bodies) = client.v2(request).await else { panic!("{next}") };
        assert!(id == next && !bodies.is_empty());
        for body in bodies {
            assert!(body == stored(7, next), "entry {next}");
            next += 1;
        }
    }
    // The end is the end, and a fence holds and shows the last entry.
    for beyond in [ENTRIES, ENTRIES + 1] {
        assert_eq!(world.read(7, beyond).await.code(), ErrorCode::NoEntry);
    }
    let fenced = client.v2(v2::Request::Read(fence_request(7, -1, KEY))).await;
    let OwnedV2::Read(ErrorCode::Ok, 7, -1, last) = fenced else { panic!("{:?}", fenced.code()) };
    assert!(last == stored(7, ENTRIES - 1));
    client.send(&add_frame(7, ENTRIES, 10, v2::Flags::NONE, KEY)).await;
    assert_eq!(client.next_v2().await.code(), ErrorCode::Fenced);
    drop(client);
    world.stop().await;
}

/// With reads under way to a bucket that does not answer, everything else is answered, on the same connection too; and
/// those reads are answered when the bucket is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_else_waits_for_a_bucket_that_hangs() {
    let world = World::new(patient(), Canaries::none()).await;
    world.tier_away(1, 7).await;
    world.tier_away(2, 8).await;
    world.bucket.hangs.send_replace(true);
    let asked = world.bucket.requests.load(Ordering::SeqCst);
    let mut client = Client::new(&world.bookie).await;
    let mut out = BytesMut::new();
    for (ledger, id) in (0..ENTRIES).map(|id| (7, id)).chain((0..ENTRIES).map(|id| (8, id))) {
        out.extend_from_slice(&framed(v2::Request::Read(read_request(ledger, id))));
    }
    out.extend_from_slice(&framed(batch_request(8, 0, 1, 0, i64::MAX)));
    client.send(&out).await;
    world.bucket.requested(asked + 1).await;
    for connection in 0..4 {
        let mut other = match connection {
            // The very connection whose reads wait.
            0 => None,
            _ => Some(Client::new(&world.bookie).await),
        };
        let client = other.as_mut().unwrap_or(&mut client);
        let ledger = 100 + connection;
        for id in 0..20 {
            client.send(&add_frame(ledger, id, 1_000, v2::Flags::NONE, KEY)).await;
            assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, ledger, id));
            // From memory, or from disk when it was flushed meanwhile.
            let read = client.v2(v2::Request::Read(read_request(ledger, id))).await;
            assert_eq!(read, OwnedV2::Read(ErrorCode::Ok, ledger, id, body(ledger, id, id - 1, 1_000)));
        }
        let fenced = client.v2(v2::Request::Read(fence_request(ledger, 19, KEY))).await;
        assert_eq!(fenced.code(), ErrorCode::Ok);
        let batch = client.v2(batch_request(ledger, 0, 5, 0, i64::MAX)).await;
        assert!(matches!(batch, OwnedV2::Batch(ErrorCode::Ok, 5, bodies) if bodies.len() == 20));
    }
    // Parked reads hold nothing of the pools for entries (tier invariant 2).
    let pools = &world.bookie.shared.pools;
    let used = || pools.outbound.gauge().used + pools.outbound_priority.gauge().used;
    world.until("nothing is held", || used() == 0).await;
    // A fence of a ledger in the bucket holds at once; its answer has to wait.
    let mut fencing = Client::new(&world.bookie).await;
    fencing.send(&framed(v2::Request::Read(fence_request(7, -1, KEY)))).await;
    world.until("fenced", || world.bookie.shared.engine.is_fenced(whole::id(7))).await;
    // Peers that go leave nothing behind.
    let mut leaving = Client::new(&world.bookie).await;
    leaving.send(&framed(v2::Request::Read(read_request(8, 1)))).await;
    drop(leaving);

    world.bucket.hangs.send_replace(false);
    let mut found = Vec::new();
    for _ in 0..2 * ENTRIES + 1 {
        match client.next_v2().await {
            OwnedV2::Read(ErrorCode::Ok, ledger, id, body) => {
                assert!(body == stored(ledger, id), "entry {id} of {ledger}");
                found.push((ledger, id));
            }
            OwnedV2::Batch(ErrorCode::Ok, 1, bodies) => assert!(bodies[0] == stored(8, 0)),
            other => panic!("{:?}", other.code()),
        }
    }
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len() as i64, 2 * ENTRIES, "each once (IB22)");
    let OwnedV2::Read(ErrorCode::Ok, 7, -1, last) = fencing.next_v2().await else { panic!("the last entry") };
    assert!(last == stored(7, ENTRIES - 1));
    drop((client, fencing));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_bucket_does_not_give_is_an_io_error_and_never_an_absence_or_other_bytes() {
    let world = World::new(patient(), Canaries::none()).await;
    let object = world.tier_away(1, 7).await;
    let sound = world.bytes(&object).await;
    // Refused: as if it could not be reached.
    world.bucket.is_refusing.store(true, Ordering::SeqCst);
    for id in [0, ENTRIES - 1, -1] {
        assert_eq!(world.read(7, id).await.code(), ErrorCode::Io, "IB7");
    }
    let mut client = Client::new(&world.bookie).await;
    let batch = client.v2(batch_request(7, 0, 1, 0, i64::MAX)).await;
    assert_eq!(batch, OwnedV2::Batch(ErrorCode::Io, 1, Vec::new()), "IB7");
    let v3 = client.v3(4, v3_read(7, 3)).await;
    assert_eq!(v3.read_response.unwrap().status, ErrorCode::Io.v3());
    let shown = bindery_server::tier::json(&world.tier)["reads"]["lastFailure"].take();
    assert_eq!((&shown["ledgerId"], &shown["entry"]), (&7.into(), &3.into()), "{shown}");
    assert!(shown["why"].as_str().unwrap().contains("SlowDown"), "{shown}");
    world.bucket.is_refusing.store(false, Ordering::SeqCst);
    // Flipped bits: one in each block, one after the other, and in the footer.
    let mut answered = 0;
    for at in (70..sound.len()).step_by(sound.len() / 12) {
        let mut bytes = sound.clone();
        bytes[at] ^= 0x10;
        world.put(&object, bytes).await;
        for id in (0..ENTRIES).step_by(7) {
            match world.read(7, id).await {
                OwnedV2::Read(ErrorCode::Ok, 7, found, body) => {
                    assert!(found == id && body == stored(7, id), "entry {id}, byte {at}");
                    answered += 1;
                }
                other => assert_eq!(other.code(), ErrorCode::Io, "entry {id}, byte {at}"),
            }
        }
    }
    assert!(answered > 0 && world.tier.fetcher().unwrap().stats().alarms > 0);
    // Gone.
    world.put(&object, sound).await;
    world.bucket.inner.delete(&key(&object)).await.unwrap();
    let fetched = world.tier.fetcher().unwrap().stats().requests;
    for id in 0..ENTRIES {
        match world.read(7, id).await {
            // In the cache still.
            OwnedV2::Read(ErrorCode::Ok, 7, found, body) => assert!(found == id && body == stored(7, id)),
            other => assert_eq!(other.code(), ErrorCode::Io, "IB7: entry {id}"),
        }
    }
    assert!(world.tier.fetcher().unwrap().stats().requests >= fetched);
    drop(client);
    world.stop().await;
}

/// The code of a read whose object was replaced by another one, of which nobody told the bookie.
async fn read_after_a_rewrite(canaries: Canaries) -> ErrorCode {
    let world = World::new(patient(), canaries).await;
    let object = world.tier_away(1, 7).await;
    // Where it is is known from now on; the rest of the object is not here.
    assert_eq!(world.read(7, 0).await.code(), ErrorCode::Ok);
    let rewritten = world.upload(2, 7, (0..ENTRIES).map(|id| stored(7, id))).await;
    world.replace(&[object], 7, rewritten, 0, ENTRIES - 1).await;
    world.bucket.inner.delete(&key(&object)).await.unwrap();
    let answer = world.read(7, ENTRIES - 1).await;
    let code = answer.code();
    if code == ErrorCode::Ok {
        assert!(matches!(answer, OwnedV2::Read(_, 7, _, body) if body == stored(7, ENTRIES - 1)));
        assert_eq!(world.tier.second_looks.get(), 1, "tier invariant 4");
    }
    world.stop().await;
    code
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t10_a_read_whose_object_was_replaced_is_looked_up_again() {
    assert_eq!(read_after_a_rewrite(Canaries::none()).await, ErrorCode::Ok, "T10");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg(debug_assertions)]
async fn canary_t10_is_found_by_the_same_test() {
    let code = read_after_a_rewrite(Canaries::only(Canary::T10SourceNotLookedUpAgain)).await;
    assert_ne!(code, ErrorCode::Ok, "the planted bug must be found");
}

/// In which way an object is not what this bookie holds.
#[derive(Debug, Clone, Copy)]
enum Difference {
    /// None: written by a repair, with another LAC.
    Repaired,
    Entry,
    Bit,
    /// None: the bucket was copied, and the store gives other entity tags.
    Tag,
    Shorter,
    Gone,
}

/// Whether copies go whose object differs; a second ledger, which is sound, must go.
async fn goes_although(difference: Difference, canaries: Canaries) -> bool {
    let world = World::new(patient(), canaries).await;
    world.write(7).await;
    let altered = |id: i64| match difference {
        Difference::Repaired if id == 41 => body(7, id, id - 2, SIZE),
        Difference::Entry if id == 41 => {
            let mut other = stored(7, id);
            *other.last_mut().unwrap() ^= 1;
            other
        }
        _ => stored(7, id),
    };
    let mut object = world.upload(1, 7, (0..ENTRIES).map(altered)).await;
    let mut bytes = world.bytes(&object).await;
    match difference {
        Difference::Repaired | Difference::Entry => {}
        Difference::Bit => {
            bytes[300] ^= 1;
            world.put(&object, bytes).await;
        }
        Difference::Tag => object.etag_crc ^= 1,
        Difference::Shorter => {
            bytes.pop();
            world.put(&object, bytes).await;
        }
        Difference::Gone => world.bucket.inner.delete(&key(&object)).await.unwrap(),
    }
    world.close_ledger(7, ENTRIES - 1).await;
    world.reconcile(7, object, ENTRIES - 1).await;
    let ledger = whole::id(7);
    let is_blocked = || {
        let status = world.tier.desk.status();
        status.blocked.iter().any(|(blocked, _)| *blocked == ledger) || world.is_trimmed(7)
    };
    world.until("looked at", is_blocked).await;
    let goes = world.is_trimmed(7);
    if !goes {
        let status = world.tier.desk.status();
        assert!(status.blocked_count == 1 && world.tier.desk.differences.get() > 0, "T19: it shows");
        // A round more does not change that, and others go.
        world.write(8).await;
        let other = world.upload(2, 8, (0..ENTRIES).map(|id| stored(8, id))).await;
        world.close_ledger(8, ENTRIES - 1).await;
        world.reconcile(8, other, ENTRIES - 1).await;
        world.until("the other", || world.is_trimmed(8)).await;
        assert!(!world.is_trimmed(7), "T19: {difference:?}");
        let OwnedV2::Read(ErrorCode::Ok, 7, 41, body) = world.read(7, 41).await else { panic!("its entry") };
        assert!(body == stored(7, 41), "from here");
    }
    world.stop().await;
    goes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t19_nothing_goes_whose_copy_in_object_storage_differs() {
    use Difference::*;
    for difference in [Entry, Bit, Shorter, Gone] {
        assert!(!goes_although(difference, Canaries::none()).await, "T19: {difference:?}");
    }
    assert!(goes_although(Difference::Repaired, Canaries::none()).await, "a repair's copy is as good");
    assert!(goes_although(Difference::Tag, Canaries::none()).await, "and so is a copy of the object");
}

/// T19, invariant 1 of updates: extents of entries that were let go are replaced by those of good objects only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t19_a_bad_object_does_not_take_the_place_of_the_only_one() {
    let world = World::new(patient(), Canaries::none()).await;
    let before = world.tier_away(1, 7).await;
    let good = world.upload(2, 7, (0..ENTRIES).map(|id| stored(7, id))).await;
    let gone = world.upload(3, 7, (0..ENTRIES).map(|id| stored(7, id))).await;
    world.bucket.inner.delete(&key(&gone)).await.unwrap();
    let of_another = world.upload(4, 8, (0..ENTRIES).map(|id| stored(8, id))).await;
    let last = Some(entry(ENTRIES - 1));
    let told = async |object: ObjectRef| {
        let extents = vec![TierExtent { first: entry(0), last: entry(ENTRIES - 1), object }];
        // One that is not here is answered for beside it.
        let ledgers = vec![
            Reconciliation { ledger: whole::id(9), last: None, extents: Vec::new(), created_ms: None },
            Reconciliation { ledger: whole::id(7), last, extents, created_ms: None },
        ];
        let message = world.proven(Reconcile { cluster: CLUSTER, ledgers, is_restore: false }).await;
        let answer = Client::new(&world.bookie).await.v3(3, Operation::ReconcileLedgers(message)).await;
        let results = answer.reconcile_ledgers_response.unwrap().results;
        let results: Vec<_> =
            results.iter().map(|result| Reconciled::from_message(result).unwrap()).collect();
        assert_eq!((results.len(), results[0].ledger), (2, whole::id(9)));
        (results[1].code, results[1].last)
    };
    for bad in [gone, of_another] {
        assert_eq!(told(bad).await, (ErrorCode::Io, last), "invariant 2 of updates");
        for id in [0, ENTRIES - 1] {
            let OwnedV2::Read(ErrorCode::Ok, 7, _, body) = world.read(7, id).await else { panic!("{id}") };
            assert!(body == stored(7, id));
        }
    }
    assert_eq!(told(good).await, (ErrorCode::Ok, last));
    let extents = world.bookie.shared.engine.tier_extents(whole::id(7), entry(0), 10).unwrap();
    assert_eq!(extents[0].object.id, good.id);
    // T16: a tierer that was away still knows the one that was rewritten. It is there, and may be gone soon.
    assert_eq!(told(before).await, (ErrorCode::BadRequest, last), "invariant 3 of updates");
    assert_eq!(told(good).await, (ErrorCode::Ok, last), "the same again");
    let extents = world.bookie.shared.engine.tier_extents(whole::id(7), entry(0), 10).unwrap();
    assert_eq!(extents[0].object.id, good.id);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg(debug_assertions)]
async fn canary_t19_is_found_by_the_same_test() {
    let goes = goes_although(Difference::Entry, Canaries::only(Canary::T19DifferenceIgnored)).await;
    assert!(goes, "the planted bug must be found");
}

/// Whether copies of a ledger go that is still written to.
async fn goes_while_open(canaries: Canaries) -> bool {
    let world = World::new(patient(), canaries).await;
    world.write(7).await;
    let object = world.upload(1, 7, (0..ENTRIES).map(|id| stored(7, id))).await;
    let metadata = whole::metadata("bookie-0", LedgerState::Open);
    world.layout.ledgers().create(whole::id(7), &metadata).await.unwrap();
    world.reconcile(7, object, ENTRIES - 1).await;
    // And one that metadata does not know.
    world.write(8).await;
    let object = world.upload(2, 8, (0..ENTRIES).map(|id| stored(8, id))).await;
    world.reconcile(8, object, ENTRIES - 1).await;
    let rounds = world.tier.desk.rounds.get();
    world.until("looked at", || world.tier.desk.rounds.get() > rounds + 5).await;
    assert!(!world.is_trimmed(8), "T9");
    let goes = world.bookie.shared.engine.tiered(whole::id(7)).unwrap().trimmed_below.is_some();
    world.stop().await;
    goes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t9_nothing_goes_of_a_ledger_that_is_open() {
    assert!(!goes_while_open(Canaries::none()).await, "T9");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg(debug_assertions)]
async fn canary_t9_is_found_by_the_same_test() {
    assert!(
        goes_while_open(Canaries::only(Canary::T9TrimsBeforeTheEnd)).await,
        "the planted bug must be found"
    );
}

/// Requests that no tierer of this cluster sends change nothing; each ledger has a result of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tierers_are_told_what_was_taken_and_what_was_not() {
    let world = World::new(patient(), Canaries::none()).await;
    world.write(7).await;
    let object = world.upload(1, 7, (0..ENTRIES).map(|id| stored(7, id))).await;
    let update = |ledger: i64, first: i64, last: i64| {
        let extents = vec![TierExtent { first: entry(first), last: entry(last), object }];
        Reconciliation { ledger: whole::id(ledger), last: Some(entry(last)), extents, created_ms: None }
    };
    let asks = |ledger: i64| Reconciliation {
        ledger: whole::id(ledger),
        last: None,
        extents: Vec::new(),
        created_ms: None,
    };
    let mut client = Client::new(&world.bookie).await;
    let mut ask = async |cluster: ClusterId, ledgers: Vec<Reconciliation>| {
        let message = world.proven(Reconcile { cluster, ledgers, is_restore: false }).await;
        let answer = client.v3(3, Operation::ReconcileLedgers(message)).await;
        let results = answer.reconcile_ledgers_response.unwrap().results;
        let results = results.iter().map(|result| Reconciled::from_message(result).unwrap());
        (
            answer.status,
            results.map(|result| (result.code, EntryId::to_wire(result.last))).collect::<Vec<_>>(),
        )
    };
    let other = ClusterId::from_bytes([2; 16]);
    assert_eq!(ask(other, vec![update(7, 0, 9)]).await, (ErrorCode::BadRequest.v3(), vec![]), "T18");
    let ok = ErrorCode::Ok.v3();
    let found = ask(CLUSTER, vec![asks(7), update(9, 0, 9)]).await;
    assert_eq!(found, (ok, vec![(ErrorCode::Ok, -1), (ErrorCode::NoLedger, -1)]));
    assert_eq!(ask(CLUSTER, vec![update(7, 5, 9)]).await, (ok, vec![(ErrorCode::BadRequest, -1)]));
    assert_eq!(ask(CLUSTER, vec![update(7, 0, 9)]).await, (ok, vec![(ErrorCode::Ok, 9)]));
    // Below the register nothing changes.
    assert_eq!(ask(CLUSTER, vec![update(7, 0, 3)]).await, (ok, vec![(ErrorCode::Ok, 9)]), "T1");
    assert_eq!((world.tier.reconciled.get(), world.tier.not_reconciled.get()), (3, 2));
    drop(client);
    world.stop().await;
    // Without object storage none is taken.
    let bookie = wire::start(Limits::default()).await;
    let message = Reconcile { cluster: CLUSTER, ledgers: vec![asks(7)], is_restore: false }.into_message();
    let answer = Client::new(&bookie).await.v3(3, Operation::ReconcileLedgers(message)).await;
    assert_eq!(answer.status, ErrorCode::BadRequest.v3());
    bookie.stop().await;
}

/// A peer that takes nothing does not hold up others, however much it asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_takes_nothing_does_not_keep_the_memory_of_others() {
    let fetch = FetchOptions {
        // Three blocks or so.
        memory_bytes_max: 4 << 20,
        index_bytes_max: 1 << 20,
        pin_lease: Duration::from_millis(50),
        ..patient()
    };
    let world = World::new(fetch, Canaries::none()).await;
    world.tier_away(1, 7).await;
    let mut deaf = Client::deaf(&world.bookie).await;
    let mut out = BytesMut::new();
    for id in (0..ENTRIES).cycle().take(600) {
        out.extend_from_slice(&framed(v2::Request::Read(read_request(7, id))));
    }
    deaf.send(&out).await;
    let mut client = Client::new(&world.bookie).await;
    for id in (0..ENTRIES).rev().chain(0..ENTRIES) {
        let OwnedV2::Read(ErrorCode::Ok, 7, found, body) =
            client.v2(v2::Request::Read(read_request(7, id))).await
        else {
            panic!("entry {id}")
        };
        assert!(found == id && body == stored(7, id));
    }
    // It reads after all, and gets each of them.
    for _ in 0..600 {
        let OwnedV2::Read(ErrorCode::Ok, 7, id, body) = deaf.next_v2().await else { panic!("an entry") };
        assert!(body == stored(7, id));
    }
    drop((deaf, client));
    world.stop().await;
}

/// A whole bookie whose bucket is a directory that does not exist starts and serves; when the directory is there it reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_starts_without_its_bucket() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), whole::cluster().await);
    let url = format!("file://{}", dir.path().join("bucket").display());
    let mut config = whole::config_that_flushes(&dir.path().join("bookie"));
    config.tier = Some(TierConfig::new(url.parse().unwrap()));
    let bookie = whole::start(config, &cluster).await;
    for id in 0..3 {
        assert_eq!(bookie.add(1, id).await, ErrorCode::Ok);
        assert_eq!(bookie.read(1, id).await, ErrorCode::Ok);
    }
    let view = bookie.json("/api/v1/bookie/tier").await;
    assert_eq!((view["url"].as_str(), view["reachable"].as_bool()), (Some(&*url), Some(false)));
    assert_eq!(bookie.metric("bindery_tier_reachable").await, 0);
    let id = bindery_types::BookieId::new("bookie-0").unwrap();
    let info = bookie.layout.registration().service_info(&id).await.unwrap().unwrap().unwrap();
    assert_eq!(info.properties["bindery.tier"], "1");
    bookie.stop().await;
}
