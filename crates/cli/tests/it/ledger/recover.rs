//! `ledger recover`: what was before, what is now, whom it asks about.

use crate::ledger::shell::Cluster;

#[test]
fn a_ledger_without_a_writer_is_closed_and_a_closed_one_is_left_alone() {
    let cluster = Cluster::start();
    let id = cluster.ledger_of(b"a\nbb\n");
    let object = cluster.run(&["ledger", "recover", &id, "--json"]).json();
    assert_eq!((&object["state_before"], &object["writer_before"]), (&"open".into(), &"idle".into()));
    assert_eq!(
        (&object["state"], &object["last_entry"], &object["length_bytes"]),
        (&"closed".into(), &1.into(), &5.into())
    );
    assert!(object["milliseconds"].as_f64().unwrap() > 0.0);
    let said = cluster.run(&["ledger", "recover", &id]).done();
    assert_eq!(said, format!("ledger {id} was closed already: its last entry is 1, it has 5 bytes\n"));
    let empty = cluster.create();
    let said = cluster.run(&["ledger", "recover", &empty]).done();
    assert!(
        said.starts_with(&format!("ledger {empty} was open, no writer; it is closed now, after ")),
        "{said}"
    );
    assert!(said.ends_with(" ms: it has no entries\n"), "{said}");
    cluster
        .run(&["ledger", "recover", &empty, "99"])
        .failed(6, &["ledger 99 does not exist", "nothing was recovered"]);
}

#[test]
fn a_writer_that_may_live_is_asked_about_and_then_stopped() {
    let cluster = Cluster::start();
    let id = cluster.create();
    let mut append = cluster.spawn(&["ledger", "append", &id, "--print-ids"]);
    let lines = append.lines();
    append.write(b"one\ntwo\n");
    assert_eq!([lines.next(), lines.next()], ["0", "1"]);
    cluster.pipe(&["ledger", "recover", &id], b"yes\n").failed(2, &["no terminal", "--yes to recover"]);
    append.write(b"three\n");
    assert_eq!(lines.next(), "2", "nothing was done to it");
    let said = cluster.run(&["ledger", "recover", &id, "--yes"]).done();
    assert!(said.contains("was open, has a writer; it is closed now"), "{said}");
    assert!(said.contains("its last entry is 2, it has 14 bytes"), "{said}");
    append.write(b"too late\n");
    append.wait().failed(5, &["The last acknowledged entry is 2"]);
    assert_eq!(cluster.read(&id), b"one\ntwo\nthree\n");
}

#[test]
fn one_that_cannot_be_recovered_does_not_keep_the_others() {
    let cluster = Cluster::start();
    let of_password =
        |password| cluster.run(&["ledger", "create", "--password", password]).done().trim().to_owned();
    let (open, secret) = (of_password("other"), of_password("secret"));
    let outcome = cluster.run(&["ledger", "recover", &secret, &open, "--yes", "--password", "other"]);
    assert_eq!(outcome.code, 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains(&format!("ledger {secret}: wrong password")), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("1 of 2 ledgers were not recovered"), "{}", outcome.stderr);
    assert_eq!(cluster.run(&["ledger", "show", &open, "--json"]).json()["state"], "closed");
    // Whoever may read the metadata has the password.
    cluster.run(&["ledger", "recover", &secret, "--yes"]).done();
    assert_eq!(cluster.run(&["ledger", "show", &secret, "--json"]).json()["state"], "closed");
}
