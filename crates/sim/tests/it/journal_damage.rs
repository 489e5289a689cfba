//! Fuzz target Z5: a journal file with any byte changed or cut off anywhere replays its groups, a prefix of them (only
//! when the damage is in the last one), or is refused. Never another record, never a panic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_io::canary::Canaries;
use bindery_io::chunk::{ChunkPool, Lane};
use bindery_io::{Disk, DiskFile, OpenMode, SeededRandom};
use bindery_journal::record::{self, HEADER_SIZE_BYTES, Kind};
use bindery_journal::{Group, Journal, JournalConfig, Part, PreparedFile, ReplayError, Replayed, survey};
use bindery_sim::disk::{SimDisk, SimDiskConfig};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILE_BYTES: u64 = 64 << 10;

fn open(disk: Arc<dyn Disk>) -> Journal {
    let config = JournalConfig {
        bytes_max: 0,
        dir: PathBuf::from("/j"),
        file_bytes: FILE_BYTES,
        owner: "test".into(),
        journal: 0,
        is_tiered: false,
        sync: true,
        canaries: Canaries::none(),
    };
    Journal::open(disk, config, Arc::new(SeededRandom::new(3))).unwrap()
}

/// The bodies that a replay delivers, group by group.
type Groups = Vec<Vec<Vec<u8>>>;

fn replay(disk: Arc<dyn Disk>) -> Result<(Groups, Replayed), ReplayError<Infallible>> {
    let mut groups = Groups::new();
    let mut journal = open(disk);
    let replayed = journal.replay(0, |_, records| {
        groups.push(records.iter().map(|r| r.body.to_vec()).collect());
        Ok(())
    })?;
    Ok((groups, replayed))
}

/// A journal of five groups in one file: small ones, one with whole blocks taken straight from the chunk, and one of
/// two parts.
fn journal() -> (Arc<SimDisk>, Groups) {
    let disk = Arc::new(SimDisk::new(SimDiskConfig::default(), &SeededRandom::new(1)));
    disk.create_dir_all(Path::new("/j")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let mut journal = open(disk.clone());
    journal.replay(0, |_, _| Ok::<(), Infallible>(())).unwrap();
    let pool = ChunkPool::new(64 << 10, 4, 0);
    let mut written = Groups::new();
    for (number, sizes) in [&[10, 0][..], &[700], &[9000, 3], &[40], &[1, 2, 3]].into_iter().enumerate() {
        let mut bodies = Vec::new();
        let mut parts = Vec::new();
        for half in sizes.chunks(2) {
            let mut chunk = pool.take(Lane::Normal).unwrap();
            chunk.append(100 * number + 7, |b| b.fill(0));
            let start = chunk.len();
            let mut chain = 0;
            for (entry, size) in half.iter().enumerate() {
                let mut body = [number as i64, entry as i64, -1].map(i64::to_be_bytes).concat();
                body.resize(24 + size, number as u8 + 1);
                let mut header = [0; HEADER_SIZE_BYTES];
                chunk.append(HEADER_SIZE_BYTES + body.len(), |target| {
                    header = record::encode(target, Kind::Entry, &[&body]).0;
                });
                chain = record::fold_header(chain, &header);
                bodies.push(body);
            }
            let data = chunk.slice(start..chunk.len());
            parts.push(Part { data, shard: 0, record_count: half.len() as u32, headers_crc: chain });
        }
        journal.write(&Group { parts, force_sync: false }).unwrap();
        written.push(bodies);
    }
    (disk, written)
}

fn the_file(disk: &SimDisk) -> (PathBuf, u64) {
    let name = disk.list(Path::new("/j")).unwrap().remove(0);
    (Path::new("/j").join(name.name), name.len)
}

fn check(disk: Arc<dyn Disk>, written: &Groups, what: &str) -> bool {
    match replay(disk) {
        Ok((groups, _)) => {
            assert!(groups.len() <= written.len(), "{what}: {} groups", groups.len());
            assert_eq!(groups[..], written[..groups.len()], "{what}");
            groups.len() < written.len()
        }
        Err(ReplayError::Damage(damage)) => {
            assert!(damage.path.starts_with("/j"), "{what}");
            true
        }
        Err(other) => panic!("{what}: {other}"),
    }
}

#[test]
fn an_undamaged_journal_replays_twice_the_same() {
    let (disk, written) = journal();
    let (groups, replayed) = replay(disk.clone()).unwrap();
    assert_eq!(groups, written);
    assert_eq!((replayed.groups, replayed.last_group, replayed.torn_tail.clone()), (5, 5, None));
    assert_eq!(replay(disk).unwrap(), (groups, replayed), "requirement J9");
}

#[test]
fn no_flipped_bit_delivers_a_wrong_record() {
    let (disk, written) = journal();
    let (path, length) = the_file(&disk);
    let mut noticed = 0u64;
    for at in 0..length {
        for bit in if at < 8192 { 0..8 } else { at % 8..at % 8 + 1 } {
            let bad = Arc::new(disk.durable_image());
            let file = bad.open(&path, OpenMode::CreateBuffered).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            byte[0] ^= 1 << bit;
            file.write_all_at(&mut [std::io::IoSlice::new(&byte)], at).unwrap();
            noticed += u64::from(check(bad, &written, &format!("byte {at} bit {bit}")));
        }
    }
    assert!(noticed > 10_000, "{noticed} damages were noticed");
}

#[test]
fn no_cut_delivers_a_wrong_record() {
    let (disk, written) = journal();
    let (path, length) = the_file(&disk);
    for cut in 0..length {
        let bad = Arc::new(disk.durable_image());
        let file: Arc<dyn DiskFile> = bad.open(&path, OpenMode::CreateBuffered).unwrap();
        file.set_len(cut).unwrap();
        check(bad, &written, &format!("cut at {cut}"));
    }
}

/// Requirement J8: what an earlier use of a file left behind never replays.
#[test]
fn a_recycled_file_replays_only_its_own_groups() {
    let (disk, _) = journal();
    let mut journal = open(disk.clone());
    journal.replay(5, |_, _| Ok::<(), Infallible>(())).unwrap();
    journal.release_up_to(5);
    // One free file is kept back for a full volume: with a second one the first is used again.
    let (slot, config) = (journal.reserve_slot(), journal.config().clone());
    journal.add_prepared(PreparedFile::create(&*disk, &config, slot, || true).unwrap().unwrap());
    let pool = ChunkPool::new(8192, 1, 0);
    let mut chunk = pool.take(Lane::Normal).unwrap();
    let body = [77i64, 0, -1].map(i64::to_be_bytes).concat();
    let mut header = [0; HEADER_SIZE_BYTES];
    let encode = |target: &mut [u8]| header = record::encode(target, Kind::Entry, &[&body]).0;
    chunk.append(HEADER_SIZE_BYTES + body.len(), encode);
    let headers_crc = record::fold_header(0, &header);
    let part = Part { data: chunk.slice(0..chunk.len()), shard: 0, record_count: 1, headers_crc };
    assert_eq!(journal.write(&Group { parts: vec![part], force_sync: false }).unwrap(), 6);
    let of_disk: Arc<dyn Disk> = disk.clone();
    let first = survey::file(&of_disk, Path::new("/j/journal-0000.bjl")).unwrap();
    assert_eq!(first.header.unwrap().first_group, 6, "the file was used again");
    let mut again = open(disk);
    let mut seen = Vec::new();
    let replayed = again.replay(5, |group, records| {
        seen.push((group, records.len()));
        Ok::<(), Infallible>(())
    });
    assert_eq!(replayed.unwrap().last_group, 6);
    assert_eq!(seen, [(6, 1)]);
}
