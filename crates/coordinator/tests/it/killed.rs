//! A coordinator in a process of its own, which a test kills: this binary, started again for one of its tests that are ignored otherwise.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::disallowed_methods, reason = "a test that starts and kills processes")]

use bindery_coordinator::{Coordinator, CoordinatorConfig};
use bindery_io::{SystemClock, SystemRandom};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const DIR: &str = "BINDERY_TEST_KILLED_DIR";
const ADDRESS: &str = "BINDERY_TEST_KILLED_ADDRESS";

/// The process. It does not outlive the test.
pub struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Starts this binary with `test` alone, which calls [`serve`] with this directory and address. Gives the address on which it listens.
pub fn start(test: &str, dir: &Path, address: SocketAddr) -> (Process, SocketAddr) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(DIR, dir)
        .env(ADDRESS, address.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let listening = lines.find_map(|line| Some(line.strip_prefix("listening ")?.to_owned()));
    // A full pipe would stop the process: everything else that it prints is read, too.
    std::thread::spawn(move || lines.for_each(drop));
    (Process(child), listening.expect("it starts").parse().unwrap())
}

/// Serves until it is killed, in the process that [`start`] started; returns at once in any other.
pub fn serve(
    config: fn(String, SocketAddr) -> CoordinatorConfig,
    address_of: fn(&Coordinator) -> SocketAddr,
) {
    let (Ok(dir), Ok(address)) = (std::env::var(DIR), std::env::var(ADDRESS)) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let config = config(dir, address.parse().unwrap());
        let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
        let coordinator = Coordinator::start(config, clock, random).await.unwrap();
        println!("\nlistening {}", address_of(&coordinator));
        panic!("the store failed: {}", coordinator.failed().await);
    });
}
