//! Damage: what the scrub finds, and how damaged copies and their logs are replaced.

use super::*;
use bindery_engine::DamageSummary;
use std::collections::BTreeSet;

/// Scrub invariants 1 and 3: sound logs give no finding; damage is found where it is, marks the log, costs no other
/// entry, and is found again until it is gone.
#[test]
fn the_scrub_finds_damage_and_nothing_else() {
    let mut bookie = four_flushes(quiet());
    assert_eq!(bookie.scrub(), 0);
    let pass = bookie.machine.engine.scrub_status().last.unwrap();
    assert_eq!((pass.logs, pass.entries, pass.is_asked_for), (4, 4 * 31, true));
    let damaged = bookie.files()[2].clone();
    // In the body of entry 20 of ledger 0, behind its ids.
    bookie.disk.flip_bits(&damaged, 4096 + 40, 1).unwrap();
    assert_eq!(bookie.scrub(), 1);
    let status = bookie.machine.engine.scrub_status();
    assert_eq!(status.damaged_logs, 1);
    let finding = status.listed.last().unwrap();
    assert_eq!((finding.file.as_str(), finding.offset), (damaged.to_str().unwrap(), Some(4096)));
    assert_eq!(finding.affected, Some((0, 20, 20)));
    assert!(finding.advice.contains("marks their ledger for repair"), "{}", finding.advice);
    assert_eq!(bookie.read(0, 20), Err(Refusal::Io));
    assert_eq!(bookie.read(0, 21), Ok(body(0, 21, 100)));
    assert_eq!(bookie.files().len(), 4, "nothing is removed");
    bookie.disk.flip_bits(&damaged, 4096 + 40, 1).unwrap();
    assert_eq!(bookie.scrub(), 0);
    assert_eq!(bookie.machine.engine.scrub_status().damaged_logs, 0);
}

/// Scrub invariant 1: neither compaction nor merging takes a log with findings, and it is dropped when it is dead.
#[test]
fn a_log_with_findings_is_not_rewritten() {
    let mut bookie = fresh(SpaceConfig { merge_fan_in: 2, ..quiet() });
    // The second flush makes most of the first log dead.
    (0..10).for_each(|e| bookie.add(1, e, 100));
    bookie.add(2, 0, 100);
    bookie.flush();
    let damaged = bookie.files()[0].clone();
    // In the body of 2:0, which stays live.
    let last = bookie.extents(&damaged)[1];
    let at = 4096 + bookie.extents(&damaged)[0].bytes() + last.body_bytes() - 1;
    bookie.disk.flip_bits(&damaged, at, 1).unwrap();
    assert_eq!(bookie.scrub(), 1);
    (0..10).for_each(|e| bookie.add(1, e, 200));
    bookie.flush();
    bookie.collect();
    let status = bookie.machine.engine.space_status();
    assert_eq!((status.merges, status.logs_rewritten, status.logs_dropped), (0, 0, 0), "{status:?}");
    assert!(bookie.files().contains(&damaged));
    bookie.machine.engine.remove_ledger(ledger(2), Box::new(|_| {}));
    bookie.flush();
    bookie.collect();
    assert!(!bookie.files().contains(&damaged));
    assert_eq!(bookie.machine.engine.scrub_status().damaged_logs, 0);
    assert_eq!(bookie.scrub(), 0);
    assert_eq!(bookie.machine.engine.scrub_status().damaged_logs, 0);
}

/// Header, footer and missing files are found before the next start trips over them.
#[test]
fn the_scrub_opens_each_log_as_the_next_start_will() {
    let mut bookie = four_flushes(quiet());
    let files = bookie.files();
    bookie.disk.flip_bits(&files[0], 30, 1).unwrap();
    let footer = 4096 + bookie.extents(&files[1]).iter().map(Extent::bytes).sum::<u64>() + 32 + 33;
    bookie.disk.flip_bits(&files[1], footer, 1).unwrap();
    bookie.disk.remove(&files[2]).unwrap();
    assert!(bookie.scrub() >= 3);
    let status = bookie.machine.engine.scrub_status();
    for file in &files[..3] {
        let found = status.listed.iter().filter(|finding| Path::new(&finding.file) == file);
        assert!(found.clone().count() > 0, "{}: {status:?}", file.display());
        assert!(found.clone().all(|finding| finding.advice.contains("will not start again")));
    }
    check_four(&bookie, "reads go on");
    // They are written anew from what is in memory, so that the next start meets none of them.
    bookie.rest();
    assert_eq!(bookie.machine.engine.scrub_status().damaged_logs, 0);
    assert!(files[..3].iter().all(|file| !bookie.files().contains(file)), "{:?}", bookie.files());
    let bookie = bookie.power_cut();
    check_four(&bookie, "after a restart");
}

/// The entries that a list has.
fn listed(bookie: &Bookie, id: i64) -> Vec<i64> {
    let runs = bookie.machine.engine.list_entries(ledger(id)).unwrap();
    runs.iter().flat_map(|run| run.first.get()..=run.last.get()).collect()
}

/// What is known of damage, without counters.
fn damage(bookie: &Bookie) -> (u64, u64) {
    let DamageSummary { ranges, logs, .. } = bookie.machine.engine.damage_summary();
    (ranges, logs)
}

/// Ledger 1 with 20 entries and ledger 2 with one, in one log; returns it.
fn two_ledgers() -> (Bookie, PathBuf) {
    let mut bookie = fresh(quiet());
    (0..20).for_each(|e| bookie.add(1, e, 100));
    bookie.add(2, 0, 100);
    bookie.flush();
    let log = bookie.files()[0].clone();
    (bookie, log)
}

/// A read is enough to find damage. Until it is replaced the entry is an error and is not listed; then it reads as before, also after a
/// power cut at any time, and its log goes.
#[test]
fn a_damaged_entry_that_is_added_again_takes_the_place_of_its_copy() {
    let (mut bookie, log) = two_ledgers();
    bookie.disk.flip_bits(&log, 4096 + 7 * 132 + 50, 1).unwrap();
    assert_eq!(listed(&bookie, 1), (0..20).collect::<Vec<_>>());
    assert_eq!(bookie.read(1, 7), Err(Refusal::Io));
    let without: Vec<i64> = (0..20).filter(|e| *e != 7).collect();
    assert_eq!(listed(&bookie, 1), without);
    assert_eq!(damage(&bookie), (1, 1));
    let known = bookie.machine.engine.damaged(None, 9);
    assert_eq!((known[0].ledger, known[0].first, known[0].last), (ledger(1), entry(7), entry(7)));
    bookie.rest();
    assert!(bookie.files().contains(&log), "it is not left behind before it is replaced");
    bookie.add(1, 7, 100);
    bookie.group();
    let check = |bookie: &Bookie, when: &str| {
        assert_eq!(listed(bookie, 1), (0..20).collect::<Vec<_>>(), "{when}");
        (0..20).for_each(|e| assert_eq!(bookie.read(1, e), Ok(body(1, e, 100)), "{when}: {e}"));
        assert_eq!(bookie.read(2, 0), Ok(body(2, 0, 100)), "{when}");
    };
    check(&bookie, "in memory");
    let image = Arc::new(bookie.disk.durable_image());
    check(&start(image, config(quiet())), "replayed");
    bookie.flush();
    check(&bookie, "flushed");
    bookie.rest();
    check(&bookie, "rewritten");
    assert!(!bookie.files().contains(&log));
    assert_eq!(damage(&bookie), (0, 0));
    let summary = bookie.machine.engine.damage_summary();
    assert_eq!((summary.made_good, summary.logs_renewed), (1, 1));
    assert_eq!(bookie.scrub(), 0);
    let mut bookie = bookie.power_cut();
    check(&bookie, "after a restart");
    assert_eq!(bookie.scrub(), 0);
}

/// The register forgets everything with the process, and the next scrub says the same.
#[test]
fn what_was_replaced_before_a_restart_goes_after_it() {
    let (mut bookie, log) = two_ledgers();
    bookie.disk.flip_bits(&log, 4096 + 7 * 132 + 50, 1).unwrap();
    bookie.add(1, 7, 100);
    bookie.flush();
    let mut bookie = bookie.power_cut();
    assert_eq!(damage(&bookie), (0, 0));
    assert_eq!(bookie.read(1, 7), Ok(body(1, 7, 100)));
    assert_eq!(bookie.scrub(), 1);
    bookie.rest();
    assert!(!bookie.files().contains(&log));
    assert_eq!((bookie.scrub(), damage(&bookie)), (0, (0, 0)));
}

/// Of a run in which places can be computed, a bad index record costs its entry and no other.
#[test]
fn a_bad_index_record_of_a_regular_run_takes_one_entry() {
    let (mut bookie, log) = two_ledgers();
    let records = 4096 + bookie.extents(&log)[0].body_bytes();
    let record = (bookie.extents(&log)[0].bytes() - bookie.extents(&log)[0].body_bytes()) / 20;
    bookie.disk.flip_bits(&log, records + 5 * record + 3, 1).unwrap();
    assert!(bookie.scrub() > 0);
    let without: Vec<i64> = (0..20).filter(|e| *e != 5).collect();
    assert_eq!(listed(&bookie, 1), without);
    bookie.add(1, 5, 100);
    bookie.flush();
    bookie.rest();
    assert!(!bookie.files().contains(&log));
    assert_eq!((bookie.scrub(), damage(&bookie)), (0, (0, 0)));
    (0..20).for_each(|e| assert_eq!(bookie.read(1, e), Ok(body(1, e, 100)), "{e}"));
}

/// Of a run that is searched, a bad index record takes all: which entries it had is for metadata to say.
#[test]
fn a_bad_index_record_of_another_run_waits_for_the_word_of_metadata() {
    let mut bookie = fresh(quiet());
    let ids = [1, 2, 4, 5, 7];
    ids.iter().for_each(|e| bookie.add(1, *e, 100));
    bookie.add(1, 20, 100);
    bookie.add(2, 0, 100);
    bookie.flush();
    let log = bookie.files()[0].clone();
    let run = bookie.extents(&log)[0];
    assert_eq!(run.stride, 0);
    bookie.disk.flip_bits(&log, 4096 + run.body_bytes() + 3, 1).unwrap();
    // The first list finds it.
    assert_eq!(bookie.machine.engine.list_entries(ledger(1)), Err(Refusal::Io));
    assert_eq!(listed(&bookie, 1), Vec::<i64>::new());
    ids.iter().chain(&[20]).for_each(|e| bookie.add(1, *e, 100));
    bookie.flush();
    assert_eq!(listed(&bookie, 1), [1, 2, 4, 5, 7, 20]);
    bookie.rest();
    assert!(bookie.files().contains(&log), "another entry may have been in it");
    let waiting = bookie.machine.engine.damaged_of(ledger(1));
    assert_eq!((waiting[0].first, waiting[0].last), (entry(1), entry(20)));
    bookie.machine.engine.damage_is_made_good(&waiting);
    bookie.flush();
    bookie.rest();
    assert!(!bookie.files().contains(&log));
    assert_eq!((bookie.scrub(), damage(&bookie)), (0, (0, 0)));
    let bookie = bookie.power_cut();
    ids.iter().chain(&[20]).for_each(|e| assert_eq!(bookie.read(1, *e), Ok(body(1, *e, 100)), "{e}"));
    assert_eq!(bookie.read(2, 0), Ok(body(2, 0, 100)));
}

/// IB17: a removal hides the damaged copy and the one that replaced it, and the damaged log goes.
#[test]
fn a_removal_hides_what_was_replaced() {
    let (mut bookie, log) = two_ledgers();
    bookie.disk.flip_bits(&log, 4096 + 7 * 132 + 50, 1).unwrap();
    assert_eq!(bookie.scrub(), 1);
    bookie.add(1, 7, 100);
    bookie.group();
    bookie.machine.engine.remove_ledger(ledger(1), Box::new(|_| {}));
    bookie.flush();
    bookie.rest();
    assert_eq!(bookie.read(1, 7), Err(Refusal::NoLedger));
    assert!(!bookie.files().contains(&log));
    assert_eq!(damage(&bookie), (0, 0));
    let bookie = bookie.power_cut();
    assert_eq!(bookie.read(1, 7), Err(Refusal::NoLedger));
    assert_eq!(bookie.read(2, 0), Ok(body(2, 0, 100)));
}

/// An older copy of a damaged entry is no copy: it is neither read nor listed, and does not come back when the damaged one goes.
#[test]
fn an_older_copy_does_not_take_the_place_of_a_damaged_one() {
    let mut bookie = fresh(quiet());
    (0..4).for_each(|e| bookie.add(1, e, 50));
    bookie.flush();
    bookie.add(1, 2, 100);
    bookie.flush();
    let newer = bookie.files()[1].clone();
    bookie.disk.flip_bits(&newer, 4096 + 50, 1).unwrap();
    assert_eq!(bookie.scrub(), 1);
    assert_eq!((bookie.read(1, 2), listed(&bookie, 1)), (Err(Refusal::Io), vec![0, 1, 3]));
    bookie.add(1, 2, 150);
    bookie.flush();
    bookie.collect();
    assert!(!bookie.files().contains(&newer));
    assert_eq!((bookie.read(1, 2), listed(&bookie, 1)), (Ok(body(1, 2, 150)), vec![0, 1, 2, 3]));
    let bookie = bookie.power_cut();
    assert_eq!(bookie.read(1, 2), Ok(body(1, 2, 150)));
}

/// A copy past the journal would be older than the damaged one: it is refused.
#[test]
fn a_damaged_entry_counts_as_held_for_an_ingest() {
    let (mut bookie, log) = two_ledgers();
    bookie.disk.flip_bits(&log, 4096 + 7 * 132 + 50, 1).unwrap();
    assert_eq!(bookie.scrub(), 1);
    let mut ingest = bookie.machine.engine.begin_ingest(ledger(1)).unwrap();
    ingest.append(ledger(1), entry(7), &body(1, 7, 100)).unwrap();
    let held = bindery_engine::IngestError::Held { ledger: ledger(1), entry: entry(7) };
    assert_eq!(ingest.seal().err(), Some(held));
}

/// Also when nobody can tell which entries the damaged run has: whether the register knows of it, or the ingest is what finds it.
#[test]
fn a_run_with_a_bad_index_counts_as_held_for_an_ingest() {
    let mut bookie = fresh(quiet());
    [1, 2, 4, 5, 20].iter().for_each(|e| bookie.add(1, *e, 100));
    bookie.flush();
    let log = bookie.files()[0].clone();
    let run = bookie.extents(&log)[0];
    assert_eq!(run.stride, 0);
    bookie.disk.flip_bits(&log, 4096 + run.body_bytes() + 3, 1).unwrap();
    let held = bindery_engine::IngestError::Held { ledger: ledger(1), entry: entry(4) };
    for when in ["found by the ingest", "known"] {
        let mut ingest = bookie.machine.engine.begin_ingest(ledger(1)).unwrap();
        ingest.append(ledger(1), entry(4), &body(1, 4, 100)).unwrap();
        assert_eq!(ingest.seal().err(), Some(held.clone()), "{when}");
    }
    let mut ingest = bookie.machine.engine.begin_ingest(ledger(1)).unwrap();
    ingest.append(ledger(1), entry(21), &body(1, 21, 100)).unwrap();
    assert!(ingest.seal().is_ok(), "the others are taken as ever");
}

/// Adds the first entries of ledger 1 or 2 that a list does not have, as a repair does.
fn bring_back(bookie: &mut Bookie, id: i64, entries: i64) {
    let is_known = bookie.machine.engine.list_entries(ledger(id)).is_ok();
    let held: BTreeSet<i64> = if is_known { listed(bookie, id) } else { Vec::new() }.into_iter().collect();
    for (count, e) in (0..entries).filter(|e| !held.contains(e)).enumerate() {
        bookie.add(id, e, 0);
        if count % 1000 == 999 {
            bookie.group();
        }
    }
    bookie.flush();
    bookie.rest();
}

/// Damages each second entry of a log with entries of nothing but a header, so that none touches another.
fn flip_each_second(bookie: &Bookie, log: &Path, entries: i64) {
    for e in (0..entries).step_by(2) {
        bookie.disk.flip_bits(log, 4096 + e as u64 * 32 + 31, 1).unwrap();
    }
}

/// Damage register, invariant 4: more damage than it holds is made good in turns, and nobody has to ask for anything.
#[test]
fn damage_beyond_the_limit_is_made_good_in_turns() {
    const ENTRIES: i64 = 2 * 4096 + 2 * 4096 + 500;
    let mut bookie = fresh_with(EngineConfig { write_pool_bytes: 16 << 20, ..config(quiet()) });
    bring_back(&mut bookie, 1, ENTRIES);
    let logs = bookie.files();
    assert_eq!(logs.len(), 1);
    flip_each_second(&bookie, &logs[0], ENTRIES);
    assert_eq!(bookie.scrub(), ENTRIES as u64 / 2);
    let summary = bookie.machine.engine.damage_summary();
    assert_eq!((summary.ranges, summary.logs_with_more), (4096, 1));
    // Those of one ledger stay together.
    assert_eq!(bookie.machine.engine.damaged(None, 10).len(), 4096);
    for _ in 0..20 {
        bring_back(&mut bookie, 1, ENTRIES);
    }
    assert_eq!(bookie.machine.engine.damage_summary().made_good, ENTRIES as u64 / 2);
    assert!(!bookie.files().contains(&logs[0]));
    assert_eq!((bookie.scrub(), damage(&bookie)), (0, (0, 0)));
    (0..ENTRIES).for_each(|e| assert_eq!(bookie.read(1, e), Ok(body(1, e, 0)), "{e}"));
}

/// The same of a log for which there was no room at all.
#[test]
fn damage_that_found_no_room_beside_another_log_is_found_when_there_is_some() {
    const MANY: i64 = 2 * 4096;
    let mut bookie = fresh_with(EngineConfig { write_pool_bytes: 16 << 20, ..config(quiet()) });
    bring_back(&mut bookie, 1, MANY);
    let first = bookie.files()[0].clone();
    bring_back(&mut bookie, 2, 20);
    let second = bookie.files().into_iter().find(|file| *file != first).unwrap();
    flip_each_second(&bookie, &first, MANY);
    flip_each_second(&bookie, &second, 20);
    assert_eq!(bookie.scrub(), 4096 + 10);
    let summary = bookie.machine.engine.damage_summary();
    assert_eq!((summary.ranges, summary.logs, summary.logs_with_more), (4096, 2, 1));
    assert_eq!(listed(&bookie, 2).len(), 20, "nothing is known of it");
    bookie.rest();
    assert_eq!(bookie.machine.engine.damage_summary(), summary, "there is no room yet");
    bring_back(&mut bookie, 1, MANY);
    bookie.rest();
    assert_eq!(damage(&bookie), (10, 1));
    assert_eq!(listed(&bookie, 2), (1..20).step_by(2).collect::<Vec<_>>());
    bring_back(&mut bookie, 2, 20);
    assert_eq!((bookie.scrub(), damage(&bookie)), (0, (0, 0)));
    assert!(!bookie.files().contains(&first) && !bookie.files().contains(&second));
}

const PAGED: std::ops::RangeInclusive<i64> = 1..=120;
/// Those in the second block of the footer.
const UNLISTED: std::ops::RangeInclusive<i64> = 52..=102;

/// A log whose extents stay on disk, with three blocks in its footer; returns it, and an offset in the second of them.
fn paged_log() -> (Bookie, PathBuf, u64) {
    let mut bookie = fresh_with(EngineConfig { index_pool_bytes: 0, ..config(quiet()) });
    PAGED.for_each(|l| (0..3).for_each(|e| bookie.add(l, e, 10)));
    bookie.flush();
    let log = bookie.files()[0].clone();
    let footer = 4096 + bookie.extents(&log).iter().map(Extent::bytes).sum::<u64>();
    (bookie, log, footer + 32 + 60 * 80 + 5)
}

/// Where the footer of a log does not say any more where its runs are, the index in memory says which they were: these are brought again,
/// and nobody else has to do anything.
#[test]
fn what_a_damaged_footer_does_not_list_any_more_is_brought_again() {
    let (mut bookie, log, footer) = paged_log();
    bookie.disk.flip_bits(&log, footer, 1).unwrap();
    assert_eq!(bookie.read(60, 1), Err(Refusal::Io));
    assert_eq!(damage(&bookie), (1, 1));
    assert_eq!(listed(&bookie, 60), Vec::<i64>::new());
    // A list finds it, too, and the next one leaves it out.
    assert_eq!(bookie.machine.engine.list_entries(ledger(70)), Err(Refusal::Io));
    assert_eq!(listed(&bookie, 70), Vec::<i64>::new());
    assert_eq!((bookie.read(1, 1), listed(&bookie, 110)), (Ok(body(1, 1, 10)), vec![0, 1, 2]));
    for _ in 0..10 {
        assert_eq!(bookie.read(60, 1), Err(Refusal::Io));
        bookie.rest();
    }
    assert!(bookie.machine.engine.scrub_status().last.is_none(), "no scrub would find more");
    assert!(bookie.files().contains(&log));
    assert!(bookie.scrub() > 0);
    let of_register = |bookie: &Bookie| -> Vec<i64> {
        bookie.machine.engine.damaged(None, 1000).iter().map(|range| range.ledger.get()).collect()
    };
    assert_eq!(of_register(&bookie), UNLISTED.collect::<Vec<_>>());
    assert_eq!(bookie.machine.engine.damage_summary().logs_with_more, 0);
    // A removal needs nothing more.
    bookie.machine.engine.remove_ledger(ledger(102), Box::new(|_| {}));
    (52..=101).for_each(|l| (0..3).for_each(|e| bookie.add(l, e, 10)));
    bookie.flush();
    bookie.rest();
    assert!(bookie.files().contains(&log), "which entries it had only metadata says");
    for l in 52..=101 {
        let waiting = bookie.machine.engine.damaged_of(ledger(l));
        assert_eq!((waiting.len(), waiting[0].first, waiting[0].last), (1, entry(0), entry(2)), "{l}");
        assert_eq!(listed(&bookie, l), [0, 1, 2], "{l}");
        bookie.machine.engine.damage_is_made_good(&waiting);
    }
    bookie.rest();
    assert!(!bookie.files().contains(&log));
    assert_eq!((bookie.scrub(), damage(&bookie)), (0, (0, 0)));
    let bookie = bookie.power_cut();
    for l in PAGED.filter(|l| *l != 102) {
        (0..3).for_each(|e| assert_eq!(bookie.read(l, e), Ok(body(l, e, 10)), "{l}: {e}"));
    }
    assert_eq!(bookie.read(102, 0), Err(Refusal::NoLedger));
}

/// A fault of the footer that passes is none: nothing is left behind because of it.
#[test]
fn a_footer_that_can_be_read_again_is_sound() {
    let (mut bookie, log, footer) = paged_log();
    bookie.disk.flip_bits(&log, footer, 1).unwrap();
    assert!(bookie.scrub() > 0);
    bookie.disk.flip_bits(&log, footer, 1).unwrap();
    bookie.rest();
    assert_eq!(bookie.machine.engine.damage_summary().made_good, 0);
    assert!(bookie.files().contains(&log));
    assert_eq!((bookie.scrub(), damage(&bookie)), (0, (0, 0)));
    PAGED.for_each(|l| assert_eq!(listed(&bookie, l), [0, 1, 2], "{l}"));
}

/// A damaged index record of a log whose extents are on disk takes what it takes elsewhere.
#[test]
fn a_read_of_a_log_on_disk_names_the_entry_of_a_bad_index_record() {
    let (mut bookie, log, _) = paged_log();
    let first = bookie.extents(&log)[0];
    let record = (first.bytes() - first.body_bytes()) / 3;
    bookie.disk.flip_bits(&log, 4096 + first.body_bytes() + record + 3, 1).unwrap();
    assert_eq!(bookie.read(1, 1), Err(Refusal::Io));
    assert_eq!(listed(&bookie, 1), [0, 2]);
    bookie.add(1, 1, 10);
    bookie.flush();
    bookie.rest();
    assert!(!bookie.files().contains(&log));
    assert_eq!((bookie.scrub(), damage(&bookie)), (0, (0, 0)));
}

/// However many logs have to be asked about an entry, it is asked about.
#[test]
fn an_entry_with_many_newer_logs_is_made_good() {
    let mut bookie = fresh_with(EngineConfig { index_pool_bytes: 0, ..config(quiet()) });
    (0..4).for_each(|e| bookie.add(1, e, 10));
    bookie.flush();
    let log = bookie.files()[0].clone();
    for _ in 0..600 {
        [0, 3].iter().for_each(|e| bookie.add(1, *e, 10));
        bookie.flush();
    }
    bookie.disk.flip_bits(&log, 4096 + 42 + 35, 1).unwrap();
    assert_eq!(bookie.read(1, 1), Err(Refusal::Io));
    bookie.add(1, 1, 10);
    bookie.flush();
    bookie.rest();
    assert_eq!(bookie.machine.engine.damage_summary().made_good, 1);
    assert_eq!(bookie.read(1, 1), Ok(body(1, 1, 10)));
}
