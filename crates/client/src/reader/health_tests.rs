//! Reads from bookies that are slow, silent, refusing, or gone, in paused time: which replica is asked, and when.

use std::collections::BTreeMap;
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
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::LedgerReader;
use crate::client::{Client, ClientBuilder};
use crate::entry::EntryCodec;
use crate::health::{BookieHealth, NodeState};
use crate::location::Location;
use crate::options::{OpenMode, REQUEST_TIMEOUT_DEFAULT};
use crate::resolver::{NetworkResolver, Resolution};
use crate::transport::{
    AddRequest, AddSink, Answer, BatchReadRequest, BookieError, LacAnswer, PollRequest, ReadRequest,
    Transport,
};

const ENTRIES: i64 = 1000;
const PAYLOAD: &[u8] = b"entry";

fn at(entry: i64) -> EntryId {
    EntryId::new(entry).unwrap()
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// How a bookie does.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// It answers after so long.
    Answers(Duration),
    /// It answers requests after so long, and drops those under way meanwhile: no answer until the timeout.
    Stopped,
    /// It refuses connections, at once.
    Dead,
    /// It answers at once with this code.
    Refuses(ErrorCode),
}

#[derive(Default)]
struct Asked {
    reads: u64,
    probes: u64,
    /// Reads by entry.
    entries: BTreeMap<i64, u64>,
}

struct Scripted {
    codec: EntryCodec,
    ways: Mutex<BTreeMap<BookieId, Way>>,
    asked: Mutex<BTreeMap<BookieId, Asked>>,
}

impl Scripted {
    async fn answer(
        &self,
        bookie: &BookieId,
        ledger: LedgerId,
        entries: &[i64],
    ) -> Result<Vec<Bytes>, BookieError> {
        let is_probe = ledger.get() != 1;
        {
            let mut asked = self.asked.lock();
            let asked = asked.entry(bookie.clone()).or_default();
            if is_probe {
                asked.probes += 1;
            } else {
                asked.reads += 1;
                entries.iter().for_each(|entry| *asked.entries.entry(*entry).or_default() += 1);
            }
        }
        let way = self.ways.lock()[bookie];
        match way {
            Way::Answers(after) => sleep(after).await,
            Way::Stopped => {
                sleep(REQUEST_TIMEOUT_DEFAULT).await;
                return Err(BookieError::TimedOut(REQUEST_TIMEOUT_DEFAULT));
            }
            Way::Dead => return Err(BookieError::Unreachable("refused".into())),
            Way::Refuses(code) => return Err(BookieError::Refused(code)),
        }
        if is_probe {
            return Err(BookieError::Refused(ErrorCode::NoLedger));
        }
        let stored = |entry: &i64| {
            let mut stored = Vec::new();
            let length = PAYLOAD.len() as u64 * (*entry as u64 + 1);
            self.codec.put(at(*entry), EntryId::new(entry - 1), length, PAYLOAD, &mut stored);
            Bytes::from(stored)
        };
        Ok(entries.iter().map(stored).collect())
    }
}

impl Transport for Scripted {
    fn add(&self, _: &BookieId, _: AddRequest, _: &Arc<dyn AddSink>) {}

    fn read(&self, bookie: &BookieId, request: ReadRequest) -> Answer<'_, Bytes> {
        let bookie = bookie.clone();
        Box::pin(async move {
            let entry = EntryId::to_wire(request.entry);
            Ok(self.answer(&bookie, request.ledger, &[entry]).await?.swap_remove(0))
        })
    }

    fn batch_read(&self, bookie: &BookieId, request: BatchReadRequest) -> Answer<'_, Vec<Bytes>> {
        let bookie = bookie.clone();
        Box::pin(async move {
            let first = request.first.get();
            let entries: Vec<i64> = (first..first + i64::from(request.count_max)).collect();
            self.answer(&bookie, request.ledger, &entries).await
        })
    }

    fn read_lac(&self, _: &BookieId, _: LedgerId) -> Answer<'_, LacAnswer> {
        Box::pin(async { Err(BookieError::Lost) })
    }

    fn write_lac(&self, _: &BookieId, _: LedgerId, _: MasterKey, _: EntryId, _: Bytes) -> Answer<'_, ()> {
        Box::pin(async { Err(BookieError::Lost) })
    }

    fn poll_lac(&self, _: &BookieId, _: PollRequest) -> Answer<'_, Option<EntryId>> {
        Box::pin(async { Err(BookieError::Lost) })
    }
}

/// A closed ledger on a, b and c, each of which has every entry and answers in 2 ms.
struct Setup {
    client: Client,
    bookies: Arc<Scripted>,
    reader: LedgerReader,
}

/// Each bookie is in the rack of its name: b in the region of a, c in another.
struct Racks;

impl NetworkResolver for Racks {
    fn resolve<'a>(&'a self, hosts: &'a [String]) -> Resolution<'a> {
        let region = |host: &str| if host == "c" { "us" } else { "eu" };
        let places = hosts.iter().map(|host| Location::new(&format!("/{}/{host}", region(host))).ok());
        Box::pin(std::future::ready(Ok(places.collect())))
    }
}

impl Setup {
    async fn new() -> Setup {
        Setup::with(|builder| builder).await
    }

    async fn with(tune: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Setup {
        let store = Arc::new(MemoryCluster::new().open());
        layout::init_cluster(&*store, "/l", LedgerLayout::Hierarchical, [0; 16]).await.unwrap();
        let layout = Layout::open(store, "/l", None).await.unwrap();
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: b"p".to_vec() };
        let ledger = LedgerId::new(1).unwrap();
        let codec = EntryCodec::new(ledger, Digester::new(secret.digest_type, &secret.password));
        let ids = ["a", "b", "c"].map(|name| BookieId::new(name).unwrap());
        let ways = ids.iter().map(|id| (id.clone(), Way::Answers(ms(2)))).collect();
        let bookies = Arc::new(Scripted { codec, ways: Mutex::new(ways), asked: Mutex::default() });
        let mut metadata = LedgerMetadata::new(Quorum::new(3, 3, 2).unwrap(), secret);
        metadata.push_segment(Segment { first_entry: at(0), ensemble: ids.to_vec() }).unwrap();
        metadata.state = LedgerState::Closed { last_entry: Some(at(ENTRIES - 1)), length_bytes: 0 };
        layout.ledgers().create(ledger, &metadata).await.unwrap();
        let builder = tune(Client::builder().layout(layout).transport(bookies.clone()));
        let client = builder.connect().await.unwrap();
        let reader = client.open_ledger(ledger, b"p", OpenMode::Recover).await.unwrap();
        Setup { client, bookies, reader }
    }

    fn set(&self, bookie: &str, way: Way) {
        self.bookies.ways.lock().insert(BookieId::new(bookie).unwrap(), way);
    }

    fn of(&self, bookie: &str) -> BookieHealth {
        let all = self.client.bookie_health();
        all.into_iter().find(|health| health.bookie.as_str() == bookie).unwrap()
    }

    /// Reads sent to each bookie since the last call.
    fn reads(&self) -> [u64; 3] {
        let asked = std::mem::take(&mut *self.bookies.asked.lock());
        ["a", "b", "c"].map(|name| asked.get(&BookieId::new(name).unwrap()).map_or(0, |asked| asked.reads))
    }

    /// One read after the other, `at_once` side by side, for a while; how long each took, ascending.
    async fn read_for(&self, duration: Duration, at_once: usize) -> Vec<Duration> {
        let until = Instant::now() + duration;
        let mut readers = JoinSet::new();
        for number in 0..at_once {
            let reader = self.reader.clone();
            readers.spawn(async move {
                let mut took = Vec::new();
                let mut entry = number as i64;
                while Instant::now() < until {
                    let started = Instant::now();
                    let read = reader.read_entry(at(entry % ENTRIES)).await.expect("no caller error");
                    assert_eq!(&read.payload[..], PAYLOAD);
                    took.push(started.elapsed());
                    entry += 7;
                }
                took
            });
        }
        let mut took: Vec<Duration> = readers.join_all().await.concat();
        took.sort_unstable();
        took
    }

    /// All requests have been answered, or given up and forgotten.
    async fn assert_idle(&self) {
        sleep(Duration::from_secs(20)).await;
        for bookie in self.client.bookie_health() {
            assert_eq!(bookie.pending, 0, "C1: {bookie:?}");
        }
    }
}

fn p99(took: &[Duration]) -> Duration {
    took[took.len() * 99 / 100]
}

#[tokio::test(start_paused = true)]
async fn healthy_replicas_share_the_reads() {
    let setup = Setup::new().await;
    setup.read_for(Duration::from_secs(10), 4).await;
    let reads = setup.reads();
    let total: u64 = reads.iter().sum();
    assert!(reads.iter().all(|reads| reads * 4 > total), "{reads:?}");
    setup.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn the_nearest_replica_is_read_while_it_is_well_and_not_slower() {
    let here = Location::new("/eu/a").unwrap();
    let setup = Setup::with(|builder| builder.location(here).network_resolver(Racks)).await;
    sleep(ms(1)).await;
    let read_for = async |seconds| {
        setup.reads();
        setup.read_for(Duration::from_secs(seconds), 4).await;
        setup.reads()
    };
    let [a, b, c] = read_for(10).await;
    assert!(a > 1000 && b == 0 && c == 0, "its rack: {a} {b} {c}");
    setup.set("a", Way::Dead);
    let [a, b, c] = read_for(10).await;
    assert!(b > 1000 && a < 20 && c == 0, "its region: {a} {b} {c}");
    setup.set("b", Way::Answers(ms(100)));
    let [a, b, c] = read_for(30).await;
    assert!(c > 1000 && a < 20 && b * 20 < c, "neither is asked because it is near: {a} {b} {c}");
    setup.set("a", Way::Answers(ms(2)));
    read_for(20).await;
    let [a, b, c] = read_for(10).await;
    assert!(a * 20 > (a + b + c) * 19, "back: {a} {b} {c}");
    setup.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_replica_is_left_out_and_hedges_stay_within_their_share() {
    // C5.
    let setup = Setup::new().await;
    let healthy = p99(&setup.read_for(Duration::from_secs(10), 4).await);
    let before = setup.client.read_health();
    setup.reads();
    setup.set("a", Way::Answers(ms(100)));
    let slow = p99(&setup.read_for(Duration::from_secs(60), 4).await);
    let after = setup.client.read_health();
    assert!(slow <= healthy * 2, "{slow:?}, healthy {healthy:?}");
    let reads = setup.reads();
    let total: u64 = reads.iter().sum();
    assert!(reads[0] * 20 < total, "{reads:?}");
    let hedges = after.hedges_sent - before.hedges_sent;
    assert!(hedges > 0 && after.hedges_won > before.hedges_won, "{after:?}");
    assert!(hedges * 10 <= total - hedges, "{hedges} of {total}");
    assert_eq!(setup.of("a").state, NodeState::Healthy, "slow is not ill");
    setup.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_replica_is_left_out_in_time_and_comes_back_in_time() {
    // C2, C9, C10.
    let setup = Setup::new().await;
    let healthy = p99(&setup.read_for(Duration::from_secs(10), 4).await);
    setup.set("a", Way::Stopped);
    setup.read_for(Duration::from_secs(5), 4).await;
    assert_eq!(setup.of("a").state, NodeState::Unhealthy);
    assert!(setup.of("a").pending > 0, "what timed out is held");
    setup.reads();
    let stopped = p99(&setup.read_for(Duration::from_secs(30), 4).await);
    assert!(stopped <= healthy * 2, "{stopped:?}, healthy {healthy:?}");
    assert_eq!(setup.reads()[0], 0, "no ordinary reads");
    setup.set("a", Way::Answers(ms(2)));
    setup.read_for(Duration::from_secs(5), 4).await;
    assert_eq!(setup.of("a").state, NodeState::Probation);
    assert!(setup.reads()[0] > 0, "a part of its share");
    setup.read_for(Duration::from_secs(11), 4).await;
    assert_eq!(setup.of("a").state, NodeState::Healthy);
    assert!(setup.of("a").is_avoided, "new ensembles do without it for longer");
    setup.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_fails_fast_gets_next_to_nothing() {
    // C9: the connection, or each read.
    for way in [Way::Dead, Way::Refuses(ErrorCode::Io)] {
        let setup = Setup::new().await;
        setup.read_for(Duration::from_secs(5), 4).await;
        setup.set("a", way);
        setup.read_for(Duration::from_secs(5), 4).await;
        setup.reads();
        setup.read_for(Duration::from_secs(20), 4).await;
        let reads = setup.reads();
        let total: u64 = reads.iter().sum();
        assert!(reads[0] * 100 < total, "{reads:?}");
        setup.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_refuses_too_many_is_spared_and_is_asked_once_for_each_read() {
    // C4, C6.
    let setup = Setup::new().await;
    setup.set("a", Way::Refuses(ErrorCode::TooManyRequests));
    for entry in 0..ENTRIES {
        setup.reader.read_entry(at(entry)).await.unwrap();
    }
    let a = BookieId::new("a").unwrap();
    let asked = std::mem::take(&mut *setup.bookies.asked.lock());
    assert!(asked[&a].entries.values().all(|count| *count == 1), "never the same one again");
    assert!(asked[&a].reads < ENTRIES as u64 / 10, "{} of {ENTRIES}", asked[&a].reads);
    assert!(setup.of("a").reject_percent >= 80);
    assert_eq!(setup.of("a").state, NodeState::Healthy);
    setup.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn reads_try_also_when_no_replica_is_well_and_end_when_none_answers() {
    // C3, C7, IC9.
    let setup = Setup::new().await;
    for bookie in ["a", "b", "c"] {
        setup.set(bookie, Way::Stopped);
    }
    let started = Instant::now();
    assert!(setup.reader.read_entry(at(1)).await.is_err());
    // A second for each before the next is asked, and the last has its whole time.
    assert!(started.elapsed() <= ms(2000) + REQUEST_TIMEOUT_DEFAULT + ms(100), "{:?}", started.elapsed());
    sleep(Duration::from_secs(5)).await;
    assert!(setup.client.bookie_health().iter().all(|bookie| bookie.state == NodeState::Unhealthy));
    // The probes do not know yet.
    setup.set("b", Way::Answers(ms(2)));
    assert!(setup.reader.read_entry(at(2)).await.is_ok());
    assert!(setup.client.read_health().fail_open > 0);
    setup.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_hedge_goes_to_another_replica_once_and_the_read_has_one_outcome() {
    // C3, C4, IC19: the first is slow, so is the hedge; the read ends with the faster.
    let setup = Setup::new().await;
    setup.read_for(Duration::from_secs(5), 4).await;
    setup.bookies.asked.lock().clear();
    for bookie in ["a", "b", "c"] {
        setup.set(bookie, Way::Answers(ms(700)));
    }
    let started = Instant::now();
    setup.reader.read_entry(at(500)).await.unwrap();
    assert_eq!(started.elapsed(), ms(700));
    let asked = std::mem::take(&mut *setup.bookies.asked.lock());
    assert_eq!(asked.values().map(|asked| asked.reads).sum::<u64>(), 2, "one hedge");
    assert!(asked.values().all(|asked| asked.entries.values().all(|count| *count == 1)));
    let health = setup.client.read_health();
    assert_eq!((health.hedges_sent, health.hedges_won), (1, 0));
    setup.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn bookies_that_are_asked_are_known_without_reads() {
    let setup = Setup::new().await;
    setup.set("b", Way::Dead);
    setup.set("c", Way::Stopped);
    let ids = ["a", "b", "c"].map(|name| BookieId::new(name).unwrap());
    let started = Instant::now();
    setup.client.ask_bookies(&ids).await;
    assert!(started.elapsed() <= ms(1100), "{:?}", started.elapsed());
    let [a, b, c] = ["a", "b", "c"].map(|name| setup.of(name));
    assert_eq!((a.state, a.answered, a.reads.count), (NodeState::Healthy, 1, 1));
    assert!(a.reads.p50 >= ms(2) && a.reads.p50 < ms(4));
    assert!(b.state >= NodeState::Suspect && b.unreachable == 1);
    assert!(c.state >= NodeState::Suspect && c.timeouts == 1 && c.pending == 1);
    setup.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_read_that_is_dropped_counts_no_more() {
    // C1.
    let setup = Setup::new().await;
    setup.set("a", Way::Stopped);
    setup.set("b", Way::Stopped);
    setup.set("c", Way::Stopped);
    let dropped = tokio::time::timeout(ms(500), setup.reader.read_entry(at(1))).await;
    assert!(dropped.is_err());
    tokio::task::yield_now().await;
    assert!(setup.client.bookie_health().iter().all(|bookie| bookie.pending == 0));
}

#[tokio::test(start_paused = true)]
async fn runs_of_entries_are_chosen_and_hedged_as_single_ones() {
    let setup = Setup::new().await;
    let read_all = || async {
        let mut stream = setup.reader.read(at(0)..=at(ENTRIES - 1));
        let mut count = 0;
        while let Some(entry) = stream.next().await {
            entry.unwrap();
            count += 1;
        }
        assert_eq!(count, ENTRIES);
    };
    for _ in 0..20 {
        read_all().await;
    }
    let home = reads_of_one(&setup.reads()).expect("of a closed ledger");
    let name = ["a", "b", "c"][home];
    assert!(setup.of(name).batch_reads.count > 0);
    setup.set(name, Way::Dead);
    for _ in 0..20 {
        read_all().await;
    }
    setup.reads();
    for _ in 0..20 {
        read_all().await;
    }
    assert_eq!(setup.reads()[home], 0);
    setup.assert_idle().await;
}

/// C14. A bookie may have to fetch a run from object storage first; a reader that stays with one bookie has it fetched once.
#[tokio::test(start_paused = true)]
async fn runs_of_a_closed_ledger_come_from_one_replica_until_that_one_is_not_well() {
    let setup = Setup::new().await;
    let read_all = async || {
        let mut stream = setup.reader.read(at(0)..=at(ENTRIES - 1));
        while let Some(entry) = stream.next().await {
            entry.unwrap();
        }
        setup.reads()
    };
    // The first run of single entries, with which the reader finds out how large they are, and then batches.
    let reads = read_all().await;
    let home = reads.iter().position(|reads| *reads > 0).unwrap();
    let mut alone = [0; 3];
    alone[home] = reads[home];
    for _ in 0..30 {
        assert_eq!(reads_of_one(&read_all().await), Some(home), "the first were {reads:?}");
    }
    assert_eq!(reads, alone);
    let names = ["a", "b", "c"];
    for way in [Way::Dead, Way::Refuses(ErrorCode::Io), Way::Stopped] {
        setup.set(names[home], way);
        // Three errors in a row.
        for _ in 0..3 {
            read_all().await;
        }
        sleep(Duration::from_secs(3)).await;
        let next = reads_of_one(&read_all().await);
        assert!(next.is_some_and(|next| next != home), "the next one alone: {next:?}");
        assert_eq!(reads_of_one(&read_all().await), next);
        setup.set(names[home], Way::Answers(ms(2)));
        sleep(Duration::from_secs(30)).await;
        // Ends a probation.
        read_all().await;
        sleep(Duration::from_secs(30)).await;
        assert_eq!(reads_of_one(&read_all().await), Some(home), "back");
    }
    setup.assert_idle().await;
}

/// The one bookie that was asked, if it was one.
fn reads_of_one(reads: &[u64; 3]) -> Option<usize> {
    let mut asked = (0..3).filter(|bookie| reads[*bookie] > 0);
    asked.next().filter(|_| asked.next().is_none())
}

/// C5: with all replicas slow another one would be no faster. Once the allowance for retries is used up, a read waits for
/// the request that is under way, so that what makes them slow is not doubled.
#[tokio::test(start_paused = true)]
async fn replicas_that_are_all_slow_are_not_asked_twice_for_each_read() {
    const ANSWER: Duration = Duration::from_secs(3);
    let setup = Setup::new().await;
    for bookie in ["a", "b", "c"] {
        setup.set(bookie, Way::Answers(ANSWER));
    }
    let took = setup.read_for(Duration::from_secs(300), 60).await;
    let (reads, requests) = (took.len() as u64, setup.reads().iter().sum::<u64>());
    let health = setup.client.read_health();
    assert!(reads > 5000, "{reads} reads");
    assert!(
        health.retries_delayed > 0,
        "each read takes so long that it would ask the next replica: {health:?}"
    );
    // A tenth for hedges, a fifth for retries and twenty of them in any minute.
    let allowed = reads * 3 / 10 + 6 * 20;
    assert!(requests - reads <= allowed, "{requests} requests for {reads} reads");
    // In paused time: none waited for longer than its first replica took.
    assert_eq!(took.last(), Some(&ANSWER));
    setup.assert_idle().await;
}

/// C5: the free allowance counts requests. Counted in entries, a batch would exceed all of it, and wait for a second.
#[tokio::test(start_paused = true)]
async fn the_first_batches_that_meet_a_dead_replica_do_not_wait() {
    for _ in 0..20 {
        let setup = Setup::new().await;
        setup.set("a", Way::Dead);
        setup.set("b", Way::Dead);
        let started = Instant::now();
        let mut stream = setup.reader.read(at(0)..=at(ENTRIES - 1));
        while let Some(entry) = stream.next().await {
            entry.unwrap();
        }
        // In paused time: nothing but the waits themselves takes time.
        assert!(started.elapsed() < ms(100), "{:?}", started.elapsed());
        assert_eq!(setup.client.read_health().retries_delayed, 0);
    }
}
