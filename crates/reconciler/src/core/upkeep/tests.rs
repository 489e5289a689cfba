use std::collections::BTreeMap;
use std::sync::Arc;

use bindery_tiering::catalogue::{ExtentOutcome, NewExtent, ObjectRow, Replaced, StoredObject, Verdict};
use bindery_types::tier::TierExtent;
use bindery_types::{BookieId, DigestType, EntryId, LedgerMetadata, LedgerSecret, Quorum, Segment};

use super::*;
use crate::core::measure::BuildTimes;
use crate::core::{Built, Left, Member};

mod deletions;
mod joins;
mod late;
mod rewrites;

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
fn moved(of: i64, first: i64, last: i64) -> Moved {
    let (first, last) = (entry(first), entry(last));
    let extents = vec![TierExtent { first, last, object: reference(object(9), 50) }];
    Moved { ledger: id(of), first, last, extents, differs: None }
}

/// A cluster, as an upkeep sees it.
struct Around {
    upkeep: Upkeep,
    now: Duration,
    catalogue: BTreeSet<LedgerId>,
    metadata: BTreeSet<LedgerId>,
    proof: Proof,
    garbage: BTreeSet<ObjectId>,
    /// Those of them that were reserved in vain.
    reserved: BTreeSet<ObjectId>,
    /// Extents of those that have others than ten.
    extents: BTreeMap<ObjectId, u32>,
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
    /// The next object is full after so many ledgers, and so many pieces of the one behind them.
    full_after: Option<(usize, usize)>,
    /// So many extents can be copied before an object takes too long.
    in_time: Option<usize>,
    /// Where the extents of each object are; those of more were of ledgers that are gone.
    moved: Vec<Moved>,
    /// Ledgers that neither the catalogue nor the metadata store has.
    absent: Vec<LedgerId>,
    /// A look at the catalogue takes so long.
    slowness: Duration,
    /// Footers have so many extents more than were committed.
    more_extents: usize,
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
            reserved: BTreeSet::new(),
            extents: BTreeMap::new(),
            are_gone: false,
            in_time: None,
            full_after: None,
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
            moved: Vec::new(),
            absent: Vec::new(),
            slowness: Duration::ZERO,
            more_extents: 0,
        }
    }

    fn is_deleted(&self, n: u8) -> bool {
        !self.garbage.contains(&object(n))
    }

    fn has_rewritten(&self) -> bool {
        self.done.iter().any(|action| matches!(action, UpkeepAction::Rewrite(_)))
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
                    .map(|ledger| Absent { ledger, created_ms: None })
                    .collect())),
                UpkeepAction::Remove(ledgers) if self.removals_left > 0 => {
                    self.removals_left -= 1;
                    UpkeepEvent::Removed(Ok(ledgers.into_iter().map(|absent| (absent.ledger, 10)).collect()))
                }
                UpkeepAction::Remove(ledgers) => {
                    ledgers.iter().for_each(|absent| assert!(self.catalogue.remove(&absent.ledger)));
                    UpkeepEvent::Removed(Ok(ledgers.into_iter().map(|absent| (absent.ledger, 0)).collect()))
                }
                UpkeepAction::Mark => {
                    self.proof.has_mark = true;
                    UpkeepEvent::Marked(Ok(()))
                }
                UpkeepAction::FindGarbage { after, limit, .. } => {
                    let behind = self.garbage.iter().filter(|object| Some(**object) > after);
                    let row = |object: &ObjectId| StoredObject {
                        extents: self.extents.get(object).copied().unwrap_or(10),
                        ..stored(*object, 100, 0.0)
                    };
                    let garbage = behind.map(|object| Garbage {
                        object: *object,
                        stored: (!self.reserved.contains(object)).then(|| row(object)),
                    });
                    UpkeepEvent::Garbage(Ok(garbage.take(limit).collect()))
                }
                UpkeepAction::TryDeletion => UpkeepEvent::DeletionTried(self.deletion.clone()),
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
                        now_ms: self.now.as_millis() as u64,
                        ..ScanPage::default()
                    }))
                }
                UpkeepAction::AskFor(_) => UpkeepEvent::Missing(Ok(Vec::new())),
                UpkeepAction::ReadFooters(objects) => {
                    let damaged = objects.into_iter().filter(|(id, _)| self.damaged.contains_key(id));
                    let why = "the checksum of its footer is wrong".to_owned();
                    let error = SourceError { why, fault: super::Fault::Damage };
                    UpkeepEvent::FootersRead(damaged.map(|(id, _)| (id, Err(error.clone()))).collect())
                }
                UpkeepAction::WhereTo(object, _) if self.damaged.contains_key(&object.id) => {
                    let why = "the checksum of its footer is wrong".to_owned();
                    UpkeepEvent::Whereabouts(Err(SourceError { why, fault: super::Fault::Damage }))
                }
                UpkeepAction::WhereTo(..) if self.are_gone => {
                    let why = "it is not there".to_owned();
                    UpkeepEvent::Whereabouts(Err(SourceError { why, fault: super::Fault::Gone }))
                }
                UpkeepAction::WhereTo(object, places) => {
                    self.now += self.slowness;
                    let moved = places.iter().filter_map(|place| self.moved.get(*place as usize)).cloned();
                    let extents =
                        self.extents.get(&object.id).copied().unwrap_or(10) as usize + self.more_extents;
                    let found = Whereabouts { extents, moved: moved.collect(), absent: self.absent.clone() };
                    UpkeepEvent::Whereabouts(Ok(found))
                }
                UpkeepAction::Survey { objects, .. } => {
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
                        created_ms: None,
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
                    let mut extents: Vec<NewExtent> =
                        order.order.ledgers.iter().zip(&order.pieces).filter_map(part).collect();
                    let (room, pieces) = self.full_after.take().unwrap_or((extents.len(), 0));
                    let left = extents.split_off(room.min(extents.len()));
                    if let Some(piece) = pieces.checked_sub(1) {
                        extents.push(NewExtent { last: order.pieces[room][piece].last, ..left[0] });
                    }
                    let left = left.into_iter().map(|extent| (extent.ledger, Left::Full)).collect();
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
                    let times = BuildTimes::default();
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
            UpkeepAction::LookAgain(ledgers) => UpkeepEvent::LookedAgain(Ok(ledgers
                .into_iter()
                .map(|ledger| Absent { ledger, created_ms: None })
                .collect())),
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

/// Invariant 5.
#[test]
fn one_that_cannot_do_its_upkeep_says_so_and_finds_out_when_it_can() {
    let mut around = Around::new(0..5, 0..5);
    assert_eq!(around.upkeep.unable(), None);
    around.upkeep.set_doubts(around.now, Some("a record is missing"), None, (None, &[]), None);
    assert_eq!(around.upkeep.unable().as_deref(), Some("a record is missing"));
    around.upkeep.set_doubts(around.now, None, None, (None, &[]), None);
    around.garbage = (0..3).map(object).collect();
    around.deletion = Deletion::Denied("403".to_owned());
    around.pass();
    assert_eq!(around.upkeep.unable().as_deref(), Some("it cannot delete objects: 403"));
    // Another one does it, and this one tries.
    let other = Member { is_without_upkeep: true, ..Member::able("own") };
    around.upkeep.set_team(&Team::new("own", [other, Member::able("other")]));
    around.done.clear();
    around.pass();
    assert!(around.done.contains(&UpkeepAction::TryDeletion) && around.upkeep.unable().is_some());
    around.deletion = Deletion::Done;
    // Also in doubt: it may be the one that is needed to end it.
    around.upkeep.set_doubts(around.now, None, None, (Some("tierer a: object 7"), &[]), None);
    around.pass();
    assert_eq!(around.upkeep.unable(), None);
    around.upkeep.set_doubts(around.now, None, None, (None, &[]), None);
    around.done.clear();
    around.pass();
    let is_whole = |action: &UpkeepAction| matches!(action, UpkeepAction::Ledgers | UpkeepAction::Delete(_));
    assert!(!around.done.contains(&UpkeepAction::TryDeletion) && !around.done.iter().any(is_whole));
}

/// Invariants 1 and 2 of [`doubts`].
#[test]
fn objects_that_others_miss_are_looked_up_and_ledgers_go_meanwhile() {
    let mut around = Around::new(0..5, 1..5);
    around.garbage = (0..3).map(object).collect();
    let missing = [(object(7), 10)];
    around.upkeep.set_doubts(around.now, None, None, (Some("tierer a: object 7"), &missing), None);
    around.pass();
    assert!(around.done.contains(&UpkeepAction::AskFor(missing.to_vec())), "{:?}", around.done);
    assert_eq!((around.upkeep.status().counts.ledgers_removed, around.is_deleted(1)), (1, false));
    assert_eq!(around.upkeep.own_doubt(), None, "what was heard is not told on");
    around.upkeep.set_doubts(around.now, Some("a record is missing"), None, (None, &[]), None);
    assert_eq!(around.upkeep.own_doubt().as_deref(), Some("a record is missing"));
}

#[test]
fn one_whose_action_does_not_end_says_so_while_that_is_so() {
    let mut around = Around::new(0..5, 0..5);
    let hear = |around: &mut Around, seconds: u64| {
        around.now += Duration::from_secs(seconds);
        around.upkeep.set_doubts(around.now, None, None, (None, &[]), None);
        around.upkeep.unable()
    };
    assert_eq!(around.upkeep.next(around.now), Some(UpkeepAction::Ledgers));
    assert_eq!(hear(&mut around, 7199), None);
    assert_eq!(hear(&mut around, 1).as_deref(), Some("it waits for something that does not end"));
    around.upkeep.on_event(around.now, UpkeepEvent::Ledgers(Ok(Vec::new())), &mut Vec::new());
    assert_eq!(hear(&mut around, 9999), None, "nothing is under way");
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
