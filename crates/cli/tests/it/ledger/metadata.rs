//! Create, list, show, delete, and the list of bookies.

use crate::ledger::shell::{Cluster, eventually};
use crate::server::free_port;
use serde_json::{Value, json};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn create_prints_the_id_alone_and_refuses_what_cannot_be() {
    let cluster = Cluster::start();
    let created = cluster.run(&["ledger", "create"]);
    assert_eq!((created.code, created.stdout.as_slice()), (0, &b"0\n"[..]));
    assert!(
        created.stderr.starts_with("one copy of each entry, on one bookie, lost with its disk; --ensemble"),
        "{}",
        created.stderr
    );
    let created =
        cluster.run(&["ledger", "create", "--json", "--digest", "crc32", "--property", "k=v=w"]).json();
    let expected = json!({"ledger_id": 1, "ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1, "digest": "crc32"});
    assert_eq!(created, expected);
    let shown = cluster.run(&["ledger", "show", "1", "--json"]).json();
    assert_eq!((&shown["properties"]["k"]["text"], &shown["digest"]), (&"v=w".into(), &"crc32".into()));
    cluster
        .run(&["ledger", "create", "--ensemble", "2"])
        .failed(7, &["not enough bookies: 2 needed, 1 available", "bindery bookie list", "--ensemble"]);
    for sizes in [
        &["--ensemble", "1", "--write-quorum", "2"][..],
        &["--ack-quorum", "2", "--write-quorum", "1"],
        &["--ensemble", "0"],
    ] {
        cluster.run(&[&["ledger", "create"], sizes].concat()).failed(2, &["--write-quorum"]);
    }
    assert_eq!(cluster.run(&["ledger", "list"]).done(), "0\n1\n");
}

#[test]
fn read_only_bookies_are_counted_where_bookies_are_missing() {
    let cluster = Cluster::start();
    let (data, listen) = (cluster.dir.path().join("second"), format!("127.0.0.1:{}", free_port()));
    let metadata = cluster.place.metadata();
    let place = ["--metadata", &metadata, "--data", data.to_str().unwrap(), "--listen", &listen];
    let bookie = cluster.spawn(&[&["bookie", "--read-only", "--allow-loopback"][..], &place].concat());
    eventually(|| cluster.run(&["bookie", "list"]).done().contains("read-only"));
    let says = ["2 needed, 1 available, 1 read-only", "readOnlyBecause", "full disk", "bindery bookie list"];
    cluster.run(&["ledger", "create", "--ensemble", "2"]).failed(7, &says);
    // A bookie that is away still belongs to the cluster.
    drop(bookie);
    let is_away = |line: &str| line.starts_with(&listen) && line.contains("  away ");
    eventually(|| cluster.run(&["bookie", "list"]).done().lines().any(is_away));
    let listed = cluster.run(&["bookie", "list", "--json"]).done();
    assert!(listed.contains(&format!(r#"{{"bookie_id":"{listen}","state":"away"}}"#)), "{listed}");
}

#[test]
fn deleted_ledgers_go_when_bookies_are_asked() {
    let cluster = Cluster::start();
    let ledgers: Vec<String> = (0..3).map(|_| cluster.ledger_of(b"x\n")).collect();
    let bookie = cluster.run(&["bookie", "list", "--json"]).json()["bookie_id"].as_str().unwrap().to_owned();
    assert_eq!(cluster.run(&["bookie", "gc"]).done(), format!("{bookie}  no ledger of 3 here was deleted\n"));
    cluster.run(&["ledger", "delete", &ledgers[0], "--yes"]).done();
    let done = cluster.run(&["bookie", "gc", "--major", "--json", &bookie]).json();
    assert_eq!(
        (&done["removed"], &done["done"], &done["stopped_because"]),
        (&1.into(), &true.into(), &Value::Null)
    );
    cluster
        .run(&["bookie", "gc", "elsewhere:1"])
        .failed(6, &["no bookie elsewhere:1", "bindery bookie list"]);
    let admin = format!("http://127.0.0.1:{}", cluster.place.admin_port);
    let done = cluster.run(&["bookie", "gc", "--admin", &admin]).done();
    assert_eq!(done, format!("{admin}  no ledger of 2 here was deleted\n"));
    // The views find the port as well.
    let flow = cluster.run(&["flow", "--once", "--interval", "100ms"]).done();
    assert!(flow.contains(&admin) && flow.starts_with("adds 0/s"), "{flow}");
}

#[test]
fn an_address_that_is_left_incomplete_is_filled_in_and_said() {
    let cluster = Cluster::start();
    let port = cluster.place.coordinator_port;
    for short in [format!("127.0.0.1:{port}"), format!("zk://127.0.0.1:{port}")] {
        let listed = cluster.run(&["ledger", "list", "--metadata", &short]);
        assert_eq!(listed.code, 0, "{}", listed.stderr);
        assert_eq!(
            listed.stderr,
            format!("the metadata store {short} is taken as zk://127.0.0.1:{port}/ledgers\n")
        );
    }
}

#[test]
fn racks_come_from_a_map_or_a_script_and_can_be_enforced() {
    let cluster = Cluster::start();
    let map = cluster.file("racks", b"# the only one\n127.0.0.1 /hall/rack-1\n");
    let map = ["ledger", "create", "--enforce-racks", "--rack-map", map.to_str().unwrap()];
    assert_eq!(cluster.run(&map).done(), "0\n");
    let other = cluster.file("others", b"10.0.0.1 /hall/rack-1\n");
    let create = ["ledger", "create", "--enforce-racks", "--rack-map", other.to_str().unwrap()];
    cluster
        .run(&create)
        .failed(7, &["every write set on 1 rack, 0 can be had", "1 bookie left out", "mend the map"]);
    let damaged = cluster.file("damaged", b"127.0.0.1 rack-1\n");
    let create = ["ledger", "create", "--rack-map", damaged.to_str().unwrap()];
    cluster.run(&create).failed(2, &["line 1 of the rack map", "damaged: \"rack-1\" is no rack"]);
    let create = ["ledger", "create", "--enforce-racks", "--rack-script", "/nowhere/racks"];
    cluster.run(&create).failed(7, &["Where bookies stand is not known: cannot run /nowhere/racks"]);
    cluster
        .run(&["ledger", "create", "--min-racks", "2"])
        .failed(2, &["--placement rack or region", "--rack-map"]);
    let create =
        ["ledger", "create", "--rack-script", "/nowhere/racks", "--weigh-disks", "--placement", "region"];
    assert_eq!(cluster.run(&create).done(), "1\n", "not enforced, it does without");
    let ledger = cluster.ledger_of(b"near\n");
    let read = ["ledger", "read", &ledger, "--rack-map", map[4], "--location", "/hall/rack-1"];
    assert_eq!(cluster.run(&read).done(), "near\n");
    assert_eq!(cluster.run(&[&read[..], &["--recover", "--yes"]].concat()).done(), "near\n");
    cluster.run(&["ledger", "read", &ledger, "--location", "/r1"]).failed(2, &["--location", "--rack-map"]);
    let said = cluster.run(&["ledger", "read", &ledger, "--location", "r1"]);
    assert!(said.code == 2 && said.stderr.contains("\"r1\" is no rack"), "{}", said.stderr);
    cluster.run(&["bench", "add", "--enforce-racks"]).failed(2, &["--placement rack or region"]);
}

#[test]
fn list_and_show_say_what_the_metadata_says() {
    let cluster = Cluster::start();
    let open = cluster.ledger_of(b"abc\n");
    let closed = cluster.ledger_of(b"a\nb\n");
    cluster.run(&["ledger", "close", &closed]).done();
    assert_eq!(cluster.run(&["ledger", "list"]).done(), format!("{open}\n{closed}\n"));
    assert_eq!(cluster.run(&["ledger", "list", "--json"]).done(), "{\"ledger_id\":0}\n{\"ledger_id\":1}\n");

    let long = cluster.run(&["ledger", "list", "--long"]).done();
    let rows: Vec<Vec<&str>> = long.lines().map(|row| row.split_whitespace().collect()).collect();
    let bookie = format!("127.0.0.1:{}", cluster.place.bookie_port);
    assert_eq!(rows[0][..3], ["LEDGER", "STATE", "LAST"]);
    assert_eq!((&rows[1][..5], rows[1][6]), (&["0", "open", "0", "4", "1/1/1"][..], bookie.as_str()));
    assert_eq!((&rows[2][..5], rows.len()), (&["1", "closed", "1", "4", "1/1/1"][..], 3));

    let long = cluster.run(&["ledger", "list", "--long", "--json"]).done();
    let objects: Vec<Value> = long.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let shown = cluster.run(&["ledger", "show", &closed, "--json"]).json();
    assert_eq!(objects[1], shown, "one set of fields");
    assert_eq!(
        keys(&shown),
        [
            "ack_quorum_size",
            "created_ms",
            "digest",
            "ensemble_size",
            "has_password",
            "last_entry",
            "ledger_id",
            "length_bytes",
            "metadata_format",
            "metadata_version",
            "properties",
            "segments",
            "state",
            "under_replicated_on",
            "write_quorum_size",
            "writer"
        ]
    );
    assert_eq!(shown["segments"], json!([{"first_entry": 0, "bookies": [bookie]}]));
    assert_eq!(shown["under_replicated_on"], json!([]));
    assert_eq!(
        (&shown["state"], &shown["writer"], &shown["last_entry"]),
        (&"closed".into(), &().into(), &1.into())
    );
    assert_eq!((&objects[0]["state"], &objects[0]["writer"]), (&"open".into(), &"idle".into()));

    let text = cluster.run(&["ledger", "show", &open]).done();
    for line in ["ledger        0", "state         open, no writer", "last entry    0", "password      none"]
    {
        assert!(text.lines().any(|found| found == line), "{line:?}:\n{text}");
    }
    cluster.run(&["ledger", "show", "9"]).failed(6, &["ledger 9 does not exist"]);

    let bookies = cluster.run(&["bookie", "list"]).done();
    assert_eq!(bookies, format!("{bookie}  writable   {bookie}\n"));
    let object = cluster.run(&["bookie", "list", "--json"]).json();
    assert_eq!(keys(&object), ["address", "bookie_id", "endpoints", "state"]);
    assert_eq!((&object["bookie_id"], &object["state"]), (&bookie.as_str().into(), &"writable".into()));
}

#[test]
fn delete_needs_a_word_and_deletes_all_or_says_nothing_was() {
    let cluster = Cluster::start();
    let ids = [cluster.create(), cluster.create(), cluster.create()];
    cluster.pipe(&["ledger", "delete", &ids[0]], b"yes\n").failed(2, &["no terminal", "--yes"]);
    cluster
        .run(&["ledger", "delete", &ids[0], "99", "--yes"])
        .failed(6, &["ledger 99 does not exist", "nothing was deleted"]);
    assert_eq!(cluster.run(&["ledger", "list"]).done(), "0\n1\n2\n");
    let deleted = cluster.run(&["ledger", "delete", &ids[0], &ids[2], "--yes"]).done();
    assert_eq!(deleted, "ledger 0 deleted\nledger 2 deleted\n");
    let deleted = cluster.run(&["ledger", "delete", &ids[1], "--yes", "--json"]).json();
    assert_eq!(deleted, json!({"ledger_id": 1, "deleted": true}));
    assert_eq!(cluster.run(&["ledger", "list"]).done(), "");
    cluster.run(&["ledger", "read", &ids[0]]).failed(6, &["does not exist"]);
}

#[test]
fn bookie_health_asks_each_bookie_and_reads_a_ledger() {
    let cluster = Cluster::start();
    let id = cluster.ledger_of(b"one\ntwo\n");
    let table = cluster.run(&["bookie", "health", "--once", "--interval", "0.2", "--ledger", &id]).done();
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("BOOKIE") && lines[1].contains("healthy"), "{table}");
    assert!(lines[2].starts_with("hedge after"), "{table}");
    let bookie = cluster.run(&["bookie", "health", "--json", "--interval", "0.2"]).json();
    assert_eq!((&bookie["state"], &bookie["pending"]), (&"healthy".into(), &0.into()));
    assert!(bookie["answered"].as_u64().unwrap() > 0 && bookie["p50_us"].as_u64().unwrap() > 0);
    cluster.run(&["bookie", "health", "--ledger", "77"]).failed(6, &["77"]);
}
