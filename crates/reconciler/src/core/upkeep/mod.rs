//! Upkeep of the tier: ledgers that were deleted leave the catalogue, and objects that nothing refers to leave the bucket.
//! Decides; the shell does one action after the other.
//!
//! # Data flow
//! ```text
//! ledgers of the catalogue ─► proof, listing, proof ─► looked up again, proof again ─► removed from the catalogue (T17)
//! unreferenced, or reserved in vain, for the delay ─► its footer proves that no reader needs it ─► object deleted ─► row forgotten (T13, T16)
//! a page of the bucket's objects ─► compared with rows ─► without a row for the delay: examined; missing: an alarm
//!                                                     ├─► little is live of it: rewritten
//!                                                     └─► its extents are small: joined with others
//! ```
//! [`examine`] has the proof before a deletion, [`rewrite`] what concerns objects that are rewritten, [`join`] which of them are joined,
//! [`orphans`] those without a row. A
//! doubt about the catalogue stops all of it ([`doubts`]).
//!
//! # Invariants
//! 1. A ledger leaves the catalogue on the proof of absence that garbage collection of bookies wants ([`GarbageRound`], IB16):
//!    the ledgers of the catalogue are taken first; a ledger is in metadata before anything of it is in the catalogue.
//! 2. An object that was committed is deleted only when the catalogue said that nothing refers to it, durably and for the delay, and its
//!    own footer agrees ([`examine`]). Its row goes after it. Either may be repeated, by any tierer. Of an id that was reserved in vain the
//!    row goes alone: an object of that id has no row from then on, and is deleted on the word of its own footer ([`orphans`]).
//! 3. The first doubt ends the removal of ledgers for this pass; objects that became garbage earlier go nevertheless. An
//!    object that cannot be deleted holds up no other, however many there are: garbage is gone through once in each pass.
//! 4. Tierers share the work ([`Team`]): one of them removes ledgers and deletes objects, and each rewrites the objects that it owns. Who does what
//!    is a matter of efficiency: two that do the same are harmless. One that may not delete, at which a task fails pass after pass ([`failures`]) or an
//!    action does not end ([`ACTION_MAX`]), or whose catalogue is at fault, leaves its part to others while there are any, and tries in each pass whether it works by now.
//! 5. One action is under way at a time, and one event answers it.
//!
//! # Limits     those of [`rewrite`] and [`examine`]; ids of all ledgers of the catalogue are held for a pass: 8 bytes each; ledgers in one look: [`LEDGERS_MAX`]; objects
//! in one batch: [`OBJECTS_MAX`]
//!
//! # Not here   which object is garbage since when (the catalogue), requests (the shell)

mod doubts;
mod event;
mod examine;
mod failures;
mod join;
mod orphans;
mod rewrite;
mod scan;
mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use bindery_engine::{Doubt, Evidence, GarbageLimits, GarbageRound, Listed, SecondLook};
use bindery_io::canary::{Canaries, Canary};
use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::NewObject;
use bindery_types::LedgerId;
use bindery_types::tier::ObjectRef;

use self::doubts::Doubts;
pub use self::event::{
    Absent, Deletion, Fault, Garbage, LiveExtent, Moved, Piece, Proof, RewriteOrder, SourceError, Survey,
    UpkeepAction, UpkeepEvent, Whereabouts,
};
use self::examine::Examining;
use self::failures::Failures;
pub use self::orphans::Orphan;
use self::orphans::Orphans;
use self::rewrite::Rewriting;
use self::scan::Scan;
pub use self::scan::{ListedObject, ScanCounts, ScanPage, ScannedRow};
pub use self::status::{UpkeepCounts, UpkeepStatus};
use super::{Alarm, Team};

/// Ledgers that are looked up again, and removed, together.
pub const LEDGERS_MAX: usize = 64;

/// Objects that are deleted before their rows go.
pub const OBJECTS_MAX: usize = 256;

/// An action that takes longer may never end: another tierer is to do the upkeep meanwhile. Longer than any takes that is well.
const ACTION_MAX: Duration = Duration::from_secs(2 * 3600);

/// Settings of the upkeep.
#[derive(Debug, Clone, PartialEq)]
pub struct UpkeepSettings {
    /// Time between two passes.
    pub interval: Duration,
    /// How long nothing has referred to an object when it is deleted: longer than any read that began before.
    pub delete_delay: Duration,
    /// When a pass would remove too many ledgers.
    pub limits: GarbageLimits,
    /// When too many objects have no row: the share of those that were listed, and a number that is never too many.
    pub orphan_limits: GarbageLimits,
    /// Too many objects without a row stop all deletions for so long.
    pub orphan_hold: Duration,
    /// Between a pass that found a large share gone and the one that confirms it, at least.
    pub confirm_pause: Duration,
    /// An object of whose entries a smaller part than this is referred to is rewritten; 0: none is.
    pub rewrite_below: f64,
    /// Objects whose extents have less bytes than this on average are joined; 0: none are.
    pub join_below_bytes: u64,
    /// So long after they were committed two objects are enough for that; before, it takes more.
    pub join_after: Duration,
    /// The first pause of an object that could not be rewritten.
    pub rewrite_pause: Duration,
}

impl Default for UpkeepSettings {
    fn default() -> UpkeepSettings {
        UpkeepSettings {
            interval: Duration::from_secs(5 * 60),
            delete_delay: Duration::from_secs(3600),
            limits: GarbageLimits::default(),
            orphan_limits: GarbageLimits { share_max: 0.2, always: 32 },
            orphan_hold: Duration::from_secs(24 * 3600),
            confirm_pause: Duration::from_secs(5),
            rewrite_below: 0.5,
            join_below_bytes: 1 << 20,
            join_after: Duration::from_secs(3600),
            rewrite_pause: Duration::from_secs(10 * 60),
        }
    }
}

impl UpkeepSettings {
    /// Objects go after `delay`; with a short one passes come as often.
    pub fn set_delete_delay(&mut self, delay: Duration) {
        self.delete_delay = delay;
        self.interval = self.interval.min(delay.max(Duration::from_secs(1)));
        self.orphan_hold = self.orphan_hold.min(24 * delay.max(Duration::from_secs(1)));
    }
}

/// The purpose of a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The listing may begin.
    Begin,
    /// The listing ended.
    Listed,
    /// Ledgers were looked up again.
    Removal,
}

/// What comes next.
#[derive(Debug, Clone, PartialEq)]
enum Phase {
    Waits,
    Ledgers,
    Prove(Why),
    List {
        is_first: bool,
    },
    LookAgain,
    Remove,
    Mark,
    FindGarbage,
    /// Something that failed is tried, for its outcome alone.
    Try(UpkeepAction),
    Delete(Vec<ObjectId>),
    Forget(Vec<ObjectId>),
    Scan,
    AskFor(Vec<(ObjectId, u64)>, Vec<(ObjectId, u64)>),
    ReadFooters(Vec<(ObjectId, u64)>),
    /// The footers of objects that another tierer keeps show which of them wait for an operator.
    CheckKept(Vec<(ObjectId, u64)>),
    WhereTo(ObjectRef, Vec<u32>),
    Survey(Vec<ObjectRef>, bool),
    Reserve,
    Rewrite(RewriteOrder),
    Replace(NewObject, Vec<ObjectId>),
}

/// The upkeep of one tierer.
#[derive(Debug, Clone)]
pub struct Upkeep {
    settings: UpkeepSettings,
    canaries: Canaries,
    team: Team,
    /// This pass removes ledgers and deletes objects.
    is_whole: bool,
    /// Objects that nothing refers to and that the tierer with the upkeep has not deleted; whether each is damaged, as far as that is known.
    kept_elsewhere: BTreeMap<ObjectId, Option<bool>>,
    /// INSTANCEID of the cluster whose tier it is.
    instance_id: String,
    phase: Phase,
    is_under_way: bool,
    /// When the last action began, and whether the one under way takes too long.
    action_since: Duration,
    is_stuck: bool,
    is_paused: bool,
    is_ending: bool,
    begins_at: Duration,
    round: Option<GarbageRound>,
    /// The proof counted for what the round believes.
    is_proven: bool,
    /// The metadata store proved in this pass to be the cluster's, and nothing spoke against it since.
    is_believed: bool,
    /// There is a mark that counts.
    has_mark: bool,
    /// The ledgers of the catalogue as one number: of this pass, and when the last mark was left.
    of_here: u64,
    marked: Option<u64>,
    is_empty: bool,
    /// A large share that the last pass found gone.
    found_before: Vec<LedgerId>,
    /// Ledgers to be looked up again, or removed.
    batch: Vec<LedgerId>,
    /// Of these, those that were found absent, to be removed.
    absent: Vec<Absent>,
    /// Ledgers whose ids the catalogue has of others.
    reborn: BTreeSet<LedgerId>,
    /// Objects that could not be deleted in this pass.
    held: BTreeSet<ObjectId>,
    /// Behind which garbage is sought next in this pass.
    garbage_after: Option<ObjectId>,
    /// Why objects cannot be deleted, since a deletion was denied and until one is not.
    denied: Option<String>,
    /// What fails, and what of it this pass has still to try.
    failures: Failures,
    to_try: Vec<UpkeepAction>,
    /// Ids that were reserved in vain, whose rows go with the next ones.
    expired: Vec<ObjectId>,
    scan: Scan,
    orphans: Orphans,
    doubts: Doubts,
    /// The catalogue was replaced while the action under way was: its answer is about another one.
    is_replaced: bool,
    /// A planted bug deletes objects that the scan found.
    deletes_blindly: bool,
    /// Ledgers of the catalogue, ascending, while those of objects without a row are looked up with them.
    of_catalogue: Option<Vec<LedgerId>>,
    /// Alarms, until they are taken.
    alarms: Vec<Alarm>,
    rewriting: Rewriting,
    examining: Examining,
    /// The length at which an object is finished.
    target_bytes: u64,
    said: Option<std::mem::Discriminant<Doubt>>,
    status: UpkeepStatus,
}

impl Upkeep {
    /// The first pass begins at `now`. Objects that take over extents of others have `target_bytes`, at most about.
    pub fn new(
        now: Duration,
        settings: UpkeepSettings,
        target_bytes: u64,
        instance_id: String,
        canaries: Canaries,
    ) -> Upkeep {
        Upkeep {
            settings,
            canaries,
            team: Team::alone(),
            is_whole: true,
            kept_elsewhere: BTreeMap::new(),
            target_bytes,
            instance_id,
            phase: Phase::Waits,
            is_under_way: false,
            action_since: now,
            is_stuck: false,
            is_paused: false,
            is_ending: false,
            begins_at: now,
            round: None,
            is_proven: false,
            is_believed: false,
            has_mark: false,
            of_here: 0,
            marked: None,
            is_empty: true,
            found_before: Vec::new(),
            batch: Vec::new(),
            absent: Vec::new(),
            reborn: BTreeSet::new(),
            held: BTreeSet::new(),
            garbage_after: None,
            denied: None,
            failures: Failures::default(),
            to_try: Vec::new(),
            expired: Vec::new(),
            scan: Scan::default(),
            orphans: Orphans::default(),
            doubts: Doubts::default(),
            is_replaced: false,
            deletes_blindly: false,
            of_catalogue: None,
            alarms: Vec::new(),
            rewriting: Rewriting::default(),
            examining: Examining::default(),
            said: None,
            status: UpkeepStatus::default(),
        }
    }

    /// Everything that decides what comes next.
    #[cfg(test)]
    pub fn essence(&self) -> impl std::fmt::Debug + '_ {
        let of_batch = (&self.batch, &self.held, self.garbage_after);
        let of_removal = (&self.absent, &self.reborn);
        let of_pass = (&self.phase, self.is_under_way, self.begins_at, &self.round, (of_batch, of_removal));
        let of_proof = (
            (self.is_proven, self.is_believed),
            self.has_mark,
            self.of_here,
            self.marked,
            self.is_empty,
            &self.found_before,
        );
        let of_objects = (self.scan.essence(), &self.rewriting, &self.examining);
        let of_doubts = (self.orphans.essence(), self.doubts.essence(), &self.expired, &self.of_catalogue);
        (of_pass, of_proof, of_objects, of_doubts, self.is_paused, self.is_ending)
    }

    /// How it stands.
    pub fn status(&self) -> &UpkeepStatus {
        &self.status
    }

    /// Tiering was paused, or goes on. A pass under way ends with the action under way, and starts over later.
    pub fn set_paused(&mut self, is_paused: bool) {
        if self.is_paused && !is_paused && !self.is_under_way {
            // The next message or removal may be wrong by now.
            self.phase = Phase::Waits;
        }
        self.is_paused = is_paused;
    }

    /// Ledgers of which the catalogue has extents of others that had their ids before. Those others are deleted ledgers, which the
    /// listing hides: they go with the same proof (invariant 1).
    pub fn set_reborn(&mut self, reborn: &BTreeSet<LedgerId>) {
        if self.reborn != *reborn {
            self.reborn.clone_from(reborn);
        }
    }

    /// Who shares the work. A pass under way goes on as it began.
    pub fn set_team(&mut self, team: &Team) {
        if self.team != *team {
            self.team.clone_from(team);
        }
    }

    /// Nothing more begins.
    pub fn stop(&mut self) {
        self.is_ending = true;
    }

    /// When [`Self::next`] has something new; `None` while an action is under way, or nothing may begin.
    pub fn wake_at(&self) -> Option<Duration> {
        let may_begin = !self.is_under_way && !self.is_paused && !self.is_ending;
        may_begin.then_some(if self.phase == Phase::Waits { self.begins_at } else { Duration::ZERO })
    }

    /// What is to be done now.
    pub fn next(&mut self, now: Duration) -> Option<UpkeepAction> {
        if self.wake_at().is_none_or(|at| at > now) {
            return None;
        }
        if self.phase == Phase::Waits {
            self.status.counts.passes += 1;
            self.held.clear();
            self.expired.clear();
            self.garbage_after = self.examining.begin_pass();
            self.is_believed = false;
            self.orphans.begin_pass();
            // Of ids that are used again only this tierer knows that the listing hides them.
            self.is_whole = self.team.owns_upkeep() || !self.reborn.is_empty();
            self.phase = Phase::Ledgers;
            if !self.is_whole {
                self.to_try = self.failures.to_try(self.denied.is_some());
                self.phase = self.next_try();
                // Another one examines what is deleted.
                self.examining = Examining::default();
                (self.status.garbage_kept, self.status.kept_for, self.status.orphan_kept) = (0, None, None);
            }
        }
        let is_doubtful = self.doubt_of_catalogue().is_some() && !self.deletes_blindly;
        let may_remove = self.is_removing_ledgers() && self.lacks_objects_alone();
        // It changes nothing, and who works again may be needed to end the doubt.
        let is_attempt = matches!(self.phase, Phase::Try(_));
        if is_doubtful && !may_remove && !is_attempt && !self.go_to_scan(now) {
            return None;
        }
        (self.is_under_way, self.action_since) = (true, now);
        Some(match &self.phase {
            Phase::Waits | Phase::Ledgers => UpkeepAction::Ledgers,
            Phase::Prove(_) => UpkeepAction::Prove,
            Phase::List { is_first } => UpkeepAction::List { is_first: *is_first },
            Phase::LookAgain => UpkeepAction::LookAgain(self.batch.clone()),
            Phase::Remove => UpkeepAction::Remove(self.absent.clone()),
            Phase::Mark => UpkeepAction::Mark,
            Phase::FindGarbage => UpkeepAction::FindGarbage {
                delay: match self.is_whole {
                    true => self.settings.delete_delay,
                    // Whoever deletes has had two passes for it.
                    false => self.settings.delete_delay + 2 * self.settings.interval,
                },
                after: self.garbage_after,
                limit: OBJECTS_MAX,
            },
            Phase::Try(action) => action.clone(),
            Phase::Delete(objects) => UpkeepAction::Delete(objects.clone()),
            Phase::Forget(objects) => UpkeepAction::Forget(objects.clone()),
            Phase::Scan => UpkeepAction::Scan { after: self.scan.after },
            Phase::AskFor(objects, _) => UpkeepAction::AskFor(objects.clone()),
            Phase::ReadFooters(objects) | Phase::CheckKept(objects) => {
                UpkeepAction::ReadFooters(objects.clone())
            }
            Phase::WhereTo(object, places) => UpkeepAction::WhereTo(*object, places.clone()),
            Phase::Survey(objects, is_partial) => {
                UpkeepAction::Survey { objects: objects.clone(), is_partial: *is_partial }
            }
            Phase::Reserve => UpkeepAction::Reserve,
            Phase::Rewrite(order) => UpkeepAction::Rewrite(order.clone()),
            Phase::Replace(object, sources) => {
                UpkeepAction::Replace { object: object.clone(), sources: sources.clone() }
            }
        })
    }

    /// Whether the pass is at the ledgers that were deleted.
    fn is_removing_ledgers(&self) -> bool {
        matches!(
            self.phase,
            Phase::Ledgers
                | Phase::Prove(_)
                | Phase::List { .. }
                | Phase::LookAgain
                | Phase::Remove
                | Phase::Mark
        )
    }

    /// In doubt about the catalogue the scan alone goes on ([`doubts`], invariant 1). False: the pass is over.
    fn go_to_scan(&mut self, now: Duration) -> bool {
        match self.phase {
            Phase::Scan | Phase::AskFor(..) => true,
            Phase::Survey(..)
            | Phase::Reserve
            | Phase::Rewrite(_)
            | Phase::Replace(..)
            | Phase::ReadFooters(_) => {
                self.phase = self.end_pass(now);
                false
            }
            _ => {
                self.round = None;
                self.found_before.clear();
                self.phase = Phase::Scan;
                true
            }
        }
    }

    /// Takes the answer to the action under way.
    pub fn on_event(&mut self, now: Duration, event: UpkeepEvent, alarms: &mut Vec<Alarm>) {
        self.is_under_way = false;
        if std::mem::take(&mut self.is_replaced) {
            self.phase = self.end_pass(now);
            return;
        }
        self.failures.note(self.status.counts.passes, &event);
        self.phase = match event {
            UpkeepEvent::DeletionTried(Deletion::Done) => {
                self.denied = None;
                self.next_try()
            }
            _ if matches!(self.phase, Phase::Try(_)) => self.next_try(),
            UpkeepEvent::Ledgers(found) => match found {
                Ok(ledgers) => self.begin(ledgers),
                Err(why) => self.doubt(Doubt::Metadata(why), alarms),
            },
            UpkeepEvent::Proven(proof) => self.on_proof(now, proof, alarms),
            UpkeepEvent::Listed(listed) => self.on_listed(listed, alarms),
            UpkeepEvent::LookedAgain(absent) => self.on_looked_again(absent, alarms),
            UpkeepEvent::Removed(removed) => self.on_removed(removed, alarms),
            UpkeepEvent::Marked(outcome) => {
                match outcome {
                    Ok(()) => self.marked = Some(self.of_here),
                    Err(why) => self.status.last_error = Some(why),
                }
                Phase::FindGarbage
            }
            UpkeepEvent::DeletionTried(_) => Phase::FindGarbage,
            UpkeepEvent::Garbage(found) => self.on_garbage(now, found),
            UpkeepEvent::Deleted(outcomes) => self.on_deleted(now, outcomes, alarms),
            UpkeepEvent::Forgotten(forgotten) => {
                match forgotten {
                    Ok(count) => self.status.counts.objects_forgotten += count,
                    // The objects are gone, their rows may be: the next pass finds them gone, and forgets them.
                    Err(why) => self.status.last_error = Some(why),
                }
                self.go_on_examining(now)
            }
            UpkeepEvent::Scanned(page) => self.on_scanned(now, page),
            UpkeepEvent::Missing(missing) => self.on_missing(now, missing, alarms),
            UpkeepEvent::FootersRead(read) if matches!(self.phase, Phase::CheckKept(_)) => {
                self.on_kept_checked(&read);
                Phase::Scan
            }
            UpkeepEvent::FootersRead(read) => {
                if let Some(why) = self.orphans.on_read(read, alarms) {
                    self.status.last_error = Some(why);
                }
                self.go_to_rewriting(now)
            }
            UpkeepEvent::Whereabouts(found) => self.on_whereabouts(now, found, alarms),
            UpkeepEvent::Surveyed(found) => self.on_surveyed(now, found, alarms),
            UpkeepEvent::Reserved(object) => self.on_reserved(now, object),
            UpkeepEvent::Rewritten(built, unread) => self.on_rewritten(now, built, unread, alarms),
            UpkeepEvent::Replaced(outcome) => self.on_replaced(now, outcome),
        };
        self.show_orphans();
        self.status.deletions_stopped = self.doubt_of_catalogue();
    }

    fn show_orphans(&mut self) {
        (self.scan.counts.orphans_kept, self.scan.counts.orphans_unreadable) = self.orphans.counts();
        if self.scan.counts.orphans_kept == 0 {
            self.status.orphan_kept = None;
        }
        let unreadable = self.orphans.unreadable();
        self.status.orphan_unreadable = unreadable.map(|(object, why)| format!("object {object}: {why}"));
        self.status.scan = self.scan.counts;
    }

    /// The next of what failed before, or what comes behind it.
    fn next_try(&mut self) -> Phase {
        self.to_try.pop().map_or(Phase::FindGarbage, Phase::Try)
    }

    fn on_scanned(&mut self, now: Duration, page: Result<ScanPage, String>) -> Phase {
        let page = match page {
            Ok(page) => page,
            Err(why) => {
                self.status.last_error = Some(why);
                return self.end_pass(now);
            }
        };
        self.rewriting.note((now, page.now_ms), &page.rows, &self.settings, &self.team);
        let is_blind = self.canaries.has(Canary::T13ReservationIgnored);
        let range = (self.scan.after, page.next);
        let findings = self.scan.on_page(&page, self.settings.delete_delay, is_blind);
        if is_blind || self.canaries.has(Canary::T13OrphanWithoutProof) {
            self.deletes_blindly = !findings.orphans.is_empty();
            let orphans: Vec<ObjectId> = findings.orphans.iter().map(|orphan| orphan.object).collect();
            return if orphans.is_empty() { self.go_to_rewriting(now) } else { Phase::Delete(orphans) };
        }
        let limits = self.settings.orphan_limits;
        let were_examined = !self.examining.has_orphans_left();
        let mut unread =
            self.orphans.on_page(range, &findings.orphans, page.objects.len(), limits, were_examined);
        if !self.is_whole {
            // They are counted here, and examined by whoever deletes them.
            unread.clear();
        }
        match findings.doubtful.is_empty() {
            false => Phase::AskFor(findings.doubtful, unread),
            true => self.go_to_footers(now, unread),
        }
    }

    fn on_missing(
        &mut self,
        now: Duration,
        missing: Result<Vec<ObjectId>, String>,
        alarms: &mut Vec<Alarm>,
    ) -> Phase {
        let (asked, unread) = match &mut self.phase {
            Phase::AskFor(asked, unread) => (std::mem::take(asked), std::mem::take(unread)),
            _ => Default::default(),
        };
        match missing {
            Ok(missing) => {
                let new = self.scan.on_missing(&asked, &missing).into_iter();
                alarms.extend(new.map(|object| Alarm::ObjectMissing { object }));
            }
            Err(why) => self.status.last_error = Some(why),
        }
        self.go_to_footers(now, unread)
    }

    fn go_to_footers(&mut self, now: Duration, unread: Vec<(ObjectId, u64)>) -> Phase {
        if unread.is_empty() { self.go_to_rewriting(now) } else { Phase::ReadFooters(unread) }
    }

    fn begin(&mut self, ledgers: Vec<LedgerId>) -> Phase {
        // Ledgers of objects without a row are held to the same proof, in the same round.
        let of_orphans = self.orphans.ledgers();
        self.of_catalogue = None;
        let ledgers = match of_orphans.is_empty() {
            true => ledgers,
            false => {
                self.of_catalogue = Some(ledgers.clone());
                of_orphans.into_iter().chain(ledgers).collect::<BTreeSet<_>>().into_iter().collect()
            }
        };
        let mut hasher = DefaultHasher::new();
        ledgers.hash(&mut hasher);
        (self.of_here, self.is_empty) = (hasher.finish(), ledgers.is_empty());
        // A store that knows the newest ledger of the catalogue is not from before the others.
        let seen = ledgers.last().copied();
        let round = GarbageRound::begin(ledgers, seen, self.settings.limits, false, self.canaries);
        self.round = Some(round.confirms(self.found_before.clone()));
        self.is_proven = false;
        Phase::Prove(Why::Begin)
    }

    fn on_proof(&mut self, now: Duration, proof: Result<Proof, String>, alarms: &mut Vec<Alarm>) -> Phase {
        let Phase::Prove(why) = self.phase.clone() else { return Phase::FindGarbage };
        let proof = match proof {
            Ok(proof) => proof,
            Err(why) => return self.doubt(Doubt::Metadata(why), alarms),
        };
        if let Err(doubt) = GarbageRound::check_cluster(&proof.instance_id, &self.instance_id) {
            return self.doubt(doubt, alarms);
        }
        if !proof.is_whole {
            return self.doubt(Doubt::NotWhole, alarms);
        }
        self.is_believed = true;
        let Some(round) = &mut self.round else { return Phase::FindGarbage };
        match why {
            Why::Begin if self.is_empty && !proof.has_mark => Phase::Mark,
            Why::Begin if self.is_empty => {
                self.marked = Some(self.of_here);
                Phase::FindGarbage
            }
            Why::Begin => Phase::List { is_first: true },
            Why::Listed => {
                self.is_proven = round.needs_evidence();
                self.has_mark = proof.has_mark;
                let evidence = match self.is_proven {
                    true => Evidence { is_member: true, has_mark: proof.has_mark, next_id: proof.next_id },
                    false => Evidence::default(),
                };
                match round.on_listed(evidence) {
                    Ok(Listed::Believed) => {
                        self.found_before.clear();
                        self.next_batch()
                    }
                    Ok(Listed::Unconfirmed(found)) => {
                        // Garbage of before goes in the pass that confirms.
                        self.found_before = found;
                        self.round = None;
                        self.begins_at = now + self.settings.confirm_pause;
                        Phase::Waits
                    }
                    Err(doubt) => self.doubt(doubt, alarms),
                }
            }
            Why::Removal if self.is_proven && self.has_mark && !proof.has_mark => {
                self.doubt(Doubt::MarkGone, alarms)
            }
            Why::Removal => {
                let gone: Vec<LedgerId> = self.absent.iter().map(|absent| absent.ledger).collect();
                self.orphans.note_gone(&gone);
                if let Some(of_catalogue) = &self.of_catalogue {
                    self.absent.retain(|absent| of_catalogue.binary_search(&absent.ledger).is_ok());
                }
                if self.absent.is_empty() { self.next_batch() } else { Phase::Remove }
            }
        }
    }

    fn on_listed(&mut self, listed: Result<Option<Vec<LedgerId>>, String>, alarms: &mut Vec<Alarm>) -> Phase {
        let Some(round) = &mut self.round else { return Phase::FindGarbage };
        match listed {
            Ok(Some(mut range)) => match round.on_range({
                range.retain(|ledger| !self.reborn.contains(ledger));
                &range
            }) {
                Ok(()) => Phase::List { is_first: false },
                Err(doubt) => self.doubt(doubt, alarms),
            },
            Ok(None) => Phase::Prove(Why::Listed),
            // As if it had ended.
            Err(_) if self.canaries.has(Canary::T17ListingBelieved) => Phase::Prove(Why::Listed),
            Err(why) => self.doubt(Doubt::Metadata(why), alarms),
        }
    }

    /// The next candidates, or what comes behind the last ones.
    fn next_batch(&mut self) -> Phase {
        let Some(round) = &mut self.round else { return Phase::FindGarbage };
        self.batch = std::iter::from_fn(|| round.next_candidate()).take(LEDGERS_MAX).collect();
        if !self.batch.is_empty() {
            return Phase::LookAgain;
        }
        let may_mark = round.may_mark() && self.marked != Some(self.of_here);
        self.round = None;
        (self.said, self.status.doubt) = (None, None);
        if may_mark { Phase::Mark } else { Phase::FindGarbage }
    }

    fn on_looked_again(&mut self, absent: Result<Vec<Absent>, String>, alarms: &mut Vec<Alarm>) -> Phase {
        let absent = match absent {
            Ok(absent) => absent,
            Err(why) => return self.doubt(Doubt::Metadata(why), alarms),
        };
        let Some(round) = &self.round else { return Phase::FindGarbage };
        let looked = self.batch.iter().map(|ledger| {
            let found = absent.iter().find(|absent| absent.ledger == *ledger);
            let look = if found.is_some() { SecondLook::Absent } else { SecondLook::Present };
            (found.copied().unwrap_or(Absent { ledger: *ledger, created_ms: None }), look)
        });
        self.absent = looked.filter(|(_, look)| round.is_garbage(look)).map(|(absent, _)| absent).collect();
        if self.absent.is_empty() { self.next_batch() } else { Phase::Prove(Why::Removal) }
    }

    fn on_removed(
        &mut self,
        removed: Result<Vec<(LedgerId, u64)>, String>,
        alarms: &mut Vec<Alarm>,
    ) -> Phase {
        let removed = match removed {
            Ok(removed) => removed,
            // Whether it happened is not known: the next pass sees.
            Err(why) => return self.doubt(Doubt::Metadata(why), alarms),
        };
        self.status.counts.ledgers_removed += removed.iter().filter(|(_, left)| *left == 0).count() as u64;
        let left: BTreeSet<LedgerId> =
            removed.into_iter().filter(|(_, left)| *left > 0).map(|(ledger, _)| ledger).collect();
        self.absent.retain(|absent| left.contains(&absent.ledger));
        if self.absent.is_empty() { self.next_batch() } else { Phase::Remove }
    }

    fn on_garbage(&mut self, now: Duration, found: Result<Vec<Garbage>, String>) -> Phase {
        let found = match found {
            Ok(found) => found,
            Err(why) => {
                self.status.last_error = Some(why);
                return if self.is_whole { self.go_to_orphans(now) } else { Phase::Scan };
            }
        };
        if !self.is_whole {
            return self.note_kept_elsewhere(&found);
        }
        let Some(last) = found.last() else { return self.go_to_orphans(now) };
        self.garbage_after = Some(last.object);
        for Garbage { object, stored } in found {
            match stored {
                Some(stored) => self.examining.add(stored),
                None => self.expired.push(object),
            }
        }
        if self.canaries.has(Canary::T16FooterNotAsked) {
            self.examining.pass_all();
        }
        self.go_on_examining(now)
    }

    fn on_deleted(
        &mut self,
        now: Duration,
        outcomes: Vec<(ObjectId, Deletion)>,
        alarms: &mut Vec<Alarm>,
    ) -> Phase {
        let mut deleted = self.note(outcomes, alarms);
        if std::mem::take(&mut self.deletes_blindly) {
            self.scan.counts.orphans_deleted += deleted.len() as u64;
            return self.go_to_rewriting(now);
        }
        if self.examining.are_orphans() {
            // They have no row that could be forgotten.
            deleted.retain(|object| self.orphans.deleted(*object));
            self.scan.counts.orphans_deleted += deleted.len() as u64;
            return self.go_on_examining(now);
        }
        deleted.iter().for_each(|object| self.examining.forget(*object));
        self.status.counts.objects_deleted += deleted.len() as u64;
        deleted.append(&mut self.expired);
        if deleted.is_empty() { self.go_on_examining(now) } else { Phase::Forget(deleted) }
    }

    /// Returns the objects that are gone; the others are left alone for this pass.
    fn note(&mut self, outcomes: Vec<(ObjectId, Deletion)>, alarms: &mut Vec<Alarm>) -> Vec<ObjectId> {
        let mut deleted = Vec::with_capacity(outcomes.len());
        let mut denied = None;
        for (object, outcome) in outcomes {
            match outcome {
                Deletion::Done => deleted.push(object),
                Deletion::Denied(why) => {
                    self.held.insert(object);
                    denied = Some(why);
                }
                Deletion::Failed(why) => {
                    self.held.insert(object);
                    self.status.last_error = Some(why);
                }
            }
        }
        if let Some(why) = denied {
            // Once, until a deletion is allowed again.
            if self.denied.replace(why.clone()).is_none() {
                alarms.push(Alarm::CannotDelete { why });
            }
        } else if !deleted.is_empty() {
            self.denied = None;
        }
        deleted
    }

    /// The removal of ledgers ends for this pass (invariant 3).
    fn doubt(&mut self, doubt: Doubt, alarms: &mut Vec<Alarm>) -> Phase {
        let kind = std::mem::discriminant(&doubt);
        if self.said.replace(kind) != Some(kind) && !matches!(doubt, Doubt::Metadata(_)) {
            alarms.push(Alarm::LedgersNotRemoved { why: doubt.to_string() });
        }
        self.is_believed = false;
        self.status.counts.doubts += 1;
        self.status.doubt = Some(doubt.to_string());
        self.round = None;
        self.found_before.clear();
        Phase::FindGarbage
    }

    fn end_pass(&mut self, now: Duration) -> Phase {
        self.status.counts.delete_failures = self.held.len() as u64;
        self.begins_at = now + self.settings.interval;
        Phase::Waits
    }
}
