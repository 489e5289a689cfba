//! The `bindery` command as a shell sees it: what it prints where, and its exit codes. Needs no metadata store.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_io::{Disk, OpenMode, RealDisk};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

/// A port nobody listens on answers "refused" at once; the checks below end before the store is asked.
const METADATA: [&str; 2] = ["--metadata", "zk+hierarchical://127.0.0.1:1/ledgers"];

fn bindery(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bindery")).args(args).env_remove("RUST_LOG").output().unwrap()
}

/// Runs a bookie that must not start; gives its exit code and its one error.
fn refused(args: &[&str]) -> (i32, String) {
    let output = bindery(&[&["bookie", "--listen", "127.0.0.1:0"], &METADATA[..], args].concat());
    assert!(output.stdout.is_empty(), "data only on standard output");
    let stderr = String::from_utf8(output.stderr).unwrap();
    let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("bindery: ")).collect();
    assert_eq!(errors.len(), 1, "one clear error:\n{stderr}");
    (output.status.code().unwrap(), errors[0].to_owned())
}

fn touch(path: &Path) {
    write(path, b"");
}

fn write(path: &Path, bytes: &[u8]) {
    let disk = RealDisk::new();
    disk.create_dir_all(path.parent().unwrap()).unwrap();
    let file = disk.open(path, OpenMode::CreateBuffered).unwrap();
    file.write_all_at(&mut [std::io::IoSlice::new(bytes)], 0).unwrap();
}

#[test]
fn help_and_version_go_to_standard_output() {
    let version = bindery(&["--version"]);
    assert_eq!((version.status.code(), version.stderr.len()), (Some(0), 0));
    assert!(String::from_utf8(version.stdout).unwrap().starts_with("bindery "));
    let help = bindery(&["bookie", "--help"]);
    let text = String::from_utf8(help.stdout).unwrap();
    for flag in ["--metadata", "--data", "--journal-dir", "--ledger-dir", "--memory-limit", "--journal-sync"]
    {
        assert!(text.contains(flag), "{flag}");
    }
    assert!(text.contains("Exit codes"));
}

#[test]
fn wrong_usage_exits_with_2() {
    for args in [
        &["bookie", "--no-such-flag"][..],
        &["nonsense"],
        &[],
        &["bookie"],
        &["inspect", "ledger", "/x", "--ledger", "-4"],
        &["flow", "--interval", "NaN"],
        &["flow", "--interval", "inf"],
        &["flow", "--interval", "0"],
        &["bookie", "health", "--interval", "NaN"],
    ] {
        let output = bindery(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}");
    }
    let output = bindery(&["bookie", "--metadata", "etcd://x/ledgers", "--data", "/nowhere"]);
    assert_eq!(output.status.code(), Some(2));
    let output = bindery(&["cluster", "cookie", "list", "--metadata", "foo://x"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn directories_that_are_not_ours_are_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let arg = |name: &str| path(name).to_str().unwrap().to_owned();

    touch(&path("java/current/lastMark"));
    let (code, error) = refused(&["--data", &arg("java")]);
    assert!(code == 1 && error.contains("Java bookie"), "{error}");
    let (code, error) = refused(&["--journal-dir", &arg("j"), "--ledger-dir", &arg("java")]);
    assert!(code == 1 && error.contains("Java bookie"), "{error}");
    assert!(!RealDisk::new().exists(&path("java/LOCK")).unwrap());

    touch(&path("file"));
    let (code, error) = refused(&["--data", &arg("file")]);
    assert!(code == 1 && error.contains("is not a directory"), "{error}");
    let (code, error) = refused(&["--data", "/proc/bindery"]);
    assert!(code == 1 && error.contains("writable"), "{error}");

    let held = RealDisk::new();
    held.create_dir_all(&path("held/ledgers")).unwrap();
    let _lock = held.lock(&path("held/ledgers/LOCK")).unwrap();
    let (code, error) = refused(&["--data", &arg("held")]);
    assert!(code == 1 && error.contains("in use by another bookie"), "{error}");
}

#[test]
fn ports_descriptors_and_memory_are_checked_before_anything_else() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, error) = refused(&["--data", data, "--admin", &address]);
    assert!(code == 1 && error.contains(&address) && error.contains("--admin"), "{error}");
    let (code, error) = refused(&["--data", data, "--memory-limit", "1MiB"]);
    assert!(code == 2 && error.contains("--memory-limit at least"), "{error}");

    let script = format!(
        "ulimit -n 100; exec {} bookie {} --data {data}",
        env!("CARGO_BIN_EXE_bindery"),
        METADATA.join(" ")
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("too few file descriptors") && stderr.contains("ulimit -n"), "{stderr}");
}

#[test]
fn a_metadata_store_that_cannot_be_reached_has_a_code_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    // Bound and let go again: nobody listens there.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let uri = format!("zk+hierarchical://127.0.0.1:{port}/ledgers");
    let data = dir.path().join("data");
    let bookie = ["bookie", "--allow-loopback", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()];
    let commands: [&[&str]; 4] = [
        &bookie,
        &["cluster", "init"],
        &["cluster", "cookie", "list"],
        &["cluster", "cookie", "show", "bookie-a:3181"],
    ];
    // Each tries for as long as its session would last: at once.
    std::thread::scope(|scope| {
        for command in commands {
            let args = [command, &["--metadata", &uri]].concat();
            scope.spawn(move || {
                let output = bindery(&args);
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert_eq!(output.status.code(), Some(7), "{args:?}: {said}");
            });
        }
    });
}

#[test]
fn files_that_cannot_be_inspected_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.elog");
    touch(&empty);
    let output = bindery(&["inspect", "entry-log", empty.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("empty.elog"));
    let output = bindery(&["inspect", "journal", "/no/such/file"]);
    assert_eq!(output.status.code(), Some(1));
}

/// An object, and what is left of it when it was cut short or altered.
#[test]
fn an_object_is_shown_and_damage_is_found() {
    use bindery_tiering::object::{Compression, ObjectBuilder};
    use bindery_tiering::{ClusterId, ObjectId};
    use bindery_types::{EntryId, LedgerId, codec::crc32c};

    let (object, cluster) = (ObjectId::new(1_700_000_000_000, [1; 10]), ClusterId::from_bytes([2; 16]));
    let mut builder = ObjectBuilder::new(object, cluster, 1_700_000_000_001, Compression::Zstd);
    for ledger in [4_i64, 7] {
        builder.begin(LedgerId::new(ledger).unwrap(), EntryId::FIRST, b"metadata".to_vec().into()).unwrap();
        for entry in 0..10_i64 {
            let fields = [ledger, entry, entry - 1, 0].map(i64::to_be_bytes);
            let body: bytes::Bytes = fields.concat().into_iter().chain([b'x'; 500]).collect();
            let crc = crc32c(&[&body]);
            builder.append(body, crc).unwrap();
        }
    }
    let bytes = builder.finish().0.concat();
    let dir = tempfile::tempdir().unwrap();
    let inspect = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        write(&path, bytes);
        let output = bindery(&["inspect", "object", path.to_str().unwrap()]);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, shown, said) = inspect("whole", &bytes);
    assert_eq!((code, &*said), (Some(0), ""), "{shown}");
    assert!(shown.contains("extent ledger=7 first=0 last=9 entries=10 bytes=5320"), "{shown}");
    let total =
        format!("object id={object} format=1 cluster={cluster} built_ms=1700000000001 bytes={}", bytes.len());
    assert!(shown.contains(&total) && shown.contains("entries=20 ledgers=2 extents=2"), "{shown}");
    let mut altered = bytes.clone();
    altered[100] ^= 1;
    let (code, shown, said) = inspect("altered", &altered);
    assert_eq!((code, &*shown), (Some(9), ""), "{said}");
    assert!(said.contains("damaged block at offset 64: its checksum does not match"), "{said}");
    let (code, _, said) = inspect("cut", &bytes[..bytes.len() - 1]);
    assert_eq!(code, Some(9), "{said}");
    assert!(said.contains("not a whole object of Bindery"), "{said}");
    let (code, _, said) = inspect("empty", b"");
    assert_eq!(code, Some(9), "{said}");
}

/// Store invariant 3 from outside; and each mistake gives one clear error.
#[test]
fn a_store_is_tried_out_and_left_empty() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().display());
    let output = bindery(&["tier", "check", &url]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{shown}");
    for line in
        ["conditional create  ok", "compare and swap    not offered, and not needed", "can hold a tier"]
    {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let left = |dir: &std::path::Path| std::fs::read_dir(dir).unwrap().count();
    assert_eq!(left(dir.path()), 0, "nothing is left");
    for (url, code, words) in [
        ("s4://bucket", 2, "s3://bucket/prefix"),
        ("file://relative", 2, "three slashes"),
        ("file:///no/such/directory", 2, "make the directory first"),
        ("s3://key:secret@bucket", 2, "credentials are taken from the environment"),
    ] {
        let output = bindery(&["tier", "check", url]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{url}: {said}");
        assert!(said.contains(words) && !said.contains("secret@"), "{url}: {said}");
    }
}
