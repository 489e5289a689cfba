//! The check of all ledgers: whether bookies that are there have what metadata say they have.
//!
//! # Data flow
//! ```text
//! due_in --> ledgers, ascending --> Progress::begin --> shares(metadata) --> each bookie: list --> Comparison --.
//!                                        |                                            probes --> copies     --+--> Outcome
//!                                        '------------------------ Progress::end <------------------------------'
//! ```
//!
//! # Invariants
//! 1. Only what a bookie denies is a lack. One that does not answer, is in limbo, or fails lacks nothing by that.
//! 2. Of each position the first and the last entry are read, besides the list: a list comes from an index, which says nothing of the
//!    file behind it, and not every bookie has one.
//! 3. A check that was interrupted goes on behind the last ledger before which all are done.
//!
//! # Limits     [`STEP_ENTRIES`] entries are compared at a time; [`PROBLEMS_MAX`] ledgers are named

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_client::EntryAvailability;
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata, Quorum};

use super::audit::{SegmentEnd, segments};

/// Entries of a share that are compared without a pause.
pub const STEP_ENTRIES: u32 = 1 << 16;
/// Ledgers that are named because something is wrong with them, or could not be found out.
pub const PROBLEMS_MAX: usize = 100;

/// The entries of one segment that belong to one position. It has at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The first of them.
    pub first: EntryId,
    /// The last of them.
    pub last: EntryId,
    /// In the ensemble.
    pub position: usize,
}

/// What each bookie should have of a ledger, as far as that is settled: not of the last segment of one that is not closed.
pub fn shares(metadata: &LedgerMetadata) -> BTreeMap<BookieId, Vec<Share>> {
    let mut shares: BTreeMap<BookieId, Vec<Share>> = BTreeMap::new();
    for (segment, end) in segments(metadata) {
        let SegmentEnd::At(end) = end else { continue };
        for (position, bookie) in segment.ensemble.iter().enumerate() {
            let quorum = metadata.quorum;
            let Some(first) = next_of(quorum, position, segment.first_entry, end) else { continue };
            let Some(last) = last_of(quorum, position, first, end) else { continue };
            shares.entry(bookie.clone()).or_default().push(Share { first, last, position });
        }
    }
    shares
}

/// The lowest entry of a position from `from` to `end`. They repeat after as many as the ensemble has bookies.
fn next_of(quorum: Quorum, position: usize, from: EntryId, end: EntryId) -> Option<EntryId> {
    let turn = i64::try_from(quorum.ensemble_size()).unwrap_or(i64::MAX);
    let beyond = from.get().saturating_add(turn).min(end.get().saturating_add(1));
    let mut entries = (from.get()..beyond).filter_map(EntryId::new);
    entries.find(|entry| quorum.is_in_write_set(*entry, position))
}

/// The highest one from `first` to `end`.
fn last_of(quorum: Quorum, position: usize, first: EntryId, end: EntryId) -> Option<EntryId> {
    let turn = i64::try_from(quorum.ensemble_size()).unwrap_or(i64::MAX);
    let above = end.get().saturating_sub(turn).max(first.get() - 1);
    let mut entries = (above + 1..=end.get()).rev().filter_map(EntryId::new);
    entries.find(|entry| quorum.is_in_write_set(*entry, position))
}

impl Share {
    /// Entries to read: the first and the last, and of those between them `percent`, evenly and in order.
    pub fn probes(self, quorum: Quorum, percent: u32) -> impl Iterator<Item = EntryId> {
        let stride = 100_i64.checked_div(i64::from(percent.min(100))).unwrap_or(i64::MAX);
        let mut next = Some(self.first);
        std::iter::from_fn(move || {
            let probe = next?;
            // The last one ends it.
            next = (probe < self.last).then(|| {
                let from = probe.get().saturating_add(stride).min(self.last.get());
                let from = EntryId::new(from).expect("above an id");
                next_of(quorum, self.position, from, self.last).unwrap_or(self.last)
            });
            Some(probe)
        })
    }
}

/// Compares a list of entries with the shares of its bookie, some entries at a time.
#[derive(Debug)]
pub struct Comparison<'a> {
    quorum: Quorum,
    shares: &'a [Share],
    next: Option<EntryId>,
    list: &'a EntryAvailability,
}

impl<'a> Comparison<'a> {
    /// From the first entry on.
    pub fn new(quorum: Quorum, shares: &'a [Share], list: &'a EntryAvailability) -> Comparison<'a> {
        Comparison { quorum, shares, next: None, list }
    }

    /// Compares [`STEP_ENTRIES`] more: whether the bookie lacks any entry, as soon as that is known.
    pub fn step(&mut self) -> Option<bool> {
        for _ in 0..STEP_ENTRIES {
            let Some(share) = self.shares.first() else { return Some(false) };
            let entry = self.next.unwrap_or(share.first);
            if self.quorum.is_in_write_set(entry, share.position) && !self.list.contains(entry) {
                return Some(true);
            }
            self.next = entry.get().checked_add(1).and_then(EntryId::new).filter(|next| *next <= share.last);
            if self.next.is_none() {
                self.shares = &self.shares[1..];
            }
        }
        None
    }
}

/// Time until a check with this interval is due. The last one ended at `ended_ms`, by the clock of that auditor.
/// An end in the future comes from a wrong clock, and counts as now.
pub fn due_in(interval: Duration, ended_ms: Option<i64>, now_ms: i64) -> Duration {
    let Some(ended_ms) = ended_ms else { return Duration::ZERO };
    let since = Duration::from_millis(u64::try_from(now_ms.saturating_sub(ended_ms)).unwrap_or(0));
    interval.saturating_sub(since)
}

/// Spreads requests evenly over time.
#[derive(Debug)]
pub struct Pace {
    per_second: u32,
    next_at: Duration,
}

impl Pace {
    /// So many in a second, at least one.
    pub fn new(per_second: u32) -> Pace {
        Pace { per_second: per_second.max(1), next_at: Duration::ZERO }
    }

    /// When the next request may go. Time without requests is not made up for.
    pub fn next(&mut self, now: Duration) -> Duration {
        let at = self.next_at.max(now);
        self.next_at = at + Duration::from_secs(1) / self.per_second;
        at
    }
}

/// What came of the check of a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every bookie that is there and should have entries of it has them, as far as was looked.
    Whole,
    /// These bookies lack entries, and it was marked for them.
    Lacking(Vec<BookieId>),
    /// It is not known, for this reason.
    Unchecked(String),
    /// It was deleted meanwhile.
    Gone,
}

/// A ledger with which something is wrong, and what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The ledger.
    pub ledger: LedgerId,
    /// What was found, or is in the way.
    pub why: String,
}

/// How far a check is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    begun: Option<LedgerId>,
    under_way: BTreeSet<LedgerId>,
    /// Ledgers that lack nothing.
    pub whole: u64,
    /// Those that were marked.
    pub lacking: u64,
    /// Those of which it is not known.
    pub unchecked: u64,
    /// Of the last two kinds, the first [`PROBLEMS_MAX`].
    pub problems: Vec<Problem>,
}

impl Progress {
    /// A ledger is being checked. They are begun in the order of their ids.
    pub fn begin(&mut self, ledger: LedgerId) {
        self.begun = self.begun.max(Some(ledger));
        self.under_way.insert(ledger);
    }

    /// Its check is over.
    pub fn end(&mut self, ledger: LedgerId, outcome: Outcome) {
        self.under_way.remove(&ledger);
        let why = match outcome {
            Outcome::Gone => return,
            Outcome::Whole => {
                self.whole += 1;
                return;
            }
            Outcome::Lacking(bookies) => {
                self.lacking += 1;
                let names = bookies.iter().map(BookieId::as_str).collect::<Vec<_>>().join(", ");
                format!("{names} lacks entries: marked")
            }
            Outcome::Unchecked(why) => {
                self.unchecked += 1;
                why
            }
        };
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(Problem { ledger, why });
        }
    }

    /// After an interruption: those under way count as not begun. Returns the ledger behind which it goes on (invariant 3).
    pub fn resume(&mut self) -> Option<LedgerId> {
        if let Some(lowest) = self.under_way.pop_first() {
            self.begun = lowest.get().checked_sub(1).and_then(LedgerId::new);
            self.under_way.clear();
        }
        self.begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::{DigestType, LedgerSecret, LedgerState, Segment};

    fn at(entry: i64) -> EntryId {
        EntryId::new(entry).unwrap()
    }

    fn ledger(id: i64) -> LedgerId {
        LedgerId::new(id).unwrap()
    }

    fn metadata(
        quorum: (usize, usize, usize),
        segments: &[(i64, &str)],
        last: Option<i64>,
    ) -> LedgerMetadata {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(Quorum::new(quorum.0, quorum.1, quorum.2).unwrap(), secret);
        for (first, names) in segments {
            let ensemble = names.split(' ').map(|name| BookieId::new(name).unwrap()).collect();
            metadata.push_segment(Segment { first_entry: at(*first), ensemble }).unwrap();
        }
        if let Some(last) = last {
            metadata.state = LedgerState::Closed { last_entry: EntryId::new(last), length_bytes: 0 };
        }
        metadata
    }

    fn shares_of(metadata: &LedgerMetadata, name: &str) -> Vec<(i64, i64, usize)> {
        let shares = shares(metadata).remove(&BookieId::new(name).unwrap()).unwrap_or_default();
        shares.iter().map(|share| (share.first.get(), share.last.get(), share.position)).collect()
    }

    #[test]
    fn shares_end_with_entries_of_their_position() {
        let striped = metadata((3, 2, 2), &[(0, "a b c"), (7, "a b d")], Some(9));
        // Entries 0, 2, 3, 5 and 6 of the first segment are at position 0, and 8 and 9 of the second.
        assert_eq!(shares_of(&striped, "a"), [(0, 6, 0), (8, 9, 0)]);
        assert_eq!(shares_of(&striped, "b"), [(0, 6, 1), (7, 9, 1)]);
        assert_eq!(shares_of(&striped, "d"), [(7, 8, 2)]);
        let open = metadata((2, 2, 1), &[(0, "a b"), (4, "a c")], None);
        assert_eq!(shares_of(&open, "a"), [(0, 3, 0)], "the last segment grows");
        assert_eq!(shares_of(&open, "c"), []);
        let short = metadata((3, 1, 1), &[(0, "a b c")], Some(0));
        assert_eq!(shares_of(&short, "a"), [(0, 0, 0)]);
        assert_eq!(shares_of(&short, "b"), [], "no entry belongs to it");
        assert!(shares(&metadata((2, 2, 2), &[(0, "a b")], Some(-1))).is_empty());
        let huge = metadata((3, 2, 2), &[(0, "a b c")], Some(i64::MAX));
        assert!(shares_of(&huge, "b")[0].1 > i64::MAX - 3);
    }

    fn probes(share: Share, quorum: (usize, usize, usize), percent: u32) -> Vec<i64> {
        let quorum = Quorum::new(quorum.0, quorum.1, quorum.2).unwrap();
        share.probes(quorum, percent).map(EntryId::get).collect()
    }

    #[test]
    fn the_first_and_the_last_entry_are_read_and_a_share_between_them() {
        let share = |first, last| Share { first: at(first), last: at(last), position: 0 };
        assert_eq!(probes(share(3, 3), (2, 2, 2), 0), [3]);
        assert_eq!(probes(share(3, 99), (2, 2, 2), 0), [3, 99]);
        assert_eq!(probes(share(0, 99), (2, 2, 2), 10), [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 99]);
        assert_eq!(probes(share(0, 4), (2, 2, 2), 100), [0, 1, 2, 3, 4]);
        // Every third entry alone would miss the position: it has 0, 2, 3, 5, 6, 8, 9.
        assert_eq!(probes(share(0, 9), (3, 2, 2), 100), [0, 2, 3, 5, 6, 8, 9]);
        assert_eq!(probes(share(0, 9), (3, 2, 2), 33), [0, 3, 6, 9]);
        assert_eq!(probes(share(0, i64::MAX), (2, 2, 2), 0).len(), 2);
    }

    fn lacks(metadata: &LedgerMetadata, name: &str, has: &[(i64, i64)]) -> bool {
        let mut list = EntryAvailability::default();
        has.iter().for_each(|(first, last)| list.push_run(at(*first), at(*last)));
        let shares = shares(metadata).remove(&BookieId::new(name).unwrap()).unwrap();
        let mut comparison = Comparison::new(metadata.quorum, &shares, &list);
        std::iter::repeat_with(|| comparison.step()).flatten().next().unwrap()
    }

    #[test]
    fn a_list_lacks_what_belongs_to_its_bookie_and_nothing_else() {
        let striped = metadata((3, 2, 2), &[(0, "a b c"), (7, "a b d")], Some(9));
        assert!(!lacks(&striped, "a", &[(0, 0), (2, 3), (5, 6), (8, 9)]));
        assert!(lacks(&striped, "a", &[(0, 0), (2, 3), (5, 5), (8, 9)]), "entry 6");
        assert!(lacks(&striped, "a", &[(0, 0), (2, 3), (5, 6), (8, 8)]), "entry 9");
        assert!(lacks(&striped, "d", &[]));
        // More than one step.
        let entries = 3 * i64::from(STEP_ENTRIES) + 5;
        let long = metadata((2, 2, 2), &[(0, "a b")], Some(entries - 1));
        assert!(!lacks(&long, "b", &[(0, entries - 1)]));
        assert!(lacks(&long, "b", &[(0, entries - 2)]));
        assert!(lacks(&metadata((2, 2, 2), &[(0, "a b")], Some(i64::MAX)), "a", &[(0, 1000)]));
    }

    #[test]
    fn a_new_auditor_goes_on_where_the_old_one_was_due() {
        let (week, day_ms) = (Duration::from_secs(604_800), 86_400_000);
        assert_eq!(due_in(week, None, 5), Duration::ZERO, "there was none ever");
        assert_eq!(due_in(week, Some(0), 2 * day_ms), week - Duration::from_secs(2 * 86_400));
        assert_eq!(due_in(week, Some(0), 8 * day_ms), Duration::ZERO);
        assert_eq!(due_in(week, Some(9 * day_ms), day_ms), week, "a clock was wrong");
        assert_eq!(due_in(week, Some(i64::MIN), i64::MAX), Duration::ZERO);
    }

    #[test]
    fn requests_are_spread_and_idle_time_is_not_made_up_for() {
        let mut pace = Pace::new(4);
        let ms = Duration::from_millis;
        let times: Vec<Duration> = (0..3).map(|_| pace.next(ms(1000))).collect();
        assert_eq!(times, [ms(1000), ms(1250), ms(1500)]);
        assert_eq!(pace.next(ms(9000)), ms(9000));
        assert_eq!(pace.next(ms(9000)), ms(9250));
    }

    #[test]
    fn an_interrupted_check_repeats_what_was_under_way_and_no_more() {
        let mut progress = Progress::default();
        assert_eq!(progress.resume(), None);
        for id in [3, 5, 8, 9] {
            progress.begin(ledger(id));
        }
        progress.end(ledger(3), Outcome::Whole);
        progress.end(ledger(8), Outcome::Lacking(vec![BookieId::new("b").unwrap()]));
        assert_eq!(progress.resume(), Some(ledger(4)));
        assert_eq!((progress.whole, progress.lacking), (1, 1));
        progress.begin(ledger(5));
        progress.end(ledger(5), Outcome::Unchecked("x".into()));
        assert_eq!(progress.resume(), Some(ledger(5)), "8 comes again: it was behind one under way");
        progress.begin(ledger(6));
        progress.end(ledger(6), Outcome::Gone);
        assert_eq!(progress.resume(), Some(ledger(6)));
        assert_eq!((progress.unchecked, progress.problems.len()), (1, 2));
        assert_eq!(progress.problems[0].why, "b lacks entries: marked");
        let mut first = Progress::default();
        first.begin(ledger(0));
        assert_eq!(first.resume(), None);
        for id in 0..PROBLEMS_MAX as i64 + 7 {
            first.begin(ledger(id));
            first.end(ledger(id), Outcome::Unchecked("away".into()));
        }
        assert_eq!((first.problems.len(), first.unchecked), (PROBLEMS_MAX, PROBLEMS_MAX as u64 + 7));
    }
}
