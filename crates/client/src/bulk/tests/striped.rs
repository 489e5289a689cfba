//! Ledgers whose write quorum is below their ensemble: rows of each bookie's own entries.

use super::*;

/// The bookies' requests since the last call.
fn take_requests(setup: &Setup) -> BTreeMap<String, usize> {
    let requests = std::mem::take(&mut *setup.bookies.requests.lock());
    requests.into_iter().map(|(bookie, count)| (bookie.to_string(), count)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_striped_ledger_is_read_in_rows_of_each_bookies_entries() {
    let setup = Setup::new(Shape::of((3, 2), vec![1000; 1200])).await;
    let view = setup.view().await;
    assert_all(&setup, &view).await;
    let requests = take_requests(&setup);
    // A window of 64 KiB has 53 entries.
    let least = 1200 / 53 * 3;
    let all: usize = requests.values().sum();
    assert!((least..least + 12).contains(&all), "{requests:?}");
    // Position 0 of the ensemble has two thirds of the entries, which bookies b and c have beside a.
    let mut stream = view.read_position(at(0), at(1199), 0);
    let mut ids = Vec::new();
    while let Some(batch) = stream.next().await {
        ids.extend(batch.unwrap().entries().iter().map(|entry| entry.id.get()));
    }
    assert_eq!(ids, (0..1200).filter(|id| id % 3 != 1).collect::<Vec<_>>());
    let all: usize = take_requests(&setup).values().sum();
    let least = 800 / 53 * 2;
    assert!((least..least + 8).contains(&all), "a window is filled with what is wanted: {all}");
    // Where nobody knows strides, each entry is a request, as ever.
    ["a", "b", "c"].into_iter().for_each(|bookie| setup.is_ill(bookie, Ill::KnowsNoStrides));
    assert_all(&setup, &view).await;
    assert_eq!(take_requests(&setup).values().sum::<usize>(), 1200);
}

#[tokio::test(start_paused = true)]
async fn entries_that_grow_suddenly_stay_within_the_room() {
    // Window invariant 4: planned by the size of those before, all groups of a window would come at once.
    let sizes = (0..2000).map(|entry| if entry < 1000 { 50 } else { 5_000 });
    let setup = Setup::new(Shape::of((5, 3), sizes)).await;
    let limit = 128 << 10;
    let options = BulkOptions { memory_limit: limit, range_size_bytes: 64 << 10, ..BulkOptions::default() };
    let view = setup.client.bulk(options).open(ledger()).await.unwrap();
    let mut stream = view.read(at(0), at(1999));
    let mut count = 0;
    while let Some(batch) = stream.next().await {
        count += batch.unwrap().entries().len();
    }
    let most = setup.bookies.held.1.load(Ordering::Relaxed) as u64;
    assert!(count == 2000 && most <= limit, "{count} entries, {most} bytes at a time");
}
