//! Marks of under-replicated ledgers that cannot be read or made, and what stays of one for the writers that follow.

use std::sync::Arc;
use std::time::Duration;

use bindery_client::{Client, HANDOVER_PROPERTY, LedgerId, OpenMode, StoreError};
use bindery_metadata::memory::{Fault, MemoryStore};
use bindery_metadata::store::{MetadataStore, Node, StoreFuture};
use bindery_metadata::{Layout, StoreLayer};

use crate::ledgers::PASSWORD;
use crate::ledgers::cluster::{Cluster, entry, options, payload};

/// A store that refuses to show marks.
struct NoMarks {
    inner: Arc<MemoryStore>,
    why: fn(&str) -> StoreError,
}

impl StoreLayer for NoMarks {
    fn beneath(&self) -> &dyn MetadataStore {
        &*self.inner
    }
    fn get(&self, path: &str) -> StoreFuture<'_, Node> {
        match path.contains("/underreplication/") {
            true => {
                let error = (self.why)(path);
                Box::pin(async { Err(error) })
            }
            false => self.inner.get(path),
        }
    }
}

async fn client_without_marks(cluster: &Cluster, why: fn(&str) -> StoreError) -> (Client, Arc<MemoryStore>) {
    let inner = Arc::new(cluster.store());
    let layout =
        Layout::open(Arc::new(NoMarks { inner: inner.clone(), why }), "/ledgers", None).await.unwrap();
    let builder = Client::builder().layout(layout).metadata_patience(Duration::from_secs(1));
    (builder.connect().await.unwrap(), inner)
}

async fn starts(client: &Client, id: LedgerId) -> Vec<i64> {
    let metadata = client.metadata(id).await.unwrap().metadata;
    metadata.segments().iter().map(|segment| segment.first_entry.get()).collect()
}

async fn append_one(client: &Client, id: LedgerId, at: i64) {
    let writer = client.open_for_append(id, PASSWORD).await.unwrap();
    assert_eq!(writer.append(&payload(at)).await.unwrap(), entry(at));
    writer.hand_over().await.unwrap();
}

/// Makes the hand-over one of an earlier build, which did not say that the last segment is whole.
async fn hand_over_as_before(cluster: &Cluster, id: LedgerId) {
    let ledgers = cluster.layout().await.ledgers();
    let stored = ledgers.get(id).await.unwrap();
    let mut metadata = stored.metadata;
    let text = String::from_utf8(metadata.custom[HANDOVER_PROPERTY].clone()).unwrap();
    let before = text.strip_suffix(" whole").expect("nothing is missing");
    metadata.custom.insert(HANDOVER_PROPERTY.into(), before.into());
    ledgers.update(id, &metadata, stored.version).await.unwrap();
}

/// Nobody but whoever repairs a ledger removes its mark: its metadata must not grow with each writer until then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_stays_marked_gets_no_segment_from_each_writer() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let id = client.create_handed_over(options(3, 3, 2)).await.unwrap();
    let member = client.metadata(id).await.unwrap().metadata.segments()[0].ensemble[0].clone();
    cluster.layout().await.under_replication().mark(id, std::slice::from_ref(&member)).await.unwrap();
    for at in 0..4 {
        append_one(&client, id, at).await;
    }
    assert_eq!(starts(&client, id).await, [0]);
    assert_eq!(client.under_replicated_on(id).await.unwrap(), [member.to_string()]);
    // One that an earlier build left may have a gap at its end.
    hand_over_as_before(&cluster, id).await;
    append_one(&client, id, 4).await;
    append_one(&client, id, 5).await;
    assert_eq!(starts(&client, id).await, [0, 4]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_may_not_read_marks_appends_all_the_same() {
    let cluster = Cluster::start(3).await;
    let (client, _store) =
        client_without_marks(&cluster, |path| StoreError::NoAuth { path: path.to_owned() }).await;
    let id = client.create_handed_over(options(3, 3, 2)).await.unwrap();
    append_one(&client, id, 0).await;
    append_one(&client, id, 1).await;
    assert!(matches!(client.under_replicated_on(id).await, Err(StoreError::NoAuth { .. })));
    assert_eq!(starts(&client, id).await, [0]);
    hand_over_as_before(&cluster, id).await;
    append_one(&client, id, 2).await;
    assert_eq!(starts(&client, id).await, [0, 2], "each may be marked");
    cluster.stop().await;
}

/// The close has all of the patience that there is, whatever the mark took.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_that_cannot_mark_its_ledger_closes_it_with_patience() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let writer = client.create_ledger(options(3, 3, 2)).await.unwrap();
    let id = writer.id();
    for at in 0..5 {
        writer.append(&payload(at)).await.unwrap();
    }
    drop(writer);
    let victim = client.metadata(id).await.unwrap().metadata.segments()[0].ensemble[2].clone();
    cluster.stop_bookie(&victim).await;
    let (recovering, store) = client_without_marks(&cluster, |_| StoreError::ConnectionLoss).await;
    // The ledger is marked as in recovery, then closed.
    store.inject_at(1, Fault::LossBeforeApply);
    let reader = recovering.open_ledger(id, PASSWORD, OpenMode::Recover).await.unwrap();
    assert_eq!(reader.last_add_confirmed(), Some(entry(4)));
    assert_eq!(client.under_replicated_on(id).await.unwrap(), Vec::<String>::new());
    cluster.stop().await;
}
