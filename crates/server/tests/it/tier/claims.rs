//! Claims about object storage: who may make them, and how far the bookie believes them.

use super::*;
use bindery_server::tier::REREAD_INTERVAL;
use bindery_types::TierSecret;
use bindery_wire::EntryAvailability;

fn extents(object: ObjectRef, first: i64, last: i64) -> Vec<TierExtent> {
    vec![TierExtent { first: entry(first), last: entry(last), object }]
}

fn update(ledger: i64, object: ObjectRef, first: i64, last: i64) -> Reconciliation {
    Reconciliation {
        ledger: whole::id(ledger),
        last: Some(entry(last)),
        extents: extents(object, first, last),
        created_ms: None,
    }
}

/// One that is nowhere.
fn made_up() -> ObjectRef {
    ObjectRef {
        id: ObjectId::new(7, [99; 10]),
        length_bytes: 1000,
        footer_offset: 900,
        footer_crc: 1,
        etag_crc: 0,
    }
}

async fn send(world: &World, message: proto::ReconcileLedgersRequest) -> (i32, Vec<(ErrorCode, i64)>) {
    let answer = Client::new(&world.bookie).await.v3(3, Operation::ReconcileLedgers(message)).await;
    let results = answer.reconcile_ledgers_response.unwrap().results;
    let results = results.iter().map(|result| Reconciled::from_message(result).unwrap());
    (answer.status, results.map(|result| (result.code, EntryId::to_wire(result.last))).collect())
}

async fn tell(world: &World, update: Reconciliation, is_restore: bool) -> (ErrorCode, i64) {
    let request = Reconcile { cluster: CLUSTER, ledgers: vec![update], is_restore };
    let (status, results) = send(world, world.proven(request).await).await;
    assert_eq!((status, results.len()), (ErrorCode::Ok.v3(), 1));
    results[0]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_without_the_secret_is_no_tierer() {
    let world = World::new(patient(), Canaries::none()).await;
    world.write(7).await;
    let object = world.upload(1, 7, (0..ENTRIES).map(|id| stored(7, id))).await;
    let node = world.layout.tier_secret();
    let secret = node.get().await.unwrap().expect("a bookie with object storage draws it");
    let request = |is_restore| {
        let ledgers = vec![update(7, object, 0, 9)];
        Reconcile { cluster: CLUSTER, ledgers, is_restore }.into_message()
    };
    let signed = |secret: &TierSecret, bookie: &str, is_restore| {
        let mut message = request(is_restore);
        message.prove(secret, &BookieId::new(bookie).unwrap());
        message
    };
    let mut changed = signed(&secret, "bookie-0", false);
    changed.ledgers[0].extents[0].last = 8;
    changed.ledgers[0].last_reconciled = 8;
    for is_restore in [false, true] {
        for forged in [
            request(is_restore),
            signed(&TierSecret::from_bytes([0; 32]), "bookie-0", is_restore),
            signed(&secret, "bookie-1", is_restore),
            changed.clone(),
        ] {
            assert_eq!(send(&world, forged).await, (ErrorCode::Unauthorized.v3(), vec![]));
        }
    }
    assert_eq!(world.register(7).await, -1, "nothing was told");

    // Another one was drawn: the first request by it is refused, and has the bookie read it.
    let other = TierSecret::from_bytes([5; 32]);
    world.layout.store().delete(&node.path(), None).await.unwrap();
    assert_eq!(node.get_or_create(other.clone()).await.unwrap(), other);
    tokio::time::sleep(REREAD_INTERVAL).await;
    let taken = async {
        while send(&world, signed(&other, "bookie-0", false)).await.0 != ErrorCode::Ok.v3() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, taken).await.unwrap();
    assert_eq!(send(&world, signed(&secret, "bookie-0", false)).await.0, ErrorCode::Unauthorized.v3());
    world.stop().await;
}

/// A register can never be lowered, so it does not rise above a ledger's end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_register_does_not_rise_above_the_end_of_its_ledger() {
    let world = World::new(patient(), Canaries::none()).await;
    for ledger in [7, 8, 9] {
        world.write(ledger).await;
    }
    // As far as this bookie has entries it needs nobody's word.
    assert_eq!(tell(&world, update(7, made_up(), 0, 9), false).await, (ErrorCode::Ok, 9));
    // Unknown to metadata.
    assert_eq!(tell(&world, update(7, made_up(), 0, ENTRIES), false).await, (ErrorCode::BadRequest, 9));
    world.close_ledger(8, ENTRIES + 3).await;
    let told = |last| tell(&world, update(8, made_up(), 0, last), false);
    assert_eq!(told(ENTRIES + 4).await, (ErrorCode::BadRequest, -1));
    assert_eq!(told(i64::MAX).await, (ErrorCode::BadRequest, -1));
    assert_eq!(told(ENTRIES + 3).await, (ErrorCode::Ok, ENTRIES + 3), "others have these");
    // Of one that is open the object must have what is not here.
    let metadata = whole::metadata("bookie-0", LedgerState::Open);
    world.layout.ledgers().create(whole::id(9), &metadata).await.unwrap();
    assert_eq!(tell(&world, update(9, made_up(), 0, ENTRIES), false).await, (ErrorCode::Io, -1));
    let short = world.upload(1, 9, (0..ENTRIES).map(|id| stored(9, id))).await;
    assert_eq!(tell(&world, update(9, short, 0, ENTRIES), false).await, (ErrorCode::Io, -1));
    let long = world.upload(2, 9, (0..ENTRIES + 2).map(|id| stored(9, id))).await;
    assert_eq!(tell(&world, update(9, long, 0, ENTRIES + 1), false).await, (ErrorCode::Ok, ENTRIES + 1));
    world.stop().await;
}

/// A ledger is taken over as metadata has it, and lists of it take no time however long it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_ledgers_of_metadata_are_taken_over() {
    let world = World::new(patient(), Canaries::none()).await;
    let last = 1 << 60;
    let restore = |ledger, last| tell(&world, update(ledger, made_up(), 0, last), true);
    assert_eq!(restore(7, last).await, (ErrorCode::BadRequest, -1), "metadata has no such ledger");
    let open = whole::metadata("bookie-0", LedgerState::Open);
    world.layout.ledgers().create(whole::id(8), &open).await.unwrap();
    assert_eq!(restore(8, 9).await, (ErrorCode::BadRequest, -1), "it is open");
    world.close_ledger(9, last).await;
    assert_eq!(restore(9, last + 1).await, (ErrorCode::BadRequest, -1), "it ends before");
    assert_eq!(restore(9, last).await, (ErrorCode::Ok, last));
    for ledger in [7, 8] {
        assert!(world.bookie.shared.engine.last_known(whole::id(ledger)).is_err(), "it is not here");
    }
    let list = |ledger_id| Operation::GetListOfEntries(proto::GetListOfEntriesOfLedgerRequest { ledger_id });
    let mut client = Client::new(&world.bookie).await;
    for txn in 0..8 {
        let answer = client.v3(txn, list(9)).await.get_list_of_entries_of_ledger_response.unwrap();
        let bytes = answer.availability_of_entries_of_ledger.unwrap();
        let entries = EntryAvailability::decode(&bytes).unwrap();
        assert_eq!(entries.entry_count(), last as u64 + 1);
        assert!(entries.contains(entry(last)) && !entries.contains(entry(last + 1)));
    }
    drop(client);
    world.stop().await;
}
