//! No object is deleted before its own footer was read, and each range in it is proved to be needed by no reader (T13, T16).
//!
//! # Data flow
//! ```text
//! garbage of the catalogue, objects without a row ─► window of extents ─► where their entries are now ─┬─► all elsewhere, or ledger gone: next window
//!                                                                                                     └─► anything else: the object stays, and the reason is shown
//!                                            all windows ─► deleted ─► its row is forgotten
//! ```
//!
//! # Invariants
//! 1. An extent is needed by no reader when other objects have all of its entries, or its ledger was deleted. The others are those that
//!    the catalogue names for the range; they are in the bucket, and their entries were read and compared with the table of the extent
//!    ([`Moved::differs`](super::Moved::differs)).
//! 2. A ledger was deleted when neither the catalogue nor the metadata store has it, and the store proved in this pass to be the cluster's. It
//!    left the catalogue on a proof of absence (T17). Of an object without a row the catalogue's word is not enough: the ledger was proved to
//!    be absent in this pass ([`super::orphans`]).
//! 3. The proof asks no bookie. A bookie that knows the old place of an entry asks the catalogue when it finds the object gone
//!    (`bindery_server::tier`, invariant 4).
//! 4. An object that does not pass stays, holds up no other, and is examined again in each pass. A damaged one is one alarm.
//! 5. When two passes found an object gone, its row goes, and nothing is deleted: stores say the same of an access key that they do not know
//!    at the moment. One that comes back has no row, and is examined as such.
//! 6. Objects are deleted soon after they passed: [`DELETED_TOGETHER`] at once, [`PROOF_AGE_MAX`] after the first of them, or as soon as a longer
//!    answer is there. The catalogue is followed once more before that, and one that it refers to is not deleted.
//!
//! # Limits
//! Extents in one window: [`WINDOW_MAX`]. Time of one pass: [`TIME_PER_PASS`] for garbage, and again for objects without a row; the next
//! pass goes on behind the object that was examined last. Objects remembered as damaged, gone or kept: [`REMEMBERED_MAX`] each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bindery_io::canary::Canary;
use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::StoredObject;
use bindery_types::LedgerId;

use super::event::{Fault, SourceError, Whereabouts};
use super::{Phase, Upkeep};
use crate::core::Alarm;

/// Extents in one window: what a look at the catalogue takes is short beside the pause between two records of other tierers.
const WINDOW_MAX: u32 = 512;
/// After so long a pass goes on to other work.
const TIME_PER_PASS: Duration = Duration::from_secs(120);
/// Objects that are deleted together.
const DELETED_TOGETHER: usize = 64;
/// Those that passed do not wait longer for others.
const PROOF_AGE_MAX: Duration = Duration::from_secs(10);
/// Objects that are remembered as damaged, gone or kept.
const REMEMBERED_MAX: usize = 1000;

/// An object under examination.
#[derive(Debug, Clone, Copy)]
struct Current {
    stored: StoredObject,
    /// Extents before this one passed.
    from: u32,
}

/// What is examined, and what came of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Examining {
    queue: VecDeque<StoredObject>,
    current: Option<Current>,
    /// Objects that passed, and are to be deleted, and when the first of them did.
    passed: Vec<ObjectId>,
    passed_since: Duration,
    /// The objects of the queue have no row.
    are_orphans: bool,
    /// When this pass goes on to other work; `None` before its first object.
    until: Option<Duration>,
    /// Where the next pass goes on, when this one had no time left: with garbage,
    resume_after: Option<ObjectId>,
    /// and with objects without a row.
    resume_orphans_after: Option<ObjectId>,
    /// The object that was examined last.
    last: Option<ObjectId>,
    /// Objects with a row that this pass found no proof for,
    kept: BTreeSet<ObjectId>,
    /// and the one before it.
    kept_before: BTreeSet<ObjectId>,
    /// Objects that the last round did not find in the bucket (invariant 5),
    gone: BTreeSet<ObjectId>,
    /// and this one.
    gone_now: BTreeSet<ObjectId>,
    /// Objects whose footers are damaged, and in which way.
    damaged: BTreeMap<ObjectId, String>,
}

impl Examining {
    /// A pass begins. Returns the object behind which it examines garbage.
    pub fn begin_pass(&mut self) -> Option<ObjectId> {
        self.queue.clear();
        self.current = None;
        self.passed.clear();
        self.are_orphans = false;
        self.until = None;
        let after = self.resume_after.take();
        if after.is_none() {
            // The pass before came to the end of all garbage.
            self.kept_before = std::mem::take(&mut self.kept);
            self.damaged.retain(|id, _| self.kept_before.contains(id));
            // Those of the round before, which were not found gone a second time.
            self.gone = std::mem::take(&mut self.gone_now);
        }
        after
    }

    /// Objects that the catalogue does not refer to.
    pub fn add(&mut self, garbage: StoredObject) {
        self.queue.push_back(garbage);
    }

    /// A planted bug examines none of them.
    pub fn pass_all(&mut self) {
        self.passed.extend(self.queue.drain(..).map(|stored| stored.object.id));
    }

    /// Objects without a row, which come last in a pass: those first whose turn did not come in the one before.
    pub fn begin_orphans(&mut self, mut orphans: Vec<StoredObject>) {
        self.are_orphans = true;
        self.until = None;
        let after = self.resume_orphans_after.take();
        orphans.sort_by_key(|orphan| (Some(orphan.object.id) <= after, orphan.object.id));
        self.queue = orphans.into();
    }

    /// Whether some objects without a row had no turn in this pass.
    pub fn has_orphans_left(&self) -> bool {
        self.resume_orphans_after.is_some()
    }

    /// Notes that the object passed, and is to be deleted.
    fn pass(&mut self, now: Duration, object: ObjectId) {
        if self.passed.is_empty() {
            self.passed_since = now;
        }
        self.passed.push(object);
    }

    pub fn are_orphans(&self) -> bool {
        self.are_orphans
    }

    pub fn damaged(&self) -> &BTreeMap<ObjectId, String> {
        &self.damaged
    }

    /// Objects with a row that are kept: of this pass as far as it went, or of the one before, whichever is more.
    pub fn kept(&self) -> u64 {
        self.kept.len().max(self.kept_before.len()) as u64
    }

    /// Those that are not damaged: these wait for an operator.
    pub fn kept_undamaged(&self) -> u64 {
        let of = |kept: &BTreeSet<ObjectId>| {
            kept.iter().filter(|id| !self.damaged.contains_key(id)).count() as u64
        };
        of(&self.kept).max(of(&self.kept_before))
    }

    /// Forgets an object that was deleted.
    pub fn forget(&mut self, object: ObjectId) {
        self.kept.remove(&object);
        self.kept_before.remove(&object);
        self.damaged.remove(&object);
    }

    /// Takes the next object, unless the time of the pass is over. An object whose examination has begun is examined to its end, however long
    /// that takes.
    fn next_object(&mut self, now: Duration) -> Option<Current> {
        let until = *self.until.get_or_insert(now + TIME_PER_PASS);
        if now >= until && !self.queue.is_empty() {
            self.queue.clear();
            match self.are_orphans {
                true => self.resume_orphans_after = self.last,
                false => self.resume_after = self.last,
            }
        }
        let stored = self.queue.pop_front()?;
        self.last = Some(stored.object.id);
        Some(Current { stored, from: 0 })
    }

    /// Notes that no proof was found for the object. A damaged one is remembered for as long as it is kept.
    fn keep(&mut self, object: ObjectId) {
        let is_damaged = self.damaged.contains_key(&object);
        if !self.are_orphans && (is_damaged || self.kept.len() < REMEMBERED_MAX) {
            self.kept.insert(object);
        }
    }

    /// Notes that the object is not in the bucket. Returns true when the round before found the same.
    fn note_gone(&mut self, object: ObjectId) -> bool {
        let is_second = self.gone.remove(&object);
        if !is_second && self.gone_now.len() < REMEMBERED_MAX {
            self.gone_now.insert(object);
        }
        is_second
    }

    /// Notes that the object's footer is damaged. Returns true when that was not known.
    fn note_damage(&mut self, object: ObjectId, why: &str) -> bool {
        let is_new = !self.damaged.contains_key(&object) && self.damaged.len() < REMEMBERED_MAX;
        if is_new {
            self.damaged.insert(object, why.to_owned());
        }
        is_new
    }
}

/// What is believed of ledgers that neither the catalogue nor the metadata store has.
#[derive(Debug, Clone, Copy)]
enum Belief<'a> {
    /// The metadata store proved in this pass to be the cluster's.
    Absence,
    /// It did not.
    Nothing,
    /// These were proved to be deleted.
    Proof(&'a BTreeSet<LedgerId>),
}

/// Why an object may not be deleted yet; `None`: these extents are needed by no reader (invariants 1 and 2). `compares`: whether it counts that
/// others have other entries.
fn needed_for(object: ObjectId, found: &Whereabouts, belief: Belief<'_>, compares: bool) -> Option<String> {
    for moved in &found.moved {
        let (ledger, first, last) = (moved.ledger, moved.first, moved.last);
        if moved.extents.iter().any(|extent| extent.object.id == object) {
            return Some(format!("the catalogue has entries {first} to {last} of ledger {ledger} in it"));
        }
        if !moved.is_covered() {
            return Some(format!(
                "the catalogue does not have entries {first} to {last} of ledger {ledger} in other objects that are in the bucket"
            ));
        }
        if let Some(difference) = moved.differs.as_ref().filter(|_| compares) {
            return Some(difference.clone());
        }
    }
    let is_unproven = |ledger: &LedgerId| match belief {
        Belief::Absence => false,
        Belief::Nothing => true,
        Belief::Proof(proven) => !proven.contains(ledger),
    };
    let ledger = found.absent.iter().copied().find(is_unproven)?;
    Some(format!("that ledger {ledger} was deleted is not proved yet"))
}

impl Upkeep {
    /// The next window, object, deletion or stage of the pass.
    pub(super) fn go_on_examining(&mut self, now: Duration) -> Phase {
        let examining = &mut self.examining;
        let are_old = !examining.passed.is_empty() && now >= examining.passed_since + PROOF_AGE_MAX;
        if examining.passed.len() >= DELETED_TOGETHER || are_old {
            return Phase::Delete(std::mem::take(&mut examining.passed));
        }
        if let Some(current) = examining.current.take().or_else(|| examining.next_object(now)) {
            let places = current.from..current.stored.extents.min(current.from + WINDOW_MAX);
            examining.current = Some(current);
            return Phase::WhereTo(current.stored.object, places.collect());
        }
        if !examining.passed.is_empty() {
            return Phase::Delete(std::mem::take(&mut examining.passed));
        }
        match () {
            () if examining.are_orphans => Phase::Scan,
            () if !self.expired.is_empty() => Phase::Forget(std::mem::take(&mut self.expired)),
            // The time of this pass is over.
            () if examining.resume_after.is_some() => self.go_to_orphans(now),
            () => Phase::FindGarbage,
        }
    }

    /// Objects without a row are examined after those that have one.
    pub(super) fn go_to_orphans(&mut self, now: Duration) -> Phase {
        self.status.garbage_kept = self.examining.kept();
        if self.status.garbage_kept == 0 {
            self.status.kept_for = None;
        }
        self.examining.begin_orphans(self.orphans.to_examine());
        self.go_on_examining(now)
    }

    pub(super) fn on_whereabouts(
        &mut self,
        now: Duration,
        found: Result<Whereabouts, SourceError>,
        alarms: &mut Vec<Alarm>,
    ) -> Phase {
        let Some(Current { stored, from }) = self.examining.current.take() else {
            return self.go_on_examining(now);
        };
        let object = stored.object.id;
        let are_orphans = self.examining.are_orphans;
        let why = match found {
            Ok(found) if found.extents == stored.extents as usize => {
                let belief = match () {
                    () if are_orphans => Belief::Proof(self.orphans.gone()),
                    () if self.is_believed => Belief::Absence,
                    () => Belief::Nothing,
                };
                let compares = !self.canaries.has(Canary::T16EntriesNotCompared);
                needed_for(object, &found, belief, compares)
            }
            Ok(found) => Some(format!(
                "its footer has {} extents, and {} were committed",
                found.extents, stored.extents
            )),
            Err(SourceError { fault: Fault::Gone, .. }) if self.examining.note_gone(object) => {
                self.examining.forget(object);
                if !self.orphans.deleted(object) {
                    self.expired.push(object);
                }
                return self.go_on_examining(now);
            }
            // It is examined again in the next pass: nothing says that it has to be kept.
            Err(SourceError { why, fault: Fault::Gone | Fault::Passing }) => {
                self.status.last_error = Some(format!("object {object}: {why}"));
                return self.go_on_examining(now);
            }
            Err(SourceError { why, fault: Fault::Damage }) => {
                match are_orphans {
                    true => self.orphans.damage(object, why.clone(), alarms),
                    false if self.examining.note_damage(object, &why) => {
                        alarms.push(Alarm::ObjectDamaged { object, why: why.clone() });
                    }
                    false => {}
                }
                Some(why)
            }
        };
        match why {
            Some(why) => {
                self.examining.keep(object);
                let of_object = Some(format!("object {object}: {why}"));
                match are_orphans {
                    true => self.status.orphan_kept = of_object,
                    false => self.status.kept_for = of_object,
                }
            }
            None if from + WINDOW_MAX < stored.extents => {
                self.examining.current = Some(Current { stored, from: from + WINDOW_MAX });
            }
            None => self.examining.pass(now, object),
        }
        self.go_on_examining(now)
    }
}
