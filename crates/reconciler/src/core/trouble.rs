//! Whether this tierer can do its work: what has failed for long, without a success in between, although it was tried again and again.
//!
//! # Invariants
//! 1. Where there is no work nothing is tried, so nothing is found to fail: only a tierer that has work is unable. Failures between which nothing was
//!    tried for [`PAUSE_MAX`] do not add up.
//! 2. One success of a kind ends its trouble, and nothing else does. A tierer that is unable tries its part as before, so it notices when it works again.

use std::collections::BTreeMap;
use std::time::Duration;

/// What can fail by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    List,
    Look,
    Locate,
    Reserve,
    Read,
    Upload,
    Commit,
}

impl Kind {
    fn words(self) -> &'static str {
        match self {
            Kind::List => "list the ledgers",
            Kind::Look => "look at ledgers",
            Kind::Locate => "read the catalogue",
            Kind::Reserve => "reserve ids in the catalogue",
            Kind::Read => "read entries from bookies",
            Kind::Upload => "upload objects",
            Kind::Commit => "commit objects",
        }
    }
}

#[derive(Debug, Clone)]
struct Trouble {
    first: Duration,
    last: Duration,
    why: String,
}

impl Trouble {
    fn time(&self) -> Duration {
        self.last.saturating_sub(self.first)
    }
}

/// Longer than the time between two outcomes while there is work: the longest pause, and the longest that one attempt takes. An upload to a store that
/// accepts requests and never answers takes 450 s: three times a write and a look whether it is there.
const PAUSE_MAX: Duration = Duration::from_secs(15 * 60);

/// What fails at the moment.
#[derive(Debug, Clone)]
pub(super) struct Troubles {
    failing: BTreeMap<Kind, Trouble>,
    /// What fails for so long makes unable.
    time: Duration,
}

impl Troubles {
    /// None yet.
    pub fn new(time: Duration) -> Troubles {
        Troubles { failing: BTreeMap::new(), time }
    }

    /// Notes the outcome of something that was tried.
    pub fn note(&mut self, now: Duration, kind: Kind, outcome: Result<(), &str>) {
        let why = match outcome {
            Ok(()) => return drop(self.failing.remove(&kind)),
            Err(why) => why.to_owned(),
        };
        let before = self.failing.get(&kind);
        let counts = |before: &&Trouble| before.time() >= self.time || now <= before.last + PAUSE_MAX;
        let first = before.filter(counts).map_or(now, |before| before.first);
        self.failing.insert(kind, Trouble { first, last: now, why });
    }

    /// What makes unable, in words.
    pub fn lasting(&self) -> Option<String> {
        let lasting = self.failing.iter().find(|(_, trouble)| trouble.time() >= self.time);
        lasting.map(|(kind, trouble)| format!("it cannot {}: {}", kind.words(), trouble.why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_for_long_is_trouble_until_it_works_once() {
        let at = Duration::from_secs;
        let mut troubles = Troubles::new(at(60));
        troubles.note(at(10), Kind::Upload, Err("503"));
        // Other kinds that work say nothing of this one; nor does time in which nothing was tried.
        troubles.note(at(69), Kind::Locate, Ok(()));
        assert_eq!(troubles.lasting(), None);
        troubles.note(at(70), Kind::Upload, Err("403"));
        assert_eq!(troubles.lasting().as_deref(), Some("it cannot upload objects: 403"));
        // Without work it stays so.
        troubles.note(at(9000), Kind::Upload, Err("503"));
        assert!(troubles.lasting().is_some());
        troubles.note(at(9001), Kind::Upload, Ok(()));
        assert_eq!(troubles.lasting(), None);
        troubles.note(at(9002), Kind::Upload, Err("503"));
        assert_eq!(troubles.lasting(), None, "a success begins anew");
        troubles.note(at(10_000), Kind::Upload, Err("503"));
        assert_eq!(troubles.lasting(), None, "and so does a time without work");
        // A store that hangs: each upload takes its longest time, and then there is a pause.
        troubles.note(at(10_490), Kind::Upload, Err("no answer"));
        assert_eq!(troubles.lasting().as_deref(), Some("it cannot upload objects: no answer"));
    }
}
