//! A bookie that stands still, as after SIGSTOP: its sockets stay open, and it neither reads nor answers. By scripted
//! bookies on real sockets, with a request timeout that never comes: only bytes decide (IC17).

use std::sync::Arc;
use std::time::Duration;

use bindery_client::{BookieId, Client, EntryId, LedgerId, LedgerWriter, Segment};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{BookieServiceInfo, Layout, LedgerLayout, RegistrationMode, layout};
use bindery_wire::frame::{self, Split};
use bindery_wire::v3::{self, response};
use bindery_wire::{ErrorCode, FrameLimit, Protocol, v2};
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::ledgers::cluster::options;

const MEMORY_LIMIT: u64 = 4 << 20;
const PAYLOAD: [u8; 4096] = [7; 4096];
const PATIENCE: Duration = Duration::from_secs(120);

/// Bookies that acknowledge everything, one of which can be stopped. They end with this.
struct Scripted {
    layout: Layout,
    stopped: watch::Sender<Option<BookieId>>,
    _tasks: JoinSet<()>,
}

impl Scripted {
    async fn start(count: usize) -> Scripted {
        let store = Arc::new(MemoryCluster::new().open());
        layout::init_cluster(&*store, "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
        let layout = Layout::open(store, "/ledgers", None).await.unwrap();
        let (stopped, seen) = watch::channel(None);
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let id = BookieId::new(address.to_string()).unwrap();
            let info = BookieServiceInfo::of_bookie(("127.0.0.1", address.port()), None);
            layout.registration().register(&id, RegistrationMode::Writable, &info).await.unwrap();
            let seen = seen.clone();
            tasks.spawn(async move {
                let mut lines = JoinSet::new();
                while let Ok((socket, _)) = listener.accept().await {
                    lines.spawn(serve(socket, id.clone(), seen.clone()));
                }
            });
        }
        Scripted { layout, stopped, _tasks: tasks }
    }

    async fn client(&self) -> Client {
        let builder = Client::builder().layout(self.layout.clone()).memory_limit(MEMORY_LIMIT);
        builder.request_timeout(Duration::from_secs(600)).connect().await.unwrap()
    }

    async fn marks(&self, ledger: LedgerId) -> Vec<String> {
        self.layout.under_replication().replicas(ledger).await.unwrap().unwrap_or_default()
    }
}

async fn serve(mut socket: TcpStream, id: BookieId, mut stopped: watch::Receiver<Option<BookieId>>) {
    let (mut buffer, mut out) = (BytesMut::new(), BytesMut::new());
    loop {
        stopped.wait_for(|stopped| stopped.as_ref() != Some(&id)).await.unwrap();
        while let Split::Frame(payload) = frame::split(&buffer, FrameLimit::DEFAULT).unwrap() {
            buffer.advance(payload.start);
            let payload = buffer.split_to(payload.len()).freeze();
            if Protocol::of(&payload) == Some(Protocol::V3) {
                let request = v3::Request::decode(payload).unwrap();
                let answer = match request.operation {
                    v3::Operation::ReadLac(asked) => {
                        response::read_lac(request.txn_id, ErrorCode::NoLedger, asked.ledger_id, None, None)
                    }
                    v3::Operation::WriteLac(told) => {
                        response::write_lac(request.txn_id, ErrorCode::Ok, told.ledger_id)
                    }
                    other => panic!("{other:?}"),
                };
                v3::put_frame(&answer, &mut out);
                continue;
            }
            match v2::Request::decode(&payload).unwrap() {
                v2::Request::Add(add) => {
                    v2::put_add_response(2, ErrorCode::Ok, add.ledger_id, add.entry_id, &mut out);
                }
                other => panic!("{other:?}"),
            }
        }
        let ended = socket.write_all_buf(&mut out).await.is_err();
        if ended || !matches!(socket.read_buf(&mut buffer).await, Ok(count) if count > 0) {
            return;
        }
    }
}

async fn enqueue(writer: &LedgerWriter, client: &Client, count: usize) {
    for _ in 0..count {
        writer.enqueue(&PAYLOAD).await.unwrap();
        assert!(client.memory_in_use().adds_bytes <= MEMORY_LIMIT, "IC17");
    }
}

async fn segments(client: &Client, ledger: LedgerId) -> Vec<Segment> {
    client.metadata(ledger).await.unwrap().metadata.segments().to_vec()
}

/// Many times the budget, none of which the stopped bookie acknowledges: it can only pass if what is kept for that one
/// is let go of.
async fn write_past(writer: &LedgerWriter, client: &Client) -> EntryId {
    timeout(PATIENCE, enqueue(writer, client, 4000)).await.expect("a stopped bookie holds up no writer");
    timeout(PATIENCE, writer.drain()).await.expect("confirmed by the others").unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_bookie_is_replaced_by_a_spare_when_it_holds_too_much() {
    let bookies = Scripted::start(4).await;
    let client = bookies.client().await;
    // Two ledgers: the bytes that the bookie holds up of both count together.
    let (one, two) =
        (client.create_ledger(options(3, 3, 2)).await, client.create_ledger(options(3, 3, 2)).await);
    let (one, two) = (one.unwrap(), two.unwrap());
    let of_one = segments(&client, one.id()).await[0].ensemble.clone();
    let of_two = segments(&client, two.id()).await[0].ensemble.clone();
    let victim = of_one.iter().find(|bookie| of_two.contains(bookie)).unwrap().clone();
    enqueue(&one, &client, 100).await;
    enqueue(&two, &client, 100).await;
    one.drain().await.unwrap();
    bookies.stopped.send_replace(Some(victim.clone()));
    tokio::join!(write_past(&one, &client), write_past(&two, &client));
    for writer in [one, two] {
        let ledger = writer.id();
        let last = segments(&client, ledger).await.pop().unwrap();
        assert!(!last.ensemble.contains(&victim), "{last:?}");
        assert_eq!(bookies.marks(ledger).await, [victim.to_string()], "repair is told what was let go of");
        writer.close().await.unwrap();
    }
    bookies.stopped.send_replace(None);
    let all_back = async {
        while client.memory_in_use().adds_bytes > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, all_back).await.expect("every byte comes back");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_spare_a_stopped_bookie_is_passed_over_until_it_answers_again() {
    let bookies = Scripted::start(3).await;
    let client = bookies.client().await;
    let writer = client.create_ledger(options(3, 3, 2)).await.unwrap();
    let ledger = writer.id();
    let ensemble = segments(&client, ledger).await[0].ensemble.clone();
    enqueue(&writer, &client, 100).await;
    writer.drain().await.unwrap();
    bookies.stopped.send_replace(Some(ensemble[1].clone()));
    let last = write_past(&writer, &client).await;
    assert_eq!(segments(&client, ledger).await.len(), 1, "there is nobody else");
    assert_eq!(bookies.marks(ledger).await, [ensemble[1].to_string()]);
    let writes = client.write_health();
    assert_eq!((writes.writers, writes.writers_short, writes.ensemble_changes), (1, 1, 0), "{writes:?}");
    assert_eq!(writes.entries as i64, last.get() + 1);
    // Of every eighth entry of the last seconds.
    assert!((1..=writes.entries.div_ceil(8)).contains(&writes.latency.count), "{writes:?}");
    assert!(!writes.latency.p50.is_zero() && writes.latency.p99 >= writes.latency.p50, "{writes:?}");
    bookies.stopped.send_replace(None);
    let rejoined = async {
        while segments(&client, ledger).await.len() == 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, rejoined).await.expect("it is asked again and again");
    let after = segments(&client, ledger).await.pop().unwrap();
    assert_eq!(
        (after.ensemble, after.first_entry.get()),
        (ensemble.clone(), last.get() + 1),
        "a segment of its own"
    );
    let writes = client.write_health();
    assert_eq!((writes.writers_short, writes.ensemble_changes), (0, 1), "{writes:?}");
    enqueue(&writer, &client, 100).await;
    // Somebody takes the mark for done: it is made again at the end.
    let path = bookies.layout.under_replication().path(ledger);
    bookies.layout.store().delete(&path, None).await.unwrap();
    writer.close().await.unwrap();
    assert_eq!(bookies.marks(ledger).await, [ensemble[1].to_string()]);
    let writes = client.write_health();
    assert_eq!((writes.writers, writes.writers_failed), (0, 0), "{writes:?}");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_want_to_wait_is_told_that_there_is_no_room() {
    let bookies = Scripted::start(1).await;
    let client = bookies.client().await;
    let writer = client.create_ledger(options(1, 1, 1)).await.unwrap();
    let ensemble = segments(&client, writer.id()).await[0].ensemble.clone();
    bookies.stopped.send_replace(Some(ensemble[0].clone()));
    let mut taken = 0;
    let error = loop {
        match writer.try_enqueue(&PAYLOAD) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
        assert!(taken < MEMORY_LIMIT / 4096, "IC17");
    };
    assert!(taken > MEMORY_LIMIT / 4096 * 8 / 10, "an entry counts once: {taken}");
    assert!(error.to_string().contains("raise the client's memory_limit"), "{error}");
    bookies.stopped.send_replace(None);
    assert_eq!(timeout(PATIENCE, writer.drain()).await.unwrap().unwrap(), EntryId::new(taken as i64 - 1));
    timeout(PATIENCE, writer.append(&PAYLOAD)).await.unwrap().unwrap();
    client.close().await;
}
