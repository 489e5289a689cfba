//! Goal: kill -9 at any moment loses no acknowledged change (invariant 1), and a session with its node outlives it.
//! Method: the coordinator runs in a process of its own (this test's binary, started again); clients create nodes
//! through it as fast as they can; it is killed at random moments and started again on the same directory; then
//! every acknowledged node must be there with its value, and counted once.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::disallowed_methods, reason = "a test that starts and kills processes")]

use crate::killed;
use bindery_coordinator::{Coordinator, CoordinatorConfig};
use bindery_io::SeededRandom;
use bindery_metadata::store::{CreateMode, MetadataStore, SessionState, StoreError};
use bindery_metadata::zookeeper::{self, ZooKeeperOptions, ZooKeeperStore};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The test that is the process.
const SERVER: &str = "kill::the_process_that_is_killed";
const KILLS: u64 = 25;
const WRITERS: usize = 8;

/// Not a test of its own: the process that is killed.
#[test]
#[ignore = "started by the test in this file"]
fn the_process_that_is_killed() {
    killed::serve(|dir, address| CoordinatorConfig::new(address, dir), Coordinator::local_addr);
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
    let (mut child, address) = killed::start(SERVER, dir.path(), "127.0.0.1:0".parse().unwrap());
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
        (child, _) = killed::start(SERVER, dir.path(), address);
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
