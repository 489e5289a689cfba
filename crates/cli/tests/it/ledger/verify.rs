//! `ledger verify`: sound ledgers, a bookie that is away, and one that was.

use crate::ledger::shell::{Cluster, Running, eventually};
use crate::server::free_port;
use serde_json::Value;

/// A second bookie of a cluster, a process of its own.
struct Second<'a> {
    cluster: &'a Cluster,
    listen: String,
}

impl Second<'_> {
    fn start(&self) -> Running {
        let (data, metadata) = (self.cluster.dir.path().join("second"), self.cluster.place.metadata());
        let place = ["--metadata", &metadata, "--data", data.to_str().unwrap(), "--listen", &self.listen];
        // What it missed is to be seen, before it is repaired.
        let own = ["bookie", "--allow-loopback", "--repair-role", "off"];
        let running = self.cluster.spawn(&[&own[..], &place].concat());
        self.wait_until("writable");
        running
    }

    fn stop(&self, running: Running) {
        running.signal("-TERM");
        assert_eq!(running.wait().code, 0);
        self.wait_until("away");
    }

    fn wait_until(&self, state: &str) {
        let is_so = |line: &str| line.starts_with(&self.listen) && line.contains(state);
        eventually(|| self.cluster.run(&["bookie", "list"]).done().lines().any(is_so));
    }
}

fn of<'a>(report: &'a Value, bookie: &str) -> &'a Value {
    report["bookies"].as_array().unwrap().iter().find(|found| found["bookie_id"] == bookie).unwrap()
}

#[test]
fn sound_ledgers_are_said_to_be_sound() {
    let cluster = Cluster::start();
    let id = cluster.ledger_of(b"a\nb\nc\n");
    let said = cluster.run(&["ledger", "verify", &id]).done();
    let expected = "(open: up to the last entry known to be acknowledged): 3 entries, 0 to 2, 3 copies on 1 bookie, all sound";
    assert_eq!(said, format!("ledger {id} {expected}\n"));
    cluster.run(&["ledger", "close", &id]).done();
    // The password is in the metadata; a wrong one is refused.
    let secret = cluster.run(&["ledger", "create", "--password", "s"]).done().trim().to_owned();
    let said = cluster.run(&["ledger", "verify", "--all"]).done();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], format!("ledger {id}: 3 entries, 0 to 2, 3 copies on 1 bookie, all sound"));
    assert!(lines[1].ends_with("no entries"), "{said}");
    assert_eq!(lines[2], "2 ledgers, 3 entries, 3 copies");
    cluster.run(&["ledger", "verify", &secret, "--password", "t"]).failed(1, &["wrong password"]);

    let report = cluster.run(&["ledger", "verify", &id, "--first", "1", "--last", "1", "--json"]).json();
    assert_eq!(
        (&report["entries"], &report["sound"], &report["state"]),
        (&1.into(), &true.into(), &"closed".into())
    );
    cluster.run(&["ledger", "verify", &id, "--last", "3"]).failed(6, &["no entry 3"]);
    cluster
        .run(&["ledger", "verify", &id, "--first", "2", "--last", "1"])
        .failed(2, &["--first 2 is behind"]);
    cluster.run(&["ledger", "verify", "99"]).failed(6, &["ledger 99 does not exist"]);
}

#[test]
fn a_bookie_that_is_away_is_7_and_what_it_missed_is_9() {
    let cluster = Cluster::start();
    let second = Second { cluster: &cluster, listen: format!("127.0.0.1:{}", free_port()) };
    let running = second.start();
    let id =
        cluster.run(&["ledger", "create", "--ensemble", "2", "--ack-quorum", "1"]).done().trim().to_owned();
    cluster.pipe(&["ledger", "append", &id], b"a\nb\n").done();
    eventually(|| cluster.run(&["ledger", "verify", &id]).code == 0);
    second.stop(running);
    cluster.pipe(&["ledger", "append", &id, "--close"], b"c\nd\ne\n").done();

    let outcome = cluster.run(&["ledger", "verify", &id]);
    outcome.failed(7, &["bookies of 1 of 1 ledger could not be asked", "bindery bookie list"]);
    let said = String::from_utf8(outcome.stdout).unwrap();
    assert!(said.contains(&format!("{}: 5 entries from 0 to 4 unreachable", second.listen)), "{said}");
    assert!(said.contains("every entry has 1 sound copy or more"), "{said}");

    let running = second.start();
    let outcome = cluster.run(&["ledger", "verify", &id]);
    outcome.failed(9, &["copies of 1 of 1 ledger are missing, damaged or different"]);
    let said = String::from_utf8(outcome.stdout).unwrap();
    assert!(said.contains(&format!("{}: 3 entries from 2 to 4 missing", second.listen)), "{said}");
    let repair = format!("bindery ledger repair {id} ");
    assert!(said.contains(&repair) && !said.contains("append NEW"), "{said}");
    let outcome = cluster.run(&["ledger", "verify", "--all", "--json"]);
    assert_eq!(outcome.code, 9);
    let report: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert_eq!(of(&report, &second.listen)["missing"], 3);
    assert_eq!((&report["below_ack_quorum"], &report["first_below"]), (&0.into(), &().into()));
    assert_eq!(report["findings"][0]["fault"], "missing");
    cluster
        .run(&["ledger", "repair", &id, "99"])
        .failed(6, &["ledger 99 does not exist", "nothing was repaired"]);
    assert_eq!(cluster.run(&["ledger", "repair", &id]).done(), format!("ledger {id} is whole again\n"));
    cluster.run(&["ledger", "verify", &id]).done();
    assert_eq!(cluster.run(&["ledger", "repair", &id]).done(), format!("ledger {id} lacks nothing\n"));
    // Another one is needed for the copies of one that is away.
    second.stop(running);
    let lost = format!("ledger {id} cannot be repaired now: no bookie that takes writes");
    cluster.run(&["ledger", "repair", &id]).failed(9, &[&lost]);
}
