//! `bindery tier verify` and `bindery tier restore`: a cluster that is gone, and its bucket.

#![allow(clippy::disallowed_methods, reason = "real processes on real files, in real time")]

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use super::server::{Place, bindery, free_port};
use super::tiering::{Tierer, until};

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

fn ok(output: Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    text(&output.stdout)
}

fn failed(output: &Output, code: i32, words: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", said(output));
    assert!(said(output).contains(words), "{words}: {}", said(output));
}

/// A ledger with so many lines.
fn ledger(place: &Place, lines: usize, create: &[&str], append: &[&str]) -> String {
    let id = ok(place.run(&[&["ledger", "create"], create].concat())).trim().to_owned();
    let input: String = (0..lines).map(|line| format!("line {line} of {id}\n")).collect();
    ok(place.pipe(&[&["ledger", "append", &id], append].concat(), input.as_bytes()));
    id
}

fn tier_now(place: &Place, id: &str) {
    let admin = format!("http://127.0.0.1:{}", place.admin_port);
    ok(bindery(&["tier", "now", id, "--admin", &admin]).output().unwrap());
}

/// The only cluster in a bucket.
fn instance_id(bucket: &Path) -> String {
    let names =
        std::fs::read_dir(bucket).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names.filter(|name| name.len() == 36).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    names[0].clone()
}

fn objects(bucket: &Path) -> Vec<PathBuf> {
    let dir = bucket.join(instance_id(bucket)).join("objects");
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_cluster_comes_back_from_its_bucket() {
    let (data, bucket) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let url = format!("file://{}", bucket.path().display());
    let first = Place::new(&data.path().join("first"), 1);
    let server = first.start_with(&["--tier", &url, "--tier-grace", "1s"]);
    let secret = ["--password", "secret"];
    let closed = ledger(
        &first,
        100,
        &[&secret[..], &["--property", "a=b"]].concat(),
        &[&secret[..], &["--close"]].concat(),
    );
    let open = ledger(&first, 30, &[], &[]);
    for id in [&closed, &open] {
        tier_now(&first, id);
    }
    let read = |place: &Place, id: &str, password: &str| {
        let output = place.run(&["ledger", "read", id, "--password", password]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        output.stdout
    };
    let contents = [read(&first, &closed, "secret"), read(&first, &open, "")];
    let created_ms = |place: &Place, id: &str| -> i64 {
        let shown: Value = serde_json::from_str(&ok(place.run(&["ledger", "show", id, "--json"]))).unwrap();
        shown["created_ms"].as_i64().unwrap()
    };
    let created = [created_ms(&first, &closed), created_ms(&first, &open)];
    // Everything in the bucket is sound, with the metadata store and without.
    let verified = ok(first.run(&["tier", "verify", "--store", &url, "--metadata", &first.metadata()]));
    assert!(verified.contains("sound: 0 damage, 0 unchecked, 0 leftover"), "{verified}");
    // An existing cluster is not overwritten: everything is there.
    let again = ok(first.run(&["tier", "restore", "--store", &url, "--json", &closed]));
    let lines: Vec<Value> = again.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["state"], "there", "{again}");
    let (status, _) = server.stop("-TERM");
    assert!(status.success());
    let cluster = instance_id(bucket.path());
    std::fs::remove_dir_all(&first.data).unwrap();

    let verified = ok(bindery(&["tier", "verify", "--store", &url, "--json"]).output().unwrap());
    let sums: Value = serde_json::from_str(verified.lines().last().unwrap()).unwrap();
    assert_eq!((&sums["verdict"], &sums["entries"]), (&"sound".into(), &130.into()), "{sums}");
    assert_eq!((&sums["cluster"], &sums["ledgers"]), (&cluster.as_str().into(), &2.into()), "{sums}");

    // A cluster with another INSTANCEID cannot read these objects, and says how to make one that can.
    let other = Place::new(&data.path().join("other"), 1);
    // Without a tierer, which would make a catalogue of its own in the bucket.
    let server = other.start_with(&["--tier", &url, "--tier-role", "off"]);
    let refused = other.run(&["tier", "restore", "--store", &url, "--from", &cluster]);
    failed(&refused, 2, &format!("bindery cluster init --instance-id {cluster}"));
    failed(&other.run(&["cluster", "init", "--instance-id", &cluster]), 1, "a cluster with INSTANCEID");
    failed(&other.run(&["cluster", "init", "--instance-id", "x"]), 2, "--instance-id");
    server.stop("-TERM");

    let second = Place::new(&data.path().join("second"), 1);
    let options = ["--tier", &url, "--instance-id", &cluster];
    let server = second.start_with(&options);
    let paused = ok(second.run(&["tier", "pause"]));
    assert!(paused.contains("tiering was paused already, bindery tier restore"), "{paused}");
    // Whichever ledgers are restored first, new ones take no id of the others.
    let restored = ok(second.run(&["tier", "restore", "--store", &url, &closed]));
    assert!(restored.contains("1 ledger restored"), "{restored}");
    let meanwhile = ledger(&second, 1, &[], &["--close"]);
    assert!(meanwhile.parse::<i64>().unwrap() > open.parse::<i64>().unwrap(), "{meanwhile}");
    let restored = ok(second.run(&["tier", "restore", "--store", &url]));
    assert!(restored.contains("1 ledger restored") && restored.contains("1 there already"), "{restored}");
    assert_eq!([created_ms(&second, &closed), created_ms(&second, &open)], created);
    assert!(restored.contains(&format!("ledger {open}: restored: it was open: closed behind")), "{restored}");
    assert!(ok(second.run(&["tier", "resume"])).contains("was not paused"), "all of the bucket is there");
    let compare = |place: &Place| {
        assert_eq!([read(place, &closed, "secret"), read(place, &open, "")], contents);
    };
    compare(&second);
    let wrong = second.run(&["ledger", "read", &closed, "--password", "wrong"]);
    assert_eq!(wrong.status.code(), Some(1), "{}", said(&wrong));
    let shown: Value = serde_json::from_str(&ok(second.run(&["ledger", "show", &closed, "--json"]))).unwrap();
    assert_eq!((&shown["state"], &shown["last_entry"]), (&"closed".into(), &99.into()), "{shown}");
    assert_eq!(
        (&shown["length_bytes"], &shown["properties"]["a"]["text"]),
        (&contents[0].len().into(), &"b".into())
    );
    let shown: Value = serde_json::from_str(&ok(second.run(&["ledger", "show", &open, "--json"]))).unwrap();
    assert_eq!(
        (&shown["state"], &shown["length_bytes"]),
        (&"closed".into(), &contents[1].len().into()),
        "{shown}"
    );

    // Where its parts are.
    let shown = ok(second.run(&["ledger", "show", &closed, "--store", &url, "--long"]));
    for words in [
        "tier          127.0.0.1:",
        "up to entry 99 in the bucket, copies up to entry 99 were let go",
        "bucket        entries 0 to 99, ",
        "extent        entries 0 to 99: object ",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let shown = ok(second.run(&["ledger", "show", &closed, "--store", &url, "--json"]));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let bookie = &shown["tier"]["bookies"][0];
    assert_eq!((&bookie["last_reconciled"], &bookie["trimmed_below"]), (&99.into(), &99.into()), "{shown}");
    assert_eq!(
        (&bookie["alarm"], &shown["tier"]["catalogue"]["last_entry"]),
        (&Value::Null, &99.into()),
        "{shown}"
    );
    // An object, without a cluster.
    let object = objects(bucket.path()).remove(0);
    let inspected =
        ok(bindery(&["inspect", "object", &format!("file://{}", object.display())]).output().unwrap());
    assert!(inspected.contains(&format!("cluster={cluster}")), "{inspected}");

    // A second time is harmless, and so is a power cut: the bookies' journals have it.
    tier_now(&second, &meanwhile);
    let again = ok(second.run(&["tier", "restore", "--store", &url]));
    assert!(again.contains("0 ledgers restored") && again.contains("3 there already"), "{again}");
    server.kill();
    let server = second.start_with(&options);
    compare(&second);
    // The cluster works on: new ids are others, and ledgers move to the bucket.
    let new = ledger(&second, 5, &[], &["--close"]);
    assert!(![&closed, &open].contains(&&new), "{new}");
    tier_now(&second, &new);
    server.stop("-TERM");
    let server = second.start_with(&options);
    compare(&second);
    let verified = ok(second.run(&["tier", "verify", "--store", &url]));
    assert!(verified.contains("sound: 0 damage, 0 unchecked"), "{verified}");
    server.stop("-TERM");
}

#[test]
fn a_lost_catalogue_is_made_anew_and_no_other_ledger_is_touched() {
    let (data, bucket) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let url = format!("file://{}", bucket.path().display());
    let first = Place::new(&data.path().join("first"), 1);
    let server = first.start_with(&["--tier", &url]);
    let ids = [ledger(&first, 20, &[], &["--close"]), ledger(&first, 10, &[], &["--close"])];
    ids.iter().for_each(|id| tier_now(&first, id));
    let contents = first.run(&["ledger", "read", &ids[1]]).stdout;
    server.stop("-TERM");
    let cluster = instance_id(bucket.path());
    std::fs::remove_dir_all(bucket.path().join(&cluster).join("catalogue")).unwrap();
    let verify = || bindery(&["tier", "verify", "--store", &url]).output().unwrap();
    let verified = verify();
    failed(&verified, 9, "Objects are compared with themselves alone");
    assert!(said(&verified).contains("bindery tier restore --rebuild"), "{}", said(&verified));

    let second = Place::new(&data.path().join("second"), 1);
    let server = second.start_with(&["--tier", &url, "--instance-id", &cluster]);
    // A ledger of the new cluster has the id of one in the bucket.
    let taken = ledger(&second, 3, &[], &[]);
    assert_eq!(taken, ids[0]);
    let mine = second.run(&["ledger", "read", &taken]).stdout;
    let restored = second.run(&["tier", "restore", "--store", &url]);
    failed(&restored, 1, "1 ledger was not restored, see above");
    let told = said(&restored);
    assert!(told.contains("the catalogue is rebuilt from the objects"), "{told}");
    assert!(
        told.contains(&format!("ledger {taken}: left: a ledger of this id exists, and is open")),
        "{told}"
    );
    assert_eq!(second.run(&["ledger", "read", &ids[1]]).stdout, contents);
    assert_eq!(second.run(&["ledger", "read", &taken]).stdout, mine, "untouched");
    server.stop("-TERM");

    // A byte on the medium changes: the ledger and the object are named.
    assert_eq!(verify().status.code(), Some(0), "{}", said(&verify()));
    let object = objects(bucket.path()).remove(0);
    let mut bytes = std::fs::read(&object).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&object, bytes).unwrap();
    let verified = verify();
    failed(&verified, 9, "1 damage found");
    let name = object.file_name().unwrap().to_str().unwrap();
    assert!(said(&verified).contains(name) && said(&verified).contains("ledger "), "{}", said(&verified));
    std::fs::remove_file(&object).unwrap();
    failed(&verify(), 9, "missing");
}

#[test]
fn wrong_arguments_give_one_clear_line() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().display());
    let metadata = "zk+hierarchical://127.0.0.1:1/ledgers";
    let (no_object, no_name) = (format!("{url}/x"), format!("{url}/"));
    let cases: [(&[&str], i32, &str); 9] = [
        (&["inspect", "object", &no_object], 1, "not found"),
        (&["inspect", "object", &no_name], 2, "name an object"),
        (&["inspect", "object", "ftp://x/y"], 2, "names no object store"),
        (&["tier", "verify"], 2, "--store"),
        (&["tier", "verify", "--store", "ftp://x"], 2, "names no object store"),
        (&["tier", "verify", "--store", &url], 6, "there is nothing of a cluster here"),
        (&["tier", "verify", "--store", &url, "--cluster", "x"], 2, "--cluster: \"x\" is not an INSTANCEID"),
        (&["tier", "restore", "--store", &url, "--metadata", metadata], 7, "127.0.0.1:1"),
        (&["tier", "restore", "--store", &url, "--metadata", "nonsense"], 2, "nonsense"),
    ];
    for (args, code, words) in cases {
        failed(&bindery(args).output().unwrap(), code, words);
    }
}

/// T16: of two ledgers in one object the large one is deleted. Bookies have no copy of the other, which was restored
/// from the bucket: they serve reads of it from the object into which it was rewritten, and the old one is gone.
#[test]
fn an_object_of_which_little_is_left_is_rewritten_and_bookies_read_from_the_new_one() {
    let (data, bucket) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let url = format!("file://{}", bucket.path().display());
    let first = Place::new(&data.path().join("first"), 1);
    let server = first.start_with(&["--tier", &url]);
    let admin = |place: &Place| format!("http://127.0.0.1:{}", place.admin_port);
    // Both wait when tiering goes on, and go into one object.
    ok(first.run(&["tier", "pause"]));
    until(&admin(&first), "it is paused", |report| report["paused"] == true);
    let large = ledger(&first, 3000, &[], &["--close"]);
    let small = ledger(&first, 100, &[], &["--close"]);
    let contents = ok(first.run(&["ledger", "read", &small]));
    until(&admin(&first), "both are seen", |report| report["lag"]["entries"] == 3100);
    ok(first.run(&["tier", "resume"]));
    until(&admin(&first), "both are there", |report| report["entries"] == 3100);
    let (status, _) = server.stop("-TERM");
    assert!(status.success());
    let before = objects(bucket.path());
    assert_eq!(before.len(), 1, "one object has both");
    let cluster = instance_id(bucket.path());
    std::fs::remove_dir_all(&first.data).unwrap();

    let second = Place::new(&data.path().join("second"), 1);
    // A tierer of its own would rewrite the object too, and each counts what it did itself.
    let _server = second.start_with(&["--tier", &url, "--tier-role", "off", "--instance-id", &cluster]);
    ok(second.run(&["tier", "restore", "--store", &url]));
    assert_eq!(ok(second.run(&["ledger", "read", &small])), contents);
    ok(second.run(&["ledger", "delete", &large, "--yes"]));
    let (address, metadata) = (format!("127.0.0.1:{}", free_port()), second.metadata());
    let options = ["--metadata", &metadata, "--store", &url, "--admin", &address, "--delete-delay", "1s"];
    let _tierer = Tierer::spawn(&[&["tier", "run"], &options[..]].concat());
    let report = until(&format!("http://{address}"), "it was rewritten, and is gone", |report| {
        // The pass that deletes counts first and says at its end how many objects it left.
        report["objectsDeleted"] == 1 && report["garbageKept"] == 0 && report["catalogueObjects"] == 1
    });
    assert_eq!(report["objectsRewritten"], 1, "{report:#}");
    assert_eq!(report["alarms"].as_array().unwrap().len(), 0, "{report:#}");
    let after = objects(bucket.path());
    assert!(after.len() == 1 && after != before, "{before:?} {after:?}");
    assert_eq!(ok(second.run(&["ledger", "read", &small])), contents);
    let shown =
        ok(bindery(&["tier", "status", "--once", "--admin", &format!("http://{address}")]).output().unwrap());
    assert!(shown.contains("1 objects of which little was left"), "{shown}");
    let verified = ok(bindery(&["tier", "verify", "--store", &url]).output().unwrap());
    assert!(verified.contains("sound: 0 damage, 0 unchecked, 0 leftover"), "{verified}");
}
