//! Goal: kill -9 at any moment loses no acknowledged change (invariant 1), and a session with its node outlives it.
//! Method: the coordinator runs in a process of its own (this test's binary, started again); clients create nodes
//! through it as fast as they can; it is killed at random moments and started again on the same directory; then
//! every acknowledged node must be there with its value, and counted once.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::disallowed_methods, reason = "a test that starts and kills processes")]

use bindery_coordinator::{Coordinator, CoordinatorConfig};
use bindery_io::{SeededRandom, SystemClock, SystemRandom};
use bindery_metadata::store::{CreateMode, MetadataStore, SessionState, StoreError};
use bindery_metadata::zookeeper::{self, ZooKeeperOptions, ZooKeeperStore};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const DIR: &str = "BINDERY_TEST_KILLED_DIR";
const ADDRESS: &str = "BINDERY_TEST_KILLED_ADDRESS";
const KILLS: u64 = 25;
const WRITERS: usize = 8;

/// Not a test of its own: the process that is killed.
#[test]
#[ignore = "started by the test in this file"]
fn the_process_that_is_killed() {
    let (Ok(dir), Ok(address)) = (std::env::var(DIR), std::env::var(ADDRESS)) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let config = CoordinatorConfig::new(address.parse().unwrap(), dir);
        let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
        let coordinator = Coordinator::start(config, clock, random).await.unwrap();
        println!("\nlistening {}", coordinator.local_addr());
        panic!("the store failed: {}", coordinator.failed().await);
    });
}

/// Does not outlive the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn start(dir: &std::path::Path, address: SocketAddr) -> (Process, SocketAddr) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::the_process_that_is_killed", "--ignored", "--nocapture"])
        .env(DIR, dir)
        .env(ADDRESS, address.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let listening = lines.find_map(|line| Some(line.strip_prefix("listening ")?.to_owned()));
    // Whatever else it prints; until it is killed.
    std::thread::spawn(move || lines.for_each(drop));
    (Process(child), listening.expect("it starts").parse().unwrap())
}

async fn connect(address: SocketAddr) -> Arc<ZooKeeperStore> {
    let options =
        ZooKeeperOptions { session_timeout: Duration::from_secs(30), ..ZooKeeperOptions::default() };
    Arc::new(zookeeper::connect(&[address.to_string()], options).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_kill_loses_what_was_acknowledged() {
    let dir = tempfile::TempDir::new().unwrap();
    let seed = std::env::var("SEED").map_or(7, |seed| seed.parse().unwrap());
    let random = SeededRandom::new(seed);
    let (mut child, address) = start(dir.path(), "127.0.0.1:0".parse().unwrap());
    let store = connect(address).await;
    let session = store.session_credentials().unwrap().id;
    store.create("/n", "".into(), CreateMode::Persistent).await.unwrap();
    store.create("/e", "".into(), CreateMode::Ephemeral).await.unwrap();
    let (mut acknowledged, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    for kill in 0..KILLS {
        let is_killed = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (store, is_killed) = (store.clone(), is_killed.clone());
                tokio::spawn(async move {
                    let mut done = Vec::new();
                    for number in 0.. {
                        let path = format!("/n/{kill}-{writer}-{number}");
                        match store.create(&path, path.clone().into(), CreateMode::Persistent).await {
                            // Requests that were not sent yet go to the next process.
                            Ok(_) if is_killed.load(Ordering::SeqCst) => return (done, path),
                            Ok(_) => done.push(path),
                            Err(StoreError::ConnectionLoss) => return (done, path),
                            Err(other) => panic!("{path}: {other}"),
                        }
                    }
                    unreachable!("it is killed");
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_micros(random.below(150_000))).await;
        drop(child);
        is_killed.store(true, Ordering::SeqCst);
        (child, _) = start(dir.path(), address);
        for writer in writers {
            let (done, last) = writer.await.unwrap();
            acknowledged.extend(done);
            unknown.insert(last);
        }
        let mut state = store.session();
        let back = state.wait_for(|state| *state == SessionState::Connected(session));
        tokio::time::timeout(Duration::from_secs(30), back).await.expect("the session goes on").unwrap();
        let listed = store.children("/n").await.unwrap();
        let found: BTreeSet<String> = listed.iter().map(|name| format!("/n/{name}")).collect();
        assert_eq!(found.len(), listed.len(), "each once");
        let lost: Vec<_> = acknowledged.difference(&found).collect();
        assert!(lost.is_empty(), "SEED={seed} kill {kill}: acknowledged and lost: {lost:?}");
        let invented: Vec<_> =
            found.iter().filter(|path| !acknowledged.contains(*path) && !unknown.contains(*path)).collect();
        assert!(invented.is_empty(), "SEED={seed} kill {kill}: {invented:?}");
    }
    for path in &acknowledged {
        assert_eq!(store.get(path).await.unwrap().data, path.as_bytes(), "{path}");
    }
    assert_eq!(store.get("/e").await.unwrap().stat.owner, Some(session));
    println!("kills={KILLS} acknowledged={} unknown={} SEED={seed}", acknowledged.len(), unknown.len());
    assert!(acknowledged.len() > 100);
    drop(child);
}
