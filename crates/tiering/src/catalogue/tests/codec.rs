//! Bytes: values come back as they were written, and altered ones are refused.

use std::sync::LazyLock;

use super::super::manifest::{Manifest, RunName, RunRef, check_marker, encode_marker};
use super::super::row::{Key, Table, rows_of};
use super::super::run::{Block, Row, RunBuilder, RunIndex, RunShape};
use super::*;

fn a_record() -> Record {
    let changes = vec![
        reserve(&[1, 2]),
        commit(3, &[(1, 0, 9), (2, 5, 5)]),
        replace(4, &[1, 3], &[(7, 0, 1)]),
        Change::RemoveLedger { ledger: ledger(5), created_ms: None },
        Change::RemoveLedger { ledger: ledger(5), created_ms: Some(-7) },
        created(commit(8, &[(1, 0, 9), (2, 5, 5)]), 1_700_000_000_000),
        created(replace(9, &[1, 3], &[(7, 0, 1)]), 5),
        Change::ForgetObject(id(6)),
        Change::Release { object: id(1), replaced: 12 },
    ];
    record(17, 3, 1_700_000_000_000, changes)
}

fn a_run() -> (Vec<Row>, Vec<u8>, RunShape) {
    let rows: Vec<Row> = (0..5000)
        .map(|at| {
            let row = ExtentRow { last: entry(at * 2 + 1), bytes: at as u64, object: reference(at as u64) };
            let mut value = Vec::new();
            row.encode(&mut value);
            (Key::extent(ledger(at / 100), entry(at * 2)), (at % 7 != 0).then_some(value))
        })
        .collect();
    let mut builder = RunBuilder::new(CLUSTER);
    rows.iter().for_each(|(key, value)| builder.push(*key, value.as_deref()));
    let (chunks, shape) = builder.finish();
    (rows, chunks.concat(), shape)
}

/// Every block of a run, decoded.
fn read_run(bytes: &[u8], shape: &RunShape) -> Result<Vec<Row>, CatalogueDamage> {
    let Some(end) = bytes.get(shape.index_offset as usize..) else {
        return Err(CatalogueDamage::Length { found: bytes.len() });
    };
    let index = RunIndex::decode(end, shape, CLUSTER)?;
    let mut rows = Vec::new();
    for place in index.blocks.iter() {
        let stored = &bytes[place.offset as usize..][..place.stored_size_bytes as usize];
        let block = Block::decode(stored, place)?;
        rows.extend((0..block.len()).map(|row| (block.key(row), block.value(row).map(<[u8]>::to_vec))));
    }
    Ok(rows)
}

/// Built once: many cases alter it.
static A_RUN: LazyLock<(Vec<Row>, Vec<u8>, RunShape)> = LazyLock::new(a_run);

fn a_manifest() -> Manifest {
    let mut manifest = Manifest::empty(CLUSTER);
    manifest.number = 9;
    manifest.covered = Position { number: 100, log_ms: 5 };
    (manifest.log_floor, manifest.run_floor) = (40, 2);
    manifest.totals.objects = 3;
    manifest.runs =
        (0..3).map(|nonce| RunRef { name: RunName { manifest: 8, nonce }, shape: A_RUN.2 }).collect();
    manifest
}

proptest! {
    #[test]
    fn records_come_back(records in changes()) {
        for (number, (writer, time_ms, changes)) in (1..).zip(records) {
            let record = record(number, writer, time_ms, changes);
            let bytes = record.encode().unwrap();
            prop_assert_eq!(Record::decode(&bytes, CLUSTER, number), Ok(record));
        }
    }

    #[test]
    fn rows_come_back(records in changes()) {
        let mut core = Core::new(CLUSTER);
        for (number, (writer, time_ms, changes)) in (1..).zip(records) {
            core.apply(&record(number, writer, time_ms, changes), &Facts::nothing_below()).unwrap();
        }
        let rows = Rows::of(&core);
        let encoded: Vec<Row> = rows_of(core.tail()).collect();
        prop_assert!(encoded.windows(2).all(|pair| pair[0].0 < pair[1].0), "in the order of a run");
        let mut back = Rows { totals: rows.totals, ..Rows::default() };
        for (key, value) in encoded {
            let Some(value) = value else { continue };
            match key.table().unwrap() {
                Table::Ledgers => drop(back.ledgers.insert(key.ledger_id().unwrap(), LedgerRow::decode(&value).unwrap())),
                Table::Extents => {
                    let key = (key.ledger_id().unwrap(), key.first().unwrap());
                    back.extents.insert(key, ExtentRow::decode(&value).unwrap());
                }
                Table::Objects => drop(back.objects.insert(key.object_id(), ObjectRow::decode(&value).unwrap())),
                Table::Garbage => {
                    let row = rows.objects[&key.object_id()];
                    prop_assert!(row.may_be_garbage());
                }
            }
        }
        prop_assert_eq!(back, rows);
    }

    /// A byte that is altered, bytes that are missing, bytes that are added: each is refused.
    #[test]
    fn altered_bytes_are_refused(at in any::<prop::sample::Index>(), flip in 1_u8..=255) {
        let altered = |bytes: &[u8]| {
            let at = at.index(bytes.len());
            let mut altered = bytes.to_vec();
            altered[at] ^= flip;
            [altered, bytes[..at].to_vec(), [bytes, &bytes[..=at]].concat()]
        };
        for bytes in altered(&a_record().encode().unwrap()) {
            prop_assert!(Record::decode(&bytes, CLUSTER, 17).is_err());
        }
        for bytes in altered(&a_manifest().encode()) {
            prop_assert!(Manifest::decode(&bytes, CLUSTER, 9).is_err());
        }
        for bytes in altered(&encode_marker(CLUSTER, 5)) {
            prop_assert!(check_marker(&bytes, CLUSTER).is_err());
        }
        for bytes in altered(&A_RUN.1) {
            prop_assert!(read_run(&bytes, &A_RUN.2).is_err());
        }
    }

    /// Fields that are altered under a checksum that matches give an error or a record, and no large allocation.
    #[test]
    fn forged_records_are_checked(at in any::<prop::sample::Index>(), with in any::<[u8; 4]>()) {
        let mut bytes = a_record().encode().unwrap();
        let end = bytes.len() - 4;
        let at = at.index(end - 4);
        bytes[at..at + 4].copy_from_slice(&with);
        let crc = bindery_types::codec::crc32c(&[&bytes[..end]]);
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(record) = Record::decode(&bytes, CLUSTER, 17) {
            prop_assert_eq!(record.encode().unwrap(), bytes);
        }
    }
}

/// T18, and a record that was copied to another number.
#[test]
fn what_belongs_elsewhere_is_refused() {
    let bytes = a_record().encode().unwrap();
    let other = ClusterId::from_bytes([1; 16]);
    let refused = Record::decode(&bytes, other, 17).unwrap_err();
    assert_eq!(refused, CatalogueDamage::OtherCluster { found: CLUSTER, expected: other });
    assert_eq!(
        Record::decode(&bytes, CLUSTER, 18),
        Err(CatalogueDamage::Misplaced { found: 17, expected: 18 })
    );
    assert!(check_marker(&encode_marker(CLUSTER, 5), other).is_err());
    assert!(Manifest::decode(&a_manifest().encode(), other, 9).is_err());
    let (rows, bytes, shape) = a_run();
    assert_eq!(read_run(&bytes, &shape), Ok(rows));
    let end = &bytes[shape.index_offset as usize..];
    assert!(matches!(RunIndex::decode(end, &shape, other), Err(CatalogueDamage::OtherCluster { .. })));
}

#[test]
fn a_newer_version_is_told_from_damage() {
    let mut bytes = a_record().encode().unwrap();
    bytes[8] = 4;
    let end = bytes.len() - 4;
    let crc = bindery_types::codec::crc32c(&[&bytes[..end]]);
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(Record::decode(&bytes, CLUSTER, 17), Err(CatalogueDamage::NewerFormat { found: 4 }));
}

#[test]
fn a_record_beyond_the_limit_is_refused() {
    let extents: Vec<_> = (0..600_000).map(|of| (of, 0, 1)).collect();
    let refused = record(1, 1, 1, vec![commit(1, &extents)]).encode().unwrap_err();
    assert!(refused.to_string().contains("commit fewer objects"), "{refused}");
}
