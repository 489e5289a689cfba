use std::convert::Infallible;

use bindery_types::codec::crc32c;
use bindery_types::{EntryId, LedgerId};
use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::{ClusterId, ObjectId};

fn ledger(id: i64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}

/// As a bookie stores it; the payload repeats itself or not.
fn body(ledger: i64, entry: i64, payload: usize, is_compressible: bool) -> Bytes {
    let mut bytes = Vec::with_capacity(32 + payload);
    for field in [ledger, entry, entry - 1, payload as i64] {
        bytes.extend_from_slice(&field.to_be_bytes());
    }
    let mut noise = (ledger as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (entry as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    bytes.extend((0..payload).map(|index| {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if is_compressible { b"ledger"[index % 6] } else { (noise >> 56) as u8 }
    }));
    Bytes::from(bytes)
}

const OBJECT: [u8; 16] = [7; 16];
const CLUSTER: [u8; 16] = [9; 16];

fn builder(compression: Compression) -> ObjectBuilder {
    ObjectBuilder::new(
        ObjectId::from_bytes(OBJECT),
        ClusterId::from_bytes(CLUSTER),
        1_700_000_000_000,
        compression,
    )
}

/// (ledger, first entry, lengths of the payloads)
type Wanted = (i64, i64, Vec<usize>);

fn build(wanted: &[Wanted], compression: Compression, is_compressible: bool) -> (Bytes, ObjectSummary) {
    let mut builder = builder(compression);
    let mut object = Vec::new();
    for (id, first, payloads) in wanted {
        builder.begin(ledger(*id), entry(*first), Bytes::from(format!("metadata of {id}"))).unwrap();
        for (id_of_entry, payload) in (*first..).zip(payloads) {
            let body = body(*id, id_of_entry, *payload, is_compressible);
            let crc = crc32c(&[&body]);
            builder.append(body, crc).unwrap();
            for chunk in builder.take() {
                object.extend_from_slice(&chunk);
            }
        }
    }
    let (rest, summary) = builder.finish();
    rest.iter().for_each(|chunk| object.extend_from_slice(chunk));
    (Bytes::from(object), summary)
}

fn check(object: &Bytes) -> Result<Verified, VerifyError<Infallible>> {
    let read = |offset: u64, length: u64| {
        let begin = (offset as usize).min(object.len());
        Ok(object.slice(begin..begin.saturating_add(length as usize).min(object.len())))
    };
    verify(object.len() as u64, read, |_| {})
}

fn entries_of(object: &Bytes, footer: &Footer) -> Vec<Bytes> {
    let mut all = Vec::new();
    for extent in &footer.extents {
        for (index, block) in extent.blocks.iter().enumerate() {
            let stored = object
                .slice(block.offset as usize..(block.offset + u64::from(block.stored_size_bytes)) as usize);
            all.extend(decode_block(extent, index, stored).unwrap());
        }
    }
    all
}

proptest! {
    /// Invariants 1 and 2: entries come out as they went in, for all ledgers, lengths and kinds of compression.
    #[test]
    fn entries_come_back_as_they_went_in(
        runs in prop::collection::vec((0_i64..6, 0_i64..1000, prop::collection::vec(0_usize..3000, 1..40)), 1..12),
        is_zstd in any::<bool>(),
        is_compressible in any::<bool>(),
    ) {
        // The extents of a ledger ascend, with or without a gap between them.
        let mut next = [0; 6];
        let runs: Vec<Wanted> = runs.into_iter().map(|(id, gap, payloads)| {
            let first = next[id as usize] + gap;
            next[id as usize] = first + payloads.len() as i64;
            (id, first, payloads)
        }).collect();
        let compression = if is_zstd { Compression::Zstd } else { Compression::None };
        let (object, summary) = build(&runs, compression, is_compressible);
        prop_assert_eq!(summary.size_bytes, object.len() as u64);
        prop_assert_eq!(summary.crc32c, crc32c(&[&object]));
        let verified = check(&object).unwrap();
        prop_assert_eq!(&verified.footer, &summary.footer);
        prop_assert_eq!(&verified.trailer, &summary.trailer);
        prop_assert_eq!(verified.header.cluster, ClusterId::from_bytes(CLUSTER));
        let mut expected: Vec<Wanted> = runs;
        expected.sort_unstable_by_key(|(id, first, _)| (*id, *first));
        let expected: Vec<Bytes> = expected.iter().flat_map(|(id, first, payloads)| {
            (*first..).zip(payloads).map(move |(at, payload)| body(*id, at, *payload, is_compressible))
        }).collect();
        prop_assert_eq!(verified.entries, expected.len() as u64);
        prop_assert_eq!(entries_of(&object, &verified.footer), expected);
    }

    /// Invariant 4: no byte can be changed, and no length, without an error.
    #[test]
    fn an_altered_object_is_refused(at in any::<prop::sample::Index>(), flip in 1_u8..=255, is_zstd in any::<bool>()) {
        let compression = if is_zstd { Compression::Zstd } else { Compression::None };
        let (object, _) = build(&[(3, 5, vec![0, 700, 20]), (1, 0, vec![90, 90])], compression, true);
        let at = at.index(object.len());
        let mut altered = object.to_vec();
        altered[at] ^= flip;
        prop_assert!(check(&Bytes::from(altered)).is_err(), "byte {at}");
        prop_assert!(check(&object.slice(..at)).is_err(), "cut to {at} bytes");
        let mut longer = object.to_vec();
        longer.extend_from_slice(&object[..at.max(1)]);
        prop_assert!(check(&Bytes::from(longer)).is_err(), "longer by {at} bytes");
    }

    /// Invariant 4: a footer of arbitrary fields with a correct checksum gives an error or something that fulfils the
    /// invariants, without a panic and without a large allocation.
    #[test]
    fn a_forged_footer_is_checked(at in any::<prop::sample::Index>(), with in any::<[u8; 4]>()) {
        let (object, summary) = build(&[(3, 5, vec![0, 700, 20]), (1, 0, vec![90, 90])], Compression::None, true);
        let mut trailer = summary.trailer;
        let begin = trailer.footer_offset as usize;
        let mut footer = object[begin..begin + trailer.footer_size_bytes as usize].to_vec();
        let at = at.index(footer.len() - 4);
        footer[at..at + 4].copy_from_slice(&with);
        trailer.footer_crc32c = crc32c(&[&footer]);
        if let Ok(decoded) = Footer::decode(&Bytes::from(footer), &trailer) {
            for extent in &decoded.extents {
                prop_assert!(extent.table_offset + extent.table_size_bytes() <= trailer.footer_offset);
                for index in 0..extent.blocks.len() {
                    let _ = decode_block(extent, index, object.clone());
                }
            }
        }
    }
}

#[test]
fn blocks_are_closed_at_their_target() {
    let (object, summary) = build(&[(1, 0, vec![300_000; 10])], Compression::None, false);
    let extent = &summary.footer.extents[0];
    assert_eq!(extent.blocks.len(), 3, "four entries of 300 kB reach the target of 1 MiB");
    assert_eq!((extent.block_of(entry(3)), extent.block_of(entry(4))), (Some(0), Some(1)));
    assert_eq!((extent.last_of(0), extent.last_of(2)), (entry(3), entry(9)));
    assert_eq!(extent.block_of(entry(10)), None);
    assert_eq!(entries_of(&object, &summary.footer).len(), 10);
}

/// Invariant 5.
#[test]
fn little_is_held_while_an_object_grows() {
    let mut builder = builder(Compression::None);
    builder.begin(ledger(1), entry(0), Bytes::from_static(b"m")).unwrap();
    let mut held_max = 0;
    for id in 0..100_000 {
        let body = body(1, id, 400, false);
        let crc = crc32c(&[&body]);
        builder.append(body, crc).unwrap();
        held_max = held_max.max(builder.held_bytes());
        let size = builder.size_bytes();
        let taken: usize = builder.take().iter().map(Bytes::len).sum();
        assert_eq!(builder.size_bytes(), size, "taking {taken} bytes changes nothing");
    }
    let table = 100_000 * TABLE_ENTRY_SIZE_BYTES;
    assert!(held_max < BLOCK_BYTES_TARGET + (64 << 10) + table, "{held_max}");
    let announced = builder.size_bytes();
    let (_, summary) = builder.finish();
    assert!(announced >= summary.size_bytes && announced - summary.size_bytes < 200, "{announced}");
}

#[test]
fn compression_is_skipped_where_it_saves_little() {
    let (_, random) = build(&[(1, 0, vec![1000; 50])], Compression::Zstd, false);
    let (_, text) = build(&[(1, 0, vec![1000; 50])], Compression::Zstd, true);
    assert_eq!(random.footer.extents[0].blocks[0].compression, Compression::None);
    assert_eq!(text.footer.extents[0].blocks[0].compression, Compression::Zstd);
    assert!(text.size_bytes < random.size_bytes / 4, "{} and {}", text.size_bytes, random.size_bytes);
}

#[test]
fn what_does_not_belong_is_refused_and_changes_nothing() {
    let mut builder = builder(Compression::None);
    builder.begin(ledger(1), entry(5), Bytes::from_static(b"m")).unwrap();
    for wrong in [body(2, 5, 9, false), body(1, 6, 9, false), body(1, 5, 9, false).slice(..20), Bytes::new()]
    {
        let refused = builder.append(wrong, 0).unwrap_err();
        assert_eq!(refused, AppendError::OtherEntry { ledger: ledger(1), entry: entry(5) });
    }
    assert!(builder.is_empty());
    let metadata = Bytes::from(vec![0; METADATA_BYTES_MAX + 1]);
    let refused = builder.begin(ledger(9), entry(0), metadata).unwrap_err();
    assert!(matches!(refused, AppendError::MetadataTooLarge { .. }), "{refused}");
    // A ledger without entries leaves no trace.
    builder.begin(ledger(2), entry(0), Bytes::from_static(b"n")).unwrap();
    let body = body(2, 0, 9, false);
    builder.append(body.clone(), crc32c(&[&body])).unwrap();
    let (_, summary) = builder.finish();
    assert_eq!(summary.footer.ledgers.keys().copied().collect::<Vec<_>>(), [ledger(2)]);
}

#[test]
fn a_newer_version_is_told_from_damage() {
    let (object, _) = build(&[(1, 0, vec![10])], Compression::None, true);
    let newer = |at: usize| {
        let mut bytes = object.to_vec();
        bytes[at + 8..at + 12].copy_from_slice(&2_u32.to_le_bytes());
        let crc = crc32c(&[&bytes[at..at + 60]]);
        bytes[at + 60..at + 64].copy_from_slice(&crc.to_le_bytes());
        check(&Bytes::from(bytes)).unwrap_err().to_string()
    };
    for at in [0, object.len() - TRAILER_SIZE_BYTES] {
        assert!(newer(at).contains("object format 2 is newer"), "{}", newer(at));
    }
    let other = check(&Bytes::from(vec![b'x'; 5000])).unwrap_err().to_string();
    assert!(other.contains("not a whole object"), "{other}");
}

/// A table that lists other checksums than the entries have is found by reading them: an object that lies about itself.
#[test]
fn a_table_that_lies_is_found() {
    let mut builder = builder(Compression::None);
    builder.begin(ledger(1), entry(0), Bytes::from_static(b"m")).unwrap();
    let body = body(1, 0, 9, false);
    builder.append(body.clone(), crc32c(&[&body]) ^ 1).unwrap();
    let (chunks, _) = builder.finish();
    let refused = check(&Bytes::from(chunks.concat())).unwrap_err().to_string();
    assert!(refused.contains("not as its table says"), "{refused}");
}
