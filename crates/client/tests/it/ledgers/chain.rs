//! A ledger whose writer died goes on in another one.

use bindery_client::{
    AppendOpenError, CONTINUED_PROPERTY, CONTINUES_PROPERTY, CreateOptions, LedgerId, OpenMode, Quorum,
    TakeOverError, continued_in, continues,
};

use crate::ledgers::cluster::{Cluster, entry, payload};
use crate::ledgers::{PASSWORD, assert_reads, enqueue_many};

fn options() -> CreateOptions {
    let quorum = Quorum::new(3, 2, 2).unwrap();
    CreateOptions::new(quorum).password(PASSWORD).property("owner", "test")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_whose_writer_died_is_recovered_and_goes_on_in_one_of_its_kind() {
    let cluster = Cluster::start(3).await;
    let (client, other) = (cluster.client().await, cluster.client().await);
    let id = client.create_handed_over(options()).await.unwrap();
    let writer = client.open_for_append(id, PASSWORD).await.unwrap();
    enqueue_many(&writer, 0..20).await;
    writer.drain().await.unwrap();

    let busy = other.open_for_append(id, PASSWORD).await.unwrap_err();
    assert!(busy.to_string().contains(&format!("bindery ledger append --take-over {id}")), "{busy}");
    let wrong = other.take_over(id, b"wrong").await.unwrap_err();
    assert!(matches!(wrong, TakeOverError::Open(AppendOpenError::WrongPassword(_))), "{wrong}");
    let taken = other.take_over(id, PASSWORD).await.unwrap();
    assert_eq!(taken.recovered, [(id, Some(entry(19)))]);
    let next = taken.ledger;
    assert_ne!(next, id);
    let of = async |id: LedgerId| other.metadata(id).await.unwrap().metadata;
    let (former, latter) = (of(id).await, of(next).await);
    assert_eq!((continued_in(&former), continues(&latter)), (Some(next), Some(id)));
    assert_eq!((former.quorum, &former.secret), (latter.quorum, &latter.secret));
    assert_eq!(latter.custom["owner"], b"test");

    // A writer that lives after all has been stopped.
    assert!(writer.append(b"late").await.is_err());
    let error = other.open_for_append(id, PASSWORD).await.unwrap_err();
    assert!(matches!(error, AppendOpenError::Continued { successor, .. } if successor == next), "{error}");
    let writer = other.open_for_append(next, PASSWORD).await.unwrap();
    writer.append(&payload(0)).await.unwrap();
    writer.hand_over().await.unwrap();
    assert_reads(&other.open_ledger(id, PASSWORD, OpenMode::ReadOnly).await.unwrap(), 0..20).await;
    assert_reads(&other.open_ledger(next, PASSWORD, OpenMode::ReadOnly).await.unwrap(), 0..1).await;

    // The chain is followed, and a ledger without a writer is left as it is.
    let again = other.take_over(id, PASSWORD).await.unwrap();
    assert_eq!((again.ledger, again.recovered), (next, vec![]));
    // Another death: the chain grows at its end.
    let writer = client.open_for_append(next, PASSWORD).await.unwrap();
    writer.append(&payload(1)).await.unwrap();
    let taken = other.take_over(id, PASSWORD).await.unwrap();
    assert_eq!(taken.recovered, [(next, Some(entry(1)))]);
    assert_eq!(continues(&of(taken.ledger).await), Some(next));
    // Closed by its user, it does not go on.
    other.open_for_append(taken.ledger, PASSWORD).await.unwrap().close().await.unwrap();
    let error = other.take_over(id, PASSWORD).await.unwrap_err();
    assert!(
        matches!(&error, TakeOverError::Open(AppendOpenError::Closed { ledger, .. }) if *ledger == taken.ledger),
        "{error}"
    );
    cluster.stop().await;
}

/// Whoever dies between the steps leaves a chain that the next one can follow; two at a time make one chain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takers_that_die_or_meet_leave_one_chain() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let id = client.create_handed_over(options()).await.unwrap();
    let writer = client.open_for_append(id, PASSWORD).await.unwrap();
    writer.append(&payload(0)).await.unwrap();
    // Died after it had named the successor.
    let named = client.create_handed_over(options()).await.unwrap();
    let layout = cluster.layout().await;
    let mut stored = layout.ledgers().get(id).await.unwrap();
    stored.metadata.custom.insert(CONTINUED_PROPERTY.into(), named.to_string().into_bytes());
    layout.ledgers().update(id, &stored.metadata, stored.version).await.unwrap();
    let taken = client.take_over(id, PASSWORD).await.unwrap();
    assert_eq!((taken.ledger, taken.recovered), (named, vec![(id, Some(entry(0)))]));

    let writer = client.open_for_append(named, PASSWORD).await.unwrap();
    writer.append(&payload(0)).await.unwrap();
    let clients = [cluster.client().await, cluster.client().await];
    let (one, two) = tokio::join!(clients[0].take_over(id, PASSWORD), clients[1].take_over(id, PASSWORD));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.ledger, two.ledger);
    let metadata = client.metadata(one.ledger).await.unwrap().metadata;
    assert_eq!(metadata.custom[CONTINUES_PROPERTY], named.to_string().into_bytes());

    let foreign = client.create_ledger(options()).await.unwrap();
    let error = client.take_over(foreign.id(), PASSWORD).await.unwrap_err();
    assert!(matches!(error, TakeOverError::Open(AppendOpenError::NotHandedOver(_))), "{error}");
    foreign.append(b"it was left alone").await.unwrap();
    cluster.stop().await;
}
