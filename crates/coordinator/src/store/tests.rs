use super::*;
use crate::sessions::PASSWORD_SIZE;
use crate::tree::acl::open_to_all;
use bindery_io::{Random, SeededRandom};
use bindery_sim::disk::{FaultKind, SectorSize, SimDisk, SimDiskConfig};
use std::collections::BTreeMap;

fn dir() -> &'static Path {
    Path::new("/d")
}

fn node(zxid: i64, size: u64) -> NodeRecord {
    NodeRecord {
        data: Some(vec![zxid as u8; size as usize].into()),
        acl: open_to_all(),
        czxid: zxid,
        mzxid: zxid,
        pzxid: zxid,
        ctime_ms: 1,
        mtime_ms: 2,
        version: 3,
        cversion: 4,
        sequence: if zxid % 7 == 0 { 1 } else { 4 },
        counted: zxid % 3,
        aversion: 5,
        owner: 0,
        version_id: zxid,
        modifications: if zxid % 2 == 0 { 3 } else { zxid },
        identity: (zxid % 3 == 0).then(|| "a client".into()),
        index_keys: None,
        is_implied: zxid % 5 == 0,
    }
}

/// The expected contents of the store.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    nodes: BTreeMap<String, NodeRecord>,
    sessions: BTreeMap<i64, SessionRecord>,
    notifications: BTreeMap<i64, Bytes>,
    zxid_ceiling: i64,
}

impl Model {
    fn of(loaded: Loaded) -> Model {
        let (nodes, sessions) = (loaded.nodes.into_iter().collect(), loaded.sessions.into_iter().collect());
        let notifications = loaded.notifications.into_iter().collect();
        Model { nodes, sessions, notifications, zxid_ceiling: loaded.zxid_ceiling }
    }

    fn apply(&mut self, batch: &Batch) {
        for (path, record) in &batch.nodes {
            match record {
                Some(record) => drop(self.nodes.insert(path.to_string(), record.clone())),
                None => drop(self.nodes.remove(&**path)),
            }
        }
        for (id, record) in &batch.sessions {
            match record {
                Some(record) => drop(self.sessions.insert(*id, record.clone())),
                None => drop(self.sessions.remove(id)),
            }
        }
        self.notifications.extend(batch.notifications.iter().cloned());
        let from = batch.notifications_from.unwrap_or(i64::MIN);
        self.notifications.retain(|offset, _| *offset >= from);
        self.zxid_ceiling = batch.zxid_ceiling;
    }
}

/// Some nodes and sessions set, some removed, values of all sizes.
fn batch(random: &SeededRandom, number: i64) -> Batch {
    let mut batch = Batch { zxid_ceiling: number * 100, ..Batch::default() };
    for _ in 0..random.below(20) {
        let path = format!("/{}", random.below(60));
        let size = if random.chance(0.05) { random.below(20_000) } else { random.below(100) };
        batch.nodes.insert(path.into(), random.chance(0.7).then(|| node(number, size)));
    }
    for _ in 0..random.below(3) {
        let identity: Option<Arc<str>> = random.chance(0.3).then(|| format!("client {number}").into());
        let password = [if identity.is_some() { 0 } else { number as u8 }; PASSWORD_SIZE];
        let record = SessionRecord { timeout_ms: number as u32, password, identity };
        batch.sessions.insert(random.below(9) as i64, random.chance(0.7).then_some(record));
    }
    if random.chance(0.5) {
        batch.notifications.push((number, vec![number as u8; random.below(300) as usize].into()));
        batch.notifications_from = random.chance(0.5).then(|| number - random.below(5) as i64);
    }
    batch
}

fn disk(sector: SectorSize, random: &SeededRandom) -> Arc<SimDisk> {
    let disk = SimDisk::new(SimDiskConfig { sector, ..SimDiskConfig::default() }, random);
    disk.create_dir_all(dir()).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    Arc::new(disk)
}

fn open(disk: &Arc<SimDisk>) -> Result<(Store, Loaded), StateError> {
    let disk: Arc<dyn Disk> = disk.clone();
    Store::open(&disk, dir())
}

/// Goal: nothing acknowledged is lost by a power cut, and nothing half done appears (store invariants 1, 2, 4).
/// Method: batches on a disk whose power goes at any change, also while the store is made, with sectors torn into
/// garbage; the next store must hold what was acknowledged, or that and the batch under way, entirely.
#[test]
fn a_power_cut_at_any_moment_loses_nothing_acknowledged() {
    let (mut acknowledged, mut restarts) = (0, 0);
    for seed in 0..150 {
        let random = SeededRandom::new(seed);
        let sector = if seed % 2 == 0 { SectorSize::Bytes512 } else { SectorSize::Bytes4096 };
        let mut disk = disk(sector, &random);
        let (mut durable, mut number) = (Model::default(), 0);
        for life in 0..4 {
            let draw = random.child(&format!("life {life}"));
            disk.crash_after(draw.below(150));
            let mut under_way = durable.clone();
            if let Ok((mut store, loaded)) = open(&disk) {
                assert_eq!(Model::of(loaded), durable, "seed {seed} life {life}");
                loop {
                    number += 1;
                    let batch = batch(&draw, number);
                    under_way.apply(&batch);
                    if store.commit(&batch).is_err() {
                        break;
                    }
                    durable = under_way.clone();
                    acknowledged += 1;
                }
            }
            assert!(disk.is_off(), "seed {seed}: nothing else fails");
            disk = Arc::new(disk.crash(&draw));
            let (store, loaded) =
                open(&disk).unwrap_or_else(|error| panic!("seed {seed} life {life}: {error}"));
            let found = Model::of(loaded);
            assert!(found == durable || found == under_way, "seed {seed} life {life}");
            durable = found;
            drop(store);
            restarts += 1;
        }
    }
    println!("restarts={restarts} batches acknowledged={acknowledged}");
    assert!(acknowledged > 500, "{acknowledged}");
}

#[test]
fn after_a_failed_sync_nothing_is_committed_and_the_first_reason_stays() {
    for fault in [FaultKind::SyncErrorNewData, FaultKind::SyncErrorOldData, FaultKind::WriteError] {
        let random = SeededRandom::new(1);
        let disk = disk(SectorSize::Bytes512, &random);
        let (mut store, _) = open(&disk).unwrap();
        let mut model = Model::default();
        let first = batch(&random, 1);
        store.commit(&first).unwrap();
        model.apply(&first);
        disk.order_fault(fault, None);
        let second = batch(&random, 2);
        store.commit(&second).unwrap_err();
        let again = store.commit(&batch(&random, 3)).unwrap_err();
        assert!(matches!(again, StateError::Latched { .. }), "store invariant 3: {again}");
        drop(store);
        let (_, loaded) = open(&Arc::new(disk.crash(&random))).unwrap();
        let found = Model::of(loaded);
        let mut with_second = model.clone();
        with_second.apply(&second);
        assert!(found == model || found == with_second, "{fault:?}");
    }
}

/// Store invariant 6: after a failed sync the process is started again, on a machine that still shows what the sync did not
/// write, and the power is cut later. The third start finds everything that the second one found.
#[test]
fn what_only_the_page_cache_shows_is_not_believed() {
    for seed in 0..20 {
        let random = SeededRandom::new(seed);
        let disk = disk(SectorSize::Bytes512, &random);
        let (mut store, _) = open(&disk).unwrap();
        store.commit(&batch(&random, 1)).unwrap();
        disk.order_fault(FaultKind::SyncErrorNewData, None);
        store.commit(&batch(&random, 2)).unwrap_err();
        drop(store);
        let (mut store, loaded) = open(&disk).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let mut model = Model::of(loaded);
        let third = batch(&random, 3);
        store.commit(&third).unwrap();
        model.apply(&third);
        drop(store);
        let (_, loaded) =
            open(&Arc::new(disk.crash(&random))).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(Model::of(loaded) == model, "seed {seed}");
    }
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let random = SeededRandom::new(1);
    let disk = disk(SectorSize::Bytes512, &random);
    drop(open(&disk).unwrap());
    let path = dir().join(FILE_NAME);
    let file = disk.open(&path, OpenMode::CreateBuffered).unwrap();
    let newer = encode_header(&Format { version: FORMAT.version + 1, ..FORMAT });
    file.write_all_at(&mut [IoSlice::new(&newer[..BLOCK_SIZE_BYTES])], 0).unwrap();
    let content = |file: &dyn bindery_io::DiskFile| {
        let mut content = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut content, 0).unwrap();
        content
    };
    let before = content(&*file);
    let refused = open(&disk).err().unwrap();
    assert!(matches!(&refused, StateError::NewerFormat(newer) if newer.found == 2), "{refused}");
    assert_eq!(content(&*file), before, "store invariant 5");
    assert!(refused.to_string().contains("use a newer bindery"));
}

#[test]
fn a_store_that_is_cut_or_foreign_is_damaged_and_never_made_anew() {
    let random = SeededRandom::new(1);
    let disk = disk(SectorSize::Bytes512, &random);
    let (mut store, _) = open(&disk).unwrap();
    store.commit(&batch(&random, 1)).unwrap();
    drop(store);
    let file = disk.open(&dir().join(FILE_NAME), OpenMode::CreateBuffered).unwrap();
    let len = file.len().unwrap();
    for cut in [0, 4096, HEADER_SIZE, HEADER_SIZE + 4096] {
        let copy = Arc::new(disk.durable_image());
        copy.open(&dir().join(FILE_NAME), OpenMode::CreateBuffered).unwrap().set_len(cut).unwrap();
        let error = open(&copy).err().unwrap_or_else(|| panic!("cut to {cut} of {len}"));
        assert!(matches!(error, StateError::Damaged(_)), "cut to {cut}: {error}");
    }
    // Any single flipped bit is harmless or found, never another tree.
    let expected = Model::of(open(&disk).unwrap().1);
    for _ in 0..300 {
        let copy = Arc::new(disk.durable_image());
        let at = random.next_u64() % len;
        copy.flip_bits(&dir().join(FILE_NAME), at, 1).unwrap();
        match open(&copy) {
            Ok((_, loaded)) => assert_eq!(Model::of(loaded), expected, "bit at {at}"),
            Err(StateError::Damaged(_) | StateError::NewerFormat(_) | StateError::Database { .. }) => {}
            Err(other) => panic!("bit at {at}: {other}"),
        }
    }
}

#[test]
fn nobody_else_may_read_the_passwords_in_it() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(bindery_io::RealDisk::new());
    let path = root.path().join(FILE_NAME);
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    drop(Store::open(&disk, root.path()).unwrap());
    assert_eq!(mode(), 0o600);
    // As an earlier release left it.
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    drop(Store::open(&disk, root.path()).unwrap());
    assert_eq!(mode(), 0o600);
}
