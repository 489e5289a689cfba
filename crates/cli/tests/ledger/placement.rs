//! Flags of placement: what is refused at once, what is warned of, what they do.

use crate::shell::Cluster;
use std::os::unix::fs::PermissionsExt;

#[test]
fn what_cannot_work_is_refused_before_anything_is_asked() {
    let cluster = Cluster::start();
    let script = cluster.file("racks.sh", b"#!/bin/sh\n");
    let script = script.to_str().unwrap();
    let create = |args: &[&str]| cluster.run(&[&["ledger", "create"], args].concat());
    create(&["--rack-script", script]).failed(2, &["cannot run the rack script", script, "ermission denied"]);
    create(&["--rack-script", "./nowhere.sh"]).failed(2, &["cannot run the rack script ./nowhere.sh"]);
    create(&["--rack-map", "/nowhere"]).failed(2, &["cannot read the rack map /nowhere"]);
    let map = cluster.file("map", b"127.0.0.1 rack-1\n");
    create(&["--rack-map", map.to_str().unwrap()]).failed(2, &["line 1", "\"rack-1\" is no rack"]);
    create(&["--enforce-racks"]).failed(2, &["--rack-script or --rack-map"]);
    assert_eq!(cluster.run(&["ledger", "list"]).done(), "");
}

#[test]
fn a_script_that_fails_is_warned_of_and_a_spread_that_is_enforced_fails() {
    let cluster = Cluster::start();
    let script = cluster.file("racks.sh", b"#!/bin/sh\necho no racks today >&2\nexit 3\n");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = cluster.run(&["ledger", "create", "--rack-script", script.to_str().unwrap()]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    assert!(said.stderr.contains("WARN") && said.stderr.contains("no racks today"), "{}", said.stderr);

    let map = cluster.file("map", b"127.0.0.1 /rack-1\n");
    let map = map.to_str().unwrap();
    let said = cluster.run(&["ledger", "create", "--rack-map", map]);
    assert_eq!((said.code, said.stderr.as_str()), (0, ""), "one rack of one is as far as there are so many");
    let refused =
        cluster.run(&["ledger", "create", "--rack-map", map, "--enforce-racks", "--write-quorum", "1"]);
    assert_ne!(refused.code, 0, "{}", refused.stderr);
}
