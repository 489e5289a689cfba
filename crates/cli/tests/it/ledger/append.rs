//! Append: bytes in, acknowledgements out, and every way it ends.

use crate::ledger::shell::{Cluster, PATIENCE, send_signal, stop_process};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Empty lines, other line ends, bytes that are no text, a line longer than a pipe holds, no newline at the end.
fn text() -> Vec<u8> {
    let mut text = b"first\n\n\r\nnot \xff\xfe text\n".to_vec();
    text.extend(std::iter::repeat_n(b'x', 200_000));
    text.extend_from_slice(b"\n\0\nlast");
    text
}

#[test]
fn lines_come_back_byte_for_byte_from_files_and_pipes() {
    let cluster = Cluster::start();
    let (text, short) = (text(), b"one\ntwo".to_vec());
    let (long_file, short_file) = (cluster.file("long", &text), cluster.file("short", &short));
    let (long_file, short_file) = (long_file.to_str().unwrap(), short_file.to_str().unwrap());
    let id = cluster.create();
    let said = cluster.run(&["ledger", "append", &id, short_file, long_file]);
    assert!(
        said.stderr.starts_with(&format!("ledger {id}: 9 entries, 0 to 8, 195.3 KiB in ")),
        "{}",
        said.stderr
    );
    assert_eq!(said.code, 0);
    let quiet = cluster.pipe(&["ledger", "append", "--quiet", &id], &text);
    assert_eq!((quiet.code, quiet.stderr.as_str(), quiet.stdout.len()), (0, "", 0));
    let summary = cluster.pipe(&["ledger", "append", &id, "--json", short_file, "-"], b"").json();
    assert_eq!((&summary["first_entry"], &summary["last_entry"]), (&16.into(), &17.into()));
    assert_eq!(
        (&summary["entries"], &summary["bytes"], &summary["closed"]),
        (&2.into(), &7.into(), &false.into())
    );
    assert_eq!(summary["copies_missing"], 0);
    let empty = cluster.pipe(&["ledger", "append", &id, "--json", "--close"], b"").json();
    assert_eq!(
        (&empty["first_entry"], &empty["entries"], &empty["closed"]),
        (&().into(), &0.into(), &true.into())
    );
    assert!(cluster.read(&id) == [&short[..], &text, &text, &short].concat());
}

#[test]
fn other_forms_of_input_come_back_by_their_delimiters() {
    let cluster = Cluster::start();
    let id = cluster.create();
    cluster.pipe(&["ledger", "append", &id, "--chomp"], b"a\n\nb").done();
    assert_eq!(cluster.read(&id), b"ab");
    assert_eq!(cluster.run(&["ledger", "read", &id, "--delimiter", "newline"]).stdout, b"a\n\nb\n");

    let records = b"\0\0\0\x02ab\0\0\0\0\0\0\0\x03\n\n\n";
    let id = cluster.create();
    cluster.pipe(&["ledger", "append", &id, "--length-delimited"], records).done();
    assert_eq!(cluster.read(&id), b"ab\n\n\n");
    assert_eq!(cluster.run(&["ledger", "read", &id, "--delimiter", "length"]).stdout, records);

    let id = cluster.create();
    let (one, two) = (cluster.file("one", &text()), cluster.file("empty", b""));
    cluster.run(&["ledger", "append", &id, "--whole", one.to_str().unwrap(), two.to_str().unwrap()]).done();
    assert!(cluster.run(&["ledger", "read", &id, "--entry", "0"]).stdout == text());
    assert_eq!(cluster.run(&["ledger", "read", &id, "--delimiter", "length", "--entry", "1"]).stdout, [0; 4]);
}

#[test]
fn an_id_is_printed_once_its_entry_is_acknowledged_and_before_more_input() {
    let cluster = Cluster::start();
    let id = cluster.ledger_of(b"before\n");
    let mut append = cluster.spawn(&["ledger", "append", &id, "--print-ids"]);
    let ids = append.lines();
    for expected in 1..=3 {
        append.write(b"line\n");
        assert_eq!(ids.next(), expected.to_string());
        // An acknowledged entry can be read while the writer lives.
        let read = cluster.run(&["ledger", "read", &id, "--unconfirmed", "--entry", &expected.to_string()]);
        assert_eq!((read.code, &read.stdout[..]), (0, &b"line\n"[..]));
    }
    append.write(b"a\nb\nc");
    drop(append.stdin.take());
    assert_eq!([ids.next(), ids.next(), ids.next()], ["4", "5", "6"]);
    ids.end();
    append.wait().done();
}

#[test]
fn a_ledger_that_is_closed_taken_or_foreign_is_refused_with_5() {
    let cluster = Cluster::start();
    let id = cluster.ledger_of(b"a\nb\n");
    let mut writer = cluster.spawn(&["ledger", "append", &id, "--print-ids"]);
    writer.write(b"c\n");
    let ids = writer.lines();
    assert_eq!(ids.next(), "2");
    let busy = cluster.pipe(&["ledger", "append", &id], b"d\n");
    let advice = [format!("bindery ledger append --take-over {id}"), format!("bindery ledger close {id}")];
    busy.failed(5, &["has a writer", &advice[0], &advice[1]]);
    writer.wait().done();
    for _ in 0..2 {
        let closed = cluster.run(&["ledger", "close", &id]).done();
        assert_eq!(
            closed,
            format!("ledger {id} is closed: its last entry is 2, it has 6 bytes\n"),
            "idempotent"
        );
    }
    let closed = cluster.run(&["ledger", "close", &id, "--json"]).json();
    assert_eq!(
        closed,
        serde_json::json!({"ledger_id": id.parse::<i64>().unwrap(), "last_entry": 2, "length_bytes": 6})
    );
    cluster.pipe(&["ledger", "append", &id], b"d\n").failed(5, &["is closed", "entry 2"]);
    assert_eq!(cluster.read(&id), b"a\nb\nc\n");
}

#[test]
fn the_ledger_of_a_writer_that_was_killed_is_read_with_a_note_and_taken_over() {
    let cluster = Cluster::start();
    let id = cluster.create();
    let mut writer = cluster.spawn(&["ledger", "append", &id, "--print-ids"]);
    let ids = writer.lines();
    for line in 0..20 {
        writer.write(b"line\n");
        assert_eq!(ids.next(), line.to_string());
    }
    drop(writer);
    let read = cluster.run(&["ledger", "read", &id]);
    assert_eq!(read.code, 0);
    assert!((19 * 5..=20 * 5).contains(&read.stdout.len()), "acknowledged, and perhaps not known to be");
    for part in ["is open: entries up to", "there may be more", "bindery ledger tail", "bindery ledger close"]
    {
        assert!(read.stderr.contains(part), "{}", read.stderr);
    }
    let part = cluster.run(&["ledger", "read", &id, "--last", "3"]);
    assert_eq!(
        (part.stdout.len(), part.stderr.as_str()),
        (20, ""),
        "nothing is missing of what was asked for"
    );

    let taken = cluster.pipe(&["ledger", "append", "--take-over", &id], b"more\n");
    let said = taken.stderr.clone();
    assert_eq!(taken.done(), "");
    assert!(
        said.contains(&format!("ledger {id} was recovered and closed: its last entry is 19\n")),
        "{said}"
    );
    let next = said.split("going on in ledger ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    assert!(said.contains(&format!("ledger {next}: 1 entry, 0 to 0")), "{said}");
    let read = cluster.run(&["ledger", "read", &id]);
    assert_eq!((read.stdout.len(), read.stderr), (20 * 5, format!("ledger {id} goes on in ledger {next}\n")));
    assert_eq!(cluster.read(&next), b"more\n", "nobody has it now, so there is no note");

    // Again and again, and plainly where nobody died.
    cluster.pipe(&["ledger", "append", "--take-over", &id], b"and more\n").done();
    cluster.pipe(&["ledger", "append", "--take-over", &next], b"still\n").done();
    assert_eq!(cluster.read(&next), b"more\nand more\nstill\n");
    let parts = [&format!("goes on in ledger {next}")[..], "--take-over"];
    cluster.pipe(&["ledger", "append", &id], b"x\n").failed(5, &parts);
    cluster.run(&["ledger", "close", &next]).done();
    let parts = [&format!("ledger {next} is closed: it ends with entry 2")[..]];
    cluster.pipe(&["ledger", "append", "--take-over", &id], b"x\n").failed(5, &parts);
}

#[test]
fn a_writer_that_is_fenced_stops_reading_and_names_what_was_acknowledged() {
    let cluster = Cluster::start();
    let id = cluster.create();
    let log = cluster.file("log", b"one\ntwo\n");
    let mut append = cluster.spawn(&["ledger", "append", &id, log.to_str().unwrap(), "-", "--print-ids"]);
    let ids = append.lines();
    append.write(b"three\nfour\n");
    assert_eq!([ids.next(), ids.next(), ids.next(), ids.next()], ["0", "1", "2", "3"]);
    cluster.run(&["ledger", "close", &id]).done();
    append.write(b"five\n");
    // It ends although its input goes on.
    ids.end();
    let ended = append.wait();
    ended.failed(
        5,
        &[
            &format!("ledger {id} can no longer be written"),
            "The last acknowledged entry is 3 (line 2 of standard input)",
            &format!("bindery ledger close {id}"),
            &format!("bindery ledger read {id} --first 4"),
        ],
    );
    assert_eq!(cluster.read(&id), b"one\ntwo\nthree\nfour\n", "never sent again");
}

#[test]
fn a_signal_ends_it_with_everything_acknowledged_and_the_ledger_handed_over() {
    let cluster = Cluster::start();
    let id = cluster.create();
    for (turn, (name, code)) in [("-INT", 130), ("-TERM", 143)].into_iter().enumerate() {
        let mut append = cluster.spawn(&["ledger", "append", &id, "--print-ids"]);
        let ids = append.lines();
        append.write(b"a\nb\nhalf a line");
        assert_eq!([ids.next(), ids.next()], [(2 * turn).to_string(), (2 * turn + 1).to_string()]);
        append.signal(name);
        // Its input stays open.
        ids.end();
        let last = format!("last acknowledged entry is {} (line 2 of standard input)", 2 * turn + 1);
        append.wait().failed(code, &["stopped", &last]);
    }
    assert_eq!(cluster.read(&id), b"a\nb\na\nb\n");
}

/// Passes on what goes between clients and the coordinator, but holds back the answer to the first conditional write
/// until it is told to go on. Returns the port to connect to, the signal that it came, and the one to go on.
fn hold_first_write(coordinator_port: u16) -> (u16, Receiver<()>, SyncSender<()>) {
    const SET_DATA: [u8; 4] = 5u32.to_be_bytes();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (came, has_come) = sync_channel(1);
    let (go_on, may_go_on) = sync_channel(1);
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(("127.0.0.1", coordinator_port)).unwrap();
        let (mut answers, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let is_held = Arc::new(AtomicBool::new(false));
        let holds = is_held.clone();
        std::thread::spawn(move || {
            let mut bytes = vec![0; 65536];
            while let Ok(size @ 1..) = answers.read(&mut bytes) {
                if holds.swap(false, Ordering::SeqCst) {
                    may_go_on.recv().unwrap();
                }
                back.write_all(&bytes[..size]).unwrap();
            }
        });
        // Length, then xid and operation; the first frame is the session's.
        let mut is_over = false;
        for index in 0.. {
            let mut frame = vec![0; 4];
            if client.read_exact(&mut frame).is_err() {
                return;
            }
            let size = u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize;
            frame.resize(4 + size, 0);
            client.read_exact(&mut frame[4..]).unwrap();
            if index > 0 && !is_over && frame[8..12] == SET_DATA {
                is_over = true;
                is_held.store(true, Ordering::SeqCst);
                came.send(()).unwrap();
            }
            server.write_all(&frame).unwrap();
        }
    });
    (port, has_come, go_on)
}

#[test]
fn a_signal_while_it_takes_the_ledger_leaves_the_ledger_to_the_next_one() {
    let cluster = Cluster::start();
    let id = cluster.ledger_of(b"a\n");
    let (port, has_come, go_on) = hold_first_write(cluster.place.coordinator_port);
    let uri = format!("zk://127.0.0.1:{port}/ledgers");
    let append = cluster.spawn(&["ledger", "append", &id, "--metadata", &uri]);
    has_come.recv_timeout(PATIENCE).unwrap();
    append.signal("-INT");
    std::thread::sleep(Duration::from_millis(200));
    go_on.send(()).unwrap();
    append.wait().failed(130, &["stopped by a signal", "last acknowledged entry is 0, from before"]);
    cluster.pipe(&["ledger", "append", &id], b"b\n").done();
    assert_eq!(cluster.read(&id), b"a\nb\n");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let cluster = Cluster::start();
    let id = cluster.create();
    let mut append = cluster.spawn(&["ledger", "append", &id, "--print-ids"]);
    let ids = append.lines();
    append.write(b"a\n");
    assert_eq!(ids.next(), "0");
    // A server that does not answer: no acknowledgement, no hand-over.
    stop_process(cluster.server.pid());
    append.write(b"b\n");
    std::thread::sleep(Duration::from_millis(200));
    // Two kinds: of one kind, two that come at once may count as one.
    append.signal("-INT");
    append.signal("-TERM");
    let ended = append.wait();
    send_signal(cluster.server.pid(), "-CONT");
    ended.failed(
        4,
        &["before all was acknowledged", "last acknowledged entry is 0 (line 1 of standard input)"],
    );
}

#[test]
fn input_that_is_no_entry_is_named_after_all_before_it_is_acknowledged() {
    let cluster = Cluster::start();
    let mut huge = b"one\ntwo\n".to_vec();
    huge.resize(huge.len() + 6_000_000, b'x');
    huge.extend_from_slice(b"\nfour\n");
    let id = cluster.create();
    cluster.pipe(&["ledger", "append", &id], &huge).failed(
        1,
        &["line 3 of standard input has 6000001 bytes", "last acknowledged entry is 1 (line 2 of"],
    );
    assert_eq!(cluster.read(&id), b"one\ntwo\n");

    cluster
        .pipe(&["ledger", "append", &id, "--length-delimited"], b"\0\0\0\x01a\0\0\0\x05ab")
        .failed(1, &["record 2 of standard input is cut short: 6 of 9 bytes", "entry is 2 (record 1 of"]);
    // The ledger is there for the next one.
    let file = cluster.file("file", b"x\n");
    let missing = cluster.run(&["ledger", "append", &id, file.to_str().unwrap(), "/no/such/file"]);
    missing.failed(1, &["/no/such/file", "nothing was appended"]);
    cluster.run(&["ledger", "append", &id, "/"]).failed(1, &["/", "nothing was appended"]);
    assert_eq!(cluster.read(&id), b"one\ntwo\na");
}

#[test]
fn nobody_who_takes_the_ids_ends_it_with_8() {
    let cluster = Cluster::start();
    let id = cluster.create();
    let mut append = cluster.spawn(&["ledger", "append", &id, "--print-ids"]);
    drop(append.stdout.take());
    append.write(b"a\n");
    let mut stderr = append.child.stderr.take().unwrap();
    let mut said = String::new();
    // Its input stays open.
    std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
    assert_eq!(append.child.wait().unwrap().code(), Some(8), "{said}");
    assert!(
        said.contains("the reader of standard output closed it")
            && said.contains("last acknowledged entry is 0 (line 1 of"),
        "{said}"
    );
    assert_eq!(cluster.read(&id), b"a\n");

    let mut command = crate::server::bindery(&["ledger", "append", &id, "--print-ids"]);
    command.env("BINDERY_METADATA", cluster.place.metadata());
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut child = command.stdin(Stdio::piped()).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"b\n").unwrap();
    let outcome = crate::ledger::shell::Outcome::of(child.wait_with_output().unwrap());
    outcome.failed(1, &["No space left on device", "last acknowledged entry is 1"]);
    assert_eq!(cluster.read(&id), b"a\nb\n");
}
