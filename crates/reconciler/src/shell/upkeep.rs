//! Does what the upkeep's core decided: one action at a time, each a task of the main task.

use std::collections::BTreeMap;
use std::sync::Arc;

use bindery_client::{BulkReader, LedgerStream};
use bindery_io::Random;
use bindery_metadata::layout::LedgerError;
use bindery_metadata::{Layout, StoreError as MetadataError};
use bindery_tiering::catalogue::object_key;
use bindery_tiering::cover::Covers;
use bindery_tiering::object::Footer;
use bindery_tiering::store::{StoreError, StoreKind};
use bindery_tiering::{ClusterId, ObjectId};
use bindery_types::tier::ObjectRef;
use bindery_types::{BookieId, LedgerId};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::Common;
use super::desk::Ask;
use super::run::{ask, ended};
use super::upload::limited;
use crate::assembly::Limits;
use crate::core::Place;
use crate::core::upkeep::{Absent, Deletion, ListedObject, Proof, ScanPage, UpkeepAction, UpkeepEvent};

/// Looks at the metadata store, and deletions, at once.
pub(super) const REQUESTS_AT_ONCE: usize = 8;
/// Objects of the bucket in one page of the scan.
const SCANNED_MAX: usize = 1000;
/// Under this name tierers leave a mark in the metadata store, as bookies do under theirs.
const MARK_NAME: &str = "bindery-tier";
/// Below the cluster's prefix in the bucket: the marks that count, one a line. Two while it is not known whether the newer one
/// got to the metadata store.
const MARK_KEY: &str = "mark";

/// An INSTANCEID as ours are spelled: others write it with upper case.
fn spelled(text: &str) -> String {
    text.parse::<ClusterId>().map_or_else(|_| text.to_owned(), |id| id.to_string())
}

/// What is kept while one action follows another of its kind.
#[derive(Default)]
pub(super) struct Kept {
    /// Footers of the objects that are rewritten, or of the one that is to go and was examined last.
    pub footers: BTreeMap<ObjectId, (ObjectRef, Arc<Footer>)>,
    /// What is known of the objects that took its entries over.
    pub covers: Option<Arc<Covers>>,
}

/// What stays of that when another action begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Nothing,
    /// The action goes on with these sources.
    Sources,
    /// Another window of its extents, or another object.
    Examined(ObjectId),
    /// Objects that were examined go. Others that the same ones took over are examined next.
    Covers,
}

impl Keeps {
    fn of(action: &UpkeepAction) -> Keeps {
        match action {
            UpkeepAction::WhereTo(object, _) => Keeps::Examined(object.id),
            UpkeepAction::Reserve | UpkeepAction::Rewrite(_) | UpkeepAction::Replace { .. } => Keeps::Sources,
            UpkeepAction::Delete(_) | UpkeepAction::Forget(_) | UpkeepAction::FindGarbage { .. } => {
                Keeps::Covers
            }
            UpkeepAction::Ledgers
            | UpkeepAction::Prove
            | UpkeepAction::List { .. }
            | UpkeepAction::LookAgain(_)
            | UpkeepAction::Remove(_)
            | UpkeepAction::Mark
            | UpkeepAction::TryDeletion
            | UpkeepAction::Scan { .. }
            | UpkeepAction::AskFor(_)
            | UpkeepAction::ReadFooters(_)
            | UpkeepAction::Survey { .. } => Keeps::Nothing,
        }
    }
}

/// The parts that the actions need.
#[derive(Clone)]
pub(super) struct Hands {
    pub common: Arc<Common>,
    pub layout: Layout,
    pub asks: mpsc::Sender<Ask>,
    pub random: Arc<dyn Random>,
    /// Its rate holds for objects that are read, too.
    pub reader: BulkReader,
    /// Of objects that take over extents of others.
    pub rewrite_limits: Limits,
    pub kept: Arc<Mutex<Kept>>,
}

impl Hands {
    /// Does one action; the listing comes back with the event. An object under construction is given up when `abandon` fires.
    pub async fn perform(
        self,
        action: UpkeepAction,
        listing: Option<LedgerStream>,
        abandon: oneshot::Receiver<()>,
    ) -> (Option<LedgerStream>, UpkeepEvent) {
        let dropped = {
            let mut kept = self.kept.lock();
            match Keeps::of(&action) {
                Keeps::Nothing => std::mem::take(&mut *kept),
                Keeps::Sources => Kept { covers: kept.covers.take(), ..Kept::default() },
                Keeps::Covers => Kept { footers: std::mem::take(&mut kept.footers), covers: None },
                Keeps::Examined(object) => {
                    let examined = kept.footers.remove_entry(&object);
                    let footers = std::mem::replace(&mut kept.footers, examined.into_iter().collect());
                    Kept { footers, covers: None }
                }
            }
        };
        drop(dropped);
        let event = match action {
            UpkeepAction::Ledgers => UpkeepEvent::Ledgers(self.ledgers().await),
            UpkeepAction::Prove => UpkeepEvent::Proven(self.prove().await),
            UpkeepAction::List { .. } => return list(listing).await,
            UpkeepAction::LookAgain(ledgers) => UpkeepEvent::LookedAgain(self.look_again(ledgers).await),
            UpkeepAction::Remove(ledgers) => UpkeepEvent::Removed(
                ask(&self.asks, |reply| Ask::Remove(ledgers, reply)).await.unwrap_or_else(ended),
            ),
            UpkeepAction::Mark => UpkeepEvent::Marked(self.mark().await),
            UpkeepAction::FindGarbage { delay, after, limit } => UpkeepEvent::Garbage(
                ask(&self.asks, |reply| Ask::Garbage(delay, (after, limit), reply))
                    .await
                    .unwrap_or_else(ended),
            ),
            UpkeepAction::TryDeletion => UpkeepEvent::DeletionTried(self.try_deletion().await),
            UpkeepAction::Delete(objects) => UpkeepEvent::Deleted(self.delete(objects).await),
            UpkeepAction::Forget(objects) => UpkeepEvent::Forgotten(
                ask(&self.asks, |reply| Ask::Forget(objects, reply)).await.unwrap_or_else(ended),
            ),
            UpkeepAction::Scan { after } => UpkeepEvent::Scanned(self.scan(after).await),
            UpkeepAction::AskFor(objects) => UpkeepEvent::Missing(self.ask_for(objects).await),
            UpkeepAction::ReadFooters(objects) => UpkeepEvent::FootersRead(self.read_footers(objects).await),
            UpkeepAction::WhereTo(object, places) => {
                UpkeepEvent::Whereabouts(self.where_to(object, places).await)
            }
            UpkeepAction::Survey { objects, is_partial } => {
                UpkeepEvent::Surveyed(self.survey(objects, is_partial).await)
            }
            UpkeepAction::Reserve => UpkeepEvent::Reserved(self.reserve().await),
            UpkeepAction::Rewrite(order) => {
                let (built, unread) = self.rewrite(order, abandon).await;
                UpkeepEvent::Rewritten(built, unread)
            }
            UpkeepAction::Replace { object, sources } => UpkeepEvent::Replaced(
                ask(&self.asks, |reply| Ask::Replace(object, sources, reply)).await.unwrap_or_else(ended),
            ),
        };
        (None, event)
    }

    async fn ledgers(&self) -> Result<Vec<LedgerId>, String> {
        let mut all: Vec<LedgerId> = Vec::new();
        loop {
            let after = all.last().copied();
            let page = ask(&self.asks, |reply| Ask::Ledgers(after, reply)).await.unwrap_or_else(ended)?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    /// An id, and an object of the catalogue with a later one.
    async fn reserve(&self) -> Result<(ObjectId, Option<ObjectId>), String> {
        let ids = ask(&self.asks, |reply| Ask::Reserve(1, reply)).await.unwrap_or_else(ended)?;
        let object =
            ids.first().copied().ok_or_else(|| "somebody else has the id that was drawn".to_owned())?;
        let later = ask(&self.asks, |reply| Ask::Later(object, reply)).await.unwrap_or_else(ended)?;
        Ok((object, later))
    }

    async fn prove(&self) -> Result<Proof, String> {
        let words = |error: MetadataError| error.to_string();
        self.layout.store().sync(self.layout.root()).await.map_err(words)?;
        let found = self.layout.instance_id().await.map_err(words)?;
        Ok(Proof {
            instance_id: spelled(found.unwrap_or_default().trim()),
            is_whole: self.layout.is_whole().await.map_err(words)?,
            has_mark: self.current_mark().await?.is_some(),
            next_id: self.layout.ids().peek().await.map_err(words)?,
        })
    }

    /// Of rows that are read before metadata is: one that is committed later is of a ledger that exists.
    async fn look_again(&self, ledgers: Vec<LedgerId>) -> Result<Vec<Absent>, String> {
        let places = ask(&self.asks, |reply| Ask::Locate(ledgers, reply)).await.unwrap_or_else(ended)?;
        let cluster_ms = self.layout.made_ms().await.map_err(|error| error.to_string())?;
        let of_metadata = self.layout.ledgers();
        let mut looks = futures_util::stream::iter(places)
            .map(|place| {
                let of_metadata = &of_metadata;
                async move { (place, of_metadata.get(place.ledger).await) }
            })
            .buffer_unordered(REQUESTS_AT_ONCE);
        let mut absent = Vec::new();
        while let Some((Place { ledger, created_ms, .. }, found)) = looks.next().await {
            let is_there = match found {
                Ok(stored) => !stored.creation(cluster_ms).is_anothers(created_ms),
                Err(LedgerError::NotFound(_)) => false,
                // It is there, whatever it is.
                Err(LedgerError::Malformed { .. }) => true,
                Err(error) => return Err(error.to_string()),
            };
            if !is_there {
                absent.push(Absent { ledger, created_ms });
            }
        }
        Ok(absent)
    }

    /// Of an object whose id nobody has drawn.
    async fn try_deletion(&self) -> Deletion {
        let mut id = [0; 16];
        id[8..].copy_from_slice(&self.random.next_u64().to_be_bytes());
        let outcome = self.delete(vec![ObjectId::from_bytes(id)]).await.pop();
        outcome.map_or_else(|| Deletion::Failed("it was not tried".to_owned()), |(_, outcome)| outcome)
    }

    /// Deletes those of which the catalogue, followed to its end, still says that nothing refers to them: it may have been put back.
    async fn delete(&self, objects: Vec<ObjectId>) -> Vec<(ObjectId, Deletion)> {
        let asked = objects.clone();
        let live = match ask(&self.asks, |reply| Ask::Referenced(asked, reply)).await.unwrap_or_else(ended) {
            Ok(live) => live,
            Err(why) => {
                return objects.into_iter().map(|object| (object, Deletion::Failed(why.clone()))).collect();
            }
        };
        let (referenced, free): (Vec<_>, Vec<_>) =
            objects.into_iter().partition(|object| live.contains(object));
        let common = &self.common;
        let deletions = futures_util::stream::iter(free).map(|object| async move {
            let key = common.store.key(&object_key(common.cluster, object));
            common.meter.delete();
            let outcome = match limited(&key, common.store.inner().delete(&key)).await {
                // A bucket that is gone says the same: then forgetting the row fails, too.
                Ok(()) | Err(StoreError::NotFound { .. }) => Deletion::Done,
                Err(error @ StoreError::Denied { .. }) => Deletion::Denied(error.to_string()),
                Err(error) => Deletion::Failed(error.to_string()),
            };
            (object, outcome)
        });
        let mut outcomes: Vec<(ObjectId, Deletion)> =
            deletions.buffer_unordered(REQUESTS_AT_ONCE).collect().await;
        let why = || Deletion::Failed("the catalogue refers to it again".to_owned());
        outcomes.extend(referenced.into_iter().map(|object| (object, why())));
        outcomes
    }

    async fn scan(&self, after: Option<ObjectId>) -> Result<ScanPage, String> {
        let common = &self.common;
        let now_ms = ask(&self.asks, Ask::Time).await.ok_or("the tierer ends")?;
        let prefix = common.store.key(&format!("{}/objects", common.cluster));
        let store = common.store.inner();
        let listed = match after {
            Some(after) => {
                store.list_with_offset(Some(&prefix), &common.store.key(&object_key(common.cluster, after)))
            }
            None => store.list(Some(&prefix)),
        };
        // Stores list in the order of keys; a directory does not, and is listed whole.
        let is_ordered = common.store.url().kind() != StoreKind::Local;
        let most = if is_ordered { SCANNED_MAX } else { usize::MAX };
        common.meter.list();
        let found: Vec<ObjectMeta> = limited(&prefix, listed.take(most).try_collect())
            .await
            .map_err(|error| format!("list the bucket's objects: {error}"))?;
        let is_cut = found.len() == most;
        let mut objects: Vec<ListedObject> = found.iter().filter_map(listed_object).collect();
        objects.sort_unstable_by_key(|listed| listed.object);
        objects.retain(|listed| Some(listed.object) > after);
        let is_cut = is_cut || objects.len() > SCANNED_MAX;
        objects.truncate(SCANNED_MAX);
        let next = objects.last().map(|listed| listed.object).filter(|_| is_cut);
        let rows = ask(&self.asks, |reply| Ask::Rows(after, next, reply)).await.unwrap_or_else(ended)?;
        Ok(ScanPage { objects, rows, next, now_ms })
    }

    /// Asks the bucket, and then the catalogue whether it still refers to those that are not there.
    async fn ask_for(&self, objects: Vec<(ObjectId, u64)>) -> Result<Vec<ObjectId>, String> {
        let mut missing = self.not_there(objects.into_iter().collect()).await?;
        let (Some(first), Some(last)) = (missing.iter().min(), missing.iter().max().copied()) else {
            return Ok(missing);
        };
        let rows = ask(&self.asks, |reply| Ask::Rows(before_id(*first), Some(last), reply));
        let rows = rows.await.unwrap_or_else(ended)?;
        let is_live = |object: &ObjectId| rows.iter().any(|row| row.object == *object && row.live.is_some());
        missing.retain(is_live);
        Ok(missing)
    }

    /// Those of these objects that are not in the bucket, or not with this length; ascending.
    pub(super) async fn not_there(&self, objects: BTreeMap<ObjectId, u64>) -> Result<Vec<ObjectId>, String> {
        let common = &self.common;
        let heads = futures_util::stream::iter(objects).map(|(object, length_bytes)| async move {
            let key = common.store.key(&object_key(common.cluster, object));
            common.meter.get();
            match limited(&key, common.store.inner().head(&key)).await {
                Ok(found) if found.size == length_bytes => Ok(None),
                Ok(_) | Err(StoreError::NotFound { .. }) => Ok(Some(object)),
                Err(error) => Err(error.to_string()),
            }
        });
        let found: Vec<Option<ObjectId>> = heads.buffered(REQUESTS_AT_ONCE).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The mark in the metadata store, if the bucket knows it.
    async fn current_mark(&self) -> Result<Option<u64>, String> {
        let found = self.layout.store_marks().get(&mark_name()).await.map_err(|error| error.to_string())?;
        match found {
            Some(mark) => Ok(self.known_marks().await?.contains(&mark).then_some(mark)),
            None => Ok(None),
        }
    }

    async fn known_marks(&self) -> Result<Vec<u64>, String> {
        let key = self.common.store.key(&format!("{}/{MARK_KEY}", self.common.cluster));
        self.common.meter.get();
        let got = limited(&key, async { self.common.store.inner().get(&key).await?.bytes().await }).await;
        match got {
            Ok(bytes) => Ok(marks_of(&bytes)),
            Err(StoreError::NotFound { .. }) => Ok(Vec::new()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn know_marks(&self, marks: &[u64]) -> Result<(), String> {
        let key = self.common.store.key(&format!("{}/{MARK_KEY}", self.common.cluster));
        let text: String = marks.iter().map(|mark| format!("{mark:016x}\n")).collect();
        self.common.meter.put(text.len());
        let payload = PutPayload::from_bytes(Bytes::from(text));
        let put = limited(&key, self.common.store.inner().put(&key, payload)).await;
        put.map(drop).map_err(|error| error.to_string())
    }

    /// The new mark counts in the bucket before it is in the metadata store, and the former one until it is. Two tierers that do
    /// this at once may leave a mark that does not count: then there is no proof until the next one.
    async fn mark(&self) -> Result<(), String> {
        let (former, new) = (self.current_mark().await?, self.random.next_u64());
        let both: Vec<u64> = former.into_iter().chain([new]).collect();
        self.know_marks(&both).await?;
        let marks = self.layout.store_marks();
        marks.put(&mark_name(), new).await.map_err(|error| error.to_string())?;
        self.know_marks(&[new]).await
    }
}

/// The largest id below this one.
fn before_id(object: ObjectId) -> Option<ObjectId> {
    u128::from_be_bytes(*object.as_bytes()).checked_sub(1).map(|id| ObjectId::from_bytes(id.to_be_bytes()))
}

/// Keys that are no object's are nobody's business.
fn listed_object(found: &ObjectMeta) -> Option<ListedObject> {
    Some(ListedObject {
        object: found.location.filename()?.parse().ok()?,
        modified_ms: u64::try_from(found.last_modified.timestamp_millis()).unwrap_or(0),
        length_bytes: found.size,
    })
}

fn mark_name() -> BookieId {
    BookieId::new(MARK_NAME).expect("a name that a bookie could have")
}

/// Lines that are no marks are nobody's.
fn marks_of(bytes: &[u8]) -> Vec<u64> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    text.lines()
        .filter(|line| line.len() == 16)
        .filter_map(|line| u64::from_str_radix(line, 16).ok())
        .collect()
}

async fn list(listing: Option<LedgerStream>) -> (Option<LedgerStream>, UpkeepEvent) {
    let Some(mut listing) = listing else {
        return (None, UpkeepEvent::Listed(Err("the listing was lost".to_owned())));
    };
    match listing.next_range().await {
        Some(Ok(ledgers)) => (Some(listing), UpkeepEvent::Listed(Ok(Some(ledgers)))),
        None => (None, UpkeepEvent::Listed(Ok(None))),
        Some(Err(error)) => (None, UpkeepEvent::Listed(Err(format!("list the ledgers: {error}")))),
    }
}

#[cfg(test)]
mod spelling {
    use super::spelled;

    #[test]
    fn an_instance_id_is_the_same_in_upper_case() {
        let ours = "00112233-4455-6677-8899-aabbccddeeff";
        assert_eq!((spelled(&ours.to_uppercase()), spelled(ours)), (ours.to_owned(), ours.to_owned()));
        assert_eq!(spelled("another"), "another");
    }
}
