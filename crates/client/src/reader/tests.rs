//! Readers against scripted bookies: damaged, missing, silent, old.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{Layout, LedgerLayout, layout};
use bindery_types::{
    BookieId, DigestType, Digester, EntryId, LedgerId, LedgerMetadata, LedgerSecret, LedgerState, MasterKey,
    Quorum, Segment,
};
use bindery_wire::ErrorCode;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::client::Client;
use crate::entry::EntryCodec;
use crate::error::{OpenError, ReadError};
use crate::lagging::Lagging;
use crate::options::{METADATA_PATIENCE_DEFAULT, OpenMode};
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

#[derive(Debug, Clone, Copy)]
enum WrongBatch {
    Empty,
    /// The first entry again and again.
    Repeated,
    Backwards,
    /// More entries than the request allows.
    TooMany,
}

#[derive(Default)]
struct Bookies {
    entries: Mutex<BTreeMap<(BookieId, i64), Bytes>>,
    silent: Mutex<BTreeSet<BookieId>>,
    explicit: Mutex<BTreeMap<BookieId, Bytes>>,
    knows_no_batches: bool,
    /// Of those of an earlier release.
    without_batches: BTreeSet<BookieId>,
    most_at_a_time: AtomicUsize,
    singles_under_way: AtomicUsize,
    /// Bytes of answers that somebody still has.
    held_bytes: Arc<AtomicUsize>,
    /// How answers to batch reads are wrong.
    wrong_batches: Option<WrongBatch>,
    batches: AtomicUsize,
    singles: AtomicUsize,
}

/// Bytes that count while they live.
struct Held {
    bytes: Bytes,
    count: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.count.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

impl Bookies {
    fn get(&self, bookie: &BookieId, entry: i64) -> Result<Bytes, BookieError> {
        if self.silent.lock().contains(bookie) {
            return Err(BookieError::Lost);
        }
        let found = self.entries.lock().get(&(bookie.clone(), entry)).cloned();
        let bytes = found.ok_or(BookieError::Refused(ErrorCode::NoEntry))?;
        let count = self.held_bytes.clone();
        count.fetch_add(bytes.len(), Ordering::Relaxed);
        Ok(Bytes::from_owner(Held { bytes, count }))
    }
}

impl Transport for Bookies {
    fn add(&self, _: &BookieId, _: AddRequest, _: &Arc<dyn AddSink>) {}

    fn read(&self, bookie: &BookieId, request: ReadRequest) -> Answer<'_, Bytes> {
        self.singles.fetch_add(1, Ordering::Relaxed);
        let answer = self.get(bookie, EntryId::to_wire(request.entry));
        Box::pin(async move {
            let under_way = self.singles_under_way.fetch_add(1, Ordering::Relaxed) + 1;
            self.most_at_a_time.fetch_max(under_way, Ordering::Relaxed);
            tokio::task::yield_now().await;
            self.singles_under_way.fetch_sub(1, Ordering::Relaxed);
            answer
        })
    }

    fn batch_read(&self, bookie: &BookieId, request: BatchReadRequest) -> Answer<'_, Vec<Bytes>> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        let bookie = bookie.clone();
        Box::pin(async move {
            if self.knows_no_batches || self.without_batches.contains(&bookie) {
                return Err(BookieError::Refused(ErrorCode::BadRequest));
            }
            let mut entries = vec![self.get(&bookie, request.first.get())?];
            let mut size = entries[0].len() as u64;
            for entry in (1..i64::from(request.count_max)).filter_map(|n| request.first.get().checked_add(n))
            {
                let Ok(next) = self.get(&bookie, entry) else { break };
                size += next.len() as u64;
                if size > request.size_bytes_max {
                    break;
                }
                entries.push(next);
            }
            match self.wrong_batches {
                None => {}
                Some(WrongBatch::Empty) => entries.clear(),
                Some(WrongBatch::Repeated) => entries = vec![entries[0].clone(); entries.len()],
                Some(WrongBatch::Backwards) => entries.reverse(),
                Some(WrongBatch::TooMany) => entries.extend(entries.clone()),
            }
            Ok(entries)
        })
    }

    fn read_lac(&self, bookie: &BookieId, _: LedgerId) -> Answer<'_, LacAnswer> {
        let answer = if self.silent.lock().contains(bookie) {
            Err(BookieError::Lost)
        } else {
            let entries = self.entries.lock();
            let mine = entries.iter().filter(|((owner, _), _)| owner == bookie);
            let last_entry = mine.map(|(_, stored)| stored.clone()).next_back();
            Ok(LacAnswer { explicit: self.explicit.lock().get(bookie).cloned(), last_entry })
        };
        Box::pin(async move { answer })
    }

    fn write_lac(&self, _: &BookieId, _: LedgerId, _: MasterKey, _: EntryId, _: Bytes) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn poll_lac(&self, _: &BookieId, _: PollRequest) -> Answer<'_, Option<EntryId>> {
        Box::pin(async { Err(BookieError::Refused(ErrorCode::BadRequest)) })
    }
}

struct Setup {
    client: Client,
    bookies: Arc<Bookies>,
    /// Not the client's.
    layout: Layout,
    /// The client's.
    store: Arc<Lagging>,
    codec: EntryCodec,
    ledger: LedgerId,
    metadata: LedgerMetadata,
}

impl Setup {
    /// Ledger 1 with `count` entries of `size` bytes on all bookies a, b, c of their write sets; open.
    async fn new(quorum: (usize, usize, usize), count: i64, size: usize, bookies: Bookies) -> Setup {
        Setup::within(100_000, quorum, count, size, bookies).await
    }

    /// As [`Setup::new`], of a client with this much memory.
    async fn within(
        memory_limit: u64,
        quorum: (usize, usize, usize),
        count: i64,
        size: usize,
        bookies: Bookies,
    ) -> Setup {
        let cluster = MemoryCluster::new();
        layout::init_cluster(&cluster.open(), "/l", LedgerLayout::Hierarchical, [0; 16]).await.unwrap();
        let layout = Layout::open(Arc::new(cluster.open()), "/l", None).await.unwrap();
        let store = Arc::new(Lagging::new(cluster.open()));
        let seen_by_client = Layout::open(store.clone(), "/l", None).await.unwrap();
        let bookies = Arc::new(bookies);
        let builder = Client::builder().layout(seen_by_client).transport(bookies.clone());
        let client = builder.memory_limit(memory_limit).connect().await.unwrap();
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: b"p".to_vec() };
        let ledger = LedgerId::new(1).unwrap();
        let codec = EntryCodec::new(ledger, Digester::new(secret.digest_type, &secret.password));
        let (e, qw, qa) = quorum;
        let mut metadata = LedgerMetadata::new(Quorum::new(e, qw, qa).unwrap(), secret);
        let ensemble = ["a", "b", "c"][..e].iter().map(|name| id(name)).collect();
        metadata.push_segment(Segment { first_entry: at(0), ensemble }).unwrap();
        for entry in 0..count {
            let mut stored = Vec::new();
            let length = size as u64 * (entry as u64 + 1);
            codec.put(at(entry), EntryId::new(entry - 1), length, &vec![entry as u8; size], &mut stored);
            for bookie in metadata.write_set(at(entry)) {
                bookies.entries.lock().insert((bookie.clone(), entry), stored.clone().into());
            }
        }
        layout.ledgers().create(ledger, &metadata).await.unwrap();
        Setup { client, bookies, layout, store, codec, ledger, metadata }
    }

    async fn close(&mut self, last: i64) {
        self.close_with_length(last, 0).await;
    }

    /// `length_bytes`: the length from which readers estimate the size of the entries.
    async fn close_with_length(&mut self, last: i64, length_bytes: u64) {
        let stored = self.layout.ledgers().get(self.ledger).await.unwrap();
        self.metadata.state = LedgerState::Closed { last_entry: EntryId::new(last), length_bytes };
        self.layout.ledgers().update(self.ledger, &self.metadata, stored.version).await.unwrap();
    }

    async fn open(&self) -> Result<super::LedgerReader, OpenError> {
        self.client.open_ledger(self.ledger, b"p", OpenMode::ReadOnly).await
    }

    fn damage(&self, bookie: &str, entry: i64) {
        let mut entries = self.bookies.entries.lock();
        let stored = entries.get_mut(&(id(bookie), entry)).unwrap();
        let mut bytes = stored.to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        *stored = bytes.into();
    }

    /// Puts another payload of this size in the place of an entry's.
    fn replace(&self, entry: i64, size: usize) {
        let mut stored = Vec::new();
        self.codec.put(
            at(entry),
            EntryId::new(entry - 1),
            size as u64,
            &vec![entry as u8; size],
            &mut stored,
        );
        for bookie in self.metadata.write_set(at(entry)) {
            self.bookies.entries.lock().insert((bookie.clone(), entry), stored.clone().into());
        }
    }

    fn lose(&self, bookie: &str, entry: i64) {
        self.bookies.entries.lock().remove(&(id(bookie), entry)).unwrap();
    }

    /// What Java's re-replication makes of a bookie's copies up to `lac`: they are packed again, with that LAC.
    fn repack(&self, bookie: &str, lac: i64) {
        let mut entries = self.bookies.entries.lock();
        for ((owner, entry), stored) in entries.iter_mut().filter(|((_, entry), _)| *entry <= lac) {
            if owner.as_str() == bookie {
                let found = self.codec.open(Some(at(*entry)), stored).unwrap();
                let mut packed = Vec::new();
                self.codec.put(
                    at(*entry),
                    EntryId::new(lac),
                    found.length_bytes,
                    &found.payload,
                    &mut packed,
                );
                *stored = packed.into();
            }
        }
    }

    /// Every copy moves to another bookie, and then the metadata says so: repair, one bookie after the other, and the
    /// collection of what is surplus then.
    async fn move_all(&self, lac: i64) {
        for (old, new) in [("a", "x"), ("b", "y"), ("c", "z")] {
            let moved = |bookie: &BookieId| if *bookie == id(old) { id(new) } else { bookie.clone() };
            self.repack(old, lac);
            {
                let mut entries = self.bookies.entries.lock();
                *entries = std::mem::take(&mut *entries)
                    .into_iter()
                    .map(|((bookie, entry), stored)| ((moved(&bookie), entry), stored))
                    .collect();
            }
            let stored = self.layout.ledgers().get(self.ledger).await.unwrap();
            let ensemble = stored.metadata.segments()[0].ensemble.iter().map(moved).collect();
            let changed = crate::metadata_edit::with_ensemble(&stored.metadata, at(0), ensemble);
            self.layout.ledgers().update(self.ledger, &changed, stored.version).await.unwrap();
        }
    }
}

async fn assert_all(reader: &super::LedgerReader, count: i64, size: usize) {
    let mut stream = reader.read(at(0)..=at(count - 1));
    for entry in 0..count {
        let found = stream.next().await.unwrap().unwrap();
        assert_eq!((found.id, &found.payload[..]), (at(entry), &vec![entry as u8; size][..]));
    }
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn damaged_misplaced_and_missing_entries_are_read_from_another_replica() {
    // IC9, in batches (3/3/2) and one by one (3/2/2).
    for quorum in [(3, 3, 2), (3, 2, 2)] {
        let mut setup = Setup::new(quorum, 200, 100, Bookies::default()).await;
        setup.close(199).await;
        for entry in (0..200).step_by(3) {
            setup.damage("a", entry);
        }
        let other = setup.bookies.entries.lock()[&(id("b"), 4)].clone();
        setup.bookies.entries.lock().insert((id("b"), 10), other);
        setup.lose("c", 50);
        let reader = setup.open().await.unwrap();
        assert_all(&reader, 200, 100).await;
        setup.bookies.silent.lock().extend([id("a"), id("b")]);
        setup.bookies.entries.lock().insert((id("c"), 50), Bytes::from_static(b"x"));
        let error = reader.read_entry(at(50)).await.unwrap_err();
        assert!(matches!(error, ReadError::Unavailable { .. }), "perhaps a has it: {error}");
    }
}

#[tokio::test]
async fn copies_that_were_packed_again_are_read() {
    for quorum in [(3, 3, 2), (3, 2, 2)] {
        let mut setup = Setup::new(quorum, 200, 100, Bookies::default()).await;
        setup.close(199).await;
        for bookie in ["a", "b", "c"] {
            setup.repack(bookie, 199);
        }
        let reader = setup.open().await.unwrap();
        assert_all(&reader, 200, 100).await;
        assert_eq!(reader.last_add_confirmed(), Some(at(199)));
    }
}

#[tokio::test]
async fn a_reader_of_a_closed_ledger_goes_on_where_repair_has_moved_it() {
    for quorum in [(3, 3, 2), (3, 2, 2)] {
        for are_gone in [false, true] {
            for is_behind in [false, true] {
                let mut setup = Setup::new(quorum, 200, 100, Bookies::default()).await;
                setup.close(199).await;
                let (one, all) = (setup.open().await.unwrap(), setup.open().await.unwrap());
                assert_eq!(one.read_entry(at(7)).await.unwrap().id, at(7));
                setup.move_all(199).await;
                if are_gone {
                    setup.bookies.silent.lock().extend([id("a"), id("b"), id("c")]);
                }
                if is_behind {
                    setup.store.lag();
                }
                assert_eq!(one.read_entry(at(7)).await.unwrap().id, at(7), "IC21: {quorum:?}, {are_gone}");
                assert_all(&all, 200, 100).await;
            }
        }
    }
}

/// A lagging metadata server shows an ensemble that is no more, of a ledger that is open.
#[tokio::test]
async fn an_entry_is_not_absent_because_the_metadata_is_old() {
    let setup = Setup::new((3, 3, 2), 20, 10, Bookies::default()).await;
    let reader = setup.open().await.unwrap();
    setup.move_all(18).await;
    setup.store.lag();
    assert_eq!(reader.read_entry(at(7)).await.unwrap().id, at(7), "IC21");
}

/// A lagging metadata server shows a ledger as open that is closed. The bookies' entries confirm all but the last one.
#[tokio::test]
async fn an_entry_is_not_beyond_the_end_because_the_metadata_is_old() {
    for is_verification in [false, true] {
        let mut setup = Setup::new((3, 3, 2), 21, 10, Bookies::default()).await;
        let reader = setup.open().await.unwrap();
        assert_eq!(reader.last_add_confirmed(), Some(at(19)));
        setup.close(20).await;
        setup.store.lag();
        match is_verification {
            true => drop(reader.verify(at(0), Some(at(20))).await.unwrap()),
            false => assert_all(&reader, 21, 10).await,
        }
        let error = reader.read_entry(at(21)).await.unwrap_err();
        assert!(matches!(error, ReadError::BeyondEnd { last, .. } if last == Some(at(20))), "{error:?}");
    }
}

/// A lagging metadata server shows bookies that are all gone; those that have the open ledger now know where it ends.
#[tokio::test]
async fn the_end_is_not_unknown_because_the_metadata_is_old() {
    for is_verification in [false, true] {
        let mut setup = Setup::new((3, 3, 2), 21, 10, Bookies::default()).await;
        let reader = setup.open().await.unwrap();
        assert_eq!(reader.last_add_confirmed(), Some(at(19)));
        setup.move_all(20).await;
        setup.bookies.silent.lock().extend([id("a"), id("b"), id("c")]);
        setup.store.lag();
        match is_verification {
            true => drop(reader.verify(at(0), Some(at(20))).await.unwrap()),
            false => assert_all(&reader, 21, 10).await,
        }
        // Without news it stays unknown.
        setup.bookies.silent.lock().extend([id("x"), id("y"), id("z")]);
        let error = reader.read_entry(at(21)).await.unwrap_err();
        assert!(matches!(error, ReadError::LacUnknown { .. }), "{error:?}");
        // Unless it was closed: then it is known.
        let stored = setup.layout.ledgers().get(setup.ledger).await.unwrap();
        setup.metadata = stored.metadata;
        setup.close(20).await;
        setup.store.lag();
        let error = reader.read_entry(at(21)).await.unwrap_err();
        assert!(matches!(error, ReadError::BeyondEnd { last, .. } if last == Some(at(20))), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_of_a_closed_ledger_fails_soon_while_the_metadata_store_is_away() {
    let mut setup = Setup::new((3, 3, 2), 20, 10, Bookies::default()).await;
    setup.close(19).await;
    let reader = setup.open().await.unwrap();
    setup.store.leave();
    for bookie in ["a", "b", "c"] {
        setup.lose(bookie, 7);
    }
    let patience = METADATA_PATIENCE_DEFAULT / 10;
    let read = tokio::time::timeout(patience, reader.read_entry(at(7))).await.expect("simulated time");
    assert!(matches!(read, Err(ReadError::Unavailable { .. })), "others may have it by now: {read:?}");
    setup.bookies.silent.lock().extend([id("a"), id("b"), id("c")]);
    let read = tokio::time::timeout(patience, reader.read_entry(at(8))).await.expect("simulated time");
    assert!(matches!(read, Err(ReadError::Unavailable { .. })), "{read:?}");
}

#[tokio::test]
async fn reads_that_fail_together_ask_the_metadata_store_together() {
    let mut setup = Setup::new((3, 2, 2), 64, 10, Bookies::default()).await;
    setup.close(63).await;
    let reader = setup.open().await.unwrap();
    setup.bookies.silent.lock().extend([id("a"), id("b"), id("c")]);
    let mut reads = tokio::task::JoinSet::new();
    for entry in 0..64 {
        let reader = reader.clone();
        reads.spawn(async move { reader.read_entry(at(entry)).await });
    }
    for read in reads.join_all().await {
        assert!(matches!(read, Err(ReadError::Unavailable { .. })), "{read:?}");
    }
    let syncs = setup.store.syncs();
    // How many come together depends on the machine; each by itself would make 64 or more.
    assert!((1..=16).contains(&syncs), "{syncs} syncs");
    // Ensembles that moved since then count: a later failure asks the metadata store again.
    setup.bookies.silent.lock().clear();
    setup.move_all(63).await;
    assert_eq!(reader.read_entry(at(7)).await.unwrap().id, at(7), "IC21");
}

#[tokio::test]
async fn an_entry_that_no_replica_has_ends_the_stream_with_an_error() {
    let mut setup = Setup::new((3, 3, 2), 20, 10, Bookies::default()).await;
    setup.close(19).await;
    for bookie in ["a", "b", "c"] {
        setup.lose(bookie, 7);
    }
    let reader = setup.open().await.unwrap();
    let mut stream = reader.read(at(0)..=at(19));
    for entry in 0..7 {
        assert_eq!(stream.next().await.unwrap().unwrap().id, at(entry));
    }
    assert!(matches!(stream.next().await, Some(Err(ReadError::NoEntry { entry, .. })) if entry == at(7)));
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn bookies_that_know_no_batches_are_read_one_by_one() {
    let bookies = Bookies { knows_no_batches: true, ..Bookies::default() };
    let mut setup = Setup::new((3, 3, 2), 100, 10, bookies).await;
    setup.close(99).await;
    assert_all(&setup.open().await.unwrap(), 100, 10).await;
    let (batches, singles) = (&setup.bookies.batches, &setup.bookies.singles);
    assert!(batches.load(Ordering::Relaxed) <= 3 && singles.load(Ordering::Relaxed) >= 100);
}

/// One that is away beside those of an earlier release does not bring a batch back for each entry.
#[tokio::test]
async fn batches_end_with_those_that_answer_and_do_not_know_them() {
    let bookies = Bookies { without_batches: [id("a"), id("b")].into(), ..Bookies::default() };
    let mut setup = Setup::new((3, 3, 2), 100, 10, bookies).await;
    setup.close(99).await;
    setup.bookies.silent.lock().insert(id("c"));
    assert_all(&setup.open().await.unwrap(), 100, 10).await;
    let batches = setup.bookies.batches.load(Ordering::Relaxed);
    assert!(batches <= 3, "{batches} batches");
}

/// One of an earlier release, as while a cluster is upgraded, takes batches from nobody but itself.
#[tokio::test]
async fn a_bookie_that_knows_no_batches_leaves_them_to_the_others() {
    let bookies = Bookies { without_batches: [id("a")].into(), ..Bookies::default() };
    let mut setup = Setup::new((3, 3, 2), 1_000, 4_000, bookies).await;
    setup.close(999).await;
    assert_all(&setup.open().await.unwrap(), 1_000, 4_000).await;
    let (batches, singles) = (&setup.bookies.batches, &setup.bookies.singles);
    let (batches, singles) = (batches.load(Ordering::Relaxed), singles.load(Ordering::Relaxed));
    assert!(singles < 10 && batches > singles, "{batches} batches, {singles} singles");
}

/// Entries of which a batch has room for one are read several at a time, as singles are.
#[tokio::test]
async fn large_entries_are_read_ahead() {
    let mut setup = Setup::within(64 << 20, (3, 3, 2), 20, 300_000, Bookies::default()).await;
    setup.close_with_length(19, 6_000_000).await;
    assert_all(&setup.open().await.unwrap(), 20, 300_000).await;
    let most = setup.bookies.most_at_a_time.load(Ordering::Relaxed);
    assert!(most > 2, "{most} at a time");
}

/// Also when what follows fails.
#[tokio::test]
async fn bookies_that_know_no_batches_are_not_asked_for_another() {
    let bookies = Bookies { knows_no_batches: true, ..Bookies::default() };
    let mut setup = Setup::new((3, 3, 2), 100, 10, bookies).await;
    setup.close_with_length(99, 1_000).await;
    for bookie in ["a", "b", "c"] {
        setup.lose(bookie, 0);
    }
    let reader = setup.open().await.unwrap();
    assert!(reader.read(at(0)..=at(99)).next().await.unwrap().is_err());
    let mut stream = reader.read(at(1)..=at(99));
    for entry in 1..100 {
        assert_eq!(stream.next().await.unwrap().unwrap().id, at(entry));
    }
    let batches = setup.bookies.batches.load(Ordering::Relaxed);
    assert!((1..=3).contains(&batches), "{batches}");
}

/// R32, the client's part: a batch that does not match its request neither ends the stream nor stalls it forever.
#[tokio::test]
async fn batches_that_are_wrong_end_and_what_is_in_them_is_read_otherwise() {
    for wrong in [WrongBatch::Empty, WrongBatch::Repeated, WrongBatch::Backwards, WrongBatch::TooMany] {
        let bookies = Bookies { wrong_batches: Some(wrong), ..Bookies::default() };
        let mut setup = Setup::new((3, 3, 2), 50, 10, bookies).await;
        setup.close(49).await;
        let reader = setup.open().await.unwrap();
        assert_all(&reader, 50, 10).await;
        assert!(setup.bookies.batches.load(Ordering::Relaxed) > 0, "{wrong:?}: batches were tried");
        assert!(reader.read(at(5)..=at(4)).next().await.is_none(), "no entries are no request");
    }
}

#[tokio::test]
async fn streams_that_are_not_read_do_not_hold_up_another() {
    // IC17, IC18: the budget is smaller than one range.
    for quorum in [(3, 3, 2), (3, 2, 2)] {
        let mut setup = Setup::new(quorum, 100, 20_000, Bookies::default()).await;
        setup.close(99).await;
        let reader = setup.open().await.unwrap();
        let mut idle: Vec<_> = (0..5).map(|_| reader.read(at(0)..=at(99))).collect();
        for stream in &mut idle {
            stream.next().await.unwrap().unwrap();
        }
        assert_all(&reader, 100, 20_000).await;
        assert!(setup.client.0.read_budget.gauge().used <= 100_000);
        drop(idle);
    }
}

/// Metadata may say so, and some writer may have begun there. The last one of ours ends before: an entry has to be able to follow it.
#[tokio::test]
async fn a_ledger_that_ends_with_the_last_number_is_read_to_its_end() {
    for (quorum, knows_no_batches) in [((3, 3, 2), false), ((3, 3, 2), true), ((3, 2, 2), false)] {
        let mut setup = Setup::new(quorum, 0, 10, Bookies { knows_no_batches, ..Bookies::default() }).await;
        let last = i64::MAX;
        (last - 2..=last).for_each(|entry| setup.replace(entry, 10));
        setup.close_with_length(last, u64::MAX).await;
        let reader = setup.open().await.unwrap();
        assert_eq!(reader.last_add_confirmed(), Some(EntryId::MAX));
        assert_eq!(reader.read_entry(EntryId::MAX).await.unwrap().id, EntryId::MAX);
        for first in [last - 2, last - 1, last] {
            let expected: Vec<i64> = (first..=last).collect();
            let (mut run, mut tail) = (reader.read(at(first)..=at(last)), reader.tail(at(first)));
            let mut found = (Vec::new(), Vec::new());
            while let Some(entry) = run.next().await {
                found.0.push(entry.unwrap().id.get());
            }
            while let Some(entry) = tail.next().await {
                found.1.push(entry.unwrap().id.get());
            }
            assert_eq!(found, (expected.clone(), expected));
            let view = setup.client.bulk(crate::BulkOptions::default()).open(setup.ledger).await.unwrap();
            let (mut stored, mut entries) = (view.read(at(first), at(last)), 0);
            while let Some(batch) = stored.next().await {
                entries += batch.unwrap().entries().len() as i64;
            }
            assert_eq!(entries, last - first + 1);
        }
        let mut look = reader.verify(at(last - 2), None).await.unwrap();
        while look.step().await.unwrap() {}
        assert_eq!((look.report().entries, look.report().is_sound()), (3, true));
    }
}

/// Stream invariant 2: sizes are known only when the entries are there.
#[tokio::test]
async fn entries_larger_than_expected_are_not_kept_beyond_the_budget() {
    const CAPACITY: usize = 100_000;
    // The second time the reader is misled by the length in the metadata, and has many reads under way at once.
    for (quorum, length_bytes) in [((3, 3, 2), 0), ((3, 2, 2), 0), ((3, 3, 2), 3_000), ((3, 2, 2), 3_000)] {
        let mut setup = Setup::new(quorum, 300, 10, Bookies::default()).await;
        // Nobody would think so after the first hundred.
        for entry in 100..300 {
            setup.replace(entry, 9_000);
        }
        setup.close_with_length(299, length_bytes).await;
        let reader = setup.open().await.unwrap();
        let (mut stream, mut held_max) = (reader.read(at(0)..=at(299)), 0);
        for entry in 0..300 {
            let found = stream.next().await.unwrap().unwrap();
            let size = if entry < 100 { 10 } else { 9_000 };
            assert_eq!((found.id, found.payload.len()), (at(entry), size), "{quorum:?}");
            drop(found);
            // Lets the answers under way arrive while no caller takes them.
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
            held_max = held_max.max(setup.bookies.held_bytes.load(Ordering::Relaxed));
        }
        assert!(stream.next().await.is_none());
        // And the range that the caller waited for.
        assert!(held_max <= CAPACITY + (512 << 10), "{quorum:?}: {held_max} B");
        assert!(quorum.1 == 3 || held_max <= CAPACITY + 9_100, "{quorum:?}: {held_max} B");
        assert!(held_max > CAPACITY / 2, "{quorum:?}: {held_max} B: it reads ahead");
        drop(stream);
        assert_eq!(setup.bookies.held_bytes.load(Ordering::Relaxed), 0);
        assert_eq!(setup.client.0.read_budget.gauge().used, 0);
    }
}

#[tokio::test]
async fn the_lac_comes_from_a_covering_set_of_valid_answers_and_never_goes_back() {
    let setup = Setup::new((3, 3, 2), 5, 10, Bookies::default()).await;
    setup.bookies.silent.lock().insert(id("a"));
    let reader = setup.open().await.unwrap();
    assert_eq!(reader.last_add_confirmed(), Some(at(3)), "the last entry says so");
    assert!(!reader.is_closed());
    assert!(matches!(reader.read_entry(at(4)).await, Err(ReadError::BeyondEnd { last: Some(_), .. })));
    assert_eq!(reader.read_unconfirmed(at(4), at(4)).next().await.unwrap().unwrap().id, at(4));
    setup.bookies.explicit.lock().insert(id("b"), setup.codec.lac_body(at(4)));
    setup.bookies.explicit.lock().insert(id("c"), setup.codec.lac_body(at(4)));
    assert_eq!(reader.refresh().await, Ok(Some(at(4))));
    setup.bookies.explicit.lock().clear();
    assert_eq!(reader.refresh().await, Ok(Some(at(4))), "IC21");
    assert_eq!(reader.read_entry(at(4)).await.unwrap().id, at(4));
    // A damaged answer is no knowledge.
    setup.damage("b", 4);
    assert!(matches!(setup.open().await, Err(OpenError::Lac(ReadError::LacUnknown { .. }))));
}

/// A copy of an earlier segment that Java packed again is the last entry of a bookie: the LAC inside is the ledger's.
#[tokio::test]
async fn the_lac_inside_a_copy_that_was_packed_again_counts() {
    let setup = Setup::new((3, 3, 2), 5, 10, Bookies::default()).await;
    for bookie in ["a", "b", "c"] {
        setup.repack(bookie, 4);
    }
    let reader = setup.open().await.unwrap();
    assert_eq!(reader.last_add_confirmed(), Some(at(4)));
    assert_all(&reader, 5, 10).await;
}

#[tokio::test]
async fn the_lac_of_a_closed_ledger_does_not_pass_its_end() {
    let mut setup = Setup::new((3, 3, 2), 5, 10, Bookies::default()).await;
    setup.close(4).await;
    for bookie in ["a", "b", "c"] {
        setup.repack(bookie, 9);
    }
    let reader = setup.open().await.unwrap();
    assert_all(&reader, 5, 10).await;
    assert_eq!(reader.last_add_confirmed(), Some(at(4)));
    let error = reader.read_entry(at(7)).await.unwrap_err();
    assert!(matches!(error, ReadError::BeyondEnd { last, .. } if last == Some(at(4))), "{error}");
}

#[tokio::test]
async fn an_entry_behind_an_ensemble_change_is_found_by_reading_the_metadata_again() {
    let setup = Setup::new((2, 2, 2), 5, 10, Bookies::default()).await;
    let reader = setup.open().await.unwrap();
    // Entries 3 and 4 move to b and c.
    let changed = crate::metadata_edit::with_ensemble(&setup.metadata, at(3), vec![id("c"), id("b")]);
    let version = setup.client.metadata(setup.ledger).await.unwrap().version;
    setup.layout.ledgers().update(setup.ledger, &changed, version).await.unwrap();
    {
        let mut entries = setup.bookies.entries.lock();
        for entry in 3..5 {
            let stored = entries.remove(&(id("a"), entry)).unwrap();
            entries.remove(&(id("b"), entry));
            entries.insert((id("c"), entry), stored);
        }
    }
    assert_eq!(reader.read_entry(at(3)).await.unwrap().id, at(3), "IC21");
}

#[tokio::test(start_paused = true)]
async fn a_tail_goes_on_by_asking_when_polls_are_refused_and_ends_with_the_ledger() {
    let mut setup = Setup::new((3, 3, 2), 5, 10, Bookies::default()).await;
    let reader = setup.open().await.unwrap();
    let mut tail = reader.tail(at(2));
    assert_eq!(tail.next().await.unwrap().unwrap().id, at(2));
    assert_eq!(tail.next().await.unwrap().unwrap().id, at(3));
    for bookie in ["a", "b", "c"] {
        setup.bookies.explicit.lock().insert(id(bookie), setup.codec.lac_body(at(4)));
    }
    assert_eq!(tail.next().await.unwrap().unwrap().id, at(4));
    let ended = tokio::spawn(async move { tail.next().await.is_none() });
    tokio::task::yield_now().await;
    setup.close(4).await;
    assert!(ended.await.unwrap(), "the watch told");
    setup.layout.ledgers().delete(setup.ledger, None).await.unwrap();
    assert!(matches!(setup.open().await, Err(OpenError::NotFound(_))));
}

/// Tail invariant 3.
#[tokio::test(start_paused = true)]
async fn a_tail_outlives_the_metadata_store() {
    let setup = Setup::new((3, 3, 2), 5, 10, Bookies::default()).await;
    let reader = setup.open().await.unwrap();
    let mut tail = reader.tail(at(3));
    assert_eq!(tail.next().await.unwrap().unwrap().id, at(3));
    setup.store.leave();
    let bookies = setup.bookies.clone();
    let lac = setup.codec.lac_body(at(4));
    let writer = tokio::spawn(async move {
        tokio::time::sleep(METADATA_PATIENCE_DEFAULT * 5).await;
        for bookie in ["a", "b", "c"] {
            bookies.explicit.lock().insert(id(bookie), lac.clone());
        }
    });
    assert_eq!(tail.next().await.unwrap().unwrap().id, at(4));
    writer.await.unwrap();
}

/// A bookie that answers as if it knew no batches does so until it is asked again, not for the reader's life.
#[tokio::test(start_paused = true)]
async fn batches_are_tried_again_after_a_pause() {
    let mut setup = Setup::new((3, 3, 2), 100, 10, Bookies::default()).await;
    setup.close(99).await;
    let reader = setup.open().await.unwrap();
    reader.state.batches.pause();
    assert_all(&reader, 100, 10).await;
    let batches = || setup.bookies.batches.load(Ordering::Relaxed);
    assert_eq!(batches(), 0);
    tokio::time::sleep(std::time::Duration::from_secs(31)).await;
    assert_all(&reader, 100, 10).await;
    assert!(batches() > 0, "none again");
}
