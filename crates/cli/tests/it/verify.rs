//! `bindery verify` and `bindery disk` as a shell sees them, on directories that storage and journal made: damage is
//! found wherever it is, intact directories are called sound, and nothing is changed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "damage is done behind the disk's back")]

use bindery_io::canary::Canaries;
use bindery_io::chunk::{ChunkPool, Lane};
use bindery_io::{Disk, RealDisk, SeededRandom};
use bindery_journal::record::{HEADER_SIZE_BYTES, Kind, encode, fold_header};
use bindery_journal::{Group, Journal, JournalConfig, Part};
use bindery_metadata::Cookie;
use bindery_server::cluster_record::ClusterRecord;
use bindery_storage::{DirectoryCommit, Generation, JournalMark, LedgerDirectory, LedgerRecord, Mark, Meta};
use bindery_types::{BookieId, EntryId, LedgerId};
use serde_json::Value;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

const BOOKIE: &str = "bookie-a:3181";
const CLUSTER: &str = "cluster-1";
/// Groups up to it are in the ledger directory.
const MARK: u64 = 4;
const GROUPS: i64 = 12;

fn body(ledger: i64, entry: i64) -> Vec<u8> {
    let ids = [ledger, entry, entry - 1].map(i64::to_be_bytes).concat();
    [ids, vec![entry as u8; 40 + entry as usize % 50]].concat()
}

fn stamp(dir: &Path) {
    let current = dir.join("current");
    std::fs::create_dir_all(&current).unwrap();
    let (id, dirs) = (BookieId::new(BOOKIE).unwrap(), |name: &str| vec![name.to_owned()]);
    let cookie = Cookie::new(&id, &dirs("journal"), &dirs("ledgers"), None, Some(CLUSTER));
    std::fs::write(current.join("BINDERY"), "bindery-format 1\n").unwrap();
    std::fs::write(current.join("VERSION"), cookie.to_text()).unwrap();
    std::fs::write(dir.join("LOCK"), "").unwrap();
}

/// Entry logs with regular and irregular runs, and entries 0 to 3 of ledger 1 written twice.
fn ledgers(dir: &Path) {
    stamp(dir);
    std::fs::write(dir.join("current/SESSION"), "session").unwrap();
    std::fs::set_permissions(dir.join("current/SESSION"), PermissionsExt::from_mode(0o600)).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    let mut directory = LedgerDirectory::open(&disk, &dir.join("current")).unwrap().directory;
    let flushes: [&[(i64, i64)]; 3] = [
        &[(1, 0), (1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 9), (7, 5)],
        &[(1, 4), (1, 5), (2, 10), (2, 30)],
        &[(1, 0), (1, 1), (1, 2), (1, 3), (1, 6)],
    ];
    for (generation, ids) in (1..).zip(flushes) {
        let mut log = directory.begin_log(Generation(generation)).unwrap();
        let mut last = BTreeMap::new();
        for (ledger, entry) in ids {
            let bytes = body(*ledger, *entry);
            let (l, e) = (LedgerId::new(*ledger).unwrap(), EntryId::new(*entry).unwrap());
            log.append(l, e, &bytes, bindery_journal::record::crc32c(&bytes)).unwrap();
            last.insert(l, e);
        }
        let logs = [log.finish().unwrap()];
        let record = |(ledger, last): (LedgerId, EntryId)| LedgerRecord {
            last_entry: Some(last),
            ..LedgerRecord::new(ledger)
        };
        let records: Vec<LedgerRecord> = last.into_iter().map(record).collect();
        let group = if generation == 3 { MARK } else { generation };
        let marks = [JournalMark { journal: 0, mark: Mark { file_id: 1, group } }];
        let meta = Meta {
            bookie_id: BOOKIE.into(),
            instance_id: CLUSTER.into(),
            shards: 2,
            journals: 1,
            directories: 1,
            directory: 0,
            out: Vec::new(),
        };
        let meta = (generation == 1).then_some(&meta);
        directory
            .commit(&DirectoryCommit {
                logs_added: &logs,
                marks: &marks,
                ledgers: &[&records],
                meta,
                ..Default::default()
            })
            .unwrap();
    }
}

/// Groups 1 to 12 in files of three or four, the last one a seal.
fn journal(dir: &Path, sync: bool) {
    stamp(dir);
    let config = JournalConfig {
        bytes_max: 0,
        journal: 0,
        is_tiered: false,
        dir: dir.join("current"),
        file_bytes: 5 * 4096,
        owner: format!("{CLUSTER} {BOOKIE}"),
        sync,
        canaries: Canaries::none(),
    };
    let mut journal =
        Journal::open(Arc::new(RealDisk::new()), config, Arc::new(SeededRandom::new(7))).unwrap();
    journal.replay(0, |_, _| Ok::<(), Infallible>(())).unwrap();
    let pool = ChunkPool::new(64 << 10, 1, 0);
    let mut chunk = pool.take(Lane::Normal).unwrap();
    // Behind the place of a group header, so that a group takes one block.
    chunk.append(120, |bytes| bytes.fill(0));
    for entry in 0..GROUPS {
        let (start, mut header) = (chunk.len(), [0; HEADER_SIZE_BYTES]);
        let body = body(5, entry);
        chunk.append(HEADER_SIZE_BYTES + body.len(), |target| {
            header = encode(target, Kind::Entry, &[&body]).0
        });
        let headers_crc = fold_header(0, &header);
        let part = Part { data: chunk.slice(start..chunk.len()), shard: 0, record_count: 1, headers_crc };
        let parts = if entry + 1 == GROUPS { Vec::new() } else { vec![part] };
        journal.write(&Group { parts, force_sync: false }).unwrap();
    }
}

/// Where the first record of a group lies in it.
fn record_at(group: &[u8]) -> u64 {
    u32::from_be_bytes(group[64..68].try_into().unwrap()).into()
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        std::fs::set_permissions(place.0.path(), PermissionsExt::from_mode(0o755)).unwrap();
        place
    }
    /// With the data of one bookie.
    fn bookie() -> Place {
        let place = Place::new();
        journal(&place.path("journal"), true);
        ledgers(&place.path("ledgers"));
        place
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    /// All files with their bytes.
    fn content(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let (mut files, mut dirs) = (BTreeMap::new(), vec![self.0.path().to_owned()]);
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path)
                } else {
                    drop(files.insert(path.clone(), std::fs::read(path).unwrap()))
                }
            }
        }
        files
    }
    fn log(&self, id: u64) -> PathBuf {
        self.path(&format!("ledgers/current/{id:016x}.elog"))
    }
}

fn bindery(command: &str, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bindery")).arg(command).args(args).output().unwrap()
}

/// Exit code and JSON lines; the last one is the summary.
fn verify(dirs: &[&Path]) -> (i32, Vec<Value>) {
    let dirs: Vec<&str> = dirs.iter().map(|dir| dir.to_str().unwrap()).collect();
    let output = bindery("verify", &[&["--json"], &dirs[..]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.code().unwrap(), lines)
}

fn findings<'a>(lines: &'a [Value], severity: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["type"] == "finding" && line["severity"] == severity).collect()
}

/// The message of a run that ends with `code`.
fn refused(command: &str, args: &[&str], code: i32) -> String {
    let output = bindery(command, args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.starts_with("bindery: "), "{stderr}");
    stderr
}

#[test]
fn sound_directories_are_called_sound_and_stay_as_they_are() {
    let place = Place::bookie();
    let before = place.content();
    let (code, lines) = verify(&[place.0.path()]);
    assert_eq!((code, lines.len()), (0, 1), "{lines:?}");
    let summary = &lines[0];
    assert_eq!((summary["verdict"].as_str(), summary["note"].as_u64()), (Some("sound"), Some(0)));
    let (ledgers, journal) = (&summary["directories"][0], &summary["directories"][1]);
    assert_eq!((ledgers["logs"].as_u64(), ledgers["entries"].as_u64()), (Some(3), Some(17)));
    let counts = ["groups", "records", "groups_needed"].map(|name| journal[name].as_u64().unwrap());
    assert_eq!(counts, [12, 11, 12 - MARK]);
    assert_eq!(place.content(), before, "nothing was written");

    // Also when both halves are named by themselves, or what is inside them.
    let (code, lines) = verify(&[&place.path("ledgers/current"), &place.path("journal")]);
    assert_eq!((code, lines.len()), (0, 1), "{lines:?}");
    let text = bindery("verify", &[place.0.path().to_str().unwrap()]);
    assert_eq!(text.status.code(), Some(0));
    assert!(
        String::from_utf8(text.stdout)
            .unwrap()
            .ends_with("sound: 0 damage, 0 unchecked, 0 leftover, 0 note\n")
    );
}

/// X19. Goal: each damage is found, in its file, at or before its byte; and the check repairs nothing.
/// Method: one damage at a time, at places spread over each kind of file; whole files too.
#[test]
fn a_hundred_damaged_places_are_found_each() {
    let place = Place::bookie();
    let good = place.content();
    let mut damages: Vec<(PathBuf, Option<u64>, Vec<u8>)> = Vec::new();
    let mut flip = |path: PathBuf, at: u64| {
        let mut bytes = good[&path].clone();
        bytes[at as usize] ^= 1 << (at % 8);
        damages.push((path, Some(at), bytes));
    };
    for id in 0..3 {
        let log = place.log(id);
        // Bodies and index begin at 4096, the footer is behind them, the trailer at the end.
        let inside = (0..14).map(|i| 4096 + i * 59 + id);
        for at in inside.chain([0, 8, 700, 4095, 8191, 8128, 8140, 7000]) {
            flip(log.clone(), at);
        }
    }
    let state = place.path("ledgers/current/state.redb");
    for at in [0, 9, 100, 4092] {
        flip(state.clone(), at);
    }
    // Groups behind the mark and before the seal, of every file that has one: headers and records.
    let mut groups = 0;
    for path in good.keys().filter(|path| path.extension().is_some_and(|extension| extension == "bjl")) {
        let bytes = &good[path];
        for (at, block) in (0u64..).step_by(4096).zip(bytes.chunks(4096)).skip(1) {
            let sequence = u64::from_be_bytes(block[32..40].try_into().unwrap());
            let in_next = bytes.get(at as usize + 4096..).is_some_and(|next| next.starts_with(b"BNDGRP01"));
            if block.starts_with(b"BNDGRP01") && sequence > MARK && in_next {
                groups += 1;
                for inside in [0, 20, 40, 63, record_at(block), record_at(block) + 30] {
                    flip(path.clone(), at + inside);
                }
            }
        }
    }
    assert!(groups >= 4, "{groups} groups of the journal can be damaged");
    for half in ["journal", "ledgers"] {
        for at in [0, 2, 20, 40] {
            flip(place.path(&format!("{half}/current/VERSION")), at);
        }
        for at in [0, 9, 15] {
            flip(place.path(&format!("{half}/current/BINDERY")), at);
        }
    }
    for (path, bytes) in &good {
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.ends_with(".elog") || name == "state.redb" {
            for keep in [0, 100, bytes.len() / 2, bytes.len() - 1] {
                damages.push((path.clone(), None, bytes[..keep].to_vec()));
            }
        }
    }
    assert!(damages.len() >= 100, "{} damages", damages.len());
    for (path, at, bytes) in &damages {
        std::fs::write(path, bytes).unwrap();
        let before = place.content();
        let (code, lines) = verify(&[place.0.path()]);
        let found = findings(&lines, "damage");
        let what = format!("{} {at:?}: {lines:#?}", path.display());
        assert_eq!(code, 9, "{what}");
        // A cookie that differs from the other one: it is impossible to say which of them is the bad one.
        let is_cookie = path.ends_with("VERSION");
        let named = found.iter().find(|finding| {
            let file = Path::new(finding["file"].as_str().unwrap());
            file == path || is_cookie && file.ends_with("VERSION")
        });
        let named = named.unwrap_or_else(|| panic!("the file is not named: {what}"));
        if let (Some(at), Some(offset)) = (at, named["offset"].as_u64()) {
            let is_frame = ["log-frame", "state-table"].contains(&named["kind"].as_str().unwrap());
            assert!(is_frame || (offset <= *at && at - offset < 4096), "{what}");
        }
        assert!(!named["advice"].as_str().unwrap().is_empty() && !named["found"].is_null(), "{what}");
        assert_eq!(place.content(), before, "{what}");
        std::fs::write(path, &good[path]).unwrap();
    }
    assert_eq!(verify(&[place.0.path()]).0, 0, "everything is as it was");
}

/// Groups of a file without sync are damaged where the next file found it synced, and are reported as that, once; in the
/// last file they may be what a power cut left.
#[test]
fn rot_in_a_file_without_sync_is_reported_once() {
    let place = Place::new();
    journal(&place.path("journal"), false);
    ledgers(&place.path("ledgers"));
    let good = place.content();
    let (mut damaged, mut holes) = (0, 0);
    for path in good.keys().filter(|path| path.extension().is_some_and(|extension| extension == "bjl")) {
        for (at, block) in good[path].chunks(4096).enumerate().skip(1) {
            let sequence = u64::from_be_bytes(block[32..40].try_into().unwrap());
            let next = good[path].get((at + 1) * 4096..).unwrap_or_default();
            if !block.starts_with(b"BNDGRP01") || sequence <= MARK || !next.starts_with(b"BNDGRP01") {
                continue;
            }
            let mut bytes = good[path].clone();
            bytes[at * 4096 + 40] ^= 1;
            std::fs::write(path, bytes).unwrap();
            let (_, lines) = verify(&[place.0.path()]);
            std::fs::write(path, &good[path]).unwrap();
            let (damage, notes) = (findings(&lines, "damage"), findings(&lines, "note"));
            assert_eq!(damage.len() + notes.len(), 1, "group {sequence}: {lines:#?}");
            (damaged, holes) = (damaged + damage.len(), holes + notes.len());
        }
    }
    assert!(damaged > 0 && holes > 0, "{damaged} damaged, {holes} holes");
}

#[test]
fn what_is_known_of_metadata_is_the_bookies_and_damage_to_it_is_found() {
    let place = Place::bookie();
    let known = |up_to: i64| {
        ClusterRecord { checked_up_to: LedgerId::new(up_to), ..ClusterRecord::default() }.to_text()
    };
    let path = place.path("ledgers/current/KNOWN");
    std::fs::write(&path, known(4711)).unwrap();
    let (code, lines) = verify(&[place.0.path()]);
    assert_eq!((code, lines.len(), lines[0]["note"].as_u64()), (0, 1, Some(0)), "{lines:#?}");

    for at in [0, 16, 30, known(4711).len() - 2] {
        let mut bytes = known(4711).into_bytes();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let (code, lines) = verify(&[place.0.path()]);
        let found = findings(&lines, "damage");
        assert_eq!((code, found.len()), (9, 1), "byte {at}: {lines:#?}");
        assert_eq!((found[0]["kind"].as_str(), found[0]["offset"].as_u64()), (Some("known"), Some(0)));
        assert_eq!(found[0]["file"].as_str(), path.to_str());
    }
    // A file of a later version is not damaged, and is not checked.
    let later = "bindery-known 4\n";
    let crc = bindery_journal::record::crc32c(later.as_bytes());
    std::fs::write(&path, format!("{later}crc32c {crc:08x}\n")).unwrap();
    let (_, lines) = verify(&[place.0.path()]);
    assert!(findings(&lines, "damage").is_empty(), "{lines:#?}");
    assert_eq!(findings(&lines, "unchecked")[0]["kind"], "newer-format");

    // A crash between two copies.
    std::fs::write(&path, known(4711)).unwrap();
    let second = place.path("second");
    ledgers(&second);
    std::fs::write(second.join("current/KNOWN"), known(4712)).unwrap();
    let (_, lines) = verify(&[&place.path("journal"), &place.path("ledgers"), &second]);
    let notes: Vec<_> =
        findings(&lines, "note").into_iter().filter(|finding| finding["kind"] == "known").collect();
    assert_eq!(notes.len(), 1, "{lines:#?}");
    let (expected, found) = (notes[0]["expected"].as_str().unwrap(), notes[0]["found"].as_str().unwrap());
    assert_ne!(expected.contains("4711"), found.contains("4711"), "{lines:#?}");
    assert!(findings(&lines, "damage").iter().all(|finding| finding["kind"] != "known"), "{lines:#?}");
}

#[test]
fn missing_files_are_damage() {
    let place = Place::bookie();
    let good = place.content();
    let journal_files = good.keys().filter(|path| path.extension().is_some_and(|e| e == "bjl"));
    // A file that holds a group behind the mark; the first one does not.
    let needed = journal_files.clone().nth(1).unwrap().clone();
    for (path, kind) in [
        (place.log(1), "log-missing"),
        (place.path("ledgers/current/state.redb"), "state-table-missing"),
        (place.path("ledgers/current/VERSION"), "cookie"),
        (place.path("journal/current/BINDERY"), "mark"),
        (needed, "journal"),
    ] {
        std::fs::remove_file(&path).unwrap();
        let (code, lines) = verify(&[place.0.path()]);
        let kinds: Vec<_> = findings(&lines, "damage").iter().map(|f| f["kind"].as_str().unwrap()).collect();
        assert_eq!((code, &kinds[..]), (9, &[kind][..]), "{}: {lines:#?}", path.display());
        std::fs::write(&path, &good[&path]).unwrap();
    }
    for path in journal_files {
        std::fs::remove_file(path).unwrap();
    }
    let (code, lines) = verify(&[place.0.path()]);
    assert_eq!(
        (code, findings(&lines, "damage")[0]["what"].as_str()),
        (9, Some("the journal files are gone"))
    );
    std::fs::remove_dir_all(place.path("journal")).unwrap();
    let (code, lines) = verify(&[place.0.path()]);
    assert_eq!((code, findings(&lines, "damage")[0]["kind"].as_str()), (9, Some("directory")));

    // A ledger directory whose disk came back empty but for its cookie.
    let place = Place::bookie();
    for path in place.content().keys().filter(|path| path.starts_with(place.path("ledgers/current"))) {
        if !["BINDERY", "VERSION"].contains(&path.file_name().unwrap().to_str().unwrap()) {
            std::fs::remove_file(path).unwrap();
        }
    }
    let (code, lines) = verify(&[place.0.path()]);
    assert_eq!((code, findings(&lines, "damage")[0]["kind"].as_str()), (9, Some("directory")), "{lines:#?}");
}

/// Harmless findings do not fail the check: remains of a crash, damage that the marks cover, a torn tail.
#[test]
fn harmless_things_are_told_and_do_not_fail_the_check() {
    let place = Place::bookie();
    let good = place.content();
    let only = |severity: &str| {
        let (code, lines) = verify(&[place.0.path()]);
        let found: Vec<Value> = findings(&lines, severity).into_iter().cloned().collect();
        assert_eq!((code, lines.len()), (0, found.len() + 1), "{lines:#?}");
        found.iter().map(|finding| finding["kind"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    std::fs::copy(place.log(2), place.log(9)).unwrap();
    std::fs::write(place.path("ledgers/current/state.redb.new"), "x").unwrap();
    std::fs::write(place.path("journal/current/VERSION.new"), "x").unwrap();
    assert_eq!(only("leftover"), ["orphan", "interrupted", "interrupted"]);
    for path in ["ledgers/current/state.redb.new", "journal/current/VERSION.new"] {
        std::fs::remove_file(place.path(path)).unwrap();
    }
    std::fs::remove_file(place.log(9)).unwrap();

    let session = place.path("ledgers/current/SESSION");
    std::fs::set_permissions(&session, PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(only("note"), ["session"]);
    std::fs::set_permissions(&session, PermissionsExt::from_mode(0o600)).unwrap();

    let first = place.path("journal/current/journal-0000.bjl");
    let mut bytes = good[&first].clone();
    bytes[4096 + 80] ^= 1;
    std::fs::write(&first, bytes).unwrap();
    assert_eq!(only("note"), ["journal-covered"]);
    std::fs::write(&first, &good[&first]).unwrap();

    // The second last group, with the seal behind it gone, is a write that may never have finished.
    let is_written = |path: &&PathBuf| good[*path].get(4096..).is_some_and(|at| at.starts_with(b"BNDGRP01"));
    let last = good.keys().rfind(is_written).unwrap();
    let mut bytes = good[last].clone();
    let seal = bytes.chunks(4096).rposition(|block| block.starts_with(b"BNDGRP01")).unwrap() * 4096;
    bytes[seal..].fill(0);
    let group = seal - 4096;
    bytes[group + record_at(&good[last][group..]) as usize + 30] ^= 1;
    std::fs::write(last, bytes).unwrap();
    assert_eq!(only("note"), ["torn-tail"]);
}

#[test]
fn a_standalone_is_checked_bookie_by_bookie() {
    let place = Place::new();
    for bookie in ["bookie-1", "bookie-2"] {
        journal(&place.path(&format!("{bookie}/journal")), true);
        ledgers(&place.path(&format!("{bookie}/ledgers")));
    }
    std::fs::create_dir(place.path("coordinator")).unwrap();
    std::fs::write(place.path("LOCK"), "1").unwrap();
    let (code, lines) = verify(&[place.0.path()]);
    assert_eq!((code, lines.len()), (0, 2), "{lines:#?}");
    assert_eq!(lines[0]["kind"], "left-out");
    assert_eq!(lines[1]["directories"].as_array().unwrap().len(), 4);
    let _lock = RealDisk::new().lock(&place.path("LOCK")).unwrap();
    let message = refused("verify", &[place.0.path().to_str().unwrap()], 1);
    assert!(message.contains("in use by a running bindery"), "{message}");
}

#[test]
fn what_cannot_be_checked_says_why_and_makes_nothing() {
    let place = Place::bookie();
    let arg = |name: &str| place.path(name).to_str().unwrap().to_owned();
    for command in ["verify", "disk"] {
        let message = refused(command, &["/no/such/dir"], 1);
        assert!(message.contains("there is no /no/such/dir"), "{message}");
        let message = refused(command, &[&arg("ledgers/current/VERSION")], 1);
        assert!(message.contains("is a file") && message.contains("bindery inspect"), "{message}");
        refused_without_lock(command);
        let lock = RealDisk::new().lock(&place.path("ledgers/LOCK")).unwrap();
        let message = refused(command, &[place.0.path().to_str().unwrap()], 1);
        assert!(message.contains("ledgers is in use by a running bindery: stop it"), "{message}");
        drop(lock);
        let message = refused(command, &[&arg("ledgers"), &arg("ledgers")], 2);
        assert!(message.contains("named twice"), "{message}");
    }
}

fn refused_without_lock(command: &str) {
    let place = Place::new();
    let here = place.0.path().to_str().unwrap();
    assert!(refused(command, &[here], 1).contains("is empty"));
    std::fs::create_dir_all(place.path("current")).unwrap();
    std::fs::write(place.path("current/lastMark"), "x").unwrap();
    assert!(refused(command, &[here], 1).contains("Java bookie"));
    assert_eq!(place.content().len(), 1, "no lock was made");
}

/// As another user than root, whom rights do not bind.
#[test]
fn a_file_that_may_not_be_read_is_unchecked_not_damaged() {
    let place = Place::bookie();
    let is_root = std::fs::metadata(place.log(0)).unwrap().uid_is_root();
    const NOBODY: u32 = 65_534;
    if is_root {
        let mut dirs = vec![place.0.path().to_owned()];
        while let Some(path) = dirs.pop() {
            chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
            if path.is_dir() {
                dirs.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
    }
    std::fs::set_permissions(place.log(0), PermissionsExt::from_mode(0o000)).unwrap();
    // A copy that user can reach.
    let binary = place.path("../").join(format!("bindery-{}", std::process::id()));
    std::fs::copy(env!("CARGO_BIN_EXE_bindery"), &binary).unwrap();
    std::fs::set_permissions(&binary, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new(&binary);
    if is_root {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.args(["verify", place.0.path().to_str().unwrap()]).output();
    std::fs::remove_file(&binary).unwrap();
    let output = output.unwrap();
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{stdout}{stderr}");
    assert!(stdout.contains("unchecked ") && stdout.contains("Permission denied"), "{stdout}");
    assert!(
        stdout.contains("9 entries") && stderr.contains("1 file could not be checked"),
        "{stdout}{stderr}"
    );
}

trait Owner {
    fn uid_is_root(&self) -> bool;
}
impl Owner for std::fs::Metadata {
    fn uid_is_root(&self) -> bool {
        std::os::unix::fs::MetadataExt::uid(self) == 0
    }
}

/// The copies that a newer log replaces are dead; the rest lives; journal groups behind the mark are needed.
#[test]
fn disk_counts_what_is_live_dead_and_needed() {
    let place = Place::bookie();
    let before = place.content();
    std::fs::copy(place.log(2), place.log(9)).unwrap();
    let output = bindery("disk", &["--json", place.0.path().to_str().unwrap()]);
    std::fs::remove_file(place.log(9)).unwrap();
    assert_eq!(output.status.code(), Some(0));
    let lines: Vec<Value> = output
        .stdout
        .split(|b| *b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect();
    let (ledgers, journal) = (&lines[0], &lines[1]);
    let bytes = |ids: &[(i64, i64)]| ids.iter().map(|(l, e)| body(*l, *e).len() as u64 + 28).sum::<u64>();
    let dead = bytes(&[(1, 0), (1, 1), (1, 2), (1, 3)]);
    let live = dead + bytes(&[(1, 4), (1, 5), (1, 6), (2, 1), (2, 2), (2, 9), (2, 10), (2, 30), (7, 5)]);
    assert_eq!(ledgers["dead_entries"].as_u64(), Some(4));
    assert_eq!((ledgers["dead_bytes"].as_u64(), ledgers["live_bytes"].as_u64()), (Some(dead), Some(live)));
    assert_eq!(ledgers["overhead_bytes"].as_u64(), Some(3 * 8192 - dead - live));
    assert_eq!(
        (ledgers["leftover_files"].as_u64(), ledgers["leftover_bytes"].as_u64()),
        (Some(1), Some(8192))
    );
    assert!(ledgers["volume_free_bytes"].as_u64() > Some(0));
    assert_eq!(journal["needed_groups"].as_u64(), Some(12 - MARK));
    let needed = journal["needed_bytes"].as_u64().unwrap();
    assert_eq!(needed + journal["free_bytes"].as_u64().unwrap(), journal["bytes"].as_u64().unwrap());
    assert_eq!(needed, (12 - MARK) * 4096);
    assert_eq!(place.content(), before);
    let text = bindery("disk", &[place.0.path().to_str().unwrap()]);
    assert!(String::from_utf8(text.stdout).unwrap().contains("what a compaction would return"));

    // A log that cannot be counted is said, and fails the command.
    std::fs::write(place.log(1), "x").unwrap();
    let message = refused("disk", &[place.0.path().to_str().unwrap()], 1);
    assert!(message.contains("0000000000000001.elog is not counted"), "{message}");
}
