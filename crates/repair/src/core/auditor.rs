//! When to look through all ledgers, and which of their bookies count as lost.
//!
//! # Data flow
//! ```text
//! bookies registered, delay, "look now" --> AuditorCore --> is a scan due? --> judge(metadata) --> bookies to mark, and how soon
//! ```
//!
//! # Invariants
//! 1. A bookie is lost when it has been away for the delay. Each bookie has its own time: another one that goes, or comes back, changes
//!    nothing for it.
//! 2. Where an entry has lost two copies or more and has one left, or none, no delay is waited for.
//! 3. A bookie that this auditor never saw has been away since the auditor began.
//! 4. What invariant 2 is about is marked before all else, and nothing waits for it while one bookie alone is away.
//! 5. Nothing is looked at before the auditor has settled: where all bookies start at once, after a power cut or an upgrade of the whole
//!    cluster, the first auditor sees few of them, and would take every ledger for endangered.
//! 6. While repair is disabled nothing is marked; what was missed meanwhile is looked at as soon as it is enabled.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_metadata::layout::Danger;
use bindery_types::{BookieId, LedgerMetadata};

use super::audit::audit;
use super::danger::{danger, hash_of};

/// Times of an auditor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditorSettings {
    /// How long a bookie may be away, unless metadata says otherwise.
    pub delay: Duration,
    /// A scan of all ledgers from time to time, for bookies that were lost before this auditor began.
    pub scan_interval: Duration,
    /// How long a new auditor waits before it looks at anything; no longer than a bookie may be away.
    pub settle: Duration,
}

impl Default for AuditorSettings {
    fn default() -> AuditorSettings {
        AuditorSettings {
            delay: Duration::from_secs(900),
            scan_interval: Duration::from_secs(86_400),
            settle: Duration::from_secs(60),
        }
    }
}

/// What a scan says of a ledger.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// Bookies for which it is to be marked.
    pub lost: Vec<BookieId>,
    /// Whether that may wait until the scan has seen all ledgers: others may have fewer copies left.
    pub may_wait: bool,
    /// What the mark says of the danger.
    pub danger: Option<Danger>,
}

/// See the module.
#[derive(Debug)]
pub struct AuditorCore {
    settings: AuditorSettings,
    began: Duration,
    delay: Duration,
    is_disabled: bool,
    /// `None` before the first list.
    live: Option<BTreeSet<BookieId>>,
    /// Bookies that are not registered, but were once or are named by metadata, with the time since which they are away.
    away: BTreeMap<BookieId, Duration>,
    /// Lost bookies whose ledgers were marked by a scan, so that their loss calls for no other one.
    scanned: BTreeSet<BookieId>,
    /// Those that were away during a scan: what they endanger together was looked at.
    danger_seen: BTreeSet<BookieId>,
    is_asked: bool,
    scan_at: Duration,
    /// After a scan that failed none begins before this.
    retry_at: Duration,
    /// The scan under way.
    scan: Option<Scan>,
}

#[derive(Debug)]
struct Scan {
    /// Those that were lost when it began.
    lost: BTreeSet<BookieId>,
    /// Those that were away when it began. A scan of all ledgers forgets the ones that no ledger names.
    away: BTreeSet<BookieId>,
    /// Away and named by a ledger.
    named: BTreeSet<BookieId>,
    /// Hash of the bookies that are registered during the scan.
    bookies: u64,
}

impl AuditorCore {
    /// Of an auditor that begins at `now`. Its first scan is due as soon as bookies are known.
    pub fn new(now: Duration, settings: AuditorSettings) -> AuditorCore {
        AuditorCore {
            began: now,
            delay: settings.delay,
            settings,
            is_disabled: false,
            live: None,
            away: BTreeMap::new(),
            scanned: BTreeSet::new(),
            danger_seen: BTreeSet::new(),
            is_asked: false,
            scan_at: now,
            retry_at: now,
            scan: None,
        }
    }

    /// The bookies that are registered now, in whatever mode.
    pub fn on_bookies(&mut self, now: Duration, live: BTreeSet<BookieId>) {
        let before = self.live.take().unwrap_or_default();
        for gone in before.difference(&live) {
            self.away.entry(gone.clone()).or_insert(now);
        }
        self.away.retain(|bookie, _| !live.contains(bookie));
        self.scanned.retain(|bookie| !live.contains(bookie));
        self.danger_seen.retain(|bookie| !live.contains(bookie));
        self.live = Some(live);
    }

    /// The delay in metadata; `None` when there is none. `is_asked`: it was written again, which is how BookKeeper's tools ask for a scan.
    pub fn on_delay(&mut self, delay: Option<Duration>, is_asked: bool) {
        self.delay = delay.unwrap_or(self.settings.delay);
        self.is_asked |= is_asked;
    }

    /// Whether repair is disabled.
    pub fn on_disabled(&mut self, is_disabled: bool) {
        // Invariant 5.
        self.is_asked |= self.is_disabled && !is_disabled;
        self.is_disabled = is_disabled;
    }

    /// Bookies that are away, and since when.
    pub fn away(&self) -> &BTreeMap<BookieId, Duration> {
        &self.away
    }

    /// Those that have been away for the delay.
    fn lost(&self, now: Duration) -> impl Iterator<Item = &BookieId> {
        self.away.iter().filter(move |(_, since)| self.is_over(now, **since)).map(|(bookie, _)| bookie)
    }

    /// Whether the delay of a bookie that has been away since then is over.
    fn is_over(&self, now: Duration, since: Duration) -> bool {
        now >= since + self.delay
    }

    /// No scan begins before this (invariant 4).
    fn not_before(&self) -> Duration {
        self.retry_at.max(self.began + self.settings.settle.min(self.delay))
    }

    fn is_scan_due(&self, now: Duration) -> bool {
        if self.live.is_none() || self.is_disabled || self.scan.is_some() || now < self.not_before() {
            return false;
        }
        let is_lost_news = self.lost(now).any(|bookie| !self.scanned.contains(bookie));
        // With several away, entries may have one copy left.
        let is_danger_news =
            self.away.len() > 1 && self.away.keys().any(|bookie| !self.danger_seen.contains(bookie));
        self.is_asked || is_lost_news || is_danger_news || now >= self.scan_at
    }

    /// Begins a scan if one is due: all ledgers are to be judged, and then [`end_scan`](Self::end_scan) called.
    pub fn begin_scan(&mut self, now: Duration) -> bool {
        if !self.is_scan_due(now) {
            return false;
        }
        self.is_asked = false;
        let (lost, away) = (self.lost(now).cloned().collect(), self.away.keys().cloned().collect());
        let bookies = self.live.as_ref().map_or(0, hash_of);
        self.scan = Some(Scan { lost, away, named: BTreeSet::new(), bookies });
        true
    }

    /// Says for which bookies a ledger is to be marked. A bookie that it names and that was never registered is away from now on
    /// (invariant 3).
    pub fn judge(&mut self, now: Duration, metadata: &LedgerMetadata) -> Verdict {
        let (Some(live), Some(scan)) = (&self.live, &mut self.scan) else { return Verdict::default() };
        for bookie in metadata.segments().iter().flat_map(|segment| &segment.ensemble) {
            if !live.contains(bookie) && scan.named.insert(bookie.clone()) {
                self.away.entry(bookie.clone()).or_insert(self.began);
            }
        }
        let found = audit(metadata, |bookie| live.contains(bookie));
        let bookies = scan.bookies;
        // Invariant 2.
        let is_urgent = found.is_endangered();
        let is_lost = |bookie| self.away.get(bookie).is_some_and(|since| self.is_over(now, *since));
        let lost = found.lacking().filter(|bookie| is_urgent || is_lost(*bookie)).cloned().collect();
        // With one away no ledger has lost more copies than another.
        let may_wait = !is_urgent && self.away.len() > 1;
        Verdict { lost, may_wait, danger: danger(metadata, &found, bookies) }
    }

    /// The scan is over: of all ledgers, or of some because something failed.
    pub fn end_scan(&mut self, now: Duration, is_whole: bool) {
        let Some(Scan { lost, away, named, .. }) = self.scan.take() else { return };
        if is_whole {
            // Nothing is lost with a bookie that no ledger names, and no later loss is more dangerous because of it.
            self.away.retain(|bookie, _| named.contains(bookie) || !away.contains(bookie));
            // Those that were found in metadata during the scan were judged by it only from there on.
            self.scanned.extend(lost);
            self.danger_seen.extend(self.away.keys().cloned());
            self.scan_at = now.saturating_add(self.settings.scan_interval);
        } else {
            self.is_asked = true;
            self.retry_at = now + SCAN_RETRY;
        }
    }

    /// When something is due without an event.
    pub fn wake_at(&self, now: Duration) -> Duration {
        if self.is_scan_due(now) {
            return now;
        }
        if self.is_disabled || self.live.is_none() {
            return now + IDLE;
        }
        if now < self.not_before() {
            return self.not_before();
        }
        let waiting = self.away.iter().filter(|(bookie, _)| !self.scanned.contains(*bookie));
        let next = waiting.map(|(_, since)| *since + self.delay).filter(|at| *at > now).min();
        next.map_or(self.scan_at, |at| at.min(self.scan_at)).max(now)
    }
}

/// When nothing can be due before an event.
const IDLE: Duration = Duration::from_secs(3600);
/// After a scan that failed.
const SCAN_RETRY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::{DigestType, EntryId, LedgerSecret, LedgerState, Quorum, Segment};

    const DELAY: Duration = Duration::from_secs(60);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn ids(names: &str) -> BTreeSet<BookieId> {
        names.split_whitespace().map(|name| BookieId::new(name).unwrap()).collect()
    }

    fn ledger(names: &str) -> LedgerMetadata {
        let ensemble: Vec<BookieId> = names.split(' ').map(|name| BookieId::new(name).unwrap()).collect();
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let size = ensemble.len();
        let mut metadata = LedgerMetadata::new(Quorum::new(size, size, 1).unwrap(), secret);
        metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
        metadata.state = LedgerState::Closed { last_entry: EntryId::new(5), length_bytes: 6 };
        metadata
    }

    /// Scans these ledgers if a scan is due: what is marked of each.
    fn scan(core: &mut AuditorCore, now: Duration, ledgers: &[&str]) -> Option<Vec<Vec<BookieId>>> {
        if !core.begin_scan(now) {
            return None;
        }
        let marked = ledgers.iter().map(|names| core.judge(now, &ledger(names)).lost).collect();
        core.end_scan(now, true);
        Some(marked)
    }

    fn marks(names: &[&str]) -> Option<Vec<Vec<BookieId>>> {
        Some(names.iter().map(|names| ids(names).into_iter().collect()).collect())
    }

    fn core() -> AuditorCore {
        let settle = Duration::ZERO;
        AuditorCore::new(seconds(0), AuditorSettings { delay: DELAY, scan_interval: seconds(1000), settle })
    }

    #[test]
    fn a_bookie_is_lost_after_the_delay_and_one_that_is_back_is_not() {
        let mut core = core();
        assert_eq!(scan(&mut core, seconds(0), &[]), None, "nobody is known yet");
        core.on_bookies(seconds(0), ids("a b c d"));
        assert_eq!(scan(&mut core, seconds(0), &["a b c"]), marks(&[""]));
        core.on_bookies(seconds(100), ids("b c d"));
        assert_eq!(core.wake_at(seconds(100)), seconds(160));
        assert_eq!(scan(&mut core, seconds(159), &["a b c"]), None);
        assert_eq!(scan(&mut core, seconds(160), &["a b c", "b c d"]), marks(&["a", ""]));
        assert_eq!(scan(&mut core, seconds(161), &["a b c"]), None, "once");
        core.on_bookies(seconds(200), ids("a b c d"));
        core.on_bookies(seconds(210), ids("b c d"));
        core.on_bookies(seconds(260), ids("a b c d"));
        assert_eq!(scan(&mut core, seconds(400), &["a b c"]), None, "it came back in time");
    }

    #[test]
    fn a_second_loss_changes_nothing_for_the_first_and_the_last_copy_waits_for_nothing() {
        let mut core = core();
        core.on_bookies(seconds(0), ids("a b c d e"));
        assert!(scan(&mut core, seconds(0), &[]).is_some());
        core.on_bookies(seconds(10), ids("b c d e"));
        core.on_bookies(seconds(30), ids("c d e"));
        // Only the ledger that both are of has one copy left.
        let ledgers = ["a b c", "a c d", "b c d", "a d"];
        assert_eq!(scan(&mut core, seconds(30), &ledgers), marks(&["a b", "", "", ""]));
        assert_eq!(scan(&mut core, seconds(31), &ledgers), None);
        assert_eq!(scan(&mut core, seconds(70), &ledgers), marks(&["a b", "a", "", "a"]));
        assert_eq!(scan(&mut core, seconds(90), &ledgers), marks(&["a b", "a", "b", "a"]));
    }

    #[test]
    fn a_ledger_waits_only_where_others_may_have_fewer_copies() {
        let mut core = core();
        core.on_delay(Some(seconds(0)), false);
        core.on_bookies(seconds(0), ids("a b c d e"));
        core.on_bookies(seconds(1), ids("b c d e"));
        let may_wait = |core: &mut AuditorCore, now, names| {
            assert!(core.begin_scan(now));
            let verdict = core.judge(now, &ledger(names));
            core.end_scan(now, true);
            let danger = verdict.danger.map(|danger| (danger.copies, danger.bookies));
            (verdict.lost.len(), verdict.may_wait, danger)
        };
        let bookies = hash_of(&ids("b c d e"));
        assert_eq!(may_wait(&mut core, seconds(1), "a b c"), (1, false, Some((2, bookies))), "one is away");
        core.on_bookies(seconds(2), ids("c d e"));
        let bookies = hash_of(&ids("c d e"));
        assert_eq!(
            may_wait(&mut core, seconds(2), "a b c"),
            (2, false, Some((1, bookies))),
            "one copy is left"
        );
        core.on_delay(Some(seconds(0)), true);
        assert_eq!(may_wait(&mut core, seconds(3), "a c d"), (1, true, Some((2, bookies))));
    }

    #[test]
    fn a_bookie_that_only_metadata_names_is_away_since_the_auditor_began() {
        let mut core = core();
        core.on_bookies(seconds(5), ids("b c"));
        assert_eq!(scan(&mut core, seconds(5), &["a b c"]), marks(&[""]));
        assert_eq!(core.wake_at(seconds(5)), seconds(60));
        assert_eq!(scan(&mut core, seconds(60), &["a b c"]), marks(&["a"]));
    }

    #[test]
    fn a_cluster_that_starts_is_not_taken_for_one_that_lost_its_bookies() {
        let mut core = AuditorCore::new(seconds(10), AuditorSettings::default());
        core.on_bookies(seconds(10), ids("c"));
        assert_eq!(scan(&mut core, seconds(10), &["a b c"]), None, "one copy is seen");
        assert_eq!(core.wake_at(seconds(10)), seconds(70));
        core.on_bookies(seconds(30), ids("b c"));
        core.on_bookies(seconds(50), ids("a b c"));
        assert_eq!(scan(&mut core, seconds(69), &["a b c"]), None);
        assert_eq!(scan(&mut core, seconds(70), &["a b c"]), marks(&[""]));
        // A delay of 0 is taken literally, also by a new auditor.
        let mut core = AuditorCore::new(seconds(10), AuditorSettings::default());
        core.on_delay(Some(Duration::ZERO), false);
        core.on_bookies(seconds(10), ids("c"));
        assert_eq!(scan(&mut core, seconds(10), &["a b c"]), marks(&["a b"]));
    }

    #[test]
    fn nothing_is_marked_while_disabled_and_an_order_is_taken_at_once() {
        let mut core = core();
        core.on_delay(Some(seconds(0)), false);
        core.on_bookies(seconds(0), ids("a b"));
        core.on_disabled(true);
        core.on_bookies(seconds(1), ids("b"));
        assert_eq!(scan(&mut core, seconds(500), &["a b"]), None);
        core.on_disabled(false);
        assert_eq!(scan(&mut core, seconds(501), &["a b"]), marks(&["a"]));
        assert_eq!(scan(&mut core, seconds(502), &["a b"]), None);
        core.on_delay(Some(seconds(0)), true);
        assert_eq!(scan(&mut core, seconds(503), &["a b"]), marks(&["a"]));
    }

    #[test]
    fn a_bookie_that_no_ledger_names_is_forgotten() {
        let mut core = core();
        core.on_bookies(seconds(0), ids("a b c"));
        assert!(scan(&mut core, seconds(0), &[]).is_some());
        core.on_bookies(seconds(1), ids("b c"));
        assert_eq!(scan(&mut core, seconds(61), &["b c"]), marks(&[""]));
        assert!(core.away().is_empty());
        // It makes no other loss look more dangerous than it is.
        core.on_bookies(seconds(100), ids("c"));
        assert_eq!(scan(&mut core, seconds(100), &["b c"]), None);
    }

    #[test]
    fn a_scan_that_failed_is_made_again() {
        let mut core = core();
        core.on_bookies(seconds(0), ids("b"));
        assert!(core.begin_scan(seconds(0)));
        assert!(!core.begin_scan(seconds(0)), "one at a time");
        core.end_scan(seconds(1), false);
        assert!(!core.begin_scan(seconds(2)));
        assert_eq!(core.wake_at(seconds(2)), seconds(1) + SCAN_RETRY);
        assert!(core.begin_scan(seconds(1) + SCAN_RETRY));
        core.end_scan(seconds(20), true);
        core.on_disabled(true);
        core.on_bookies(seconds(21), ids(""));
        assert!(core.wake_at(seconds(5000)) > seconds(5000), "it does not spin while it is disabled");
    }
}
