//! A cluster of one test, and commands against it.

use crate::server::{Place, Server, bindery};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Output, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;
use tempfile::TempDir;

/// A command that takes longer is stuck.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A standalone server, gone with this.
pub struct Cluster {
    pub server: Server,
    pub place: Place,
    pub dir: TempDir,
}

impl Cluster {
    pub fn start() -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(&dir.path().join("data"), 1);
        Cluster { server: place.start(), place, dir }
    }

    /// Runs a command with nothing on standard input.
    pub fn run(&self, args: &[&str]) -> Outcome {
        Outcome::of(self.place.run(args))
    }

    /// Runs a command with this on standard input.
    pub fn pipe(&self, args: &[&str], input: &[u8]) -> Outcome {
        let mut running = self.spawn(args);
        let mut stdin = running.stdin.take().unwrap();
        let input = input.to_vec();
        // A command that ends early closes the pipe: its exit code says what happened.
        let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let outcome = running.wait();
        feeder.join().unwrap();
        outcome
    }

    /// Starts a command and leaves it running.
    pub fn spawn(&self, args: &[&str]) -> Running {
        let mut command = bindery(args);
        command.env("BINDERY_METADATA", self.place.metadata());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Running { stdin: child.stdin.take(), stdout: child.stdout.take(), child }
    }

    /// A new ledger.
    pub fn create(&self) -> String {
        self.run(&["ledger", "create"]).done().trim().to_owned()
    }

    /// A new ledger with these lines, still open.
    pub fn ledger_of(&self, lines: &[u8]) -> String {
        let id = self.create();
        self.pipe(&["ledger", "append", &id], lines).done();
        id
    }

    pub fn read(&self, id: &str) -> Vec<u8> {
        let outcome = self.run(&["ledger", "read", id]);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
        outcome.stdout
    }

    /// A file of the test.
    pub fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

/// In each line of the only warnings that commands print.
pub const WARNING: &str = " WARN bindery_client::placement";

/// The outcome of a command.
#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Outcome {
    pub fn of(output: Output) -> Outcome {
        Outcome {
            code: output.status.code().expect("not ended by a signal"),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Its data, when it succeeded.
    #[track_caller]
    pub fn done(self) -> String {
        assert_eq!(self.code, 0, "{}", self.stderr);
        String::from_utf8(self.stdout).unwrap()
    }

    /// Its data, when that is one object.
    #[track_caller]
    pub fn json(self) -> Value {
        let text = self.done();
        assert_eq!(text.lines().count(), 1, "one line: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// It failed with this code and one message, after warnings about places at most, that contains all of this.
    #[track_caller]
    pub fn failed(&self, code: i32, says: &[&str]) {
        assert_eq!(self.code, code, "{}", self.stderr);
        let messages: Vec<&str> = self.stderr.lines().filter(|line| !line.contains(WARNING)).collect();
        assert_eq!(messages.len(), 1, "one message: {}", self.stderr);
        assert!(messages[0].starts_with("bindery: "), "{}", self.stderr);
        for part in says {
            assert!(messages[0].contains(part), "{part:?} is missing: {}", self.stderr);
        }
    }
}

/// A command at work. Killed when dropped.
pub struct Running {
    pub child: Child,
    pub stdin: Option<ChildStdin>,
    pub stdout: Option<ChildStdout>,
}

impl Running {
    pub fn write(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(bytes).unwrap();
        stdin.flush().unwrap();
    }

    /// Lines of its standard output as they come.
    pub fn lines(&mut self) -> Lines {
        let stdout = BufReader::new(self.stdout.take().unwrap());
        let (sender, lines) = sync_channel(100_000);
        std::thread::spawn(move || {
            for line in stdout.lines() {
                if sender.send(line.unwrap()).is_err() {
                    return;
                }
            }
        });
        Lines(lines)
    }

    pub fn signal(&self, name: &str) {
        send_signal(self.child.id(), name);
    }

    /// Ends its input and waits.
    pub fn wait(mut self) -> Outcome {
        drop(self.stdin.take());
        let mut stdout = Vec::new();
        if let Some(mut pipe) = self.stdout.take() {
            pipe.read_to_end(&mut stdout).unwrap();
        }
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = self.child.wait().unwrap();
        Outcome { code: status.code().expect("not ended by a signal"), stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Lines(Receiver<String>);

impl Lines {
    /// The next line, which must come soon.
    #[track_caller]
    pub fn next(&self) -> String {
        self.0.recv_timeout(PATIENCE).expect("a line")
    }

    /// Nothing more came, and the pipe is closed.
    #[track_caller]
    pub fn end(&self) {
        assert!(self.0.recv_timeout(PATIENCE).is_err());
    }
}

pub fn send_signal(pid: u32, name: &str) {
    let sent = std::process::Command::new("kill").args([name, &pid.to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Stops a process and returns when none of its threads runs any more, which is later than the signal was sent.
pub fn stop_process(pid: u32) {
    send_signal(pid, "-STOP");
    let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
        // A thread that ended meanwhile does not run either.
        let Ok(stat) = std::fs::read_to_string(task.unwrap().path().join("stat")) else { return true };
        stat.rsplit_once(')').unwrap().1.trim_start().starts_with('T')
    };
    eventually(|| std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(is_stopped));
}

/// Waits until something holds.
#[track_caller]
pub fn eventually(mut holds: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "did not come true");
        std::thread::sleep(Duration::from_millis(10));
    }
}
