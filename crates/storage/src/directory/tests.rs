use super::*;
use crate::state_table::{Mark, STATE_FILE_NAME};
use crate::testing::{MemDisk, numbers};
use crate::{Asked, EntryLog, StateError};
use crate::{Extent, IndexUse, OverlapScan, ReadError, RunSearch, Source};
use bindery_types::EntryId;

fn dir() -> PathBuf {
    PathBuf::from("/ledgers")
}
fn ledger(raw: i64) -> LedgerId {
    LedgerId::new(raw).unwrap()
}
fn entry(raw: i64) -> EntryId {
    EntryId::new(raw).unwrap()
}

/// An entry of 24 bytes and a payload of eight times `content`.
fn body(l: LedgerId, e: EntryId, content: u8) -> Vec<u8> {
    let ids = [l.get(), e.get(), e.get() - 1].map(i64::to_be_bytes).concat();
    [ids, vec![content; 8]].concat()
}

/// The expected content of the directory, entry by entry.
type Model = BTreeMap<(LedgerId, EntryId), u8>;

fn flush(directory: &mut LedgerDirectory, generation: u64, ids: &[(i64, i64)]) -> SealedLog {
    let mut writer = directory.begin_log(Generation(generation)).unwrap();
    for (l, e) in ids {
        let (l, e) = (ledger(*l), entry(*e));
        let body = body(l, e, generation as u8);
        writer.append(l, e, &body, crate::codec::crc32c(&[&body])).unwrap();
    }
    writer.finish().unwrap()
}

fn journal_mark(group: u64) -> JournalMark {
    JournalMark { journal: 0, mark: Mark { file_id: 1, group } }
}

fn flush_and_commit(directory: &mut LedgerDirectory, generation: u64, ids: &[(i64, i64)]) -> LogId {
    let sealed = flush(directory, generation, ids);
    let log_id = sealed.log_id;
    let (logs, marks) = ([sealed], [journal_mark(generation)]);
    directory.commit(&DirectoryCommit { logs_added: &logs, marks: &marks, ..Default::default() }).unwrap();
    log_id
}

fn assert_holds(view: &LogView, model: &Model) {
    for l in (0..6).map(ledger) {
        for e in (0..60).map(entry) {
            let expected = model.get(&(l, e)).map(|content| body(l, e, *content));
            assert_eq!(view.read(l, e).unwrap(), expected, "{l}:{e}");
        }
        let last = model.range((l, EntryId::FIRST)..(ledger(l.get() + 1), EntryId::FIRST)).next_back();
        let runs = view.runs(l).unwrap();
        assert_eq!(runs.iter().map(|run| run.extent.last).max(), last.map(|((_, e), _)| *e));
        let mut absent = vec![l];
        assert!(view.retain_absent(&mut RunSearch::default(), &mut absent, || true));
        assert_eq!(absent.is_empty(), !runs.is_empty());
    }
}

/// Small enough that blocks come and go.
fn memory() -> StorageMemory {
    StorageMemory::new(1 << 20, 20_000)
}

fn open(disk: &MemDisk) -> Result<OpenedDirectory, DirectoryError> {
    open_in(disk, &memory())
}

fn open_in(disk: &MemDisk, memory: &StorageMemory) -> Result<OpenedDirectory, DirectoryError> {
    LedgerDirectory::open_with(&disk.disk(), &dir(), memory)
}

/// A view tells the same about runs, however much of it is in memory, as one that has everything there.
fn assert_same_runs(view: &LogView, all: &LogView) {
    let ids = |sources: Vec<Source>| sources.iter().map(|source| source.extent).collect::<Vec<Extent>>();
    let mut leads = Vec::new();
    for l in (0..6).map(ledger) {
        let runs = ids(all.runs(l).unwrap());
        assert_eq!(ids(view.runs(l).unwrap()), runs);
        for run in &runs {
            assert_eq!(ids(view.newer(run, |_| Asked::Yes).runs), ids(all.newer(run, |_| Asked::Yes).runs));
        }
        for (e, hidden_below) in (0..55).flat_map(|e| [(entry(e), Generation(0)), (entry(e), Generation(4))])
        {
            let found = [view, all].map(|view| {
                leads.clear();
                view.leads(l, e, &mut leads);
                let found = crate::locate(&leads, l, e, hidden_below).unwrap();
                if let Ok(cached) = crate::try_locate(&leads, l, e, hidden_below) {
                    let location = |found: &Option<crate::FoundEntry>| found.as_ref().map(|f| f.location);
                    assert_eq!(location(&cached), location(&found));
                }
                found.map(|found| (found.location, found.generation))
            });
            assert_eq!(found[0], found[1], "{l}:{e}");
        }
    }
    for log in all.logs() {
        let same = view.log(log.log_id()).unwrap();
        assert_eq!(view.runs_of_log(&same).unwrap(), all.runs_of_log(&log).unwrap());
    }
}

/// The answers of a scan about one ledger, which is behind those that it was asked about, equal those of the list of runs.
fn check_overlaps(view: &LogView, scan: &mut OverlapScan, l: LedgerId) {
    for first in (0..55).step_by(3) {
        for (last, oldest) in [(first, 0), (first + 2, 0), (first + 4, 9)] {
            let asked = |log_id: LogId, newest: Generation| !log_id.0.is_multiple_of(3) && newest.0 >= oldest;
            let runs = view.runs_within(l, entry(first), entry(last)).unwrap();
            let expected = runs.iter().any(|run| asked(run.extent.log_id, run.extent.generation));
            let found = view.overlaps(scan, l, entry(first), entry(last), asked);
            assert_eq!(found, expected, "{l}: {first} to {last}, not older than {oldest}");
        }
    }
}

/// Flushes with random overlapping entries, replacements of several logs by one, restarts: reads equal the model.
#[test]
fn reads_give_the_newest_copy_through_flushes_merges_and_restarts() {
    let (mut paged, mut resident, mut searched) = (0, 0, 0);
    for seed in 0..20 {
        let mut next = numbers(seed);
        let disk = MemDisk::default();
        let memory = StorageMemory::new([0, 600, 2500, 6000, 1 << 20][seed as usize % 5], 20_000);
        let mut directory = open_in(&disk, &memory).unwrap().directory;
        let mut model = Model::new();
        let mut used = std::collections::BTreeSet::new();
        // Goes on by a log at a time, while logs come, go and are paged.
        let all: Vec<LedgerId> = (0..6).map(ledger).collect();
        let (mut search, mut absent) = (RunSearch::default(), all.clone());
        let (mut scan, mut scanned) = (OverlapScan::default(), 0);
        for generation in 1..25 {
            let mut ids: Vec<(i64, i64)> =
                (0..next() % 30).map(|_| (i64::from(next() % 5), i64::from(next() % 50))).collect();
            ids.sort_unstable();
            ids.dedup();
            let held = directory.view().runs(ledger(0)).unwrap();
            assert!(used.insert(flush_and_commit(&mut directory, generation, &ids)), "log ids are new");
            model.extend(ids.iter().map(|(l, e)| ((ledger(*l), entry(*e)), generation as u8)));
            if generation % 6 == 0 {
                // Replace all logs but the last by one that has the newest copy of everything.
                let merged: Vec<(i64, i64)> = model.keys().map(|(l, e)| (l.get(), e.get())).collect();
                let sealed = flush(&mut directory, 200 + generation, &merged);
                let removed: Vec<LogId> = directory.view().logs().iter().map(|log| log.log_id()).collect();
                let logs = [sealed];
                let commit =
                    DirectoryCommit { logs_added: &logs, logs_removed: &removed, ..Default::default() };
                directory.commit(&commit).unwrap();
                model.values_mut().for_each(|content| *content = 200 + generation as u8);
                for Source { log, extent } in &held {
                    assert!(!log.entries(extent).unwrap().is_empty(), "a held log stays readable");
                }
                assert_eq!(
                    directory.unlink_withdrawn().unwrap(),
                    held.iter().map(|s| s.log.log_id()).collect::<std::collections::BTreeSet<_>>().len()
                );
                drop(held);
                assert_eq!(directory.unlink_withdrawn().unwrap(), 0);
                assert_eq!(disk.names().len(), 2, "one log and the state table");
                // Generations go on above the merged one.
                for log in directory.view().logs() {
                    assert_eq!(log.generation(), Generation(200 + generation));
                }
                break;
            }
            if next().is_multiple_of(4) {
                drop(directory);
                assert_eq!(memory.index.used(IndexUse::Extents), 0, "what was charged is released");
                let opened = open_in(&disk, &memory).unwrap();
                assert_eq!((opened.is_fresh, opened.orphans.len()), (false, 0));
                directory = opened.directory;
                (search, absent) = (RunSearch::default(), all.clone());
            }
            let view = directory.view();
            if scanned == all.len() {
                (scan, scanned) = (OverlapScan::default(), 0);
            }
            check_overlaps(&view, &mut scan, all[scanned]);
            scanned += 1;
            let mut looks = 0..next() % 3;
            if view.retain_absent(&mut search, &mut absent, || looks.next().is_some()) {
                let has = |l: &LedgerId| model.keys().any(|(ledger, _)| ledger == l);
                assert_eq!(absent, all.iter().filter(|l| !has(l)).copied().collect::<Vec<_>>());
                search.begin_again();
                absent.clone_from(&all);
                searched += 1;
            }
            paged += view.paged_logs();
            resident += view.run_counts().0;
            assert!(!memory.index.is_over() || view.run_counts().0 == 0, "what can be paged out is");
            assert_holds(&view, &model);
            let beside: Arc<dyn Disk> = Arc::new(crate::ReadOnlyDisk::new(disk.disk()));
            assert_same_runs(&view, &LedgerDirectory::open(&beside, &dir()).unwrap().directory.view());
        }
        drop(directory);
        assert_holds(&open(&disk).unwrap().directory.view(), &model);
    }
    assert!(paged > 100 && resident > 200, "{paged} logs on disk, {resident} runs in memory");
    assert!(searched > 20, "{searched} searches came to their end");
}

/// A log that was left with a part of its runs in memory goes when the pool wants room.
#[test]
fn a_log_that_is_half_out_of_memory_goes_on_when_room_is_wanted() {
    let (disk, memory) = (MemDisk::default(), StorageMemory::new(16 << 20, 20_000));
    let mut directory = open_in(&disk, &memory).unwrap().directory;
    let mut model = Model::new();
    let ids: Vec<(i64, i64)> = (0..3000).map(|l| (l, l % 50)).collect();
    let source = flush_and_commit(&mut directory, 1, &ids);
    model.extend(ids.iter().map(|(l, e)| ((ledger(*l), entry(*e)), 1)));
    let view = directory.view();
    let mut paging = PagingOut::new(source);
    while view.run_counts().0 == 3000 {
        assert!(!directory.page_out_on(&mut paging));
    }
    drop(paging);
    let (in_memory, on_disk) = view.run_counts();
    assert!(in_memory > 0 && on_disk == 3000, "{in_memory} and {on_disk} runs");
    assert_holds(&view, &model);
    memory.index.charge(IndexUse::Writing, 16 << 20);
    flush_and_commit(&mut directory, 2, &[(0, 59)]);
    model.insert((ledger(0), entry(59)), 2);
    assert_eq!(view.run_counts().0, 0, "runs in memory");
    assert_holds(&view, &model);
    memory.index.release(IndexUse::Writing, 16 << 20);
    directory.commit(&DirectoryCommit { logs_removed: &[source], ..Default::default() }).unwrap();
    model.retain(|_, generation| *generation == 2);
    assert_holds(&view, &model);
}

/// A log on its way out of memory is read as ever, whatever is committed meanwhile; one that is written and read back in steps
/// is committed as in one go, and what that took is given back.
#[test]
fn logs_leave_memory_and_come_in_steps() {
    let (disk, memory) = (MemDisk::default(), StorageMemory::new(16 << 20, 20_000));
    let mut directory = open_in(&disk, &memory).unwrap().directory;
    let mut model = Model::new();
    // A run for each entry: they are two apart.
    let ids: Vec<(i64, i64)> = (0..3000).map(|l| (l, l % 50)).collect();
    let source = flush_and_commit(&mut directory, 1, &ids);
    model.extend(ids.iter().map(|(l, e)| ((ledger(*l), entry(*e)), 1)));
    let view = directory.view();
    assert_eq!(view.run_counts(), (3000, 0));
    let mut paging = PagingOut::new(source);
    let mut steps = 0;
    while !directory.page_out_on(&mut paging) {
        steps += 1;
        assert_holds(&view, &model);
        let (in_memory, on_disk) = view.run_counts();
        assert!(in_memory >= 3000 || on_disk >= 3000, "{in_memory} and {on_disk} runs");
        // It does not come back half way, though it was read and there is room.
        flush_and_commit(&mut directory, 10 + steps, &[(0, 59)]);
        model.insert((ledger(0), entry(59)), 10 + steps as u8);
    }
    assert!(steps >= 5, "{steps} steps");
    assert_holds(&view, &model);
    let mut writer = directory.begin_log(Generation(1)).unwrap();
    for (l, e) in &ids {
        let body = body(ledger(*l), entry(*e), 1);
        writer.append(ledger(*l), entry(*e), &body, crate::codec::crc32c(&[&body])).unwrap();
    }
    assert!(memory.index.used(IndexUse::Writing) > 0);
    while !writer.write_footer(100).unwrap() {}
    assert_eq!(memory.index.used(IndexUse::Writing), 0, "what is listed is given back");
    let sealed = writer.finish().unwrap();
    let mut read = directory.read_back(&sealed).unwrap();
    let mut steps = 1;
    while !read.read_on().unwrap() {
        steps += 1;
    }
    assert!(steps > 2 && memory.index.used(IndexUse::Writing) > 0, "{steps} steps");
    assert!(view.log(sealed.log_id).is_none());
    let commit = DirectoryCommit { logs_removed: &[source], ..Default::default() };
    directory.commit_read(&commit, vec![read]).unwrap();
    assert_eq!(memory.index.used(IndexUse::Writing), 0);
    assert!(view.log(sealed.log_id).is_some() && view.log(source).is_none());
    assert_holds(&view, &model);
    drop((directory, view));
    assert_holds(&open(&disk).unwrap().directory.view(), &model);
}

/// A read of a log that was paged out brings it back when there is room again.
#[test]
fn a_log_that_is_looked_at_comes_back_into_memory() {
    let (disk, memory) = (MemDisk::default(), StorageMemory::new(6500, 20_000));
    let mut directory = open_in(&disk, &memory).unwrap().directory;
    let logs: Vec<LogId> = (1..30)
        .map(|generation| flush_and_commit(&mut directory, generation, &[(1, generation as i64)]))
        .collect();
    let view = directory.view();
    let before = view.paged_logs();
    assert!(before > 0 && view.run_counts().0 > 0, "{:?}", view.run_counts());
    // Half of what is there goes, and the oldest is read.
    let commit = DirectoryCommit { logs_removed: &logs[15..], ..Default::default() };
    directory.commit(&commit).unwrap();
    for _ in 0..40 {
        assert!(view.read(ledger(1), entry(1)).unwrap().is_some());
        directory.commit(&DirectoryCommit::default()).unwrap();
    }
    assert!(view.paged_logs() < before.min(15), "{} logs on disk", view.paged_logs());
    assert!(!memory.index.is_over());
}

/// IB13, IB15, IB18. Goal: at any failure the directory afterwards is the one before or the one after.
/// Method: fail each change of flush, commit and unlink in turn, then lose any subset of unsynced sectors.
#[test]
fn a_crash_anywhere_in_a_flush_leaves_before_or_after_and_no_orphans() {
    let prepare = || {
        let disk = MemDisk::default();
        let mut directory = open(&disk).unwrap().directory;
        flush_and_commit(&mut directory, 1, &[(1, 1), (1, 2), (2, 5)]);
        flush_and_commit(&mut directory, 2, &[(1, 2), (1, 3)]);
        (disk, directory)
    };
    let run = |directory: &mut LedgerDirectory| -> Result<(), String> {
        let mut writer = directory.begin_log(Generation(3)).map_err(|e| e.to_string())?;
        for (l, e) in [(1, 1), (1, 2), (1, 3), (2, 5), (3, 0)] {
            let body = body(ledger(l), entry(e), 3);
            let crc = crate::codec::crc32c(&[&body]);
            writer.append(ledger(l), entry(e), &body, crc).map_err(|e| e.to_string())?;
        }
        let logs = [writer.finish().map_err(|e| e.to_string())?];
        let marks = [journal_mark(3)];
        let removed = [LogId(0), LogId(1)];
        let commit = DirectoryCommit {
            logs_added: &logs,
            logs_removed: &removed,
            marks: &marks,
            ..Default::default()
        };
        directory.commit(&commit).map_err(|e| e.to_string())?;
        directory.unlink_withdrawn().map(|_| ()).map_err(|e| e.to_string())
    };
    let model = |contents: &[(i64, i64, u8)]| -> Model {
        contents.iter().map(|(l, e, content)| ((ledger(*l), entry(*e)), *content)).collect()
    };
    let before = model(&[(1, 1, 1), (1, 2, 2), (1, 3, 2), (2, 5, 1)]);
    let after = model(&[(1, 1, 3), (1, 2, 3), (1, 3, 3), (2, 5, 3), (3, 0, 3)]);

    let (disk, mut directory) = prepare();
    let start = disk.changes();
    run(&mut directory).unwrap();
    let changes = disk.changes() - start;
    let (mut old, mut new, mut orphans) = (0, 0, 0);
    for failing in 0..=changes {
        let (disk, mut directory) = prepare();
        disk.fail_after(failing);
        let result = run(&mut directory);
        assert_eq!(result.is_ok(), failing == changes, "{result:?}");
        for seed in 0..20 {
            let mut next = numbers(failing * 100 + seed);
            let left = disk.after_crash(move || next() % 4);
            let opened = open(&left).unwrap_or_else(|e| panic!("change {failing}, seed {seed}: {e}"));
            orphans += opened.orphans.len();
            let marks = opened.directory.marks();
            if marks == [journal_mark(3)] {
                new += 1;
                assert_holds(&opened.directory.view(), &after);
                assert_eq!(left.names().len(), 2);
            } else {
                assert!(result.is_err(), "an acknowledged flush is gone");
                old += 1;
                assert_eq!(marks, [journal_mark(2)]);
                assert_holds(&opened.directory.view(), &before);
                assert_eq!(left.names().len(), 3);
            }
            let mut directory = opened.directory;
            let id = flush_and_commit(&mut directory, 4, &[(4, 4)]);
            assert!(id > LogId(2) || !opened.orphans.contains(&id), "ids of orphans are not used again");
        }
    }
    assert!(old > 50 && new > 50 && orphans > 50, "{old} old, {new} new, {orphans} orphans");
}

#[test]
fn a_crash_right_after_orphans_went_does_not_give_their_ids_again() {
    let disk = MemDisk::default();
    let mut directory = open(&disk).unwrap().directory;
    let orphan = flush(&mut directory, 1, &[(1, 1)]).log_id;
    drop(directory);
    let opened = open(&disk).unwrap();
    assert_eq!(opened.orphans, [orphan]);
    drop(opened);
    let mut directory = open(&disk).unwrap().directory;
    assert!(directory.begin_log(Generation(2)).unwrap().log_id() > orphan);
}

/// IB15: without proof of what is live nothing is removed.
#[test]
fn without_a_state_table_logs_are_neither_used_nor_removed() {
    let disk = MemDisk::default();
    flush_and_commit(&mut open(&disk).unwrap().directory, 1, &[(1, 1)]);
    let log = dir().join(file_name(LogId(0)));
    let alone = MemDisk::default();
    alone.put(&log, disk.bytes(&log));
    let error = open(&alone).err().unwrap();
    assert!(matches!(error, DirectoryError::StateMissing { logs: 1, .. }), "{error}");
    assert_eq!(alone.names().len(), 1);

    alone.put(&dir().join(STATE_FILE_NAME), Vec::new());
    let error = open(&alone).err().unwrap();
    assert!(matches!(error, DirectoryError::State(StateError::Damaged(_))), "{error}");
    assert_eq!(alone.names().len(), 2);
}

#[test]
fn a_missing_or_exchanged_log_fails_the_directory() {
    let disk = MemDisk::default();
    let mut directory = open(&disk).unwrap().directory;
    flush_and_commit(&mut directory, 1, &[(1, 1)]);
    flush_and_commit(&mut directory, 2, &[(1, 2), (1, 3)]);
    drop(directory);
    let state = dir().join(STATE_FILE_NAME);
    let (first, second) = (dir().join(file_name(LogId(0))), dir().join(file_name(LogId(1))));
    let missing = MemDisk::default();
    missing.put(&state, disk.bytes(&state));
    missing.put(&first, disk.bytes(&first));
    let error = open(&missing).err().unwrap().to_string();
    assert!(error.contains("0000000000000001.elog"), "{error}");
    assert_eq!(missing.names().len(), 2, "nothing was removed");
    missing.put(&second, disk.bytes(&first));
    let error = open(&missing).err().unwrap().to_string();
    assert!(error.contains("the file holds log 0000000000000000"), "{error}");
}

/// Directory invariant 5: an older copy is another content (a recovery may have rewritten the entry).
#[test]
fn a_damaged_newest_copy_does_not_bring_an_older_one_back() {
    let disk = MemDisk::default();
    let mut directory = open(&disk).unwrap().directory;
    flush_and_commit(&mut directory, 1, &[(1, 1)]);
    let newer = flush_and_commit(&mut directory, 2, &[(1, 1)]);
    drop(directory);
    let path = dir().join(file_name(newer));
    let mut bytes = disk.bytes(&path);
    bytes[4096 + 25] ^= 1;
    disk.put(&path, bytes);
    let view = open(&disk).unwrap().directory.view();
    let error = view.read(ledger(1), entry(1)).unwrap_err();
    assert!(matches!(error, ReadError::Damaged(_)), "{error}");
}

/// The same through the kernel: direct writes, buffered reads, real names.
#[test]
fn a_directory_on_the_real_disk_survives_a_restart() {
    let temp = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(bindery_io::RealDisk::new());
    let mut directory = LedgerDirectory::open_with(&disk, temp.path(), &memory()).unwrap().directory;
    let mut model = Model::new();
    for generation in 1..6 {
        let ids: Vec<(i64, i64)> = (0..50).filter(|e| e % 3 != 1).map(|e| (generation % 3, e)).collect();
        flush_and_commit(&mut directory, generation as u64, &ids);
        model.extend(ids.iter().map(|(l, e)| ((ledger(*l), entry(*e)), generation as u8)));
    }
    drop(directory);
    let opened = LedgerDirectory::open_with(&disk, temp.path(), &memory()).unwrap();
    assert_eq!(opened.recovered.logs.len(), 5);
    assert_holds(&opened.directory.view(), &model);
    for log in opened.directory.view().logs() {
        assert_eq!(log.verify().unwrap().damage_count, 0);
        assert!(EntryLog::open_file(&disk, log.path()).is_ok());
    }
}
