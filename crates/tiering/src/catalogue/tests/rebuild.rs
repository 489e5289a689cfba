//! A catalogue from footers.

use std::sync::Arc;

use bindery_io::{SeededRandom, SystemClock};
use bindery_types::codec::crc32c;
use bytes::Bytes;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::shared::{open, small};
use super::*;
use crate::object::{Compression, ObjectBuilder};
use crate::store::Store;

/// Uploads a real object; what is to be committed for it.
pub(crate) async fn upload(
    store: &Arc<dyn ObjectStore>,
    number: u64,
    extents: &[(i64, i64, i64)],
) -> NewObject {
    let mut builder = ObjectBuilder::new(id(number), CLUSTER, 5, Compression::None);
    for (of, first, last) in extents {
        builder.begin(ledger(*of), entry(*first), Bytes::from_static(b"metadata")).unwrap();
        for at in *first..=*last {
            let fields = [*of, at, at - 1, 4].map(i64::to_be_bytes).concat();
            let body = Bytes::from([&fields[..], b"data"].concat());
            let crc = crc32c(&[&body]);
            builder.append(body, crc).unwrap();
        }
    }
    let (chunks, summary) = builder.finish();
    let put = store.put(&key(number), Bytes::from(chunks.concat()).into()).await.unwrap();
    let object = ObjectRef {
        id: id(number),
        length_bytes: summary.size_bytes,
        footer_offset: summary.trailer.footer_offset,
        footer_crc: summary.trailer.footer_crc32c,
        etag_crc: put.e_tag.map_or(0, |tag| crc32c(&[tag.as_bytes()])),
    };
    let extents = summary.footer.extents.iter().map(|extent| NewExtent {
        ledger: extent.ledger,
        first: extent.first,
        last: extent.last,
        bytes: extent.body_bytes,
        created_ms: None,
    });
    NewObject { object, extents: extents.collect() }
}

pub(crate) fn key(number: u64) -> Path {
    Path::from(format!("some/prefix/{}", object_key(CLUSTER, id(number))))
}

async fn rebuilt(store: &Arc<dyn ObjectStore>) -> Result<Rebuilt, CatalogueError> {
    let store = Store::new("s3://bucket/some/prefix".parse().unwrap(), store.clone());
    let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SeededRandom::new(8)));
    rebuild(&store, CLUSTER, &small(), clock, random, |_| None, |_| ()).await
}

async fn all_extents(catalogue: &mut Catalogue) -> Vec<(LedgerId, EntryId, ExtentRow)> {
    let mut all = Vec::new();
    for (ledger, _) in catalogue.ledgers_after(None, 100).await.unwrap() {
        let rows = catalogue.extents(ledger, EntryId::FIRST, 100).await.unwrap();
        all.extend(rows.into_iter().map(|(first, row)| (ledger, first, row)));
    }
    all
}

/// A catalogue that was damaged comes back as it was, goes on where its log ended, and a commit that is repeated is known.
#[tokio::test]
async fn a_damaged_catalogue_comes_back() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut before = open(store.clone(), OpenMode::Create, 1).await.unwrap();
    before.commit(vec![reserve(&[1, 2, 3, 4])]).await.unwrap();
    let first = upload(&store, 1, &[(1, 0, 9), (2, 0, 4)]).await;
    before.commit(vec![Change::Commit(first.clone())]).await.unwrap();
    // The loser of a race, and an object that another one replaced.
    let loser = upload(&store, 2, &[(1, 0, 12)]).await;
    before.commit(vec![Change::Commit(loser)]).await.unwrap();
    let second = upload(&store, 3, &[(1, 10, 19), (2, 5, 9)]).await;
    before.commit(vec![Change::Commit(second)]).await.unwrap();
    let done = before.snapshot().unwrap().run().await.unwrap();
    before.install(done).await.unwrap();
    let rewritten = upload(&store, 4, &[(1, 0, 19)]).await;
    before.commit(vec![Change::Replace { object: rewritten, sources: vec![id(1), id(3)] }]).await.unwrap();
    let expected = all_extents(&mut before).await;
    assert_eq!(expected.len(), 3);
    // The run is altered.
    let runs = Path::from(format!("some/prefix/{CLUSTER}/catalogue/snapshots/runs"));
    let run = store.list_with_delimiter(Some(&runs)).await.unwrap().objects.remove(0).location;
    let mut bytes = store.get(&run).await.unwrap().bytes().await.unwrap().to_vec();
    bytes[10] ^= 1;
    store.put(&run, bytes.into()).await.unwrap();
    store.put(&key(9), Bytes::from_static(b"half an object").into()).await.unwrap();

    let report = rebuilt(&store).await.unwrap();
    assert_eq!((report.gap_count, report.unreadable_count), (0, 1));
    assert!(report.unreadable[0].0.ends_with(&id(9).to_string()), "{report:?}");
    assert!(report.set_aside.is_empty());
    let mut after = open(store.clone(), OpenMode::Write, 2).await.unwrap();
    assert_eq!(all_extents(&mut after).await, expected);
    // The scan must not take it for an object of nobody.
    let kept = after.object(id(9)).await.unwrap();
    assert!(matches!(kept, Some(ObjectRow::Reserved { expires_ms: u64::MAX, .. })), "{kept:?}");
    let garbage = after.garbage(u64::MAX, 100).await.unwrap();
    assert!(garbage.iter().all(|(object, _)| *object != id(9)), "{garbage:?}");
    assert_eq!(after.position().number, before.position().number);
    let (was, is) = (before.totals(), after.totals());
    assert_eq!((was.ledgers, was.extents, was.bytes), (is.ledgers, is.extents, is.bytes));
    assert_eq!((was.objects, was.unreferenced), (is.objects, is.unreferenced));
    // The process that had it open takes the new one over, too, and the log goes on.
    let outcome = after.commit(vec![Change::Commit(first)]).await.unwrap();
    assert!(matches!(&outcome.changes[0], ChangeOutcome::Committed(Ok(_))), "{outcome:?}");
    assert_eq!(outcome.position.number, before.position().number + 1);
    before.refresh().await.unwrap();
    assert_eq!(all_extents(&mut before).await, expected);
}

/// Nothing that is the only copy of an entry becomes garbage: neither what lies behind a gap, nor an object that fits nowhere.
#[tokio::test]
async fn nothing_is_thrown_away_for_a_gap() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    upload(&store, 1, &[(1, 0, 9)]).await;
    // Two ways from 10 on; one gets further.
    upload(&store, 2, &[(1, 10, 29)]).await;
    upload(&store, 3, &[(1, 10, 14)]).await;
    upload(&store, 4, &[(1, 15, 39)]).await;
    // It begins inside, and has entries of its own.
    upload(&store, 5, &[(1, 38, 44)]).await;
    upload(&store, 6, &[(1, 60, 69), (2, 5, 6)]).await;
    let report = rebuilt(&store).await.unwrap();
    let gap = |of, first, last| Gap { ledger: ledger(of), first: entry(first), last: entry(last) };
    assert_eq!(report.gaps, [gap(1, 40, 59), gap(2, 0, 4)]);
    assert_eq!(report.set_aside, [id(5)]);
    let mut catalogue = open(store, OpenMode::Write, 2).await.unwrap();
    let ranges: Vec<_> = all_extents(&mut catalogue)
        .await
        .iter()
        .map(|(of, first, row)| (of.get(), first.get(), row.last.get(), row.object.id))
        .collect();
    let expected =
        [(1, 0, 9, id(1)), (1, 10, 14, id(3)), (1, 15, 39, id(4)), (1, 60, 69, id(6)), (2, 5, 6, id(6))];
    assert_eq!(ranges, expected);
    // Nothing was taken of this one.
    let garbage = catalogue.garbage(u64::MAX, 100).await.unwrap();
    assert_eq!(garbage.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id(2)]);
    assert_eq!(catalogue.next(ledger(1)).await.unwrap(), entry(70));
    assert_eq!(catalogue.totals(), report.totals);
}

/// Extents that reach furthest are taken also from objects with earlier ids than others that bookies may know. Those are marked, so that
/// they are rewritten: bookies would refuse them for ever.
#[tokio::test]
async fn objects_that_bookies_would_refuse_are_marked() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut before = open(store.clone(), OpenMode::Create, 1).await.unwrap();
    before.commit(vec![reserve(&[1, 2, 3, 4, 5, 6])]).await.unwrap();
    // The later one was faster, and bookies were told of it.
    let slow = upload(&store, 1, &[(1, 0, 12), (2, 0, 4)]).await;
    let fast = upload(&store, 2, &[(1, 0, 9)]).await;
    before.commit(vec![Change::Commit(fast)]).await.unwrap();
    before.commit(vec![Change::Commit(slow)]).await.unwrap();
    // Rewritten into a later one, which lost a race for another ledger against an object with a later id that reaches less far.
    upload(&store, 3, &[(3, 0, 4)]).await;
    upload(&store, 4, &[(3, 5, 9)]).await;
    upload(&store, 5, &[(3, 0, 9), (4, 0, 9)]).await;
    upload(&store, 6, &[(4, 0, 4)]).await;
    drop(before);
    rebuilt(&store).await.unwrap();
    let mut after = open(store.clone(), OpenMode::Write, 2).await.unwrap();
    let ranges: Vec<_> = all_extents(&mut after)
        .await
        .iter()
        .map(|(of, first, row)| (of.get(), first.get(), row.last.get(), row.object.id))
        .collect();
    assert_eq!(ranges, [(1, 0, 12, id(1)), (2, 0, 4, id(1)), (3, 0, 9, id(5)), (4, 0, 9, id(5))]);
    let mut marked = Vec::new();
    for number in 1..=6 {
        if let Some(ObjectRow::Stored(stored)) = after.object(id(number)).await.unwrap() {
            assert_eq!(stored.unreferenced_ms.is_some(), [2, 3, 4, 6].contains(&number), "{number}");
            marked.extend((stored.replaced.is_some() && stored.live_extents > 0).then_some(number));
        }
    }
    assert_eq!(marked, [1, 5], "2 and 6 are later, and overlap");
}

/// Bookies may have been told of an object that cannot be read any more, for entries that an earlier one has, too.
#[tokio::test]
async fn objects_before_one_that_cannot_be_read_are_marked() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut before = open(store.clone(), OpenMode::Create, 1).await.unwrap();
    before.commit(vec![reserve(&[1, 2, 3, 4, 5])]).await.unwrap();
    upload(&store, 1, &[(1, 0, 9)]).await;
    upload(&store, 2, &[(2, 0, 9)]).await;
    for number in [3, 4] {
        store.put(&key(number), Bytes::from_static(b"half an object").into()).await.unwrap();
    }
    upload(&store, 5, &[(3, 0, 9)]).await;
    // No object of anybody.
    let other = Path::from(format!("{}x", key(9)));
    store.put(&other, Bytes::from_static(b"a note").into()).await.unwrap();
    drop(before);
    assert_eq!(rebuilt(&store).await.unwrap().unreadable_count, 3);
    let mut after = open(store.clone(), OpenMode::Write, 2).await.unwrap();
    let mut marked = Vec::new();
    for number in 1..=5 {
        if let Some(ObjectRow::Stored(stored)) = after.object(id(number)).await.unwrap() {
            marked.push((number, stored.is_outranked(), stored.live_extents));
        }
    }
    assert_eq!(marked, [(1, true, 1), (2, true, 1), (5, false, 1)]);
}

/// An object lost a ledger in a race to a later commit with an earlier id, which went, with the rest of this one, into an object that cannot be
/// read, and is gone. This one waited for a bookie, looks whole, and overlaps nothing; bookies know the other one for both ledgers.
#[tokio::test]
async fn an_object_that_looks_whole_is_marked_also_when_the_unreadable_one_is_much_later() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut before = open(store.clone(), OpenMode::Create, 1).await.unwrap();
    // Ids begin with the time of their reservation, in milliseconds.
    let (winner, loser, later) = (1, 2, 30 * 24 * 3600 * 1000);
    before.commit(vec![reserve(&[winner, loser, later])]).await.unwrap();
    let of_winner = upload(&store, winner, &[(1, 0, 9)]).await;
    before.commit(vec![Change::Commit(of_winner)]).await.unwrap();
    let of_loser = upload(&store, loser, &[(1, 0, 9), (2, 0, 9), (3, 0, 9)]).await;
    before.commit(vec![Change::Commit(of_loser)]).await.unwrap();
    before.commit(vec![Change::RemoveLedger { ledger: ledger(3), created_ms: None }]).await.unwrap();
    let both = upload(&store, later, &[(1, 0, 9), (2, 0, 9)]).await;
    before
        .commit(vec![Change::Replace { object: both, sources: vec![id(winner), id(loser)] }])
        .await
        .unwrap();
    store.delete(&key(winner)).await.unwrap();
    store.put(&key(later), Bytes::from_static(b"half an object").into()).await.unwrap();
    drop(before);
    assert_eq!(rebuilt(&store).await.unwrap().unreadable_count, 1);
    let after = open(store.clone(), OpenMode::Write, 2).await.unwrap().object(id(loser)).await.unwrap();
    let Some(ObjectRow::Stored(stored)) = after else { panic!("{after:?}") };
    assert!(stored.is_outranked() && stored.live_extents == stored.extents, "{stored:?}");
}

/// However many objects there are, beyond what one listing gives of other keys.
#[tokio::test]
async fn all_objects_are_read() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let count = super::super::bucket::LISTED_MAX as u64 + 30;
    for number in 0..count {
        upload(&store, number, &[(number as i64, 0, 1)]).await;
    }
    let report = rebuilt(&store).await.unwrap();
    assert_eq!((report.totals.objects, report.totals.ledgers), (count, count));
    let mut catalogue = open(store, OpenMode::Read, 2).await.unwrap();
    assert_eq!(catalogue.next(ledger(count as i64 - 1)).await.unwrap(), entry(2));
}
