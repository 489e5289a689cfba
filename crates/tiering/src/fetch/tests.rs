//! The fetcher against a store that does what a test says.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bindery_types::codec::crc32c;
use bindery_types::tier::{ClusterId, ObjectId, ObjectRef, TierExtent};
use bindery_types::{EntryId, LedgerId};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::check::{CheckError, LocalDifference, LocalRecords};
use super::*;
use crate::object::{Compression, ObjectBuilder, ObjectSummary, TableEntry};
use crate::store::Store;

/// How the store treats a request.
#[derive(Debug, Clone)]
enum Fate {
    /// It takes this long.
    Slow(Duration),
    /// No answer ever comes.
    Hangs,
    /// 503.
    Refused,
    /// 404.
    Missing,
    /// 403.
    Denied,
    /// The answer ends after this many bytes, without an error.
    CutShort(usize),
    /// The connection breaks after this many bytes.
    Lost(usize),
    /// A bit of the answer is wrong.
    Flipped(usize),
}

#[derive(Debug, Default)]
struct Scripted {
    inner: InMemory,
    /// For the next requests, one each; then all go well.
    next: Mutex<VecDeque<Fate>>,
    /// For all requests.
    always: Mutex<Option<Fate>>,
    ranges: Mutex<Vec<Range<u64>>>,
    heads: AtomicUsize,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

impl std::fmt::Display for Scripted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("scripted")
    }
}

struct Running<'a>(&'a Scripted);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

fn failed(text: &str) -> Error {
    Error::Generic { store: "scripted", source: text.to_owned().into() }
}

#[async_trait::async_trait]
impl ObjectStore for Scripted {
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
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        let _running = Running(self);
        self.most_running.fetch_max(running, Ordering::Relaxed);
        if options.head {
            self.heads.fetch_add(1, Ordering::Relaxed);
        }
        let next = self.next.lock().pop_front();
        let fate = next.or_else(|| self.always.lock().clone());
        match &fate {
            Some(Fate::Slow(time)) => tokio::time::sleep(*time).await,
            Some(Fate::Hangs) => std::future::pending().await,
            Some(Fate::Refused) => return Err(failed("503 SlowDown")),
            Some(Fate::Denied) => {
                let source = "403".to_owned().into();
                return Err(Error::PermissionDenied { path: key.to_string(), source });
            }
            Some(Fate::Missing) => {
                return Err(Error::NotFound { path: key.to_string(), source: "404".to_owned().into() });
            }
            _ => {}
        }
        let is_head = options.head;
        let result = self.inner.get_opts(key, options).await?;
        if is_head {
            return Ok(result);
        }
        self.ranges.lock().push(result.range.clone());
        let GetResult { meta, range, attributes, extensions, .. } = &result;
        let (meta, range) = (meta.clone(), range.clone());
        let (attributes, extensions) = (attributes.clone(), extensions.clone());
        let mut bytes = result.bytes().await?.to_vec();
        let mut end = None;
        match fate {
            Some(Fate::CutShort(at)) => bytes.truncate(at),
            Some(Fate::Lost(at)) => {
                bytes.truncate(at);
                end = Some(Err(failed("connection reset")));
            }
            Some(Fate::Flipped(at)) => bytes[at] ^= 1,
            _ => {}
        }
        // In chunks that fit nothing.
        let chunks: Vec<Result<Bytes>> =
            bytes.chunks(1_013).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).chain(end).collect();
        let payload = GetResultPayload::Stream(futures_util::stream::iter(chunks).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
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

const CLUSTER: ClusterId = ClusterId::from_bytes([7; 16]);
const LEDGERS: i64 = 3;
const ENTRIES: i64 = 40;
const BODY_BYTES: usize = 200_000;

fn ledger(id: i64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}

fn body(of: i64, id: i64) -> Bytes {
    let mut bytes = of.to_be_bytes().to_vec();
    bytes.extend_from_slice(&id.to_be_bytes());
    bytes.resize(BODY_BYTES, (of * 31 + id) as u8);
    bytes.into()
}

/// Three ledgers of forty entries of 200 kB: seven blocks each.
fn object(number: u8, compression: Compression) -> (Vec<u8>, ObjectSummary) {
    let mut builder = ObjectBuilder::new(ObjectId::new(5, [number; 10]), CLUSTER, 5, compression);
    for of in 0..LEDGERS {
        builder.begin(ledger(of), entry(0), Bytes::from_static(b"metadata")).unwrap();
        for id in 0..ENTRIES {
            let body = body(of, id);
            let crc = crc32c(&[&body]);
            builder.append(body, crc).unwrap();
        }
    }
    let (chunks, summary) = builder.finish();
    (chunks.concat(), summary)
}

struct World {
    store: Arc<Scripted>,
    fetcher: Fetcher,
    object: ObjectRef,
    bytes: Vec<u8>,
}

fn key(object: &ObjectRef) -> Path {
    Path::from(format!("p/{CLUSTER}/objects/{}", object.id))
}

impl World {
    async fn new(options: FetchOptions) -> World {
        World::with(options, Compression::None).await
    }

    async fn with(options: FetchOptions, compression: Compression) -> World {
        let store = Arc::new(Scripted::default());
        let (bytes, summary) = object(1, compression);
        let mut object = ObjectRef {
            id: summary.object,
            length_bytes: summary.size_bytes,
            footer_offset: summary.trailer.footer_offset,
            footer_crc: summary.trailer.footer_crc32c,
            etag_crc: 0,
        };
        let put = store.put(&key(&object), PutPayload::from(bytes.clone())).await.unwrap();
        object.etag_crc = crc32c(&[put.e_tag.unwrap().as_bytes()]);
        let open = Store::new("s3://bucket/p".parse().unwrap(), store.clone());
        let fetcher = Fetcher::new(open, CLUSTER, options, Handle::current());
        World { store, fetcher, object, bytes }
    }

    fn extent(&self) -> TierExtent {
        TierExtent { first: entry(0), last: entry(ENTRIES - 1), object: self.object }
    }

    fn ask_of(&self, reader: u64, of: i64, id: i64) -> Ask {
        Ask { reader: ReaderId(reader), ledger: ledger(of), entry: entry(id), extent: self.extent() }
    }

    /// Asks, and waits for the outcome.
    async fn read(&self, reader: u64, of: i64, id: i64) -> std::result::Result<Vec<u8>, FetchError> {
        let (tell, told) = oneshot::channel();
        let ask = self.ask_of(reader, of, id);
        let offer = self.fetcher.ask(ask, move |outcome| drop(tell.send(outcome)))?;
        let entry = match offer {
            // As one that has to wait for its turn after all.
            Offer::Here(entry) => entry.keep().open().expect("nobody needs its memory"),
            Offer::Coming(_ticket) => {
                told.await.expect("fetch invariant 6")?.open().expect("it is used at once")
            }
        };
        self.fetcher.check_invariants();
        Ok(entry.to_vec())
    }

    /// Waits until it is idle, and has nothing left.
    async fn idle(&self) {
        // Requests that read ahead, or for somebody who has left, end by themselves.
        while self.fetcher.stats().running > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let stats = self.fetcher.stats();
        assert_eq!((stats.waiting, stats.pins, stats.under_way_bytes), (0, 0, 0), "fetch invariant 8");
        self.fetcher.check_invariants();
    }

    async fn overwrite(&self, bytes: Vec<u8>) {
        self.store.put(&key(&self.object), PutPayload::from(bytes)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn every_entry_comes_back_as_it_was_stored() {
    for compression in [Compression::None, Compression::Zstd] {
        let world = World::with(FetchOptions::default(), compression).await;
        for of in 0..LEDGERS {
            for id in (0..ENTRIES).rev() {
                assert_eq!(world.read(1, of, id).await.unwrap(), body(of, id), "fetch invariant 1");
            }
        }
        world.idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_ledger_read_in_sequence_takes_few_requests_and_stays_within_its_memory() {
    let options = FetchOptions { memory_bytes_max: 9 << 20, ..FetchOptions::default() };
    let world = World::new(options).await;
    for id in 0..ENTRIES {
        assert_eq!(world.read(1, 0, id).await.unwrap(), body(0, id));
        let stats = world.fetcher.stats();
        let used = stats.under_way_bytes + stats.block_bytes + stats.index_bytes;
        assert!(used <= 9 << 20, "fetch invariant 4: {used}");
    }
    world.idle().await;
    // The footer, one block, then growing pieces of what is left of seven.
    assert!(world.store.ranges.lock().len() <= 5, "{:?}", world.store.ranges.lock());
}

#[tokio::test(start_paused = true)]
async fn one_request_serves_however_many_wait() {
    let world = World::new(FetchOptions::default()).await;
    *world.store.always.lock() = Some(Fate::Slow(Duration::from_millis(50)));
    let reads = (0..100).map(|reader| world.read(reader, 1, 3));
    for read in futures_util::future::join_all(reads).await {
        assert_eq!(read.unwrap(), body(1, 3));
    }
    assert_eq!(world.store.ranges.lock().len(), 2, "fetch invariant 3: the footer and a block");
    world.idle().await;
}

#[tokio::test(start_paused = true)]
async fn requests_at_once_are_bounded() {
    let options = FetchOptions { requests_max: 3, requests_per_reader_max: 2, ..FetchOptions::default() };
    let world = World::new(options).await;
    *world.store.always.lock() = Some(Fate::Slow(Duration::from_millis(50)));
    let reads = (0..30).map(|at| world.read(at % 5, at as i64 % LEDGERS, at as i64));
    for (at, read) in futures_util::future::join_all(reads).await.into_iter().enumerate() {
        assert_eq!(read.unwrap(), body(at as i64 % LEDGERS, at as i64));
    }
    assert!(world.store.most_running.load(Ordering::Relaxed) <= 3, "fetch invariant 5");
    world.idle().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_retry_can_mend_is_mended() {
    for fate in
        [Fate::Refused, Fate::CutShort(100), Fate::Lost(1_500), Fate::Slow(Duration::from_millis(900))]
    {
        let world = World::new(FetchOptions::default()).await;
        world.store.next.lock().extend([fate.clone(), fate.clone()]);
        assert_eq!(world.read(1, 2, 7).await.unwrap(), body(2, 7), "{fate:?}");
        // And of the blocks alone.
        world.store.next.lock().extend([fate.clone(), fate.clone()]);
        assert_eq!(world.read(1, 2, 30).await.unwrap(), body(2, 30), "{fate:?}");
        world.idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn blocks_that_came_before_an_answer_was_lost_are_not_fetched_again() {
    let world = World::new(FetchOptions::default()).await;
    for id in [0, 6] {
        world.read(1, 0, id).await.unwrap();
    }
    world.idle().await;
    world.store.ranges.lock().clear();
    // Block 2 came with block 1; block 3 begins the next piece, which is lost in its second block.
    world.store.next.lock().push_back(Fate::Lost(1_500_000));
    for id in 0..ENTRIES {
        assert_eq!(world.read(1, 0, id).await.unwrap(), body(0, id));
    }
    world.idle().await;
    let ranges = world.store.ranges.lock().clone();
    assert!(ranges.len() >= 2 && ranges[1].start > ranges[0].start, "{ranges:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_reported_by_the_deadline_and_then_at_once() {
    let world = World::new(FetchOptions::default()).await;
    world.read(1, 0, 0).await.unwrap();
    *world.store.always.lock() = Some(Fate::Hangs);
    let began = Instant::now();
    let reads = (0..20).map(|at| world.read(at % 5, at as i64 % LEDGERS, 39 - at as i64 / 3 * 5));
    for read in futures_util::future::join_all(reads).await {
        let error = read.map(|body| body.len()).unwrap_err();
        // Nothing is said of those whose requests were never sent but that too many wait.
        assert!(
            matches!(error, FetchError::Unreachable { .. } | FetchError::Busy),
            "fetch invariant 2: {error}"
        );
    }
    assert_eq!(began.elapsed().as_secs(), 5, "fetch invariant 6");
    let began = Instant::now();
    assert!(matches!(world.read(9, 0, 39).await, Err(FetchError::Unreachable { .. })));
    assert!(began.elapsed().is_zero(), "fetch invariant 7");
    assert_eq!(world.read(9, 0, 0).await.unwrap(), body(0, 0), "the cache needs no store");
    // Requests that hang are given up.
    tokio::time::sleep(Duration::from_secs(20)).await;
    world.idle().await;
    *world.store.always.lock() = None;
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(world.read(9, 0, 39).await.unwrap(), body(0, 39), "it is found when it is back");
    world.idle().await;
}

#[tokio::test(start_paused = true)]
async fn wrong_bytes_are_an_error_that_names_object_and_part_and_never_an_entry() {
    let world = World::new(FetchOptions::default()).await;
    let sound = world.bytes.clone();
    let at = world.object.footer_offset as usize;
    for (position, part) in
        [(sound.len() - 1, "trailer"), (sound.len() - 40, "trailer"), (at, "footer"), (at + 30, "footer")]
    {
        let mut bytes = sound.clone();
        bytes[position] ^= 1;
        world.overwrite(bytes).await;
        let error = world.read(1, 0, 0).await.unwrap_err();
        assert!(error.is_alarm(), "{error}");
        let text = error.to_string();
        assert!(text.contains(part) && text.contains(&world.object.id.to_string()), "{text}");
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    let mut bytes = sound.clone();
    bytes[1_000_000] ^= 1;
    world.overwrite(bytes).await;
    let error = world.read(1, 0, 4).await.unwrap_err();
    assert!(error.to_string().contains("damaged block at offset 64"), "{error}");
    assert_eq!(world.read(1, 0, 9).await.unwrap(), body(0, 9), "other blocks are as they were");
    assert_eq!(world.fetcher.stats().alarms, 5);
    world.overwrite(sound).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.read(1, 0, 4).await.unwrap(), body(0, 4));
    world.store.next.lock().push_back(Fate::Flipped(77));
    assert!(world.read(1, 1, 20).await.unwrap_err().is_alarm(), "on the way, too");
    world.idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_refused_does_not_put_the_store_out_of_reach() {
    let world = World::new(FetchOptions { failures_max: 2, ..FetchOptions::default() }).await;
    *world.store.always.lock() = Some(Fate::Denied);
    for _ in 0..4 {
        let error = world.read(1, 0, 0).await.unwrap_err();
        assert!(matches!(error, FetchError::Refused { .. }), "{error}");
        assert!(!error.is_alarm() && world.fetcher.stats().is_reachable);
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    *world.store.always.lock() = None;
    assert_eq!(world.read(1, 0, 0).await.unwrap(), body(0, 0));
    world.idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_gone_cut_short_or_another_one_is_an_alarm() {
    let world = World::new(FetchOptions::default()).await;
    let sound = world.bytes.clone();
    let (other, _) = object(2, Compression::None);
    let half = sound[..sound.len() / 2].to_vec();
    let shorter = sound[..sound.len() - 1].to_vec();
    for bytes in [other, half, shorter, Vec::new()] {
        world.overwrite(bytes).await;
        let error = world.read(1, 0, 0).await.unwrap_err();
        assert!(error.is_alarm(), "{error}");
        assert!(world.fetcher.stats().is_reachable);
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    world.store.delete(&key(&world.object)).await.unwrap();
    let error = world.read(1, 0, 0).await.unwrap_err();
    assert!(matches!(error, FetchError::Missing { .. }), "{error}");
    world.overwrite(sound).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    world.store.next.lock().push_back(Fate::Missing);
    let error = world.read(1, 0, 0).await.unwrap_err();
    assert!(matches!(error, FetchError::Missing { .. }), "{error}");
    tokio::time::sleep(Duration::from_secs(10)).await;
    // Another footer than the one that was committed.
    let mut ask = world.ask_of(1, 0, 0);
    ask.extent.object.footer_crc ^= 1;
    let (tell, told) = oneshot::channel();
    let ticket = world.fetcher.ask(ask, move |outcome| drop(tell.send(outcome.map(drop)))).unwrap();
    let error = told.await.unwrap().unwrap_err();
    assert!(matches!(error, FetchError::Different { .. }), "fetch invariant 1: {error}");
    drop(ticket);
    // An entry that the object does not have.
    let error = world.read(1, 0, ENTRIES).await.unwrap_err();
    assert!(matches!(error, FetchError::Different { .. }), "fetch invariant 2: {error}");
    let error = world.read(1, LEDGERS, 0).await.unwrap_err();
    assert!(matches!(error, FetchError::Different { .. }), "fetch invariant 2: {error}");
    world.idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_ticket_is_never_called_and_leaves_nothing() {
    let world = World::new(FetchOptions { requests_max: 2, ..FetchOptions::default() }).await;
    *world.store.always.lock() = Some(Fate::Slow(Duration::from_millis(100)));
    let called = Arc::new(AtomicUsize::new(0));
    let mut tickets = Vec::new();
    for at in 0..60 {
        let called = called.clone();
        let ask = world.ask_of(at % 3, at as i64 % LEDGERS, at as i64 % ENTRIES);
        let asked = world.fetcher.ask(ask, move |_| _ = called.fetch_add(1, Ordering::Relaxed)).unwrap();
        tickets.push(asked);
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    tickets.clear();
    let stats = world.fetcher.stats();
    assert_eq!((stats.waiting, stats.pins), (0, 0), "fetch invariant 6");
    world.idle().await;
    assert_eq!(called.load(Ordering::Relaxed), 0, "fetch invariant 6");
}

#[tokio::test(start_paused = true)]
async fn waiters_are_bounded_and_an_end_tells_them_all() {
    let options = FetchOptions { waiters_max: 10, waiters_per_reader_max: 6, ..FetchOptions::default() };
    let world = World::new(options).await;
    *world.store.always.lock() = Some(Fate::Hangs);
    let told = Arc::new(Mutex::new(Vec::new()));
    let ask = |reader: u64, id: i64| {
        let told = told.clone();
        world.fetcher.ask(world.ask_of(reader, 0, id), move |outcome| told.lock().push(outcome.map(drop)))
    };
    let tickets: Vec<_> = (0..6).map(|id| ask(1, id).unwrap()).collect();
    assert_eq!(ask(1, 6).err(), Some(FetchError::Busy));
    let more: Vec<_> = (0..4).map(|id| ask(2, id).unwrap()).collect();
    assert_eq!(ask(3, 0).err(), Some(FetchError::Busy));
    drop(world.fetcher);
    assert_eq!(*told.lock(), vec![Err(FetchError::Stopped); 10]);
    drop((tickets, more));
}

/// Local records that are those of the object, but for one, and for those that a repair wrote.
#[derive(Default)]
struct Records {
    of: i64,
    wrong: Option<i64>,
    repaired: Vec<i64>,
    seen: Vec<i64>,
    seen_whole: Vec<i64>,
}

impl LocalRecords for Records {
    fn compare(
        &mut self,
        first: EntryId,
        table: &[TableEntry],
    ) -> std::result::Result<Vec<EntryId>, LocalDifference> {
        let mut differ = Vec::new();
        for (id, listed) in (first.get()..).zip(table) {
            self.seen.push(id);
            let body = body(self.of, id);
            let here = TableEntry { size_bytes: body.len() as u32, crc32c: crc32c(&[&body]) };
            if *listed != here || self.wrong == Some(id) || self.repaired.contains(&id) {
                differ.push(entry(id));
            }
        }
        Ok(differ)
    }

    fn compare_entry(&mut self, id: EntryId, stored: &[u8]) -> std::result::Result<(), LocalDifference> {
        self.seen_whole.push(id.get());
        match stored == body(self.of, id.get()) && self.wrong != Some(id.get()) {
            true => Ok(()),
            false => Err(LocalDifference::Entry(id)),
        }
    }
}

/// Copies of other checksums are compared as a whole, with their blocks.
#[tokio::test(start_paused = true)]
async fn a_check_takes_copies_that_a_repair_wrote() {
    let world = World::new(FetchOptions::default()).await;
    let mut records = Records { of: 1, repaired: vec![0, 17], ..Records::default() };
    let checked = world.fetcher.check(ledger(1), &world.extent(), |_| vec![], &mut records).await.unwrap();
    assert_eq!(checked.blocks_read, 2);
    assert_eq!(records.seen_whole.len() as u64, checked.entries_read);
    assert!([0, 17].iter().all(|id| records.seen_whole.contains(id)), "{:?}", records.seen_whole);
    // Of a part of the extent, that part.
    let part = TierExtent { first: entry(17), last: entry(17), ..world.extent() };
    records.seen_whole.clear();
    world.fetcher.check(ledger(1), &part, |_| vec![], &mut records).await.unwrap();
    assert_eq!(records.seen_whole, [17]);
}

/// Limits: nothing is found good that has a block for which there is no memory, whether it is read back or not.
#[tokio::test(start_paused = true)]
async fn a_check_refuses_blocks_that_could_not_be_read_back() {
    let world = World::new(FetchOptions { memory_bytes_max: 4_000, ..FetchOptions::default() }).await;
    let mut records = Records { of: 1, ..Records::default() };
    let error = world.fetcher.check(ledger(1), &world.extent(), |_| vec![], &mut records).await.unwrap_err();
    assert!(matches!(error, CheckError::Fetch(FetchError::TooLarge { .. })), "{error}");
    assert!(!error.is_alarm());
}

#[tokio::test(start_paused = true)]
async fn a_check_compares_every_entry_and_reads_blocks_back() {
    for compression in [Compression::None, Compression::Zstd] {
        let world = World::with(FetchOptions::default(), compression).await;
        let mut records = Records { of: 1, ..Records::default() };
        let checked =
            world.fetcher.check(ledger(1), &world.extent(), |_| vec![6, 0, 0, 99], &mut records).await;
        let checked = checked.unwrap();
        assert_eq!((checked.entries, checked.blocks_read), (ENTRIES as u64, 2), "check invariant 1");
        assert_eq!(checked.entries_read, 6 + 4);
        assert_eq!(records.seen, (0..ENTRIES).collect::<Vec<_>>(), "check invariant 1");
        // Of a part of an extent, that part.
        let part = TierExtent { first: entry(5), last: entry(7), ..world.extent() };
        records.seen.clear();
        world.fetcher.check(ledger(1), &part, |_| Vec::new(), &mut records).await.unwrap();
        assert_eq!(records.seen, [5, 6, 7]);
        world.idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_finds_every_difference() {
    let world = World::new(FetchOptions::default()).await;
    let check = async |extent: TierExtent, wrong: Option<i64>| {
        let mut records = Records { of: 1, wrong, ..Records::default() };
        let error =
            world.fetcher.check(ledger(1), &extent, |blocks| (0..blocks).collect(), &mut records).await;
        world.fetcher.check_invariants();
        error
    };
    assert!(check(world.extent(), None).await.is_ok());
    let error = check(world.extent(), Some(17)).await.unwrap_err();
    assert!(matches!(error, CheckError::OtherEntry { entry, .. } if entry.get() == 17), "{error}");
    // A copy of the same bytes, as another bucket has it: the store gives it another tag.
    let put = world.store.put(&key(&world.object), PutPayload::from(world.bytes.clone())).await.unwrap();
    assert_ne!(crc32c(&[put.e_tag.unwrap().as_bytes()]), world.object.etag_crc);
    assert!(check(world.extent(), None).await.is_ok(), "check invariant 1: the content decides");
    // A flipped bit at rest, in each part that has entries.
    let index = crate::object::Footer::decode(
        &Bytes::copy_from_slice(&world.bytes[world.object.footer_offset as usize..world.bytes.len() - 64]),
        &crate::object::Trailer::decode(world.bytes.last_chunk().unwrap(), world.bytes.len() as u64).unwrap(),
    )
    .unwrap();
    let of_ledger = index.extents_of(ledger(1)).next().unwrap();
    for at in [of_ledger.table_offset + 3, of_ledger.blocks[3].offset + 500] {
        let mut bytes = world.bytes.clone();
        bytes[at as usize] ^= 1;
        world.overwrite(bytes).await;
        let error = check(world.extent(), None).await.unwrap_err();
        assert!(error.is_alarm(), "check invariant 1: byte {at}: {error}");
    }
    world.overwrite(world.bytes[1..].to_vec()).await;
    assert!(check(world.extent(), None).await.unwrap_err().is_alarm(), "its length");
    world.store.delete(&key(&world.object)).await.unwrap();
    assert!(check(world.extent(), None).await.unwrap_err().is_alarm(), "it is gone");
    for fate in [Fate::Refused, Fate::Hangs] {
        world.store.next.lock().push_back(fate);
        assert!(!check(world.extent(), None).await.unwrap_err().is_alarm(), "check invariant 3");
    }
    world.idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_check_that_is_given_up_leaves_nothing() {
    let world = World::new(FetchOptions::default()).await;
    for requests in 0..5 {
        world.store.next.lock().clear();
        world.store.next.lock().extend(vec![Fate::Slow(Duration::ZERO); requests]);
        world.store.next.lock().push_back(Fate::Hangs);
        let mut records = Records { of: 1, ..Records::default() };
        let (extent, samples) = (world.extent(), |_| vec![1]);
        let check = world.fetcher.check(ledger(1), &extent, samples, &mut records);
        drop(tokio::time::timeout(Duration::from_secs(1), check).await);
        world.idle().await;
    }
}

#[tokio::test]
async fn a_local_directory_serves_too() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}", directory.path().display());
    let store = crate::store::open(&url.parse().unwrap(), &Default::default()).unwrap();
    let (bytes, summary) = object(1, Compression::Zstd);
    let object = ObjectRef {
        id: summary.object,
        length_bytes: summary.size_bytes,
        footer_offset: summary.trailer.footer_offset,
        footer_crc: summary.trailer.footer_crc32c,
        etag_crc: 0,
    };
    let name = store.key(&format!("{CLUSTER}/objects/{}", object.id));
    store.inner().put(&name, PutPayload::from(bytes)).await.unwrap();
    let fetcher = Fetcher::new(store.clone(), CLUSTER, FetchOptions::default(), Handle::current());
    let scripted = Arc::new(Scripted::default());
    let world = World { store: scripted, fetcher, object, bytes: Vec::new() };
    for of in 0..LEDGERS {
        for id in 0..ENTRIES {
            assert_eq!(world.read(1, of, id).await.unwrap(), body(of, id));
        }
    }
    let cut = std::fs::OpenOptions::new().write(true).open(directory.path().join(name.as_ref())).unwrap();
    cut.set_len(1_000).unwrap();
    let mut other = world.extent();
    // Not in the cache under this reference.
    other.object.etag_crc = 1;
    let ask = Ask { reader: ReaderId(1), ledger: ledger(0), entry: entry(0), extent: other };
    let (tell, told) = oneshot::channel();
    let _ticket = world.fetcher.ask(ask, move |outcome| drop(tell.send(outcome))).unwrap();
    let error = told.await.unwrap().unwrap_err();
    assert!(matches!(error, FetchError::Different { .. }), "{error}");
}
