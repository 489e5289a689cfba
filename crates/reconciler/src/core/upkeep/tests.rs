use std::sync::Arc;

use bindery_tiering::catalogue::{ExtentOutcome, NewExtent, ObjectRow, Replaced, StoredObject, Verdict};
use bindery_types::tier::TierExtent;
use bindery_types::{DigestType, EntryId, LedgerMetadata, LedgerSecret, Quorum, Segment};

use super::*;
use crate::core::measure::BuildTimes;
use crate::core::updates::{RequestError, UpdateResult, UpdateSettings, UpdateStatus};
use crate::core::{Built, Left};

mod late;
mod returns;

const OURS: &str = "ours";

fn id(raw: i64) -> LedgerId {
    LedgerId::new(raw).unwrap()
}

fn ids(raw: std::ops::Range<i64>) -> Vec<LedgerId> {
    raw.map(id).collect()
}

fn object(n: u8) -> ObjectId {
    ObjectId::new(7, [n; 10])
}

fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}

fn bookie(name: &str) -> BookieId {
    BookieId::new(name).unwrap()
}

fn reference(id: ObjectId, length_bytes: u64) -> ObjectRef {
    ObjectRef { id, length_bytes, footer_offset: length_bytes - 1, footer_crc: 0, etag_crc: 0 }
}

/// An object with ten extents, of which so many are live.
pub(super) fn stored(id: ObjectId, length_bytes: u64, live: f64) -> StoredObject {
    StoredObject {
        object: reference(id, length_bytes),
        crc: 0,
        extents: 10,
        bytes: length_bytes,
        live_extents: (live * 10.0) as u32,
        live_bytes: (live * length_bytes as f64) as u64,
        committed_ms: 0,
        unreferenced_ms: None,
        replaced: None,
    }
}

fn metadata(names: &str) -> Arc<LedgerMetadata> {
    let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
    let ensemble: Vec<BookieId> = names.split(' ').map(bookie).collect();
    let mut metadata = LedgerMetadata::new(Quorum::new(ensemble.len(), 1, 1).unwrap(), secret);
    metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
    Arc::new(metadata)
}

fn live(of: i64, first: i64, last: i64) -> LiveExtent {
    let (first, last) = (entry(first), entry(last));
    LiveExtent { ledger: id(of), first, last, bytes: 7, metadata: metadata("a b c") }
}

/// A range that is in object 9 now.
fn moved(of: i64, first: i64, last: i64, names: &str) -> Moved {
    let (first, last) = (entry(first), entry(last));
    let extents = vec![TierExtent { first, last, object: reference(object(9), 50) }];
    Moved { place: 0, ledger: id(of), first, last, extents, metadata: Some(metadata(names)) }
}

/// A cluster, as an upkeep sees it.
struct Around {
    upkeep: Upkeep,
    now: Duration,
    catalogue: BTreeSet<LedgerId>,
    metadata: BTreeSet<LedgerId>,
    proof: Proof,
    garbage: BTreeSet<ObjectId>,
    /// Those of them that bookies referred to once.
    released: BTreeMap<ObjectId, StoredObject>,
    /// They are not in the bucket.
    are_gone: bool,
    deletion: Deletion,
    alarms: Vec<Alarm>,
    done: Vec<UpkeepAction>,
    /// So often a removal leaves extents for a further one.
    removals_left: u64,
    /// Rows of the page of the scan.
    rows: Vec<StoredObject>,
    live: BTreeMap<ObjectId, Vec<LiveExtent>>,
    next_id: ObjectId,
    /// An object with a later id.
    later: Option<ObjectId>,
    /// Extents of which the catalogue takes what is offered.
    verdict: Verdict,
    /// Objects that cannot be read, and whether the failure says so.
    damaged: BTreeMap<ObjectId, bool>,
    order: Option<RewriteOrder>,
    /// So many extents can be copied before an object takes too long.
    in_time: Option<usize>,
    waiting: Vec<StoredObject>,
    moved: Vec<Moved>,
    silent: BTreeSet<BookieId>,
    status: UpdateStatus,
    /// A look at the catalogue, and a request to bookies, take so long.
    slowness: Duration,
    /// And a look at the catalogue so much longer for each extent.
    of_extent: Duration,
    /// The log of the catalogue.
    log_length: u64,
    /// Objects are not released.
    cannot_release: bool,
    /// Requests to bookies since they last answered, of which only every third one does, if so.
    unanswered: Option<u32>,
}

impl Around {
    fn new(catalogue: std::ops::Range<i64>, metadata: std::ops::Range<i64>) -> Around {
        let now = Duration::from_secs(1000);
        Around {
            upkeep: Upkeep::new(now, UpkeepSettings::default(), 64 << 20, OURS.to_owned(), Canaries::none()),
            now,
            catalogue: ids(catalogue).into_iter().collect(),
            metadata: ids(metadata).into_iter().collect(),
            proof: Proof {
                instance_id: OURS.to_owned(),
                is_whole: true,
                has_mark: true,
                next_id: LedgerId::new(1000),
            },
            garbage: BTreeSet::new(),
            released: BTreeMap::new(),
            are_gone: false,
            in_time: None,
            deletion: Deletion::Done,
            alarms: Vec::new(),
            done: Vec::new(),
            removals_left: 0,
            rows: Vec::new(),
            live: BTreeMap::new(),
            next_id: object(8),
            later: None,
            verdict: Verdict::Accepted,
            damaged: BTreeMap::new(),
            order: None,
            waiting: Vec::new(),
            moved: Vec::new(),
            silent: BTreeSet::new(),
            status: UpdateStatus::Done,
            slowness: Duration::ZERO,
            of_extent: Duration::ZERO,
            unanswered: None,
            log_length: 5,
            cannot_release: false,
        }
    }

    fn now_ms(&self) -> u64 {
        self.now.as_millis() as u64
    }

    /// An object whose extents others took over so long ago.
    fn wait(&mut self, n: u8, since: Duration) {
        let at_ms = (self.now - since).as_millis() as u64;
        let replaced = Some(Replaced { number: 5, at_ms });
        self.waiting.push(StoredObject { replaced, ..stored(object(n), 100, 0.0) });
    }

    /// Objects that wait do so for as long as it takes.
    fn settle(&mut self) {
        self.pass();
        assert!(self.told().is_empty());
        self.now += UpkeepSettings::default().settle;
        self.done.clear();
    }

    fn bookies(&mut self, abilities: &[(&str, Ability)]) {
        self.upkeep.set_bookies(&abilities.iter().map(|(name, is)| (bookie(name), *is)).collect());
    }

    fn told(&self) -> Vec<String> {
        let requests = self.done.iter().filter_map(|action| match action {
            UpkeepAction::Tell(requests) => Some(requests),
            _ => None,
        });
        requests.flatten().map(|(bookie, _)| bookie.to_string()).collect()
    }

    fn answer(&self, (bookie, updates): (BookieId, Vec<Reconciliation>)) -> Told {
        if self.silent.contains(&bookie) || self.unanswered.is_some_and(|count| count != 0) {
            return (bookie, Err(RequestError::Failed("no answer".into())));
        }
        let result = |update: &Reconciliation| UpdateResult {
            ledger: update.ledger,
            status: self.status,
            register: update.last,
            is_durable: true,
        };
        (bookie, Ok(updates.iter().map(result).collect()))
    }

    /// One pass, from where it waits to where it waits again.
    fn pass(&mut self) {
        self.now = self.now.max(self.upkeep.wake_at().unwrap());
        while let Some(action) = self.upkeep.next(self.now) {
            assert_eq!(self.upkeep.next(self.now), None, "one action at a time");
            self.done.push(action.clone());
            let event = match action {
                UpkeepAction::Ledgers => UpkeepEvent::Ledgers(Ok(self.catalogue.iter().copied().collect())),
                UpkeepAction::Prove => UpkeepEvent::Proven(Ok(self.proof.clone())),
                UpkeepAction::List { is_first } => UpkeepEvent::Listed(Ok((is_first
                    && !self.metadata.is_empty())
                .then(|| self.metadata.iter().copied().collect()))),
                UpkeepAction::LookAgain(ledgers) => UpkeepEvent::LookedAgain(Ok(ledgers
                    .into_iter()
                    .filter(|ledger| !self.metadata.contains(ledger))
                    .collect())),
                UpkeepAction::Remove(ledgers) if self.removals_left > 0 => {
                    self.removals_left -= 1;
                    UpkeepEvent::Removed(Ok(ledgers.into_iter().map(|ledger| (ledger, 10)).collect()))
                }
                UpkeepAction::Remove(ledgers) => {
                    ledgers.iter().for_each(|ledger| assert!(self.catalogue.remove(ledger)));
                    UpkeepEvent::Removed(Ok(ledgers.into_iter().map(|ledger| (ledger, 0)).collect()))
                }
                UpkeepAction::Mark => {
                    self.proof.has_mark = true;
                    UpkeepEvent::Marked(Ok(()))
                }
                UpkeepAction::FindGarbage { after, limit, .. } => {
                    let behind = self.garbage.iter().filter(|object| Some(**object) > after);
                    let garbage = behind.map(|object| Garbage {
                        object: *object,
                        released: self.released.get(object).copied(),
                    });
                    UpkeepEvent::Garbage(Ok(garbage.take(limit).collect()))
                }
                UpkeepAction::Delete(objects) => UpkeepEvent::Deleted(
                    objects.into_iter().map(|object| (object, self.deletion.clone())).collect(),
                ),
                UpkeepAction::Forget(objects) => {
                    objects.iter().for_each(|object| assert!(self.garbage.remove(object)));
                    UpkeepEvent::Forgotten(Ok(objects.len() as u64))
                }
                UpkeepAction::Scan { .. } => {
                    let rows =
                        self.rows.iter().map(|row| ScannedRow::new(row.object.id, &ObjectRow::Stored(*row)));
                    let listed = |row: &StoredObject| ListedObject {
                        object: row.object.id,
                        modified_ms: 0,
                        length_bytes: row.object.length_bytes,
                    };
                    UpkeepEvent::Scanned(Ok(ScanPage {
                        objects: self.rows.iter().map(listed).collect(),
                        rows: rows.collect(),
                        ..ScanPage::default()
                    }))
                }
                UpkeepAction::AskFor(_) => UpkeepEvent::Missing(Ok(Vec::new())),
                UpkeepAction::DeleteOrphans(_) => UpkeepEvent::OrphansDeleted(Vec::new()),
                UpkeepAction::FindWaiting { after, limit } => UpkeepEvent::Waiting(Ok(WaitingPage {
                    objects: (self.waiting.iter().filter(|stored| Some(stored.object.id) > after))
                        .take(limit)
                        .copied()
                        .collect(),
                    now_ms: self.now_ms(),
                    log_length: self.log_length,
                })),
                UpkeepAction::WhereTo(object, _) if self.damaged.contains_key(&object.id) => {
                    let why = "the checksum of its footer is wrong".to_owned();
                    UpkeepEvent::Whereabouts(Err(SourceError { why, fault: super::Fault::Damage }))
                }
                UpkeepAction::WhereTo(..) if self.are_gone => {
                    let why = "it is not there".to_owned();
                    UpkeepEvent::Whereabouts(Err(SourceError { why, fault: super::Fault::Gone }))
                }
                UpkeepAction::WhereTo(_, places) => {
                    let at = self.now;
                    self.now += self.slowness + self.of_extent * places.len() as u32;
                    let of_place = |place: &u32| {
                        self.moved.get(*place as usize).map(|moved| Moved { place: *place, ..moved.clone() })
                    };
                    let moved = places.iter().filter_map(of_place).collect();
                    UpkeepEvent::Whereabouts(Ok(Whereabouts { at, moved }))
                }
                UpkeepAction::Tell(requests) => {
                    self.now += self.slowness;
                    if let Some(count) = &mut self.unanswered {
                        *count = (*count + 1) % 3;
                    }
                    UpkeepEvent::Told(requests.into_iter().map(|request| self.answer(request)).collect())
                }
                UpkeepAction::Release(_) if self.cannot_release => {
                    UpkeepEvent::Released(Err("no answer".to_owned()))
                }
                UpkeepAction::Release(objects) => {
                    self.waiting.retain(|stored| !objects.contains(&(stored.object.id, 5)));
                    UpkeepEvent::Released(Ok(objects.len() as u64))
                }
                UpkeepAction::Survey(objects) => {
                    let survey = |object: ObjectRef| {
                        let live = self.live.get(&object.id).cloned();
                        let why = || SourceError {
                            why: "its ledger is gone".to_owned(),
                            fault: super::Fault::Passing,
                        };
                        (object, live.ok_or_else(why))
                    };
                    UpkeepEvent::Surveyed(objects.into_iter().map(survey).collect())
                }
                UpkeepAction::Reserve => UpkeepEvent::Reserved(Ok((self.next_id, self.later))),
                UpkeepAction::Rewrite(order) if self.in_time.is_some() => self.copy_in_time(order),
                UpkeepAction::Replace { object, .. } if self.in_time.is_some() => self.replace_whole(&object),
                UpkeepAction::Rewrite(order) => {
                    let extent = |wanted: &crate::core::BuildLedger| NewExtent {
                        ledger: wanted.ledger,
                        first: wanted.first,
                        last: wanted.last,
                        bytes: wanted.bytes,
                    };
                    let pieces = || order.pieces.iter().flatten().map(|piece| piece.object.id);
                    let unread: BTreeSet<ObjectId> =
                        pieces().filter(|object| self.damaged.contains_key(object)).collect();
                    let is_named = unread.iter().all(|object| self.damaged[object]);
                    // Of a range that several objects have, what is before the damage.
                    let part = |(wanted, pieces): (&crate::core::BuildLedger, &Vec<Piece>)| {
                        let good = pieces.iter().take_while(|piece| !unread.contains(&piece.object.id));
                        Some(NewExtent { last: good.last()?.last, ..extent(wanted) })
                    };
                    let extents: Vec<NewExtent> =
                        order.order.ledgers.iter().zip(&order.pieces).filter_map(part).collect();
                    let new = NewObject { object: reference(order.order.object, 50), extents };
                    let outcome = match () {
                        () if !is_named => Err("it took too long".to_owned()),
                        () if new.extents.is_empty() => Ok(None),
                        () => Ok(Some(new)),
                    };
                    let error =
                        SourceError { why: "a checksum is wrong".to_owned(), fault: super::Fault::Damage };
                    let unread = unread.into_iter().filter(|_| is_named);
                    let unread = unread.map(|object| (object, error.clone())).collect();
                    let (left, times) = (Vec::new(), BuildTimes::default());
                    self.order = Some(order);
                    UpkeepEvent::Rewritten(Built { outcome, left, times }, unread)
                }
                UpkeepAction::Replace { object, .. } => {
                    if let Some(order) = self.order.take().filter(|_| self.verdict == Verdict::Accepted) {
                        let pieces = order.order.ledgers.iter().zip(&order.pieces);
                        for (wanted, piece) in
                            pieces.flat_map(|(of, pieces)| pieces.iter().map(move |piece| (of, piece)))
                        {
                            let has = |extent: &&NewExtent| {
                                extent.ledger == wanted.ledger
                                    && extent.first <= piece.first
                                    && extent.last >= piece.last
                            };
                            if object.extents.iter().any(|extent| has(&extent)) {
                                self.rows.retain(|row| row.object.id != piece.object.id);
                            }
                        }
                    }
                    let outcome = |extent: &NewExtent| ExtentOutcome {
                        ledger: extent.ledger,
                        verdict: self.verdict,
                        next: extent.last,
                    };
                    UpkeepEvent::Replaced(Ok(Ok(object.extents.iter().map(outcome).collect())))
                }
            };
            self.upkeep.on_event(self.now, event, &mut self.alarms);
        }
    }

    fn has_removed(&self) -> bool {
        self.done.iter().any(|action| matches!(action, UpkeepAction::Remove(_)))
    }
}

#[test]
fn a_large_share_goes_when_a_second_pass_finds_the_same() {
    let mut around = Around::new(0..100, 90..100);
    around.pass();
    assert!(!around.has_removed() && around.upkeep.status().doubt.is_none());
    assert_eq!(around.upkeep.wake_at(), Some(around.now + UpkeepSettings::default().confirm_pause));
    around.pass();
    assert_eq!(around.catalogue, around.metadata);
    assert_eq!(around.upkeep.status().counts.ledgers_removed, 90);
}

/// Invariant 1: each part of the proof is wanted.
#[test]
fn an_empty_listing_is_believed_only_of_a_store_that_proves_to_be_current() {
    let wrong: [fn(&mut Proof); 5] = [
        |proof| proof.instance_id = "another".to_owned(),
        |proof| proof.is_whole = false,
        |proof| proof.has_mark = false,
        |proof| proof.next_id = LedgerId::new(3),
        |proof| proof.next_id = None,
    ];
    for (index, spoil) in wrong.into_iter().enumerate() {
        let mut around = Around::new(0..5, 0..0);
        spoil(&mut around.proof);
        (0..3).for_each(|_| around.pass());
        assert!(!around.has_removed(), "{index}");
        assert_eq!((around.alarms.len(), around.upkeep.status().counts.doubts), (1, 3), "{index}");
        assert!(!around.done.contains(&UpkeepAction::Mark), "{index}: a doubt adds no evidence");
    }
    let mut around = Around::new(0..5, 0..0);
    around.pass();
    assert!(around.catalogue.is_empty() && around.alarms.is_empty());
}

#[test]
fn a_store_that_is_replaced_in_a_pass_removes_nothing() {
    let mut around = Around::new(0..5, 0..0);
    while !matches!(around.done.last(), Some(UpkeepAction::LookAgain(_))) {
        let action = around.upkeep.next(around.now).unwrap();
        around.done.push(action.clone());
        let event = match action {
            UpkeepAction::Ledgers => UpkeepEvent::Ledgers(Ok(ids(0..5))),
            UpkeepAction::Prove => UpkeepEvent::Proven(Ok(around.proof.clone())),
            UpkeepAction::List { .. } => UpkeepEvent::Listed(Ok(None)),
            UpkeepAction::LookAgain(ledgers) => UpkeepEvent::LookedAgain(Ok(ledgers)),
            other => panic!("{other:?}"),
        };
        around.upkeep.on_event(around.now, event, &mut around.alarms);
    }
    around.proof.has_mark = false;
    around.pass();
    assert!(!around.has_removed());
    assert!(around.upkeep.status().doubt.as_ref().unwrap().contains("mark"));
}

/// A cluster begins: without ledgers in the catalogue the first pass leaves a mark, and only that one.
#[test]
fn an_empty_catalogue_gets_one_mark() {
    let mut around = Around::new(0..0, 0..5);
    around.proof.has_mark = false;
    (0..3).for_each(|_| around.pass());
    assert_eq!(around.done.iter().filter(|action| **action == UpkeepAction::Mark).count(), 1);
}

/// Invariants 2 and 3.
#[test]
fn objects_that_cannot_be_deleted_are_one_alarm_and_hold_up_nothing() {
    let mut around = Around::new(0..5, 0..5);
    around.garbage = (0..3).map(object).collect();
    around.deletion = Deletion::Denied("403".to_owned());
    (0..3).for_each(|_| around.pass());
    let is_denial = |alarm: &&Alarm| matches!(alarm, Alarm::CannotDelete { .. });
    assert_eq!(around.alarms.iter().filter(is_denial).count(), 1);
    assert_eq!((around.garbage.len(), around.upkeep.status().counts.delete_failures), (3, 3));
    around.deletion = Deletion::Done;
    around.pass();
    assert_eq!((around.garbage.len(), around.upkeep.status().counts.delete_failures), (0, 0));
    around.garbage = (0..3).map(object).collect();
    around.deletion = Deletion::Denied("403".to_owned());
    around.pass();
    assert_eq!(around.alarms.iter().filter(is_denial).count(), 2, "it was allowed in between");
}

#[test]
fn a_pause_and_a_stop_begin_nothing() {
    let mut around = Around::new(0..5, 0..5);
    around.upkeep.set_paused(true);
    assert_eq!((around.upkeep.wake_at(), around.upkeep.next(around.now)), (None, None));
    around.upkeep.set_paused(false);
    around.pass();
    around.upkeep.stop();
    assert_eq!(around.upkeep.wake_at(), None);
}

#[test]
fn a_large_ledger_is_removed_until_nothing_of_it_is_left() {
    let mut around = Around::new(0..5, 1..5);
    around.removals_left = 3;
    around.pass();
    let removals = around.done.iter().filter(|action| matches!(action, UpkeepAction::Remove(_)));
    assert_eq!((removals.count(), around.upkeep.status().counts.ledgers_removed), (4, 1));
}

/// Invariant 1 of [`waiting`]: until all bookies said yes, and those that did are not asked again.
#[test]
fn a_rewritten_object_goes_when_every_bookie_knows() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[
        ("a", Ability::Reconciles),
        ("b", Ability::Reconciles),
        ("j", Ability::KeepsEverything),
    ]);
    around.wait(1, Duration::from_secs(60));
    around.moved = vec![moved(1, 0, 9, "a b j"), moved(1, 20, 29, "a b j"), moved(2, 0, 4, "a b j")];
    around.silent.insert(bookie("b"));
    around.settle();
    around.pass();
    assert_eq!(around.waiting.len(), 1, "b may refer to it");
    assert_eq!(around.upkeep.status().objects_waiting, 1);
    let why = around.upkeep.status().waits_for.clone().unwrap();
    assert!(why.contains("bookie b does not answer"), "{why}");
    // A ledger comes once in a request, so its second range comes in one of its own.
    assert_eq!(around.told(), ["a", "b", "a", "b", "b"]);
    around.done.clear();
    around.silent.clear();
    around.pass();
    assert_eq!(around.told(), ["b", "b"], "only those that did not say yes");
    assert_eq!((around.waiting.len(), around.upkeep.status().counts.objects_released), (0, 1));
    around.pass();
    assert_eq!((around.upkeep.status().objects_waiting, &around.upkeep.status().waits_for), (0, &None));
}

/// Invariant 1 of [`waiting`]: an extent that was done counts only with the ensemble of the pass that lets the object go.
#[test]
fn a_bookie_that_comes_back_to_an_ensemble_is_asked_before_the_object_goes() {
    for is_registered in [true, false] {
        let mut around = Around::new(0..5, 0..5);
        let all = ["a", "b", "c", "d", "e"].map(|name| (name, Ability::Reconciles));
        around.bookies(&all);
        around.wait(1, Duration::from_secs(60));
        // d left, and e does not answer for another extent.
        around.moved = vec![moved(1, 0, 9, "a b c"), moved(2, 0, 9, "a b c e")];
        around.silent.insert(bookie("e"));
        around.settle();
        around.pass();
        assert_eq!((around.waiting.len(), around.upkeep.waiting.left(object(1))), (1, Some(1000 - 3)));
        // d comes back, and e answers.
        around.moved[0] = moved(1, 0, 9, "a d c");
        around.silent.clear();
        around.done.clear();
        if !is_registered {
            around.bookies(&[&all[..3], &all[4..]].concat());
            around.pass();
            assert_eq!((around.told(), around.waiting.len()), (vec!["e".to_owned()], 1), "d refers to it");
            let why = around.upkeep.status().waits_for.clone().unwrap();
            assert!(why.contains("bookie d is not registered"), "{why}");
            around.done.clear();
            around.bookies(&all);
        }
        around.pass();
        let told = around.told();
        let expected: &[&str] = if is_registered { &["e", "d"] } else { &["d"] };
        assert_eq!(told, expected, "only those that did not say yes");
        assert_eq!((around.waiting.len(), around.upkeep.status().counts.objects_released), (0, 1));
    }
}

/// Invariant 1 of [`waiting`]: that a bookie keeps everything is no answer that is remembered.
#[test]
fn a_bookie_that_kept_everything_is_asked_once_it_does_not() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles), ("j", Ability::KeepsEverything)]);
    around.wait(1, Duration::from_secs(60));
    around.moved = vec![moved(1, 0, 9, "a j"), moved(2, 0, 9, "b")];
    around.settle();
    around.pass();
    assert_eq!((around.waiting.len(), around.told()), (1, vec!["a".to_owned()]));
    around.bookies(&["a", "b", "j"].map(|name| (name, Ability::Reconciles)));
    around.done.clear();
    around.pass();
    assert_eq!((around.waiting.len(), around.told()), (0, vec!["b".to_owned(), "j".to_owned()]));
}

#[test]
fn answers_are_kept_until_the_object_is_let_go_and_not_across_a_catalogue_that_is_put_back() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.wait(1, Duration::from_secs(60));
    around.moved = vec![moved(1, 0, 9, "a")];
    around.log_length = 9;
    around.settle();
    around.cannot_release = true;
    (0..3).for_each(|_| around.pass());
    assert_eq!((around.waiting.len(), around.told()), (1, vec!["a".to_owned()]), "nobody is told again");
    (around.cannot_release, around.log_length) = (false, 7);
    around.done.clear();
    around.settle();
    around.pass();
    assert_eq!((around.waiting.len(), around.told()), (0, vec!["a".to_owned()]));
    assert_eq!(around.upkeep.waiting.left(object(1)), None, "nothing is remembered of it");
}

/// Invariant 5 of [`waiting`].
#[test]
fn an_object_that_waits_and_is_damaged_is_one_alarm_and_keeps_no_other_from_being_rewritten() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.moved = vec![moved(1, 0, 9, "a")];
    for n in 10..80 {
        around.wait(n, Duration::from_secs(60));
        around.damaged.insert(object(n), true);
    }
    around.settle();
    around.rows = vec![stored(object(1), 10 << 20, 0.1)];
    around.live.insert(object(1), vec![live(1, 0, 9)]);
    around.next_id = object(99);
    (0..6).for_each(|_| around.pass());
    let status = around.upkeep.status();
    assert_eq!((around.waiting.len(), around.alarms.len(), status.objects_damaged), (70, 70, 70));
    assert!(status.damaged.as_ref().unwrap().contains("footer"), "{status:?}");
    assert_eq!(status.counts.rewrites, 1, "{status:?}");
    // Brought back, they go.
    around.damaged.clear();
    (0..6).for_each(|_| around.pass());
    assert_eq!((around.waiting.len(), around.alarms.len()), (0, 70));
    around.pass();
    assert_eq!((around.upkeep.status().objects_damaged, &around.upkeep.status().damaged), (0, &None));
}

/// Invariant 1 of [`waiting`].
#[test]
fn a_rewritten_object_stays_for_a_bookie_that_is_down_or_refuses_and_for_a_ledger_in_doubt() {
    let mut around = Around::new(0..5, 0..5);
    let all = [("a", Ability::Reconciles), ("b", Ability::Reconciles)];
    around.wait(1, Duration::from_secs(60));
    around.moved = vec![moved(1, 0, 9, "a b"), Moved { metadata: None, ..moved(2, 0, 9, "a") }];
    around.settle();
    around.pass();
    assert_eq!((around.waiting.len(), around.told().len()), (1, 0), "nobody is known to be registered");
    around.bookies(&all[..1]);
    around.pass();
    assert_eq!((around.waiting.len(), around.told()), (1, vec!["a".to_owned()]), "b is down");
    around.bookies(&all);
    for status in [UpdateStatus::Busy, UpdateStatus::Failed, UpdateStatus::Behind] {
        around.status = status;
        around.pass();
        assert_eq!(around.waiting.len(), 1, "{status:?}");
    }
    around.status = UpdateStatus::NoLedger;
    around.pass();
    assert_eq!(around.waiting.len(), 1, "its ledger may be removed, or not");
    around.moved[1] = Moved { extents: Vec::new(), ..moved(2, 0, 9, "a") };
    around.pass();
    assert_eq!(around.waiting.len(), 1, "nobody knows where it is");
    around.moved.pop();
    around.pass();
    assert_eq!(around.waiting.len(), 0);
}

/// Invariant 4 of [`waiting`]: however many ledgers there are, and however slow it all is.
#[test]
fn an_object_of_thousands_of_ledgers_goes_after_some_passes() {
    let all = [("a", Ability::Reconciles), ("b", Ability::Reconciles), ("c", Ability::Reconciles)];
    let told = |around: &Around| {
        let requests = around.done.iter().filter_map(|action| match action {
            UpkeepAction::Tell(requests) => Some(requests),
            _ => None,
        });
        requests.flatten().map(|(_, updates)| updates.len()).sum::<usize>()
    };
    for (slowness, unanswered, ledgers, most) in
        [(4, None, 5500, 25), (19, None, 5500, 150), (4, Some(0), 600, 300)]
    {
        let mut around = Around::new(0..5, 0..5);
        around.bookies(&all);
        around.wait(1, Duration::from_secs(60));
        around.waiting[0].extents = ledgers as u32;
        around.moved = (0..ledgers).map(|of| moved(of, 0, 9, "a b c")).collect();
        around.settle();
        (around.slowness, around.unanswered) = (Duration::from_secs(slowness), unanswered);
        let (mut passes, mut before) = (0, usize::MAX);
        while !around.waiting.is_empty() {
            let waits = around.upkeep.waiting.left(object(1)).unwrap_or(usize::MAX - 1);
            assert!(
                waits < before || unanswered.is_some(),
                "pass {passes} of {slowness} s: {waits} are left"
            );
            (passes, before) = (passes + 1, waits);
            assert!(passes < most, "{waits} are left after {passes} passes of {slowness} s");
            let began = around.now.max(around.upkeep.wake_at().unwrap());
            around.pass();
            // The last one has the check, which goes on until its end.
            let checks = if around.waiting.is_empty() { 11 * slowness } else { 0 };
            assert!(around.now < began + Duration::from_secs(120 + 40 + slowness + checks), "a pass ends");
        }
        if unanswered.is_none() {
            assert_eq!(told(&around), 3 * ledgers as usize, "nobody is told twice of the same");
        }
    }
}

/// Invariant 4 of [`waiting`]: a catalogue that takes longer for more extents.
#[test]
fn fewer_extents_are_looked_at_while_the_catalogue_is_slow() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.wait(1, Duration::from_secs(60));
    around.waiting[0].extents = 3000;
    around.moved = (0..3000).map(|of| moved(of, 0, 9, "a")).collect();
    around.of_extent = Duration::from_millis(300);
    let mut passes = 0;
    while !around.waiting.is_empty() {
        around.pass();
        passes += 1;
        assert!(passes < 40, "{:?}", around.upkeep.status());
    }
}

/// A bookie that is down, and one that hangs, keep neither the time of the others nor what they said.
#[test]
fn objects_that_wait_for_a_bookie_hold_up_no_other() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.slowness = Duration::from_secs(4);
    for n in 1..=3 {
        around.wait(n, Duration::from_secs(60));
        around.waiting.last_mut().unwrap().extents = 3000;
    }
    around.moved = (0..3000).map(|of| moved(of, 0, 9, "a b")).collect();
    around.settle();
    (0..60).for_each(|_| around.pass());
    let status = around.upkeep.status();
    assert!(status.waits_for.as_ref().unwrap().contains("bookie b is not registered"), "{status:?}");
    let told = around.told().len();
    (0..10).for_each(|_| around.pass());
    assert_eq!((around.told().len(), around.waiting.len()), (told, 3), "a said all of it");
    around.done.clear();
    around.bookies(&[("a", Ability::Reconciles), ("b", Ability::Reconciles)]);
    (0..60).for_each(|_| around.pass());
    assert!(around.told().iter().all(|bookie| bookie == "b"));
    assert_eq!((around.waiting.len(), around.upkeep.status().objects_waiting), (0, 0));
}

/// Invariant 2 of [`waiting`].
#[test]
fn bookies_are_told_when_nobody_tells_them_of_the_old_object_any_more() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    let settle = UpkeepSettings::default().settle;
    assert!(settle > crate::core::updates::EXTENTS_KEPT_FOR + UpdateSettings::default().timeout);
    around.wait(1, settle - Duration::from_secs(1));
    around.moved = vec![moved(1, 0, 9, "a")];
    around.settle();
    around.pass();
    assert_eq!((around.waiting.len(), around.told().len()), (0, 1));
}

/// Invariant 2 of [`waiting`]: a clock that is behind does not shorten it, nor one that is ahead.
#[test]
fn bookies_are_told_when_this_tierer_has_seen_it_for_long_enough() {
    let settle = UpkeepSettings::default().settle;
    let mut around = Around::new(0..5, 0..5);
    let interval = Duration::from_secs(1);
    let settings = UpkeepSettings { interval, ..UpkeepSettings::default() };
    around.upkeep = Upkeep::new(around.now, settings, 64 << 20, OURS.to_owned(), Canaries::none());
    around.bookies(&[("a", Ability::Reconciles)]);
    around.wait(1, Duration::from_secs(900));
    around.moved = vec![moved(1, 0, 9, "a")];
    let began = around.now;
    while !around.waiting.is_empty() {
        around.pass();
    }
    assert_eq!(around.now, began + settle, "the record says that it was long ago");
    around.wait(2, Duration::ZERO);
    let began = around.now;
    while !around.waiting.is_empty() {
        around.pass();
    }
    assert_eq!(around.now, began + settle, "the record says that it was just now, and was seen before");
}

/// T16, and invariant 1 of [`rewrite`].
#[test]
fn sparse_objects_go_into_one_in_the_order_of_their_entries() {
    let mut around = Around::new(0..5, 0..5);
    around.rows = vec![
        stored(object(1), 10 << 20, 0.3),
        stored(object(2), 10 << 20, 0.1),
        stored(object(3), 10 << 20, 0.5),
        stored(object(4), 10 << 20, 0.4),
    ];
    around.live.insert(object(1), vec![live(2, 0, 4), live(1, 10, 19)]);
    around.live.insert(object(2), vec![live(1, 0, 9), live(1, 30, 39)]);
    around.pass();
    let order = around.done.iter().find_map(|action| match action {
        UpkeepAction::Rewrite(order) => Some(order.clone()),
        _ => None,
    });
    let order = order.unwrap();
    let ranges: Vec<_> = order
        .order
        .ledgers
        .iter()
        .map(|wanted| (wanted.ledger.get(), wanted.first.get(), wanted.last.get(), wanted.bytes))
        .collect();
    assert_eq!(ranges, [(1, 0, 19, 14), (1, 30, 39, 7), (2, 0, 4, 7)]);
    let pieces: Vec<Vec<ObjectId>> =
        order.pieces.iter().map(|pieces| pieces.iter().map(|piece| piece.object.id).collect()).collect();
    assert_eq!(pieces, [vec![object(2), object(1)], vec![object(2)], vec![object(1)]]);
    let replaced = around.done.iter().find_map(|action| match action {
        UpkeepAction::Replace { sources, .. } => Some(sources.clone()),
        _ => None,
    });
    // The one whose ledger is gone is left for another time; half is not less than half.
    assert_eq!(replaced, Some(vec![object(2), object(1)]));
    let counts = around.upkeep.status().counts;
    assert_eq!((counts.rewrites, counts.objects_rewritten, counts.rewritten_bytes), (1, 2, 28));
    around.done.clear();
    around.rows.retain(|row| row.object.id == object(4));
    around.pass();
    assert!(!around.done.iter().any(|action| matches!(action, UpkeepAction::Survey(_))), "not at once");
    around.now += UpkeepSettings::default().rewrite_pause;
    around.pass();
    assert!(around.done.iter().any(|action| matches!(action, UpkeepAction::Survey(_))));
}

/// Invariants 2 to 4 of [`rewrite`].
#[test]
fn a_rewrite_that_is_in_vain_changes_nothing_and_is_tried_again_later() {
    let mut around = Around::new(0..5, 0..5);
    around.rows = vec![stored(object(1), 10 << 20, 0.3)];
    around.live.insert(object(1), vec![live(1, 0, 9)]);
    around.next_id = object(0);
    around.pass();
    assert!(!around.done.iter().any(|action| matches!(action, UpkeepAction::Rewrite(_))), "an older id");
    assert_eq!(around.upkeep.status().counts.rewrite_failures, 1);
    // The other tierer was faster.
    (around.next_id, around.verdict) = (object(8), Verdict::NotReplaceable);
    around.now += UpkeepSettings::default().rewrite_pause;
    around.pass();
    let counts = around.upkeep.status().counts;
    assert_eq!((counts.rewrites, counts.objects_rewritten), (0, 0));
    around.done.clear();
    around.now += UpkeepSettings::default().rewrite_pause;
    around.pass();
    assert!(!around.done.iter().any(|action| matches!(action, UpkeepAction::Survey(_))), "ever longer");
    around.verdict = Verdict::Accepted;
    around.now += UpkeepSettings::default().rewrite_pause;
    around.pass();
    assert_eq!(around.upkeep.status().counts.objects_rewritten, 1);
}

/// Invariant 5 of [`rewrite`].
#[test]
fn an_object_that_bookies_may_refuse_is_rewritten_whatever_else_is_so() {
    let mut around = Around::new(0..5, 0..5);
    let settings = UpkeepSettings { rewrite_below: 0.0, ..UpkeepSettings::default() };
    around.upkeep = Upkeep::new(around.now, settings, 64 << 20, OURS.to_owned(), Canaries::none());
    let replaced = Some(Replaced { number: 3, at_ms: 0 });
    around.rows =
        vec![StoredObject { replaced, ..stored(object(1), 10 << 20, 1.0) }, stored(object(2), 10 << 20, 0.1)];
    around.live.insert(object(1), vec![live(1, 0, 9)]);
    // More objects wait than there may be, all of them because a bookie refuses that one.
    for n in 10..80 {
        around.wait(n, Duration::from_secs(60));
    }
    around.pass();
    let counts = around.upkeep.status().counts;
    assert_eq!((counts.rewrites, counts.objects_rewritten), (1, 1));
}

/// Invariant 2 of [`rewrite`]: bookies may know any object of the catalogue in place of a source that they refuse.
#[test]
fn an_object_that_bookies_may_refuse_waits_for_an_id_above_all_others() {
    for is_outranked in [true, false] {
        let mut around = Around::new(0..5, 0..5);
        let replaced = Some(Replaced { number: 3, at_ms: 0 }).filter(|_| is_outranked);
        around.rows = vec![StoredObject { replaced, ..stored(object(1), 10 << 20, 0.1) }];
        around.live.insert(object(1), vec![live(1, 0, 9)]);
        around.later = Some(object(9));
        around.pass();
        let status = around.upkeep.status();
        let counts = status.counts;
        assert_eq!((counts.rewrites, counts.rewrite_failures), if is_outranked { (0, 1) } else { (1, 0) });
        if is_outranked {
            let why = status.last_error.as_ref().unwrap();
            assert!(why.contains(&object(9).to_string()), "{why}");
            (around.next_id, around.later) = (object(10), None);
            around.now += UpkeepSettings::default().rewrite_pause;
            around.pass();
            assert_eq!(around.upkeep.status().counts.rewrites, 1);
        }
    }
}

#[test]
fn a_range_is_covered_by_extents_without_a_gap() {
    let covered = |extents: &[(i64, i64)]| {
        let extent = |(first, last): &(i64, i64)| TierExtent {
            first: entry(*first),
            last: entry(*last),
            object: reference(object(9), 50),
        };
        Moved { extents: extents.iter().map(extent).collect(), ..moved(1, 10, 29, "a") }.is_covered()
    };
    assert!(covered(&[(10, 29)]) && covered(&[(0, 50)]) && covered(&[(5, 14), (15, 19), (20, 40)]));
    assert!(!covered(&[]) && !covered(&[(10, 28)]) && !covered(&[(11, 29)]));
    assert!(!covered(&[(10, 14), (16, 29)]), "a gap");
    assert!(!covered(&[(0, 9), (15, 29)]) && !covered(&[(10, 14)]));
}

/// Invariant 4 of [`rewrite`]: one damaged object of a group is left alone, and the others are rewritten.
#[test]
fn a_damaged_object_keeps_no_other_from_being_rewritten() {
    for is_named in [true, false] {
        let mut around = Around::new(0..5, 0..5);
        // Parts of one ledger in all of them, so that they become one range.
        around.rows = (0..8).map(|n| stored(object(n), 1 << 20, 0.1)).collect();
        for n in 0..8 {
            let first = i64::from(n) * 10;
            around.live.insert(object(n), vec![live(1, first, first + 9)]);
        }
        around.next_id = object(99);
        around.damaged.insert(object(3), is_named);
        let mut passes = 0;
        while around.upkeep.status().counts.objects_rewritten < 7 {
            around.pass();
            passes += 1;
            assert!(passes < 40, "{is_named}: {:?}", around.upkeep.status());
        }
        let status = around.upkeep.status();
        assert_eq!(status.counts.objects_rewritten, 7, "{status:?}");
        if is_named {
            assert!(passes <= 3, "the others do not wait");
            assert_eq!(around.alarms.len(), 1, "{:?}", around.alarms);
            assert!(
                matches!(&around.alarms[0], Alarm::ObjectDamaged { object: damaged, .. } if *damaged == object(3))
            );
            let damaged = status.damaged.as_ref().unwrap();
            assert!(status.objects_damaged == 1 && damaged.contains(&object(3).to_string()), "{damaged}");
        }
        // Brought back, it is rewritten as well.
        around.damaged.clear();
        around.now += Duration::from_secs(24 * 3600);
        (0..2).for_each(|_| around.pass());
        let status = around.upkeep.status();
        assert_eq!((status.counts.objects_rewritten, status.objects_damaged), (8, 0), "{status:?}");
    }
}

#[test]
fn nothing_is_rewritten_when_that_is_switched_off() {
    let mut around = Around::new(0..5, 0..5);
    let settings = UpkeepSettings { rewrite_below: 0.0, ..UpkeepSettings::default() };
    around.upkeep = Upkeep::new(around.now, settings, 64 << 20, OURS.to_owned(), Canaries::none());
    around.rows = vec![stored(object(1), 10 << 20, 0.1)];
    around.live.insert(object(1), vec![live(1, 0, 9)]);
    around.pass();
    assert!(!around.done.iter().any(|action| matches!(action, UpkeepAction::Survey(_))));
}
