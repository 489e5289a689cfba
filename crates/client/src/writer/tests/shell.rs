//! The shell with scripted bookies and a metadata store that can be taken away, in paused time.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bindery_metadata::memory::{MemoryCluster, MemoryStore};
use bindery_metadata::store::MetadataStore;
use bindery_metadata::{BookieServiceInfo, Layout, LedgerLayout, RegistrationMode, layout};
use bindery_types::{BookieId, EntryId, LedgerId, MasterKey, Quorum};
use bindery_wire::ErrorCode;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::ids;
use crate::client::Client;
use crate::error::{AppendError, AppendOpenError, CloseError, TryAppendError, WhyStopped};
use crate::options::CreateOptions;
use crate::transport::{
    AddAnswer, AddRequest, AddSink, Answer, BatchReadRequest, BookieError, Connection, LacAnswer,
    PollRequest, ReadRequest, Transport,
};
use crate::writer::LedgerWriter;

const MEMORY_LIMIT: u64 = 1 << 20;
const PAYLOAD: [u8; 1000] = [7; 1000];

/// Bookies that acknowledge everything, but those of the sets.
#[derive(Default)]
struct Scripted {
    /// Bookies that break their connections and give no other answer.
    broken: Mutex<BTreeSet<BookieId>>,
    /// They refuse this client.
    unauthorized: Mutex<BTreeSet<BookieId>>,
    /// They say nothing at all.
    silent: Mutex<BTreeSet<BookieId>>,
    /// What was withdrawn from.
    withdrawn: Mutex<BTreeSet<BookieId>>,
}

impl Transport for Scripted {
    fn add(&self, bookie: &BookieId, request: AddRequest, sink: &Arc<dyn AddSink>) {
        let AddRequest { entry, tag, .. } = request;
        if self.silent.lock().contains(bookie) {
            return;
        }
        let result = if self.broken.lock().contains(bookie) {
            Err(BookieError::Lost)
        } else if self.unauthorized.lock().contains(bookie) {
            Err(BookieError::Refused(ErrorCode::Unauthorized))
        } else {
            Ok(())
        };
        let (bookie, sink) = (bookie.clone(), sink.clone());
        tokio::spawn(async move {
            sink.added(&bookie, &[AddAnswer { entry, tag, connection: Connection::default(), result }])
        });
    }

    fn withdraw(&self, bookie: &BookieId, _: LedgerId, _: &Arc<dyn AddSink>) {
        self.withdrawn.lock().insert(bookie.clone());
    }

    fn read(&self, _: &BookieId, _: ReadRequest) -> Answer<'_, Bytes> {
        Box::pin(std::future::pending())
    }

    fn batch_read(&self, _: &BookieId, _: BatchReadRequest) -> Answer<'_, Vec<Bytes>> {
        Box::pin(std::future::pending())
    }

    fn read_lac(&self, _: &BookieId, _: LedgerId) -> Answer<'_, LacAnswer> {
        // Longer than any test waits for a failure.
        Box::pin(async {
            sleep(Duration::from_secs(600)).await;
            Err(BookieError::TimedOut(Duration::from_secs(600)))
        })
    }

    fn write_lac(&self, _: &BookieId, _: LedgerId, _: MasterKey, _: EntryId, _: Bytes) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn poll_lac(&self, _: &BookieId, _: PollRequest) -> Answer<'_, Option<EntryId>> {
        Box::pin(std::future::pending())
    }
}

struct Setup {
    store: Arc<MemoryStore>,
    bookies: Arc<Scripted>,
    client: Client,
}

impl Setup {
    async fn new(names: &str, memory_limit: u64) -> Setup {
        Setup::with_patience(names, memory_limit, Duration::ZERO).await
    }

    async fn with_patience(names: &str, memory_limit: u64, patience: Duration) -> Setup {
        let store = Arc::new(MemoryCluster::new().open());
        layout::init_cluster(&*store, "/l", LedgerLayout::Hierarchical, [0; 16]).await.unwrap();
        let layout = Layout::open(store.clone(), "/l", None).await.unwrap();
        for id in ids(names) {
            let info = BookieServiceInfo::of_bookie(("127.0.0.1", 3181), None);
            layout.registration().register(&id, RegistrationMode::Writable, &info).await.unwrap();
        }
        let bookies = Arc::new(Scripted::default());
        let builder = Client::builder().layout(layout).transport(bookies.clone());
        let client = builder.memory_limit(memory_limit).bookie_patience(patience).connect().await.unwrap();
        Setup { store, bookies, client }
    }

    async fn writer(&self, e: usize, qw: usize, qa: usize) -> LedgerWriter {
        let options = CreateOptions::new(Quorum::new(e, qw, qa).unwrap());
        self.client.create_ledger(options).await.unwrap()
    }
}

fn first_bookie(writer: &LedgerWriter) -> BookieId {
    writer.inner.state.lock().core.ensemble()[0].clone()
}

/// Invariant 7 of the writer.
#[tokio::test(start_paused = true)]
async fn a_ledger_is_given_back_when_every_bookie_refused_all_as_unauthorized_and_never_else() {
    let setup = Setup::new("a b c", MEMORY_LIMIT).await;
    let options = CreateOptions::new(Quorum::new(3, 3, 2).unwrap());
    let id = setup.client.create_handed_over(options).await.unwrap();
    let append = async |entries: usize| {
        let writer = setup.client.open_for_append(id, b"").await.unwrap();
        for _ in 0..entries {
            // Those behind a refusal are not taken.
            let _ = writer.enqueue(&PAYLOAD).await;
        }
        writer.hand_over().await
    };
    assert_eq!(append(1).await.unwrap(), EntryId::new(0));
    *setup.bookies.unauthorized.lock() = ids("a b c").into_iter().collect();
    for entries in [1, 5] {
        let refused = append(entries).await;
        assert!(matches!(&refused, Err(CloseError::GivenBack(_))), "{entries}: {refused:?}");
    }
    setup.bookies.unauthorized.lock().clear();
    assert_eq!(append(2).await.unwrap(), EntryId::new(2), "it goes on where it was");

    // One of them may have stored it, or does not say.
    *setup.bookies.unauthorized.lock() = ids("a b").into_iter().collect();
    let refused = append(1).await;
    assert!(matches!(&refused, Err(CloseError::Stopped(_))), "{refused:?}");
    setup.bookies.unauthorized.lock().clear();
    let busy = setup.client.open_for_append(id, b"").await;
    assert!(matches!(busy, Err(AppendOpenError::Busy(_))), "{busy:?}");
}

/// Invariant 2 of the writer.
#[tokio::test(start_paused = true)]
async fn calls_of_several_tasks_get_their_ids_in_their_order_whoever_goes_on_first() {
    let setup = Setup::new("a b c", MEMORY_LIMIT).await;
    let writer = Arc::new(setup.writer(3, 3, 2).await);
    let budget = &setup.client.0.add_budget;
    for round in 0..20 {
        let held = budget.try_acquire(budget.gauge().capacity).expect("nothing is under way");
        let mut calls = Vec::new();
        for call in 0..10 {
            let writer = writer.clone();
            // Some wait for room only, some until they are confirmed.
            let mut task = Box::pin(async move {
                match call % 2 {
                    0 => writer.enqueue(&PAYLOAD).await,
                    _ => writer.append(&PAYLOAD).await,
                }
            });
            let first = std::future::poll_fn(|context| Poll::Ready(task.as_mut().poll(context).is_pending()));
            assert!(first.await, "there is no room");
            calls.push(task);
        }
        drop(held);
        // The last one is polled first.
        let mut tasks = Vec::new();
        while let Some(task) = calls.pop() {
            tasks.push(tokio::spawn(task));
            yield_now().await;
        }
        for (task, call) in tasks.into_iter().rev().zip(0..) {
            let id = timeout(Duration::from_secs(60), task).await.unwrap().unwrap().unwrap();
            assert_eq!(id.get(), round * 10 + call);
        }
        writer.drain().await.unwrap();
        while budget.gauge().used > 0 {
            yield_now().await;
        }
    }
}

/// Invariant 6 of the writer.
#[tokio::test(start_paused = true)]
async fn a_ledger_that_waits_for_an_ensemble_change_leaves_room_for_others() {
    let setup = Setup::new("a b", MEMORY_LIMIT).await;
    let waiting = setup.writer(1, 1, 1).await;
    let other = loop {
        let other = setup.writer(1, 1, 1).await;
        if first_bookie(&other) != first_bookie(&waiting) {
            break other;
        }
    };
    setup.store.disconnect();
    setup.bookies.broken.lock().insert(first_bookie(&waiting));
    waiting.enqueue(&PAYLOAD).await.unwrap();
    while !waiting.inner.state.lock().core.awaits_change() {
        yield_now().await;
    }
    let flooding = async { while waiting.enqueue(&PAYLOAD).await.is_ok() {} };
    let writing = async {
        for _ in 0..5 * MEMORY_LIMIT / 1000 {
            other.enqueue(&PAYLOAD).await.unwrap();
        }
        other.drain().await.unwrap();
    };
    tokio::select! {
        biased;
        () = flooding => panic!("the other one got room only when this one was given up"),
        () = writing => {}
    }
    assert!(matches!(waiting.try_enqueue(&PAYLOAD), Err(TryAppendError::NoRoom { .. })));
    assert_eq!(waiting.progress().borrow().failure, None);
    setup.store.reconnect();
    waiting.append(&PAYLOAD).await.unwrap();
    assert_eq!(first_bookie(&waiting), first_bookie(&other), "changed at last");
    assert_eq!(waiting.drain().await.unwrap(), waiting.inner.state.lock().core.last_pushed());
}

/// Invariant 8 of the core: the search asks a held bookie that never answers, and a member fails.
#[tokio::test(start_paused = true)]
async fn a_failure_does_not_wait_for_a_search() {
    let setup = Setup::new("a b c", MEMORY_LIMIT).await;
    let writer = setup.writer(3, 3, 1).await;
    let break_and_write = async |name: &str| {
        setup.bookies.broken.lock().insert(ids(name)[0].clone());
        for _ in 0..3 {
            timeout(Duration::from_secs(60), writer.append(&PAYLOAD))
                .await
                .expect("it is confirmed")
                .unwrap();
            yield_now().await;
        }
    };
    // In the order of the ensemble, which is random.
    let held = || -> BTreeSet<BookieId> { writer.inner.state.lock().core.held().into_iter().collect() };
    break_and_write("c").await;
    assert_eq!(held(), ids("c").into_iter().collect());
    // The pause before the first search.
    sleep(Duration::from_millis(1100)).await;
    assert!(writer.inner.state.lock().core.next_step().is_some(), "c is being asked");
    break_and_write("b").await;
    assert_eq!(held(), ids("b c").into_iter().collect());
}

#[tokio::test(start_paused = true)]
async fn a_memory_limit_without_room_for_an_entry_is_an_error() {
    let setup = Setup::new("a", 100).await;
    let writer = setup.writer(1, 1, 1).await;
    assert!(matches!(writer.enqueue(b"").await, Err(AppendError::TooLarge { .. })));
    let refused = writer.try_enqueue(b"");
    assert!(matches!(refused, Err(TryAppendError::Append(AppendError::TooLarge { .. }))));
}

async fn append_some(writer: &LedgerWriter) {
    for _ in 0..3 {
        timeout(Duration::from_secs(120), writer.append(&PAYLOAD)).await.expect("in time").unwrap();
        yield_now().await;
    }
}

/// Invariant 5 of the core. Time is simulated.
#[tokio::test(start_paused = true)]
async fn a_writer_waits_for_its_bookies_as_long_as_it_has_patience() {
    let setup = Setup::with_patience("a b c", MEMORY_LIMIT, Duration::from_secs(30)).await;
    let writer = setup.writer(3, 3, 3).await;
    append_some(&writer).await;
    let before = writer.progress().borrow().confirmed;
    for round in 1..=3 {
        setup.bookies.broken.lock().extend(ids("a b c"));
        let appends = async { append_some(&writer).await };
        let restart = async {
            sleep(Duration::from_secs(20)).await;
            assert_eq!(writer.progress().borrow().failure, None, "round {round}");
            setup.bookies.broken.lock().clear();
        };
        tokio::join!(appends, restart);
    }
    let confirmed = writer.progress().borrow().confirmed;
    assert_eq!(EntryId::to_wire(confirmed), EntryId::to_wire(before) + 9, "each once");

    setup.bookies.broken.lock().extend(ids("a b c"));
    let since = tokio::time::Instant::now();
    let error = writer.append(&PAYLOAD).await.unwrap_err();
    let AppendError::Stopped(stopped) = &error else { panic!("{error}") };
    assert!(matches!(stopped.why, WhyStopped::NotEnoughBookies(_)), "{error}");
    assert_eq!(stopped.last_confirmed, confirmed);
    let waited = since.elapsed();
    assert!(waited >= Duration::from_secs(30) && waited < Duration::from_secs(40), "{waited:?}");
}

/// Invariant 5 of the core: time in which nobody waited for bookies takes nothing from the patience with them.
#[tokio::test(start_paused = true)]
async fn a_bookie_that_was_replaced_long_ago_uses_up_no_patience() {
    let setup = Setup::with_patience("a b c d", MEMORY_LIMIT, Duration::from_secs(30)).await;
    let writer = setup.writer(3, 3, 2).await;
    let last = writer.inner.state.lock().core.ensemble()[2].clone();
    setup.bookies.broken.lock().insert(last.clone());
    append_some(&writer).await;
    assert!(!writer.inner.state.lock().core.ensemble().contains(&last), "replaced");
    // There is no spare from now on.
    setup.client.0.layout.registration().unregister(&last).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    setup.bookies.broken.lock().extend(ids("a b c d"));
    let restart = async {
        sleep(Duration::from_secs(20)).await;
        assert_eq!(writer.progress().borrow().failure, None);
        setup.bookies.broken.lock().clear();
    };
    let (appended, ()) = tokio::join!(writer.append(&PAYLOAD), restart);
    appended.unwrap();
}

/// Invariant 9 of the core.
#[tokio::test(start_paused = true)]
async fn a_mark_that_somebody_else_spoilt_does_not_stop_a_writer() {
    let setup = Setup::new("a b c", MEMORY_LIMIT).await;
    let writer = setup.writer(3, 3, 2).await;
    let marks = setup.client.0.layout.under_replication();
    marks.mark(writer.id(), &ids("x")).await.unwrap();
    setup.store.set(&marks.path(writer.id()), "replica: {".into(), None).await.unwrap();
    setup.bookies.broken.lock().insert(first_bookie(&writer));
    append_some(&writer).await;
    let held = writer.inner.state.lock().core.held();
    assert_eq!(held, [first_bookie(&writer)]);
    assert_eq!(writer.close().await.unwrap().last_entry, EntryId::new(2));
}

/// The same while the store is gone beyond the client's patience, and comes back.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_does_not_stop_a_writer_with_an_ack_quorum() {
    let setup = Setup::new("a b c", MEMORY_LIMIT).await;
    let writer = setup.writer(3, 3, 2).await;
    setup.store.disconnect();
    setup.bookies.broken.lock().insert(first_bookie(&writer));
    append_some(&writer).await;
    sleep(Duration::from_secs(600)).await;
    append_some(&writer).await;
    let held = writer.inner.state.lock().core.held();
    assert_eq!(held, [first_bookie(&writer)]);
    setup.store.reconnect();
    sleep(Duration::from_secs(70)).await;
    let marks = setup.client.0.layout.under_replication();
    let marked = marks.replicas(writer.id()).await.unwrap();
    assert_eq!(marked, Some(vec![first_bookie(&writer).to_string()]), "made up for");
    assert_eq!(writer.close().await.unwrap().last_entry, EntryId::new(5));
}

/// With deferred sync a failure that could wait ends the writer when the next entry is pushed, and the call that pushed it
/// must not wait for bookies that no longer matter.
#[tokio::test(start_paused = true)]
async fn an_append_that_ends_the_writer_is_told_whatever_the_bookies_do() {
    let setup = Setup::new("a b c", MEMORY_LIMIT).await;
    let mut options = CreateOptions::new(Quorum::new(3, 3, 2).unwrap());
    options.deferred_sync = true;
    let writer = setup.client.create_ledger(options).await.unwrap();
    let ensemble = writer.inner.state.lock().core.ensemble().to_vec();
    setup.bookies.broken.lock().insert(ensemble[2].clone());
    writer.append(&PAYLOAD).await.unwrap();
    yield_now().await;
    setup.bookies.silent.lock().extend(ensemble);
    let told = timeout(Duration::from_secs(60), writer.append(&PAYLOAD)).await;
    let Ok(Err(AppendError::Stopped(stopped))) = told else { panic!("{told:?}") };
    assert!(matches!(stopped.why, WhyStopped::DeferredSync(_)), "{stopped}");
}

/// Invariant 5 of the writer, at its end.
#[tokio::test(start_paused = true)]
async fn what_a_silent_bookie_has_queued_is_withdrawn_when_the_ledger_is_closed() {
    let setup = Setup::new("a b c", MEMORY_LIMIT).await;
    let writer = setup.writer(3, 3, 2).await;
    let silent = first_bookie(&writer);
    setup.bookies.silent.lock().insert(silent.clone());
    append_some(&writer).await;
    assert_eq!(*setup.bookies.withdrawn.lock(), BTreeSet::new());
    writer.close().await.unwrap();
    assert_eq!(*setup.bookies.withdrawn.lock(), BTreeSet::from([silent]));
    assert_eq!(setup.client.memory_in_use().adds_bytes, 0);
    assert_eq!(setup.client.write_health().copies_missing, 3);
    assert_eq!(setup.client.write_health().ledgers_unmarked, 0);
}

/// Invariant 11 of the core: the application drops the writer as soon as it hears that it stopped.
#[tokio::test(start_paused = true)]
async fn a_writer_that_stops_within_the_grace_has_its_ledger_marked() {
    let setup = Setup::new("a b c d", MEMORY_LIMIT).await;
    let writer = setup.writer(3, 3, 2).await;
    let id = writer.id();
    let first = first_bookie(&writer);
    setup.bookies.silent.lock().insert(first.clone());
    append_some(&writer).await;
    setup.bookies.broken.lock().insert(first.clone());
    setup.bookies.silent.lock().clear();
    append_some(&writer).await;
    assert_ne!(first_bookie(&writer), first, "replaced");
    let marks = setup.client.0.layout.under_replication();
    assert_eq!(marks.replicas(id).await.unwrap(), None, "it may be back");
    setup.bookies.broken.lock().extend(ids("a b c d"));
    let stopped = loop {
        match timeout(Duration::from_secs(120), writer.append(&PAYLOAD)).await.expect("in time") {
            Ok(_) => yield_now().await,
            Err(error) => break error,
        }
    };
    let AppendError::Stopped(stopped) = stopped else { panic!("{stopped}") };
    let is_for_bookies =
        matches!(stopped.why, WhyStopped::NotEnoughBookies(_) | WhyStopped::TooManyChanges { .. });
    assert!(is_for_bookies, "{stopped}");
    drop(writer);
    let marked = async {
        loop {
            match marks.replicas(id).await.unwrap() {
                Some(marked) => break marked,
                None => sleep(Duration::from_millis(100)).await,
            }
        }
    };
    let marked = timeout(Duration::from_secs(120), marked).await.expect("it says so");
    assert!(marked.contains(&first.to_string()), "{marked:?}");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(setup.client.write_health().ledgers_unmarked, 0);
}
