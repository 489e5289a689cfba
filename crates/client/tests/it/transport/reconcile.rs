//! RECONCILE_LEDGERS, against peers that answer it well and badly.

use std::time::Duration;

use bindery_client::transport::{AddRequest, BookieError, PollRequest, Transport};
use bindery_client::{
    BookieId, Client, Reconcile, ReconcileError, Reconciled, TIER_PROPERTY, TIER_PROPERTY_VALUE, TierSupport,
};
use bindery_metadata::memory::{MemoryCluster, MemoryStore};
use bindery_metadata::{Layout, RegistrationMode};
use bindery_types::tier::{ClusterId, ObjectId, ObjectRef, Reconciliation, TierExtent};
use bindery_types::{EntryId, TierSecret};
use bindery_wire::ErrorCode;
use bindery_wire::v3::reconcile::{EXTENTS_MAX, LEDGERS_MAX};
use bindery_wire::v3::{self, proto, response};
use tokio::io::AsyncWriteExt;

use crate::transport::peer::{Line, Peer};
use crate::transport::support::*;

/// Updates of these ledgers, each up to this entry in one object.
fn request(ledgers: &[(i64, i64)]) -> Reconcile {
    let object = ObjectRef {
        id: ObjectId::new(7, [9; 10]),
        length_bytes: 1000,
        footer_offset: 900,
        footer_crc: 1,
        etag_crc: 2,
    };
    let ledgers = ledgers.iter().map(|(id, last)| {
        let extents = match EntryId::new(*last) {
            Some(last) => vec![TierExtent { first: entry(0), last, object }],
            None => Vec::new(),
        };
        Reconciliation { ledger: ledger(*id), last: EntryId::new(*last), extents, created_ms: None }
    });
    Reconcile { cluster: ClusterId::from_bytes([5; 16]), ledgers: ledgers.collect(), is_restore: false }
}

/// A client, and a peer that is registered.
struct Setup {
    cluster: MemoryCluster,
    client: Client,
    peer: Peer,
    /// Its session is the peer's registration.
    layout: Layout,
    _session: std::sync::Arc<MemoryStore>,
}

impl Setup {
    async fn new(value: Option<&str>) -> Setup {
        let cluster = cluster().await;
        let client = Client::builder()
            .layout(open(&cluster).await)
            .request_timeout(Duration::from_secs(60))
            .connect()
            .await
            .unwrap();
        let session = std::sync::Arc::new(cluster.open());
        let layout = Layout::open(session.clone(), "/ledgers", None).await.unwrap();
        let setup = Setup { cluster, client, peer: Peer::new().await, layout, _session: session };
        setup.register(RegistrationMode::Writable, value).await;
        setup
    }

    async fn supported() -> Setup {
        Setup::new(Some(TIER_PROPERTY_VALUE)).await
    }

    async fn register(&self, mode: RegistrationMode, value: Option<&str>) {
        let mut info = self.peer.info();
        info.properties.extend(value.map(|value| (TIER_PROPERTY.to_owned(), value.to_owned())));
        self.layout.registration().register(&self.peer.id, mode, &info).await.unwrap();
    }

    async fn support(&self) -> TierSupport {
        self.client.tier_support(&self.peer.id).await.unwrap()
    }

    async fn reconcile(&self, ledgers: &[(i64, i64)]) -> Result<Vec<Reconciled>, ReconcileError> {
        self.client.reconcile(&self.peer.id, request(ledgers), PATIENCE).await
    }

    fn failed(&self, error: BookieError) -> ReconcileError {
        ReconcileError::Bookie { bookie: self.peer.id.clone(), error }
    }

    /// What the client makes of an answer to an update of ledgers 1 and 2 up to entry 9.
    async fn judged(&self, answer: impl FnOnce(u64) -> proto::Response) -> String {
        let (asked, ()) = tokio::join!(self.reconcile(&[(1, 9), (2, 9)]), async {
            let mut line = self.peer.accept().await;
            let (txn_id, _) = next_request(&mut line).await;
            line.answer_v3(answer(txn_id)).await;
        });
        match asked {
            Err(ReconcileError::Bookie { bookie, error: BookieError::Unexpected(why) }) => {
                assert_eq!(bookie, self.peer.id);
                why
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn next_request(line: &mut Line) -> (u64, Reconcile) {
    let v3::Request { txn_id, operation, .. } = line.next_v3().await;
    match operation {
        v3::Operation::ReconcileLedgers(message) => (txn_id, Reconcile::from_message(&message).unwrap()),
        other => panic!("{other:?}"),
    }
}

fn result(ledger: i64, status: i32, register: i64) -> proto::reconcile_ledgers_response::Result {
    proto::reconcile_ledgers_response::Result {
        ledger_id: ledger,
        status,
        last_reconciled: register,
        let_go: None,
    }
}

/// Ledger, status, register.
type Answered = (i64, i32, i64);

fn results(txn_id: u64, results: &[Answered]) -> proto::Response {
    let results = results.iter().map(|(ledger, status, register)| result(*ledger, *status, *register));
    // Whatever they are, also what no bookie says.
    let body = proto::ReconcileLedgersResponse { status: OK, results: results.collect() };
    let empty = response::reconcile_ledgers(txn_id, ErrorCode::Ok, Vec::new());
    proto::Response { reconcile_ledgers_response: Some(body), ..empty }
}

const OK: i32 = 0;

#[tokio::test]
async fn each_ledger_has_a_result_of_its_own_in_the_order_of_the_request() {
    let setup = Setup::supported().await;
    assert_eq!(setup.support().await, TierSupport::Supported);
    let sent = [(4, 7), (2, -1), (9, 100), (1, 3)];
    let (asked, ()) = tokio::join!(setup.reconcile(&sent), async {
        let mut line = setup.peer.accept().await;
        let (txn_id, found) = next_request(&mut line).await;
        assert_eq!(found, request(&sent));
        let codes = [ErrorCode::Ok, ErrorCode::Ok, ErrorCode::BadRequest, ErrorCode::NoLedger];
        let codes = codes.map(ErrorCode::v3);
        line.answer_v3(results(
            txn_id,
            &[(4, codes[0], 9), (2, codes[1], -1), (9, codes[2], 50), (1, codes[3], -1)],
        ))
        .await;
    });
    let of = |id, code, last| Reconciled { ledger: ledger(id), code, last: EntryId::new(last), let_go: None };
    let expected = [
        of(4, ErrorCode::Ok, 9),
        of(2, ErrorCode::Ok, -1),
        of(9, ErrorCode::BadRequest, 50),
        of(1, ErrorCode::NoLedger, -1),
    ];
    assert_eq!(asked.unwrap(), expected);
}

#[tokio::test]
async fn a_refusal_of_the_request_is_the_bookies_word() {
    for code in [ErrorCode::BadRequest, ErrorCode::TooManyRequests, ErrorCode::Io] {
        let setup = Setup::supported().await;
        let twice = async {
            let first = setup.reconcile(&[(1, 9)]).await;
            (first, setup.reconcile(&[(1, 9)]).await)
        };
        let (asked, ()) = tokio::join!(twice, async {
            let mut line = setup.peer.accept().await;
            let (txn_id, _) = next_request(&mut line).await;
            line.answer_v3(response::reconcile_ledgers(txn_id, code, Vec::new())).await;
            // Inside only, which no bookie should do.
            let (txn_id, _) = next_request(&mut line).await;
            let answer = response::reconcile_ledgers(txn_id, code, Vec::new());
            line.answer_v3(proto::Response { status: OK, ..answer }).await;
        });
        let refused = || Err(setup.failed(BookieError::Refused(code)));
        assert_eq!(asked, (refused(), refused()));
        let busy = setup.client.busy_bookies(PATIENCE);
        assert_eq!(busy.len(), usize::from(code == ErrorCode::TooManyRequests), "{code:?}");
    }
}

#[tokio::test]
async fn one_that_hangs_ends_with_the_deadline_and_holds_up_nobody() {
    let setup = Setup::supported().await;
    let deadline = Duration::from_millis(100);
    let late = setup.client.reconcile(&setup.peer.id, request(&[(1, 9)]), deadline).await;
    assert_eq!(late, Err(setup.failed(BookieError::TimedOut(deadline))));
    let error = BookieError::TimedOut(deadline);
    assert!(error.is_unknown(), "it may have been applied");
    // Its late answer is not taken for that of the next request, which goes over the same connection.
    let (asked, ()) = tokio::join!(setup.reconcile(&[(2, 5)]), async {
        let mut line = setup.peer.accept().await;
        let (first, _) = next_request(&mut line).await;
        let (second, found) = next_request(&mut line).await;
        assert_eq!(found, request(&[(2, 5)]));
        line.answer_v3(results(first, &[(1, OK, 9)])).await;
        line.answer_v3(results(second, &[(2, OK, 5)])).await;
    });
    assert_eq!(asked.unwrap()[0].last, EntryId::new(5));
    // One that cannot be connected to: the deadline holds as well.
    let gone = Setup::supported().await;
    let Setup { client, peer, .. } = &gone;
    let id: BookieId = peer.id.clone();
    let deadline = Duration::from_millis(50);
    drop(client.reconcile(&id, request(&[(1, 9)]), deadline).await.unwrap_err());
}

#[tokio::test]
async fn answers_that_make_no_sense_are_errors_that_say_why() {
    let cases: [(&[Answered], &str); 8] = [
        (&[], "0 results for 2 ledgers"),
        (&[(1, OK, 9)], "1 results for 2 ledgers"),
        (&[(1, OK, 9), (2, OK, 9), (3, OK, 9)], "3 results for 2 ledgers"),
        (&[(2, OK, 9), (1, OK, 9)], "a result for ledger 2 in place of 1"),
        (&[(1, OK, 9), (1, OK, 9)], "a result for ledger 1 in place of 2"),
        (&[(1, OK, 9), (2, 4711, 9)], "status is unknown"),
        (&[(1, OK, 9), (2, OK, -2)], "below -1"),
        (&[(1, OK, 9), (2, OK, 8)], "ledger 2 has register 8 after an update to 9"),
    ];
    for (answer, expected) in cases {
        let why = Setup::supported().await.judged(|txn_id| results(txn_id, answer)).await;
        assert!(why.contains(expected), "{why} ({expected})");
    }
    let setup = Setup::supported().await;
    let why = setup
        .judged(|txn_id| {
            let operation = proto::OperationType::ReconcileLedgers;
            response::without_body(txn_id, operation, ErrorCode::Ok)
        })
        .await;
    assert!(why.contains("without its message"), "{why}");
    let setup = Setup::supported().await;
    let unknown = |txn_id| {
        let body = proto::ReconcileLedgersResponse { status: 4711, results: Vec::new() };
        proto::Response { reconcile_ledgers_response: Some(body), ..results(txn_id, &[]) }
    };
    let why = setup.judged(unknown).await;
    assert!(why.contains("unknown status 4711"), "{why}");
    // No message at all, and a status that the protocol does not have: nothing behind it can be understood.
    for is_status in [false, true] {
        let setup = Setup::supported().await;
        let (asked, ()) = tokio::join!(setup.reconcile(&[(1, 9)]), async {
            let mut line = setup.peer.accept().await;
            let (txn_id, _) = next_request(&mut line).await;
            match is_status {
                true => line.answer_v3(proto::Response { status: 4711, ..results(txn_id, &[]) }).await,
                false => line.socket.write_all(b"\0\0\0\x04\xff\xff\xff\xff").await.unwrap(),
            }
            assert!(line.until_closed().await);
        });
        assert!(matches!(asked, Err(ReconcileError::Bookie { error: BookieError::Unexpected(_), .. })));
    }
    // The connection breaks.
    let setup = Setup::supported().await;
    let (asked, ()) = tokio::join!(setup.reconcile(&[(1, 9)]), async {
        let mut line = setup.peer.accept().await;
        next_request(&mut line).await;
    });
    let Err(ReconcileError::Bookie { error: BookieError::LostUnanswered(why), .. }) = asked else {
        panic!("{asked:?}")
    };
    assert!(why.contains("none of a bookie for its clients"), "{why}");
}

/// Reconcile invariants 1 and 2.
#[tokio::test]
async fn only_those_that_advertise_it_are_asked_and_what_they_advertise_is_followed() {
    for value in [None, Some("0"), Some("2"), Some("")] {
        let setup = Setup::new(value).await;
        assert_eq!(setup.support().await, TierSupport::KeepsEverything);
        let refused = Err(ReconcileError::NotSupported(setup.peer.id.clone()));
        assert_eq!(setup.reconcile(&[(1, 9)]).await, refused, "{value:?}");
        // It restarts with a tier, becomes read-only, writable again, and then it is gone.
        for mode in [RegistrationMode::Writable, RegistrationMode::ReadOnly, RegistrationMode::Writable] {
            setup.register(mode, Some(TIER_PROPERTY_VALUE)).await;
            until(&setup, TierSupport::Supported).await;
            setup.register(mode, value).await;
            until(&setup, TierSupport::KeepsEverything).await;
        }
        setup.register(RegistrationMode::Writable, Some(TIER_PROPERTY_VALUE)).await;
        until(&setup, TierSupport::Supported).await;
        // The first connection that is made brings the first request that was allowed.
        let (asked, ()) = tokio::join!(setup.reconcile(&[(2, 5)]), async {
            let mut line = setup.peer.accept().await;
            let (txn_id, found) = next_request(&mut line).await;
            assert_eq!((txn_id, found), (1, request(&[(2, 5)])));
            line.answer_v3(results(txn_id, &[(2, OK, 5)])).await;
        });
        assert_eq!(asked.unwrap().len(), 1);
        setup.layout.registration().unregister(&setup.peer.id).await.unwrap();
        until(&setup, TierSupport::NotRegistered).await;
        let refused = Err(ReconcileError::NotRegistered(setup.peer.id.clone()));
        assert_eq!(setup.reconcile(&[(1, 9)]).await, refused);
    }
}

/// Watches of the store in memory fire at once, and those of others soon.
async fn until(setup: &Setup, expected: TierSupport) {
    let seen = async {
        while setup.support().await != expected {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, seen).await.unwrap_or_else(|_| panic!("{expected:?}"));
}

#[tokio::test]
async fn what_is_remembered_costs_the_metadata_store_nothing_and_is_not_believed_for_ever() {
    let setup = Setup::supported().await;
    assert_eq!(setup.support().await, TierSupport::Supported);
    // Another session deletes the node, as an expiry does; the watch says so.
    let other = setup.cluster.open();
    let path = format!("/ledgers/available/{}", setup.peer.id);
    bindery_metadata::MetadataStore::delete(&other, &path, None).await.unwrap();
    until(&setup, TierSupport::NotRegistered).await;
}

#[tokio::test]
async fn a_request_that_is_empty_or_too_large_is_not_sent() {
    let setup = Setup::supported().await;
    assert_eq!(setup.reconcile(&[]).await, Ok(Vec::new()));
    let many: Vec<(i64, i64)> = (0..=LEDGERS_MAX as i64).map(|id| (id, -1)).collect();
    let refused = Err(ReconcileError::TooLarge { ledgers: LEDGERS_MAX + 1, extents: 0 });
    assert_eq!(setup.reconcile(&many).await, refused);
    let mut large = request(&[(1, 9)]);
    large.ledgers[0].extents = vec![large.ledgers[0].extents[0]; EXTENTS_MAX + 1];
    let refused = setup.client.reconcile(&setup.peer.id, large, PATIENCE).await;
    assert_eq!(refused, Err(ReconcileError::TooLarge { ledgers: 1, extents: EXTENTS_MAX + 1 }));
    // The most that may be sent, and a closed client.
    let many = &many[..LEDGERS_MAX];
    let (asked, ()) = tokio::join!(setup.reconcile(many), async {
        let mut line = setup.peer.accept().await;
        let (txn_id, found) = next_request(&mut line).await;
        let answers: Vec<_> = found.ledgers.iter().map(|found| (found.ledger.get(), OK, -1)).collect();
        line.answer_v3(results(txn_id, &answers)).await;
    });
    assert_eq!(asked.unwrap().len(), LEDGERS_MAX);
    setup.client.close().await;
    assert_eq!(setup.reconcile(&[(1, 9)]).await, Err(setup.failed(BookieError::Closed)));
}

/// Adds with deferred sync hold up their lane after 5,000 without an answer; this goes another way.
#[tokio::test]
async fn it_does_not_wait_behind_adds_with_deferred_sync_or_long_polls() {
    let cluster = cluster().await;
    let bookies = bindery_client::connection::Bookies::new(registration(&cluster).await, quick(60_000));
    let (peer, sink) = (Peer::new().await, Recorder::new());
    for tag in 0..6000 {
        sink.send(&bookies, &peer.id, AddRequest { is_deferred: true, ..add(1, tag, tag as u64, 10) });
    }
    let wait = Duration::from_secs(60);
    let poll = bookies.poll_lac(&peer.id, PollRequest { ledger: ledger(1), previous: None, wait });
    let adds = peer.accept().await;
    let (asked, ()) = tokio::join!(bookies.reconcile(&peer.id, request(&[(1, 9)]), None, PATIENCE), async {
        let mut line = peer.accept().await;
        let (txn_id, _) = next_request(&mut line).await;
        line.answer_v3(results(txn_id, &[(1, OK, 9)])).await;
    });
    assert_eq!(asked.unwrap()[0].last, EntryId::new(9));
    assert_eq!(sink.count(), 0);
    bookies.close().await;
    assert_eq!(poll.await, Err(BookieError::Closed));
    drop(adds);
}

/// The secret is read when it is needed, and again after a bookie refused it.
#[tokio::test]
async fn a_request_carries_a_proof_by_the_secret_of_the_cluster() {
    let setup = Setup::supported().await;
    let secrets = [1, 2].map(|byte| TierSecret::from_bytes([byte; 32]));
    let node = setup.layout.tier_secret();
    // Before a bookie has drawn one there is none; then the first; it stays until it is refused.
    type Expected<'a> = &'a dyn Fn(&proto::ReconcileLedgersRequest) -> bool;
    let steps: [(Expected<'_>, ErrorCode); 4] = [
        (&|message| message.proof.is_none(), ErrorCode::Unauthorized),
        (&|message| message.is_proven(&secrets[0], &setup.peer.id), ErrorCode::Ok),
        (&|message| message.is_proven(&secrets[0], &setup.peer.id), ErrorCode::Unauthorized),
        (&|message| message.is_proven(&secrets[1], &setup.peer.id), ErrorCode::Ok),
    ];
    let mut line = None;
    for (step, (is_expected, code)) in steps.into_iter().enumerate() {
        match step {
            1 => drop(node.get_or_create(secrets[0].clone()).await.unwrap()),
            2 => {
                setup.layout.store().delete(&node.path(), None).await.unwrap();
                node.get_or_create(secrets[1].clone()).await.unwrap();
            }
            _ => {}
        }
        let (asked, message) = tokio::join!(setup.reconcile(&[(1, 9)]), async {
            if line.is_none() {
                line = Some(setup.peer.accept().await);
            }
            let line = line.as_mut().unwrap();
            let v3::Request { txn_id, operation, .. } = line.next_v3().await;
            let v3::Operation::ReconcileLedgers(message) = operation else { panic!("{operation:?}") };
            let answer = match code {
                ErrorCode::Ok => results(txn_id, &[(1, OK, 9)]),
                code => response::reconcile_ledgers(txn_id, code, Vec::new()),
            };
            line.answer_v3(answer).await;
            message
        });
        assert!(is_expected(&message), "step {step}");
        match code {
            ErrorCode::Ok => assert_eq!(asked.unwrap()[0].last, EntryId::new(9)),
            _ => {
                let error = asked.unwrap_err();
                assert!(error.to_string().contains(&node.path()), "{error}");
            }
        }
    }
}
