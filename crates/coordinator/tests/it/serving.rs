//! A started coordinator over real sockets: the metadata driver's conformance suite, restarts, refusals, bad clients.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use bindery_coordinator::{Coordinator, CoordinatorConfig, StartError};
use bindery_io::{Disk, SeededRandom, SystemClock, SystemRandom};
use bindery_metadata::conformance::{self, Harness, Opening};
use bindery_metadata::store::{
    CreateMode, MetadataStore, SessionCredentials, SessionState, StoreError, WatchEvent,
};
use bindery_metadata::zookeeper::{self, ZooKeeperOptions, ZooKeeperStore};
use bindery_sim::disk::{FaultKind, SimDisk, SimDiskConfig};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Far above anything that must happen.
const PATIENCE: Duration = Duration::from_secs(120);
const SESSION_TIMEOUT: Duration = Duration::from_secs(2);

fn config(listen: &str, dir: &TempDir) -> CoordinatorConfig {
    let mut config = CoordinatorConfig::new(listen.parse().unwrap(), dir.path().join("data"));
    config.tick = Duration::from_millis(200);
    config
}

async fn try_start(config: CoordinatorConfig) -> Result<Coordinator, StartError> {
    Coordinator::start(config, Arc::new(SystemClock::new()), Arc::new(SystemRandom)).await
}

async fn start(dir: &TempDir) -> Coordinator {
    try_start(config("127.0.0.1:0", dir)).await.unwrap()
}

async fn connect(address: SocketAddr, resume: Option<SessionCredentials>) -> ZooKeeperStore {
    let options =
        ZooKeeperOptions { session_timeout: SESSION_TIMEOUT, resume, ..ZooKeeperOptions::default() };
    zookeeper::connect(&[address.to_string()], options).await.expect("a coordinator that serves")
}

struct Embedded(SocketAddr);

impl Harness for Embedded {
    fn open(&self) -> Opening<'_> {
        Box::pin(async { Arc::new(connect(self.0, None).await) as Arc<dyn MetadataStore> })
    }
    fn resume(&self, credentials: SessionCredentials) -> Opening<'_> {
        Box::pin(async { Arc::new(connect(self.0, Some(credentials)).await) as Arc<dyn MetadataStore> })
    }
    fn base(&self, name: &'static str) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(async move {
            let store = connect(self.0, None).await;
            let created = store.create(&format!("/{name}"), "".into(), CreateMode::Persistent).await.unwrap();
            store.close().await.unwrap();
            created.path
        })
    }
}

#[tokio::test]
async fn the_metadata_driver_conforms_on_the_coordinator() {
    let dir = TempDir::new().unwrap();
    let coordinator = start(&dir).await;
    let checks = conformance::run(&Embedded(coordinator.local_addr())).await;
    println!("conformance_checks={checks}");
    assert!(checks > 0);
    coordinator.stop().await;
}

/// Invariant 4: the client's session and its node are there after a restart; without the client they go.
#[tokio::test]
async fn sessions_and_their_nodes_survive_a_restart_and_expire_without_their_client() {
    let dir = TempDir::new().unwrap();
    let coordinator = start(&dir).await;
    let address = coordinator.local_addr();
    let store = connect(address, None).await;
    let credentials = store.session_credentials().unwrap();
    store.create("/e", "v".into(), CreateMode::Ephemeral).await.unwrap();
    let before = store.create("/p", "v".into(), CreateMode::Persistent).await.unwrap().path;
    coordinator.stop().await;
    // Longer than the session timeout: it counts from the restart.
    tokio::time::sleep(SESSION_TIMEOUT + Duration::from_millis(500)).await;
    let coordinator = try_start(config(&address.to_string(), &dir)).await.unwrap();
    let mut session = store.session();
    let connected = session.wait_for(|state| *state == SessionState::Connected(credentials.id));
    tokio::time::timeout(PATIENCE, connected).await.expect("it comes back under its session").unwrap();
    let node = store.get("/e").await.unwrap();
    assert_eq!((node.stat.owner, &node.data[..]), (Some(credentials.id), &b"v"[..]));
    assert!(store.exists(&before).await.unwrap().is_some());
    assert!(store.set("/p", "w".into(), None).await.is_ok(), "a zxid above all before");
    let other = connect(address, None).await;
    let (_, watch) = other.get_and_watch("/e").await.unwrap();
    drop(store);
    let event = tokio::time::timeout(PATIENCE, watch.changed()).await.expect("the session expires");
    assert_eq!(event, WatchEvent::Deleted);
    coordinator.stop().await;
}

/// Invariant 5, and the other reasons not to start. Each says what is wrong.
#[tokio::test]
async fn a_start_that_cannot_be_says_why() {
    let dir = TempDir::new().unwrap();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:2181"] {
        let error = try_start(config(address, &dir)).await.err().unwrap();
        assert!(matches!(error, StartError::NotLoopback { .. }), "{address}: {error}");
        assert!(error.to_string().contains("loopback only"), "{error}");
    }
    let coordinator = start(&dir).await;
    let error = try_start(config("127.0.0.1:0", &dir)).await.err().unwrap();
    assert!(
        matches!(&error, StartError::Locked { dir: locked } if *locked == dir.path().join("data")),
        "{error}"
    );
    let other = TempDir::new().unwrap();
    let address = coordinator.local_addr();
    let error = try_start(config(&address.to_string(), &other)).await.err().unwrap();
    assert!(matches!(error, StartError::AddressInUse { address: taken } if taken == address), "{error}");
    coordinator.stop().await;
    start(&dir).await.stop().await;
}

/// Invariant 6: once the disk fails, nothing is acknowledged, the port closes, and the reason is there to be told.
#[tokio::test]
async fn a_failing_disk_ends_service_without_a_false_answer() {
    let dir = TempDir::new().unwrap();
    let disk = Arc::new(SimDisk::new(SimDiskConfig::default(), &SeededRandom::new(1)));
    let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
    let on: Arc<dyn Disk> = disk.clone();
    let mut config = config("127.0.0.1:0", &dir);
    config.data_dir = "/coordinator".into();
    let coordinator = Coordinator::start_on(on, config, clock, random).await.unwrap();
    let store = connect(coordinator.local_addr(), None).await;
    store.create("/a", "v".into(), CreateMode::Persistent).await.unwrap();
    assert_eq!(coordinator.failure(), None);
    disk.order_fault(FaultKind::SyncErrorNewData, None);
    let refused = store.create("/b", "v".into(), CreateMode::Persistent).await;
    assert_eq!(refused, Err(StoreError::ConnectionLoss));
    let reason = tokio::time::timeout(PATIENCE, coordinator.failed()).await.expect("it says so");
    assert!(reason.starts_with("the coordinator's store failed: "), "{reason}");
    assert_eq!(coordinator.failure(), Some(reason));
    let closed = async {
        while TcpStream::connect(coordinator.local_addr()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, closed).await.expect("the port closes");
    tokio::time::timeout(PATIENCE, coordinator.stop()).await.expect("it still stops");
}

/// The answer to a four letter word.
pub(crate) async fn word(address: SocketAddr, word: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(word.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, socket.read_to_string(&mut answer)).await.unwrap().unwrap();
    answer
}

#[tokio::test]
async fn four_letter_words_are_answered() {
    let dir = TempDir::new().unwrap();
    let coordinator = start(&dir).await;
    let address = coordinator.local_addr();
    let _client = connect(address, None).await;
    assert_eq!(word(address, "ruok").await, "imok");
    assert_eq!(word(address, "isro").await, "rw");
    for (word, text) in [("stat", word(address, "stat").await), ("srvr", word(address, "srvr").await)] {
        assert!(text.starts_with("Zookeeper version: 3.9."), "{text}");
        assert!(text.contains("\nMode: standalone\nNode count: 5\n"), "{text}");
        assert_eq!(text.contains("Clients:\n /127.0.0.1:"), word == "stat", "{text}");
    }
    let monitored = word(address, "mntr").await;
    for line in ["zk_global_sessions\t1\n", "bindery_requests_zookeeper_session\t1\n"] {
        assert!(monitored.contains(line), "{monitored}");
    }
    assert_eq!(word(address, "dump").await, "dump is not executed because it is not in the whitelist.\n");
    coordinator.stop().await;
}

/// A connect request for a new session of 400 ms, the shortest.
const CONNECT: [u8; 33] =
    [0, 0, 0, 29, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x90, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Reads until the server closes.
async fn closed_by_server(socket: &mut TcpStream) -> usize {
    let mut buffer = vec![0; 64 << 10];
    let mut total = 0;
    loop {
        match tokio::time::timeout(PATIENCE, socket.read(&mut buffer)).await.expect("it is closed in time") {
            Ok(0) | Err(_) => return total,
            Ok(n) => total += n,
        }
    }
}

/// Connection invariant 2: someone who asks for much and takes nothing is neither served for ever nor kept.
#[tokio::test]
async fn a_client_that_takes_nothing_is_disconnected_and_hinders_nobody() {
    let dir = TempDir::new().unwrap();
    let coordinator = start(&dir).await;
    let address = coordinator.local_addr();
    let store = connect(address, None).await;
    store.create("/large", vec![7; 900_000].into(), CreateMode::Persistent).await.unwrap();
    let mut greedy = TcpStream::connect(address).await.unwrap();
    greedy.write_all(&CONNECT).await.unwrap();
    let mut request = vec![0, 0, 0, 19, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 6];
    request.extend_from_slice(b"/large\0");
    let asked = async {
        let mut asked = 0u64;
        while greedy.write_all(&request).await.is_ok() {
            asked += 1;
        }
        asked
    };
    let mut pings = 0;
    let asked = {
        tokio::pin!(asked);
        loop {
            tokio::select! {
                asked = &mut asked => break asked,
                found = store.exists("/large") => {
                    assert!(found.unwrap().is_some());
                    pings += 1;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    };
    assert!(pings > 3, "others are served meanwhile: {pings}");
    println!("requests taken from a client that reads nothing: {asked}, others served {pings} times");
    coordinator.stop().await;
}

/// Bytes that are no protocol, and frames cut or mangled: each connection ends, and the server goes on.
#[tokio::test]
async fn nonsense_ends_its_connection_only() {
    let dir = TempDir::new().unwrap();
    let mut config = config("127.0.0.1:0", &dir);
    config.handshake_timeout = Duration::from_millis(500);
    let coordinator = try_start(config).await.unwrap();
    let address = coordinator.local_addr();
    let random = SeededRandom::new(3);
    let mut connections = tokio::task::JoinSet::new();
    for number in 0..200u64 {
        let mut bytes: Vec<u8> = Vec::new();
        if number % 2 == 0 {
            bytes.extend_from_slice(&CONNECT);
        }
        for _ in 0..random.below(30) {
            let len = random.below(200) as usize;
            if random.chance(0.8) {
                bytes.extend_from_slice(&(len as u32).to_be_bytes());
            }
            bytes.extend((0..len).map(|_| if random.chance(0.5) { 0 } else { random.below(256) as u8 }));
        }
        connections.spawn(async move {
            let mut socket = TcpStream::connect(address).await.unwrap();
            let _ = socket.write_all(&bytes).await;
            closed_by_server(&mut socket).await
        });
    }
    while let Some(ended) = connections.join_next().await {
        ended.unwrap();
    }
    assert_eq!(word(address, "ruok").await, "imok");
    let store = connect(address, None).await;
    store.create("/still", "here".into(), CreateMode::Persistent).await.unwrap();
    coordinator.stop().await;
}

/// A dropped coordinator finishes the writes it had begun: no other process may open the store meanwhile, and the
/// directory is free afterwards.
#[tokio::test]
async fn a_dropped_coordinator_lets_go_of_its_directory_when_it_has_written_everything() {
    let dir = TempDir::new().unwrap();
    for round in 0..20 {
        let coordinator = tokio::time::timeout(PATIENCE, async {
            loop {
                match try_start(config("127.0.0.1:0", &dir)).await {
                    Ok(coordinator) => break coordinator,
                    Err(StartError::Locked { .. }) => tokio::time::sleep(Duration::from_millis(1)).await,
                    Err(error) => panic!("round {round}: {error}"),
                }
            }
        });
        let coordinator = coordinator.await.expect("the directory is let go of");
        let store = Arc::new(connect(coordinator.local_addr(), None).await);
        for before in 0..round {
            assert!(store.exists(&format!("/{before}")).await.unwrap().is_some(), "round {round}");
        }
        store.create(&format!("/{round}"), "v".into(), CreateMode::Persistent).await.unwrap();
        let creates = (0..50).map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let _ = store.create(&format!("/{round}-{n}"), "v".into(), CreateMode::Persistent).await;
            })
        });
        let creates: Vec<_> = creates.collect();
        tokio::task::yield_now().await;
        drop(coordinator);
        creates.into_iter().for_each(|create| create.abort());
    }
}
