//! Standard output and standard error that take nothing: a full disk, a pipe whose reader went away.

use crate::server::{Place, Server, bindery};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A start or a stop that takes longer has failed, on any machine.
const WAIT_MAX: Duration = Duration::from_secs(120);

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

/// The writing end of a pipe that nobody reads any more.
fn closed_pipe() -> OwnedFd {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// The exit code of a command with these ends.
fn code(command: &mut Command, stdout: impl Into<Stdio>, stderr: impl Into<Stdio>) -> Option<i32> {
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).status().unwrap().code()
}

/// Waits until a process answers to a command, which is not before it serves.
fn wait_until(child: &mut Child, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        if let Some(status) = child.try_wait().unwrap() {
            panic!("it ended: {status}");
        }
        assert!(begun.elapsed() < WAIT_MAX, "not after {WAIT_MAX:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn stop(mut child: Child) -> Option<i32> {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    child.wait().unwrap().code()
}

#[test]
fn a_server_whose_log_cannot_be_written_serves_and_stops_as_asked() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 1);
    for (stderr, format) in
        [(Stdio::from(full()), "text"), (Stdio::from(full()), "json"), (Stdio::from(closed_pipe()), "text")]
    {
        let mut command = place.command();
        command.args(["--log-format", format]).env("RUST_LOG", "debug");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        wait_until(&mut child, || place.run(&["ledger", "create"]).status.success());
        assert_eq!(stop(child), Some(0), "{format}");
    }
}

#[test]
fn a_bookie_whose_log_cannot_be_written_serves_and_stops_as_asked() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 0);
    let server = place.start();
    let (metadata, data) = (place.metadata(), dir.path().join("bookie"));
    let listen = format!("127.0.0.1:{}", place.bookie_port);
    let mut command = bindery(&["bookie", "--allow-loopback", "--metadata", &metadata, "--listen", &listen]);
    command.args(["--data", data.to_str().unwrap()]).env("RUST_LOG", "debug");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(full()).spawn().unwrap();
    wait_until(&mut child, || place.run(&["ledger", "create"]).status.success());
    assert_eq!(stop(child), Some(0));
    drop(server);
}

#[test]
fn commands_exit_as_ever_when_nothing_can_be_said() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 1);
    let server: Server = place.start();
    let metadata = place.metadata();
    let command = |args: &[&str]| {
        let mut command = bindery(args);
        command.env("BINDERY_METADATA", &metadata);
        command
    };
    let read = ["ledger", "read", "999"];
    assert_eq!(code(&mut command(&read), Stdio::null(), full()), Some(6));
    assert_eq!(code(&mut command(&read), Stdio::null(), closed_pipe()), Some(6));
    assert!(place.run(&["ledger", "create"]).status.success());
    assert_eq!(code(&mut command(&["ledger", "append", "0"]), Stdio::null(), full()), Some(0));

    let id = format!("127.0.0.1:{}", place.bookie_port);
    for args in [
        &["cluster", "init", "--metadata", &metadata][..],
        &["cluster", "cookie", "list", "--metadata", &metadata],
        &["cluster", "cookie", "show", "--metadata", &metadata, &id],
    ] {
        assert_eq!(code(&mut command(args), closed_pipe(), full()), Some(8), "{args:?}");
        let (mut reader, writer) = std::io::pipe().unwrap();
        assert_eq!(code(&mut command(args), full(), writer), Some(1), "{args:?}");
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert!(said.contains("cannot write to standard output"), "{said}");
    }
    drop(server);
}
