//! A standalone server of a test: a process that ends with its handle, on ports of its own.

#![allow(clippy::disallowed_methods, reason = "real processes on real files, in real time")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// A start that takes longer has failed, on any machine.
const START_MAX: Duration = Duration::from_secs(120);
/// The beginning of the last line printed once everything serves.
const LAST_WORDS: &str = "  to stop";

/// The binary under test: this build's, unless `BINDERY` names another.
pub fn binary() -> PathBuf {
    std::env::var_os("BINDERY").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_bindery")), PathBuf::from)
}

/// `bindery` with these arguments, and nothing of the caller's environment that changes what it says.
pub fn bindery(args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(args).env_remove("RUST_LOG");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("BINDERY_")) {
        command.env_remove(name);
    }
    command
}

/// Ports that nothing listens on, below those that outgoing connections are given.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 11_000 + (std::process::id() % 80) as u16 * 100;
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Where a server runs; the same for each of its lives.
#[derive(Debug, Clone)]
pub struct Place {
    pub data: PathBuf,
    pub bookies: u16,
    pub bookie_port: u16,
    pub coordinator_port: u16,
    pub oxia_port: u16,
    pub admin_port: u16,
}

impl Place {
    pub fn new(data: &Path, bookies: u16) -> Place {
        let ports: Vec<u16> = loop {
            // Consecutive ones for several bookies.
            let ports: Vec<u16> = (0..=2 * bookies.max(1)).map(|_| free_port()).collect();
            if ports.windows(2).all(|pair| pair[0] + 1 == pair[1]) {
                break ports;
            }
        };
        Place {
            data: data.to_owned(),
            bookies,
            coordinator_port: ports[0],
            oxia_port: 0,
            bookie_port: ports[1],
            admin_port: ports[1 + usize::from(bookies.max(1))],
        }
    }

    pub fn metadata(&self) -> String {
        format!("zk://127.0.0.1:{}/ledgers", self.coordinator_port)
    }

    /// The command that starts it.
    pub fn command(&self) -> Command {
        let data = self.data.to_str().unwrap();
        let mut command = bindery(&["standalone", "--data", data]);
        for (option, value) in [
            ("--bookies", self.bookies),
            ("--bookie-port", self.bookie_port),
            ("--coordinator-port", self.coordinator_port),
            ("--oxia-port", self.oxia_port),
            ("--admin-port", self.admin_port),
        ] {
            command.args([option, &value.to_string()]);
        }
        command
    }

    /// Starts it; waits until it serves.
    pub fn start(&self) -> Server {
        self.start_with(&[])
    }

    /// The same with more options.
    pub fn start_with(&self, options: &[&str]) -> Server {
        Server::spawn(self.command().args(options))
    }

    /// Starts what must not start: exit code and standard error.
    pub fn refused(&self, options: &[&str]) -> (i32, String) {
        let output = self.command().args(options).output().unwrap();
        assert!(output.stdout.is_empty(), "data only on standard output");
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    /// Another command against this cluster.
    pub fn run(&self, args: &[&str]) -> Output {
        bindery(args).env("BINDERY_METADATA", self.metadata()).output().unwrap()
    }

    /// The same with input.
    pub fn pipe(&self, args: &[&str], input: &[u8]) -> Output {
        let mut command = bindery(args);
        command.env("BINDERY_METADATA", self.metadata()).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input).unwrap();
        child.wait_with_output().unwrap()
    }
}

/// A server that serves. Killed when dropped.
pub struct Server {
    child: Child,
    lines: Receiver<String>,
    /// Everything on standard error until it served.
    pub said: String,
    /// From the start of the process until it said that it serves.
    pub start_took: Duration,
}

impl Server {
    pub fn spawn(command: &mut Command) -> Server {
        let begun = Instant::now();
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        // Far more lines than a test's server writes; the thread ends with the process.
        let (sender, lines) = sync_channel(10_000);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut said = String::new();
        loop {
            match lines.recv_timeout(START_MAX.saturating_sub(begun.elapsed())) {
                Ok(line) => {
                    said.push_str(&line);
                    said.push('\n');
                    if line.starts_with(LAST_WORDS) {
                        break;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("the server ended ({:?}):\n{said}", child.wait().unwrap())
                }
                Err(RecvTimeoutError::Timeout) => {
                    let _ = child.kill();
                    panic!("not serving after {START_MAX:?}:\n{said}");
                }
            }
        }
        Server { child, lines, said, start_took: begun.elapsed() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// kill -9; returns when the process is gone.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop with a signal; exit status, and what it said after it had served.
    pub fn stop(mut self, signal: &str) -> (ExitStatus, String) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let status = self.child.wait().unwrap();
        (status, self.lines.iter().map(|line| line + "\n").collect())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
