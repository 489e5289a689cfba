use super::*;
use crate::testing::MemDisk;
use crate::{
    DirectoryCommit, ExtentChange, ExtentUpdate, Generation, JournalMark, LedgerDirectory, Mark, Meta,
    ReadError, TierRecord,
};
use bindery_io::{BLOCK_SIZE_BYTES, DiskFile, OpenMode};
use bindery_types::tier::{ObjectId, ObjectRef, TierExtent, TierStamp};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn dir() -> PathBuf {
    PathBuf::from("/ledgers")
}
fn ledger(raw: i64) -> LedgerId {
    LedgerId::new(raw).unwrap()
}
fn entry(raw: i64) -> EntryId {
    EntryId::new(raw).unwrap()
}

type Model = BTreeMap<(LedgerId, EntryId), Vec<u8>>;

fn body(l: i64, e: i64, generation: u64) -> Vec<u8> {
    let payload = (0..e as usize * 3).map(|i| (i as u64 * 31 + generation) as u8);
    [l, e, e - 1].map(i64::to_be_bytes).concat().into_iter().chain(payload).collect()
}

/// One flush of `ids`, with ledger records as the engine commits them.
fn flush(directory: &mut LedgerDirectory, model: &mut Model, generation: u64, ids: &[(i64, i64)]) -> LogId {
    let mut writer = directory.begin_log(Generation(generation)).unwrap();
    for (l, e) in ids {
        let body = body(*l, *e, generation);
        writer.append(ledger(*l), entry(*e), &body, crate::codec::crc32c(&[&body])).unwrap();
        model.insert((ledger(*l), entry(*e)), body);
    }
    let logs = [writer.finish().unwrap()];
    let marks = [JournalMark { journal: 0, mark: Mark { file_id: 1, group: generation } }];
    let ledgers: std::collections::BTreeSet<i64> = ids.iter().map(|(l, _)| *l).collect();
    let records: Vec<LedgerRecord> = ledgers
        .into_iter()
        .map(|l| LedgerRecord {
            last_entry: model.keys().filter(|(id, _)| id.get() == l).map(|(_, e)| *e).max(),
            ..LedgerRecord::new(ledger(l))
        })
        .collect();
    let commit =
        DirectoryCommit { logs_added: &logs, marks: &marks, ledgers: &[&records], ..Default::default() };
    directory.commit(&commit).unwrap();
    logs[0].log_id
}

fn identity() -> Meta {
    let (bookie_id, instance_id) = ("bookie:1".into(), "cluster".into());
    Meta { bookie_id, instance_id, shards: 1, journals: 1, directories: 1, directory: 0, out: Vec::new() }
}

/// Two small logs: regular, irregular and single-entry runs, and a copy that is replaced.
fn prepare() -> (MemDisk, Model) {
    let disk = MemDisk::default();
    let mut directory = LedgerDirectory::open(&disk.disk(), &dir()).unwrap().directory;
    let meta = identity();
    directory.commit(&DirectoryCommit { meta: Some(&meta), ..Default::default() }).unwrap();
    let mut model = Model::new();
    flush(&mut directory, &mut model, 1, &[(1, 0), (1, 1), (2, 4), (2, 6), (2, 7), (2, 11), (2, 12), (7, 3)]);
    flush(&mut directory, &mut model, 2, &[(1, 1), (1, 2), (9, 5)]);
    (disk, model)
}

fn check(disk: &MemDisk) -> (DirectoryReport, Vec<Finding>) {
    let mut findings = Vec::new();
    let report = verify_directory(&disk.disk(), &dir(), &mut |event| {
        if let DirectoryEvent::Finding(finding) = event {
            findings.push(*finding);
        }
    });
    (report, findings)
}

/// The files of a directory with one change to one of them, without copies of the rest.
struct Changed {
    files: Arc<BTreeMap<PathBuf, Vec<u8>>>,
    path: PathBuf,
    change: Change,
    /// Bytes of `path` that were read.
    reads: Option<Arc<Mutex<Vec<bool>>>>,
}

#[derive(Clone, Copy)]
enum Change {
    None,
    Flip(usize),
    Cut(usize),
}

struct ChangedFile {
    files: Arc<BTreeMap<PathBuf, Vec<u8>>>,
    path: PathBuf,
    change: Change,
    reads: Option<Arc<Mutex<Vec<bool>>>>,
}

impl Disk for Changed {
    fn open(&self, path: &Path, _: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        if !self.files.contains_key(path) {
            return Err(ErrorKind::NotFound.into());
        }
        let is_it = path == self.path;
        let change = if is_it { self.change } else { Change::None };
        let reads = self.reads.clone().filter(|_| is_it);
        Ok(Arc::new(ChangedFile { files: self.files.clone(), path: path.to_owned(), change, reads }))
    }
    fn list(&self, _: &Path) -> io::Result<Vec<bindery_io::Entry>> {
        let entry = |(path, bytes): (&PathBuf, &Vec<u8>)| bindery_io::Entry {
            name: path.file_name().unwrap().to_string_lossy().into_owned(),
            is_dir: false,
            len: bytes.len() as u64,
        };
        Ok(self.files.iter().map(entry).collect())
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.files.contains_key(path))
    }
    fn create_dir_all(&self, _: &Path) -> io::Result<()> {
        panic!("a check changes nothing")
    }
    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        panic!("a check changes nothing")
    }
    fn remove(&self, _: &Path) -> io::Result<()> {
        panic!("a check changes nothing")
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        panic!("a check changes nothing")
    }
    fn lock(&self, _: &Path) -> io::Result<Box<dyn bindery_io::DiskLock>> {
        Err(ErrorKind::Unsupported.into())
    }
    fn space(&self, _: &Path) -> io::Result<bindery_io::Space> {
        Err(ErrorKind::Unsupported.into())
    }
}

impl DiskFile for ChangedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = self.len()? as usize;
        let bytes = self.files[&self.path][..len].get(offset as usize..).unwrap_or(&[]);
        let n = bytes.len().min(buf.len());
        buf[..n].copy_from_slice(&bytes[..n]);
        if let Change::Flip(bit) = self.change
            && let Some(at) = (bit / 8).checked_sub(offset as usize)
            && at < n
        {
            buf[at] ^= 1 << (bit % 8);
        }
        // The whole file is gone through in large pieces, to know what the medium has; who parses it reads pages.
        if let Some(reads) = self.reads.as_ref().filter(|_| buf.len() < 64 << 10) {
            reads.lock()[offset as usize..offset as usize + n].fill(true);
        }
        Ok(n)
    }
    fn len(&self) -> io::Result<u64> {
        let len = self.files[&self.path].len();
        Ok(if let Change::Cut(to) = self.change { to.min(len) } else { len } as u64)
    }
    fn is_direct(&self) -> bool {
        false
    }
    fn write_at(&self, _: &[IoSlice<'_>], _: u64) -> io::Result<usize> {
        panic!("a check changes nothing")
    }
    fn write_durable_at(&self, _: &[IoSlice<'_>], _: u64) -> io::Result<usize> {
        panic!("a check changes nothing")
    }
    fn sync(&self) -> io::Result<()> {
        panic!("a check changes nothing")
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        panic!("a check changes nothing")
    }
}

/// Everything that the exhaustive tests compare with.
struct Good {
    files: Arc<BTreeMap<PathBuf, Vec<u8>>>,
    model: Model,
    recovered: Recovered,
}

impl Good {
    fn new() -> Good {
        let (disk, model) = prepare();
        let path = |name: String| (dir().join(&name), disk.bytes(&dir().join(&name)));
        let files = Arc::new(disk.names().into_iter().map(path).collect());
        let recovered = check(&disk).0.recovered.unwrap();
        Good { files, model, recovered }
    }

    fn with(&self, path: &Path, change: Change) -> Arc<dyn Disk> {
        let (files, path) = (self.files.clone(), path.to_owned());
        Arc::new(Changed { files, path, change, reads: None })
    }

    /// IB7: storage gives for every entry its bytes or an error. Returns the number of errors.
    fn read_all(&self, disk: Arc<dyn Disk>, what: &dyn Fn() -> String) -> u64 {
        let disk: Arc<dyn Disk> = Arc::new(ReadOnlyDisk::new(disk));
        let view = match LedgerDirectory::open(&disk, &dir()) {
            Ok(opened) => opened.directory.view(),
            Err(_) => return self.model.len() as u64,
        };
        let mut errors = 0;
        for ((l, e), body) in &self.model {
            match view.read(*l, *e) {
                Ok(Some(read)) => assert_eq!(&read, body, "{}: entry {l}:{e}", what()),
                Ok(None) => panic!("{}: entry {l}:{e} was called absent", what()),
                Err(ReadError::Damaged(_)) => errors += 1,
                Err(error) => panic!("{}: {error}", what()),
            }
        }
        for (l, e) in [(1, 3), (2, 5), (2, 13), (7, 2), (8, 0)] {
            let read = view.read(ledger(l), entry(e));
            assert_eq!(read.ok().flatten(), None, "{}: {l}:{e} was never written", what());
        }
        errors
    }
}

fn damages(disk: &Arc<dyn Disk>) -> (DirectoryReport, Vec<Finding>) {
    let mut findings = Vec::new();
    let report = verify_directory(disk, &dir(), &mut |event| match event {
        DirectoryEvent::Finding(finding) if finding.severity == Severity::Damage => findings.push(*finding),
        _ => {}
    });
    (report, findings)
}

/// How many bits of each byte are flipped.
fn bits_of_a_byte() -> usize {
    if std::env::var_os("EVERY_BIT").is_some() { 8 } else { 2 }
}

/// Runs `each` for all numbers below `count`, on both cores.
fn for_all(count: usize, each: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let start = next.fetch_add(512, Ordering::Relaxed);
                    if start >= count {
                        break;
                    }
                    (start..count.min(start + 512)).for_each(&each);
                }
            });
        }
    });
}

/// IB7, IB8, IB13. Goal: damage to an entry log is found, named with the entries it takes, and never read as data or
/// as absence.
/// Method: flip two bits of every byte, with `EVERY_BIT=1` all, and cut at every length, of a log with regular, irregular and single-entry
/// runs; nothing in it is without meaning but the padding, and that is checked too.
#[test]
fn every_flipped_bit_and_every_cut_of_a_log_is_found_and_never_read() {
    let good = Good::new();
    let path = dir().join(file_name(LogId(0)));
    let len = good.files[&path].len();
    assert_eq!(len, 8192, "small enough to be exhaustive");
    let (extents, footer_end) = {
        let disk = good.with(&path, Change::None);
        let (log, extents) = EntryLog::open(&disk, &dir(), LogId(0)).unwrap();
        (extents, log.size() as usize - 64)
    };
    let counts: Mutex<BTreeMap<&str, u64>> = Mutex::default();
    let count = |what: &'static str| *counts.lock().entry(what).or_default() += 1;
    let bits = bits_of_a_byte();
    for_all(len * bits, |n| {
        // Which of its bits are flipped changes from byte to byte.
        let bit = n / bits * 8 + (n / bits + n % bits * 3) % 8;
        let disk = good.with(&path, Change::Flip(bit));
        let (_, findings) = damages(&disk);
        let at = (bit / 8) as u64;
        let finding = findings.first().unwrap_or_else(|| panic!("bit {bit}: nothing was found"));
        assert_eq!(finding.path, path, "bit {bit}");
        let errors = good.read_all(disk, &|| format!("bit {bit}"));
        let all_of = |ranges: &[EntryRange]| {
            let ids = ranges.iter().filter_map(|range| range.entries.map(|ids| (range.ledger, ids)));
            ids.map(|(_, (first, last))| last.get() - first.get() + 1).sum::<i64>()
        };
        match finding.kind {
            FindingKind::LogFrame => {
                assert_eq!(errors, good.model.len() as u64, "bit {bit}: the directory must not open");
                let is_named = !finding.affected.ranges.is_empty();
                assert!(is_named && finding.expected_found.is_some(), "bit {bit}: {finding:?}");
                count("frame");
            }
            FindingKind::LogPadding => {
                assert_eq!((errors, finding.offset), (0, Some(at)), "bit {bit}: nobody reads padding");
                assert!(
                    at as usize >= extents.last().unwrap().records_end() as usize
                        && (at as usize) < footer_end
                );
                count("padding");
            }
            FindingKind::LogIndex | FindingKind::LogEntry => {
                // The one entry hit, by offset; (1, 1) has a newer copy, so reads do not meet its damage.
                assert_eq!(findings.len(), 1, "bit {bit}: {findings:?}");
                let offset = finding.offset.unwrap();
                assert!(offset <= at && at < offset + 70, "bit {bit}: {finding:?}");
                assert!(
                    all_of(&finding.affected.ranges) >= 1 && finding.expected_found.is_some(),
                    "{finding:?}"
                );
                assert!(
                    errors as i64 <= all_of(&finding.affected.ranges),
                    "bit {bit}: {errors} cannot be read"
                );
                count(if finding.kind == FindingKind::LogEntry { "entry" } else { "index" });
                if errors > 0 {
                    count("unreadable");
                }
            }
            other => panic!("bit {bit}: {other:?}"),
        }
    });
    for_all(len, |cut| {
        let disk = good.with(&path, Change::Cut(cut));
        let (_, findings) = damages(&disk);
        let what = || format!("cut to {cut}");
        assert_eq!(findings.first().map(|f| f.kind), Some(FindingKind::LogFrame), "{}", what());
        assert_eq!(good.read_all(disk, &what), good.model.len() as u64, "{}: it must not open", what());
    });
    let counts = counts.into_inner();
    let total: u64 = ["frame", "padding", "index", "entry"].iter().map(|what| counts[what]).sum();
    let bits = bits as u64;
    assert_eq!(total, 8192 * bits, "{counts:?}");
    assert!(counts["index"] == 8 * 28 * bits && counts["unreadable"] > 250 * bits, "{counts:?}");
}

/// State table invariants 3 and 6, IB7, IB15. Goal: the table loads what was committed, or is refused, by start and
/// check alike; every byte that may be wrong without either is accounted for.
/// Method: note which bytes a check reads at all; flip bits of each of these, and cut at every length. By default bytes
/// whose first flip changes nothing get no further one, and the others one more; `EVERY_BIT=1` flips all.
#[test]
fn every_flipped_bit_and_every_cut_of_a_state_table_is_found_or_means_nothing() {
    let good = Good::new();
    let path = dir().join(STATE_FILE_NAME);
    let len = good.files[&path].len();
    let reads = Arc::new(Mutex::new(vec![false; len]));
    let (files, noted) = (good.files.clone(), Some(reads.clone()));
    let disk: Arc<dyn Disk> =
        Arc::new(Changed { files, path: path.clone(), change: Change::None, reads: noted });
    assert!(damages(&disk).1.is_empty());
    let read: Vec<usize> = reads.lock().iter().enumerate().filter(|(_, r)| **r).map(|(at, _)| at).collect();
    assert!(read.len() > 20_000 && read.len() < len / 10, "{} of {len} bytes are read", read.len());

    let steps = bits_of_a_byte();
    let is_harmful: Vec<AtomicBool> = (0..len).map(|_| AtomicBool::new(false)).collect();
    for_all(read.len(), |n| {
        let at = read[n];
        for step in 0..steps {
            let bit = at * 8 + (at + step) % 8;
            let disk = good.with(&path, Change::Flip(bit));
            let (report, findings) = damages(&disk);
            if findings.is_empty() {
                assert_eq!(report.recovered.as_ref(), Some(&good.recovered), "bit {bit}");
            } else {
                let [finding] = &findings[..] else { panic!("bit {bit}: {findings:?}") };
                assert_eq!((&finding.path, finding.kind), (&path, FindingKind::StateTable), "bit {bit}");
                assert_eq!(
                    (report.recovered, report.entries),
                    (None, 11),
                    "bit {bit}: the logs are checked still"
                );
            }
            if step == 0 {
                is_harmful[at].store(!findings.is_empty(), Ordering::Relaxed);
                let errors = good.read_all(disk, &|| format!("bit {bit}"));
                assert_eq!(errors > 0, !findings.is_empty(), "bit {bit}: start and check disagree");
                if findings.is_empty() && steps < 8 {
                    break;
                }
            }
            assert_eq!(
                is_harmful[at].load(Ordering::Relaxed),
                !findings.is_empty(),
                "bit {bit}: a byte is one or other"
            );
        }
    });
    // These may be wrong: a seal, while the other is right; the idle head; redb's own first 512 bytes, which the heads
    // replace; and the unused rest of each page.
    let page = |at: usize| at / BLOCK_SIZE_BYTES;
    let mut idle_heads = 0;
    for at in read {
        let harmful = is_harmful[at].load(Ordering::Relaxed);
        match (page(at), at % BLOCK_SIZE_BYTES) {
            (0, _) => assert!(harmful, "byte {at} of the header"),
            (1 | 2, inside) => assert!(!harmful && inside < 20, "byte {at} of a seal"),
            (3 | 4, 0) => idle_heads += usize::from(!harmful),
            (5, inside) if inside < 512 => assert!(!harmful, "byte {at} is in the heads"),
            (_, 0) => {}
            _ => {
                let before = is_harmful[at - 1].load(Ordering::Relaxed);
                assert!(before || !harmful, "byte {at}: a page is used from its beginning");
            }
        }
    }
    assert_eq!(idle_heads, 1, "one of the two heads counts");
    let used = is_harmful.iter().filter(|harmful| harmful.load(Ordering::Relaxed)).count();
    assert!(used > 4096 + 532 + 1000, "{used} bytes mean something");

    for_all(len, |cut| {
        let disk: Arc<dyn Disk> = Arc::new(ReadOnlyDisk::new(good.with(&path, Change::Cut(cut))));
        assert!(StateTable::open(&disk, &dir()).is_err(), "cut to {cut}");
        if cut % 64 == 0 {
            let (report, findings) = damages(&disk);
            assert!(report.recovered.is_none() && findings.len() == 1, "cut to {cut}: {findings:?}");
            assert_eq!(findings[0].kind, FindingKind::StateTable);
            assert!(good.read_all(disk, &|| format!("cut to {cut}")) > 0, "cut to {cut}");
        }
    });
}

#[test]
fn two_bad_seals_are_damage() {
    let (disk, _) = prepare();
    let path = dir().join(STATE_FILE_NAME);
    let mut bytes = disk.bytes(&path);
    bytes[4100] ^= 1;
    bytes[8200] ^= 1;
    disk.put(&path, bytes);
    let (_, findings) = check(&disk);
    assert!(findings[0].expected_found.as_ref().unwrap().1.contains("both seals"), "{findings:?}");
}

fn only(disk: &MemDisk) -> Finding {
    let (_, findings) = check(disk);
    assert_eq!(findings.len(), 1, "{findings:?}");
    findings.into_iter().next().unwrap()
}

/// IB15, IB18: what is missing, left behind or exchanged is told apart, and nothing changes on the disk.
#[test]
fn files_that_are_missing_or_too_many_are_named() {
    let log = |id| dir().join(file_name(LogId(id)));
    let range = |l, first, last| EntryRange { ledger: ledger(l), entries: Some((entry(first), entry(last))) };

    let (disk, _) = prepare();
    assert!(check(&disk).1.is_empty());
    let bytes = disk.bytes(&log(1));
    disk.disk().remove(&log(1)).unwrap();
    let finding = only(&disk);
    assert_eq!((finding.severity, finding.kind), (Severity::Damage, FindingKind::LogMissing));
    assert_eq!(finding.affected.ranges, [range(1, 2, 2), range(9, 0, 5)], "ledgers that end in it");
    assert!(finding.affected.words.unwrap().contains("(3 entries)"));

    // The same file under a name that is not listed; and another log under its name.
    disk.put(&log(1), bytes.clone());
    disk.put(&log(5), bytes.clone());
    let finding = only(&disk);
    assert_eq!((finding.severity, finding.kind), (Severity::Leftover, FindingKind::Orphan));
    disk.disk().remove(&log(5)).unwrap();
    disk.put(&log(0), bytes);
    let finding = only(&disk);
    assert_eq!((finding.severity, finding.kind), (Severity::Damage, FindingKind::LogFrame));
    assert!(finding.expected_found.unwrap().1.contains("the file holds log 0000000000000001"));
    assert_eq!(finding.affected.ranges, [range(2, 0, 12), range(7, 0, 3)], "not those of the other log");

    let (disk, _) = prepare();
    disk.put(&dir().join("state.redb.new"), vec![0; 10]);
    disk.put(&dir().join("notes.txt"), vec![0; 10]);
    let kinds: Vec<_> = check(&disk).1.into_iter().map(|f| (f.severity, f.kind)).collect();
    assert_eq!(
        kinds,
        [(Severity::Note, FindingKind::UnknownFile), (Severity::Leftover, FindingKind::Interrupted)]
    );

    let (disk, _) = prepare();
    disk.disk().remove(&dir().join(STATE_FILE_NAME)).unwrap();
    let changes = disk.changes();
    let (report, findings) = check(&disk);
    assert_eq!(findings[0].kind, FindingKind::StateTableMissing);
    assert_eq!((findings.len(), report.logs, report.entries), (1, 2, 11), "the logs are checked still");
    assert_eq!(disk.changes(), changes);
}

/// A ledger that the table does not know would be denied (IB7).
#[test]
fn logs_and_table_that_contradict_each_other_are_damage() {
    let disk = MemDisk::default();
    let mut directory = LedgerDirectory::open(&disk.disk(), &dir()).unwrap().directory;
    let mut writer = directory.begin_log(Generation(1)).unwrap();
    let body = body(4, 1, 0);
    writer.append(ledger(4), entry(1), &body, crate::codec::crc32c(&[&body])).unwrap();
    let logs = [writer.finish().unwrap()];
    directory.commit(&DirectoryCommit { logs_added: &logs, ..Default::default() }).unwrap();
    assert_eq!(only(&disk).kind, FindingKind::Contradiction);
    let record = LedgerRecord { last_entry: Some(entry(0)), is_limbo: true, ..LedgerRecord::new(ledger(4)) };
    directory.commit(&DirectoryCommit { ledgers: &[&[record]], ..Default::default() }).unwrap();
    let kinds: Vec<_> = check(&disk).1.into_iter().map(|f| f.kind).collect();
    assert_eq!(kinds, [FindingKind::Contradiction, FindingKind::Limbo]);
}

/// Many damages in one file are listed up to a limit and counted.
#[test]
fn entries_of_a_removed_ledger_are_no_contradiction() {
    let (disk, _) = prepare();
    let mut directory = LedgerDirectory::open(&disk.disk(), &dir()).unwrap().directory;
    // Ledger 9 has an entry of generation 2 and no last entry any more.
    let gone = LedgerRecord { life: 1, hidden_below: Generation(3), ..LedgerRecord::new(ledger(9)) };
    directory
        .commit(&DirectoryCommit { ledgers: &[std::slice::from_ref(&gone)], ..Default::default() })
        .unwrap();
    assert_eq!(check(&disk).1.len(), 0);
    let too_low = LedgerRecord { hidden_below: Generation(2), ..gone };
    directory.commit(&DirectoryCommit { ledgers: &[&[too_low]], ..Default::default() }).unwrap();
    assert_eq!(check(&disk).1.len(), 1, "what is not hidden counts");
}

#[test]
fn findings_are_bounded_and_counted() {
    let disk = MemDisk::default();
    let mut directory = LedgerDirectory::open(&disk.disk(), &dir()).unwrap().directory;
    let ids: Vec<(i64, i64)> = (0..300).map(|e| (3, e)).collect();
    let id = flush(&mut directory, &mut Model::new(), 1, &ids);
    let path = dir().join(file_name(id));
    let mut bytes = disk.bytes(&path);
    let extent = EntryLog::open(&disk.disk(), &dir(), id).unwrap().1[0];
    bytes[4096 + 8000..extent.records_offset as usize].fill(0xEE);
    disk.put(&path, bytes);
    let (report, findings) = check(&disk);
    let further: u64 = 300 - report.entries - FINDINGS_MAX;
    assert_eq!(findings.len() as u64, FINDINGS_MAX + 1);
    assert!(findings[100].what.contains(&format!("{further} further damages")), "{:?}", findings[100]);
}

/// A register without extents below it: what is trimmed could not be found.
#[test]
fn entries_in_object_storage_without_an_extent_are_damage() {
    let disk = MemDisk::default();
    let mut directory = LedgerDirectory::open(&disk.disk(), &dir()).unwrap().directory;
    let object = ObjectRef {
        id: ObjectId::new(1, [0; 10]),
        length_bytes: 10,
        footer_offset: 1,
        footer_crc: 0,
        etag_crc: 0,
    };
    let stamp = TierStamp { epoch: 0, update: 1 };
    let extents: Vec<TierExtent> = (0..1500)
        .filter(|n| *n != 7 && *n != 1400)
        .map(|n| TierExtent { first: entry(2 * n), last: entry(2 * n + 1), object })
        .collect();
    let change =
        ExtentChange { ledger: ledger(3), is_cleared: false, updates: vec![ExtentUpdate { stamp, extents }] };
    let tier = TierRecord { lre: entry(3001), trimmed_below: None, stamp, created_ms: None };
    let record = LedgerRecord { tier: Some(tier), ..LedgerRecord::new(ledger(3)) };
    let meta = identity();
    let mut commit = |ledgers: &[LedgerRecord], extents: &[ExtentChange]| {
        let meta = Some(&meta);
        directory
            .commit(&DirectoryCommit { ledgers: &[ledgers], extents, meta, ..Default::default() })
            .unwrap();
    };
    commit(std::slice::from_ref(&record), &[change]);
    let finding = only(&disk);
    let ranges: Vec<_> = finding
        .affected
        .ranges
        .iter()
        .map(|range| range.entries.map(|(first, last)| (first.get(), last.get())))
        .collect();
    assert_eq!(finding.kind, FindingKind::TierExtents);
    assert_eq!(ranges, [Some((14, 15)), Some((2800, 2801)), Some((3000, 3001))]);
    let fills = [(14, 15), (2800, 2801), (3000, 3001)].map(|(first, last)| ExtentUpdate {
        stamp,
        extents: vec![TierExtent { first: entry(first), last: entry(last), object }],
    });
    commit(&[], &[ExtentChange { ledger: ledger(3), is_cleared: false, updates: fills.to_vec() }]);
    assert_eq!(check(&disk).1.len(), 0);
    // Those of another life do not count.
    let stamp = TierStamp { epoch: 2, update: 1 };
    let later = LedgerRecord { tier: Some(TierRecord { stamp, ..tier }), ..record };
    commit(&[later], &[]);
    assert_eq!(only(&disk).affected.ranges.len(), 1);
}
