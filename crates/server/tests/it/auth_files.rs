//! A whole bookie whose clients have to log in: a file of users that changes while it serves, and its audit log.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "what an operator does to files")]

use crate::common::PATIENCE;
use crate::common::frames::{KEY, OwnedV2, add_frame, read_request};
use crate::common::users::{config as auth_config, digest_line, exchange_v3};
use crate::common::whole::{self, Running, cluster, start};
use crate::common::wire::Client;
use bindery_server::bookie::Ended;
use bindery_wire::{ErrorCode, v2};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpStream;
use tracing_subscriber::fmt::MakeWriter;

/// The log of this thread.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    /// Lines that have all of these in them.
    fn lines(&self, parts: &[&str]) -> usize {
        let said = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        // For a test that fails.
        said.lines().filter(|line| line.contains("bindery::audit")).for_each(|line| println!("{line}"));
        said.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count()
    }
}

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Said {
    type Writer = Said;

    fn make_writer(&'a self) -> Said {
        self.clone()
    }
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let waited = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waited).await.is_ok(), "{what}");
}

async fn connect(bookie: &Running) -> Client {
    Client::of(TcpStream::connect(bookie.address).await.unwrap())
}

/// On one thread, so that its subscriber sees the whole log.
#[tokio::test]
async fn refusals_are_audited_and_a_changed_file_takes_effect() {
    let said = Said::default();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(said.clone())
        .with_max_level(tracing::Level::TRACE);
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster().await;
    let kept = digest_line("kept", "writer", "pw-kept");
    let lines =
        kept.clone() + &digest_line("gone", "writer", "pw-gone") + &digest_line("eyes", "reader", "pw-eyes");
    let mut config = whole::config(&dir.path().join("data"));
    config.auth = Some(auth_config(dir.path(), &lines, false));
    config.limits.silent_max = None;
    let bookie = start(config, &cluster).await;

    let (mut stays, mut goes, mut eyes) =
        (connect(&bookie).await, connect(&bookie).await, connect(&bookie).await);
    exchange_v3(&mut stays, "kept", "pw-kept").await.unwrap();
    exchange_v3(&mut goes, "gone", "pw-gone").await.unwrap();
    exchange_v3(&mut eyes, "eyes", "pw-eyes").await.unwrap();
    for client in [&mut stays, &mut goes] {
        client.send(&add_frame(1, 0, 10, v2::Flags::NONE, KEY)).await;
        assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, 0));
    }

    // A user without the role, by name; a known user with a wrong password, by name; one that is not known, without.
    eyes.send(&add_frame(1, 1, 10, v2::Flags::NONE, KEY)).await;
    assert_eq!(eyes.next_v2().await.code(), ErrorCode::Unauthorized);
    let audit = "bindery::audit";
    assert_eq!(said.lines(&[audit, "request refused", "roles do not allow it (writer)", "user=\"eyes\""]), 1);
    exchange_v3(&mut connect(&bookie).await, "kept", "pw-gone").await.unwrap_err();
    assert_eq!(said.lines(&[audit, "unknown user or wrong password", "user=\"kept\"", "others=0"]), 1);
    for _ in 0..5 {
        exchange_v3(&mut connect(&bookie).await, "pw-of-whom", "pw-kept").await.unwrap_err();
        let mut client = connect(&bookie).await;
        let refused = client.v2(v2::Request::Read(read_request(1, 0))).await;
        assert_eq!(refused.code(), ErrorCode::Unauthorized);
    }
    for secret in ["pw-", "pw-of-whom"] {
        assert_eq!(said.lines(&[secret]), 0, "{secret}");
    }

    // The file as it is next: one is gone, one has another role, and others stay as they were.
    let now = kept + &digest_line("eyes", "writer,reader", "pw-eyes");
    std::fs::write(dir.path().join("users"), now).unwrap();
    assert_eq!(goes.next().await, None, "a user that is gone");
    assert_eq!(eyes.next().await, None, "a user with other roles");
    stays.send(&add_frame(1, 2, 10, v2::Flags::NONE, KEY)).await;
    assert_eq!(stays.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, 2));
    let mut eyes = connect(&bookie).await;
    exchange_v3(&mut eyes, "eyes", "pw-eyes").await.unwrap();
    eyes.send(&add_frame(1, 3, 10, v2::Flags::NONE, KEY)).await;
    assert_eq!(eyes.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, 3));

    // A file that cannot be read is an alarm, and all clients stay connected.
    std::fs::write(dir.path().join("users"), "nonsense\n").unwrap();
    let state = async || bookie.get("/api/v1/bookie/state").await;
    until("an alarm", async || state().await.contains("cannot reload the user files")).await;
    assert_eq!(bookie.metric("bindery_users_reload_failed").await, 1);
    exchange_v3(&mut connect(&bookie).await, "kept", "pw-kept").await.unwrap();
    assert!(
        bookie.metric("bindery_auth_succeeded").await >= 5 && bookie.metric("bindery_auth_failed").await >= 6
    );

    drop((stays, eyes));
    bookie.stop.set();
    assert_eq!(tokio::time::timeout(PATIENCE, bookie.task).await.unwrap().unwrap(), Ended::Stopped);
}
