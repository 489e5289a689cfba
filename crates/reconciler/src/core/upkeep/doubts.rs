//! Doubts about the catalogue: while there is one, nothing leaves the catalogue or the bucket.
//!
//! # Invariants
//! 1. A doubt stops everything that deletes, or that leads to a deletion: removals of ledgers, rewrites, and deletions of
//!    objects. The scan goes on, because it sees when a reason is gone. If objects are missing, and that is all, ledgers go on the
//!    proof of absence: to delete those that lack entries is what ends that doubt.
//! 2. What this tierer found itself is told to the others ([`Upkeep::own_doubt`], [`Upkeep::own_missing`]), so it stops the deletions of the next one
//!    that has the upkeep, too. What was heard is told to nobody. Objects that others found missing are looked up here: so they are known when
//!    the one that found them is gone. Too many objects without a row are told by the one that has the upkeep alone, whose doubt ends by time: each tierer
//!    notices them at another time, and there may always be one that has just begun.
//! 3. It lasts as long as its reason: a ledger of which a bookie is ahead of the catalogue, or that has a gap there; an object of the
//!    catalogue that is not in the bucket; a catalogue that is lost, cut or replaced; too many objects without a row, which counts for
//!    a time ([`super::orphans`], invariant 3). An operator ends it with what the sentence names.
//! 4. It is said once as an alarm when it begins, and shown for as long as it lasts. That it is not known
//!    whether other tierers have doubts is no alarm.

use std::time::Duration;

use bindery_tiering::ObjectId;

use super::Upkeep;
use crate::core::Alarm;

/// What ends a doubt about the catalogue as a whole.
const REMEDY: &str = "put back the newest copy of the catalogue, or rebuild it from its objects: bindery tier rebuild --metadata URI --store URL";

/// What others found.
#[derive(Debug, Clone, Default)]
pub(super) struct Doubts {
    of_catalogue: Option<String>,
    of_ledgers: Option<String>,
    missing: Option<String>,
    unknown: Option<String>,
    said: Option<String>,
}

impl Doubts {
    /// Everything that decides what comes next.
    #[cfg(test)]
    pub fn essence(&self) -> impl std::fmt::Debug + '_ {
        (&self.of_catalogue, &self.of_ledgers, &self.missing, &self.unknown)
    }
}

impl Upkeep {
    /// The catalogue cannot be followed, and why, in a sentence with its remedy; what the tierers found of ledgers; what others found of
    /// missing objects, and these with their lengths; and why it is not known what others found.
    pub fn set_doubts(
        &mut self,
        now: Duration,
        of_catalogue: Option<&str>,
        of_ledgers: Option<String>,
        (missing, missing_objects): (Option<&str>, &[(ObjectId, u64)]),
        unknown: Option<&str>,
    ) {
        let copy = |kept: &mut Option<String>, said: Option<&str>| {
            if kept.as_deref() != said {
                *kept = said.map(ToOwned::to_owned);
            }
        };
        copy(&mut self.doubts.of_catalogue, of_catalogue);
        copy(&mut self.doubts.missing, missing);
        copy(&mut self.doubts.unknown, unknown);
        self.scan.look_up(missing_objects);
        self.is_stuck = self.is_under_way && now >= self.action_since + super::ACTION_MAX;
        self.doubts.of_ledgers = of_ledgers;
        self.orphans.on_time(now, self.settings.orphan_hold);
        let lasting = self.lasting_doubt();
        // A sentence may name other numbers with each look: its beginning is what it is about.
        let is_new = lasting.is_some() && self.doubts.said.is_none();
        if is_new {
            let why = lasting.unwrap_or_default();
            self.doubts.said = Some(why.clone());
            self.alarms.push(Alarm::DeletionsStopped { why });
        } else if lasting.is_none() {
            self.doubts.said = None;
        }
        self.status.deletions_stopped = self.doubt_of_catalogue();
    }

    /// Why nothing is deleted, if so.
    pub(super) fn doubt_of_catalogue(&self) -> Option<String> {
        if let Some(why) = self.lasting_doubt() {
            return Some(why);
        }
        let unknown = self.doubts.unknown.as_ref();
        unknown.map(|why| {
            format!("whether other tierers doubt the catalogue is not known, or was not a while ago: {why}")
        })
    }

    /// Of these reasons, those of which a person is to know at once.
    fn lasting_doubt(&self) -> Option<String> {
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
        if let Some(why) = &self.doubts.missing {
            return Some(why.clone());
        }
        let why = self.orphans.doubt()?;
        let hours = self.settings.orphan_hold.as_secs() / 3600;
        Some(format!(
            "{why}: {REMEDY}; if it is as it should be, wait: {hours} h after this was noticed each of these objects goes of which it \
             is proved that nobody needs it"
        ))
    }

    /// Whether objects of the catalogue are missing, and nothing else is doubtful.
    pub(super) fn lacks_objects_alone(&self) -> bool {
        let Doubts { of_catalogue, of_ledgers, unknown, .. } = &self.doubts;
        let others = of_catalogue.is_some() || of_ledgers.is_some() || unknown.is_some();
        let are_missing = self.scan.a_missing().is_some() || self.doubts.missing.is_some();
        are_missing && !others && self.orphans.doubt().is_none()
    }

    /// What this tierer found against the catalogue, beside missing objects. Others are to be told (invariant 2).
    pub fn own_doubt(&self) -> Option<String> {
        let of_orphans = self.orphans.doubt().filter(|_| self.team.owns_upkeep());
        self.doubts.of_catalogue.clone().or_else(|| of_orphans.map(ToOwned::to_owned))
    }

    /// Objects that this tierer found missing, with the lengths that were committed: the first so many. Others are to be told, and look them
    /// up themselves. One that cannot do the upkeep may not notice when they are back, and says nothing.
    pub fn own_missing(&self, most: usize) -> Vec<(ObjectId, u64)> {
        match self.unable() {
            Some(_) => Vec::new(),
            None => self.scan.missing().take(most).collect(),
        }
    }

    /// Why this tierer cannot do its part of the upkeep. Others are to be told.
    pub fn unable(&self) -> Option<String> {
        let denied = self.denied.as_ref().map(|why| format!("it cannot delete objects: {why}"));
        let stuck = || self.is_stuck.then(|| "it waits for something that does not end".to_owned());
        denied.or_else(|| self.failures.lasting()).or_else(stuck).or_else(|| self.doubts.of_catalogue.clone())
    }

    /// Alarms since the last call.
    pub fn take_alarms(&mut self) -> Vec<Alarm> {
        std::mem::take(&mut self.alarms)
    }

    /// The catalogue was read from its beginning, because it is another one than before: nothing that was seen of it counts.
    pub fn on_catalogue_replaced(&mut self) {
        self.is_replaced = true;
        self.orphans.forget_all();
        self.examining = super::Examining::default();
        self.rewriting = super::Rewriting::default();
        self.round = None;
        self.found_before.clear();
        if !self.is_under_way {
            self.phase = super::Phase::Waits;
            self.is_replaced = false;
        }
    }
}

#[cfg(test)]
impl Upkeep {
    /// As if these objects had been looked up, and some had been found missing.
    pub fn note_missing(&mut self, asked: &[(ObjectId, u64)], missing: &[ObjectId]) {
        self.scan.on_missing(asked, missing);
    }

    /// Whether ledgers may be removed in doubt.
    pub fn may_remove_ledgers(&self) -> bool {
        self.lacks_objects_alone()
    }
}
