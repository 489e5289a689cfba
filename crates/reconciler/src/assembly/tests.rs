//! Ledgers with entries of a known size; the parts that were written are put together, verified, and compared.

use std::collections::BTreeMap;
use std::sync::Arc;

use bindery_tiering::ObjectId;
use bindery_tiering::object::{FOOTER_BYTES_TARGET, Footer, Trailer, decode_block};
use bindery_types::{BookieId, DigestType, LedgerMetadata, LedgerSecret, Quorum, Segment};

use super::*;
use crate::core::BuildLedger;

const ENTRY: usize = 1000;

fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}

fn ledger(id: i64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn stored(of: i64, id: i64) -> Bytes {
    let mut bytes = Vec::with_capacity(ENTRY);
    bytes.extend_from_slice(&of.to_be_bytes());
    bytes.extend_from_slice(&id.to_be_bytes());
    bytes.resize(ENTRY, (of * 7 + id) as u8);
    Bytes::from(bytes)
}

fn order(ledgers: &[(i64, i64, i64)]) -> BuildOrder {
    let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
    let mut metadata = LedgerMetadata::new(Quorum::new(1, 1, 1).unwrap(), secret);
    let ensemble = vec![BookieId::new("b").unwrap()];
    metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
    let metadata = Arc::new(metadata);
    let of = |(id, first, last): &(i64, i64, i64)| BuildLedger {
        ledger: ledger(*id),
        first: entry(*first),
        last: entry(*last),
        metadata: metadata.clone(),
        bytes: 0,
    };
    BuildOrder { object: ObjectId::new(1, [1; 10]), ledgers: ledgers.iter().map(of).collect() }
}

/// The outside of an object.
struct Site {
    assembly: Assembly,
    now: Duration,
    /// By place in the order: the ledger, and the next entry to give.
    open: BTreeMap<usize, (i64, i64)>,
    asked: Vec<usize>,
    parts: Vec<usize>,
    bytes: Vec<u8>,
    is_writing: bool,
    is_whole: bool,
    is_aborted: bool,
    batch: i64,
    done: Option<Built>,
}

impl Site {
    fn new(ledgers: &[(i64, i64, i64)], limits: Limits) -> Site {
        let now = Duration::from_secs(100);
        let mut site = Site {
            assembly: Assembly::new(now, order(ledgers), ClusterId::from_bytes([1; 16]), 5, limits),
            now,
            open: BTreeMap::new(),
            asked: Vec::new(),
            parts: Vec::new(),
            bytes: Vec::new(),
            is_writing: false,
            is_whole: false,
            is_aborted: false,
            batch: 10,
            done: None,
        };
        site.input(Input::Time);
        site
    }

    fn input(&mut self, input: Input) {
        let mut out = Vec::new();
        self.assembly.on_input(self.now, input, &mut out);
        for output in out {
            assert!(self.done.is_none(), "nothing comes after the end: {output:?}");
            match output {
                Output::Open { index, ledger, first, .. } => {
                    self.open.insert(index, (ledger.get(), first.get()));
                    self.asked.push(index);
                }
                Output::Next(index) => self.asked.push(index),
                Output::Close(index) => {
                    self.open.remove(&index).expect("a stream is open before it is closed");
                    self.asked.retain(|asked| *asked != index);
                }
                Output::Part(chunks) | Output::LastPart(chunks) => self.write(&chunks),
                Output::Whole(chunks) => {
                    self.is_whole = true;
                    self.write(&chunks);
                }
                Output::Abort => self.is_aborted = true,
                Output::Done(built) => self.done = Some(built),
            }
        }
        assert!(self.open.len() <= READERS);
    }

    fn write(&mut self, chunks: &[Bytes]) {
        assert!(!std::mem::replace(&mut self.is_writing, true), "one part at a time");
        self.parts.push(chunks.iter().map(Bytes::len).sum());
        chunks.iter().for_each(|chunk| self.bytes.extend_from_slice(chunk));
    }

    /// The batch that the assembly wants of a ledger.
    fn deliver(&mut self, index: usize) {
        let at = self.asked.iter().position(|asked| *asked == index).expect("it was asked");
        self.asked.remove(at);
        let last = self.assembly.order.ledgers[index].last.get();
        let (of, next) = self.open.get_mut(&index).unwrap();
        let (first, of) = (*next, *of);
        let end = last.min(first + self.batch - 1);
        *next = end + 1;
        let entries = (first..=end).map(|id| stored(of, id)).collect();
        self.input(Input::Batch { index, first: entry(first), entries });
    }

    fn written(&mut self) {
        self.is_writing = false;
        match self.assembly.is_last_sent {
            true => self.input(Input::Completed { tag: Some("tag".into()) }),
            false => self.input(Input::Written),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.input(Input::Time);
    }

    fn run(&mut self) -> Built {
        while self.done.is_none() {
            match (self.asked.first().copied(), self.is_writing) {
                (Some(index), _) => self.deliver(index),
                (None, true) => self.written(),
                (None, false) => panic!("it waits for nothing"),
            }
        }
        self.done.clone().unwrap()
    }

    /// The object's entries by ledger, from its bytes alone.
    fn entries(&self) -> BTreeMap<i64, Vec<i64>> {
        let size = self.bytes.len();
        let trailer = Trailer::decode(self.bytes[size - 64..].try_into().unwrap(), size as u64).unwrap();
        let range =
            trailer.footer_offset as usize..(trailer.footer_offset + trailer.footer_size_bytes) as usize;
        let footer = Footer::decode(&Bytes::copy_from_slice(&self.bytes[range]), &trailer).unwrap();
        let new = self.done.as_ref().unwrap().outcome.clone().unwrap().unwrap();
        let committed: Vec<_> = new.extents.iter().map(|e| (e.ledger, e.first, e.last, e.bytes)).collect();
        let held: Vec<_> = footer.extents.iter().map(|e| (e.ledger, e.first, e.last, e.body_bytes)).collect();
        assert_eq!(committed, held, "what is committed is what the footer says");
        assert_eq!(new.object.length_bytes, size as u64);
        assert_eq!(
            (new.object.footer_offset, new.object.footer_crc),
            (trailer.footer_offset, trailer.footer_crc32c)
        );
        assert_eq!(new.object.etag_crc, crc32c(&[b"tag"]));
        let mut entries: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        for extent in &footer.extents {
            for (index, block) in extent.blocks.iter().enumerate() {
                let at = block.offset as usize..block.offset as usize + block.stored_size_bytes as usize;
                let bodies = decode_block(extent, index, Bytes::copy_from_slice(&self.bytes[at])).unwrap();
                for (body, id) in bodies.into_iter().zip(block.first.get()..) {
                    assert_eq!(body, stored(extent.ledger.get(), id));
                    entries.entry(extent.ledger.get()).or_default().push(id);
                }
            }
        }
        entries
    }
}

fn small() -> Limits {
    Limits { target_bytes: 100_000, part_bytes: 30_000, ..Limits::default() }
}

#[test]
fn a_short_object_is_written_at_once() {
    let mut site = Site::new(&[(1, 0, 4), (2, 10, 14)], small());
    let built = site.run();
    assert!(site.is_whole && built.left.is_empty());
    let expected = BTreeMap::from([(1, (0..5).collect()), (2, (10..15).collect::<Vec<_>>())]);
    assert_eq!(site.entries(), expected);
}

#[test]
fn a_long_one_is_written_in_parts_of_one_length() {
    let mut site = Site::new(&[(1, 0, 30), (2, 0, 30), (3, 0, 20)], small());
    let built = site.run();
    assert!(!site.is_whole && built.left.is_empty());
    let (last, others) = site.parts.split_last().unwrap();
    assert!(
        others.iter().all(|part| *part == 30_000) && *last <= 30_000 && others.len() >= 2,
        "{:?}",
        site.parts
    );
    assert_eq!(site.entries().values().map(Vec::len).sum::<usize>(), 83);
}

#[test]
fn it_is_finished_when_it_is_full_and_says_what_is_left() {
    let mut site = Site::new(&[(1, 0, 499), (2, 0, 9), (3, 0, 9), (4, 0, 9), (5, 0, 9)], small());
    let built = site.run();
    let entries = site.entries();
    assert!((95..=105).contains(&entries.values().map(Vec::len).sum::<usize>()), "{entries:?}");
    let left: Vec<i64> = built.left.iter().map(|(ledger, _)| ledger.get()).collect();
    assert!(left.contains(&1) && built.left.iter().all(|(_, left)| *left == Left::Full), "{:?}", built.left);
    assert_eq!(entries[&1], (0..entries[&1].len() as i64).collect::<Vec<_>>(), "contiguous");
}

#[test]
fn without_entries_nothing_is_written() {
    let mut site = Site::new(&[(1, 0, 9)], small());
    site.input(Input::Ended { index: 0, why: "no".into() });
    let built = site.done.clone().unwrap();
    assert_eq!((built.outcome, site.parts.len()), (Ok(None), 0));
    assert_eq!(built.left, [(ledger(1), Left::Unread("no".into()))]);
}

/// Invariant 1: entries behind a failure are not taken.
#[test]
fn a_ledger_that_fails_leaves_what_it_gave_and_the_others() {
    let mut site = Site::new(&[(1, 0, 29), (2, 0, 9)], small());
    site.deliver(0);
    site.input(Input::Ended { index: 0, why: "broken".into() });
    let built = site.run();
    assert_eq!(built.left, [(ledger(1), Left::Unread("broken".into()))]);
    assert_eq!(site.entries(), BTreeMap::from([(1, (0..10).collect()), (2, (0..10).collect::<Vec<_>>())]));
}

/// Invariant 2.
#[test]
fn a_ledger_that_is_silent_is_left_out() {
    let mut site = Site::new(&[(1, 0, 29), (2, 0, 9)], small());
    site.deliver(1);
    assert_eq!(site.assembly.wake_at(), Some(site.now + Duration::from_secs(15)));
    site.pass(Duration::from_secs(15));
    let built = site.run();
    assert_eq!(site.entries(), BTreeMap::from([(2, (0..10).collect::<Vec<_>>())]));
    assert!(matches!(&built.left[..], [(_, Left::Unread(why))] if why.contains("15s")), "{:?}", built.left);
}

/// Invariant 2.
#[test]
fn an_object_that_takes_too_long_is_finished_as_it_is() {
    let mut site = Site::new(&[(1, 0, 99)], small());
    for _ in 0..6 {
        site.deliver(0);
        site.pass(Duration::from_secs(10));
    }
    while site.done.is_none() {
        site.written();
    }
    assert_eq!(site.entries(), BTreeMap::from([(1, (0..60).collect::<Vec<_>>())]));
    assert_eq!(site.done.unwrap().left, [(ledger(1), Left::OutOfTime)]);
}

/// Invariant 3.
#[test]
fn a_ledger_that_stalls_loses_its_turn_and_goes_on_later() {
    let mut site = Site::new(&[(1, 0, 29), (2, 0, 19)], small());
    site.deliver(0);
    site.deliver(1);
    let is_in = |site: &Site, index| site.asked.contains(&index);
    assert!(!is_in(&site, 1), "its batch waits for its turn");
    assert_eq!(site.assembly.wake_at(), Some(site.now + Duration::from_millis(300)));
    site.pass(Duration::from_millis(300));
    assert!(is_in(&site, 1), "now it has it");
    let built = site.run();
    assert!(built.left.is_empty());
    assert_eq!(site.entries(), BTreeMap::from([(1, (0..30).collect()), (2, (0..20).collect::<Vec<_>>())]));
    let new = built.outcome.unwrap().unwrap();
    assert_eq!(new.extents.iter().filter(|extent| extent.ledger == ledger(1)).count(), 2);
}

/// Invariant 4: no batch is requested while parts are not written.
#[test]
fn reading_waits_for_writing() {
    // Blocks have a MiB, so parts are longer here.
    let limits = Limits { target_bytes: 8_000_000, part_bytes: 1_500_000, ..Limits::default() };
    let mut site = Site::new(&[(1, 0, 9_999)], limits);
    site.batch = 500;
    while !site.asked.is_empty() {
        site.deliver(0);
    }
    let taken = site.open[&0].1;
    assert!((3_000..=4_500).contains(&taken), "two parts, a block and a batch: {taken}");
    site.now += Duration::from_secs(3);
    let built = site.run();
    let count = site.entries()[&1].len();
    assert!((7_900..=8_000).contains(&count), "until it is full: {count}");
    assert!(built.times.upload >= Duration::from_secs(3), "{:?}", built.times);
}

#[test]
fn a_write_that_fails_is_the_end_and_parts_are_given_up() {
    let mut site = Site::new(&[(1, 0, 99)], small());
    while site.parts.is_empty() {
        site.deliver(0);
    }
    site.input(Input::WriteFailed("no room".into()));
    assert_eq!(site.done.as_ref().unwrap().outcome, Err("no room".to_owned()));
    assert!(site.is_aborted && site.open.is_empty());
    let mut site = Site::new(&[(1, 0, 9)], small());
    site.input(Input::Abandoned);
    assert!(site.done.is_some() && !site.is_aborted, "nothing was written");
}

#[test]
fn entries_that_are_others_are_refused() {
    let mut site = Site::new(&[(1, 0, 9), (2, 0, 9)], small());
    site.input(Input::Batch { index: 0, first: entry(0), entries: vec![stored(1, 0), stored(2, 1)] });
    site.asked.retain(|index| *index != 0);
    let built = site.run();
    assert!(
        matches!(&built.left[..], [(_, Left::Unread(why))] if why.contains("other ids")),
        "{:?}",
        built.left
    );
    assert_eq!(site.entries(), BTreeMap::from([(1, vec![0]), (2, (0..10).collect())]));
}

/// A bookie with little memory has to hold the footer: metadata of many ledgers ends an object long before its length does.
#[test]
fn it_is_finished_when_its_footer_is_long() {
    let ledgers: Vec<(i64, i64, i64)> = (0..100).map(|id| (id, 0, 2)).collect();
    let mut site = Site::new(&ledgers, Limits { target_bytes: 64 << 20, ..Limits::default() });
    for wanted in &mut site.assembly.order.ledgers {
        let mut metadata = (*wanted.metadata).clone();
        metadata.custom.insert("note".into(), vec![7; 100 << 10]);
        wanted.metadata = Arc::new(metadata);
    }
    let built = site.run();
    let new = built.outcome.unwrap().unwrap();
    let footer = new.object.length_bytes - new.object.footer_offset;
    let expected = FOOTER_BYTES_TARGET..FOOTER_BYTES_TARGET + (256 << 10);
    assert!(expected.contains(&footer), "{footer}");
    let taken = site.entries().len();
    assert!((15..30).contains(&taken), "{taken}");
    // The last one may be cut.
    assert!((100..=101).contains(&(built.left.len() + taken)), "the others are left for the next one");
    assert!(built.left.iter().all(|(_, left)| *left == Left::Full));
}

/// With one reader, as when an object is rewritten, ranges go in in their order, also several of one ledger.
#[test]
fn one_reader_keeps_the_order() {
    let limits = Limits { readers: 1, ..small() };
    let mut site = Site::new(&[(1, 0, 9), (1, 20, 29), (1, 40, 44), (2, 5, 9)], limits);
    while site.done.is_none() {
        assert!(site.asked.len() <= 1, "{:?}", site.asked);
        match site.asked.first().copied() {
            Some(index) => site.deliver(index),
            None => site.written(),
        }
    }
    let all: Vec<i64> = (0..10).chain(20..30).chain(40..45).collect();
    assert_eq!(site.entries(), BTreeMap::from([(1, all), (2, (5..10).collect())]));
}
