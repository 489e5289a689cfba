//! The scan: compares the objects of the bucket with the rows of the catalogue, a page with each pass, round and round.
//!
//! # Invariants
//! 1. A page is listed before its rows are read. A row is there before its object, so the catalogue as it is does not know an object
//!    without a row. Whether anybody needs it is for [`super::orphans`] to prove.
//! 2. Such an object is looked at when the store says that it was written longer ago than the delay, by the store's own clock.
//! 3. An object that a row refers to and that was not listed is looked up by name, and is missing only when it is not there.
//!    That is an alarm, once, and it is asked for again in each pass; nothing at all is deleted until it is back, or nothing refers
//!    to it any more ([`super::doubts`]). One that another tierer found missing is looked up in the same way.

use std::collections::BTreeMap;
use std::time::Duration;

use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::{ObjectRow, StoredObject};

/// An object that the store listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedObject {
    /// Its id.
    pub object: ObjectId,
    /// When it was written, by the store's clock, in milliseconds since the epoch.
    pub modified_ms: u64,
    /// Its length.
    pub length_bytes: u64,
}

/// A row of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScannedRow {
    /// The object's id.
    pub object: ObjectId,
    /// The object, when extents refer to it, or bookies may; `None` for those that are reserved or unreferenced.
    pub live: Option<StoredObject>,
}

impl ScannedRow {
    /// From the catalogue's.
    pub fn new(object: ObjectId, row: &ObjectRow) -> ScannedRow {
        let live = match row {
            ObjectRow::Stored(stored) => Some(*stored).filter(|row| row.live_extents > 0),
            ObjectRow::Reserved { .. } => None,
        };
        ScannedRow { object, live }
    }

    /// The length that was committed.
    fn live_bytes(&self) -> Option<u64> {
        self.live.map(|stored| stored.object.length_bytes)
    }
}

/// A stretch of ids: the objects that the store has, and the rows that the catalogue has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScanPage {
    /// As they were listed.
    pub objects: Vec<ListedObject>,
    /// Of the same stretch, read after the listing.
    pub rows: Vec<ScannedRow>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<ObjectId>,
    /// The store's time when the page was listed.
    pub now_ms: u64,
}

/// What the scan tells of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScanCounts {
    /// Times that all of the bucket was compared.
    pub sweeps: u64,
    /// Objects that were compared, ever.
    pub objects: u64,
    /// Objects without a row that were deleted.
    pub orphans_deleted: u64,
    /// Objects without a row that are not old enough, of this sweep or the last.
    pub orphans_waiting: u64,
    /// Objects without a row that are old enough, and kept: somebody may need them, as far as is known.
    pub orphans_kept: u64,
    /// Objects without a row that are kept because they cannot be read.
    pub orphans_unreadable: u64,
    /// Objects that the catalogue refers to and the bucket does not have as they were committed.
    pub missing: u64,
}

/// What a page asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// Objects without a row that are old enough.
    pub orphans: Vec<ListedObject>,
    /// Objects that were not listed, or have another length than was committed, with that one.
    pub doubtful: Vec<(ObjectId, u64)>,
}

/// How far the scan is.
#[derive(Debug, Clone, Default)]
pub(super) struct Scan {
    /// Behind which the next page begins.
    pub after: Option<ObjectId>,
    waiting: u64,
    /// Objects that are missing, for each of which there was an alarm, with the lengths that were committed.
    missing: BTreeMap<ObjectId, u64>,
    /// Objects that other tierers found missing, which this one looks up next.
    to_look_up: BTreeMap<ObjectId, u64>,
    pub counts: ScanCounts,
}

impl Scan {
    /// Everything that decides what comes next.
    #[cfg(test)]
    pub fn essence(&self) -> impl std::fmt::Debug + '_ {
        (self.after, &self.missing, &self.to_look_up)
    }

    /// Compares a page, and moves on.
    pub fn on_page(&mut self, page: &ScanPage, delay: Duration, ignores_reservations: bool) -> Findings {
        let mut listed: BTreeMap<ObjectId, ListedObject> =
            page.objects.iter().map(|found| (found.object, *found)).collect();
        self.counts.objects += listed.len() as u64;
        // Those that are missing come first, so that the doubt about them ends soon.
        self.to_look_up.retain(|object, _| !self.missing.contains_key(object));
        let doubtful = self.missing.iter().chain(&self.to_look_up).map(|(object, length)| (*object, *length));
        let doubtful = doubtful.collect();
        let mut findings = Findings { doubtful, orphans: Vec::new() };
        for row in &page.rows {
            if ignores_reservations && row.live.is_none() {
                continue;
            }
            let found = listed.remove(&row.object);
            if let Some(length) = row.live_bytes()
                && found.is_none_or(|found| found.length_bytes != length)
            {
                // Of more than these the next sweep hears.
                if findings.doubtful.len() < DOUBTFUL_MAX + MISSING_MAX
                    && !self.missing.contains_key(&row.object)
                    && !self.to_look_up.contains_key(&row.object)
                {
                    findings.doubtful.push((row.object, length));
                }
            }
        }
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        for orphan in listed.values() {
            match ignores_reservations || orphan.modified_ms.saturating_add(delay_ms) <= page.now_ms {
                true => findings.orphans.push(*orphan),
                false => self.waiting += 1,
            }
        }
        self.after = page.next;
        if page.next.is_none() {
            self.counts.sweeps += 1;
            self.counts.orphans_waiting = std::mem::take(&mut self.waiting);
        }
        self.counts.orphans_waiting = self.counts.orphans_waiting.max(self.waiting);
        findings
    }

    /// These objects were looked up by name, and those of them are not there. Returns the new ones.
    pub fn on_missing(&mut self, asked: &[(ObjectId, u64)], missing: &[ObjectId]) -> Vec<ObjectId> {
        let mut new = Vec::new();
        for (object, length) in asked {
            self.to_look_up.remove(object);
            if !missing.contains(object) {
                self.missing.remove(object);
            } else if self.missing.len() < MISSING_MAX && self.missing.insert(*object, *length).is_none() {
                new.push(*object);
            }
        }
        self.counts.missing = self.missing.len() as u64;
        new
    }

    /// Other tierers found these missing, with the lengths that were committed.
    pub fn look_up(&mut self, objects: &[(ObjectId, u64)]) {
        for (object, length) in objects {
            if self.to_look_up.len() < MISSING_MAX && !self.missing.contains_key(object) {
                self.to_look_up.insert(*object, *length);
            }
        }
    }

    /// Those that are missing, with the lengths that were committed.
    pub fn missing(&self) -> impl Iterator<Item = (ObjectId, u64)> + '_ {
        self.missing.iter().map(|(object, length)| (*object, *length))
    }

    /// One that is missing.
    pub fn a_missing(&self) -> Option<ObjectId> {
        self.missing.keys().next().copied()
    }
}

/// Objects that are looked up by name for one page.
const DOUBTFUL_MAX: usize = 1000;

/// Missing objects that are remembered, and raise an alarm each.
const MISSING_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(100);

    fn object(n: u8) -> ObjectId {
        ObjectId::new(7, [n; 10])
    }

    fn page(objects: &[(u8, u64)], rows: &[(u8, Option<u64>)]) -> ScanPage {
        ScanPage {
            objects: objects
                .iter()
                .map(|(n, modified_ms)| ListedObject {
                    object: object(*n),
                    modified_ms: *modified_ms,
                    length_bytes: 10,
                })
                .collect(),
            rows: rows
                .iter()
                .map(|(n, live_bytes)| ScannedRow {
                    object: object(*n),
                    live: live_bytes.map(|bytes| super::super::tests::stored(object(*n), bytes, 1.0)),
                })
                .collect(),
            next: None,
            now_ms: 1000,
        }
    }

    /// Invariant 2.
    #[test]
    fn objects_without_a_row_count_when_the_store_says_that_they_are_old() {
        let mut scan = Scan::default();
        let page = page(&[(1, 0), (2, 0), (3, 900), (4, 901)], &[(1, Some(10)), (2, None)]);
        let findings = scan.on_page(&page, DELAY, false);
        let old = ListedObject { object: object(3), modified_ms: 900, length_bytes: 10 };
        assert_eq!(findings, Findings { orphans: vec![old], doubtful: Vec::new() });
        assert_eq!((scan.counts.orphans_waiting, scan.counts.sweeps, scan.counts.objects), (1, 1, 4));
    }

    /// Invariant 3.
    #[test]
    fn objects_that_are_referred_to_and_not_listed_or_not_as_committed_are_asked_for() {
        let mut scan = Scan::default();
        let rows = [(1, Some(10)), (2, Some(10)), (3, Some(11)), (4, None)];
        let findings = scan.on_page(&page(&[(1, 0), (3, 0)], &rows), DELAY, false);
        assert_eq!(findings.doubtful, [(object(2), 10), (object(3), 11)]);
        assert_eq!(scan.on_missing(&findings.doubtful, &[object(2)]), [object(2)]);
        assert_eq!(scan.on_missing(&findings.doubtful, &[object(2)]), [], "one alarm");
        assert_eq!((scan.counts.missing, scan.a_missing()), (1, Some(object(2))));
        // It is asked for again with each page, wherever it is, and only the answer counts.
        let findings = scan.on_page(&page(&[(9, 0)], &[(9, Some(10))]), DELAY, false);
        assert_eq!(findings.doubtful, [(object(2), 10)]);
        scan.on_missing(&findings.doubtful, &[]);
        assert_eq!(scan.counts.missing, 0, "it is back");
    }

    /// Whatever page comes next: the one that found it may be gone before this scan is there.
    #[test]
    fn objects_that_another_tierer_found_missing_are_looked_up_next() {
        let mut scan = Scan::default();
        scan.look_up(&[(object(2), 10), (object(3), 10)]);
        let findings = scan.on_page(&page(&[(9, 0)], &[(9, Some(10))]), DELAY, false);
        assert_eq!(findings.doubtful, [(object(2), 10), (object(3), 10)]);
        assert_eq!(scan.on_missing(&findings.doubtful, &[object(2)]), [object(2)]);
        assert_eq!(scan.missing().collect::<Vec<_>>(), [(object(2), 10)]);
        let findings = scan.on_page(&page(&[(9, 0)], &[(9, Some(10))]), DELAY, false);
        assert_eq!(findings.doubtful, [(object(2), 10)], "the other one was there");
    }
}
