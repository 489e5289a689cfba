//! Several processes and one log.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bindery_io::{Random, SeededRandom, SystemClock};
use object_store::ObjectStore;
use object_store::memory::InMemory;

use super::faulty::{Faulty, Plan, Written};
use super::*;
use crate::store::Store;

/// Everything happens after a few records.
pub(super) fn small() -> CatalogueOptions {
    CatalogueOptions {
        snapshot_rows: 40,
        snapshot_records: 5,
        log_kept: 2,
        merged_runs: 2,
        cache_bytes_max: 1 << 20,
        attempts_max: 200,
        ..CatalogueOptions::default()
    }
}

pub(super) async fn open(
    store: Arc<dyn ObjectStore>,
    mode: OpenMode,
    seed: u64,
) -> Result<Catalogue, CatalogueError> {
    let store = Store::new("s3://bucket/some/prefix".parse().unwrap(), store);
    let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SeededRandom::new(seed)));
    Catalogue::open(&store, CLUSTER, mode, small(), clock, random).await
}

/// The state that the records in the log give.
pub(super) struct Oracle {
    pub core: Core,
    pub outcomes: BTreeMap<u64, Outcome>,
}

impl Oracle {
    pub(super) fn of(written: &Written) -> Oracle {
        let mut oracle = Oracle { core: Core::new(CLUSTER), outcomes: BTreeMap::new() };
        for (number, bytes) in written.lock().unwrap().iter() {
            assert_eq!(*number, oracle.core.position().number + 1, "the log has no gap");
            let record = Record::decode(bytes, CLUSTER, *number).unwrap();
            let outcome = oracle.core.apply(&record, &Facts::nothing_below()).unwrap();
            oracle.outcomes.insert(*number, outcome);
        }
        Rows::of(&oracle.core).check();
        oracle
    }

    /// Invariant 1: the catalogue has the same rows, by every way of asking.
    pub(super) async fn compare(&self, catalogue: &mut Catalogue) {
        assert_eq!(catalogue.position(), self.core.position());
        let rows = Rows::of(&self.core);
        let mut found = Rows { totals: catalogue.totals(), ..Rows::default() };
        let mut after = None;
        loop {
            let page = catalogue.ledgers_after(after, 2).await.unwrap();
            let Some((last, _)) = page.last() else { break };
            after = Some(*last);
            found.ledgers.extend(page);
        }
        let mut after = None;
        loop {
            let page = catalogue.objects_after(after, 3).await.unwrap();
            let Some((last, _)) = page.last() else { break };
            after = Some(*last);
            found.objects.extend(page);
        }
        for ledger in found.ledgers.keys() {
            assert_eq!(catalogue.ledger(*ledger).await.unwrap(), rows.ledgers.get(ledger).copied());
            let mut from = EntryId::FIRST;
            loop {
                let page = catalogue.extents(*ledger, from, 2).await.unwrap();
                let Some((_, row)) = page.last() else { break };
                from = entry(row.last.get() + 1);
                found.extents.extend(page.into_iter().map(|(first, row)| ((*ledger, first), row)));
            }
        }
        assert_eq!(found, rows);
        // From the middle of an extent, the extent.
        for ((ledger, first), row) in &rows.extents {
            let middle = entry(first.get().midpoint(row.last.get()));
            let found = catalogue.extents(*ledger, middle, 1).await.unwrap();
            assert_eq!(found, [(*first, *row)]);
        }
        let log_ms = self.core.position().log_ms;
        let garbage: Vec<_> =
            rows.objects.iter().filter_map(|(id, row)| Some((*id, row.garbage_since_ms(log_ms)?))).collect();
        let mut garbage_found = catalogue.garbage(u64::MAX, 1000).await.unwrap();
        garbage_found.sort_unstable();
        assert_eq!(garbage_found, garbage);
    }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(test)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Invariants 1 and 6: whoever commits, refreshes, takes snapshots, merges or cleans, and in what order, the state is
    /// that of the log.
    #[test]
    fn processes_agree(records in changes(), steps in prop::collection::vec(0_u8..6, 40)) {
        run(async {
            let written = Written::default();
            let store: Arc<dyn ObjectStore> = Faulty::new(Arc::new(InMemory::new()), written.clone(), Plan::Calm);
            let mut catalogues = Vec::new();
            for seed in 0..3 {
                catalogues.push(open(store.clone(), OpenMode::Create, seed).await.unwrap());
            }
            let mut outcomes = BTreeMap::new();
            for ((writer, _, changes), step) in records.into_iter().zip(steps) {
                let catalogue = &mut catalogues[writer as usize];
                let outcome = catalogue.commit(changes).await;
                match outcome {
                    Ok(outcome) => drop(outcomes.insert(outcome.position.number, outcome)),
                    Err(CatalogueError::Superseded { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                match step {
                    0 | 1 => catalogue.maintain().await.unwrap(),
                    2 => drop(catalogue.clean().await.unwrap()),
                    3 => if let Some(job) = catalogue.snapshot() {
                        let done = job.run().await.unwrap();
                        catalogue.install(done).await.unwrap();
                    },
                    4 => catalogues[(writer as usize + 1) % 3].refresh().await.unwrap(),
                    _ => {}
                }
            }
            let oracle = Oracle::of(&written);
            for (number, outcome) in outcomes {
                assert_eq!(outcome, oracle.outcomes[&number]);
            }
            catalogues.push(open(store, OpenMode::Read, 9).await.unwrap());
            for catalogue in &mut catalogues {
                catalogue.refresh().await.unwrap();
                oracle.compare(catalogue).await;
            }
        });
    }
}

/// A tierer as it works: reads where its ledgers stand, reserves, commits, looks what became of it, and does its upkeep.
async fn tier(store: Arc<dyn ObjectStore>, seed: u64, rounds: u64) -> Vec<Outcome> {
    let random = SeededRandom::new(seed);
    let mut outcomes = Vec::new();
    let mut catalogue = None;
    let mut number = seed * 10_000;
    let (mut round, mut openings) = (0, 0);
    while round < rounds {
        let Some(open_one) = &mut catalogue else {
            // A process that is killed now and then.
            openings += 1;
            assert!(openings < 1000, "the catalogue cannot be opened any more");
            catalogue = open(store.clone(), OpenMode::Create, random.next_u64()).await.ok();
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        round += 1;
        number += 1;
        let of = random.below(4) as i64;
        let step = async {
            let next = open_one.next(ledger(of)).await?.get();
            let last = next + random.below(10) as i64;
            let reserved = open_one.commit(vec![reserve(&[number])]).await?;
            let mut wanted = vec![commit(number, &[(of, next, last)])];
            if random.chance(0.05) {
                wanted
                    .push(Change::RemoveLedger { ledger: ledger(random.below(4) as i64), created_ms: None });
            }
            let committed = open_one.commit(wanted).await?;
            open_one.maintain().await?;
            Ok::<_, CatalogueError>([reserved, committed])
        };
        match step.await {
            Ok(both) => outcomes.extend(both),
            Err(
                CatalogueError::Store(_)
                | CatalogueError::Unknown { .. }
                | CatalogueError::Superseded { .. }
                | CatalogueError::Contended { .. },
            ) => {
                if random.chance(0.3) {
                    catalogue = None;
                }
            }
            Err(error) => panic!("nothing is damaged: {error}"),
        }
    }
    outcomes
}

/// T3, T6, T11, IT1, IT7: three tierers on the same ledgers, with errors, lost and late answers, requests that hang, and kills. No
/// gap, no overlap, and each was told the truth.
#[test]
fn tierers_on_a_bad_network_leave_whole_ledgers() {
    for seed in 0..12 {
        run(async {
            let written = Written::default();
            let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
            let tierers = (0..3).map(|tierer| {
                let random = SeededRandom::new(seed * 3 + tierer);
                let plan = Plan::Bad(random, if seed % 3 == 0 { 0 } else { 8 });
                let store: Arc<dyn ObjectStore> = Faulty::new(inner.clone(), written.clone(), plan);
                tier(store, seed * 3 + tierer + 1, 40)
            });
            let outcomes = futures_util::future::join_all(tierers).await;
            // Until everything that is late has arrived.
            tokio::time::sleep(Duration::from_secs(60)).await;
            let oracle = Oracle::of(&written);
            let told: usize = outcomes.iter().map(Vec::len).sum();
            assert!(told > 50, "of 240 commits, {told} were heard of");
            for outcome in outcomes.iter().flatten() {
                assert_eq!(*outcome, oracle.outcomes[&outcome.position.number], "seed {seed}");
            }
            let calm = Faulty::new(inner, Written::default(), Plan::Calm);
            let mut catalogue = open(calm, OpenMode::Write, 99).await.unwrap();
            oracle.compare(&mut catalogue).await;
            assert!(catalogue.totals().extents > 10 || catalogue.totals().unreferenced > 0);
        });
    }
}

/// A page of which the tail has removed every row is not the last one.
#[test]
fn pages_go_on_behind_what_was_removed() {
    run(async {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let mut catalogue = open(store, OpenMode::Create, 1).await.unwrap();
        catalogue.commit(vec![reserve(&[1, 2, 3])]).await.unwrap();
        for (number, of) in [(1, 0), (2, 1), (3, 2)] {
            catalogue.commit(vec![commit(number, &[(of, 0, 9)])]).await.unwrap();
        }
        let done = catalogue.snapshot().unwrap().run().await.unwrap();
        catalogue.install(done).await.unwrap();
        for number in [0, 1] {
            catalogue
                .commit(vec![Change::RemoveLedger { ledger: ledger(number), created_ms: None }])
                .await
                .unwrap();
            catalogue.commit(vec![Change::ForgetObject(id(number as u64 + 1))]).await.unwrap();
        }
        let ledgers = catalogue.ledgers_after(None, 2).await.unwrap();
        assert_eq!(ledgers.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [ledger(2)]);
        assert!(catalogue.ledgers_after(Some(ledger(2)), 2).await.unwrap().is_empty());
        let objects = catalogue.objects_after(None, 2).await.unwrap();
        assert_eq!(objects.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id(3)]);
    });
}

/// Several creators of the first catalogue.
#[test]
fn the_first_tierers_make_one_catalogue() {
    run(async {
        let written = Written::default();
        let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let opened = (0..8).map(|seed| {
            let plan = Plan::Bad(SeededRandom::new(seed), 0);
            open(Faulty::new(inner.clone(), written.clone(), plan), OpenMode::Create, seed)
        });
        for catalogue in futures_util::future::join_all(opened).await {
            assert_eq!(catalogue.unwrap().position(), Position::default());
        }
    });
}

/// Requests of a round, and of an idle look.
#[test]
fn a_commit_is_one_put_and_two_gets_and_a_listing() {
    run(async {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let mut catalogue = open(store, OpenMode::Create, 1).await.unwrap();
        catalogue.commit(vec![reserve(&[1])]).await.unwrap();
        let before = catalogue.requests();
        catalogue.commit(vec![commit(1, &[(1, 0, 9)]), reserve(&[2])]).await.unwrap();
        let after = catalogue.requests();
        // The record before it is still there, and none behind; and no newer manifest.
        assert_eq!(
            (after.puts - before.puts, after.gets - before.gets, after.lists - before.lists),
            (1, 2, 1)
        );
        catalogue.refresh().await.unwrap();
        let idle = catalogue.requests();
        assert_eq!((idle.gets - after.gets, idle.lists, idle.puts), (3, after.lists, after.puts));
    });
}

/// Timing of two commits at once: one of them sees the other's record, applies it, and comes after it.
#[test]
fn the_loser_of_a_race_is_judged_by_the_state_it_arrives_in() {
    run(async {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let mut one = open(store.clone(), OpenMode::Create, 1).await.unwrap();
        let mut two = open(store, OpenMode::Create, 2).await.unwrap();
        one.commit(vec![reserve(&[1, 2])]).await.unwrap();
        let first = one.commit(vec![commit(1, &[(1, 0, 9)])]).await.unwrap();
        // It still believes that the ledger is empty.
        assert_eq!(two.position().number, 0);
        let second = two.commit(vec![commit(2, &[(1, 0, 4), (2, 0, 3)])]).await.unwrap();
        assert_eq!((first.position.number, second.position.number), (2, 3));
        let ChangeOutcome::Committed(Ok(extents)) = &second.changes[0] else { panic!("{second:?}") };
        assert_eq!((extents[0].verdict, extents[0].next), (Verdict::Misaligned, entry(10)));
        assert_eq!((extents[1].verdict, extents[1].next), (Verdict::Accepted, entry(4)));
    });
}

/// Shared by the tests that need a place for records.
pub(super) fn records(written: &Written) -> usize {
    let written: &Mutex<_> = written;
    written.lock().unwrap().len()
}
