//! A crash right before a full journal file becomes a log: the file is read, and what was in memory is made again.

use crate::adds::{Case, JOURNAL_FILES, Rec, Set, journal_config, slot_path};
use crate::disk::CountingDisk;
use bindery_io::chunk::{ChunkPool, Lane, OpenChunk};
use bindery_io::{Disk, SystemRandom};
use bindery_journal::Journal;
use bindery_journal::record::HEADER_SIZE_BYTES;
use bindery_journal::survey::{self, Place};
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

/// Records behind `covered`, as a start finds them by the journal's own replay, after all the files that went and came.
pub fn count_by_replay(disk: &Arc<CountingDisk>, dir: &Path, case: &Case, covered: u64) -> u64 {
    let disk: Arc<dyn Disk> = disk.clone();
    let mut journal = Journal::open(disk, journal_config(dir, case), Arc::new(SystemRandom)).unwrap();
    assert_eq!(journal.file_count(), JOURNAL_FILES);
    journal.replay(covered, |_, _| Ok::<(), Infallible>(())).unwrap().records
}

/// What stood in memory of the file of `lost`: with `pool` the bodies too, which a flush needs; else where they are.
pub fn scan(disk: &Arc<CountingDisk>, dir: &Path, lost: &Set, pool: Option<&ChunkPool>) -> Set {
    let shared: Arc<dyn Disk> = disk.clone();
    let file = survey::file(&shared, &slot_path(dir, lost.slot)).unwrap();
    assert_eq!(file.header.as_ref().unwrap().identity.file_id, lost.file_id);
    let mut set =
        Set { slot: lost.slot, file_id: lost.file_id, places: vec![vec![(0, 0)]], ..Set::default() };
    let mut open: Option<OpenChunk> = None;
    survey::walk(&shared, &file, |place| {
        let Place::Group(group, records) = place else { panic!("the file is whole") };
        set.group = group.sequence;
        let mut records = records.iter();
        for part in &group.parts {
            let mut offset = group.offset + u64::from(part.offset);
            for record in records.by_ref().take(part.record_count as usize) {
                offset += HEADER_SIZE_BYTES as u64;
                let length = record.body.len();
                let mut rec = Rec {
                    entry: record.entry().unwrap().get(),
                    chunk: 0,
                    offset: u32::try_from(offset).unwrap(),
                    length: length as u32,
                    crc32c: record.crc32c,
                };
                if let Some(pool) = pool {
                    if open.as_ref().is_none_or(|open| open.remaining() < length) {
                        let full = open.replace(pool.take(Lane::Normal).unwrap());
                        set.chunks.extend(full.map(|full| Some(full.slice(0..full.len()))));
                    }
                    rec.chunk = set.chunks.len() as u32;
                    rec.offset =
                        open.as_mut().unwrap().append(length, |target| target.copy_from_slice(record.body))
                            as u32;
                }
                set.records.entry(record.ledger).or_default().push(rec);
                set.entries += 1;
                offset += length as u64;
            }
        }
    })
    .unwrap();
    set.chunks.extend(open.map(|last| Some(last.slice(0..last.len()))));
    assert_eq!((set.entries, set.group), (lost.entries, lost.group));
    // Groups give one shard after the other; of a ledger, entries come in their order.
    set
}
