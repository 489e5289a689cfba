use super::*;
use crate::testing::{MemDisk, numbers};
use crate::{DirectoryCommit, DirectoryError, Generation, LedgerDirectory};
use bindery_io::{DiskFile, DiskLayer, FileLayer};
use bindery_types::tier::{ObjectId, ObjectRef, TierExtent, TierStamp};
use bindery_types::{EntryId, MasterKey};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

fn dir() -> PathBuf {
    PathBuf::from("/ledgers")
}
fn file() -> PathBuf {
    dir().join(STATE_FILE_NAME)
}
fn ledger(raw: i64) -> LedgerId {
    LedgerId::new(raw).unwrap()
}
fn mark(journal: u32, file_id: u64, group: u64) -> JournalMark {
    JournalMark { journal, mark: Mark { file_id, group } }
}

fn record(id: i64, variant: u64) -> LedgerRecord {
    LedgerRecord {
        ledger: ledger(id),
        master_key: (variant.is_multiple_of(2)).then(|| MasterKey::new([variant as u8; 20])),
        is_fenced: variant.is_multiple_of(3),
        is_limbo: variant.is_multiple_of(5),
        explicit_lac: (variant.is_multiple_of(4)).then(|| vec![variant as u8; (variant % 60) as usize]),
        last_add_confirmed: EntryId::new(variant as i64 % 7 - 1),
        last_entry: EntryId::new(variant as i64 % 11 - 1),
        life: (variant % 7) as u32 / 2,
        hidden_below: Generation(if variant % 7 / 2 > 0 { variant } else { 0 }),
        tier: (variant % 7 > 4).then(|| tier_record(variant)),
    }
}

fn entry(id: u64) -> EntryId {
    EntryId::new(id as i64).unwrap()
}

fn tier_record(variant: u64) -> TierRecord {
    TierRecord {
        lre: entry(variant),
        trimmed_below: (variant % 2 == 1).then(|| entry(variant / 2)),
        stamp: TierStamp { epoch: variant as u32 % 5, update: variant },
        created_ms: variant.is_multiple_of(3).then_some(variant as i64),
    }
}

fn log(id: u64, marks: Vec<JournalMark>) -> LogRecord {
    LogRecord { log_id: LogId(id), generation: Generation(id * 2), size: id * 4096, entries: id, marks }
}

fn meta(name: &str) -> Meta {
    let (bookie_id, instance_id) = (name.to_owned(), format!("{name} cluster"));
    Meta { bookie_id, instance_id, shards: 4, journals: 2, directories: 1, directory: 0, out: Vec::new() }
}

/// The state after `steps` checkpoints, and the checkpoints themselves as a function of the step.
fn step(table: &mut StateTable, model: &mut Recovered, n: u64) -> Result<(), StateError> {
    let marks = [mark((n % 3) as u32, n / 4, n)];
    let added = [log(n, marks.to_vec())];
    let removed: Vec<LogId> =
        model.logs.first().filter(|_| n % 3 == 2).map(|l| l.log_id).into_iter().collect();
    let ledgers: Vec<LedgerRecord> = (0..n % 40).map(|i| record((i * i * 7 % 90) as i64, n + i)).collect();
    // Some that are there, some that are not, one that was just set.
    let forgotten: Vec<LedgerId> = (0..n % 4).map(|i| ledger((i * 13 + n) as i64 % 90)).collect();
    let identity = (n % 5 == 1).then(|| meta(&format!("bookie {n}")));
    let committed = table.commit(&Checkpoint {
        marks: &marks,
        logs_added: &added,
        logs_removed: &removed,
        ledgers: &[&ledgers],
        ledgers_forgotten: &forgotten,
        fences_forgotten: &forgotten,
        meta: identity.as_ref(),
        next_log_id: None,
        ..Checkpoint::default()
    });
    model.marks.retain(|m| m.journal != marks[0].journal);
    model.marks.extend(marks);
    model.marks.sort();
    model.logs.extend(added);
    model.logs.retain(|l| !removed.contains(&l.log_id));
    for record in ledgers {
        model.ledgers.retain(|r| r.ledger != record.ledger);
        model.ledgers.push(record);
    }
    model.ledgers.sort_by_key(|r| r.ledger);
    forgotten.iter().for_each(|ledger| model.fences_forgotten.insert(*ledger));
    model.ledgers.retain(|r| !forgotten.contains(&r.ledger));
    model.meta = identity.or(model.meta.take());
    model.next_log_id = n + 1;
    committed
}

#[test]
fn a_reopened_table_holds_what_was_committed() {
    let disk = MemDisk::default();
    let (mut table, fresh) = StateTable::create(&disk.disk(), &dir()).unwrap();
    assert_eq!(fresh, Recovered::default());
    let mut model = Recovered::default();
    for n in 0..40 {
        step(&mut table, &mut model, n).unwrap();
        assert_eq!(table.load().unwrap(), model);
        if n % 4 == 0 {
            drop(table);
            let recovered;
            (table, recovered) = StateTable::open(&disk.disk(), &dir()).unwrap();
            assert_eq!(recovered, model);
        }
    }
    assert_eq!(disk.names(), [STATE_FILE_NAME]);
}

proptest! {
    #[test]
    fn values_round_trip_and_reject_every_flipped_bit(id in 0..i64::MAX, variant in 0..1000u64, flip in any::<prop::sample::Index>()) {
        let expected = record(id, variant);
        let mut value = seal(TableId::Ledgers, id as u64, |p| expected.put(p));
        let take = |value: &[u8]| unseal(TableId::Ledgers, id as u64, value, |t| LedgerRecord::take(ledger(id), t));
        prop_assert_eq!(take(&value), Ok(expected));
        prop_assert!(unseal(TableId::Logs, id as u64, &value, |_| Some(())).is_err(), "another table's value");
        let bit = flip.index(value.len() * 8);
        value[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(take(&value), Err(BadValue::Damaged("the checksum of a value does not match")));
        for len in 0..value.len() {
            prop_assert!(take(&value[..len]).is_err());
        }
    }
}

#[test]
#[should_panic(expected = "the mark of journal 1 goes back from file 3 group 9 to file 2 group 50")]
fn a_mark_never_goes_back() {
    let disk = MemDisk::default();
    let (mut table, _) = StateTable::create(&disk.disk(), &dir()).unwrap();
    table.commit(&Checkpoint { marks: &[mark(1, 3, 9)], ..Checkpoint::default() }).unwrap();
    table.commit(&Checkpoint { marks: &[mark(0, 2, 50), mark(1, 3, 9)], ..Checkpoint::default() }).unwrap();
    let _ = table.commit(&Checkpoint { marks: &[mark(1, 2, 50)], ..Checkpoint::default() });
}

/// A disk whose files can be refused blocks.
struct Full {
    beneath: Arc<dyn Disk>,
    is_full: Arc<AtomicBool>,
}
struct FullFile {
    beneath: Arc<dyn DiskFile>,
    is_full: Arc<AtomicBool>,
}
impl DiskLayer for Full {
    fn beneath(&self) -> &dyn Disk {
        &*self.beneath
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let beneath = self.beneath.open(path, mode)?;
        Ok(Arc::new(FullFile { beneath, is_full: self.is_full.clone() }))
    }
}
impl FileLayer for FullFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.beneath
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        if self.is_full.load(Relaxed) && len > self.beneath.len()? {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.beneath.allocate(len)
    }
}

/// Goal: a table that lacked space takes commits again when there is some; one that cannot be opened again has failed
/// for good, so that its directory is passed over instead of waited for (invariant 4).
#[test]
fn a_full_table_is_opened_again_or_has_failed() {
    for is_damaged in [false, true] {
        let (memory, is_full) = (MemDisk::default(), Arc::new(AtomicBool::new(false)));
        let disk: Arc<dyn Disk> = Arc::new(Full { beneath: memory.disk(), is_full: is_full.clone() });
        let (mut table, _) = StateTable::create(&disk, &dir()).unwrap();
        let ledgers: Vec<LedgerRecord> = (0..30_000).map(|id| record(id, 4)).collect();
        let growing = Checkpoint { ledgers: &[&ledgers], ..Checkpoint::default() };
        let before = table.load().unwrap();
        is_full.store(true, Relaxed);
        table.commit(&growing).unwrap_err();
        assert!(table.lacks_space(), "{:?}", table.failure());
        if is_damaged {
            let mut bytes = memory.bytes(&file());
            bytes[0] ^= 1;
            memory.overwrite(&file(), bytes);
        }
        is_full.store(false, Relaxed);
        let again = table.reopen(&disk, &dir());
        assert_eq!(again.is_err(), is_damaged, "{again:?}");
        assert!(!table.lacks_space());
        assert_eq!(table.commit(&growing).is_err(), is_damaged);
        if !is_damaged {
            assert_eq!(table.load().unwrap().ledgers, ledgers);
        } else {
            assert!(table.failure().unwrap().contains("open it again"), "{:?}", table.failure());
        }
        assert_eq!(before.ledgers, []);
    }
}

/// Goal: a checkpoint is in force entirely or not at all, an acknowledged one always (state table invariant 1), and
/// after a failure nothing touches the file (invariant 4).
/// Method: fail each change of a commit in turn; then lose any subset of unsynced sectors, and reopen. `CRASHES`
/// sets the number of subsets per change.
#[test]
fn a_failed_or_torn_commit_is_all_or_nothing() {
    let prepare = || {
        let disk = MemDisk::default();
        let (mut table, _) = StateTable::create(&disk.disk(), &dir()).unwrap();
        let mut model = Recovered::default();
        for n in 0..30 {
            step(&mut table, &mut model, n).unwrap();
        }
        (disk, table, model)
    };
    let (disk, mut table, mut model) = prepare();
    let before = disk.changes();
    step(&mut table, &mut model, 30).unwrap();
    let changes = disk.changes() - before;
    assert!(changes > 5, "a commit is more than {changes} changes");
    let (mut old, mut new) = (0, 0);
    let crashes = std::env::var("CRASHES").map_or(40, |crashes| crashes.parse().unwrap());
    for failing in 0..=changes {
        let (disk, mut table, before) = prepare();
        let mut after = before.clone();
        disk.fail_after(failing);
        let committed = step(&mut table, &mut after, 30);
        assert_eq!(committed.is_ok(), failing == changes, "{committed:?}");
        if let Err(error) = committed {
            assert!(error.to_string().contains("injected failure 1"), "{error}");
            let again = table.commit(&Checkpoint::default()).unwrap_err();
            assert!(
                matches!(&again, StateError::Latched { reason, .. } if reason.contains("injected failure 1"))
            );
            assert!(table.failure().is_some());
        }
        let images: Vec<MemDisk> = (0..crashes)
            .map(|seed| {
                disk.after_crash({
                    let mut next = numbers(failing * 1000 + seed);
                    move || next() % 4
                })
            })
            .collect();
        drop(table);
        if failing < changes {
            assert_eq!(disk.changes_after_failure(), 1, "change {failing}: closing must not write either");
        }
        for (seed, image) in images.iter().enumerate() {
            // Every fourth time the recovery crashes as well.
            let mut next = numbers(seed as u64);
            let again = seed.is_multiple_of(4).then(|| {
                image.fail_after(u64::from(next() % 8));
                let _ = StateTable::open(&image.disk(), &dir());
                image.after_crash(move || next() % 4)
            });
            let image = again.as_ref().unwrap_or(image);
            let (mut table, recovered) = StateTable::open(&image.disk(), &dir())
                .unwrap_or_else(|e| panic!("change {failing}, seed {seed}: {e}"));
            if recovered == after {
                new += 1;
            } else {
                assert!(failing < changes, "an acknowledged commit is gone, seed {seed}");
                assert_eq!(recovered, before, "change {failing}, seed {seed}");
                old += 1;
            }
            let mut next = recovered;
            step(&mut table, &mut next, 31).unwrap();
            assert_eq!(table.load().unwrap(), next);
        }
    }
    assert!(old > 40 && new > 40, "both outcomes occur: {old} old, {new} new");
}

#[test]
fn a_crash_while_a_table_is_made_leaves_none_or_a_whole_one() {
    let disk = MemDisk::default();
    drop(StateTable::create(&disk.disk(), &dir()).unwrap());
    for failing in 0..disk.changes() {
        let disk = MemDisk::default();
        disk.fail_after(failing);
        let failed = StateTable::create(&disk.disk(), &dir()).is_err();
        let mut next = numbers(failing);
        let left = disk.after_crash(move || next() % 4);
        let recovered = if StateTable::exists(&left.disk(), &dir()).unwrap() {
            StateTable::open(&left.disk(), &dir()).unwrap().1
        } else {
            assert!(failed);
            StateTable::create(&left.disk(), &dir()).unwrap().1
        };
        assert_eq!(recovered, Recovered::default());
        assert_eq!(left.names(), [STATE_FILE_NAME]);
    }
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let disk = MemDisk::default();
    drop(StateTable::create(&disk.disk(), &dir()).unwrap());
    let mut bytes = disk.bytes(&file());
    bytes[8] = 7;
    let crc = crate::codec::crc32c(&[&bytes[..4092]]);
    bytes[4092..4096].copy_from_slice(&crc.to_le_bytes());
    disk.put(&file(), bytes.clone());
    let changes = disk.changes();
    let error = StateTable::open(&disk.disk(), &dir()).err().unwrap();
    assert_eq!(
        error.to_string(),
        "/ledgers/state.redb was written by a newer format 7; this build reads up to 1; use a newer bindery"
    );
    assert_eq!((disk.bytes(&file()), disk.changes()), (bytes, changes));
}

/// State table invariants 3 and 5: whatever is damaged, the table says so or loads exactly what was committed.
/// `STRIDE=1` flips a bit in every byte.
#[test]
fn damage_is_an_error_that_names_the_file() {
    let disk = MemDisk::default();
    let (mut table, _) = StateTable::create(&disk.disk(), &dir()).unwrap();
    let mut model = Recovered::default();
    for n in 0..40 {
        step(&mut table, &mut model, n).unwrap();
    }
    drop(table);
    let good = disk.bytes(&file());
    let mut refused = 0;
    let mut check = |bytes: Vec<u8>, what: String| {
        let disk = MemDisk::default();
        disk.put(&file(), bytes);
        match StateTable::open(&disk.disk(), &dir()) {
            Ok((_, recovered)) => assert_eq!(recovered, model, "{what}"),
            Err(error) => {
                assert!(error.to_string().contains("/ledgers/state.redb"), "{what}: {error}");
                refused += 1;
            }
        }
    };
    for len in [
        0,
        1,
        4095,
        4096,
        12_288,
        12_289,
        16_384,
        20_479,
        20_480,
        20_481,
        good.len() / 2,
        good.len() - 4096,
        good.len() - 1,
    ] {
        check(good[..len].to_vec(), format!("cut to {len}"));
    }
    let mut next = numbers(1);
    let stride = std::env::var("STRIDE").map_or(31, |stride| stride.parse().unwrap());
    for bit in (0..12 * 8).chain(12_288 * 8..12_820 * 8).chain(16_384 * 8..16_916 * 8) {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        check(bytes, format!("bit {bit}"));
    }
    for at in (0..good.len()).step_by(stride) {
        if good[at..].iter().take(8).all(|b| *b == 0) {
            continue;
        }
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (next() % 8);
        check(bytes, format!("byte {at}"));
    }
    assert!(refused > 50, "{refused} damages were noticed");
}

/// State table invariant 6: redb falls back to the commit before when the last one does not verify.
#[test]
fn an_acknowledged_commit_that_rots_is_not_silently_undone() {
    let disk = MemDisk::default();
    let (mut table, _) = StateTable::create(&disk.disk(), &dir()).unwrap();
    let mut model = Recovered::default();
    for n in 0..10 {
        step(&mut table, &mut model, n).unwrap();
    }
    drop(table);
    let good = disk.bytes(&file());
    // The two slots of redb's header; damage to the newer one leaves the one of the commit before.
    let mut undone = 0;
    for slot in [12_288, 16_384] {
        let mut bytes = good.clone();
        bytes[slot + 100] ^= 1;
        disk.put(&file(), bytes);
        match StateTable::open(&disk.disk(), &dir()) {
            Ok((_, recovered)) => assert_eq!(recovered, model, "the idle slot"),
            Err(error) => {
                assert!(
                    error.to_string().contains("commit 11 was acknowledged, but the tables are at commit 10")
                );
                undone += 1;
            }
        }
    }
    assert_eq!(undone, 1);
}

#[test]
fn closing_a_table_writes_nothing() {
    let disk = MemDisk::default();
    let (mut table, _) = StateTable::create(&disk.disk(), &dir()).unwrap();
    table.commit(&Checkpoint { marks: &[mark(0, 1, 1)], ..Checkpoint::default() }).unwrap();
    let (bytes, changes) = (disk.bytes(&file()), disk.changes());
    drop(table);
    assert_eq!((disk.bytes(&file()), disk.changes()), (bytes, changes));
}

fn object(n: u64) -> ObjectRef {
    let id = ObjectId::new(n, [7; 10]);
    ObjectRef { id, length_bytes: n + 100, footer_offset: n, footer_crc: 5, etag_crc: 0 }
}

fn update(n: u64, ranges: &[(u64, u64)]) -> ExtentUpdate {
    let extents = ranges.iter().map(|(first, last)| TierExtent {
        first: entry(*first),
        last: entry(*last),
        object: object(n),
    });
    ExtentUpdate { stamp: TierStamp { epoch: 1, update: n }, extents: extents.collect() }
}

/// All rows of a ledger, in pages of two.
fn rows(view: &TierView, of: LedgerId) -> Vec<ExtentRow> {
    let (mut all, mut from) = (Vec::new(), Some(EntryId::FIRST));
    while let Some(begin) = from {
        let page = view.rows(of, begin, 2).unwrap();
        from = page.last().and_then(|row| EntryId::new(row.extent.last.get().checked_add(1)?));
        if page.is_empty() {
            break;
        }
        all.extend(page);
    }
    all
}

#[test]
fn a_table_without_extents_has_none_and_a_removal_makes_none() {
    let disk = MemDisk::default();
    let (mut table, _) = StateTable::create(&disk.disk(), &dir()).unwrap();
    let gone = ExtentChange { ledger: ledger(3), is_cleared: true, updates: Vec::new() };
    let commit = |table: &mut StateTable, extents: &[ExtentChange], forgotten: &[LedgerId]| {
        table.commit(&Checkpoint { extents, ledgers_forgotten: forgotten, ..Checkpoint::default() }).unwrap();
    };
    commit(&mut table, std::slice::from_ref(&gone), &[ledger(3)]);
    assert!(table.extents().unwrap().is_none(), "an older build sees the table that it made");
    assert_eq!(table.tier().find(ledger(3), entry(0)).unwrap(), None);
    assert_eq!(rows(&table.tier(), ledger(3)), []);
    let came =
        |of| ExtentChange { ledger: of, is_cleared: false, updates: vec![update(1, &[(0, 5), (6, 6)])] };
    commit(&mut table, &[came(ledger(3)), came(ledger(4))], &[]);
    assert_eq!(table.load().unwrap().extents, 4);
    commit(&mut table, &[], &[ledger(3)]);
    assert_eq!(rows(&table.tier(), ledger(3)), [], "extents are forgotten with their ledger");
    assert_eq!(rows(&table.tier(), ledger(4)).len(), 2);
    let cleared = ExtentChange { is_cleared: true, ..came(ledger(4)) };
    commit(&mut table, &[ExtentChange { updates: vec![update(2, &[(0, 0)])], ..cleared }], &[]);
    assert_eq!(rows(&table.tier(), ledger(4)).len(), 1);
    assert_eq!(table.load().unwrap().extents, 1);
}

type Rows<'a> = Table<'a, (u64, u64), &'static [u8]>;

/// Invariant 3 of the table, for rows of extents: what redb lost, kept or exchanged is found out.
#[test]
fn a_lost_row_of_extents_is_damage() {
    let disk = MemDisk::default();
    let (mut table, _) = StateTable::create(&disk.disk(), &dir()).unwrap();
    let change =
        ExtentChange { ledger: ledger(3), is_cleared: false, updates: vec![update(1, &[(0, 5), (6, 9)])] };
    table.commit(&Checkpoint { extents: &[change], ..Checkpoint::default() }).unwrap();
    let spoil = |act: &dyn Fn(&mut Rows<'_>)| {
        let mut transaction = table.database.begin_write().unwrap();
        transaction.set_durability(Durability::Immediate).unwrap();
        act(&mut transaction.open_table(EXTENTS).unwrap());
        transaction.commit().unwrap();
        table.load().unwrap_err().to_string()
    };
    let error = spoil(&|rows| drop(rows.remove((3, 6)).unwrap()));
    assert!(error.contains("not the ones that were committed"), "{error}");
    let error = spoil(&|rows| {
        let value = rows.get((3, 0)).unwrap().unwrap().value().to_vec();
        rows.insert((3, 6), value.as_slice()).unwrap();
    });
    assert!(error.contains("table extents, key 3: the checksum"), "{error}");
    let found = table.tier().find(ledger(3), entry(7));
    assert!(matches!(found, Err(StateError::Damaged(_))), "{found:?}");
}

proptest! {
    /// Invariant 1 of the table of extents, against one number for each entry; commits, readers and restarts agree.
    #[test]
    fn extents_are_what_the_last_update_of_each_entry_said(
        steps in prop::collection::vec(
            (0i64..3, prop::bool::weighted(0.1), prop::collection::vec((0u64..30, 1u64..8), 1..4)),
            1..20,
        ),
    ) {
        let disk = MemDisk::default();
        let (mut table, _) = StateTable::create(&disk.disk(), &dir()).unwrap();
        let mut model: BTreeMap<(i64, u64), u64> = BTreeMap::new();
        for (n, (of, is_cleared, chains)) in (1u64..).zip(&steps) {
            if *is_cleared {
                model.retain(|(ledger, _), _| ledger != of);
            }
            let mut updates = Vec::new();
            for (place, (first, length)) in (0u64..).zip(chains) {
                // Two extents that follow each other.
                let (middle, last) = (first + length, first + 2 * length);
                let number = n * 10 + place;
                updates.push(update(number, &[(*first, middle), (middle + 1, last)]));
                model.extend((*first..=last).map(|entry| ((*of, entry), number)));
            }
            let change = ExtentChange { ledger: ledger(*of), is_cleared: *is_cleared, updates };
            table.commit(&Checkpoint { extents: &[change], ..Checkpoint::default() }).unwrap();
        }
        for is_reopened in [false, true] {
            if is_reopened {
                drop(table);
                (table, _) = StateTable::open(&disk.disk(), &dir()).unwrap();
            }
            let view = table.tier();
            let mut count = 0;
            for of in 0..3 {
                for id in 0..60 {
                    let found = view.find(ledger(of), entry(id)).unwrap();
                    let expected = model.get(&(of, id)).copied();
                    prop_assert_eq!(found.map(|row| row.stamp.update), expected);
                    prop_assert_eq!(found.map(|row| row.extent.object), expected.map(object));
                }
                let rows = rows(&view, ledger(of));
                prop_assert!(rows.is_sorted_by(|a, b| a.extent.last < b.extent.first), "{:?}", rows);
                count += rows.len() as u64;
            }
            prop_assert_eq!(table.load().unwrap().extents, count);
        }
    }
}

/// A disk whose reads can be made to fail.
struct Unreadable {
    beneath: Arc<dyn Disk>,
    fails: Arc<AtomicBool>,
}
struct UnreadableFile {
    beneath: Arc<dyn DiskFile>,
    fails: Arc<AtomicBool>,
}
impl DiskLayer for Unreadable {
    fn beneath(&self) -> &dyn Disk {
        &*self.beneath
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let beneath = self.beneath.open(path, mode)?;
        Ok(Arc::new(UnreadableFile { beneath, fails: self.fails.clone() }))
    }
}
impl FileLayer for UnreadableFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.beneath
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.fails.load(Relaxed) {
            return Err(io::Error::other("a bad sector"));
        }
        self.beneath.read_at(buf, offset)
    }
}

/// Rows of one ledger that redb's cache does not hold together.
const MANY_ROWS: u64 = 60_000;

fn with_many_rows(disk: &Arc<dyn Disk>) -> LedgerDirectory {
    let mut directory = LedgerDirectory::open(disk, &dir()).unwrap().directory;
    let ranges: Vec<_> = (0..MANY_ROWS).map(|n| (n, n)).collect();
    let extents = [ExtentChange { ledger: ledger(3), is_cleared: false, updates: vec![update(1, &ranges)] }];
    directory.commit(&DirectoryCommit { extents: &extents, ..DirectoryCommit::default() }).unwrap();
    directory
}

/// Looks rows all over the table up; gives the number of those that cannot be read.
fn unreadable(directory: &LedgerDirectory) -> usize {
    let view = directory.tier();
    let found = (0..MANY_ROWS).step_by(40).map(|n| view.find(ledger(3), entry(n)));
    found.filter(|row| row.as_ref().map(|row| row.unwrap().extent.first).is_err()).count()
}

fn grow(directory: &mut LedgerDirectory) -> Result<(), DirectoryError> {
    let large = |id| LedgerRecord { explicit_lac: Some(vec![1; 8000]), ..record(id, 4) };
    let ledgers: Vec<LedgerRecord> = (0..3000).map(large).collect();
    directory.commit(&DirectoryCommit { ledgers: &[&ledgers], ..DirectoryCommit::default() })
}

/// Goal: extents are read while their directory lacks space, and after it failed for good (IB7); nothing is written for that.
#[test]
fn extents_are_read_after_a_commit_that_failed() {
    for is_full in [true, false] {
        let (memory, full) = (MemDisk::default(), Arc::new(AtomicBool::new(false)));
        let disk: Arc<dyn Disk> = Arc::new(Full { beneath: memory.disk(), is_full: full.clone() });
        let mut directory = with_many_rows(&disk);
        match is_full {
            true => full.store(true, Relaxed),
            false => memory.fail_after(0),
        }
        for _ in 0..2 {
            grow(&mut directory).unwrap_err();
            assert_eq!(directory.lacks_space(), is_full);
            assert_eq!(unreadable(&directory), 0);
        }
        if is_full {
            full.store(false, Relaxed);
            grow(&mut directory).unwrap();
            assert!(!directory.lacks_space());
            assert_eq!(unreadable(&directory), 0);
        } else {
            assert!(directory.failure().is_some());
        }
    }
}

/// Goal: a read that fails for a reader of extents does not fail the directory: the next commit works, and so do reads then.
#[test]
fn a_reader_does_not_fail_the_directory() {
    let fails = Arc::new(AtomicBool::new(false));
    let disk: Arc<dyn Disk> =
        Arc::new(Unreadable { beneath: MemDisk::default().disk(), fails: fails.clone() });
    let mut directory = with_many_rows(&disk);
    assert_eq!(unreadable(&directory), 0);
    fails.store(true, Relaxed);
    assert!(unreadable(&directory) > 0);
    fails.store(false, Relaxed);
    grow(&mut directory).unwrap();
    assert_eq!((unreadable(&directory), directory.failure()), (0, None));
}
