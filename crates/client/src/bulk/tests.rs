//! Bulk readers against scripted bookies, on a clock that only moves when all wait.

mod striped;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{Layout, LedgerLayout, layout};
use bindery_types::{
    BookieId, DigestType, Digester, EntryId, LedgerId, LedgerMetadata, LedgerSecret, LedgerState, MasterKey,
    MetadataFormatVersion, Quorum, Segment,
};
use bindery_wire::ErrorCode;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::{BulkOptions, BulkReader, LedgerView, StoredBatch, StoredEntry};
use crate::client::Client;
use crate::entry::EntryCodec;
use crate::error::{BookieAnswer, ReadError};
use crate::health::NodeState;
use crate::transport::{
    AddRequest, AddSink, Answer, BatchReadRequest, BookieError, LacAnswer, PollRequest, ReadRequest,
    Transport,
};

fn at(entry: i64) -> EntryId {
    EntryId::new(entry).unwrap()
}

fn id(name: &str) -> BookieId {
    BookieId::new(name).unwrap()
}

fn ledger() -> LedgerId {
    LedgerId::new(1).unwrap()
}

/// What is wrong with a bookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ill {
    /// No connection comes about.
    Dead,
    /// Nothing is answered within the request timeout.
    Hangs,
    Slow(Duration),
    /// Every so many requests, all but one.
    Refuses(usize),
    /// Each request.
    RefusesAll,
    KnowsNoBatches,
    /// As a release that ends the connection.
    BreaksOnBatches,
    /// As Java's, which ends a batch at the first gap, so that nobody asks it by strides.
    KnowsNoStrides,
}

const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Bookies {
    entries: Mutex<BTreeMap<(BookieId, i64), Bytes>>,
    ill: Mutex<BTreeMap<BookieId, Ill>>,
    /// LACs are not told by these.
    silent: Mutex<BTreeSet<BookieId>>,
    requests: Mutex<BTreeMap<BookieId, usize>>,
    /// Batch reads under way, and the most there were.
    batches: Mutex<BTreeMap<BookieId, (usize, usize)>>,
    /// Bytes of answers that somebody still has, and the most there were.
    held: Arc<(AtomicUsize, AtomicUsize)>,
    /// Held back while it is some.
    gate: Mutex<Option<Arc<Notify>>>,
}

/// Bytes that count while they live.
struct Held {
    bytes: Bytes,
    held: Arc<(AtomicUsize, AtomicUsize)>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.held.0.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

impl Bookies {
    fn get(&self, bookie: &BookieId, entry: i64) -> Result<Bytes, BookieError> {
        let found = self.entries.lock().get(&(bookie.clone(), entry)).cloned();
        let bytes = found.ok_or(BookieError::Refused(ErrorCode::NoEntry))?;
        let held = self.held.clone();
        let now = held.0.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        held.1.fetch_max(now, Ordering::Relaxed);
        Ok(Bytes::from_owner(Held { bytes, held }))
    }

    /// What comes before each answer.
    async fn arrives(&self, bookie: &BookieId, is_batch: bool) -> Result<(), BookieError> {
        let number = {
            let mut requests = self.requests.lock();
            let number = requests.entry(bookie.clone()).or_default();
            *number += 1;
            *number
        };
        let ill = self.ill.lock().get(bookie).copied();
        // A round trip.
        sleep(Duration::from_micros(100)).await;
        let gate = self.gate.lock().clone();
        if let Some(gate) = gate {
            gate.notified().await;
        }
        let refused = Err(BookieError::Refused(ErrorCode::TooManyRequests));
        match ill {
            None => Ok(()),
            Some(Ill::Dead) => Err(BookieError::Unreachable("no route".into())),
            Some(Ill::Hangs) => {
                sleep(TIMEOUT).await;
                Err(BookieError::TimedOut(TIMEOUT))
            }
            Some(Ill::Slow(time)) => {
                sleep(time).await;
                Ok(())
            }
            Some(Ill::Refuses(every)) if number % every != 0 => refused,
            Some(Ill::RefusesAll) => refused,
            Some(Ill::KnowsNoBatches) if is_batch => Err(BookieError::Refused(ErrorCode::BadRequest)),
            Some(Ill::BreaksOnBatches) if is_batch => Err(BookieError::Unexpected("?".into())),
            Some(_) => Ok(()),
        }
    }

    fn requests_of(&self, bookie: &str) -> usize {
        self.requests.lock().get(&id(bookie)).copied().unwrap_or_default()
    }
}

impl Transport for Bookies {
    fn add(&self, _: &BookieId, _: AddRequest, _: &Arc<dyn AddSink>) {}

    fn read(&self, bookie: &BookieId, request: ReadRequest) -> Answer<'_, Bytes> {
        assert!(request.fence.is_none(), "module invariant 3");
        let bookie = bookie.clone();
        Box::pin(async move {
            self.arrives(&bookie, false).await?;
            self.get(&bookie, EntryId::to_wire(request.entry))
        })
    }

    fn batch_read(&self, bookie: &BookieId, request: BatchReadRequest) -> Answer<'_, Vec<Bytes>> {
        let bookie = bookie.clone();
        Box::pin(async move {
            {
                let mut batches = self.batches.lock();
                let (now, most) = batches.entry(bookie.clone()).or_default();
                *now += 1;
                *most = (*most).max(*now);
            }
            let knows_strides = self.ill.lock().get(&bookie) != Some(&Ill::KnowsNoStrides);
            if request.stride > 1 && !knows_strides {
                self.batches.lock().get_mut(&bookie).unwrap().0 -= 1;
                return Err(BookieError::Refused(ErrorCode::BadRequest));
            }
            let arrived = self.arrives(&bookie, true).await;
            self.batches.lock().get_mut(&bookie).unwrap().0 -= 1;
            arrived?;
            let mut entries = vec![self.get(&bookie, request.first.get())?];
            let mut size = entries[0].len() as u64;
            let behind = (request.first.get()..).step_by(request.stride as usize).skip(1);
            for entry in behind.take(request.count_max as usize - 1) {
                let next_size = self.entries.lock().get(&(bookie.clone(), entry)).map_or(0, Bytes::len);
                if next_size == 0 || size + next_size as u64 > request.size_bytes_max {
                    break;
                }
                size += next_size as u64;
                entries.push(self.get(&bookie, entry)?);
            }
            Ok(entries)
        })
    }

    fn read_lac(&self, bookie: &BookieId, _: LedgerId) -> Answer<'_, LacAnswer> {
        let answer = match self.silent.lock().contains(bookie) {
            true => Err(BookieError::Lost),
            false => {
                let entries = self.entries.lock();
                let mine = entries.iter().filter(|((owner, _), _)| owner == bookie);
                let last_entry = mine.map(|(_, stored)| stored.clone()).next_back();
                Ok(LacAnswer { explicit: None, last_entry })
            }
        };
        Box::pin(async move { answer })
    }

    fn write_lac(&self, _: &BookieId, _: LedgerId, _: MasterKey, _: EntryId, _: Bytes) -> Answer<'_, ()> {
        unreachable!("bulk readers write nothing")
    }

    fn poll_lac(&self, _: &BookieId, _: PollRequest) -> Answer<'_, Option<EntryId>> {
        unreachable!("bulk readers do not wait for entries")
    }
}

/// A ledger on bookies a to f: where its segments begin, and the size of each entry.
struct Shape {
    quorum: (usize, usize),
    segments: Vec<i64>,
    sizes: Vec<usize>,
    digest: DigestType,
    is_closed: bool,
    has_secret: bool,
}

impl Shape {
    fn of(quorum: (usize, usize), sizes: impl IntoIterator<Item = usize>) -> Shape {
        let (segments, sizes) = (vec![0], sizes.into_iter().collect());
        let digest = DigestType::Crc32c;
        Shape { quorum, segments, sizes, digest, is_closed: true, has_secret: true }
    }
}

struct Setup {
    client: Client,
    bookies: Arc<Bookies>,
    layout: Layout,
    codec: EntryCodec,
    metadata: LedgerMetadata,
    count: i64,
}

impl Setup {
    async fn new(shape: Shape) -> Setup {
        let cluster = MemoryCluster::new();
        layout::init_cluster(&cluster.open(), "/l", LedgerLayout::Hierarchical, [0; 16]).await.unwrap();
        let layout = Layout::open(Arc::new(cluster.open()), "/l", None).await.unwrap();
        let bookies = Arc::new(Bookies::default());
        let seen_by_client = Layout::open(Arc::new(cluster.open()), "/l", None).await.unwrap();
        let builder = Client::builder().layout(seen_by_client).transport(bookies.clone());
        let client = builder.connect().await.unwrap();
        let secret = LedgerSecret { digest_type: shape.digest, password: b"p".to_vec() };
        let codec = EntryCodec::new(ledger(), Digester::new(secret.digest_type, &secret.password));
        let (e, qw) = shape.quorum;
        let mut metadata = LedgerMetadata::new(Quorum::new(e, qw, 1).unwrap(), secret);
        let names = ["a", "b", "c", "d", "e", "f"];
        for (turn, first) in shape.segments.iter().enumerate() {
            // One other bookie in each.
            let mut ensemble: Vec<BookieId> = names[..e].iter().map(|name| id(name)).collect();
            if turn > 0 {
                ensemble[turn % e] = id(names[e + (turn - 1) % (names.len() - e)]);
            }
            metadata.push_segment(Segment { first_entry: at(*first), ensemble }).unwrap();
        }
        let mut length_bytes = 0;
        for (entry, size) in shape.sizes.iter().enumerate() {
            length_bytes += *size as u64;
            let mut stored = Vec::new();
            let payload = vec![entry as u8; *size];
            codec.put(at(entry as i64), EntryId::new(entry as i64 - 1), length_bytes, &payload, &mut stored);
            for bookie in metadata.write_set(at(entry as i64)) {
                bookies.entries.lock().insert((bookie.clone(), entry as i64), stored.clone().into());
            }
        }
        let count = shape.sizes.len() as i64;
        if shape.is_closed {
            metadata.state = LedgerState::Closed { last_entry: EntryId::new(count - 1), length_bytes };
        }
        if !shape.has_secret {
            metadata.secret = None;
            metadata.format_version = MetadataFormatVersion::V1;
        }
        layout.ledgers().create(ledger(), &metadata).await.unwrap();
        Setup { client, bookies, layout, codec, metadata, count }
    }

    fn is_ill(&self, bookie: &str, ill: Ill) {
        self.bookies.ill.lock().insert(id(bookie), ill);
    }

    fn reader(&self) -> BulkReader {
        self.client.bulk(BulkOptions { range_size_bytes: 64 << 10, ..BulkOptions::default() })
    }

    async fn view(&self) -> LedgerView {
        self.reader().open(ledger()).await.unwrap()
    }

    fn stored(&self, bookie: &BookieId, entry: i64) -> Option<Bytes> {
        self.bookies.entries.lock().get(&(bookie.clone(), entry)).cloned()
    }

    fn damage(&self, bookie: &BookieId, entry: i64) {
        let mut entries = self.bookies.entries.lock();
        let stored = entries.get_mut(&(bookie.clone(), entry)).unwrap();
        let mut bytes = stored.to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        *stored = bytes.into();
    }

    fn lose(&self, entry: i64) {
        self.bookies.entries.lock().retain(|(_, id), _| *id != entry);
    }

    /// Java's re-replication: a bookie's copies up to `lac` are packed again, with that LAC.
    fn repack(&self, bookie: &str, lac: i64) {
        let mut entries = self.bookies.entries.lock();
        for ((owner, entry), stored) in entries.iter_mut() {
            if owner.as_str() == bookie && *entry <= lac {
                let found = self.codec.open(Some(at(*entry)), stored).unwrap();
                let mut packed = Vec::new();
                self.codec.put(found.id, EntryId::new(lac), found.length_bytes, &found.payload, &mut packed);
                *stored = packed.into();
            }
        }
    }

    /// Entries as one of their bookies stores them, verified unless said otherwise: module invariants 1 and 2.
    fn assert_copies(&self, entries: &[StoredEntry], first: i64, is_verified: bool) {
        let mut copies: BTreeMap<i64, Vec<Bytes>> = BTreeMap::new();
        for ((_, id), stored) in &*self.bookies.entries.lock() {
            copies.entry(*id).or_default().push(stored.clone());
        }
        for (entry, expected) in entries.iter().zip(first..) {
            assert_eq!((entry.id, entry.is_verified), (at(expected), is_verified));
            assert!(copies[&expected].contains(&entry.bytes), "entry {expected} is what a bookie stores");
            assert!(self.codec.check(entry.id, &entry.bytes).is_some(), "entry {expected}");
        }
    }
}

/// All entries up to the end or an error.
async fn read(view: &LedgerView, first: i64, last: i64) -> (Vec<StoredEntry>, Option<ReadError>) {
    let (mut stream, mut entries) = (view.read(at(first), at(last)), Vec::new());
    while let Some(batch) = stream.next().await {
        match batch {
            Ok(batch) => entries.extend(batch.into_parts().0),
            Err(error) => {
                assert!(stream.next().await.is_none(), "an error is the end");
                return (entries, Some(error));
            }
        }
    }
    (entries, None)
}

async fn assert_all(setup: &Setup, view: &LedgerView) {
    let (entries, error) = read(view, 0, setup.count - 1).await;
    assert_eq!((error, entries.len() as i64), (None, setup.count));
    setup.assert_copies(&entries, 0, true);
}

const QUORUMS: [(usize, usize); 5] = [(1, 1), (3, 3), (3, 2), (5, 3), (4, 1)];

/// Some empty, some larger than a range.
fn sizes(count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(|entry| match entry % 97 {
        0 => 0,
        1 => 100_000,
        n => n * 20,
    })
}

#[tokio::test(start_paused = true)]
async fn every_entry_comes_in_order_as_it_is_stored() {
    for quorum in QUORUMS {
        for segments in [vec![0], vec![0, 1, 100, 333, 998]] {
            let setup = Setup::new(Shape { segments, ..Shape::of(quorum, sizes(1000)) }).await;
            let view = setup.view().await;
            assert!(view.is_sealed() && view.is_verifiable());
            assert_eq!(view.last_readable(), Some(at(999)));
            assert_all(&setup, &view).await;
            // Any part of it.
            for (first, last) in [(0, 0), (999, 999), (99, 101), (332, 334), (17, 900)] {
                let (entries, error) = read(&view, first, last).await;
                assert_eq!((entries.len() as i64, error), (last - first + 1, None));
                setup.assert_copies(&entries, first, true);
            }
            assert_eq!(read(&view, 5, 4).await, (vec![], None));
            let (_, error) = read(&view, 0, 1000).await;
            assert!(matches!(error, Some(ReadError::BeyondEnd { last, .. }) if last == Some(at(999))));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_bookie_that_is_ill_costs_no_entry() {
    let ills = [
        Ill::Dead,
        Ill::Hangs,
        Ill::Slow(Duration::from_millis(300)),
        Ill::Slow(Duration::from_secs(3)),
        Ill::Refuses(3),
        Ill::RefusesAll,
        Ill::KnowsNoBatches,
        Ill::BreaksOnBatches,
        Ill::KnowsNoStrides,
    ];
    for quorum in [(3, 3), (3, 2), (5, 3)] {
        for ill in ills {
            let segments = vec![0, 500];
            let setup = Setup::new(Shape { segments, ..Shape::of(quorum, sizes(1000)) }).await;
            setup.is_ill("b", ill);
            let begin = Instant::now();
            assert_all(&setup, &setup.view().await).await;
            // Of the simulated clock; a window after the other would wait for it otherwise.
            assert!(begin.elapsed() < Duration::from_secs(15), "{quorum:?} {ill:?}: {:?}", begin.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_hangs_is_found_out_also_by_answers_that_nobody_waits_for() {
    let setup = Setup::new(Shape::of((3, 3), sizes(2000))).await;
    setup.is_ill("b", Ill::Hangs);
    let (reader, begin) = (setup.reader(), Instant::now());
    let view = reader.open(ledger()).await.unwrap();
    while begin.elapsed() < TIMEOUT * 2 {
        assert_eq!(read(&view, 0, 1999).await.1, None);
        sleep(Duration::from_millis(100)).await;
    }
    assert!(reader.counts().late_ranges >= 1);
    let states: Vec<_> = setup.client.bookie_health().into_iter().map(|health| health.state).collect();
    assert_eq!(states[0], NodeState::Healthy);
    assert!(matches!(states[1], NodeState::Suspect | NodeState::Unhealthy), "{states:?}");
    let before = setup.bookies.requests_of("b");
    assert_all(&setup, &view).await;
    // Probes may have been sent meanwhile.
    assert!(setup.bookies.requests_of("b") <= before + 2, "it is left alone");
}

#[tokio::test(start_paused = true)]
async fn damaged_misplaced_and_missing_copies_are_read_from_another_replica() {
    for quorum in [(3, 3), (3, 2), (5, 3)] {
        let setup = Setup::new(Shape { segments: vec![0, 150], ..Shape::of(quorum, sizes(300)) }).await;
        for entry in (2..300).step_by(3) {
            // The first replica of some, the last one of others.
            let replicas: Vec<BookieId> = setup.metadata.write_set(at(entry)).cloned().collect();
            let bookie = &replicas[entry as usize % replicas.len()];
            match entry % 4 {
                0 => drop(setup.bookies.entries.lock().remove(&(bookie.clone(), entry))),
                1 => {
                    let other = setup.bookies.entries.lock().values().next().cloned().unwrap();
                    setup.bookies.entries.lock().insert((bookie.clone(), entry), other);
                }
                _ => setup.damage(bookie, entry),
            }
        }
        let reader = setup.reader();
        let view = reader.open(ledger()).await.unwrap();
        for _ in 0..4 {
            assert_all(&setup, &view).await;
        }
        assert!(reader.counts().damaged_copies > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_no_replica_returns_is_named_after_all_before_it_came() {
    for quorum in QUORUMS {
        for segments in [vec![0], vec![0, 500]] {
            let setup = Setup::new(Shape { segments, ..Shape::of(quorum, sizes(1000)) }).await;
            let view = setup.view().await;
            let replicas: BTreeSet<BookieId> = setup.metadata.write_set(at(700)).cloned().collect();
            replicas.iter().for_each(|bookie| setup.damage(bookie, 700));
            let (entries, error) = read(&view, 0, 999).await;
            assert_eq!(entries.len(), 700);
            setup.assert_copies(&entries, 0, true);
            let Some(ReadError::Unavailable { ledger: found, entry, answers }) = error else {
                panic!("{error:?}")
            };
            assert_eq!((found, entry), (ledger(), at(700)));
            assert!(answers.0.iter().all(|(_, answer)| *answer == BookieAnswer::Damaged), "{answers}");
            let named: BTreeSet<BookieId> = answers.0.into_iter().map(|(bookie, _)| bookie).collect();
            assert_eq!(named, replicas);
            setup.lose(700);
            let (entries, error) = read(&view, 699, 999).await;
            assert_eq!(entries.len(), 1);
            assert!(matches!(error, Some(ReadError::NoEntry { entry, .. }) if entry == at(700)), "{error:?}");
            // All of them down.
            for bookie in &replicas {
                setup.is_ill(bookie.as_str(), Ill::Dead);
            }
            let (_, error) = read(&view, 700, 999).await;
            assert!(matches!(error, Some(ReadError::Unavailable { .. })), "{error:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn copies_that_were_packed_again_are_taken_as_they_are() {
    for quorum in [(3, 3), (3, 2)] {
        let setup = Setup::new(Shape { segments: vec![0, 400], ..Shape::of(quorum, sizes(800)) }).await;
        // Of one bookie with a later LAC, of another with that of each entry itself or so.
        setup.repack("b", 799);
        setup.repack("c", 500);
        assert_all(&setup, &setup.view().await).await;
        setup.is_ill("a", Ill::Dead);
        assert_all(&setup, &setup.view().await).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_open_ledger_is_read_up_to_what_is_confirmed() {
    // Module invariant 3.
    for quorum in [(3, 3), (3, 2)] {
        let shape = Shape { is_closed: false, segments: vec![0, 10], ..Shape::of(quorum, sizes(200)) };
        let mut setup = Setup::new(shape).await;
        let view = setup.view().await;
        assert!(!view.is_sealed());
        assert_eq!(view.last_readable(), Some(at(9)), "a segment begins behind what is confirmed");
        assert_eq!(view.refresh().await.unwrap(), Some(at(198)), "the last entry does not confirm itself");
        let (entries, error) = read(&view, 0, 198).await;
        assert_eq!((entries.len(), error), (199, None));
        setup.assert_copies(&entries, 0, true);
        let (entries, error) = read(&view, 0, 199).await;
        assert!(entries.is_empty(), "nothing of a range that is not confirmed");
        assert!(matches!(error, Some(ReadError::BeyondEnd { last, .. }) if last == Some(at(198))));
        // Too few bookies of the last ensemble answer.
        let ensemble = &setup.metadata.segments()[1].ensemble;
        setup.bookies.silent.lock().extend(ensemble.iter().cloned());
        let other = setup.view().await;
        assert!(matches!(other.refresh().await, Err(ReadError::LacUnknown { .. })));
        assert_eq!(other.last_readable(), Some(at(9)));
        // Closed meanwhile: the end is in the metadata, and its last entry is read.
        let version = setup.layout.ledgers().get(ledger()).await.unwrap().version;
        setup.metadata.state = LedgerState::Closed { last_entry: Some(at(199)), length_bytes: 1 };
        setup.layout.ledgers().update(ledger(), &setup.metadata, version).await.unwrap();
        assert_eq!(other.refresh().await.unwrap(), Some(at(199)));
        assert!(other.is_sealed());
        assert_all(&setup, &other).await;
        assert_all(&setup, &view).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_verified_is_marked_and_has_the_right_ids() {
    // T12: without a digest, and without the password.
    for (digest, has_secret) in [(DigestType::Dummy, true), (DigestType::Crc32, false)] {
        let setup = Setup::new(Shape { digest, has_secret, ..Shape::of((3, 3), sizes(300)) }).await;
        let view = setup.view().await;
        assert!(view.is_sealed() && !view.is_verifiable());
        let other = setup.stored(&id("a"), 7).unwrap();
        setup.bookies.entries.lock().insert((id("a"), 8), other);
        setup.bookies.entries.lock().insert((id("b"), 9), Bytes::from_static(b"short"));
        for _ in 0..4 {
            let (entries, error) = read(&view, 0, 299).await;
            assert_eq!((entries.len(), error), (300, None));
            setup.assert_copies(&entries, 0, false);
        }
    }
    // Nothing that bookies say of an open one is believed.
    let shape = Shape { has_secret: false, is_closed: false, ..Shape::of((3, 3), sizes(30)) };
    let setup = Setup::new(shape).await;
    let view = setup.view().await;
    assert_eq!(view.refresh().await.unwrap(), None);
    let (_, error) = read(&view, 0, 0).await;
    assert!(matches!(error, Some(ReadError::BeyondEnd { last: None, .. })));
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_repair_moved_is_read_where_it_is_now() {
    for quorum in [(3, 3), (3, 2)] {
        let setup = Setup::new(Shape::of(quorum, sizes(400))).await;
        let view = setup.view().await;
        let (first, _) = read(&view, 0, 10).await;
        assert_eq!(first.len(), 11);
        for (old, new) in [("a", "x"), ("b", "y"), ("c", "z")] {
            let moved = |bookie: &BookieId| if *bookie == id(old) { id(new) } else { bookie.clone() };
            {
                let mut entries = setup.bookies.entries.lock();
                let all = std::mem::take(&mut *entries);
                *entries =
                    all.into_iter().map(|((owner, id), stored)| ((moved(&owner), id), stored)).collect();
            }
            let stored = setup.layout.ledgers().get(ledger()).await.unwrap();
            let ensemble = stored.metadata.segments()[0].ensemble.iter().map(moved).collect();
            let changed = crate::metadata_edit::with_ensemble(&stored.metadata, at(0), ensemble);
            setup.layout.ledgers().update(ledger(), &changed, stored.version).await.unwrap();
        }
        assert_all(&setup, &view).await;
        setup.layout.ledgers().delete(ledger(), None).await.unwrap();
        setup.lose(20);
        let (_, error) = read(&view, 20, 30).await;
        assert_eq!(error, Some(ReadError::Deleted(ledger())));
        assert_eq!(setup.reader().open(ledger()).await.unwrap_err(), ReadError::Deleted(ledger()));
    }
}

/// Versions of the metadata begin at 0 again with the new ledger, so they do not tell the two apart.
#[tokio::test(start_paused = true)]
async fn a_ledger_that_was_deleted_and_created_again_is_another_one() {
    let setup = Setup::new(Shape::of((3, 3), sizes(40))).await;
    let view = setup.view().await;
    let before = view.created_ms();
    let ledgers = setup.layout.ledgers();
    let stored = ledgers.get(ledger()).await.unwrap();
    assert_eq!(before, stored.created_ms, "the node's, where the metadata has none");
    view.reread().await.unwrap();
    ledgers.delete(ledger(), None).await.unwrap();
    ledgers.create(ledger(), &stored.metadata).await.unwrap();
    assert_eq!(view.reread().await, Err(ReadError::Deleted(ledger())));
    assert!(setup.view().await.created_ms() > before);
    // One that its metadata says is kept, whatever becomes of the node.
    let mut kept = stored.metadata;
    kept.created_ms = Some(77);
    ledgers.delete(ledger(), None).await.unwrap();
    ledgers.create(ledger(), &kept).await.unwrap();
    assert_eq!(setup.view().await.created_ms(), 77);
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_and_idle_streams_hold_up_nobody() {
    // Module invariant 4.
    let limit = 512 << 10;
    for (quorum, size) in [((3, 3), 1000), ((3, 2), 1000), ((3, 3), 60_000)] {
        let setup = Setup::new(Shape::of(quorum, vec![size; 2000])).await;
        let options =
            BulkOptions { memory_limit: limit, range_size_bytes: 64 << 10, ..BulkOptions::default() };
        let reader = setup.client.bulk(options);
        let view = reader.open(ledger()).await.unwrap();
        let mut idle = Vec::new();
        for first in 0..40 {
            let mut stream = view.read(at(first), at(1999));
            let batch = stream.next().await.unwrap().unwrap();
            assert_eq!(batch.entries()[0].id, at(first));
            idle.push(stream);
        }
        // Half of the budget in batches that are kept, and a stream goes on.
        let mut kept = Vec::new();
        let mut stream = view.read(at(0), at(1999));
        while kept.iter().map(|permit: &bindery_flow::Permit| permit.bytes()).sum::<u64>() < limit / 4 {
            kept.push(stream.next().await.unwrap().unwrap().into_parts().1);
        }
        let mut count = 0;
        let all = async {
            let mut stream = view.read(at(0), at(1999));
            while let Some(batch) = stream.next().await {
                count += batch.unwrap().entries().len();
            }
        };
        timeout(Duration::from_secs(3600), all).await.expect("nobody holds it up, of the simulated clock");
        assert_eq!(count, 2000);
        let most = setup.bookies.held.1.load(Ordering::Relaxed) as u64;
        assert!(most <= limit, "{quorum:?}, {size}: {most} bytes at a time");
        assert!(most >= limit / 4, "it reads ahead: {most}");
        assert!(reader.counts().held_bytes > 0);
        drop((idle, kept, stream));
        sleep(TIMEOUT).await;
        assert_eq!(reader.counts().held_bytes, 0);
        assert_eq!(setup.bookies.held.0.load(Ordering::Relaxed), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn streams_that_wait_for_room_all_end() {
    let setup = Setup::new(Shape::of((3, 2), sizes(500))).await;
    let options = BulkOptions { memory_limit: 1, range_size_bytes: 64 << 10, ..BulkOptions::default() };
    let reader = setup.client.bulk(options);
    let view = reader.open(ledger()).await.unwrap();
    let reads = (0..20).map(|_| {
        let view = view.clone();
        tokio::spawn(async move { read(&view, 0, 499).await })
    });
    for read in reads.collect::<Vec<_>>() {
        let (entries, error) = read.await.unwrap();
        assert_eq!((entries.len(), error), (500, None));
    }
    assert_eq!(reader.counts().entries, 20 * 500);
}

#[tokio::test(start_paused = true)]
async fn a_bookie_has_one_range_at_a_time_whatever_the_number_of_streams() {
    // Module invariant 5. Of a closed ledger one bookie is asked, of an open one all.
    for (ranges_per_bookie, is_closed) in [(1, true), (3, true), (1, false), (3, false)] {
        let setup = Setup::new(Shape { is_closed, ..Shape::of((3, 3), vec![1000; 1001]) }).await;
        let options = BulkOptions { ranges_per_bookie, range_size_bytes: 64 << 10, ..BulkOptions::default() };
        let view = setup.client.bulk(options).open(ledger()).await.unwrap();
        let reads = (0..8).map(|_| {
            let view = view.clone();
            tokio::spawn(async move { read(&view, 0, 999).await.0.len() })
        });
        for read in reads.collect::<Vec<_>>() {
            assert_eq!(read.await.unwrap(), 1000);
        }
        let most: Vec<usize> = setup.bookies.batches.lock().values().map(|(_, most)| *most).collect();
        assert_eq!(most, vec![ranges_per_bookie; if is_closed { 1 } else { 3 }], "closed: {is_closed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_ledger_is_read_from_one_bookie_until_that_one_is_late_refuses_or_fails() {
    let ask = async |ill: Option<Ill>| {
        let setup = Setup::new(Shape::of((3, 3), vec![1000; 1000])).await;
        let view = setup.view().await;
        assert_all(&setup, &view).await;
        let asked = |setup: &Setup| std::mem::take(&mut *setup.bookies.requests.lock());
        let before = asked(&setup);
        assert_eq!(before.len(), 1, "{before:?}");
        let (home, ranges) = before.into_iter().next().unwrap();
        let Some(ill) = ill else { return (ranges, 0) };
        setup.is_ill(home.as_str(), ill);
        let begin = Instant::now();
        assert_all(&setup, &view).await;
        assert!(begin.elapsed() < Duration::from_secs(3), "{ill:?}: {:?}", begin.elapsed());
        let mut after = asked(&setup);
        let of_home = after.remove(&home).unwrap_or_default();
        assert_eq!(after.len(), 1, "{ill:?}: all that it is not asked for comes from one other: {after:?}");
        (after.into_values().sum(), of_home)
    };
    let (ranges, _) = ask(None).await;
    for ill in [Ill::Dead, Ill::Hangs, Ill::Slow(Duration::from_secs(2)), Ill::RefusesAll] {
        let (of_other, of_home) = ask(Some(ill)).await;
        assert!(of_other >= ranges - 1 && of_home <= 8, "{ill:?}: {of_other} of {ranges}, {of_home} before");
    }
}

#[tokio::test(start_paused = true)]
async fn the_rate_holds_over_all_streams_and_can_be_changed() {
    for quorum in [(3, 3), (3, 2)] {
        let setup = Setup::new(Shape::of(quorum, vec![1000; 1000])).await;
        let options = BulkOptions {
            range_size_bytes: 64 << 10,
            bytes_per_second: Some(200_000),
            ..BulkOptions::default()
        };
        let reader = setup.client.bulk(options);
        let view = reader.open(ledger()).await.unwrap();
        let begin = Instant::now();
        let reads = (0..3).map(|_| {
            let view = view.clone();
            tokio::spawn(async move { read(&view, 0, 999).await.0.len() })
        });
        for read in reads.collect::<Vec<_>>() {
            assert_eq!(read.await.unwrap(), 1000);
        }
        let bytes = reader.counts().bytes;
        assert!(bytes > 3_000_000);
        // On the simulated clock only waits take time.
        let seconds = begin.elapsed().as_secs_f64();
        let (least, most) = (bytes as f64 / 200_000.0 - 1.0, bytes as f64 / 200_000.0 * 1.15 + 2.0);
        assert!((least..most).contains(&seconds), "{seconds} s, between {least} and {most}");
        assert_eq!(reader.counts().late_ranges, 0, "waiting for the rate is not a bookie's fault");
        reader.set_bytes_per_second(None);
        sleep(Duration::from_secs(1)).await;
        let begin = Instant::now();
        assert_all(&setup, &view).await;
        assert!(begin.elapsed() < Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn who_refuses_is_known_for_a_while() {
    let setup = Setup::new(Shape::of((3, 3), sizes(1000))).await;
    setup.is_ill("b", Ill::Refuses(2));
    let (reader, minute) = (setup.reader(), Duration::from_secs(60));
    let view = reader.open(ledger()).await.unwrap();
    assert_eq!(setup.client.busy_bookies(minute), []);
    assert_all(&setup, &view).await;
    assert_all(&setup, &view).await;
    let busy = setup.client.busy_bookies(minute);
    assert_eq!(busy.len(), 1);
    assert_eq!((busy[0].bookie.as_str(), busy[0].refusals), ("b", reader.counts().refused_ranges));
    assert!(busy[0].refusals > 0);
    sleep(minute).await;
    assert_eq!(setup.client.busy_bookies(minute), []);
    // All of them: the read ends, and says so.
    for bookie in ["a", "b", "c"] {
        setup.is_ill(bookie, Ill::RefusesAll);
    }
    let (entries, error) = read(&view, 0, 999).await;
    assert!(entries.is_empty());
    let Some(ReadError::Unavailable { answers, .. }) = error else { panic!("{error:?}") };
    let refused = BookieAnswer::Failed(BookieError::Refused(ErrorCode::TooManyRequests));
    assert_eq!(answers.0.len(), 3);
    assert!(answers.0.iter().all(|(_, answer)| *answer == refused));
    assert_eq!(setup.client.busy_bookies(minute).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_dropped_gives_everything_back() {
    for quorum in [(3, 3), (3, 2)] {
        let setup = Setup::new(Shape::of(quorum, vec![1000; 2000])).await;
        let reader = setup.reader();
        let view = reader.open(ledger()).await.unwrap();
        let gate = Arc::new(Notify::new());
        *setup.bookies.gate.lock() = Some(gate.clone());
        let mut stream = view.read(at(0), at(1999));
        assert!(timeout(Duration::from_millis(500), stream.next()).await.is_err(), "held back");
        assert!(reader.counts().held_bytes > 0);
        drop(stream);
        tokio::task::yield_now().await;
        assert_eq!(reader.counts().held_bytes, 0);
        *setup.bookies.gate.lock() = None;
        assert_all(&setup, &view).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_the_next_entries_can_be_cancelled() {
    for quorum in [(3, 3), (3, 2)] {
        let setup = Setup::new(Shape::of(quorum, sizes(1000))).await;
        setup.is_ill("b", Ill::Slow(Duration::from_millis(30)));
        let view = setup.view().await;
        let (mut stream, mut entries) = (view.read(at(0), at(999)), Vec::new());
        loop {
            match timeout(Duration::from_millis(1), stream.next()).await {
                Err(_) => {}
                Ok(None) => break,
                Ok(Some(batch)) => entries.extend(batch.unwrap().into_parts().0),
            }
        }
        assert_eq!(entries.len(), 1000);
        setup.assert_copies(&entries, 0, true);
    }
}

/// Stream invariant 3.
#[tokio::test(start_paused = true)]
async fn a_call_takes_its_place_in_line_along_and_a_stream_keeps_it() {
    let setup = Setup::new(Shape::of((3, 3), sizes(500))).await;
    let options = BulkOptions { memory_limit: 1, range_size_bytes: 64 << 10, ..BulkOptions::default() };
    let reader = setup.client.bulk(options);
    let view = reader.open(ledger()).await.unwrap();
    let budget = &reader.0.budget;
    let all = budget.try_acquire(budget.capacity()).unwrap();
    let (mut called, mut polled) = (view.read(at(0), at(499)), view.read(at(0), at(499)));
    let soon = Duration::from_millis(1);
    assert!(timeout(soon, called.next()).await.is_err());
    assert_eq!(budget.gauge().waiting, 0);
    assert!(timeout(soon, StreamExt::next(&mut polled)).await.is_err());
    assert_eq!(budget.gauge().waiting, 1);
    drop(all);
    // There is room for two ranges.
    let mut entries = Vec::new();
    while let Some(batch) = called.try_next().await.unwrap() {
        entries.extend(batch.into_parts().0);
    }
    setup.assert_copies(&entries, 0, true);
    assert_eq!(budget.gauge().used, 64 << 10, "of the stream that is left alone");
    let others: Vec<StoredBatch> = polled.by_ref().take(1).try_collect().await.unwrap();
    assert_eq!(others[0].entries()[0].id, at(0));
    drop((others, polled));
    assert_eq!(budget.gauge().used, 0);
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_reads_nothing() {
    let setup = Setup::new(Shape::of((3, 3), sizes(10))).await;
    let (reader, view) = (setup.reader(), setup.view().await);
    setup.client.close().await;
    assert_eq!(reader.open(ledger()).await.unwrap_err(), ReadError::ClientClosed);
    assert_eq!(read(&view, 0, 9).await.1, Some(ReadError::ClientClosed));
}
