//! A catalogue that was lost or damaged, rebuilt from the footers of the objects.
//!
//! The footers say which extents there are, and not which were committed: of two objects with the same entries, one may have lost
//! a race, or have been rewritten. For each ledger the extents are taken that reach furthest without a gap, from the newest objects
//! where there is a choice; entries are the same in all of them. Ledgers that were deleted while their objects were still there
//! come back, and are removed again by the comparison with the metadata store.
//!
//! Of two extents with the same entry a bookie takes the one in the object with the later id, and refuses the other: as
//! long as a catalogue lives, the object that takes over a range has a later id than the objects that had it. Footers
//! do not tell that: the extent that reaches furthest may be in an object with an earlier id than one that bookies were
//! told of. Such an object gets the mark of one whose extents others took over while extents of it are referred to, by
//! which upkeep rewrites all of it: bookies take the object that comes of it, which has a later id.
//!
//! The ledgers of an object whose footer cannot be read are not known. All objects with earlier ids from which something is taken get the
//! mark, however much earlier, and although that may be the whole tier: any of them may have gone into it when it was rewritten. What was live of
//! an object does not show in footers, so neither does whether it was rewritten. An object that lost an extent in a race and became sparse by that
//! looks whole when the winner went into the same object, and is gone. Of an object that is gone nothing is known, not even that there was one.
//!
//! Nothing is deleted. An object of which nothing is taken becomes unreferenced only if others have all its entries.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bindery_io::{Clock, Random};
use bindery_types::codec::crc32c;
use bindery_types::tier::ObjectRef;
use bindery_types::{EntryId, LedgerId};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::ObjectMeta;

use super::bucket::{Bucket, Created, damaged, number_of};
use super::genuine::{ID_AHEAD_MS_MAX, make_marker};
use super::manifest::{Manifest, RunName, RunRef, check_marker};
use super::row::Key;
use super::run::RunBuilder;
use super::shell::{compare_clocks, manifest};
use super::{
    CatalogueError, CatalogueOptions, ExtentRow, LedgerRow, NewExtent, NewObject, ObjectRow, Position,
    REQUESTS_AT_ONCE, Record, Replaced, StoredObject, Totals, WriterId,
};
use crate::object::{Footer, TRAILER_SIZE_BYTES, Trailer};
use crate::store::{Store, StoreError};
use crate::{ClusterId, ObjectId};

/// Read from the end of an object at first: trailer and the footer of some 500 extents.
const TAIL_BYTES: u64 = 64 << 10;
/// Problems that are listed one by one.
const LISTED_MAX: usize = 1000;

/// Entries that no object has, between others that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The ledger.
    pub ledger: LedgerId,
    /// The first entry that is missing.
    pub first: EntryId,
    /// The last entry that is missing.
    pub last: EntryId,
}

/// The contents of a rebuilt catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rebuilt {
    /// Sums.
    pub totals: Totals,
    /// Gaps, the first thousand of them. Extents behind a gap are kept.
    pub gaps: Vec<Gap>,
    /// How many gaps there are.
    pub gap_count: u64,
    /// Objects that could not be read, and why, the first thousand of them. They are left alone.
    pub unreadable: Vec<(String, String)>,
    /// How many objects could not be read.
    pub unreadable_count: u64,
    /// Objects of which nothing was taken although they have entries that no other has. They are kept.
    pub set_aside: Vec<ObjectId>,
}

struct Found {
    stored: StoredObject,
    is_kept: bool,
    /// Bookies may have been told of an object with a later id for some of the entries that are taken from this one.
    is_outranked: bool,
}

/// 56 bytes for each extent of the tier are held while a catalogue is rebuilt.
#[derive(Debug, Clone, Copy)]
struct FoundExtent {
    ledger: LedgerId,
    first: EntryId,
    last: EntryId,
    bytes: u64,
    object: u32,
    created_ms: Option<i64>,
}

/// How often a rebuild begins again because tierers were still at work.
const ATTEMPTS_MAX: u32 = 10;
/// Before it does.
const PAUSE: Duration = Duration::from_secs(2);

/// The creation time inside a ledger's metadata as a footer has it.
pub type CreationOf = fn(&[u8]) -> Option<i64>;

/// Rebuilds the catalogue of `cluster`, as a snapshot that covers the whole log. **Pause all tierers first**: they finish their
/// rounds. When the log went on, or objects came or went, while footers were read, all of it is done again, and it fails when that does
/// not end. Two requests for each object at most, however many objects there are. `seen` is called with the number of objects
/// read so far, `created_ms` reads metadata, whose encoding is not known here.
///
/// Cut off, it has changed nothing.
pub async fn rebuild(
    store: &Store,
    cluster: ClusterId,
    options: &CatalogueOptions,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    created_ms: CreationOf,
    mut seen: impl FnMut(u64),
) -> Result<Rebuilt, CatalogueError> {
    let bucket = Bucket::new(store.clone(), cluster, options.request_timeout);
    for attempt in 0..ATTEMPTS_MAX {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let before = what_is_left(&bucket).await?;
        let log_end = before.log_end;
        let Some(rebuilt) =
            rebuild_once(&bucket, before, options, &*clock, &*random, created_ms, &mut seen).await?
        else {
            continue;
        };
        // A tierer that committed just before the manifest was there has not read it, and goes on from a state that others cannot read.
        if last_record(&bucket).await?.is_none_or(|last| last <= log_end) {
            return Ok(rebuilt);
        }
    }
    Err(CatalogueError::Busy { attempts: ATTEMPTS_MAX })
}

/// `None`, and nothing is changed: the log went on, or objects came or went.
async fn rebuild_once(
    bucket: &Bucket,
    before: Left,
    options: &CatalogueOptions,
    clock: &dyn Clock,
    random: &dyn Random,
    created_ms: CreationOf,
    mut seen: impl FnMut(u64),
) -> Result<Option<Rebuilt>, CatalogueError> {
    let cluster = bucket.cluster();
    let marker = bucket.marker();
    let has_marker = match bucket.get(&marker).await? {
        Some(bytes) => {
            check_marker(&bytes, cluster).map_err(|damage| damaged(&marker, damage)).map(|()| true)?
        }
        None => false,
    };
    let now_ms = compare_clocks(bucket, clock, random).await?.store_ms;
    // No object is newer than the catalogue that knows it ([`super::genuine`], invariant 3).
    let keys = object_keys(bucket).await?;
    let times = keys.iter().filter_map(|key| Some(id_of(key)?.reserved_ms()));
    let newest_ms = times.filter(|ms| *ms <= now_ms.saturating_add(ID_AHEAD_MS_MAX)).max().unwrap_or(0);
    let log_ms = before.log_ms.max(now_ms).max(newest_ms);
    let position = Position { number: before.log_end, log_ms };
    let mut rebuilt = Rebuilt::default();

    let (mut objects, mut extents, mut unread) = (Vec::new(), Vec::new(), BTreeSet::new());
    let mut looked_at = 0;
    let mut footers = bucket
        .all_objects()
        .map(|meta| async move {
            match meta {
                Ok(meta) => (meta.location.to_string(), footer_of(bucket, &meta, created_ms).await),
                Err(error) => (String::new(), Err(Unread::Store(error))),
            }
        })
        .buffer_unordered(REQUESTS_AT_ONCE);
    while let Some((key, outcome)) = footers.next().await {
        looked_at += 1;
        seen(looked_at);
        match outcome {
            Ok(object) => objects.push(object),
            Err(Unread::Store(error)) => return Err(error.into()),
            Err(Unread::Object(reason)) => {
                // Bookies know no object by a key that is no object id.
                unread.extend(id_of(&key));
                rebuilt.unreadable_count += 1;
                if rebuilt.unreadable.len() < LISTED_MAX {
                    rebuilt.unreadable.push((key, reason));
                }
            }
        }
    }
    drop(footers);
    objects.sort_unstable_by_key(|object: &NewObject| object.object.id);
    let mut found = Vec::with_capacity(objects.len());
    for (number, object) in (0_u32..).zip(&objects) {
        extents.extend(object.extents.iter().map(|extent| FoundExtent {
            ledger: extent.ledger,
            first: extent.first,
            last: extent.last,
            bytes: extent.bytes,
            object: number,
            created_ms: extent.created_ms,
        }));
        let stored = StoredObject {
            object: object.object,
            crc: object.crc(),
            extents: u32::try_from(object.extents.len()).unwrap_or(u32::MAX),
            bytes: object.bytes(),
            live_extents: 0,
            live_bytes: 0,
            committed_ms: position.log_ms,
            unreferenced_ms: None,
            replaced: None,
        };
        let is_outranked = Some(&object.object.id) < unread.last();
        found.push(Found { stored, is_kept: false, is_outranked });
    }
    drop(objects);
    extents.sort_unstable_by_key(|extent| (extent.ledger, extent.first, extent.object));

    let name = RunName { manifest: before.manifest, nonce: random.next_u64() };
    let mut builder = RunBuilder::new(cluster);
    let key = bucket.run(name);
    let mut upload = bucket.upload(&key);
    let mut taken = Vec::new();
    // Of an id that was used again the ledger that lived last counts. Objects of older builds do not say of which one they are.
    let mut latest: HashMap<LedgerId, i64> = HashMap::new();
    for extent in &extents {
        if let Some(created_ms) = extent.created_ms {
            let known = latest.entry(extent.ledger).or_insert(created_ms);
            *known = created_ms.max(*known);
        }
    }
    extents.retain(|extent| {
        extent.created_ms.is_none() || latest.get(&extent.ledger).copied() == extent.created_ms
    });
    for of_ledger in extents.chunk_by(|a, b| a.ledger == b.ledger) {
        let mut row = take(of_ledger, &mut found, &mut taken, &mut rebuilt);
        row.created_ms = latest.get(&of_ledger[0].ledger).copied();
        let mut value = Vec::new();
        row.encode(&mut value);
        builder.push(Key::ledger(of_ledger[0].ledger), Some(&value));
    }
    for extent in &taken {
        let row = ExtentRow {
            last: extent.last,
            bytes: extent.bytes,
            object: found[extent.object as usize].stored.object,
        };
        let mut value = Vec::new();
        row.encode(&mut value);
        builder.push(Key::extent(extent.ledger, extent.first), Some(&value));
        upload.push(builder.take()).await?;
    }
    // Bookies may refer to those that cannot be read, and what damaged them may be mended: their ids are reserved for good, so that
    // they are not taken for objects of nobody.
    let kept = ObjectRow::Reserved { expires_ms: u64::MAX, writer: WriterId(0) };
    rebuilt.totals.reserved = unread.len() as u64;
    let mut rows: BTreeMap<ObjectId, ObjectRow> = unread.iter().map(|id| (*id, kept)).collect();
    let mut garbage: BTreeSet<ObjectId> = unread;
    for Found { stored, is_kept, is_outranked } in &mut found {
        let id = stored.object.id;
        let is_set_aside = stored.live_extents == 0 && *is_kept;
        // Which of two objects with the same entries the bookies refer to is not known any more.
        if (stored.live_extents < stored.extents || *is_outranked) && !is_set_aside {
            stored.replaced = Some(Replaced { number: position.number, at_ms: position.log_ms });
        }
        stored.unreferenced_ms = (stored.live_extents == 0 && !is_set_aside).then_some(position.log_ms);
        if stored.live_extents == 0 {
            if is_set_aside {
                rebuilt.set_aside.push(id);
            } else {
                rebuilt.totals.unreferenced += 1;
                rebuilt.totals.unreferenced_bytes += stored.object.length_bytes;
                garbage.insert(id);
            }
        }
        rebuilt.totals.objects += 1;
        rebuilt.totals.object_bytes += stored.object.length_bytes;
        rows.insert(id, ObjectRow::Stored(*stored));
    }
    for (id, row) in rows {
        let mut value = Vec::new();
        row.encode(&mut value);
        builder.push(Key::object(id), Some(&value));
    }
    garbage.iter().for_each(|id| builder.push(Key::garbage(*id), Some(&[])));
    let (rest, shape) = builder.finish();
    upload.push(rest).await?;
    upload.finish().await?;
    let has_moved = last_record(bucket).await?.is_some_and(|last| last > position.number);
    if has_moved || object_keys(bucket).await? != keys {
        // No manifest names it, and none will.
        bucket.delete(&key).await?;
        return Ok(None);
    }

    let next = Manifest {
        cluster,
        number: before.manifest + 1,
        covered: position,
        log_floor: before.log_floor.max(position.number.saturating_sub(options.log_kept)),
        run_floor: before.run_floor,
        totals: rebuilt.totals,
        runs: if shape.rows > 0 { vec![RunRef { name, shape }] } else { Vec::new() },
    };
    match bucket.create(&bucket.manifest(next.number), Bytes::from(next.encode())).await? {
        Created::Own => {}
        Created::Other(_) => return Err(CatalogueError::Contended { attempts: 1 }),
        Created::Unknown(error) => return Err(CatalogueError::Unknown { error }),
    }
    if !has_marker {
        make_marker(bucket, clock).await?;
    }
    Ok(Some(rebuilt))
}

/// All keys of objects.
async fn object_keys(bucket: &Bucket) -> Result<BTreeSet<String>, StoreError> {
    bucket.all_objects().map_ok(|meta| meta.location.to_string()).try_collect().await
}

/// The highest number that is in the log.
async fn last_record(bucket: &Bucket) -> Result<Option<u64>, StoreError> {
    let log = bucket.list(&bucket.log(), None).await?;
    Ok(log.iter().filter_map(|found| number_of(&found.location)).max())
}

/// Numbers that go on from what is left of a catalogue.
#[derive(Debug, Default)]
struct Left {
    manifest: u64,
    log_end: u64,
    log_floor: u64,
    run_floor: u64,
    log_ms: u64,
}

async fn what_is_left(bucket: &Bucket) -> Result<Left, CatalogueError> {
    let mut left = Left::default();
    let manifests = bucket.list(&bucket.manifests(), None).await?;
    left.manifest = manifests.iter().filter_map(|found| number_of(&found.location)).max().unwrap_or(0);
    // It may be what is damaged.
    match manifest(bucket, left.manifest).await {
        Ok(Some(found)) => {
            (left.log_floor, left.run_floor) = (found.log_floor, found.run_floor);
            (left.log_end, left.log_ms) = (found.covered.number, found.covered.log_ms);
        }
        Ok(None) | Err(CatalogueError::Damaged { .. }) => {}
        Err(error) => return Err(error),
    }
    if let Some(last) = last_record(bucket).await? {
        left.log_end = left.log_end.max(last);
        if let Some(bytes) = bucket.get(&bucket.record(last)).await?
            && let Ok(record) = Record::decode(&bytes, bucket.cluster(), last)
        {
            left.log_ms = left.log_ms.max(record.time_ms);
        }
    }
    Ok(left)
}

enum Unread {
    Store(StoreError),
    Object(String),
}

fn id_of(key: &str) -> Option<ObjectId> {
    key.rsplit('/').next()?.parse().ok()
}

async fn footer_of(bucket: &Bucket, meta: &ObjectMeta, created_ms: CreationOf) -> Result<NewObject, Unread> {
    let unread = |reason: String| Unread::Object(reason);
    let key = &meta.location;
    let named: ObjectId =
        key.filename().unwrap_or_default().parse().map_err(|_| unread("its key is no object id".into()))?;
    let size = meta.size;
    let begin = size.saturating_sub(TAIL_BYTES);
    if size < TRAILER_SIZE_BYTES as u64 {
        return Err(unread("it is shorter than a trailer".into()));
    }
    let tail = bucket.get_range(key, begin, size - begin).await.map_err(Unread::Store)?;
    let trailer = tail.last_chunk::<TRAILER_SIZE_BYTES>().ok_or_else(|| unread("it was cut short".into()))?;
    let trailer = Trailer::decode(trailer, size).map_err(|error| unread(error.to_string()))?;
    let footer = match trailer.footer_offset.checked_sub(begin) {
        Some(at) => {
            let end = at + trailer.footer_size_bytes;
            match (tail.len() as u64) < end {
                true => return Err(unread("it was cut short".into())),
                false => tail.slice(at as usize..end as usize),
            }
        }
        None => bucket
            .get_range(key, trailer.footer_offset, trailer.footer_size_bytes)
            .await
            .map_err(Unread::Store)?,
    };
    let footer = Footer::decode(&footer, &trailer).map_err(|error| unread(error.to_string()))?;
    if trailer.object != named {
        return Err(unread(format!("it is the object {}", trailer.object)));
    }
    let object = ObjectRef {
        id: named,
        length_bytes: size,
        footer_offset: trailer.footer_offset,
        footer_crc: trailer.footer_crc32c,
        etag_crc: meta.e_tag.as_ref().map_or(0, |tag| crc32c(&[tag.as_bytes()])),
    };
    let extents = footer.extents.iter().map(|extent| NewExtent {
        ledger: extent.ledger,
        first: extent.first,
        last: extent.last,
        bytes: extent.body_bytes,
        created_ms: footer.ledgers.get(&extent.ledger).and_then(|bytes| created_ms(bytes)),
    });
    Ok(NewObject { object, extents: extents.collect() })
}

/// Of the extents of one ledger, ascending by first entry, takes those that reach furthest without a gap, and again behind each gap.
fn take(
    extents: &[FoundExtent],
    found: &mut [Found],
    taken: &mut Vec<FoundExtent>,
    rebuilt: &mut Rebuilt,
) -> LedgerRow {
    // From the last to the first: how far one gets with each, and with which one to begin at an entry. Later objects come last
    // among equals, and so are seen first, and stay.
    let mut reach = vec![EntryId::FIRST; extents.len()];
    let mut best: HashMap<EntryId, usize> = HashMap::with_capacity(extents.len());
    for (at, extent) in extents.iter().enumerate().rev() {
        reach[at] = following(extent.last, &best).map_or(extent.last, |next| reach[next]);
        let before = best.entry(extent.first).or_insert(at);
        if reach[*before] < reach[at] {
            *before = at;
        }
    }
    let (ledger, begin) = (extents[0].ledger, taken.len());
    let mut row = LedgerRow { next: EntryId::FIRST, ..LedgerRow::new(extents[0].first) };
    for extent in extents {
        // Inside what was taken.
        if extent.first < row.next {
            continue;
        }
        if extent.first > row.next {
            rebuilt.gap_count += 1;
            if rebuilt.gaps.len() < LISTED_MAX {
                let last = EntryId::new(extent.first.get() - 1).expect("behind another entry");
                rebuilt.gaps.push(Gap { ledger, first: row.next, last });
            }
        }
        let mut next = best.get(&extent.first).copied();
        while let Some(at) = next {
            let extent = extents[at];
            let stored = &mut found[extent.object as usize].stored;
            stored.live_extents += 1;
            stored.live_bytes = stored.live_bytes.saturating_add(extent.bytes);
            taken.push(extent);
            row.extents += 1;
            row.bytes = row.bytes.saturating_add(extent.bytes);
            row.next = EntryId::new(extent.last.get().saturating_add(1)).unwrap_or(EntryId::MAX);
            next = following(extent.last, &best);
        }
        // Begun in this stretch, and reaching beyond its end: no other object may have those entries.
        for other in extents.iter().filter(|other| other.first < row.next && other.last >= row.next) {
            found[other.object as usize].is_kept = true;
        }
    }
    let of_ledger = &taken[begin..];
    for other in extents {
        let from = of_ledger.partition_point(|extent| extent.last < other.first);
        let overlapped = of_ledger[from..].iter().take_while(|extent| extent.first <= other.last);
        // Objects are numbered in the order of their ids.
        for extent in overlapped.filter(|extent| extent.object < other.object) {
            found[extent.object as usize].is_outranked = true;
        }
    }
    rebuilt.totals.ledgers += 1;
    rebuilt.totals.extents += row.extents;
    rebuilt.totals.bytes = rebuilt.totals.bytes.saturating_add(row.bytes);
    row
}

fn following(last: EntryId, best: &HashMap<EntryId, usize>) -> Option<usize> {
    best.get(&EntryId::new(last.get().checked_add(1)?)?).copied()
}
