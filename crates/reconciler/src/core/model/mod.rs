//! A world for the core: ledgers that grow and close, bookies with registers, a bucket, and the catalogue's own core. One or more
//! tierers act in it; every action travels, arrives (which has an effect), and is answered, each as a step of its own, so that a crash
//! fits in between.
//!
//! Bookies let copies go when all of a ledger is in the tier, as far as they were told. Objects of which little is left are rewritten.
//!
//! Checked after every step: IT1, IT2, IT6 and IT7 (docs/reference/reliability.md), T4, and IT5 of entries without a copy: the bookie
//! knows an object that has them.
//!
//! A request reaches a bookie within its timeout, or not at all; everything else may arrive at any time.

mod deletion;
mod explore;
mod part;
mod scopes;
mod scripts;
mod sharing;
mod swarm;
mod upkeep;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bindery_io::SeededRandom;
use bindery_io::canary::Canaries;
use bindery_tiering::catalogue::{
    Change, ChangeOutcome, Core as Catalogue, Facts, NewExtent, NewObject, ObjectRow, Record, Verdict,
    WantedExtents, WriterId,
};
use bindery_tiering::{ClusterId, ObjectId};
use bindery_types::tier::{ObjectRef, Reconciliation, TierExtent};
use bindery_types::{
    BookieId, Creation, DigestType, EntryId, LedgerId, LedgerMetadata, LedgerSecret, LedgerState, Quorum,
    Segment,
};

use self::part::Part;
use self::upkeep::{Estate, Keeper};
use super::measure::BuildTimes;
use super::updates::{Ability, RequestError, UpdateMode, UpdateResult, UpdateStatus};
use super::*;

pub(super) const ENTRY_BYTES: u64 = 1000;
const CLUSTER: ClusterId = ClusterId::from_bytes([7; 16]);
/// Far enough for the age of every ledger.
const ORIGIN: Duration = Duration::from_secs(1_000_000);

pub(super) fn ledger(id: i64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

pub(super) fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}

pub(super) fn bookie(index: usize) -> BookieId {
    BookieId::new(format!("b{index}")).unwrap()
}

/// A ledger as it really is.
#[derive(Debug, Clone)]
pub(super) struct Ghost {
    pub metadata: LedgerMetadata,
    /// The last confirmed entry.
    pub end: Option<EntryId>,
    pub is_deleted: bool,
    /// Nobody can read it.
    pub is_unreadable: bool,
}

impl Ghost {
    fn creation(&self) -> Creation {
        Creation::of(&self.metadata, 0, None)
    }
}

/// A ledger on a bookie.
#[derive(Debug, Clone, Default)]
pub(super) struct Told {
    pub register: Option<EntryId>,
    /// Ranges by their first entry: the last entry, and the extent that has them, which may be longer.
    pub extents: BTreeMap<EntryId, (EntryId, TierExtent)>,
    /// When the ledger of this register was created.
    pub created_ms: Option<i64>,
    /// Copies up to here are gone.
    pub trimmed: Option<EntryId>,
}

#[derive(Debug, Clone)]
pub(super) struct Bookie {
    pub ability: Ability,
    pub told: BTreeMap<LedgerId, Told>,
    /// It has nothing of these.
    pub without: BTreeSet<LedgerId>,
    /// Requests that carry one of these are never answered.
    pub hangs_on: BTreeSet<LedgerId>,
    pub is_hanging: bool,
}

/// Why something did not work, or only seemed so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Works,
    /// It has no effect, and the answer says that it failed.
    Fails,
    /// It has its effect, and the answer says that it failed.
    AnswerLost,
}

/// How far an action is.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Sent,
    /// An upload that has begun.
    Begun,
    Answered(Box<Event>),
}

/// An action under way.
#[derive(Clone)]
pub(super) struct Pending {
    tierer: usize,
    /// Of this life of the tierer.
    life: u64,
    pub action: Action,
    step: Step,
    sent_at: Duration,
}

#[derive(Clone)]
pub(super) struct Tierer {
    core: Option<Core>,
    keeper: Option<Keeper>,
    life: u64,
    listed: bool,
    pub alarms: Vec<Alarm>,
    pub is_stopped: bool,
}

#[derive(Clone)]
pub(super) struct World {
    pub now: Duration,
    pub settings: Settings,
    pub tierers: Vec<Part<Tierer>>,
    pub pending: Vec<Part<Pending>>,
    pub catalogue: Part<Catalogue>,
    /// Every extent that was ever committed: ledger, first and last entry, object.
    pub committed: Part<BTreeSet<(LedgerId, EntryId, EntryId, ObjectId)>>,
    pub ledgers: Part<BTreeMap<LedgerId, Ghost>>,
    pub bookies: Part<BTreeMap<BookieId, Bookie>>,
    /// Objects that are whole, with their extents.
    pub bucket: Part<BTreeMap<ObjectId, NewObject>>,
    /// Uploads that have begun, ever.
    pub begun: Part<BTreeSet<ObjectId>>,
    pub random: Arc<SeededRandom>,
    /// How likely a read of a ledger fails, or an object is cut short.
    pub cuts: f64,
    /// The catalogue was put back, so bookies may be ahead of it.
    pub was_put_back: bool,
    /// It was replaced under tierers that run: what they had begun may not fit it.
    pub is_diverged: bool,
    /// Why nobody can follow the catalogue.
    pub fault: Option<String>,
    /// This tierer does not reach the bucket.
    pub cut_off: Option<usize>,
    estate: Part<Estate>,
    /// When objects were written.
    pub written: Part<BTreeMap<ObjectId, Duration>>,
    ids: u64,
    pub updates_in_flight_max: usize,
    /// Updates by (ledger, bookie) with the time they arrived.
    pub arrived: Vec<(Duration, LedgerId, BookieId)>,
}

impl World {
    pub fn new(seed: u64, tierers: usize, bookies: usize) -> World {
        let settings = Settings {
            object_bytes_max: 100 * ENTRY_BYTES,
            objects_max: 4,
            open_bytes_min: 5 * ENTRY_BYTES,
            open_age_max: Duration::from_secs(5),
            list_interval: Duration::from_secs(1),
            handover: Duration::from_secs(2),
            asked_kept: Duration::from_secs(10),
            unable_after: Duration::from_secs(20),
            doubt_kept: Duration::from_secs(10),
            revisit_interval: Duration::from_secs(100),
            upkeep: UpkeepSettings {
                interval: Duration::from_secs(5),
                delete_delay: Duration::from_secs(20),
                limits: bindery_engine::GarbageLimits::default(),
                orphan_limits: bindery_engine::GarbageLimits { share_max: 0.2, always: 32 },
                orphan_hold: Duration::from_secs(1000),
                confirm_pause: Duration::from_secs(1),
                rewrite_below: 0.5,
                join_below_bytes: 0,
                join_after: Duration::from_secs(10),
                rewrite_pause: Duration::from_secs(10),
            },
            ..Settings::default()
        };
        let bookies = (0..bookies).map(|index| {
            let bookie = Bookie {
                ability: Ability::Reconciles,
                told: BTreeMap::new(),
                without: BTreeSet::new(),
                hangs_on: BTreeSet::new(),
                is_hanging: false,
            };
            (super::model::bookie(index), bookie)
        });
        World {
            now: ORIGIN,
            settings,
            tierers: (0..tierers)
                .map(|_| {
                    let (core, keeper, alarms) = (None, None, Vec::new());
                    Tierer { core, keeper, life: 0, listed: false, alarms, is_stopped: false }.into()
                })
                .collect(),
            pending: Vec::new(),
            catalogue: Catalogue::new(CLUSTER).into(),
            committed: BTreeSet::new().into(),
            ledgers: BTreeMap::new().into(),
            bookies: bookies.collect::<BTreeMap<_, _>>().into(),
            bucket: BTreeMap::new().into(),
            begun: BTreeSet::new().into(),
            random: Arc::new(SeededRandom::new(seed)),
            cuts: 0.0,
            was_put_back: false,
            is_diverged: false,
            fault: None,
            cut_off: None,
            estate: Estate::default().into(),
            written: BTreeMap::new().into(),
            ids: 0,
            updates_in_flight_max: 0,
            arrived: Vec::new(),
        }
    }

    /// A closed ledger of so many entries on the first bookies.
    pub fn add_ledger(&mut self, id: i64, entries: i64, is_sealed: bool) {
        self.add_on(id, entries, is_sealed, (3, 3, 2), &[0, 1, 2]);
    }

    pub fn add_on(
        &mut self,
        id: i64,
        entries: i64,
        is_sealed: bool,
        shape: (usize, usize, usize),
        on: &[usize],
    ) {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(Quorum::new(shape.0, shape.1, shape.2).unwrap(), secret);
        let ensemble = on.iter().map(|index| bookie(*index)).collect();
        metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
        let ghost = Ghost { metadata, end: None, is_deleted: false, is_unreadable: false };
        self.ledgers.insert(ledger(id), ghost);
        self.grow(id, entries);
        if is_sealed {
            self.seal(id);
        }
    }

    pub fn grow(&mut self, id: i64, entries: i64) {
        let ghost = self.ledgers.get_mut(&ledger(id)).unwrap();
        if !matches!(ghost.metadata.state, LedgerState::Closed { .. }) && entries > 0 {
            ghost.end = EntryId::new(EntryId::to_wire(ghost.end) + entries);
        }
    }

    pub fn seal(&mut self, id: i64) {
        let ghost = self.ledgers.get_mut(&ledger(id)).unwrap();
        let length_bytes = (EntryId::to_wire(ghost.end) + 1) as u64 * ENTRY_BYTES;
        ghost.metadata.state = LedgerState::Closed { last_entry: ghost.end, length_bytes };
    }

    /// Starts a tierer, again or for the first time.
    pub fn start(&mut self, tierer: usize, canaries: Canaries) {
        self.settings.canaries = canaries;
        let core = Core::new(self.now, self.settings.clone());
        let keeper = self.new_keeper(canaries);
        let place = &mut self.tierers[tierer];
        place.life += 1;
        place.keeper = Some(keeper);
        (place.core, place.listed, place.is_stopped) = (Some(core), false, false);
        self.tell_bookies(tierer);
    }

    /// A tierer dies. Its requests may arrive, or not.
    pub fn crash(&mut self, tierer: usize) {
        self.crash_keeper(tierer);
        self.tierers[tierer].core = None;
        self.tierers[tierer].life += 1;
        // A part of an object is no object.
        self.pending.retain(|pending| {
            pending.tierer != tierer
                || matches!(pending.action, Action::Commit { .. } | Action::Update(_) | Action::Reserve(_))
        });
    }

    pub fn core(&self, tierer: usize) -> &Core {
        self.tierers[tierer].core.as_ref().unwrap()
    }

    pub fn is_alive(&self, tierer: usize) -> bool {
        self.tierers[tierer].core.is_some()
    }

    pub fn tell_bookies(&mut self, tierer: usize) {
        let abilities: BTreeMap<_, _> =
            self.bookies.iter().map(|(id, bookie)| (id.clone(), bookie.ability)).collect();
        self.event(tierer, Event::Bookies(abilities));
    }

    fn name(&self, tierer: usize) -> String {
        format!("{tierer}.{}", self.tierers[tierer].life)
    }

    /// Tells a tierer who lives, and what they say, as the metadata store has it.
    pub fn tell_tierers(&mut self, tierer: usize) {
        let live: Vec<usize> = (0..self.tierers.len()).filter(|of| self.is_alive(*of)).collect();
        let member = |of: &usize| Member {
            name: self.name(*of),
            is_unable: self.core(*of).unable().is_some(),
            is_without_upkeep: self.tierers[*of].keeper.as_ref().is_some_and(|of| of.core.unable().is_some()),
        };
        let team = Team::new(&self.name(tierer), live.iter().map(member));
        let others = live.iter().filter(|of| **of != tierer);
        let mut doubts = HeardDoubts::default();
        for of in others {
            let keeper = self.tierers[*of].keeper.as_ref().map(|keeper| &keeper.core);
            let doubt = self.core(*of).own_doubt().or_else(|| keeper.and_then(|keeper| keeper.own_doubt()));
            doubts.of_catalogue = doubts.of_catalogue.or(doubt);
            doubts.missing_objects.extend(keeper.into_iter().flat_map(|keeper| keeper.own_missing(16)));
        }
        let missing = doubts.missing_objects.first();
        doubts.missing = missing.map(|(object, _)| format!("another one misses object {object}"));
        self.event(tierer, Event::Tierers { team, doubts });
    }

    /// As [`Self::run`]; those that share hear of each other meanwhile.
    pub fn run_sharing(&mut self, time: Duration, is_shared: bool) {
        let end = self.now + time;
        while self.now < end {
            for tierer in (0..self.tierers.len()).filter(|_| is_shared) {
                if self.is_alive(tierer) {
                    self.tell_tierers(tierer);
                }
            }
            let pause = if is_shared { Duration::from_secs(5) } else { time };
            self.run(pause.min(end - self.now));
        }
    }

    /// Gives a tierer an event, and lets its actions travel.
    pub fn event(&mut self, tierer: usize, event: Event) {
        self.keep_up(tierer);
        let Some(core) = &mut self.tierers[tierer].core else { return };
        let mut actions = Vec::new();
        core.on_event(self.now, event, &mut actions);
        core.check_due(self.now);
        let life = self.tierers[tierer].life;
        for action in actions {
            match action {
                Action::Alarm(alarm) => self.tierers[tierer].alarms.push(alarm),
                Action::Stopped => self.tierers[tierer].is_stopped = true,
                Action::SlowDown => {}
                Action::GiveUp(request) => self.pending.retain(|pending| {
                    !matches!(&pending.action, Action::Update(sent) if sent.id == request && pending.tierer == tierer
                        && pending.life == life)
                }),
                Action::Abandon(object) => {
                    let built = Built { outcome: Err("abandoned".into()), left: Vec::new(), times: BuildTimes::default() };
                    for pending in &mut self.pending {
                        if matches!(&pending.action, Action::Build(order) if order.object == object) {
                            pending.step = Step::Answered(Box::new(Event::Built { object, built: built.clone() }));
                        }
                    }
                }
                action => {
                    let sent_at = self.now;
                    self.pending.push(Pending { tierer, life, action, step: Step::Sent, sent_at }.into());
                }
            }
        }
        let updates = self.pending.iter().filter(|pending| {
            pending.tierer == tierer && pending.life == life && matches!(pending.action, Action::Update(_))
        });
        self.updates_in_flight_max = self.updates_in_flight_max.max(updates.count());
        self.check();
    }

    /// Takes an action one step further.
    pub fn deliver(&mut self, index: usize, fate: Fate) {
        let Pending { tierer, life, action, step, sent_at } = (*self.pending[index]).clone();
        if matches!(action, Action::Update(_)) && step == Step::Sent && self.is_late(sent_at) {
            // Whoever sent it has given it up.
            drop(self.pending.remove(index));
            return;
        }
        let is_alive = self.tierers[tierer].life == life && self.tierers[tierer].core.is_some();
        let is_of_bucket = matches!(
            action,
            Action::Locate(_)
                | Action::FindExtents { .. }
                | Action::Reserve(_)
                | Action::Build(_)
                | Action::Commit { .. }
        );
        let fate = if is_of_bucket && self.cut_off == Some(tierer) { Fate::Fails } else { fate };
        let next = match step {
            Step::Sent => self.arrive(tierer, &action, fate),
            Step::Begun => self.complete(&action, fate).map(|event| Step::Answered(Box::new(event))),
            Step::Answered(event) => {
                self.pending.remove(index);
                if is_alive {
                    self.event(tierer, *event);
                }
                return;
            }
        };
        match next {
            Some(step) if is_alive => self.pending[index].step = step,
            // Nobody hears of it.
            Some(_) => drop(self.pending.remove(index)),
            // It hangs.
            None => {}
        }
        self.check();
    }

    fn arrive(&mut self, tierer: usize, action: &Action, fate: Fate) -> Option<Step> {
        let failed = || "it failed".to_owned();
        let asks_the_catalogue = matches!(
            action,
            Action::Locate(_) | Action::FindExtents { .. } | Action::Reserve(_) | Action::Commit { .. }
        );
        let fate = if self.fault.is_some() && asks_the_catalogue { Fate::Fails } else { fate };
        let event = match action {
            Action::List => {
                if fate != Fate::Works {
                    Event::ListFailed(failed())
                } else {
                    let ledgers: Vec<LedgerId> = self
                        .ledgers
                        .iter()
                        .filter(|(_, ghost)| !ghost.is_deleted)
                        .map(|(id, _)| *id)
                        .collect();
                    let half = ledgers.len() / 2;
                    let is_last = std::mem::replace(&mut self.tierers[tierer].listed, false) || half == 0;
                    self.tierers[tierer].listed = !is_last;
                    let ledgers = match (is_last, half) {
                        (_, 0) => ledgers,
                        (true, _) => ledgers[half..].to_vec(),
                        (false, _) => ledgers[..half].to_vec(),
                    };
                    Event::Listed { ledgers, is_last }
                }
            }
            Action::Look(id) => {
                let look = match self.ledgers.get(id) {
                    _ if fate != Fate::Works => Look::Failed(failed()),
                    None => Look::Gone,
                    Some(ghost) if ghost.is_deleted => Look::Gone,
                    Some(ghost) => Look::Found(Sighting {
                        metadata: Arc::new(ghost.metadata.clone()),
                        available: ghost.end,
                        length_bytes: match ghost.metadata.state {
                            LedgerState::Closed { length_bytes, .. } => Some(length_bytes),
                            _ => None,
                        },
                        age: Duration::from_secs(1_000_000 - id.get() as u64),
                        creation: ghost.creation(),
                    }),
                };
                Event::Looked { ledger: *id, look }
            }
            Action::Locate(ledgers) => Event::Located(match fate {
                Fate::Works => Ok(ledgers.iter().map(|id| self.place(*id)).collect()),
                Fate::Fails | Fate::AnswerLost => Err(failed()),
            }),
            Action::FindExtents { ledger, from } => Event::Extents {
                ledger: *ledger,
                extents: (fate == Fate::Works).then(|| self.extents_from(*ledger, *from, 3)),
            },
            Action::Reserve(count) => {
                let objects = self.draw(*count);
                if fate != Fate::Fails {
                    self.commit(&[], &objects);
                }
                Event::Reserved(if fate == Fate::Works { Ok(objects) } else { Err(failed()) })
            }
            Action::Build(order) => {
                self.begun.insert(order.object);
                for wanted in order.ledgers.iter().filter(|_| self.was_put_back && !self.is_diverged) {
                    let next = self.catalogue.next(&Facts::nothing_below(), wanted.ledger).unwrap();
                    let (of, first) = (wanted.ledger, wanted.first);
                    assert!(
                        first <= next,
                        "IT1: ledger {of} goes on with entry {first}, and {next} is next (T2)"
                    );
                }
                let row = self.catalogue.object(&Facts::nothing_below(), order.object).unwrap();
                assert!(
                    matches!(row, Some(ObjectRow::Reserved { .. }))
                        || self.is_diverged
                        || self.estate.forgotten.contains(&order.object),
                    "IT2: {} is not reserved: {row:?}",
                    order.object
                );
                return Some(Step::Begun);
            }
            Action::Commit { commit, objects, reserve } => {
                let reserved = self.draw(*reserve);
                let outcome = match fate {
                    Fate::Fails => Err(failed()),
                    Fate::Works => Ok(self.commit(objects, &reserved)),
                    Fate::AnswerLost => {
                        self.commit(objects, &reserved);
                        Err(failed())
                    }
                };
                Event::Committed { commit: *commit, outcome }
            }
            Action::Update(request) => {
                let bookie = self.bookies.get_mut(&request.bookie).unwrap();
                let hangs = bookie.is_hanging
                    || request.ledgers.iter().any(|update| bookie.hangs_on.contains(&update.ledger));
                if hangs {
                    return None;
                }
                assert_eq!(bookie.ability, Ability::Reconciles, "only those that advertise it are told");
                let results = match fate {
                    Fate::Fails => Err(RequestError::Failed(failed())),
                    Fate::Works | Fate::AnswerLost => {
                        for update in &request.ledgers {
                            self.arrived.push((self.now, update.ledger, request.bookie.clone()));
                        }
                        let results: Vec<UpdateResult> = request
                            .ledgers
                            .iter()
                            .map(|update| bookie.update(update, &self.bucket))
                            .collect();
                        match fate {
                            Fate::Works => Ok(results),
                            _ => Err(RequestError::Failed(failed())),
                        }
                    }
                };
                Event::Updated { request: request.id, answer: results }
            }
            Action::Abandon(_)
            | Action::GiveUp(_)
            | Action::SlowDown
            | Action::Alarm(_)
            | Action::Stopped => {
                unreachable!("they do not travel")
            }
        };
        Some(Step::Answered(Box::new(event)))
    }

    /// An upload ends.
    fn complete(&mut self, action: &Action, fate: Fate) -> Option<Event> {
        let Action::Build(order) = action else { unreachable!("only uploads have a second step") };
        let (mut extents, mut left, mut bytes) = (Vec::new(), Vec::new(), 0);
        for wanted in &order.ledgers {
            let ghost = &self.ledgers[&wanted.ledger];
            if ghost.is_unreadable || ghost.is_deleted || self.random.chance(self.cuts) {
                left.push((wanted.ledger, Left::Unread("it cannot be read".into())));
                continue;
            }
            let room = (self.settings.target_bytes().saturating_sub(bytes) / ENTRY_BYTES) as i64;
            let all = wanted.last.get() - wanted.first.get() + 1;
            let mut count = all.min(room);
            if self.random.chance(self.cuts) {
                count = self.random.below(count.max(1) as u64) as i64;
                left.push((wanted.ledger, Left::Unread("reading took too long".into())));
            } else if count < all {
                left.push((wanted.ledger, Left::Full));
            }
            if count > 0 {
                let last = entry(wanted.first.get() + count - 1);
                assert!(
                    Some(last) <= ghost.end,
                    "T4: entry {last} of ledger {} is not confirmed",
                    wanted.ledger
                );
                bytes += count as u64 * ENTRY_BYTES;
                extents.push(NewExtent {
                    ledger: wanted.ledger,
                    first: wanted.first,
                    last,
                    bytes: count as u64 * ENTRY_BYTES,
                    created_ms: wanted.metadata.created_ms,
                });
            }
        }
        let object = ObjectRef {
            id: order.object,
            length_bytes: bytes + 1000,
            footer_offset: bytes,
            footer_crc: self.ids as u32,
            etag_crc: 1,
        };
        let new = (!extents.is_empty()).then_some(NewObject { object, extents });
        if let Some(new) = new.clone().filter(|_| fate != Fate::Fails) {
            self.written.insert(order.object, self.now);
            let before = self.bucket.insert(order.object, new);
            assert_eq!(before, None, "T5: an id is used once");
        }
        let outcome = match (fate, new) {
            (Fate::Works, new) => Ok(new),
            (_, None) => Ok(None),
            _ => Err("the upload failed".into()),
        };
        let built = Built { outcome, left, times: BuildTimes::default() };
        Some(Event::Built { object: order.object, built })
    }

    fn draw(&mut self, count: usize) -> Vec<ObjectId> {
        (0..count)
            .map(|_| {
                self.ids += 1;
                let mut random = [0; 10];
                random[..8].copy_from_slice(&self.ids.to_be_bytes());
                ObjectId::new(self.now.as_millis() as u64, random)
            })
            .collect()
    }

    fn ttl_ms(&self) -> u64 {
        2 * self.settings.reservation_use.as_millis() as u64
    }

    /// A request that was sent then does not reach a bookie any more.
    fn is_late(&self, sent_at: Duration) -> bool {
        self.now > sent_at + self.settings.updates.timeout
    }

    /// One record of the log.
    fn record(&mut self, changes: Vec<Change>) -> Vec<ChangeOutcome> {
        let record = Record {
            cluster: CLUSTER,
            number: self.catalogue.position().number + 1,
            writer: WriterId(1),
            time_ms: self.now.as_millis() as u64,
            changes,
        };
        let outcomes = self.catalogue.apply(&record, &Facts::nothing_below()).unwrap().changes;
        for (change, outcome) in record.changes.iter().zip(&outcomes) {
            let (Change::Commit(new) | Change::Replace { object: new, .. }) = change else { continue };
            let ChangeOutcome::Committed(Ok(outcomes)) = outcome else { continue };
            let accepted = new.extents.iter().zip(outcomes);
            let accepted = accepted.filter(|(_, outcome)| outcome.verdict == Verdict::Accepted);
            let place = |extent: &NewExtent| (extent.ledger, extent.first, extent.last, new.object.id);
            self.committed.extend(accepted.map(|(extent, _)| place(extent)));
        }
        outcomes
    }

    /// One record of the log with objects, and ids for the next ones.
    fn commit(&mut self, objects: &[NewObject], reserve: &[ObjectId]) -> CommitReply {
        let ttl_ms = self.ttl_ms();
        let mut changes: Vec<Change> = objects.iter().cloned().map(Change::Commit).collect();
        changes.push(Change::Reserve { objects: reserve.to_vec(), ttl_ms });
        let outcomes = self.record(changes);
        let mut reply = CommitReply { objects: Vec::new(), reserved: reserve.to_vec() };
        let mut committed = objects.iter();
        for change in outcomes {
            if let ChangeOutcome::Committed(outcome) = change {
                reply.objects.push((committed.next().unwrap().object.id, outcome));
            }
        }
        reply
    }

    fn place(&self, ledger: LedgerId) -> Place {
        let row = self.catalogue.ledger(&Facts::nothing_below(), ledger).unwrap();
        Place { ledger, last: self.tiered(ledger), created_ms: row.and_then(|row| row.created_ms) }
    }

    /// The last entry of a ledger in the catalogue.
    pub fn tiered(&self, ledger: LedgerId) -> Option<EntryId> {
        let next = self.catalogue.next(&Facts::nothing_below(), ledger).unwrap();
        next.get().checked_sub(1).and_then(EntryId::new)
    }

    pub fn extents_from(&self, ledger: LedgerId, from: EntryId, limit: usize) -> Vec<TierExtent> {
        let wanted = WantedExtents { ledger, from: EntryId::FIRST, through: EntryId::MAX, limit: usize::MAX };
        let rows = self.catalogue.extents(&Facts::nothing_below(), wanted).unwrap();
        let extents = rows.iter().map(|(first, row)| row.tier_extent(*first));
        extents.filter(|extent| extent.last >= from).take(limit).collect()
    }

    /// Moves time on to where some tierer has something to do, at most by `most`, and lets them do it.
    pub fn pass(&mut self, most: Duration) {
        let wakes =
            self.tierers.iter().filter_map(|tierer| tierer.core.as_ref()).map(|core| core.wake_at(self.now));
        let keepers = self.tierers.iter().filter_map(|tierer| tierer.keeper.as_ref()?.core.wake_at());
        let until = wakes.chain(keepers).min().unwrap_or(self.now + most).min(self.now + most);
        self.now = self.now.max(until);
        for tierer in 0..self.tierers.len() {
            self.event(tierer, Event::Time);
        }
    }

    /// Delivers everything in its order, without faults, and lets time pass, for so long.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.drain();
            self.pass(end - self.now);
        }
        self.drain();
    }

    /// Delivers everything that does not hang.
    pub fn drain(&mut self) {
        let mut index = 0;
        while index < self.pending.len() {
            let before = self.pending.len();
            let step = self.pending[index].step.clone();
            self.deliver(index, Fate::Works);
            let is_stuck = self.pending.len() == before && self.pending[index].step == step;
            index = if is_stuck { index + 1 } else { 0 };
        }
        for tierer in 0..self.tierers.len() {
            while self.deliver_upkeep(tierer, Fate::Works) {}
        }
        while !self.estate.strays.is_empty() {
            self.deliver_stray();
        }
    }

    /// Delivers in order until an action like this is there, and returns its place.
    pub fn until(&mut self, what: &str, is_it: impl Fn(&Action) -> bool) -> usize {
        for _ in 0..10_000 {
            if let Some(index) =
                self.pending.iter().position(|pending| pending.step == Step::Sent && is_it(&pending.action))
            {
                return index;
            }
            match self
                .pending
                .iter()
                .position(|pending| !is_it(&pending.action) || pending.step != Step::Sent)
            {
                Some(index) => self.deliver(index, Fate::Works),
                None => self.pass(Duration::from_millis(500)),
            }
        }
        panic!("no {what} after 10,000 steps: {:?}", self.pending);
    }

    /// The invariants.
    pub fn check(&self) {
        let facts = Facts::nothing_below();
        for (id, ghost) in self.ledgers.iter() {
            let extents = self.extents_from(*id, EntryId::FIRST, usize::MAX);
            let mut next = EntryId::FIRST;
            for extent in &extents {
                assert_eq!(extent.first, next, "IT1, IT7: ledger {id} has a gap or an overlap: {extents:?}");
                next = entry(extent.last.get() + 1);
                let object = self.bucket.get(&extent.object.id);
                let is_in = object.is_some_and(|new| {
                    new.object == extent.object
                        && new
                            .extents
                            .iter()
                            .any(|e| (e.ledger, e.first, e.last) == (*id, extent.first, extent.last))
                });
                assert!(is_in || self.is_diverged, "IT2: extent {extent:?} of ledger {id} is in no object");
            }
            let tiered = self.tiered(*id);
            // Of an id that is used again the ledger before may have been longer; its rows go later.
            let is_of_before = ghost.creation().is_anothers(self.place(*id).created_ms);
            assert!(
                tiered <= ghost.end || is_of_before,
                "IT4: ledger {id} is tiered up to {tiered:?} and ends with {:?}",
                ghost.end
            );
            for (name, bookie) in self.bookies.iter() {
                let Some(told) = bookie.told.get(id).filter(|_| !ghost.is_deleted) else { continue };
                let is_told_of_before = ghost.creation().is_anothers(told.created_ms);
                assert!(
                    told.register <= tiered || self.was_put_back || is_told_of_before,
                    "IT1: {name} has {:?} of ledger {id}, the catalogue {tiered:?}",
                    told.register
                );
                for (_, extent) in told.extents.values() {
                    let place = (*id, extent.first, extent.last, extent.object.id);
                    assert!(
                        self.committed.contains(&place) || self.was_put_back,
                        "IT1: {name} was told of {extent:?}, which was not committed"
                    );
                }
                // Nobody reads what a bookie has that left the ensemble.
                if ghost.metadata.segments().iter().any(|segment| segment.ensemble.contains(name)) {
                    self.check_trimmed(name, *id, told);
                }
            }
        }
        for object in self.begun.iter() {
            let row = self.catalogue.object(&facts, *object).unwrap();
            let is_known = row.is_some() || self.estate.forgotten.contains(object) || self.is_diverged;
            assert!(is_known, "IT2: {object} was uploaded without a reservation");
        }
    }

    /// Every entry that a bookie let go is in an object of the bucket. The catalogue names that object (IT2), or a rebuild finds it.
    fn check_trimmed(&self, name: &BookieId, id: LedgerId, told: &Told) {
        let Some(trimmed) = told.trimmed else { return };
        let good = self.bucket.values().filter(|new| !self.estate.spoiled.contains(&new.object.id));
        let mut ranges: Vec<(EntryId, EntryId)> = good
            .flat_map(|new| &new.extents)
            .filter(|extent| extent.ledger == id)
            .map(|extent| (extent.first, extent.last))
            .collect();
        ranges.sort_unstable();
        let mut next = EntryId::FIRST;
        for (first, last) in ranges {
            if first <= next {
                next = next.max(entry(last.get() + 1));
            }
        }
        assert!(
            next > trimmed,
            "IT5: entry {next} of ledger {id} has no copy on {name}, and is in no object"
        );
    }

    /// A bookie lets its copies of a ledger go, if it may (T9, T19).
    pub fn trim(&mut self, name: &BookieId, id: LedgerId) {
        // It compares its copies with the objects that the catalogue names.
        let extents = self.extents_from(id, EntryId::FIRST, usize::MAX);
        let ghost = &self.ledgers[&id];
        let Some(told) = self.bookies.get_mut(name).and_then(|bookie| bookie.told.get_mut(&id)) else {
            return;
        };
        let is_closed = matches!(ghost.metadata.state, LedgerState::Closed { .. });
        let are_there = extents.iter().all(|extent| {
            has_extent(&self.bucket, id, extent) && !self.estate.spoiled.contains(&extent.object.id)
        });
        if is_closed && !ghost.is_deleted && told.register == ghost.end && are_there {
            told.trimmed = told.register;
        }
    }

    /// Every closed ledger is in the tier, and every bookie that can be told knows.
    pub fn assert_complete(&self) {
        for (id, ghost) in self.ledgers.iter().filter(|(_, ghost)| !ghost.is_deleted && !ghost.is_unreadable)
        {
            if !matches!(ghost.metadata.state, LedgerState::Closed { .. }) {
                continue;
            }
            assert_eq!(self.tiered(*id), ghost.end, "IT8: ledger {id} is not tiered to its end");
            for name in ghost.metadata.segments().iter().flat_map(|segment| &segment.ensemble) {
                let bookie = &self.bookies[name];
                if bookie.ability == Ability::Reconciles
                    && !bookie.without.contains(id)
                    && ghost.end.is_some()
                {
                    let register = bookie.told.get(id).and_then(|told| told.register);
                    assert_eq!(register, ghost.end, "{name}, ledger {id}");
                }
            }
        }
    }
}

/// Whether the extent is in its object, as it was committed.
fn has_extent(bucket: &BTreeMap<ObjectId, NewObject>, id: LedgerId, extent: &TierExtent) -> bool {
    let is_it = |e: &NewExtent| (e.ledger, e.first, e.last) == (id, extent.first, extent.last);
    bucket
        .get(&extent.object.id)
        .is_some_and(|new| new.object == extent.object && new.extents.iter().any(is_it))
}

impl Bookie {
    /// As a bookie does it.
    fn update(&mut self, update: &Reconciliation, bucket: &BTreeMap<ObjectId, NewObject>) -> UpdateResult {
        let ledger = update.ledger;
        if self.without.contains(&ledger) {
            return UpdateResult { ledger, status: UpdateStatus::NoLedger, register: None, is_durable: true };
        }
        let told = self.told.entry(ledger).or_default();
        // Metadata would say that the other one lives: no tierer speaks of one that it did not see there.
        if told.created_ms.zip(update.created_ms).is_some_and(|(known, said)| known != said) {
            *told = Told::default();
        }
        told.created_ms = told.created_ms.or(update.created_ms);
        let status = told.take(ledger, update, bucket);
        UpdateResult { ledger, status, register: told.register, is_durable: true }
    }
}

impl Told {
    fn take(
        &mut self,
        ledger: LedgerId,
        update: &Reconciliation,
        bucket: &BTreeMap<ObjectId, NewObject>,
    ) -> UpdateStatus {
        let (Some(last), Some(first)) = (update.last, update.extents.first()) else {
            return UpdateStatus::Done;
        };
        if first.first.get() > self.register.map_or(0, |register| register.get() + 1) {
            return UpdateStatus::Behind;
        }
        // Later updates name objects with later ids.
        let is_older = |new: &TierExtent| {
            let known = self.extents.range(..=new.last);
            known.filter(|(_, (end, _))| *end >= new.first).any(|(_, (_, old))| old.object.id > new.object.id)
        };
        if update.extents.iter().any(is_older) {
            return UpdateStatus::Behind;
        }
        // It looks at the objects of entries that it let go.
        let mut below = update.extents.iter().filter(|extent| Some(extent.first) <= self.trimmed);
        if !below.all(|extent| has_extent(bucket, ledger, extent)) {
            return UpdateStatus::Failed;
        }
        for new in &update.extents {
            let overlapping: Vec<EntryId> = self
                .extents
                .range(..=new.last)
                .filter(|(_, (end, _))| *end >= new.first)
                .map(|(begin, _)| *begin)
                .collect();
            for begin in overlapping {
                let (end, old) = self.extents.remove(&begin).unwrap();
                if begin < new.first {
                    self.extents.insert(begin, (entry(new.first.get() - 1), old));
                }
                if end > new.last {
                    self.extents.insert(entry(new.last.get() + 1), (end, old));
                }
            }
            self.extents.insert(new.first, (new.last, *new));
        }
        self.register = self.register.max(Some(last));
        UpdateStatus::Done
    }
}
