//! Marked ledgers: how many copies and bytes they lack, by their metadata.
//!
//! # Limits     [`LISTED_MAX`] marks are listed; metadata of [`READS_AT_ONCE`] are read at a time, and each again only when other bookies are there

use bindery_client::StoreError;
use bindery_metadata::Layout;
use bindery_metadata::layout::LedgerError;
use bindery_repair::core::audit::{Audit, audit, entry_bytes};
use bindery_types::{BookieId, LedgerId, LedgerMetadata};
use std::collections::{BTreeMap, BTreeSet};
use tokio::task::JoinSet;

/// Marks that are listed; more are only said to be there.
const LISTED_MAX: usize = 200_000;
/// Ledgers whose metadata is read at a time.
const READS_AT_ONCE: usize = 32;

/// What marked ledgers lack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MissingCopies {
    /// Marked ledgers.
    pub marked: u64,
    /// Whether there are more of them.
    pub has_more: bool,
    /// Those whose metadata was read, by the live copies of the entry that has the fewest.
    pub by_copies: BTreeMap<usize, u64>,
    /// Those whose metadata cannot be read, or that are deleted.
    pub unknown: u64,
    known_bytes: u64,
}

impl MissingCopies {
    /// Ledgers whose metadata was read.
    pub fn looked_at(&self) -> u64 {
        self.by_copies.values().sum::<u64>() + self.unknown
    }

    /// An estimate of the bytes to copy, once all metadata was read. Open ledgers, whose length is not known, count as empty.
    pub fn bytes(&self) -> Option<u64> {
        (!self.has_more && self.looked_at() == self.marked).then_some(self.known_bytes)
    }
}

#[cfg(test)]
impl MissingCopies {
    /// All looked at.
    pub fn of<const N: usize>(marked: u64, by_copies: [(usize, u64); N], bytes: u64) -> MissingCopies {
        let by_copies = BTreeMap::from(by_copies);
        MissingCopies { marked, by_copies, known_bytes: bytes, ..MissingCopies::default() }
    }
}

/// What is known of one marked ledger.
struct Lacking {
    /// `None`: its metadata cannot be read, or it is deleted.
    copies: Option<usize>,
    bytes: u64,
}

/// Marked ledgers, from one look to the next.
#[derive(Default)]
pub struct Marks {
    /// Who was there when `known` was read.
    live: BTreeSet<BookieId>,
    known: BTreeMap<LedgerId, Lacking>,
    marked: BTreeSet<LedgerId>,
}

impl Marks {
    /// Whether the ledger was marked at the last look, as far as marks were listed.
    pub fn is_marked(&self, ledger: LedgerId) -> bool {
        self.marked.contains(&ledger)
    }

    /// Lists the marks, and reads metadata of at most `reads_max` ledgers that are new.
    pub async fn look(
        &mut self,
        layout: &Layout,
        live: BTreeSet<BookieId>,
        reads_max: usize,
    ) -> Result<MissingCopies, StoreError> {
        let (mut listing, mut marked, mut has_more) =
            (layout.under_replication().list(), BTreeSet::new(), false);
        while let Some(page) = listing.next().await? {
            marked.extend(page);
            if marked.len() >= LISTED_MAX {
                has_more = true;
                break;
            }
        }
        self.marked = marked;
        if self.live != live {
            (self.live, self.known) = (live, BTreeMap::new());
        }
        self.known.retain(|ledger, _| self.marked.contains(ledger));
        let unknown = self.marked.iter().filter(|ledger| !self.known.contains_key(ledger));
        let unknown: Vec<LedgerId> = unknown.take(reads_max).copied().collect();
        let mut reads = JoinSet::new();
        let mut unknown = unknown.into_iter();
        loop {
            while reads.len() < READS_AT_ONCE
                && let Some(ledger) = unknown.next()
            {
                let ledgers = layout.ledgers();
                reads.spawn(async move { (ledger, ledgers.get(ledger).await) });
            }
            match reads.join_next().await {
                None => break,
                Some(Ok((ledger, Ok(stored)))) => {
                    let lacking = lacking(&stored.metadata, &self.live);
                    self.known.insert(ledger, lacking);
                }
                Some(Ok((_, Err(LedgerError::Store(error))))) => return Err(error),
                Some(Ok((ledger, Err(_)))) => {
                    self.known.insert(ledger, Lacking { copies: None, bytes: 0 });
                }
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        Ok(self.missing(has_more))
    }

    fn missing(&self, has_more: bool) -> MissingCopies {
        let mut missing =
            MissingCopies { marked: self.marked.len() as u64, has_more, ..MissingCopies::default() };
        for Lacking { copies, bytes } in self.known.values() {
            missing.known_bytes = missing.known_bytes.saturating_add(*bytes);
            match copies {
                Some(copies) => *missing.by_copies.entry(*copies).or_insert(0) += 1,
                None => missing.unknown += 1,
            }
        }
        missing
    }
}

fn lacking(metadata: &LedgerMetadata, live: &BTreeSet<BookieId>) -> Lacking {
    let found = audit(metadata, |bookie| live.contains(bookie));
    Lacking { copies: Some(found.copies_min), bytes: bytes(metadata, &found) }
}

/// About how many bytes the copies have that a ledger lacks: a position of an ensemble has the entries of its part of the stripes.
fn bytes(metadata: &LedgerMetadata, found: &Audit) -> u64 {
    let quorum = metadata.quorum;
    let (written, ensemble) = (quorum.write_quorum_size() as u64, quorum.ensemble_size() as u64);
    let entries = found.lacks.iter().map(|lack| {
        let of_segment = lack.last.get().saturating_sub(lack.first.get()).saturating_add(1).unsigned_abs();
        (u128::from(of_segment) * u128::from(written)).div_ceil(u128::from(ensemble.max(1)))
    });
    let bytes = entries.sum::<u128>() * u128::from(entry_bytes(metadata));
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_metadata::memory::MemoryCluster;
    use bindery_metadata::{LedgerLayout, layout};
    use bindery_types::{DigestType, EntryId, LedgerSecret, LedgerState, Quorum, Segment};
    use std::sync::Arc;

    fn id(name: &str) -> BookieId {
        BookieId::new(name).unwrap()
    }

    fn ids(names: &str) -> BTreeSet<BookieId> {
        names.split(' ').map(id).collect()
    }

    /// Closed, with 100 entries of 10 bytes.
    fn ledger(names: &str, quorum: (usize, usize, usize)) -> LedgerMetadata {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(Quorum::new(quorum.0, quorum.1, quorum.2).unwrap(), secret);
        let ensemble = names.split(' ').map(id).collect();
        metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
        metadata.state = LedgerState::Closed { last_entry: EntryId::new(99), length_bytes: 1000 };
        metadata
    }

    #[test]
    fn bytes_are_those_of_the_positions_that_lack_them() {
        let whole = ledger("a b c", (3, 3, 2));
        assert_eq!(bytes(&whole, &audit(&whole, |bookie| bookie.as_str() != "a")), 1000);
        assert_eq!(bytes(&whole, &audit(&whole, |bookie| bookie.as_str() == "a")), 2000);
        assert_eq!(bytes(&whole, &audit(&whole, |_| true)), 0);
        let striped = ledger("a b c d", (4, 2, 2));
        assert_eq!(bytes(&striped, &audit(&striped, |bookie| bookie.as_str() != "a")), 500);
    }

    #[tokio::test]
    async fn marks_are_counted_by_copies_and_metadata_is_read_in_parts() {
        let cluster = MemoryCluster::new();
        layout::init_cluster(&cluster.open(), "/l", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
        let layout = Layout::open(Arc::new(cluster.open()), "/l", None).await.unwrap();
        let at = |ledger| LedgerId::new(ledger).unwrap();
        for ledger_id in 0..10 {
            let metadata = ledger(if ledger_id < 4 { "a b c" } else { "b c d" }, (3, 3, 2));
            if ledger_id != 9 {
                layout.ledgers().create(at(ledger_id), &metadata).await.unwrap();
            }
            layout.under_replication().mark(at(ledger_id), &[id("a")]).await.unwrap();
        }
        let mut marks = Marks::default();
        let first = marks.look(&layout, ids("c d"), 3).await.unwrap();
        assert_eq!((first.marked, first.looked_at(), first.bytes()), (10, 3, None));
        let all = marks.look(&layout, ids("c d"), 100).await.unwrap();
        // Ledger 9 is deleted; 4 lack a and b, 5 lack b.
        let expected = BTreeMap::from([(1, 4), (2, 5)]);
        assert_eq!(
            (all.by_copies.clone(), all.unknown, all.bytes()),
            (expected, 1, Some(4 * 2000 + 5 * 1000))
        );
        assert!(marks.is_marked(at(9)) && !marks.is_marked(at(10)));
        // The bookies changed, so all metadata is read again.
        let back = marks.look(&layout, ids("a b c d"), 100).await.unwrap();
        assert_eq!((back.bytes(), back.by_copies), (Some(0), BTreeMap::from([(3, 9)])));
    }
}
