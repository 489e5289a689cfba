//! Whose return a worker waits for. A mark does not tell that: writers make theirs while a bookie restarts, and a ledger that is marked
//! for one bookie may be on another one that restarts.
//!
//! # Invariants
//! 1. A bookie that is away is replaced when it has been away for the delay, as for the auditor; when a mark names it that was made since it
//!    went, by an auditor or an operator who looked at that; or when the ledger is in danger. A mark from before says that it lacked
//!    something while it was there: bookies mark damage and limbo themselves.
//! 2. A bookie that this worker never saw has been away since the worker began.
//! 3. Nothing is replaced before the worker has settled: where all bookies start at once, the first worker sees few of them.
//!
//! # Limits     [`ABSENCES_MAX`] bookies; of more, the one that is away longest counts as away since the worker began

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_types::BookieId;

use super::audit::Audit;

/// A worker notices later than others that a bookie went.
const NOTICED_WITHIN: Duration = Duration::from_secs(3);
/// Bookies of which the beginning of their absence is known.
const ABSENCES_MAX: usize = 10_000;

/// See the module. Times are since the worker began.
#[derive(Debug, Default)]
pub struct Absences {
    live: BTreeSet<BookieId>,
    away: BTreeMap<BookieId, Duration>,
}

impl Absences {
    /// The bookies that are registered now, in whatever mode.
    pub fn on_bookies(&mut self, now: Duration, live: &BTreeSet<BookieId>) {
        if self.live == *live {
            return;
        }
        for gone in self.live.difference(live) {
            self.away.entry(gone.clone()).or_insert(now);
        }
        self.away.retain(|bookie, _| !live.contains(bookie));
        while self.away.len() > ABSENCES_MAX
            && let Some(oldest) = self.away.iter().min_by_key(|(_, since)| **since)
        {
            let oldest = oldest.0.clone();
            self.away.remove(&oldest);
        }
        self.live.clone_from(live);
    }

    /// Bookies whose copies the ledger lacks and whose return is waited for, and how long still (invariants 1 and 3). `ordered`: those that
    /// its mark names, and when that was made, if it says so; before the worker began is its beginning. `settle`: how long the worker
    /// settles, if the delay is not shorter.
    pub fn awaited(
        &self,
        now: Duration,
        (delay, settle): (Duration, Duration),
        found: &Audit,
        ordered: Option<(Duration, &[String])>,
    ) -> BTreeMap<BookieId, Duration> {
        let settled_at = settle.min(delay);
        if now < settled_at {
            return found.lacking().map(|bookie| (bookie.clone(), settled_at - now)).collect();
        }
        if found.is_endangered() {
            return BTreeMap::new();
        }
        let is_ordered = |bookie: &BookieId| {
            ordered.is_some_and(|(at, names)| {
                let went = self.away.get(bookie);
                names.iter().any(|name| name == bookie.as_str())
                    && went.is_none_or(|went| at + NOTICED_WITHIN > *went)
            })
        };
        let unordered = found.lacking().filter(|bookie| !is_ordered(bookie));
        let left = unordered.map(|bookie| {
            let since = self.away.get(bookie).copied().unwrap_or_default();
            (bookie.clone(), (since + delay).saturating_sub(now))
        });
        left.filter(|(_, left)| !left.is_zero()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_secs(60);
    const SETTLE: Duration = Duration::from_secs(60);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn id(name: &str) -> BookieId {
        BookieId::new(name).unwrap()
    }

    fn ids(names: &str) -> BTreeSet<BookieId> {
        names.split_whitespace().map(id).collect()
    }

    /// A ledger that lacks copies of these bookies and has so many left.
    fn lacking(names: &str, copies_min: usize) -> Audit {
        Audit {
            open: ids(names).into_iter().collect(),
            copies_min,
            lost_max: 3 - copies_min,
            ..Audit::default()
        }
    }

    #[test]
    fn a_bookie_that_restarts_is_waited_for_and_one_that_is_away_for_the_delay_is_not() {
        let mut absences = Absences::default();
        absences.on_bookies(seconds(100), &ids("a b c"));
        absences.on_bookies(seconds(200), &ids("b c"));
        let awaited = |absences: &Absences, now| {
            absences.awaited(seconds(now), (DELAY, SETTLE), &lacking("a", 2), None)
        };
        assert_eq!(awaited(&absences, 210), BTreeMap::from([(id("a"), seconds(50))]));
        // Another one that goes changes nothing for it.
        absences.on_bookies(seconds(230), &ids("c"));
        assert_eq!(awaited(&absences, 259).into_keys().collect::<Vec<_>>(), [id("a")]);
        assert_eq!(awaited(&absences, 260), BTreeMap::new());
        absences.on_bookies(seconds(261), &ids("a b c"));
        absences.on_bookies(seconds(300), &ids("b c"));
        assert_eq!(awaited(&absences, 300), BTreeMap::from([(id("a"), DELAY)]));
    }

    #[test]
    fn an_order_and_danger_wait_for_nothing_and_who_was_never_seen_is_away_since_the_beginning() {
        let mut absences = Absences::default();
        absences.on_bookies(seconds(1), &ids("b c"));
        let delay = seconds(600);
        let found = lacking("a x", 2);
        let names = |now, ordered| {
            absences.awaited(seconds(now), (delay, SETTLE), &found, ordered).into_keys().collect::<Vec<_>>()
        };
        let named = ["a".to_owned()];
        assert_eq!(names(599, None), [id("a"), id("x")]);
        assert_eq!(names(599, Some((seconds(0), &named[..]))), [id("x")]);
        assert_eq!(names(600, None), []);
        let danger = lacking("a x", 1);
        assert_eq!(absences.awaited(seconds(60), (delay, SETTLE), &danger, None), BTreeMap::new());
        // In a cluster that starts as a whole it is none.
        assert_eq!(
            absences.awaited(seconds(59), (delay, SETTLE), &danger, Some((seconds(0), &named[..]))).len(),
            2
        );
        assert_eq!(absences.awaited(seconds(0), (seconds(0), SETTLE), &danger, None), BTreeMap::new());
    }

    #[test]
    fn a_mark_from_before_a_bookie_went_is_no_order_to_replace_it() {
        let mut absences = Absences::default();
        absences.on_bookies(seconds(1), &ids("a b c"));
        absences.on_bookies(seconds(100), &ids("b c"));
        let named = ["a".to_owned()];
        let awaited = |at| {
            let ordered = Some((seconds(at), &named[..]));
            absences
                .awaited(seconds(110), (DELAY, SETTLE), &lacking("a", 2), ordered)
                .into_keys()
                .collect::<Vec<_>>()
        };
        // It had marked the ledger itself, because it lacks something.
        assert_eq!(awaited(90), [id("a")]);
        assert_eq!(awaited(105), []);
    }

    #[test]
    fn of_too_many_absences_the_oldest_is_forgotten() {
        let mut absences = Absences::default();
        let all: BTreeSet<BookieId> = (0..ABSENCES_MAX).map(|n| id(&format!("b{n}"))).collect();
        absences.on_bookies(seconds(1), &ids("first"));
        absences.on_bookies(seconds(100), &all);
        absences.on_bookies(seconds(200), &ids("other"));
        assert_eq!((absences.away.len(), absences.away.contains_key(&id("first"))), (ABSENCES_MAX, false));
    }
}
