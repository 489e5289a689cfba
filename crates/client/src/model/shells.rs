//! The whole client, shells included, against simulated bookies, in simulated time: what a writer, readers that follow,
//! readers at random and a recovery see of one ledger.
//!
//! # What is checked (numbers: reliability reference)
//! IC9: with Qa - 1 bookies gone every entry up to the LAC (last add confirmed) can be read. IC17: the client's memory
//! stays within its limits, and is all given back at the end. IC18: every call ends. IC20: the ledger is closed. IC21:
//! for each reader the LAC only grows, and no entry up to it is reported as absent; a reader that follows gets each
//! entry once, in order, to the end. IC7, IC8: every confirmed entry is there, with its bytes, below a single end; with
//! deferred sync, every forced entry. IC19: when an append returns, its entry is on an ack quorum of the bookies that
//! metadata names, whatever health thinks of them; one read never asks a replica for the same entry twice. Meanwhile
//! Java's re-replication moves copies, packs them again, and collects the surplus copies of a closed ledger: a reader
//! that was opened before keeps working.
//!
//! # Limits     one ledger; the metadata store works; a seed gives the same faults, and not the same run: replicas are
//! chosen, and tasks woken, by other random numbers

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bindery_io::SeededRandom;
use bindery_io::canary::Canaries;
use bindery_metadata::layout::LedgerError;
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{BookieServiceInfo, Layout, LedgerLayout, RegistrationMode, layout};
use bindery_types::{BookieId, DigestType, Digester, EntryId, LedgerId, LedgerState, MasterKey, Quorum};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::bookie::{Bookie, Mode, Served};
use super::repair::{entries_of, with_member};
use crate::client::Client;
use crate::entry::EntryCodec;
use crate::error::ReadError;
use crate::options::{CreateOptions, OpenMode};
use crate::transport::{
    AddAnswer, AddRequest, AddSink, Answer, BatchReadRequest, BookieError, Connection, LacAnswer,
    PollRequest, ReadRequest, Transport,
};

const MEMORY_LIMIT: u64 = 40_000;
const TIMEOUT: Duration = Duration::from_secs(5);
const PASSWORD: &[u8] = b"p";
/// Adds that wait for a bookie: more than fit the memory limit, and a recovery.
const QUEUE_MAX: usize = 10_000;

type Queued = (AddRequest, Arc<dyn AddSink>);

/// The bookies and the way to them.
struct Cluster {
    bookies: BTreeMap<BookieId, Mutex<Bookie>>,
    queues: BTreeMap<BookieId, mpsc::Sender<Queued>>,
    random: SeededRandom,
    /// How likely a request is lost, before or after it was done.
    losses: Mutex<f64>,
    /// In milliseconds, on the mean.
    delay: u64,
    codec: Mutex<Option<EntryCodec>>,
    /// Reads of single entries that are not a recovery's, by bookie and entry.
    asked: Mutex<BTreeMap<(BookieId, i64), u64>>,
}

impl Cluster {
    /// A cluster, and what does the adds of each bookie in their order.
    fn new(seed: u64, count: usize) -> (Arc<Cluster>, JoinSet<()>) {
        let random = SeededRandom::new(seed).child("cluster");
        let ids: Vec<BookieId> = (0..count).map(|n| BookieId::new(format!("b{n}")).unwrap()).collect();
        let channels = ids.iter().map(|id| (id.clone(), mpsc::channel(QUEUE_MAX)));
        let (mut queues, mut receivers) = (BTreeMap::new(), Vec::new());
        for (id, (sender, receiver)) in channels {
            queues.insert(id.clone(), sender);
            receivers.push((id, receiver));
        }
        let cluster = Arc::new(Cluster {
            bookies: ids.into_iter().map(|id| (id, Mutex::default())).collect(),
            queues,
            losses: Mutex::new(if random.chance(0.5) { 0.02 } else { 0.0 }),
            delay: [1, 5, 40][random.below(3) as usize],
            random,
            codec: Mutex::default(),
            asked: Mutex::default(),
        });
        let mut workers = JoinSet::new();
        for (id, mut receiver) in receivers {
            let cluster = cluster.clone();
            workers.spawn(async move {
                while let Some((request, sink)) = receiver.recv().await {
                    let AddRequest { entry, body, is_recovery, tag, .. } = request;
                    let result = cluster.ask(&id, |bookie| bookie.add(entry, &body, is_recovery)).await;
                    let result = result.map(drop);
                    sink.added(&id, &[AddAnswer { entry, tag, connection: Connection::default(), result }]);
                }
            });
        }
        (cluster, workers)
    }

    async fn ask(
        &self,
        id: &BookieId,
        request: impl FnOnce(&mut Bookie) -> Served,
    ) -> Result<Bytes, BookieError> {
        let bookie = &self.bookies[id];
        let is_lost = |part: f64| self.random.chance(*self.losses.lock() * part);
        sleep(Duration::from_millis(self.random.below(self.delay * 2 + 1))).await;
        if is_lost(0.5) {
            return Err(BookieError::Lost);
        }
        let until = Instant::now() + TIMEOUT;
        loop {
            let mode = bookie.lock().mode;
            match mode {
                Mode::Up => break,
                Mode::Down => return Err(BookieError::Unreachable("down".into())),
                Mode::Stopped if Instant::now() >= until => return Err(BookieError::TimedOut(TIMEOUT)),
                Mode::Stopped => sleep(Duration::from_millis(50)).await,
            }
        }
        let served = request(&mut bookie.lock());
        sleep(Duration::from_millis(self.random.below(self.delay * 2 + 1))).await;
        bookie.lock().sync();
        if is_lost(0.5) { Err(BookieError::Lost) } else { served.result }
    }

    fn lac_of(&self, bookie: &Bookie) -> Option<EntryId> {
        let explicit = bookie.durable().explicit_lac.as_ref().and_then(|(lac, _)| EntryId::new(*lac));
        let codec = self.codec.lock().clone();
        let last = bookie.durable().entries.values().next_back();
        let inside = last.zip(codec).and_then(|(stored, codec)| codec.open(None, stored)?.last_add_confirmed);
        explicit.max(inside)
    }

    fn set_all(&self, mode: Mode) {
        self.bookies.values().for_each(|bookie| bookie.lock().mode = mode);
    }
}

impl Transport for Cluster {
    fn add(&self, bookie: &BookieId, request: AddRequest, sink: &Arc<dyn AddSink>) {
        let queue = &self.queues[bookie];
        queue.try_send((request, sink.clone())).expect("its worker runs, and clients bound what they send");
    }

    fn read(&self, bookie: &BookieId, request: ReadRequest) -> Answer<'_, Bytes> {
        let id = bookie.clone();
        if let (Some(entry), None) = (request.entry, &request.fence) {
            *self.asked.lock().entry((id.clone(), entry.get())).or_default() += 1;
        }
        Box::pin(
            async move { self.ask(&id, |bookie| bookie.read(request.entry, request.fence.is_some())).await },
        )
    }

    fn batch_read(&self, bookie: &BookieId, request: BatchReadRequest) -> Answer<'_, Vec<Bytes>> {
        let id = bookie.clone();
        Box::pin(async move {
            let mut entries = Vec::new();
            let first = request.first;
            let result = self.ask(&id, |bookie| {
                let mut size = 0;
                let ids = (first.get()..).step_by(request.stride as usize);
                for id in ids.take(request.count_max as usize) {
                    let Some(stored) = bookie.memory().entries.get(&id) else { break };
                    size += stored.len() as u64;
                    if size > request.size_bytes_max && !entries.is_empty() {
                        break;
                    }
                    entries.push(stored.clone());
                }
                bookie.read(Some(first), false)
            });
            result.await?;
            Ok(entries)
        })
    }

    fn read_lac(&self, bookie: &BookieId, _: LedgerId) -> Answer<'_, LacAnswer> {
        let id = bookie.clone();
        Box::pin(async move {
            let mut answer = LacAnswer { explicit: None, last_entry: None };
            let result = self.ask(&id, |bookie| {
                answer.explicit = bookie.durable().explicit_lac.as_ref().map(|(_, body)| body.clone());
                answer.last_entry = bookie.durable().entries.values().next_back().cloned();
                bookie.read(None, false)
            });
            match result.await {
                Err(error) if answer.explicit.is_none() || !matches!(error, BookieError::Refused(_)) => {
                    Err(error)
                }
                Ok(_) | Err(_) => Ok(answer),
            }
        })
    }

    fn write_lac(
        &self,
        bookie: &BookieId,
        _: LedgerId,
        _: MasterKey,
        lac: EntryId,
        body: Bytes,
    ) -> Answer<'_, ()> {
        let id = bookie.clone();
        Box::pin(async move { self.ask(&id, |bookie| bookie.write_lac(lac, &body)).await.map(drop) })
    }

    fn force(&self, bookie: &BookieId, _: LedgerId) -> Answer<'_, Connection> {
        let id = bookie.clone();
        Box::pin(async move {
            let served = |_: &mut Bookie| Served { result: Ok(Bytes::new()), waits: true };
            self.ask(&id, served).await.map(|_| Connection::default())
        })
    }

    fn poll_lac(&self, bookie: &BookieId, request: PollRequest) -> Answer<'_, Option<EntryId>> {
        let id = bookie.clone();
        Box::pin(async move {
            let until = Instant::now() + request.wait;
            loop {
                let mut lac = None;
                self.ask(&id, |bookie| {
                    lac = self.lac_of(bookie);
                    Served { result: Ok(Bytes::new()), waits: false }
                })
                .await?;
                if lac > request.previous || Instant::now() >= until {
                    return Ok(lac);
                }
                sleep(Duration::from_millis(20)).await;
            }
        })
    }
}

fn payload(entry: i64) -> Vec<u8> {
    vec![entry as u8; (entry * 37 % 300) as usize]
}

/// Fails if a reader reports an entry up to the LAC as missing or as beyond the end.
fn check_error(error: &ReadError) {
    assert!(!matches!(error, ReadError::NoEntry { .. } | ReadError::BeyondEnd { .. }), "IC21: {error}");
}

struct Actors {
    client: Client,
    cluster: Arc<Cluster>,
    ledger: LedgerId,
    is_over: AtomicBool,
}

impl Actors {
    /// Follows the ledger from its beginning, again when it cannot go on; how many entries it has.
    async fn follow(self: Arc<Self>) -> i64 {
        let (mut next, mut lac) = (0, None);
        loop {
            let Ok(reader) = self.client.open_ledger(self.ledger, PASSWORD, OpenMode::ReadOnly).await else {
                sleep(Duration::from_millis(100)).await;
                continue;
            };
            let mut tail = reader.tail(EntryId::new(next).unwrap());
            loop {
                match tail.next().await {
                    Some(Ok(entry)) => {
                        assert_eq!(
                            (entry.id.get(), &entry.payload[..]),
                            (next, &payload(next)[..]),
                            "IC8, IC21"
                        );
                        next += 1;
                        let now = reader.last_add_confirmed();
                        assert!(now >= Some(entry.id), "IC21: an entry behind the LAC");
                        lac = now.max(lac);
                    }
                    Some(Err(error)) => {
                        check_error(&error);
                        sleep(Duration::from_millis(500)).await;
                        break;
                    }
                    None => return next,
                }
            }
        }
    }

    /// Reads runs at random, also behind the LAC; how many runs came through.
    async fn read_at_random(self: Arc<Self>, random: SeededRandom) -> i64 {
        let mut read = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(random.below(200))).await;
            let Ok(reader) = self.client.open_ledger(self.ledger, PASSWORD, OpenMode::ReadOnly).await else {
                continue;
            };
            let mut lac = reader.last_add_confirmed();
            for _ in 0..5 {
                let now = reader.refresh().await.ok().flatten().max(reader.last_add_confirmed());
                assert!(now >= lac, "IC21: the LAC goes back from {lac:?} to {now:?}");
                lac = now;
                let Some(lac) = lac else { break };
                let first = random.below(lac.get() as u64 + 1) as i64;
                let is_unconfirmed = random.chance(0.3);
                let last = if is_unconfirmed { EntryId::new(lac.get() + 3).unwrap() } else { lac };
                let first = EntryId::new(first).unwrap();
                let mut entries = match is_unconfirmed {
                    true => reader.read_unconfirmed(first, last),
                    false => reader.read(first..=last),
                };
                let mut next = first.get();
                while let Some(entry) = entries.next().await {
                    match entry {
                        Ok(entry) => {
                            assert_eq!(
                                (entry.id.get(), &entry.payload[..]),
                                (next, &payload(next)[..]),
                                "IC8"
                            );
                            next += 1;
                        }
                        // The ledger ended below the requested entry, which only an unconfirmed read may report.
                        Err(ReadError::BeyondEnd { .. }) if is_unconfirmed => {}
                        Err(error) if next <= lac.get() => check_error(&error),
                        Err(_) => {}
                    }
                }
                read += i64::from(next > last.get());
            }
        }
        read
    }

    /// IC19: a confirmed entry is on the disks of an ack quorum of the bookies that metadata names.
    async fn check_quorum(&self, entry: EntryId, qa: usize) {
        let stored = self.client.0.layout.ledgers().get(self.ledger).await.unwrap();
        let has = |bookie: &&BookieId| {
            self.cluster.bookies[*bookie].lock().durable().entries.contains_key(&entry.get())
        };
        let copies = stored.metadata.write_set(entry).filter(has).count();
        assert!(copies >= qa, "IC1, IC19: entry {entry} is confirmed with {copies} copies");
    }

    /// Java repairs now and then; how many members it moved.
    async fn repair_now_and_then(self: Arc<Self>, random: SeededRandom) -> u64 {
        let mut repairs = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(random.below(1000))).await;
            repairs += u64::from(self.repair(&random).await.is_some());
        }
        repairs
    }

    /// Moves a member of any segment, of an open ledger but the last; `None` when that cannot be.
    async fn repair(&self, random: &SeededRandom) -> Option<()> {
        let ledgers = self.client.0.layout.ledgers();
        let stored = ledgers.get(self.ledger).await.ok()?;
        let segments = stored.metadata.segments();
        let is_closed = matches!(stored.metadata.state, LedgerState::Closed { .. });
        let (count, lac) = match stored.metadata.state {
            LedgerState::Closed { last_entry, .. } => (segments.len(), last_entry?),
            LedgerState::Open | LedgerState::InRecovery => {
                let last = segments.last()?;
                let inside =
                    last.ensemble.iter().map(|id| self.cluster.lac_of(&self.cluster.bookies[id].lock()));
                let inside = inside.max().flatten();
                (segments.len() - 1, inside.max(EntryId::new(last.first_entry.get() - 1))?)
            }
        };
        let below = |count: usize| (count > 0).then(|| random.below(count as u64) as usize);
        let segment = below(count)?;
        let (first, ensemble) = (segments[segment].first_entry, &segments[segment].ensemble);
        let position = below(ensemble.len())?;
        let spare: Vec<&BookieId> = self.cluster.bookies.keys().filter(|id| !ensemble.contains(id)).collect();
        let (old, new) = (&ensemble[position], spare[below(spare.len())?]);
        let codec = self.cluster.codec.lock().clone()?;
        for entry in entries_of(&stored.metadata, segment, position, lac) {
            let readable = stored.metadata.write_set(entry).find_map(|id| {
                let bookie = self.cluster.bookies[id].lock();
                bookie.memory().entries.get(&entry.get()).filter(|_| bookie.mode == Mode::Up).cloned()
            });
            let found = codec.open(Some(entry), &readable?).expect("stored entries are sound");
            let mut packed = Vec::new();
            codec.put(entry, Some(lac), found.length_bytes, &found.payload, &mut packed);
            let mut bookie = self.cluster.bookies[new].lock();
            if bookie.mode != Mode::Up {
                return None;
            }
            bookie.add(entry, &packed.into(), true);
            bookie.sync();
        }
        sleep(Duration::from_millis(random.below(100))).await;
        loop {
            let now = ledgers.get(self.ledger).await.ok()?;
            let changed = with_member(&now.metadata, first, old, new)?;
            match ledgers.update(self.ledger, &changed, now.version).await {
                Ok(_) if is_closed => {
                    let is_surplus = changed.segments().iter().all(|segment| !segment.ensemble.contains(old));
                    if is_surplus {
                        self.cluster.bookies[old].lock().forget();
                    }
                    return Some(());
                }
                Ok(_) => return Some(()),
                Err(LedgerError::Changed(_)) => {}
                Err(_) => return None,
            }
        }
    }

    /// Bookies go and come back, fewer than an ack quorum at a time. The client's memory stays within the limits.
    async fn trouble(self: Arc<Self>, random: SeededRandom, gone_max: usize) {
        while !self.is_over.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(random.below(2000))).await;
            self.cluster.set_all(Mode::Up);
            for _ in 0..random.below(gone_max as u64 + 1) {
                let all = self.cluster.bookies.len() as u64;
                let bookie = self.cluster.bookies.values().nth(random.below(all) as usize).unwrap();
                bookie.lock().mode = if random.chance(0.5) { Mode::Down } else { Mode::Stopped };
            }
            let held = self.client.memory_in_use();
            assert!(
                held.adds_bytes <= MEMORY_LIMIT && held.read_ahead_bytes <= MEMORY_LIMIT,
                "IC17: {held:?}"
            );
        }
        self.cluster.set_all(Mode::Up);
    }
}

#[derive(Debug, Default)]
pub(super) struct Seen {
    pub entries: i64,
    pub followed: i64,
    pub runs: i64,
    pub closed_by_writer: u64,
    pub forced: u64,
    pub ensemble_changes: u64,
    pub writers_failed: u64,
    /// Requests for an entry beyond the first.
    pub asked_again: u64,
    pub repairs: u64,
    pub repairs_of_closed: u64,
}

async fn scene(seed: u64, canaries: Canaries) -> Seen {
    let random = SeededRandom::new(seed);
    let shapes = [(1, 1, 1), (2, 2, 1), (3, 3, 2), (3, 2, 2), (3, 3, 3), (4, 3, 2), (5, 3, 2)];
    let (e, qw, qa) = shapes[random.below(shapes.len() as u64) as usize];
    let quorum = Quorum::new(e, qw, qa).unwrap();
    let (cluster, _workers) = Cluster::new(seed, e + random.below(3) as usize);
    let store = Arc::new(MemoryCluster::new().open());
    layout::init_cluster(&*store, "/l", LedgerLayout::Hierarchical, [0; 16]).await.unwrap();
    let layout = Layout::open(store, "/l", None).await.unwrap();
    for id in cluster.bookies.keys() {
        let info = BookieServiceInfo::of_bookie(("127.0.0.1", 3181), None);
        layout.registration().register(id, RegistrationMode::Writable, &info).await.unwrap();
    }
    let builder = Client::builder().layout(layout).transport(cluster.clone()).memory_limit(MEMORY_LIMIT);
    let client = builder.plant(canaries).connect().await.unwrap();
    let is_deferred = random.chance(0.2);
    let options = CreateOptions { password: PASSWORD.to_vec(), ..CreateOptions::new(quorum) };
    let options = options.deferred_sync(is_deferred);
    let writer = client.create_ledger(options).await.unwrap();
    let ledger = writer.id();
    *cluster.codec.lock() = Some(EntryCodec::new(ledger, Digester::new(DigestType::Crc32c, PASSWORD)));
    let is_over = AtomicBool::new(false);
    let actors = Arc::new(Actors { client: client.clone(), cluster: cluster.clone(), ledger, is_over });
    let (mut following, mut reading, mut troubling) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
    let mut repairing = JoinSet::new();
    for n in 0..2 {
        following.spawn(actors.clone().follow());
        reading.spawn(actors.clone().read_at_random(random.child(&format!("reader/{n}"))));
    }
    troubling.spawn(actors.clone().trouble(random.child("trouble"), qa - 1));
    repairing.spawn(actors.clone().repair_now_and_then(random.child("repair")));

    // The writer.
    let mut seen = Seen::default();
    let mut confirmed = -1;
    let count = 20 + random.below(150) as i64;
    for entry in 0..count {
        let outcome = match random.chance(0.3) {
            true => match writer.append(&payload(entry)).await {
                Ok(added) => {
                    if !is_deferred {
                        confirmed = added.get();
                        actors.check_quorum(added, qa).await;
                    }
                    Ok(added)
                }
                Err(error) => Err(error),
            },
            false => writer.enqueue(&payload(entry)).await,
        };
        if outcome.is_err() {
            break;
        }
        seen.entries += 1;
        if is_deferred
            && random.chance(0.1)
            && let Ok(Some(lac)) = writer.force().await
        {
            assert!(lac.get() >= confirmed && writer.progress().borrow().confirmed >= Some(lac), "IC3");
            confirmed = lac.get();
            seen.forced += 1;
        }
        if random.chance(0.2) {
            sleep(Duration::from_millis(random.below(300))).await;
        }
    }
    if random.chance(0.5) {
        if let Ok(closed) = writer.close().await {
            seen.closed_by_writer += 1;
            confirmed = EntryId::to_wire(closed.last_entry);
        }
    } else {
        confirmed = confirmed.max(EntryId::to_wire(writer.progress().borrow().confirmed));
        drop(writer);
    }
    actors.is_over.store(true, Ordering::Relaxed);
    while let Some(outcome) = troubling.join_next().await {
        outcome.unwrap();
    }
    *cluster.losses.lock() = 0.0;
    let mut tries = 0;
    let reader = loop {
        match client.open_ledger(ledger, PASSWORD, OpenMode::Recover).await {
            Ok(reader) => break reader,
            Err(error) => assert!(tries < 20, "IC20: {error}"),
        }
        tries += 1;
        sleep(Duration::from_secs(1)).await;
    };
    let last = EntryId::to_wire(reader.last_add_confirmed());
    assert!(reader.is_closed() && last >= confirmed, "IC7: closed at {last}, confirmed {confirmed}");
    while let Some(outcome) = following.join_next().await {
        assert_eq!(outcome.unwrap(), last + 1, "IC21: who follows gets everything");
        seen.followed += last + 1;
    }
    while let Some(outcome) = reading.join_next().await {
        seen.runs += outcome.unwrap();
    }
    while let Some(outcome) = repairing.join_next().await {
        seen.repairs += outcome.unwrap();
    }
    // All that the reader knows of may be somewhere else now.
    for _ in 0..random.below(4 * e as u64) {
        seen.repairs_of_closed += u64::from(actors.repair(&random).await.is_some());
    }
    // IC9: any Qa - 1 bookies are gone.
    let gone = random.below(cluster.bookies.len() as u64) as usize;
    for offset in 0..qa - 1 {
        let bookie = cluster.bookies.values().nth((gone + offset) % cluster.bookies.len()).unwrap();
        bookie.lock().mode = if random.chance(0.5) { Mode::Down } else { Mode::Stopped };
    }
    if let Some(last) = EntryId::new(last) {
        let mut entries = reader.read(EntryId::FIRST..=last);
        for id in 0..=last.get() {
            let entry = entries
                .next()
                .await
                .expect("IC9: all of them")
                .unwrap_or_else(|error| panic!("IC9: {error}"));
            assert_eq!((entry.id.get(), &entry.payload[..]), (id, &payload(id)[..]), "IC8");
        }
        assert!(entries.next().await.is_none());
    }
    // IC19: one after the other, of a ledger that does not change, while requests and answers are lost.
    cluster.set_all(Mode::Up);
    sleep(2 * TIMEOUT).await;
    let reader = client.open_ledger(ledger, PASSWORD, OpenMode::ReadOnly).await.expect("nothing fails now");
    cluster.asked.lock().clear();
    *cluster.losses.lock() = 0.2;
    for id in 0..=last {
        match reader.read_entry(EntryId::new(id).unwrap()).await {
            Ok(entry) => assert_eq!(entry.payload[..], payload(id)[..], "IC8"),
            Err(error) => check_error(&error),
        }
    }
    *cluster.losses.lock() = 0.0;
    drop(reader);
    // Stragglers end, at the latest when they time out.
    sleep(2 * TIMEOUT).await;
    for ((bookie, entry), count) in std::mem::take(&mut *cluster.asked.lock()) {
        assert_eq!(count, 1, "IC19: {bookie} is asked for entry {entry} twice by one read");
        seen.asked_again += 1;
    }
    seen.asked_again -= (last + 1) as u64;
    let held = client.memory_in_use();
    assert_eq!((held.adds_bytes, held.read_ahead_bytes), (0, 0), "IC17: nothing is held in the end");
    let writes = client.write_health();
    assert_eq!((writes.writers, writes.writers_short), (0, 0), "no writer is left");
    // Acknowledgements for a dropped writer are no longer counted, so the count may be below `seen.entries`.
    assert!((confirmed + 1..=seen.entries).contains(&(writes.entries as i64)), "{writes:?}");
    seen.ensemble_changes += writes.ensemble_changes;
    seen.writers_failed += writes.writers_failed;
    client.close().await;
    seen
}

/// Runs one seed.
pub(super) fn run(seed: u64, canaries: Canaries) -> Seen {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async {
        let all = timeout(Duration::from_secs(3600), scene(seed, canaries)).await;
        all.expect("IC18: something never ends")
    })
}
