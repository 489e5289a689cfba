//! Metadata that takes its time: adds to trimmed ledgers, whose ids may have been used again, while what is known here changes under the read;
//! and requests of tierers.

use super::*;
use bindery_metadata::StoreLayer;
use bindery_metadata::memory::MemoryStore;
use bindery_metadata::store::{MetadataStore, StoreFuture};
use bindery_server::metadata_check::MetadataChecker;
use tokio::sync::Semaphore;

/// A store whose syncs wait until the test lets them go on, one by one.
struct Gated {
    inner: MemoryStore,
    turns: Arc<Semaphore>,
    /// Syncs that began.
    begun: Arc<AtomicUsize>,
}

impl StoreLayer for Gated {
    fn beneath(&self) -> &dyn MetadataStore {
        &self.inner
    }

    fn sync(&self, path: &str) -> StoreFuture<'_, ()> {
        let path = path.to_owned();
        self.begun.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            self.turns.acquire().await.unwrap().forget();
            self.inner.sync(&path).await
        })
    }
}

/// Entries 0 to 29 are in object storage, and trimmed up to entry 4. The writer of another ledger of that id, which metadata has as open,
/// adds entry 60. With each read of metadata but the last the trim moves on. Returns the answer, and whether the former ledger is left.
async fn add_of_another(reads: i64) -> (ErrorCode, bool) {
    let world = World::new(patient(), Canaries::none()).await;
    world.write(7).await;
    let object = world.upload(1, 7, (0..ENTRIES).map(|id| stored(7, id))).await;
    world.reconcile(7, object, 29).await;
    let (engine, parked) = (&world.bookie.shared.engine, &world.bookie.shared.parked_adds);
    let trim = |below: i64| {
        let seen = engine.tiered(whole::id(7)).unwrap();
        engine.trim(whole::id(7), &seen, entry(below)).unwrap();
    };
    trim(4);

    let (cluster, turns) = (whole::cluster().await, Arc::new(Semaphore::new(100)));
    let store = Gated { inner: cluster.open(), turns: turns.clone(), begun: Arc::default() };
    let layout = Layout::open(Arc::new(store), "/ledgers", None).await.unwrap();
    turns.forget_permits(100);
    let open = whole::metadata("bookie-0", LedgerState::Open);
    whole::open(&cluster).await.ledgers().create(whole::id(7), &open).await.unwrap();
    let checker = MetadataChecker {
        parked: parked.clone(),
        engine: engine.clone(),
        io: world.bookie.shared.io.clone(),
        admission_deadline: PATIENCE,
        layout,
        bookie_id: bookie_id(),
    };
    let stop = Arc::new(Latch::default());
    let task = tokio::spawn(checker.run(stop.clone()));

    let mut client = Client::new(&world.bookie).await;
    client.send(&add_frame(7, 60, SIZE, v2::Flags::NONE, KEY)).await;
    for read in 1..=reads {
        world.until("read", || parked.reads.get() == read as u64).await;
        if read < reads || reads == 3 {
            trim(4 + 5 * read);
        }
        turns.add_permits(1);
        if reads == 3 && read == 2 {
            // It is not read a third time.
            break;
        }
    }
    let answer = tokio::time::timeout(PATIENCE, client.next_v2()).await.unwrap();
    let OwnedV2::Add(code, 7, 60) = answer else { panic!("an answer to the add") };
    world.until("placed", || parked.parked() == 0).await;
    let is_left = engine.tiered(whole::id(7)).is_some();
    stop.set();
    task.await.unwrap();
    drop(client);
    world.stop().await;
    (code, is_left)
}

/// Metadata spoke of what was here before: it is asked once more, and not for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_add_is_not_placed_on_a_ledger_that_changed_while_metadata_was_read() {
    assert_eq!(add_of_another(1).await, (ErrorCode::Ok, false));
    assert_eq!(add_of_another(2).await, (ErrorCode::Ok, false), "asked again");
    let (code, is_left) = add_of_another(3).await;
    assert!(code != ErrorCode::Ok && is_left, "{code:?}");
}

/// One deadline for all that a request asks of metadata: it does not hold its place for as many of them as it has ledgers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_waits_once_for_metadata_that_does_not_answer() {
    const LEDGERS: i64 = 40;
    let (cluster, turns, begun) = (whole::cluster().await, Arc::new(Semaphore::new(100)), Arc::default());
    let store = Gated { inner: cluster.open(), turns: turns.clone(), begun: Arc::clone(&begun) };
    let layout = Layout::open(Arc::new(store), "/ledgers", None).await.unwrap();
    let world = World::with(patient(), Canaries::none(), layout).await;
    let mut client = Client::new(&world.bookie).await;
    for ledger in 1..=LEDGERS {
        client.send(&add_frame(ledger, 0, 10, v2::Flags::NONE, KEY)).await;
        assert_eq!(client.next_v2().await.code(), ErrorCode::Ok);
    }
    let object = world.upload(1, 1, (0..2).map(|id| stored(1, id))).await;
    // Above what is here: metadata has to say how far each goes.
    let extents = vec![TierExtent { first: entry(0), last: entry(9), object }];
    let update = |ledger| Reconciliation {
        ledger: whole::id(ledger),
        last: Some(entry(9)),
        extents: extents.clone(),
        created_ms: None,
    };
    let request =
        Reconcile { cluster: CLUSTER, ledgers: (1..=LEDGERS).map(update).collect(), is_restore: false };
    let message = world.proven(request).await;
    turns.forget_permits(100);
    begun.store(0, Ordering::SeqCst);
    let mut client = Client::new(&world.bookie).await;
    let answer = tokio::time::timeout(PATIENCE, client.v3(3, Operation::ReconcileLedgers(message))).await;
    let results = answer.unwrap().reconcile_ledgers_response.unwrap().results;
    let codes = results.iter().map(|result| Reconciled::from_message(result).unwrap().code);
    assert_eq!(codes.collect::<Vec<_>>(), vec![ErrorCode::Io; LEDGERS as usize]);
    let begun = begun.load(Ordering::SeqCst);
    assert!((1..LEDGERS as usize).contains(&begun), "{begun}: those that had no turn in time asked nothing");
    turns.add_permits(1_000);
    world.stop().await;
}
