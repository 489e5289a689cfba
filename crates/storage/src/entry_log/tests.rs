use super::*;
use crate::codec::crc32c;
use crate::testing::MemDisk;
use crate::{Generation, LogId, OpenLogError, ReadError, TryReadError, WriteError};
use bindery_io::{Disk, DiskFile, DiskLayer, FileLayer, OpenMode};
use bindery_types::{EntryId, LedgerId};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn ledger(raw: i64) -> LedgerId {
    LedgerId::new(raw).unwrap()
}
fn entry(raw: i64) -> EntryId {
    EntryId::new(raw).unwrap()
}
fn dir() -> PathBuf {
    PathBuf::from("/ledgers")
}

/// A body as it comes from the wire: ledger, entry, LAC = entry - 1, length, payload.
fn body(l: LedgerId, e: EntryId, payload: usize) -> Vec<u8> {
    let mut body = Vec::new();
    for field in [l.get(), e.get(), e.get() - 1, payload as i64] {
        body.extend_from_slice(&field.to_be_bytes());
    }
    body.extend((0..payload).map(|i| (i as i64 * 31 + e.get() * 7 + l.get()) as u8));
    body
}

type Model = BTreeMap<(LedgerId, EntryId), Vec<u8>>;

fn write(disk: &MemDisk, id: LogId, model: &Model) -> Result<SealedLog, WriteError> {
    let mut writer = EntryLogWriter::create(&disk.disk(), &dir(), id, Generation(9))?;
    for ((l, e), body) in model {
        writer.append(*l, *e, body, crc32c(&[body]))?;
    }
    writer.finish()
}

fn model_of(shapes: &[(i64, Vec<i64>)], payload: impl Fn(i64) -> usize) -> Model {
    let mut model = Model::new();
    for (l, entries) in shapes {
        for e in entries {
            model.insert((ledger(*l), entry(*e)), body(ledger(*l), entry(*e), payload(*e)));
        }
    }
    model
}

/// Notes the ranges that the kernel was told to read ahead.
#[derive(Clone)]
struct Noting {
    disk: Arc<dyn Disk>,
    asked: Arc<Mutex<Vec<(u64, u64)>>>,
}

struct NotingFile(Arc<dyn DiskFile>, Arc<Mutex<Vec<(u64, u64)>>>);

impl DiskLayer for Noting {
    fn beneath(&self) -> &dyn Disk {
        &*self.disk
    }
    fn open(&self, path: &Path, mode: OpenMode) -> std::io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(NotingFile(self.disk.open(path, mode)?, self.asked.clone())))
    }
}

impl FileLayer for NotingFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.0
    }
    fn begin_reading(&self, offset: u64, len: u64) {
        self.1.lock().push((offset, len));
    }
}

#[test]
fn who_reads_in_sequence_and_waits_asks_the_kernel_once_for_what_follows() {
    // Invariant 2 of `read`.
    let model = model_of(&[(1, (0..3000).collect())], |_| 1000);
    let disk = MemDisk::default();
    write(&disk, LogId(1), &model).unwrap();
    let noting = Noting { disk: disk.disk(), asked: Arc::default() };
    let (log, extents) =
        EntryLog::open(&(Arc::new(noting.clone()) as Arc<dyn Disk>), &dir(), LogId(1)).unwrap();
    let location = |e: i64| log.lookup(&extents[0], entry(e)).unwrap().unwrap();
    let read = |e: i64| log.read(&location(e), ledger(1), entry(e)).unwrap();
    assert_eq!(extents.len(), 1);
    // Here and there: nothing.
    (0..3000).step_by(97).for_each(|e| drop(read(e)));
    assert_eq!(*noting.asked.lock(), []);
    // All of it: each byte once, give or take what was read before it was known to be a sequence.
    (0..3000).for_each(|e| assert_eq!(read(e), model[&(ledger(1), entry(e))]));
    let asked = std::mem::take(&mut *noting.asked.lock());
    let first = asked[0].0;
    assert!((location(3).offset..location(8).offset).contains(&first), "{asked:?}");
    assert!(asked.iter().all(|(_, len)| *len == 512 << 10), "{asked:?}");
    let gaps = asked.windows(2).map(|pair| pair[1].0.abs_diff(pair[0].0 + pair[0].1));
    assert!(gaps.max().unwrap() < 2048 && asked.len() == 6, "{asked:?}");
    // From the begin again: the same, for the kernel may have let go of it.
    (0..3000).for_each(|e| drop(read(e)));
    assert_eq!(noting.asked.lock().len(), 6);
    // Reads that do not wait never ask for read-ahead.
    noting.asked.lock().clear();
    let mut bytes = vec![0; 1032 + 1000];
    for e in 0..1000 {
        let bytes = &mut bytes[..location(e).length as usize];
        let _ = log.try_read_into(&location(e), ledger(1), entry(e), bytes);
    }
    assert_eq!(*noting.asked.lock(), []);
}

/// Looks an entry up in all runs of its ledger.
fn get(log: &EntryLog, extents: &[Extent], l: LedgerId, e: EntryId) -> Result<Option<Vec<u8>>, ReadError> {
    for extent in extents.iter().filter(|x| x.ledger == l && x.may_hold(e)) {
        if let Some(location) = log.lookup(extent, e)? {
            return log.read(&location, l, e).map(Some);
        }
    }
    Ok(None)
}

/// Reads every `step`th entry of a run together, from `first` to `last` at most.
fn get_together(
    log: &Arc<EntryLog>,
    extent: &Extent,
    (first, last): (EntryId, EntryId),
    step: u32,
    bytes_max: usize,
) -> Result<Vec<Vec<u8>>, TryReadError> {
    let found = log.locate_together(extent, (first, last), step, bytes_max, Patience::Wait)?;
    let Some(found) = found else { return Ok(Vec::new()) };
    let mut buffer = Vec::new();
    let sound = found.read(0, found.lengths().len(), &mut buffer, Patience::Wait).unwrap();
    Ok(sound.map(<[u8]>::to_vec).collect())
}

proptest! {
    /// Whatever the gaps, every entry comes back and no other does; runs, LACs and the check agree with the model.
    #[test]
    fn a_log_gives_back_exactly_what_was_appended(
        ids in prop::collection::btree_set((0..3i64, 0..400i64), 1..200),
        stride in 1..5i64,
        big in 0..3usize,
    ) {
        let mut model = Model::new();
        for (l, e) in &ids {
            let (l, e) = (ledger(*l), entry(*e * if *l == 0 { stride } else { 1 }));
            model.insert((l, e), body(l, e, (e.get() as usize * 37) % 300));
        }
        // Dense, strided, and two-of-three runs beside the random ones; some bodies larger than the staging buffer.
        model.extend(model_of(&[
            (10, (5..90).collect()),
            (11, (0..90).map(|i| 3 + i * stride).collect()),
            (12, (0..300).filter(|i| i % 3 != 2).collect()),
        ], |_| 10));
        for i in 0..big {
            let (l, e) = (ledger(20), entry(i as i64));
            model.insert((l, e), body(l, e, 1_300_000 + i));
        }
        let disk = MemDisk::default();
        let sealed = write(&disk, LogId(3), &model).unwrap();
        let (log, extents) = EntryLog::open(&disk.disk(), &dir(), LogId(3)).unwrap();
        prop_assert_eq!((sealed.runs, sealed.footer_checksum), (extents.len() as u64, log.footer_checksum()));
        prop_assert_eq!(sealed.size, disk.bytes(&dir().join(file_name(LogId(3)))).len() as u64);
        prop_assert_eq!(sealed.entries, model.len() as u64);
        for l in (0..21).map(ledger) {
            for e in (0..2000).map(entry) {
                let found = get(&log, &extents, l, e).unwrap();
                prop_assert_eq!(found.as_ref(), model.get(&(l, e)), "{}:{}", l, e);
            }
        }
        let listed: Vec<_> = extents
            .iter()
            .flat_map(|x| log.entries(x).unwrap().into_iter().map(|r| (x.ledger, r.entry)))
            .collect();
        prop_assert_eq!(listed, model.keys().copied().collect::<Vec<_>>());
        let ids = extents.iter().flat_map(|x| log.entry_ids(x).unwrap().into_iter().map(|e| (x.ledger, e)));
        prop_assert_eq!(ids.collect::<Vec<_>>(), model.keys().copied().collect::<Vec<_>>());
        for extent in &extents {
            prop_assert_eq!(extent.max_lac, EntryId::new(extent.last.get() - 1));
        }
        let report = log.verify().unwrap();
        prop_assert_eq!((report.damage_count, report.entries), (0, model.len() as u64));
        let log = Arc::new(log);
        for extent in extents.iter().filter(|extent| extent.stride == 1) {
            for first in (extent.first.get()..=extent.last.get()).step_by(1 + big * 7) {
                for (span, bytes_max) in [(0, 100), (3, 0), (70, 1000), (70, 1 << 20)] {
                    let last = (first + span).min(extent.last.get());
                    let found = get_together(&log, extent, (entry(first), entry(last)), 1, bytes_max).unwrap();
                    let (mut bytes, mut expected) = (0, Vec::new());
                    for e in first..=last.min(first + i64::from(TOGETHER_ENTRIES_MAX) - 1) {
                        let body = &model[&(extent.ledger, entry(e))];
                        bytes += body.len();
                        if e > first && bytes > bytes_max {
                            break;
                        }
                        expected.push(body.clone());
                    }
                    prop_assert_eq!(found, expected, "{}:{}-{}, {} bytes", extent.ledger, first, last, bytes_max);
                }
            }
        }
        // Of any run, whatever its gaps: the entries that follow one another by the step, up to the first that is not there.
        for extent in extents.iter().filter(|extent| extent.ledger != ledger(20)) {
            for (first, step) in (extent.first.get()..=extent.last.get()).step_by(5).flat_map(|e| [(e, 2), (e, 3), (e, 7)]) {
                let last = extent.last.get().min(first + 150);
                let found = get_together(&log, extent, (entry(first), entry(last)), step, 1 << 20).unwrap();
                let wanted = (first..=last).step_by(step as usize);
                let expected = wanted.map_while(|e| model.get(&(extent.ledger, entry(e)))).cloned();
                let expected: Vec<Vec<u8>> = expected.collect();
                prop_assert!(expected.starts_with(&found), "{}:{} by {}", extent.ledger, first, step);
                prop_assert_eq!(found.is_empty(), expected.is_empty());
                // Index records are looked at within a bound.
                let is_looked_at = |e: &i64| (first..=*e).filter(|e| model.contains_key(&(extent.ledger, entry(*e)))).count()
                    <= TOGETHER_ENTRIES_MAX as usize;
                let within = (first..=last).step_by(step as usize).take(expected.len()).filter(is_looked_at).count();
                prop_assert_eq!(found.len(), within);
            }
        }
    }
}

#[test]
fn what_lies_between_entries_read_together_is_short_and_counts_as_bytes() {
    // Every second entry has 1,000 bytes; those between have what is said.
    let found = |between: usize, bytes_max: usize| {
        let model = model_of(&[(1, (0..40).collect())], |e| if e % 2 == 0 { 1000 } else { between });
        let disk = MemDisk::default();
        write(&disk, LogId(3), &model).unwrap();
        let (log, extents) = EntryLog::open(&disk.disk(), &dir(), LogId(3)).unwrap();
        let log = Arc::new(log);
        let found = get_together(&log, &extents[0], (entry(0), entry(39)), 2, bytes_max).unwrap();
        assert!(found.iter().zip(0..).all(|(read, e)| *read == model[&(ledger(1), entry(2 * e))]));
        found.len()
    };
    assert_eq!(found(1000, 1 << 20), 20);
    assert_eq!(found(8000, 1 << 20), 20);
    assert_eq!(found(9000, 1 << 20), 1, "reads of their own are as cheap");
    let body_bytes = |size| body(ledger(1), entry(0), size).len();
    let three = 3 * body_bytes(1000) + 2 * body_bytes(3000);
    assert_eq!((found(3000, three), found(3000, three - 1)), (3, 2));
}

#[test]
fn a_long_ledger_is_split_into_runs_and_found_in_each() {
    let disk = MemDisk::default();
    let mut writer = EntryLogWriter::create(&disk.disk(), &dir(), LogId(1), Generation(1)).unwrap();
    let count = i64::from(RUN_ENTRIES_MAX) * 2 + 7;
    // Irregular on purpose: gaps grow, so interpolation misses and the search has to converge.
    let id = |i: i64| entry(i + i * i / 1000);
    for i in 0..count {
        let body = body(ledger(4), id(i), 0);
        writer.append(ledger(4), id(i), &body, crc32c(&[&body])).unwrap();
    }
    let sealed = writer.finish().unwrap();
    let (log, extents) = EntryLog::open(&disk.disk(), &dir(), LogId(1)).unwrap();
    assert_eq!(sealed.runs, 3);
    assert_eq!(extents.iter().map(|x| x.count).collect::<Vec<_>>(), [RUN_ENTRIES_MAX, RUN_ENTRIES_MAX, 7]);
    for i in (0..count - 1).step_by(61).chain(count - 9..count - 1) {
        let expected = body(ledger(4), id(i), 0);
        assert_eq!(get(&log, &extents, ledger(4), id(i)).unwrap(), Some(expected));
        if id(i).get() + 1 < id(i + 1).get() {
            assert_eq!(get(&log, &extents, ledger(4), entry(id(i).get() + 1)).unwrap(), None);
        }
    }
}

/// Goal: damage never passes for data or for absence (entry log invariants 2 and 3, IB7, IB8).
/// Method: flip every bit, and cut at every length, of a log with regular, irregular and single-entry runs.
#[test]
fn every_flipped_bit_and_every_cut_is_an_error_or_harmless() {
    let model = model_of(&[(1, vec![0, 1, 2]), (2, vec![4, 6, 7, 11, 12]), (7, vec![3])], |e| e as usize * 5);
    let disk = MemDisk::default();
    write(&disk, LogId(5), &model).unwrap();
    let path = dir().join(file_name(LogId(5)));
    let good = disk.bytes(&path);
    assert_eq!(good.len(), 8192, "small enough to be exhaustive");

    let (mut opened, mut refused, mut unreadable) = (0u64, 0u64, 0u64);
    let mut check = |bytes: Vec<u8>, what: &str, may_verify: bool| {
        disk.put(&path, bytes);
        let indexed = EntryLog::open_indexed(&disk.disk(), &dir(), LogId(5), 0);
        match EntryLog::open(&disk.disk(), &dir(), LogId(5)) {
            Err(OpenLogError::Damaged(_)) => {
                refused += 1;
                assert!(indexed.is_err(), "{what}: it opens with its index and not with its extents");
            }
            Err(error) => panic!("{what}: {error}"),
            Ok((log, extents)) => {
                opened += 1;
                assert!(indexed.is_ok(), "{what}: it opens with its extents and not with its index");
                for ((l, e), body) in &model {
                    match get(&log, &extents, *l, *e) {
                        Ok(Some(read)) => assert_eq!(&read, body, "{what}: entry {l}:{e}"),
                        Ok(None) => panic!("{what}: entry {l}:{e} was called absent"),
                        Err(ReadError::Damaged(_)) => unreadable += 1,
                        Err(error) => panic!("{what}: {error}"),
                    }
                }
                let (log, run) = (Arc::new(log), (0..3).map(|e| &model[&(ledger(1), entry(e))]));
                let extent = extents.iter().find(|extent| extent.ledger == ledger(1)).unwrap();
                match get_together(&log, extent, (entry(0), entry(2)), 1, 1 << 20) {
                    Ok(read) => {
                        read.iter().zip(run).for_each(|(read, body)| assert_eq!(read, body, "{what}"))
                    }
                    Err(TryReadError::Failed(ReadError::Damaged(_))) => unreadable += 1,
                    Err(error) => panic!("{what}: {error:?}"),
                }
                assert_eq!(get(&log, &extents, ledger(1), entry(3)).ok().flatten(), None);
                assert_eq!(get(&log, &extents, ledger(2), entry(8)).ok().flatten(), None);
                let damages = log.verify().unwrap().damage_count;
                assert!(damages > 0 || may_verify, "{what}: the check of the whole log found nothing");
            }
        }
    };
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        check(bytes, &format!("bit {bit}"), false);
    }
    for len in 0..good.len() {
        check(good[..len].to_vec(), &format!("cut to {len}"), false);
    }
    check(good, "unchanged", true);
    // Bodies and records (and the padding) are opened and found out later; header, footer and trailer refuse.
    assert!(
        opened > 1000 && refused > 4096 * 8 + 8192 && unreadable > 1000,
        "{opened} {refused} {unreadable}"
    );
}

#[test]
fn a_log_under_another_name_or_from_a_newer_release_is_refused() {
    let disk = MemDisk::default();
    write(&disk, LogId(5), &model_of(&[(1, vec![1])], |_| 0)).unwrap();
    let mut bytes = disk.bytes(&dir().join(file_name(LogId(5))));
    disk.put(&dir().join(file_name(LogId(6))), bytes.clone());
    let error = EntryLog::open(&disk.disk(), &dir(), LogId(6)).err().unwrap();
    assert!(error.to_string().ends_with("the file holds log 0000000000000005"), "{error}");

    bytes[8] = 2;
    let crc = crc32c(&[&bytes[..4092]]);
    bytes[4092..4096].copy_from_slice(&crc.to_le_bytes());
    disk.put(&dir().join(file_name(LogId(5))), bytes);
    let error = EntryLog::open(&disk.disk(), &dir(), LogId(5)).err().unwrap();
    assert_eq!(
        error.to_string(),
        "/ledgers/0000000000000005.elog was written by a newer format 2; this build reads up to 1; use a newer bindery"
    );
}

#[test]
fn a_footer_that_is_written_in_steps_is_the_same() {
    let shapes: Vec<(i64, Vec<i64>)> = (0..40).map(|l| (l, vec![l, l + 1, l + 5])).collect();
    let model = model_of(&shapes, |_| 10);
    let disk = MemDisk::default();
    let at_once = write(&disk, LogId(1), &model).unwrap();
    let path = dir().join(file_name(LogId(1)));
    let expected = disk.bytes(&path);
    for step in [1, 7, 39, 40, 41] {
        let disk = MemDisk::default();
        let mut writer = EntryLogWriter::create(&disk.disk(), &dir(), LogId(1), Generation(9)).unwrap();
        for ((l, e), body) in &model {
            writer.append(*l, *e, body, crc32c(&[body])).unwrap();
        }
        let mut left = writer.runs_to_list();
        while !writer.write_footer(step).unwrap() {
            left -= step as u64;
            assert_eq!(writer.runs_to_list(), left);
        }
        assert!(left <= step as u64 && writer.runs_to_list() == 0);
        assert_eq!(writer.finish().unwrap(), at_once);
        assert_eq!(disk.bytes(&path), expected);
    }
}

/// Crate invariant 5: each change in turn fails, and nothing is written or synced after it.
#[test]
fn after_a_failed_write_nothing_more_is_written() {
    let model = model_of(&[(1, vec![1, 2, 3])], |_| 900_000);
    let disk = MemDisk::default();
    write(&disk, LogId(1), &model).unwrap();
    let changes = disk.changes();
    assert!(changes >= 5, "three writes, sync and sync_dir, not {changes}");
    for failing in 0..changes {
        let disk = MemDisk::default();
        disk.fail_after(failing);
        let mut writer = EntryLogWriter::create(&disk.disk(), &dir(), LogId(1), Generation(9)).unwrap();
        let mut first = None;
        for ((l, e), body) in &model {
            let appended = writer.append(*l, *e, body, crc32c(&[body]));
            match (&first, appended) {
                (None, Ok(())) => {}
                (None, Err(error)) => first = Some(error),
                (Some(_), Ok(())) => {}
                (Some(_), Err(error)) => {
                    assert!(matches!(error, WriteError::AlreadyFailed { .. }), "{error}")
                }
            }
        }
        let finished = writer.finish().expect_err("a change failed");
        let first = first.unwrap_or(finished).to_string();
        assert!(first.starts_with("cannot ") && first.contains("injected failure 1"), "{first}");
        assert_eq!(disk.changes_after_failure(), 1, "change {failing}");
    }
}

#[test]
#[should_panic(expected = "does not ascend")]
fn the_same_entry_twice_is_a_bug_of_the_caller() {
    let disk = MemDisk::default();
    let mut writer = EntryLogWriter::create(&disk.disk(), &dir(), LogId(1), Generation(1)).unwrap();
    let body = body(ledger(1), entry(1), 0);
    for _ in 0..2 {
        let _ = writer.append(ledger(1), entry(1), &body, crc32c(&[&body]));
    }
}

#[test]
fn an_existing_file_is_never_overwritten() {
    let disk = MemDisk::default();
    write(&disk, LogId(1), &model_of(&[(1, vec![1])], |_| 0)).unwrap();
    let error = EntryLogWriter::create(&disk.disk(), &dir(), LogId(1), Generation(1)).err().unwrap();
    assert!(matches!(error, WriteError::Disk(e) if e.source.kind() == std::io::ErrorKind::AlreadyExists));
}

#[test]
fn only_exact_names_are_ours() {
    assert_eq!(log_id_of("00000000000000ff.elog"), Some(LogId(255)));
    for other in
        ["ff.elog", "00000000000000FF.elog", "00000000000000ff.elog.bak", "+0000000000000ff.elog", "0.log"]
    {
        assert_eq!(log_id_of(other), None, "{other}");
    }
    assert_eq!(Path::new(&file_name(LogId(255))).extension().unwrap(), "elog");
}

/// R24 (BookKeeper #4841): a short read, and one that fails in between, never pass bytes of another place off as the
/// entry's, neither at once nor from the block cache later.
#[test]
fn r24_short_and_failed_reads_never_give_other_bytes() {
    let shapes = [(1, (0..400).collect()), (2, (0..300).filter(|i| i % 3 != 2).collect::<Vec<i64>>())];
    let model = model_of(&shapes, |e| (e as usize * 131) % 3000);
    let disk = MemDisk::default();
    write(&disk, LogId(3), &model).unwrap();
    let (mut failures, mut waits) = (0, 0);
    for (most, cache_bytes) in
        [(0, 0), (0, 1 << 20), (1, 1 << 20), (512, 40_000), (4095, 1 << 20), (4097, 300_000)]
    {
        let (log, extents) = EntryLog::open(&disk.disk(), &dir(), LogId(3)).unwrap();
        let log = log.cached_by(&std::sync::Arc::new(crate::BlockCache::new(cache_bytes)));
        disk.shorten_reads(most);
        let mut next = crate::testing::numbers(most as u64 + 1);
        for round in 0..2 {
            for ((l, e), expected) in &model {
                if next().is_multiple_of(2) {
                    disk.fail_reads(1 + next() as usize % 4);
                }
                let extent = extents.iter().find(|x| x.ledger == *l && x.may_hold(*e)).unwrap();
                // First as the runtime would, then as an I/O thread does.
                let mut body = Vec::new();
                let read = log.lookup_with(extent, *e, Patience::Never).and_then(|location| {
                    let location = location.expect("the entry is there");
                    body.resize(location.length as usize, 0xAA);
                    log.try_read_into(&location, *l, *e, &mut body)
                });
                match read {
                    Ok(()) => assert_eq!(&body, expected, "{l}:{e}, {most} bytes at once, round {round}"),
                    Err(crate::TryReadError::WouldBlock) => waits += 1,
                    Err(crate::TryReadError::Failed(_)) => failures += 1,
                }
                match get(&log, &extents, *l, *e) {
                    Ok(found) => assert_eq!(found.as_ref(), Some(expected), "{l}:{e}, {most} bytes at once"),
                    Err(error) => {
                        assert!(matches!(error, ReadError::Disk(_)), "{error}");
                        failures += 1;
                    }
                }
                disk.fail_reads(0);
                assert_eq!(get(&log, &extents, *l, *e).unwrap().as_ref(), Some(expected));
            }
        }
        disk.shorten_reads(0);
    }
    assert!(failures > 100 && waits > 100, "{failures} failures, {waits} waits");
}

/// Damage that is met is not kept: once the medium gives good bytes again, so does the log.
#[test]
fn damaged_bytes_do_not_stay_in_the_block_cache() {
    let model = model_of(&[(1, (0..200).collect())], |_| 100);
    let disk = MemDisk::default();
    write(&disk, LogId(3), &model).unwrap();
    let (log, extents) = EntryLog::open(&disk.disk(), &dir(), LogId(3)).unwrap();
    let log = log.cached_by(&std::sync::Arc::new(crate::BlockCache::new(1 << 20)));
    let path = dir().join(file_name(LogId(3)));
    let good = disk.bytes(&path);
    let record = extents[0].records_offset as usize + 50 * RECORD_BYTES as usize;
    for at in [record + 3, 4096 + 132 * 50 + 40] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        disk.overwrite(&path, bad);
        let error = get(&log, &extents, ledger(1), entry(50)).unwrap_err();
        assert!(matches!(error, ReadError::Damaged(_)), "{error}");
        disk.overwrite(&path, good.clone());
        assert!(get(&log, &extents, ledger(1), entry(50)).unwrap().is_some());
    }
}

/// Goal: going through a footer piece by piece gives what reading it whole gives, and what was changed since the log was opened
/// is an error at the end at the latest.
#[test]
fn a_cursor_gives_all_runs_and_notices_a_footer_that_changed() {
    let disk = MemDisk::default();
    let ledgers: Vec<(i64, Vec<i64>)> = (0..2000).map(|l| (l * 3, vec![5, 6])).collect();
    let model = model_of(&ledgers.iter().map(|(l, e)| (*l, e.clone())).collect::<Vec<_>>(), |_| 1);
    write(&disk, LogId(5), &model).unwrap();
    let (log, extents) = EntryLog::open(&disk.disk(), &dir(), LogId(5)).unwrap();
    let log = Arc::new(log);
    let collect = || {
        let mut cursor = log.runs()?;
        let mut runs = Vec::new();
        while let Some(run) = cursor.take()? {
            runs.push(run);
        }
        Ok::<_, ReadError>(runs)
    };
    assert_eq!(collect().unwrap(), extents);
    let path = dir().join(file_name(LogId(5)));
    let mut bytes = disk.bytes(&path);
    // The generation of the last extent: nothing but the checksum knows better.
    let at = (log.describe().size - 64) as usize;
    let footer = bytes[..at].windows(8).position(|bytes| bytes == b"BNDRFOOT").unwrap();
    bytes[footer + 32 + 1999 * 80 + 32] ^= 1;
    disk.overwrite(&path, bytes);
    assert!(matches!(collect(), Err(ReadError::Damaged(_))), "the footer changed");
}
