//! How long a start takes until everything serves: the first one, one after a stop, one after kill -9 with a journal to
//! replay; with one bookie and with three.
//!
//! `BINDERY_STARTS` sets how many of each are measured (default 2). The times are printed and not judged: machines are
//! shared. That every one of these starts comes to serve is asserted.

use crate::server::{Place, bindery};
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

/// Lines of 1 KiB in the journal when it is killed: 8 MiB.
const LINES: usize = 8192;

fn fill(place: &Place) {
    let created = place.run(&["ledger", "create"]);
    let id = String::from_utf8(created.stdout).unwrap().trim().to_owned();
    let mut append = bindery(&["ledger", "append", "--quiet", &id])
        .env("BINDERY_METADATA", place.metadata())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = vec![b'x'; 1023];
    line.push(b'\n');
    append.stdin.take().unwrap().write_all(&line.repeat(LINES)).unwrap();
    assert!(append.wait().unwrap().success());
}

fn report(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let (p50, max) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "start-times: {what}: {} starts, p50={} ms max={} ms",
        times.len(),
        p50.as_millis(),
        max.as_millis()
    );
}

#[test]
fn start_times() {
    let asked: Option<usize> =
        std::env::var("BINDERY_STARTS").ok().map(|text| text.parse().expect("a number"));
    for bookies in [1, 3] {
        let (mut first, mut after_stop, mut after_kill) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..asked.unwrap_or(2) {
            // Beside the build: /tmp may be memory.
            let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let place = Place::new(&scratch.path().join("data"), bookies);
            let server = place.start();
            first.push(server.start_took);
            assert!(server.stop("-TERM").0.success());
            let server = place.start();
            after_stop.push(server.start_took);
            fill(&place);
            server.kill();
            let server = place.start();
            after_kill.push(server.start_took);
        }
        report(&format!("{bookies} bookies, first start"), &mut first);
        report(&format!("{bookies} bookies, after a stop"), &mut after_stop);
        report(&format!("{bookies} bookies, after kill -9 with 8 MiB to replay"), &mut after_kill);
    }
}
