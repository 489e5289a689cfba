//! What other tierers say of the catalogue: each asks bookies of its own ledgers alone, and the doubt of one stops the deletions of all.
//!
//! # Invariants
//! 1. While the other tierers cannot be asked, that counts as a doubt: any of them may have begun to doubt.
//! 2. A doubt, or not knowing, ends a time after the others were heard to have none: one that doubted may have gone since, and whoever takes its ledgers
//!    over has asked their bookies by then.

use std::time::Duration;

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Others {
    doubt: Option<Ending>,
    unknown: Option<Ending>,
}

/// Why, and when it ends; `None` while it lasts.
#[derive(Debug, Clone)]
struct Ending {
    why: String,
    at: Option<Duration>,
}

impl Others {
    /// The others were asked, and one of them doubts the catalogue, or none does.
    pub fn on_heard(&mut self, now: Duration, doubt: Option<String>, kept: Duration) {
        for ending in self.doubt.iter_mut().chain(&mut self.unknown) {
            ending.at.get_or_insert(now + kept);
        }
        if let Some(why) = doubt {
            self.doubt = Some(Ending { why, at: None });
        }
    }

    /// They could not be asked.
    pub fn on_unknown(&mut self, why: String) {
        if let Some(doubt) = &mut self.doubt {
            doubt.at = None;
        }
        self.unknown = Some(Ending { why, at: None });
    }

    pub fn on_time(&mut self, now: Duration) {
        let is_over = |ending: &mut Ending| ending.at.is_some_and(|at| at <= now);
        self.doubt.take_if(is_over);
        self.unknown.take_if(is_over);
    }

    /// Why one of them doubts the catalogue, or did.
    pub fn doubt(&self) -> Option<&str> {
        self.doubt.as_ref().map(|ending| ending.why.as_str())
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

    #[test]
    fn a_doubt_ends_a_time_after_the_others_were_heard_to_have_none() {
        let (mut others, at) = (Others::default(), Duration::from_secs);
        others.on_heard(at(0), Some("a gap".into()), KEPT);
        // They are asked every ten seconds, or cannot be.
        others.on_time(at(1000));
        assert_eq!(others.doubt(), Some("a gap"));
        others.on_heard(at(1000), None, KEPT);
        others.on_heard(at(1200), None, KEPT);
        others.on_time(at(1299));
        assert!(others.doubt().is_some());
        others.on_time(at(1300));
        assert_eq!((others.doubt(), others.unknown()), (None, None));
    }

    #[test]
    fn not_to_know_is_a_doubt() {
        let (mut others, at) = (Others::default(), Duration::from_secs);
        others.on_heard(at(0), Some("a gap".into()), KEPT);
        others.on_heard(at(10), None, KEPT);
        others.on_unknown("no session".into());
        others.on_time(at(5000));
        assert_eq!(
            (others.doubt(), others.unknown()),
            (Some("a gap"), Some("no session")),
            "it may have come back"
        );
        others.on_heard(at(5000), None, KEPT);
        others.on_time(at(5299));
        assert!(others.doubt().is_some() && others.unknown().is_some());
        others.on_time(at(5300));
        assert_eq!((others.doubt(), others.unknown()), (None, None));
    }
}
