//! Data directories that earlier builds left, as this build reads them: `tests/frozen/NAME.tar.gz`, each made by
//! `tests/frozen/make` with the build of its time and never changed since. They hold every format on disk
//! (docs/formats.md): a journal behind its mark, logs of a flush and of a compaction, state tables with keys, fences
//! and a removed ledger, the coordinator's store.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "real processes on real files, in real time")]

use crate::server::{Place, bindery, free_port};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The bookie's port is its identity: the one in `frozen/make`.
const BOOKIE_PORT: u16 = 10733;

/// Held while the port above is in use, so that two runs on one machine take turns.
const TURN_PORT: u16 = 10734;

/// Longer than another run of this test takes.
const TURN_PATIENCE: Duration = Duration::from_secs(300);

fn wait_for_turn() -> TcpListener {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(("127.0.0.1", TURN_PORT)) {
            Ok(listener) => return listener,
            Err(error) => assert!(begun.elapsed() < TURN_PATIENCE, "port {TURN_PORT} stays taken: {error}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn archives() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frozen");
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    found.retain(|path| path.to_string_lossy().ends_with(".tar.gz"));
    found.sort();
    found
}

fn unpack(archive: &Path, into: &Path) {
    let tar = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(into).status();
    assert!(tar.expect("tar is installed").success(), "{} cannot be unpacked", archive.display());
}

fn assert_sound(data: &Path) {
    let verified = bindery(&["verify", data.to_str().unwrap()]).output().unwrap();
    let said = text(&verified.stdout);
    assert!(
        verified.status.success() && said.contains("sound: 0 damage"),
        "{said}{}",
        text(&verified.stderr)
    );
}

/// Ledgers and what each must read as.
fn expected(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(dir.join("expected")).unwrap().map(|e| e.unwrap().path());
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut all: Vec<_> = files.map(|path| (name(&path), std::fs::read(&path).unwrap())).collect();
    all.retain(|(name, _)| name != "gone");
    all.sort();
    all
}

#[test]
fn what_earlier_builds_wrote_is_read_whole() {
    let archives = archives();
    assert!(!archives.is_empty(), "no frozen directory: the test would show nothing");
    let _turn = wait_for_turn();
    for archive in archives {
        let dir = tempfile::tempdir().unwrap();
        unpack(&archive, dir.path());
        let data = dir.path().join("data");
        let place = Place {
            data: data.clone(),
            bookies: 1,
            bookie_port: BOOKIE_PORT,
            coordinator_port: free_port(),
            oxia_port: 0,
            admin_port: free_port(),
        };
        let read =
            |ledger: &str| -> Output { place.run(&["ledger", "read", "--password", "secret", ledger]) };
        let plain = |ledger: &str| -> Output { place.run(&["ledger", "read", ledger]) };

        assert_sound(&data);
        // Twice: from the journal, and from what the first start flushed.
        for round in 0..2 {
            let server = place.start();
            let expected = expected(dir.path());
            assert!(expected.len() >= 9, "{} ledgers", expected.len());
            for (ledger, content) in &expected {
                let found = plain(ledger);
                // One of them was made with a password.
                let found = if found.status.success() { found } else { read(ledger) };
                assert!(found.status.success(), "ledger {ledger}, start {round}: {}", text(&found.stderr));
                assert!(found.stdout == *content, "ledger {ledger}, start {round}: other content");
            }
            let gone = std::fs::read_to_string(dir.path().join("expected/gone")).unwrap();
            let found = plain(gone.trim());
            assert_eq!(
                found.status.code(),
                Some(6),
                "a deleted ledger stays deleted: {}",
                text(&found.stdout)
            );
            let (status, said) = server.stop("-TERM");
            assert!(status.success(), "{said}");
            assert_sound(&data);
        }
    }
}
