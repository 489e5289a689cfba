//! Tests of the simulated disk: the common suite, the effects of crashes on data and names, determinism.

use super::*;
use bindery_io::{CheckedDisk, Random, conformance};
use std::collections::BTreeSet;
use std::io::IoSlice;

mod faults;
mod model;
mod redb;

const FILE: &str = "/d/f";

fn config(sector: SectorSize, torn: f64) -> SimDiskConfig {
    SimDiskConfig { sector, torn, ..SimDiskConfig::default() }
}

fn new_disk(config: SimDiskConfig) -> SimDisk {
    let disk = SimDisk::new(config, &SeededRandom::new(1));
    disk.create_dir_all(Path::new("/d")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    disk
}

/// A disk with one durable file of `len` bytes of 1.
fn disk_with_file(config: SimDiskConfig, len: usize) -> (SimDisk, Arc<dyn DiskFile>) {
    let disk = new_disk(config);
    let file = disk.open(Path::new(FILE), OpenMode::CreateBuffered).unwrap();
    put(&*file, 0, &vec![1; len]);
    file.sync().unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    (disk, file)
}

fn put(file: &dyn DiskFile, offset: u64, bytes: &[u8]) {
    file.write_all_at(&mut [IoSlice::new(bytes)], offset).unwrap();
}

fn put_durable(file: &dyn DiskFile, offset: u64, bytes: &[u8]) {
    file.write_all_durable_at(&mut [IoSlice::new(bytes)], offset).unwrap();
}

fn read_all(disk: &SimDisk, path: &str) -> Vec<u8> {
    let file = disk.open(Path::new(path), OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn the_simulated_disk_conforms() {
    for sector in [SectorSize::Bytes512, SectorSize::Bytes4096] {
        for accepts_direct in [true, false] {
            let disk = new_disk(SimDiskConfig { accepts_direct, ..config(sector, 0.0) });
            conformance::disk(&disk, Path::new("/d"));
            disk.create_dir_all(Path::new("relative")).unwrap();
            conformance::disk(&disk, Path::new("relative"));
        }
    }
}

#[test]
fn the_checked_simulated_disk_conforms() {
    conformance::disk(&CheckedDisk::new(new_disk(SimDiskConfig::default())), Path::new("/d"));
}

#[test]
fn a_retried_sync_is_found_by_the_checked_disk() {
    let disk = CheckedDisk::recording(disk_with_file(SimDiskConfig::default(), 512).0);
    let file = disk.open(Path::new(FILE), OpenMode::CreateBuffered).unwrap();
    put(&*file, 0, &[2; 512]);
    disk.inner().order_fault(FaultKind::SyncErrorNewData, None);
    assert!(file.sync().is_err());
    file.sync().expect("the simulated kernel lies like a real one");
    let found = disk.violations();
    assert!(found.len() == 1 && found[0].what.contains("first error: sync: "), "{found:?}");
}

#[test]
fn every_outcome_of_a_pending_sector_is_reached() {
    let (mut old, mut new, mut mixed, mut torn, mut nonsense) = (0, 0, 0, 0, 0);
    for seed in 0..400 {
        let (disk, file) = disk_with_file(config(SectorSize::Bytes512, 0.2), 4096);
        put(&*file, 512, &[2; 1024]);
        let found = read_all(&disk.crash(&SeededRandom::new(seed)), FILE);
        assert!(
            found[..512].iter().chain(&found[1536..]).all(|&b| b == 1),
            "sectors around it are not touched"
        );
        let whole: Vec<Option<u8>> =
            found[512..1536].chunks(512).map(|s| s.iter().all(|b| *b == s[0]).then_some(s[0])).collect();
        old += u32::from(whole == [Some(1), Some(1)]);
        new += u32::from(whole == [Some(2), Some(2)]);
        mixed += u32::from(whole == [Some(1), Some(2)] || whole == [Some(2), Some(1)]);
        torn += u32::from(whole.contains(&None));
        nonsense += u32::from(found.iter().any(|b| *b > 2));
    }
    assert!(
        old > 20 && new > 20 && mixed > 20 && torn > 10 && nonsense > 3,
        "{old} {new} {mixed} {torn} {nonsense}"
    );
    assert!(torn < 150, "most crashes tear nothing: {torn}");
}

#[test]
fn a_length_survives_without_its_data_and_data_without_its_length() {
    let (mut zeros, mut cut, mut whole, mut older) = (0, 0, 0, 0);
    for seed in 0..300 {
        let (disk, file) = disk_with_file(config(SectorSize::Bytes512, 0.0), 512);
        put(&*file, 512, &[2; 512]);
        put(&*file, 512, &[3; 512]);
        let found = read_all(&disk.crash(&SeededRandom::new(seed)), FILE);
        assert_eq!(found[..512], [1; 512]);
        match found.get(512) {
            None => cut += 1,
            Some(0) => zeros += 1,
            Some(2) => older += 1,
            Some(_) => whole += 1,
        }
    }
    assert!(zeros > 20 && cut > 20 && whole > 20 && older > 5, "{zeros} {cut} {whole} {older}");
}

#[test]
fn names_are_durable_after_a_directory_sync_only_and_renames_are_atomic() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..100 {
        let (disk, _) = disk_with_file(SimDiskConfig::default(), 10);
        let d = |name: &str| Path::new("/d").join(name);
        let synced = disk.open(&d("new"), OpenMode::CreateBuffered).unwrap();
        put(&*synced, 0, b"new");
        synced.sync().unwrap();
        disk.rename(Path::new(FILE), &d("g")).unwrap();
        assert!(!disk.durable_image().exists(&d("new")).unwrap(), "a file sync makes no name durable");
        assert!(disk.durable_image().exists(Path::new(FILE)).unwrap());
        let found = disk.crash(&SeededRandom::new(seed));
        let names: Vec<String> = found.list(Path::new("/d")).unwrap().into_iter().map(|e| e.name).collect();
        let renamed = names.contains(&"g".to_string());
        assert_ne!(
            renamed,
            names.contains(&"f".to_string()),
            "exactly one name of a renamed file: {names:?}"
        );
        outcomes.insert((renamed, names.contains(&"new".to_string())));

        found.remove(&d(if renamed { "g" } else { "f" })).unwrap();
        found.create_dir_all(&d("sub")).unwrap();
        found.open(&d("sub/x"), OpenMode::CreateBuffered).unwrap();
        found.sync_dir(&d("sub")).unwrap();
        assert!(!found.durable_image().exists(&d("sub/x")).unwrap(), "its directory is not durable");
        found.sync_dir(Path::new("/d")).unwrap();
        let last = found.crash(&SeededRandom::new(seed));
        assert!(
            last.exists(&d("sub/x")).unwrap()
                && !last.exists(&d("g")).unwrap()
                && !last.exists(Path::new(FILE)).unwrap()
        );
    }
    assert_eq!(outcomes.len(), 4, "each change is kept or lost on its own: {outcomes:?}");
}

#[test]
fn a_renamed_file_does_not_come_back_under_its_first_name() {
    let disk = new_disk(SimDiskConfig::default());
    disk.create_dir_all(Path::new("/e")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    disk.open(Path::new(FILE), OpenMode::CreateBuffered).unwrap();
    disk.rename(Path::new(FILE), Path::new("/e/f")).unwrap();
    disk.sync_dir(Path::new("/e")).unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    let image = disk.durable_image();
    assert!(image.exists(Path::new("/e/f")).unwrap() && !image.exists(Path::new(FILE)).unwrap());
}

#[test]
fn a_durable_write_makes_its_own_range_durable_and_no_other() {
    let (disk, file) = disk_with_file(config(SectorSize::Bytes512, 0.0), 4096);
    put(&*file, 0, &[2; 512]);
    put(&*file, 5000, &[2; 1000]);
    put_durable(&*file, 1024, &[3; 512]);
    let image = read_all(&disk.durable_image(), FILE);
    assert_eq!((image[0], image[1024], image[1535], image[1536]), (1, 3, 3, 1));
    assert_eq!(image.len(), 4096, "the length of another write is not its business");
    put_durable(&*file, 7000, &[4; 10]);
    let image = read_all(&disk.durable_image(), FILE);
    assert_eq!((image.len(), image[5000], image[7000]), (7010, 0, 4));
    assert!(disk.has_pending(Path::new(FILE)).unwrap());
    file.sync().unwrap();
    assert!(!disk.has_pending(Path::new(FILE)).unwrap());
    assert!(read_all(&disk.durable_image(), FILE) == read_all(&disk, FILE));
}

/// Operations with every fault on, as a list of what the caller saw.
fn noisy_run(seed: u64) -> (u64, u64, Vec<String>) {
    let random = SeededRandom::new(seed);
    let disk = SimDisk::new(SimDiskConfig::draw(&random.child("config")), &random.child("disk"));
    disk.create_dir_all(Path::new("/d")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let mut plan = FaultPlan::default();
    FaultKind::ALL.iter().for_each(|&kind| plan.set_rate(kind, 0.05));
    disk.set_faults(plan);
    let load = random.child("load");
    for _ in 0..300 {
        let path = PathBuf::from(format!("/d/{}", load.below(4)));
        let Ok(file) = disk.open(&path, OpenMode::CreateBuffered) else { continue };
        let bytes = vec![load.next_u64() as u8; load.below(10_000) as usize];
        let at = load.below(30_000);
        // Whatever fails is part of the trace.
        let _ = match load.below(6) {
            0 => file.sync(),
            1 => disk.sync_dir(Path::new("/d")),
            2 => disk.rename(&path, Path::new("/d/0")),
            3 => file.read_at(&mut vec![0; bytes.len()], at).map(drop),
            4 => file.write_durable_at(&[IoSlice::new(&bytes)], at).map(drop),
            _ => file.write_at(&[IoSlice::new(&bytes)], at).map(drop),
        };
    }
    let trace = disk.trace();
    (disk.trace_hash(), disk.crash(&random.child("crash")).content_hash(), trace)
}

#[test]
fn the_same_seed_gives_the_same_trace_and_image() {
    for seed in 0..20 {
        assert_eq!(noisy_run(seed), noisy_run(seed), "seed {seed}");
    }
    let hashes: BTreeSet<u64> = (0..20).map(|seed| noisy_run(seed).1).collect();
    assert_eq!(hashes.len(), 20);
}
