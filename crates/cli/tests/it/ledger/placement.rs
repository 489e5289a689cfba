//! Flags of placement: what is refused at once, and what is warned of.

use crate::ledger::shell::{Cluster, WARNING};
use std::os::unix::fs::PermissionsExt;

#[test]
fn what_cannot_work_is_refused_before_anything_is_asked() {
    let cluster = Cluster::start();
    let create = |args: &[&str]| cluster.run(&[&["ledger", "create"], args].concat());
    create(&["--rack-map", "/nowhere"]).failed(2, &["cannot read the rack map /nowhere"]);
    create(&["--enforce-racks"]).failed(2, &["--rack-script or --rack-map"]);
    assert_eq!(cluster.run(&["ledger", "list"]).done(), "");
}

#[test]
fn a_script_that_fails_or_cannot_be_run_is_warned_of_and_done_without() {
    let cluster = Cluster::start();
    let script = cluster.file("racks.sh", b"#!/bin/sh\necho no racks today >&2\nexit 3\n");
    let script = script.to_str().unwrap();
    let said = cluster.run(&["ledger", "create", "--rack-script", script]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    assert!(said.stderr.contains(WARNING) && said.stderr.contains("ermission denied"), "{}", said.stderr);
    std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = cluster.run(&["ledger", "create", "--rack-script", script]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    assert!(said.stderr.contains(WARNING) && said.stderr.contains("no racks today"), "{}", said.stderr);
}
