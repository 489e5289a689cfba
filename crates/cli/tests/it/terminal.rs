//! What commands leave behind on a terminal.

#![allow(clippy::disallowed_methods, reason = "real processes, in real time")]

use crate::flow::{FIRST, SECOND, ok, serve};
use crate::server::bindery;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Far above anything that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

fn echoes(terminal: &OwnedFd) -> bool {
    tcgetattr(terminal).unwrap().local_modes.contains(LocalModes::ECHO)
}

/// A terminal, and the side that sees what is written to it.
struct Terminal {
    seen: std::fs::File,
    side: OwnedFd,
}

impl Terminal {
    fn new(columns: u16) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap();
        let side = rustix::fs::open(&path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&side, size).unwrap();
        Terminal { seen: master.into(), side }
    }

    fn stdio(&self) -> Stdio {
        Stdio::from(self.side.try_clone().unwrap())
    }

    /// Adds what comes next to `text`.
    fn read(&mut self, text: &mut String) {
        let mut bytes = [0; 4096];
        let count = self.seen.read(&mut bytes).unwrap();
        text.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }

    /// Everything from now on until no process has the terminal open any more.
    fn read_rest(mut self, text: &mut String) {
        drop(self.side);
        let mut bytes = [0; 4096];
        // The end is an error on Linux.
        while let Ok(count @ 1..) = self.seen.read(&mut bytes) {
            text.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    }
}

/// A command that waits for a metadata server which says nothing, for so many seconds.
fn waits(seconds: &str, more: &[&str]) -> (TcpListener, Command) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("zk://{}/ledgers", listener.local_addr().unwrap());
    let mut command = bindery(&["bookie", "list", "--metadata", &uri, "--timeout", seconds]);
    command.args(more).env("TERM", "xterm").stdin(Stdio::null()).stdout(Stdio::null());
    (listener, command)
}

const ERASE: &str = "\r\x1b[K";

#[test]
fn a_bar_appears_on_a_terminal_and_is_gone_after_a_signal() {
    for (columns, shown) in [(80, "connecting to the metadata store  "), (20, " s")] {
        let mut terminal = Terminal::new(columns);
        let (_server, mut command) = waits("60", &[]);
        let mut child = command.stderr(terminal.stdio()).spawn().unwrap();
        drop(command);
        let mut text = String::new();
        while !text.contains(shown) {
            terminal.read(&mut text);
        }
        assert!(text.starts_with(ERASE), "{text:?}");
        for line in text.split(ERASE) {
            assert!(line.chars().count() < usize::from(columns) && !line.contains('\n'), "{text:?}");
        }
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(130));
        terminal.read_rest(&mut text);
        assert!(text.ends_with(ERASE), "the line is clean: {text:?}");
    }
}

#[test]
fn a_bar_is_gone_before_the_failure_is_said() {
    let terminal = Terminal::new(80);
    let (_server, mut command) = waits("3", &[]);
    let mut child = command.stderr(terminal.stdio()).spawn().unwrap();
    drop(command);
    assert_eq!(child.wait().unwrap().code(), Some(7));
    let mut text = String::new();
    terminal.read_rest(&mut text);
    let (bar, failure) = text.split_once("bindery: ").unwrap();
    assert!(bar.contains("connecting to") && bar.ends_with(ERASE), "{text:?}");
    assert!(!failure.contains('\x1b'), "{text:?}");
}

#[test]
fn there_is_no_bar_in_a_pipe_and_none_when_it_is_not_wanted() {
    let (_server, mut command) = waits("3", &[]);
    let piped = command.stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8(piped.stderr).unwrap();
    assert!(text.starts_with("bindery: ") && !text.contains(['\r', '\x1b']), "{text:?}");

    for (flag, terminal_name) in [(&["--quiet"][..], "xterm"), (&[], "dumb")] {
        let terminal = Terminal::new(80);
        let (_server, mut command) = waits("3", flag);
        let mut child = command.env("TERM", terminal_name).stderr(terminal.stdio()).spawn().unwrap();
        drop(command);
        assert_eq!(child.wait().unwrap().code(), Some(7));
        let mut text = String::new();
        terminal.read_rest(&mut text);
        assert!(text.starts_with("bindery: ") && !text.contains('\x1b'), "{terminal_name}: {text:?}");
    }
}

/// Another screen, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// `bindery flow` draws what it saw as bars, says when that is old, and leaves the terminal as it was.
#[test]
fn a_live_view_draws_what_was_before_and_leaves_the_terminal_as_it_was() {
    for (more, locale, bar) in [(&[][..], "C.UTF-8", "█"), (&["--ascii"], "C.UTF-8", "#"), (&[], "C", "#")]
    {
        for end in ["q", "INT", "TERM"] {
            let mut terminal = Terminal::new(80);
            // Then nobody listens any more.
            let (address, bookie) = serve(vec![ok(FIRST), ok(SECOND), ok(SECOND)]);
            let mut command =
                bindery(&["flow", "--admin", &format!("http://{address}"), "--interval", "0.1"]);
            command.args(more).env("LC_ALL", locale).stdin(terminal.stdio()).stdout(terminal.stdio());
            let mut child = command.stderr(Stdio::null()).spawn().unwrap();
            drop(command);
            bookie.join().unwrap();
            let mut text = String::new();
            while !text.contains("NOT UP TO DATE") {
                terminal.read(&mut text);
            }
            assert!(text.starts_with(ENTER), "{text:?}");
            let is_chart = |line: &&str| line.starts_with("adds ") && line.contains("most ");
            assert!(text.lines().filter(is_chart).any(|line| line.contains(bar)), "{text:?}");
            let is_plain = |c: char| c.is_ascii();
            assert!(bar == "█" || text.chars().all(is_plain), "{text:?}");
            assert!(!echoes(&terminal.side));
            match end {
                "q" => terminal.seen.write_all(b"q").unwrap(),
                signal => {
                    let number = child.id().to_string();
                    let sent = Command::new("kill").args([&format!("-{signal}"), &number]).status();
                    assert!(sent.unwrap().success());
                }
            }
            while !text.contains(LEAVE) {
                terminal.read(&mut text);
            }
            assert_eq!(child.wait().unwrap().code(), Some(0), "{end}");
            assert!(echoes(&terminal.side), "{end}");
            terminal.read_rest(&mut text);
            assert!(text.ends_with(LEAVE), "{text:?}");
        }
    }
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
