//! What commands leave behind on a terminal.

#![allow(clippy::disallowed_methods, reason = "real processes, in real time")]

use crate::server::bindery;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Far above anything that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

fn echoes(terminal: &OwnedFd) -> bool {
    tcgetattr(terminal).unwrap().local_modes.contains(LocalModes::ECHO)
}

/// The prompt for a password turns echo off. Ctrl-C and other signals there turn it on again, or the shell would show no input any more.
#[test]
fn a_terminal_echoes_again_after_a_signal_at_the_prompt_for_a_password() {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap();
    let terminal = rustix::fs::open(&path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    assert!(echoes(&terminal));
    for (signal, number) in [("-INT", 2), ("-TERM", 15), ("-HUP", 1)] {
        let stdin = Stdio::from(terminal.try_clone().unwrap());
        let mut command = bindery(&["user", "hash", "hd"]);
        let mut child = command.stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let began = Instant::now();
        while echoes(&terminal) {
            assert!(began.elapsed() < PATIENCE && child.try_wait().unwrap().is_none(), "no prompt");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let ended = child.wait().unwrap();
        assert!(echoes(&terminal), "{signal}");
        assert_eq!(ended.code(), Some(128 + number), "{signal}");
    }
}
