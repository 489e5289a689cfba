//! The shell with scripted bookies that have what they are told to have, in paused time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{Layout, LedgerLayout, layout};
use bindery_types::{
    BookieId, DigestType, Digester, EntryId, LedgerId, LedgerMetadata, LedgerSecret, LedgerState, MasterKey,
    Quorum, Segment,
};
use bindery_wire::ErrorCode;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{Fault, Finding, Verification, VerifyReport};
use crate::client::Client;
use crate::entry::EntryCodec;
use crate::error::ReadError;
use crate::lagging::Lagging;
use crate::metadata_edit::with_ensemble;
use crate::options::{OpenMode, REQUEST_TIMEOUT_DEFAULT};
use crate::reader::LedgerReader;
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

/// How a bookie does, besides what it has.
#[derive(Clone, Default)]
struct Way {
    entries: BTreeMap<i64, Bytes>,
    /// It answers nothing.
    is_stopped: bool,
    /// It does not know batch reads.
    is_old: bool,
    /// Entries that it has and cannot read.
    unreadable: BTreeSet<i64>,
    /// So many requests are refused first.
    refuses: u32,
    asked: u64,
    entries_asked: u64,
}

impl Way {
    fn entry(&mut self, entry: i64) -> Result<Bytes, BookieError> {
        if self.unreadable.contains(&entry) {
            return Err(BookieError::Refused(ErrorCode::Io));
        }
        self.entries.get(&entry).cloned().ok_or(BookieError::Refused(ErrorCode::NoEntry))
    }
}

#[derive(Default)]
struct Scripted(Mutex<BTreeMap<BookieId, Way>>);

impl Scripted {
    async fn ask<T>(
        &self,
        bookie: &BookieId,
        entries: u64,
        answer: impl FnOnce(&mut Way) -> Result<T, BookieError>,
    ) -> Result<T, BookieError> {
        sleep(Duration::from_millis(1)).await;
        let answer = {
            let mut ways = self.0.lock();
            let way = ways.get_mut(bookie).ok_or(BookieError::NotRegistered)?;
            way.asked += 1;
            way.entries_asked += entries;
            match way.is_stopped {
                true => None,
                false if way.refuses > 0 => {
                    way.refuses -= 1;
                    Some(Err(BookieError::Refused(ErrorCode::TooManyRequests)))
                }
                false => Some(answer(way)),
            }
        };
        match answer {
            Some(answer) => answer,
            None => {
                sleep(REQUEST_TIMEOUT_DEFAULT).await;
                Err(BookieError::TimedOut(REQUEST_TIMEOUT_DEFAULT))
            }
        }
    }
}

impl Transport for Scripted {
    fn add(&self, _: &BookieId, _: AddRequest, _: &Arc<dyn AddSink>) {}

    fn read(&self, bookie: &BookieId, request: ReadRequest) -> Answer<'_, Bytes> {
        let bookie = bookie.clone();
        Box::pin(async move { self.ask(&bookie, 1, |way| way.entry(EntryId::to_wire(request.entry))).await })
    }

    fn batch_read(&self, bookie: &BookieId, request: BatchReadRequest) -> Answer<'_, Vec<Bytes>> {
        let bookie = bookie.clone();
        Box::pin(async move {
            self.ask(&bookie, u64::from(request.count_max), |way| {
                if way.is_old {
                    return Err(BookieError::Refused(ErrorCode::BadRequest));
                }
                let first = request.first.get();
                let mut found = vec![way.entry(first)?];
                let mut bytes = found[0].len() as u64;
                for entry in first + 1..first + i64::from(request.count_max) {
                    let Ok(more) = way.entry(entry) else { break };
                    bytes += more.len() as u64;
                    if bytes > request.size_bytes_max {
                        break;
                    }
                    found.push(more);
                }
                Ok(found)
            })
            .await
        })
    }

    fn read_lac(&self, bookie: &BookieId, _: LedgerId) -> Answer<'_, LacAnswer> {
        let bookie = bookie.clone();
        Box::pin(async move {
            let last = |way: &mut Way| Ok(way.entries.last_key_value().map(|(_, stored)| stored.clone()));
            Ok(LacAnswer { explicit: None, last_entry: self.ask(&bookie, 0, last).await? })
        })
    }

    fn write_lac(&self, _: &BookieId, _: LedgerId, _: MasterKey, _: EntryId, _: Bytes) -> Answer<'_, ()> {
        Box::pin(async { Err(BookieError::Lost) })
    }

    fn poll_lac(&self, _: &BookieId, _: PollRequest) -> Answer<'_, Option<EntryId>> {
        Box::pin(async { Err(BookieError::Lost) })
    }
}

/// A ledger on a, b, c, ..., each of which has what it should have.
struct Setup {
    client: Client,
    /// Not the client's.
    layout: Layout,
    /// The client's.
    store: Arc<Lagging>,
    bookies: Arc<Scripted>,
    codec: EntryCodec,
    metadata: LedgerMetadata,
}

const LEDGER: LedgerId = LedgerId::new(1).expect("it is not negative");

impl Setup {
    /// `entries` of `size_bytes`; open, with one entry behind the LAC, if not closed.
    async fn new(shape: (usize, usize, usize), entries: i64, size_bytes: usize, is_closed: bool) -> Setup {
        let cluster = MemoryCluster::new();
        layout::init_cluster(&cluster.open(), "/l", LedgerLayout::Hierarchical, [0; 16]).await.unwrap();
        let layout = Layout::open(Arc::new(cluster.open()), "/l", None).await.unwrap();
        let store = Arc::new(Lagging::new(cluster.open()));
        let seen_by_client = Layout::open(store.clone(), "/l", None).await.unwrap();
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: b"p".to_vec() };
        let codec = EntryCodec::new(LEDGER, Digester::new(secret.digest_type, &secret.password));
        let (e, qw, qa) = shape;
        let ensemble: Vec<BookieId> = ["a", "b", "c", "d", "e"][..e].iter().map(|name| id(name)).collect();
        let bookies = Arc::new(Scripted::default());
        let mut metadata = LedgerMetadata::new(Quorum::new(e, qw, qa).unwrap(), secret);
        metadata.push_segment(Segment { first_entry: at(0), ensemble: ensemble.clone() }).unwrap();
        if is_closed {
            metadata.state = LedgerState::Closed { last_entry: EntryId::new(entries - 1), length_bytes: 0 };
        }
        layout.ledgers().create(LEDGER, &metadata).await.unwrap();
        let client = Client::builder().layout(seen_by_client).transport(bookies.clone());
        let client = client.connect().await.unwrap();
        let setup = Setup { client, layout, store, bookies, codec, metadata };
        for bookie in &ensemble {
            setup.way(bookie.as_str(), |_| {});
        }
        for entry in 0..entries {
            for bookie in setup.metadata.write_set(at(entry)) {
                let stored = setup.stored(entry, &vec![entry as u8; size_bytes]);
                setup.way(bookie.as_str(), |way| drop(way.entries.insert(entry, stored)));
            }
        }
        setup
    }

    fn way(&self, bookie: &str, change: impl FnOnce(&mut Way)) {
        change(self.bookies.0.lock().entry(id(bookie)).or_default());
    }

    fn stored(&self, entry: i64, payload: &[u8]) -> Bytes {
        let mut stored = Vec::new();
        let length = payload.len() as u64 * (entry as u64 + 1);
        self.codec.put(at(entry), EntryId::new(entry - 1), length, payload, &mut stored);
        Bytes::from(stored)
    }

    /// The copies of b, and its place in the metadata.
    async fn move_b_to_d(&self) {
        {
            let mut ways = self.bookies.0.lock();
            let entries = std::mem::take(&mut ways.get_mut(&id("b")).unwrap().entries);
            assert_eq!(entries.len(), 100);
            ways.insert(id("d"), Way { entries, ..Way::default() });
        }
        let moved = with_ensemble(&self.metadata, at(0), vec![id("a"), id("d"), id("c")]);
        let stored = self.layout.ledgers().get(LEDGER).await.unwrap();
        self.layout.ledgers().update(LEDGER, &moved, stored.version).await.unwrap();
    }

    async fn reader(&self) -> LedgerReader {
        self.client.open_ledger(LEDGER, b"p", OpenMode::ReadOnly).await.unwrap()
    }

    async fn verify(&self) -> VerifyReport {
        self.verify_range(at(0), None).await
    }

    async fn verify_range(&self, first: EntryId, last: Option<EntryId>) -> VerifyReport {
        finish(self.reader().await.verify(first, last).await.unwrap()).await
    }
}

async fn finish(mut look: Verification) -> VerifyReport {
    while look.step().await.unwrap() {}
    assert!(!look.step().await.unwrap(), "it stays over");
    look.into_report()
}

fn said(report: &VerifyReport) -> Vec<String> {
    report.findings.iter().map(Finding::to_string).collect()
}

#[tokio::test(start_paused = true)]
async fn every_copy_of_every_entry_is_asked_for_once_in_parts_of_bounded_size() {
    // Invariant 1; small entries, and those of which few fit a part.
    for (shape, entries, size) in
        [((3, 3, 2), 5000, 10), ((5, 3, 2), 3000, 10), ((3, 2, 2), 40, 100_000), ((3, 3, 2), 7, 400_000)]
    {
        let setup = Setup::new(shape, entries, size, true).await;
        let report = setup.verify().await;
        assert!(report.is_sound(), "{report:?}");
        assert_eq!((report.entries, report.is_closed), (entries as u64, true));
        assert_eq!(report.payload_bytes, entries as u64 * size as u64);
        let copies: u64 = report.bookies.values().map(|counts| counts.checked).sum();
        assert_eq!(copies, entries as u64 * shape.1 as u64);
        for (bookie, counts) in &report.bookies {
            let expected =
                (0..entries).filter(|entry| setup.metadata.write_set(at(*entry)).any(|b| b == bookie));
            assert_eq!(counts.sound(), expected.count() as u64, "{bookie}");
        }
        assert_eq!(setup.client.memory_in_use().read_ahead_bytes, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_damaged_or_different_is_found_where_it_is() {
    for is_old in [false, true] {
        let setup = Setup::new((3, 3, 2), 500, 10, true).await;
        let other = setup.stored(77, b"otherwise");
        setup.way("a", |way| {
            way.is_old = is_old;
            way.entries.retain(|entry, _| !(100..110).contains(entry));
            way.unreadable.insert(400);
        });
        setup.way("b", |way| {
            let damaged = way.entries.get_mut(&300).unwrap();
            let mut bytes = damaged.to_vec();
            *bytes.last_mut().unwrap() ^= 1;
            *damaged = bytes.into();
            way.entries.insert(77, other);
        });
        setup.way("c", |way| drop(way.entries.split_off(&498)));
        let report = setup.verify().await;
        assert_eq!(
            said(&report),
            [
                "b: entry 77 different",
                "a: 10 entries from 100 to 109 missing",
                "b: entry 300 damaged",
                "a: entry 400 damaged (refused: Io: its disk or object storage failed, and its log says how)",
                "c: 2 entries from 498 to 499 missing"
            ]
        );
        assert_eq!((report.entries, report.below_ack_quorum, report.undecided), (500, 0, 0));
        assert_eq!(Fault::ALL.map(|fault| report.copies(fault)), [12, 2, 1, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn striped_entries_below_their_ack_quorum_are_counted() {
    let setup = Setup::new((5, 3, 2), 50, 10, true).await;
    // Entry 7 is on c, d, e; entry 8 on d, e, a.
    setup.way("d", |way| drop((way.entries.remove(&7), way.entries.remove(&8))));
    setup.way("e", |way| drop((way.entries.remove(&7), way.entries.remove(&8))));
    setup.way("c", |way| drop(way.entries.remove(&7)));
    let report = setup.verify().await;
    assert_eq!((report.below_ack_quorum, report.lost, report.first_below), (2, 1, Some(at(7))));
    assert_eq!(report.copies(Fault::Missing), 5);
}

#[tokio::test(start_paused = true)]
async fn a_bookie_that_is_gone_or_silent_does_not_hold_up_the_others() {
    // Invariant 3.
    let setup = Setup::new((3, 3, 2), 20_000, 10, true).await;
    setup.bookies.0.lock().remove(&id("a"));
    let started = Instant::now();
    let report = setup.verify().await;
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    assert_eq!(
        said(&report),
        ["a: 20000 entries from 0 to 19999 unreachable (not registered in the metadata store)"]
    );
    assert!(!report.is_sound() && !report.is_damaged() && report.undecided == 0);

    setup.way("b", |way| (way.is_stopped, way.asked) = (true, 0));
    let started = Instant::now();
    let report = setup.verify().await;
    assert!(started.elapsed() < 3 * REQUEST_TIMEOUT_DEFAULT, "{:?}", started.elapsed());
    assert_eq!((report.undecided, report.below_ack_quorum), (20_000, 0), "both may have all");
    assert!(setup.bookies.0.lock()[&id("b")].asked < 10);
}

#[tokio::test(start_paused = true)]
async fn a_bookie_that_refuses_for_a_while_is_asked_again() {
    let setup = Setup::new((3, 3, 2), 100, 10, true).await;
    setup.way("c", |way| way.refuses = 3);
    let report = setup.verify().await;
    assert!(report.is_sound(), "{:?}", said(&report));
}

#[tokio::test(start_paused = true)]
async fn an_open_ledger_is_looked_at_up_to_its_lac_and_ranges_are_exact() {
    let setup = Setup::new((3, 3, 2), 100, 10, false).await;
    let report = setup.verify().await;
    assert_eq!((report.is_closed, report.last, report.entries), (false, Some(at(98)), 99));
    let report = setup.verify_range(at(10), Some(at(19))).await;
    assert_eq!((report.entries, report.first, report.last), (10, at(10), Some(at(19))));
    let error = setup.reader().await.verify(at(0), Some(at(99))).await.unwrap_err();
    assert!(matches!(error, ReadError::BeyondEnd { .. }), "{error}");
    let empty = Setup::new((3, 3, 2), 0, 0, true).await;
    let report = empty.verify().await;
    assert_eq!((report.entries, report.last, report.is_sound()), (0, None, true));
}

/// Invariant 2: repair put the copies of b onto d while b was found wanting.
#[tokio::test(start_paused = true)]
async fn what_moved_meanwhile_is_looked_at_where_it_is_now() {
    let setup = Setup::new((3, 3, 2), 100, 10, true).await;
    let look = setup.reader().await.verify(at(0), None).await.unwrap();
    setup.move_b_to_d().await;
    let report = finish(look).await;
    assert!(report.is_sound(), "{:?}", said(&report));
    assert!(!report.bookies.contains_key(&id("b")), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn what_moved_is_not_missed_because_the_metadata_store_lags_behind() {
    let setup = Setup::new((3, 3, 2), 100, 10, true).await;
    let look = setup.reader().await.verify(at(0), None).await.unwrap();
    setup.move_b_to_d().await;
    setup.store.lag();
    let report = finish(look).await;
    assert!(report.is_sound(), "{:?}", said(&report));
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_was_packed_again_is_sound() {
    let setup = Setup::new((3, 3, 2), 100, 10, true).await;
    setup.way("b", |way| {
        for (entry, stored) in &mut way.entries {
            let found = setup.codec.open(Some(at(*entry)), stored).unwrap();
            let mut packed = Vec::new();
            setup.codec.put(at(*entry), EntryId::new(99), found.length_bytes, &found.payload, &mut packed);
            *stored = packed.into();
        }
    });
    let report = setup.verify().await;
    assert!(report.is_sound(), "{:?}", said(&report));
}

#[tokio::test(start_paused = true)]
async fn a_used_up_budget_makes_parts_of_one_entry() {
    let setup = Setup::new((3, 3, 2), 50, 10, true).await;
    let budget = &setup.client.0.read_budget;
    let _all = budget.try_acquire(budget.capacity()).unwrap();
    let report = setup.verify().await;
    assert!(report.is_sound() && report.entries == 50);
    let ways = setup.bookies.0.lock();
    assert_eq!(ways[&id("a")].asked, 50);
    assert_eq!(ways[&id("a")].entries_asked, 50);
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_was_deleted_is_no_longer_looked_at() {
    let setup = Setup::new((3, 3, 2), 50, 10, true).await;
    let mut look = setup.reader().await.verify(at(0), None).await.unwrap();
    setup.way("a", |way| way.entries.clear());
    setup.layout.ledgers().delete(LEDGER, None).await.unwrap();
    assert_eq!(look.step().await, Err(ReadError::Deleted(LEDGER)));
}
