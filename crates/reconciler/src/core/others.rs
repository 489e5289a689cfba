//! What other tierers say of the catalogue: each asks bookies of its own ledgers alone, and scans the bucket for itself. The doubt of one stops the deletions of
//! all.
//!
//! # Invariants
//! 1. While the other tierers cannot be asked, that counts as a doubt: any of them may have begun to doubt. So it is when this tierer begins: one that
//!    doubted may have gone just before.
//! 2. A doubt, or not knowing, ends a time after the others were heard to have none: one that doubted may have gone since, and those that take its
//!    ledgers over have asked their bookies by then. The time is [`Settings::doubt_kept`](super::Settings::doubt_kept), and longer where a look
//!    at all ledgers is: twice as long as this tierer takes for one that begins after that. Parts are alike, so the others are through with theirs.
//! 3. What was heard is told to nobody: it would go round for ever. Objects that others found missing are looked up by this tierer, and what that shows is its
//!    own.
//! 4. A doubt ends at the latest after [`KEPT_MAX`] times `doubt_kept`: a tierer with more ledgers than it can look at must not stop deletions for ever.

use std::time::Duration;

use bindery_tiering::ObjectId;

use super::event::HeardDoubts;

/// See the module, invariant 4.
const KEPT_MAX: u32 = 288;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Others {
    doubt: Option<Ending>,
    missing: Option<Ending>,
    missing_objects: Vec<(ObjectId, u64)>,
    unknown: Option<Ending>,
}

/// A reason for a doubt, and since when it is not there any more.
#[derive(Debug, Clone)]
struct Ending {
    why: String,
    /// `None` while it lasts.
    since: Option<Duration>,
    /// How long after that this tierer had looked at all its ledgers.
    looked_after: Option<Duration>,
}

impl Ending {
    fn lasting(why: String) -> Ending {
        Ending { why, since: None, looked_after: None }
    }

    /// Whether it ends now (invariants 2 and 4). The last look at all ledgers that is complete began at `looked_since`.
    fn is_over(&mut self, now: Duration, kept: Duration, looked_since: Option<Duration>) -> bool {
        let Some(since) = self.since else { return false };
        if looked_since >= Some(since) {
            self.looked_after.get_or_insert(now.saturating_sub(since));
        }
        let most = since + KEPT_MAX * kept;
        now >= self.looked_after.map_or(most, |after| (since + kept.max(2 * after)).min(most))
    }
}

impl Others {
    /// A tierer that begins at this time, and has heard nothing.
    pub fn new(now: Duration, kept: Duration) -> Others {
        let why = "this tierer began a while ago".to_owned();
        let unknown = Some(Ending { since: Some(now), ..Ending::lasting(why) });
        let mut others = Others { doubt: None, missing: None, missing_objects: Vec::new(), unknown };
        others.on_time(now, kept, None);
        others
    }

    /// The others were asked, and some of them doubt the catalogue, or none does.
    pub fn on_heard(&mut self, now: Duration, heard: HeardDoubts) {
        for ending in self.doubt.iter_mut().chain(&mut self.missing).chain(&mut self.unknown) {
            ending.since.get_or_insert(now);
        }
        if let Some(why) = heard.of_catalogue {
            self.doubt = Some(Ending::lasting(why));
        }
        if let Some(why) = heard.missing {
            self.missing = Some(Ending::lasting(why));
            self.missing_objects = heard.missing_objects;
        }
    }

    /// They could not be asked.
    pub fn on_unknown(&mut self, why: String) {
        for doubt in self.doubt.iter_mut().chain(&mut self.missing) {
            *doubt = Ending::lasting(std::mem::take(&mut doubt.why));
        }
        self.unknown = Some(Ending::lasting(why));
    }

    /// Ends what is over, by `doubt_kept` and by the begin of the last look at all ledgers that is complete.
    pub fn on_time(&mut self, now: Duration, kept: Duration, looked_since: Option<Duration>) {
        let is_over = |ending: &mut Ending| ending.is_over(now, kept, looked_since);
        self.doubt.take_if(is_over);
        self.missing.take_if(is_over);
        self.unknown.take_if(is_over);
    }

    /// Why one of them doubts the catalogue, or did.
    pub fn doubt(&self) -> Option<&str> {
        self.doubt.as_ref().map(|ending| ending.why.as_str())
    }

    /// What one of them says of objects that are missing, or did, and the objects.
    pub fn missing(&self) -> (Option<&str>, &[(ObjectId, u64)]) {
        match &self.missing {
            Some(ending) => (Some(&ending.why), &self.missing_objects),
            None => (None, &[]),
        }
    }

    /// Why it is not known whether one does.
    pub fn unknown(&self) -> Option<&str> {
        self.unknown.as_ref().map(|ending| ending.why.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Duration = Duration::from_secs(300);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// One that began long ago, and knows of no doubt.
    fn settled() -> Others {
        let others = Others::new(at(0), Duration::ZERO);
        assert_eq!(others.unknown(), None);
        others
    }

    fn gap() -> HeardDoubts {
        HeardDoubts { of_catalogue: Some("a gap".into()), ..HeardDoubts::default() }
    }

    /// Time passes while all ledgers are looked at all the time.
    fn pass(others: &mut Others, seconds: u64) {
        others.on_time(at(seconds), KEPT, Some(at(seconds)));
    }

    #[test]
    fn a_doubt_ends_a_time_after_the_others_were_heard_to_have_none() {
        let mut others = settled();
        others.on_heard(at(0), gap());
        // They are asked every ten seconds, or cannot be.
        pass(&mut others, 1000);
        assert_eq!(others.doubt(), Some("a gap"));
        others.on_heard(at(1000), HeardDoubts::default());
        others.on_heard(at(1001), HeardDoubts::default());
        pass(&mut others, 1001);
        others.on_heard(at(1200), HeardDoubts::default());
        pass(&mut others, 1299);
        assert!(others.doubt().is_some());
        pass(&mut others, 1300);
        assert_eq!((others.doubt(), others.unknown()), (None, None));
    }

    /// Invariant 1.
    #[test]
    fn not_to_know_is_a_doubt() {
        let mut others = Others::new(at(0), KEPT);
        others.on_heard(at(0), HeardDoubts::default());
        pass(&mut others, 1);
        pass(&mut others, 299);
        assert_eq!(others.unknown(), Some("this tierer began a while ago"));
        others.on_heard(at(299), gap());
        pass(&mut others, 300);
        assert_eq!((others.doubt(), others.unknown()), (Some("a gap"), None));
        others.on_heard(at(310), HeardDoubts::default());
        others.on_unknown("no session".into());
        pass(&mut others, 5000);
        assert_eq!(
            (others.doubt(), others.unknown()),
            (Some("a gap"), Some("no session")),
            "it may have come back"
        );
        others.on_heard(at(5000), HeardDoubts::default());
        pass(&mut others, 5001);
        pass(&mut others, 5299);
        assert!(others.doubt().is_some() && others.unknown().is_some());
        pass(&mut others, 5300);
        assert_eq!((others.doubt(), others.unknown()), (None, None));
    }

    #[test]
    fn what_is_missing_is_kept_as_a_doubt_is() {
        let mut others = settled();
        let objects = vec![(ObjectId::new(7, [1; 10]), 10)];
        let missing_objects = objects.clone();
        let heard = HeardDoubts { of_catalogue: None, missing: Some("an object".into()), missing_objects };
        others.on_heard(at(0), heard);
        pass(&mut others, 1000);
        assert_eq!((others.missing(), others.doubt()), ((Some("an object"), &objects[..]), None));
        others.on_heard(at(1000), HeardDoubts::default());
        pass(&mut others, 1000);
        pass(&mut others, 1299);
        assert_eq!(others.missing().1, objects);
        pass(&mut others, 1300);
        assert_eq!(others.missing(), (None, &[][..]));
    }

    /// Invariants 2 and 4.
    #[test]
    fn a_doubt_lasts_until_all_ledgers_were_looked_at() {
        let doubting = || {
            let mut others = settled();
            others.on_heard(at(0), gap());
            others.on_heard(at(1000), HeardDoubts::default());
            others
        };
        let mut others = doubting();
        // A look that began before is none: the ledgers of the one that doubted may have come later.
        others.on_time(at(4000), KEPT, Some(at(999)));
        assert!(others.doubt().is_some());
        others.on_time(at(5000), KEPT, Some(at(1010)));
        others.on_time(at(8999), KEPT, Some(at(4900)));
        assert!(others.doubt().is_some(), "others may take longer");
        others.on_time(at(9000), KEPT, Some(at(4900)));
        assert_eq!(others.doubt(), None);
        // One that is never through with its ledgers.
        let mut others = doubting();
        let end = 1000 + 300 * u64::from(KEPT_MAX);
        others.on_time(at(end - 1), KEPT, None);
        assert!(others.doubt().is_some());
        others.on_time(at(end), KEPT, None);
        assert_eq!(others.doubt(), None);
    }
}
