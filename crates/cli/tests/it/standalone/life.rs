//! Start, stop, kill, start again; and every start that must refuse.

use crate::server::{Place, Server, bindery, free_port};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

fn ask(port: u16, text: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, text(&output.stderr));
    text(&output.stdout)
}

/// Creates a ledger and appends these lines; the ledger stays open.
fn write(place: &Place, options: &[&str], lines: &str) -> String {
    let id = done(&place.run(&[&["ledger", "create"], options].concat())).trim().to_owned();
    append(place, &id, lines);
    id
}

fn append(place: &Place, id: &str, lines: &str) {
    done(&place.pipe(&["ledger", "append", id], lines.as_bytes()));
}

fn read(place: &Place, id: &str) -> String {
    done(&place.run(&["ledger", "read", id]))
}

/// Refused with one clear error that contains all of this.
fn refused(place: &Place, options: &[&str], says: &[&str]) -> i32 {
    let (code, stderr) = place.refused(options);
    let errors = stderr.lines().filter(|line| line.starts_with("bindery: ")).count();
    assert_eq!(errors, 1, "one clear error:\n{stderr}");
    for part in says {
        assert!(stderr.contains(part), "{part:?} is missing:\n{stderr}");
    }
    code
}

#[test]
fn it_serves_says_how_to_connect_and_stops_on_either_signal() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 1);
    for signal in ["-TERM", "-INT"] {
        let server = place.start();
        let said = server.said.clone();
        for part in [
            format!("export BINDERY_METADATA={}\n", place.metadata()),
            format!("Java client    {}\n", place.metadata()),
            "Oxia           oxia://127.0.0.1:".to_owned(),
            format!("http://127.0.0.1:{}/metrics\n", place.admin_port),
            format!("{}\n", place.data.display()),
            format!("kill {}\n", server.pid()),
        ] {
            assert!(said.contains(&part), "{part:?} is missing:\n{said}");
        }
        assert!(!said.contains("WARN") && !said.contains("INFO"), "a newcomer sees no log:\n{said}");
        assert_eq!(ask(place.coordinator_port, "ruok"), "imok");
        let ready = ask(place.admin_port, "GET /api/v1/bookie/is_ready HTTP/1.0\r\n\r\n");
        assert!(ready.starts_with("HTTP/1.0 200"), "{ready}");
        let (status, later) = server.stop(signal);
        assert!(status.success(), "{status}");
        assert_eq!(later, "stopped: everything that was acknowledged is on disk\n");
    }
}

#[test]
fn a_ledger_has_three_copies_where_there_are_bookies_for_them() {
    let dir = tempfile::tempdir().unwrap();
    for (bookies, says, sizes) in [
        (2, "2 copies of each entry, on 2 bookies, all of which acknowledge it; --ensemble", "2/2/2"),
        (4, "3 copies of each entry, on 3 bookies, 2 of which acknowledge it; --ensemble", "3/3/2"),
    ] {
        let place = Place::new(&dir.path().join(sizes.replace('/', "-")), bookies);
        let _server = place.start();
        let created = place.run(&["ledger", "create"]);
        assert_eq!(done(&created), "0\n");
        let said = text(&created.stderr);
        assert!(said.starts_with(says), "{said}");
        let listed = done(&place.run(&["ledger", "list", "--long"]));
        assert!(listed.contains(sizes), "{listed}");
    }
}

/// With one copy no other bookie can take the bookie's place.
#[test]
fn an_append_goes_on_after_a_restart_and_sends_nothing_twice() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 1);
    let mut server = Some(place.start());
    let id = write(&place, &[], "before\n");
    let metadata = place.metadata();
    let line = ["ledger", "append", &id, "--metadata", &metadata, "--print-ids", "--patience", "10m"];
    let mut append = bindery(&line).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = append.stdin.take().unwrap();
    let mut ids = BufReader::new(append.stdout.take().unwrap()).lines();
    let mut expected = "before\n".to_owned();
    for round in 0..3 {
        for number in 0..2 {
            let said = format!("{round}-{number}\n");
            // The second of these is sent while nobody is there.
            input.write_all(said.as_bytes()).unwrap();
            expected += &said;
            if number == 0 {
                assert_eq!(ids.next().unwrap().unwrap(), (2 * round + 1).to_string());
                server.take().unwrap().stop("-TERM");
            }
        }
        server = Some(place.start());
        assert_eq!(ids.next().unwrap().unwrap(), (2 * round + 2).to_string());
    }
    drop(input);
    let ended = append.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert_eq!(read(&place, &id), expected);
}

/// Both come before it can do anything about the first: it has no time to be done.
#[test]
fn a_second_signal_ends_it_at_once_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 1);
    let server = place.start();
    let id = write(&place, &[], "one\ntwo\n");
    let pid = server.pid().to_string();
    for signal in ["-STOP", "-TERM", "-INT"] {
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
    let (status, later) = server.stop("-CONT");
    assert_eq!(status.code(), Some(4), "{status}");
    assert!(later.contains("asked to stop again"), "{later}");
    let _server = place.start();
    assert_eq!(read(&place, &id), "one\ntwo\n");
}

/// Of a server that is idle, the sum in KiB of the named lines of its status.
fn idle_kib(fields: &[&str]) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let server = Place::new(&dir.path().join("data"), 1).start();
    // Journal files are being filled with zeros meanwhile.
    std::thread::sleep(Duration::from_secs(1));
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let of = |field: &&str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(*field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    fields.iter().map(of).sum()
}

/// The pages of a program without optimisation are not counted: they are of the file, and nobody runs it to serve.
#[test]
fn idle_it_takes_less_than_10_mib_of_its_own() {
    let kib = idle_kib(&["RssAnon", "RssShmem"]);
    assert!((1024..10 * 1024).contains(&kib), "{kib} KiB");
}

#[test]
#[ignore = "of the program that is released: ./test --full released-binary"]
fn idle_the_released_binary_needs_less_than_30_mib() {
    let kib = idle_kib(&["VmRSS"]);
    assert!((1024..30 * 1024).contains(&kib), "{kib} KiB");
}

#[test]
fn an_occupied_port_is_named_with_its_option() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 3);
    for (option, port) in [
        ("--coordinator-port", place.coordinator_port),
        ("--bookie-port", place.bookie_port),
        ("--bookie-port", place.bookie_port + 2),
        ("--admin-port", place.admin_port),
        ("--admin-port", place.admin_port + 1),
    ] {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let code = refused(&place, &[], &[option, &format!("127.0.0.1:{port}")]);
        assert_eq!(code, 1, "{option}");
        drop(listener);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let oxia = listener.local_addr().unwrap();
    let with_oxia = Place { oxia_port: oxia.port(), ..place.clone() };
    assert_eq!(refused(&with_oxia, &[], &["--oxia-port", &oxia.to_string()]), 1);
    drop(listener);
    // The next start picks up what the refused ones left behind.
    assert!(place.start().stop("-TERM").0.success());
}

#[test]
fn a_second_one_on_the_same_data_is_told_who_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 1);
    let server = place.start();
    let id = write(&place, &[], "one\n");
    let elsewhere = Place { data: place.data.clone(), ..Place::new(Path::new("unused"), 1) };
    let (path, process) = (place.data.to_str().unwrap().to_owned(), format!("process {}", server.pid()));
    assert_eq!(refused(&elsewhere, &[], &[&path, &process]), 1);
    assert_eq!(refused(&place, &[], &[&path, &process]), 1);
    append(&place, &id, "two\n");
    assert_eq!(read(&place, &id), "one\ntwo\n");
}

#[test]
fn data_survives_a_stop_a_kill_other_ports_and_a_move() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 1);
    let server = place.start();
    let id = write(&place, &[], "first\n");
    assert!(server.stop("-TERM").0.success());

    let server = place.start();
    append(&place, &id, "after a stop\n");
    server.kill();

    let server = place.start();
    assert!(!server.said.contains("WARN"), "the former session is taken up:\n{}", server.said);
    append(&place, &id, "after a kill\n");
    drop(server);

    let elsewhere = Place { data: place.data.clone(), ..Place::new(Path::new("unused"), 1) };
    let server = elsewhere.start();
    append(&elsewhere, &id, "on other ports\n");
    assert!(server.stop("-TERM").0.success());

    let moved = Place { data: dir.path().join("moved"), ..elsewhere };
    std::fs::rename(&place.data, &moved.data).unwrap();
    let _server = moved.start();
    append(&moved, &id, "after a move\n");
    assert_eq!(read(&moved, &id), "first\nafter a stop\nafter a kill\non other ports\nafter a move\n");
}

#[test]
fn three_bookies_hold_three_copies_and_fewer_are_pointed_out() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 3);
    let server = place.start();
    let id = write(&place, &["--ensemble", "3"], "one\ntwo\n");
    done(&place.run(&["ledger", "close", &id]));
    server.kill();
    let fewer = Place { bookies: 1, ..place.clone() };
    let server = fewer.start();
    assert_eq!(read(&fewer, &id), "one\ntwo\n", "each bookie has a copy");
    let (status, said) = server.stop("-TERM");
    assert!(status.success() && said.contains("--bookies 3"), "{said}");
}

#[test]
fn a_coordinator_alone_serves_bookies_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 0);
    let _server = place.start();
    let (listen, admin) = (format!("127.0.0.1:{}", free_port()), free_port());
    let mut bookie = bindery(&["bookie", "--listen", &listen, "--admin", &format!("127.0.0.1:{admin}")])
        .args(["--metadata", &place.metadata(), "--memory", "lazy", "--data"])
        .arg(dir.path().join("bookie"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", admin)).is_err()
        || !ask(admin, "GET /api/v1/bookie/is_ready HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 200")
    {
        assert!(begun.elapsed() < Duration::from_secs(30), "the bookie does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = write(&place, &[], "one\n");
    assert_eq!(read(&place, &id), "one\n");
    bookie.kill().unwrap();
    bookie.wait().unwrap();
}

#[test]
fn directories_that_cannot_be_used_are_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| Place::new(&dir.path().join(name), 1);
    let photos = dir.path().join("photos");
    std::fs::create_dir(&photos).unwrap();
    std::fs::write(photos.join("1.jpg"), "x").unwrap();
    assert_eq!(refused(&at("photos"), &[], &["not empty", "1.jpg", "--data"]), 1);
    assert_eq!(std::fs::read_dir(&photos).unwrap().count(), 1);
    assert_eq!(refused(&at("photos/1.jpg"), &[], &["not a directory", "--data"]), 1);
    let place = Place::new(Path::new("/proc/bindery-data"), 1);
    assert_eq!(refused(&place, &[], &["/proc/bindery-data", "--data"]), 1);

    // The tree of the ledgers is gone, their bookie is there.
    let place = at("data");
    let server = place.start();
    assert!(server.stop("-TERM").0.success());
    std::fs::rename(place.data.join("coordinator"), dir.path().join("kept")).unwrap();
    assert_eq!(refused(&place, &[], &["bookie-1", "no coordinator", "--data"]), 1);
    std::fs::rename(dir.path().join("kept"), place.data.join("coordinator")).unwrap();
    // A bookie's disk is gone, its ledgers are known.
    std::fs::rename(place.data.join("bookie-1"), dir.path().join("lost")).unwrap();
    assert_eq!(refused(&place, &[], &["bookie-1", "cookie"]), 1);
    let _ = std::fs::remove_dir_all(place.data.join("bookie-1"));
    std::fs::rename(dir.path().join("lost"), place.data.join("bookie-1")).unwrap();
    assert!(place.start().stop("-TERM").0.success());
}

#[test]
fn wrong_options_are_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 3);
    assert_eq!(refused(&place, &["--memory-limit", "200MiB"], &["--memory-limit 200MiB", "439MiB"]), 2);
    let meets = Place { admin_port: place.bookie_port + 2, ..place.clone() };
    assert_eq!(refused(&meets, &[], &["--admin-port", "--bookie-port"]), 2);
    let output = place.command().args(["--bookies", "99"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(!place.data.exists());
}

#[test]
fn json_and_quiet_leave_the_words_out() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 1);
    let mut child = place.command().args(["--log-format", "json"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let metadata = place.metadata();
    let is_serving = |line: &serde_json::Value| line["fields"]["metadata"] == metadata.as_str();
    let mut parsed =
        lines.by_ref().map(|line| serde_json::from_str(&line.unwrap()).expect("each line is JSON"));
    assert!(parsed.any(|line: serde_json::Value| is_serving(&line)));
    child.kill().unwrap();
    child.wait().unwrap();

    let mut child = place.command().arg("--quiet").stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", place.bookie_port)).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    // From here on it accepts; a little later it would have spoken.
    std::thread::sleep(Duration::from_millis(500));
    child.kill().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    assert_eq!(said, "");
}

#[test]
fn ports_chosen_by_the_system_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place {
        data: dir.path().join("data"),
        bookies: 2,
        bookie_port: 0,
        coordinator_port: 0,
        oxia_port: 0,
        admin_port: 0,
    };
    let server = Server::spawn(&mut place.command());
    let words: Vec<&str> = server.said.split_whitespace().collect();
    let uri = words.iter().find(|word| word.starts_with("zk://127.0.0.1:")).unwrap();
    let output = bindery(&["ledger", "create", "--metadata", uri, "--ensemble", "2"]).output().unwrap();
    assert!(done(&output).trim().parse::<u64>().is_ok());
    drop(server);
    // The bookies' ids name ports of the former life; they are found where they listen now.
    let server = Server::spawn(&mut place.command());
    let words: Vec<&str> = server.said.split_whitespace().collect();
    let uri = words.iter().find(|word| word.starts_with("zk://127.0.0.1:")).unwrap();
    let output = bindery(&["ledger", "create", "--metadata", uri, "--ensemble", "2"]).output().unwrap();
    done(&output);
}

#[test]
fn what_a_stopped_bookie_remembers_is_its_own_and_damage_to_it_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 2);
    let alone = Place { bookies: 1, ..place.clone() };
    let server = alone.start();
    write(&alone, &[], "a\nb\n");
    assert!(server.stop("-TERM").0.success());
    // One that joins a cluster with ledgers has something to remember.
    assert!(place.start().stop("-TERM").0.success());
    let bookie = place.data.join("bookie-2");
    let verify = || place.run(&["verify", bookie.to_str().unwrap()]);
    let said = done(&verify());
    assert!(said.contains("sound: 0 damage, 0 unchecked, 0 leftover") && !said.contains("KNOWN"), "{said}");

    let known = bookie.join("ledgers/current/KNOWN");
    let mut bytes = std::fs::read(&known).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&known, bytes).unwrap();
    let output = verify();
    assert_eq!(output.status.code(), Some(9), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("KNOWN at byte 0"), "{}", text(&output.stdout));
    // A start writes it again; nothing is lost.
    let server = place.start();
    assert!(server.stop("-TERM").0.success());
    assert!(done(&verify()).contains("sound: 0 damage"));
}
