//! Doubts about the catalogue: while there is one, nothing leaves the catalogue or the bucket.
//!
//! # Invariants
//! 1. A doubt stops everything that deletes, or that leads to a deletion: removals of ledgers, releases, rewrites, and deletions of
//!    objects. The scan goes on, because it sees when a reason is gone. If objects are missing, and that is all, ledgers go on the
//!    proof of absence: to delete those that lack entries is what ends that doubt.
//! 2. It lasts as long as its reason: a ledger of which a bookie is ahead of the catalogue, or that has a gap there; an object of the
//!    catalogue that is not in the bucket; a catalogue that is lost, cut or replaced; too many objects without a row, which counts for
//!    a time ([`super::orphans`], invariant 3). An operator ends it with what the sentence names.
//! 3. It is said once as an alarm when it begins, and shown for as long as it lasts.

use std::time::Duration;

use super::Upkeep;
use crate::core::Alarm;

/// A bookie that said, to the upkeep, that it is ahead of the catalogue: the ledger is looked at anew, which is decided by then.
const AHEAD_FOR: Duration = Duration::from_secs(60);

/// What ends a doubt about the catalogue as a whole.
const REMEDY: &str = "put back the newest copy of the catalogue, or rebuild it from its objects: bindery tier rebuild --metadata URI --store URL";

/// What others found.
#[derive(Debug, Clone, Default)]
pub(super) struct Doubts {
    of_catalogue: Option<String>,
    of_ledgers: Option<String>,
    ahead: Option<(Duration, String)>,
    said: Option<String>,
}

impl Doubts {
    /// Everything that decides what comes next.
    #[cfg(test)]
    pub fn essence(&self) -> impl std::fmt::Debug + '_ {
        (&self.of_catalogue, &self.of_ledgers, &self.ahead)
    }

    /// A bookie says that it is ahead.
    pub fn note_ahead(&mut self, now: Duration, what: String) {
        self.ahead = Some((now + AHEAD_FOR, what));
    }
}

impl Upkeep {
    /// The catalogue cannot be followed, and why, in a sentence with its remedy; and what the tierer found of ledgers.
    pub fn set_doubts(&mut self, now: Duration, of_catalogue: Option<&str>, of_ledgers: Option<String>) {
        if self.doubts.of_catalogue.as_deref() != of_catalogue {
            self.doubts.of_catalogue = of_catalogue.map(ToOwned::to_owned);
        }
        self.doubts.of_ledgers = of_ledgers;
        self.orphans.on_time(now, self.settings.orphan_hold);
        self.doubts.ahead.take_if(|(until, _)| *until <= now);
        let doubt = self.doubt_of_catalogue();
        // A sentence may name other numbers with each look: its beginning is what it is about.
        let is_new = doubt.is_some() && self.doubts.said.is_none();
        if is_new && self.doubts.ahead.is_none() {
            let why = doubt.clone().unwrap_or_default();
            self.doubts.said = Some(why.clone());
            self.alarms.push(Alarm::DeletionsStopped { why });
        } else if doubt.is_none() {
            self.doubts.said = None;
        }
        self.status.deletions_stopped = doubt;
    }

    /// Why nothing is deleted, if so.
    pub(super) fn doubt_of_catalogue(&self) -> Option<String> {
        if let Some(why) = &self.doubts.of_catalogue {
            return Some(why.clone());
        }
        if let Some(why) = &self.doubts.of_ledgers {
            return Some(why.clone());
        }
        if let Some(object) = self.scan.a_missing() {
            return Some(format!(
                "object {object} is in the catalogue and not in the bucket as it was committed: put it back from a version or a copy of \
                 the bucket; if it is lost, run bindery tier rebuild, and delete the ledgers that lack entries, which bindery tier \
                 verify names"
            ));
        }
        if let Some(why) = self.orphans.doubt() {
            let hours = self.settings.orphan_hold.as_secs() / 3600;
            return Some(format!(
                "{why}: {REMEDY}; if it is as it should be, wait: {hours} h after this was noticed each of these objects goes of which it \
                 is proved that nobody needs it"
            ));
        }
        self.doubts.ahead.as_ref().map(|(_, why)| why.clone())
    }

    /// Whether objects of the catalogue are missing, and nothing else is doubtful.
    pub(super) fn lacks_objects_alone(&self) -> bool {
        let Doubts { of_catalogue, of_ledgers, ahead, .. } = &self.doubts;
        let others = of_catalogue.is_some() || of_ledgers.is_some() || ahead.is_some();
        self.scan.a_missing().is_some() && !others && self.orphans.doubt().is_none()
    }

    /// Alarms since the last call.
    pub fn take_alarms(&mut self) -> Vec<Alarm> {
        std::mem::take(&mut self.alarms)
    }

    /// Ledgers whose bookies are to be asked anew, since the last call.
    pub fn take_ahead(&mut self) -> Vec<bindery_types::LedgerId> {
        std::mem::take(&mut self.ahead_ledgers)
    }

    /// The catalogue was read from its beginning, because it is another one than before: nothing that was seen of it counts.
    pub fn on_catalogue_replaced(&mut self) {
        self.is_replaced = true;
        self.orphans.forget_all();
        self.waiting = super::Waiting::default();
        self.rewriting = super::Rewriting::default();
        self.round = None;
        self.found_before.clear();
        if !self.is_under_way {
            self.phase = super::Phase::Waits;
            self.is_replaced = false;
        }
    }
}
